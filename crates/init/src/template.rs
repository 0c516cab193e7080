//! The root that all sandboxes of one launcher start from: built once, then read-only.

use crate::{
    plan::{FileId, ImageRoot, RootEntry, RootEntryKind, TemplatePlan},
    step::{Step, StepFailure, Steps},
    sys,
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
        OpenTreeFlags, UnmountFlags,
    },
};
use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

pub(crate) const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
pub(crate) const NO_SUID_NO_DEV: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// A failure with the operation that was tried.
pub(crate) fn failure(step: Step, detail: &str) -> impl FnOnce(io::Error) -> StepFailure + use<> {
    let detail = detail.to_owned();
    move |error| StepFailure {
        step,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        detail,
    }
}

/// Replaces the root of the current mount namespace by the template; returns the steps taken.
pub(crate) fn build(plan: &TemplatePlan) -> Result<Steps, StepFailure> {
    let mut done = Steps::default();
    let root = build_root(plan)?;
    done.add(Step::Template);
    if plan.steps.has(Step::ReadOnlyRoot) {
        sys::set_mount(root.as_fd(), true, READ_ONLY, None)
            .map_err(failure(Step::ReadOnlyRoot, "the whole tree"))?;
        done.add(Step::ReadOnlyRoot);
    }
    // While the host's own `/proc` is still visible: without one, the kernel refuses another to an
    // ordinary user.
    mount_proc(&root).map_err(failure(Step::Template, "a proc of our own"))?;
    enter(&root).map_err(failure(Step::Template, "pivot_root"))?;
    Ok(done)
}

/// Builds a new root from the entries, attached at `/tmp` of the old one.
fn build_root(plan: &TemplatePlan) -> Result<OwnedFd, StepFailure> {
    let sources = open_sources(plan)?;
    let image = plan.image.as_ref().map(open_image).transpose()?;
    let tmpfs = new_file_system(c"tmpfs", &[(c"mode", c"755"), (c"size", c"16m")])
        .map_err(failure(Step::Template, "tmpfs"))?;
    attach(&tmpfs, &CWD, c"/tmp").map_err(failure(Step::Template, "attach at /tmp"))?;
    for (entry, source) in plan.entries.iter().zip(&sources) {
        create_entry(&tmpfs, entry, source.as_ref())
            .map_err(failure(Step::Template, &display_path(entry)))?;
    }
    copy_folder_permissions(&tmpfs, plan, &sources)?;
    let root = match &image {
        None => tmpfs,
        Some(image) => mount_image_overlay(&tmpfs, image)
            .map_err(failure(Step::Template, "the image as overlay"))?,
    };
    sys::set_mount(root.as_fd(), false, NO_SUID_NO_DEV, None)
        .map_err(failure(Step::Template, "attributes of the root"))?;
    for (entry, source) in plan.entries.iter().zip(&sources) {
        if let Some(source) = source {
            mount_source(&root, entry, source)
                .map_err(failure(Step::Template, &display_path(entry)))?;
        }
    }
    Ok(root)
}

fn display_path(entry: &RootEntry) -> String {
    format!("/{}", entry.path.to_string_lossy())
}

/// The permissions of a merged folder are those of the upper one: ours must not open what the host
/// keeps closed.
fn copy_folder_permissions(
    ours: &OwnedFd,
    plan: &TemplatePlan,
    sources: &[Option<OwnedFd>],
) -> Result<(), StepFailure> {
    let shown_folders = plan
        .entries
        .iter()
        .zip(sources)
        .filter(|(entry, _)| entry.kind == RootEntryKind::HostOverlay);
    for (top, host) in shown_folders.filter_map(|(entry, source)| Some((entry, source.as_ref()?))) {
        for entry in &plan.entries {
            let Some(below) = below(&entry.path, &top.path) else {
                continue;
            };
            if matches!(
                entry.kind,
                RootEntryKind::Directory | RootEntryKind::HostOverlay
            ) {
                copy_permissions(ours, entry, host, below)
                    .map_err(failure(Step::Template, &display_path(entry)))?;
            }
        }
    }
    Ok(())
}

/// The part of a path below a folder; `.` for the folder itself.
fn below<'a>(path: &'a CStr, folder: &CStr) -> Option<&'a [u8]> {
    match path.to_bytes().strip_prefix(folder.to_bytes())? {
        [] => Some(b"."),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

fn copy_permissions(
    ours: &OwnedFd,
    entry: &RootEntry,
    host: &OwnedFd,
    below: &[u8],
) -> io::Result<()> {
    let found = match rustix::fs::statat(host, below, AtFlags::SYMLINK_NOFOLLOW) {
        // The host has no such folder, or hides it from us: then ours is the only one.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
        other => other?,
    };
    if !FileType::from_raw_mode(found.st_mode).is_dir() {
        return Ok(());
    }
    let uid = Uid::from_raw(found.st_uid);
    let gid = Gid::from_raw(found.st_gid);
    match rustix::fs::chownat(
        ours,
        &entry.path,
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    ) {
        // A user's namespace lacks the id; there the lower folder is checked with the user's own
        // rights.
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let mode = Mode::from_raw_mode(found.st_mode & 0o777);
    Ok(rustix::fs::chmodat(
        ours,
        &entry.path,
        mode,
        AtFlags::empty(),
    )?)
}

fn mount_source(root: &OwnedFd, entry: &RootEntry, source: &OwnedFd) -> io::Result<()> {
    if entry.kind != RootEntryKind::HostOverlay {
        return attach(source, root, &entry.path);
    }
    let ours = rustix::fs::openat(root, &entry.path, DIRECTORY, Mode::empty())?;
    attach(&merge(&ours, source)?, root, &entry.path)
}

/// Opens the host files of binds and overlays, before anything covers them.
fn open_sources(plan: &TemplatePlan) -> Result<Vec<Option<OwnedFd>>, StepFailure> {
    let open = |entry: &RootEntry| -> io::Result<Option<OwnedFd>> {
        let (path, attributes) = match entry.kind {
            RootEntryKind::Directory
            | RootEntryKind::File
            | RootEntryKind::Link
            | RootEntryKind::Whiteout => {
                return Ok(None);
            }
            RootEntryKind::HostOverlay => {
                return Ok(Some(rustix::fs::openat(
                    CWD,
                    &entry.content,
                    DIRECTORY,
                    Mode::empty(),
                )?));
            }
            RootEntryKind::Bind => (entry.content.as_c_str(), NO_SUID_NO_DEV),
            RootEntryKind::Device => (
                entry.content.as_c_str(),
                libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
            ),
        };
        let tree = open_tree(&CWD, path)?;
        sys::set_mount(tree.as_fd(), true, attributes, None)?;
        Ok(Some(tree))
    };
    plan.entries
        .iter()
        .map(|entry| open(entry).map_err(failure(Step::Template, &display_path(entry))))
        .collect()
}

/// Creates the file, or a mount point of the same type.
fn create_entry(root: &OwnedFd, entry: &RootEntry, source: Option<&OwnedFd>) -> io::Result<()> {
    let directory = || {
        Ok(rustix::fs::mkdirat(
            root,
            &entry.path,
            Mode::from_raw_mode(0o755),
        )?)
    };
    let file = |content: &[u8]| {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, &entry.path, flags, Mode::from_raw_mode(0o644))?;
        io::Write::write_all(&mut std::fs::File::from(file), content)
    };
    match (entry.kind, source) {
        (RootEntryKind::Directory | RootEntryKind::HostOverlay, _) => directory(),
        (RootEntryKind::File, _) => file(entry.content.as_bytes()),
        (RootEntryKind::Link, _) => Ok(rustix::fs::symlinkat(&entry.content, root, &entry.path)?),
        // An overlay takes a character device 0:0 for a whiteout.
        (RootEntryKind::Whiteout, _) => {
            let mode = Mode::from_raw_mode(0o000);
            Ok(rustix::fs::mknodat(
                root,
                &entry.path,
                FileType::CharacterDevice,
                mode,
                0,
            )?)
        }
        (RootEntryKind::Bind | RootEntryKind::Device, Some(tree)) => {
            if is_directory(tree)? {
                directory()
            } else {
                file(b"")
            }
        }
        (RootEntryKind::Bind | RootEntryKind::Device, None) => {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }
}

/// Opened before anything covers it: it may be in `/tmp`.
fn open_image(image: &ImageRoot) -> Result<OwnedFd, StepFailure> {
    let open = || -> io::Result<OwnedFd> {
        let folder = rustix::fs::openat(CWD, &image.path, DIRECTORY, Mode::empty())?;
        let found = rustix::fs::fstat(&folder)?;
        if (FileId {
            device: found.st_dev,
            inode: found.st_ino,
        }) == image.id
        {
            Ok(folder)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESTALE))
        }
    };
    open().map_err(failure(Step::Template, &image.path.to_string_lossy()))
}

fn mount_image_overlay(ours: &OwnedFd, image: &OwnedFd) -> io::Result<OwnedFd> {
    let root = merge(ours, image)?;
    attach(&root, &CWD, c"/tmp")?;
    Ok(root)
}

/// Merges a host folder below one of ours; our files hide those of the same name, also symbolic
/// links.
fn merge(ours: &OwnedFd, folder: &OwnedFd) -> io::Result<OwnedFd> {
    // By descriptor: a path could contain the characters that separate layers.
    let layers = format!(
        "/proc/self/fd/{}:/proc/self/fd/{}",
        ours.as_raw_fd(),
        folder.as_raw_fd()
    );
    new_file_system(c"overlay", &[(c"lowerdir", &CString::new(layers)?)])
}

fn mount_proc(root: &OwnedFd) -> io::Result<()> {
    let proc = new_file_system(c"proc", &[])?;
    sys::set_mount(
        proc.as_fd(),
        false,
        NO_SUID_NO_DEV | libc::MOUNT_ATTR_NOEXEC,
        None,
    )?;
    attach(&proc, root, c"proc")
}

fn enter(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    // The old root is mounted on top of the new one, at the same place.
    rustix::mount::mount_change(
        c".",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir(c"/")?)
}

/// Creates a file system, not yet attached. An option without a value is a flag.
pub(crate) fn new_file_system(kind: &CStr, options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    create_file_system(
        kind,
        options,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
}

/// The same for one that holds nothing but devices.
pub(crate) fn new_device_file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
) -> io::Result<OwnedFd> {
    create_file_system(
        kind,
        options,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

fn create_file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *name)?
        } else {
            rustix::mount::fsconfig_set_string(&context, *name, *value)?
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// A detached copy of the mounts at a path; a symbolic link at its end is not followed.
pub(crate) fn open_tree(at: &impl AsFd, path: &CStr) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(rustix::mount::open_tree(at, path, flags)?)
}

/// Attaches a detached mount at a path.
pub(crate) fn attach(tree: &OwnedFd, at: &impl AsFd, path: &CStr) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, c"", at, path, flags)?)
}

/// Links `.home` in a fresh workspace to the home folder, unless something is mounted there.
pub(crate) fn link_home(workspace: &impl AsFd) -> io::Result<()> {
    match rustix::fs::symlinkat(c"/home/agent", workspace, c".home") {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn is_directory(at: &impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::statat(at, c"", AtFlags::EMPTY_PATH)?;
    Ok(FileType::from_raw_mode(stat.st_mode).is_dir())
}
