//! Quotas of tenants: new work is refused early, with the rule that refused it.
//!
//! ```text
//! runs, sandboxes   concurrent   counted where they are registered: no two pass the limit together
//! memory            concurrent   sum of the memory limits of active work, likewise; admin requests
//!                                are not limited but count
//! cpu_day           per day      counted every few seconds and at each end; active work may finish
//! day_usd           per day      checked against the budget if models are used; model calls
//!                                reserve from it themselves
//! storage           total        artifacts never exceed it; a copied workspace starts only below it
//! ```

mod daily_usage;
mod quota;
mod tenant_lock;

pub(crate) use daily_usage::{DailyUsage, HighWaterMark};
pub(crate) use quota::routes;
pub(crate) use tenant_lock::TenantLocks;

use crate::{Gateway, Problem, blocking, problem::Answer};
use http::StatusCode;
use spec::{Day, Id, RunSpec, SandboxSpec, Size};

/// The kind of work that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A run, of a job or not.
    Run,
    /// A sandbox.
    Sandbox,
    /// A job, which is queued.
    Job,
    /// An artifact.
    Artifact,
}

/// The resources that new work needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceDemand {
    pub(crate) what: WorkKind,
    /// It calls models that cost money.
    pub(crate) llm: bool,
    /// It stores data beyond its own end.
    pub(crate) storage: bool,
    /// Bytes of memory quota that must be left; 0 if not checked.
    pub(crate) memory: u64,
}

/// Maximum host memory of a sandbox, with the bodies that the server buffers at its model doors.
pub(crate) fn memory_of(spec: &RunSpec) -> u64 {
    let grants = &spec.grants;
    let doors = u64::from(grants.llm.is_some()) + u64::from(grants.inference.is_some());
    memory_of_sandbox(&spec.sandbox).saturating_add(doors * engine::MAX_BODY_BYTES)
}

/// The same without these bodies. The memory limit of a sandbox covers its programs and their
/// files; what the server writes into an in-memory workspace is not covered, and is at most the
/// size of the workspace.
fn memory_of_sandbox(sandbox: &SandboxSpec) -> u64 {
    let written = if sandbox.workspace.is_none() {
        sandbox.limits.scratch().0
    } else {
        0
    };
    sandbox.limits.memory.0.saturating_add(written)
}

/// The same for a run: its standard input and captured output are held in the server's memory.
pub(crate) fn memory_of_run(spec: &RunSpec, stdin: usize) -> u64 {
    let output = spec.sandbox.limits.output.0.saturating_mul(2);
    memory_of(spec)
        .saturating_add(output)
        .saturating_add(stdin as u64)
}

/// The refusal of a daily limit, with the time at which the next day starts.
fn until_next_day(problem: impl FnOnce(String) -> Problem, rule: &'static str) -> Problem {
    let now = engine::now();
    let tomorrow = Day::of(now).next().start();
    let seconds = (tomorrow.0 - now.0).div_ceil(1000);
    let anew = format!("it begins anew at {tomorrow}, in {seconds} seconds");
    problem(anew).with_retry_after(seconds).with_rule(rule)
}

fn too_many(title: String, hint: String) -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "quota_exceeded",
        title,
        Some(hint),
    )
}

impl Gateway {
    /// Refuses new work that exceeds a quota. Concurrent limits are checked again where the work is
    /// registered.
    pub(crate) async fn check_quota(&self, tenant: &str, needs: ResourceDemand) -> Answer<()> {
        self.check_slots(tenant, needs.what)?;
        if needs.memory > 0 {
            self.check_memory(tenant, self.memory_taken(tenant), needs.memory)?;
        }
        // The scheduler has already checked the disk for jobs; artifacts have a limit of their own.
        if matches!(needs.what, WorkKind::Run | WorkKind::Sandbox) {
            self.check_disk_space()?;
        }
        if needs.what != WorkKind::Artifact {
            self.check_cpu(tenant)?;
        }
        if needs.llm {
            self.check_money(tenant)?;
        }
        if needs.storage {
            self.check_storage(tenant).await?;
        }
        Ok(())
    }

    /// Maximum number of concurrent runs of a tenant: its quota, or the default.
    pub(crate) fn max_runs(&self, tenant: &str) -> usize {
        self.quota(tenant)
            .runs
            .unwrap_or(self.bounds().runs_per_key)
    }

    fn check_slots(&self, tenant: &str, what: WorkKind) -> Answer<()> {
        match what {
            WorkKind::Run => self.runs_full(tenant).map_or(Ok(()), Err),
            WorkKind::Sandbox => self.sandboxes_full(tenant).map_or(Ok(()), Err),
            WorkKind::Job | WorkKind::Artifact => Ok(()),
        }
    }

    /// The refusal if the limit of concurrent runs is reached.
    pub(crate) fn runs_full(&self, tenant: &str) -> Option<Problem> {
        let (own, all) = self.runs().counts(tenant);
        let max_per_tenant = self.max_runs(tenant);
        let max = self.bounds().runs;
        let hint = |whose: &str| {
            format!("wait until one has ended, or ask the operator for a higher {whose}")
        };
        if own >= max_per_tenant {
            let name = if self.quota(tenant).runs.is_some() {
                "runs"
            } else {
                "runs_per_key"
            };
            let title = format!(
                "too many runs are under way: a tenant has at most {max_per_tenant} (`{name}`)"
            );
            return Some(too_many(title, hint(&format!("`{name}`"))).with_rule("quota:runs"));
        }
        (all >= max).then(|| {
            let title =
                format!("too many runs are under way: all tenants together have at most {max}");
            too_many(title, hint("`runs` under [serve]")).with_rule("quota:all_runs")
        })
    }

    /// Sum of the memory limits of a tenant's active work.
    pub(crate) fn memory_taken(&self, tenant: &str) -> u64 {
        let runs = self.runs().memory_of(tenant);
        runs.saturating_add(self.memory_of_sandboxes(tenant))
    }

    /// Checks `more` bytes against the memory quota, of which `taken` are used.
    pub(crate) fn check_memory(&self, tenant: &str, taken: u64, more: u64) -> Answer<()> {
        let Some(max) = self.max_memory(tenant) else {
            return Ok(());
        };
        if taken.saturating_add(more) <= max {
            return Ok(());
        }
        let title = format!(
            "this tenant's runs and sandboxes have at most {} of memory together (`memory`), by their limits",
            Size(max)
        );
        let hint = format!(
            "they have {} and this one takes {}, with its workspace: wait until one has ended, or give each less",
            Size(taken),
            Size(more)
        );
        Err(too_many(title, hint).with_rule("quota:memory"))
    }

    /// Whether the memory quota is used up. A job waits only for this: its own memory may exceed
    /// the quota.
    pub(crate) fn is_out_of_memory(&self, tenant: &str) -> bool {
        let max = self.max_memory(tenant);
        max.is_some_and(|max| self.memory_taken(tenant) >= max)
    }

    /// Checks the CPU time quota of the day.
    pub(crate) fn check_cpu(&self, tenant: &str) -> Answer<()> {
        let Some(limit) = self.quota(tenant).cpu_day else {
            return Ok(());
        };
        let max = u64::try_from(limit.0.as_millis()).unwrap_or(u64::MAX);
        if self.daily_usage().used(tenant).cpu_ms < max {
            return Ok(());
        }
        let title = format!("the CPU time of this tenant's day is used up (`cpu_day`: {limit})");
        Err(until_next_day(
            |anew| too_many(title, format!("{anew}; what is under way may finish")),
            "quota:cpu_day",
        ))
    }

    fn check_money(&self, tenant: &str) -> Answer<()> {
        let day = self
            .engine()
            .money_of_day(tenant)
            .filter(engine::DailyBudget::is_spent);
        if day.is_none() {
            return Ok(());
        }
        let title = "the money of this tenant's day is spent (limit `tenant_day_usd`)";
        let problem = |anew: String| {
            let hint = format!("{anew}; without models it runs now");
            Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "budget_exceeded",
                title,
                Some(hint),
            )
        };
        Err(until_next_day(problem, "quota:tenant_day_usd"))
    }

    /// Stored bytes of an owner's artifacts and workspaces, measured within the share of the asking
    /// tenant. If they cannot be measured, the request is refused.
    async fn stored_bytes(&self, asking: &str, owner: Id) -> Answer<u64> {
        let unknown = |error: std::io::Error| {
            crate::log_warning(format_args!(
                "airlock: what a tenant stores cannot be weighed: {error}"
            ));
            crate::db_writer::busy()
        };
        let artifacts = self.engine().stored(&owner).await.map_err(unknown)?;
        let gateway = self.clone();
        let weigh = move || gateway.engine().stored_layers(&owner).map_err(unknown);
        // A full queue says nothing about the stored bytes.
        let layers = blocking::run_queued(self.blocking_work(), asking, weigh)
            .await
            .map_err(|_| crate::db_writer::busy())?;
        Ok(artifacts.saturating_add(layers))
    }

    async fn check_storage(&self, tenant: &str) -> Answer<()> {
        let Some(limit) = self.quota(tenant).storage else {
            return Ok(());
        };
        let refusal = |problem: Problem| problem.with_rule("quota:storage");
        let owner = Id::new(tenant).map_err(|_| refusal(crate::db_writer::busy()))?;
        let stored_bytes = self.stored_bytes(tenant, owner).await?;
        if stored_bytes < limit.0 {
            Ok(())
        } else {
            let title = format!(
                "this tenant's artifacts and workspaces take all they may (`storage`: {limit})"
            );
            let hint = "remove artifacts, or take workspaces over or drop them".to_owned();
            let status = StatusCode::INSUFFICIENT_STORAGE;
            Err(refusal(Problem::new(
                status,
                "quota_exceeded",
                title,
                Some(hint),
            )))
        }
    }
}
