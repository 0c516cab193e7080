//! Airlock's own files are never exposed to a program, whatever folder the caller requests.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use engine::{Engine, Settings};
use spec::{ErrorCode, ErrorInfo, Network, Policy, RunRequest, RunSpec};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

/// A home folder with a state folder, a project beside it, a key, and a symbolic link to each.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let home =
            std::env::temp_dir().join(format!("airlock-guard-{name}-{}", std::process::id()));
        for folder in ["project", "keys", "dotfiles", "image/usr"] {
            fs::create_dir_all(home.join(folder)).unwrap();
        }
        fs::write(home.join("keys/key"), "k").unwrap();
        fs::write(home.join("dotfiles/config.toml"), "").unwrap();
        symlink(
            home.join("dotfiles/config.toml"),
            home.join("project/config.toml"),
        )
        .unwrap();
        Home(home)
    }

    fn settings(&self) -> Settings {
        let guarded = vec![self.0.join("keys/key")];
        Settings {
            guarded,
            ..Settings::new(self.0.join("local/state"))
        }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.join(below)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn admit(change: impl FnOnce(&mut RunRequest)) -> RunSpec {
    let mut request = RunRequest {
        command: vec!["true".into()],
        ..RunRequest::default()
    };
    change(&mut request);
    Policy::default().admit(request).unwrap()
}

fn workspace(path: PathBuf) -> RunSpec {
    admit(|request| request.workspace = Some(path))
}

fn mount(path: &Path) -> RunSpec {
    admit(|request| request.mounts = vec![format!("{}:/seen", path.display()).into()])
}

fn image(path: PathBuf) -> RunSpec {
    admit(|request| request.image = Some(path))
}

fn said(refused: Result<(), ErrorInfo>) -> String {
    let refused = refused.expect_err("it is refused");
    assert_eq!(refused.code, ErrorCode::PolicyDenied, "{refused:?}");
    refused.message
}

#[test]
fn a_folder_with_the_state_or_a_key_in_it_is_refused_before_there_is_a_state_folder() {
    let home = Home::new("before");
    let settings = home.settings();
    for fine in [
        workspace(home.path("project")),
        mount(&home.path("dotfiles")),
        image(home.path("image")),
    ] {
        settings.check(&fine).unwrap();
    }
    for spec in [
        workspace(home.path("")),
        mount(&home.path("")),
        image(home.path("")),
    ] {
        assert!(said(settings.check(&spec)).contains("would show the program Airlock's state"));
    }
    for spec in [
        workspace(home.path("keys")),
        mount(&home.path("keys")),
        mount(&home.path("keys/key")),
    ] {
        assert!(said(settings.check(&spec)).ends_with("/keys/key`"));
    }
    assert!(!home.path("local").exists(), "nothing was made");
}

#[test]
fn neither_links_nor_another_name_of_the_same_file_get_around_it() {
    let home = Home::new("links");
    fs::create_dir_all(home.path("local/state/secrets")).unwrap();
    fs::create_dir(home.path("other")).unwrap();
    symlink(home.path("local"), home.path("other/way")).unwrap();
    fs::hard_link(home.path("keys/key"), home.path("other/hard")).unwrap();
    let direct = home.settings();
    for (below, why) in [
        ("other/way", "would show"),
        ("local/state", "lies in"),
        ("other/way/state/secrets", "lies in"),
        ("project/../local", "would show"),
    ] {
        let message = said(direct.check(&mount(&home.path(below))));
        assert!(message.contains(why), "{below}: {message}");
    }
    said(direct.check(&mount(&home.path("other/hard"))));
    // The folder of the link is guarded, since the link could be redirected, and so is its target.
    let linked = Settings::new(home.path("other/way/state"));
    said(linked.check(&workspace(home.path("other"))));
    said(linked.check(&workspace(home.path("local"))));
    let linked = Settings {
        guarded: vec![home.path("project/config.toml")],
        ..home.settings()
    };
    said(linked.check(&workspace(home.path("project"))));
    said(linked.check(&workspace(home.path("dotfiles"))));
    linked.check(&workspace(home.path("image"))).unwrap();
    let around = Settings::new(home.path("project/../local/state"));
    around.check(&workspace(home.path("project"))).unwrap();
    said(around.check(&workspace(home.path("local"))));
}

#[tokio::test]
async fn an_engine_that_was_not_asked_before_refuses_as_well() {
    let home = Home::new("engine");
    let engine = Engine::open(home.settings()).unwrap();
    for spec in [
        workspace(home.path("")),
        workspace(home.path("local/state/artifacts")),
        mount(&home.path("keys")),
    ] {
        let refused = engine.explain(&spec).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::PolicyDenied, "{refused:?}");
        let result = engine.run(spec).await;
        let error = result.error.unwrap();
        assert_eq!(
            (error.code, result.exit_status),
            (ErrorCode::PolicyDenied, 125),
            "{}",
            error.message
        );
    }
    let result = engine.run(workspace(home.path("project"))).await;
    assert_eq!((result.exit_code, result.error), (Some(0), None));
}

#[tokio::test]
async fn a_profile_that_shows_the_whole_system_leaves_them_out() {
    let home = Home::new("system");
    let system = Path::new("/var/tmp").join(home.0.file_name().unwrap());
    fs::create_dir(&system).unwrap();
    for folder in [&system, &home.0] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["key", "plain"] {
        fs::write(system.join(name), name).unwrap();
        fs::set_permissions(system.join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let engine = Engine::open(Settings {
        guarded: vec![system.join("key")],
        ..home.settings()
    })
    .unwrap();
    let command = [
        "sh",
        "-c",
        &format!("cd {} && ls && cat key", system.display()),
    ]
    .map(Into::into)
    .into();
    let spec = admit(|request| {
        (request.command, request.profile) = (command, Some("permissive".to_owned()));
        request.network = Some(Network::None);
    });
    let result = engine.run(spec).await;
    fs::remove_dir_all(&system).unwrap();
    let shown = (result.exit_code, String::from_utf8_lossy(&result.stdout));
    assert_eq!(shown, (Some(1), "plain\n".into()), "{:?}", result.error);
}

#[test]
fn an_unpacked_image_of_the_store_is_a_root_and_nothing_else() {
    let home = Home::new("store");
    let settings = home.settings();
    let (root, secrets) = (
        home.path("local/state/images/one/root"),
        home.path("local/state/secrets"),
    );
    // Without any image, nothing in the state folder counts as one.
    fs::create_dir_all(&secrets).unwrap();
    assert!(
        said(settings.check(&image(secrets.clone()))).contains("lies in Airlock's state folder")
    );
    fs::create_dir_all(&root).unwrap();
    settings.check(&image(root.clone())).unwrap();
    for spec in [
        image(secrets),
        workspace(root.clone()),
        mount(&root),
        image(home.path("local/state")),
    ] {
        said(settings.check(&spec));
    }
}
