//! The Rust sources of the repository, for tests of its shape.

use crate::repository;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every Rust file below these folders, relative to the repository.
pub fn rust_files(folders: &[&str]) -> Vec<PathBuf> {
    let root = repository();
    let mut left: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut found = Vec::new();
    while let Some(folder) = left.pop() {
        let entries = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("cannot list `{}`: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("it can be listed").path()) {
            if path.is_dir() && !path.ends_with("target") {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(
                    path.strip_prefix(&root)
                        .expect("it is below the root")
                        .to_owned(),
                );
            }
        }
    }
    found
}

/// The text of a file of the repository.
pub fn read(path: &Path) -> String {
    fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("cannot read `{}`: {error}", path.display()))
}
