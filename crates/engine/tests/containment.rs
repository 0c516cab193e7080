//! What a program can and cannot do to the host through its mounts, inputs and doors.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use engine::{Engine, Settings};
use spec::{Policy, RunEvent, RunRequest, RunResult, Status};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The folder of one test: its state and a workspace.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let place = std::env::temp_dir().join(format!("airlock-{name}-{}", std::process::id()));
        fs::create_dir_all(place.join("workspace")).unwrap();
        Place(place)
    }

    fn workspace(&self) -> PathBuf {
        self.0.join("workspace")
    }

    fn engine(&self) -> Engine {
        Engine::open(Settings::new(self.0.join("state"))).unwrap()
    }

    async fn run(&self, script: &str) -> RunResult {
        let engine = self.engine();
        let command = ["sh", "-c", script].map(Into::into).into();
        let workspace = Some(self.workspace());
        let request = RunRequest {
            command,
            workspace,
            ..RunRequest::default()
        };
        engine.run(Policy::default().admit(request).unwrap()).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_program_cannot_lend_out_the_rights_of_the_owner_of_its_workspace() {
    let place = Place::new("set-id");
    let result = place
        .run("touch a b; chmod 700 a; chmod 4755 b || chmod g+s b")
        .await;
    assert_eq!(
        (result.exit_code, mode(&place.workspace().join("a"))),
        (Some(1), 0o700)
    );
    assert_eq!(mode(&place.workspace().join("b")) & 0o6000, 0);
}

#[tokio::test]
async fn a_program_has_a_quota_of_what_is_charged_to_whoever_started_it() {
    let place = Place::new("quotas");
    let result = place
        .run("cd /proc/sys/user && cat max_user_namespaces max_inotify_instances")
        .await;
    assert_eq!(result.stdout, b"0\n32\n");
}

#[tokio::test]
async fn a_repository_that_a_program_makes_of_its_workspace_loses_its_head() {
    let place = Place::new("bare");
    let result = place
        .run("mkdir objects refs && echo ref: refs/heads/main > HEAD")
        .await;
    assert_eq!(result.exit_code, Some(0));
    let held = result.workspace.map(|changes| changes.held_back.len());
    assert_eq!(held, Some(1), "{:?}", result.notes);
    assert!(place.workspace().join("refs").exists() && !place.workspace().join("HEAD").exists());
}

#[tokio::test]
async fn a_run_whose_output_nobody_takes_is_over_when_its_time_is() {
    let place = Place::new("untaken");
    let engine = place.engine();
    let wall_time = Some(spec::Time(Duration::from_secs(1)));
    let limits = spec::LimitSet {
        wall_time,
        ..spec::LimitSet::default()
    };
    let command = ["sh", "-c", "yes"].map(Into::into).into();
    let request = RunRequest {
        command,
        limits,
        ..RunRequest::default()
    };
    let mut run = engine.start(Policy::default().admit(request).unwrap());
    assert!(matches!(
        run.next_event().await,
        Some(RunEvent::Started { .. })
    ));
    let mut over = run.over();
    assert!(!*over.borrow(), "its program waits for whoever reads");
    let over = tokio::time::timeout(Duration::from_secs(20), over.wait_for(|over| *over)).await;
    assert!(*over.unwrap().unwrap());
    let mut bytes = 0;
    while let Some(event) = run.next_event().await {
        bytes += if let RunEvent::Output { data, .. } = event {
            data.len()
        } else {
            0
        };
    }
    assert!(
        (1..2 << 20).contains(&bytes),
        "what was left is little: {bytes}"
    );
    assert_eq!(run.finish().await.status, Status::TimedOut);
}
