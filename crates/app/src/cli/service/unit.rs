//! The text of a systemd unit for `airlock serve`.
//!
//! Options that the unit omits on purpose: restrictions of namespaces (`RestrictNamespaces`,
//! `PrivateUsers`, `ProtectHostname`), which sandboxes are made of; of the cgroup tree
//! (`ProtectControlGroups`); system call filters (`SystemCallFilter`, `MemoryDenyWriteExecute`,
//! `RestrictSUIDSGID`), which every sandboxed program would inherit; and options that cover parts
//! of `/proc` (`ProtectProc`, `ProcSubset`, `ProtectKernelTunables`, `ProtectKernelLogs`): the
//! kernel lets an unprivileged user mount a sandbox's `/proc` only where the whole of the existing
//! one is visible.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The first line, by which Airlock recognises its own units.
pub(super) const MARK: &str = "# Written by `airlock service install`, which will replace it.";
/// Time after the grace period for responses, cleanup of cancelled runs and the engine's own
/// processes.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(30);
/// The maximum length of one word in the unit.
const MAX_WORD_BYTES: usize = 4096;

/// The contents of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) name: String,
    /// Whether the unit is for the user's service manager.
    pub(super) user: bool,
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    pub(super) state: PathBuf,
    pub(super) listen: Option<String>,
    pub(super) node: Option<PathBuf>,
    /// How long runs may continue after the stop signal.
    pub(super) grace: Duration,
}

impl Unit {
    /// The unit's text, or why it cannot be written.
    pub(super) fn text(&self) -> Result<String, String> {
        let stop = (self.grace + SHUTDOWN_MARGIN).as_secs();
        let start = self.start()?;
        let folders = self.folders();
        let (hardening, wanted) = match self.user {
            // A user's service manager cannot restrict anything without a user namespace around the
            // service.
            true => ("", "default.target"),
            false => (
                "NoNewPrivileges=yes\nProtectSystem=full\nKeyringMode=private\n",
                "multi-user.target",
            ),
        };
        let network = if self.user {
            ""
        } else {
            "Wants=network-online.target\nAfter=network-online.target\n"
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
        // The admin key goes to a file, because the output goes to a log.
        let key = self.state.join("admin-key");
        // In the program's path, unlike elsewhere, systemd does not unescape `$$`.
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

    /// Folders that systemd creates with the right owner and mode, where the default ones are used.
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

/// Quotes a word for systemd. Variables (`$`) and specifiers (`%`) are escaped.
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
