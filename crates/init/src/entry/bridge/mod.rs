//! The way to the model: a listener on loopback, and a process of our own that carries what comes there to a socket
//! of the host, or to the control plane with the session's token. The listener stands before the program starts.
//!
//! The process has no capabilities, cannot be traced, and where we may choose it has a user of its own, so that the
//! program can neither read the token out of it nor signal it.

pub mod http;
mod relay;
pub mod resolve;
pub mod url;

use super::{
    Refusal,
    environment::{Settings, Upstream},
    privileges,
    user::{self, Identity},
};
use crate::sys;
use resolve::Names;
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
use url::Address;

const BACKLOG: i32 = 128;
/// The user of the bridge where we may choose; the second if the program is the first.
const OWN_USERS: [u32; 2] = [65534, 65533];

const CONTROL_PLANE: &str = "CONTROL_PLANE_URL";

/// What the listener leads to.
#[derive(Debug)]
struct Door {
    address: Address,
    /// With a token to add; otherwise bytes are carried as they are.
    rewrite: Option<http::Rewrite>,
    names: Names,
    /// Whoever listened on the socket at the start is none of our pid namespace, so nobody of it may.
    outside: bool,
    /// The variable that promised it.
    promised: &'static str,
}

/// A bridge at work. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) pid: i32,
    _lifeline: OwnedFd,
}

/// How the start of the bridge went, as its process tells.
enum Outcome {
    Ready,
    /// This user may not use the socket.
    WrongUser(String),
    Failed(String),
}

/// Starts the bridge, if the settings name something to bridge to. Returns once connections are taken.
pub(super) fn start(
    settings: &mut Settings,
    program: &Identity,
    root: bool,
) -> Result<Option<Bridge>, Refusal> {
    let Some(mut door) = door(settings)? else {
        return Ok(None);
    };
    let listener = listen(settings.port)?;
    let mut last = String::new();
    for user in users(program, root) {
        let (bridge, outcome) = launch(&mut door, &listener, &user, root)?;
        match outcome {
            Outcome::Ready => return Ok(Some(bridge)),
            Outcome::Failed(why) => return Err(Refusal(why)),
            Outcome::WrongUser(why) => last = why,
        }
    }
    Err(Refusal(last))
}

/// Takes the token out of the settings.
fn door(settings: &mut Settings) -> Result<Option<Door>, Refusal> {
    let none = Upstream::Socket {
        path: Vec::new(),
        promised: None,
    };
    match std::mem::replace(&mut settings.upstream, none) {
        Upstream::Url { url, token } => {
            let url = url::parse(&url)?;
            let promised = CONTROL_PLANE;
            if let Address::Unix(path) = &url.address {
                check_socket(path, promised)?;
            }
            let names = Names {
                hosts: user::read("/etc/hosts")?,
                server: resolve::server(&user::read("/etc/resolv.conf")?),
            };
            Ok(Some(Door {
                address: url.address.clone(),
                rewrite: Some(http::Rewrite::new(url, token)),
                names,
                outside: false,
                promised,
            }))
        }
        Upstream::Socket { path, promised } => {
            if promised.is_none()
                && matches!(
                    rustix::fs::stat(path.as_slice()),
                    Err(Errno::NOENT | Errno::NOTDIR)
                )
            {
                return Ok(None);
            }
            let promised = promised.unwrap_or("by being there");
            check_socket(&path, promised)?;
            let (address, names) = (Address::Unix(path), Names::default());
            Ok(Some(Door {
                address,
                rewrite: None,
                names,
                outside: false,
                promised,
            }))
        }
    }
}

fn check_socket(path: &[u8], promised: &str) -> Result<(), Refusal> {
    let why = match rustix::fs::stat(path) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => return Ok(()),
        Ok(_) => "it is not a socket".to_owned(),
        Err(error) => io::Error::from(error).to_string(),
    };
    Err(no_door(path, promised, &why))
}

fn no_door(path: &[u8], promised: &str, why: &str) -> Refusal {
    // What was given as a URL is not shown.
    let path = match promised {
        CONTROL_PLANE => String::new(),
        _ => format!("`{}` ", String::from_utf8_lossy(path).escape_default()),
    };
    Refusal::new(format!(
        "the way to the model is promised ({promised}), but the socket {path}cannot be used: {why}; mount the \
         folder with the socket, or unset the variable"
    ))
}

/// Listens on loopback, and sees that it can be reached there.
fn listen(port: u16) -> Result<OwnedFd, Refusal> {
    let failed = |what: &str, error: Errno| {
        Refusal::new(format!(
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
        // A network namespace fresh from the kernel has its loopback down.
        let raised = sys::loopback_up().and_then(|()| TcpStream::connect(address));
        raised.map_err(|error| {
            Refusal::new(format!(
                "the loopback interface is down and cannot be brought up: {error}"
            ))
        })?;
    }
    // It may take a moment until the kernel hands out what stands already.
    let limit = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit))
        .and_then(|_| net::accept(&listener))
        .map_err(|error| failed("take a connection on", error))?;
    Ok(listener)
}

/// Whom the bridge may run as, the best first.
fn users(program: &Identity, root: bool) -> Vec<Identity> {
    let own = OWN_USERS
        .into_iter()
        .find(|uid| *uid != program.uid)
        .filter(|_| root);
    let own = own.map(|uid| Identity {
        uid,
        gid: uid,
        groups: vec![uid],
        name: "the bridge".to_owned(),
        home: None,
        shell: None,
    });
    own.into_iter().chain([program.clone()]).collect()
}

fn launch(
    door: &mut Door,
    listener: &OwnedFd,
    user: &Identity,
    root: bool,
) -> Result<(Bridge, Outcome), Refusal> {
    let failed = |error: io::Error| Refusal::new(format!("cannot start the bridge: {error}"));
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
    let ((lifeline, ours), (told, tell)) = (pipe()?, pipe()?);
    match sys::fork().map_err(failed)? {
        0 => {
            drop((ours, told));
            let outcome = prepare(door, user, root);
            let ready = matches!(outcome, Outcome::Ready);
            if report(tell, outcome).is_ok() && ready {
                relay::serve(listener, &lifeline, door);
            }
            sys::exit(0)
        }
        pid => {
            drop((lifeline, tell));
            let mut message = Vec::new();
            File::from(told).read_to_end(&mut message).map_err(failed)?;
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

fn report(tell: OwnedFd, outcome: Outcome) -> io::Result<()> {
    let (kind, text) = match outcome {
        Outcome::Ready => (b'r', String::new()),
        Outcome::WrongUser(why) => (b'w', why),
        Outcome::Failed(why) => (b'f', why),
    };
    File::from(tell).write_all(&[&[kind], text.as_bytes()].concat())
}

fn outcome(message: &[u8]) -> Outcome {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match message.split_first() {
        Some((b'r', _)) => Outcome::Ready,
        Some((b'w', why)) => Outcome::WrongUser(text(why)),
        Some((_, why)) => Outcome::Failed(text(why)),
        None => Outcome::Failed("the bridge ended before it was ready".to_owned()),
    }
}

/// In the process of the bridge: gives up what it does not need, then sees that the other end is there.
fn prepare(door: &mut Door, user: &Identity, root: bool) -> Outcome {
    if let Err(error) = detach() {
        return Outcome::Failed(format!("cannot set the bridge apart: {error}"));
    }
    let contained = if root {
        privileges::become_user(user)
    } else {
        privileges::stay(user)
    };
    if let Err(refusal) = contained {
        return Outcome::WrongUser(refusal.0);
    }
    // Again, since a change of user changes it too.
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        return Outcome::Failed(format!("cannot hide the bridge: {error}"));
    }
    if let Address::Name(name, port) = &door.address {
        match door.names.find(name) {
            Ok(found) => door.address = Address::Ip((found, *port).into()),
            Err(why) => {
                return Outcome::Failed(format!(
                    "the host of CONTROL_PLANE_URL cannot be found: {why}"
                ));
            }
        }
    }
    let Address::Unix(path) = &door.address else {
        return Outcome::Ready;
    };
    match relay::open(&door.address) {
        Ok(socket) => {
            door.outside = relay::is_outside(&socket);
            Outcome::Ready
        }
        // Its queue being full, somebody is there; outside, as nearly everybody is whom we could meet at this moment.
        Err(Errno::AGAIN) => {
            door.outside = true;
            Outcome::Ready
        }
        Err(error) => {
            let why = match error {
                Errno::CONNREFUSED => "nobody listens on it".to_owned(),
                other => io::Error::from(other).to_string(),
            };
            let refusal = no_door(path, door.promised, &why).0;
            if error == Errno::ACCESS {
                Outcome::WrongUser(refusal)
            } else {
                Outcome::Failed(refusal)
            }
        }
    }
}

/// Away from the terminal and the streams of the program, which this process has no business with.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    let nothing = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    (0..=2).try_for_each(|place| sys::put_stream(nothing.as_raw_fd(), place))
}
