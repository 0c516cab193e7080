//! Files that tools and agents share, in the layouts that agents of the mesh read and write. Names are strangers' words: none
//! becomes a path unchecked.

/// Whose files. None of it is a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Scope {
    /// The namespace, or the agent's name, as `ARTIFACT_SCOPE` says.
    pub app: String,
    pub user: String,
    pub session: String,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Version {
    pub version: i64,
    pub mime_type: String,
    pub bytes: bytes::Bytes,
}

/// Why a file cannot be had or kept: whether it is not there, its name is bad, it is too large, or the store fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShelfError(pub String);

/// Where they are.
#[derive(Clone, Debug)]
pub enum Shelf {
    /// In the memory of this process: shared with nobody.
    Memory,
}

impl Shelf {
    /// A version, or the latest, of at most so many bytes.
    pub async fn load(
        &self,
        _scope: &Scope,
        _filename: &str,
        _version: Option<i64>,
        _most: u64,
    ) -> Result<Version, ShelfError> {
        Err(ShelfError("not yet".to_owned()))
    }

    /// Keeps it as the next version, and tells which that is: no two writers get the same.
    pub async fn save(
        &self,
        _scope: &Scope,
        _filename: &str,
        _mime_type: &str,
        _bytes: bytes::Bytes,
    ) -> Result<i64, ShelfError> {
        Err(ShelfError("not yet".to_owned()))
    }
}
