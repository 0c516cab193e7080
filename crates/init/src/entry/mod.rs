//! The first process of a container: reads its settings from variables and arguments, drops what
//! the program must not have, starts it, reaps, forwards signals and keeps its exit status. The
//! order is that of `run`.
//!
//! ```text
//! variables ──▶ settings ──▶ bridge (own process) ──▶ user, no capabilities ──▶ program
//!     └─ overwritten where the kernel shows them
//! ```
//!
//! It also works where it is not pid 1: it then adopts the orphans of its own process tree. See
//! `docs/init.md`.

pub mod bridge;
pub mod command;
pub mod environment;
mod privileges;
mod process_tree;
pub mod user;

use crate::sys;
use bridge::Bridge;
use environment::{Settings, Variables};
use privileges::BoundingSet;
use process_tree::{EntryProgram, StartError};
use rustix::{fs::Mode, io::Errno, process::DumpableBehavior};
use std::{
    ffi::{CString, OsString},
    fmt,
    io::Write,
    os::{fd::IntoRawFd, unix::ffi::OsStringExt},
};
use user::ProgramUser;

/// The exit status of a failed start, and of a bridge that died.
const CANNOT_START: i32 = 125;
const DEFAULT_USER: &str = "agent";
const HELP: &str = "\
airlock-init: the first process of a container

usage: airlock-init PROGRAM [ARG]...
       airlock-init -- PROGRAM [ARG]...   for a program whose name begins with `-`
       airlock-init --shell LINE          runs LINE by `bash -lc`

Or by variables: AGENT_COMMAND with AGENT_ARGS, or AGENT_COMMAND_JSON. Also AGENT_USER (agent), AGENT_WORKDIR
(/workspace), AGENT_GRACE (8 seconds), AGENT_LOG=1, SESSION_TOKEN with CONTROL_PLANE_URL, LLM_PROXY_SOCKET
(/llm-sock/llm.sock), LLM_PROXY_PORT (8080).

Exit status: the program's own, 128+N when signal N ended it, 127 not found, 126 not executable, 125 not started.
";

/// Why the program does not run. Never contains the value of a variable that may be secret.
#[derive(Debug)]
pub struct EntryError(pub String);

impl EntryError {
    pub(crate) fn new(why: impl Into<String>) -> EntryError {
        EntryError(why.into())
    }
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs the process to its end; returns its exit status.
pub fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<_> = arguments.map(OsString::into_vec).collect();
    if arguments.first().is_some_and(|first| first == b"--help") {
        return std::io::stdout()
            .write_all(HELP.as_bytes())
            .map_or(CANNOT_START, |()| 0);
    }
    run(arguments).unwrap_or_else(|not_started| {
        log(&not_started.why.0);
        not_started.status
    })
}

/// Writes one line to stderr, in one write.
fn log(what: &str) {
    // A failure to report has no other place to be reported.
    _ = std::io::stderr().write_all(format!("airlock-init: {what}\n").as_bytes());
}

/// All steps, in order. Each only removes power; a failure before the program runs is an error.
fn run(arguments: Vec<Vec<u8>>) -> Result<i32, StartError> {
    let mut variables = take_variables()?;
    close_descriptors()?;
    sys::block_signals();
    adopt_orphans()?;
    let mut settings = environment::read(&mut variables)?;
    let argv = command::choose(std::mem::take(&mut settings.command), arguments)?;
    let root = privileges::is_root();
    let user = if root {
        configured_user(&settings)?
    } else {
        own_user(&settings)?
    };
    let bridge = bridge::start(&mut settings, &user, root)?;
    let bounding = if root {
        privileges::become_user(&user)?
    } else {
        privileges::stay(&user)?
    };
    hide()?; // again, since a change of user changes it too
    enter(&settings)?;
    set_user_variables(&mut variables, &user, &settings, root);
    log_start(&settings, &user, bridge.as_ref(), bounding, root);
    let path = variables.get(b"PATH").map(<[u8]>::to_vec);
    let argv = argv.into_iter().map(CString::new).collect::<Result<_, _>>();
    let argv = argv.map_err(|_| EntryError::new("an argument has a NUL"))?;
    let program = process_tree::start(&EntryProgram {
        argv,
        env: variables.entries(),
        path,
    })?;
    // The bridge lives as long as its handle.
    Ok(process_tree::supervise(
        program,
        bridge.as_ref().map(|bridge| bridge.pid),
        settings.grace,
    ))
}

/// Takes the variables out of this process, and checks that the kernel does not show them any more.
fn take_variables() -> Result<Variables, EntryError> {
    let variables = Variables::new(sys::take_environment());
    match std::fs::read("/proc/self/environ") {
        Ok(shown) if shown.iter().all(|byte| *byte == 0) => {}
        Ok(_) => {
            return Err(EntryError::new(
                "/proc still shows the variables of airlock-init",
            ));
        }
        // Without /proc nothing shows them.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(EntryError::new(format!(
                "cannot see what /proc shows of airlock-init: {error}"
            )));
        }
    }
    // Only now: a process of an ordinary user that is not dumpable cannot open its own files there.
    hide()?;
    Ok(variables)
}

/// Makes this process not dumpable: no process without privileges over it may trace it, read its
/// memory or see its descriptors.
fn hide() -> Result<(), EntryError> {
    let hidden = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    hidden.map_err(|error| EntryError::new(format!("cannot hide from other processes: {error}")))
}

/// Leaves the three standard streams open, and nothing else. Descriptors opened later close at
/// exec.
fn close_descriptors() -> Result<(), EntryError> {
    let failed = |error: std::io::Error| {
        EntryError::new(format!("cannot close inherited descriptors: {error}"))
    };
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        if rustix::io::fcntl_getfd(stream) == Err(Errno::BADF) {
            // It takes the lowest free number.
            let nothing = std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .map_err(failed)?;
            rustix::io::fcntl_setfd(&nothing, rustix::io::FdFlags::empty())
                .map_err(|error| failed(error.into()))?;
            _ = nothing.into_raw_fd();
        }
    }
    match sys::close_range(3, u32::MAX) {
        // Older kernels, filters and emulators lack the call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            close_each().map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn close_each() -> std::io::Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let numbers = names
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .filter(|number| *number > 2);
    for number in numbers {
        match sys::close(number) {
            // The descriptor of the listing itself, which is closed already.
            Err(error) if error.raw_os_error() != Some(libc::EBADF) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Pid 1 of a namespace adopts orphans in any case.
fn adopt_orphans() -> Result<(), EntryError> {
    if process_tree::is_first() {
        return Ok(());
    }
    let adopted = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    adopted.map_err(|error| EntryError::new(format!("cannot adopt orphans: {error}")))
}

/// The user that root changes to.
fn configured_user(settings: &Settings) -> Result<ProgramUser, EntryError> {
    let wanted = settings.user.as_deref().unwrap_or(DEFAULT_USER);
    user::resolve(
        wanted,
        &user::read("/etc/passwd")?,
        &user::read("/etc/group")?,
    )
}

/// The user of this process, if it was not started as root; it must match the setting.
fn own_user(settings: &Settings) -> Result<ProgramUser, EntryError> {
    use rustix::process::{getgid, getgroups, getuid};
    let uid = getuid().as_raw();
    let gid = getgid().as_raw();
    let passwd = user::read("/etc/passwd")?;
    let group = user::read("/etc/group")?;
    if let Some(wanted) = &settings.user {
        let wanted = user::resolve(wanted, &passwd, &group)?;
        if wanted.uid != uid
            || (settings
                .user
                .as_ref()
                .is_some_and(|text| text.contains(':'))
                && wanted.gid != gid)
        {
            return Err(EntryError::new(format!(
                "AGENT_USER is uid {}, gid {}, but the container was started as uid {uid}, gid {gid}; start it with \
                 `--user {}:{}`, as root, or unset AGENT_USER",
                wanted.uid, wanted.gid, wanted.uid, wanted.gid
            )));
        }
    }
    let groups =
        getgroups().map_err(|error| EntryError::new(format!("cannot read our groups: {error}")))?;
    let named = user::resolve(&uid.to_string(), &passwd, &group)?;
    Ok(ProgramUser {
        gid,
        groups: groups.into_iter().map(|gid| gid.as_raw()).collect(),
        ..named
    })
}

/// With the rights of the user, who has to work there.
fn enter(settings: &Settings) -> Result<(), EntryError> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::chdir(settings.workdir.as_c_str()).map_err(|error| {
        let shown = settings.workdir.to_string_lossy().escape_default().to_string();
        let error = std::io::Error::from(error);
        EntryError::new(format!(
            "cannot work in `{shown}`: {error}; mount or make it, readable for the user, or set AGENT_WORKDIR"
        ))
    })
}

/// Sets `HOME` and the like. If this process was not root, existing values were meant for the user
/// and stay.
fn set_user_variables(
    variables: &mut Variables,
    user: &ProgramUser,
    settings: &Settings,
    root: bool,
) {
    let home = user
        .home
        .clone()
        .unwrap_or_else(|| settings.workdir.to_bytes().to_vec());
    let name = Some(user.name.clone().into_bytes());
    let values = [
        ("HOME", Some(home)),
        ("USER", name.clone()),
        ("LOGNAME", name),
        ("SHELL", user.shell.clone()),
    ];
    for (variable, value) in values {
        match value {
            Some(value) if root || variables.get(variable.as_bytes()).is_none() => {
                variables.set(variable, &value)
            }
            _ => {}
        }
    }
}

/// Logs what a reader of the program's stderr has to know; with `AGENT_LOG=1` also the ids and the
/// bridge.
fn log_start(
    settings: &Settings,
    user: &ProgramUser,
    bridge: Option<&Bridge>,
    bounding: BoundingSet,
    root: bool,
) {
    if user.uid == 0 {
        log("the program runs as root, without capabilities, since AGENT_USER says so");
    }
    if root && bounding == BoundingSet::Kept {
        log(
            "the bounding set of capabilities stays, for want of SETPCAP; no_new_privs makes it worthless",
        );
    }
    if !settings.unknown.is_empty() {
        log(&format!(
            "unknown variables are removed: {}",
            settings.unknown.join(" ")
        ));
    }
    if !settings.holds_token.is_empty() {
        log(&format!(
            "these variables hold the session's token, too: {}",
            settings.holds_token.join(" ")
        ));
    }
    if settings.verbose {
        let bridge = if bridge.is_some() {
            format!("127.0.0.1:{}", settings.port)
        } else {
            "none".to_owned()
        };
        let began = if root { "dropped to" } else { "already" };
        log(&format!(
            "{began} uid {}, gid {}, groups {:?}; bridge {bridge}",
            user.uid, user.gid, user.groups
        ));
    }
}
