//! What the system call filter refuses, call by call. The control is the same call in a sandbox without the filter:
//! it works there, or fails for a reason of its own.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, World, allowed},
};
use init::step::Step;

/// What a call comes to without the filter.
#[derive(Clone, Copy)]
enum Control {
    Works,
    /// It gets as far as another refusal.
    Fails(i32),
    /// It gets as far as a second wall, and works without these steps, too.
    Behind(i32, &'static [Step]),
    /// The same as outside: not every kernel has this family of sockets.
    AsOutside(i32, i32),
}

/// A call, what the filter answers, the control.
type Row = (&'static [&'static str], Outcome, Control);

const REFUSED: Outcome = Outcome::Refused(libc::EPERM);
const NO_FAMILY: Outcome = Outcome::Refused(libc::EAFNOSUPPORT);
const KILLED: Outcome = Outcome::Killed(libc::SIGSYS);

/// Without a user namespace root has given up its power with its id, before it could empty the sets.
const OWN_USER: &[Step] = &[Step::EnterUserNamespace, Step::NoCapabilities];

const TABLE: [Row; 17] = [
    // CLONE_NEWUSER. The second wall is the quota of the program's own user namespace, which is none.
    (
        &["unshare", "268435456"],
        REFUSED,
        Control::Behind(libc::ENOSPC, OWN_USER),
    ),
    (
        &["clone", "268435456"],
        REFUSED,
        Control::Behind(libc::ENOSPC, OWN_USER),
    ),
    (&["clone3"], Outcome::Refused(libc::ENOSYS), Control::Works),
    (
        &["setns", "/proc/self/ns/user"],
        REFUSED,
        Control::Fails(libc::EINVAL),
    ),
    (&["io-uring"], REFUSED, Control::Works),
    (&["keyctl"], REFUSED, Control::Works),
    (&["ptrace"], REFUSED, Control::Works),
    (&["personality"], REFUSED, Control::Works),
    (&["userfaultfd"], REFUSED, Control::Works),
    (&["name-to-handle"], REFUSED, Control::Fails(libc::EFAULT)),
    (&["perf"], REFUSED, Control::Fails(libc::EFAULT)),
    (&["tiocsti"], REFUSED, Control::Fails(libc::ENOTTY)),
    (&["socket", "16", "3"], NO_FAMILY, Control::Works), // AF_NETLINK, SOCK_RAW
    (
        &["socket", "17", "3"],
        NO_FAMILY,
        Control::Fails(libc::EPERM),
    ), // AF_PACKET needs a capability
    (&["socket", "38", "5"], NO_FAMILY, Control::AsOutside(38, 5)), // AF_ALG, SOCK_SEQPACKET
    (&["socket", "40", "1"], NO_FAMILY, Control::AsOutside(40, 1)), // AF_VSOCK, SOCK_STREAM
    // Kernels without the x32 ABI, which are most, answer ENOSYS.
    (&["x32"], KILLED, Control::Fails(libc::ENOSYS)),
];

pub(crate) fn proofs() -> Vec<Proof> {
    let row = |row: usize| Proof {
        name: format!("filter_refuses_{}", TABLE[row].0.join("_").replace('/', "")),
        claim: |world, row| prove(world, &TABLE[row]),
        row,
    };
    let mut all: Vec<_> = (0..TABLE.len()).map(row).collect();
    all.extend(crate::proofs![
        ordinary_calls_go_through,
        calls_of_32_bit_programs_end_the_program,
        device_nodes_cannot_be_made,
    ]);
    all
}

fn prove(world: &World, (attempt, refused, control): &Row) {
    let expected = match *control {
        Control::Works => allowed(),
        Control::Fails(errno) | Control::Behind(errno, _) => Outcome::Refused(errno),
        Control::AsOutside(family, kind) => socket_outside(family, kind),
    };
    let request = world.probe(attempt);
    assert_eq!(world.attempt(request.clone()), *refused, "with the filter");
    let without = |steps: &[Step]| world.attempt_without(request.clone(), steps);
    assert_eq!(
        without(&[Step::SyscallFilter]),
        expected,
        "without the filter"
    );
    if let Control::Behind(_, wall) = *control {
        assert_eq!(
            without(&[&[Step::SyscallFilter], wall].concat()),
            allowed(),
            "without both walls"
        );
    }
}

fn socket_outside(family: i32, kind: i32) -> Outcome {
    // SAFETY: three integers.
    match unsafe { libc::socket(family, kind, 0) } {
        -1 => Outcome::Refused(
            std::io::Error::last_os_error()
                .raw_os_error()
                .expect("an error"),
        ),
        socket => {
            // SAFETY: our own fresh descriptor.
            unsafe { libc::close(socket) };
            allowed()
        }
    }
}

fn ordinary_calls_go_through(world: &World) {
    let calls: [&[&str]; 5] = [
        &["clone", "0"],
        &["socket", "1", "1"],
        &["socket", "2", "1"],
        &["socket", "10", "2"],
        &["host-name"],
    ];
    let got = calls.map(|call| world.attempt(world.probe(call)));
    let named = Outcome::Allowed("airlock".to_owned());
    assert_eq!(got, [allowed(), allowed(), allowed(), allowed(), named]);
}

/// The same numbers mean other calls there. The control needs a kernel that runs 32-bit programs.
fn calls_of_32_bit_programs_end_the_program(world: &World) {
    assert_eq!(world.attempt(world.probe(&["int80"])), KILLED);
    assert_eq!(
        world.attempt_without(world.probe(&["int80"]), &[Step::SyscallFilter]),
        allowed()
    );
}

/// Only root of the host's own user namespace may: for a user there is no sandbox in which it works. The
/// filter refuses them even then.
fn device_nodes_cannot_be_made(world: &World) {
    let device = world.probe(&["mknod", "/tmp/node", "device"]);
    assert_eq!(world.attempt(device.clone()), REFUSED);
    assert_eq!(
        world.attempt(world.probe(&["mknod", "/tmp/node", "fifo"])),
        allowed()
    );
    let with_power = [
        Step::EnterUserNamespace,
        Step::Credentials,
        Step::NoCapabilities,
    ];
    assert_eq!(world.attempt_without(device.clone(), &with_power), REFUSED);
    let with_power_and_calls = [&with_power[..], &[Step::SyscallFilter]].concat();
    let expected = if world.mode == Mode::Root {
        allowed()
    } else {
        REFUSED
    };
    assert_eq!(
        world.attempt_without(device, &with_power_and_calls),
        expected
    );
}
