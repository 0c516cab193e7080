//! OCI images without a daemon: archives and layouts are read, registries asked, layers unpacked safely into a store
//! that boxes start from. Everything here comes from strangers: names, sizes, digests and contents.

pub mod build;
pub mod contract;
pub mod recipe;
pub mod secrets;
