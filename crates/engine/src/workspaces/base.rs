//! What a layer is based on: a copy of the folder by handles, and a list of what was copied, by which it is seen later
//! what the program changed and whether the folder itself has changed meanwhile. All of the copy belongs to whoever makes
//! it, which is the folder's owner.

use super::tree::{self, Kind, MOST_DEPTH, MOST_ENTRIES, MOST_NAME_BYTES, Seen, Version};
use crate::sparse;
use rustix::{
    fs::{Dir, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT},
    io::Errno,
};
use sandbox::native::protect;
use serde::{Deserialize, Serialize};
use spec::{Hidden, Hide};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

/// Bytes that are copied at most.
pub(super) const MOST_BYTES: u64 = 16 << 30;
/// How often a file may change while it is copied.
const TRIES: usize = 3;

/// The list's name in a layer.
const LIST: &str = "base";

/// One entry of the folder as it was.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    #[serde(with = "bytes", default, skip_serializing_if = "is_none")]
    pub(super) target: OsString,
    /// In the folder.
    pub(super) base: Version,
    /// In the layer.
    pub(super) copy: Version,
}

/// Everything of the folder as it was, by path.
pub(super) type Base = BTreeMap<PathBuf, Entry>;

#[derive(Deserialize, Serialize)]
struct Line {
    #[serde(with = "bytes")]
    path: OsString,
    #[serde(flatten)]
    entry: Entry,
}

/// Reads the list of a layer.
pub(super) fn read(layer: impl AsFd) -> io::Result<Base> {
    let file = tree::open(layer, LIST, OFlags::RDONLY)?;
    let lines = BufReader::new(File::from(file)).lines();
    lines
        .map(|line| {
            let Line { path, entry } = serde_json::from_str(&line?)?;
            Ok((PathBuf::from(path), entry))
        })
        .collect()
}

/// Writes the list of a layer, all of it or nothing.
pub(super) fn write(layer: impl AsFd, base: &Base) -> io::Result<()> {
    let (layer, draft) = (layer.as_fd(), format!("{LIST}.new"));
    let file = tree::open(
        layer,
        &draft,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC,
    )?;
    let mut out = BufWriter::new(File::from(file));
    for (path, entry) in base {
        serde_json::to_writer(
            &mut out,
            &Line {
                path: path.clone().into(),
                entry: entry.clone(),
            },
        )?;
        out.write_all(b"\n")?;
    }
    out.into_inner()?.sync_data()?;
    Ok(rustix::fs::renameat(layer, &draft, layer, LIST)?)
}

/// Why a folder was not copied.
#[derive(Debug)]
pub(super) enum NotCopied {
    /// It is too much of something.
    Bound(String),
    /// There is no room for it.
    NoRoom(String),
    /// Nobody waits for it any more.
    Cancelled,
    /// It could not be done.
    Io(PathBuf, io::Error),
}

/// Asked again and again while a folder is copied, with the bytes that the copy takes so far: an error ends it.
pub(super) type Watch<'a> = &'a (dyn Fn(u64) -> Result<(), NotCopied> + Sync);

/// A folder that was copied.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) base: Base,
    /// What it takes on the disk.
    pub(super) room: u64,
    /// What is not in it, although it could be read.
    pub(super) hidden: Vec<PathBuf>,
}

/// Copies the folder `from` into the empty folder `to`.
pub(super) fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    hide: &Hide,
    watch: Watch<'_>,
) -> Result<Copied, NotCopied> {
    let mut copying = Copying {
        base: Base::new(),
        bytes: 0,
        name_bytes: 0,
        room: 0,
        hide,
        hidden: Vec::new(),
        watch,
    };
    copying.all(from, to)?;
    Ok(Copied {
        base: copying.base,
        room: copying.room,
        hidden: copying.hidden,
    })
}

struct Copying<'a> {
    base: Base,
    bytes: u64,
    name_bytes: usize,
    room: u64,
    hide: &'a Hide,
    hidden: Vec<PathBuf>,
    watch: Watch<'a>,
}

/// A folder that is being copied.
struct Level {
    from: Dir,
    to: OwnedFd,
    path: PathBuf,
    mode: u32,
}

impl Copying<'_> {
    fn all(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), NotCopied> {
        let failed = |path: &Path, source: io::Error| NotCopied::Io(path.to_owned(), source);
        let found =
            rustix::fs::fstat(from).map_err(|source| failed(Path::new("."), source.into()))?;
        let top = listed(from).and_then(|from| self.level(from, to, PathBuf::new(), &found));
        let mut levels = vec![top.map_err(|source| failed(Path::new("."), source))?];
        while let Some(level) = levels.last_mut() {
            (self.watch)(self.room)?;
            let entry = level
                .from
                .read()
                .transpose()
                .map_err(|source| failed(&level.path, source.into()))?;
            let Some(entry) = entry else {
                let mode = Mode::from_raw_mode(level.mode);
                rustix::fs::fchmod(&level.to, mode)
                    .map_err(|source| failed(&level.path, source.into()))?;
                levels.pop();
                continue;
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let path = level.path.join(&name);
            self.count(&path, levels.len())?;
            if let Some(level) = levels.last() {
                let below = self.one(level, &name, &path);
                // What stopped a file stops the rest, and has a better name.
                let why = |source| {
                    (self.watch)(self.room)
                        .err()
                        .unwrap_or_else(|| failed(&path, source))
                };
                levels.extend(below.map_err(why)?);
            }
        }
        Ok(())
    }

    fn count(&self, path: &Path, depth: usize) -> Result<(), NotCopied> {
        let too_much = if self.base.len() >= MOST_ENTRIES || self.name_bytes > MOST_NAME_BYTES {
            format!(
                "it has more than {MOST_ENTRIES} files and folders, or their names are too long together"
            )
        } else if self.bytes > MOST_BYTES {
            format!("it is larger than {} GiB", MOST_BYTES >> 30)
        } else if self.hidden.len() > protect::MAX_HIDDEN {
            let most = protect::MAX_HIDDEN;
            format!(
                "it has more than {most} files that are to be hidden (`--hide none` hides fewer)"
            )
        } else if depth > MOST_DEPTH {
            format!(
                "`{}` is deeper than {MOST_DEPTH} folders",
                path.to_string_lossy().escape_debug()
            )
        } else {
            return Ok(());
        };
        Err(NotCopied::Bound(too_much))
    }

    fn level(&self, from: Dir, to: impl AsFd, path: PathBuf, found: &Stat) -> io::Result<Level> {
        let to = tree::open(to, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Level {
            from,
            to,
            path,
            mode: found.st_mode & 0o777,
        })
    }

    /// Copies one entry; gives the folder to go on in.
    fn one(&mut self, level: &Level, name: &OsStr, path: &Path) -> io::Result<Option<Level>> {
        let seen = match level
            .from
            .fd()
            .map_err(io::Error::from)
            .and_then(|from| tree::see(from, name))
        {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => Seen::default(),
            seen => seen?,
        };
        let (from, to) = (level.from.fd()?, level.to.as_fd());
        if self.hides(from, name, path, seen.kind) {
            let copy = stand_in(to, name, seen.kind)?;
            self.hidden.push(path.to_owned());
            let (kind, mode, base) = (Kind::Other, seen.mode, seen.version);
            let target = OsString::new();
            let entry = Entry {
                kind,
                mode,
                target,
                base,
                copy,
            };
            self.base.insert(path.to_owned(), entry);
            return Ok(None);
        }
        let mut below = None;
        let copied = match seen.kind {
            Kind::File => self.file(from, to, name),
            Kind::Folder => self.folder(from, to, name, path).map(|(entered, version)| {
                below = Some(entered);
                (version, version)
            }),
            Kind::Link => {
                let target = seen.target.as_deref().unwrap_or_default();
                Ok(rustix::fs::symlinkat(target, to, name).map(|()| Default::default())?)
            }
            Kind::Other => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let (kind, (base, copy)) = match copied {
            // It is there, but not for us: as good as hidden from the program.
            Err(closed) if closed.kind() == io::ErrorKind::PermissionDenied => {
                (Kind::Other, (seen.version, Version::default()))
            }
            copied => (seen.kind, copied?),
        };
        let target = seen.target.unwrap_or_default();
        self.name_bytes += path.as_os_str().len() + target.len();
        self.base.insert(
            path.to_owned(),
            Entry {
                kind,
                mode: seen.mode,
                target,
                base,
                copy,
            },
        );
        Ok(below)
    }

    fn hides(&self, from: BorrowedFd<'_>, name: &OsStr, path: &Path, kind: Kind) -> bool {
        match self.hide.judge(path) {
            Hidden::Yes => true,
            Hidden::No => false,
            Hidden::IfPrivateKey => {
                kind == Kind::File && protect::holds_key(from, name).unwrap_or(true)
            }
        }
    }

    fn folder(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> io::Result<(Level, Version)> {
        let from = tree::open(from, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let found = rustix::fs::fstat(&from)?;
        // One that can be listed but not entered is as good as hidden: then nothing is made.
        let from = listed(from)?;
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        let to = tree::open(to, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok((
            self.level(from, to, path.to_owned(), &found)?,
            Version::of(&found),
        ))
    }

    /// The versions of the file and of its copy.
    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
    ) -> io::Result<(Version, Version)> {
        let source = File::from(tree::open(from, name, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let copy = File::from(tree::open(
            to,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )?);
        for _ in 0..TRIES {
            let before = rustix::fs::fstat(&source)?;
            if tree::kind(&before) != Kind::File {
                return Err(Errno::AGAIN.into());
            }
            self.bytes += before.st_size as u64;
            if self.bytes > MOST_BYTES {
                // Said by whoever counts.
                return Ok((Version::of(&before), Version::default()));
            }
            copy.set_len(0)?;
            let goes_on = || (self.watch)(self.room).is_ok();
            // If it was cut short: seen below by its version.
            sparse::copy(&source, &copy, before.st_size as u64, &goes_on)?;
            if Version::of(&rustix::fs::fstat(&source)?) == Version::of(&before) {
                let made = self.finish(&copy, &before)?;
                return Ok((Version::of(&before), made));
            }
        }
        Err(io::Error::other("it changes while it is copied"))
    }

    fn finish(&mut self, copy: &File, found: &Stat) -> io::Result<Version> {
        rustix::fs::fchmod(copy, Mode::from_raw_mode(found.st_mode & 0o777))?;
        // Who builds by the age of files shall not build everything anew.
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: found.st_mtime as _,
                tv_nsec: found.st_mtime_nsec as _,
            },
        };
        rustix::fs::futimens(copy, &times)?;
        let made = rustix::fs::fstat(copy)?;
        self.room += tree::room(&made);
        Ok(Version::of(&made))
    }
}

/// In the place of what is hidden: something of its kind with nothing in it, so that git does not take it for removed.
fn stand_in(to: BorrowedFd<'_>, name: &OsStr, kind: Kind) -> io::Result<Version> {
    match kind {
        Kind::Folder => rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o555))?,
        _ => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let made = tree::open(to, name, flags)?;
            rustix::fs::fchmod(&made, Mode::empty())?;
        }
    }
    Ok(tree::see(to, name)?.version)
}

fn listed(folder: impl AsFd) -> io::Result<Dir> {
    Ok(Dir::new(tree::open(
        folder,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY,
    )?)?)
}

/// Names need not be text: each byte is written as the character of its number.
pub(super) mod bytes {
    use super::{OsStr, OsStrExt, OsString, OsStringExt};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(name: &OsStr, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = name
            .as_bytes()
            .iter()
            .map(|byte| char::from(*byte))
            .collect();
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<OsString, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = text
            .chars()
            .map(|character| u8::try_from(u32::from(character)));
        let bytes: Result<Vec<u8>, _> = bytes.collect();
        bytes
            .map(OsString::from_vec)
            .map_err(|_| D::Error::custom("a name with characters that are no bytes"))
    }
}

fn is_none(target: &OsStr) -> bool {
    target.is_empty()
}
