//! Telemetry of a node: starts and ends of the server, its containers, their output and the
//! server's log lines. Written by the thread that writes runs, in the same transactions; an error
//! here does not refuse a run.

use super::{ServerDatabase, WriteTransaction, from_sql, sql_integer};
use crate::database::DatabaseError;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;

/// Rows deleted per transaction, so that writers do not wait long.
const BATCH_ROWS: u32 = 2000;

/// Estimated bytes of a row beside its lines, in the table and its indexes.
const ROW_BYTES: u64 = 100;

/// Retention of telemetry.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryRetention {
    /// Log lines before this time are removed.
    pub logs_since_ms: u64,
    /// Containers and starts of the node before this time are removed.
    pub containers_since_ms: u64,
    /// Maximum bytes of log lines of all owners. The owner with the most loses its oldest first;
    /// the node's own lines have a separate share.
    pub log_bytes: u64,
    /// Maximum number of containers. The owner with the most loses its oldest first.
    pub containers: u32,
}

/// A container to be created.
#[derive(Clone, Debug, Default)]
pub struct NewContainer<'a> {
    /// Container id.
    pub id: &'a str,
    /// Owner.
    pub owner: &'a str,
    /// Runtime of the sandbox.
    pub runtime: &'a str,
    /// Image, or an empty text.
    pub image: &'a str,
    /// Task, if one was named.
    pub task: Option<&'a str>,
    /// Job, if it belongs to one.
    pub job: Option<&'a str>,
    /// Labels as JSON.
    pub labels: &'a str,
    /// Trace id.
    pub trace: Option<&'a str>,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
}

/// The end of a container.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerEnd<'a> {
    /// `exited`, `failed` or `lost`.
    pub status: &'a str,
    /// Exit code of the program.
    pub exit_code: Option<i32>,
    /// `None` if its program never started.
    pub started_ms: Option<u64>,
    /// Time of the end.
    pub stopped_ms: u64,
    /// Time of removal.
    pub removed_ms: u64,
}

/// A row of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRow {
    /// Row number.
    pub n: i64,
    /// Identifier.
    pub id: String,
    /// Owner.
    pub owner: String,
    /// Kind.
    pub kind: String,
    /// Runtime of the sandbox.
    pub runtime: String,
    /// Image, or an empty text.
    pub image: String,
    /// Task, if one was named.
    pub task: Option<String>,
    /// Job, if it belongs to one.
    pub job: Option<String>,
    /// Labels as JSON.
    pub labels: String,
    /// Trace id.
    pub trace: Option<String>,
    /// Status.
    pub status: String,
    /// Exit code of the program.
    pub exit_code: Option<i64>,
    /// Time of creation.
    pub created_ms: u64,
    /// Time of the start.
    pub started_ms: Option<u64>,
    /// Time of the end.
    pub stopped_ms: Option<u64>,
    /// Time of removal.
    pub removed_ms: Option<u64>,
}

/// Filter of a list of containers, newest first.
#[derive(Clone, Debug, Default)]
pub struct ContainerFilter {
    /// Owner; `None` for all.
    pub owner: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Status.
    pub status: Option<String>,
    /// Task.
    pub task: Option<String>,
    /// Job.
    pub job: Option<String>,
    /// Only rows before this one.
    pub before: Option<i64>,
    /// Maximum rows.
    pub limit: u32,
}

/// A batch of log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRow {
    /// Row number.
    pub n: i64,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Kind of the source.
    pub source_kind: String,
    /// Name of the source.
    pub source_name: String,
    /// Owner; empty for the node itself.
    pub owner: String,
    /// Stream: `stdout` or `stderr`.
    pub stream: String,
    /// The lines.
    pub lines: String,
}

/// Filter of log lines, oldest first.
#[derive(Clone, Debug, Default)]
pub struct LogFilter {
    /// Kind of the source.
    pub source_kind: String,
    /// Name of the source.
    pub source_name: String,
    /// Owner; `None` for all.
    pub owner: Option<String>,
    /// Stream: `stdout` or `stderr`.
    pub stream: Option<String>,
    /// Start of the time range, inclusive.
    pub since_ms: Option<u64>,
    /// End of the time range, exclusive.
    pub until_ms: Option<u64>,
    /// First row to read.
    pub from: i64,
}

impl WriteTransaction<'_> {
    fn discard_count(&self, done: rusqlite::Result<usize>) -> Result<(), DatabaseError> {
        done.map(drop)
            .map_err(|source| self.database.failed(source))
    }

    /// Stores a container. A container with the same id is replaced.
    pub fn add_container(&self, new: &NewContainer<'_>) -> Result<(), DatabaseError> {
        let add = "INSERT OR REPLACE INTO container_inventory
            (id, owner, kind, runtime, image, task, job, labels, trace, status, created_ms)
            VALUES (?, ?, 'sandbox', ?, ?, ?, ?, ?, ?, 'created', ?)";
        let NewContainer {
            id,
            owner,
            runtime,
            image,
            task,
            job,
            labels,
            trace,
            at_ms,
        } = new;
        let row = params![
            id,
            owner,
            runtime,
            image,
            task,
            job,
            labels,
            trace,
            sql_integer(*at_ms)
        ];
        self.discard_count(
            self.inner
                .prepare_cached(add)
                .and_then(|mut add| add.execute(row)),
        )
    }

    /// Stores the start of a container's program, unless the container has ended.
    pub fn start_container(&self, id: &str, at_ms: u64) -> Result<(), DatabaseError> {
        let start = "UPDATE container_inventory SET status = 'running', started_ms = ?2
            WHERE id = ?1 AND stopped_ms IS NULL AND started_ms IS NULL";
        let started = self.inner.prepare_cached(start);
        self.discard_count(
            started.and_then(|mut start| start.execute(params![id, sql_integer(at_ms)])),
        )
    }

    /// Stores the end of a container.
    pub fn end_container(&self, id: &str, end: &ContainerEnd<'_>) -> Result<(), DatabaseError> {
        let finish = "UPDATE container_inventory SET status = ?2, exit_code = ?3, started_ms = coalesce(started_ms, ?4),
            stopped_ms = ?5, removed_ms = ?6 WHERE id = ?1 AND stopped_ms IS NULL";
        let ContainerEnd {
            status,
            exit_code,
            started_ms,
            stopped_ms,
            removed_ms,
        } = end;
        let row = params![
            id,
            status,
            exit_code,
            started_ms.map(sql_integer),
            sql_integer(*stopped_ms),
            sql_integer(*removed_ms)
        ];
        self.discard_count(
            self.inner
                .prepare_cached(finish)
                .and_then(|mut finish| finish.execute(row)),
        )
    }

    /// Removes a container that could not be created.
    pub fn remove_container(&self, id: &str) -> Result<(), DatabaseError> {
        self.discard_count(
            self.inner
                .execute("DELETE FROM container_inventory WHERE id = ?", [id]),
        )
    }

    /// Stores log lines.
    pub fn add_log(&self, row: &LogRow) -> Result<(), DatabaseError> {
        let add =
            "INSERT INTO log_event (at_ms, source_kind, source_name, owner, stream, bytes, lines)
            VALUES (?, ?, ?, ?, ?, ?, ?)";
        let LogRow {
            at_ms,
            source_kind,
            source_name,
            owner,
            stream,
            lines,
            ..
        } = row;
        let bytes = sql_integer(lines.len() as u64);
        let row = params![
            sql_integer(*at_ms),
            source_kind,
            source_name,
            owner,
            stream,
            bytes,
            lines
        ];
        self.discard_count(
            self.inner
                .prepare_cached(add)
                .and_then(|mut add| add.execute(row)),
        )
    }
}

impl ServerDatabase {
    /// Stores a start of the server and returns its number; what a previous server left open is
    /// marked as lost.
    pub fn record_start(
        &self,
        version: &str,
        kernel: &str,
        pid: u32,
        now_ms: u64,
    ) -> Result<i64, DatabaseError> {
        self.run_writer.write(|transaction| {
            let now = sql_integer(now_ms);
            let lost = "UPDATE node_boot SET ended_ms = ?, outcome = 'killed' WHERE ended_ms IS NULL";
            transaction.execute(lost, [now])?;
            let lost = "UPDATE container_inventory SET status = 'lost', stopped_ms = ?1, removed_ms = ?1 WHERE stopped_ms IS NULL";
            transaction.execute(lost, [now])?;
            let add = "INSERT INTO node_boot (at_ms, version, kernel, pid) VALUES (?, ?, ?, ?)";
            transaction.execute(add, params![now, version, kernel, pid])?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// Stores the end of the server.
    pub fn record_shutdown(
        &self,
        record_start: i64,
        outcome: &str,
        now_ms: u64,
    ) -> Result<(), DatabaseError> {
        let end = "UPDATE node_boot SET ended_ms = ?2, outcome = ?3 WHERE n = ?1";
        self.run_writer.write(|transaction| {
            transaction.execute(end, params![record_start, sql_integer(now_ms), outcome])
        })?;
        Ok(())
    }

    /// How the server ended before this start, if there was one.
    pub fn previous_outcome(&self, record_start: i64) -> Result<Option<String>, DatabaseError> {
        let last = "SELECT outcome FROM node_boot WHERE n < ? ORDER BY n DESC LIMIT 1";
        self.reader.read(|connection| {
            connection
                .query_row(last, [record_start], |row| row.get(0))
                .optional()
        })
    }

    /// The container with this id.
    pub fn container(&self, id: &str) -> Result<Option<ContainerRow>, DatabaseError> {
        self.telemetry_reader.read(|connection| {
            let mut find =
                connection.prepare_cached("SELECT * FROM container_inventory WHERE id = ?")?;
            find.query_row([id], container_row).optional()
        })
    }

    /// Containers, newest first.
    pub fn containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerRow>, DatabaseError> {
        self.telemetry_reader.read(|connection| {
            let mut rows = connection.prepare_cached(&containers_query(filter))?;
            let ContainerFilter {
                owner,
                kind,
                status,
                task,
                job,
                before,
                limit,
            } = filter;
            let before = before.unwrap_or(i64::MAX);
            rows.query_map(
                params![owner, kind, status, task, job, before, limit],
                container_row,
            )?
            .collect()
        })
    }

    /// Reads log rows until there are no more or the visitor returns false.
    pub fn logs(
        &self,
        filter: &LogFilter,
        mut visit: impl FnMut(LogRow) -> bool,
    ) -> Result<(), DatabaseError> {
        self.telemetry_reader.read(|connection| {
            let mut find = connection.prepare_cached(
                "SELECT * FROM log_event WHERE source_kind = ?1 AND source_name = ?2 AND n >= ?3
                 AND (?4 IS NULL OR owner = ?4) AND (?5 IS NULL OR stream = ?5)
                 AND (?6 IS NULL OR at_ms >= ?6) AND (?7 IS NULL OR at_ms < ?7) ORDER BY n",
            )?;
            let LogFilter {
                source_kind,
                source_name,
                owner,
                stream,
                since_ms,
                until_ms,
                from,
            } = filter;
            let since = since_ms.map(sql_integer);
            let until = until_ms.map(sql_integer);
            let mut rows = find.query(params![
                source_kind,
                source_name,
                from,
                owner,
                stream,
                since,
                until
            ])?;
            while let Some(row) = rows.next()? {
                if !visit(log_row(row)?) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Removes records that are too old or too many, in small batches. Returns the number of rows
    /// removed.
    pub fn prune_telemetry(&self, kept: &TelemetryRetention) -> Result<usize, DatabaseError> {
        let logs = format!(
            "DELETE FROM log_event WHERE n IN (SELECT n FROM log_event WHERE at_ms < ?1 LIMIT {BATCH_ROWS})"
        );
        let containers = format!(
            "DELETE FROM container_inventory WHERE n IN (SELECT n FROM container_inventory
             WHERE created_ms < ?1 AND stopped_ms IS NOT NULL LIMIT {BATCH_ROWS})"
        );
        let boots = format!(
            "DELETE FROM node_boot WHERE n IN (SELECT n FROM node_boot WHERE ended_ms < ?1 LIMIT {BATCH_ROWS})"
        );
        let since = sql_integer(kept.containers_since_ms);
        let mut gone = self.delete_in_batches(&logs, sql_integer(kept.logs_since_ms))?;
        gone += self.shrink_logs(kept.log_bytes)?;
        gone += self.delete_in_batches(&containers, since)?;
        gone += self.delete_in_batches(&boots, since)?;
        let many = format!(
            "DELETE FROM container_inventory WHERE n IN (SELECT n FROM (
                 SELECT n, row_number() OVER (ORDER BY place, n DESC) AS among_all FROM (
                     SELECT n, row_number() OVER (PARTITION BY owner ORDER BY n DESC) AS place
                     FROM container_inventory WHERE stopped_ms IS NOT NULL))
             WHERE among_all > ?1 LIMIT {BATCH_ROWS})"
        );
        Ok(gone + self.delete_in_batches(&many, i64::from(kept.containers))?)
    }

    fn delete_in_batches(&self, delete: &str, bound: i64) -> Result<usize, DatabaseError> {
        let mut gone = 0;
        loop {
            let now = self
                .run_writer
                .write(|transaction| transaction.execute(delete, [bound]))?;
            gone += now;
            if now < BATCH_ROWS as usize {
                return Ok(gone);
            }
        }
    }

    /// Removes the oldest lines of each owner above its share. Returns the number of rows removed.
    fn shrink_logs(&self, most: u64) -> Result<usize, DatabaseError> {
        let sizes = self.telemetry_reader.read(|connection| {
            let all = "SELECT owner, sum(bytes) + count(*) * ?1 FROM log_event GROUP BY owner";
            let mut rows = connection.prepare(all)?;
            let size = |row: &Row<'_>| Ok((row.get(0)?, from_sql(row.get(1)?)));
            rows.query_map([sql_integer(ROW_BYTES)], size)?
                .collect::<Result<Vec<(String, u64)>, _>>()
        })?;
        let mut over: Vec<_> = sizes
            .iter()
            .map(|(owner, size)| (owner.clone(), *size))
            .collect();
        let byte_shares = byte_shares(sizes, most);
        over.retain(|(owner, size)| byte_shares.get(owner).is_some_and(|share| size > share));
        if over.is_empty() {
            return Ok(0);
        }
        let mut left: HashMap<_, _> = over
            .iter()
            .map(|(owner, size)| (owner.as_str(), size - byte_shares[owner.as_str()]))
            .collect();
        let old = self.telemetry_reader.read(|connection| {
            let mut old = Vec::new();
            let mut oldest =
                connection.prepare("SELECT n, owner, bytes FROM log_event ORDER BY n")?;
            let mut rows = oldest.query([])?;
            while let Some(row) = rows.next()?.filter(|_| !left.is_empty()) {
                let owner: String = row.get(1)?;
                let Some(too_much) = left.get_mut(owner.as_str()) else {
                    continue;
                };
                *too_much = too_much.saturating_sub(from_sql(row.get(2)?) + ROW_BYTES);
                if *too_much == 0 {
                    left.remove(owner.as_str());
                }
                old.push(row.get::<_, i64>(0)?);
            }
            Ok(old)
        })?;
        for some in old.chunks(BATCH_ROWS as usize) {
            self.run_writer.write(|transaction| {
                let mut delete = transaction.prepare_cached("DELETE FROM log_event WHERE n = ?")?;
                some.iter().try_for_each(|n| delete.execute([n]).map(drop))
            })?;
        }
        Ok(old.len())
    }

    /// Returns free pages to the disk, a few at a time; returns how many are left. A database
    /// without incremental vacuum is rewritten once.
    pub fn vacuum(&self) -> Result<u64, DatabaseError> {
        const PAGES: u32 = 256;
        let mode = |connection: &Connection| {
            connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))
        };
        self.key_writer.read(|connection| {
            if mode(connection)? != 2 {
                connection.pragma_update(None, "auto_vacuum", 2)?;
                connection.execute_batch("VACUUM")?;
            }
            // SQLite frees one page per step.
            let mut giving = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
            let mut pages = giving.query([])?;
            while pages.next()?.is_some() {}
            let left = connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
            Ok(from_sql(left))
        })
    }
}

/// Uses the owner's index or the row number: a query that allows both uses no index.
fn containers_query(filter: &ContainerFilter) -> String {
    let whose = if filter.owner.is_some() {
        "owner = ?1"
    } else {
        "?1 IS NULL"
    };
    format!(
        "SELECT * FROM container_inventory WHERE {whose} AND n < ?6 AND (?2 IS NULL OR kind = ?2)
         AND (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR task = ?4) AND (?5 IS NULL OR job = ?5)
         ORDER BY n DESC LIMIT ?7"
    )
}

/// Byte share of each owner: its own size, up to an equal share of what the smaller owners leave.
/// The node's own lines (empty owner) have a quarter; no other owner has more than a quarter.
fn byte_shares(mut sizes: Vec<(String, u64)>, most: u64) -> HashMap<String, u64> {
    let quarter = most / 4;
    let mut byte_shares: HashMap<String, u64> = HashMap::from([(String::new(), quarter)]);
    sizes.retain(|(owner, _)| !owner.is_empty());
    sizes.sort_by_key(|(_, size)| *size);
    let mut left = most - quarter;
    let mut owners = sizes.len() as u64;
    for (owner, size) in sizes {
        let share = size.min(left / owners.max(1)).min(quarter);
        (left, owners) = (left - share, owners - 1);
        byte_shares.insert(owner, share);
    }
    byte_shares
}

fn container_row(row: &Row<'_>) -> rusqlite::Result<ContainerRow> {
    let moment = |name: &str| row.get::<_, Option<i64>>(name).map(|at| at.map(from_sql));
    Ok(ContainerRow {
        n: row.get("n")?,
        id: row.get("id")?,
        owner: row.get("owner")?,
        kind: row.get("kind")?,
        runtime: row.get("runtime")?,
        image: row.get("image")?,
        task: row.get("task")?,
        job: row.get("job")?,
        labels: row.get("labels")?,
        trace: row.get("trace")?,
        status: row.get("status")?,
        exit_code: row.get("exit_code")?,
        created_ms: from_sql(row.get("created_ms")?),
        started_ms: moment("started_ms")?,
        stopped_ms: moment("stopped_ms")?,
        removed_ms: moment("removed_ms")?,
    })
}

fn log_row(row: &Row<'_>) -> rusqlite::Result<LogRow> {
    Ok(LogRow {
        n: row.get("n")?,
        at_ms: from_sql(row.get("at_ms")?),
        source_kind: row.get("source_kind")?,
        source_name: row.get("source_name")?,
        owner: row.get("owner")?,
        stream: row.get("stream")?,
        lines: row.get("lines")?,
    })
}

#[cfg(test)]
#[path = "telemetry_tests.rs"]
mod tests;
