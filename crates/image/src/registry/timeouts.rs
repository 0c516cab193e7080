//! Timeouts and retries for registries, and the reading of response bodies within them.

use super::{client, error::PullError};
use reqwest::Response;
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum progress of a body per idle timeout; a slower server is treated as stalled.
const MIN_PROGRESS_BYTES: u64 = 1 << 10;

/// Timeouts and retries.
#[derive(Clone, Debug)]
pub struct RegistryTimeouts {
    /// Timeout of a connection.
    pub connect: Duration,
    /// Timeout of a response header, and of each KiB of a body.
    pub idle: Duration,
    /// Maximum attempts of one request.
    pub attempts: u32,
    /// Pause before the second attempt; doubled before each further one.
    pub first_pause: Duration,
    /// Maximum pause that a registry may request.
    pub max_pause: Duration,
}

impl Default for RegistryTimeouts {
    fn default() -> Self {
        RegistryTimeouts {
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(30),
            attempts: 5,
            first_pause: Duration::from_millis(400),
            max_pause: Duration::from_secs(60),
        }
    }
}

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// Retrying would not help.
    Permanent(PullError),
    /// Retrying may help, after the requested pause if there is one.
    Transient {
        error: PullError,
        wait: Option<Duration>,
    },
}

impl AttemptError {
    pub(super) fn transient(error: PullError) -> AttemptError {
        AttemptError::Transient { error, wait: None }
    }
}

impl From<PullError> for AttemptError {
    fn from(error: PullError) -> Self {
        AttemptError::Permanent(error)
    }
}

/// The attempts of one request.
pub(super) struct RetryState<'p> {
    timeouts: &'p RegistryTimeouts,
    made: u32,
}

impl<'p> RetryState<'p> {
    pub(super) fn new(timeouts: &'p RegistryTimeouts) -> RetryState<'p> {
        RetryState { timeouts, made: 0 }
    }

    /// Resets the count after much progress.
    pub(super) fn reset(&mut self) {
        self.made = 0;
    }

    /// Waits before the next attempt, or fails if there is none.
    pub(super) async fn wait_after(&mut self, error: AttemptError) -> Result<(), PullError> {
        let (error, wait) = match error {
            AttemptError::Permanent(error) => return Err(error),
            AttemptError::Transient { error, wait } => (error, wait),
        };
        self.made += 1;
        if self.made >= self.timeouts.attempts {
            return Err(error);
        }
        match (wait, error) {
            (Some(requested), PullError::Status { host, .. })
                if requested > self.timeouts.max_pause =>
            {
                return Err(PullError::Busy {
                    host,
                    requested,
                    max: self.timeouts.max_pause,
                });
            }
            (Some(requested), _) => sleep(requested).await,
            (None, _) => sleep(self.back_off()).await,
        }
        Ok(())
    }

    /// Exponential backoff with jitter of up to half, so that clients that failed together do not
    /// retry together.
    fn back_off(&self) -> Duration {
        let whole =
            self.timeouts.first_pause * 2u32.saturating_pow(self.made.saturating_sub(1).min(16));
        let chance = RandomState::new().hash_one(self.made) % 1024;
        let wait = whole / 2 + whole / 2 * chance as u32 / 1024;
        wait.min(self.timeouts.max_pause)
    }
}

/// A response body, read within the timeouts.
pub(super) struct TimedBody<'p> {
    response: Response,
    timeouts: &'p RegistryTimeouts,
    deadline: Instant,
    since: u64,
}

impl<'p> TimedBody<'p> {
    pub(super) fn new(response: Response, timeouts: &'p RegistryTimeouts) -> TimedBody<'p> {
        TimedBody {
            response,
            timeouts,
            deadline: Instant::now() + timeouts.idle,
            since: 0,
        }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, AttemptError> {
        let bytes = match timeout_at(self.deadline, self.response.chunk()).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.broken(client::root_cause(&error))),
            Err(_) => {
                let idle = self.timeouts.idle.as_secs_f32();
                return Err(self.broken(format!("less than 1 KiB came in {idle} s")));
            }
        };
        self.since += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if self.since >= MIN_PROGRESS_BYTES {
            (self.since, self.deadline) = (0, Instant::now() + self.timeouts.idle);
        }
        Ok(bytes)
    }

    /// Reads the whole body, up to a limit.
    pub(super) async fn all(mut self, max: u64) -> Result<Vec<u8>, AttemptError> {
        let too_large = |size| {
            let what = "the answer".to_owned();
            AttemptError::Permanent(PullError::TooLarge { what, size, max })
        };
        if let Some(size) = self.response.content_length().filter(|size| *size > max) {
            return Err(too_large(size));
        }
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(bytes.as_ref());
            if all.len() as u64 > max {
                return Err(too_large(all.len() as u64));
            }
        }
        Ok(all)
    }

    fn broken(&self, why: String) -> AttemptError {
        let host = client::host(self.response.url());
        AttemptError::transient(PullError::Interrupted {
            host,
            what: "an answer".to_owned(),
            why,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_vary_and_are_bounded() {
        let timeouts = RegistryTimeouts::default();
        for (made, whole) in [(1, 400), (2, 800), (3, 1600)] {
            let wait = RetryState {
                timeouts: &timeouts,
                made,
            }
            .back_off()
            .as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} after {made}");
        }
        assert_eq!(
            RetryState {
                timeouts: &timeouts,
                made: 100
            }
            .back_off(),
            timeouts.max_pause
        );
    }

    #[tokio::test]
    async fn tries_end_and_long_waits_are_not_waited() {
        let timeouts = RegistryTimeouts {
            first_pause: Duration::from_millis(1),
            attempts: 3,
            ..RegistryTimeouts::default()
        };
        let failed = || PullError::Status {
            host: "h".into(),
            status: 503,
            what: "x".into(),
            reason: String::new(),
        };
        let mut attempts = RetryState::new(&timeouts);
        for _ in 0..2 {
            attempts
                .wait_after(AttemptError::transient(failed()))
                .await
                .unwrap();
        }
        assert!(matches!(
            attempts.wait_after(AttemptError::transient(failed())).await,
            Err(PullError::Status { .. })
        ));
        let long = AttemptError::Transient {
            error: failed(),
            wait: Some(Duration::from_secs(3600)),
        };
        assert!(matches!(
            RetryState::new(&timeouts).wait_after(long).await,
            Err(PullError::Busy { .. })
        ));
    }
}
