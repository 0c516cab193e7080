//! A server on a small disk of its own, which tests fill. The disk is in a mount namespace of the server's, which ends
//! with it.

use crate::{Answer, Folder, Server, serve};
use rustix::process::Signal;
use serde_json::json;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{self, Command, Stdio},
};

/// A server with a small disk for its state.
#[derive(Debug)]
pub struct Small(pub Server);

/// The small disk of a server that is dead.
#[derive(Debug)]
pub struct SmallDisk {
    namespace: File,
    folder: Folder,
    admin: String,
}

impl SmallDisk {
    /// This program, where the disk is mounted.
    pub fn command(&self, program: &OsStr) -> Command {
        let ours = format!("/proc/{}/fd/{}", process::id(), self.namespace.as_raw_fd());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount={ours}"))
            .arg("--")
            .arg(program);
        command
    }

    /// Where the state folder is there.
    pub fn state(&self) -> PathBuf {
        self.folder.at("state")
    }

    /// Another server on it.
    pub fn served_again(self, configuration: &str) -> Small {
        let made = serve(&self.folder, configuration, &[]);
        let mut command = self.command(made.get_program());
        command.args(made.get_args()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // The namespace is held until the server has it.
        Small(Server::started(command, self.folder, Some(self.admin)))
    }
}

impl Small {
    /// With eight megabytes.
    #[allow(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Small {
        Small::of("8m")
    }

    /// With so much, as `mount` is told.
    pub fn of(size: &str) -> Small {
        Small::on(Folder::new(), size, "")
    }

    /// On a new folder, with this configuration.
    pub fn on(folder: Folder, size: &str, configuration: &str) -> Small {
        fs::create_dir(folder.at("state")).expect("a folder");
        let made = serve(&folder, configuration, &[]);
        let mut command = Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={size},mode=700 small \"$0\" && exec \"$@\"");
        command
            .args(["--mount", "--propagation=private", "--", "sh", "-c", &mount])
            .arg(folder.at("state"));
        command
            .arg(made.get_program())
            .args(made.get_args())
            .current_dir(&folder.0)
            .env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Small(Server::started(command, folder, None))
    }

    /// Another server on the same disk, after this one was killed.
    pub fn restarted_after_a_kill(self, configuration: &str) -> Small {
        let namespace = self.namespace();
        self.killed(namespace).served_again(configuration)
    }

    /// Where the disk is mounted: it is there as long as somebody has this.
    pub fn namespace(&self) -> File {
        File::open(format!("/proc/{}/ns/mnt", self.0.pid)).expect("the server lives")
    }

    /// The disk, after SIGKILL of its server, which may have come already.
    pub fn killed(mut self, namespace: File) -> SmallDisk {
        self.0.end(Signal::KILL);
        SmallDisk {
            namespace,
            folder: std::mem::replace(&mut self.0.folder, Folder(PathBuf::new())),
            admin: self.0.admin.clone(),
        }
    }

    /// The state folder, as it is seen from outside while the server lives.
    pub fn state(&self) -> PathBuf {
        let own = self.0.folder.at("state");
        PathBuf::from(format!("/proc/{}/root{}", self.0.pid, own.display()))
    }

    /// What is left for files.
    pub fn free_bytes(&self) -> u64 {
        let ballast = self.ballast();
        let folder = ballast.parent().expect("the state");
        let found = rustix::fs::statvfs(folder).expect("it is there");
        found.f_bavail * found.f_frsize
    }

    /// What all files of the ledger take.
    pub fn ledger_bytes(&self) -> u64 {
        let folder = self.ballast().with_file_name("ledger");
        let files = fs::read_dir(folder).expect("it is there").flatten();
        files
            .map(|file| file.metadata().expect("a file").len())
            .sum()
    }

    /// As the server sees it.
    pub fn ballast(&self) -> PathBuf {
        self.state().join("ballast")
    }

    /// Leaves so many bytes, about.
    pub fn fill_but(&self, free: u64) {
        let ballast = vec![0; self.free_bytes().saturating_sub(free) as usize];
        fs::write(self.ballast(), ballast).expect("so much fits");
    }

    /// Leaves not a byte.
    pub fn fill(&self) {
        let mut options = File::options();
        let mut file = options
            .append(true)
            .create(true)
            .open(self.ballast())
            .expect("a file");
        for size in [1 << 16, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// The same, and there is no reserve.
    pub fn fill_with_the_reserve(&self) {
        // In this order: with room it would be back at once.
        self.fill();
        fs::remove_file(self.ballast().with_file_name("reserve")).expect("it is kept");
        self.fill();
    }

    /// Gives back what [`fill`](Small::fill) took.
    pub fn empty(&self) {
        fs::remove_file(self.ballast()).expect("it was there");
    }

    /// Runs `true`, as the admin.
    pub fn run(&self) -> Answer {
        self.0.post("/v1/runs", &json!({ "command": ["true"] }))
    }

    /// Sends these bytes, as the admin.
    pub fn put(&self, path: &str, bytes: &[u8]) -> Answer {
        let (host, key, length) = (self.0.client.host(), &self.0.admin, bytes.len());
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        self.0
            .client
            .open(&[head.as_bytes(), bytes].concat())
            .answer()
    }
}
