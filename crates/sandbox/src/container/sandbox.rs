//! A live container: created and started by its engine, controlled through our own first process in
//! it.

use super::{
    api::{EngineApi, EngineApiError},
    create_request::{CreateRequest, SPARE_BYTES, SPARE_PIDS},
    engine::ContainerEngine,
    escaped, of_api, refused,
    staging_dir::StagingDir,
};
use crate::{
    BoxFuture, ExecProcess, FileLocks, Sandbox,
    exec::{self, PreparedChild},
    native::{
        InvokingUser, MissingBarrier, ProcessExit, Program, ReleaseOutcome, SandboxError,
        SandboxEvent, barriers,
        cgroup::{ForeignCgroups, ResourceCounters},
        denials::{self, DenialEvent, DenialRules, WatchBudget},
        launcher::{self, Channel},
        plan, probe,
        protect::{Protection, WorkspaceCleanup},
        taken_down, why_missing,
    },
    transparent_proxy::{self, InterceptReach, InterceptSockets, NetworkOwner},
};
use init::{
    container_init::{NAMESPACES, SCRATCH},
    plan::{ContainerNetworkPlan, ContainerPlan, HostOwner, Ids, InterceptPlan, ProgramPlan},
    protocol::{InterceptHandles, Report, SandboxCommand},
    step::{Step, StepFailure, Steps},
};
use serde_json::Value;
use spec::{Barrier, Enforcer, ErrorCode, SandboxSpec};
use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// How long a container may take to end before the engine kills it.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The last steps of a program in a container; its namespaces and its user are the engine's work.
pub(super) const LAST_STEPS: Steps = Steps::ALL.without(Step::EnterUserNamespace);

/// A live container.
#[derive(Debug)]
pub struct ContainerSandbox {
    engine: Arc<ContainerEngine>,
    id: String,
    channel: Channel,
    spec: SandboxSpec,
    ids: Ids,
    done: Steps,
    groups: Option<ForeignCgroups>,
    workspace: OwnedFd,
    /// The mounts of scratch space.
    scratch: Vec<OwnedFd>,
    terminal: Option<OwnedFd>,
    doors: Vec<TcpListener>,
    intercept: Option<InterceptSockets>,
    reach: Option<InterceptReach>,
    denials: Option<mpsc::Receiver<DenialEvent>>,
    /// The CPU budget of its denial watchers.
    watch_budget: Arc<WatchBudget>,
    protection: Option<Protection>,
    staging_dir: StagingDir,
    notes: Vec<String>,
    /// Every process of it is frozen.
    frozen: bool,
    /// Its first process has ended, and the container is removed.
    removed: bool,
}

/// A container whose first process has connected.
pub(super) struct StartedContainer {
    id: String,
    channel: Channel,
    pid: i32,
    ids: Ids,
    done: Steps,
    workspace: OwnedFd,
    /// The plan of transparent proxying, and the counts of its sockets.
    intercept: Option<(InterceptPlan, NetworkOwner, InterceptHandles)>,
    /// Scratch mounts, the terminal, if there is one, and the listeners.
    handles: Vec<OwnedFd>,
    /// Why its network was not set up from outside.
    note: Option<String>,
}

fn broken(what: &'static str) -> impl Fn(io::Error) -> SandboxError {
    move |source| SandboxError::Launcher { what, source }
}

/// Creates and starts a container, and waits for its first process.
pub(super) async fn start(
    request: &CreateRequest<'_>,
    staging_dir: &StagingDir,
) -> Result<StartedContainer, SandboxError> {
    let api = &request.engine.api;
    let path = format!("/containers/create?name={}", escaped(request.name));
    let made = make(api, &path, &request.body()?)
        .await
        .map_err(of_api("make the container"))?;
    let id = made["Id"].as_str().unwrap_or_default().to_owned();
    let started = match engine_warnings(&made) {
        None => wait_for_init(request, staging_dir, &id).await,
        // A setting that an engine drops with a warning is a missing barrier.
        Some(warning) => Err(refused(
            ErrorCode::BarrierMissing,
            format!("the container engine cannot hold what was asked: {warning}"),
            "use the native backend, or mend the engine's host",
        )),
    };
    if started.is_err() {
        // The sweep finds by the labels what could not be removed.
        _ = super::remove(request.engine, &id).await;
    }
    started
}

/// Retries an error of Podman's own: two requests that look up the user's id ranges at the same
/// time can each find none, because its library (libsubid) keeps them in one buffer for all
/// threads.
async fn make(api: &EngineApi, path: &str, body: &Value) -> Result<Value, EngineApiError> {
    let mut tries = 3;
    loop {
        tries -= 1;
        match api.post(path, Some(body)).await {
            Err(error)
                if tries > 0
                    && error
                        .to_string()
                        .contains("keep-id requires additional UIDs") => {}
            made => return made,
        }
    }
}

fn engine_warnings(made: &Value) -> Option<String> {
    let warnings = made["Warnings"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str)
        .filter(|it| !it.is_empty());
    let all: Vec<_> = warnings.map(|it| it.escape_debug().to_string()).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Attempts to pause a container.
const PAUSE_ATTEMPTS: u32 = 3;

/// Starts a container, and once more if containerd lost the connection to the shim that it had just
/// started: nothing of the container ran then, and the engine leaves it as it was created. It
/// happens on overloaded machines.
async fn begin(api: &EngineApi, id: &str) -> Result<Value, EngineApiError> {
    let path = format!("/containers/{}/start", escaped(id));
    match api.post(&path, None).await {
        Err(error) if is_lost_shim(&error) => api.post(&path, None).await,
        began => began,
    }
}

fn is_lost_shim(error: &EngineApiError) -> bool {
    matches!(error, EngineApiError::Refused { message, .. }
        if message.contains("failed to create shim task: ttrpc: closed"))
}

/// Pauses a container, and again if the runtime could not stop all of its processes: on cgroup v1
/// runc gives up when processes keep appearing or the machine is overloaded, and lets all of them
/// continue.
async fn pause(api: &EngineApi, id: &str) -> Result<Value, EngineApiError> {
    let path = format!("/containers/{}/pause", escaped(id));
    for _ in 1..PAUSE_ATTEMPTS {
        match api.post(&path, None).await {
            Err(error) if is_given_up_pause(&error) => {}
            paused => return paused,
        }
    }
    api.post(&path, None).await
}

fn is_given_up_pause(error: &EngineApiError) -> bool {
    matches!(error, EngineApiError::Refused { message, .. }
        if message.contains("unable to freeze")
            || message.contains(" pause ") && message.contains("failed: exit status"))
}

async fn wait_for_init(
    request: &CreateRequest<'_>,
    staging_dir: &StagingDir,
    id: &str,
) -> Result<StartedContainer, SandboxError> {
    begin(&request.engine.api, id)
        .await
        .map_err(of_api("start the container"))?;
    let (channel, pid) = tokio::select! {
        called = staging_dir.called() => called.map_err(broken("hear from"))?,
        ended = until_ended(request.engine, id) => return Err(ended),
    };
    let channel = Channel::new(channel).map_err(broken("connect to"))?;
    let (furnished, note) = set_up_network(request, pid, &channel).await?;
    let mut plan = container_plan(request)?;
    if furnished.is_some() {
        plan.intercept = None;
    }
    channel
        .send_plan(SandboxCommand::CheckContainer, &plan, &[])
        .map_err(broken("brief"))?;
    match channel.report().await.map_err(broken("hear from"))? {
        Some((
            Report::Ready {
                mut steps,
                ids,
                intercept,
                ..
            },
            handles,
        )) => {
            let mut handles = handles.into_iter();
            let workspace = handles.next().ok_or(SandboxError::Died)?;
            let mut handles: Vec<_> = handles.collect();
            let intercept = match furnished {
                Some((plan, sockets, listeners)) => {
                    steps.add(Step::TransparentProxy);
                    handles.extend(listeners);
                    Some((plan, NetworkOwner::Airlock, sockets))
                }
                None => plan
                    .intercept
                    .map(|plan| (plan, NetworkOwner::ContainerEngine, intercept)),
            };
            let id = id.to_owned();
            Ok(StartedContainer {
                id,
                channel,
                pid,
                ids,
                done: steps,
                workspace,
                intercept,
                handles,
                note,
            })
        }
        Some((
            Report::Failed(StepFailure {
                step: Step::Credentials,
                detail,
                ..
            }),
            _,
        )) => Err(refused(
            ErrorCode::ImageRefused,
            format!("the program would have {detail}"),
            "mend the image's /etc/passwd and /etc/group, or choose another --user",
        )),
        Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
        Some(_) | None => Err(SandboxError::Died),
    }
}

/// Sets up transparent proxying in the container's network, if that is its own and we have power
/// over it. Otherwise its first process intercepts what it can, and a note says why.
async fn set_up_network(
    request: &CreateRequest<'_>,
    pid: i32,
    channel: &Channel,
) -> Result<
    (
        Option<(InterceptPlan, InterceptHandles, Vec<OwnedFd>)>,
        Option<String>,
    ),
    SandboxError,
> {
    let plan = transparent_proxy::plan(request.spec, NetworkOwner::Airlock)?;
    let Some(intercept) =
        plan.filter(|_| request.enter_network && request.spec.internal_network.is_none())
    else {
        return Ok((None, None));
    };
    let Ok(network) = std::fs::File::open(format!("/proc/{pid}/ns/net")) else {
        return Ok((None, None));
    };
    // The process that connected still waits for our message, so its pid was not reused.
    if !channel.is_quiet() {
        return Err(SandboxError::Died);
    }
    let plan = ContainerNetworkPlan {
        intercept,
        doors: request.spec.doors.clone(),
    };
    let furnished = launcher::set_up_network(network.into(), &plan).await;
    Ok(match furnished {
        Ok((sockets, handles)) => (Some((plan.intercept, sockets, handles)), None),
        Err(error) => (
            None,
            Some(format!(
                "only names lead to the egress door, addresses do not: {}",
                error.info().message
            )),
        ),
    })
}

/// A container that ends before it connects reports that only to its engine.
async fn until_ended(engine: &ContainerEngine, id: &str) -> SandboxError {
    let ended = engine
        .api
        .post(&format!("/containers/{}/wait", escaped(id)), None)
        .await;
    let (status, why) = match &ended {
        Ok(answer) => (answer["StatusCode"].as_i64().unwrap_or(-1), String::new()),
        Err(error) => (-1, format!(": {error}")),
    };
    refused(
        ErrorCode::StartFailed,
        format!("the container ended before its first process called (status {status}{why})"),
        "its engine's log may say why",
    )
}

fn container_plan(request: &CreateRequest<'_>) -> Result<ContainerPlan, SandboxError> {
    let spec = request.spec;
    let text = |path: &str| CString::new(path).map_err(|_| SandboxError::Nul);
    let number = |(_, path): (Step, &std::ffi::CStr)| {
        let path = path.to_string_lossy().into_owned();
        std::fs::metadata(&path)
            .map(|found| found.ino())
            .map_err(broken("look at our own namespaces beside"))
    };
    let fresh = request.workspace.is_none();
    Ok(ContainerPlan {
        namespaces: NAMESPACES
            .into_iter()
            .map(number)
            .collect::<Result<_, _>>()?,
        doors: spec.doors.clone(),
        intercept: transparent_proxy::plan(spec, NetworkOwner::ContainerEngine)?,
        shared_network: spec.internal_network.is_some(),
        terminal: spec.tty.is_some(),
        scratch_bytes: spec.limits.disk.0.max(4 * 4096),
        fresh_workspace: fresh,
        user: HostOwner {
            uid: request.user.uid,
            gid: request.user.gid,
        },
        host_mounts: request
            .host_mounts()
            .map_err(broken("look at the workspace of"))?,
        read_only: request
            .read_only_places()
            .iter()
            .map(|path| text(path))
            .collect::<Result<_, _>>()?,
        workspace_directories: if fresh {
            vec![text(".artifacts")?]
        } else {
            Vec::new()
        },
    })
}

impl StartedContainer {
    pub(super) fn into_sandbox(
        self,
        engine: Arc<ContainerEngine>,
        spec: SandboxSpec,
        protection: Option<Protection>,
        staging_dir: StagingDir,
        mut notes: Vec<String>,
    ) -> ContainerSandbox {
        let mut handles = self.handles.into_iter();
        let scratch = handles.by_ref().take(SCRATCH.len()).collect();
        let terminal = if spec.tty.is_some() {
            handles.next()
        } else {
            None
        };
        let doors = handles
            .by_ref()
            .take(spec.doors.len())
            .map(TcpListener::from)
            .collect();
        let received = |(plan, power, sockets)| {
            transparent_proxy::received(&spec, plan, power, sockets, handles)
        };
        let arrived = self.intercept.map(received);
        let (intercept, reach, of_passing) = transparent_proxy::parts(arrived);
        notes.extend(self.note.into_iter().chain(of_passing));
        ContainerSandbox {
            engine,
            id: self.id,
            channel: self.channel,
            ids: self.ids,
            done: self.done,
            groups: ForeignCgroups::of_process(self.pid).ok(),
            workspace: self.workspace,
            scratch,
            terminal,
            doors,
            intercept,
            reach,
            denials: None,
            watch_budget: Arc::new(WatchBudget::new(&spec.limits)),
            protection,
            staging_dir,
            notes,
            frozen: false,
            removed: false,
            spec,
        }
    }
}

impl ContainerSandbox {
    /// Before anything runs: checks that every required barrier will be in force after the last
    /// steps. For a session a prepared child takes them, so that this is known before the first
    /// exec.
    pub(super) async fn checked(mut self) -> Result<ContainerSandbox, SandboxError> {
        let checked = match self.check_required() {
            Ok(()) if self.spec.outlives_programs => self.rehearse().await,
            checked => checked,
        };
        match checked {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end_all().await;
                // The sweep finds by the run's record what is left.
                Box::new(self).release().await;
                Err(error)
            }
        }
    }

    fn check_required(&self) -> Result<(), SandboxError> {
        if self.ids.uid == 0 {
            return Err(MissingBarrier::new("not_host_root", "the image's user is root").into());
        }
        if !self.done.has(Step::Mounts) {
            let message = "something that must be read-only inside is not, by the kernel's own list of mounts";
            let hint = "mount it somewhere else, or use the native backend";
            return Err(refused(ErrorCode::BarrierMissing, message, hint));
        }
        if self
            .groups
            .as_ref()
            .is_none_or(|groups| !groups.holds_share(&self.spec.limits))
            && self.engine.holds.cpu
        {
            return Err(MissingBarrier::new(
                "cpu_limit",
                "the container's cgroup does not hold the share",
            )
            .into());
        }
        let landlock = probe::landlock_version() > 0;
        let coming = Step::ALL
            .into_iter()
            .filter(|step| *step >= Step::JoinNamespaces && LAST_STEPS.has(*step));
        let mut expected = self.done;
        coming
            .filter(|step| landlock || *step != Step::PathRules)
            .for_each(|step| expected.add(step));
        let expected =
            barriers::standing(expected, &self.spec, &self.enforcers(), InvokingUser::User);
        // Whether the program has a user namespace of its own is the engine's choice; ours is that
        // it is not root.
        let insisted = barriers::insisted(&self.spec).into_iter();
        let insisted =
            insisted.filter(|barrier| ![Barrier::OwnUser, Barrier::OwnCgroup].contains(barrier));
        let held = self.engine.holds;
        // Limits that the engine claims to enforce must be enforced.
        let text = [
            (held.memory, Barrier::MemoryLimit),
            (held.pids, Barrier::PidsLimit),
        ];
        let text = text
            .into_iter()
            .filter(|(says, _)| *says)
            .map(|(_, barrier)| barrier);
        let mut required = self
            .spec
            .required
            .iter()
            .copied()
            .chain(insisted)
            .chain(text);
        match required.find(|barrier| !expected.contains(barrier)) {
            None => Ok(()),
            Some(barrier) => {
                Err(MissingBarrier::new(barrier.name(), why_missing(barrier, None)).into())
            }
        }
    }

    async fn rehearse(&mut self) -> Result<(), SandboxError> {
        let plan = self.plan(None)?;
        self.done = self
            .done
            .and(PreparedChild::ask(&self.channel, &plan).await?.steps);
        Ok(())
    }

    fn plan(&self, program: Option<&Program>) -> Result<ProgramPlan, SandboxError> {
        let mut plan =
            plan::program_plan(program, &self.spec, LAST_STEPS, self.ids, &self.enforcers())?;
        if !self.done.has(Step::EnterUserNamespace) {
            // Counted for the user on the whole host: other containers run as the same one.
            plan.rlimits
                .retain(|limit| limit.resource != plan::PROCESSES);
        }
        Ok(plan)
    }

    async fn run_exec(
        &mut self,
        program: &Program,
        streams: [OwnedFd; 3],
    ) -> Result<ExecProcess, SandboxError> {
        self.check_awake()?;
        let plan = ProgramPlan {
            exec_args: None,
            ..self.plan(Some(program))?
        };
        let mut ready = PreparedChild::ask(&self.channel, &plan).await?;
        let denials = self.watch(ready.listener.take()).map_err(broken("watch"))?;
        ready.run(program, streams, denials).await
    }

    async fn run(&mut self, program: &Program, streams: [OwnedFd; 3]) -> Result<(), SandboxError> {
        let failed = broken("ask");
        let plan = self.plan(Some(program))?;
        let handles = streams.each_ref().map(AsFd::as_fd);
        self.channel
            .send_plan(SandboxCommand::Exec, &plan, &handles)
            .map_err(&failed)?;
        match self.channel.report().await.map_err(&failed)? {
            Some((Report::Started(steps), handles)) => {
                self.done = self.done.and(steps);
                self.denials = self.watch(handles.into_iter().next()).map_err(failed)?;
                Ok(())
            }
            Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    fn watch(&self, listener: Option<OwnedFd>) -> io::Result<Option<mpsc::Receiver<DenialEvent>>> {
        let binds = self.protection.as_ref().map_or(&[][..], Protection::binds);
        let root = rustix::process::geteuid().is_root();
        let ids = root.then_some((self.ids.uid, self.ids.gid));
        let rules = || DenialRules::new(&self.spec, binds, ids, self.reach.clone());
        listener
            .map(|listener| denials::watch(listener, rules(), self.watch_budget.clone()))
            .transpose()
    }

    async fn await_end(&mut self) -> SandboxEvent {
        loop {
            match self.channel.report().await {
                Ok(Some((Report::Ended(ended), _))) => return SandboxEvent::Exited(ended),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    return SandboxEvent::Gone(ProcessExit {
                        status: 9,
                        cpu_us: 0,
                        peak_bytes: 0,
                        alone: false,
                    });
                }
            }
        }
    }

    async fn set_frozen(&mut self, frozen: bool) -> Result<(), SandboxError> {
        if self.frozen == frozen {
            return Ok(());
        }
        // Set even if the caller is gone: a container that may be frozen is thawed before its end.
        self.frozen = true;
        let api = &self.engine.api;
        let answer = if frozen {
            pause(api, &self.id).await
        } else {
            let path = format!("/containers/{}/unpause", escaped(&self.id));
            api.post(&path, None).await
        };
        self.frozen = frozen == answer.is_ok();
        let remedy =
            "Docker, root's Podman and the native backend can; a user's Podman needs cgroup v2";
        answer
            .map(drop)
            .map_err(|error| SandboxError::CannotFreeze {
                why: error.to_string(),
                remedy,
            })
    }

    fn check_awake(&self) -> Result<(), SandboxError> {
        if self.frozen {
            Err(SandboxError::Frozen)
        } else {
            Ok(())
        }
    }

    /// The first process ends on our command; in any case the engine removes the container, and
    /// only then it is gone for certain.
    async fn end_all(&mut self) -> Option<ProcessExit> {
        // If the engine does not thaw it, removing it below kills it.
        _ = tokio::time::timeout(END_TIMEOUT, self.set_frozen(false)).await;
        _ = self.channel.command(SandboxCommand::Destroy);
        let mut last = ProcessExit {
            status: 9,
            cpu_us: 0,
            peak_bytes: 0,
            alone: true,
        };
        let gone = async {
            loop {
                match self.await_end().await {
                    SandboxEvent::Exited(ended) => last = ended,
                    SandboxEvent::Gone(_) => return,
                }
            }
        };
        // A process that does not end is killed below.
        if tokio::time::timeout(END_TIMEOUT, gone).await.is_ok() && !self.engine.podman {
            // Docker takes longer than this wait to remove a container whose end it has not
            // noticed.
            let wait = format!("/containers/{}/wait", escaped(&self.id));
            _ = tokio::time::timeout(END_TIMEOUT, self.engine.api.post(&wait, None)).await;
        }
        self.removed = super::remove(&self.engine, &self.id).await.is_ok();
        self.removed.then_some(ProcessExit { cpu_us: 0, ..last })
    }
}

impl Sandbox for ContainerSandbox {
    fn workspace(&self) -> BorrowedFd<'_> {
        self.protection
            .as_ref()
            .map_or(self.workspace.as_fd(), Protection::workspace)
    }

    fn scratch_is_full(&self) -> bool {
        let fresh = self.spec.workspace.is_none().then_some(&self.workspace);
        let full = |place: &OwnedFd| {
            rustix::fs::fstatvfs(place)
                .is_ok_and(|space| space.f_bavail == 0 || space.f_files > 0 && space.f_ffree == 0)
        };
        fresh.into_iter().chain(&self.scratch).any(full)
    }

    fn owner_inside(&self) -> Option<(u32, u32)> {
        let root = rustix::process::geteuid().is_root();
        root.then_some((self.ids.uid, self.ids.gid))
    }

    fn take_doors(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.doors)
    }

    fn take_intercept_sockets(&mut self) -> Option<InterceptSockets> {
        self.intercept.take()
    }

    fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    fn enforcers(&self) -> BTreeMap<&'static str, Enforcer> {
        match &self.groups {
            Some(groups) => groups.enforcers(&self.spec.limits, SPARE_PIDS, SPARE_BYTES),
            None => ["memory", "pids", "cpu"]
                .map(|limit| (limit, Enforcer::Rlimit))
                .into(),
        }
    }

    /// Its repository is the host's own, which is read-only inside.
    fn read_only_paths(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn notes(&self) -> Vec<String> {
        let weaker: Vec<_> = self
            .enforcers()
            .into_iter()
            .filter(|(limit, by)| *limit != "pids" && *by == Enforcer::Rlimit)
            .map(|(limit, _)| limit)
            .collect();
        let note = format!(
            "no cgroup for {}: held for each process only",
            weaker.join(", ")
        );
        self.notes
            .iter()
            .cloned()
            .chain((!weaker.is_empty()).then_some(note))
            .collect()
    }

    fn counters(&self) -> ResourceCounters {
        let groups = self.groups.as_ref();
        let counters = groups.map(ForeignCgroups::counters).unwrap_or_default();
        ResourceCounters {
            cpu: counters.cpu.map(|cpu| cpu + self.watch_budget.total()),
            ..counters
        }
    }

    /// Where this process may inspect those of the container, that is, as root.
    fn file_locks(&self) -> Option<FileLocks> {
        let cgroup = self.groups.as_ref()?.directory()?;
        Some(FileLocks::new(cgroup.to_owned(), false))
    }

    fn barriers(&self) -> Vec<Barrier> {
        barriers::standing(self.done, &self.spec, &self.enforcers(), InvokingUser::User)
    }

    fn exec<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(self.run(program, streams))
    }

    fn take_denials(&mut self) -> Option<mpsc::Receiver<DenialEvent>> {
        self.denials.take()
    }

    fn start<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<ExecProcess, SandboxError>> {
        Box::pin(self.run_exec(program, streams))
    }

    fn open_terminal(&mut self) -> BoxFuture<'_, Result<OwnedFd, SandboxError>> {
        Box::pin(async {
            self.check_awake()?;
            exec::open_terminal(&self.channel).await
        })
    }

    fn freeze(&mut self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.set_frozen(true))
    }

    fn thaw(&mut self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(self.set_frozen(false))
    }

    fn progress(&mut self) -> BoxFuture<'_, SandboxEvent> {
        Box::pin(self.await_end())
    }

    fn signal(&self, number: i32) {
        // A first process that is gone took the program with it.
        _ = self.channel.command(SandboxCommand::Signal(number));
    }

    fn end(&mut self) -> BoxFuture<'_, Option<ProcessExit>> {
        Box::pin(self.end_all())
    }

    fn give_workspace_back(&mut self) -> BoxFuture<'_, WorkspaceCleanup> {
        Box::pin(async { taken_down(self.protection.take_if(|_| self.removed)).await })
    }

    fn mark_artifacts_kept(&mut self) {
        if let Some(protection) = &mut self.protection {
            protection.mark_artifacts_kept();
        }
    }

    fn holds_workspace(&self) -> bool {
        self.protection.is_some()
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ReleaseOutcome> {
        Box::pin(async move {
            let ContainerSandbox {
                engine,
                id,
                channel,
                protection,
                staging_dir,
                removed,
                ..
            } = *self;
            drop(channel);
            let mut released = ReleaseOutcome::default();
            let removing = if removed {
                Ok(())
            } else {
                super::remove(&engine, &id).await
            };
            let gone = removing.is_ok();
            if let Err(error) = removing {
                released.left_over = true;
                released
                    .notes
                    .push(format!("{error}; `airlock sweep` will try again"));
            }
            released.left_over |= !staging_dir.remove();
            // A workspace in which a program may still run is left to the sweep.
            if let Some(protection) = protection.filter(|_| gone) {
                released.take_in(protection.take_down());
            }
            released
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    const LOST: &str =
        "failed to create task for container: failed to create shim task: ttrpc: closed: unknown";

    const GIVEN_UP: &str = "`/usr/bin/runc pause some` failed: exit status 1";

    /// A fake engine that refuses each start or pause with the next of these messages and then
    /// succeeds; returns the number of requests.
    async fn engine(socket: &Path, complaints: &[&str]) -> tokio::task::JoinHandle<usize> {
        let listener = UnixListener::bind(socket).unwrap();
        let mut complaints: Vec<_> = complaints.iter().rev().map(|it| (*it).to_owned()).collect();
        tokio::spawn(async move {
            let mut asked = 0;
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                if request.starts_with("GET /version") {
                    answer(&mut stream, "200 OK", &serde_json::json!({})).await;
                    continue;
                }
                if request.starts_with("GET ") {
                    answer(&mut stream, "200 OK", &Value::Null).await;
                    return asked;
                }
                let verbs = ["start", "pause"];
                let is_known = |verb: &str| request.contains(&format!("/containers/some/{verb} "));
                assert!(verbs.into_iter().any(is_known), "{request}");
                asked += 1;
                match complaints.pop() {
                    Some(complaint) => {
                        let body = serde_json::json!({ "message": complaint });
                        answer(&mut stream, "500 Internal Server Error", &body).await;
                    }
                    None => answer(&mut stream, "204 No Content", &Value::Null).await,
                }
            }
        })
    }

    async fn answer(stream: &mut tokio::net::UnixStream, status: &str, body: &Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Whether the container started, and the number of starts.
    fn began_after(complaints: &[&str]) -> (bool, usize) {
        requested(complaints, async |api| begin(api, "some").await.is_ok())
    }

    /// Whether the container was paused, and the number of attempts.
    fn paused_after(complaints: &[&str]) -> (bool, usize) {
        requested(complaints, async |api| pause(api, "some").await.is_ok())
    }

    fn requested(complaints: &[&str], request: impl AsyncFn(&EngineApi) -> bool) -> (bool, usize) {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("airlock-engine-{}-{number}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let seen = runtime.block_on(async {
            let engine = engine(&socket, complaints).await;
            let (api, _) = EngineApi::connect(&socket).await.unwrap();
            let succeeded = request(&api).await;
            api.get("/enough").await.unwrap();
            (succeeded, engine.await.unwrap())
        });
        std::fs::remove_file(&socket).unwrap();
        seen
    }

    #[test]
    fn a_start_that_lost_its_shim_is_asked_for_once_more() {
        assert_eq!(began_after(&[]), (true, 1));
        assert_eq!(began_after(&[LOST]), (true, 2));
        assert_eq!(began_after(&[LOST, LOST]), (false, 2));
    }

    #[test]
    fn a_pause_that_the_runtime_gave_up_is_tried_three_times() {
        assert_eq!(paused_after(&[]), (true, 1));
        assert_eq!(paused_after(&[GIVEN_UP, GIVEN_UP]), (true, 3));
        assert_eq!(paused_after(&[GIVEN_UP; 3]), (false, 3));
        assert_eq!(paused_after(&["no such container"]), (false, 1));
    }

    #[test]
    fn any_other_refusal_of_a_start_is_final() {
        assert_eq!(began_after(&["OCI runtime create failed"]), (false, 1));
    }
}
