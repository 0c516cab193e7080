//! What real clients and servers come from: PyPI and npm, fetched once and kept in `target/`.

use crate::{lacking, said};
use cli::repository;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const REQUIREMENTS: &str = include_str!("requirements.txt");
const AIMOCK: &str = "@copilotkit/aimock@1.43.0";

/// A Python with the SDKs of all providers; none, said aloud, where they cannot be had.
pub fn python(claim: &str) -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    had(
        MADE.get_or_init(|| kept("sdk", REQUIREMENTS, install_sdks)),
        "the SDKs of PyPI",
        claim,
    )
}

/// A server of others that speaks every dialect and checks keys: its program.
pub fn aimock(claim: &str) -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = had(
        MADE.get_or_init(|| kept("aimock", AIMOCK, install_aimock)),
        "npm and its aimock",
        claim,
    );
    folder.map(|folder| folder.join("node_modules/.bin/llmock"))
}

fn had(made: &Result<PathBuf, String>, what: &str, claim: &str) -> Option<PathBuf> {
    let why = made.as_ref().err().map(|error| format!("{what} ({error})"));
    lacking(why.is_some(), why.as_deref().unwrap_or_default(), claim);
    made.as_ref().ok().cloned()
}

/// A folder in `target/`, made anew where what it should hold has changed.
fn kept(
    name: &str,
    contents: &str,
    install: fn(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let folder = repository().join("target").join(name);
    let mark = folder.join("holds");
    if fs::read_to_string(&mark).is_ok_and(|held| held == contents) {
        return Ok(folder);
    }
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    install(&folder)?;
    fs::write(mark, contents).map_err(|error| error.to_string())?;
    Ok(folder)
}

fn install_sdks(folder: &Path) -> Result<(), String> {
    let requirements = repository().join("tests/server/sdk/requirements.txt");
    // The one that there is inside, too.
    carry_out(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(folder),
    )?;
    carry_out(
        Command::new(folder.join("bin/pip"))
            .args(["install", "--quiet", "-r"])
            .arg(requirements),
    )
}

fn install_aimock(folder: &Path) -> Result<(), String> {
    let mut npm = Command::new("npm");
    carry_out(
        npm.args(["install", "--no-fund", "--no-audit", "--prefix"])
            .arg(folder)
            .arg(AIMOCK),
    )
}

fn carry_out(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| said(&output))
}
