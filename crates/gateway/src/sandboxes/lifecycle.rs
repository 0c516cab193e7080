//! Sandboxes as a whole: make, list, show, pause, resume, fork, end.

use super::{
    body::{Asked, parsed, to_the_end},
    registry::{Entry, Opening},
    wire::{SandboxList, SandboxOrder, SandboxState, SandboxStatus, Stay, check_labels, span},
};
use crate::{
    Caller, Gateway, Problem, Scope, fitting,
    path::Path,
    problem::Answer,
    runs::host,
    wire::{Raw, RunOrder, unreadable},
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

const LONGEST_KEY: usize = 255;

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(show, destroy))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(fork))
}

/// The key of idempotency, and a digest of what is asked by it.
fn replay(headers: &HeaderMap, what: &str, body: &[u8]) -> Answer<Option<(String, Vec<u8>)>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = key
        .to_str()
        .ok()
        .filter(|key| (1..=LONGEST_KEY).contains(&key.len()));
    let Some(key) = key else {
        let hint = format!("give 1 to {LONGEST_KEY} printable characters");
        return Err(Problem::invalid(
            "this Idempotency-Key cannot be used",
            hint,
        ));
    };
    let digest = Sha256::new()
        .chain_update(what)
        .chain_update([0])
        .chain_update(body)
        .finalize();
    Ok(Some((key.to_owned(), digest.to_vec())))
}

fn created(entry: &Entry) -> Response {
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
    body: Raw,
) -> Answer<Response> {
    caller.require(Scope::Sandboxes)?;
    let (stay, run) = split(&body)?;
    check_labels(&stay.labels)?;
    let request = SessionRequest {
        run: host::admit(&gateway, &caller, run)?,
        idle: span(stay.idle_timeout.as_ref(), "idle_timeout")?,
        lifetime: span(stay.lifetime.as_ref(), "lifetime")?,
    };
    let replay = replay(&headers, "create", &body.0)?;
    let opening = Opening {
        owner: caller.tenant,
        labels: stay.labels,
        request,
        fork_of: None,
        replay,
    };
    Ok(created(&*gateway.open(opening).await?))
}

/// Fields as they are written: as values of the parser's own they could be others.
type Written = BTreeMap<String, Box<RawValue>>;

fn read<T: DeserializeOwned>(fields: &Written) -> Answer<T> {
    let read = serde_json::to_vec(fields).and_then(|text| serde_json::from_slice(&text));
    read.map_err(|error| {
        // Where it stands is not where it stood.
        let said = error.to_string();
        unreadable(
            said.rsplit_once(" at line ")
                .map_or(&*said, |(said, _)| said),
        )
    })
}

/// The options of a sandbox are those of a run and three more.
fn split(body: &Raw) -> Answer<(Stay, RunRequest)> {
    let mut options: Written = parsed(body)?;
    let own = ["idle_timeout", "lifetime", "labels"];
    let stay: Written = own
        .iter()
        .filter_map(|name| options.remove_entry(*name))
        .collect();
    let stay = read(&stay)?;
    let order: RunOrder = read(&options)?;
    let run = order.into_request()?.0;
    match run.run_id {
        None => Ok((stay, run)),
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
struct Wanted {
    /// Only those that are so.
    status: Option<SandboxStatus>,
}

/// Lists sandboxes, the oldest first; ended ones for a while, too.
#[utoipa::path(
    get, path = "/v1/sandboxes", tag = "sandboxes", params(Wanted),
    responses(
        (status = 200, body = SandboxList),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    Asked(wanted): Asked<Wanted>,
) -> Answer<Response> {
    let views = gateway
        .entries(&caller)?
        .into_iter()
        .map(|entry| entry.view());
    let sandboxes = views
        .filter(|view| wanted.status.is_none_or(|status| status == view.status))
        .collect();
    fitting::json(&gateway, &caller, &SandboxList { sandboxes })
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

/// Ends a sandbox with everything in it, and waits until it is gone.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxState, description = "It is gone"),
        (status = 202, body = SandboxState, description = "It is being ended, and that takes unusually long"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn destroy(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Response> {
    let entry = gateway.entry(&caller, &id)?;
    let status = entry.end_soon().await;
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
    to_the_end(async move { Ok(session.pause().await?) }).await?;
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
    gateway.session_to_work_in(&caller, &id)?;
    to_the_end(async move { Ok(session.resume().await?) }).await?;
    Ok(Json(gateway.entry(&caller, &id)?.view()))
}

/// Makes a sandbox like this one, with a copy of its workspace. Programs are not copied.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/fork", tag = "sandboxes",
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes one sandbox however often it is sent"),
    ),
    request_body(content = Option<Stay>, description = "What shall be other than in the first"),
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
    body: Raw,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let stay: Stay = parsed(&body)?;
    check_labels(&stay.labels)?;
    // Without its inputs: they lie in the workspace that is copied, as they are by now.
    let mut request = gateway.entry(&caller, &id)?.request()?;
    request.idle = span(stay.idle_timeout.as_ref(), "idle_timeout")?.or(request.idle);
    request.lifetime = span(stay.lifetime.as_ref(), "lifetime")?.or(request.lifetime);
    // A folder of the host's stays where it is: the copy is the sandbox's own.
    request.run.workspace = None;
    request.run.run_id = None;
    let replay = replay(&headers, &format!("fork {id}"), &body.0)?;
    let opening = Opening {
        owner: caller.tenant,
        labels: stay.labels,
        request,
        fork_of: Some(session),
        replay,
    };
    Ok(created(&*gateway.open(opening).await?))
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
        let body = Raw(format!(r#"{{"labels":{labels},"lifetime":"1h","network":"none"}}"#).into());
        let (stay, _) = split(&body).unwrap();
        let wanted = (
            "$serde_json::private::RawValue".to_owned(),
            r#"{"a":"b"}"#.to_owned(),
        );
        assert!(
            check_labels(&stay.labels).is_err(),
            "whoever reads it of us would be misled"
        );
        assert_eq!(stay.labels.into_iter().collect::<Vec<_>>(), [wanted]);
    }

    #[test]
    fn what_cannot_be_read_is_told_without_a_place() {
        let told = |body: &'static str| {
            serde_json::to_string(&split(&Raw(body.into())).unwrap_err()).unwrap()
        };
        let said = told(r#"{"lifetime":[],"labels":7}"#);
        assert!(
            said.contains("expected") && !said.contains(" at line "),
            "{said}"
        );
        assert!(told(r#"{"comand":[]}"#).contains("`comand`"));
    }
}
