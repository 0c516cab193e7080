//! Attacks on the terminal of whoever calls `airlock run`: the real command, on a terminal of our own.

use crate::{
    Finding, Outcome, Trouble, peer,
    world::{Ground, LONGEST_SECONDS, Place},
};
use rustix::{
    fs::{Mode, OFlags},
    pty::OpenptFlags,
    termios::Termios,
};
use spec::RunRequest;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    process::{Command, Stdio},
};

/// Both ends of a terminal.
struct Terminal {
    master: File,
    slave: OwnedFd,
}

impl Terminal {
    fn open() -> Result<Terminal, Trouble> {
        let missing =
            |error: rustix::io::Errno| Trouble::Missing(format!("a terminal of our own: {error}"));
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).map_err(missing)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let path = OsStr::from_bytes(name.as_bytes());
        let slave = rustix::fs::open(
            path,
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut settings: Termios = rustix::termios::tcgetattr(&slave)?;
        settings
            .local_modes
            .remove(rustix::termios::LocalModes::ECHO);
        rustix::termios::tcsetattr(&slave, rustix::termios::OptionalActions::Now, &settings)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        Ok(Terminal {
            master: File::from(master),
            slave,
        })
    }

    /// Runs a command with it as its controlling terminal; what it printed there.
    fn run(&mut self, command: &Command) -> Result<Vec<u8>, Trouble> {
        let mut leader = Command::new("setsid");
        leader
            .args(["--ctty", "--wait"])
            .arg(command.get_program())
            .args(command.get_args());
        leader
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TERM", "xterm")
            .env("HOME", "/");
        leader.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let end = || io::Result::Ok(Stdio::from(self.slave.try_clone()?));
        let started = leader.stdin(end()?).stdout(end()?).stderr(end()?).spawn();
        let mut leader = started
            .map_err(|error| Trouble::Missing(format!("`setsid` cannot be started: {error}")))?;
        let mut printed = Vec::new();
        loop {
            let ended = leader.try_wait()?.is_some();
            // Not blocking: an error means that nothing is there yet.
            _ = self.master.read_to_end(&mut printed);
            if ended {
                return Ok(printed);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// What was typed into it, though nobody sits there.
    fn typed(&self) -> Result<Vec<u8>, Trouble> {
        rustix::io::ioctl_fionbio(&self.slave, true)?;
        let mut typed = Vec::new();
        _ = File::from(self.slave.try_clone()?).read_to_end(&mut typed);
        Ok(typed)
    }
}

/// `airlock run` with the words of a request.
fn command_line(ground: &Ground<'_>, request: &RunRequest, options: &[&str]) -> Command {
    let mut command = Command::new(&ground.world.settings.airlock);
    command
        .arg("run")
        .arg("--state")
        .arg(ground.state())
        .arg("--config")
        .arg(ground.world.settings_file());
    command.args(options);
    ground.tell(&mut command);
    for mount in &request.mounts {
        command.arg("--mount").arg(mount);
    }
    command.arg("--").args(&request.command);
    command
}

/// The peer on a terminal; the control is the peer without a session of its own.
fn peer_line(ground: &Ground<'_>, request: &RunRequest) -> Result<Command, Trouble> {
    let found = ground
        .world
        .peer
        .as_ref()
        .map_err(|why| Trouble::Missing(why.clone()))?;
    let whole = peer::command(found, ground.world, request, LONGEST_SECONDS);
    let mut command = Command::new(whole.get_program());
    let kept = whole
        .get_args()
        .filter(|word| !ground.is_control() || *word != "--new-session");
    // In the background of its terminal `timeout` would keep the attack from it.
    let (head, rest): (Vec<_>, Vec<_>) = kept.enumerate().partition(|(place, _)| *place == 0);
    command
        .args(head.into_iter().map(|(_, word)| word))
        .arg("--foreground");
    command.args(rest.into_iter().map(|(_, word)| word));
    Ok(command)
}

/// Once as the caller's terminal, and once with a terminal inside, where the build has them.
pub(crate) fn typing(ground: &Ground<'_>) -> Outcome {
    let switch = std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").unwrap_or_default();
    if ground.is_control() && switch.trim() == "0" {
        return Err(Trouble::Missing(
            "a kernel that still allows TIOCSTI (dev.tty.legacy_tiocsti)".to_owned(),
        ));
    }
    let mut lines = Vec::new();
    let request = ground.attack("type", [""; 0]);
    match ground.place {
        Place::Airlock => {
            lines.push(command_line(ground, &request, &["--stdin"]));
            lines.push(command_line(ground, &request, &["--tty"]));
        }
        Place::Control | Place::Peer => lines.push(peer_line(ground, &request)?),
    }
    let mut all = Vec::new();
    for line in lines {
        let mut terminal = Terminal::open()?;
        let printed = terminal.run(&line)?;
        all.extend(printed);
        if !terminal.typed()?.is_empty() {
            return Ok(Finding::Escape(
                "it typed into the caller's terminal".to_owned(),
            ));
        }
    }
    came_to_its_end(&all).map(|()| Finding::Nothing)
}

fn came_to_its_end(printed: &[u8]) -> Result<(), Trouble> {
    match printed.windows(4).any(|part| part == b"done") {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(printed);
            Err(Trouble::Broken(format!(
                "the attack did not come to its end: {said:?}"
            )))
        }
    }
}

/// Sets the clipboard, asks for the title, ends a paste.
const HOSTILE: [&str; 4] = [
    "ESC]52;c;ZXZpbA==BEL",
    "ESC[21t",
    "ESC[201~",
    "ESC]0;titleBEL",
];

/// The control: into a pipe the bytes of a program pass unchanged, as they should.
pub(crate) fn escapes(ground: &Ground<'_>) -> Outcome {
    let request = ground.attack("print-escapes", [HOSTILE.concat()]);
    if ground.is_control() {
        let done = command_line(ground, &request, &[]).output()?;
        return Ok(hostile_in(&done.stdout));
    }
    let terminals = command_line(ground, &request, &["--tty", "--explain"]).output()?;
    if String::from_utf8_lossy(&terminals.stderr).contains("not part of this build") {
        return Err(Trouble::Missing(
            "this build passes output on to terminals unchanged".to_owned(),
        ));
    }
    let printed = Terminal::open()?.run(&command_line(ground, &request, &[]))?;
    came_to_its_end(&printed).map(|()| hostile_in(&printed))
}

fn hostile_in(printed: &[u8]) -> Finding {
    let sequences = HOSTILE.map(|text| text.replace("ESC", "\x1b").replace("BEL", "\x07"));
    let through = |sequence: &&String| {
        printed
            .windows(sequence.len())
            .any(|part| part == sequence.as_bytes())
    };
    let found = sequences.iter().find(through);
    found.map_or(Finding::Nothing, |sequence| {
        Finding::Escape(format!("it steers the terminal: {sequence:?}"))
    })
}
