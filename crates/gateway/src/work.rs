//! Work that waits for disks, on threads that all keys share. It goes on when whoever asked for it hangs up, so what it
//! takes of the key's share goes with it, to its end.

use crate::{
    Problem,
    problem::Answer,
    shares::{Share, Shares},
};
use http::StatusCode;
use std::time::Duration;
use tokio::time::Instant;

/// At a time: of all keys, and of one. There are more threads than that, for what everybody needs.
const MOST: usize = 64;
const MOST_OF_ONE: usize = 16;
/// How long the end of something waits for room, and between two looks for it.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// For all of it.
pub(crate) fn shares() -> Shares {
    Shares::new(MOST, MOST_OF_ONE)
}

/// Has something done where it disturbs nobody, if the key has room for it.
pub(crate) async fn aside<T: Send + 'static>(
    working: &Shares,
    key: &str,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    carry_out(one(working, key)?, work).await
}

/// The same, once the key has room: for the end of something that was begun at some cost.
pub(crate) async fn aside_in_turn<T: Send + 'static>(
    working: &Shares,
    key: &str,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let patience = Instant::now() + LONGEST_WAIT;
    let share = loop {
        match one(working, key) {
            Err(_) if Instant::now() < patience => tokio::time::sleep(PAUSE).await,
            taken => break taken?,
        }
    };
    carry_out(share, work).await
}

/// Room for something that is carried out elsewhere, until it is dropped; none if the key has none now.
pub(crate) fn place(working: &Shares, key: &str) -> Option<Box<dyn Send>> {
    one(working, key)
        .ok()
        .map(|share| Box::new(share) as Box<dyn Send>)
}

async fn carry_out<T: Send + 'static>(
    share: Share,
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let held = move || {
        let _share = share;
        work()
    };
    tokio::task::spawn_blocking(held)
        .await
        .unwrap_or_else(|_| Err(failed()))
}

fn one(shares: &Shares, key: &str) -> Answer<Share> {
    let mut share = shares.of(key);
    shares.add(&mut share, 1).map_err(|full| {
        full.problem(
            "pieces of work on files under way at once",
            "nothing was done; try again in a moment",
        )
    })?;
    Ok(share)
}

fn failed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "this could not be carried out",
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_that_nobody_waits_for_counts_until_it_is_done() {
        let (working, (end, ends)) = (Shares::new(4, 1), mpsc::channel::<()>());
        let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let long = aside(&working, "her", move || {
            _ = begin.send(());
            ends.recv().map_err(|_| failed())
        });
        tokio::select! {
            _ = long => unreachable!("it was not told to end"),
            _ = begun.recv() => {}
        }
        // Whoever asked is gone.
        let refused = aside(&working, "her", || Ok(())).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(
            aside(&working, "him", || Ok(())).await.is_ok(),
            "others go on"
        );
        let (waiting, ended) = tokio::join!(aside_in_turn(&working, "her", || Ok(7)), async {
            end.send(())
        });
        assert_eq!((waiting.unwrap(), ended.is_ok()), (7, true));
        assert!(aside(&working, "her", || Ok(())).await.is_ok());
    }
}
