//! What a gateway keeps: keys, of which only hashes are known, and the runs that it accepted, each with exactly one final
//! state. Several connections, so that whoever looks at a key or a run never waits for what is written down.

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

/// How long an idempotency key is kept.
pub const PROMISED_MS: u64 = 24 * 3_600_000;
/// Begins the names of promises that are no idempotency keys, which have only visible characters: they are kept for as
/// long as their run is.
pub const LASTING: char = '\u{1}';
/// Promises of one owner; the oldest are forgotten first. There are as many owners as an admin made keys.
const MOST_PROMISES: u32 = 50_000;
/// How long a writer waits for another process; whoever asked is told then.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How many runs are read in one go, at most.
pub const MOST_LISTED: u32 = 200;

/// The tables of a gateway in the database of a state folder.
#[derive(Debug)]
pub struct Served {
    /// Reads keys, and never waits: a reader does not, and nobody writes by it.
    keys: Database,
    /// Reads runs.
    pub(crate) reading: Database,
    /// Writes keys.
    changes: Database,
    /// Writes runs.
    runs: Database,
    /// Writes what must outlast a power cut: that a job was accepted, started, ended.
    durable: Database,
    /// Reads what the scheduler asks for, and never waits for whoever reads lists.
    pub(crate) jobs: Database,
    /// Reads what is long, records of the node and lists of jobs: whoever reads keys, or one run or job, does not wait for that.
    pub(crate) telemetry: Database,
    /// Whose turn it is to write, among those of this process: SQLite itself would let them sleep and try again.
    turn: Mutex<()>,
}

/// What is written together.
#[derive(Debug)]
pub struct Writing<'a> {
    pub(crate) transaction: &'a Transaction<'a>,
    database: &'a Database,
}

/// A key, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct KeyRow {
    pub id: String,
    pub name: String,
    /// Whose it is; empty if it is its own.
    pub tenant: String,
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// Names, with spaces between.
    pub scopes: String,
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
    pub revoked_ms: Option<u64>,
}

/// A run that is about to be accepted.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NewRun<'a> {
    pub id: &'a str,
    pub owner: &'a str,
    pub task: Option<&'a str>,
    pub job: Option<&'a str>,
    pub at_ms: u64,
    /// An idempotency key with the hash of the request that it stands for.
    pub promise: Option<(&'a str, [u8; 32])>,
}

/// What became of a request to accept a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It may start.
    New,
    /// The same request came before: this is its run.
    Before(String),
    /// Its idempotency key stands for another request.
    OtherRequest,
    /// There is a run of that name.
    NameTaken,
    /// There is no room for a new one.
    Full,
}

/// A run, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RunRow {
    pub n: i64,
    pub id: String,
    pub owner: String,
    pub task: Option<String>,
    pub job: Option<String>,
    pub status: String,
    pub accepted_ms: u64,
    /// JSON, once it is final.
    pub result: Option<String>,
}

/// Which runs, newest first.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RunFilter {
    pub owner: Option<String>,
    pub status: Option<String>,
    pub task: Option<String>,
    /// Only those that came before this one.
    pub before: Option<i64>,
    pub limit: u32,
}

impl Served {
    /// Opens the tables of a state folder; makes them if they are absent.
    pub fn open(state: &Path) -> Result<Served, DatabaseError> {
        let (keys, reading) = (Database::open(state)?, Database::open(state)?);
        let (changes, runs) = (Database::open(state)?, Database::open(state)?);
        let (durable, jobs) = (Database::open(state)?, Database::open(state)?);
        let telemetry = Database::open(state)?;
        changes.wait_at_most(PATIENCE)?;
        runs.wait_at_most(PATIENCE)?;
        durable.wait_at_most(PATIENCE)?;
        // A commit then costs microseconds, outlasts us, and may be missing after a power cut, as the run is.
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

    /// Adds a key. False if its identifier is taken.
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

    /// The key of that identifier, revoked or not.
    pub fn key(&self, id: &str) -> Result<Option<KeyRow>, DatabaseError> {
        self.keys.read(|connection| {
            connection
                .prepare_cached("SELECT * FROM gateway_key WHERE id = ?")?
                .query_row([id], key_row)
                .optional()
        })
    }

    /// All keys, the oldest first.
    pub fn keys(&self) -> Result<Vec<KeyRow>, DatabaseError> {
        self.changes.read(|connection| {
            let mut rows =
                connection.prepare("SELECT * FROM gateway_key ORDER BY created_ms, id")?;
            rows.query_map([], key_row)?.collect()
        })
    }

    /// Revokes a key, from now on and for ever. False if there is none.
    pub fn revoke_key(&self, id: &str, at_ms: u64) -> Result<bool, DatabaseError> {
        let revoke = "UPDATE gateway_key SET revoked_ms = coalesce(revoked_ms, ?) WHERE id = ?";
        self.changes
            .write(|transaction| Ok(transaction.execute(revoke, params![number(at_ms), id])? == 1))
    }

    /// Forgets keys that ended before this moment. Those of admins stay: a file may still offer one, which is not to be
    /// taken for a new one.
    pub fn prune_keys(&self, before_ms: u64) -> Result<usize, DatabaseError> {
        let prune = "DELETE FROM gateway_key WHERE min(coalesce(revoked_ms, expires_ms), coalesce(expires_ms, revoked_ms)) < ?
                     AND ' ' || scopes || ' ' NOT LIKE '% admin %'";
        self.changes
            .write(|transaction| transaction.execute(prune, [number(before_ms)]))
    }

    /// Writes a run down before it starts, unless it was promised before, its name is taken or there is no room.
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<Accepted, DatabaseError> {
        self.runs
            .write(|transaction| accept(transaction, run, room))
    }

    /// Writes down how a run ended. What is final stays as it is.
    pub fn finish(&self, id: &str, status: &str, result: &str) -> Result<(), DatabaseError> {
        self.runs
            .write(|transaction| finish(transaction, id, status, result))
    }

    /// Writes all that this does, or nothing of it.
    pub fn together<T>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.write_by(&self.runs, work)
    }

    /// The same, and once it returns a power cut takes nothing of it back, nor of what was written before.
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

    /// The connection that lists are read by.
    pub(crate) fn reading(&self) -> &Database {
        &self.reading
    }

    /// The run of that identifier.
    pub fn run(&self, id: &str) -> Result<Option<RunRow>, DatabaseError> {
        self.reading.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {RUN} FROM gateway_run WHERE id = ?"))?
                .query_row([id], run_row)
                .optional()
        })
    }

    /// Runs, the newest first, without what came of them.
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

    /// Every run that has no end yet. Whoever asks owns the state folder, so that nobody else can be at work on one.
    pub fn unfinished(&self) -> Result<Vec<RunRow>, DatabaseError> {
        self.runs.read(|connection| {
            let mut rows = connection.prepare(&format!(
                "SELECT {RUN} FROM gateway_run WHERE is_final = 0 ORDER BY n"
            ))?;
            rows.query_map([], run_row)?.collect()
        })
    }

    /// Forgets what is too old or too much; what goes on stays. Whoever has the most runs loses the oldest of them first.
    /// How many runs are gone.
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
    /// What SQLite said, with the place that it said it of.
    pub(crate) fn done<T>(&self, done: rusqlite::Result<T>) -> Result<T, DatabaseError> {
        done.map_err(|source| self.database.failed(source))
    }

    /// As [`Served::accept`].
    pub fn accept(&self, run: &NewRun<'_>, room: bool) -> Result<Accepted, DatabaseError> {
        accept(self.transaction, run, room).map_err(|source| self.database.failed(source))
    }

    /// As [`Served::finish`].
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

/// What an idempotency key stands for, if it is known and still holds.
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
        // A hash that is none fits no token.
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

/// SQLite counts to 2^63.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn back(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
