//! Runs from images of the store, as whoever runs the tests and, started by root, as an ordinary user, too.

use airlock_cli_tests::{Answer, World};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::chown,
    process::{Command, Stdio},
};

/// An archive of one image, as a layout: busybox, a file that its user may write, one of root's that he may not read.
const MAKE: &str = r#"
digest() { echo "sha256:$(sha256sum <"$1" | cut -d' ' -f1)"; }
blob() { cp "$1" "layout/blobs/sha256/$(sha256sum <"$1" | cut -d' ' -f1)"; }
mkdir -p root/bin root/etc root/srv/agent root/opt/tool/bin root/app layout/blobs/sha256
cp /bin/busybox root/bin/busybox
for name in sh cat echo id ls pwd env touch true sleep rm; do ln -s busybox root/bin/$name; done
printf 'root:x:0:0::/root:/bin/sh\nagent:x:1001:1002::/home/agent:/bin/sh\n' > root/etc/passwd
printf 'agent:x:1002:\n' > root/etc/group
echo secret > root/etc/shadow
echo before > root/srv/agent/note
printf '#!/bin/sh\necho tool "$@"\n' > root/opt/tool/bin/tool
chmod 755 root/opt/tool/bin/tool
tar --sort=name --mtime=@0 --owner=0 --group=0 -C root --exclude=./srv/agent --exclude=./etc/shadow -cf layer.tar .
tar --mtime=@0 --owner=0 --group=0 --mode=600 -C root -rf layer.tar ./etc/shadow
tar --sort=name --mtime=@0 --owner=1001 --group=1002 --mode=u+rwX,go= -C root -rf layer.tar ./srv/agent
printf '{"os":"linux","architecture":"%s","config":{"User":"agent","WorkingDir":"/app","Env":["PATH=/opt/tool/bin:/bin","HOME=/x","GREETING=hello","AIRLOCK_RUN_ID=forged"],"Entrypoint":["tool"],"Cmd":["by default"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
    "$(dpkg --print-architecture)" "$(digest layer.tar)" > config.json
printf '{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"%s","size":%s}]}' \
    "$(digest config.json)" "$(stat -c %s config.json)" "$(digest layer.tar)" "$(stat -c %s layer.tar)" > manifest.json
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s}]}' \
    "$(digest manifest.json)" "$(stat -c %s manifest.json)" > layout/index.json
echo '{"imageLayoutVersion":"1.0.0"}' > layout/oci-layout
blob config.json; blob layer.tar; blob manifest.json
chmod -R a+rX layout
"#;

/// Who starts the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Starter {
    Tester,
    User,
}

struct Images {
    world: World,
    starter: Starter,
}

/// Whom `useradd` of the conformance tests makes, too.
const USER: &str = "airlock-test";

fn number(option: &str) -> Option<u32> {
    let told = Command::new("id").args([option, USER]).output().ok()?;
    String::from_utf8(told.stdout).ok()?.trim().parse().ok()
}

impl Images {
    fn new(starter: Starter) -> Images {
        let world = World::new();
        let made = world.shell(MAKE);
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        if starter == Starter::User {
            std::fs::create_dir(world.state()).expect("a state folder");
            chown(world.state(), number("-u"), number("-g")).expect("it becomes the user's");
        }
        let images = Images { world, starter };
        let loaded = images.run(&["image", "load", "layout", "--name", "tools:1"]);
        assert_eq!(loaded.status, Some(0), "{}", loaded.stderr);
        images
    }

    fn command(&self, words: &[&str]) -> Command {
        let plain = self.world.command(words);
        if self.starter == Starter::Tester {
            return plain;
        }
        let [uid, gid] =
            ["-u", "-g"].map(|option| number(option).expect("the user is there").to_string());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        command
            .arg(plain.get_program())
            .args(plain.get_args())
            .current_dir(self.world.here(""));
        command
            .env_clear()
            .envs(self.world.variables())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Answer {
        self.world
            .answer(&self.command(words).output().expect("airlock starts"))
    }

    /// What a program in the image says.
    fn says(&self, options: &[&str], command: &[&str]) -> String {
        let words = [&["run", "--image", "tools:1"], options, &["--"], command].concat();
        let answer = self.run(&words);
        assert_eq!(answer.status, Some(0), "{answer:?}");
        answer.stdout
    }
}

/// Once as whoever runs this, once as an ordinary user if that is root.
fn everyone(claim: impl Fn(&Images)) {
    claim(&Images::new(Starter::Tester));
    if rustix::process::geteuid().is_root() {
        if number("-u").is_none() {
            let made = Command::new("useradd")
                .args(["--system", "--user-group", USER])
                .status();
            assert!(
                made.is_ok_and(|made| made.success()),
                "an ordinary user can be made"
            );
        }
        claim(&Images::new(Starter::User));
    }
}

#[test]
fn an_image_says_how_it_wants_to_be_run_and_the_caller_has_the_last_word() {
    everyone(|images| {
        let plain = images.run(&["run", "--image", "tools:1"]);
        assert_eq!(
            (plain.status, plain.stdout.as_str()),
            (Some(0), "tool by default\n"),
            "{plain:?}"
        );
        assert_eq!(images.says(&[], &["two words", "x"]), "tool two words x\n");
        let shell = |options: &[&str], script| {
            images.says(
                &[&["--entrypoint", ""], options].concat(),
                &["sh", "-c", script],
            )
        };
        assert_eq!(
            shell(&[], "id -u; id -g; pwd; echo $GREETING $HOME $PATH"),
            "1001\n1002\n/app\nhello /home/agent /opt/tool/bin:/bin\n"
        );
        assert!(!shell(&[], "echo $AIRLOCK_RUN_ID").contains("forged"));
        assert_eq!(
            shell(
                &["--user", "7:8", "--env", "GREETING=mine"],
                "id -u; echo $GREETING"
            ),
            "7\nmine\n"
        );
    });
}

#[test]
fn the_program_has_the_rights_of_the_images_user_and_no_more() {
    everyone(|images| {
        let script = "cat /srv/agent/note; cat /etc/shadow 2>/dev/null || echo kept; touch /etc/new 2>/dev/null || echo read-only";
        let said = images.says(&["--entrypoint", ""], &["sh", "-c", script]);
        assert_eq!(said, "before\nkept\nread-only\n");
    });
}

#[test]
fn what_one_run_changes_no_other_sees() {
    everyone(|images| {
        let options = ["--entrypoint", "", "--writable-root"];
        let script = "echo after > /srv/agent/note && touch /srv/agent/new && cat /srv/agent/note && ls /srv/agent";
        for _ in 0..2 {
            assert_eq!(
                images.says(&options, &["sh", "-c", script]),
                "after\nnew\nnote\n"
            );
            assert_eq!(
                images.says(
                    &options,
                    &["sh", "-c", "cat /srv/agent/*; rm /srv/agent/note"]
                ),
                "before\n"
            );
        }
        let words = [
            "run",
            "--json",
            "--image",
            "tools:1",
            "--writable-root",
            "--",
            "x",
        ];
        let result: Value = serde_json::from_str(&images.run(&words).stdout).unwrap();
        assert!(
            !result["barriers"]
                .as_array()
                .unwrap()
                .contains(&"read_only_root".into()),
            "{result}"
        );
        let refused =
            images.run(&[&words[..5], &["--require", "read_only_root", "--", "x"]].concat());
        assert_eq!(refused.status, Some(125), "{refused:?}");
    });
}

#[test]
fn an_image_in_use_stays_and_goes_afterwards() {
    everyone(|images| {
        let words = [
            "run",
            "--image",
            "tools:1",
            "--entrypoint",
            "",
            "--stdin",
            "--",
            "sh",
            "-c",
            "echo up; cat",
        ];
        let mut run = images
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "up\n");
        let kept = images.run(&["image", "rm", "tools:1"]);
        assert!(kept.stderr.contains("in use by a run"), "{kept:?}");
        drop(run.stdin.take());
        assert!(run.wait().unwrap().success());
        assert_eq!(images.run(&["image", "rm", "tools:1"]).status, Some(0));
        let gone = images.run(&["run", "--json", "--image", "tools:1", "--", "x"]);
        let result: Value = serde_json::from_str(&gone.stdout).unwrap();
        assert_eq!(
            (gone.status, result["error"]["code"].as_str()),
            (Some(125), Some("image_missing"))
        );
    });
}

#[test]
fn an_image_that_is_not_allowed_is_refused_with_the_reason() {
    everyone(|images| {
        images
            .world
            .write("on.toml", "[images]\npolicy = \"allowed\"\n");
        let run =
            |image: &str| images.run(&["--config", "on.toml", "run", "--image", image, "--", "x"]);
        let refused = run("tools:1");
        assert_eq!(refused.status, Some(125), "{refused:?}");
        assert!(refused.stderr.contains("tools:1"), "{refused:?}");
        let folder = run("./root");
        assert_eq!(folder.status, Some(125), "{folder:?}");
        assert_eq!(images.run(&["image", "allow", "tools:1"]).status, Some(0));
        let allowed = run("tools:1");
        assert_eq!(
            (allowed.status, allowed.stdout.as_str()),
            (Some(0), "tool x\n"),
            "{allowed:?}"
        );
    });
}
