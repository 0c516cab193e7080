//! Records of a node: its starts and ends, its containers, what these and the server wrote. Written by the thread that
//! writes runs, together with them; what cannot be written is no reason to refuse a run.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;

/// Deleted in one go, so that nobody who writes waits long.
const TOGETHER: u32 = 2000;

/// What a row takes beside its lines, in the table and its indexes.
const ROW_BYTES: u64 = 100;

/// How long and how much is kept.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Kept {
    pub logs_since_ms: u64,
    pub containers_since_ms: u64,
    /// Bytes of lines, of all; whoever has the most loses the oldest first, and the node's own are apart.
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
        done.map(drop)
            .map_err(|source| self.database.failed(source))
    }

    /// Writes a container down. A name that was used before is another's from now on.
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
            number(*at_ms)
        ];
        self.telemetry(
            self.transaction
                .prepare_cached(add)
                .and_then(|mut add| add.execute(row)),
        )
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
            started_ms.map(number),
            number(*stopped_ms),
            number(*removed_ms)
        ];
        self.telemetry(
            self.transaction
                .prepare_cached(finish)
                .and_then(|mut finish| finish.execute(row)),
        )
    }

    /// Forgets one that could not be made.
    pub fn drop_container(&self, id: &str) -> Result<(), DatabaseError> {
        self.telemetry(
            self.transaction
                .execute("DELETE FROM container_inventory WHERE id = ?", [id]),
        )
    }

    /// Writes lines down.
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
        let bytes = number(lines.len() as u64);
        let row = params![
            number(*at_ms),
            source_kind,
            source_name,
            owner,
            stream,
            bytes,
            lines
        ];
        self.telemetry(
            self.transaction
                .prepare_cached(add)
                .and_then(|mut add| add.execute(row)),
        )
    }
}

impl Served {
    /// Writes a start down; what a server before left open was lost. Which start this is.
    pub fn boot(
        &self,
        version: &str,
        kernel: &str,
        pid: u32,
        now_ms: u64,
    ) -> Result<i64, DatabaseError> {
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
        self.runs.write(|transaction| {
            transaction.execute(end, params![boot, number(now_ms), outcome])
        })?;
        Ok(())
    }

    /// How the start before this one ended, if there was one.
    pub fn ended_before(&self, boot: i64) -> Result<Option<String>, DatabaseError> {
        let last = "SELECT outcome FROM node_boot WHERE n < ? ORDER BY n DESC LIMIT 1";
        self.reading.read(|connection| {
            connection
                .query_row(last, [boot], |row| row.get(0))
                .optional()
        })
    }

    /// The container of that name.
    pub fn container(&self, id: &str) -> Result<Option<ContainerRow>, DatabaseError> {
        self.telemetry.read(|connection| {
            let mut find =
                connection.prepare_cached("SELECT * FROM container_inventory WHERE id = ?")?;
            find.query_row([id], container_row).optional()
        })
    }

    /// Containers, the newest first.
    pub fn containers(&self, filter: &ContainerFilter) -> Result<Vec<ContainerRow>, DatabaseError> {
        self.telemetry.read(|connection| {
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

    /// Reads lines until there are none or the visitor has enough.
    pub fn logs(
        &self,
        filter: &LogFilter,
        mut visit: impl FnMut(LogRow) -> bool,
    ) -> Result<(), DatabaseError> {
        self.telemetry.read(|connection| {
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
            let (since, until) = (since_ms.map(number), until_ms.map(number));
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
        let since = number(kept.containers_since_ms);
        let mut gone = self.in_pieces(&logs, number(kept.logs_since_ms))?;
        gone += self.shrink_logs(kept.log_bytes)?;
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
            let now = self
                .runs
                .write(|transaction| transaction.execute(delete, [bound]))?;
            gone += now;
            if now < TOGETHER as usize {
                return Ok(gone);
            }
        }
    }

    /// Forgets the oldest lines of each who has more than his share. How many rows are gone.
    fn shrink_logs(&self, most: u64) -> Result<usize, DatabaseError> {
        let sizes = self.telemetry.read(|connection| {
            let all = "SELECT owner, sum(bytes) + count(*) * ?1 FROM log_event GROUP BY owner";
            let mut rows = connection.prepare(all)?;
            let size = |row: &Row<'_>| Ok((row.get(0)?, back(row.get(1)?)));
            rows.query_map([number(ROW_BYTES)], size)?
                .collect::<Result<Vec<(String, u64)>, _>>()
        })?;
        let mut over: Vec<_> = sizes
            .iter()
            .map(|(owner, size)| (owner.clone(), *size))
            .collect();
        let shares = shares(sizes, most);
        over.retain(|(owner, size)| shares.get(owner).is_some_and(|share| size > share));
        if over.is_empty() {
            return Ok(0);
        }
        let mut left: HashMap<_, _> = over
            .iter()
            .map(|(owner, size)| (owner.as_str(), size - shares[owner.as_str()]))
            .collect();
        let old = self.telemetry.read(|connection| {
            let mut old = Vec::new();
            let mut oldest =
                connection.prepare("SELECT n, owner, bytes FROM log_event ORDER BY n")?;
            let mut rows = oldest.query([])?;
            while let Some(row) = rows.next()?.filter(|_| !left.is_empty()) {
                let owner: String = row.get(1)?;
                let Some(too_much) = left.get_mut(owner.as_str()) else {
                    continue;
                };
                *too_much = too_much.saturating_sub(back(row.get(2)?) + ROW_BYTES);
                if *too_much == 0 {
                    left.remove(owner.as_str());
                }
                old.push(row.get::<_, i64>(0)?);
            }
            Ok(old)
        })?;
        for some in old.chunks(TOGETHER as usize) {
            self.runs.write(|transaction| {
                let mut delete = transaction.prepare_cached("DELETE FROM log_event WHERE n = ?")?;
                some.iter().try_for_each(|n| delete.execute([n]).map(drop))
            })?;
        }
        Ok(old.len())
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

/// By its owner's index, or by number: what is asked for in both ways at once is found by no index.
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

/// How many bytes of each owner's stay: as many as there are, up to what all who have more may have alike. The node's own,
/// whose owner is empty, are apart; of the rest nobody has more than a quarter of all.
fn shares(mut sizes: Vec<(String, u64)>, most: u64) -> HashMap<String, u64> {
    let quarter = most / 4;
    let mut shares: HashMap<String, u64> = HashMap::from([(String::new(), quarter)]);
    sizes.retain(|(owner, _)| !owner.is_empty());
    sizes.sort_by_key(|(_, size)| *size);
    let (mut left, mut owners) = (most - quarter, sizes.len() as u64);
    for (owner, size) in sizes {
        let share = size.min(left / owners.max(1)).min(quarter);
        (left, owners) = (left - share, owners - 1);
        shares.insert(owner, share);
    }
    shares
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
