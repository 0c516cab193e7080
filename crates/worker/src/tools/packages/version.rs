//! Compares wheels of one package: names as in PEP 503, versions as in PEP 440. Invalid ones have
//! some order, too.

use std::iter::Peekable;

/// Normalized package name and version in a wheel's file name.
pub(super) fn parse_wheel_name(file: &str) -> (String, Version) {
    let mut parts = file.split('-');
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let name: Vec<&str> = name
        .split(['_', '.'])
        .filter(|part| !part.is_empty())
        .collect();
    (
        name.join("-"),
        Version::new(parts.next().unwrap_or_default()),
    )
}

/// A version. The fields are compared in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    epoch: u64,
    /// Without trailing zeros: 1.0 equals 1.
    release: Vec<u64>,
    stage: Stage,
    post: Option<u64>,
    dev: Dev,
    local: Vec<VersionPart>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// A development release, before any pre-release.
    Dev,
    Alpha(u64),
    Beta(u64),
    Candidate(u64),
    Release,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Dev {
    Of(u64),
    No,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart {
    Word(String),
    Number(u64),
}

impl Version {
    fn new(text: &str) -> Version {
        let text = text.to_ascii_lowercase();
        let (public, local) = text.split_once('+').unwrap_or((&text, ""));
        let (epoch, rest) = public.split_once('!').unwrap_or(("0", public));
        let mut rest = parts(rest).into_iter().peekable();
        let mut release = Vec::new();
        while let Some(VersionPart::Number(number)) =
            rest.next_if(|part| matches!(part, VersionPart::Number(_)))
        {
            release.push(number);
        }
        while release.last() == Some(&0) {
            release.pop();
        }
        let mut stage = None;
        let mut post = None;
        let mut dev = Dev::No;
        while let Some(part) = rest.next() {
            let VersionPart::Word(word) = part else {
                continue;
            };
            let count = count(&mut rest);
            match &*word {
                "a" | "alpha" => stage = Some(Stage::Alpha(count)),
                "b" | "beta" => stage = Some(Stage::Beta(count)),
                "c" | "rc" | "pre" | "preview" => stage = Some(Stage::Candidate(count)),
                "post" | "rev" | "r" => post = Some(count),
                "dev" => dev = Dev::Of(count),
                _ => {}
            }
        }
        let without = if post.is_none() && dev != Dev::No {
            Stage::Dev
        } else {
            Stage::Release
        };
        let epoch = epoch.parse().unwrap_or(0);
        let stage = stage.unwrap_or(without);
        Version {
            epoch,
            release,
            stage,
            post,
            dev,
            local: parts(local),
        }
    }
}

/// The number after a word; 0 if there is none.
fn count(rest: &mut Peekable<impl Iterator<Item = VersionPart>>) -> u64 {
    match rest.next_if(|part| matches!(part, VersionPart::Number(_))) {
        Some(VersionPart::Number(number)) => number,
        _ => 0,
    }
}

/// Numbers and words of a text, whatever separates them.
fn parts(text: &str) -> Vec<VersionPart> {
    let mut parts = Vec::new();
    for piece in text.split(|letter: char| !letter.is_ascii_alphanumeric()) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let runs = piece
            .as_bytes()
            .chunk_by(|one, other| is_digit(one) == is_digit(other));
        parts.extend(runs.map(|run| {
            let run = String::from_utf8_lossy(run);
            if run.starts_with(|letter: char| letter.is_ascii_digit()) {
                VersionPart::Number(run.parse().unwrap_or(u64::MAX))
            } else {
                VersionPart::Word(run.into_owned())
            }
        }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_in_the_order_of_pep_440() {
        let ascending = [
            "1.dev0",
            "1.0.dev456",
            "1.0a1",
            "1.0a2.dev456",
            "1.0a12.dev456",
            "1.0a12",
            "1.0b1.dev456",
            "1.0b2",
            "1.0b2.post345.dev456",
            "1.0b2.post345",
            "1.0rc1.dev456",
            "1.0rc1",
            "1.0",
            "1.0+abc.5",
            "1.0+abc.7",
            "1.0+5",
            "1.0.post456.dev34",
            "1.0.post456",
            "1.0.15",
            "1.1.dev1",
            "1.9",
            "1.10",
            "99999999999999999999",
            "1!0.1",
        ];
        for pair in ascending.windows(2) {
            assert!(Version::new(pair[0]) < Version::new(pair[1]), "{pair:?}");
        }
        for (one, other) in [
            ("1", "1.0.0"),
            ("1.0RC1", "1.0-c.1"),
            ("1.0_post2", "1.0.post2"),
        ] {
            assert_eq!(Version::new(one), Version::new(other), "{one} {other}");
        }
    }

    #[test]
    fn one_package_has_one_name_however_it_is_written() {
        let name = |file: &str| parse_wheel_name(file).0;
        assert_eq!(
            name("Zope.Interface-1.0-py3-none-any.whl"),
            name("zope__interface-2-1-cp311-x-y.whl")
        );
        assert_ne!(
            name("zope-1.0-py3-none-any.whl"),
            name("zope_interface-1.0-py3-none-any.whl")
        );
        assert_eq!(
            parse_wheel_name("a-1.5-7-py3-none-any.whl").1,
            Version::new("1.5")
        );
        assert_eq!(parse_wheel_name("odd.whl").1, Version::new(""));
    }

    proptest! {
        #[test]
        fn whatever_a_file_is_called_it_has_a_place(one in ".{0,30}", other in ".{0,30}") {
            let one = parse_wheel_name(&one).1;
            let other = parse_wheel_name(&other).1;
            prop_assert_eq!(one < other, other > one);
        }
    }
}
