//! Range and conditional requests of files (RFC 9110, 14).

use http::{
    HeaderMap,
    header::{IF_NONE_MATCH, IF_RANGE, RANGE},
};

/// The part of a file that is requested.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The whole file.
    Whole,
    /// Offset and length.
    Part(u64, u64),
    /// The range is not satisfiable.
    Unsatisfiable,
    /// The client has this version already.
    NotModified,
}

/// Parses the request headers. Invalid and multiple ranges mean the whole file.
pub(super) fn requested_range(headers: &HeaderMap, tag: &str, size: u64) -> RequestedRange {
    let known = headers
        .get_all(IF_NONE_MATCH)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    let mut known = known
        .flat_map(|value| value.split(','))
        .map(|one| one.trim().trim_start_matches("W/"));
    if known.any(|one| one == tag || one == "*") {
        return RequestedRange::NotModified;
    }
    let same = headers
        .get(IF_RANGE)
        .is_none_or(|value| value.as_bytes() == tag.as_bytes());
    let range = headers
        .get(RANGE)
        .filter(|_| same)
        .and_then(|value| value.to_str().ok());
    range
        .and_then(|range| part(range, size))
        .unwrap_or(RequestedRange::Whole)
}

fn part(range: &str, size: u64) -> Option<RequestedRange> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().unwrap_or(u64::MAX))
    };
    if first.is_empty() {
        let tail = (!last.is_empty())
            .then(|| number(last))
            .flatten()?
            .min(size);
        return Some(if tail == 0 {
            RequestedRange::Unsatisfiable
        } else {
            RequestedRange::Part(size - tail, tail)
        });
    }
    let first = number(first)?;
    let last = if last.is_empty() {
        u64::MAX
    } else {
        number(last)?
    };
    match (first <= last, first < size) {
        (false, _) => None,
        (true, false) => Some(RequestedRange::Unsatisfiable),
        (true, true) => Some(RequestedRange::Part(first, last.min(size - 1) - first + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&'static str, &'static str)]) -> RequestedRange {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        requested_range(&headers.collect(), "\"v1\"", 100)
    }

    #[test]
    fn a_part_is_within_the_file() {
        assert_eq!(asked(&[]), RequestedRange::Whole);
        assert_eq!(
            asked(&[("range", "bytes=0-9")]),
            RequestedRange::Part(0, 10)
        );
        assert_eq!(
            asked(&[("range", "bytes=90-")]),
            RequestedRange::Part(90, 10)
        );
        assert_eq!(
            asked(&[("range", "bytes=90-1000")]),
            RequestedRange::Part(90, 10)
        );
        assert_eq!(asked(&[("range", "bytes=-7")]), RequestedRange::Part(93, 7));
        assert_eq!(
            asked(&[("range", "bytes=-1000")]),
            RequestedRange::Part(0, 100)
        );
        assert_eq!(
            asked(&[("range", "bytes=0-99999999999999999999999")]),
            RequestedRange::Part(0, 100)
        );
    }

    #[test]
    fn a_part_that_is_not_there_is_said_to_be_nowhere() {
        for range in ["bytes=100-", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(
                asked(&[("range", range)]),
                RequestedRange::Unsatisfiable,
                "{range}"
            );
        }
    }

    #[test]
    fn what_cannot_be_understood_means_the_whole_file() {
        for range in [
            "bytes=9-0",
            "bytes=a-b",
            "lines=1-2",
            "bytes=0-1,4-5",
            "bytes=-",
            "bytes=+1-2",
            "bytes",
        ] {
            assert_eq!(asked(&[("range", range)]), RequestedRange::Whole, "{range}");
        }
    }

    #[test]
    fn a_part_of_another_version_is_not_given() {
        assert_eq!(
            asked(&[("range", "bytes=0-9"), ("if-range", "\"v1\"")]),
            RequestedRange::Part(0, 10)
        );
        assert_eq!(
            asked(&[("range", "bytes=0-9"), ("if-range", "\"v2\"")]),
            RequestedRange::Whole
        );
        assert_eq!(
            asked(&[("if-none-match", "\"v0\", W/\"v1\"")]),
            RequestedRange::NotModified
        );
    }
}
