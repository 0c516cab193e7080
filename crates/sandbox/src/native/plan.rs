//! From a checked spec to plans: pure, except for reading the host paths that it names.

use crate::transparent_proxy::{self, NetworkOwner};

use super::{MissingBarrier, SandboxError, c_string, fake_proc, probe::SpareIds, protect};
use init::{
    plan::{
        ExecArgs, HostOwner, HostPath, Ids, LandlockScope, NamespacePoolPlan, ProgramPlan,
        ResourceLimit, SandboxPlan, WorkspaceName,
    },
    step::Steps,
};
use rustix::fs::{Mode, OFlags};
use spec::{
    Access, Backend, Enforcer, ErrorCode, FileId, Id, Limits, Mount, Network, Root, SandboxSpec,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CString, OsStr, OsString},
    fs,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

/// Image folders with an overlay of their own.
const MAX_WRITABLE_FOLDERS: usize = 64;
/// Folders of a search path that are tried.
const MAX_PATH_FOLDERS: usize = 64;
/// Average file size in scratch space below which the number of files, not their size, is the
/// limit.
const BYTES_PER_FILE: u64 = 4096;

/// The user who creates sandboxes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvokingUser {
    /// The host's root, with the right to create namespaces: programs get one of these ids on the
    /// host.
    Root(SpareIds),
    /// An ordinary user: programs are this user on the host.
    User,
}

/// A program to run in a sandbox.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Exact arguments, never empty.
    pub argv: Vec<OsString>,
    /// Exact environment.
    pub env: BTreeMap<OsString, OsString>,
    /// The working directory, if not that of the spec.
    pub directory: Option<PathBuf>,
    /// Whether its standard streams are a terminal, which becomes its controlling terminal.
    pub terminal: bool,
}

/// The ids of a program, and how it comes to own what it writes on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramIdentity {
    pub(super) ids: Ids,
    /// Writable host paths are idmapped to it.
    pub(super) idmaps: bool,
    /// Any other spare id on the host is as good.
    any_outer_id: bool,
}

impl ProgramIdentity {
    /// On the host it is an id chosen by the name of the run, or the owner of its workspace.
    pub(super) fn new(
        spec: &SandboxSpec,
        invoking_user: InvokingUser,
        name: &Id,
        mapped_to: Option<HostOwner>,
    ) -> ProgramIdentity {
        let drop_groups = invoking_user != InvokingUser::User;
        let (outer_uid, outer_gid) = match (invoking_user, mapped_to) {
            (InvokingUser::User, _) => (0, 0), // the launcher's own namespace, in which the caller is 0
            (InvokingUser::Root(_), Some(owner)) => (owner.uid, owner.gid),
            (InvokingUser::Root(spare), None) => (spare.id_of(name), spare.id_of(name)),
        };
        let ids = Ids {
            uid: spec.user.uid,
            gid: spec.user.gid,
            outer_uid,
            outer_gid,
            drop_groups,
        };
        let any_outer_id = mapped_to.is_none();
        ProgramIdentity {
            ids,
            idmaps: drop_groups && any_outer_id,
            any_outer_id,
        }
    }
}

impl SpareIds {
    /// Spread by the FNV-1a hash of the name; two runs with one id are possible, and harmless.
    fn id_of(self, name: &Id) -> u32 {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        self.first + (hash % u64::from(self.count)) as u32
    }
}

/// The plan of a sandbox, warm or not. `protection` are the protected names of a mounted workspace.
pub(super) fn sandbox_plan(
    spec: &SandboxSpec,
    steps: Steps,
    who: ProgramIdentity,
    protection: &[protect::Bind],
    warm: bool,
) -> Result<SandboxPlan, SandboxError> {
    let (workspace, mounts) = host_paths(spec, who.idmaps)?;
    let overlay = overlay(spec, who.idmaps)?;
    let fresh = workspace.is_none();
    // Host tools do not reach a copy.
    let watch_mounts = !fresh && !spec.copy_on_write && !watched_names(spec, protection).is_empty();
    Ok(SandboxPlan {
        watch_mounts,
        steps,
        ids: who.ids,
        any_outer_id: who.any_outer_id,
        warm,
        hostname: c_string("airlock")?,
        own_network: spec.network != Network::Host,
        doors: spec.doors.clone(),
        intercept: transparent_proxy::plan(spec, NetworkOwner::Airlock)?,
        terminal: spec.tty.is_some(),
        stays: spec.outlives_programs,
        scratch_bytes: spec.limits.scratch().0,
        scratch_files: (spec.limits.scratch().0 / BYTES_PER_FILE).max(1024),
        writable_folders: writable_folders(spec)?
            .iter()
            .map(c_string)
            .collect::<Result<_, _>>()?,
        workspace,
        overlay,
        protected: names(protection, false)?,
        hidden: names(protection, true)?,
        workspace_directories: if fresh {
            workspace_directories(spec)?
        } else {
            Vec::new()
        },
        home_directories: home_directories(spec)?,
        mounts,
    })
}

/// The mounts that a host tool can detach: protected and hidden names, and the git view of the
/// repository.
pub(super) fn watched_names(
    spec: &SandboxSpec,
    protection: &[protect::Bind],
) -> Vec<protect::Bind> {
    let mounts = spec.mounts.iter();
    let git = mounts.filter(|mount| spec.git.contains_key(&mount.host));
    let git = git.filter_map(|mount| {
        let path = mount.inside.as_path().strip_prefix(spec::WORKSPACE).ok()?;
        Some(protect::Bind {
            path: path.to_owned(),
            hidden: false,
            inode: 0,
        })
    });
    protection.iter().cloned().chain(git).collect()
}

fn names(binds: &[protect::Bind], hidden: bool) -> Result<Vec<WorkspaceName>, SandboxError> {
    let binds = binds.iter().filter(|bind| bind.hidden == hidden);
    let name = |bind: &protect::Bind| {
        let path = c_string(&bind.path)?;
        let inode = bind.inode;
        Ok(WorkspaceName { path, inode })
    };
    binds.map(name).collect()
}

/// The folders of an image that its program may change: all top folders except those that the
/// sandbox replaces.
pub(super) fn writable_folders(spec: &SandboxSpec) -> Result<Vec<PathBuf>, SandboxError> {
    let Root::Folder(folder) = &spec.root else {
        return Ok(Vec::new());
    };
    if !spec.writable_root {
        return Ok(Vec::new());
    }
    let look = |source| SandboxError::Look {
        path: folder.clone(),
        source,
    };
    // On the host's network its resolver is mounted in `/etc`, which an overlay would hide.
    let etc = (spec.network == Network::Host).then_some("etc");
    let own = |name: &OsStr| {
        ["dev", "proc", "run", "sys", "tmp", "workspace"]
            .iter()
            .chain(&etc)
            .any(|it| name == *it)
    };
    let entries = fs::read_dir(folder)
        .map_err(look)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(look)?;
    let folders = entries
        .iter()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let names: BTreeSet<_> = folders
        .map(fs::DirEntry::file_name)
        .filter(|name| !own(name))
        .collect();
    if names.len() > MAX_WRITABLE_FOLDERS {
        let message = format!("the image has more than {MAX_WRITABLE_FOLDERS} folders at its top");
        let hint = "leave --writable-root away".to_owned();
        return Err(SandboxError::Image {
            code: ErrorCode::ImageRefused,
            message,
            hint,
        });
    }
    Ok(names
        .into_iter()
        .map(|name| Path::new("/").join(name))
        .collect())
}

/// The workspace, if it is the host's, and the mounts, as they are on this host now; parents first.
pub(crate) fn host_paths(
    spec: &SandboxSpec,
    idmaps: bool,
) -> Result<(Option<HostPath>, Vec<HostPath>), SandboxError> {
    let place = Path::new(spec::WORKSPACE);
    let workspace = spec.workspace.as_deref();
    let access = if spec.read_only_workspace {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    let workspace = workspace.map(|path| host_path(spec, path, place, access, idmaps));
    let workspace = workspace.transpose()?;
    let mount = |mount: &Mount| {
        host_path(
            spec,
            &mount.host,
            mount.inside.as_path(),
            mount.access,
            idmaps,
        )
    };
    let mut mounts: Vec<_> = spec.mounts.iter().map(mount).collect::<Result<_, _>>()?;
    mounts.sort_by(|a, b| a.inside.cmp(&b.inside));
    if let Some(workspace) = &workspace {
        let around =
            |mount: &&HostPath| mount.writable && reaches_protected(mount, workspace, spec);
        if let Some(mount) = mounts.iter().find(around) {
            return Err(SandboxError::AroundProtection {
                path: path_of(mount),
            });
        }
    }
    Ok((workspace, mounts))
}

/// The layer over the workspace, with the workspace's owner.
fn overlay(spec: &SandboxSpec, idmaps: bool) -> Result<Option<HostPath>, SandboxError> {
    let path = |overlay: &spec::WorkspaceOverlay| {
        let place = Path::new(spec::WORKSPACE);
        host_path(spec, &overlay.layer, place, Access::ReadWrite, idmaps)
    };
    spec.overlay.as_ref().map(path).transpose()
}

fn path_of(path: &HostPath) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path.host.as_bytes()))
}

/// Whether a writable mount shows a protected name of the workspace a second time, unprotected.
fn reaches_protected(mount: &HostPath, workspace: &HostPath, spec: &SandboxSpec) -> bool {
    // By identity, too: a bind mount on the host may give the same folder another path.
    let same = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (mount.device, mount.inode))
    };
    let mount = path_of(mount);
    let workspace = path_of(workspace);
    // A folder above the workspace shows all of it; one within it only the protected names below.
    if workspace.ancestors().any(|way| way == mount || same(way)) {
        return true;
    }
    match mount.strip_prefix(&workspace) {
        Ok(inside) => protect::shows_protected(&workspace, inside, &spec.protected),
        Err(_) => false,
    }
}

/// Idmaps only writable paths, the workspace and its own repository: other files are read with the
/// rights that anybody has.
fn host_path(
    spec: &SandboxSpec,
    host: &Path,
    inside: &Path,
    access: Access,
    mapping: bool,
) -> Result<HostPath, SandboxError> {
    let look = |source| SandboxError::Look {
        path: host.to_owned(),
        source,
    };
    let real = fs::canonicalize(host).map_err(look)?;
    let found = fs::metadata(&real).map_err(look)?;
    check_exact(spec, host, (found.dev(), found.ino()))?;
    let is_workspace = inside == Path::new(spec::WORKSPACE);
    if is_workspace && !found.is_dir() {
        return Err(look(std::io::Error::from_raw_os_error(20)));
    }
    let writable = access == Access::ReadWrite;
    let owner = HostOwner {
        uid: found.uid(),
        gid: found.gid(),
    };
    Ok(HostPath {
        host: c_string(&real)?,
        device: found.dev(),
        inode: found.ino(),
        inside: c_string(inside)?,
        writable,
        owner: (mapping && (writable || is_workspace || spec.git.contains_key(host)))
            .then_some(owner),
    })
}

/// Refuses a path that leads to another file than when it was admitted.
pub(crate) fn check_exact(
    spec: &SandboxSpec,
    path: &Path,
    (device, inode): (u64, u64),
) -> Result<(), SandboxError> {
    if spec.admits(path, FileId { device, inode }) {
        Ok(())
    } else {
        Err(SandboxError::Replaced {
            path: path.to_owned(),
        })
    }
}

/// Opens a mounted workspace: the one that was admitted.
pub(crate) fn open_workspace(spec: &SandboxSpec, path: &Path) -> Result<OwnedFd, SandboxError> {
    let look = |error: rustix::io::Errno| SandboxError::Look {
        path: path.to_owned(),
        source: error.into(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(look)?;
    let found = rustix::fs::fstat(&folder).map_err(look)?;
    check_exact(spec, path, (found.st_dev, found.st_ino))?;
    Ok(folder)
}

/// The artifacts folder, and the mount points in a fresh workspace; parents first.
fn workspace_directories(spec: &SandboxSpec) -> Result<Vec<CString>, SandboxError> {
    let mut folders = BTreeSet::from([PathBuf::from(".artifacts")]);
    for mount in &spec.mounts {
        let Ok(below) = mount.inside.as_path().strip_prefix(spec::WORKSPACE) else {
            continue;
        };
        if fs::metadata(&mount.host).is_ok_and(|found| !found.is_dir()) {
            return Err(SandboxError::FileInWorkspace {
                path: mount.host.clone(),
            });
        }
        folders.extend(
            below
                .ancestors()
                .filter(|path| !path.as_os_str().is_empty())
                .map(Path::to_owned),
        );
    }
    folders.iter().map(c_string).collect()
}

/// The mount points in the home folder; parents first.
fn home_directories(spec: &SandboxSpec) -> Result<Vec<CString>, SandboxError> {
    let below = |mount: &Mount| {
        let below = mount.inside.as_path().strip_prefix(spec::HOME).ok()?;
        Some(below.to_owned()).filter(|below| !below.as_os_str().is_empty())
    };
    let mut folders = BTreeSet::new();
    for mount in &spec.mounts {
        let Some(below) = below(mount) else {
            continue;
        };
        if fs::metadata(&mount.host).is_ok_and(|found| !found.is_dir()) {
            return Err(SandboxError::FileInWorkspace {
                path: mount.host.clone(),
            });
        }
        let parents = below
            .ancestors()
            .filter(|path| !path.as_os_str().is_empty());
        folders.extend(parents.map(Path::to_owned));
    }
    folders.iter().map(c_string).collect()
}

/// The namespace pool for sandboxes of this kind. The ids begin anywhere, because other launchers
/// use the same range.
pub(super) fn namespace_pool_plan(
    depth: u32,
    spec: &SandboxSpec,
    invoking_user: InvokingUser,
    name: &Id,
) -> NamespacePoolPlan {
    let who = ProgramIdentity::new(spec, invoking_user, name, None);
    match invoking_user {
        InvokingUser::User => NamespacePoolPlan {
            depth,
            ids: who.ids,
            outer_count: 1,
            first_turn: 0,
        },
        InvokingUser::Root(spare) => {
            let first_turn = who.ids.outer_uid - spare.first;
            let ids = Ids {
                outer_uid: spare.first,
                outer_gid: spare.first,
                ..who.ids
            };
            NamespacePoolPlan {
                depth,
                ids,
                outer_count: spare.count,
                first_turn,
            }
        }
    }
}

/// The exec arguments of a program.
pub(super) fn exec_args(program: &Program) -> Result<ExecArgs, SandboxError> {
    let env = program.env.iter().map(|(name, value)| {
        let mut line = name.clone();
        line.push("=");
        line.push(value);
        c_string(line)
    });
    Ok(ExecArgs {
        argv: program
            .argv
            .iter()
            .map(c_string)
            .collect::<Result<_, _>>()?,
        env: env.collect::<Result<_, _>>()?,
        candidates: candidates(&program.argv[0], program.env.get(OsStr::new("PATH")))?,
    })
}

/// The plan of a program, or of a prepared child.
pub(crate) fn program_plan(
    program: Option<&Program>,
    spec: &SandboxSpec,
    steps: Steps,
    ids: Ids,
    enforcers: &BTreeMap<&'static str, Enforcer>,
) -> Result<ProgramPlan, SandboxError> {
    let rw = spec
        .mounts
        .iter()
        .filter(|mount| mount.access == Access::ReadWrite);
    let writable = ["/tmp", "/dev/shm", spec::WORKSPACE, spec::HOME].map(PathBuf::from);
    let volumes = spec
        .volumes
        .iter()
        .filter(|volume| volume.access == Access::ReadWrite);
    let volumes = volumes.map(|volume| volume.inside.as_path().to_owned());
    // In containers `/run` is scratch space, too.
    let run = (spec.backend != Backend::Native).then(|| PathBuf::from("/run"));
    let writable = writable
        .into_iter()
        .chain(rw.map(|mount| mount.inside.as_path().to_owned()));
    let writable: Vec<_> = writable
        .chain(volumes)
        .chain(run)
        .chain(writable_folders(spec)?)
        .collect();
    Ok(ProgramPlan {
        steps,
        ids,
        exec_args: program.map(exec_args).transpose()?,
        last: true,
        directory: c_string(
            program
                .and_then(|it| it.directory.as_ref())
                .unwrap_or(&spec.directory),
        )?,
        rlimits: rlimits(&spec.limits, enforcers),
        writable: topmost(&writable)
            .into_iter()
            .map(c_string)
            .collect::<Result<_, _>>()?,
        landlock_scope: landlock_scope(spec),
        cpus: cpus(&spec.limits),
        nice: spec.limits.nice,
        terminal: program.is_some_and(|program| program.terminal),
    })
}

/// The paths that are in no other one. A path in another writable one is allowed with it, and could
/// be replaced by a link before the next exec of the session.
fn topmost(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let inner = |path: &PathBuf| {
        paths
            .iter()
            .any(|other| path != other && path.starts_with(other))
    };
    paths.iter().filter(|path| !inner(path)).collect()
}

fn landlock_scope(spec: &SandboxSpec) -> LandlockScope {
    match (spec.outlives_programs, spec.network) {
        (false, _) => LandlockScope::Isolated,
        (true, Network::Host) => LandlockScope::Signals,
        (true, Network::None | Network::Doors | Network::Open) => LandlockScope::SignalsAndSockets,
    }
}

/// Only as many CPUs as fit a CPU set: the step would fail on others.
fn cpus(limits: &Limits) -> Option<u32> {
    fake_proc::allowed()?;
    limits.cpus.map(fake_proc::whole_cpus)
}

/// A name is searched in the path inside; one with a slash is taken as it is.
fn candidates(name: &OsStr, path: Option<&OsString>) -> Result<Vec<CString>, SandboxError> {
    if name.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(name)?]);
    }
    let path = path.map_or(OsStr::new(spec::DEFAULT_PATH), OsString::as_os_str);
    let folders = path
        .as_bytes()
        .split(|byte| *byte == b':')
        .take(MAX_PATH_FOLDERS)
        .map(OsStr::from_bytes);
    // A relative or empty folder would be one with the program's own files.
    let folders = folders.map(Path::new).filter(|folder| folder.is_absolute());
    folders.map(|folder| c_string(folder.join(name))).collect()
}

// These numbers are the same on every architecture we build for.
const CPU: u32 = 0;
const FILE_SIZE: u32 = 1;
const DATA: u32 = 2;
const STACK: u32 = 3;
const CORE: u32 = 4;
pub(crate) const PROCESSES: u32 = 6;
const OPEN_FILES: u32 = 7;
const LOCKED_MEMORY: u32 = 8;
const PENDING_SIGNALS: u32 = 11;
const MESSAGE_QUEUES: u32 = 12;
const NICE: u32 = 13;
const REAL_TIME: u32 = 14;

/// Limits that a sandbox must not inherit. The kernel counts some of them also for the creator of
/// the sandbox's user namespace: with the usual limits one sandbox could leave its creator none,
/// see [`Limits::DEFAULT_LOCKED_MEMORY`]. The others are a right that some callers have.
const NOT_INHERITED: [(u32, u64); 3] = [(PENDING_SIGNALS, 512), (NICE, 0), (REAL_TIME, 0)];

fn rlimits(limits: &Limits, enforcers: &BTreeMap<&'static str, Enforcer>) -> Vec<ResourceLimit> {
    let exact = |resource, value| ResourceLimit {
        resource,
        soft: value,
        hard: value,
    };
    let mut all = vec![
        // Not 0: only exactly 1 keeps the kernel from piping a core dump to a program on the host.
        exact(CORE, 1),
        exact(FILE_SIZE, limits.file_size.0),
        exact(OPEN_FILES, limits.open_files.into()),
        exact(PROCESSES, processes(limits, enforcers)),
        exact(
            LOCKED_MEMORY,
            limits
                .locked_memory
                .unwrap_or(Limits::DEFAULT_LOCKED_MEMORY)
                .0,
        ),
        exact(
            MESSAGE_QUEUES,
            limits
                .message_queues
                .unwrap_or(Limits::DEFAULT_MESSAGE_QUEUES)
                .0,
        ),
    ];
    all.extend(limits.stack.map(|stack| exact(STACK, stack.0)));
    all.extend(NOT_INHERITED.map(|(resource, value)| exact(resource, value)));
    if let Some(time) = limits.cpu_time {
        let seconds = time.0.as_secs() + u64::from(time.0.subsec_nanos() > 0);
        all.push(ResourceLimit {
            resource: CPU,
            soft: seconds,
            hard: seconds + 1,
        });
    }
    if matches!(
        enforcers.get("memory"),
        None | Some(Enforcer::Rlimit | Enforcer::Nothing)
    ) {
        // Private writable memory. A limit of address space would stop runtimes that only reserve
        // it.
        all.push(exact(DATA, limits.memory.0));
    }
    all
}

/// Counted per user namespace, and every sandbox has a new one. Where a cgroup enforces the limit,
/// too, the cgroup has to refuse first: only it counts refusals.
fn processes(limits: &Limits, enforcers: &BTreeMap<&'static str, Enforcer>) -> u64 {
    match enforcers.get("pids") {
        Some(Enforcer::CgroupV1 | Enforcer::CgroupV2) => u64::from(limits.pids) + 1,
        Some(Enforcer::Rlimit | Enforcer::Nothing) | None => limits.pids.into(),
    }
}

/// In a session, execs start beside other programs of the same user. A process that those could
/// inspect on its way to exec still has descriptors of the host.
pub(super) fn check_stays(
    spec: &SandboxSpec,
    can_be_looked_into: bool,
) -> Result<(), SandboxError> {
    if spec.outlives_programs && can_be_looked_into {
        Err(MissingBarrier::new(
            "own_user",
            "fs.suid_dumpable is 1, so that programs could look into the next one while it is being started; set it to 0 or 2",
        )
        .into())
    } else {
        Ok(())
    }
}

/// Refuses what cannot be enforced before anything is created.
pub(super) fn check_invoking_user(
    invoking_user: InvokingUser,
    effective_uid: u32,
) -> Result<(), SandboxError> {
    match (invoking_user, effective_uid) {
        (InvokingUser::User, 0) => Err(MissingBarrier::new(
            "not_host_root",
            "this root lacks the capability to make namespaces, or spare ids for programs, which would be uid 0 outside",
        )
        .into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{ErrorCode, Policy, RunRequest};
    use std::os::unix::fs::symlink;

    /// Every host path lookup of this crate.
    fn lookups(spec: &SandboxSpec) -> Vec<Result<(), SandboxError>> {
        let mut done = vec![host_paths(spec, true).map(drop)];
        if let Some(workspace) = &spec.workspace {
            done.push(open_workspace(spec, workspace).map(drop));
            done.push(super::super::owner_of(spec, workspace).map(drop));
        }
        if matches!(spec.root, Root::Folder(_)) {
            done.push(super::super::root::plan(spec, Steps::ALL, &[]).map(drop));
        }
        done
    }

    #[test]
    fn a_path_that_leads_elsewhere_than_when_it_was_admitted_is_refused_wherever_it_is_looked_up() {
        let top = std::env::temp_dir().join(format!("airlock-plan-{}", std::process::id()));
        let (folder, other) = (top.join("folder"), top.join("other"));
        [&folder, &other]
            .iter()
            .for_each(|path| fs::create_dir_all(path).unwrap());
        let found = fs::metadata(&folder).unwrap();
        let id = FileId {
            device: found.dev(),
            inode: found.ino(),
        };
        let spec = |change: &dyn Fn(&mut RunRequest)| {
            let allowed_paths = Some([(folder.clone(), id)].into());
            let mut request = RunRequest {
                command: vec!["true".into()],
                allowed_paths,
                ..RunRequest::default()
            };
            change(&mut request);
            Policy::default().admit(request).unwrap().sandbox
        };
        let specs = [
            spec(&|request| request.workspace = Some(folder.clone())),
            spec(&|request| request.mounts = vec![format!("{}:/m:rw", folder.display()).into()]),
            spec(&|request| request.image = Some(folder.clone())),
        ];
        let all = || specs.iter().flat_map(lookups).collect::<Vec<_>>();
        all().into_iter().for_each(|found| found.unwrap());
        fs::rename(&folder, top.join("moved")).unwrap();
        symlink(&other, &folder).unwrap();
        let refused: Vec<_> = all().into_iter().filter_map(Result::err).collect();
        // The image has no path of its own among the first lookups.
        assert_eq!(refused.len(), 5, "{refused:?}");
        for error in refused {
            assert!(matches!(error, SandboxError::Replaced { .. }), "{error:?}");
            assert_eq!(error.info().code, ErrorCode::PolicyDenied);
        }
        fs::remove_dir_all(top).unwrap();
    }
}
