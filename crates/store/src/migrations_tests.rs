//! Databases of every released schema migrate to the current one with all their rows.

use crate::{
    AllowedImages, DatabaseError,
    database::{Database, MIGRATIONS},
    server_database::{RunFilter, SandboxRetention, ServerDatabase},
    usage::{GroupBy, UsageDatabase, UsageFilter},
};
use rusqlite::Connection;
use sha2::{Digest, Sha256};
use std::{
    fs,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A released schema: the dump of a database with rows, and the hash of the migration that led
/// there.
const RELEASED: [(&str, &str); 4] = [
    (
        include_str!("schema/fixtures/1.sql"),
        "85b69e84b255887261c6d14609c35f224dbc7b79846df3836b0468496d6d35c8",
    ),
    (
        include_str!("schema/fixtures/2.sql"),
        "44671b1adcbd021c9d91af8488c096f9f4c0f2a1835f0f005de332b3ff2d3f48",
    ),
    (
        include_str!("schema/fixtures/3.sql"),
        "daed28fcd50048ddf3ba33be0e7bab9ba54ab35613d65be7c74d7d5f53f793fb",
    ),
    (
        include_str!("schema/fixtures/4.sql"),
        "a96762f2edc52bac587695b8f2f09dab45d265720ad956d6d91c1d0e2aeb3a1c",
    ),
];
/// State folder that a child process of the test opens.
const FOLDER: &str = "AIRLOCK_TEST_MIGRATE";

struct StateFolder(PathBuf);

impl StateFolder {
    /// A state folder with a database of this schema.
    fn of(schema: usize) -> StateFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-migrate-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let place = StateFolder(std::env::temp_dir().join(name));
        fs::create_dir(&place.0).unwrap();
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o700)).unwrap();
        let file = place.0.join("airlock.db");
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)
            .unwrap();
        let connection = Connection::open(&file).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = wal")
            .unwrap_or_default();
        connection.execute_batch(RELEASED[schema - 1].0).unwrap();
        assert_eq!(version(&connection), schema as i64);
        place
    }

    fn version(&self) -> i64 {
        version(&Connection::open(self.0.join("airlock.db")).unwrap())
    }

    /// A child process that opens it.
    fn opener(&self) -> Child {
        let this = std::env::current_exe().unwrap();
        let name = "migrations_tests::another_process_opens_it";
        let mut command = Command::new(this);
        command
            .args(["--exact", name, "--ignored", "--quiet"])
            .env(FOLDER, &self.0);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn version(connection: &Connection) -> i64 {
    connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap()
}

/// Every row is there, read through the current API.
fn is_intact(state: &Path, schema: usize) {
    let images = AllowedImages::open(state).unwrap();
    let patterns: Vec<_> = images
        .list()
        .unwrap()
        .iter()
        .map(|image| image.pattern.to_string())
        .collect();
    assert_eq!(
        patterns,
        ["docker.io/library/alpine:3.19", "ghcr.io/acme/tool:1"]
    );
    assert_eq!(images.trail().unwrap().len(), 2);
    let totals = UsageDatabase::open(state)
        .unwrap()
        .totals(GroupBy::Tenant, &UsageFilter::default())
        .unwrap();
    if schema >= 2 {
        assert_eq!(
            (totals[0].key.as_str(), totals[0].calls, totals[0].money),
            ("acme", 2, 623)
        );
        assert_eq!(
            (totals[0].input_tokens, totals[0].unsettled_money),
            (15, 500)
        );
    } else {
        assert!(totals.is_empty());
    }
    let database = ServerDatabase::open(state).unwrap();
    let keys = database.keys().unwrap();
    let runs = database
        .list(&RunFilter {
            limit: 10,
            ..RunFilter::default()
        })
        .unwrap();
    if schema >= 3 {
        let key = database.key("0123456789abcdef").unwrap().unwrap();
        assert_eq!(
            (key.name.as_str(), key.scopes.as_str(), key.hash),
            ("ci", "runs artifacts", [0x1d; 32])
        );
        assert_eq!(
            (keys.len(), keys[0].tenant.as_str()),
            (2, ""),
            "a key without a tenant is its own"
        );
        let runs: Vec<_> = runs
            .iter()
            .map(|run| (run.id.as_str(), run.status.as_str()))
            .collect();
        assert_eq!(runs, [("01JTWO", "running"), ("01JONE", "succeeded")]);
        assert_eq!(database.unfinished().unwrap().len(), 1);
    } else {
        assert!(keys.is_empty() && runs.is_empty());
    }
    let remembered = SandboxRetention {
        ended_since_ms: 0,
        idempotent_since_ms: 0,
        max_per_owner: 100,
        max_total: 100,
    };
    let sandboxes = database
        .recover_sandboxes(1_700_000_002_000, &remembered)
        .unwrap();
    assert_eq!(sandboxes.len(), if schema >= 4 { 2 } else { 0 });
}

#[test]
fn every_released_schema_leads_to_todays_with_all_that_was_in_it() {
    for schema in 1..=RELEASED.len() {
        let place = StateFolder::of(schema);
        drop(Database::open(&place.0).unwrap());
        assert_eq!(place.version(), MIGRATIONS.len() as i64);
        is_intact(&place.0, schema);
        assert_eq!(
            crate::backup::check_integrity(&place.0).unwrap(),
            Vec::<String>::new()
        );
    }
}

#[test]
fn a_released_schema_that_was_brought_forward_is_as_a_new_one() {
    let shape = |state: &Path| {
        let connection = Connection::open(state.join("airlock.db")).unwrap();
        let mut rows = connection
            .prepare(
                "SELECT type, name, tbl_name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2",
            )
            .unwrap();
        let rows = rows
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap();
        rows.collect::<Result<Vec<(String, String, String)>, _>>()
            .unwrap()
    };
    let columns = |state: &Path, table: &str| {
        let connection = Connection::open(state.join("airlock.db")).unwrap();
        let mut rows = connection
            .prepare("SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info(?)")
            .unwrap();
        let rows = rows.query_map([table], |row| {
            Ok(format!(
                "{:?}",
                (
                    row.get::<_, String>(0)?,
                    row.get::<_, String>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, Option<String>>(3)?,
                    row.get::<_, i64>(4)?
                )
            ))
        });
        rows.unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    let new = StateFolder::of(1);
    fs::remove_file(new.0.join("airlock.db")).unwrap();
    drop(Database::open(&new.0).unwrap());
    for schema in 1..=RELEASED.len() {
        let old = StateFolder::of(schema);
        drop(Database::open(&old.0).unwrap());
        assert_eq!(shape(&old.0), shape(&new.0));
        for (_, name, _) in shape(&new.0).iter().filter(|(kind, ..)| kind == "table") {
            assert_eq!(
                columns(&old.0, name),
                columns(&new.0, name),
                "{name} from {schema}"
            );
        }
    }
}

#[test]
fn what_was_released_is_never_changed() {
    for (step, (_, wanted)) in MIGRATIONS.iter().zip(RELEASED) {
        let hash = Sha256::digest(step.as_bytes());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = step.lines().next().unwrap_or_default();
        assert_eq!(
            hash, wanted,
            "a step that users have is changed by adding another: {first}"
        );
    }
}

#[test]
fn a_copy_of_a_database_is_of_the_same_schema_and_a_later_one_is_refused() {
    let place = StateFolder::of(2);
    let to = place.0.join("copy.db");
    fs::write(&to, "").unwrap();
    assert_eq!(
        crate::backup::copy_database(&place.0, &to).unwrap(),
        Some(2)
    );
    assert_eq!(
        (version(&Connection::open(&to).unwrap()), place.version()),
        (2, 2)
    );
    let connection = Connection::open(place.0.join("airlock.db")).unwrap();
    connection
        .pragma_update(None, "user_version", 9999)
        .unwrap();
    let again = place.0.join("again.db");
    fs::write(&again, "").unwrap();
    assert!(matches!(
        crate::backup::copy_database(&place.0, &again),
        Err(DatabaseError::NewerSchema { found: 9999, .. })
    ));
}

#[test]
fn a_database_with_more_than_ours_is_told_from_one_of_any_schema() {
    for schema in 1..=RELEASED.len() {
        let place = StateFolder::of(schema);
        assert_eq!(
            crate::backup::schema_difference(&place.0).unwrap(),
            None,
            "as released: {schema}"
        );
        drop(Database::open(&place.0).unwrap());
        assert_eq!(
            crate::backup::schema_difference(&place.0).unwrap(),
            None,
            "brought forward: {schema}"
        );
        let connection = Connection::open(place.0.join("airlock.db")).unwrap();
        let odd = "CREATE TRIGGER odd AFTER INSERT ON gateway_key BEGIN UPDATE gateway_key SET scopes = 'admin'; END";
        connection.execute_batch(odd).unwrap();
        assert_eq!(
            crate::backup::schema_difference(&place.0)
                .unwrap()
                .as_deref(),
            Some("trigger `odd`")
        );
        // A name that SQLite itself would not allow.
        let rename =
            "UPDATE sqlite_schema SET name = 'sqlite_odd', sql = replace(sql, 'odd', 'sqlite_odd')
            WHERE name = 'odd'";
        connection
            .pragma_update(None, "writable_schema", true)
            .unwrap();
        assert_eq!(connection.execute(rename, []).unwrap(), 1);
        drop(connection);
        assert_eq!(
            crate::backup::schema_difference(&place.0)
                .unwrap()
                .as_deref(),
            Some("trigger `sqlite_odd`")
        );
    }
}

#[test]
fn what_waited_when_it_was_backed_up_is_held_unless_it_may_run_again() {
    let place = StateFolder::of(4);
    drop(Database::open(&place.0).unwrap());
    let connection = Connection::open(place.0.join("airlock.db")).unwrap();
    let add =
        "INSERT INTO job (id, tenant, key, labels, status, waits_for, priority, accepted_ms, due_ms, keep_ms,
            most_attempts, retry_on, pause_ms, on_lost, boot, bytes) VALUES
            ('once', 't', 'k', '{}', 'queued', 'turn', 0, 1, 1, 10, 1, '', 0, 'lost', NULL, 1),
            ('running', 't', 'k', '{}', 'running', '', 0, 1, 1, 10, 1, '', 0, 'lost', 'b', 1),
            ('again', 't', 'k', '{}', 'queued', 'turn', 0, 1, 1, 10, 1, '', 0, 'rerun', NULL, 1),
            ('behind', 't', 'k', '{}', 'queued', 'jobs', 0, 1, 1, 10, 1, '', 0, 'rerun', NULL, 1);
        INSERT INTO job_after SELECT n, 0, 'once', 0 FROM job WHERE id = 'behind';
        INSERT INTO webhook_notice (id, job, tenant, url, event, at_ms, body, state, attempts, due_ms)
            VALUES ('n', 'once', 't', 'u', 'e', 1, 'b', 'waiting', 0, 1);";
    connection.execute_batch(add).unwrap();
    let held = crate::backup::cancel_pending_work(&place.0, "THEN", 100).unwrap();
    assert_eq!((held.jobs, held.notices), (3, 1));
    let mut ended = Vec::new();
    crate::backup::for_each_cancelled_job(&place.0, 100, |tenant, job| {
        ended.push(format!("{tenant}/{job}"))
    })
    .unwrap();
    assert_eq!(ended, ["t/once", "t/running", "t/behind"]);
    let text = |query: &str| {
        connection
            .query_row(query, [], |row| row.get::<_, String>(0))
            .unwrap()
    };
    let status = |id: &str| text(&format!("SELECT status FROM job WHERE id = '{id}'"));
    assert_eq!(
        ["once", "running", "again", "behind"].map(status),
        ["lost", "lost", "queued", "lost"]
    );
    assert!(text("SELECT error FROM job WHERE id = 'once'").contains("from a backup of THEN"));
    assert_eq!(text("SELECT state FROM webhook_notice"), "given_up");
    assert_eq!(
        text("SELECT queued || ' ' || running || ' ' || ended FROM job_tenant WHERE tenant = 't'"),
        "1 0 3"
    );
}

#[test]
fn pages_that_nobody_needs_are_given_back() {
    let place = StateFolder::of(4);
    assert_eq!(crate::backup::reclaim_free_pages(&place.0).unwrap(), 0);
    let database = Database::open(&place.0).unwrap();
    let fill = "CREATE TABLE filler (x BLOB); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 24)
        INSERT INTO filler SELECT randomblob(1 << 20) FROM n; DROP TABLE filler;";
    database
        .read(|connection| connection.execute_batch(fill))
        .unwrap();
    drop(database);
    let size = || fs::metadata(place.0.join("airlock.db")).unwrap().len();
    let before = size();
    assert!(crate::backup::reclaim_free_pages(&place.0).unwrap() > 20 << 20);
    assert!(before > 20 << 20 && size() < 1 << 20, "{before} {}", size());
    is_intact(&place.0, 4);
}

#[test]
#[ignore = "a child of other tests"]
fn another_process_opens_it() {
    let Some(state) = std::env::var_os(FOLDER) else {
        return;
    };
    drop(Database::open(Path::new(&state)).unwrap());
}

#[test]
fn several_processes_that_bring_it_forward_at_once_do_not_disturb_each_other() {
    for schema in 1..=RELEASED.len() {
        let place = StateFolder::of(schema);
        let children: Vec<_> = (0..6).map(|_| place.opener()).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(place.version(), MIGRATIONS.len() as i64);
        is_intact(&place.0, schema);
    }
}

#[test]
fn a_process_that_is_killed_while_it_brings_it_forward_leaves_the_old_or_the_new() {
    let mut old = 0;
    let mut new = 0;
    let begun = std::time::Instant::now();
    let first = StateFolder::of(1);
    assert!(first.opener().wait().unwrap().success());
    let whole = begun.elapsed();
    for round in 0..60 {
        let place = StateFolder::of(1);
        let mut child = place.opener();
        // From an immediate kill to one after the end, however fast this machine is.
        match round {
            59 => assert!(child.wait().unwrap().success()),
            _ => std::thread::sleep(whole * round / 50),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        match place.version() {
            1 => old += 1,
            version if version == MIGRATIONS.len() as i64 => new += 1,
            other => panic!("half way: {other}"),
        }
        is_intact(&place.0, 1);
    }
    assert!(
        old > 0 && new > 0,
        "{old} times the old, {new} times the new"
    );
}
