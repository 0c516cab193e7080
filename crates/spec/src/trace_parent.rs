//! W3C Trace Context: the headers `traceparent` and `tracestate`, which any client can forge.

/// Bytes of a `tracestate`.
const MAX_STATE_BYTES: usize = 512;
/// Members of a `tracestate`.
const MAX_MEMBERS: usize = 32;

/// The trace and the span of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace id.
    pub trace: [u8; 16],
    /// The id of the caller's span.
    pub span: [u8; 8],
    /// Bit 0 says that the trace is recorded.
    pub flags: u8,
    /// The `tracestate`, which is forwarded and never read.
    pub state: Option<String>,
}

impl TraceParent {
    /// Parses a `traceparent`.
    pub fn read(text: &str) -> Option<TraceParent> {
        let bytes = text.as_bytes();
        let version = hex::<1>(bytes.get(..2)?)?[0];
        let flags = hex::<1>(bytes.get(53..55)?)?[0];
        let dashes = [2, 35, 52].iter().all(|at| bytes.get(*at) == Some(&b'-'));
        // A later version may have further fields; version 0 has none.
        let ends = match version {
            0 => bytes.len() == 55,
            0xff => false,
            _ => matches!(bytes.get(55), None | Some(b'-')),
        };
        let trace = hex::<16>(bytes.get(3..35)?)?;
        let span = hex::<8>(bytes.get(36..52)?)?;
        let good = dashes && ends && trace != [0; 16] && span != [0; 8];
        good.then_some(TraceParent {
            trace,
            span,
            flags: flags & 1,
            state: None,
        })
    }

    /// The `traceparent` that is forwarded.
    pub fn written(trace: &[u8; 16], span: &[u8; 8], flags: u8) -> String {
        format!(
            "00-{}-{}-{flags:02x}",
            TraceParent::hex(trace),
            TraceParent::hex(span)
        )
    }

    /// Bytes in lower-case hexadecimal.
    pub fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether a text is a `tracestate`: a short list of members `name=value`, each name once.
    pub fn is_state(text: &str) -> bool {
        is_state(text)
    }
}

fn is_state(text: &str) -> bool {
    let plain = |byte: u8| (0x20..0x7f).contains(&byte);
    let members: Vec<_> = text
        .split(',')
        .map(str::trim)
        .filter(|member| !member.is_empty())
        .collect();
    let mut names: Vec<_> = members
        .iter()
        .filter_map(|member| member.split_once('=').map(|(name, _)| name))
        .collect();
    let all_named = names.len() == members.len();
    let name = |name: &&str| {
        let known = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte)
        };
        (1..=256).contains(&name.len()) && name.bytes().all(known)
    };
    let good = all_named && names.iter().all(name);
    names.sort_unstable();
    names.dedup();
    text.len() <= MAX_STATE_BYTES
        && text.bytes().all(plain)
        && (1..=MAX_MEMBERS).contains(&members.len())
        && good
        && names.len() == members.len()
}

/// Parses hexadecimal digits, which must be in lower case.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = digit(*text.get(2 * index)?)? << 4 | digit(*text.get(2 * index + 1)?)?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_parent_is_read_as_it_is_written() {
        let parent = TraceParent::read(GOOD).unwrap();
        assert_eq!(
            TraceParent::written(&parent.trace, &parent.span, parent.flags),
            GOOD
        );
        let later = TraceParent::read(&format!("cc{}-what-the-future-brings", &GOOD[2..])).unwrap();
        assert_eq!((later.trace, later.span), (parent.trace, parent.span));
    }

    #[test]
    fn what_is_malformed_is_as_if_it_were_not_there() {
        let zeros = ["0".repeat(32), "0".repeat(16)];
        for bad in [
            "",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &format!("ff{}", &GOOD[2..]),
            &format!("cc{}x", &GOOD[2..]),
            &GOOD.replace('-', "_"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros[0]),
            &GOOD.replace("00f067aa0ba902b7", &zeros[1]),
            &GOOD.replace('b', "é"),
            &format!("{GOOD} "),
        ] {
            assert_eq!(TraceParent::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_state_is_a_short_list_of_named_values() {
        for good in [
            "a=1",
            "rojo=00f067,congo=t61",
            "fw529a3039@dt=x y ,b=",
            "a=1,,b=2",
        ] {
            assert!(is_state(good), "{good}");
        }
        let long = format!("a={}", "x".repeat(600));
        let many: Vec<_> = (0..33).map(|n| format!("k{n}=v")).collect();
        for bad in [
            "",
            "a",
            "=1",
            "A=1",
            "a=1,a=2",
            "a=\u{7}",
            &long,
            &many.join(","),
        ] {
            assert!(!is_state(bad), "{bad}");
        }
    }
}
