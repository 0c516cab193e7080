//! Small images to check: a tree made of busybox that keeps the whole contract, to be broken line by line.

use cli::{Answer, World};
use image::{
    ImageLimits, ImageSource, ImageStore,
    build::{BuildPlatform, BuiltImage, write_archive},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use spec::{Digest, ImageConfig, ImageRef};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

/// The shell under another name, for wrappers in its place. Not that of busybox, which needs no programs around it.
pub const REAL_SHELL: &str = "/bin/dash";
const BUSYBOX: &str = "/usr/bin/busybox";
const APPLETS: [&str; 19] = [
    "cat", "cp", "mv", "rm", "mkdir", "chmod", "chown", "find", "tar", "gzip", "gunzip", "unzip",
    "ps", "env", "date", "uname", "nc", "ls", "sleep",
];

/// A root file system in a world of its own.
#[derive(Debug)]
pub struct Tree {
    /// The world, for commands.
    pub world: World,
}

/// What `image check --json` said.
#[derive(Debug)]
pub struct Checked {
    /// Its exit status.
    pub status: Option<i32>,
    /// Outcome and what was seen, by requirement.
    pub lines: BTreeMap<String, (String, String)>,
    /// All of it.
    pub all: Value,
}

impl Tree {
    /// One that keeps the contract of `base-tools`.
    #[allow(clippy::new_without_default, reason = "it makes folders")]
    pub fn new() -> Tree {
        let tree = Tree {
            world: World::new(),
        };
        for folder in [
            "bin",
            "etc/ssl/certs",
            "proc",
            "dev",
            "sys",
            "tmp",
            "usr",
            "root",
            "workspace",
        ] {
            fs::create_dir_all(tree.path(folder)).expect("a folder of the tree");
        }
        fs::copy(BUSYBOX, tree.path("bin/busybox")).expect("busybox-static is installed");
        for applet in APPLETS {
            symlink("busybox", tree.path("bin").join(applet)).expect("a link to busybox");
        }
        tree.install(Path::new("/usr/bin/dash"), "bin/dash");
        symlink("dash", tree.path("bin/sh")).expect("a link to the shell");
        let certificate = format!(
            "-----BEGIN CERTIFICATE-----\nMII{}\n-----END CERTIFICATE-----\n",
            "A".repeat(61)
        );
        tree.write("etc/ssl/certs/ca-certificates.crt", &certificate)
    }

    /// A program of this machine with the libraries it needs.
    fn install(&self, program: &Path, inside: &str) {
        fs::copy(program, self.path(inside)).expect("the program is installed");
        let told = Command::new("ldd")
            .arg(program)
            .output()
            .expect("ldd starts");
        let told = String::from_utf8(told.stdout).expect("ldd writes text");
        for library in told.split_whitespace().filter(|word| word.starts_with('/')) {
            let place = self.path(library.trim_start_matches('/'));
            fs::create_dir_all(place.parent().expect("a library lies in a folder"))
                .expect("its folder");
            fs::copy(library, place).expect("a library");
        }
    }

    /// The root of the tree, or a path in it.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.world.here("root").join(inside)
    }

    /// With a file.
    pub fn write(self, inside: &str, text: &str) -> Tree {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("its folder");
        fs::write(path, text).expect("a file of the tree");
        self
    }

    /// Without a file.
    pub fn without(self, inside: &str) -> Tree {
        fs::remove_file(self.path(inside)).expect("it was there");
        self
    }

    /// With a script in the place of a program.
    pub fn wrapped(self, program: &str, script: &str) -> Tree {
        let tree = self
            .without(program)
            .write(program, &format!("#!{REAL_SHELL}\n{script}\n"));
        fs::set_permissions(tree.path(program), fs::Permissions::from_mode(0o755))
            .expect("its rights");
        tree
    }

    /// Checks the folder.
    pub fn check(&self, options: &[&str]) -> Checked {
        check(&self.world, "./root", options)
    }

    /// Makes an image of it that says this about itself, takes it into the store, and checks it there.
    pub fn check_as_image(&self, config: ImageConfig, options: &[&str]) -> Checked {
        let layer = self.world.here("layer.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(self.path(""))
            .args(["--owner=0", "--group=0", "-cf"])
            .arg(&layer)
            .arg(".");
        assert!(tar.status().expect("tar starts").success());
        let bytes = fs::read(&layer).expect("the layer");
        let hex: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let digest = Digest::new(&format!("sha256:{hex}")).expect("a digest");
        let platform = BuildPlatform::here().expect("a known platform");
        let built = BuiltImage {
            platform,
            config,
            layer,
            digest,
            bytes: bytes.len() as u64,
            epoch: 0,
        };
        let archive = self.world.here("image.tar");
        let mut file = fs::File::create(&archive).expect("an archive");
        let name: ImageRef = "localhost/probe".parse().expect("a name");
        write_archive(&mut file, &name, &[built]).expect("it is written");
        load(&self.world, &archive);
        check(&self.world, "localhost/probe", options)
    }
}

/// Takes an archive into the store of a world; returns the root of its tree.
pub fn load(world: &World, archive: &Path) -> PathBuf {
    let images = ImageStore::open(world.state().join("images")).expect("a store");
    let loaded = images.load(
        ImageSource::Path(archive.to_owned()),
        None,
        &ImageLimits::default(),
        &mut |_| {},
    );
    loaded.expect("it is loaded").image.root().to_owned()
}

/// Checks what is named in a world.
pub fn check(world: &World, image: &str, options: &[&str]) -> Checked {
    let mut arguments = vec!["image", "check", image, "--json"];
    arguments.extend(options);
    let answer = world.run(&arguments);
    read(&answer)
}

/// Reads what a check, or a build with its check, answered.
pub fn read(answer: &Answer) -> Checked {
    assert!(matches!(answer.status, Some(0 | 1)), "{answer:?}");
    let all = answer.json();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let lines = all["lines"].as_array().expect("lines").iter();
    let lines = lines.map(|line| {
        (
            text(&line["requirement"]),
            (text(&line["outcome"]), text(&line["seen"])),
        )
    });
    Checked {
        status: answer.status,
        lines: lines.collect(),
        all,
    }
}

impl Checked {
    /// The requirements that came out so.
    pub fn with(&self, outcome: &str) -> Vec<&str> {
        self.lines
            .iter()
            .filter(|(_, (found, _))| found == outcome)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// How one came out.
    pub fn outcome(&self, requirement: &str) -> &str {
        &self
            .lines
            .get(requirement)
            .unwrap_or_else(|| panic!("no {requirement} in {self:#?}"))
            .0
    }
}
