//! From what happens to records of the node. Nobody waits for them: lines wait in a bounded queue, and the thread that
//! writes runs takes them a few at a time between these. What finds no room is counted and spoken of.

use crate::Gateway;
use spec::{Stream, Timestamp};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use store::telemetry::{Kept, LogRow};
use tokio::sync::Notify;

/// The name under which the server's own lines are found.
pub(crate) const SERVICE: &str = "node";
/// What of a container's stream is kept: bytes and lines.
const MOST_OF_STREAM: usize = 256 << 10;
const MOST_LINES: usize = 10_000;
/// What is longer is cut into lines of this length.
const LONGEST_LINE: usize = 16 << 10;
/// What waits to be written: bytes, and records however small.
const MOST_WAITING: usize = 16 << 20;
const MOST_RECORDS: usize = 50_000;
/// What is written together: so little that no run is held up by it.
const TOGETHER: usize = 128 << 10;
const RECORDS_TOGETHER: usize = 250;
/// How long lines wait for others.
const PAUSE: Duration = Duration::from_millis(200);
/// Between looks for what is too old; between looks for room to give back.
const BETWEEN_PRUNINGS: Duration = Duration::from_secs(3600);
const BETWEEN_VACUUMS: Duration = Duration::from_secs(24 * 3600);
/// What may be written before somebody looks for what is too much.
const MOST_UNSEEN: u64 = MOST_LOG_BYTES / 16;
const DAY_MS: u64 = 24 * 3_600_000;
const MOST_LOG_BYTES: u64 = 512 << 20;
const MOST_CONTAINERS: u32 = 200_000;

/// What is to be written down.
#[derive(Debug)]
enum Record {
    Started { id: String, at: Timestamp },
    Lines(LogRow),
}

impl Record {
    fn bytes(&self) -> usize {
        match self {
            Record::Started { id, .. } => id.len(),
            Record::Lines(row) => row.lines.len() + row.source_name.len() + row.owner.len(),
        }
    }
}

impl Record {
    /// With what a row takes beside its lines.
    fn stored(&self) -> u64 {
        match self {
            Record::Started { .. } => 0,
            Record::Lines(row) => row.lines.len() as u64 + 100,
        }
    }
}

/// Where records wait.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    waiting: Mutex<Waiting>,
    dropped: AtomicU64,
    grown: Notify,
    /// Bytes written since somebody looked for what is too much.
    written: AtomicU64,
    crowded: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    records: std::collections::VecDeque<Record>,
    bytes: usize,
}

/// The output of one container.
#[derive(Debug)]
pub(crate) struct Output {
    id: String,
    owner: String,
    streams: [Mutex<Lines>; 2],
}

/// Of one stream, what is no whole line yet, and how much was kept.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
    bytes: usize,
    lines: usize,
    lost: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    /// The lines that these bytes complete, if there is still room for any.
    fn take(&mut self, bytes: &[u8]) -> Option<String> {
        if self.bytes >= MOST_OF_STREAM || self.lines >= MOST_LINES {
            self.lost += bytes.len() as u64;
            return None;
        }
        self.begun.extend_from_slice(bytes);
        let end = match self.begun.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if self.begun.len() >= LONGEST_LINE => self.begun.len(),
            None => return None,
        };
        let rest = self.begun.split_off(end);
        let whole = std::mem::replace(&mut self.begun, rest);
        self.keep(&whole)
    }

    /// What was not ended by a line's end.
    fn rest(&mut self) -> Option<String> {
        let whole = std::mem::take(&mut self.begun);
        if whole.is_empty() {
            None
        } else {
            self.keep(&whole)
        }
    }

    fn keep(&mut self, whole: &[u8]) -> Option<String> {
        let mut kept = Vec::new();
        let body = whole.strip_suffix(b"\n").unwrap_or(whole);
        for piece in body.split(|byte| *byte == b'\n').flat_map(pieces) {
            if self.bytes + piece.len() >= MOST_OF_STREAM || self.lines >= MOST_LINES {
                // Nothing comes behind a gap.
                self.bytes = MOST_OF_STREAM;
                self.lost += piece.len() as u64 + 1;
                continue;
            }
            self.bytes += piece.len() + 1;
            self.lines += 1;
            kept.push(String::from_utf8_lossy(piece));
        }
        (!kept.is_empty()).then(|| kept.join("\n"))
    }
}

/// A line in pieces that are not too long.
fn pieces(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let one = line.is_empty().then_some(line);
    one.into_iter().chain(line.chunks(LONGEST_LINE))
}

impl Output {
    /// Of this container of this tenant's.
    pub(crate) fn new(id: &str, owner: &str) -> Output {
        Output {
            id: id.to_owned(),
            owner: owner.to_owned(),
            streams: Default::default(),
        }
    }

    fn row(&self, stream: usize, lines: String) -> Record {
        Record::Lines(LogRow {
            n: 0,
            at_ms: engine::now().0,
            source_kind: "container".to_owned(),
            source_name: self.id.clone(),
            owner: self.owner.clone(),
            stream: ["stdout", "stderr"][stream].to_owned(),
            lines,
        })
    }
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Recorder {
    /// A program began in this container.
    pub(crate) fn started(&self, id: &str) {
        self.add(Record::Started {
            id: id.to_owned(),
            at: engine::now(),
        });
    }

    /// It wrote something.
    pub(crate) fn wrote(&self, output: &Output, stream: Stream, bytes: &[u8]) {
        let whole = locked(&output.streams[place(stream)]).take(bytes);
        if let Some(lines) = whole {
            self.add(output.row(place(stream), lines));
        }
    }

    /// It writes nothing more; what is missing of it is said.
    pub(crate) fn ended(&self, output: &Output) {
        for (index, stream) in output.streams.iter().enumerate() {
            let (rest, lost) = {
                let mut lines = locked(stream);
                (lines.rest(), std::mem::take(&mut lines.lost))
            };
            let gap = (lost > 0)
                .then(|| format!("[airlock: {lost} more bytes of this stream are not kept]"));
            rest.into_iter()
                .chain(gap)
                .for_each(|lines| self.add(output.row(index, lines)));
        }
    }

    /// A line of the server's own.
    pub(crate) fn service(&self, at: Timestamp, line: String) {
        self.add(Record::Lines(LogRow {
            n: 0,
            at_ms: at.0,
            source_kind: "service".to_owned(),
            source_name: SERVICE.to_owned(),
            owner: String::new(),
            stream: "stderr".to_owned(),
            lines: line,
        }));
    }

    /// How many records were never written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(&self, record: Record) {
        let mut waiting = locked(&self.waiting);
        let bytes = record.bytes();
        if waiting.bytes + bytes > MOST_WAITING || waiting.records.len() >= MOST_RECORDS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += bytes;
        waiting.records.push_back(record);
        drop(waiting);
        self.grown.notify_one();
    }

    fn some(&self) -> Vec<Record> {
        let mut waiting = locked(&self.waiting);
        let (mut some, mut bytes) = (Vec::new(), 0);
        while bytes < TOGETHER && some.len() < RECORDS_TOGETHER {
            let Some(record) = waiting.records.pop_front() else {
                break;
            };
            bytes += record.bytes();
            some.push(record);
        }
        waiting.bytes -= bytes;
        some
    }
}

impl Gateway {
    /// Writes records down as they come, for ever.
    pub(crate) async fn record(self) {
        let mut told = 0;
        loop {
            self.recorder().grown.notified().await;
            tokio::time::sleep(PAUSE).await;
            self.write_records().await;
            let lost = self.recorder().dropped();
            if lost > told {
                crate::say(format_args!(
                    "{} records of telemetry found no room",
                    lost - told
                ));
                told = lost;
            }
        }
    }

    /// Writes down what waits.
    pub(crate) async fn write_records(&self) {
        loop {
            let some = self.recorder().some();
            if some.is_empty() {
                return;
            }
            let (count, bytes) = (some.len() as u64, some.iter().map(Record::stored).sum());
            let work = move |writing: &store::served::Writing<'_>| {
                // One that cannot be written is no reason to refuse what is written together with it.
                let write = |record: &Record| match record {
                    Record::Started { id, at } => writing.start_container(id, at.0),
                    Record::Lines(row) => writing.add_log(row),
                };
                Ok(some.iter().filter(|record| write(record).is_err()).count() as u64)
            };
            let written = self.writer().write(work).await;
            self.recorder()
                .dropped
                .fetch_add(*written.as_ref().unwrap_or(&count), Ordering::Relaxed);
            if self.recorder().written.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_UNSEEN {
                self.recorder().crowded.notify_one();
            }
            // That it failed is a line of the log, too: whoever went on at once would never end.
            if written.is_err() {
                return;
            }
        }
    }

    /// Forgets what is too old or too much, at once, every hour, and whenever much was written; once a day room is given back to the disk. On threads that may
    /// wait for it.
    pub(crate) async fn keep_telemetry_small(self) {
        let mut given_back = None::<std::time::Instant>;
        loop {
            let gives_back = given_back.is_none_or(|last| last.elapsed() >= BETWEEN_VACUUMS);
            if gives_back {
                given_back = Some(std::time::Instant::now());
            }
            self.recorder().written.store(0, Ordering::Relaxed);
            self.prune_telemetry(gives_back).await;
            // Either is a reason.
            _ = tokio::time::timeout(BETWEEN_PRUNINGS, self.recorder().crowded.notified()).await;
        }
    }

    async fn prune_telemetry(&self, gives_back: bool) {
        let gateway = self.clone();
        let pruned = tokio::task::spawn_blocking(move || {
            let now = engine::now().0;
            let kept = Kept {
                logs_since_ms: now.saturating_sub(7 * DAY_MS),
                containers_since_ms: now.saturating_sub(30 * DAY_MS),
                log_bytes: MOST_LOG_BYTES,
                containers: MOST_CONTAINERS,
            };
            gateway.served().prune_telemetry(&kept)?;
            if gives_back {
                gateway.give_room_back()?;
            }
            Ok::<_, store::DatabaseError>(())
        });
        if let Ok(Err(error)) = pruned.await {
            crate::say(format_args!("old telemetry cannot be forgotten: {error}"));
        }
    }

    /// A little at a time: others write meanwhile.
    fn give_room_back(&self) -> Result<(), store::DatabaseError> {
        let mut left = u64::MAX;
        loop {
            let now = self.served().vacuum()?;
            if now == 0 || now >= left {
                return Ok(());
            }
            left = now;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(recorder: &Recorder) -> Vec<(String, String)> {
        let lines = |record| match record {
            Record::Lines(row) => Some((row.stream, row.lines)),
            Record::Started { .. } => None,
        };
        let mut all = Vec::new();
        loop {
            let some = recorder.some();
            if some.is_empty() {
                return all;
            }
            all.extend(some.into_iter().filter_map(lines));
        }
    }

    fn pair(stream: &str, lines: &str) -> (String, String) {
        (stream.to_owned(), lines.to_owned())
    }

    #[test]
    fn lines_are_whole_however_they_come_and_the_last_needs_no_end() {
        let (recorder, output) = (Recorder::default(), Output::new("r", "acme"));
        for piece in ["he", "llo\nwor", "ld\nagain\n", "rest"] {
            recorder.wrote(&output, Stream::Stdout, piece.as_bytes());
        }
        recorder.wrote(&output, Stream::Stderr, b"\xff\n");
        recorder.ended(&output);
        let wanted = [
            ("stdout", "hello"),
            ("stdout", "world\nagain"),
            ("stderr", "\u{fffd}"),
            ("stdout", "rest"),
        ];
        assert_eq!(
            written(&recorder),
            wanted.map(|(stream, lines)| pair(stream, lines))
        );
    }

    #[test]
    fn a_stream_is_bounded_by_bytes_by_lines_and_within_a_line_and_what_is_missing_is_said() {
        for (piece, times) in [
            (vec![b'x'; 1000], 1000),
            (b"\n\n\n\n".to_vec(), 100_000),
            (b"ab\n".to_vec(), 100_000),
        ] {
            let (recorder, output) = (Recorder::default(), Output::new("r", "acme"));
            (0..times).for_each(|_| recorder.wrote(&output, Stream::Stdout, &piece));
            recorder.ended(&output);
            let all = written(&recorder);
            let bytes: usize = all.iter().map(|(_, lines)| lines.len()).sum();
            let last = &all.last().unwrap().1;
            assert!(
                bytes <= MOST_OF_STREAM + 100 && last.contains("more bytes of this stream"),
                "{bytes} {last}"
            );
            let lines = all.iter().flat_map(|(_, lines)| lines.split('\n'));
            assert!(
                lines.clone().count() <= MOST_LINES * 2
                    && lines.clone().all(|line| line.len() <= LONGEST_LINE)
            );
        }
    }

    #[test]
    fn what_waits_is_bounded_and_what_found_no_room_is_counted() {
        let recorder = Recorder::default();
        let line = "x".repeat(1 << 20);
        (0..20).for_each(|_| recorder.service(Timestamp(0), line.clone()));
        assert!(recorder.dropped() >= 4, "{}", recorder.dropped());
        assert_eq!(written(&recorder).len() as u64 + recorder.dropped(), 20);
        recorder.service(Timestamp(0), line);
        assert_eq!(written(&recorder).len(), 1, "there is room again");
    }
}
