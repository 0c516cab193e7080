//! Boxes that stay: further programs, each with its own end, signals, terminal and denials, behind the same barriers as
//! a lone run; and how a whole box is stopped, let go on and ended. Made without an engine, like those of `passing`.

use crate::{
    runner::Proof,
    transparent_proxy::{self, Lacking},
    world::{World, admit, cgroups_with},
};
use init::step::Step;
use sandbox::{DenialEvent, ExecProcess, ProcessExit, Program, Sandbox, SandboxError};
use spec::{Denial, ErrorCode, Id, LimitSet, RunRequest, RunSpec};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// What the end of a box may take.
const SOON: Duration = Duration::from_secs(5);
/// Long enough for thousands of rounds of a program that runs.
const A_WHILE: Duration = Duration::from_millis(300);

pub(crate) fn proofs() -> Vec<Proof> {
    let by_maker = crate::proofs![
        a_program_has_a_terminal_of_its_own,
        a_frozen_box_stands_still_until_it_is_thawed,
        a_frozen_box_ends_soon,
        a_frozen_box_whose_owner_died_is_swept,
    ];
    [by_first_process(), by_maker].concat()
}

/// Those that do not depend on who made the box: our own process in it does all there is to it.
pub(crate) fn by_first_process() -> Vec<Proof> {
    crate::proofs![
        programs_of_one_box_end_each_on_its_own,
        signals_reach_one_programs_group_alone,
        a_program_that_nobody_holds_ends_with_its_group,
        what_a_program_leaves_behind_goes_on,
        programs_see_the_files_of_former_ones,
        a_program_has_its_own_environment_directory_and_limits,
        a_further_program_has_the_barriers_of_a_lone_one,
        a_further_program_is_counted_with_its_box,
        a_command_that_is_not_there_is_told_and_the_box_goes_on,
        a_planted_directory_leads_nowhere_outside,
        programs_at_once_are_bounded,
        a_program_cannot_hold_up_other_boxes,
        denials_are_told_for_each_program,
        what_is_typed_reaches_the_foreground_alone,
    ]
}

/// A box that stays.
struct Stay {
    sandbox: Box<dyn Sandbox>,
    spec: RunSpec,
    id: Id,
}

/// A program of it, with our ends of its streams.
struct Running {
    process: ExecProcess,
    input: File,
    output: BufReader<File>,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (reader.into(), writer.into())
}

fn shell(script: &str) -> Program {
    let path = [("PATH".into(), spec::DEFAULT_PATH.into())];
    Program {
        argv: ["sh", "-c", script].map(Into::into).into(),
        env: path.into(),
        ..Program::default()
    }
}

fn staying_spec(world: &World, limits: LimitSet) -> RunSpec {
    let request = RunRequest {
        command: vec!["true".into()],
        limits,
        ..world.probe(&[""; 0])
    };
    let mut spec = admit(request);
    spec.sandbox.outlives_programs = true;
    spec
}

impl Stay {
    async fn open(world: &World) -> Stay {
        Stay::open_as(world, RunRequest::default(), Lacking::Nothing).await
    }

    async fn open_as(world: &World, wanted: RunRequest, lacking: Lacking) -> Stay {
        let spec = staying_spec(world, wanted.limits);
        let id = Id::new(&world.unique("staying")).expect("an id");
        Stay {
            sandbox: transparent_proxy::made(world, &id, &spec, lacking).await,
            spec,
            id,
        }
    }

    /// Two of one maker: our own share a launcher, where cgroups do not ask for one each.
    async fn open_two(world: &World) -> [Stay; 2] {
        let [spec, other] = [(); 2].map(|()| staying_spec(world, world.probe(&[""; 0]).limits));
        let [id, second] = [(); 2].map(|()| Id::new(&world.unique("staying")).expect("an id"));
        let [sandbox, beside] =
            transparent_proxy::made_together(world, [&id, &second], &spec).await;
        [
            Stay { sandbox, spec, id },
            Stay {
                sandbox: beside,
                spec: other,
                id: second,
            },
        ]
    }

    async fn try_start(&mut self, program: &Program) -> Result<Running, SandboxError> {
        let ((inside, input), (output, outside)) = (pipe(), pipe());
        let errors = outside.try_clone().expect("a descriptor");
        let process = self
            .sandbox
            .start(program, [inside, outside, errors])
            .await?;
        Ok(Running {
            process,
            input: input.into(),
            output: BufReader::new(output.into()),
        })
    }

    async fn start(&mut self, script: &str) -> Running {
        self.try_start(&shell(script)).await.expect("a program")
    }

    /// What a program said, and how it ended.
    async fn run(&mut self, program: &Program) -> (String, i32) {
        let mut running = self.try_start(program).await.expect("a program");
        let ended = running.process.ended().await.expect("its end");
        (running.rest(), ended.status)
    }

    async fn say(&mut self, script: &str) -> String {
        self.run(&shell(script)).await.0
    }

    async fn close(mut self) {
        self.sandbox.end().await;
        assert!(!self.sandbox.release().await.left_over);
    }
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line
    }

    /// To the last holder of its output.
    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("its output");
        text
    }

    fn tell(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).expect("its input");
    }
}

fn exited(code: i32) -> i32 {
    code << 8
}

fn programs_of_one_box_end_each_on_its_own(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let mut first = stay.start("echo up; read word; echo $word; exit 3").await;
        assert_eq!(first.line(), "up\n");
        assert_eq!(stay.run(&shell("exit 4")).await, (String::new(), exited(4)));
        first.tell("still here\n");
        assert_eq!(first.rest(), "still here\n");
        let ProcessExit { status, alone, .. } = first.process.ended().await.expect("its end");
        assert_eq!((status, alone), (exited(3), false));
        // The end of both was not that of the box.
        assert_eq!(stay.say("echo again").await, "again\n");
        stay.close().await;
    });
}

fn signals_reach_one_programs_group_alone(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let script = "sleep 1000 & echo up; read word; echo $word; kill $!";
        let (mut first, mut second) = (stay.start(script).await, stay.start(script).await);
        assert_eq!(
            (first.line(), second.line()),
            ("up\n".to_owned(), "up\n".to_owned())
        );
        first.process.signal(libc::SIGTERM);
        assert_eq!(
            first.process.ended().await.expect("its end").status,
            libc::SIGTERM
        );
        // What it started held its output, and is gone, too.
        assert_eq!(first.rest(), "");
        second.tell("unhurt\n");
        assert_eq!(second.rest(), "unhurt\n");
        assert_eq!(second.process.ended().await.expect("its end").status, 0);
        stay.close().await;
    });
}

fn a_program_that_nobody_holds_ends_with_its_group(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let Running {
            process,
            mut output,
            input,
        } = stay.start("sleep 1000 & echo up; wait").await;
        let mut text = String::new();
        output.read_line(&mut text).expect("its output");
        drop(process);
        output.read_to_string(&mut text).expect("its end");
        assert_eq!(text, "up\n");
        drop(input);
        assert_eq!(stay.say("echo again").await, "again\n");
        stay.close().await;
    });
}

/// As with `docker exec`: a server that a program started in the background serves the next.
fn what_a_program_leaves_behind_goes_on(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let left = stay.say("sleep 1000 >/dev/null 2>&1 & echo $!").await;
        let end = format!("kill {} && echo ended", left.trim());
        assert_eq!(stay.say(&end).await, "ended\n");
        stay.close().await;
    });
}

fn programs_see_the_files_of_former_ones(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        stay.say("echo one >/tmp/a; echo two >/workspace/b; echo three >/dev/shm/c")
            .await;
        assert_eq!(
            stay.say("cat /tmp/a /workspace/b /dev/shm/c").await,
            "one\ntwo\nthree\n"
        );
        stay.close().await;
    });
}

fn a_program_has_its_own_environment_directory_and_limits(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let mut program =
            shell("pwd; echo $WORD; ulimit -n; cat /proc/self/status | grep -c Seccomp:.*2");
        program.env.insert("WORD".into(), "said".into());
        program.directory = Some("/tmp".into());
        let files = stay.spec.sandbox.limits.open_files;
        assert_eq!(
            stay.run(&program).await.0,
            format!("/tmp\nsaid\n{files}\n1\n")
        );
        let others = shell("pwd; echo $WORD");
        assert_eq!(stay.run(&others).await.0, "/workspace\n\n");
        stay.close().await;
    });
}

fn a_further_program_has_the_barriers_of_a_lone_one(world: &World) {
    let lone = world.run(world.probe(&["session"])).barriers;
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        // Before the first program it is known what stands, and no further one takes from it.
        assert_eq!(stay.sandbox.barriers(), lone);
        let running = stay.start("true").await;
        assert!(running.process.steps().has(Step::SyscallFilter));
        assert_eq!(stay.sandbox.barriers(), lone);
        stay.close().await;
        let lacking = Lacking::Steps(&[Step::SyscallFilter]);
        if world.maker.is_none() {
            let mut stay = Stay::open_as(world, RunRequest::default(), lacking).await;
            let running = stay.start("true").await;
            assert!(!running.process.steps().has(Step::SyscallFilter));
            assert_ne!(stay.sandbox.barriers(), lone);
            stay.close().await;
        }
    });
}

/// By the host's own count, where there is one.
fn a_further_program_is_counted_with_its_box(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let before = stay.sandbox.counters().pids_peak;
        let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1000 & done; echo up; wait";
        let mut running = stay.start(script).await;
        assert_eq!(running.line(), "up\n");
        let after = stay.sandbox.counters().pids_peak;
        if world.has_cgroups() {
            let (before, after) = (before.expect("a count"), after.expect("a count"));
            assert!(before < 10 && after >= 13, "{before}, then {after}");
        }
        if !world.shares_cgroups() {
            // Whoever is in another cgroup than the first process of his box sees `/..`.
            let seen = stay.say("cut -d: -f3 /proc/self/cgroup | sort -u").await;
            assert_eq!(seen, "/\n");
        }
        stay.close().await;
    });
}

fn a_command_that_is_not_there_is_told_and_the_box_goes_on(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let missing = Program {
            argv: vec!["no-such-command".into()],
            ..shell("")
        };
        let error = stay.try_start(&missing).await.err().expect("no program");
        assert_eq!(
            (error.exit_status(), error.info().code),
            (127, ErrorCode::StartFailed),
            "{error}"
        );
        let nowhere = Program {
            directory: Some("/nowhere".into()),
            ..shell("true")
        };
        let error = stay.try_start(&nowhere).await.err().expect("no program");
        assert_eq!(refused_directory(error), libc::ENOENT);
        assert_eq!(stay.say("echo again").await, "again\n");
        stay.close().await;
    });
}

fn refused_directory(error: SandboxError) -> i32 {
    match error {
        SandboxError::Directory { source } => source.raw_os_error().expect("the kernel's answer"),
        other => panic!("{other:?}"),
    }
}

/// Whoever starts programs in a box has handles on what lies outside of it.
fn a_planted_directory_leads_nowhere_outside(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        stay.say("ln -s /proc/self/fd /workspace/handles; ln -s /tmp /workspace/place")
            .await;
        let at = |path: String| Program {
            directory: Some(path.into()),
            ..shell("pwd -P")
        };
        assert_eq!(stay.run(&at("/workspace/place".into())).await.0, "/tmp\n");
        for number in 3..64 {
            let refused = stay
                .try_start(&at(format!("/workspace/handles/{number}")))
                .await
                .err();
            let errno = refused_directory(refused.expect("no program"));
            // None such, or one that is not followed.
            assert!(
                [libc::ENOENT, libc::ELOOP].contains(&errno),
                "{number}: {errno}"
            );
        }
        stay.close().await;
    });
}

fn programs_at_once_are_bounded(world: &World) {
    world.runtime.block_on(async {
        let pids = LimitSet {
            pids: Some(128),
            ..world.probe(&[""; 0]).limits
        };
        let wanted = RunRequest {
            limits: pids,
            ..RunRequest::default()
        };
        let mut stay = Stay::open_as(world, wanted, Lacking::Nothing).await;
        let mut all = Vec::new();
        for _ in 0..init::protocol::MAX_EXECS {
            all.push(stay.start("exec cat").await);
        }
        let error = stay
            .try_start(&shell("true"))
            .await
            .err()
            .expect("no program");
        assert!(
            matches!(error, SandboxError::TooManyPrograms { most: 64 }),
            "{error}"
        );
        let mut last = all.pop().expect("one of them");
        last.process.signal(libc::SIGKILL);
        last.process.ended().await.expect("its end");
        assert_eq!(stay.say("echo again").await, "again\n");
        stay.close().await;
    });
}

/// Stopped on its way to exec, a program holds up nobody but whoever started it.
fn a_program_cannot_hold_up_other_boxes(world: &World) {
    world.runtime.block_on(async {
        let [mut hostile, mut other] = Stay::open_two(world).await;
        let mut stopper = hostile
            .start("echo up; while :; do kill -STOP -1; done 2>/dev/null")
            .await;
        assert_eq!(stopper.line(), "up\n");
        let program = shell("true");
        let started = hostile.try_start(&program);
        let beside = async {
            let begin = Instant::now();
            for _ in 0..5 {
                assert_eq!(other.say("echo here").await, "here\n");
            }
            begin.elapsed()
        };
        let (_, took) = tokio::join!(started, beside);
        assert!(took < Duration::from_secs(5), "{took:?}");
        hostile.close().await;
        other.close().await;
    });
}

fn denials_are_told_for_each_program(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let mut told = Vec::new();
        for script in ["echo >/usr/one", "echo >/usr/two", "true"] {
            let mut running = stay.start(script).await;
            let mut denials = running.process.take_denials().expect("a filter");
            running.process.ended().await.expect("its end");
            let mut targets = Vec::new();
            while let Some(DenialEvent::Denied(Denial { target, .. })) = denials.recv().await {
                targets.push(target);
            }
            told.push(targets);
        }
        assert_eq!(
            told,
            [
                vec!["/usr/one".to_owned()],
                vec!["/usr/two".to_owned()],
                Vec::new()
            ]
        );
        stay.close().await;
    });
}

/// A terminal that was opened, as whoever sits before it has it.
struct Screen(File);

impl Screen {
    async fn open(stay: &mut Stay, rows: u16, columns: u16) -> (Screen, [OwnedFd; 3]) {
        let ours = stay.sandbox.open_terminal().await.expect("a terminal");
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the kernel reads one struct of ours.
        let resized = unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(resized, 0);
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: takes an integer and gives a fresh descriptor.
        let theirs = unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags) };
        assert!(theirs >= 0, "the other end");
        // SAFETY: fresh, and nobody else's.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        let copy = || theirs.try_clone().expect("a descriptor");
        let streams = [copy(), copy(), copy()];
        (Screen(ours.into()), streams)
    }

    /// What is shown until this, in words without line ends.
    fn until(&mut self, end: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(end) {
            let mut bytes = [0; 256];
            let count = self.0.read(&mut bytes).expect("what is shown");
            seen.extend(&bytes[..count]);
        }
        String::from_utf8_lossy(&seen)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }
}

fn at_terminal(script: &str) -> Program {
    Program {
        terminal: true,
        ..shell(script)
    }
}

fn a_program_has_a_terminal_of_its_own(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let script = "readlink /proc/self/fd/0; stty size; exec /probe/probe session";
        let mut names = Vec::new();
        let mut running = Vec::new();
        for columns in [81, 82] {
            let (mut screen, streams) = Screen::open(&mut stay, 31, columns).await;
            let process = stay
                .sandbox
                .start(&at_terminal(script), streams)
                .await
                .expect("a program");
            let seen = screen.until("true true true");
            let rest = [
                "31",
                &columns.to_string(),
                "allowed",
                "true",
                "true",
                "true",
            ];
            assert_eq!(seen[1..], rest);
            names.push(seen[0].clone());
            running.push((process, screen));
        }
        assert!(
            names.iter().all(|name| name.starts_with("/dev/pts/")) && names[0] != names[1],
            "{names:?}"
        );
        stay.close().await;
    });
}

/// Job control: what is typed interrupts whoever is before the terminal, and no other program.
fn what_is_typed_reaches_the_foreground_alone(world: &World) {
    world.runtime.block_on(async {
        let mut stay = Stay::open(world).await;
        let mut beside = stay.start("echo up; read word; echo $word").await;
        assert_eq!(beside.line(), "up\n");
        let (mut screen, streams) = Screen::open(&mut stay, 24, 80).await;
        let script = "echo ready; exec sleep 1000";
        let mut process = stay
            .sandbox
            .start(&at_terminal(script), streams)
            .await
            .expect("a program");
        screen.until("ready");
        screen.0.write_all(b"\x03").expect("what is typed");
        assert_eq!(process.ended().await.expect("its end").status, libc::SIGINT);
        beside.tell("unhurt\n");
        assert_eq!(beside.rest(), "unhurt\n");
        stay.close().await;
    });
}

/// A program that counts, on a file that the next program reads.
const COUNTING: &str = "echo up; i=0; while :; do i=$((i+1)); echo $i >/workspace/count; done";

fn counted(stay: &Stay) -> u64 {
    // Between truncation and writing it is empty.
    loop {
        if let Ok(count) = file_of_count(stay).trim().parse() {
            return count;
        }
    }
}

fn file_of_count(stay: &Stay) -> String {
    let path = format!(
        "/proc/self/fd/{}/count",
        stay.sandbox.workspace().as_raw_fd()
    );
    fs::read_to_string(path).unwrap_or_default()
}

/// One in which something counts, frozen, or nothing where this host cannot.
async fn frozen(world: &World) -> Option<(Stay, Running)> {
    let mut stay = Stay::open(world).await;
    let mut running = stay.start(COUNTING).await;
    assert_eq!(running.line(), "up\n");
    let first = counted(&stay);
    while counted(&stay) == first {}
    match stay.sandbox.freeze().await {
        Ok(()) => Some((stay, running)),
        Err(error) => {
            assert!(!world.has_cgroups(), "{error}");
            let info = error.info();
            assert!(matches!(error, SandboxError::CannotFreeze { .. }));
            assert_eq!(info.code, ErrorCode::BackendUnavailable, "{info:?}");
            assert!(
                info.message.contains("freeze") && info.hint.is_some(),
                "{info:?}"
            );
            // It went on all the same.
            let count = counted(&stay);
            while counted(&stay) == count {}
            stay.close().await;
            None
        }
    }
}

fn a_frozen_box_stands_still_until_it_is_thawed(world: &World) {
    world.runtime.block_on(async {
        let Some((mut stay, _running)) = frozen(world).await else {
            return;
        };
        let count = file_of_count(&stay);
        // Nothing happens, and there is no event for that.
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(file_of_count(&stay), count);
        let error = stay
            .try_start(&shell("true"))
            .await
            .err()
            .expect("nothing starts");
        assert!(matches!(error, SandboxError::Frozen), "{error}");
        stay.sandbox.thaw().await.expect("it goes on");
        let count = counted(&stay);
        while counted(&stay) == count {}
        assert_eq!(stay.say("echo again").await, "again\n");
        stay.close().await;
    });
}

fn a_frozen_box_ends_soon(world: &World) {
    world.runtime.block_on(async {
        let Some((mut stay, mut running)) = frozen(world).await else {
            return;
        };
        let begin = Instant::now();
        assert!(stay.sandbox.end().await.is_some());
        let took = begin.elapsed();
        // Removing a container takes its engine as long as it takes.
        assert!(world.maker.is_some() || took < SOON, "{took:?}");
        assert_eq!(running.rest(), "");
        assert!(!stay.sandbox.release().await.left_over);
    });
}

/// The kernel closes what a killed engine had open, which is all that is left of it to see.
fn a_frozen_box_whose_owner_died_is_swept(world: &World) {
    world.runtime.block_on(async {
        let Some((stay, mut running)) = frozen(world).await else {
            return;
        };
        let Stay { sandbox, id, .. } = stay;
        drop(sandbox);
        transparent_proxy::sweep(world, &id).await;
        assert_eq!(running.rest(), "");
        assert_eq!(cgroups_with(id.as_str()), Vec::<std::path::PathBuf>::new());
    });
}
