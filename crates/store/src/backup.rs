//! Database operations for backup and restore: a consistent copy, integrity and schema checks,
//! cancelling pending work after a restore, and vacuuming.

use crate::database::{self, Database, DatabaseError, MIGRATIONS};
use rusqlite::{Connection, params};
use std::{collections::BTreeSet, path::Path};

/// Marker file in a state folder: the next start is the first after a restore.
pub const RESTORED_MARKER: &str = "restored";
/// Folder into which a restore unpacks. While it exists, the state folder is incomplete.
pub const RESTORE_FOLDER: &str = ".restoring";
/// Jobs read per query.
const PAGE_ROWS: u32 = 500;

/// Minimum of free bytes for a vacuum; they must also be more than half of the file.
const MIN_FREE_BYTES: u64 = 16 << 20;

/// Copies the database of a state folder, as a consistent snapshot, into an existing empty file;
/// writers continue. Returns the schema version of the copy; `None` if there is no database.
/// Nothing is migrated, and a newer schema is refused.
pub fn copy_database(state: &Path, to: &Path) -> Result<Option<i64>, DatabaseError> {
    let Some(database) = Database::open_existing(state)? else {
        return Ok(None);
    };
    let path = to.to_str().ok_or_else(|| DatabaseError::Unusable {
        path: to.to_owned(),
        why: "SQLite takes only UTF-8".to_owned(),
    })?;
    database.read(|connection| {
        connection.execute("VACUUM INTO ?", [path])?;
        connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map(Some)
    })
}

/// Schema version of the database of a state folder, without migrating; `None` if there is no
/// database.
pub fn schema_version(state: &Path) -> Result<Option<i64>, DatabaseError> {
    let Some(database) = Database::open_existing(state)? else {
        return Ok(None);
    };
    database.read(|connection| {
        connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map(Some)
    })
}

/// Migrates the database of a state folder and checks its integrity; returns the problems found.
pub fn check_integrity(state: &Path) -> Result<Vec<String>, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let mut rows = connection.prepare("PRAGMA integrity_check(20)")?;
        let all: Vec<String> = rows
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        Ok(all.into_iter().filter(|line| line != "ok").collect())
    })
}

/// First difference between the schema of a database and the one that our migrations produce for
/// its version. A foreign trigger in a restored file is found here.
pub fn schema_difference(state: &Path) -> Result<Option<String>, DatabaseError> {
    let Some(database) = Database::open_existing(state)? else {
        return Ok(None);
    };
    database.read(|connection| {
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let steps = usize::try_from(version)
            .ok()
            .and_then(|version| MIGRATIONS.get(..version));
        let Some(steps) = steps else {
            return Ok(Some(format!("schema {version}")));
        };
        let fresh = Connection::open_in_memory()?;
        steps
            .iter()
            .try_for_each(|step| fresh.execute_batch(step))?;
        let found = schema_objects(connection)?;
        let ours = schema_objects(&fresh)?;
        let difference = found.symmetric_difference(&ours).next();
        Ok(difference.map(|(kind, name, _)| format!("{kind} `{}`", name.escape_debug())))
    })
}

/// Excludes the automatic indexes of SQLite. Nothing is excluded by its name alone: a program that
/// edits the file directly can give a trigger any name.
fn schema_objects(connection: &Connection) -> rusqlite::Result<BTreeSet<(String, String, String)>> {
    let all = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema WHERE NOT (type = 'index' AND sql IS NULL)";
    let mut rows = connection.prepare(all)?;
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}

/// Pending work of a restored database that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CancelledWork {
    /// Jobs that ended as `lost`, with their dependents.
    pub jobs: usize,
    /// Webhook notices that were given up.
    pub notices: usize,
}

/// Ends the pending jobs that must not run twice, with their dependents, and gives up pending
/// webhook notices: they may have been completed after the backup of that moment. The stored errors
/// name the restore; no webhook announces these ends.
pub fn cancel_pending_work(
    state: &Path,
    made: &str,
    now_ms: u64,
) -> Result<CancelledWork, DatabaseError> {
    let database = Database::open(state)?;
    let message = format!("the state was restored from a backup of {made}");
    let hint = "check whether it ran since then; if not, retry it";
    let error = serde_json::json!({ "code": "lost", "message": message, "hint": hint }).to_string();
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let end = "WITH RECURSIVE held (n, id) AS (
            SELECT n, id FROM job WHERE ended_ms IS NULL AND on_lost = 'lost'
            UNION
            SELECT job.n, job.id FROM held JOIN job_after ON job_after.needs = held.id JOIN job ON job.n = job_after.job
            WHERE job.ended_ms IS NULL)
        UPDATE job SET status = 'lost', waits_for = '', boot = NULL, version = version + 1, ended_ms = ?1,
            keep_until = ?1 + keep_ms, error = ?2 WHERE n IN (SELECT n FROM held)";
    database.write(|transaction| {
        let jobs = transaction.execute(end, params![now, error])?;
        let give_up =
            "UPDATE webhook_notice SET state = 'given_up', body = '', problem = ? WHERE state = 'waiting'";
        let notices = transaction.execute(give_up, [&message])?;
        Ok(CancelledWork { jobs, notices })
    })
}

/// Calls `each` with tenant and id of every job that was cancelled by the restore at this time.
pub fn for_each_cancelled_job(
    state: &Path,
    at_ms: u64,
    mut each: impl FnMut(&str, &str),
) -> Result<(), DatabaseError> {
    let database = Database::open(state)?;
    let at = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let page = "SELECT n, tenant, id FROM job WHERE n > ?1 AND ended_ms = ?2 AND status = 'lost' ORDER BY n LIMIT ?3";
    let mut after = 0;
    loop {
        let found: Vec<(i64, String, String)> = database.read(|connection| {
            let mut rows = connection.prepare_cached(page)?;
            let all = rows.query_map(params![after, at, PAGE_ROWS], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
            all.collect()
        })?;
        let Some((last, ..)) = found.last() else {
            return Ok(());
        };
        after = *last;
        found.iter().for_each(|(_, tenant, job)| each(tenant, job));
    }
}

/// Vacuums the database if many pages are free; returns the bytes freed. Takes as long as a copy
/// and blocks other processes, so the owner of the state folder calls it before it serves.
pub fn reclaim_free_pages(state: &Path) -> Result<u64, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let free = number("freelist_count")?;
        let all = number("page_count")?;
        let size = number("page_size")?;
        let bytes = u64::try_from(free.saturating_mul(size)).unwrap_or_default();
        if bytes < MIN_FREE_BYTES || free < all / 2 {
            return Ok(0);
        }
        connection.execute_batch("VACUUM")?;
        Ok(bytes)
    })
}

/// The newest schema version that this program knows.
pub fn newest_schema() -> i64 {
    database::newest_schema()
}
