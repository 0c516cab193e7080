//! Ways that are a program of their own: plain spawn, `airlock run`, and most peers.

use super::{Reason, Root, fresh_folder};
use crate::runs::Options;
use serde_json::{Value, json};
use spec::Barrier;
use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A program that runs the command.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    argv: Vec<OsString>,
    /// Where in it a name that is used once goes, and how often that was.
    fresh_name: Option<(usize, u64)>,
    /// Whether its output is read to the end, as ours is.
    pipes: bool,
    /// Whether the command would get the caller's environment: then it is emptied, as ours is.
    passes_environment: bool,
}

impl Program {
    fn new(argv: Vec<OsString>) -> Program {
        Program {
            argv,
            fresh_name: None,
            pipes: true,
            passes_environment: false,
        }
    }

    fn passing_environment(argv: Vec<OsString>) -> Program {
        Program {
            passes_environment: true,
            ..Program::new(argv)
        }
    }

    pub(crate) fn with_pipes(self) -> Program {
        Program {
            pipes: true,
            ..self
        }
    }

    /// The same for one of several runners: names are used once over all of them.
    pub(crate) fn for_runner(&self, number: usize) -> Program {
        let fresh_name = self
            .fresh_name
            .map(|(at, used)| (at, used + (number as u64 + 1) * 1_000_000_000));
        Program {
            fresh_name,
            ..self.clone()
        }
    }

    pub(crate) fn once(&mut self) -> Result<Duration, Reason> {
        if let Some((at, used)) = &mut self.fresh_name {
            *used += 1;
            self.argv[*at] = format!("airlock-bench-{}-{used}", std::process::id()).into();
        }
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdin(Stdio::null());
        if self.passes_environment {
            command.env_clear().env("PATH", spec::DEFAULT_PATH);
        }
        let failed = |error| format!("cannot start `{}`: {error}", self.argv[0].display());
        match self.pipes {
            true => {
                let start = Instant::now();
                let output = command.output().map_err(failed)?;
                let took = start.elapsed();
                succeeded(output.status, &output.stderr).map(|()| took)
            }
            false => {
                command.stdout(Stdio::null()).stderr(Stdio::null());
                let start = Instant::now();
                let status = command.status().map_err(failed)?;
                let took = start.elapsed();
                succeeded(status, b"").map(|()| took)
            }
        }
    }
}

/// The last line tells most: programs put the cause at the end.
fn succeeded(status: ExitStatus, stderr: &[u8]) -> Result<(), Reason> {
    let text = String::from_utf8_lossy(stderr);
    let last = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    match (status.success(), last) {
        (true, _) => Ok(()),
        (false, Some(line)) => Err(format!(
            "{status}: {}",
            line.chars().take(200).collect::<String>()
        )),
        (false, None) => Err(status.to_string()),
    }
}

/// The base of all ratios: `std` uses `posix_spawn` where nothing is asked that it cannot do.
pub(crate) fn spawn(command: &[OsString]) -> Program {
    Program {
        pipes: false,
        ..Program::passing_environment(command.to_vec())
    }
}

/// `airlock run`, as a shell would start it. It refuses to run if one of these barriers does not stand.
pub(crate) fn cli(command: &[OsString], barriers: &[Barrier], options: &Options) -> Program {
    let mut argv = vec![options.airlock.clone().into_os_string(), "--state".into()];
    argv.extend([
        options.scratch.join("cli-state").into_os_string(),
        "run".into(),
    ]);
    argv.extend(
        barriers
            .iter()
            .flat_map(|barrier| ["--require".into(), barrier.name().into()]),
    );
    argv.push("--".into());
    argv.extend_from_slice(command);
    Program::new(argv)
}

pub(crate) fn bwrap(
    command: &[OsString],
    root: &Root,
    options: &Options,
) -> Result<Program, Reason> {
    let mut argv = vec![installed("bwrap", options)?.into_os_string()];
    for folder in &root.folders {
        argv.extend([
            "--ro-bind".into(),
            format!("/{folder}").into(),
            format!("/{folder}").into(),
        ]);
    }
    for (name, target) in &root.links {
        argv.extend([
            "--symlink".into(),
            target.clone().into_os_string(),
            format!("/{name}").into(),
        ]);
    }
    let rest =
        "--proc /proc --dev /dev --tmpfs /tmp --unshare-all --die-with-parent --cap-drop ALL --";
    argv.extend(words(rest));
    argv.extend_from_slice(command);
    Ok(Program::passing_environment(argv))
}

/// Shows the whole host, filtered; its profiles are left out, since they are per program.
pub(crate) fn firejail(command: &[OsString], options: &Options) -> Result<Program, Reason> {
    let mut argv = vec![installed("firejail", options)?.into_os_string()];
    argv.extend(words(
        "--quiet --noprofile --net=none --ipc-namespace --private-tmp --private-dev",
    ));
    argv.extend(words(
        "--caps.drop=all --nonewprivs --seccomp --read-only=/usr --",
    ));
    argv.extend_from_slice(command);
    Ok(Program::passing_environment(argv))
}

/// Settings of this host for podman (its runtime, its limits) are in the file that `CONTAINERS_CONF` names.
pub(crate) fn podman(
    command: &[OsString],
    root: &Root,
    options: &Options,
) -> Result<Program, Reason> {
    let program = installed("podman", options)?;
    let folder = fresh_folder(options, "podman")?;
    root.make(&folder)
        .map_err(|error| format!("cannot make a root for podman: {error}"))?;
    let mut argv = vec![program.into_os_string()];
    // With CONTAINER_HOST it would only ask its own API.
    argv.extend(words(
        "--remote=false run --rm --network=none --read-only --cap-drop=all",
    ));
    argv.extend(words(
        "--security-opt=no-new-privileges --memory=512m --pids-limit=32",
    ));
    for name in &root.folders {
        argv.push(format!("--volume=/{name}:/{name}:ro").into());
    }
    argv.extend(["--rootfs".into(), folder.into_os_string()]);
    argv.extend_from_slice(command);
    Ok(Program::new(argv))
}

/// An OCI runtime on a bundle of its own.
pub(crate) fn bundle(
    runtime: &str,
    command: &[OsString],
    root: &Root,
    options: &Options,
) -> Result<Program, Reason> {
    let program = installed(runtime, options)?;
    let folder = fresh_folder(options, runtime)?;
    let failed = |error| format!("cannot make a bundle: {error}");
    root.make(&folder.join("rootfs")).map_err(failed)?;
    fs::write(
        folder.join("config.json"),
        bundle_settings(command, root).to_string(),
    )
    .map_err(failed)?;
    let mut argv = vec![
        program.into_os_string(),
        "--root".into(),
        folder.join("state").into_os_string(),
    ];
    argv.extend([
        "run".into(),
        "--bundle".into(),
        folder.into_os_string(),
        OsString::new(),
    ]);
    Ok(Program {
        fresh_name: Some((argv.len() - 1, 0)),
        ..Program::new(argv)
    })
}

fn bundle_settings(command: &[OsString], root: &Root) -> Value {
    let arguments: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
        json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"] }),
    ];
    mounts.extend(root.folders.iter().map(|name| {
        let path = format!("/{name}");
        json!({ "destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", "nosuid"] })
    }));
    let namespaces: Vec<_> = ["pid", "mount", "ipc", "uts", "network"]
        .iter()
        .map(|name| json!({ "type": name }))
        .collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": arguments, "cwd": "/", "noNewPrivileges": true,
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "box",
        "mounts": mounts,
        "linux": { "namespaces": namespaces },
    })
}

/// Where the peer is.
fn installed(name: &str, options: &Options) -> Result<PathBuf, Reason> {
    let found = std::env::split_paths(&options.path).map(|folder| folder.join(name));
    let mut found = found.filter(|path| path.is_absolute() && path.is_file());
    found
        .next()
        .ok_or_else(|| format!("`{name}` is not installed"))
}

fn words(text: &str) -> impl Iterator<Item = OsString> {
    text.split_whitespace().map(OsString::from)
}
