//! Calls of `systemctl`.

use super::{Failure, ServiceChange};
use spec::ErrorCode;
use std::{path::Path, process::Command};

/// Whether systemd runs here, by the folder that systemd documents for this check.
pub(super) fn is_running(user: bool) -> bool {
    if user {
        let folder = std::env::var_os("XDG_RUNTIME_DIR");
        folder.is_some_and(|folder| Path::new(&folder).join("systemd").is_dir())
    } else {
        Path::new("/run/systemd/system").is_dir()
    }
}

/// The hint with the commands that start the service.
pub(super) fn start_hint(user: bool, name: &str) -> String {
    let systemctl = if user {
        "systemctl --user"
    } else {
        "systemctl"
    };
    format!(
        "start it with `{systemctl} daemon-reload && {systemctl} enable --now {name}`, or give --start"
    )
}

/// Reloads the units, then enables and starts this one.
pub(super) fn start(user: bool, name: &str) -> Result<Vec<ServiceChange>, Failure> {
    if !is_running(user) {
        let message = "systemd does not run here, and so cannot start the service".to_owned();
        let hint =
            "the unit is installed; without systemd, start `airlock serve` with this machine's service manager"
                .to_owned();
        return Err(Failure {
            code: ErrorCode::StartFailed,
            message,
            hint,
        });
    }
    let unit = format!("{name}.service");
    run_systemctl(user, &["daemon-reload"])?;
    run_systemctl(user, &["enable", &unit])?;
    // A service that runs with an older unit restarts with the new one.
    run_systemctl(user, &["restart", &unit])?;
    Ok(vec![
        ServiceChange::new("reloaded", "systemd"),
        ServiceChange::new("enabled", &*unit),
        ServiceChange::new("started", &*unit),
    ])
}

/// Stops and disables the service.
pub(super) fn stop(user: bool, name: &str) -> Result<Vec<ServiceChange>, Failure> {
    if !is_running(user) {
        return Ok(Vec::new());
    }
    let unit = format!("{name}.service");
    run_systemctl(user, &["disable", "--now", &unit])?;
    Ok(vec![
        ServiceChange::new("stopped", &*unit),
        ServiceChange::new("disabled", &*unit),
    ])
}

/// Reloads the units.
pub(super) fn reload(user: bool) -> Result<Vec<ServiceChange>, Failure> {
    if !is_running(user) {
        return Ok(Vec::new());
    }
    run_systemctl(user, &["daemon-reload"])?;
    Ok(vec![ServiceChange::new("reloaded", "systemd")])
}

/// The answer to a query such as `is-active`, one word.
pub(super) fn query(user: bool, question: &str, name: &str) -> Option<String> {
    let answer = systemctl(user)
        .args([question, &format!("{name}.service")])
        .output()
        .ok()?;
    let word = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    (!word.is_empty()).then_some(word)
}

fn systemctl(user: bool) -> Command {
    let mut command = Command::new("systemctl");
    command
        .args(user.then_some("--user"))
        .arg("--no-ask-password");
    command
}

fn run_systemctl(user: bool, words: &[&str]) -> Result<(), Failure> {
    let shown = format!(
        "systemctl {}{}",
        if user { "--user " } else { "" },
        words.join(" ")
    );
    let failed = |why: String| Failure {
        code: ErrorCode::StartFailed,
        message: format!("`{shown}` failed: {why}"),
        hint: "the unit is installed; `journalctl -e` may show the reason".to_owned(),
    };
    let answer = systemctl(user)
        .args(words)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if answer.status.success() {
        Ok(())
    } else {
        Err(failed(
            String::from_utf8_lossy(&answer.stderr).trim().to_owned(),
        ))
    }
}
