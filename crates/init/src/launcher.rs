//! The launcher: a small single-threaded process that creates, signals and reaps the sandboxes of
//! one engine.
//!
//! It is pid 1 of a pid namespace of its own: when it dies, the kernel kills every sandbox. It ends
//! when its control socket is closed, that is, with the engine.

use crate::{
    container_network,
    containment::{self, ChildContext, ExecTarget, SeccompFilters},
    exec::ExecChild,
    namespace_pool::{self, NamespacePool, PooledNamespaces},
    pid1::{self, Pid1Args, ProcMask},
    plan::{Ids, NamespacePoolPlan, ProgramPlan, RemountPlan, SandboxPlan, TemplatePlan},
    prepared_child,
    protocol::{self, LauncherRequest, Payload, ProcessExit, Report, SandboxCommand},
    remount, seccomp_notify,
    step::{Step, StepFailure, Steps},
    sys::{self, ChildStack, ForkSide, WaitResult},
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

/// Entry of the launcher: the control socket is standard input.
pub fn main() -> ! {
    // The launcher is executed by descriptor number, which would be its name in the process table.
    _ = rustix::thread::set_name(c"airlock-init");
    sys::default_signals();
    // The engine's umask may be narrow; a sandbox needs a root that all users can enter.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Ok(control) = take_control() else {
        sys::exit(2)
    };
    let request = match protocol::receive::<LauncherRequest>(&control) {
        Ok(Some((LauncherRequest::Template { plan, first }, mut files))) => {
            Some((plan.read(&mut files), first))
        }
        Ok(Some((LauncherRequest::ContainerNetwork(plan), files))) => {
            container_network::set_up(&control, &plan, files)
        }
        _ => None,
    };
    let Some((Ok(plan), first)) = request else {
        sys::exit(2)
    };
    match prepare(&plan, first)
        .and_then(|(steps, spaces, first)| start_launcher(&control, steps, spaces, first))
    {
        Ok(mut launcher) => launcher.serve(control),
        Err(failed) => {
            // Without a reader the engine is gone, and this process ends anyway.
            _ = protocol::send(&control, &Report::Failed(failed), &[]);
            sys::exit(1)
        }
    }
}

/// Moves the control socket away from standard input, so that 0, 1 and 2 are never of value.
fn take_control() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
    let null = rustix::fs::openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for place in 0..3 {
        sys::put_stream(containment::raw(null.as_fd()), place)?;
    }
    // Descriptors that the engine inherited are not to be kept open.
    pid1::close_all_except(&[control.as_fd(), null.as_fd()])?;
    Ok(control)
}

/// Handles on namespaces that the launcher returns to.
struct LauncherNamespaces {
    /// The host's mount namespace, for resolving host paths.
    host_mounts: OwnedFd,
    /// The launcher's own pid namespace.
    home_pids: OwnedFd,
}

/// The socket on which the namespaces of the first sandbox arrive.
type FirstNamespaces = Option<OwnedFd>;

fn prepare(
    plan: &TemplatePlan,
    first: Option<Ids>,
) -> Result<(Steps, LauncherNamespaces, FirstNamespaces), StepFailure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    rustix::process::setsid().map_err(|error| at("setsid")(error.into()))?;
    let first = leave_host(first).map_err(at("own namespaces"))?;
    let open =
        |path| rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let opened = |path| open(path).map_err(|error| at("/proc/self/ns")(error.into()));
    let spaces = LauncherNamespaces {
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

/// Enters namespaces of its own. Without the right to create them, a user namespace gives it.
fn leave_host(first: Option<Ids>) -> io::Result<FirstNamespaces> {
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
    // Host unmounts still propagate to us, so that no mount stays busy; ours do not propagate.
    rustix::mount::mount_change(
        c"/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    let sockets = first
        .map(|ids| protocol::pair().map(|pair| (ids, pair)))
        .transpose()?;
    match sys::fork_into(0, None)? {
        ForkSide::Child => Ok(sockets.map(|(_, (ours, _))| ours)),
        // Only the child is in the new pid namespace. The parent creates the first namespaces
        // before it ends.
        ForkSide::Parent { .. } => {
            if let Some((ids, (ours, theirs))) = sockets {
                drop(ours);
                // Without them the sandbox creates its own, and reports what fails.
                _ = namespace_pool::create_first(ids, &theirs);
            }
            sys::exit(0)
        }
    }
}

fn start_launcher(
    control: &OwnedFd,
    steps: Steps,
    spaces: LauncherNamespaces,
    first: FirstNamespaces,
) -> Result<Launcher, StepFailure> {
    let at = |what: &str| failure(Step::LauncherNamespaces, what);
    let launcher = Launcher::new(spaces, first).map_err(at("epoll"))?;
    send_hello(control, steps).map_err(at("send hello"))?;
    Ok(launcher)
}

fn send_hello(control: &OwnedFd, steps: Steps) -> io::Result<()> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    protocol::send(control, &Report::Hello(steps), &[own.as_fd()])
}

/// A process of a sandbox that we forked and will reap.
struct ChildProcess {
    pid: i32,
    pidfd: OwnedFd,
    /// Whether the sandbox ends with it.
    last: bool,
}

impl ChildProcess {
    /// For a child whose end nothing waits for.
    fn kill_and_reap(&self) {
        _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        _ = sys::reap(self.pid, true);
    }

    /// Whether the kernel has marked the process as exiting, or it is a zombie. The kernel marks pid 1
    /// of a pid namespace before it kills all other processes there, and pid 1 becomes a zombie only
    /// once these are reaped. So a program that was killed because pid 1 died is distinguished from
    /// one that was killed alone, and in the first case the sandbox is certain to end. The process is
    /// not reaped yet, so its number cannot have been reused.
    fn is_exiting(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| stat_is_exiting(&stat))
    }
}

/// Whether a line of `/proc/PID/stat` has the flag of a process that exits. Its seventh field after the name.
fn stat_is_exiting(stat: &str) -> bool {
    const PF_EXITING: u32 = 0x4;
    let (_, after_name) = stat.rsplit_once(')').unwrap_or_default();
    let flags = after_name.split_ascii_whitespace().nth(6);
    flags
        .and_then(|flags| flags.parse().ok())
        .is_some_and(|flags: u32| flags & PF_EXITING != 0)
}

/// One sandbox.
struct SandboxEntry {
    channel: OwnedFd,
    pid1: ChildProcess,
    /// The socket on which pid 1 reports that it is ready; closed afterwards.
    ready: Option<OwnedFd>,
    /// The namespaces that pid 1 was cloned into and has not handed out yet, in order.
    spaces: Vec<Step>,
    namespaces: Vec<(Step, OwnedFd)>,
    user_namespace: Option<OwnedFd>,
    cgroup: Option<OwnedFd>,
    programs: Vec<ChildProcess>,
    /// Programs of a session.
    execs: Vec<ExecChild>,
    /// Processes that put mounts back.
    remounts: Vec<ChildProcess>,
    /// `/dev/pts` of a session.
    terminals: Option<OwnedFd>,
    stays: bool,
    /// The kernel's list of pid 1's children, where it has one.
    children: Option<File>,
    /// Created before its run.
    warm: bool,
    /// The launcher has killed pid 1.
    is_ending: bool,
}

/// What a cgroup v1 forker hands to the launcher, with handles: channel, pid 1, program, user
/// namespace, namespaces, cgroup.
struct Handover {
    pid1: i32,
    program: i32,
    last: bool,
    namespaces: Vec<u8>,
}

wire_struct!(Handover {
    pid1,
    program,
    last,
    namespaces
});

impl Handover {
    fn adopt(self, handles: Vec<OwnedFd>) -> Option<SandboxEntry> {
        let mut handles = handles.into_iter();
        let mut next = || handles.next();
        let channel = next()?;
        let pid1 = ChildProcess {
            pid: self.pid1,
            pidfd: next()?,
            last: false,
        };
        let program = ChildProcess {
            pid: self.program,
            pidfd: next()?,
            last: self.last,
        };
        let user_namespace = Some(next()?);
        let steps = self.namespaces.into_iter().map(Step::from_number);
        let namespaces = steps
            .map(|step| Some((step?, next()?)))
            .collect::<Option<_>>()?;
        Some(SandboxEntry {
            channel,
            children: children(pid1.pid),
            pid1,
            ready: None,
            spaces: Vec::new(),
            namespaces,
            user_namespace,
            cgroup: next(),
            programs: vec![program],
            execs: Vec::new(),
            remounts: Vec::new(),
            terminals: None,
            stays: false,
            warm: true,
            is_ending: false,
        })
    }
}

impl SandboxEntry {
    /// Reports to the engine that a program has started, and watches it. An error ends the sandbox.
    fn started(
        &mut self,
        events: &OwnedFd,
        number: u32,
        program: ChildProcess,
        steps: Steps,
        listener: Option<OwnedFd>,
    ) -> io::Result<()> {
        let handles = [program.pidfd.as_fd()]
            .into_iter()
            .chain(listener.as_ref().map(AsFd::as_fd));
        let handles: Vec<_> = handles.collect();
        let sent = protocol::send(&self.channel, &Report::Started(steps), &handles);
        match watch(
            events,
            &program.pidfd,
            EventToken::Process(number, program.pid),
        ) {
            Ok(()) => {
                self.programs.push(program);
                sent
            }
            // The program has started and is reported as started. Its exit could not be noticed, so
            // it ends with its sandbox.
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

/// What an epoll event is about: two bits of kind, then the sandbox, then a pid.
#[derive(Clone, Copy)]
enum EventToken {
    Control,
    NamespacePool,
    /// A cgroup v1 forker, by its pid, has something to hand over.
    CgroupForker(i32),
    Channel(u32),
    /// The channel of an exec, by its pid.
    Program(u32, i32),
    Ready(u32),
    Process(u32, i32),
}

impl EventToken {
    fn token(self) -> EventData {
        let (kind, number, pid) = match self {
            EventToken::Control => (0, 0, 0),
            EventToken::NamespacePool => (0, 1, 0),
            EventToken::CgroupForker(pid) => (0, 2, pid as u32),
            EventToken::Channel(number) => (1, number, 0),
            EventToken::Program(number, pid) => (1, number, pid as u32),
            EventToken::Ready(number) => (2, number, 0),
            EventToken::Process(number, pid) => (3, number, pid as u32),
        };
        EventData::new_u64(kind << 62 | u64::from(number) << 32 | u64::from(pid))
    }

    fn from_token(token: EventData) -> EventToken {
        let bits = token.u64();
        let number = (bits >> 32) as u32 & 0x3fff_ffff;
        match bits >> 62 {
            0 if number == 0 => EventToken::Control,
            0 if number == 1 => EventToken::NamespacePool,
            0 => EventToken::CgroupForker(bits as u32 as i32),
            1 if bits as u32 == 0 => EventToken::Channel(number),
            1 => EventToken::Program(number, bits as u32 as i32),
            2 => EventToken::Ready(number),
            _ => EventToken::Process(number, bits as u32 as i32),
        }
    }
}

/// Sandboxes are numbered from 1; 0 stands for the helpers of this launcher.
const HELPER_NUMBER: u32 = 0;
const MAX_SANDBOX_NUMBER: u32 = 0x3fff_ffff;

fn watch(events: &OwnedFd, fd: impl AsFd, token: EventToken) -> io::Result<()> {
    Ok(epoll::add(events, fd, token.token(), EventFlags::IN)?)
}

struct Launcher {
    spaces: LauncherNamespaces,
    events: OwnedFd,
    sandboxes: HashMap<u32, SandboxEntry>,
    /// The cgroup v1 forkers and the namespace pool.
    helpers: Vec<ChildProcess>,
    /// The handover sockets of cgroup v1 forkers, by their pids.
    forkers: HashMap<i32, OwnedFd>,
    /// The handover socket, if this process is a cgroup v1 forker.
    home: Option<OwnedFd>,
    namespace_pool: Option<NamespacePool>,
    /// The socket on which the namespaces of the first sandbox arrive.
    first: FirstNamespaces,
    /// Namespaces for the next sandbox: those created first, or those that a forker got from the
    /// pool.
    own_namespaces: Option<PooledNamespaces>,
    next: u32,
    filters: SeccompFilters,
    masks: Vec<(&'static CStr, ProcMask)>,
    landlock: u32,
    stack: ChildStack,
}

impl Launcher {
    fn new(spaces: LauncherNamespaces, first: FirstNamespaces) -> io::Result<Launcher> {
        Ok(Launcher {
            spaces,
            events: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sandboxes: HashMap::new(),
            helpers: Vec::new(),
            forkers: HashMap::new(),
            home: None,
            namespace_pool: None,
            first,
            own_namespaces: None,
            next: HELPER_NUMBER + 1,
            filters: SeccompFilters::new()?,
            masks: pid1::masks(),
            landlock: sys::landlock_version(),
            stack: ChildStack::new(),
        })
    }

    /// Serves the engine until its socket is closed.
    fn serve(&mut self, mut control: OwnedFd) -> ! {
        if self.watch(&control, EventToken::Control).is_err() {
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
                match EventToken::from_token(event.data) {
                    EventToken::Control => self.on_control(&mut control),
                    EventToken::NamespacePool => self.on_namespace_pool(),
                    EventToken::CgroupForker(pid) => self.on_handover(pid),
                    EventToken::Channel(number) => self.on_channel(number),
                    EventToken::Program(number, pid) => self.on_program(number, pid),
                    EventToken::Ready(number) => self.on_pid1_ready(number),
                    EventToken::Process(number, pid) => self.on_process_end(number, pid),
                }
            }
        }
    }

    fn watch(&self, fd: impl AsFd, token: EventToken) -> io::Result<()> {
        watch(&self.events, fd, token)
    }

    /// Before closing: a duplicate of the descriptor would keep the registration alive.
    fn unwatch(&self, fd: impl AsFd) {
        _ = epoll::delete(&self.events, fd);
    }

    fn on_control(&mut self, control: &mut OwnedFd) {
        let (request, mut files) = match protocol::receive::<LauncherRequest>(&*control) {
            Ok(Some(message)) => message,
            // The engine is gone or has another protocol version: everything ends.
            Ok(None) | Err(_) => sys::exit(0),
        };
        match request {
            LauncherRequest::Sandbox { plan, cgroup } => {
                let plan = plan.read(&mut files);
                if !files.is_empty() {
                    self.on_sandbox(files.remove(0), plan, files, cgroup);
                }
            }
            LauncherRequest::CgroupForker if !files.is_empty() => {
                self.on_cgroup_forker(control, files.remove(0), &files)
            }
            LauncherRequest::NamespacePool(plan) => self.on_start_namespace_pool(plan),
            LauncherRequest::Template { .. }
            | LauncherRequest::CgroupForker
            | LauncherRequest::ContainerNetwork(_) => {}
        }
    }

    /// Without a pool every sandbox creates its own namespaces, which is only slower.
    fn on_start_namespace_pool(&mut self, plan: NamespacePoolPlan) {
        let Ok((namespace_pool, pid, pidfd)) = NamespacePool::start(plan) else {
            return;
        };
        let watched = self
            .watch(namespace_pool.socket(), EventToken::NamespacePool)
            .and_then(|()| self.watch(&pidfd, EventToken::Process(HELPER_NUMBER, pid)));
        if watched.is_ok() {
            self.namespace_pool = Some(namespace_pool);
        }
        self.helpers.push(ChildProcess {
            pid,
            pidfd,
            last: false,
        });
    }

    fn on_namespace_pool(&mut self) {
        let Some(namespace_pool) = &mut self.namespace_pool else {
            return;
        };
        if !namespace_pool.receive() {
            _ = epoll::delete(&self.events, namespace_pool.socket());
            self.namespace_pool = None;
        }
    }

    fn on_sandbox(
        &mut self,
        channel: OwnedFd,
        plan: io::Result<SandboxPlan>,
        files: Vec<OwnedFd>,
        in_cgroup: bool,
    ) {
        let mut files = files.into_iter();
        let cgroup = if in_cgroup { files.next() } else { None };
        let kept: Vec<_> = files.collect();
        let made = plan.and_then(|mut plan| {
            let pooled = self.pooled(&mut plan);
            let (pid1, ready) = self.fork_pid1(&plan, pooled.as_ref(), cgroup.as_ref(), &kept)?;
            Ok((plan, pooled, pid1, ready))
        });
        let (plan, pooled, pid1, ready) = match made {
            Ok(made) => made,
            Err(error) => {
                let failed = failure(Step::PidNamespace, "clone into new namespaces")(error);
                // The engine may have closed its end, which has the same effect.
                _ = protocol::send(&channel, &Report::Failed(failed), &[]);
                return;
            }
        };
        let number = self.next_number();
        let watched = self
            .watch(&channel, EventToken::Channel(number))
            .and_then(|()| self.watch(&ready, EventToken::Ready(number)))
            .and_then(|()| self.watch(&pid1.pidfd, EventToken::Process(number, pid1.pid)));
        self.sandboxes.insert(
            number,
            SandboxEntry::new(channel, pid1, ready, &plan, pooled, cgroup),
        );
        if watched.is_err() {
            self.destroy(number);
        }
    }

    /// Pooled namespaces, if they fit this sandbox; the plan then takes their ids.
    fn pooled(&mut self, plan: &mut SandboxPlan) -> Option<PooledNamespaces> {
        let fits = plan.any_outer_id && plan.own_network && plan.steps.has(Step::NetNamespace);
        if !fits {
            return None;
        }
        self.take_first();
        let own_namespaces = self.own_namespaces.take_if(|own_namespaces| {
            (own_namespaces.ids.uid, own_namespaces.ids.gid) == (plan.ids.uid, plan.ids.gid)
        });
        let found = own_namespaces.or_else(|| self.namespace_pool.as_mut()?.take(plan.ids))?;
        plan.ids = found.ids;
        Some(found)
    }

    /// Waits for the namespaces of the first sandbox, which were started before the root and take
    /// less time.
    fn take_first(&mut self) {
        if let Some(socket) = self.first.take() {
            self.own_namespaces = namespace_pool::receive_first(&socket);
        }
    }

    fn fork_pid1(
        &self,
        plan: &SandboxPlan,
        pooled: Option<&PooledNamespaces>,
        cgroup: Option<&OwnedFd>,
        inherited: &[OwnedFd],
    ) -> io::Result<(ChildProcess, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        let born_into = pid1::namespaces(plan)
            .filter(|(step, _)| pooled.is_none() || *step != Step::NetNamespace);
        let flags = born_into.fold(0, |all, (_, flag)| all | flag);
        match sys::fork_into(flags, cgroup.map(AsFd::as_fd))? {
            ForkSide::Child => {
                let (host, report) = (self.spaces.host_mounts.as_fd(), theirs.as_fd());
                let inherited: Vec<_> = inherited.iter().map(AsFd::as_fd).collect();
                let network = pooled.map(|pooled| pooled.network.as_fd());
                let kept: Vec<_> = inherited
                    .iter()
                    .copied()
                    .chain([host, report])
                    .chain(network)
                    .collect();
                match pid1::close_all_except(&kept) {
                    Ok(()) => {
                        let masks = &self.masks;
                        pid1::run(&Pid1Args {
                            plan,
                            host,
                            report,
                            inherited: &inherited,
                            network,
                            masks,
                        })
                    }
                    Err(_) => sys::exit(1),
                }
            }
            ForkSide::Parent { pid, pidfd } => Ok((
                ChildProcess {
                    pid,
                    pidfd,
                    last: false,
                },
                ours,
            )),
        }
    }

    /// Forks a copy of this process into version 1 cgroups: what the copy forks is born there for
    /// free, while moving a process costs milliseconds.
    fn on_cgroup_forker(&mut self, control: &mut OwnedFd, forker: OwnedFd, groups: &[OwnedFd]) {
        self.take_first();
        let own_namespaces = self.own_namespaces.take().or_else(|| {
            self.namespace_pool
                .as_mut()
                .and_then(NamespacePool::take_any)
        });
        if let Some(namespace_pool) = &mut self.namespace_pool {
            namespace_pool.replenish();
        }
        let forked = protocol::pair().and_then(|pair| Ok((pair, sys::fork_into(0, None)?)));
        match forked {
            Ok(((_, home), ForkSide::Child)) => {
                self.own_namespaces = own_namespaces;
                self.home = Some(home);
                if let Err(failed) = self.become_cgroup_forker(&forker, groups) {
                    _ = protocol::send(&forker, &Report::Failed(failed), &[]);
                    sys::exit(1);
                }
                *control = forker;
            }
            Ok(((ours, _), ForkSide::Parent { pid, pidfd })) => {
                let watched = self.watch(&pidfd, EventToken::Process(HELPER_NUMBER, pid));
                if watched
                    .and_then(|()| self.watch(&ours, EventToken::CgroupForker(pid)))
                    .is_ok()
                {
                    self.helpers.push(ChildProcess {
                        pid,
                        pidfd,
                        last: false,
                    });
                    self.forkers.insert(pid, ours);
                }
            }
            Err(error) => {
                let failed = failure(Step::LauncherNamespaces, "fork for cgroup v1")(error);
                _ = protocol::send(&forker, &Report::Failed(failed), &[]);
            }
        }
    }

    fn become_cgroup_forker(
        &mut self,
        control: &OwnedFd,
        groups: &[OwnedFd],
    ) -> Result<(), StepFailure> {
        let at = |what: &str| failure(Step::LauncherNamespaces, what);
        let system = |what: &'static str| move |error: rustix::io::Errno| at(what)(error.into());
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(system("death signal"))?;
        for group in groups {
            rustix::io::write(group, b"0").map_err(system("cgroup.procs"))?;
        }
        // Handles of the launcher's sandboxes are closed here. They are not removed from the epoll
        // instance, which is shared with the launcher; this process creates its own.
        self.sandboxes.clear();
        self.helpers.clear();
        self.forkers.clear();
        self.namespace_pool = None;
        self.events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        // Listeners of our programs must not be received by the launcher or by another forker.
        self.filters = SeccompFilters::new().map_err(at("sockets"))?;
        self.watch(control, EventToken::Control)
            .map_err(at("epoll"))?;
        send_hello(control, Steps::default()).map_err(at("send hello"))
    }

    fn on_channel(&mut self, number: u32) {
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        match protocol::receive::<SandboxCommand>(&entry.channel) {
            Ok(Some((SandboxCommand::Exec(plan), files))) => self.on_exec(number, &plan, files),
            Ok(Some((SandboxCommand::Prepare(plan), files))) => {
                self.on_prepare(number, &plan, files)
            }
            Ok(Some((SandboxCommand::StartExec(plan), files))) => {
                self.on_start(number, &plan, files)
            }
            Ok(Some((SandboxCommand::Terminal, files))) => entry.on_terminal(files),
            Ok(Some((SandboxCommand::Remount(plan), files))) => {
                self.on_remount(number, &plan, files)
            }
            Ok(Some((SandboxCommand::Signal(signal), _))) => entry.signal(signal),
            Ok(Some((SandboxCommand::Destroy | SandboxCommand::CheckContainer(_), _)) | None)
            | Err(_) => self.destroy(number),
        }
    }

    fn on_remount(&mut self, number: u32, plan: &Payload, mut files: Vec<OwnedFd>) {
        // It comes after the file of a large plan.
        let Some(answer) = files.pop() else {
            return;
        };
        match (
            self.remount(number, plan, files, &answer),
            self.sandboxes.get_mut(&number),
        ) {
            (Ok(child), Some(entry)) => entry.remounts.push(child),
            (Ok(_), None) => {}
            (Err(error), _) => {
                let failed = failure(Step::Workspace, "fork")(error);
                // An engine that has closed its end has ended the sandbox, or is about to.
                _ = protocol::send(&answer, &Report::Failed(failed), &[]);
            }
        }
    }

    /// Not in the cgroup of the sandbox, whose limits its programs may have used up. A cgroup v1
    /// forker sits in it anyway.
    fn remount(
        &mut self,
        number: u32,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
        answer: &OwnedFd,
    ) -> io::Result<ChildProcess> {
        let missing = || io::Error::from_raw_os_error(libc::ESRCH);
        let plan: RemountPlan = plan.read(&mut files)?;
        let entry = self.sandboxes.get(&number).ok_or_else(missing)?;
        let space = |step| entry.namespaces.iter().find(|(known, _)| *known == step);
        // Without a pid namespace of its own, more than its programs would be stopped.
        let (Some(_), Some((_, mounts))) = (space(Step::PidNamespace), space(Step::MountNamespace))
        else {
            return Err(missing());
        };
        self.spaces.enter(entry)?;
        match sys::fork_into(0, None).inspect_err(|_| self.spaces.go_home())? {
            ForkSide::Child => remount::run(&plan, mounts.as_fd(), answer),
            ForkSide::Parent { pid, pidfd } => {
                self.spaces.go_home();
                self.watch(&pidfd, EventToken::Process(number, pid))?;
                let last = false;
                Ok(ChildProcess { pid, pidfd, last })
            }
        }
    }

    fn destroy(&mut self, number: u32) {
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        entry.is_ending = true;
        _ = epoll::delete(&self.events, &entry.channel);
        // Killing pid 1 kills its pid namespace. A process that has ended is no error.
        _ = rustix::process::pidfd_send_signal(&entry.pid1.pidfd, Signal::KILL);
        for program in &entry.programs {
            _ = rustix::process::pidfd_send_signal(&program.pidfd, Signal::KILL);
        }
        entry.execs.iter().for_each(ExecChild::kill);
    }

    fn on_pid1_ready(&mut self, number: u32) {
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        let Some(ready) = entry.ready.take() else {
            return;
        };
        let message = protocol::receive::<Report>(&ready);
        _ = epoll::delete(&self.events, &ready);
        let (report, handles) = match message {
            Ok(Some(message)) => message,
            // It was killed during setup; its exit is reported when it is reaped.
            Ok(None) | Err(_) => return,
        };
        let mut handles = handles.into_iter();
        if matches!(report, Report::Ready { .. }) {
            let spaces = entry.spaces.iter().copied();
            entry
                .namespaces
                .extend(spaces.zip(handles.by_ref().take(entry.spaces.len())));
            if entry.user_namespace.is_none() {
                entry.user_namespace = handles.next();
            }
            entry.terminals = if entry.stays { handles.next() } else { None };
        }
        let handles: Vec<_> = handles.collect();
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        if protocol::send(&entry.channel, &report, &handles).is_err() {
            self.destroy(number);
        }
    }

    fn on_exec(&mut self, number: u32, plan: &Payload, files: Vec<OwnedFd>) {
        let started = self.exec(number, plan, files);
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        let sent = match started {
            Ok((program, steps, listener)) => {
                entry.started(&self.events, number, program, steps, listener)
            }
            Err(failed) => protocol::send(&entry.channel, &Report::Failed(failed), &[]),
        };
        if sent.is_err() {
            self.destroy(number);
        }
    }

    fn exec(
        &mut self,
        number: u32,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
    ) -> Result<(ChildProcess, Steps, Option<OwnedFd>), StepFailure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let wrong = |what: &str, errno| at(what)(io::Error::from_raw_os_error(errno));
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        let [input, output, error] =
            <[OwnedFd; 3]>::try_from(files).map_err(|_| wrong("handles", libc::EBADF))?;
        let exec_args = plan
            .exec_args
            .as_ref()
            .ok_or_else(|| wrong("exec arguments", libc::EINVAL))?;
        let entry = self
            .sandboxes
            .get(&number)
            .ok_or_else(|| wrong("sandbox", libc::ESRCH))?;
        let joined_namespaces = entry.joined_namespaces();
        let streams = [input.as_fd(), output.as_fd(), error.as_fd()];
        let mut context = ChildContext {
            namespaces: &joined_namespaces,
            user_namespace: entry.user_namespace().map_err(at("not ready"))?,
            filters: &self.filters,
            listener: None,
            landlock: self.landlock,
            start: Some(ExecTarget::new(exec_args, streams)),
            plan: &plan,
            done: Steps::default(),
            failed: None,
            reached_exec: false,
        };
        self.spaces.enter(entry).map_err(at("process table"))?;
        let cgroup = entry.cgroup.as_ref().map(AsFd::as_fd);
        let born = sys::vfork_on_stack(
            &mut self.stack,
            cgroup,
            containment::run_child,
            &mut context,
        );
        self.spaces.go_home();
        let (pid, pidfd) = born.map_err(at("clone"))?;
        let listener = seccomp_notify::receive_listener(self.filters.listener_sockets.1.as_fd());
        let (failed, reached, done) = (context.failed, context.reached_exec, context.done);
        if failed.is_some() || !reached {
            _ = sys::reap(pid, true);
            let (step, errno) = failed.unwrap_or((Step::JoinNamespaces, libc::EINTR));
            return Err(StepFailure {
                step,
                errno,
                detail: exec_args.argv[0].to_string_lossy().into_owned(),
            });
        }
        let program = ChildProcess {
            pid,
            pidfd,
            last: plan.last,
        };
        Ok((program, done, listener))
    }

    /// A failure ends the process or closes its socket, which is how the engine learns of it.
    fn on_prepare(&mut self, number: u32, plan: &Payload, files: Vec<OwnedFd>) {
        let prepared = self.prepare(number, plan, files);
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        match prepared {
            Ok(program) => entry.programs.push(program),
            Err(_) => self.destroy(number),
        }
        self.hand_over(number);
    }

    /// Starts an exec: a prepared child for it, and its own channel. A failure is reported on the
    /// socket of the prepared child.
    fn on_start(&mut self, number: u32, plan: &Payload, mut files: Vec<OwnedFd>) {
        // They come after the file of a large plan.
        let (Some(standby), Some(channel)) = (files.pop(), files.pop()) else {
            return;
        };
        if let Err(failed) = self.start(number, plan, files, channel, &standby) {
            // An engine that has closed its end has given up the program, too.
            _ = protocol::send(&standby, &Report::Failed(failed), &[]);
        }
    }

    fn start(
        &mut self,
        number: u32,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
        channel: OwnedFd,
        standby: &OwnedFd,
    ) -> Result<(), StepFailure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let wrong = |what: &str| at(what)(io::Error::from_raw_os_error(libc::EINVAL));
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        let entry = self
            .sandboxes
            .get(&number)
            .filter(|entry| entry.stays)
            .ok_or_else(|| wrong("sandbox"))?;
        ExecChild::check_limit(&entry.execs)?;
        let ChildProcess { pid, pidfd, .. } = self
            .fork_prepared_child(number, &plan, standby)
            .map_err(at("fork"))?;
        let execs = ExecChild {
            pid,
            pidfd,
            channel: Some(channel),
        };
        let watched = execs
            .channel
            .iter()
            .try_for_each(|it| self.watch(it, EventToken::Program(number, pid)));
        if watched.is_err() {
            execs.kill();
        }
        if let Some(entry) = self.sandboxes.get_mut(&number) {
            entry.execs.push(execs);
        }
        watched.map_err(at("epoll"))
    }

    fn on_program(&mut self, number: u32, pid: i32) {
        let execs = self
            .sandboxes
            .get_mut(&number)
            .map(|entry| &mut entry.execs)
            .into_iter()
            .flatten();
        let over = execs
            .into_iter()
            .find(|it| it.pid == pid)
            .and_then(ExecChild::on_command);
        if let Some(channel) = over {
            self.unwatch(&channel);
        }
    }

    /// A cgroup v1 forker that has created all processes of a warm sandbox hands it to the
    /// launcher, which inherits the children, and ends: one process less while the sandbox waits.
    fn hand_over(&mut self, number: u32) {
        let (Some(home), Some(entry)) = (&self.home, self.sandboxes.get(&number)) else {
            return;
        };
        let ([program], Some(users), true) =
            (&entry.programs[..], &entry.user_namespace, entry.warm)
        else {
            return;
        };
        let handles = [&entry.channel, &entry.pid1.pidfd, &program.pidfd, users].into_iter();
        let namespaces = entry.namespaces.iter().map(|(_, namespace)| namespace);
        let handles: Vec<_> = handles
            .chain(namespaces)
            .chain(&entry.cgroup)
            .map(AsFd::as_fd)
            .collect();
        let handover = Handover {
            pid1: entry.pid1.pid,
            program: program.pid,
            last: program.last,
            namespaces: entry
                .namespaces
                .iter()
                .map(|(step, _)| *step as u8)
                .collect(),
        };
        if protocol::send(home, &handover, &handles).is_ok() {
            sys::exit(0);
        }
    }

    /// Takes over a sandbox from a forker that is about to end.
    fn on_handover(&mut self, pid: i32) {
        let Some(forker) = self.forkers.remove(&pid) else {
            return;
        };
        self.unwatch(&forker);
        let Ok(Some((handover, handles))) = protocol::receive::<Handover>(&forker) else {
            return;
        };
        let Some(entry) = handover.adopt(handles) else {
            return;
        };
        let number = self.next_number();
        let watched = self
            .watch(&entry.channel, EventToken::Channel(number))
            .and_then(|()| {
                self.watch(
                    &entry.pid1.pidfd,
                    EventToken::Process(number, entry.pid1.pid),
                )
            })
            .and_then(|()| {
                let mut programs = entry.programs.iter();
                programs
                    .try_for_each(|it| self.watch(&it.pidfd, EventToken::Process(number, it.pid)))
            });
        self.sandboxes.insert(number, entry);
        if watched.is_err() {
            self.destroy(number);
        }
    }

    /// An unused sandbox number: after the last one, numbers of living sandboxes are skipped.
    fn next_number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = if number == MAX_SANDBOX_NUMBER {
                HELPER_NUMBER + 1
            } else {
                number + 1
            };
            if !self.sandboxes.contains_key(&number) {
                return number;
            }
        }
    }

    fn prepare(
        &mut self,
        number: u32,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
    ) -> io::Result<ChildProcess> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let plan: ProgramPlan = plan.read(&mut files)?;
        let [channel] = <[OwnedFd; 1]>::try_from(files).map_err(|_| wrong())?;
        self.fork_prepared_child(number, &plan, &channel)
    }

    /// Forks a process that drops its privileges and waits on this socket.
    fn fork_prepared_child(
        &mut self,
        number: u32,
        plan: &ProgramPlan,
        channel: &OwnedFd,
    ) -> io::Result<ChildProcess> {
        let missing = || io::Error::from_raw_os_error(libc::ESRCH);
        let entry = self.sandboxes.get(&number).ok_or_else(missing)?;
        let (joined_namespaces, user_namespace) =
            (entry.joined_namespaces(), entry.user_namespace()?);
        let cgroup = entry.cgroup.as_ref().map(AsFd::as_fd);
        self.spaces.enter(entry)?;
        match sys::fork_into(0, cgroup).inspect_err(|_| self.spaces.go_home())? {
            ForkSide::Child => {
                let context = ChildContext {
                    namespaces: &joined_namespaces,
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
                prepared_child::run(context, channel)
            }
            ForkSide::Parent { pid, pidfd } => {
                self.spaces.go_home();
                let last = plan.last;
                let child = ChildProcess { pid, pidfd, last };
                let watched = self.watch(&child.pidfd, EventToken::Process(number, pid));
                // Its exit could not be noticed.
                watched
                    .inspect_err(|_| child.kill_and_reap())
                    .map(|()| child)
            }
        }
    }

    fn on_process_end(&mut self, number: u32, pid: i32) {
        let Ok(Some((_, reaped))) = sys::reap(pid, false) else {
            return;
        };
        if number == HELPER_NUMBER {
            self.helpers.retain(|helper| {
                let gone = helper.pid == pid;
                if gone {
                    _ = epoll::delete(&self.events, &helper.pidfd);
                }
                !gone
            });
            return;
        }
        let Some(entry) = self.sandboxes.get_mut(&number) else {
            return;
        };
        if entry.pid1.pid == pid {
            self.on_sandbox_end(number, reaped);
            return;
        }
        // Of a sandbox that the launcher ends, the engine may still count what its programs used.
        let died_with_pid1 = !entry.is_ending && reaped.is_killed() && entry.pid1.is_exiting();
        if let Some(place) = entry.programs.iter().position(|program| program.pid == pid) {
            let program = entry.programs.swap_remove(place);
            _ = epoll::delete(&self.events, &program.pidfd);
            if died_with_pid1 {
                return;
            }
            let ours = entry.execs.is_empty() && entry.remounts.is_empty();
            let alone = entry.programs.is_empty() && ours && entry.is_empty();
            let sent = protocol::send(
                &entry.channel,
                &Report::Ended(ProcessExit {
                    alone,
                    ..reaped.into()
                }),
                &[],
            );
            if sent.is_err() || program.last {
                self.destroy(number);
            }
        } else if let Some(place) = entry.execs.iter().position(|execs| execs.pid == pid) {
            let execs = entry.execs.swap_remove(place);
            if !died_with_pid1 {
                execs.report_end(reaped);
            }
            self.unwatch_exec(&execs);
        } else if let Some(place) = entry.remounts.iter().position(|child| child.pid == pid) {
            let child = entry.remounts.swap_remove(place);
            self.unwatch(&child.pidfd);
        }
    }

    fn unwatch_exec(&self, execs: &ExecChild) {
        self.unwatch(&execs.pidfd);
        execs
            .channel
            .iter()
            .for_each(|channel| self.unwatch(channel));
    }

    fn on_sandbox_end(&mut self, number: u32, reaped: WaitResult) {
        let Some(entry) = self.sandboxes.remove(&number) else {
            return;
        };
        self.unwatch(&entry.pid1.pidfd);
        self.unwatch(&entry.channel);
        if let Some(ready) = &entry.ready {
            self.unwatch(ready);
        }
        for program in &entry.programs {
            self.unwatch(&program.pidfd);
            // It was killed with its pid namespace and waits to be reaped.
            _ = sys::reap(program.pid, true);
        }
        for execs in &entry.execs {
            self.unwatch_exec(execs);
            _ = sys::reap(execs.pid, true);
        }
        for child in &entry.remounts {
            self.unwatch(&child.pidfd);
            _ = sys::reap(child.pid, true);
        }
        // The engine may have closed its end: that is how it asks for this.
        _ = protocol::send(
            &entry.channel,
            &Report::Gone(ProcessExit {
                alone: true,
                ..reaped.into()
            }),
            &[],
        );
        if let Some(namespace_pool) = &mut self.namespace_pool {
            let handles: Vec<_> = entry
                .namespaces
                .into_iter()
                .map(|(_, namespace)| namespace)
                .collect();
            namespace_pool.clear(&handles);
            namespace_pool.replenish();
        }
    }
}

impl LauncherNamespaces {
    /// Children forked from now on are born in the pid namespace of the sandbox.
    fn enter(&self, entry: &SandboxEntry) -> io::Result<()> {
        match entry
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
            // The next sandbox would be born in this one.
            sys::exit(1);
        }
    }
}

impl SandboxEntry {
    fn new(
        channel: OwnedFd,
        pid1: ChildProcess,
        ready: OwnedFd,
        plan: &SandboxPlan,
        pooled: Option<PooledNamespaces>,
        cgroup: Option<OwnedFd>,
    ) -> SandboxEntry {
        let (namespaces, user_namespace) = match pooled {
            Some(pooled) => (
                vec![(Step::NetNamespace, pooled.network)],
                Some(pooled.user),
            ),
            None => (Vec::new(), None),
        };
        let known = |step: &Step| namespaces.iter().any(|(known, _)| known == step);
        let spaces = pid1::namespaces(plan)
            .map(|(step, _)| step)
            .filter(|step| !known(step))
            .collect();
        SandboxEntry {
            children: children(pid1.pid),
            channel,
            pid1,
            ready: Some(ready),
            spaces,
            namespaces,
            user_namespace,
            cgroup,
            programs: Vec::new(),
            execs: Vec::new(),
            remounts: Vec::new(),
            terminals: None,
            stays: plan.stays,
            warm: plan.warm,
            is_ending: false,
        }
    }

    /// Whether pid 1 is the only process left. An orphan becomes its child before the orphan's
    /// parent can be reaped, and pid 1 forks nothing itself. Without the kernel's list the answer
    /// is no.
    fn is_empty(&self) -> bool {
        self.children
            .as_ref()
            .is_some_and(|list| matches!(list.read_at(&mut [0; 16], 0), Ok(0)))
    }

    /// The namespaces that a program joins; it is born into the pid namespace.
    fn joined_namespaces(&self) -> Vec<RawFd> {
        let joined_namespaces = self
            .namespaces
            .iter()
            .filter(|(step, _)| *step != Step::PidNamespace);
        joined_namespaces
            .map(|(_, namespace)| containment::raw(namespace.as_fd()))
            .collect()
    }

    /// The user namespace of the program, known once pid 1 is ready.
    fn user_namespace(&self) -> io::Result<RawFd> {
        let ready = self
            .user_namespace
            .as_ref()
            .filter(|_| self.ready.is_none());
        ready
            .map(|users| containment::raw(users.as_fd()))
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
            // A process that has ended is no error.
            _ = rustix::process::pidfd_send_signal(&program.pidfd, signal);
        }
    }
}

impl From<WaitResult> for ProcessExit {
    fn from(reaped: WaitResult) -> ProcessExit {
        let WaitResult {
            status,
            cpu_us,
            peak_bytes,
        } = reaped;
        ProcessExit {
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

    #[test]
    fn a_process_that_exits_is_distinguished_from_one_that_lives_whatever_its_name() {
        let line = |flags: u32| format!("7 (a) 4 4 (b)) S 1 7 7 0 -1 {flags} 82 0 0");
        assert!(stat_is_exiting(&line(0x40_0144)));
        assert!(!stat_is_exiting(&line(0x40_0140)));
        let own = std::fs::read_to_string("/proc/self/stat").expect("our own");
        assert!(!stat_is_exiting(&own), "{own}");
    }

    #[test]
    fn a_zombie_has_exited_for_the_kernel() {
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("true starts");
        let ended = ChildProcess {
            pid: child.id() as i32,
            pidfd: rustix::process::pidfd_open(
                rustix::process::Pid::from_child(&child),
                PidfdFlags::empty(),
            )
            .expect("a child of ours"),
            last: false,
        };
        let mut over = [rustix::event::PollFd::new(
            &ended.pidfd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut over, None).expect("it ends");
        assert!(ended.is_exiting());
        child.wait().expect("it is reaped");
        assert!(
            !ended.is_exiting(),
            "of one that is reaped nothing is known"
        );
    }

    /// A sandbox with a channel and pid 1, and the engine's end of the channel.
    fn a_sandbox() -> (SandboxEntry, OwnedFd) {
        let (channel, engine) = protocol::pair().unwrap();
        let entry = Handover {
            pid1: 0,
            program: 0,
            last: false,
            namespaces: Vec::new(),
        };
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let mut entry = entry.adopt(vec![channel, null(), null(), null()]).unwrap();
        entry.programs.clear();
        (entry, engine)
    }

    #[allow(clippy::zombie_processes, reason = "what is tested here reaps it")]
    fn a_program() -> ChildProcess {
        let child = Process::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        let known = rustix::process::Pid::from_raw(pid).unwrap();
        let pidfd = rustix::process::pidfd_open(known, PidfdFlags::empty()).unwrap();
        let last = false;
        ChildProcess { pid, pidfd, last }
    }

    fn reports_started(engine: &OwnedFd) -> bool {
        let report = protocol::receive::<Report>(engine).unwrap();
        matches!(report, Some((Report::Started(_), handles)) if handles.len() == 1)
    }

    #[test]
    fn a_program_that_has_started_and_cannot_be_watched_is_reported_as_started_and_ends() {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (mut entry, engine) = a_sandbox();
        let program = a_program();
        let started = entry.started(&events, 1, program, Steps::default(), None);
        assert!(started.is_ok() && reports_started(&engine));
        assert_eq!(entry.programs.len(), 1, "the positive control");
        entry.programs[0].kill_and_reap();

        // A file stands for an epoll that takes no more: watches are counted for each user, and the kernel's limit of them
        // is not ours to lower.
        let refuses = OwnedFd::from(File::open("/dev/null").unwrap());
        let (mut entry, engine) = a_sandbox();
        let program = a_program();
        let pid = program.pid;
        let started = entry.started(&refuses, 1, program, Steps::default(), None);
        assert!(started.is_err(), "the sandbox is destroyed");
        assert!(entry.programs.is_empty());
        // Closes the channel: a missing report is then seen as such.
        drop(entry);
        assert!(reports_started(&engine));
        let gone = sys::reap(pid, false);
        assert!(gone.is_err(), "killed and reaped: it is no child any more");
    }
}
