//! The peer: bwrap, with the flags and limits of the source system's worker for its restrictive profile.

use crate::world::{ATTACKER, World};
use spec::RunRequest;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::Command,
};

/// What the worker sets between fork and exec.
const LIMITS: [&str; 7] = [
    "--as=536870912",
    "--cpu=60",
    "--fsize=67108864",
    "--nofile=128",
    "--stack=8388608",
    "--memlock=65536",
    "--core=0",
];
const IDENTITY: [&str; 11] = [
    "--unshare-user",
    "--uid",
    "65534",
    "--gid",
    "65534",
    "--die-with-parent",
    "--new-session",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-net",
];
const OF_ETC: [&str; 6] = [
    "resolv.conf",
    "ssl",
    "ld.so.cache",
    "localtime",
    "nsswitch.conf",
    "hosts",
];
const VARIABLES: [(&str, &str); 4] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("LANG", "C.UTF-8"),
];

/// Where everything is that starts it, or what is missing.
#[derive(Clone, Debug)]
pub(crate) struct PeerPrograms {
    bwrap: PathBuf,
    prlimit: PathBuf,
    timeout: PathBuf,
}

/// Looks for it in the usual places.
pub(crate) fn find() -> Result<PeerPrograms, String> {
    let program = |name: &str| {
        let places =
            ["/usr/local/bin", "/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
        places
            .into_iter()
            .find(|path| path.is_file())
            .ok_or_else(|| format!("there is no `{name}` here"))
    };
    Ok(PeerPrograms {
        bwrap: program("bwrap")?,
        prlimit: program("prlimit")?,
        timeout: program("timeout")?,
    })
}

/// The same request as a command of the peer.
pub(crate) fn command(
    found: &PeerPrograms,
    world: &World,
    request: &RunRequest,
    seconds: u64,
) -> Command {
    let mut command = Command::new(&found.timeout);
    command.args(["--signal=KILL", &seconds.to_string()]);
    command
        .arg(&found.prlimit)
        .args(LIMITS)
        .arg(format!("--nproc={}", 32 + own_processes()))
        .arg("--")
        .arg(&found.bwrap)
        .args(IDENTITY);
    system(&mut command);
    command.args([
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/var/run/secrets",
        "--tmpfs",
        "/tmp",
    ]);
    let workspace = request
        .workspace
        .clone()
        .unwrap_or_else(|| world.fresh("work"));
    command
        .arg("--bind")
        .arg(workspace)
        .args(["/workspace", "--chdir", "/workspace"]);
    for mount in &request.mounts {
        let (host, inside, writable) = parts(mount);
        command
            .arg(if writable { "--bind" } else { "--ro-bind" })
            .args([host, inside]);
    }
    command.arg("--clearenv");
    for (name, value) in VARIABLES {
        command.args(["--setenv", name, value]);
    }
    for (name, value) in &request.env {
        command.arg("--setenv").args([name, value]);
    }
    command.arg("--").args(&request.command);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

/// The worker's limit is meant for a machine of its own; the kernel counts all processes of a user.
fn own_processes() -> usize {
    let own = rustix::process::getuid().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == own))
        .count()
}

fn system(command: &mut Command) {
    command.args(["--ro-bind", "/usr", "/usr"]);
    for name in ["lib", "lib64", "bin", "sbin"] {
        let path = Path::new("/").join(name);
        match fs::read_link(&path) {
            Ok(target) => command.arg("--symlink").args([target.as_path(), &path]),
            Err(_) if path.exists() => command.arg("--ro-bind").args([&path, &path]),
            Err(_) => command,
        };
    }
    for name in OF_ETC {
        let path = Path::new("/etc").join(name);
        if path.exists() {
            command.arg("--ro-bind").args([&path, &path]);
        }
    }
}

/// `HOST:INSIDE[:ro|rw]`, as the cases write it.
fn parts(mount: &OsStr) -> (&OsStr, &OsStr, bool) {
    let text = mount.as_bytes();
    let writable = text.ends_with(b":rw");
    let body = text
        .strip_suffix(b":rw")
        .or_else(|| text.strip_suffix(b":ro"))
        .unwrap_or(text);
    let colon = body
        .iter()
        .rposition(|byte| *byte == b':')
        .unwrap_or(body.len());
    let inside = body.get(colon + 1..).unwrap_or_default();
    (
        OsStr::from_bytes(&body[..colon]),
        OsStr::from_bytes(inside),
        writable,
    )
}

/// Whether a process is an attack, and not what starts it.
pub(crate) fn is_attack(arguments: &[u8]) -> bool {
    arguments.starts_with(&OsString::from(ATTACKER).into_encoded_bytes())
}
