//! Queries of jobs. Those of the scheduler are answered by indexes alone, however many jobs wait.

use crate::webhooks::DeliveryProgress;
use crate::{
    DatabaseError,
    server_database::{MAX_PAGE_ROWS, ServerDatabase, WriteTransaction, from_sql, sql_integer},
};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use std::collections::BTreeMap;

/// A row of a job, without its request and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Row number.
    pub n: i64,
    /// Identifier.
    pub id: String,
    /// Tenant.
    pub tenant: String,
    /// API key of the request.
    pub key: String,
    /// Name, if one was given.
    pub name: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Status.
    pub status: String,
    /// `turn`, `time` or `jobs` while the job is queued.
    pub waits_for: Option<String>,
    /// Counts the changes of its state.
    pub version: i64,
    /// Priority; larger ones go first.
    pub priority: i32,
    /// Time of acceptance.
    pub accepted_ms: u64,
    /// Earliest start, if one was requested.
    pub not_before_ms: Option<u64>,
    /// Earliest start: as requested, or after the pause of a retry.
    pub due_ms: u64,
    /// Time of the start.
    pub started_ms: Option<u64>,
    /// Time of the end.
    pub ended_ms: Option<u64>,
    /// Attempts that counted.
    pub attempt: u32,
    /// Maximum attempts that count.
    pub max_attempts: u32,
    /// Whether the job runs again if its server ends first.
    pub rerun: bool,
    /// Run id of the last attempt.
    pub run: Option<String>,
    /// Run ids of its attempts, as far as they are stored.
    pub runs: Vec<String>,
    /// Jobs that must succeed first.
    pub after: Vec<String>,
    /// Whether a cancellation was requested.
    pub cancelled: bool,
    /// Webhook as JSON.
    pub webhook: Option<String>,
    /// Progress of its webhook notices; `None` before the first.
    pub webhook_progress: Option<DeliveryProgress>,
    /// Error as JSON.
    pub error: Option<String>,
}

impl JobRow {
    /// Whether the job has ended.
    pub fn is_final(&self) -> bool {
        self.ended_ms.is_some()
    }
}

/// Filter of a list of jobs, newest first.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Tenant; `None` for all.
    pub tenant: Option<String>,
    /// Status.
    pub status: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Label that the job must have.
    pub label: Option<(String, String)>,
    /// Only jobs that have not ended.
    pub open: bool,
    /// Only rows before this one.
    pub before: Option<i64>,
    /// Maximum rows.
    pub limit: u32,
}

/// Rows scanned for one page where no index answers the query.
const MAX_SCANNED_ROWS: i64 = 2000;

/// A page of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// The rows.
    pub rows: Vec<JobRow>,
    /// Cursor of the next page; `None` at the end.
    pub before: Option<i64>,
}

/// Job counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Queued jobs.
    pub queued: u64,
    /// Queued jobs that could start now.
    pub turn: u64,
    /// Running jobs.
    pub running: u64,
    /// Ended jobs.
    pub ended: u64,
    /// Bytes of requests and results.
    pub bytes: u64,
}

/// A job that was running when its server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedJob {
    /// Job id.
    pub id: String,
    /// Tenant.
    pub tenant: String,
    /// Run id.
    pub run: String,
}

const JOB_COLUMNS: &str = "n, id, tenant, key, name, labels, status, waits_for, version, priority, accepted_ms, not_before_ms, due_ms,
    started_ms, ended_ms, attempt, most_attempts, on_lost, run, cancelled, webhook, error,
    (SELECT json_group_array(run) FROM (SELECT run FROM job_run WHERE job = job.n ORDER BY place)) AS runs,
    (SELECT json_group_array(needs) FROM (SELECT needs FROM job_after WHERE job = job.n ORDER BY place)) AS after,
    CASE WHEN webhook IS NOT NULL THEN (SELECT json_group_array(json_array(state, attempts, problem)) FROM (
        SELECT state, attempts, problem FROM webhook_notice WHERE webhook_notice.job = job.id ORDER BY webhook_notice.n)) END AS told";

/// The ready jobs of a tenant, in order.
pub(super) const NEXT_JOBS: &str =
    "SELECT id FROM job WHERE tenant = ? AND waits_for = 'turn' ORDER BY priority DESC, n LIMIT ?";
/// Tenants with ready jobs.
pub(super) const ACTIVE_TENANTS: &str =
    "SELECT tenant FROM job_tenant WHERE turn > 0 AND tenant <> ''";
/// Time of the next due job.
pub(super) const NEXT_DUE: &str = "SELECT min(due_ms) FROM job WHERE waits_for = 'time'";

impl ServerDatabase {
    /// The job with this id.
    pub fn job(&self, id: &str) -> Result<Option<JobRow>, DatabaseError> {
        self.job_reader.read(|connection| find(connection, id))
    }

    /// The same with the request.
    pub fn job_with_order(&self, id: &str) -> Result<Option<(JobRow, String)>, DatabaseError> {
        self.job_reader.read(|connection| {
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

    /// Result of the last attempt as JSON.
    pub fn job_result(&self, id: &str) -> Result<Option<String>, DatabaseError> {
        self.reader.read(|connection| {
            let find = "SELECT body FROM job_result WHERE n = (SELECT n FROM job WHERE id = ?)";
            connection
                .prepare_cached(find)?
                .query_row([id], |row| row.get(0))
                .optional()
        })
    }

    /// Jobs, newest first. With a label, or a name of any tenant, a page may be short or empty
    /// although there are more: its cursor says where to continue.
    pub fn list_jobs(&self, filter: &JobFilter) -> Result<JobPage, DatabaseError> {
        self.list_jobs_scanning(filter, MAX_SCANNED_ROWS)
    }

    /// The same with another limit of scanned rows.
    pub(super) fn list_jobs_scanning(
        &self,
        filter: &JobFilter,
        most: i64,
    ) -> Result<JobPage, DatabaseError> {
        let PageQuery {
            scanned_rows,
            query,
            values,
            filter_values,
        } = page_query(filter, most);
        let limit = filter.limit.min(MAX_PAGE_ROWS) as usize;
        // A caller that cancels everything does not wait for long reads of others.
        let place = if filter.open {
            &self.job_reader
        } else {
            &self.telemetry_reader
        };
        place.read(|connection| {
            let rows: Vec<JobRow> = {
                let mut rows = connection.prepare_cached(&query)?;
                let values = values.iter().chain(&filter_values);
                rows.query_map(rusqlite::params_from_iter(values), job_row)?
                    .collect::<Result<_, _>>()?
            };
            if rows.len() == limit {
                return Ok(JobPage {
                    before: rows.last().map(|row| row.n),
                    rows,
                });
            }
            let Some(scanned_rows) = scanned_rows else {
                return Ok(JobPage { rows, before: None });
            };
            let last = format!("SELECT min(n), count(*) FROM ({scanned_rows})");
            let (last, count): (Option<i64>, i64) = connection
                .prepare_cached(&last)?
                .query_row(rusqlite::params_from_iter(&values), |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            Ok(JobPage {
                rows,
                before: last.filter(|_| count == most),
            })
        })
    }

    /// Tenants with ready jobs.
    pub fn active_tenants(&self) -> Result<Vec<String>, DatabaseError> {
        self.job_reader.read(|connection| {
            connection
                .prepare_cached(ACTIVE_TENANTS)?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// The first ready jobs of a tenant.
    pub fn next_jobs(&self, tenant: &str, most: usize) -> Result<Vec<String>, DatabaseError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.job_reader.read(|connection| {
            connection
                .prepare_cached(NEXT_JOBS)?
                .query_map(params![tenant, most], |row| row.get(0))?
                .collect()
        })
    }

    /// Time of the next job that waits for its time.
    pub fn next_due(&self) -> Result<Option<u64>, DatabaseError> {
        self.job_reader.read(|connection| {
            let due: Option<i64> = connection
                .prepare_cached(NEXT_DUE)?
                .query_row([], |row| row.get(0))?;
            Ok(due.map(from_sql))
        })
    }

    /// Whether dependents of ended jobs still have to be updated.
    pub fn has_pending_propagation(&self) -> Result<bool, DatabaseError> {
        self.job_reader.read(|connection| {
            connection
                .prepare_cached("SELECT 1 FROM job_followed LIMIT 1")?
                .exists([])
        })
    }

    /// Job counts of a tenant, or of all.
    pub fn job_counts(&self, tenant: Option<&str>) -> Result<JobCounts, DatabaseError> {
        self.job_reader
            .read(|connection| counts(connection, tenant.unwrap_or_default()))
    }

    /// Jobs that another server was running. The caller owns the state folder, so that server has
    /// ended.
    pub fn abandoned_jobs(&self, lease_owner: &str) -> Result<Vec<AbandonedJob>, DatabaseError> {
        self.job_reader.read(|connection| {
            let find =
                "SELECT id, tenant, run FROM job WHERE status = 'running' AND boot <> ? ORDER BY n";
            let ended = |row: &Row<'_>| {
                let run: Option<String> = row.get(2)?;
                Ok(AbandonedJob {
                    id: row.get(0)?,
                    tenant: row.get(1)?,
                    run: run.unwrap_or_default(),
                })
            };
            connection
                .prepare(find)?
                .query_map([lease_owner], ended)?
                .collect()
        })
    }
}

impl WriteTransaction<'_> {
    /// The job with this id, as seen by this transaction.
    pub fn job(&self, id: &str) -> Result<Option<JobRow>, DatabaseError> {
        self.map_error(find(self.inner, id))
    }
}

pub(super) fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<JobRow>> {
    connection
        .prepare_cached(&format!("SELECT {JOB_COLUMNS} FROM job WHERE id = ?"))?
        .query_row([id], job_row)
        .optional()
}

pub(super) fn counts(connection: &Connection, tenant: &str) -> rusqlite::Result<JobCounts> {
    let find = "SELECT queued, turn, running, ended, bytes FROM job_tenant WHERE tenant = ?";
    let counts = |row: &Row<'_>| {
        let column = |index| row.get(index).map(from_sql);
        let queued = column(0)?;
        let turn = column(1)?;
        let running = column(2)?;
        Ok(JobCounts {
            queued,
            turn,
            running,
            ended: column(3)?,
            bytes: column(4)?,
        })
    };
    let found = connection
        .prepare_cached(find)?
        .query_row([tenant], counts)
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// The SQL of a page.
struct PageQuery {
    /// The rows to scan, if the indexes do not select exactly.
    scanned_rows: Option<String>,
    query: String,
    /// Parameters of the scan, then those of the filter.
    values: Vec<Box<dyn ToSql>>,
    filter_values: Vec<Box<dyn ToSql>>,
}

/// Contains only the conditions that are set, so that the indexes apply. Conditions without an
/// index are applied to a bounded scan.
fn page_query(filter: &JobFilter, most: i64) -> PageQuery {
    let JobFilter {
        tenant,
        status,
        name,
        label,
        open,
        before,
        limit,
    } = filter.clone();
    let (mut scan, mut values): (String, Vec<Box<dyn ToSql>>) = ("1 = 1".to_owned(), Vec::new());
    let (mut filter, mut filter_values): (String, Vec<Box<dyn ToSql>>) =
        ("1 = 1".to_owned(), Vec::new());
    let known = tenant.is_some();
    // Indexes have the status or the name after the tenant; with both, the one of the name is used.
    let status_known = known && name.is_none();
    for (column, value, known) in [
        ("tenant", tenant, true),
        ("status", status, status_known),
        ("name", name, known),
    ] {
        let Some(value) = value else { continue };
        let (into, of) = if known {
            (&mut scan, &mut values)
        } else {
            (&mut filter, &mut filter_values)
        };
        into.push_str(&format!(" AND {column} = ?"));
        of.push(Box::new(value));
    }
    if let Some((key, value)) = label {
        filter.push_str(
            " AND EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)",
        );
        filter_values.push(Box::new(key));
        filter_values.push(Box::new(value));
    }
    if let Some(before) = before {
        scan.push_str(" AND n < ?");
        values.push(Box::new(before));
    }
    if open {
        filter.push_str(" AND ended_ms IS NULL");
    }
    let needs_scan = open || !filter_values.is_empty();
    filter_values.push(Box::new(limit.min(MAX_PAGE_ROWS)));
    let bounded_scan = |columns: &str| {
        format!("SELECT {columns} FROM job WHERE {scan} ORDER BY n DESC LIMIT {most}")
    };
    let (scanned_rows, query) = if needs_scan {
        let from = bounded_scan("*");
        let query = format!(
            "SELECT {JOB_COLUMNS} FROM ({from}) AS job WHERE {filter} ORDER BY n DESC LIMIT ?"
        );
        (Some(bounded_scan("n")), query)
    } else {
        (
            None,
            format!("SELECT {JOB_COLUMNS} FROM job WHERE {scan} ORDER BY n DESC LIMIT ?"),
        )
    };
    PageQuery {
        scanned_rows,
        query,
        values,
        filter_values,
    }
}

fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let time = |column| {
        row.get::<_, Option<i64>>(column)
            .map(|time| time.map(from_sql))
    };
    // Written by us as JSON; anything else counts as empty.
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
        accepted_ms: from_sql(row.get("accepted_ms")?),
        not_before_ms: time("not_before_ms")?,
        due_ms: from_sql(row.get("due_ms")?),
        started_ms: time("started_ms")?,
        ended_ms: time("ended_ms")?,
        attempt: row.get("attempt")?,
        max_attempts: row.get("most_attempts")?,
        rerun: row.get::<_, String>("on_lost")? == "rerun",
        run: row.get("run")?,
        runs: texts("runs")?,
        after: texts("after")?,
        cancelled: row.get("cancelled")?,
        webhook: row.get("webhook")?,
        webhook_progress: row
            .get::<_, Option<String>>("told")?
            .and_then(|text| DeliveryProgress::read(&text)),
        error: row.get("error")?,
    })
}

/// The end of a time span that begins now.
pub(super) fn later(now_ms: u64, span_ms: u64) -> i64 {
    sql_integer(now_ms.saturating_add(span_ms))
}
