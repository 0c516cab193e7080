//! API keys: create, list, revoke, authenticate. A token is `alk_<id>_<64 digits>`. Only its hash
//! is stored; it is found by the id and compared in constant time. The database is read for each
//! request, so that a revocation takes effect at once.

use crate::{
    Caller, Gateway, Problem, Scope, key_watch::ActiveKeys, path::Path as InPath, problem::Answer,
    wire,
};
use axum::{Json, extract::State};
use http::StatusCode;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spec::{Time, Timestamp};
use std::{
    collections::HashMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use store::{
    DatabaseError,
    audit::AuditEntry,
    server_database::{KeyRow, ServerDatabase},
};
use subtle::ConstantTimeEq;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use zeroize::Zeroizing;

const PREFIX: &str = "alk_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
const MAX_NAME: usize = 100;
/// How long a revoked or expired key stays in the database.
const RETENTION_MS: u64 = 30 * 24 * 3_600_000;
/// Maximum number of keys: every listing reads the whole table.
const MAX_KEYS: usize = 10_000;

/// The API keys of a state folder.
#[derive(Clone, Debug)]
pub struct ApiKeys {
    database: Arc<ServerDatabase>,
    active_keys: Arc<ActiveKeys>,
    /// Revocations that could not be written yet, with their time.
    pending_revocations: Arc<Mutex<HashMap<String, u64>>>,
}

/// The secret token of a key, shown once.
#[derive(Clone)]
pub struct ApiToken(Zeroizing<String>);

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = Key)]
pub struct ApiKey {
    /// Its identifier, which the token begins with.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// Whose it is: all keys of a tenant see the same things. Its own identifier, unless it was given another's. A server
    /// of before there were tenants does not say.
    #[serde(default)]
    pub tenant: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created_at: String,
    /// When it stops being good.
    pub expires_at: Option<String>,
    /// When it was taken back.
    pub revoked_at: Option<String>,
}

/// Why a key cannot be created or read.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The request is invalid.
    #[error("{0}")]
    Wrong(&'static str),
}

impl ApiKeyError {
    /// What the caller can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            ApiKeyError::Database(error) => error.hint(),
            ApiKeyError::Wrong(_) => {
                "give a name of 1 to 100 characters, a tenant of A-Z a-z 0-9 . _ - or none, at least one scope, and a time such as 24h"
            }
        }
    }
}

impl ApiToken {
    fn fresh() -> Result<ApiToken, ApiKeyError> {
        let id = random_hex::<ID_BYTES>()?;
        let secret = random_hex::<SECRET_BYTES>()?;
        Ok(ApiToken(Zeroizing::new(format!(
            "{PREFIX}{}_{}",
            *id, *secret
        ))))
    }

    /// Parses a token; `None` if the format is wrong.
    pub fn parse(text: &str) -> Option<ApiToken> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let digits = |text: &str, bytes| {
            text.len() == 2 * bytes
                && text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        (digits(id, ID_BYTES) && digits(secret, SECRET_BYTES))
            .then(|| ApiToken(Zeroizing::new(text.to_owned())))
    }

    /// The secret token, to be shown to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The id of the key, which is not secret.
    pub fn id(&self) -> &str {
        &self.0[PREFIX.len()..PREFIX.len() + 2 * ID_BYTES]
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(..)")
    }
}

fn random_hex<const BYTES: usize>() -> Result<Zeroizing<String>, ApiKeyError> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    let filled = SystemRandom::new().fill(&mut *bytes);
    filled.map_err(|_| ApiKeyError::Wrong("the machine gives no random bytes"))?;
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Ok(Zeroizing::new(
        digits
            .filter_map(|half| char::from_digit(u32::from(half), 16))
            .collect(),
    ))
}

impl ApiKeys {
    /// Opens the keys of a state folder.
    pub fn open(state: &Path) -> Result<ApiKeys, DatabaseError> {
        Ok(ApiKeys::of(Arc::new(ServerDatabase::open(state)?)))
    }

    pub(crate) fn of(database: Arc<ServerDatabase>) -> ApiKeys {
        ApiKeys {
            database,
            active_keys: Arc::default(),
            pending_revocations: Arc::default(),
        }
    }

    /// Creates a key. The token is not stored.
    pub fn create(
        &self,
        name: &str,
        tenant: Option<&str>,
        scopes: &[Scope],
        expires_in: Option<Duration>,
    ) -> Result<(ApiKey, ApiToken), ApiKeyError> {
        let token = ApiToken::fresh()?;
        let key = self.insert(&token, (name, tenant), scopes, expires_in)?;
        Ok((key, token))
    }

    /// Makes this token an admin key unless it is one. A revoked key stays revoked.
    pub fn adopt_admin(&self, token: &ApiToken) -> Result<(), ApiKeyError> {
        match self.authenticate(token.expose())? {
            Some(caller) if caller.is_admin() => Ok(()),
            Some(_) => Err(ApiKeyError::Wrong("this key is known, and not an admin's")),
            None if self.database.key(token.id())?.is_some() => Err(ApiKeyError::Wrong(
                "this key was revoked, has expired, or is not the one of that identifier",
            )),
            None => self
                .insert(token, ("admin", None), &[Scope::Admin], None)
                .map(drop),
        }
    }

    fn insert(
        &self,
        token: &ApiToken,
        (name, tenant): (&str, Option<&str>),
        scopes: &[Scope],
        expires_in: Option<Duration>,
    ) -> Result<ApiKey, ApiKeyError> {
        let length = name.chars().count();
        if !(1..=MAX_NAME).contains(&length) || name.chars().any(char::is_control) {
            return Err(ApiKeyError::Wrong("this is no name for a key"));
        }
        if tenant.is_some_and(|tenant| spec::Id::new(tenant).is_err()) {
            return Err(ApiKeyError::Wrong("this is no name for a tenant"));
        }
        if tenant == Some(store::ArtifactOwner::local().as_str()) {
            return Err(ApiKeyError::Wrong(
                "`local` is whoever is at the machine itself, and no name for a tenant",
            ));
        }
        if scopes.is_empty() {
            return Err(ApiKeyError::Wrong("a key without a scope may do nothing"));
        }
        self.database
            .prune_keys(engine::now().0.saturating_sub(RETENTION_MS))?;
        if self.database.keys()?.len() >= MAX_KEYS {
            return Err(ApiKeyError::Wrong(
                "there are 10000 keys, and no room for more",
            ));
        }
        let now = engine::now().0;
        let names: std::collections::BTreeSet<_> =
            scopes.iter().map(|scope| scope.name()).collect();
        let row = KeyRow {
            id: token.id().to_owned(),
            name: name.to_owned(),
            tenant: tenant.unwrap_or_default().to_owned(),
            hash: token.hash(),
            scopes: names.into_iter().collect::<Vec<_>>().join(" "),
            created_ms: now,
            expires_ms: expires_in.map(|time| now.saturating_add(millis(time))),
            revoked_ms: None,
        };
        if self.database.add_key(&row)? {
            Ok(key_view(&row))
        } else {
            Err(ApiKeyError::Wrong("there is a key of that identifier"))
        }
    }

    /// All keys in the database, oldest first.
    pub fn list(&self) -> Result<Vec<ApiKey>, DatabaseError> {
        Ok(self.database.keys()?.iter().map(key_view).collect())
    }

    /// Revokes a key at once; false if there is none.
    pub fn revoke(&self, id: &str) -> Result<bool, DatabaseError> {
        self.database.revoke_key(id, engine::now().0)
    }

    fn pending_revocations(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.pending_revocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the revocations that could not be written before.
    pub(crate) fn write_revocations(&self) {
        let waiting = self.pending_revocations().clone();
        for (id, at_ms) in waiting {
            if self.database.revoke_key(&id, at_ms).is_ok() {
                self.pending_revocations().remove(&id);
            }
        }
    }

    /// Whether the key is valid now.
    fn is_valid(&self, key: &KeyRow) -> bool {
        is_valid(key) && !self.pending_revocations().contains_key(&key.id)
    }

    /// Whether a valid admin key exists.
    pub fn has_admin(&self) -> Result<bool, DatabaseError> {
        Ok(self
            .database
            .keys()?
            .iter()
            .any(|key| is_valid(key) && parse_scopes(&key.scopes).contains(&Scope::Admin)))
    }

    /// The caller with this token, if the key is valid.
    pub(crate) fn authenticate(&self, token: &str) -> Result<Option<Caller>, DatabaseError> {
        let Some(token) = ApiToken::parse(token) else {
            return Ok(None);
        };
        let row = self.database.key(token.id())?;
        let stored = row.as_ref().map_or([0; 32], |key| key.hash);
        let same = bool::from(stored.ct_eq(&token.hash()));
        Ok(row
            .filter(|key| same && self.is_valid(key))
            .map(|key| self.caller(key)))
    }

    /// The caller of a key id, with its current scopes; `None` if the key is no longer valid.
    pub(crate) fn holder(&self, id: &str) -> Result<Option<Caller>, DatabaseError> {
        Ok(self
            .database
            .key(id)?
            .filter(|key| self.is_valid(key))
            .map(|key| self.caller(key)))
    }

    fn caller(&self, key: KeyRow) -> Caller {
        let scopes = parse_scopes(&key.scopes);
        let validity = self.active_keys.watch(&key.id);
        Caller {
            tenant: tenant_of(&key).to_owned(),
            key: key.id,
            scopes,
            validity,
        }
    }

    /// Ends requests of keys that are no longer valid.
    pub(crate) fn end_invalid_keys(&self) -> Result<(), DatabaseError> {
        for id in self.active_keys.names() {
            let key = self.database.key(&id)?;
            if !key.is_some_and(|key| self.is_valid(&key)) {
                self.active_keys.revoke(&id);
            }
        }
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_valid(key: &KeyRow) -> bool {
    key.revoked_ms.is_none() && key.expires_ms.is_none_or(|end| engine::now().0 < end)
}

/// An unknown scope, written by a later version, grants nothing.
fn parse_scopes(words: &str) -> Vec<Scope> {
    words
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// The tenant of a key; a key without one is its own tenant.
fn tenant_of(key: &KeyRow) -> &str {
    if key.tenant.is_empty() {
        &key.id
    } else {
        &key.tenant
    }
}

fn key_view(row: &KeyRow) -> ApiKey {
    let time = |ms: u64| Timestamp(ms).to_string();
    ApiKey {
        id: row.id.clone(),
        name: row.name.clone(),
        tenant: tenant_of(row).to_owned(),
        scopes: parse_scopes(&row.scopes),
        created_at: time(row.created_ms),
        expires_at: row.expires_ms.map(time),
        revoked_at: row.revoked_ms.map(time),
    }
}

/// A key that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewKey {
    /// What it is for.
    name: String,
    /// Whose it is: 1 to 128 of A-Z a-z 0-9 . _ - and not starting with a dot; its own, if left away.
    tenant: Option<String>,
    /// What it may do.
    scopes: Vec<Scope>,
    /// How long it is good, such as `"24h"`, or seconds; for ever if left away.
    expires_in: Option<wire::Quantity>,
}

/// A key with its token, which is shown this once.
#[derive(Debug, Serialize, ToSchema)]
struct MadeKey {
    #[serde(flatten)]
    key: ApiKey,
    /// What to present as `Authorization: Bearer`.
    token: String,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
struct KeyList {
    keys: Vec<ApiKey>,
}

/// Make a key
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKey, responses(
    (status = 201, description = "Made; the token is shown this once", body = MadeKey),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    wire::JsonBody(order): wire::JsonBody<NewKey>,
) -> Answer<(StatusCode, Json<MadeKey>)> {
    caller.require(Scope::Admin)?;
    let expires_in = order
        .expires_in
        .map(|time| time.parse::<Time>("expires_in"))
        .transpose()?;
    let keys = gateway.keys().clone();
    let make = move || {
        keys.create(
            &order.name,
            order.tenant.as_deref(),
            &order.scopes,
            expires_in.map(|time| time.0),
        )
    };
    let (key, token) = tokio::task::spawn_blocking(make)
        .await
        .map_err(|_| crate::db_writer::busy())??;
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.name()).collect();
    let about = format!("key={} scopes={}", key.id, scopes.join(","));
    let line = AuditEntry {
        what: "key.made",
        tenant: &key.tenant,
        key: &caller.key,
        about: &about,
        ..AuditEntry::default()
    };
    gateway.audit_event(&line);
    Ok((
        StatusCode::CREATED,
        Json(MadeKey {
            key,
            token: token.expose().to_owned(),
        }),
    ))
}

/// List keys
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses(
    (status = 200, description = "All that were ever made, the oldest first", body = KeyList),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn list(State(gateway): State<Gateway>, caller: Caller) -> Answer<Json<KeyList>> {
    caller.require(Scope::Admin)?;
    let rows = gateway.query_database(|database| database.keys()).await?;
    Ok(Json(KeyList {
        keys: rows.iter().map(key_view).collect(),
    }))
}

/// Revoke a key
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path,)), responses(
    (status = 202, description = "It is good for nothing any more, which is written down once the disk has room"),
    (status = 204, description = "It is good for nothing any more"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn revoke(
    State(gateway): State<Gateway>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Answer<StatusCode> {
    caller.require(Scope::Admin)?;
    let name = id.clone();
    if gateway
        .query_database(move |database| database.key(&name))
        .await?
        .is_none()
    {
        return Err(Problem::not_found("key"));
    }
    let name = id.clone();
    let now = engine::now().0;
    // Takes effect at once, even if the database cannot be written.
    gateway.keys().pending_revocations().insert(id.clone(), now);
    gateway.keys().active_keys.revoke(&id);
    let written = gateway.query_database(move |database| database.revoke_key(&name, now));
    Ok(match written.await {
        Ok(_) => {
            gateway.keys().pending_revocations().remove(&id);
            StatusCode::NO_CONTENT
        }
        Err(_) => StatusCode::ACCEPTED,
    })
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Problem {
        // The path of the database is only logged.
        crate::log_warning(format_args!("airlock: {error}"));
        crate::db_writer::database_problem(&error)
    }
}

impl From<ApiKeyError> for Problem {
    fn from(error: ApiKeyError) -> Problem {
        match error {
            ApiKeyError::Database(error) => error.into(),
            wrong @ ApiKeyError::Wrong(_) => Problem::invalid(wrong.to_string(), wrong.hint()),
        }
    }
}

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(revoke))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_random_and_does_not_print() {
        let (one, two) = (ApiToken::fresh().unwrap(), ApiToken::fresh().unwrap());
        assert_ne!(one.expose(), two.expose());
        assert_eq!(one.expose().len(), 4 + 16 + 1 + 64);
        assert_eq!(ApiToken::parse(one.expose()).unwrap().hash(), one.hash());
        assert_eq!(format!("{one:?}"), "Token(..)");
    }

    #[test]
    fn what_is_not_written_like_a_token_is_none() {
        let good = format!("alk_{}_{}", "0".repeat(16), "a".repeat(64));
        assert!(ApiToken::parse(&good).is_some(), "the positive control");
        for text in [
            "",
            "alk_",
            &good[4..],
            &good[..84],
            &good.to_uppercase(),
            &format!("{good}0"),
        ] {
            assert!(ApiToken::parse(text).is_none(), "{text}");
        }
    }
}
