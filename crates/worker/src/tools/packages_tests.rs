//! With real sandboxes and a real pip; what is on no network is made here.

use super::*;
use crate::{
    artifacts::ArtifactStore,
    call::{self, CallRunner},
    tools::{CatalogSettings, ToolReport, watch},
    wire::topic::TopicBase,
};
use doors::egress;
use std::{
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    process::Command,
    task::Poll,
    time::SystemTime,
};

/// A state folder, an engine, and wheels of a test's own.
struct Place {
    top: PathBuf,
    engine: Engine,
}

impl Place {
    fn new(name: &str) -> Place {
        let top =
            std::env::temp_dir().join(format!("airlock-packages-{name}-{}", std::process::id()));
        fs::create_dir_all(top.join("wheels")).unwrap();
        let engine = Engine::open(engine::Settings::new(top.join("state"))).unwrap();
        Place { top, engine }
    }

    fn folder(&self) -> PathBuf {
        self.top.join("state/worker/packages")
    }

    fn installer(&self) -> Installer {
        self.installer_from(PackageIndex::default())
    }

    fn installer_from(&self, index: PackageIndex) -> Installer {
        Installer::open(
            self.engine.clone(),
            self.folder(),
            "/usr/bin/python3".into(),
            index,
        )
        .unwrap()
    }

    /// A wheel with a module that says what it is, and perhaps something that it needs.
    fn wheel(&self, name: &str, needs: &str) {
        self.wheel_of(name, "1.0", needs);
    }

    fn wheel_of(&self, name: &str, version: &str, needs: &str) {
        let script = r#"
import sys, zipfile
path, name, version, needs = sys.argv[1:]
info = f"{name}-{version}.dist-info"
meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (f"Requires-Dist: {needs}\n" if needs else "")
with zipfile.ZipFile(f"{path}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{name}/__init__.py", f"NAME = '{name}'\n")
    wheel.writestr(f"{info}/METADATA", meta)
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "".join(f"{n},,\n" for n in (f"{name}/__init__.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")))
"#;
        let mut made = Command::new("/usr/bin/python3");
        made.args(["-c", script])
            .arg(self.top.join("wheels"))
            .args([name, version, needs]);
        assert!(made.status().unwrap().success());
    }

    fn wheels(&self) -> Wheels {
        Wheels::scan(&self.top.join("wheels"), &Wheels::default()).unwrap()
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
    let layer = installer
        .layer(None, &place.wheels(), tell)
        .await
        .unwrap()
        .unwrap();
    assert!(
        layer.starts_with(fs::canonicalize(place.folder()).unwrap())
            && told.lock().unwrap().len() == 2
    );
    let file = fs::metadata(layer.join("second/__init__.py")).unwrap();
    assert_eq!((file.mode() & 0o777, file.is_file()), (0o444, true));
    // The same for others who want the same, and by another installer.
    let inode = fs::metadata(&layer).unwrap().ino();
    let again = place
        .installer()
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (again.clone(), fs::metadata(&again).unwrap().ino()),
        (layer.clone(), inode)
    );
    // Seen in a sandbox as a tool sees it, from the state folder that nothing else is shown of.
    let code = "import sys; sys.path[:0] = ['/tools/packages']; import first, second; print(first.NAME, second.NAME)";
    let request = |mount: String| RunRequest {
        command: vec!["/usr/bin/python3".into(), "-c".into(), code.into()],
        mounts: vec![mount.into()],
        ..RunRequest::default()
    };
    let run = async |mount: String| {
        place
            .engine
            .run(Policy::default().admit(request(mount)).unwrap())
            .await
    };
    let result = run(format!("{}:/tools/packages:ro", layer.display())).await;
    assert_eq!(
        String::from_utf8_lossy(&result.stdout),
        "first second\n",
        "{result:?}"
    );
    for mount in [
        format!("{}:/tools/packages:rw", layer.display()),
        format!("{}:/tools/packages:ro", place.folder().display()),
    ] {
        let result = run(mount.clone()).await;
        assert_eq!(
            result.error.unwrap().code,
            spec::ErrorCode::PolicyDenied,
            "{mount}"
        );
    }
    place.wheel("third", "");
    let other = installer
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap()
        .unwrap();
    assert!(other != layer && other.join("third").is_dir());
    place.close().await;
}

#[tokio::test]
async fn what_cannot_be_installed_is_told_and_leaves_nothing() {
    let place = Place::new("missing");
    place.wheel("needy", "absent-package");
    let problem = place
        .installer()
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap_err();
    assert!(problem.message.contains("absent-package"), "{problem}");
    fs::write(
        place.top.join("wheels/needy-1.0-py3-none-any.whl"),
        "no zip",
    )
    .unwrap();
    let problem = place
        .installer()
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap_err();
    assert!(problem.message.contains("cannot be installed"), "{problem}");
    assert_eq!(fs::read_dir(place.folder()).unwrap().count(), 0);
    assert_eq!(
        place
            .installer()
            .layer(None, &Wheels::default(), |_| ())
            .await,
        Ok(None)
    );
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
    let long_ago = SystemTime::now() - UNUSED_LIFETIME - Duration::from_secs(60);
    for path in [&old, &kept] {
        fs::File::open(path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
    }
    let held = lock(&made).unwrap();
    installer.sweep(&[kept.clone()].into());
    assert_eq!(
        [&left, &made, &old, &fresh, &kept].map(|path| path.exists()),
        [false, true, false, true, true]
    );
    // A child of another test may have a copy of it until it becomes another program.
    rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
    place.installer();
    assert!(!made.exists() && kept.exists(), "it was used a moment ago");
    place.close().await;
}

#[tokio::test]
async fn a_wheel_that_cannot_be_installed_leaves_the_others_and_is_named() {
    let place = Place::new("sound");
    place.wheel("first", "");
    place.wheel("second", "first");
    let installer = place.installer();
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    assert!(sound.wheels == place.wheels() && sound.problems.is_empty() && !sound.is_lacking);
    place.wheel("needy", "absent-package");
    fs::write(place.top.join("wheels/torn-1.0-py3-none-any.whl"), "no zip").unwrap();
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    let names: Vec<&str> = sound.wheels.files.keys().map(|name| &name[..5]).collect();
    assert_eq!((names, sound.is_lacking), (vec!["first", "secon"], false));
    let [needy, torn] = &sound.problems[..] else {
        panic!("{sound:?}")
    };
    assert!(
        needy.message.contains("`needy-1.0") && needy.message.contains("absent-package"),
        "{needy}"
    );
    assert!(torn.message.contains("`torn-1.0"), "{torn}");
    let layer = installer
        .layer(None, &sound.wheels, |_| ())
        .await
        .unwrap()
        .unwrap();
    assert!(
        layer.join("first").is_dir()
            && layer.join("second").is_dir()
            && !layer.join("needy").exists()
    );
    assert_eq!(
        fs::read_dir(place.folder()).unwrap().count(),
        1,
        "nothing is left of what was tried"
    );
    // With none that will do, tools have to do without, and it is tried again.
    fs::remove_file(place.top.join("wheels/first-1.0-py3-none-any.whl")).unwrap();
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    assert!(
        sound.wheels.files.is_empty() && sound.is_lacking && sound.problems.len() == 1,
        "{sound:?}"
    );
    place.close().await;
}

#[tokio::test]
async fn of_wheels_that_do_not_go_together_the_newest_and_those_that_go_with_it_are_kept() {
    let place = Place::new("versions");
    place.wheel_of("wa", "1.9", "");
    place.wheel_of("wa", "1.10", "");
    place.wheel("wb", "wa");
    let installer = place.installer();
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    let names = |sound: &ResolvableWheels| {
        let short = |name: &String| name.trim_end_matches("-py3-none-any.whl").to_owned();
        sound
            .wheels
            .files
            .keys()
            .map(short)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        (names(&sound), sound.is_lacking),
        ("wa-1.10 wb-1.0".to_owned(), false),
        "{sound:?}"
    );
    let [older] = &sound.problems[..] else {
        panic!("{sound:?}")
    };
    assert!(
        older.message.contains("`wa-1.9-py3") && older.message.contains("`wa-1.10-py3"),
        "{older}"
    );
    // One that needs the older goes with neither; one behind it is reached all the same.
    place.wheel("wc", "wa==1.9");
    place.wheel("wd", "");
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    assert_eq!(
        (names(&sound), sound.is_lacking),
        ("wa-1.10 wb-1.0 wd-1.0".to_owned(), false),
        "{sound:?}"
    );
    let [first, second] = &sound.problems[..] else {
        panic!("{sound:?}")
    };
    assert!(
        first.message.contains("`wc-1.0") && first.message.contains("conflicting"),
        "{first}"
    );
    assert!(second.message.contains("`wa-1.9"), "{second}");
    let layer = installer
        .layer(None, &sound.wheels, |_| ())
        .await
        .unwrap()
        .unwrap();
    assert!(
        layer.join("wa-1.10.dist-info").is_dir()
            && layer.join("wd").is_dir()
            && !layer.join("wc").exists()
    );
    assert_eq!(
        fs::read_dir(place.folder()).unwrap().count(),
        2,
        "nothing is left of what was tried"
    );
    place.close().await;
}

#[tokio::test]
async fn where_time_is_up_what_was_added_is_served_with_what_it_needs_and_the_rest_is_added_later()
{
    let place = Place::new("late");
    place.wheel("wa", "wz");
    place.wheel("wb", "wz==1.0");
    place.wheel("wc", "");
    place.wheel_of("wz", "1.0", "");
    place.wheel_of("wz", "2.0", "");
    let mut installer = place.installer();
    Arc::get_mut(&mut installer.0).unwrap().round_timeout = Duration::ZERO;
    let names = |sound: &ResolvableWheels| {
        let short = |name: &String| name.trim_end_matches("-py3-none-any.whl").to_owned();
        sound
            .wheels
            .files
            .keys()
            .map(short)
            .collect::<Vec<_>>()
            .join(" ")
    };
    // One more is tried each time: `wa`, which takes `wz`, then `wb`, which does not go with that, then `wc`.
    let rounds = [
        ("wa-1.0 wz-2.0", true),
        ("wa-1.0 wz-2.0", true),
        ("wa-1.0 wc-1.0 wz-2.0", false),
    ];
    for (expected, is_lacking) in rounds {
        let sound = installer.sound(&place.wheels(), |_| ()).await;
        assert_eq!(
            (&*names(&sound), sound.is_lacking),
            (expected, is_lacking),
            "{sound:?}"
        );
        let layer = installer
            .layer(None, &sound.wheels, |_| ())
            .await
            .unwrap()
            .unwrap();
        assert!(layer.join("wa").is_dir() && layer.join("wz-2.0.dist-info").is_dir());
        installer.0.known.lock().await.as_mut().unwrap().again = Some(Instant::now());
    }
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    let [wb, wz] = &sound.problems[..] else {
        panic!("{sound:?}")
    };
    assert!(
        wb.message.contains("`wb-1.0") && wb.message.contains("conflicting"),
        "{wb}"
    );
    assert!(wz.message.contains("`wz-1.0"), "{wz}");
    // Who asks while it is tried again does not wait; of other wheels nothing is known yet.
    let trying = installer.0.known.lock().await;
    assert_eq!(
        installer.sound(&place.wheels(), |_| ()).await.wheels,
        sound.wheels
    );
    let mut other = place.wheels();
    other
        .files
        .insert("other-1.0-py3-none-any.whl".to_owned(), String::new());
    let mut waiting = Box::pin(installer.sound(&other, |_| ()));
    let is_waiting =
        std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
    assert!(is_waiting.await, "the control");
    drop((waiting, trying));
    // With all the time that it needs it comes to the same.
    let all = place.installer().sound(&place.wheels(), |_| ()).await;
    assert_eq!((all.wheels, all.problems), (sound.wheels, sound.problems));
    place.close().await;
}

#[tokio::test]
async fn what_is_left_out_for_want_of_room_is_tried_again_and_what_is_torn_is_not() {
    let place = Place::new("again");
    place.wheel("first", "");
    fs::write(place.top.join("wheels/torn-1.0-py3-none-any.whl"), "no zip").unwrap();
    let mut installer = place.installer();
    let full = fs::canonicalize(place.folder()).unwrap().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), vec![7; 1 << 20]).unwrap();
    fs::File::open(full.join("x")).unwrap().sync_all().unwrap();
    Arc::get_mut(&mut installer.0).unwrap().most_kept = 1 << 19;
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    assert!(
        sound.wheels.files.is_empty() && sound.is_lacking,
        "{sound:?}"
    );
    assert!(
        sound.problems[0]
            .message
            .contains("packages take 1 MiB already"),
        "{sound:?}"
    );
    Arc::get_mut(&mut installer.0).unwrap().most_kept = 1 << 30;
    assert!(
        installer.sound(&place.wheels(), |_| ()).await.is_lacking,
        "not for every tool at once"
    );
    installer.0.known.lock().await.as_mut().unwrap().again = Some(Instant::now());
    *installer.0.turn.lock().await = None;
    let sound = installer.sound(&place.wheels(), |_| ()).await;
    let names: Vec<&str> = sound.wheels.files.keys().map(|name| &name[..5]).collect();
    assert_eq!(
        (names, sound.is_lacking, sound.problems.len()),
        (vec!["first"], false, 1),
        "{sound:?}"
    );
    assert!(sound.problems[0].message.contains("`torn-1.0"), "{sound:?}");
    place.close().await;
}

#[tokio::test]
async fn folders_are_bounded_together_and_the_longest_unused_goes_first() {
    let place = Place::new("room");
    place.wheel("first", "");
    let mut installer = place.installer();
    let folder = fs::canonicalize(place.folder()).unwrap();
    let hours = |count: u64| SystemTime::now() - Duration::from_secs(3600 * count);
    let [oldest, old, fresh] = [("oldest", 9), ("old", 5), ("fresh", 1)].map(|(name, age)| {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), vec![7; 1 << 20]).unwrap();
        fs::File::open(path.join("x")).unwrap().sync_all().unwrap();
        fs::File::open(&path)
            .unwrap()
            .set_modified(hours(age))
            .unwrap();
        path
    });
    let there = || [&oldest, &old, &fresh].map(|path| path.exists());
    installer.make_room().await.unwrap();
    assert_eq!(there(), [true, true, true]);
    Arc::get_mut(&mut installer.0).unwrap().most_kept = 5 << 19;
    let layer = installer
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((there(), layer.is_dir()), ([false, true, true], true));
    // What may be in use stays, and nothing is added to it.
    Arc::get_mut(&mut installer.0).unwrap().most_kept = 1 << 19;
    place.wheel("second", "");
    let problem = installer
        .layer(None, &place.wheels(), |_| ())
        .await
        .unwrap_err();
    assert!(
        problem.message.contains("packages take 1 MiB already"),
        "{problem}"
    );
    assert_eq!((there(), layer.is_dir()), ([false, false, true], true));
    place.close().await;
}

#[test]
fn links_are_not_kept() {
    let top = std::env::temp_dir().join(format!("airlock-settle-{}", std::process::id()));
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/b/c"), "").unwrap();
    assert_eq!(make_read_only(&top, &top).unwrap(), Ok(()));
    std::os::unix::fs::symlink("/etc/passwd", top.join("a/link")).unwrap();
    assert!(
        make_read_only(&top, &top)
            .unwrap()
            .unwrap_err()
            .message
            .contains("`a/link`")
    );
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn pip_is_told_to_take_wheels_only_and_wheels_alone_need_no_network() {
    let wheels = Wheels::default();
    let requirement = PackageRequirement::new("asyncpg", Some(">=0.29")).unwrap();
    let line = |what: &InstallRequest<'_>| {
        command(Path::new("/usr/bin/python3"), what)
            .join(" ".as_ref())
            .into_string()
            .unwrap()
    };
    let named = line(&InstallRequest {
        requirement: Some(&requirement),
        wheels: &wheels,
        only: None,
    });
    assert!(
        named.contains("--only-binary=:all:") && named.ends_with("-- asyncpg>=0.29"),
        "{named}"
    );
    assert!(!named.contains("--no-index"));
    assert!(
        line(&InstallRequest {
            requirement: None,
            wheels: &wheels,
            only: None
        })
        .contains("--no-index")
    );
}

#[test]
fn an_index_has_no_credentials_and_tls_unless_its_host_is_trusted() {
    let check = |url: &str, host: Option<&str>| {
        PackageIndex {
            url: Some(url.to_owned()),
            trusted_host: host.map(str::to_owned),
        }
        .check()
    };
    assert!(check("https://pypi.example/simple", None).is_ok());
    assert!(check("http://pypi.example:8080/simple", Some("pypi.example:8080")).is_ok());
    assert!(
        check("http://pypi.example/simple", None)
            .unwrap_err()
            .message
            .contains("TLS")
    );
    for url in [
        "https://user:secret@pypi.example/simple",
        "file:///etc",
        "pypi.example",
        "https://",
        "https://a b",
        "https://a/'",
        "https://pypi.example/simple?token=secret",
        "https://pypi.example/simple#secret",
    ] {
        assert!(check(url, None).is_err(), "{url}");
    }
    assert!(check("https://pypi.example/simple", Some("--pre x")).is_err());
}

fn caller(engine: &Engine) -> Arc<CallRunner> {
    let python = "/usr/bin/python3".into();
    let settings = call::CallSettings {
        python,
        largest_result: 100_000,
        max_warm: 0,
        max_warm_bytes: 0,
        max_prewarmed: 0,
        hidden: Vec::new(),
    };
    Arc::new(CallRunner::new(
        engine.clone(),
        ArtifactStore::memory(),
        None,
        settings,
    ))
}

#[tokio::test]
async fn programs_are_asked_and_modules_of_wheels_are_served_with_real_boxes() {
    let place = Place::new("real");
    place.wheel("first", "");
    let tools = place.top.join("tools");
    fs::create_dir_all(tools.join("set/bin")).unwrap();
    fs::rename(place.top.join("wheels"), tools.join("wheels")).unwrap();
    fs::create_dir_all(tools.join("python")).unwrap();
    let module = "def add(a: int, b: int = 2) -> int:\n    \"\"\"Adds.\"\"\"\n    return a + b\n";
    fs::write(tools.join("python/m.py"), module).unwrap();
    let script = "#!/bin/sh\n[ \"$1\" = --schema ] || exit 3\necho a warning >&2\ncat \"$(dirname \"$0\")/said.json\"\n";
    for (name, text) in [
        ("good", script),
        ("bad", "#!/bin/sh\necho no config >&2\nexit 4\n"),
    ] {
        fs::write(tools.join("set/bin").join(name), text).unwrap();
        fs::set_permissions(
            tools.join("set/bin").join(name),
            PermissionsExt::from_mode(0o755),
        )
        .unwrap();
    }
    fs::write(
        tools.join("set/bin/said.json"),
        r#"{"tools": {"x": {"description": "It works."}}}"#,
    )
    .unwrap();
    let entries = "tools:\n  of_wheel: {module: first, function: f, description: d}\n  good: {tool_dir: set, executable: bin/good}\n  add: {module: m, function: add}\n  \
                   bad: {tool_dir: set, executable: bin/bad}\n";
    fs::write(tools.join("manifest.yaml"), entries).unwrap();
    let settings = CatalogSettings {
        manifest: tools.join("manifest.yaml"),
        python_dir: tools.join("python"),
        folder: tools,
        site: None,
        python: "/usr/bin/python3".into(),
        installer: Some(place.installer()),
        base: TopicBase::new("n", "").unwrap(),
        every: Duration::from_millis(50),
    };
    let (mut catalog, mut reports) = watch(settings, caller(&place.engine));
    let waited = catalog.wait_for(|now| now.len() == 3);
    let now = tokio::time::timeout(INSTALL_TIMEOUT, waited)
        .await
        .unwrap()
        .unwrap()
        .clone();
    assert_eq!(now["good"].card.description.as_deref(), Some("It works."));
    let add = &now["add"].card;
    let parameters = add.parameters.clone().unwrap_or_default();
    assert_eq!(
        (add.description.as_deref(), &parameters["required"]),
        (Some("Adds."), &serde_json::json!(["a"]))
    );
    let layer = now["of_wheel"].code.packages.clone().unwrap();
    assert!(layer.join("first/__init__.py").is_file() && now["good"].code.packages == Some(layer));
    let failed = async {
        loop {
            if let ToolReport::Failed { problem, .. } = reports.recv().await.unwrap() {
                return problem.to_string();
            }
        }
    };
    let failed = tokio::time::timeout(INSTALL_TIMEOUT, failed).await.unwrap();
    assert!(
        failed.contains("tool `bad`") && failed.contains("no config"),
        "{failed}"
    );
    drop(catalog);
    place.close().await;
}

/// An index at this host, as the door sees the internet: every address leads to it.
fn publish(wheel: Vec<u8>) -> egress::EgressSettings {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else {
                return;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match connection.read(&mut byte) {
                    Ok(1) => head.extend(byte),
                    _ => break,
                }
            }
            let head = String::from_utf8_lossy(&head);
            let link: &[u8] = b"<!DOCTYPE html><html><body><a href=\"/first-1.0-py3-none-any.whl\">first-1.0-py3-none-any.whl</a></body></html>";
            let (kind, body) = match head.contains("/simple/first/") {
                true => ("text/html", link),
                false => ("application/zip", &wheel[..]),
            };
            let begin = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            _ = connection
                .write_all(begin.as_bytes())
                .and_then(|()| connection.write_all(body));
        }
    });
    let internet = egress::Internet::dangerously_replace(
        |name| {
            if name == "index.test" {
                vec![[93, 184, 216, 34].into()]
            } else {
                Vec::new()
            }
        },
        move |_| server,
    );
    egress::EgressSettings {
        internet,
        ..egress::EgressSettings::default()
    }
}

#[tokio::test]
async fn packages_come_from_the_index_through_the_egress_door() {
    let mut place = Place::new("index");
    place.wheel("first", "");
    let wheel = fs::read(place.top.join("wheels/first-1.0-py3-none-any.whl")).unwrap();
    let mut settings = engine::Settings::new(place.top.join("state"));
    settings.doors.egress = publish(wheel);
    place.engine = Engine::open(settings).unwrap();
    let index = |host: &str| PackageIndex {
        url: Some(format!("http://{host}/simple")),
        trusted_host: Some(host.to_owned()),
    };
    let wanted = PackageRequirement::new("first", Some(">=1")).unwrap();
    let none = Wheels::default();
    let layer = place
        .installer_from(index("index.test"))
        .layer(Some(&wanted), &none, |_| ())
        .await
        .unwrap()
        .unwrap();
    assert!(layer.join("first/__init__.py").is_file());
    let elsewhere = place
        .installer_from(index("127.0.0.1:9"))
        .layer(Some(&wanted), &none, |_| ())
        .await
        .unwrap_err();
    assert!(
        elsewhere.message.contains("`first>=1` cannot be installed"),
        "{elsewhere}"
    );
    place.close().await;
}
