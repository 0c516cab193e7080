//! Daily activity of tenants: runs and sandboxes started, CPU time used.

use super::{ServerDatabase, WriteTransaction, from_sql, sql_integer};
use crate::database::DatabaseError;
use rusqlite::params;
use spec::Day;
use std::collections::HashMap;

/// A tenant's activity on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantActivity {
    /// Runs started.
    pub runs: u64,
    /// Sandboxes started.
    pub sandboxes: u64,
    /// CPU time used.
    pub cpu_ms: u64,
}

impl TenantActivity {
    /// One run started.
    pub const ONE_RUN: TenantActivity = TenantActivity {
        runs: 1,
        sandboxes: 0,
        cpu_ms: 0,
    };
    /// One sandbox started.
    pub const ONE_SANDBOX: TenantActivity = TenantActivity {
        runs: 0,
        sandboxes: 1,
        cpu_ms: 0,
    };

    /// CPU time used.
    pub fn cpu_time(cpu_ms: u64) -> TenantActivity {
        TenantActivity {
            cpu_ms,
            ..TenantActivity::default()
        }
    }
}

impl WriteTransaction<'_> {
    /// Adds to a tenant's activity on a day.
    pub fn add_tenant_activity(
        &self,
        tenant: &str,
        day: Day,
        more: TenantActivity,
    ) -> Result<(), DatabaseError> {
        if more == TenantActivity::default() {
            return Ok(());
        }
        let add =
            "INSERT INTO tenant_day (tenant, day, runs, sandboxes, cpu_ms) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant, day) DO UPDATE SET runs = runs + excluded.runs,
                 sandboxes = sandboxes + excluded.sandboxes, cpu_ms = cpu_ms + excluded.cpu_ms";
        let row = params![
            tenant,
            sql_integer(day.0),
            sql_integer(more.runs),
            sql_integer(more.sandboxes),
            sql_integer(more.cpu_ms)
        ];
        let added = self
            .inner
            .prepare_cached(add)
            .and_then(|mut add| add.execute(row));
        added
            .map(|_| ())
            .map_err(|source| self.database.failed(source))
    }
}

impl ServerDatabase {
    /// The activity of every tenant on this day.
    pub fn tenant_activity(
        &self,
        day: Day,
    ) -> Result<HashMap<String, TenantActivity>, DatabaseError> {
        self.reader.read(|connection| {
            let question = "SELECT tenant, runs, sandboxes, cpu_ms FROM tenant_day WHERE day = ?";
            let mut rows = connection.prepare_cached(question)?;
            let all = rows.query_map([sql_integer(day.0)], |row| {
                let count = |name: &str| row.get::<_, i64>(name).map(from_sql);
                let used = TenantActivity {
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
