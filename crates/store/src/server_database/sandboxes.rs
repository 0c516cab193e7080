//! Sandboxes of a server, stored so that after a crash the next server reports them as lost, and an
//! idempotency key creates only one.

use super::{ServerDatabase, WriteTransaction, from_sql, sql_integer};
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
    pub idempotency_key: Option<(String, Vec<u8>)>,
    /// When and why the sandbox ended.
    pub ended: Option<(u64, String)>,
}

/// Retention of ended sandboxes. The owner with the most loses its oldest first.
#[derive(Clone, Copy, Debug)]
pub struct SandboxRetention {
    /// Sandboxes that ended before this time are removed,
    pub ended_since_ms: u64,
    /// unless an idempotency key created them: those are kept until this time.
    pub idempotent_since_ms: u64,
    /// Maximum for one owner.
    pub max_per_owner: u32,
    /// Maximum for all owners.
    pub max_total: u32,
}

impl WriteTransaction<'_> {
    /// Stores a sandbox before it is created; false if a live one has its id.
    pub fn add_sandbox(&self, row: &SandboxRow) -> Result<bool, DatabaseError> {
        let add = "INSERT INTO gateway_sandbox (id, owner, labels, backend, profile, created_ms, promise, body)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, labels = excluded.labels, backend = excluded.backend,
                 profile = excluded.profile, created_ms = excluded.created_ms, promise = excluded.promise,
                 body = excluded.body, ended_ms = NULL, reason = NULL
             WHERE gateway_sandbox.ended_ms IS NOT NULL";
        let (idempotency_key, body) = row.idempotency_key.clone().unzip();
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
            sql_integer(*created_ms),
            idempotency_key,
            body
        ];
        let added = self
            .inner
            .prepare_cached(add)
            .and_then(|mut add| add.execute(row));
        self.map_error(added.map(|count| count == 1))
    }

    /// Removes a sandbox that could not be created.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), DatabaseError> {
        let drop = "DELETE FROM gateway_sandbox WHERE id = ?";
        self.map_error(self.inner.execute(drop, [id]).map(|_| ()))
    }

    /// Stores the end of a sandbox.
    pub fn end_sandbox(&self, id: &str, reason: &str, now_ms: u64) -> Result<(), DatabaseError> {
        let end = "UPDATE gateway_sandbox SET ended_ms = ?2, reason = ?3 WHERE id = ?1 AND ended_ms IS NULL";
        self.map_error(
            self.inner
                .execute(end, params![id, sql_integer(now_ms), reason])
                .map(|_| ()),
        )
    }

    /// Removes ended sandboxes that are too old or too many.
    pub fn prune_sandboxes(&self, remembered: &SandboxRetention) -> Result<(), DatabaseError> {
        self.map_error(forget(self.inner, remembered))
    }
}

fn forget(transaction: &Transaction<'_>, remembered: &SandboxRetention) -> rusqlite::Result<()> {
    let SandboxRetention {
        ended_since_ms,
        idempotent_since_ms,
        max_per_owner,
        max_total,
    } = *remembered;
    let old = "DELETE FROM gateway_sandbox WHERE ended_ms < CASE WHEN promise IS NULL THEN ?1 ELSE ?2 END";
    transaction.execute(
        old,
        params![
            sql_integer(ended_since_ms),
            sql_integer(idempotent_since_ms)
        ],
    )?;
    // Ranks rows by their position within their owner: the owner with the most rows loses first.
    let many = "DELETE FROM gateway_sandbox WHERE id IN (
        SELECT id FROM (SELECT id, place, row_number() OVER (ORDER BY place, ended_ms DESC) AS among_all FROM (
            SELECT id, ended_ms, row_number() OVER (PARTITION BY owner ORDER BY ended_ms DESC, id) AS place
            FROM gateway_sandbox WHERE ended_ms IS NOT NULL))
        WHERE place > ?1 OR among_all > ?2)";
    transaction.execute(many, params![max_per_owner, max_total])?;
    Ok(())
}

impl ServerDatabase {
    /// Marks all sandboxes without an end as lost and returns those that are kept. The caller owns
    /// the state folder, so no other server runs them.
    pub fn recover_sandboxes(
        &self,
        now_ms: u64,
        remembered: &SandboxRetention,
    ) -> Result<Vec<SandboxRow>, DatabaseError> {
        self.run_writer.write(|transaction| {
            let lose =
                "UPDATE gateway_sandbox SET ended_ms = ?, reason = 'lost' WHERE ended_ms IS NULL";
            transaction.execute(lose, [sql_integer(now_ms)])?;
            forget(transaction, remembered)?;
            let mut rows =
                transaction.prepare("SELECT * FROM gateway_sandbox ORDER BY created_ms, id")?;
            rows.query_map([], sandbox_row)?.collect()
        })
    }
}

fn sandbox_row(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let idempotency_key: Option<String> = row.get("promise")?;
    let body: Option<Vec<u8>> = row.get("body")?;
    let ended: Option<i64> = row.get("ended_ms")?;
    let reason: Option<String> = row.get("reason")?;
    Ok(SandboxRow {
        id: row.get("id")?,
        owner: row.get("owner")?,
        labels: row.get("labels")?,
        backend: row.get("backend")?,
        profile: row.get("profile")?,
        created_ms: from_sql(row.get("created_ms")?),
        idempotency_key: idempotency_key.zip(body),
        ended: ended.map(from_sql).zip(reason),
    })
}
