//! What requests and answers look like as JSON. Only here are names of fields; everything behind is the engine's.

use crate::{
    Caller, Gateway, Problem,
    problem::Answer,
    shares::{Full, Share, Shares},
};
use axum::extract::{FromRequest, Request};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use http::{StatusCode, header::CONTENT_LENGTH};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use spec::{Barrier, Budget, Contract, Maximum, Money, Network, RunRequest, User};
use std::{
    collections::BTreeMap, ffi::OsString, fmt::Display, path::PathBuf, str::FromStr, sync::Arc,
    time::Duration,
};
use utoipa::ToSchema;

/// How long a body may take to arrive.
const LONGEST_ARRIVAL: Duration = Duration::from_secs(60);

/// The bytes of a body, within the bound for JSON.
pub(crate) struct Raw(pub(crate) Bytes);

/// A body as JSON, whatever content type it says it has.
pub(crate) struct Body<T>(pub(crate) T);

impl FromRequest<Gateway> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Answer<Raw> {
        let most = gateway.bounds().body;
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse::<usize>().ok())
            .is_some_and(|length| length > most)
        {
            return Err(too_large(most));
        }
        let key = request
            .extensions()
            .get::<Caller>()
            .map_or("", |caller| caller.tenant.as_str());
        let (shares, share) = (gateway.arriving(), gateway.arriving().of(key));
        match tokio::time::timeout(
            LONGEST_ARRIVAL,
            arrived(request.into_body(), most, shares, share),
        )
        .await
        {
            Ok(bytes) => Ok(Raw(bytes?)),
            Err(_) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the body did not arrive in time",
                Some(format!(
                    "send it within {} seconds",
                    LONGEST_ARRIVAL.as_secs()
                )),
            )),
        }
    }
}

/// All of a body. Room is taken for what is there, not for what was announced: a word alone takes it from nobody.
async fn arrived(
    mut body: axum::body::Body,
    most: usize,
    shares: &Shares,
    mut share: Share,
) -> Answer<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("the body broke off", "send all of it"))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if bytes.len() + piece.len() > most {
            return Err(too_large(most));
        }
        shares.add(&mut share, piece.len()).map_err(|full: Full| {
            full.problem("bytes of bodies that are arriving", "try again in a moment")
        })?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

fn too_large(most: usize) -> Problem {
    let hint = format!("send at most {most} bytes; keep large files as artifacts");
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "quota_exceeded",
        "the body is too large",
        Some(hint),
    )
}

impl Raw {
    /// As JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Answer<T> {
        // A list would be taken for the fields in their order.
        match self.0.trim_ascii_start().first() {
            Some(b'{') => {
                serde_json::from_slice(&self.0).map_err(|error| unreadable(&error.to_string()))
            }
            _ => Err(unreadable("it is not an object")),
        }
    }
}

/// Refuses labels that others, who read them as JSON, would take for something else.
pub(crate) fn check_names(labels: &BTreeMap<String, String>) -> Answer<()> {
    match labels.keys().any(|name| spec::is_of_the_parser(name)) {
        false => Ok(()),
        true => Err(Problem::invalid(
            "the name of a label is one of those that readers of JSON have for themselves",
            "let it not begin with `$serde_json::`",
        )),
    }
}

/// What serde says, with the field that was most likely meant.
pub(crate) fn unreadable(said: &str) -> Problem {
    let mut quoted = said.split('`').skip(1).step_by(2);
    match (said.starts_with("unknown field "), quoted.next()) {
        (true, Some(unknown)) => {
            let known: Vec<_> = quoted.collect();
            let hint = match spec::nearest(unknown, &known) {
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
            let shown: String = said.chars().take(300).collect();
            Problem::invalid(
                format!("the body cannot be read: {}", shown.escape_debug()),
                "send one JSON object as in /openapi.json",
            )
        }
    }
}

impl<T: DeserializeOwned> FromRequest<Gateway> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Answer<Body<T>> {
        Raw::from_request(request, gateway).await?.json().map(Body)
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
    /// What it means as a value of this field.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self, field: &str) -> Answer<T> {
        let text = match self {
            Quantity::Text(text) => text.clone(),
            Quantity::Number(number) => number.to_string(),
        };
        word(&text, field)
    }
}

/// What a word means as a value of this field.
pub(crate) fn word<T: FromStr<Err: Display>>(text: &str, field: &str) -> Answer<T> {
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
    /// Whether it says what it, or the job that it belongs to, is called.
    pub(crate) fn is_named(&self) -> bool {
        self.run_id.is_some() || self.job_id.is_some()
    }

    /// As the rest of Airlock knows it, with what is written to its standard input. Host paths have not been looked at.
    pub(crate) fn into_request(self) -> Answer<(RunRequest, Option<Vec<u8>>)> {
        let (limits, stdin) = (self.limits()?, self.stdin()?);
        let (inputs_kept, inputs_given) = sorted(self.inputs)?;
        let request = RunRequest {
            copy_on_write: self.copy_on_write,
            read_only_workspace: self.read_only_workspace,
            exact: None,
            command: self.command.into_iter().map(OsString::from).collect(),
            profile: self.profile,
            backend: self.backend,
            image: self.image.map(PathBuf::from),
            entrypoint: self.entrypoint.map(OsString::from),
            writable_root: self.writable_root,
            workspace: self.workspace.map(PathBuf::from),
            mounts: texts(self.mounts),
            volumes: texts(self.volumes),
            env: self
                .env
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            // What the server finds around itself is not the caller's.
            caller_env: BTreeMap::new(),
            limits,
            network: self
                .network
                .map(|text| word::<Network>(&text, "network"))
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
            // Texts name files of this machine.
            inputs: Vec::new(),
            inputs_given,
            inputs_kept,
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
                .map(|name| word::<Barrier>(name, "require"))
                .collect::<Result<_, _>>()?,
            user: self
                .user
                .map(|text| word::<User>(&text, "user"))
                .transpose()?,
            stdin: stdin.is_some(),
            tty: None,
            contract: self
                .contract
                .map(|text| word::<Contract>(&text, "contract"))
                .transpose()?
                .unwrap_or_default(),
            run_id: self.run_id,
            task_id: self.task_id,
            job_id: self.job_id,
        };
        Ok((request, stdin))
    }

    fn limits(&self) -> Answer<Maximum> {
        fn of<T: FromStr<Err: Display>>(
            value: &Option<Quantity>,
            field: &str,
        ) -> Answer<Option<T>> {
            value.as_ref().map(|value| value.parse(field)).transpose()
        }
        Ok(Maximum {
            memory: of(&self.memory, "memory")?,
            cpu_time: of(&self.cpu_time, "cpu_time")?,
            cpus: of(&self.cpus, "cpus")?,
            wall_time: of(&self.timeout, "timeout")?,
            pids: self.pids,
            file_size: of(&self.file_size, "file_size")?,
            open_files: self.open_files,
            disk: of(&self.disk, "disk")?,
            output: of(&self.output, "output")?,
            // The others are for profiles.
            ..Maximum::default()
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

fn texts(list: Vec<String>) -> Vec<OsString> {
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

/// `NAME=VARIABLE`, which is split at the first sign.
fn secret((name, variable): (String, String)) -> Answer<OsString> {
    match name.contains('=') {
        true => Err(Problem::invalid(
            "no secret has `=` in its name",
            "see `airlock secret list`",
        )),
        false => Ok(format!("{name}={variable}").into()),
    }
}

type Given = (PathBuf, Arc<[u8]>);
type Kept = (PathBuf, PathBuf, Option<u64>);

/// Kept artifacts by their names, and what came along.
fn sorted(inputs: Vec<Input>) -> Answer<(Vec<Kept>, Vec<Given>)> {
    let (mut kept, mut given) = (Vec::new(), Vec::new());
    for Input {
        name,
        artifact,
        text,
        base64,
    } in inputs
    {
        match (artifact, text, base64) {
            (Some(artifact), None, None) => {
                let (artifact, version) = versioned(&artifact)?;
                kept.push((name.into(), artifact.into(), version));
            }
            (None, Some(text), None) => given.push((name.into(), Arc::from(text.into_bytes()))),
            (None, None, Some(text)) => {
                given.push((name.into(), Arc::from(decoded(&text, "inputs.base64")?)))
            }
            _ => {
                return Err(Problem::invalid(
                    format!("the input `{}` must have one source", name.escape_debug()),
                    "give `artifact`, `text` or `base64`",
                ));
            }
        }
    }
    Ok((kept, given))
}

/// `NAME` or `NAME@VERSION`.
fn versioned(text: &str) -> Answer<(&str, Option<u64>)> {
    match text.rsplit_once('@') {
        None => Ok((text, None)),
        Some((name, version)) => Ok((name, Some(word(version, "inputs.artifact")?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Answer<RunRequest> {
        Ok(Raw(Bytes::from(text.to_owned()))
            .json::<RunOrder>()?
            .into_request()?
            .0)
    }

    fn said(text: &str) -> String {
        let problem = serde_json::to_value(order(text).unwrap_err()).unwrap();
        format!(
            "{}; {}",
            problem["title"].as_str().unwrap(),
            problem["detail"].as_str().unwrap()
        )
    }

    #[test]
    fn a_field_that_is_not_known_is_named_with_the_nearest_one() {
        assert_eq!(
            said(r#"{"memroy":1}"#),
            "`memroy` is not a known field; did you mean `memory`?"
        );
        assert!(
            said(r#"{"colour":1}"#)
                .starts_with("`colour` is not a known field; the fields are command,")
        );
        assert!(said("[]").starts_with("the body cannot be read: "));
        assert!(said("").starts_with("the body cannot be read: "));
        assert!(said(r#"{"command":["a"],"command":["b"]}"#).contains("duplicate field"));
    }

    #[tokio::test]
    async fn a_body_takes_room_for_what_is_there_within_the_share_of_its_key() {
        let arrive = async |most, shares: Shares, text: &'static str| {
            let share = shares.of("her");
            arrived(text.into(), most, &shares, share)
                .await
                .map_err(|problem| problem.status().as_u16())
        };
        assert_eq!(
            arrive(9, Shares::new(10, 5), "12345").await,
            Ok(Bytes::from("12345"))
        );
        assert_eq!(arrive(9, Shares::new(10, 5), "123456").await, Err(429));
        assert_eq!(arrive(9, Shares::new(5, 10), "123456").await, Err(503));
        assert_eq!(arrive(5, Shares::new(10, 10), "123456").await, Err(413));
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
            said(r#"{"memory":"lots"}"#)
                .starts_with("`memory` has a bad value: `lots` is not a size")
        );
        assert!(said(r#"{"network":"wide"}"#).starts_with("`network` has a bad value"));
    }

    #[test]
    fn an_input_has_one_source() {
        let inputs = r#"{"inputs":[{"name":"a","text":"x"},{"name":"b","base64":"AP8="},{"name":"c","artifact":"d@2"}]}"#;
        let asked = order(inputs).unwrap();
        assert_eq!(asked.inputs_kept, [("c".into(), "d".into(), Some(2))]);
        let given: Vec<_> = asked
            .inputs_given
            .iter()
            .map(|(name, bytes)| (name.as_path(), &bytes[..]))
            .collect();
        assert_eq!(
            given,
            [("a".as_ref(), &b"x"[..]), ("b".as_ref(), &b"\0\xff"[..])]
        );
        assert!(
            said(r#"{"inputs":[{"name":"a"}]}"#).starts_with("the input `a` must have one source")
        );
        assert!(
            said(r#"{"inputs":[{"name":"a","text":"","artifact":"b"}]}"#).contains("one source")
        );
        assert!(said(r#"{"inputs":[{"name":"a","artifact":"b@c"}]}"#).contains("inputs.artifact"));
        assert!(said(r#"{"stdin":"a","stdin_base64":"YQ=="}"#).contains("exclude each other"));
    }

    #[test]
    fn no_name_that_a_caller_chooses_becomes_a_file_of_this_machine() {
        let asked = order(r#"{"inputs":[{"name":"y=/etc/passwd","artifact":"b"}]}"#).unwrap();
        assert!(asked.inputs.is_empty());
        assert_eq!(
            asked.inputs_kept,
            [("y=/etc/passwd".into(), "b".into(), None)]
        );
        assert!(said(r#"{"secrets":{"a=B":"C"}}"#).starts_with("no secret has `=` in its name"));
    }
}
