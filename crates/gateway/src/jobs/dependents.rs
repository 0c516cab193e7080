//! Propagates the end of jobs to their dependents that could not follow at once: in small batches,
//! so that other writes come between. Also picks up what a previous server left.

use super::change;
use crate::{Gateway, problem::Answer};
use std::time::Duration;

/// Pause when the database is unavailable.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Propagates until the server ends.
pub(crate) async fn propagate(gateway: Gateway) {
    loop {
        match propagate_batch(&gateway).await {
            Ok(true) => {}
            Ok(false) => gateway.jobs().dependents_ready.notified().await,
            Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
        }
    }
}

/// Propagates one batch; returns whether there was one.
async fn propagate_batch(gateway: &Gateway) -> Answer<bool> {
    if !gateway
        .query_database(|database| database.has_pending_propagation())
        .await?
    {
        return Ok(false);
    }
    let handle = gateway.clone();
    let at_ms = engine::now().0;
    let written = gateway.durable_writer().write(move |transaction| {
        let changes = transaction.propagate_ended_jobs(at_ms)?;
        change::record_changes(&handle, transaction, &changes, at_ms)?;
        Ok(changes)
    });
    change::notify_changes(gateway, &written.await?);
    Ok(true)
}
