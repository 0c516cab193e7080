//! Brokers: the real mosquitto, and our own for the dialect of lines.

use crate::place::{Folder, free_port, keep, start, until_started};
use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{Child, Command},
};

/// Whether messages outlive the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// They do not.
    None,
    /// They do: each change is written at once.
    Full,
}

/// mosquitto, which ends with its handle.
#[derive(Debug)]
pub struct Mosquitto {
    child: Child,
    /// Where it listens.
    pub port: u16,
    config: PathBuf,
    log: PathBuf,
}

impl Mosquitto {
    /// Open to everybody.
    pub fn start(folder: &Folder) -> Mosquitto {
        Mosquitto::with(folder, Persistence::None, "allow_anonymous true\n")
    }

    /// With these lines behind its listener.
    pub fn with(folder: &Folder, persistence: Persistence, more: &str) -> Mosquitto {
        let port = free_port();
        let place = folder.path().display();
        let persistence = match persistence {
            Persistence::None => "persistence false".to_owned(),
            Persistence::Full => format!(
                "persistence true\npersistence_location {place}/\nautosave_interval 1\nautosave_on_changes true"
            ),
        };
        let text = format!(
            "listener {port} 127.0.0.1\nuser root\n{persistence}\nmax_queued_messages 0\nmax_inflight_messages 0\n\
             log_dest stderr\n{more}"
        );
        let (config, log) = (folder.at("mosquitto.conf"), folder.at("mosquitto.log"));
        fs::write(&config, text).expect("a configuration");
        Mosquitto {
            child: run(&config, &log, port),
            port,
            config,
            log,
        }
    }

    /// As `SAM_TRANSPORT` has it.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// By SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it ends");
    }

    /// In its place, as it was.
    pub fn start_again(&mut self) {
        self.child = run(&self.config, &self.log, self.port);
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn run(config: &PathBuf, log: &PathBuf, port: u16) -> Child {
    let mut command = Command::new("mosquitto");
    command
        .arg("-c")
        .arg(config)
        .env("PATH", "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
    let mut child = start("KILL", &command);
    keep(child.stderr.take().expect("it is ours"), log);
    listens(&mut child, "mosquitto", port, log);
    child
}

/// Waits until somebody listens there, and says why nobody does.
pub(crate) fn listens(child: &mut Child, name: &str, port: u16, log: &PathBuf) {
    until_started(&format!("{name} listens"), || {
        let said = || fs::read_to_string(log).unwrap_or_default();
        let ended = child.try_wait().expect("it is ours");
        assert!(ended.is_none(), "{name} ended, {ended:?}: {}", said());
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
}

/// `airlock worker broker`, which ends with its handle.
#[derive(Debug)]
pub struct DevBroker {
    child: Child,
    /// Where it listens.
    pub port: u16,
}

impl DevBroker {
    /// On loopback.
    pub fn start(folder: &Folder) -> DevBroker {
        let port = free_port();
        let mut command = Command::new(cli::airlock());
        command.args(["worker", "broker", "--listen", &format!("127.0.0.1:{port}")]);
        command
            .env("HOME", folder.path())
            .current_dir(folder.path());
        let mut child = start("KILL", &command);
        let log = folder.at("broker.log");
        keep(child.stderr.take().expect("it is ours"), &log);
        keep(child.stdout.take().expect("it is ours"), &log);
        listens(&mut child, "airlock worker broker", port, &log);
        DevBroker { child, port }
    }

    /// As `SAM_TRANSPORT` has it.
    pub fn url(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }
}

impl Drop for DevBroker {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
