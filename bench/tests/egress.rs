//! The whole measurement once, with no peer: everything is asked and answered, and what is missing is said.

use serde_json::Value;
use std::{collections::BTreeSet, fs, process::Command};

#[test]
fn our_ways_are_measured_and_the_others_are_said_to_be_missing() {
    let folder =
        std::env::temp_dir().join(format!("airlock-bench-egress-test-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("results.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_airlock-bench"));
    command.args([
        "egress",
        "--rounds",
        "1",
        "--size",
        "4",
        "--tunnels",
        "3",
        "--time",
        "50",
        "--idle",
        "20",
    ]);
    // A program that is no proxy is missing, too.
    command.args(["--squid", "/bin/false", "--json"]).arg(&file);
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
    for (way, metrics) in [
        (
            "direct",
            &["throughput", "shared_throughput", "set_up", "request_rate"][..],
        ),
        (
            "relay",
            &["throughput", "tunnel_cost", "set_up", "idle_tunnels"],
        ),
        (
            "ours",
            &[
                "throughput",
                "tunnel_cost",
                "set_up",
                "request_cost",
                "request_rate",
                "idle_tunnels",
            ],
        ),
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
    let missing = told["not_run"].as_array().unwrap().iter();
    let missing: BTreeSet<_> = missing.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(missing, BTreeSet::from(["tinyproxy", "squid", "mitmproxy"]));
    assert!(
        text.contains("NOT RUN squid: squid does not listen"),
        "{text}"
    );
}
