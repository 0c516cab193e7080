//! Programs: what they are given, what is answered, and that they do not end with whoever asked for them.

use crate::Place;
use serde_json::json;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) fn what_a_program_does_is_answered(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let asked = json!({
        "command": ["sh", "-c", "pwd; echo $COLOUR; echo wrong >&2; exit 3"],
        "env": { "COLOUR": "green" },
        "directory": "/tmp",
    });
    let result = sandbox.post("/exec", &asked).json();
    let told = json!([
        result["status"],
        result["exit_code"],
        result["stdout"],
        result["stderr"],
        result["offsets"]
    ]);
    assert_eq!(
        told,
        json!(["failed", 3, "/tmp\ngreen\n", "wrong\n", { "stdout": 11, "stderr": 6 }])
    );
    assert_eq!(sandbox.said("echo kept > note; cat note"), "kept\n");
    assert_eq!(
        sandbox.said("cat note"),
        "kept\n",
        "the workspace outlives a program"
    );
    let missing = sandbox.post("/exec", &json!({ "command": ["/no/such/program"] }));
    let told = missing.json();
    let never = json!([
        told["status"],
        told["exit_status"],
        told["error"]["code"],
        told["stdout"]
    ]);
    assert_eq!(
        (missing.status, never),
        (200, json!(["not_started", 127, "start_failed", ""])),
        "{told}"
    );
    let folder = sandbox.post("/exec", &json!({ "command": ["/usr"] }));
    assert_eq!(
        (folder.status, &folder.json()["exit_status"]),
        (200, &json!(126)),
        "{}",
        folder.text()
    );
    let found = sandbox.get(&format!(
        "/exec/{}",
        told["exec_id"].as_str().expect("an id")
    ));
    assert_eq!(
        found.json()["status"],
        "not_started",
        "it is found afterwards, too"
    );
    let late = sandbox.post(
        "/exec",
        &json!({ "command": ["sleep", "60"], "timeout": "0.3s" }),
    );
    assert_eq!(
        late.status,
        400,
        "a time is written as on the command line: {}",
        late.text()
    );
    let late = sandbox.post(
        "/exec",
        &json!({ "command": ["sleep", "60"], "timeout": "300ms" }),
    );
    assert_eq!(late.json()["status"], "timed_out", "{}", late.text());
}

pub(crate) fn a_program_reads_what_is_typed(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let text = sandbox
        .post("/exec", &json!({ "command": ["cat"], "stdin": "typed\n" }))
        .json();
    assert_eq!(text["stdout"], "typed\n");
    let bytes = sandbox
        .post(
            "/exec",
            &json!({ "command": ["od", "-An", "-tx1"], "stdin_base64": "AP8=" }),
        )
        .json();
    assert_eq!(bytes["stdout"].as_str().map(str::trim), Some("00 ff"));
    let exec = sandbox.start(&json!({ "command": ["cat"], "open_stdin": true }));
    assert_eq!(
        sandbox
            .send("POST", &format!("/exec/{exec}/stdin"), b"one ")
            .json(),
        json!({ "written": 4 })
    );
    assert_eq!(
        sandbox
            .send("POST", &format!("/exec/{exec}/stdin?close=true"), b"two")
            .status,
        200
    );
    assert_eq!(sandbox.result(&exec)["stdout"], "one two");
    let after = sandbox.send("POST", &format!("/exec/{exec}/stdin"), b"late");
    assert_eq!(after.status, 409, "{}", after.text());
}

pub(crate) fn what_is_sent_again_is_typed_once(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let exec = sandbox.start(&json!({ "command": ["cat"], "open_stdin": true }));
    let send = |offset: u64, bytes: &[u8]| {
        sandbox.send(
            "POST",
            &format!("/exec/{exec}/stdin?offset={offset}"),
            bytes,
        )
    };
    assert_eq!(send(0, b"one ").json(), json!({ "written": 4 }));
    assert_eq!(
        send(0, b"one ").json(),
        json!({ "written": 4 }),
        "the answer may have been lost"
    );
    assert_eq!(send(2, b"e two").status, 200, "half of it had arrived");
    let ahead = send(8, b"four");
    assert_eq!(
        (ahead.status, ahead.text().contains("7 bytes were typed")),
        (400, true),
        "{}",
        ahead.text()
    );
    assert_eq!(
        sandbox
            .send(
                "POST",
                &format!("/exec/{exec}/stdin?offset=7&close=true"),
                b""
            )
            .status,
        200
    );
    assert_eq!(sandbox.result(&exec)["stdout"], "one two");
}

pub(crate) fn output_that_is_no_text_comes_as_base64(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let result = sandbox.run(r"printf '\377\376'; printf plain >&2");
    assert_eq!(
        (&result["stdout_base64"], &result["stderr"]),
        (&json!("//4="), &json!("plain")),
        "{result}"
    );
    assert!(result.get("stdout").is_none(), "{result}");
}

pub(crate) fn a_program_outlives_whoever_asked_for_it(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let asked = json!({ "command": ["sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.1; done; echo done"] });
    let request = place
        .server
        .request(&place.key, "POST", &sandbox.path("/exec"), &[], &asked);
    let connection = place.server.client.open(&request);
    let running = || {
        sandbox.get("/exec").json()["execs"]
            .as_array()
            .map_or(0, Vec::len)
    };
    place.server.until("its start", || running() == 1);
    drop(connection);
    assert_eq!(sandbox.put("go", b"").status, 201);
    let exec = sandbox.get("/exec").json()["execs"][0]["exec_id"]
        .as_str()
        .expect("it")
        .to_owned();
    let result = sandbox.result(&exec);
    assert_eq!(
        (&result["status"], &result["stdout"]),
        (&json!("succeeded"), &json!("ready\ndone\n"))
    );
}

pub(crate) fn background_programs_are_listed_and_signalled(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let script = "trap 'echo heard' USR1; echo ready; while :; do sleep 0.1; done";
    let begun = sandbox.post(
        "/exec",
        &json!({ "command": ["sh", "-c", script], "background": true }),
    );
    assert_eq!(
        (begun.status, &begun.json()["status"]),
        (201, &json!("running")),
        "{}",
        begun.text()
    );
    let exec = begun.json()["exec_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    sandbox.until_said(&exec, "ready");
    sandbox.said("true");
    let listed = sandbox.get("/exec").json();
    let brief: Vec<_> = listed["execs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (&one["background"], &one["status"]))
        .collect();
    assert_eq!(
        brief,
        [
            (&json!(true), &json!("running")),
            (&json!(false), &json!("succeeded"))
        ]
    );
    assert_eq!(
        sandbox
            .post(
                &format!("/exec/{exec}/signal"),
                &json!({ "signal": "SIGUSR1" })
            )
            .status,
        204
    );
    sandbox.until_said(&exec, "heard");
    assert_eq!(
        sandbox
            .post(
                &format!("/exec/{exec}/signal"),
                &json!({ "signal": "NONE" })
            )
            .status,
        400
    );
    assert_eq!(
        sandbox
            .post(&format!("/exec/{exec}/signal"), &json!({ "signal": 9 }))
            .status,
        204
    );
    assert_eq!(sandbox.result(&exec)["signal"], 9);
    assert_eq!(
        sandbox
            .post(&format!("/exec/{exec}/signal"), &json!({ "signal": 9 }))
            .status,
        409
    );
}

fn memory_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("its memory");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

pub(crate) fn typing_waits_for_the_program(place: &Place) {
    const LENGTH: usize = 64 << 20;
    let sandbox = place.sandbox(json!({}));
    let script = "while [ ! -e go ]; do sleep 0.1; done; wc -c";
    let exec = sandbox.start(&json!({ "command": ["sh", "-c", script], "open_stdin": true }));
    let mut stream = place.server.client.open(&sandbox.head(
        "POST",
        &format!("/exec/{exec}/stdin?close=true"),
        LENGTH,
    ));
    let (sent, before) = (Arc::new(AtomicUsize::new(0)), memory_kib(place.server.pid));
    let count = sent.clone();
    let sender = std::thread::spawn(move || {
        let piece = vec![b'x'; 64 << 10];
        for _ in 0..LENGTH / piece.len() {
            stream.send(&piece);
            count.fetch_add(piece.len(), Ordering::Relaxed);
        }
        stream.answer()
    });
    let (mut last, mut since) = (0, Instant::now());
    // It stands still once everything between us and the program is full.
    while last == 0 || since.elapsed() < Duration::from_millis(500) {
        let now = sent.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(last < LENGTH, "nobody read it, and yet all of it was sent");
    assert!(
        memory_kib(place.server.pid) < before + (16 << 10),
        "the server keeps what nobody reads"
    );
    assert_eq!(sandbox.put("go", b"").status, 201);
    assert_eq!(
        sender.join().expect("it is sent").json(),
        json!({ "written": LENGTH })
    );
    assert_eq!(
        sandbox.result(&exec)["stdout"].as_str().map(str::trim),
        Some(LENGTH.to_string().as_str())
    );
}
