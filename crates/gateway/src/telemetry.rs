//! Telemetry recorder: turns events and output of containers, and log lines, into records of the
//! node. Recording never blocks: records wait in a bounded queue, and the run writer stores them in
//! small batches between its other writes. Dropped records are counted and reported.

use crate::Gateway;
use spec::{StdStream, Timestamp};
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use store::telemetry::{LogRow, TelemetryRetention};
use tokio::sync::Notify;

/// Source name of the server's own log lines.
pub(crate) const SERVICE: &str = "node";
/// Limits of a container's stream: bytes and lines.
const MAX_STREAM_BYTES: usize = 256 << 10;
const MAX_STREAM_LINES: usize = 10_000;
/// Longer lines are split at this length.
const MAX_LINE_BYTES: usize = 16 << 10;
/// Limits of the queue: bytes and records.
const MAX_QUEUED_BYTES: usize = 16 << 20;
const MAX_QUEUED_RECORDS: usize = 50_000;
/// Limits of a batch: small, so that no run waits for it.
const BATCH_BYTES: usize = 128 << 10;
const BATCH_RECORDS: usize = 250;
/// How long records wait for a batch.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// Interval of pruning, and of returning free pages to the disk.
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);
const VACUUM_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Bytes written after which pruning runs early.
const PRUNE_AFTER_BYTES: u64 = MAX_LOG_BYTES / 16;
const DAY_MS: u64 = 24 * 3_600_000;
const MAX_LOG_BYTES: u64 = 512 << 20;
const MAX_CONTAINERS: u32 = 200_000;

/// A record to be stored.
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
    /// Approximate size of the stored row.
    fn stored(&self) -> u64 {
        match self {
            Record::Started { .. } => 0,
            Record::Lines(row) => row.lines.len() as u64 + 100,
        }
    }
}

/// The queue of telemetry records.
#[derive(Debug, Default)]
pub(crate) struct TelemetryRecorder {
    waiting: Mutex<RecordQueue>,
    dropped: AtomicU64,
    grown: Notify,
    /// Bytes written since the last pruning.
    written: AtomicU64,
    over_threshold: Notify,
}

#[derive(Debug, Default)]
struct RecordQueue {
    records: std::collections::VecDeque<Record>,
    bytes: usize,
}

/// The output streams of one container.
#[derive(Debug)]
pub(crate) struct ContainerOutput {
    id: String,
    owner: String,
    streams: [Mutex<LineBuffer>; 2],
}

/// Incomplete last line of a stream, and how much was recorded.
#[derive(Debug, Default)]
struct LineBuffer {
    partial: Vec<u8>,
    bytes: usize,
    lines: usize,
    lost: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LineBuffer {
    /// The lines that these bytes complete, within the limits of the stream.
    fn take(&mut self, bytes: &[u8]) -> Option<String> {
        if self.bytes >= MAX_STREAM_BYTES || self.lines >= MAX_STREAM_LINES {
            self.lost += bytes.len() as u64;
            return None;
        }
        self.partial.extend_from_slice(bytes);
        let end = match self.partial.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            None if self.partial.len() >= MAX_LINE_BYTES => self.partial.len(),
            None => return None,
        };
        let rest = self.partial.split_off(end);
        let whole = std::mem::replace(&mut self.partial, rest);
        self.keep(&whole)
    }

    /// The last line if it has no newline.
    fn take_rest(&mut self) -> Option<String> {
        let whole = std::mem::take(&mut self.partial);
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
            if self.bytes + piece.len() >= MAX_STREAM_BYTES || self.lines >= MAX_STREAM_LINES {
                // After a gap nothing more is recorded.
                self.bytes = MAX_STREAM_BYTES;
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

/// Splits a line at the maximum length.
fn pieces(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let one = line.is_empty().then_some(line);
    one.into_iter().chain(line.chunks(MAX_LINE_BYTES))
}

impl ContainerOutput {
    /// The output of a container of this tenant.
    pub(crate) fn new(id: &str, owner: &str) -> ContainerOutput {
        ContainerOutput {
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

fn stream_index(stream: StdStream) -> usize {
    match stream {
        StdStream::Stdout => 0,
        StdStream::Stderr => 1,
    }
}

impl TelemetryRecorder {
    /// Records that a program started in the container.
    pub(crate) fn started(&self, id: &str) {
        self.add(Record::Started {
            id: id.to_owned(),
            at: engine::now(),
        });
    }

    /// Records output of a container.
    pub(crate) fn wrote(&self, output: &ContainerOutput, stream: StdStream, bytes: &[u8]) {
        let whole = locked(&output.streams[stream_index(stream)]).take(bytes);
        if let Some(lines) = whole {
            self.add(output.row(stream_index(stream), lines));
        }
    }

    /// Records the last line, and how many bytes were left out.
    pub(crate) fn ended(&self, output: &ContainerOutput) {
        for (index, stream) in output.streams.iter().enumerate() {
            let (rest, lost) = {
                let mut lines = locked(stream);
                (lines.take_rest(), std::mem::take(&mut lines.lost))
            };
            let gap = (lost > 0)
                .then(|| format!("[airlock: {lost} more bytes of this stream are not kept]"));
            rest.into_iter()
                .chain(gap)
                .for_each(|lines| self.add(output.row(index, lines)));
        }
    }

    /// Records a log line of the server.
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

    /// Number of dropped records.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(&self, record: Record) {
        let mut waiting = locked(&self.waiting);
        let bytes = record.bytes();
        if waiting.bytes + bytes > MAX_QUEUED_BYTES || waiting.records.len() >= MAX_QUEUED_RECORDS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += bytes;
        waiting.records.push_back(record);
        drop(waiting);
        self.grown.notify_one();
    }

    fn take_batch(&self) -> Vec<Record> {
        let mut waiting = locked(&self.waiting);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && batch.len() < BATCH_RECORDS {
            let Some(record) = waiting.records.pop_front() else {
                break;
            };
            bytes += record.bytes();
            batch.push(record);
        }
        waiting.bytes -= bytes;
        batch
    }
}

impl Gateway {
    /// Stores records as they come; never returns.
    pub(crate) async fn write_telemetry(self) {
        let mut reported = 0;
        loop {
            self.recorder().grown.notified().await;
            tokio::time::sleep(BATCH_DELAY).await;
            self.flush_telemetry().await;
            let lost = self.recorder().dropped();
            // This warning adds a record: while none is stored it would repeat without end.
            if lost > reported && !self.reserve().is_released() {
                crate::log_warning(format_args!(
                    "{} records of telemetry found no room",
                    lost - reported
                ));
                reported = lost;
            }
        }
    }

    /// Stores all queued records.
    pub(crate) async fn flush_telemetry(&self) {
        loop {
            let batch = self.recorder().take_batch();
            if batch.is_empty() {
                return;
            }
            // Telemetry must not use the disk reserve.
            if self.reserve().is_released() {
                let dropped = &self.recorder().dropped;
                dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                continue;
            }
            let count = batch.len() as u64;
            let bytes = batch.iter().map(Record::stored).sum();
            let work = move |transaction: &store::server_database::WriteTransaction<'_>| {
                // A record that fails does not fail its batch.
                let write = |record: &Record| match record {
                    Record::Started { id, at } => transaction.start_container(id, at.0),
                    Record::Lines(row) => transaction.add_log(row),
                };
                Ok(batch.iter().filter(|record| write(record).is_err()).count() as u64)
            };
            let written = self.writer().write(work).await;
            self.recorder()
                .dropped
                .fetch_add(*written.as_ref().unwrap_or(&count), Ordering::Relaxed);
            if self.recorder().written.fetch_add(bytes, Ordering::Relaxed) + bytes
                > PRUNE_AFTER_BYTES
            {
                self.recorder().over_threshold.notify_one();
            }
            // The failure is logged, which adds a record: retrying at once would never end.
            if written.is_err() {
                return;
            }
        }
    }

    /// Prunes old and excess telemetry at start, every hour, and after many writes; once a day it
    /// also returns free pages to the disk. Runs on blocking threads.
    pub(crate) async fn prune_telemetry_periodically(self) {
        let mut vacuumed_at = None::<std::time::Instant>;
        loop {
            let with_vacuum = vacuumed_at.is_none_or(|last| last.elapsed() >= VACUUM_INTERVAL);
            if with_vacuum {
                vacuumed_at = Some(std::time::Instant::now());
            }
            self.recorder().written.store(0, Ordering::Relaxed);
            self.prune_telemetry(with_vacuum).await;
            // Either the interval or the threshold.
            _ = tokio::time::timeout(PRUNE_INTERVAL, self.recorder().over_threshold.notified())
                .await;
        }
    }

    async fn prune_telemetry(&self, with_vacuum: bool) {
        let gateway = self.clone();
        let pruned = tokio::task::spawn_blocking(move || {
            let now = engine::now().0;
            let kept = TelemetryRetention {
                logs_since_ms: now.saturating_sub(7 * DAY_MS),
                containers_since_ms: now.saturating_sub(30 * DAY_MS),
                log_bytes: MAX_LOG_BYTES,
                containers: MAX_CONTAINERS,
            };
            gateway.database().prune_telemetry(&kept)?;
            if with_vacuum {
                gateway.vacuum_database()?;
            }
            Ok::<_, store::DatabaseError>(())
        });
        if let Ok(Err(error)) = pruned.await {
            crate::log_warning(format_args!("old telemetry cannot be forgotten: {error}"));
        }
    }

    /// In small steps, because other writers wait meanwhile.
    fn vacuum_database(&self) -> Result<(), store::DatabaseError> {
        let mut left = u64::MAX;
        loop {
            let now = self.database().vacuum()?;
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

    fn written(recorder: &TelemetryRecorder) -> Vec<(String, String)> {
        let lines = |record| match record {
            Record::Lines(row) => Some((row.stream, row.lines)),
            Record::Started { .. } => None,
        };
        let mut all = Vec::new();
        loop {
            let batch = recorder.take_batch();
            if batch.is_empty() {
                return all;
            }
            all.extend(batch.into_iter().filter_map(lines));
        }
    }

    fn pair(stream: &str, lines: &str) -> (String, String) {
        (stream.to_owned(), lines.to_owned())
    }

    #[test]
    fn lines_are_whole_however_they_come_and_the_last_needs_no_end() {
        let (recorder, output) = (
            TelemetryRecorder::default(),
            ContainerOutput::new("r", "acme"),
        );
        for piece in ["he", "llo\nwor", "ld\nagain\n", "rest"] {
            recorder.wrote(&output, StdStream::Stdout, piece.as_bytes());
        }
        recorder.wrote(&output, StdStream::Stderr, b"\xff\n");
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
            let (recorder, output) = (
                TelemetryRecorder::default(),
                ContainerOutput::new("r", "acme"),
            );
            (0..times).for_each(|_| recorder.wrote(&output, StdStream::Stdout, &piece));
            recorder.ended(&output);
            let all = written(&recorder);
            let bytes: usize = all.iter().map(|(_, lines)| lines.len()).sum();
            let last = &all.last().unwrap().1;
            assert!(
                bytes <= MAX_STREAM_BYTES + 100 && last.contains("more bytes of this stream"),
                "{bytes} {last}"
            );
            let lines = all.iter().flat_map(|(_, lines)| lines.split('\n'));
            assert!(
                lines.clone().count() <= MAX_STREAM_LINES * 2
                    && lines.clone().all(|line| line.len() <= MAX_LINE_BYTES)
            );
        }
    }

    #[test]
    fn what_waits_is_bounded_and_what_found_no_room_is_counted() {
        let recorder = TelemetryRecorder::default();
        let line = "x".repeat(1 << 20);
        (0..20).for_each(|_| recorder.service(Timestamp(0), line.clone()));
        assert!(recorder.dropped() >= 4, "{}", recorder.dropped());
        assert_eq!(written(&recorder).len() as u64 + recorder.dropped(), 20);
        recorder.service(Timestamp(0), line);
        assert_eq!(written(&recorder).len(), 1, "there is room again");
    }
}
