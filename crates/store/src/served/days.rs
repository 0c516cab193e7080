//! Daily activity of tenants: runs and sandboxes started, CPU time used.

use super::{Served, Writing, back, number};
use crate::database::DatabaseError;
use rusqlite::params;
use spec::Day;
use std::collections::HashMap;

/// A tenant's activity on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayUse {
    /// Runs started.
    pub runs: u64,
    /// Sandboxes started.
    pub sandboxes: u64,
    /// CPU time used.
    pub cpu_ms: u64,
}

impl DayUse {
    /// One run started.
    pub const RUN: DayUse = DayUse {
        runs: 1,
        sandboxes: 0,
        cpu_ms: 0,
    };
    /// One sandbox started.
    pub const SANDBOX: DayUse = DayUse {
        runs: 0,
        sandboxes: 1,
        cpu_ms: 0,
    };

    /// CPU time used.
    pub fn cpu(cpu_ms: u64) -> DayUse {
        DayUse {
            cpu_ms,
            ..DayUse::default()
        }
    }
}

impl Writing<'_> {
    /// Adds to a tenant's activity on a day.
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
    /// The activity of every tenant on this day.
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
