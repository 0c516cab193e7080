//! Sandboxes of a server, stored so that after a crash the next server reports them as lost, and an
//! idempotency key creates only one.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{Row, Transaction, params};

/// A row of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRow {
    /// Sandbox id.
    pub id: String,
    /// Owner.
    pub owner: String,
    /// Labels as JSON.
    pub labels: String,
    /// Sandbox backend.
    pub backend: String,
    /// Profile.
    pub profile: String,
    /// Time of creation.
    pub created_ms: u64,
    /// Idempotency key, with the hash of its request.
    pub promise: Option<(String, Vec<u8>)>,
    /// When and why the sandbox ended.
    pub ended: Option<(u64, String)>,
}

/// Retention of ended sandboxes. The owner with the most loses its oldest first.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// Sandboxes that ended before this time are removed,
    pub since_ms: u64,
    /// unless an idempotency key created them: those are kept until this time.
    pub promised_since_ms: u64,
    /// Maximum for one owner.
    pub of_one: u32,
    /// Maximum for all owners.
    pub of_all: u32,
}

impl Writing<'_> {
    /// Stores a sandbox before it is created; false if a live one has its id.
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

    /// Removes a sandbox that could not be created.
    pub fn drop_sandbox(&self, id: &str) -> Result<(), DatabaseError> {
        let drop = "DELETE FROM gateway_sandbox WHERE id = ?";
        self.done(self.transaction.execute(drop, [id]).map(|_| ()))
    }

    /// Stores the end of a sandbox.
    pub fn end_sandbox(&self, id: &str, reason: &str, now_ms: u64) -> Result<(), DatabaseError> {
        let end = "UPDATE gateway_sandbox SET ended_ms = ?2, reason = ?3 WHERE id = ?1 AND ended_ms IS NULL";
        self.done(
            self.transaction
                .execute(end, params![id, number(now_ms), reason])
                .map(|_| ()),
        )
    }

    /// Removes ended sandboxes that are too old or too many.
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
    // Ranks rows by their position within their owner: the owner with the most rows loses first.
    let many = "DELETE FROM gateway_sandbox WHERE id IN (
        SELECT id FROM (SELECT id, place, row_number() OVER (ORDER BY place, ended_ms DESC) AS among_all FROM (
            SELECT id, ended_ms, row_number() OVER (PARTITION BY owner ORDER BY ended_ms DESC, id) AS place
            FROM gateway_sandbox WHERE ended_ms IS NOT NULL))
        WHERE place > ?1 OR among_all > ?2)";
    transaction.execute(many, params![of_one, of_all])?;
    Ok(())
}

impl Served {
    /// Marks all sandboxes without an end as lost and returns those that are kept. The caller owns
    /// the state folder, so no other server runs them.
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
