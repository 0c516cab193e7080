//! Durable data: artifacts in a folder or a bucket; in SQLite the allowed images, model usage, and
//! a server's keys, runs, jobs and webhooks; and the audit log.
//!
//! Files are opened relative to directory handles (`fs`: beneath, no symbolic links): a path string
//! is never resolved twice.

mod allowed_images;
mod artifacts;
pub mod audit;
pub mod backup;
mod buffer_pool;
mod database;
pub mod jobs;
#[cfg(test)]
mod migrations_tests;
mod name_encoding;
pub mod server_database;
mod upkeep_lock;
pub mod usage;
pub mod webhooks;

pub use allowed_images::{AllowedImages, AllowedImagesError, ImageTrailEntry, NewAllowedImage};
pub use artifacts::{
    ArtifactError, ArtifactListing, ArtifactOwner, ArtifactQuery, ArtifactSettings, Artifacts,
    ByteRange, ChunkBuffer, Lineage, NewArtifact, ObjectStoreConfig, StorageLocation,
    StoredArtifact, VersionReader, VersionWriter,
};
pub use buffer_pool::BufferPool;
pub use database::DatabaseError;
pub use server_database::telemetry;
pub use upkeep_lock::UpkeepLock;
