//! What happens to a job, as server-sent events: its states, and between them what its runs send. The id of an event says
//! how much was seen with it: `VERSION:RUN:SEEN`, the last as a run's own events have it; a run that was seen to its end has
//! a `!` behind it.

use super::{routes::row, show::Job};
use crate::{
    Caller, Gateway, Problem,
    path::Path,
    problem::Answer,
    runs::events::{self as of_runs, Gone, KEEP_ALIVE, Reader},
    stream,
};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::HeaderMap;
use std::str::FromStr;
use tokio::sync::mpsc;

/// How much a reader has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    version: i64,
    /// The run whose events came last.
    run: String,
    /// All of that.
    whole: bool,
    of_run: of_runs::Seen,
}

impl Seen {
    /// What stands before a run's own id.
    fn before(&self) -> String {
        format!(
            "{}:{}{}:",
            self.version,
            self.run,
            if self.whole { "!" } else { "" }
        )
    }

    fn id(&self) -> String {
        self.before() + &self.of_run.id()
    }
}

impl FromStr for Seen {
    type Err = ();

    fn from_str(text: &str) -> Result<Seen, ()> {
        let mut parts = text.split(':');
        let (Some(version), Some(run), Some(of_run), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let version = version
            .parse()
            .ok()
            .filter(|version| *version >= 0)
            .ok_or(())?;
        let (run, whole) = run
            .strip_suffix('!')
            .map_or((run, false), |run| (run, true));
        Ok(Seen {
            version,
            run: run.to_owned(),
            whole,
            of_run: of_run.parse()?,
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
    let seen = match headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or_default())
    {
        None | Some("") => Seen::default(),
        Some(id) => id.parse().map_err(|()| {
            Problem::invalid(
                "this is no id of an event",
                "send the last `id:` of this stream, or none",
            )
        })?,
    };
    let (to, body) = stream::body();
    tokio::spawn(async move {
        // Whoever hung up is told nothing more.
        _ = follow(&gateway, &row.id, seen, to).await;
    });
    Ok(of_runs::answer(body))
}

async fn follow(
    gateway: &Gateway,
    id: &str,
    mut seen: Seen,
    to: mpsc::Sender<Bytes>,
) -> Result<(), Gone> {
    let mut changes = gateway.jobs().watch(id);
    loop {
        changes.borrow_and_update();
        let name = id.to_owned();
        // Forgotten, or not to be had: the stream ends, and whoever wants more comes again.
        let Ok(Some(row)) = gateway.look_up(move |served| served.job(&name)).await else {
            return Ok(());
        };
        let job = Job::of(gateway, &row);
        if row.version > seen.version {
            seen.version = row.version;
            send(&to, &seen, "job", &job).await?;
        }
        if let Some(run) = unseen(&seen, &row.runs) {
            if seen.run != *run {
                (seen.run, seen.whole, seen.of_run) =
                    (run.clone(), false, of_runs::Seen::default());
            }
            pass_on(gateway, &mut seen, to.clone()).await?;
            // What has become of the job meanwhile?
            continue;
        }
        if row.is_final() {
            return send(&to, &seen, "end", &job).await;
        }
        tokio::select! {
            () = to.closed() => return Err(Gone),
            _ = changes.changed() => {}
            () = tokio::time::sleep(KEEP_ALIVE) => {
                to.send(Bytes::from_static(b": still here\n\n")).await.map_err(|_| Gone)?;
            }
        }
    }
}

/// The first run of which something was not seen.
fn unseen<'a>(seen: &Seen, runs: &'a [String]) -> Option<&'a String> {
    let place = runs.iter().position(|run| *run == seen.run);
    match place {
        Some(place) => runs.get(place + usize::from(seen.whole)),
        None => runs.first(),
    }
}

async fn send(to: &mpsc::Sender<Bytes>, seen: &Seen, event: &str, job: &Job) -> Result<(), Gone> {
    let text = format!(
        "id: {}\nevent: {event}\ndata: {}\n\n",
        seen.id(),
        job.text()
    );
    to.send(text.into()).await.map_err(|_| Gone)
}

/// Everything of one run, until it has ended.
async fn pass_on(gateway: &Gateway, seen: &mut Seen, to: mpsc::Sender<Bytes>) -> Result<(), Gone> {
    let (before, of_run) = (seen.before(), seen.of_run);
    (seen.whole, seen.of_run) = (true, of_runs::Seen::default());
    let reader = Reader {
        before,
        at_end: Some(seen.id()),
        seen: of_run,
        hold: None,
        to,
    };
    let run = seen.run.clone();
    match gateway.runs().find(&run) {
        Some(live) => of_runs::until_ended(&live, reader).await,
        None => {
            let row = gateway
                .look_up(move |served| served.run(&run))
                .await
                .ok()
                .flatten();
            match row.and_then(|row| row.result) {
                Some(result) => of_runs::all(&result, reader).await,
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
        let seen: Seen = text.parse().unwrap();
        assert_eq!(
            (seen.version, seen.run.as_str(), seen.whole),
            (3, "01ABC", false)
        );
        assert_eq!(seen.id(), text);
        for text in ["0::0.0.0.0", "7:x!:0.0.0.0"] {
            assert_eq!(
                text.parse::<Seen>().map(|seen| seen.id()),
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
            assert_eq!(text.parse::<Seen>(), Err(()), "{text}");
        }
    }

    #[test]
    fn runs_are_told_one_after_the_other() {
        let runs = ["a", "b"].map(str::to_owned);
        let next = |run: &str, whole| {
            unseen(
                &Seen {
                    run: run.to_owned(),
                    whole,
                    ..Seen::default()
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
