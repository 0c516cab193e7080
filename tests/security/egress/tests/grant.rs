//! Rules that change while a run goes on: `airlock grant` adds one for a time, denies, and takes away.

use egress::{Live, Who, World, ordinary};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Asks for the same again whenever it is told to, and says the status.
const ASK: &str = "while read -r line; do curl -s -o /dev/null -w '%{http_code} %{http_connect}\\n' https://a.example/; done";

fn granting(world: &World, arguments: &[&str]) {
    let output = world.airlock(&[&["grant"], arguments].concat());
    assert!(output.status.success(), "{}", sdk_tests::said(&output));
}

fn ask(run: &mut Live) -> String {
    run.go_on();
    run.line()
}

#[test]
fn a_grant_holds_for_its_time_and_no_longer() {
    let world = World::new();
    let mut run = world.begin(&["--run-id", "mine", "--allow-host", "other.example"], ASK);
    assert_eq!(ask(&mut run), "000 403");
    assert!(world.connections().is_empty() && world.queries().is_empty());
    let asked = Instant::now();
    granting(&world, &["mine", "a.example", "--for", "5s"]);
    assert_eq!(ask(&mut run), "200 200");
    let is_listed = || {
        let rules = world.airlock(&["grant", "mine", "--list"]);
        assert!(rules.status.success(), "{}", sdk_tests::said(&rules));
        String::from_utf8_lossy(&rules.stdout).contains("a.example")
    };
    assert!(is_listed());
    while is_listed() {
        assert!(asked.elapsed() < Duration::from_secs(30), "it does not end");
    }
    assert!(
        asked.elapsed() >= Duration::from_secs(5),
        "it ended too early"
    );
    assert_eq!(ask(&mut run), "000 403");
    run.end();
}

#[test]
fn what_is_under_way_ends_with_its_grant() {
    let world = World::new();
    let script = "echo ready; read; curl -sSN https://a.example/hold; echo ended $?";
    let mut run = world.begin(
        &["--run-id", "mine", "--allow-host", "other.example"],
        script,
    );
    let mut other = world.begin(&["--allow-host", "a.example"], script);
    assert_eq!(
        (run.line().as_str(), other.line().as_str()),
        ("ready", "ready")
    );
    granting(&world, &["mine", "a.example", "--for", "5s"]);
    run.go_on();
    other.go_on();
    assert_eq!(
        (run.line().as_str(), other.line().as_str()),
        ("held", "held")
    );
    // Nobody has released it.
    let cut = run.line();
    assert!(cut.starts_with("ended ") && cut != "ended 0", "{cut}");
    // The control: what no grant ends goes on.
    world.release();
    assert_eq!(
        (other.line().as_str(), other.line().as_str()),
        ("released", "ended 0")
    );
    run.end();
    other.end();
}

#[test]
fn a_denial_cuts_what_is_under_way_and_wins() {
    let world = World::new();
    let script = "curl -sS https://a.example/hold; echo; read; curl -s -o /dev/null -w '%{http_connect}\\n' https://a.example/";
    let mut run = world.begin(&["--run-id", "mine", "--allow-host", "a.example"], script);
    world.await_request(|request| request.target == "/hold");
    granting(&world, &["mine", "a.example", "--deny"]);
    assert_eq!(run.line(), "held");
    // An end, though nobody released it.
    assert_eq!(run.line(), "");
    run.go_on();
    assert_eq!(run.line(), "403");
    run.end();
}

#[test]
fn what_was_given_can_be_taken_away() {
    let world = World::new();
    let mut run = world.begin(&["--run-id", "mine", "--allow-host", "a.example"], ASK);
    assert_eq!(ask(&mut run), "200 200");
    granting(&world, &["mine", "a.example", "--revoke"]);
    assert_eq!(ask(&mut run), "000 403");
    granting(&world, &["mine", "a.example", "--for", "1m"]);
    assert_eq!(ask(&mut run), "200 200");
    run.end();
}

#[test]
fn a_grant_is_for_one_run_and_never_for_what_is_not_public() {
    let world = World::new();
    let mut mine = world.begin(&["--run-id", "mine", "--allow-host", "other.example"], ASK);
    let mut other = world.begin(&["--run-id", "other", "--allow-host", "other.example"], ASK);
    assert_eq!(ask(&mut other), "000 403");
    world.resolves("a.example", &[&["127.0.0.1"]]);
    granting(&world, &["mine", "a.example", "--for", "1m"]);
    assert_eq!(ask(&mut mine), "000 403", "it leads inwards");
    assert_eq!(ask(&mut other), "000 403");
    assert!(world.connections().is_empty());
    mine.end();
    other.end();
    let output = world.airlock(&["grant", "mine", "a.example", "--for", "1m"]);
    assert!(
        !output.status.success(),
        "a run that has ended is granted nothing"
    );
}

/// The very question that whoever started the run may ask, at its socket; says the answer, or why there is none.
fn ask_for_more(state: &Path) -> String {
    format!(
        "cat > ask.py <<'END'
import os, socket
os.chdir('{}/doors')
stream = socket.socket(socket.AF_UNIX)
stream.connect('mine.control')
stream.sendall(b'{{\"op\":\"grant\",\"host\":\"a.example\",\"seconds\":60}}\\n')
print(stream.recv(65536).decode().strip())
END
/usr/bin/python3 ask.py 2>&1 | tail -n 1
",
        state.display()
    )
}

#[test]
fn a_program_inside_cannot_grant_itself_anything() {
    let others = ordinary("an ordinary user's program cannot either");
    for who in [Some(Who::Myself), others].into_iter().flatten() {
        let world = World::of(who);
        let state = world.path("state");
        let options = ["--run-id", "mine", "--allow-host", "other.example"];
        let mut run = world.begin(&options, &format!("{}{ASK}", ask_for_more(&state)));
        let answer = run.line();
        assert!(answer.contains("Error"), "{answer}");
        assert_eq!(ask(&mut run), "000 403");
        assert!(world.connections().is_empty());
        // The control: the same, from outside.
        let output = world.outside(&ask_for_more(&state));
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("\"ok\":true"),
            "{}",
            sdk_tests::said(&output)
        );
        assert_eq!(ask(&mut run), "200 200");
        // Nor can the socket be shown to it, while there is one.
        let shown = format!("{}:/shown", state.join("doors").display());
        let refused = world.run(&["--mount", &shown], "true");
        assert_eq!(refused.json["status"], "not_started", "{refused:?}");
        run.end();
    }
}

#[test]
fn a_second_run_of_the_same_id_is_refused_and_takes_nothing_from_the_first() {
    let world = World::new();
    let rule = "host = \"a.example\"\nmode = \"inspect\"\n";
    world.configure(&format!("[[profile.restrictive.egress]]\n{rule}"));
    let mut run = world.begin(&["--run-id", "mine"], ASK);
    assert_eq!(ask(&mut run), "200 200");
    let files = || {
        std::fs::read_dir(world.path("state/doors"))
            .expect("it is there")
            .count()
    };
    let before = files();
    let refused = world.run(&["--run-id", "mine"], "true");
    assert_eq!(refused.json["status"], "not_started", "{refused:?}");
    let why = refused.json["error"]["message"]
        .as_str()
        .unwrap_or_default();
    assert!(
        why.contains("mine") && !why.contains("socket"),
        "{refused:?}"
    );
    assert_eq!((before, files()), (2, 2), "its socket and its certificates");
    granting(&world, &["mine", "--list"]);
    assert_eq!(ask(&mut run), "200 200");
    run.end();
    assert_eq!(files(), 0);
}

#[test]
fn the_longest_id_has_doors_as_any_other() {
    let world = World::new();
    let id = "i".repeat(128);
    let mut run = world.begin(
        &[
            "--run-id",
            &id,
            "--inference",
            "--allow-host",
            "other.example",
        ],
        ASK,
    );
    assert_eq!(ask(&mut run), "000 403");
    granting(&world, &[&id, "a.example", "--for", "1m"]);
    assert_eq!(ask(&mut run), "200 200");
    run.end();
}
