//! With real boxes and a real pip; what is on no network is made here.

use super::*;
use std::{os::unix::fs::MetadataExt, process::Command, time::SystemTime};

/// A state folder, an engine, and wheels of a test's own.
struct Place {
    top: PathBuf,
    engine: Engine,
}

impl Place {
    fn new(name: &str) -> Place {
        let top = std::env::temp_dir().join(format!("airlock-packages-{name}-{}", std::process::id()));
        fs::create_dir_all(top.join("wheels")).unwrap();
        let engine = Engine::open(engine::Settings::new(top.join("state"))).unwrap();
        Place { top, engine }
    }

    fn folder(&self) -> PathBuf {
        self.top.join("state/worker/packages")
    }

    fn installer(&self) -> Installer {
        Installer::open(self.engine.clone(), self.folder(), "/usr/bin/python3".into(), None).unwrap()
    }

    /// A wheel with a module that says what it is, and perhaps something that it needs.
    fn wheel(&self, name: &str, needs: &str) {
        let script = r#"
import sys, zipfile
path, name, needs = sys.argv[1:]
info = f"{name}-1.0.dist-info"
meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + (f"Requires-Dist: {needs}\n" if needs else "")
with zipfile.ZipFile(f"{path}/{name}-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{name}/__init__.py", f"NAME = '{name}'\n")
    wheel.writestr(f"{info}/METADATA", meta)
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "".join(f"{n},,\n" for n in (f"{name}/__init__.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")))
"#;
        let mut made = Command::new("/usr/bin/python3");
        made.args(["-c", script]).arg(self.top.join("wheels")).args([name, needs]);
        assert!(made.status().unwrap().success());
    }

    fn wheels(&self) -> Wheels {
        Wheels::look(&self.top.join("wheels"), &Wheels::default()).unwrap()
    }

    async fn close(self) {
        self.engine.close().await;
        fs::remove_dir_all(&self.top).unwrap();
    }
}

#[tokio::test]
async fn wheels_become_one_folder_that_tools_can_import_from_and_that_is_shared() {
    let place = Place::new("wheels");
    place.wheel("first", "");
    place.wheel("second", "first");
    let installer = place.installer();
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |text| told.lock().unwrap().push(text);
    let layer = installer.layer(None, &place.wheels(), tell).await.unwrap().unwrap();
    assert!(layer.starts_with(fs::canonicalize(place.folder()).unwrap()) && told.lock().unwrap().len() == 2);
    let file = fs::metadata(layer.join("second/__init__.py")).unwrap();
    assert_eq!((file.mode() & 0o777, file.is_file()), (0o444, true));
    // The same for others who want the same, and by another installer.
    let inode = fs::metadata(&layer).unwrap().ino();
    let again = place.installer().layer(None, &place.wheels(), |_| ()).await.unwrap().unwrap();
    assert_eq!((again.clone(), fs::metadata(&again).unwrap().ino()), (layer.clone(), inode));
    // Seen in a box as a tool sees it, from the state folder that nothing else is shown of.
    let code = "import sys; sys.path[:0] = ['/tools/packages']; import first, second; print(first.NAME, second.NAME)";
    let request = |mount: String| RunRequest {
        command: vec!["/usr/bin/python3".into(), "-c".into(), code.into()],
        mounts: vec![mount.into()],
        ..RunRequest::default()
    };
    let run = async |mount: String| place.engine.run(Policy::default().admit(request(mount)).unwrap()).await;
    let result = run(format!("{}:/tools/packages:ro", layer.display())).await;
    assert_eq!(String::from_utf8_lossy(&result.stdout), "first second\n", "{result:?}");
    for mount in [
        format!("{}:/tools/packages:rw", layer.display()),
        format!("{}:/tools/packages:ro", place.folder().display()),
    ] {
        let result = run(mount.clone()).await;
        assert_eq!(result.error.unwrap().code, spec::ErrorCode::PolicyDenied, "{mount}");
    }
    place.wheel("third", "");
    let other = installer.layer(None, &place.wheels(), |_| ()).await.unwrap().unwrap();
    assert!(other != layer && other.join("third").is_dir());
    place.close().await;
}

#[tokio::test]
async fn what_cannot_be_installed_is_told_and_leaves_nothing() {
    let place = Place::new("missing");
    place.wheel("needy", "absent-package");
    let problem = place.installer().layer(None, &place.wheels(), |_| ()).await.unwrap_err();
    assert!(problem.message.contains("absent-package"), "{problem}");
    fs::write(place.top.join("wheels/needy-1.0-py3-none-any.whl"), "no zip").unwrap();
    let problem = place.installer().layer(None, &place.wheels(), |_| ()).await.unwrap_err();
    assert!(problem.message.contains("cannot be installed"), "{problem}");
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0);
    assert_eq!(place.installer().layer(None, &Wheels::default(), |_| ()).await, Ok(None));
    place.close().await;
}

#[tokio::test]
async fn what_crashes_left_is_swept_and_what_is_being_made_is_not() {
    let place = Place::new("swept");
    let installer = place.installer();
    let folder = fs::canonicalize(place.folder()).unwrap();
    let [left, made, old, fresh, kept] =
        [".making-left", ".making-alive", "old", "fresh", "kept"].map(|name| folder.join(name));
    for path in [&left, &made, &old, &fresh, &kept] {
        fs::create_dir_all(path.join("x")).unwrap();
    }
    let long_ago = SystemTime::now() - UNUSED - Duration::from_secs(60);
    for path in [&old, &kept] {
        fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let held = lock(&made).unwrap();
    installer.sweep(&[kept.clone()].into());
    assert_eq!(
        [&left, &made, &old, &fresh, &kept].map(|path| path.exists()),
        [false, true, false, true, true]
    );
    drop(held);
    place.installer();
    assert!(!made.exists() && kept.exists(), "it was used a moment ago");
    place.close().await;
}

#[test]
fn links_are_not_kept() {
    let top = std::env::temp_dir().join(format!("airlock-settle-{}", std::process::id()));
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/b/c"), "").unwrap();
    assert_eq!(settle(&top, &top).unwrap(), Ok(()));
    std::os::unix::fs::symlink("/etc/passwd", top.join("a/link")).unwrap();
    assert!(settle(&top, &top).unwrap().unwrap_err().message.contains("`a/link`"));
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn pip_is_told_to_take_wheels_only_and_wheels_alone_need_no_network() {
    let wheels = Wheels::default();
    let requirement = Requirement::new("asyncpg", Some(">=0.29")).unwrap();
    let line = |what: &Wanted<'_>| {
        command(Path::new("/usr/bin/python3"), what).join(" ".as_ref()).into_string().unwrap()
    };
    let named = line(&Wanted { requirement: Some(&requirement), wheels: &wheels });
    assert!(named.contains("--only-binary=:all:") && named.ends_with("-- asyncpg>=0.29"), "{named}");
    assert!(!named.contains("--no-index"));
    assert!(line(&Wanted { requirement: None, wheels: &wheels }).contains("--no-index"));
}

#[test]
fn an_index_has_no_credentials() {
    assert!(check_index("https://pypi.example/simple").is_ok());
    for index in
        ["https://user:secret@pypi.example/simple", "file:///etc", "pypi.example", "https://", "https://a b"]
    {
        assert!(check_index(index).is_err(), "{index}");
    }
}
