//! Applies a unified diff to a workspace atomically: the result is computed in memory, then every
//! file is written unnamed, and the files get their names once all of them are written.

use super::{
    diff::{self, FileOperation, FilePatch, MAX_FILE_BYTES},
    files::{FileStepError, check_path, step_error},
};
use crate::tree::{EntryKind, Tree, TreeError, Upload};
use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

/// The most bytes of all files of a diff.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// Contents and mode of a file; none if it does not exist.
type Content = Option<(Vec<u8>, u32)>;

struct PatchDraft<'a> {
    tree: &'a Tree,
    /// The old and the new contents.
    files: BTreeMap<PathBuf, (Content, Content)>,
    bytes: usize,
}

pub(super) fn apply(tree: &Tree, text: &str) -> Result<String, FileStepError> {
    let changes = diff::parse(text).map_err(|bad| bad.to_string())?;
    // Paths first: a diff that leaves the workspace is refused for that.
    for path in changes.iter().flat_map(|change| change.what.paths()) {
        check_path(path)?;
    }
    let mut draft = PatchDraft {
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

impl FileOperation {
    fn paths(&self) -> Vec<&str> {
        match self {
            FileOperation::Modify(path)
            | FileOperation::Create(path)
            | FileOperation::Delete(path) => vec![path],
            FileOperation::Rename { from, to } | FileOperation::Copy { from, to } => vec![from, to],
        }
    }
}

impl PatchDraft<'_> {
    /// Computes the change of one file; returns its line of output.
    fn change(&mut self, change: &FilePatch<'_>) -> Result<String, FileStepError> {
        let line = match &change.what {
            FileOperation::Modify(path) => {
                let (old, mode) = self.existing(path)?;
                self.put(path, &old, mode, change)?;
                format!("changed {path}\n")
            }
            FileOperation::Create(path) => {
                self.check_absent(path)?;
                self.put(path, &[], 0o644, change)?;
                format!("created {path}\n")
            }
            FileOperation::Delete(path) => {
                let (old, _) = self.existing(path)?;
                let left =
                    diff::apply(&old, &change.hunks).map_err(|bad| format!("`{path}`: {bad}"))?;
                if !left.is_empty() {
                    return Err(format!("`{path}` has more in it than the diff deletes").into());
                }
                self.set(path, None)?;
                format!("deleted {path}\n")
            }
            FileOperation::Rename { from, to } => {
                let (old, mode) = self.existing(from)?;
                self.check_absent(to)?;
                self.set(from, None)?;
                self.put(to, &old, mode, change)?;
                format!("renamed {from} to {to}\n")
            }
            FileOperation::Copy { from, to } => {
                let (old, mode) = self.existing(from)?;
                self.check_absent(to)?;
                self.put(to, &old, mode, change)?;
                format!("copied {from} to {to}\n")
            }
        };
        Ok(line)
    }

    fn put(
        &mut self,
        path: &str,
        old: &[u8],
        mode: u32,
        change: &FilePatch<'_>,
    ) -> Result<(), FileStepError> {
        let new = diff::apply(old, &change.hunks).map_err(|bad| format!("`{path}`: {bad}"))?;
        let mode = match change.executable {
            Some(true) => mode | 0o111,
            Some(false) => mode & !0o111,
            None => mode,
        };
        self.set(path, Some((new, mode)))
    }

    fn set(&mut self, path: &str, content: Content) -> Result<(), FileStepError> {
        self.bytes += content.as_ref().map_or(0, |(bytes, _)| bytes.len());
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(format!(
                "the files of the diff have more than {MAX_TOTAL_BYTES} bytes together"
            )
            .into());
        }
        self.load(path)?.1 = content;
        Ok(())
    }

    fn existing(&mut self, path: &str) -> Result<(Vec<u8>, u32), FileStepError> {
        self.load(path)?
            .1
            .clone()
            .ok_or_else(|| format!("there is no `{}`", path.escape_debug()).into())
    }

    fn check_absent(&mut self, path: &str) -> Result<(), FileStepError> {
        match self.load(path)?.1 {
            None => Ok(()),
            Some(_) => Err(format!("`{}` is there already", path.escape_debug()).into()),
        }
    }

    /// The old and new contents of a file, which is read once.
    fn load(&mut self, path: &str) -> Result<&mut (Content, Content), FileStepError> {
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

    fn write(self) -> Result<(), FileStepError> {
        let words = |error: TreeError| step_error(&error);
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
            done.iter().for_each(|path| self.restore(path));
            let FileStepError { why, outside } = step_error(&error);
            FileStepError {
                why: format!("{why}; what was changed before is as it was"),
                outside,
            }
        })
    }

    /// Restores a file after a full disk or a concurrent change, as far as possible.
    fn restore(&self, path: &Path) {
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

fn read(tree: &Tree, path: &Path) -> Result<Content, FileStepError> {
    match tree.stat(path) {
        // A folder on the way is missing too, or is not a folder.
        Err(TreeError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(step_error(&error)),
        Ok(found) if found.kind == EntryKind::Link => {
            return Err(super::files::link_error(&path.to_string_lossy()));
        }
        Ok(_) => {}
    }
    let (file, entry) = tree.open(path).map_err(|error| step_error(&error))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("`{}` cannot be read: {error}", path.display()))?;
    if bytes.len() > MAX_FILE_BYTES {
        Err(format!("`{}` has more than {MAX_FILE_BYTES} bytes", path.display()).into())
    } else {
        Ok(Some((bytes, entry.mode & 0o777)))
    }
}
