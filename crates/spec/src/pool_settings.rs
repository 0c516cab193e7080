//! Settings of the pool: sandboxes and namespaces that a server prepares before runs need them.

use crate::Size;

/// Settings of the pool. It is off by default: for a single run it costs more than it saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Warm sandboxes of each kind, for runs that need nothing from the host.
    pub warm_sandboxes: usize,
    /// Prepared cgroups with network and user namespaces, for other runs.
    pub prepared_namespaces: usize,
    /// Memory of all of them together, at [`PoolSettings::WARM_SANDBOX_BYTES`] each.
    pub memory: Size,
}

impl PoolSettings {
    /// The estimated memory of one warm sandbox in engine, launcher and kernel. `airlock bench`
    /// measures it; the reference run has 669 KiB.
    pub const WARM_SANDBOX_BYTES: Size = Size(704 << 10);

    /// No pool.
    pub const OFF: PoolSettings = PoolSettings {
        warm_sandboxes: 0,
        prepared_namespaces: 0,
        memory: Size(32 << 20),
    };
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings::OFF
    }
}
