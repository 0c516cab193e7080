//! Liveness (`/healthz`) and readiness (`/readyz`). Readiness runs a real probe in a sandbox.

use crate::{Gateway, Problem, problem::Answer};
use axum::extract::State;
use http::StatusCode;
use spec::{RunRequest, Status};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;
use utoipa_axum::{router::OpenApiRouter, routes};

/// How long a probe result is cached.
const PROBE_TTL: Duration = Duration::from_secs(5);

/// Result and time of a probe; `None` while it runs.
type ProbeResult = Option<(Instant, Answer<()>)>;

/// The last probe. It continues when its callers disconnect, so that repeated requests start no
/// further probe.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<watch::Receiver<ProbeResult>>>);

impl Readiness {
    async fn check<F: Future<Output = Answer<()>> + Send + 'static>(
        &self,
        probe: impl FnOnce() -> F,
    ) -> Answer<()> {
        let mut last = self.latest_probe(probe);
        let result = last
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|result| result.clone());
        result.map_or_else(
            || Err(not_ready("the trial run broke off".to_owned())),
            |(_, answer)| answer,
        )
    }

    /// The running or cached probe, or a new one.
    fn latest_probe<F: Future<Output = Answer<()>> + Send + 'static>(
        &self,
        probe: impl FnOnce() -> F,
    ) -> watch::Receiver<ProbeResult> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last
            && is_fresh(last)
        {
            return last.clone();
        }
        let (sender, result) = watch::channel(None);
        let probe = probe();
        tokio::spawn(async move {
            let answer = probe.await;
            sender.send_replace(Some((Instant::now(), answer)));
        });
        last.insert(result).clone()
    }
}

fn is_fresh(last: &watch::Receiver<ProbeResult>) -> bool {
    match &*last.borrow() {
        Some((when, _)) => when.elapsed() < PROBE_TTL,
        // False if the probe task has died.
        None => last.has_changed().is_ok(),
    }
}

/// The minimal run request.
pub(crate) fn probe_request() -> RunRequest {
    RunRequest {
        command: vec!["/bin/true".into()],
        ..RunRequest::default()
    }
}

async fn run_probe(gateway: Gateway) -> Answer<()> {
    if let Some(why) = gateway.audit_trouble() {
        crate::log_warning(format_args!("airlock: the audit cannot be written: {why}"));
        return Err(crate::audit::unwritable());
    }
    gateway.node().check_takes_work()?;
    let mut request = probe_request();
    gateway.node().fill_defaults(&mut request);
    let spec = gateway.policy().admit(request)?;
    let result = gateway.engine().run(spec).await;
    match (result.status, result.error) {
        (Status::Succeeded, _) => Ok(()),
        (_, Some(error)) => {
            let problem = Problem::from(error);
            Err(problem.with_status(StatusCode::SERVICE_UNAVAILABLE))
        }
        (status, None) => Err(not_ready(format!(
            "the trial run ended as {}",
            status.name()
        ))),
    }
}

fn not_ready(title: String) -> Problem {
    let hint = "`airlock doctor` shows what this host gives".to_owned();
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "start_failed",
        title,
        Some(hint),
    )
}

/// Whether the server lives
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses(
    (status = 200, description = "It does", body = String, content_type = "text/plain"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether a sandbox can be had: one is made, at most every five seconds
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, description = "It can", body = String, content_type = "text/plain"),
    (status = 503, description = "It cannot, and why", body = Problem, content_type = "application/problem+json"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn readyz(State(gateway): State<Gateway>) -> Answer<&'static str> {
    gateway
        .readiness()
        .check(|| run_probe(gateway.clone()))
        .await?;
    Ok(match gateway.check_disk_space() {
        Ok(()) => "ready\n",
        // Only new work is refused; active work continues.
        Err(_) => "ready, but the disk is nearly full: nothing new is begun\n",
    })
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tokio::sync::Notify;

    #[tokio::test]
    async fn those_who_hang_up_share_one_trial_with_those_who_wait() {
        let (readiness, trials, go_on) = (
            Readiness::default(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Notify::new()),
        );
        let look = || {
            let (trials, go_on) = (trials.clone(), go_on.clone());
            readiness.check(move || async move {
                trials.fetch_add(1, Ordering::Relaxed);
                go_on.notified().await;
                Ok(())
            })
        };
        for _ in 0..20 {
            let hung_up = tokio::time::timeout(Duration::from_millis(1), look()).await;
            assert!(hung_up.is_err(), "the trial goes on");
        }
        go_on.notify_one();
        assert!(look().await.is_ok() && look().await.is_ok());
        assert_eq!(trials.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_trial_that_breaks_off_or_is_old_is_made_again() {
        let readiness = Readiness::default();
        assert!(
            readiness
                .check(|| async { panic!("it breaks off") })
                .await
                .is_err()
        );
        assert!(readiness.check(|| async { Ok(()) }).await.is_ok());
        let old = Instant::now()
            .checked_sub(PROBE_TTL)
            .map(|when| (when, Ok(())));
        let (_tell, result) = watch::channel(old);
        *readiness.0.lock().unwrap() = Some(result);
        assert!(
            readiness
                .check(|| async { Err(not_ready("by now".to_owned())) })
                .await
                .is_err()
        );
    }
}
