//! Topics: `{namespace}/a2a/v1/sam_remote_tool/…`.

/// The longest topic that a broker of the mesh takes.
pub const LONGEST: usize = 250;
