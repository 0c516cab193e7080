//! `airlock worker sam`: opens what a worker needs, serves until it is told to end, and says how it ended.

use super::{
    super::{
        Global, leave_no_dump,
        message::{self, Failure, Line},
        open_engine, print_json, print_lines,
    },
    broker::on,
    stub::{self, Said},
};
use crate::config::{Config, Surroundings};
use clap::Args;
use engine::Engine;
use spec::ErrorCode;
use std::{num::NonZeroUsize, sync::Arc, thread};
use tokio::{
    runtime::Runtime,
    signal::unix::SignalKind,
    sync::{mpsc, watch},
};
use worker::{
    artifacts::Shelf,
    call::{self, Caller},
    sam::{self, Ended, Failed, Noted, Stop, Worker},
    tools::Catalog,
};

const EXAMPLES: &str = "\
Examples:
  SAM_NAMESPACE=demo SAM_TRANSPORT=tcp://127.0.0.1:55554 airlock worker sam
  SAM_NAMESPACE=demo SAM_TRANSPORT=mqtts://broker.example:8883 airlock worker sam --check
  SAM_NAMESPACE=demo SOLACE_HOST=broker.example:5671 airlock worker sam --check --json

Everything else is said by the environment, in the words of the workers that it takes the place of:
  SAM_NAMESPACE           whose mesh (required)
  SAM_WORKER_ID           the pool that this worker belongs to [default: sandbox-worker-001]
  SAM_TRANSPORT           the broker: mqtt://HOST:PORT, mqtts://…, amqp://…, amqps://…, or tcp://…
                          for a development broker; SOLACE_HOST=HOST:PORT, or DEV_BROKER_HOST and
                          DEV_BROKER_PORT, say it as well
  MANIFEST_PATH           the tools [default: /tools/manifest.yaml]
  TOOLS_PYTHON_DIR        their Python modules [default: /tools/python]
  SANDBOX_MAX_CONCURRENT  calls at once [default: 4]

The first SIGTERM or Ctrl-C lets calls that run finish for a while, and takes no new ones; the
second ends them at once.
Exit status: 0, 1 if calls were cut short or the broker was lost for good, or 125 if it could
not start.";

/// Calls were cut short, or there is no broker any more.
const CUT: u8 = 1;
/// More threads than this wait for nothing but each other.
const MOST_THREADS: usize = 4;
/// The largest result that is read: a message cannot have more.
const LARGEST_RESULT: usize = worker::wire::answer::LARGEST;

/// The options of `airlock worker sam`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Read settings and manifest, print what would be served, and end
    #[arg(long)]
    check: bool,
    /// Print one JSON object, with --check
    #[arg(long, requires = "check")]
    pub(super) json: bool,
}

/// Carries out the command.
pub(super) fn attempt(
    options: &Options,
    global: &Global,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    leave_no_dump()?;
    let config = global.configure(surroundings)?;
    let said = stub::read(surroundings)?;
    if options.check {
        check(&said, &stub::catalog(&said)?, options.json)?;
        return Ok(0);
    }
    let runtime = runtime()?;
    runtime.block_on(serve(&config, &said))
}

fn check(said: &Said, catalog: &Catalog, json: bool) -> Result<(), Failure> {
    let tools: Vec<_> = catalog.keys().cloned().collect();
    if json {
        return print_json(&serde_json::json!({
            "namespace": said.base.namespace(),
            "worker_id": said.worker_id,
            "broker": said.broker.to_string(),
            "slots": said.bounds.slots,
            "tools": tools,
        }));
    }
    let head = [
        format!("namespace  {}", said.base.namespace()),
        format!("worker     {}", said.worker_id),
        format!("broker     {}", said.broker),
        format!("slots      {}", said.bounds.slots),
    ];
    print_lines(head.into_iter().chain(tools.iter().map(|tool| format!("tool       {tool}"))))
}

fn runtime() -> Result<Runtime, Failure> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST_THREADS);
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    built.map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))
}

async fn serve(config: &Config, said: &Said) -> Result<u8, Failure> {
    let stop = on_signals()?;
    let engine = open_engine(config, None)?;
    let caller = caller(&engine, said);
    let catalog = stub::catalog(said)?;
    let subscribed = sam::subscriptions(&said.base, &catalog);
    // Whoever follows the manifest keeps the other ends.
    let (_catalogs, catalog) = watch::channel(catalog);
    let (_failures, undiscovered) = mpsc::channel(16);
    let link = stub::link(said, subscribed.clone())?;
    let (state, room) = (config.state.clone(), engine.clone());
    let worker = Worker {
        base: said.base.clone(),
        link,
        subscribed,
        catalog,
        undiscovered,
        calls: caller,
        bounds: said.bounds,
        defaults: said.defaults,
        grace: said.grace,
        is_kept: said.is_kept,
        is_full: Arc::new(move || room.is_nearly_full() || sam::is_short_of_room(&state)),
        note: Arc::new(tell),
    };
    let ended = sam::serve(worker, stop).await;
    engine.close().await;
    conclude(ended)
}

fn caller(engine: &Engine, said: &Said) -> Caller {
    // Here a tool gets its model: through the providers of the configuration, without a key.
    let models = None;
    let settings = call::Settings {
        python: said.python.clone(),
        largest_result: LARGEST_RESULT,
        parked: 0,
        parked_bytes: 0,
    };
    Caller::new(engine.clone(), Shelf::memory(), models, settings)
}

/// The first lets calls finish, the second does not.
fn on_signals() -> Result<watch::Receiver<Stop>, Failure> {
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let (stops, stop) = watch::channel(Stop::No);
    tokio::spawn(async move {
        for wish in [Stop::Drain, Stop::Now] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stops.send_replace(wish);
        }
        // As long as anybody listens: one that is gone would be taken for another wish.
        stops.closed().await;
    });
    Ok(stop)
}

fn conclude(ended: Result<Ended, Failed>) -> Result<u8, Failure> {
    match ended {
        Ok(Ended { cut: 0 }) => Ok(0),
        Ok(Ended { cut }) => {
            message::say(&[
                Line::Error(format!("{cut} calls were not let finish, or their answers reached nobody")),
                Line::Hint("give them more time before the second signal".to_owned()),
            ]);
            Ok(CUT)
        }
        Err(failed) => {
            let lost = Failure {
                code: ErrorCode::Lost,
                message: failed.to_string(),
                hint: "SOLACE_RECONNECT_RETRIES=0 tries for ever".to_owned(),
            };
            message::say(&lost.lines());
            Ok(CUT)
        }
    }
}

/// What is worth a line until the log says it.
fn tell(noted: Noted) {
    let text = match noted {
        Noted::Link(state) => format!("broker: {state:?}"),
        Noted::Announced { tools } => format!("told of {tools} tools"),
        Noted::Refused { which, refusal } => {
            format!("refused {} ({}): {}", which.tool, which.id, refusal.message)
        }
        Noted::Answered { which, how, took, queued } => {
            format!("answered {} ({}): {how:?} in {took:?} after {queued:?}", which.tool, which.id)
        }
        Noted::PublishFailed { topic, why, .. } => format!("cannot send to {topic}: {why}"),
        Noted::Unanswerable { topic, refusal } => format!("nobody to answer at {topic}: {}", refusal.message),
        Noted::Draining { running } => format!("ending; {running} calls are let finish"),
        Noted::Cutting { running } => format!("{running} calls are not let finish"),
        Noted::Received(_)
        | Noted::Started { .. }
        | Noted::Ran { .. }
        | Noted::Duplicate { .. }
        | Noted::Cancelled(_)
        | Noted::UnknownProfile { .. }
        | Noted::Status(_)
        | Noted::StatusesDropped { .. }
        | Noted::Load { .. } => return,
    };
    message::say(&[Line::Note(text)]);
}
