//! Terminals of sessions by requests and answers (requirement 93; items 39 and 40).

use base64::{Engine, engine::general_purpose::STANDARD};
use node_tests::Server;
use serde_json::{Value, json};

const TASK: &str = "11111111-1111-4111-8111-111111111111";
const ALL: &str = "/v1/worker/sessions";

/// A session, and a shell on a terminal of it.
struct Terminal<'a> {
    server: &'a Server,
    session: String,
    pty: String,
    next: u64,
    shown: String,
}

impl Terminal<'_> {
    fn open(server: &Server) -> Terminal<'_> {
        let made = server
            .post(ALL, &json!({ "version": 1, "task_id": TASK }))
            .json();
        let session = format!("{ALL}/{}", made["session_id"].as_str().expect("its name"));
        let order = json!({ "version": 1, "task_id": TASK, "cols": 80, "rows": 24 });
        let opened = server.post(&format!("{session}/pty:open"), &order);
        assert_eq!(opened.status, 200, "{}", opened.text());
        let pty = opened.json()["pty_id"]
            .as_str()
            .expect("its name")
            .to_owned();
        Terminal {
            server,
            session,
            pty,
            next: 0,
            shown: String::new(),
        }
    }

    fn ask(&self, what: &str, more: Value) -> node_tests::Answer {
        let mut order = json!({ "version": 1, "task_id": TASK, "pty_id": self.pty });
        order
            .as_object_mut()
            .expect("it is")
            .extend(more.as_object().expect("it is").clone());
        self.server
            .post(&format!("{}/pty:{what}", self.session), &order)
    }

    fn keys(&self, keys: &str) {
        let sent = self.ask("send", json!({ "data_b64": STANDARD.encode(keys) }));
        assert_eq!(sent.status, 200, "{}", sent.text());
    }

    fn recv(&mut self) -> Value {
        let query = format!("pty_id={}&after={}&wait_seconds=5", self.pty, self.next);
        let piece = self
            .server
            .get(&format!("{}/pty:recv?{query}", self.session))
            .json();
        let bytes = STANDARD
            .decode(piece["data_b64"].as_str().expect("bytes"))
            .expect("base64");
        self.shown.push_str(&String::from_utf8_lossy(&bytes));
        self.next = piece["next"].as_u64().expect("an offset");
        piece
    }

    fn until(&mut self, text: &str) {
        for _ in 0..50 {
            if self.shown.contains(text) {
                return;
            }
            self.recv();
        }
        panic!("`{text}` does not come: {}", self.shown);
    }
}

#[test]
fn what_is_typed_is_run_and_what_is_shown_can_be_read_on() {
    let server = Server::new();
    let mut terminal = Terminal::open(&server);
    terminal.keys("echo a$((1+1))b; stty size; tty >/dev/null && echo is-a-tty\n");
    terminal.until("a2b");
    terminal.until("24 80");
    terminal.until("is-a-tty");
    assert_eq!(
        terminal
            .ask("resize", json!({ "cols": 100, "rows": 40 }))
            .status,
        204
    );
    terminal.keys("stty size\n");
    terminal.until("40 100");
    terminal.keys("exit 5\n");
    let mut last = terminal.recv();
    for _ in 0..50 {
        if last["ended"] == true {
            break;
        }
        last = terminal.recv();
    }
    assert_eq!(
        (&last["ended"], &last["exit_code"]),
        (&json!(true), &json!(5))
    );
    assert_eq!(
        terminal.ask("close", json!({})).json()["exit_code"],
        5,
        "closing what has ended changes nothing"
    );
}

#[test]
fn what_is_too_much_or_of_nobody_is_refused() {
    let server = Server::new();
    let terminal = Terminal::open(&server);
    let large = STANDARD.encode(vec![b'x'; (64 << 10) + 1]);
    assert_eq!(
        terminal.ask("send", json!({ "data_b64": large })).status,
        413
    );
    assert_eq!(terminal.ask("send", json!({ "data_b64": "%" })).status, 400);
    assert_eq!(
        terminal
            .ask("resize", json!({ "cols": 0, "rows": 1 }))
            .status,
        400
    );
    let other = "33333333-3333-4333-8333-333333333333";
    assert_eq!(
        terminal
            .ask("send", json!({ "data_b64": "", "task_id": other }))
            .status,
        404
    );
    assert_eq!(
        terminal
            .ask("send", json!({ "data_b64": "", "pty_id": "nobody" }))
            .status,
        404
    );
    let path = format!(
        "{}/pty:recv?pty_id={}&wait_seconds=61",
        terminal.session, terminal.pty
    );
    assert_eq!(server.get(&path).status, 400);
    assert_eq!(
        terminal.ask("send", json!({ "data_b64": "" })).status,
        200,
        "the control"
    );
}

#[test]
fn a_terminal_ends_with_its_session() {
    let server = Server::new();
    let terminal = Terminal::open(&server);
    let order = json!({ "version": 1, "task_id": TASK });
    assert_eq!(
        server
            .post(&format!("{}/end", terminal.session), &order)
            .status,
        200
    );
    assert_eq!(terminal.ask("send", json!({ "data_b64": "" })).status, 404);
    let path = format!("{}/pty:recv?pty_id={}", terminal.session, terminal.pty);
    assert_eq!(server.get(&path).status, 404);
}

/// Requirement 93: who opened a terminal, of which task, and how much was typed and shown.
#[test]
fn a_terminal_is_in_the_audit_with_its_task_and_how_much_was_typed_and_shown() {
    let server = Server::new();
    let mut terminal = Terminal::open(&server);
    terminal.keys("echo a$((1+1))b\n");
    terminal.until("a2b");
    assert_eq!(terminal.ask("close", json!({})).status, 200);
    let mut seen = Value::Null;
    server.until("its end in the audit", || {
        seen = server.get("/v1/audit?limit=1000").json();
        seen.to_string().matches("sandbox.pty").count() == 2
    });
    let entries = seen["lines"]
        .as_array()
        .unwrap_or_else(|| panic!("a list: {seen}"));
    let of_terminal: Vec<_> = entries
        .iter()
        .filter(|entry| entry["what"] == "sandbox.pty")
        .collect();
    for entry in &of_terminal {
        assert_eq!(entry["task"], TASK, "{entry}");
        assert!(
            entry["run"]
                .as_str()
                .is_some_and(|run| run.starts_with("session-")),
            "{entry}"
        );
    }
    let about = |entry: &&&Value| {
        entry["about"]
            .as_str()
            .is_some_and(|about| about.contains("typed=16 shown="))
    };
    assert_eq!(
        of_terminal.iter().filter(about).count(),
        1,
        "{of_terminal:?}"
    );
}
