//! Commits that a run brings into the repositories of its workspace, as a result reports them.

/// Commits of a program in one repository of its workspace. A reference of the user's moves only
/// where nothing conflicts; otherwise the commits are placed under `refs/airlock/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GitImport {
    /// `.git`, or the git folder of a submodule below it.
    pub path: String,
    /// New objects.
    pub objects: u64,
    /// Their size.
    pub bytes: u64,
    /// New or changed branches and tags.
    pub refs: Vec<GitRef>,
    /// Paths that need a review before the commits are merged, because git or other tools of the
    /// host obey them or write through them: protected names, symbolic links, submodules.
    pub touches: Vec<String>,
    /// New commits, the newest first: the abbreviated name and the subject of each. At most
    /// [`MAX_LISTED_CHANGES`](crate::MAX_LISTED_CHANGES).
    pub commits: Vec<String>,
    /// `HEAD` inside and on the host, if the program's changes were applied to the folder.
    pub head: Option<GitHead>,
    /// What happened to the index.
    pub index: GitIndex,
    /// References and objects that were not imported.
    pub not_brought: Vec<GitOmission>,
}

/// `HEAD`: the full name of a branch, or a commit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GitHead {
    /// In the program's repository, when the program had ended.
    pub inside: String,
    /// In the user's repository, now.
    pub host: String,
}

/// What happened to the index of the user's repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GitIndex {
    /// It is unchanged.
    #[default]
    Kept,
    /// It follows the branch; the changes that the user had staged are still staged.
    Moved,
    /// It follows the branch; the program committed a newer version of files that the user had
    /// staged.
    Superseded,
}

/// An imported reference.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GitRef {
    /// Its name in the program's repository.
    pub name: String,
    /// The object that it named before the run.
    pub old: Option<String>,
    /// The object that it names now.
    pub new: String,
    /// Its name on the host.
    pub placed: String,
    /// Whether that is the program's name, rather than one under `refs/airlock/`.
    pub moved: bool,
    /// Why it was not moved, where a move was possible.
    pub why: Option<String>,
}

/// A reference or object that was not imported.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GitOmission {
    /// Its name.
    pub what: String,
    /// The reason.
    pub why: String,
}
