//! Sessions in real sandboxes: output, input, ends, limits and clean-up.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use engine::{
    Engine, Exec, PoolSettings, Session, SessionEnd, SessionStatus, Settings, StdinError,
    steps::{JobControl, JobRunner},
};
use serde_json::json;
use spec::{
    ErrorCode, ExecRequest, ExecutionMode, LimitName, Policy, RunRequest, SessionRequest,
    SessionSpec, Status, StdStream, StepJob, TerminalSize,
};
use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// The state folder of one test, and an engine.
struct Place {
    state: PathBuf,
    engine: Engine,
}

impl Place {
    fn new(name: &str) -> Place {
        let state =
            std::env::temp_dir().join(format!("airlock-sessions-{name}-{}", std::process::id()));
        Place {
            engine: Engine::open(Settings::new(&state)).unwrap(),
            state,
        }
    }

    async fn open(&self) -> Session {
        self.engine.open_session(spec(|_| {})).await.unwrap()
    }

    /// Closes the engine and checks that no record is left.
    async fn close(self) {
        self.engine.close().await;
        assert_eq!(
            fs::read_dir(self.state.join("runs")).unwrap().count(),
            0,
            "no record is left"
        );
        fs::remove_dir_all(&self.state).unwrap();
    }
}

fn spec(change: impl FnOnce(&mut SessionRequest)) -> SessionSpec {
    let mut request = SessionRequest::default();
    change(&mut request);
    Policy::default().admit_session(request).unwrap()
}

fn shell(script: &str) -> ExecRequest {
    ExecRequest {
        command: ["sh", "-c", script].map(Into::into).into(),
        ..ExecRequest::default()
    }
}

fn text(exec: &Exec, stream: StdStream) -> String {
    String::from_utf8(exec.output().read(stream, 0, 1 << 20).bytes).unwrap()
}

/// Waits until a program has written this word.
async fn says(exec: &Exec, word: &str) {
    let waiting = async {
        while !text(exec, StdStream::Stdout).contains(word) {
            assert!(
                exec.output().wait_for_more(exec.output().lengths()).await,
                "it ended without `{word}`"
            );
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap();
}

#[tokio::test]
async fn programs_share_a_box_and_each_has_its_own_result() {
    let place = Place::new("share");
    let session = place.open().await;
    let exec = session
        .exec(shell("echo out; echo err >&2; echo kept > file; exit 3"))
        .await
        .unwrap();
    let result = exec.wait().await;
    assert_eq!((result.status, result.exit_code), (Status::Failed, Some(3)));
    assert_eq!(
        [StdStream::Stdout, StdStream::Stderr].map(|stream| text(&exec, stream)),
        ["out\n", "err\n"]
    );
    let request = ExecRequest {
        directory: Some("/tmp".into()),
        env: vec![("COLOUR".into(), "green".into())],
        ..shell("pwd; echo $COLOUR; cat /workspace/file")
    };
    let exec = session.exec(request).await.unwrap();
    assert_eq!(exec.wait().await.exit_code, Some(0));
    assert_eq!(text(&exec, StdStream::Stdout), "/tmp\ngreen\nkept\n");
    assert_eq!(session.execs().len(), 2);
    assert!(session.find_exec(exec.id()).is_some() && session.find_exec("nobody").is_none());
    assert!(!session.state().barriers.is_empty());
    let ended = session.end().await;
    assert_eq!(
        (ended.status, ended.ended),
        (SessionStatus::Ended, Some(SessionEnd::Asked))
    );
    assert_eq!(
        session.exec(shell("true")).await.unwrap_err().code,
        ErrorCode::Conflict
    );
    assert!(session.workspace().is_err());
    place.close().await;
}

#[tokio::test]
async fn what_is_typed_arrives_and_its_end_as_well() {
    let place = Place::new("typed");
    let session = place.open().await;
    let request = ExecRequest {
        stdin: true,
        ..shell("wc -c; echo done")
    };
    let exec = session.exec(request).await.unwrap();
    // More than a pipe holds: the write waits for the program.
    for _ in 0..100 {
        exec.write(&[b'x'; 10_000]).await.unwrap();
    }
    exec.close_input();
    assert_eq!(exec.wait().await.exit_code, Some(0));
    assert_eq!(text(&exec, StdStream::Stdout), "1000000\ndone\n");
    assert!(exec.write(b"late").await.is_err());
    // A program without standard input reads its end at once.
    let exec = session.exec(shell("cat; echo empty")).await.unwrap();
    assert_eq!(exec.wait().await.exit_code, Some(0));
    place.close().await;
}

#[tokio::test]
async fn what_is_typed_at_an_offset_waits_for_what_comes_before_and_replaces_nothing() {
    let place = Place::new("offset");
    let session = place.open().await;
    // More than a pipe holds: the write lasts until the program reads.
    let script = "while [ ! -e go ]; do sleep 0.05; done; tail -c 6";
    let exec = session
        .exec(ExecRequest {
            stdin: true,
            ..shell(script)
        })
        .await
        .unwrap();
    let begins = exec.clone();
    let rest = tokio::spawn(async move {
        exec.wait_for_offset(1 << 20).await?;
        exec.write_from(Some(1 << 20), b"behind").await?;
        let late = exec.wait_for_offset((1 << 20) + 7).await;
        assert_eq!(
            late,
            Err(StdinError::Gap {
                typed: (1 << 20) + 6
            }),
            "nobody types that"
        );
        let other = exec.write_from(Some(1 << 20), b"before").await;
        assert_eq!(
            other,
            Err(StdinError::Mismatch {
                typed: (1 << 20) + 6
            })
        );
        exec.write_from(Some(1 << 20), b"behind").await
    });
    let first = begins.clone();
    let order = tokio::spawn(async move { first.write(&vec![b'x'; 1 << 20]).await });
    session.exec(shell("touch go")).await.unwrap();
    order.await.unwrap().unwrap();
    rest.await.unwrap().unwrap();
    begins.close_input();
    assert_eq!(begins.wait().await.exit_code, Some(0));
    assert_eq!(text(&begins, StdStream::Stdout), "behind");
    place.close().await;
}

#[tokio::test]
async fn a_writer_does_not_wait_for_a_program_that_is_gone() {
    let place = Place::new("writer");
    let session = place.open().await;
    let exec = session
        .exec(ExecRequest {
            stdin: true,
            ..shell("sleep 100")
        })
        .await
        .unwrap();
    let writer = exec.clone();
    let writing = tokio::spawn(async move { writer.write(&vec![0; 1 << 20]).await });
    exec.stop(Duration::ZERO).await;
    assert!(
        tokio::time::timeout(Duration::from_secs(5), writing)
            .await
            .unwrap()
            .unwrap()
            .is_err()
    );
    place.close().await;
}

#[tokio::test]
async fn a_terminal_has_a_size_that_changes_and_takes_keys() {
    let place = Place::new("terminal");
    let session = place.open().await;
    let size = TerminalSize {
        rows: 11,
        columns: 33,
    };
    let script = "stty size; read line; stty size; read line; echo got $line $TERM";
    let exec = session
        .exec(ExecRequest {
            tty: Some(size),
            ..shell(script)
        })
        .await
        .unwrap();
    says(&exec, "11 33").await;
    exec.resize(TerminalSize {
        rows: 22,
        columns: 44,
    })
    .unwrap();
    exec.write(b"\n").await.unwrap();
    says(&exec, "22 44").await;
    exec.write(b"keys\n").await.unwrap();
    assert_eq!(exec.wait().await.exit_code, Some(0));
    assert!(
        text(&exec, StdStream::Stdout).contains("got keys xterm"),
        "{}",
        text(&exec, StdStream::Stdout)
    );
    place.close().await;
}

#[tokio::test]
async fn a_program_is_told_when_its_terminal_changes_its_size() {
    let place = Place::new("resized");
    let session = place.open().await;
    let script = "import os, signal, sys\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n\
        print('up', flush=True)\n\
        signal.sigwait([signal.SIGWINCH])\n\
        print('told', *os.get_terminal_size(), flush=True)";
    let request = ExecRequest {
        command: ["python3", "-c", script].map(Into::into).into(),
        tty: Some(TerminalSize {
            rows: 11,
            columns: 33,
        }),
        ..ExecRequest::default()
    };
    let exec = session.exec(request).await.unwrap();
    says(&exec, "up").await;
    exec.resize(TerminalSize {
        rows: 22,
        columns: 44,
    })
    .unwrap();
    says(&exec, "told 44 22").await;
    place.close().await;
}

#[tokio::test]
async fn a_kill_works_soon_whatever_the_program_does() {
    let place = Place::new("kill");
    let session = place.open().await;
    for script in [
        "trap '' TERM; echo up; while :; do sleep 1; done",
        "echo up; kill -STOP $$; sleep 100",
        "sleep 1000 & echo up; wait",
        "echo up; while :; do :; done",
    ] {
        let exec = session.exec(shell(script)).await.unwrap();
        says(&exec, "up").await;
        let asked = Instant::now();
        let result = exec.stop(Duration::from_millis(200)).await;
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "{script}: {:?}",
            asked.elapsed()
        );
        assert_eq!(result.status, Status::Cancelled, "{script}");
    }
    // Other programs are not affected, and a program that ends within the grace is not killed.
    let other = session
        .exec(shell("echo up; read never < /dev/zero; sleep 100"))
        .await
        .unwrap();
    let polite = session
        .exec(shell(
            "trap 'echo bye; exit 7' TERM; echo up; sleep 100 & wait",
        ))
        .await
        .unwrap();
    says(&polite, "up").await;
    let result = polite.stop(Duration::from_secs(10)).await;
    assert_eq!(
        (result.exit_code, text(&polite, StdStream::Stdout)),
        (Some(7), "up\nbye\n".to_owned())
    );
    assert!(other.result().is_none());
    place.close().await;
}

#[tokio::test]
async fn a_kill_works_in_a_paused_session_which_stays_paused() {
    let place = Place::new("paused");
    let session = place.open().await;
    let victim = session.exec(shell("echo up; sleep 1000")).await.unwrap();
    let clock = session
        .exec(shell("while :; do echo tick; sleep 0.02; done"))
        .await
        .unwrap();
    says(&victim, "up").await;
    says(&clock, "tick").await;
    if let Err(error) = session.pause().await {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "nothing can be paused here: {error:?}"
        );
        eprintln!("NOT TESTED: nothing can be paused here: {}", error.message);
        return place.close().await;
    }
    assert_eq!(session.state().status, SessionStatus::Paused);
    assert_eq!(
        session.exec(shell("true")).await.unwrap_err().code,
        ErrorCode::Conflict
    );
    assert_eq!(session.pause().await.unwrap_err().code, ErrorCode::Conflict);
    let asked = Instant::now();
    victim.stop(Duration::from_secs(30)).await;
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(session.state().status, SessionStatus::Paused);
    let settled = session.exec(shell("true")).await.unwrap_err();
    assert_eq!(
        settled.code,
        ErrorCode::Conflict,
        "the task has stopped the box again"
    );
    let before = clock.output().lengths();
    let wait_for_more = tokio::time::timeout(
        Duration::from_millis(300),
        clock.output().wait_for_more(before),
    )
    .await;
    assert!(wait_for_more.is_err(), "nothing ticks");
    session.resume().await.unwrap();
    assert!(
        clock.output().wait_for_more(clock.output().lengths()).await,
        "it ticks again"
    );
    assert_eq!(
        session.resume().await.unwrap_err().code,
        ErrorCode::Conflict
    );
    session.pause().await.unwrap();
    session.end().await;
    assert_eq!(clock.wait().await.status, Status::Cancelled);
    place.close().await;
}

#[tokio::test]
async fn a_program_has_its_own_time_unless_it_runs_in_the_background() {
    let place = Place::new("time");
    let spec = spec(|request| request.run.limits.wall_time = "1s".parse().ok());
    let session = place.engine.open_session(spec).await.unwrap();
    let background = session
        .exec(ExecRequest {
            background: true,
            ..shell("sleep 1000")
        })
        .await
        .unwrap();
    let timeout = Some(Duration::from_millis(200));
    let short = session
        .exec(ExecRequest {
            timeout,
            ..shell("sleep 1000")
        })
        .await
        .unwrap();
    let long = session.exec(shell("sleep 1000")).await.unwrap();
    let result = short.wait().await;
    assert_eq!(
        (result.status, result.error.unwrap().code),
        (Status::TimedOut, ErrorCode::Timeout)
    );
    assert_eq!(
        result.limits_hit.into_iter().collect::<Vec<_>>(),
        [LimitName::WallTime]
    );
    let longer = long.wait().await;
    assert_eq!(longer.status, Status::TimedOut);
    assert!(
        result.duration_ms < longer.duration_ms,
        "{} {}",
        result.duration_ms,
        longer.duration_ms
    );
    assert!(background.result().is_none());
    session.end().await;
    assert_eq!(background.wait().await.status, Status::Cancelled);
    place.close().await;
}

#[tokio::test]
async fn whoever_is_left_behind_keeps_nobody_waiting_and_lives_on() {
    let place = Place::new("behind");
    let session = place.open().await;
    let script = "(while :; do echo more; echo tick >> ticks; sleep 0.02; done) & echo first";
    let exec = session.exec(shell(script)).await.unwrap();
    let result = tokio::time::timeout(Duration::from_secs(10), exec.wait())
        .await
        .unwrap();
    assert_eq!(result.exit_code, Some(0));
    let length = exec.output().lengths();
    assert!(
        !exec.output().wait_for_more(length).await,
        "the feed has ended"
    );
    let script =
        "old=$(wc -l < ticks); while test $(wc -l < ticks) -le $((old + 5)); do sleep 0.02; done";
    assert_eq!(
        session
            .exec(shell(script))
            .await
            .unwrap()
            .wait()
            .await
            .exit_code,
        Some(0)
    );
    assert_eq!(exec.output().lengths(), length);
    place.close().await;
}

#[tokio::test]
async fn pipes_left_behind_are_bounded_and_the_oldest_is_closed_first() {
    let place = Place::new("pipes");
    let many = |request: &mut SessionRequest| request.run.limits.pids = Some(512);
    let session = place.engine.open_session(spec(many)).await.unwrap();
    let writes_on = |name: &str| {
        shell(&format!(
            "(trap '' PIPE; while echo x; do sleep 0.02; done; touch {name}) 2>/dev/null & exit 0"
        ))
    };
    session
        .exec(writes_on("oldest"))
        .await
        .unwrap()
        .wait()
        .await;
    let leaves = |count: usize| {
        let session = &session;
        async move {
            for _ in 0..count {
                session
                    .exec(shell("sleep 100 & exit 0"))
                    .await
                    .unwrap()
                    .wait()
                    .await;
            }
        }
    };
    leaves(20).await;
    let there = session.exec(shell("sleep 0.3; ls")).await.unwrap();
    there.wait().await;
    assert_eq!(
        text(&there, StdStream::Stdout),
        "",
        "within the bound everybody can write on"
    );
    session
        .exec(writes_on("newest"))
        .await
        .unwrap()
        .wait()
        .await;
    leaves(25).await;
    let seen = session
        .exec(shell(
            "until test -e oldest; do sleep 0.02; done; sleep 0.3; ls",
        ))
        .await
        .unwrap();
    assert_eq!(seen.wait().await.exit_code, Some(0));
    assert_eq!(text(&seen, StdStream::Stdout), "oldest\n");
    let notes = session.state().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("the oldest of their pipes were closed")),
        "{notes:?}"
    );
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_so_much_output_on_the_disk_and_no_more_whatever_its_limit_says() {
    let place = Place::new("kept");
    let huge = |request: &mut SessionRequest| request.run.limits.output = Some(spec::Size(1 << 40));
    let session = place.engine.open_session(spec(huge)).await.unwrap();
    let mut execs = Vec::new();
    for _ in 0..6 {
        let exec = session
            .exec(shell("head -c 80000000 /dev/zero"))
            .await
            .unwrap();
        assert_eq!(exec.wait().await.exit_code, Some(0));
        execs.push(exec);
    }
    let kept: Vec<u64> = execs
        .iter()
        .map(|exec| exec.output().lengths()[0] - exec.output().oldest()[0])
        .collect();
    assert_eq!(kept, [0, 0, 64 << 20, 64 << 20, 64 << 20, 64 << 20]);
    place.close().await;
}

#[tokio::test]
async fn a_flood_is_read_to_its_end_and_the_newest_is_kept() {
    let place = Place::new("flood");
    let session = place.open().await;
    let exec = session
        .exec(shell("head -c 30000000 /dev/zero | tr '\\0' x; echo end"))
        .await
        .unwrap();
    let result = exec.wait().await;
    assert_eq!((result.exit_code, result.truncated.stdout), (Some(0), true));
    assert!(result.limits_hit.contains(&LimitName::Output));
    assert_eq!(exec.output().lengths(), [30_000_004, 0]);
    assert_eq!(
        exec.output().read(StdStream::Stdout, 30_000_000, 10).bytes,
        b"end\n"
    );
    assert_eq!(
        exec.output().read(StdStream::Stdout, 0, 1).from,
        30_000_004 - (4 << 20)
    );
    place.close().await;
}

#[tokio::test]
async fn a_session_ends_when_nobody_uses_it_and_when_it_is_too_old() {
    let place = Place::new("idle");
    let idle = spec(|request| request.idle = Some(Duration::from_secs(1)));
    let busy = place.engine.open_session(idle.clone()).await.unwrap();
    let exec = busy.exec(shell("sleep 4")).await.unwrap();
    let session = place.engine.open_session(idle).await.unwrap();
    session
        .exec(ExecRequest {
            background: true,
            ..shell("sleep 1000")
        })
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(20), session.ended())
        .await
        .unwrap();
    assert_eq!(ended.ended, Some(SessionEnd::Idle));
    assert!(exec.result().is_none(), "one that works is not idle");
    assert_eq!(exec.wait().await.exit_code, Some(0));
    assert_eq!(busy.ended().await.ended, Some(SessionEnd::Idle));
    let old = spec(|request| request.lifetime = Some(Duration::from_secs(2)));
    let session = place.engine.open_session(old).await.unwrap();
    let exec = session.exec(shell("sleep 1000")).await.unwrap();
    assert_eq!(session.ended().await.ended, Some(SessionEnd::Lifetime));
    assert_eq!(exec.result().unwrap().status, Status::Cancelled);
    place.close().await;
}

#[tokio::test]
async fn cpu_time_of_the_whole_box_ends_the_session_and_says_so() {
    let place = Place::new("cpu");
    let spec = spec(|request| request.run.limits.cpu_time = "2s".parse().ok());
    let session = place.engine.open_session(spec).await.unwrap();
    let mut execs = Vec::new();
    // Together they reach the limit before any one of them does.
    for _ in 0..4 {
        execs.push(session.exec(shell("while :; do :; done")).await.unwrap());
    }
    for exec in execs {
        assert!(exec.wait().await.limits_hit.contains(&LimitName::CpuTime));
    }
    match tokio::time::timeout(Duration::from_secs(2), session.ended()).await {
        Ok(ended) => {
            assert_eq!(ended.ended, Some(SessionEnd::Limit));
            assert!(ended.limits_hit.contains(&LimitName::CpuTime));
        }
        Err(_) => {
            assert!(
                std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                "nothing counts for the whole box here"
            );
            eprintln!(
                "NOT TESTED: nothing counts for the whole box here, so each process has its own limit"
            );
        }
    }
    place.close().await;
}

#[tokio::test]
async fn file_locks_that_no_limit_counts_end_the_session_and_say_so() {
    const LOCKS: &str = "\
import fcntl, os
for number in range(120):
    file = os.open(f'/tmp/{number}', os.O_CREAT | os.O_RDWR)
    for place in range(500, 0, -1): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
while True: pass";
    let place = Place::new("locks");
    let session = place.open().await;
    let program = ExecRequest {
        command: ["python3", "-c", LOCKS].map(Into::into).into(),
        ..ExecRequest::default()
    };
    let exec = session.exec(program).await.unwrap();
    match tokio::time::timeout(Duration::from_secs(60), session.ended()).await {
        Ok(ended) => {
            assert_eq!(ended.ended, Some(SessionEnd::Limit));
            assert!(ended.limits_hit.contains(&LimitName::Memory));
            let result = exec.wait().await;
            assert_eq!(result.status, Status::OomKilled, "{result:?}");
            assert!(result.limits_hit.contains(&LimitName::Memory));
        }
        Err(_) => {
            assert!(
                std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                "no cgroup says here which processes are the session's"
            );
            eprintln!("NOT TESTED: no cgroup says here which processes are the session's");
        }
    }
    place.close().await;
}

#[tokio::test]
async fn more_programs_than_may_be_are_refused_and_old_ones_forgotten() {
    let place = Place::new("many");
    let session = place.open().await;
    let sleeper = ExecRequest {
        command: ["sleep", "1000"].map(Into::into).into(),
        background: true,
        ..ExecRequest::default()
    };
    for _ in 0..32 {
        session.exec(sleeper.clone()).await.unwrap();
    }
    assert_eq!(
        session.exec(shell("true")).await.unwrap_err().code,
        ErrorCode::QuotaExceeded
    );
    session.execs()[31].stop(Duration::ZERO).await;
    for _ in 0..70 {
        session
            .exec(ExecRequest {
                command: vec!["true".into()],
                ..ExecRequest::default()
            })
            .await
            .unwrap()
            .wait()
            .await;
    }
    let (running, ended): (Vec<_>, Vec<_>) = session
        .execs()
        .into_iter()
        .partition(|exec| exec.result().is_none());
    assert_eq!(running.len(), 31);
    assert!((64..=65).contains(&ended.len()), "{}", ended.len());
    place.close().await;
}

#[tokio::test]
async fn a_program_that_cannot_start_is_told_and_the_session_goes_on() {
    let place = Place::new("cannot");
    let session = place.open().await;
    let absent = ExecRequest {
        command: vec!["no-such-program".into()],
        ..ExecRequest::default()
    };
    let never = session.exec(absent).await.unwrap().wait().await;
    assert_eq!((never.status, never.exit_status), (Status::NotStarted, 127));
    assert_eq!(
        never.error.unwrap().message,
        "there is no command `no-such-program` inside"
    );
    let folder = ExecRequest {
        command: vec!["/usr".into()],
        ..ExecRequest::default()
    };
    assert_eq!(
        session.exec(folder).await.unwrap().wait().await.exit_status,
        126
    );
    let nowhere = ExecRequest {
        directory: Some("/no/such/folder".into()),
        ..shell("true")
    };
    assert_eq!(
        session.exec(nowhere).await.unwrap_err().code,
        ErrorCode::InvalidSpec
    );
    assert_eq!(
        session.exec(ExecRequest::default()).await.unwrap_err().code,
        ErrorCode::InvalidSpec
    );
    assert_eq!(
        session
            .exec(shell("true"))
            .await
            .unwrap()
            .wait()
            .await
            .exit_code,
        Some(0)
    );
    place.close().await;
}

#[tokio::test]
async fn a_directory_that_cannot_be_entered_is_the_callers_fault() {
    let place = Place::new("directory");
    let session = place.open().await;
    let made = session
        .exec(shell("mkdir d; touch file; ln -s loop loop"))
        .await
        .unwrap();
    assert_eq!(made.wait().await.exit_code, Some(0));
    let at = |path: &str| ExecRequest {
        directory: Some(format!("/workspace/{path}").into()),
        ..shell("true")
    };
    for bad in ["nowhere", "file", "loop"] {
        let refused = session.exec(at(bad)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidSpec, "{bad}: {refused:?}");
        assert!(
            refused.message.contains("cannot start in its `directory`"),
            "{refused:?}"
        );
    }
    assert_eq!(
        session.exec(at("d")).await.unwrap().wait().await.exit_code,
        Some(0)
    );
    place.close().await;
}

#[tokio::test]
async fn what_a_program_is_denied_stands_in_its_own_record() {
    let place = Place::new("denied");
    let session = place.open().await;
    let denied = session.exec(shell("echo x > /usr/x")).await.unwrap();
    let fine = session.exec(shell("echo x > x")).await.unwrap();
    let (denied, fine) = (denied.wait().await, fine.wait().await);
    assert_eq!((fine.exit_code, fine.denials), (Some(0), vec![]));
    if denied.notes.is_empty() {
        assert_eq!(
            denied
                .denials
                .iter()
                .map(|denial| &*denial.target)
                .collect::<Vec<_>>(),
            ["/usr/x"]
        );
    }
    place.close().await;
}

#[tokio::test]
async fn memory_that_runs_out_ends_the_program_and_not_the_session() {
    let place = Place::new("memory");
    let spec = spec(|request| request.run.limits.memory = "64M".parse().ok());
    let session = place.engine.open_session(spec).await.unwrap();
    let result = session
        .exec(shell("x=x; while :; do x=$x$x; done"))
        .await
        .unwrap()
        .wait()
        .await;
    match result.status {
        Status::OomKilled => assert!(result.limits_hit.contains(&LimitName::Memory)),
        // With a limit per process only, the program gets the signal and ends.
        status => assert_eq!(
            (status, result.limits_hit.is_empty()),
            (Status::Failed, true),
            "{result:?}"
        ),
    }
    assert_eq!(
        session
            .exec(shell("true"))
            .await
            .unwrap()
            .wait()
            .await
            .exit_code,
        Some(0)
    );
    place.close().await;
}

/// The host pid of the first process in the sandbox in which a program with this command line runs.
fn first_process_of(command: &str) -> Option<u32> {
    let processes = || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    let room = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let is_it = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == command.as_bytes())
    };
    let program = processes().find(is_it)?;
    let is_first = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status
            .lines()
            .find(|line| line.starts_with("NSpid:"))
            .unwrap_or_default();
        room(*pid) == room(program) && numbers.split_whitespace().last() == Some("1")
    };
    processes().find(is_first)
}

#[tokio::test]
async fn a_session_whose_box_dies_is_lost_and_so_are_its_programs() {
    let place = Place::new("lost");
    let session = place.open().await;
    let exec = session
        .exec(shell("echo up; exec sleep 7654.321"))
        .await
        .unwrap();
    says(&exec, "up").await;
    let first = loop {
        match first_process_of("sleep\x007654.321\0") {
            Some(first) => break first,
            // It was announced just before the exec.
            None => tokio::task::yield_now().await,
        }
    };
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &first.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let ended = tokio::time::timeout(Duration::from_secs(10), session.ended())
        .await
        .unwrap();
    assert_eq!(ended.ended, Some(SessionEnd::Lost));
    let result = exec.result().unwrap();
    assert_eq!(result.status, Status::Lost, "{result:?}");
    assert_eq!(
        session.exec(shell("true")).await.unwrap_err().code,
        ErrorCode::Conflict
    );
    place.close().await;
}

#[tokio::test]
async fn an_engine_with_a_pool_has_sessions_as_well() {
    let mut place = Place::new("pool");
    let pool = PoolSettings {
        warm_sandboxes: 2,
        prepared_namespaces: 2,
        ..PoolSettings::OFF
    };
    place.engine = Engine::open(Settings {
        pool,
        ..Settings::new(&place.state)
    })
    .unwrap();
    for _ in 0..3 {
        let session = place.open().await;
        let exec = session.exec(shell("echo here")).await.unwrap();
        assert_eq!(
            (exec.wait().await.exit_code, text(&exec, StdStream::Stdout)),
            (Some(0), "here\n".to_owned())
        );
        session.end().await;
    }
    place.close().await;
}

#[tokio::test]
async fn a_fork_has_the_files_and_goes_its_own_way() {
    let place = Place::new("fork");
    let session = place.open().await;
    let script = "mkdir -p a/b && echo one > a/b/file && chmod 750 a/b/file && ln -s /etc/passwd link && mkfifo fifo";
    assert_eq!(
        session
            .exec(shell(script))
            .await
            .unwrap()
            .wait()
            .await
            .exit_code,
        Some(0)
    );
    let clock = session
        .exec(shell("while :; do echo tick; sleep 0.02; done"))
        .await
        .unwrap();
    let copy = place
        .engine
        .fork_session(&session, session.spec().clone())
        .await
        .unwrap();
    assert!(
        clock.output().wait_for_more(clock.output().lengths()).await,
        "the original goes on"
    );
    let script = "stat -c '%a %U' a/b/file; cat a/b/file; readlink link; test -e fifo || echo none; echo two > a/b/file";
    let exec = copy.exec(shell(script)).await.unwrap();
    assert_eq!(
        exec.wait().await.exit_code,
        Some(0),
        "{}",
        text(&exec, StdStream::Stderr)
    );
    let shown = text(&exec, StdStream::Stdout);
    assert!(
        shown.starts_with("750 ") && shown.ends_with("\none\n/etc/passwd\nnone\n"),
        "{shown}"
    );
    assert!(
        copy.state().notes.iter().any(|note| note.contains("fifo")),
        "{:?}",
        copy.state().notes
    );
    let exec = session.exec(shell("cat a/b/file")).await.unwrap();
    exec.wait().await;
    assert_eq!(text(&exec, StdStream::Stdout), "one\n");
    assert_ne!(copy.id(), session.id());
    place.close().await;
}

#[tokio::test]
async fn files_put_from_outside_belong_to_the_program() {
    let place = Place::new("files");
    let session = place.open().await;
    let put = session.tree().unwrap();
    let mut upload = put.put("deep/er/file".as_ref(), true).unwrap();
    upload.write(b"hello").unwrap();
    upload.publish().unwrap();
    let exec = session
        .exec(shell(
            "cat deep/er/file && echo ' there' >> deep/er/file && rm -r deep",
        ))
        .await
        .unwrap();
    assert_eq!(
        exec.wait().await.exit_code,
        Some(0),
        "{}",
        text(&exec, StdStream::Stderr)
    );
    assert_eq!(text(&exec, StdStream::Stdout), "hello");
    place.close().await;
}

#[tokio::test]
async fn a_session_that_nobody_waits_for_leaves_nothing() {
    let place = Place::new("unwanted");
    let opening = place.engine.open_session(spec(|_| {}));
    assert!(
        tokio::time::timeout(Duration::ZERO, opening).await.is_err(),
        "it was dropped in time"
    );
    place.close().await;
}

#[tokio::test]
async fn sessions_end_with_the_last_clone_of_their_engine() {
    let place = Place::new("dropped");
    let session = place.open().await;
    let exec = session.exec(shell("sleep 1000")).await.unwrap();
    let Place { state, engine } = place;
    let clone = engine.clone();
    drop(engine);
    assert_eq!(
        session
            .exec(shell("true"))
            .await
            .unwrap()
            .wait()
            .await
            .exit_code,
        Some(0)
    );
    drop(clone);
    let ended = tokio::time::timeout(Duration::from_secs(10), session.ended())
        .await
        .unwrap();
    assert_eq!(ended.ended, Some(SessionEnd::Asked));
    assert_eq!(exec.result().unwrap().status, Status::Cancelled);
    assert_eq!(fs::read_dir(state.join("runs")).unwrap().count(), 0);
    fs::remove_dir_all(&state).unwrap();
}

#[tokio::test]
async fn two_sessions_of_one_name_cannot_be() {
    let place = Place::new("name");
    let named = spec(|request| {
        request.run = RunRequest {
            run_id: Some("mine".to_owned()),
            ..RunRequest::default()
        }
    });
    let session = place.engine.open_session(named.clone()).await.unwrap();
    assert!(place.engine.open_session(named.clone()).await.is_err());
    session.end().await;
    place.engine.open_session(named).await.unwrap();
    place.close().await;
}

#[tokio::test]
async fn a_job_that_is_cancelled_between_two_steps_is_no_success() {
    let place = Place::new("between");
    let step = json!({ "type": "write_file", "args": { "path": "x", "content": "x" } });
    let bounds =
        json!({ "max_runtime_seconds": 60, "max_output_bytes": 1000, "ext_net_allowed": false });
    let job = json!({ "protocol_version": "1.0", "job_id": "j", "task_id": "t", "constraints": bounds,
        "steps": [step, step] });
    let job = StepJob::read(
        &serde_json::from_value(job).unwrap(),
        Some(ExecutionMode::DirectSteps),
    )
    .unwrap();
    // Which of the two is noticed first, the cancellation or the end of the work, is not
    // determined.
    for _ in 0..16 {
        let ((cancel, cancelled), (_, terminated)) = (watch::channel(false), watch::channel(None));
        let places = Arc::new(|| Some(Box::new(()) as Box<dyn Send>));
        let wishes = JobControl {
            cancelled,
            terminated,
            file_slots: places,
        };
        let begun = |_: &Session| _ = cancel.send_replace(true);
        let carried = place
            .engine
            .run_job(spec(|_| {}), &job, b"", JobRunner::BuiltIn, wishes, begun)
            .await;
        assert_eq!(
            carried.result.failure_code.as_deref(),
            Some("cancelled"),
            "{:?}",
            carried.result
        );
    }
    place.close().await;
}
