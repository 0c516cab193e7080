//! OCI images without a daemon: reads archives and layouts, pulls from registries, and unpacks
//! layers into the store from which sandboxes start. All input is untrusted: names, sizes, digests
//! and contents.

pub mod build;
pub mod contract;
pub mod document;
mod draft;
mod error;
mod layer;
mod limits;
mod load;
mod load_plan;
mod metadata;
mod names;
mod permissions;
pub mod recipe;
pub mod registry;
mod rootfs;
pub mod secrets;
mod source;
mod store;
mod suggestions;
pub mod tar;
mod user;

pub use document::Platform;
pub use error::ImageError;
pub use limits::ImageLimits;
pub use load::{LoadOutcome, LoadProgress};
pub use source::ImageSource;
pub use store::{ImageListing, ImageRemoval, ImageStore, ImageSummary, ScratchFolder, StoredImage};
