//! SIGKILL of the server at any moment while fifty jobs run, again and again on the same state: every job that was accepted
//! comes to exactly one end, none runs twice at once, what must not be repeated is not, and the money adds up.
//!
//! `AIRLOCK_KILLS` says how often (8 unless said), `AIRLOCK_SEED` repeats delays and orders. What a job really did is seen
//! in a folder that the operator shares: it holds a lock there while it runs, which the kernel gives back with its process.

use abuse::{chance::Chance, eventually, host, orphans};
use doors_tests::{
    REAL_KEY,
    money::{Way, price},
};
use gateway_tests::{Folder, Server};
use provider::{Provider, Script, Settings};
use rustix::process::Signal;
use serde_json::{Value, json};
use siege::attempt;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::Duration,
};

const AT_ONCE: usize = 50;
const CLIENTS: u64 = 5;
/// The longest time between a start and the kill.
const LONGEST: Duration = Duration::from_millis(1500);
const ENDS: [&str; 7] =
    ["succeeded", "failed", "timed_out", "oom_killed", "cancelled", "not_started", "lost"];

/// A job that a client asked for.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    reruns: bool,
    body: Value,
    /// Known once it was accepted.
    id: Option<String>,
    /// Its end, if that was seen.
    ended: Option<String>,
}

struct Storm {
    configuration: String,
    marks: Folder,
    provider: Provider,
    admin: String,
    key: String,
    chance: Chance,
    asked: Vec<Asked>,
}

fn kills() -> u64 {
    std::env::var("AIRLOCK_KILLS").map_or(8, |text| text.parse().expect("AIRLOCK_KILLS is a number"))
}

#[test]
fn jobs_outlive_a_server_that_is_killed_at_any_moment_and_none_is_lost_doubled_or_unpaid() {
    let _turn = orphans::take_turn();
    let (folder, marks, secrets) = (Folder::new(), Folder::new(), doors_tests::Folder::new());
    fs::set_permissions(&marks.0, fs::Permissions::from_mode(0o777)).expect("anybody writes there");
    let provider = Provider::start(Settings { keys: vec![REAL_KEY.to_owned()], ..Settings::default() });
    provider.set(Script { tokens: 20, input: Some(100), ..Script::default() });
    let configuration = format!(
        "[serve]\nfolders = [\"{}\"]\n[jobs]\nslots = {AT_ONCE}\n{}",
        marks.0.display(),
        doors_tests::configuration(&provider, &secrets)
    );
    let server = Server::on(folder, &configuration, &["--pool", "2"], None);
    let (admin, key) = (server.admin.clone(), server.key(&["runs", "usage"]));
    let (chance, asked) = (Chance::seeded(), Vec::new());
    let mut storm = Storm { configuration, marks, provider, admin, key, chance, asked };
    let server = (0..kills()).fold(server, |server, number| storm.round(server, number));
    storm.settle(&server);
    storm.check_money(&server);
    storm.finish(server);
}

impl Storm {
    /// Jobs, a kill, and a start.
    fn round(&mut self, mut server: Server, number: u64) -> Server {
        let asked = Mutex::new(Vec::new());
        let delay = Duration::from_nanos(self.chance.below(LONGEST.as_nanos() as u64));
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.chance.number()).collect();
        std::thread::scope(|scope| {
            for (client, seed) in seeds.iter().enumerate() {
                let (server, asked, storm) = (&server, &asked, &*self);
                scope.spawn(move || storm.submit(server, &format!("{number}-{client}"), *seed, asked));
            }
            // The moment is the point.
            std::thread::sleep(delay);
            let process = host::hold(server.pid as i32).expect("the server lives");
            assert!(host::kill(&process), "it is killed");
        });
        server.end(Signal::KILL);
        let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
        drop(server);
        // In half of the rounds the next server comes while processes of this one are still about to end: no job may
        // run beside what is left of it.
        if number.is_multiple_of(2) {
            eventually("every process of the dead server ends", || {
                orphans::reap();
                orphans::below_us().is_empty().then_some(())
            });
        }
        let server = Server::on(folder, &self.configuration, &["--pool", "2"], Some(self.admin.clone()));
        self.asked.extend(asked.into_inner().expect("no client panicked"));
        self.look(&server);
        server
    }

    /// A tenth of them each, so that fifty run at once.
    fn submit(&self, server: &Server, name: &str, seed: u64, asked: &Mutex<Vec<Asked>>) {
        let mut chance = Chance::of(seed);
        for number in 0..AT_ONCE as u64 / CLIENTS {
            let name = format!("job-{name}-{number}");
            let reruns = chance.below(2) == 0;
            let body = self.order(&name, reruns, &mut chance);
            let promise = [("idempotency-key", name.as_str())];
            let mut job = Asked { name: name.clone(), reruns, body, id: None, ended: None };
            let answer = attempt(server, &self.key, "POST", "/v1/jobs", &promise, &job.body);
            if let Some(answer) = &answer {
                assert_eq!(answer.status, 202, "{}", answer.text());
                job.id = answer.json()["job_id"].as_str().map(str::to_owned);
            }
            asked.lock().expect("nobody panicked").push(job);
            if answer.is_none() {
                return;
            }
        }
    }

    /// It holds a lock while it runs, and says when it began and when it was done.
    fn order(&self, name: &str, reruns: bool, chance: &mut Chance) -> Value {
        let pays = chance.below(3) == 0;
        let call = match pays {
            true => format!(
                "curl -s -o /dev/null -H \"authorization: Bearer $OPENAI_API_KEY\" -H 'content-type: application/json' \
                 -d '{}' $OPENAI_BASE_URL/chat/completions; ",
                Way::Chat.body("m", false, Some(20))
            ),
            false => String::new(),
        };
        let work = format!(
            "echo begun >> /marks/{name}.begun; {call}sleep 0.{}; echo done >> /marks/{name}.done",
            chance.below(9)
        );
        let script = format!(
            "exec 9>/marks/{name}.lock; flock -n 9 || {{ echo twice >> /marks/{name}.twice; exit 9; }}; {work}"
        );
        let mut run = json!({ "command": ["sh", "-c", script], "timeout": "30s",
            "mounts": [format!("{}:/marks:rw", self.marks.0.display())] });
        if pays {
            run["llm"] = json!("openai");
        }
        json!({ "name": name, "run": run, "on_lost": if reruns { "rerun" } else { "lost" } })
    }

    /// What was told of an end is never taken back; what nobody answered for is there or is not, and then once.
    fn look(&mut self, server: &Server) {
        for job in &mut self.asked {
            if job.id.is_none() {
                let promise = [("idempotency-key", job.name.as_str())];
                let again = server.ask(&self.key, "POST", "/v1/jobs", &promise, &job.body);
                assert_eq!(again.status, 202, "{job:?}: {}", again.text());
                job.id = again.json()["job_id"].as_str().map(str::to_owned);
            }
            let found = shown(server, &self.key, job);
            let status = found["status"].as_str().unwrap_or_default().to_owned();
            if let Some(ended) = &job.ended {
                assert_eq!(&status, ended, "{job:?} ended twice: {found}");
            }
            if ENDS.contains(&status.as_str()) {
                job.ended = Some(status);
            }
        }
    }

    /// Waits until all have ended, and compares with what they did.
    fn settle(&mut self, server: &Server) {
        eventually("every job comes to its end", || {
            self.look(server);
            self.asked.iter().all(|job| job.ended.is_some()).then_some(())
        });
        let mut counted = BTreeMap::<String, u64>::new();
        for job in &self.asked {
            let lines = |end: &str| lines(&self.marks.0, &format!("{}.{end}", job.name));
            let status = job.ended.as_deref().expect("it has ended");
            let (begun, done) = (lines("begun"), lines("done"));
            assert_eq!(lines("twice"), 0, "{job:?} ran twice at once");
            match (status, job.reruns) {
                ("succeeded", _) => assert!(done >= 1, "{job:?} is said to have succeeded"),
                ("lost", false) => {}
                other => {
                    panic!("{other:?} is no end that this job can have: {}", shown(server, &self.key, job))
                }
            }
            assert!(job.reruns || begun <= 1, "{job:?} was repeated: begun {begun} times");
            let kind = if job.reruns { "to be run again" } else { "to be lost" };
            *counted.entry(format!("{status}, {kind}, begun {}", begun.min(3))).or_default() += 1;
        }
        println!("{counted:?}");
        assert!(counted.keys().any(|key| key.starts_with("lost")), "no job was ever cut off: {counted:?}");
        assert!(
            counted.keys().any(|key| key.contains("again, begun 2")),
            "no job was ever repeated: {counted:?}"
        );
    }

    /// The provider's own account lies between what is settled and what counts.
    fn check_money(&self, server: &Server) {
        let served = self.provider.await_served(|served| served.open == 0);
        let rows = server.get("/v1/usage?by=tenant").json();
        let sum = |name: &str| -> u64 {
            let rows = rows["rows"].as_array().expect("sums");
            rows.iter().map(|row| row[name].as_u64().expect("a number")).sum()
        };
        let (all, open, spent) = (sum("cost_nano_usd"), sum("unsettled_nano_usd"), price(&served.tokens));
        println!("spent {spent} by the provider, {all} by the ledger, of which {open} are not settled");
        assert!(served.count > 0, "the control: models were called");
        assert!(all >= spent && all - open <= spent, "ledger {all}, open {open}, provider {spent}: {rows}");
        assert!(sum("calls") >= served.count, "{rows}");
        let mut verify = Command::new(cli::airlock());
        let verified = verify.args(["usage", "--verify", "--state"]).arg(server.folder.at("state")).output();
        assert!(verified.expect("airlock starts").status.success(), "the ledger is whole");
    }

    fn finish(&self, mut server: Server) {
        let (status, said) = server.end(Signal::TERM);
        assert!(status.success(), "{said}");
        eventually("every process ends", || {
            orphans::reap();
            orphans::below_us().is_empty().then_some(())
        });
        assert_eq!(host::cgroups_naming(&host::owner(&server.folder.at("state"))), Vec::<PathBuf>::new());
        assert_eq!(host::mounts_naming(&self.marks.0), Vec::<String>::new());
    }
}

fn shown(server: &Server, key: &str, job: &Asked) -> Value {
    let path = format!("/v1/jobs/{}", job.id.as_deref().expect("it was accepted"));
    let answer = server.ask(key, "GET", &path, &[], &Value::Null);
    assert_eq!(answer.status, 200, "an accepted job is missing: {job:?}: {}", answer.text());
    answer.json()
}

fn lines(folder: &Path, name: &str) -> usize {
    fs::read_to_string(folder.join(name)).unwrap_or_default().lines().count()
}
