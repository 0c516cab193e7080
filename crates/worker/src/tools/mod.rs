//! What tools there are: read from a manifest, told again when it changes. Nothing of a tool runs here; what must be asked of
//! its code (a schema) is asked in a sandbox.
//!
//! ```text
//! manifest ─ yaml ─ entries ─┬─ place: is its code there ─ packages: what it needs ─ probe: what it says ─▶ catalog
//!                            └─ problems, reported
//! ```

mod card;
mod catalog;
mod limits;
mod look;
mod manifest;
pub mod packages;
mod place;
mod prepare;
mod probe;
mod problem;
mod requirement;
mod wheels;
mod yaml;

pub use catalog::{EVERY, FIRST, Pending, Report, Settings, watch, watch_all};
pub use limits::Limits;
pub use probe::{Asker, Cards, Question};
pub use problem::Problem;
pub use requirement::Requirement;
pub use wheels::Wheels;

pub mod sync;

use crate::{call::profile::Profile, wire::answer::ToolCard};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// One tool, as it can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// As topics have it.
    pub name: String,
    /// What is run.
    pub what: What,
    /// Where its code is.
    pub code: Code,
    /// What agents are told of it.
    pub card: ToolCard,
    /// The profile that its entry insists on; it wins over a request's.
    pub profile: Option<Profile>,
    /// Its time where a request says nothing.
    pub timeout: Option<Duration>,
    /// What its entry says about limits.
    pub limits: Limits,
}

/// What is run of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum What {
    /// A Python function.
    Function { module: String, function: String },
    /// A Python class with `_run_async_impl`.
    Class { module: String, class_name: String },
    /// A program that takes the name of a file with its arguments; `tool` is its own name for what it shall do. The path is
    /// relative to [`Code::folder`].
    Executable { path: PathBuf, tool: String },
}

/// Folders of the host with a tool's code, all shown read-only. Where they appear inside says [`crate::call::places`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code {
    /// What `import` looks into first: `TOOLS_PYTHON_DIR`.
    pub python: Option<PathBuf>,
    /// The folder that belongs to an executable (`tool_dir`); its program lies in it.
    pub folder: Option<PathBuf>,
    /// Installed packages, made in a sandbox; of nobody else.
    pub packages: Option<PathBuf>,
    /// A folder with packages that whoever runs the worker keeps (`SAM_SITE_PACKAGES`).
    pub site: Option<PathBuf>,
    /// What the folders above were like when they were last looked at: other code has another stamp.
    pub stamp: Stamp,
}

/// A digest of what code is like. Whoever keeps something that was made from code keeps this with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

/// All tools at one time, by name.
pub type Catalog = Arc<BTreeMap<String, Arc<Tool>>>;
