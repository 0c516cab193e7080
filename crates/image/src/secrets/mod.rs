//! Looks for credentials in an unpacked image: files that usually hold them, keys in small files, variables and labels.
//!
//! The tree is a stranger's: it is walked by handles, no link is followed, nothing that is not a plain file is opened,
//! and every count has a bound. What was found is named by its place, never shown.

mod patterns;

use crate::contract::{Line, Outcome};
use ::fs::{Dir, Walk, WalkBounds, WalkEntry, WalkError};
use rustix::fs::FileType;
use spec::ImageConfig;
use std::io;

/// Deeper folders are not looked into, and named.
const DEEPEST: usize = 48;
/// More entries are not looked at.
const MOST_ENTRIES: usize = 4_000_000;
/// A file above this is no key file.
const LARGEST_READ: u64 = 256 * 1024;
/// All that is read, together.
const MOST_READ: u64 = 128 * 1024 * 1024;
/// So many places are named.
const MOST_FOUND: usize = 8;
/// What packages bring lies here: examples and test keys, not an owner's. Well-known names are looked for all the same.
const OF_PACKAGES: [&str; 6] = ["usr", "lib", "lib64", "bin", "sbin", "opt"];

/// What was found, and what kept the search from being complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Places and why, at most a few.
    pub found: Vec<String>,
    /// How many there are in all.
    pub count: u64,
    /// Bounds that were hit, and what could not be read.
    pub incomplete: Vec<String>,
    /// What we may not read.
    unread: u64,
    entries: u64,
    read: u64,
}

impl Search {
    /// Looks through the tree below a folder.
    pub fn tree(root: &Dir) -> io::Result<Search> {
        let mut search = Search::default();
        let bounds = WalkBounds {
            entries: MOST_ENTRIES,
            depth: DEEPEST + 1,
            ..WalkBounds::default()
        };
        let mut walk = root.walk(bounds)?;
        while let Some(found) = walk.next() {
            search.look(&walk, found);
        }
        Ok(search)
    }

    /// Looks at what an image says about itself.
    pub fn config(&mut self, config: &ImageConfig) {
        for (name, value) in config.env.iter().filter_map(|text| text.split_once('=')) {
            if patterns::is_suspicious_variable(name, value) {
                self.found(
                    &format!("variable {name}"),
                    "its name is that of a credential",
                );
            } else if let Some(kind) = patterns::key_in(value.as_bytes()) {
                self.found(&format!("variable {name}"), kind);
            }
        }
        for (name, value) in &config.labels {
            if let Some(kind) = patterns::key_in(value.as_bytes()) {
                self.found(&format!("label {name}"), kind);
            }
        }
    }

    /// The line of the contract.
    pub fn line(&self) -> Line {
        let requirement = "no credentials inside".to_owned();
        let more = self.count.saturating_sub(self.found.len() as u64);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        match (self.count, self.incomplete.first()) {
            (0, None) if self.unread > 0 => {
                let mend = "check it as root, who can look at what only root of the image may read";
                let seen = format!(
                    "{} looked at, {} could not be read",
                    self.entries, self.unread
                );
                Line {
                    requirement,
                    outcome: Outcome::Warn,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
            (0, None) => {
                let seen = format!("{} files and folders looked at", self.entries);
                Line {
                    requirement,
                    outcome: Outcome::Pass,
                    seen,
                    mend: None,
                }
            }
            (0, Some(bound)) => {
                let mend = "make the image smaller, or its files readable, so that all of it can be looked at";
                let seen = format!("not all could be looked at: {bound}");
                Line {
                    requirement,
                    outcome: Outcome::Fail,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
            (_, _) => {
                let mend = "build the image without it (a later layer only hides it), and give it to runs instead";
                let seen = format!("{}{more}", self.found.join(", "));
                Line {
                    requirement,
                    outcome: Outcome::Fail,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
        }
    }

    fn found(&mut self, place: &str, why: &str) {
        self.count += 1;
        if self.found.len() < MOST_FOUND {
            self.found.push(format!("{place} ({why})"));
        }
    }

    fn bound(&mut self, what: String) {
        if self.incomplete.len() < MOST_FOUND {
            self.incomplete.push(what);
        }
    }

    /// An image of an ordinary user's store gives nobody what only root of the image had; inside it cannot be read either.
    fn failed(&mut self, path: &str, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.unread += 1,
            _ => self.bound(format!("/{path}: {error}")),
        }
    }

    fn look(&mut self, walk: &Walk, found: Result<WalkEntry, WalkError>) {
        match found {
            Ok(entry) => {
                self.entries += 1;
                if entry.kind() == FileType::RegularFile && entry.stat.st_size > 0 {
                    self.file(walk, &entry);
                }
            }
            Err(WalkError::TooMany { limit, .. }) => {
                self.bound(format!("there are more than {limit} files and folders"));
            }
            Err(WalkError::TooDeep { path, .. }) => {
                let path = path.to_string_lossy();
                self.bound(format!("/{path} is deeper than {DEEPEST} folders"));
            }
            Err(WalkError::Read { path, source }) => self.failed(&path.to_string_lossy(), &source),
        }
    }

    fn file(&mut self, walk: &Walk, entry: &WalkEntry) {
        let path = &*entry.path.to_string_lossy();
        let size = u64::try_from(entry.stat.st_size).unwrap_or(u64::MAX);
        let known = patterns::file(path);
        if known == patterns::File::Secret {
            return self.found(&format!("/{path}"), "its name is that of a credential");
        }
        let of_packages = path
            .split('/')
            .next()
            .is_some_and(|top| OF_PACKAGES.contains(&top));
        let of_no_use = known == patterns::File::Plain || patterns::is_for_show(path);
        if size > LARGEST_READ || (of_packages && of_no_use) {
            return;
        }
        if self.read.saturating_add(size) > MOST_READ {
            return self.bound(format!("small files hold more than {MOST_READ} bytes"));
        }
        let bytes = match read(walk, entry) {
            Ok(bytes) => bytes,
            Err(error) => return self.failed(path, &error),
        };
        self.read += bytes.len() as u64;
        match (known, patterns::key_in(&bytes)) {
            (_, Some(kind)) => self.found(&format!("/{path}"), kind),
            (patterns::File::Holds(words), None) if patterns::contains(&bytes, words) => {
                self.found(&format!("/{path}"), words);
            }
            (_, None) => {}
        }
    }
}

/// Never waits: what looked like a plain file a moment ago may be a pipe by now.
fn read(walk: &Walk, entry: &WalkEntry) -> io::Result<Vec<u8>> {
    let file = walk.parent()?.read_file(entry.name())?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, LARGEST_READ), &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
