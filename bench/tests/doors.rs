//! The whole measurement once, with no gateway: everything is asked and answered, and what is missing is said.

use serde_json::Value;
use std::{collections::BTreeSet, fs, process::Command};

#[test]
fn the_direct_way_is_measured_and_the_others_are_said_to_be_missing() {
    let folder =
        std::env::temp_dir().join(format!("airlock-bench-doors-test-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("results.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_airlock-bench"));
    // A program that is no gateway is missing, too.
    command
        .args([
            "doors",
            "--rounds",
            "1",
            "--time",
            "20",
            "--pairs",
            "2",
            "--airlock",
            "/bin/false",
            "--json",
        ])
        .arg(&file);
    let output = command.env("TMPDIR", &folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    // Only an empty folder can be removed so.
    fs::remove_dir(&folder).expect("it leaves nothing behind");

    let rows = told["rows"].as_array().unwrap();
    let of = |metric: &str| {
        rows.iter()
            .find(|row| row["metric"] == metric && row["way"] == "direct")
            .unwrap()
    };
    for metric in [
        "unary",
        "large",
        "stream",
        "paced",
        "added_first",
        "frame_delay",
        "lost_frames",
    ] {
        assert!(of(metric)["median"].is_number(), "{metric}: {}", of(metric));
    }
    assert!(of("unary_rate")["median"].as_f64().unwrap() > 0.0);
    assert_eq!(of("lost_frames")["median"], 0.0);
    let missing = told["not_run"].as_array().unwrap().iter();
    let missing: BTreeSet<_> = missing.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(
        missing,
        BTreeSet::from(["nginx", "nginx-log", "litellm", "ours"])
    );
    assert!(
        text.contains("NOT RUN ours: ours does not listen"),
        "{text}"
    );
}
