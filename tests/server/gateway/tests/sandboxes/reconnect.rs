//! Whoever comes again gets each byte once and in order, wherever the connection was cut.

use crate::{Place, Sandbox};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

const LENGTH: usize = 2_000_000;
/// Writes what nobody can guess, and keeps a copy to compare with.
const WRITER: &str =
    "head -c 2000000 /dev/urandom > data; echo ready >&2; dd if=data bs=30011 2>/dev/null";

/// Numbers that look like chance, the same each time.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

fn written(sandbox: &Sandbox<'_>) -> Vec<u8> {
    let file = sandbox.get("/files/data");
    assert_eq!((file.status, file.body.len()), (200, LENGTH));
    file.body
}

/// Events that came whole before the connection was cut.
fn events(text: &[u8]) -> Vec<(String, String, Value)> {
    let text = String::from_utf8_lossy(text);
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let event = |block: &str| {
        let field = |name: &str| {
            Some(
                block
                    .lines()
                    .find_map(|line| line.strip_prefix(name))?
                    .to_owned(),
            )
        };
        let data = serde_json::from_str(&field("data: ")?).expect("JSON");
        Some((field("id: ")?, field("event: ")?, data))
    };
    whole.split("\n\n").filter_map(event).collect()
}

pub(crate) fn events_go_on_where_a_cut_connection_ended(place: &Place) {
    let sandbox = place.sandbox(json!({ "output": "4M" }));
    let exec = sandbox.start(&json!({ "command": ["sh", "-c", WRITER] }));
    let (mut got, mut last, mut cuts, mut chance) =
        (Vec::<u8>::new(), String::new(), 0, SeededRandom(7));
    let ended = loop {
        let resume = [("last-event-id", last.as_str())];
        let headers = if last.is_empty() {
            &[][..]
        } else {
            &resume[..]
        };
        let path = sandbox.path(&format!("/exec/{exec}/events"));
        let request = place
            .server
            .request(&place.key, "GET", &path, headers, &Value::Null);
        let mut stream = place.server.client.open(&request);
        assert_eq!(stream.head().map(|(status, _)| status), Some(200));
        let (mut text, most) = (Vec::new(), 1 + chance.below(400_000));
        while text.len() < most {
            match stream.chunk() {
                Some(piece) => text.extend(piece),
                None => break,
            }
        }
        // Not even an event must have come whole.
        text.truncate(most);
        let mut exited = None;
        for (id, name, data) in events(&text) {
            last = id;
            match (name.as_str(), data["stream"].as_str()) {
                ("output", Some("stdout")) => {
                    assert_eq!(
                        data["offset"],
                        got.len(),
                        "nothing is lost, doubled or reordered"
                    );
                    match data["base64"].as_str() {
                        Some(base64) => got.extend(STANDARD.decode(base64).expect("base64")),
                        None => got.extend(data["text"].as_str().expect("text").as_bytes()),
                    }
                }
                ("exited", _) => exited = Some(data),
                ("gap", _) => panic!("nothing was forgotten: {data}"),
                _ => {}
            }
        }
        cuts += 1;
        assert!(cuts < 1000, "it gets nowhere");
        if let Some(exited) = exited {
            break exited;
        }
    };
    assert!(cuts > 3, "{cuts} connections");
    assert_eq!(ended["exit_code"], 0, "{ended}");
    assert!(
        got == written(&sandbox),
        "what was read is what was written"
    );
    let seen = [("last-event-id", last.as_str())];
    let path = sandbox.path(&format!("/exec/{exec}/events"));
    assert_eq!(
        place
            .server
            .ask(&place.key, "GET", &path, &seen, &Value::Null)
            .status,
        204,
        "all was told"
    );
}

pub(crate) fn pieces_by_offset_make_the_whole(place: &Place) {
    let sandbox = place.sandbox(json!({ "output": "4M" }));
    let exec = sandbox.start(&json!({ "command": ["sh", "-c", WRITER] }));
    let (mut got, mut chance) = (Vec::<u8>::new(), SeededRandom(11));
    loop {
        let limit = 1 + chance.below(200_000);
        let path = format!(
            "/exec/{exec}/output?stream=stdout&offset={}&limit={limit}&wait=20",
            got.len()
        );
        if chance.below(4) == 0 {
            // Asked, and gone before the answer.
            let request =
                place
                    .server
                    .request(&place.key, "GET", &sandbox.path(&path), &[], &Value::Null);
            drop(place.server.client.open(&request));
            continue;
        }
        let piece = sandbox.get(&path);
        assert_eq!(
            piece.header("airlock-offset"),
            Some(got.len().to_string().as_str()),
            "{}",
            piece.status
        );
        assert!(piece.body.len() <= limit);
        got.extend(&piece.body);
        if piece.header("airlock-complete") == Some("true") {
            break;
        }
    }
    assert!(
        got == written(&sandbox),
        "what was read is what was written"
    );
    let errors = sandbox.get(&format!("/exec/{exec}/output?stream=stderr"));
    assert_eq!(errors.text(), "ready\n");
}

pub(crate) fn logs_follow_a_program_to_its_end(place: &Place) {
    let sandbox = place.sandbox(json!({ "output": "4M" }));
    assert_eq!(sandbox.get("/logs").status, 404, "no program, no logs");
    let exec = sandbox.start(&json!({ "command": ["sh", "-c", WRITER] }));
    let followed = sandbox.get("/logs?follow=true");
    assert_eq!(
        (followed.status, followed.header("airlock-exec")),
        (200, Some(exec.as_str()))
    );
    let whole = written(&sandbox);
    assert!(followed.body == whole);
    let rest = sandbox.get(&format!("/logs?exec={exec}&offset=1999990"));
    assert_eq!(
        (rest.body.as_slice(), rest.header("airlock-complete")),
        (&whole[1_999_990..], Some("true"))
    );
    assert_eq!(sandbox.get("/logs?exec=nobody").status, 404);
    assert_eq!(sandbox.get("/logs?offset=-1").status, 400);
}

pub(crate) fn forgotten_output_is_named(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let result = sandbox.run("head -c 9000000 /dev/zero | tr '\\0' 'x'; printf end");
    assert_eq!(
        result["truncated"],
        json!({ "stdout": true, "stderr": false }),
        "{}",
        result["offsets"]
    );
    let (exec, text) = (
        result["exec_id"].as_str().expect("it"),
        result["stdout"].as_str().expect("text"),
    );
    assert!(
        text.ends_with("xend") && text.len() == 1 << 20,
        "{}",
        text.len()
    );
    assert_eq!(
        result["from"],
        json!({ "stdout": 9_000_003 - text.len(), "stderr": 0 })
    );
    let answer = sandbox.get(&format!("/exec/{exec}/events"));
    let told = events(&answer.body);
    let gap = told
        .iter()
        .find(|(_, name, _)| name == "gap")
        .map(|(_, _, data)| data.clone());
    let from = result["kept_from"]["stdout"].as_u64().expect("an offset");
    assert_eq!(
        from,
        9_000_003 - (4 << 20),
        "more can be fetched than an answer has"
    );
    assert_eq!(
        gap,
        Some(json!({ "stream": "stdout", "from": 0, "to": from }))
    );
    let piece = sandbox.get(&format!("/exec/{exec}/output?offset=0&limit=10"));
    assert_eq!(
        piece.header("airlock-offset"),
        Some(from.to_string().as_str())
    );
}
