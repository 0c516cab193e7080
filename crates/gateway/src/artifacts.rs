//! HTTP routes of artifacts: upload, download, list, remove. Bodies are streamed to and from the
//! artifact store.
//!
//! An artifact name may contain slashes, raw or as `%2F`. `/versions` after a name lists its
//! versions, so no new name may end in `/versions`; an older one that does is reached with its last
//! slash as `%2F`. An admin selects the owner with `owner`; `local` is the user at the machine
//! itself.

mod body;
mod headers;

pub(crate) use headers::percent_decoded;

use crate::{
    Caller, Gateway, Problem, Scope, json_response,
    problem::Answer,
    tenants::{ResourceDemand, WorkKind},
};
use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    response::{IntoResponse, Response},
    routing,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::{Deserialize, Serialize};
use spec::{Id, WorkspacePath};
use std::{ffi::OsString, io, os::unix::ffi::OsStringExt, path::Path};
use store::{
    ArtifactError, ArtifactListing, ArtifactOwner, ArtifactQuery, Lineage, NewArtifact,
    StoredArtifact,
};
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;

const PREFIX: &str = "/v1/artifacts/";
const VERSIONS: &str = "/versions";
/// Default page size of a list, and its maximum.
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1000;

/// The handlers that are described in OpenAPI: the catch-all route of the router is not a valid
/// OpenAPI path.
#[derive(OpenApi)]
#[openapi(paths(list, put, fetch, versions, remove))]
struct ArtifactsApi;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    let one = routing::get(fetch_or_versions).put(put).delete(remove);
    OpenApiRouter::with_openapi(ArtifactsApi::openapi())
        .route("/v1/artifacts", routing::get(list))
        .route("/v1/artifacts/{*name}", one)
}

/// One version.
#[derive(Debug, Serialize, ToSchema)]
struct Artifact {
    /// Its name.
    name: String,
    /// Counts from 1.
    version: u64,
    /// The key that owns it, or `local`.
    owner: String,
    size_bytes: u64,
    sha256: String,
    content_type: String,
    /// When it was kept, in UTC.
    kept_at: String,
    /// The run that made it.
    run_id: Option<String>,
    /// The session that it was made in.
    session_id: Option<String>,
    /// What was run; cut where it is long.
    command: Option<Vec<String>>,
    /// A digest of what the run was allowed to do.
    policy_hash: Option<String>,
}

/// A page of versions.
#[derive(Debug, Serialize, ToSchema)]
struct Artifacts {
    /// Sorted by name, then version.
    artifacts: Vec<Artifact>,
    /// What to give as `after` for the next page; none on the last.
    next: Option<String>,
    /// How many versions could not be read.
    unreadable: usize,
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Removed)]
struct RemovedArtifacts {
    /// How many versions.
    removed: usize,
}

/// Which versions are listed.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ArtifactsQuery {
    /// Exactly this name.
    name: Option<String>,
    /// Names that begin so.
    prefix: Option<String>,
    /// What this run made.
    run_id: Option<String>,
    /// So many at most, up to 1000.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// What an earlier page gave as `next`.
    after: Option<String>,
    /// Whose; an operator sees everybody's unless it says.
    owner: Option<String>,
}

/// Which version is meant.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VersionQuery {
    /// The newest unless it says; of what is removed all.
    #[param(minimum = 1)]
    version: Option<u64>,
    /// Whose, for an operator; its own unless it says.
    owner: Option<String>,
}

type QueryResult<T> = Result<Query<T>, QueryRejection>;

/// List artifacts
#[utoipa::path(get, path = "/v1/artifacts", tag = "artifacts", params(ArtifactsQuery),
    responses((status = 200, body = Artifacts), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
async fn list(
    State(gateway): State<Gateway>,
    caller: Caller,
    query: QueryResult<ArtifactsQuery>,
) -> Answer<Response> {
    caller.require(Scope::Artifacts)?;
    let query = parse_query(query)?;
    let owner = match (&query.owner, caller.is_admin()) {
        (None, true) => None,
        (owner, _) => Some(owner_of(&caller, owner.as_deref())?),
    };
    let most = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&most) {
        return Err(Problem::invalid(
            "`limit` is out of range",
            "give 1 to 1000",
        ));
    }
    let matches = |name: &WorkspacePath| {
        let name = name.as_path().to_string_lossy();
        query.name.as_deref().is_none_or(|exact| name == exact)
            && query
                .prefix
                .as_deref()
                .is_none_or(|prefix| name.starts_with(prefix))
    };
    let run_id = query.run_id.as_deref();
    let after = query.after.as_deref();
    let wanted = ArtifactQuery {
        owner: owner.as_ref(),
        name: &matches,
        run_id,
        after,
        limit: most,
    };
    json_response::from_value(
        &gateway,
        &caller,
        &page(gateway.engine().artifacts().list(wanted).await),
    )
}

/// Keep the body as the next version of a name
#[utoipa::path(put, path = "/v1/artifacts/{name}", tag = "artifacts",
    params(("name" = String, Path, description = "may have slashes, or `%2F`"), VersionQuery,
        ("X-Checksum-Sha256" = Option<String>, Header, description = "in hexadecimal; something else is not kept"),
        ("Repr-Digest" = Option<String>, Header, description = "the same as `sha-256=:BASE64:` (RFC 9530)")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = Artifact), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
async fn put(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    query: QueryResult<VersionQuery>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.require(Scope::Artifacts)?;
    let query = parse_query(query)?;
    if query.version.is_some() {
        return Err(Problem::invalid(
            "a version cannot be chosen",
            "leave `version` away: the next one is taken",
        ));
    }
    let owner = owner_of(&caller, query.owner.as_deref())?;
    let name = name_of(raw_name(&uri)?)?;
    if owner != ArtifactOwner::local() {
        let needs = ResourceDemand {
            what: WorkKind::Artifact,
            llm: false,
            storage: true,
            memory: 0,
        };
        gateway.check_quota(owner.as_str(), needs).await?;
    }
    let expected = headers::expected_digest(&headers)?;
    let new = NewArtifact {
        owner,
        name,
        content_type: headers::content_type(&headers)?,
        lineage: Lineage::default(),
        limit_bytes: u64::MAX,
    };
    let announced = headers::content_length(&headers);
    let putting = gateway
        .engine()
        .artifacts()
        .begin(new)
        .await
        .map_err(store_problem)?;
    let kept = body::receive(putting, body, announced, expected.as_deref()).await?;
    let location = format!("{}?version={}", uri.path(), kept.version);
    let mut response = (StatusCode::CREATED, Json(artifact(kept))).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Dispatches by suffix: the catch-all route cannot tell `NAME` from `NAME/versions`.
async fn fetch_or_versions(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    query: QueryResult<VersionQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    match raw_name(&uri)?.strip_suffix(VERSIONS) {
        Some(name) => versions(gateway, caller, name, query).await,
        None => fetch(gateway, caller, uri, query, headers).await,
    }
}

/// Fetch a version, or a part of it
#[utoipa::path(get, path = "/v1/artifacts/{name}", tag = "artifacts",
    params(("name" = String, Path, description = "may have slashes, or `%2F`"), VersionQuery,
        ("Range" = Option<String>, Header, description = "one range of bytes")),
    responses(
        (status = 200, description = "all of it", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "the part", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "the caller has it already"),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
async fn fetch(
    gateway: Gateway,
    caller: Caller,
    uri: Uri,
    query: QueryResult<VersionQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    caller.require(Scope::Artifacts)?;
    let query = parse_query(query)?;
    let owner = owner_of(&caller, query.owner.as_deref())?;
    let name = name_of(raw_name(&uri)?)?;
    let opened = gateway
        .engine()
        .artifacts()
        .open_version(&owner, &name, query.version)
        .await;
    let reading = opened.map_err(store_problem)?;
    let etag = headers::etag(reading.artifact());
    if headers::matches_etag(&headers, header::IF_NONE_MATCH, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    let size_bytes = reading.artifact().size_bytes;
    let (status, reading) = match headers::requested_range(&headers, &etag) {
        None => (StatusCode::OK, reading),
        Some(part) => match reading.only(part) {
            Ok(part) => (StatusCode::PARTIAL_CONTENT, part),
            Err(error) => {
                let unsatisfied = [(header::CONTENT_RANGE, format!("bytes */{size_bytes}"))];
                return Ok((unsatisfied, store_problem(error)).into_response());
            }
        },
    };
    let mut response = status.into_response();
    headers::set_response_headers(
        response.headers_mut(),
        &reading,
        status == StatusCode::PARTIAL_CONTENT,
    );
    *response.body_mut() = body::send(reading);
    Ok(response)
}

/// List the versions of a name
#[utoipa::path(get, path = "/v1/artifacts/{name}/versions", tag = "artifacts",
    params(("name" = String, Path, description = "may have slashes, or `%2F`"), ("owner" = Option<String>, Query)),
    responses((status = 200, body = Artifacts), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
async fn versions(
    gateway: Gateway,
    caller: Caller,
    name: &str,
    query: QueryResult<VersionQuery>,
) -> Answer<Response> {
    caller.require(Scope::Artifacts)?;
    let query = parse_query(query)?;
    let owner = owner_of(&caller, query.owner.as_deref())?;
    let name = name_of(name)?;
    let same = |found: &WorkspacePath| *found == name;
    let listing = gateway
        .engine()
        .artifacts()
        .list(ArtifactQuery {
            name: &same,
            ..ArtifactQuery::all(Some(&owner))
        })
        .await;
    if listing.kept.is_empty() && listing.problems.is_empty() {
        Err(Problem::not_found("artifact"))
    } else {
        json_response::from_value(&gateway, &caller, &page(listing))
    }
}

/// Remove a version, or all of a name
#[utoipa::path(delete, path = "/v1/artifacts/{name}", tag = "artifacts",
    params(("name" = String, Path, description = "may have slashes, or `%2F`"), VersionQuery),
    responses((status = 200, body = RemovedArtifacts), (status = "4XX", body = Problem, content_type = "application/problem+json")))]
async fn remove(
    State(gateway): State<Gateway>,
    caller: Caller,
    uri: Uri,
    query: QueryResult<VersionQuery>,
) -> Answer<Json<RemovedArtifacts>> {
    caller.require(Scope::Artifacts)?;
    let query = parse_query(query)?;
    let owner = owner_of(&caller, query.owner.as_deref())?;
    let name = name_of(raw_name(&uri)?)?;
    let removed = gateway
        .engine()
        .artifacts()
        .remove(&owner, &name, query.version)
        .await;
    Ok(Json(RemovedArtifacts {
        removed: removed.map_err(store_problem)?,
    }))
}

fn parse_query<T>(query: QueryResult<T>) -> Answer<T> {
    query
        .map(|Query(query)| query)
        .map_err(|bad| Problem::invalid("the query is not understood", bad.body_text()))
}

/// The percent-encoded name as it was sent: after decoding, a slash in a name looks like a
/// separator.
fn raw_name(uri: &Uri) -> Answer<&str> {
    uri.path()
        .strip_prefix(PREFIX)
        .ok_or_else(|| Problem::not_found("artifact"))
}

fn name_of(raw: &str) -> Answer<WorkspacePath> {
    let bad = |why: String| Problem::invalid("the name cannot be used", why);
    let bytes =
        percent_decoded(raw).ok_or_else(|| bad("its percent-encoding is broken".to_owned()))?;
    WorkspacePath::new(Path::new(&OsString::from_vec(bytes))).map_err(|why| bad(why.why.to_owned()))
}

/// Resolves the owner of an artifact; another tenant's artifacts are answered as not found.
fn owner_of(caller: &Caller, requested: Option<&str>) -> Answer<ArtifactOwner> {
    let name = requested.unwrap_or(&caller.tenant);
    if !caller.sees(name) {
        return Err(Problem::not_found("artifact"));
    }
    let local = ArtifactOwner::local();
    match Id::new(name) {
        // `local` is used only when it is named: no key has this id.
        Ok(id) if id.as_str() != local.as_str() => Ok(ArtifactOwner::key(&id)),
        Ok(_) if caller.is_admin() && requested.is_some() => Ok(local),
        _ => Err(Problem::not_found("artifact")),
    }
}

fn artifact(kept: StoredArtifact) -> Artifact {
    let Lineage {
        run_id,
        session_id,
        command,
        policy_hash,
    } = kept.lineage;
    Artifact {
        name: kept.name.as_path().to_string_lossy().into_owned(),
        version: kept.version,
        owner: kept.owner.as_str().to_owned(),
        size_bytes: kept.size_bytes,
        sha256: kept.sha256,
        content_type: kept.content_type,
        kept_at: kept.kept_at.to_string(),
        run_id,
        session_id,
        command,
        policy_hash,
    }
}

fn page(listing: ArtifactListing) -> Artifacts {
    let artifacts = listing.kept.into_iter().map(artifact).collect();
    Artifacts {
        artifacts,
        next: listing.next,
        unreadable: listing.problems.len(),
    }
}

/// Converts a store error; its I/O causes go to the log because they contain paths of this machine.
fn store_problem(error: ArtifactError) -> Problem {
    let title = error.to_string();
    match error {
        ArtifactError::Missing { .. } => Problem::not_found("artifact"),
        ArtifactError::TooLarge { .. } => {
            let hint = "send less, or ask the operator for a higher `max_bytes`";
            Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "quota_exceeded",
                title,
                Some(hint.to_owned()),
            )
        }
        ArtifactError::Quota { .. } => {
            let hint = "remove what is not needed, or ask the operator for more";
            Problem::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "quota_exceeded",
                title,
                Some(hint.to_owned()),
            )
        }
        ArtifactError::Mismatch { .. } => Problem::invalid(title, "send it again"),
        ArtifactError::ContentType { .. } => Problem::invalid(title, "such as text/plain"),
        ArtifactError::Name { .. } => Problem::invalid(title, "choose another name"),
        ArtifactError::Range { .. } => Problem::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "invalid_spec",
            title,
            Some("ask for less".to_owned()),
        ),
        ArtifactError::Damaged { .. } => Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "damaged",
            title,
            Some("make it anew".to_owned()),
        ),
        ArtifactError::Write { source, .. } if is_disk_full(&source) => Problem::disk_full(),
        ArtifactError::Folder { source, .. }
        | ArtifactError::Bucket { source, .. }
        | ArtifactError::Write { source, .. }
        | ArtifactError::Access { source, .. } => {
            crate::log_warning(format_args!("airlock: {title}: {source}"));
            let hint = "try again; the operator's log has the cause";
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                title,
                Some(hint.to_owned()),
            )
        }
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
