//! Verifies the audit log: every record must follow from the one before, from the start that the
//! database names at least up to the checkpoint.

use super::{
    FOLDER, NAME,
    checkpoints::{Checkpoint, Checkpoints, SegmentStart},
    query::ParsedEntry,
    writer::is_locked,
};
use crate::name_encoding::hexadecimal;
use journal::{ChainHead, Hash, JournalDir, JournalProblem, JournalReader, ReadFault};
use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read},
    path::Path,
};

const BUFFER_BYTES: usize = 256 << 10;

/// Report of a log that verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
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
pub enum VerifyError {
    /// It was changed.
    #[error(transparent)]
    Problem(JournalProblem),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Verifies all records. With a head, a record of that hash must be among them.
pub fn verify(state: &Path, head: Option<Hash>) -> Result<VerifyReport, VerifyError> {
    // The server may remove an old file meanwhile; the second read then starts after it.
    let first = verify_once(state, head);
    match first {
        Err(VerifyError::Problem(_)) => verify_once(state, head),
        done => done,
    }
}

fn verify_once(state: &Path, expected_hash: Option<Hash>) -> Result<VerifyReport, VerifyError> {
    let place = state.join(FOLDER);
    let whole = |what: &str| JournalProblem {
        file: place.clone(),
        line: 0,
        what: what.to_owned(),
    };
    let Some(checkpoints) = Checkpoints::open_existing(state)? else {
        return if open_existing(&place)?.is_some() || expected_hash.is_some() {
            Err(whole("`airlock.db`, which describes it, is missing").into())
        } else {
            Ok(VerifyReport::default())
        };
    };
    // Read before the files: every file that the database names exists.
    let segment_starts = checkpoints.segment_starts(NAME)?;
    let checkpoint = checkpoints.latest(NAME)?;
    let Some(folder) = open_existing(&place)? else {
        return match (checkpoint, expected_hash) {
            (None, None) => Ok(VerifyReport::default()),
            _ => Err(whole("the audit is missing").into()),
        };
    };
    let before = is_locked(&folder);
    let parts = folder.segments()?.remove(NAME).unwrap_or_default();
    let check = Verifier {
        folder: &folder,
        name: NAME,
        parts: &parts,
        segment_starts: &segment_starts,
        checkpoint,
    };
    let end = check.read(0, expected_hash)?;
    if end.torn && !before && !is_locked(&folder) {
        let file = folder.path(NAME, end.part);
        return Err(JournalProblem {
            file,
            line: end.line,
            what: ReadFault::Torn.to_string(),
        }
        .into());
    }
    if expected_hash.is_some() && !end.seen {
        return Err(whole(
            "no record has the given hash: the audit was changed, truncated or replaced by an older copy",
        )
        .into());
    }
    let head = hexadecimal(&end.head.hash);
    Ok(VerifyReport {
        lines: end.lines,
        first: end.first,
        since_ms: end.since_ms,
        last: end.head.n,
        head,
    })
}

/// The last checkpoint: number and hash of its record.
pub fn head(state: &Path) -> io::Result<Option<(u64, String)>> {
    let Some(checkpoints) = Checkpoints::open_existing(state)? else {
        return Ok(None);
    };
    let checkpoint = checkpoints.latest(NAME)?;
    Ok(checkpoint
        .filter(|checkpoint| checkpoint.n > 0)
        .map(|checkpoint| (checkpoint.n, hexadecimal(&checkpoint.hash))))
}

/// Parses a hash of 64 hexadecimal digits.
pub fn parse_hash(text: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

pub(super) fn open_existing(folder: &Path) -> io::Result<Option<JournalDir>> {
    match JournalDir::open(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        new_segments => new_segments.map(Some),
    }
}

/// Start of a file that the database does not know, from its own first record.
pub(super) fn read_segment_start(
    folder: &JournalDir,
    name: &str,
    part: u32,
) -> io::Result<SegmentStart> {
    #[derive(serde::Deserialize)]
    struct First {
        n: u64,
        at: u64,
        prev: String,
    }
    let mut text = Vec::new();
    let file = BufReader::new(folder.read(name, part)?);
    file.take(journal::MAX_LINE_BYTES as u64)
        .read_until(b'\n', &mut text)?;
    let first: First = serde_json::from_slice(&text)?;
    match (first.n, parse_hash(&first.prev)) {
        (1.., Some(hash)) => Ok(SegmentStart {
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
pub(super) struct Verifier<'a> {
    pub(super) folder: &'a JournalDir,
    pub(super) name: &'a str,
    pub(super) parts: &'a [u32],
    pub(super) segment_starts: &'a [SegmentStart],
    pub(super) checkpoint: Option<Checkpoint>,
}

/// How far the files were read and verified.
#[derive(Debug, Default)]
pub(super) struct VerifiedRange {
    pub(super) head: ChainHead,
    pub(super) torn: bool,
    /// The last file that was read.
    pub(super) part: u32,
    pub(super) line: u64,
    lines: u64,
    first: u64,
    since_ms: u64,
    /// Starts of the files that were read.
    pub(super) segment_starts: Vec<SegmentStart>,
    /// Whether the checkpoint's record was among them.
    checkpoint_found: bool,
    expected_hash: Option<Hash>,
    seen: bool,
}

impl Verifier<'_> {
    fn problem(&self, part: u32, line: u64, what: impl Into<String>) -> JournalProblem {
        JournalProblem {
            file: self.folder.path(self.name, part),
            line,
            what: what.into(),
        }
    }

    fn known(&self, part: u32) -> Option<&SegmentStart> {
        self.segment_starts
            .iter()
            .find(|segment_start| segment_start.part == part)
    }

    /// Verifies the latest files, from the one with the checkpoint: `verify` covers the earlier
    /// ones.
    pub(super) fn newest(&self) -> Result<VerifiedRange, JournalProblem> {
        let checkpoint_found = self.checkpoint.map_or(0, |checkpoint| checkpoint.part);
        // A file that the database does not know is verified from the one before it.
        let known = self
            .parts
            .iter()
            .take_while(|part| self.known(**part).is_some())
            .count();
        let from = self.parts[..known]
            .iter()
            .rposition(|part| *part <= checkpoint_found);
        self.read(from.unwrap_or(0), None)
    }

    /// Verifies the files from this one on, and looks for a record with this hash.
    fn read(
        &self,
        from: usize,
        expected_hash: Option<Hash>,
    ) -> Result<VerifiedRange, JournalProblem> {
        let mut end = VerifiedRange {
            expected_hash,
            ..VerifiedRange::default()
        };
        let parts = &self.parts[from.min(self.parts.len())..];
        if let Some(&first) = parts.first() {
            let segment_start = self.segment_start(first)?;
            end.head = segment_start.head();
            // Before the very first record there is none whose hash could have been stored
            // elsewhere.
            end.seen = segment_start.n > 0 && expected_hash == Some(segment_start.hash);
        }
        end.checkpoint_found = self.checkpoint.is_none_or(|checkpoint| {
            checkpoint.n == end.head.n && checkpoint.hash == end.head.hash
        });
        for (index, &part) in parts.iter().enumerate() {
            if index > 0 && part != parts[index - 1] + 1 {
                return Err(self.problem(part, 0, "the file before it is missing"));
            }
            let at = self.check_segment_start(part, &end.head)?;
            end.segment_starts.push(at);
            let is_last = parts[index + 1..]
                .iter()
                .all(|later| self.is_empty_and_unknown(*later));
            self.file(part, is_last, &mut end)?;
            if end.torn {
                break;
            }
        }
        self.check_checkpoint(&end)?;
        Ok(end)
    }

    /// Whether the file is empty and unknown to the database: power loss may leave it after a file
    /// that lost its end.
    fn is_empty_and_unknown(&self, part: u32) -> bool {
        self.known(part).is_none()
            && self
                .folder
                .size(self.name, part)
                .is_ok_and(|size| size == 0)
    }

    /// The record that the first file must follow.
    fn segment_start(&self, part: u32) -> Result<SegmentStart, JournalProblem> {
        let before_was_removed = || self.known(part - 1).is_some_and(|before| before.removed);
        match (part, self.known(part)) {
            (0, _) => Err(self.problem(part, 0, "no file has this number")),
            (1, _) => Ok(SegmentStart {
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

    fn check_segment_start(
        &self,
        part: u32,
        head: &ChainHead,
    ) -> Result<SegmentStart, JournalProblem> {
        match self.known(part) {
            Some(known) if (known.n, known.hash) != (head.n, head.hash) => {
                Err(self.problem(part, 0, "it does not begin where the database says"))
            }
            Some(known) => Ok(*known),
            None => Ok(SegmentStart {
                part,
                n: head.n,
                hash: head.hash,
                began_ms: journal::now_ms(),
                removed: false,
            }),
        }
    }

    fn file(
        &self,
        part: u32,
        is_last: bool,
        end: &mut VerifiedRange,
    ) -> Result<(), JournalProblem> {
        let file = self.folder.read(self.name, part);
        let file = file.map_err(|error| self.problem(part, 0, error.to_string()))?;
        let head = ChainHead {
            offset: 0,
            ..end.head
        };
        let mut reader = JournalReader::new(BufReader::with_capacity(BUFFER_BYTES, file), head);
        let mut first = true;
        loop {
            let at = match reader.next_record::<ParsedEntry<'_>>() {
                Ok(Some(line)) => line.at,
                Ok(None) => break,
                Err(ReadFault::Torn) if is_last => {
                    end.torn = true;
                    break;
                }
                Err(fault) => return Err(self.problem(part, reader.line(), fault.to_string())),
            };
            let head = reader.head();
            if first && self.known(part).is_none() {
                end.segment_starts
                    .iter_mut()
                    .filter(|of| of.part == part)
                    .for_each(|of| of.began_ms = at);
            }
            first = false;
            if end.lines == 0 {
                (end.first, end.since_ms) = (head.n, at);
            }
            end.lines += 1;
            end.seen |= end.expected_hash == Some(head.hash);
            if let Some(checkpoint) = self.checkpoint.filter(|checkpoint| checkpoint.n == head.n) {
                if checkpoint.hash == head.hash {
                    end.checkpoint_found = true
                } else {
                    let what = "it is not the record that the database knows: it was rewritten";
                    return Err(self.problem(part, reader.line(), what));
                }
            }
        }
        (end.head, end.part, end.line) = (reader.head(), part, reader.line());
        Ok(())
    }

    fn check_checkpoint(&self, end: &VerifiedRange) -> Result<(), JournalProblem> {
        let Some(checkpoint) = self.checkpoint else {
            return if end.lines > 0 && self.segment_starts.is_empty() {
                Err(self.problem(end.part, 0, "the database knows nothing of it"))
            } else {
                Ok(())
            };
        };
        let last = self.parts.last().copied().unwrap_or_default();
        if last < checkpoint.part {
            return Err(self.problem(checkpoint.part, 0, "the file is missing"));
        }
        if end.checkpoint_found {
            Ok(())
        } else {
            let what = format!(
                "it ends before record {}, which was written to disk",
                checkpoint.n
            );
            Err(self.problem(last, end.line, what))
        }
    }
}
