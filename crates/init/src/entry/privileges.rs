//! Drops everything but the user's own rights, then asks the kernel whether that is so. A drop that
//! was refused, or that can be undone, is an error: the program must never run as root by mistake.

use super::{EntryError, user::ProgramUser};
use rustix::{
    io::Errno,
    process::{Gid, Uid, getegid, geteuid, getgid, getgroups, getuid},
    thread::{self, CapabilitySet, CapabilitySets},
};
use std::{collections::BTreeSet, io};

/// The state of the bounding set, which only `CAP_SETPCAP` may empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BoundingSet {
    Empty,
    /// Without effect under `no_new_privs`.
    Kept,
}

/// Whether this process began as root.
pub(super) fn is_root() -> bool {
    geteuid().is_root() || getuid().is_root()
}

/// Changes to the user for good.
pub(super) fn become_user(user: &ProgramUser) -> Result<BoundingSet, EntryError> {
    if let Some(missing) = missing_capabilities(user)? {
        return Err(missing);
    }
    // While the capabilities are still there.
    empty_bounding_set()?;
    take_identity(user).map_err(|error| refused(user, &error.to_string()))?;
    give_up_capabilities()?;
    verify(user)?;
    Ok(bounding())
}

/// For a process that was not root: drops what is left.
pub(super) fn stay(user: &ProgramUser) -> Result<BoundingSet, EntryError> {
    empty_bounding_set()?;
    give_up_capabilities()?;
    verify(user)?;
    Ok(bounding())
}

fn failed(what: &str) -> impl FnOnce(Errno) -> EntryError {
    move |error| EntryError::new(format!("cannot {what}: {}", io::Error::from(error)))
}

fn refused(user: &ProgramUser, why: &str) -> EntryError {
    EntryError::new(format!(
        "cannot become `{}` (uid {}, gid {}): {why}",
        user.name, user.uid, user.gid
    ))
}

/// Reports a missing capability before a drop fails half way, and what to do about it.
fn missing_capabilities(user: &ProgramUser) -> Result<Option<EntryError>, EntryError> {
    let held = thread::capabilities(None)
        .map_err(failed("read our capabilities"))?
        .effective;
    let needs_group =
        getgid().as_raw() != user.gid || getegid().as_raw() != user.gid || !has_groups(user)?;
    let needs_user = getuid().as_raw() != user.uid || geteuid().as_raw() != user.uid;
    let mut missing = Vec::new();
    if needs_user && !held.contains(CapabilitySet::SETUID) {
        missing.push("SETUID");
    }
    if needs_group && !held.contains(CapabilitySet::SETGID) {
        missing.push("SETGID");
    }
    Ok((!missing.is_empty()).then(|| {
        let list = missing.join(" and ");
        let uid = user.uid;
        let gid = user.gid;
        let remedy = format!(
            "start the container with `--user {uid}:{gid}`, or add {list} to its capabilities"
        );
        refused(
            user,
            &format!("root lacks the capability {list} here; {remedy}"),
        )
    }))
}

/// Whether the supplementary groups are these already, the user's own aside.
fn has_groups(user: &ProgramUser) -> Result<bool, EntryError> {
    let now: BTreeSet<_> = getgroups()
        .map_err(failed("read our groups"))?
        .iter()
        .map(|gid| gid.as_raw())
        .collect();
    let without_own = |groups: BTreeSet<u32>| {
        groups
            .into_iter()
            .filter(|gid| *gid != user.gid)
            .collect::<Vec<_>>()
    };
    Ok(without_own(now) == without_own(user.groups.iter().copied().collect()))
}

fn take_identity(user: &ProgramUser) -> io::Result<()> {
    let groups: Vec<_> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    if !has_groups(user).unwrap_or(false) {
        thread::set_thread_groups(&groups)?;
    }
    let uid = Uid::from_raw(user.uid);
    let gid = Gid::from_raw(user.gid);
    thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(thread::set_thread_res_uid(uid, uid, uid)?)
}

/// The capabilities that this kernel knows.
fn known() -> impl Iterator<Item = CapabilitySet> {
    let is_known =
        |capability: &CapabilitySet| thread::capability_is_in_bounding_set(*capability).is_ok();
    (0..64)
        .map(|number| CapabilitySet::from_bits_retain(1 << number))
        .take_while(is_known)
}

/// As far as the capabilities allow.
fn empty_bounding_set() -> Result<(), EntryError> {
    for capability in known() {
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::PERM) => return Ok(()), // `bounding` sees what is left
            Err(error) => return Err(failed("empty the bounding set of capabilities")(error)),
        }
    }
    Ok(())
}

fn give_up_capabilities() -> Result<(), EntryError> {
    thread::clear_ambient_capability_set().map_err(failed("clear the ambient capabilities"))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    thread::set_capabilities(None, sets).map_err(failed("give up the capabilities"))?;
    thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))
}

/// Checks the drops with the kernel.
fn verify(user: &ProgramUser) -> Result<(), EntryError> {
    let wrong = |what: &str| {
        Err(refused(
            user,
            &format!("the kernel still says otherwise: {what}"),
        ))
    };
    if [getuid().as_raw(), geteuid().as_raw()] != [user.uid; 2] {
        return wrong("user");
    }
    if [getgid().as_raw(), getegid().as_raw()] != [user.gid; 2] || !has_groups(user)? {
        return wrong("groups");
    }
    let sets = thread::capabilities(None).map_err(failed("read our capabilities"))?;
    if !(sets.effective | sets.permitted | sets.inheritable).is_empty()
        || known().any(|capability| thread::capability_is_in_ambient_set(capability) != Ok(false))
    {
        return wrong("capabilities");
    }
    if thread::no_new_privs() != Ok(true) {
        return wrong("no_new_privs");
    }
    let root = Uid::from_raw(0);
    if user.uid != 0 && thread::set_thread_res_uid(root, root, root).is_ok() {
        return wrong("root could be regained");
    }
    let group = Gid::from_raw(0);
    if user.gid != 0
        && !user.groups.contains(&0)
        && thread::set_thread_res_gid(group, group, group).is_ok()
    {
        return wrong("the group of root could be regained");
    }
    Ok(())
}

fn bounding() -> BoundingSet {
    if known().any(|capability| thread::capability_is_in_bounding_set(capability) != Ok(false)) {
        BoundingSet::Kept
    } else {
        BoundingSet::Empty
    }
}
