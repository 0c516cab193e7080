//! Claims about webhook notices.

use super::*;
use crate::jobs::{JobRoom, NewJob};
use std::path::PathBuf;

struct Ground(PathBuf, Served);

const ROOM: JobRoom = JobRoom {
    queued: 1 << 20,
    queued_of_one: 1 << 20,
    jobs: None,
    bytes: 1 << 30,
    bytes_of_one: 1 << 30,
};

fn new<'a>(id: &'a str, tenant: &'a str) -> NewJob<'a> {
    NewJob {
        id,
        tenant,
        key: "key",
        name: None,
        labels: "{}",
        priority: 0,
        at_ms: 1,
        not_before_ms: None,
        keep_ms: 1,
        most_attempts: 1,
        retry_on: "",
        pause_ms: 0,
        rerun: false,
        after: &[],
        webhook: Some("{}"),
        order: "{}",
        promise: None,
    }
}

impl Ground {
    fn new(name: &str) -> Ground {
        let path =
            std::env::temp_dir().join(format!("airlock-webhooks-{name}-{}", std::process::id()));
        let served = Served::open(&path).unwrap();
        Ground(path, served)
    }

    fn enqueue(&self, id: &str, job: &str, tenant: &str, at_ms: u64) {
        let notice = NewNotice {
            id,
            job,
            tenant,
            url: "https://x",
            event: "final",
            at_ms,
            body: "{}",
        };
        if self.1.job(job).unwrap().is_none() {
            self.1
                .together(|writing| writing.add_job(&new(job, tenant), &ROOM))
                .unwrap();
        }
        self.1
            .together(|writing| enqueue(writing, &notice))
            .unwrap();
    }

    fn count(&self, which: &str) -> i64 {
        let count = format!("SELECT count(*) FROM webhook_notice WHERE {which}");
        self.1
            .reading
            .read(|connection| connection.query_row(&count, [], |row| row.get(0)))
            .unwrap()
    }

    fn settle(&self, notice: &Notice, settled: Settled) {
        self.1
            .together(|writing| settle(writing, notice, &settled))
            .unwrap();
    }

    fn due(&self, now_ms: u64, of_one: u32) -> Vec<Notice> {
        self.looked(now_ms, &mut Round::default(), (100, of_one))
    }

    /// Limits: in all, and per tenant.
    fn looked(&self, now_ms: u64, round: &mut Round, (most, of_one): (usize, u32)) -> Vec<Notice> {
        let mut taken: HashMap<String, u32> = HashMap::new();
        let choose = |waiting: Waiting<'_>| {
            let count = taken.entry(waiting.tenant.to_owned()).or_default();
            *count += 1;
            if *count > of_one {
                Choice::NoRoom
            } else {
                Choice::Taken
            }
        };
        self.1.due_notices(now_ms, round, most, choose).unwrap()
    }

    /// The progress in a job's row.
    fn progress(&self, job: &str) -> Option<Progress> {
        let all = "SELECT json_group_array(json_array(state, attempts, problem)) FROM (
            SELECT state, attempts, problem FROM webhook_notice WHERE job = ? ORDER BY n)";
        let read = |connection: &rusqlite::Connection| {
            connection.query_row(all, [job], |row| row.get::<_, String>(0))
        };
        Progress::read(&self.1.reading.read(read).unwrap())
    }

    fn ids(&self, now_ms: u64, of_one: u32) -> Vec<String> {
        self.due(now_ms, of_one)
            .into_iter()
            .map(|notice| notice.id)
            .collect()
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
    for (id, job, tenant) in [
        ("1", "a", "t"),
        ("2", "a", "t"),
        ("3", "b", "t"),
        ("4", "c", "u"),
        ("5", "d", "t"),
    ] {
        ground.enqueue(id, job, tenant, 10);
    }
    assert_eq!(ground.ids(9, 8), [""; 0], "not yet");
    assert_eq!(ground.ids(10, 8), ["1", "3", "5", "4"]);
    assert_eq!(ground.ids(10, 1), ["1", "4"], "a share of each");
    let not_a = |waiting: Waiting<'_>| {
        if waiting.job == "a" {
            Choice::PassedOver
        } else {
            Choice::Taken
        }
    };
    let free = ground
        .1
        .due_notices(10, &mut Round::default(), 100, not_a)
        .unwrap();
    assert_eq!(
        free.iter()
            .map(|notice| notice.id.as_str())
            .collect::<Vec<_>>(),
        ["3", "5", "4"]
    );
    let behind = |last: &str, most| {
        let mut round = Round {
            last: last.to_owned(),
            ..Round::default()
        };
        let found = ground.looked(10, &mut round, (most, 8));
        found
            .into_iter()
            .map(|notice| notice.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        behind("t", 100),
        ["4", "1", "3", "5"],
        "whoever comes behind the last one has the next turn"
    );
    assert_eq!(behind("u", 2), ["1", "3"]);
    assert_eq!(behind("zz", 100), ["1", "3", "5", "4"]);
    let first = &ground.due(10, 8)[0];
    ground.settle(
        first,
        Settled::PutOff {
            due_ms: 50,
            problem: "down".into(),
        },
    );
    assert_eq!(
        ground.ids(49, 8),
        ["3", "5", "4"],
        "the second waits for the first"
    );
    ground.enqueue("6", "a", "t", 20);
    assert_eq!(
        ground.ids(49, 8),
        ["3", "5", "4"],
        "and so does one that comes later"
    );
    ground.settle(&ground.due(50, 8)[2].clone(), Settled::Delivered);
    assert!(ground.ids(50, 8).contains(&"2".to_owned()));
}

#[test]
fn however_many_are_passed_over_those_behind_them_have_their_turn() {
    let ground = Ground::new("behind");
    let dead = |number: usize| format!("dead{number}");
    (0..600).for_each(|number| ground.enqueue(&dead(number), &dead(number), "t", 10));
    ground.enqueue("good", "good", "t", 10);
    let mut round = Round::default();
    let mut look = |now_ms| {
        let mut seen = Vec::new();
        let choose = |waiting: Waiting<'_>| {
            seen.push(waiting.job.to_owned());
            if waiting.job.starts_with("good") {
                Choice::Taken
            } else {
                Choice::PassedOver
            }
        };
        let found = ground
            .1
            .due_notices(now_ms, &mut round, 100, choose)
            .unwrap();
        (
            seen[0].clone(),
            found
                .into_iter()
                .map(|notice| notice.id)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        [look(10), look(10)],
        [(dead(0), vec![]), (dead(256), vec![])]
    );
    ground.enqueue("good2", "good2", "t", 20);
    assert_eq!(
        look(20),
        (dead(512), vec!["good".to_owned()]),
        "those that were due when it began"
    );
    assert_eq!(look(20).0, dead(0), "then from the beginning");
    assert_eq!(
        [look(20).1, look(20).1],
        [vec![], vec!["good".to_owned(), "good2".to_owned()]]
    );
}

#[test]
fn a_job_says_how_far_its_notices_are() {
    let ground = Ground::new("progress");
    assert_eq!(ground.progress("a"), None);
    ground.enqueue("1", "a", "t", 1);
    ground.enqueue("2", "a", "t", 1);
    let of = |state: &str, attempts, problem: Option<&str>| {
        Some(Progress {
            state: state.into(),
            attempts,
            problem: problem.map(str::to_owned),
        })
    };
    assert_eq!(ground.progress("a"), of("waiting", 0, None));
    let first = ground.due(1, 1)[0].clone();
    ground.settle(
        &first,
        Settled::PutOff {
            due_ms: 2,
            problem: "down".into(),
        },
    );
    assert_eq!(ground.progress("a"), of("waiting", 1, Some("down")));
    ground.settle(&first, Settled::Delivered);
    assert_eq!(ground.progress("a"), of("waiting", 2, None));
    let second = ground.due(2, 1)[0].clone();
    ground.settle(&second, Settled::GivenUp("gone".into()));
    assert_eq!(ground.progress("a"), of("given_up", 3, Some("gone")));
    ground.settle(&second, Settled::Delivered);
    assert_eq!(
        ground.progress("a"),
        of("given_up", 3, Some("gone")),
        "what is settled stays so"
    );
    assert_eq!(ground.1.together(|writing| forget(writing, 2)).unwrap(), 2);
}

#[test]
fn a_tenants_secret_has_a_first_generation_and_each_turn_is_another() {
    let ground = Ground::new("rotation");
    assert_eq!(
        ground.1.webhook_generation("t").unwrap(),
        Generation {
            number: 1,
            since_ms: 0
        }
    );
    let rotate = |tenant: &str, now| {
        ground
            .1
            .together(|writing| rotate(writing, tenant, now))
            .unwrap()
    };
    assert_eq!(
        rotate("t", 7),
        Generation {
            number: 2,
            since_ms: 7
        }
    );
    assert_eq!(
        rotate("t", 8),
        Generation {
            number: 3,
            since_ms: 8
        }
    );
    assert_eq!(
        ground.1.webhook_generation("t").unwrap(),
        Generation {
            number: 3,
            since_ms: 8
        }
    );
    assert_eq!(
        ground.1.webhook_generation("u").unwrap().number,
        1,
        "nobody else's"
    );
}

#[test]
fn of_too_many_notices_the_oldest_is_given_up_by_name() {
    let ground = Ground::new("bound");
    for number in 0..100 {
        ground.enqueue(&number.to_string(), "a", "t", 1);
    }
    assert_eq!(ground.count("state = 'waiting'"), i64::from(MOST_OF_JOB));
    assert_eq!(ground.count("1"), i64::from(MOST_REMEMBERED));
    assert_eq!(ground.ids(1, 1), ["84"], "the newest are told");
    assert_eq!(
        ground.count(
            "state = 'given_up' AND body = '' AND problem LIKE 'more than 16 notices of this job%'"
        ),
        16
    );
    let told = ground.1.job("a").unwrap().unwrap().told.unwrap();
    assert_eq!(told.state, "waiting");
    let many = |writing: &Writing<'_>| {
        for number in 0..MOST_OF_TENANT + 3 {
            let (id, job) = (format!("u{number}"), format!("j{number}"));
            let notice = NewNotice {
                id: &id,
                job: &job,
                tenant: "u",
                url: "",
                event: "final",
                at_ms: 1,
                body: "x",
            };
            enqueue(writing, &notice)?;
        }
        Ok::<_, DatabaseError>(())
    };
    ground.1.together(many).unwrap();
    assert_eq!(
        ground.count("tenant = 'u' AND state = 'waiting'"),
        i64::from(MOST_OF_TENANT)
    );
    assert_eq!(
        ground.count("tenant = 'u' AND problem LIKE 'more than 10000 notices of this tenant%'"),
        3
    );
    let large = "x".repeat(1 << 20);
    for number in 0..300 {
        let (id, job) = (format!("v{number}"), format!("k{number}"));
        let notice = NewNotice {
            id: &id,
            job: &job,
            tenant: "v",
            url: "",
            event: "final",
            at_ms: 1,
            body: &large,
        };
        ground
            .1
            .together(|writing| enqueue(writing, &notice))
            .unwrap();
    }
    assert_eq!(
        ground.count("tenant = 'v' AND state = 'waiting'"),
        256,
        "by bytes, too"
    );
}

#[test]
fn what_was_told_of_a_job_goes_with_it_and_what_waits_is_still_told() {
    let ground = Ground::new("orphans");
    ["1", "2", "3"]
        .iter()
        .for_each(|id| ground.enqueue(id, "a", "t", 1));
    ground.settle(&ground.due(1, 1)[0].clone(), Settled::Delivered);
    ground
        .1
        .together(|writing| writing.cancel_job("a", 1))
        .unwrap();
    assert_eq!(ground.1.prune_jobs(10, 100, u64::MAX).unwrap(), 1);
    assert_eq!(
        (ground.count("1"), ground.ids(1, 1)),
        (2, vec!["2".to_owned()])
    );
    let [second, third] = [1, 2].map(|_| ground.due(1, 1)[0].clone());
    assert_eq!(second, third);
    ground.settle(&second, Settled::GivenUp("gone".into()));
    assert_eq!(
        (ground.count("1"), ground.ids(1, 1)),
        (1, vec!["3".to_owned()])
    );
    ground.settle(&ground.due(1, 1)[0].clone(), Settled::Delivered);
    assert_eq!(
        (
            ground.count("1"),
            ground
                .1
                .reading
                .read(|connection| connection.query_row(
                    "SELECT count(*) FROM webhook_tenant",
                    [],
                    |row| row.get::<_, i64>(0)
                ))
                .unwrap()
        ),
        (0, 0)
    );
}

#[test]
fn how_far_notices_are_is_found_by_an_index() {
    let ground = Ground::new("index");
    let plan = |query: &str| {
        let explain = format!("EXPLAIN QUERY PLAN {query}");
        let rows = ground.1.reading.read(|connection| {
            let mut rows = connection.prepare(&explain)?;
            rows.query_map(["x"], |row| row.get::<_, String>(3))?
                .collect::<Result<Vec<_>, _>>()
        });
        rows.unwrap().join("; ")
    };
    let told = plan("SELECT state, attempts, problem FROM webhook_notice WHERE job = ? ORDER BY n");
    assert!(
        told.contains("webhook_notice_job (job=?)") && !told.contains("TEMP B-TREE"),
        "{told}"
    );
    let oldest = plan(
        "SELECT n, job FROM webhook_notice WHERE state = 'waiting' AND tenant = ? ORDER BY n LIMIT 1",
    );
    assert!(
        oldest.contains("webhook_notice_oldest") && !oldest.contains("TEMP B-TREE"),
        "{oldest}"
    );
    let naive = plan("SELECT n FROM webhook_notice WHERE url = ? ORDER BY at_ms");
    assert!(naive.contains("SCAN"), "the positive control: {naive}");
}
