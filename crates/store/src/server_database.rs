//! The server's tables: API keys (stored as hashes), runs (each with exactly one final state),
//! sandboxes, leases and telemetry. Separate connections let lookups of keys and runs proceed while
//! something is written.

mod sandboxes;
pub mod telemetry;
mod tenant_activity;
mod workflows;

pub use sandboxes::{SandboxRetention, SandboxRow};
pub use tenant_activity::TenantActivity;
pub use workflows::{LeaseOutcome, LeaseRequest, MAX_CHECKPOINT_BYTES, MAX_WORKFLOWS, TaskLease};

use crate::database::{Database, DatabaseError};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long an idempotency key is valid.
pub const IDEMPOTENCY_WINDOW_MS: u64 = 24 * 3_600_000;
/// Prefix of idempotency keys that the server derives itself. Clients' keys have only visible
/// characters. Keys with this prefix live as long as their run.
pub const PERSISTENT_KEY_PREFIX: char = '\u{1}';
/// Limit of idempotency keys of one owner; the oldest are removed first. An admin decides how many
/// owners there are.
const MAX_IDEMPOTENCY_KEYS: u32 = 50_000;
/// How long a writer waits for another process before the caller gets an error.
const WRITER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Maximum rows of one page.
pub const MAX_PAGE_ROWS: u32 = 200;

/// The server's tables in the database of a state folder.
#[derive(Debug)]
pub struct ServerDatabase {
    /// Reads keys. Never blocked: no writer uses this connection.
    key_reader: Database,
    /// Reads runs.
    pub(crate) reader: Database,
    /// Writes keys.
    key_writer: Database,
    /// Writes runs.
    run_writer: Database,
    /// Writes job transitions with full durability.
    durable_writer: Database,
    /// Reads for the scheduler, so that it never waits for long list queries.
    pub(crate) job_reader: Database,
    /// Long reads (telemetry, lists of jobs), so that lookups of one key, run or job do not wait
    /// for them.
    pub(crate) telemetry_reader: Database,
    /// Serializes writers of this process: SQLite itself would make them sleep and retry.
    write_lock: Mutex<()>,
}

/// An open write transaction.
#[derive(Debug)]
pub struct WriteTransaction<'a> {
    pub(crate) inner: &'a Transaction<'a>,
    database: &'a Database,
}

/// A row of an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// Key id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Tenant; empty if the key is its own tenant.
    pub tenant: String,
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// Scope names, separated by spaces.
    pub scopes: String,
    /// Time of creation.
    pub created_ms: u64,
    /// Time of expiry.
    pub expires_ms: Option<u64>,
    /// Time of revocation, if it was revoked.
    pub revoked_ms: Option<u64>,
}

/// A run to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct NewRun<'a> {
    /// Run id.
    pub id: &'a str,
    /// Owner.
    pub owner: &'a str,
    /// Task, if one was named.
    pub task: Option<&'a str>,
    /// Job, if it belongs to one.
    pub job: Option<&'a str>,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Idempotency key, with the hash of its request.
    pub idempotency_key: Option<(&'a str, [u8; 32])>,
}

/// Result of accepting a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptRunOutcome {
    /// The run is stored and may start.
    Accepted,
    /// The idempotency key and request match an earlier run; this is its id.
    Duplicate(String),
    /// The idempotency key belongs to a different request.
    KeyReused,
    /// The run id is taken.
    IdTaken,
    /// The limit of runs is reached.
    Full,
}

/// A row of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// Row number.
    pub n: i64,
    /// Run id.
    pub id: String,
    /// Owner.
    pub owner: String,
    /// Task, if one was named.
    pub task: Option<String>,
    /// Job, if it belongs to one.
    pub job: Option<String>,
    /// Status.
    pub status: String,
    /// Time of acceptance.
    pub accepted_ms: u64,
    /// Result as JSON, once the run has ended.
    pub result: Option<String>,
}

/// Filter of a list of runs, newest first.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Owner; `None` for all.
    pub owner: Option<String>,
    /// Status.
    pub status: Option<String>,
    /// Task.
    pub task: Option<String>,
    /// Only rows before this one.
    pub before: Option<i64>,
    /// Maximum rows.
    pub limit: u32,
}

impl ServerDatabase {
    /// Opens the tables of a state folder; creates them if they are absent.
    pub fn open(state: &Path) -> Result<ServerDatabase, DatabaseError> {
        let key_writer = Database::open(state)?;
        let run_writer = Database::open(state)?;
        let durable_writer = Database::open(state)?;
        for writer in [&key_writer, &run_writer, &durable_writer] {
            writer.set_busy_timeout(WRITER_TIMEOUT)?;
        }
        // A commit takes microseconds and survives this process; power loss may undo it, but then
        // the run is gone, too.
        run_writer.read(|connection| connection.pragma_update(None, "synchronous", "normal"))?;
        Ok(ServerDatabase {
            key_reader: Database::open(state)?,
            reader: Database::open(state)?,
            key_writer,
            run_writer,
            durable_writer,
            job_reader: Database::open(state)?,
            telemetry_reader: Database::open(state)?,
            write_lock: Mutex::default(),
        })
    }

    /// Adds a key; false if its id is taken.
    pub fn add_key(&self, key: &KeyRow) -> Result<bool, DatabaseError> {
        let add = "INSERT OR IGNORE INTO gateway_key (id, name, hash, scopes, created_ms, expires_ms, revoked_ms, tenant)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        self.key_writer.write(|transaction| {
            let expires = key.expires_ms.map(sql_integer);
            let revoked = key.revoked_ms.map(sql_integer);
            let created = sql_integer(key.created_ms);
            let row = params![
                key.id,
                key.name,
                &key.hash[..],
                key.scopes,
                created,
                expires,
                revoked,
                key.tenant
            ];
            Ok(transaction.execute(add, row)? == 1)
        })
    }

    /// The key with this id, revoked or not.
    pub fn key(&self, id: &str) -> Result<Option<KeyRow>, DatabaseError> {
        self.key_reader.read(|connection| {
            connection
                .prepare_cached("SELECT * FROM gateway_key WHERE id = ?")?
                .query_row([id], key_row)
                .optional()
        })
    }

    /// All keys, oldest first.
    pub fn keys(&self) -> Result<Vec<KeyRow>, DatabaseError> {
        self.key_writer.read(|connection| {
            let mut rows =
                connection.prepare("SELECT * FROM gateway_key ORDER BY created_ms, id")?;
            rows.query_map([], key_row)?.collect()
        })
    }

    /// Revokes a key permanently; false if there is none.
    pub fn revoke_key(&self, id: &str, at_ms: u64) -> Result<bool, DatabaseError> {
        let revoke = "UPDATE gateway_key SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ?";
        self.key_writer.write(|transaction| {
            Ok(transaction.execute(revoke, params![sql_integer(at_ms), id])? == 1)
        })
    }

    /// Removes keys that ended before this time. Admin keys stay: the admin key file may still
    /// contain one, and it must not be accepted as new.
    pub fn prune_keys(&self, before_ms: u64) -> Result<usize, DatabaseError> {
        let prune = "DELETE FROM gateway_key WHERE min(coalesce(revoked_ms, expires_ms), coalesce(expires_ms, revoked_ms)) < ?
                     AND ' ' || scopes || ' ' NOT LIKE '% admin %'";
        self.key_writer
            .write(|transaction| transaction.execute(prune, [sql_integer(before_ms)]))
    }

    /// Stores a run before it starts, unless its idempotency key is known, its id is taken or the
    /// limit is reached.
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<AcceptRunOutcome, DatabaseError> {
        self.run_writer
            .write(|transaction| accept(transaction, run, room))
    }

    /// Stores the end of a run. A final state is never changed.
    pub fn finish(&self, id: &str, status: &str, result: &str) -> Result<(), DatabaseError> {
        self.run_writer
            .write(|transaction| finish(transaction, id, status, result))
    }

    /// Runs a closure in one write transaction: all of its writes or none.
    pub fn transact<T>(
        &self,
        work: impl FnOnce(&WriteTransaction<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.write_by(&self.run_writer, work)
    }

    /// The same with an fsync: once it returns, power loss undoes neither these writes nor earlier
    /// ones.
    pub fn transact_durably<T>(
        &self,
        work: impl FnOnce(&WriteTransaction<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.write_by(&self.durable_writer, work)
    }

    fn write_by<T>(
        &self,
        database: &Database,
        work: impl FnOnce(&WriteTransaction<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let _turn = self
            .write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        database.transact(|transaction| {
            work(&WriteTransaction {
                inner: transaction,
                database,
            })
        })
    }

    /// The run with this id.
    pub fn run(&self, id: &str) -> Result<Option<RunRow>, DatabaseError> {
        self.reader.read(|connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {RUN_COLUMNS} FROM gateway_run WHERE id = ?"
                ))?
                .query_row([id], run_row)
                .optional()
        })
    }

    /// Runs, newest first, without their results.
    pub fn list(&self, filter: &RunFilter) -> Result<Vec<RunRow>, DatabaseError> {
        self.reader.read(|connection| {
            let mut rows = connection.prepare_cached(
                "SELECT n, id, owner, task, job, status, accepted_ms, NULL AS result FROM gateway_run
                 WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR task = ?3)
                   AND (?4 IS NULL OR n < ?4) ORDER BY n DESC LIMIT ?5",
            )?;
            let RunFilter { owner, status, task, before, limit } = filter;
            rows.query_map(params![owner, status, task, before, (*limit).min(MAX_PAGE_ROWS)], run_row)?.collect()
        })
    }

    /// All runs that have not ended. The caller owns the state folder, so no other server runs
    /// them.
    pub fn unfinished(&self) -> Result<Vec<RunRow>, DatabaseError> {
        self.run_writer.read(|connection| {
            let mut rows = connection.prepare(&format!(
                "SELECT {RUN_COLUMNS} FROM gateway_run WHERE is_final = 0 ORDER BY n"
            ))?;
            rows.query_map([], run_row)?.collect()
        })
    }

    /// Removes runs that are too old or too many; unfinished ones stay. The owner with the most
    /// runs loses its oldest first. Returns the number of runs removed.
    pub fn prune(&self, now_ms: u64, oldest_ms: u64, most: u32) -> Result<usize, DatabaseError> {
        self.run_writer.write(|transaction| {
            prune_idempotency_keys(transaction, now_ms, MAX_IDEMPOTENCY_KEYS)?;
            transaction.execute(
                "DELETE FROM gateway_run WHERE is_final = 1 AND (accepted_ms < ?1 OR n IN (
                 SELECT n FROM (SELECT n, row_number() OVER (PARTITION BY owner ORDER BY n DESC) AS place FROM gateway_run)
                 ORDER BY place, n DESC LIMIT -1 OFFSET ?2))",
                params![sql_integer(oldest_ms), most],
            )
        })
    }
}

fn prune_idempotency_keys(
    transaction: &Transaction<'_>,
    now_ms: u64,
    most: u32,
) -> rusqlite::Result<()> {
    let old = "DELETE FROM gateway_promise WHERE at_ms < ?
        AND (name >= ' ' OR NOT EXISTS (SELECT 1 FROM gateway_run WHERE id = gateway_promise.run))";
    transaction.execute(
        old,
        [sql_integer(now_ms.saturating_sub(IDEMPOTENCY_WINDOW_MS))],
    )?;
    let mut too_many = transaction.prepare(
        "SELECT owner FROM gateway_promise WHERE name >= ' ' GROUP BY owner HAVING count(*) > ?",
    )?;
    let owners: Vec<String> = too_many
        .query_map([most], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for owner in owners {
        transaction.execute(
            "DELETE FROM gateway_promise WHERE owner = ?1 AND name >= ' ' AND at_ms <= (SELECT at_ms FROM gateway_promise
             WHERE owner = ?1 AND name >= ' ' ORDER BY at_ms DESC LIMIT 1 OFFSET ?2)",
            params![owner, most],
        )?;
    }
    Ok(())
}

impl WriteTransaction<'_> {
    /// Adds the database path to SQLite's error.
    pub(crate) fn map_error<T>(&self, done: rusqlite::Result<T>) -> Result<T, DatabaseError> {
        done.map_err(|source| self.database.failed(source))
    }

    /// As [`ServerDatabase::accept`].
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<AcceptRunOutcome, DatabaseError> {
        accept(self.inner, run, room).map_err(|source| self.database.failed(source))
    }

    /// As [`ServerDatabase::finish`].
    pub fn finish(&self, id: &str, status: &str, result: &str) -> Result<(), DatabaseError> {
        finish(self.inner, id, status, result).map_err(|source| self.database.failed(source))
    }
}

fn accept(
    transaction: &Transaction<'_>,
    run: &NewRun<'_>,
    room: bool,
) -> rusqlite::Result<AcceptRunOutcome> {
    if let Some((name, body)) = run.idempotency_key
        && let Some(before) = find_idempotency_key(transaction, run, name, body)?
    {
        return Ok(before);
    }
    if !room {
        return Ok(AcceptRunOutcome::Full);
    }
    let mut add = transaction.prepare_cached(
        "INSERT OR IGNORE INTO gateway_run (id, owner, task, job, status, is_final, accepted_ms)
         VALUES (?, ?, ?, ?, 'running', 0, ?)",
    )?;
    if add.execute(params![
        run.id,
        run.owner,
        run.task,
        run.job,
        sql_integer(run.at_ms)
    ])? == 0
    {
        return Ok(AcceptRunOutcome::IdTaken);
    }
    if let Some((name, body)) = run.idempotency_key {
        let idempotency_key = "INSERT OR REPLACE INTO gateway_promise VALUES (?, ?, ?, ?, ?)";
        transaction.execute(
            idempotency_key,
            params![run.owner, name, &body[..], run.id, sql_integer(run.at_ms)],
        )?;
    }
    Ok(AcceptRunOutcome::Accepted)
}

fn finish(
    transaction: &Transaction<'_>,
    id: &str,
    status: &str,
    result: &str,
) -> rusqlite::Result<()> {
    let finish = "UPDATE gateway_run SET status = ?2, result = ?3, is_final = 1 WHERE id = ?1 AND is_final = 0";
    transaction
        .prepare_cached(finish)?
        .execute([id, status, result])?;
    Ok(())
}

const RUN_COLUMNS: &str = "n, id, owner, task, job, status, accepted_ms, result";

/// The run that an idempotency key belongs to, if the key is known and valid.
fn find_idempotency_key(
    transaction: &Transaction<'_>,
    run: &NewRun<'_>,
    name: &str,
    body: [u8; 32],
) -> rusqlite::Result<Option<AcceptRunOutcome>> {
    let find = "SELECT body, run FROM gateway_promise WHERE owner = ? AND name = ? AND at_ms >= ?";
    let since = if name.starts_with(PERSISTENT_KEY_PREFIX) {
        0
    } else {
        sql_integer(run.at_ms.saturating_sub(IDEMPOTENCY_WINDOW_MS))
    };
    let found: Option<(Vec<u8>, String)> = transaction
        .query_row(find, params![run.owner, name, since], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(found.map(|(before, run)| {
        if before == body {
            AcceptRunOutcome::Duplicate(run)
        } else {
            AcceptRunOutcome::KeyReused
        }
    }))
}

fn key_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    let hash: Vec<u8> = row.get("hash")?;
    Ok(KeyRow {
        id: row.get("id")?,
        name: row.get("name")?,
        tenant: row.get("tenant")?,
        // A hash of the wrong length becomes zeros, which match no token.
        hash: hash.try_into().unwrap_or_default(),
        scopes: row.get("scopes")?,
        created_ms: from_sql(row.get("created_ms")?),
        expires_ms: row.get::<_, Option<i64>>("expires_ms")?.map(from_sql),
        revoked_ms: row.get::<_, Option<i64>>("revoked_ms")?.map(from_sql),
    })
}

fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    Ok(RunRow {
        n: row.get("n")?,
        id: row.get("id")?,
        owner: row.get("owner")?,
        task: row.get("task")?,
        job: row.get("job")?,
        status: row.get("status")?,
        accepted_ms: from_sql(row.get("accepted_ms")?),
        result: row.get("result")?,
    })
}

/// SQLite integers end at 2^63.
pub(crate) fn sql_integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn from_sql(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

#[cfg(test)]
#[path = "server_database_tests.rs"]
mod tests;
