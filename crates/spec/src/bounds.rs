//! What an operator's file bounds beside runs: the server, and the store of artifacts.

use std::time::Duration;

/// How much of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of a body that is JSON.
    pub body: usize,
    /// How long the headers of a request may take, and how long a connection may be idle.
    pub header_time: Duration,
    /// How long a client may take nothing of what it is sent.
    pub write_time: Duration,
    /// Runs at once, of one key.
    pub runs_per_key: usize,
    /// Runs at once, of all.
    pub runs: usize,
    /// How many runs are remembered.
    pub keep_runs: u32,
    /// How long they are.
    pub keep_for: Duration,
    /// How long what goes on may take when the server ends.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 1024,
            body: 10 << 20,
            header_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            runs_per_key: 256,
            runs: 512,
            keep_runs: 10_000,
            keep_for: Duration::from_secs(7 * 24 * 3600),
            grace: Duration::from_secs(5),
        }
    }
}

/// How many jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBounds {
    /// That run at once; unless said twice the cores, and at least four.
    pub slots: Option<usize>,
    /// That wait, of all tenants.
    pub queued: u64,
    /// The same of one.
    pub queued_per_tenant: u64,
    /// That are remembered once they have ended.
    pub keep_jobs: u64,
    /// How long they are.
    pub keep_for: Duration,
}

impl Default for JobBounds {
    fn default() -> JobBounds {
        JobBounds {
            slots: None,
            queued: 200_000,
            queued_per_tenant: 100_000,
            keep_jobs: 100_000,
            keep_for: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// What a store holds at most. Names and bytes in all are counted once a minute, and between by what this process keeps,
/// so that several processes, or several machines with one bucket, can go over these by what the others keep within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtifactLimits {
    /// The bytes of one version.
    pub bytes: u64,
    /// Names of one owner and another's together.
    pub names: u64,
    /// Versions of one name.
    pub versions: u64,
    /// The bytes of everything.
    pub total_bytes: u64,
    /// The bytes of everything of one owner. Without it a key has a quarter of what everybody may have together, and
    /// whoever is at the machine itself all of it.
    pub owner_bytes: Option<u64>,
    /// Names of one owner; without it the same share of all names.
    pub owner_names: Option<u64>,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        ArtifactLimits {
            bytes: 16 << 30,
            names: 100_000,
            versions: 10_000,
            total_bytes: 1 << 40,
            owner_bytes: None,
            owner_names: None,
        }
    }
}

/// What is removed without anybody asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Of each name only so many versions stay, the newest.
    pub keep_versions: Option<u64>,
    /// What is older goes.
    pub keep_for: Option<Duration>,
}
