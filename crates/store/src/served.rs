//! The server's tables: API keys (stored as hashes), runs (each with exactly one final state),
//! sandboxes, leases and telemetry. Separate connections let lookups of keys and runs proceed while
//! something is written.

mod days;
mod sandboxes;
pub mod telemetry;
mod workflows;

pub use days::DayUse;
pub use sandboxes::{Remembered, SandboxRow};
pub use workflows::{Lease, MOST_CHECKPOINTS, MOST_WORKFLOWS, NewLease, Taking};

use crate::database::{Database, DatabaseError};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long an idempotency key is valid.
pub const PROMISED_MS: u64 = 24 * 3_600_000;
/// Prefix of idempotency keys that the server derives itself. Clients' keys have only visible
/// characters. Keys with this prefix live as long as their run.
pub const LASTING: char = '\u{1}';
/// Limit of idempotency keys of one owner; the oldest are removed first. An admin decides how many
/// owners there are.
const MOST_PROMISES: u32 = 50_000;
/// How long a writer waits for another process before the caller gets an error.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Maximum rows of one page.
pub const MOST_LISTED: u32 = 200;

/// The server's tables in the database of a state folder.
#[derive(Debug)]
pub struct Served {
    /// Reads keys. Never blocked: no writer uses this connection.
    keys: Database,
    /// Reads runs.
    pub(crate) reading: Database,
    /// Writes keys.
    changes: Database,
    /// Writes runs.
    runs: Database,
    /// Writes job transitions with full durability.
    durable: Database,
    /// Reads for the scheduler, so that it never waits for long list queries.
    pub(crate) jobs: Database,
    /// Long reads (telemetry, lists of jobs), so that lookups of one key, run or job do not wait
    /// for them.
    pub(crate) telemetry: Database,
    /// Serializes writers of this process: SQLite itself would make them sleep and retry.
    turn: Mutex<()>,
}

/// An open write transaction.
#[derive(Debug)]
pub struct Writing<'a> {
    pub(crate) transaction: &'a Transaction<'a>,
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
    pub promise: Option<(&'a str, [u8; 32])>,
}

/// Result of accepting a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The run is stored and may start.
    New,
    /// The idempotency key and request match an earlier run; this is its id.
    Before(String),
    /// The idempotency key belongs to a different request.
    OtherRequest,
    /// The run id is taken.
    NameTaken,
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

impl Served {
    /// Opens the tables of a state folder; creates them if they are absent.
    pub fn open(state: &Path) -> Result<Served, DatabaseError> {
        let (keys, reading) = (Database::open(state)?, Database::open(state)?);
        let (changes, runs) = (Database::open(state)?, Database::open(state)?);
        let (durable, jobs) = (Database::open(state)?, Database::open(state)?);
        let telemetry = Database::open(state)?;
        changes.wait_at_most(PATIENCE)?;
        runs.wait_at_most(PATIENCE)?;
        durable.wait_at_most(PATIENCE)?;
        // A commit takes microseconds and survives this process; power loss may undo it, but then
        // the run is gone, too.
        runs.read(|connection| connection.pragma_update(None, "synchronous", "normal"))?;
        Ok(Served {
            keys,
            reading,
            changes,
            runs,
            durable,
            jobs,
            telemetry,
            turn: Mutex::default(),
        })
    }

    /// Adds a key; false if its id is taken.
    pub fn add_key(&self, key: &KeyRow) -> Result<bool, DatabaseError> {
        let add = "INSERT OR IGNORE INTO gateway_key (id, name, hash, scopes, created_ms, expires_ms, revoked_ms, tenant)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        self.changes.write(|transaction| {
            let (expires, revoked) = (key.expires_ms.map(number), key.revoked_ms.map(number));
            let created = number(key.created_ms);
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
        self.keys.read(|connection| {
            connection
                .prepare_cached("SELECT * FROM gateway_key WHERE id = ?")?
                .query_row([id], key_row)
                .optional()
        })
    }

    /// All keys, oldest first.
    pub fn keys(&self) -> Result<Vec<KeyRow>, DatabaseError> {
        self.changes.read(|connection| {
            let mut rows =
                connection.prepare("SELECT * FROM gateway_key ORDER BY created_ms, id")?;
            rows.query_map([], key_row)?.collect()
        })
    }

    /// Revokes a key permanently; false if there is none.
    pub fn revoke_key(&self, id: &str, at_ms: u64) -> Result<bool, DatabaseError> {
        let revoke = "UPDATE gateway_key SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ?";
        self.changes
            .write(|transaction| Ok(transaction.execute(revoke, params![number(at_ms), id])? == 1))
    }

    /// Removes keys that ended before this time. Admin keys stay: the admin key file may still
    /// contain one, and it must not be accepted as new.
    pub fn prune_keys(&self, before_ms: u64) -> Result<usize, DatabaseError> {
        let prune = "DELETE FROM gateway_key WHERE min(coalesce(revoked_ms, expires_ms), coalesce(expires_ms, revoked_ms)) < ?
                     AND ' ' || scopes || ' ' NOT LIKE '% admin %'";
        self.changes
            .write(|transaction| transaction.execute(prune, [number(before_ms)]))
    }

    /// Stores a run before it starts, unless its idempotency key is known, its id is taken or the
    /// limit is reached.
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<Accepted, DatabaseError> {
        self.runs
            .write(|transaction| accept(transaction, run, room))
    }

    /// Stores the end of a run. A final state is never changed.
    pub fn finish(&self, id: &str, status: &str, result: &str) -> Result<(), DatabaseError> {
        self.runs
            .write(|transaction| finish(transaction, id, status, result))
    }

    /// Runs a closure in one write transaction: all of its writes or none.
    pub fn together<T>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.write_by(&self.runs, work)
    }

    /// The same with an fsync: once it returns, power loss undoes neither these writes nor earlier
    /// ones.
    pub fn together_durably<T>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.write_by(&self.durable, work)
    }

    fn write_by<T>(
        &self,
        database: &Database,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        database.together(|transaction| {
            work(&Writing {
                transaction,
                database,
            })
        })
    }

    /// The connection for list queries.
    pub(crate) fn reading(&self) -> &Database {
        &self.reading
    }

    /// The run with this id.
    pub fn run(&self, id: &str) -> Result<Option<RunRow>, DatabaseError> {
        self.reading.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {RUN} FROM gateway_run WHERE id = ?"))?
                .query_row([id], run_row)
                .optional()
        })
    }

    /// Runs, newest first, without their results.
    pub fn list(&self, filter: &RunFilter) -> Result<Vec<RunRow>, DatabaseError> {
        self.reading.read(|connection| {
            let mut rows = connection.prepare_cached(
                "SELECT n, id, owner, task, job, status, accepted_ms, NULL AS result FROM gateway_run
                 WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR task = ?3)
                   AND (?4 IS NULL OR n < ?4) ORDER BY n DESC LIMIT ?5",
            )?;
            let RunFilter { owner, status, task, before, limit } = filter;
            rows.query_map(params![owner, status, task, before, (*limit).min(MOST_LISTED)], run_row)?.collect()
        })
    }

    /// All runs that have not ended. The caller owns the state folder, so no other server runs
    /// them.
    pub fn unfinished(&self) -> Result<Vec<RunRow>, DatabaseError> {
        self.runs.read(|connection| {
            let mut rows = connection.prepare(&format!(
                "SELECT {RUN} FROM gateway_run WHERE is_final = 0 ORDER BY n"
            ))?;
            rows.query_map([], run_row)?.collect()
        })
    }

    /// Removes runs that are too old or too many; unfinished ones stay. The owner with the most
    /// runs loses its oldest first. Returns the number of runs removed.
    pub fn prune(&self, now_ms: u64, oldest_ms: u64, most: u32) -> Result<usize, DatabaseError> {
        self.runs.write(|transaction| {
            prune_promises(transaction, now_ms, MOST_PROMISES)?;
            transaction.execute(
                "DELETE FROM gateway_run WHERE is_final = 1 AND (accepted_ms < ?1 OR n IN (
                 SELECT n FROM (SELECT n, row_number() OVER (PARTITION BY owner ORDER BY n DESC) AS place FROM gateway_run)
                 ORDER BY place, n DESC LIMIT -1 OFFSET ?2))",
                params![number(oldest_ms), most],
            )
        })
    }
}

fn prune_promises(transaction: &Transaction<'_>, now_ms: u64, most: u32) -> rusqlite::Result<()> {
    let old = "DELETE FROM gateway_promise WHERE at_ms < ?
        AND (name >= ' ' OR NOT EXISTS (SELECT 1 FROM gateway_run WHERE id = gateway_promise.run))";
    transaction.execute(old, [number(now_ms.saturating_sub(PROMISED_MS))])?;
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

impl Writing<'_> {
    /// Adds the database path to SQLite's error.
    pub(crate) fn done<T>(&self, done: rusqlite::Result<T>) -> Result<T, DatabaseError> {
        done.map_err(|source| self.database.failed(source))
    }

    /// As [`ServerDatabase::accept`].
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<Accepted, DatabaseError> {
        accept(self.transaction, run, room).map_err(|source| self.database.failed(source))
    }

    /// As [`ServerDatabase::finish`].
    pub fn finish(&self, id: &str, status: &str, result: &str) -> Result<(), DatabaseError> {
        finish(self.transaction, id, status, result).map_err(|source| self.database.failed(source))
    }
}

fn accept(
    transaction: &Transaction<'_>,
    run: &NewRun<'_>,
    room: bool,
) -> rusqlite::Result<Accepted> {
    if let Some((name, body)) = run.promise
        && let Some(before) = promised(transaction, run, name, body)?
    {
        return Ok(before);
    }
    if !room {
        return Ok(Accepted::Full);
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
        number(run.at_ms)
    ])? == 0
    {
        return Ok(Accepted::NameTaken);
    }
    if let Some((name, body)) = run.promise {
        let promise = "INSERT OR REPLACE INTO gateway_promise VALUES (?, ?, ?, ?, ?)";
        transaction.execute(
            promise,
            params![run.owner, name, &body[..], run.id, number(run.at_ms)],
        )?;
    }
    Ok(Accepted::New)
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

const RUN: &str = "n, id, owner, task, job, status, accepted_ms, result";

/// The run that an idempotency key belongs to, if the key is known and valid.
fn promised(
    transaction: &Transaction<'_>,
    run: &NewRun<'_>,
    name: &str,
    body: [u8; 32],
) -> rusqlite::Result<Option<Accepted>> {
    let find = "SELECT body, run FROM gateway_promise WHERE owner = ? AND name = ? AND at_ms >= ?";
    let since = match name.starts_with(LASTING) {
        true => 0,
        false => number(run.at_ms.saturating_sub(PROMISED_MS)),
    };
    let found: Option<(Vec<u8>, String)> = transaction
        .query_row(find, params![run.owner, name, since], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(found.map(|(before, run)| match before == body {
        true => Accepted::Before(run),
        false => Accepted::OtherRequest,
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
        created_ms: back(row.get("created_ms")?),
        expires_ms: row.get::<_, Option<i64>>("expires_ms")?.map(back),
        revoked_ms: row.get::<_, Option<i64>>("revoked_ms")?.map(back),
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
        accepted_ms: back(row.get("accepted_ms")?),
        result: row.get("result")?,
    })
}

/// SQLite integers end at 2^63.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn back(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
