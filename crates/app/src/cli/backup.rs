//! `airlock backup`: writes the state folder into one file, also while a server uses it.

use super::{
    Global, conclude,
    message::{self, Failure, Message},
    print, print_json,
};
use crate::config::{ArtifactBackend, ProcessEnv};
use ::fs::Dir;
use clap::Args;
use engine::backup::{Backup, BackupError, BackupReport};
use rustix::fs::{FileType, Mode};
use spec::ErrorCode;
use std::{
    ffi::OsStr,
    io::{self, BufWriter, IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  airlock backup node.tar
  airlock backup --json node.tar
  airlock backup - | ssh elsewhere 'cat > node.tar'
  airlock restore --check node.tar

The backup contains: hashes of keys, runs, jobs, usage, ledger, audit log, artifacts of the state
folder, encrypted secrets. It does not contain: the master key of the secrets, images, layers of
workspaces, artifacts in a bucket. The file appears when it is complete, with mode 0600; an existing
one is not overwritten.
Exit status: 0; 1 if ledger or audit log are damaged, or a file could
not be read, which is then named; 125 if no backup was written.";

const BUFFER_BYTES: usize = 1 << 20;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The options of `airlock backup`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The file to write; `-` for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
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
    let to_stdout = options.file == Path::new("-");
    if to_stdout && (options.json || io::stdout().is_terminal()) {
        return Err(Failure::invalid(
            "standard output cannot receive the backup",
            "redirect it to a file or a program, and omit --json",
        ));
    }
    let local = matches!(config.artifacts.store, ArtifactBackend::Files);
    let of = Backup {
        state: &config.state,
        version: env!("CARGO_PKG_VERSION"),
        now_ms: engine::now().0,
        artifacts: local,
    };
    let report = if to_stdout {
        write(&of, io::stdout().lock())?
    } else {
        let path = env.current_folder.join(&options.file);
        write_file(&of, &path)?
    };
    print_report(options, &report, to_stdout, local)?;
    Ok(u8::from(!report.problems.is_empty()))
}

fn write(of: &Backup<'_>, to: impl Write) -> Result<BackupReport, Failure> {
    let mut shown = BackupProgress::new();
    let mut progress = |path: &str, size: u64| shown.next(path, size);
    let report = engine::backup::backup(
        of,
        BufWriter::with_capacity(BUFFER_BYTES, to),
        &mut progress,
    );
    shown.clear();
    report.map_err(|error| failure(&error))
}

pub(super) fn failure(error: &BackupError) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: error.hint().to_owned(),
    }
}

fn print_report(
    options: &Options,
    report: &BackupReport,
    to_stdout: bool,
    local: bool,
) -> Result<(), Failure> {
    let mut lines: Vec<_> = report
        .problems
        .iter()
        .cloned()
        .map(Message::Error)
        .collect();
    if !local {
        lines.push(Message::Note(
            "artifacts are in a bucket, and not in the backup".to_owned(),
        ));
    }
    lines.push(Message::Note(
        "the master key of the secrets is not in the backup: store it elsewhere".to_owned(),
    ));
    match (options.json, to_stdout) {
        (true, _) => print_json(report)?,
        (false, false) => {
            print(&format!(
                "{} files, {}\n",
                report.files,
                super::size::human_size(report.bytes)
            ))?;
            message::print(&lines);
        }
        (false, true) => message::print(&lines),
    }
    Ok(())
}

/// Writes to a draft that gets its name once it is complete. In a folder that others may write to,
/// existing files are neither followed nor overwritten.
fn write_file(of: &Backup<'_>, path: &Path) -> Result<BackupReport, Failure> {
    if path.symlink_metadata().is_ok() {
        return Err(already_exists(path));
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(path),
        _ => cannot_write(path, error),
    };
    let folder = Dir::open(parent_folder(path)).map_err(failed)?;
    let name = path.file_name().unwrap_or_default();
    // A partial file that cannot be removed does no harm.
    _ = remove_partial_files(&folder, name);
    let partial = format!(".{}.{}.partial", name.to_string_lossy(), engine::fresh_id());
    let mut draft = folder
        .draft(partial, Mode::RUSR | Mode::WUSR)
        .map_err(failed)?;
    let report = write(of, draft.file())?;
    draft.publish_new(&folder, name).map_err(failed)?;
    Ok(report)
}

fn is_partial_file(found: &[u8], name: &[u8]) -> bool {
    let id = found
        .strip_prefix(b".")
        .and_then(|rest| rest.strip_prefix(name));
    let id = id.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(b".partial"));
    id.is_some_and(|id| id.len() == 26 && id.iter().all(u8::is_ascii_alphanumeric))
}

fn parent_folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Removes partial files that killed backups of this name left: regular files of this user without
/// a writer.
fn remove_partial_files(folder: &Dir, name: &OsStr) -> io::Result<()> {
    for entry in folder.entries()? {
        let partial = entry?.name;
        if !is_partial_file(partial.as_bytes(), name.to_string_lossy().as_bytes()) {
            continue;
        }
        let Some(found) = folder.stat(&partial)? else {
            continue;
        };
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if is_file && found.st_uid == rustix::process::geteuid().as_raw() {
            folder.sweep_draft(&partial)?;
        }
    }
    Ok(())
}

fn already_exists(path: &Path) -> Failure {
    let message = format!("`{}` exists already", path.display());
    Failure::invalid(message, "choose another name; backups are not overwritten")
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot write `{}`: {error}", path.display()),
        hint: "choose a folder that you may write to, with space for the whole state folder"
            .to_owned(),
    }
}

/// Progress on a terminal, one line that is redrawn.
struct BackupProgress {
    is_terminal: bool,
    last: Instant,
    bytes: u64,
    files: u64,
}

impl BackupProgress {
    fn new() -> BackupProgress {
        BackupProgress {
            is_terminal: io::stderr().is_terminal(),
            last: Instant::now(),
            bytes: 0,
            files: 0,
        }
    }

    fn next(&mut self, _: &str, size: u64) {
        (self.files, self.bytes) = (self.files + 1, self.bytes + size);
        if self.is_terminal && self.last.elapsed() > PROGRESS_INTERVAL {
            self.last = Instant::now();
            message::print_plain(&format!(
                "\r\x1b[K{} files, {}",
                self.files,
                super::size::human_size(self.bytes)
            ));
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            message::print_plain("\r\x1b[K");
        }
    }
}
