//! Whatever happens in whatever order: each request is answered, run at most once, and nothing is left unsettled.

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
    Wait(u16),
    Reload(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..12_u8;
    let step = prop_oneof![
        6 => id.clone().prop_map(Step::Invoke),
        2 => id.clone().prop_map(Step::Cancel),
        4 => id.prop_map(Step::LetGo),
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

async fn walk(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let tools = ["echo", "panic", "large", "chat", "hang"];
    let world = World::new(Setup { tools: tools.to_vec(), ..Setup::default() }).await;
    let mut asked: HashMap<u8, usize> = HashMap::new();
    for step in steps {
        match step {
            Step::Invoke(number) => {
                *asked.entry(number).or_default() += 1;
                world.invoke(tool_of(number), &number.to_string());
            }
            Step::Cancel(number) => world.cancel(&number.to_string()),
            Step::LetGo(number) => world.calls.let_go(&number.to_string()),
            Step::Cut => world.broker.cut(),
            Step::Down(is_down) => world.broker.down(is_down),
            Step::Silent(is_silent) => world.broker.silent(is_silent),
            Step::Wait(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
            Step::Reload(has_all) => {
                world.catalog.send_replace(catalog(if has_all { &tools } else { &tools[..4] }));
            }
        }
    }
    world.broker.down(false);
    world.broker.silent(false);
    world.catalog.send_replace(catalog(&tools));
    (0..12_u8).for_each(|number| world.calls.let_go(&number.to_string()));
    sleep(Duration::from_secs(200)).await;
    prop_assert_eq!(world.broker.unsettled(), 0);
    prop_assert!(world.calls.running().1 <= 2);
    let begun = world.calls.begun();
    for number in asked.keys() {
        let id = number.to_string();
        let answers = world.answers(&id);
        prop_assert!(!answers.is_empty(), "{} has no answer", id);
        prop_assert!(answers.iter().all(|answer| *answer == answers[0]), "{:?}", answers);
        prop_assert!(begun.iter().filter(|other| **other == id).count() <= 1, "{} ran twice", id);
    }
    world.stop.send_replace(Stop::Drain);
    prop_assert_eq!(world.ends().await, Ok(Ended { cut: 0 }));
    Ok(())
}

#[test]
fn each_request_is_answered_the_same_run_once_and_settled_whatever_happens() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let walked = runner.run(&steps(), |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(walk(steps))
    });
    walked.unwrap();
}
