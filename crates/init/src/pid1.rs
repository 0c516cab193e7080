//! Pid 1 of one sandbox. Born in the sandbox's namespaces, it sets them up, hands their descriptors
//! out, drops its capabilities, and then only reaps. It stays in the launcher's user namespace, so
//! that no program of the sandbox ever has rights over it or over the mounts.

use crate::{
    plan::{HostOwner, HostPath, Ids, SandboxPlan, UPPER, WORK, WORKSPACE_OVERLAY, WorkspaceName},
    protocol::{self, Report},
    step::{Step, StepFailure, Steps},
    submounts,
    sys::{self, ForkSide},
    template::{self, NO_SUID_NO_DEV, READ_ONLY, failure},
    terminal,
    transparent_proxy::{self, Interception},
};
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid},
    process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal},
    thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    ffi::{CStr, CString},
    io,
    net::TcpListener,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// How a path of `/proc` is masked.
#[derive(Clone, Copy)]
pub(crate) enum ProcMask {
    /// By an unreadable file: the original tells about the host or holds keys.
    Nothing,
    /// By an empty directory: the original is about hardware.
    EmptyDirectory,
    /// By a read-only bind mount: kernel settings. In an ordinary user's sandbox the program would
    /// own those of its namespaces.
    ReadOnly,
}

const PROC_MASKS: [(&CStr, ProcMask); 17] = [
    (c"/proc/cmdline", ProcMask::Nothing),
    (c"/proc/interrupts", ProcMask::Nothing),
    (c"/proc/kcore", ProcMask::Nothing),
    (c"/proc/keys", ProcMask::Nothing),
    (c"/proc/key-users", ProcMask::Nothing),
    (c"/proc/timer_list", ProcMask::Nothing),
    (c"/proc/sched_debug", ProcMask::Nothing),
    (c"/proc/kallsyms", ProcMask::Nothing),
    (c"/proc/kmsg", ProcMask::Nothing),
    (c"/proc/latency_stats", ProcMask::Nothing),
    (c"/proc/sysrq-trigger", ProcMask::Nothing),
    (c"/proc/acpi", ProcMask::EmptyDirectory),
    (c"/proc/scsi", ProcMask::EmptyDirectory),
    (c"/proc/sys", ProcMask::ReadOnly),
    (c"/proc/irq", ProcMask::ReadOnly),
    (c"/proc/bus", ProcMask::ReadOnly),
    (c"/proc/fs", ProcMask::ReadOnly),
];

/// The masks for the files that this kernel has. They are the same for every sandbox, so the
/// launcher looks once.
pub(crate) fn masks() -> Vec<(&'static CStr, ProcMask)> {
    let exists = |path| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    PROC_MASKS
        .into_iter()
        .filter(|(path, _)| exists(*path))
        .collect()
}

/// Quotas of the program's user namespace. The kernel also charges the namespace's creator, so a
/// program without a quota could use up what the host's root (or the user) has.
pub(crate) const QUOTAS: &[(&str, u32)] = &[
    ("max_user_namespaces", 0),
    ("max_inotify_instances", 32),
    ("max_inotify_watches", 8192),
];
/// Read-only files of every template that cover others: an empty directory, a device file on a
/// mount without devices, and fake `/proc` files with the limits of the run.
pub(crate) const EMPTY: &CStr = c"/run/airlock/empty";
/// In scratch space until that is covered: a regular file, so that git does not take it for a
/// deleted one.
const HIDDEN_FILE: &CStr = c"/tmp/hidden";
pub(crate) const NOTHING: &CStr = c"/run/airlock/nothing";
const FAKE_PROC_FILES: [(&CStr, &CStr); 3] = [
    (c"/proc/meminfo", c"/run/airlock/meminfo"),
    (c"/proc/cpuinfo", c"/run/airlock/cpuinfo"),
    (c"/proc/stat", c"/run/airlock/stat"),
];

/// What pid 1 gets from the launcher.
pub(crate) struct Pid1Args<'a> {
    pub(crate) plan: &'a SandboxPlan,
    /// The mount namespace in which host paths are resolved.
    pub(crate) host: BorrowedFd<'a>,
    /// The socket for its report.
    pub(crate) report: BorrowedFd<'a>,
    /// Descriptors that stay open as long as it lives.
    pub(crate) inherited: &'a [BorrowedFd<'a>],
    /// A pooled network namespace; the program's user namespace came with it.
    pub(crate) network: Option<BorrowedFd<'a>>,
    pub(crate) masks: &'a [(&'static CStr, ProcMask)],
}

/// What pid 1 hands out with its report. The namespaces (unless pooled) and the terminals are for
/// the launcher, the rest for the engine.
struct Pid1Resources {
    namespaces: Vec<OwnedFd>,
    user_namespace: Option<OwnedFd>,
    /// `/dev/pts`, in which the launcher opens further terminals.
    terminals: Option<OwnedFd>,
    workspace: OwnedFd,
    /// The mount table, if the engine watches it.
    mount_table: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
    doors: Vec<TcpListener>,
    intercept: Interception,
    unmapped: Vec<u32>,
    /// Kernel file systems below mounted folders, which are covered.
    covered: Vec<CString>,
    done: Steps,
}

/// Runs pid 1 to its end.
pub(crate) fn run(args: &Pid1Args<'_>) -> ! {
    let sent = match set_up(args) {
        Ok(resources) => send_report(args, &resources),
        Err(failed) => protocol::send(args.report, &Report::Failed(failed), &[])
            .and(Err(io::Error::other("not made"))),
    };
    match sent.and_then(|()| contain(args.inherited)) {
        Ok(()) => reap_forever(),
        Err(_) => sys::exit(1),
    }
}

fn send_report(args: &Pid1Args<'_>, resources: &Pid1Resources) -> io::Result<()> {
    let mut handles: Vec<_> = resources.namespaces.iter().map(AsFd::as_fd).collect();
    handles.extend(resources.user_namespace.iter().map(AsFd::as_fd));
    handles.extend(resources.terminals.iter().map(AsFd::as_fd));
    handles.push(resources.workspace.as_fd());
    handles.extend(resources.mount_table.iter().map(AsFd::as_fd));
    handles.extend(resources.terminal.iter().map(AsFd::as_fd));
    handles.extend(resources.doors.iter().map(AsFd::as_fd));
    handles.extend(resources.intercept.handles());
    let steps = resources.done;
    let ids = args.plan.ids;
    let unmapped = resources.unmapped.clone();
    let intercept = resources.intercept.handle_counts();
    let covered = resources.covered.clone();
    protocol::send(
        args.report,
        &Report::Ready {
            steps,
            ids,
            unmapped,
            covered,
            intercept,
        },
        &handles,
    )
}

fn set_up(args: &Pid1Args<'_>) -> Result<Pid1Resources, StepFailure> {
    let plan = args.plan;
    let mut done = namespace_steps(plan);
    prepare_process(plan).map_err(failure(Step::UtsNamespace, "prepare the process"))?;
    if let Some(network) = args.network {
        move_into_link_name_space(network, Some(LinkNameSpaceType::Network))
            .map_err(|error| failure(Step::NetNamespace, "join one made ahead")(error.into()))?;
    }
    let own = open_read_only(c"/proc/self/ns/mnt")
        .map_err(failure(Step::MountNamespace, "/proc/self/ns"))?;
    mount_proc().map_err(failure(Step::Proc, "/proc"))?;
    // The quotas are set through `/proc/sys`, which becomes read-only next.
    let user_namespace = match args.network {
        None => Some(user_namespace(IdMap::of_program(plan.ids), QUOTAS)),
        Some(_) => None,
    };
    let user_namespace = user_namespace
        .transpose()
        .map_err(failure(Step::MakeUserNamespace, "id maps and quotas"))?;
    done.add(Step::MakeUserNamespace);
    mask_proc(args.masks).map_err(failure(Step::Proc, "masks of /proc"))?;
    done.add(Step::Proc);
    if plan.steps.has(Step::ShowLimits) {
        let shown = FAKE_PROC_FILES
            .into_iter()
            .try_for_each(|(path, by)| cover(path, by));
        shown.map_err(failure(Step::ShowLimits, "numbers in /proc"))?;
        done.add(Step::ShowLimits);
    }
    let (trees, unmapped) = open_paths(plan, args.host, own.as_fd())?;
    done.add(Step::OpenPaths);
    mount_scratch(plan).map_err(failure(Step::Scratch, "scratch space"))?;
    if plan.steps.has(Step::Scratch) {
        done.add(Step::Scratch);
    }
    for folder in &plan.writable_folders {
        mount_folder_overlay(folder, plan.ids)
            .map_err(failure(Step::Scratch, &folder.to_string_lossy()))?;
    }
    let mut trees = trees.into_iter();
    let folder = trees.by_ref().take(plan.workspace.iter().len()).next();
    let layer = trees.by_ref().take(plan.overlay.iter().len()).next();
    let workspace = set_up_workspace(plan, folder, layer)?;
    done.add(Step::Workspace);
    for (mount, tree) in plan.mounts.iter().zip(trees) {
        attach_mount(mount, &tree)
            .map_err(failure(Step::Mounts, &mount.inside.to_string_lossy()))?;
    }
    let covered =
        cover_submounts(plan).map_err(failure(Step::Mounts, "kernel file systems below"))?;
    done.add(Step::Mounts);
    let doors = open_doors(args).map_err(failure(Step::Doors, "listen inside"))?;
    done.add(Step::Doors);
    let intercept = start_interception(plan)
        .map_err(failure(Step::TransparentProxy, "have everything arrive"))?;
    if intercept.is_some() {
        done.add(Step::TransparentProxy);
    }
    let intercept = intercept.unwrap_or_default();
    let (terminals, terminal) = set_up_terminals(plan)?;
    if plan.terminal || plan.stays {
        done.add(Step::Terminal);
    }
    let mount_table = plan
        .watch_mounts
        .then(|| open_read_only(c"/proc/self/mountinfo"));
    let mount_table = mount_table
        .transpose()
        .map_err(failure(Step::Workspace, "the mount table"))?;
    let namespaces =
        open_namespaces(args).map_err(failure(Step::JoinNamespaces, "/proc/self/ns"))?;
    // The last id map is written. Programs can start from now on.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| failure(Step::MakeUserNamespace, "dumpable")(error.into()))?;
    Ok(Pid1Resources {
        namespaces,
        user_namespace,
        terminals,
        workspace,
        mount_table,
        terminal,
        doors,
        intercept,
        unmapped,
        covered,
        done,
    })
}

/// `/dev/pts` if the sandbox is a session, and its own terminal if it has one.
fn set_up_terminals(plan: &SandboxPlan) -> Result<(Option<OwnedFd>, Option<OwnedFd>), StepFailure> {
    let at_terminal = || failure(Step::Terminal, "/dev/pts");
    let terminals = (plan.terminal || plan.stays).then(|| terminal::mount(plan.ids));
    let terminals = terminals.transpose().map_err(at_terminal())?;
    let own = terminals.as_ref().filter(|_| plan.terminal);
    let own = own.map(terminal::open).transpose().map_err(at_terminal())?;
    Ok((terminals.filter(|_| plan.stays), own))
}

/// The namespaces that the launcher cloned this process into.
fn namespace_steps(plan: &SandboxPlan) -> Steps {
    let mut done = Steps::default();
    for (step, _) in namespaces(plan) {
        done.add(step);
    }
    done
}

/// The namespaces of a sandbox, with the clone flag of each.
pub(crate) fn namespaces(plan: &SandboxPlan) -> impl Iterator<Item = (Step, libc::c_int)> + use<> {
    let steps = plan.steps;
    let own_network = plan.own_network;
    // The network namespace comes first: a pooled one takes its place.
    let all = [
        (Step::NetNamespace, libc::CLONE_NEWNET),
        (Step::PidNamespace, libc::CLONE_NEWPID),
        (Step::MountNamespace, libc::CLONE_NEWNS),
        (Step::IpcNamespace, libc::CLONE_NEWIPC),
        (Step::UtsNamespace, libc::CLONE_NEWUTS),
        (Step::CgroupNamespace, libc::CLONE_NEWCGROUP),
    ];
    all.into_iter()
        .filter(move |(step, _)| steps.has(*step) && (own_network || *step != Step::NetNamespace))
}

fn namespace_path(step: Step) -> &'static CStr {
    match step {
        Step::PidNamespace => c"/proc/self/ns/pid",
        Step::NetNamespace => c"/proc/self/ns/net",
        Step::IpcNamespace => c"/proc/self/ns/ipc",
        Step::UtsNamespace => c"/proc/self/ns/uts",
        Step::CgroupNamespace => c"/proc/self/ns/cgroup",
        _ => c"/proc/self/ns/mnt",
    }
}

fn open_namespaces(args: &Pid1Args<'_>) -> io::Result<Vec<OwnedFd>> {
    let known = |step| step == Step::NetNamespace && args.network.is_some();
    let handed_out = namespaces(args.plan).filter(|(step, _)| !known(*step));
    handed_out
        .map(|(step, _)| open_read_only(namespace_path(step)))
        .collect()
}

pub(crate) fn open_read_only(path: &CStr) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn prepare_process(plan: &SandboxPlan) -> io::Result<()> {
    if !plan.warm {
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    // The launcher is not dumpable; this process has to be, for a moment, to write the id maps of
    // its helper.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Files get exactly the mode that they are created with.
    rustix::process::umask(Mode::empty());
    if plan.steps.has(Step::UtsNamespace) {
        rustix::system::sethostname(plan.hostname.as_bytes())?;
    }
    Ok(())
}

fn mount_proc() -> io::Result<()> {
    let proc = template::new_file_system(c"proc", &[])?;
    sys::set_mount(
        proc.as_fd(),
        false,
        NO_SUID_NO_DEV | libc::MOUNT_ATTR_NOEXEC,
        None,
    )?;
    template::attach(&proc, &CWD, c"/proc")
}

fn mask_proc(masks: &[(&CStr, ProcMask)]) -> io::Result<()> {
    masks.iter().try_for_each(|(path, mask)| {
        let by = match mask {
            ProcMask::Nothing => NOTHING,
            ProcMask::EmptyDirectory => EMPTY,
            ProcMask::ReadOnly => return make_read_only(path),
        };
        cover(path, by)
    })
}

/// One call: the covering file is read-only in the template, and a bind mount inherits that.
fn cover(path: &CStr, by: &CStr) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(by, path)?)
}

fn make_read_only(path: &CStr) -> io::Result<()> {
    let tree = template::open_tree(&CWD, path)?;
    sys::set_mount(tree.as_fd(), false, NO_SUID_NO_DEV | READ_ONLY, None)?;
    template::attach(&tree, &CWD, path)
}

/// Detached mounts of the host's workspace, of the layer over it and of the mounts, in that order;
/// and the numbers of those that could not be idmapped.
fn open_paths(
    plan: &SandboxPlan,
    host: BorrowedFd<'_>,
    own: BorrowedFd<'_>,
) -> Result<(Vec<OwnedFd>, Vec<u32>), StepFailure> {
    let of_workspace = plan.workspace.iter().chain(&plan.overlay);
    let paths: Vec<_> = of_workspace.chain(&plan.mounts).collect();
    if paths.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let at = |path: &HostPath| failure(Step::OpenPaths, &path.host.to_string_lossy());
    let enter = |namespace| move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount));
    enter(host).map_err(|error| failure(Step::OpenPaths, "the host's mounts")(error.into()))?;
    let open = |path: &&HostPath| open_checked_tree(path).map_err(at(path));
    let trees: Vec<_> = paths.iter().map(open).collect::<Result<_, _>>()?;
    enter(own).map_err(|error| failure(Step::OpenPaths, "our own mounts")(error.into()))?;
    let mut unmapped = Vec::new();
    for ((number, path), tree) in (0..).zip(&paths).zip(&trees) {
        let attributes = NO_SUID_NO_DEV | if path.writable { 0 } else { READ_ONLY };
        sys::set_mount(tree.as_fd(), true, attributes, None).map_err(at(path))?;
        if path
            .owner
            .is_some_and(|owner| idmap(tree, owner, plan.ids).is_err())
        {
            unmapped.push(number);
        }
    }
    Ok((trees, unmapped))
}

/// Opens the file that the engine checked, or fails.
fn open_checked_tree(path: &HostPath) -> io::Result<OwnedFd> {
    let tree = template::open_tree(&CWD, &path.host)?;
    let found = rustix::fs::statat(&tree, c"", AtFlags::EMPTY_PATH)?;
    if (found.st_dev, found.st_ino) == (path.device, path.inode) {
        Ok(tree)
    } else {
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }
}

/// Shows the owner's files as the program's own. Not every file system can.
fn idmap(tree: &OwnedFd, owner: HostOwner, ids: Ids) -> io::Result<()> {
    let namespace = user_namespace(IdMap::of_owner(owner, ids), &[])?;
    sys::set_mount(tree.as_fd(), false, 0, Some(namespace.as_fd()))
}

/// One tmpfs for everything that is written and not kept, so that one size limits it all.
fn mount_scratch(plan: &SandboxPlan) -> io::Result<()> {
    let size = CString::new(plan.scratch_bytes.to_string())?;
    let files = CString::new(plan.scratch_files.to_string())?;
    let limits = [
        (c"size", size.as_c_str()),
        (c"nr_inodes", files.as_c_str()),
        (c"mode", c"755"),
    ];
    let limits: &[_] = if plan.steps.has(Step::Scratch) {
        &limits
    } else {
        &[]
    };
    let space = template::new_file_system(c"tmpfs", limits)?;
    template::attach(&space, &CWD, c"/tmp")?;
    if !plan.writable_folders.is_empty() {
        rustix::fs::mkdirat(&space, c"layers", Mode::from_raw_mode(0o700))?;
    }
    if plan.overlay.is_some() {
        rustix::fs::mkdirat(&space, c"layer", Mode::from_raw_mode(0o700))?;
    }
    if !plan.hidden.is_empty() {
        let kind = rustix::fs::FileType::RegularFile;
        rustix::fs::mknodat(&space, c"hidden", kind, Mode::empty(), 0)?;
    }
    for name in [c"tmp", c"shm", c"home", c"workspace"] {
        let mode = Mode::from_raw_mode(if [c"tmp", c"shm"].contains(&name) {
            0o1777
        } else {
            0o755
        });
        rustix::fs::mkdirat(&space, name, mode)?;
        chown_to_program(&space, name, plan.ids)?;
    }
    Ok(())
}

/// Mounts a writable overlay on a folder of the root; its layer is in scratch space.
fn mount_folder_overlay(folder: &CStr, ids: Ids) -> io::Result<()> {
    let lower = beneath(&CWD, folder)?;
    let layers = beneath(&CWD, c"/tmp/layers")?;
    let name = folder
        .to_bytes()
        .strip_prefix(b"/")
        .unwrap_or(folder.to_bytes());
    let [upper, work] = [&b"upper-"[..], b"work-"].map(|kind| CString::new([kind, name].concat()));
    let upper = upper?;
    let work = work?;
    for place in [&upper, &work] {
        rustix::fs::mkdirat(&layers, place, Mode::from_raw_mode(0o755))?;
    }
    // The permissions of an overlay's top folder are those of its upper layer.
    let found = rustix::fs::fstat(&lower)?;
    rustix::fs::chmodat(
        &layers,
        &upper,
        Mode::from_raw_mode(found.st_mode & 0o1777),
        AtFlags::empty(),
    )?;
    let upper = beneath(&layers, &upper)?;
    let work = beneath(&layers, &work)?;
    // In an ordinary user's namespace overlay attributes need names that such a user may write.
    let own_names = !ids.drop_groups;
    let options: &[_] = if own_names {
        &[(c"userxattr", c"")]
    } else {
        &[]
    };
    let merged = overlay([&lower, &upper, &work], options)?;
    template::attach(&merged, &CWD, folder)
}

/// An overlay of a lower folder, an upper folder and a work folder.
fn overlay(folders: [&OwnedFd; 3], options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    // By descriptor: a path could contain the characters that separate layers.
    let handle = |at: &OwnedFd| CString::new(format!("/proc/self/fd/{}", at.as_raw_fd()));
    let [lower, upper, work] = folders.map(handle);
    let lower = lower?;
    let upper = upper?;
    let work = work?;
    let mut all = vec![
        (c"lowerdir", &*lower),
        (c"upperdir", &*upper),
        (c"workdir", &*work),
    ];
    all.extend_from_slice(options);
    template::new_file_system(c"overlay", &all)
}

/// The home folder is scratch space, with directories as mount points.
fn set_up_home(plan: &SandboxPlan) -> io::Result<()> {
    let home = beneath(&CWD, c"/home/agent")?;
    bind_scratch(c"home", &home)?;
    if plan.home_directories.is_empty() {
        return Ok(());
    }
    let home = beneath(&CWD, c"/home/agent")?;
    for path in &plan.home_directories {
        rustix::fs::mkdirat(&home, path, Mode::from_raw_mode(0o755))?;
        chown_to_program(&home, path, plan.ids)?;
    }
    Ok(())
}

fn chown_to_program(at: &impl AsFd, path: &CStr, ids: Ids) -> io::Result<()> {
    let uid = Uid::from_raw(ids.outer_uid);
    let gid = Gid::from_raw(ids.outer_gid);
    Ok(rustix::fs::chownat(
        at,
        path,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn bind_scratch(name: &CStr, place: &impl AsFd) -> io::Result<()> {
    let space = rustix::fs::openat(CWD, c"/tmp", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    template::attach(&template::open_tree(&space, name)?, place, c"")
}

fn set_up_workspace(
    plan: &SandboxPlan,
    folder: Option<OwnedFd>,
    layer: Option<OwnedFd>,
) -> Result<OwnedFd, StepFailure> {
    let at = |what: &str| failure(Step::Workspace, what);
    let place = |path: &CStr| beneath(&CWD, path).map_err(at(&path.to_string_lossy()));
    match (&folder, &layer) {
        (Some(folder), Some(layer)) => {
            mount_workspace_overlay(folder, layer, plan.ids).map_err(at(WORKSPACE_OVERLAY))?
        }
        (Some(folder), None) => {
            template::attach(folder, &CWD, c"/workspace").map_err(at("/workspace"))?;
        }
        (None, _) => {
            bind_scratch(c"workspace", &place(c"/workspace")?).map_err(at("/workspace"))?
        }
    }
    // Opened for reading: the engine lists it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let workspace = rustix::fs::openat(CWD, c"/workspace", flags, Mode::empty())
        .map_err(|error| at("/workspace")(error.into()))?;
    prepare_workspace(plan, &workspace, folder.as_ref().unwrap_or(&workspace))?;
    set_up_home(plan).map_err(at("/home/agent"))?;
    bind_scratch(c"shm", &place(c"/dev/shm")?).map_err(at("/dev/shm"))?;
    // Last: it covers the scratch mount itself.
    bind_scratch(c"tmp", &place(c"/tmp")?).map_err(at("/tmp"))?;
    Ok(workspace)
}

/// Mounts an overlay on the workspace: all writes go to the layer.
fn mount_workspace_overlay(folder: &OwnedFd, layer: &OwnedFd, ids: Ids) -> io::Result<()> {
    // Older kernels accept only mounted folders as layers.
    template::attach(folder, &CWD, c"/workspace")?;
    template::attach(layer, &CWD, c"/tmp/layer")?;
    let lower = beneath(&CWD, c"/workspace")?;
    let above = beneath(&CWD, c"/tmp/layer")?;
    let upper = beneath(&above, UPPER)?;
    let work = beneath(&above, WORK)?;
    let by_root = ids.drop_groups;
    let own_names: &[(&CStr, &CStr)] = if by_root {
        &[(c"redirect_dir", c"on")]
    } else {
        &[(c"userxattr", c"")]
    };
    let options = [own_names, &[(c"metacopy", c"off"), (c"index", c"off")]].concat();
    // The kernel creates files in the layer with the ids of the process that mounted it, and the
    // layer is idmapped for the program alone.
    let merged = sys::with_file_ids(ids.outer_uid, ids.outer_gid, || {
        overlay([&lower, &upper, &work], &options)
    })?;
    if rustix::fs::fstatvfs(&lower)?
        .f_flag
        .contains(rustix::fs::StatVfsMountFlags::NOEXEC)
    {
        sys::set_mount(merged.as_fd(), false, libc::MOUNT_ATTR_NOEXEC, None)?;
    }
    // The overlay keeps references to both.
    for place in [c"/workspace", c"/tmp/layer"] {
        rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH)?;
    }
    template::attach(&merged, &CWD, c"/workspace")
}

/// Creates the directories of a fresh workspace, and covers the names that were found in the host's
/// `folder`.
fn prepare_workspace(
    plan: &SandboxPlan,
    workspace: &OwnedFd,
    folder: &OwnedFd,
) -> Result<(), StepFailure> {
    let at = |path: &CStr| {
        failure(
            Step::Workspace,
            &format!("/workspace/{}", path.to_string_lossy()),
        )
    };
    for path in &plan.workspace_directories {
        rustix::fs::mkdirat(workspace, path, Mode::from_raw_mode(0o755))
            .map_err(|error| at(path)(error.into()))?;
        chown_to_program(workspace, path, plan.ids).map_err(at(path))?;
    }
    if plan.workspace.is_none() {
        template::link_home(workspace).map_err(at(c".home"))?;
    }
    for name in &plan.protected {
        let place = open_checked_name(workspace, folder, name).map_err(at(&name.path))?;
        protect(&place).map_err(at(&name.path))?;
    }
    for name in &plan.hidden {
        let place = open_checked_name(workspace, folder, name).map_err(at(&name.path))?;
        hide(&place, HIDDEN_FILE).map_err(at(&name.path))?;
    }
    Ok(())
}

/// Opens the name if it still has the checked inode. An overlay shows other inodes than the folder
/// below it.
fn open_checked_name(
    workspace: &OwnedFd,
    folder: &OwnedFd,
    name: &WorkspaceName,
) -> io::Result<OwnedFd> {
    let found = rustix::fs::fstat(beneath(folder, &name.path)?)?;
    if found.st_ino == name.inode {
        beneath(workspace, &name.path)
    } else {
        Err(io::Error::other("it was replaced meanwhile"))
    }
}

/// Mounts a name of the workspace onto itself, read-only.
pub(crate) fn protect(place: &OwnedFd) -> io::Result<()> {
    let tree = template::open_tree(place, c"")?;
    sys::set_mount(tree.as_fd(), true, NO_SUID_NO_DEV | READ_ONLY, None)?;
    template::attach(&tree, place, c"")
}

/// Covers a file by an unreadable file, and a folder by an empty one.
pub(crate) fn hide(place: &OwnedFd, by: &CStr) -> io::Result<()> {
    let cover = if template::is_directory(place)? {
        template::open_tree(&CWD, EMPTY)?
    } else {
        template::open_tree(&CWD, by)?
    };
    sys::set_mount(cover.as_fd(), false, NO_SUID_NO_DEV | READ_ONLY, None)?;
    template::attach(&cover, place, c"")
}

/// Opens a path without following symbolic links, so that links planted in a workspace are
/// harmless.
pub(crate) fn beneath(at: &impl AsFd, path: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(
        at,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

fn attach_mount(mount: &HostPath, tree: &OwnedFd) -> io::Result<()> {
    let place = beneath(&CWD, &mount.inside)?;
    if template::is_directory(&place)? == template::is_directory(tree)? {
        template::attach(tree, &place, c"")
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOTDIR))
    }
}

fn cover_submounts(plan: &SandboxPlan) -> io::Result<Vec<CString>> {
    let paths = plan.workspace.iter().chain(&plan.mounts);
    let places: Vec<_> = paths.map(|path| path.inside.as_c_str()).collect();
    submounts::cover(&places)
}

fn open_doors(args: &Pid1Args<'_>) -> io::Result<Vec<TcpListener>> {
    let plan = args.plan;
    if !plan.own_network || !plan.steps.has(Step::NetNamespace) {
        return Ok(Vec::new());
    }
    if args.network.is_none() {
        sys::loopback_up()?;
    }
    transparent_proxy::open_doors(&plan.doors)
}

fn start_interception(plan: &SandboxPlan) -> io::Result<Option<Interception>> {
    let able = plan.own_network
        && plan.steps.has(Step::NetNamespace)
        && plan.steps.has(Step::TransparentProxy);
    plan.intercept
        .as_ref()
        .filter(|_| able)
        .map(|intercept| transparent_proxy::intercept_all(intercept, &plan.doors))
        .transpose()
}

/// One line of each id map of a user namespace: inside, outside.
pub(crate) struct IdMap {
    uid: (u32, u32),
    gid: (u32, u32),
}

impl IdMap {
    pub(crate) fn of_program(ids: Ids) -> IdMap {
        IdMap {
            uid: (ids.uid, ids.outer_uid),
            gid: (ids.gid, ids.outer_gid),
        }
    }

    /// For an idmapped mount: the files of `owner` appear as the program's own.
    fn of_owner(owner: HostOwner, ids: Ids) -> IdMap {
        IdMap {
            uid: (owner.uid, ids.outer_uid),
            gid: (owner.gid, ids.outer_gid),
        }
    }
}

/// Creates a user namespace with this id map and these quotas. A helper process is born in it, sets
/// the quotas once we hold the descriptor, and ends.
pub(crate) fn user_namespace(map: IdMap, quotas: &[(&str, u32)]) -> io::Result<OwnedFd> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let pid = match sys::fork_into(libc::CLONE_NEWUSER, None)? {
        ForkSide::Child => {
            drop(go);
            sys::exit(i32::from(hold_user_namespace(&wait, quotas).is_err()))
        }
        ForkSide::Parent { pid, .. } => pid,
    };
    let made = || {
        std::fs::write(
            format!("/proc/{pid}/uid_map"),
            format!("{} {} 1\n", map.uid.0, map.uid.1),
        )?;
        std::fs::write(
            format!("/proc/{pid}/gid_map"),
            format!("{} {} 1\n", map.gid.0, map.gid.1),
        )?;
        std::fs::File::open(format!("/proc/{pid}/ns/user")).map(OwnedFd::from)
    };
    let namespace = made();
    drop(go);
    match sys::reap(pid, true)? {
        Some((_, helper)) if helper.status == 0 => namespace,
        _ => namespace.and(Err(io::Error::other("the quotas could not be set"))),
    }
}

/// The process only has to exist until the other end of the pipe is closed.
fn hold_user_namespace(wait: &OwnedFd, quotas: &[(&str, u32)]) -> io::Result<()> {
    while rustix::io::retry_on_intr(|| rustix::io::read(wait, &mut [0; 1]))? > 0 {}
    quotas.iter().try_for_each(|(name, most)| {
        match std::fs::write(format!("/proc/sys/user/{name}"), most.to_string()) {
            // The kernel has no such resource.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    })
}

fn contain(inherited: &[BorrowedFd<'_>]) -> io::Result<()> {
    close_all_except(inherited)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Closes all descriptors except the standard streams and these.
pub(crate) fn close_all_except(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if fd > first {
            sys::close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    sys::close_range(first, u32::MAX)
}

fn reap_forever() -> ! {
    sys::block_child_signal();
    loop {
        while matches!(sys::reap(-1, false), Ok(Some(_))) {}
        sys::await_child();
    }
}
