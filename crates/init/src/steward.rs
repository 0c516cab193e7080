//! The steward: makes namespaces ahead of need and clears used ones away, so that no run waits for either.
//! A child of the launcher, in its user namespace; it ends with the launcher's end of its socket.
//!
//! ```text
//! launcher ── Make(ids) ──▶ steward ── network, users ──▶ launcher's stock ──▶ one box, once
//!          ── Clear + handles of a box that is gone ──▶ closed here
//! ```

use crate::{
    keeper::{self, IdMap},
    plan::{Ids, StockPlan},
    protocol,
    sys::{self, Forked},
    wire::{Malformed, Wire},
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
enum Chore {
    Make(Ids),
    Clear,
}

/// What it answers: namespaces for a program of these ids, or that there are none to be had.
struct Made(Option<Ids>);

impl Wire for Chore {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Chore::Make(ids) => Some(*ids),
            Chore::Clear => None,
        }
        .put(out);
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(Option::<Ids>::get(input)?.map_or(Chore::Clear, Chore::Make))
    }
}

impl Wire for Made {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        Option::get(input).map(Made)
    }
}

/// A network and the users of one box, both new.
pub(crate) struct Namespaces {
    pub(crate) ids: Ids,
    pub(crate) network: OwnedFd,
    pub(crate) users: OwnedFd,
}

/// The launcher's side.
pub(crate) struct Steward {
    socket: OwnedFd,
    plan: StockPlan,
    stock: Vec<Namespaces>,
    /// Counts what was asked for: the next takes the next id.
    asked: u32,
    /// Taken and not asked for again yet.
    missing: u32,
}

impl Steward {
    /// Starts one and asks for a full stock.
    pub(crate) fn start(plan: StockPlan) -> io::Result<(Steward, i32, OwnedFd)> {
        let (ours, theirs) = protocol::pair()?;
        match sys::fork_into(0, None)? {
            Forked::Child => {
                drop(ours);
                sys::exit(i32::from(serve(&theirs).is_err()))
            }
            Forked::Parent { pid, pidfd } => {
                let mut steward = Steward {
                    socket: ours,
                    plan,
                    stock: Vec::new(),
                    asked: plan.first_turn,
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

    /// Namespaces for a program that is this user inside, if any are ready.
    pub(crate) fn take(&mut self, ids: Ids) -> Option<Namespaces> {
        let inside = |ids: Ids| (ids.uid, ids.gid, ids.drop_groups);
        if inside(ids) != inside(self.plan.ids) {
            return None;
        }
        let found = self.stock.pop()?;
        self.missing += 1;
        Some(found)
    }

    /// One thing came from the steward; false if it is gone.
    pub(crate) fn receive(&mut self) -> bool {
        let Ok(Some((Made(ids), handles))) = protocol::receive::<Made>(&self.socket) else {
            return false;
        };
        let mut handles = handles.into_iter();
        if let (Some(ids), Some(network), Some(users)) = (ids, handles.next(), handles.next()) {
            self.stock.push(Namespaces {
                ids,
                network,
                users,
            });
        }
        true
    }

    /// Has these closed elsewhere: the last handle of a mount namespace waits for the whole machine.
    pub(crate) fn clear(&self, handles: &[OwnedFd]) {
        let handles: Vec<_> = handles.iter().map(AsFd::as_fd).collect();
        // With a full queue they are closed here, which is only slower.
        _ = protocol::send(&self.socket, &Chore::Clear, &handles);
    }

    /// Namespaces for whoever it may be.
    pub(crate) fn take_any(&mut self) -> Option<Namespaces> {
        self.take(self.plan.ids)
    }

    /// Asks for what was taken. Best when nobody waits: making a network keeps a CPU busy for as long as a run takes.
    pub(crate) fn replenish(&mut self) {
        (0..std::mem::take(&mut self.missing)).for_each(|_| self.ask());
    }

    fn ask(&mut self) {
        let turn = self.asked % self.plan.outer_count.max(1);
        self.asked = self.asked.wrapping_add(1);
        let ids = self.plan.ids;
        let ids = Ids {
            outer_uid: ids.outer_uid + turn,
            outer_gid: ids.outer_gid + turn,
            ..ids
        };
        // A queue that is full, or a steward that is gone, means boxes that make their own.
        _ = protocol::send(&self.socket, &Chore::Make(ids), &[]);
    }
}

/// The namespaces of the first box, made beside the building of its root. Takes the place of a steward's life: the
/// process that calls it ends.
pub(crate) fn make_first(ids: Ids, socket: &OwnedFd) -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWNET)?;
    sys::loopback_up()?;
    let network = keeper::open_read_only(c"/proc/self/ns/net")?;
    let users = keeper::user_namespace(IdMap::of_program(ids), keeper::QUOTAS)?;
    protocol::send(socket, &Made(Some(ids)), &[network.as_fd(), users.as_fd()])
}

/// What [`make_first`] made; none if it could not.
pub(crate) fn receive_first(socket: &OwnedFd) -> Option<Namespaces> {
    let (Made(ids), handles) = protocol::receive::<Made>(socket).ok()??;
    let mut handles = handles.into_iter();
    Some(Namespaces {
        ids: ids?,
        network: handles.next()?,
        users: handles.next()?,
    })
}

fn serve(socket: &OwnedFd) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    keeper::keep_only(&[socket.as_fd()])?;
    // The launcher cannot be looked into; we must be, to write the maps of our helpers.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Not to stand in a network that belongs to a box.
    sys::unshare(libc::CLONE_NEWNET)?;
    let home = keeper::open_read_only(c"/proc/self/ns/net")?;
    while let Some((chore, handles)) = protocol::receive::<Chore>(socket)? {
        match chore {
            Chore::Clear => drop(handles),
            Chore::Make(ids) => match make(ids, &home) {
                Ok((network, users)) => {
                    protocol::send(socket, &Made(Some(ids)), &[network.as_fd(), users.as_fd()])?;
                }
                // The box that needs them will fail at the same, and say at what.
                Err(_) => protocol::send(socket, &Made(None), &[])?,
            },
        }
    }
    Ok(())
}

fn make(ids: Ids, home: &OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    sys::unshare(libc::CLONE_NEWNET)?;
    let network = sys::loopback_up().and_then(|()| keeper::open_read_only(c"/proc/self/ns/net"));
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok((
        network?,
        keeper::user_namespace(IdMap::of_program(ids), keeper::QUOTAS)?,
    ))
}
