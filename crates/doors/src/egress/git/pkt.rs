//! git's framing: four hex digits say how long a line is, themselves included.

/// One piece of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    /// The list is over.
    Flush,
    /// A line, never empty.
    Line(&'a [u8]),
}

/// The longest line, with its length.
pub(crate) const LONGEST: usize = 65520;
const HEAD: usize = 4;

/// The first piece, and how many bytes it takes; nothing if it is not there as a whole.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, &'static str> {
    let digits = &bytes[..bytes.len().min(HEAD)];
    // Before the rest is awaited: what cannot become a length is refused at once.
    let mut length = 0;
    for digit in digits {
        let digit = char::from(*digit)
            .to_digit(16)
            .ok_or("the length of a line is not in hex digits")?;
        length = length << 4 | digit as usize;
    }
    if digits.len() < HEAD {
        return Ok(None);
    }
    match length {
        0 => Ok(Some((Packet::Flush, HEAD))),
        1..HEAD => Err("there is a delimiter where a push has none"),
        // Once read as the end of a list by git itself.
        HEAD => Err("there is an empty line"),
        _ if length > LONGEST => Err("a line is longer than git allows"),
        _ => Ok(bytes
            .get(HEAD..length)
            .map(|line| (Packet::Line(line), length))),
    }
}

/// Appends a line, which must not be longer than a line can be.
pub(crate) fn put(out: &mut Vec<u8>, line: &[u8]) {
    debug_assert!(line.len() <= LONGEST - HEAD);
    out.extend_from_slice(format!("{:04x}", line.len() + HEAD).as_bytes());
    out.extend_from_slice(line);
}

/// Appends the end of a list.
pub(crate) fn put_flush(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0000");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_four_digits_and_counts_itself() {
        assert_eq!(first(b"0006ab"), Ok(Some((Packet::Line(b"ab"), 6))));
        assert_eq!(
            first(b"000Aabcdefgh"),
            Ok(Some((Packet::Line(b"abcdef"), 10)))
        );
        assert_eq!(first(b"0000PACK"), Ok(Some((Packet::Flush, 4))));
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
        put(&mut out, &[7; LONGEST - HEAD]);
        assert_eq!(
            first(&out),
            Ok(Some((Packet::Line(&[7; LONGEST - HEAD]), LONGEST)))
        );
    }
}
