//! What programs dial that know of no door: it arrives at the host with where it was meant to go, or nowhere. The
//! boxes are made without an engine: at their listeners is whoever tells a caller what he dialled.

use crate::{
    runner::Proof,
    world::{Maker, Outcome, World, admit, allowed, native, verdict},
};
use init::step::Step;
use sandbox::{
    DenialEvent, InterceptSockets, OriginalDestination, Program, Sandbox, SandboxEvent,
    container::{ContainerBackend, EngineSockets},
    native::NativeBackend,
};
use spec::{Barrier, Denial, Id, Network, Root, RunRequest, RunSpec};
use std::{fs, io::Read, net::Ipv4Addr, os::fd::OwnedFd, path::PathBuf};
use tokio::{io::AsyncWriteExt, net::TcpListener, net::UdpSocket};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        what_is_dialled_arrives_with_its_destination,
        in_open_every_port_arrives,
        a_port_that_nobody_named_is_refused_and_told,
        names_are_asked_for_at_the_host,
        what_passes_does_so_on_loopback_alone,
        nobody_inside_takes_the_ports_or_the_routes,
    ]
}

/// What was seen of a program in such a box.
struct Observation {
    outcome: Outcome,
    text: String,
    denials: Vec<Denial>,
    barriers: Vec<Barrier>,
    notes: Vec<String>,
}

/// One host, and so the ports of the web.
fn web(request: RunRequest) -> RunRequest {
    RunRequest {
        allow_hosts: vec!["example.com".to_owned()],
        ..request
    }
}

fn open(request: RunRequest) -> RunRequest {
    RunRequest {
        network: Some(Network::Open),
        ..request
    }
}

/// What its maker is to leave out, or away.
#[derive(Clone, Copy)]
pub(crate) enum Lacking {
    Nothing,
    Steps(&'static [Step]),
    /// Power over a network that a container engine has made.
    Power,
}

fn run(world: &World, request: RunRequest) -> Observation {
    run_lacking(world, request, Lacking::Nothing)
}

fn run_lacking(world: &World, request: RunRequest, lacking: Lacking) -> Observation {
    world.runtime.block_on(async {
        let lacks_steps = matches!(lacking, Lacking::Steps([_, ..]));
        let spec = admit(if lacks_steps {
            native(request)
        } else {
            request
        });
        let id = Id::new(&world.unique("passing")).expect("an id");
        observe(made(world, &id, &spec, lacking).await, &spec).await
    })
}

/// A box without an engine, with a state folder of its own.
pub(crate) async fn made(
    world: &World,
    id: &Id,
    spec: &RunSpec,
    lacking: Lacking,
) -> Box<dyn Sandbox> {
    let steps = if let Lacking::Steps(steps) = lacking {
        steps
    } else {
        &[]
    };
    let state = world.folder.join(format!("state-of-{id}"));
    fs::create_dir(&state).expect("a folder");
    match world.maker.as_ref().filter(|_| steps.is_empty()) {
        Some(maker) => contained(maker, state, id, spec, lacking).await,
        None => in_our_own(world, state, id, spec, steps).await,
    }
}

/// Two boxes of one maker.
pub(crate) async fn made_together(
    world: &World,
    ids: [&Id; 2],
    spec: &RunSpec,
) -> [Box<dyn Sandbox>; 2] {
    if world.maker.is_some() {
        let [first, second] = ids.map(|id| made(world, id, spec, Lacking::Nothing));
        return [first.await, second.await];
    }
    let native = NativeBackend::new(world.fresh_folder("state"));
    let create = async |id| native.create(id, &spec.sandbox, None).await.expect("a box");
    [
        Box::new(create(ids[0]).await),
        Box::new(create(ids[1]).await),
    ]
}

/// What a later engine on that state folder does about such a box.
pub(crate) async fn sweep(world: &World, id: &Id) {
    let state = world.folder.join(format!("state-of-{id}"));
    match &world.maker {
        None => NativeBackend::new(state)
            .remove_leftovers(id)
            .expect("nothing left"),
        Some(maker) => {
            let hosts = vec![maker.host.clone()];
            let containers = ContainerBackend::new(
                state,
                EngineSockets {
                    docker: hosts.clone(),
                    podman: hosts,
                },
            );
            let socket = maker.host.strip_prefix("unix://").expect("a socket");
            let left = containers.left_over(socket.as_ref()).await.expect("a list");
            for container in left.values().flatten() {
                containers
                    .remove(socket.as_ref(), container)
                    .await
                    .expect("it goes");
            }
            containers.remove_leftovers(id).expect("its folder goes");
        }
    }
}

async fn in_our_own(
    world: &World,
    state: PathBuf,
    id: &Id,
    spec: &RunSpec,
    steps: &[Step],
) -> Box<dyn Sandbox> {
    let mut native = NativeBackend::new(state);
    steps.iter().for_each(|step| native.dangerously_omit(*step));
    native.set_namespace_pool_size(u32::from(world.pooled));
    let berth = match world.pooled {
        true => Some(
            native
                .reserve_cgroups(id, &spec.sandbox)
                .await
                .expect("cgroups"),
        ),
        false => None,
    };
    Box::new(
        native
            .create(id, &spec.sandbox, berth)
            .await
            .expect("a box"),
    )
}

async fn contained(
    maker: &Maker,
    state: PathBuf,
    id: &Id,
    spec: &RunSpec,
    lacking: Lacking,
) -> Box<dyn Sandbox> {
    let hosts = vec![maker.host.clone()];
    let mut containers = ContainerBackend::new(
        state,
        EngineSockets {
            docker: hosts.clone(),
            podman: hosts,
        },
    );
    if matches!(lacking, Lacking::Power) {
        containers.leave_networks();
    }
    let Root::Image(name) = &spec.sandbox.root else {
        panic!("an image")
    };
    let facts = containers
        .image(spec.sandbox.backend, name)
        .await
        .expect("the image");
    let ids = [("io.airlock.task", None), ("io.airlock.job", None)];
    Box::new(
        containers
            .create(id, &spec.sandbox, &facts, ids)
            .await
            .expect("a container"),
    )
}

async fn observe(mut sandbox: Box<dyn Sandbox>, spec: &RunSpec) -> Observation {
    let _doors = sandbox.take_doors();
    let serving = serve(sandbox.take_intercept_sockets().expect("what passes"));
    let (mut output, theirs) = std::io::pipe().expect("a pipe");
    let null = || {
        OwnedFd::from(
            fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .expect("null"),
        )
    };
    let path = [("PATH".into(), spec::DEFAULT_PATH.into())];
    let program = Program {
        argv: spec.command.clone(),
        env: path.into(),
        ..Program::default()
    };
    sandbox
        .exec(&program, [null(), theirs.into(), null()])
        .await
        .expect("a program");
    // Nothing is told where there is no filter.
    let told = sandbox.take_denials();
    assert!(matches!(sandbox.progress().await, SandboxEvent::Exited(_)));
    let (barriers, notes) = (sandbox.barriers(), sandbox.notes());
    // Podman may refuse to remove what is just ending; its release tries again.
    sandbox.end().await;
    sandbox.give_workspace_back().await;
    assert!(!sandbox.release().await.left_over);
    let (mut text, mut denials) = (String::new(), Vec::new());
    output.read_to_string(&mut text).expect("its output");
    if let Some(mut told) = told {
        while let Some(one) = told.recv().await {
            let DenialEvent::Denied(denial) = one else {
                panic!("{one:?}")
            };
            denials.push(denial);
        }
    }
    drop(serving);
    let outcome = verdict(&text).unwrap_or_else(|| Outcome::Broken(text.clone()));
    Observation {
        outcome,
        text,
        denials,
        barriers,
        notes,
    }
}

/// Tells every caller where he wanted to go, and everybody who asks for a name the same address.
fn serve(passing: InterceptSockets) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let (meant_for, address) = (passing.original_destination, *passing.fake_ips.start());
    for listener in passing.listeners {
        let listener = TcpListener::from_std(listener).expect("a listener");
        tasks.spawn(tell_destinations(listener, meant_for));
    }
    for socket in passing.dns_sockets {
        tasks.spawn(answer(
            UdpSocket::from_std(socket).expect("a socket"),
            address,
        ));
    }
    tasks
}

async fn tell_destinations(listener: TcpListener, meant_for: OriginalDestination) {
    while let Ok((stream, _)) = listener.accept().await {
        let stream = stream.into_std().expect("a stream");
        let destination = meant_for.destination(&stream).expect("a destination");
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
        stream
            .write_all(destination.to_string().as_bytes())
            .await
            .expect("a word");
    }
}

/// A question mark is answered with a word; anything else as a question of DNS, with that address.
async fn answer(socket: UdpSocket, address: Ipv4Addr) {
    let mut question = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut question).await {
        let question = &question[..length];
        let said = match question {
            b"?" => b"here".to_vec(),
            _ => {
                let counts = [0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
                // The name ends with an empty part; then come kind and class. Extensions are left out.
                let end = 12
                    + question[12..]
                        .iter()
                        .position(|byte| *byte == 0)
                        .expect("an end")
                    + 5;
                let found = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4];
                [
                    &question[..2],
                    &counts,
                    &question[12..end],
                    &found,
                    &address.octets(),
                ]
                .concat()
            }
        };
        socket.send_to(&said, from).await.expect("an answer");
    }
}

/// Docker gives no container an address of IP version 6.
fn reachable<'a>(world: &World, all: &[&'a str]) -> Vec<&'a str> {
    let all = all
        .iter()
        .copied()
        .filter(|to| world.maker.is_none() || !to.starts_with('['));
    world.few(all)
}

fn arrived(seen: Observation, at: &str) {
    assert_eq!(
        (seen.outcome, seen.denials),
        (Outcome::Allowed(at.to_owned()), Vec::new())
    );
}

fn what_is_dialled_arrives_with_its_destination(world: &World) {
    for to in reachable(
        world,
        &[
            "93.184.216.34:443",
            "[2606:4700::1111]:443",
            "198.18.0.1:80",
        ],
    ) {
        arrived(run(world, web(world.probe(&["connect", to]))), to);
    }
    if world.maker.is_some() {
        // Where nobody may add a route only names can be dialled, by addresses of the loopback.
        let within = web(world.probe(&["connect", "127.64.0.1:443"]));
        arrived(run_lacking(world, within, Lacking::Power), "127.64.0.1:443");
    }
    let request = web(world.probe(&["connect", "93.184.216.34:443"]));
    let without = run_lacking(world, request, Lacking::Steps(&[Step::TransparentProxy]));
    assert_eq!(
        without.outcome,
        Outcome::Refused(libc::ENETUNREACH),
        "the control"
    );
}

/// Whether this kernel can redirect, which needs nf_tables. It can, unless we are told that it cannot.
fn redirects() -> bool {
    match std::env::var("AIRLOCK_EXPECT_REDIRECT").as_deref() {
        Err(_) | Ok("yes") => true,
        Ok("no") => false,
        Ok(other) => panic!("AIRLOCK_EXPECT_REDIRECT is `{other}`, and not yes or no"),
    }
}

/// Less arrives, and that is said.
fn in_open_the_web_arrives_without_a_redirect(world: &World) {
    let seen = run(world, open(world.probe(&["connect", "1.2.3.4:443"])));
    assert!(
        seen.notes
            .iter()
            .any(|note| note.contains("open reaches ports 80, 443 only")),
        "{:?}",
        seen.notes
    );
    arrived(seen, "1.2.3.4:443");
    let other = run(world, open(world.probe(&["connect", "1.2.3.4:22"])));
    assert_eq!(other.outcome, Outcome::Refused(libc::ECONNREFUSED));
}

fn in_open_every_port_arrives(world: &World) {
    if !redirects() {
        return in_open_the_web_arrives_without_a_redirect(world);
    }
    for to in reachable(
        world,
        &[
            "1.2.3.4:22",
            "[2606:4700::1111]:5432",
            "9.9.9.9:65535",
            "198.18.0.1:3129",
        ],
    ) {
        let seen = run(world, open(world.probe(&["connect", to])));
        assert!(
            !seen.notes.iter().any(|note| note.contains("open reaches")),
            "{:?}",
            seen.notes
        );
        arrived(seen, to);
    }
    for resolver in reachable(
        world,
        &["8.8.8.8:53", "[2606:4700::1111]:53", "127.0.0.1:53"],
    ) {
        arrived(run(world, open(world.probe(&["ask", resolver]))), "here");
    }
    // What a program does with itself stays its own.
    let own = run(world, open(world.probe(&["connect", "127.0.0.1:4444"])));
    assert_eq!(own.outcome, Outcome::Refused(libc::ECONNREFUSED));
    if world.maker.is_some() {
        let seen = run_lacking(
            world,
            open(world.probe(&["connect", "127.64.0.1:22"])),
            Lacking::Power,
        );
        assert!(
            seen.notes.iter().any(|note| note.contains("22, 80, 443")),
            "{:?}",
            seen.notes
        );
        arrived(seen, "127.64.0.1:22");
    }
}

fn a_port_that_nobody_named_is_refused_and_told(world: &World) {
    let denied = |seen: Observation, errno: i32, target: &str, allow_with: &str| {
        let [what, target, rule, allow_with] =
            ["connect", target, "network", allow_with].map(str::to_owned);
        assert_eq!(seen.outcome, Outcome::Refused(errno));
        assert_eq!(
            seen.denials,
            [Denial {
                what,
                target,
                rule,
                allow_with
            }]
        );
    };
    let with_port = "--allow-host HOST:PORT";
    for to in reachable(world, &["93.184.216.34:25", "[2606:4700::1111]:25"]) {
        denied(
            run(world, web(world.probe(&["connect", to]))),
            libc::ECONNREFUSED,
            to,
            with_port,
        );
    }
    let to = "9.9.9.9:443";
    denied(
        run(world, web(world.probe(&["ask", to]))),
        libc::ENETUNREACH,
        to,
        "nothing",
    );
    if world.maker.is_some() {
        let alone =
            |to: &str| run_lacking(world, web(world.probe(&["connect", to])), Lacking::Power);
        denied(
            alone("9.9.9.9:25"),
            libc::ENETUNREACH,
            "9.9.9.9:25",
            with_port,
        );
        denied(alone(to), libc::ENETUNREACH, to, "--backend native");
    }
    let hosts = vec!["*:25".to_owned()];
    let named = RunRequest {
        allow_hosts: hosts,
        ..world.probe(&["connect", "93.184.216.34:25"])
    };
    arrived(run(world, named), "93.184.216.34:25");
}

fn names_are_asked_for_at_the_host(world: &World) {
    let request = || web(world.probe(&["resolve", "example.com"]));
    arrived(run(world, request()), "198.18.0.1");
    match world.maker {
        Some(_) => arrived(run_lacking(world, request(), Lacking::Power), "127.64.0.1"),
        // With the host's own `/etc`.
        None => {
            let profile = Some("permissive".to_owned());
            arrived(
                run(
                    world,
                    RunRequest {
                        profile,
                        ..request()
                    },
                ),
                "198.18.0.1",
            );
        }
    }
    let told = run(world, web(world.command(&["cat", "/etc/resolv.conf"]))).text;
    assert!(
        told.starts_with("nameserver 127.0.0.1\n") && !told.contains("search"),
        "{told}"
    );
}

fn what_passes_does_so_on_loopback_alone(world: &World) {
    let look = || world.command(&["cat", "/proc/net/dev"]);
    // What leads everywhere is not called doors alone.
    for (request, doors_only) in [(web(look()), true), (open(look()), false)] {
        let seen = run(world, request);
        let mut names = seen
            .text
            .lines()
            .filter_map(|line| Some(line.split_once(':')?.0.trim()));
        assert_eq!((names.next(), names.next()), (Some("lo"), None));
        let barriers = [Barrier::OwnNet, Barrier::NoNetwork, Barrier::DoorsOnly];
        assert_eq!(
            barriers.map(|barrier| seen.barriers.contains(&barrier)),
            [true, false, doors_only]
        );
    }
}

/// What keeps a program from having the keeper's.
const POWERS: &[Step] = &[
    Step::EnterUserNamespace,
    Step::Credentials,
    Step::NoCapabilities,
    Step::SyscallFilter,
];

fn nobody_inside_takes_the_ports_or_the_routes(world: &World) {
    let take = |kind: &str, address: &str| {
        run(world, web(world.probe(&["take-port", kind, address]))).outcome
    };
    // In a container every port is anybody's; in a box of our own those below 1024 are not.
    let of_names = if world.maker.is_none() {
        libc::EACCES
    } else {
        libc::EADDRINUSE
    };
    assert_eq!(take("udp", "127.0.0.1:53"), Outcome::Refused(of_names));
    assert_eq!(
        take("tcp", "127.0.0.1:3128"),
        Outcome::Refused(libc::EADDRINUSE)
    );
    assert_eq!(take("tcp", "127.0.0.1:3127"), allowed(), "the control");
    let attempts: &[&str] = match redirects() {
        true => {
            let passing_port = run(
                world,
                open(world.probe(&["take-port", "tcp", "127.0.0.1:3129"])),
            )
            .outcome;
            assert_eq!(passing_port, Outcome::Refused(libc::EADDRINUSE));
            &["remove-route", "remove-table"]
        }
        // There is neither a place nor a table.
        false => &["remove-route"],
    };
    for attempt in attempts.iter().copied() {
        let refused = run(world, open(world.probe(&[attempt]))).outcome;
        assert!(
            matches!(refused, Outcome::Refused(libc::EPERM | libc::EAFNOSUPPORT)),
            "{attempt}: {refused:?}"
        );
        let control = run_lacking(world, open(world.probe(&[attempt])), Lacking::Steps(POWERS));
        assert_eq!(control.outcome, allowed(), "{attempt}: the control");
    }
}
