//! A copy of the database while others use it, and what is done to its file: pages that nobody needs are given back.

use crate::database::{self, Database, DatabaseError, MIGRATIONS};
use rusqlite::{Connection, params};
use std::{collections::BTreeSet, path::Path};

/// The file in a state folder that tells the first start after a restore of it.
pub const RESTORED: &str = "restored";
/// The folder in a state folder into which a restore unpacks; while it is there this is no state yet.
pub const RESTORING: &str = ".restoring";
/// Jobs that are read at a time.
const A_PAGE: u32 = 500;

/// Free pages are given back when they are more than half of the file, and worth the copying.
const LEAST_FREE: u64 = 16 << 20;

/// Copies the database of a state folder, as it is at one moment, into an empty file that is there. Writers go on meanwhile.
/// The schema of the copy; none if there is no database. Nothing is brought forward, and a later schema is refused.
pub fn copy(state: &Path, to: &Path) -> Result<Option<i64>, DatabaseError> {
    let Some(database) = Database::open_as_it_is(state)? else {
        return Ok(None);
    };
    let path = to.to_str().ok_or_else(|| DatabaseError::Place {
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

/// The schema of the database of a state folder, as it is; none if there is no database.
pub fn schema(state: &Path) -> Result<Option<i64>, DatabaseError> {
    let Some(database) = Database::open_as_it_is(state)? else {
        return Ok(None);
    };
    database.read(|connection| {
        connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map(Some)
    })
}

/// Whether the database of a state folder is whole, brought forward to today's schema; what is wrong with it.
pub fn check(state: &Path) -> Result<Vec<String>, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let mut rows = connection.prepare("PRAGMA integrity_check(20)")?;
        let all: Vec<String> = rows
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        Ok(all.into_iter().filter(|line| line != "ok").collect())
    })
}

/// The first difference between the schema of a database, as it is, and that which its version had when we made it.
pub fn foreign(state: &Path) -> Result<Option<String>, DatabaseError> {
    let Some(database) = Database::open_as_it_is(state)? else {
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
        let (found, ours) = (shape(connection)?, shape(&fresh)?);
        let odd = found.symmetric_difference(&ours).next();
        Ok(odd.map(|(kind, name, _)| format!("{kind} `{}`", name.escape_debug())))
    })
}

/// Without the indexes that SQLite makes by itself. By its name alone nothing is left out: whoever writes the file with
/// another program can give any name to a trigger.
fn shape(connection: &Connection) -> rusqlite::Result<BTreeSet<(String, String, String)>> {
    let all = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema WHERE NOT (type = 'index' AND sql IS NULL)";
    let mut rows = connection.prepare(all)?;
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}

/// What waited in a database that was restored, and does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Held {
    /// Jobs that were ended as `lost`, with those that needed them.
    pub jobs: usize,
    /// Notices that were given up.
    pub notices: usize,
}

/// Ends jobs that must not run twice, with those behind them, and gives up notices: since the backup of that moment they
/// may have been dealt with. The notices name why; nobody is told of these ends.
pub fn hold(state: &Path, made: &str, now_ms: u64) -> Result<Held, DatabaseError> {
    let database = Database::open(state)?;
    let message = format!("the state was restored from a backup of {made}");
    let hint = "look whether it ran since then, and retry it if not";
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
        Ok(Held { jobs, notices })
    })
}

/// Calls with tenant and name of each job that was held at this moment.
pub fn each_held(
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
            let all = rows.query_map(params![after, at, A_PAGE], |row| {
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

/// Gives pages back that nobody needs, if there are many; how many bytes. For the owner of a state folder, before it serves:
/// it takes as long as a copy, and everybody waits.
pub fn reclaim(state: &Path) -> Result<u64, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (free, all, size) = (
            number("freelist_count")?,
            number("page_count")?,
            number("page_size")?,
        );
        let bytes = u64::try_from(free.saturating_mul(size)).unwrap_or_default();
        if bytes < LEAST_FREE || free < all / 2 {
            return Ok(0);
        }
        connection.execute_batch("VACUUM")?;
        Ok(bytes)
    })
}

/// The newest schema that is known here.
pub fn newest_schema() -> i64 {
    database::newest()
}
