//! Whatever happens in whatever order: each request is answered, or it is told that the broker did not take its answer; each is
//! run at most once, and nothing is left unsettled.

use super::*;
use proptest::{prelude::*, test_runner::TestRunner};

#[derive(Clone, Debug)]
enum Step {
    Invoke(u8),
    Cancel(u8),
    LetGo(u8),
    Cut,
    Down(bool),
    Silent(bool),
    Full(u8, bool),
    Wait(u16),
    Reload(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..12_u8;
    let step = prop_oneof![
        6 => id.clone().prop_map(Step::Invoke),
        2 => id.clone().prop_map(Step::Cancel),
        4 => id.clone().prop_map(Step::LetGo),
        1 => (id, any::<bool>()).prop_map(|(number, is_full)| Step::Full(number, is_full)),
        1 => Just(Step::Cut),
        1 => any::<bool>().prop_map(Step::Down),
        1 => any::<bool>().prop_map(Step::Silent),
        4 => (0..5000_u16).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Reload),
    ];
    prop::collection::vec(step, 1..60)
}

/// Few of the ids are of tools that do not wait to be let go.
fn tool_of(number: u8) -> &'static str {
    match number {
        0 => "echo",
        1 => "panic",
        2 => "large",
        3 => "chat",
        _ => "hang",
    }
}

const TOOLS: [&str; 5] = ["echo", "panic", "large", "chat", "hang"];

/// Does all that, and tells who was asked for.
async fn take(world: &World, steps: Vec<Step>) -> BTreeSet<u8> {
    let mut asked = BTreeSet::new();
    for step in steps {
        match step {
            Step::Invoke(number) => {
                asked.insert(number);
                world.invoke(tool_of(number), &number.to_string());
            }
            Step::Cancel(number) => world.cancel(&number.to_string()),
            Step::LetGo(number) => world.calls.let_go(&number.to_string()),
            Step::Cut => world.broker.cut(),
            Step::Down(is_down) => world.broker.down(is_down),
            Step::Silent(is_silent) => world.broker.silent(is_silent),
            Step::Full(number, is_full) => world
                .broker
                .full(&reply_topic(&number.to_string()), is_full),
            Step::Wait(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
            Step::Reload(has_all) => {
                world
                    .catalog
                    .send_replace(catalog(if has_all { &TOOLS } else { &TOOLS[..4] }));
            }
        }
    }
    asked
}

fn was_not_taken(event: &Mutex<Vec<WorkerEvent>>, id: &str) -> bool {
    let is_it = |event: &WorkerEvent| matches!(event, WorkerEvent::PublishFailed { topic, .. } if *topic == reply_topic(id));
    locked(event).iter().any(is_it)
}

async fn walk(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let world = World::new(Setup {
        tools: TOOLS.to_vec(),
        ..Setup::default()
    })
    .await;
    let asked = take(&world, steps).await;
    world.broker.down(false);
    world.broker.silent(false);
    world.catalog.send_replace(catalog(&TOOLS));
    (0..12_u8).for_each(|number| world.calls.let_go(&number.to_string()));
    sleep(Duration::from_secs(200)).await;
    prop_assert_eq!(world.broker.unsettled(), 0);
    prop_assert!(world.calls.running().1 <= 2);
    let begun = world.calls.begun();
    for number in &asked {
        let id = number.to_string();
        let answers = world.answers(&id);
        prop_assert!(
            !answers.is_empty() || was_not_taken(&world.noted, &id),
            "{} has no answer",
            id
        );
        prop_assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{:?}",
            answers
        );
        prop_assert!(
            begun.iter().filter(|other| **other == id).count() <= 1,
            "{} ran twice",
            id
        );
    }
    world.stop.send_replace(Shutdown::Drain);
    prop_assert_eq!(world.ends().await, Ok(ShutdownReport { cut: 0 }));
    Ok(())
}

/// It is told to end in the midst of it, once or twice.
async fn walk_and_end(steps: Vec<Step>, setup: Setup, is_hasty: bool) -> Result<(), TestCaseError> {
    let world = World::new(Setup {
        tools: TOOLS.to_vec(),
        ..setup
    })
    .await;
    let asked = take(&world, steps).await;
    world.stop.send_replace(Shutdown::Drain);
    world.idle().await;
    if is_hasty {
        world.stop.send_replace(Shutdown::Now);
    }
    let (broker, calls, event) = (
        world.broker.clone(),
        world.calls.clone(),
        world.noted.clone(),
    );
    let began = tokio::time::Instant::now();
    let ended = world.ends().await;
    prop_assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    prop_assert_eq!((calls.running().0, calls.is_closed()), (0, true));
    let is_whole = ended == Ok(ShutdownReport { cut: 0 });
    for number in asked {
        let id = number.to_string();
        let reply_to = reply_topic(&id);
        let is_known = !broker.published(&reply_to).is_empty()
            || broker.has_for(&reply_to)
            || was_not_taken(&event, &id);
        prop_assert!(
            is_known || !is_whole,
            "{} was lost, and nobody says so: {:?}",
            number,
            ended
        );
    }
    Ok(())
}

fn check<S: Strategy>(strategy: S, walk: impl AsyncFn(S::Value) -> Result<(), TestCaseError>) {
    let settings = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let walked = TestRunner::new(settings).run(&strategy, |value| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime
            .map_err(|error| TestCaseError::fail(error.to_string()))?
            .block_on(walk(value))
    });
    if let Err(error) = walked {
        panic!("{error}");
    }
}

#[test]
fn one_that_is_told_to_end_loses_no_request_without_saying_so() {
    let setups = any::<[bool; 3]>().prop_map(|[has_receipts, redelivers, releases]| Setup {
        has_receipts,
        redelivers,
        releases,
        ..Setup::default()
    });
    check(
        (steps(), setups, any::<bool>()),
        async |(steps, setup, is_hasty)| walk_and_end(steps, setup, is_hasty).await,
    );
}

#[test]
fn each_request_is_answered_the_same_run_once_and_settled_whatever_happens() {
    check(steps(), walk);
}
