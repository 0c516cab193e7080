//! Collects the denials of a program from seccomp user notification: each is sent as an event at
//! once, and listed in the result.

use sandbox::native::{DenialEvent, MAX_DENIALS};
use spec::{Denial, RunEvent};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The timeout for the listener's last denials once the sandbox is gone. Only a listener that waits
/// for an unresponsive file system takes longer.
pub(crate) const LISTENER_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The denials of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DenialReport {
    pub(crate) list: Vec<Denial>,
    /// Why the list may be incomplete.
    pub(crate) note: Option<String>,
}

/// Collects until the listener ends, which it does with the sandbox, or until the timeout.
pub(crate) async fn collect(
    told: Option<mpsc::Receiver<DenialEvent>>,
    events: mpsc::Sender<RunEvent>,
    mut ended: watch::Receiver<bool>,
    flush_timeout: Duration,
) -> DenialReport {
    let mut collected = DenialReport::default();
    let Some(mut told) = told else {
        let why =
            "what the program was denied is not listed: nobody can listen to its system calls here";
        collected.note = Some(why.to_owned());
        return collected;
    };
    loop {
        let next = tokio::select! {
            biased;
            next = told.recv() => next,
            () = overdue(&mut ended, flush_timeout) => {
                collected.note = Some("what the program was denied last may be missing".to_owned());
                return collected;
            }
        };
        match next {
            Some(DenialEvent::Denied(denial)) => {
                collected.list.push(denial.clone());
                // There may be no reader.
                _ = events.send(RunEvent::Denied(denial)).await;
            }
            Some(DenialEvent::More) => {
                let note = format!(
                    "more than {MAX_DENIALS} different things were denied; the rest is not listed"
                );
                collected.note = Some(note);
            }
            Some(DenialEvent::Unanswered) => {
                let why = "nobody was there to look at the program's system calls: those that could be denied failed";
                collected.note = Some(why.to_owned());
            }
            None => return collected,
        }
    }
}

async fn overdue(ended: &mut watch::Receiver<bool>, flush_timeout: Duration) {
    // Without the driver nobody waits for the result.
    _ = ended.wait_for(|ended| *ended).await;
    tokio::time::sleep(flush_timeout).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(target: &str) -> Denial {
        let [what, rule, allow_with] = ["write", "read_only_root", "nothing"].map(str::to_owned);
        Denial {
            what,
            target: target.to_owned(),
            rule,
            allow_with,
        }
    }

    #[tokio::test]
    async fn denials_are_events_and_a_list_and_their_bound_is_told() {
        let ((tell, told), (events, mut seen)) = (mpsc::channel(8), mpsc::channel(8));
        let (_driver, ended) = watch::channel(false);
        for word in [
            DenialEvent::Denied(denial("/a")),
            DenialEvent::Denied(denial("/b")),
            DenialEvent::More,
        ] {
            tell.try_send(word).unwrap();
        }
        drop(tell);
        let collected = collect(Some(told), events, ended, LISTENER_FLUSH_TIMEOUT).await;
        assert_eq!(collected.list, [denial("/a"), denial("/b")]);
        assert!(collected.note.is_some_and(|note| note.contains("64")));
        for expected in [denial("/a"), denial("/b")] {
            assert!(
                matches!(seen.recv().await, Some(RunEvent::Denied(denied)) if denied == expected)
            );
        }
    }

    #[tokio::test]
    async fn that_nobody_answered_is_told() {
        let ((tell, told), (events, _seen)) = (mpsc::channel(8), mpsc::channel(8));
        let (_driver, ended) = watch::channel(false);
        tell.try_send(DenialEvent::Unanswered).unwrap();
        drop(tell);
        let collected = collect(Some(told), events, ended, LISTENER_FLUSH_TIMEOUT).await;
        assert!(collected.note.is_some_and(|note| note.contains("failed")));
    }

    #[tokio::test]
    async fn a_watcher_that_stands_still_holds_nobody_up() {
        let ((tell, told), (events, _seen)) = (mpsc::channel(8), mpsc::channel(8));
        let (driver, ended) = watch::channel(false);
        tell.try_send(DenialEvent::Denied(denial("/a"))).unwrap();
        driver.send_replace(true);
        let collected = collect(Some(told), events, ended, LISTENER_FLUSH_TIMEOUT).await;
        assert_eq!((collected.list.len(), collected.note.is_some()), (1, true));
        drop(tell);
    }
}
