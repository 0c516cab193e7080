//! What all worker API bodies share: the version, UUIDs, and a size limit of their own.

use crate::{
    Gateway, Problem,
    problem::Answer,
    wire::{RawBody, parse_object, tenant_of},
};
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_LENGTH};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, ffi::OsString, fmt};
use utoipa::ToSchema;

/// Variables that a caller may set but that Airlock sets itself: ignored, as the orchestrators
/// expect.
const IGNORED: [&str; 3] = ["CYNODE_TASK_ID", "CYNODE_JOB_ID", "CYNODE_WORKSPACE_DIR"];

/// The body version: 1.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "u64", into = "u64")]
pub(crate) struct Version;

impl TryFrom<u64> for Version {
    type Error = String;

    fn try_from(number: u64) -> Result<Version, String> {
        match number {
            1 => Ok(Version),
            other => Err(format!("the version is {other}, and only 1 is known here")),
        }
    }
}

impl From<Version> for u64 {
    fn from(_: Version) -> u64 {
        1
    }
}

/// A UUID in its usual form: 8-4-4-4-12 hexadecimal digits, in lower case.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, format = "uuid")]
pub(crate) struct Uuid(String);

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Uuid, String> {
        let is_digit = |(place, byte): (usize, u8)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        if text.len() == 36 && text.bytes().enumerate().all(is_digit) {
            // Normalized to lower case.
            return Ok(Uuid(text.to_ascii_lowercase()));
        }
        let shown: String = text.chars().take(48).collect();
        Err(format!(
            "`{}` is no UUID: write 8-4-4-4-12 hexadecimal digits",
            shown.escape_debug()
        ))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Uuid {
    /// A random UUID (version 4).
    pub(crate) fn fresh() -> Answer<Uuid> {
        let mut bytes = [0; 16];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
            .map_err(|_| crate::db_writer::busy())?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        Ok(Uuid(parts.join("-")))
    }

    /// A UUID in a path.
    pub(crate) fn of_path(text: String, field: &str) -> Answer<Uuid> {
        Uuid::try_from(text)
            .map_err(|why| Problem::invalid(format!("`{field}`: {why}"), "see /openapi.json"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The id derived from this UUID for a tenant: distinct per tenant, and not guessable for
    /// others.
    pub(crate) fn name(&self, kind: &str, tenant: &str) -> String {
        let mut hash = Sha256::new();
        for part in [kind, tenant, &self.0] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let hash: [u8; 32] = hash.finalize().into();
        let hex: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{kind}-{hex}")
    }
}

/// A worker API body.
#[derive(Debug)]
pub(crate) struct WorkerBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Gateway> for WorkerBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, gateway: &Gateway) -> Answer<WorkerBody<T>> {
        let max = gateway.node().max_request_bytes();
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
        let tenant = tenant_of(&request);
        let raw = RawBody::from_request(request, gateway).await?;
        if raw.len() > max {
            Err(too_large(max))
        } else {
            raw.read(gateway, &tenant, parse_object)
                .await
                .map(WorkerBody)
        }
    }
}

fn too_large(max: usize) -> Problem {
    let hint = format!("send at most {max} bytes");
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "quota_exceeded",
        "the body is too large",
        Some(hint),
    )
}

/// The variables without those that Airlock sets itself.
pub(crate) fn variables(env: &BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    let passed = env
        .iter()
        .filter(|(name, _)| !IGNORED.contains(&name.as_str()));
    passed
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// A policy of the network: both mean that there is none.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkPolicy {
    #[default]
    Restricted,
    None,
}

/// Digest of a request, independent of its formatting.
pub(crate) fn digest(order: &impl Serialize) -> [u8; 32] {
    // Serialization cannot fail.
    Sha256::digest(serde_json::to_vec(order).unwrap_or_default()).into()
}

/// A JSON response within the tenant's share of response memory.
pub(crate) fn json_response(
    gateway: &Gateway,
    tenant: &str,
    body: &impl Serialize,
) -> Answer<axum::response::Response> {
    let text = serde_json::to_vec(body).unwrap_or_default();
    crate::json_response::from_bytes(gateway.response_bytes(), tenant, Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_uuid_is_one() {
        let good = "0f8fad5b-d9cb-469f-A165-70867728950e";
        assert!(Uuid::try_from(good.to_owned()).is_ok());
        let long = "a".repeat(300);
        for bad in [
            "",
            "..",
            "../../etc",
            &good[1..],
            &good.replace('-', "_"),
            &good.replace('0', "g"),
            &long,
        ] {
            assert!(Uuid::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        let multibyte = format!("{}é", &good[..34]);
        assert!(Uuid::try_from(multibyte).is_err());
        let fresh = Uuid::fresh().unwrap();
        assert!(Uuid::try_from(fresh.0.clone()).is_ok() && fresh != Uuid::fresh().unwrap());
    }

    #[test]
    fn a_name_is_of_one_tenant_and_one_kind() {
        let id = Uuid::try_from("0f8fad5b-d9cb-469f-a165-70867728950e".to_owned()).unwrap();
        let upper = Uuid::try_from(id.0.to_ascii_uppercase()).unwrap();
        assert_eq!(id.name("job", "a"), upper.name("job", "a"));
        assert_ne!(id.name("job", "a"), id.name("job", "b"));
        assert_ne!(id.name("job", "a")[4..], id.name("session", "a")[8..]);
        assert!(spec::Id::new(&id.name("job", "a")).is_ok());
    }

    #[test]
    fn what_airlock_sets_is_ignored_and_the_rest_passes() {
        let env = [
            "CYNODE_TASK_ID",
            "CYNODE_JOB_ID",
            "CYNODE_WORKSPACE_DIR",
            "CYNODE_PROMPT",
            "X",
        ];
        let env = env.map(|name| (name.to_owned(), "v".to_owned())).into();
        let names: Vec<_> = variables(&env).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["CYNODE_PROMPT", "X"]);
    }
}
