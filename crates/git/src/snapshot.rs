//! The shadow of a host's git folder: the same history, index and identity, without hooks and
//! settings that git obeys. The objects stay on the host and are mounted read-only, named by
//! `objects/info/alternates`.

use crate::{
    Config, GitError, Head, ObjectFormat, ObjectId, RefMap, failed,
    openat::{self, READ_DIR},
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

/// The mount point of the host's objects in the shadow; further folders have a number behind it.
pub const HOST_OBJECTS: &str = "airlock-host-objects";
/// Bytes of an index.
pub(crate) const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Bytes of any other file.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Folders in `alternates` of the host's repository.
const MAX_ALTERNATES: usize = 16;
/// Submodules that are read.
const MAX_MODULES: usize = 64;
/// Parts of a submodule's name.
const MAX_MODULE_DEPTH: usize = 4;
/// Files that are copied unchanged, with the largest size of each.
const COPIED_FILES: [(&str, u64); 4] = [
    ("index", MAX_INDEX_BYTES),
    ("shallow", MAX_FILE_BYTES),
    ("info/exclude", MAX_FILE_BYTES),
    ("info/sparse-checkout", MAX_FILE_BYTES),
];
/// Extensions of a repository that this parser understands or may ignore.
const SUPPORTED_EXTENSIONS: [&str; 5] = [
    "objectformat",
    "worktreeconfig",
    "noop",
    "preciousobjects",
    "relativeworktrees",
];

/// The folders of a repository on the host.
#[derive(Debug)]
pub struct GitFolders {
    /// The folder with `HEAD` and the index.
    pub git: OwnedFd,
    /// The folder with configuration, references and objects; the same folder without linked
    /// worktrees.
    pub common: OwnedFd,
    /// The path of `common`.
    pub path: PathBuf,
    /// The path of `git`.
    pub git_path: PathBuf,
}

/// The parts of a repository that the program gets.
#[derive(Debug)]
pub struct Snapshot {
    /// The hash of its objects.
    pub format: ObjectFormat,
    /// `HEAD` at the time of the snapshot.
    pub head: Head,
    /// The references at the time of the snapshot.
    pub refs: RefMap,
    /// The file `shallow`: commits whose parents are absent.
    pub shallow: Option<Vec<u8>>,
    /// Folders of objects on the host, the repository's own first.
    pub objects: Vec<ObjectFolder>,
    /// Settings that an import needs.
    pub settings: RepositorySettings,
    files: Vec<(String, Vec<u8>)>,
}

/// Settings of a repository that an import needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepositorySettings {
    /// The committer as in a reflog: a name, and an address in brackets.
    pub who: String,
    /// Whether missing reflogs are created.
    pub begins_logs: bool,
    /// Whether the patterns of a sparse checkout are folders; none without `core.sparseCheckout`.
    pub sparse: Option<bool>,
    /// The names of remotes.
    pub remotes: Vec<String>,
    /// The worktree of a submodule, relative to the git folder.
    pub worktree: Option<PathBuf>,
}

impl RepositorySettings {
    fn of(config: &Config, identity: &Config) -> RepositorySettings {
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
        RepositorySettings {
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
    /// Its path.
    pub path: PathBuf,
    /// The device that it must have: a user who can write the parent folder could replace it.
    pub device: u64,
    /// The inode that it must have.
    pub inode: u64,
}

/// The entry `.git` of a workspace.
#[derive(Debug)]
pub enum DotGit {
    /// Absent, or not a repository.
    Absent,
    /// The git folder of the repository.
    Folder(GitFolders),
    /// A file that names it: a linked worktree, or a submodule.
    File(GitFolders),
}

impl DotGit {
    /// Finds the repository of a workspace. A git folder outside the workspace must belong to
    /// `owner`, because a file in the workspace names it.
    pub fn find(workspace: BorrowedFd<'_>, path: &Path, owner: u32) -> Result<DotGit, GitError> {
        let common = match openat::open(workspace, ".git", READ_DIR) {
            Ok(folder) => folder,
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(DotGit::Absent),
            Err(_) => return find_by_file(workspace, path, owner),
        };
        // Git takes a folder for a repository only with all three of them.
        let is_there = |name: &&str| openat::open(&common, name, OFlags::PATH).is_ok();
        if !["HEAD", "objects", "refs"].iter().all(is_there) {
            return Ok(DotGit::Absent);
        }
        if openat::open(&common, "commondir", OFlags::PATH).is_ok() {
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

/// Finds the repository that a file `.git` names. The git folder must refer back to the workspace:
/// otherwise the writer of the file could choose any repository.
fn find_by_file(workspace: BorrowedFd<'_>, path: &Path, owner: u32) -> Result<DotGit, GitError> {
    let text = openat::read(workspace, ".git", MAX_FILE_BYTES).map_err(failed("read .git"))?;
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
    let linked = openat::read(&git, "gitdir", MAX_FILE_BYTES).map_err(failed("read gitdir"))?;
    let commondir =
        openat::read(&git, "commondir", MAX_FILE_BYTES).map_err(failed("read commondir"))?;
    let (common, common_path) = match (linked.and_then(back), commondir) {
        (Some(place), Some(common)) if leads_back(place.clone()) => {
            open_outside(&git_path.join(line(&common)), owner)?
        }
        (None, None) => {
            let config =
                openat::read(&git, "config", MAX_FILE_BYTES).map_err(failed("read config"))?;
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

/// The path in the first line of a file, as git reads it.
fn line(text: &[u8]) -> &Path {
    let end = text
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(text.len());
    Path::new(OsStr::from_bytes(&text[..end]))
}

/// Opens a folder by its real path, without links, and checks its owner on the handle.
fn open_outside(path: &Path, owner: u32) -> Result<(OwnedFd, PathBuf), GitError> {
    let what = || failed("open the repository that .git names");
    let real = fs::canonicalize(path).map_err(what())?;
    let flags = READ_DIR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let folder = rustix::fs::openat2(rustix::fs::CWD, &real, flags, Mode::empty(), resolve);
    let folder = folder.map_err(|error| what()(error.into()))?;
    let found = rustix::fs::fstat(&folder).map_err(|error| what()(error.into()))?;
    if found.st_uid != owner {
        return Err(unsupported(
            "the repository that .git names is somebody else's",
        ));
    }
    Ok((folder, real))
}

impl GitFolders {
    /// Populated submodules, by the path of their git folder below this one.
    pub fn modules(&self) -> Vec<(String, GitFolders)> {
        let mut found = Vec::new();
        if let Ok(folder) = openat::open(&self.common, "modules", READ_DIR) {
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
        for name in openat::names(folder).unwrap_or_default() {
            let (Some(name), true) = (name.to_str(), found.len() < MAX_MODULES) else {
                continue;
            };
            let Ok(module) = openat::open(folder, name, READ_DIR) else {
                continue;
            };
            let place = format!("{above}/{name}");
            if openat::open(&module, "HEAD", OFlags::PATH).is_err() {
                if depth < MAX_MODULE_DEPTH {
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
    /// Reads a repository. `identity` names the committer where the repository does not.
    pub fn read(folders: &GitFolders, identity: &Config, owner: u32) -> Result<Snapshot, GitError> {
        let config = read_config(folders)?;
        let format = check_config(&config)?;
        if openat::open(&folders.common, "reftable", OFlags::PATH).is_ok() {
            return Err(unsupported("its references are a reftable"));
        }
        let head = refs::read_head(folders.git.as_fd(), format)?;
        let refs = RefMap::read(folders.common.as_fd(), format)?;
        let mut files = Vec::new();
        for (name, most) in COPIED_FILES {
            // Excludes and the shallow file are common to all worktrees.
            let from = match name {
                "shallow" | "info/exclude" => &folders.common,
                _ => &folders.git,
            };
            let bytes = openat::read(from, name, most).map_err(failed(format!("read {name}")))?;
            files.extend(bytes.map(|bytes| (name.to_owned(), bytes)));
        }
        for name in openat::names(&folders.git).map_err(failed("list .git"))? {
            let Some(name) = name
                .to_str()
                .filter(|name| name.starts_with("sharedindex."))
            else {
                continue;
            };
            let bytes = openat::read(&folders.git, name, MAX_INDEX_BYTES)
                .map_err(failed("read the index"))?;
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
            settings: RepositorySettings::of(&config, identity),
            files,
        })
    }

    /// A file that was copied unchanged.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        let found = self.files.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| bytes.as_slice())
    }

    /// The commit of `HEAD`; none if its branch had none yet.
    pub fn commit(&self) -> Option<&ObjectId> {
        self.refs.at(&self.head)
    }

    /// Writes the shadow into an empty folder. All files will belong to `owner`.
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
            let name = host_objects_dir(number);
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

/// Creates the folder of a submodule in the shadow.
pub fn make_module(
    into: BorrowedFd<'_>,
    place: &str,
    owner: Option<(u32, u32)>,
) -> io::Result<OwnedFd> {
    Writer { into, owner }.folder(place)
}

/// Adds paths of the worktree to `info/exclude`, so that git ignores those that it does not track.
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
    let mut file = File::from(openat::open(&folder, "exclude", flags)?);
    // The last line of the host's file may lack its line break.
    file.write_all(b"\n")?;
    file.write_all(&patterns)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    writer.give(&file)
}

/// A pattern that matches this path only; none for a path with line breaks.
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

/// The mount point of a folder of the host's objects, below the git folder.
pub fn host_objects_dir(number: usize) -> String {
    if number == 0 {
        HOST_OBJECTS.to_owned()
    } else {
        format!("{HOST_OBJECTS}-{number}")
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
        let mut folder = openat::open(self.into, ".", READ_DIR)?;
        for part in Path::new(path).components() {
            let Component::Normal(part) = part else {
                return Err(io::Error::other("not a plain path"));
            };
            folder = openat::make_folder(&folder, part, Mode::from_raw_mode(0o755))?;
            self.give(&folder)?;
        }
        Ok(folder)
    }

    fn file(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.folder(folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = File::from(openat::open(&folder, name, flags)?);
        file.write_all(bytes)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        self.give(&file)
    }
}

fn read_config(folders: &GitFolders) -> Result<Config, GitError> {
    let text =
        openat::read(&folders.common, "config", MAX_FILE_BYTES).map_err(failed("read config"))?;
    let mut config = Config::parse(&text.unwrap_or_default());
    if config.is_on("extensions", "worktreeconfig") {
        let more = openat::read(&folders.git, "config.worktree", MAX_FILE_BYTES);
        let more = more
            .map_err(failed("read config.worktree"))?
            .unwrap_or_default();
        config.entries.extend(Config::parse(&more).entries);
    }
    Ok(config)
}

/// The hash of the repository, if it has no feature that changes the meaning of its files.
fn check_config(config: &Config) -> Result<ObjectFormat, GitError> {
    if config.is_on("core", "bare") {
        return Err(unsupported("it is a bare repository"));
    }
    let promises = |entry: &crate::config::ConfigEntry| {
        entry.section == "remote"
            && ["promisor", "partialclonefilter"].contains(&entry.key.as_str())
    };
    if config.entries.iter().any(promises) {
        return Err(unsupported("it is a partial clone"));
    }
    if let Some(other) = config
        .keys("extensions")
        .find(|key| !SUPPORTED_EXTENSIONS.contains(key))
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
    // Version and extensions are written anew: only `objectFormat` is left of the latter.
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

/// The folders that hold objects. If Airlock runs as root, they must belong to `owner`, who could
/// otherwise name folders that he cannot read.
fn objects(folders: &GitFolders, owner: u32) -> Result<Vec<ObjectFolder>, GitError> {
    let may_show = |user: u32| user == owner || !rustix::process::geteuid().is_root();
    let path = folders.path.join("objects");
    let open =
        openat::open(&folders.common, "objects", READ_DIR).map_err(failed("open objects"))?;
    let found = rustix::fs::fstat(&open).map_err(|error| failed("open objects")(error.into()))?;
    if !may_show(found.st_uid) {
        return Err(unsupported("its objects are somebody else's"));
    }
    let own = ObjectFolder {
        path: path.clone(),
        device: found.st_dev,
        inode: found.st_ino,
    };
    let text = openat::read(&open, "info/alternates", MAX_FILE_BYTES);
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
        .take(MAX_ALTERNATES);
    Ok(std::iter::once(own).chain(others).collect())
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
