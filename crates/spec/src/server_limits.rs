//! Limits of the server, of its job queue and of the artifact store.

use std::time::Duration;

/// Limits of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Concurrent connections.
    pub connections: usize,
    /// Bytes of a JSON body.
    pub body: usize,
    /// Timeout for the headers of a request, and for an idle connection.
    pub header_timeout: Duration,
    /// Timeout for a client that reads nothing of its response.
    pub write_timeout: Duration,
    /// Concurrent runs of a tenant without a quota.
    pub runs_per_key: usize,
    /// Concurrent runs of all tenants.
    pub runs: usize,
    /// Ended runs whose results stay in the database.
    pub keep_runs: u32,
    /// How long they stay.
    pub keep_for: Duration,
    /// Grace period for runs in progress when the server ends.
    pub grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            connections: 1024,
            body: 10 << 20,
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            runs_per_key: 256,
            runs: 512,
            keep_runs: 10_000,
            keep_for: Duration::from_secs(7 * 24 * 3600),
            grace: Duration::from_secs(5),
        }
    }
}

/// Limits of the job queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobQueueLimits {
    /// Concurrent jobs; by default twice the number of cores, and at least four.
    pub slots: Option<usize>,
    /// Waiting jobs of all tenants.
    pub queued: u64,
    /// Waiting jobs of one tenant.
    pub queued_per_tenant: u64,
    /// Ended jobs that stay in the database.
    pub keep_jobs: u64,
    /// How long they stay.
    pub keep_for: Duration,
}

impl Default for JobQueueLimits {
    fn default() -> JobQueueLimits {
        JobQueueLimits {
            slots: None,
            queued: 200_000,
            queued_per_tenant: 100_000,
            keep_jobs: 100_000,
            keep_for: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Limits of the artifact store. Names and bytes of all artifacts are counted once a minute; in
/// between this process adds what it stores itself. So several processes or machines on one bucket
/// can exceed the limits by what the others store within a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtifactLimits {
    /// The bytes of one version.
    pub bytes: u64,
    /// Names of all owners.
    pub names: u64,
    /// Versions of one name.
    pub versions: u64,
    /// The bytes of all versions.
    pub total_bytes: u64,
    /// The bytes of all versions of one owner. Without it an API key has a quarter of the total,
    /// and a user of the machine itself all of it.
    pub owner_bytes: Option<u64>,
    /// Names of one owner; without it the same share of the total.
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

/// Retention of artifacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest versions of each name that stay.
    pub keep_versions: Option<u64>,
    /// The age at which a version is removed.
    pub keep_for: Option<Duration>,
}
