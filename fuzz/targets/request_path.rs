//! Paths of requests, a pattern on the line before. No text makes the reader panic; what it takes has one spelling, leads
//! nowhere above, and is matched the same however it was written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{PathPattern, RequestPath};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (pattern, path) = text.split_once('\n').unwrap_or(("/**", text));
    let pattern: Option<PathPattern> = pattern.parse().ok();
    if let Some(pattern) = &pattern {
        assert_eq!(pattern.as_str().parse().as_ref(), Ok(pattern));
    }
    let Ok(path) = path.parse::<RequestPath>() else {
        return;
    };
    let again: RequestPath = path.as_str().parse().expect("what was taken is taken");
    assert_eq!(again, path, "and is the same");
    assert!(path.as_str().starts_with('/'));
    assert!(
        path.as_str()
            .bytes()
            .all(|byte| (0x21..0x7f).contains(&byte) && !b"\\#?".contains(&byte))
    );
    assert!(
        !path
            .as_str()
            .split('/')
            .any(|part| part == "." || part == ".."),
        "{path:?}"
    );
    assert!(
        "/**"
            .parse::<PathPattern>()
            .expect("a pattern")
            .matches(&path)
    );
    if let Some(pattern) = pattern {
        let matched = pattern.matches(&path);
        // A pattern without a star is a path, and matches that and no other.
        if !pattern.as_str().contains('*') {
            assert_eq!(
                matched,
                pattern.as_str() == path.as_str(),
                "{pattern:?} {path:?}"
            );
        }
    }
});
