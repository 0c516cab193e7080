//! OCI images without a daemon: archives and layouts are read, registries asked, layers unpacked safely into a store
//! that boxes start from. Everything here comes from strangers: names, sizes, digests and contents.

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
