use super::*;
use crate::{
    DatabaseError,
    server_database::{NewRun, ServerDatabase},
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

/// A state folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT_JOBS: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-jobs-{}.{}",
            std::process::id(),
            NEXT_JOBS.fetch_add(1, Ordering::Relaxed)
        );
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

const ROOM: QueueLimits = QueueLimits {
    queued: 1000,
    queued_per_tenant: 1000,
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
        at_ms: 1000,
        not_before_ms: None,
        keep_ms: 10_000,
        max_attempts: 1,
        retry_on: "",
        pause_ms: 0,
        rerun: false,
        after: &[],
        webhook: None,
        order: "{}",
        idempotency_key: None,
    }
}

fn add(database: &ServerDatabase, job: &NewJob<'_>) -> AddJobOutcome {
    database
        .transact(|transaction| transaction.add_job(job, &ROOM))
        .unwrap()
}

fn start(database: &ServerDatabase, id: &str, run: &str, boot: &str) -> bool {
    let work = |transaction: &crate::server_database::WriteTransaction<'_>| {
        let started = transaction.start_job(id, run, boot, 2000)?;
        if started {
            let new = NewRun {
                id: run,
                owner: "t",
                task: None,
                job: Some(id),
                at_ms: 2000,
                idempotency_key: None,
            };
            assert_eq!(
                transaction.accept(&new, true)?,
                crate::server_database::AcceptRunOutcome::Accepted
            );
        }
        Ok::<_, DatabaseError>(started)
    };
    database.transact(work).unwrap()
}

fn end(database: &ServerDatabase, run: &str, status: &str, at_ms: u64) -> Vec<JobChange> {
    let end = AttemptEnd {
        status,
        result: Some(r#"{"a":1}"#),
        error: None,
        at_ms,
    };
    let work = |transaction: &crate::server_database::WriteTransaction<'_>| {
        transaction.finish(run, status, "{}")?;
        transaction.end_job(run, &end)
    };
    database.transact(work).unwrap()
}

fn status(database: &ServerDatabase, id: &str) -> String {
    database.job(id).unwrap().unwrap().status
}

#[test]
fn a_job_is_started_once_and_ends_once() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    assert_eq!(add(&database, &new("a", "t")), AddJobOutcome::Accepted);
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["a"]);
    assert!(start(&database, "a", "r1", "boot"));
    assert!(!start(&database, "a", "r2", "boot"), "it is under way");
    let row = database.job("a").unwrap().unwrap();
    assert_eq!(
        (row.status.as_str(), row.attempt, row.run.as_deref()),
        ("running", 1, Some("r1"))
    );
    assert!(
        end(&database, "r2", "failed", 3000).is_empty(),
        "that is not its run"
    );
    let changes = end(&database, "r1", "succeeded", 3000);
    assert_eq!(
        changes
            .iter()
            .map(|change| change.status.as_str())
            .collect::<Vec<_>>(),
        ["succeeded"]
    );
    assert!(
        end(&database, "r1", "failed", 4000).is_empty(),
        "what is final stays so"
    );
    let row = database.job("a").unwrap().unwrap();
    assert_eq!(
        (row.status.as_str(), row.ended_ms, row.runs),
        ("succeeded", Some(3000), vec!["r1".to_owned()])
    );
    assert_eq!(
        database.job_result("a").unwrap().as_deref(),
        Some(r#"{"a":1}"#)
    );
    let counts = database.job_counts(Some("t")).unwrap();
    assert_eq!(
        counts,
        JobCounts {
            queued: 0,
            turn: 0,
            running: 0,
            ended: 1,
            bytes: 9
        }
    );
}

#[test]
fn priorities_come_first_and_then_age() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    for (id, priority) in [("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)] {
        add(
            &database,
            &NewJob {
                priority,
                ..new(id, "t")
            },
        );
    }
    add(&database, &new("x", "other"));
    assert_eq!(
        database.next_jobs("t", 9).unwrap(),
        ["b", "d", "a", "e", "c"]
    );
    assert_eq!(database.next_jobs("t", 1).unwrap(), ["b"]);
    assert_eq!(database.active_tenants().unwrap(), ["other", "t"]);
}

#[test]
fn a_job_waits_for_its_time() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(
        &database,
        &NewJob {
            not_before_ms: Some(5000),
            ..new("a", "t")
        },
    );
    add(
        &database,
        &NewJob {
            not_before_ms: Some(500),
            ..new("past", "t")
        },
    );
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["past"]);
    assert_eq!(database.next_due().unwrap(), Some(5000));
    assert!(!start(&database, "a", "r", "boot"));
    assert_eq!(
        database
            .transact(|transaction| transaction.release_due_jobs(4999, 10))
            .unwrap(),
        [""; 0]
    );
    assert_eq!(
        database
            .transact(|transaction| transaction.release_due_jobs(5000, 10))
            .unwrap(),
        ["a"]
    );
    assert_eq!(
        (
            database.next_due().unwrap(),
            database.next_jobs("t", 9).unwrap().len()
        ),
        (None, 2)
    );
}

#[test]
fn a_job_that_is_put_off_waits_lets_others_go_and_has_its_turn_again() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(
        &database,
        &NewJob {
            priority: 9,
            ..new("a", "t")
        },
    );
    add(&database, &new("b", "t"));
    let put_off = || {
        database.transact(|transaction| {
            transaction.defer_job("a", 9000, r#"{"code":"quota_exceeded"}"#)
        })
    };
    assert!(put_off().unwrap());
    assert!(!put_off().unwrap(), "it waits already");
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["b"]);
    let row = database.job("a").unwrap().unwrap();
    assert_eq!(
        (row.status.as_str(), row.attempt, row.error.is_some()),
        ("queued", 0, true)
    );
    database
        .transact(|transaction| transaction.release_due_jobs(9000, 9))
        .unwrap();
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["a", "b"]);
    assert!(start(&database, "a", "r", "boot"));
    assert_eq!(database.job("a").unwrap().unwrap().error, None);
}

#[test]
fn only_those_that_were_put_off_are_looked_at_again() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(&database, &new("a", "t"));
    add(
        &database,
        &NewJob {
            not_before_ms: Some(9000),
            ..new("later", "t")
        },
    );
    database
        .transact(|transaction| transaction.defer_job("a", 9000, r#"{"code":"budget_exceeded"}"#))
        .unwrap();
    assert_eq!(
        database
            .transact(|transaction| transaction.requeue_deferred_jobs(3000))
            .unwrap(),
        1
    );
    assert_eq!(
        database
            .transact(|transaction| transaction.release_due_jobs(3000, 9))
            .unwrap(),
        ["a"]
    );
    assert_eq!(database.next_due().unwrap(), Some(9000));
}

#[test]
fn what_comes_after_follows() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let a = vec!["a".to_owned()];
    let b = vec!["a".to_owned(), "b".to_owned()];
    add(&database, &new("a", "t"));
    add(
        &database,
        &NewJob {
            after: &a,
            ..new("b", "t")
        },
    );
    add(
        &database,
        &NewJob {
            after: &b,
            ..new("c", "t")
        },
    );
    assert_eq!(
        add(
            &database,
            &NewJob {
                after: &a,
                ..new("x", "other")
            }
        ),
        AddJobOutcome::UnknownDependency("a".into())
    );
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["a"]);
    start(&database, "a", "ra", "boot");
    end(&database, "ra", "succeeded", 3000);
    assert_eq!(
        database.next_jobs("t", 9).unwrap(),
        ["b"],
        "c waits for b, too"
    );
    start(&database, "b", "rb", "boot");
    let webhook_progress: Vec<_> = end(&database, "rb", "failed", 4000)
        .into_iter()
        .map(|change| (change.id, change.status))
        .collect();
    assert_eq!(
        webhook_progress,
        [
            ("b".into(), "failed".into()),
            ("c".into(), "cancelled".into())
        ]
    );
    // A dependent of a failed job fails at once; while the job is retried, it can wait.
    let after = ["b".to_owned()];
    add(
        &database,
        &NewJob {
            after: &after,
            ..new("late", "t")
        },
    );
    assert_eq!(status(&database, "late"), "cancelled");
    let retry = |id: &str| {
        database
            .transact(|transaction| transaction.retry_job(id, 5000, &ROOM))
            .unwrap()
    };
    assert_eq!(retry("late"), RetryJobOutcome::DependencyFailed("b".into()));
    assert_eq!(
        (retry("b"), retry("late"), retry("late")),
        (
            RetryJobOutcome::Queued,
            RetryJobOutcome::Queued,
            RetryJobOutcome::NotEnded
        )
    );
    start(&database, "b", "rb2", "boot");
    end(&database, "rb2", "succeeded", 6000);
    assert_eq!(database.next_jobs("t", 9).unwrap(), ["late"]);
}

#[test]
fn cancelling_takes_all_behind_it() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(&database, &new("0", "t"));
    for number in 1..200 {
        let id = number.to_string();
        let before = [(number - 1).to_string()];
        add(
            &database,
            &NewJob {
                after: &before,
                ..new(&id, "t")
            },
        );
    }
    let cancelled = database
        .transact(|transaction| transaction.cancel_job("0", 2000))
        .unwrap();
    let CancelJobOutcome::Cancelled(mut changes) = cancelled else {
        panic!("{cancelled:?}")
    };
    assert_eq!(changes.len(), 1 + dependents::BATCH_SIZE, "a few at a time");
    assert_eq!(
        database
            .transact(|transaction| transaction.retry_job("3", 2000, &ROOM))
            .unwrap(),
        RetryJobOutcome::DependentsPending
    );
    let gone = database.prune_jobs(u64::MAX >> 1, 0, 0).unwrap();
    assert!(
        (1..=dependents::BATCH_SIZE).contains(&gone),
        "not what is still followed: {gone}"
    );
    // Another server takes over.
    let database = ServerDatabase::open(&folder.0).unwrap();
    while database.has_pending_propagation().unwrap() {
        changes.extend(
            database
                .transact(|transaction| transaction.propagate_ended_jobs(2000))
                .unwrap(),
        );
    }
    assert_eq!(changes.len(), 200);
    assert_eq!(database.job_counts(None).unwrap().ended, 200 - gone as u64);
    assert_eq!(
        database
            .transact(|transaction| transaction.cancel_job("3", 2000))
            .unwrap(),
        CancelJobOutcome::AlreadyEnded
    );
    assert_eq!(
        database
            .transact(|transaction| transaction.cancel_job("?", 2000))
            .unwrap(),
        CancelJobOutcome::Unknown
    );
}

#[test]
fn one_that_is_to_be_cancelled_is_not_tried_again() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let eager = |id| NewJob {
        max_attempts: 9,
        retry_on: "failed lost",
        rerun: true,
        ..new(id, "t")
    };
    for (id, run, ended, wanted) in [
        ("a", "ra", "failed", "failed"),
        ("b", "rb", "lost", "cancelled"),
        ("c", "rc", "succeeded", "succeeded"),
    ] {
        add(&database, &eager(id));
        start(&database, id, run, "boot");
        assert_eq!(
            database
                .transact(|transaction| transaction.cancel_job(id, 2000))
                .unwrap(),
            CancelJobOutcome::Running(run.into())
        );
        end(&database, run, ended, 3000);
        assert_eq!(status(&database, id), wanted);
    }
}

#[test]
fn tries_pause_twice_as_long_each_time_and_reruns_do_not_count() {
    let policy = |attempt, reruns| RetryPolicy {
        attempt,
        max_attempts: 3,
        reruns,
        retry_on: "failed".into(),
        pause_ms: 1000,
        rerun: true,
        cancelled: false,
    };
    assert_eq!(
        [1, 2, 3].map(|attempt| next_step(&policy(attempt, 0), "failed")),
        [
            NextStep::Retry(1000),
            NextStep::Retry(2000),
            NextStep::Final
        ]
    );
    assert_eq!(next_step(&policy(1, 9), "lost"), NextStep::Rerun);
    assert_eq!(next_step(&policy(1, 10), "lost"), NextStep::Final);
    assert_eq!(next_step(&policy(1, 0), "timed_out"), NextStep::Final);
    let long = RetryPolicy {
        attempt: 90,
        max_attempts: 99,
        ..policy(1, 0)
    };
    assert_eq!(next_step(&long, "failed"), NextStep::Retry(3_600_000));

    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(
        &database,
        &NewJob {
            max_attempts: 2,
            retry_on: "failed",
            pause_ms: 700,
            rerun: true,
            ..new("a", "t")
        },
    );
    start(&database, "a", "r1", "boot");
    end(&database, "r1", "lost", 3000);
    assert_eq!(database.job("a").unwrap().unwrap().attempt, 0);
    start(&database, "a", "r2", "boot");
    end(&database, "r2", "failed", 3000);
    assert_eq!(
        (
            status(&database, "a").as_str(),
            database.next_due().unwrap()
        ),
        ("queued", Some(3700))
    );
    database
        .transact(|transaction| transaction.release_due_jobs(3700, 1))
        .unwrap();
    start(&database, "a", "r3", "boot");
    let row = database.job("a").unwrap().unwrap();
    assert_eq!((row.attempt, row.runs.len()), (2, 3));
    end(&database, "r3", "failed", 5000);
    assert_eq!(status(&database, "a"), "failed");
}

#[test]
fn a_promise_is_one_job() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let find_idempotency_key = |id, body| NewJob {
        idempotency_key: Some(("p", [body; 32])),
        ..new(id, "t")
    };
    assert_eq!(
        add(&database, &find_idempotency_key("a", 1)),
        AddJobOutcome::Accepted
    );
    assert_eq!(
        add(&database, &find_idempotency_key("b", 1)),
        AddJobOutcome::Duplicate("a".into())
    );
    assert_eq!(
        add(&database, &find_idempotency_key("b", 2)),
        AddJobOutcome::KeyReused
    );
    let other = NewJob {
        tenant: "other",
        ..find_idempotency_key("b", 2)
    };
    assert_eq!(
        add(&database, &other),
        AddJobOutcome::Accepted,
        "everybody has his own"
    );
    let late = 1001 + crate::server_database::IDEMPOTENCY_WINDOW_MS;
    let later = NewJob {
        at_ms: late,
        ..find_idempotency_key("c", 1)
    };
    database
        .prune_jobs(late, u64::MAX >> 1, u64::MAX >> 1)
        .unwrap();
    assert_eq!(
        add(&database, &later),
        AddJobOutcome::Duplicate("a".into()),
        "as long as the job has not ended"
    );
    database
        .transact(|transaction| transaction.cancel_job("a", 1000))
        .unwrap();
    assert_eq!(
        add(&database, &later),
        AddJobOutcome::Accepted,
        "a day later it is forgotten"
    );
}

#[test]
fn there_is_room_for_so_many() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let add = |id: &str, tenant: &str, room: &QueueLimits| {
        database
            .transact(|transaction| transaction.add_job(&new(id, tenant), room))
            .unwrap()
    };
    let bounded_scan = QueueLimits {
        queued: 3,
        queued_per_tenant: 2,
        ..ROOM
    };
    assert_eq!(
        [add("a", "t", &bounded_scan), add("b", "t", &bounded_scan)],
        [AddJobOutcome::Accepted, AddJobOutcome::Accepted]
    );
    assert_eq!(
        add("c", "t", &bounded_scan),
        AddJobOutcome::Full(ReachedLimit::QueuedPerTenant)
    );
    assert_eq!(add("c", "other", &bounded_scan), AddJobOutcome::Accepted);
    assert_eq!(
        add("d", "third", &bounded_scan),
        AddJobOutcome::Full(ReachedLimit::Queued)
    );
    assert_eq!(
        add(
            "d",
            "t",
            &QueueLimits {
                jobs: Some(2),
                ..ROOM
            }
        ),
        AddJobOutcome::Full(ReachedLimit::Jobs)
    );
    assert_eq!(
        add(
            "d",
            "t",
            &QueueLimits {
                bytes_per_tenant: 5,
                ..ROOM
            }
        ),
        AddJobOutcome::Full(ReachedLimit::BytesPerTenant)
    );
    assert_eq!(
        add("d", "t", &QueueLimits { bytes: 7, ..ROOM }),
        AddJobOutcome::Full(ReachedLimit::Bytes)
    );
    start(&database, "a", "r", "boot");
    assert_eq!(
        add(
            "d",
            "t",
            &QueueLimits {
                jobs: Some(2),
                ..ROOM
            }
        ),
        AddJobOutcome::Full(ReachedLimit::Jobs),
        "those that run count"
    );
    assert_eq!(
        add(
            "d",
            "t",
            &QueueLimits {
                queued: 5,
                ..bounded_scan
            }
        ),
        AddJobOutcome::Accepted
    );
}

#[test]
fn whoever_has_the_most_loses_the_oldest_first() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let end_all = |tenant: &str, count: u32| {
        for number in 0..count {
            let id = format!("{tenant}{number}");
            add(&database, &new(&id, tenant));
            database
                .transact(|transaction| transaction.cancel_job(&id, 2000))
                .unwrap();
        }
    };
    end_all("many", 10);
    end_all("few", 3);
    add(&database, &new("waits", "many"));
    assert_eq!(database.prune_jobs(3000, 6, u64::MAX).unwrap(), 7);
    let left = |tenant: &str| {
        let filter = JobFilter {
            tenant: Some(tenant.into()),
            limit: 100,
            ..JobFilter::default()
        };
        database
            .list_jobs(&filter)
            .unwrap()
            .rows
            .into_iter()
            .map(|row| row.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(left("many"), ["waits", "many9", "many8", "many7"]);
    assert_eq!(left("few"), ["few2", "few1", "few0"]);
    assert_eq!(
        database.prune_jobs(12_001, 6, u64::MAX).unwrap(),
        6,
        "and in the end what is old"
    );
    assert_eq!(left("many"), ["waits"]);
    assert_eq!(
        database.job_counts(None).unwrap(),
        JobCounts {
            queued: 1,
            turn: 1,
            bytes: 2,
            ..JobCounts::default()
        }
    );
    assert_eq!(
        database.job_counts(Some("few")).unwrap(),
        JobCounts::default()
    );
}

#[test]
fn lists_are_filtered_and_paged() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    for number in 0..5 {
        let id = number.to_string();
        let labels = format!(r#"{{"even":"{}","'\"$":"x"}}"#, number % 2 == 0);
        add(
            &database,
            &NewJob {
                labels: &labels,
                name: Some("n"),
                ..new(&id, "t")
            },
        );
    }
    let ids = |filter: JobFilter| {
        let mut found = String::new();
        let mut filter = filter;
        loop {
            let page = database.list_jobs_scanning(&filter, 3).unwrap();
            found.extend(page.rows.into_iter().map(|row| row.id));
            filter.before = page.before.filter(|_| (found.len() as u32) < filter.limit);
            if filter.before.is_none() {
                return found;
            }
        }
    };
    let all = JobFilter {
        tenant: Some("t".into()),
        limit: 9,
        ..JobFilter::default()
    };
    assert_eq!(ids(all.clone()), "43210");
    assert_eq!(
        ids(JobFilter {
            limit: 2,
            before: Some(4),
            ..all.clone()
        }),
        "21"
    );
    assert_eq!(
        ids(JobFilter {
            label: Some(("even".into(), "true".into())),
            ..all.clone()
        }),
        "420"
    );
    assert_eq!(
        ids(JobFilter {
            label: Some(("'\"$".into(), "x".into())),
            limit: 1,
            ..all.clone()
        }),
        "4"
    );
    assert_eq!(
        ids(JobFilter {
            name: Some("n".into()),
            status: Some("queued".into()),
            ..all.clone()
        }),
        "43210"
    );
    assert_eq!(
        ids(JobFilter {
            name: Some("m".into()),
            ..all.clone()
        }),
        ""
    );
    assert_eq!(
        ids(JobFilter {
            tenant: Some("other".into()),
            ..all
        }),
        ""
    );
}

#[test]
fn no_look_of_the_scheduler_reads_what_waits() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let plan = |query: &str, values: &[&str]| {
        let explain = format!("EXPLAIN QUERY PLAN {query}");
        let rows = database.job_reader.read(|connection| {
            let mut rows = connection.prepare(&explain)?;
            rows.query_map(rusqlite::params_from_iter(values), |row| {
                row.get::<_, String>(3)
            })?
            .collect::<Result<Vec<_>, _>>()
        });
        rows.unwrap().join("; ")
    };
    let next = plan(queries::NEXT_JOBS, &["t", "1"]);
    assert!(
        next.contains("job_turn (tenant=?)") && !next.contains("TEMP B-TREE"),
        "{next}"
    );
    let active = plan(queries::ACTIVE_TENANTS, &[]);
    assert!(active.contains("job_tenant_turn"), "{active}");
    let due = plan(queries::NEXT_DUE, &[]);
    assert!(due.contains("job_time"), "{due}");
    let naive = plan(
        "SELECT id FROM job WHERE tenant = ? ORDER BY priority DESC, n LIMIT ?",
        &["t", "1"],
    );
    assert!(
        naive.contains("TEMP B-TREE"),
        "the positive control: {naive}"
    );
}

#[test]
fn what_is_in_vain_at_birth_is_told_like_any_other_end() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(&database, &new("a", "t"));
    database
        .transact(|transaction| transaction.cancel_job("a", 2000))
        .unwrap();
    let after = ["a".to_owned()];
    let AddJobOutcome::DependencyFailed(changes) = add(
        &database,
        &NewJob {
            after: &after,
            webhook: Some("w"),
            ..new("b", "t")
        },
    ) else {
        panic!("it is over")
    };
    let webhook_progress: Vec<_> = changes
        .iter()
        .map(|change| (change.id.as_str(), change.status.as_str()))
        .collect();
    assert_eq!(webhook_progress, [("b", "cancelled")]);
    assert_eq!(changes[0].webhook.as_deref(), Some("w"));
}

#[test]
fn a_retry_waits_for_its_time_and_has_no_result() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(
        &database,
        &NewJob {
            not_before_ms: Some(9000),
            ..new("a", "t")
        },
    );
    database
        .transact(|transaction| transaction.cancel_job("a", 2000))
        .unwrap();
    let retry = |id: &str| {
        database
            .transact(|transaction| transaction.retry_job(id, 3000, &ROOM))
            .unwrap()
    };
    assert_eq!(retry("a"), RetryJobOutcome::Queued);
    assert_eq!(
        (
            database.next_jobs("t", 9).unwrap(),
            database.next_due().unwrap()
        ),
        (vec![], Some(9000))
    );
    add(&database, &new("b", "t"));
    start(&database, "b", "r", "boot");
    end(&database, "r", "succeeded", 2500);
    assert!(database.job_result("b").unwrap().is_some(), "the control");
    assert_eq!(retry("b"), RetryJobOutcome::Queued);
    assert_eq!(database.job_result("b").unwrap(), None);
    assert_eq!(database.job_counts(None).unwrap().bytes, 4);
}

#[test]
fn nobody_takes_more_than_half_of_what_the_others_leave() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let room = QueueLimits {
        queued: 8,
        queued_per_tenant: 8,
        bytes: 1 << 30,
        ..ROOM
    };
    let fill = |tenant: &str, room: &QueueLimits| {
        (0..20)
            .take_while(|number| {
                let id = format!("{tenant}{number}");
                database
                    .transact(|transaction| transaction.add_job(&new(&id, tenant), room))
                    .unwrap()
                    == AddJobOutcome::Accepted
            })
            .count()
    };
    assert_eq!(
        ["a", "b", "c", "d", "e"].map(|tenant| fill(tenant, &room)),
        [4, 2, 1, 1, 0]
    );
    let room = QueueLimits {
        bytes: 16 + 32,
        ..ROOM
    };
    assert_eq!(
        ["f", "g"].map(|tenant| fill(tenant, &room)),
        [8, 4],
        "two bytes each"
    );
}

#[test]
fn what_waits_does_not_push_out_what_has_ended() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(&database, &new("old", "small"));
    database
        .transact(|transaction| transaction.cancel_job("old", 2000))
        .unwrap();
    let order = "x".repeat(1000);
    add(
        &database,
        &NewJob {
            order: &order,
            ..new("waits", "large")
        },
    );
    assert_eq!(database.prune_jobs(3000, 100, 100).unwrap(), 0);
    database
        .transact(|transaction| transaction.cancel_job("waits", 2000))
        .unwrap();
    assert_eq!(
        database.prune_jobs(3000, 100, 100).unwrap(),
        1,
        "the control"
    );
    assert_eq!(status(&database, "old"), "cancelled");
}

#[test]
fn only_so_many_come_right_after_one() {
    let folder = Folder::new();
    let database = ServerDatabase::open(&folder.0).unwrap();
    add(&database, &new("a", "t"));
    let after = ["a".to_owned()];
    let room = QueueLimits {
        queued: 1 << 20,
        queued_per_tenant: 1 << 20,
        ..ROOM
    };
    let many = |transaction: &crate::server_database::WriteTransaction<'_>| {
        for number in 0..MAX_DEPENDENTS {
            let id = number.to_string();
            assert_eq!(
                transaction.add_job(
                    &NewJob {
                        after: &after,
                        ..new(&id, "t")
                    },
                    &room
                )?,
                AddJobOutcome::Accepted
            );
        }
        let more = NewJob {
            after: &after,
            ..new("more", "t")
        };
        assert_eq!(
            transaction.add_job(&more, &room)?,
            AddJobOutcome::Full(ReachedLimit::Dependents)
        );
        Ok::<_, DatabaseError>(())
    };
    database.transact(many).unwrap();
}

/// Random operations on jobs.
#[derive(Clone, Debug)]
enum Step {
    Submit {
        after: Vec<usize>,
        rerun: bool,
        retries: u32,
    },
    Start,
    AttemptEnd(usize, &'static str),
    Cancel(usize),
    Retry(usize),
    Follow,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let submit = (
        prop::collection::vec(any::<usize>(), 0..3),
        any::<bool>(),
        0u32..3,
    );
    let ends = prop::sample::select(vec![
        "succeeded",
        "failed",
        "timed_out",
        "cancelled",
        "not_started",
    ]);
    prop_oneof![
        4 => submit.prop_map(|(after, rerun, retries)| Step::Submit { after, rerun, retries }),
        4 => Just(Step::Start),
        4 => (any::<usize>(), ends).prop_map(|(which, status)| Step::AttemptEnd(which, status)),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Retry),
        2 => Just(Step::Follow),
        1 => Just(Step::Crash),
    ]
}

/// Model of the world around the store: which runs are really running.
struct World {
    folder: Folder,
    database: ServerDatabase,
    boot: u32,
    runs: u32,
    jobs: Vec<String>,
    /// Running runs with their jobs.
    live: BTreeMap<String, String>,
    /// The final state of each job since its last retry.
    finals: HashMap<String, String>,
    /// Jobs that succeeded at least once.
    succeeded: HashSet<String>,
}

impl World {
    fn new() -> World {
        let folder = Folder::new();
        let database = ServerDatabase::open(&folder.0).unwrap();
        let jobs = Vec::new();
        let live = BTreeMap::new();
        let finals = HashMap::new();
        World {
            folder,
            database,
            boot: 1,
            runs: 0,
            jobs,
            live,
            finals,
            succeeded: HashSet::new(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Submit {
                after,
                rerun,
                retries,
            } => self.submit(&after, rerun, retries),
            Step::Start => self.start(),
            Step::AttemptEnd(which, status) => {
                let chosen = self
                    .live
                    .keys()
                    .nth(which % self.live.len().max(1))
                    .cloned();
                if let Some(run) = chosen {
                    self.live.remove(&run);
                    let changes = end(&self.database, &run, status, 3000);
                    assert!(!changes.is_empty(), "its run was under way");
                    self.note(&changes);
                }
            }
            Step::Cancel(which) => {
                let Some(id) = self.chosen(which) else { return };
                let cancelled = self
                    .database
                    .transact(|transaction| transaction.cancel_job(&id, 3000))
                    .unwrap();
                if let CancelJobOutcome::Cancelled(changes) = cancelled {
                    self.note(&changes);
                }
            }
            Step::Retry(which) => {
                let Some(id) = self.chosen(which) else { return };
                if self
                    .database
                    .transact(|transaction| transaction.retry_job(&id, 3000, &ROOM))
                    .unwrap()
                    == RetryJobOutcome::Queued
                {
                    assert!(
                        self.finals.remove(&id).is_some(),
                        "only what was final is retried"
                    );
                }
            }
            Step::Follow => {
                let changes = self
                    .database
                    .transact(|transaction| transaction.propagate_ended_jobs(3000))
                    .unwrap();
                self.note(&changes);
            }
            Step::Crash => self.crash(),
        }
        self.check();
    }

    fn chosen(&self, which: usize) -> Option<String> {
        self.jobs.get(which % self.jobs.len().max(1)).cloned()
    }

    fn submit(&mut self, after: &[usize], rerun: bool, retries: u32) {
        let id = format!("j{}", self.jobs.len());
        let mut after: Vec<_> = after
            .iter()
            .filter_map(|which| self.chosen(*which))
            .collect();
        after.sort();
        after.dedup();
        let job = NewJob {
            after: &after,
            rerun,
            max_attempts: 1 + retries,
            retry_on: "failed lost",
            ..new(&id, "t")
        };
        let added = add(&self.database, &job);
        assert_eq!(
            matches!(added, AddJobOutcome::DependencyFailed(_)),
            status(&self.database, &id) == "cancelled",
            "{added:?}"
        );
        if status(&self.database, &id) == "cancelled" {
            self.finals.insert(id.clone(), "cancelled".into());
        }
        self.jobs.push(id);
    }

    fn start(&mut self) {
        self.database
            .transact(|transaction| transaction.release_due_jobs(u64::MAX >> 1, 1000))
            .unwrap();
        let Some(id) = self.database.next_jobs("t", 1).unwrap().pop() else {
            return;
        };
        self.runs += 1;
        let run = format!("r{}", self.runs);
        assert!(start(&self.database, &id, &run, &self.boot.to_string()));
        assert!(
            !self.live.values().any(|job| *job == id),
            "{id} runs twice at once"
        );
        let row = self.database.job(&id).unwrap().unwrap();
        for needed in &row.after {
            assert!(
                self.succeeded.contains(needed),
                "{id} started before {needed} succeeded"
            );
        }
        self.live.insert(run, id);
    }

    /// The server and its runs are gone; the next one settles the jobs that were left.
    fn crash(&mut self) {
        self.live.clear();
        self.database = ServerDatabase::open(&self.folder.0).unwrap();
        self.boot += 1;
        let runs = self.database.unfinished().unwrap();
        let lost = AttemptEnd {
            status: "lost",
            result: None,
            error: None,
            at_ms: 3000,
        };
        let settle = |transaction: &crate::server_database::WriteTransaction<'_>| {
            let mut changes = Vec::new();
            for run in &runs {
                transaction.finish(&run.id, "lost", "{}")?;
                changes.extend(transaction.end_job(&run.id, &lost)?);
            }
            Ok::<_, DatabaseError>(changes)
        };
        let changes = self.database.transact_durably(settle).unwrap();
        self.note(&changes);
        assert!(
            self.database
                .abandoned_jobs(&self.boot.to_string())
                .unwrap()
                .is_empty()
        );
    }

    fn note(&mut self, changes: &[JobChange]) {
        for change in changes
            .iter()
            .filter(|change| change.status != "queued" && !change.wait_changed)
        {
            let before = self.finals.insert(change.id.clone(), change.status.clone());
            assert_eq!(before, None, "{} ended twice", change.id);
            if change.status == "succeeded" {
                self.succeeded.insert(change.id.clone());
            }
        }
    }

    fn check(&self) {
        let all = JobFilter {
            limit: 200,
            ..JobFilter::default()
        };
        let rows = self.database.list_jobs(&all).unwrap().rows;
        assert_eq!(rows.len(), self.jobs.len(), "none is dropped");
        let followed: HashSet<String> = self
            .database
            .job_reader
            .read(|connection| {
                let mut rows = connection.prepare("SELECT id FROM job_followed")?;
                rows.query_map([], |row| row.get(0))?.collect()
            })
            .unwrap();
        let mut counts = JobCounts {
            bytes: self.database.job_counts(None).unwrap().bytes,
            ..JobCounts::default()
        };
        for row in &rows {
            assert_eq!(
                row.is_final(),
                self.finals.contains_key(&row.id),
                "{}",
                row.id
            );
            let runs = self
                .live
                .iter()
                .any(|(run, job)| *job == row.id && Some(run) == row.run.as_ref());
            assert_eq!(row.status == "running", runs, "{}", row.id);
            if row.waits_for.as_deref() == Some("jobs") {
                // A dependency may have ended while its propagation is incomplete.
                let follows = |id: &String| followed.contains(id);
                let goes_on = |id: &String| !self.finals.contains_key(id) || follows(id);
                assert!(
                    row.after.iter().any(goes_on),
                    "{} waits for nothing",
                    row.id
                );
                let dependency_failed = |id: &String| {
                    self.finals
                        .get(id)
                        .is_some_and(|status| status != "succeeded")
                        && !follows(id)
                };
                assert!(
                    !row.after.iter().any(dependency_failed),
                    "{} waits in vain",
                    row.id
                );
            }
            counts.queued += u64::from(row.status == "queued");
            counts.turn += u64::from(row.waits_for.as_deref() == Some("turn"));
            counts.running += u64::from(row.status == "running");
            counts.ended += u64::from(row.is_final());
        }
        assert_eq!(
            self.database.job_counts(None).unwrap(),
            counts,
            "the counters are right"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_each_job_has_one_state_and_runs_once_at_a_time(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
        }
        world.crash();
        world.check();
        while world.database.has_pending_propagation().unwrap() {
            world.apply(Step::Follow);
        }
    }
}
