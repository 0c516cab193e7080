//! A broker that ends its connection over what it does not take: for its size, for want of permission, for a full queue.

use super::{super::announce::ANNOUNCE_INTERVAL, *};
use tokio::time::Instant;

fn failed(world: &World) -> usize {
    world.count(|event| matches!(event, WorkerEvent::PublishFailed { .. }))
}

fn ask_as(world: &World, agent: &str, tool: &str, id: &str) {
    let params = json!({"task_id": id, "tool_name": tool, "args": {}, "app_name": agent, "user_id": "u",
        "session_id": "s", "timeout_seconds": 300});
    let body =
        json!({"jsonrpc": "2.0", "id": id, "method": "sam_remote_tool/invoke", "params": params});
    let reply = Properties::from([(
        "replyTo".to_owned(),
        topic(&format!("response/{agent}/{id}")),
    )]);
    world
        .broker
        .deliver(&topic(&format!("invoke/{tool}")), &body, reply);
}

fn answers_of(world: &World, agent: &str, id: &str) -> usize {
    world
        .broker
        .published(&topic(&format!("response/{agent}/{id}")))
        .len()
}

/// A minute after an answer was too large for the broker, which takes any now, and while an agent's answers rest for 20 s.
async fn while_an_agent_rests_and_a_large_answer_may_be_tried(before: impl Fn(&World)) -> World {
    let world = World::new(Setup {
        largest: 100_000,
        ..Setup::default()
    })
    .await;
    before(&world);
    world.idle().await;
    world.broker.ends_over_larger(15_000);
    world.invoke("large", "first");
    sleep(Duration::from_secs(65)).await;
    assert_eq!(
        (world.code("first").as_str(), world.broker.cuts()),
        ("EXECUTION_ERROR", 2)
    );
    world.broker.ends_over_larger(usize::MAX);
    world.broker.ends_over(&topic("response/full/n"), true);
    ask_as(&world, "full", "echo", "n");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.broker.cuts(), 4);
    world.broker.ends_over(&topic("response/full/n"), false);
    world
}

#[tokio::test(start_paused = true)]
async fn cards_that_are_not_taken_end_few_connections_and_are_told_again_when_they_have_changed() {
    let world = World::usual().await;
    let hated = ["init/echo", "init/large"].map(topic);
    hated
        .iter()
        .for_each(|topic| world.broker.ends_over(topic, true));
    world.broker.cut();
    sleep(Duration::from_secs(60)).await;
    let after = world.broker.cuts();
    assert_eq!((after, failed(&world)), (1 + 2 + 1, 2), "each is told once");
    world.invoke("echo", "a");
    sleep(ANNOUNCE_INTERVAL - Duration::from_secs(61)).await;
    assert_eq!((world.broker.cuts(), world.answers("a").len()), (after, 1));
    sleep(ANNOUNCE_INTERVAL * 12).await;
    assert!(
        (after + 6..after + 16).contains(&world.broker.cuts()),
        "{} in an hour",
        world.broker.cuts()
    );
    let others = world.broker.published(&topic("init/hang")).len();
    assert!(others > 12, "{others}");
    world.broker.ends_over(&hated[0], false);
    let before = world.broker.published(&hated[0]).len();
    let mut changed = BTreeMap::clone(&world.catalog.borrow());
    changed.insert("echo".to_owned(), tool("echo", "shorter"));
    world.catalog.send_replace(Arc::new(changed));
    world.idle().await;
    assert_eq!(world.broker.published(&hated[0]).len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn statuses_that_are_not_taken_end_few_connections_and_the_answer_comes() {
    let world = World::usual().await;
    world.broker.ends_over(&status_topic("a"), true);
    world.invoke("chat", "a");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (
            world.answers("a").len(),
            world.broker.cuts(),
            failed(&world)
        ),
        (1, 2, 1)
    );
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::StatusesDropped { count: 39, .. })),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn answers_for_a_full_queue_wait_for_room_and_keep_nobody_else_waiting() {
    let world = World::usual().await;
    let full: Vec<_> = (0..4).map(|number| format!("n{number}")).collect();
    for id in &full {
        world
            .broker
            .ends_over(&topic(&format!("response/full/{id}")), true);
        ask_as(&world, "full", "echo", id);
    }
    ask_as(&world, "other", "echo", "with");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        (world.broker.cuts(), answers_of(&world, "other", "with")),
        (2, 1),
        "one end, and one proof"
    );
    for number in 0..10 {
        let id = format!("o{number}");
        ask_as(&world, "other", "echo", &id);
        world.idle().await;
        assert_eq!(answers_of(&world, "other", &id), 1, "at once");
    }
    assert_eq!(world.broker.unsettled(), 4);
    full.iter().for_each(|id| {
        world
            .broker
            .ends_over(&topic(&format!("response/full/{id}")), false)
    });
    sleep(Duration::from_secs(25)).await;
    for id in &full {
        let answers = world
            .broker
            .published(&topic(&format!("response/full/{id}")));
        assert_eq!(
            (answers.len(), &answers[0]["result"]["tool_result"]["text"]),
            (1, &json!(id))
        );
    }
    assert_eq!(
        (
            world.broker.cuts(),
            world.broker.unsettled(),
            failed(&world)
        ),
        (2, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn answers_of_which_the_broker_says_nothing_leave_their_slots_to_others_and_wait_as_long_as_their_askers()
 {
    for is_taken_later in [true, false] {
        let world = World::usual().await;
        let silent: Vec<_> = (0..4).map(|number| format!("n{number}")).collect();
        for id in &silent {
            world
                .broker
                .ignores(&topic(&format!("response/silent/{id}")), true);
            ask_as(&world, "silent", "echo", id);
        }
        ask_as(&world, "other", "echo", "with");
        // Two at a time keep their slots, until two connections left them unanswered.
        sleep(Duration::from_secs(135)).await;
        for number in 0..10 {
            let id = format!("o{number}");
            ask_as(&world, "other", "echo", &id);
            world.idle().await;
            assert_eq!(answers_of(&world, "other", &id), 1, "at once");
        }
        assert_eq!(
            (
                answers_of(&world, "other", "with"),
                world.broker.unsettled()
            ),
            (1, 4)
        );
        for id in silent.iter().filter(|_| is_taken_later) {
            world
                .broker
                .ignores(&topic(&format!("response/silent/{id}")), false);
        }
        sleep(Duration::from_secs(if is_taken_later { 60 } else { 360 })).await;
        let answered = silent
            .iter()
            .filter(|id| answers_of(&world, "silent", id) == 1)
            .count();
        let given_up = failed(&world);
        let expected = if is_taken_later { (4, 0, 0) } else { (0, 4, 0) };
        assert_eq!((answered, given_up, world.broker.unsettled()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_silent_for_a_while_costs_nobody_an_answer_and_only_refusals_if_it_is_so_for_long()
 {
    // Without room for its files a call is refused, and that is said once.
    for (is_full, seconds, answers, given_up) in [
        (false, 20, 1, 0),
        (true, 20, 1, 0),
        (false, 100, 1, 0),
        (true, 100, 0, 1),
    ] {
        let world = World::new(Setup {
            is_disk_full: is_full,
            ..Setup::default()
        })
        .await;
        world.broker.ignores(&topic("response/one/n"), true);
        ask_as(&world, "one", "echo", "n");
        sleep(Duration::from_secs(seconds)).await;
        world.broker.ignores(&topic("response/one/n"), false);
        sleep(Duration::from_secs(60)).await;
        let seen = (
            answers_of(&world, "one", "n"),
            failed(&world),
            world.broker.unsettled(),
        );
        assert_eq!(seen, (answers, given_up, 0), "{is_full}, {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_one_status_of_which_the_broker_says_nothing_and_not_for_each() {
    for (is_ignored, dropped) in [(false, 0), (true, 39)] {
        let world = World::usual().await;
        world.broker.ignores(&status_topic("a"), is_ignored);
        world.invoke_with("chat", "a", json!({"timeout_seconds": 300}));
        sleep(Duration::from_secs(70)).await;
        assert_eq!(
            (world.answers("a").len(), failed(&world)),
            (1, usize::from(is_ignored))
        );
        let told = |event: &WorkerEvent| matches!(event, WorkerEvent::StatusesDropped { count, .. } if *count == dropped);
        assert_eq!(world.count(told), usize::from(is_ignored));
        assert_eq!(
            world.broker.published(&status_topic("a")).len(),
            if is_ignored { 0 } else { 40 }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stays_full_is_tried_seldom_and_its_requests_are_settled_in_the_end() {
    let world = World::usual().await;
    world.broker.ends_over(&topic("response/full/n"), true);
    world.broker.ends_over(&reply_topic("bad"), true);
    ask_as(&world, "full", "echo", "n");
    let reply = Properties::from([("replyTo".to_owned(), reply_topic("bad"))]);
    world
        .broker
        .deliver_bytes(&topic("invoke/echo"), Bytes::from_static(b"{"), reply);
    sleep(Duration::from_secs(310)).await;
    assert!(
        (4..9).contains(&world.broker.cuts()),
        "{}",
        world.broker.cuts()
    );
    assert_eq!(
        (world.broker.unsettled(), answers_of(&world, "full", "n")),
        (0, 0)
    );
    let cuts = world.broker.cuts();
    ask_as(&world, "full", "echo", "after");
    sleep(Duration::from_secs(200)).await;
    assert_eq!(
        (answers_of(&world, "full", "after"), world.broker.cuts()),
        (1, cuts),
        "that one is taken"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_for_the_broker_is_replaced_and_one_for_a_full_queue_is_not() {
    for is_full in [false, true] {
        let world = World::new(Setup {
            largest: 100_000,
            ..Setup::default()
        })
        .await;
        world.broker.ends_over_larger(15_000);
        world.broker.ends_over(&reply_topic("a"), is_full);
        world.invoke_with("large", "a", json!({"timeout_seconds": 300}));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(
            (world.answers("a").len(), world.broker.cuts()),
            (usize::from(!is_full), 2 + usize::from(is_full))
        );
        world.broker.ends_over_larger(usize::MAX);
        world.broker.ends_over(&reply_topic("a"), false);
        sleep(Duration::from_secs(60)).await;
        let expected = if is_full { "none" } else { "EXECUTION_ERROR" };
        assert_eq!(
            (world.code("a").as_str(), world.broker.unsettled()),
            (expected, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_takes_is_learnt_from_one_answer_that_was_too_large_and_tried_again_seldom()
{
    let world = World::new(Setup {
        largest: 100_000,
        ..Setup::default()
    })
    .await;
    world.broker.ends_over_larger(15_000);
    for number in 0..15 {
        world.invoke("large", &format!("l{number}"));
        world.invoke("echo", &format!("e{number}"));
        sleep(Duration::from_secs(4)).await;
        assert_eq!(world.code(&format!("l{number}")), "EXECUTION_ERROR");
        assert_eq!(world.code(&format!("e{number}")), "none");
        assert_eq!(
            (world.broker.cuts(), failed(&world)),
            (2, 1),
            "the first only"
        );
    }
    sleep(Duration::from_secs(60)).await;
    world.invoke("large", "tried");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        (world.code("tried").as_str(), world.broker.cuts()),
        ("EXECUTION_ERROR", 4)
    );
    world.broker.ends_over_larger(usize::MAX);
    world.invoke("large", "unsent");
    sleep(Duration::from_secs(120)).await;
    for id in ["again", "after"] {
        world.invoke("large", id);
        world.idle().await;
        assert_eq!(world.code(id), "none");
    }
    assert_eq!(
        (world.code("unsent").as_str(), world.broker.cuts()),
        ("EXECUTION_ERROR", 4)
    );
}

#[tokio::test(start_paused = true)]
async fn many_answers_that_are_too_large_at_once_tell_no_more_than_one() {
    let agents: Vec<_> = (0..7).map(|number| format!("a{number}")).collect();
    let world = World::new(Setup {
        largest: 100_000,
        slots: 7,
        ..Setup::default()
    })
    .await;
    world.broker.ends_over_larger(15_000);
    agents
        .iter()
        .for_each(|agent| ask_as(&world, agent, "large", "l"));
    sleep(Duration::from_secs(40)).await;
    for agent in &agents {
        let answers = world
            .broker
            .published(&topic(&format!("response/{agent}/l")));
        assert_eq!(
            (answers.len(), &answers[0]["error"]["code"]),
            (1, &json!("EXECUTION_ERROR"))
        );
    }
    assert!(
        world.broker.cuts() > 7,
        "each was sent: {}",
        world.broker.cuts()
    );
    world.broker.ends_over_larger(usize::MAX);
    world.invoke("large", "unsent");
    sleep(Duration::from_secs(60)).await;
    world.invoke("large", "tried");
    world.idle().await;
    assert_eq!(
        ["unsent", "tried"].map(|id| world.code(id)),
        ["EXECUTION_ERROR", "none"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_would_be_taken_is_not_replaced_for_long_because_larger_ones_are_not() {
    let tools = vec!["large", "huge"];
    let world = World::new(Setup {
        largest: 10_000_000,
        tools,
        ..Setup::default()
    })
    .await;
    world.broker.ends_over_larger(15_000);
    world.invoke("large", "first");
    sleep(Duration::from_secs(10)).await;
    world.broker.ends_over_larger(1_000_000);
    world.invoke("large", "unsent");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        ["first", "unsent"].map(|id| world.code(id)),
        ["EXECUTION_ERROR"; 2]
    );
    world.invoke("huge", "tried");
    sleep(Duration::from_secs(10)).await;
    world.invoke("large", "smaller");
    world.invoke("huge", "as large");
    world.idle().await;
    let codes = ["tried", "smaller", "as large"].map(|id| world.code(id));
    assert_eq!(codes, ["EXECUTION_ERROR", "none", "EXECUTION_ERROR"]);
    assert_eq!(
        world.broker.cuts(),
        4,
        "two over the first, two over the one that was tried"
    );
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_that_is_to_be_tried_is_tried_when_its_agent_has_rested() {
    let world = while_an_agent_rests_and_a_large_answer_may_be_tried(|_| {}).await;
    ask_as(&world, "full", "large", "tried");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(answers_of(&world, "full", "tried"), 0, "it was not sent");
    world.invoke("large", "unsent");
    sleep(Duration::from_secs(30)).await;
    let answers = world.broker.published(&topic("response/full/tried"));
    assert_eq!((answers.len(), &answers[0]["error"]), (1, &Value::Null));
    world.invoke("large", "after");
    world.idle().await;
    assert_eq!(
        ["unsent", "after"].map(|id| world.code(id)),
        ["EXECUTION_ERROR", "none"]
    );
}

#[tokio::test(start_paused = true)]
async fn when_the_large_answer_that_is_tried_is_given_up_another_is_tried() {
    // Its answer is as large as the first: it has an id that is longer.
    let ask = |world: &World| ask_as(world, "full", "large", "copied");
    let world = while_an_agent_rests_and_a_large_answer_may_be_tried(ask).await;
    let before = failed(&world);
    ask(&world);
    world.idle().await;
    assert_eq!(
        (answers_of(&world, "full", "copied"), failed(&world)),
        (1, before + 1),
        "it is offered once"
    );
    world.invoke("large", "other");
    world.idle().await;
    assert_eq!(
        (world.code("other").as_str(), world.broker.cuts()),
        ("none", 4)
    );
}

#[tokio::test(start_paused = true)]
async fn at_the_end_an_answer_is_offered_once_more_though_its_agent_rests() {
    let cases = [true, false].map(|has_receipts| [(has_receipts, true), (has_receipts, false)]);
    for (has_receipts, is_taken) in cases.into_iter().flatten() {
        let world = World::new(Setup {
            has_receipts,
            ..Setup::default()
        })
        .await;
        world.broker.ends_over(&topic("response/full/n"), true);
        ask_as(&world, "full", "echo", "n");
        // By then it rests for longer than calls may go on.
        sleep(Duration::from_secs(175)).await;
        world.broker.ends_over(&topic("response/full/n"), !is_taken);
        world.stop.send_replace(Shutdown::Drain);
        let (broker, cuts, began) = (world.broker.clone(), world.broker.cuts(), Instant::now());
        let cut = usize::from(!is_taken && !has_receipts);
        assert_eq!(world.ends().await, Ok(ShutdownReport { cut }));
        assert!(
            began.elapsed() < Duration::from_secs(36),
            "{:?}",
            began.elapsed()
        );
        let answers = broker.published(&topic("response/full/n")).len();
        assert_eq!(
            (answers, broker.cuts()),
            (usize::from(is_taken), cuts + usize::from(!is_taken))
        );
        assert_eq!(
            broker.has_for(&topic("response/full/n")),
            has_receipts && !is_taken
        );
    }
}
