//! What tenants may have and have: who is told no, early and by which rule, before anything is made for him.
//!
//! ```text
//! runs, sandboxes   at once      counted where they are listed, so that no two pass the bound together
//! cpu_day           of a day     counted every few seconds and at each end; what goes on may finish
//! day_usd           of a day     asked of the till, if models are wanted at all; calls hold it themselves
//! storage           at once      artifacts never pass it; a workspace that is copied is begun only below it
//! ```

mod days;
mod quota;

pub(crate) use days::{Counted, Days};
pub(crate) use quota::routes;

use crate::{Gateway, Problem, problem::Answer, work};
use http::StatusCode;
use spec::{Day, Id};

/// What is about to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A run, of a job or not.
    Run,
    /// A sandbox.
    Sandbox,
    /// A job, which will wait for its turn.
    Job,
    /// Something that is kept.
    Artifact,
}

/// What is about to be begun, and what it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) what: What,
    /// It calls models that cost money.
    pub(crate) llm: bool,
    /// It takes room for longer than it lasts.
    pub(crate) storage: bool,
}

/// The limit of which nothing is left, and when there is some again.
fn until_tomorrow(problem: impl FnOnce(String) -> Problem, rule: &'static str) -> Problem {
    let now = engine::now();
    let tomorrow = Day::of(now).next().start();
    let seconds = (tomorrow.0 - now.0).div_ceil(1000);
    let anew = format!("it begins anew at {tomorrow}, in {seconds} seconds");
    problem(anew).retry_after(seconds).ruled(rule)
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
    /// Refuses what a tenant may not begin now. Whatever lists what is begun looks once more at how many there are.
    pub(crate) async fn may_begin(&self, tenant: &str, needs: Needs) -> Answer<()> {
        self.has_place(tenant, needs.what)?;
        // Whose turn it is was asked whether there is room; artifacts have a bound of their own.
        if matches!(needs.what, What::Run | What::Sandbox) {
            self.has_room()?;
        }
        if needs.what != What::Artifact {
            self.has_cpu(tenant)?;
        }
        if needs.llm {
            self.has_money(tenant)?;
        }
        if needs.storage {
            self.has_storage(tenant).await?;
        }
        Ok(())
    }

    /// How many runs a tenant may have at once: as its quota says, else as everybody's does.
    pub(crate) fn most_runs(&self, tenant: &str) -> usize {
        self.quota(tenant)
            .runs
            .unwrap_or(self.bounds().runs_per_key)
    }

    fn has_place(&self, tenant: &str, what: What) -> Answer<()> {
        match what {
            What::Run => self.runs_full(tenant).map_or(Ok(()), Err),
            What::Sandbox => self.sandboxes_full(tenant).map_or(Ok(()), Err),
            What::Job | What::Artifact => Ok(()),
        }
    }

    /// Why there is no room for one more run, if there is none.
    pub(crate) fn runs_full(&self, tenant: &str) -> Option<Problem> {
        let (own, all) = self.runs().counts(tenant);
        let (most_of_one, most) = (self.most_runs(tenant), self.bounds().runs);
        let hint = |whose: &str| {
            format!("wait until one has ended, or ask the operator for a higher {whose}")
        };
        if own >= most_of_one {
            let name = if self.quota(tenant).runs.is_some() {
                "runs"
            } else {
                "runs_per_key"
            };
            let title = format!(
                "too many runs are under way: a tenant has at most {most_of_one} (`{name}`)"
            );
            return Some(too_many(title, hint(&format!("`{name}`"))).ruled("quota:runs"));
        }
        (all >= most).then(|| {
            let title =
                format!("too many runs are under way: all tenants together have at most {most}");
            too_many(title, hint("`runs` under [serve]")).ruled("quota:all_runs")
        })
    }

    /// Whether anything of the CPU time of its day is left.
    pub(crate) fn has_cpu(&self, tenant: &str) -> Answer<()> {
        let Some(limit) = self.quota(tenant).cpu_day else {
            return Ok(());
        };
        let most = u64::try_from(limit.0.as_millis()).unwrap_or(u64::MAX);
        if self.days().used(tenant).cpu_ms < most {
            return Ok(());
        }
        let title = format!("the CPU time of this tenant's day is used up (`cpu_day`: {limit})");
        Err(until_tomorrow(
            |anew| too_many(title, format!("{anew}; what is under way may finish")),
            "quota:cpu_day",
        ))
    }

    fn has_money(&self, tenant: &str) -> Answer<()> {
        let day = self
            .engine()
            .money_of_day(tenant)
            .filter(engine::Day::is_spent);
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
        Err(until_tomorrow(problem, "quota:tenant_day_usd"))
    }

    /// What an owner's artifacts and workspaces take, looked at within the share of who asks. What cannot be weighed might be
    /// too much.
    async fn stored(&self, asking: &str, owner: Id) -> Answer<u64> {
        let unknown = |error: std::io::Error| {
            crate::say(format_args!(
                "airlock: what a tenant stores cannot be weighed: {error}"
            ));
            crate::writer::busy()
        };
        let artifacts = self.engine().stored(&owner).await.map_err(unknown)?;
        let gateway = self.clone();
        let weigh = move || gateway.engine().stored_layers(&owner).map_err(unknown);
        // That there was no turn for it says nothing of what is stored.
        let layers = work::aside_in_turn(self.working(), asking, weigh)
            .await
            .map_err(|_| crate::writer::busy())?;
        Ok(artifacts.saturating_add(layers))
    }

    async fn has_storage(&self, tenant: &str) -> Answer<()> {
        let Some(limit) = self.quota(tenant).storage else {
            return Ok(());
        };
        let refusal = |problem: Problem| problem.ruled("quota:storage");
        let owner = Id::new(tenant).map_err(|_| refusal(crate::writer::busy()))?;
        let stored = self.stored(tenant, owner).await?;
        match stored < limit.0 {
            true => Ok(()),
            false => {
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
}
