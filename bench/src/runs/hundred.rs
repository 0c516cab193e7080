//! How long until a hundred sandboxes are alive at once and each has answered.

use crate::runs::{
    Options,
    measure::wanted,
    report::{Hundred, NotRun, Report},
    statistics::middle,
    ways::{Reason, library::Library, pool::Ahead},
};
use engine::Run;
use spec::{RunEvent, RunRequest, Status};
use std::time::{Duration, Instant};
use tokio::{io::AsyncWriteExt, net::unix::pipe};

const SANDBOXES: usize = 100;
/// The median of these counts.
const TRIES: usize = 3;

/// Measures it, from asking for the first to the answer of the last.
pub(crate) async fn measure(options: &Options, report: &mut Report) {
    if !wanted(options, "hundred") {
        return;
    }
    (options.progress)("hundred");
    let mut tries = Vec::new();
    for _ in 0..TRIES {
        match all_answer(options).await {
            Ok(took) => tries.push((took.as_secs_f64() * 1000.0).round() / 1000.0),
            Err(reason) => {
                return report.not_run.push(NotRun {
                    name: "hundred".to_owned(),
                    reason,
                });
            }
        }
    }
    report.hundred = Some(Hundred {
        sandboxes: SANDBOXES,
        seconds: middle(&tries),
        tries,
    });
}

async fn all_answer(options: &Options) -> Result<Duration, Reason> {
    let request = RunRequest {
        command: vec!["cat".into()],
        stdin: true,
        ..RunRequest::default()
    };
    let library = Library::new(request, Ahead::Nothing, options)?;
    let took = answers(&library).await;
    library.end().await;
    took
}

async fn answers(library: &Library) -> Result<Duration, Reason> {
    let start = Instant::now();
    let live = all_alive(SANDBOXES, || library.start()).await?;
    let took = start.elapsed();
    live.end().await.map(|()| took)
}

/// Runs that all live, and go when their input ends.
pub(crate) struct Alive {
    runs: Vec<Run>,
    inputs: Vec<pipe::Sender>,
    silent: usize,
}

/// Each runs `cat`, is sent a line and must send it back; none ends before all have answered.
pub(crate) async fn all_alive(count: usize, start: impl Fn() -> Run) -> Result<Alive, Reason> {
    let mut runs: Vec<_> = (0..count).map(|_| start()).collect();
    let mut inputs = Vec::new();
    for run in &mut runs {
        let mut stdin = run.take_stdin().ok_or("a run without standard input")?;
        stdin
            .write_all(b"hello\n")
            .await
            .map_err(|error| format!("nobody listens: {error}"))?;
        inputs.push(stdin);
    }
    let mut silent = 0;
    for run in &mut runs {
        silent += usize::from(!answered(run).await);
    }
    Ok(Alive {
        runs,
        inputs,
        silent,
    })
}

impl Alive {
    /// Ends them, and says if one of them was not what it should be.
    pub(crate) async fn end(self) -> Result<(), Reason> {
        drop(self.inputs);
        for run in self.runs {
            let result = run.finish().await;
            if result.status != Status::Succeeded {
                let why = result.error.map_or_else(String::new, |error| error.message);
                return Err(format!("{:?}: {why}", result.status));
            }
        }
        match self.silent {
            0 => Ok(()),
            silent => Err(format!("{silent} sandboxes did not answer")),
        }
    }
}

async fn answered(run: &mut Run) -> bool {
    while let Some(event) = run.next_event().await {
        if let RunEvent::Output { data, .. } = event {
            return data == b"hello\n";
        }
    }
    false
}
