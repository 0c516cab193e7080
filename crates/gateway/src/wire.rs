//! JSON bodies of requests: extractors with size and time limits, and the wire format of a run.
//! Field names are defined only here.

use crate::{
    Caller, Gateway, Problem, blocking,
    fair_share::{FairShareGuard, FairShareLimiter, ShareExceeded},
    problem::Answer,
};
use axum::extract::{FromRequest, Request};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use http::{StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use spec::{Barrier, Budget, Contract, LimitSet, Money, Network, RunRequest, User};
use std::{
    collections::BTreeMap, ffi::OsString, fmt::Display, path::PathBuf, str::FromStr, sync::Arc,
    time::Duration,
};
use utoipa::ToSchema;

/// Timeout for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bodies above this size are parsed on a thread of their own.
const INLINE_PARSE_BYTES: usize = 64 << 10;
/// Maximum number of members of all objects and arrays of a body: more than any valid request
/// needs, and parsed in a moment.
const MAX_MEMBERS: usize = 65_536;
/// After this much of a body other tasks of the event loop have a turn.
const YIELD_BYTES: usize = 256 << 10;

/// The bytes of a body, within the size limit. They count against the share of the tenant until
/// they are parsed.
pub(crate) struct RawBody {
    bytes: Bytes,
    share: FairShareGuard,
}

/// A body parsed as JSON, whatever its content type.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl FromRequest<Gateway> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Answer<RawBody> {
        let max = gateway.bounds().body;
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse::<usize>().ok())
            .is_some_and(|length| length > max)
        {
            return Err(too_large(max));
        }
        let key = tenant_of(&request);
        let shares = gateway.body_bytes();
        let share = gateway.body_bytes().guard(&key);
        match tokio::time::timeout(
            BODY_TIMEOUT,
            read_body(request.into_body(), max, shares, share),
        )
        .await
        {
            Ok(body) => body,
            Err(_) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body did not arrive in time",
                Some(format!("send it within {} seconds", BODY_TIMEOUT.as_secs())),
            )),
        }
    }
}

/// Receives a body. Memory is acquired for received bytes, not for the announced length, so that an
/// announcement alone takes nothing from others.
async fn read_body(
    mut body: axum::body::Body,
    max: usize,
    shares: &FairShareLimiter,
    mut share: FairShareGuard,
) -> Answer<RawBody> {
    let mut bytes = BytesMut::new();
    let mut members = MemberCounter::default();
    let mut since_yield = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("the body broke off", "send all of it"))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if bytes.len() + piece.len() > max {
            return Err(too_large(max));
        }
        if members.add(&piece) >= MAX_MEMBERS {
            let received = bytes.len() + piece.len();
            drop((bytes, share));
            discard(body, max - received).await;
            return Err(too_many_members());
        }
        shares
            .acquire(&mut share, piece.len())
            .map_err(|full: ShareExceeded| {
                let what = "bytes of bodies that arrive or wait to be parsed";
                full.problem(what, "try again in a moment")
            })?;
        bytes.extend_from_slice(&piece);
        since_yield += piece.len();
        if since_yield >= YIELD_BYTES {
            since_yield = 0;
            tokio::task::yield_now().await;
        }
    }
    let bytes = bytes.freeze();
    Ok(RawBody { bytes, share })
}

/// Receives the rest of a refused body without keeping it: a client that still sends would not read
/// the answer.
async fn discard(mut body: axum::body::Body, mut left: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(length) else {
            return;
        };
        left = less;
        tokio::task::yield_now().await;
    }
}

/// Counts the members of all objects and arrays of a body while it arrives, by their commas. Many
/// members would take long to parse.
#[derive(Debug, Default)]
struct MemberCounter {
    members: usize,
    is_text: bool,
    is_escaped: bool,
}

impl MemberCounter {
    /// The number of commas outside of texts so far.
    fn add(&mut self, piece: &[u8]) -> usize {
        for byte in piece {
            match (self.is_text, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => self.is_escaped = true,
                (_, b'"') => self.is_text = !self.is_text,
                (false, b',') => self.members += 1,
                _ => {}
            }
        }
        self.members
    }
}

fn too_many_members() -> Problem {
    let title = format!("the body has more than {MAX_MEMBERS} members");
    Problem::invalid(title, "send shorter lists and objects")
}

fn too_large(max: usize) -> Problem {
    let hint = format!("send at most {max} bytes; keep large files as artifacts");
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "quota_exceeded",
        "the body is too large",
        Some(hint),
    )
}

/// Tenant of a request; empty if unauthenticated.
pub(crate) fn tenant_of(request: &Request) -> String {
    let caller = request.extensions().get::<Caller>();
    caller.map_or_else(String::new, |caller| caller.tenant.clone())
}

impl RawBody {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Parses the body with `parse`; a long body as CPU-heavy work of the tenant's. A body that
    /// waits for that still counts against the tenant's share.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        gateway: &Gateway,
        tenant: &str,
        parse: impl FnOnce(&[u8]) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let RawBody { bytes, share } = self;
        if bytes.len() <= INLINE_PARSE_BYTES {
            return parse(&bytes);
        }
        let work = move || {
            let parsed = parse(&bytes);
            drop((bytes, share));
            parsed
        };
        let parsed = gateway.compute(tenant, work).await;
        parsed.unwrap_or_else(|| Err(blocking::failed()))
    }
}

/// Parses a body as a JSON object.
pub(crate) fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    // serde would accept an array as the fields in order.
    match body.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(body).map_err(|error| {
            let message = error.to_string();
            let field = error.is_data().then(|| field_at(body, &error)).flatten();
            match field.filter(|_| !has_field_name(&message)) {
                Some(field) => body_problem(&format!("`{field}`: {message}")),
                None => body_problem(&message),
            }
        }),
        _ => Err(body_problem("it is not an object")),
    }
}

/// Refuses label names that serde_json treats specially when labels are read back.
pub(crate) fn check_label_names(labels: &BTreeMap<String, String>) -> Answer<()> {
    if labels.keys().any(|name| spec::is_reserved_json_key(name)) {
        Err(Problem::invalid(
            "the name of a label is one of those that readers of JSON have for themselves",
            "let it not begin with `$serde_json::`",
        ))
    } else {
        Ok(())
    }
}

/// Whether a serde error starts with a field name.
fn has_field_name(message: &str) -> bool {
    ["unknown field ", "missing field ", "duplicate field "]
        .iter()
        .any(|start| message.starts_with(start))
}

/// The top-level field whose value contains the parse error; `None` if the object was complete.
fn field_at(body: &[u8], error: &serde_json::Error) -> Option<String> {
    let before: usize = body
        .split_inclusive(|byte| *byte == b'\n')
        .take(error.line().checked_sub(1)?)
        .map(<[u8]>::len)
        .sum();
    let consumed = body.get(..before.saturating_add(error.column()).min(body.len()))?;
    let mut depth = 0_u32;
    let mut at = 0;
    let mut field = None;
    while let Some(byte) = consumed.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let start = at;
                while consumed.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if consumed[at] == b'\\' { 2 } else { 1 };
                }
                let text = consumed.get(start..at);
                at += 1;
                let rest = consumed.get(at..).unwrap_or_default().trim_ascii_start();
                if depth == 1 && rest.first() == Some(&b':') {
                    field = text;
                }
            }
            _ => {}
        }
    }
    let name = str::from_utf8(field.filter(|_| depth > 0)?).ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (name.len() <= 64 && name.bytes().all(plain)).then(|| name.to_owned())
}

/// The problem for a serde error, with the most similar field name as a hint.
pub(crate) fn body_problem(message: &str) -> Problem {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field "), quoted.next()) {
        (true, Some(unknown)) => {
            let known: Vec<_> = quoted.collect();
            let hint = match spec::closest_name(unknown, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the fields are {}", known.join(", ")),
            };
            let shown: String = unknown.chars().take(64).collect();
            Problem::invalid(
                format!("`{}` is not a known field", shown.escape_debug()),
                hint,
            )
        }
        _ => {
            // serde has already escaped the strings that it quotes.
            let shown: String = message
                .chars()
                .take(300)
                .map(|letter| {
                    if letter.is_control() {
                        '\u{fffd}'
                    } else {
                        letter
                    }
                })
                .collect();
            Problem::invalid(
                format!("the body cannot be read: {shown}"),
                "send one JSON object as in /openapi.json",
            )
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Gateway> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Answer<JsonBody<T>> {
        let tenant = tenant_of(&request);
        let raw = RawBody::from_request(request, gateway).await?;
        raw.read(gateway, &tenant, parse_object).await.map(JsonBody)
    }
}

/// A size, time or number, as on the command line or as a bare number.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Quantity {
    Text(String),
    Number(f64),
}

impl Quantity {
    /// Parses the quantity as a value of this field.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self, field: &str) -> Answer<T> {
        let text = match self {
            Quantity::Text(text) => text.clone(),
            Quantity::Number(number) => number.to_string(),
        };
        parse_field(&text, field)
    }
}

/// Parses text as a value of this field.
pub(crate) fn parse_field<T: FromStr<Err: Display>>(text: &str, field: &str) -> Answer<T> {
    text.parse().map_err(|error: T::Err| {
        Problem::invalid(
            format!("`{field}` has a bad value: {error}"),
            "write it as on the command line",
        )
    })
}

/// `true`, or the name of a provider.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Llm {
    Open(bool),
    Provider(String),
}

/// A file to put into the workspace before the run.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// Where, below `/workspace`.
    pub(crate) name: String,
    /// A kept artifact, `NAME` or `NAME@VERSION`.
    pub(crate) artifact: Option<String>,
    /// What is in it.
    pub(crate) text: Option<String>,
    /// The same for what is not text.
    pub(crate) base64: Option<String>,
}

/// A run: the options of `airlock run`. Sizes and times are texts such as `"512M"` and `"30s"`, or numbers of bytes and seconds.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunOrder {
    /// Exact argument list; no shell.
    pub(crate) command: Vec<String>,
    /// One that shows folders of the server's machine only for an admin, unless the operator lists it.
    pub(crate) profile: Option<String>,
    /// `native`, `docker`, `podman` or `container`.
    backend: Option<String>,
    /// An image, or a folder below one that the operator shares.
    image: Option<String>,
    entrypoint: Option<String>,
    writable_root: bool,
    /// `none`, `doors`, `open`; `host` only for an admin.
    network: Option<String>,
    /// Only for an admin.
    internal_network: Option<String>,
    /// `UID[:GID]`.
    user: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Stored secrets, each with the variable that it becomes. Only for an admin.
    secrets: BTreeMap<String, String>,
    /// Barriers without which it must not run.
    require: Vec<String>,
    timeout: Option<Quantity>,
    memory: Option<Quantity>,
    cpus: Option<Quantity>,
    cpu_time: Option<Quantity>,
    pids: Option<u32>,
    file_size: Option<Quantity>,
    open_files: Option<u32>,
    disk: Option<Quantity>,
    output: Option<Quantity>,
    /// A folder of the server's, below one that the operator shares.
    workspace: Option<String>,
    /// Leaves the folder as it is, and keeps changes apart: see `/v1/workspaces`.
    copy_on_write: bool,
    /// Applies the program's changes to the folder when it has ended; until then they are kept apart.
    staged: bool,
    /// Shows that folder without letting it be written.
    read_only_workspace: bool,
    /// `HOST:INSIDE[:ro|rw]`, below folders that the operator shares.
    mounts: Vec<String>,
    /// `NAME:INSIDE[:ro|rw]`. Only for an admin.
    volumes: Vec<String>,
    pub(crate) inputs: Vec<Input>,
    /// What to keep of `/workspace`.
    artifacts: Vec<String>,
    /// Only for an admin.
    allow_protected: Vec<String>,
    /// Patterns of files in the workspace that the program does not see, beside `.env`, keys and other credentials.
    /// `none`, only for an admin, hides none of those.
    hide: Vec<String>,
    /// Opens the LLM door: `true`, or the name of a provider.
    pub(crate) llm: Option<Llm>,
    inference: bool,
    allow_models: Vec<String>,
    budget_usd: Option<Quantity>,
    budget_tokens: Option<u64>,
    allow_hosts: Vec<String>,
    learn: bool,
    /// What the program reads on standard input.
    pub(crate) stdin: Option<String>,
    /// The same for what is not text.
    pub(crate) stdin_base64: Option<String>,
    pub(crate) contract: Option<String>,
    /// Only for an admin: names of runs are everybody's. Others find theirs by `task_id` or an `Idempotency-Key`.
    run_id: Option<String>,
    pub(crate) task_id: Option<String>,
    job_id: Option<String>,
}

impl RunOrder {
    /// Whether the request sets a run id or job id.
    pub(crate) fn has_own_id(&self) -> bool {
        self.run_id.is_some() || self.job_id.is_some()
    }

    /// Converts to the engine's request, and the bytes of standard input. Host paths are not
    /// checked yet.
    pub(crate) fn into_request(self) -> Answer<(RunRequest, Option<Vec<u8>>)> {
        let limits = self.limits()?;
        let stdin = self.stdin()?;
        let (artifact_inputs, inline_inputs) = split_inputs(self.inputs)?;
        let request = RunRequest {
            copy_on_write: self.copy_on_write,
            staged: self.staged,
            read_only_workspace: self.read_only_workspace,
            allowed_paths: None,
            command: self.command.into_iter().map(OsString::from).collect(),
            profile: self.profile,
            backend: self.backend,
            image: self.image.map(PathBuf::from),
            entrypoint: self.entrypoint.map(OsString::from),
            writable_root: self.writable_root,
            workspace: self.workspace.map(PathBuf::from),
            mounts: os_strings(self.mounts),
            volumes: os_strings(self.volumes),
            env: self
                .env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            // The environment of the server is not the caller's.
            caller_env: BTreeMap::new(),
            limits,
            network: self
                .network
                .map(|text| parse_field::<Network>(&text, "network"))
                .transpose()?,
            internal_network: self.internal_network,
            doors: Vec::new(),
            llm: match self.llm {
                None | Some(Llm::Open(false)) => None,
                Some(Llm::Open(true)) => Some(None),
                Some(Llm::Provider(name)) => Some(Some(name)),
            },
            inference: self.inference,
            allow_hosts: self.allow_hosts,
            learn: self.learn,
            allow_models: self.allow_models,
            budget: Budget {
                money: self
                    .budget_usd
                    .map(|money| money.parse::<Money>("budget_usd"))
                    .transpose()?,
                tokens: self.budget_tokens,
                ..Budget::default()
            },
            secrets: self
                .secrets
                .into_iter()
                .map(secret)
                .collect::<Result<_, _>>()?,
            // Text inputs name files of this machine.
            inputs: Vec::new(),
            inline_inputs,
            artifact_inputs,
            artifacts: self.artifacts.into_iter().map(PathBuf::from).collect(),
            allow_protected: self
                .allow_protected
                .into_iter()
                .map(PathBuf::from)
                .collect(),
            hide: self.hide,
            require: self
                .require
                .iter()
                .map(|name| parse_field::<Barrier>(name, "require"))
                .collect::<Result<_, _>>()?,
            user: self
                .user
                .map(|text| parse_field::<User>(&text, "user"))
                .transpose()?,
            stdin: stdin.is_some(),
            tty: None,
            contract: self
                .contract
                .map(|text| parse_field::<Contract>(&text, "contract"))
                .transpose()?
                .unwrap_or_default(),
            run_id: self.run_id,
            task_id: self.task_id,
            job_id: self.job_id,
        };
        Ok((request, stdin))
    }

    fn limits(&self) -> Answer<LimitSet> {
        fn parse<T: FromStr<Err: Display>>(
            value: &Option<Quantity>,
            field: &str,
        ) -> Answer<Option<T>> {
            value.as_ref().map(|value| value.parse(field)).transpose()
        }
        Ok(LimitSet {
            memory: parse(&self.memory, "memory")?,
            cpu_time: parse(&self.cpu_time, "cpu_time")?,
            cpus: parse(&self.cpus, "cpus")?,
            wall_time: parse(&self.timeout, "timeout")?,
            pids: self.pids,
            file_size: parse(&self.file_size, "file_size")?,
            open_files: self.open_files,
            disk: parse(&self.disk, "disk")?,
            output: parse(&self.output, "output")?,
            // The other limits can be set only in profiles.
            ..LimitSet::default()
        })
    }

    fn stdin(&self) -> Answer<Option<Vec<u8>>> {
        match (&self.stdin, &self.stdin_base64) {
            (Some(_), Some(_)) => Err(Problem::invalid(
                "`stdin` and `stdin_base64` exclude each other",
                "leave one of them away",
            )),
            (Some(text), None) => Ok(Some(text.clone().into_bytes())),
            (None, Some(text)) => decoded(text, "stdin_base64").map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn os_strings(list: Vec<String>) -> Vec<OsString> {
    list.into_iter().map(OsString::from).collect()
}

pub(crate) fn decoded(text: &str, field: &str) -> Answer<Vec<u8>> {
    STANDARD.decode(text).map_err(|_| {
        Problem::invalid(
            format!("`{field}` is not base64"),
            "use the standard alphabet, with padding",
        )
    })
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// `NAME=VARIABLE`; split at the first `=`.
fn secret((name, variable): (String, String)) -> Answer<OsString> {
    if name.contains('=') {
        Err(Problem::invalid(
            "no secret has `=` in its name",
            "see `airlock secret list`",
        ))
    } else {
        Ok(format!("{name}={variable}").into())
    }
}

type InlineInput = (PathBuf, Arc<[u8]>);
type StoredInput = (PathBuf, PathBuf, Option<u64>);

/// Splits inputs into stored artifacts and inline contents.
fn split_inputs(inputs: Vec<Input>) -> Answer<(Vec<StoredInput>, Vec<InlineInput>)> {
    let mut stored = Vec::new();
    let mut inline = Vec::new();
    for Input {
        name,
        artifact,
        text,
        base64,
    } in inputs
    {
        match (artifact, text, base64) {
            (Some(artifact), None, None) => {
                let (artifact, version) = versioned(&artifact);
                stored.push((name.into(), artifact.into(), version));
            }
            (None, Some(text), None) => inline.push((name.into(), Arc::from(text.into_bytes()))),
            (None, None, Some(text)) => {
                inline.push((name.into(), Arc::from(decoded(&text, "inputs.base64")?)))
            }
            _ => {
                return Err(Problem::invalid(
                    format!("the input `{}` must have one source", name.escape_debug()),
                    "give `artifact`, `text` or `base64`",
                ));
            }
        }
    }
    Ok((stored, inline))
}

/// `NAME` or `NAME@VERSION`; an `@` without a number after it belongs to the name.
fn versioned(text: &str) -> (&str, Option<u64>) {
    let named = text
        .rsplit_once('@')
        .and_then(|(name, version)| Some((name, version.parse().ok()?)));
    named.map_or((text, None), |(name, version)| (name, Some(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Answer<RunRequest> {
        Ok(parse_object::<RunOrder>(text.as_bytes())?.into_request()?.0)
    }

    fn message(text: &str) -> String {
        let problem = serde_json::to_value(order(text).unwrap_err()).unwrap();
        format!(
            "{}; {}",
            problem["title"].as_str().unwrap(),
            problem["detail"].as_str().unwrap()
        )
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_told_with_its_field_and_as_it_was_written() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "only that they are read matters")]
        struct Two {
            first: Option<Vec<String>>,
            second: Option<u32>,
        }
        let message = |text: &str| {
            let problem = parse_object::<Two>(text.as_bytes()).unwrap_err();
            serde_json::to_value(problem).unwrap()["title"].clone()
        };
        assert_eq!(
            message(r#"{"first": "echo hi"}"#),
            r#"the body cannot be read: `first`: invalid type: string "echo hi", expected a sequence at line 1 column 19"#
        );
        let nested = message("{\"first\": [\"second\\\":\",\n {\"second\": 1}], \"second\": 2}");
        assert!(
            nested
                .as_str()
                .unwrap()
                .contains("`first`: invalid type: map"),
            "{nested}"
        );
        let second = message("{\"first\": [],\n\"second\": -1}");
        assert!(
            second.as_str().unwrap().contains("`second`: invalid value"),
            "{second}"
        );
        let broken = message("{\"first\": [}");
        assert!(!broken.as_str().unwrap().contains('`'), "{broken}");
    }

    #[test]
    fn a_field_that_is_not_known_is_named_with_the_nearest_one() {
        assert_eq!(
            message(r#"{"memroy":1}"#),
            "`memroy` is not a known field; did you mean `memory`?"
        );
        assert!(
            message(r#"{"colour":1}"#)
                .starts_with("`colour` is not a known field; the fields are command,")
        );
        assert!(message("[]").starts_with("the body cannot be read: "));
        assert!(message("").starts_with("the body cannot be read: "));
        assert!(message(r#"{"command":["a"],"command":["b"]}"#).contains("duplicate field"));
    }

    #[tokio::test]
    async fn a_body_takes_room_for_what_is_there_within_the_share_of_its_key() {
        let arrive = async |max, shares: FairShareLimiter, text: &'static str| {
            let share = shares.guard("her");
            read_body(text.into(), max, &shares, share)
                .await
                .map(|body| body.bytes)
                .map_err(|problem| problem.status().as_u16())
        };
        assert_eq!(
            arrive(9, FairShareLimiter::new(10, 5), "12345").await,
            Ok(Bytes::from("12345"))
        );
        assert_eq!(
            arrive(9, FairShareLimiter::new(10, 5), "123456").await,
            Err(429)
        );
        assert_eq!(
            arrive(9, FairShareLimiter::new(5, 10), "123456").await,
            Err(503)
        );
        assert_eq!(
            arrive(5, FairShareLimiter::new(10, 10), "123456").await,
            Err(413)
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_body_that_waits_for_its_turn_counts_until_it_is_parsed() {
        let fixture = crate::workspaces::tests::Fixture::new("bodies", &[]);
        let gateway = fixture.gateway(Vec::new());
        let shares = gateway.body_bytes();
        let receive = async || {
            let body = " ".repeat(2 * INLINE_PARSE_BYTES) + "{}";
            let share = shares.guard("her");
            let received = read_body(body.into(), 1 << 20, shares, share).await;
            received.expect("it is within the limits")
        };
        // All that a tenant may have can be acquired while none of its bodies is there.
        let is_free = || {
            let mut all = shares.guard("her");
            shares.acquire(&mut all, shares.max_per_tenant()).is_ok()
        };
        assert!(is_free(), "the control");
        // Another piece of her work is under way.
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let long = gateway.compute("her", move || {
            begin.send(()).unwrap();
            ends.recv().unwrap();
        });
        let mut long = std::pin::pin!(long);
        tokio::select! {
            _ = long.as_mut() => unreachable!("it was not told to end"),
            is_begun = begun => is_begun.unwrap(),
        }
        let parse = |body: &[u8]| parse_object::<BTreeMap<String, String>>(body);
        let gone = receive().await.read(&gateway, "her", parse);
        assert!(result_now(gone).await.is_none());
        assert!(is_free(), "a body whose client is gone is not kept");
        let waiting = receive().await.read(&gateway, "her", parse);
        let mut waiting = std::pin::pin!(waiting);
        assert!(result_now(waiting.as_mut()).await.is_none());
        assert!(!is_free(), "it waits");
        end.send(()).unwrap();
        let (_, parsed) = tokio::join!(long, waiting);
        assert_eq!(parsed.ok(), Some(BTreeMap::new()));
        assert!(is_free(), "it is parsed");
    }

    /// The result of a future, if it is there at once.
    async fn result_now<T>(future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = future => Some(done),
            () = std::future::ready(()) => None,
        }
    }

    /// A body that arrives in these pieces.
    struct Pieces(std::collections::VecDeque<Bytes>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            let piece = self.0.pop_front();
            std::task::Poll::Ready(piece.map(|piece| Ok(http_body::Frame::data(piece))))
        }
    }

    #[tokio::test]
    async fn members_are_counted_outside_of_texts_however_the_body_arrives() {
        let check = async |text: String| {
            let shares = FairShareLimiter::new(1 << 30, 1 << 30);
            let pieces = text.as_bytes().chunks(1000).map(Bytes::copy_from_slice);
            let body = axum::body::Body::new(Pieces(pieces.collect()));
            let read = read_body(body, 1 << 20, &shares, shares.guard("her")).await;
            read.map(|body| assert_eq!(body.bytes, text)).is_ok()
        };
        let list = |count: usize| format!("{{\"a\":[1{}]}}", ",1".repeat(count - 1));
        assert!(check(list(MAX_MEMBERS)).await && !check(list(MAX_MEMBERS + 1)).await);
        let text = ",".repeat(MAX_MEMBERS);
        assert!(check(format!("{{\"a\":\"\\\"{text}\"}}")).await);
        let behind = ",1".repeat(MAX_MEMBERS);
        assert!(!check(format!("{{\"a\":[\"\\\\\"{behind}]}}")).await);
    }

    #[test]
    fn quantities_are_texts_or_numbers() {
        let asked =
            order(r#"{"timeout":"2s","memory":1048576,"cpus":1.5,"budget_usd":0.5,"llm":"p"}"#)
                .unwrap();
        assert_eq!(asked.limits.wall_time, "2s".parse().ok());
        assert_eq!(asked.limits.memory, "1M".parse().ok());
        assert_eq!(asked.limits.cpus, "1.5".parse().ok());
        assert_eq!(asked.budget.money, Some(Money(500_000_000)));
        assert_eq!(asked.llm, Some(Some("p".to_owned())));
        assert!(
            message(r#"{"memory":"lots"}"#)
                .starts_with("`memory` has a bad value: `lots` is not a size")
        );
        assert!(message(r#"{"network":"wide"}"#).starts_with("`network` has a bad value"));
    }

    #[test]
    fn an_input_has_one_source() {
        let inputs = r#"{"inputs":[{"name":"a","text":"x"},{"name":"b","base64":"AP8="},{"name":"c","artifact":"d@2"}]}"#;
        let asked = order(inputs).unwrap();
        assert_eq!(asked.artifact_inputs, [("c".into(), "d".into(), Some(2))]);
        let inline: Vec<_> = asked
            .inline_inputs
            .iter()
            .map(|(name, bytes)| (name.as_path(), &bytes[..]))
            .collect();
        assert_eq!(
            inline,
            [("a".as_ref(), &b"x"[..]), ("b".as_ref(), &b"\0\xff"[..])]
        );
        assert!(
            message(r#"{"inputs":[{"name":"a"}]}"#)
                .starts_with("the input `a` must have one source")
        );
        assert!(
            message(r#"{"inputs":[{"name":"a","text":"","artifact":"b"}]}"#).contains("one source")
        );
        assert_eq!(versioned("b@c"), ("b@c", None));
        assert_eq!(versioned("b@c@2"), ("b@c", Some(2)));
        assert!(message(r#"{"stdin":"a","stdin_base64":"YQ=="}"#).contains("exclude each other"));
    }

    #[test]
    fn no_name_that_a_caller_chooses_becomes_a_file_of_this_machine() {
        let asked = order(r#"{"inputs":[{"name":"y=/etc/passwd","artifact":"b"}]}"#).unwrap();
        assert!(asked.inputs.is_empty());
        assert_eq!(
            asked.artifact_inputs,
            [("y=/etc/passwd".into(), "b".into(), None)]
        );
        assert!(message(r#"{"secrets":{"a=B":"C"}}"#).starts_with("no secret has `=` in its name"));
    }
}
