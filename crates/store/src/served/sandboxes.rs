//! Which sandboxes a gateway made: so that one that died with its server is known to the next, and made only once.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{Row, params};

/// A sandbox, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SandboxRow {
    pub id: String,
    pub owner: String,
    /// JSON.
    pub labels: String,
    pub backend: String,
    pub profile: String,
    pub created_ms: u64,
    /// An idempotency key with the hash of the request that it stands for.
    pub promise: Option<(String, Vec<u8>)>,
    /// When and why it ended.
    pub ended: Option<(u64, String)>,
}

impl Writing<'_> {
    fn done<T>(&self, done: rusqlite::Result<T>) -> Result<T, DatabaseError> {
        done.map_err(|source| self.database.failed(source))
    }

    /// Writes a sandbox down before it is made. False if one of that name lives.
    pub fn add_sandbox(&self, row: &SandboxRow) -> Result<bool, DatabaseError> {
        let add = "INSERT INTO gateway_sandbox (id, owner, labels, backend, profile, created_ms, promise, body)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, labels = excluded.labels, backend = excluded.backend,
                 profile = excluded.profile, created_ms = excluded.created_ms, promise = excluded.promise,
                 body = excluded.body, ended_ms = NULL, reason = NULL
             WHERE gateway_sandbox.ended_ms IS NOT NULL";
        let (promise, body) = row.promise.clone().unzip();
        let SandboxRow { id, owner, labels, backend, profile, created_ms, .. } = row;
        let row = params![id, owner, labels, backend, profile, number(*created_ms), promise, body];
        let added = self.transaction.prepare_cached(add).and_then(|mut add| add.execute(row));
        self.done(added.map(|count| count == 1))
    }

    /// One that could not be made.
    pub fn drop_sandbox(&self, id: &str) -> Result<(), DatabaseError> {
        let drop = "DELETE FROM gateway_sandbox WHERE id = ?";
        self.done(self.transaction.execute(drop, [id]).map(|_| ()))
    }

    /// Writes an end down, and forgets ends that are too old or too many.
    pub fn end_sandbox(
        &self,
        id: &str,
        reason: &str,
        now_ms: u64,
        oldest_ms: u64,
        most: u32,
    ) -> Result<(), DatabaseError> {
        let end = "UPDATE gateway_sandbox SET ended_ms = ?2, reason = ?3 WHERE id = ?1 AND ended_ms IS NULL";
        self.done(self.transaction.execute(end, params![id, number(now_ms), reason]))?;
        let forget = "DELETE FROM gateway_sandbox WHERE ended_ms < max(?1, coalesce((SELECT ended_ms FROM gateway_sandbox
             WHERE ended_ms IS NOT NULL ORDER BY ended_ms DESC LIMIT 1 OFFSET ?2), 0))";
        self.done(self.transaction.execute(forget, params![number(oldest_ms), most]).map(|_| ()))
    }
}

impl Served {
    /// Those that are remembered; whatever has no end yet was lost, now. Whoever asks owns the state folder.
    pub fn lost_sandboxes(&self, now_ms: u64, oldest_ms: u64) -> Result<Vec<SandboxRow>, DatabaseError> {
        self.runs.write(|transaction| {
            let lose = "UPDATE gateway_sandbox SET ended_ms = ?, reason = 'lost' WHERE ended_ms IS NULL";
            transaction.execute(lose, [number(now_ms)])?;
            transaction.execute("DELETE FROM gateway_sandbox WHERE ended_ms < ?", [number(oldest_ms)])?;
            let mut rows = transaction.prepare("SELECT * FROM gateway_sandbox ORDER BY created_ms, id")?;
            rows.query_map([], sandbox_row)?.collect()
        })
    }
}

fn sandbox_row(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let promise: Option<String> = row.get("promise")?;
    let body: Option<Vec<u8>> = row.get("body")?;
    let ended: Option<i64> = row.get("ended_ms")?;
    let reason: Option<String> = row.get("reason")?;
    Ok(SandboxRow {
        id: row.get("id")?,
        owner: row.get("owner")?,
        labels: row.get("labels")?,
        backend: row.get("backend")?,
        profile: row.get("profile")?,
        created_ms: back(row.get("created_ms")?),
        promise: promise.zip(body),
        ended: ended.map(back).zip(reason),
    })
}
