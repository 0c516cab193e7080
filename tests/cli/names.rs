//! Names of types, files and modules: no retired word comes back, and no public name has two meanings without a reason.

use airlock_cli_tests::source_files::{read, rust_files};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

const FOLDERS: [&str; 4] = ["crates", "bench", "tests", "fuzz"];

/// Words that say nothing of what a type is.
const RETIRED_TYPES: [&str; 33] = [
    "About", "Asked", "Berth", "Books", "Courier", "Crowd", "Desk", "For", "Found", "Held",
    "Keeper", "Kept", "Lane", "Letter", "Line", "Noted", "Of", "Passage", "Post", "Room", "Said",
    "Seen", "Shelf", "Shelves", "Steward", "Told", "Till", "Wanted", "Which", "Whose", "Hated",
    "Lent", "Patience",
];

/// Words by which nobody would look for what a file contains.
const RETIRED_MODULES: [&str; 23] = [
    "berth", "books", "chance", "courier", "crowd", "desk", "further", "hated", "keeper", "lane",
    "lent", "making", "mistake", "paper", "passage", "passing", "patience", "shelf", "shelves",
    "steward", "till", "told", "wider",
];

/// Public names that stand for several types, each with the reason, as `NAME: REASON`.
const SHARED_NAMES: &str = "tests/cli/shared_names.txt";

/// A type that a line declares.
#[derive(Debug, PartialEq, Eq)]
struct Declaration<'a> {
    name: &'a str,
    is_public: bool,
}

fn declaration(line: &str) -> Option<Declaration<'_>> {
    let line = line.trim_start();
    let (is_public, rest) = match line.strip_prefix("pub") {
        Some(rest) => match rest.strip_prefix('(') {
            Some(restricted) => (false, restricted.split_once(')')?.1),
            None => (true, rest),
        },
        None => (false, line),
    };
    let (kind, rest) = rest.trim_start().split_once(' ')?;
    if !["struct", "enum", "trait", "type", "union"].contains(&kind) {
        return None;
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    (!name.is_empty()).then_some(Declaration { name, is_public })
}

/// The module that a line declares in place.
fn inline_module(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub ").unwrap_or(line);
    line.strip_prefix("mod ")?.strip_suffix(" {")
}

/// The names of a file and of its folders. Tests beside a file have its name, and are not counted for it.
fn module_names(path: &Path) -> Vec<String> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let stem = stem.strip_suffix("_tests").unwrap_or(&stem).to_owned();
    let folders = path.parent().into_iter().flat_map(Path::components);
    folders
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .chain([stem])
        .collect()
}

/// The retired words in a file.
fn retired_in(path: &Path, text: &str) -> Vec<String> {
    let types = text.lines().filter_map(declaration);
    let types = types
        .map(|declared| declared.name.to_owned())
        .filter(|name| RETIRED_TYPES.contains(&name.as_str()));
    let modules = text.lines().filter_map(inline_module).map(str::to_owned);
    let modules = modules
        .chain(module_names(path))
        .filter(|name| RETIRED_MODULES.contains(&name.as_str()));
    types.chain(modules).collect()
}

#[test]
fn no_retired_word_is_the_name_of_a_type_a_file_or_a_module() {
    let found_in = |path: &str, text: &str| retired_in(Path::new(path), text);
    assert_eq!(
        found_in(
            "crates/x/src/desk.rs",
            "pub struct Told(u8);\n    pub(crate) enum Line<'a> {\n"
        ),
        ["Told", "Line", "desk"]
    );
    assert_eq!(
        found_in("crates/x/src/lane/a_tests.rs", "mod till {\ntype Of = u8;"),
        ["Of", "till", "lane"]
    );
    let free = "struct Deadline;\n// struct Told;\nlet line = Line::new();\nmod tests {\n";
    assert_eq!(found_in("crates/x/src/budget.rs", free), [""; 0]);

    let files = rust_files(&FOLDERS);
    assert!(files.len() > 500, "the test sees files: {}", files.len());
    let retired: BTreeMap<PathBuf, Vec<String>> = files
        .into_iter()
        .map(|path| (path.clone(), retired_in(&path, &read(&path))))
        .filter(|(_, words)| !words.is_empty())
        .collect();
    assert!(retired.is_empty(), "retired words: {retired:#?}");
}

/// Every public type of the libraries and programs, with the files that declare it. Packages of tests are libraries for
/// themselves alone.
fn public_types() -> BTreeMap<String, BTreeSet<PathBuf>> {
    let mut types: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for path in rust_files(&["crates", "bench"]) {
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        for declared in read(&path).lines().filter_map(declaration) {
            if declared.is_public {
                let files = types.entry(declared.name.to_owned()).or_default();
                files.insert(path.clone());
            }
        }
    }
    types
}

#[test]
fn two_public_types_of_one_name_have_a_reason() {
    let name_of = |line| {
        declaration(line)
            .filter(|it| it.is_public)
            .map(|it| it.name)
    };
    assert_eq!(name_of("pub struct Secret(String);"), Some("Secret"));
    assert_eq!(name_of("pub(crate) struct Secret;"), None);
    assert_eq!(name_of("struct Secret;"), None);

    let list = read(Path::new(SHARED_NAMES));
    let reasons: BTreeMap<&str, &str> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(": ").expect("`NAME: REASON`"))
        .collect();
    let types = public_types();
    assert!(types.len() > 300, "the test sees types: {}", types.len());
    let shared: BTreeMap<_, _> = types.iter().filter(|(_, files)| files.len() > 1).collect();
    let without: BTreeMap<_, _> = shared
        .iter()
        .filter(|(name, _)| !reasons.contains_key(name.as_str()))
        .collect();
    assert!(without.is_empty(), "rename all but one: {without:#?}");
    let is_shared = |name: &str| shared.contains_key(&name.to_owned());
    let stale: Vec<_> = reasons.keys().filter(|name| !is_shared(name)).collect();
    assert!(stale.is_empty(), "{SHARED_NAMES} need not name {stale:?}");
}
