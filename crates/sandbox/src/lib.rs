//! Boxes: the native backend.
//! Knows nothing of secrets, stores or transports.

pub mod native;

/// The static program that boxes start with, for images that want it as their first process.
pub use init::LAUNCHER as FIRST_PROCESS;
