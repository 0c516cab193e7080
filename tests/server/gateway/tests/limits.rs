//! A sandbox at a limit of its own: what is asked of it is answered by the limit's name, and it can be used again.

use gateway_tests::{Server, socket::Socket};
use serde_json::{Value, json};

const LIMIT: u32 = 16;

/// Takes every process that there is, and keeps them.
const FILL: &str = "
import os, signal
try:
    while os.fork():
        pass
except OSError:
    print('ready', flush=True)
signal.pause()
";

struct Sandbox {
    server: Server,
    path: String,
}

impl Sandbox {
    fn new() -> Sandbox {
        let server = Server::new();
        let made = server.post("/v1/sandboxes", &json!({ "pids": LIMIT }));
        assert_eq!(made.status, 201, "{}", made.text());
        let path = format!(
            "/v1/sandboxes/{}",
            made.json()["sandbox_id"].as_str().expect("its name")
        );
        Sandbox { server, path }
    }

    fn exec(&self, command: &[&str], background: bool) -> gateway_tests::Answer {
        let order = json!({ "command": command, "background": background });
        self.server.post(&format!("{}/exec", self.path), &order)
    }

    /// Lets nothing more be started; the program that sees to it.
    fn fill(&self) -> String {
        let begun = self.exec(&["python3", "-c", FILL], true);
        assert_eq!(begun.status, 201, "{}", begun.text());
        let exec = format!(
            "{}/exec/{}",
            self.path,
            begun.json()["exec_id"].as_str().expect("its name")
        );
        self.server.until("a full sandbox", || {
            self.server
                .get(&format!("{exec}/output"))
                .text()
                .contains("ready")
        });
        exec
    }

    fn state(&self) -> Value {
        self.server.get(&self.path).json()
    }
}

#[test]
fn a_sandbox_without_room_for_a_process_says_so_and_is_used_again_when_there_is_some() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.exec(&["true"], false).json()["status"],
        "succeeded",
        "the positive control"
    );
    let filler = sandbox.fill();
    for background in [false, true] {
        let refused = sandbox.exec(&["true"], background);
        let told = refused.json();
        assert_eq!(
            (refused.status, &told["code"]),
            (409, &json!("conflict")),
            "{told}"
        );
        assert!(
            told["detail"]
                .as_str()
                .is_some_and(|hint| hint.contains("`pids`")),
            "{told}"
        );
    }
    let bearer = format!("Bearer {}", sandbox.server.admin);
    let terminal = Socket::open(
        &sandbox.server.client,
        &format!("{}/pty", sandbox.path),
        &[("authorization", &bearer)],
    );
    assert_eq!(terminal.err(), Some(409));
    let state = sandbox.state();
    assert_eq!(
        (&state["status"], &state["limits_hit"]),
        (&json!("ready"), &json!(["pids"])),
        "{state}"
    );
    assert_eq!(
        sandbox
            .server
            .get(&format!("{}/files/", sandbox.path))
            .status,
        200,
        "files need no process"
    );
    assert_eq!(sandbox.server.get(&filler).json()["status"], "running");
    // One ends, and there is room for one that ends the others.
    assert_eq!(sandbox.server.delete(&filler).status, 200);
    assert_eq!(
        sandbox
            .exec(&["sh", "-c", "kill -9 -1; true"], false)
            .json()["status"],
        "succeeded"
    );
    let after = sandbox.exec(&["sh", "-c", "echo again"], false).json();
    assert_eq!(after["stdout"], "again\n", "{after}");
}

#[test]
fn a_sandbox_at_its_limit_can_be_ended() {
    let sandbox = Sandbox::new();
    sandbox.fill();
    let ended = sandbox.server.delete(&sandbox.path);
    assert_eq!(
        (ended.status, &ended.json()["reason"]),
        (200, &json!("asked")),
        "{}",
        ended.text()
    );
}
