//! Which sandboxes a gateway made: so that one that died with its server is known to the next, and made only once.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{Row, Transaction, params};

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

/// How much is remembered of sandboxes that ended. Those of one owner are forgotten before anybody else's.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// What ended before is forgotten,
    pub since_ms: u64,
    /// unless it was promised; then what ended before this.
    pub promised_since_ms: u64,
    /// Of one owner.
    pub of_one: u32,
    /// Of all.
    pub of_all: u32,
}

impl Writing<'_> {
    /// Writes a sandbox down before it is made. False if one of that name lives.
    pub fn add_sandbox(&self, row: &SandboxRow) -> Result<bool, DatabaseError> {
        let add = "INSERT INTO gateway_sandbox (id, owner, labels, backend, profile, created_ms, promise, body)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, labels = excluded.labels, backend = excluded.backend,
                 profile = excluded.profile, created_ms = excluded.created_ms, promise = excluded.promise,
                 body = excluded.body, ended_ms = NULL, reason = NULL
             WHERE gateway_sandbox.ended_ms IS NOT NULL";
        let (promise, body) = row.promise.clone().unzip();
        let SandboxRow {
            id,
            owner,
            labels,
            backend,
            profile,
            created_ms,
            ..
        } = row;
        let row = params![
            id,
            owner,
            labels,
            backend,
            profile,
            number(*created_ms),
            promise,
            body
        ];
        let added = self
            .transaction
            .prepare_cached(add)
            .and_then(|mut add| add.execute(row));
        self.done(added.map(|count| count == 1))
    }

    /// One that could not be made.
    pub fn drop_sandbox(&self, id: &str) -> Result<(), DatabaseError> {
        let drop = "DELETE FROM gateway_sandbox WHERE id = ?";
        self.done(self.transaction.execute(drop, [id]).map(|_| ()))
    }

    /// Writes an end down.
    pub fn end_sandbox(&self, id: &str, reason: &str, now_ms: u64) -> Result<(), DatabaseError> {
        let end = "UPDATE gateway_sandbox SET ended_ms = ?2, reason = ?3 WHERE id = ?1 AND ended_ms IS NULL";
        self.done(
            self.transaction
                .execute(end, params![id, number(now_ms), reason])
                .map(|_| ()),
        )
    }

    /// Forgets ended ones that are too old or too many.
    pub fn forget_sandboxes(&self, remembered: &Remembered) -> Result<(), DatabaseError> {
        self.done(forget(self.transaction, remembered))
    }
}

fn forget(transaction: &Transaction<'_>, remembered: &Remembered) -> rusqlite::Result<()> {
    let Remembered {
        since_ms,
        promised_since_ms,
        of_one,
        of_all,
    } = *remembered;
    let old = "DELETE FROM gateway_sandbox WHERE ended_ms < CASE WHEN promise IS NULL THEN ?1 ELSE ?2 END";
    transaction.execute(old, params![number(since_ms), number(promised_since_ms)])?;
    // The newest of everybody, then the second of everybody, and so on: whoever has the most loses first.
    let many = "DELETE FROM gateway_sandbox WHERE id IN (
        SELECT id FROM (SELECT id, place, row_number() OVER (ORDER BY place, ended_ms DESC) AS among_all FROM (
            SELECT id, ended_ms, row_number() OVER (PARTITION BY owner ORDER BY ended_ms DESC, id) AS place
            FROM gateway_sandbox WHERE ended_ms IS NOT NULL))
        WHERE place > ?1 OR among_all > ?2)";
    transaction.execute(many, params![of_one, of_all])?;
    Ok(())
}

impl Served {
    /// Those that are remembered; whatever has no end yet was lost, now. Whoever asks owns the state folder.
    pub fn lost_sandboxes(
        &self,
        now_ms: u64,
        remembered: &Remembered,
    ) -> Result<Vec<SandboxRow>, DatabaseError> {
        self.runs.write(|transaction| {
            let lose =
                "UPDATE gateway_sandbox SET ended_ms = ?, reason = 'lost' WHERE ended_ms IS NULL";
            transaction.execute(lose, [number(now_ms)])?;
            forget(transaction, remembered)?;
            let mut rows =
                transaction.prepare("SELECT * FROM gateway_sandbox ORDER BY created_ms, id")?;
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
