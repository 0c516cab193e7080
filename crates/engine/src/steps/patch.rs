//! Applies a diff to a workspace: all of it or nothing. Everything is worked out in memory first; then every file is written
//! without a name, and only when all of them are there do they get their names.

use super::{
    diff::{self, Change, LARGEST_FILE, What},
    files::{Wrong, checked, told},
};
use crate::tree::{EntryKind, Tree, TreeError, Upload};
use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

/// What all files of a diff may have together.
const MOST_BYTES: usize = 64 << 20;

/// A file as it is, or is to be; none if there is none.
type Content = Option<(Vec<u8>, u32)>;

struct Draft<'a> {
    tree: &'a Tree,
    /// As they were found, and as they are to be.
    files: BTreeMap<PathBuf, (Content, Content)>,
    bytes: usize,
}

pub(super) fn apply(tree: &Tree, text: &str) -> Result<String, Wrong> {
    let changes = diff::parse(text).map_err(|bad| bad.to_string())?;
    // Names first: of a diff that would leave the workspace, nothing else is of interest.
    for path in changes.iter().flat_map(|change| change.what.paths()) {
        checked(path)?;
    }
    let mut draft = Draft {
        tree,
        files: BTreeMap::new(),
        bytes: 0,
    };
    let lines = changes
        .iter()
        .map(|change| draft.change(change))
        .collect::<Result<Vec<_>, _>>()?;
    draft.write()?;
    Ok(lines.concat())
}

impl What {
    fn paths(&self) -> Vec<&str> {
        match self {
            What::Modify(path) | What::Create(path) | What::Delete(path) => vec![path],
            What::Rename { from, to } | What::Copy { from, to } => vec![from, to],
        }
    }
}

impl Draft<'_> {
    /// Works out what becomes of one file; says so on one line.
    fn change(&mut self, change: &Change<'_>) -> Result<String, Wrong> {
        let line = match &change.what {
            What::Modify(path) => {
                let (old, mode) = self.there(path)?;
                self.put(path, &old, mode, change)?;
                format!("changed {path}\n")
            }
            What::Create(path) => {
                self.not_there(path)?;
                self.put(path, &[], 0o644, change)?;
                format!("created {path}\n")
            }
            What::Delete(path) => {
                let (old, _) = self.there(path)?;
                let left =
                    diff::apply(&old, &change.hunks).map_err(|bad| format!("`{path}`: {bad}"))?;
                if !left.is_empty() {
                    return Err(format!("`{path}` has more in it than the diff deletes").into());
                }
                self.set(path, None)?;
                format!("deleted {path}\n")
            }
            What::Rename { from, to } => {
                let (old, mode) = self.there(from)?;
                self.not_there(to)?;
                self.set(from, None)?;
                self.put(to, &old, mode, change)?;
                format!("renamed {from} to {to}\n")
            }
            What::Copy { from, to } => {
                let (old, mode) = self.there(from)?;
                self.not_there(to)?;
                self.put(to, &old, mode, change)?;
                format!("copied {from} to {to}\n")
            }
        };
        Ok(line)
    }

    fn put(&mut self, path: &str, old: &[u8], mode: u32, change: &Change<'_>) -> Result<(), Wrong> {
        let new = diff::apply(old, &change.hunks).map_err(|bad| format!("`{path}`: {bad}"))?;
        let mode = match change.executable {
            Some(true) => mode | 0o111,
            Some(false) => mode & !0o111,
            None => mode,
        };
        self.set(path, Some((new, mode)))
    }

    fn set(&mut self, path: &str, content: Content) -> Result<(), Wrong> {
        self.bytes += content.as_ref().map_or(0, |(bytes, _)| bytes.len());
        if self.bytes > MOST_BYTES {
            return Err(format!(
                "the files of the diff have more than {MOST_BYTES} bytes together"
            )
            .into());
        }
        self.look(path)?.1 = content;
        Ok(())
    }

    fn there(&mut self, path: &str) -> Result<(Vec<u8>, u32), Wrong> {
        self.look(path)?
            .1
            .clone()
            .ok_or_else(|| format!("there is no `{}`", path.escape_debug()).into())
    }

    fn not_there(&mut self, path: &str) -> Result<(), Wrong> {
        match self.look(path)?.1 {
            None => Ok(()),
            Some(_) => Err(format!("`{}` is there already", path.escape_debug()).into()),
        }
    }

    /// A file as it is to be by now. Read once.
    fn look(&mut self, path: &str) -> Result<&mut (Content, Content), Wrong> {
        let clean: PathBuf = Path::new(path)
            .strip_prefix(spec::WORKSPACE)
            .unwrap_or(Path::new(path))
            .components()
            .collect();
        if !self.files.contains_key(&clean) {
            let found = read(self.tree, &clean)?;
            self.bytes += found.as_ref().map_or(0, |(bytes, _)| bytes.len());
            self.files.insert(clean.clone(), (found.clone(), found));
        }
        self.files
            .get_mut(&clean)
            .ok_or_else(|| "a file is lost".to_owned().into())
    }

    fn write(self) -> Result<(), Wrong> {
        let words = |error: TreeError| told(&error);
        let changed: Vec<_> = self
            .files
            .iter()
            .filter(|(_, (old, new))| old != new)
            .collect();
        let mut uploads = Vec::new();
        for (path, (_, new)) in &changed {
            if let Some(content) = new {
                uploads.push((*path, stage(self.tree, path, content).map_err(words)?));
            }
        }
        let mut done = Vec::new();
        let published = uploads.into_iter().try_for_each(|(path, upload)| {
            upload.publish()?;
            done.push(path);
            Ok(())
        });
        let gone = changed.iter().filter(|(_, (_, new))| new.is_none());
        let removed = published.and_then(|()| {
            gone.into_iter().try_for_each(|(path, _)| {
                self.tree.remove(path, false)?;
                done.push(path);
                Ok(())
            })
        });
        removed.map_err(|error| {
            done.iter().for_each(|path| self.put_back(path));
            let Wrong { why, outside } = told(&error);
            Wrong {
                why: format!("{why}; what was changed before is as it was"),
                outside,
            }
        })
    }

    /// After a disk that is full, or a program inside that changes files meanwhile: as well as it can be done.
    fn put_back(&self, path: &Path) {
        let old = self.files.get(path).and_then(|(old, _)| old.as_ref());
        _ = match old {
            Some(content) => stage(self.tree, path, content)
                .and_then(Upload::publish)
                .map(drop),
            None => self.tree.remove(path, false),
        };
    }
}

fn stage(tree: &Tree, path: &Path, (bytes, mode): &(Vec<u8>, u32)) -> Result<Upload, TreeError> {
    let mut upload = tree.put(path, true)?;
    upload.set_mode(*mode);
    upload.write(bytes)?;
    Ok(upload)
}

fn read(tree: &Tree, path: &Path) -> Result<Content, Wrong> {
    match tree.stat(path) {
        // A folder on the way is missing, too, or is none.
        Err(TreeError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(told(&error)),
        Ok(found) if found.kind == EntryKind::Link => {
            return Err(super::files::by_link(&path.to_string_lossy()));
        }
        Ok(_) => {}
    }
    let (file, entry) = tree.open(path).map_err(|error| told(&error))?;
    let mut bytes = Vec::new();
    let read = file.take(LARGEST_FILE as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("`{}` cannot be read: {error}", path.display()))?;
    match bytes.len() > LARGEST_FILE {
        true => Err(format!("`{}` has more than {LARGEST_FILE} bytes", path.display()).into()),
        false => Ok(Some((bytes, entry.mode & 0o777))),
    }
}
