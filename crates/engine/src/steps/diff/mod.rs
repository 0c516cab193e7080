//! Unified diffs, parsed and applied by pure functions: git's and plain ones. Every context line
//! must match exactly, and a hunk may have moved by a limited number of lines; there is no other
//! fuzz.
//!
//! The diff is untrusted: everything is bounded, and an error quotes no more of it than a file
//! name.

mod apply;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use apply::apply;
pub(crate) use parse::parse;

/// The most files that one diff changes.
pub(crate) const MAX_FILES: usize = 256;
/// The largest file before and after, in bytes.
pub(crate) const MAX_FILE_BYTES: usize = 8 << 20;
/// The farthest that a hunk may have moved, in lines.
const MAX_HUNK_OFFSET: usize = 200;

/// The change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePatch<'a> {
    pub(crate) what: FileOperation,
    /// Sets or clears the executable bit; not known from plain diffs.
    pub(crate) executable: Option<bool>,
    pub(crate) hunks: Vec<Hunk<'a>>,
}

/// The operation, with the paths as in the diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileOperation {
    Modify(String),
    Create(String),
    Delete(String),
    Rename { from: String, to: String },
    Copy { from: String, to: String },
}

/// A hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hunk<'a> {
    /// The first old line, counted from 0; without old lines, the line before which it inserts.
    at: usize,
    lines: Vec<HunkLine<'a>>,
}

/// A line of a hunk; `ends` says whether it has a newline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HunkLine<'a> {
    kind: LineKind,
    text: &'a [u8],
    ends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    Same,
    Gone,
    New,
}

/// Why a diff is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiffError {
    #[error("line {line} of the diff {why}")]
    Shape { line: usize, why: &'static str },
    #[error("the diff changes nothing")]
    Empty,
    #[error("the diff changes more than {MAX_FILES} files")]
    TooMany,
    #[error("the diff has a binary patch for `{path}`, which is not applied")]
    Binary { path: String },
    #[error("`{path}` is a symbolic link or a submodule in the diff, which is not made")]
    Special { path: String },
    #[error("hunk {hunk} does not fit: what stands at line {line} is something else")]
    Differs { hunk: usize, line: usize },
    #[error("hunk {hunk} does not fit where it was made for, and fits in two places equally near")]
    Ambiguous { hunk: usize },
    #[error("hunk {hunk} would join two lines: what is before it ends without a newline")]
    Joins { hunk: usize },
    #[error("a file of more than {MAX_FILE_BYTES} bytes is not changed")]
    TooLarge,
}
