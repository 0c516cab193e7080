//! A unified diff, read and applied: pure functions of bytes. Git's and plain ones; every context line must fit as it is, a
//! hunk may have moved by a few lines, and nothing is guessed beyond that.
//!
//! The diff is a stranger's: everything is bounded, and what is refused is told without more of its words than a name.

mod apply;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use apply::apply;
pub(crate) use parse::parse;

/// Files that one diff changes.
pub(crate) const MOST_FILES: usize = 256;
/// How long a file may be before and after, in bytes.
pub(crate) const LARGEST_FILE: usize = 8 << 20;
/// How far a hunk may have moved, in lines.
const FARTHEST: usize = 200;

/// What a diff does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) what: What,
    /// Whether it becomes executable, or ceases to be; unknown to plain diffs.
    pub(crate) executable: Option<bool>,
    pub(crate) hunks: Vec<Hunk<'a>>,
}

/// Which files, by their paths as the diff has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Modify(String),
    Create(String),
    Delete(String),
    Rename { from: String, to: String },
    Copy { from: String, to: String },
}

/// One place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hunk<'a> {
    /// The first line that it is about, counted from 0; without lines of its own, the line before which it adds.
    at: usize,
    lines: Vec<Line<'a>>,
}

/// One line of a hunk: what it says of the text, with the newline that ends it, if one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
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

/// Why a diff is not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadDiff {
    #[error("line {line} of the diff {why}")]
    Shape { line: usize, why: &'static str },
    #[error("the diff changes nothing")]
    Empty,
    #[error("the diff changes more than {MOST_FILES} files")]
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
    #[error("a file of more than {LARGEST_FILE} bytes is not changed")]
    TooLarge,
}
