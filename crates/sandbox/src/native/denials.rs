//! Reports what a program was denied: receives the notifications of refused and of watched system
//! calls, responds to them, and reports the denials.
//!
//! ```text
//! program ── call ─▶ seccomp ── refused ─▶ this thread: error, reported
//!                        └───── watched ─▶ this thread ─┬─ certainly denied: error, reported
//!                                                       └─ else: the kernel decides
//! ```
//!
//! A report is true, because the call was denied here: it ended with our response. Enforcement does
//! not depend on it: a call that is *continued* meets the mounts, the network namespace and
//! Landlock as if nothing had examined it. So it is harmless that a program can change the examined
//! memory, or the target of a path, before or after: it denies itself something, or gets the
//! kernel's answer. In doubt the kernel decides and nothing is reported. Without this thread every
//! such call fails (ENOSYS).

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

/// Different denials that are reported. A program could produce any number of them.
pub const MAX_DENIALS: usize = 64;
/// The kernel takes no longer socket address.
const MAX_ADDRESS_BYTES: u64 = 128;
/// The size of the struct of `openat2`, in its only version.
const OPEN_HOW_BYTES: usize = 24;
/// Enough for a path or two on the stack.
const STACK_BYTES: usize = 256 << 10;

// The same numbers on every architecture.
const EPERM: i32 = 1;
const ENETUNREACH: i32 = 101;
const ECONNREFUSED: i32 = 111;

/// A report about a program's denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialEvent {
    /// A denial, for the first time.
    Denied(Denial),
    /// There are more denials than are reported.
    More,
    /// No process responds any more, though the program may continue: its calls failed.
    Unanswered,
}

/// Watches the programs under a seccomp filter. The receiver gets their denials and ends with the
/// last program.
pub(crate) fn watch(
    listener: OwnedFd,
    rules: DenialRules,
    budget: Arc<WatchBudget>,
) -> io::Result<mpsc::Receiver<DenialEvent>> {
    // Room for all reports: the watcher never waits for a reader.
    let (tell, told) = mpsc::channel(MAX_DENIALS + 2);
    // To tokio it is the reading end of a pipe: something to wait for.
    let listener = pipe::Receiver::from_owned_fd_unchecked(listener)?;
    tokio::spawn(async move {
        // Many programs never make such a call: the thread is only for those that do.
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

/// A thread and no task: a file system that does not answer blocks this run's program alone.
/// Without it the listener is closed, and calls fail.
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
        // Paths are resolved with the program's rights, so that no response tells it what it may
        // not see.
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
            // A response that arrives is for the very call that was examined: its thread waited all
            // the time, so its pid was not reused. One that does not arrive decided nothing.
            match seccomp_notify::answer(&self.listener, &notification, answer) {
                Ok(()) => denial.into_iter().for_each(|denial| self.tell(denial)),
                // The root found by that pid may be another process's.
                Err(_) => places = able.then(SandboxFiles::default),
            }
        }
    }

    fn tell(&mut self, denial: Denial) {
        if self.full || self.seen.contains(&denial) {
            return;
        }
        self.full = self.seen.len() == MAX_DENIALS;
        // The receiver may be gone.
        _ = self.tell.try_send(if self.full {
            DenialEvent::More
        } else {
            DenialEvent::Denied(denial.clone())
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
            // No call that our filter reports.
            _ => (NotificationResponse::Errno(EPERM), None),
        }
    }

    /// The errno and the denial, if the call would certainly be denied.
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
        let (what, rule, allow_with) = if by_layer {
            self.rules.against_renaming()
        } else {
            let (rule, allow_with) = self.rules.against(&place, &target)?;
            ("write", rule, allow_with)
        };
        let by_that_rule = match errno {
            // A file exists: denied only if it is a cover that keeps the name from being used.
            Errno::EXIST | Errno::ISDIR => rule == "protected",
            // The file belongs to another user: granting the path would not help.
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

    /// In a network namespace of its own a sandbox reaches only itself, and what is intercepted.
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
        let what = "connect".to_owned();
        let rule = "network".to_owned();
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
    // A pidfd is of a process, and its threads may have file tables of their own.
    let there = |pid: u32| std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok();
    if process != pid && there(process)? != there(pid)? {
        return None;
    }
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    let process = rustix::process::pidfd_open(process, PidfdFlags::empty()).ok()?;
    rustix::process::pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()
}

/// Whether it is an unconnected socket of this family without options that choose a route.
fn can_connect(socket: BorrowedFd<'_>, family: AddressFamily) -> rustix::io::Result<bool> {
    let stream = sockopt::socket_type(socket)? == SocketType::STREAM;
    let taken = stream
        && (sockopt::socket_acceptconn(socket)?
            || rustix::net::getpeername(socket).is_ok_and(|it| it.is_some()));
    Ok(sockopt::socket_domain(socket)? == family
        && !taken
        && !seccomp_notify::has_fixed_device(socket))
}

/// The denial of a call that changes files.
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

/// The flags for `openat2`, if it accepts them and resolves the path as we do.
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

/// The denial of a call that is refused with any arguments. Its target is reported as the program
/// gave it.
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
    let rule = "syscall_filter".to_owned();
    let allow_with = "nothing".to_owned();
    Some(Denial {
        what: what.to_owned(),
        target,
        rule,
        allow_with,
    })
}
