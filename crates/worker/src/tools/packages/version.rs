//! Which of two wheels of one package is the newer: names as PEP 503 compares them, versions as PEP 440 orders them. What is
//! neither has some order all the same.

use std::iter::Peekable;

/// Whose wheel it is, whatever way its name is written; and its version, if the file has the name of a wheel.
pub(super) fn of_wheel(file: &str) -> (String, Version) {
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

/// A version that can be compared. The fields count in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    epoch: u64,
    /// Without zeros at its end: 1.0 is 1.
    release: Vec<u64>,
    stage: Stage,
    post: Option<u64>,
    dev: Dev,
    local: Vec<Part>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// On the way to what comes before the release.
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
enum Part {
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
        while let Some(Part::Number(number)) = rest.next_if(|part| matches!(part, Part::Number(_)))
        {
            release.push(number);
        }
        while release.last() == Some(&0) {
            release.pop();
        }
        let (mut stage, mut post, mut dev) = (None, None, Dev::No);
        while let Some(part) = rest.next() {
            let Part::Word(word) = part else { continue };
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
        let (epoch, stage) = (epoch.parse().unwrap_or(0), stage.unwrap_or(without));
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

/// The number behind a word; none is 0.
fn count(rest: &mut Peekable<impl Iterator<Item = Part>>) -> u64 {
    match rest.next_if(|part| matches!(part, Part::Number(_))) {
        Some(Part::Number(number)) => number,
        _ => 0,
    }
}

/// Its numbers and words, whatever stands between them.
fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    for piece in text.split(|letter: char| !letter.is_ascii_alphanumeric()) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let runs = piece
            .as_bytes()
            .chunk_by(|one, other| is_digit(one) == is_digit(other));
        parts.extend(runs.map(|run| {
            let run = String::from_utf8_lossy(run);
            match run.starts_with(|letter: char| letter.is_ascii_digit()) {
                true => Part::Number(run.parse().unwrap_or(u64::MAX)),
                false => Part::Word(run.into_owned()),
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
        let name = |file: &str| of_wheel(file).0;
        assert_eq!(
            name("Zope.Interface-1.0-py3-none-any.whl"),
            name("zope__interface-2-1-cp311-x-y.whl")
        );
        assert_ne!(
            name("zope-1.0-py3-none-any.whl"),
            name("zope_interface-1.0-py3-none-any.whl")
        );
        assert_eq!(of_wheel("a-1.5-7-py3-none-any.whl").1, Version::new("1.5"));
        assert_eq!(of_wheel("odd.whl").1, Version::new(""));
    }

    proptest! {
        #[test]
        fn whatever_a_file_is_called_it_has_a_place(one in ".{0,30}", other in ".{0,30}") {
            let (one, other) = (of_wheel(&one).1, of_wheel(&other).1);
            prop_assert_eq!(one < other, other > one);
        }
    }
}
