//! Claims about the server's tables.

use super::*;
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Folder {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "airlock-served-{}.{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    Folder(path)
}

fn run<'a>(id: &'a str, owner: &'a str) -> NewRun<'a> {
    NewRun {
        id,
        owner,
        task: None,
        job: None,
        at_ms: 1000,
        idempotency_key: None,
    }
}

fn ids(database: &ServerDatabase, filter: &RunFilter) -> Vec<String> {
    database
        .list(filter)
        .unwrap()
        .into_iter()
        .map(|run| run.id)
        .collect()
}

#[test]
fn keys_that_ended_long_ago_are_forgotten_but_not_those_of_admins() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let row = |id: &str, scopes: &str, expires_ms, revoked_ms| KeyRow {
        id: id.into(),
        name: "n".into(),
        tenant: String::new(),
        hash: [1; 32],
        scopes: scopes.into(),
        created_ms: 1,
        expires_ms,
        revoked_ms,
    };
    let rows = [
        row("a-good", "runs", None, None),
        row("b-later", "runs", Some(100), None),
        row("c-expired", "runs", Some(99), None),
        row("d-revoked", "runs usage", None, Some(99)),
        row("e-both", "runs", Some(200), Some(50)),
        row("f-admin", "admin", None, Some(5)),
    ];
    assert!(rows.iter().all(|row| database.add_key(row).unwrap()));
    assert_eq!(database.prune_keys(100).unwrap(), 3);
    let left: Vec<_> = database
        .keys()
        .unwrap()
        .into_iter()
        .map(|row| row.id)
        .collect();
    assert_eq!(left, ["a-good", "b-later", "f-admin"]);
}

#[test]
fn a_key_is_found_until_the_end_and_says_when_it_was_revoked() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let key = KeyRow {
        id: "a".into(),
        name: "ci".into(),
        tenant: String::new(),
        hash: [7; 32],
        scopes: "runs usage".into(),
        created_ms: 5,
        expires_ms: Some(9),
        revoked_ms: None,
    };
    assert!(
        database.add_key(&key).unwrap() && !database.add_key(&key).unwrap(),
        "an identifier serves once"
    );
    assert_eq!(database.key("a").unwrap(), Some(key.clone()));
    // Another process revokes the key; no cache is in between.
    assert!(
        ServerDatabase::open(&folder.0)
            .unwrap()
            .revoke_key("a", 7)
            .unwrap()
    );
    assert!(database.revoke_key("a", 8).unwrap() && !database.revoke_key("b", 8).unwrap());
    assert_eq!(
        database.keys().unwrap(),
        [KeyRow {
            revoked_ms: Some(7),
            ..key
        }]
    );
}

#[test]
fn the_same_promise_is_one_run_and_another_request_is_refused() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let promised = |id, body, at_ms| NewRun {
        idempotency_key: Some(("k", [body; 32])),
        at_ms,
        ..run(id, "a")
    };
    assert_eq!(
        database.accept(&promised("r1", 1, 0), true).unwrap(),
        AcceptRunOutcome::Accepted
    );
    assert_eq!(
        database.accept(&promised("r2", 1, 1), true).unwrap(),
        AcceptRunOutcome::Duplicate("r1".into())
    );
    assert_eq!(
        database.accept(&promised("r3", 2, 1), true).unwrap(),
        AcceptRunOutcome::KeyReused
    );
    assert_eq!(
        database.accept(&promised("r2", 1, 1), false).unwrap(),
        AcceptRunOutcome::Duplicate("r1".into())
    );
    assert_eq!(
        database.accept(&run("r6", "a"), false).unwrap(),
        AcceptRunOutcome::Full
    );
    let others = NewRun {
        owner: "b",
        ..promised("r4", 2, 1)
    };
    assert_eq!(
        database.accept(&others, true).unwrap(),
        AcceptRunOutcome::Accepted,
        "another's keys are his own"
    );
    assert_eq!(
        database
            .accept(&promised("r5", 2, IDEMPOTENCY_WINDOW_MS + 1), true)
            .unwrap(),
        AcceptRunOutcome::Accepted,
        "a day is over"
    );
    assert_eq!(
        database.accept(&run("r1", "b"), true).unwrap(),
        AcceptRunOutcome::IdTaken
    );
}

#[test]
fn a_run_has_one_end() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    database.accept(&run("r", "a"), true).unwrap();
    assert_eq!(database.unfinished().unwrap().len(), 1);
    database.finish("r", "succeeded", "{}").unwrap();
    database.finish("r", "lost", "{\"late\":1}").unwrap();
    let found = database.run("r").unwrap().unwrap();
    assert_eq!(
        (found.status.as_str(), found.result.as_deref()),
        ("succeeded", Some("{}"))
    );
    assert!(database.unfinished().unwrap().is_empty());
}

#[test]
fn runs_are_listed_newest_first_by_owner_status_and_task_from_a_cursor_on() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    for (id, owner, task) in [
        ("1", "a", None),
        ("2", "b", Some("t")),
        ("3", "a", Some("t")),
        ("4", "a", None),
    ] {
        database
            .accept(
                &NewRun {
                    task,
                    ..run(id, owner)
                },
                true,
            )
            .unwrap();
    }
    database.finish("3", "failed", "{}").unwrap();
    let all = RunFilter {
        limit: 50,
        ..RunFilter::default()
    };
    assert_eq!(ids(&database, &all), ["4", "3", "2", "1"]);
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                owner: Some("a".into()),
                ..all.clone()
            }
        ),
        ["4", "3", "1"]
    );
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                task: Some("t".into()),
                ..all.clone()
            }
        ),
        ["3", "2"]
    );
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                status: Some("failed".into()),
                ..all.clone()
            }
        ),
        ["3"]
    );
    let first = database
        .list(&RunFilter {
            limit: 2,
            ..all.clone()
        })
        .unwrap();
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                before: Some(first[1].n),
                ..all
            }
        ),
        ["2", "1"]
    );
}

#[test]
fn what_is_too_old_or_too_much_is_forgotten_but_nothing_that_goes_on() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    for (id, at_ms) in [("1", 10), ("2", 10), ("3", 2000), ("4", 2000), ("5", 2000)] {
        database
            .accept(
                &NewRun {
                    at_ms,
                    ..run(id, "a")
                },
                true,
            )
            .unwrap();
    }
    for id in ["2", "3", "4", "5"] {
        database.finish(id, "succeeded", "{}").unwrap();
    }
    assert_eq!(
        database.prune(2000, 1000, 2).unwrap(),
        2,
        "one is too old, one too many"
    );
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                limit: 9,
                ..RunFilter::default()
            }
        ),
        ["5", "4", "1"]
    );
}

#[test]
fn a_sandbox_without_an_end_is_lost_with_its_server_and_an_ended_one_keeps_its_reason() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let row = |id: &str, at| SandboxRow {
        id: id.into(),
        owner: "me".into(),
        labels: "{}".into(),
        backend: "native".into(),
        profile: "default".into(),
        created_ms: at,
        idempotency_key: Some((id.to_uppercase(), vec![1; 32])),
        ended: None,
    };
    let add = |row: SandboxRow| {
        database
            .transact(|transaction| transaction.add_sandbox(&row))
            .unwrap()
    };
    let end = |id: &str, why: &str, at| {
        database
            .transact(|transaction| transaction.end_sandbox(id, why, at))
            .unwrap()
    };
    let since = |since_ms| SandboxRetention {
        ended_since_ms: since_ms,
        idempotent_since_ms: since_ms,
        max_per_owner: 3,
        max_total: 4,
    };
    assert!(add(row("lives", 1)) && add(row("ends", 2)));
    assert!(!add(row("lives", 3)), "a name serves one that lives");
    add(row("failed", 4));
    database
        .transact(|transaction| transaction.remove_sandbox("failed"))
        .unwrap();
    end("ends", "idle", 50);
    let after = ServerDatabase::open(&folder.0)
        .unwrap()
        .recover_sandboxes(60, &since(0))
        .unwrap();
    let lost = SandboxRow {
        ended: Some((60, "lost".into())),
        ..row("lives", 1)
    };
    let ended = SandboxRow {
        ended: Some((50, "idle".into())),
        ..row("ends", 2)
    };
    assert_eq!(after, [lost, ended.clone()]);
    assert!(add(row("lives", 5)), "and another one once it is gone");
    assert_eq!(
        database.recover_sandboxes(70, &since(51)).unwrap().len(),
        1,
        "what is too old is forgotten"
    );
    let rarely = SandboxRow {
        idempotency_key: None,
        ..row("rarely", 75)
    };
    add(SandboxRow {
        owner: "somebody".into(),
        ..rarely
    });
    end("rarely", "asked", 75);
    for number in 0..9 {
        add(row(&format!("s{number}"), 80));
        end(&format!("s{number}"), "asked", 80 + number);
    }
    let names = |remembered: SandboxRetention| -> Vec<_> {
        database
            .recover_sandboxes(90, &remembered)
            .unwrap()
            .into_iter()
            .map(|row| row.id)
            .collect()
    };
    assert_eq!(
        names(since(0)),
        ["rarely", "s6", "s7", "s8"],
        "of one owner no more than that"
    );
    let fewer = SandboxRetention {
        max_total: 3,
        ..since(0)
    };
    assert_eq!(
        names(fewer),
        ["rarely", "s7", "s8"],
        "whoever has the most loses first"
    );
    let later = SandboxRetention {
        idempotent_since_ms: 80,
        ..since(89)
    };
    assert_eq!(
        names(later),
        ["s7", "s8"],
        "what was promised is remembered for longer"
    );
}

#[test]
fn one_owners_runs_and_promises_push_out_his_own_and_nobody_elses() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let owners = ["quiet", "loud", "loud", "loud", "loud"];
    let names: Vec<_> = (0..owners.len()).map(|number| number.to_string()).collect();
    for (name, owner) in names.iter().zip(owners) {
        let idempotency_key = Some((name.as_str(), [1; 32]));
        let at_ms = 1000 + name.parse::<u64>().unwrap();
        database
            .accept(
                &NewRun {
                    idempotency_key,
                    at_ms,
                    ..run(name, owner)
                },
                true,
            )
            .unwrap();
        database.finish(name, "succeeded", "{}").unwrap();
    }
    assert_eq!(
        database.prune(1000, 0, 5).unwrap(),
        0,
        "the positive control: all of them fit"
    );
    assert_eq!(database.prune(1000, 0, 3).unwrap(), 2);
    assert_eq!(
        ids(
            &database,
            &RunFilter {
                limit: 9,
                ..RunFilter::default()
            }
        ),
        ["4", "3", "0"]
    );
    database
        .run_writer
        .write(|transaction| prune_idempotency_keys(transaction, 1000, 2))
        .unwrap();
    let left = |connection: &rusqlite::Connection| {
        let mut rows = connection.prepare("SELECT name FROM gateway_promise ORDER BY name")?;
        rows.query_map([], |row| row.get::<_, String>(0))?
            .collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(database.run_writer.read(left).unwrap(), ["0", "3", "4"]);
}

#[test]
fn what_stands_for_a_job_outlasts_an_idempotency_key_and_ends_with_its_run() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let job = format!("{PERSISTENT_KEY_PREFIX}job");
    let promised = |id, at_ms, name| NewRun {
        at_ms,
        idempotency_key: Some((name, [1; 32])),
        ..run(id, "a")
    };
    for (id, name) in [("r1", job.as_str()), ("r2", "key")] {
        assert_eq!(
            database.accept(&promised(id, 1000, name), true).unwrap(),
            AcceptRunOutcome::Accepted
        );
        database.finish(id, "succeeded", "{}").unwrap();
    }
    let later = 1000 + 2 * IDEMPOTENCY_WINDOW_MS;
    database.prune(later, 0, 100).unwrap();
    assert_eq!(
        database.accept(&promised("r3", later, &job), true).unwrap(),
        AcceptRunOutcome::Duplicate("r1".into())
    );
    assert_eq!(
        database
            .accept(&promised("r4", later, "key"), true)
            .unwrap(),
        AcceptRunOutcome::Accepted,
        "the control"
    );
    database.prune(later, later, 100).unwrap();
    database.prune(later, later, 100).unwrap();
    assert_eq!(
        database.accept(&promised("r5", later, &job), true).unwrap(),
        AcceptRunOutcome::Accepted
    );
}

fn wanted(task: &str, holder: &str, now_ms: u64) -> LeaseRequest {
    LeaseRequest {
        owner: "a".into(),
        task: task.into(),
        run: format!("{task}-{holder}-{now_ms}"),
        holder: holder.into(),
        idempotency: None,
        lease_ms: Some(10),
        now_ms,
    }
}

#[test]
fn a_task_has_one_holder_until_he_gives_it_back_or_his_time_is_over() {
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let start = |holder, now| {
        database
            .transact(|w| w.start_workflow(&wanted("t", holder, now)))
            .unwrap()
    };
    let resume = |holder, now| {
        database
            .transact(|w| w.resume_workflow(&wanted("t", holder, now)))
            .unwrap()
    };
    let note = |holder, now, text| {
        database
            .transact(|w| w.checkpoint_workflow(&wanted("t", holder, now), text))
            .unwrap()
    };
    let release = |holder| {
        database
            .transact(|w| w.release_workflow("a", "t", holder))
            .unwrap()
    };
    assert_eq!(resume("one", 0), LeaseOutcome::NotStarted);
    let LeaseOutcome::Started(first) = start("one", 0) else {
        panic!("nobody had it")
    };
    assert_eq!(
        (start("two", 9), note("two", 9, "2"), release("two")),
        (LeaseOutcome::HeldByOther, LeaseOutcome::HeldByOther, false)
    );
    let LeaseOutcome::Renewed(again) = start("one", 9) else {
        panic!("it is his")
    };
    assert_eq!((&again.run, again.expires_ms), (&first.run, 19));
    assert!(matches!(note("one", 12, "1"), LeaseOutcome::Renewed(_)));
    assert_eq!(
        start("two", 21),
        LeaseOutcome::HeldByOther,
        "a checkpoint renews it"
    );
    let LeaseOutcome::Started(second) = start("two", 22) else {
        panic!("its time is over")
    };
    assert!(second.run != first.run && second.checkpoint.as_deref() == Some("1"));
    assert_eq!(
        note("one", 23, "late"),
        LeaseOutcome::HeldByOther,
        "who lost it writes nothing"
    );
    let LeaseOutcome::Started(third) = resume("one", 40) else {
        panic!("its time is over again")
    };
    assert_eq!(
        (&third.run, third.checkpoint.as_deref()),
        (&second.run, Some("1"))
    );
    let as_before = |now| LeaseRequest {
        lease_ms: None,
        ..wanted("t", "one", now)
    };
    let renewed = database
        .transact(|w| w.checkpoint_workflow(&as_before(41), "2"))
        .unwrap();
    assert!(
        matches!(
            renewed,
            LeaseOutcome::Renewed(TaskLease { expires_ms: 51, .. })
        ),
        "as long as before: {renewed:?}"
    );
    assert!(
        !release("two"),
        "what he does not have he cannot give back, whenever he asks"
    );
    assert!(release("one") && release("one"));
    let LeaseOutcome::Started(fresh) = start("two", 42) else {
        panic!("it was given back")
    };
    assert_eq!(fresh.checkpoint, None);
}

#[test]
fn checkpoints_of_one_owner_have_a_bound_and_those_that_nobody_took_over_are_forgotten() {
    use crate::server_database::MAX_CHECKPOINT_BYTES;
    let folder = folder();
    let database = ServerDatabase::open(&folder.0).unwrap();
    let half = "x".repeat(MAX_CHECKPOINT_BYTES as usize / 2);
    let note = |task: &str, text: &str| {
        database.transact(|w| {
            w.start_workflow(&wanted(task, "one", 0))?;
            w.checkpoint_workflow(&wanted(task, "one", 0), text)
        })
    };
    for task in ["a", "b", "b"] {
        assert!(
            matches!(note(task, &half).unwrap(), LeaseOutcome::Renewed(_)),
            "{task}"
        );
    }
    assert_eq!(note("c", "x").unwrap(), LeaseOutcome::CheckpointsTooLarge);
    assert_eq!(
        database.transact(|w| w.prune_workflows(1000)).unwrap(),
        0,
        "somebody may take them over"
    );
    assert_eq!(
        database
            .transact(|w| w.prune_workflows(8 * 24 * 3_600_000))
            .unwrap(),
        3
    );
    assert!(matches!(note("c", "x").unwrap(), LeaseOutcome::Renewed(_)));
}
