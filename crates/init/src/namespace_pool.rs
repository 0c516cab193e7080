//! The steward: makes namespaces ahead of need and clears used ones away, so that no run waits for either.
//! A child of the launcher, in its user namespace; it ends with the launcher's end of its socket.
//!
//! ```text
//! launcher ── Make(ids) ──▶ steward ── network, user ──▶ launcher's ready ──▶ one box, once
//!          ── Clear + handles of a box that is gone ──▶ closed here
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

/// What the launcher asks of its steward.
enum PoolRequest {
    Make(Ids),
    Clear,
}

/// What it answers: namespaces for a program of these ids, or that there are none to be had.
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

/// A network and the user of one box, both new.
pub(crate) struct PooledNamespaces {
    pub(crate) ids: Ids,
    pub(crate) network: OwnedFd,
    pub(crate) user: OwnedFd,
}

/// The launcher's side.
pub(crate) struct NamespacePool {
    socket: OwnedFd,
    plan: NamespacePoolPlan,
    ready: Vec<PooledNamespaces>,
    /// Counts what was requested for: the next takes the next id.
    requested: u32,
    /// Taken and not requested for again yet.
    missing: u32,
}

impl NamespacePool {
    /// Starts one and asks for a full ready.
    pub(crate) fn start(plan: NamespacePoolPlan) -> io::Result<(NamespacePool, i32, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        match sys::fork_into(0, None)? {
            ForkSide::Child => {
                drop(ours);
                sys::exit(i32::from(serve(&theirs).is_err()))
            }
            ForkSide::Parent { pid, pidfd } => {
                let mut steward = NamespacePool {
                    socket: ours,
                    plan,
                    ready: Vec::new(),
                    requested: plan.first_turn,
                    missing: plan.depth,
                };
                steward.replenish();
                Ok((steward, pid, pidfd))
            }
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// PooledNamespaces for a program that is this user inside, if any are ready.
    pub(crate) fn take(&mut self, ids: Ids) -> Option<PooledNamespaces> {
        let inside = |ids: Ids| (ids.uid, ids.gid, ids.drop_groups);
        if inside(ids) != inside(self.plan.ids) {
            return None;
        }
        let found = self.ready.pop()?;
        self.missing += 1;
        Some(found)
    }

    /// One thing came from the steward; false if it is gone.
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

    /// Has these closed elsewhere: the last handle of a mount namespace waits for the whole machine.
    pub(crate) fn clear(&self, handles: &[OwnedFd]) {
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        // With a full queue they are closed here, which is only slower.
        _ = protocol::send(&self.socket, &PoolRequest::Clear, &handles);
    }

    /// PooledNamespaces for whoever it may be.
    pub(crate) fn take_any(&mut self) -> Option<PooledNamespaces> {
        self.take(self.plan.ids)
    }

    /// Asks for what was taken. Best when nobody waits: making a network keeps a CPU busy for as long as a run takes.
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
        // A queue that is full, or a steward that is gone, means boxes that make their own.
        _ = protocol::send(&self.socket, &PoolRequest::Make(ids), &[]);
    }
}

/// The namespaces of the first box, made beside the building of its root. Takes the place of a steward's life: the
/// process that calls it ends.
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

/// What [`create_first`] made; none if it could not.
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
    // The launcher cannot be looked into; we must be, to write the maps of our helpers.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Not to stand in a network that belongs to a box.
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
                // The box that needs them will fail at the same, and say at what.
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
