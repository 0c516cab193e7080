//! The peer: the same function by `python3 -c` in bubblewrap, with the arguments of the worker that we succeed.

use crate::worker::{FUNCTION, TOOL, Trouble};
use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;

const NAMESPACES: [&str; 11] = [
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

pub(crate) struct Bwrap<'a> {
    pub(crate) python: &'a Path,
}

impl Bwrap<'_> {
    /// One call; how long it took until its answer was read.
    pub(crate) async fn once(&self) -> Result<Duration, Trouble> {
        let begun = Instant::now();
        let output = self.command().output().await?;
        let took = begun.elapsed();
        match output.stdout.as_slice() {
            b"{\"sum\": 3}\n" => Ok(took),
            _ => Err(Trouble::Bwrap(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("bwrap");
        command.args(NAMESPACES).args(["--ro-bind", "/usr", "/usr"]);
        for name in ["bin", "lib", "lib64", "sbin"] {
            command.args(["--symlink", &format!("usr/{name}"), &format!("/{name}")]);
        }
        command.args([
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
            "--chdir",
            "/tmp",
            "--clearenv",
        ]);
        command.args([
            "--setenv",
            "PATH",
            "/usr/local/bin:/usr/bin:/bin",
            "--setenv",
            "LANG",
            "C.UTF-8",
            "--",
        ]);
        command
            .arg(self.python)
            .arg("-c")
            .arg(format!("{TOOL}\nprint(json.dumps({FUNCTION}(1, 2)))"));
        command.stdin(Stdio::null()).env_clear();
        command
    }
}
