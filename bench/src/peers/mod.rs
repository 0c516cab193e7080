//! What measurements beside other servers share: processes that are watched, rounds that are compared, and what is told
//! of the machine.

mod process;
mod samples;

pub(crate) use process::{
    Process, Processors, adopt_orphans, allow_files, await_listener, memory_below_us, move_aside,
    processor_time_at, processor_time_below_us,
};
pub(crate) use samples::Samples;

use std::{fmt::Display, fs, io, path::PathBuf};

/// What kept something from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// A program did not start.
    #[error("cannot start {program}: {source}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A file or folder could not be made, read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A server ended, or did not come up in time.
    #[error("{name} does not listen; its last words: {last}")]
    NoListener {
        /// Which.
        name: &'static str,
        /// The end of its log.
        last: String,
    },
}

/// Of the machine and the method. `busy` is what a reader should know of numbers from a machine that was not quiet.
pub(crate) fn about(rounds: usize, before: &str, busy: &str) -> Vec<(&'static str, String)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let build = if cfg!(debug_assertions) {
        "DEBUG: its numbers mean nothing"
    } else {
        "release"
    };
    let was_busy = before.parse().is_ok_and(|load: f64| load > 0.5);
    let busy = if was_busy {
        format!("; THE MACHINE WAS BUSY: {busy}")
    } else {
        String::new()
    };
    vec![
        ("kernel", kernel.trim().to_owned()),
        (
            "load before and after",
            format!("{before}, {}{busy}", load_average()),
        ),
        ("rounds", rounds.to_string()),
        ("build", build.to_owned()),
    ]
}

/// How many wanted a processor in the last minute.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

/// Prints a report, and writes it where that was asked for.
pub(crate) fn tell(
    report: &impl Display,
    json: &impl Display,
    text_file: Option<&PathBuf>,
    json_file: Option<&PathBuf>,
) -> Result<(), Trouble> {
    let write = |path: &PathBuf, text: String| {
        fs::write(path, text).map_err(|source| Trouble::File {
            path: path.clone(),
            source,
        })
    };
    print!("{report}");
    text_file.map_or(Ok(()), |path| write(path, report.to_string()))?;
    json_file.map_or(Ok(()), |path| write(path, format!("{json:#}\n")))
}

/// For configurations, logs and states; gone afterwards.
#[derive(Debug)]
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    /// A new one, called by what is measured.
    pub(crate) fn new(name: &str) -> Result<Folder, Trouble> {
        let path =
            std::env::temp_dir().join(format!("airlock-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|source| Trouble::File {
            path: path.clone(),
            source,
        })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a server still holds there is not worth an error.
        _ = fs::remove_dir_all(&self.0);
    }
}
