//! Bodies that are encoded, or say that they are: frame by frame, each one flushed.

use crate::settings::Encoding;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use std::{
    io::{self, Write},
    mem,
    sync::{Arc, Mutex, PoisonError},
};

/// Where an encoder writes, and we take away.
#[derive(Clone, Default)]
struct Drain(Arc<Mutex<Vec<u8>>>);

impl Drain {
    fn take(&self) -> Vec<u8> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Drain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Encodes a body in parts.
pub(crate) struct Encoder {
    writer: Box<dyn Write + Send>,
    drain: Drain,
}

impl Encoder {
    pub(crate) fn new(encoding: Encoding) -> io::Result<Encoder> {
        let drain = Drain::default();
        let gzip = |into| GzEncoder::new(into, Compression::fast());
        let writer: Box<dyn Write + Send> = match encoding {
            Encoding::Gzip => Box::new(gzip(drain.clone())),
            Encoding::Deflate => Box::new(ZlibEncoder::new(drain.clone(), Compression::fast())),
            Encoding::Zstd => {
                Box::new(zstd::stream::write::Encoder::new(drain.clone(), 1)?.auto_finish())
            }
            Encoding::GzipTwice => {
                Box::new(GzEncoder::new(gzip(drain.clone()), Compression::fast()))
            }
            Encoding::GzipLie | Encoding::BrLie | Encoding::Unknown => Box::new(drain.clone()),
        };
        Ok(Encoder { writer, drain })
    }

    /// What this part becomes.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> Vec<u8> {
        // It writes to memory.
        _ = self
            .writer
            .write_all(bytes)
            .and_then(|()| self.writer.flush());
        self.drain.take()
    }

    /// What is left at the end.
    pub(crate) fn end(self) -> Vec<u8> {
        let Encoder { writer, drain } = self;
        drop(writer);
        drain.take()
    }
}

/// What Content-Encoding says.
pub(crate) fn name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Gzip | Encoding::GzipLie => "gzip",
        Encoding::Deflate => "deflate",
        Encoding::Zstd => "zstd",
        Encoding::GzipTwice => "gzip, gzip",
        Encoding::BrLie => "br",
        Encoding::Unknown => "mock",
    }
}

/// A gzip of so many MiB of spaces in front of a JSON text.
pub(crate) fn bomb(mebibytes: usize, json: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let spaces = vec![b' '; 1 << 20];
    for _ in 0..mebibytes {
        encoder.write_all(&spaces)?;
    }
    encoder.write_all(json.as_bytes())?;
    encoder.finish()
}
