//! The layering of the code: which crate may use which, where `unsafe` is allowed, how long functions are.

use airlock_cli_tests::{
    cargo, repository,
    source_files::{read, rust_files},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The crates that each crate may use. `sandbox`, `doors` and `store` do not know each other; fronts reach sandboxes by the
/// engine. `airlock` links neither the escape suite nor the benchmarks.
const MAY_USE: [(&str, &[&str]); 15] = [
    (
        "airlock",
        &[
            "airlock-doors",
            "airlock-engine",
            "airlock-fs",
            "airlock-gateway",
            "airlock-image",
            "airlock-store",
            "airlock-spec",
            "airlock-worker",
        ],
    ),
    (
        "airlock-worker",
        &[
            "airlock-doors",
            "airlock-engine",
            "airlock-fs",
            "airlock-spec",
        ],
    ),
    (
        "airlock-gateway",
        &[
            "airlock-engine",
            "airlock-image",
            "airlock-store",
            "airlock-spec",
        ],
    ),
    // Programs of their own, which `airlock` starts and does not link.
    (
        "airlock-bench",
        &[
            "airlock-doors",
            "airlock-engine",
            "airlock-provider",
            "airlock-spec",
            "airlock-store",
            "airlock-worker",
        ],
    ),
    (
        "airlock-escape",
        &["airlock-doors", "airlock-engine", "airlock-spec"],
    ),
    (
        "airlock-engine",
        &[
            "airlock-sandbox",
            "airlock-doors",
            "airlock-fs",
            "airlock-git",
            "airlock-store",
            "airlock-image",
            "airlock-spec",
        ],
    ),
    ("airlock-git", &[]),
    (
        "airlock-sandbox",
        &["airlock-fs", "airlock-init", "airlock-spec"],
    ),
    (
        "airlock-doors",
        &["airlock-fs", "airlock-journal", "airlock-spec"],
    ),
    (
        "airlock-store",
        &["airlock-fs", "airlock-journal", "airlock-spec"],
    ),
    ("airlock-journal", &[]),
    ("airlock-fs", &[]),
    ("airlock-image", &["airlock-fs", "airlock-spec"]),
    ("airlock-init", &[]),
    ("airlock-spec", &[]),
];
/// The one file with `unsafe`, and the attacker's, which runs only in sandboxes; tests may have probes that do forbidden
/// things on purpose.
const UNSAFE: [&str; 2] = ["crates/init/src/sys.rs", "crates/escape/src/attack/sys.rs"];
const LONGEST_FUNCTION: usize = 90;

/// The packages of `crates` and `bench`, each with those of ours that it uses; tests may use any.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let told = cargo()
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .output();
    let told = told.expect("cargo starts");
    assert!(
        told.status.success(),
        "{}",
        String::from_utf8_lossy(&told.stderr)
    );
    let metadata: Value = serde_json::from_slice(&told.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let folders = ["crates", "bench"].map(|folder| repository().join(folder));
    let is_checked = |manifest: &str| {
        folders
            .iter()
            .any(|folder| Path::new(manifest).starts_with(folder))
    };
    let checked = packages
        .iter()
        .filter(|package| is_checked(&text(&package["manifest_path"])));
    let uses = |package: &Value| {
        let all = package["dependencies"]
            .as_array()
            .expect("a list of dependencies");
        // Ours have a path; `dev` is for tests.
        let ours = all
            .iter()
            .filter(|one| one["path"].is_string() && one["kind"].as_str() != Some("dev"));
        (
            text(&package["name"]),
            ours.map(|one| text(&one["name"])).collect(),
        )
    };
    checked.map(uses).collect()
}

#[test]
fn each_crate_uses_only_those_below_it() {
    let allowed: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let uses = uses();
    assert!(
        uses["airlock"].contains("airlock-engine"),
        "the test sees who uses whom: {uses:?}"
    );
    for (package, used) in &uses {
        let may = allowed
            .get(package.as_str())
            .unwrap_or_else(|| panic!("{package} is missing from MAY_USE"));
        let wrong: Vec<_> = used
            .iter()
            .filter(|name| !may.contains(&name.as_str()))
            .collect();
        assert!(wrong.is_empty(), "{package} must not use {wrong:?}");
    }
}

/// Whether the word stands in code: not in a text, not in a comment.
fn has_unsafe(line: &str) -> bool {
    let outside_texts: String = line.split('"').step_by(2).collect();
    let code = outside_texts.split("//").next().unwrap_or_default();
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| word == "unsafe")
}

#[test]
fn unsafe_lives_in_one_file_and_in_the_attackers() {
    for yes in [
        "    match unsafe { prctl(1) } {",
        "unsafe extern \"C\" {}",
        "#[unsafe(no_mangle)]",
        "unsafe { open(c\"x\") }",
    ] {
        assert!(has_unsafe(yes), "{yes}");
    }
    for no in [
        "// unsafe",
        "let unsafely = 1;",
        "#![deny(unsafe_code)]",
        "say(\"unsafe\")",
    ] {
        assert!(!has_unsafe(no), "{no}");
    }
    let lines = |path: &PathBuf| {
        let text = read(path);
        text.lines()
            .filter(|line| has_unsafe(line))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut found: BTreeMap<_, _> = rust_files(&["crates", "bench"])
        .into_iter()
        .map(|path| (path.clone(), lines(&path)))
        .filter(|(_, lines)| !lines.is_empty())
        .collect();
    UNSAFE
        .iter()
        .for_each(|path| assert!(found.remove(Path::new(path)).is_some(), "{path}"));
    // And the name of the launcher's entry, which cannot lie in a library that others link.
    let entry = (
        PathBuf::from("crates/init/src/main.rs"),
        vec!["#[unsafe(no_mangle)]".to_owned()],
    );
    assert_eq!(found, BTreeMap::from([entry]));
}

/// A test that is never run proves nothing. Some are started by another test; some fill a machine, and the guest is
/// theirs.
#[test]
fn a_test_is_left_out_only_if_somebody_else_runs_it() {
    let runs_elsewhere = |line: &str| {
        line.starts_with("#[ignore = \"a child of ")
            || line.ends_with("only for a machine of its own\"]")
    };
    assert!(
        runs_elsewhere("#[ignore = \"a child of other tests\"]") && !runs_elsewhere("#[ignore]")
    );
    for path in rust_files(&["crates", "bench", "tests"]) {
        let text = read(&path);
        let left_out = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("#[ignore"));
        let wrong: Vec<_> = left_out.filter(|line| !runs_elsewhere(line)).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
    }
}

/// Lines of each function, by rustfmt's layout: it ends at the first brace that stands as far in as its `fn`.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_start = |line: &str| {
        let words = line.split_once("fn ").map(|(before, _)| before.trim());
        words.is_some_and(|before| {
            before.split_whitespace().all(|word| {
                ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
                    || word.starts_with("pub")
                    || word.ends_with(')')
            })
        })
    };
    let starts = lines.iter().enumerate().filter(|(_, line)| is_start(line));
    starts
        .filter_map(|(start, line)| {
            let end = lines[start..]
                .iter()
                .position(|other| other.trim_end() == format!("{}}}", " ".repeat(indent(line))));
            end.map(|end| (line.trim().to_owned(), end + 1))
        })
        .collect()
}

#[test]
fn at_most_one_function_in_a_hundred_is_longer_than_a_long_screen() {
    let counted = functions(
        "pub(crate) async fn a() {\n    b();\n}\n    const fn c(\n    ) {\n        d\n    }\n",
    );
    assert_eq!(
        counted.iter().map(|(_, lines)| *lines).collect::<Vec<_>>(),
        [3, 4]
    );
    let all: Vec<_> = rust_files(&["crates", "tests", "fuzz", "bench"])
        .into_iter()
        .flat_map(|path| {
            functions(&read(&path))
                .into_iter()
                .map(move |(name, lines)| (lines, path.clone(), name))
        })
        .collect();
    assert!(all.len() > 300, "the test sees functions: {}", all.len());
    let long: Vec<_> = all
        .iter()
        .filter(|(lines, _, _)| *lines > LONGEST_FUNCTION)
        .collect();
    for (lines, path, name) in &long {
        println!("{lines} lines: {} {name}", path.display());
    }
    assert!(
        long.len() * 100 <= all.len(),
        "{} of {} functions: {long:#?}",
        long.len(),
        all.len()
    );
}

/// The Rust files that a page names in backticks.
fn files_named_in(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.ends_with(".rs")).collect()
}

#[test]
fn the_architecture_names_files_that_are_there() {
    let architecture = read(Path::new("ARCHITECTURE.md"));
    let lines = architecture.lines().count();
    assert!(lines <= 150, "ARCHITECTURE.md has {lines} lines");
    let all = rust_files(&["crates", "tests", "bench", "fuzz"]);
    // A page names files below the crate or folder that its line speaks of, so the end of a path is enough.
    let exists = |name: &str| all.iter().any(|path| path.ends_with(name));
    let is_below_crates = |name: &str| all.contains(&Path::new("crates").join(name));
    assert!(
        !exists("engine/src/making.rs") && exists("run.rs"),
        "the check can tell"
    );
    let named = files_named_in(&architecture);
    assert!(named.len() > 20, "only {} files are named", named.len());
    let missing: Vec<_> = named
        .into_iter()
        .filter(|name| !exists(name) && !is_below_crates(name))
        .collect();
    assert!(missing.is_empty(), "there is no {missing:?}");
}
