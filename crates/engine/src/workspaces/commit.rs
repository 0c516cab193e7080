//! Takes the changes of a layer over into its folder.
//!
//! ```text
//! compare ─ refuse, or: what goes (deepest first) ─ what comes (outermost first) ─ permissions of folders ─ new base
//! ```
//!
//! Both sides are only reached beneath their tops and through no link. Each file is written beside its place and moved
//! there, so that at no time half a file is seen; whatever stops us, the same commit can be asked for again. Whoever commits
//! acts as the folder's owner: what is made is his, and what he may not do is not done.

use super::{
    base::{Base, Entry},
    diff::{Change, Sides, What},
    tree::{self, Kind, Version},
};
use crate::{record, sparse};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// How names of drafts begin; a program's own names do not.
pub(super) const DRAFT: &str = ".airlock-commit-";
const DRAFT_FILE: &str = "draft";

/// A change that was not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
    /// Whether force would have taken it over.
    pub conflict: bool,
}

/// What came of taking over.
#[derive(Clone, Debug, Default)]
pub(super) struct Applied {
    pub(super) applied: Vec<Change>,
    pub(super) left: Vec<Left>,
}

/// One commit under way.
pub(super) struct Commit<'a> {
    pub(super) sides: Sides<'a>,
    pub(super) folder: BorrowedFd<'a>,
    pub(super) force: bool,
    /// Where files are made before they have their place. Nobody else commits this layer meanwhile, and nobody inside can
    /// know the name, so what has it was left by a commit that was killed.
    pub(super) draft: String,
}

impl<'a> Commit<'a> {
    /// By chance, once for a layer, and written down beside it before it is first used.
    pub(super) fn draft_name(layer: impl AsFd) -> io::Result<String> {
        let chosen = format!("{DRAFT}{}", record::fresh_id());
        match tree::open(
            &layer,
            DRAFT_FILE,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        ) {
            Ok(file) => {
                File::from(file).write_all(chosen.as_bytes())?;
                return Ok(chosen);
            }
            Err(known) if known.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let mut name = String::new();
        let file = File::from(tree::open(&layer, DRAFT_FILE, OFlags::RDWR)?);
        file.take(256).read_to_string(&mut name)?;
        let whole = name
            .strip_prefix(DRAFT)
            .is_some_and(|id| spec::Id::new(id).is_ok() && id.len() == 26);
        if !whole {
            // Whoever wrote it was killed, and has not used it.
            let file = File::from(tree::open(
                &layer,
                DRAFT_FILE,
                OFlags::WRONLY | OFlags::TRUNC,
            )?);
            (&file).write_all(chosen.as_bytes())?;
            return Ok(chosen);
        }
        Ok(name)
    }

    /// What stands against taking changes over, before anything is done.
    pub(super) fn obstacles(&self, changes: &[Change]) -> Vec<Left> {
        changes
            .iter()
            .filter_map(|change| self.obstacle(change))
            .collect()
    }

    fn obstacle(&self, change: &Change) -> Option<Left> {
        let left = |reason: &String, conflict| Left {
            path: change.path.clone(),
            reason: reason.clone(),
            conflict,
        };
        match (&change.left_out, &change.conflict) {
            (Some(reason), _) => Some(left(reason, false)),
            (None, Some(reason)) if !self.force => Some(left(reason, true)),
            (None, _) => None,
        }
    }

    /// Takes over what can be, and brings `base` up to it.
    pub(super) fn apply(&self, changes: &[Change], base: &mut Base) -> Applied {
        let mut outcome = Applied {
            left: self.obstacles(changes),
            ..Applied::default()
        };
        let wanted: Vec<_> = changes
            .iter()
            .filter(|change| self.obstacle(change).is_none())
            .collect();
        let mut failed = |change: &Change, source: io::Error| {
            let reason = source.to_string();
            outcome.left.push(Left {
                path: change.path.clone(),
                reason,
                conflict: false,
            });
        };
        let mut done = Vec::new();
        let goes = |change: &&&Change| matches!(change.what, What::Removed | What::Replaced);
        for change in wanted.iter().filter(goes).rev() {
            match self.take_away(change) {
                Ok(()) if change.what == What::Removed => done.push((*change, None)),
                Ok(()) => {}
                Err(source) => failed(change, source),
            }
        }
        for change in wanted.iter().filter(|change| change.what != What::Removed) {
            match self.put(change) {
                Ok(entry) => done.push((*change, Some(entry))),
                Err(source) => failed(change, source),
            }
        }
        // Last, and deepest first: a folder may be closed to ourselves.
        for (change, entry) in done.iter().rev() {
            if change.kind == Kind::Folder
                && let Some(entry) = entry
                && let Err(source) = self.close_folder(change, &entry.base)
            {
                failed(change, source);
            }
        }
        for (change, entry) in done {
            match entry {
                Some(entry) => base.insert(change.path.clone(), entry),
                None => base.remove(&change.path),
            };
            outcome.applied.push(change.clone());
        }
        outcome
            .applied
            .sort_by(|one, other| one.path.cmp(&other.path));
        outcome
    }

    /// Looks once more, as late as can be: a conflict may have come up since.
    fn still_fits(&self, change: &Change) -> io::Result<()> {
        match self.sides.conflict(change) {
            Some(reason) if !self.force => Err(io::Error::other(reason)),
            _ => Ok(()),
        }
    }

    fn take_away(&self, change: &Change) -> io::Result<()> {
        let now = match tree::look(self.folder, &change.path)? {
            None => return Ok(()),
            Some(now) => now,
        };
        if change.what == What::Replaced {
            // Something that is no folder is replaced at one blow by what comes; one that came already stays.
            let at_once = now.kind != Kind::Folder && change.kind != Kind::Folder;
            if at_once || now.kind == change.kind {
                return Ok(());
            }
        }
        // Its contents went first: only whether it is empty is left to say, and the kernel says it.
        if now.kind != Kind::Folder {
            self.still_fits(change)?;
        }
        let (above, name) = tree::parent(self.folder, &change.path)?;
        let how = if now.kind == Kind::Folder {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match rustix::fs::unlinkat(above, name, how) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(io::Error::other(
                "it holds something that the program has not seen",
            )),
            Err(source) => Err(source.into()),
        }
    }

    /// Puts one entry in its place; gives what the base is from now on.
    fn put(&self, change: &Change) -> io::Result<Entry> {
        let now = tree::look(self.folder, &change.path)?;
        if !self.sides.is_done(self.folder, change, now.as_ref()) {
            self.still_fits(change)?;
            let (above, name) = tree::parent(self.folder, &change.path)?;
            match (change.kind, change.what) {
                (Kind::File, What::Mode) => self.set_mode(&above, name, change.mode)?,
                (Kind::File, _) => return self.put_file(&above, name, change),
                (Kind::Link, _) => self.put_link(&above, name, change)?,
                (Kind::Folder, _) => self.make_folder(&above, name)?,
                (Kind::Other, _) => return Err(Errno::INVAL.into()),
            }
        }
        let copy = tree::look(self.sides.layer, &change.path)?.map(|seen| seen.version);
        self.entry(change, copy.unwrap_or_default())
    }

    fn entry(&self, change: &Change, copy: Version) -> io::Result<Entry> {
        let now = tree::look(self.folder, &change.path)?.ok_or(Errno::NOENT)?;
        let target = change.target.clone().unwrap_or_default();
        Ok(Entry {
            kind: change.kind,
            mode: change.mode,
            target,
            base: now.version,
            copy,
        })
    }

    fn set_mode(&self, above: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<()> {
        let file = tree::open(above, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        if tree::kind(&rustix::fs::fstat(&file)?) != Kind::File {
            return Err(Errno::AGAIN.into());
        }
        Ok(rustix::fs::fchmod(
            &file,
            Mode::from_raw_mode(mode & 0o777),
        )?)
    }

    fn put_file(&self, above: &OwnedFd, name: &OsStr, change: &Change) -> io::Result<Entry> {
        let source = tree::open(
            self.sides.layer,
            &change.path,
            OFlags::RDONLY | OFlags::NONBLOCK,
        )?;
        let source = File::from(source);
        let before = rustix::fs::fstat(&source)?;
        if tree::kind(&before) != Kind::File || before.st_size as u64 != change.size_bytes {
            return Err(busy());
        }
        self.clear_draft(above)?;
        let draft = tree::open(
            above,
            &self.draft,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )?;
        let written = self.write(&source, draft, change).and_then(|()| {
            let after = Version::of(&rustix::fs::fstat(&source)?);
            if after != Version::of(&before) {
                return Err(busy());
            }
            self.still_fits(change)?;
            rustix::fs::renameat(above, &self.draft, above, name)?;
            Ok(after)
        });
        match written {
            Ok(copy) => self.entry(change, copy),
            Err(error) => {
                self.clear_draft(above)?;
                Err(error)
            }
        }
    }

    fn write(&self, source: &File, draft: OwnedFd, change: &Change) -> io::Result<()> {
        let draft = File::from(draft);
        let copied = sparse::copy(source, &draft, change.size_bytes, &|| true)?;
        if copied != change.size_bytes {
            return Err(busy());
        }
        Ok(rustix::fs::fchmod(
            &draft,
            Mode::from_raw_mode(change.mode & 0o777),
        )?)
    }

    fn put_link(&self, above: &OwnedFd, name: &OsStr, change: &Change) -> io::Result<()> {
        let target = change.target.as_deref().unwrap_or_default();
        self.clear_draft(above)?;
        rustix::fs::symlinkat(target, above, &self.draft)?;
        let moved = rustix::fs::renameat(above, &self.draft, above, name);
        if moved.is_err() {
            self.clear_draft(above)?;
        }
        Ok(moved?)
    }

    fn make_folder(&self, above: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }

    /// The folder that was made or found, and no other that has come in its place.
    fn close_folder(&self, change: &Change, known: &Version) -> io::Result<()> {
        let folder = tree::open(
            self.folder,
            &change.path,
            OFlags::RDONLY | OFlags::DIRECTORY,
        )?;
        if Version::of(&rustix::fs::fstat(&folder)?).inode != known.inode {
            return Err(io::Error::other("it was replaced meanwhile"));
        }
        Ok(rustix::fs::fchmod(
            folder,
            Mode::from_raw_mode(change.mode & 0o777),
        )?)
    }

    fn clear_draft(&self, above: &OwnedFd) -> io::Result<()> {
        match rustix::fs::unlinkat(above, Path::new(&self.draft), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }
}

fn busy() -> io::Error {
    io::Error::other("it is being written: pause or end what writes it, then commit again")
}
