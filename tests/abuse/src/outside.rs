//! A folder beside a workspace in which nothing may happen, and who watches it.

use crate::host;
use rustix::fs::{
    Mode, OFlags, ResolveFlags,
    inotify::{self, CreateFlags, WatchFlags},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

/// What a file is: kind and permissions, owner, when it was changed, and what is in it.
type Shown = (u32, u32, (i64, i64), Vec<u8>);

/// The folder, as it was.
#[derive(Debug)]
pub struct Outside {
    folder: PathBuf,
    before: BTreeMap<PathBuf, Shown>,
    watch: OwnedFd,
}

impl Outside {
    /// Watches a folder with a folder `below` in it: every file that is opened, read, written or changed, and every name
    /// that comes or goes.
    pub fn watch(folder: PathBuf) -> Outside {
        let before = show(&folder);
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
        for path in [folder.clone(), folder.join("below")] {
            inotify::add_watch(&watch, path, WatchFlags::ALL_EVENTS).expect("a watch");
        }
        Outside {
            folder,
            before,
            watch,
        }
    }

    /// Everything that happened to it since it was last asked, except that names in it were looked up.
    pub fn escapes(&self) -> Vec<String> {
        let mut escapes = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        while let Ok(event) = events.next() {
            escapes.push(format!("{:?} {:?}", event.events(), event.file_name()));
        }
        let after = show(&self.folder);
        // Looking at it was an event of our own.
        while inotify::Reader::new(&self.watch, &mut [MaybeUninit::uninit(); 4096])
            .next()
            .is_ok()
        {}
        if after != self.before {
            escapes.push(format!("{:?} became {after:?}", self.before));
        }
        escapes
    }
}

/// Files in these folders that have a copy of this.
pub fn leaks(folders: &[PathBuf], secret: &str) -> Vec<PathBuf> {
    let mut leaks = Vec::new();
    for folder in folders {
        let below = host::listing(folder).into_iter();
        let leaked = below.filter(|path| {
            read_through_no_link(folder, path).is_some_and(|text| contains(&text, secret))
        });
        leaks.extend(leaked.map(|path| folder.join(path)));
    }
    leaks
}

/// What a regular file holds that is still there: the racer may put a link to the secret in its place meanwhile, or in
/// that of a folder above it.
fn read_through_no_link(folder: &Path, path: &Path) -> Option<Vec<u8>> {
    let top = fs::File::open(folder).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(top, path, flags, Mode::empty(), resolve).ok()?;
    let mut file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    Some(text)
}

fn contains(text: &[u8], what: &str) -> bool {
    text.windows(what.len())
        .any(|window| window == what.as_bytes())
}

fn show(folder: &Path) -> BTreeMap<PathBuf, Shown> {
    let one = |path: PathBuf| {
        let found = fs::symlink_metadata(folder.join(&path)).expect("it was listed");
        let text = if found.is_file() {
            fs::read(folder.join(&path)).expect("it is ours")
        } else {
            Vec::new()
        };
        (
            path,
            (
                found.mode(),
                found.uid(),
                (found.ctime(), found.ctime_nsec()),
                text,
            ),
        )
    };
    host::listing(folder).into_iter().map(one).collect()
}
