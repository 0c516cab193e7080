//! Validates ref names: git's own rules, a little stricter, so that every server and file system
//! reads them alike.

/// Longest ref name.
const MAX_REF_BYTES: usize = 1024;

/// Parses a ref name.
pub(crate) fn parse_ref_name(bytes: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the name of a ref is not UTF-8")?;
    if text.len() > MAX_REF_BYTES {
        return Err("the name of a ref is longer than 1 KiB");
    }
    // Letters of any language, but no combining marks, which some file systems ignore.
    let plain = |character: char| {
        character.is_alphanumeric()
            || character.is_ascii_graphic() && !"~^:?*[\\".contains(character)
    };
    let parts = text
        .strip_prefix("refs/")
        .ok_or("a ref does not begin with refs/")?;
    let good = text.chars().all(plain)
        && parts.split('/').all(is_part)
        && ["..", "@{"].iter().all(|odd| !text.contains(odd))
        && !text.ends_with('.');
    if good {
        Ok(text)
    } else {
        Err("the name of a ref is not one that git allows")
    }
}

fn is_part(part: &str) -> bool {
    let ends_as_lock = part
        .get(part.len().saturating_sub(5)..)
        .is_some_and(|end| end.eq_ignore_ascii_case(".lock"));
    !part.is_empty() && !part.starts_with('.') && !ends_as_lock
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const GOOD: [&str; 7] = [
        "refs/heads/agent/x",
        "refs/heads/ä-b_c.d",
        "refs/tags/v1.0",
        "refs/heads/a@b",
        "refs/for/main%topic=x",
        "refs/stash",
        "refs/heads/{x}",
    ];
    const BAD: [&str; 22] = [
        "refs/heads/../main",
        "refs/heads/a/",
        "refs/heads//a",
        "refs/heads/.a",
        "refs/heads/a.lock",
        "refs/heads/a.lock/b",
        "refs/heads/a b",
        "refs/heads/a\nb",
        "refs/heads/a~",
        "refs/heads/a^",
        "refs/heads/a:b",
        "refs/heads/a?",
        "refs/heads/a*",
        "refs/heads/a[",
        "refs/heads/a\\b",
        "refs/heads/a@{1}",
        "refs/heads/a.",
        "refs/heads/a\u{7f}",
        "refs/",
        "/refs/heads/a",
        "",
        "refs/heads/a\t",
    ];

    #[test]
    fn names_are_those_of_git() {
        let git = |text: &str| {
            Command::new("git")
                .args(["check-ref-format", text])
                .status()
                .unwrap()
                .success()
        };
        for text in GOOD {
            assert!(
                parse_ref_name(text.as_bytes()) == Ok(text) && git(text),
                "{text}"
            );
        }
        for text in BAD {
            assert!(
                parse_ref_name(text.as_bytes()).is_err() && !git(text),
                "{text}"
            );
        }
    }

    #[test]
    fn and_none_that_servers_could_read_in_two_ways() {
        let long = format!("refs/heads/{}", "a".repeat(1024));
        for text in [
            "HEAD",
            "heads/main",
            "Refs/heads/a",
            "refs/heads/a.LOCK",
            "refs/heads/.\u{200c}./main",
            &long,
        ] {
            assert!(parse_ref_name(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse_ref_name(b"refs/heads/\xff").is_err());
    }
}
