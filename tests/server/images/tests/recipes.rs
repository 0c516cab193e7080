//! The recipes: read, built from Debian packages, checked, extended. What takes long is kept in `target` and made again
//! when the recipe or its builder changes.

use cli::{World, airlock, repository};
use image::{
    build::BuildPlatform,
    contract::ImageProfile,
    recipe::{REFERENCE_AGENT, for_profile},
};
use images::{check, load};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const EXTENSION: &str = "\
FROM base-tools
LABEL io.cynodeai.sandbox.purpose=\"base-tools,dev\"
USER root
RUN apt-get update \\
    && apt-get install -y --no-install-recommends jq \\
    && rm -rf /var/lib/apt/lists/* /tmp/*
RUN cat /proc/self/uid_map > /uid_map && id -u > /uid && touch /made
COPY tool.sh /usr/local/bin/
USER 1000:1000
";

fn is_full() -> bool {
    std::env::var_os("AIRLOCK_FULL").is_some()
}

/// What decides about a built image, beside the packages of the day.
fn key(text: &str) -> String {
    let mut hash = Sha256::new_with_prefix(text);
    if text.contains(REFERENCE_AGENT.0) {
        hash.update(REFERENCE_AGENT.1);
    }
    for file in ["archive", "environment", "mod", "script"] {
        hash.update(
            fs::read(repository().join(format!("crates/image/src/build/{file}.rs")))
                .expect("a source"),
        );
    }
    hash.finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The archive of an image, built now or kept from before.
fn built(name: &str, text: &str, arguments: &[&str], world: &World) -> PathBuf {
    let folder = repository().join("target/images");
    fs::create_dir_all(&folder).expect("a folder for what is built");
    let archive = folder.join(format!("{name}-{}.tar", key(text)));
    if archive.exists() {
        return archive;
    }
    let draft = folder.join(format!("{name}-{}.part", std::process::id()));
    // Left by a test that was killed.
    let _ = fs::remove_file(&draft);
    let mut command = Command::new(airlock());
    command
        .args(["image", "build"])
        .args(arguments)
        .arg("--output")
        .arg(&draft);
    let output = command
        .current_dir(world.here(""))
        .env("AIRLOCK_STATE", world.state())
        .output();
    let output = output.expect("airlock starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{told}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(
        told.contains("airlock: note: RUN apt-get update"),
        "progress is shown: {told}"
    );
    fs::rename(&draft, &archive).expect("it is kept");
    archive
}

/// Builds the image of a profile, and checks what was built as it says and as its profile.
fn builds_and_keeps_its_contract(profile: ImageProfile) {
    let world = World::new();
    let archive = built(
        profile.name(),
        for_profile(profile),
        &[profile.name()],
        &world,
    );
    load(&world, &archive);
    let checked = check(&world, &format!("localhost/{}", profile.name()), &[]);
    // An ordinary user cannot look at what only root of the image may read.
    let unseen = if rustix::process::geteuid().is_root() {
        vec![]
    } else {
        vec!["no credentials inside"]
    };
    let told = (checked.status, checked.with("fail"), checked.with("warn"));
    assert_eq!(told, (Some(0), vec![], unseen), "{checked:#?}");
    assert_eq!(checked.all["profiles"], serde_json::json!([profile.name()]));
    assert_eq!(checked.all["agent_compatible"], true);
    if matches!(profile, ImageProfile::Agent | ImageProfile::Runtime) {
        has_an_agent_that_answers(&world, profile.name());
    }
}

/// Without a door there is no model; the agent says so in the words of its contract, and its settings passed the first process.
fn has_an_agent_that_answers(world: &World, profile: &str) {
    let image = format!("localhost/{profile}");
    let task = r#"TASK_PAYLOAD={"task_id":"t","prompt":"p"}"#;
    let settings = [
        "--contract",
        "task",
        "--env",
        task,
        "--env",
        "AIRLOCK_AGENT_MODEL=m",
    ];
    let answer = world.run(
        &[
            &["run", "--json", "--image", &image],
            &settings[..],
            &["--", "airlock-agent"],
        ]
        .concat(),
    );
    let result = answer.json();
    let seen = (
        answer.status,
        &result["output"]["status"],
        &result["output"]["error"],
    );
    let error =
        "config_error: no model can be reached: set OPENAI_BASE_URL or ANTHROPIC_BASE_URL".into();
    assert_eq!(seen, (Some(1), &"failed".into(), &error), "{result:#}");
}

#[test]
fn base_tools_is_built_and_keeps_its_contract() {
    builds_and_keeps_its_contract(ImageProfile::BaseTools);
}

#[test]
fn agent_is_built_and_keeps_its_contract() {
    builds_and_keeps_its_contract(ImageProfile::Agent);
}

#[test]
fn the_other_profiles_are_built_and_keep_their_contracts() {
    let rest = ImageProfile::ALL.into_iter();
    let rest =
        rest.filter(|profile| !matches!(profile, ImageProfile::BaseTools | ImageProfile::Agent));
    match is_full() {
        true => rest.for_each(builds_and_keeps_its_contract),
        false => println!(
            "NOT BUILT: {:?}; AIRLOCK_FULL=1 builds them",
            rest.collect::<Vec<_>>()
        ),
    }
}

#[test]
fn a_recipe_of_ones_own_starts_from_ours() {
    let world = World::new();
    world
        .write("extended/Containerfile", EXTENSION)
        .write("extended/tool.sh", "#!/bin/sh\necho '{\"a\":7}' | jq .a\n");
    let chmod = Command::new("chmod")
        .arg("755")
        .arg(world.here("extended/tool.sh"))
        .status();
    assert!(chmod.expect("chmod starts").success());
    let text = format!("{EXTENSION}{}", for_profile(ImageProfile::BaseTools));
    let archive = built("extended", &text, &["./extended"], &world);
    let root = load(&world, &archive);
    assert_eq!(check(&world, "localhost/extended", &[]).status, Some(0));
    let answer = world.run(&["run", "--image", "localhost/extended", "--", "tool.sh"]);
    assert_eq!(
        (answer.status, answer.stdout.as_str()),
        (Some(0), "7\n"),
        "{answer:?}"
    );
    // The recipe was root of its tree, and nobody on this machine.
    let inside = |file: &str| fs::read_to_string(root.join(file)).expect("the recipe made it");
    assert_eq!(inside("uid").trim(), "0");
    let first: u32 = inside("uid_map")
        .split_whitespace()
        .nth(1)
        .expect("a map")
        .parse()
        .expect("a number");
    assert_ne!(first, 0, "root of the tree is not root of this machine");
    let sources = inside("etc/apt/sources.list.d/debian.sources");
    assert!(
        sources.contains("http://deb.debian.org/debian\n"),
        "{sources}"
    );
    assert_eq!(
        inside("etc/resolv.conf"),
        "",
        "nothing of this machine stays"
    );
}

#[test]
fn an_index_of_two_platforms_is_built_and_each_runs_on_its_own() {
    if !is_full() {
        println!("NOT BUILT: the index of two platforms; AIRLOCK_FULL=1 builds it");
        return;
    }
    let world = World::new();
    let both = ["base-tools", "--platform", "linux/amd64,linux/arm64"];
    let archive = built(
        "base-tools-both",
        for_profile(ImageProfile::BaseTools),
        &both,
        &world,
    );
    let root = load(&world, &archive);
    let machine = |root: &Path| {
        let program = fs::read(root.join("usr/bin/uname")).expect("it is there");
        u16::from_le_bytes([program[18], program[19]])
    };
    let (ours, theirs) = match BuildPlatform::here() {
        Some(BuildPlatform::Arm64) => (183, 62),
        _ => (62, 183),
    };
    assert_eq!(machine(&root), ours, "this machine's is loaded");
    let foreign = foreign_tree(&world, &archive);
    assert_eq!(machine(&foreign), theirs);
    let said = emulated(&foreign);
    assert_eq!(
        said,
        if theirs == 183 {
            "aarch64\n"
        } else {
            "x86_64\n"
        }
    );
}

/// Unpacks the layer of the platform that is not ours: the one for which the index says so.
fn foreign_tree(world: &World, archive: &Path) -> PathBuf {
    let script = "
        mkdir parts foreign && tar -xf \"$0\" -C parts && cd parts
        blob() { echo \"blobs/sha256/${1#sha256:}\"; }
        index=$(blob \"$(jq -r '.manifests[0].digest' index.json)\")
        manifest=$(blob \"$(jq -r --arg ours \"$1\" '.manifests[] | select(.platform.architecture != $ours).digest' \"$index\")\")
        tar --no-same-owner -xf \"$(blob \"$(jq -r '.layers[0].digest' \"$manifest\")\")\" -C ../foreign";
    let ours = BuildPlatform::here()
        .expect("a known platform")
        .architecture();
    let mut shell = Command::new("bash");
    shell
        .args(["-euc", script])
        .arg(archive)
        .arg(ours)
        .current_dir(world.here(""));
    assert!(shell.status().expect("bash starts").success());
    world.here("foreign")
}

/// What `uname -m` says in a tree of the other platform, by an emulator that only one namespace knows.
fn emulated(root: &Path) -> String {
    let script = r#"
        mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
        magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
        mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
        printf %s ':probe:M:0:'$magic':'$mask':/usr/bin/qemu-aarch64-static:F' > /proc/sys/fs/binfmt_misc/register
        chroot "$0" /bin/sh -c 'uname -m'"#;
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "bash",
        "-euc",
        script,
    ]);
    let output = unshare.arg(root).output().expect("unshare starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("a name of a machine")
}

#[test]
fn what_is_no_recipe_is_refused_before_anything_is_built() {
    let world = World::new();
    let from = "FROM debian:bookworm-slim\n";
    world.write(
        "unknown/Containerfile",
        &format!("{from}HEALTHCHECK NONE\n"),
    );
    world
        .write(
            "outside/Containerfile",
            &format!("{from}COPY ../secret /secret\n"),
        )
        .write("secret", "x");
    world.write(
        "linked/Containerfile",
        &format!("{from}COPY link /secret\n"),
    );
    std::os::unix::fs::symlink("../secret", world.here("linked/link")).expect("a link");
    world.write("missing/Containerfile", &format!("{from}COPY nowhere /x\n"));
    world.write("empty/other", "");
    let before = world.contents();
    let cases = [
        (&["nonsense"][..], "cannot read a recipe"),
        (&["./empty"], "cannot read a recipe"),
        (&["./unknown"], "line 2: `HEALTHCHECK` is not known"),
        (&["./outside"], "not a plain path below"),
        (&["./linked"], "cannot copy `link`"),
        (&["./missing"], "cannot copy `nowhere`"),
        (
            &["base-tools", "--platform", "linux/riscv64"],
            "linux/amd64 and linux/arm64",
        ),
        (
            &["base-tools", "--platform", "linux/arm64"],
            "add --output FILE",
        ),
        (
            &[
                "agent",
                "--platform",
                "linux/amd64,linux/arm64",
                "--output",
                "x.tar",
            ],
            "--init-arm64",
        ),
        (
            &["base-tools", "--name", "Not A Name"],
            "not the name of an image",
        ),
        (
            &["base-tools", "--output", "secret"],
            "cannot create `secret`",
        ),
    ];
    for (arguments, words) in cases {
        let answer = world.run(&[&["image", "build"], arguments].concat());
        assert_eq!(
            (answer.status, answer.stdout.as_str()),
            (Some(125), ""),
            "{arguments:?}"
        );
        assert!(
            answer.stderr.contains(words) && answer.stderr.contains("hint:"),
            "{arguments:?}: {}",
            answer.stderr
        );
    }
    assert_eq!(world.contents(), before);
}
