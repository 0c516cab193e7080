//! Brokers that go away, workers that are killed: nothing is lost that is kept somewhere, and nothing is done twice at once.

use rustix::process::Signal;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};
use worker_tests::{
    Agent, Ask, Folder, Mesh, Mosquitto, Persistence, Sam, Tools, Way, count, marks, until,
    variables,
};

#[test]
fn a_worker_without_its_broker_is_not_ready_and_not_dead_and_serves_again_after() {
    let mut mesh = Mesh::new("Tester", |_| ());
    mesh.agent.settle();
    mesh.broker.kill();
    until("it is not ready", || {
        mesh.sam
            .get("/readyz")
            .is_some_and(|(status, _)| status == 503)
            .then_some(())
    });
    assert!(mesh.sam.get("/healthz").is_some(), "it lives");
    mesh.broker.start_again();
    mesh.sam.await_ready();
    // The agent comes back in its own time; what it sends meanwhile waits for that.
    assert_eq!(
        mesh.agent
            .call(&Ask::new("echo", json!({"text": "again"})))
            .tool_result()["text"],
        "again"
    );
}

#[test]
fn an_answer_that_is_ready_while_the_broker_is_away_is_sent_after() {
    let folder = Folder::new();
    let mut broker = Mosquitto::with(&folder, Persistence::Full, "allow_anonymous true\n");
    Tools::usual(&folder);
    let agent = Agent::join(&Way::mqtt5(broker.port), "Tester");
    let mut environment = variables(&folder, &broker.url());
    environment.insert("SAM_POOL".to_owned(), "session".to_owned());
    let _sam = Sam::start(&folder, environment);
    agent.wait("init", "echo");
    agent.wait("init", "marked");
    let asks: Vec<_> = (0..count(20, 4))
        .map(|n| {
            Ask::new("marked", json!({"mark": format!("away-{n}"), "seconds": 1})).timeout(120)
        })
        .collect();
    asks.iter().for_each(|ask| agent.send(ask));
    agent.wait("status", &asks[0].id);
    broker.kill();
    until("it is done meanwhile", || {
        (marks("away-0") == 0).then_some(())
    });
    broker.start_again();
    for ask in &asks {
        agent.answer(ask).result();
    }
    agent.settle();
    for ask in &asks {
        let answers = agent.all("response", &ask.id);
        // What was not confirmed is sent again, so two are possible; two that differ are not.
        assert!(
            answers
                .iter()
                .all(|answer| answer.body() == answers[0].body()),
            "{answers:?}"
        );
    }
}

#[test]
fn a_worker_whose_tries_are_spent_says_so_and_ends() {
    let mut mesh = Mesh::new("Tester", |set| {
        set.insert("SOLACE_RECONNECT_RETRIES".to_owned(), "3".to_owned());
        set.insert("SOLACE_RECONNECT_DELAY_MS".to_owned(), "50".to_owned());
    });
    mesh.agent.settle();
    mesh.broker.kill();
    let end = mesh.sam.await_end();
    assert_eq!(end.code(), Some(1), "{}", mesh.sam.log());
    mesh.sam.await_log(&mesh.broker.port.to_string());
}

/// Looks at all processes until it is told not to, for marks that two have at once.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<String>>>,
    looks: Arc<AtomicUsize>,
}

impl Watch {
    fn of(prefix: &'static str) -> Watch {
        let (is_over, looks) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (over, count) = (is_over.clone(), looks.clone());
        let thread = std::thread::spawn(move || {
            let mut twice = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let names = names(prefix);
                count.fetch_add(names.len(), Ordering::Relaxed);
                let doubled = names.into_iter().filter(|(_, count)| *count > 1);
                twice.extend(doubled.map(|(name, count)| format!("{name}: {count}")));
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            twice
        });
        Watch {
            is_over,
            thread: Some(thread),
            looks,
        }
    }

    /// Those that were seen twice at once; panics if it saw nothing at all.
    fn end(mut self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        assert!(
            self.looks.load(Ordering::Relaxed) > 0,
            "it saw tools at work"
        );
        self.thread
            .take()
            .expect("it runs")
            .join()
            .expect("it ends")
    }
}

fn names(prefix: &str) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")
        .expect("it is mounted")
        .filter_map(Result::ok)
    {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with(prefix) {
            *all.entry(name.trim_end().to_owned()).or_default() += 1;
        }
    }
    all
}

#[test]
fn what_a_killed_worker_had_begun_is_done_by_the_next_and_never_twice_at_once() {
    let mut mesh = Mesh::new("Tester", |set| {
        set.insert("SAM_POOL".to_owned(), "session".to_owned());
    });
    let watch = Watch::of("kept-");
    let asks: Vec<_> = (0..count(60, 12))
        .map(|n| {
            Ask::new(
                "marked",
                json!({"mark": format!("kept-{n}"), "seconds": 0.5}),
            )
            .timeout(300)
        })
        .collect();
    asks.iter().for_each(|ask| mesh.agent.send(ask));
    for at in [0, asks.len() / 2] {
        mesh.agent.wait("status", &asks[at].id);
        mesh.sam.kill();
        until("its boxes are gone with it", || {
            names("kept-").is_empty().then_some(())
        });
        mesh.sam.start_again();
    }
    for (n, ask) in asks.iter().enumerate() {
        assert_eq!(
            mesh.agent.answer(ask).tool_result()["mark"],
            format!("kept-{n}")
        );
    }
    assert_eq!(watch.end(), [""; 0]);
}

#[test]
fn what_is_asked_while_a_worker_ends_and_while_none_is_there_is_done_by_the_next() {
    for version in ["5", "3"] {
        let mut mesh = Mesh::new("Tester", |set| {
            set.insert("SAM_POOL".to_owned(), "session".to_owned());
            set.insert("SAM_MQTT_VERSION".to_owned(), version.to_owned());
        });
        let runs = Ask::new("marked", json!({"mark": "ends", "seconds": 3})).timeout(300);
        mesh.agent.send(&runs);
        mesh.agent.wait("status", &runs.id);
        mesh.sam.signal(Signal::TERM);
        mesh.sam.await_log("draining");
        let [meanwhile, after] =
            ["meanwhile", "after"].map(|text| Ask::new("echo", json!({"text": text})).timeout(300));
        mesh.agent.send(&meanwhile);
        assert_eq!(mesh.agent.answer(&runs).tool_result()["mark"], "ends");
        assert!(mesh.sam.await_end().success(), "{}", mesh.sam.log());
        mesh.agent.send(&after);
        assert_eq!(
            mesh.agent.all("response", &meanwhile.id).len(),
            0,
            "it is for the next"
        );
        mesh.sam.start_again();
        assert_eq!(
            mesh.agent.answer(&meanwhile).tool_result()["text"],
            "meanwhile"
        );
        assert_eq!(mesh.agent.answer(&after).tool_result()["text"], "after");
    }
}

#[test]
fn a_killed_worker_leaves_nothing_after_the_next_has_started() {
    let mut mesh = Mesh::new("Tester", |set| {
        set.insert("SAM_WARM".to_owned(), "0".to_owned());
    });
    let runs = || {
        fs::read_dir(mesh.folder.at("state/runs"))
            .expect("it is there")
            .count()
    };
    let asks: Vec<_> = (0..4)
        .map(|n| {
            Ask::new(
                "marked",
                json!({"mark": format!("left-{n}"), "seconds": 30}),
            )
        })
        .collect();
    asks.iter().for_each(|ask| mesh.agent.send(ask));
    for ask in &asks {
        mesh.agent.wait("status", &ask.id);
    }
    assert!(runs() >= asks.len(), "each has a place");
    mesh.sam.kill();
    until("its boxes are gone with it", || {
        names("left-").is_empty().then_some(())
    });
    assert!(runs() > 0, "there is something left");
    mesh.sam.start_again();
    // Whoever was killed takes nothing more from those that serve.
    for _ in 0..4 {
        mesh.agent.settle();
    }
    until("its places are gone", || (runs() == 0).then_some(()));
}
