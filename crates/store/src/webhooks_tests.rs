//! Claims about notices on their way out.

use super::*;
use std::path::PathBuf;

struct Ground(PathBuf, Served);

impl Ground {
    fn new(name: &str) -> Ground {
        let path = std::env::temp_dir().join(format!("airlock-webhooks-{name}-{}", std::process::id()));
        let served = Served::open(&path).unwrap();
        Ground(path, served)
    }

    fn enqueue(&self, id: &str, job: &str, tenant: &str, at_ms: u64) {
        let notice = NewNotice { id, job, tenant, url: "https://x", event: "final", at_ms, body: "{}" };
        self.1.together(|writing| enqueue(writing, &notice)).unwrap();
    }

    fn settle(&self, notice: &Notice, settled: Settled) {
        self.1.together(|writing| settle(writing, notice, &settled)).unwrap();
    }

    fn due(&self, now_ms: u64, of_one: u32) -> Vec<Notice> {
        self.1.due_notices(now_ms, ("", 100), |_| of_one, |_| false).unwrap()
    }

    /// As a job's row has it.
    fn progress(&self, job: &str) -> Option<Progress> {
        let all = "SELECT json_group_array(json_array(state, attempts, problem)) FROM (
            SELECT state, attempts, problem FROM webhook_notice WHERE job = ? ORDER BY n)";
        let read = |connection: &rusqlite::Connection| {
            connection.query_row(all, [job], |row| row.get::<_, String>(0))
        };
        Progress::read(&self.1.reading.read(read).unwrap())
    }

    fn ids(&self, now_ms: u64, of_one: u32) -> Vec<String> {
        self.due(now_ms, of_one).into_iter().map(|notice| notice.id).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn notices_of_one_job_come_one_after_another_and_everybody_has_a_turn() {
    let ground = Ground::new("order");
    for (id, job, tenant) in
        [("1", "a", "t"), ("2", "a", "t"), ("3", "b", "t"), ("4", "c", "u"), ("5", "d", "t")]
    {
        ground.enqueue(id, job, tenant, 10);
    }
    assert_eq!(ground.ids(9, 8), [""; 0], "not yet");
    assert_eq!(ground.ids(10, 8), ["1", "3", "5", "4"]);
    assert_eq!(ground.ids(10, 1), ["1", "4"], "a share of each");
    let free = ground.1.due_notices(10, ("", 100), |_| 8, |job| job == "a").unwrap();
    assert_eq!(free.iter().map(|notice| notice.id.as_str()).collect::<Vec<_>>(), ["3", "5", "4"]);
    let behind = |last: &str, most| {
        let found = ground.1.due_notices(10, (last, most), |_| 8, |_| false).unwrap();
        found.into_iter().map(|notice| notice.id).collect::<Vec<_>>()
    };
    assert_eq!(behind("t", 100), ["4", "1", "3", "5"], "whoever comes behind the last one has the next turn");
    assert_eq!(behind("u", 2), ["1", "3"]);
    assert_eq!(behind("zz", 100), ["1", "3", "5", "4"]);
    let first = &ground.due(10, 8)[0];
    ground.settle(first, Settled::PutOff { due_ms: 50, problem: "down".into() });
    assert_eq!(ground.ids(49, 8), ["3", "5", "4"], "the second waits for the first");
    ground.enqueue("6", "a", "t", 20);
    assert_eq!(ground.ids(49, 8), ["3", "5", "4"], "and so does one that comes later");
    ground.settle(&ground.due(50, 8)[2].clone(), Settled::Delivered);
    assert!(ground.ids(50, 8).contains(&"2".to_owned()));
}

#[test]
fn a_job_says_how_far_its_notices_are() {
    let ground = Ground::new("progress");
    assert_eq!(ground.progress("a"), None);
    ground.enqueue("1", "a", "t", 1);
    ground.enqueue("2", "a", "t", 1);
    let of = |state: &str, attempts, problem: Option<&str>| {
        Some(Progress { state: state.into(), attempts, problem: problem.map(str::to_owned) })
    };
    assert_eq!(ground.progress("a"), of("waiting", 0, None));
    let first = ground.due(1, 1)[0].clone();
    ground.settle(&first, Settled::PutOff { due_ms: 2, problem: "down".into() });
    assert_eq!(ground.progress("a"), of("waiting", 1, Some("down")));
    ground.settle(&first, Settled::Delivered);
    assert_eq!(ground.progress("a"), of("waiting", 2, None));
    let second = ground.due(2, 1)[0].clone();
    ground.settle(&second, Settled::GivenUp("gone".into()));
    assert_eq!(ground.progress("a"), of("given_up", 3, Some("gone")));
    ground.settle(&second, Settled::Delivered);
    assert_eq!(ground.progress("a"), of("given_up", 3, Some("gone")), "what is settled stays so");
    assert_eq!(ground.1.together(|writing| forget(writing, 2)).unwrap(), 2);
}

#[test]
fn a_tenants_secret_has_a_first_generation_and_each_turn_is_another() {
    let ground = Ground::new("rotation");
    assert_eq!(ground.1.webhook_generation("t").unwrap(), Generation { number: 1, since_ms: 0 });
    let rotate = |tenant: &str, now| ground.1.together(|writing| rotate(writing, tenant, now)).unwrap();
    assert_eq!(rotate("t", 7), Generation { number: 2, since_ms: 7 });
    assert_eq!(rotate("t", 8), Generation { number: 3, since_ms: 8 });
    assert_eq!(ground.1.webhook_generation("t").unwrap(), Generation { number: 3, since_ms: 8 });
    assert_eq!(ground.1.webhook_generation("u").unwrap().number, 1, "nobody else's");
}
