//! Writes a program's file to standard output, escaped on a terminal.

use super::escaped;
use crate::cli::Failure;
use std::io::{self, IsTerminal, Write};

/// The maximum of an incomplete line that is buffered.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Standard output: unchanged bytes or, on a terminal, escaped lines.
pub(super) struct FileViewer {
    is_terminal: bool,
    pending: Vec<u8>,
}

impl FileViewer {
    pub(super) fn new() -> FileViewer {
        FileViewer {
            is_terminal: io::stdout().is_terminal(),
            pending: Vec::new(),
        }
    }

    /// Writes bytes; `false` if the reader has closed the pipe.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        if !self.is_terminal {
            return write_stdout(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let end = self.pending.iter().rposition(|byte| *byte == b'\n');
        let end = match end {
            Some(end) => end + 1,
            None if self.pending.len() > MAX_LINE_BYTES => self.pending.len(),
            None => return Ok(true),
        };
        let whole: Vec<u8> = self.pending.drain(..end).collect();
        write_stdout(printable_lines(&whole).as_bytes())
    }

    /// Writes the rest, with a final newline on a terminal.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            write_stdout(format!("{}\n", printable_lines(&rest)).as_bytes())?;
        }
        Ok(())
    }
}

fn printable_lines(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => {
                escaped(line, &mut text);
                text.push('\n');
            }
            None => escaped(line, &mut text),
        }
    }
    text
}

fn write_stdout(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::internal(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}
