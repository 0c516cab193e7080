//! A folder beside a workspace in which nothing may happen, and who watches it.
//!
//! inotify does not name the process. Some programs of the machine (a disk usage report, a cleaner of temporary files)
//! list every folder below the temporary one, this one included. A second, empty folder that no sandbox is ever near tells
//! them apart: a listing that both folders saw comes from such a program. Anything but a listing counts in any case.

use crate::{PATIENCE, host};
use rustix::fs::{
    Mode, OFlags, ResolveFlags,
    inotify::{self, CreateFlags, ReadFlags, WatchFlags},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// What a file is: kind and permissions, owner, when it was changed, and what is in it.
type Shown = (u32, u32, (i64, i64), Vec<u8>);

/// The folder, as it was.
#[derive(Debug)]
pub struct Outside {
    folder: PathBuf,
    before: BTreeMap<PathBuf, Shown>,
    watch: OwnedFd,
    bystander: Bystander,
}

/// A folder like the watched one, with a folder `below` in it, that nothing leads to.
#[derive(Debug)]
struct Bystander {
    folder: PathBuf,
    watch: OwnedFd,
}

impl Bystander {
    fn new() -> Bystander {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("airlock-abuse-bystander-{process}-{number}");
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("below")).expect("a folder");
        let watch = watch(&folder);
        Bystander { folder, watch }
    }

    /// Whether somebody lists this folder, too. Who lists all of them gets to it soon.
    fn is_listed(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if read_events(&self.watch).iter().any(is_listing) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).expect("it is ours");
    }
}

/// What happened, and to which name in the folder.
type Event = (ReadFlags, Option<String>);

/// Every file that is opened, read, written or changed in the folder or in `below`, and every name that comes or goes.
fn watch(folder: &Path) -> OwnedFd {
    let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("inotify");
    for path in [folder.to_owned(), folder.join("below")] {
        inotify::add_watch(&watch, path, WatchFlags::ALL_EVENTS).expect("a watch");
    }
    watch
}

/// All events since the last look.
fn read_events(watch: &OwnedFd) -> Vec<Event> {
    let mut seen = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    while let Ok(event) = events.next() {
        let name = event.file_name().map(|name| name.to_string_lossy().into());
        seen.push((event.events(), name));
    }
    seen
}

/// Whether a folder was opened, listed or closed, and nothing else.
fn is_listing((flags, _): &Event) -> bool {
    let listing = ReadFlags::OPEN | ReadFlags::ACCESS | ReadFlags::CLOSE_NOWRITE;
    flags.contains(ReadFlags::ISDIR) && (*flags - ReadFlags::ISDIR - listing).is_empty()
}

impl Outside {
    /// Watches a folder with a folder `below` in it: every file that is opened, read, written or changed, and every name
    /// that comes or goes.
    pub fn watch(folder: PathBuf) -> Outside {
        let before = show(&folder);
        Outside {
            watch: watch(&folder),
            bystander: Bystander::new(),
            folder,
            before,
        }
    }

    /// Everything that happened to it since the last look, except that names in it were looked up, and except listings by
    /// programs that list other folders just so.
    pub fn escapes(&self) -> Vec<String> {
        let mut events = read_events(&self.watch);
        let after = show(&self.folder);
        // This look was an event, too.
        read_events(&self.watch);
        let are_listings = !events.is_empty() && events.iter().all(is_listing);
        if are_listings && self.bystander.is_listed() {
            events.clear();
        }
        let as_text = |(flags, name)| format!("{flags:?} {name:?}");
        let mut escapes: Vec<_> = events.into_iter().map(as_text).collect();
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
