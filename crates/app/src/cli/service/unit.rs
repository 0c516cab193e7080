//! The text of a systemd unit for `airlock serve`.
//!
//! What it does not say: nothing that forbids namespaces or names (`RestrictNamespaces`, `PrivateUsers`, `ProtectHostname`),
//! which boxes are made of; nothing that takes the cgroup tree away (`ProtectControlGroups`); no filter of system calls
//! (`SystemCallFilter`, `MemoryDenyWriteExecute`, `RestrictSUIDSGID`), which every program inside would inherit; and
//! nothing that covers parts of `/proc` (`ProtectProc`, `ProcSubset`, `ProtectKernelTunables`, `ProtectKernelLogs`): the kernel
//! lets an ordinary user mount a `/proc` of a box only where all of the one before can be seen.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// By this first line a unit is known to be ours.
pub(super) const MARK: &str = "# Written by `airlock service install`, which will replace it.";
/// What ends after the grace: answers, what cancelled runs leave, the engine's own processes.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(30);
/// Words of a line are bounded, as is everything.
const MAX_WORD_BYTES: usize = 4096;

/// What the unit starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) name: String,
    /// Of a user's own manager.
    pub(super) user: bool,
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    pub(super) state: PathBuf,
    pub(super) listen: Option<String>,
    pub(super) node: Option<PathBuf>,
    /// How long runs may go on when it is told to stop.
    pub(super) grace: Duration,
}

impl Unit {
    /// The file, or why there can be none.
    pub(super) fn text(&self) -> Result<String, String> {
        let stop = (self.grace + SHUTDOWN_MARGIN).as_secs();
        let (start, folders) = (self.start()?, self.folders());
        let (hardening, wanted) = match self.user {
            // Its manager could take nothing away without a user namespace around everything.
            true => ("", "default.target"),
            false => (
                "NoNewPrivileges=yes\nProtectSystem=full\nKeyringMode=private\n",
                "multi-user.target",
            ),
        };
        let network = match self.user {
            true => "",
            false => "Wants=network-online.target\nAfter=network-online.target\n",
        };
        Ok(format!(
            "{MARK}\n\
             [Unit]\n\
             Description=Airlock: agents and their tools in sandboxes\n\
             {network}\
             StartLimitIntervalSec=60\n\
             StartLimitBurst=5\n\
             \n\
             [Service]\n\
             Type=notify\n\
             NotifyAccess=main\n\
             ExecStart={start}\n\
             Restart=on-failure\n\
             RestartSec=2\n\
             WatchdogSec=60\n\
             # A large database takes its time when it is brought to a new schema.\n\
             TimeoutStartSec=infinity\n\
             # Runs may go on for {grace} seconds (`serve.grace`) before they are cancelled.\n\
             TimeoutStopSec={stop}\n\
             # The server ends its sandboxes; what it has not ended by then is killed.\n\
             KillMode=mixed\n\
             # Each sandbox has a cgroup below that of the service. One that runs out of memory is its own affair.\n\
             Delegate=cpu memory pids\n\
             OOMPolicy=continue\n\
             TasksMax=infinity\n\
             LimitNOFILE=524288\n\
             LimitCORE=0\n\
             {folders}\
             {hardening}\
             \n\
             [Install]\n\
             WantedBy={wanted}\n",
            grace = self.grace.as_secs(),
        ))
    }

    fn start(&self) -> Result<String, String> {
        // Its output goes to a log, where no key belongs.
        let key = self.state.join("admin-key");
        // There, and only there, systemd reads `$$` as it stands.
        if self.program.as_os_str().as_bytes().contains(&b'$') {
            let shown = self.program.to_string_lossy().escape_debug().to_string();
            return Err(format!(
                "systemd cannot start `{shown}`: its path has a `$`"
            ));
        }
        let mut words = vec![quoted(&self.program)?, "serve".to_owned()];
        for (option, path) in [
            ("--config", &self.config),
            ("--state", &self.state),
            ("--admin-key-file", &key),
        ] {
            words.extend([option.to_owned(), quoted(path)?]);
        }
        if let Some(listen) = &self.listen {
            words.extend(["--listen".to_owned(), quoted(Path::new(listen))?]);
        }
        if let Some(node) = &self.node {
            words.extend(["--node".to_owned(), quoted(node)?]);
        }
        Ok(words.join(" "))
    }

    /// Folders that the manager makes with the right owner and mode, where they are the usual ones.
    fn folders(&self) -> String {
        let name = &self.name;
        let mut folders = format!("RuntimeDirectory={name}\nRuntimeDirectoryMode=0700\n");
        if !self.user {
            folders += &format!("LogsDirectory={name}\nLogsDirectoryMode=0700\n");
        }
        if !self.user && self.state == Path::new("/var/lib").join(name) {
            folders += &format!("StateDirectory={name}\nStateDirectoryMode=0700\n");
        }
        folders
    }
}

/// A word as systemd reads it back. A program's path is no place for variables, and `%` begins a specifier.
fn quoted(word: &Path) -> Result<String, String> {
    let shown = || word.to_string_lossy().escape_debug().to_string();
    let text = std::str::from_utf8(word.as_os_str().as_bytes())
        .map_err(|_| format!("`{}` is not UTF-8", shown()))?;
    if text.is_empty() || text.len() > MAX_WORD_BYTES || text.chars().any(char::is_control) {
        return Err(format!("`{}` cannot stand in a unit", shown()));
    }
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "/._-:[]@,+=".contains(character);
    if text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    Ok(format!("\"{escaped}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit {
            name: "airlock".to_owned(),
            user: false,
            program: "/usr/bin/airlock".into(),
            config: "/etc/airlock/config.toml".into(),
            state: "/var/lib/airlock".into(),
            listen: None,
            node: None,
            grace: Duration::from_secs(5),
        }
    }

    #[test]
    fn a_word_is_read_back_as_it_was() {
        for (word, written) in [
            ("/usr/bin/airlock", "/usr/bin/airlock"),
            ("/a b", "\"/a b\""),
            ("/100%", "\"/100%%\""),
            ("/$HOME\\\"", "\"/$$HOME\\\\\\\"\""),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("[::1]:7070", "[::1]:7070"),
        ] {
            assert_eq!(quoted(Path::new(word)).as_deref(), Ok(written), "{word}");
        }
        for odd in [
            "",
            "/a\nExecStartPre=/bin/sh",
            "/a\u{1b}",
            &"x".repeat(5000),
        ] {
            assert!(quoted(Path::new(odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn no_option_breaks_out_of_its_line() {
        let unit = Unit {
            listen: Some("unix:/x\nUser=nobody".to_owned()),
            ..unit()
        };
        assert!(unit.text().is_err());
    }

    #[test]
    fn a_program_that_systemd_cannot_start_is_refused() {
        let odd = Unit {
            program: "/opt/pr$og/airlock".into(),
            ..unit()
        };
        assert_eq!(
            odd.text().unwrap_err(),
            "systemd cannot start `/opt/pr$og/airlock`: its path has a `$`"
        );
        let fine = Unit {
            state: "/srv/st$ate".into(),
            ..unit()
        };
        assert!(
            fine.text().unwrap().contains("--state \"/srv/st$$ate\""),
            "the control"
        );
    }

    #[test]
    fn it_has_time_to_end_what_it_began_and_takes_nothing_away_that_a_box_needs() {
        let unit = Unit {
            grace: Duration::from_secs(100),
            ..unit()
        };
        let text = unit.text().unwrap();
        assert!(
            text.starts_with(MARK) && text.contains("\nTimeoutStopSec=130\n"),
            "{text}"
        );
        assert!(text.contains("\nTimeoutStartSec=infinity\n"), "{text}");
        for never in [
            "ProtectKernel",
            "ProtectControlGroups",
            "ProtectProc",
            "ProcSubset",
            "RestrictNamespaces",
            "ProtectHostname",
            "PrivateUsers",
            "SystemCallFilter",
            "MemoryDenyWriteExecute",
            "RestrictSUIDSGID",
            "CapabilityBoundingSet",
        ] {
            assert!(!text.contains(never), "{never}");
        }
    }
}
