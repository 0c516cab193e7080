//! Ways to a broker: each protocol from end to end, with what it asks for; and workers that share.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use worker_tests::{
    Agent, Ask, DevBroker, Folder, Mosquitto, Persistence, Rabbit, Sam, Tools, Variables, Way,
    until, variables,
};

/// What must work over every protocol.
fn serves(agent: &Agent) {
    for tool in ["echo", "statuses", "large", "said_then_waits"] {
        agent.wait("init", tool);
    }
    let ask = Ask::new("statuses", json!({"count": 3}));
    assert_eq!(agent.call(&ask).tool_result(), &json!({"sent": 3}));
    // Two topics: not every protocol keeps their order.
    until("all statuses", || {
        (agent.statuses(&ask.id).len() == 3).then_some(())
    });
    assert_eq!(
        agent.statuses(&ask.id),
        ["status 0", "status 1", "status 2"]
    );
    let large = agent.call(&Ask::new("large", json!({"size": 2_000_000})));
    assert_eq!(
        large.tool_result()["text"].as_str().map(str::len),
        Some(2_000_000)
    );
    let running = Ask::new("said_then_waits", json!({"seconds": 50}));
    agent.send(&running);
    agent.wait("status", &running.id);
    agent.cancel(&running.id);
    assert!(agent.answer(&running).body()["error"].is_object());
    agent.publish_bytes(
        &agent.topic("invoke/echo"),
        b"not json",
        &agent.properties("bad"),
    );
    if !agent.properties("bad").is_empty() {
        assert_eq!(agent.wait("response", "bad").error().0, "INVALID_REQUEST");
    }
    agent.settle();
}

fn start(folder: &Folder, url: &str, change: impl FnOnce(&mut Variables)) -> Sam {
    Tools::usual(folder);
    let mut environment = variables(folder, url);
    change(&mut environment);
    Sam::start(folder, environment)
}

fn set(variables: &mut Variables, name: &str, value: impl ToString) {
    variables.insert(name.to_owned(), value.to_string());
}

#[test]
fn mqtt_3_serves_without_properties() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let agent = Agent::join(&Way::mqtt3(broker.port), "Tester");
    let _sam = start(&folder, &broker.url(), |variables| {
        set(variables, "SAM_MQTT_VERSION", 3)
    });
    agent.wait("init", "echo");
    serves(&agent);
}

#[test]
fn mqtt_5_serves_an_agent_of_mqtt_3() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let agent = Agent::join(&Way::mqtt3(broker.port), "Tester");
    let _sam = start(&folder, &broker.url(), |_| ());
    serves(&agent);
}

#[test]
fn the_development_broker_serves_and_is_reached_by_its_variables() {
    let folder = Folder::new();
    let broker = DevBroker::start(&folder);
    let agent = Agent::join(&Way::dev(broker.port), "Tester");
    let _sam = start(&folder, &broker.url(), |variables| {
        variables.remove("SAM_TRANSPORT");
        set(variables, "DEV_BROKER_HOST", "127.0.0.1");
        set(variables, "DEV_BROKER_PORT", broker.port);
    });
    agent.wait("init", "echo");
    serves(&agent);
}

/// The queue of RabbitMQ is one: who takes from it is alone with it.
static QUEUE: Mutex<()> = Mutex::new(());

fn amqp(folder: &Folder, rabbit: &Rabbit, change: impl FnOnce(&mut Variables)) -> Sam {
    start(folder, &rabbit.url(), |variables| {
        set(variables, "SOLACE_BROKER_USERNAME", "guest");
        set(variables, "SOLACE_BROKER_PASSWORD", "guest");
        set(variables, "SAM_AMQP_ADDRESSES", "rabbitmq");
        change(variables);
    })
}

#[test]
fn amqp_serves_from_the_queue_of_the_pool() {
    let _alone = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let (rabbit, folder) = (Rabbit::running(), Folder::new());
    let agent = Agent::join(&Way::amqp(rabbit.port), "Tester");
    let _sam = amqp(&folder, rabbit, |_| ());
    agent.wait("init", "echo");
    serves(&agent);
}

#[test]
fn what_waits_in_an_amqp_worker_that_ends_is_done_by_the_next_and_nothing_twice() {
    let _alone = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let (rabbit, folder) = (Rabbit::running(), Folder::new());
    let agent = Agent::join(&Way::amqp(rabbit.port), "Drainer");
    let mut sam = amqp(&folder, rabbit, |variables| {
        set(variables, "SANDBOX_MAX_CONCURRENT", 1)
    });
    agent.wait("init", "said_then_waits");
    let asks: Vec<_> = (0..4)
        .map(|_| Ask::new("said_then_waits", json!({"seconds": 1})))
        .collect();
    asks.iter().for_each(|ask| agent.send(ask));
    agent.wait("status", &asks[0].id);
    assert_eq!(sam.end().code(), Some(0), "{}", sam.log());
    assert_eq!(
        agent.answer(&asks[0]).tool_result()["slept"],
        1,
        "what was begun is done"
    );
    let begun = asks
        .iter()
        .filter(|ask| !agent.statuses(&ask.id).is_empty())
        .count();
    assert!(begun < asks.len(), "some waited");
    sam.start_again();
    for ask in &asks {
        assert_eq!(agent.answer(ask).tool_result()["slept"], 1);
    }
    agent.settle();
    for ask in &asks {
        until("its status", || {
            (!agent.statuses(&ask.id).is_empty()).then_some(())
        });
        assert_eq!(agent.statuses(&ask.id), ["runs"], "it ran once");
        assert_eq!(
            agent.all("response", &ask.id).len(),
            1,
            "it was answered once"
        );
    }
}

#[test]
fn the_solace_variables_choose_by_port_and_by_scheme() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let agent = Agent::join(&Way::mqtt5(broker.port), "Tester");
    let _sam = start(&folder, &broker.url(), |variables| {
        let url = variables.remove("SAM_TRANSPORT").expect("it is set");
        set(variables, "SOLACE_BROKER_URL", url);
    });
    agent.wait("init", "echo");
    agent.settle();
}

#[test]
fn a_password_is_shown_to_the_broker_and_a_wrong_one_is_said() {
    let folder = Folder::new();
    let passwords = folder.at("passwords");
    for name in ["tester", "worker"] {
        let create: &[&str] = if passwords.exists() {
            &["-b"]
        } else {
            &["-c", "-b"]
        };
        let made = Command::new("mosquitto_passwd")
            .args(create)
            .arg(&passwords)
            .args([name, "right"])
            .output();
        assert!(made.expect("mosquitto_passwd starts").status.success());
    }
    let lines = format!(
        "allow_anonymous false\npassword_file {}\n",
        passwords.display()
    );
    let broker = Mosquitto::with(&folder, Persistence::None, &lines);
    let agent = Agent::join(
        &Way::mqtt5(broker.port)
            .with("user", "tester")
            .with("password", "right"),
        "Tester",
    );
    let credentials = |variables: &mut Variables, password: &str| {
        set(variables, "SOLACE_BROKER_USERNAME", "worker");
        set(variables, "SOLACE_BROKER_PASSWORD", password);
        set(variables, "SOLACE_RECONNECT_RETRIES", 2);
    };
    let sam = start(&folder, &broker.url(), |variables| {
        credentials(variables, "right")
    });
    agent.wait("init", "echo");
    agent.settle();
    assert!(!sam.log().contains("right"), "{}", sam.log());
    drop(sam);
    let mut environment = variables(&folder, &broker.url());
    credentials(&mut environment, "mistaken-word");
    let mut sam = Sam::begin(&folder, environment);
    assert_eq!(sam.await_end().code(), Some(1), "{}", sam.log());
    assert!(!sam.log().contains("mistaken-word"), "{}", sam.log());
}

/// An authority, and certificates that it vouches for: the broker's, and a client's.
fn certificates(folder: &Folder) {
    let key = || KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::<String>::new()).expect("its terms");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "authority of a test");
    let authority_key = key();
    let signed = authority
        .self_signed(&authority_key)
        .expect("a certificate");
    let issuer = Issuer::new(authority, authority_key);
    let write = |name: &str, text: String| fs::write(folder.at(name), text).expect("a file");
    write("authority.pem", signed.pem());
    for (name, purpose) in [
        ("broker", ExtendedKeyUsagePurpose::ServerAuth),
        ("client", ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
                .expect("its terms");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        let key = key();
        let signed = params.signed_by(&key, &issuer).expect("a certificate");
        write(&format!("{name}.pem"), signed.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[test]
fn mqtts_is_spoken_with_a_certificate_to_a_broker_that_is_vouched_for() {
    let folder = Folder::new();
    certificates(&folder);
    let path = |name: &str| folder.at(name).display().to_string();
    let lines = format!(
        "allow_anonymous true\ncafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true\n",
        path("authority.pem"),
        path("broker.pem"),
        path("broker.key")
    );
    let broker = Mosquitto::with(&folder, Persistence::None, &lines);
    let way = Way::mqtt5(broker.port).with("authority", path("authority.pem"));
    let way = way
        .with("certificate", path("client.pem"))
        .with("key", path("client.key"));
    let agent = Agent::join(&way, "Tester");
    let url = broker.url().replace("mqtt:", "mqtts:");
    let sam = start(&folder, &url, |variables| {
        set(variables, "SOLACE_TRUST_STORE_PATH", path("authority.pem"));
        set(variables, "SOLACE_CLIENT_CERT_PATH", path("client.pem"));
        set(variables, "SOLACE_CLIENT_KEY_PATH", path("client.key"));
    });
    agent.wait("init", "echo");
    agent.settle();
    drop(sam);
    // The same without the authority: nobody vouches for the broker, so nobody speaks with it.
    let mut environment = variables(&folder, &url);
    set(&mut environment, "SOLACE_RECONNECT_RETRIES", 2);
    let mut sam = Sam::begin(&folder, environment);
    assert_eq!(sam.await_end().code(), Some(1), "{}", sam.log());
}

#[test]
fn two_workers_of_a_pool_share_and_every_call_is_answered_once() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let agent = Agent::join(&Way::mqtt5(broker.port), "Tester");
    let first = start(&folder, &broker.url(), |_| ());
    let mut environment = variables(&folder, &broker.url());
    set(
        &mut environment,
        "AIRLOCK_STATE",
        folder.at("state-of-another").display(),
    );
    let second = Sam::start(&folder, environment);
    agent.wait("init", "echo");
    let asks: Vec<_> = (0..12)
        .map(|n| Ask::new("echo", json!({"text": n.to_string()})))
        .collect();
    asks.iter().for_each(|ask| agent.send(ask));
    for ask in &asks {
        agent.answer(ask).result();
    }
    agent.settle();
    for ask in &asks {
        assert_eq!(agent.all("response", &ask.id).len(), 1);
    }
    let of = |sam: &Sam| {
        asks.iter()
            .filter(|ask| sam.log().contains(&ask.id))
            .count()
    };
    until("both have worked", || {
        (of(&first) > 0 && of(&second) > 0).then_some(())
    });
}

#[test]
fn workers_of_a_pool_that_are_started_anew_one_by_one_lose_nothing() {
    let folder = Folder::new();
    let broker = Mosquitto::start(&folder);
    let agent = Agent::join(&Way::mqtt5(broker.port), "Tester");
    let mut first = start(&folder, &broker.url(), |_| ());
    let mut environment = variables(&folder, &broker.url());
    set(
        &mut environment,
        "AIRLOCK_STATE",
        folder.at("state-of-another").display(),
    );
    let mut second = Sam::start(&folder, environment);
    agent.wait("init", "echo");
    // Odd while a worker is ending.
    let (is_over, endings) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Each asks again as soon as it was answered: no more than four are open, so none waits for its turn.
    let asking = || {
        let mut asked = Vec::new();
        while !is_over.load(Ordering::SeqCst) {
            let (ask, before) = (
                Ask::new("echo", json!({"text": "x"})),
                endings.load(Ordering::SeqCst),
            );
            let answer = agent.call(&ask);
            let is_calm = before % 2 == 0 && endings.load(Ordering::SeqCst) == before;
            asked.push((ask, answer, is_calm));
        }
        asked
    };
    let asked: Vec<_> = std::thread::scope(|scope| {
        let asking = [(); 4].map(|()| scope.spawn(asking));
        for sam in [&mut first, &mut second] {
            endings.fetch_add(1, Ordering::SeqCst);
            assert_eq!(sam.end().code(), Some(0), "{}", sam.log());
            endings.fetch_add(1, Ordering::SeqCst);
            sam.start_again();
        }
        is_over.store(true, Ordering::SeqCst);
        asking
            .into_iter()
            .flat_map(|one| one.join().expect("all are answered"))
            .collect()
    });
    let mut done = BTreeMap::<bool, usize>::new();
    for (_, answer, is_calm) in &asked {
        // What a worker is given while it stops to listen would come to no other, so it says that it ends.
        if !is_calm && answer.body()["error"].is_object() {
            assert_eq!(answer.error().0, "TOOL_NOT_AVAILABLE");
            continue;
        }
        assert_eq!(answer.tool_result()["text"], "x");
        *done.entry(*is_calm).or_default() += 1;
    }
    assert!(
        done.contains_key(&true) && done.contains_key(&false),
        "before, meanwhile and after: {done:?}"
    );
    agent.settle();
    for (ask, _, _) in &asked {
        assert_eq!(agent.all("response", &ask.id).len(), 1);
    }
}
