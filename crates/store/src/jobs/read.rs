//! Questions about jobs. Those of the scheduler are answered by indexes alone, however many wait.

use crate::webhooks::Progress;
use crate::{
    DatabaseError,
    served::{MOST_LISTED, Served, Writing, back, number},
};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use std::collections::BTreeMap;

/// A job, as it is kept, without its order and result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct JobRow {
    pub n: i64,
    pub id: String,
    pub tenant: String,
    pub key: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub status: String,
    /// `turn`, `time` or `jobs` while it is queued.
    pub waits_for: Option<String>,
    /// Of its state.
    pub version: i64,
    pub priority: i32,
    pub accepted_ms: u64,
    pub not_before_ms: Option<u64>,
    /// Not before this: as asked for, or by the pause of a retry.
    pub due_ms: u64,
    pub started_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    pub attempt: u32,
    pub most_attempts: u32,
    pub rerun: bool,
    pub run: Option<String>,
    /// Of all its tries, as far as they are remembered.
    pub runs: Vec<String>,
    pub after: Vec<String>,
    pub cancelled: bool,
    /// JSON.
    pub webhook: Option<String>,
    /// How far its notices are; none before the first.
    pub told: Option<Progress>,
    /// JSON.
    pub error: Option<String>,
}

impl JobRow {
    /// Whether it has ended.
    pub fn is_final(&self) -> bool {
        self.ended_ms.is_some()
    }
}

/// Which jobs, newest first.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct JobFilter {
    pub tenant: Option<String>,
    pub status: Option<String>,
    pub name: Option<String>,
    pub label: Option<(String, String)>,
    /// Only those that have not ended.
    pub open: bool,
    /// Only those that came before this one.
    pub before: Option<i64>,
    pub limit: u32,
}

/// Rows that are looked at for one page, at most, where no index knows the answer.
const MOST_LOOKED_AT: i64 = 2000;

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Listed {
    pub rows: Vec<JobRow>,
    /// Behind which there may be more.
    pub before: Option<i64>,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub queued: u64,
    /// Of these, those that could start now.
    pub turn: u64,
    pub running: u64,
    pub ended: u64,
    /// Of orders and results.
    pub bytes: u64,
}

/// A job that was under way when its server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Ended {
    pub id: String,
    pub tenant: String,
    pub run: String,
}

const JOB: &str = "n, id, tenant, key, name, labels, status, waits_for, version, priority, accepted_ms, not_before_ms, due_ms,
    started_ms, ended_ms, attempt, most_attempts, on_lost, run, cancelled, webhook, error,
    (SELECT json_group_array(run) FROM (SELECT run FROM job_run WHERE job = job.n ORDER BY place)) AS runs,
    (SELECT json_group_array(needs) FROM (SELECT needs FROM job_after WHERE job = job.n ORDER BY place)) AS after,
    CASE WHEN webhook IS NOT NULL THEN (SELECT json_group_array(json_array(state, attempts, problem)) FROM (
        SELECT state, attempts, problem FROM webhook_notice WHERE webhook_notice.job = job.id ORDER BY webhook_notice.n)) END AS told";

/// Of a tenant, whose turn is next.
pub(super) const NEXT: &str =
    "SELECT id FROM job WHERE tenant = ? AND waits_for = 'turn' ORDER BY priority DESC, n LIMIT ?";
/// Who has something that could start.
pub(super) const ACTIVE: &str = "SELECT tenant FROM job_tenant WHERE turn > 0 AND tenant <> ''";
/// When the next one is due.
pub(super) const DUE: &str = "SELECT min(due_ms) FROM job WHERE waits_for = 'time'";

impl Served {
    /// The job of that identifier.
    pub fn job(&self, id: &str) -> Result<Option<JobRow>, DatabaseError> {
        self.jobs.read(|connection| find(connection, id))
    }

    /// The same with the request that it was accepted by.
    pub fn job_with_order(&self, id: &str) -> Result<Option<(JobRow, String)>, DatabaseError> {
        self.jobs.read(|connection| {
            let Some(row) = find(connection, id)? else {
                return Ok(None);
            };
            let order = "SELECT body FROM job_order WHERE n = ?";
            let order = connection
                .prepare_cached(order)?
                .query_row([row.n], |row| row.get(0))
                .optional()?;
            Ok(order.map(|order| (row, order)))
        })
    }

    /// What came of its last try, as JSON.
    pub fn job_result(&self, id: &str) -> Result<Option<String>, DatabaseError> {
        self.reading().read(|connection| {
            let find = "SELECT body FROM job_result WHERE n = (SELECT n FROM job WHERE id = ?)";
            connection
                .prepare_cached(find)?
                .query_row([id], |row| row.get(0))
                .optional()
        })
    }

    /// Jobs, the newest first. With a label, or a name of any tenant's, a page may have fewer than there are, or none: its
    /// end says from where to go on.
    pub fn list_jobs(&self, filter: &JobFilter) -> Result<Listed, DatabaseError> {
        self.list_among(filter, MOST_LOOKED_AT)
    }

    /// The same, where so many rows are looked at in one go.
    pub(super) fn list_among(
        &self,
        filter: &JobFilter,
        most: i64,
    ) -> Result<Listed, DatabaseError> {
        let Listing {
            looked_at,
            query,
            values,
            of_them,
        } = listing(filter, most);
        let limit = filter.limit.min(MOST_LISTED) as usize;
        // Whoever stops everything waits for nobody's long reading.
        let place = if filter.open {
            &self.jobs
        } else {
            &self.telemetry
        };
        place.read(|connection| {
            let rows: Vec<JobRow> = {
                let mut rows = connection.prepare_cached(&query)?;
                let values = values.iter().chain(&of_them);
                rows.query_map(rusqlite::params_from_iter(values), job_row)?
                    .collect::<Result<_, _>>()?
            };
            if rows.len() == limit {
                return Ok(Listed {
                    before: rows.last().map(|row| row.n),
                    rows,
                });
            }
            let Some(looked_at) = looked_at else {
                return Ok(Listed { rows, before: None });
            };
            let last = format!("SELECT min(n), count(*) FROM ({looked_at})");
            let (last, count): (Option<i64>, i64) = connection
                .prepare_cached(&last)?
                .query_row(rusqlite::params_from_iter(&values), |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            Ok(Listed {
                rows,
                before: last.filter(|_| count == most),
            })
        })
    }

    /// Tenants that have something to start.
    pub fn active_tenants(&self) -> Result<Vec<String>, DatabaseError> {
        self.jobs.read(|connection| {
            connection
                .prepare_cached(ACTIVE)?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// The first jobs of a tenant that could start now.
    pub fn next_jobs(&self, tenant: &str, most: usize) -> Result<Vec<String>, DatabaseError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.jobs.read(|connection| {
            connection
                .prepare_cached(NEXT)?
                .query_map(params![tenant, most], |row| row.get(0))?
                .collect()
        })
    }

    /// When the next job is due of those that wait for their time.
    pub fn next_due(&self) -> Result<Option<u64>, DatabaseError> {
        self.jobs.read(|connection| {
            let due: Option<i64> = connection
                .prepare_cached(DUE)?
                .query_row([], |row| row.get(0))?;
            Ok(due.map(back))
        })
    }

    /// Whether something behind jobs that have ended has not followed yet.
    pub fn jobs_follow(&self) -> Result<bool, DatabaseError> {
        self.jobs.read(|connection| {
            connection
                .prepare_cached("SELECT 1 FROM job_followed LIMIT 1")?
                .exists([])
        })
    }

    /// How many there are: of this tenant, or of all.
    pub fn job_counts(&self, tenant: Option<&str>) -> Result<Counts, DatabaseError> {
        self.jobs
            .read(|connection| counts(connection, tenant.unwrap_or_default()))
    }

    /// Jobs that another server had under way. Whoever asks owns the state folder: that server is no more.
    pub fn abandoned_jobs(&self, boot: &str) -> Result<Vec<Ended>, DatabaseError> {
        self.jobs.read(|connection| {
            let find =
                "SELECT id, tenant, run FROM job WHERE status = 'running' AND boot <> ? ORDER BY n";
            let ended = |row: &Row<'_>| {
                let run: Option<String> = row.get(2)?;
                Ok(Ended {
                    id: row.get(0)?,
                    tenant: row.get(1)?,
                    run: run.unwrap_or_default(),
                })
            };
            connection
                .prepare(find)?
                .query_map([boot], ended)?
                .collect()
        })
    }
}

impl Writing<'_> {
    /// The job of that identifier, as it is in this transaction.
    pub fn job(&self, id: &str) -> Result<Option<JobRow>, DatabaseError> {
        self.done(find(self.transaction, id))
    }
}

pub(super) fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<JobRow>> {
    connection
        .prepare_cached(&format!("SELECT {JOB} FROM job WHERE id = ?"))?
        .query_row([id], job_row)
        .optional()
}

pub(super) fn counts(connection: &Connection, tenant: &str) -> rusqlite::Result<Counts> {
    let find = "SELECT queued, turn, running, ended, bytes FROM job_tenant WHERE tenant = ?";
    let counts = |row: &Row<'_>| {
        let number = |index| row.get(index).map(back);
        let (queued, turn, running) = (number(0)?, number(1)?, number(2)?);
        Ok(Counts {
            queued,
            turn,
            running,
            ended: number(3)?,
            bytes: number(4)?,
        })
    };
    let found = connection
        .prepare_cached(find)?
        .query_row([tenant], counts)
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// How to find a page.
struct Listing {
    /// Which rows are looked at, if not each of them is wanted.
    looked_at: Option<String>,
    query: String,
    /// For these rows, and then for those that are wanted.
    values: Vec<Box<dyn ToSql>>,
    of_them: Vec<Box<dyn ToSql>>,
}

/// Only with the conditions that there are: so the indexes fit. What no index knows is looked for among a few rows.
fn listing(filter: &JobFilter, most: i64) -> Listing {
    let JobFilter {
        tenant,
        status,
        name,
        label,
        open,
        before,
        limit,
    } = filter.clone();
    let (mut first, mut values): (String, Vec<Box<dyn ToSql>>) = ("1 = 1".to_owned(), Vec::new());
    let (mut then, mut of_them): (String, Vec<Box<dyn ToSql>>) = ("1 = 1".to_owned(), Vec::new());
    let known = tenant.is_some();
    // An index has either of them behind the tenant; where both are asked for, that of the name.
    let status_known = known && name.is_none();
    for (column, value, known) in [
        ("tenant", tenant, true),
        ("status", status, status_known),
        ("name", name, known),
    ] {
        let Some(value) = value else { continue };
        let (into, of) = if known {
            (&mut first, &mut values)
        } else {
            (&mut then, &mut of_them)
        };
        into.push_str(&format!(" AND {column} = ?"));
        of.push(Box::new(value));
    }
    if let Some((key, value)) = label {
        then.push_str(
            " AND EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)",
        );
        of_them.push(Box::new(key));
        of_them.push(Box::new(value));
    }
    if let Some(before) = before {
        first.push_str(" AND n < ?");
        values.push(Box::new(before));
    }
    if open {
        then.push_str(" AND ended_ms IS NULL");
    }
    let is_few = open || !of_them.is_empty();
    of_them.push(Box::new(limit.min(MOST_LISTED)));
    let few = |columns: &str| {
        format!("SELECT {columns} FROM job WHERE {first} ORDER BY n DESC LIMIT {most}")
    };
    let (looked_at, query) = match is_few {
        false => (
            None,
            format!("SELECT {JOB} FROM job WHERE {first} ORDER BY n DESC LIMIT ?"),
        ),
        true => {
            let from = few("*");
            let query =
                format!("SELECT {JOB} FROM ({from}) AS job WHERE {then} ORDER BY n DESC LIMIT ?");
            (Some(few("n")), query)
        }
    };
    Listing {
        looked_at,
        query,
        values,
        of_them,
    }
}

fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let time = |column| row.get::<_, Option<i64>>(column).map(|time| time.map(back));
    // Written by us as JSON; what is none is as if it were not there.
    let texts = |column| {
        row.get::<_, String>(column)
            .map(|text| serde_json::from_str(&text).unwrap_or_default())
    };
    let labels: String = row.get("labels")?;
    let waits_for: String = row.get("waits_for")?;
    Ok(JobRow {
        n: row.get("n")?,
        id: row.get("id")?,
        tenant: row.get("tenant")?,
        key: row.get("key")?,
        name: row.get("name")?,
        labels: serde_json::from_str(&labels).unwrap_or_default(),
        status: row.get("status")?,
        waits_for: Some(waits_for).filter(|word| !word.is_empty()),
        version: row.get("version")?,
        priority: row.get("priority")?,
        accepted_ms: back(row.get("accepted_ms")?),
        not_before_ms: time("not_before_ms")?,
        due_ms: back(row.get("due_ms")?),
        started_ms: time("started_ms")?,
        ended_ms: time("ended_ms")?,
        attempt: row.get("attempt")?,
        most_attempts: row.get("most_attempts")?,
        rerun: row.get::<_, String>("on_lost")? == "rerun",
        run: row.get("run")?,
        runs: texts("runs")?,
        after: texts("after")?,
        cancelled: row.get("cancelled")?,
        webhook: row.get("webhook")?,
        told: row
            .get::<_, Option<String>>("told")?
            .and_then(|text| Progress::read(&text)),
        error: row.get("error")?,
    })
}

/// The end of a span that begins now.
pub(super) fn later(now_ms: u64, span_ms: u64) -> i64 {
    number(now_ms.saturating_add(span_ms))
}
