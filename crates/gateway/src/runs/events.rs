//! Server-sent events of a run. An event id is the reader's position,
//! `STARTED.DENIALS.STDOUT.STDERR` with stream offsets in bytes, so that a client that reconnects
//! gets exactly the rest.

use super::{active::ActiveRun, row, slow_reader::SlowReaderGuard};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer, streaming_body, wire};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Value, json};
use spec::StdStream;
use std::{str::FromStr, sync::Arc, time::Duration};
use store::server_database::RunRow;
use tokio::sync::mpsc;

/// Interval of keep-alive comments, for proxies in between.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
const MAX_EVENT_BYTES: usize = 32 << 10;

/// A reader's position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventPosition {
    started: bool,
    denied: usize,
    streams: [u64; 2],
}

impl EventPosition {
    pub(crate) fn id(&self) -> String {
        let [stdout, stderr] = self.streams;
        format!(
            "{}.{}.{stdout}.{stderr}",
            u8::from(self.started),
            self.denied
        )
    }
}

impl FromStr for EventPosition {
    type Err = ();

    fn from_str(text: &str) -> Result<EventPosition, ()> {
        let numbers: Vec<u64> = text
            .split('.')
            .map(|part| part.parse().map_err(drop))
            .collect::<Result<_, _>>()?;
        match numbers[..] {
            [started @ 0..=1, denied, stdout, stderr] => Ok(EventPosition {
                started: started == 1,
                denied: usize::try_from(denied).map_err(drop)?,
                streams: [stdout, stderr],
            }),
            _ => Err(()),
        }
    }
}

/// What happens in a run, as it happens
///
/// `started`, `output` (stream, offset, and text or base64), `denied`, `gap` (stream, from, to) for output that is
/// forgotten, and at the end `finished` with the result. Send the last id as `Last-Event-ID` to read on.
#[utoipa::path(get, path = "/v1/runs/{id}/events", tag = "runs",
    params(("id" = String, Path,), ("Last-Event-ID" = Option<String>, Header, description = "The last one seen")),
    responses(
    (status = 200, description = "Events until the run has ended", body = String, content_type = "text/event-stream"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn events(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    // A client that sends an id has read before and holds the run; others only watch.
    let is_returning = headers
        .get("last-event-id")
        .is_some_and(|id| !id.is_empty());
    run_events(
        &gateway,
        row(&gateway, &caller, &id).await?,
        &headers,
        is_returning,
    )
    .await
}

/// The events of a run after the last one that the client saw.
pub(super) async fn run_events(
    gateway: &Gateway,
    row: RunRow,
    headers: &HeaderMap,
    is_returning: bool,
) -> Answer<Response> {
    let id = row.id;
    let position = match headers
        .get("last-event-id")
        .map(|id| id.to_str().unwrap_or_default())
    {
        None | Some("") => EventPosition::default(),
        Some(id) => id.parse().map_err(|()| {
            Problem::invalid(
                "this is no id of an event",
                "send the last `id:` of this stream, or none",
            )
        })?,
    };
    let (sender, body) = streaming_body::body();
    match gateway.runs().find(&id) {
        Some(live) => {
            let guard = if is_returning {
                SlowReaderGuard::rejoin(&live, position.streams)
            } else {
                None
            };
            drop(tokio::spawn(follow(live, position, guard, sender)));
        }
        // The run may have ended since the row was read.
        None => {
            let result = match row.result {
                Some(result) => Some(result),
                None => gateway
                    .query_database(move |database| database.run(&id))
                    .await?
                    .and_then(|row| row.result),
            };
            drop(tokio::spawn(replay(
                result.unwrap_or_default(),
                position,
                sender,
            )));
        }
    }
    Ok(sse_response(body))
}

pub(crate) fn sse_response(body: axum::body::Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, body).into_response()
}

/// The events of a run as the response to its request; the reader misses nothing.
pub(super) fn guarded_response(live: Arc<ActiveRun>, guard: SlowReaderGuard) -> Response {
    let (sender, body) = streaming_body::body();
    drop(tokio::spawn(follow(
        live,
        EventPosition::default(),
        Some(guard),
        sender,
    )));
    sse_response(body)
}

/// Writes the events for one client.
pub(crate) struct EventWriter {
    /// Prefix of each event id.
    pub(crate) id_prefix: String,
    /// Id of the last event, if it differs.
    pub(crate) final_id: Option<String>,
    pub(crate) position: EventPosition,
    pub(crate) guard: Option<SlowReaderGuard>,
    pub(crate) to: mpsc::Sender<Bytes>,
}

/// The client has disconnected.
pub(crate) struct Disconnected;

impl EventWriter {
    fn new(
        position: EventPosition,
        guard: Option<SlowReaderGuard>,
        to: mpsc::Sender<Bytes>,
    ) -> EventWriter {
        EventWriter {
            id_prefix: String::new(),
            final_id: None,
            position,
            guard,
            to,
        }
    }

    async fn send(&self, event: &str, data: &Value) -> Result<(), Disconnected> {
        let text = format!(
            "id: {}{}\nevent: {event}\ndata: {data}\n\n",
            self.id_prefix,
            self.position.id()
        );
        self.to.send(text.into()).await.map_err(|_| Disconnected)
    }

    async fn output(
        &mut self,
        stream: StdStream,
        from: u64,
        bytes: &[u8],
    ) -> Result<(), Disconnected> {
        let (index, name) = stream_index(stream);
        self.position.streams[index] = from + bytes.len() as u64;
        let mut data = json!({ "stream": name, "offset": from });
        match std::str::from_utf8(bytes) {
            Ok(text) => data["text"] = text.into(),
            Err(_) => data["base64"] = wire::encoded(bytes).into(),
        }
        self.send("output", &data).await?;
        self.report_read();
        Ok(())
    }

    fn report_read(&self) {
        if let Some(guard) = &self.guard {
            guard.advance(self.position.streams);
        }
    }

    async fn finish(&self, result: &[u8]) -> Result<(), Disconnected> {
        // JSON has no raw newlines, so it fits on one `data:` line.
        let text = String::from_utf8_lossy(result);
        let id = self
            .final_id
            .clone()
            .unwrap_or_else(|| self.id_prefix.clone() + &self.position.id());
        let event = format!("id: {id}\nevent: finished\ndata: {text}\n\n");
        self.to.send(event.into()).await.map_err(|_| Disconnected)
    }
}

fn stream_index(stream: StdStream) -> (usize, &'static str) {
    match stream {
        StdStream::Stdout => (0, "stdout"),
        StdStream::Stderr => (1, "stderr"),
    }
}

async fn follow(
    live: Arc<ActiveRun>,
    position: EventPosition,
    guard: Option<SlowReaderGuard>,
    to: mpsc::Sender<Bytes>,
) {
    // An error means that the client disconnected.
    _ = stream_until_ended(&live, EventWriter::new(position, guard, to)).await;
}

pub(crate) async fn stream_until_ended(
    live: &ActiveRun,
    mut writer: EventWriter,
) -> Result<(), Disconnected> {
    let mut progress = live.progress();
    loop {
        let now = progress.borrow_and_update().clone();
        let lengths = live.feed.lengths();
        if let Some(barriers) = now.started.filter(|_| !writer.position.started) {
            writer.position.started = true;
            writer
                .send(
                    "started",
                    &json!({ "run_id": live.id, "barriers": barriers }),
                )
                .await?;
        }
        for denial in now.denied.iter().skip(writer.position.denied) {
            writer.position.denied += 1;
            writer.send("denied", &json!(denial)).await?;
        }
        for stream in [StdStream::Stdout, StdStream::Stderr] {
            send_output(live, &mut writer, stream, now.ended.is_some()).await?;
        }
        if let Some(ended) = now.ended {
            return writer.finish(&ended.stored).await;
        }
        tokio::select! {
            () = writer.to.closed() => return Err(Disconnected),
            _ = progress.changed() => {}
            more = live.feed.wait_for_more(lengths) => if !more {
                // The end follows the last output immediately.
                _ = progress.changed().await;
            },
            () = tokio::time::sleep(KEEP_ALIVE) => {
                writer.to.send(Bytes::from_static(b": still here\n\n")).await.map_err(|_| Disconnected)?;
            }
        }
    }
}

/// Sends the available output of a stream; an incomplete UTF-8 character waits for its rest.
async fn send_output(
    live: &ActiveRun,
    writer: &mut EventWriter,
    stream: StdStream,
    ended: bool,
) -> Result<(), Disconnected> {
    loop {
        let piece = live.feed.read(
            stream,
            writer.position.streams[stream_index(stream).0],
            MAX_EVENT_BYTES,
        );
        let whole = match std::str::from_utf8(&piece.bytes) {
            Err(error) if error.error_len().is_none() && (error.valid_up_to() > 0 || !ended) => {
                error.valid_up_to()
            }
            _ => piece.bytes.len(),
        };
        let (index, name) = stream_index(stream);
        let from = writer.position.streams[index];
        if piece.from > from {
            writer.position.streams[index] = piece.from;
            writer
                .send(
                    "gap",
                    &json!({ "stream": name, "from": from, "to": piece.from }),
                )
                .await?;
            // Discarded output is not waited for.
            writer.report_read();
        }
        if whole == 0 {
            return Ok(());
        }
        writer
            .output(stream, piece.from, &piece.bytes[..whole])
            .await?;
    }
}

/// The same for a run that is only in the database.
async fn replay(result: String, position: EventPosition, to: mpsc::Sender<Bytes>) {
    _ = replay_result(&result, EventWriter::new(position, None, to)).await;
}

/// Sends all events of a stored result.
pub(crate) async fn replay_result(
    result: &str,
    mut writer: EventWriter,
) -> Result<(), Disconnected> {
    let result_json: Value = serde_json::from_str(result).unwrap_or_default();
    let barriers = result_json["barriers"]
        .as_array()
        .filter(|barriers| !barriers.is_empty());
    if let Some(barriers) = barriers.filter(|_| !writer.position.started) {
        writer.position.started = true;
        writer
            .send(
                "started",
                &json!({ "run_id": result_json["run_id"], "barriers": barriers }),
            )
            .await?;
    }
    for denial in result_json["denials"]
        .as_array()
        .into_iter()
        .flatten()
        .skip(writer.position.denied)
    {
        writer.position.denied += 1;
        writer.send("denied", denial).await?;
    }
    for stream in [StdStream::Stdout, StdStream::Stderr] {
        let (index, name) = stream_index(stream);
        let text = result_json[name]
            .as_str()
            .map(|text| text.as_bytes().to_vec());
        let bytes = text
            .or_else(|| wire::decoded(result_json[format!("{name}_base64")].as_str()?, name).ok());
        let bytes = bytes.unwrap_or_default();
        let from = writer.position.streams[index];
        let rest = usize::try_from(from)
            .ok()
            .and_then(|from| bytes.get(from..))
            .unwrap_or_default();
        if !rest.is_empty() {
            writer.output(stream, from, rest).await?;
        }
        if result_json["truncated"][name].as_bool() == Some(true) {
            // The amount of the truncated output is not stored.
            let from = writer.position.streams[index];
            writer
                .send("gap", &json!({ "stream": name, "from": from, "to": null }))
                .await?;
        }
    }
    writer.finish(result.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_how_much_was_seen() {
        let position = EventPosition {
            started: true,
            denied: 2,
            streams: [3, 4],
        };
        assert_eq!(
            (position.id().as_str(), position.id().parse()),
            ("1.2.3.4", Ok(position))
        );
        for text in [
            "",
            "1",
            "2.0.0.0",
            "1.0.0",
            "1.0.0.0.0",
            "1.0.-1.0",
            "x.0.0.0",
        ] {
            assert_eq!(text.parse::<EventPosition>(), Err(()), "{text}");
        }
    }
}
