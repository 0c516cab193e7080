//! The runner that calls Python tools inside a box: its claims are Python's (`runner/check.py`), made by running it on tools
//! that lie beside them.

use std::{path::Path, process::Command};

#[test]
fn the_runner_keeps_its_claims() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("/usr/bin/python3")
        .arg(here.join("tests/runner/check.py"))
        .arg(here.join("src/runner/runner.py"))
        .output()
        .expect("there is a Python");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A suite in which nothing ran proves nothing.
    let count = said
        .split("Ran ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count >= 35), "{said}");
}
