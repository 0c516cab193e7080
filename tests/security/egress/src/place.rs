//! Where a world is: namespaces of its own for network and mounts, in which every address there is leads back to the
//! world. A guard process holds them; it ends, and takes the world's folder along, when the test process does.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// The one address that is the world's machine's own; all others are of servers somewhere.
pub const OWN_V4: &str = "198.35.26.96";
/// The same of IPv6.
pub const OWN_V6: &str = "2620:0:861:ed1a::1";

/// Since every address is local, whatever is dialled arrives and is recorded: the private ones, too.
const GUARD: &str = r#"
set -euo pipefail
mount --bind "$1/certs" /etc/ssl/certs
for file in resolv.conf hosts; do mount --bind "$1/$file" "/etc/$file"; done
ip link set lo up
ip addr add "$2/32" dev lo
ip -6 addr add "$3/128" dev lo nodad
ip route add local 0.0.0.0/0 dev lo src "$2"
ip -6 route add local ::/0 dev lo src "$3"
echo ready
cat >/dev/null
rm -rf --one-file-system "$1"
"#;

/// Namespaces and a folder; both gone with this, and with the process.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    guard: Child,
}

/// A folder for a world, open to all: whoever runs there may be somebody else. Short, since sockets lie in it.
pub(crate) fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = PathBuf::from(format!(
        "/tmp/airlock-world-{}.{number}",
        std::process::id()
    ));
    fs::create_dir(&folder).expect("a folder for the world");
    folder
}

impl Place {
    /// Makes them. The folder has the system's certificates in `certs`.
    pub(crate) fn new(folder: PathBuf) -> Place {
        fs::write(folder.join("resolv.conf"), "nameserver 127.0.0.1\n").expect("a name server");
        fs::write(folder.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n").expect("own names");
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "bash", "-c", GUARD, "world"])
            .arg(&folder)
            .args([OWN_V4, OWN_V6]);
        // Not of our group: the signals of a terminal are not for it.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut guard = command
            .spawn()
            .expect("prerequisite: unshare of util-linux");
        let mut line = String::new();
        let told = guard.stdout.as_mut().expect("it is ours");
        BufReader::new(told).read_line(&mut line).expect("it tells");
        assert_eq!(
            line, "ready\n",
            "prerequisite: root, and ip of iproute2, to make a world"
        );
        Place { folder, guard }
    }

    /// A command that will run there.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--net",
                "--mount",
                "--target",
                &self.guard.id().to_string(),
                "--",
            ])
            .arg(program);
        command
    }

    /// The network of the place, for [`enter`].
    pub(crate) fn network(&self) -> File {
        File::open(format!("/proc/{}/ns/net", self.guard.id())).expect("it lives")
    }
}

/// Moves this thread there: what it opens from now on is the world's.
pub(crate) fn enter(network: &File) -> io::Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(io::Error::from)
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        _ = self.guard.wait();
    }
}
