//! What of the host a run is shown when it names a folder: not what is mounted there later, and nothing of the kernel's own.

use airlock_cli_tests::World;
use serde_json::{Value, json};

/// Runs a script in a mount namespace of its own, in which `shared` is a file system whose mounts reach every copy of it.
fn in_shared_mounts(script: &str) -> String {
    assert!(
        rustix::process::geteuid().is_root(),
        "prerequisite: root, to mount something"
    );
    let world = World::new();
    let text = format!(
        "mkdir shared copy
         mount -t tmpfs -o mode=755 tmpfs shared
         mount --make-shared shared
         mount --bind shared copy
         mkdir -m 777 -p shared/w shared/w/late shared/w/early shared/w/data
         {script}"
    );
    // Root of this machine, not of a user namespace: with only one id there, Airlock has none to spare for programs.
    let output = world.shell(&format!("timeout 60 unshare -m bash -ec '{text}'"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_the_host_mounts_during_a_run_does_not_appear_inside() {
    let said = in_shared_mounts(
        "airlock run --workspace shared/w --mount ./shared:/shown -- sh -c \"
             touch begun; until test -e go; do sleep 0.05; done
             echo inside \\$(ls late /shown/w/late)\" &
         until test -e shared/w/begun; do sleep 0.05; done
         mount -t tmpfs tmpfs shared/w/late
         touch shared/w/late/appeared
         echo copy $(ls copy/w/late)
         touch shared/w/go
         wait $!",
    );
    // The copy is the control: whatever gets mounts from there has this one.
    assert_eq!(said, "copy appeared\ninside /shown/w/late: late:\n");
}

#[test]
fn file_systems_of_the_kernel_below_a_folder_are_empty_and_others_are_not() {
    let said = in_shared_mounts(
        "mount --bind /proc shared/w/early
         mount -t tmpfs -o mode=755 tmpfs shared/w/data
         touch shared/w/data/file
         test -e shared/w/early/version
         airlock run --json --workspace shared/w -- sh -c \"ls early data\"",
    );
    let result: Value = serde_json::from_str(&said).expect("a result");
    assert_eq!(result["stdout"], "data:\nfile\n\nearly:\n");
    let note = "`/workspace/early` is a file system of the host's kernel, and empty inside";
    assert!(
        result["notes"]
            .as_array()
            .is_some_and(|notes| notes.contains(&json!(note))),
        "{}",
        result["notes"]
    );
}
