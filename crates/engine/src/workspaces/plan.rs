//! The plan of a commit, written into the layer before its first step: after a crash the next
//! command completes it.
//!
//! ```text
//! {"version":1,"draft":…,"moves":…,"force":…,"drop":…}     the header
//! {"path":…,"action":"put","before":…,…}                   one line for each step
//! {"end":COUNT}                                            a plan without its end is ignored
//! ```

use super::{
    base::bytes,
    diff::{ChangeKind, LayerChange},
    tree::{self, FileKind, FileState, Version},
};
use rustix::{
    fs::{AtFlags, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

const PLAN: &str = "apply";
const DRAFT: &str = "apply.new";
const VERSION: u32 = 1;
/// The largest plan: it is held in memory.
const MAX_BYTES: u64 = 512 << 20;

/// A plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) head: PlanHeader,
    pub(super) steps: Vec<PlanStep>,
}

/// The settings of all steps.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct PlanHeader {
    version: u32,
    /// The prefix of temporary names, which is not known inside.
    pub(super) draft: String,
    /// Whether files may be moved out of the layer.
    pub(super) moves: bool,
    /// Whether files that are open for writing are replaced.
    pub(super) force: bool,
    /// Whether the layer is removed if nothing is left in it.
    pub(super) drop: bool,
}

/// The change of one path.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct PlanStep {
    #[serde(with = "bytes")]
    path: OsString,
    pub(super) action: Action,
    pub(super) what: ChangeKind,
    /// The type afterwards; the type before, if it is removed.
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) size: u64,
    /// The mtime of a file afterwards.
    pub(super) modified: (i64, i64),
    #[serde(with = "bytes")]
    pub(super) target: OsString,
    /// The version in the layer.
    pub(super) source: Version,
    /// The expected state of the folder before.
    pub(super) before: Option<ExpectedFile>,
}

/// The action of a step.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    /// Nothing: the folder has the program's version already.
    Keep,
    /// Removes the path.
    Remove,
    /// Adds or replaces the path, or sets its permissions.
    Put,
    /// Sets the permissions of a folder, once everything below it is done.
    Close,
}

/// The state of a path in the folder that a step expects.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct ExpectedFile {
    pub(super) kind: FileKind,
    pub(super) mode: u32,
    pub(super) version: Version,
}

#[derive(Deserialize, Serialize)]
struct PlanEnd {
    end: usize,
}

impl ExpectedFile {
    pub(super) fn of(seen: &FileState) -> ExpectedFile {
        ExpectedFile {
            kind: seen.kind,
            mode: seen.mode,
            version: seen.version,
        }
    }

    /// Whether this is the same file with the same contents, or the same folder, whatever its
    /// contents.
    pub(super) fn is_same(&self, now: &FileState) -> bool {
        let (was, found) = (&self.version, &now.version);
        let has_same_contents = match self.kind {
            FileKind::File => (was.size, was.modified) == (found.size, found.modified),
            FileKind::Folder | FileKind::Link | FileKind::Other => true,
        };
        self.kind == now.kind && was.inode == found.inode && has_same_contents
    }
}

impl PlanStep {
    /// A step for a change; the planner sets the other fields.
    pub(super) fn of(change: &LayerChange, action: Action) -> PlanStep {
        PlanStep {
            path: change.path.as_os_str().to_owned(),
            action,
            what: change.what,
            kind: change.kind,
            mode: change.mode & 0o777,
            size: change.size_bytes,
            modified: (0, 0),
            target: change.target.clone().unwrap_or_default(),
            source: Version::default(),
            before: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// The change of this step.
    pub(super) fn change(&self) -> LayerChange {
        LayerChange {
            path: PathBuf::from(&self.path),
            what: self.what,
            kind: self.kind,
            mode: self.mode,
            size_bytes: self.size,
            target: Some(self.target.clone()).filter(|_| self.kind == FileKind::Link),
            left_out: None,
            why: None,
            conflict: None,
        }
    }
}

impl Plan {
    pub(super) fn new(draft: String, moves: bool, force: bool, drop: bool) -> Plan {
        let version = VERSION;
        Plan {
            head: PlanHeader {
                version,
                draft,
                moves,
                force,
                drop,
            },
            steps: Vec::new(),
        }
    }

    /// Writes the plan into the layer, atomically and durably.
    pub(super) fn write(&self, layer: impl AsFd) -> io::Result<()> {
        let layer = layer.as_fd();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = File::from(tree::open(layer, DRAFT, flags)?);
        let (mut text, mut written) = (Vec::new(), 0);
        print(&self.head, &mut text)?;
        for step in &self.steps {
            print(step, &mut text)?;
            if text.len() > 1 << 20 {
                file.write_all(&text)?;
                written += text.len() as u64;
                text.clear();
            }
        }
        let end = self.steps.len();
        print(&PlanEnd { end }, &mut text)?;
        file.write_all(&text)?;
        if written + text.len() as u64 > MAX_BYTES {
            rustix::fs::unlinkat(layer, DRAFT, AtFlags::empty())?;
            let most = MAX_BYTES >> 20;
            return Err(io::Error::other(format!(
                "there are more changes than fit into {most} MiB of a plan: take them over in parts"
            )));
        }
        file.sync_all()?;
        rustix::fs::renameat(layer, DRAFT, layer, PLAN)?;
        Ok(rustix::fs::fsync(layer)?)
    }

    /// Reads the plan of a layer; none if there is none or if it is incomplete.
    pub(super) fn read(layer: impl AsFd) -> io::Result<Option<Plan>> {
        let file = match tree::open(layer, PLAN, OFlags::RDONLY) {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => File::from(file?),
        };
        let mut lines = BufReader::new(file.take(MAX_BYTES)).lines();
        let Some(head) = lines.next().transpose()? else {
            return Ok(None);
        };
        let head: PlanHeader = serde_json::from_str(&head)?;
        if head.version != VERSION {
            return Err(io::Error::other(format!(
                "its plan has version {}, of another Airlock: finish it with that one",
                head.version
            )));
        }
        let mut steps: Vec<PlanStep> = Vec::new();
        for line in lines {
            let line = line?;
            match serde_json::from_str(&line) {
                Ok(step) => steps.push(step),
                Err(damaged) => {
                    let is_end =
                        serde_json::from_str(&line).is_ok_and(|PlanEnd { end }| end == steps.len());
                    return match is_end {
                        true => Ok(Some(Plan { head, steps })),
                        false => Err(damaged.into()),
                    };
                }
            }
        }
        Ok(None)
    }

    /// Whether there is a plan.
    pub(super) fn is_there(layer: impl AsFd) -> bool {
        let found = rustix::fs::statat(layer, PLAN, AtFlags::SYMLINK_NOFOLLOW);
        // An error does not mean that there is none.
        !matches!(found, Err(Errno::NOENT))
    }

    /// Removes a finished plan.
    pub(super) fn remove(layer: impl AsFd) -> io::Result<()> {
        match rustix::fs::unlinkat(layer, PLAN, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }

    /// The temporary name of a file that is being written.
    pub(super) fn new_name(&self) -> &OsStr {
        self.head.draft.as_ref()
    }

    /// The temporary name for the exchange in this step: it holds a complete file, which may be the
    /// host's.
    pub(super) fn swap_name(&self, step: usize) -> OsString {
        format!("{}-swap-{step}", self.head.draft).into()
    }
}

fn print(line: &impl Serialize, text: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *text, line)?;
    text.push(b'\n');
    Ok(())
}
