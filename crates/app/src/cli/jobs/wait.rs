//! `airlock jobs wait` and `events`: follows a job to its end, over as many connections as needed.
//! Output and exit status are passed on as by `airlock run`. Ctrl-C stops waiting, not the job.

use super::{path, text};
use crate::{
    cli::{
        REFUSED,
        message::{self, Failure, Message},
        print_json,
        run::{self, Delivery, OutputChunk, OutputMode, Signals},
    },
    remote::{Client, ClientRequest, EventSource, EventStream, ServerEvent},
};
use http::HeaderName;
use serde_json::{Value, json};
use spec::StdStream;
use std::time::Duration;
use tokio::sync::mpsc;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const END_EVENT: &str = "end";
/// How often a waiting job is reported.
const NOTE_INTERVAL: Duration = Duration::from_secs(2);
const INTERRUPTED: u8 = 130;
const BROKEN_PIPE: u8 = 128 + 13;

fn follow(client: &Client, id: &str) -> EventStream {
    let path = format!("{}/events", path(id));
    let ask = move |last: Option<&str>| match last {
        None => ClientRequest::get(path.clone()),
        Some(last) => ClientRequest::get(path.clone()).header(LAST_EVENT_ID, last),
    };
    EventSource {
        ask,
        last: END_EVENT,
    }
    .start(client)
}

/// Prints each event as one JSON object.
pub(super) async fn print_events(client: &Client, id: &str) -> Result<u8, Failure> {
    let mut events = follow(client, id);
    while let Some(event) = events.next().await {
        let ServerEvent { id, name, data } = event?;
        let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
        print_json(&json!({ "event": name, "id": id, "data": data }))?;
    }
    Ok(0)
}

/// Waits for a job, and exits like its program.
pub(super) async fn execute(client: Client, id: String, json: bool) -> Result<u8, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot wait for signals: {error}")))?;
    let show = if json {
        OutputMode::Nothing
    } else {
        OutputMode::Streams
    };
    let (outlet, writer) = run::open_outlet(show).unzip();
    let mut watch = JobWatch {
        events: follow(&client, &id),
        client,
        id,
        outlet,
        job: Value::Null,
        progress: OutputProgress::default(),
    };
    let mut ticks = tokio::time::interval(NOTE_INTERVAL);
    ticks.tick().await;
    loop {
        tokio::select! {
            more = watch.next() => if !more? { break },
            _ = ticks.tick() => watch.note_waiting(),
            () = signals.next() => return Ok(watch.note_interrupted()),
        }
    }
    let JobWatch {
        client,
        id,
        outlet,
        progress,
        ..
    } = watch;
    drop(outlet);
    let delivery = tokio::select! {
        delivery = run::wait_delivery(writer) => delivery,
        () = signals.next() => run::exit_now(),
    };
    let job: Value = client.json(ClientRequest::get(path(&id))).await?;
    if json {
        print_json(&job)?;
    }
    let (status, lines) = exit_status(&job).map_err(|cause| client.not_airlock(cause))?;
    message::print_below(&progress.last, &if json { Vec::new() } else { lines });
    Ok(match (delivery, progress.lost) {
        (Delivery::Complete, 0) => status,
        (Delivery::Complete, lost) => {
            message::print(&[Message::Note(format!(
                "{lost} bytes of output are no longer stored"
            ))]);
            status
        }
        (Delivery::NobodyReads, _) => BROKEN_PIPE,
        (Delivery::Failed(error), _) => {
            message::print(&[Message::Error(format!(
                "cannot pass on the program's output: {error}"
            ))]);
            REFUSED
        }
    })
}

/// A job that is followed.
struct JobWatch {
    client: Client,
    id: String,
    events: EventStream,
    outlet: Option<mpsc::Sender<OutputChunk>>,
    /// The job as last received.
    job: Value,
    progress: OutputProgress,
}

/// How much of the output was received.
#[derive(Default)]
struct OutputProgress {
    /// Offset in each stream of this attempt.
    at: [u64; 2],
    /// Bytes that were skipped.
    lost: u64,
    /// The last byte on standard error.
    last: Vec<u8>,
    /// The last note about waiting.
    note: String,
}

impl JobWatch {
    /// Handles one event; `false` after the last. Cancel-safe.
    async fn next(&mut self) -> Result<bool, Failure> {
        let room = match &self.outlet {
            None => None,
            Some(outlet) => match outlet.reserve().await {
                Ok(room) => Some(room),
                // A closed pipe ends the waiting, as it would end a program.
                Err(_) => return Ok(false),
            },
        };
        let event = match self.events.next().await {
            None => return Ok(false),
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                let failure = Failure::from(error);
                return Err(match self.job {
                    Value::Null => failure,
                    _ => Failure {
                        hint: format!(
                            "the job may continue at the server: airlock jobs wait {}",
                            self.id
                        ),
                        ..failure
                    },
                });
            }
        };
        match event.name.as_str() {
            "job" => {
                self.job = serde_json::from_str(&event.data)
                    .map_err(|error| self.client.not_airlock(error.to_string()))?;
            }
            "output" => {
                let chunk = self
                    .progress
                    .output(&event.data)
                    .map_err(|cause| self.client.not_airlock(cause))?;
                if let (Some(room), false) = (room, chunk.1.is_empty()) {
                    room.send(chunk);
                }
            }
            // Each attempt has its own streams.
            "started" | "finished" => self.progress.at = [0; 2],
            END_EVENT => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Notes what the job waits for, if that has changed.
    fn note_waiting(&mut self) {
        if let Some(line) = waiting_note(&self.job)
            && line != self.progress.note
        {
            message::print(&[Message::Note(line.clone())]);
            self.progress.note = line;
        }
    }

    fn note_interrupted(&self) -> u8 {
        let note = format!(
            "the job continues; wait again with: airlock jobs wait {}; cancel it with: airlock jobs cancel {}",
            self.id, self.id
        );
        message::print(&[Message::Note(note)]);
        INTERRUPTED
    }
}

impl OutputProgress {
    fn output(&mut self, data: &str) -> Result<OutputChunk, String> {
        let chunk = run::OutputEvent::read(data)?;
        let stream = chunk.stream();
        let (bytes, lost) = chunk.beyond(&mut self.at[usize::from(stream == StdStream::Stderr)]);
        self.lost = self.lost.saturating_add(lost);
        if stream == StdStream::Stderr {
            self.last = bytes
                .last()
                .copied()
                .into_iter()
                .chain(self.last.iter().copied())
                .take(1)
                .collect();
        }
        Ok((stream, bytes))
    }
}

/// What a job waits for.
fn waiting_note(job: &Value) -> Option<String> {
    let for_what = match (text(job, "status"), text(job, "waiting_for")) {
        ("queued", "time") => format!("for its time, {}", text(job, "next_try_at")),
        ("queued", "jobs") => "for the jobs that it depends on".to_owned(),
        ("queued", "quota") => "for its tenant's quota".to_owned(),
        ("queued", _) => "for its turn".to_owned(),
        _ => return None,
    };
    let before = match job["attempt"].as_u64() {
        Some(1) => ", after 1 attempt".to_owned(),
        Some(attempt @ 2..) => format!(", after {attempt} attempts"),
        _ => String::new(),
    };
    Some(format!(
        "the job is queued since {} and waits {for_what}{before}",
        text(job, "accepted_at")
    ))
}

/// The exit status of a job, and the messages about its end.
fn exit_status(job: &Value) -> Result<(u8, Vec<Message>), String> {
    let error = |job: &Value| {
        let error = &job["error"];
        vec![
            Message::Error(text(error, "message").to_owned()),
            Message::Hint(text(error, "hint").to_owned()),
        ]
    };
    // The result of an earlier attempt does not describe this end.
    let status = text(job, "status");
    let result = Some(&job["result"])
        .filter(|result| !result.is_object() || text(result, "status") == status);
    match (status, result.unwrap_or(&Value::Null)) {
        ("cancelled", Value::Null) => Ok((INTERRUPTED, error(job))),
        ("lost", _) | (_, Value::Null) => Ok((REFUSED, error(job))),
        (_, result) => run::read_result(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_exits_like_its_program_would() {
        let of = |status: &str, result: Value| {
            let job = json!({ "status": status, "result": result, "error": { "message": "m", "hint": "h" } });
            exit_status(&job).map(|(status, _)| status)
        };
        let result = |status: &str, exit: u8| json!({ "status": status, "signal": null, "exit_status": exit, "error": null });
        assert_eq!(of("succeeded", result("succeeded", 0)), Ok(0));
        assert_eq!(of("failed", result("failed", 3)), Ok(3));
        assert_eq!(of("timed_out", result("timed_out", 124)), Ok(124));
        assert_eq!(of("oom_killed", result("oom_killed", 137)), Ok(137));
        assert_eq!(of("cancelled", result("cancelled", 130)), Ok(130));
        assert_eq!(of("cancelled", Value::Null), Ok(130), "it never ran");
        assert_eq!(
            of("cancelled", result("succeeded", 0)),
            Ok(130),
            "that was an attempt before"
        );
        assert_eq!(
            of("not_started", result("succeeded", 0)),
            Ok(125),
            "so was that"
        );
        assert_eq!(of("not_started", result("not_started", 127)), Ok(127));
        assert_eq!(of("lost", Value::Null), Ok(125));
        assert_eq!(
            of("lost", result("failed", 3)),
            Ok(125),
            "of an attempt before"
        );
        assert!(
            of("succeeded", json!("what")).is_err(),
            "no server of ours says that"
        );
    }

    #[test]
    fn what_a_job_waits_for_is_said_only_while_it_waits() {
        let job = json!({ "status": "queued", "waiting_for": "time", "next_try_at": "T2", "accepted_at": "T1", "attempt": 0 });
        assert_eq!(
            waiting_note(&job).unwrap(),
            "the job is queued since T1 and waits for its time, T2"
        );
        let paused = json!({ "status": "queued", "waiting_for": "time", "next_try_at": "T2", "not_before": null, "accepted_at": "T1", "attempt": 1 });
        assert_eq!(
            waiting_note(&paused).unwrap(),
            "the job is queued since T1 and waits for its time, T2, after 1 attempt"
        );
        let again =
            json!({ "status": "queued", "waiting_for": "turn", "accepted_at": "T1", "attempt": 2 });
        assert_eq!(
            waiting_note(&again).unwrap(),
            "the job is queued since T1 and waits for its turn, after 2 attempts"
        );
        assert_eq!(waiting_note(&json!({ "status": "running" })), None);
        assert_eq!(waiting_note(&Value::Null), None);
    }

    #[test]
    fn each_attempt_has_output_of_its_own() {
        let mut progress = OutputProgress::default();
        let chunk = |text: &str| format!(r#"{{"stream":"stderr","offset":0,"text":"{text}"}}"#);
        assert_eq!(progress.output(&chunk("abc")).unwrap().1, b"abc");
        assert_eq!(progress.output(&chunk("abc")).unwrap().1, b"", "again");
        progress.at = [0; 2];
        assert_eq!(
            (progress.output(&chunk("x")).unwrap().1, progress.last),
            (b"x".to_vec(), b"x".to_vec())
        );
    }
}
