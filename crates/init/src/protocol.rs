//! The messages between the engine and the launcher.
//!
//! ```text
//! control   engine → launcher   Template, once                launcher → engine   Hello + its pidfd
//!                               or ContainerNetwork + its handle                  NetworkReady + listeners…, and its end
//!                               Sandbox + channel[, cgroup][, inherited…]
//!                               CgroupForker + its control[, cgroup.procs…]
//!                               NamespacePool
//! channel   engine → launcher   Exec + 0, 1, 2                launcher → engine   Ready + workspace[, terminal], doors…, intercept…
//! (one a sandbox)               Prepare + child                                   Started + pidfd[, listener]
//!                               Signal, Destroy                                   Ended, Failed, Gone
//!                               StartExec + exec, child
//!                               Terminal + answer                                 Terminal + its master, or Failed, on answer
//!                               Remount + answer                                  Remounted, or Failed, on answer
//! exec      engine → launcher   Signal, or its end: kill      launcher → engine   Ended
//! child     engine → process    Exec + 0, 1, 2                process → engine    Started[ + listener]
//!                                                                                 Failed, or its end: exec
//! ```
//!
//! Sockets of type SEQPACKET: a message is whole or absent, and an end of file means that the peer
//! died. A plan is part of the message or, because a command line may be larger than a packet, in a
//! memfd that comes first.

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
/// Execs of one sandbox that run at the same time.
pub const MAX_EXECS: usize = 64;
/// Intercepted ports, beside a redirect: with two listeners each they fit one message.
pub const MAX_PORTS: usize = 32;
/// Bytes of one message.
const MAX_MESSAGE_BYTES: usize = 8 << 10;
/// Bytes of a plan inside a message.
const MAX_INLINE_BYTES: usize = 6 << 10;
/// Bytes of one plan.
const MAX_PLAN_BYTES: u64 = 16 << 20;

/// Requests of the engine on the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LauncherRequest {
    /// The root of all sandboxes of this launcher; the first message, once.
    Template {
        /// Its plan.
        plan: Payload,
        /// The ids of the first sandbox's program: its namespaces are created while the root is
        /// built.
        first: Option<Ids>,
    },
    /// Creates a sandbox: its channel, then the cgroup directory if it is to be born in one, then
    /// descriptors that its pid 1 keeps open as long as it lives.
    Sandbox {
        /// Its plan.
        plan: Payload,
        /// Whether a cgroup directory is among the handles.
        cgroup: bool,
    },
    /// Forks the launcher into version 1 cgroups: the fork's control socket, then the
    /// `cgroup.procs` files.
    CgroupForker,
    /// Keeps namespaces ready from now on.
    NamespacePool(NamespacePoolPlan),
    /// Instead of all this: sets up the network of a container, whose namespace comes along, and
    /// ends.
    ContainerNetwork(Payload),
}

/// Requests of the engine on the channel of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxCommand {
    /// In a container: checks the barriers by this plan, and hands out what the engine needs.
    CheckContainer(Payload),
    /// Executes a program by its plan, or a prepared child by its exec arguments: standard input,
    /// output, error.
    Exec(Payload),
    /// Forks a prepared child, which drops its privileges and waits on this socket.
    Prepare(Payload),
    /// Forks a prepared child for an exec, which the sandbox outlives: the exec's channel, then the
    /// socket on which the child waits.
    StartExec(Payload),
    /// Opens another terminal; the reply goes to the socket that comes along.
    Terminal,
    /// Puts mounts of protected names back; the reply goes to the socket that comes along.
    Remount(Payload),
    /// Signals the program; on the channel of an exec its process group.
    Signal(i32),
    /// Ends the sandbox and every process in it.
    Destroy,
}

/// A plan in a message: its bytes, or none if they are in a memfd, the first descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Encodes a plan; the memfd is for a large one.
    pub fn new<T: Wire>(plan: &T) -> io::Result<(Payload, Option<OwnedFd>)> {
        let bytes = encode(plan);
        if bytes.len() <= MAX_INLINE_BYTES {
            Ok((Payload(bytes), None))
        } else {
            Ok((Payload(Vec::new()), Some(seal_plan(&bytes)?)))
        }
    }

    /// Decodes the plan; its memfd is removed from the descriptors.
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

/// Reports of the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The launcher (or cgroup v1 forker) is ready; its pidfd comes along.
    Hello(Steps),
    /// The sandbox exists. Descriptors: its workspace, its mount table if that is watched, the
    /// master of its terminal if it has one, the listeners of its doors, then those of transparent
    /// proxying, the DNS sockets last.
    Ready {
        /// The steps that were taken.
        steps: Steps,
        /// The ids of the program.
        ids: Ids,
        /// The host paths, counted from the workspace, that could not be idmapped.
        unmapped: Vec<u32>,
        /// Kernel file systems below mounted folders, which were covered.
        covered: Vec<CString>,
        /// The sockets of transparent proxying.
        intercept: InterceptHandles,
    },
    /// The program runs, and its pidfd comes along; or the prepared child waits. Then the listener
    /// of its seccomp filter, if it has one.
    Started(Steps),
    /// A terminal is open; its master comes along.
    Terminal,
    /// The names that exist and are read-only again.
    Remounted(Vec<RemountedName>),
    /// The container's network is set up; the descriptors are counted.
    NetworkReady(InterceptHandles),
    /// The program has exited.
    Ended(ProcessExit),
    /// A step failed; no line of the program ran.
    Failed(StepFailure),
    /// The sandbox and every process in it are gone.
    Gone(ProcessExit),
}

/// The number of descriptors after those of the doors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterceptHandles {
    /// TCP listeners.
    pub listeners: u32,
    /// DNS sockets.
    pub dns_sockets: u32,
    /// The errno of a redirect that could not be made.
    pub redirect_errno: Option<i32>,
}

/// How a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// The wait status.
    pub status: i32,
    /// CPU time of the process and of the children that it waited for.
    pub cpu_us: u64,
    /// The largest resident set of one process.
    pub peak_bytes: u64,
    /// No other process is left in the sandbox, for certain; `false` says nothing.
    pub alone: bool,
}

/// A name that is read-only again, and the state of its file before any program continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemountedName {
    /// Its index in the plan.
    pub number: u32,
    /// The inode of the file.
    pub inode: u64,
    /// The seconds of its change time.
    pub changed_seconds: u64,
    /// The nanoseconds of its change time.
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

impl Wire for LauncherRequest {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            LauncherRequest::Template { plan, first } => {
                out.push(b'T');
                plan.put(out);
                first.put(out);
            }
            LauncherRequest::Sandbox { plan, cgroup } => {
                out.push(b'B');
                plan.put(out);
                cgroup.put(out);
            }
            LauncherRequest::CgroupForker => out.push(b'L'),
            LauncherRequest::NamespacePool(plan) => {
                out.push(b'S');
                plan.put(out);
            }
            LauncherRequest::ContainerNetwork(plan) => {
                out.push(b'N');
                plan.put(out);
            }
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            b'N' => Payload::get(input).map(LauncherRequest::ContainerNetwork),
            b'T' => Ok(LauncherRequest::Template {
                plan: Wire::get(input)?,
                first: Wire::get(input)?,
            }),
            b'B' => Ok(LauncherRequest::Sandbox {
                plan: Wire::get(input)?,
                cgroup: Wire::get(input)?,
            }),
            b'L' => Ok(LauncherRequest::CgroupForker),
            b'S' => NamespacePoolPlan::get(input).map(LauncherRequest::NamespacePool),
            _ => Err(DecodeError),
        }
    }
}

impl Wire for SandboxCommand {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            SandboxCommand::CheckContainer(plan) => {
                out.push(b'F');
                plan.put(out);
            }
            SandboxCommand::Exec(plan) => {
                out.push(b'X');
                plan.put(out);
            }
            SandboxCommand::Prepare(plan) => {
                out.push(b'P');
                plan.put(out);
            }
            SandboxCommand::StartExec(plan) => {
                out.push(b'N');
                plan.put(out);
            }
            SandboxCommand::Terminal => out.push(b'T'),
            SandboxCommand::Remount(plan) => {
                out.push(b'M');
                plan.put(out);
            }
            SandboxCommand::Signal(number) => {
                out.push(b'S');
                number.put(out);
            }
            SandboxCommand::Destroy => out.push(b'D'),
        }
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            b'F' => Payload::get(input).map(SandboxCommand::CheckContainer),
            b'X' => Payload::get(input).map(SandboxCommand::Exec),
            b'P' => Payload::get(input).map(SandboxCommand::Prepare),
            b'N' => Payload::get(input).map(SandboxCommand::StartExec),
            b'T' => Ok(SandboxCommand::Terminal),
            b'M' => Payload::get(input).map(SandboxCommand::Remount),
            b'S' => i32::get(input).map(SandboxCommand::Signal),
            b'D' => Ok(SandboxCommand::Destroy),
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
                let step = u8::get(input)?;
                let errno = i32::get(input)?;
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

/// A connected pair of message sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one message with descriptors; never blocks.
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

/// Receives one message; `None` is the end of file. The descriptors are close-on-exec. Blocks if
/// the socket does.
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

/// Writes a plan to a sealed memfd.
fn seal_plan(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"plan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, bytes)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Decodes a plan from its memfd.
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
