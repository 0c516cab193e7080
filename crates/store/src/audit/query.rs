//! Queries of the audit log: newest records first, by page, read backwards from the end of its
//! files. Shows the records as they are; `verify` decides whether they can be trusted.

use super::{FOLDER, NAME, checkpoints::Checkpoints, verify::open_existing};
use journal::{JournalDir, MAX_LINE_BYTES, NumberedRecord};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fs::File, io, os::unix::fs::FileExt, path::Path};

/// Maximum records of a page.
const MAX_PAGE_RECORDS: usize = 1000;
/// Maximum bytes read for a page. A page may then be empty; its cursor says where to continue.
const MAX_SCAN_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 256 << 10;

/// The fields of a record, as they are parsed.
#[derive(Debug, Deserialize)]
pub(super) struct ParsedEntry<'a> {
    n: u64,
    pub(super) at: u64,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    decision: Cow<'a, str>,
    #[serde(borrow, default)]
    tenant: Cow<'a, str>,
    #[serde(borrow, default)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    run: Cow<'a, str>,
    #[serde(borrow, default)]
    task: Cow<'a, str>,
    #[serde(borrow, default)]
    job: Cow<'a, str>,
    #[serde(borrow, default)]
    rule: Cow<'a, str>,
    #[serde(borrow, default)]
    about: Cow<'a, str>,
    #[serde(borrow)]
    hash: Cow<'a, str>,
}

impl NumberedRecord for ParsedEntry<'_> {
    fn n(&self) -> u64 {
        self.n
    }
}

/// A record of the log; absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct AuditRow {
    /// Left out for callers who may not learn how many records there are.
    #[serde(default)]
    pub n: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Kind of the record.
    pub what: String,
    /// `allowed`, `refused` or `happened`.
    pub decision: String,
    /// Tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// API key of the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Run or sandbox.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// Task that it belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
    /// Job that it belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// Rule that decided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Detail.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Hash-chain value: SHA-256 of the record and everything before it.
    pub hash: String,
}

impl From<ParsedEntry<'_>> for AuditRow {
    fn from(line: ParsedEntry<'_>) -> AuditRow {
        AuditRow {
            n: line.n,
            at_ms: line.at,
            what: line.kind.into_owned(),
            decision: line.decision.into_owned(),
            tenant: line.tenant.into_owned(),
            key: line.key.into_owned(),
            run: line.run.into_owned(),
            task: line.task.into_owned(),
            job: line.job.into_owned(),
            rule: line.rule.into_owned(),
            about: line.about.into_owned(),
            hash: line.hash.into_owned(),
        }
    }
}

/// Filter and position of a query.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Run or sandbox.
    pub run: Option<String>,
    /// Tenant.
    pub tenant: Option<String>,
    /// Kind, such as `run.end`; with a trailing dot, all kinds with that prefix.
    pub what: Option<String>,
    /// Oldest time, inclusive.
    pub since_ms: Option<u64>,
    /// Newest time, inclusive.
    pub until_ms: Option<u64>,
    /// Cursor of the previous page.
    pub before: Option<String>,
    /// Page size, at most a thousand.
    pub limit: usize,
}

impl AuditFilter {
    fn matches(&self, line: &ParsedEntry<'_>) -> bool {
        let what = |query: &str| {
            line.kind == query || query.ends_with('.') && line.kind.starts_with(query)
        };
        self.run.as_ref().is_none_or(|run| line.run == *run)
            && self
                .tenant
                .as_ref()
                .is_none_or(|tenant| line.tenant == *tenant)
            && self.what.as_deref().is_none_or(what)
            && self.since_ms.is_none_or(|since| line.at >= since)
            && self.until_ms.is_none_or(|until| line.at <= until)
    }
}

/// A page of records, newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditPage {
    /// The records.
    pub rows: Vec<AuditRow>,
    /// Cursor of the next page; `None` at the end.
    pub before: Option<String>,
}

/// An invalid cursor.
#[derive(Debug, thiserror::Error)]
#[error("the cursor is invalid")]
pub struct BadCursor;

/// Reads one page. An error that is a [`BadCursor`] is the caller's fault.
pub fn read_page(state: &Path, query: &AuditFilter) -> io::Result<AuditPage> {
    let Some(folder) = open_existing(&state.join(FOLDER))? else {
        return Ok(AuditPage::default());
    };
    let parts = folder.segments()?.remove(NAME).unwrap_or_default();
    let start = query
        .before
        .as_deref()
        .map(|text| place(text).ok_or_else(|| io::Error::other(BadCursor)));
    let start = start.transpose()?;
    let segment_starts = Checkpoints::open(state)?.segment_starts(NAME)?;
    let mut reading = PageReader {
        query,
        page: AuditPage::default(),
        read: 0,
        closed: false,
    };
    for &part in parts.iter().rev() {
        let end = match start {
            Some((of, _)) if part > of => continue,
            Some((of, offset)) if part == of => Some(offset),
            _ => None,
        };
        let began = segment_starts
            .iter()
            .find(|segment_start| segment_start.part == part)
            .map(|of| of.began_ms);
        if end.is_none()
            && began
                .zip(query.until_ms)
                .is_some_and(|(began, until)| began > until)
        {
            continue;
        }
        reading.part(&folder, part, end)?;
        if reading.closed {
            break;
        }
    }
    Ok(reading.page)
}

/// `PART-OFFSET`: where a record starts.
fn place(text: &str) -> Option<(u32, u64)> {
    let (part, offset) = text.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(part) && digits(offset)).then_some(())?;
    Some((part.parse().ok()?, offset.parse().ok()?))
}

struct PageReader<'a> {
    query: &'a AuditFilter,
    page: AuditPage,
    read: u64,
    /// The page is full, or all older records are out of range.
    closed: bool,
}

impl PageReader<'_> {
    /// Reads a file backwards from `end`, or from its end.
    fn part(&mut self, folder: &JournalDir, part: u32, end: Option<u64>) -> io::Result<()> {
        // The server may remove an old file at any time.
        let Ok(file) = folder.read(NAME, part) else {
            return Ok(());
        };
        let size = file.metadata()?.len();
        let mut end = match end {
            Some(end) if end > size || !starts_record(&file, end)? => {
                return Err(io::Error::other(BadCursor));
            }
            Some(end) => end,
            None => size,
        };
        while end > 0 && !self.closed {
            let from = end.saturating_sub(BLOCK_BYTES);
            let mut block = vec![0; usize::try_from(end - from).unwrap_or_default()];
            file.read_exact_at(&mut block, from)?;
            self.read += block.len() as u64;
            // Up to the first record that starts in this block; a record that is being written has
            // no end yet.
            let whole = block
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            let first = match from {
                0 => 0,
                _ => block
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(block.len(), |at| at + 1),
            };
            if first >= whole && from > 0 {
                // Longer than any record, unless it is the last one, which has no end yet.
                end = if block.len() > MAX_LINE_BYTES {
                    return Ok(());
                } else {
                    from
                };
                continue;
            }
            end = self.lines(&block[first..whole.max(first)], part, from + first as u64);
        }
        Ok(())
    }

    /// Reads the records of a block, the last first. Returns where the first record that was read
    /// starts.
    fn lines(&mut self, block: &[u8], part: u32, at: u64) -> u64 {
        let mut end = block.len();
        while end > 0 && !self.closed {
            let start = block[..end - 1]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            self.line(&block[start..end - 1]);
            end = start;
            let place = at + end as u64;
            if self.page.rows.len() >= self.query.limit.clamp(1, MAX_PAGE_RECORDS)
                || self.read > MAX_SCAN_BYTES && end == 0
            {
                self.page.before = (part > 1 || place > 0).then(|| format!("{part}-{place}"));
                self.closed = true;
            }
        }
        at + end as u64
    }

    fn line(&mut self, text: &[u8]) {
        let Ok(text) = std::str::from_utf8(text) else {
            return;
        };
        // Run ids contain no characters that JSON escapes: a line without the id is not about the
        // run.
        if self
            .query
            .run
            .as_ref()
            .is_some_and(|run| !text.contains(run.as_str()))
        {
            return;
        }
        let Ok(line) = serde_json::from_str::<ParsedEntry<'_>>(text) else {
            return;
        };
        if self.query.since_ms.is_some_and(|since| line.at < since) {
            self.closed = true;
        } else if self.query.matches(&line) {
            self.page.rows.push(line.into());
        }
    }
}

fn starts_record(file: &File, at: u64) -> io::Result<bool> {
    let mut before = [0];
    match at {
        0 => Ok(true),
        _ => file
            .read_exact_at(&mut before, at - 1)
            .map(|()| before == *b"\n"),
    }
}
