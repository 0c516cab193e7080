//! A command before a real terminal, as from a login: the test holds the other end of it.

use rustix::{
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Longer than any program here needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal with a command in it.
#[derive(Debug)]
pub struct Login {
    /// The command.
    pub child: Child,
    /// Our end.
    pub ours: File,
    /// The end that the command has, for looking at its modes.
    pub theirs: OwnedFd,
    /// Its modes before.
    pub before: Termios,
    output: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

/// A size of a terminal.
pub fn window(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Login {
    /// Starts a command, of 31 rows and 101 columns, in the folder and with the variables that are set up.
    pub fn start<'a>(
        words: impl IntoIterator<Item = &'a str>,
        set_up: impl FnOnce(&mut Command),
    ) -> Login {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal");
        unlockpt(&ours).expect("its other end");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other end");
        tcsetwinsize(&ours, window(31, 101)).expect("a size");
        let before = tcgetattr(&theirs).expect("its modes");
        let end = || Stdio::from(theirs.try_clone().expect("one more"));
        // A test may itself run where some signals are ignored; a login does not.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "setsid", "--ctty"])
            .args(words)
            .env_clear();
        set_up(&mut command);
        command.env("TERM", "xterm");
        let child = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("env starts");
        let ours = File::from(ours);
        let (sender, output) = mpsc::channel();
        let mut reader = ours.try_clone().expect("one more");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                _ = sender.send(buffer[..count].to_vec());
            }
        });
        Login {
            child,
            ours,
            theirs,
            before,
            output,
            seen: String::new(),
        }
    }

    /// Whether every key goes to the command as it is.
    pub fn is_raw(&self) -> bool {
        !tcgetattr(&self.theirs)
            .expect("its modes")
            .local_modes
            .contains(LocalModes::ICANON)
    }

    /// Waits until this has been shown; what comes before it is not looked at again.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.output.recv_timeout(PATIENCE) {
                Ok(data) => self
                    .seen
                    .push_str(&String::from_utf8(data).expect("only whole characters")),
                Err(_) => panic!("`{text}` was not shown: {:?}", self.seen),
            }
        }
        let end = self.seen.find(text).expect("it is there") + text.len();
        self.seen.drain(..end);
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) {
        self.ours
            .write_all(keys.as_bytes())
            .expect("somebody reads");
    }

    /// Waits for the end; the terminal must be as it was.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let status = self.child.wait().expect("it ends").code();
        let after = tcgetattr(&self.theirs).expect("its modes");
        assert_eq!(
            format!("{after:?}"),
            format!("{:?}", self.before),
            "the terminal's modes"
        );
        status
    }

    /// What was shown since, up to the last byte. Nothing may be left that a shell would take for typed.
    #[track_caller]
    pub fn rest(mut self) -> String {
        rustix::io::ioctl_fionbio(&self.theirs, true).expect("it is ours");
        let mut theirs = File::from(self.theirs);
        let left = theirs.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(
            left,
            Err(ErrorKind::WouldBlock),
            "nothing is left that a shell would take for typed"
        );
        // The last one: what was shown ends now.
        drop(theirs);
        let rest: Vec<u8> = self.output.iter().flatten().collect();
        self.seen
            .push_str(&String::from_utf8(rest).expect("only whole characters"));
        self.seen
    }
}
