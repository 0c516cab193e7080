//! Tar reader for archives and layers: ustar, GNU and pax. Reads one header at a time, each part of
//! it bounded; the caller reads the contents. Where formats differ, the rules are those of Go's
//! reader, which most tools use.

mod pax;
mod sparse;

use pax::PaxRecords;
pub use sparse::DataSegment;
use std::io::{self, BufRead, BufReader, Read, Seek};

const BLOCK: usize = 512;
const BLOCK_BYTES: u64 = BLOCK as u64;
/// Maximum bytes of an extension header. Extended attributes travel in pax records, and one may
/// have 64 KiB.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// A byte stream that can be skipped.
pub trait TarInput: BufRead {
    /// Skips bytes.
    fn skip(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let there = self.fill_buf()?.len();
            if there == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let part = there.min(usize::try_from(count).unwrap_or(usize::MAX));
            self.consume(part);
            count -= part as u64;
        }
        Ok(())
    }
}

impl TarInput for &[u8] {}

impl<R: TarInput> TarInput for &mut R {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        (**self).skip(count)
    }
}

impl<R: Read + Seek> TarInput for BufReader<R> {
    /// Does not check that the bytes exist: reading later fails instead.
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let far = i64::try_from(count).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        self.seek_relative(far)
    }
}

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TarEntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A hard link to an earlier entry.
    HardLink,
    /// A symbolic link.
    SymbolicLink,
    /// A device or a named pipe.
    Special,
}

/// One entry as its header describes it. Only the syntax has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarHeader {
    /// Path; any bytes but NUL.
    pub path: Vec<u8>,
    /// Target of a link.
    pub link: Vec<u8>,
    /// Type.
    pub kind: TarEntryKind,
    /// Size of the file, holes included.
    pub size: u64,
    /// Owner; larger numbers are clamped.
    pub uid: u32,
    /// Group; larger numbers are clamped.
    pub gid: u32,
    /// The lower twelve bits of the mode.
    pub mode: u16,
    /// Modification time in seconds since 1970; earlier times are 0.
    pub mtime: u64,
    /// Data segments of a sparse file.
    pub segments: Option<Vec<DataSegment>>,
}

/// Why bytes are not valid tar.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// Reading failed.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// The input ended early.
    #[error("it ends in the middle of an entry")]
    Truncated,
    /// The input is not tar.
    #[error("it is no tar archive: {0}")]
    Form(&'static str),
    /// The entry type is not supported.
    #[error("it has an entry of the unknown type `{}`", .0.escape_ascii())]
    Type(u8),
}

impl From<io::Error> for TarError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => TarError::Truncated,
            _ => TarError::Read(source),
        }
    }
}

/// Tar reader: `next`, then as much of the contents as needed, and so on.
#[derive(Debug)]
pub struct TarReader<R> {
    input: R,
    position: u64,
    /// Remaining bytes of the entry's contents.
    left: u64,
    /// Padding of its last block.
    padding: u64,
    ended: bool,
}

impl<R: TarInput> TarReader<R> {
    /// Reads nothing yet.
    pub fn new(input: R) -> Self {
        TarReader {
            input,
            position: 0,
            left: 0,
            padding: 0,
            ended: false,
        }
    }

    /// Bytes read so far; after `next` the contents start here.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Remaining bytes of contents. Of a sparse file only the data segments are stored.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next bytes of the contents, directly from the buffer; empty at their end. `consume`
    /// removes them.
    pub fn contents(&mut self) -> Result<&[u8], TarError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let there = self.input.fill_buf()?;
        if there.is_empty() {
            return Err(TarError::Truncated);
        }
        let part = there
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        Ok(&there[..part])
    }

    /// Consumes bytes that `contents` returned.
    pub fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.left -= count as u64;
        self.position += count as u64;
    }

    /// Bytes after the end of the archive, directly from the buffer; empty at the end of the input.
    pub fn rest(&mut self) -> Result<&[u8], TarError> {
        if self.ended {
            Ok(self.input.fill_buf()?)
        } else {
            Ok(&[])
        }
    }

    /// Consumes bytes that `rest` returned.
    pub fn skip_tail(&mut self, count: usize) {
        self.input.consume(count);
    }

    /// The input, positioned after everything that was read.
    pub fn into_input(self) -> R {
        self.input
    }

    /// The next entry; `None` at the end of the archive.
    #[allow(
        clippy::should_implement_trait,
        reason = "an entry's contents have to be read before the next"
    )]
    pub fn next(&mut self) -> Result<Option<TarHeader>, TarError> {
        let mut pax = PaxRecords::default();
        let mut long_name = None;
        let mut long_link = None;
        loop {
            self.skip_rest()?;
            let Some(block) = self.header_block()? else {
                return Ok(None);
            };
            let raw = RawHeader(&block);
            match raw.type_flag() {
                b'x' => pax = PaxRecords::read(&self.extension(&raw)?)?,
                b'g' => drop(self.extension(&raw)?),
                b'L' => long_name = Some(until_nul(&self.extension(&raw)?).to_vec()),
                b'K' => long_link = Some(until_nul(&self.extension(&raw)?).to_vec()),
                _ => return self.entry(&raw, pax, long_name, long_link).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        raw: &RawHeader<'_>,
        mut pax: PaxRecords,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<TarHeader, TarError> {
        let stored = pax.size.map_or_else(|| raw.size(), Ok)?;
        let path = long_name
            .or(pax.sparse_name.take())
            .or(pax.path.take())
            .unwrap_or_else(|| raw.path());
        let kind = entry_kind(raw.type_flag(), &path)?;
        let link = long_link
            .or(pax.link.take())
            .unwrap_or_else(|| until_nul(&raw.0[157..257]).to_vec());
        if path.contains(&0) || link.contains(&0) {
            return Err(TarError::Form("a name has a NUL in it"));
        }
        // As in Go: only files have contents, whatever the header says.
        let stored = if kind == TarEntryKind::File {
            stored
        } else {
            0
        };
        self.begin(stored);
        let (size, segments) = match kind {
            TarEntryKind::File => self.segments(raw, &pax, stored)?,
            TarEntryKind::Folder
            | TarEntryKind::HardLink
            | TarEntryKind::SymbolicLink
            | TarEntryKind::Special => (0, None),
        };
        Ok(TarHeader {
            path,
            link,
            kind,
            size,
            uid: pax.uid.unwrap_or_else(|| raw.id(108..116)),
            gid: pax.gid.unwrap_or_else(|| raw.id(116..124)),
            mode: (number(&raw.0[100..108]).unwrap_or(0) & 0o7777) as u16,
            mtime: pax
                .mtime
                .unwrap_or_else(|| number(&raw.0[136..148]).unwrap_or(0)),
            segments,
        })
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK_BYTES - size % BLOCK_BYTES) % BLOCK_BYTES;
    }

    fn skip_rest(&mut self) -> Result<(), TarError> {
        let rest = self
            .left
            .checked_add(self.padding)
            .ok_or(TarError::Truncated)?;
        self.input.skip(rest)?;
        self.position = self.position.checked_add(rest).ok_or(TarError::Truncated)?;
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn header_block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.ended || self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let block = self.block()?;
        if block != [0; BLOCK] {
            return check_sum(&block).map(|()| Some(block));
        }
        self.ended = true;
        if !self.input.fill_buf()?.is_empty() && self.block()? != [0; BLOCK] {
            return Err(TarError::Form("something follows its end"));
        }
        Ok(None)
    }

    fn block(&mut self) -> Result<[u8; BLOCK], TarError> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block)?;
        self.position += BLOCK_BYTES;
        Ok(block)
    }

    /// Contents of a header that describes the next one.
    fn extension(&mut self, raw: &RawHeader<'_>) -> Result<Vec<u8>, TarError> {
        let size = raw.size()?;
        if size > MAX_EXTENSION_BYTES {
            return Err(TarError::Form("a header is longer than 1 MiB"));
        }
        self.begin(size);
        let mut bytes = Vec::new();
        while self.left > 0 {
            bytes.extend_from_slice(self.contents()?);
            let taken = bytes.len() as u64 - (size - self.left);
            self.consume(taken as usize);
        }
        Ok(bytes)
    }
}

fn entry_kind(flag: u8, path: &[u8]) -> Result<TarEntryKind, TarError> {
    Ok(match flag {
        // In the oldest format, a path with a trailing slash is a folder. A file of that name has
        // contents, and these are no headers: a reader that takes it for a folder sees a different
        // layer than the others.
        0 if path.ends_with(b"/") => TarEntryKind::Folder,
        0 | b'0' | b'7' | b'S' => TarEntryKind::File,
        b'1' => TarEntryKind::HardLink,
        b'2' => TarEntryKind::SymbolicLink,
        b'3' | b'4' | b'6' => TarEntryKind::Special,
        b'5' => TarEntryKind::Folder,
        other => return Err(TarError::Type(other)),
    })
}

/// A header block.
struct RawHeader<'a>(&'a [u8; BLOCK]);

impl RawHeader<'_> {
    fn type_flag(&self) -> u8 {
        self.0[156]
    }

    fn size(&self) -> Result<u64, TarError> {
        number(&self.0[124..136]).ok_or(TarError::Form("a size is no number"))
    }

    fn id(&self, field: std::ops::Range<usize>) -> u32 {
        number(&self.0[field])
            .and_then(|id| u32::try_from(id).ok())
            .unwrap_or(u32::MAX)
    }

    fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        let prefix = match (&self.0[257..265], &self.0[508..]) {
            (b"ustar\x0000", b"tar\0") => &self.0[345..476],
            (b"ustar\x0000", _) => &self.0[345..500],
            _ => &[],
        };
        match until_nul(prefix) {
            [] => name.to_vec(),
            prefix => [prefix, b"/", name].concat(),
        }
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    &field[..end]
}

/// Octal digits, or GNU's binary format; `None` if invalid, negative or too large.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let digits = std::iter::once(field[0] & 0x7f).chain(field[1..].iter().copied());
        return digits.into_iter().try_fold(0_u64, |sum, byte| {
            (sum >> 56 == 0).then(|| (sum << 8) | u64::from(byte))
        });
    }
    let text = str::from_utf8(until_nul(field)).ok()?.trim();
    if text.is_empty() {
        Some(0)
    } else {
        u64::from_str_radix(text, 8).ok()
    }
}

/// Some old writers summed signed bytes.
fn check_sum(block: &[u8; BLOCK]) -> Result<(), TarError> {
    let mut plain = 0_i64;
    let mut signed = 0_i64;
    for (at, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) {
            b' '
        } else {
            *byte
        };
        plain += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    let written = number(&block[148..156]).and_then(|sum| i64::try_from(sum).ok());
    if written.is_some_and(|sum| sum == plain || sum == signed) {
        Ok(())
    } else {
        Err(TarError::Form("the checksum of a header is wrong"))
    }
}
