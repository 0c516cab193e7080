//! Whose credentials count when root creates and commits layers, and the quota of layers.

use super::*;
use std::{
    os::unix::fs::{FileExt, chown},
    process::Command,
};

const HIM: (u32, u32) = (4242, 4243);

fn is_root(why: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AIRLOCK_TEST_ALL").is_none(), "{why}");
        println!("NOT TESTED: {why}");
        return false;
    }
    true
}

fn set_owner(path: impl AsRef<Path>) {
    chown(path, Some(HIM.0), Some(HIM.1)).unwrap();
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A user's folder with files of root's, one of which the user may read.
fn users_folder() -> Place {
    Place::new(|folder| {
        for below in ["d", "e", "closed"] {
            fs::create_dir(folder.join(below)).unwrap();
        }
        for file in ["d/own", "d/secret", "e/pub", "closed/in"] {
            fs::write(folder.join(file), file).unwrap();
        }
        [folder.to_owned(), folder.join("d"), folder.join("d/own")]
            .iter()
            .for_each(set_owner);
        set_mode(folder.join("d/secret"), 0o600);
        set_mode(folder.join("e/pub"), 0o644);
        set_mode(folder.join("closed"), 0o744);
    })
}

#[test]
fn what_the_folders_owner_cannot_read_or_change_no_commit_does_for_him() {
    if !is_root("only root acts for others") {
        return;
    }
    let mut place = users_folder();
    // What the user can read is there, and belongs to the user.
    assert_eq!(fs::read(place.inside("e/pub")).unwrap(), b"e/pub");
    let copy = fs::metadata(place.inside("e/pub")).unwrap();
    assert_eq!(
        (copy.uid(), copy.gid(), copy.mode() & 0o777),
        (HIM.0, HIM.1, 0o644)
    );
    assert!(!place.inside("d/secret").exists() && !place.inside("closed/in").exists());
    assert_eq!(place.changes(), Vec::<String>::new());

    fs::rename(place.inside("d"), place.inside("d2")).unwrap();
    set_mode(place.inside("e/pub"), 0o666);
    for (name, target) in [("new", None), ("link", Some("new"))] {
        match target {
            Some(target) => symlink(target, place.inside(name)).unwrap(),
            None => fs::write(place.inside(name), name).unwrap(),
        }
        std::os::unix::fs::lchown(place.inside(name), Some(HIM.0), Some(HIM.1)).unwrap();
    }
    assert_eq!(
        place.against(),
        ["d: it holds `secret`, which the program has not seen"]
    );
    place.end();
    let committed = place.commit(PARTIAL).unwrap();
    let left: Vec<_> = committed
        .left
        .iter()
        .map(|left| format!("{}: {}", shown(&left.path), left.reason))
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left[1].starts_with("e/pub: Operation not permitted"),
        "{left:?}"
    );
    assert!(!place.folder("d2/secret").exists());
    let secret = fs::metadata(place.folder("d/secret")).unwrap();
    assert_eq!((secret.uid(), secret.mode() & 0o777), (0, 0o600));
    assert_eq!(
        fs::metadata(place.folder("e/pub")).unwrap().mode() & 0o777,
        0o644
    );
    // What the user may do was done, and belongs to the user.
    for path in ["d2", "d2/own", "new", "link"] {
        let made = fs::symlink_metadata(place.folder(path)).unwrap();
        assert_eq!((made.uid(), made.gid()), HIM, "{path}");
    }
}

#[test]
fn a_guess_at_a_file_that_cannot_be_read_is_not_told_right_or_wrong() {
    if !is_root("only root acts for others") {
        return;
    }
    let place = users_folder();
    let told = |path: &str, guess: &str, mode| {
        fs::write(place.inside(path), guess).unwrap();
        set_owner(place.inside(path));
        set_mode(place.inside(path), mode);
        let changes = diff(&place.state(), &id()).unwrap().changes;
        changes
            .into_iter()
            .find(|change| change.path == Path::new(path))
            .map(|change| change.conflict)
    };
    assert_eq!(
        told("d/secret", "d/secret", 0o600),
        told("d/secret", "d/SECRET", 0o600)
    );
    // Of a file that can be read, it is: that is what the comparison is for.
    assert_ne!(told("e/pub", "e/pub", 0o644), told("e/pub", "e/PUB", 0o644));
}

#[test]
fn in_roots_folder_too_what_another_closed_is_not_in_the_layer() {
    if !is_root("only root has a folder of root's") {
        return;
    }
    let place = Place::new(|folder| {
        for (name, mode) in [("private", 0o600), ("public", 0o644)] {
            fs::write(folder.join(name), name).unwrap();
            set_owner(folder.join(name));
            set_mode(folder.join(name), mode);
        }
    });
    assert!(!place.inside("private").exists() && place.inside("public").exists());
}

#[test]
fn a_hole_stays_a_hole_and_takes_no_room() {
    let place = Place::new(|folder| {
        let file = fs::File::create(folder.join("hole")).unwrap();
        file.set_len(256 << 20).unwrap();
        file.write_all_at(b"end", (256 << 20) - 3).unwrap();
    });
    let copy = fs::metadata(place.inside("hole")).unwrap();
    assert_eq!(copy.len(), 256 << 20);
    assert!(
        copy.blocks() * 512 < 1 << 20,
        "it takes {} blocks",
        copy.blocks()
    );
    assert_eq!(place.changes(), Vec::<String>::new());
}

#[test]
fn the_layers_of_one_owner_take_so_much_together_and_no_more() {
    let place = Place::new(|folder| fs::write(folder.join("a"), vec![1; 9000]).unwrap());
    let make = |id: &str, owner: &str| {
        let (id, spec) = (Id::new(id).unwrap(), place.spec(&[]));
        make(
            &place.state(),
            &id,
            &spec,
            &place.root.join("folder"),
            Some(owner.to_owned()),
            &|| false,
        )
    };
    assert!(quota::sum(&place.state(), Some("key")).unwrap() >= 9000);
    // What the program writes counts once its sandbox is gone.
    fs::write(place.inside("b"), vec![1; 90_000]).unwrap();
    place.handle.as_ref().unwrap().diff().unwrap();
    assert!(quota::sum(&place.state(), Some("key")).unwrap() >= 99_000);
    drop(make("second", "key").unwrap());
    quota::write_size(
        fs::File::open(place.inside("..")).unwrap(),
        quota::MAX_OWNER_BYTES - 5000,
    )
    .unwrap();
    let refused = make("third", "key").unwrap_err();
    assert_eq!(refused.info().code, ErrorCode::QuotaExceeded);
    assert!(
        refused
            .to_string()
            .ends_with("take no more than 64 GiB together"),
        "{refused}"
    );
    drop(make("fourth", "other").unwrap());
    assert_eq!(
        list(&place.state()).unwrap().len(),
        3,
        "nothing is left of the third"
    );
}

/// Runs one of these tests again as an ordinary user: root can read everything.
fn as_ordinary_user(test: &str) {
    let folder = std::env::temp_dir().join(format!("airlock-user-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    // The user may not be able to read the folder of this program.
    fs::copy(std::env::current_exe().unwrap(), folder.join("tests")).unwrap();
    let (uid, gid) = (HIM.0.to_string(), HIM.1.to_string());
    let done = Command::new("setpriv")
        .args(["--reuid", &uid, "--regid", &gid, "--clear-groups"])
        .arg(folder.join("tests"))
        .args(["--exact", test])
        .current_dir("/")
        .output()
        .unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let output = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && output.contains("1 passed"),
        "{output}"
    );
}

#[test]
fn a_folder_that_a_program_closed_counts_as_what_is_in_it() {
    if rustix::process::geteuid().is_root() {
        return as_ordinary_user(
            "workspaces::tests::owner::a_folder_that_a_program_closed_counts_as_what_is_in_it",
        );
    }
    let place = Place::new(|folder| fs::write(folder.join("a"), "a").unwrap());
    fs::create_dir_all(place.inside("closed/within")).unwrap();
    fs::write(place.inside("closed/within/b"), vec![1; 90_000]).unwrap();
    set_mode(place.inside("closed/within"), 0);
    set_mode(place.inside("closed"), 0o100);
    place.handle.as_ref().unwrap().diff().unwrap();
    let sum = quota::sum(&place.state(), Some("key")).unwrap();
    assert!((90_000..200_000).contains(&sum), "{sum}");
    // They are as the program left them.
    let mode = |path| fs::metadata(place.inside(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("closed"), 0o100);
    assert_eq!(mode("closed/within"), 0);
    for path in ["closed", "closed/within"] {
        set_mode(place.inside(path), 0o700);
    }
}

/// The place of the test below, in a mount namespace of its own.
const SMALL: &str = "AIRLOCK_TEST_SMALL_DISK";

#[test]
fn nothing_is_copied_to_a_disk_that_is_short_or_becomes_so() {
    if let Some(disk) = std::env::var_os(SMALL) {
        return on_a_small_disk(&PathBuf::from(disk));
    }
    if !is_root("only root mounts a small disk") {
        return;
    }
    let disk = std::env::temp_dir().join(format!("airlock-small-{}", std::process::id()));
    fs::create_dir(&disk).unwrap();
    let name = "workspaces::tests::owner::nothing_is_copied_to_a_disk_that_is_short_or_becomes_so";
    let script =
        "mount -t tmpfs -o size=8m none \"$AIRLOCK_TEST_SMALL_DISK\" && exec \"$0\" --exact \"$1\"";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(name);
    let done = command.env(SMALL, &disk).output().unwrap();
    fs::remove_dir(&disk).unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

fn on_a_small_disk(disk: &Path) {
    let place = Place::new(|folder| fs::write(folder.join("a"), "a").unwrap());
    let make = || {
        make(
            disk,
            &id(),
            &place.spec(&[]),
            &place.root.join("folder"),
            None,
            &|| false,
        )
    };
    let left = || fs::read_dir(disk.join("workspaces")).unwrap().count();
    fs::write(disk.join("full"), vec![1; 7900 << 10]).unwrap();
    let refused = make().unwrap_err();
    assert!(
        matches!(refused, LayerError::NoRoom { .. }) && left() == 0,
        "{refused}"
    );
    fs::remove_file(disk.join("full")).unwrap();
    make().unwrap().discard().unwrap();
    for number in 0..9 {
        fs::write(place.folder(&number.to_string()), vec![1; 900 << 10]).unwrap();
    }
    let refused = make().unwrap_err();
    assert!(
        matches!(refused, LayerError::NoRoom { .. }) && left() == 0,
        "{refused}"
    );
}

#[test]
fn a_sweep_drops_what_a_key_has_forgotten_and_nothing_that_is_used_or_the_users_own() {
    let place = Place::new(|_| {});
    let make = |id: &str, owner: Option<&str>| {
        let (id, owner) = (Id::new(id).unwrap(), owner.map(str::to_owned));
        make(
            &place.state(),
            &id,
            &place.spec(&[]),
            &place.root.join("folder"),
            owner,
            &|| false,
        )
        .unwrap()
    };
    for (id, owner) in [
        ("old", Some("key")),
        ("fresh", Some("key")),
        ("users", None),
    ] {
        drop(make(id, owner));
    }
    let used = make("used", Some("key"));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(31 * 24 * 60 * 60);
    for id in ["old", "users", "used"] {
        let layer = place.state().join("workspaces").join(id);
        for file in [layer.join("room"), layer] {
            fs::File::open(file)
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        }
    }
    assert_eq!(sweep(&place.state()), Vec::<String>::new());
    let kept: std::collections::BTreeSet<_> = list(&place.state())
        .unwrap()
        .into_iter()
        .map(|layer| layer.id.to_string())
        .collect();
    assert_eq!(
        kept,
        ["fresh", "layer", "used", "users"]
            .map(str::to_owned)
            .into()
    );
    drop(used);
}

#[test]
fn a_program_hides_nothing_of_what_its_layer_takes() {
    if !is_root("only root looks into what its owner closed") {
        return;
    }
    let place = Place::new(|folder| set_owner(folder));
    let handle = place.handle.as_ref().unwrap();
    let noted = || quota::read_size(&handle.folder);
    fs::create_dir(place.inside("closed")).unwrap();
    fs::write(place.inside("closed/large"), vec![1; 1 << 20]).unwrap();
    for path in ["closed", "closed/large"] {
        set_owner(place.inside(path));
    }
    handle.diff().unwrap();
    let open = noted();
    assert!(
        (1 << 20..2 << 20).contains(&open),
        "the positive control: {open}"
    );
    set_mode(place.inside("closed"), 0);
    assert_eq!(handle.diff().unwrap().unknown.len(), 1);
    assert_eq!(noted(), open, "a folder that is closed");
    quota::write_size(&handle.folder, 0).unwrap();
    set_mode(place.inside(""), 0);
    handle.diff().unwrap();
    assert_eq!(noted(), open, "its top, which is opened again");
    let mut deep = place.inside("deep");
    for _ in 0..=tree::MAX_DEPTH {
        deep.push("d");
    }
    fs::create_dir_all(deep).unwrap();
    handle.diff().unwrap();
    assert_eq!(
        noted(),
        quota::MAX_OWNER_BYTES,
        "what is too deep counts as all he may have"
    );
    let refused = make(
        &place.state(),
        &Id::new("next").unwrap(),
        &place.spec(&[]),
        &place.root.join("folder"),
        Some("key".to_owned()),
        &|| false,
    );
    assert!(
        matches!(refused, Err(LayerError::NoRoom { .. })),
        "{refused:?}"
    );
}

#[test]
fn layers_that_are_made_at_the_same_time_count_together() {
    let begin = |owner| quota::LayerReservation::begin(Path::new("/a/state"), Some(owner));
    let (one, two, other) = (begin("key"), begin("key"), begin("other"));
    assert_eq!(
        [
            one.grow_to(5),
            two.grow_to(7),
            one.grow_to(6),
            other.grow_to(1)
        ],
        [5, 12, 13, 1]
    );
    one.mark_recorded();
    assert_eq!(
        two.grow_to(8),
        14,
        "made since, and not in the sum that was asked for before"
    );
    let three = begin("key");
    assert_eq!(
        three.grow_to(1),
        9,
        "what was written down by then is in its sum"
    );
    drop(two);
    assert_eq!(three.grow_to(2), 2, "given up");
    drop(three);
    assert_eq!(begin("key").grow_to(1), 1);
}

#[test]
fn a_layer_that_cannot_be_looked_at_is_not_taken_for_nothing() {
    let place = Place::new(|_| {});
    let state = place.state().join("none yet");
    assert_eq!(
        bytes_of_owner(&state, "key").unwrap(),
        0,
        "there is no folder of them"
    );
    let layer = state.join(LAYERS).join("broken");
    fs::create_dir_all(&layer).unwrap();
    assert_eq!(bytes_of_owner(&state, "key").unwrap(), 0, "it is none yet");
    fs::write(layer.join(INFO_FILE), "{").unwrap();
    assert!(matches!(
        bytes_of_owner(&state, "key"),
        Err(LayerError::Io { .. })
    ));
}
