//! `airlock restore`: a state folder from a backup.

use super::{
    Global,
    backup::failure,
    conclude,
    message::{self, Failure, Line},
    print, print_json,
};
use crate::config::Surroundings;
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

The state folder must be empty or absent. It appears once every file is there with the hash that
the backup says. What was under way when the backup was made is treated at the next start as after
a crash. Others may have gone on since then, so jobs that waited end as `lost` unless they said
`on_lost`: `rerun`, and notices that waited are given up; with --resume all of it goes on. Keys that
were revoked since the backup are valid again, and what was spent since is forgotten: revoke them
again. A backup is as trusted as whoever could write it.
--check reads every hash, and opens the database: it must be whole, of a schema that is known here,
and made by an Airlock. It is unpacked into $TMPDIR for that. Ledger and audit are judged by a restore.
Exit status: 0; 1 if what was backed up does not fit together, which is named; 125 if nothing was
restored.";

const BUFFER: usize = 1 << 20;

/// The options of `airlock restore`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The backup; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only read it, check every hash and the database; restore nothing
    #[arg(long)]
    check: bool,
    /// Let jobs and notices that waited go on as if nothing had happened since
    #[arg(long, conflicts_with = "check")]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    let input = match options.file == Path::new("-") {
        true => Stream::new(Box::new(io::stdin().lock())),
        false => Stream::new(Box::new(open(
            &surroundings.current_folder.join(&options.file),
        )?)),
    };
    let done = match options.check {
        true => engine::backup::examine(input, &scratch(surroundings)),
        false => {
            let waiting = if options.resume {
                PendingWork::Resumed
            } else {
                PendingWork::Held
            };
            engine::backup::restore(input, &config.state, waiting, engine::now().0)
        }
    };
    let report = done.map_err(|error| failure(&error))?;
    tell(options, &report, &config.state)?;
    Ok(u8::from(!report.problems.is_empty()))
}

/// Where the database is looked at: nothing of it stays.
fn scratch(surroundings: &Surroundings) -> PathBuf {
    let named = surroundings
        .variables
        .get(OsStr::new("TMPDIR"))
        .filter(|folder| !folder.is_empty());
    surroundings
        .current_folder
        .join(named.map_or(OsStr::new("/tmp"), OsString::as_os_str))
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        Failure::invalid(message, "give the file that `airlock backup` wrote")
    })
}

fn tell(options: &Options, report: &BackupReport, state: &Path) -> Result<(), Failure> {
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
        super::image::shared::size(report.bytes)
    ))?;
    let mut lines: Vec<_> = report.problems.iter().cloned().map(Line::Error).collect();
    if options.check {
        lines.push(Line::Note(
            "the database is whole; ledger and audit are judged by a restore".to_owned(),
        ));
    } else {
        if let Some(held) = report.held {
            lines.push(Line::Note(format!(
                "{} jobs that waited are `lost`, {} notices are given up; those of `on_lost`: `rerun` run",
                held.jobs, held.notices
            )));
        }
        lines.push(Line::Note(
            "keys revoked since the backup are valid again, and what was spent since is forgotten"
                .to_owned(),
        ));
        lines.push(Line::Note(format!(
            "`{}` needs the master key that its secrets were encrypted with, and its images again",
            state.display()
        )));
    }
    message::say(&lines);
    Ok(())
}

/// Read from its beginning to its end: a pipe is as good as a file.
struct Stream<'a>(BufReader<Box<dyn Read + 'a>>);

impl<'a> Stream<'a> {
    fn new(from: Box<dyn Read + 'a>) -> Stream<'a> {
        Stream(BufReader::with_capacity(BUFFER, from))
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl BufRead for Stream<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.0.consume(count);
    }
}

impl image::tar::TarInput for Stream<'_> {}
