//! What is measured, and in which order: ways take turns within a round, so that what disturbs the machine disturbs all.

use crate::doors::{
    client::{Connection, Reply, body},
    report::Metric,
    ways::Way,
};
use crate::peers::Samples;
use provider::Provider;
use std::{
    fs,
    future::Future,
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinHandle};

/// Frames of a stream.
pub(crate) const FRAMES: usize = 64;
pub(crate) const OPEN_STREAMS: usize = 1000;
/// A paced stream costs little: only many at once show in a clock of 10 ms.
pub(crate) const PACED_AT_ONCE: usize = 256;
const SMALL_PROMPT: usize = 2 << 10;
const LARGE_PROMPT: usize = 200 << 10;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) rounds: usize,
    /// Of each load in each round.
    pub(crate) time: Duration,
    /// Calls one after the other, of each way in each round.
    pub(crate) pairs: usize,
}

/// Measures, and notes what went wrong beside what did not.
pub(crate) struct Bench<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) provider: &'a Provider,
    pub(crate) ways: &'a [Way],
    pub(crate) amount: Amount,
    pub(crate) samples: Samples<Metric>,
}

/// A load that ran.
struct Load {
    done: usize,
    processor_us: f64,
    wall: Duration,
}

impl Bench<'_> {
    /// Everything, in its order.
    pub(crate) fn run(&mut self) {
        // Before any load: what memory was freed by then would hide what streams take.
        for way in self.ways {
            self.memory(way);
        }
        for round in 0..self.amount.rounds {
            eprintln!("round {} of {}", round + 1, self.amount.rounds);
            let unary = body("mock", false, SMALL_PROMPT);
            let large = body("mock-reply_bytes-65536", false, LARGE_PROMPT);
            let stream = body("mock", true, SMALL_PROMPT);
            let paced = body("mock-pace-20", true, SMALL_PROMPT);
            self.in_turns(round, |bench, way| {
                bench.closed_loop(way, Metric::Unary, &unary, 32, 0)
            });
            self.in_turns(round, |bench, way| {
                bench.closed_loop(way, Metric::Large, &large, 8, 0)
            });
            self.in_turns(round, |bench, way| {
                bench.closed_loop(way, Metric::Stream, &stream, 8, FRAMES)
            });
            self.in_turns(round, |bench, way| bench.paced(way, &paced));
            self.in_turns(round, |bench, way| bench.delays(way));
            self.paired(Metric::AddedUnary, Metric::AddedUnaryP99, &unary, |reply| {
                reply.whole
            });
            self.paired(
                Metric::AddedFirst,
                Metric::AddedFirstP99,
                &stream,
                |reply| reply.first,
            );
        }
        for way in self.ways {
            self.note_memory(way, Metric::LoadedMemory);
        }
    }

    /// Another one begins each round.
    fn in_turns(&mut self, round: usize, measure: impl Fn(&mut Self, &Way)) {
        for index in 0..self.ways.len() {
            let way = &self.ways[(index + round) % self.ways.len()];
            measure(self, way);
        }
    }

    fn note<T>(&mut self, way: &Way, metric: Metric, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|error| self.samples.fail(way.name, metric, &error.to_string()))
            .ok()
    }

    fn closed_loop(
        &mut self,
        way: &Way,
        metric: Metric,
        body: &str,
        clients: usize,
        tokens: usize,
    ) {
        let request: Arc<[u8]> = way.target.chat(body).into();
        let time = self.amount.time;
        let load = self.load(way, clients, move |mut connection, start| {
            let request = request.clone();
            async move {
                let mut done = 0;
                // At least one: a slow way has less time than a call takes.
                while done == 0 || start.elapsed() < time {
                    expect(connection.ask(&request).await?, tokens)?;
                    done += 1;
                }
                Ok(done)
            }
        });
        if let Some(load) = self.note(way, metric, load) {
            self.samples
                .add(way.name, metric, load.processor_us / load.done as f64);
            let rate = load.done as f64 / load.wall.as_secs_f64();
            match metric {
                Metric::Unary => self.samples.add(way.name, Metric::UnaryRate, rate),
                Metric::Stream => self.samples.add(way.name, Metric::StreamRate, rate),
                _ => {}
            }
        }
    }

    fn paced(&mut self, way: &Way, body: &str) {
        if way.most_streams < PACED_AT_ONCE {
            return self
                .samples
                .fail(way.name, Metric::Paced, "not asked for so many at once");
        }
        let request: Arc<[u8]> = way.target.chat(body).into();
        let load = self.load(way, PACED_AT_ONCE, move |mut connection, _| {
            let request = request.clone();
            async move { expect(connection.ask(&request).await?, FRAMES).map(|()| 1) }
        });
        if let Some(load) = self.note(way, Metric::Paced, load) {
            self.samples.add(
                way.name,
                Metric::Paced,
                load.processor_us / load.done as f64,
            );
        }
    }

    /// Runs this on so many connections at once, each of which has already served a call.
    fn load<F>(
        &self,
        way: &Way,
        clients: usize,
        work: impl Fn(Connection, Instant) -> F,
    ) -> io::Result<Load>
    where
        F: Future<Output = io::Result<usize>> + Send + 'static,
    {
        let warm = way.target.chat(&body("mock-tokens-1", false, 16));
        self.runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..clients {
                let mut connection = Connection::open(way.target.address).await?;
                connection.ask(&warm).await?;
                connections.push(connection);
            }
            let (before, start) = (processor_time(way)?, Instant::now());
            let tasks = connections
                .into_iter()
                .map(|connection| tokio::spawn(work(connection, start)));
            let done = all(tasks.collect()).await?.iter().sum();
            Ok(Load {
                done,
                processor_us: processor_time(way)? - before,
                wall: start.elapsed(),
            })
        })
    }

    /// How late frames of paced streams are, by the stamps in them.
    fn delays(&mut self, way: &Way) {
        let request: Arc<[u8]> = way
            .target
            .chat(&body("mock-pace-20-stamp-1", true, SMALL_PROMPT))
            .into();
        let replies = self.runtime.block_on(async {
            let mut tasks = Vec::new();
            for _ in 0..8 {
                let (mut connection, request) =
                    (Connection::open(way.target.address).await?, request.clone());
                tasks.push(tokio::spawn(
                    async move { connection.ask_timed(&request).await },
                ));
            }
            all(tasks).await
        });
        let Some(replies) = self.note(way, Metric::FrameDelay, replies) else {
            return;
        };
        let lost: usize = replies
            .iter()
            .map(|reply| FRAMES.saturating_sub(reply.tokens))
            .sum();
        let mut delays: Vec<f64> = replies.into_iter().flat_map(|reply| reply.delays).collect();
        delays.sort_by(f64::total_cmp);
        self.samples.add(way.name, Metric::LostFrames, lost as f64);
        for (metric, part) in [
            (Metric::FrameDelay, 0.5),
            (Metric::FrameDelayP99, 0.99),
            (Metric::FrameDelayWorst, 1.0),
        ] {
            rank(&delays, part)
                .into_iter()
                .for_each(|value| self.samples.add(way.name, metric, value));
        }
    }

    /// One call after the other, each by every way in turn; what each adds to the direct one of the same turn.
    fn paired(
        &mut self,
        median: Metric,
        slowest: Metric,
        body: &str,
        part: fn(&Reply) -> Duration,
    ) {
        let ways = self.ways;
        let mut added: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        let measured = self.runtime.block_on(async {
            let mut connections = Vec::new();
            for way in ways {
                connections.push((
                    Connection::open(way.target.address).await?,
                    way.target.chat(body),
                ));
            }
            for turn in 0..self.amount.pairs {
                let mut times = vec![0.0; ways.len()];
                for index in (0..ways.len()).map(|index| (index + turn) % ways.len()) {
                    let (connection, request) = &mut connections[index];
                    times[index] = part(&connection.ask_timed(request).await?).as_secs_f64() * 1e6;
                }
                // The first is the direct one.
                times
                    .iter()
                    .zip(&mut added)
                    .for_each(|(time, added)| added.push(time - times[0]));
            }
            Ok(())
        });
        if self.note(&ways[0], median, measured).is_none() {
            return;
        }
        for (way, mut added) in ways.iter().zip(added) {
            added.sort_by(f64::total_cmp);
            rank(&added, 0.5)
                .into_iter()
                .for_each(|value| self.samples.add(way.name, median, value));
            rank(&added, 0.99)
                .into_iter()
                .for_each(|value| self.samples.add(way.name, slowest, value));
        }
    }

    fn memory(&mut self, way: &Way) {
        if way.gateway.is_none() {
            return;
        }
        let first = way.target.chat(&body("mock", false, SMALL_PROMPT));
        let asked = self.runtime.block_on(async {
            Connection::open(way.target.address)
                .await?
                .ask(&first)
                .await
        });
        if self.note(way, Metric::IdleMemory, asked).is_none() {
            return;
        }
        let Some(idle) = self.note_memory(way, Metric::IdleMemory) else {
            return;
        };
        if way.most_streams < OPEN_STREAMS {
            return self.samples.fail(
                way.name,
                Metric::StreamMemory,
                "not asked for so many at once",
            );
        }
        let held = self.open_streams(way);
        if let Some(held) = self.note(way, Metric::StreamMemory, held) {
            self.samples.add(
                way.name,
                Metric::StreamMemory,
                (held - idle) / OPEN_STREAMS as f64,
            );
        }
    }

    fn note_memory(&mut self, way: &Way, metric: Metric) -> Option<f64> {
        let memory = way.gateway.as_ref()?.memory();
        let memory = self.note(way, metric, memory)?;
        self.samples.add(way.name, metric, memory);
        Some(memory)
    }

    /// What it holds while so many streams wait for their second token.
    fn open_streams(&self, way: &Way) -> io::Result<f64> {
        let request = way
            .target
            .chat(&body("mock-tokens-2-hold-1", true, SMALL_PROMPT));
        let held = self.runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..OPEN_STREAMS {
                let mut connection = Connection::open(way.target.address).await?;
                connection.ask_for_first(&request).await?;
                connections.push(connection);
            }
            let held = way
                .gateway
                .as_ref()
                .map_or(Ok(0.0), |gateway| gateway.memory());
            self.provider
                .await_served(|served| served.held == OPEN_STREAMS as u64);
            self.provider.release();
            for connection in &mut connections {
                connection.rest().await?;
            }
            held
        });
        // After a failure some may still wait, and hold what the next one needs.
        self.provider.release();
        held
    }
}

fn expect(tokens: usize, wanted: usize) -> io::Result<()> {
    if wanted != 0 && tokens != wanted {
        return Err(io::Error::other(format!("{tokens} of {wanted} frames")));
    }
    Ok(())
}

async fn all<T>(tasks: Vec<JoinHandle<io::Result<T>>>) -> io::Result<Vec<T>> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.map_err(io::Error::other)??);
    }
    Ok(results)
}

/// In microseconds; where nothing is between, of our provider's thread.
fn processor_time(way: &Way) -> io::Result<f64> {
    let seconds = match &way.gateway {
        Some(gateway) => gateway.processor_time(),
        None => provider_time(),
    };
    Ok(seconds? * 1e6)
}

fn provider_time() -> io::Result<f64> {
    for entry in fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        if fs::read_to_string(path.join("comm"))?.trim() == provider::THREAD {
            return crate::peers::processor_time_at(&path.join("stat"));
        }
    }
    Err(io::Error::other("the provider's thread is not there"))
}

/// By nearest rank.
fn rank(sorted: &[f64], part: f64) -> Option<f64> {
    let index = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn ranks_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.5, 0.99, 1.0].map(|part| rank(&values, part)),
            [Some(50.0), Some(99.0), Some(100.0)]
        );
        assert_eq!((rank(&[7.0], 0.5), rank(&[], 0.5)), (Some(7.0), None));
    }
}
