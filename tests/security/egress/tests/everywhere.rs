//! The door is the same whoever starts a run and whatever makes its box: an ordinary user, Docker, Podman.

use daemons::{Daemons, Kind};
use doors_tests::REAL_KEY;
use egress::{Ran, Who, World, ordinary};
use std::sync::OnceLock;

/// Three engines for all tests here; they end with this process.
fn engines() -> &'static Daemons {
    static ENGINES: OnceLock<Daemons> = OnceLock::new();
    ENGINES.get_or_init(|| Daemons::start(&[Kind::Docker, Kind::Podman, Kind::Rootless]))
}

fn new_world(who: Who) -> World {
    let world = World::of(who);
    world.keep("api", REAL_KEY);
    world.configure(
        "[[profile.agent.egress]]\nhost = \"api.example\"\nmode = \"inspect\"\nallow = [\"GET /v1/**\", \"GET /echo\"]\ncredential = \"api\"
[credential.api]\nkey = { secret = \"api\" }\ninject = \"bearer\"\nhosts = [\"api.example\"]\n",
    );
    world
}

/// The basics, by whatever runs a script.
fn is_the_same(world: &World, run: &dyn Fn(&[&str], &str) -> Ran) {
    let nothing_came = |world: &World| world.queries().is_empty() && world.connections().is_empty();
    let granted = ["--allow-host", "a.example", "--allow-host", "git.example"];
    let ways = [
        "curl -sS --fail-with-body https://a.example/",
        "curl -sS --fail-with-body --noproxy '*' https://a.example/",
    ];
    for way in ways {
        assert_eq!(run(&granted, way).well(), "a.example says hello\n", "{way}");
        world.clear();
        run(&["--allow-host", "b.example"], way).badly();
        assert!(
            nothing_came(world),
            "{way}: {:?} {:?}",
            world.queries(),
            world.connections()
        );
    }
    world.repository("acme/app");
    let clone = "git clone -q https://git.example/acme/app.git && cat app/README";
    assert_eq!(run(&granted, clone).well(), "acme/app\n");
    world.clear();
    let key = run(&["--profile", "agent"], "curl -sS https://api.example/echo");
    assert!(
        key.well().contains("authorization: ") && !key.json.to_string().contains(REAL_KEY),
        "{key:?}"
    );
    assert_eq!(
        world.requests()[0].header("authorization"),
        Some(format!("Bearer {REAL_KEY}").as_str())
    );
    world.clear();
    run(
        &["--profile", "agent"],
        "curl -sS --fail-with-body -X DELETE https://api.example/v1/x",
    )
    .badly();
    assert!(world.requests().is_empty());
    is_open_to_the_public_alone(world, run);
}

fn is_open_to_the_public_alone(world: &World, run: &dyn Fn(&[&str], &str) -> Ran) {
    world.clear();
    let script = "for url in https://any.example/ https://any.example:8443/ http://1.2.3.4:8080/ https://1.2.3.4/ \
'https://[2606:4700::1111]/' http://10.0.0.1/ http://127.0.0.1/ http://169.254.169.254/ 'http://[::1]/' http://localhost/
do curl -gsSf -m 5 --noproxy '*' $url; curl -gsSf -m 5 $url; done";
    let open = run(&["--network", "open"], script);
    let hosts = [
        "any.example",
        "any.example",
        "1.2.3.4",
        "1.2.3.4",
        "[2606:4700::1111]",
    ];
    assert_eq!(
        open.stdout,
        hosts
            .map(|host| format!("{host} says hello\n").repeat(2))
            .concat(),
        "{open:?}"
    );
    assert_eq!(world.connections().len(), 10, "{:?}", world.connections());
}

#[test]
fn an_ordinary_user_has_the_same_door() {
    let Some(who) = ordinary("the egress door needs no root") else {
        return;
    };
    let world = new_world(who);
    is_the_same(&world, &|options, script| world.run(options, script));
}

fn in_containers_of(kind: Kind, who: Who) {
    let world = new_world(who);
    is_the_same(&world, &|options, script| {
        world.contained((engines(), kind), options, script)
    });
}

#[test]
fn containers_of_docker_have_the_same_door() {
    in_containers_of(Kind::Docker, Who::Myself);
}

#[test]
fn containers_of_podman_have_the_same_door() {
    in_containers_of(Kind::Podman, Who::Myself);
}

#[test]
fn containers_of_an_ordinary_users_podman_have_the_same_door() {
    let Some(who) = ordinary("the egress door works in containers without root") else {
        return;
    };
    in_containers_of(Kind::Rootless, who);
}
