//! Who is asking: known by a key before anything of the request is looked at.

use crate::{Gateway, Problem, validity::Validity};
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
    /// All of them.
    pub const ALL: [Scope; 6] = [
        Scope::Admin,
        Scope::Runs,
        Scope::Sandboxes,
        Scope::Artifacts,
        Scope::Images,
        Scope::Usage,
    ];

    /// The public name.
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

/// Whoever holds the key of this request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The key's identifier.
    pub key: String,
    /// The tenant that the key belongs to, which owns what it makes. A key that was given none is a tenant of its own.
    pub tenant: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Until when.
    pub(crate) validity: Validity,
}

impl Caller {
    /// Refuses whoever lacks this scope.
    pub(crate) fn require(&self, scope: Scope) -> Result<(), Problem> {
        match self.is_admin() || self.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "this key may not do that",
                Some(format!("ask for a key with the scope `{}`", scope.name())),
            )
            .ruled(format!("scope:{}", scope.name()))),
        }
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// As the owner of what it makes.
    pub(crate) fn owner(&self) -> Result<spec::Id, Problem> {
        owner_of(&self.tenant)
    }

    /// Whether it may see what belongs to `owner`.
    pub(crate) fn sees(&self, owner: &str) -> bool {
        self.is_admin() || self.tenant == owner
    }
}

/// A tenant as the owner of what it makes. Without an owner it would be the machine's own, so there is always one.
pub(crate) fn owner_of(tenant: &str) -> Result<spec::Id, Problem> {
    let unusable = |_| {
        let title = "the tenant has no usable name";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, None)
    };
    spec::Id::new(tenant).map_err(unusable)
}

/// Put there by the layer that looks at keys; without it nobody gets in.
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
