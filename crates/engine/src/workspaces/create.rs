//! Creates a layer: a copy of the folder, with reflinks where possible, or an empty upper folder
//! for an overlay mount.

use super::{
    FOLDER, INFO_FILE, LayerError, LayerHandle, LayerInfo, NEW, TREE, TRIES,
    base::{self, CreateError, Survey},
    copy, failed, open_layers,
    overlay::{self, XattrNamespace},
    own_files, paths, quota, shown,
    tree::{self, FileKind},
};
use crate::{FileAccess, files};
use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};
use sandbox::native::{UPPER, WORK, protect};
use spec::{Backend, FileId, Id, LayerCopyLimits, LayerKind, SandboxSpec, WorkspaceOverlay};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// A file that is created to test for reflink support.
const TRIAL_FILE: &str = ".airlock-trial";

/// Creates the layer of a copy-on-write workspace and puts it into the spec instead of the folder.
/// The caller has checked that the folder may be shown.
pub fn create_layer(
    state: &Path,
    id: &Id,
    spec: &mut SandboxSpec,
    owner: Option<String>,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Option<LayerHandle>, LayerError> {
    let Some(folder) = spec.workspace.clone().filter(|_| spec.copy_on_write) else {
        return Ok(None);
    };
    let handle = make(state, id, spec, &folder, owner, is_cancelled)?;
    let looked = failed("look at the workspace");
    let layer = std::fs::canonicalize(handle.tree()).map_err(&looked)?;
    crate::path_guard::allow_own_path(spec, &layer).map_err(looked)?;
    match handle.kind {
        LayerKind::Overlay => {
            let hidden = handle.hidden.clone();
            spec.overlay = Some(WorkspaceOverlay { layer, hidden });
        }
        LayerKind::Reflink | LayerKind::Copy => spec.workspace = Some(layer),
    }
    Ok(Some(handle))
}

/// Creates a layer of a folder.
pub(super) fn make(
    state: &Path,
    id: &Id,
    spec: &SandboxSpec,
    asked: &Path,
    owner: Option<String>,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<LayerHandle, LayerError> {
    let elsewhere = |source: io::Error| LayerError::Elsewhere {
        folder: asked.to_owned(),
        source: Some(source),
    };
    let folder = std::fs::canonicalize(asked).map_err(elsewhere)?;
    let from = rustix::fs::open(&folder, FOLDER, Mode::empty())
        .map_err(|source| elsewhere(source.into()))?;
    let found = rustix::fs::fstat(&from).map_err(|source| elsewhere(source.into()))?;
    if !spec.admits(
        asked,
        FileId {
            device: found.st_dev,
            inode: found.st_ino,
        },
    ) {
        return Err(LayerError::Replaced {
            folder: asked.to_owned(),
        });
    }
    refuse_kernel_file_systems(&folder)?;
    let mut info = LayerInfo {
        folder: folder.clone().into(),
        kind: LayerKind::default(),
        by_root: XattrNamespace::ours() == XattrNamespace::Trusted,
        device: found.st_dev,
        inode: found.st_ino,
        made_at: crate::now().0,
        allowed: paths(&spec.protected.allowed),
        added: spec.protected.added.clone(),
        removed: spec.protected.removed.clone(),
        named: paths(&spec.protected.paths),
        inputs: own_files::inputs(spec),
        owner,
    };
    let layers = open_layers(state, true)?;
    let draft = format!("{NEW}{id}");
    let new = begin_layer(&layers, id, &draft)
        .map_err(|error| error.unwrap_or(LayerError::Taken { id: id.clone() }))?;
    let reservation = quota::LayerReservation::begin(state, info.owner.as_deref());
    let made = quota::sum(state, info.owner.as_deref()).and_then(|before| {
        let watch = |disk_bytes| match is_cancelled() {
            true => Err(CreateError::Cancelled),
            false => quota::check_quota(state, before, reservation.grow_to(disk_bytes)),
        };
        fill_layer(&new, &from, spec, &mut info, &watch)
    });
    let made = made.and_then(|hidden| {
        let named = rustix::fs::renameat_with(
            &layers,
            &draft,
            &layers,
            id.as_str(),
            RenameFlags::NOREPLACE,
        );
        named.map_err(|error| match error {
            Errno::EXIST => LayerError::Taken { id: id.clone() },
            error => failed("name the workspace")(error.into()),
        })?;
        Ok(hidden)
    });
    match made {
        Ok(LayerContents { hidden, notes }) => {
            reservation.mark_recorded();
            Ok(LayerHandle {
                state: state.to_owned(),
                id: id.clone(),
                folder: new,
                kind: info.kind,
                hidden,
                notes,
            })
        }
        Err(error) => {
            // A sweep removes what cannot be removed now.
            let _ = tree::remove(&layers, draft.as_ref());
            Err(error)
        }
    }
}

/// Kernel file systems expose the host and cannot be committed.
fn refuse_kernel_file_systems(folder: &Path) -> Result<(), LayerError> {
    let found = sandbox::native::kernel_file_system_below(folder);
    match found.map_err(failed("read the list of mounts"))? {
        None => Ok(()),
        Some(path) => Err(LayerError::TooMuch {
            folder: folder.to_owned(),
            reason: format!("`{}` is a file system of the host's kernel", shown(&path)),
        }),
    }
}

/// Creates and locks the folder of a new layer; the error is none if the name is taken.
fn begin_layer(layers: &OwnedFd, id: &Id, draft: &str) -> Result<OwnedFd, Option<LayerError>> {
    let made = failed("make a workspace");
    if rustix::fs::statat(layers, id.as_str(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(None);
    }
    for _ in 0..TRIES {
        match rustix::fs::mkdirat(layers, draft, Mode::RWXU) {
            Err(Errno::EXIST) => return Err(None),
            done => done.map_err(|source| Some(made(source.into())))?,
        }
        // A sweep may remove it before it is locked.
        let locked = tree::open(layers, draft, FOLDER).and_then(|new| {
            rustix::fs::flock(&new, FlockOperation::LockShared)?;
            Ok((rustix::fs::fstat(&new)?.st_nlink > 0).then_some(new))
        });
        match locked {
            Ok(Some(new)) => return Ok(new),
            Ok(None) => {}
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Some(made(source))),
        }
    }
    Err(Some(made(Errno::AGAIN.into())))
}

/// Fills a new layer as the folder's owner: unreadable files are left out, and copies belong to the
/// owner.
fn fill_layer(
    new: &OwnedFd,
    from: &OwnedFd,
    spec: &SandboxSpec,
    info: &mut LayerInfo,
    watch: copy::ProgressCheck<'_>,
) -> Result<LayerContents, LayerError> {
    let written = failed("write a workspace down");
    rustix::fs::mkdirat(new, TREE, Mode::RWXU).map_err(|source| written(source.into()))?;
    let tree = tree::open(new, TREE, FOLDER).map_err(&written)?;
    let rights = FileAccess::of_owner(from.as_fd()).map_err(&written)?;
    files::set_owner(&tree, rights.user()).map_err(&written)?;
    let folder = PathBuf::from(&info.folder);
    let (covered, hide) = (covered_folders(spec), &spec.hide);
    // Also for an empty folder: the program will write there.
    watch(0).map_err(|error| creation_error(error, &folder))?;
    let surveyed = rights
        .act(|| Ok(base::survey(from, hide, &covered, &|| watch(0))))
        .map_err(&written)?;
    let survey = surveyed.map_err(|error| creation_error(error, &folder))?;
    info.kind = choose(&survey, from, &tree, spec)?;
    let mut notes: Vec<_> = protect::lifting_notes(spec).collect();
    let (base, hidden, disk_bytes) = match info.kind {
        LayerKind::Overlay => {
            make_overlay(from, &tree, &rights).map_err(&written)?;
            notes.extend(file_size_note(&survey, spec));
            (survey.base, survey.hidden, 0)
        }
        LayerKind::Reflink | LayerKind::Copy => {
            let copied = rights
                .act(|| {
                    Ok(copy::copy(
                        from.as_fd(),
                        tree.as_fd(),
                        hide,
                        &covered,
                        watch,
                    ))
                })
                .map_err(&written)?;
            let copied = copied.map_err(|error| creation_error(error, &folder))?;
            (copied.base, copied.hidden, copied.disk_bytes)
        }
    };
    quota::write_size(new, disk_bytes).map_err(&written)?;
    base::write(new, &base).map_err(&written)?;
    let file = tree::open(
        new,
        INFO_FILE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
    )
    .map_err(&written)?;
    let text = serde_json::to_vec(info).map_err(|source| written(source.into()))?;
    File::from(file).write_all(&text).map_err(&written)?;
    Ok(LayerContents { hidden, notes })
}

/// The contents of a new layer, beside its description.
struct LayerContents {
    /// The paths that are hidden from the program.
    hidden: Vec<PathBuf>,
    /// Notes for the user.
    notes: Vec<String>,
}

/// The kernel copies a file up with the credentials and limits of the process that changes it.
fn file_size_note(survey: &Survey, spec: &SandboxSpec) -> Option<String> {
    let limit = spec.limits.file_size;
    let (count, first) = survey.larger_than(limit.0)?;
    let first = shown(first);
    let which = match count {
        1 => format!("`{first}` is"),
        more => format!("{more} files, `{first}` for one, are"),
    };
    Some(format!(
        "{which} larger than --file-size ({limit}), so nothing of it can be changed inside: a layer takes a copy of what is \
         changed"
    ))
}

fn creation_error(error: CreateError, folder: &Path) -> LayerError {
    let folder = folder.to_owned();
    match error {
        CreateError::Bound(reason) => LayerError::TooMuch { folder, reason },
        CreateError::NoRoom(reason) => LayerError::NoRoom { folder, reason },
        CreateError::Cancelled => LayerError::Cancelled,
        CreateError::Io(path, source) => {
            failed(&format!("copy `{}`", shown(&folder.join(path))))(source)
        }
    }
}

/// The folders of the workspace in which the program sees something else: its shadow repository.
fn covered_folders(spec: &SandboxSpec) -> BTreeSet<PathBuf> {
    let mounts = spec.mounts.iter();
    let own = mounts.filter(|mount| spec.git.contains_key(&mount.host));
    let inside = own.filter_map(|mount| {
        let inside = mount.inside.as_path().strip_prefix(spec::WORKSPACE);
        Some(inside.ok()?.to_owned())
    });
    inside.collect()
}

/// Chooses how the layer is made: reflinks and copies resemble the folder most, and an overlay
/// costs the same for any size. Where none can be laid, more is copied.
fn choose(
    survey: &Survey,
    from: &OwnedFd,
    tree: &OwnedFd,
    spec: &SandboxSpec,
) -> Result<LayerKind, LayerError> {
    let names = survey.base.len();
    let shares = shares_blocks(survey, from, tree);
    let copied = |bounds: &LayerCopyLimits| {
        let kind = if shares {
            LayerKind::Reflink
        } else {
            LayerKind::Copy
        };
        let fits = names as u64 <= u64::from(bounds.names);
        (fits && (shares || survey.bytes <= bounds.bytes)).then_some(kind)
    };
    let (fast, most) = match spec.copy {
        Some(bounds) => (bounds, bounds),
        None => (LayerCopyLimits::FAST, LayerCopyLimits::default()),
    };
    if let Some(kind) = copied(&fast) {
        return Ok(kind);
    }
    let folder = spec.workspace.clone().unwrap_or_default();
    let overlay = check_overlay(survey, &folder, tree, spec);
    match (overlay, copied(&most)) {
        (Ok(()), Some(kind)) if !overlay::is_sure(from) => Ok(kind),
        (Ok(()), _) => Ok(LayerKind::Overlay),
        (Err(_), _) if shares => Ok(LayerKind::Reflink),
        (Err(_), Some(kind)) => Ok(kind),
        (Err(why), None) => {
            let (bytes, most_names, most) = (survey.bytes >> 20, most.names, most.bytes >> 20);
            let reason = format!(
                "it has {names} names and {bytes} MiB, and no more than {most_names} names and {most} MiB are \
                 copied; a layer cannot be laid over it either, because {why}"
            );
            Err(LayerError::TooMuch { folder, reason })
        }
    }
}

/// Whether the kernel can mount an overlay for this sandbox; otherwise the reason.
fn check_overlay(
    survey: &Survey,
    folder: &Path,
    tree: &OwnedFd,
    spec: &SandboxSpec,
) -> Result<(), String> {
    // Podman has overlay volumes, but resolves the path of the folder once more, and the first
    // process inside cannot verify which folder it took: the mount has another inode.
    if spec.backend != Backend::Native {
        return Err("a container engine mounts it".to_owned());
    }
    if let Some(path) = &survey.foreign {
        return Err(format!(
            "`{}` belongs to a user or group that the sandbox does not know",
            shown(&folder.join(path))
        ));
    }
    match sandbox::native::has_mounts_below(folder) {
        Ok(false) => {}
        Ok(true) => return Err("something is mounted below it".to_owned()),
        Err(source) => return Err(format!("the list of mounts cannot be read: {source}")),
    }
    overlay::can_hold(tree)
}

/// Whether the file systems support reflinks between folder and layer.
fn shares_blocks(survey: &Survey, from: &OwnedFd, tree: &OwnedFd) -> bool {
    let has_blocks =
        |entry: &base::BaselineEntry| entry.kind == FileKind::File && entry.base.size > 0;
    let Some((path, _)) = survey.base.iter().find(|(_, entry)| has_blocks(entry)) else {
        return false;
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let tried = tree::open(from, path, OFlags::RDONLY | OFlags::NONBLOCK).and_then(|source| {
        let trial = tree::open(tree, TRIAL_FILE, flags)?;
        let shared = rustix::fs::ioctl_ficlone(&trial, &source);
        rustix::fs::unlinkat(tree, TRIAL_FILE, AtFlags::empty())?;
        Ok(shared.is_ok())
    });
    tried.unwrap_or(false)
}

/// Creates the upper and the work folder; the upper one appears as the workspace.
fn make_overlay(from: &OwnedFd, tree: &OwnedFd, rights: &FileAccess) -> io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(from)?.st_mode & 0o777);
    for (name, mode) in [(UPPER, mode), (WORK, Mode::RWXU)] {
        rustix::fs::mkdirat(tree, name, Mode::RWXU)?;
        let made = tree::open(tree, OsStr::from_bytes(name.to_bytes()), FOLDER)?;
        files::set_owner(&made, rights.user())?;
        rustix::fs::fchmod(&made, mode)?;
    }
    Ok(())
}
