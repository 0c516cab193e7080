//! Timeouts and retries for registries, and the reading of response bodies within them.

use super::{client, error::PullError};
use reqwest::Response;
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum progress of a body per idle timeout; a slower server is treated as stalled.
const LEAST_PROGRESS: u64 = 1 << 10;

/// Timeouts and retries.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Timeout of a connection.
    pub connect: Duration,
    /// Timeout of a response header, and of each KiB of a body.
    pub idle: Duration,
    /// Maximum attempts of one request.
    pub attempts: u32,
    /// Pause before the second attempt; doubled before each further one.
    pub first_wait: Duration,
    /// Maximum pause that a registry may request.
    pub longest_wait: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(15),
            idle: Duration::from_secs(30),
            attempts: 5,
            first_wait: Duration::from_millis(400),
            longest_wait: Duration::from_secs(60),
        }
    }
}

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Retrying would not help.
    Final(PullError),
    /// Retrying may help, after the requested pause if there is one.
    Passing {
        error: PullError,
        wait: Option<Duration>,
    },
}

impl Trouble {
    pub(super) fn passing(error: PullError) -> Trouble {
        Trouble::Passing { error, wait: None }
    }
}

impl From<PullError> for Trouble {
    fn from(error: PullError) -> Self {
        Trouble::Final(error)
    }
}

/// The attempts of one request.
pub(super) struct Attempts<'p> {
    patience: &'p Patience,
    made: u32,
}

impl<'p> Attempts<'p> {
    pub(super) fn new(patience: &'p Patience) -> Attempts<'p> {
        Attempts { patience, made: 0 }
    }

    /// Resets the count after much progress.
    pub(super) fn forgive(&mut self) {
        self.made = 0;
    }

    /// Waits before the next attempt, or fails if there is none.
    pub(super) async fn after(&mut self, trouble: Trouble) -> Result<(), PullError> {
        let (error, wait) = match trouble {
            Trouble::Final(error) => return Err(error),
            Trouble::Passing { error, wait } => (error, wait),
        };
        self.made += 1;
        if self.made >= self.patience.attempts {
            return Err(error);
        }
        match (wait, error) {
            (Some(asked), PullError::Status { host, .. }) if asked > self.patience.longest_wait => {
                return Err(PullError::Busy {
                    host,
                    asked,
                    most: self.patience.longest_wait,
                });
            }
            (Some(asked), _) => sleep(asked).await,
            (None, _) => sleep(self.back_off()).await,
        }
        Ok(())
    }

    /// Exponential backoff with jitter of up to half, so that clients that failed together do not
    /// retry together.
    fn back_off(&self) -> Duration {
        let whole =
            self.patience.first_wait * 2u32.saturating_pow(self.made.saturating_sub(1).min(16));
        let chance = RandomState::new().hash_one(self.made) % 1024;
        let wait = whole / 2 + whole / 2 * chance as u32 / 1024;
        wait.min(self.patience.longest_wait)
    }
}

/// A response body, read within the timeouts.
pub(super) struct Body<'p> {
    response: Response,
    patience: &'p Patience,
    deadline: Instant,
    since: u64,
}

impl<'p> Body<'p> {
    pub(super) fn new(response: Response, patience: &'p Patience) -> Body<'p> {
        Body {
            response,
            patience,
            deadline: Instant::now() + patience.idle,
            since: 0,
        }
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Trouble> {
        let bytes = match timeout_at(self.deadline, self.response.chunk()).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(self.broken(client::deepest(&error))),
            Err(_) => {
                let idle = self.patience.idle.as_secs_f32();
                return Err(self.broken(format!("less than 1 KiB came in {idle} s")));
            }
        };
        self.since += bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if self.since >= LEAST_PROGRESS {
            (self.since, self.deadline) = (0, Instant::now() + self.patience.idle);
        }
        Ok(bytes)
    }

    /// Reads the whole body, up to a limit.
    pub(super) async fn all(mut self, most: u64) -> Result<Vec<u8>, Trouble> {
        let too_large = |size| {
            let what = "the answer".to_owned();
            Trouble::Final(PullError::TooLarge { what, size, most })
        };
        if let Some(size) = self.response.content_length().filter(|size| *size > most) {
            return Err(too_large(size));
        }
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            all.extend_from_slice(bytes.as_ref());
            if all.len() as u64 > most {
                return Err(too_large(all.len() as u64));
            }
        }
        Ok(all)
    }

    fn broken(&self, why: String) -> Trouble {
        let host = client::host(self.response.url());
        Trouble::passing(PullError::BrokenOff {
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
        let patience = Patience::default();
        for (made, whole) in [(1, 400), (2, 800), (3, 1600)] {
            let wait = Attempts {
                patience: &patience,
                made,
            }
            .back_off()
            .as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} after {made}");
        }
        assert_eq!(
            Attempts {
                patience: &patience,
                made: 100
            }
            .back_off(),
            patience.longest_wait
        );
    }

    #[tokio::test]
    async fn tries_end_and_long_waits_are_not_waited() {
        let patience = Patience {
            first_wait: Duration::from_millis(1),
            attempts: 3,
            ..Patience::default()
        };
        let failed = || PullError::Status {
            host: "h".into(),
            status: 503,
            what: "x".into(),
            told: String::new(),
        };
        let mut attempts = Attempts::new(&patience);
        for _ in 0..2 {
            attempts.after(Trouble::passing(failed())).await.unwrap();
        }
        assert!(matches!(
            attempts.after(Trouble::passing(failed())).await,
            Err(PullError::Status { .. })
        ));
        let long = Trouble::Passing {
            error: failed(),
            wait: Some(Duration::from_secs(3600)),
        };
        assert!(matches!(
            Attempts::new(&patience).after(long).await,
            Err(PullError::Busy { .. })
        ));
    }
}
