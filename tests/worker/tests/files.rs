//! Files: those that tools are given, those that they leave, and those that they must not have or leave.

use serde_json::{Value, json};
use std::{fs, process::Command, sync::LazyLock};
use worker_tests::{Ask, Mesh, Message, uuid};

static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

/// Writes a version as agents do: the layout is theirs, and so is the language.
const AGENT: &str = r#"
import json, os, sys, unicodedata
base, name, version, text, mime = sys.argv[1:]
name = unicodedata.normalize("NFKC", name)
folder = os.path.join(base, "test", "ana", *(("user", name[5:]) if name.startswith("user:") else ("web-77", name)))
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, version), "wb") as file:
    file.write(text.encode())
with open(os.path.join(folder, version + ".meta"), "w") as file:
    json.dump({"mime_type": mime}, file)
"#;

fn keep_as_an_agent(name: &str, version: u32, text: &str) {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", AGENT]).arg(MESH.folder.at("artifacts"));
    let done = command
        .args([name, &version.to_string(), text, "text/plain"])
        .status();
    assert!(done.expect("Python starts").success());
}

fn call(ask: &Ask) -> Message {
    MESH.agent.call(ask)
}

#[test]
fn a_file_that_is_sent_along_is_there() {
    let ask =
        Ask::new("reads", json!({"source": "note.txt"})).preloaded("source", "note.txt", b"hello");
    let expected = json!({"text": "hello", "filename": "note.txt", "mime_type": "text/plain"});
    assert_eq!(call(&ask).tool_result(), &expected);
    let ask = Ask::new("facade_files", json!({"filename": "note.txt"}))
        .preloaded("source", "note.txt", b"hello");
    let told = call(&ask);
    assert_eq!(
        (&told.tool_result()["text"], &told.tool_result()["exists"]),
        (&json!("hello"), &json!(true))
    );
    assert_eq!(told.tool_result()["missing"], false);
}

#[test]
fn a_legacy_context_reads_and_saves_files() {
    let ask = Ask::new("legacy_files", json!({"source": "note.txt"}))
        .preloaded("source", "note.txt", b"hello");
    let answer = call(&ask);
    assert_eq!(answer.tool_result()["text"], "hello");
    let names: Vec<_> = answer
        .created()
        .into_iter()
        .map(|(name, _, _, size)| (name, size))
        .collect();
    assert_eq!(
        names,
        [("raw.bin".to_owned(), 256), ("upper.txt".to_owned(), 5)]
    );
}

#[test]
fn two_parameters_have_two_files_and_may_share_one() {
    let ask = Ask::new("reads_two", json!({"left": "a.txt", "right": "b.txt"}));
    let two = ask
        .preloaded("left", "a.txt", b"A")
        .preloaded("right", "b.txt", b"B");
    assert_eq!(
        call(&two).tool_result(),
        &json!({"left": "A", "right": "B"})
    );
    let ask = Ask::new("reads_two", json!({"left": "a.txt", "right": "a.txt"}));
    let one = ask
        .preloaded("left", "a.txt", b"A")
        .preloaded("right", "a.txt", b"A");
    assert_eq!(
        call(&one).tool_result(),
        &json!({"left": "A", "right": "A"})
    );
}

#[test]
fn a_list_of_files_comes_in_its_order() {
    let ask = Ask::new("reads_all", json!({"sources": ["a.txt", "b.txt"]}));
    let ask = ask
        .preloaded("sources[0]", "a.txt", b"A")
        .preloaded("sources[1]", "b.txt", b"B");
    assert_eq!(call(&ask).tool_result(), &json!({"texts": ["A", "B"]}));
    let none = Ask::new("reads_maybe", json!({}));
    assert_eq!(call(&none).tool_result(), &json!({"is_there": false}));
}

#[test]
fn a_reference_is_read_from_the_store_that_agents_write_to() {
    for (version, text) in [(0, "old"), (1, "new")] {
        keep_as_an_agent("cat.txt", version, text);
    }
    let read = |version| {
        let ask =
            Ask::new("reads", json!({"source": "cat.txt"})).reference("source", "cat.txt", version);
        call(&ask).tool_result()["text"].clone()
    };
    assert_eq!(
        (read(Some(0)), read(Some(1)), read(None)),
        (json!("old"), json!("new"), json!("new"))
    );
    keep_as_an_agent("user:profile.txt", 0, "of the user");
    let ask = Ask::new("reads", json!({"source": "user:profile.txt"}));
    assert_eq!(
        call(&ask.reference("source", "user:profile.txt", None)).tool_result()["text"],
        "of the user"
    );
    // A reference takes the place of what was sent along under the same key.
    let both =
        Ask::new("reads", json!({"source": "cat.txt"})).preloaded("source", "cat.txt", b"sent");
    assert_eq!(
        call(&both.reference("source", "cat.txt", None)).tool_result()["text"],
        "new"
    );
}

#[test]
fn a_tool_whose_file_is_missing_does_not_run() {
    keep_as_an_agent("there.txt", 0, "here");
    let ask = |name: &str, version| {
        Ask::new("tells_and_reads", json!({"source": name})).reference("source", name, version)
    };
    for missing in [
        ask("nowhere.txt", None),
        ask("there.txt", Some(7)),
        ask("there.txt", Some(-1)),
    ] {
        let answer = call(&missing);
        assert_eq!(answer.error().0, "ARTIFACT_ERROR", "{}", answer.error().1);
        MESH.agent.settle();
        assert_eq!(MESH.agent.statuses(&missing.id), [""; 0], "it did not run");
    }
    let there = ask("there.txt", Some(0));
    assert_eq!(call(&there).tool_result()["text"], "here");
    assert_eq!(MESH.agent.statuses(&there.id), ["runs"]);
}

#[test]
fn a_name_that_is_no_name_of_a_file_is_refused_and_the_tool_does_not_run() {
    fs::write(MESH.folder.at("artifacts/test/ana/stolen.txt"), "stolen")
        .or_else(|_| {
            fs::create_dir_all(MESH.folder.at("artifacts/test/ana"))?;
            fs::write(MESH.folder.at("artifacts/test/ana/stolen.txt"), "stolen")
        })
        .expect("something to steal");
    for name in [
        "../stolen.txt",
        "..",
        ".",
        "",
        "/etc/passwd",
        "\\etc",
        "a\0b",
        "a/../../b",
        &"x".repeat(5000),
    ] {
        let ask = || Ask::new("tells_and_reads", json!({"source": name}));
        for ask in [
            ask().preloaded("source", name, b"x"),
            ask().reference("source", name, None),
        ] {
            let answer = call(&ask);
            let (code, message) = answer.error();
            assert!(
                ["ARTIFACT_ERROR", "INVALID_REQUEST"].contains(&code),
                "{name}: {code}: {message}"
            );
            MESH.agent.settle();
            assert_eq!(
                MESH.agent.statuses(&ask.id),
                [""; 0],
                "it did not run with {name}"
            );
        }
    }
}

#[test]
fn strangers_have_other_shelves_however_they_are_called() {
    keep_as_an_agent("mine.txt", 0, "mine");
    for (user, session) in [
        ("eve", "web-77"),
        ("ana", "web-78"),
        ("../ana", "web-77"),
        ("ana/", "../ana/web-77"),
        ("..", ".."),
    ] {
        let ask =
            Ask::new("reads", json!({"source": "mine.txt"})).reference("source", "mine.txt", None);
        let answer = call(&ask.param("user_id", user).param("session_id", session));
        // The last segment of a name is all that agents use of it, so `../ana` is `ana` to them, too.
        if user != "../ana" && !session.contains("ana") {
            let (code, message) = answer.error();
            assert!(
                ["ARTIFACT_ERROR", "INVALID_REQUEST"].contains(&code),
                "{user} {session}: {code}: {message}"
            );
        }
    }
    let ask =
        Ask::new("reads", json!({"source": "mine.txt"})).reference("source", "mine.txt", None);
    assert_eq!(call(&ask).tool_result()["text"], "mine");
}

#[test]
fn what_a_tool_leaves_is_kept_in_the_layout_of_agents_with_versions_from_zero() {
    let files = json!({"a.txt": "one", "b.json": "{}", "c.csv": "x,y", "d.png": "p", "e.jpeg": "j", "f.strange": "s"});
    for version in 0..3 {
        let answer = call(&Ask::new("writes", json!({"files": files})));
        let of = |name: &str, mime: &str, size| (name.to_owned(), version, mime.to_owned(), size);
        let expected = [
            of("a.txt", "text/plain", 3),
            of("b.json", "application/json", 2),
            of("c.csv", "text/csv", 3),
            of("d.png", "image/png", 1),
            of("e.jpeg", "image/jpeg", 1),
            of("f.strange", "application/octet-stream", 1),
        ];
        assert_eq!(answer.created(), expected);
        let at = MESH.shelf().join("a.txt");
        assert_eq!(
            fs::read_to_string(at.join(version.to_string())).expect("it is kept"),
            "one"
        );
        let about =
            fs::read_to_string(at.join(format!("{version}.meta"))).expect("so is what it is");
        let about: Value = serde_json::from_str(&about).expect("JSON");
        assert_eq!(about["mime_type"], "text/plain");
    }
    // And tools read what tools left.
    let ask = Ask::new("reads", json!({"source": "a.txt"})).reference("source", "a.txt", Some(2));
    assert_eq!(call(&ask).tool_result()["text"], "one");
}

#[test]
fn nothing_is_kept_of_a_tool_that_failed_or_ran_out_of_time() {
    let before = fs::read_dir(MESH.shelf()).map_or(0, Iterator::count);
    call(&Ask::new("raises", json!({"text": "no"})));
    call(&Ask::new("sleeps", json!({"seconds": 30})).timeout(1)).result();
    assert!(fs::read_dir(MESH.shelf()).map_or(0, Iterator::count) >= before);
    let leftovers: Vec<_> = fs::read_dir(MESH.folder.at("work"))
        .expect("it is there")
        .collect();
    MESH.agent.settle();
    assert!(leftovers.len() < 20, "work folders go: {leftovers:?}");
}

#[test]
fn only_regular_files_of_the_tool_s_own_leave_the_box() {
    let secret = uuid();
    fs::write(MESH.folder.at("secret"), &secret).expect("a secret");
    let at = MESH.folder.at("secret").display().to_string();
    let answer = call(&Ask::new("writes_strange", json!({"secret": at})));
    let names: Vec<_> = answer
        .created()
        .into_iter()
        .map(|(name, ..)| name)
        .collect();
    assert_eq!(names, ["good.txt"], "{}", answer.body());
    for name in [
        "link.txt",
        "magic.txt",
        "inner.txt",
        "pipe.txt",
        "folder.txt",
        "device.txt",
        "hard.txt",
    ] {
        assert!(!MESH.shelf().join(name).exists(), "{name}");
    }
    assert_eq!(
        fs::read_to_string(MESH.shelf().join("good.txt/0")).expect("it is kept"),
        "good"
    );
}

#[test]
fn a_result_that_is_no_file_of_the_tool_s_own_is_never_followed() {
    let secret = uuid();
    fs::write(
        MESH.folder.at("secret.json"),
        json!({"result": {"text": secret}}).to_string(),
    )
    .expect("a secret");
    let at = MESH.folder.at("secret.json").display().to_string();
    for kind in ["symlink", "pipe", "folder", "huge", "not_json", "none"] {
        let answer = call(&Ask::new(
            "result_elsewhere",
            json!({"secret": at, "kind": kind}),
        ));
        let (code, message) = answer.error();
        assert!(
            ["INTERNAL_ERROR", "EXECUTION_ERROR", "TOOL_ERROR"].contains(&code),
            "{kind}: {code}: {message}"
        );
        assert!(
            !answer.body().to_string().contains(&secret),
            "{kind}: {}",
            answer.body()
        );
    }
    let good = call(&Ask::new(
        "result_elsewhere",
        json!({"secret": at, "kind": "good"}),
    ));
    assert_eq!(good.tool_result(), &json!({"text": "by hand"}));
}

#[test]
fn a_large_file_comes_through_whole_and_a_huge_one_fails_its_call() {
    let answer = call(&Ask::new(
        "writes_bytes",
        json!({"name": "large.bin", "size": 20 << 20}),
    ));
    assert_eq!(answer.created()[0].3, 20 << 20);
    assert_eq!(
        fs::metadata(MESH.shelf().join("large.bin/0"))
            .expect("it is kept")
            .len(),
        20 << 20
    );
    // Beyond the largest file of the profile.
    let ask = Ask::new(
        "writes_bytes",
        json!({"name": "huge.bin", "size": 65 << 20}),
    )
    .profile("restrictive");
    assert!(call(&ask).body()["error"].is_object());
}
