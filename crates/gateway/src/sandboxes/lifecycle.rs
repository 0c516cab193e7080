//! Life cycle of sandboxes: create, list, show, pause, resume, fork, destroy.

use super::{
    body::{QueryParams, parse_json, run_to_completion},
    registry::{NewSandbox, SandboxEntry},
    wire::{
        LifetimeOptions, SandboxList, SandboxOrder, SandboxState, SandboxStatus, check_labels,
        optional_duration,
    },
};
use crate::{
    Caller, Gateway, Problem, Scope, json_response,
    path::Path,
    problem::Answer,
    runs::host_paths,
    wire::{RawBody, RunOrder, body_problem},
    workspaces,
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header::LOCATION};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use spec::{RunRequest, SessionRequest};
use std::collections::BTreeMap;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

const MAX_IDEMPOTENCY_KEY: usize = 255;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(show, destroy))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(fork))
}

fn idempotency_key(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = key
        .to_str()
        .ok()
        .filter(|key| (1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()));
    let Some(key) = key else {
        let hint = format!("give 1 to {MAX_IDEMPOTENCY_KEY} printable characters");
        return Err(Problem::invalid(
            "this Idempotency-Key cannot be used",
            hint,
        ));
    };
    Ok(Some(key.to_owned()))
}

/// The digest of a request, by which a repetition is known.
fn digest(what: &str, body: &[u8]) -> Vec<u8> {
    let digest = Sha256::new()
        .chain_update(what)
        .chain_update([0])
        .chain_update(body)
        .finalize();
    digest.to_vec()
}

fn created(entry: &SandboxEntry) -> Response {
    let location = format!("/v1/sandboxes/{}", entry.id);
    (
        StatusCode::CREATED,
        [(LOCATION, location)],
        Json(entry.view()),
    )
        .into_response()
}

/// Makes a sandbox: a box that stays, in which programs can be started until it is ended.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes one sandbox however often it is sent")),
    request_body(content = SandboxOrder),
    responses(
        (status = 201, body = SandboxState, headers(("Location" = String))),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "The Idempotency-Key was used for another request"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    headers: HeaderMap,
    body: RawBody,
) -> Answer<Response> {
    caller.require(Scope::Sandboxes)?;
    let key = idempotency_key(&headers)?;
    let read = |body: &[u8]| {
        let idempotency = key.map(|key| (key, digest("create", body)));
        Ok((idempotency, parse_order(body)?))
    };
    let (idempotency, (options, run)) = body.read(&gateway, &caller.tenant, read).await?;
    check_labels(&options.labels)?;
    let request = SessionRequest {
        run: host_paths::admit(&gateway, &caller, run)?,
        idle: optional_duration(options.idle_timeout.as_ref(), "idle_timeout")?,
        lifetime: optional_duration(options.lifetime.as_ref(), "lifetime")?,
    };
    let new_sandbox = NewSandbox {
        is_of_admin: caller.is_admin(),
        owner: caller.tenant,
        labels: options.labels,
        request,
        fork_of: None,
        idempotency,
    };
    Ok(created(&*gateway.open(new_sandbox).await?))
}

/// Fields as raw JSON: parsing and re-serializing could change their values.
type RawFields = BTreeMap<String, Box<RawValue>>;

fn read<T: DeserializeOwned>(fields: &RawFields) -> Answer<T> {
    let read = serde_json::to_vec(fields).and_then(|text| serde_json::from_slice(&text));
    read.map_err(|error| {
        // The position in the error refers to the rebuilt JSON, not to the request.
        let message = error.to_string();
        body_problem(
            message
                .rsplit_once(" at line ")
                .map_or(&*message, |(message, _)| message),
        )
    })
}

/// The options of a sandbox are those of a run and its lifetime options.
fn parse_order(body: &[u8]) -> Answer<(LifetimeOptions, RunRequest)> {
    let mut fields: RawFields = parse_json(body)?;
    let own = ["idle_timeout", "lifetime", "labels"];
    let own: RawFields = own
        .iter()
        .filter_map(|name| fields.remove_entry(*name))
        .collect();
    let options = read(&own)?;
    let order: RunOrder = read(&fields)?;
    let run = order.into_request()?.0;
    match run.run_id {
        None => Ok((options, run)),
        Some(_) => Err(Problem::invalid(
            "`run_id` is not of a sandbox",
            "leave it away; `labels` are words of your own",
        )),
    }
}

/// Which are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct SandboxesQuery {
    /// Only those that are so.
    status: Option<SandboxStatus>,
}

/// Lists sandboxes, the oldest first; ended ones for a while, too.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes", params(SandboxesQuery),
    responses(
        (status = 200, body = SandboxList),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    QueryParams(query): QueryParams<SandboxesQuery>,
) -> Answer<Response> {
    let views = gateway
        .entries(&caller)?
        .into_iter()
        .map(|entry| entry.view());
    let sandboxes = views
        .filter(|view| query.status.is_none_or(|status| status == view.status))
        .collect();
    json_response::from_value(&gateway, &caller, &SandboxList { sandboxes })
}

/// Shows a sandbox. Looking does not count as using it.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxState),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn show(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<SandboxState>> {
    Ok(Json(gateway.entry(&caller, &id)?.view()))
}

/// How a sandbox ends.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct EndQuery {
    /// Whether the changes in its workspace's layer are applied to the folder then. Unless said, those of `staged` are, and
    /// those of `copy_on_write` are kept.
    apply: Option<bool>,
}

/// Ends a sandbox with everything in it, and waits until it is gone.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path), EndQuery),
    responses(
        (status = 200, body = SandboxState, description = "It is gone. `workspace` says what was applied"),
        (status = 202, body = SandboxState, description = "It is being ended, and that takes unusually long"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "With `apply=true`: the folder has changed at the same names, or the sandbox has no layer. It goes on"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn destroy(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    QueryParams(query): QueryParams<EndQuery>,
) -> Answer<Response> {
    let entry = gateway.entry(&caller, &id)?;
    // An ended sandbox has nothing to apply here; its workspace may still be committed.
    if query.apply == Some(true) && entry.session().is_ok() {
        workspaces::check_applicable(&gateway, &caller, &id).await?;
    }
    let status = entry.end_soon(query.apply).await;
    Ok((status, Json(entry.view())).into_response())
}

/// Stops everything in a sandbox where it is. It keeps its memory and uses no CPU.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxState),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is paused already"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "This host cannot freeze it"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn pause(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<SandboxState>> {
    let session = gateway.session(&caller, &id)?;
    if session.state().is_asked_to_pause {
        return Err(Problem::conflict(
            "this sandbox is paused already",
            "let it go on with `…/resume`",
        ));
    }
    run_to_completion(async move { Ok(session.pause().await?) }).await?;
    Ok(Json(gateway.entry(&caller, &id)?.view()))
}

/// Lets a paused sandbox go on.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxState),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not paused"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn resume(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<SandboxState>> {
    let session = gateway.session(&caller, &id)?;
    if !session.state().is_asked_to_pause {
        return Err(Problem::conflict(
            "this sandbox is not paused",
            "only a paused one can go on",
        ));
    }
    gateway.session_for_work(&caller, &id)?;
    run_to_completion(async move { Ok(session.resume().await?) }).await?;
    Ok(Json(gateway.entry(&caller, &id)?.view()))
}

/// Makes a sandbox like this one, with a copy of its workspace. Programs are not copied.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes",
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes one sandbox however often it is sent"),
    ),
    request_body(content = Option<LifetimeOptions>, description = "What shall be other than in the first"),
    responses(
        (status = 201, body = SandboxState, headers(("Location" = String))),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "The Idempotency-Key was used for another request"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn fork(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: RawBody,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let key = idempotency_key(&headers)?;
    let what = format!("fork {id}");
    let read = move |body: &[u8]| {
        let idempotency = key.map(|key| (key, digest(&what, body)));
        Ok((idempotency, parse_json::<LifetimeOptions>(body)?))
    };
    let (idempotency, options) = body.read(&gateway, &caller.tenant, read).await?;
    check_labels(&options.labels)?;
    // Without inputs: they are in the copied workspace in their current state.
    let mut request = gateway.entry(&caller, &id)?.request()?;
    request.idle =
        optional_duration(options.idle_timeout.as_ref(), "idle_timeout")?.or(request.idle);
    request.lifetime =
        optional_duration(options.lifetime.as_ref(), "lifetime")?.or(request.lifetime);
    // A host folder is not shared: the fork has its own copy.
    request.run.workspace = None;
    request.run.run_id = None;
    let new_sandbox = NewSandbox {
        is_of_admin: caller.is_admin(),
        owner: caller.tenant,
        labels: options.labels,
        request,
        fork_of: Some(session),
        idempotency,
    };
    Ok(created(&*gateway.open(new_sandbox).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_what_it_says_and_not_what_it_quotes() {
        let labels = r#"{"$serde_json::private::RawValue":"{\"a\":\"b\"}"}"#;
        let usual: serde_json::Value = serde_json::from_str(labels).unwrap();
        assert_eq!(
            usual,
            serde_json::json!({ "a": "b" }),
            "the control: the parser takes it for what it quotes"
        );
        let body = format!(r#"{{"labels":{labels},"lifetime":"1h","network":"none"}}"#);
        let (options, _) = parse_order(body.as_bytes()).unwrap();
        let query = (
            "$serde_json::private::RawValue".to_owned(),
            r#"{"a":"b"}"#.to_owned(),
        );
        assert!(
            check_labels(&options.labels).is_err(),
            "whoever reads it of us would be misled"
        );
        assert_eq!(options.labels.into_iter().collect::<Vec<_>>(), [query]);
    }

    #[test]
    fn what_cannot_be_read_is_told_without_a_place() {
        let told = |body: &'static str| {
            serde_json::to_string(&parse_order(body.as_bytes()).unwrap_err()).unwrap()
        };
        let message = told(r#"{"lifetime":[],"labels":7}"#);
        assert!(
            message.contains("expected") && !message.contains(" at line "),
            "{message}"
        );
        assert!(told(r#"{"comand":[]}"#).contains("`comand`"));
    }
}
