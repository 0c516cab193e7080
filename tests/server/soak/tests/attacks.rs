//! SIGKILL of the server while one tenant attacks another, also on a full disk. After the next start the other tenant's
//! records are whole, an admin revokes, stops and cleans, and nothing of the attack is left.
//!
//! `AIRLOCK_ATTACKED_KILLS` says how often (4 unless said, 40 with `AIRLOCK_FULL=1`), `AIRLOCK_SEED` repeats delays. A
//! server is killed when every attack has had a turn and the neighbour was served meanwhile, and then at any moment.

use gateway_tests::{Answer, Folder, Server, small_disk::Small};
use robustness::{eventually, full, host, orphans, random::SeededRandom};
use rustix::process::Signal;
use serde_json::{Value, json};
use soak::{attempt, upload};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The longest time between the first turns of the attacks and the kill.
const LONGEST: Duration = Duration::from_millis(700);
const SCOPES: &[&str] = &["runs", "sandboxes", "artifacts"];
/// Idle connections that one turn keeps open.
const KEPT_CONNECTIONS: usize = 32;
const STOP_ALL: &str = "/v1/worker/admin/stop-all-orchestrator-directed";

/// One turn of an attack. It may be refused; `None` if the server is dead.
type Attack = fn(&Attacker<'_>) -> Option<()>;

const ATTACKS: [Attack; 6] = [
    uploads,
    large_output,
    many_members,
    file_locks,
    artifacts,
    connections,
];

fn kills() -> u64 {
    let usual = if full() { 40 } else { 4 };
    std::env::var("AIRLOCK_ATTACKED_KILLS").map_or(usual, |text| {
        text.parse().expect("AIRLOCK_ATTACKED_KILLS is a number")
    })
}

struct Attacker<'a> {
    server: &'a Server,
    key: &'a str,
    is_over: AtomicBool,
    turns: [AtomicU64; ATTACKS.len()],
}

impl Attacker<'_> {
    fn attack(&self, number: usize) {
        while !self.is_over.load(Ordering::Relaxed) && ATTACKS[number](self).is_some() {
            self.turns[number].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The control: each attack was carried out.
    fn had_all_turns(&self) -> bool {
        self.turns
            .iter()
            .all(|turns| turns.load(Ordering::Relaxed) > 0)
    }

    fn post(&self, path: &str, body: &Value) -> Option<Answer> {
        attempt(self.server, self.key, "POST", path, &[], body)
    }
}

/// Files that the server writes into the memory of a sandbox.
fn uploads(attacker: &Attacker<'_>) -> Option<()> {
    let order = json!({ "memory": "64M", "disk": "64M", "lifetime": "1m" });
    let made = attacker.post("/v1/sandboxes", &order)?;
    if let Some(id) = made.json()["sandbox_id"].as_str() {
        let sandbox = format!("/v1/sandboxes/{id}");
        let path = format!("{sandbox}/files/large");
        upload(attacker.server, attacker.key, &path, &vec![b'x'; 8 << 20])?;
        attempt(
            attacker.server,
            attacker.key,
            "DELETE",
            &sandbox,
            &[],
            &Value::Null,
        )?;
    }
    Some(())
}

fn large_output(attacker: &Attacker<'_>) -> Option<()> {
    let script = "head -c 1M /dev/zero; head -c 1M /dev/zero >&2";
    let order =
        json!({ "command": ["sh", "-c", script], "output": "4M", "memory": "64M", "disk": "64M" });
    attacker.post("/v1/runs", &order).map(drop)
}

fn many_members(attacker: &Attacker<'_>) -> Option<()> {
    let env: serde_json::Map<_, _> = (0..70_000)
        .map(|number| (format!("{number:07}"), json!("")))
        .collect();
    let order = json!({ "command": ["true"], "env": env });
    attacker.post("/v1/runs", &order).map(drop)
}

/// More than a sandbox may hold.
fn file_locks(attacker: &Attacker<'_>) -> Option<()> {
    let script = "import fcntl\nfile = open('f', 'w')\nfor place in range(200_000, 0, -1): \
                  fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)";
    let order = json!({ "command": ["python3", "-c", script], "timeout": "2s" });
    attacker.post("/v1/runs", &order).map(drop)
}

fn artifacts(attacker: &Attacker<'_>) -> Option<()> {
    let bytes = vec![b'x'; 256 << 10];
    upload(attacker.server, attacker.key, "/v1/artifacts/large", &bytes)?;
    let path = "/v1/artifacts/large";
    attempt(
        attacker.server,
        attacker.key,
        "GET",
        path,
        &[],
        &Value::Null,
    )?;
    let names: Vec<_> = (0..1000).map(|number| format!("a{number:06}")).collect();
    let order = json!({ "command": ["true"], "artifacts": names });
    attacker.post("/v1/runs", &order).map(drop)
}

fn connections(attacker: &Attacker<'_>) -> Option<()> {
    let half = b"GET /healthz HTTP/1.1\r\n";
    let open = |_| attacker.server.client.try_open(half).ok();
    let kept: Vec<_> = (0..KEPT_CONNECTIONS).filter_map(open).collect();
    (kept.len() == KEPT_CONNECTIONS).then_some(())
}

/// What the neighbour was told, so that it can be asked for again.
#[derive(Debug, Default)]
struct Records {
    /// By the Idempotency-Key: the body, and the result.
    runs: BTreeMap<String, (Value, Value)>,
    artifacts: BTreeMap<String, Vec<u8>>,
    sandboxes: Vec<String>,
}

struct Neighbour<'a> {
    server: &'a Server,
    key: &'a str,
    records: &'a Mutex<Records>,
    round: u64,
    served: AtomicU64,
}

impl<'a> Neighbour<'a> {
    fn new(server: &'a Server, key: &'a str, records: &'a Mutex<Records>, round: u64) -> Self {
        let served = AtomicU64::new(0);
        Neighbour {
            server,
            key,
            records,
            round,
            served,
        }
    }

    fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed) > 0
    }

    fn until_dead(&self) {
        for number in 0.. {
            if self.ask_for_all(number).is_none() {
                return;
            }
            self.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One thing after the other. As long as there is an answer, it is what was asked for.
    fn ask_for_all(&self, number: u64) -> Option<()> {
        let name = format!("round-{}-{number}", self.round);
        self.run(&name)?;
        self.artifact(&name)?;
        self.sandbox()
    }

    fn run(&self, name: &str) -> Option<()> {
        let body = json!({ "command": ["echo", name], "memory": "64M", "disk": "64M" });
        let headers = [("idempotency-key", name)];
        let answer = attempt(self.server, self.key, "POST", "/v1/runs", &headers, &body)?;
        let told = answer.json();
        assert_eq!(
            (answer.status, &told["stdout"]),
            (200, &json!(format!("{name}\n"))),
            "{told}"
        );
        written(self.records)
            .runs
            .insert(name.to_owned(), (body, told));
        Some(())
    }

    fn artifact(&self, name: &str) -> Option<()> {
        let bytes = name.repeat(1000).into_bytes();
        let answer = upload(
            self.server,
            self.key,
            &format!("/v1/artifacts/{name}"),
            &bytes,
        )?;
        assert_eq!(answer.status, 201, "{}", answer.text());
        written(self.records)
            .artifacts
            .insert(name.to_owned(), bytes);
        Some(())
    }

    /// It is left to the kill.
    fn sandbox(&self) -> Option<()> {
        let order = json!({ "memory": "16M", "disk": "16M" });
        let answer = attempt(self.server, self.key, "POST", "/v1/sandboxes", &[], &order)?;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let id = answer.json()["sandbox_id"].as_str()?.to_owned();
        written(self.records).sandboxes.push(id);
        Some(())
    }
}

impl Records {
    fn summary(&self) -> String {
        let counts = (self.runs.len(), self.artifacts.len(), self.sandboxes.len());
        format!("{counts:?} runs, artifacts and sandboxes of the neighbour's")
    }

    /// They are what the neighbour was told, after a kill and a start.
    #[track_caller]
    fn are_whole(&self, server: &Server, key: &str) {
        let get = |path: &str| server.ask(key, "GET", path, &[], &Value::Null);
        for (name, (body, told)) in &self.runs {
            let id = told["run_id"].as_str().expect("an id");
            let kept = get(&format!("/v1/runs/{id}")).json();
            assert_eq!(&kept, told, "the result of {name}");
            let headers = [("idempotency-key", name.as_str())];
            let again = server.ask(key, "POST", "/v1/runs", &headers, body);
            assert_eq!(&again.json(), told, "{name} was run again");
            let ends = audited(server, id);
            assert_eq!(
                ends.iter().filter(|what| *what == "run.end").count(),
                1,
                "{ends:?}"
            );
            assert!(ends.contains(&"run.accept".to_owned()), "{ends:?}");
        }
        for (name, bytes) in &self.artifacts {
            let kept = get(&format!("/v1/artifacts/{name}"));
            assert_eq!((kept.status, &kept.body), (200, bytes), "{name}");
        }
        for id in &self.sandboxes {
            let shown = get(&format!("/v1/sandboxes/{id}")).json();
            let state = (&shown["status"], &shown["reason"]);
            assert_eq!(state, (&json!("ended"), &json!("lost")), "{shown}");
        }
    }
}

/// What the audit says of a run.
fn audited(server: &Server, run: &str) -> Vec<String> {
    let told = server
        .get(&format!("/v1/audit?run={run}&limit=1000"))
        .json();
    let lines = told["lines"].as_array().expect("lines").iter();
    lines
        .map(|line| line["what"].as_str().expect("a name").to_owned())
        .collect()
}

/// A key, and its path.
fn new_key(server: &Server, name: &str) -> (String, String) {
    let order = json!({ "name": name, "scopes": SCOPES });
    let made = server.post("/v1/keys", &order);
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    let text = |field: &str| made[field].as_str().expect("a text").to_owned();
    (text("token"), format!("/v1/keys/{}", text("id")))
}

/// All attacks at once, beside the neighbour if it can be served, and SIGKILL. Whoever calls waits for the server.
fn attack_until_killed(
    server: &Server,
    key: &str,
    delay: Duration,
    neighbour: Option<&Neighbour<'_>>,
) {
    let attacker = Attacker {
        server,
        key,
        is_over: AtomicBool::new(false),
        turns: Default::default(),
    };
    std::thread::scope(|scope| {
        for number in 0..ATTACKS.len() {
            let attacker = &attacker;
            scope.spawn(move || attacker.attack(number));
        }
        let served = neighbour.map(|neighbour| scope.spawn(|| neighbour.until_dead()));
        eventually("a turn of each attack, and the neighbour is served", || {
            let has_failed = served.as_ref().is_some_and(|served| served.is_finished());
            let is_served = neighbour.is_none_or(Neighbour::is_served);
            (has_failed || is_served && attacker.had_all_turns()).then_some(())
        });
        // The moment is the point.
        std::thread::sleep(delay);
        let process = host::hold(server.pid as i32).expect("the server lives");
        assert!(host::kill(&process), "it is killed");
        attacker.is_over.store(true, Ordering::Relaxed);
    });
    assert!(attacker.had_all_turns(), "{:?}", attacker.turns);
}

fn everything_has_ended() {
    eventually("every process of the dead server ends", || {
        orphans::reap();
        orphans::below_us().is_empty().then_some(())
    });
}

/// As an operator does by hand, where `command` starts programs. There is nothing that it could not remove, and nothing
/// of a run or a sandbox is left.
fn sweep(command: impl Fn(&OsStr) -> Command, state: &Path, owner: &str) {
    let records = || {
        let mut find = command("find".as_ref());
        let listed = find.arg(state.join("runs")).args(["-mindepth", "1"]);
        let listed = listed.output().expect("it starts");
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8(listed.stdout).expect("names are text")
    };
    assert_ne!(records(), "", "the control: something was under way");
    let done = command(cli::airlock().as_ref())
        .args(["sweep", "--json", "--state"])
        .arg(state)
        .output()
        .expect("it starts");
    let swept: Value = serde_json::from_slice(&done.stdout).expect("it tells JSON");
    assert_eq!(swept["problems"], json!([]), "{swept}");
    assert_eq!(records(), "");
    assert_eq!(host::cgroups_naming(owner), Vec::<PathBuf>::new());
    assert_eq!(host::mounts_naming(state), Vec::<String>::new());
}

/// The admin revokes the attacker's key, stops what there is, and removes what the attacker kept.
#[track_caller]
fn admin_revokes_stops_and_cleans(server: &Server, (key, key_path): &(String, String)) {
    let path = "/v1/runs?limit=1";
    let status = || server.ask(key, "GET", path, &[], &Value::Null).status;
    assert_eq!(status(), 200, "the positive control");
    let revoked = server.delete(key_path);
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    assert_eq!(status(), 401);
    let stopped = server.post(STOP_ALL, &json!({ "version": 1 }));
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    assert_eq!(stopped.json()["left"], json!([]), "{}", stopped.text());
    let owner = key_path.rsplit('/').next().expect("a name");
    let removed = server.delete(&format!("/v1/artifacts/large?owner={owner}"));
    assert!(matches!(removed.status, 200 | 404), "{}", removed.text());
}

/// No run and no sandbox of anybody's is under way.
#[track_caller]
fn nothing_is_under_way(server: &Server) {
    let mut before = String::new();
    loop {
        let page = server.get(&format!("/v1/runs?limit=200{before}")).json();
        let runs = page["runs"].as_array().expect("a list of runs");
        assert!(runs.iter().all(|run| run["status"] != "running"), "{page}");
        match page["before"].as_str() {
            Some(cursor) => before = format!("&before={cursor}"),
            None => break,
        }
    }
    let told = server.get("/v1/sandboxes").json();
    let sandboxes = told["sandboxes"].as_array().expect("a list");
    assert!(
        sandboxes.iter().all(|one| one["status"] == "ended"),
        "{told}"
    );
}

#[test]
fn a_server_killed_while_a_tenant_attacks_keeps_the_records_of_the_other() {
    let _turn = orphans::take_turn();
    let mut chance = SeededRandom::seeded();
    let mut server = Server::on(Folder::new(), "", &["--pool", "2"], None);
    let admin = server.admin.clone();
    let (neighbour, _) = new_key(&server, "neighbour");
    let records = Mutex::new(Records::default());
    for round in 0..kills() {
        let attacker = new_key(&server, "attacker");
        let served = Neighbour::new(&server, &neighbour, &records, round);
        attack_until_killed(&server, &attacker.0, a_delay(&mut chance), Some(&served));
        server.end(Signal::KILL);
        let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
        everything_has_ended();
        let state = folder.at("state");
        sweep(
            |program| Command::new(program),
            &state,
            &host::owner(&state),
        );
        server = Server::on(folder, "", &["--pool", "2"], Some(admin.clone()));
        nothing_is_under_way(&server);
        written(&records).are_whole(&server, &neighbour);
        admin_revokes_stops_and_cleans(&server, &attacker);
    }
    println!("{}", written(&records).summary());
    let owner = host::owner(&server.folder.at("state"));
    ends_in_order(server, &owner);
}

#[test]
fn a_server_killed_on_a_full_disk_under_attack_keeps_the_records_of_the_other_tenant() {
    let _turn = orphans::take_turn();
    let mut chance = SeededRandom::seeded();
    let mut small = Small::of("48m");
    let (neighbour, _) = new_key(&small.0, "neighbour");
    let records = Mutex::new(Records::default());
    for round in 0..kills().div_ceil(2) {
        let attacker = new_key(&small.0, "attacker");
        let (_, spare) = new_key(&small.0, "spare");
        let before = Neighbour::new(&small.0, &neighbour, &records, round);
        assert!(before.ask_for_all(0).is_some(), "the positive control");
        let writer = writes_all_the_time(&small.0, &attacker.0);
        small.fill();
        let ran = small.run();
        assert_eq!(ran.status, 507, "the positive control: {}", ran.text());
        // Killed with the reserve, and when it has been given.
        if chance.below(2) == 0 {
            assert_eq!(small.0.delete(&spare).status, 204);
        }
        let (namespace, owner) = (small.namespace(), host::owner(&small.state()));
        attack_until_killed(&small.0, &attacker.0, a_delay(&mut chance), None);
        let disk = small.killed(namespace);
        everything_has_ended();
        sweep(|program| disk.command(program), &disk.state(), &owner);
        small = disk.served_again("");
        let ran = small.run();
        assert_eq!(ran.status, 507, "the positive control: {}", ran.text());
        nothing_is_under_way(&small.0);
        assert_eq!(small.0.get(&writer).json()["status"], "lost");
        admin_revokes_stops_and_cleans(&small.0, &attacker);
        small.empty();
        small.0.until("the reserve", || small.run().status == 200);
        written(&records).are_whole(&small.0, &neighbour);
    }
    println!("{}", written(&records).summary());
    let owner = host::owner(&small.state());
    ends_in_order(small.0, &owner);
}

fn a_delay(chance: &mut SeededRandom) -> Duration {
    Duration::from_nanos(chance.below(LONGEST.as_nanos() as u64))
}

fn written(records: &Mutex<Records>) -> MutexGuard<'_, Records> {
    records.lock().expect("nobody panicked")
}

/// A run whose program writes output and is denied hosts until it is killed, by its path.
fn writes_all_the_time(server: &Server, key: &str) -> String {
    let script =
        "n=0; while :; do n=$((n+1)); curl -s -o /dev/null http://h$n.example/; echo line $n; done";
    let order = json!({ "command": ["sh", "-c", script], "allow_hosts": ["allowed.example"] });
    let headers = [("prefer", "respond-async")];
    let begun = server.ask(key, "POST", "/v1/runs", &headers, &order);
    assert_eq!(begun.status, 202, "{}", begun.text());
    format!(
        "/v1/runs/{}",
        begun.json()["run_id"].as_str().expect("an id")
    )
}

fn ends_in_order(mut server: Server, owner: &str) {
    let (status, said) = server.end(Signal::TERM);
    assert!(status.success(), "{said}");
    everything_has_ended();
    assert_eq!(host::cgroups_naming(owner), Vec::<PathBuf>::new());
}
