//! The whole measurement once, with few of everything and no nginx: all is asked and answered, and what is missing is said.

use serde_json::Value;
use std::{fs, path::Path, process::Command};

#[test]
fn our_ways_and_the_library_are_measured_and_nginx_is_said_to_be_missing() {
    let bench = Path::new(env!("CARGO_BIN_EXE_airlock-bench"));
    let airlock = bench.with_file_name("airlock");
    assert!(
        airlock.is_file(),
        "prerequisite: no `{}`; run `cargo build -p airlock` first",
        airlock.display()
    );
    let folder =
        std::env::temp_dir().join(format!("airlock-bench-gateway-test-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("results.json");
    let mut command = Command::new(bench);
    command.args([
        "gateway",
        "--rounds",
        "1",
        "--runs",
        "3",
        "--clients",
        "4",
        "--time",
        "50",
        "--size",
        "4",
    ]);
    // A program that is no server is missing, too.
    command
        .args([
            "--idle",
            "3",
            "--parked",
            "2",
            "--queued",
            "32",
            "--noise",
            "60",
            "--nginx",
            "/bin/false",
            "--airlock",
        ])
        .arg(airlock);
    let output = command
        .arg("--json")
        .arg(&file)
        .env("TMPDIR", &folder)
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
    for (way, metrics) in [
        (
            "ours",
            &[
                "run",
                "rate",
                "idle_pss",
                "upload",
                "upload_peak",
                "download",
                "first_ready",
                "ready",
                "submit",
                "queue_memory",
                "pick_up",
                "pick_up_full",
                "neighbour",
                "beside_uploads",
                "beside_artifacts",
                "beside_output",
                "beside_connections",
                "beside_members",
            ][..],
        ),
        ("artifacts", &["upload", "upload_peak", "download"]),
        ("library", &["run", "rate"]),
    ] {
        for metric in metrics {
            let row = rows
                .iter()
                .find(|row| row["metric"] == *metric && row["way"] == way);
            let row = row.unwrap_or_else(|| panic!("{way} {metric} is missing: {text}"));
            assert!(
                row["median"].is_number() && row["failed"].is_null(),
                "{row}"
            );
        }
    }
    let failures = rows.iter().find(|row| row["metric"] == "failures").unwrap();
    assert_eq!(failures["median"], 0.0, "{text}");
    assert!(
        text.contains("NOT RUN nginx: nginx does not listen"),
        "{text}"
    );
}
