//! The neighbour: a harmless run beside an attack. It answers questions all the time, and each answer takes new
//! processes, memory and scratch space.

use crate::Bench;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const ANSWER: &str =
    r#"while read -r line; do head -c 1000000 /dev/zero > /tmp/file && echo "$line" | cat; done"#;
/// How often it is asked.
const PACE: Duration = Duration::from_millis(10);

/// A run under way, asked by a thread until it moves out.
#[derive(Debug)]
pub struct Neighbour {
    airlock: Child,
    stop: Arc<AtomicBool>,
    asker: JoinHandle<(u64, ChildStdin, BufReader<ChildStdout>)>,
}

impl Neighbour {
    /// Starts it and waits for its first answer.
    pub fn move_in(bench: &Bench) -> Neighbour {
        let mut command = bench.airlock("run");
        // If it hangs, its own time limit ends it, and the test with it.
        command.args(["--stdin", "--timeout", "15m", "--", "sh", "-c", ANSWER]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut airlock = command.spawn().expect("airlock starts");
        let mut input = airlock.stdin.take().expect("piped");
        let mut output = BufReader::new(airlock.stdout.take().expect("piped"));
        ask(0, &mut input, &mut output);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let asker = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                count += 1;
                ask(count, &mut input, &mut output);
                std::thread::sleep(PACE);
            }
            (count, input, output)
        });
        Neighbour {
            airlock,
            stop,
            asker,
        }
    }

    /// Asks once more and lets it end; it must have noticed nothing.
    pub fn move_out(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (count, mut input, mut output) = self
            .asker
            .join()
            .expect("the neighbour answers all the time");
        ask(count + 1, &mut input, &mut output);
        drop(input);
        let done = self.airlock.wait_with_output().expect("airlock ends");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // Without cgroups a run says so; that has nothing to do with its neighbours.
        let noticed = said.lines().find(|line| !line.contains("no cgroup for"));
        assert_eq!(
            (done.status.code(), noticed),
            (Some(0), None),
            "the neighbour was disturbed: {said}"
        );
    }
}

fn ask(number: u64, input: &mut ChildStdin, output: &mut BufReader<ChildStdout>) {
    writeln!(input, "question {number}").expect("the neighbour listens");
    let mut line = String::new();
    output
        .read_line(&mut line)
        .expect("the neighbour can be heard");
    assert_eq!(
        line,
        format!("question {number}\n"),
        "the neighbour answers"
    );
}
