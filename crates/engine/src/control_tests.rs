use super::*;
use ::doors::{
    egress::EgressSettings,
    ledger::{Durability, Ledger},
    secrets::Secrets,
};
use spec::EgressGrant;
use std::io::{Read, Write};

/// A state folder with a run whose egress door is open; removed afterwards.
struct Running {
    state: PathBuf,
    door: Arc<Egress>,
    control: Option<Control>,
}

impl Running {
    async fn new(name: &str, within: &[&str]) -> Running {
        // Longer than a socket address can be.
        let long = "x".repeat(120);
        let state = std::env::temp_dir().join(format!(
            "airlock-control-{}-{name}-{long}",
            std::process::id()
        ));
        let within = match within {
            [] => Vec::new(),
            hosts => vec![hosts.iter().map(|host| host.parse().unwrap()).collect()],
        };
        let rules = vec![EgressRule::from_option("first.com").unwrap()];
        let grant = EgressGrant {
            rules,
            within: within.clone(),
            ..EgressGrant::default()
        };
        let ledger = Ledger::open(&state.join("ledger"), "run-r", Durability::Process).unwrap();
        let opened = Egress::open(
            "r",
            &grant,
            &EgressSettings::default(),
            &Secrets::default(),
            Arc::new(ledger),
        )
        .await;
        let door = opened.unwrap();
        let control = Some(open(&state, &run(), door.clone(), within).unwrap());
        Running {
            state,
            door,
            control,
        }
    }

    /// Sends a request from a thread of its own, as another process would.
    async fn ask(&self, question: ControlRequest) -> Result<Vec<RuleInfo>, ControlError> {
        let state = self.state.clone();
        tokio::task::spawn_blocking(move || send_request(&state, &run(), &question))
            .await
            .unwrap()
    }

    async fn refusal(&self, question: ControlRequest) -> ErrorInfo {
        match self.ask(question).await.unwrap_err() {
            ControlError::Refused(info) => info,
            other => panic!("{other:?}"),
        }
    }

    fn stream(&self) -> StdStream {
        let folder = File::open(self.state.join("doors")).unwrap();
        StdStream::connect(by_handle(&folder).join("r.control")).unwrap()
    }

    async fn end(self) {
        drop(self.control);
        self.door.close().await;
        fs::remove_dir_all(self.state).unwrap();
    }
}

fn run() -> Id {
    Id::new("r").unwrap()
}

fn grant(host: &str, seconds: u64) -> ControlRequest {
    ControlRequest::Grant {
        host: host.to_owned(),
        seconds,
    }
}

fn hosts(rules: &[RuleInfo]) -> Vec<&str> {
    rules.iter().map(|rule| rule.host.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_added_denied_and_taken_away_while_a_run_goes_on() {
    let mut running = Running::new("change", &[]).await;
    let rules = running
        .ask(grant("Db.example.com:5432", 900))
        .await
        .unwrap();
    let told = &rules[1];
    let wanted = RuleInfo {
        name: "airlock grant Db.example.com:5432".to_owned(),
        host: "db.example.com".to_owned(),
        ports: Some(vec![5432]),
        mode: "tunnel".to_owned(),
        expires_in: told.expires_in,
    };
    assert_eq!(*told, wanted);
    assert!((890..=900).contains(&told.expires_in.unwrap()), "{told:?}");
    let rules = running
        .ask(ControlRequest::Deny {
            host: "evil.com".to_owned(),
        })
        .await
        .unwrap();
    assert_eq!(
        (rules[2].mode.as_str(), &rules[2].ports, rules[2].expires_in),
        ("deny", &None, None)
    );
    let rules = running
        .ask(ControlRequest::Revoke {
            host: "first.com".to_owned(),
        })
        .await
        .unwrap();
    assert_eq!(hosts(&rules), ["db.example.com", "evil.com"]);
    assert_eq!(running.ask(ControlRequest::List {}).await.unwrap().len(), 2);
    assert_eq!(running.door.rules().len(), 2, "they are the door's own");
    let told = running.control.take().unwrap().close().await;
    let wanted = [
        "Db.example.com:5432 was granted for 15m while the run went on",
        "evil.com was denied while the run went on",
        "the rules for first.com were taken away while the run went on",
    ];
    assert_eq!(told, wanted);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_ends_by_itself() {
    let running = Running::new("time", &[]).await;
    assert_eq!(
        hosts(&running.ask(grant("a.com", 1)).await.unwrap()),
        ["first.com", "a.com"]
    );
    let until = running.door.rules()[1].until.unwrap();
    tokio::time::sleep_until(until.into()).await;
    assert_eq!(
        hosts(&running.ask(ControlRequest::List {}).await.unwrap()),
        ["first.com"]
    );
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_granted_is_refused_and_changes_nothing() {
    let running = Running::new("refused", &["*.example.com", "first.com"]).await;
    for (question, code, message) in [
        (
            grant("evil.com", 60),
            ErrorCode::PolicyDenied,
            "evil.com is beyond the hosts",
        ),
        (
            grant("*", 60),
            ErrorCode::PolicyDenied,
            "* is beyond the hosts",
        ),
        (
            grant("a.example.com", 0),
            ErrorCode::InvalidSpec,
            "a grant lasts",
        ),
        (
            grant("a.example.com", 24 * 3600 + 1),
            ErrorCode::InvalidSpec,
            "a grant lasts",
        ),
        (
            grant("a.example.com", u64::MAX),
            ErrorCode::InvalidSpec,
            "a grant lasts",
        ),
        (grant("a b", 60), ErrorCode::InvalidSpec, "`a b` is no host"),
        (
            ControlRequest::Revoke {
                host: "b.com".to_owned(),
            },
            ErrorCode::InvalidSpec,
            "no rule is for b.com",
        ),
        (
            ControlRequest::Revoke {
                host: "first.com:443".to_owned(),
            },
            ErrorCode::InvalidSpec,
            "`first.com:443` is no host",
        ),
    ] {
        let info = running.refusal(question).await;
        assert!(
            info.code == code && info.message.starts_with(message),
            "{info:?}"
        );
        assert!(info.hint.is_some(), "{info:?}");
    }
    assert_eq!(running.door.rules().len(), 1);
    assert_eq!(
        running
            .ask(grant("a.example.com", 24 * 3600))
            .await
            .unwrap()
            .len(),
        2
    );
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_are_no_question_or_too_long_are_not_obeyed() {
    let running = Running::new("lines", &[]).await;
    let mut stream = running.stream();
    let answers = tokio::task::spawn_blocking(move || {
        let mut said = [0; 4096];
        let mut heard = Vec::new();
        for line in [
            "{}\n",
            "{\"op\":\"grant\",\"host\":\"a.com\",\"seconds\":9,\"x\":1}\n",
            "{\"op\":\"own\"}\n",
            "\n",
        ] {
            stream.write_all(line.as_bytes()).unwrap();
            let count = stream.read(&mut said).unwrap();
            heard.push(String::from_utf8_lossy(&said[..count]).into_owned());
        }
        stream
            .write_all(&vec![b'x'; MAX_LINE_BYTES as usize])
            .unwrap();
        (heard, stream.read(&mut said).map_or(0, |count| count))
    });
    let (heard, after) = answers.await.unwrap();
    assert!(
        heard
            .iter()
            .all(|answer| answer.starts_with("{\"ok\":false") && answer.contains("no question")),
        "{heard:?}"
    );
    assert_eq!(after, 0, "who says too much is left");
    assert_eq!(running.door.rules().len(), 1);
    assert!(running.ask(grant("a.com", 9)).await.is_ok());
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_its_owners_alone_and_cannot_be_taken_from_a_living_run() {
    let running = Running::new("owner", &[]).await;
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = running.state.join("doors");
    assert_eq!(
        (mode(folder.clone()), mode(folder.join("r.control"))),
        (0o700, 0o600)
    );
    let taken = open(&running.state, &run(), running.door.clone(), Vec::new()).unwrap_err();
    assert!(
        taken.message.ends_with("a run with this id is under way"),
        "{}",
        taken.message
    );
    assert!(
        running.ask(ControlRequest::List {}).await.is_ok(),
        "the first one still answers"
    );
    let me = geteuid().as_raw();
    assert!(is_allowed_user(me) && is_allowed_user(0) && !is_allowed_user(me + 1));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_not_there_or_has_no_door_is_told_apart() {
    let mut running = Running::new("absent", &[]).await;
    let state = running.state.clone();
    let asked = |name: &str| {
        let (state, id) = (state.clone(), Id::new(name).unwrap());
        tokio::task::spawn_blocking(move || send_request(&state, &id, &ControlRequest::List {}))
    };
    match asked("other").await.unwrap() {
        Err(ControlError::NoSuchRun { others, .. }) => assert_eq!(others, ["r"]),
        answer => panic!("{answer:?}"),
    }
    fs::create_dir_all(state.join("runs")).unwrap();
    let record = File::create(state.join("runs/plain")).unwrap();
    assert!(
        matches!(
            asked("plain").await.unwrap(),
            Err(ControlError::NoSuchRun { .. })
        ),
        "its owner is gone"
    );
    rustix::fs::flock(&record, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(matches!(
        asked("plain").await.unwrap(),
        Err(ControlError::NoDoor { .. })
    ));
    // As if the owner had been killed: the socket stays without a listener.
    let mut killed = running.control.take().unwrap();
    killed.tasks.shutdown().await;
    assert!(state.join("doors/r.control").exists());
    match asked("r").await.unwrap() {
        Err(ControlError::NoSuchRun { others, .. }) => assert!(others.is_empty(), "{others:?}"),
        answer => panic!("{answer:?}"),
    }
    assert!(
        open(&state, &run(), running.door.clone(), Vec::new()).is_ok(),
        "its place can be taken"
    );
    drop(killed);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_id_is_answered_for_as_any_other() {
    let running = Running::new("long", &[]).await;
    let id = Id::new(&"i".repeat(128)).unwrap();
    let control = open(&running.state, &id, running.door.clone(), Vec::new()).unwrap();
    let (state, asked) = (running.state.clone(), id.clone());
    let rules =
        tokio::task::spawn_blocking(move || send_request(&state, &asked, &grant("a.com", 60)))
            .await
            .unwrap();
    assert_eq!(hosts(&rules.unwrap()), ["first.com", "a.com"]);
    drop(control);
    let left: Vec<_> = fs::read_dir(running.state.join("doors")).unwrap().collect();
    assert_eq!(left.len(), 1, "the other run's own: {left:?}");
    running.end().await;
}

/// A client that uses another user's state folder must not be led to a run of its own.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_is_not_led_elsewhere() {
    let running = Running::new("led", &[]).await;
    let place = running.state.join("others");
    let asked = |state: PathBuf| {
        let led = tokio::task::spawn_blocking(move || {
            send_request(&state, &run(), &grant("evil.com", 60))
        });
        async move { led.await.unwrap() }
    };
    fs::create_dir_all(place.join("by-name/doors")).unwrap();
    let socket = running.state.join("doors/r.control");
    std::os::unix::fs::symlink(&socket, place.join("by-name/doors/r.control")).unwrap();
    fs::create_dir_all(place.join("by-folder")).unwrap();
    std::os::unix::fs::symlink(running.state.join("doors"), place.join("by-folder/doors")).unwrap();
    for name in ["by-name", "by-folder"] {
        assert!(asked(place.join(name)).await.is_err(), "{name}");
    }
    if geteuid().is_root() {
        // Not a symbolic link, but the socket itself.
        fs::create_dir_all(place.join("by-link/doors")).unwrap();
        fs::hard_link(&socket, place.join("by-link/doors/r.control")).unwrap();
        assert!(
            asked(place.join("by-link")).await.is_ok(),
            "the control: all of it is ours"
        );
        running.door.revoke(&"evil.com".parse().unwrap()).unwrap();
        for theirs in ["by-link", "by-link/doors"] {
            std::os::unix::fs::chown(place.join(theirs), Some(65534), None).unwrap();
        }
        let refused = asked(place.join("by-link")).await.unwrap_err();
        assert!(
            refused.to_string().contains("is not the owner"),
            "{refused}"
        );
    }
    assert_eq!(running.door.rules().len(), 1);
    running.end().await;
}

/// Folder and socket are closed to other users before this check, so the test opens them.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_else_is_told_that_the_run_is_not_theirs() {
    if !geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root can become somebody else"
        );
        return eprintln!("NOT RUN: only root can become somebody else");
    }
    let running = Running::new("other", &[]).await;
    let folder = running.state.join("doors");
    for (path, mode) in [
        (&running.state, 0o755),
        (&folder, 0o755),
        (&folder.join("r.control"), 0o666),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let asked = |user: u32| {
        let script = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('r.control')\n\
                      s.sendall(b'{\"op\":\"grant\",\"host\":\"a.com\",\"seconds\":9}\\n'); print(s.recv(65536).decode())";
        let mut command = std::process::Command::new("setpriv");
        command.args([format!("--reuid={user}"), "--clear-groups".to_owned()]);
        let command = command
            .args(["/usr/bin/python3", "-c", script])
            .current_dir(&folder)
            .output()
            .unwrap();
        String::from_utf8([command.stdout, command.stderr].concat()).unwrap()
    };
    let refused = tokio::task::block_in_place(|| asked(65534));
    assert!(
        refused.contains("policy_denied") && refused.contains("whoever started it"),
        "{refused}"
    );
    assert_eq!(running.door.rules().len(), 1);
    let answer = tokio::task::block_in_place(|| asked(0));
    assert!(answer.starts_with("{\"ok\":true"), "the control: {answer}");
    assert_eq!(running.door.rules().len(), 2);
    running.end().await;
}
