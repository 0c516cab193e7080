//! The image of the rows that have one: of this host the command's program and what it is linked with, where the host
//! has them. So a run with the image and one without do the same, and everybody starts from the same archive.

use super::{Reason, Root, fresh_folder};
use crate::runs::{
    Options,
    archive::{self, NAME},
};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What answers a line, where somebody has to.
pub(crate) const ANSWERS: &str = "/usr/bin/cat";

/// Makes the archive, with the program of this command in it.
pub(crate) fn make(command: &[OsString], options: &Options) -> Result<PathBuf, Reason> {
    let (folder, tree) = (
        fresh_folder(options, "image")?,
        fresh_folder(options, "tree")?,
    );
    let failed = |error: io::Error| format!("cannot make an image: {error}");
    Root::of_host().make(&tree).map_err(failed)?;
    // Every backend needs a place for it, and some cannot make one.
    fs::create_dir(tree.join("workspace")).map_err(failed)?;
    let programs = [
        command.first().map_or(OsStr::new(""), OsString::as_os_str),
        OsStr::new(ANSWERS),
    ];
    for file in programs
        .map(|program| files_of(Path::new(program)))
        .concat()
    {
        copy(&file, &tree).map_err(|error| format!("cannot copy `{}`: {error}", file.display()))?;
    }
    archive::layer_of(&tree, &folder)
        .and_then(|digest| archive::save(&folder, &digest))
        .map_err(failed)
}

/// Has our program load it, as anybody would, into this state folder.
pub(crate) fn load(archive: &Path, state: &Path, options: &Options) -> Result<(), Reason> {
    let mut load = Command::new(&options.airlock);
    load.arg("--state")
        .arg(state)
        .args(["image", "load", "--name", NAME])
        .arg(archive);
    let told = load
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot load: {error}"))?;
    match told.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&told.stderr);
            Err(text
                .lines()
                .next()
                .unwrap_or("the image was not loaded")
                .to_owned())
        }
    }
}

/// A program and what it is linked with; one that is not linked has nothing more.
fn files_of(program: &Path) -> Vec<PathBuf> {
    let told = Command::new("ldd")
        .arg(program)
        .stdin(Stdio::null())
        .output();
    let text = told
        .map(|told| String::from_utf8_lossy(&told.stdout).into_owned())
        .unwrap_or_default();
    let mut files = BTreeSet::from([program.to_owned()]);
    files.extend(
        text.split_whitespace()
            .filter(|word| word.starts_with('/'))
            .map(PathBuf::from),
    );
    // Its first line may be the program's own name.
    files.into_iter().filter(|file| file.is_file()).collect()
}

/// To where the host has it; the links of its root lead there.
fn copy(file: &Path, tree: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Ok(());
    };
    let folder = tree.join(
        fs::canonicalize(folder)?
            .strip_prefix("/")
            .map_err(io::Error::other)?,
    );
    fs::create_dir_all(&folder)?;
    fs::copy(file, folder.join(name)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_what_it_is_linked_with() {
        let files = files_of(Path::new("/bin/true"));
        assert!(files.contains(&PathBuf::from("/bin/true")), "{files:?}");
        assert!(
            files
                .iter()
                .any(|file| file.to_string_lossy().contains("libc.so")),
            "{files:?}"
        );
        assert_eq!(
            files_of(Path::new("/no/such/program")),
            Vec::<PathBuf>::new()
        );
    }
}
