//! The native backend: namespaces, cgroups, Landlock and seccomp of plain Linux.
//!
//! ```text
//! SandboxSpec ─▶ plans ─▶ launcher (one a root) ─▶ box ─▶ program
//!      └─▶ cgroup, protected names: held by the box, given back when it is released
//! ```

pub(crate) mod barriers;
pub mod cgroup;
pub(crate) mod denials;
mod error;
pub(crate) mod explain;
pub(crate) mod launcher;
mod live;
pub(crate) mod machine;
mod mount_watch;
pub(crate) mod plan;
pub mod probe;
pub mod protect;
pub(crate) mod root;

pub use denials::{MOST_DENIALS, Told};
pub use error::{Missing, SandboxError};
pub use explain::Line;
pub use init::{
    lease::{Lease, LeaseKind},
    plan::{UPPER, WORK},
    protocol::Ended,
    step::Step,
};
pub use live::{NativeBox, Progress, Released};
pub(crate) use live::{send_off, taken_down, why_missing};
pub use plan::{Program, Starter};

use crate::{
    Sandbox,
    passing::{self, Power},
};
use cgroup::{Group, Placement};
use denials::Budget;
use init::{
    plan::{BoxPlan, Ids, Owner, TemplatePlan},
    protocol::{Arriving, Report},
    step::Steps,
};
use launcher::{Begun, Channel, Launcher};
use live::Held;
use mount_watch::MountWatch;
use plan::Who;
use protect::Protection;
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
const MOST_LAUNCHERS: usize = 16;
/// How long the plan of a root is good for another run: a host changes seldom, and runs come in flocks.
const PLAN_AGE: Duration = Duration::from_secs(1);

/// The process of a launcher on its way, beside whatever its caller has to do before the first run.
#[derive(Debug)]
pub struct HeadStart(std::io::Result<JoinHandle<std::io::Result<Begun>>>);

impl HeadStart {
    /// Begins, in a thread of its own. Dropped without use, the process sees that and ends.
    pub fn give() -> HeadStart {
        HeadStart(std::thread::Builder::new().spawn(|| Begun::new(true)))
    }

    /// None if it came to nothing: then a launcher is started as usual, and that says why.
    fn wait(self) -> Option<Begun> {
        self.0.ok()?.join().ok()?.ok()
    }
}

/// Makes boxes on this machine.
#[derive(Debug)]
pub struct Native {
    state: PathBuf,
    /// What no root shows: the state folder, and more that the engine names.
    hidden: Vec<PathBuf>,
    starter: Starter,
    cgroups: cgroup::Host,
    launchers: Mutex<Vec<(Arc<TemplatePlan>, Arc<Launcher>)>>,
    head_start: Mutex<Option<HeadStart>>,
    /// Roots that were planned a moment ago.
    planned: Mutex<Vec<(Instant, SandboxSpec, Arc<TemplatePlan>)>>,
    /// How many network and user namespaces each launcher keeps ready.
    namespaces_ahead: u32,
    steps: Steps,
    limits_in_cgroups: bool,
}

/// Cgroups made ahead of a box, with the lane that sits in those of version 1.
#[derive(Debug)]
pub struct Berth(Held);

impl Native {
    /// A backend that keeps what a crash must not lose in `state`.
    pub fn new(state: PathBuf) -> Native {
        let root = rustix::process::geteuid().is_root() && probe::may_make_namespaces();
        let spare = if root { probe::spare_ids() } else { None };
        Native {
            hidden: vec![state.clone()],
            state,
            starter: spare.map_or(Starter::User, Starter::Root),
            cgroups: cgroup::Host::detect(),
            launchers: Mutex::new(Vec::new()),
            head_start: Mutex::new(None),
            planned: Mutex::new(Vec::new()),
            namespaces_ahead: 0,
            steps: Steps::ALL,
            limits_in_cgroups: true,
        }
    }

    /// Uses a launcher that has already begun for the first root.
    pub fn use_head_start(&mut self, begun: HeadStart) {
        self.head_start = Mutex::new(Some(begun));
    }

    /// Roots that show all of `/etc` and `/var` leave these out, too.
    pub fn hide(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.hidden.extend(paths);
    }

    /// From now on launchers keep this many network and user namespaces ready.
    pub fn keep_namespaces_ahead(&mut self, count: u32) {
        self.namespaces_ahead = count;
    }

    /// What the cgroups of this host offer.
    pub fn cgroups(&self) -> &cgroup::Host {
        &self.cgroups
    }

    /// Who starts boxes here.
    pub fn starter(&self) -> Starter {
        self.starter
    }

    /// The cgroups of this host, for the runs of our state folder.
    fn own_cgroups(&self) -> Result<cgroup::Host, SandboxError> {
        Ok(self.cgroups.clone().owned_by(&crate::owner(&self.state)?))
    }

    fn group(&self, name: &Id, spec: &SandboxSpec) -> Result<Group, SandboxError> {
        let host = self.own_cgroups()?;
        let made = if spec.outlives_programs {
            host.make_to_stay(name, &spec.limits)
        } else {
            host.make(name, &spec.limits)
        };
        Ok(made?)
    }

    /// Removes the cgroups that the dead owner of a run left.
    pub fn remove_leftovers(&self, run: &Id) -> Result<(), SandboxError> {
        Ok(self.own_cgroups()?.remove(run)?)
    }

    /// Settles workspaces whose runs are dead.
    pub fn sweep_workspaces(&self) -> protect::SweptWorkspaces {
        protect::sweep(&self.state)
    }

    /// Leaves a step out, so that a control can show what it is for. `barriers` of its boxes lack what it held.
    pub fn dangerously_omit(&mut self, step: Step) {
        self.steps = self.steps.without(step);
    }

    /// Leaves cgroups out, so that a control can show what they are for.
    pub fn dangerously_omit_cgroups(&mut self) {
        self.limits_in_cgroups = false;
    }

    /// Makes the cgroups of a box ahead of it.
    pub async fn berth(&self, name: &Id, spec: &SandboxSpec) -> Result<Berth, SandboxError> {
        plan::check_starter(self.starter, rustix::process::geteuid().as_raw())?;
        let template = self.template(spec)?;
        let mut held = Held::default();
        let made = async {
            if self.limits_in_cgroups {
                held.group = Some(self.group(name, spec)?);
            }
            let launcher = self.launcher_for(&template, spec, name).await?;
            held.lane = self.lane(&launcher, &held).await?;
            Ok(())
        };
        match made.await {
            Ok(()) => Ok(Berth(held)),
            Err(error) => {
                held.give_back().await;
                Err(error)
            }
        }
    }

    /// Makes a box, in a berth if there is one. Whatever fails, nothing is left of it.
    pub async fn create(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        berth: Option<Berth>,
    ) -> Result<NativeBox, SandboxError> {
        let mut held = berth.map_or_else(Held::default, |Berth(held)| held);
        match self.furnish(name, spec, &mut held).await {
            Ok(made) if spec.outlives_programs => NativeBox { held, ..made }.rehearsed().await,
            Ok(made) => Ok(NativeBox { held, ..made }),
            Err(error) => {
                // What could not be given back, the sweep finds by the run's record.
                held.give_back().await;
                Err(error)
            }
        }
    }

    /// Makes a box ahead, with the process of its program: all that is left to do then is exec.
    pub async fn park(&self, name: &Id, spec: &SandboxSpec) -> Result<NativeBox, SandboxError> {
        let mut held = Held {
            ahead: true,
            ..Held::default()
        };
        let made = match self.furnish(name, spec, &mut held).await {
            Ok(mut made) => match made.prepare(&held).await {
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
                let parked = NativeBox { held, ..made };
                // Opens what will be read at the end.
                parked.counters();
                Ok(parked)
            }
            Err(error) => {
                held.give_back().await;
                Err(error)
            }
        }
    }

    async fn furnish(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        held: &mut Held,
    ) -> Result<NativeBox, SandboxError> {
        plan::check_starter(self.starter, rustix::process::geteuid().as_raw())?;
        plan::check_stays(spec, probe::processes_can_be_looked_into())?;
        let template = self.template(spec)?;
        if let Some(workspace) = &spec.workspace {
            held.protection = Some(self.protect(name, workspace, spec)?);
        }
        if self.limits_in_cgroups && held.group.is_none() {
            held.group = Some(self.group(name, spec)?);
        }
        match self.ask_willing(name, spec, &template, held).await {
            Err(SandboxError::Launcher { .. } | SandboxError::Died) => {
                // It may have died in its sleep, with nothing of this box made yet. A fresh one has no such excuse.
                held.lane = None;
                self.ask_willing(name, spec, &template, held).await
            }
            other => other,
        }
    }

    /// The plan of a root. One that was made a moment ago will do: the root itself lives longer than that.
    fn template(&self, spec: &SandboxSpec) -> Result<Arc<TemplatePlan>, SandboxError> {
        let spec = spec.pool_key();
        let mut planned = self.planned.lock().expect("no panic while held");
        planned.retain(|(when, _, _)| when.elapsed() < PLAN_AGE);
        if let Some((_, _, plan)) = planned.iter().find(|(_, of, _)| *of == spec) {
            return Ok(plan.clone());
        }
        let plan = self.shared(root::plan(&spec, self.steps, &self.hidden)?);
        if planned.len() < MOST_LAUNCHERS {
            planned.push((Instant::now(), spec, plan.clone()));
        }
        Ok(plan)
    }

    /// The same plan as that of a launcher, if one has it: what is the same thing is compared in no time.
    fn shared(&self, plan: TemplatePlan) -> Arc<TemplatePlan> {
        let launchers = self.launchers.lock().expect("no panic while held");
        let known = launchers
            .iter()
            .find(|(known, _)| **known == plan)
            .map(|(known, _)| known.clone());
        known.unwrap_or_else(|| Arc::new(plan))
    }

    /// Asks the launcher for this root. One that does not answer is not asked again.
    async fn ask_willing(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        template: &Arc<TemplatePlan>,
        held: &mut Held,
    ) -> Result<NativeBox, SandboxError> {
        let launcher = self.launcher_for(template, spec, name).await?;
        let made = self.ask_as(name, spec, &launcher, held).await;
        if let Err(SandboxError::Launcher { .. } | SandboxError::Died) = made {
            self.forget(&launcher);
        }
        made
    }

    /// Asks for a box whose program is the best user there can be.
    async fn ask_as(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        launcher: &Arc<Launcher>,
        held: &mut Held,
    ) -> Result<NativeBox, SandboxError> {
        if held.lane.is_none() {
            held.lane = self.lane(launcher, held).await?;
        }
        let launcher = held.lane.as_ref().unwrap_or(launcher);
        let who = Who::new(spec, self.starter, name, None);
        match self.ask(spec, who, launcher, held).await {
            Err(SandboxError::RootsWorkspace { path }) => {
                // The next honest way: be the owner, if that is not the host's root.
                let owner = owner_of(spec, &path)?;
                if owner.uid == 0 {
                    return Err(SandboxError::RootsWorkspace { path });
                }
                let who = Who::new(spec, self.starter, name, Some(owner));
                let mut made = self.ask(spec, who, launcher, held).await?;
                let (uid, shown) = (owner.uid, path.display());
                made.notes.push(format!(
                    "`{shown}` cannot be idmapped: the program is its owner, uid {uid}, outside"
                ));
                Ok(made)
            }
            other => other,
        }
    }

    /// Whoever makes a box in cgroups of version 1 must sit in them.
    async fn lane(
        &self,
        launcher: &Arc<Launcher>,
        held: &Held,
    ) -> Result<Option<Arc<Launcher>>, SandboxError> {
        let placement = placement(held)?;
        match placement.v1.is_empty() {
            true => Ok(None),
            false => launcher
                .lane(&placement.v1)
                .await
                .map(|lane| Some(Arc::new(lane))),
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

    /// The process of a launcher: the one that had a head start, or a new one.
    fn begun(&self) -> Result<Begun, SandboxError> {
        let begun = self.head_start.lock().expect("no panic while held").take();
        let begun = begun
            .and_then(HeadStart::wait)
            .map_or_else(|| Begun::new(self.steps.has(Step::EmptyEnvironment)), Ok);
        begun.map_err(|source| SandboxError::Launcher {
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

    /// A launcher with this root: one that waits, or a new one.
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
            .then(|| Who::new(spec, self.starter, name, None).ids);
        let launcher = Arc::new(Launcher::start(self.begun()?, template, first).await?);
        if self.namespaces_ahead > 0 {
            launcher.stock(plan::stock(self.namespaces_ahead, spec, self.starter, name))?;
        }
        let mut all = self.launchers.lock().expect("no panic while held");
        if all.len() >= MOST_LAUNCHERS {
            // The one not asked for the longest. Those in use live on with their boxes.
            all.remove(0);
        }
        all.push((template.clone(), launcher.clone()));
        Ok(launcher)
    }

    async fn ask(
        &self,
        spec: &SandboxSpec,
        who: Who,
        launcher: &Arc<Launcher>,
        held: &Held,
    ) -> Result<NativeBox, SandboxError> {
        let binds = held.protection.as_ref().map_or(&[][..], Protection::binds);
        let plan = plan::of_box(spec, self.steps, who, binds, held.ahead)?;
        check_same(spec, &plan, held)?;
        let placement = placement(held)?;
        let hold = held.protection.as_ref().and_then(Protection::lock);
        let channel = launcher
            .ask_box(&plan, placement.v2.as_ref().map(AsFd::as_fd), hold)
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
                    passing,
                },
                handles,
            )) => {
                let launcher = launcher.clone();
                let made = Made {
                    channel,
                    launcher,
                    plan,
                    steps,
                    unmapped,
                    covered,
                    passing,
                    handles,
                };
                self.made(spec, ids, made, held)
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
        made: Made,
        held: &Held,
    ) -> Result<NativeBox, SandboxError> {
        let mut handles = made.handles.into_iter();
        let workspace = handles.next().ok_or(SandboxError::Died)?;
        let channel = Arc::new(made.channel);
        let watch = match made.plan.watched {
            true => Some(watch_mounts(handles.next(), &channel, spec, held)?),
            false => None,
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
        let (passing, reach, of_passing) = passing::parts(
            made.plan
                .passing
                .clone()
                .map(|plan| passing::received(spec, plan, Power::Ours, made.passing, handles)),
        );
        let (mut notes, refused) = mapping_notes(&made.plan, &made.unmapped, spec);
        if let Some(path) = refused {
            return Err(SandboxError::RootsWorkspace { path });
        }
        notes.extend(made.covered.iter().map(|path| covered_note(path)));
        notes.extend(of_passing);
        let ready = NativeBox {
            channel,
            watch,
            standby: None,
            ending: false,
            empty: false,
            frozen: false,
            done: made.launcher.steps.and(made.steps),
            launcher: made.launcher,
            spec: spec.clone(),
            ids,
            starter: self.starter,
            steps: self.steps,
            workspace,
            terminal,
            doors,
            passing,
            reach,
            denials: None,
            looks: Arc::new(Budget::new(&spec.limits)),
            held: Held::default(),
            notes,
        };
        ready.check_required(held)?;
        Ok(ready)
    }
}

/// Looks at what a spec names on this host, before anything is made: the image, the workspace, the mounts.
pub fn look(spec: &SandboxSpec) -> Result<(), SandboxError> {
    if spec.backend == spec::Backend::Native {
        root::look(spec)?;
    }
    passing::plan(spec, Power::Ours)?;
    plan::host_paths(spec, false).map(drop)
}

/// Whether anything is mounted below a folder.
pub fn has_mounts_below(folder: &Path) -> std::io::Result<bool> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    init::submounts::any_below(&path)
}

/// A file system of the kernel's own below a folder, if there is one: its files are nobody's to copy.
pub fn kernel_file_system_below(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    let found = init::submounts::below(&path)?;
    let first = found.first();
    Ok(first.map(|path| PathBuf::from(OsStr::from_bytes(path.to_bytes()))))
}

/// What came back for a box.
struct Made {
    channel: Channel,
    launcher: Arc<Launcher>,
    plan: BoxPlan,
    steps: Steps,
    unmapped: Vec<u32>,
    covered: Vec<CString>,
    passing: Arriving,
    handles: Vec<OwnedFd>,
}

/// What to say of idmaps, and the workspace if it needed one and could not have it.
fn mapping_notes(
    plan: &BoxPlan,
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

/// The workspace was looked up twice, for its protection and for its mount: it must be the same folder.
fn check_same(spec: &SandboxSpec, plan: &BoxPlan, held: &Held) -> Result<(), SandboxError> {
    let (Some(path), Some(mounted), Some(protection)) =
        (&spec.workspace, &plan.workspace, &held.protection)
    else {
        return Ok(());
    };
    let look = |source: rustix::io::Errno| SandboxError::Look {
        path: path.clone(),
        source: source.into(),
    };
    let found = rustix::fs::fstat(protection.workspace()).map_err(look)?;
    match (found.st_dev, found.st_ino) == (mounted.device, mounted.inode) {
        true => Ok(()),
        false => Err(look(rustix::io::Errno::STALE)),
    }
}

/// Watches the mounts that tools of the host can detach.
fn watch_mounts(
    table: Option<OwnedFd>,
    channel: &Arc<Channel>,
    spec: &SandboxSpec,
    held: &Held,
) -> Result<MountWatch, SandboxError> {
    let (Some(table), Some(protection)) = (table, &held.protection) else {
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

fn placement(held: &Held) -> Result<Placement, SandboxError> {
    let placement = held.group.as_ref().map(Group::place).transpose();
    Ok(placement
        .map_err(|source| SandboxError::Launcher {
            what: "place",
            source,
        })?
        .unwrap_or_default())
}

fn owner_of(spec: &SandboxSpec, path: &Path) -> Result<Owner, SandboxError> {
    let found = std::fs::metadata(path).map_err(|source| SandboxError::Look {
        path: path.to_owned(),
        source,
    })?;
    plan::check_exact(spec, path, (found.dev(), found.ino()))?;
    Ok(Owner {
        uid: found.uid(),
        gid: found.gid(),
    })
}

impl Berth {
    /// Gives it back unused.
    pub async fn release(self) -> Released {
        self.0.give_back().await
    }
}

fn c_string(text: impl AsRef<OsStr>) -> Result<CString, SandboxError> {
    CString::new(text.as_ref().as_bytes()).map_err(|_| SandboxError::Nul)
}
