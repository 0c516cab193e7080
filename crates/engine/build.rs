//! Gives the engine a name for the sources that it is built from: programs that are built apart from each other and
//! attack or measure the same engine compare it.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

/// The engine and everything below it.
const CRATES: [&str; 10] = [
    "doors", "engine", "fs", "git", "image", "init", "journal", "sandbox", "spec", "store",
];

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for name in CRATES {
        let folder = Path::new("..").join(name).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        list(&folder, &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file)?.hash(&mut hasher);
    }
    println!("cargo::rustc-env=AIRLOCK_SOURCES={:016x}", hasher.finish());
    Ok(())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
