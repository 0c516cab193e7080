//! Server-sent events of a job: its states, and between them the events of its runs. An event id is
//! `VERSION:RUN:SEEN`, whose last part is the position in the run's own events; `!` after the run
//! means that its events are complete.

use super::{routes::row, view::Job};
use crate::{
    Caller, Gateway, Problem,
    path::Path,
    problem::Answer,
    runs::events::{self as run_events, Disconnected, EventWriter, KEEP_ALIVE},
    streaming_body,
};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::HeaderMap;
use std::str::FromStr;
use tokio::sync::mpsc;

/// How far a reader is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobEventPosition {
    version: i64,
    /// The run whose events came last.
    run: String,
    /// All events of that run were sent.
    is_complete: bool,
    run_position: run_events::EventPosition,
}

impl JobEventPosition {
    /// The part of the id before the position in the run.
    fn id_prefix(&self) -> String {
        format!(
            "{}:{}{}:",
            self.version,
            self.run,
            if self.is_complete { "!" } else { "" }
        )
    }

    fn id(&self) -> String {
        self.id_prefix() + &self.run_position.id()
    }
}

impl FromStr for JobEventPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<JobEventPosition, ()> {
        let mut parts = text.split(':');
        let (Some(version), Some(run), Some(run_position), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let version = version
            .parse()
            .ok()
            .filter(|version| *version >= 0)
            .ok_or(())?;
        let (run, is_complete) = run
            .strip_suffix('!')
            .map_or((run, false), |run| (run, true));
        Ok(JobEventPosition {
            version,
            run: run.to_owned(),
            is_complete,
            run_position: run_position.parse()?,
        })
    }
}

/// What happens to a job, as it happens
///
/// `job` with each of its states (without the result), between them the events of its runs as /v1/runs/{id}/events sends
/// them, and `end` with the job once it is final. Send the last id as `Last-Event-ID` to read on.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs",
    params(("id" = String, Path,), ("Last-Event-ID" = Option<String>, Header, description = "The last one seen")),
    responses(
    (status = 200, description = "Events until the job has ended", body = String, content_type = "text/event-stream"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn events(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let row = row(&gateway, &caller, &id).await?;
    let position = match headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or_default())
    {
        None | Some("") => JobEventPosition::default(),
        Some(id) => id.parse().map_err(|()| {
            Problem::invalid(
                "this is no id of an event",
                "send the last `id:` of this stream, or none",
            )
        })?,
    };
    let (to, body) = streaming_body::body();
    tokio::spawn(async move {
        // An error means that the client disconnected.
        _ = send_job_events(&gateway, &row.id, position, to).await;
    });
    Ok(run_events::sse_response(body))
}

async fn send_job_events(
    gateway: &Gateway,
    id: &str,
    mut position: JobEventPosition,
    to: mpsc::Sender<Bytes>,
) -> Result<(), Disconnected> {
    let mut changes = gateway.jobs().watch(id);
    loop {
        changes.borrow_and_update();
        let name = id.to_owned();
        // The job was forgotten or the database is unavailable: the stream ends, and the client may
        // reconnect.
        let Ok(Some(row)) = gateway
            .query_database(move |database| database.job(&name))
            .await
        else {
            return Ok(());
        };
        let job = Job::of(gateway, &row);
        if row.version > position.version {
            position.version = row.version;
            send(&to, &position, "job", &job).await?;
        }
        if let Some(run) = next_unseen_run(&position, &row.runs) {
            if position.run != *run {
                (position.run, position.is_complete, position.run_position) =
                    (run.clone(), false, run_events::EventPosition::default());
            }
            send_run_events(gateway, &mut position, to.clone()).await?;
            // The job may have changed meanwhile.
            continue;
        }
        if row.is_final() {
            return send(&to, &position, "end", &job).await;
        }
        tokio::select! {
            () = to.closed() => return Err(Disconnected),
            _ = changes.changed() => {}
            () = tokio::time::sleep(KEEP_ALIVE) => {
                to.send(Bytes::from_static(b": still here\n\n")).await.map_err(|_| Disconnected)?;
            }
        }
    }
}

/// The first run with events that were not sent.
fn next_unseen_run<'a>(position: &JobEventPosition, runs: &'a [String]) -> Option<&'a String> {
    let index = runs.iter().position(|run| *run == position.run);
    match index {
        Some(index) => runs.get(index + usize::from(position.is_complete)),
        None => runs.first(),
    }
}

async fn send(
    to: &mpsc::Sender<Bytes>,
    position: &JobEventPosition,
    event: &str,
    job: &Job,
) -> Result<(), Disconnected> {
    let text = format!(
        "id: {}\nevent: {event}\ndata: {}\n\n",
        position.id(),
        job.to_json()
    );
    to.send(text.into()).await.map_err(|_| Disconnected)
}

/// Sends all events of one run until it has ended.
async fn send_run_events(
    gateway: &Gateway,
    position: &mut JobEventPosition,
    to: mpsc::Sender<Bytes>,
) -> Result<(), Disconnected> {
    let id_prefix = position.id_prefix();
    let run_position = position.run_position;
    (position.is_complete, position.run_position) = (true, run_events::EventPosition::default());
    let reader = EventWriter {
        id_prefix,
        final_id: Some(position.id()),
        position: run_position,
        guard: None,
        to,
    };
    let run = position.run.clone();
    match gateway.runs().find(&run) {
        Some(live) => run_events::stream_until_ended(&live, reader).await,
        None => {
            let row = gateway
                .query_database(move |database| database.run(&run))
                .await
                .ok()
                .flatten();
            match row.and_then(|row| row.result) {
                Some(result) => run_events::replay_result(&result, reader).await,
                // Runs are forgotten sooner than jobs.
                None => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_how_much_was_seen() {
        let text = "3:01ABC:1.0.5.0";
        let position: JobEventPosition = text.parse().unwrap();
        assert_eq!(
            (
                position.version,
                position.run.as_str(),
                position.is_complete
            ),
            (3, "01ABC", false)
        );
        assert_eq!(position.id(), text);
        for text in ["0::0.0.0.0", "7:x!:0.0.0.0"] {
            assert_eq!(
                text.parse::<JobEventPosition>()
                    .map(|position| position.id()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "",
            "1",
            "1:x",
            "x:y:0.0.0.0",
            "-1:y:0.0.0.0",
            "1:x:0.0.0.0:",
            "1:x:0",
        ] {
            assert_eq!(text.parse::<JobEventPosition>(), Err(()), "{text}");
        }
    }

    #[test]
    fn runs_are_told_one_after_the_other() {
        let runs = ["a", "b"].map(str::to_owned);
        let next = |run: &str, is_complete| {
            next_unseen_run(
                &JobEventPosition {
                    run: run.to_owned(),
                    is_complete,
                    ..JobEventPosition::default()
                },
                &runs,
            )
            .cloned()
        };
        assert_eq!(next("", false).as_deref(), Some("a"));
        assert_eq!(next("a", false).as_deref(), Some("a"));
        assert_eq!(next("a", true).as_deref(), Some("b"));
        assert_eq!(next("b", true), None);
        assert_eq!(next("forgotten", true).as_deref(), Some("a"));
    }
}
