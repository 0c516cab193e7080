//! Files by handle. A [`Dir`] is an open folder; everything is looked up beneath it and, unless
//! [`Lookup`] says otherwise, through no symbolic link. The tree below may be hostile and may
//! change at any time: names are checked by the kernel (`openat2`), never compared as text first.
//!
//! | file | what |
//! |---|---|
//! | `dir.rs` | open, stat, list, rename, remove one name |
//! | `draft.rs` | a file that gets its name when it is whole; atomic replace |
//! | `draft_dir.rs` | the same for a folder, with a lock that dies with its owner |
//! | `walk.rs` | every entry of a tree, with bounds |
//! | `remove.rs` | a folder with all that is in it |
#![forbid(unsafe_code)]

mod dir;
mod draft;
mod draft_dir;
mod remove;
mod walk;

pub use dir::{Dir, DirEntries, DirEntry, Lookup};
pub use draft::Draft;
pub use draft_dir::{DraftDir, try_lock};
pub use remove::{RemoveError, RemoveOptions};
pub use walk::{Walk, WalkBounds, WalkEntry, WalkError};

#[cfg(test)]
mod tests;
