//! Programs that know no proxy: they look names up and dial, and reach who was granted, and nobody else.

use egress::{SERVER_V4, SERVER_V6, World};

/// Says what became of HTTPS by hand, without any proxy, by each kind of address that the name has.
const BY_HAND: &str = "
import os, socket, ssl, sys
for name in list(os.environ):
    if name.lower().endswith('_proxy'):
        del os.environ[name]
def get(host, port=443, tls=True, sni=None):
    stream = socket.create_connection((host, port), timeout=10)
    if tls:
        stream = ssl.create_default_context().wrap_socket(stream, server_hostname=sni or host)
    stream.sendall(f'GET / HTTP/1.0\\r\\nHost: {sni or host}\\r\\n\\r\\n'.encode())
    answer = b''
    while piece := stream.recv(65536):
        answer += piece
    return answer.decode().split('\\r\\n\\r\\n')[1].strip()
def tell(*arguments, **more):
    try:
        print(get(*arguments, **more))
    except OSError as error:
        print(type(error).__name__)
";

fn by_hand(world: &World, options: &[&str], script: &str) -> egress::Ran {
    world.python(options, &format!("{BY_HAND}{script}"))
}

#[test]
fn a_program_that_knows_no_proxy_reaches_who_was_granted() {
    let world = World::new();
    let ran = by_hand(
        &world,
        &["--allow-host", "a.example"],
        "tell('a.example'); tell('a.example', 80, tls=False)",
    );
    assert_eq!(ran.well(), "a.example says hello\na.example says hello\n");
    assert_eq!(world.requests().len(), 2);
}

#[test]
fn it_does_not_even_learn_the_address_of_anybody_else() {
    let world = World::new();
    let script = "tell('b.example'); tell('b.example', 80, tls=False)
try: print(socket.getaddrinfo('b.example', 443))
except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)";
    let ran = by_hand(&world, &["--allow-host", "a.example"], script);
    assert_eq!(ran.well(), "gaierror\ngaierror\nTrue\n");
    assert_eq!((world.queries(), world.connections().len()), (vec![], 0));
    assert!(
        ran.denied()
            .iter()
            .any(|target| target.starts_with("b.example")),
        "{ran:?}"
    );
    assert_eq!(
        by_hand(&world, &["--allow-host", "b.example"], "tell('b.example')").well(),
        "b.example says hello\n"
    );
}

#[test]
fn other_programs_do_it_too() {
    let world = World::new();
    let ways = [
        "curl -sS --noproxy '*' https://a.example/",
        "env -u http_proxy -u HTTP_PROXY busybox wget -q -O - http://a.example/",
        "exec 3<>/dev/tcp/a.example/80; printf 'GET / HTTP/1.0\\r\\nHost: a.example\\r\\n\\r\\n' >&3; tail -n 1 <&3",
    ];
    for way in ways {
        assert_eq!(
            world.run(&["--allow-host", "a.example"], way).well(),
            "a.example says hello\n",
            "{way}"
        );
        world.clear();
        world.run(&["--allow-host", "b.example"], way).badly();
        assert_eq!(
            (world.queries(), world.connections().len()),
            (vec![], 0),
            "{way}"
        );
    }
}

#[test]
fn hosts_of_either_kind_of_address_are_reached() {
    let world = World::new();
    world.resolves("four.example", &[&[SERVER_V4]]);
    world.resolves("six.example", &[&[SERVER_V6]]);
    for (name, address) in [("four.example", SERVER_V4), ("six.example", SERVER_V6)] {
        world.clear();
        let get = format!("curl -sS --noproxy '*' https://{name}/ && curl -sS https://{name}/");
        world.run(&["--allow-host", name], &get).well();
        let to: Vec<_> = world
            .connections()
            .iter()
            .map(|one| one.to.ip().to_string())
            .collect();
        assert_eq!(to, [address, address], "{name}");
    }
}

#[test]
fn a_bare_address_is_a_host_like_any_other() {
    let world = World::new();
    for (address, shown) in [
        (SERVER_V4, SERVER_V4.to_owned()),
        (SERVER_V6, format!("[{SERVER_V6}]")),
    ] {
        let get = format!("curl -sS -g --noproxy '*' https://{shown}/");
        world.clear();
        world.run(&["--allow-host", "a.example"], &get).badly();
        assert_eq!(world.connections().len(), 0, "{address}");
        let ran = world.run(&["--allow-host", &shown], &get);
        assert_eq!(ran.well(), format!("{shown} says hello\n"));
    }
}

#[test]
fn another_servers_name_does_not_pass_by_a_granted_ones() {
    let world = World::new();
    let script = "tell('a.example', sni='b.example'); tell('a.example')";
    let ran = by_hand(&world, &["--allow-host", "a.example"], script);
    let told: Vec<_> = ran.well().lines().map(str::to_owned).collect();
    assert_ne!(told[0], "b.example says hello");
    assert_eq!(told[1], "a.example says hello", "the control");
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.host == "a.example")
    );
    assert!(
        world
            .connections()
            .iter()
            .all(|one| one.sni.as_deref() != Some("b.example"))
    );
}

#[test]
fn a_port_that_no_rule_names_is_closed() {
    let world = World::new();
    let script = "tell('a.example', 8443); tell('a.example', 8080, tls=False)";
    let ran = by_hand(&world, &["--allow-host", "a.example"], script);
    assert!(!ran.well().contains("hello"), "{ran:?}");
    assert!(world.connections().is_empty());
    let ran = by_hand(
        &world,
        &[
            "--allow-host",
            "a.example:8443",
            "--allow-host",
            "a.example:8080",
        ],
        script,
    );
    assert_eq!(ran.well(), "a.example says hello\na.example says hello\n");
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let world = World::new();
    let script = "exec 3<>/dev/tcp/a.example/22; head -n 1 <&3; echo back >&3; head -n 1 <&3";
    let ran = world.run(&["--allow-host", "a.example:22"], script);
    assert_eq!(ran.well(), format!("{}back\n", egress::BANNER));
}
