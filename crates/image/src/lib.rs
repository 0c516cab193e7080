//! OCI images without a daemon: reads archives and layouts, pulls from registries, and unpacks
//! layers into the store from which sandboxes start. All input is untrusted: names, sizes, digests
//! and contents.

mod about;
pub mod build;
pub mod contract;
pub mod document;
mod draft;
mod error;
mod layer;
mod limits;
mod load;
mod names;
mod near;
mod parts;
mod plan;
pub mod recipe;
pub mod registry;
mod rights;
pub mod secrets;
mod store;
pub mod tar;
mod tree;
mod user;

pub use document::Platform;
pub use error::ImageError;
pub use limits::Limits;
pub use load::{Loaded, Progress};
pub use parts::Source;
pub use store::{Images, Listed, Listing, Removed, Scratch, Stored};
