//! The MQTT transport against the real mosquitto, which each test starts for itself.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use bytes::Bytes;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, TcpListener},
    num::NonZeroU16,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
};
use worker::transport::{
    ConnectionError, Connector, IncomingMessage, Link, LinkState, OutgoingMessage, Properties,
    PublishError, ReconnectPolicy, Subscription,
    mqtt::{
        BrokerCredentials, BrokerTls, ClientCertificate, ClientId, Mqtt, MqttSettings,
        MqttVersions, Trust,
    },
};

/// Nothing here takes as long; it only ends tests that hang.
const LONG: Duration = Duration::from_secs(60);

struct Mosquitto {
    child: Child,
    folder: Folder,
    port: u16,
    config: String,
}

fn random() -> u64 {
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut random)
        .unwrap();
    u64::from_be_bytes(random)
}

/// Not one of those that the system gives to clients: a broker that was killed must find it free again.
fn free_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| 20_000 + (random() % 10_000) as u16);
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap()
}

fn program(name: &str) -> PathBuf {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = places
        .iter()
        .map(|place| Path::new(place).join(name))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is missing: install the package `mosquitto`"))
}

/// Gone with the value.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

impl std::ops::Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

fn folder() -> Folder {
    let folder = std::env::temp_dir().join(format!("airlock-mqtt-{:016x}", random()));
    fs::create_dir(&folder).unwrap();
    Folder(folder)
}

impl Mosquitto {
    fn start() -> Mosquitto {
        Mosquitto::start_with(folder(), "allow_anonymous true\n")
    }

    /// `more` goes behind the listener.
    fn start_with(folder: Folder, more: &str) -> Mosquitto {
        let port = free_port();
        let config = format!(
            "listener {port} 127.0.0.1\nuser root\npersistence false\nlog_dest stderr\nlog_type all\n{more}"
        );
        Mosquitto {
            child: run(&folder, &config),
            folder,
            port,
            config,
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = run(&self.folder, &self.config);
    }

    fn settings(&self, client_id: &str) -> MqttSettings {
        MqttSettings::new(
            "127.0.0.1",
            self.port,
            ClientId::Exactly(client_id.to_owned()),
        )
    }
}

/// Comes back when it listens.
fn run(folder: &Path, config: &str) -> Child {
    let file = folder.join("mosquitto.conf");
    fs::write(&file, config).unwrap();
    let mut child = Command::new(program("mosquitto"))
        .arg("-c")
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (running, runs) = mpsc::channel();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        for line in lines.by_ref().map_while(Result::ok) {
            let is_running = line.ends_with(" running");
            said.push(line);
            if is_running {
                break;
            }
        }
        _ = running.send(said);
        // Nobody reads it, but it must not block.
        lines.for_each(drop);
    });
    let said = runs.recv_timeout(LONG).unwrap();
    assert!(
        said.last().is_some_and(|line| line.ends_with(" running")),
        "{said:#?}"
    );
    child
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Stands between a client and the broker; can cut, can swallow what the client says, and knows what that was.
struct Wire {
    port: u16,
    cuts: watch::Sender<u64>,
    swallows: Arc<AtomicBool>,
    /// By connection.
    said: watch::Sender<Vec<Vec<u8>>>,
}

impl Wire {
    async fn to(port: u16) -> Wire {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let near = listener.local_addr().unwrap().port();
        let (cuts, said) = (watch::Sender::new(0), watch::Sender::new(Vec::new()));
        let wire = Wire {
            port: near,
            cuts,
            swallows: Arc::default(),
            said,
        };
        let (cuts, swallows, said) = (wire.cuts.clone(), wire.swallows.clone(), wire.said.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
                // Without a broker there is nothing behind this wire, as there would be without the wire.
                let Ok(far) = far else { continue };
                said.send_modify(|said| said.push(Vec::new()));
                let mut cut = cuts.subscribe();
                let (swallows, said) = (swallows.clone(), said.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = carry(near, far, &swallows, &said) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        wire
    }

    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How many packets of this kind the client sent, over all connections.
    fn sent(&self, kind: u8) -> usize {
        count(&self.said.borrow(), kind)
    }

    async fn sends(&self, kind: u8, least: usize) {
        let mut said = self.said.subscribe();
        let sent = said.wait_for(|said| count(said, kind) >= least);
        tokio::time::timeout(LONG, sent).await.unwrap().unwrap();
    }
}

fn count(said: &[Vec<u8>], kind: u8) -> usize {
    said.iter()
        .map(|stream| kinds(stream).filter(|other| *other == kind).count())
        .sum()
}

async fn carry(
    mut near: tokio::net::TcpStream,
    mut far: tokio::net::TcpStream,
    swallows: &AtomicBool,
    said: &watch::Sender<Vec<Vec<u8>>>,
) {
    let number = said.borrow().len() - 1;
    let (mut near_read, mut near_write) = near.split();
    let (mut far_read, mut far_write) = far.split();
    let up = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = near_read.read(&mut buffer).await {
            said.send_modify(|said| said[number].extend_from_slice(&buffer[..count]));
            if !swallows.load(Ordering::SeqCst) {
                far_write.write_all(&buffer[..count]).await.unwrap();
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
    }
}

/// The kinds of the packets in a stream, by somebody who trusts every length.
fn kinds(stream: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = stream;
    std::iter::from_fn(move || {
        let kind = rest.first()? >> 4;
        let digits = rest[1..].iter().position(|byte| byte & 0x80 == 0)? + 1;
        let length = rest[1..=digits]
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
        rest = rest.get(1 + digits + length..)?;
        Some(kind)
    })
}

fn subscription(pattern: &str, is_shared: bool) -> Subscription {
    Subscription {
        pattern: pattern.to_owned(),
        is_shared,
    }
}

fn begin(settings: MqttSettings, patterns: &[(&str, bool)], tries: u64) -> Link {
    let subscriptions: BTreeSet<_> = patterns
        .iter()
        .map(|(pattern, is_shared)| subscription(pattern, *is_shared))
        .collect();
    let patience = ReconnectPolicy {
        tries,
        pause: Duration::from_millis(20),
    };
    Link::start(Mqtt::new(settings).unwrap(), subscriptions, patience)
}

async fn linked(settings: MqttSettings, patterns: &[(&str, bool)]) -> Link {
    let mut link = begin(settings, patterns, 0);
    connected(&mut link).await;
    link
}

async fn connected(link: &mut Link) {
    let wait = link.state.wait_for(|state| *state == LinkState::Connected);
    if tokio::time::timeout(LONG, wait).await.is_err() {
        panic!("it does not connect: {:?}", *link.state.borrow());
    }
}

/// Why it is not connected: waits until it says so.
async fn why(link: &mut Link) -> String {
    let told = |state: &LinkState| match state {
        LinkState::Connecting { why, .. } | LinkState::Lost { why } => !why.is_empty(),
        LinkState::Connected => panic!("it must not connect"),
    };
    let state = tokio::time::timeout(LONG, link.state.wait_for(told))
        .await
        .unwrap()
        .unwrap()
        .clone();
    match state {
        LinkState::Connecting { why, .. } | LinkState::Lost { why } => why,
        LinkState::Connected => unreachable!(),
    }
}

async fn arrives(link: &mut Link) -> IncomingMessage {
    tokio::time::timeout(LONG, link.arrived.recv())
        .await
        .expect("it comes")
        .expect("the link is there")
}

fn message(topic: &str, payload: impl Into<Bytes>) -> OutgoingMessage {
    OutgoingMessage {
        topic: topic.to_owned(),
        payload: payload.into(),
        properties: Properties::new(),
    }
}

async fn publish(link: &Link, message: OutgoingMessage) -> Result<(), PublishError> {
    tokio::time::timeout(LONG, link.publisher.publish(message))
        .await
        .expect("it is confirmed")
}

fn text(arrived: &IncomingMessage) -> &str {
    std::str::from_utf8(&arrived.payload).unwrap()
}

#[tokio::test]
async fn messages_with_user_properties_pass_in_version_5_and_are_confirmed() {
    let broker = Mosquitto::start();
    let mut worker = linked(broker.settings("worker"), &[("ns/*/invoke/>", false)]).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    let properties: Properties = [
        ("replyTo", "ns/response/agent/1"),
        ("timestamp", "1700000000000"),
        ("naïve", "ключ"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let sent = OutgoingMessage {
        properties: properties.clone(),
        ..message("ns/a/invoke/tool", "{}")
    };
    publish(&agent, sent).await.unwrap();
    let arrived = arrives(&mut worker).await;
    assert_eq!(
        (arrived.topic.as_str(), text(&arrived)),
        ("ns/a/invoke/tool", "{}")
    );
    assert_eq!(arrived.properties, properties);
    arrived.receipt.settle().await;
}

#[tokio::test]
async fn version_3_1_1_does_the_same_without_properties() {
    let broker = Mosquitto::start();
    let old = |id: &str| MqttSettings {
        speaks: MqttVersions::Three,
        ..broker.settings(id)
    };
    let mut worker = linked(old("worker"), &[("ns/>", false)]).await;
    let agents = [
        linked(old("agent"), &[]).await,
        linked(broker.settings("new agent"), &[]).await,
    ];
    for agent in &agents {
        let properties = Properties::from([("a".to_owned(), "b".to_owned())]);
        publish(
            agent,
            OutgoingMessage {
                properties,
                ..message("ns/x", "hello")
            },
        )
        .await
        .unwrap();
        let arrived = arrives(&mut worker).await;
        assert_eq!((text(&arrived), arrived.properties.len()), ("hello", 0));
        arrived.receipt.settle().await;
    }
}

#[tokio::test]
async fn a_large_message_and_many_small_ones_pass_in_their_order() {
    let broker = Mosquitto::start();
    let mut worker = linked(broker.settings("worker"), &[("ns/>", false)]).await;
    let large = Bytes::from(vec![b'x'; 9_000_000]);
    let reach = worker.publisher.clone();
    let sends = tokio::spawn(async move {
        reach.publish(message("ns/large", large)).await.unwrap();
        let mut all = tokio::task::JoinSet::new();
        for at in 0..500 {
            let reach = reach.clone();
            all.spawn(async move { reach.publish(message("ns/small", format!("{at}"))).await });
        }
        assert!(all.join_all().await.into_iter().all(|sent| sent.is_ok()));
    });
    assert_eq!(arrives(&mut worker).await.payload.len(), 9_000_000);
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        let arrived = arrives(&mut worker).await;
        assert!(
            seen.insert(text(&arrived).to_owned()),
            "nothing comes twice"
        );
        arrived.receipt.settle().await;
    }
    sends.await.unwrap();
}

async fn redelivery(speaks: MqttVersions) {
    let broker = Mosquitto::start();
    let wire = Wire::to(broker.port).await;
    let settings = MqttSettings {
        port: wire.port,
        speaks,
        ..broker.settings("worker")
    };
    let mut worker = linked(settings, &[("ns/>", true)]).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    publish(&agent, message("ns/x", "work")).await.unwrap();
    let old = arrives(&mut worker).await;
    wire.cut();
    let new = arrives(&mut worker).await;
    assert_eq!((text(&old), text(&new)), ("work", "work"));
    old.receipt.settle().await;
    new.receipt.settle().await;
    // When this is confirmed the broker has read what was said before it.
    publish(&worker, message("other", "marker")).await.unwrap();
    assert_eq!(wire.sent(4), 1, "it is acknowledged once");
    wire.cut();
    publish(&agent, message("ns/x", "next")).await.unwrap();
    assert_eq!(
        text(&arrives(&mut worker).await),
        "next",
        "what was settled does not come again"
    );
}

#[tokio::test]
async fn what_was_not_settled_comes_again_after_the_connection_died_and_is_settled_once() {
    redelivery(MqttVersions::Five).await;
    redelivery(MqttVersions::Three).await;
}

#[tokio::test]
async fn what_a_dead_worker_left_comes_to_the_next_of_its_name() {
    let broker = Mosquitto::start();
    let mut dead = linked(broker.settings("worker"), &[("ns/>", false)]).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    publish(&agent, message("ns/x", "begun")).await.unwrap();
    let begun = arrives(&mut dead).await;
    dead.task.abort();
    assert!((&mut dead.task).await.unwrap_err().is_cancelled());
    publish(&agent, message("ns/x", "sent to nobody"))
        .await
        .unwrap();
    let mut next = linked(broker.settings("worker"), &[("ns/>", false)]).await;
    let (first, second) = (arrives(&mut next).await, arrives(&mut next).await);
    assert_eq!(
        (text(&begun), text(&first), text(&second)),
        ("begun", "begun", "sent to nobody")
    );
}

#[tokio::test]
async fn members_of_a_pool_take_turns_and_all_hear_what_is_for_all() {
    let broker = Mosquitto::start();
    let member = || MqttSettings {
        client_id: ClientId::Unique("worker".to_owned()),
        pool: Some("pool".to_owned()),
        ..broker.settings("")
    };
    let patterns = [("ns/invoke/*", true), ("ns/cancel/>", false)];
    let mut members = [
        linked(member(), &patterns).await,
        linked(member(), &patterns).await,
    ];
    let agent = linked(broker.settings("agent"), &[]).await;
    for at in 0..20 {
        publish(&agent, message("ns/invoke/tool", format!("{at}")))
            .await
            .unwrap();
    }
    publish(&agent, message("ns/cancel/1", "end"))
        .await
        .unwrap();
    let mut counts = Vec::new();
    let mut seen = BTreeSet::new();
    for member in &mut members {
        let mut count = 0;
        loop {
            let arrived = arrives(member).await;
            if text(&arrived) == "end" {
                break;
            }
            count += 1;
            assert!(
                seen.insert(text(&arrived).to_owned()),
                "nothing is done twice"
            );
            arrived.receipt.settle().await;
        }
        counts.push(count);
    }
    assert_eq!(seen.len(), 20);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[tokio::test]
async fn a_member_that_died_takes_no_more_turns() {
    let broker = Mosquitto::start();
    let member = || MqttSettings {
        client_id: ClientId::Unique("worker".to_owned()),
        pool: Some("pool".to_owned()),
        ..broker.settings("")
    };
    let patterns = [("ns/>", true)];
    let dead = linked(member(), &patterns).await;
    // As after SIGKILL: it is gone without a word.
    dead.task.abort();
    assert!(dead.task.await.unwrap_err().is_cancelled());
    let mut next = linked(member(), &patterns).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    for at in 0..10 {
        publish(&agent, message("ns/x", format!("{at}")))
            .await
            .unwrap();
        let arrived = arrives(&mut next).await;
        assert_eq!(text(&arrived), at.to_string());
        arrived.receipt.settle().await;
    }
}

#[tokio::test]
async fn a_member_whose_connection_died_listens_again() {
    let broker = Mosquitto::start();
    let wire = Wire::to(broker.port).await;
    let settings = MqttSettings {
        client_id: ClientId::Unique("worker".to_owned()),
        pool: Some("pool".to_owned()),
        port: wire.port,
        ..broker.settings("")
    };
    let mut worker = linked(settings, &[("ns/>", true)]).await;
    wire.cut();
    let gone = worker
        .state
        .wait_for(|state| *state != LinkState::Connected);
    tokio::time::timeout(LONG, gone).await.unwrap().unwrap();
    connected(&mut worker).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    publish(&agent, message("ns/x", "work")).await.unwrap();
    assert_eq!(text(&arrives(&mut worker).await), "work");
}

/// This broker says nothing to whom it sends away.
#[tokio::test]
async fn of_two_with_one_name_one_gives_way_for_a_while() {
    let broker = Mosquitto::start();
    let mut two = [
        begin(broker.settings("one"), &[("ns/>", true)], 3),
        begin(broker.settings("one"), &[("ns/>", true)], 3),
    ];
    let rests = |state: &LinkState| {
        assert!(
            !matches!(state, LinkState::Lost { .. }),
            "rest costs no try: {state:?}"
        );
        matches!(state, LinkState::Connecting { why, .. } if why.contains("another worker connected as `one`"))
    };
    let [first, second] = &mut two;
    let wait = async {
        tokio::select! {
            state = first.state.wait_for(rests) => state.map(|_| 1).unwrap(),
            state = second.state.wait_for(rests) => state.map(|_| 0).unwrap(),
        }
    };
    let left = tokio::time::timeout(LONG, wait).await.unwrap();
    let left = &mut two[left];
    connected(left).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    publish(&agent, message("ns/x", "work")).await.unwrap();
    assert_eq!(text(&arrives(left).await), "work");
}

#[tokio::test]
async fn the_broker_holds_back_what_we_do_not_take() {
    let broker = Mosquitto::start();
    let settings = MqttSettings {
        receive_maximum: NonZeroU16::new(2).unwrap(),
        ..broker.settings("worker")
    };
    let mut worker = linked(settings, &[("ns/>", false)]).await;
    let agent = linked(broker.settings("agent"), &[]).await;
    for at in 0..5 {
        publish(&agent, message("ns/x", format!("{at}")))
            .await
            .unwrap();
    }
    let (first, second) = (arrives(&mut worker).await, arrives(&mut worker).await);
    assert_eq!((text(&first), text(&second)), ("0", "1"));
    // What comes before this answer would have been read before it.
    publish(&worker, message("other", "marker")).await.unwrap();
    assert!(
        worker.arrived.try_recv().is_err(),
        "no more than two at once"
    );
    second.receipt.settle().await;
    assert_eq!(
        text(&arrives(&mut worker).await),
        "2",
        "in whatever order they are settled"
    );
}

#[tokio::test]
async fn when_the_broker_was_killed_and_is_back_nothing_that_was_asked_for_is_forgotten() {
    let mut broker = Mosquitto::start();
    let mut worker = linked(broker.settings("worker"), &[("ns/>", false)]).await;
    worker
        .publisher
        .subscribe(subscription("later/*", false))
        .await;
    broker.kill();
    let gone = worker
        .state
        .wait_for(|state| *state != LinkState::Connected);
    tokio::time::timeout(LONG, gone).await.unwrap().unwrap();
    let sends = ["ns/a", "later/b"].map(|topic| {
        let reach = worker.publisher.clone();
        tokio::spawn(async move { reach.publish(message(topic, "kept")).await })
    });
    broker.start_again();
    connected(&mut worker).await;
    let mut topics = [
        arrives(&mut worker).await.topic,
        arrives(&mut worker).await.topic,
    ];
    topics.sort();
    assert_eq!(topics, ["later/b", "ns/a"]);
    for send in sends {
        tokio::time::timeout(LONG, send)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn what_the_broker_has_not_confirmed_when_it_dies_is_sent_to_the_next() {
    let mut broker = Mosquitto::start();
    let wire = Wire::to(broker.port).await;
    let settings = MqttSettings {
        port: wire.port,
        ..broker.settings("worker")
    };
    let mut worker = linked(settings, &[("ns/>", false)]).await;
    wire.swallows.store(true, Ordering::SeqCst);
    let mut sends = tokio::task::JoinSet::new();
    for at in 0..10 {
        let reach = worker.publisher.clone();
        sends.spawn(async move { reach.publish(message("ns/x", format!("{at}"))).await });
    }
    wire.sends(3, 10).await;
    broker.kill();
    broker.start_again();
    wire.swallows.store(false, Ordering::SeqCst);
    wire.cut();
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        seen.insert(text(&arrives(&mut worker).await).to_owned());
    }
    assert_eq!(seen.len(), 10);
    assert_eq!(sends.join_all().await, vec![Ok(()); 10]);
}

#[tokio::test]
async fn what_is_listened_to_no_more_does_not_come() {
    let broker = Mosquitto::start();
    let mut worker = linked(broker.settings("worker"), &[("a/>", false), ("b/>", false)]).await;
    worker
        .publisher
        .unsubscribe(subscription("a/>", false))
        .await;
    publish(&worker, message("a/x", "no")).await.unwrap();
    publish(&worker, message("b/x", "yes")).await.unwrap();
    assert_eq!(text(&arrives(&mut worker).await), "yes");
}

#[tokio::test]
async fn a_password_that_is_wrong_is_named_and_tried_again_as_often_as_wished() {
    let folder = folder();
    let passwords = folder.join("passwords");
    let mut makes = Command::new(program("mosquitto_passwd"));
    assert!(
        makes
            .arg("-b")
            .arg("-c")
            .arg(&passwords)
            .args(["ana", "right"])
            .status()
            .unwrap()
            .success()
    );
    let config = format!(
        "allow_anonymous false\npassword_file {}\n",
        passwords.display()
    );
    let broker = Mosquitto::start_with(folder, &config);
    let with = |password: &'static str, speaks| {
        let credentials = BrokerCredentials {
            user: "ana".to_owned(),
            password: Some(password.into()),
        };
        MqttSettings {
            credentials: Some(credentials),
            speaks,
            ..broker.settings("worker")
        }
    };
    for speaks in [MqttVersions::FiveOrThree, MqttVersions::Three] {
        let trouble = Mqtt::new(with("wrong", speaks))
            .unwrap()
            .connect()
            .await
            .unwrap_err();
        assert!(!trouble.is_final, "credentials may be changed: {trouble}");
        assert_eq!(
            trouble.message,
            "the broker refuses us: not authorised (0x87)"
        );
        let mut link = begin(with("wrong", speaks), &[], 3);
        assert!(why(&mut link).await.contains("not authorised"));
        tokio::time::timeout(LONG, link.task)
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(&*link.state.borrow(), LinkState::Lost { why } if !why.contains("wrong")));
        linked(with("right", speaks), &[]).await;
    }
    assert!(!format!("{:?}", with("canary", MqttVersions::Five)).contains("canary"));
}

#[tokio::test]
async fn messages_that_are_too_large_are_refused_or_passed_over_and_cost_nobody_the_connection() {
    let broker = Mosquitto::start_with(folder(), "allow_anonymous true\nmax_packet_size 100000\n");
    let agent = linked(broker.settings("agent"), &[]).await;
    let refused = publish(&agent, message("ns/x", vec![0; 100_000]))
        .await
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a packet of 100013 bytes is too large: the broker takes 100000"
    );
    publish(&agent, message("ns/x", vec![0; 99_000]))
        .await
        .unwrap();
    for speaks in [MqttVersions::Five, MqttVersions::Three] {
        let wire = Wire::to(broker.port).await;
        let settings = broker.settings("worker");
        let settings = MqttSettings {
            port: wire.port,
            speaks,
            largest_packet: 5000,
            ..settings
        };
        let mut worker = linked(settings, &[("ns/>", true)]).await;
        publish(&agent, message("ns/x", vec![b'x'; 50_000]))
            .await
            .unwrap();
        publish(&agent, message("ns/x", "small")).await.unwrap();
        let arrived = arrives(&mut worker).await;
        assert_eq!(text(&arrived), "small");
        arrived.receipt.settle().await;
        publish(&worker, message("other", "marker")).await.unwrap();
        assert_eq!(
            wire.said.borrow().len(),
            1,
            "it is still the first connection"
        );
        // In 5 the broker does not even send it.
        assert_eq!(
            wire.sent(4),
            if speaks == MqttVersions::Five { 1 } else { 2 }
        );
        let Link {
            publisher: reach,
            task,
            ..
        } = worker;
        drop(reach);
        tokio::time::timeout(LONG, task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_message_over_which_the_broker_ends_the_connection_is_refused_and_others_pass() {
    let broker = Mosquitto::start_with(folder(), "allow_anonymous true\nmax_packet_size 100000\n");
    for (speaks, bad) in [
        (
            MqttVersions::Five,
            message("ns/\u{fffe}", "what is no character"),
        ),
        (MqttVersions::Three, message("ns/x", vec![b'x'; 200_000])),
    ] {
        let name = ClientId::Unique("worker".to_owned());
        let settings = MqttSettings {
            speaks,
            ..MqttSettings::new("127.0.0.1", broker.port, name)
        };
        let mut worker = linked(settings, &[("ns/>", false)]).await;
        let refused = publish(&worker, bad).await.unwrap_err();
        let is_named = refused
            .to_string()
            .starts_with("the broker ends each connection by which it is sent: ");
        assert!(
            is_named && matches!(refused, PublishError::ConnectionEnded(_)),
            "{refused:?}"
        );
        publish(&worker, message("ns/x", "good")).await.unwrap();
        assert_eq!(text(&arrives(&mut worker).await), "good");
    }
}

#[tokio::test]
async fn what_was_retained_before_we_came_is_not_done() {
    let broker = Mosquitto::start();
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", broker.port))
        .await
        .unwrap();
    // In 3.1.1: hello, a message that is kept, farewell.
    stream
        .write_all(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01r")
        .await
        .unwrap();
    stream
        .write_all(b"\x33\x09\x00\x04ns/x\x00\x01!\xc0\x00")
        .await
        .unwrap();
    let mut answers = [0; 10];
    stream.read_exact(&mut answers).await.unwrap();
    assert_eq!(answers, *b"\x20\x02\x00\x00\x40\x02\x00\x01\xd0\x00");
    for speaks in [MqttVersions::Five, MqttVersions::Three] {
        let settings = MqttSettings {
            speaks,
            ..broker.settings("worker")
        };
        let mut worker = linked(settings, &[("ns/>", false)]).await;
        publish(&worker, message("ns/x", "new")).await.unwrap();
        assert_eq!(text(&arrives(&mut worker).await), "new");
    }
}

/// An authority and what it vouches for, as files.
fn certificates(folder: &Path) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority
        .distinguished_name
        .push(DnType::CommonName, "the authority of a test");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let made = authority.self_signed(&authority_key).unwrap();
    fs::create_dir(folder.join("trusted")).unwrap();
    fs::write(folder.join("trusted/authority.pem"), made.pem()).unwrap();
    fs::write(folder.join("trusted/README"), "no certificate").unwrap();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let uses = [
        ("server", ExtendedKeyUsagePurpose::ServerAuth),
        ("client", ExtendedKeyUsagePurpose::ClientAuth),
    ];
    for (name, purpose) in uses {
        let key = KeyPair::generate().unwrap();
        let mut leaf =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "broker.test".to_owned()]).unwrap();
        leaf.distinguished_name.push(DnType::CommonName, name);
        leaf.extended_key_usages = vec![purpose];
        fs::write(
            folder.join(format!("{name}.pem")),
            leaf.signed_by(&key, &issuer).unwrap().pem(),
        )
        .unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn tls_proves_the_broker_to_us_and_us_to_the_broker() {
    let (ours, theirs) = (folder(), folder());
    certificates(&ours);
    certificates(&theirs);
    let at = {
        let theirs = theirs.to_owned();
        move |path: &str| theirs.join(path)
    };
    let config = format!(
        "allow_anonymous true\nrequire_certificate true\ncafile {}\ncertfile {}\nkeyfile {}\n",
        at("trusted/authority.pem").display(),
        at("server.pem").display(),
        at("server.key").display()
    );
    let broker = Mosquitto::start_with(theirs, &config);
    let theirs = &*broker.folder;
    let certificate = |folder: &Path| {
        Some(ClientCertificate {
            chain: folder.join("client.pem"),
            key: folder.join("client.key"),
        })
    };
    let with = |trust, certificate, server_name: Option<&str>| {
        let server_name = server_name.map(str::to_owned);
        let tls = BrokerTls {
            trust,
            certificate,
            server_name,
        };
        MqttSettings {
            tls: Some(tls),
            ..broker.settings("worker")
        }
    };
    let (file, trusted) = (
        Trust::Store(at("trusted/authority.pem")),
        Trust::Store(at("trusted")),
    );
    for good in [
        with(file.clone(), certificate(theirs), None),
        with(trusted.clone(), certificate(theirs), Some("broker.test")),
    ] {
        let mut worker = linked(good, &[("ns/>", false)]).await;
        publish(&worker, message("ns/x", vec![b'x'; 300_000]))
            .await
            .unwrap();
        assert_eq!(arrives(&mut worker).await.payload.len(), 300_000);
    }
    let connect = async |settings| Mqtt::new(settings).unwrap().connect().await.unwrap_err();
    let wrong_name = connect(with(file.clone(), certificate(theirs), Some("other.test"))).await;
    assert!(
        wrong_name.message.contains("not valid for name"),
        "{wrong_name}"
    );
    let stranger = connect(with(
        Trust::Store(ours.join("trusted")),
        certificate(theirs),
        None,
    ))
    .await;
    assert!(
        stranger.message.contains("cannot agree on TLS"),
        "{stranger}"
    );
    // A machine may trust nobody at all.
    match Mqtt::new(with(Trust::Platform, certificate(theirs), None)) {
        Ok(mut by_platform) => assert!(by_platform.connect().await.is_err()),
        Err(nobody) => assert!(nobody.message.contains("name a trust store"), "{nobody}"),
    }
    for bad in [None, certificate(&ours)] {
        let unknown = connect(with(file.clone(), bad, None)).await;
        assert!(!unknown.is_final, "{unknown}");
    }
    let missing = with(Trust::Store(at("nowhere")), None, None);
    let missing = Mqtt::new(missing).unwrap_err();
    assert!(
        missing.is_final && missing.message.contains("nowhere"),
        "{missing}"
    );
}

/// A broker that says what a test wants: reads one greeting per connection and gives one answer.
async fn pretender(answers: &'static [&'static [u8]]) -> (u16, tokio::task::JoinHandle<Vec<u8>>) {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let levels = tokio::spawn(async move {
        let mut levels = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 512];
            let count = stream.read(&mut hello).await.unwrap();
            assert!(count > 10);
            levels.push(hello[8]);
            stream.write_all(answer).await.unwrap();
        }
        levels
    });
    (port, levels)
}

async fn greeted(
    answers: &'static [&'static [u8]],
    speaks: MqttVersions,
) -> (Result<(), ConnectionError>, Vec<u8>) {
    let (port, levels) = pretender(answers).await;
    let settings = MqttSettings::new("127.0.0.1", port, ClientId::Exactly("worker".to_owned()));
    let result = Mqtt::new(MqttSettings { speaks, ..settings })
        .unwrap()
        .connect()
        .await;
    (result.map(|_| ()), levels.await.unwrap())
}

#[tokio::test]
async fn a_broker_that_does_not_know_version_5_is_asked_in_3_1_1() {
    const OLD: &[&[u8]] = &[b"\x20\x02\x00\x01", b"\x20\x02\x00\x00"];
    const NEW: &[&[u8]] = &[b"\x20\x03\x00\x84\x00", b"\x20\x02\x00\x00"];
    assert_eq!(
        greeted(OLD, MqttVersions::FiveOrThree).await,
        (Ok(()), vec![5, 4])
    );
    assert_eq!(
        greeted(NEW, MqttVersions::FiveOrThree).await,
        (Ok(()), vec![5, 4])
    );
    let (refused, levels) = greeted(&OLD[..1], MqttVersions::Five).await;
    let message =
        "the broker refuses us: it does not speak this version of MQTT (0x84) (asked in 5)"
            .to_owned();
    assert_eq!(
        (refused, levels),
        (
            Err(ConnectionError {
                message,
                is_final: true,
                is_timeout: false
            }),
            vec![5]
        )
    );
    // A refusal for another reason is no reason to speak another version.
    let busy: &[&[u8]] = &[b"\x20\x03\x00\x89\x00"];
    let (refused, levels) = greeted(busy, MqttVersions::FiveOrThree).await;
    assert_eq!((refused.unwrap_err().is_final, levels), (false, vec![5]));
}

#[tokio::test]
async fn what_is_no_broker_is_told_so() {
    const HTTP: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n";
    const ANSWERS: &[(&str, &[&[u8]])] = &[
        ("there is no such packet", &[b"\x00\x00"]),
        ("does not speak MQTT as it should", &[HTTP]),
        ("without an answer", &[b""]),
        ("something else", &[b"\xd0\x00"]),
        ("larger than we take", &[b"\x20\xff\xff\xff\x7f"]),
    ];
    for (expected, answer) in ANSWERS {
        let (refused, _) = greeted(answer, MqttVersions::FiveOrThree).await;
        let refused = refused.unwrap_err();
        assert!(
            refused.message.contains(expected) && !refused.is_final,
            "{refused}"
        );
    }
}
