//! Records of a node: its starts and ends, its containers, what these and the server wrote. Written by the thread that
//! writes runs, together with them; what cannot be written is no reason to refuse a run.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Deleted in one go, so that nobody who writes waits long.
const TOGETHER: u32 = 2000;

/// How long and how much is kept.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Kept {
    pub logs_since_ms: u64,
    pub containers_since_ms: u64,
    /// Bytes of lines, of all.
    pub log_bytes: u64,
    /// Containers of all; whoever has the most loses the oldest first.
    pub containers: u32,
}

/// A container that is about to be made.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NewContainer<'a> {
    pub id: &'a str,
    pub owner: &'a str,
    pub runtime: &'a str,
    pub image: &'a str,
    pub task: Option<&'a str>,
    pub job: Option<&'a str>,
    /// JSON.
    pub labels: &'a str,
    pub trace: Option<&'a str>,
    pub at_ms: u64,
}

/// How a container ended.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ContainerEnd<'a> {
    /// `exited`, `failed` or `lost`.
    pub status: &'a str,
    pub exit_code: Option<i32>,
    /// None if its program never ran.
    pub started_ms: Option<u64>,
    pub stopped_ms: u64,
    pub removed_ms: u64,
}

/// A container, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ContainerRow {
    pub n: i64,
    pub id: String,
    pub owner: String,
    pub kind: String,
    pub runtime: String,
    pub image: String,
    pub task: Option<String>,
    pub job: Option<String>,
    pub labels: String,
    pub trace: Option<String>,
    pub status: String,
    pub exit_code: Option<i64>,
    pub created_ms: u64,
    pub started_ms: Option<u64>,
    pub stopped_ms: Option<u64>,
    pub removed_ms: Option<u64>,
}

/// Which containers, newest first.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ContainerFilter {
    pub owner: Option<String>,
    pub kind: Option<String>,
    pub status: Option<String>,
    pub task: Option<String>,
    pub job: Option<String>,
    /// Only those that came before this one.
    pub before: Option<i64>,
    pub limit: u32,
}

/// Lines that came together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LogRow {
    pub n: i64,
    pub at_ms: u64,
    pub source_kind: String,
    pub source_name: String,
    pub owner: String,
    pub stream: String,
    pub lines: String,
}

/// Which lines, oldest first.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LogFilter {
    pub source_kind: String,
    pub source_name: String,
    pub owner: Option<String>,
    pub stream: Option<String>,
    /// With this moment.
    pub since_ms: Option<u64>,
    /// Without this moment.
    pub until_ms: Option<u64>,
    /// From this row on.
    pub from: i64,
}

impl Writing<'_> {
    fn telemetry(&self, done: rusqlite::Result<usize>) -> Result<(), DatabaseError> {
        done.map(drop).map_err(|source| self.database.failed(source))
    }

    /// Writes a container down. A name that was used before is another's from now on.
    pub fn add_container(&self, new: &NewContainer<'_>) -> Result<(), DatabaseError> {
        let add = "INSERT OR REPLACE INTO container_inventory
            (id, owner, kind, runtime, image, task, job, labels, trace, status, created_ms)
            VALUES (?, ?, 'sandbox', ?, ?, ?, ?, ?, ?, 'created', ?)";
        let NewContainer { id, owner, runtime, image, task, job, labels, trace, at_ms } = new;
        let row = params![id, owner, runtime, image, task, job, labels, trace, number(*at_ms)];
        self.telemetry(self.transaction.prepare_cached(add).and_then(|mut add| add.execute(row)))
    }

    /// Writes down that its program runs, unless it is over by now.
    pub fn start_container(&self, id: &str, at_ms: u64) -> Result<(), DatabaseError> {
        let start = "UPDATE container_inventory SET status = 'running', started_ms = ?2
            WHERE id = ?1 AND stopped_ms IS NULL AND started_ms IS NULL";
        let started = self.transaction.prepare_cached(start);
        self.telemetry(started.and_then(|mut start| start.execute(params![id, number(at_ms)])))
    }

    /// Writes its end down.
    pub fn end_container(&self, id: &str, end: &ContainerEnd<'_>) -> Result<(), DatabaseError> {
        let finish = "UPDATE container_inventory SET status = ?2, exit_code = ?3, started_ms = coalesce(started_ms, ?4),
            stopped_ms = ?5, removed_ms = ?6 WHERE id = ?1 AND stopped_ms IS NULL";
        let ContainerEnd { status, exit_code, started_ms, stopped_ms, removed_ms } = end;
        let row =
            params![id, status, exit_code, started_ms.map(number), number(*stopped_ms), number(*removed_ms)];
        self.telemetry(self.transaction.prepare_cached(finish).and_then(|mut finish| finish.execute(row)))
    }

    /// Forgets one that could not be made.
    pub fn drop_container(&self, id: &str) -> Result<(), DatabaseError> {
        self.telemetry(self.transaction.execute("DELETE FROM container_inventory WHERE id = ?", [id]))
    }

    /// Writes lines down.
    pub fn add_log(&self, row: &LogRow) -> Result<(), DatabaseError> {
        let add = "INSERT INTO log_event (at_ms, source_kind, source_name, owner, stream, bytes, lines)
            VALUES (?, ?, ?, ?, ?, ?, ?)";
        let LogRow { at_ms, source_kind, source_name, owner, stream, lines, .. } = row;
        let bytes = number(lines.len() as u64);
        let row = params![number(*at_ms), source_kind, source_name, owner, stream, bytes, lines];
        self.telemetry(self.transaction.prepare_cached(add).and_then(|mut add| add.execute(row)))
    }
}

impl Served {
    /// Writes a start down; what a server before left open was lost. Which start this is.
    pub fn boot(&self, version: &str, kernel: &str, pid: u32, now_ms: u64) -> Result<i64, DatabaseError> {
        self.runs.write(|transaction| {
            let now = number(now_ms);
            let lost = "UPDATE node_boot SET ended_ms = ?, outcome = 'killed' WHERE ended_ms IS NULL";
            transaction.execute(lost, [now])?;
            let lost = "UPDATE container_inventory SET status = 'lost', stopped_ms = ?1, removed_ms = ?1 WHERE stopped_ms IS NULL";
            transaction.execute(lost, [now])?;
            let add = "INSERT INTO node_boot (at_ms, version, kernel, pid) VALUES (?, ?, ?, ?)";
            transaction.execute(add, params![now, version, kernel, pid])?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// Writes the end of a start down.
    pub fn shut_down(&self, boot: i64, outcome: &str, now_ms: u64) -> Result<(), DatabaseError> {
        let end = "UPDATE node_boot SET ended_ms = ?2, outcome = ?3 WHERE n = ?1";
        self.runs.write(|transaction| transaction.execute(end, params![boot, number(now_ms), outcome]))?;
        Ok(())
    }

    /// How the start before this one ended, if there was one.
    pub fn ended_before(&self, boot: i64) -> Result<Option<String>, DatabaseError> {
        let last = "SELECT outcome FROM node_boot WHERE n < ? ORDER BY n DESC LIMIT 1";
        self.reading.read(|connection| connection.query_row(last, [boot], |row| row.get(0)).optional())
    }

    /// The container of that name.
    pub fn container(&self, id: &str) -> Result<Option<ContainerRow>, DatabaseError> {
        self.reading.read(|connection| {
            let mut find = connection.prepare_cached("SELECT * FROM container_inventory WHERE id = ?")?;
            find.query_row([id], container_row).optional()
        })
    }

    /// Containers, the newest first.
    pub fn containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerRow>, DatabaseError> {
        self.reading.read(|connection| {
            let mut rows = connection.prepare_cached(
                "SELECT * FROM container_inventory WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR kind = ?2)
                 AND (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR task = ?4) AND (?5 IS NULL OR job = ?5)
                 AND (?6 IS NULL OR n < ?6) ORDER BY n DESC LIMIT ?7",
            )?;
            let ContainerFilter { owner, kind, status, task, job, before, limit } = filter;
            rows.query_map(params![owner, kind, status, task, job, before, limit], container_row)?.collect()
        })
    }

    /// Reads lines until there are none or the visitor has enough.
    pub fn logs(
        &self,
        filter: &LogFilter,
        mut visit: impl FnMut(LogRow) -> bool,
    ) -> Result<(), DatabaseError> {
        self.reading.read(|connection| {
            let mut find = connection.prepare_cached(
                "SELECT * FROM log_event WHERE source_kind = ?1 AND source_name = ?2 AND n >= ?3
                 AND (?4 IS NULL OR owner = ?4) AND (?5 IS NULL OR stream = ?5)
                 AND (?6 IS NULL OR at_ms >= ?6) AND (?7 IS NULL OR at_ms < ?7) ORDER BY n",
            )?;
            let LogFilter { source_kind, source_name, owner, stream, since_ms, until_ms, from } = filter;
            let (since, until) = (since_ms.map(number), until_ms.map(number));
            let mut rows =
                find.query(params![source_kind, source_name, from, owner, stream, since, until])?;
            while let Some(row) = rows.next()? {
                if !visit(log_row(row)?) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Forgets what is too old or too much, in small pieces. How many rows are gone.
    pub fn prune_telemetry(&self, kept: &Kept) -> Result<usize, DatabaseError> {
        let logs = format!(
            "DELETE FROM log_event WHERE n IN (SELECT n FROM log_event WHERE at_ms < ?1 LIMIT {TOGETHER})"
        );
        let containers = format!(
            "DELETE FROM container_inventory WHERE n IN (SELECT n FROM container_inventory
             WHERE created_ms < ?1 AND stopped_ms IS NOT NULL LIMIT {TOGETHER})"
        );
        let boots = format!(
            "DELETE FROM node_boot WHERE n IN (SELECT n FROM node_boot WHERE ended_ms < ?1 LIMIT {TOGETHER})"
        );
        let logs_since = number(kept.logs_since_ms).max(self.too_much(kept.log_bytes)?);
        let since = number(kept.containers_since_ms);
        let mut gone = self.in_pieces(&logs, logs_since)?;
        gone += self.in_pieces(&containers, since)?;
        gone += self.in_pieces(&boots, since)?;
        let many = format!(
            "DELETE FROM container_inventory WHERE n IN (SELECT n FROM (
                 SELECT n, row_number() OVER (ORDER BY place, n DESC) AS among_all FROM (
                     SELECT n, row_number() OVER (PARTITION BY owner ORDER BY n DESC) AS place
                     FROM container_inventory WHERE stopped_ms IS NOT NULL))
             WHERE among_all > ?1 LIMIT {TOGETHER})"
        );
        Ok(gone + self.in_pieces(&many, i64::from(kept.containers))?)
    }

    fn in_pieces(&self, delete: &str, bound: i64) -> Result<usize, DatabaseError> {
        let mut gone = 0;
        loop {
            let now = self.runs.write(|transaction| transaction.execute(delete, [bound]))?;
            gone += now;
            if now < TOGETHER as usize {
                return Ok(gone);
            }
        }
    }

    /// The moment before which lines are more than so many bytes; 0 if all fit.
    fn too_much(&self, most: u64) -> Result<i64, DatabaseError> {
        self.reading.read(|connection| {
            // Answered by the index alone.
            let mut newest = connection.prepare("SELECT at_ms, bytes FROM log_event ORDER BY at_ms DESC")?;
            let mut rows = newest.query([])?;
            let mut sum = 0;
            while let Some(row) = rows.next()? {
                sum += back(row.get(1)?);
                if sum > most {
                    return Ok(row.get::<_, i64>(0)? + 1);
                }
            }
            Ok(0)
        })
    }

    /// Gives pages that nothing lies in back to the disk, a few at a time; how many are left. A database of before these
    /// could be given back so is written anew, once.
    pub fn vacuum(&self) -> Result<u64, DatabaseError> {
        const PAGES: u32 = 256;
        let mode = |connection: &Connection| {
            connection.pragma_query_value(None, "auto_vacuum", |row| row.get::<_, i64>(0))
        };
        self.changes.read(|connection| {
            if mode(connection)? != 2 {
                connection.pragma_update(None, "auto_vacuum", 2)?;
                connection.execute_batch("VACUUM")?;
            }
            // It gives back one page a step.
            let mut giving = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
            let mut pages = giving.query([])?;
            while pages.next()?.is_some() {}
            let left = connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
            Ok(back(left))
        })
    }
}

fn container_row(row: &Row<'_>) -> rusqlite::Result<ContainerRow> {
    let moment = |name: &str| row.get::<_, Option<i64>>(name).map(|at| at.map(back));
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
        created_ms: back(row.get("created_ms")?),
        started_ms: moment("started_ms")?,
        stopped_ms: moment("stopped_ms")?,
        removed_ms: moment("removed_ms")?,
    })
}

fn log_row(row: &Row<'_>) -> rusqlite::Result<LogRow> {
    Ok(LogRow {
        n: row.get("n")?,
        at_ms: back(row.get("at_ms")?),
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
