//! The audit tables of the database: where each file starts, which files were removed, and the last
//! record known to be synced.

use crate::database::Database;
use journal::{ChainHead, Hash};
use rusqlite::{OptionalExtension, Row, params};
use std::{io, path::Path, time::Duration};

/// How long to wait for the lock of another process.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1500);

/// The audit tables for one journal.
#[derive(Debug)]
pub(super) struct Checkpoints {
    database: Database,
}

/// Start of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentStart {
    pub(super) part: u32,
    /// Number and hash of the last record before its first.
    pub(super) n: u64,
    pub(super) hash: Hash,
    pub(super) began_ms: u64,
    pub(super) removed: bool,
}

/// A record known to be synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) part: u32,
    pub(super) n: u64,
    pub(super) hash: Hash,
}

impl SegmentStart {
    pub(super) fn head(&self) -> ChainHead {
        ChainHead {
            n: self.n,
            hash: self.hash,
            offset: 0,
        }
    }
}

fn sql_integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn read_integer(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(index)?).unwrap_or_default())
}

impl Checkpoints {
    pub(super) fn open(state: &Path) -> io::Result<Checkpoints> {
        let database = Database::open(state).map_err(io::Error::other)?;
        // Opening the audit log waits for this.
        database
            .set_busy_timeout(LOCK_TIMEOUT)
            .map_err(io::Error::other)?;
        Ok(Checkpoints { database })
    }

    /// The same without creating a database; `None` if there is none.
    pub(super) fn open_existing(state: &Path) -> io::Result<Option<Checkpoints>> {
        match Database::open_existing(state).map_err(io::Error::other)? {
            Some(_) => Checkpoints::open(state).map(Some),
            None => Ok(None),
        }
    }

    /// The starts of all files, in order.
    pub(super) fn segment_starts(&self, name: &str) -> io::Result<Vec<SegmentStart>> {
        let sql = "SELECT part, n, hash, began_ms, removed_ms FROM audit_parts WHERE journal = ?1 ORDER BY part";
        let found = self.database.read(|connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([name], |row| {
                let removed: Option<i64> = row.get(4)?;
                Ok(SegmentStart {
                    part: row.get(0)?,
                    n: read_integer(row, 1)?,
                    hash: row.get(2)?,
                    began_ms: read_integer(row, 3)?,
                    removed: removed.is_some(),
                })
            })?;
            rows.collect()
        });
        found.map_err(io::Error::other)
    }

    pub(super) fn latest(&self, name: &str) -> io::Result<Option<Checkpoint>> {
        let sql = "SELECT part, n, hash FROM audit_heads WHERE journal = ?1";
        let found = self.database.read(|connection| {
            let read = |row: &Row<'_>| {
                Ok(Checkpoint {
                    part: row.get(0)?,
                    n: read_integer(row, 1)?,
                    hash: row.get(2)?,
                })
            };
            connection.query_row(sql, [name], read).optional()
        });
        found.map_err(io::Error::other)
    }

    /// A checkpoint never goes back.
    pub(super) fn save(&self, name: &str, checkpoint: &Checkpoint, now: u64) -> io::Result<()> {
        let sql = "INSERT INTO audit_heads (journal, part, n, hash, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (journal) DO UPDATE SET part = ?2, n = ?3, hash = ?4, at_ms = ?5 WHERE ?3 >= n";
        let values = params![
            name,
            checkpoint.part,
            sql_integer(checkpoint.n),
            checkpoint.hash,
            sql_integer(now)
        ];
        let written = self
            .database
            .write(|transaction| transaction.execute(sql, values));
        written.map(drop).map_err(io::Error::other)
    }

    /// Records the start of a file.
    pub(super) fn add_segment(&self, name: &str, of: &SegmentStart) -> io::Result<()> {
        let sql = "INSERT OR IGNORE INTO audit_parts (journal, part, n, hash, began_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = params![
            name,
            of.part,
            sql_integer(of.n),
            of.hash,
            sql_integer(of.began_ms)
        ];
        let written = self
            .database
            .write(|transaction| transaction.execute(sql, values));
        written.map(drop).map_err(io::Error::other)
    }

    /// Records that a file is about to be removed.
    pub(super) fn mark_removed(&self, name: &str, part: u32, now: u64) -> io::Result<()> {
        let sql = "UPDATE audit_parts SET removed_ms = ?3 WHERE journal = ?1 AND part = ?2";
        let written = self
            .database
            .write(|transaction| transaction.execute(sql, params![name, part, sql_integer(now)]));
        written.map(drop).map_err(io::Error::other)
    }

    /// Removes everything known about the journal.
    pub(super) fn clear(&self, name: &str) -> io::Result<()> {
        let written = self.database.write(|transaction| {
            transaction.execute("DELETE FROM audit_parts WHERE journal = ?1", [name])?;
            transaction.execute("DELETE FROM audit_heads WHERE journal = ?1", [name])
        });
        written.map(drop).map_err(io::Error::other)
    }
}
