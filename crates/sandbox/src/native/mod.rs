//! The native backend: namespaces, cgroups, Landlock and seccomp of plain Linux.
//!
//! ```text
//! SandboxSpec ─▶ plans ─▶ launcher (one per root) ─▶ sandbox ─▶ program
//!      └─▶ cgroup, protected names: held by the sandbox, released with it
//! ```

pub(crate) mod barriers;
pub mod cgroup;
pub(crate) mod denials;
mod error;
pub(crate) mod explain;
pub(crate) mod fake_proc;
pub(crate) mod launcher;
mod mount_watch;
pub(crate) mod plan;
pub mod probe;
pub mod protect;
pub(crate) mod root;
mod sandbox;

pub use denials::{DenialEvent, MAX_DENIALS};
pub use error::{MissingBarrier, SandboxError};
pub use explain::ExplainLine;
pub use init::{
    file_lease::{FileLease, LeaseKind},
    plan::{UPPER, WORK},
    protocol::ProcessExit,
    step::Step,
};
pub use plan::{InvokingUser, Program};
pub use sandbox::{NativeSandbox, ReleaseOutcome, SandboxEvent};
pub(crate) use sandbox::{start_prepared_child, taken_down, why_missing};

use crate::{
    Sandbox,
    transparent_proxy::{self, NetworkOwner},
};
use cgroup::{CgroupPlacement, RunCgroups};
use denials::WatchBudget;
use init::{
    plan::{HostOwner, Ids, SandboxPlan, TemplatePlan},
    protocol::{InterceptHandles, Report},
    step::Steps,
};
use launcher::{Channel, Launcher, LauncherProcess};
use mount_watch::MountWatch;
use plan::ProgramIdentity;
use protect::Protection;
use sandbox::HostResources;
use spec::{Id, Network, SandboxSpec};
use std::{
    ffi::{CStr, CString, OsStr},
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Launchers kept for the next run with the same root; each is a small idle process.
const MAX_LAUNCHERS: usize = 16;
/// How long the plan of a root is reused: hosts change seldom, and runs come in bursts.
const MAX_PLAN_AGE: Duration = Duration::from_secs(1);

/// A launcher process that starts while the caller prepares the first run.
#[derive(Debug)]
pub struct PrespawnedLauncher(std::io::Result<JoinHandle<std::io::Result<LauncherProcess>>>);

impl PrespawnedLauncher {
    /// Starts it, in a thread of its own. If it is dropped unused, the process ends by itself.
    pub fn give() -> PrespawnedLauncher {
        PrespawnedLauncher(std::thread::Builder::new().spawn(|| LauncherProcess::new(true)))
    }

    /// None if the start failed: then a launcher is started as usual, and reports why.
    fn wait(self) -> Option<LauncherProcess> {
        self.0.ok()?.join().ok()?.ok()
    }
}

/// Creates sandboxes on this machine.
#[derive(Debug)]
pub struct NativeBackend {
    state: PathBuf,
    /// Host paths that no root shows: the state folder, and more that the engine names.
    hidden: Vec<PathBuf>,
    invoking_user: InvokingUser,
    cgroups: cgroup::CgroupHost,
    launchers: Mutex<Vec<(Arc<TemplatePlan>, Arc<Launcher>)>>,
    prespawned: Mutex<Option<PrespawnedLauncher>>,
    /// Recently planned roots.
    planned: Mutex<Vec<(Instant, SandboxSpec, Arc<TemplatePlan>)>>,
    /// The number of network and user namespaces that each launcher keeps ready.
    namespace_pool_size: u32,
    steps: Steps,
    use_cgroups: bool,
}

/// Cgroups created before their sandbox, with the forker in those of version 1.
#[derive(Debug)]
pub struct CgroupReservation(HostResources);

impl NativeBackend {
    /// A backend that keeps its crash records in `state`.
    pub fn new(state: PathBuf) -> NativeBackend {
        let root = rustix::process::geteuid().is_root() && probe::may_make_namespaces();
        let spare = if root { probe::spare_ids() } else { None };
        NativeBackend {
            hidden: vec![state.clone()],
            state,
            invoking_user: spare.map_or(InvokingUser::User, InvokingUser::Root),
            cgroups: cgroup::CgroupHost::detect(),
            launchers: Mutex::new(Vec::new()),
            prespawned: Mutex::new(None),
            planned: Mutex::new(Vec::new()),
            namespace_pool_size: 0,
            steps: Steps::ALL,
            use_cgroups: true,
        }
    }

    /// Uses a launcher process that was started before, for the first root.
    pub fn use_prespawned_launcher(&mut self, launcher_process: PrespawnedLauncher) {
        self.prespawned = Mutex::new(Some(launcher_process));
    }

    /// Hides further paths from roots that show all of `/etc` and `/var`.
    pub fn hide(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.hidden.extend(paths);
    }

    /// Lets launchers keep this many network and user namespaces ready.
    pub fn set_namespace_pool_size(&mut self, count: u32) {
        self.namespace_pool_size = count;
    }

    /// The cgroups of this host.
    pub fn cgroups(&self) -> &cgroup::CgroupHost {
        &self.cgroups
    }

    /// The user that creates sandboxes here.
    pub fn invoking_user(&self) -> InvokingUser {
        self.invoking_user
    }

    /// The cgroups of this host, for the runs of our state folder.
    fn own_cgroups(&self) -> Result<cgroup::CgroupHost, SandboxError> {
        Ok(self.cgroups.clone().owned_by(&crate::owner(&self.state)?))
    }

    fn group(&self, name: &Id, spec: &SandboxSpec) -> Result<RunCgroups, SandboxError> {
        let host = self.own_cgroups()?;
        let made = if spec.outlives_programs {
            host.make_to_stay(name, &spec.limits)
        } else {
            host.make(name, &spec.limits)
        };
        Ok(made?)
    }

    /// Removes the cgroups of a run whose owner is dead.
    pub fn remove_leftovers(&self, run: &Id) -> Result<(), SandboxError> {
        Ok(self.own_cgroups()?.remove(run)?)
    }

    /// Cleans up the workspaces of dead runs.
    pub fn sweep_workspaces(&self) -> protect::SweptWorkspaces {
        protect::sweep(&self.state)
    }

    /// Leaves a step out, so that a control can show its effect. The sandboxes lack its barriers.
    pub fn dangerously_omit(&mut self, step: Step) {
        self.steps = self.steps.without(step);
    }

    /// Leaves cgroups out, so that a control can show their effect.
    pub fn dangerously_omit_cgroups(&mut self) {
        self.use_cgroups = false;
    }

    /// Creates the cgroups of a sandbox in advance.
    pub async fn reserve_cgroups(
        &self,
        name: &Id,
        spec: &SandboxSpec,
    ) -> Result<CgroupReservation, SandboxError> {
        plan::check_invoking_user(self.invoking_user, rustix::process::geteuid().as_raw())?;
        let template = self.template(spec)?;
        let mut resources = HostResources::default();
        let made = async {
            if self.use_cgroups {
                resources.group = Some(self.group(name, spec)?);
            }
            let launcher = self.launcher_for(&template, spec, name).await?;
            resources.cgroup_forker = self.cgroup_forker(&launcher, &resources).await?;
            Ok(())
        };
        match made.await {
            Ok(()) => Ok(CgroupReservation(resources)),
            Err(error) => {
                resources.give_back().await;
                Err(error)
            }
        }
    }

    /// Creates a sandbox, in reserved cgroups if there are some. On an error nothing is left of it.
    pub async fn create(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        reservation: Option<CgroupReservation>,
    ) -> Result<NativeSandbox, SandboxError> {
        let mut resources = reservation
            .map_or_else(HostResources::default, |CgroupReservation(resources)| {
                resources
            });
        match self.set_up(name, spec, &mut resources).await {
            Ok(made) if spec.outlives_programs => {
                NativeSandbox { resources, ..made }.rehearsed().await
            }
            Ok(made) => Ok(NativeSandbox { resources, ..made }),
            Err(error) => {
                // The sweep finds by the run's record what could not be released.
                resources.give_back().await;
                Err(error)
            }
        }
    }

    /// Creates a warm sandbox, with a prepared child: only the exec is left.
    pub async fn create_warm(
        &self,
        name: &Id,
        spec: &SandboxSpec,
    ) -> Result<NativeSandbox, SandboxError> {
        let mut resources = HostResources {
            warm: true,
            ..HostResources::default()
        };
        let made = match self.set_up(name, spec, &mut resources).await {
            Ok(mut made) => match made.prepare(&resources).await {
                Ok(()) => Ok(made),
                Err(error) => {
                    made.end().await;
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => {
                let warm = NativeSandbox { resources, ..made };
                // Opens the counter files that are read at the end.
                warm.counters();
                Ok(warm)
            }
            Err(error) => {
                resources.give_back().await;
                Err(error)
            }
        }
    }

    async fn set_up(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        resources: &mut HostResources,
    ) -> Result<NativeSandbox, SandboxError> {
        plan::check_invoking_user(self.invoking_user, rustix::process::geteuid().as_raw())?;
        plan::check_stays(spec, probe::processes_can_be_looked_into())?;
        let template = self.template(spec)?;
        if let Some(workspace) = &spec.workspace {
            resources.protection = Some(self.protect(name, workspace, spec)?);
        }
        if self.use_cgroups && resources.group.is_none() {
            resources.group = Some(self.group(name, spec)?);
        }
        match self
            .create_or_forget(name, spec, &template, resources)
            .await
        {
            Err(SandboxError::Launcher { .. } | SandboxError::Died) => {
                // An idle launcher may have died before this sandbox. A new one has no such excuse.
                resources.cgroup_forker = None;
                self.create_or_forget(name, spec, &template, resources)
                    .await
            }
            other => other,
        }
    }

    /// The plan of a root. A recent one is reused: the root itself lives longer than that.
    fn template(&self, spec: &SandboxSpec) -> Result<Arc<TemplatePlan>, SandboxError> {
        let spec = spec.pool_key();
        let mut planned = self.planned.lock().expect("no panic while held");
        planned.retain(|(when, _, _)| when.elapsed() < MAX_PLAN_AGE);
        if let Some((_, _, plan)) = planned.iter().find(|(_, of, _)| *of == spec) {
            return Ok(plan.clone());
        }
        let plan = self.reuse_plan(root::plan(&spec, self.steps, &self.hidden)?);
        if planned.len() < MAX_LAUNCHERS {
            planned.push((Instant::now(), spec, plan.clone()));
        }
        Ok(plan)
    }

    /// A launcher's own copy of an equal plan, if there is one: the same allocation compares fast.
    fn reuse_plan(&self, plan: TemplatePlan) -> Arc<TemplatePlan> {
        let launchers = self.launchers.lock().expect("no panic while held");
        let known = launchers
            .iter()
            .find(|(known, _)| **known == plan)
            .map(|(known, _)| known.clone());
        known.unwrap_or_else(|| Arc::new(plan))
    }

    /// Asks the launcher for this root; one that does not answer is dropped.
    async fn create_or_forget(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        template: &Arc<TemplatePlan>,
        resources: &mut HostResources,
    ) -> Result<NativeSandbox, SandboxError> {
        let launcher = self.launcher_for(template, spec, name).await?;
        let made = self
            .create_as_best_user(name, spec, &launcher, resources)
            .await;
        if let Err(SandboxError::Launcher { .. } | SandboxError::Died) = made {
            self.forget(&launcher);
        }
        made
    }

    /// Creates a sandbox with the best user that the host allows.
    async fn create_as_best_user(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        launcher: &Arc<Launcher>,
        resources: &mut HostResources,
    ) -> Result<NativeSandbox, SandboxError> {
        if resources.cgroup_forker.is_none() {
            resources.cgroup_forker = self.cgroup_forker(launcher, resources).await?;
        }
        let launcher = resources.cgroup_forker.as_ref().unwrap_or(launcher);
        let who = ProgramIdentity::new(spec, self.invoking_user, name, None);
        match self.ask(spec, who, launcher, resources).await {
            Err(SandboxError::RootsWorkspace { path }) => {
                // The second choice: the workspace's owner, if that is not the host's root.
                let owner = owner_of(spec, &path)?;
                if owner.uid == 0 {
                    return Err(SandboxError::RootsWorkspace { path });
                }
                let who = ProgramIdentity::new(spec, self.invoking_user, name, Some(owner));
                let mut made = self.ask(spec, who, launcher, resources).await?;
                let uid = owner.uid;
                let shown = path.display();
                made.notes.push(format!(
                    "`{shown}` cannot be idmapped: the program is its owner, uid {uid}, outside"
                ));
                Ok(made)
            }
            other => other,
        }
    }

    /// A process that creates a sandbox in version 1 cgroups must be in them.
    async fn cgroup_forker(
        &self,
        launcher: &Arc<Launcher>,
        resources: &HostResources,
    ) -> Result<Option<Arc<Launcher>>, SandboxError> {
        let placement = placement(resources)?;
        if placement.v1.is_empty() {
            Ok(None)
        } else {
            launcher
                .cgroup_forker(&placement.v1)
                .await
                .map(|cgroup_forker| Some(Arc::new(cgroup_forker)))
        }
    }

    fn protect(
        &self,
        name: &Id,
        workspace: &Path,
        spec: &SandboxSpec,
    ) -> Result<Protection, SandboxError> {
        let folder = plan::open_workspace(spec, workspace)?;
        Ok(Protection::of(&self.state, name, folder, spec)?)
    }

    /// A launcher process: the prespawned one, or a new one.
    fn launcher_process(&self) -> Result<LauncherProcess, SandboxError> {
        let launcher_process = self.prespawned.lock().expect("no panic while held").take();
        let launcher_process = launcher_process
            .and_then(PrespawnedLauncher::wait)
            .map_or_else(
                || LauncherProcess::new(self.steps.has(Step::EmptyEnvironment)),
                Ok,
            );
        launcher_process.map_err(|source| SandboxError::Launcher {
            what: "start",
            source,
        })
    }

    fn waiting_launcher(&self, template: &Arc<TemplatePlan>) -> Option<Arc<Launcher>> {
        let mut all = self.launchers.lock().expect("no panic while held");
        let place = all.iter().position(|(plan, _)| plan == template)?;
        let found = all.remove(place);
        let launcher = found.1.clone();
        all.push(found);
        Some(launcher)
    }

    /// A launcher with this root: an idle one, or a new one.
    async fn launcher_for(
        &self,
        template: &Arc<TemplatePlan>,
        spec: &SandboxSpec,
        name: &Id,
    ) -> Result<Arc<Launcher>, SandboxError> {
        if let Some(launcher) = self.waiting_launcher(template) {
            return Ok(launcher);
        }
        let first = (spec.network != Network::Host && self.steps == Steps::ALL)
            .then(|| ProgramIdentity::new(spec, self.invoking_user, name, None).ids);
        let launcher = Arc::new(Launcher::start(self.launcher_process()?, template, first).await?);
        if self.namespace_pool_size > 0 {
            launcher.start_namespace_pool(plan::namespace_pool_plan(
                self.namespace_pool_size,
                spec,
                self.invoking_user,
                name,
            ))?;
        }
        let mut all = self.launchers.lock().expect("no panic while held");
        if all.len() >= MAX_LAUNCHERS {
            // The least recently used one. Launchers in use live on with their sandboxes.
            all.remove(0);
        }
        all.push((template.clone(), launcher.clone()));
        Ok(launcher)
    }

    async fn ask(
        &self,
        spec: &SandboxSpec,
        who: ProgramIdentity,
        launcher: &Arc<Launcher>,
        resources: &HostResources,
    ) -> Result<NativeSandbox, SandboxError> {
        let binds = resources
            .protection
            .as_ref()
            .map_or(&[][..], Protection::binds);
        let plan = plan::sandbox_plan(spec, self.steps, who, binds, resources.warm)?;
        check_same(spec, &plan, resources)?;
        let placement = placement(resources)?;
        let hold = resources.protection.as_ref().and_then(Protection::lock);
        let channel = launcher
            .request_sandbox(&plan, placement.v2.as_ref().map(AsFd::as_fd), hold)
            .map_err(|source| SandboxError::Launcher {
                what: "ask",
                source,
            })?;
        let report = channel.report().await;
        match report.map_err(|source| SandboxError::Launcher {
            what: "hear from",
            source,
        })? {
            Some((
                Report::Ready {
                    steps,
                    ids,
                    unmapped,
                    covered,
                    intercept,
                },
                handles,
            )) => {
                let launcher = launcher.clone();
                let made = CreatedSandbox {
                    channel,
                    launcher,
                    plan,
                    steps,
                    unmapped,
                    covered,
                    intercept,
                    handles,
                };
                self.made(spec, ids, made, resources)
            }
            Some((Report::Failed(failure), _)) => Err(SandboxError::Step(failure)),
            Some(_) | None => Err(SandboxError::Died),
        }
    }

    fn forget(&self, dead: &Arc<Launcher>) {
        self.launchers
            .lock()
            .expect("no panic while held")
            .retain(|(_, launcher)| !Arc::ptr_eq(launcher, dead));
    }

    fn made(
        &self,
        spec: &SandboxSpec,
        ids: Ids,
        made: CreatedSandbox,
        resources: &HostResources,
    ) -> Result<NativeSandbox, SandboxError> {
        let mut handles = made.handles.into_iter();
        let workspace = handles.next().ok_or(SandboxError::Died)?;
        let channel = Arc::new(made.channel);
        let watch = if made.plan.watch_mounts {
            Some(watch_mounts(handles.next(), &channel, spec, resources)?)
        } else {
            None
        };
        let terminal = if made.plan.terminal {
            handles.next()
        } else {
            None
        };
        let doors = handles
            .by_ref()
            .take(made.plan.doors.len())
            .map(TcpListener::from)
            .collect();
        let (intercept, reach, of_passing) =
            transparent_proxy::parts(made.plan.intercept.clone().map(|plan| {
                transparent_proxy::received(
                    spec,
                    plan,
                    NetworkOwner::Airlock,
                    made.intercept,
                    handles,
                )
            }));
        let (mut notes, refused) = mapping_notes(&made.plan, &made.unmapped, spec);
        if let Some(path) = refused {
            return Err(SandboxError::RootsWorkspace { path });
        }
        notes.extend(made.covered.iter().map(|path| covered_note(path)));
        notes.extend(of_passing);
        let ready = NativeSandbox {
            channel,
            watch,
            prepared_child: None,
            program_ended: false,
            known_empty: false,
            frozen: false,
            done: made.launcher.steps.and(made.steps),
            launcher: made.launcher,
            spec: spec.clone(),
            ids,
            invoking_user: self.invoking_user,
            steps: self.steps,
            workspace,
            terminal,
            doors,
            intercept,
            reach,
            denials: None,
            watch_budget: Arc::new(WatchBudget::new(&spec.limits)),
            resources: HostResources::default(),
            notes,
        };
        ready.check_required(resources)?;
        Ok(ready)
    }
}

/// Checks what a spec names on this host, before anything is created: image, workspace, mounts.
pub fn look(spec: &SandboxSpec) -> Result<(), SandboxError> {
    if spec.backend == spec::Backend::Native {
        root::look(spec)?;
    }
    transparent_proxy::plan(spec, NetworkOwner::Airlock)?;
    plan::host_paths(spec, false).map(drop)
}

/// Whether anything is mounted below a folder.
pub fn has_mounts_below(folder: &Path) -> std::io::Result<bool> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    init::submounts::any_below(&path)
}

/// The first kernel file system below a folder: its files are not to be copied.
pub fn kernel_file_system_below(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    let found = init::submounts::below(&path)?;
    let first = found.first();
    Ok(first.map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes()))))
}

/// The reply of the launcher for a new sandbox.
struct CreatedSandbox {
    channel: Channel,
    launcher: Arc<Launcher>,
    plan: SandboxPlan,
    steps: Steps,
    unmapped: Vec<u32>,
    covered: Vec<CString>,
    intercept: InterceptHandles,
    handles: Vec<OwnedFd>,
}

/// Notes about idmaps, and the workspace if it needed one and could not have it.
fn mapping_notes(
    plan: &SandboxPlan,
    unmapped: &[u32],
    spec: &SandboxSpec,
) -> (Vec<String>, Option<PathBuf>) {
    let mut notes = Vec::new();
    let of_workspace = plan.workspace.iter().chain(&plan.overlay).count() as u32;
    for number in unmapped {
        match (number.checked_sub(of_workspace), &spec.workspace) {
            (None, Some(path)) => return (notes, Some(path.clone())),
            (None, None) => {}
            (Some(number), _) => {
                let Some(mount) = plan.mounts.get(number as usize) else {
                    continue;
                };
                let inside = mount.inside.to_string_lossy();
                notes.push(format!(
                    "`{inside}` cannot be idmapped: the program has the rights of a stranger there"
                ));
            }
        }
    }
    (notes, None)
}

fn covered_note(path: &CStr) -> String {
    let path = path.to_string_lossy();
    format!(
        "`{}` is a file system of the host's kernel, and empty inside",
        path.escape_debug()
    )
}

/// The workspace was resolved twice, for its protection and for its mount: it must be the same
/// folder.
fn check_same(
    spec: &SandboxSpec,
    plan: &SandboxPlan,
    resources: &HostResources,
) -> Result<(), SandboxError> {
    let (Some(path), Some(mounted), Some(protection)) =
        (&spec.workspace, &plan.workspace, &resources.protection)
    else {
        return Ok(());
    };
    let look = |source: rustix::io::Errno| SandboxError::Look {
        path: path.clone(),
        source: source.into(),
    };
    let found = rustix::fs::fstat(protection.workspace()).map_err(look)?;
    if (found.st_dev, found.st_ino) == (mounted.device, mounted.inode) {
        Ok(())
    } else {
        Err(look(rustix::io::Errno::STALE))
    }
}

/// Watches the mounts that host tools can detach.
fn watch_mounts(
    table: Option<OwnedFd>,
    channel: &Arc<Channel>,
    spec: &SandboxSpec,
    resources: &HostResources,
) -> Result<MountWatch, SandboxError> {
    let (Some(table), Some(protection)) = (table, &resources.protection) else {
        return Err(SandboxError::Died);
    };
    let names = plan::watched_names(spec, protection.binds());
    let workspace = protection.workspace().try_clone_to_owned();
    workspace
        .and_then(|it| MountWatch::start(table, Arc::downgrade(channel), it, names))
        .map_err(|source| SandboxError::Launcher {
            what: "watch",
            source,
        })
}

fn placement(resources: &HostResources) -> Result<CgroupPlacement, SandboxError> {
    let placement = resources.group.as_ref().map(RunCgroups::place).transpose();
    Ok(placement
        .map_err(|source| SandboxError::Launcher {
            what: "place",
            source,
        })?
        .unwrap_or_default())
}

fn owner_of(spec: &SandboxSpec, path: &Path) -> Result<HostOwner, SandboxError> {
    let found = std::fs::metadata(path).map_err(|source| SandboxError::Look {
        path: path.to_owned(),
        source,
    })?;
    plan::check_exact(spec, path, (found.dev(), found.ino()))?;
    Ok(HostOwner {
        uid: found.uid(),
        gid: found.gid(),
    })
}

impl CgroupReservation {
    /// Releases unused cgroups.
    pub async fn release(self) -> ReleaseOutcome {
        self.0.give_back().await
    }
}

fn c_string(text: impl AsRef<OsStr>) -> Result<CString, SandboxError> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| SandboxError::Nul)
}
