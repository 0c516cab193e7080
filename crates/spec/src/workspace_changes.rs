//! Changes of a program to its workspace, as a result reports them.

use crate::Id;

/// Changes of a program to its workspace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WorkspaceChanges {
    /// The identifier by which they are shown, committed or discarded.
    pub id: Id,
    /// How the folder is shared with the program.
    pub mode: WorkspaceMode,
    /// New names.
    pub added: u64,
    /// Names whose contents, permissions or kind changed.
    pub changed: u64,
    /// Removed names.
    pub removed: u64,
    /// Changes that were applied to the folder when the program had ended.
    pub applied: u64,
    /// Paths that were removed from the folder, or are not applied to it; at most
    /// [`MAX_LISTED_CHANGES`].
    pub held_back: Vec<HeldBackPath>,
    /// The number of all such paths.
    pub held_back_total: u64,
    /// Changes that were not applied because the folder has changed in the same place; at most
    /// [`MAX_LISTED_CHANGES`].
    pub conflicts: Vec<Conflict>,
    /// The number of all conflicts.
    pub conflicts_total: u64,
    /// Commits of the program: the abbreviated name and the subject of each.
    pub commits: Vec<String>,
    /// The layer that holds the changes, if there is one.
    #[serde(flatten)]
    pub layer: Option<LayerUsage>,
}

/// Entries of a list in a result.
pub const MAX_LISTED_CHANGES: usize = 100;

impl WorkspaceChanges {
    /// No changes.
    pub fn none(id: Id, mode: WorkspaceMode) -> WorkspaceChanges {
        WorkspaceChanges {
            id,
            mode,
            added: 0,
            changed: 0,
            removed: 0,
            applied: 0,
            held_back: Vec::new(),
            held_back_total: 0,
            conflicts: Vec::new(),
            conflicts_total: 0,
            commits: Vec::new(),
            layer: None,
        }
    }

    /// Adds paths that were held back. Those beyond the limit of the list are only counted.
    pub fn hold_back(&mut self, held_back: impl IntoIterator<Item = HeldBackPath>) {
        for held in held_back {
            self.held_back_total += 1;
            if self.held_back.len() < MAX_LISTED_CHANGES {
                self.held_back.push(held);
            }
        }
    }
}

/// How a workspace is shared with its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceMode {
    /// The program writes to the folder directly.
    Live,
    /// The changes are applied to the folder when the program has ended.
    Staged,
    /// The changes stay in a layer until they are committed or discarded.
    CopyOnWrite,
}

/// A change that was not applied because the folder has changed in the same place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Conflict {
    /// The path in the workspace; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// A layer with a program's changes, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LayerUsage {
    /// Its kind.
    #[serde(rename = "layer")]
    pub kind: LayerKind,
    /// Bytes on disk.
    #[serde(rename = "layer_bytes")]
    pub bytes: u64,
}

/// How the layer over a workspace takes the program's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// A copy that shares its blocks with the folder until either is written.
    Reflink,
    /// A full copy.
    #[default]
    Copy,
    /// An overlay file system: the kernel copies a file when it is written.
    Overlay,
}

/// A path that was removed from a mounted workspace when the program had ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HeldBackPath {
    /// The path in the workspace; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The reason.
    pub why: HoldReason,
}

/// Why a path is held back from a mounted workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// Tools of the host execute or obey files of this name.
    ProtectedName,
    /// A link to a place outside the folder.
    LinkOut,
    /// A link to a protected name.
    LinkToProtected,
    /// A device, a socket or a whiteout.
    SpecialFile,
    /// A folder that could not be read.
    Unreadable,
    /// The folder for artifacts, not all of which were stored.
    Artifacts,
}

impl HoldReason {
    /// The reason as a clause for messages.
    pub fn words(self) -> &'static str {
        match self {
            HoldReason::ProtectedName => "tools of the host obey files of this name",
            HoldReason::LinkOut => "it is a link that leads out of the folder",
            HoldReason::LinkToProtected => "it is a link to a protected name",
            HoldReason::SpecialFile => "it is a device, a socket or a whiteout",
            HoldReason::Unreadable => "it could not be looked into",
            HoldReason::Artifacts => "what lies there was not kept as artifacts",
        }
    }
}
