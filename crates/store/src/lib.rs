//! What must last: artifacts in a folder.
//!
//! Everything is reached by handle (`openat2`, beneath, no symbolic links): a path string is never
//! resolved twice.

mod about;
mod artifacts;
mod beneath;
mod draft;
mod names;

pub use artifacts::{Artifacts, Kept, Listing, StoreError};
