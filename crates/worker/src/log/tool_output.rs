//! Output of tools in the log: bounded per call, without terminal control characters and host
//! paths.

use super::{CallIds, Log, LogEntry, LogSeverity};
use std::path::PathBuf;

/// Logged output of one call, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// A longer line is split.
const MAX_LINE_BYTES: usize = 2048;
/// Replacement for a host path.
const REDACTED: &str = "…";

/// Output stream of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    fn name(self) -> &'static str {
        match self {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        }
    }
}

/// Output of one call on its way to the log.
#[derive(Debug)]
pub struct ToolOutput {
    log: Log,
    ids: CallIds,
    hidden: Vec<PathBuf>,
    held: [Vec<u8>; 2],
    left: usize,
    /// Whether the truncation has been logged.
    is_cut: bool,
}

impl ToolOutput {
    /// For the call with these ids. Paths in `hidden` are removed.
    pub fn new(log: Log, ids: CallIds, hidden: Vec<PathBuf>) -> ToolOutput {
        ToolOutput {
            log,
            ids,
            hidden,
            held: [Vec::new(), Vec::new()],
            left: MAX_OUTPUT_BYTES,
            is_cut: false,
        }
    }

    /// Adds output.
    pub fn take(&mut self, stream: OutputStream, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.left > 0 {
            let held = &mut self.held[stream as usize];
            let room = MAX_LINE_BYTES - held.len();
            let piece = &bytes[..bytes.len().min(room).min(self.left)];
            let (taken, is_whole) = match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (piece.len(), piece.len() == room),
            };
            held.extend_from_slice(&bytes[..taken]);
            self.left -= taken;
            bytes = &bytes[taken..];
            if is_whole {
                self.flush_line(stream);
            }
        }
        if !bytes.is_empty() && !self.is_cut {
            self.is_cut = true;
            self.flush_line(OutputStream::Stdout);
            self.flush_line(OutputStream::Stderr);
            let line = LogEntry::new(LogSeverity::Warn, "tool_output_cut").for_call(&self.ids);
            self.log.write(line.with("bytes", MAX_OUTPUT_BYTES as u64));
        }
    }

    /// Flushes the rest.
    pub fn end(mut self) {
        self.flush_line(OutputStream::Stdout);
        self.flush_line(OutputStream::Stderr);
    }

    fn flush_line(&mut self, stream: OutputStream) {
        let held = std::mem::take(&mut self.held[stream as usize]);
        let text = clean(&String::from_utf8_lossy(&held), &self.hidden);
        let text = text.trim_end();
        if !text.is_empty() {
            let line = LogEntry::new(LogSeverity::Info, "tool_output").for_call(&self.ids);
            self.log
                .write(line.with("stream", stream.name()).message(text));
        }
    }
}

/// Removes terminal control characters and these paths.
pub fn clean(text: &str, hidden: &[PathBuf]) -> String {
    let text: String = text
        .chars()
        .map(|letter| if is_unsafe(letter) { ' ' } else { letter })
        .collect();
    hide(text, hidden)
}

/// Removes these paths.
pub fn hide(mut text: String, hidden: &[PathBuf]) -> String {
    // The root directory is part of every path.
    let long_enough = hidden
        .iter()
        .filter_map(|path| path.to_str())
        .filter(|path| path.len() > 1);
    let mut paths: Vec<&str> = long_enough.collect();
    // Longest first: the rest of a longer path would reveal it.
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in paths {
        if text.contains(path) {
            text = text.replace(path, REDACTED);
        }
    }
    text
}

/// Control characters and characters that change the writing direction.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}
