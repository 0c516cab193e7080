//! How long the runs of one tenant take while another one attacks the server with what its key may do, against how long
//! they take when it is quiet. All attacks in turn, in each round.

use crate::gateway::{
    Trouble,
    client::Client,
    measure::{Bench, RUN, rank},
    report::{Metric, OURS},
    server::Airlock,
};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Connections that attack at the same time.
const ATTACKERS: usize = 2;
/// Connections without a key that are kept open: a quarter of those that a server has.
const KEPT_CONNECTIONS: usize = 256;
/// Between two requests of the other tenant.
const PAUSE: Duration = Duration::from_millis(5);
/// Nothing here takes so long unless it hangs.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(60);

/// One turn of an attack: requests that may be refused.
type Attack = fn(&Attacker) -> io::Result<()>;

const ATTACKS: [(Metric, Attack); 5] = [
    (Metric::BesideUploads, uploads),
    (Metric::BesideArtifacts, artifact_lists),
    (Metric::BesideOutput, large_output),
    (Metric::BesideConnections, connections),
    (Metric::BesideMembers, many_members),
];

struct Attacker {
    server: std::net::SocketAddr,
    key: String,
    bodies: Bodies,
    stop: AtomicBool,
    turns: AtomicU64,
}

/// Long bodies, made once: what it costs to make them is not the server's.
#[derive(Clone)]
struct Bodies {
    artifacts: Arc<str>,
    members: Arc<str>,
}

impl Bodies {
    fn new() -> Bodies {
        let names: Vec<_> = (0..30_000).map(|number| format!("a{number:06}")).collect();
        let artifacts = json!({ "command": ["true"], "artifacts": names });
        let all = (0..400_000).map(|number| (format!("{number:07}"), json!("")));
        let members = json!({ "command": ["true"], "env": Value::Object(all.collect()) });
        let [artifacts, members] = [artifacts, members].map(|body| body.to_string().into());
        Bodies { artifacts, members }
    }
}

impl Bench<'_> {
    /// Ratios of the 99th percentile, attacked to quiet.
    pub(crate) fn beside_attackers(&mut self) -> Result<(), Trouble> {
        let server = self.serve("attacked")?;
        let [attacker, neighbour] = [tenant(&server, "attacker")?, tenant(&server, "neighbour")?];
        let bodies = Bodies::new();
        for round in 0..self.amount.rounds {
            eprintln!("attacks, round {} of {}", round + 1, self.amount.rounds);
            for (metric, attack) in ATTACKS {
                let attacker = Attacker {
                    server: server.address,
                    key: attacker.clone(),
                    bodies: bodies.clone(),
                    stop: AtomicBool::new(false),
                    turns: AtomicU64::new(0),
                };
                let ratio = self.beside(&server, &attacker, &neighbour, attack);
                self.note(OURS, metric, ratio);
            }
        }
        Ok(())
    }

    fn beside(
        &self,
        server: &Airlock,
        attacker: &Attacker,
        neighbour: &str,
        attack: Attack,
    ) -> io::Result<f64> {
        let mut client = Client::open(server.address, neighbour)?;
        let quiet = self.p99(&mut client)?;
        let attacked = thread::scope(|scope| {
            for _ in 0..ATTACKERS {
                scope.spawn(|| attacker.attack(attack));
            }
            let attacked = attacker.has_begun().and_then(|()| self.p99(&mut client));
            attacker.stop.store(true, Ordering::Relaxed);
            attacked
        });
        Ok(attacked? / quiet)
    }

    /// Of runs of `/bin/true`, in milliseconds. Each of them must succeed.
    fn p99(&self, client: &mut Client) -> io::Result<f64> {
        let mut times = Vec::new();
        for _ in 0..self.amount.runs {
            let begun = Instant::now();
            client.ask("POST", "/v1/runs", RUN)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            thread::sleep(PAUSE);
        }
        times.sort_by(f64::total_cmp);
        rank(&times, 0.99).ok_or_else(|| io::Error::other("nothing ran"))
    }
}

impl Attacker {
    fn attack(&self, attack: Attack) {
        while !self.stop.load(Ordering::Relaxed) {
            // Being refused is what an attacker has to expect.
            _ = attack(self);
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The control: there is an attack.
    fn has_begun(&self) -> io::Result<()> {
        let begun = Instant::now();
        while self.turns.load(Ordering::Relaxed) == 0 {
            if begun.elapsed() > ATTACK_TIMEOUT {
                return Err(io::Error::other("the attack has not begun"));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn client(&self) -> io::Result<Client> {
        Client::open(self.server, &self.key)
    }

    fn post(&self, path: &str, body: &str) -> io::Result<Vec<u8>> {
        self.client()?.ask("POST", path, body)
    }
}

/// Files that the server writes into a sandbox's memory.
fn uploads(attacker: &Attacker) -> io::Result<()> {
    let order = json!({ "memory": "64M", "disk": "64M", "file_size": "64M" });
    let made: Value = serde_json::from_slice(&attacker.post("/v1/sandboxes", &order.to_string())?)?;
    let sandbox = format!(
        "/v1/sandboxes/{}",
        made["sandbox_id"].as_str().unwrap_or_default()
    );
    let put = attacker
        .client()?
        .put(&format!("{sandbox}/files/large"), 48 << 20);
    attacker.client()?.ask("DELETE", &sandbox, "")?;
    put
}

fn artifact_lists(attacker: &Attacker) -> io::Result<()> {
    attacker
        .post("/v1/runs", &attacker.bodies.artifacts)
        .map(drop)
}

fn large_output(attacker: &Attacker) -> io::Result<()> {
    let command = "head -c 16M /dev/zero; head -c 16M /dev/zero >&2";
    let order = json!({ "command": ["sh", "-c", command], "output": "16M", "memory": "64M" });
    attacker.post("/v1/runs", &order.to_string()).map(drop)
}

/// Connections of nobody's that are kept open.
fn connections(attacker: &Attacker) -> io::Result<()> {
    let mut kept = VecDeque::new();
    while !attacker.stop.load(Ordering::Relaxed) {
        if kept.len() >= KEPT_CONNECTIONS {
            kept.pop_front();
        }
        let mut client = Client::open(attacker.server, "")?;
        client.ask("GET", "/healthz", "")?;
        kept.push_back(client);
        attacker.turns.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn many_members(attacker: &Attacker) -> io::Result<()> {
    attacker
        .post("/v1/runs", &attacker.bodies.members)
        .map(drop)
}

/// The key of a new tenant.
fn tenant(server: &Airlock, name: &str) -> io::Result<String> {
    let order = json!({ "name": name, "tenant": name, "scopes": ["runs", "sandboxes"] });
    let answer = server
        .client()?
        .ask("POST", "/v1/keys", &order.to_string())?;
    let made: Value = serde_json::from_slice(&answer)?;
    made["token"]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other(made.to_string()))
}
