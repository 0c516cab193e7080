//! Who may do what, flattened. A box has one user, and what its id is outside differs from run to run; owners mean
//! nothing there. So each file gets, for everybody alike, what the image's own user might do with it.
//!
//! Who that user is stands in files of the image (`/etc/passwd`, `/etc/group`) that the last layer may still change.
//! Until then owner and mode of every file are remembered here by inode, 16 bytes each, and nothing is given to anyone.

use crate::{
    tar::Header,
    tree::{Trouble, times},
    user::Person,
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
pub(crate) struct Rights {
    /// In the order they were told; an inode may come up again, and then the last counts.
    all: Vec<Right>,
    owners: Vec<(u32, u32)>,
    numbers: HashMap<(u32, u32), u16>,
}

#[derive(Clone, Copy, Debug)]
struct Right {
    inode: u64,
    mtime: u32,
    owner: u16,
    mode: u16,
}

/// What the tree amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Rights {
    pub(crate) fn note(&mut self, inode: u64, header: &Header) -> Result<(), Trouble> {
        let pair = (header.uid, header.gid);
        let owner = match self.numbers.get(&pair) {
            Some(owner) => *owner,
            None => {
                let too_many =
                    |_| Trouble::Refused("files in it have more than 65536 different owners");
                let owner = u16::try_from(self.owners.len()).map_err(too_many)?;
                self.owners.push(pair);
                self.numbers.insert(pair, owner);
                owner
            }
        };
        let mtime = u32::try_from(header.mtime).unwrap_or(u32::MAX);
        self.all.push(Right {
            inode,
            mtime,
            owner,
            mode: header.mode,
        });
        Ok(())
    }

    /// Gives everything in the tree its final rights, and counts.
    pub(crate) fn settle(mut self, root: &Dir, person: &Person) -> io::Result<Totals> {
        // Stable, so that of the same inode the last stays last.
        self.all.sort_by_key(|right| right.inode);
        let classes = self
            .owners
            .iter()
            .map(|owner| person.class(*owner))
            .collect();
        let mut settling = Settling {
            all: &self.all,
            classes,
            linked: HashSet::new(),
            totals: Totals::default(),
        };
        settling.folder(root.open_dir(".")?)?;
        Ok(settling.totals)
    }
}

struct Settling<'a> {
    all: &'a [Right],
    /// By which three bits of a mode the user is served, for each owner.
    classes: Vec<u16>,
    /// Files of several names that have been counted.
    linked: HashSet<u64>,
    totals: Totals,
}

impl Settling<'_> {
    fn folder(&mut self, folder: Dir) -> io::Result<()> {
        for entry in folder.entries()? {
            let DirEntry { name, kind } = entry?;
            if kind == FileType::Symlink {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::openat(&folder, &name, flags, Mode::empty()) {
                Err(Errno::LOOP) => {}
                // Another name of a file that nobody may read any more, an ordinary owner included.
                Err(Errno::ACCESS) if self.has_settled(&folder, &name)? => {}
                opened => self.one(opened?)?,
            }
        }
        let right = self.of(folder.status()?.st_ino);
        // Whoever removes the image has to enter. A folder that no entry ever named is root's, and open to all.
        let mode = right.map_or(0o755, |right| {
            self.mode(right) | 0o700 | (right.mode & STICKY)
        });
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode.into()))?;
        Ok(rustix::fs::futimens(
            &folder,
            &times(right.map_or(0, |right| right.mtime.into())),
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
        // What is not remembered came from elsewhere, or this file system does not keep its numbers.
        let right = self
            .of(found.st_ino)
            .ok_or_else(|| io::Error::other("a file has changed its inode"))?;
        Ok(rustix::fs::fchmod(
            &opened,
            Mode::from_raw_mode(self.mode(right).into()),
        )?)
    }

    fn has_settled(&self, folder: &Dir, name: &OsStr) -> io::Result<bool> {
        let found = folder.stat(name)?.ok_or(Errno::NOENT)?;
        Ok(self.linked.contains(&found.st_ino))
    }

    fn of(&self, inode: u64) -> Option<Right> {
        let end = self.all.partition_point(|right| right.inode <= inode);
        self.all[..end]
            .last()
            .copied()
            .filter(|right| right.inode == inode)
    }

    fn mode(&self, right: Right) -> u16 {
        let bits = (right.mode >> self.classes[usize::from(right.owner)]) & 0o7;
        bits * 0o111
    }
}
