//! Scans an unpacked image for credentials: well-known files, keys in small files, variables and
//! labels.
//!
//! The tree is untrusted: it is walked by handles, symbolic links are not followed, only regular
//! files are opened, and every count has a limit. Reports contain the location of a finding, never
//! its value.

mod patterns;

use crate::contract::{RequirementOutcome, RequirementResult};
use ::fs::{Dir, Walk, WalkBounds, WalkEntry, WalkError};
use rustix::fs::FileType;
use spec::ImageConfig;
use std::io;

/// Maximum depth; deeper folders are reported.
const MAX_DEPTH: usize = 48;
/// Maximum entries.
const MAX_ENTRIES: usize = 4_000_000;
/// Maximum size of a file that is read; larger ones are no key files.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Maximum bytes read in all.
const MAX_READ_BYTES: u64 = 128 * 1024 * 1024;
/// Maximum findings reported.
const MAX_FINDINGS: usize = 8;
/// Folders installed by packages: keys there are examples, not the owner's. Well-known credential
/// files are reported all the same.
const PACKAGE_FOLDERS: [&str; 6] = ["usr", "lib", "lib64", "bin", "sbin", "opt"];

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialScan {
    /// Locations and reasons of the first findings.
    pub found: Vec<String>,
    /// Number of findings.
    pub count: u64,
    /// Limits that were reached, and read errors.
    pub incomplete: Vec<String>,
    /// Files that this user may not read.
    unread: u64,
    entries: u64,
    read: u64,
}

impl CredentialScan {
    /// Scans the tree below a folder.
    pub fn tree(root: &Dir) -> io::Result<CredentialScan> {
        let mut search = CredentialScan::default();
        let bounds = WalkBounds {
            entries: MAX_ENTRIES,
            depth: MAX_DEPTH + 1,
            ..WalkBounds::default()
        };
        let mut walk = root.walk(bounds)?;
        while let Some(found) = walk.next() {
            search.look(&walk, found);
        }
        Ok(search)
    }

    /// Scans the configuration of an image.
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

    /// The result as a requirement of the contract.
    pub fn line(&self) -> RequirementResult {
        let requirement = "no credentials inside".to_owned();
        let more = self.count.saturating_sub(self.found.len() as u64);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        match (self.count, self.incomplete.first()) {
            (0, None) if self.unread > 0 => {
                let mend =
                    "check it as root, which can read files that only root of the image may read";
                let seen = format!(
                    "{} examined, {} could not be read",
                    self.entries, self.unread
                );
                RequirementResult {
                    requirement,
                    outcome: RequirementOutcome::Warn,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
            (0, None) => {
                let seen = format!("{} files and folders examined", self.entries);
                RequirementResult {
                    requirement,
                    outcome: RequirementOutcome::Pass,
                    seen,
                    mend: None,
                }
            }
            (0, Some(add_incomplete)) => {
                let mend =
                    "make the image smaller, or its files readable, so that the scan is complete";
                let seen = format!("the scan is incomplete: {add_incomplete}");
                RequirementResult {
                    requirement,
                    outcome: RequirementOutcome::Fail,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
            (_, _) => {
                let mend = "build the image without it (a later layer only hides it), and give it to runs instead";
                let seen = format!("{}{more}", self.found.join(", "));
                RequirementResult {
                    requirement,
                    outcome: RequirementOutcome::Fail,
                    seen,
                    mend: Some(mend.to_owned()),
                }
            }
        }
    }

    fn found(&mut self, place: &str, why: &str) {
        self.count += 1;
        if self.found.len() < MAX_FINDINGS {
            self.found.push(format!("{place} ({why})"));
        }
    }

    fn add_incomplete(&mut self, what: String) {
        if self.incomplete.len() < MAX_FINDINGS {
            self.incomplete.push(what);
        }
    }

    /// In an image store of an ordinary user, files that only root of the image could read are
    /// unreadable for everyone, so they cannot be read in a sandbox either.
    fn failed(&mut self, path: &str, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.unread += 1,
            _ => self.add_incomplete(format!("/{path}: {error}")),
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
                self.add_incomplete(format!("there are more than {limit} files and folders"));
            }
            Err(WalkError::TooDeep { path, .. }) => {
                let path = path.to_string_lossy();
                self.add_incomplete(format!("/{path} is deeper than {MAX_DEPTH} folders"));
            }
            Err(WalkError::Read { path, source }) => self.failed(&path.to_string_lossy(), &source),
        }
    }

    fn file(&mut self, walk: &Walk, entry: &WalkEntry) {
        let path = &*entry.path.to_string_lossy();
        let size = u64::try_from(entry.stat.st_size).unwrap_or(u64::MAX);
        let known = patterns::file(path);
        if known == patterns::FileHint::Secret {
            return self.found(&format!("/{path}"), "its name is that of a credential");
        }
        let of_packages = path
            .split('/')
            .next()
            .is_some_and(|top| PACKAGE_FOLDERS.contains(&top));
        let of_no_use = known == patterns::FileHint::Plain || patterns::is_example(path);
        if size > MAX_FILE_BYTES || (of_packages && of_no_use) {
            return;
        }
        if self.read.saturating_add(size) > MAX_READ_BYTES {
            return self
                .add_incomplete(format!("small files hold more than {MAX_READ_BYTES} bytes"));
        }
        let bytes = match read(walk, entry) {
            Ok(bytes) => bytes,
            Err(error) => return self.failed(path, &error),
        };
        self.read += bytes.len() as u64;
        match (known, patterns::key_in(&bytes)) {
            (_, Some(kind)) => self.found(&format!("/{path}"), kind),
            (patterns::FileHint::Holds(words), None) if patterns::contains(&bytes, words) => {
                self.found(&format!("/{path}"), words);
            }
            (_, None) => {}
        }
    }
}

/// Never blocks: the entry may have been replaced by a pipe since it was examined.
fn read(walk: &Walk, entry: &WalkEntry) -> io::Result<Vec<u8>> {
    let file = walk.parent()?.read_file(entry.name())?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE_BYTES), &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
