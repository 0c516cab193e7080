//! The head of a request at a door: method, path and query, a line each. No bytes make the table panic; what it lets
//! through was put together by us from what every server reads alike, and never has a credential in it.

#![no_main]

use doors::dialect::{RouteError, route};
use http::Method;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let mut lines = text.splitn(3, '\n');
    let (Some(method), Some(path)) = (lines.next(), lines.next()) else {
        return;
    };
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return;
    };
    let found = match route(&method, path, lines.next()) {
        Ok(found) => found,
        Err(RouteError::NotFound | RouteError::WrongMethod) => return,
    };
    let (place, query) = found.target.split_once('?').unwrap_or((&found.target, ""));
    assert_eq!(place, path, "a path is taken as it came, or not at all");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._:-".contains(&byte);
    assert!(
        place.starts_with('/') && place.bytes().all(plain),
        "{place}"
    );
    assert!(
        !place
            .split('/')
            .skip(1)
            .any(|part| part.is_empty() || part.starts_with('.')),
        "{place}"
    );
    assert!(
        query.split('&').all(|pair| !pair.starts_with("key=")),
        "{query}"
    );
    assert!(
        query
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._~-=&".contains(&byte)),
        "{query}"
    );
    let again = route(&method, place, Some(query)).expect("what was let through is let through");
    assert_eq!(again, found, "and means the same");
});
