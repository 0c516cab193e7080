//! Pool items serve one run each, are as contained as sandboxes that are created on demand, and are
//! released.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use engine::{Engine, PoolSettings, Settings};
use spec::{Policy, RunEvent, RunRequest, RunResult, RunSpec, Size, Status};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The folder of one test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let place =
            std::env::temp_dir().join(format!("airlock-pool-{name}-{}", std::process::id()));
        fs::create_dir_all(place.join("workspace")).unwrap();
        Place(place)
    }

    fn engine(&self, pool: PoolSettings) -> Engine {
        Engine::open(Settings {
            pool,
            ..Settings::new(self.state())
        })
        .unwrap()
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// The names of all records: of runs and of pool items.
    fn records(&self) -> Vec<String> {
        let names = fs::read_dir(self.state().join("runs")).unwrap();
        names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// The number of cgroups with one of these names.
    fn cgroups(&self, records: &[String]) -> usize {
        let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
        let mut found = 0;
        while let Some(folder) = folders.pop() {
            let inner = fs::read_dir(folder).into_iter().flatten().flatten();
            for path in inner
                .map(|entry| entry.path())
                .filter(|path| path.is_dir() && !path.is_symlink())
            {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                found += usize::from(records.iter().any(|record| name.ends_with(record)));
                folders.push(path);
            }
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const PARKED: PoolSettings = PoolSettings {
    warm_sandboxes: 2,
    prepared_namespaces: 2,
    ..PoolSettings::OFF
};

fn script(text: &str) -> RunSpec {
    admit(RunRequest {
        command: ["sh", "-c", text].map(Into::into).into(),
        ..RunRequest::default()
    })
}

fn in_workspace(text: &str, workspace: &Path) -> RunSpec {
    let command = ["sh", "-c", text].map(Into::into).into();
    admit(RunRequest {
        command,
        workspace: Some(workspace.to_owned()),
        ..RunRequest::default()
    })
}

fn admit(request: RunRequest) -> RunSpec {
    Policy::default().admit(request).unwrap()
}

fn text(result: &RunResult) -> String {
    assert_eq!(result.status, Status::Succeeded, "{result:?}");
    String::from_utf8(result.stdout.clone()).unwrap()
}

/// What a program can observe of its sandbox, without what differs from run to run.
const PORTRAIT: &str = "
    grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Sig(Blk|Ign)|Cpus_allowed)' /proc/self/status
    cat /proc/self/limits /proc/self/cgroup; umask; pwd; id
    ls -l /proc/self/fd | grep -c pipe; ls /proc/self/fd | wc -l
    env | sed 's/^\\(.*RUN_ID\\)=.*/\\1/' | sort
    cut -d' ' -f4- /proc/self/mountinfo | sed 's/ - / /' | sort
    cat /proc/net/dev | wc -l; cat /proc/sys/user/max_user_namespaces; hostname
    for path in /usr/x /etc/x /x /proc/sys/kernel/x /dev/x; do touch $path 2>&1; done
    for path in /tmp/x /workspace/x /dev/shm/x; do touch $path && echo $path; done
    unshare --user true 2>&1; kill -0 1 2>&1; cat /proc/1/environ 2>&1; ls -a /workspace /tmp";

#[tokio::test]
async fn a_parked_sandbox_is_as_tight_as_one_made_when_it_is_needed() {
    let place = Place::new("portrait");
    let (cold, warm) = (place.engine(PoolSettings::OFF), place.engine(PARKED));
    let spec = script(PORTRAIT);
    let expected = cold.run(spec.clone()).await;
    warm.warm(&spec).await;
    let found = warm.run(spec).await;
    assert!(
        text(&expected).contains("/workspace/x\n"),
        "{}",
        text(&expected)
    );
    assert_eq!(text(&found), text(&expected));
    let told = |result: &RunResult| {
        (
            result.barriers.clone(),
            result.enforced_by.clone(),
            result.notes.clone(),
        )
    };
    assert_eq!(told(&found), told(&expected));
    warm.close().await;
}

#[tokio::test]
async fn each_parked_sandbox_serves_one_run() {
    let place = Place::new("once");
    let engine = place.engine(PARKED);
    let spec =
        script("ls /tmp /workspace; touch /tmp/mark /workspace/mark; readlink /proc/self/ns/*");
    engine.warm(&spec).await;
    // The first two existed at the same time, so that no namespace id could be reused.
    let mut seen = Vec::new();
    for number in 0..6 {
        let told = text(&engine.run(spec.clone()).await);
        assert!(!told.contains("mark"), "{told}");
        let namespaces = told.lines().filter(|line| line.contains(":["));
        seen.extend(namespaces.filter(|_| number < 2).map(str::to_owned));
    }
    seen.sort();
    let all = seen.len();
    seen.dedup();
    // The time namespace is the host's; the pid namespace is listed twice.
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let twice = |kind: &&str| {
        seen.iter()
            .filter(|line| line.starts_with(&format!("{kind}:")))
            .count()
            == 2
    };
    assert!(kinds.iter().all(twice) && all == 20, "{seen:?}");
    engine.close().await;
}

#[tokio::test]
async fn runs_beyond_what_is_parked_take_the_cold_path() {
    let place = Place::new("beyond");
    let engine = place.engine(PARKED);
    engine.warm(&script("true")).await;
    let runs: Vec<_> = (0..10)
        .map(|number| engine.start(script(&format!("echo {number}"))))
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        assert_eq!(text(&run.finish().await), format!("{number}\n"));
    }
    engine.close().await;
}

#[tokio::test]
async fn what_is_parked_stays_within_its_bounds_and_leaves_with_the_engine() {
    let place = Place::new("bounds");
    let most = PoolSettings {
        warm_sandboxes: 8,
        prepared_namespaces: 8,
        memory: Size(3 * PoolSettings::WARM_SANDBOX_BYTES.0),
    };
    let engine = place.engine(most);
    engine.warm(&script("true")).await;
    let records = place.records();
    assert_eq!(records.len(), 3);
    let held = place.cgroups(&records);
    engine.close().await;
    assert_eq!((place.records(), place.cgroups(&records)), (vec![], 0));
    // As root there were some to remove.
    assert_eq!(held > 0, rustix::process::geteuid().is_root());
}

#[tokio::test]
async fn runs_that_are_each_a_kind_of_their_own_drive_nothing_out() {
    let place = Place::new("doors");
    let engine = place.engine(PoolSettings {
        warm_sandboxes: 1,
        prepared_namespaces: 1,
        ..PoolSettings::OFF
    });
    engine.warm(&script("true")).await;
    let parked = place.records();
    let mut policy = Policy::default();
    let profile = policy.profiles.get_mut("restrictive").unwrap();
    let mode = spec::EgressMode::Inspect {
        allow: Vec::new(),
        credential: None,
        allow_upgrade: false,
    };
    let rule = spec::EgressRule::from_option("a.example:443").unwrap();
    profile.network = spec::Network::Doors;
    profile.egress = Some(vec![spec::EgressRule { mode, ..rule }]);
    for _ in 0..6 {
        let command = vec![
            "test".into(),
            "-r".into(),
            "/airlock/certificates.pem".into(),
        ];
        let run = engine.start(
            policy
                .admit(RunRequest {
                    command,
                    ..RunRequest::default()
                })
                .unwrap(),
        );
        assert_eq!(run.finish().await.status, Status::Succeeded);
    }
    // Waits for the filler, so that every item that would be evicted exists.
    engine.warm(&script("true")).await;
    let left = place.records();
    assert!(
        parked.len() == 1 && left.contains(&parked[0]),
        "{parked:?} {left:?}"
    );
    engine.close().await;
}

#[tokio::test]
async fn kinds_that_nobody_asks_for_make_room() {
    let place = Place::new("kinds");
    let engine = place.engine(PoolSettings {
        warm_sandboxes: 1,
        prepared_namespaces: 1,
        ..PoolSettings::OFF
    });
    let kind = |open_files: u32| {
        let limits = spec::LimitSet {
            open_files: Some(open_files),
            ..Default::default()
        };
        admit(RunRequest {
            command: vec!["true".into()],
            limits,
            ..RunRequest::default()
        })
    };
    for number in 0..7 {
        engine.warm(&kind(50 + number)).await;
    }
    let until = Instant::now() + Duration::from_secs(5);
    while place.records().len() > 4 && Instant::now() < until {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.records().len(), 4);
    engine.close().await;
    assert_eq!(place.records(), Vec::<String>::new());
}

#[tokio::test]
async fn an_engine_that_dies_leaves_what_the_next_one_sweeps() {
    let place = Place::new("dies");
    let engine = place.engine(PARKED);
    engine.warm(&script("true")).await;
    engine
        .warm(&in_workspace("true", &place.0.join("workspace")))
        .await;
    let records = place.records();
    assert_eq!(records.len(), 4);
    drop(engine);
    let next = place.engine(PoolSettings::OFF);
    assert_eq!(next.swept_at_opening().problems, Vec::<String>::new());
    // Another test of this process may be forking, and the child holds our locks until it execs.
    let until = Instant::now() + Duration::from_secs(5);
    while !place.records().is_empty() && Instant::now() < until {
        assert_eq!(next.sweep().problems, Vec::<String>::new());
    }
    assert_eq!((place.records(), place.cgroups(&records)), (vec![], 0));
}

#[tokio::test]
async fn a_run_with_a_workspace_has_its_cgroups_ready_and_its_workspace_mounted() {
    let place = Place::new("berth");
    let engine = place.engine(PARKED);
    let workspace = place.0.join("workspace");
    let spec = in_workspace("echo seen > mark; cat mark", &workspace);
    engine.warm(&spec).await;
    assert_eq!(place.records().len(), 2);
    assert_eq!(text(&engine.run(spec).await), "seen\n");
    assert_eq!(
        fs::read_to_string(workspace.join("mark")).unwrap(),
        "seen\n"
    );
    engine.close().await;
}

#[tokio::test]
async fn a_program_that_cannot_start_in_a_parked_sandbox_did_not_start() {
    let place = Place::new("missing");
    let engine = place.engine(PARKED);
    let spec = admit(RunRequest {
        command: vec!["/no/such".into()],
        ..RunRequest::default()
    });
    engine.warm(&spec).await;
    let result = engine.run(spec).await;
    assert_eq!(
        (result.status, result.exit_status),
        (Status::NotStarted, 127)
    );
    engine.close().await;
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_before_its_result() {
    let place = Place::new("left");
    let engine = place.engine(PARKED);
    let spec =
        script("(while :; do echo x >> /workspace/.artifacts/log; done) & sleep 0.1; echo done");
    engine.warm(&spec).await;
    let result = engine.run(spec).await;
    assert_eq!(text(&result), "done\n");
    assert_eq!(result.artifacts.len(), 1, "{result:?}");
    engine.close().await;
}

#[tokio::test]
async fn limits_hold_in_a_parked_sandbox() {
    let place = Place::new("limits");
    let engine = place.engine(PARKED);
    let within = |time: &str| {
        let limits = spec::LimitSet {
            wall_time: time.parse().ok(),
            ..Default::default()
        };
        let command = ["sh", "-c", "echo on; exec sleep 60"]
            .map(Into::into)
            .into();
        admit(RunRequest {
            command,
            limits,
            ..RunRequest::default()
        })
    };
    engine.warm(&within("2s")).await;
    let result = engine.run(within("2s")).await;
    assert_eq!(
        (result.status, result.stdout),
        (Status::TimedOut, b"on\n".to_vec())
    );
    let mut run = engine.start(within("60s"));
    while !matches!(run.next_event().await, Some(RunEvent::Output { .. }) | None) {}
    run.cancel();
    assert_eq!(run.finish().await.status, Status::Cancelled);
    engine.close().await;
}

#[tokio::test]
async fn of_two_runs_with_one_id_the_second_is_refused_although_both_could_have_a_sandbox() {
    let place = Place::new("ids");
    let engine = place.engine(PARKED);
    let named = |text: &str, stdin| {
        let command = ["sh", "-c", text].map(Into::into).into();
        admit(RunRequest {
            command,
            run_id: Some("one".into()),
            stdin,
            ..RunRequest::default()
        })
    };
    engine.warm(&script("true")).await;
    let mut first = engine.start(named("echo on; cat", true));
    while !matches!(
        first.next_event().await,
        Some(RunEvent::Output { .. }) | None
    ) {}
    let second = engine.run(named("true", false)).await;
    assert_eq!(second.status, Status::NotStarted, "{second:?}");
    assert_eq!(text(&first.finish().await), "on\n");
    engine.close().await;
}

#[tokio::test]
async fn with_its_result_a_workspace_is_the_callers_again() {
    let place = Place::new("given-back");
    let engine = place.engine(PARKED);
    let workspace = place.0.join("workspace");
    let listed = || {
        fs::read_dir(&workspace)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
    };
    // Once with a pooled cgroup, once beyond the pool, once with a file left behind inside.
    for script in ["ls -a; touch made", "ls -a", "ls -a", "ls -a; sleep 60 & :"] {
        let result = engine.run(in_workspace(script, &workspace)).await;
        assert!(
            !text(&result).contains(".git\n"),
            "nothing of ours is there while it runs: {result:?}"
        );
        assert_eq!(listed().collect::<Vec<_>>(), ["made"]);
    }
    // Notes on the workspace are in the result, too.
    fs::write(workspace.join(".envrc"), "").unwrap();
    let waiting = RunRequest {
        command: ["sh", "-c", "echo on; cat"].map(Into::into).into(),
        workspace: Some(workspace.clone()),
        stdin: true,
        ..RunRequest::default()
    };
    let mut run = engine.start(admit(waiting));
    while !matches!(run.next_event().await, Some(RunEvent::Output { .. }) | None) {}
    fs::write(workspace.join(".envrc"), "changed").unwrap();
    let notes = run.finish().await.notes;
    assert_eq!(
        notes,
        [
            "`.envrc` in the workspace was changed meanwhile, by you or through a second name: look at it before you use it"
        ]
    );
    engine.close().await;
}

#[tokio::test]
async fn with_its_result_a_name_is_the_callers_again() {
    let place = Place::new("names");
    let engine = place.engine(PARKED);
    let command = vec!["true".into()];
    let named = admit(RunRequest {
        command,
        run_id: Some("one".into()),
        ..RunRequest::default()
    });
    // The first takes the cold path, the others get a sandbox with another name.
    for _ in 0..6 {
        let result = engine.run(named.clone()).await;
        assert_eq!(result.status, Status::Succeeded, "{result:?}");
    }
    engine.close().await;
    assert_eq!(place.records(), Vec::<String>::new());
}

#[tokio::test]
async fn whoever_stops_waiting_for_the_pool_does_not_stop_it() {
    let place = Place::new("impatient");
    let engine = place.engine(PARKED);
    let spec = script("true");
    let impatient = tokio::time::timeout(Duration::ZERO, engine.warm(&spec)).await;
    assert!(impatient.is_err(), "no sandbox is made as fast as this");
    let patient = tokio::time::timeout(Duration::from_secs(20), engine.warm(&spec)).await;
    assert_eq!((patient, place.records().len()), (Ok(()), 2));
    let other = engine.clone();
    engine.close().await;
    let late = tokio::time::timeout(Duration::from_secs(20), other.warm(&spec)).await;
    assert_eq!((late, place.records().len()), (Ok(()), 0));
}
