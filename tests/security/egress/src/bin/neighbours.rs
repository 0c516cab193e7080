//! Two runs in one engine: a polite one alone, then beside a hostile one that has begun. Started in a world by
//! `tests/floods.rs`, with a state folder and the files of the two programs; says what came of them as one JSON object.

use engine::{Engine, Settings};
use serde_json::json;
use spec::{LimitSet, Policy, RunEvent, RunRequest, RunResult, RunSpec};
use std::{env, ffi::OsString, fs, path::Path, time::Duration};

fn spec_of(program: &Path) -> RunSpec {
    let text = fs::read_to_string(program).expect("a program");
    let command = ["python3", "-c", &text].map(OsString::from).to_vec();
    let hosts = ["a.example", "inside.example"].map(str::to_owned).to_vec();
    // As many as a hostile program may have by its processes together.
    let limits = LimitSet {
        open_files: Some(4096),
        ..LimitSet::default()
    };
    let request = RunRequest {
        command,
        allow_hosts: hosts,
        limits,
        ..RunRequest::default()
    };
    Policy::default().admit(request).expect("a run")
}

fn told(result: &RunResult) -> serde_json::Value {
    let limits: Vec<_> = result
        .limits_hit
        .iter()
        .map(|name| format!("{name:?}"))
        .collect();
    json!({
        "stdout": String::from_utf8_lossy(&result.stdout),
        "stderr": String::from_utf8_lossy(&result.stderr),
        "status": format!("{:?}", result.status),
        "limits_hit": limits,
        "passed": result.usage.egress.passed,
    })
}

/// How many descriptors this process has, and how much memory in KiB it has at most had.
fn held() -> (usize, u64) {
    let status = fs::read_to_string("/proc/self/status").expect("its status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("its peak");
    let size = line
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|size| size.parse().ok())
        .expect("a size");
    (
        fs::read_dir("/proc/self/fd")
            .expect("its descriptors")
            .count(),
        size,
    )
}

/// What is held when connections that were ended have been given back, which takes the time that it takes to drop them.
async fn settled(before: usize) -> (usize, u64) {
    for _ in 0..500 {
        if held().0 <= before + 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    held()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [state, polite, hostile] = &arguments[..] else {
        panic!("a state folder and two programs")
    };
    let engine = Engine::open(Settings::new(state)).expect("an engine");
    let quiet = engine.run(spec_of(Path::new(polite))).await;
    let before = held();
    let mut attack = engine.start(spec_of(Path::new(hostile)));
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("ready") {
        match attack.next_event().await.expect("it says when it is ready") {
            RunEvent::Output { data, .. } => said.extend(data),
            RunEvent::Started { .. } | RunEvent::Denied(_) => {}
        }
    }
    let beside = engine.run(spec_of(Path::new(polite))).await;
    let during = held();
    attack.cancel();
    let attack = attack.finish().await;
    let after = settled(before.0).await;
    engine.close().await;
    let all = json!({
        "quiet": told(&quiet), "beside": told(&beside), "hostile": told(&attack),
        "descriptors": [before.0, during.0, after.0], "memory": [before.1, during.1, after.1],
    });
    println!("{all}");
}
