//! The terminal of a box: its own, and no way to type into it or to take another one over.

use crate::{
    runner::Proof,
    world::{Outcome, Without, World, admit, allowed},
};
use init::step::Step;
use spec::{RunEvent, RunRequest, Status, TerminalSize};
use std::fs;

const SIZE: TerminalSize = TerminalSize {
    rows: 31,
    columns: 101,
};
const REFUSED: Outcome = Outcome::Refused(libc::EPERM);
/// The ways to the same terminal.
const WAYS: [&str; 4] = ["stdin", "/dev/tty", "/dev/pts/0", "/proc/self/fd/1"];

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        nothing_can_be_typed_into_a_terminal,
        line_disciplines_cannot_be_changed,
        consoles_cannot_be_reached,
        the_terminal_of_a_box_is_its_own,
        terminals_of_a_box_are_few,
        a_terminal_has_the_size_it_is_given,
        without_a_terminal_there_is_none,
        path_rules_allow_terminals_and_nothing_more,
    ]
}

fn with_terminal(request: RunRequest) -> RunRequest {
    RunRequest {
        tty: Some(SIZE),
        ..request
    }
}

fn request(world: &World, way: &str, request: &str) -> RunRequest {
    with_terminal(world.probe(&["request", way, request]))
}

/// Refused on every way and in every spelling, while a harmless request works there.
fn refused_on_all_ways(world: &World, number: &str) {
    for way in world.few(WAYS) {
        for spelling in world.few([
            number.to_owned(),
            format!("ffffffff0000{number}"),
            format!("10000{number}"),
        ]) {
            assert_eq!(
                world.attempt(request(world, way, &spelling)),
                REFUSED,
                "{spelling} on {way}"
            );
        }
        // TIOCGWINSZ.
        for spelling in ["5413", "ffffffff00005413"] {
            assert_eq!(
                world.attempt(request(world, way, spelling)),
                allowed(),
                "{spelling} on {way}"
            );
        }
    }
}

fn without_filter(world: &World, number: &str) -> Outcome {
    world.attempt_without(request(world, "stdin", number), &[Step::SyscallFilter])
}

/// TIOCSTI. Without the filter it is up to the kernel's setting; what is typed then is echoed.
fn nothing_can_be_typed_into_a_terminal(world: &World) {
    refused_on_all_ways(world, "5412");
    let lacks = Without {
        steps: vec![Step::SyscallFilter],
        cgroups: false,
    };
    let result = world.run_without(request(world, "stdin", "5412"), &lacks);
    let setting = fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").unwrap_or("1".to_owned());
    let wanted = if setting.trim() == "1" {
        "^@allowed\r\n"
    } else {
        "refused 5\r\n"
    };
    assert_eq!(String::from_utf8_lossy(&result.stdout), wanted);
}

/// TIOCSETD, here to the usual one.
fn line_disciplines_cannot_be_changed(world: &World) {
    refused_on_all_ways(world, "5423");
    assert_eq!(without_filter(world, "5423"), allowed());
}

/// TIOCLINUX and TIOCCONS. A pseudo-terminal knows nothing of the first; the kernel wants a capability for the other.
fn consoles_cannot_be_reached(world: &World) {
    refused_on_all_ways(world, "541c");
    assert_eq!(
        without_filter(world, "541c"),
        Outcome::Refused(libc::ENOTTY)
    );
    refused_on_all_ways(world, "541d");
}

fn the_terminal_of_a_box_is_its_own(world: &World) {
    let attempt = |words: &[&str]| world.attempt(with_terminal(world.probe(words)));
    let got = |text: &str| Outcome::Allowed(text.to_owned());
    // SAFETY: one integer; the descriptor is ours and closes with this process.
    let outside = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
    assert!(outside >= 0, "prerequisite: terminals of the host's own");
    assert_eq!(attempt(&["list", "/dev/pts"]), got("0 ptmx"));
    for stream in ["0", "1", "2"] {
        assert_eq!(
            attempt(&["link-target", &format!("/proc/self/fd/{stream}")]),
            got("/dev/pts/0")
        );
    }
    assert_eq!(attempt(&["session"]), got("true true true"));
    assert_eq!(attempt(&["write", "/dev/pts/0", ""]), allowed());
    assert_eq!(
        attempt(&["write", "/dev/pts/new", ""]),
        Outcome::Refused(libc::EACCES)
    );
    // SAFETY: our own descriptor.
    unsafe { libc::close(outside) };
}

/// Of the kernel's few thousand a box takes sixteen, its own included.
fn terminals_of_a_box_are_few(world: &World) {
    let got = world.attempt(with_terminal(world.probe(&["open-terminals"])));
    assert_eq!(got, Outcome::Allowed(format!("15 {}", libc::ENOSPC)));
}

/// What is typed arrives, what is shown is one stream, and the end of the program is the end of it.
fn a_terminal_has_the_size_it_is_given(world: &World) {
    let spec = admit(with_terminal(world.probe(&["await-resize"])));
    let engine = world.engine(&Without::default());
    let result = world.runtime.block_on(async {
        let mut run = engine.start(spec);
        let terminal = run
            .take_terminal()
            .expect("it was asked for")
            .await
            .expect("the box stands");
        let mut seen = Vec::new();
        while !seen.ends_with(b"ready 31 101\r\n") {
            match run.next_event().await {
                Some(RunEvent::Output { data, .. }) => seen.extend(data),
                Some(_) => {}
                None => panic!(
                    "ended before it was ready: {}",
                    String::from_utf8_lossy(&seen)
                ),
            }
        }
        terminal
            .window
            .resize(TerminalSize {
                rows: 40,
                columns: 132,
            })
            .expect("a size");
        run.finish().await
    });
    let shown = String::from_utf8_lossy(&result.stdout).into_owned();
    assert_eq!(
        (result.status, shown.as_str()),
        (Status::Succeeded, "ready 31 101\r\nallowed 40 132\r\n")
    );
    assert!(result.stderr.is_empty());
}

fn without_a_terminal_there_is_none(world: &World) {
    for path in ["/dev/tty", "/dev/ptmx", "/dev/pts/ptmx"] {
        let read = world.probe(&["request", path, "5401"]);
        // Containers have the devices; there is no terminal behind the first, and their own behind the others.
        let without = match (&world.maker, path) {
            (None, _) => Outcome::Refused(libc::ENOENT),
            (Some(_), "/dev/tty") => Outcome::Refused(libc::ENXIO),
            (Some(_), _) => allowed(),
        };
        assert_eq!(world.attempt(read.clone()), without, "{path}");
        // TCGETS.
        assert_eq!(world.attempt(with_terminal(read)), allowed(), "{path}");
    }
    assert_eq!(
        world.attempt(world.probe(&["request", "stdin", "5401"])),
        Outcome::Refused(libc::ENOTTY)
    );
    assert_eq!(world.attempt(request(world, "stdin", "5401")), allowed());
}

/// Behind the read-only root, which is left out here.
fn path_rules_allow_terminals_and_nothing_more(world: &World) {
    assert!(
        init::landlock_version() > 0,
        "prerequisite: a kernel with Landlock switched on"
    );
    let beside = [Step::ReadOnlyRoot, Step::Credentials];
    let attempt = |words: &[&str], omitted: &[Step]| {
        world.attempt_without(
            with_terminal(world.probe(words)),
            &[&beside, omitted].concat(),
        )
    };
    let shut: [&[&str]; 2] = [
        &["make-folder", "/dev/made-inside"],
        &["write", "/made-inside", "x"],
    ];
    for words in shut {
        assert_eq!(
            attempt(words, &[]),
            Outcome::Refused(libc::EACCES),
            "{words:?}"
        );
        assert_eq!(attempt(words, &[Step::PathRules]), allowed(), "{words:?}");
    }
}
