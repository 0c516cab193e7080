//! Group A: files and paths.

use crate::{
    Case, Control, Finding, NOT_A_USERS, Outcome, POWER, Peer, ROOT_INSIDE, Trouble, attack, case,
    nothing, oracle,
    world::{Ground, each, mount},
};
use engine::Step;
use spec::RunRequest;
use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

/// It is the gateway's: a server is attacked there from inside and asked from outside.
const FILE_API: &str = "the file API is the gateway's; tests/server/soak tries it";
const NO_UPLOADS: Peer = Peer::Nothing("it puts no files in and takes none out");

pub(crate) const CASES: &[Case] = &[
    nothing("A1", "an absolute link through the file API", FILE_API),
    nothing(
        "A2",
        "swapping the last name of a path during the file API's open",
        FILE_API,
    ),
    nothing(
        "A3",
        "swapping a folder of a path during the file API's open",
        FILE_API,
    ),
    case(
        "A4",
        "`..` and absolute names of inputs",
        input_names,
        Control::Given,
        NO_UPLOADS,
    ),
    case(
        "A5",
        "inputs through links planted in the workspace",
        input_links,
        Control::Given,
        NO_UPLOADS,
    ),
    case(
        "A6",
        "magic links of /proc and /dev/fd to a host file",
        magic_links,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A7",
        "a hard link to a read-only file, then writing through it",
        hard_link,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A8",
        "replacing the folder of a protected name",
        replaced_parent,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A9",
        "protected names that are absent",
        absent_names,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A10",
        "settings that make the host's git run a program",
        git_settings,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A11",
        "other spellings of protected names",
        spellings,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A12",
        "remounting a read-only share writable",
        remount,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "A13",
        "mounts that show up elsewhere",
        propagation,
        Control::Without(SHARED_MOUNTS),
        Peer::Runs,
    ),
    case(
        "A14",
        "open_by_handle_at with the handle of a host file",
        handle,
        Control::WithoutAsRoot(POWER, NOT_A_USERS),
        Peer::Runs,
    ),
    case(
        "A15",
        "mounts by fsopen, open_tree, move_mount",
        new_mounts,
        Control::Without(POWER),
        Peer::Runs,
    ),
    case(
        "A16",
        "chroot and fchdir, pivot_root",
        chroot,
        Control::Without(ROOT_OF_ITS_OWN),
        Peer::Runs,
    ),
    case(
        "A17",
        "device nodes, made inside or arriving in the workspace",
        device_nodes,
        Control::WithoutAsRoot(POWER, NOT_A_USERS),
        Peer::Runs,
    ),
    case(
        "A18",
        "power by a set-id program or file capabilities",
        set_id,
        Control::Without(GAINING),
        Peer::Runs,
    ),
    case(
        "A19",
        "devices: mem, kmsg, kvm, fuse, tun, disks",
        devices,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "A20",
        "descriptors left open by whoever starts the box",
        descriptors,
        Control::Given,
        Peer::Nothing("its worker closes them before it starts bwrap"),
    ),
    case(
        "A21",
        "an image whose /dev, /proc, /tmp are links to the host",
        hostile_image,
        Control::Given,
        Peer::Nothing("it takes no images"),
    ),
    case(
        "A22",
        "artifacts: links, fifo, socket, holes, hostile names",
        artifacts,
        Control::Given,
        NO_UPLOADS,
    ),
    case(
        "A23",
        "file capabilities and trusted attributes on host files",
        attributes,
        Control::Without(&[Step::NoCapabilities]),
        Peer::Runs,
    ),
    case(
        "A24",
        "a lease that makes host tools wait, fanotify",
        lease,
        Control::Without(&[Step::SyscallFilter]),
        Peer::Runs,
    ),
];

const SHARED_MOUNTS: &[Step] = &[
    Step::MountNamespace,
    Step::PidNamespace,
    Step::EnterUserNamespace,
    Step::Credentials,
    Step::NoCapabilities,
    Step::SyscallFilter,
    Step::PathRules,
];
const ROOT_OF_ITS_OWN: &[Step] = &[Step::NoCapabilities, Step::SyscallFilter];
const GAINING: &[Step] = &[Step::NoCapabilities, Step::NoNewPrivileges];

/// What git, shells, editors and agents of the host obey.
const OBEYED: [&str; 10] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".vscode/tasks.json",
    ".mcp.json",
    ".claude/settings.json",
    ".codex/config.toml",
    ".envrc",
    ".bashrc",
    ".profile",
    ".zshenv",
];

/// The names of `--allow-protected` that lift the protection of all of them.
fn lifted(ground: &Ground<'_>) -> Vec<PathBuf> {
    let top = |name: &&str| PathBuf::from(name.split('/').next().unwrap_or(name));
    if ground.is_control() {
        // The last is a repository by what is in it.
        OBEYED.iter().chain(&["bare"]).map(top).collect()
    } else {
        Vec::new()
    }
}

fn planted(ground: &Ground<'_>, workspace: &Path, names: &[&str]) -> Outcome {
    let is_planted =
        |name: &str| fs::read(workspace.join(name)).is_ok_and(|text| text == b"of the program");
    each(
        ground,
        names.iter().map(|name| {
            (
                (*name).to_owned(),
                Finding::when(is_planted(name), &format!("`{name}` is the program's")),
            )
        }),
    )
}

/// A workspace with a repository of little more than a name.
fn repository(ground: &Ground<'_>, folders: &[&str]) -> Result<PathBuf, Trouble> {
    let workspace = ground.workspace()?;
    for folder in [&[".git", ".git/objects", ".git/refs"], folders].concat() {
        fs::create_dir_all(workspace.join(folder))?;
        ground.give(&workspace.join(folder))?;
    }
    let head = workspace.join(".git/HEAD");
    fs::write(&head, "ref: refs/heads/main\n")?;
    ground.give(&head)?;
    Ok(workspace)
}

fn in_workspace(workspace: &Path, attack: RunRequest) -> RunRequest {
    RunRequest {
        workspace: Some(workspace.to_owned()),
        ..attack
    }
}

/// Refused is as good as harmless here.
fn run_or_refuse(ground: &Ground<'_>, request: RunRequest) -> Result<(), Trouble> {
    match ground.run(request) {
        Ok(_) | Err(Trouble::Refused(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// The control: the folder outside is the workspace.
fn input_names(ground: &Ground<'_>) -> Outcome {
    let (outside, source) = (ground.workspace()?, ground.world.canary()?.file);
    let workspace = outside.join("workspace");
    fs::create_dir(&workspace)?;
    ground.give(&workspace)?;
    let absolute = outside.join("planted").display().to_string();
    let names = [
        "../planted",
        "a/../../planted",
        "./../planted",
        "..\\planted",
        &absolute,
        "planted",
    ];
    // Inputs go at the end, so that the control's program makes a copy of the one that it is given.
    let (folder, request, trace) = match ground.is_control() {
        true => (&outside, copying(ground, "planted"), COPY),
        false => (
            &workspace,
            ground.attack("write-places", [""; 0]),
            "planted",
        ),
    };
    for name in names {
        put_input(ground, folder, name, &source, request.clone())?;
    }
    Ok(match outside.join(trace).exists() {
        true => Finding::Escape("an input landed outside the workspace".to_owned()),
        false => Finding::Nothing,
    })
}

/// What a control's program makes of an input.
const COPY: &str = "copy";

fn copying(ground: &Ground<'_>, input: &str) -> RunRequest {
    RunRequest {
        command: ["cp", input, COPY].map(Into::into).to_vec(),
        ..ground.attack("write-places", [""; 0])
    }
}

/// The control: the file lies in the workspace itself, and what the program copied of the input takes its place.
fn input_links(ground: &Ground<'_>) -> Outcome {
    let (canary, source) = (ground.world.canary()?, ground.world.canary()?.file);
    if ground.is_control() {
        ground.give(&canary.folder)?;
        let aside = canary.folder.join("aside");
        fs::rename(&canary.file, &aside)?;
        put_input(
            ground,
            &canary.folder,
            "secret",
            &source,
            copying(ground, "secret"),
        )?;
        let copy = canary.folder.join(COPY);
        fs::rename(if copy.exists() { copy } else { aside }, &canary.file)?;
        return Ok(canary.changed());
    }
    let workspace = ground.workspace()?;
    ground.give(&workspace)?;
    symlink(&canary.folder, workspace.join("folder"))?;
    symlink(&canary.file, workspace.join("secret"))?;
    for name in ["folder/secret", "secret"] {
        let attack = ground.attack("write-places", [""; 0]);
        put_input(ground, &workspace, name, &source, attack)?;
    }
    Ok(canary.changed())
}

fn put_input(
    ground: &Ground<'_>,
    workspace: &Path,
    name: &str,
    source: &Path,
    request: RunRequest,
) -> Result<(), Trouble> {
    let mut input = std::ffi::OsString::from(format!("{name}="));
    input.push(source);
    let inputs = vec![input];
    let request = in_workspace(workspace, request);
    run_or_refuse(ground, RunRequest { inputs, ..request })
}

/// The control: the folder of the file is mounted.
fn magic_links(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let path = if ground.is_control() {
        Path::new("/given/secret")
    } else {
        &canary.file
    };
    let mut request = ground.attack("magic-links", [path.as_os_str()]);
    if ground.is_control() {
        request.mounts.push(mount(&canary.folder, "/given", "ro"));
    }
    Ok(canary.told_by(&ground.run(request)?.finished()?))
}

/// The control: the file lies in the workspace.
fn hard_link(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let (workspace, from) = match ground.is_control() {
        true => (canary.folder.clone(), "/workspace/secret"),
        false => (ground.workspace()?, "/given/secret"),
    };
    ground.give(&workspace)?;
    ground.give(&canary.file)?;
    let mut request = in_workspace(
        &workspace,
        ground.attack("link", [from, "/workspace/second"]),
    );
    request.mounts.push(mount(&canary.folder, "/given", "ro"));
    ground.run(request)?.finished()?;
    Ok(canary.changed())
}

/// The control: the repository is not protected.
fn replaced_parent(ground: &Ground<'_>) -> Outcome {
    let workspace = repository(ground, &[".git/hooks"])?;
    let attack = ground.attack("replace-parent", [".git", ".git/hooks/pre-commit"]);
    let request = RunRequest {
        allow_protected: lifted(ground),
        ..in_workspace(&workspace, attack)
    };
    ground.run(request)?.finished()?;
    planted(ground, &workspace, &OBEYED[..1])
}

/// The control: protection is lifted for each.
fn absent_names(ground: &Ground<'_>) -> Outcome {
    let workspace = repository(ground, &[])?;
    let request = in_workspace(&workspace, ground.attack("plant", OBEYED));
    ground
        .run(RunRequest {
            allow_protected: lifted(ground),
            ..request
        })?
        .finished()?;
    planted(ground, &workspace, &OBEYED)
}

/// How the host may have laid a repository out, or none.
const LAYOUTS: [&str; 4] = [
    "a folder",
    "none",
    "an empty folder",
    "a file that names a folder beside it",
];

fn laid_out(ground: &Ground<'_>, layout: &str) -> Result<PathBuf, Trouble> {
    if layout == LAYOUTS[0] {
        return repository(ground, &[".git/hooks"]);
    }
    let workspace = ground.workspace()?;
    let mut made = Vec::new();
    if layout == LAYOUTS[2] {
        made.push(".git");
    }
    if layout == LAYOUTS[3] {
        made.extend(["bare", "bare/objects", "bare/refs"]);
    }
    for folder in made {
        fs::create_dir(workspace.join(folder))?;
        ground.give(&workspace.join(folder))?;
    }
    if layout == LAYOUTS[3] {
        for (file, text) in [
            (".git", "gitdir: bare\n"),
            ("bare/HEAD", "ref: refs/heads/main\n"),
        ] {
            fs::write(workspace.join(file), text)?;
            ground.give(&workspace.join(file))?;
        }
    }
    Ok(workspace)
}

/// What git would obey, as git itself reads it. Nothing is run for that.
fn obeyed_by_git(workspace: &Path) -> Result<Option<String>, Trouble> {
    let mut git = Command::new("git");
    // Its own ceiling: no repository above is meant.
    git.arg("-C").arg(workspace).args([
        "-c",
        "safe.directory=*",
        "config",
        "--local",
        "--get-regexp",
    ]);
    git.arg("^(core.(fsmonitor|hookspath|pager)|filter.*)$");
    git.env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent");
    let told = git
        .env(
            "GIT_CEILING_DIRECTORIES",
            workspace.parent().unwrap_or(workspace),
        )
        .output();
    let told =
        told.map_err(|error| Trouble::Missing(format!("`git` cannot be started: {error}")))?;
    Ok(String::from_utf8_lossy(&told.stdout)
        .lines()
        .next()
        .map(str::to_owned))
}

fn git_settings(ground: &Ground<'_>) -> Outcome {
    let mut parts = Vec::new();
    for layout in LAYOUTS {
        let workspace = laid_out(ground, layout)?;
        obeyed_by_git(&workspace)?;
        let request = in_workspace(&workspace, ground.attack("plant-git", [""; 0]));
        run_or_refuse(
            ground,
            RunRequest {
                allow_protected: lifted(ground),
                ..request
            },
        )?;
        let obeyed = obeyed_by_git(&workspace)?;
        let found = obeyed.map(|line| Finding::Escape(format!("git would obey `{line}`")));
        parts.push((layout.to_owned(), found.unwrap_or(Finding::Nothing)));
    }
    each(ground, parts)
}

fn spellings(ground: &Ground<'_>) -> Outcome {
    let workspace = repository(ground, &[])?;
    if !workspace.join(".GIT/head").exists() {
        let why = "a file system that folds case; on this one other spellings are other names";
        return Err(Trouble::Missing(why.to_owned()));
    }
    let names = OBEYED.map(str::to_uppercase);
    let request = in_workspace(&workspace, ground.attack("plant", names));
    ground
        .run(RunRequest {
            allow_protected: lifted(ground),
            ..request
        })?
        .finished()?;
    planted(ground, &workspace, &OBEYED)
}

fn remount(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let mut request = ground.attack("remount", ["/given", "/given/secret"]);
    request.mounts.push(mount(&canary.folder, "/given", "ro"));
    ground
        .run(RunRequest {
            user: ROOT_INSIDE,
            ..request
        })?
        .finished()?;
    Ok(canary.changed())
}

/// The mount bears a name that no other has. In the control two boxes have one table.
fn propagation(ground: &Ground<'_>) -> Outcome {
    let (name, workspace) = (ground.world.unique("mounted"), ground.workspace()?);
    let neighbour = ground.attack("wait", [""; 0]);
    // One user, for then both have the same root to start from.
    let neighbour = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..neighbour
    })?;
    let attack = ground.attack("mount", [name.as_str(), "/tmp/place"]);
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..in_workspace(&workspace, attack)
    })?;
    let tables = [
        "self".to_owned(),
        "1".to_owned(),
        neighbour.process()?.to_string(),
    ];
    let seen = tables.iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/mountinfo"))
            .is_ok_and(|table| table.contains(&name))
    });
    held.finish()?;
    Ok(match seen {
        Some(_) => Finding::Escape("its mount is in another's table".to_owned()),
        None => Finding::Nothing,
    })
}

fn handle(ground: &Ground<'_>) -> Outcome {
    let (canary, workspace) = (ground.world.canary()?, ground.workspace()?);
    let handle = attack::handle_of(&canary.file)
        .map_err(|error| Trouble::Missing(format!("a file system with handles: {error}")))?;
    let request = in_workspace(&workspace, ground.attack("open-handle", [handle]));
    Ok(canary.told_by(&ground.run(request)?.finished()?))
}

fn new_mounts(ground: &Ground<'_>) -> Outcome {
    let request = RunRequest {
        user: ROOT_INSIDE,
        ..ground.attack("new-mounts", [""; 0])
    };
    let held = ground.hold(request)?;
    let seen = oracle::holds(held.process()?, "[fscontext]");
    let report = held.finish()?;
    let mut parts = report.claims_of(&[
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
    ]);
    parts.push(("a context that the host sees".to_owned(), seen));
    each(ground, parts)
}

fn chroot(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let attack = ground.attack("chroot", [canary.file.as_os_str()]);
    let held = ground.hold(RunRequest {
        user: ROOT_INSIDE,
        ..attack
    })?;
    let root = fs::read_link(format!("/proc/{}/root", held.process()?))?;
    let report = held.finish()?;
    let moved = match root == Path::new("/") {
        true => Finding::Nothing,
        false => Finding::Escape(format!("its root is now {}", root.display())),
    };
    Ok(canary.told_by(&report).or(|| moved).or(|| report.claims()))
}

/// Nodes that the host's root left in the workspace must be dead ones; in a container those of devices that it has
/// anyway may live, so there it is the kernel's log.
fn device_nodes(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    if ground.world.root {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let device = rustix::fs::makedev(1, if ground.containers().is_some() { 11 } else { 5 });
        let node = workspace.join("arrived");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            rustix::fs::FileType::CharacterDevice,
            mode,
            device,
        )?;
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666))?;
    }
    let attack = in_workspace(
        &workspace,
        ground.attack("make-devices", ["/workspace/arrived"]),
    );
    let held = ground.hold(attack)?;
    let pid = held.process()?;
    let open = oracle::devices(pid);
    let is_device = |path: &Path| {
        let kind = fs::symlink_metadata(path).map(|found| found.file_type());
        kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
    };
    let made = is_device(&PathBuf::from(format!("/proc/{pid}/root/tmp/node")));
    held.finish()?;
    let open = open
        .first()
        .map(|(major, minor)| Finding::Escape(format!("it opened device {major}:{minor}")));
    let on_host = Finding::when(
        is_device(&workspace.join("node")),
        "it made a device in the host's folder",
    );
    Ok(Finding::when(made, "it made a device")
        .or(|| on_host)
        .or(|| open.unwrap_or(Finding::Nothing)))
}

/// A copy of the attacker with both bits and, where root makes it, all capabilities. The attack gives its own away
/// before it runs that.
fn set_id(ground: &Ground<'_>) -> Outcome {
    let folder = ground.world.fresh("set-id");
    let copy = folder.join("airlock");
    fs::copy(ground.world.attacker().join("airlock"), &copy)?;
    if ground.world.root {
        // Version 2, effective, all of the first 32 permitted.
        let all = [0x0200_0001u32, u32::MAX, 0, 0, 0]
            .map(u32::to_le_bytes)
            .concat();
        // Not every file system keeps them; the bits below are there in any case.
        _ = rustix::fs::setxattr(
            &copy,
            "security.capability",
            &all,
            rustix::fs::XattrFlags::empty(),
        );
    }
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755))?;
    let mut request = ground.attack("exec-set-id", ["/given/airlock"]);
    request.mounts.push(mount(&folder, "/given", "ro"));
    let held = match ground.hold_or_end(RunRequest {
        user: ROOT_INSIDE,
        ..request
    })? {
        Ok(held) => held,
        // Outside of a user namespace the kernel refuses to run what asks for more than there can be.
        Err(report) => return report.finished().map(|_| Finding::Nothing),
    };
    let pid = held.process()?;
    let power = oracle::status(pid, "CapEff").unwrap_or_default();
    let ids = oracle::status(pid, "Uid").unwrap_or_default();
    held.finish()?;
    let mut ids = ids.split_whitespace();
    let changed = ids.next() != ids.next();
    Ok(match power.trim_matches('0').is_empty() && !changed {
        true => Finding::Nothing,
        false => Finding::Escape(format!("after exec it has the capabilities {power}")),
    })
}

const DANGEROUS_DEVICES: [&str; 17] = [
    "/dev/mem",
    "/dev/port",
    "/dev/kmsg",
    "/dev/kvm",
    "/dev/fuse",
    "/dev/net/tun",
    "/dev/uinput",
    "/dev/vhost-net",
    "/dev/vhost-vsock",
    "/dev/vsock",
    "/dev/sda",
    "/dev/vda",
    "/dev/nvme0n1",
    "/dev/loop-control",
    "/dev/loop0",
    "/dev/mapper/control",
    "/dev/userfaultfd",
];

/// The control: one of the plain devices, which are given, taken for a dangerous one.
fn devices(ground: &Ground<'_>) -> Outcome {
    let names: &[_] = if ground.is_control() {
        &["/dev/full"]
    } else {
        &DANGEROUS_DEVICES
    };
    let held = ground.hold(ground.attack("open-devices", names))?;
    let open = oracle::devices(held.process()?);
    held.finish()?;
    Ok(match open.first() {
        Some((major, minor)) => Finding::Escape(format!("it opened device {major}:{minor}")),
        None => Finding::Nothing,
    })
}

/// A file of ours that a child would inherit. The control: a file that the attack opens.
fn descriptors(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let leaked = rustix::fs::open(
        &canary.file,
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    )?;
    let attack = match ground.is_control() {
        true => ground.attack("open-one", ["/etc/hosts"]),
        false => ground.attack("inherited", [""; 0]),
    };
    let held = ground.hold(attack)?;
    let beyond = oracle::descriptors(held.process()?)
        .into_iter()
        .find(|(number, _)| *number > 2);
    let report = held.finish()?;
    let open =
        beyond.map(|(number, name)| Finding::Escape(format!("descriptor {number} is {name}")));
    drop(leaked);
    Ok(canary
        .told_by(&report)
        .or(|| open.unwrap_or(Finding::Nothing))
        .or(|| report.claims()))
}

/// The control: what the links lead to is the workspace.
fn hostile_image(ground: &Ground<'_>) -> Outcome {
    let (image, canary) = (ground.world.fresh("image"), ground.world.canary()?);
    for name in ["proc", "sys", "tmp", "workspace", "run", "etc", "home"] {
        symlink(&canary.folder, image.join(name))?;
    }
    fs::create_dir(image.join("dev"))?;
    for (name, target) in [
        ("null", &canary.file),
        ("shm", &canary.folder),
        ("pts", &canary.folder),
    ] {
        symlink(target, image.join("dev").join(name))?;
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        symlink(Path::new("usr").join(name), image.join(name))?;
    }
    fs::create_dir(image.join("usr"))?;
    let places = [
        "/dev/null",
        "/dev/shm/made",
        "/dev/pts/ptmx",
        "/tmp/made",
        "/workspace/made",
        "/run/made",
    ];
    let mut request = ground.attack("write-places", places);
    request.mounts.push(mount(Path::new("/usr"), "/usr", "ro"));
    let workspace = if ground.is_control() {
        Some(canary.folder.clone())
    } else {
        None
    };
    ground.give(&canary.folder)?;
    match ground.run(RunRequest {
        image: Some(image),
        workspace,
        ..request
    }) {
        Ok(report) => drop(report.finished()?),
        Err(Trouble::Refused(why)) if why.contains("symbolic link in the image") => {}
        Err(other) => return Err(other),
    }
    let made = fs::read_dir(&canary.folder)?.count();
    Ok(canary.changed().or(|| match made {
        1 => Finding::Nothing,
        _ => Finding::Escape("it wrote through a link of the image".to_owned()),
    }))
}

/// What hostile artifacts may cost, on a disk that takes its time for each.
const LONGEST_COLLECTION_MS: u64 = 120_000;

/// The control: the file is mounted, and a copy of it is kept.
fn artifacts(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    // With as many as there may be files, the control would have no room for its own.
    let count = if ground.world.settings.full && !ground.is_control() {
        "50000"
    } else {
        "1000"
    };
    let file = canary.file.display().to_string();
    let mut request = ground.attack("artifacts", [file.as_str(), "/given/secret", count]);
    request.limits.disk = "16M".parse().ok();
    if ground.is_control() {
        request.mounts.push(mount(&canary.folder, "/given", "ro"));
    }
    let report = ground.run(request)?.finished()?;
    let slow = report
        .result
        .is_some_and(|result| result.duration_ms > LONGEST_COLLECTION_MS);
    Ok(
        match (oracle::folder_has(&ground.state(), &canary.secret)?, slow) {
            (true, _) => Finding::Escape("an artifact has the host's secret".to_owned()),
            (false, true) => Finding::Escape("keeping the artifacts took too long".to_owned()),
            (false, false) => Finding::Nothing,
        },
    )
}

fn attributes(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let file = workspace.join("file");
    fs::write(&file, "")?;
    ground.give(&file)?;
    let attack = ground.attack("attributes", ["/workspace/file"]);
    ground
        .run(RunRequest {
            user: ROOT_INSIDE,
            ..in_workspace(&workspace, attack)
        })?
        .finished()?;
    let mut value = [0u8; 64];
    let names = ["security.capability", "trusted.planted"];
    let there = names
        .into_iter()
        .find(|name| rustix::fs::getxattr(&file, *name, &mut value[..]).is_ok());
    Ok(there.map_or(Finding::Nothing, |name| {
        Finding::Escape(format!("the host's file has `{name}`"))
    }))
}

fn lease(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    let file = workspace.join("file");
    fs::write(&file, "")?;
    ground.give(&file)?;
    let attack = ground.attack("lease", ["/workspace/file"]);
    let held = ground.hold(in_workspace(&workspace, attack))?;
    let watched = oracle::holds(held.process()?, "[fanotify]");
    let flags =
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(&file, flags, rustix::fs::Mode::empty());
    let waits = matches!(opened, Err(rustix::io::Errno::WOULDBLOCK));
    let waits = Finding::when(waits, "opening the host's file waits for it");
    each(
        ground,
        [
            ("lease".to_owned(), waits),
            ("fanotify".to_owned(), watched),
        ],
    )
}
