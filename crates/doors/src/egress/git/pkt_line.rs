//! git's pkt-line framing: four hex digits give the length of a line, themselves included.

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PktLine<'a> {
    /// End of the list.
    Flush,
    /// A line; never empty.
    Line(&'a [u8]),
}

/// Largest line, length prefix included.
pub(crate) const MAX_LINE_BYTES: usize = 65520;
const LENGTH_DIGITS: usize = 4;

/// The first packet and its length in bytes; `None` if it is incomplete.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(PktLine<'_>, usize)>, &'static str> {
    let digits = &bytes[..bytes.len().min(LENGTH_DIGITS)];
    // Invalid length digits are rejected at once, without waiting for the rest.
    let mut length = 0;
    for digit in digits {
        let digit = char::from(*digit)
            .to_digit(16)
            .ok_or("the length of a line is not in hex digits")?;
        length = length << 4 | digit as usize;
    }
    if digits.len() < LENGTH_DIGITS {
        return Ok(None);
    }
    match length {
        0 => Ok(Some((PktLine::Flush, LENGTH_DIGITS))),
        1..LENGTH_DIGITS => Err("there is a delimiter where a push has none"),
        // git itself once read this as the end of a list.
        LENGTH_DIGITS => Err("there is an empty line"),
        _ if length > MAX_LINE_BYTES => Err("a line is longer than git allows"),
        _ => Ok(bytes
            .get(LENGTH_DIGITS..length)
            .map(|line| (PktLine::Line(line), length))),
    }
}

/// Appends a line; the caller keeps to the maximum length.
pub(crate) fn put(out: &mut Vec<u8>, line: &[u8]) {
    debug_assert!(line.len() <= MAX_LINE_BYTES - LENGTH_DIGITS);
    out.extend_from_slice(format!("{:04x}", line.len() + LENGTH_DIGITS).as_bytes());
    out.extend_from_slice(line);
}

/// Appends a flush packet.
pub(crate) fn put_flush(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0000");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_four_digits_and_counts_itself() {
        assert_eq!(first(b"0006ab"), Ok(Some((PktLine::Line(b"ab"), 6))));
        assert_eq!(
            first(b"000Aabcdefgh"),
            Ok(Some((PktLine::Line(b"abcdef"), 10)))
        );
        assert_eq!(first(b"0000PACK"), Ok(Some((PktLine::Flush, 4))));
        assert_eq!(first(b"fff0x"), Ok(None));
        for short in [&b""[..], b"0", b"000", b"0006", b"0006a"] {
            assert_eq!(first(short), Ok(None));
        }
        for bad in [
            &b"x"[..],
            b"+006ab",
            b"-001",
            b"0x06",
            b"00 6",
            b"0001",
            b"0002",
            b"0003",
            b"0004",
            b"fff1",
            b"ffff",
        ] {
            assert!(first(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_put_is_read() {
        let mut out = Vec::new();
        put(&mut out, &[7; MAX_LINE_BYTES - LENGTH_DIGITS]);
        assert_eq!(
            first(&out),
            Ok(Some((
                PktLine::Line(&[7; MAX_LINE_BYTES - LENGTH_DIGITS]),
                MAX_LINE_BYTES
            )))
        );
    }
}
