//! What is measured, by name: the kinds of running a command, and the measurements that are no rows.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// A way to run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Spawn,
    SpawnWithPipes,
    Bwrap,
    Firejail,
    Crun,
    Runc,
    Podman,
    Docker,
    DockerWithImage,
    Cli,
    Warm,
    WarmSustained,
    Cold,
    ColdWithMounts,
    ColdWithFiles,
    ColdWithRepository,
    ColdWithManyFiles,
    ColdWithImage,
    Bare,
    Attach,
    MakeAndAttach,
}

/// One row: a command run in one way.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Rows of one group have the same command and are compared with each other.
    pub(crate) group: Group,
    pub(crate) command: Vec<OsString>,
}

impl Row {
    /// How often it is visited in one round without idle time; in between come other rows. What takes long needs fewer
    /// samples.
    pub(crate) fn visits(&self) -> usize {
        match (self.kind, self.group) {
            (Kind::Crun | Kind::Runc | Kind::Firejail | Kind::Podman, _) => 1,
            (Kind::Docker | Kind::DockerWithImage | Kind::WarmSustained, _) => 1,
            (Kind::Attach | Kind::MakeAndAttach | Kind::ColdWithManyFiles, _)
            | (_, Group::Python) => 2,
            (_, Group::Command) => 8,
        }
    }

    /// How often it is run in one visit. Elsewhere a pool is filled again before the next row, off the clock; in a row
    /// of runs that drains it the refill goes on meanwhile.
    pub(crate) fn burst(&self) -> usize {
        if self.kind == Kind::WarmSustained {
            32
        } else {
            1
        }
    }
}

/// Rows with the same command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// The command that was asked for.
    Command,
    /// `python3 -c pass`.
    Python,
}

/// Measurements beside the rows.
pub(crate) const MORE: [&str; 8] = [
    "throughput-2",
    "throughput-8",
    "idle-sandbox",
    "hundred",
    "hundred-image",
    "container-docker",
    "container-podman",
    "image-load",
];

/// Comes before the name of a kind in the group of Python.
const PYTHON: &str = "python-";

impl Kind {
    pub(crate) const ALL: [Kind; 21] = [
        Kind::Spawn,
        Kind::SpawnWithPipes,
        Kind::Warm,
        Kind::WarmSustained,
        Kind::Cold,
        Kind::ColdWithMounts,
        Kind::ColdWithFiles,
        Kind::ColdWithRepository,
        Kind::ColdWithManyFiles,
        Kind::ColdWithImage,
        Kind::Bare,
        Kind::Cli,
        Kind::Bwrap,
        Kind::Crun,
        Kind::Runc,
        Kind::Firejail,
        Kind::Podman,
        Kind::Docker,
        Kind::DockerWithImage,
        Kind::Attach,
        Kind::MakeAndAttach,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Spawn => "posix_spawn",
            Kind::SpawnWithPipes => "posix_spawn-pipes",
            Kind::Bwrap => "bwrap",
            Kind::Firejail => "firejail",
            Kind::Crun => "crun",
            Kind::Runc => "runc",
            Kind::Podman => "podman",
            Kind::Docker => "docker",
            Kind::DockerWithImage => "docker-image",
            Kind::Cli => "cli",
            Kind::Cold => "library-cold",
            Kind::ColdWithMounts => "library-cold-mounts",
            Kind::ColdWithFiles => "library-cold-files",
            Kind::ColdWithRepository => "library-cold-files-git",
            Kind::ColdWithManyFiles => "library-cold-files-30000",
            Kind::ColdWithImage => "library-cold-image",
            Kind::Warm => "library-warm",
            Kind::WarmSustained => "library-warm-sustained",
            Kind::Bare => "library-bare",
            Kind::Attach => "cgroup-attach",
            Kind::MakeAndAttach => "cgroup-make",
        }
    }

    /// What is done, in one line.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Kind::Spawn => "no sandbox: spawn and wait, no pipes; the base of the ratios",
            Kind::SpawnWithPipes => "no sandbox, output read to the end",
            Kind::Bwrap => {
                "bwrap --unshare-all, /usr read-only, no capability; no filter, no limits"
            }
            Kind::Firejail => {
                "firejail without a profile: own network, filter; the host's files stay visible"
            }
            Kind::Crun => {
                "crun run on a bundle: /usr read-only, own namespaces, cgroups; no filter"
            }
            Kind::Runc => {
                "runc run on a bundle: /usr read-only, own namespaces, cgroups; no filter"
            }
            Kind::Podman => "podman run --rm on a root folder, limits of memory and pids",
            Kind::Docker => {
                "Docker's API: create, start, wait, remove; its filter, limits of memory and pids"
            }
            Kind::DockerWithImage => "the same on an image with the program, no log",
            Kind::Cli => "`airlock run`, the whole program, every barrier",
            Kind::Cold => {
                "Engine::run in a sandbox made for it; its cgroups and namespaces came from a pool"
            }
            Kind::ColdWithMounts => "library-cold with a mounted workspace and one more mount",
            Kind::ColdWithFiles => {
                "library-cold with a mounted workspace of 1,000 files, looked through before and after"
            }
            Kind::ColdWithRepository => "the same with an empty git repository in it",
            Kind::ColdWithManyFiles => "the same with 30,000 files and no repository",
            Kind::ColdWithImage => {
                "library-cold on an image of our store: the same program, unpacked before"
            }
            Kind::Warm => "Engine::run in a sandbox from a pool, which is full",
            Kind::WarmSustained => {
                "the same 32 times in a row: the pool drains and is refilled meanwhile, on the same processors"
            }
            Kind::Bare => {
                "Engine::run with nothing made ahead but the launcher: with the v1 attach"
            }
            Kind::Attach => "cgroup v1: only moving a process into prepared groups",
            Kind::MakeAndAttach => "cgroup v1: making, limiting, moving, removing",
        }
    }

    /// Files in its workspace, where that is what the row is about.
    pub(crate) const fn files(self) -> Option<usize> {
        match self {
            Kind::ColdWithFiles | Kind::ColdWithRepository => Some(1000),
            Kind::ColdWithManyFiles => Some(30_000),
            _ => None,
        }
    }

    pub(crate) const fn is_ours(self) -> bool {
        use Kind::{Bare, Cli, Cold, ColdWithImage, ColdWithMounts, Warm, WarmSustained};
        let files = self.files().is_some();
        files
            || matches!(
                self,
                Cli | Bare | Cold | ColdWithImage | ColdWithMounts | Warm | WarmSustained
            )
    }

    /// What both sides have to pay.
    pub(crate) const fn is_base(self) -> bool {
        matches!(
            self,
            Kind::Spawn | Kind::SpawnWithPipes | Kind::Attach | Kind::MakeAndAttach
        )
    }

    /// Whether a second command tells more about it.
    const fn with_python(self) -> bool {
        let variant = matches!(
            self,
            Kind::ColdWithMounts | Kind::WarmSustained | Kind::Bare
        ) || self.files().is_some();
        // Python is too much for the small image.
        let variant = variant || matches!(self, Kind::ColdWithImage | Kind::DockerWithImage);
        !variant
            && !matches!(
                self,
                Kind::SpawnWithPipes | Kind::Attach | Kind::MakeAndAttach
            )
    }
}

/// Every row that there is, for this command (`/bin/true` and Python's if none is given).
pub(crate) fn all(command: Option<&[OsString]>) -> Vec<Row> {
    let row = |kind: Kind, group, prefix: &str, command: &[OsString]| Row {
        name: format!("{prefix}{}", kind.name()),
        kind,
        group,
        command: resolved(command),
    };
    let default: [OsString; 1] = ["/bin/true".into()];
    let first = command.unwrap_or(&default);
    let mut rows: Vec<_> = Kind::ALL
        .map(|kind| row(kind, Group::Command, "", first))
        .into();
    if command.is_none() {
        let python = ["python3", "-c", "pass"].map(OsString::from);
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.with_python());
        rows.extend(kinds.map(|kind| row(kind, Group::Python, PYTHON, &python)));
    }
    rows
}

/// The command by its path, found as inside of our boxes: by the caller's search path it may be another program.
fn resolved(command: &[OsString]) -> Vec<OsString> {
    let mut command = command.to_vec();
    let by_name = |name: &OsStr| Path::new(name).components().count() == 1;
    if let Some(name) = command.first_mut().filter(|name| by_name(name)) {
        let found = std::env::split_paths(spec::DEFAULT_PATH).map(|folder| folder.join(&*name));
        let found = found.into_iter().find(|path| path.is_file());
        // Not found, it fails in every row, and that is told.
        *name = found.map_or(name.clone(), Into::into);
    }
    command
}

/// The names of all rows and of the other measurements.
pub(crate) fn names() -> Vec<String> {
    all(None)
        .into_iter()
        .map(|row| row.name)
        .chain(MORE.map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_there_once() {
        let names = names();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(
            names.contains(&"python-library-cold".to_owned())
                && names.contains(&"hundred".to_owned())
        );
    }

    #[test]
    fn a_command_of_ones_own_replaces_both() {
        let rows = all(Some(&["/bin/ls".into()]));
        assert_eq!(rows.len(), Kind::ALL.len());
        assert!(
            rows.iter()
                .all(|row| row.command == ["/bin/ls"] && row.group == Group::Command)
        );
    }

    #[test]
    fn a_program_is_the_same_file_in_every_row() {
        assert_eq!(resolved(&["sh".into(), "-c".into()]), ["/usr/bin/sh", "-c"]);
        assert_eq!(resolved(&["./sh".into()]), ["./sh"]);
        assert_eq!(resolved(&["no-such-program".into()]), ["no-such-program"]);
    }
}
