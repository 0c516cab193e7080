//! Layers on each kind of file system: how each is made, and that what is applied from it is what the program left.

use super::ids;
use airlock_cli_tests::World;
use std::{path::Path, process::Command};

/// Who is root here may mount file systems; the guest's tests have others.
fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
    if !may {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "file systems need root and loop devices"
        );
        println!("NOT TESTED: file systems need root and loop devices");
    }
    may
}

/// Runs a shell script in a mount namespace of its own, as root: with it goes all that it mounts. What it prints.
fn mounted(world: &World, script: &str) -> String {
    let program = airlock_cli_tests::airlock().display().to_string();
    let (user, group) = ids();
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-euo",
            "pipefail",
            "-c",
            script,
        ])
        .current_dir(world.here(""))
        .env("AIRLOCK", program)
        .env(
            "AS_USER",
            format!("setpriv --reuid {user} --regid {group} --clear-groups"),
        )
        .env("OWNER", format!("{user}:{group}"))
        .env_remove("AIRLOCK_STATE");
    let output = command.output().expect("unshare starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{told}");
    String::from_utf8(output.stdout).expect("text")
}

/// Stages changes of every kind in `work` on what is mounted at `disk`, by root and by a user, and prints how each layer
/// was made. Afterwards it is what the same changes make of a plain folder.
const ON_DISK: &str = r#"
CHANGES='set -e; umask 022
    echo after >changed; rm -r below; mkdir new; echo n >new/file; echo more >>long; : >emptied
    mv name renamed; mv tree moved; mv moved/in-it/deep moved/up; mv one two
    rm file-to-folder; mkdir file-to-folder; echo in >file-to-folder/in
    rm -r folder-to-file; echo now >folder-to-file; rm file-to-link; ln -s changed file-to-link
    rm link; ln -s new/file link; ln changed hard; chmod 750 mode new; chmod 711 folder-mode
    mkdir closed; echo in >closed/in; chmod 444 closed/in; chmod 555 closed
    python3 -c "import os; os.setxattr(\"new/file\", \"user.note\", b\"kept\")"'
fill() {
    mkdir -p "$1"/{below,tree/in-it,folder-to-file/in,folder-mode}
    for name in changed below/gone name tree/a tree/in-it/deep one two file-to-folder folder-to-file/in/x file-to-link mode \
        emptied folder-mode/x untouched; do
        echo "before $name" >"$1/$name"
    done
    seq 100000 >"$1/long"; ln -s changed "$1/link"
}
list() {
    cd "$1"
    find . -mindepth 1 -printf '%P %y %m %U:%G %l\n' | sort
    find . -type f -exec sha256sum {} + | sort -k 2
    python3 -c 'import os, pathlib
for path in sorted(pathlib.Path(".").rglob("*")):
    print(path, os.listxattr(path, follow_symlinks=False))'
}
one() { # WHO STATE NAMES
    rm -rf disk/work disk/plain "$2"; mkdir -p "$2"; fill disk/work; fill disk/plain
    (cd disk/plain; sh -c "$CHANGES")
    chown -hR "$OWNER" disk/work disk/plain; chmod 755 disk; [ -z "$1" ] || chown "$OWNER" "$2"
    printf '[workspace]\ncopy_names = %s\n' "$3" >config.toml
    export AIRLOCK_STATE=$PWD/$2 AIRLOCK_CONFIG=$PWD/config.toml HOME=$PWD/$2
    $1 "$AIRLOCK" run --workspace disk/work:staged --json -- sh -c "$CHANGES" >result
    jq -r '.workspace.layer // .error.message' result
    [ "$(jq -c '[.exit_code, .error]' result)" = '[0,null]' ] || { cat result >&2; return 1; }
    diff <(list disk/plain) <(list disk/work) >&2
}
"#;

#[test]
fn layers_are_made_as_each_file_system_allows() {
    if !may_mount() {
        return;
    }
    let image = |kind: &str| {
        format!(
            "truncate -s 400M disk.img; mkfs.{kind} -q disk.img >/dev/null 2>&1; mkdir disk; mount -o loop disk.img disk"
        )
    };
    let kinds = [
        (image("ext4"), "copy"),
        (image("xfs"), "reflink"),
        (image("btrfs"), "reflink"),
        ("mkdir disk; mount -t tmpfs tmpfs disk".to_owned(), "copy"),
    ];
    for (mount, small) in kinds {
        let world = World::new();
        let script = format!(
            "{mount}\n{ON_DISK}\none '' disk/state 5000; one \"$AS_USER\" disk/state 5000\n\
             one '' disk/state 1; one \"$AS_USER\" disk/state 1\n\
             one '' state 5000; one \"$AS_USER\" state 5000; one '' state 1; one \"$AS_USER\" state 1"
        );
        let beside = format!("{small}\n{small}\noverlay\noverlay\n");
        let on_another_disk = "copy\ncopy\noverlay\noverlay\n";
        let expected = beside + on_another_disk;
        assert_eq!(mounted(&world, &script), expected, "{mount}");
    }
}

#[test]
fn a_layer_lies_over_an_overlay_but_not_on_one() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let overlay = "mkdir disk parts; mount -t tmpfs tmpfs parts; mkdir parts/lower parts/upper parts/work\n\
        mount -t overlay -o lowerdir=parts/lower,upperdir=parts/upper,workdir=parts/work overlay disk";
    let script =
        format!("{overlay}\n{ON_DISK}\none '' state 5000; one '' state 1; one '' disk/state 5000");
    assert_eq!(mounted(&world, &script), "copy\noverlay\ncopy\n");
    // Where only a large copy is left, the run is refused, and says what would do.
    let world = World::new();
    let script = format!(
        "{overlay}\n{ON_DISK}\none '' disk/state 1 || true\n\
         \"$AIRLOCK\" run --workspace disk/work:staged -- true 2>&1 || echo $?"
    );
    let told = mounted(&world, &script);
    assert!(
        told.contains("another overlay") && told.contains("125\n"),
        "{told}"
    );
    assert!(
        told.contains("DIR:live") && told.contains("DIR:ro"),
        "{told}"
    );
}

/// The kernel lays overlays over each other only so often, which nobody can see before it is tried.
#[test]
fn a_layer_that_the_kernel_refuses_names_what_would_do() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let overlays = "mkdir once disk parts; mount -t tmpfs tmpfs parts; mkdir parts/{lower,upper,work,over,temporary}\n\
        mount -t overlay -o lowerdir=parts/lower,upperdir=parts/upper,workdir=parts/work overlay once\n\
        mount -t overlay -o lowerdir=once,upperdir=parts/over,workdir=parts/temporary overlay disk";
    let script = format!(
        "{overlays}\n{ON_DISK}\none '' state 5000; one '' state 1 2>&1 || true\n\
         \"$AIRLOCK\" run --workspace disk/work:staged -- true 2>&1 || echo $?\n\
         \"$AIRLOCK\" run --workspace disk/work:live -- touch made; ls disk/work/made"
    );
    let told = mounted(&world, &script);
    // The controls: a small folder is copied, and the remedy that is named does.
    assert!(told.starts_with("copy\n"), "{told}");
    assert!(told.ends_with("125\ndisk/work/made\n"), "{told}");
    assert!(
        told.contains("DIR:live") && told.contains("DIR:ro"),
        "{told}"
    );
}
