//! File permissions of an unpacked image, independent of owners. A sandbox has one user, whose host
//! id differs from run to run, so owners have no meaning there. Each file gets, for everybody
//! alike, the permissions of the image's own user.
//!
//! That user is resolved from files of the image (`/etc/passwd`, `/etc/group`), which the last
//! layer may still change. Until then owner and mode of every file are recorded by inode, 16 bytes
//! each, and files are accessible only to us.

use crate::{
    rootfs::{UnpackError, times},
    tar::TarHeader,
    user::ResolvedUser,
};
use ::fs::{Dir, DirEntry};
use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    io,
    os::fd::OwnedFd,
};

const STICKY: u16 = 0o1000;

#[derive(Debug, Default)]
pub(crate) struct PermissionTable {
    /// In the order of recording; an inode may occur again, and then the last one counts.
    all: Vec<FilePermissions>,
    owners: Vec<(u32, u32)>,
    numbers: HashMap<(u32, u32), u16>,
}

#[derive(Clone, Copy, Debug)]
struct FilePermissions {
    inode: u64,
    mtime: u32,
    owner: u16,
    mode: u16,
}

/// Totals of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeTotals {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl PermissionTable {
    pub(crate) fn note(&mut self, inode: u64, header: &TarHeader) -> Result<(), UnpackError> {
        let pair = (header.uid, header.gid);
        let owner = match self.numbers.get(&pair) {
            Some(owner) => *owner,
            None => {
                let too_many =
                    |_| UnpackError::Refused("files in it have more than 65536 different owners");
                let owner = u16::try_from(self.owners.len()).map_err(too_many)?;
                self.owners.push(pair);
                self.numbers.insert(pair, owner);
                owner
            }
        };
        let mtime = u32::try_from(header.mtime).unwrap_or(u32::MAX);
        self.all.push(FilePermissions {
            inode,
            mtime,
            owner,
            mode: header.mode,
        });
        Ok(())
    }

    /// Sets the final permissions of the whole tree, and counts its files.
    pub(crate) fn apply(
        mut self,
        root: &Dir,
        resolved_user: &ResolvedUser,
    ) -> io::Result<TreeTotals> {
        // The sort is stable, so for the same inode the last record stays last.
        self.all.sort_by_key(|record| record.inode);
        let classes = self
            .owners
            .iter()
            .map(|owner| resolved_user.class(*owner))
            .collect();
        let mut pass = PermissionPass {
            all: &self.all,
            classes,
            linked: HashSet::new(),
            totals: TreeTotals::default(),
        };
        pass.folder(root.open_dir(".")?)?;
        Ok(pass.totals)
    }
}

struct PermissionPass<'a> {
    all: &'a [FilePermissions],
    /// Shift of the three mode bits that apply to the user, for each owner.
    classes: Vec<u16>,
    /// Hard-linked files that have been counted.
    linked: HashSet<u64>,
    totals: TreeTotals,
}

impl PermissionPass<'_> {
    fn folder(&mut self, folder: Dir) -> io::Result<()> {
        for entry in folder.entries()? {
            let DirEntry { name, kind } = entry?;
            if kind == FileType::Symlink {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::openat(&folder, &name, flags, Mode::empty()) {
                Err(Errno::LOOP) => {}
                // Another name of a file whose final mode already denies reading, even to its
                // owner.
                Err(Errno::ACCESS) if self.is_applied(&folder, &name)? => {}
                opened => self.one(opened?)?,
            }
        }
        let record = self.of(folder.status()?.st_ino);
        // The owner needs access to remove the image later. A folder without an entry is owned by
        // root with mode 0755.
        let mode = record.map_or(0o755, |record| {
            self.mode(record) | 0o700 | (record.mode & STICKY)
        });
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode.into()))?;
        Ok(rustix::fs::futimens(
            &folder,
            &times(record.map_or(0, |record| record.mtime.into())),
        )?)
    }

    fn one(&mut self, opened: OwnedFd) -> io::Result<()> {
        let found = rustix::fs::fstat(&opened)?;
        if FileType::from_raw_mode(found.st_mode).is_dir() {
            return self.folder(opened.into());
        }
        if found.st_nlink > 1 && !self.linked.insert(found.st_ino) {
            return Ok(());
        }
        self.totals.files += 1;
        self.totals.bytes += u64::try_from(found.st_size).unwrap_or(0);
        // A file without a record means that the file system does not keep inode numbers stable, or
        // that another process added it.
        let record = self
            .of(found.st_ino)
            .ok_or_else(|| io::Error::other("a file has changed its inode"))?;
        Ok(rustix::fs::fchmod(
            &opened,
            Mode::from_raw_mode(self.mode(record).into()),
        )?)
    }

    fn is_applied(&self, folder: &Dir, name: &OsStr) -> io::Result<bool> {
        let found = folder.stat(name)?.ok_or(Errno::NOENT)?;
        Ok(self.linked.contains(&found.st_ino))
    }

    fn of(&self, inode: u64) -> Option<FilePermissions> {
        let end = self.all.partition_point(|record| record.inode <= inode);
        self.all[..end]
            .last()
            .copied()
            .filter(|record| record.inode == inode)
    }

    fn mode(&self, record: FilePermissions) -> u16 {
        let bits = (record.mode >> self.classes[usize::from(record.owner)]) & 0o7;
        bits * 0o111
    }
}
