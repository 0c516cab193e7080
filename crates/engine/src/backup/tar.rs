//! Writes tar archives of regular files with mode 0600.

use std::io::{self, Write};

const BLOCK: usize = 512;
/// The sizes that fit into octal digits; larger ones are written in GNU's binary form.
const MAX_OCTAL_SIZE: u64 = 1 << 33;
const MAX_SHORT_NAME: usize = 100;

/// The mode of every entry.
pub(super) const MODE: u16 = 0o600;

/// The header of a file; the contents follow, then [`padding`].
pub(super) fn header(to: &mut impl Write, path: &str, size: u64) -> io::Result<()> {
    if path.len() <= MAX_SHORT_NAME {
        return to.write_all(&block(path.as_bytes(), size, b'0'));
    }
    let record = record("path", path);
    to.write_all(&block(b"long-name", record.len() as u64, b'x'))?;
    to.write_all(record.as_bytes())?;
    padding(to, record.len() as u64)?;
    let short: Vec<u8> = path.bytes().take(MAX_SHORT_NAME).collect();
    to.write_all(&block(&short, size, b'0'))
}

/// The padding of the last block of a file of this size.
pub(super) fn padding(to: &mut impl Write, size: u64) -> io::Result<()> {
    let rest = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    to.write_all(&[0; BLOCK][..rest as usize])
}

/// The end of an archive.
pub(super) fn end(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&[0; 2 * BLOCK])
}

/// A pax record begins with its own length, including the digits of that length.
fn record(name: &str, value: &str) -> String {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {name}={value}\n")
}

fn block(name: &[u8], size: u64, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, format!("{MODE:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    if size < MAX_OCTAL_SIZE {
        put(124, format!("{size:011o}").as_bytes())
    } else {
        put(124, &[0x80, 0, 0, 0]);
        put(128, &size.to_be_bytes());
    }
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::tar::{TarEntryKind, TarReader};

    #[test]
    fn what_is_written_is_read_back() {
        let long = format!("state/artifacts/{}/1/bytes", "n".repeat(200));
        for path in ["a", &"b".repeat(100), &"c".repeat(101), &long] {
            let mut archive = Vec::new();
            header(&mut archive, path, 3).unwrap();
            archive.extend(b"abc");
            padding(&mut archive, 3).unwrap();
            end(&mut archive).unwrap();
            let mut tar = TarReader::new(&archive[..]);
            let read = tar.next().unwrap().unwrap();
            assert_eq!(
                (read.path.as_slice(), read.kind, read.size, read.mode),
                (path.as_bytes(), TarEntryKind::File, 3, MODE)
            );
            assert_eq!(tar.contents().unwrap(), b"abc");
            assert_eq!(tar.next().unwrap(), None);
        }
    }

    #[test]
    fn sizes_beyond_octal_are_read_back() {
        for size in [0, MAX_OCTAL_SIZE - 1, MAX_OCTAL_SIZE, 1 << 45] {
            let mut archive = Vec::new();
            header(&mut archive, "a", size).unwrap();
            assert_eq!(
                TarReader::new(&archive[..]).next().unwrap().unwrap().size,
                size
            );
        }
    }
}
