//! What must last: artifacts in a folder or a bucket, and in a database the images that may be used, what models
//! were used for, and a gateway's keys and runs.
//!
//! Every file is reached by handle (`fs`: beneath, no symbolic links): a path string is never
//! resolved twice.

mod allowed_images;
mod artifacts;
pub mod audit;
pub mod copy;
mod database;
pub mod jobs;
mod lent;
#[cfg(test)]
mod migrations_tests;
mod names;
pub mod served;
mod upkeep;
pub mod usage;
pub mod webhooks;

pub use allowed_images::{AllowedImages, AllowedImagesError, NewEntry, TrailLine};
pub use artifacts::{
    ArtifactSettings, Artifacts, Kept, Lineage, Listing, New, Owner, Part, Pieces, Place, Putting,
    Reading, Remote, StoreError, Wanted,
};
pub use database::DatabaseError;
pub use lent::Buffers;
pub use served::telemetry;
pub use upkeep::Upkeep;
