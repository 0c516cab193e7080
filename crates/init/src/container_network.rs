//! Sets up transparent proxying in the network namespace of a container, from outside: the
//! container engine adds no routes, and nothing inside may. This runs in a process of its own,
//! because it leaves the host's network namespace, and ends afterwards.

use crate::{
    container_init,
    pid1::open_read_only,
    plan::ContainerNetworkPlan,
    protocol::{self, Payload, Report},
    step::Step,
    sys,
    template::failure,
    transparent_proxy::{self, Interception},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Runs this process to its end.
pub(crate) fn set_up(control: &OwnedFd, plan: &Payload, files: Vec<OwnedFd>) -> ! {
    let sent = match intercept(plan, files) {
        Ok(intercept) => {
            let handles: Vec<_> = intercept.handles().collect();
            protocol::send(
                control,
                &Report::NetworkReady(intercept.handle_counts()),
                &handles,
            )
        }
        Err(error) => {
            let failed = failure(Step::TransparentProxy, "the container's network")(error);
            protocol::send(control, &Report::Failed(failed), &[])
        }
    };
    sys::exit(i32::from(sent.is_err()))
}

fn intercept(plan: &Payload, mut files: Vec<OwnedFd>) -> io::Result<Interception> {
    let plan: ContainerNetworkPlan = plan.read(&mut files)?;
    let network = files
        .pop()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    enter(&network)?;
    transparent_proxy::intercept_all(&plan.intercept, &plan.doors)
}

/// Joins a network namespace that is neither the host's nor has an interface besides `lo`: every
/// address in it becomes local.
fn enter(network: &OwnedFd) -> io::Result<()> {
    let own = open_read_only(c"/proc/self/ns/net")?;
    let id = |of: &OwnedFd| rustix::fs::fstat(of).map(|found| (found.st_dev, found.st_ino));
    let refused = || Err(io::Error::from_raw_os_error(libc::EINVAL));
    if id(&own)? == id(network)? {
        return refused();
    }
    // An ordinary user has the right to join it as the owner of its user namespace.
    if !rustix::process::geteuid().is_root() {
        let owner = sys::owner_of(network.as_fd())?;
        move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User))?;
    }
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    if container_init::only_loopback()? {
        Ok(())
    } else {
        refused()
    }
}
