//! Claims about webhook notices.

use super::*;
use crate::jobs::{NewJob, QueueLimits};
use std::path::PathBuf;

struct TestDatabase(PathBuf, ServerDatabase);

const ROOM: QueueLimits = QueueLimits {
    queued: 1 << 20,
    queued_per_tenant: 1 << 20,
    jobs: None,
    bytes: 1 << 30,
    bytes_per_tenant: 1 << 30,
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
        max_attempts: 1,
        retry_on: "",
        pause_ms: 0,
        rerun: false,
        after: &[],
        webhook: Some("{}"),
        order: "{}",
        idempotency_key: None,
    }
}

impl TestDatabase {
    fn new(name: &str) -> TestDatabase {
        let path =
            std::env::temp_dir().join(format!("airlock-webhooks-{name}-{}", std::process::id()));
        let server_database = ServerDatabase::open(&path).unwrap();
        TestDatabase(path, server_database)
    }

    fn enqueue(&self, id: &str, job: &str, tenant: &str, at_ms: u64) {
        let notice = NewWebhookNotice {
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
                .transact(|transaction| transaction.add_job(&new(job, tenant), &ROOM))
                .unwrap();
        }
        self.1
            .transact(|transaction| enqueue(transaction, &notice))
            .unwrap();
    }

    fn count(&self, which: &str) -> i64 {
        let count = format!("SELECT count(*) FROM webhook_notice WHERE {which}");
        self.1
            .reader
            .read(|connection| connection.query_row(&count, [], |row| row.get(0)))
            .unwrap()
    }

    fn settle(&self, notice: &WebhookNotice, outcome: DeliveryOutcome) {
        self.1
            .transact(|transaction| settle(transaction, notice, &outcome))
            .unwrap();
    }

    fn due(&self, now_ms: u64, of_one: u32) -> Vec<WebhookNotice> {
        self.looked(now_ms, &mut DeliveryRound::default(), (100, of_one))
    }

    /// Limits: in all, and per tenant.
    fn looked(
        &self,
        now_ms: u64,
        round: &mut DeliveryRound,
        (most, of_one): (usize, u32),
    ) -> Vec<WebhookNotice> {
        let mut taken: HashMap<String, u32> = HashMap::new();
        let choose = |waiting: DueNotice<'_>| {
            let count = taken.entry(waiting.tenant.to_owned()).or_default();
            *count += 1;
            if *count > of_one {
                NoticeChoice::SkipTenant
            } else {
                NoticeChoice::Send
            }
        };
        self.1.due_notices(now_ms, round, most, choose).unwrap()
    }

    /// The progress in a job's row.
    fn progress(&self, job: &str) -> Option<DeliveryProgress> {
        let all = "SELECT json_group_array(json_array(state, attempts, problem)) FROM (
            SELECT state, attempts, problem FROM webhook_notice WHERE job = ? ORDER BY n)";
        let read = |connection: &rusqlite::Connection| {
            connection.query_row(all, [job], |row| row.get::<_, String>(0))
        };
        DeliveryProgress::read(&self.1.reader.read(read).unwrap())
    }

    fn ids(&self, now_ms: u64, of_one: u32) -> Vec<String> {
        self.due(now_ms, of_one)
            .into_iter()
            .map(|notice| notice.id)
            .collect()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn notices_of_one_job_come_one_after_another_and_everybody_has_a_turn() {
    let database = TestDatabase::new("order");
    for (id, job, tenant) in [
        ("1", "a", "t"),
        ("2", "a", "t"),
        ("3", "b", "t"),
        ("4", "c", "u"),
        ("5", "d", "t"),
    ] {
        database.enqueue(id, job, tenant, 10);
    }
    assert_eq!(database.ids(9, 8), [""; 0], "not yet");
    assert_eq!(database.ids(10, 8), ["1", "3", "5", "4"]);
    assert_eq!(database.ids(10, 1), ["1", "4"], "a share of each");
    let not_a = |waiting: DueNotice<'_>| {
        if waiting.job == "a" {
            NoticeChoice::Skip
        } else {
            NoticeChoice::Send
        }
    };
    let free = database
        .1
        .due_notices(10, &mut DeliveryRound::default(), 100, not_a)
        .unwrap();
    assert_eq!(
        free.iter()
            .map(|notice| notice.id.as_str())
            .collect::<Vec<_>>(),
        ["3", "5", "4"]
    );
    let behind = |last: &str, most| {
        let mut round = DeliveryRound {
            last: last.to_owned(),
            ..DeliveryRound::default()
        };
        let found = database.looked(10, &mut round, (most, 8));
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
    let first = &database.due(10, 8)[0];
    database.settle(
        first,
        DeliveryOutcome::Deferred {
            due_ms: 50,
            problem: "down".into(),
        },
    );
    assert_eq!(
        database.ids(49, 8),
        ["3", "5", "4"],
        "the second waits for the first"
    );
    database.enqueue("6", "a", "t", 20);
    assert_eq!(
        database.ids(49, 8),
        ["3", "5", "4"],
        "and so does one that comes later"
    );
    database.settle(&database.due(50, 8)[2].clone(), DeliveryOutcome::Delivered);
    assert!(database.ids(50, 8).contains(&"2".to_owned()));
}

#[test]
fn however_many_are_passed_over_those_behind_them_have_their_turn() {
    let database = TestDatabase::new("behind");
    let dead = |number: usize| format!("dead{number}");
    (0..600).for_each(|number| database.enqueue(&dead(number), &dead(number), "t", 10));
    database.enqueue("good", "good", "t", 10);
    let mut round = DeliveryRound::default();
    let mut look = |now_ms| {
        let mut seen = Vec::new();
        let choose = |waiting: DueNotice<'_>| {
            seen.push(waiting.job.to_owned());
            if waiting.job.starts_with("good") {
                NoticeChoice::Send
            } else {
                NoticeChoice::Skip
            }
        };
        let found = database
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
    database.enqueue("good2", "good2", "t", 20);
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
    let database = TestDatabase::new("progress");
    assert_eq!(database.progress("a"), None);
    database.enqueue("1", "a", "t", 1);
    database.enqueue("2", "a", "t", 1);
    let of = |state: &str, attempts, problem: Option<&str>| {
        Some(DeliveryProgress {
            state: state.into(),
            attempts,
            problem: problem.map(str::to_owned),
        })
    };
    assert_eq!(database.progress("a"), of("waiting", 0, None));
    let first = database.due(1, 1)[0].clone();
    database.settle(
        &first,
        DeliveryOutcome::Deferred {
            due_ms: 2,
            problem: "down".into(),
        },
    );
    assert_eq!(database.progress("a"), of("waiting", 1, Some("down")));
    database.settle(&first, DeliveryOutcome::Delivered);
    assert_eq!(database.progress("a"), of("waiting", 2, None));
    let second = database.due(2, 1)[0].clone();
    database.settle(&second, DeliveryOutcome::GivenUp("gone".into()));
    assert_eq!(database.progress("a"), of("given_up", 3, Some("gone")));
    database.settle(&second, DeliveryOutcome::Delivered);
    assert_eq!(
        database.progress("a"),
        of("given_up", 3, Some("gone")),
        "what is settled stays so"
    );
    assert_eq!(
        database
            .1
            .transact(|transaction| prune_notices(transaction, 2))
            .unwrap(),
        2
    );
}

#[test]
fn a_tenants_secret_has_a_first_generation_and_each_turn_is_another() {
    let database = TestDatabase::new("rotation");
    assert_eq!(
        database.1.webhook_generation("t").unwrap(),
        SecretGeneration {
            number: 1,
            since_ms: 0
        }
    );
    let rotate_secret = |tenant: &str, now| {
        database
            .1
            .transact(|transaction| rotate_secret(transaction, tenant, now))
            .unwrap()
    };
    assert_eq!(
        rotate_secret("t", 7),
        SecretGeneration {
            number: 2,
            since_ms: 7
        }
    );
    assert_eq!(
        rotate_secret("t", 8),
        SecretGeneration {
            number: 3,
            since_ms: 8
        }
    );
    assert_eq!(
        database.1.webhook_generation("t").unwrap(),
        SecretGeneration {
            number: 3,
            since_ms: 8
        }
    );
    assert_eq!(
        database.1.webhook_generation("u").unwrap().number,
        1,
        "nobody else's"
    );
}

#[test]
fn of_too_many_notices_the_oldest_is_given_up_by_name() {
    let database = TestDatabase::new("bound");
    for number in 0..100 {
        database.enqueue(&number.to_string(), "a", "t", 1);
    }
    assert_eq!(
        database.count("state = 'waiting'"),
        i64::from(MAX_NOTICES_PER_JOB)
    );
    assert_eq!(database.count("1"), i64::from(MAX_STORED_PER_JOB));
    assert_eq!(database.ids(1, 1), ["84"], "the newest are told");
    assert_eq!(
        database.count(
            "state = 'given_up' AND body = '' AND problem LIKE 'more than 16 notices of this job%'"
        ),
        16
    );
    let told = database
        .1
        .job("a")
        .unwrap()
        .unwrap()
        .webhook_progress
        .unwrap();
    assert_eq!(told.state, "waiting");
    let many = |transaction: &WriteTransaction<'_>| {
        for number in 0..MAX_NOTICES_PER_TENANT + 3 {
            let id = format!("u{number}");
            let job = format!("j{number}");
            let notice = NewWebhookNotice {
                id: &id,
                job: &job,
                tenant: "u",
                url: "",
                event: "final",
                at_ms: 1,
                body: "x",
            };
            enqueue(transaction, &notice)?;
        }
        Ok::<_, DatabaseError>(())
    };
    database.1.transact(many).unwrap();
    assert_eq!(
        database.count("tenant = 'u' AND state = 'waiting'"),
        i64::from(MAX_NOTICES_PER_TENANT)
    );
    assert_eq!(
        database.count("tenant = 'u' AND problem LIKE 'more than 10000 notices of this tenant%'"),
        3
    );
    let large = "x".repeat(1 << 20);
    for number in 0..300 {
        let id = format!("v{number}");
        let job = format!("k{number}");
        let notice = NewWebhookNotice {
            id: &id,
            job: &job,
            tenant: "v",
            url: "",
            event: "final",
            at_ms: 1,
            body: &large,
        };
        database
            .1
            .transact(|transaction| enqueue(transaction, &notice))
            .unwrap();
    }
    assert_eq!(
        database.count("tenant = 'v' AND state = 'waiting'"),
        256,
        "by bytes, too"
    );
}

#[test]
fn what_was_told_of_a_job_goes_with_it_and_what_waits_is_still_told() {
    let database = TestDatabase::new("orphans");
    ["1", "2", "3"]
        .iter()
        .for_each(|id| database.enqueue(id, "a", "t", 1));
    database.settle(&database.due(1, 1)[0].clone(), DeliveryOutcome::Delivered);
    database
        .1
        .transact(|transaction| transaction.cancel_job("a", 1))
        .unwrap();
    assert_eq!(database.1.prune_jobs(10, 100, u64::MAX).unwrap(), 1);
    assert_eq!(
        (database.count("1"), database.ids(1, 1)),
        (2, vec!["2".to_owned()])
    );
    let [second, third] = [1, 2].map(|_| database.due(1, 1)[0].clone());
    assert_eq!(second, third);
    database.settle(&second, DeliveryOutcome::GivenUp("gone".into()));
    assert_eq!(
        (database.count("1"), database.ids(1, 1)),
        (1, vec!["3".to_owned()])
    );
    database.settle(&database.due(1, 1)[0].clone(), DeliveryOutcome::Delivered);
    assert_eq!(
        (
            database.count("1"),
            database
                .1
                .reader
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
    let database = TestDatabase::new("index");
    let plan = |query: &str| {
        let explain = format!("EXPLAIN QUERY PLAN {query}");
        let rows = database.1.reader.read(|connection| {
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
