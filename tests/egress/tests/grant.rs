//! Rules that change while a run goes on: `airlock grant` adds one for a time, denies, and takes away.

use egress::{Live, World};
use std::time::{Duration, Instant};

/// Asks for the same again whenever it is told to, and says the status.
const ASK: &str = "while read -r line; do curl -s -o /dev/null -w '%{http_code} %{http_connect}\\n' https://a.example/; done";

fn granting(world: &World, arguments: &[&str]) {
    let output = world.airlock(&[&["grant"], arguments].concat());
    assert!(output.status.success(), "{}", inside::said(&output));
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
    granting(&world, &["mine", "a.example", "--for", "5s"]);
    let granted = Instant::now();
    assert_eq!(ask(&mut run), "200 200");
    std::thread::sleep(Duration::from_millis(5100).saturating_sub(granted.elapsed()));
    assert_eq!(ask(&mut run), "000 403");
    run.end();
}

#[test]
fn what_is_under_way_ends_with_its_grant() {
    let world = World::new();
    let script = "echo ready; read; curl -sS https://a.example/hold";
    let mut run = world.begin(&["--run-id", "mine", "--allow-host", "other.example"], script);
    assert_eq!(run.line(), "ready");
    granting(&world, &["mine", "a.example", "--for", "5s"]);
    run.go_on();
    world.await_request(|request| request.target == "/hold");
    let began = Instant::now();
    let (_, rest, said) = run.end();
    assert!(!rest.contains("released"), "{rest}{said}");
    assert!(began.elapsed() < Duration::from_secs(10), "it was cut, not waited for");
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
    assert!(!output.status.success(), "a run that has ended is granted nothing");
}

#[test]
fn a_program_inside_cannot_grant_itself_anything() {
    let world = World::new();
    let program = cli::airlock().display().to_string();
    let mount = format!("{program}:/tools/airlock");
    let script = "/tools/airlock grant mine a.example --for 1m; curl -s -o /dev/null -w '%{http_connect}\\n' https://a.example/";
    let ran = world.run(&["--run-id", "mine", "--allow-host", "other.example", "--mount", &mount], script);
    assert_eq!(ran.stdout.lines().last(), Some("403"), "{ran:?}");
    assert!(world.connections().is_empty());
}
