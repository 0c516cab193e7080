//! What happens in a run, as server-sent events. The id of an event says how much was seen with it, so that a reader who
//! comes again gets exactly the rest: `STARTED.DENIALS.STDOUT.STDERR`, the last two in bytes.

use super::{hold::Hold, live::Live, row};
use crate::{Caller, Gateway, Problem, path::Path, problem::Answer, stream, wire};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Value, json};
use spec::Stream;
use std::{str::FromStr, sync::Arc, time::Duration};
use store::served::RunRow;
use tokio::sync::mpsc;

/// Silence is broken so often, for whatever stands between.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
const LARGEST_PIECE: usize = 32 << 10;

/// How much a reader has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    started: bool,
    denied: usize,
    streams: [u64; 2],
}

impl Seen {
    pub(crate) fn id(&self) -> String {
        let [stdout, stderr] = self.streams;
        format!(
            "{}.{}.{stdout}.{stderr}",
            u8::from(self.started),
            self.denied
        )
    }
}

impl FromStr for Seen {
    type Err = ();

    fn from_str(text: &str) -> Result<Seen, ()> {
        let numbers: Vec<u64> = text
            .split('.')
            .map(|part| part.parse().map_err(drop))
            .collect::<Result<_, _>>()?;
        match numbers[..] {
            [started @ 0..=1, denied, stdout, stderr] => Ok(Seen {
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
    // Whoever says what he saw read them before; others merely look.
    let comes_again = headers
        .get("last-event-id")
        .is_some_and(|id| !id.is_empty());
    of(
        &gateway,
        row(&gateway, &caller, &id).await?,
        &headers,
        comes_again,
    )
    .await
}

/// The events of a run that the caller may see, behind the last one that he saw.
pub(super) async fn of(
    gateway: &Gateway,
    row: RunRow,
    headers: &HeaderMap,
    comes_again: bool,
) -> Answer<Response> {
    let id = row.id;
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
    let (sender, body) = stream::body();
    match gateway.runs().find(&id) {
        Some(live) => {
            let hold = if comes_again {
                Hold::again(&live, seen.streams)
            } else {
                None
            };
            drop(tokio::spawn(follow(live, seen, hold, sender)));
        }
        // It may have ended since, and is then asked for again.
        None => {
            let result = match row.result {
                Some(result) => Some(result),
                None => gateway
                    .look_up(move |served| served.run(&id))
                    .await?
                    .and_then(|row| row.result),
            };
            drop(tokio::spawn(replay(
                result.unwrap_or_default(),
                seen,
                sender,
            )));
        }
    }
    Ok(answer(body))
}

pub(crate) fn answer(body: axum::body::Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, body).into_response()
}

/// The events of a run as the answer to whoever asked for it: he misses nothing.
pub(super) fn held(live: Arc<Live>, hold: Hold) -> Response {
    let (sender, body) = stream::body();
    drop(tokio::spawn(follow(
        live,
        Seen::default(),
        Some(hold),
        sender,
    )));
    answer(body)
}

/// Where events go.
pub(crate) struct Reader {
    /// What stands before each id.
    pub(crate) before: String,
    /// The whole id of the last event, if it is another.
    pub(crate) at_end: Option<String>,
    pub(crate) seen: Seen,
    pub(crate) hold: Option<Hold>,
    pub(crate) to: mpsc::Sender<Bytes>,
}

/// Nobody reads any more.
pub(crate) struct Gone;

impl Reader {
    fn new(seen: Seen, hold: Option<Hold>, to: mpsc::Sender<Bytes>) -> Reader {
        Reader {
            before: String::new(),
            at_end: None,
            seen,
            hold,
            to,
        }
    }

    async fn send(&self, event: &str, data: &Value) -> Result<(), Gone> {
        let text = format!(
            "id: {}{}\nevent: {event}\ndata: {data}\n\n",
            self.before,
            self.seen.id()
        );
        self.to.send(text.into()).await.map_err(|_| Gone)
    }

    async fn output(&mut self, stream: Stream, from: u64, bytes: &[u8]) -> Result<(), Gone> {
        let (index, name) = place(stream);
        self.seen.streams[index] = from + bytes.len() as u64;
        let mut data = json!({ "stream": name, "offset": from });
        match std::str::from_utf8(bytes) {
            Ok(text) => data["text"] = text.into(),
            Err(_) => data["base64"] = wire::encoded(bytes).into(),
        }
        self.send("output", &data).await?;
        self.has_read();
        Ok(())
    }

    fn has_read(&self) {
        if let Some(hold) = &self.hold {
            hold.read(self.seen.streams);
        }
    }

    async fn finish(&self, result: &[u8]) -> Result<(), Gone> {
        // Its lines are one: JSON has no other.
        let text = String::from_utf8_lossy(result);
        let id = self
            .at_end
            .clone()
            .unwrap_or_else(|| self.before.clone() + &self.seen.id());
        let event = format!("id: {id}\nevent: finished\ndata: {text}\n\n");
        self.to.send(event.into()).await.map_err(|_| Gone)
    }
}

fn place(stream: Stream) -> (usize, &'static str) {
    match stream {
        Stream::Stdout => (0, "stdout"),
        Stream::Stderr => (1, "stderr"),
    }
}

async fn follow(live: Arc<Live>, seen: Seen, hold: Option<Hold>, to: mpsc::Sender<Bytes>) {
    // Whoever hung up is told nothing more.
    _ = until_ended(&live, Reader::new(seen, hold, to)).await;
}

pub(crate) async fn until_ended(live: &Live, mut reader: Reader) -> Result<(), Gone> {
    let mut progress = live.progress();
    loop {
        let now = progress.borrow_and_update().clone();
        let lengths = live.feed.lengths();
        if let Some(barriers) = now.started.filter(|_| !reader.seen.started) {
            reader.seen.started = true;
            reader
                .send(
                    "started",
                    &json!({ "run_id": live.id, "barriers": barriers }),
                )
                .await?;
        }
        for denial in now.denied.iter().skip(reader.seen.denied) {
            reader.seen.denied += 1;
            reader.send("denied", &json!(denial)).await?;
        }
        for stream in [Stream::Stdout, Stream::Stderr] {
            pass_on(live, &mut reader, stream, now.ended.is_some()).await?;
        }
        if let Some(ended) = now.ended {
            return reader.finish(&ended.kept).await;
        }
        tokio::select! {
            () = reader.to.closed() => return Err(Gone),
            _ = progress.changed() => {}
            more = live.feed.grown(lengths) => if !more {
                // The end is told right behind the last output.
                _ = progress.changed().await;
            },
            () = tokio::time::sleep(KEEP_ALIVE) => {
                reader.to.send(Bytes::from_static(b": still here\n\n")).await.map_err(|_| Gone)?;
            }
        }
    }
}

/// What there is of a stream. A character that is not whole yet waits for its rest.
async fn pass_on(
    live: &Live,
    reader: &mut Reader,
    stream: Stream,
    ended: bool,
) -> Result<(), Gone> {
    loop {
        let piece = live
            .feed
            .read(stream, reader.seen.streams[place(stream).0], LARGEST_PIECE);
        let whole = match std::str::from_utf8(&piece.bytes) {
            Err(error) if error.error_len().is_none() && (error.valid_up_to() > 0 || !ended) => {
                error.valid_up_to()
            }
            _ => piece.bytes.len(),
        };
        let (index, name) = place(stream);
        let from = reader.seen.streams[index];
        if piece.from > from {
            reader.seen.streams[index] = piece.from;
            reader
                .send(
                    "gap",
                    &json!({ "stream": name, "from": from, "to": piece.from }),
                )
                .await?;
            // What is forgotten is not waited for.
            reader.has_read();
        }
        if whole == 0 {
            return Ok(());
        }
        reader
            .output(stream, piece.from, &piece.bytes[..whole])
            .await?;
    }
}

/// The same of a run that only the database knows.
async fn replay(result: String, seen: Seen, to: mpsc::Sender<Bytes>) {
    _ = all(&result, Reader::new(seen, None, to)).await;
}

/// Everything that a kept result tells.
pub(crate) async fn all(result: &str, mut reader: Reader) -> Result<(), Gone> {
    let told: Value = serde_json::from_str(result).unwrap_or_default();
    let barriers = told["barriers"]
        .as_array()
        .filter(|barriers| !barriers.is_empty());
    if let Some(barriers) = barriers.filter(|_| !reader.seen.started) {
        reader.seen.started = true;
        reader
            .send(
                "started",
                &json!({ "run_id": told["run_id"], "barriers": barriers }),
            )
            .await?;
    }
    for denial in told["denials"]
        .as_array()
        .into_iter()
        .flatten()
        .skip(reader.seen.denied)
    {
        reader.seen.denied += 1;
        reader.send("denied", denial).await?;
    }
    for stream in [Stream::Stdout, Stream::Stderr] {
        let (index, name) = place(stream);
        let text = told[name].as_str().map(|text| text.as_bytes().to_vec());
        let bytes =
            text.or_else(|| wire::decoded(told[format!("{name}_base64")].as_str()?, name).ok());
        let bytes = bytes.unwrap_or_default();
        let from = reader.seen.streams[index];
        let rest = usize::try_from(from)
            .ok()
            .and_then(|from| bytes.get(from..))
            .unwrap_or_default();
        if !rest.is_empty() {
            reader.output(stream, from, rest).await?;
        }
        if told["truncated"][name].as_bool() == Some(true) {
            // How much more there was is not kept.
            let from = reader.seen.streams[index];
            reader
                .send("gap", &json!({ "stream": name, "from": from, "to": null }))
                .await?;
        }
    }
    reader.finish(result.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_how_much_was_seen() {
        let seen = Seen {
            started: true,
            denied: 2,
            streams: [3, 4],
        };
        assert_eq!(
            (seen.id().as_str(), seen.id().parse()),
            ("1.2.3.4", Ok(seen))
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
            assert_eq!(text.parse::<Seen>(), Err(()), "{text}");
        }
    }
}
