//! What a program reaches: nothing, its doors, or, asked for by name, the host's network.

use crate::{
    barriers::greet_on_loopback,
    runner::Proof,
    world::{Outcome, World, admit, native, outcome},
};
use engine::Engine;
use spec::{Barrier, Network, RunRequest};
use std::{fs, net::TcpListener};
use tokio::io::AsyncWriteExt;

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        without_network_there_is_only_loopback,
        the_hosts_network_is_reported_as_missing_barriers,
        two_sandboxes_have_the_same_door_to_different_hosts,
        a_door_that_was_not_granted_is_closed,
    ]
}

fn interfaces(table: &str) -> Vec<String> {
    let mut names: Vec<_> = table
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .collect();
    names.sort();
    names
}

fn without_network_there_is_only_loopback(world: &World) {
    let inside = |network| {
        let request = world.command(&["cat", "/proc/net/dev"]);
        // No container is made on the host's network.
        let request = if network == Network::Host {
            native(request)
        } else {
            request
        };
        let request = RunRequest {
            network: Some(network),
            ..request
        };
        interfaces(&String::from_utf8_lossy(&world.run(request).stdout))
    };
    assert_eq!(inside(Network::None), ["lo"]);
    let outside = interfaces(&fs::read_to_string("/proc/net/dev").expect("interfaces of the host"));
    assert_eq!(inside(Network::Host), outside, "the control");
}

fn the_hosts_network_is_reported_as_missing_barriers(world: &World) {
    let request = world.probe(&["connect", &greet_on_loopback()]);
    let result = world.run(RunRequest {
        network: Some(Network::Host),
        ..request
    });
    assert_eq!(outcome(&result), Outcome::Allowed("greetings".to_owned()));
    let lost = [Barrier::OwnNet, Barrier::NoNetwork];
    let expected: Vec<_> = world
        .usual_barriers()
        .into_iter()
        .filter(|it| !lost.contains(it))
        .collect();
    assert_eq!(result.barriers, expected);
}

fn with_door(world: &World, port: u16) -> RunRequest {
    let request = world.probe(&["connect", "127.0.0.1:8080"]);
    RunRequest {
        network: Some(Network::Doors),
        doors: vec![port],
        ..request
    }
}

/// Runs a program whose one door says `word`.
async fn through_door(engine: &Engine, request: RunRequest, word: &str) -> Outcome {
    let mut run = engine.start(admit(request));
    let mut doors = run.take_doors().await;
    let door: TcpListener = doors.pop().expect("one door");
    assert!(doors.is_empty());
    let door = tokio::net::TcpListener::from_std(door).expect("a listener");
    let (mut stream, _) = door.accept().await.expect("a caller");
    stream.write_all(word.as_bytes()).await.expect("a word");
    drop((stream, door));
    outcome(&run.finish().await)
}

fn two_sandboxes_have_the_same_door_to_different_hosts(world: &World) {
    let engine = world.engine(&Default::default());
    let (first, second) = world.runtime.block_on(async {
        tokio::join!(
            through_door(&engine, with_door(world, 8080), "first"),
            through_door(&engine, with_door(world, 8080), "second"),
        )
    });
    assert_eq!(
        [first, second],
        ["first", "second"].map(|word| Outcome::Allowed(word.to_owned()))
    );
}

fn a_door_that_was_not_granted_is_closed(world: &World) {
    assert_eq!(
        world.attempt(with_door(world, 8081)),
        Outcome::Refused(libc::ECONNREFUSED)
    );
    let none = world.probe(&["connect", "127.0.0.1:8080"]);
    assert_eq!(world.attempt(none), Outcome::Refused(libc::ECONNREFUSED));
}
