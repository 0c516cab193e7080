//! Ends that cannot be refused. The bound is a guard against hanging: the claim is that the answer comes, and that the
//! process is gone when it does.

use crate::{
    Place, Sandbox,
    place::{alive, own_seconds},
};
use serde_json::json;
use std::time::{Duration, Instant};

const HANGS: Duration = Duration::from_secs(10);

/// Starts a program that sleeps for a number of its own; its identifier, and the number.
fn sleeper(sandbox: &Sandbox<'_>, before: &str) -> (String, String) {
    let seconds = own_seconds();
    let exec = sandbox.ready(&format!(
        "{before} sleep {seconds} & echo ready; while :; do wait; done"
    ));
    sandbox
        .place
        .server
        .until("the sleeper", || !alive(&seconds).is_empty());
    (exec, seconds)
}

fn killed(sandbox: &Sandbox<'_>, exec: &str, seconds: &str) {
    let begun = Instant::now();
    let ended = sandbox.delete(&format!("/exec/{exec}"));
    assert_eq!(ended.status, 200, "{}", ended.text());
    assert_ne!(ended.json()["status"], "running", "{}", ended.text());
    assert!(begun.elapsed() < HANGS, "{:?}", begun.elapsed());
    assert!(alive(seconds).is_empty(), "it is answered that it is gone");
}

pub(crate) fn a_program_that_ignores_sigterm_is_gone(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (exec, seconds) = sleeper(&sandbox, "trap '' TERM INT HUP;");
    killed(&sandbox, &exec, &seconds);
    assert_eq!(sandbox.said("echo alive"), "alive\n", "the sandbox goes on");
}

pub(crate) fn a_stopped_program_is_gone(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (exec, seconds) = sleeper(&sandbox, "trap '' TERM;");
    assert_eq!(
        sandbox
            .post(
                &format!("/exec/{exec}/signal"),
                &json!({ "signal": "STOP" })
            )
            .status,
        204
    );
    killed(&sandbox, &exec, &seconds);
}

pub(crate) fn a_program_in_a_paused_sandbox_is_gone(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (exec, seconds) = sleeper(&sandbox, "trap '' TERM;");
    let paused = sandbox.post("/pause", &json!({}));
    if !place.freezes(&paused) {
        return;
    }
    assert_eq!(paused.status, 200, "{}", paused.text());
    killed(&sandbox, &exec, &seconds);
    assert_eq!(
        sandbox.get("").json()["status"],
        "paused",
        "the rest of it still is"
    );
    assert_eq!(sandbox.post("/resume", &json!({})).status, 200);
    assert_eq!(sandbox.said("echo alive"), "alive\n");
}

pub(crate) fn a_sandbox_is_gone_with_everything_in_it(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let (_, first) = sleeper(&sandbox, "trap '' TERM;");
    let second = own_seconds();
    sandbox.said(&format!("setsid sleep {second} >/dev/null 2>&1 & echo"));
    place
        .server
        .until("the second", || !alive(&second).is_empty());
    let begun = Instant::now();
    let ended = sandbox.delete("");
    assert_eq!(
        (ended.status, &ended.json()["status"]),
        (200, &json!("ended")),
        "{}",
        ended.text()
    );
    assert!(begun.elapsed() < HANGS, "{:?}", begun.elapsed());
    assert!(alive(&first).is_empty() && alive(&second).is_empty());
}
