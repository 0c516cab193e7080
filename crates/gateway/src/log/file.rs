//! Log target: stderr, or a private file that is rotated by size.

use rustix::fs::{FileType, Mode, OFlags};
use spec::LogFile;
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Where lines are written.
#[derive(Debug)]
pub(super) enum LogTarget {
    Stderr,
    File {
        settings: LogFile,
        open: Option<(File, u64)>,
        warned: bool,
    },
}

impl LogTarget {
    pub(super) fn open(file: Option<LogFile>) -> io::Result<LogTarget> {
        Ok(match file {
            None => LogTarget::Stderr,
            Some(settings) => {
                let open = Some(open(&settings.path)?);
                LogTarget::File {
                    settings,
                    open,
                    warned: false,
                }
            }
        })
    }

    /// Reopens the file after an external rotation. On failure the next line retries.
    pub(super) fn reopen(&mut self) {
        if let LogTarget::File {
            settings,
            open: current,
            ..
        } = self
        {
            *current = open(&settings.path).ok();
        }
    }

    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            LogTarget::Stderr => io::stderr().write_all(line),
            LogTarget::File {
                settings,
                open: current,
                warned,
            } => {
                let written = write_rotating(settings, current, warned, line);
                if written.is_err() {
                    *current = None;
                }
                written
            }
        }
    }
}

fn write_rotating(
    settings: &LogFile,
    current: &mut Option<(File, u64)>,
    warned: &mut bool,
    line: &[u8],
) -> io::Result<()> {
    if current
        .as_ref()
        .is_some_and(|(_, size)| *size > 0 && *size + line.len() as u64 > settings.size)
    {
        match (rotate(settings), current.as_mut()) {
            (Err(error), Some((_, size))) => {
                // A failed rotation must not lose lines: the file grows, and the rotation is
                // retried after another file size.
                *size = 0;
                if !std::mem::replace(warned, true) {
                    let name = settings.path.display();
                    _ = writeln!(
                        io::stderr(),
                        "airlock: `{name}` cannot be moved away and grows: {error}"
                    );
                }
            }
            _ => *current = None,
        }
    }
    let (file, size) = match current {
        Some(current) => current,
        None => current.insert(open(&settings.path)?),
    };
    file.write_all(line)?;
    *size += line.len() as u64;
    Ok(())
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// `rename` replaces the target and never follows a link.
fn rotate(settings: &LogFile) -> io::Result<()> {
    let moved = |from: &Path, to: u32| match std::fs::rename(from, numbered(&settings.path, to)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    for number in (1..settings.keep).rev() {
        moved(&numbered(&settings.path, number), number + 1)?;
    }
    moved(&settings.path, 1)
}

/// Opens or creates the file; refuses links, pipes and files of other users.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::open(path, flags, mode)?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
        return Err(io::Error::other("it is not a plain file with one name"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    rustix::fs::fchmod(&file, mode)?;
    Ok((
        File::from(file),
        u64::try_from(stat.st_size).unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    struct TempFolder(PathBuf);

    impl TempFolder {
        fn new(name: &str) -> TempFolder {
            let path =
                std::env::temp_dir().join(format!("airlock-log-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            TempFolder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for TempFolder {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn pieces_have_a_size_and_a_number_and_nobody_else_reads_them() {
        let folder = TempFolder::new("pieces");
        let path = folder.0.join("log");
        let settings = LogFile {
            path: path.clone(),
            size: 10,
            keep: 2,
        };
        let mut target = LogTarget::open(Some(settings)).unwrap();
        for line in ["first\n", "second\n", "third\n", "fourth\n"] {
            target.write(line.as_bytes()).unwrap();
        }
        assert_eq!(folder.names(), ["log", "log.1", "log.2"]);
        let read = |name: &str| fs::read_to_string(folder.0.join(name)).unwrap();
        assert_eq!(
            [read("log"), read("log.1"), read("log.2")],
            ["fourth\n", "third\n", "second\n"]
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::rename(&path, folder.0.join("moved")).unwrap();
        target.reopen();
        target.write(b"fifth\n").unwrap();
        assert_eq!(
            (read("log"), read("moved")),
            ("fifth\n".to_owned(), "fourth\n".to_owned())
        );
    }

    #[test]
    fn a_file_that_cannot_be_moved_away_goes_on() {
        let folder = TempFolder::new("stuck");
        let path = folder.0.join("log");
        // No file takes the place of a folder.
        fs::create_dir(folder.0.join("log.1")).unwrap();
        let settings = LogFile {
            path: path.clone(),
            size: 10,
            keep: 1,
        };
        let mut target = LogTarget::open(Some(settings)).unwrap();
        for line in ["first\n", "second\n", "third\n"] {
            target.write(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\n");
        fs::remove_dir(folder.0.join("log.1")).unwrap();
        target.write(b"fourth\n").unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "fourth\n",
            "tried again"
        );
    }

    #[test]
    fn what_is_no_plain_file_of_ours_is_no_log() {
        let folder = TempFolder::new("links");
        let (elsewhere, link) = (folder.0.join("elsewhere"), folder.0.join("link"));
        fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(open(&link).is_err());
        assert!(open(&elsewhere).is_ok());
        fs::hard_link(&elsewhere, folder.0.join("second")).unwrap();
        assert!(open(&elsewhere).is_err());
        assert!(open(&folder.0).is_err());
    }
}
