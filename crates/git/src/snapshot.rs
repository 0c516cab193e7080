//! A git folder of our own that stands for the host's: the same history, index and identity, none of what git obeys. The
//! objects stay where they are and are lent read-only, by `objects/info/alternates`.

use crate::{
    Config, GitError, Head, ObjectFormat, ObjectId, RefMap, failed,
    handle::{self, FOLDER},
    refs,
};
use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

/// Where the objects of the host are lent, in our git folder; with a number for each further one.
pub const LENT: &str = "airlock-host-objects";
/// Bytes of an index.
pub(crate) const MOST_INDEX: u64 = 256 << 20;
/// Bytes of any other file.
const MOST_FILE: u64 = 4 << 20;
/// Folders that the host's repository borrows objects from.
const MOST_ALTERNATES: usize = 16;
/// Submodules that are looked at.
const MOST_MODULES: usize = 64;
/// How many parts the name of a submodule may have.
const DEEPEST_MODULE: usize = 4;
/// Files that are taken as they are, with the most that each may have.
const TAKEN: [(&str, u64); 4] = [
    ("index", MOST_INDEX),
    ("shallow", MOST_FILE),
    ("info/exclude", MOST_FILE),
    ("info/sparse-checkout", MOST_FILE),
];
/// Extensions of a repository under which what is read here means what it says.
const EXTENSIONS: [&str; 5] = [
    "objectformat",
    "worktreeconfig",
    "noop",
    "preciousobjects",
    "relativeworktrees",
];

/// The folders of a repository on the host.
#[derive(Debug)]
pub struct GitFolders {
    /// `HEAD` and index.
    pub git: OwnedFd,
    /// Config, references and objects; the same where the repository has one worktree.
    pub common: OwnedFd,
    /// Where the latter is.
    pub path: PathBuf,
    /// Where the former is.
    pub git_path: PathBuf,
}

/// What the program gets of a repository.
#[derive(Debug)]
pub struct Snapshot {
    /// Which hash it uses.
    pub format: ObjectFormat,
    /// What `HEAD` was.
    pub head: Head,
    /// What its references were.
    pub refs: RefMap,
    /// Commits whose parents are not there.
    pub shallow: Option<Vec<u8>>,
    /// Folders of objects on the host, its own first.
    pub objects: Vec<ObjectFolder>,
    /// What its configuration says that counts when something arrives.
    pub settings: Settings,
    files: Vec<(String, Vec<u8>)>,
}

/// What of a repository's configuration counts when something arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Who commits, as a reflog has it: a name, and an address in brackets.
    pub who: String,
    /// Whether reflogs are begun where there are none.
    pub begins_logs: bool,
    /// `core.sparseCheckout`, and whether its patterns are folders.
    pub sparse: Option<bool>,
    /// The names of remotes.
    pub remotes: Vec<String>,
    /// Where the worktree of a submodule is, relative to the git folder.
    pub worktree: Option<PathBuf>,
}

impl Settings {
    fn of(config: &Config, identity: &Config) -> Settings {
        let plain = |text: &str| -> String {
            text.chars()
                .filter(|c| !c.is_control() && !"<>".contains(*c))
                .collect()
        };
        let of = |key| config.last("user", key).or(identity.last("user", key));
        let who = format!(
            "{} <{}>",
            plain(of("name").unwrap_or("airlock")).trim(),
            plain(of("email").unwrap_or("airlock@localhost")).trim()
        );
        let remotes = config.entries.iter();
        let remotes = remotes.filter(|entry| entry.section == "remote");
        let never = |value: &str| {
            ["false", "no", "off", "0"].contains(&value.to_ascii_lowercase().as_str())
        };
        Settings {
            who,
            begins_logs: !config.last("core", "logallrefupdates").is_some_and(never),
            sparse: config
                .is_on("core", "sparsecheckout")
                .then(|| config.is_on("core", "sparsecheckoutcone")),
            remotes: remotes
                .filter_map(|entry| entry.subsection.clone())
                .collect(),
            worktree: config.last("core", "worktree").map(PathBuf::from),
        }
    }
}

/// A folder of objects on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFolder {
    /// Where it is.
    pub path: PathBuf,
    /// What it must turn out to be there: whoever may write the folder around it could put another one in its place.
    pub device: u64,
    /// The same.
    pub inode: u64,
}

/// What lies at `.git` in a workspace.
#[derive(Debug)]
pub enum DotGit {
    /// Nothing, or nothing that is a repository.
    Absent,
    /// The repository itself.
    Folder(GitFolders),
    /// A file that names it: a linked worktree, or a submodule.
    File(GitFolders),
}

impl DotGit {
    /// Finds the repository of a workspace. `owner` must own what lies outside of it: a file in the workspace names it.
    pub fn find(workspace: BorrowedFd<'_>, path: &Path, owner: u32) -> Result<DotGit, GitError> {
        let common = match handle::open(workspace, ".git", FOLDER) {
            Ok(folder) => folder,
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(DotGit::Absent),
            Err(_) => return find_by_file(workspace, path, owner),
        };
        // As git has it: without all of them it is no repository, and obeyed by nobody.
        let is_there = |name: &&str| handle::open(&common, name, OFlags::PATH).is_ok();
        if !["HEAD", "objects", "refs"].iter().all(is_there) {
            return Ok(DotGit::Absent);
        }
        if handle::open(&common, "commondir", OFlags::PATH).is_ok() {
            return Err(unsupported("its folder .git leads to another one"));
        }
        let git = common.try_clone().map_err(failed("open .git"))?;
        Ok(DotGit::Folder(GitFolders {
            git,
            common,
            path: path.join(".git"),
            git_path: path.join(".git"),
        }))
    }
}

fn unsupported(why: impl Into<String>) -> GitError {
    GitError::Unsupported(why.into())
}

/// Only a folder that leads back is believed: whoever could write the file could name any repository.
fn find_by_file(workspace: BorrowedFd<'_>, path: &Path, owner: u32) -> Result<DotGit, GitError> {
    let text = handle::read(workspace, ".git", MOST_FILE).map_err(failed("read .git"))?;
    let named = text
        .as_deref()
        .and_then(|text| text.strip_prefix(b"gitdir: "));
    let named = named.ok_or_else(|| unsupported("its file .git names no repository"))?;
    let (git, git_path) = open_outside(&path.join(line(named)), owner)?;
    let back = |text: Vec<u8>| fs::canonicalize(git_path.join(line(&text))).ok();
    let leads_back = |place: PathBuf| {
        let found = fs::symlink_metadata(place).map(|found| (found.dev(), found.ino()));
        let here = rustix::fs::statat(workspace, ".git", rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| here.is_ok_and(|here| found == (here.st_dev, here.st_ino)))
    };
    let linked = handle::read(&git, "gitdir", MOST_FILE).map_err(failed("read gitdir"))?;
    let commondir = handle::read(&git, "commondir", MOST_FILE).map_err(failed("read commondir"))?;
    let (common, common_path) = match (linked.and_then(back), commondir) {
        (Some(place), Some(common)) if leads_back(place.clone()) => {
            open_outside(&git_path.join(line(&common)), owner)?
        }
        (None, None) => {
            let config = handle::read(&git, "config", MOST_FILE).map_err(failed("read config"))?;
            let config = Config::parse(&config.unwrap_or_default());
            let tree = config
                .last("core", "worktree")
                .map(|tree| git_path.join(tree));
            let place = tree.and_then(|tree| fs::canonicalize(tree).ok());
            if !place.is_some_and(|place| leads_back(place.join(".git"))) {
                return Err(unsupported("what its file .git names does not lead back"));
            }
            (
                git.try_clone().map_err(failed("open .git"))?,
                git_path.clone(),
            )
        }
        _ => return Err(unsupported("what its file .git names does not lead back")),
    };
    if fs::canonicalize(path).is_ok_and(|path| common_path.starts_with(path)) {
        return Err(unsupported("its file .git names a folder in the workspace"));
    }
    Ok(DotGit::File(GitFolders {
        git,
        common,
        path: common_path,
        git_path,
    }))
}

/// The first line, as git reads a path.
fn line(text: &[u8]) -> &Path {
    let end = text
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(text.len());
    Path::new(OsStr::from_bytes(&text[..end]))
}

/// A folder by its path, with nothing exchanged between looking and opening.
fn open_outside(path: &Path, owner: u32) -> Result<(OwnedFd, PathBuf), GitError> {
    let what = || failed("open the repository that .git names");
    let real = fs::canonicalize(path).map_err(what())?;
    let flags = FOLDER | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let folder = rustix::fs::openat2(rustix::fs::CWD, &real, flags, Mode::empty(), resolve);
    let folder = folder.map_err(|error| what()(error.into()))?;
    let found = rustix::fs::fstat(&folder).map_err(|error| what()(error.into()))?;
    match found.st_uid == owner {
        true => Ok((folder, real)),
        false => Err(unsupported(
            "the repository that .git names is somebody else's",
        )),
    }
}

impl GitFolders {
    /// Populated submodules, by the name of their folder below ours.
    pub fn modules(&self) -> Vec<(String, GitFolders)> {
        let mut found = Vec::new();
        if let Ok(folder) = handle::open(&self.common, "modules", FOLDER) {
            self.add_modules(&folder, "modules", 1, &mut found);
        }
        found
    }

    fn add_modules(
        &self,
        folder: &OwnedFd,
        above: &str,
        depth: usize,
        found: &mut Vec<(String, GitFolders)>,
    ) {
        for name in handle::names(folder).unwrap_or_default() {
            let (Some(name), true) = (name.to_str(), found.len() < MOST_MODULES) else {
                continue;
            };
            let Ok(module) = handle::open(folder, name, FOLDER) else {
                continue;
            };
            let place = format!("{above}/{name}");
            if handle::open(&module, "HEAD", OFlags::PATH).is_err() {
                if depth < DEEPEST_MODULE {
                    self.add_modules(&module, &place, depth + 1, found);
                }
                continue;
            }
            let path = self.path.join(&place);
            if let Ok(git) = module.try_clone() {
                let common = module;
                let folders = GitFolders {
                    git,
                    common,
                    git_path: path.clone(),
                    path,
                };
                found.push((place, folders));
            }
        }
    }
}

impl Snapshot {
    /// Reads what the program gets. `identity` says who commits where the repository does not.
    pub fn read(folders: &GitFolders, identity: &Config, owner: u32) -> Result<Snapshot, GitError> {
        let config = read_config(folders)?;
        let format = check_config(&config)?;
        if handle::open(&folders.common, "reftable", OFlags::PATH).is_ok() {
            return Err(unsupported("its references are a reftable"));
        }
        let head = refs::read_head(folders.git.as_fd(), format)?;
        let refs = RefMap::read(folders.common.as_fd(), format)?;
        let mut files = Vec::new();
        for (name, most) in TAKEN {
            // Excludes and the shallow file belong to all worktrees.
            let from = match name {
                "shallow" | "info/exclude" => &folders.common,
                _ => &folders.git,
            };
            let bytes = handle::read(from, name, most).map_err(failed(format!("read {name}")))?;
            files.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
        }
        for name in handle::names(&folders.git).map_err(failed("list .git"))? {
            let Some(name) = name
                .to_str()
                .filter(|name| name.starts_with("sharedindex."))
            else {
                continue;
            };
            let bytes =
                handle::read(&folders.git, name, MOST_INDEX).map_err(failed("read the index"))?;
            files.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
        }
        let shallow = files.iter().find(|(name, _)| name == "shallow");
        let shallow = shallow.map(|(_, bytes)| bytes.clone());
        files.push((
            "config".to_owned(),
            config_inside(&config, identity, format).into_bytes(),
        ));
        Ok(Snapshot {
            format,
            head,
            refs,
            shallow,
            objects: objects(folders, owner)?,
            settings: Settings::of(&config, identity),
            files,
        })
    }

    /// A file that was taken as it is.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| bytes.as_slice())
    }

    /// What `HEAD` was; none if its branch had no commit yet.
    pub fn commit(&self) -> Option<&ObjectId> {
        self.refs.at(&self.head)
    }

    /// Writes it into an empty folder, which becomes a git folder, and gives everything to `owner`.
    pub fn write(&self, into: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> io::Result<()> {
        let writer = Writer { into, owner };
        for folder in [
            "hooks",
            "info",
            "objects/info",
            "objects/pack",
            "refs/heads",
            "refs/tags",
        ] {
            writer.folder(folder)?;
        }
        let mut alternates = String::new();
        for number in 0..self.objects.len() {
            let name = lent(number);
            writer.folder(&name)?;
            alternates += &format!("../{name}\n");
        }
        writer.file("objects/info/alternates", alternates.as_bytes())?;
        writer.file("HEAD", self.head.text().as_bytes())?;
        writer.file("packed-refs", self.refs.packed().as_bytes())?;
        for (name, target) in &self.refs.symbolic {
            writer.file(name, format!("ref: {target}\n").as_bytes())?;
        }
        self.files
            .iter()
            .try_for_each(|(name, bytes)| writer.file(name, bytes))
    }
}

/// Makes the folder of a submodule below our git folder.
pub fn make_module(
    into: BorrowedFd<'_>,
    place: &str,
    owner: Option<(u32, u32)>,
) -> io::Result<OwnedFd> {
    Writer { into, owner }.folder(place)
}

/// Adds paths of the worktree to what git takes no notice of, unless it knows them.
pub fn exclude<'a>(
    into: BorrowedFd<'_>,
    paths: impl Iterator<Item = &'a Path>,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    let patterns: Vec<u8> = paths.filter_map(pattern).flatten().collect();
    if patterns.is_empty() {
        return Ok(());
    }
    let writer = Writer { into, owner };
    let folder = writer.folder("info")?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let mut file = File::from(handle::open(&folder, "exclude", flags)?);
    // The last line of the host's may have no end.
    file.write_all(b"\n")?;
    file.write_all(&patterns)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    writer.give(&file)
}

/// A line that matches this path only. No line can say a path with line breaks.
fn pattern(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.iter().any(|byte| b"\r\n".contains(byte)) {
        return None;
    }
    let mut line = b"/".to_vec();
    for byte in bytes {
        if b"\\*?[ ".contains(byte) {
            line.push(b'\\');
        }
        line.push(*byte);
    }
    line.push(b'\n');
    Some(line)
}

/// The place of a folder of the host's objects in our git folder.
pub fn lent(number: usize) -> String {
    match number {
        0 => LENT.to_owned(),
        number => format!("{LENT}-{number}"),
    }
}

struct Writer<'a> {
    into: BorrowedFd<'a>,
    owner: Option<(u32, u32)>,
}

impl Writer<'_> {
    fn give(&self, file: impl AsFd) -> io::Result<()> {
        match self.owner {
            Some((user, group)) => Ok(rustix::fs::fchown(
                file,
                Some(Uid::from_raw(user)),
                Some(Gid::from_raw(group)),
            )?),
            None => Ok(()),
        }
    }

    fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        let mut folder = handle::open(self.into, ".", FOLDER)?;
        for part in Path::new(path).components() {
            let Component::Normal(part) = part else {
                return Err(io::Error::other("not a plain path"));
            };
            folder = handle::make_folder(&folder, part, Mode::from_raw_mode(0o755))?;
            self.give(&folder)?;
        }
        Ok(folder)
    }

    fn file(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.folder(folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = File::from(handle::open(&folder, name, flags)?);
        file.write_all(bytes)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        self.give(&file)
    }
}

fn read_config(folders: &GitFolders) -> Result<Config, GitError> {
    let text = handle::read(&folders.common, "config", MOST_FILE).map_err(failed("read config"))?;
    let mut config = Config::parse(&text.unwrap_or_default());
    if config.is_on("extensions", "worktreeconfig") {
        let more = handle::read(&folders.git, "config.worktree", MOST_FILE);
        let more = more
            .map_err(failed("read config.worktree"))?
            .unwrap_or_default();
        config.entries.extend(Config::parse(&more).entries);
    }
    Ok(config)
}

/// Which hash the repository uses, if it is one whose files mean what they seem to.
fn check_config(config: &Config) -> Result<ObjectFormat, GitError> {
    if config.is_on("core", "bare") {
        return Err(unsupported("it is a bare repository"));
    }
    let promises = |entry: &crate::config::Entry| {
        entry.section == "remote"
            && ["promisor", "partialclonefilter"].contains(&entry.key.as_str())
    };
    if config.entries.iter().any(promises) {
        return Err(unsupported("it is a partial clone"));
    }
    if let Some(other) = config
        .keys("extensions")
        .find(|key| !EXTENSIONS.contains(key))
    {
        let other = crate::escape(other);
        return Err(unsupported(format!("it has the extension `{other}`")));
    }
    match config.last("extensions", "objectformat") {
        None | Some("sha1") => Ok(ObjectFormat::Sha1),
        Some("sha256") => Ok(ObjectFormat::Sha256),
        Some(_) => Err(unsupported("its objects have an unknown format")),
    }
}

fn config_inside(config: &Config, identity: &Config, format: ObjectFormat) -> String {
    let mut inside = identity.identity();
    let kept = config.filtered().entries.into_iter();
    // Written by us: the version goes with the one extension that is left.
    let ours = |section: &str, key: &str| {
        section == "extensions" || (section, key) == ("core", "repositoryformatversion")
    };
    inside
        .entries
        .extend(kept.filter(|entry| !ours(&entry.section, &entry.key)));
    let version = match format {
        ObjectFormat::Sha1 => "[core]\n\trepositoryformatversion = 0\n\tbare = false\n".to_owned(),
        ObjectFormat::Sha256 => format!(
            "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectFormat = {}\n",
            format.name()
        ),
    };
    version + &inside.text()
}

/// The folders that hold objects. Root shows none but the owner's: he must not lend what is not his.
fn objects(folders: &GitFolders, owner: u32) -> Result<Vec<ObjectFolder>, GitError> {
    let may_show = |user: u32| user == owner || !rustix::process::geteuid().is_root();
    let path = folders.path.join("objects");
    let open = handle::open(&folders.common, "objects", FOLDER).map_err(failed("open objects"))?;
    let found = rustix::fs::fstat(&open).map_err(|error| failed("open objects")(error.into()))?;
    if !may_show(found.st_uid) {
        return Err(unsupported("its objects are somebody else's"));
    }
    let own = ObjectFolder {
        path: path.clone(),
        device: found.st_dev,
        inode: found.st_ino,
    };
    let text = handle::read(&open, "info/alternates", MOST_FILE);
    let text = text.map_err(failed("read alternates"))?.unwrap_or_default();
    let other = |line: &[u8]| {
        let path = fs::canonicalize(path.join(OsStr::from_bytes(line))).ok()?;
        let found = fs::symlink_metadata(&path).ok()?;
        let (device, inode) = (found.dev(), found.ino());
        (found.is_dir() && may_show(found.uid())).then_some(ObjectFolder {
            path,
            device,
            inode,
        })
    };
    let others = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .filter_map(other)
        .take(MOST_ALTERNATES);
    Ok(std::iter::once(own).chain(others).collect())
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
