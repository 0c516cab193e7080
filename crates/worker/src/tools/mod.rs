//! Tools: the catalog, read from a manifest and updated when it changes. Tools do not run here;
//! their code is asked for schemas in a sandbox.
//!
//! ```text
//! manifest ─ yaml ─ entries ─┬─ locate: find the code ─ packages: install ─ probe: ask for the schema ─▶ catalog
//!                            └─ problems, reported
//! ```

mod catalog;
mod limits;
mod locate;
mod manifest;
pub mod packages;
mod prepare;
mod probe;
mod problem;
mod requirement;
mod scan;
mod schema;
mod wheels;
mod yaml;

pub use catalog::{
    CatalogSettings, FIRST_CATALOG_TIMEOUT, PendingEntries, SCAN_INTERVAL, ToolReport, watch,
    watch_all,
};
pub use limits::ToolLimits;
pub use probe::{ProbeRequest, SchemaProbe, ToolCardCache};
pub use problem::ToolProblem;
pub use requirement::PackageRequirement;
pub use wheels::Wheels;

pub mod sync;

use crate::{call::profile::ToolProfile, wire::answer::ToolCard};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// A tool that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Name, as in topics.
    pub name: String,
    /// What to run.
    pub what: EntryPoint,
    /// Its code.
    pub code: ToolCode,
    /// Description for agents.
    pub card: ToolCard,
    /// Profile of the manifest entry; it overrides that of a request.
    pub profile: Option<ToolProfile>,
    /// Default timeout.
    pub timeout: Option<Duration>,
    /// Limits of the manifest entry.
    pub limits: ToolLimits,
}

/// Entry point of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// A Python function.
    Function {
        /// Module to import.
        module: String,
        /// Name of the function.
        function: String,
    },
    /// A Python class with `_run_async_impl`.
    Class {
        /// Module to import.
        module: String,
        /// Name of the class.
        class_name: String,
    },
    /// A program that gets the name of a file with its arguments; `tool` is its own name for the
    /// tool. The path is relative to [`ToolCode::folder`].
    Executable {
        /// Path of the program.
        path: PathBuf,
        /// The program's name for the tool.
        tool: String,
    },
}

/// Host folders with a tool's code, mounted read-only. Their paths inside are in
/// [`crate::call::paths`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolCode {
    /// First entry of the import path: `TOOLS_PYTHON_DIR`.
    pub python: Option<PathBuf>,
    /// Folder of an executable (`tool_dir`), which contains its program.
    pub folder: Option<PathBuf>,
    /// Packages installed in a sandbox for this tool.
    pub packages: Option<PathBuf>,
    /// Packages that the operator maintains (`SAM_SITE_PACKAGES`).
    pub site: Option<PathBuf>,
    /// State of these folders when they were last scanned: changed code has another stamp.
    pub stamp: Stamp,
}

/// Digest of the state of code, stored with everything that was derived from the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

/// All tools by name, at one time.
pub type Catalog = Arc<BTreeMap<String, Arc<Tool>>>;
