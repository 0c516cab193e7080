//! What `airlock worker sam` opens, in this order: log, engine, artifacts, calls, tools, and only then the link to the broker:
//! whatever comes by it finds its tool.

use super::{
    super::{message::Failure, open_engine},
    broker::on,
    ledger,
};
use crate::config::Config;
use engine::Engine;
use spec::ErrorCode;
use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};
use tokio::{
    signal::unix::SignalKind,
    sync::{mpsc, watch},
    time::timeout,
};
use worker::{
    artifacts::Shelf,
    call::Caller,
    health::{self, Health},
    ipc::{self, Models},
    log::{Level, Line, Log},
    metrics::Metrics,
    sam::{self, Defaults, Ended, Failed, Hands, Stop, Undiscovered, Worker},
    settings::{Notice, Settings},
    tell::Teller,
    tools::{
        self, Catalog, Report,
        packages::{Index, Installer},
        sync::{self, ToolSync},
    },
    transport::LinkState,
    wire::answer::LARGEST,
};

/// How long every tool may take to be looked at, for `--check`: installing packages is among it.
const LONGEST_CHECK: Duration = Duration::from_secs(600);
/// Failures that wait to be told to the mesh.
const MOST_FAILURES: usize = 64;

/// What there would be.
pub(super) struct Found {
    pub(super) tools: Catalog,
    pub(super) problems: Vec<String>,
}

/// Looks at every tool as a worker would, and ends.
pub(super) async fn look(config: &Config, settings: &Settings) -> Result<Found, Failure> {
    let engine = open_engine(config, None)?;
    let calls = settings.call(Path::exists);
    let caller = Caller::new(engine.clone(), Shelf::memory(), None, calls);
    let watching = watched(config, settings, &engine)?;
    let (mut catalog, mut reports) = tools::watch(watching, Arc::new(caller.clone()));
    // Every report of a look is there before the catalog is.
    let is_whole = timeout(LONGEST_CHECK, catalog.changed()).await.is_ok();
    let mut problems = Vec::new();
    while let Ok(report) = reports.try_recv() {
        match report {
            Report::Problem(problem) | Report::Failed { problem, .. } => problems.push(problem.to_string()),
            Report::Note(_) => {}
        }
    }
    if !is_whole {
        problems.push("not every tool could be looked at in time".to_owned());
    }
    let tools = catalog.borrow().clone();
    drop(catalog);
    caller.close().await;
    engine.close().await;
    Ok(Found { tools, problems })
}

/// Serves until it is told to end, or the broker is lost for good.
pub(super) async fn serve(
    config: &Config,
    settings: Settings,
    notices: Vec<Notice>,
) -> Result<Result<Ended, Failed>, Failure> {
    let stop = on_signals()?;
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::internal(format!("{what}: {error}"));
    let log = Log::on_stderr(settings.log).map_err(|error| failed("cannot start the log", &error))?;
    for notice in &notices {
        log.tell(Line::new(Level::Warn, "setting").message(notice.to_string()));
    }
    let metrics = Arc::new(Metrics::new());
    let (engine, _till) = ledger::open(config, &settings)?;
    ledger::keep(config, engine.clone(), log.clone());
    let caller = open_caller(&settings, &engine)?;
    let (links, link) = watch::channel(LinkState::Connecting { why: String::new() });
    let (known, tools) = watch::channel(health::Tools::Pending);
    let parked = caller.clone();
    let health = Health {
        link,
        tools,
        is_draining: draining(stop.clone()),
        metrics: metrics.clone(),
        parked: Arc::new(move || parked.parked()),
    };
    serve_health(health, &settings).await?;
    let barriers = caller.prepare().await.map_err(|refusal| Failure {
        code: ErrorCode::Internal,
        message: format!("tools cannot be run: {}", refusal.message),
        hint: "`airlock doctor` says what this machine lacks".to_owned(),
    })?;
    log.tell(Line::new(Level::Info, "contained").with("barriers", barriers));
    bring_tools(&settings, &known, &log).await?;
    let watching = watched(config, &settings, &engine)?;
    let (mut catalog, reports) = tools::watch(watching, Arc::new(caller.clone()));
    let undiscovered = tell_reports(reports, log.clone());
    // It is told of in any case, if only as empty.
    _ = catalog.changed().await;
    known.send_if_modified(|known| {
        let is_first = *known == health::Tools::Pending;
        *known = if is_first { health::Tools::Ready } else { *known };
        is_first
    });
    count_tools(catalog.clone(), metrics.clone());
    let hidden = Arc::new(settings.hidden(&config.state));
    let teller = Teller { metrics, log: log.clone(), hidden };
    let worker = worker(config, &settings, &engine, caller, (catalog, undiscovered), teller)?;
    follow(worker.link.state.clone(), links);
    let ended = sam::serve(worker, stop).await;
    engine.close().await;
    log.flush();
    Ok(ended)
}

fn worker(
    config: &Config,
    settings: &Settings,
    engine: &Engine,
    caller: Caller,
    (catalog, undiscovered): (watch::Receiver<Catalog>, mpsc::Receiver<Undiscovered>),
    teller: Teller,
) -> Result<Worker<Hands>, Failure> {
    let bounds = settings.bounds();
    let subscribed = sam::subscriptions(&settings.base, &catalog.borrow());
    let most = bounds.slots.saturating_add(bounds.waiting);
    let link = settings.transport().link(subscribed.clone(), settings.broker.patience, most);
    let link = link.map_err(|trouble| {
        Failure::invalid(trouble.message, "`airlock worker sam --help` lists the variables that say how")
    })?;
    let (state, room) = (config.state.clone(), engine.clone());
    Ok(Worker {
        base: settings.base.clone(),
        is_kept: link.redelivers,
        link,
        subscribed,
        catalog,
        undiscovered,
        calls: Hands::new(caller, settings.calls.interpreter(Path::exists)),
        bounds,
        defaults: Defaults {
            timeout: settings.calls.default_timeout,
            profile: settings.calls.default_profile,
            largest: LARGEST,
        },
        grace: settings.calls.drain,
        is_full: Arc::new(move || room.is_nearly_full() || sam::is_short_of_room(&state)),
        note: teller.note(),
    })
}

fn open_caller(settings: &Settings, engine: &Engine) -> Result<Caller, Failure> {
    let shelf = Shelf::open(settings.shelf())
        .map_err(|error| Failure::invalid(error.to_string(), "mend what the ARTIFACT_ variables say"))?;
    let models = settings.calls.model.as_ref().map(|model| {
        let mut asked = ipc::Settings::new(Some(model.provider.clone()), &model.model);
        asked.budget.money = Some(model.budget);
        Models::new(engine.clone(), asked)
    });
    let models = models.transpose().map_err(|why| {
        Failure::invalid(
            why,
            "SAM_LLM_PROVIDER names a provider of the configuration file, SAM_LLM_MODEL a model",
        )
    })?;
    Ok(Caller::new(engine.clone(), shelf, models, settings.call(Path::exists)))
}

fn watched(config: &Config, settings: &Settings, engine: &Engine) -> Result<tools::Settings, Failure> {
    let python = settings.calls.interpreter(Path::exists);
    let index =
        Index { url: settings.tools.index.clone(), trusted_host: settings.tools.trusted_host.clone() };
    let folder = config.state.join("worker/packages");
    let installer = Installer::open(engine.clone(), folder, python.clone(), index)
        .map_err(|problem| Failure::invalid(problem.message, problem.hint))?;
    Ok(tools::Settings {
        manifest: settings.tools.manifest.clone(),
        folder: settings.tools.folder.clone(),
        python_dir: settings.tools.python.clone(),
        site: settings.tools.site_packages.clone(),
        python,
        installer: Some(installer),
        base: settings.base.clone(),
        every: tools::EVERY,
    })
}

/// Tools from object storage: they are waited for, but not for ever, and are brought again and again.
async fn bring_tools(
    settings: &Settings,
    known: &watch::Sender<health::Tools>,
    log: &Log,
) -> Result<(), Failure> {
    let Some(from) = settings.tool_sync() else { return Ok(()) };
    let sync = ToolSync::open(from).map_err(|error| {
        Failure::invalid(error.to_string(), "mend what the variables of object storage say")
    })?;
    let (mut first, mut state) = (sync.state(), sync.state());
    tokio::spawn(sync.run());
    let (told, to) = (known.clone(), log.clone());
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            let now = state.borrow_and_update().clone();
            tell_sync(&now, &told, &to);
        }
    });
    if sync::first(&mut first, sync::FIRST).await == sync::State::Waiting {
        tell_sync(&sync::State::Waiting, known, log);
    }
    Ok(())
}

fn tell_sync(state: &sync::State, known: &watch::Sender<health::Tools>, log: &Log) {
    let (line, now) = match state {
        sync::State::Waiting => {
            let line = Line::new(Level::Error, "tools_not_brought");
            (
                line.message("object storage has not answered yet; what is there is served"),
                health::Tools::SyncFailed,
            )
        }
        sync::State::Failed(why) => {
            (Line::new(Level::Error, "tools_not_brought").message(why.clone()), health::Tools::SyncFailed)
        }
        sync::State::Ok { refused } if refused.is_empty() => {
            (Line::new(Level::Info, "tools_brought"), health::Tools::Ready)
        }
        sync::State::Ok { refused } => {
            let line = Line::new(Level::Warn, "tools_brought").message("some keys cannot be files here");
            (line.with("refused", refused.clone()), health::Tools::Ready)
        }
    };
    log.tell(line);
    known.send_replace(now);
}

/// Logs what is reported of tools; what the mesh should know of comes out again.
fn tell_reports(mut reports: mpsc::Receiver<Report>, log: Log) -> mpsc::Receiver<Undiscovered> {
    let (failures, undiscovered) = mpsc::channel(MOST_FAILURES);
    tokio::spawn(async move {
        while let Some(report) = reports.recv().await {
            match report {
                Report::Note(text) => log.tell(Line::new(Level::Info, "tools").message(text)),
                Report::Problem(problem) => {
                    log.tell(Line::new(Level::Warn, "manifest").message(problem.to_string()));
                }
                Report::Failed { tool, problem } => {
                    log.tell(Line::new(Level::Error, "tool_left_out").message(problem.to_string()));
                    // While there is no broker, the log alone has the rest.
                    _ = failures.try_send(Undiscovered { tool, why: problem.message });
                }
            }
        }
    });
    undiscovered
}

/// Only tools that there are have numbers of their own.
fn count_tools(mut catalog: watch::Receiver<Catalog>, metrics: Arc<Metrics>) {
    tokio::spawn(async move {
        loop {
            let names: BTreeSet<String> = catalog.borrow_and_update().keys().cloned().collect();
            metrics.tools(names.iter().map(String::as_str));
            if catalog.changed().await.is_err() {
                return;
            }
        }
    });
}

async fn serve_health(health: Health, settings: &Settings) -> Result<(), Failure> {
    let Some(port) = settings.health_port else { return Ok(()) };
    let listener = health::listen(port).await.map_err(|error| {
        Failure::invalid(
            format!("cannot listen on port {port} for questions about health: {error}"),
            "choose another HEALTH_PORT, or 0 for none",
        )
    })?;
    tokio::spawn(health.serve(listener));
    Ok(())
}

fn follow(mut from: watch::Receiver<LinkState>, to: watch::Sender<LinkState>) {
    tokio::spawn(async move {
        loop {
            let now = from.borrow_and_update().clone();
            to.send_replace(now);
            if from.changed().await.is_err() {
                return;
            }
        }
    });
}

fn draining(mut stop: watch::Receiver<Stop>) -> watch::Receiver<bool> {
    let (told, is_draining) = watch::channel(false);
    tokio::spawn(async move {
        // Whoever can no longer stop it has not stopped it.
        if stop.wait_for(|stop| *stop != Stop::No).await.is_ok() {
            told.send_replace(true);
        }
        told.closed().await;
    });
    is_draining
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
