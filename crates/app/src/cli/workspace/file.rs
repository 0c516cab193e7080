//! A file that a program wrote, on its way to standard output.

use super::escaped;
use crate::cli::Failure;
use std::io::{self, IsTerminal, Write};

/// What is held of a line that has not ended.
const MAX_HELD: usize = 64 << 10;

/// Standard output: bytes as they are or, on a terminal, what can steer none.
pub(super) struct Viewer {
    is_terminal: bool,
    held: Vec<u8>,
}

impl Viewer {
    pub(super) fn new() -> Viewer {
        Viewer {
            is_terminal: io::stdout().is_terminal(),
            held: Vec::new(),
        }
    }

    /// Whether anybody still reads it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        if !self.is_terminal {
            return put(bytes);
        }
        self.held.extend_from_slice(bytes);
        let end = self.held.iter().rposition(|byte| *byte == b'\n');
        let end = match end {
            Some(end) => end + 1,
            None if self.held.len() > MAX_HELD => self.held.len(),
            None => return Ok(true),
        };
        let whole: Vec<u8> = self.held.drain(..end).collect();
        put(fit(&whole).as_bytes())
    }

    /// With an end of its last line on a terminal.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let rest = std::mem::take(&mut self.held);
        if !rest.is_empty() {
            put(format!("{}\n", fit(&rest)).as_bytes())?;
        }
        Ok(())
    }
}

fn fit(bytes: &[u8]) -> String {
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

fn put(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::internal(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}
