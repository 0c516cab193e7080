//! The AMQP transport against the real RabbitMQ, with a client that is not ours on the other side; and against somebody who
//! only pretends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that fails is a test that tells"
)]

use bytes::Bytes;
use fe2o3_amqp::{
    Delivery, Receiver, Sender, Session,
    types::{
        messaging::{ApplicationProperties, Body, Message, Properties as Beside},
        primitives::{SimpleValue, Value},
    },
};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};
use worker::transport::{
    BrokerCredentials, BrokerProtocol, BrokerTls, ClientCertificate, Connection, Connector,
    IncomingMessage, Link, LinkNotice, LinkState, MessageClass, OutgoingMessage, Properties,
    PublishError, ReconnectPolicy, Subscription, Trust,
    amqp::{AddressScheme, Amqp, AmqpSettings},
};

/// Nothing here takes as long; it only ends tests that hang.
const LONG: Duration = Duration::from_secs(120);
/// Queues with what is bound to them: that is the operator's work.
const QUEUES: [(&str, &str); 8] = [
    ("ns/q/str/back", "back.invoke.#"),
    ("ns/q/str/pool", "pool.invoke.#"),
    ("ns/q/str/lost", "lost.invoke.#"),
    ("ns/q/str/large", "large.invoke.#"),
    ("ns/q/str/other", "other.invoke.#"),
    ("ns/q/str/again", "again.invoke.#"),
    ("ns/q/str/stop", "stop.invoke.#"),
    ("ns/q/str/full", "full.response.#"),
];
/// `worker` has the password `secret`.
const HASH: &str = "AQIDBDB9kM21iEUzN1lZ+6VReCsdNqS0sERdAQTcY6Xs3PMz";

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

/// RabbitMQ with a name server of its own.
struct Rabbit {
    names: Child,
    child: Child,
    folder: PathBuf,
    port: u16,
    safe_port: u16,
    names_port: u16,
    far_port: u16,
}

impl Rabbit {
    fn start() -> Rabbit {
        let folder = std::env::temp_dir().join(format!("airlock-amqp-{:016x}", random()));
        for name in ["", "mnesia", "log"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        let (port, safe_port, names_port, far_port) =
            (free_port(), free_port(), free_port(), free_port());
        fs::write(
            folder.join("plugins"),
            "[rabbitmq_amqp1_0,rabbitmq_auth_mechanism_ssl].",
        )
        .unwrap();
        certificates(&folder);
        fs::write(folder.join("definitions.json"), definitions_with(&QUEUES)).unwrap();
        let config = format!(
            "loopback_users = none\nload_definitions = {0}/definitions.json\n\
             vm_memory_high_watermark.absolute = 512MB\ndisk_free_limit.absolute = 1MB\n\
             max_message_size = 10000000\n\
             listeners.ssl.default = 127.0.0.1:{safe_port}\n\
             ssl_options.cacertfile = {0}/authority.pem\nssl_options.certfile = {0}/server.pem\n\
             ssl_options.keyfile = {0}/server.key\nssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = true\nssl_cert_login_from = common_name\n\
             auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n",
            folder.display()
        );
        fs::write(folder.join("r.conf"), config).unwrap();
        let owner = owner();
        if let Some((user, group)) = owner {
            let all = [
                "",
                "mnesia",
                "log",
                "plugins",
                "definitions.json",
                "r.conf",
                "server.key",
            ];
            all.iter().for_each(|name| {
                std::os::unix::fs::chown(folder.join(name), Some(user), Some(group)).unwrap()
            });
        }
        let mut names = Command::new("epmd");
        names.args(["-port", &names_port.to_string(), "-address", "127.0.0.1"]);
        let names = names
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let child = run(&folder, port, names_port, far_port);
        Rabbit {
            names,
            child,
            folder,
            port,
            safe_port,
            names_port,
            far_port,
        }
    }

    fn kill(&mut self) {
        kill_process_group(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = run(&self.folder, self.port, self.names_port, self.far_port);
    }

    /// Those that it named itself, and how many listen to each.
    fn own_queues(&self) -> Vec<String> {
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmqctl");
        command.args([
            "-q",
            "list_queues",
            "--no-table-headers",
            "name",
            "consumers",
        ]);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.folder);
        command.env("RABBITMQ_NODENAME", "rabbit@localhost");
        command
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", self.names_port.to_string());
        if let Some((user, group)) = owner() {
            command.uid(user).gid(group);
        }
        let said = command.output().unwrap();
        let queues = String::from_utf8(said.stdout).unwrap();
        assert!(
            queues.contains("ns/q/str/pool"),
            "{queues}{}",
            String::from_utf8_lossy(&said.stderr)
        );
        queues
            .lines()
            .filter(|line| line.starts_with("amq.gen-"))
            .map(str::to_owned)
            .collect()
    }

    fn settings(&self, queue: &str, container: &str) -> AmqpSettings {
        AmqpSettings {
            addresses: AddressScheme::named("rabbitmq").unwrap(),
            credentials: Some(credentials("secret")),
            ..AmqpSettings::new(
                "127.0.0.1",
                self.port,
                format!("ns/q/str/{queue}"),
                container,
            )
        }
    }
}

impl Drop for Rabbit {
    fn drop(&mut self) {
        self.kill();
        self.names.kill().unwrap();
        self.names.wait().unwrap();
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// An authority, and those whom it vouches for: the broker, and `worker`.
fn certificates(folder: &Path) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority
        .distinguished_name
        .push(DnType::CommonName, "the authority of a test");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(
        folder.join("authority.pem"),
        authority.self_signed(&authority_key).unwrap().pem(),
    )
    .unwrap();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let uses = [
        ("server", ExtendedKeyUsagePurpose::ServerAuth),
        ("worker", ExtendedKeyUsagePurpose::ClientAuth),
    ];
    for (name, purpose) in uses {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
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

/// It does not want to be root.
fn owner() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users
        .lines()
        .find(|line| line.starts_with("rabbitmq:"))
        .expect("rabbitmq-server is installed");
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn definitions_with(queues: &[(&str, &str)]) -> String {
    let made = queues.iter().map(|(queue, _)| {
        format!(r#"{{"name":"{queue}","vhost":"/","durable":true,"auto_delete":false,"arguments":{{}}}}"#)
    });
    let bound = queues.iter().map(|(queue, key)| {
        format!(
            r#"{{"source":"amq.topic","vhost":"/","destination":"{queue}","destination_type":"queue",
                "routing_key":"{key}","arguments":{{}}}}"#
        )
    });
    let (made, bound) = (
        made.collect::<Vec<_>>().join(","),
        bound.collect::<Vec<_>>().join(","),
    );
    format!(
        r#"{{"users":[{{"name":"worker","password_hash":"{HASH}","hashing_algorithm":"rabbit_password_hashing_sha256","tags":""}}],
            "vhosts":[{{"name":"/"}}],
            "policies":[{{"vhost":"/","name":"unread","pattern":"^amq\\.gen-","apply-to":"queues",
                "definition":{{"expires":1000}},"priority":0}},
                {{"vhost":"/","name":"full","pattern":"^ns/q/str/full$","apply-to":"queues",
                "definition":{{"max-length":1,"overflow":"reject-publish"}},"priority":0}}],
            "permissions":[{{"user":"worker","vhost":"/","configure":".*","write":".*","read":".*"}}],
            "queues":[{made}],"bindings":[{bound}]}}"#
    )
}

/// Comes back when it listens.
fn run(folder: &Path, port: u16, names_port: u16, far_port: u16) -> Child {
    let at = |name: &str| folder.join(name).into_os_string();
    let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", folder);
    command
        .env("RABBITMQ_NODENAME", "rabbit@localhost")
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
    command
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", far_port.to_string());
    command
        .env("RABBITMQ_MNESIA_BASE", at("mnesia"))
        .env("RABBITMQ_LOG_BASE", at("log"));
    command
        .env("RABBITMQ_PID_FILE", at("pid"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins"));
    command
        .env("RABBITMQ_CONFIG_FILE", at("r"))
        .env("RABBITMQ_LOGS", "-");
    command
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", names_port.to_string());
    command.env(
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
        "-kernel inet_dist_use_interface {127,0,0,1}",
    );
    if let Some((user, group)) = owner() {
        command.uid(user).gid(group);
    }
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (running, runs) = mpsc::channel();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        for line in lines.by_ref().map_while(Result::ok) {
            let is_running = line.contains("Server startup complete");
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
        said.last()
            .is_some_and(|line| line.contains("Server startup complete")),
        "{said:#?}"
    );
    child
}

fn credentials(password: &str) -> BrokerCredentials {
    BrokerCredentials {
        user: "worker".to_owned(),
        password: Some(Bytes::copy_from_slice(password.as_bytes())),
    }
}

fn begin(settings: AmqpSettings, patterns: &[(&str, bool)], tries: u64) -> Link {
    let subscription = |(pattern, is_shared): &(&str, bool)| Subscription {
        pattern: (*pattern).to_owned(),
        is_shared: *is_shared,
    };
    let subscriptions: BTreeSet<_> = patterns.iter().map(subscription).collect();
    let patience = ReconnectPolicy {
        tries,
        pause: Duration::from_millis(100),
    };
    BrokerProtocol::Amqp(settings)
        .link(subscriptions, patience, 8)
        .unwrap()
}

async fn linked(settings: AmqpSettings, patterns: &[(&str, bool)]) -> Link {
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

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("it happens")
}

async fn arrives(link: &mut Link) -> IncomingMessage {
    within(link.arrived.recv())
        .await
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
    within(link.publisher.publish(message)).await
}

fn text(arrived: &IncomingMessage) -> &str {
    std::str::from_utf8(&arrived.payload).unwrap()
}

/// One broker for all of them: it takes long to start.
#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_is_served() {
    let mut rabbit = Rabbit::start();
    a_wrong_password_is_tried_again(&rabbit).await;
    a_queue_that_is_not_there_is_waited_for(&rabbit).await;
    members_of_a_pool_take_turns_and_properties_pass(&rabbit).await;
    topics_are_for_each(&rabbit).await;
    what_was_not_settled_comes_again(&rabbit).await;
    what_came_before_it_stopped_to_listen_is_still_settled(&rabbit).await;
    what_is_given_back_comes_to_others_while_we_are_there(&rabbit).await;
    what_is_too_large_is_passed_over_for_ever(&rabbit).await;
    what_the_broker_ends_the_session_over_is_refused_and_others_pass(&rabbit).await;
    what_a_full_queue_does_not_take_is_told_and_others_pass(&rabbit).await;
    agents_with_another_client_are_understood(&rabbit).await;
    tls_proves_both_sides(&rabbit).await;
    a_quiet_connection_stays(&rabbit).await;
    what_a_connection_leaves_expires(&rabbit).await;
    an_outage_loses_nothing(&mut rabbit).await;
}

/// By a password in it, and by the certificate alone.
async fn tls_proves_both_sides(rabbit: &Rabbit) {
    let at = |name: &str| rabbit.folder.join(name);
    let tls = BrokerTls {
        trust: Trust::Store(at("authority.pem")),
        certificate: Some(ClientCertificate {
            chain: at("worker.pem"),
            key: at("worker.key"),
        }),
        server_name: None,
    };
    let safe = |container| AmqpSettings {
        port: rabbit.safe_port,
        ..rabbit.settings("pool", container)
    };
    for (container, credentials) in [
        ("by-password", Some(credentials("secret"))),
        ("by-certificate", None),
    ] {
        let topic = format!("pool/{container}");
        let settings = AmqpSettings {
            tls: Some(tls.clone()),
            credentials,
            ..safe(container)
        };
        let mut link = linked(settings, &[(&topic, false)]).await;
        publish(&link, message(&topic, "safe")).await.unwrap();
        assert_eq!(text(&arrives(&mut link).await), "safe");
    }
    let platform = BrokerTls {
        trust: Trust::Platform,
        ..tls
    };
    let mut link = begin(
        AmqpSettings {
            tls: Some(platform),
            ..safe("stranger")
        },
        &[],
        1,
    );
    let lost = |state: &LinkState| matches!(state, LinkState::Lost { .. });
    let state = within(link.state.wait_for(lost)).await.unwrap().clone();
    assert!(
        matches!(&state, LinkState::Lost { why } if why.contains("TLS")),
        "{state:?}"
    );
}

/// Both sides say that they live: it would end after four seconds otherwise, here by us and there by the broker.
async fn a_quiet_connection_stays(rabbit: &Rabbit) {
    let settings = AmqpSettings {
        keep_alive: Duration::from_secs(2),
        ..rabbit.settings("pool", "quiet")
    };
    let mut link = linked(settings, &[("pool/quiet", false)]).await;
    let changed = tokio::time::timeout(Duration::from_secs(7), link.state.changed()).await;
    assert!(changed.is_err(), "{:?}", *link.state.borrow());
    publish(&link, message("pool/quiet", "still"))
        .await
        .unwrap();
    assert_eq!(text(&arrives(&mut link).await), "still");
}

/// It makes a queue for whoever listens to a topic. No client can delete it, but the policy that docs/worker.md names does, here
/// sooner, when nobody reads it any more.
async fn what_a_connection_leaves_expires(rabbit: &Rabbit) {
    let link = linked(rabbit.settings("pool", "leaves"), &[("ns/cancel/>", false)]).await;
    let own_queues = |count| {
        let began = Instant::now();
        loop {
            let queues = tokio::task::block_in_place(|| rabbit.own_queues());
            if queues.len() == count {
                return;
            }
            assert!(began.elapsed() < LONG, "{count} are expected: {queues:?}");
        }
    };
    own_queues(1);
    publish(&link, message("ns/cancel/x", "not settled"))
        .await
        .unwrap();
    drop(link);
    own_queues(0);
}

async fn a_wrong_password_is_tried_again(rabbit: &Rabbit) {
    let settings = AmqpSettings {
        credentials: Some(credentials("wrong")),
        ..rabbit.settings("pool", "wrong")
    };
    let mut link = begin(settings, &[], 0);
    let is_told = |state: &LinkState| match state {
        LinkState::Connecting { why, .. } | LinkState::Lost { why } => !why.is_empty(),
        LinkState::Connected => true,
    };
    let state = within(link.state.wait_for(is_told)).await.unwrap().clone();
    let LinkState::Connecting { why, .. } = &state else {
        panic!("{state:?}")
    };
    assert!(
        why.contains("password") && !why.contains("wrong\""),
        "{why}"
    );
}

async fn a_queue_that_is_not_there_is_waited_for(rabbit: &Rabbit) {
    let mut link = begin(
        rabbit.settings("none", "none"),
        &[("pool/invoke/>", true)],
        2,
    );
    let lost = |state: &LinkState| matches!(state, LinkState::Lost { .. });
    let state = within(link.state.wait_for(lost)).await.unwrap().clone();
    assert!(
        matches!(&state, LinkState::Lost { why } if why.contains("not-found")),
        "{state:?}"
    );
}

async fn members_of_a_pool_take_turns_and_properties_pass(rabbit: &Rabbit) {
    let mut members = [
        linked(rabbit.settings("pool", "one"), &[("pool/invoke/>", true)]).await,
        linked(rabbit.settings("pool", "two"), &[("pool/invoke/>", true)]).await,
    ];
    assert!(members[0].redelivers);
    let agent = linked(rabbit.settings("pool", "agent"), &[]).await;
    let properties = Properties::from([
        ("replyTo".to_owned(), "ns/response/agent/1".to_owned()),
        ("timestamp".to_owned(), "1700000000000".to_owned()),
        ("naïve".to_owned(), "ключ".to_owned()),
    ]);
    let mut all = BTreeSet::new();
    for at in 0..40 {
        let sent = message("pool/invoke/my.tool", format!("{at}"));
        publish(
            &agent,
            OutgoingMessage {
                properties: properties.clone(),
                ..sent
            },
        )
        .await
        .unwrap();
        all.insert(at.to_string());
    }
    let [one, two] = &mut members;
    let mut got = [0, 0];
    while !all.is_empty() {
        let (by, arrived) = tokio::select! {
            arrived = arrives(one) => (0, arrived),
            arrived = arrives(two) => (1, arrived),
        };
        assert!(
            all.remove(text(&arrived)),
            "each to one: {}",
            text(&arrived)
        );
        assert_eq!(
            (arrived.topic.as_str(), &arrived.properties),
            ("pool/invoke/my.tool", &properties)
        );
        got[by] += 1;
        arrived.receipt.settle().await;
    }
    assert!(got[0] > 0 && got[1] > 0, "{got:?}");
}

async fn topics_are_for_each(rabbit: &Rabbit) {
    let mut links = [
        linked(
            rabbit.settings("pool", "third"),
            &[("ns/cancel/>", false), ("ns/exact", false)],
        )
        .await,
        linked(
            rabbit.settings("pool", "fourth"),
            &[("ns/cancel/>", false), ("ns/exact", false)],
        )
        .await,
    ];
    let large = Bytes::from(vec![b'x'; 9_000_000]);
    publish(&links[0], message("ns/cancel/a.b/c", large.clone()))
        .await
        .unwrap();
    publish(&links[0], message("ns/exact", "2")).await.unwrap();
    publish(&links[0], message("ns/other", "to nobody"))
        .await
        .unwrap();
    for link in &mut links {
        let mut got = BTreeSet::new();
        for _ in 0..2 {
            let arrived = arrives(link).await;
            got.insert((arrived.topic.clone(), arrived.payload.clone()));
            arrived.receipt.settle().await;
        }
        let expected = [
            ("ns/cancel/a.b/c".to_owned(), large.clone()),
            ("ns/exact".to_owned(), Bytes::from("2")),
        ];
        assert!(got == expected.into());
    }
    let gone = Subscription {
        pattern: "ns/cancel/>".to_owned(),
        is_shared: false,
    };
    links[0].publisher.unsubscribe(gone).await;
    publish(&links[0], message("ns/cancel/x", "3"))
        .await
        .unwrap();
    publish(&links[0], message("ns/exact", "4")).await.unwrap();
    assert_eq!(text(&arrives(&mut links[0]).await), "4");
}

async fn what_was_not_settled_comes_again(rabbit: &Rabbit) {
    let mut first = linked(rabbit.settings("lost", "first"), &[("lost/invoke/>", true)]).await;
    for payload in ["settled", "open", "unread"] {
        publish(&first, message("lost/invoke/t", payload))
            .await
            .unwrap();
    }
    let settled = arrives(&mut first).await;
    assert_eq!(text(&settled), "settled");
    settled.receipt.settle().await;
    let open = arrives(&mut first).await;
    assert_eq!(text(&open), "open");
    // Its answer comes behind the settlement: then that has arrived.
    publish(&first, message("lost/nobody", "x")).await.unwrap();
    first.task.abort();
    let mut second = linked(
        rabbit.settings("lost", "second"),
        &[("lost/invoke/>", true)],
    )
    .await;
    for expected in ["open", "unread"] {
        let arrived = arrives(&mut second).await;
        assert_eq!(text(&arrived), expected);
        arrived.receipt.settle().await;
    }
    drop(open);
}

async fn what_came_before_it_stopped_to_listen_is_still_settled(rabbit: &Rabbit) {
    let pattern = ("stop/invoke/>", true);
    let mut first = linked(rabbit.settings("stop", "first"), &[pattern]).await;
    publish(&first, message("stop/invoke/t", "begun"))
        .await
        .unwrap();
    let begun = arrives(&mut first).await;
    assert_eq!(text(&begun), "begun");
    first
        .publisher
        .unsubscribe(Subscription {
            pattern: pattern.0.to_owned(),
            is_shared: true,
        })
        .await;
    publish(&first, message("stop/invoke/t", "for others"))
        .await
        .unwrap();
    let mut second = linked(rabbit.settings("stop", "second"), &[pattern]).await;
    let other = arrives(&mut second).await;
    assert_eq!(
        text(&other),
        "for others",
        "what is under way elsewhere does not come again"
    );
    other.receipt.settle().await;
    begun.receipt.settle().await;
    // Its answer comes behind the settlement: then that has arrived.
    publish(&first, message("stop/nobody", "x")).await.unwrap();
    first.task.abort();
    _ = first.task.await;
    publish(&second, message("stop/invoke/t", "last"))
        .await
        .unwrap();
    assert_eq!(
        text(&arrives(&mut second).await),
        "last",
        "what was settled does not come again"
    );
}

async fn what_is_given_back_comes_to_others_while_we_are_there(rabbit: &Rabbit) {
    let pattern = ("back/invoke/>", true);
    let mut first = linked(rabbit.settings("back", "first"), &[pattern]).await;
    for payload in ["begun", "waits"] {
        publish(&first, message("back/invoke/t", payload))
            .await
            .unwrap();
    }
    let (begun, waits) = (arrives(&mut first).await, arrives(&mut first).await);
    assert_eq!((text(&begun), text(&waits)), ("begun", "waits"));
    waits.receipt.release().await;
    first
        .publisher
        .unsubscribe(Subscription {
            pattern: pattern.0.to_owned(),
            is_shared: true,
        })
        .await;
    let mut second = linked(rabbit.settings("back", "second"), &[pattern]).await;
    let other = arrives(&mut second).await;
    assert_eq!(
        text(&other),
        "waits",
        "what is under way elsewhere does not come again"
    );
    other.receipt.settle().await;
    assert!(first.arrived.try_recv().is_err());
    begun.receipt.settle().await;
}

async fn what_is_too_large_is_passed_over_for_ever(rabbit: &Rabbit) {
    let settings = AmqpSettings {
        largest_message: 5000,
        ..rabbit.settings("large", "small")
    };
    let mut worker = linked(settings, &[("large/invoke/>", true)]).await;
    publish(&worker, message("large/invoke/t", vec![0; 200_000]))
        .await
        .unwrap();
    publish(&worker, message("large/invoke/t", "small"))
        .await
        .unwrap();
    let arrived = arrives(&mut worker).await;
    assert_eq!(text(&arrived), "small");
    arrived.receipt.settle().await;
    let notice = within(worker.notices.recv()).await.unwrap();
    assert!(
        matches!(&notice, LinkNotice::PassedOver(what) if what.contains("larger than 5000")),
        "{notice:?}"
    );
    publish(&worker, message("large/nobody", "x"))
        .await
        .unwrap();
    worker.task.abort();
    let mut next = linked(
        rabbit.settings("large", "next"),
        &[("large/invoke/>", true)],
    )
    .await;
    publish(&next, message("large/invoke/t", "later"))
        .await
        .unwrap();
    assert_eq!(
        text(&arrives(&mut next).await),
        "later",
        "the large one is not there any more"
    );
}

async fn what_the_broker_ends_the_session_over_is_refused_and_others_pass(rabbit: &Rabbit) {
    let mut link = linked(rabbit.settings("huge", "huge"), &[("huge/x", false)]).await;
    let refused = publish(&link, message("huge/x", vec![0; 11_000_000]))
        .await
        .unwrap_err();
    let is_named = refused
        .to_string()
        .starts_with("the broker ends each connection by which it is sent: ");
    assert!(
        is_named && matches!(refused, PublishError::ConnectionEnded(_)),
        "{refused:?}"
    );
    publish(&link, message("huge/x", "good")).await.unwrap();
    assert_eq!(text(&arrives(&mut link).await), "good");
}

/// This broker has no other word for that than the end of the connection.
async fn what_a_full_queue_does_not_take_is_told_and_others_pass(rabbit: &Rabbit) {
    let link = linked(rabbit.settings("pool", "fills"), &[]).await;
    let family = || MessageClass::Recipient("full/response".to_owned());
    let send = |words: &'static str| {
        let reach = link.publisher.clone();
        async move { within(reach.publish_class(family(), message("full/response/x", words))).await }
    };
    send("first").await.unwrap();
    let told = send("too much").await.unwrap_err();
    assert!(matches!(told, PublishError::ConnectionEnded(_)), "{told:?}");
    publish(&link, message("full/nobody", "x")).await.unwrap();
    let told = send("again").await.unwrap_err();
    assert!(matches!(told, PublishError::BackedOff(_)), "{told:?}");
    let mut reader = linked(
        rabbit.settings("full", "reads"),
        &[("full/response/>", true)],
    )
    .await;
    let arrived = arrives(&mut reader).await;
    assert_eq!(text(&arrived), "first");
    arrived.receipt.settle().await;
    // When this is there, the broker has what was settled before it.
    publish(&reader, message("full/nobody", "x")).await.unwrap();
    within(
        link.publisher
            .publish_alone(family(), message("full/response/x", "later")),
    )
    .await
    .unwrap();
    assert_eq!(text(&arrives(&mut reader).await), "later");
}

async fn agents_with_another_client_are_understood(rabbit: &Rabbit) {
    let mut worker = linked(
        rabbit.settings("other", "worker"),
        &[("other/invoke/>", true)],
    )
    .await;
    let url = format!("amqp://worker:secret@127.0.0.1:{}", rabbit.port);
    let mut connection = within(fe2o3_amqp::Connection::open("agent", &url[..]))
        .await
        .unwrap();
    let mut session = within(Session::begin(&mut connection)).await.unwrap();
    let mut listens = within(Receiver::attach(
        &mut session,
        "in",
        "/topic/other.response.#",
    ))
    .await
    .unwrap();
    let mut sender = within(Sender::attach(
        &mut session,
        "out",
        "/topic/other.invoke.tool",
    ))
    .await
    .unwrap();
    let beside = Beside::builder()
        .subject("other.invoke.tool")
        .reply_to("/topic/other.response.agent.1")
        .build();
    let application = ApplicationProperties::builder()
        .insert("timestamp", 1_700_000_000_000_i64)
        .insert("is", true)
        .insert("clientId", "agent")
        .build();
    let sent = Message::builder()
        .properties(beside)
        .application_properties(application)
        .value("{}".to_owned())
        .build();
    within(sender.send(sent)).await.unwrap();
    let arrived = arrives(&mut worker).await;
    assert_eq!(
        (arrived.topic.as_str(), text(&arrived)),
        ("other/invoke/tool", "{}")
    );
    let expected = [
        ("timestamp", "1700000000000"),
        ("is", "true"),
        ("clientId", "agent"),
        ("replyTo", "other/response/agent/1"),
    ];
    assert_eq!(
        arrived.properties,
        expected
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    );
    let properties =
        Properties::from(["timestamp", "traceId"].map(|key| (key.to_owned(), "7".to_owned())));
    let reply = arrived.properties["replyTo"].clone();
    publish(
        &worker,
        OutgoingMessage {
            properties,
            ..message(&reply, "answer")
        },
    )
    .await
    .unwrap();
    arrived.receipt.settle().await;
    let delivery: Delivery<Body<Value>> = within(listens.recv()).await.unwrap();
    within(listens.accept(&delivery)).await.unwrap();
    let data: Vec<_> = delivery
        .body()
        .try_as_data()
        .unwrap()
        .map(|data| data.to_vec())
        .collect();
    assert_eq!(data, [b"answer".to_vec()]);
    let message = delivery.message();
    assert_eq!(
        message.header.as_ref().map(|header| header.durable),
        Some(true)
    );
    let application = message.application_properties.as_ref().unwrap();
    assert_eq!(application.get("timestamp"), Some(&SimpleValue::Long(7)));
    assert_eq!(
        application.get("traceId"),
        Some(&SimpleValue::String("7".to_owned()))
    );
}

async fn an_outage_loses_nothing(rabbit: &mut Rabbit) {
    let mut worker = linked(
        rabbit.settings("again", "worker"),
        &[("again/invoke/>", true)],
    )
    .await;
    publish(&worker, message("again/invoke/t", "before"))
        .await
        .unwrap();
    let open = arrives(&mut worker).await;
    rabbit.kill();
    within(
        worker
            .state
            .wait_for(|state| matches!(state, LinkState::Connecting { .. })),
    )
    .await
    .unwrap();
    let reach = worker.publisher.clone();
    let waits =
        tokio::spawn(async move { reach.publish(message("again/invoke/t", "meanwhile")).await });
    open.receipt.settle().await;
    rabbit.start_again();
    connected(&mut worker).await;
    within(waits).await.unwrap().unwrap();
    let mut got = BTreeSet::new();
    for _ in 0..2 {
        let arrived = arrives(&mut worker).await;
        got.insert(text(&arrived).to_owned());
        arrived.receipt.settle().await;
    }
    let expected = ["before", "meanwhile"].map(str::to_owned);
    assert_eq!(
        got,
        expected.into(),
        "what could not be settled comes again, what could not be sent is sent"
    );
}

/// Somebody who says these bytes to whoever connects, and reads whatever they say.
fn pretender(words: Vec<u8>) -> u16 {
    pretender_who(words, Then::Goes)
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Goes,
    Stays,
}

fn pretender_who(words: Vec<u8>, then: Then) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else {
            return;
        };
        let mut reader: TcpStream = stream.try_clone().unwrap();
        let reads =
            std::thread::spawn(move || _ = std::io::copy(&mut reader, &mut std::io::sink()));
        // Whoever has heard enough goes.
        _ = stream.write_all(&words);
        match then {
            Then::Goes => _ = stream.shutdown(std::net::Shutdown::Write),
            Then::Stays => reads.join().unwrap(),
        }
    });
    port
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(8 + body.len()).unwrap();
    [&size.to_be_bytes()[..], &[2, kind, 0, 0], body].concat()
}

fn attach(handle: u8) -> Vec<u8> {
    let name = [&[0xa1, 4][..], b"me-", &[b'0' + handle]].concat();
    let terminus = |code| [0, 0x53, code, 0xc0, 4, 1, 0xa1, 1, b'x'];
    let fields = [
        &name[..],
        &[0x52, handle, 0x42, 0x40, 0x40],
        &terminus(0x28),
        &terminus(0x29),
    ]
    .concat();
    frame(
        0,
        &[
            &[
                0,
                0x53,
                0x12,
                0xc0,
                u8::try_from(fields.len() + 1).unwrap(),
                7,
            ][..],
            &fields,
        ]
        .concat(),
    )
}

/// What a broker says until we are in: who may come, that we may, open, begin, and what we send by is attached.
fn first_words() -> Vec<u8> {
    let mechanisms = [&[0, 0x53, 0x40, 0xc0, 12, 1, 0xa3, 9][..], b"ANONYMOUS"].concat();
    let open = [0, 0x53, 0x10, 0xc0, 4, 1, 0xa1, 1, b'b'];
    let begin = [
        0, 0x53, 0x11, 0xc0, 9, 4, 0x60, 0, 0, 0x43, 0x52, 100, 0x52, 100,
    ];
    [
        b"AMQP\x03\x01\x00\x00".to_vec(),
        frame(1, &mechanisms),
        frame(1, &[0, 0x53, 0x44, 0xc0, 3, 1, 0x50, 0]),
        b"AMQP\x00\x01\x00\x00".to_vec(),
        frame(0, &open),
        frame(0, &begin),
        attach(0),
    ]
    .concat()
}

/// And what a good one says then: that we may send, and what we listen by is attached.
fn good_words() -> Vec<u8> {
    let flow = [
        0, 0x53, 0x13, 0xc0, 11, 7, 0x43, 0x52, 100, 0x43, 0x52, 100, 0x43, 0x43, 0x52, 10,
    ];
    [first_words(), frame(0, &flow), attach(1)].concat()
}

fn pretended(port: u16) -> AmqpSettings {
    let answer_within = Duration::from_secs(5);
    AmqpSettings {
        answer_within,
        ..AmqpSettings::new("127.0.0.1", port, "q", "me")
    }
}

#[tokio::test]
async fn the_pretender_is_believed_as_long_as_its_words_are_good() {
    let mut amqp = Amqp::new(pretended(pretender(good_words()))).unwrap();
    let mut client = within(amqp.connect()).await.unwrap();
    let pool = Subscription {
        pattern: "a/>".to_owned(),
        is_shared: true,
    };
    within(client.subscribe(&pool)).await.unwrap();
    let trouble = within(client.next()).await.unwrap_err();
    assert_eq!(
        (trouble.message.as_str(), trouble.is_final),
        ("the broker closed the connection", false)
    );
}

#[tokio::test]
async fn who_does_not_let_us_in_is_asked_again() {
    let words = good_words();
    let outcome = words
        .windows(8)
        .position(|some| some == [0, 0x53, 0x44, 0xc0, 3, 1, 0x50, 0])
        .unwrap()
        + 7;
    let mechanism = words
        .windows(9)
        .position(|some| some == b"ANONYMOUS")
        .unwrap();
    for (at, instead, why) in [
        (outcome, 1, "user name or password is wrong"),
        (outcome, 2, "does not let us in (code 2)"),
        (outcome, 3, "does not let us in (code 3)"),
        (outcome, 4, "cannot check for now"),
        (
            mechanism,
            b'B',
            "does not let us in by ANONYMOUS, only by: BNONYMOUS",
        ),
    ] {
        let mut words = words.clone();
        words[at] = instead;
        let mut amqp = Amqp::new(pretended(pretender(words))).unwrap();
        let trouble = within(amqp.connect()).await.unwrap_err();
        assert!(
            trouble.message.contains(why) && !trouble.is_final,
            "{trouble:?}"
        );
    }
}

#[tokio::test]
async fn who_falls_silent_is_taken_for_dead() {
    let settings = pretended(pretender_who(good_words(), Then::Stays));
    let mut amqp = Amqp::new(AmqpSettings {
        keep_alive: Duration::from_millis(100),
        ..settings
    })
    .unwrap();
    let mut client = within(amqp.connect()).await.unwrap();
    let pool = Subscription {
        pattern: "a/>".to_owned(),
        is_shared: true,
    };
    within(client.subscribe(&pool)).await.unwrap();
    let trouble = within(client.next()).await.unwrap_err();
    assert!(
        trouble.message.contains("has not been heard for 1 seconds"),
        "{trouble}"
    );
}

#[tokio::test]
async fn who_lets_us_send_nothing_is_asked_for_nothing() {
    let settings = pretended(pretender_who(first_words(), Then::Stays));
    let settings = AmqpSettings {
        answer_within: Duration::from_secs(1),
        ..settings
    };
    let mut link = begin(settings, &[("a/>", true)], 1);
    let is_lost = |state: &LinkState| matches!(state, LinkState::Lost { .. });
    let state = within(link.state.wait_for(is_lost)).await.unwrap().clone();
    let LinkState::Lost { why } = state else {
        panic!("{state:?}")
    };
    assert!(
        why.ends_with("the broker lives, but has given us no credit to send for 1 seconds"),
        "{why}"
    );
}

#[tokio::test]
async fn no_bytes_of_a_broker_make_us_fall() {
    let mut runner = TestRunner::deterministic();
    let noise = proptest::collection::vec(proptest::num::u8::ANY, 0..600);
    for round in 0..300_usize {
        let mut words = good_words();
        let noise = noise.new_tree(&mut runner).unwrap().current();
        match round % 3 {
            // Something else from some point on.
            0 => words.splice(round % words.len().., noise).for_each(drop),
            // A few bytes that are others.
            1 => noise.chunks_exact(150).for_each(|some| {
                let at = usize::from(some[0]) * 3 % words.len();
                words[at] = some[1];
            }),
            // Frames behind the good ones, of a good size, with anything in them.
            _ => {
                let size = u32::try_from(noise.len() + 8).unwrap();
                words.extend([&size.to_be_bytes()[..], &[2, 0, 0, 0], &noise].concat());
            }
        }
        let mut link = begin(pretended(pretender(words)), &[("a/>", true)], 1);
        let lost = |state: &LinkState| matches!(state, LinkState::Lost { .. });
        within(link.state.wait_for(lost))
            .await
            .unwrap_or_else(|_| panic!("round {round}: it fell"));
        within(&mut link.task)
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

#[tokio::test]
async fn a_frame_of_any_size_and_depth_is_refused() {
    let large = [&u32::MAX.to_be_bytes()[..], &[2, 0, 0, 0]].concat();
    // Each byte says that the name of what follows follows.
    let names = [0; 60_000];
    let size = u32::try_from(names.len() + 8).unwrap();
    let deep = [&size.to_be_bytes()[..], &[2, 0, 0, 0], &names].concat();
    for bad in [large, deep] {
        let mut amqp = Amqp::new(pretended(pretender([good_words(), bad].concat()))).unwrap();
        let mut client = within(amqp.connect()).await.unwrap();
        let pool = Subscription {
            pattern: "a/>".to_owned(),
            is_shared: true,
        };
        within(client.subscribe(&pool)).await.unwrap();
        let trouble = within(client.next()).await.unwrap_err();
        assert!(
            trouble.message.contains("does not speak AMQP as it should"),
            "{trouble}"
        );
    }
}
