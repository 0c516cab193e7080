//! The launcher: a small single-threaded process that makes, signals and reaps boxes for one engine.
//!
//! It is pid 1 of a pid namespace of its own: when it dies, the kernel ends every box. It ends itself when
//! its control socket does, that is, with the engine.

use crate::{
    container,
    further::Further,
    keeper::{self, Birth, Mask},
    notify,
    plan::{BoxPlan, Ids, ProgramPlan, RemountPlan, StockPlan, TemplatePlan},
    program::{self, Filters, Launch, Start},
    protocol::{self, Brief, Command, Ended, Report, Request},
    remount, standby,
    step::{Failure, Step, Steps},
    steward::{self, Namespaces, Steward},
    sys::{self, ChildStack, Forked, Reaped},
    template::{self, failure},
    terminal, wire_struct,
};
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    fs::{CWD, Mode, OFlags},
    mount::MountPropagationFlags,
    process::{
        DumpableBehavior, PidfdFlags, Signal, set_dumpable_behavior,
        set_parent_process_death_signal,
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    collections::HashMap,
    ffi::CStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
};

/// Entry of the binary: control socket on standard input.
pub fn main() -> ! {
    // Started by the number of a descriptor, which would be its name in the process table otherwise.
    _ = rustix::thread::set_name(c"airlock-init");
    sys::default_signals();
    // Whoever started the engine may have had a narrow one, and a root that only we can enter is of no use to a box.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Ok(control) = take_control() else {
        sys::exit(2)
    };
    let briefed = match protocol::receive::<Request>(&control) {
        Ok(Some((Request::Template { plan, first }, mut files))) => {
            Some((plan.read(&mut files), first))
        }
        Ok(Some((Request::Network(plan), files))) => container::furnish(&control, &plan, files),
        _ => None,
    };
    let Some((Ok(plan), first)) = briefed else {
        sys::exit(2)
    };
    match prepare(&plan, first)
        .and_then(|(steps, spaces, first)| greet(&control, steps, spaces, first))
    {
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
    let null = rustix::fs::openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
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

/// The socket on which the first box's namespaces will come.
type First = Option<OwnedFd>;

fn prepare(plan: &TemplatePlan, first: Option<Ids>) -> Result<(Steps, Spaces, First), Failure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    rustix::process::setsid().map_err(|error| at("setsid")(error.into()))?;
    let first = leave_host(first).map_err(at("own namespaces"))?;
    let open =
        |path| rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let opened = |path| open(path).map_err(|error| at("/proc/self/ns")(error.into()));
    let spaces = Spaces {
        host_mounts: opened(c"/proc/self/ns/mnt")?,
        home_pids: opened(c"/proc/self/ns/pid")?,
    };
    sys::unshare(libc::CLONE_NEWNS).map_err(at("mount namespace of the template"))?;
    let mut steps = template::build(plan)?;
    steps.add(Step::LauncherNamespaces);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| at("dumpable")(error.into()))?;
    Ok((steps, spaces, first))
}

/// Into namespaces of our own. Without the right to make them, a user namespace gives it.
fn leave_host(first: Option<Ids>) -> io::Result<First> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if uid != 0 {
        sys::unshare(libc::CLONE_NEWUSER)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))?;
    }
    sys::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID)?;
    // Unmounts of the host still reach us, so that we keep nothing busy; ours reach nobody.
    rustix::mount::mount_change(
        c"/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    let sockets = first
        .map(|ids| protocol::pair().map(|pair| (ids, pair)))
        .transpose()?;
    match sys::fork_into(0, None)? {
        Forked::Child => Ok(sockets.map(|(_, (ours, _))| ours)),
        // Only its child is in the new pid namespace. Before we end there is something to do beside it.
        Forked::Parent { .. } => {
            if let Some((ids, (ours, theirs))) = sockets {
                drop(ours);
                // Without them the box makes its own, and says what fails.
                _ = steward::make_first(ids, &theirs);
            }
            sys::exit(0)
        }
    }
}

fn greet(
    control: &OwnedFd,
    steps: Steps,
    spaces: Spaces,
    first: First,
) -> Result<Launcher, Failure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    let launcher = Launcher::new(spaces, first).map_err(at("epoll"))?;
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
    /// Whether the box ends with it.
    last: bool,
}

impl Child {
    /// For one whose end nobody waits for.
    fn kill_and_reap(&self) {
        _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        _ = sys::reap(self.pid, true);
    }
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
    /// Programs that it outlives.
    further: Vec<Further>,
    /// Processes that put mounts back.
    remounts: Vec<Child>,
    /// Where it has its terminals, if it stays.
    terminals: Option<OwnedFd>,
    stays: bool,
    /// The kernel's list of the keeper's children, where it has one.
    children: Option<File>,
    /// Made ahead of its program.
    ahead: bool,
}

/// What a lane tells the launcher of a box, with its handles: channel, keeper, program, users, namespaces, cgroup.
struct HandedOver {
    keeper: i32,
    program: i32,
    last: bool,
    namespaces: Vec<u8>,
}

wire_struct!(HandedOver {
    keeper,
    program,
    last,
    namespaces
});

impl HandedOver {
    fn adopt(self, handles: Vec<OwnedFd>) -> Option<Held> {
        let mut handles = handles.into_iter();
        let mut next = || handles.next();
        let channel = next()?;
        let keeper = Child {
            pid: self.keeper,
            pidfd: next()?,
            last: false,
        };
        let program = Child {
            pid: self.program,
            pidfd: next()?,
            last: self.last,
        };
        let user_namespace = Some(next()?);
        let steps = self.namespaces.into_iter().map(Step::from_number);
        let namespaces = steps
            .map(|step| Some((step?, next()?)))
            .collect::<Option<_>>()?;
        Some(Held {
            channel,
            children: children(keeper.pid),
            keeper,
            ready: None,
            spaces: Vec::new(),
            namespaces,
            user_namespace,
            cgroup: next(),
            programs: vec![program],
            further: Vec::new(),
            remounts: Vec::new(),
            terminals: None,
            stays: false,
            ahead: true,
        })
    }
}

impl Held {
    /// Tells the engine of a program that has started, and watches it. An error is the end of the box.
    fn started(
        &mut self,
        events: &OwnedFd,
        number: u32,
        program: Child,
        steps: Steps,
        listener: Option<OwnedFd>,
    ) -> io::Result<()> {
        let handles = [program.pidfd.as_fd()]
            .into_iter()
            .chain(listener.as_ref().map(AsFd::as_fd));
        let handles: Vec<_> = handles.collect();
        let sent = protocol::send(&self.channel, &Report::Started(steps), &handles);
        match watch(events, &program.pidfd, About::Process(number, program.pid)) {
            Ok(()) => {
                self.programs.push(program);
                sent
            }
            // It has started, and is said to have. Nobody would learn of its end, so it ends with its box.
            Err(error) => {
                program.kill_and_reap();
                sent.and(Err(error))
            }
        }
    }
}

fn children(pid: i32) -> Option<File> {
    File::open(format!("/proc/{pid}/task/{pid}/children")).ok()
}

/// What an event is about: two bits of kind, then the box, then a pid.
#[derive(Clone, Copy)]
enum About {
    Control,
    Steward,
    /// A lane, by its pid, has something to hand over.
    Lane(i32),
    Channel(u32),
    /// The own channel of a further program, by its pid.
    Program(u32, i32),
    Ready(u32),
    Process(u32, i32),
}

impl About {
    fn token(self) -> EventData {
        let (kind, number, pid) = match self {
            About::Control => (0, 0, 0),
            About::Steward => (0, 1, 0),
            About::Lane(pid) => (0, 2, pid as u32),
            About::Channel(number) => (1, number, 0),
            About::Program(number, pid) => (1, number, pid as u32),
            About::Ready(number) => (2, number, 0),
            About::Process(number, pid) => (3, number, pid as u32),
        };
        EventData::new_u64(kind << 62 | u64::from(number) << 32 | u64::from(pid))
    }

    fn from_token(token: EventData) -> About {
        let bits = token.u64();
        let number = (bits >> 32) as u32 & 0x3fff_ffff;
        match bits >> 62 {
            0 if number == 0 => About::Control,
            0 if number == 1 => About::Steward,
            0 => About::Lane(bits as u32 as i32),
            1 if bits as u32 == 0 => About::Channel(number),
            1 => About::Program(number, bits as u32 as i32),
            2 => About::Ready(number),
            _ => About::Process(number, bits as u32 as i32),
        }
    }
}

/// Boxes have numbers from 1; 0 stands for the helpers of this launcher.
const HELPERS: u32 = 0;
const LAST_BOX: u32 = 0x3fff_ffff;

fn watch(events: &OwnedFd, fd: impl AsFd, about: About) -> io::Result<()> {
    Ok(epoll::add(events, fd, about.token(), EventFlags::IN)?)
}

struct Launcher {
    spaces: Spaces,
    events: OwnedFd,
    boxes: HashMap<u32, Held>,
    /// Lanes, and the steward.
    helpers: Vec<Child>,
    /// Where lanes hand over, by their pids.
    lanes: HashMap<i32, OwnedFd>,
    /// Where we do, if we are a lane.
    home: Option<OwnedFd>,
    steward: Option<Steward>,
    /// Where the namespaces of the first box come from.
    first: First,
    /// What a lane was given of the stock.
    share: Option<Namespaces>,
    next: u32,
    filters: Filters,
    masks: Vec<(&'static CStr, Mask)>,
    landlock: u32,
    stack: ChildStack,
}

impl Launcher {
    fn new(spaces: Spaces, first: First) -> io::Result<Launcher> {
        Ok(Launcher {
            spaces,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            boxes: HashMap::new(),
            helpers: Vec::new(),
            lanes: HashMap::new(),
            home: None,
            steward: None,
            first,
            share: None,
            next: HELPERS + 1,
            filters: Filters::new()?,
            masks: keeper::masks(),
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
            match epoll::wait(
                &self.events,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => sys::exit(1),
            }
            for event in &events {
                match About::from_token(event.data) {
                    About::Control => self.on_control(&mut control),
                    About::Steward => self.on_steward(),
                    About::Lane(pid) => self.on_hand_over(pid),
                    About::Channel(number) => self.on_channel(number),
                    About::Program(number, pid) => self.on_program(number, pid),
                    About::Ready(number) => self.on_ready(number),
                    About::Process(number, pid) => self.on_end(number, pid),
                }
            }
        }
    }

    fn watch(&self, fd: impl AsFd, about: About) -> io::Result<()> {
        watch(&self.events, fd, about)
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
        match request {
            Request::Box { plan, cgroup } => {
                let plan = plan.read(&mut files);
                if !files.is_empty() {
                    self.on_box(files.remove(0), plan, files, cgroup);
                }
            }
            Request::Lane if !files.is_empty() => self.on_lane(control, files.remove(0), &files),
            Request::Stock(plan) => self.on_stock(plan),
            Request::Template { .. } | Request::Lane | Request::Network(_) => {}
        }
    }

    /// Without a steward every box makes its own namespaces, which is only slower.
    fn on_stock(&mut self, plan: StockPlan) {
        let Ok((steward, pid, pidfd)) = Steward::start(plan) else {
            return;
        };
        let watched = self
            .watch(steward.socket(), About::Steward)
            .and_then(|()| self.watch(&pidfd, About::Process(HELPERS, pid)));
        if watched.is_ok() {
            self.steward = Some(steward);
        }
        self.helpers.push(Child {
            pid,
            pidfd,
            last: false,
        });
    }

    fn on_steward(&mut self) {
        let Some(steward) = &mut self.steward else {
            return;
        };
        if !steward.receive() {
            _ = epoll::delete(&self.events, steward.socket());
            self.steward = None;
        }
    }

    fn on_box(
        &mut self,
        channel: OwnedFd,
        plan: io::Result<BoxPlan>,
        files: Vec<OwnedFd>,
        in_cgroup: bool,
    ) {
        let mut files = files.into_iter();
        let cgroup = if in_cgroup { files.next() } else { None };
        let kept: Vec<_> = files.collect();
        let made = plan.and_then(|mut plan| {
            let stocked = self.stocked(&mut plan);
            let (keeper, ready) =
                self.fork_keeper(&plan, stocked.as_ref(), cgroup.as_ref(), &kept)?;
            Ok((plan, stocked, keeper, ready))
        });
        let (plan, stocked, keeper, ready) = match made {
            Ok(made) => made,
            Err(error) => {
                let failed = failure(Step::PidNamespace, "clone into new namespaces")(error);
                // An engine that no longer listens has hung up, which is all we would do here.
                _ = protocol::send(&channel, &Report::Failed(failed), &[]);
                return;
            }
        };
        let number = self.next_number();
        let watched = self
            .watch(&channel, About::Channel(number))
            .and_then(|()| self.watch(&ready, About::Ready(number)))
            .and_then(|()| self.watch(&keeper.pidfd, About::Process(number, keeper.pid)));
        self.boxes.insert(
            number,
            Held::new(channel, keeper, ready, &plan, stocked, cgroup),
        );
        if watched.is_err() {
            self.destroy(number);
        }
    }

    /// Namespaces made ahead, if they fit this box; it then takes their ids.
    fn stocked(&mut self, plan: &mut BoxPlan) -> Option<Namespaces> {
        let fits = plan.any_outer_id && plan.own_network && plan.steps.has(Step::NetNamespace);
        if !fits {
            return None;
        }
        self.take_first();
        let share = self
            .share
            .take_if(|share| (share.ids.uid, share.ids.gid) == (plan.ids.uid, plan.ids.gid));
        let found = share.or_else(|| self.steward.as_mut()?.take(plan.ids))?;
        plan.ids = found.ids;
        Some(found)
    }

    /// Waits for the namespaces of the first box, which were begun before the root and take less time.
    fn take_first(&mut self) {
        if let Some(socket) = self.first.take() {
            self.share = steward::receive_first(&socket);
        }
    }

    fn fork_keeper(
        &self,
        plan: &BoxPlan,
        stocked: Option<&Namespaces>,
        cgroup: Option<&OwnedFd>,
        held: &[OwnedFd],
    ) -> io::Result<(Child, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        let born_into = keeper::namespaces(plan)
            .filter(|(step, _)| stocked.is_none() || *step != Step::NetNamespace);
        let flags = born_into.fold(0, |all, (_, flag)| all | flag);
        match sys::fork_into(flags, cgroup.map(AsFd::as_fd))? {
            Forked::Child => {
                let (host, report) = (self.spaces.host_mounts.as_fd(), theirs.as_fd());
                let held: Vec<_> = held.iter().map(AsFd::as_fd).collect();
                let network = stocked.map(|stocked| stocked.network.as_fd());
                let kept: Vec<_> = held
                    .iter()
                    .copied()
                    .chain([host, report])
                    .chain(network)
                    .collect();
                match keeper::keep_only(&kept) {
                    Ok(()) => {
                        let masks = &self.masks;
                        keeper::live(&Birth {
                            plan,
                            host,
                            report,
                            held: &held,
                            network,
                            masks,
                        })
                    }
                    Err(_) => sys::exit(1),
                }
            }
            Forked::Parent { pid, pidfd } => Ok((
                Child {
                    pid,
                    pidfd,
                    last: false,
                },
                ours,
            )),
        }
    }

    /// A copy of us that sits in version 1 cgroups: what it forks is born there, which costs nothing,
    /// while moving a process costs milliseconds.
    fn on_lane(&mut self, control: &mut OwnedFd, lane: OwnedFd, groups: &[OwnedFd]) {
        self.take_first();
        let share = self
            .share
            .take()
            .or_else(|| self.steward.as_mut().and_then(Steward::take_any));
        if let Some(steward) = &mut self.steward {
            steward.replenish();
        }
        let forked = protocol::pair().and_then(|pair| Ok((pair, sys::fork_into(0, None)?)));
        match forked {
            Ok(((_, home), Forked::Child)) => {
                self.share = share;
                self.home = Some(home);
                if let Err(failed) = self.become_lane(&lane, groups) {
                    _ = protocol::send(&lane, &Report::Failed(failed), &[]);
                    sys::exit(1);
                }
                *control = lane;
            }
            Ok(((ours, _), Forked::Parent { pid, pidfd })) => {
                let watched = self.watch(&pidfd, About::Process(HELPERS, pid));
                if watched
                    .and_then(|()| self.watch(&ours, About::Lane(pid)))
                    .is_ok()
                {
                    self.helpers.push(Child {
                        pid,
                        pidfd,
                        last: false,
                    });
                    self.lanes.insert(pid, ours);
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
        self.helpers.clear();
        self.lanes.clear();
        self.steward = None;
        self.events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        // What our programs hand over must not be taken by the launcher, nor by another lane.
        self.filters = Filters::new().map_err(at("sockets"))?;
        self.watch(control, About::Control).map_err(at("epoll"))?;
        hello(control, Steps::default()).map_err(at("greet"))
    }

    fn on_channel(&mut self, number: u32) {
        let Some(held) = self.boxes.get_mut(&number) else {
            return;
        };
        match protocol::receive::<Command>(&held.channel) {
            Ok(Some((Command::Exec(plan), files))) => self.on_exec(number, &plan, files),
            Ok(Some((Command::Prepare(plan), files))) => self.on_prepare(number, &plan, files),
            Ok(Some((Command::Start(plan), files))) => self.on_start(number, &plan, files),
            Ok(Some((Command::Terminal, files))) => held.on_terminal(files),
            Ok(Some((Command::Remount(plan), files))) => self.on_remount(number, &plan, files),
            Ok(Some((Command::Signal(signal), _))) => held.signal(signal),
            Ok(Some((Command::Destroy | Command::Furnish(_), _)) | None) | Err(_) => {
                self.destroy(number)
            }
        }
    }

    fn on_remount(&mut self, number: u32, plan: &Brief, mut files: Vec<OwnedFd>) {
        // Behind the file of a large plan.
        let Some(answer) = files.pop() else {
            return;
        };
        match (
            self.remount(number, plan, files, &answer),
            self.boxes.get_mut(&number),
        ) {
            (Ok(child), Some(held)) => held.remounts.push(child),
            (Ok(_), None) => {}
            (Err(error), _) => {
                let failed = failure(Step::Workspace, "fork")(error);
                // An engine that no longer listens has ended the box, or is about to.
                _ = protocol::send(&answer, &Report::Failed(failed), &[]);
            }
        }
    }

    /// Not in the cgroup of the box, whose limits its programs may have used up. A lane sits in that anyway.
    fn remount(
        &mut self,
        number: u32,
        plan: &Brief,
        mut files: Vec<OwnedFd>,
        answer: &OwnedFd,
    ) -> io::Result<Child> {
        let missing = || io::Error::from_raw_os_error(libc::ESRCH);
        let plan: RemountPlan = plan.read(&mut files)?;
        let held = self.boxes.get(&number).ok_or_else(missing)?;
        let space = |step| held.namespaces.iter().find(|(known, _)| *known == step);
        // Without a pid namespace of its own, more than its programs would be stopped.
        let (Some(_), Some((_, mounts))) = (space(Step::PidNamespace), space(Step::MountNamespace))
        else {
            return Err(missing());
        };
        self.spaces.enter(held)?;
        match sys::fork_into(0, None).inspect_err(|_| self.spaces.go_home())? {
            Forked::Child => remount::live(&plan, mounts.as_fd(), answer),
            Forked::Parent { pid, pidfd } => {
                self.spaces.go_home();
                self.watch(&pidfd, About::Process(number, pid))?;
                let last = false;
                Ok(Child { pid, pidfd, last })
            }
        }
    }

    fn destroy(&mut self, number: u32) {
        let Some(held) = self.boxes.get(&number) else {
            return;
        };
        self.unwatch(&held.channel);
        // The end of the keeper is the end of its pid namespace. Already ended is as good.
        _ = rustix::process::pidfd_send_signal(&held.keeper.pidfd, Signal::KILL);
        for program in &held.programs {
            _ = rustix::process::pidfd_send_signal(&program.pidfd, Signal::KILL);
        }
        held.further.iter().for_each(Further::kill);
    }

    fn on_ready(&mut self, number: u32) {
        let Some(held) = self.boxes.get_mut(&number) else {
            return;
        };
        let Some(ready) = held.ready.take() else {
            return;
        };
        let message = protocol::receive::<Report>(&ready);
        _ = epoll::delete(&self.events, &ready);
        let (report, handles) = match message {
            Ok(Some(message)) => message,
            // Killed while furnishing; its end is told when it is reaped.
            Ok(None) | Err(_) => return,
        };
        let mut handles = handles.into_iter();
        if matches!(report, Report::Ready { .. }) {
            let spaces = held.spaces.iter().copied();
            held.namespaces
                .extend(spaces.zip(handles.by_ref().take(held.spaces.len())));
            if held.user_namespace.is_none() {
                held.user_namespace = handles.next();
            }
            held.terminals = if held.stays { handles.next() } else { None };
        }
        let handles: Vec<_> = handles.collect();
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        if protocol::send(&held.channel, &report, &handles).is_err() {
            self.destroy(number);
        }
    }

    fn on_exec(&mut self, number: u32, plan: &Brief, files: Vec<OwnedFd>) {
        let started = self.exec(number, plan, files);
        let Some(held) = self.boxes.get_mut(&number) else {
            return;
        };
        let sent = match started {
            Ok((program, steps, listener)) => {
                held.started(&self.events, number, program, steps, listener)
            }
            Err(failed) => protocol::send(&held.channel, &Report::Failed(failed), &[]),
        };
        if sent.is_err() {
            self.destroy(number);
        }
    }

    fn exec(
        &mut self,
        number: u32,
        plan: &Brief,
        mut files: Vec<OwnedFd>,
    ) -> Result<(Child, Steps, Option<OwnedFd>), Failure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let wrong = |what: &str, errno| at(what)(io::Error::from_raw_os_error(errno));
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        let [input, output, error] =
            <[OwnedFd; 3]>::try_from(files).map_err(|_| wrong("handles", libc::EBADF))?;
        let errand = plan
            .errand
            .as_ref()
            .ok_or_else(|| wrong("errand", libc::EINVAL))?;
        let held = self
            .boxes
            .get(&number)
            .ok_or_else(|| wrong("box", libc::ESRCH))?;
        let joined = held.joined();
        let streams = [input.as_fd(), output.as_fd(), error.as_fd()];
        let mut launch = Launch {
            namespaces: &joined,
            user_namespace: held.users().map_err(at("not ready"))?,
            filters: &self.filters,
            listener: None,
            landlock: self.landlock,
            start: Some(Start::new(errand, streams)),
            plan: &plan,
            done: Steps::default(),
            failed: None,
            reached_exec: false,
        };
        self.spaces.enter(held).map_err(at("process table"))?;
        let cgroup = held.cgroup.as_ref().map(AsFd::as_fd);
        let born = sys::vfork_onto(&mut self.stack, cgroup, program::child, &mut launch);
        self.spaces.go_home();
        let (pid, pidfd) = born.map_err(at("clone"))?;
        let listener = notify::taken_over(self.filters.hand_over.1.as_fd());
        let (failed, reached, done) = (launch.failed, launch.reached_exec, launch.done);
        if failed.is_some() || !reached {
            _ = sys::reap(pid, true);
            let (step, errno) = failed.unwrap_or((Step::JoinNamespaces, libc::EINTR));
            return Err(Failure {
                step,
                errno,
                detail: errand.argv[0].to_string_lossy().into_owned(),
            });
        }
        let program = Child {
            pid,
            pidfd,
            last: plan.last,
        };
        Ok((program, done, listener))
    }

    /// What fails here ends the process or closes its socket, which is how the engine learns of it.
    fn on_prepare(&mut self, number: u32, plan: &Brief, files: Vec<OwnedFd>) {
        let prepared = self.prepare(number, plan, files);
        let Some(held) = self.boxes.get_mut(&number) else {
            return;
        };
        match prepared {
            Ok(program) => held.programs.push(program),
            Err(_) => self.destroy(number),
        }
        self.hand_over(number);
    }

    /// A further program: a process that stands by for it, and its own channel. What fails here is said where the
    /// engine waits for that process.
    fn on_start(&mut self, number: u32, plan: &Brief, mut files: Vec<OwnedFd>) {
        // Behind the file of a large plan.
        let (Some(standby), Some(channel)) = (files.pop(), files.pop()) else {
            return;
        };
        if let Err(failed) = self.start(number, plan, files, channel, &standby) {
            // An engine that no longer listens has hung up on the program, too.
            _ = protocol::send(&standby, &Report::Failed(failed), &[]);
        }
    }

    fn start(
        &mut self,
        number: u32,
        plan: &Brief,
        mut files: Vec<OwnedFd>,
        channel: OwnedFd,
        standby: &OwnedFd,
    ) -> Result<(), Failure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let wrong = |what: &str| at(what)(io::Error::from_raw_os_error(libc::EINVAL));
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        let held = self
            .boxes
            .get(&number)
            .filter(|held| held.stays)
            .ok_or_else(|| wrong("box"))?;
        Further::check_room(&held.further)?;
        let Child { pid, pidfd, .. } = self.stand_by(number, &plan, standby).map_err(at("fork"))?;
        let further = Further {
            pid,
            pidfd,
            channel: Some(channel),
        };
        let watched = further
            .channel
            .iter()
            .try_for_each(|it| self.watch(it, About::Program(number, pid)));
        if watched.is_err() {
            further.kill();
        }
        if let Some(held) = self.boxes.get_mut(&number) {
            held.further.push(further);
        }
        watched.map_err(at("epoll"))
    }

    fn on_program(&mut self, number: u32, pid: i32) {
        let further = self
            .boxes
            .get_mut(&number)
            .map(|held| &mut held.further)
            .into_iter()
            .flatten();
        let over = further
            .into_iter()
            .find(|it| it.pid == pid)
            .and_then(Further::obey);
        if let Some(channel) = over {
            self.unwatch(&channel);
        }
    }

    /// A lane that has given birth to all of a box leaves it to the launcher, which inherits its children, and ends:
    /// one process less for as long as the box is parked.
    fn hand_over(&mut self, number: u32) {
        let (Some(home), Some(held)) = (&self.home, self.boxes.get(&number)) else {
            return;
        };
        let ([program], Some(users), true) = (&held.programs[..], &held.user_namespace, held.ahead)
        else {
            return;
        };
        let handles = [&held.channel, &held.keeper.pidfd, &program.pidfd, users].into_iter();
        let namespaces = held.namespaces.iter().map(|(_, namespace)| namespace);
        let handles: Vec<_> = handles
            .chain(namespaces)
            .chain(&held.cgroup)
            .map(AsFd::as_fd)
            .collect();
        let told = HandedOver {
            keeper: held.keeper.pid,
            program: program.pid,
            last: program.last,
            namespaces: held
                .namespaces
                .iter()
                .map(|(step, _)| *step as u8)
                .collect(),
        };
        if protocol::send(home, &told, &handles).is_ok() {
            sys::exit(0);
        }
    }

    /// Takes a box over from a lane that is about to end.
    fn on_hand_over(&mut self, pid: i32) {
        let Some(lane) = self.lanes.remove(&pid) else {
            return;
        };
        self.unwatch(&lane);
        let Ok(Some((told, handles))) = protocol::receive::<HandedOver>(&lane) else {
            return;
        };
        let Some(held) = told.adopt(handles) else {
            return;
        };
        let number = self.next_number();
        let watched = self
            .watch(&held.channel, About::Channel(number))
            .and_then(|()| self.watch(&held.keeper.pidfd, About::Process(number, held.keeper.pid)))
            .and_then(|()| {
                let mut programs = held.programs.iter();
                programs.try_for_each(|it| self.watch(&it.pidfd, About::Process(number, it.pid)))
            });
        self.boxes.insert(number, held);
        if watched.is_err() {
            self.destroy(number);
        }
    }

    /// A number that no box has: those of boxes that live for long are passed over once all were given out.
    fn next_number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = if number == LAST_BOX {
                HELPERS + 1
            } else {
                number + 1
            };
            if !self.boxes.contains_key(&number) {
                return number;
            }
        }
    }

    fn prepare(&mut self, number: u32, plan: &Brief, mut files: Vec<OwnedFd>) -> io::Result<Child> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let plan: ProgramPlan = plan.read(&mut files)?;
        let [channel] = <[OwnedFd; 1]>::try_from(files).map_err(|_| wrong())?;
        self.stand_by(number, &plan, &channel)
    }

    /// A process that gives everything up and stands by on this socket.
    fn stand_by(
        &mut self,
        number: u32,
        plan: &ProgramPlan,
        channel: &OwnedFd,
    ) -> io::Result<Child> {
        let missing = || io::Error::from_raw_os_error(libc::ESRCH);
        let held = self.boxes.get(&number).ok_or_else(missing)?;
        let (joined, user_namespace) = (held.joined(), held.users()?);
        let cgroup = held.cgroup.as_ref().map(AsFd::as_fd);
        self.spaces.enter(held)?;
        match sys::fork_into(0, cgroup).inspect_err(|_| self.spaces.go_home())? {
            Forked::Child => {
                let launch = Launch {
                    namespaces: &joined,
                    user_namespace,
                    filters: &self.filters,
                    listener: None,
                    landlock: self.landlock,
                    start: None,
                    plan,
                    done: Steps::default(),
                    failed: None,
                    reached_exec: false,
                };
                standby::live(launch, channel)
            }
            Forked::Parent { pid, pidfd } => {
                self.spaces.go_home();
                let last = plan.last;
                let child = Child { pid, pidfd, last };
                let watched = self.watch(&child.pidfd, About::Process(number, pid));
                // Nobody would learn of its end.
                watched
                    .inspect_err(|_| child.kill_and_reap())
                    .map(|()| child)
            }
        }
    }

    fn on_end(&mut self, number: u32, pid: i32) {
        let Ok(Some((_, reaped))) = sys::reap(pid, false) else {
            return;
        };
        if number == HELPERS {
            self.helpers.retain(|helper| {
                let gone = helper.pid == pid;
                if gone {
                    _ = epoll::delete(&self.events, &helper.pidfd);
                }
                !gone
            });
            return;
        }
        let Some(held) = self.boxes.get_mut(&number) else {
            return;
        };
        if held.keeper.pid == pid {
            self.on_gone(number, reaped);
            return;
        }
        if let Some(place) = held.programs.iter().position(|program| program.pid == pid) {
            let program = held.programs.swap_remove(place);
            _ = epoll::delete(&self.events, &program.pidfd);
            let ours = held.further.is_empty() && held.remounts.is_empty();
            let alone = held.programs.is_empty() && ours && held.is_empty();
            let told = protocol::send(
                &held.channel,
                &Report::Ended(Ended {
                    alone,
                    ..reaped.into()
                }),
                &[],
            );
            if told.is_err() || program.last {
                self.destroy(number);
            }
        } else if let Some(place) = held.further.iter().position(|further| further.pid == pid) {
            let further = held.further.swap_remove(place);
            further.tell_end(reaped);
            self.unwatch_further(&further);
        } else if let Some(place) = held.remounts.iter().position(|child| child.pid == pid) {
            let child = held.remounts.swap_remove(place);
            self.unwatch(&child.pidfd);
        }
    }

    fn unwatch_further(&self, further: &Further) {
        self.unwatch(&further.pidfd);
        further
            .channel
            .iter()
            .for_each(|channel| self.unwatch(channel));
    }

    fn on_gone(&mut self, number: u32, reaped: Reaped) {
        let Some(held) = self.boxes.remove(&number) else {
            return;
        };
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
        for further in &held.further {
            self.unwatch_further(further);
            _ = sys::reap(further.pid, true);
        }
        for child in &held.remounts {
            self.unwatch(&child.pidfd);
            _ = sys::reap(child.pid, true);
        }
        // The engine may have hung up already: that is how it asks for this.
        _ = protocol::send(
            &held.channel,
            &Report::Gone(Ended {
                alone: true,
                ..reaped.into()
            }),
            &[],
        );
        if let Some(steward) = &mut self.steward {
            let handles: Vec<_> = held
                .namespaces
                .into_iter()
                .map(|(_, namespace)| namespace)
                .collect();
            steward.clear(&handles);
            steward.replenish();
        }
    }
}

impl Spaces {
    /// What is forked from now on is born in the process table of the box.
    fn enter(&self, held: &Held) -> io::Result<()> {
        match held
            .namespaces
            .iter()
            .find(|(step, _)| *step == Step::PidNamespace)
        {
            Some((_, pids)) => Ok(move_into_link_name_space(
                pids.as_fd(),
                Some(LinkNameSpaceType::ProcessID),
            )?),
            None => Ok(()),
        }
    }

    fn go_home(&self) {
        let home = self.home_pids.as_fd();
        if move_into_link_name_space(home, Some(LinkNameSpaceType::ProcessID)).is_err() {
            // The next box would be born in this one.
            sys::exit(1);
        }
    }
}

impl Held {
    fn new(
        channel: OwnedFd,
        keeper: Child,
        ready: OwnedFd,
        plan: &BoxPlan,
        stocked: Option<Namespaces>,
        cgroup: Option<OwnedFd>,
    ) -> Held {
        let (namespaces, user_namespace) = match stocked {
            Some(stocked) => (
                vec![(Step::NetNamespace, stocked.network)],
                Some(stocked.users),
            ),
            None => (Vec::new(), None),
        };
        let known = |step: &Step| namespaces.iter().any(|(known, _)| known == step);
        let spaces = keeper::namespaces(plan)
            .map(|(step, _)| step)
            .filter(|step| !known(step))
            .collect();
        Held {
            children: children(keeper.pid),
            channel,
            keeper,
            ready: Some(ready),
            spaces,
            namespaces,
            user_namespace,
            cgroup,
            programs: Vec::new(),
            further: Vec::new(),
            remounts: Vec::new(),
            terminals: None,
            stays: plan.stays,
            ahead: plan.ahead,
        }
    }

    /// Whether nobody but the keeper is left. Whoever lost his parent there has become its child before that parent
    /// could be reaped, and it makes none itself. Without the kernel's word the answer is no.
    fn is_empty(&self) -> bool {
        self.children
            .as_ref()
            .is_some_and(|list| matches!(list.read_at(&mut [0; 16], 0), Ok(0)))
    }

    /// The namespaces that a program joins; it is born into that of pids.
    fn joined(&self) -> Vec<RawFd> {
        let joined = self
            .namespaces
            .iter()
            .filter(|(step, _)| *step != Step::PidNamespace);
        joined
            .map(|(_, namespace)| program::raw(namespace.as_fd()))
            .collect()
    }

    /// The program's user namespace, which comes with the keeper's word that the box stands.
    fn users(&self) -> io::Result<RawFd> {
        let ready = self
            .user_namespace
            .as_ref()
            .filter(|_| self.ready.is_none());
        ready
            .map(|users| program::raw(users.as_fd()))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))
    }

    fn on_terminal(&self, files: Vec<OwnedFd>) {
        let Some(answer) = files.into_iter().next() else {
            return;
        };
        let none = || io::Error::from_raw_os_error(libc::ENOTTY);
        let opened = self
            .terminals
            .as_ref()
            .ok_or_else(none)
            .and_then(terminal::open);
        terminal::answer(&answer, opened);
    }

    fn signal(&self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        for program in &self.programs {
            // Already ended is as good.
            _ = rustix::process::pidfd_send_signal(&program.pidfd, signal);
        }
    }
}

impl From<Reaped> for Ended {
    fn from(reaped: Reaped) -> Ended {
        let Reaped {
            status,
            cpu_us,
            peak_bytes,
        } = reaped;
        Ended {
            status,
            cpu_us,
            peak_bytes,
            alone: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command as Process;

    /// A box that has a channel and a keeper, and the engine's end of the channel.
    fn a_box() -> (Held, OwnedFd) {
        let (channel, engine) = protocol::pair().unwrap();
        let held = HandedOver {
            keeper: 0,
            program: 0,
            last: false,
            namespaces: Vec::new(),
        };
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut held = held.adopt(vec![channel, null(), null(), null()]).unwrap();
        held.programs.clear();
        (held, engine)
    }

    #[allow(clippy::zombie_processes, reason = "what is tested here reaps it")]
    fn a_program() -> Child {
        let child = Process::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        let known = rustix::process::Pid::from_raw(pid).unwrap();
        let pidfd = rustix::process::pidfd_open(known, PidfdFlags::empty()).unwrap();
        let last = false;
        Child { pid, pidfd, last }
    }

    fn is_told_started(engine: &OwnedFd) -> bool {
        let told = protocol::receive::<Report>(engine).unwrap();
        matches!(told, Some((Report::Started(_), handles)) if handles.len() == 1)
    }

    #[test]
    fn a_program_that_has_started_and_cannot_be_watched_is_told_to_have_started_and_ends() {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (mut held, engine) = a_box();
        let program = a_program();
        let started = held.started(&events, 1, program, Steps::default(), None);
        assert!(started.is_ok() && is_told_started(&engine));
        assert_eq!(held.programs.len(), 1, "the positive control");
        held.programs[0].kill_and_reap();

        // A file stands for an epoll that takes no more: watches are counted for each user, and the kernel's limit of them
        // is not ours to lower.
        let refuses = OwnedFd::from(File::open("/dev/null").unwrap());
        let (mut held, engine) = a_box();
        let program = a_program();
        let pid = program.pid;
        let started = held.started(&refuses, 1, program, Steps::default(), None);
        assert!(started.is_err(), "the box is destroyed");
        assert!(held.programs.is_empty());
        // Closes the channel: nothing told is then seen as such.
        drop(held);
        assert!(is_told_started(&engine));
        let gone = sys::reap(pid, false);
        assert!(gone.is_err(), "killed and reaped: it is no child any more");
    }
}
