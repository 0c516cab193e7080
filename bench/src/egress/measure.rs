//! What is measured, and in which order: ways take turns within a round, so that what disturbs the machine disturbs all.

use crate::egress::{
    client::{self, Secure},
    origin::Origin,
    report::Metric,
    ways::Way,
};
use crate::peers::Samples;
use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Connections that ask at once.
const CLIENTS: usize = 8;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) rounds: usize,
    pub(crate) bytes: u64,
    pub(crate) tunnels: usize,
    pub(crate) time: Duration,
    pub(crate) idle: usize,
}

/// Measures, and notes what went wrong beside what did not.
pub(crate) struct Bench<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) ways: &'a [Way],
    pub(crate) amount: Amount,
    pub(crate) samples: &'a mut Samples<Metric>,
}

impl Bench<'_> {
    /// How much passes where doors share the processors with server and load.
    pub(crate) fn sharing(&mut self) {
        for round in 0..self.amount.rounds {
            eprintln!("sharing, round {} of {}", round + 1, self.amount.rounds);
            let metric = Metric::SharedThroughput;
            self.in_turns(
                round,
                metric,
                |way| way.tunnels,
                |bench, way| bench.throughput(way, metric),
            );
        }
    }

    /// Everything, where doors have a processor of their own.
    pub(crate) fn apart(&mut self) {
        // Before any load: what memory was freed by then would hide what tunnels take.
        for way in self
            .ways
            .iter()
            .filter(|way| way.tunnels && way.process.is_some())
        {
            let measured = self.idle_tunnels(way);
            self.note(way, Metric::IdleTunnels, measured);
        }
        for round in 0..self.amount.rounds {
            eprintln!("apart, round {} of {}", round + 1, self.amount.rounds);
            let metric = Metric::Throughput;
            self.in_turns(
                round,
                metric,
                |way| way.tunnels,
                |bench, way| bench.throughput(way, metric),
            );
            self.set_up();
            self.in_turns(
                round,
                Metric::RequestCost,
                |way| way.ca.is_some(),
                Bench::requests,
            );
        }
    }

    /// Another one begins each round.
    fn in_turns(
        &mut self,
        round: usize,
        metric: Metric,
        which: impl Fn(&Way) -> bool,
        measure: impl Fn(&mut Self, &Way) -> io::Result<()>,
    ) {
        for index in 0..self.ways.len() {
            let way = &self.ways[(index + round) % self.ways.len()];
            if which(way) {
                let measured = measure(self, way);
                self.note(way, metric, measured);
            }
        }
    }

    fn note(&mut self, way: &Way, metric: Metric, measured: io::Result<()>) {
        if let Err(error) = measured {
            self.samples.fail(way.name, metric, &error.to_string());
        }
    }

    /// Many bytes by one tunnel.
    fn throughput(&mut self, way: &Way, metric: Metric) -> io::Result<()> {
        let mut stream = way.open(self.origin)?;
        client::take(&mut stream, 1 << 20)?;
        let before = processor_time(way)?;
        let took = client::take(&mut stream, self.amount.bytes)?;
        let gigabytes = self.amount.bytes as f64 / 1e9;
        self.samples
            .add(way.name, metric, gigabytes * 1e3 / took.as_secs_f64());
        if way.process.is_some() && metric == Metric::Throughput {
            let processor = processor_time(way)? - before;
            self.samples
                .add(way.name, Metric::TunnelCost, processor / gigabytes);
        }
        Ok(())
    }

    /// From nothing to the first bytes that came back through a tunnel, one after the other, each by every way in turn.
    fn set_up(&mut self) {
        let ways: Vec<_> = self.ways.iter().filter(|way| way.tunnels).collect();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        let measured = client::hello().and_then(|hello| {
            for turn in 0..self.amount.tunnels {
                for index in (0..ways.len()).map(|index| (index + turn) % ways.len()) {
                    let begun = Instant::now();
                    let mut stream = ways[index].open(self.origin)?;
                    client::echo(&mut stream, &hello)?;
                    times[index].push(begun.elapsed().as_secs_f64() * 1e6);
                }
            }
            Ok(())
        });
        if let Some(first) = ways.first() {
            self.note(first, Metric::SetUp, measured);
        }
        for (way, mut times) in ways.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            for (metric, part) in [(Metric::SetUp, 0.5), (Metric::SetUpP99, 0.99)] {
                rank(&times, part)
                    .into_iter()
                    .for_each(|value| self.samples.add(way.name, metric, value));
            }
        }
    }

    /// Requests over TLS on both sides, on connections that are kept.
    fn requests(&mut self, way: &Way) -> io::Result<()> {
        let Some(ca) = &way.ca else { return Ok(()) };
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            let mut connection = Secure::open(way, ca, self.origin)?;
            connection.ask()?;
            connections.push(connection);
        }
        let (time, before, begun) = (self.amount.time, processor_time(way)?, Instant::now());
        let asking = |mut connection: Secure| {
            move || -> io::Result<usize> {
                let mut done = 0;
                // At least one: a slow way has less time than a request takes.
                while done == 0 || begun.elapsed() < time {
                    connection.ask()?;
                    done += 1;
                }
                Ok(done)
            }
        };
        let threads: Vec<_> = connections
            .into_iter()
            .map(|connection| thread::spawn(asking(connection)))
            .collect();
        let mut done = 0;
        for thread in threads {
            done += thread
                .join()
                .map_err(|_| io::Error::other("a client panicked"))??;
        }
        self.samples.add(
            way.name,
            Metric::RequestRate,
            done as f64 / begun.elapsed().as_secs_f64(),
        );
        if way.process.is_some() {
            let processor = processor_time(way)? - before;
            self.samples
                .add(way.name, Metric::RequestCost, processor * 1e6 / done as f64);
        }
        Ok(())
    }

    /// What it holds before, and with so many tunnels that stand and are silent.
    fn idle_tunnels(&mut self, way: &Way) -> io::Result<()> {
        let Some(process) = &way.process else {
            return Ok(());
        };
        let hello = client::hello()?;
        client::echo(&mut way.open(self.origin)?, &hello)?;
        self.samples.add(way.name, Metric::Idle, process.memory()?);
        let mut tunnels = Vec::new();
        for _ in 0..self.amount.idle {
            let mut tunnel = way.open(self.origin)?;
            client::echo(&mut tunnel, &hello)?;
            tunnels.push(tunnel);
        }
        self.samples
            .add(way.name, Metric::IdleTunnels, process.memory()?);
        Ok(())
    }
}

fn processor_time(way: &Way) -> io::Result<f64> {
    way.process
        .as_ref()
        .map_or(Ok(0.0), |process| process.processor_time())
}

/// By nearest rank.
fn rank(sorted: &[f64], part: f64) -> Option<f64> {
    let index = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}
