//! The whole measurement once, with few of everything: all is asked and answered.

use serde_json::Value;
use std::{fs, path::Path, process::Command};

#[test]
fn every_way_is_measured() {
    let bench = Path::new(env!("CARGO_BIN_EXE_airlock-bench"));
    let airlock = bench.with_file_name("airlock");
    assert!(
        airlock.is_file(),
        "prerequisite: no `{}`; run `cargo build -p airlock` first",
        airlock.display()
    );
    let folder =
        std::env::temp_dir().join(format!("airlock-bench-worker-test-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("results.json");
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap());
    let mut command = Command::new(bench);
    command
        .args([
            "worker",
            "--rounds",
            "1",
            "--cold",
            "2",
            "--warm",
            "3",
            "--at-once",
            "6",
            "--airlock",
        ])
        .arg(airlock);
    let output = command
        .arg("--json")
        .arg(&file)
        .env("TMPDIR", &folder)
        .env("PATH", path)
        .output()
        .unwrap();
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
    let of = |way: &str, metric: &str| {
        rows.iter()
            .find(|row| row["way"] == way && row["metric"] == metric)
    };
    for (way, metric) in [
        ("engine", "cold"),
        ("bwrap", "cold"),
        ("broker", "warm"),
        ("broker", "many"),
        ("broker", "idle"),
    ] {
        let row = of(way, metric).unwrap_or_else(|| panic!("{way} {metric} is missing: {told}"));
        assert!(
            row["median"].as_f64().is_some_and(|value| value > 0.0),
            "{row}"
        );
    }
    for metric in ["unanswered", "twice"] {
        assert_eq!(of("broker", metric).unwrap()["median"], 0.0);
    }
    assert!(text.contains("wanted <= 1.2"), "{text}");
}
