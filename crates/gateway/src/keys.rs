//! Keys: made, listed, revoked, and recognised. A token is `alk_<id>_<64 digits>`; only its hash is kept, found by the id
//! and compared in the same time whatever differs. The database is asked each time: what is revoked there is revoked.

use crate::{
    Caller, Gateway, Problem, Scope, path::Path as InPath, problem::Answer, validity::InUse, wire,
};
use axum::{Json, extract::State};
use http::StatusCode;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spec::{Time, Timestamp};
use std::{fmt, path::Path, sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::Entry,
    served::{KeyRow, Served},
};
use subtle::ConstantTimeEq;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use zeroize::Zeroizing;

const BEGINNING: &str = "alk_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
const LONGEST_NAME: usize = 100;
/// How long a key is remembered that was revoked or has expired.
const REMEMBERED_MS: u64 = 30 * 24 * 3_600_000;
/// Bound on the table that every listing reads whole.
const MOST_KEYS: usize = 10_000;

/// The keys of a state folder.
#[derive(Clone, Debug)]
pub struct Keys {
    served: Arc<Served>,
    in_use: Arc<InUse>,
}

/// A key's token, shown once.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Key {
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

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// What was asked for.
    #[error("{0}")]
    Wrong(&'static str),
}

impl KeyError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            KeyError::Database(error) => error.hint(),
            KeyError::Wrong(_) => {
                "give a name of 1 to 100 characters, a tenant of A-Z a-z 0-9 . _ - or none, at least one scope, and a time such as 24h"
            }
        }
    }
}

impl Token {
    fn fresh() -> Result<Token, KeyError> {
        let (id, secret) = (random::<ID_BYTES>()?, random::<SECRET_BYTES>()?);
        Ok(Token(Zeroizing::new(format!(
            "{BEGINNING}{}_{}",
            *id, *secret
        ))))
    }

    /// A token that is written like one.
    pub fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.strip_prefix(BEGINNING)?.split_once('_')?;
        let digits = |text: &str, bytes| {
            text.len() == 2 * bytes
                && text
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        (digits(id, ID_BYTES) && digits(secret, SECRET_BYTES))
            .then(|| Token(Zeroizing::new(text.to_owned())))
    }

    /// The token itself, to be handed out.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn id(&self) -> &str {
        &self.0[BEGINNING.len()..BEGINNING.len() + 2 * ID_BYTES]
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(..)")
    }
}

fn random<const BYTES: usize>() -> Result<Zeroizing<String>, KeyError> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    let filled = SystemRandom::new().fill(&mut *bytes);
    filled.map_err(|_| KeyError::Wrong("the machine gives no random bytes"))?;
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Ok(Zeroizing::new(
        digits
            .filter_map(|half| char::from_digit(u32::from(half), 16))
            .collect(),
    ))
}

impl Keys {
    /// Those of a state folder.
    pub fn open(state: &Path) -> Result<Keys, DatabaseError> {
        Ok(Keys::of(Arc::new(Served::open(state)?)))
    }

    pub(crate) fn of(served: Arc<Served>) -> Keys {
        Keys {
            served,
            in_use: Arc::default(),
        }
    }

    /// Makes one. Its token is nowhere else.
    pub fn create(
        &self,
        name: &str,
        tenant: Option<&str>,
        scopes: &[Scope],
        expires_in: Option<Duration>,
    ) -> Result<(Key, Token), KeyError> {
        let token = Token::fresh()?;
        let key = self.insert(&token, (name, tenant), scopes, expires_in)?;
        Ok((key, token))
    }

    /// Lets this token be an admin's, if it is not yet. One that was revoked stays so.
    pub fn adopt_admin(&self, token: &Token) -> Result<(), KeyError> {
        match self.recognise(token.expose())? {
            Some(caller) if caller.is_admin() => Ok(()),
            Some(_) => Err(KeyError::Wrong("this key is known, and not an admin's")),
            None if self.served.key(token.id())?.is_some() => Err(KeyError::Wrong(
                "this key was revoked, has expired, or is not the one of that identifier",
            )),
            None => self
                .insert(token, ("admin", None), &[Scope::Admin], None)
                .map(drop),
        }
    }

    fn insert(
        &self,
        token: &Token,
        (name, tenant): (&str, Option<&str>),
        scopes: &[Scope],
        expires_in: Option<Duration>,
    ) -> Result<Key, KeyError> {
        let length = name.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || name.chars().any(char::is_control) {
            return Err(KeyError::Wrong("this is no name for a key"));
        }
        if tenant.is_some_and(|tenant| spec::Id::new(tenant).is_err()) {
            return Err(KeyError::Wrong("this is no name for a tenant"));
        }
        if tenant == Some(store::Owner::local().as_str()) {
            return Err(KeyError::Wrong(
                "`local` is whoever is at the machine itself, and no name for a tenant",
            ));
        }
        if scopes.is_empty() {
            return Err(KeyError::Wrong("a key without a scope may do nothing"));
        }
        self.served
            .prune_keys(engine::now().0.saturating_sub(REMEMBERED_MS))?;
        if self.served.keys()?.len() >= MOST_KEYS {
            return Err(KeyError::Wrong(
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
        match self.served.add_key(&row)? {
            true => Ok(known(&row)),
            false => Err(KeyError::Wrong("there is a key of that identifier")),
        }
    }

    /// All that were ever made, the oldest first.
    pub fn list(&self) -> Result<Vec<Key>, DatabaseError> {
        Ok(self.served.keys()?.iter().map(known).collect())
    }

    /// Takes one back, at once. False if there is none.
    pub fn revoke(&self, id: &str) -> Result<bool, DatabaseError> {
        self.served.revoke_key(id, engine::now().0)
    }

    /// Whether anybody could administer this gateway.
    pub fn has_admin(&self) -> Result<bool, DatabaseError> {
        Ok(self
            .served
            .keys()?
            .iter()
            .any(|key| good(key) && scopes(&key.scopes).contains(&Scope::Admin)))
    }

    /// Who holds this token, if it is good.
    pub(crate) fn recognise(&self, token: &str) -> Result<Option<Caller>, DatabaseError> {
        let Some(token) = Token::parse(token) else {
            return Ok(None);
        };
        let found = self.served.key(token.id())?;
        let kept = found.as_ref().map_or([0; 32], |key| key.hash);
        let same = bool::from(kept.ct_eq(&token.hash()));
        Ok(found
            .filter(|key| same && good(key))
            .map(|key| self.caller(key)))
    }

    /// Whoever holds the key of that identifier, with the rights that it has now; none if it is good no more.
    pub(crate) fn holder(&self, id: &str) -> Result<Option<Caller>, DatabaseError> {
        Ok(self
            .served
            .key(id)?
            .filter(good)
            .map(|key| self.caller(key)))
    }

    fn caller(&self, key: KeyRow) -> Caller {
        let (scopes, validity) = (scopes(&key.scopes), self.in_use.watch(&key.id));
        Caller {
            tenant: tenant(&key).to_owned(),
            key: key.id,
            scopes,
            validity,
        }
    }

    /// Ends what is under way by keys that are good no more.
    pub(crate) fn end_bad_ones(&self) -> Result<(), DatabaseError> {
        for id in self.in_use.names() {
            if !self.served.key(&id)?.as_ref().is_some_and(good) {
                self.in_use.end(&id);
            }
        }
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn good(key: &KeyRow) -> bool {
    key.revoked_ms.is_none() && key.expires_ms.is_none_or(|end| engine::now().0 < end)
}

/// A word that a later Airlock wrote there grants nothing.
fn scopes(words: &str) -> Vec<Scope> {
    words
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Whose it is; one that was given nobody's is its own.
fn tenant(key: &KeyRow) -> &str {
    match key.tenant.is_empty() {
        true => &key.id,
        false => &key.tenant,
    }
}

fn known(row: &KeyRow) -> Key {
    let time = |ms: u64| Timestamp(ms).to_string();
    Key {
        id: row.id.clone(),
        name: row.name.clone(),
        tenant: tenant(row).to_owned(),
        scopes: scopes(&row.scopes),
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
    key: Key,
    /// What to present as `Authorization: Bearer`.
    token: String,
}

/// All keys.
#[derive(Debug, Serialize, ToSchema)]
struct KeyList {
    keys: Vec<Key>,
}

/// Make a key
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKey, responses(
    (status = 201, description = "Made; the token is shown this once", body = MadeKey),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn create(
    State(gateway): State<Gateway>,
    caller: Caller,
    wire::Body(order): wire::Body<NewKey>,
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
        .map_err(|_| crate::writer::busy())??;
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.name()).collect();
    let about = format!("key={} scopes={}", key.id, scopes.join(","));
    let line = Entry {
        what: "key.made",
        tenant: &key.tenant,
        key: &caller.key,
        about: &about,
        ..Entry::default()
    };
    gateway.note_happened(&line);
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
    let rows = gateway.look_up(|served| served.keys()).await?;
    Ok(Json(KeyList {
        keys: rows.iter().map(known).collect(),
    }))
}

/// Revoke a key
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path,)), responses(
    (status = 204, description = "It is good for nothing any more"),
    (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json")))]
async fn revoke(
    State(gateway): State<Gateway>,
    caller: Caller,
    InPath(id): InPath<String>,
) -> Answer<StatusCode> {
    caller.require(Scope::Admin)?;
    let (name, now) = (id.clone(), engine::now().0);
    if !gateway
        .look_up(move |served| served.revoke_key(&name, now))
        .await?
    {
        return Err(Problem::not_found("key"));
    }
    gateway.keys().in_use.end(&id);
    Ok(StatusCode::NO_CONTENT)
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Problem {
        // Where it lies is nobody's business; the operator reads it on stderr.
        crate::say(format_args!("airlock: {error}"));
        crate::writer::refusal(&error)
    }
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Problem {
        match error {
            KeyError::Database(error) => error.into(),
            wrong @ KeyError::Wrong(_) => Problem::invalid(wrong.to_string(), wrong.hint()),
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
        let (one, two) = (Token::fresh().unwrap(), Token::fresh().unwrap());
        assert_ne!(one.expose(), two.expose());
        assert_eq!(one.expose().len(), 4 + 16 + 1 + 64);
        assert_eq!(Token::parse(one.expose()).unwrap().hash(), one.hash());
        assert_eq!(format!("{one:?}"), "Token(..)");
    }

    #[test]
    fn what_is_not_written_like_a_token_is_none() {
        let good = format!("alk_{}_{}", "0".repeat(16), "a".repeat(64));
        assert!(Token::parse(&good).is_some(), "the positive control");
        for text in [
            "",
            "alk_",
            &good[4..],
            &good[..84],
            &good.to_uppercase(),
            &format!("{good}0"),
        ] {
            assert!(Token::parse(text).is_none(), "{text}");
        }
    }
}
