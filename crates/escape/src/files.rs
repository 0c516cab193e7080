//! Group A: files and paths.

use crate::{
    Case, Control, Outcome, Peer, case,
    world::{Ground, mount},
};
use spec::RunRequest;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    case("A6", "magic links of /proc and /dev/fd to a host file", magic_links, Control::Given, Peer::Runs),
    case("A9", "protected names that are absent", absent_names, Control::Given, Peer::Runs),
];

/// What git, shells, editors and agents of the host obey.
const OBEYED: [&str; 10] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".vscode/tasks.json",
    ".mcp.json",
    ".claude/settings.json",
    ".codex/config.toml",
    ".envrc",
    ".bashrc",
    ".profile",
    ".zshenv",
];

/// The control: the folder of the file is mounted.
fn magic_links(ground: &Ground<'_>) -> Outcome {
    let canary = ground.world.canary()?;
    let path = if ground.is_control() { Path::new("/given/secret") } else { &canary.file };
    let mut request = ground.attack("magic-links", [path.as_os_str()]);
    if ground.is_control() {
        request.mounts.push(mount(&canary.folder, "/given", "ro"));
    }
    Ok(canary.told_by(&ground.run(request)?.finished()?))
}

/// The control: protection is lifted for each.
fn absent_names(ground: &Ground<'_>) -> Outcome {
    let workspace = ground.workspace()?;
    std::fs::create_dir_all(workspace.join(".git/objects"))?;
    std::fs::write(workspace.join(".git/HEAD"), "ref: refs/heads/main\n")?;
    for path in [".git", ".git/objects", ".git/HEAD"] {
        ground.give(&workspace.join(path))?;
    }
    let attack = ground.attack("plant", OBEYED);
    let lifted = if ground.is_control() { top_names() } else { Vec::new() };
    ground
        .run(RunRequest { workspace: Some(workspace.clone()), allow_protected: lifted, ..attack })?
        .finished()?;
    Ok(planted(&workspace))
}

/// The names of `--allow-protected` that lift the protection of all of them.
fn top_names() -> Vec<PathBuf> {
    let tops = OBEYED.iter().map(|name| match name.strip_prefix(".git/") {
        Some(_) => PathBuf::from(name.trim_end_matches("/pre-commit")),
        None => PathBuf::from(name.split('/').next().unwrap_or(name)),
    });
    tops.collect()
}

fn planted(workspace: &std::path::Path) -> crate::Found {
    let there = OBEYED.iter().find(|name| workspace.join(name).is_file());
    there.map_or(crate::Found::Nothing, |name| crate::Found::Escape(format!("`{name}` is the program's")))
}
