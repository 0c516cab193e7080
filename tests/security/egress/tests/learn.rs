//! `--learn` lets pass what no rule allows, and says afterwards which rules would have; with these, the same passes.

use egress::{Ran, World};
use serde_json::Value;

/// The options that a run says it needed.
fn learned(ran: &Ran) -> Vec<String> {
    let rules = ran.json["learned"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let host = |rule: &Value| rule["host"].as_str().expect("a host").to_owned();
    let ports = |rule: &Value| {
        let ports = rule["ports"].as_array().expect("ports").iter();
        ports
            .map(|port| port.as_u64().expect("a port"))
            .collect::<Vec<_>>()
    };
    let options = |rule: &Value| {
        let (host, ports) = (host(rule), ports(rule));
        ports
            .into_iter()
            .flat_map(move |port| ["--allow-host".to_owned(), format!("{host}:{port}")])
    };
    rules.iter().flat_map(options).collect()
}

const BUILD: &str =
    "set -e; curl -sS https://a.example/; curl -sS --noproxy '*' https://b.example:8443/
curl -sSf http://c.example/; curl -sSL 'https://a.example/redirect?https://d.example/'";
const BUILT: &str =
    "a.example says hello\nb.example says hello\nc.example says hello\nd.example says hello\n";

#[test]
fn what_was_learned_is_what_is_needed() {
    let world = World::new();
    let ran = world.run(&["--learn"], BUILD);
    assert_eq!(ran.well(), BUILT);
    let options = learned(&ran);
    let hosts: Vec<_> = options
        .iter()
        .filter(|option| !option.starts_with("--"))
        .collect();
    assert_eq!(
        hosts,
        [
            "a.example:443",
            "b.example:8443",
            "c.example:80",
            "d.example:443"
        ]
    );
    let all: Vec<_> = options.iter().map(String::as_str).collect();
    assert_eq!(world.run(&all, BUILD).well(), BUILT);
    // Each of them is needed.
    for left_out in (0..all.len()).step_by(2) {
        let fewer = [&all[..left_out], &all[left_out + 2..]].concat();
        world.run(&fewer, BUILD).badly();
    }
}

#[test]
fn it_is_said_in_words_that_can_be_used_as_they_stand() {
    let world = World::new();
    let output = world.airlock(&["run", "--learn", "--", "bash", "-c", BUILD]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for words in [
        "--allow-host a.example:443",
        "--allow-host b.example:8443",
        "[[profile.restrictive.egress]]",
    ] {
        assert!(said.contains(words), "`{words}`: {said}");
    }
    let rules = said.lines().filter(|line| !line.starts_with("airlock"));
    world.configure(&rules.map(|line| format!("{line}\n")).collect::<String>());
    assert_eq!(world.run(&[], BUILD).well(), BUILT);
}

#[test]
fn what_is_not_public_stays_refused_and_is_not_learned() {
    let world = World::new();
    world.resolves("inwards.example", &[&["10.0.0.1"]]);
    let script = "for host in 127.0.0.1 169.254.169.254 10.0.0.1 inwards.example '[::1]'
do curl -sS -g -m 5 http://$host/; curl -sS -g -m 5 --noproxy '*' http://$host/; done; curl -sS http://a.example/";
    let ran = world.run(&["--learn"], script);
    assert_eq!(ran.stdout.matches("says hello").count(), 1, "{ran:?}");
    assert_eq!(learned(&ran), ["--allow-host", "a.example:80"]);
    assert_eq!(world.connections().len(), 1);
    assert!(
        world
            .outside("curl -sS http://inwards.example/")
            .status
            .success(),
        "the control"
    );
}
