//! SIGKILL of the server at any moment under load, and a start on the same state: nothing is left behind, every run
//! that a client knows of has exactly one end and was carried out at most once, promises and keys hold.
//!
//! `AIRLOCK_KILLS` says how often (12 unless said), `AIRLOCK_SEED` repeats delays and orders. The runs write a line each
//! into a folder that the operator shares: what was carried out is seen there, whatever the server says of it.

use gateway_tests::{Folder, Server};
use robustness::{eventually, host, orphans, random::SeededRandom};
use rustix::process::Signal;
use serde_json::{Value, json};
use soak::{attempt, upload};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

/// Clients at once; each asks for one thing after the other until the server is dead.
const CLIENTS: u64 = 6;
/// The longest time between a start and the kill.
const LONGEST: Duration = Duration::from_millis(700);
const ENDS: [&str; 7] = [
    "succeeded",
    "failed",
    "timed_out",
    "oom_killed",
    "cancelled",
    "not_started",
    "lost",
];

/// A run that a client asked for, and what it was told.
#[derive(Clone, Debug)]
struct RequestedRun {
    id: String,
    body: Value,
    promise: Option<String>,
    /// Whether the server said that it took it.
    accepted: bool,
    /// How it ended, if that was told.
    ended: Option<String>,
}

/// What clients were told of everything, by one life of the server.
#[derive(Debug, Default)]
struct Acknowledged {
    runs: Vec<RequestedRun>,
    sandboxes: Vec<String>,
    artifacts: Vec<(String, usize)>,
}

struct Storm {
    configuration: String,
    marks: PathBuf,
    /// Of somebody who may run things, and of somebody who may not any more.
    key: String,
    revoked: String,
    admin: String,
    chance: SeededRandom,
    counted: BTreeMap<String, u64>,
}

fn kills() -> u64 {
    std::env::var("AIRLOCK_KILLS")
        .map_or(12, |text| text.parse().expect("AIRLOCK_KILLS is a number"))
}

#[test]
fn a_server_killed_at_any_moment_leaves_nothing_and_loses_no_word_that_it_gave() {
    let _turn = orphans::take_turn();
    let (folder, marks) = (Folder::new(), Folder::new());
    fs::set_permissions(&marks.0, fs::Permissions::from_mode(0o777)).expect("anybody writes there");
    let configuration = format!("[serve]\nfolders = [\"{}\"]\n", marks.0.display());
    let server = Server::on(folder, &configuration, &["--pool", "2"], None);
    // Its runs have names that it chooses, so that it knows them whatever it was told.
    let key = server.key(&["admin"]);
    let revoked = revoked_key(&server);
    let admin = server.admin.clone();
    let (marks, chance) = (marks.0.clone(), SeededRandom::seeded());
    let mut storm = Storm {
        configuration,
        marks,
        key,
        revoked,
        admin,
        chance,
        counted: BTreeMap::new(),
    };
    let folder = (0..kills()).fold(server, |server, number| storm.round(server, number));
    storm.finish(folder);
    println!("{:?}", storm.counted);
    assert!(
        storm.counted.contains_key("lost"),
        "no run was ever cut off: {:?}",
        storm.counted
    );
    assert!(
        storm.counted.contains_key("succeeded"),
        "no run ever ended: {:?}",
        storm.counted
    );
}

#[test]
fn a_sandbox_that_died_with_its_server_is_lost_and_its_key_makes_no_second_one() {
    let _turn = orphans::take_turn();
    let mut server = Server::on(Folder::new(), "", &[], None);
    let (key, admin) = (server.key(&["sandboxes"]), server.admin.clone());
    let promise = [("Idempotency-Key", "one")];
    let body = json!({ "labels": { "which": "first" } });
    let made = server.ask(&key, "POST", "/v1/sandboxes", &promise, &body);
    assert_eq!(
        (made.status, &made.json()["status"]),
        (201, &json!("ready")),
        "{}",
        made.text()
    );
    let id = made.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let asked = server.ask(&key, "POST", "/v1/sandboxes", &[], &json!({}));
    let ended = asked.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(
        server
            .ask(
                &key,
                "DELETE",
                &format!("/v1/sandboxes/{ended}"),
                &[],
                &Value::Null
            )
            .status,
        200
    );
    server.end(Signal::KILL);
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    drop(server);
    let server = Server::on(folder, "", &[], Some(admin));
    let path = format!("/v1/sandboxes/{id}");
    let shown = server.ask(&key, "GET", &path, &[], &Value::Null).json();
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("ended"), &json!("lost")),
        "{shown}"
    );
    assert_eq!(
        (&shown["labels"], shown["created_at"].is_string()),
        (&body["labels"], true)
    );
    let other = server
        .ask(
            &key,
            "GET",
            &format!("/v1/sandboxes/{ended}"),
            &[],
            &Value::Null,
        )
        .json();
    assert_eq!(
        other["reason"], "asked",
        "one that had ended keeps its reason: {other}"
    );
    let refused = server.ask(
        &key,
        "POST",
        &format!("{path}/exec"),
        &[],
        &json!({ "command": ["true"] }),
    );
    assert_eq!(refused.status, 410, "{}", refused.text());
    let again = server.ask(&key, "POST", "/v1/sandboxes", &promise, &body);
    assert_eq!(
        (again.status, &again.json()["sandbox_id"]),
        (201, &json!(id)),
        "{}",
        again.text()
    );
    assert_eq!(
        server
            .ask(&key, "POST", "/v1/sandboxes", &promise, &json!({}))
            .status,
        422
    );
    let listed = server
        .ask(&key, "GET", "/v1/sandboxes", &[], &Value::Null)
        .json();
    assert_eq!(
        listed["sandboxes"].as_array().map(Vec::len),
        Some(2),
        "{listed}"
    );
    let stranger = server.key(&["sandboxes"]);
    assert_eq!(
        server
            .ask(&stranger, "GET", &path, &[], &Value::Null)
            .status,
        404
    );
}

/// A key that was taken back.
fn revoked_key(server: &Server) -> String {
    let made = server
        .post("/v1/keys", &json!({ "name": "gone", "scopes": ["runs"] }))
        .json();
    let (id, token) = (
        made["id"].as_str().expect("an id"),
        made["token"].as_str().expect("a token"),
    );
    assert_eq!(server.delete(&format!("/v1/keys/{id}")).status, 204);
    token.to_owned()
}

impl Storm {
    /// Load, a kill, a start, and a look at everything.
    fn round(&mut self, mut server: Server, number: u64) -> Server {
        let told = Mutex::new(Acknowledged::default());
        let delay = Duration::from_nanos(self.chance.below(LONGEST.as_nanos() as u64));
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.chance.number()).collect();
        std::thread::scope(|scope| {
            for (client, seed) in seeds.iter().enumerate() {
                let work = Work {
                    server: &server,
                    key: &self.key,
                    marks: &self.marks,
                    told: &told,
                };
                scope.spawn(move || work.until_dead(&format!("kill-{number}-{client}"), *seed));
            }
            // The moment is the point.
            std::thread::sleep(delay);
            let process = host::hold(server.pid as i32).expect("the server lives");
            assert!(host::kill(&process), "it is killed");
        });
        server.end(Signal::KILL);
        let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
        drop(server);
        eventually("every process of the dead server ends", || {
            orphans::reap();
            orphans::below_us().is_empty().then_some(())
        });
        let state = folder.at("state");
        if self.chance.below(2) == 0 {
            self.sweep(&state);
        }
        let server = Server::on(
            folder,
            &self.configuration,
            &["--pool", "2"],
            Some(self.admin.clone()),
        );
        self.check(&server, told.into_inner().expect("no client panicked"));
        server
    }

    /// As an operator does by hand: it may come before the next start.
    fn sweep(&self, state: &Path) {
        let mut command = std::process::Command::new(cli::airlock());
        let done = command
            .args(["sweep", "--json", "--state"])
            .arg(state)
            .output()
            .expect("airlock starts");
        let told: Value = serde_json::from_slice(&done.stdout).expect("it tells JSON");
        assert_eq!(told["problems"], json!([]), "{told}");
    }

    fn check(&mut self, server: &Server, told: Acknowledged) {
        assert_eq!(self.status_of_key(server, &self.key), 200, "a key works on");
        assert_eq!(
            self.status_of_key(server, &self.revoked),
            401,
            "a revoked key stays so"
        );
        told.runs
            .iter()
            .for_each(|asked| self.check_run(server, asked));
        for id in &told.sandboxes {
            let answer = server.get(&format!("/v1/sandboxes/{id}"));
            let told = (
                answer.status,
                answer.json()["status"].clone(),
                answer.json()["reason"].clone(),
            );
            assert_eq!(
                told,
                (200, json!("ended"), json!("lost")),
                "{id} died with its server: {}",
                answer.text()
            );
            self.count("sandbox lost");
        }
        for (name, length) in &told.artifacts {
            let path = format!("/v1/artifacts/{name}");
            let answer = server.ask(&self.key, "GET", &path, &[], &Value::Null);
            assert_eq!(
                (answer.status, answer.body.len()),
                (200, *length),
                "{name} was kept: {}",
                answer.text()
            );
            self.count("artifact kept");
        }
        self.check_list(server);
        let gone: Vec<_> = told
            .runs
            .iter()
            .map(|asked| &asked.id)
            .chain(&told.sandboxes)
            .collect();
        let cgroups = host::cgroups_naming(&host::owner(&server.folder.at("state")));
        let records = host::listing(&server.folder.at("state/runs"));
        for id in gone {
            let names = |path: &PathBuf| path.to_string_lossy().contains(id.as_str());
            assert!(!cgroups.iter().any(names), "a cgroup of {id}: {cgroups:?}");
            assert!(!records.iter().any(names), "a record of {id}: {records:?}");
        }
    }

    fn status_of_key(&self, server: &Server, key: &str) -> u16 {
        server
            .ask(key, "GET", "/v1/runs?limit=1", &[], &Value::Null)
            .status
    }

    /// One end, the one that was told; carried out once at most; and asked for again it is the same.
    fn check_run(&mut self, server: &Server, asked: &RequestedRun) {
        let found = server.get(&format!("/v1/runs/{}", asked.id));
        if found.status == 404 {
            assert!(!asked.accepted, "an accepted run is missing: {asked:?}");
            self.count("never arrived");
        } else {
            let status = found.json()["status"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            assert!(
                ENDS.contains(&&*status),
                "{asked:?} has no end: {}",
                found.text()
            );
            if let Some(ended) = &asked.ended {
                assert_eq!(&status, ended, "{asked:?} ended twice: {}", found.text());
            }
            self.count(&status);
            self.check_mark(asked, &status);
        }
        if let Some(promise) = &asked.promise {
            let headers = [("idempotency-key", promise.as_str())];
            let again = server.ask(&self.key, "POST", "/v1/runs", &headers, &asked.body);
            assert_eq!(
                again.json()["run_id"],
                asked.id.as_str(),
                "{asked:?}: {}",
                again.text()
            );
            if found.status == 200 {
                assert_eq!(
                    again.json()["status"],
                    found.json()["status"],
                    "{asked:?} was run again"
                );
            }
            self.check_mark(asked, again.json()["status"].as_str().unwrap_or_default());
            let mut other = asked.body.clone();
            other["env"] = json!({ "OTHER": "1" });
            let refused = server.ask(&self.key, "POST", "/v1/runs", &headers, &other);
            assert_eq!(
                refused.status,
                422,
                "a promise is for one request: {}",
                refused.text()
            );
            self.count("promise kept");
        }
    }

    /// What the program itself wrote.
    fn check_mark(&self, asked: &RequestedRun, status: &str) {
        let lines = fs::read_to_string(self.marks.join(&asked.id))
            .unwrap_or_default()
            .lines()
            .count();
        let most = usize::from(status != "not_started");
        let least = usize::from(status == "succeeded");
        assert!(
            (least..=most).contains(&lines),
            "{asked:?} is {status}, carried out {lines} times"
        );
    }

    /// Nobody is listed twice, and nobody is under way.
    fn check_list(&self, server: &Server) {
        let (mut seen, mut before) = (BTreeSet::new(), String::new());
        loop {
            let page = server.get(&format!("/v1/runs?limit=200{before}")).json();
            for run in page["runs"].as_array().expect("a list of runs") {
                assert!(
                    seen.insert(run["run_id"].as_str().expect("an id").to_owned()),
                    "twice: {run}"
                );
                assert!(
                    ENDS.contains(&run["status"].as_str().unwrap_or_default()),
                    "{run}"
                );
            }
            match page["before"].as_str() {
                Some(cursor) => before = format!("&before={cursor}"),
                None => return,
            }
        }
    }

    fn count(&mut self, what: &str) {
        *self.counted.entry(what.to_owned()).or_default() += 1;
    }

    /// The last server ends in order; then there is nothing of any of them.
    fn finish(&self, mut server: Server) {
        let (status, said) = server.end(Signal::TERM);
        assert!(status.success(), "{said}");
        eventually("every process ends", || {
            orphans::reap();
            orphans::below_us().is_empty().then_some(())
        });
        let state = server.folder.at("state");
        assert_eq!(
            host::cgroups_naming(&host::owner(&state)),
            Vec::<PathBuf>::new()
        );
        assert_eq!(host::mounts_naming(&server.folder.0), Vec::<String>::new());
        assert_eq!(host::mounts_naming(&self.marks), Vec::<String>::new());
        // Artifacts are kept, whole; of all else only what a server always has.
        let is_kept =
            |path: &PathBuf| path.components().nth(2).is_some() && path.starts_with("artifacts");
        let is_draft = |path: &PathBuf| path.starts_with("artifacts/.drafts");
        let left = host::listing(&state)
            .into_iter()
            .filter(|path| is_draft(path) || !is_kept(path));
        let left: BTreeSet<_> = left
            .filter(|path| !path.to_string_lossy().starts_with("artifacts/@"))
            .collect();
        // One for each day on which a server was there.
        let (days, mut left): (BTreeSet<_>, BTreeSet<_>) = left
            .into_iter()
            .partition(|path| path.to_string_lossy().starts_with("ledger/owner-"));
        assert!(matches!(days.len(), 1 | 2), "{days:?}");
        let always = [
            "airlock.db",
            "artifacts",
            "artifacts/.drafts",
            "audit",
            "audit/server.jsonl",
            "audit/server.lock",
            "ledger",
            "ledger/owner.jsonl",
            "reserve",
            "runs",
            "serve.lock",
            "upkeep.lock",
        ];
        // Made with the first workspace, and empty.
        left.remove(Path::new("held"));
        assert_eq!(left, always.map(PathBuf::from).into());
    }
}

/// One client.
#[derive(Clone, Copy)]
struct Work<'a> {
    server: &'a Server,
    key: &'a str,
    marks: &'a Path,
    told: &'a Mutex<Acknowledged>,
}

impl Work<'_> {
    fn until_dead(self, name: &str, seed: u64) {
        let mut chance = SeededRandom::of(seed);
        for number in 0.. {
            let name = format!("{name}-{number}");
            let alive = match chance.below(8) {
                0..3 => self.run(&name, &mut chance, false),
                3..6 => self.run(&name, &mut chance, true),
                6 => self.sandbox(&name),
                _ => self.artifact(&name, &mut chance),
            };
            if alive.is_none() {
                return;
            }
        }
    }

    fn ask(
        self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Option<gateway_tests::Answer> {
        attempt(self.server, self.key, method, path, headers, body)
    }

    /// Waited for, or left alone and perhaps cancelled; some with a promise.
    fn run(self, id: &str, chance: &mut SeededRandom, is_async: bool) -> Option<()> {
        let promise = (chance.below(2) == 0).then(|| format!("promise of {id}"));
        let script = format!(
            "echo $AIRLOCK_RUN_ID >> /marks/$AIRLOCK_RUN_ID; sleep 0.0{}",
            chance.below(10)
        );
        let body = json!({ "run_id": id, "task_id": id, "command": ["sh", "-c", script],
            "mounts": [format!("{}:/marks:rw", self.marks.display())] });
        let asked = RequestedRun {
            id: id.to_owned(),
            body,
            promise,
            accepted: false,
            ended: None,
        };
        let place = {
            let mut told = self.told.lock().expect("nobody panicked");
            told.runs.push(asked.clone());
            told.runs.len() - 1
        };
        let mut headers: Vec<_> = asked
            .promise
            .iter()
            .map(|promise| ("idempotency-key", promise.as_str()))
            .collect();
        if is_async {
            headers.push(("prefer", "respond-async"));
        }
        let answer = self.ask("POST", "/v1/runs", &headers, &asked.body)?;
        assert_eq!(
            answer.status,
            if is_async { 202 } else { 200 },
            "{asked:?}: {}",
            answer.text()
        );
        self.note(place, &answer.json());
        if is_async && chance.below(2) == 0 {
            let answer = self.ask("DELETE", &format!("/v1/runs/{id}"), &[], &Value::Null)?;
            self.note(place, &answer.json());
        }
        Some(())
    }

    fn note(self, place: usize, told: &Value) {
        let status = told["status"].as_str().unwrap_or_default();
        let run = &mut self.told.lock().expect("nobody panicked").runs[place];
        run.accepted = true;
        if ENDS.contains(&status) {
            run.ended = Some(status.to_owned());
        }
    }

    /// With programs and a file that comes in; it is left to the kill.
    fn sandbox(self, name: &str) -> Option<()> {
        let made = self.ask(
            "POST",
            "/v1/sandboxes",
            &[],
            &json!({ "labels": { "name": name } }),
        )?;
        assert_eq!(made.status, 201, "{}", made.text());
        let id = made.json()["sandbox_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        self.told
            .lock()
            .expect("nobody panicked")
            .sandboxes
            .push(id.clone());
        let order = json!({ "command": ["sh", "-c", "(setsid sleep 1000 &); sleep 1000"], "background": true });
        self.ask("POST", &format!("/v1/sandboxes/{id}/exec"), &[], &order)?;
        upload(
            self.server,
            self.key,
            &format!("/v1/sandboxes/{id}/files/large"),
            &vec![b'x'; 4 << 20],
        )?;
        self.ask(
            "POST",
            &format!("/v1/sandboxes/{id}/exec"),
            &[],
            &json!({ "command": ["true"] }),
        )?;
        Some(())
    }

    fn artifact(self, name: &str, chance: &mut SeededRandom) -> Option<()> {
        let bytes = vec![b'x'; 1 + chance.below(1 << 20) as usize];
        let answer = upload(
            self.server,
            self.key,
            &format!("/v1/artifacts/{name}"),
            &bytes,
        )?;
        assert_eq!(answer.status, 201, "{}", answer.text());
        self.told
            .lock()
            .expect("nobody panicked")
            .artifacts
            .push((name.to_owned(), bytes.len()));
        Some(())
    }
}
