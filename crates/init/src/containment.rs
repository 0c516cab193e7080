//! The order of containment, in one place. Each step only removes power.
//!
//! This runs in a vfork child: it shares the launcher's memory, so it allocates nothing, and the
//! launcher reads what it writes into [`ChildContext`] once it wakes.

use crate::{
    cpu_affinity, landlock,
    plan::{ExecArgs, ProgramPlan},
    seccomp, seccomp_notify,
    step::{Step, Steps},
    sys::{self, CStringArray},
};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
    process::{Signal, set_parent_process_death_signal},
    thread::{CapabilitySet, CapabilitySets, ThreadNameSpaceType, move_into_thread_name_spaces},
};
use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd},
};

/// Everything that the child needs, prepared before the clone.
pub(crate) struct ChildContext<'a> {
    pub(crate) plan: &'a ProgramPlan,
    /// The sandbox's namespaces, except the pid and user namespaces.
    pub(crate) namespaces: &'a [RawFd],
    pub(crate) user_namespace: RawFd,
    pub(crate) filters: &'a SeccompFilters,
    pub(crate) landlock: u32,
    /// What to execute; without it the process is a prepared child.
    pub(crate) start: Option<ExecTarget<'a>>,
    /// The seccomp listener, in the child's own descriptor table; written by the child.
    pub(crate) listener: Option<RawFd>,
    /// The steps done; written by the child.
    pub(crate) done: Steps,
    /// The step that failed; written by the child.
    pub(crate) failed: Option<(Step, i32)>,
    /// Whether the child reached exec; written by the child.
    pub(crate) reached_exec: bool,
}

/// The seccomp filters, and the sockets that carry the listener to the launcher.
pub(crate) struct SeccompFilters {
    notifying: Vec<libc::sock_filter>,
    silent: Vec<libc::sock_filter>,
    /// Flags for a listener, where the kernel has listeners.
    listener_flags: Option<u64>,
    /// The program's end of a socket pair, and the launcher's.
    pub(crate) listener_sockets: (OwnedFd, OwnedFd),
}

impl SeccompFilters {
    pub(crate) fn new() -> io::Result<SeccompFilters> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(SeccompFilters {
            notifying: seccomp::program(),
            silent: seccomp::program_without_listener(),
            listener_flags: seccomp_notify::listener_flags(),
            listener_sockets: socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?,
        })
    }

    /// Installs the filter; returns its listener, if there can be one.
    fn install(&self) -> io::Result<Option<OwnedFd>> {
        let listener = match self
            .listener_flags
            .map(|flags| sys::install_filter(&self.notifying, flags))
        {
            // Another process listens to this one already, and the kernel allows one listener.
            Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => None,
            Some(installed) => installed?,
            None => None,
        };
        match listener {
            Some(listener) => Ok(Some(listener)),
            None => sys::install_filter(&self.silent, 0),
        }
    }
}

/// A program and its standard streams, as `execve` takes them.
pub(crate) struct ExecTarget<'a> {
    candidates: &'a [CString],
    argv: CStringArray,
    env: CStringArray,
    streams: [RawFd; 3],
}

impl<'a> ExecTarget<'a> {
    pub(crate) fn new(exec_args: &'a ExecArgs, streams: [BorrowedFd<'_>; 3]) -> ExecTarget<'a> {
        let argv = CStringArray::to(&exec_args.argv);
        let env = CStringArray::to(&exec_args.env);
        ExecTarget {
            candidates: &exec_args.candidates,
            argv,
            env,
            streams: streams.map(raw),
        }
    }
}

/// Runs the child up to exec.
pub(crate) fn run_child(context: &mut ChildContext<'_>) -> ! {
    let (step, error) = contain_and_exec(context);
    context.failed = Some((step, error.raw_os_error().unwrap_or(libc::EIO)));
    sys::exit(127)
}

/// Takes the steps and executes the program; returns only the step that failed.
fn contain_and_exec(context: &mut ChildContext<'_>) -> (Step, io::Error) {
    if let Err(failed) = contain(context) {
        return failed;
    }
    let filters = context.filters;
    let listener = context.listener.map(sys::borrow);
    if let Some(Err(error)) =
        listener.map(|it| seccomp_notify::send_listener(filters.listener_sockets.0.as_fd(), it))
    {
        return (Step::SyscallFilter, error);
    }
    if let Err(failed) = context.limit_open_files() {
        return failed;
    }
    context.reached_exec = true;
    let exact = context.plan.steps.has(Step::EmptyEnvironment);
    if exact {
        context.done.add(Step::EmptyEnvironment);
    }
    match &context.start {
        Some(start) => (Step::Exec, start.exec(exact)),
        None => (Step::Exec, io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// All steps except the limit of open files: the kernel lets no process send a descriptor while its
/// user has more of them in flight than that limit, so the listener is sent first.
pub(crate) fn contain(context: &mut ChildContext<'_>) -> Result<(), (Step, io::Error)> {
    let plan = context.plan;
    context.step(Step::JoinNamespaces, |it| join(it))?;
    context.step(Step::EnterUserNamespace, |it| {
        enter_user_namespace(it.user_namespace)
    })?;
    context.step(Step::Credentials, |it| become_user(it))?;
    context.step(Step::NoCapabilities, |_| drop_capabilities())?;
    context.step(Step::NoNewPrivileges, |_| {
        Ok(rustix::thread::set_no_new_privs(true)?)
    })?;
    context.step(Step::Descriptors, |it| arrange_descriptors(it))?;
    if context.landlock > 0 {
        context.step(Step::PathRules, |it| {
            landlock::restrict(it.landlock, &plan.writable, plan.landlock_scope)
        })?;
    }
    // The limit of open files comes last: the launcher's descriptors are open here, and count.
    context.step(Step::ResourceLimits, |_| {
        set_nice(plan.nice)?;
        limit_resources(plan, |it| it != libc::RLIMIT_NOFILE)
    })?;
    if let Some(count) = plan.cpus {
        context.step(Step::Affinity, |_| cpu_affinity::limit_to(count))?;
    }
    let mut listener = None;
    context.step(Step::SyscallFilter, |it| {
        listener = it.filters.install()?;
        Ok(())
    })?;
    context.listener = listener.map(IntoRawFd::into_raw_fd);
    Ok(())
}

impl ChildContext<'_> {
    /// The last step before exec.
    pub(crate) fn limit_open_files(&mut self) -> Result<(), (Step, io::Error)> {
        let plan = self.plan;
        self.step(Step::ResourceLimits, |_| {
            limit_resources(plan, |it| it == libc::RLIMIT_NOFILE)
        })
    }

    fn step(
        &mut self,
        step: Step,
        take: impl FnOnce(&Self) -> io::Result<()>,
    ) -> Result<(), (Step, io::Error)> {
        if !self.plan.steps.has(step) {
            return Ok(());
        }
        take(self).map_err(|error| (step, error))?;
        self.done.add(step);
        Ok(())
    }
}

/// The pid namespace is not among them: a process is born into it.
fn join(context: &ChildContext<'_>) -> io::Result<()> {
    for namespace in context.namespaces {
        move_into_thread_name_spaces(sys::borrow(*namespace), ThreadNameSpaceType::empty())?;
    }
    enter_directory(&context.plan.directory)
}

/// Symbolic links are followed, because images have them, but no magic link: a program that ran in
/// the sandbox before could have planted one, and this process holds descriptors of host files.
fn enter_directory(path: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let directory = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    Ok(rustix::process::fchdir(directory)?)
}

fn enter_user_namespace(namespace: RawFd) -> io::Result<()> {
    Ok(move_into_thread_name_spaces(
        sys::borrow(namespace),
        ThreadNameSpaceType::USER,
    )?)
}

fn become_user(context: &ChildContext<'_>) -> io::Result<()> {
    use rustix::{
        process::{Gid, Uid},
        thread,
    };
    let ids = context.plan.ids;
    let inside = context.plan.steps.has(Step::EnterUserNamespace);
    let (uid, gid) = if inside {
        (ids.uid, ids.gid)
    } else {
        (ids.outer_uid, ids.outer_gid)
    };
    if ids.drop_groups {
        thread::set_thread_groups(&[])?;
    }
    let uid = Uid::from_raw(uid);
    let gid = Gid::from_raw(gid);
    thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Never lowers the value: a process that was started with a higher one keeps it.
fn set_nice(nice: Option<u32>) -> io::Result<()> {
    let Some(nice) = nice.and_then(|nice| i32::try_from(nice).ok()) else {
        return Ok(());
    };
    match rustix::process::getpriority_process(None)? {
        already if already >= nice => Ok(()),
        _ => Ok(rustix::process::setpriority_process(None, nice)?),
    }
}

fn limit_resources(plan: &ProgramPlan, which: impl Fn(u32) -> bool) -> io::Result<()> {
    let mut limits = plan.rlimits.iter().filter(|limit| which(limit.resource));
    limits.try_for_each(|limit| sys::lower_limit(limit.resource, limit.soft, limit.hard))
}

fn drop_capabilities() -> io::Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        let known = || rustix::thread::capability_is_in_bounding_set(capability);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break, // past the last one this kernel knows
            // In a container they may be dropped already, and with them the right to drop them.
            Err(Errno::PERM) if matches!(known(), Ok(false) | Err(Errno::INVAL)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn arrange_descriptors(context: &ChildContext<'_>) -> io::Result<()> {
    // After the last change of credentials, which would clear it. A prepared child outlives the
    // forker that made it, and is killed with pid 1 of its sandbox.
    if context.start.is_some() {
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    // A session of its own: no controlling terminal except the sandbox's own.
    rustix::process::setsid()?;
    if let Some(start) = &context.start {
        start.take_standard_streams(context.plan.terminal)?;
    }
    sys::close_on_exec_from(3)
}

impl ExecTarget<'_> {
    /// Puts the streams in place. A terminal among them becomes the controlling one.
    pub(crate) fn take_standard_streams(&self, terminal: bool) -> io::Result<()> {
        (0..)
            .zip(self.streams)
            .try_for_each(|(place, stream)| sys::put_stream(stream, place))?;
        if terminal {
            Ok(rustix::process::ioctl_tiocsctty(sys::borrow(
                self.streams[0],
            ))?)
        } else {
            Ok(())
        }
    }

    /// Tries the candidates in order. EACCES for one of them is a better error than ENOENT for the
    /// last.
    pub(crate) fn exec(&self, exact_environment: bool) -> io::Error {
        let mut answer = io::Error::from_raw_os_error(libc::ENOENT);
        for path in self.candidates {
            let error = if exact_environment {
                sys::exec(path, &self.argv, &self.env)
            } else {
                sys::exec_inheriting(path, &self.argv)
            };
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => answer = error,
                _ => return error,
            }
        }
        answer
    }
}

/// The raw descriptor, in one place for the launcher.
pub(crate) fn raw(fd: BorrowedFd<'_>) -> RawFd {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}
