//! What engine and launcher say to each other.
//!
//! ```text
//! control   engine → launcher   Template, once                launcher → engine   Hello + its pidfd
//!                               or Network + its handle                           Interception + listeners…, and its end
//!                               Box  + channel[, cgroup][, held…]
//!                               CgroupForker + its control[, cgroup.procs…]
//!                               NamespacePool
//! channel   engine → launcher   Exec + 0, 1, 2                launcher → engine   Ready + workspace[, terminal], doors…, intercept…
//! (one a box)                   Prepare + standby                                 Started + pidfd[, listener]
//!                               Signal, Destroy                                   ProcessExit, Failed, Gone
//!                               Start + program, standby
//!                               Terminal + answer                                 Terminal + our end of it, or Failed, on answer
//!                               Remount + answer                                  RemountedName, or Failed, on answer
//! program   engine → launcher   Signal, or its end: kill      launcher → engine   ProcessExit
//! standby   engine → process    Exec + 0, 1, 2                process → engine    Started[ + listener]
//!                                                                                 Failed, or its end: exec
//! ```
//!
//! Sequenced packets: a message is whole or not there, and an end of file is a death. A plan travels in the message,
//! or, because a command line may be larger than a packet, in a memory file that comes first.

use crate::{
    plan::{Ids, NamespacePoolPlan},
    step::{StepFailure, Steps},
    wire::{DecodeError, Wire, decode, encode},
    wire_struct,
};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};
use std::{
    ffi::CString,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Descriptors in one message.
const MAX_DESCRIPTORS: usize = 96;
/// ExecChild programs of one box that are under way at once.
pub const MAX_EXECS: usize = 64;
/// Ports at which what is dialled inside may arrive, beside a redirect: with two listeners each they fit a message.
pub const MAX_PORTS: usize = 32;
/// Bytes in one message.
const MAX_MESSAGE_BYTES: usize = 8 << 10;
/// Bytes of a plan that travels in a message.
const MAX_INLINE_BYTES: usize = 6 << 10;
/// Bytes of one plan.
const MAX_PLAN_BYTES: u64 = 16 << 20;

/// What the engine asks on the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The root of the boxes to come; once, first.
    Template {
        /// Its plan.
        plan: Payload,
        /// Who the program of the first box will be: its namespaces are made while the root is built.
        first: Option<Ids>,
    },
    /// A box: channel, then the cgroup directory if it is to be born in one, then what its pid1 holds open for as
    /// long as it lives.
    Sandbox {
        /// Its plan.
        plan: Payload,
        /// Whether a cgroup directory is among the handles.
        cgroup: bool,
    },
    /// A copy of the launcher in version 1 cgroups: its control socket, then their `cgroup.procs` files.
    CgroupForker,
    /// From now on keep namespaces ready.
    NamespacePool(NamespacePoolPlan),
    /// Instead of all this: furnish the network of a container, whose handle comes along, and end.
    ContainerNetwork(Payload),
}

/// What the engine asks on the channel of a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// In a container: look around by this plan, and hand out what is found.
    CheckContainer(Payload),
    /// Run a program by its plan (or exec_args): standard input, output, error.
    Exec(Payload),
    /// Make a process that has given everything up and stands by for its exec_args: its socket.
    Prepare(Payload),
    /// Make such a process for a further program, which the box outlives: the program's own channel, then the socket
    /// on which the process stands by.
    StartExec(Payload),
    /// Open another terminal, and answer on the socket that comes along.
    Terminal,
    /// Put mounts of protected names back by a plan, and answer on the socket that comes along.
    Remount(Payload),
    /// Send a signal to the program; on a further program's own channel to its process group.
    Signal(i32),
    /// End the box with everything in it.
    Destroy,
}

/// A plan in a message: its bytes, or none when they are in a memory file, the first handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// A plan, and the file it is in if it is large.
    pub fn new<T: Wire>(plan: &T) -> io::Result<(Payload, Option<OwnedFd>)> {
        let bytes = encode(plan);
        match bytes.len() <= MAX_INLINE_BYTES {
            true => Ok((Payload(bytes), None)),
            false => Ok((Payload(Vec::new()), Some(seal_plan(&bytes)?))),
        }
    }

    /// The plan; its file is taken from the handles.
    pub(crate) fn read<T: Wire>(&self, files: &mut Vec<OwnedFd>) -> io::Result<T> {
        let malformed = |_| io::Error::other("the plan is malformed");
        match (self.0.is_empty(), files.is_empty()) {
            (false, _) => decode(&self.0).map_err(malformed),
            (true, false) => decode_plan_file(files.remove(0)),
            (true, true) => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

impl Wire for Payload {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend(&self.0);
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Vec::get(input).map(Payload)
    }
}

/// What the launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The launcher (or lane) is ready; its pidfd comes along.
    Hello(Steps),
    /// The box is made; its workspace, its mount table if that is watched, our end of its terminal if it has one, and its listeners come along, those
    /// of its doors first, with the sockets for names at the end.
    Ready {
        /// What was done.
        steps: Steps,
        /// Who the program will be.
        ids: Ids,
        /// Which host paths, counted from the workspace, could not be idmapped as asked.
        unmapped: Vec<u32>,
        /// File systems of the kernel's own below mounted folders, which were covered.
        covered: Vec<CString>,
        /// What was made for programs that know of no door.
        intercept: InterceptHandles,
    },
    /// The program runs, and its pidfd comes along; or it stands by. Then the listener of its filter, if it has one.
    Started(Steps),
    /// A terminal is open, and our end of it comes along.
    Terminal,
    /// Which of the names are there, and read-only again.
    Remounted(Vec<RemountedName>),
    /// The network is furnished; the handles are counted.
    NetworkReady(InterceptHandles),
    /// The program has ended.
    Ended(ProcessExit),
    /// A step failed; no line of the program ran.
    Failed(StepFailure),
    /// The box and every process in it are gone.
    Gone(ProcessExit),
}

/// How many handles came along beyond those of the doors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterceptHandles {
    /// Listeners.
    pub listeners: u32,
    /// Sockets at which names are asked for.
    pub dns_sockets: u32,
    /// The kernel's answer to a redirect that it could not make.
    pub redirect_errno: Option<i32>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// As `wait` gives it.
    pub status: i32,
    /// CPU time of it and of what it waited for.
    pub cpu_us: u64,
    /// Largest resident size of one process.
    pub peak_bytes: u64,
    /// Nothing else is left in the box, for certain. It may be so without this.
    pub alone: bool,
}

/// A name that is read-only again, and the file as it was before a program could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RemountedName {
    /// Its place in the plan.
    pub number: u32,
    pub inode: u64,
    pub changed_seconds: u64,
    pub changed_nanoseconds: u64,
}

wire_struct!(RemountedName {
    number,
    inode,
    changed_seconds,
    changed_nanoseconds
});
wire_struct!(InterceptHandles {
    listeners,
    dns_sockets,
    redirect_errno
});
wire_struct!(ProcessExit {
    status,
    cpu_us,
    peak_bytes,
    alone
});

impl Wire for Request {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Request::Template { plan, first } => {
                out.push(b'T');
                plan.put(out);
                first.put(out);
            }
            Request::Sandbox { plan, cgroup } => {
                out.push(b'B');
                plan.put(out);
                cgroup.put(out);
            }
            Request::CgroupForker => out.push(b'L'),
            Request::NamespacePool(plan) => {
                out.push(b'S');
                plan.put(out);
            }
            Request::ContainerNetwork(plan) => {
                out.push(b'N');
                plan.put(out);
            }
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            b'N' => Payload::get(input).map(Request::ContainerNetwork),
            b'T' => Ok(Request::Template {
                plan: Wire::get(input)?,
                first: Wire::get(input)?,
            }),
            b'B' => Ok(Request::Sandbox {
                plan: Wire::get(input)?,
                cgroup: Wire::get(input)?,
            }),
            b'L' => Ok(Request::CgroupForker),
            b'S' => NamespacePoolPlan::get(input).map(Request::NamespacePool),
            _ => Err(DecodeError),
        }
    }
}

impl Wire for Command {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Command::CheckContainer(plan) => {
                out.push(b'F');
                plan.put(out);
            }
            Command::Exec(plan) => {
                out.push(b'X');
                plan.put(out);
            }
            Command::Prepare(plan) => {
                out.push(b'P');
                plan.put(out);
            }
            Command::StartExec(plan) => {
                out.push(b'N');
                plan.put(out);
            }
            Command::Terminal => out.push(b'T'),
            Command::Remount(plan) => {
                out.push(b'M');
                plan.put(out);
            }
            Command::Signal(number) => {
                out.push(b'S');
                number.put(out);
            }
            Command::Destroy => out.push(b'D'),
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            b'F' => Payload::get(input).map(Command::CheckContainer),
            b'X' => Payload::get(input).map(Command::Exec),
            b'P' => Payload::get(input).map(Command::Prepare),
            b'N' => Payload::get(input).map(Command::StartExec),
            b'T' => Ok(Command::Terminal),
            b'M' => Payload::get(input).map(Command::Remount),
            b'S' => i32::get(input).map(Command::Signal),
            b'D' => Ok(Command::Destroy),
            _ => Err(DecodeError),
        }
    }
}

impl Wire for Report {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Report::Hello(steps) => {
                out.push(b'H');
                steps.put(out);
            }
            Report::Ready {
                steps,
                ids,
                unmapped,
                covered,
                intercept,
            } => {
                out.push(b'R');
                steps.put(out);
                ids.put(out);
                unmapped.put(out);
                covered.put(out);
                intercept.put(out);
            }
            Report::Started(steps) => {
                out.push(b'P');
                steps.put(out);
            }
            Report::Terminal => out.push(b'T'),
            Report::Remounted(mounted) => {
                out.push(b'M');
                mounted.put(out);
            }
            Report::NetworkReady(arriving) => {
                out.push(b'A');
                arriving.put(out);
            }
            Report::Ended(ended) => {
                out.push(b'E');
                ended.put(out);
            }
            Report::Failed(failure) => {
                out.push(b'F');
                (failure.step as u8).put(out);
                failure.errno.put(out);
                failure.detail.put(out);
            }
            Report::Gone(ended) => {
                out.push(b'G');
                ended.put(out);
            }
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            b'H' => Steps::get(input).map(Report::Hello),
            b'R' => Ok(Report::Ready {
                steps: Wire::get(input)?,
                ids: Wire::get(input)?,
                unmapped: Wire::get(input)?,
                covered: Wire::get(input)?,
                intercept: Wire::get(input)?,
            }),
            b'P' => Steps::get(input).map(Report::Started),
            b'T' => Ok(Report::Terminal),
            b'M' => Vec::get(input).map(Report::Remounted),
            b'A' => InterceptHandles::get(input).map(Report::NetworkReady),
            b'E' => ProcessExit::get(input).map(Report::Ended),
            b'F' => {
                let (step, errno) = (u8::get(input)?, i32::get(input)?);
                Ok(Report::Failed(StepFailure::from_parts(
                    step,
                    errno,
                    String::get(input)?,
                )))
            }
            b'G' => ProcessExit::get(input).map(Report::Gone),
            _ => Err(DecodeError),
        }
    }
}

/// A pair of connected sockets for messages.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one message with descriptors; never waits.
pub fn send<T: Wire>(
    socket: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives one message; `None` is the end. Descriptors close at exec. Waits if the socket does.
pub fn receive<T: Wire>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?.bytes,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received == 0 {
        return Ok(None);
    }
    let message =
        decode(&bytes[..received]).map_err(|_| io::Error::other("a message was malformed"))?;
    Ok(Some((message, descriptors)))
}

/// A sealed memory file.
fn seal_plan(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"plan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, bytes)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Reads a plan from its file.
fn decode_plan_file<T: Wire>(file: OwnedFd) -> io::Result<T> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::from(file);
    let size = file.metadata()?.len();
    if size > MAX_PLAN_BYTES {
        return Err(io::Error::other("the plan is too large"));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0)?;
    decode(&bytes).map_err(|_| io::Error::other("the plan is malformed"))
}
