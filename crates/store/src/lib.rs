//! What must last: artifacts in a folder, and in a database the images that may be used, what models
//! were used for, and a gateway's keys and runs.
//!
//! Everything is reached by handle (`openat2`, beneath, no symbolic links): a path string is never
//! resolved twice.

mod about;
mod allowed_images;
mod artifacts;
mod beneath;
mod database;
mod draft;
mod names;
pub mod served;
pub mod usage;

pub use allowed_images::{AllowedImages, AllowedImagesError, NewEntry, TrailLine};
pub use artifacts::{Artifacts, Kept, Listing, StoreError};
pub use database::DatabaseError;
