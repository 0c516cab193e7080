//! `airlock sandbox exec --tty` before a real terminal: this test holds the other end of it, and the program sits in a
//! sandbox of a server.

use gateway_tests::{Client, Folder, Server};
use rustix::{
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Longer than any of these programs needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal with the command in it.
struct Sitting {
    server: Server,
    sandbox: String,
    _folder: Folder,
    child: Child,
    ours: File,
    /// The end that the command has, for looking at its modes.
    theirs: OwnedFd,
    before: Termios,
    output: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

fn window(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Sitting {
    /// `airlock sandbox exec --tty` of this command, as from a login.
    fn start(command: &[&str]) -> Sitting {
        let (server, folder) = (Server::new(), Folder::new());
        let made = server.post("/v1/sandboxes", &json!({})).json();
        let sandbox = made["sandbox_id"].as_str().expect("a name").to_owned();
        let Client::Tcp(address) = &server.client else { panic!("a port") };
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        unlockpt(&ours).expect("its other end");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other end");
        tcsetwinsize(&ours, window(31, 101)).expect("a size");
        let before = tcgetattr(&theirs).expect("its modes");
        let end = || Stdio::from(theirs.try_clone().expect("one more"));
        // A test may itself run where some signals are ignored; a login does not.
        let mut login = Command::new("env");
        login.args(["--default-signal", "setsid", "--ctty"]).arg(cli::airlock());
        login.args(["sandbox", "exec", "--tty", &sandbox, "--"]).args(command);
        login.current_dir(&folder.0).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &folder.0);
        login.env("TERM", "xterm").env("AIRLOCK_URL", format!("http://{address}"));
        login.env("AIRLOCK_KEY", &server.admin).stdin(end()).stdout(end()).stderr(end());
        let child = login.spawn().expect("env starts");
        let ours = File::from(ours);
        let (sender, output) = mpsc::channel();
        let mut reader = ours.try_clone().expect("one more");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                _ = sender.send(buffer[..count].to_vec());
            }
        });
        Sitting { server, sandbox, _folder: folder, child, ours, theirs, before, output, seen: String::new() }
    }

    /// Waits until this has been shown; what comes before it is not looked at again.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.output.recv_timeout(PATIENCE) {
                Ok(data) => self.seen.push_str(&String::from_utf8_lossy(&data)),
                Err(_) => panic!("`{text}` was not shown: {:?}", self.seen),
            }
        }
        let end = self.seen.find(text).expect("it is there") + text.len();
        self.seen.drain(..end);
    }

    fn keys(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("somebody reads");
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.theirs).expect("its modes").local_modes.contains(LocalModes::ICANON)
    }

    /// The programs of the sandbox, as its server sees them.
    fn programs(&self) -> Vec<Value> {
        let listed = self.server.get(&format!("/v1/sandboxes/{}/exec", self.sandbox)).json();
        listed["execs"].as_array().expect("a list").clone()
    }

    /// Waits for the end; the terminal must be as it was.
    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        let status = self.child.wait().expect("it ends").code();
        let after = tcgetattr(&self.theirs).expect("its modes");
        assert_eq!(format!("{after:?}"), format!("{:?}", self.before), "the terminal's modes");
        status
    }
}

#[test]
fn a_shell_far_away_is_typed_at_resized_and_its_status_is_ours() {
    let mut sitting = Sitting::start(&["sh"]);
    sitting.expect("$ ");
    assert!(sitting.is_raw(), "every key goes inside");
    sitting.keys("stty size; echo $TERM; tty\n");
    sitting.expect("31 101\r\n");
    sitting.expect("xterm\r\n");
    sitting.expect("/dev/pts/");
    sitting.expect("$ ");
    tcsetwinsize(&sitting.ours, window(40, 132)).expect("a size");
    sitting.keys("while [ \"$(stty size)\" != '40 132' ]; do sleep 0.05; done; echo re''sized\n");
    sitting.expect("resized");
    sitting.expect("$ ");
    sitting.keys("sh -c 'echo he''re; exec sleep 600'\n");
    sitting.expect("here");
    sitting.keys("\x03");
    sitting.expect("$ ");
    sitting.keys("echo \"interrupted: $?\"\n");
    sitting.expect("interrupted: 130");
    sitting.keys("exit 7\n");
    assert_eq!(sitting.end(), Some(7));
    assert_eq!(sitting.programs()[0]["exit_code"], 7);
}

#[test]
fn a_program_that_is_absent_or_killed_leaves_the_terminal_as_it_was() {
    let mut absent = Sitting::start(&["no-such-command"]);
    assert_eq!(absent.end(), Some(127));
    absent.expect("there is no command `no-such-command` inside");
    let mut killed = Sitting::start(&["sh", "-c", "echo ready; kill -9 $$"]);
    killed.expect("ready");
    assert_eq!(killed.end(), Some(137));
}

#[test]
fn a_sandbox_that_ends_ends_its_terminals() {
    let mut sitting = Sitting::start(&["sh", "-c", "echo ready; sleep 600"]);
    sitting.expect("ready");
    assert_eq!(sitting.programs()[0]["status"], "running");
    assert_eq!(sitting.server.delete(&format!("/v1/sandboxes/{}", sitting.sandbox)).status, 200);
    assert!(sitting.end().is_some_and(|status| status != 0), "it did not go well");
}
