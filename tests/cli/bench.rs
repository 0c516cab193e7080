//! `airlock bench`: that it measures, lists every sample and says what it could not run. How long anything takes is
//! no claim here.

use airlock_cli_tests::{Answer, World};
use serde_json::Value;
use std::fs;

#[test]
fn samples_of_every_row_are_listed_in_all_three_forms() {
    let world = World::new();
    let words = [
        "bench",
        "--rounds",
        "2",
        "--idle",
        "1ms",
        "--seed",
        "7",
        "--only",
        "posix_spawn,library-cold",
    ];
    let files = ["--json", "r.json", "--svg", "r.svg", "--text", "r.txt"];
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&[&words[..], &files].concat());
    assert_eq!(status, Some(0), "{stderr}");
    assert!(
        stdout.contains("seed 7, 2 rounds") && stdout.contains("library-cold"),
        "{stdout}"
    );

    let read = |name| fs::read_to_string(world.here(name)).expect("it was written");
    let report: Value = serde_json::from_str(&read("r.json")).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            let samples = row["samples_us"].as_array().expect("samples");
            assert!(
                samples
                    .iter()
                    .all(|sample| sample.as_f64().is_some_and(|us| us > 0.0)),
                "{row}"
            );
            assert_eq!(row["n"], samples.len(), "{row}");
            (
                row["row"].as_str().expect("a name"),
                row["phase"].as_str().expect("a phase"),
                samples.len(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("posix_spawn", "back_to_back", 16),
            ("library-cold", "back_to_back", 16),
            ("posix_spawn", "after_idle", 2),
            ("library-cold", "after_idle", 2),
        ]
    );
    assert_eq!(
        (&rows[0]["errors"], &rows[0]["to_spawn"]),
        (&0.into(), &1.0.into())
    );
    assert_eq!(rows[0]["missing_barriers"], Value::Null);
    assert!(
        rows[1]["missing_barriers"].is_array(),
        "the barriers of ours are looked at"
    );
    assert_eq!(report["not_run"], Value::Array(Vec::new()));
    assert_eq!(read("r.txt"), stdout);
    assert!(read("r.svg").starts_with("<svg ") && read("r.svg").contains(">library-cold<"));
}

#[test]
fn a_peer_that_is_not_there_is_listed_and_what_fails_is_no_sample() {
    let world = World::new();
    let mut nobody = world.command(&[
        "bench",
        "--rounds",
        "1",
        "--idle",
        "none",
        "--only",
        "posix_spawn,bwrap",
    ]);
    let answer = world.answer(
        &nobody
            .env("PATH", "/nowhere")
            .output()
            .expect("airlock starts"),
    );
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    assert!(
        answer
            .stdout
            .contains("bwrap not run: `bwrap` is not installed"),
        "{}",
        answer.stdout
    );
    let words = [
        "bench",
        "--rounds",
        "1",
        "--idle",
        "none",
        "--only",
        "posix_spawn,library-cold",
        "--",
        "false",
    ];
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&words);
    assert_eq!(status, Some(0), "{stderr}");
    for line in [
        "posix_spawn not run: exit status: 1",
        "library-cold not run: Failed: ",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
}

#[test]
fn an_image_is_run_held_and_loaded_beside_its_base() {
    let world = World::new();
    let only = "library-cold,library-cold-image,hundred-image,image-load";
    let words = [
        "bench",
        "--rounds",
        "1",
        "--idle",
        "none",
        "--only",
        only,
        "--image-size",
        "2MiB",
    ];
    let Answer { status, stderr, .. } = world.run(&[&words[..], &["--json", "r.json"]].concat());
    assert_eq!(status, Some(0), "{stderr}");
    let text = fs::read_to_string(world.here("r.json")).expect("it was written");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["not_run"], Value::Array(Vec::new()));
    let rows: Vec<_> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (&row["row"], &row["n"]))
        .collect();
    assert_eq!(
        rows,
        [
            (&"library-cold".into(), &8.into()),
            (&"library-cold-image".into(), &8.into())
        ]
    );
    let runs = &report["image_runs"];
    assert_eq!(runs["runs"], 100);
    assert!(
        runs["disk_bytes"].is_u64() && runs["pss_bytes"].is_u64(),
        "{runs}"
    );
    let loads = report["image_loads"].as_array().expect("loads");
    let shown: Vec<_> = loads
        .iter()
        .map(|load| (&load["layer"], &load["bytes"]))
        .collect();
    assert_eq!(
        shown,
        [
            (&"plain".into(), &(2 << 20).into()),
            (&"gzip".into(), &(2 << 20).into())
        ]
    );
    assert!(
        loads
            .iter()
            .all(|load| load["loads"].as_array().is_some_and(|all| all.len() == 3)),
        "{loads:?}"
    );
    let measured = |name: &str| {
        let targets = report["targets"].as_array().expect("targets");
        targets.iter().any(|one| {
            one["name"].as_str().is_some_and(|it| it.starts_with(name)) && !one["met"].is_null()
        })
    };
    for name in [
        "library cold with an image p50",
        "each of 100 runs of an image, disk",
        "image of 2 MiB, gzip layer",
    ] {
        assert!(measured(name), "{name}: {report}");
    }
}

#[test]
fn a_container_engine_that_does_not_answer_is_listed() {
    let world = World::new();
    let mut nobody = world.command(&[
        "bench",
        "--rounds",
        "1",
        "--idle",
        "none",
        "--only",
        "container-docker,docker-image",
    ]);
    let answer = world.answer(
        &nobody
            .env("DOCKER_HOST", "unix:///nowhere.sock")
            .output()
            .expect("airlock starts"),
    );
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    for name in ["container-docker", "docker-image"] {
        let line = format!("{name} not run: no daemon answers: `unix:///nowhere.sock`: ");
        assert!(answer.stdout.contains(&line), "{}", answer.stdout);
    }
}

#[test]
fn a_name_that_no_row_has_is_refused_before_anything_is_done() {
    let world = World::new();
    let before = world.contents();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["bench", "--only", "posix_spawn,bwarp"]);
    assert_eq!((status, stdout.as_str()), (Some(125), ""));
    assert!(stderr.starts_with(
        "airlock: error: there is no row `bwarp`\nairlock: hint: the rows are posix_spawn, "
    ));
    assert_eq!(world.contents(), before);
}
