//! A broker that does not take answers for now: those of agents whose queue is full, or who are not there.

use super::{
    super::service::{MAX_DELAY, MAX_DELAYED},
    *,
};
use tokio::time::Instant;

fn given_up(world: &World) -> usize {
    world.count(|event| matches!(event, WorkerEvent::PublishFailed { .. }))
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_sent_again_as_long_as_its_asker_waits_and_nothing_is_settled_before_it_is_there()
 {
    let world = World::usual().await;
    world.broker.full(&reply_topic("a"), true);
    world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
    sleep(Duration::from_secs(290)).await;
    assert!(
        (30..50).contains(&world.broker.offered()),
        "{}",
        world.broker.offered()
    );
    assert_eq!((world.answers("a").len(), world.broker.settled()), (0, 0));
    world.broker.full(&reply_topic("a"), false);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.answer("a")["result"]["tool_result"]["text"], "a");
    assert_eq!(
        (
            world.broker.settled(),
            world.broker.unsettled(),
            given_up(&world)
        ),
        (1, 0, 0)
    );
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::Delayed { .. })),
        1,
        "it is told once"
    );
    assert_eq!(
        world.count(|event| matches!(
            event,
            WorkerEvent::Answered {
                how: AnswerStatus::Success { .. },
                ..
            }
        )),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_waits_for_any_more_is_given_up_and_that_is_told() {
    let world = World::usual().await;
    world.broker.full(&reply_topic("a"), true);
    world.invoke_with("echo", "a", json!({"timeout_seconds": 30}));
    sleep(Duration::from_secs(30)).await;
    assert_eq!((world.broker.settled(), given_up(&world)), (0, 0));
    sleep(Duration::from_secs(11)).await;
    assert_eq!(
        (
            world.answers("a").len(),
            world.broker.settled(),
            given_up(&world)
        ),
        (0, 1, 1)
    );
    assert_eq!(
        world.count(|event| matches!(
            event,
            WorkerEvent::Answered {
                how: AnswerStatus::Error(_),
                ..
            }
        )),
        1
    );
    let offered = world.broker.offered();
    sleep(LONG).await;
    assert_eq!(world.broker.offered(), offered);
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_not_taken_hold_no_slot() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    for id in ["a", "b", "c"] {
        world.broker.full(&reply_topic(id), true);
        world.invoke("echo", id);
    }
    world.invoke("echo", "other");
    world.idle().await;
    assert_eq!(
        world.answer("other")["result"]["tool_result"]["text"],
        "other"
    );
    assert_eq!(
        (world.calls.begun().len(), world.broker.unsettled()),
        (4, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn too_many_answers_that_are_not_taken_wait_for_a_short_while_and_then_make_room() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    let ids: Vec<_> = (0..MAX_DELAYED + 2)
        .map(|number| format!("n{number}"))
        .collect();
    for id in &ids {
        world.broker.full(&reply_topic(id), true);
        world.invoke_with("echo", id, json!({"timeout_seconds": 300}));
    }
    world.invoke("echo", "other");
    sleep(Duration::from_secs(7)).await;
    assert_eq!(
        (world.answers("other").len(), given_up(&world)),
        (0, 0),
        "the one beyond them has the slot"
    );
    sleep(Duration::from_secs(10)).await;
    assert_eq!((world.answers("other").len(), given_up(&world)), (1, 2));
    assert_eq!(world.broker.unsettled(), MAX_DELAYED);
    ids.iter()
        .for_each(|id| world.broker.full(&reply_topic(id), false));
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.broker.unsettled(), 0);
    assert_eq!(
        ids.iter().filter(|id| world.answers(id).len() == 1).count(),
        MAX_DELAYED
    );
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_one_whose_answer_is_not_taken_is_neither_run_nor_answered_nor_settled_before_it()
{
    let world = World::usual().await;
    world.broker.full(&reply_topic("a"), true);
    world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
    sleep(Duration::from_secs(1)).await;
    world.broker.cut();
    sleep(Duration::from_secs(4)).await;
    let held = |event: &WorkerEvent| {
        matches!(
            event,
            WorkerEvent::Duplicate {
                is_answered: false,
                ..
            }
        )
    };
    assert_eq!(world.count(held), 1, "it came again");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (
            world.broker.settled(),
            world.broker.unsettled(),
            given_up(&world)
        ),
        (0, 1, 0)
    );
    world.broker.full(&reply_topic("a"), false);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(world.answer("a")["result"]["tool_result"]["text"], "a");
    assert_eq!(
        (
            world.calls.begun().len(),
            world.broker.settled(),
            world.broker.unsettled()
        ),
        (1, 1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn of_copies_of_one_whose_answer_is_not_taken_only_the_newest_is_kept() {
    let world = World::usual().await;
    world.broker.full(&reply_topic("a"), true);
    for _ in 0..20 {
        world.invoke("echo", "a");
        world.idle().await;
    }
    assert_eq!(
        (world.broker.settled(), world.broker.unsettled()),
        (19, 1),
        "a broker sends only so many"
    );
    world.broker.full(&reply_topic("a"), false);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(
        (world.answers("a").len(), world.calls.begun().len()),
        (1, 1)
    );
    assert_eq!(world.broker.unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_asker_with_much_time_has_a_place_for_no_longer_than_others() {
    let world = World::usual().await;
    world.broker.full(&reply_topic("a"), true);
    world.invoke_with("echo", "a", json!({"timeout_seconds": 86_400}));
    sleep(MAX_DELAY - Duration::from_secs(10)).await;
    assert_eq!((world.broker.settled(), given_up(&world)), (0, 0));
    sleep(Duration::from_secs(11)).await;
    assert_eq!((world.broker.settled(), given_up(&world)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn at_the_end_answers_that_are_not_taken_are_offered_once_more_and_left_to_others() {
    for is_taken in [false, true] {
        let world = World::usual().await;
        world.broker.full(&reply_topic("a"), true);
        world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
        world.invoke_with("hang", "runs", json!({"timeout_seconds": 300}));
        sleep(Duration::from_secs(100)).await;
        world.stop.send_replace(Shutdown::Drain);
        sleep(Duration::from_secs(20)).await;
        assert!(!world.served.is_finished(), "a call goes on");
        world.broker.full(&reply_topic("a"), !is_taken);
        world.calls.let_go("runs");
        let (broker, event, began) = (world.broker.clone(), world.noted.clone(), Instant::now());
        assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(
            broker.published(&reply_topic("a")).len(),
            usize::from(is_taken)
        );
        assert_eq!(
            broker.has_for(&reply_topic("a")),
            !is_taken,
            "not settled, if nobody has it"
        );
        let failed = locked(&event)
            .iter()
            .filter(|one| matches!(one, WorkerEvent::PublishFailed { .. }))
            .count();
        assert_eq!(failed, usize::from(!is_taken), "which is told");
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_an_answer_whose_request_does_not_come_again_has_the_time_that_calls_have() {
    let lossy = [
        Setup {
            has_receipts: false,
            ..Setup::default()
        },
        Setup {
            redelivers: false,
            ..Setup::default()
        },
    ];
    for (setup, is_taken) in lossy
        .iter()
        .flat_map(|setup| [(setup, false), (setup, true)])
    {
        let world = World::new(setup.clone()).await;
        world.broker.full(&reply_topic("a"), true);
        world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
        sleep(Duration::from_secs(10)).await;
        world.stop.send_replace(Shutdown::Drain);
        sleep(Duration::from_secs(20)).await;
        assert!(!world.served.is_finished(), "its asker waits");
        world.broker.full(&reply_topic("a"), !is_taken);
        let (broker, began) = (world.broker.clone(), Instant::now());
        assert_eq!(
            world.ends().await,
            Ok(ShutdownReport {
                cut: usize::from(!is_taken)
            }),
            "{setup:?}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(11),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(
            broker.published(&reply_topic("a")).len(),
            usize::from(is_taken)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn at_the_end_an_answer_that_was_not_taken_is_not_waited_for_long_though_the_broker_is_away()
{
    for (has_receipts, cut, limit) in [(true, 0, 15), (false, 1, 36)] {
        let world = World::new(Setup {
            has_receipts,
            ..Setup::default()
        })
        .await;
        world.broker.full(&reply_topic("a"), true);
        world.invoke_with("echo", "a", json!({"timeout_seconds": 300}));
        sleep(Duration::from_secs(10)).await;
        world.broker.down(true);
        world.stop.send_replace(Shutdown::Drain);
        let (broker, began) = (world.broker.clone(), Instant::now());
        assert_eq!(
            world.ends().await,
            Ok(ShutdownReport { cut }),
            "the call was let finish, and comes again or is lost"
        );
        assert!(
            began.elapsed() < Duration::from_secs(limit),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(broker.has_for(&reply_topic("a")), has_receipts);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_run_is_answered_once_so_that_others_need_not_wait_for_it() {
    let world = World::usual().await;
    world.broker.full(&reply_topic("bad"), true);
    let reply = Properties::from([("replyTo".to_owned(), reply_topic("bad"))]);
    let count = 5000;
    for _ in 0..count {
        world.broker.deliver_bytes(
            &topic("invoke/echo"),
            Bytes::from_static(b"{"),
            reply.clone(),
        );
    }
    world.invoke("nobody", "stray");
    world.invoke("echo", "other");
    world.idle().await;
    assert_eq!(
        world.answer("other")["result"]["tool_result"]["text"],
        "other"
    );
    assert_eq!(
        (world.broker.offered(), given_up(&world)),
        (count, count),
        "each is told"
    );
    assert_eq!(
        world.broker.settled(),
        count + 1,
        "and settled: nobody could have had more of it"
    );
}
