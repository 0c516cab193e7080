//! What writing down costs beside what it tells of: the CPU time of the lines that a run leaves in the audit and, with a
//! model call, in the ledger, as a part of the CPU time of a run.

use crate::{
    Trouble,
    measure::{Bench, once},
    report::{Metric, OURS},
};
use std::{fs, io, path::Path, time::Duration};
use store::audit::{Audit, Decision, Entry};

/// Lines of which the cost of one is the middle.
const LINES: u32 = 5000;
/// What a run writes: accepted, started, ended; and what a model call adds to the ledger, which is written the same way.
const LINES_OF_A_RUN: f64 = 3.0;
const LINES_OF_A_CALL: f64 = 2.0;

impl Bench<'_> {
    /// The share of a run's CPU time.
    pub(crate) fn audit(&mut self) -> Result<(), Trouble> {
        let server = self.serve("audit")?;
        let mut client = server.client()?;
        for round in 0..self.amount.rounds {
            let line = line(&self.folder.join(format!("audit-{round}")))?;
            let before = tree()?;
            for _ in 0..self.amount.runs {
                once(&mut client)?;
            }
            // Keepers and programs that were reaped count at whoever reaped them, all of them below us.
            let run = (tree()? - before) / self.amount.runs as f64;
            let share = (LINES_OF_A_RUN + LINES_OF_A_CALL) * line.as_secs_f64() / run;
            self.samples.add(OURS, Metric::AuditShare, share * 100.0);
        }
        drop(client);
        Ok(())
    }
}

/// CPU time of one line.
fn line(folder: &Path) -> io::Result<Duration> {
    fs::create_dir_all(folder)?;
    let audit = Audit::open(folder)?;
    let entry = Entry {
        what: "run.accept",
        decision: Decision::Allowed,
        tenant: "tenant",
        key: "0123456789abcdef",
        run: "01M7HFHSZANFJSETPJ8V89A5WV",
        about: "profile=restrictive backend=native",
        ..Entry::default()
    };
    let before = spent()?;
    (0..LINES).try_for_each(|_| audit.note(&entry))?;
    Ok((spent()? - before) / LINES)
}

/// CPU time of this thread.
fn spent() -> io::Result<Duration> {
    let told = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = told.split(' ').next().and_then(|text| text.parse().ok());
    nanoseconds.map(Duration::from_nanos).ok_or_else(|| io::Error::other("no schedstat"))
}

/// CPU seconds of everybody below us, the dead among them.
fn tree() -> io::Result<f64> {
    peers::processor_time_below_us()
}
