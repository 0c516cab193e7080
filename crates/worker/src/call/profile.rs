//! The three profiles and their numbers.

/// How far a tool is shut in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Profile {
    Restrictive,
    Standard,
    Permissive,
}

impl Profile {
    /// By its name; none if nobody knows it.
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "restrictive" => Some(Profile::Restrictive),
            "standard" => Some(Profile::Standard),
            "permissive" => Some(Profile::Permissive),
            _ => None,
        }
    }
}
