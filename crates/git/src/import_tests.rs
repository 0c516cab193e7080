use super::*;
use std::{fs, os::fd::AsFd};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

fn id(text: &str) -> ObjectId {
    ObjectId::parse(text, ObjectFormat::Sha1).unwrap()
}

fn before() -> RefMap {
    RefMap {
        direct: [
            ("refs/heads/main".to_owned(), id(OLD)),
            ("refs/tags/t".to_owned(), id(OLD)),
        ]
        .into(),
        ..RefMap::default()
    }
}

fn plan(lines: &str) -> ImportPlan {
    let text = format!("ref: refs/heads/main\n{lines}\nPACK");
    let (listing, rest) = RefListing::parse(text.as_bytes(), ObjectFormat::Sha1).unwrap();
    assert_eq!(rest, b"PACK");
    listing
        .plan(&Head::Branch("refs/heads/main".to_owned()), &before())
        .unwrap()
}

#[test]
fn only_what_is_new_and_harmless_is_brought() {
    let planned = plan(&format!(
        "{NEW} refs/heads/main\n{OLD} refs/tags/t\n{NEW} refs/heads/feat/x\n{NEW} refs/replace/{OLD}\n\
         {NEW} refs/heads/-x\n{NEW} refs/heads/sym refs/heads/main\n{NEW} refs/stash\n"
    ));
    let names: Vec<_> = planned.refs.iter().map(|one| one.below.as_str()).collect();
    assert_eq!(names, ["heads/feat/x", "heads/main", "stash"]);
    assert_eq!(planned.refs[1].old, Some(id(OLD)));
    assert_eq!(planned.left.len(), 2);
}

#[test]
fn absence_means_nothing() {
    let planned = plan("");
    assert_eq!(planned.refs, []);
    let left: Vec<_> = planned.left.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left, ["refs/heads/main", "refs/tags/t"]);
}

#[test]
fn a_detached_head_arrives_under_its_name() {
    let text = format!("{NEW}\n\n");
    let (listing, _) = RefListing::parse(text.as_bytes(), ObjectFormat::Sha1).unwrap();
    let planned = listing.plan(&Head::Branch("refs/heads/main".to_owned()), &before());
    assert_eq!(planned.unwrap().refs[0].below, "HEAD");
}

#[test]
fn a_list_that_does_not_end_is_refused() {
    for text in [
        "",
        "ref: x",
        "ref: x\nabc",
        "ref: x\nabc refs/heads/x\n\n",
        "\n\u{0}\n",
    ] {
        assert!(
            RefListing::parse(text.as_bytes(), ObjectFormat::Sha1).is_err(),
            "{text:?}"
        );
    }
}

#[test]
fn changed_paths_are_read() {
    let text = format!(
        ":000000 100644 {OLD} {NEW} A\0a b\0:160000 160000 {OLD} {NEW} M\0sub\0\0:000000 160000 {OLD} {NEW} A\0x/y\0\0\n:100644 120000 {OLD} {NEW} T\0link\0"
    );
    let read: Vec<_> = parse_changes(text.as_bytes())
        .unwrap()
        .into_iter()
        .map(|change| {
            (
                change.path.to_vec(),
                change.is_new_gitlink,
                change.link.is_some(),
            )
        })
        .collect();
    let expected = [
        ("a b", false, false),
        ("sub", false, false),
        ("x/y", true, false),
        ("link", false, true),
    ];
    assert_eq!(
        read,
        expected.map(|(path, gitlink, link)| (path.as_bytes().to_vec(), gitlink, link))
    );
    assert_eq!(parse_changes(b"").unwrap(), []);
    for bad in ["x", ":1 2 3", "1 2 3\0x"] {
        assert!(parse_changes(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn references_are_placed_beside_those_of_an_earlier_run_and_through_no_link() {
    let top = std::env::temp_dir().join(format!("airlock-place-{}", std::process::id()));
    _ = fs::remove_dir_all(&top);
    fs::create_dir_all(top.join("refs")).unwrap();
    let folder = fs::File::open(&top).unwrap();
    let planned = plan(&format!("{NEW} refs/heads/a/b\n"));
    let all: Vec<_> = planned
        .refs
        .iter()
        .map(|one| (one.below.clone(), one.new.clone()))
        .collect();
    let put = || {
        let placed = place_refs(folder.as_fd(), "run.1", &all, &RefMap::default(), "draft");
        placed.map(|placed| placed.refs)
    };
    assert_eq!(put().unwrap(), ["refs/airlock/run_1/heads/a/b"]);
    assert_eq!(put().unwrap(), ["refs/airlock/run_1-2/heads/a/b"]);
    assert!(!top.join("draft").exists());
    let written = fs::read_to_string(top.join("refs/airlock/run_1/heads/a/b")).unwrap();
    assert_eq!(written, format!("{NEW}\n"));
    fs::remove_dir_all(top.join("refs/airlock")).unwrap();
    std::os::unix::fs::symlink("/", top.join("refs/airlock")).unwrap();
    assert!(put().is_err());
    fs::remove_dir_all(top).unwrap();
}
