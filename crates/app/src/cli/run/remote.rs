//! `airlock run` at a server: the same options, output and exit status. The run belongs to the
//! server; this client requests it, prints its output, and cancels it on a signal.

use super::{
    Options, Signals, conclude, learned_rules,
    output::{self, Delivery, FinishedRun, OutputMode, Step},
    report,
    request_body::{self, Attachments},
};
use crate::{
    cli::message::{self, Failure, Message},
    config::ProcessEnv,
    remote::{
        Client, ClientRequest, EventSource, EventStream, RemoteError, ServerEvent, segment,
        segments,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, Method, header::ACCEPT};
use serde::Deserialize;
use serde_json::{Map, Value};
use spec::{
    ArtifactRef, Denial, ErrorCode, ErrorInfo, LearnedRule, RunResult, Status, StdStream, Timestamp,
};
use std::{io, time::Duration};
use tokio::sync::mpsc;

/// The timeout of one request for the result. It is then repeated, so that a dead connection is
/// noticed.
const RESULT_POLL_TIMEOUT: Duration = Duration::from_secs(120);
/// Delays between retries after a broken connection.
const RETRY_DELAYS_MS: [u64; 6] = [100, 300, 1000, 2000, 4000, 8000];
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Carries out the command at a server.
pub(super) fn attempt(options: Options, client: Client, env: &ProcessEnv) -> Result<u8, Failure> {
    options.refuse_at_a_server()?;
    if env.current_folder.join("airlock.toml").exists() {
        let note = "`airlock.toml` in this folder applies to local runs only; the server has its own rules";
        message::print(&[Message::Note(note.to_owned())]);
    }
    let json = options.json;
    let learns = options.learn;
    let follow_links = options.follow_links;
    let request = options.into_request(env)?;
    let idempotency_key = engine::fresh_id().to_string();
    let attachments = Attachments::read(&request, env, follow_links)?;
    let runtime = crate::cli::runtime()?;
    let status = runtime.block_on(async {
        let signals = Signals::listen()
            .map_err(|e| Failure::internal(format!("cannot wait for signals: {e}")))?;
        let uploads = UploadedInputs::send(&client, &idempotency_key, attachments).await?;
        let outcome = match request_body::body(request, &uploads.attachments) {
            Ok(order) => {
                let asked = RemoteRun {
                    client: client.clone(),
                    order,
                    idempotency_key,
                };
                if json {
                    asked.print_result(signals).await
                } else {
                    asked.show(signals, learns).await
                }
            }
            Err(refused) => Err(refused),
        };
        uploads.remove(&client).await;
        outcome
    });
    runtime.shutdown_background();
    status
}

/// The request body of a sandbox: the options of a run without a command.
pub(in crate::cli) fn sandbox_request(
    options: Options,
    env: &ProcessEnv,
) -> Result<Map<String, Value>, Failure> {
    options.refuse_at_a_server()?;
    let follow_links = options.follow_links;
    let request = options.into_request(env)?;
    if !request.command.is_empty() || request.stdin {
        let hint = "create the sandbox first, then run `airlock sandbox exec ID -- COMMAND`";
        return Err(Failure::invalid(
            "a sandbox is created without a command",
            hint,
        ));
    }
    let attachments = Attachments::read(&request, env, follow_links)?;
    if let Some((name, _)) = attachments.large.first() {
        let message = format!(
            "the input `{}` is too large for a request",
            name.escape_debug()
        );
        return Err(Failure::invalid(
            message,
            "create the sandbox first, then run `airlock sandbox put ID FILE`",
        ));
    }
    match request_body::body(request, &attachments)? {
        Value::Object(order) => Ok(order),
        _ => Ok(Map::new()),
    }
}

/// The request body of a job's run.
pub(in crate::cli) fn job_run_request(
    options: Options,
    env: &ProcessEnv,
) -> Result<Map<String, Value>, Failure> {
    options.refuse_at_a_server()?;
    let identity = options.identity();
    if let Some(option) = identity
        .run_id
        .map(|_| "--run-id")
        .or(identity.job_id.map(|_| "--job-id"))
    {
        let message =
            format!("{option} does not apply to a job, whose identifiers the server chooses");
        return Err(Failure::invalid(message, "use --name or --label instead"));
    }
    let contract = options.contract();
    let follow_links = options.follow_links;
    let request = options.into_request(env)?;
    let attachments = Attachments::read(&request, env, follow_links)?;
    if let Some((name, _)) = attachments.large.first() {
        let message = format!(
            "the input `{}` is too large for a request",
            name.escape_debug()
        );
        let hint =
            "store it first with `airlock artifact put FILE`, then give --input NAME=artifact:NAME";
        return Err(Failure::invalid(message, hint));
    }
    let Value::Object(mut order) = request_body::body(request, &attachments)? else {
        return Ok(Map::new());
    };
    // An unset contract is omitted, because agents have another default.
    order.extend(contract.map(|contract| ("contract".to_owned(), contract.to_string().into())));
    Ok(order)
}

/// Reads a stored result: the exit status, and the messages about its end.
pub(in crate::cli) fn read_result(result: &Value) -> Result<(u8, Vec<Message>), String> {
    let told = ResultResponse::deserialize(result)
        .map_err(|error| format!("its result cannot be read: {error}"))?;
    let result = told.result();
    Ok((result.exit_status, report::lines(&result)))
}

/// Inputs too large for the request: artifacts of the server while the run lasts.
struct UploadedInputs {
    attachments: Attachments,
    names: Vec<String>,
}

impl UploadedInputs {
    async fn send(
        client: &Client,
        idempotency_key: &str,
        mut attachments: Attachments,
    ) -> Result<UploadedInputs, Failure> {
        let mut names = Vec::new();
        for (number, (name, path)) in std::mem::take(&mut attachments.large)
            .into_iter()
            .enumerate()
        {
            let kept = format!("airlock-inputs/{idempotency_key}/{number}");
            crate::cli::artifact::upload(client, &kept, &path).await?;
            attachments.kept.push((name, kept.clone()));
            names.push(kept);
        }
        Ok(UploadedInputs { attachments, names })
    }

    async fn remove(&self, client: &Client) {
        for name in &self.names {
            let ask = ClientRequest::new(
                Method::DELETE,
                format!("/v1/artifacts/{}", segments(name.as_bytes())),
            );
            if let Err(error) = client.send(ask).await {
                message::print(&[Message::Note(format!(
                    "the artifact `{name}` remains at the server: {error}"
                ))]);
            }
        }
    }
}

/// A requested run. Repeated requests carry the same idempotency key and get the same run.
#[derive(Clone)]
struct RemoteRun {
    client: Client,
    order: Value,
    idempotency_key: String,
}

impl RemoteRun {
    fn request(&self) -> ClientRequest {
        ClientRequest::new(Method::POST, "/v1/runs")
            .json(&self.order)
            .header(IDEMPOTENCY_KEY, &self.idempotency_key)
    }

    /// Waits for the result and prints it unchanged.
    async fn print_result(self, mut signals: Signals) -> Result<u8, Failure> {
        let mut cancelled = false;
        let waiting = self.result();
        tokio::pin!(waiting);
        let text = loop {
            tokio::select! {
                text = &mut waiting => break text?,
                () = signals.next() => if cancelled {output::exit_now()} else {
                        cancelled = true;
                        self.cancel();
                    },
            }
        };
        let result = self.read(&text)?;
        crate::cli::print(&format!("{}\n", crate::cli::without_controls(&text)))?;
        message::print(&report::refusal(&result));
        Ok(result.exit_status)
    }

    /// Requests the complete result.
    async fn result(&self) -> Result<String, RemoteError> {
        let mut delays = RETRY_DELAYS_MS.iter();
        let mut known = false;
        loop {
            let answer = match self
                .client
                .send(self.request().response_timeout(RESULT_POLL_TIMEOUT))
                .await
            {
                Ok(answer) => answer.text().await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(text) => return self.text(&text),
                // The run could not start; its result has the details.
                Err(RemoteError::Refused(problem))
                    if run_of_instance(&problem.instance).is_some() =>
                {
                    let path = problem.instance.unwrap_or_default();
                    let text = self
                        .client
                        .send(ClientRequest::get(path))
                        .await?
                        .text()
                        .await?;
                    return self.text(&text);
                }
                // A server that was never reached is not retried.
                Err(error @ RemoteError::Unreachable { .. }) if !known => return Err(error),
                Err(RemoteError::TimedOut { .. }) => {}
                Err(error) => match (error.is_transient(), delays.next()) {
                    (true, Some(delay)) => tokio::time::sleep(Duration::from_millis(*delay)).await,
                    _ => return Err(error),
                },
            }
            known = true;
        }
    }

    fn text(&self, bytes: &[u8]) -> Result<String, RemoteError> {
        let text = String::from_utf8(bytes.to_vec());
        text.map_err(|_| self.client.not_airlock("its result is not UTF-8"))
    }

    fn read(&self, text: &str) -> Result<RunResult, RemoteError> {
        let told: ResultResponse = serde_json::from_str(text).map_err(|error| {
            self.client
                .not_airlock(format!("its result cannot be read: {error}"))
        })?;
        Ok(told.result())
    }

    /// Cancels the run in a background task; its end is seen in the events.
    fn cancel(&self) {
        let asked = self.clone();
        tokio::spawn(async move {
            for delay in RETRY_DELAYS_MS {
                match asked.end().await {
                    Err(error) if error.is_transient() => {
                        tokio::time::sleep(Duration::from_millis(delay)).await
                    }
                    _ => return,
                }
            }
        });
    }

    async fn end(&self) -> Result<(), RemoteError> {
        let RunIdResponse { run_id } = self
            .client
            .json(self.request().header(PREFER, "respond-async"))
            .await?;
        let path = format!("/v1/runs/{}", segment(run_id.as_bytes()));
        self.client
            .send(ClientRequest::new(Method::DELETE, path))
            .await
            .map(drop)
    }

    fn follow(&self) -> EventStream {
        let asked = self.clone();
        // Repeated requests get the same run; its events continue after the last one received.
        let ask = move |last: Option<&str>| {
            let ask = asked.request().header(ACCEPT, "text/event-stream");
            match last {
                None => ask,
                Some(last) => ask.header(LAST_EVENT_ID, last),
            }
        };
        EventSource {
            ask,
            last: "finished",
        }
        .start(&self.client)
    }

    /// Prints the output as it arrives, then the messages about the end.
    async fn show(self, mut signals: Signals, learns: bool) -> Result<u8, Failure> {
        let (mut outlet, writer) = output::open_outlet(OutputMode::Streams).unzip();
        let mut progress = RemoteOutput {
            events: self.follow(),
            asked: self,
            at: [0; 2],
            lost: 0,
            last: None,
            result: None,
        };
        let mut cancelled = false;
        loop {
            tokio::select! {
                step = progress.next(outlet.as_ref()) => match step? {
                    Step::More => {}
                    Step::OutletClosed => {
                        outlet = None;
                        progress.asked.cancel();
                    }
                    Step::Over => break,
                },
                () = signals.next() => if cancelled {output::exit_now()} else {
                        cancelled = true;
                        progress.asked.cancel();
                    },
            }
        }
        drop(outlet);
        let delivery = tokio::select! {
            delivery = output::wait_delivery(writer) => delivery,
            () = signals.next() => output::exit_now(),
        };
        progress.finish(delivery, learns)
    }
}

/// The identifier of a run.
#[derive(Deserialize)]
struct RunIdResponse {
    run_id: String,
}

/// The run that a problem document is about.
fn run_of_instance(instance: &Option<String>) -> Option<&str> {
    instance.as_deref()?.strip_prefix("/v1/runs/")
}

/// The output received so far, and the result.
struct RemoteOutput {
    asked: RemoteRun,
    events: EventStream,
    /// Offset in each stream.
    at: [u64; 2],
    /// Bytes that were skipped.
    lost: u64,
    /// The last byte on standard error.
    last: Option<u8>,
    result: Option<RunResult>,
}

impl RemoteOutput {
    /// Handles one event, taken only when the output queue has room. Cancel-safe.
    async fn next(
        &mut self,
        outlet: Option<&mpsc::Sender<output::OutputChunk>>,
    ) -> Result<Step, Failure> {
        let room = match outlet {
            None => None,
            Some(outlet) => match outlet.reserve().await {
                Ok(room) => Some(room),
                Err(_) => return Ok(Step::OutletClosed),
            },
        };
        let event = match self.events.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(self.connection_lost(error)),
            None => return Ok(Step::Over),
        };
        match event.name.as_str() {
            "output" => {
                let (stream, bytes) = self.output(&event)?;
                if let (Some(room), false) = (room, bytes.is_empty()) {
                    room.send((stream, bytes));
                }
            }
            "finished" => {
                self.result = Some(self.asked.read(&event.data)?);
                return Ok(Step::Over);
            }
            // `started` and `denied` are in the result; unknown events of later servers are
            // ignored.
            _ => {}
        }
        Ok(Step::More)
    }

    /// The new bytes of an output event.
    fn output(&mut self, event: &ServerEvent) -> Result<(StdStream, Vec<u8>), Failure> {
        let piece =
            OutputEvent::read(&event.data).map_err(|cause| self.asked.client.not_airlock(cause))?;
        let (index, stream) = match piece.stream {
            StreamName::Stdout => (0, StdStream::Stdout),
            StreamName::Stderr => (1, StdStream::Stderr),
        };
        let (bytes, lost) = piece.beyond(&mut self.at[index]);
        self.lost += lost;
        if index == 1 {
            self.last = bytes.last().copied().or(self.last);
        }
        Ok((stream, bytes))
    }

    /// Adds a hint to a lost connection: the run may continue.
    fn connection_lost(&self, error: RemoteError) -> Failure {
        let known = self.at != [0; 2];
        let failure = Failure::from(error);
        match failure.code {
            ErrorCode::Lost | ErrorCode::BackendUnavailable if known => Failure {
                hint: "the run may continue at the server; GET /v1/runs shows it".to_owned(),
                ..failure
            },
            _ => failure,
        }
    }

    fn finish(self, delivery: Delivery, learns: bool) -> Result<u8, Failure> {
        let mut result = self.result.ok_or_else(|| {
            self.asked
                .client
                .not_airlock("it reported no end of the run")
        })?;
        // Only whether the last line ended with a newline matters.
        result.stderr = self.last.into_iter().collect();
        let delivery = match (delivery, self.lost) {
            (Delivery::Complete, 1..) => {
                Delivery::Failed(io::Error::other(format!("{} bytes were lost", self.lost)))
            }
            (delivery, _) => delivery,
        };
        let ending = FinishedRun { result, delivery };
        let status = conclude(&ending, &ending.result.stderr, learns);
        if learns {
            message::print_plain(&learned_rules::toml(&ending.result));
        }
        Ok(status)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StreamName {
    Stdout,
    Stderr,
}

/// An `output` event.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct OutputEvent {
    stream: StreamName,
    offset: u64,
    text: Option<String>,
    base64: Option<String>,
    #[serde(skip)]
    bytes: Vec<u8>,
}

impl OutputEvent {
    pub(in crate::cli) fn read(data: &str) -> Result<OutputEvent, String> {
        let mut piece: OutputEvent = serde_json::from_str(data)
            .map_err(|error| format!("its output cannot be read: {error}"))?;
        piece.bytes = match (piece.text.take(), piece.base64.take()) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map_err(|_| "its output is not base64".to_owned())?,
            _ => return Err("its output has no bytes".to_owned()),
        };
        Ok(piece)
    }

    pub(in crate::cli) fn stream(&self) -> StdStream {
        match self.stream {
            StreamName::Stdout => StdStream::Stdout,
            StreamName::Stderr => StdStream::Stderr,
        }
    }

    /// The bytes after the offset, and how many were skipped before them.
    pub(in crate::cli) fn beyond(self, at: &mut u64) -> (Vec<u8>, u64) {
        let lost = self.offset.saturating_sub(*at);
        let known = usize::try_from(at.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let new = self.bytes.get(known..).unwrap_or_default().to_vec();
        *at = (*at).max(self.offset.saturating_add(self.bytes.len() as u64));
        (new, lost)
    }
}

/// The fields of a result that messages need.
#[derive(Debug, Deserialize)]
struct ResultResponse {
    status: Status,
    signal: Option<i32>,
    exit_status: u8,
    error: Option<ErrorInfo>,
    #[serde(default)]
    limits_hit: Vec<Value>,
    #[serde(default)]
    denials: Vec<Denial>,
    #[serde(default)]
    artifacts: Vec<ArtifactRef>,
    #[serde(default)]
    profile: String,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    learned: Vec<LearnedRuleResponse>,
}

#[derive(Debug, Deserialize)]
struct LearnedRuleResponse {
    host: String,
    ports: Vec<u16>,
    uses: u64,
}

impl ResultResponse {
    fn result(self) -> RunResult {
        let rule = |rule: LearnedRuleResponse| {
            let host = rule.host.parse().ok()?;
            Some(LearnedRule {
                host,
                ports: rule.ports.into_iter().collect(),
                uses: rule.uses,
            })
        };
        // The identifier is not used; the server's is in the printed text.
        let blank = RunResult::blank(engine::fresh_id(), self.profile, Timestamp(0));
        RunResult {
            status: self.status,
            signal: self.signal,
            exit_status: self.exit_status,
            error: self.error,
            // Unknown limits of later servers are ignored.
            limits_hit: self
                .limits_hit
                .into_iter()
                .filter_map(|name| serde_json::from_value(name).ok())
                .collect(),
            denials: self.denials,
            artifacts: self.artifacts,
            notes: self.notes,
            learned: self.learned.into_iter().filter_map(rule).collect(),
            ..blank
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Id;

    #[test]
    fn a_result_says_the_same_after_its_way_through_json() {
        let before = RunResult {
            status: Status::Failed,
            signal: Some(11),
            exit_status: 139,
            error: Some(ErrorInfo {
                code: ErrorCode::OomKilled,
                message: "m".into(),
                hint: Some("h".into()),
            }),
            limits_hit: [spec::LimitName::Pids, spec::LimitName::Egress].into(),
            denials: vec![Denial {
                what: "a".into(),
                target: "b".into(),
                rule: "c".into(),
                allow_with: "d".into(),
            }],
            artifacts: vec![ArtifactRef {
                name: "n".into(),
                version: 2,
                size_bytes: 3,
                sha256: "s".into(),
            }],
            notes: vec!["weak".into()],
            learned: vec![LearnedRule {
                host: "a.com".parse().unwrap(),
                ports: [443].into(),
                uses: 2,
            }],
            ..RunResult::blank(Id::new("r").unwrap(), "ci".into(), Timestamp(0))
        };
        let text = serde_json::to_string(&before).unwrap();
        let after = serde_json::from_str::<ResultResponse>(&text)
            .unwrap()
            .result();
        assert_eq!(
            RunResult {
                run_id: before.run_id.clone(),
                ..after
            },
            before
        );
    }

    #[test]
    fn a_piece_is_shown_once_and_what_is_missing_is_counted() {
        let mut at = 0;
        let mut take = |text: &str| OutputEvent::read(text).unwrap().beyond(&mut at);
        assert_eq!(
            take(r#"{"stream":"stdout","offset":0,"text":"abc"}"#),
            (b"abc".to_vec(), 0)
        );
        assert_eq!(
            take(r#"{"stream":"stdout","offset":1,"text":"bcd"}"#),
            (b"d".to_vec(), 0)
        );
        assert_eq!(
            take(r#"{"stream":"stdout","offset":0,"text":"a"}"#),
            (Vec::new(), 0)
        );
        assert_eq!(
            take(r#"{"stream":"stdout","offset":10,"base64":"/w=="}"#),
            (vec![0xff], 6)
        );
        assert_eq!(at, 11);
        for bad in [
            "",
            "{}",
            r#"{"stream":"stdout","offset":0}"#,
            r#"{"stream":"x","offset":0,"text":""}"#,
        ] {
            assert!(OutputEvent::read(bad).is_err(), "{bad}");
        }
    }
}
