//! How much passes, for whom, and what is written down of it.

use egress::World;
use serde_json::Value;

/// A world whose runs may reach `*.example`, with these further words of that rule.
fn with_rule(more: &str) -> World {
    let world = World::new();
    world.configure(&format!(
        "[[profile.restrictive.egress]]\nhost = \"*.example\"\nmode = \"tunnel\"\n{more}\n"
    ));
    world
}

/// Every record of the egress door that the world's runs left.
fn records(world: &World) -> Vec<Value> {
    let all = sdk_tests::ledger(&world.path("state"));
    all.into_iter()
        .filter(|record| record["kind"] == "egress")
        .collect()
}

#[test]
fn a_spent_limit_of_bytes_stops_what_passes() {
    let world = with_rule("received = \"1M\"");
    for way in ["", "--noproxy '*'"] {
        for scheme in ["http", "https"] {
            let get = format!("curl -s {way} {scheme}://a.example/bytes/8000000 | wc -c");
            let ran = world.run(&[], &get);
            let came: u64 = ran.stdout.trim().parse().expect("a number");
            // What was on its way when it was cut is lost.
            let passed = ran.json["usage"]["egress"]["bytes_received"]
                .as_u64()
                .expect("a number");
            assert!(
                came <= 1 << 20 && passed > 1 << 19,
                "{way} {scheme}: {passed} {ran:?}"
            );
            assert_eq!(
                ran.json["limits_hit"],
                serde_json::json!(["egress"]),
                "{ran:?}"
            );
        }
    }
    let world = with_rule("sent = \"1M\"");
    world
        .run(
            &[],
            "head -c 8000000 /dev/zero | curl -s -T - https://a.example/",
        )
        .badly();
    let came: u64 = world
        .requests()
        .iter()
        .map(|request| request.body_bytes)
        .sum();
    assert!(came <= 1 << 20, "{came}");
    let unlimited = with_rule("").run(&[], "curl -s https://a.example/bytes/8000000 | wc -c");
    assert_eq!(unlimited.well(), "8000000\n", "the control");
}

#[test]
fn only_so_many_are_begun_in_a_minute() {
    let world = with_rule("per_minute = 3");
    let ran = world.run(
        &[],
        "for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{http_code}\\n' https://a.example/; done",
    );
    assert_eq!(ran.stdout, "200\n200\n200\n000\n000\n", "{ran:?}");
    assert_eq!(
        (world.connections().len(), &ran.json["limits_hit"]),
        (3, &serde_json::json!(["egress"]))
    );
}

#[test]
fn a_run_has_its_own_rules_and_no_others() {
    let world = World::new();
    let script = "echo ready; read; for name in a b; do curl -s -o /dev/null -w '%{http_connect} ' https://$name.example/; done; echo";
    let mut runs =
        ["a.example", "b.example"].map(|host| world.begin(&["--allow-host", host], script));
    // Both have begun, so both doors are open.
    runs.iter_mut()
        .for_each(|run| assert_eq!(run.line(), "ready"));
    runs.iter_mut().for_each(|run| run.go_on());
    let told = runs.map(|mut run| run.line());
    assert_eq!(told, ["200 403", "403 200"]);
}

#[test]
fn lists_of_the_operator_and_of_the_project_narrow() {
    let world = World::new();
    let get = "for name in a b; do curl -s -o /dev/null -w '%{http_connect}\\n' https://$name.example/; done";
    let both = ["--allow-host", "a.example", "--allow-host", "b.example"];
    assert_eq!(world.run(&both, get).stdout, "200\n200\n", "the control");
    world.give("airlock.toml", "allow_hosts = [\"a.example\"]\n");
    assert_eq!(world.run(&both, get).stdout, "200\n403\n");
    std::fs::remove_file(world.path("airlock.toml")).expect("it was there");
    world.configure("[maximum]\nallow_hosts = [\"a.example\"]\n");
    let refused = world.run(&both, get);
    assert_eq!(
        (refused.status, &refused.json["error"]["code"]),
        (Some(125), &"policy_denied".into())
    );
    assert_eq!(world.run(&["--network", "open"], get).stdout, "200\n403\n");
    assert_eq!(
        world.run(&["--learn"], get).stdout,
        "200\n403\n",
        "nothing is learned beyond it"
    );
}

#[test]
fn a_rule_that_denies_wins() {
    let world =
        with_rule("[[profile.restrictive.egress]]\nhost = \"evil.example\"\nmode = \"deny\"");
    let get = "for name in good evil; do for way in http https; do curl -s -f $way://$name.example/
curl -s -f --noproxy '*' $way://$name.example/; done; done";
    for options in [
        &[][..],
        &["--network", "open"],
        &["--learn"],
        &["--allow-host", "evil.example"],
    ] {
        assert_eq!(
            world.run(options, get).stdout,
            "good.example says hello\n".repeat(4),
            "{options:?}"
        );
    }
    assert!(
        world
            .queries()
            .iter()
            .all(|query| query.name == "good.example")
    );
}

#[test]
fn socks_is_the_same_door() {
    let world = World::new();
    for way in ["--socks5-hostname", "--socks5"] {
        let get = |name: &str| {
            format!("curl -sS --noproxy '' {way} 127.0.0.1:3128 https://{name}.example/")
        };
        assert_eq!(
            world.run(&["--allow-host", "a.example"], &get("a")).well(),
            "a.example says hello\n",
            "{way}"
        );
        world.clear();
        world.run(&["--allow-host", "a.example"], &get("b")).badly();
        assert_eq!(
            (world.queries(), world.connections().len()),
            (vec![], 0),
            "{way}"
        );
    }
}

#[test]
fn what_passed_and_what_did_not_is_written_down_without_what_was_said() {
    let world = World::new();
    let script = "curl -s 'https://a.example/path?private-words'; curl -s 'http://a.example/path?private-words'; curl -s https://b.example/";
    let ran = world.run(&["--allow-host", "a.example"], script);
    let usage = &ran.json["usage"]["egress"];
    assert_eq!(
        (&usage["passed"], &usage["denied"]),
        (&2.into(), &1.into()),
        "{usage}"
    );
    assert!(
        usage["bytes_received"].as_u64() > Some(100) && usage["bytes_sent"].as_u64() > Some(100),
        "{usage}"
    );
    let records = records(&world);
    let has = |verdict: &str, target: &str| {
        records.iter().any(|one| {
            one["verdict"] == verdict
                && one["target"]
                    .as_str()
                    .is_some_and(|own| own.contains(target))
        })
    };
    assert!(
        has("allow", "a.example:443")
            && has("allow", "a.example:80")
            && has("deny", "b.example:443"),
        "{records:#?}"
    );
    assert!(
        records
            .iter()
            .all(|record| !record.to_string().contains("private-words")),
        "{records:#?}"
    );
}
