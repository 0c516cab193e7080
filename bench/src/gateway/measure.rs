//! What is measured, and in which order: ways take turns within a round, so that what disturbs the machine disturbs all.

use crate::gateway::{
    Trouble,
    client::Client,
    library::Library,
    report::{ARTIFACTS, LIBRARY, Metric, NGINX, OURS},
    server::{Airlock, Nginx},
};
use crate::peers::{Process, Samples};
use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

pub(crate) const RUN: &str = r#"{"command":["/bin/true"]}"#;
/// After each run of a lone client: what was used up is made anew meanwhile, for both.
const REST: Duration = Duration::from_millis(10);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) rounds: usize,
    pub(crate) runs: usize,
    pub(crate) clients: usize,
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
    pub(crate) idle: usize,
    pub(crate) parked: usize,
    pub(crate) queued: usize,
    pub(crate) noise: usize,
}

/// Measures, and notes what went wrong beside what did not.
pub(crate) struct Bench<'a> {
    pub(crate) airlock: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) amount: Amount,
    pub(crate) samples: Samples<Metric>,
}

impl Bench<'_> {
    pub(crate) fn serve(&self, name: &str) -> Result<Airlock, Trouble> {
        Airlock::start(self.airlock, &self.folder.join(name))
    }

    pub(crate) fn note(&mut self, way: &'static str, metric: Metric, measured: io::Result<f64>) {
        match measured {
            Ok(value) => self.samples.add(way, metric, value),
            Err(error) => self.samples.fail(way, metric, &error.to_string()),
        }
    }

    /// From exec until it is ready: with a state that is new, then with one that is there.
    pub(crate) fn starts(&mut self) -> Result<(), Trouble> {
        for round in 0..self.amount.rounds {
            let name = format!("start-{round}");
            for metric in [Metric::FirstReady, Metric::Ready] {
                let server = self.serve(&name)?;
                self.samples
                    .add(OURS, metric, server.ready_in.as_secs_f64() * 1e3);
            }
        }
        Ok(())
    }

    /// What sessions hold that do nothing.
    pub(crate) fn idle_sessions(&mut self) -> Result<(), Trouble> {
        let server = self.serve("idle")?;
        eprintln!("{} idle sessions", self.amount.idle);
        let before = available()?;
        let opened = self.open_sessions(&server);
        if let Err(error) = opened {
            self.samples.fail(OURS, Metric::IdlePss, &error.to_string());
            return Ok(());
        }
        let held = before - available()?;
        // With launchers and keepers, which are no children of the server's; nobody else is below us yet.
        let pss = crate::peers::memory_below_us();
        self.note(OURS, Metric::IdlePss, pss.map(|kib| kib / 1024.0));
        self.samples.add(OURS, Metric::IdleMachine, held / 1024.0);
        Ok(())
    }

    fn open_sessions(&self, server: &Airlock) -> io::Result<()> {
        let mut client = server.client()?;
        for _ in 0..self.amount.idle {
            server.session(&mut client, r#"{"lifetime":"1h","idle_timeout":"1h"}"#)?;
        }
        Ok(())
    }

    /// Runs of `/bin/true`: one after the other, then many at once.
    pub(crate) fn runs(&mut self) -> Result<(), Trouble> {
        let server = self.serve("runs")?;
        let mut library = Library::start(self.folder, self.amount.parked)?;
        for round in 0..self.amount.rounds {
            eprintln!("runs, round {} of {}", round + 1, self.amount.rounds);
            self.one_by_one(&server, &mut library)?;
            // Another one begins each round.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    self.crowd(&server);
                } else {
                    let rate = library.rate(self.amount.clients, self.amount.time);
                    self.note(LIBRARY, Metric::Rate, rate);
                }
            }
        }
        Ok(())
    }

    fn one_by_one(&mut self, server: &Airlock, library: &mut Library) -> Result<(), Trouble> {
        let mut client = server.client()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.amount.runs {
            match once(&mut client) {
                Ok(seconds) => ours.push(seconds * 1e3),
                Err(error) => self.samples.fail(OURS, Metric::Run, &error.to_string()),
            }
            thread::sleep(REST);
            match library.one() {
                Ok(seconds) => theirs.push(seconds * 1e3),
                Err(error) => self.samples.fail(LIBRARY, Metric::Run, &error.to_string()),
            }
            thread::sleep(REST);
        }
        for (way, mut times) in [(OURS, ours), (LIBRARY, theirs)] {
            times.sort_by(f64::total_cmp);
            for (metric, part) in [(Metric::Run, 0.5), (Metric::RunP99, 0.99)] {
                rank(&times, part)
                    .into_iter()
                    .for_each(|value| self.samples.add(way, metric, value));
            }
        }
        Ok(())
    }

    /// Many clients, each with a connection of its own; every run that fails is told.
    fn crowd(&mut self, server: &Airlock) {
        let (time, begun) = (self.amount.time, Instant::now());
        let client = |mut client: Client| {
            move || {
                let (mut done, mut failures) = (0, Vec::new());
                while done == 0 || begun.elapsed() < time {
                    failures.extend(once(&mut client).err());
                    done += 1;
                }
                (done, failures)
            }
        };
        let opened: io::Result<Vec<_>> =
            (0..self.amount.clients).map(|_| server.client()).collect();
        let clients = match opened {
            Ok(clients) => clients,
            Err(error) => return self.samples.fail(OURS, Metric::Rate, &error.to_string()),
        };
        let threads: Vec<_> = clients
            .into_iter()
            .map(|one| thread::spawn(client(one)))
            .collect();
        let told = threads.into_iter().filter_map(|thread| thread.join().ok());
        let (done, failures) = told.fold((0, Vec::new()), |(done, mut all), (more, failures)| {
            all.extend(failures);
            (done + more, all)
        });
        self.samples.add(
            OURS,
            Metric::Rate,
            done as f64 / begun.elapsed().as_secs_f64(),
        );
        self.samples
            .add(OURS, Metric::Failures, failures.len() as f64);
        failures
            .iter()
            .for_each(|error| self.samples.fail(OURS, Metric::Rate, &error.to_string()));
    }

    /// A large file there and back, by each way in turn; what could not be had.
    pub(crate) fn files(
        &mut self,
        nginx: Option<&PathBuf>,
    ) -> Result<Vec<(&'static str, String)>, Trouble> {
        let server = self.serve("files")?;
        let started = match nginx {
            Some(program) => Nginx::start(program, &self.folder.join("nginx"))
                .map_err(|trouble| trouble.to_string()),
            None => Err("not told where it is".to_owned()),
        };
        let mut ways = Vec::new();
        let order = r#"{"memory":"3G","disk":"3G","file_size":"2G","lifetime":"1h"}"#;
        match server
            .client()
            .and_then(|mut client| server.session(&mut client, order))
        {
            Ok(id) => ways.push(Way::new(
                OURS,
                &server,
                &format!("/v1/sandboxes/{id}/files/large"),
            )),
            Err(error) => self.samples.fail(OURS, Metric::Upload, &error.to_string()),
        }
        ways.push(Way::new(ARTIFACTS, &server, "/v1/artifacts/large"));
        ways.extend(started.iter().map(Way::of_nginx));
        for round in 0..self.amount.rounds {
            eprintln!("files, round {} of {}", round + 1, self.amount.rounds);
            for index in 0..ways.len() {
                self.there_and_back(&ways[(index + round) % ways.len()]);
            }
        }
        drop(ways);
        Ok(started.err().map(|why| (NGINX, why)).into_iter().collect())
    }

    fn there_and_back(&mut self, way: &Way<'_>) {
        let (bytes, size) = (self.amount.bytes, self.amount.bytes as f64 / 1e6);
        let mut measure = |metric, peak, transfer: &dyn Fn(&mut Client) -> io::Result<()>| {
            let measured = way.watched(transfer);
            self.note(
                way.name,
                metric,
                measured
                    .as_ref()
                    .map_or_else(again, |(time, _)| Ok(size / time)),
            );
            // nginx's workers are processes of their own, and nobody asked for theirs.
            if let (true, Ok((_, mib))) = (way.name != NGINX, &measured) {
                self.samples.add(way.name, peak, *mib);
            }
        };
        measure(Metric::Upload, Metric::UploadPeak, &|client| {
            client.put(&way.path, bytes)
        });
        measure(Metric::Download, Metric::DownloadPeak, &|client| {
            client.get(&way.path, bytes)
        });
        way.clear();
    }
}

fn again(error: &io::Error) -> io::Result<f64> {
    Err(io::Error::other(error.to_string()))
}

/// Where a file goes.
struct Way<'a> {
    name: &'static str,
    process: &'a Process,
    open: Box<dyn Fn() -> io::Result<Client> + 'a>,
    path: String,
}

impl<'a> Way<'a> {
    fn new(name: &'static str, server: &'a Airlock, path: &str) -> Way<'a> {
        Way {
            name,
            process: &server.process,
            open: Box::new(|| server.client()),
            path: path.to_owned(),
        }
    }

    fn of_nginx(nginx: &'a Nginx) -> Way<'a> {
        let open = Box::new(|| Client::open(nginx.address, ""));
        Way {
            name: NGINX,
            process: &nginx.process,
            open,
            path: "/large".to_owned(),
        }
    }

    /// How long it took, and how much memory more than before the process had meanwhile, in MiB.
    fn watched(&self, transfer: &dyn Fn(&mut Client) -> io::Result<()>) -> io::Result<(f64, f64)> {
        let mut client = (self.open)()?;
        let before = self.process.forget_peak()?;
        let begun = Instant::now();
        transfer(&mut client)?;
        let took = begun.elapsed().as_secs_f64();
        Ok((took, (self.process.peak()? - before) / 1024.0))
    }

    /// Gives the space back, where it can be asked for: nginx overwrites.
    fn clear(&self) {
        if self.name != NGINX
            && let Ok(mut client) = (self.open)()
        {
            // What stays only takes space.
            _ = client.ask("DELETE", &self.path, "");
        }
    }
}

/// Seconds of one run, which must have succeeded.
fn once(client: &mut Client) -> io::Result<f64> {
    once_of(client, RUN)
}

/// The same of another order.
pub(crate) fn once_of(client: &mut Client, order: &str) -> io::Result<f64> {
    let begun = Instant::now();
    let answer = client.ask("POST", "/v1/runs", order)?;
    let seconds = begun.elapsed().as_secs_f64();
    let succeeded = answer
        .windows(SUCCEEDED.len())
        .any(|part| part == SUCCEEDED.as_bytes());
    succeeded
        .then_some(seconds)
        .ok_or_else(|| io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
}

const SUCCEEDED: &str = r#""status":"succeeded""#;

/// By nearest rank.
pub(crate) fn rank(sorted: &[f64], part: f64) -> Option<f64> {
    let index = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}

/// KiB that the machine could still give.
fn available() -> io::Result<f64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| io::Error::other("no MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_samples() {
        let times: Vec<_> = (1..=200).map(f64::from).collect();
        assert_eq!(
            (rank(&times, 0.5), rank(&times, 0.99)),
            (Some(100.0), Some(198.0))
        );
        assert_eq!((rank(&[7.0], 0.99), rank(&[], 0.5)), (Some(7.0), None));
    }
}
