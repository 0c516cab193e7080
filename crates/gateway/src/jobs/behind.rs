//! What comes after jobs that have ended, and could not follow at once: a few in each transaction, so that everybody else's
//! writes come between. Also what a server before this one left.

use super::change;
use crate::{Gateway, problem::Answer};
use std::time::Duration;

/// How long nothing is tried when the database cannot be had.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets what is behind follow, for ever.
pub(crate) async fn follow(gateway: Gateway) {
    loop {
        match some(&gateway).await {
            Ok(true) => {}
            Ok(false) => gateway.jobs().behind.notified().await,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Whether there was something.
async fn some(gateway: &Gateway) -> Answer<bool> {
    if !gateway.look_up(|served| served.jobs_follow()).await? {
        return Ok(false);
    }
    let (of, at_ms) = (gateway.clone(), engine::now().0);
    let written = gateway.durable().write(move |writing| {
        let changes = writing.follow_jobs(at_ms)?;
        change::follow(&of, writing, &changes, at_ms)?;
        Ok(changes)
    });
    change::after(gateway, &written.await?);
    Ok(true)
}
