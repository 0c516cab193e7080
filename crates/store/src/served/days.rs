//! What tenants began and used, day by day.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::params;
use spec::Day;
use std::collections::HashMap;

/// What a tenant began and used on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct DayUse {
    pub runs: u64,
    pub sandboxes: u64,
    pub cpu_ms: u64,
}

impl DayUse {
    /// A run was begun.
    pub const RUN: DayUse = DayUse {
        runs: 1,
        sandboxes: 0,
        cpu_ms: 0,
    };
    /// A sandbox was begun.
    pub const SANDBOX: DayUse = DayUse {
        runs: 0,
        sandboxes: 1,
        cpu_ms: 0,
    };

    /// So much CPU time was used.
    pub fn cpu(cpu_ms: u64) -> DayUse {
        DayUse {
            cpu_ms,
            ..DayUse::default()
        }
    }
}

impl Writing<'_> {
    /// Adds to a tenant's day.
    pub fn add_to_day(&self, tenant: &str, day: Day, more: DayUse) -> Result<(), DatabaseError> {
        if more == DayUse::default() {
            return Ok(());
        }
        let add =
            "INSERT INTO tenant_day (tenant, day, runs, sandboxes, cpu_ms) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant, day) DO UPDATE SET runs = runs + excluded.runs,
                 sandboxes = sandboxes + excluded.sandboxes, cpu_ms = cpu_ms + excluded.cpu_ms";
        let row = params![
            tenant,
            number(day.0),
            number(more.runs),
            number(more.sandboxes),
            number(more.cpu_ms)
        ];
        let added = self
            .transaction
            .prepare_cached(add)
            .and_then(|mut add| add.execute(row));
        added
            .map(|_| ())
            .map_err(|source| self.database.failed(source))
    }
}

impl Served {
    /// What every tenant began and used on this day.
    pub fn day(&self, day: Day) -> Result<HashMap<String, DayUse>, DatabaseError> {
        self.reading.read(|connection| {
            let question = "SELECT tenant, runs, sandboxes, cpu_ms FROM tenant_day WHERE day = ?";
            let mut rows = connection.prepare_cached(question)?;
            let all = rows.query_map([number(day.0)], |row| {
                let count = |name: &str| row.get::<_, i64>(name).map(back);
                let used = DayUse {
                    runs: count("runs")?,
                    sandboxes: count("sandboxes")?,
                    cpu_ms: count("cpu_ms")?,
                };
                Ok((row.get("tenant")?, used))
            })?;
            all.collect()
        })
    }
}
