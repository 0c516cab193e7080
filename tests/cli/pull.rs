//! `airlock image pull`, from a real registry on loopback that the test starts.

use airlock_cli_tests::{Answer, World, same};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapbox::str;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Makes an image of busybox and pushes it as `team/tools:1`, by nothing but HTTP.
const PUSH: &str = r#"
digest() { echo "sha256:$(sha256sum <"$1" | cut -d' ' -f1)"; }
push() {
    place=$(curl -sSi -X POST "http://$registry/v2/team/tools/blobs/uploads/" | tr -d '\r' | sed -n 's/^[Ll]ocation: //p')
    curl -sSf -X PUT -H 'Content-Type: application/octet-stream' --data-binary @"$1" "$place&digest=$(digest "$1")"
}
mkdir -p root/bin root/etc
cp /bin/busybox root/bin/busybox
ln -s busybox root/bin/sh
echo 'agent:x:1000:1000::/workspace:/bin/sh' > root/etc/passwd
tar --owner=0 --group=0 --sort=name --mtime=@0 -C root -cf layer.tar .
gzip -nk layer.tar
printf '{"os":"linux","architecture":"%s","config":{"User":"agent","Cmd":["/bin/sh"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
    "$(dpkg --print-architecture)" "$(digest layer.tar)" > config.json
printf '{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"%s","size":%s}]}' \
    "$(digest config.json)" "$(stat -c %s config.json)" "$(digest layer.tar.gz)" "$(stat -c %s layer.tar.gz)" > manifest.json
push config.json
push layer.tar.gz
curl -sSf -X PUT -H 'Content-Type: application/vnd.oci.image.manifest.v1+json' --data-binary @manifest.json \
    "http://$registry/v2/team/tools/manifests/1"
"#;

/// `tester`, with the password `open sesame`, as `htpasswd -nbB` writes it.
const HTPASSWD: &str = "tester:$2y$05$xO/vbZxvLKGbjmnvkTSc/Oojq4k6YfmxH42f5lH.yZsSsG8wTHtDC";

struct Registry {
    child: Child,
    address: String,
}

impl Registry {
    fn start(world: &World, more: &str) -> Registry {
        let storage = world.here("storage");
        world.write("registry.yml", &format!(
            "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 127.0.0.1:0, secret: test}}\n{more}\n",
            storage.display()
        ));
        let mut command = Command::new("docker-registry");
        command
            .args(["serve"])
            .arg(world.here("registry.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .expect("docker-registry starts: apt-get install docker-registry");
        let mut told = BufReader::new(child.stderr.take().expect("its stderr"))
            .lines()
            .map_while(Result::ok);
        let address = told.find_map(|line| {
            let (_, rest) = line.split_once("msg=\"listening on ")?;
            Some(rest.split(['"', ',']).next()?.to_owned())
        });
        // Somebody must go on reading, or it stops at a full pipe.
        std::thread::spawn(move || told.for_each(drop));
        Registry {
            address: address.expect("docker-registry listens"),
            child,
        }
    }

    /// One with an image in it.
    fn with_tools(world: &World) -> Registry {
        let registry = Registry::start(world, "");
        let pushed = world.shell(&format!("registry={}\n{PUSH}", registry.address));
        assert!(
            pushed.status.success(),
            "{}",
            String::from_utf8_lossy(&pushed.stderr)
        );
        registry
    }

    fn name(&self) -> String {
        format!("{}/team/tools:1", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The answer with the registry's port replaced.
fn told(answer: &Answer, registry: &Registry) -> String {
    let text = format!("{}{}", answer.stderr, answer.stdout);
    text.replace(&registry.address, "REGISTRY")
}

/// What lies in the store of images and should not stay there.
fn drafts(world: &World) -> Vec<String> {
    let Ok(entries) = fs::read_dir(world.state().join("images")) else {
        return Vec::new();
    };
    let names = entries.map(|entry| {
        entry
            .expect("it is listed")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    names.filter(|name| name.starts_with(".draft")).collect()
}

#[test]
fn an_image_is_pulled_and_kept() {
    let world = World::new();
    let registry = Registry::with_tools(&world);
    let answer = world.run(&["image", "pull", &registry.name()]);
    same(
        told(&answer, &registry),
        str![[r#"
airlock: note: 1 of 2: [..] ([..] B)
airlock: note: 2 of 2: [..] ([..]iB)
pulled REGISTRY/team/tools:1 for linux/[..]: 1 layer, [..]iB in [..] s
sha256:[..]

"#]],
    );
    assert_eq!(answer.status, Some(0));
    let json = world
        .run(&["image", "pull", &registry.name(), "--json"])
        .json();
    assert_eq!(json["name"], registry.name());
    assert_eq!(json["layers"], 1);
    assert_eq!(json["digest"], json["manifest"]);
    let Value::Object(fields) = &json else {
        panic!("{json}")
    };
    let names: Vec<_> = fields.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "bytes",
            "digest",
            "duration_ms",
            "layers",
            "manifest",
            "name",
            "platform"
        ]
    );
    // Pinned by what it is, too.
    let sum = world.shell("sha256sum <manifest.json");
    let digest = format!("sha256:{}", String::from_utf8_lossy(&sum.stdout[..64]));
    assert_eq!(json["digest"], digest.as_str());
    let pinned = world.run(&["image", "pull", &format!("{}@{digest}", registry.name())]);
    assert_eq!(pinned.status, Some(0), "{}", pinned.stderr);
    assert_eq!(drafts(&world), [""; 0]);
}

#[test]
fn what_is_not_there_or_not_for_this_machine_is_refused_with_its_reason() {
    let world = World::new();
    let registry = Registry::with_tools(&world);
    assert_eq!(
        world.run(&["image", "pull", &registry.name()]).status,
        Some(0)
    );
    let absent = world.run(&[
        "image",
        "pull",
        &registry.name().replace("tools:1", "tools:none"),
    ]);
    assert_eq!(absent.status, Some(125));
    same(
        told(&absent, &registry),
        str![[r#"
airlock: error: `REGISTRY` has no manifest `none` of `team/tools`
airlock: hint: check the name and the tag

"#]],
    );
    let other = world.run(&[
        "image",
        "pull",
        &registry.name(),
        "--platform",
        "linux/s390x",
        "--json",
    ]);
    assert_eq!(
        (other.status, &other.json()["error"]["code"]),
        (Some(125), &Value::from("image_missing"))
    );
    assert!(
        other
            .stderr
            .contains("is not for linux/s390x, but for linux/"),
        "{}",
        other.stderr
    );
    for (name, why) in [
        ("Debian", "is not the name of an image"),
        ("a b", "is not the name of an image"),
    ] {
        let bad = world.run(&["image", "pull", name]);
        assert!(
            bad.status == Some(125) && bad.stderr.contains(why),
            "{}",
            bad.stderr
        );
    }
    let platform = world.run(&["image", "pull", "x", "--platform", "plan9/amd64"]);
    assert!(
        platform.status == Some(125) && platform.stderr.contains("is not a platform"),
        "{}",
        platform.stderr
    );
}

#[test]
fn only_registries_of_the_operators_list_are_asked() {
    let world = World::new();
    let registry = Registry::with_tools(&world);
    world.write("none.toml", "[images]\nregistries = [\"docker.io\"]\n");
    let list = format!(
        "[images]\nregistries = [\"docker.io\", \"{}\"]\n",
        registry.address
    );
    world.write("some.toml", &list);
    let allowed = world.run(&["--config", "some.toml", "image", "pull", &registry.name()]);
    assert_eq!(allowed.status, Some(0), "{}", allowed.stderr);
    let refused = world.run(&[
        "--config",
        "none.toml",
        "image",
        "pull",
        &registry.name(),
        "--json",
    ]);
    assert_eq!(refused.json()["error"]["code"], "policy_denied");
    same(
        refused.stderr.replace(&registry.address, "REGISTRY"),
        str![[r#"
airlock: error: pulling images from `REGISTRY` is not allowed here
airlock: hint: `images.registries` of the configuration allows docker.io

"#]],
    );
}

#[test]
fn the_credentials_of_docker_login_are_used_and_never_shown() {
    let world = World::new();
    drop(Registry::with_tools(&world));
    world.write("htpasswd", &format!("{HTPASSWD}\n"));
    let auth = format!(
        "auth: {{htpasswd: {{realm: test, path: {}}}}}",
        world.here("htpasswd").display()
    );
    let registry = Registry::start(&world, &auth);
    let pull = |set: &str, file: &Path| {
        let mut command = world.command(&["image", "pull", &registry.name(), "--json"]);
        world.answer(&command.env(set, file).output().expect("airlock starts"))
    };
    // `tester:open sesame`, `tester:wrong word`
    for (folder, auth) in [
        ("right", "dGVzdGVyOm9wZW4gc2VzYW1l"),
        ("wrong", "dGVzdGVyOndyb25nIHdvcmQ="),
    ] {
        let text = format!(
            "{{\"auths\": {{\"{}\": {{\"auth\": \"{auth}\"}}}}}}",
            registry.address
        );
        world.write(&format!("{folder}/config.json"), &text);
    }
    let right = pull("DOCKER_CONFIG", &world.here("right"));
    assert_eq!(right.status, Some(0), "{}", right.stderr);
    assert_eq!(
        pull("REGISTRY_AUTH_FILE", &world.here("right/config.json")).status,
        Some(0)
    );
    let nobody = world.run(&["image", "pull", &registry.name()]);
    assert!(
        nobody.status == Some(125) && nobody.stderr.contains("none are configured"),
        "{}",
        nobody.stderr
    );
    let wrong = pull("DOCKER_CONFIG", &world.here("wrong"));
    assert_eq!(
        (wrong.status, &wrong.json()["error"]["code"]),
        (Some(125), &Value::from("image_missing"))
    );
    for answer in [right, wrong] {
        let all = format!("{}{}", answer.stdout, answer.stderr);
        assert!(
            !["sesame", "wrong word", "dGVzdGVy"]
                .iter()
                .any(|secret| all.contains(secret)),
            "{all}"
        );
    }
    world.write(
        "helped/config.json",
        &format!(
            "{{\"credHelpers\": {{\"{}\": \"test\"}}}}",
            registry.address
        ),
    );
    let absent = pull("DOCKER_CONFIG", &world.here("helped"));
    assert!(
        absent
            .stderr
            .contains("`docker-credential-test` gave no credentials"),
        "{}",
        absent.stderr
    );
    let made = world.shell(
        "mkdir bin; printf '#!/bin/sh\\ncat >asked; echo {\\\\\"Username\\\\\":\\\\\"tester\\\\\",\\\\\"Secret\\\\\":\\\\\"open sesame\\\\\"}\\n' \
         > bin/docker-credential-test; chmod 755 bin/docker-credential-test",
    );
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let mut helped = world.command(&["image", "pull", &registry.name()]);
    helped.env("DOCKER_CONFIG", world.here("helped")).env(
        "PATH",
        format!("{}:/usr/bin:/bin", world.here("bin").display()),
    );
    let helped = world.answer(&helped.output().expect("airlock starts"));
    assert_eq!(helped.status, Some(0), "{}", helped.stderr);
    let asked = fs::read_to_string(world.here("asked")).expect("it was asked");
    assert_eq!(asked.trim_end(), registry.address);
}

/// A server that takes a question and never answers; says when it was asked.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    (listener, address)
}

#[test]
fn a_pull_that_is_cancelled_leaves_nothing_and_one_that_is_killed_is_swept() {
    let world = World::new();
    let registry = Registry::with_tools(&world);
    let (listener, address) = silent();
    for (signal, status) in [
        (Signal::INT, Some(130)),
        (Signal::TERM, Some(130)),
        (Signal::KILL, None),
    ] {
        let mut command =
            world.command(&["image", "pull", "--plain-http", &format!("{address}/x")]);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        let (mut asked, _) = listener.accept().expect("it asks");
        asked
            .read_exact(&mut [0; 16])
            .expect("it says what it wants");
        assert_eq!(drafts(&world).len(), 1, "something is on its way");
        kill_process(Pid::from_child(&child), signal).expect("it lives");
        let answer = world.answer(&child.wait_with_output().expect("it ends"));
        assert_eq!(answer.status, status, "{signal:?}");
        if status.is_some() {
            same(
                answer.stderr,
                str![[r#"
airlock: error: the pull was cancelled
airlock: hint: nothing was stored

"#]],
            );
            assert_eq!(drafts(&world), [""; 0]);
        }
    }
    assert_eq!(drafts(&world).len(), 1, "who is killed leaves it");
    assert_eq!(
        world.run(&["image", "pull", &registry.name()]).status,
        Some(0)
    );
    assert_eq!(drafts(&world), [""; 0], "the next one sweeps");
}
