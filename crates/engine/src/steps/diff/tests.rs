//! Compared with real programs: the output of `diff` and `git diff` applies to exactly what they
//! compared, and what GNU `patch` refuses without fuzz is refused here.

use super::*;
use proptest::prelude::*;
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "airlock-diff-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    /// The output of a program, and whether it succeeded.
    fn run(&self, argv: &[&str]) -> (bool, String) {
        let mut command = Command::new(argv[0]);
        command
            .args(&argv[1..])
            .current_dir(&self.0)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("TZ", "UTC");
        let output = command
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|_| panic!("this needs {}", argv[0]));
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Applies a diff of one file.
fn applied(old: &str, diff: &str) -> Result<String, DiffError> {
    let changes = parse(diff)?;
    assert_eq!(changes.len(), 1, "{diff}");
    apply(old.as_bytes(), &changes[0].hunks).map(|new| String::from_utf8(new).unwrap())
}

fn git() -> [&'static str; 4] {
    ["git", "diff", "--no-index", "--no-color"]
}

/// Texts of few different lines, so that hunks have duplicates nearby; some with CR, some without a
/// last newline.
fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just(""),
        Just("a"),
        Just("b"),
        Just("c\r"),
        Just("-- x"),
        Just("++ y"),
        Just("\\ no"),
        Just("ä b")
    ];
    (prop::collection::vec(line, 0..30), any::<bool>()).prop_map(|(lines, ends)| {
        let text = lines.join("\n");
        if ends && !lines.is_empty() {
            text + "\n"
        } else {
            text
        }
    })
}

/// Such a text, and another one after a few edits.
fn edited() -> impl Strategy<Value = (String, String)> {
    let edit = (
        any::<prop::sample::Index>(),
        prop::option::of(prop_oneof![Just("a\n"), Just("new\n"), Just("c\r\n")]),
    );
    (text(), prop::collection::vec(edit, 0..5)).prop_map(|(old, edits)| {
        let mut lines: Vec<String> = old.split_inclusive('\n').map(str::to_owned).collect();
        for (at, edit) in edits {
            match edit {
                Some(line) => lines.insert(at.index(lines.len() + 1), line.to_owned()),
                None if lines.is_empty() => {}
                None => drop(lines.remove(at.index(lines.len()))),
            }
        }
        (old, lines.concat())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_diff_and_git_write_is_applied((old, new) in prop_oneof![edited(), (text(), text())]) {
        prop_assume!(old != new);
        let folder = Folder::new();
        fs::write(folder.0.join("old"), &old).unwrap();
        fs::write(folder.0.join("new"), &new).unwrap();
        for context in ["-U0", "-U1", "-U3"] {
            let (_, plain) = folder.run(&["diff", context, "old", "new"]);
            prop_assert_eq!(applied(&old, &plain), Ok(new.clone()), "{}", plain);
            let (_, gits) = folder.run(&[&git()[..], &[context, "old", "new"]].concat());
            prop_assert_eq!(applied(&old, &gits), Ok(new.clone()), "{}", gits);
        }
    }

    /// A diff applied to another text: git accepts whatever is accepted here, with the same result.
    #[test]
    fn nothing_is_applied_that_git_refuses((old, new) in edited(), (_, other) in edited()) {
        prop_assume!(old != new && !other.is_empty());
        let folder = Folder::new();
        for (name, text) in [("old", &old), ("new", &new), ("target", &other)] {
            fs::write(folder.0.join(name), text).unwrap();
        }
        let (_, diff) = folder.run(&["diff", "-U3", "--label", "target", "--label", "target", "old", "new"]);
        fs::write(folder.0.join("diff"), &diff).unwrap();
        // Git needs an option for hunks without context, and does not move a hunk that was made for
        // the first line.
        let at_first = ["@@ -0,", "@@ -1,", "@@ -1 "].iter().any(|head| diff.contains(head));
        prop_assume!(!at_first && diff.lines().any(|line| line.starts_with(' ')));
        if let Ok(ours) = applied(&other, &diff) {
            let (taken, _) = folder.run(&["git", "apply", "-p0", "--whitespace=nowarn", "diff"]);
            prop_assert!(taken, "git refuses\n{diff}\non {other:?}");
            let theirs = fs::read_to_string(folder.0.join("target")).unwrap();
            // After a moved hunk, git looks for the next one at its original place, and not
            // shifted.
            match diff.matches("\n@@ ").count() {
                1 => prop_assert_eq!(ours, theirs),
                _ => prop_assert_eq!(ours.len(), theirs.len()),
            }
        }
    }

    /// One line of context differs from the text: GNU patch refuses it without fuzz, and so does
    /// this parser.
    #[test]
    fn a_context_that_differs_is_refused_as_by_patch((old, new) in edited(), at in any::<prop::sample::Index>()) {
        prop_assume!(old != new);
        let folder = Folder::new();
        let mut lines: Vec<&str> = old.split_inclusive('\n').collect();
        prop_assume!(!lines.is_empty());
        lines[at.index(old.split_inclusive('\n').count())] = "nowhere else\n";
        for (name, text) in [("old", &old), ("new", &new), ("target", &lines.concat())] {
            fs::write(folder.0.join(name), text).unwrap();
        }
        let (_, diff) = folder.run(&["diff", "-U1000", "old", "new"]);
        fs::write(folder.0.join("diff"), &diff).unwrap();
        let (taken, _) = folder.run(&["patch", "--fuzz=0", "--binary", "--forward", "--reject-file=-", "target", "diff"]);
        prop_assert!(!taken, "{diff}");
        prop_assert!(applied(&lines.concat(), &diff).is_err(), "{diff}");
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "(?s)(diff --git |--- |\\+\\+\\+ |@@ -1,2 \\+1 @@|[ +\\-\\\\]|\n|a/b|\"|\\\\3|.){0,60}", old in text()) {
        if let Ok(changes) = parse(&text) {
            for change in changes {
                _ = apply(old.as_bytes(), &change.hunks);
            }
        }
    }
}

#[test]
fn new_deleted_renamed_and_executable_files_are_known_by_their_heads() {
    let folder = Folder::new();
    let step = |script: &str| folder.run(&["sh", "-euc", script]).1;
    let diff = step(
        "git init -q . && git config user.email a@b && git config user.name a && mkdir src 'a b'
         printf 'one\\ntwo\\nthree\\nfour\\n' > src/kept; printf x > gone; : > empty; echo hi > 'a b/c d'; echo run > tool
         printf 'ä\\n' > 'ümlaut'; git add -A && git commit -qm 1
         git mv src/kept src/moved; printf 'one\\ntwo\\nTHREE\\nfour\\n' > src/moved
         git rm -q gone empty; echo first > fresh; echo new > 'a b/new'; chmod +x tool; printf 'ö\\n' > 'ümlaut'; git add -A
         git diff --cached -M HEAD",
    );
    let changes = parse(&diff).unwrap();
    let mut what: Vec<_> = changes
        .iter()
        .map(|change| (format!("{:?}", change.what), change.executable))
        .collect();
    what.sort();
    let expected = [
        ("Create(\"a b/new\")", Some(false)),
        ("Create(\"fresh\")", Some(false)),
        ("Delete(\"empty\")", Some(false)),
        ("Delete(\"gone\")", Some(false)),
        ("Modify(\"tool\")", Some(true)),
        ("Modify(\"ümlaut\")", None),
        ("Rename { from: \"src/kept\", to: \"src/moved\" }", None),
    ];
    assert_eq!(
        what,
        expected.map(|(what, executable)| (what.to_owned(), executable))
    );
    let renamed = changes
        .iter()
        .find(|change| matches!(change.what, FileOperation::Rename { .. }))
        .unwrap();
    assert_eq!(
        apply(b"one\ntwo\nthree\nfour\n", &renamed.hunks).unwrap(),
        b"one\ntwo\nTHREE\nfour\n"
    );
    // Plain diffs mark a missing file by /dev/null, or by the timestamp of the epoch.
    step("mkdir x y; echo n > y/n; echo o > x/o; : > y/e");
    let plain = step("diff -urN x y || true");
    let what: Vec<_> = parse(&plain)
        .unwrap()
        .into_iter()
        .map(|change| change.what)
        .collect();
    assert_eq!(
        what,
        [
            FileOperation::Create("y/n".to_owned()),
            FileOperation::Delete("x/o".to_owned())
        ],
        "{plain}"
    );
}

#[test]
fn what_cannot_be_done_exactly_is_refused_by_its_name() {
    let binary = "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nA\n";
    assert_eq!(
        parse(binary),
        Err(DiffError::Binary {
            path: "x".to_owned()
        })
    );
    let differ = "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n";
    assert_eq!(
        parse(differ),
        Err(DiffError::Binary {
            path: "x".to_owned()
        })
    );
    for mode in ["120000", "160000", "040000"] {
        let link = format!(
            "diff --git a/x b/x\nnew file mode {mode}\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n"
        );
        assert_eq!(
            parse(&link),
            Err(DiffError::Special {
                path: "x".to_owned()
            })
        );
    }
    for bad in [
        "",
        "hello\n",
        "@@ -1 +1 @@\n-a\n+b\n",
        "--- a/x\n+++ b/x\n",
        "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n*a\n+b\n",
        "--- a/x\n+++ b/x\n@@ -1 @@\n-a\n",
        "--- a/x\n+++ b/x\n@@ -1,99999999999999999999 +1 @@\n-a\n",
        "--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n",
        "--- \"a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
    let many = "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n".repeat(MAX_FILES + 1);
    assert_eq!(parse(&many), Err(DiffError::TooMany));
}

#[test]
fn a_hunk_may_have_moved_a_little_but_never_to_one_of_two_places() {
    let diff = "--- x\n+++ x\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n";
    assert_eq!(applied("a\nb\nc\n", diff).unwrap(), "a\nB\nc\n");
    assert_eq!(
        applied("0\n0\na\nb\nc\n", diff).unwrap(),
        "0\n0\na\nB\nc\n",
        "two lines down"
    );
    let far = "0\n".repeat(MAX_HUNK_OFFSET + 1) + "a\nb\nc\n";
    assert_eq!(
        applied(&far, diff),
        Err(DiffError::Differs { hunk: 1, line: 1 })
    );
    let later = diff.replace("-1,3 +1,3", "-4,3 +4,3");
    assert_eq!(
        applied("a\nb\nc\na\nx\nc\na\nb\nc\n", &later),
        Err(DiffError::Ambiguous { hunk: 1 })
    );
    for other in ["a\nb\nd\n", "a\r\nb\r\nc\r\n", "a\nb\nc", "", "a b\nc\n"] {
        assert!(applied(other, diff).is_err(), "{other:?}");
    }
    let blind = "--- x\n+++ x\n@@ -3,0 +4 @@\n+new\n";
    assert_eq!(applied("1\n2\n3\n4\n", blind).unwrap(), "1\n2\n3\nnew\n4\n");
    assert!(
        applied("1\n", blind).is_err(),
        "it has nothing to be found by"
    );
    assert_eq!(applied("1\n2\n3", blind), Err(DiffError::Joins { hunk: 1 }));
}
