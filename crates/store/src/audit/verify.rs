//! Verifies the audit log: every record must follow from the one before, from the start that the
//! database names at least up to the checkpoint.

use super::{
    FOLDER, NAME,
    file::is_live,
    marks::{Beginning, Mark, Marks},
    page::Line,
};
use crate::names::hexadecimal;
use journal::{Fault, Folder, Hash, Head, Problem, Reader};
use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read},
    path::Path,
};

const BUFFER: usize = 256 << 10;

/// Report of a log that verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of records read.
    pub lines: u64,
    /// Number of the first record; earlier ones were removed by retention.
    pub first: u64,
    /// Time of the first record, in milliseconds since 1970.
    pub since_ms: u64,
    /// Number of the last record.
    pub last: u64,
    /// Hash of the last record.
    pub head: String,
}

/// Why the log did not verify.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It was changed.
    #[error(transparent)]
    Problem(Problem),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Verifies all records. With a head, a record of that hash must be among them.
pub fn verify(state: &Path, head: Option<Hash>) -> Result<Verified, Wrong> {
    // The server may remove an old file meanwhile; the second read then starts after it.
    let first = verify_once(state, head);
    match first {
        Err(Wrong::Problem(_)) => verify_once(state, head),
        done => done,
    }
}

fn verify_once(state: &Path, wanted: Option<Hash>) -> Result<Verified, Wrong> {
    let place = state.join(FOLDER);
    let whole = |what: &str| Problem {
        file: place.clone(),
        line: 0,
        what: what.to_owned(),
    };
    let Some(marks) = Marks::existing(state)? else {
        return match existing(&place)?.is_some() || wanted.is_some() {
            true => Err(whole("`airlock.db`, which describes it, is missing").into()),
            false => Ok(Verified::default()),
        };
    };
    // Read before the files: every file that the database names exists.
    let (beginnings, mark) = (marks.beginnings(NAME)?, marks.last(NAME)?);
    let Some(folder) = existing(&place)? else {
        return match (mark, wanted) {
            (None, None) => Ok(Verified::default()),
            _ => Err(whole("the audit is missing").into()),
        };
    };
    let before = is_live(&folder);
    let parts = folder.segments()?.remove(NAME).unwrap_or_default();
    let check = Check {
        folder: &folder,
        name: NAME,
        parts: &parts,
        beginnings: &beginnings,
        mark,
    };
    let end = check.read(0, wanted)?;
    if end.torn && !before && !is_live(&folder) {
        let file = folder.path(NAME, end.part);
        return Err(Problem {
            file,
            line: end.line,
            what: Fault::Torn.to_string(),
        }
        .into());
    }
    if wanted.is_some() && !end.seen {
        return Err(whole(
            "no record has the given hash: the audit was changed, truncated or replaced by an older copy",
        )
        .into());
    }
    let head = hexadecimal(&end.head.hash);
    Ok(Verified {
        lines: end.lines,
        first: end.first,
        since_ms: end.since_ms,
        last: end.head.n,
        head,
    })
}

/// The last checkpoint: number and hash of its record.
pub fn head(state: &Path) -> io::Result<Option<(u64, String)>> {
    let Some(marks) = Marks::existing(state)? else {
        return Ok(None);
    };
    let mark = marks.last(NAME)?;
    Ok(mark
        .filter(|mark| mark.n > 0)
        .map(|mark| (mark.n, hexadecimal(&mark.hash))))
}

/// Parses a hash of 64 hexadecimal digits.
pub fn parsed(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

pub(super) fn existing(folder: &Path) -> io::Result<Option<Folder>> {
    match Folder::open(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Start of a file that the database does not know, from its own first record.
pub(super) fn first_of(folder: &Folder, name: &str, part: u32) -> io::Result<Beginning> {
    #[derive(serde::Deserialize)]
    struct First {
        n: u64,
        at: u64,
        prev: String,
    }
    let mut text = Vec::new();
    let file = BufReader::new(folder.read(name, part)?);
    file.take(journal::LONGEST as u64)
        .read_until(b'\n', &mut text)?;
    let first: First = serde_json::from_slice(&text)?;
    match (first.n, parsed(&first.prev)) {
        (1.., Some(hash)) => Ok(Beginning {
            part,
            n: first.n - 1,
            hash,
            began_ms: first.at,
            removed: false,
        }),
        _ => Err(io::Error::other(
            "its first line is not a record of the audit",
        )),
    }
}

/// The files of a journal, and what the database knows about them.
pub(super) struct Check<'a> {
    pub(super) folder: &'a Folder,
    pub(super) name: &'a str,
    pub(super) parts: &'a [u32],
    pub(super) beginnings: &'a [Beginning],
    pub(super) mark: Option<Mark>,
}

/// How far the files were read and verified.
#[derive(Debug, Default)]
pub(super) struct End {
    pub(super) head: Head,
    pub(super) torn: bool,
    /// The last file that was read.
    pub(super) part: u32,
    pub(super) line: u64,
    lines: u64,
    first: u64,
    since_ms: u64,
    /// Starts of the files that were read.
    pub(super) beginnings: Vec<Beginning>,
    /// Whether the checkpoint's record was among them.
    marked: bool,
    wanted: Option<Hash>,
    seen: bool,
}

impl Check<'_> {
    fn problem(&self, part: u32, line: u64, what: impl Into<String>) -> Problem {
        Problem {
            file: self.folder.path(self.name, part),
            line,
            what: what.into(),
        }
    }

    fn known(&self, part: u32) -> Option<&Beginning> {
        self.beginnings
            .iter()
            .find(|beginning| beginning.part == part)
    }

    /// Verifies the latest files, from the one with the checkpoint: `verify` covers the earlier
    /// ones.
    pub(super) fn newest(&self) -> Result<End, Problem> {
        let marked = self.mark.map_or(0, |mark| mark.part);
        // A file that the database does not know is verified from the one before it.
        let known = self
            .parts
            .iter()
            .take_while(|part| self.known(**part).is_some())
            .count();
        let from = self.parts[..known].iter().rposition(|part| *part <= marked);
        self.read(from.unwrap_or(0), None)
    }

    /// Verifies the files from this one on, and looks for a record with this hash.
    fn read(&self, from: usize, wanted: Option<Hash>) -> Result<End, Problem> {
        let mut end = End {
            wanted,
            ..End::default()
        };
        let parts = &self.parts[from.min(self.parts.len())..];
        if let Some(&first) = parts.first() {
            let beginning = self.beginning(first)?;
            end.head = beginning.head();
            // Before the very first record there is none whose hash could have been stored
            // elsewhere.
            end.seen = beginning.n > 0 && wanted == Some(beginning.hash);
        }
        end.marked = self
            .mark
            .is_none_or(|mark| mark.n == end.head.n && mark.hash == end.head.hash);
        for (index, &part) in parts.iter().enumerate() {
            if index > 0 && part != parts[index - 1] + 1 {
                return Err(self.problem(part, 0, "the file before it is missing"));
            }
            let at = self.beginning_as_read(part, &end.head)?;
            end.beginnings.push(at);
            let is_last = parts[index + 1..]
                .iter()
                .all(|later| self.is_only_begun(*later));
            self.file(part, is_last, &mut end)?;
            if end.torn {
                break;
            }
        }
        self.reaches_the_mark(&end)?;
        Ok(end)
    }

    /// Whether the file is empty and unknown to the database: power loss may leave it after a file
    /// that lost its end.
    fn is_only_begun(&self, part: u32) -> bool {
        self.known(part).is_none()
            && self
                .folder
                .size(self.name, part)
                .is_ok_and(|size| size == 0)
    }

    /// The record that the first file must follow.
    fn beginning(&self, part: u32) -> Result<Beginning, Problem> {
        let before_was_removed = || self.known(part - 1).is_some_and(|before| before.removed);
        match (part, self.known(part)) {
            (0, _) => Err(self.problem(part, 0, "no file has this number")),
            (1, _) => Ok(Beginning {
                part,
                n: 0,
                hash: Hash::default(),
                began_ms: 0,
                removed: false,
            }),
            (_, Some(known)) if before_was_removed() || self.parts.contains(&(part - 1)) => {
                Ok(*known)
            }
            _ => Err(self.problem(
                part,
                0,
                "the file before it is missing, and was not removed by retention",
            )),
        }
    }

    fn beginning_as_read(&self, part: u32, head: &Head) -> Result<Beginning, Problem> {
        match self.known(part) {
            Some(known) if (known.n, known.hash) != (head.n, head.hash) => {
                Err(self.problem(part, 0, "it does not begin where the database says"))
            }
            Some(known) => Ok(*known),
            None => Ok(Beginning {
                part,
                n: head.n,
                hash: head.hash,
                began_ms: journal::now(),
                removed: false,
            }),
        }
    }

    fn file(&self, part: u32, is_last: bool, end: &mut End) -> Result<(), Problem> {
        let file = self.folder.read(self.name, part);
        let file = file.map_err(|error| self.problem(part, 0, error.to_string()))?;
        let head = Head {
            offset: 0,
            ..end.head
        };
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER, file), head);
        let mut first = true;
        loop {
            let at = match reader.next_record::<Line<'_>>() {
                Ok(Some(line)) => line.at,
                Ok(None) => break,
                Err(Fault::Torn) if is_last => {
                    end.torn = true;
                    break;
                }
                Err(fault) => return Err(self.problem(part, reader.line(), fault.to_string())),
            };
            let head = reader.head();
            if first && self.known(part).is_none() {
                end.beginnings
                    .iter_mut()
                    .filter(|of| of.part == part)
                    .for_each(|of| of.began_ms = at);
            }
            first = false;
            if end.lines == 0 {
                (end.first, end.since_ms) = (head.n, at);
            }
            end.lines += 1;
            end.seen |= end.wanted == Some(head.hash);
            if let Some(mark) = self.mark.filter(|mark| mark.n == head.n) {
                match mark.hash == head.hash {
                    true => end.marked = true,
                    false => {
                        let what = "it is not the record that the database knows: it was rewritten";
                        return Err(self.problem(part, reader.line(), what));
                    }
                }
            }
        }
        (end.head, end.part, end.line) = (reader.head(), part, reader.line());
        Ok(())
    }

    fn reaches_the_mark(&self, end: &End) -> Result<(), Problem> {
        let Some(mark) = self.mark else {
            return match end.lines > 0 && self.beginnings.is_empty() {
                true => Err(self.problem(end.part, 0, "the database knows nothing of it")),
                false => Ok(()),
            };
        };
        let last = self.parts.last().copied().unwrap_or_default();
        if last < mark.part {
            return Err(self.problem(mark.part, 0, "the file is missing"));
        }
        match end.marked {
            true => Ok(()),
            false => {
                let what = format!(
                    "it ends before record {}, which was written to disk",
                    mark.n
                );
                Err(self.problem(last, end.line, what))
            }
        }
    }
}
