//! Reads, decompresses and hashes a layer on a separate thread while another unpacks it. The digest
//! is known only at the end; until then the contents are unverified and stay in a draft.

use crate::{
    error::ImageError,
    limits::ImageLimits,
    source::{SourceFile, check_digest, digest_from},
    tar::TarInput,
};
use sha2::{Digest as _, Sha256};
use spec::{Digest, Size};
use std::{
    io::{self, BufRead, BufReader, Read},
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
};

const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_AHEAD: usize = 8;
/// 128 MiB, the maximum window that `zstd` accepts by default.
const MAX_ZSTD_WINDOW_LOG: u32 = 27;

/// One layer of a manifest.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Path of the layer in the source.
    pub(crate) name: String,
    /// Digest and size of the stored bytes, if the manifest states them.
    pub(crate) blob: Option<(Digest, u64)>,
    /// Digest of the uncompressed tar.
    pub(crate) diff_id: Digest,
}

/// Decompresses a stream, if it is compressed.
pub(crate) struct Decompressor {
    compressed: bool,
    reader: Box<dyn Read + Send>,
}

impl Decompressor {
    pub(crate) fn new(from: Box<dyn Read + Send>) -> io::Result<Decompressor> {
        let mut from = BufReader::with_capacity(CHUNK_BYTES, from);
        let start = from.fill_buf()?;
        if start.starts_with(&[0x1f, 0x8b]) {
            return Ok(Decompressor {
                compressed: true,
                reader: Box::new(flate2::bufread::MultiGzDecoder::new(from)),
            });
        }
        if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?;
            decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
            return Ok(Decompressor {
                compressed: true,
                reader: Box::new(decoder),
            });
        }
        Ok(Decompressor {
            compressed: false,
            reader: Box::new(from),
        })
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.compressed
    }
}

impl Read for Decompressor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

/// Reads the uncompressed chunks that the other thread sends.
pub(crate) struct LayerReader {
    from: Receiver<Vec<u8>>,
    chunk: Vec<u8>,
    taken: usize,
}

impl Read for LayerReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let there = self.fill_buf()?;
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for LayerReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.chunk.len() {
            // The sender has finished or failed; joining its thread reports which.
            self.chunk = self.from.recv().unwrap_or_default();
            self.taken = 0;
        }
        Ok(&self.chunk[self.taken..])
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
    }
}

impl TarInput for LayerReader {}

/// Passes the uncompressed layer to `unpack`, then verifies its digests. `plain` counts the
/// uncompressed bytes of all layers: a small layer may be listed many times.
pub(crate) fn unpack(
    file: SourceFile,
    layer: &Layer,
    limits: &ImageLimits,
    plain: &mut u64,
    what: &str,
    unpack: impl FnOnce(&mut LayerReader) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    if let Some((_, size)) = &layer.blob
        && *size != file.size()
    {
        let why = format!("it has {} bytes, and should have {size}", file.size());
        return Err(ImageError::malformed(what, why));
    }
    let (sender, from) = mpsc::sync_channel(CHUNKS_AHEAD);
    let (unpacked, hashed) = thread::scope(|scope| {
        let reading = scope.spawn(|| decompress(file, sender, limits, plain, what));
        let mut chunks = LayerReader {
            from,
            chunk: Vec::new(),
            taken: 0,
        };
        let unpacked = unpack(&mut chunks).and_then(|()| drain(&mut chunks, what));
        drop(chunks);
        let gone = || {
            Err(ImageError::read(what)(io::Error::other(
                "its reader panicked",
            )))
        };
        (unpacked, reading.join().unwrap_or_else(|_| gone()))
    });
    // A read error is the cause of the error that the unpacker saw.
    let hashed = hashed?;
    unpacked?;
    let Some((blob, diff_id)) = hashed else {
        return Err(ImageError::malformed(what, "it was not read to its end"));
    };
    if let Some((expected, _)) = &layer.blob {
        check_digest(what, expected, &blob)?;
    }
    check_digest(&format!("{what}, decompressed,"), &layer.diff_id, &diff_id)
}

/// Bytes after the end of the archive are part of the layer's digest.
fn drain(chunks: &mut LayerReader, what: &str) -> Result<(), ImageError> {
    io::copy(chunks, &mut io::sink())
        .map(drop)
        .map_err(ImageError::read(what))
}

/// Returns the digests of the stored and of the uncompressed layer; `None` if the unpacker gave up.
fn decompress(
    file: SourceFile,
    sender: SyncSender<Vec<u8>>,
    limits: &ImageLimits,
    count: &mut u64,
    what: &str,
) -> Result<Option<(Digest, Digest)>, ImageError> {
    let unreadable = || ImageError::read(what);
    let (hashes, hashed) = mpsc::channel();
    let mut plain = Decompressor::new(Box::new(HashingReader {
        from: file,
        hash: Sha256::new(),
        end: hashes,
    }))
    .map_err(unreadable())?;
    let mut hash = Sha256::new();
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let size = fill(&mut plain, &mut chunk).map_err(unreadable())?;
        if size == 0 {
            break;
        }
        chunk.truncate(size);
        *count += size as u64;
        if *count > limits.unpacked_bytes {
            let limit = Size(limits.unpacked_bytes).to_string();
            return Err(ImageError::Limit {
                what: "the image, decompressed,".to_owned(),
                limit,
            });
        }
        if plain.compressed {
            hash.update(&chunk);
        }
        if sender.send(chunk).is_err() {
            return Ok(None);
        }
    }
    let compressed = plain.compressed;
    drop(plain);
    let blob: Option<Digest> = hashed.recv().ok();
    Ok(blob.map(|blob| {
        if compressed {
            (blob, digest_from(hash))
        } else {
            (blob.clone(), blob)
        }
    }))
}

/// Fills the buffer, so that chunks are large.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(source),
        }
    }
    Ok(filled)
}

/// Hashes what is read through it, and sends the digest at the end.
struct HashingReader {
    from: SourceFile,
    hash: Sha256,
    end: mpsc::Sender<Digest>,
}

impl Read for HashingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        if count == 0 && !buffer.is_empty() {
            if self.from.size() > 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The receiver takes only the first digest.
            let _ = self.end.send(digest_from(self.hash.clone()));
        }
        Ok(count)
    }
}
