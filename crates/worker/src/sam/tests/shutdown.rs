//! How it ends.

use super::*;

#[tokio::test(start_paused = true)]
async fn calls_that_run_are_let_finish_and_those_that_wait_are_left_to_others() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "runs");
    world.invoke("hang", "waits");
    world.idle().await;
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    assert!(!world.served.is_finished());
    world.calls.let_go("runs");
    let (broker, calls) = (world.broker.clone(), world.calls.clone());
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    assert_eq!(broker.published(&reply_topic("runs")).len(), 1);
    assert_eq!(broker.published(&reply_topic("waits")), Vec::<Value>::new());
    assert_eq!(
        (broker.unsettled(), calls.is_closed()),
        (1, true),
        "it comes to somebody else"
    );
    assert_eq!(calls.begun(), ["runs"]);
}

#[tokio::test(start_paused = true)]
async fn what_others_can_have_is_not_listened_to_any_more() {
    let shared = Setup {
        redelivers: false,
        gone: vec!["gone"],
        ..Setup::default()
    };
    let queue = Setup {
        releases: true,
        gone: vec!["gone"],
        ..Setup::default()
    };
    for setup in [shared, queue] {
        let world = World::new(setup).await;
        world.invoke("hang", "runs");
        world.idle().await;
        assert_eq!(world.broker.patterns().len(), 2 + 7 * 2, "it was");
        world.stop.send_replace(Shutdown::Drain);
        world.idle().await;
        assert_eq!(world.broker.patterns(), [topic("cancel/>")]);
        world.calls.let_go("runs");
        assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_the_next_worker_can_have_is_gathered_for_it_and_touched_by_nobody() {
    let world = World::new(Setup {
        gone: vec!["gone"],
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "runs");
    world.idle().await;
    let listened = world.broker.patterns();
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    assert_eq!(
        world.broker.patterns(),
        listened,
        "whatever is not listened to is lost"
    );
    for (tool, id) in [("echo", "later"), ("gone", "stray")] {
        world.invoke(tool, id);
        world.idle().await;
    }
    world.calls.let_go("runs");
    let (broker, calls) = (world.broker.clone(), world.calls.clone());
    let began = tokio::time::Instant::now();
    // Somebody always asks for something.
    let asks = tokio::spawn(async move {
        for number in 0.. {
            world.invoke("echo", &format!("n{number}"));
            sleep(Duration::from_millis(100)).await;
            if world.served.is_finished() {
                return world.ends().await;
            }
        }
        unreachable!()
    });
    assert_eq!(asks.await.unwrap(), Ok(ShutdownReport { cut: 0 }));
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    for id in ["later", "stray", "n0"] {
        assert!(
            broker.has_for(&reply_topic(id)) && broker.published(&reply_topic(id)).is_empty(),
            "{id}"
        );
    }
    assert_eq!(
        (calls.begun(), broker.settled()),
        (vec!["runs".to_owned()], 1)
    );
    assert_eq!(broker.patterns(), listened);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_comes_again_those_that_wait_are_told_to_ask_others() {
    for setup in [
        Setup {
            slots: 1,
            has_receipts: false,
            ..Setup::default()
        },
        Setup {
            slots: 1,
            redelivers: false,
            ..Setup::default()
        },
    ] {
        let world = World::new(setup).await;
        world.invoke("hang", "runs");
        world.invoke("hang", "waits");
        world.idle().await;
        world.stop.send_replace(Shutdown::Drain);
        world.idle().await;
        assert_eq!(world.code("waits"), "TOOL_NOT_AVAILABLE");
        world.calls.let_go("runs");
        world.idle().await;
        assert_eq!(world.answers("runs").len(), 1);
        assert_eq!(world.broker.unsettled(), 0);
        assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_given_back_at_once_where_that_can_be_done() {
    let world = World::new(Setup {
        slots: 1,
        releases: true,
        ..Setup::default()
    })
    .await;
    for id in ["runs", "waits", "waits", "waits too"] {
        world.invoke("hang", id);
    }
    world.idle().await;
    assert_eq!((world.broker.unsettled(), world.broker.released()), (4, 0));
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    assert_eq!(
        (world.broker.unsettled(), world.broker.released()),
        (4, 3),
        "copies, too"
    );
    world.cancel("waits");
    world.calls.let_go("runs");
    let broker = world.broker.clone();
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    assert_eq!(
        (
            broker.unsettled(),
            broker.published(&reply_topic("runs")).len()
        ),
        (3, 1)
    );
    assert_eq!(
        broker.published(&reply_topic("waits")),
        Vec::<Value>::new(),
        "that is for others to say"
    );
}

#[tokio::test(start_paused = true)]
async fn after_the_grace_calls_are_cancelled_answered_and_counted() {
    let world = World::usual().await;
    world.invoke("hang", "a");
    world.idle().await;
    world.stop.send_replace(Shutdown::Drain);
    sleep(Duration::from_secs(29)).await;
    assert_eq!(world.answers("a").len(), 0);
    sleep(Duration::from_secs(2)).await;
    let message = world.answer("a")["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("this worker is ending"), "{message}");
    assert_eq!(world.broker.unsettled(), 0);
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 1 }));
}

#[tokio::test(start_paused = true)]
async fn a_second_wish_to_end_waits_for_nobody() {
    let world = World::new(Setup {
        tools: vec!["hang", "stuck"],
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "a");
    world.invoke("stuck", "b");
    world.idle().await;
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    world.stop.send_replace(Shutdown::Now);
    world.idle().await;
    assert_eq!(world.code("a"), "EXECUTION_ERROR");
    let (began, calls) = (tokio::time::Instant::now(), world.calls.clone());
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 2 }));
    assert!(began.elapsed() < Duration::from_secs(6));
    assert_eq!(calls.running().0, 0, "even one that does not hear is gone");
}

#[tokio::test(start_paused = true)]
async fn one_that_has_nothing_to_do_ends_at_once() {
    let world = World::usual().await;
    let began = tokio::time::Instant::now();
    world.stop.send_replace(Shutdown::Drain);
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_lost_for_good_is_a_failure_after_calls_have_ended() {
    let world = World::new(Setup {
        tries: 2,
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "a");
    world.idle().await;
    world.broker.down(true);
    sleep(Duration::from_secs(10)).await;
    assert!(!world.served.is_finished(), "a call goes on");
    world.calls.let_go("a");
    let broker = world.broker.clone();
    let why = "fake: it is down".to_owned();
    assert_eq!(world.ends().await, Err(WorkerError::Lost { why }));
    assert_eq!(broker.unsettled(), 1, "somebody else will do it");
}

#[tokio::test(start_paused = true)]
async fn while_the_broker_is_away_answers_wait_for_it() {
    let world = World::usual().await;
    world.invoke("hang", "a");
    world.idle().await;
    world.broker.down(true);
    world.idle().await;
    world.calls.let_go("a");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.answers("a").len(), 0);
    world.broker.down(false);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(world.answers("a").len(), 1);
    assert_eq!(
        (world.calls.begun(), world.broker.unsettled()),
        (vec!["a".to_owned()], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn it_ends_though_the_broker_is_away() {
    let world = World::usual().await;
    world.invoke("hang", "a");
    world.idle().await;
    world.broker.down(true);
    world.idle().await;
    world.stop.send_replace(Shutdown::Drain);
    world.calls.let_go("a");
    let began = tokio::time::Instant::now();
    assert_eq!(
        world.ends().await,
        Ok(ShutdownReport { cut: 1 }),
        "an answer that nobody has"
    );
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_to_others_and_cancelled_then_is_answered_and_comes_to_nobody() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    for id in ["runs", "waits", "stays"] {
        world.invoke("hang", id);
    }
    world.idle().await;
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    world.cancel("waits");
    world.idle().await;
    assert_eq!(world.code("waits"), "EXECUTION_ERROR");
    world.calls.let_go("runs");
    let broker = world.broker.clone();
    assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    assert_eq!(
        (broker.unsettled(), broker.has_for(&reply_topic("stays"))),
        (1, true)
    );
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_read_at_the_end_is_lost_only_where_it_does_not_come_again() {
    for has_receipts in [true, false] {
        let tools = vec!["stuck", "echo"];
        let world = World::new(Setup {
            has_receipts,
            tools,
            ..Setup::default()
        })
        .await;
        world.invoke("stuck", "runs");
        world.idle().await;
        world.stop.send_replace(Shutdown::Now);
        sleep(Duration::from_secs(4)).await;
        // All of them come in the moment of the end.
        (0..2000).for_each(|number| world.invoke("echo", &number.to_string()));
        tokio::time::advance(Duration::from_secs(2)).await;
        let ended = world.ends().await.unwrap();
        assert_eq!(ended.cut == 1, has_receipts, "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_cut_hides_no_answer_that_was_lost() {
    for has_receipts in [true, false] {
        let world = World::new(Setup {
            has_receipts,
            ..Setup::default()
        })
        .await;
        world.broker.full(&reply_topic("a"), true);
        world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
        world.invoke("hang", "runs");
        sleep(Duration::from_secs(10)).await;
        // Nothing is said of the last try.
        world.broker.full(&reply_topic("a"), false);
        world.broker.ignores(&reply_topic("a"), true);
        world.stop.send_replace(Shutdown::Now);
        let broker = world.broker.clone();
        assert_eq!(
            world.ends().await,
            Ok(ShutdownReport {
                cut: 1 + usize::from(!has_receipts)
            })
        );
        assert_eq!(broker.published(&reply_topic("runs")).len(), 1);
        assert_eq!(broker.has_for(&reply_topic("a")), has_receipts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_cut_and_whose_answer_is_lost_counts_once() {
    for is_full in [true, false] {
        let world = World::new(Setup {
            has_receipts: false,
            ..Setup::default()
        })
        .await;
        world.broker.full(&reply_topic("a"), is_full);
        world.invoke_with("late", "a", json!({"timeout_seconds": 3}));
        sleep(Duration::from_secs(1)).await;
        world.stop.send_replace(Shutdown::Now);
        let broker = world.broker.clone();
        assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 1 }));
        let answers = broker.published(&reply_topic("a"));
        assert_eq!(
            (answers.len(), broker.offered() > 0),
            (usize::from(!is_full), is_full)
        );
    }
}
