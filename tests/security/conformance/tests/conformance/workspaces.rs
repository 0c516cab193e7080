//! A mounted workspace: whose files they are, and what in it the program must not touch.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, SOMEBODY, World, allowed, outcome},
};
use spec::{ErrorCode, HeldBackPath, HoldReason, RunRequest, Status};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::{Path, PathBuf},
};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        what_is_written_belongs_to_the_owner_of_the_workspace,
        protected_names_stay_as_they_are,
        what_a_program_makes_under_a_protected_name_is_taken_out,
        what_holds_protected_names_cannot_be_moved_away,
        a_protected_name_can_be_released,
        a_link_in_place_of_a_protected_name_comes_back,
        links_planted_in_a_workspace_lead_nowhere,
        no_writable_mount_leads_around_protected_names,
    ]
}

fn in_workspace(world: &World, workspace: &Path, arguments: &[&str]) -> RunRequest {
    RunRequest {
        workspace: Some(workspace.to_owned()),
        ..world.probe(arguments)
    }
}

/// Root-owned and another's, as root; one's own as a user.
fn what_is_written_belongs_to_the_owner_of_the_workspace(world: &World) {
    let owners = match world.mode {
        Mode::Root if world.idmaps => vec![(0, 0), SOMEBODY],
        Mode::Root => vec![SOMEBODY],
        // SAFETY: no arguments, no memory.
        Mode::User => vec![unsafe { (libc::getuid(), libc::getgid()) }],
    };
    for owner in owners {
        check_owner_kept(world, owner);
    }
    if world.mode == Mode::Root && !world.idmaps {
        // Never as the host's root.
        let result = world.run(in_workspace(
            world,
            &world.fresh_folder("workspace"),
            &["ids"],
        ));
        let code = result.error.map(|error| error.code);
        assert_eq!(
            (result.status, code),
            (Status::NotStarted, Some(ErrorCode::InvalidSpec))
        );
    }
}

fn check_owner_kept(world: &World, (uid, gid): (u32, u32)) {
    let workspace = world.fresh_folder("workspace");
    fs::write(workspace.join("given"), "given").expect("a file");
    for path in [&workspace, &workspace.join("given")] {
        chown(path, Some(uid), Some(gid)).expect("an owner");
    }
    // The owner's file is the program's own: it may be read, written, given other modes.
    let script = "set -e; echo made > made; echo more >> given; chmod 600 given; mkdir folder; id -u; stat -c %u .";
    let command = world.command(&["sh", "-c", script]);
    let result = world.run(RunRequest {
        workspace: Some(workspace.clone()),
        ..command
    });
    let inside = if world.shares_users() { uid } else { 1000 };
    assert_eq!(
        String::from_utf8_lossy(&result.stdout),
        format!("{inside}\n{inside}\n"),
        "{result:?}"
    );
    let owner = |name| {
        fs::metadata(workspace.join(name))
            .map(|found| (found.uid(), found.gid()))
            .ok()
    };
    let expected = Some((uid, gid));
    assert_eq!(
        ["made", "given", "folder"].map(owner),
        [expected, expected, expected]
    );
    assert_eq!(
        fs::read_to_string(workspace.join("given")).expect("a file"),
        "givenmore\n"
    );
    assert!(!workspace.join(".home").exists(), "nothing of ours is left");
}

/// A repository and the settings of some tools, as a user has them.
fn furnished(world: &World) -> PathBuf {
    let workspace = world.fresh_folder("workspace");
    for folder in [".git/hooks", ".git/objects", ".vscode", ".claude"] {
        fs::create_dir_all(workspace.join(folder)).expect("a folder");
    }
    let files = [
        ".git/config",
        ".git/HEAD",
        ".git/hooks/pre-commit",
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".envrc",
    ];
    for file in files {
        fs::write(workspace.join(file), "as it was").expect("a file");
    }
    world.give(&workspace);
    workspace
}

/// Every path below a folder with its contents.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("a folder").flatten() {
            let path = entry.path();
            let is_folder = entry.file_type().expect("a type").is_dir();
            found.insert(
                path.clone(),
                (!is_folder).then(|| fs::read(&path).unwrap_or_default()),
            );
            if is_folder {
                left.push(path);
            }
        }
    }
    found
}

fn protected_names_stay_as_they_are(world: &World) {
    let workspace = furnished(world);
    let before = tree(&workspace);
    let refused = |errno: i32, arguments: &[&str]| {
        let got = world.attempt(in_workspace(world, &workspace, arguments));
        assert_eq!(got, Outcome::Refused(errno), "{arguments:?}");
    };
    let files = [
        ".git/config",
        ".git/hooks/pre-commit",
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".envrc",
    ];
    for file in world.few(files) {
        refused(libc::EROFS, &["write", file, "of the program"]);
    }
    for file in [".git/hooks/post-checkout", ".vscode/settings.json"] {
        refused(libc::EROFS, &["write", file, "of the program"]);
    }
    refused(libc::EBUSY, &["remove", ".envrc"]);
    refused(libc::EBUSY, &["rename", ".envrc", "bait"]);
    fs::write(workspace.join("bait"), "of the program").expect("a file");
    world.give(&workspace.join("bait"));
    refused(libc::EBUSY, &["rename", "bait", ".envrc"]);
    fs::remove_file(workspace.join("bait")).expect("a file");
    assert_eq!(tree(&workspace), before);
    let written = world.attempt(in_workspace(world, &workspace, &["write", "sources", "x"]));
    assert_eq!(written, allowed(), "the control");
}

fn what_a_program_makes_under_a_protected_name_is_taken_out(world: &World) {
    let workspace = world.fresh_folder("workspace");
    fs::create_dir(workspace.join("sub")).expect("a folder");
    world.give(&workspace);
    let before = tree(&workspace);
    for name in world.few([".envrc", "sub/.mcp.json", "sub/.Vscode", "sub/.git"]) {
        let write = &["write", name, "of the program"];
        let result = world.run(in_workspace(world, &workspace, write));
        assert_eq!(outcome(&result), allowed(), "{name}");
        let held = result.workspace.map(|changes| changes.held_back);
        let why = HoldReason::ProtectedName;
        let path = name.to_owned();
        assert_eq!(held, Some(vec![HeldBackPath { path, why }]), "{name}");
        assert_eq!(tree(&workspace), before, "{name}");
    }
    let made = world.attempt(in_workspace(
        world,
        &workspace,
        &["write", ".gitignore", "x"],
    ));
    assert_eq!(made, allowed(), "the control");
    assert!(workspace.join(".gitignore").exists(), "the control");
}

fn what_holds_protected_names_cannot_be_moved_away(world: &World) {
    let workspace = furnished(world);
    let before = tree(&workspace);
    for folder in [".git", ".vscode"] {
        let got = world.attempt(in_workspace(
            world,
            &workspace,
            &["rename", folder, "moved"],
        ));
        assert_eq!(got, Outcome::Refused(libc::EBUSY), "{folder}");
    }
    assert_eq!(tree(&workspace), before);
    fs::write(workspace.join("own"), "own").expect("a file");
    world.give(&workspace.join("own"));
    let moved = world.attempt(in_workspace(world, &workspace, &["rename", "own", "moved"]));
    assert_eq!(moved, allowed(), "the control");
}

fn a_protected_name_can_be_released(world: &World) {
    for (name, released) in world.few([
        (".git/config", ".git"),
        (".envrc", ".envrc"),
        (".vscode/tasks.json", ".vscode"),
    ]) {
        let workspace = furnished(world);
        let request = RunRequest {
            allow_protected: vec![released.into()],
            ..in_workspace(world, &workspace, &["write", name, "of the program"])
        };
        assert_eq!(world.attempt(request), allowed(), "{name}");
        assert_eq!(
            fs::read_to_string(workspace.join(name)).expect("a file"),
            "of the program"
        );
    }
}

fn a_link_in_place_of_a_protected_name_comes_back(world: &World) {
    let workspace = world.fresh_workspace();
    symlink("/etc", workspace.join(".vscode")).expect("a link");
    let script = "rm .vscode && mkdir .vscode && echo evil > .vscode/tasks.json";
    let result = world.run(RunRequest {
        workspace: Some(workspace.clone()),
        ..world.command(&["sh", "-c", script])
    });
    assert_eq!(result.status, Status::Succeeded, "{result:?}");
    let held = result.workspace.map(|changes| changes.held_back.len());
    assert_eq!(held, Some(1), "{:?}", result.notes);
    let target = fs::read_link(workspace.join(".vscode")).expect("the link");
    assert_eq!(target, Path::new("/etc"));
}

/// A link to a host path leads to what stands there inside; an artifact that is a link is not kept.
fn links_planted_in_a_workspace_lead_nowhere(world: &World) {
    let (workspace, canary) = (world.fresh_workspace(), world.fresh_folder("canary"));
    fs::write(canary.join("secret"), "secret").expect("a file");
    symlink(&canary, workspace.join("out")).expect("a link");
    let read = world.attempt(in_workspace(world, &workspace, &["read", "out/secret"]));
    assert_eq!(read, Outcome::Refused(libc::ENOENT));
    let artifacts = vec![
        PathBuf::from("out/secret"),
        PathBuf::from("stolen"),
        PathBuf::from("plain"),
    ];
    let script = format!(
        "ln -s {}/secret stolen; echo plain > plain",
        canary.display()
    );
    let command = world.command(&["sh", "-c", &script]);
    let result = world.run(RunRequest {
        workspace: Some(workspace),
        artifacts,
        ..command
    });
    let kept: Vec<_> = result
        .artifacts
        .iter()
        .map(|kept| kept.name.as_str())
        .collect();
    assert_eq!(kept, ["plain"], "{:?}", result.notes);
}

fn no_writable_mount_leads_around_protected_names(world: &World) {
    // Not beside the state folder, which what is above must not show either.
    let above = world.fresh_folder("above");
    let workspace = above.join("workspace");
    fs::create_dir_all(workspace.join(".git/hooks")).expect("a folder");
    fs::create_dir(workspace.join("sources")).expect("a folder");
    world.give(&workspace);
    let answer = |host: &Path, access: &str, lifted: &[&str]| {
        let mut request = in_workspace(world, &workspace, &["ids"]);
        request
            .mounts
            .push(format!("{}:/again:{access}", host.display()).into());
        request.allow_protected = lifted.iter().map(PathBuf::from).collect();
        let result = world.run(request);
        (result.status, result.error.map(|error| error.code))
    };
    let (refused, ran) = (
        (Status::NotStarted, Some(ErrorCode::InvalidSpec)),
        (Status::Succeeded, None),
    );
    for host in [
        &above,
        &workspace,
        &workspace.join(".git"),
        &workspace.join(".git/hooks"),
    ] {
        assert_eq!(answer(host, "rw", &[]), refused, "{}", host.display());
    }
    assert_eq!(answer(&workspace, "ro", &[]), ran);
    assert_eq!(answer(&workspace.join("sources"), "rw", &[]), ran);
    assert_eq!(answer(&workspace.join(".git/hooks"), "rw", &[".git"]), ran);
}
