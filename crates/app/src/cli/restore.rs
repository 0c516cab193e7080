//! `airlock restore`: restores a state folder from a backup.

use super::{
    Global,
    backup::failure,
    conclude,
    message::{self, Failure, Message},
    print, print_json,
};
use crate::config::ProcessEnv;
use clap::Args;
use engine::backup::{BackupReport, PendingWork};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  airlock restore --check node.tar
  airlock restore node.tar --state /var/lib/airlock
  ssh elsewhere 'cat node.tar' | airlock restore - --state ./state

The state folder must be empty or absent. It appears when every file is restored and matches its
hash. Runs and jobs that were running during the backup are treated as after a crash. Because the
server may have continued after the backup, waiting jobs end as `lost` unless they have `on_lost`:
`rerun`, and waiting webhooks are dropped; --resume continues all of them. Keys that were revoked
since the backup are valid again: revoke them again. Spending since the backup is not counted.
A backup is as trustworthy as everyone who could write to it.
--check verifies every hash, and opens the database: it must be intact, of a known schema version,
and written by Airlock. It is unpacked into $TMPDIR. Ledger and audit log are checked by a restore.
Exit status: 0; 1 if the restored files are inconsistent, which is reported; 125 if nothing was
restored.";

const BUFFER_BYTES: usize = 1 << 20;

/// The options of `airlock restore`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The backup; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only check every hash and the database; restore nothing
    #[arg(long)]
    check: bool,
    /// Continue waiting jobs and webhooks as if nothing had happened since the backup
    #[arg(long, conflicts_with = "check")]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let input = if options.file == Path::new("-") {
        BackupReader::new(Box::new(io::stdin().lock()))
    } else {
        BackupReader::new(Box::new(open(&env.current_folder.join(&options.file))?))
    };
    let done = if options.check {
        engine::backup::examine(input, &scratch_folder(env))
    } else {
        let waiting = if options.resume {
            PendingWork::Resumed
        } else {
            PendingWork::Held
        };
        engine::backup::restore(input, &config.state, waiting, engine::now().0)
    };
    let report = done.map_err(|error| failure(&error))?;
    print_report(options, &report, &config.state)?;
    Ok(u8::from(!report.problems.is_empty()))
}

/// Where `--check` unpacks the database temporarily.
fn scratch_folder(env: &ProcessEnv) -> PathBuf {
    let named = env
        .variables
        .get(OsStr::new("TMPDIR"))
        .filter(|folder| !folder.is_empty());
    env.current_folder
        .join(named.map_or(OsStr::new("/tmp"), OsString::as_os_str))
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        Failure::invalid(message, "give the file that `airlock backup` wrote")
    })
}

fn print_report(options: &Options, report: &BackupReport, state: &Path) -> Result<(), Failure> {
    if options.json {
        return print_json(report);
    }
    let what = if options.check {
        "are whole"
    } else {
        "restored"
    };
    print(&format!(
        "{} files, {}, {what}\n",
        report.files,
        super::size::human_size(report.bytes)
    ))?;
    let mut lines: Vec<_> = report
        .problems
        .iter()
        .cloned()
        .map(Message::Error)
        .collect();
    if options.check {
        lines.push(Message::Note(
            "the database is intact; ledger and audit are checked by a restore".to_owned(),
        ));
    } else {
        if let Some(held) = report.held {
            lines.push(Message::Note(format!(
                "{} waiting jobs are `lost`, {} webhooks are dropped; jobs with `on_lost`: `rerun` run",
                held.jobs, held.notices
            )));
        }
        lines.push(Message::Note(
            "keys revoked since the backup are valid again, and spending since then is not counted"
                .to_owned(),
        ));
        lines.push(Message::Note(format!(
            "`{}` needs the master key of its secrets, and its images must be pulled again",
            state.display()
        )));
    }
    message::print(&lines);
    Ok(())
}

/// A backup that is read sequentially, so that a pipe works as well as a file.
struct BackupReader<'a>(BufReader<Box<dyn Read + 'a>>);

impl<'a> BackupReader<'a> {
    fn new(from: Box<dyn Read + 'a>) -> BackupReader<'a> {
        BackupReader(BufReader::with_capacity(BUFFER_BYTES, from))
    }
}

impl Read for BackupReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl BufRead for BackupReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl image::tar::TarInput for BackupReader<'_> {}
