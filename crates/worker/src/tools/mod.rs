//! The tools of a worker: what the manifest says, what they say of themselves, what they need installed.
