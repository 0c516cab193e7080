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

mod place;
mod rules;

pub(super) use rules::Rules;

use init::{
    filter::{self, Verdict},
    notify::{self, Answer, Notice},
    watch::{self, Action, Flags, PathArgument},
};
use place::{Places, Refusal};
use rustix::{
    fs::{AtFlags, OFlags},
    net::{AddressFamily, sockopt},
    process::{Pid, PidfdFlags, PidfdGetfdFlags},
};
use spec::Denial;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};
use tokio::{io::Interest, net::unix::pipe, sync::mpsc};

/// How many different denials are told. A program could make any number of them.
pub const MOST_DENIALS: usize = 64;
/// Longer than any socket address.
const LONGEST_ADDRESS: u64 = 128;
/// Enough for a path or two on the stack.
const STACK: usize = 256 << 10;

// The same numbers on every architecture.
const EPERM: i32 = 1;
const ENETUNREACH: i32 = 101;

/// What is heard of a program's denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// This, for the first time.
    Denied(Denial),
    /// More than are told.
    More,
}

/// Watches the programs under a filter. What they are denied comes out of the receiver, which ends with the last
/// of them.
pub(super) fn watch(listener: OwnedFd, rules: Rules) -> io::Result<mpsc::Receiver<Told>> {
    // Room for all there can be: the watcher never waits for a reader.
    let (tell, told) = mpsc::channel(MOST_DENIALS + 1);
    // To tokio it is the reading end of a pipe: something to wait for.
    let listener = pipe::Receiver::from_owned_fd_unchecked(listener)?;
    tokio::spawn(async move {
        // Many programs never make such a call: the thread is for those that do.
        let over = listener.ready(Interest::READABLE).await.map_or(true, |ready| ready.is_read_closed());
        let Ok(listener) = listener.into_nonblocking_fd() else { return };
        if over {
            return;
        }
        let watcher = Watcher { listener, rules, tell, seen: Vec::new(), full: false };
        // A thread and no task: a file system that does not answer holds up this run's program alone. Without
        // it the listener closes, and calls fail.
        _ = std::thread::Builder::new().name("denials".to_owned()).stack_size(STACK).spawn(|| watcher.work());
    });
    Ok(told)
}

struct Watcher {
    listener: OwnedFd,
    rules: Rules,
    tell: mpsc::Sender<Told>,
    seen: Vec<Denial>,
    full: bool,
}

impl Watcher {
    fn work(mut self) {
        // Paths are looked up with the program's own rights, so that no answer tells it what it may not see.
        let able = self.rules.file_ids.is_none_or(|(uid, gid)| notify::look_at_files_as(uid, gid).is_ok());
        let mut places = able.then(Places::default);
        notify::answer_in_turn(&self.listener);
        while let Ok(Some(notice)) = notify::next(&self.listener) {
            let (answer, denial) = self.decide(&notice, places.as_mut());
            // An answer that arrives is one to the very call whose thread we looked at: it has waited all the
            // time, so its number was nobody else's. One that does not arrive decided nothing.
            if notify::answer(&self.listener, &notice, answer).is_ok() {
                denial.into_iter().for_each(|denial| self.tell(denial));
            }
        }
    }

    fn tell(&mut self, denial: Denial) {
        if self.full || self.seen.contains(&denial) {
            return;
        }
        self.full = self.seen.len() == MOST_DENIALS;
        // Nobody may want to know.
        _ = self.tell.try_send(match self.full {
            true => Told::More,
            false => Told::Denied(denial.clone()),
        });
        self.seen.push(denial);
    }

    fn decide(&self, notice: &Notice, places: Option<&mut Places>) -> (Answer, Option<Denial>) {
        static TABLE: OnceLock<Vec<Verdict>> = OnceLock::new();
        let table = TABLE.get_or_init(filter::table);
        let verdict = usize::try_from(notice.number).ok().and_then(|number| table.get(number));
        match verdict.map(|verdict| verdict.given(&notice.arguments)) {
            Some(Verdict::Refuse(errno)) => (Answer::Errno(i32::from(*errno)), refused(notice)),
            Some(Verdict::Watch) => match self.denied(notice, places) {
                Some((errno, denial)) => (Answer::Errno(errno), Some(denial)),
                None => (Answer::Continue, None),
            },
            // Nothing that our filter tells of.
            _ => (Answer::Errno(EPERM), None),
        }
    }

    /// The error and what to tell, if the call would certainly be denied.
    fn denied(&self, notice: &Notice, places: Option<&mut Places>) -> Option<(i32, Denial)> {
        let action = watch::of(notice.number)?;
        if action == Action::Connect {
            return self.connect(notice);
        }
        let Refusal { errno, target, place } = change(notice, action, places?)?;
        let (rule, allow_with) = self.rules.against(&place, &target)?;
        let target = target.to_string_lossy().into_owned();
        let denial = Denial { what: "write".to_owned(), target, rule: rule.to_owned(), allow_with };
        Some((errno.raw_os_error(), denial))
    }

    /// In a network of its own a box has only itself; anything else the kernel would call unreachable.
    fn connect(&self, notice: &Notice) -> Option<(i32, Denial)> {
        if !self.rules.own_network {
            return None;
        }
        let [socket, address, length, ..] = notice.arguments;
        let length = u64::from(length as u32).min(LONGEST_ADDRESS) as usize;
        let to = watch::destination(&notify::memory(notice.pid, address, length).ok()?)?;
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        if watch::is_loopback(to.ip()) || family_of(notice.pid, socket as i32)? != family {
            return None;
        }
        let denial = Denial {
            what: "connect".to_owned(),
            target: to.to_string(),
            rule: "network".to_owned(),
            // The one mode of this build that leads out.
            allow_with: "--network host".to_owned(),
        };
        Some((ENETUNREACH, denial))
    }
}

/// The family of a socket of another process; nothing if it is none.
fn family_of(pid: u32, socket: i32) -> Option<AddressFamily> {
    // A thread shares its descriptors with its process, and only that can be taken hold of.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    let process = rustix::process::pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()?;
    let socket = rustix::process::pidfd_getfd(&process, socket, PidfdGetfdFlags::empty()).ok()?;
    sockopt::socket_domain(socket.as_fd()).ok()
}

/// What a call would come to that changes files.
fn change(notice: &Notice, action: Action, places: &mut Places) -> Option<Refusal> {
    let pid = notice.pid;
    places.enter(pid)?;
    let path = |path: PathArgument| -> Option<PathBuf> {
        let folder = path.folder.map(|argument| notice.arguments[usize::from(argument)] as i32);
        place::absolute(pid, folder, notify::path(pid, notice.arguments[usize::from(path.path)]).ok()?)
    };
    match action {
        Action::Connect => None,
        Action::Open(at, how) => {
            places.open(&path(at)?, OFlags::from_bits_retain(flags(notice, how)? as u32))
        }
        Action::Make(at) => places.make(&path(at)?),
        Action::Link(from, to) => places.link(&path(from)?, &path(to)?),
        Action::Remove(at, how) => {
            places.remove(&path(at)?, AtFlags::from_bits_retain(flags(notice, how)? as u32))
        }
        Action::Rename(from, to) => places.rename(&path(from)?, &path(to)?),
        Action::Change(at, how) => {
            places.change(&path(at)?, AtFlags::from_bits_retain(flags(notice, how)? as u32))
        }
    }
}

fn flags(notice: &Notice, flags: Flags) -> Option<i32> {
    match flags {
        Flags::Fixed(flags) => Some(flags),
        Flags::Argument(argument) => Some(notice.arguments[usize::from(argument)] as i32),
        Flags::Pointed(argument) => {
            // Flags, mode, and how to look the path up: in another way than we do, if it says so.
            let bytes = notify::memory(notice.pid, notice.arguments[usize::from(argument)], 24).ok()?;
            let (flags, rest) = bytes.split_first_chunk()?;
            (rest.get(8..)? == [0; 8]).then(|| u64::from_ne_bytes(*flags) as i32)
        }
    }
}

/// A call that is refused whatever it is about. Its target is told as the program gave it.
fn refused(notice: &Notice) -> Option<Denial> {
    let what = filter::name(notice.number)?;
    let path = |argument: usize| {
        let path = notify::path(notice.pid, notice.arguments[argument]);
        path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let [first, second, third, ..] = notice.arguments.map(|argument| argument as u32);
    let target = match what {
        "umount2" | "chroot" | "pivot_root" | "acct" | "swapon" | "swapoff" | "chmod" | "uselib" => path(0),
        "mount" | "open_tree" | "open_tree_attr" | "mount_setattr" | "fspick" | "quotactl"
        | "name_to_handle_at" | "fchmodat" | "fchmodat2" => path(1),
        "move_mount" => path(3),
        "clone" | "unshare" => format!("flags {first:#x}"),
        "socket" if [2, 10].contains(&first) => format!("protocol {third}"),
        "socket" | "socketpair" => format!("family {first}"),
        "ioctl" => format!("request {second:#x}"),
        "fcntl" => "F_SETLEASE".to_owned(),
        "personality" => format!("{first:#x}"),
        "prlimit64" => format!("pid {first}"),
        _ => String::new(),
    };
    let (rule, allow_with) = ("syscall_filter".to_owned(), "nothing".to_owned());
    Some(Denial { what: what.to_owned(), target, rule, allow_with })
}
