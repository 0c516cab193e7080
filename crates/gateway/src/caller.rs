//! The authenticated caller of a request: API key, tenant and scopes.

use crate::{Gateway, Problem, key_watch::KeyWatch};
use axum::extract::FromRequestParts;
use http::{StatusCode, request::Parts};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use utoipa::ToSchema;

/// What a key may do.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything, and everybody's; keys, too.
    Admin,
    /// Runs.
    Runs,
    /// Sandboxes: sessions, their files and programs.
    Sandboxes,
    /// Artifacts.
    Artifacts,
    /// Images.
    Images,
    /// What was used.
    Usage,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 6] = [
        Scope::Admin,
        Scope::Runs,
        Scope::Sandboxes,
        Scope::Artifacts,
        Scope::Images,
        Scope::Usage,
    ];

    /// The name in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::Runs => "runs",
            Scope::Sandboxes => "sandboxes",
            Scope::Artifacts => "artifacts",
            Scope::Images => "images",
            Scope::Usage => "usage",
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Scope, String> {
        let names = Scope::ALL.map(Scope::name).join(", ");
        let found = Scope::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| {
            format!(
                "no scope is called `{}`; there are {names}",
                text.escape_debug()
            )
        })
    }
}

/// The holder of the API key of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Id of the key.
    pub key: String,
    /// Tenant of the key, which owns what the key creates. A key without a tenant is its own
    /// tenant.
    pub tenant: String,
    /// Scopes of the key.
    pub scopes: Vec<Scope>,
    /// Signals when the key expires or is revoked.
    pub(crate) validity: KeyWatch,
}

impl Caller {
    /// Refuses a caller without this scope.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Problem> {
        if self.is_admin() || self.scopes.contains(&scope) {
            Ok(())
        } else {
            Err(Problem::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "this key may not do that",
                Some(format!("ask for a key with the scope `{}`", scope.name())),
            )
            .with_rule(format!("scope:{}", scope.name())))
        }
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// The tenant as the owner of created resources.
    pub(crate) fn owner(&self) -> Result<spec::Id, Problem> {
        owner_of(&self.tenant)
    }

    /// Whether the caller may see resources of `owner`.
    pub(crate) fn sees(&self, owner: &str) -> bool {
        self.is_admin() || self.tenant == owner
    }
}

/// The tenant as an owner. Resources without an owner belong to the machine itself, so an owner is
/// always set.
pub(crate) fn owner_of(tenant: &str) -> Result<spec::Id, Problem> {
    let unusable = |_| {
        let title = "the tenant has no usable name";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, None)
    };
    spec::Id::new(tenant).map_err(unusable)
}

/// The middleware adds the caller to the request; without it the request is unauthorized.
impl FromRequestParts<Gateway> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Gateway) -> Result<Caller, Problem> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "a key is needed",
                None,
            )
        })
    }
}
