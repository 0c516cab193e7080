//! SIGKILL of the server at any moment while fifty jobs run, again and again on the same state: every job that was accepted
//! comes to exactly one end, none runs twice at once, what must not be repeated is not, and the money adds up. What was
//! cancelled stays so, what comes after another waits for it and is cancelled with it, and whoever asked for a notice of the
//! end gets it.
//!
//! `AIRLOCK_KILLS` says how often (8 unless said), `AIRLOCK_SEED` repeats delays and orders. What a job really did is seen
//! in a folder that the operator shares: it holds a lock there while it runs, which the kernel gives back with its process.

use doors_tests::{
    REAL_KEY,
    money::{Way, price},
};
use gateway_tests::{
    Folder, Server,
    receiver::{OPEN, ReceivedRequest, Receiver, all_fitting},
};
use provider::{Provider, Script, Settings};
use robustness::{eventually, host, orphans, random::SeededRandom};
use rustix::process::Signal;
use serde_json::{Value, json};
use soak::attempt;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const AT_ONCE: usize = 50;
/// An eighth of them is only for tenants that have none.
const SLOTS: usize = 58;
const CLIENTS: u64 = 5;
/// The longest time between a start and the kill.
const LONGEST: Duration = Duration::from_millis(1500);
const ENDS: [&str; 7] = [
    "succeeded",
    "failed",
    "timed_out",
    "oom_killed",
    "cancelled",
    "not_started",
    "lost",
];

/// A job that a client asked for.
#[derive(Clone, Debug)]
struct RequestedJob {
    name: String,
    reruns: bool,
    /// The job that it comes after.
    parent: Option<String>,
    /// Somebody is to be told of its end.
    told: bool,
    cancel: Cancel,
    body: Value,
    /// Known once it was accepted.
    id: Option<String>,
    /// Its end, if that was seen.
    ended: Option<String>,
}

/// Whether somebody asked for its end.
#[derive(Clone, Debug, PartialEq)]
enum Cancel {
    No,
    /// And was not answered.
    RequestedJob,
    /// And was told how it stood then. It had begun so often.
    Answered {
        status: String,
        begun: usize,
    },
}

struct Storm {
    configuration: String,
    marks: Folder,
    provider: Provider,
    receiver: Receiver,
    admin: String,
    key: String,
    chance: SeededRandom,
    asked: Vec<RequestedJob>,
}

fn kills() -> u64 {
    std::env::var("AIRLOCK_KILLS")
        .map_or(8, |text| text.parse().expect("AIRLOCK_KILLS is a number"))
}

#[test]
fn jobs_outlive_a_server_that_is_killed_at_any_moment_and_none_is_lost_doubled_or_unpaid() {
    let _turn = orphans::take_turn();
    let (folder, marks, secrets) = (Folder::new(), Folder::new(), doors_tests::Folder::new());
    fs::set_permissions(&marks.0, fs::Permissions::from_mode(0o777)).expect("anybody writes there");
    let provider = Provider::start(Settings {
        keys: vec![REAL_KEY.to_owned()],
        ..Settings::default()
    });
    provider.set(Script {
        tokens: 20,
        input: Some(100),
        ..Script::default()
    });
    let receiver = Receiver::new();
    let configuration = format!(
        "[serve]\nfolders = [\"{}\"]\n[tenant.\"*\"]\nmemory = \"1T\"\n\
         [jobs]\nslots = {SLOTS}\n{OPEN}{}",
        marks.0.display(),
        doors_tests::configuration(&provider, &secrets)
    );
    let server = Server::on(folder, &configuration, &["--pool", "2"], None);
    let (admin, key) = (server.admin.clone(), server.key(&["runs", "usage"]));
    let (chance, asked) = (SeededRandom::seeded(), Vec::new());
    let mut storm = Storm {
        configuration,
        marks,
        provider,
        receiver,
        admin,
        key,
        chance,
        asked,
    };
    let server = (0..kills()).fold(server, |server, number| storm.round(server, number));
    storm.settle(&server);
    storm.check_notices(&server);
    storm.check_money(&server);
    storm.finish(server);
}

impl Storm {
    /// Jobs, a kill, and a start.
    fn round(&mut self, mut server: Server, number: u64) -> Server {
        let delay = Duration::from_nanos(self.chance.below(LONGEST.as_nanos() as u64));
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.chance.number()).collect();
        // So that at least one notice comes twice.
        self.receiver.answers("503 Not Now");
        let asked: Vec<_> = std::thread::scope(|scope| {
            let (storm, served) = (&*self, &server);
            let client = |(client, seed): (usize, &u64)| {
                let (name, seed) = (format!("{number}-{client}"), *seed);
                scope.spawn(move || storm.submit(served, &name, seed))
            };
            let clients: Vec<_> = seeds.iter().enumerate().map(client).collect();
            // The moment is the point.
            std::thread::sleep(delay);
            let process = host::hold(server.pid as i32).expect("the server lives");
            assert!(host::kill(&process), "it is killed");
            clients
                .into_iter()
                .flat_map(|client| client.join().expect("no client panicked"))
                .collect()
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
        let server = Server::on(
            folder,
            &self.configuration,
            &["--pool", "2"],
            Some(self.admin.clone()),
        );
        self.asked.extend(asked);
        self.look(&server);
        server
    }

    /// A tenth of them each, so that fifty run at once; some come after one before, and some are cancelled.
    fn submit(&self, server: &Server, name: &str, seed: u64) -> Vec<RequestedJob> {
        let (mut chance, mut own) = (SeededRandom::of(seed), Vec::<RequestedJob>::new());
        for number in 0..AT_ONCE as u64 / CLIENTS {
            let mut job = self.order(format!("job-{name}-{number}"), &own, &mut chance);
            let promise = [("idempotency-key", job.name.as_str())];
            let answer = attempt(server, &self.key, "POST", "/v1/jobs", &promise, &job.body);
            if let Some(answer) = &answer {
                assert_eq!(answer.status, 202, "{}", answer.text());
                job.id = answer.json()["job_id"].as_str().map(str::to_owned);
            }
            own.push(job);
            let cancelled = answer.is_some() && chance.below(6) == 0;
            let whom = chance.below(own.len() as u64) as usize;
            if answer.is_none() || cancelled && !self.cancel(server, &mut own[whom]) {
                break;
            }
        }
        own
    }

    /// Whether that was answered.
    fn cancel(&self, server: &Server, job: &mut RequestedJob) -> bool {
        let path = format!("/v1/jobs/{}", job.id.as_deref().expect("it was accepted"));
        let Some(answer) = attempt(server, &self.key, "DELETE", &path, &[], &Value::Null) else {
            if job.cancel == Cancel::No {
                job.cancel = Cancel::RequestedJob;
            }
            return false;
        };
        assert!(matches!(answer.status, 200 | 202), "{}", answer.text());
        let begun = lines(&self.marks.0, &format!("{}.begun", job.name));
        let status = answer.json()["status"]
            .as_str()
            .expect("a status")
            .to_owned();
        job.cancel = Cancel::Answered { status, begun };
        true
    }

    /// It holds a lock while it runs, and says when it began and when it was done.
    fn order(&self, name: String, own: &[RequestedJob], chance: &mut SeededRandom) -> RequestedJob {
        let reruns = chance.below(2) == 0;
        let pays = chance.below(3) == 0;
        let told = chance.below(3) == 0;
        let parent = (chance.below(3) == 0 && !own.is_empty())
            .then(|| &own[chance.below(own.len() as u64) as usize]);
        let mut run = json!({ "command": ["sh", "-c", script(&name, parent, pays, chance)], "timeout": "30s",
            "mounts": [format!("{}:/marks:rw", self.marks.0.display())] });
        if pays {
            run["llm"] = json!("openai");
        }
        let mut body =
            json!({ "name": name, "run": run, "on_lost": if reruns { "rerun" } else { "lost" } });
        if told {
            body["webhook"] = json!({ "url": self.receiver.url() });
        }
        if let Some(parent) = parent {
            body["after"] = json!([parent.id]);
        }
        let parent = parent.map(|parent| parent.name.clone());
        RequestedJob {
            name,
            reruns,
            parent,
            told,
            cancel: Cancel::No,
            body,
            id: None,
            ended: None,
        }
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
            self.asked
                .iter()
                .all(|job| job.ended.is_some())
                .then_some(())
        });
        let mut counted = BTreeMap::<String, u64>::new();
        for job in &self.asked {
            let begun = self.check(server, job);
            let kind = if job.reruns {
                "to be run again"
            } else {
                "to be lost"
            };
            let status = job.ended.as_deref().expect("it has ended");
            *counted
                .entry(format!("{status}, {kind}, begun {}", begun.min(3)))
                .or_default() += 1;
        }
        println!("{counted:?}");
        assert!(
            counted.keys().any(|key| key.starts_with("lost")),
            "no job was ever cut off: {counted:?}"
        );
        assert!(
            counted.keys().any(|key| key.contains("again, begun 2")),
            "no job was ever repeated: {counted:?}"
        );
        let is_behind = |job: &&RequestedJob| job.parent.is_some() && job.cancel == Cancel::No;
        let behind = |status: &str| {
            let ended = |job: &&RequestedJob| job.ended.as_deref() == Some(status);
            self.asked.iter().filter(is_behind).filter(ended).count()
        };
        let answered = |job: &&RequestedJob| matches!(job.cancel, Cancel::Answered { .. });
        let answered = self.asked.iter().filter(answered).count();
        println!(
            "of those behind another {} succeeded and {} were cancelled with it; {answered} were cancelled by somebody",
            behind("succeeded"),
            behind("cancelled")
        );
        assert!(
            answered > 0 && behind("succeeded") > 0 && behind("cancelled") > 0,
            "the control"
        );
    }

    /// Compares the end of a job with what it did, what was said of it, and what it comes after. How often it began.
    fn check(&self, server: &Server, job: &RequestedJob) -> usize {
        let lines = |end: &str| lines(&self.marks.0, &format!("{}.{end}", job.name));
        let status = job.ended.as_deref().expect("it has ended");
        let (begun, done) = (lines("begun"), lines("done"));
        assert_eq!(lines("twice"), 0, "{job:?} ran twice at once");
        assert_eq!(
            lines("early"),
            0,
            "{job:?} ran before what it comes after was done"
        );
        assert!(
            job.reruns || begun <= 1,
            "{job:?} was repeated: begun {begun} times"
        );
        let is_in_vain = self.check_parent(server, job, begun);
        match (status, job.reruns) {
            ("succeeded", _) => assert!(done >= 1, "{job:?} is said to have succeeded"),
            ("lost", false) => {}
            ("cancelled", _) if is_in_vain || job.cancel != Cancel::No => {}
            other => panic!(
                "{other:?} is no end that this job can have: {}",
                shown(server, &self.key, job)
            ),
        }
        if let Cancel::Answered {
            status: then,
            begun: before,
        } = &job.cancel
        {
            match ENDS.contains(&then.as_str()) {
                true => assert_eq!(
                    (status, begun),
                    (then.as_str(), *before),
                    "{job:?} was over"
                ),
                // It was about to end, one way or the other, and does not begin again.
                false => assert!(
                    matches!(status, "cancelled" | "succeeded"),
                    "{job:?} was cancelled"
                ),
            }
        }
        begun
    }

    /// Whether it is in vain, because what it comes after did not succeed.
    fn check_parent(&self, server: &Server, job: &RequestedJob, begun: usize) -> bool {
        let Some(name) = &job.parent else {
            return false;
        };
        let parent = self
            .asked
            .iter()
            .find(|other| other.name == *name)
            .expect("it was asked for");
        if parent.ended.as_deref() != Some("succeeded") {
            assert_eq!(
                (job.ended.as_deref(), begun),
                (Some("cancelled"), 0),
                "{job:?} after {parent:?}"
            );
            return true;
        }
        let [own, before] = [job, parent].map(|job| shown(server, &self.key, job));
        if let (Some(started), Some(ended)) =
            (own["started_at"].as_str(), before["ended_at"].as_str())
        {
            assert!(started >= ended, "{own} started before the end of {before}");
        }
        false
    }

    /// Whoever asked for it is told of each end, at least once, in words that are the same and signed.
    fn check_notices(&self, server: &Server) {
        let wanted: Vec<_> = self.asked.iter().filter(|job| job.told).collect();
        eventually("every notice is delivered", || {
            let is_told = |job: &&RequestedJob| {
                shown(server, &self.key, job)["webhook"]["state"] == "delivered"
            };
            wanted.iter().all(is_told).then_some(())
        });
        let (seen, mut of, mut repeated) = (
            self.receiver.seen(),
            BTreeMap::<String, Vec<ReceivedRequest>>::new(),
            0,
        );
        let secret = server
            .ask(&self.key, "GET", "/v1/webhook-secret", &[], &Value::Null)
            .json();
        let fits = all_fitting(&seen, secret["secret"].as_str().expect("a secret"));
        assert!(
            fits.iter().all(|fits| *fits == [true]),
            "{} notices: {fits:?}",
            seen.len()
        );
        for notice in seen {
            let id = notice.json()["data"]["job_id"]
                .as_str()
                .expect("a job")
                .to_owned();
            of.entry(id).or_default().push(notice);
        }
        for job in &wanted {
            let all = of
                .remove(job.id.as_deref().expect("it was accepted"))
                .unwrap_or_default();
            assert!(!all.is_empty(), "nobody was told of {job:?}");
            for notice in &all {
                let told = notice.json();
                assert_eq!(
                    (&told["type"], told["data"]["status"].as_str()),
                    (&json!("job.final"), job.ended.as_deref()),
                    "{job:?}"
                );
                assert_eq!(
                    (notice.header("webhook-id"), &notice.body),
                    (all[0].header("webhook-id"), &all[0].body),
                    "one end has one notice: {job:?}"
                );
            }
            repeated += usize::from(all.len() > 1);
        }
        println!(
            "{} notices, of which {repeated} came more than once",
            wanted.len()
        );
        assert_eq!(
            of.keys().collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "nobody asked for these"
        );
        assert!(
            repeated > 0,
            "the control: a receiver that said no is told again"
        );
    }

    /// The provider's own account lies between what is settled and what counts.
    fn check_money(&self, server: &Server) {
        let served = self.provider.await_served(|served| served.open == 0);
        let rows = server.get("/v1/usage?by=tenant").json();
        let sum = |name: &str| -> u64 {
            let rows = rows["rows"].as_array().expect("sums");
            rows.iter()
                .map(|row| row[name].as_u64().expect("a number"))
                .sum()
        };
        let (all, open, spent) = (
            sum("cost_nano_usd"),
            sum("unsettled_nano_usd"),
            price(&served.tokens),
        );
        println!(
            "spent {spent} by the provider, {all} by the ledger, of which {open} are not settled"
        );
        assert!(served.count > 0, "the control: models were called");
        assert!(
            all >= spent && all - open <= spent,
            "ledger {all}, open {open}, provider {spent}: {rows}"
        );
        assert!(sum("calls") >= served.count, "{rows}");
        let mut verify = Command::new(cli::airlock());
        let verified = verify
            .args(["usage", "--verify", "--state"])
            .arg(server.folder.at("state"))
            .output();
        assert!(
            verified.expect("airlock starts").status.success(),
            "the ledger is whole"
        );
    }

    fn finish(&self, mut server: Server) {
        let (status, said) = server.end(Signal::TERM);
        assert!(status.success(), "{said}");
        eventually("every process ends", || {
            orphans::reap();
            orphans::below_us().is_empty().then_some(())
        });
        assert_eq!(
            host::cgroups_naming(&host::owner(&server.folder.at("state"))),
            Vec::<PathBuf>::new()
        );
        assert_eq!(host::mounts_naming(&self.marks.0), Vec::<String>::new());
    }
}

/// What such a job does. One that comes after another looks whether that was done.
fn script(
    name: &str,
    parent: Option<&RequestedJob>,
    pays: bool,
    chance: &mut SeededRandom,
) -> String {
    let call = match pays {
        true => format!(
            "curl -s -o /dev/null -H \"authorization: Bearer $OPENAI_API_KEY\" -H 'content-type: application/json' \
             -d '{}' $OPENAI_BASE_URL/chat/completions; ",
            Way::Chat.body("m", false, Some(20))
        ),
        false => String::new(),
    };
    let look = match parent {
        Some(parent) => format!(
            "[ -e /marks/{}.done ] || echo early >> /marks/{name}.early; ",
            parent.name
        ),
        None => String::new(),
    };
    let work = format!(
        "{look}echo begun >> /marks/{name}.begun; {call}sleep 0.{}; echo done >> /marks/{name}.done",
        chance.below(9)
    );
    format!(
        "exec 9>/marks/{name}.lock; flock -n 9 || {{ echo twice >> /marks/{name}.twice; exit 9; }}; {work}"
    )
}

fn shown(server: &Server, key: &str, job: &RequestedJob) -> Value {
    let path = format!("/v1/jobs/{}", job.id.as_deref().expect("it was accepted"));
    let answer = server.ask(key, "GET", &path, &[], &Value::Null);
    assert_eq!(
        answer.status,
        200,
        "an accepted job is missing: {job:?}: {}",
        answer.text()
    );
    answer.json()
}

fn lines(folder: &Path, name: &str) -> usize {
    fs::read_to_string(folder.join(name))
        .unwrap_or_default()
        .lines()
        .count()
}
