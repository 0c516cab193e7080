//! The bridge to the model: a listener on loopback, and a process of its own that carries
//! connections to a socket of the host, or to the control plane with the session's token. It
//! listens before the program starts.
//!
//! The process has no capabilities, is not dumpable, and where it can be chosen has a user of its
//! own, so that the program can neither read the token from its memory nor signal it.

pub mod http;
mod relay;
pub mod resolver;
pub mod url;

use super::{
    EntryError,
    environment::{ModelUpstream, Settings},
    privileges,
    user::{self, ProgramUser},
};
use crate::sys;
use resolver::NameResolver;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags},
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType},
    pipe::{PipeFlags, pipe_with},
    process::DumpableBehavior,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
};
use url::UpstreamAddress;

const BACKLOG: i32 = 128;
/// The user of the bridge where it can be chosen; the second if the program has the first.
const BRIDGE_UIDS: [u32; 2] = [65534, 65533];

const CONTROL_PLANE: &str = "CONTROL_PLANE_URL";

/// Where the bridge leads to.
#[derive(Debug)]
struct BridgeTarget {
    address: UpstreamAddress,
    /// The token to add to requests; without it bytes are carried unchanged.
    rewrite: Option<http::RequestRewrite>,
    names: NameResolver,
    /// The process that listened on the socket at the start is in another pid namespace, so no
    /// process of ours may take its place.
    outside: bool,
    /// The variable that promised it.
    promised_by: &'static str,
}

/// A running bridge. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) pid: i32,
    _lifeline: OwnedFd,
}

/// The outcome of the bridge's start, as its process reports it.
enum BridgeStart {
    Ready,
    /// This user may not connect to the socket.
    WrongUser(String),
    Failed(String),
}

/// Starts the bridge, if the settings name an upstream. Returns once connections are accepted.
pub(super) fn start(
    settings: &mut Settings,
    program: &ProgramUser,
    root: bool,
) -> Result<Option<Bridge>, EntryError> {
    let Some(mut target) = target(settings)? else {
        return Ok(None);
    };
    let listener = listen(settings.port)?;
    let mut last = String::new();
    for user in users(program, root) {
        let (bridge, outcome) = fork_bridge(&mut target, &listener, &user, root)?;
        match outcome {
            BridgeStart::Ready => return Ok(Some(bridge)),
            BridgeStart::Failed(why) => return Err(EntryError(why)),
            BridgeStart::WrongUser(why) => last = why,
        }
    }
    Err(EntryError(last))
}

/// Takes the token out of the settings.
fn target(settings: &mut Settings) -> Result<Option<BridgeTarget>, EntryError> {
    let none = ModelUpstream::Socket {
        path: Vec::new(),
        promised_by: None,
    };
    match std::mem::replace(&mut settings.upstream, none) {
        ModelUpstream::Url { url, token } => {
            let url = url::parse(&url)?;
            let promised_by = CONTROL_PLANE;
            if let UpstreamAddress::Unix(path) = &url.address {
                check_socket(path, promised_by)?;
            }
            let names = NameResolver {
                hosts: user::read("/etc/hosts")?,
                server: resolver::server(&user::read("/etc/resolv.conf")?),
            };
            Ok(Some(BridgeTarget {
                address: url.address.clone(),
                rewrite: Some(http::RequestRewrite::new(url, token)),
                names,
                outside: false,
                promised_by,
            }))
        }
        ModelUpstream::Socket { path, promised_by } => {
            if promised_by.is_none()
                && matches!(
                    rustix::fs::stat(path.as_slice()),
                    Err(Errno::NOENT | Errno::NOTDIR)
                )
            {
                return Ok(None);
            }
            let promised_by = promised_by.unwrap_or("by being there");
            check_socket(&path, promised_by)?;
            let address = UpstreamAddress::Unix(path);
            let names = NameResolver::default();
            Ok(Some(BridgeTarget {
                address,
                rewrite: None,
                names,
                outside: false,
                promised_by,
            }))
        }
    }
}

fn check_socket(path: &[u8], promised_by: &str) -> Result<(), EntryError> {
    let why = match rustix::fs::stat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => return Ok(()),
        Ok(_) => "it is not a socket".to_owned(),
        Err(error) => io::Error::from(error).to_string(),
    };
    Err(no_target(path, promised_by, &why))
}

fn no_target(path: &[u8], promised_by: &str, why: &str) -> EntryError {
    // A URL is not shown: it may hold secrets.
    let path = match promised_by {
        CONTROL_PLANE => String::new(),
        _ => format!("`{}` ", String::from_utf8_lossy(path).escape_default()),
    };
    EntryError::new(format!(
        "the way to the model is promised ({promised_by}), but the socket {path}cannot be used: {why}; mount the \
         folder with the socket, or unset the variable"
    ))
}

/// Listens on loopback, and checks that a connection arrives.
fn listen(port: u16) -> Result<OwnedFd, EntryError> {
    let failed = |what: &str, error: Errno| {
        EntryError::new(format!(
            "cannot {what} 127.0.0.1:{port} for the bridge: {}",
            io::Error::from(error)
        ))
    };
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .and_then(|socket| net::sockopt::set_socket_reuseaddr(&socket, true).map(|()| socket))
        .and_then(|socket| net::bind(&socket, &address).map(|()| socket))
        .and_then(|socket| net::listen(&socket, BACKLOG).map(|()| socket))
        .map_err(|error| failed("listen on", error))?;
    if TcpStream::connect(address).is_err() {
        // In a new network namespace loopback is down.
        let raised = sys::loopback_up().and_then(|()| TcpStream::connect(address));
        raised.map_err(|error| {
            EntryError::new(format!(
                "the loopback interface is down and cannot be brought up: {error}"
            ))
        })?;
    }
    // The kernel may need a moment to hand out the connection.
    let limit = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit))
        .and_then(|_| net::accept(&listener))
        .map_err(|error| failed("take a connection on", error))?;
    Ok(listener)
}

/// The users that the bridge may run as, the best first.
fn users(program: &ProgramUser, root: bool) -> Vec<ProgramUser> {
    let own = BRIDGE_UIDS
        .into_iter()
        .find(|uid| *uid != program.uid)
        .filter(|_| root);
    let own = own.map(|uid| ProgramUser {
        uid,
        gid: uid,
        groups: vec![uid],
        name: "the bridge".to_owned(),
        home: None,
        shell: None,
    });
    own.into_iter().chain([program.clone()]).collect()
}

fn fork_bridge(
    target: &mut BridgeTarget,
    listener: &OwnedFd,
    user: &ProgramUser,
    root: bool,
) -> Result<(Bridge, BridgeStart), EntryError> {
    let failed = |error: io::Error| EntryError::new(format!("cannot start the bridge: {error}"));
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
    let ((lifeline, ours), (report_reader, report_writer)) = (pipe()?, pipe()?);
    match sys::fork().map_err(failed)? {
        0 => {
            drop((ours, report_reader));
            let outcome = prepare(target, user, root);
            let ready = matches!(outcome, BridgeStart::Ready);
            if report(report_writer, outcome).is_ok() && ready {
                relay::serve(listener, &lifeline, target);
            }
            sys::exit(0)
        }
        pid => {
            drop((lifeline, report_writer));
            let mut message = Vec::new();
            File::from(report_reader)
                .read_to_end(&mut message)
                .map_err(failed)?;
            Ok((
                Bridge {
                    pid,
                    _lifeline: ours,
                },
                outcome(&message),
            ))
        }
    }
}

fn report(report_writer: OwnedFd, outcome: BridgeStart) -> io::Result<()> {
    let (kind, text) = match outcome {
        BridgeStart::Ready => (b'r', String::new()),
        BridgeStart::WrongUser(why) => (b'w', why),
        BridgeStart::Failed(why) => (b'f', why),
    };
    File::from(report_writer).write_all(&[&[kind], text.as_bytes()].concat())
}

fn outcome(message: &[u8]) -> BridgeStart {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match message.split_first() {
        Some((b'r', _)) => BridgeStart::Ready,
        Some((b'w', why)) => BridgeStart::WrongUser(text(why)),
        Some((_, why)) => BridgeStart::Failed(text(why)),
        None => BridgeStart::Failed("the bridge ended before it was ready".to_owned()),
    }
}

/// In the bridge's process: drops its privileges, then checks that the other end is there.
fn prepare(target: &mut BridgeTarget, user: &ProgramUser, root: bool) -> BridgeStart {
    if let Err(error) = detach() {
        return BridgeStart::Failed(format!("cannot set the bridge apart: {error}"));
    }
    let contained = if root {
        privileges::become_user(user)
    } else {
        privileges::stay(user)
    };
    if let Err(refusal) = contained {
        return BridgeStart::WrongUser(refusal.0);
    }
    // Again, because a change of user resets it.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        return BridgeStart::Failed(format!("cannot hide the bridge: {error}"));
    }
    if let UpstreamAddress::Name(name, port) = &target.address {
        match target.names.find(name) {
            Ok(found) => target.address = UpstreamAddress::Ip((found, *port).into()),
            Err(why) => {
                return BridgeStart::Failed(format!(
                    "the host of CONTROL_PLANE_URL cannot be found: {why}"
                ));
            }
        }
    }
    let UpstreamAddress::Unix(path) = &target.address else {
        return BridgeStart::Ready;
    };
    match relay::open(&target.address) {
        Ok(socket) => {
            target.outside = relay::is_outside(&socket);
            BridgeStart::Ready
        }
        // A full queue means that a process listens; an outside one, because nearly no other can
        // exist at this moment.
        Err(Errno::AGAIN) => {
            target.outside = true;
            BridgeStart::Ready
        }
        Err(error) => {
            let why = match error {
                Errno::CONNREFUSED => "nobody listens on it".to_owned(),
                other => io::Error::from(other).to_string(),
            };
            let refusal = no_target(path, target.promised_by, &why).0;
            if error == Errno::ACCESS {
                BridgeStart::WrongUser(refusal)
            } else {
                BridgeStart::Failed(refusal)
            }
        }
    }
}

/// Leaves the terminal and the streams of the program.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    let nothing = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    (0..=2).try_for_each(|place| sys::put_stream(nothing.as_raw_fd(), place))
}
