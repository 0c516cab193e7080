//! What durable jobs cost: how fast they are accepted, what waiting ones hold, how soon one is picked up, and how long a
//! quiet tenant waits beside a noisy one.

use crate::gateway::{
    Trouble,
    client::Client,
    measure::{Bench, rank},
    report::{Metric, OURS, SQLITE},
    server::Airlock,
};
use rusqlite::Connection;
use serde_json::{Value, json};
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Waits until the measurement is long over.
const LATER_DAYS: u64 = 300;
/// Between two looks at a job.
const LOOK: Duration = Duration::from_millis(2);
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a job of the noisy tenant does.
const NOISE: &str = "0.2";
const NOISY_SLOTS: &str = "[jobs]\nslots = 2\n";
/// One tenant may have half of all that wait.
const MANY: &str = "[jobs]\nqueued = 2000000\nqueued_per_tenant = 1000000\n";

impl Bench<'_> {
    /// Everything about jobs.
    pub(crate) fn jobs(&mut self) -> Result<(), Trouble> {
        let server = Airlock::start_with(self.airlock, &self.folder.join("jobs"), MANY)?;
        for round in 0..self.amount.rounds {
            eprintln!("jobs, round {} of {}", round + 1, self.amount.rounds);
            let rate = self.submitted(&server);
            self.note(OURS, Metric::Submit, rate);
            let rate = bare(
                &self.folder.join(format!("bare-{round}.db")),
                self.amount.time,
            );
            self.note(SQLITE, Metric::Submit, rate);
        }
        drop(server);
        self.queue()?;
        self.neighbours()
    }

    /// Jobs a second that are on the disk, by many clients at once. They wait for their time.
    fn submitted(&self, server: &Airlock) -> io::Result<f64> {
        let (time, begun) = (self.amount.time, Instant::now());
        let order = waiting("later");
        let submit = |mut client: Client| {
            let order = order.clone();
            move || -> io::Result<u64> {
                let mut done = 0;
                while done == 0 || begun.elapsed() < time {
                    client.ask("POST", "/v1/jobs", &order)?;
                    done += 1;
                }
                Ok(done)
            }
        };
        let clients: Vec<_> = (0..self.amount.clients)
            .map(|_| server.client())
            .collect::<io::Result<_>>()?;
        let threads: Vec<_> = clients
            .into_iter()
            .map(|client| thread::spawn(submit(client)))
            .collect();
        let mut done = 0;
        for thread in threads {
            done += thread
                .join()
                .map_err(|_| io::Error::other("a client broke off"))??;
        }
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    }

    /// Memory and pick-up, with an empty queue and with a full one, in turn.
    fn queue(&mut self) -> Result<(), Trouble> {
        let full = Airlock::start_with(self.airlock, &self.folder.join("full"), MANY)?;
        let empty = self.serve("empty")?;
        let before = full.process.memory()?;
        eprintln!("{} jobs wait", self.amount.queued);
        if let Err(error) = self.fill(&full) {
            self.samples
                .fail(OURS, Metric::QueueMemory, &error.to_string());
        }
        let held = full.process.memory()? - before;
        self.samples.add(OURS, Metric::QueueMemory, held / 1024.0);
        for _ in 0..self.amount.rounds {
            for (server, metric) in [(&empty, Metric::PickUp), (&full, Metric::PickUpFull)] {
                let picked = self.picked_up(server);
                self.note(OURS, metric, picked);
            }
        }
        Ok(())
    }

    fn fill(&self, server: &Airlock) -> io::Result<()> {
        const HANDS: usize = 16;
        let order = waiting("queued");
        let each = self.amount.queued.div_ceil(HANDS);
        let hands: Vec<_> = (0..HANDS)
            .map(|_| server.client())
            .collect::<io::Result<_>>()?;
        let hand = |mut client: Client| {
            let order = order.clone();
            move || (0..each).try_for_each(|_| client.ask("POST", "/v1/jobs", &order).map(drop))
        };
        let hands: Vec<_> = hands
            .into_iter()
            .map(|client| thread::spawn(hand(client)))
            .collect();
        hands.into_iter().try_for_each(|hand| {
            hand.join()
                .map_err(|_| io::Error::other("a client broke off"))?
        })
    }

    /// Milliseconds from acceptance until it runs, the middle of some.
    fn picked_up(&self, server: &Airlock) -> io::Result<f64> {
        let mut client = server.client()?;
        let mut waits = Vec::new();
        for _ in 0..self.amount.runs.min(50) {
            let job = finished(&mut client, r#"{"run":{"command":["/bin/true"]}}"#)?;
            waits.push(waited(&job)?);
        }
        waits.sort_by(f64::total_cmp);
        rank(&waits, 0.5).ok_or_else(|| io::Error::other("no job ran"))
    }

    /// How many slot times a job of a quiet tenant waits while a noisy one has thousands: the worst of some.
    fn neighbours(&mut self) -> Result<(), Trouble> {
        let server =
            Airlock::start_with(self.airlock, &self.folder.join("neighbours"), NOISY_SLOTS)?;
        let measured = self.beside_noise(&server);
        self.note(OURS, Metric::Neighbour, measured);
        Ok(())
    }

    fn beside_noise(&self, server: &Airlock) -> io::Result<f64> {
        let mut admin = server.client()?;
        let mut of = |tenant: &str| -> io::Result<Client> {
            let order = json!({ "name": tenant, "tenant": tenant, "scopes": ["runs"] });
            let made: Value =
                serde_json::from_slice(&admin.ask("POST", "/v1/keys", &order.to_string())?)?;
            Client::open(server.address, made["token"].as_str().unwrap_or_default())
        };
        let (mut noisy, mut quiet) = (of("noisy")?, of("quiet")?);
        let noise = json!({ "run": { "command": ["sleep", NOISE] } }).to_string();
        let mut last = String::new();
        eprintln!("{} jobs of a noisy tenant", self.amount.noise);
        for _ in 0..self.amount.noise {
            last = String::from_utf8_lossy(&noisy.ask("POST", "/v1/jobs", &noise)?).into_owned();
        }
        let mut worst = 0f64;
        for _ in 0..10 {
            let job = finished(&mut quiet, r#"{"run":{"command":["/bin/true"]}}"#)?;
            worst = worst.max(waited(&job)?);
        }
        let worst = worst / slot_time(&mut noisy)?;
        // The control: the noisy one still waits, or there was no noise.
        let id: Value = serde_json::from_str(&last)?;
        let path = format!("/v1/jobs/{}", id["job_id"].as_str().unwrap_or_default());
        let left: Value = serde_json::from_slice(&noisy.ask("GET", &path, "")?)?;
        match left["status"] == "queued" {
            true => Ok(worst),
            false => Err(io::Error::other("the noisy tenant was done before")),
        }
    }
}

/// How long a slot is taken: as long as a job of the noisy tenant takes, which here is more than its sleep. The middle of the
/// last ones. A quiet tenant that is served at once is done before the first of them: that one is waited for.
fn slot_time(noisy: &mut Client) -> io::Result<f64> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let mut times = ended(noisy)?;
        times.sort_by(f64::total_cmp);
        match rank(&times, 0.5) {
            Some(middle) => return Ok(middle),
            None => thread::sleep(LOOK),
        }
    }
    Err(io::Error::other("no job of the noisy tenant has ended"))
}

/// How many milliseconds each of the last jobs that succeeded ran.
fn ended(client: &mut Client) -> io::Result<Vec<f64>> {
    let told: Value =
        serde_json::from_slice(&client.ask("GET", "/v1/jobs?status=succeeded&limit=50", "")?)?;
    let jobs = told["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let time = |job: &Value, name: &str| job[name].as_str().and_then(milliseconds);
    Ok(jobs
        .iter()
        .filter_map(|job| Some(time(job, "ended_at")? - time(job, "started_at")?))
        .collect())
}

/// A job that waits for its time.
fn waiting(name: &str) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let later = spec::Timestamp((now.as_millis() as u64) + LATER_DAYS * 24 * 3_600_000);
    json!({ "name": name, "run": { "command": ["/bin/true"] }, "not_before": later.to_string() })
        .to_string()
}

/// Submits a job, and waits for its end.
fn finished(client: &mut Client, order: &str) -> io::Result<Value> {
    let made: Value = serde_json::from_slice(&client.ask("POST", "/v1/jobs", order)?)?;
    let path = format!("/v1/jobs/{}", made["job_id"].as_str().unwrap_or_default());
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let job: Value = serde_json::from_slice(&client.ask("GET", &path, "")?)?;
        match job["status"].as_str() {
            Some("queued" | "running") => thread::sleep(LOOK),
            Some("succeeded") => return Ok(job),
            _ => return Err(io::Error::other(job.to_string())),
        }
    }
    Err(io::Error::other("a job did not end"))
}

/// Milliseconds between its acceptance and its start.
fn waited(job: &Value) -> io::Result<f64> {
    let time = |name: &str| job[name].as_str().and_then(milliseconds);
    match (time("accepted_at"), time("started_at")) {
        (Some(accepted), Some(started)) => Ok(started - accepted),
        _ => Err(io::Error::other(job.to_string())),
    }
}

/// Of the day: `2026-01-01T00:00:00.000Z`. Nobody measures over midnight.
fn milliseconds(text: &str) -> Option<f64> {
    let time = text.split_once('T')?.1.trim_end_matches('Z');
    let parts: Vec<f64> = time
        .split(':')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    match parts[..] {
        [hours, minutes, seconds] => Some(((hours * 60.0 + minutes) * 60.0 + seconds) * 1e3),
        _ => None,
    }
}

/// The same promise without a queue around it: one row after the other, each on the disk before the next.
fn bare(file: &std::path::Path, time: Duration) -> io::Result<f64> {
    let rows = || -> rusqlite::Result<f64> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch("CREATE TABLE job (n INTEGER PRIMARY KEY, text TEXT NOT NULL)")?;
        let (order, begun, mut done) = (waiting("bare"), Instant::now(), 0u64);
        while begun.elapsed() < time {
            connection
                .prepare_cached("INSERT INTO job (text) VALUES (?)")?
                .execute([&order])?;
            done += 1;
        }
        Ok(done as f64 / begun.elapsed().as_secs_f64())
    };
    rows().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_from_the_times_of_a_job() {
        let job = json!({ "accepted_at": "2026-01-01T10:00:59.998Z", "started_at": "2026-01-01T10:01:00.003Z" });
        assert!((waited(&job).unwrap() - 5.0).abs() < 1e-6);
        assert!(waited(&json!({ "accepted_at": "x" })).is_err());
    }
}
