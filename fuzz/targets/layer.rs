//! A layer or an archive, as tar. No bytes make the reader panic or take more memory than a header may; it always comes
//! to an end; and however the bytes arrive in pieces, the same entries and contents come out.
//!
//! The first byte says how large the pieces are.

#![no_main]

use image::tar::{TarHeader, TarInput, TarReader};
use libfuzzer_sys::fuzz_target;
use peak_alloc::PeakAlloc;
use std::io::{self, BufRead, BufReader, Read};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A header of 1 MiB is refused above, and inputs here are far smaller: what is kept is a few copies of them.
const MOST_PER_BYTE: usize = 40;
const MOST_AT_FIRST: usize = 64 << 10;

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else {
        return;
    };
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let whole = read(TarReader::new(bytes), bytes.len());
    let taken = MEMORY.peak_usage() - before;
    assert!(
        taken <= MOST_AT_FIRST + MOST_PER_BYTE * bytes.len(),
        "{taken} bytes for {}",
        bytes.len()
    );
    let pieces = Pieces(BufReader::with_capacity(usize::from(*piece) + 1, bytes));
    assert_eq!(read(TarReader::new(pieces), bytes.len()), whole, "in pieces");
});

type Unpacked = (Vec<(TarHeader, Vec<u8>)>, Option<String>);

fn read<R: TarInput>(mut tar: TarReader<R>, most: usize) -> Unpacked {
    let mut found = Vec::new();
    loop {
        match tar.next() {
            Ok(Some(header)) => {
                assert!(!header.path.contains(&0) && !header.link.contains(&0));
                match contents(&mut tar) {
                    Ok(bytes) => found.push((header, bytes)),
                    Err(error) => return (found, Some(error)),
                }
                assert!(found.len() <= most / 512, "an entry has a header");
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error.to_string())),
        }
    }
}

fn contents<R: TarInput>(tar: &mut TarReader<R>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        let there = tar.contents().map_err(|error| error.to_string())?;
        if there.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(there);
        let count = there.len();
        tar.consume(count);
    }
}

/// Without a way to skip but reading.
struct Pieces<'a>(BufReader<&'a [u8]>);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl BufRead for Pieces<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl TarInput for Pieces<'_> {}
