//! Resource limits of one tool.

use std::time::Duration;

/// Limits in a manifest entry. Missing ones come from the profile, which is also the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolLimits {
    /// CPU time.
    pub cpu_time: Option<Duration>,
    /// Size of a file, in bytes.
    pub file_bytes: Option<u64>,
    /// Open files.
    pub open_files: Option<u32>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// Stack size, in bytes.
    pub stack_bytes: Option<u64>,
}
