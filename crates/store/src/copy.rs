//! A copy of the database while others use it, and what is done to its file: pages that nobody needs are given back.

use crate::database::{self, Database, DatabaseError};
use std::path::Path;

/// Free pages are given back when they are more than half of the file, and worth the copying.
const LEAST_FREE: u64 = 16 << 20;

/// Copies the database of a state folder, as it is at one moment, into an empty file that is there. Writers go on meanwhile.
/// The schema of the copy; none if there is no database. Nothing is brought forward, and a later schema is refused.
pub fn copy(state: &Path, to: &Path) -> Result<Option<i64>, DatabaseError> {
    let Some(database) = Database::open_as_it_is(state)? else { return Ok(None) };
    let path = to.to_str().ok_or_else(|| DatabaseError::Place {
        path: to.to_owned(),
        why: "SQLite takes only UTF-8".to_owned(),
    })?;
    database.read(|connection| {
        connection.execute("VACUUM INTO ?", [path])?;
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map(Some)
    })
}

/// Whether the database of a state folder is whole, brought forward to today's schema; what is wrong with it.
pub fn check(state: &Path) -> Result<Vec<String>, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let mut rows = connection.prepare("PRAGMA integrity_check(20)")?;
        let all: Vec<String> = rows.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(all.into_iter().filter(|line| line != "ok").collect())
    })
}

/// Gives pages back that nobody needs, if there are many; how many bytes. For the owner of a state folder, before it serves:
/// it takes as long as a copy, and everybody waits.
pub fn reclaim(state: &Path) -> Result<u64, DatabaseError> {
    let database = Database::open(state)?;
    database.read(|connection| {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (free, all, size) = (number("freelist_count")?, number("page_count")?, number("page_size")?);
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
