//! A process that creates namespaces in advance and closes used ones, so that no run waits for
//! either. It is a child of the launcher, in its user namespace; it ends when the launcher's end of
//! its socket is closed.
//!
//! ```text
//! launcher ── Make(ids) ──▶ pool process ── network, user namespace ──▶ launcher ──▶ one sandbox, once
//!          ── Clear + handles of a sandbox that is gone ──▶ closed here
//! ```

use crate::{
    pid1::{self, IdMap},
    plan::{Ids, NamespacePoolPlan},
    protocol,
    sys::{self, ForkSide},
    wire::{DecodeError, Wire},
};
use rustix::{
    process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Requests of the launcher to the pool process.
enum PoolRequest {
    Make(Ids),
    Clear,
}

/// The reply: namespaces for a program of these ids, or none if they could not be created.
struct PoolReply(Option<Ids>);

impl Wire for PoolRequest {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            PoolRequest::Make(ids) => Some(*ids),
            PoolRequest::Clear => None,
        }
        .put(out);
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Option::<Ids>::get(input)?.map_or(PoolRequest::Clear, PoolRequest::Make))
    }
}

impl Wire for PoolReply {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Option::get(input).map(PoolReply)
    }
}

/// A new network namespace and a new user namespace for one sandbox.
pub(crate) struct PooledNamespaces {
    pub(crate) ids: Ids,
    pub(crate) network: OwnedFd,
    pub(crate) user: OwnedFd,
}

/// The launcher's side of the pool.
pub(crate) struct NamespacePool {
    socket: OwnedFd,
    plan: NamespacePoolPlan,
    ready: Vec<PooledNamespaces>,
    /// Counts the requests: each uses the next id.
    requested: u32,
    /// Namespaces that were taken and not requested again yet.
    missing: u32,
}

impl NamespacePool {
    /// Forks the pool process and requests the first namespaces.
    pub(crate) fn start(plan: NamespacePoolPlan) -> io::Result<(NamespacePool, i32, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        match sys::fork_into(0, None)? {
            ForkSide::Child => {
                drop(ours);
                sys::exit(i32::from(serve(&theirs).is_err()))
            }
            ForkSide::Parent { pid, pidfd } => {
                let mut pool = NamespacePool {
                    socket: ours,
                    plan,
                    ready: Vec::new(),
                    requested: plan.first_turn,
                    missing: plan.depth,
                };
                pool.replenish();
                Ok((pool, pid, pidfd))
            }
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Namespaces for a program with these ids inside, if any are ready.
    pub(crate) fn take(&mut self, ids: Ids) -> Option<PooledNamespaces> {
        let inside = |ids: Ids| (ids.uid, ids.gid, ids.drop_groups);
        if inside(ids) != inside(self.plan.ids) {
            return None;
        }
        let found = self.ready.pop()?;
        self.missing += 1;
        Some(found)
    }

    /// Receives one reply; false if the pool process is gone.
    pub(crate) fn receive(&mut self) -> bool {
        let Ok(Some((PoolReply(ids), handles))) = protocol::receive::<PoolReply>(&self.socket)
        else {
            return false;
        };
        let mut handles = handles.into_iter();
        if let (Some(ids), Some(network), Some(user)) = (ids, handles.next(), handles.next()) {
            self.ready.push(PooledNamespaces { ids, network, user });
        }
        true
    }

    /// Lets the pool process close these: closing the last descriptor of a mount namespace waits
    /// for all CPUs of the machine.
    pub(crate) fn clear(&self, handles: &[OwnedFd]) {
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        // With a full queue they are closed here, which is only slower.
        _ = protocol::send(&self.socket, &PoolRequest::Clear, &handles);
    }

    /// Namespaces for any program.
    pub(crate) fn take_any(&mut self) -> Option<PooledNamespaces> {
        self.take(self.plan.ids)
    }

    /// Requests replacements for what was taken. Best while no run waits: creating a network
    /// namespace keeps a CPU busy for as long as a run takes.
    pub(crate) fn replenish(&mut self) {
        (0..std::mem::take(&mut self.missing)).for_each(|_| self.request_next());
    }

    fn request_next(&mut self) {
        let turn = self.requested % self.plan.outer_count.max(1);
        self.requested = self.requested.wrapping_add(1);
        let ids = self.plan.ids;
        let ids = Ids {
            outer_uid: ids.outer_uid + turn,
            outer_gid: ids.outer_gid + turn,
            ..ids
        };
        // With a full queue or without the pool process, sandboxes create their own namespaces.
        _ = protocol::send(&self.socket, &PoolRequest::Make(ids), &[]);
    }
}

/// Creates the namespaces of the first sandbox while its root is built. The calling process ends
/// afterwards.
pub(crate) fn create_first(ids: Ids, socket: &OwnedFd) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWNET)?;
    sys::loopback_up()?;
    let network = pid1::open_read_only(c"/proc/self/ns/net")?;
    let user = pid1::user_namespace(IdMap::of_program(ids), pid1::QUOTAS)?;
    protocol::send(
        socket,
        &PoolReply(Some(ids)),
        &[network.as_fd(), user.as_fd()],
    )
}

/// The namespaces of [`create_first`]; none if it failed.
pub(crate) fn receive_first(socket: &OwnedFd) -> Option<PooledNamespaces> {
    let (PoolReply(ids), handles) = protocol::receive::<PoolReply>(socket).ok()??;
    let mut handles = handles.into_iter();
    Some(PooledNamespaces {
        ids: ids?,
        network: handles.next()?,
        user: handles.next()?,
    })
}

fn serve(socket: &OwnedFd) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pid1::close_all_except(&[socket.as_fd()])?;
    // The launcher is not dumpable; this process has to be, to write the id maps of its helpers.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // It must not stay in a network namespace that belongs to a sandbox.
    sys::unshare(libc::CLONE_NEWNET)?;
    let home = pid1::open_read_only(c"/proc/self/ns/net")?;
    while let Some((request, handles)) = protocol::receive::<PoolRequest>(socket)? {
        match request {
            PoolRequest::Clear => drop(handles),
            PoolRequest::Make(ids) => match create(ids, &home) {
                Ok((network, user)) => {
                    protocol::send(
                        socket,
                        &PoolReply(Some(ids)),
                        &[network.as_fd(), user.as_fd()],
                    )?;
                }
                // The sandbox that needs them will fail at the same step, and report it.
                Err(_) => protocol::send(socket, &PoolReply(None), &[])?,
            },
        }
    }
    Ok(())
}

fn create(ids: Ids, home: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    sys::unshare(libc::CLONE_NEWNET)?;
    let network = sys::loopback_up().and_then(|()| pid1::open_read_only(c"/proc/self/ns/net"));
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok((
        network?,
        pid1::user_namespace(IdMap::of_program(ids), pid1::QUOTAS)?,
    ))
}
