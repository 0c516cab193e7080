//! The engine's end of the launcher: starts it from memory and speaks its protocol.

use super::SandboxError;
use init::{
    plan::{ContainerNetworkPlan, Ids, NamespacePoolPlan, SandboxPlan, TemplatePlan},
    protocol::{self, InterceptHandles, LauncherRequest, Payload, Report, SandboxCommand},
    step::Steps,
    wire::Wire,
};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
    net::RecvFlags,
};
use std::{
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock},
};
use tokio::{io::Interest, net::UnixDatagram};

/// One end of a message socket. To tokio it is a datagram socket, which differs only in how a
/// connection is made; ours come connected.
#[derive(Debug)]
pub(crate) struct Channel(UnixDatagram);

impl Channel {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Channel> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        UnixDatagram::from_std(socket).map(Channel)
    }

    /// The next report, or `None` when the other end is closed.
    pub(crate) async fn report(&self) -> io::Result<Option<(Report, Vec<OwnedFd>)>> {
        self.0
            .async_io(Interest::READABLE, || protocol::receive(&self.0))
            .await
    }

    pub(crate) fn send<T: Wire>(&self, message: &T, handles: &[BorrowedFd<'_>]) -> io::Result<()> {
        protocol::send(&self.0, message, handles)
    }

    /// Whether no message has arrived and the other end is open. Asks the kernel: what the event
    /// loop knows of the socket is as old as its last turn.
    pub(crate) fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.0, &mut [0; 1], flags)
            .is_err_and(|error| error == Errno::WOULDBLOCK)
    }

    pub(crate) fn command(&self, command: SandboxCommand) -> io::Result<()> {
        self.send(&command, &[])
    }

    /// A command with a plan, whose memfd comes before the other descriptors if it is large.
    pub(crate) fn send_plan<T: Wire>(
        &self,
        command: fn(Payload) -> SandboxCommand,
        plan: &T,
        handles: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let (payload, file) = Payload::new(plan)?;
        let handles: Vec<_> = file
            .iter()
            .map(AsFd::as_fd)
            .chain(handles.iter().copied())
            .collect();
        self.send(&command(payload), &handles)
    }
}

/// A live launcher, or a cgroup v1 forker of one. Dropping it ends it with all its sandboxes.
#[derive(Debug)]
pub(super) struct Launcher {
    control: Channel,
    /// The steps that it took for all its sandboxes.
    pub(super) steps: Steps,
    /// The launcher of a forker: its end would be the forker's.
    _parent: Option<Arc<Launcher>>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> SandboxError {
    move |source| SandboxError::Launcher { what, source }
}

impl Launcher {
    /// Sends the template to a launcher process, and waits until it is built.
    pub(super) async fn start(
        process: LauncherProcess,
        plan: &TemplatePlan,
        first: Option<Ids>,
    ) -> Result<Launcher, SandboxError> {
        let (plan, file) = Payload::new(plan).map_err(failed("send the plan to"))?;
        let LauncherProcess { mut child, control } = process;
        let control = Channel::new(control).map_err(failed("connect to"))?;
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        control
            .send(&LauncherRequest::Template { plan, first }, &files)
            .map_err(failed("send the plan to"))?;
        let launcher = Launcher::receive_hello(control).await;
        // The process that we started ends as soon as it has forked the launcher into its own pid
        // namespace.
        child.wait().map_err(failed("wait for"))?;
        launcher
    }

    /// Forks the launcher into version 1 cgroups.
    pub(super) async fn cgroup_forker(
        self: &Arc<Self>,
        groups: &[OwnedFd],
    ) -> Result<Launcher, SandboxError> {
        let (ours, theirs) = protocol::pair().map_err(failed("connect to"))?;
        let handles: Vec<_> = [theirs.as_fd()]
            .into_iter()
            .chain(groups.iter().map(AsFd::as_fd))
            .collect();
        self.control
            .send(&LauncherRequest::CgroupForker, &handles)
            .map_err(failed("fork"))?;
        drop(theirs);
        let cgroup_forker =
            Launcher::receive_hello(Channel::new(ours).map_err(failed("connect to"))?).await?;
        Ok(Launcher {
            steps: self.steps,
            _parent: Some(self.clone()),
            ..cgroup_forker
        })
    }

    async fn receive_hello(control: Channel) -> Result<Launcher, SandboxError> {
        match control.report().await.map_err(failed("hear from"))? {
            Some((Report::Hello(steps), _)) => Ok(Launcher {
                control,
                steps,
                _parent: None,
            }),
            Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    /// Lets it keep namespaces ready from now on.
    pub(super) fn start_namespace_pool(&self, plan: NamespacePoolPlan) -> Result<(), SandboxError> {
        self.control
            .send(&LauncherRequest::NamespacePool(plan), &[])
            .map_err(failed("start the namespace pool of"))
    }

    /// Requests a sandbox; the reply comes on the channel. `inherited` stays open as long as the
    /// sandbox lives.
    pub(super) fn request_sandbox(
        &self,
        plan: &SandboxPlan,
        cgroup: Option<BorrowedFd<'_>>,
        inherited: Option<BorrowedFd<'_>>,
    ) -> io::Result<Channel> {
        let (ours, theirs) = protocol::pair()?;
        let (plan, file) = Payload::new(plan)?;
        let file = file.iter().map(AsFd::as_fd);
        let handles: Vec<_> = file
            .chain([theirs.as_fd()])
            .chain(cgroup)
            .chain(inherited)
            .collect();
        self.control.send(
            &LauncherRequest::Sandbox {
                plan,
                cgroup: cgroup.is_some(),
            },
            &handles,
        )?;
        Channel::new(ours)
    }
}

/// Sets up transparent proxying in the network of a container, if we have power over it.
pub(crate) async fn set_up_network(
    network: OwnedFd,
    plan: &ContainerNetworkPlan,
) -> Result<(InterceptHandles, Vec<OwnedFd>), SandboxError> {
    let LauncherProcess { mut child, control } =
        LauncherProcess::new(true).map_err(failed("start"))?;
    let control = Channel::new(control).map_err(failed("connect to"))?;
    let (plan, file) = Payload::new(plan).map_err(failed("send the plan to"))?;
    let handles: Vec<_> = file
        .iter()
        .map(AsFd::as_fd)
        .chain([network.as_fd()])
        .collect();
    control
        .send(&LauncherRequest::ContainerNetwork(plan), &handles)
        .map_err(failed("send the plan to"))?;
    let report = control.report().await.map_err(failed("hear from"))?;
    // The process ends after its report.
    child.wait().map_err(failed("wait for"))?;
    match report {
        Some((Report::NetworkReady(sockets), handles)) => Ok((sockets, handles)),
        Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
        Some(_) | None => Err(SandboxError::Died),
    }
}

/// The process of a launcher that has no template yet.
#[derive(Debug)]
pub(super) struct LauncherProcess {
    child: Child,
    control: OwnedFd,
}

impl LauncherProcess {
    pub(super) fn new(clear_env: bool) -> io::Result<LauncherProcess> {
        let (ours, theirs) = protocol::pair()?;
        Ok(LauncherProcess {
            child: spawn(theirs, clear_env)?,
            control: ours,
        })
    }
}

fn spawn(control: OwnedFd, clear_env: bool) -> io::Result<Child> {
    let program = sealed_launcher()?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.arg0(init::LAUNCHER_NAME).current_dir("/");
    command
        .stdin(control)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if clear_env {
        command.env_clear();
    }
    command.spawn()
}

/// The launcher's program in a sealed memfd: it cannot be changed, also not through
/// `/proc/PID/exe`.
fn sealed_launcher() -> io::Result<&'static OwnedFd> {
    static SEALED: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = SEALED.get() {
        return Ok(file);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match rustix::fs::memfd_create(c"airlock-init", flags | MemfdFlags::EXEC) {
        // Linux before 6.3 lacks the flag and needs none.
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"airlock-init", flags)?,
        other => other?,
    };
    let mut file = File::from(file);
    file.write_all(init::LAUNCHER)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(SEALED.get_or_init(|| file.into()))
}
