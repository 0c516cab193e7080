//! Group C: what a box without network must not reach, and who must not reach it.

use crate::{
    Case, Control, Finding, NOT_A_USERS, Outcome, Peer, Trouble, case,
    world::{Ground, Report, World, each, mount},
};
use engine::Step;
use spec::RunRequest;
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr as UnixAddress, UnixListener},
        },
    },
    process::Command,
    time::Duration,
};

/// The host's network.
const NETWORK: Control = Control::Without(&[Step::NetNamespace]);

pub(crate) const CASES: &[Case] = &[
    case(
        "C49",
        "TCP to addresses of the host and of the world",
        addresses,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "C50",
        "UDP, raw, packet, netlink, vsock, alg, xdp and other sockets",
        sockets,
        Control::Without(&[Step::NetNamespace, Step::SyscallFilter]),
        Peer::Runs,
    ),
    case(
        "C51",
        "abstract sockets of the host",
        abstract_sockets,
        Control::Without(&[Step::NetNamespace, Step::PathRules]),
        Peer::Runs,
    ),
    case(
        "C52",
        "sockets of daemons and agents by path",
        path_sockets,
        Control::Given,
        Peer::Runs,
    ),
    case(
        "C53",
        "the host's loopback, in every spelling",
        loopback,
        NETWORK,
        Peer::Runs,
    ),
    case(
        "C54",
        "metadata services of clouds",
        metadata,
        Control::Guest(&[], NOT_A_USERS),
        Peer::Runs,
    ),
    case(
        "C67",
        "listening on all addresses inside",
        listening,
        NETWORK,
        Peer::Runs,
    ),
];

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Tells whoever comes a secret, as long as this process lives.
fn greet<S: Write>(
    secret: String,
    mut accept: impl FnMut() -> std::io::Result<S> + Send + 'static,
) {
    std::thread::spawn(move || {
        while let Ok(mut stream) = accept() {
            _ = stream.write_all(secret.as_bytes());
        }
    });
}

/// A listener of the host's with a secret.
fn listen(world: &World, at: SocketAddr) -> Result<(u16, String), Trouble> {
    let (listener, secret) = (TcpListener::bind(at)?, world.secret());
    let port = listener.local_addr()?.port();
    greet(secret.clone(), move || {
        listener.accept().map(|(stream, _)| stream)
    });
    Ok((port, secret))
}

fn heard(report: &Report, secret: &str) -> Finding {
    match report.says(secret) {
        true => Finding::Escape("it reached a listener of the host's".to_owned()),
        false => Finding::Nothing,
    }
}

/// An address of this host that others can reach.
pub(crate) fn own_address() -> Result<IpAddr, Trouble> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Nothing is sent: this only asks which address would be used.
    let asked = socket
        .connect((Ipv4Addr::new(192, 0, 2, 1), 9))
        .and_then(|()| socket.local_addr());
    let found = asked
        .map(|address| address.ip())
        .ok()
        .filter(|address| !address.is_loopback());
    found.ok_or_else(|| Trouble::Missing("an address beside loopback".to_owned()))
}

/// The control has the host's network, and stays on this host.
fn addresses(ground: &Ground<'_>) -> Outcome {
    let (port, secret) = listen(ground.world, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    let mut all = vec![format!("{}:{port}", own_address()?)];
    if !ground.is_control() {
        all.extend(["1.1.1.1:443", "8.8.8.8:53", "[2606:4700:4700::1111]:443"].map(str::to_owned));
    }
    let mut request = ground.attack("connect", all);
    request.network = ground.is_control().then_some(spec::Network::Host);
    let report = ground.run(request)?.finished()?;
    Ok(heard(&report, &secret).or(|| report.claims()))
}

fn sockets(ground: &Ground<'_>) -> Outcome {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_nonblocking(true)?;
    let (port, secret) = (receiver.local_addr()?.port(), ground.world.secret());
    let held =
        ground.hold(ground.attack("sockets", [format!("127.0.0.1:{port}"), secret.clone()]))?;
    let open = crate::oracle::holds(held.process()?, "socket:");
    held.finish()?;
    let mut datagram = [0; 128];
    let arrived = receiver
        .recv(&mut datagram)
        .is_ok_and(|length| datagram[..length] == *secret.as_bytes());
    let arrived = Finding::when(arrived, "a datagram reached the host");
    each(
        ground,
        [
            ("datagram".to_owned(), arrived),
            ("socket".to_owned(), open),
        ],
    )
}

/// An abstract socket of the host's with a secret: its name, and that.
pub(crate) fn greet_abstract(world: &World) -> Result<(String, String), Trouble> {
    let (name, secret) = (world.unique("airlock-escape"), world.secret());
    let listener = UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name)?)?;
    greet(secret.clone(), move || {
        listener.accept().map(|(stream, _)| stream)
    });
    Ok((name, secret))
}

fn abstract_sockets(ground: &Ground<'_>) -> Outcome {
    let (name, secret) = greet_abstract(ground.world)?;
    let report = ground
        .run(ground.attack("connect-abstract", [name]))?
        .finished()?;
    Ok(heard(&report, &secret))
}

/// The control: the folder of the socket is mounted.
fn path_sockets(ground: &Ground<'_>) -> Outcome {
    let (folder, secret) = (ground.world.fresh("socket"), ground.world.secret());
    let path = folder.join("listening");
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
    greet(secret.clone(), move || {
        listener.accept().map(|(stream, _)| stream)
    });
    let path = path.display().to_string();
    let usual = [
        "/given/listening",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/podman/podman.sock",
        "/run/dbus/system_bus_socket",
        "/run/systemd/private",
        "/run/user/1000/bus",
        "/tmp/.X11-unix/X0",
        &path,
    ];
    let mut request = ground.attack("connect-paths", usual);
    if ground.is_control() {
        request.mounts.push(mount(&folder, "/given", "ro"));
    }
    let report = ground.run(request)?.finished()?;
    Ok(heard(&report, &secret).or(|| report.claims()))
}

fn loopback(ground: &Ground<'_>) -> Outcome {
    let (four, secret) = listen(ground.world, (Ipv4Addr::LOCALHOST, 0).into())?;
    let names = [
        "127.0.0.1",
        "0.0.0.0",
        "localhost",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
    ];
    let mut traps = names
        .map(|name| (format!("{name}:{four}"), secret.clone()))
        .to_vec();
    if let Ok((six, secret)) = listen(ground.world, (Ipv6Addr::LOCALHOST, 0).into()) {
        traps.push((format!("[::1]:{six}"), secret));
    }
    let addresses = traps.iter().map(|(address, _)| address.clone());
    let report = ground
        .run(ground.attack("connect", addresses))?
        .finished()?;
    let reached = |address: &str, secret: &str| report.says(&format!("{address} says {secret}"));
    each(
        ground,
        traps.iter().map(|(address, secret)| {
            (
                address.clone(),
                Finding::when(reached(address, secret), &format!("it reached {address}")),
            )
        }),
    )
}

/// Gives this machine an address (`add`), or takes it back (`del`).
pub(crate) fn lend(address: Ipv4Addr, action: &str) -> Result<(), Trouble> {
    let done = Command::new("ip")
        .args(["addr", action, &format!("{address}/32"), "dev", "lo"])
        .status()?;
    match done.success() {
        true => Ok(()),
        false => Err(Trouble::Missing(format!("`ip addr {action}`"))),
    }
}

const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The control has the host's network, and this machine the address of such a service.
fn metadata(ground: &Ground<'_>) -> Outcome {
    let mut services = [
        "100.100.100.200:80",
        "168.63.129.16:80",
        "[fd00:ec2::254]:80",
        "metadata.google.internal:80",
    ]
    .map(str::to_owned)
    .to_vec();
    services.push(format!("{METADATA}:80"));
    if !ground.is_control() {
        return Ok(ground
            .run(ground.attack("connect", services))?
            .finished()?
            .claims());
    }
    lend(METADATA, "add")?;
    let listening = listen(ground.world, (METADATA, 0).into());
    let report = listening.and_then(|(port, secret)| {
        let attack = ground.attack("connect", [format!("{METADATA}:{port}")]);
        let report = ground.run(RunRequest {
            network: Some(spec::Network::Host),
            ..attack
        })?;
        Ok((report.finished()?, secret))
    });
    lend(METADATA, "del")?;
    let (report, secret) = report?;
    Ok(heard(&report, &secret))
}

fn listening(ground: &Ground<'_>) -> Outcome {
    reachable(ground, None)
}

/// Whether what listens inside can be reached from outside.
pub(crate) fn reachable(ground: &Ground<'_>, network: Option<spec::Network>) -> Outcome {
    let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
        .local_addr()?
        .port();
    let secret = ground.world.secret();
    let attack = ground.attack("serve", [port.to_string(), secret.clone()]);
    let held = ground.hold(RunRequest { network, ..attack })?;
    let mut places = vec![
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ];
    places.extend(own_address());
    let told = places.into_iter().any(|place| {
        let mut said = String::new();
        let stream = TcpStream::connect_timeout(&(place, port).into(), PATIENCE);
        let read = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read_to_string(&mut said)
        });
        read.is_ok() && said.contains(&secret)
    });
    held.finish()?;
    Ok(match told {
        true => Finding::Escape("it can be reached from the host's network".to_owned()),
        false => Finding::Nothing,
    })
}
