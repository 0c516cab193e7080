//! What tools print, in the log: so much of each call and no more, without letters that a terminal obeys and without paths of
//! this machine.

use super::{About, Level, Line, Log};
use std::path::PathBuf;

/// What is told of one call's output, in bytes.
pub const MOST_OUTPUT: usize = 64 << 10;
/// A line that does not end is told in pieces of this size.
const LONGEST_LINE: usize = 2048;
/// What stands for a path of this machine.
const HIDDEN: &str = "…";

/// Which of a tool's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// One call's output on its way to the log.
#[derive(Debug)]
pub struct ToolOutput {
    log: Log,
    about: About,
    hidden: Vec<PathBuf>,
    held: [Vec<u8>; 2],
    left: usize,
    /// Whether it was told that the rest is not.
    is_cut: bool,
}

impl ToolOutput {
    /// Of this call. Paths in `hidden` are not told.
    pub fn new(log: Log, about: About, hidden: Vec<PathBuf>) -> ToolOutput {
        ToolOutput {
            log,
            about,
            hidden,
            held: [Vec::new(), Vec::new()],
            left: MOST_OUTPUT,
            is_cut: false,
        }
    }

    /// It printed this.
    pub fn take(&mut self, stream: Stream, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.left > 0 {
            let held = &mut self.held[stream as usize];
            let room = LONGEST_LINE - held.len();
            let piece = &bytes[..bytes.len().min(room).min(self.left)];
            let (taken, is_whole) = match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (piece.len(), piece.len() == room),
            };
            held.extend_from_slice(&bytes[..taken]);
            self.left -= taken;
            bytes = &bytes[taken..];
            if is_whole {
                self.say(stream);
            }
        }
        if !bytes.is_empty() && !self.is_cut {
            self.is_cut = true;
            self.say(Stream::Stdout);
            self.say(Stream::Stderr);
            let line = Line::new(Level::Warn, "tool_output_cut").about(&self.about);
            self.log.tell(line.with("bytes", MOST_OUTPUT as u64));
        }
    }

    /// It prints no more.
    pub fn end(mut self) {
        self.say(Stream::Stdout);
        self.say(Stream::Stderr);
    }

    fn say(&mut self, stream: Stream) {
        let held = std::mem::take(&mut self.held[stream as usize]);
        let text = clean(&String::from_utf8_lossy(&held), &self.hidden);
        let text = text.trim_end();
        if !text.is_empty() {
            let line = Line::new(Level::Info, "tool_output").about(&self.about);
            self.log
                .tell(line.with("stream", stream.name()).message(text));
        }
    }
}

/// The text without letters that a terminal obeys and without these paths.
pub fn clean(text: &str, hidden: &[PathBuf]) -> String {
    let text: String = text
        .chars()
        .map(|letter| if is_unsafe(letter) { ' ' } else { letter })
        .collect();
    hide(text, hidden)
}

/// The text without these paths.
pub fn hide(mut text: String, hidden: &[PathBuf]) -> String {
    // The root alone is in every path.
    let long_enough = hidden
        .iter()
        .filter_map(|path| path.to_str())
        .filter(|path| path.len() > 1);
    let mut paths: Vec<&str> = long_enough.collect();
    // The longest first: what is left of it would tell the rest.
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in paths {
        if text.contains(path) {
            text = text.replace(path, HIDDEN);
        }
    }
    text
}

/// Controls of terminals, and letters that turn the direction of writing around.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}
