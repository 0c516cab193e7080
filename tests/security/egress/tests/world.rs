//! Claims about the world itself: it is what the other tests take it for. No door has a part in this.

use egress::{BANNER, OWN_V4, SERVER_V4, SERVER_V6, Who, World, ordinary};

fn said(world: &World, script: &str) -> String {
    let output = world.outside(script);
    assert!(output.status.success(), "{}", sdk_tests::said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(world: &World, script: &str) -> Option<i32> {
    let output = world.outside(script);
    assert!(!output.status.success(), "{}", sdk_tests::said(&output));
    output.status.code()
}

#[test]
fn every_name_and_every_address_leads_to_its_servers() {
    let world = World::new();
    for scheme in ["http", "https"] {
        assert_eq!(
            said(&world, &format!("curl -sS -4 {scheme}://any.example/")),
            "any.example says hello\n"
        );
        assert_eq!(
            said(&world, &format!("curl -sS -6 {scheme}://any.example/")),
            "any.example says hello\n"
        );
        for address in [
            "1.1.1.1",
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            OWN_V4,
            "[::1]",
            "[fd00:ec2::254]",
        ] {
            let told = said(&world, &format!("curl -sS '{scheme}://{address}/'"));
            assert_eq!(told, format!("{address} says hello\n"));
        }
    }
    let to: Vec<_> = world
        .connections()
        .iter()
        .map(|one| one.to.ip().to_string())
        .collect();
    assert_eq!(to[..3], [SERVER_V4, SERVER_V6, "1.1.1.1"]);
    let first = &world.requests()[0];
    assert_eq!(
        (first.tls, first.host.as_str(), first.target.as_str()),
        (false, "any.example", "/")
    );
    assert_eq!(world.requests()[9].sni.as_deref(), Some("any.example"));
    assert_eq!(world.queries()[0].name, "any.example");
    let script = "exec 3<>/dev/tcp/1.2.3.4/22; head -n 1 <&3; echo back >&3; head -n 1 <&3";
    assert_eq!(said(&world, script), format!("{BANNER}back\n"));
    world.clear();
    assert!(
        world.connections().is_empty() && world.requests().is_empty() && world.queries().is_empty()
    );
}

#[test]
fn names_are_what_was_said_of_them() {
    let world = World::new();
    let address = "getent ahostsv4 changes.example | head -n 1 | cut -d' ' -f1";
    world.resolves("changes.example", &[&["1.1.1.1"], &["127.0.0.1"]]);
    let three: Vec<_> = (0..3).map(|_| said(&world, address)).collect();
    assert_eq!(three, ["1.1.1.1\n", "127.0.0.1\n", "127.0.0.1\n"]);
    world.is_alias("alias.example", "changes.example");
    assert!(said(&world, "getent ahostsv4 alias.example").contains("127.0.0.1"));
    world.is_missing("missing.example");
    fails(&world, "getent hosts missing.example");
    world.is_broken("broken.example");
    fails(&world, "getent hosts broken.example");
    world.is_never_answered("silent.example");
    fails(&world, "timeout 3 getent hosts silent.example");
    let asked: Vec<_> = world
        .queries()
        .into_iter()
        .map(|query| query.name)
        .collect();
    assert!(
        ["missing.example", "silent.example"]
            .iter()
            .all(|name| asked.contains(&(*name).to_owned()))
    );
}

#[test]
fn bad_certificates_are_bad() {
    let world = World::new();
    for name in ["self-signed", "wrong-name", "expired", "stranger"] {
        assert_eq!(
            fails(&world, &format!("curl -sS https://{name}.example/")),
            Some(60),
            "{name}"
        );
        said(&world, &format!("curl -sSk https://{name}.example/"));
    }
    assert_eq!(world.requests().len(), 4, "only who does not look asks");
}

#[test]
fn servers_answer_in_many_ways() {
    let world = World::new();
    let get = |path: &str| {
        said(
            &world,
            &format!("curl -sSi -H 'X-Own: 1' https://a.example{path}"),
        )
    };
    for path in ["/echo", "/echo/chunked", "/echo/error"] {
        assert!(get(path).contains("x-own: 1\n"), "{path}");
    }
    assert!(get("/echo/headers").contains("x-echo-x-own: 1\r\n"));
    let trailers = "curl -sSi -H 'TE: trailers' -H 'X-Own: 1' https://a.example/echo/trailers --trace-ascii - -o /dev/null";
    assert!(said(&world, trailers).contains("x-echo-x-own: 1"));
    assert!(
        said(
            &world,
            "curl -sS --compressed -H 'X-Own: 1' https://a.example/echo/gzip"
        )
        .contains("x-own: 1\n")
    );
    assert!(get("/redirect?https://b.example/").contains("location: https://b.example/\r\n"));
    assert!(get("/status/418").starts_with("HTTP/1.1 418 "));
    assert_eq!(
        said(&world, "curl -sS https://a.example/bytes/3000000 | wc -c"),
        "3000000\n"
    );
    assert_eq!(
        said(&world, "curl -sS https://a.example/slow/3/10"),
        "piece 0\npiece 1\npiece 2\n"
    );
    let upgraded = "exec 3<>/dev/tcp/a.example/80
printf 'GET /socket HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\nbytes\\n' >&3
grep -m 1 bytes <&3";
    assert_eq!(said(&world, upgraded), "bytes\n");
    world.says("raw.example", "HTTP/1.1 299 As It Is\r\n\r\n");
    assert_eq!(
        said(&world, "curl -sSi https://raw.example/"),
        "HTTP/1.1 299 As It Is\r\n\r\n"
    );
    assert!(
        world
            .connections()
            .last()
            .expect("it came")
            .first
            .starts_with(b"GET / HTTP/1.1\r\n")
    );
    said(&world, "curl -sS --data hello https://post.example/");
    assert_eq!(
        world
            .await_request(|one| one.method == "POST" && one.body_bytes == 5)
            .body,
        b"hello"
    );
    world.requires("key.example", "/v1/", "x-key", "open");
    assert!(said(&world, "curl -sSi https://key.example/v1/x").starts_with("HTTP/1.1 401 "));
    assert!(
        said(
            &world,
            "curl -sSi -H 'x-key: open' https://key.example/v1/x"
        )
        .starts_with("HTTP/1.1 200 ")
    );
}

#[test]
fn what_is_held_goes_on_when_it_is_released() {
    let world = World::new();
    std::thread::scope(|threads| {
        let held = threads.spawn(|| said(&world, "curl -sS https://a.example/hold"));
        world.await_request(|one| one.target == "/hold");
        world.release();
        assert_eq!(held.join().expect("it ends"), "held\nreleased\n");
    });
}

#[test]
fn real_git_clones_and_pushes() {
    let world = World::new();
    let repository = world.repository("acme/app");
    let before = repository.refs();
    let script = "git clone -q https://git.example/acme/app.git && cd app && cat README &&
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m second && git push -q origin HEAD:refs/heads/two";
    assert_eq!(said(&world, script), "acme/app\n");
    let after = repository.refs();
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        ["refs/heads/main", "refs/heads/two"]
    );
    assert_eq!(after["refs/heads/main"], before["refs/heads/main"]);
    world.await_request(|one| {
        one.method == "POST" && one.target.ends_with("/git-receive-pack") && one.body_bytes > 0
    });
}

#[test]
fn real_pip_and_npm_find_packages_by_themselves() {
    let world = World::new();
    world.python_package("requests", "2.99.0");
    let install = "/usr/bin/python3 -m pip install -q --target lib requests && PYTHONPATH=lib /usr/bin/python3 -c 'import requests; print(requests.__version__)'";
    assert_eq!(said(&world, install), "2.99.0\n");
    world.node_package("left-pad", "1.99.0");
    let install = "export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt; npm install --silent left-pad && node -p 'require(\"left-pad\")'";
    assert!(said(&world, install).ends_with("1.99.0\n"));
}

#[test]
fn an_ordinary_user_has_a_world_too() {
    let Some(who) = ordinary("a world needs no root inside") else {
        return;
    };
    let world = World::of(who);
    let Who::Ordinary(user, _) = who else {
        panic!("an ordinary user")
    };
    assert_eq!(
        said(&world, "id -u; curl -sS https://a.example/"),
        format!("{user}\na.example says hello\n")
    );
    assert!(world.run(&[], "echo inside").well().contains("inside"));
}

#[test]
fn nothing_is_left_of_a_world() {
    let world = World::new();
    let (folder, run) = (world.path(""), world.run(&[], "echo inside"));
    assert_eq!(run.well(), "inside\n");
    let spaces = said(&world, "readlink /proc/self/ns/net");
    let there = || {
        let all = std::fs::read_dir("/proc")
            .expect("/proc")
            .flatten()
            .map(|pid| pid.path().join("ns/net"));
        all.filter(|path| {
            std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy() == spaces.trim())
        })
        .collect::<Vec<_>>()
    };
    // As long as somebody has it open, no other network gets its name.
    let _held = std::fs::File::open(&there()[0]).expect("somebody is there");
    drop(world);
    assert!(!folder.exists());
    assert_eq!(
        there(),
        Vec::<std::path::PathBuf>::new(),
        "no process is there any more"
    );
}
