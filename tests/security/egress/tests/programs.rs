//! Real programs that know a proxy when they are told of one: pip, npm, curl, git. Each does its work with the rule, and
//! nothing without it: not a connection, not even a question for the name.

use egress::{Ran, World};

/// Node brings its own list of authorities and must be told of the system's; this machine may have settings for npm.
const NODE_TRUSTS: [&str; 4] = [
    "--env",
    "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt",
    "--env",
    "NPM_CONFIG_GLOBALCONFIG=/dev/null",
];

/// Runs a command as a user types it.
fn run(world: &World, options: &[&str], command: &[&str]) -> Ran {
    Ran::of(&world.airlock(&[&["run", "--json"], options, &["--"], command].concat()))
}

/// Claims that nothing left the machine, and that the result names who was meant.
#[track_caller]
fn is_denied(world: &World, ran: &Ran, target: &str) {
    ran.badly();
    assert!(
        ran.denied().iter().any(|denied| denied.contains(target)),
        "{ran:?}"
    );
    assert!(world.queries().is_empty(), "{:?}", world.queries());
    assert!(world.connections().is_empty(), "{:?}", world.connections());
    let allow = ran.json["denials"][0]["allow_with"]
        .as_str()
        .expect("what would allow it");
    assert!(allow.starts_with("--allow-host "), "{ran:?}");
}

#[test]
fn pip_installs_from_the_hosts_that_were_granted() {
    let world = World::new();
    world.python_package("requests", "2.99.0");
    let install = [
        "pip",
        "install",
        "--retries",
        "0",
        "--target",
        "lib",
        "requests",
    ];
    let ran = run(
        &world,
        &[
            "--allow-host",
            "pypi.org",
            "--allow-host",
            "*.pythonhosted.org",
        ],
        &install,
    );
    assert!(
        ran.well()
            .contains("Successfully installed requests-2.99.0"),
        "{ran:?}"
    );
    let hosts: Vec<_> = world
        .requests()
        .into_iter()
        .map(|request| request.host)
        .collect();
    assert_eq!(hosts, ["pypi.org", "files.pythonhosted.org"]);
    world.clear();
    // The page alone does not help.
    let ran = run(&world, &["--allow-host", "pypi.org"], &install);
    ran.badly();
    assert_eq!(ran.denied(), ["files.pythonhosted.org:443"]);
    assert!(
        world.queries().iter().all(|query| query.name == "pypi.org"),
        "{:?}",
        world.queries()
    );
    world.clear();
    is_denied(
        &world,
        &run(&world, &["--allow-host", "other.example"], &install),
        "pypi.org:443",
    );
}

#[test]
fn npm_installs_from_the_registry_if_that_was_granted() {
    let world = World::new();
    world.node_package("left-pad", "1.99.0");
    let install =
        "npm install --no-fund --fetch-retries 0 left-pad && node -p 'require(\"left-pad\")'";
    let options = |host| {
        [
            &["--profile", "agent", "--allow-host", host],
            &NODE_TRUSTS[..],
        ]
        .concat()
    };
    let ran = world.run(&options("registry.npmjs.org"), install);
    assert!(ran.well().ends_with("1.99.0\n"), "{ran:?}");
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.host == "registry.npmjs.org")
    );
    world.clear();
    is_denied(
        &world,
        &world.run(&options("other.example"), install),
        "registry.npmjs.org:443",
    );
}

#[test]
fn curl_reaches_the_host_that_was_granted() {
    let world = World::new();
    for scheme in ["https", "http"] {
        let get = format!("curl -sS --fail-with-body {scheme}://a.example/some/path?query");
        let ran = world.run(&["--allow-host", "a.example"], &get);
        assert_eq!(ran.well(), "a.example says hello\n");
        let request = world.requests().pop().expect("it came");
        assert_eq!(
            (request.target.as_str(), request.tls),
            ("/some/path?query", scheme == "https")
        );
        world.clear();
        let port = if scheme == "https" { 443 } else { 80 };
        let ran = world.run(&["--allow-host", "b.example"], &get);
        is_denied(&world, &ran, &format!("a.example:{port}"));
    }
}

#[test]
fn a_refusal_says_the_rule_and_what_would_allow_it() {
    let world = World::new();
    let ran = world.run(
        &["--allow-host", "a.example"],
        "curl -sS http://b.example/; curl -sSi -p https://b.example/",
    );
    for words in ["b.example", "--allow-host b.example", "airlock grant "] {
        assert!(ran.stdout.contains(words), "`{words}`: {ran:?}");
    }
    assert!(ran.stdout.contains("403"), "{ran:?}");
}

#[test]
fn git_clones_and_pushes_at_the_host_that_was_granted() {
    let world = World::new();
    let repository = world.repository("acme/app");
    let work = "set -e; git clone -q https://git.example/acme/app.git; cd app; cat README
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m second; git push -q origin HEAD:refs/heads/two";
    is_denied(
        &world,
        &world.run(&["--allow-host", "a.example"], work),
        "git.example:443",
    );
    assert_eq!(
        world.run(&["--allow-host", "git.example"], work).well(),
        "acme/app\n"
    );
    assert!(repository.refs().contains_key("refs/heads/two"));
}

#[test]
fn a_redirect_to_somewhere_else_is_judged_again() {
    let world = World::new();
    let get = "curl -sS --fail-with-body -L 'https://a.example/redirect?https://b.example/'";
    let ran = world.run(&["--allow-host", "a.example"], get);
    ran.badly();
    assert_eq!(ran.denied(), ["b.example:443"]);
    assert_eq!(world.requests().len(), 1);
    assert_eq!(
        world
            .run(
                &["--allow-host", "a.example", "--allow-host", "b.example"],
                get
            )
            .well(),
        "b.example says hello\n"
    );
}

#[test]
fn much_passes_as_it_is() {
    let world = World::new();
    let get = "curl -sS https://a.example/bytes/50000000 | tr -d x | wc -c; curl -sS https://a.example/bytes/50000000 | wc -c";
    assert_eq!(
        world.run(&["--allow-host", "a.example"], get).well(),
        "0\n50000000\n"
    );
    let put = "head -c 50000000 /dev/zero | curl -sS -T - https://a.example/echo | wc -c";
    world.run(&["--allow-host", "a.example"], put).well();
    world.await_request(|request| request.method == "PUT" && request.body_bytes == 50_000_000);
}
