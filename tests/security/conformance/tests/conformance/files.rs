//! Mounts, inputs and artifacts.

use crate::{
    runner::Proof,
    world::{Mode, Outcome, World, allowed, mount, outcome},
};
use spec::{Barrier, RunRequest, Status};
use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        the_permissive_profile_shows_the_system_without_secrets_and_sockets,
        the_permissive_profile_opens_no_folder_that_is_shut,
        mounts_are_read_only_unless_said,
        a_file_written_to_a_mount_belongs_to_its_owner,
        disk_limit_is_not_claimed_where_the_host_is_written,
        inputs_and_artifacts_make_the_round,
    ]
}

/// Where folders cannot be idmapped, the program is a stranger there.
fn open_to_all(world: &World) -> PathBuf {
    let folder = world.fresh_folder("mounted");
    let mode = if world.mode == Mode::User || world.idmaps {
        0o755
    } else {
        0o777
    };
    fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("mode");
    folder
}

fn mounts_are_read_only_unless_said(world: &World) {
    let folder = open_to_all(world);
    fs::write(folder.join("note"), "of the host").expect("a file");
    fs::set_permissions(folder.join("note"), fs::Permissions::from_mode(0o666)).expect("mode");
    let attempt = |access: &str, arguments: &[&str]| {
        let mut request = world.probe(arguments);
        request.mounts.push(mount(&folder, "/mounted", access));
        world.attempt(request)
    };
    let write: &[&str] = &["write", "/mounted/note", "of the program"];
    let make: &[&str] = &["make-folder", "/mounted/made"];
    let refused = Outcome::Refused(libc::EROFS);
    assert_eq!(
        [attempt("ro", write), attempt("ro", make)],
        [refused.clone(), refused]
    );
    assert_eq!(
        attempt("ro", &["read", "/mounted/note"]),
        Outcome::Allowed("of the host".to_owned())
    );
    assert_eq!(
        fs::read_to_string(folder.join("note")).expect("a file"),
        "of the host"
    );
    assert_eq!(
        [attempt("rw", write), attempt("rw", make)],
        [allowed(), allowed()]
    );
    assert_eq!(
        fs::read_to_string(folder.join("note")).expect("a file"),
        "of the program"
    );
    assert!(folder.join("made").is_dir());
}

/// Without idmaps it belongs to nobody's id, and the result says so.
fn a_file_written_to_a_mount_belongs_to_its_owner(world: &World) {
    let folder = open_to_all(world);
    let mut request = world.probe(&["write", "/mounted/note", "x"]);
    request.mounts.push(mount(&folder, "/mounted", "rw"));
    let result = world.run(request);
    assert_eq!(outcome(&result), allowed());
    let owner = |path| {
        fs::metadata(path)
            .map(|found| (found.uid(), found.gid()))
            .expect("an owner")
    };
    let stranger = world.mode == Mode::Root && !world.idmaps && world.maker.is_none();
    let (uid, gid) = owner(folder.join("note"));
    match stranger {
        // The program is one of the host's users.
        _ if world.shares_users() => assert_eq!((uid, gid), (1000, 1000)),
        true => assert!(
            (0x7000_0000..0x7001_0000).contains(&uid) && uid == gid,
            "{uid} {gid}"
        ),
        false => assert_eq!((uid, gid), owner(folder.clone())),
    }
    let said = result
        .notes
        .iter()
        .any(|note| note.contains("`/mounted` cannot be idmapped"));
    assert_eq!(said, stranger, "{:?}", result.notes);
}

fn disk_limit_is_not_claimed_where_the_host_is_written(world: &World) {
    let folder = world.fresh_folder("mounted");
    let claimed = |access: &str| {
        let mounts = vec![mount(&folder, "/mounted", access)];
        let result = world.run(RunRequest {
            mounts,
            ..world.command(&["true"])
        });
        assert_eq!(result.status, Status::Succeeded);
        result.barriers.contains(&Barrier::DiskLimit)
    };
    assert_eq!([claimed("ro"), claimed("rw")], [true, false]);
}

fn inputs_and_artifacts_make_the_round(world: &World) {
    let folder = world.fresh_folder("inputs");
    fs::write(folder.join("given"), b"bytes\xff\0").expect("a file");
    let mut input = OsString::from("in/first=");
    input.push(folder.join("given"));
    let engine = world.engine(&Default::default());
    let script = "cat in/first in/first > twice; mkdir out; cp in/first out/copy; echo kept > .artifacts/auto";
    let first = world.run_in(
        &engine,
        RunRequest {
            inputs: vec![input],
            artifacts: vec!["twice".into(), "out".into(), "absent".into()],
            ..world.command(&["sh", "-c", script])
        },
    );
    let mut kept: Vec<_> = first
        .artifacts
        .iter()
        .map(|it| (it.name.as_str(), it.version, it.size_bytes))
        .collect();
    kept.sort_unstable();
    assert_eq!(
        kept,
        [("auto", 1, 5), ("out/copy", 1, 7), ("twice", 1, 14)],
        "{:?}",
        first.notes
    );
    let inputs = vec!["again=artifact:twice".into()];
    let second = world.run_in(
        &engine,
        RunRequest {
            inputs,
            ..world.command(&["cat", "again"])
        },
    );
    assert_eq!(second.stdout, b"bytes\xff\0bytes\xff\0");
    let inputs = vec!["again=artifact:nothing".into()];
    let refused = world.run_in(
        &engine,
        RunRequest {
            inputs,
            ..world.command(&["cat", "again"])
        },
    );
    assert_eq!(
        (refused.status, refused.exit_status),
        (Status::NotStarted, 125)
    );
}

/// A socket in `/var` is made here; the control is the same socket through a mount that the user asked for.
fn the_permissive_profile_shows_the_system_without_secrets_and_sockets(world: &World) {
    // Not in the folder for tests: the path of a socket must be short.
    let folder = std::path::Path::new("/var/tmp").join(world.unique("airlock"));
    fs::create_dir(&folder).expect("prerequisite: /var/tmp is writable");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
    let socket = folder.join("listening");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).expect("mode");
    fs::write(folder.join("plain"), "of the host").expect("a file");
    let attempt = |arguments: &[&str]| {
        let mut request = world.probe(arguments);
        request.profile = Some("permissive".to_owned());
        request.network = Some(spec::Network::None);
        request.mounts.push(mount(&folder, "/mounted", "ro"));
        world.attempt(request)
    };
    let (socket, plain) = (
        socket.display().to_string(),
        folder.join("plain").display().to_string(),
    );
    assert_eq!(
        attempt(&["read", &plain]),
        Outcome::Allowed("of the host".to_owned())
    );
    assert_eq!(
        attempt(&["write", &plain, "x"]),
        Outcome::Refused(libc::EROFS)
    );
    assert_eq!(
        attempt(&["connect-path", &socket]),
        Outcome::Refused(libc::ECONNREFUSED)
    );
    assert_eq!(attempt(&["connect-path", "/mounted/listening"]), allowed());
    assert!(
        fs::exists("/etc/shadow").expect("a look"),
        "prerequisite: the host has /etc/shadow"
    );
    assert_eq!(
        attempt(&["read", "/etc/shadow"]),
        Outcome::Refused(libc::ENOENT)
    );
    assert!(matches!(
        attempt(&["read", "/etc/passwd"]),
        Outcome::Allowed(_)
    ));
    fs::remove_dir_all(folder).expect("our own folder");
}

/// A mount point makes a folder of our own over the host's: who may enter stays the host's choice. As a user the
/// program is the owner of the folder, who may.
fn the_permissive_profile_opens_no_folder_that_is_shut(world: &World) {
    let folder = std::path::Path::new("/var/tmp").join(world.unique("airlock"));
    fs::create_dir(&folder).expect("prerequisite: /var/tmp is writable");
    fs::write(folder.join("plain"), "of the host").expect("a file");
    let attempt = |mode| {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("mode");
        let mut request = world.probe(&["read", &folder.join("plain").display().to_string()]);
        request.profile = Some("permissive".to_owned());
        request.network = Some(spec::Network::None);
        request.mounts.push(mount(
            &world.fresh_folder("empty"),
            &folder.join("place").display().to_string(),
            "ro",
        ));
        world.attempt(request)
    };
    let (read, shut) = (
        Outcome::Allowed("of the host".to_owned()),
        Outcome::Refused(libc::EACCES),
    );
    let expected = if world.mode == Mode::Root {
        shut
    } else {
        read.clone()
    };
    assert_eq!([attempt(0o755), attempt(0o700)], [read, expected]);
    fs::remove_dir_all(folder).expect("our own folder");
}
