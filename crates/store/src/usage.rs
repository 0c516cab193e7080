//! Model usage for queries: a copy of the ledger that can be rebuilt. The caller reads the ledgers.

use crate::{
    database::{Database, DatabaseError},
    server_database::TenantActivity,
};
use rusqlite::{Connection, OptionalExtension, Row, Statement, named_params, params};
use spec::{Day, Timestamp};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

/// Upper bounds that keep the sums below 2^63. Doors write no larger values; an older ledger may
/// contain some.
const MAX_TOKENS: u64 = spec::MAX_TOKENS_PER_CALL;
const MAX_MONEY: u64 = spec::Money::MAX_PER_CALL.0;
const MILLISECONDS_A_DAY: u64 = 86_400_000;

const INSERT_RESERVATION: &str = "
    INSERT OR REPLACE INTO usage_attempt VALUES (:segment, :n, :at_ms, :run, :session, :tenant, :door, :provider,
    :model, :operation, :attempt, :price_book, :money, 'open', :money, 0, 0, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)";
const UPDATE_SETTLEMENT: &str = "
    UPDATE usage_attempt SET source = ?3, money = ?4, overrun = ?5, status = ?6, ending = ?7, duration_ms = ?8,
    input = ?9, cache_read = ?10, cache_write_5m = ?11, cache_write_1h = ?12, audio_in = ?13, output = ?14,
    reasoning = ?15, audio_out = ?16, tool_requests = ?17 WHERE segment = ?1 AND n = ?2";

/// The usage tables in the database of a state folder.
#[derive(Debug)]
pub struct UsageDatabase {
    database: Database,
}

/// How far a ledger segment was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentProgress {
    /// File of the segment, from 1.
    pub part: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Number of the last record read.
    pub n: u64,
    /// Hash of the last record read.
    pub hash: [u8; 32],
}

/// A change of the usage by one ledger record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageChange {
    /// A model call was reserved.
    Reserved(ModelAttempt),
    /// The call that record `n` reserved has ended.
    Settled(SettledAttempt),
}

/// An attempt to call a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelAttempt {
    /// Record number.
    pub n: u64,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// Run id.
    pub run: String,
    /// Session.
    pub session: String,
    /// Tenant.
    pub tenant: String,
    /// Door of the call.
    pub door: String,
    /// Provider.
    pub provider: String,
    /// Model.
    pub model: String,
    /// Operation.
    pub operation: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Version of the price book.
    pub price_book: String,
    /// Reserved cost in nano-dollars.
    pub reserved: u64,
}

/// The settled end of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettledAttempt {
    /// Record number of the reservation.
    pub n: u64,
    /// `final`, `partial`, `estimated` or `reserved`.
    pub source: &'static str,
    /// Cost in nano-dollars.
    pub money: u64,
    /// Cost beyond the reservation.
    pub overrun: u64,
    /// HTTP status of the response.
    pub status: u16,
    /// How the response ended.
    pub ending: String,
    /// Duration.
    pub duration_ms: u64,
    /// Input, cache read, cache written for 5 minutes and for 1 hour, audio in, output, reasoning,
    /// audio out, tools.
    pub counts: [u64; 9],
}

/// What usage is summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// By run.
    Run,
    /// By session.
    Session,
    /// By tenant.
    Tenant,
    /// By model.
    Model,
    /// By provider.
    Provider,
    /// By day.
    Day,
}

/// Filter of attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// Run.
    pub run: Option<String>,
    /// Tenant.
    pub tenant: Option<String>,
    /// Start of the time range, inclusive.
    pub since_ms: Option<u64>,
    /// End of the time range, exclusive.
    pub until_ms: Option<u64>,
}

/// Summed usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageTotal {
    /// Key of the group.
    pub key: String,
    /// Number of calls.
    pub calls: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    pub cached_tokens: u64,
    /// Cost in nano-dollars.
    pub money: u64,
    /// Cost beyond the reservations.
    pub overrun: u64,
    /// Calls whose real cost is unknown, so that they count with their reservation, and the sum of
    /// those.
    pub unsettled: u64,
    /// Sum of their reservations.
    pub unsettled_money: u64,
    /// Unsettled calls that are still running.
    pub open: u64,
    /// Runs, sandboxes and CPU time, where the sums are by tenant or by day.
    pub activity: Option<TenantActivity>,
    /// The sum may still change, because a call is running or the day has not ended.
    pub may_change: bool,
}

impl UsageDatabase {
    /// Opens the tables of a state folder; creates them if they are absent.
    pub fn open(state: &Path) -> Result<UsageDatabase, DatabaseError> {
        Ok(UsageDatabase {
            database: Database::open(state)?,
        })
    }

    /// How far each segment was read.
    pub fn segments(&self) -> Result<BTreeMap<String, SegmentProgress>, DatabaseError> {
        self.database.read(|connection| {
            let mut rows =
                connection.prepare("SELECT segment, part, offset, n, hash FROM usage_segment")?;
            let all = rows.query_map([], |row| Ok((row.get(0)?, progress(row)?)))?;
            all.collect()
        })
    }

    /// Adds the records between two positions of a segment. False if another process has read on
    /// meanwhile.
    pub fn add(
        &self,
        segment: &str,
        from: Option<SegmentProgress>,
        to: SegmentProgress,
        changes: &[UsageChange],
    ) -> Result<bool, DatabaseError> {
        self.database.write(|transaction| {
            let read = "SELECT segment, part, offset, n, hash FROM usage_segment WHERE segment = ?";
            if transaction.query_row(read, [segment], progress).optional()? != from {
                return Ok(false);
            }
            let mut insert = transaction.prepare(INSERT_RESERVATION)?;
            let mut update = transaction.prepare(UPDATE_SETTLEMENT)?;
            for change in changes {
                match change {
                    UsageChange::Reserved(attempt) => reserved(&mut insert, segment, attempt)?,
                    UsageChange::Settled(ended) => settled(&mut update, segment, ended)?,
                }
            }
            let note = "INSERT OR REPLACE INTO usage_segment (segment, part, offset, n, hash) VALUES (?, ?, ?, ?, ?)";
            let offset = sql_integer(to.offset, u64::MAX);
            let n = sql_integer(to.n, u64::MAX);
            transaction.execute(note, params![segment, to.part, offset, n, &to.hash[..]])?;
            Ok(true)
        })
    }

    /// Marks a fully read segment for removal. False if it was read further meanwhile, or is marked
    /// already.
    pub fn begin_retirement(
        &self,
        segment: &str,
        end: SegmentProgress,
        now_ms: u64,
    ) -> Result<bool, DatabaseError> {
        self.database.write(|transaction| {
            let read = "SELECT segment, part, offset, n, hash FROM usage_segment WHERE segment = ?";
            if transaction.query_row(read, [segment], progress).optional()? != Some(end) {
                return Ok(false);
            }
            // Segment names contain no tilde; a segment of the same name may be retired again
            // later.
            let name = format!("{segment}~{now_ms}");
            let note = "INSERT OR IGNORE INTO usage_retired (name, segment, n, hash, at_ms, done) VALUES (?, ?, ?, ?, ?, 0)";
            let n = sql_integer(end.n, u64::MAX);
            let at = sql_integer(now_ms, u64::MAX);
            Ok(transaction.execute(note, params![name, segment, n, &end.hash[..], at])? == 1)
        })
    }

    /// Segments that are marked for removal.
    pub fn retiring_segments(&self) -> Result<Vec<String>, DatabaseError> {
        self.database.read(|connection| {
            let mut rows =
                connection.prepare("SELECT segment FROM usage_retired WHERE done = 0")?;
            let all = rows.query_map([], |row| row.get(0))?;
            all.collect()
        })
    }

    /// Records that the files of a segment were removed. Its usage stays, and its name becomes
    /// free.
    pub fn finish_retirement(&self, segment: &str) -> Result<(), DatabaseError> {
        self.database.write(|transaction| {
            let find = "SELECT name FROM usage_retired WHERE segment = ? AND done = 0";
            let Some(name) = transaction
                .query_row(find, [segment], |row| row.get::<_, String>(0))
                .optional()?
            else {
                return Ok(());
            };
            transaction.execute(
                "UPDATE usage_attempt SET segment = ?2 WHERE segment = ?1",
                params![segment, name],
            )?;
            transaction.execute("DELETE FROM usage_segment WHERE segment = ?", [segment])?;
            transaction.execute("UPDATE usage_retired SET done = 1 WHERE name = ?", [name])?;
            Ok(())
        })
    }

    /// Forgets the position in a segment whose files were set aside. Its usage stays, and its name
    /// becomes free.
    pub fn set_segment_aside(&self, segment: &str, now_ms: u64) -> Result<(), DatabaseError> {
        self.database.write(|transaction| {
            let name = format!("{segment}~{now_ms}");
            let note = "INSERT OR IGNORE INTO usage_retired (name, segment, n, hash, at_ms, done)
                SELECT ?2, segment, n, hash, ?3, 1 FROM usage_segment WHERE segment = ?1";
            transaction.execute(note, params![segment, name, sql_integer(now_ms, u64::MAX)])?;
            let rename = "UPDATE usage_attempt SET segment = ?2, source = iif(source = 'open', 'reserved', source) WHERE segment = ?1";
            transaction.execute(rename, params![segment, name])?;
            transaction.execute("DELETE FROM usage_segment WHERE segment = ?", [segment])?;
            Ok(())
        })
    }

    /// Sums, most expensive first; days in order.
    pub fn totals(
        &self,
        by: GroupBy,
        filter: &UsageFilter,
    ) -> Result<Vec<UsageTotal>, DatabaseError> {
        self.database
            .read(|connection| totals(connection, by, filter))
    }

    /// The sums with the activity of tenants and days, and whether they may still change as of
    /// `now`.
    pub fn statement(
        &self,
        by: GroupBy,
        filter: &UsageFilter,
        now: Timestamp,
    ) -> Result<Vec<UsageTotal>, DatabaseError> {
        let mut totals = self.totals(by, filter)?;
        if filter.run.is_none() && matches!(by, GroupBy::Tenant | GroupBy::Day) {
            let all = self
                .database
                .read(|connection| activity(connection, by, filter))?;
            add_activity(&mut totals, all, by);
        }
        let today = Day::of(now);
        let goes_on = filter.until_ms.is_none_or(|until| until > today.start().0);
        for total in &mut totals {
            let is_open = match by {
                GroupBy::Day => total.key.parse::<Day>().is_ok_and(|day| day >= today),
                GroupBy::Run
                | GroupBy::Session
                | GroupBy::Tenant
                | GroupBy::Model
                | GroupBy::Provider => goes_on,
            };
            total.may_change = is_open || total.open > 0;
        }
        Ok(totals)
    }
}

/// SQLite integers end at 2^63.
fn sql_integer(value: u64, most: u64) -> i64 {
    i64::try_from(value.min(most)).unwrap_or(i64::MAX)
}

fn from_sql(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

fn progress(row: &Row<'_>) -> rusqlite::Result<SegmentProgress> {
    let hash: Vec<u8> = row.get("hash")?;
    Ok(SegmentProgress {
        part: row.get("part")?,
        offset: from_sql(row.get("offset")?),
        n: from_sql(row.get("n")?),
        // A hash of the wrong length becomes zeros, which match no ledger: the mismatch is then
        // reported.
        hash: hash.try_into().unwrap_or_default(),
    })
}

fn reserved(
    insert: &mut Statement<'_>,
    segment: &str,
    attempt: &ModelAttempt,
) -> rusqlite::Result<()> {
    let money = sql_integer(attempt.reserved, MAX_MONEY);
    insert.execute(named_params! {
        ":segment": segment,
        ":n": sql_integer(attempt.n, u64::MAX),
        ":at_ms": sql_integer(attempt.at_ms, u64::MAX),
        ":run": attempt.run,
        ":session": attempt.session,
        ":tenant": attempt.tenant,
        ":door": attempt.door,
        ":provider": attempt.provider,
        ":model": attempt.model,
        ":operation": attempt.operation,
        ":attempt": attempt.attempt,
        ":price_book": attempt.price_book,
        ":money": money,
    })?;
    Ok(())
}

fn settled(
    update: &mut Statement<'_>,
    segment: &str,
    ended: &SettledAttempt,
) -> rusqlite::Result<()> {
    let [
        input,
        cache_read,
        write_5m,
        write_1h,
        audio_in,
        output,
        reasoning,
        audio_out,
        tools,
    ] = ended.counts.map(|count| sql_integer(count, MAX_TOKENS));
    let money = sql_integer(ended.money, MAX_MONEY);
    let overrun = sql_integer(ended.overrun, MAX_MONEY);
    let duration = sql_integer(ended.duration_ms, u64::MAX);
    update.execute(params![
        segment,
        sql_integer(ended.n, u64::MAX),
        ended.source,
        money,
        overrun,
        ended.status,
        ended.ending,
        duration,
        input,
        cache_read,
        write_5m,
        write_1h,
        audio_in,
        output,
        reasoning,
        audio_out,
        tools
    ])?;
    Ok(())
}

/// Activity is stored by day: the first and last day count as a whole.
fn activity(
    connection: &Connection,
    by: GroupBy,
    filter: &UsageFilter,
) -> rusqlite::Result<Vec<(String, TenantActivity)>> {
    let key = if by == GroupBy::Day {
        "date(day * 86400, 'unixepoch')"
    } else {
        "tenant"
    };
    let question = format!(
        "SELECT {key} AS key, sum(runs) AS runs, sum(sandboxes) AS sandboxes, sum(cpu_ms) AS cpu_ms FROM tenant_day
         WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR day >= ?2) AND (?3 IS NULL OR day < ?3) GROUP BY 1"
    );
    let since = filter
        .since_ms
        .map(|since| sql_integer(Day::of(Timestamp(since)).0, u64::MAX));
    let until = filter
        .until_ms
        .map(|until| sql_integer(until.div_ceil(MILLISECONDS_A_DAY), u64::MAX));
    let mut rows = connection.prepare(&question)?;
    let all = rows.query_map(params![filter.tenant, since, until], |row| {
        let count = |name: &str| row.get::<_, i64>(name).map(from_sql);
        let used = TenantActivity {
            runs: count("runs")?,
            sandboxes: count("sandboxes")?,
            cpu_ms: count("cpu_ms")?,
        };
        Ok((row.get("key")?, used))
    })?;
    all.collect()
}

/// Tenants and days without model calls get a row, too.
fn add_activity(totals: &mut Vec<UsageTotal>, all: Vec<(String, TenantActivity)>, by: GroupBy) {
    totals
        .iter_mut()
        .for_each(|total| total.activity = Some(TenantActivity::default()));
    let mut places: HashMap<String, usize> = totals
        .iter()
        .enumerate()
        .map(|(place, total)| (total.key.clone(), place))
        .collect();
    for (key, used) in all {
        match places.get(&key) {
            Some(place) => totals[*place].activity = Some(used),
            None => {
                places.insert(key.clone(), totals.len());
                totals.push(UsageTotal {
                    key,
                    activity: Some(used),
                    ..UsageTotal::default()
                });
            }
        }
    }
    match by {
        GroupBy::Day => totals.sort_by(|one, other| one.key.cmp(&other.key)),
        _ => totals.sort_by(|one, other| {
            other
                .money
                .cmp(&one.money)
                .then_with(|| one.key.cmp(&other.key))
        }),
    }
}

fn totals(
    connection: &Connection,
    by: GroupBy,
    filter: &UsageFilter,
) -> rusqlite::Result<Vec<UsageTotal>> {
    let (key, order) = match by {
        GroupBy::Run => ("run", "money DESC, key"),
        GroupBy::Session => ("session", "money DESC, key"),
        GroupBy::Tenant => ("tenant", "money DESC, key"),
        GroupBy::Model => ("model", "money DESC, key"),
        GroupBy::Provider => ("provider", "money DESC, key"),
        GroupBy::Day => ("date(at_ms / 1000, 'unixepoch')", "key"),
    };
    let question = format!(
        "SELECT coalesce({key}, '') AS key, count(*) AS calls,
            sum(input + cache_read + cache_write_5m + cache_write_1h + audio_in) AS input_tokens,
            sum(output + reasoning + audio_out) AS output_tokens, sum(cache_read) AS cached_tokens,
            sum(money) AS money, sum(overrun) AS overrun,
            sum(source IN ('open', 'reserved')) AS unsettled,
            sum(iif(source IN ('open', 'reserved'), money, 0)) AS unsettled_money, sum(source = 'open') AS open
         FROM usage_attempt WHERE (?1 IS NULL OR run = ?1) AND (?2 IS NULL OR at_ms >= ?2)
            AND (?3 IS NULL OR at_ms < ?3) AND (?4 IS NULL OR tenant = ?4)
         GROUP BY 1 ORDER BY {order}"
    );
    let [since, until] = [filter.since_ms, filter.until_ms]
        .map(|moment| moment.map(|moment| sql_integer(moment, u64::MAX)));
    let mut rows = connection.prepare(&question)?;
    let all = rows.query_map(params![filter.run, since, until, filter.tenant], |row| {
        let count = |name: &str| row.get::<_, i64>(name).map(from_sql);
        Ok(UsageTotal {
            key: row.get("key")?,
            calls: count("calls")?,
            input_tokens: count("input_tokens")?,
            output_tokens: count("output_tokens")?,
            cached_tokens: count("cached_tokens")?,
            money: count("money")?,
            overrun: count("overrun")?,
            unsettled: count("unsettled")?,
            unsettled_money: count("unsettled_money")?,
            open: count("open")?,
            activity: None,
            may_change: false,
        })
    })?;
    all.collect()
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
