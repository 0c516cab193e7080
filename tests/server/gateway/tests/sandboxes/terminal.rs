//! A shell at a terminal, over a WebSocket.

use crate::{
    Place, Sandbox,
    place::{alive, own_seconds},
};
use gateway_tests::socket::{Frame, Socket};
use serde_json::{Value, json};

fn open(sandbox: &Sandbox<'_>, query: &str) -> (Socket, Value) {
    let bearer = format!("Bearer {}", sandbox.place.key);
    let path = sandbox.path(&format!("/pty?{query}"));
    let socket = Socket::open(
        &sandbox.place.server.client,
        &path,
        &[("authorization", &bearer)],
    );
    let mut socket = socket.expect("a WebSocket");
    match socket.frame() {
        Some(Frame::Text(told)) => (socket, told["started"].clone()),
        other => panic!("it says first what it shows: {other:?}"),
    }
}

/// What it says next; prompts and the like may come before it.
fn told(socket: &mut Socket) -> Value {
    loop {
        match socket.frame() {
            Some(Frame::Text(told)) => return told,
            Some(Frame::Bytes(_) | Frame::Ping) => {}
            other => panic!("it says something: {other:?}"),
        }
    }
}

pub(crate) fn a_shell_sees_its_terminal(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (mut socket, _) = open(&sandbox, "command=/bin/sh&rows=30&columns=90");
    socket.keys(b"stty size\n");
    socket.until("30 90");
    socket.say(&json!({ "resize": { "rows": 40, "columns": 100 } }));
    socket.keys(b"stty size\n");
    socket.until("40 100");
    // Not at a prompt: some shells keep this signal to themselves there.
    let script = "trap%20'echo%20changed'%20WINCH;echo%20armed;while%20:;do%20sleep%200.1;done";
    let (mut hearing, _) = open(
        &sandbox,
        &format!("command=sh&command=-c&command={script}&kill=true"),
    );
    hearing.until("armed");
    hearing.say(&json!({ "resize": { "rows": 41, "columns": 101 } }));
    hearing.until("changed");
    let seconds = own_seconds();
    socket.keys(format!("sleep {seconds}\n").as_bytes());
    place
        .server
        .until("the sleeper", || !alive(&seconds).is_empty());
    socket.keys(b"\x03");
    socket.keys(b"echo in$((1 + 1))ed\n");
    socket.until("in2ed");
    socket.say(&json!({ "what": 1 }));
    assert_eq!(told(&mut socket)["error"]["code"], "invalid_spec");
    socket.keys(b"exit 7\n");
    let exited = told(&mut socket);
    assert_eq!(exited["exited"]["exit_code"], 7, "{exited}");
    assert_eq!(socket.frame(), Some(Frame::Close));
}

pub(crate) fn two_viewers_see_the_same_and_one_comes_back(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (mut first, started) = open(&sandbox, "command=/bin/sh");
    let exec = started["exec_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    let (mut second, _) = open(&sandbox, &format!("exec={exec}"));
    first.keys(b"echo from-$((2 + 3))\n");
    first.until("from-5");
    second.until("from-5");
    drop(first);
    second.keys(b"echo still-$((4 + 4))\n");
    second.until("still-8");
    let total: usize = {
        let all = sandbox.get(&format!("/exec/{exec}/output"));
        all.header("airlock-total")
            .expect("its length")
            .parse()
            .expect("a number")
    };
    let (mut again, started) = open(&sandbox, &format!("exec={exec}&offset={total}"));
    assert_eq!(started["offset"], total);
    again.keys(b"echo again-$((5 + 5))\n");
    let shown = again.until("again-10");
    assert!(
        !shown.contains("still-8"),
        "what was seen is not shown twice: {shown}"
    );
    let other = sandbox.start(&json!({ "command": ["sleep", "1000"] }));
    let bearer = format!("Bearer {}", place.key);
    let refused = |path: String, key: &str| {
        Socket::open(
            &place.server.client,
            &sandbox.path(&path),
            &[("authorization", key)],
        )
        .err()
    };
    assert_eq!(
        refused(format!("/pty?exec={other}"), &bearer),
        Some(409),
        "it has no terminal"
    );
    assert_eq!(refused("/pty?exec=nobody".to_owned(), &bearer), Some(404));
    let strangers = format!("Bearer {}", place.server.key(&["sandboxes"]));
    assert_eq!(
        refused(format!("/pty?exec={exec}"), &strangers),
        Some(404),
        "somebody else's"
    );
    let (killing, started) = open(&sandbox, "command=/bin/sh&kill=true");
    drop(killing);
    let killed = started["exec_id"].as_str().expect("an identifier");
    assert_ne!(
        sandbox.result(killed)["status"],
        "succeeded",
        "it ended with its socket"
    );
    assert_eq!(
        sandbox.get(&format!("/exec/{exec}")).json()["status"],
        "running",
        "the other one goes on"
    );
}
