//! A live native sandbox: its program, counters, barriers, exit, and the host resources it holds.

use super::{
    InvokingUser, MissingBarrier, ProcessExit, Program, SandboxError, barriers,
    cgroup::{ResourceCounters, RunCgroups},
    denials::{self, DenialEvent, DenialRules, WatchBudget},
    launcher::{Channel, Launcher},
    mount_watch::MountWatch,
    plan, probe,
    protect::{Protection, WorkspaceCleanup},
};
use crate::{
    BoxFuture, ExecProcess, FileLocks, Sandbox,
    exec::{self, PreparedChild},
    transparent_proxy::{InterceptReach, InterceptSockets},
};
use init::{
    plan::Ids,
    protocol::{self, Report, SandboxCommand},
    step::{Step, Steps},
};
use spec::{Barrier, Enforcer, HeldBackPath, SandboxSpec};
use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::TcpListener,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// The time in which the kernel must kill a sandbox. Only a process stuck in the kernel takes
/// longer.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A live native sandbox.
#[derive(Debug)]
pub struct NativeSandbox {
    pub(super) channel: Arc<Channel>,
    /// The watch over its mounts, where host tools can detach some.
    pub(super) watch: Option<MountWatch>,
    /// The prepared child of a warm sandbox.
    pub(super) prepared_child: Option<Channel>,
    /// Its program has exited.
    pub(super) program_ended: bool,
    /// Every process of it is frozen.
    pub(super) frozen: bool,
    /// The launcher reported that no process is left in it.
    pub(super) known_empty: bool,
    /// Keeps the launcher alive, or the cgroup v1 forker of this sandbox.
    pub(super) launcher: Arc<Launcher>,
    pub(super) spec: SandboxSpec,
    pub(super) ids: Ids,
    pub(super) invoking_user: InvokingUser,
    pub(super) steps: Steps,
    pub(super) done: Steps,
    pub(super) workspace: OwnedFd,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) doors: Vec<TcpListener>,
    pub(super) intercept: Option<InterceptSockets>,
    pub(super) reach: Option<InterceptReach>,
    pub(super) denials: Option<mpsc::Receiver<DenialEvent>>,
    /// The CPU budget of its denial watchers.
    pub(super) watch_budget: Arc<WatchBudget>,
    pub(super) resources: HostResources,
    pub(super) notes: Vec<String>,
}

/// What a sandbox holds outside of its own processes.
#[derive(Debug, Default)]
pub(super) struct HostResources {
    pub(super) group: Option<RunCgroups>,
    /// The forker in its version 1 cgroups.
    pub(super) cgroup_forker: Option<Arc<Launcher>>,
    pub(super) protection: Option<Protection>,
    /// The sandbox is created before its run.
    pub(super) warm: bool,
}

/// What happened to a sandbox.
#[derive(Debug)]
pub enum SandboxEvent {
    /// Its program has exited.
    Exited(ProcessExit),
    /// The sandbox is gone, whether asked for or not.
    Gone(ProcessExit),
}

impl Sandbox for NativeSandbox {
    fn workspace(&self) -> BorrowedFd<'_> {
        let protection = self.resources.protection.as_ref();
        protection
            // An overlay is visible only inside.
            .filter(|_| self.spec.overlay.is_none())
            .map_or(self.workspace.as_fd(), Protection::workspace)
    }

    fn read_only_paths(&self) -> Vec<PathBuf> {
        let protection = self.resources.protection.as_ref();
        let binds = protection.map_or(&[][..], Protection::binds);
        binds.iter().map(|bind| bind.path.clone()).collect()
    }

    fn scratch_is_full(&self) -> bool {
        let fresh = self.spec.workspace.is_none();
        fresh
            && rustix::fs::fstatvfs(&self.workspace)
                .is_ok_and(|space| space.f_bavail == 0 || space.f_ffree == 0)
    }

    fn owner_inside(&self) -> Option<(u32, u32)> {
        match (self.invoking_user, &self.spec.workspace) {
            (InvokingUser::Root(_), None) => Some((self.ids.outer_uid, self.ids.outer_gid)),
            // Root leaves files in a user's folder to that user.
            (InvokingUser::Root(_), Some(_)) => rustix::fs::fstat(self.workspace())
                .ok()
                .map(|found| (found.st_uid, found.st_gid)),
            (InvokingUser::User, _) => None,
        }
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
        enforcers(&self.resources)
    }

    fn notes(&self) -> Vec<String> {
        let shortfalls = self
            .resources
            .group
            .iter()
            .flat_map(RunCgroups::shortfalls)
            .map(|(limit, _)| limit);
        // The process rlimit counts the whole sandbox: no weaker than a cgroup's.
        let weaker: Vec<_> = shortfalls.filter(|limit| *limit != "pids").collect();
        let told = format!(
            "no cgroup for {}: held for each process only; `airlock doctor` says why and how to mend it",
            weaker.join(", ")
        );
        self.notes
            .iter()
            .cloned()
            .chain((!weaker.is_empty()).then_some(told))
            .chain(self.old_landlock())
            .collect()
    }

    fn counters(&self) -> ResourceCounters {
        let group = self.resources.group.as_ref();
        let counters = group.map(RunCgroups::counters).unwrap_or_default();
        ResourceCounters {
            cpu: counters.cpu.map(|cpu| cpu + self.watch_budget.total()),
            ..counters
        }
    }

    fn file_locks(&self) -> Option<FileLocks> {
        let cgroup = self.resources.group.as_ref()?.directory()?;
        // For an ordinary user the program's user namespace is its own; for root the program is
        // another user.
        let sees_all = self.invoking_user == InvokingUser::User || probe::may_trace();
        Some(FileLocks::new(cgroup.to_owned(), sees_all))
    }

    fn barriers(&self) -> Vec<Barrier> {
        barriers::standing(self.done, &self.spec, &self.enforcers(), self.invoking_user)
    }

    fn take_denials(&mut self) -> Option<mpsc::Receiver<DenialEvent>> {
        self.denials.take()
    }

    fn signal(&self, number: i32) {
        // A launcher that is gone took the program with it.
        _ = self.channel.command(SandboxCommand::Signal(number));
    }

    fn mark_artifacts_kept(&mut self) {
        if let Some(protection) = &mut self.resources.protection {
            protection.mark_artifacts_kept();
        }
    }

    fn holds_workspace(&self) -> bool {
        self.resources.protection.is_some()
    }

    fn exec<'a>(
        &'a mut self,
        program: &'a Program,
        streams: [OwnedFd; 3],
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(self.run(program, streams))
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

    fn end(&mut self) -> BoxFuture<'_, Option<ProcessExit>> {
        Box::pin(self.end_all())
    }

    fn give_workspace_back(&mut self) -> BoxFuture<'_, WorkspaceCleanup> {
        Box::pin(self.take_protection_down())
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ReleaseOutcome> {
        let NativeSandbox {
            channel,
            prepared_child,
            launcher,
            workspace,
            watch,
            mut resources,
            ..
        } = *self;
        drop((channel, prepared_child, launcher, workspace));
        Box::pin(async move {
            if let (Some(protection), Some(watch)) = (&mut resources.protection, watch) {
                protection.take_in(watch.stop().await);
            }
            resources.give_back().await
        })
    }
}

impl NativeSandbox {
    /// Without a network namespace only Landlock keeps a program from abstract sockets, and not
    /// every ABI version does.
    fn old_landlock(&self) -> Option<String> {
        let asked = self.spec.network == spec::Network::Host && self.steps.has(Step::PathRules);
        let version = if asked { probe::landlock_version() } else { 0 };
        (1..6).contains(&version).then(|| {
            format!(
                "Landlock {version} of this kernel does not keep abstract sockets of the host out of reach"
            )
        })
    }

    /// Before anything runs: checks that every required barrier will be in force after the last
    /// steps.
    pub(super) fn check_required(&self, resources: &HostResources) -> Result<(), SandboxError> {
        let landlock = probe::landlock_version() > 0;
        let last = if landlock {
            self.steps
        } else {
            self.steps.without(Step::PathRules)
        };
        let coming = Step::ALL
            .into_iter()
            .filter(|step| *step >= Step::JoinNamespaces && last.has(*step));
        let mut expected = self.done;
        coming.for_each(|step| expected.add(step));
        let expected = barriers::standing(
            expected,
            &self.spec,
            &enforcers(resources),
            self.invoking_user,
        );
        // A control that leaves a step out has to run.
        let insisted = if self.steps == Steps::ALL {
            barriers::insisted(&self.spec)
        } else {
            Vec::new()
        };
        let required = self.spec.required.iter().copied().chain(insisted);
        match required
            .into_iter()
            .find(|barrier| !expected.contains(barrier))
        {
            None => Ok(()),
            Some(barrier) => Err(MissingBarrier::new(
                barrier.name(),
                why_missing(barrier, resources.group.as_ref()),
            )
            .into()),
        }
    }

    /// Forks the prepared child of a warm sandbox.
    pub(super) async fn prepare(&mut self, resources: &HostResources) -> Result<(), SandboxError> {
        let plan = plan::program_plan(
            None,
            &self.spec,
            self.steps,
            self.ids,
            &enforcers(resources),
        )?;
        let failed = |source| SandboxError::Launcher {
            what: "prepare",
            source,
        };
        let (ours, theirs) = protocol::pair().map_err(failed)?;
        self.channel
            .send_plan(SandboxCommand::Prepare, &plan, &[theirs.as_fd()])
            .map_err(failed)?;
        drop(theirs);
        let prepared_child = Channel::new(ours).map_err(failed)?;
        match prepared_child.report().await.map_err(failed)? {
            Some((Report::Started(steps), handles)) => {
                self.done = self.done.and(steps);
                self.prepared_child = Some(prepared_child);
                self.denials = self.watch(handles.into_iter().next()).map_err(failed)?;
                Ok(())
            }
            Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    /// Whether a waiting sandbox is still alive.
    pub fn is_quiet(&self) -> bool {
        self.channel.is_quiet() && self.prepared_child.as_ref().is_none_or(Channel::is_quiet)
    }

    /// Runs the program with these standard streams.
    async fn run(&mut self, program: &Program, streams: [OwnedFd; 3]) -> Result<(), SandboxError> {
        if let Some(prepared_child) = self.prepared_child.take() {
            return start_prepared_child(prepared_child, program, streams).await;
        }
        let plan = plan::program_plan(
            Some(program),
            &self.spec,
            self.steps,
            self.ids,
            &self.enforcers(),
        )?;
        let failed = |source| SandboxError::Launcher {
            what: "ask",
            source,
        };
        let handles = streams.each_ref().map(AsFd::as_fd);
        self.channel
            .send_plan(SandboxCommand::Exec, &plan, &handles)
            .map_err(failed)?;
        match self.channel.report().await.map_err(failed)? {
            Some((Report::Started(steps), handles)) => {
                self.done = self.done.and(steps);
                // The program's pidfd, then the listener.
                self.denials = self.watch(handles.into_iter().nth(1)).map_err(failed)?;
                Ok(())
            }
            Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    /// Takes the last steps in a prepared child that runs nothing, so that the barriers of a
    /// session are known before its first exec.
    pub(super) async fn rehearsed(mut self) -> Result<NativeSandbox, SandboxError> {
        match self.rehearse().await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end_all().await;
                // The sweep finds by the run's record what could not be released.
                Box::new(self).release().await;
                Err(error)
            }
        }
    }

    async fn rehearse(&mut self) -> Result<(), SandboxError> {
        let plan = plan::program_plan(None, &self.spec, self.steps, self.ids, &self.enforcers())?;
        self.done = self
            .done
            .and(PreparedChild::ask(&self.channel, &plan).await?.steps);
        Ok(())
    }

    /// Starts an exec with these standard streams.
    async fn run_exec(
        &mut self,
        program: &Program,
        streams: [OwnedFd; 3],
    ) -> Result<ExecProcess, SandboxError> {
        self.check_awake()?;
        let mut plan = plan::program_plan(
            Some(program),
            &self.spec,
            self.steps,
            self.ids,
            &self.enforcers(),
        )?;
        plan.exec_args = None;
        let mut ready = PreparedChild::ask(&self.channel, &plan).await?;
        let watched = self.watch(ready.listener.take());
        let denials = watched.map_err(|source| SandboxError::Launcher {
            what: "watch",
            source,
        })?;
        ready.run(program, streams, denials).await
    }

    fn check_awake(&self) -> Result<(), SandboxError> {
        if self.frozen {
            Err(SandboxError::Frozen)
        } else {
            Ok(())
        }
    }

    async fn set_frozen(&mut self, frozen: bool) -> Result<(), SandboxError> {
        if self.frozen == frozen {
            return Ok(());
        }
        let cannot = |why: String, remedy| SandboxError::CannotFreeze { why, remedy };
        let group = self.resources.group.as_ref().map(RunCgroups::freezer);
        let freezer = match group {
            Some(Ok(freezer)) => freezer.clone(),
            Some(Err((why, remedy))) => return Err(cannot(why.to_owned(), remedy)),
            None => return Err(cannot("it has no cgroup".to_owned(), "let it have one")),
        };
        // Set even if the caller is gone: a sandbox that may be frozen is thawed before its end.
        self.frozen = true;
        let set = move || {
            if frozen {
                freezer.freeze()
            } else {
                freezer.thaw()
            }
        };
        let done = tokio::task::spawn_blocking(set)
            .await
            .unwrap_or_else(|error| Err(error.into()));
        // What could not be frozen as a whole continues as a whole.
        self.frozen = frozen == done.is_ok();
        done.map_err(|why| match why.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                cannot(
                    why.to_string(),
                    "let its cgroup have a freezer that we may use",
                )
            }
            _ => SandboxError::NotFrozen { why },
        })
    }

    fn watch(
        &self,
        listener: Option<OwnedFd>,
    ) -> std::io::Result<Option<mpsc::Receiver<DenialEvent>>> {
        let binds = self
            .resources
            .protection
            .as_ref()
            .map_or(&[][..], Protection::binds);
        let ids = (self.invoking_user != InvokingUser::User)
            .then_some((self.ids.outer_uid, self.ids.outer_gid));
        let rules = || DenialRules::new(&self.spec, binds, ids, self.reach.clone());
        listener
            .map(|listener| denials::watch(listener, rules(), self.watch_budget.clone()))
            .transpose()
    }

    /// Waits for the exit of the program or of the sandbox.
    async fn await_end(&mut self) -> SandboxEvent {
        loop {
            match self.channel.report().await {
                Ok(Some((Report::Ended(ended), _))) => {
                    (self.program_ended, self.known_empty) = (true, ended.alone);
                    return SandboxEvent::Exited(ended);
                }
                Ok(Some((Report::Gone(ended), _))) => {
                    self.known_empty = ended.alone;
                    return SandboxEvent::Gone(ended);
                }
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

    /// Kills every process of the sandbox and waits until they are gone; `None` on timeout.
    async fn end_all(&mut self) -> Option<ProcessExit> {
        // A frozen process handles no command, and in cgroup v1 it cannot even be killed.
        _ = self.set_frozen(false).await;
        // The sandbox ends with its program. Another command could only disturb the last report.
        if !self.program_ended {
            _ = self.channel.command(SandboxCommand::Destroy);
        }
        let gone = async {
            loop {
                if let SandboxEvent::Gone(ended) = self.await_end().await {
                    return ended;
                }
            }
        };
        let ended = tokio::time::timeout(END_TIMEOUT, gone).await.ok();
        if ended.is_some() && !self.known_empty {
            self.kill_group().await;
        }
        ended
    }

    /// The launcher is gone without a report. The kernel kills the sandbox with it, at some point.
    async fn kill_group(&mut self) {
        let Some(group) = self.resources.group.take() else {
            return;
        };
        let killed = tokio::task::spawn_blocking(move || {
            // A failure is reported when the cgroup is removed, after another attempt.
            _ = group.kill();
            group
        });
        self.resources.group = killed.await.ok();
    }

    /// Releases a mounted workspace and returns notes. Not while a program may still run: where the
    /// sandbox's end is not certain, `release` does it after removing the cgroup.
    async fn take_protection_down(&mut self) -> WorkspaceCleanup {
        let mut protection = self.resources.protection.take_if(|_| self.known_empty);
        if let (Some(protection), Some(watch)) = (&mut protection, self.watch.take()) {
            protection.take_in(watch.stop().await);
        }
        taken_down(protection).await
    }
}

/// Sends the exec arguments to the prepared child. Its end of the socket closes when it becomes the
/// program.
pub(crate) async fn start_prepared_child(
    prepared_child: Channel,
    program: &Program,
    streams: [OwnedFd; 3],
) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::Launcher {
        what: "send off",
        source,
    };
    let handles = streams.each_ref().map(AsFd::as_fd);
    prepared_child
        .send_plan(SandboxCommand::Exec, &plan::exec_args(program)?, &handles)
        .map_err(failed)?;
    drop(streams);
    match prepared_child.report().await.map_err(failed)? {
        None => Ok(()),
        Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
        Some(_) => Err(SandboxError::Died),
    }
}

pub(super) fn enforcers(resources: &HostResources) -> BTreeMap<&'static str, Enforcer> {
    match &resources.group {
        Some(group) => group.enforcers(),
        None => [
            ("memory", Enforcer::Rlimit),
            ("pids", Enforcer::Rlimit),
            ("cpu", Enforcer::Rlimit),
        ]
        .into(),
    }
}

pub(crate) fn why_missing(barrier: Barrier, group: Option<&RunCgroups>) -> String {
    let limit = match barrier {
        Barrier::MemoryLimit => "memory",
        Barrier::PidsLimit => "pids",
        Barrier::CpuLimit => "cpu",
        Barrier::DiskLimit => {
            return "nothing limits the size of a host folder that may be written".to_owned();
        }
        Barrier::PathRules => return "the kernel has no Landlock".to_owned(),
        Barrier::OwnKernel => return "only the microvm backend has it".to_owned(),
        Barrier::OwnNet | Barrier::NoNetwork | Barrier::DoorsOnly => {
            return "the network mode of this run does not have it".to_owned();
        }
        _ => return "its step was not taken".to_owned(),
    };
    let shortfalls = group
        .iter()
        .flat_map(|group| group.shortfalls())
        .find(|(name, _)| *name == limit);
    shortfalls.map_or_else(
        || "no cgroup can be made here".to_owned(),
        |(_, why)| why.to_owned(),
    )
}

/// What is left of the host resources of a sandbox.
#[derive(Debug, Default)]
pub struct ReleaseOutcome {
    /// Notes for the result.
    pub notes: Vec<String>,
    /// What was taken out of a mounted workspace.
    pub held_back: Vec<HeldBackPath>,
    /// Whether something is left for the sweep.
    pub left_over: bool,
}

impl ReleaseOutcome {
    pub(crate) fn take_in(&mut self, taken_down: WorkspaceCleanup) {
        self.notes.extend(taken_down.notes);
        self.held_back.extend(taken_down.held_back);
    }
}

impl HostResources {
    pub(super) async fn give_back(self) -> ReleaseOutcome {
        let HostResources {
            group,
            cgroup_forker,
            protection,
            warm: _,
        } = self;
        drop(cgroup_forker);
        if group.as_ref().is_none_or(RunCgroups::is_empty) && protection.is_none() {
            return ReleaseOutcome::default();
        }
        let blocking = tokio::task::spawn_blocking(move || {
            let mut released = ReleaseOutcome::default();
            if let Some(Err(error)) = group.map(|group| group.remove()) {
                released.left_over = true;
                released
                    .notes
                    .push(format!("{error}; `airlock sweep` will try again"));
            }
            if let Some(protection) = protection {
                released.take_in(protection.take_down());
            }
            released
        });
        blocking.await.unwrap_or_else(|_| ReleaseOutcome {
            notes: vec![CUT_SHORT.to_owned()],
            left_over: true,
            ..ReleaseOutcome::default()
        })
    }
}

const CUT_SHORT: &str = "clean-up was cut short; `airlock sweep` finishes it";

/// Takes a protection down, on a blocking thread.
pub(crate) async fn taken_down(protection: Option<Protection>) -> WorkspaceCleanup {
    let Some(protection) = protection else {
        return WorkspaceCleanup::default();
    };
    let taken_down = tokio::task::spawn_blocking(move || protection.take_down()).await;
    taken_down.unwrap_or_else(|_| WorkspaceCleanup {
        notes: vec![CUT_SHORT.to_owned()],
        ..WorkspaceCleanup::default()
    })
}
