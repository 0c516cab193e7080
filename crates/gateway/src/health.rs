//! Whether it lives, and whether it could carry out a run: it carries one out to know.

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

/// How long an answer is good.
const FRESH: Duration = Duration::from_secs(5);

/// What a trial showed, and when; nothing while it is under way.
type Shown = Option<(Instant, Answer<()>)>;

/// The last trial. It goes on without those who asked for it, so that whoever hangs up makes no further one.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<watch::Receiver<Shown>>>);

impl Readiness {
    async fn look<F: Future<Output = Answer<()>> + Send + 'static>(
        &self,
        trial: impl FnOnce() -> F,
    ) -> Answer<()> {
        let mut last = self.last(trial);
        let shown = last
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|shown| shown.clone());
        shown.map_or_else(
            || Err(not_ready("the trial run broke off".to_owned())),
            |(_, answer)| answer,
        )
    }

    /// The one that is under way or still good, or a new one.
    fn last<F: Future<Output = Answer<()>> + Send + 'static>(
        &self,
        trial: impl FnOnce() -> F,
    ) -> watch::Receiver<Shown> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last
            && is_good(last)
        {
            return last.clone();
        }
        let (tell, shown) = watch::channel(None);
        let trial = trial();
        tokio::spawn(async move {
            let answer = trial.await;
            tell.send_replace(Some((Instant::now(), answer)));
        });
        last.insert(shown).clone()
    }
}

fn is_good(last: &watch::Receiver<Shown>) -> bool {
    match &*last.borrow() {
        Some((when, _)) => when.elapsed() < FRESH,
        // Unless its task is gone.
        None => last.has_changed().is_ok(),
    }
}

/// The smallest run there is.
pub(crate) fn trial() -> RunRequest {
    RunRequest {
        command: vec!["/bin/true".into()],
        ..RunRequest::default()
    }
}

async fn try_one(gateway: Gateway) -> Answer<()> {
    if let Some(why) = gateway.audit_trouble() {
        crate::say(format_args!("airlock: the audit cannot be written: {why}"));
        return Err(crate::audit::unwritable());
    }
    gateway.node().takes_work()?;
    let mut request = trial();
    gateway.node().fill_in(&mut request);
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
        .look(|| try_one(gateway.clone()))
        .await?;
    Ok(match gateway.has_room() {
        Ok(()) => "ready\n",
        // What is under way goes on, and others may be asked for.
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
            readiness.look(move || async move {
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
                .look(|| async { panic!("it breaks off") })
                .await
                .is_err()
        );
        assert!(readiness.look(|| async { Ok(()) }).await.is_ok());
        let old = Instant::now().checked_sub(FRESH).map(|when| (when, Ok(())));
        let (_tell, shown) = watch::channel(old);
        *readiness.0.lock().unwrap() = Some(shown);
        assert!(
            readiness
                .look(|| async { Err(not_ready("by now".to_owned())) })
                .await
                .is_err()
        );
    }
}
