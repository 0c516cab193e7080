//! The first process of a container made by another container engine: `airlock-init --box SOCKET`.
//!
//! The container engine provides the isolation. This process checks each barrier before anything of
//! the image runs, reports which are in force, hands workspace, terminal and listeners out over a
//! socket that is removed by then, and starts the program with the same last steps as in a native
//! sandbox. Then it reaps, and ends when the connection is closed.

use crate::{
    containment::{self, ChildContext, ExecTarget, SeccompFilters},
    exec::ExecChild,
    pid1,
    plan::{ContainerMount, ContainerPlan, FileId, HostOwner, Ids, ProgramPlan},
    prepared_child,
    protocol::{self, Payload, ProcessExit, Report, SandboxCommand},
    seccomp_notify,
    step::{Step, StepFailure, Steps},
    sys::{self, ChildStack, ForkSide},
    template::{self, failure},
    terminal,
    transparent_proxy::{self, Interception},
};
use rustix::{
    event::{PollFd, PollFlags},
    fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{DumpableBehavior, Signal, set_dumpable_behavior},
};
use std::{
    ffi::{CStr, CString, OsStr},
    io,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
};

/// The namespaces that are checked, in the order in which a plan numbers the host's.
pub const NAMESPACES: [(Step, &CStr); 7] = [
    (Step::PidNamespace, c"/proc/self/ns/pid"),
    (Step::MountNamespace, c"/proc/self/ns/mnt"),
    (Step::NetNamespace, c"/proc/self/ns/net"),
    (Step::IpcNamespace, c"/proc/self/ns/ipc"),
    (Step::UtsNamespace, c"/proc/self/ns/uts"),
    (Step::CgroupNamespace, c"/proc/self/ns/cgroup"),
    (Step::EnterUserNamespace, c"/proc/self/ns/user"),
];
/// The scratch mounts. They are handed out, too: only a process that holds them can see whether
/// they are full.
pub const SCRATCH: [&CStr; 4] = [c"/tmp", c"/run", c"/dev/shm", c"/home/agent"];

/// What the check hands out.
struct ContainerResources {
    done: Steps,
    ids: Ids,
    workspace: OwnedFd,
    scratch: Vec<OwnedFd>,
    terminal: Option<OwnedFd>,
    doors: Vec<TcpListener>,
    intercept: Interception,
}

/// Runs this process to its end.
pub(crate) fn main(socket: &OsStr) -> ! {
    _ = rustix::thread::set_name(c"airlock-init");
    sys::default_signals();
    // The program has the same uid: without this it could trace this process and open its
    // descriptors.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        sys::exit(125)
    }
    match begin(socket) {
        Ok(mut first) => first.serve(),
        Err(_) => sys::exit(125),
    }
}

fn begin(socket: &OsStr) -> io::Result<ContainerInit> {
    pid1::close_all_except(&[])?;
    let channel = connect(socket)?;
    let signals = sys::signals(&[libc::SIGCHLD, libc::SIGTERM])?;
    let Some((SandboxCommand::CheckContainer(plan), mut files)) = protocol::receive(&channel)?
    else {
        sys::exit(0)
    };
    let plan: ContainerPlan = plan.read(&mut files)?;
    match check_container(&plan) {
        Ok(found) => send_report(&channel, &found)?,
        Err(failed) => {
            protocol::send(&channel, &Report::Failed(failed), &[])?;
            sys::exit(0)
        }
    }
    Ok(ContainerInit {
        channel,
        signals,
        filters: SeccompFilters::new()?,
        landlock: sys::landlock_version(),
        stack: ChildStack::new(),
        program: None,
        execs: Vec::new(),
        used: ProcessExit {
            status: 0,
            cpu_us: 0,
            peak_bytes: 0,
            alone: false,
        },
    })
}

fn connect(path: &OsStr) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn send_report(channel: &OwnedFd, found: &ContainerResources) -> io::Result<()> {
    let mut handles = vec![found.workspace.as_fd()];
    handles.extend(found.scratch.iter().map(AsFd::as_fd));
    handles.extend(found.terminal.iter().map(AsFd::as_fd));
    handles.extend(found.doors.iter().map(AsFd::as_fd));
    handles.extend(found.intercept.handles());
    let steps = found.done;
    let ids = found.ids;
    let intercept = found.intercept.handle_counts();
    protocol::send(
        channel,
        &Report::Ready {
            steps,
            ids,
            unmapped: Vec::new(),
            covered: Vec::new(),
            intercept,
        },
        &handles,
    )
}

/// Checks each barrier.
fn check_container(plan: &ContainerPlan) -> Result<ContainerResources, StepFailure> {
    let mut done = Steps::default();
    for ((step, path), outside) in NAMESPACES.into_iter().zip(&plan.namespaces) {
        let found = rustix::fs::statat(CWD, path, AtFlags::empty())
            .map_err(|error| failure(step, &path.to_string_lossy())(error.into()))?;
        if found.st_ino != *outside {
            done.add(step);
        }
    }
    let checks = [
        (Step::ReadOnlyRoot, read_only(c"/")),
        (Step::Proc, read_only(c"/proc/sys")),
        (
            Step::Scratch,
            scratch_bytes(plan).map(|bytes| bytes <= plan.scratch_bytes),
        ),
    ];
    for (step, holds) in checks {
        if holds.map_err(failure(step, step.name()))? {
            done.add(step);
        }
    }
    let ids = credentials(plan.user)?;
    plan.host_mounts.iter().try_for_each(check_mount)?;
    let workspace = prepare_workspace(plan)?;
    done.add(Step::Workspace);
    if read_only_below(&plan.read_only).map_err(failure(Step::Mounts, "/proc/self/mountinfo"))? {
        done.add(Step::Mounts);
    }
    let doors =
        transparent_proxy::open_doors(&plan.doors).map_err(failure(Step::Doors, "listen"))?;
    if plan.shared_network || only_loopback().map_err(failure(Step::Doors, "/proc/net/dev"))? {
        done.add(Step::Doors);
    }
    let intercept = |intercept| {
        transparent_proxy::intercept_loopback(intercept, &plan.doors, plan.shared_network)
    };
    let intercept = plan.intercept.as_ref().map(intercept);
    let intercept = intercept.transpose().map_err(failure(
        Step::TransparentProxy,
        "listen at ports below 1024",
    ))?;
    if intercept.is_some() {
        done.add(Step::TransparentProxy);
    }
    let scratch = SCRATCH
        .into_iter()
        .map(open_scratch)
        .collect::<Result<_, _>>()?;
    let terminal = plan.terminal.then(open_terminal);
    let terminal = terminal
        .transpose()
        .map_err(failure(Step::Terminal, "/dev/ptmx"))?;
    Ok(ContainerResources {
        done,
        ids,
        workspace,
        scratch,
        terminal,
        doors,
        intercept: intercept.unwrap_or_default(),
    })
}

/// Container engines look numeric users up in the image's own lists of users and groups, and add
/// the groups that they find; without capabilities this process cannot drop them.
fn credentials(expected: HostOwner) -> Result<Ids, StepFailure> {
    let refused =
        |what: &str| failure(Step::Credentials, what)(io::Error::from_raw_os_error(libc::EPERM));
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    if (uid, gid) != (expected.uid, expected.gid) {
        return Err(refused(&format!(
            "uid {uid} gid {gid}, which the image makes of the user asked for"
        )));
    }
    let groups = rustix::process::getgroups();
    let groups = groups.map_err(|error| failure(Step::Credentials, "groups")(error.into()))?;
    match groups.into_iter().find(|group| group.as_raw() != gid) {
        Some(group) => Err(refused(&format!(
            "group {group}, which the image adds to the program's own"
        ))),
        None => Ok(Ids {
            uid,
            gid,
            outer_uid: uid,
            outer_gid: gid,
            drop_groups: false,
        }),
    }
}

fn check_mount(mount: &ContainerMount) -> Result<(), StepFailure> {
    let at = failure(Step::OpenPaths, &mount.inside.to_string_lossy());
    match rustix::fs::statat(CWD, &mount.inside, AtFlags::empty()) {
        Ok(found)
            if (FileId {
                device: found.st_dev,
                inode: found.st_ino,
            }) == mount.id =>
        {
            Ok(())
        }
        Ok(_) => Err(at(io::Error::from_raw_os_error(libc::ESTALE))),
        Err(error) => Err(at(error.into())),
    }
}

fn read_only(path: &CStr) -> io::Result<bool> {
    Ok(rustix::fs::statvfs(path)?
        .f_flag
        .contains(StatVfsMountFlags::RDONLY))
}

/// Whether every mount at or below these paths is read-only.
fn read_only_below(places: &[CString]) -> io::Result<bool> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let lines = mounts
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let mut seen = vec![false; places.len()];
    for line in lines {
        let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
        let [_, _, _, _, point, options, ..] = words[..] else {
            continue;
        };
        for (seen, place) in seen.iter_mut().zip(places) {
            let below = point.strip_prefix(place.to_bytes());
            if below.is_some_and(|rest| rest.is_empty() || rest[0] == b'/') {
                *seen = true;
                if !options
                    .split(|byte| *byte == b',')
                    .any(|option| option == b"ro")
                {
                    return Ok(false);
                }
            }
        }
    }
    Ok(seen.into_iter().all(|seen| seen))
}

/// The size of all scratch mounts.
fn scratch_bytes(plan: &ContainerPlan) -> io::Result<u64> {
    let workspace = plan.fresh_workspace.then_some(c"/workspace");
    let size = |path: &CStr| rustix::fs::statvfs(path).map(|space| space.f_blocks * space.f_frsize);
    SCRATCH
        .into_iter()
        .chain(workspace)
        .try_fold(0, |sum, path| Ok(sum + size(path)?))
}

fn open_scratch(path: &CStr) -> Result<OwnedFd, StepFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .map_err(|error| failure(Step::Scratch, &path.to_string_lossy())(error.into()))
}

fn prepare_workspace(plan: &ContainerPlan) -> Result<OwnedFd, StepFailure> {
    let at = |path: &CStr| failure(Step::Workspace, &path.to_string_lossy());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let workspace = rustix::fs::openat(CWD, c"/workspace", flags, Mode::empty())
        .map_err(|error| at(c"/workspace")(error.into()))?;
    for path in &plan.workspace_directories {
        match rustix::fs::mkdirat(&workspace, path, Mode::from_raw_mode(0o755)) {
            // A mount point.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(at(path)(error.into())),
        }
    }
    if plan.fresh_workspace {
        template::link_home(&workspace).map_err(at(c".home"))?;
    }
    Ok(workspace)
}

/// Whether `lo` is the only network interface.
pub(crate) fn only_loopback() -> io::Result<bool> {
    let text = std::fs::read_to_string("/proc/self/net/dev")?;
    let mut names = text
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next());
    Ok(names.all(|name| name.trim() == "lo"))
}

/// Opens a terminal in the container's own devpts.
fn open_terminal() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    terminal::open(rustix::fs::openat(CWD, c"/dev/pts", flags, Mode::empty())?)
}

/// This process reads its signals from a signalfd; the program gets them as usual.
fn child(context: &mut ChildContext<'_>) -> ! {
    sys::unblock_signals();
    containment::run_child(context)
}

/// The first process of a container, after the check.
struct ContainerInit {
    channel: OwnedFd,
    signals: OwnedFd,
    filters: SeccompFilters,
    landlock: u32,
    stack: ChildStack,
    program: Option<(i32, OwnedFd)>,
    /// Programs of a session.
    execs: Vec<ExecChild>,
    /// The resource usage of all reaped processes.
    used: ProcessExit,
}

impl ContainerInit {
    fn serve(&mut self) -> ! {
        loop {
            let (commanded, signalled, exec_pids) = self.wait();
            for pid in exec_pids {
                // A channel that was closed is dropped here.
                self.execs
                    .iter_mut()
                    .find(|it| it.pid == pid)
                    .and_then(ExecChild::on_command);
            }
            if signalled && self.on_signals() {
                sys::exit(128 + libc::SIGTERM)
            }
            // The engine has closed the connection: this process ends, and the kernel kills the
            // rest.
            if commanded && self.on_command().is_err() {
                sys::exit(0)
            }
        }
    }

    /// Waits for something to do: a command, a signal, messages of execs.
    fn wait(&self) -> (bool, bool, Vec<i32>) {
        let channels = self
            .execs
            .iter()
            .filter_map(|it| Some((it.pid, it.channel.as_ref()?)));
        let (pids, channels): (Vec<_>, Vec<_>) = channels.unzip();
        let all = [&self.channel, &self.signals].into_iter().chain(channels);
        let mut ready: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => sys::exit(125),
        }
        let has = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let exec_pids = pids
            .into_iter()
            .zip(&ready[2..])
            .filter(|(_, fd)| has(fd))
            .map(|(pid, _)| pid);
        (has(&ready[0]), has(&ready[1]), exec_pids.collect())
    }

    fn on_command(&mut self) -> io::Result<()> {
        let over = || Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        match protocol::receive::<SandboxCommand>(&self.channel)? {
            Some((SandboxCommand::Exec(plan), files)) => match self.exec(&plan, files) {
                Ok((steps, listener)) => {
                    let handles: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
                    protocol::send(&self.channel, &Report::Started(steps), &handles)
                }
                Err(failed) => protocol::send(&self.channel, &Report::Failed(failed), &[]),
            },
            Some((SandboxCommand::StartExec(plan), files)) => {
                self.on_start(&plan, files);
                Ok(())
            }
            Some((SandboxCommand::Terminal, files)) => {
                files
                    .iter()
                    .for_each(|answer| terminal::answer(answer, open_terminal()));
                Ok(())
            }
            Some((SandboxCommand::Signal(number), _)) => {
                if let (Some((_, pidfd)), Some(signal)) =
                    (&self.program, Signal::from_named_raw(number))
                {
                    // A process that has ended is no error.
                    _ = rustix::process::pidfd_send_signal(pidfd, signal);
                }
                Ok(())
            }
            Some((SandboxCommand::Destroy, _)) | None => over(),
            Some((
                SandboxCommand::Prepare(_)
                | SandboxCommand::CheckContainer(_)
                | SandboxCommand::Remount(_),
                _,
            )) => over(),
        }
    }

    fn exec(
        &mut self,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
    ) -> Result<(Steps, Option<OwnedFd>), StepFailure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let wrong = |what: &str, errno| at(what)(io::Error::from_raw_os_error(errno));
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        let [input, output, error] =
            <[OwnedFd; 3]>::try_from(files).map_err(|_| wrong("handles", libc::EBADF))?;
        let exec_args = plan
            .exec_args
            .as_ref()
            .ok_or_else(|| wrong("exec arguments", libc::EINVAL))?;
        let streams = [input.as_fd(), output.as_fd(), error.as_fd()];
        let mut context = ChildContext {
            namespaces: &[],
            user_namespace: -1,
            filters: &self.filters,
            listener: None,
            landlock: self.landlock,
            start: Some(ExecTarget::new(exec_args, streams)),
            plan: &plan,
            done: Steps::default(),
            failed: None,
            reached_exec: false,
        };
        let born = sys::vfork_on_stack(&mut self.stack, None, child, &mut context);
        let (pid, pidfd) = born.map_err(at("clone"))?;
        let listener = seccomp_notify::receive_listener(self.filters.listener_sockets.1.as_fd());
        let failed = context.failed;
        let reached = context.reached_exec;
        let done = context.done;
        if failed.is_some() || !reached {
            _ = sys::reap(pid, true);
            let (step, errno) = failed.unwrap_or((Step::JoinNamespaces, libc::EINTR));
            return Err(StepFailure {
                step,
                errno,
                detail: exec_args.argv[0].to_string_lossy().into_owned(),
            });
        }
        self.program = Some((pid, pidfd));
        Ok((done, listener))
    }

    /// A failure is reported on the socket of the prepared child.
    fn on_start(&mut self, plan: &Payload, mut files: Vec<OwnedFd>) {
        // They come after the file of a large plan.
        let (Some(standby), Some(channel)) = (files.pop(), files.pop()) else {
            return;
        };
        match self.start(plan, files, &standby) {
            Ok((pid, pidfd)) => self.execs.push(ExecChild {
                pid,
                pidfd,
                channel: Some(channel),
            }),
            // An engine that has closed its end has given up the program, too.
            Err(failed) => _ = protocol::send(&standby, &Report::Failed(failed), &[]),
        }
    }

    /// Forks a prepared child for an exec.
    fn start(
        &self,
        plan: &Payload,
        mut files: Vec<OwnedFd>,
        standby: &OwnedFd,
    ) -> Result<(i32, OwnedFd), StepFailure> {
        let at = |what: &str| failure(Step::JoinNamespaces, what);
        let plan: ProgramPlan = plan.read(&mut files).map_err(at("plan"))?;
        ExecChild::check_limit(&self.execs)?;
        match sys::fork_into(0, None).map_err(at("fork"))? {
            ForkSide::Parent { pid, pidfd } => Ok((pid, pidfd)),
            ForkSide::Child => {
                sys::unblock_signals();
                let context = ChildContext {
                    namespaces: &[],
                    user_namespace: -1,
                    filters: &self.filters,
                    listener: None,
                    landlock: self.landlock,
                    start: None,
                    plan: &plan,
                    done: Steps::default(),
                    failed: None,
                    reached_exec: false,
                };
                prepared_child::run(context, standby)
            }
        }
    }

    /// Reaps; returns whether the container engine asked this process to end. The program may not
    /// ask for that.
    fn on_signals(&mut self) -> bool {
        let mut asked = false;
        while let Some((number, from_outside)) = sys::next_signal(&self.signals) {
            asked |= number == libc::SIGTERM && from_outside;
        }
        self.reap(false);
        asked
    }

    /// Everything else ends with the program, and its exit is reported last: nothing can change
    /// afterwards.
    fn reap(&mut self, wait: bool) {
        while let Ok(Some((pid, reaped))) = sys::reap(-1, wait) {
            self.used.cpu_us += reaped.cpu_us;
            self.used.peak_bytes = self.used.peak_bytes.max(reaped.peak_bytes);
            if let Some(place) = self.execs.iter().position(|execs| execs.pid == pid) {
                self.execs.swap_remove(place).report_end(reaped);
                continue;
            }
            if self
                .program
                .take_if(|(program, _)| *program == pid)
                .is_some()
            {
                sys::kill_all();
                self.reap(true);
                let ended = ProcessExit {
                    status: reaped.status,
                    alone: true,
                    ..self.used
                };
                if protocol::send(&self.channel, &Report::Ended(ended), &[]).is_err() {
                    sys::exit(0)
                }
            }
        }
    }
}
