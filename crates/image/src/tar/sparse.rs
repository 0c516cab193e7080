//! Sparse files in GNU's four formats. The size includes holes: a few bytes of archive can declare
//! a file of any size.

use super::{
    BLOCK, RawHeader, TarError, TarInput, TarReader, number,
    pax::{PaxRecords, decimal},
};

/// Maximum segments, above that of any legitimate file.
const MAX_SEGMENTS: usize = 1 << 16;

/// A data segment between holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Offset in the file.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

impl<R: TarInput> TarReader<R> {
    /// Size of a file, and its data segments if it is sparse.
    pub(super) fn segments(
        &mut self,
        raw: &RawHeader<'_>,
        pax: &PaxRecords,
        stored: u64,
    ) -> Result<(u64, Option<Vec<DataSegment>>), TarError> {
        let (size, segments) = if raw.type_flag() == b'S' {
            let size = number(&raw.0[483..495]).ok_or(TarError::Form("a size is no number"))?;
            (size, self.segments_of_header(raw)?)
        } else if pax.sparse_in_contents {
            (
                pax.sparse_size.unwrap_or(stored),
                self.segments_of_contents()?,
            )
        } else if let Some(segments) = pax.listed() {
            (pax.sparse_size.unwrap_or(stored), segments)
        } else {
            return Ok((stored, None));
        };
        check(&segments, size, self.left())?;
        Ok((size, Some(segments)))
    }

    /// Reads four segments in the header, and twenty-one in each extension block.
    fn segments_of_header(&mut self, raw: &RawHeader<'_>) -> Result<Vec<DataSegment>, TarError> {
        let mut segments = Vec::new();
        add(&mut segments, &raw.0[386..482])?;
        let mut more = raw.0[482] != 0;
        while more {
            let block = self.block()?;
            add(&mut segments, &block[..504])?;
            more = block[504] != 0;
        }
        Ok(segments)
    }

    /// Reads decimal numbers, one per line, in whole blocks: the number of segments, then offset
    /// and size of each.
    fn segments_of_contents(&mut self) -> Result<Vec<DataSegment>, TarError> {
        let mut numbers = Vec::new();
        let mut line = Vec::new();
        let mut wanted = 1;
        while numbers.len() < wanted {
            for byte in self.block_of_contents()? {
                match byte {
                    b'\n' if numbers.len() < wanted => {
                        numbers.push(decimal(&line).ok_or(BAD)?);
                        line.clear();
                        if numbers.len() == 1 {
                            let count = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
                            wanted = 1 + 2 * count.min(MAX_SEGMENTS + 1);
                        }
                    }
                    byte if numbers.len() < wanted && line.len() < 20 => line.push(byte),
                    _ if numbers.len() < wanted => return Err(BAD),
                    _ => {}
                }
            }
            if numbers.len() > 2 * MAX_SEGMENTS {
                return Err(TOO_MANY);
            }
        }
        Ok(numbers[1..]
            .chunks_exact(2)
            .map(|two| DataSegment {
                offset: two[0],
                size: two[1],
            })
            .collect())
    }

    fn block_of_contents(&mut self) -> Result<[u8; BLOCK], TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            let there = self.contents()?;
            if there.is_empty() {
                return Err(BAD);
            }
            let part = there.len().min(BLOCK - filled);
            block[filled..filled + part].copy_from_slice(&there[..part]);
            self.consume(part);
            filled += part;
        }
        Ok(block)
    }
}

const BAD: TarError = TarError::Form("the holes of a file are malformed");
const TOO_MANY: TarError = TarError::Form("a file has more than 65536 holes");

fn add(segments: &mut Vec<DataSegment>, fields: &[u8]) -> Result<(), TarError> {
    for field in fields.chunks_exact(24).take_while(|field| field[0] != 0) {
        let at = number(&field[..12]).ok_or(BAD)?;
        let size = number(&field[12..]).ok_or(BAD)?;
        segments.push(DataSegment { offset: at, size });
    }
    if segments.len() > MAX_SEGMENTS {
        Err(TOO_MANY)
    } else {
        Ok(())
    }
}

/// Checks that segments are sorted, disjoint, within the file, and together as long as the stored
/// contents.
fn check(segments: &[DataSegment], size: u64, stored: u64) -> Result<(), TarError> {
    if segments.len() > MAX_SEGMENTS {
        return Err(TOO_MANY);
    }
    let mut end = 0;
    let mut sum = 0_u64;
    for segment in segments {
        if segment.offset < end {
            return Err(BAD);
        }
        end = segment.offset.checked_add(segment.size).ok_or(BAD)?;
        sum = sum.checked_add(segment.size).ok_or(BAD)?;
    }
    if end <= size && sum == stored {
        Ok(())
    } else {
        Err(BAD)
    }
}
