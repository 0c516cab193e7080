use super::*;
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// A place that keeps what was written.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogBuffer {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

fn log(format: LogFormat) -> (Log, LogBuffer) {
    let kept = LogBuffer::default();
    (Log::new(format, kept.clone()).unwrap(), kept)
}

fn call_ids() -> CallIds {
    let some = |text: &str| Some(text.to_owned());
    CallIds {
        trace: some("t-1"),
        task: some("k-2"),
        correlation: some("c-3"),
        tool: some("echo"),
    }
}

#[test]
fn a_line_has_the_ids_that_the_mesh_knows_a_call_by() {
    let (log, kept) = log(LogFormat::Json);
    let line = LogEntry::new(LogSeverity::Info, "answered")
        .for_call(&call_ids())
        .took(Duration::from_millis(12));
    log.write(LogEntry {
        at: UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        ..line.message("done")
    });
    log.flush();
    let read: Value = serde_json::from_str(&kept.lines()[0]).unwrap();
    let expected = serde_json::json!({
        "time": "2023-11-14T22:13:20.123Z", "level": "INFO", "event": "answered", "msg": "done", "traceID": "t-1",
        "taskID": "k-2", "corrID": "c-3", "tool": "echo", "duration_ms": 12});
    assert_eq!(read, expected);
}

#[test]
fn a_stranger_s_words_stay_within_their_line() {
    let (log, kept) = log(LogFormat::Text);
    let evil = CallIds {
        task: Some("a\nERROR forged \u{1b}[2J\u{202e}".to_owned()),
        ..CallIds::default()
    };
    log.write(
        LogEntry::new(LogSeverity::Warn, "refused")
            .for_call(&evil)
            .with("why", "x".repeat(100_000)),
    );
    log.flush();
    let lines = kept.lines();
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].len() < 2 * MAX_TEXT_CHARS
            && !lines[0].contains('\u{1b}')
            && !lines[0].contains('\u{202e}')
    );
}

#[test]
fn what_a_tool_prints_is_told_by_lines_cleaned_and_bounded() {
    let (log, kept) = log(LogFormat::Json);
    let hidden = vec![
        PathBuf::from("/srv/secret-place"),
        PathBuf::from("/srv/secret-place/deep"),
    ];
    let mut output = ToolOutput::new(log.clone(), call_ids(), hidden);
    output.take(OutputStream::Stdout, b"one\ntw");
    output.take(OutputStream::Stderr, b"at /srv/secret-place/deep/x.py\n");
    output.take(OutputStream::Stdout, b"o\x1b[31m");
    output.end();
    log.flush();
    let told = |line: &String| {
        let value: Value = serde_json::from_str(line).unwrap();
        (
            value["stream"].as_str().unwrap().to_owned(),
            value["msg"].as_str().unwrap().to_owned(),
        )
    };
    let told: Vec<(String, String)> = kept.lines().iter().map(told).collect();
    let expected = [
        ("stdout", "one"),
        ("stderr", "at …/x.py"),
        ("stdout", "two [31m"),
    ];
    assert_eq!(
        told,
        expected.map(|(stream, text)| (stream.to_owned(), text.to_owned()))
    );
}

#[test]
fn a_tool_that_prints_without_end_is_cut_and_that_is_told() {
    let (log, kept) = log(LogFormat::Json);
    let mut output = ToolOutput::new(log.clone(), call_ids(), Vec::new());
    for _ in 0..100 {
        output.take(OutputStream::Stdout, &[b'x'; 5000]);
    }
    output.end();
    log.flush();
    let lines = kept.lines();
    let bytes: usize = lines.iter().map(String::len).sum();
    assert!(bytes < 2 * MAX_OUTPUT_BYTES, "{bytes}");
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("tool_output_cut"))
            .count(),
        1
    );
    assert!(lines.iter().filter(|line| line.contains("xxx")).count() >= MAX_OUTPUT_BYTES / 2048);
}

#[test]
fn whoever_tells_does_not_wait_for_a_reader() {
    let (held, gate) = mpsc::sync_channel::<()>(0);
    struct Stuck(Receiver<()>);
    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = Log::new(LogFormat::Json, Stuck(gate)).unwrap();
    (0..MAX_QUEUED + 100).for_each(|_| log.write(LogEntry::new(LogSeverity::Info, "said")));
    assert!(log.dropped() >= 98, "{}", log.dropped());
    drop(held);
}

#[test]
fn dates_are_those_of_the_calendar() {
    for (seconds, expected) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199, "2024-02-29T23:59:59.000Z"),
        (4_102_444_800, "2100-01-01T00:00:00.000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(
            iso_8601(UNIX_EPOCH + Duration::from_secs(seconds)),
            expected
        );
    }
}
