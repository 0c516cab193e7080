//! What an engine that lives long makes ahead of runs.

use crate::Size;

/// What an engine makes ahead of runs. Off unless said: a lone run is over before it would pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// How many whole sandboxes of each kind are kept ready, for runs that need nothing of the host's.
    pub parked: usize,
    /// How many cgroups and network and user namespaces are kept ready, for the other runs.
    pub berths: usize,
    /// What all of them may take together, at [`Pool::PARKED_BYTES`] each.
    pub memory: Size,
}

impl Pool {
    /// What one parked sandbox is taken to hold, with all that engine, launcher and kernel keep for it. `airlock bench`
    /// measures it; the reference run says 669 KiB.
    pub const PARKED_BYTES: Size = Size(704 << 10);

    /// Nothing is made ahead.
    pub const OFF: Pool = Pool {
        parked: 0,
        berths: 0,
        memory: Size(32 << 20),
    };
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::OFF
    }
}
