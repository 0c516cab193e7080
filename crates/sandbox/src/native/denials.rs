//! What a program was denied: hears of the calls that the filter refuses and of those that could be denied, answers
//! them, and tells what it denied.
//!
//! ```text
//! program ── call ─▶ filter ── refused ─▶ this thread: error, told
//!                       └───── watched ─▶ this thread ─┬─ certainly denied: error, told
//!                                                      └─ else: the kernel decides
//! ```
//!
//! What is told is true, because it was denied here: the call ended with our answer. Enforcement does not depend on
//! it: what is answered with *continue* meets the mounts, the network namespace and Landlock as if nobody had
//! looked. So it does no harm that a program can change the memory that was looked at, or what a path leads
//! to, before or after the look: it denies itself something, or gets the kernel's answer. Where anything is in doubt,
//! the kernel decides and nothing is told. Without us every such call fails (ENOSYS).

mod cpu_budget;
mod file_changes;
mod overlay_layer;
mod rules;

pub(crate) use cpu_budget::WatchBudget;
pub(crate) use rules::DenialRules;

use file_changes::{DeniedChange, SandboxFiles};
use init::{
    seccomp::{self, FilterAction},
    seccomp_notify::{self, NotificationResponse, SeccompNotification},
    watched_syscalls::{self, FlagsSource, PathArgument, SyscallOperation},
};
use rustix::{
    fs::{AtFlags, OFlags, RenameFlags},
    io::Errno,
    net::{AddressFamily, SocketType, sockopt},
    process::{Pid, PidfdFlags, PidfdGetfdFlags},
    time::ClockId,
};
use spec::Denial;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{io::Interest, net::unix::pipe, sync::mpsc};

/// How many different denials are told. A program could make any number of them.
pub const MAX_DENIALS: usize = 64;
/// The kernel takes no longer socket address.
const MAX_ADDRESS_BYTES: u64 = 128;
/// Of `openat2`: what it points at, in the only version that there is.
const OPEN_HOW_BYTES: usize = 24;
/// Enough for a path or two on the stack.
const STACK_BYTES: usize = 256 << 10;

// The same numbers on every architecture.
const EPERM: i32 = 1;
const ENETUNREACH: i32 = 101;
const ECONNREFUSED: i32 = 111;

/// What is heard of a program's denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialEvent {
    /// This, for the first time.
    Denied(Denial),
    /// More than are told.
    More,
    /// Nobody could answer any longer, though the program may have gone on: its calls failed.
    Unanswered,
}

/// Watches the programs under a filter. What they are denied comes out of the receiver, which ends with the last
/// of them.
pub(crate) fn watch(
    listener: OwnedFd,
    rules: DenialRules,
    budget: Arc<WatchBudget>,
) -> io::Result<mpsc::Receiver<DenialEvent>> {
    // Room for all there can be: the watcher never waits for a reader.
    let (tell, told) = mpsc::channel(MAX_DENIALS + 2);
    // To tokio it is the reading end of a pipe: something to wait for.
    let listener = pipe::Receiver::from_owned_fd_unchecked(listener)?;
    tokio::spawn(async move {
        // Many programs never make such a call: the thread is for those that do.
        let over = listener
            .ready(Interest::READABLE)
            .await
            .map_or(true, |ready| ready.is_read_closed());
        if over {
            return;
        }
        if start(listener, rules, budget, tell.clone()).is_err() {
            _ = tell.try_send(DenialEvent::Unanswered);
        }
    });
    Ok(told)
}

/// A thread and no task: a file system that does not answer holds up this run's program alone. Without it the
/// listener closes, and calls fail.
fn start(
    listener: pipe::Receiver,
    rules: DenialRules,
    budget: Arc<WatchBudget>,
    tell: mpsc::Sender<DenialEvent>,
) -> io::Result<()> {
    let listener = listener.into_nonblocking_fd()?;
    let watcher = DenialWatcher {
        listener,
        rules,
        budget,
        tell,
        seen: Vec::new(),
        full: false,
    };
    let thread = std::thread::Builder::new()
        .name("denials".to_owned())
        .stack_size(STACK_BYTES);
    thread.spawn(|| watcher.work()).map(drop)
}

struct DenialWatcher {
    listener: OwnedFd,
    rules: DenialRules,
    budget: Arc<WatchBudget>,
    tell: mpsc::Sender<DenialEvent>,
    seen: Vec<Denial>,
    full: bool,
}

impl DenialWatcher {
    fn work(mut self) {
        // Paths are looked up with the program's own rights, so that no answer tells it what it may not see.
        let able = self
            .rules
            .file_ids
            .is_none_or(|(uid, gid)| seccomp_notify::use_file_ids(uid, gid).is_ok());
        let mut places = able.then(SandboxFiles::default);
        seccomp_notify::enable_sync_wakeup(&self.listener);
        let mut booked = Duration::ZERO;
        loop {
            let spent = time_spent();
            let debt = self.budget.book(spent.saturating_sub(booked));
            booked = spent;
            if !debt.is_zero() {
                seccomp_notify::delay(&self.listener, debt);
            }
            let notification = match seccomp_notify::receive(&self.listener) {
                Ok(Some(notification)) => notification,
                Ok(None) => return,
                Err(_) => return drop(self.tell.try_send(DenialEvent::Unanswered)),
            };
            if self.budget.is_spent() && !self.full {
                self.full = true;
                _ = self.tell.try_send(DenialEvent::More);
            }
            let (answer, denial) = self.decide(&notification, places.as_mut());
            // An answer that arrives is one to the very call whose thread we looked at: it has waited all the
            // time, so its number was nobody else's. One that does not arrive decided nothing.
            match seccomp_notify::answer(&self.listener, &notification, answer) {
                Ok(()) => denial.into_iter().for_each(|denial| self.tell(denial)),
                // Then a root that was found by that number may be another's.
                Err(_) => places = able.then(SandboxFiles::default),
            }
        }
    }

    fn tell(&mut self, denial: Denial) {
        if self.full || self.seen.contains(&denial) {
            return;
        }
        self.full = self.seen.len() == MAX_DENIALS;
        // Nobody may want to know.
        _ = self.tell.try_send(match self.full {
            true => DenialEvent::More,
            false => DenialEvent::Denied(denial.clone()),
        });
        self.seen.push(denial);
    }

    fn decide(
        &self,
        notification: &SeccompNotification,
        places: Option<&mut SandboxFiles>,
    ) -> (NotificationResponse, Option<Denial>) {
        static TABLE: OnceLock<Vec<FilterAction>> = OnceLock::new();
        let table = TABLE.get_or_init(seccomp::table);
        let action = usize::try_from(notification.number)
            .ok()
            .and_then(|number| table.get(number));
        match action.map(|action| action.resolve(&notification.arguments)) {
            Some(FilterAction::Refuse(errno)) => (
                NotificationResponse::Errno(i32::from(*errno)),
                refused(notification),
            ),
            Some(FilterAction::Watch) if self.budget.is_spent() => {
                (NotificationResponse::Continue, None)
            }
            Some(FilterAction::Watch) => match self.denied(notification, places) {
                Some((errno, denial)) => (NotificationResponse::Errno(errno), Some(denial)),
                None => (NotificationResponse::Continue, None),
            },
            // Nothing that our filter tells of.
            _ => (NotificationResponse::Errno(EPERM), None),
        }
    }

    /// The error and what to tell, if the call would certainly be denied.
    fn denied(
        &self,
        notification: &SeccompNotification,
        places: Option<&mut SandboxFiles>,
    ) -> Option<(i32, Denial)> {
        let action = watched_syscalls::operation_of(notification.number)?;
        if action == SyscallOperation::Connect {
            return self.connect(notification);
        }
        let DeniedChange {
            errno,
            target,
            place,
            by_layer,
        } = change(notification, action, places?, &self.rules)?;
        let (what, rule, allow_with) = match by_layer {
            true => self.rules.against_renaming(),
            false => {
                let (rule, allow_with) = self.rules.against(&place, &target)?;
                ("write", rule, allow_with)
            }
        };
        let by_that_rule = match errno {
            // Something is there: denied if it is there only to keep the name from being taken.
            Errno::EXIST | Errno::ISDIR => rule == "protected",
            // It belongs to somebody else: what is granted instead does not.
            Errno::ACCESS => rule == "read_only_root",
            _ => true,
        };
        if !by_that_rule {
            return None;
        }
        let target = target.to_string_lossy().into_owned();
        let denial = Denial {
            what: what.to_owned(),
            target,
            rule: rule.to_owned(),
            allow_with,
        };
        Some((errno.raw_os_error(), denial))
    }

    /// In a network of its own a box has only itself, and what arrives at the host from there.
    fn connect(&self, notification: &SeccompNotification) -> Option<(i32, Denial)> {
        if !self.rules.own_network {
            return None;
        }
        let [socket, address, length, ..] = notification.arguments;
        let length =
            Some(u64::from(length as u32)).filter(|length| *length <= MAX_ADDRESS_BYTES)? as usize;
        let bytes = seccomp_notify::memory(notification.pid, address, length)
            .ok()
            .filter(|it| it.len() == length)?;
        let to = watched_syscalls::destination(&bytes)
            .filter(|to| watched_syscalls::is_outside_sandbox(to.ip()))?;
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let socket = descriptor_of(notification.pid, socket as i32)?;
        if !can_connect(socket.as_fd(), family).ok()? {
            return None;
        }
        let stream = sockopt::socket_type(&socket).ok()? == SocketType::STREAM;
        let (errno, allow_with) = self.rules.against_connection(to, stream)?;
        let (what, rule) = ("connect".to_owned(), "network".to_owned());
        Some((
            errno,
            Denial {
                what,
                target: to.to_string(),
                rule,
                allow_with: allow_with.to_owned(),
            },
        ))
    }
}

/// The CPU time of this thread.
fn time_spent() -> Duration {
    Duration::try_from(rustix::time::clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A descriptor of another thread.
fn descriptor_of(pid: u32, number: i32) -> Option<OwnedFd> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let process: u32 = status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()?;
    // Only a process can be taken hold of, and its threads may have descriptors of their own.
    let there = |pid: u32| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok();
    if process != pid && there(process)? != there(pid)? {
        return None;
    }
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    let process = rustix::process::pidfd_open(process, PidfdFlags::empty()).ok()?;
    rustix::process::pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()
}

/// Whether that is a socket of this family which is free to connect, by no way of its own.
fn can_connect(socket: BorrowedFd<'_>, family: AddressFamily) -> rustix::io::Result<bool> {
    let stream = sockopt::socket_type(socket)? == SocketType::STREAM;
    let taken = stream
        && (sockopt::socket_acceptconn(socket)?
            || rustix::net::getpeername(socket).is_ok_and(|it| it.is_some()));
    Ok(sockopt::socket_domain(socket)? == family
        && !taken
        && !seccomp_notify::has_fixed_device(socket))
}

/// What a call would come to that changes files.
fn change(
    notification: &SeccompNotification,
    action: SyscallOperation,
    places: &mut SandboxFiles,
    rules: &DenialRules,
) -> Option<DeniedChange> {
    let pid = notification.pid;
    places.enter(pid)?;
    let path = |path: PathArgument| -> Option<PathBuf> {
        let folder = path
            .folder
            .map(|argument| notification.arguments[usize::from(argument)] as i32);
        file_changes::absolute(
            pid,
            folder,
            seccomp_notify::path(pid, notification.arguments[usize::from(path.path)]).ok()?,
        )
    };
    match action {
        SyscallOperation::Connect => None,
        SyscallOperation::Open(at, how) => places.open(
            &path(at)?,
            OFlags::from_bits_retain(flags(notification, how)? as u32),
        ),
        SyscallOperation::MakeFolder(at) => places.make_folder(&path(at)?),
        SyscallOperation::MakeLink(content, at) => {
            let content =
                seccomp_notify::path(pid, notification.arguments[usize::from(content)]).ok()?;
            if content.is_empty() {
                None
            } else {
                places.make(&path(at)?)
            }
        }
        SyscallOperation::Make(at) => places.make(&path(at)?),
        SyscallOperation::Link(from, to, how) => places.link(
            &path(from)?,
            &path(to)?,
            AtFlags::from_bits_retain(flags(notification, how)? as u32),
        ),
        SyscallOperation::Remove(at, how) => places.remove(
            &path(at)?,
            AtFlags::from_bits_retain(flags(notification, how)? as u32),
        ),
        SyscallOperation::Rename(from, to, how) => {
            let how = RenameFlags::from_bits_retain(flags(notification, how)? as u32);
            places.rename(&path(from)?, &path(to)?, how, rules.layer.as_ref())
        }
        SyscallOperation::Change(at, how) => places.change(
            &path(at)?,
            AtFlags::from_bits_retain(flags(notification, how)? as u32),
        ),
    }
}

fn flags(notification: &SeccompNotification, flags: FlagsSource) -> Option<i32> {
    match flags {
        FlagsSource::Fixed(flags) => Some(flags),
        FlagsSource::Argument(argument) => {
            Some(notification.arguments[usize::from(argument)] as i32)
        }
        FlagsSource::Pointed(argument) => {
            let [address, size] =
                [argument, argument + 1].map(|it| notification.arguments[usize::from(it)]);
            let bytes = seccomp_notify::memory(notification.pid, address, OPEN_HOW_BYTES)
                .ok()
                .filter(|_| size == OPEN_HOW_BYTES as u64)?;
            plain_open(<&[u8; OPEN_HOW_BYTES]>::try_from(&bytes[..]).ok()?)
        }
    }
}

/// The flags for `openat2`, if it takes them and watch_budget the path up as we do.
fn plain_open(how: &[u8; OPEN_HOW_BYTES]) -> Option<i32> {
    const KNOWN: u64 = 1 << 23;
    let mut words = how
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word));
    let [flags, mode, resolve] = [words.next()?, words.next()?, words.next()?];
    let makes = OFlags::from_bits_retain(flags as u32).intersects(OFlags::CREATE | OFlags::TMPFILE);
    let most = if makes { 0o7777 } else { 0 };
    (flags < KNOWN && mode <= most && resolve == 0).then_some(flags as i32)
}

/// A call that is refused whatever it is about. Its target is told as the program gave it.
fn refused(notification: &SeccompNotification) -> Option<Denial> {
    let what = seccomp::name(notification.number)?;
    let path = |argument: usize| {
        let path = seccomp_notify::path(notification.pid, notification.arguments[argument]);
        path.map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let [first, second, third, ..] = notification.arguments.map(|argument| argument as u32);
    let target = match what {
        "umount2" | "chroot" | "pivot_root" | "acct" | "swapon" | "swapoff" | "chmod" | "open"
        | "creat" | "mknod" | "uselib" => path(0),
        "mount" | "open_tree" | "open_tree_attr" | "mount_setattr" | "fspick" | "quotactl"
        | "name_to_handle_at" | "fchmodat" | "fchmodat2" | "openat" | "mknodat" => path(1),
        "move_mount" => path(3),
        "clone" | "unshare" => format!("flags {first:#x}"),
        "socket" if [2, 10].contains(&first) && [1, 2].contains(&(second & 0xf)) => {
            format!("protocol {third}")
        }
        "socket" if [2, 10].contains(&first) => format!("kind {}", second & 0xf),
        "socket" | "socketpair" => format!("family {first}"),
        "ioctl" => format!("request {second:#x}"),
        "fcntl" => seccomp::fcntl_name(second).unwrap_or_default().to_owned(),
        "setsockopt" => format!("option {third}"),
        "close_range" => format!("flags {third:#x}"),
        "personality" => format!("{first:#x}"),
        "prlimit64" => format!("pid {first}"),
        _ => String::new(),
    };
    let (rule, allow_with) = ("syscall_filter".to_owned(), "nothing".to_owned());
    Some(Denial {
        what: what.to_owned(),
        target,
        rule,
        allow_with,
    })
}
