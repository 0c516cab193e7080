//! What a program lays out for whoever reads its files from outside.

use crate::Place;
use gateway_tests::Folder;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt};

pub(crate) fn links_and_special_files_are_not_opened(place: &Place) {
    let outside = Folder::new();
    let canary = outside.at("canary");
    fs::write(&canary, "untouched").expect("a canary");
    fs::set_permissions(&canary, fs::Permissions::from_mode(0o666)).expect("its rights");
    let sandbox = place.sandbox(json!({}));
    let (file, folder) = (
        canary.display().to_string(),
        outside.0.display().to_string(),
    );
    sandbox.said(&format!("ln -s {file} link; ln -s {folder} folder; ln -s ../../../../../../../..{file} up; ln -s real/x inner; mkdir real; echo own > real/x; ln -s real alias; mkfifo fifo"));
    assert_eq!(
        sandbox.get("/files/real/x").text(),
        "own\n",
        "what is really there is had"
    );
    for name in [
        "link",
        "up",
        "inner",
        "folder/canary",
        "alias/x",
        "fifo",
        "folder/",
        "alias/",
    ] {
        let got = sandbox.get(&format!("/files/{name}"));
        assert_eq!(got.status, 409, "{name}: {}", got.text());
        assert!(!got.text().contains("untouched"));
    }
    for name in [
        "link",
        "up",
        "folder/canary",
        "folder/new",
        "alias/x",
        "alias/new",
        "fifo",
    ] {
        assert_eq!(sandbox.put(name, b"written").status, 409, "{name}");
        assert_eq!(
            sandbox
                .put(&format!("{name}?mkdir=true"), b"written")
                .status,
            409,
            "{name}"
        );
    }
    for name in ["folder/canary", "alias/x"] {
        assert_eq!(
            sandbox
                .delete(&format!("/files/{name}?recursive=true"))
                .status,
            409,
            "{name}"
        );
    }
    for name in [
        "link",
        "folder?recursive=true",
        "up",
        "fifo",
        "alias?recursive=true",
    ] {
        assert_eq!(
            sandbox.delete(&format!("/files/{name}")).status,
            204,
            "the name itself goes: {name}"
        );
    }
    assert_eq!(
        fs::read_to_string(&canary).expect("it is there"),
        "untouched"
    );
    assert_eq!(fs::read_dir(&outside.0).expect("a folder").count(), 1);
    assert_eq!(
        sandbox.said("cat real/x"),
        "own\n",
        "what a link pointed at is still there"
    );
}

pub(crate) fn names_that_point_elsewhere_are_refused(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    assert_eq!(sandbox.put("a", b"own").status, 201);
    for name in [
        "..",
        "../x",
        "a/../a",
        "%2e%2e/x",
        "a%2f..",
        "./a",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "a//b",
        "a%00b",
        "%",
        "%zz",
    ] {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            let answer = sandbox.send(method, &format!("/files/{name}"), b"");
            assert_eq!(answer.status, 400, "{method} {name}: {}", answer.text());
        }
    }
    assert_eq!(sandbox.get("/files/a%252f").status, 404, "decoded once");
    assert_eq!(sandbox.get("/files/a").text(), "own");
}

/// A program swaps a folder and a link to a folder outside, all the time.
pub(crate) fn swapped_folders_never_lead_outside(place: &Place) {
    let outside = Folder::new();
    fs::set_permissions(&outside.0, fs::Permissions::from_mode(0o777)).expect("its rights");
    for name in ["x", "y"] {
        fs::write(outside.at(name), "outside").expect("a canary");
        fs::set_permissions(outside.at(name), fs::Permissions::from_mode(0o666))
            .expect("its rights");
    }
    let sandbox = place.sandbox(json!({}));
    let folder = outside.0.display();
    let swap = format!(
        "mkdir real; echo inside > real/x; echo inside > real/y; ln -s {folder} link; echo ready; \
         while :; do mv real swap; mv link real; mv real link; mv swap real; done"
    );
    let exec = sandbox.ready(&swap);
    let (mut inside, mut refused) = (0, 0);
    for round in 0..300 {
        let answer = match round % 3 {
            0 => sandbox.get("/files/real/x"),
            1 => sandbox.put("real/y", b"inside\n"),
            _ => sandbox.send("POST", "/files/real/made", b""),
        };
        assert!(!answer.text().contains("outside"), "{}", answer.text());
        match answer.status {
            200 | 201 => inside += 1,
            404 | 409 => refused += 1,
            other => panic!("{other}: {}", answer.text()),
        }
    }
    // Both sides of the race were met: else this showed nothing.
    assert!(
        inside > 0 && refused > 0,
        "{inside} inside, {refused} refused"
    );
    sandbox.delete(&format!("/exec/{exec}"));
    let mut left: Vec<_> = fs::read_dir(&outside.0)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["x", "y"], "nothing was made or removed there");
    for name in ["x", "y"] {
        assert_eq!(
            fs::read_to_string(outside.at(name)).expect("it is there"),
            "outside"
        );
    }
    let _: Value = sandbox.delete("").json();
}
