//! What it costs to move a process into cgroups of its own: the part of a cold run that version 1 makes dear.
//! The clock runs only while the moving is done; the process itself waits on its standard input.

use super::Reason;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The trees that our sandboxes are moved in.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpuacct"];

/// Moves a process, into groups that wait or into fresh ones.
#[derive(Debug)]
pub(crate) struct Attach {
    groups: Vec<PathBuf>,
    fresh: bool,
}

impl Attach {
    /// Into groups that were made before.
    pub(crate) fn prepared() -> Result<Attach, Reason> {
        let attach = Attach {
            groups: own_groups("attach")?,
            fresh: false,
        };
        attach.make()?;
        Ok(attach)
    }

    /// Into groups made and limited first, and removed afterwards.
    pub(crate) fn made_each_time() -> Result<Attach, Reason> {
        let attach = Attach {
            groups: own_groups("make")?,
            fresh: true,
        };
        attach.make()?;
        attach.remove()?;
        Ok(attach)
    }

    pub(crate) fn once(&self) -> Result<Duration, Reason> {
        let waits = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        let mut waiting = waits.map_err(|error| format!("cannot start `cat`: {error}"))?;
        let entered = self.enter(&waiting);
        drop(waiting.stdin.take());
        waiting
            .wait()
            .map_err(|error| format!("cannot wait for `cat`: {error}"))?;
        let mut took = entered?;
        if self.fresh {
            let start = Instant::now();
            self.remove()?;
            took += start.elapsed();
        }
        Ok(took)
    }

    fn enter(&self, process: &Child) -> Result<Duration, Reason> {
        let pid = process.id().to_string();
        let start = Instant::now();
        if self.fresh {
            self.make()?;
        }
        for group in &self.groups {
            fs::write(group.join("cgroup.procs"), &pid).map_err(|error| failed(group, &error))?;
        }
        Ok(start.elapsed())
    }

    fn make(&self) -> Result<(), Reason> {
        let limits = [("memory.limit_in_bytes", "512M"), ("pids.max", "34")];
        for group in &self.groups {
            fs::create_dir(group).map_err(|error| failed(group, &error))?;
            for (file, value) in limits.iter().map(|(file, value)| (group.join(file), value)) {
                if file.exists() {
                    fs::write(&file, value).map_err(|error| failed(&file, &error))?;
                }
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), Reason> {
        self.groups
            .iter()
            .try_for_each(|group| fs::remove_dir(group).map_err(|error| failed(group, &error)))
    }

    /// Removes the groups that were made before.
    pub(crate) fn end(self) {
        if !self.fresh {
            // Nobody is in them any more; what the kernel keeps all the same is empty.
            _ = self.remove();
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Reason {
    format!("`{}`: {error}", path.display())
}

fn own_groups(name: &str) -> Result<Vec<PathBuf>, Reason> {
    let own =
        fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("no cgroups: {error}"))?;
    let name = format!("airlock-bench-{name}-{}", std::process::id());
    let groups: Vec<_> = CONTROLLERS
        .iter()
        .filter_map(|controller| own_cgroup(&own, controller))
        .map(|group| group.join(&name))
        .collect();
    match groups.is_empty() {
        true => Err(
            "no version 1 cgroups here; in version 2 a process is born into its group".to_owned(),
        ),
        false => Ok(groups),
    }
}

/// Our own version 1 cgroup, where it is usually mounted.
pub(crate) fn own_cgroup(text: &str, controller: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|one| one == controller)
            .then_some(path)
    })?;
    let group = Path::new("/sys/fs/cgroup")
        .join(controller)
        .join(path.trim_start_matches('/'));
    group.is_dir().then_some(group)
}
