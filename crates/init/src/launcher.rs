//! The launcher: a small single-threaded process that makes, signals and reaps boxes for one engine.
//!
//! It is pid 1 of a pid namespace of its own: when it dies, the kernel ends every box. It ends itself when
//! its control socket does, that is, with the engine.

use crate::{
    keeper, notify,
    plan::{BoxPlan, ProgramPlan, TemplatePlan},
    program::{self, Filters, Launch},
    protocol::{self, Command, Ended, Report, Request},
    step::{Failure, Step, Steps},
    sys::{self, ChildStack, Forked, Pointers, Reaped},
    template::{self, failure},
};
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    fs::{CWD, Mode, OFlags},
    mount::MountPropagationFlags,
    process::{DumpableBehavior, PidfdFlags, Signal, set_dumpable_behavior, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Entry of the binary: control socket on standard input.
pub fn main() -> ! {
    // Started by the number of a descriptor, which would be its name in the process table otherwise.
    _ = rustix::thread::set_name(c"airlock-init");
    sys::default_signals();
    let Ok(control) = take_control() else { sys::exit(2) };
    let plan = match protocol::receive::<Request>(&control) {
        Ok(Some((Request::Box { .. }, mut files))) if files.len() == 1 => {
            files.pop().map(protocol::read_plan::<TemplatePlan>)
        }
        _ => None,
    };
    let Some(Ok(plan)) = plan else { sys::exit(2) };
    match prepare(&plan).and_then(|(steps, spaces)| greet(&control, steps, spaces)) {
        Ok(mut launcher) => launcher.serve(control),
        Err(failed) => {
            // Nobody to tell means the engine is gone, and so are we.
            _ = protocol::send(&control, &Report::Failed(failed), &[]);
            sys::exit(1)
        }
    }
}

/// Moves the control socket off standard input, so that 0, 1 and 2 are never anything of value.
fn take_control() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
    let null = rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for place in 0..3 {
        sys::put_stream(program::raw(null.as_fd()), place)?;
    }
    // Whoever started the engine may have left files open in it; they are not ours to keep open.
    keeper::keep_only(&[control.as_fd(), null.as_fd()])?;
    Ok(control)
}

/// Handles on namespaces that the launcher goes back to.
struct Spaces {
    /// The host's mounts, for looking paths up.
    host_mounts: OwnedFd,
    /// The launcher's own process table.
    home_pids: OwnedFd,
}

fn prepare(plan: &TemplatePlan) -> Result<(Steps, Spaces), Failure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    rustix::process::setsid().map_err(|error| at("setsid")(error.into()))?;
    leave_host().map_err(at("own namespaces"))?;
    let open = |path| rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let opened = |path| open(path).map_err(|error| at("/proc/self/ns")(error.into()));
    let spaces =
        Spaces { host_mounts: opened(c"/proc/self/ns/mnt")?, home_pids: opened(c"/proc/self/ns/pid")? };
    sys::unshare(libc::CLONE_NEWNS).map_err(at("mount namespace of the template"))?;
    let mut steps = template::build(plan)?;
    steps.add(Step::LauncherNamespaces);
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| at("dumpable")(error.into()))?;
    Ok((steps, spaces))
}

/// Into namespaces of our own. Without the right to make them, a user namespace gives it.
fn leave_host() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if uid != 0 {
        sys::unshare(libc::CLONE_NEWUSER)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))?;
    }
    sys::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID)?;
    // Unmounts of the host still reach us, so that we keep nothing busy; ours reach nobody.
    rustix::mount::mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    match sys::fork_into(0, None)? {
        Forked::Child => Ok(()),
        // Only its child is in the new pid namespace.
        Forked::Parent { .. } => sys::exit(0),
    }
}

fn greet(control: &OwnedFd, steps: Steps, spaces: Spaces) -> Result<Launcher, Failure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    let launcher = Launcher::new(spaces).map_err(at("epoll"))?;
    hello(control, steps).map_err(at("greet"))?;
    Ok(launcher)
}

fn hello(control: &OwnedFd, steps: Steps) -> io::Result<()> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    protocol::send(control, &Report::Hello(steps), &[own.as_fd()])
}

/// A process of a box that we started and will reap.
struct Child {
    pid: i32,
    pidfd: OwnedFd,
}

/// One box.
struct Held {
    channel: OwnedFd,
    keeper: Child,
    /// Where the keeper says that it is ready; gone once it has.
    ready: Option<OwnedFd>,
    /// The namespaces it was born into, in order, once it has handed them out.
    spaces: Vec<Step>,
    namespaces: Vec<(Step, OwnedFd)>,
    user_namespace: Option<OwnedFd>,
    cgroup: Option<OwnedFd>,
    programs: Vec<Child>,
}

/// What an event is about: two bits of kind, then the box, then a pid.
#[derive(Clone, Copy)]
enum About {
    Control,
    Channel(u32),
    Ready(u32),
    Process(u32, i32),
}

impl About {
    fn token(self) -> EventData {
        let (kind, number, pid) = match self {
            About::Control => (0, 0, 0),
            About::Channel(number) => (1, number, 0),
            About::Ready(number) => (2, number, 0),
            About::Process(number, pid) => (3, number, pid as u32),
        };
        EventData::new_u64(kind << 62 | u64::from(number) << 32 | u64::from(pid))
    }

    fn from_token(token: EventData) -> About {
        let bits = token.u64();
        let number = (bits >> 32) as u32 & 0x3fff_ffff;
        match bits >> 62 {
            0 => About::Control,
            1 => About::Channel(number),
            2 => About::Ready(number),
            _ => About::Process(number, bits as u32 as i32),
        }
    }
}

/// Boxes have numbers from 1; 0 stands for the lanes of this launcher.
const LANES: u32 = 0;
const LAST_BOX: u32 = 0x3fff_ffff;

struct Launcher {
    spaces: Spaces,
    events: OwnedFd,
    boxes: HashMap<u32, Held>,
    lanes: Vec<Child>,
    next: u32,
    filters: Filters,
    landlock: u32,
    stack: ChildStack,
}

impl Launcher {
    fn new(spaces: Spaces) -> io::Result<Launcher> {
        Ok(Launcher {
            spaces,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            boxes: HashMap::new(),
            lanes: Vec::new(),
            next: LANES + 1,
            filters: Filters::new()?,
            landlock: sys::landlock_version(),
            stack: ChildStack::new(),
        })
    }

    /// Serves the engine until it is gone.
    fn serve(&mut self, mut control: OwnedFd) -> ! {
        if self.watch(&control, About::Control).is_err() {
            sys::exit(1);
        }
        let mut events = Vec::with_capacity(32);
        loop {
            events.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => sys::exit(1),
            }
            for event in &events {
                match About::from_token(event.data) {
                    About::Control => self.on_control(&mut control),
                    About::Channel(number) => self.on_channel(number),
                    About::Ready(number) => self.on_ready(number),
                    About::Process(number, pid) => self.on_end(number, pid),
                }
            }
        }
    }

    fn watch(&self, fd: impl AsFd, about: About) -> io::Result<()> {
        Ok(epoll::add(&self.events, fd, about.token(), EventFlags::IN)?)
    }

    /// Before closing: whoever holds a duplicate would keep the registration alive.
    fn unwatch(&self, fd: impl AsFd) {
        _ = epoll::delete(&self.events, fd);
    }

    fn on_control(&mut self, control: &mut OwnedFd) {
        let (request, mut files) = match protocol::receive::<Request>(&*control) {
            Ok(Some(message)) => message,
            // The engine is gone, or speaks another language: end, and everything with us.
            Ok(None) | Err(_) => sys::exit(0),
        };
        if files.is_empty() {
            return;
        }
        let first = files.remove(0);
        match request {
            Request::Box { cgroup } => self.on_box(first, files, cgroup),
            Request::Lane => self.on_lane(control, first, &files),
        }
    }

    fn on_box(&mut self, channel: OwnedFd, files: Vec<OwnedFd>, in_cgroup: bool) {
        let mut files = files.into_iter();
        let plan = files.next().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        let cgroup = if in_cgroup { files.next() } else { None };
        let held: Vec<_> = files.collect();
        let made = plan.and_then(protocol::read_plan::<BoxPlan>).and_then(|plan| {
            let (keeper, ready) = self.fork_keeper(&plan, cgroup.as_ref(), &held)?;
            Ok((plan, keeper, ready))
        });
        let (plan, keeper, ready) = match made {
            Ok(made) => made,
            Err(error) => {
                let failed = failure(Step::PidNamespace, "clone into new namespaces")(error);
                // An engine that no longer listens has hung up, which is all we would do here.
                _ = protocol::send(&channel, &Report::Failed(failed), &[]);
                return;
            }
        };
        let number = self.next;
        self.next = if number == LAST_BOX { LANES + 1 } else { number + 1 };
        let watched = self
            .watch(&channel, About::Channel(number))
            .and_then(|()| self.watch(&ready, About::Ready(number)))
            .and_then(|()| self.watch(&keeper.pidfd, About::Process(number, keeper.pid)));
        let held = Held {
            channel,
            keeper,
            ready: Some(ready),
            spaces: keeper::namespaces(&plan).map(|(step, _)| step).collect(),
            namespaces: Vec::new(),
            user_namespace: None,
            cgroup,
            programs: Vec::new(),
        };
        self.boxes.insert(number, held);
        if watched.is_err() {
            self.destroy(number);
        }
    }

    fn fork_keeper(
        &self,
        plan: &BoxPlan,
        cgroup: Option<&OwnedFd>,
        held: &[OwnedFd],
    ) -> io::Result<(Child, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        let namespaces = keeper::namespaces(plan).fold(0, |all, (_, flag)| all | flag);
        match sys::fork_into(namespaces, cgroup.map(AsFd::as_fd))? {
            Forked::Child => {
                let host = self.spaces.host_mounts.as_fd();
                let held: Vec<_> = held.iter().map(AsFd::as_fd).collect();
                match keeper::keep_only(&[&held[..], &[host, theirs.as_fd()]].concat()) {
                    Ok(()) => keeper::live(plan, host, theirs.as_fd(), &held),
                    Err(_) => sys::exit(1),
                }
            }
            Forked::Parent { pid, pidfd } => Ok((Child { pid, pidfd }, ours)),
        }
    }

    /// A copy of us that sits in version 1 cgroups: what it forks is born there, which costs nothing,
    /// while moving a process costs milliseconds.
    fn on_lane(&mut self, control: &mut OwnedFd, lane: OwnedFd, groups: &[OwnedFd]) {
        match sys::fork_into(0, None) {
            Ok(Forked::Child) => {
                if let Err(failed) = self.become_lane(&lane, groups) {
                    _ = protocol::send(&lane, &Report::Failed(failed), &[]);
                    sys::exit(1);
                }
                *control = lane;
            }
            Ok(Forked::Parent { pid, pidfd }) => {
                if self.watch(&pidfd, About::Process(LANES, pid)).is_ok() {
                    self.lanes.push(Child { pid, pidfd });
                }
            }
            Err(error) => {
                let failed = failure(Step::LauncherNamespaces, "fork a lane")(error);
                _ = protocol::send(&lane, &Report::Failed(failed), &[]);
            }
        }
    }

    fn become_lane(&mut self, control: &OwnedFd, groups: &[OwnedFd]) -> Result<(), Failure> {
        let at = |what: &str| failure(Step::LauncherNamespaces, what);
        let system = |what: &'static str| move |error: rustix::io::Errno| at(what)(error.into());
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(system("death signal"))?;
        for group in groups {
            rustix::io::write(group, b"0").map_err(system("cgroup.procs"))?;
        }
        // Of the launcher's boxes nothing stays open here. They are not taken off the epoll, which is shared with
        // the launcher; we get one of our own.
        self.boxes.clear();
        self.lanes.clear();
        self.events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        // What our programs hand over must not be taken by the launcher, nor by another lane.
        self.filters = Filters::new().map_err(at("sockets"))?;
        self.watch(control, About::Control).map_err(at("epoll"))?;
        hello(control, Steps::default()).map_err(at("greet"))
    }

    fn on_channel(&mut self, number: u32) {
        let Some(held) = self.boxes.get_mut(&number) else { return };
        match protocol::receive::<Command>(&held.channel) {
            Ok(Some((Command::Exec, files))) => self.on_exec(number, files),
            Ok(Some((Command::Signal(signal), _))) => held.signal(signal),
            Ok(Some((Command::Destroy, _)) | None) | Err(_) => self.destroy(number),
        }
    }

    fn destroy(&mut self, number: u32) {
        let Some(held) = self.boxes.get(&number) else { return };
        self.unwatch(&held.channel);
        // The end of the keeper is the end of its pid namespace. Already ended is as good.
        _ = rustix::process::pidfd_send_signal(&held.keeper.pidfd, Signal::KILL);
        for program in &held.programs {
            _ = rustix::process::pidfd_send_signal(&program.pidfd, Signal::KILL);
        }
    }

    fn on_ready(&mut self, number: u32) {
        let Some(held) = self.boxes.get_mut(&number) else { return };
        let Some(ready) = held.ready.take() else { return };
        let message = protocol::receive::<Report>(&ready);
        _ = epoll::delete(&self.events, &ready);
        let (report, handles) = match message {
            Ok(Some(message)) => message,
            // Killed while furnishing; its end is told when it is reaped.
            Ok(None) | Err(_) => return,
        };
        let mut handles = handles.into_iter();
        if matches!(report, Report::Ready { .. }) {
            held.namespaces =
                held.spaces.iter().copied().zip(handles.by_ref().take(held.spaces.len())).collect();
            held.user_namespace = handles.next();
        }
        let handles: Vec<_> = handles.collect();
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        if protocol::send(&held.channel, &report, &handles).is_err() {
            self.destroy(number);
        }
    }

    fn on_exec(&mut self, number: u32, files: Vec<OwnedFd>) {
        let started = self.exec(number, files);
        let Some(held) = self.boxes.get_mut(&number) else { return };
        let sent = match started {
            Ok((program, steps, listener)) => {
                let handles = [program.pidfd.as_fd()].into_iter().chain(listener.as_ref().map(AsFd::as_fd));
                let handles: Vec<_> = handles.collect();
                let sent = protocol::send(&held.channel, &Report::Started(steps), &handles);
                held.programs.push(program);
                sent
            }
            Err(failed) => protocol::send(&held.channel, &Report::Failed(failed), &[]),
        };
        if sent.is_err() {
            self.destroy(number);
        }
    }

    fn exec(&mut self, number: u32, files: Vec<OwnedFd>) -> Result<(Child, Steps, Option<OwnedFd>), Failure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let [plan, input, output, error] = <[OwnedFd; 4]>::try_from(files)
            .map_err(|_| at("handles")(io::Error::from_raw_os_error(libc::EBADF)))?;
        let plan: ProgramPlan = protocol::read_plan(plan).map_err(at("plan"))?;
        let held =
            self.boxes.get(&number).ok_or_else(|| at("box")(io::Error::from_raw_os_error(libc::ESRCH)))?;
        let user_namespace = held.user_namespace.as_ref();
        let user_namespace =
            user_namespace.ok_or_else(|| at("not ready")(io::Error::from_raw_os_error(libc::EAGAIN)))?;
        let joined = held.namespaces.iter().filter(|(step, _)| *step != Step::PidNamespace);
        let joined: Vec<_> = joined.map(|(_, namespace)| program::raw(namespace.as_fd())).collect();
        let mut launch = Launch {
            namespaces: &joined,
            user_namespace: program::raw(user_namespace.as_fd()),
            streams: [input.as_fd(), output.as_fd(), error.as_fd()].map(program::raw),
            filters: &self.filters,
            landlock: self.landlock,
            argv: Pointers::to(&plan.argv),
            env: Pointers::to(&plan.env),
            plan: &plan,
            done: Steps::default(),
            failed: None,
            reached_exec: false,
        };
        let (pid, pidfd) = birth(&self.spaces, held, &mut self.stack, &mut launch).map_err(at("clone"))?;
        let listener = notify::taken_over(self.filters.hand_over.1.as_fd());
        let (failed, reached, done) = (launch.failed, launch.reached_exec, launch.done);
        if failed.is_some() || !reached {
            _ = sys::reap(pid, true);
            let (step, errno) = failed.unwrap_or((Step::JoinNamespaces, libc::EINTR));
            return Err(Failure { step, errno, detail: plan.argv[0].to_string_lossy().into_owned() });
        }
        self.watch(&pidfd, About::Process(number, pid)).map_err(at("epoll"))?;
        Ok((Child { pid, pidfd }, done, listener))
    }

    fn on_end(&mut self, number: u32, pid: i32) {
        let Ok(Some((_, reaped))) = sys::reap(pid, false) else { return };
        if number == LANES {
            self.lanes.retain(|lane| {
                let gone = lane.pid == pid;
                if gone {
                    _ = epoll::delete(&self.events, &lane.pidfd);
                }
                !gone
            });
            return;
        }
        let Some(held) = self.boxes.get_mut(&number) else { return };
        if held.keeper.pid == pid {
            self.on_gone(number, reaped);
            return;
        }
        if let Some(place) = held.programs.iter().position(|program| program.pid == pid) {
            let program = held.programs.swap_remove(place);
            _ = epoll::delete(&self.events, &program.pidfd);
            if protocol::send(&held.channel, &Report::Ended(reaped.into()), &[]).is_err() {
                self.destroy(number);
            }
        }
    }

    fn on_gone(&mut self, number: u32, reaped: Reaped) {
        let Some(held) = self.boxes.remove(&number) else { return };
        self.unwatch(&held.keeper.pidfd);
        self.unwatch(&held.channel);
        if let Some(ready) = &held.ready {
            self.unwatch(ready);
        }
        for program in &held.programs {
            self.unwatch(&program.pidfd);
            // Killed with its namespace: there and waiting to be reaped.
            _ = sys::reap(program.pid, true);
        }
        // The engine may have hung up already: that is how it asks for this.
        _ = protocol::send(&held.channel, &Report::Gone(reaped.into()), &[]);
    }
}

/// The child is born into the pid namespace of the box and, on version 2, into its cgroup.
fn birth(
    spaces: &Spaces,
    held: &Held,
    stack: &mut ChildStack,
    launch: &mut Launch<'_>,
) -> io::Result<(i32, OwnedFd)> {
    let pids = held.namespaces.iter().find(|(step, _)| *step == Step::PidNamespace);
    let enter =
        |namespace: BorrowedFd<'_>| move_into_link_name_space(namespace, Some(LinkNameSpaceType::ProcessID));
    if let Some((_, pids)) = pids {
        enter(pids.as_fd())?;
    }
    let cgroup: Option<BorrowedFd<'_>> = held.cgroup.as_ref().map(AsFd::as_fd);
    let born = sys::vfork_onto(stack, cgroup, program::child, launch);
    if pids.is_some() && enter(spaces.home_pids.as_fd()).is_err() {
        // The next box would be born in this one.
        sys::exit(1);
    }
    born
}

impl Held {
    fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        for program in &self.programs {
            // Already ended is as good.
            _ = rustix::process::pidfd_send_signal(&program.pidfd, signal);
        }
    }
}

impl From<Reaped> for Ended {
    fn from(reaped: Reaped) -> Ended {
        Ended { status: reaped.status, cpu_us: reaped.cpu_us, peak_bytes: reaped.peak_bytes }
    }
}
