//! Durable data: artifacts in a folder or a bucket; in SQLite the allowed images, model usage, and
//! a server's keys, runs, jobs and webhooks; and the audit log.
//!
//! Files are opened relative to directory handles (`fs`: beneath, no symbolic links): a path string
//! is never resolved twice.

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
