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
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
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
    log::{self, Level, Line, Log},
    metrics::Metrics,
    sam::{self, Defaults, Ended, Failed, Hands, Stop, Undiscovered, Worker},
    settings::{Notice, Settings},
    tell::Teller,
    tools::{
        self, Catalog, Pending, Report,
        packages::{Index, Installer},
        sync::{self, ToolSync},
    },
    transport::{LinkState, Trouble},
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
    /// What is not as it could be, and nobody's mistake.
    pub(super) notes: Vec<String>,
}

/// Opens everything as a worker would, looks at every tool, and ends. The broker, stores and servers are not asked.
pub(super) async fn look(config: &Config, settings: &Settings) -> Result<Found, Failure> {
    let engine = open_engine(config, None)?;
    let mut problems = Vec::new();
    let caller = open_caller(config, settings, &engine).unwrap_or_else(|failure| {
        problems.push(on_one_line(&failure));
        Caller::new(
            engine.clone(),
            Shelf::memory(),
            None,
            settings.call(hidden(config, settings), Path::exists),
        )
    });
    problems.extend(
        check_broker(settings)
            .err()
            .map(|failure| on_one_line(&failure)),
    );
    problems.extend(
        open_sync(settings)
            .err()
            .map(|failure| on_one_line(&failure)),
    );
    problems.extend(
        contain(&caller, settings)
            .await
            .err()
            .map(|failure| on_one_line(&failure)),
    );
    problems.extend(unasked(config, settings));
    let notes = caller.trouble().into_iter().collect();
    let tools = match watched(config, settings, &engine) {
        Ok(watching) => look_at_tools(watching, &caller, &mut problems).await,
        Err(failure) => {
            problems.push(on_one_line(&failure));
            Catalog::default()
        }
    };
    caller.close().await;
    engine.close().await;
    Ok(Found {
        tools,
        problems,
        notes,
    })
}

fn on_one_line(failure: &Failure) -> String {
    format!("{}; {}", failure.message, failure.hint)
}

/// Waits until every tool is prepared, or cannot be.
async fn look_at_tools(
    watching: tools::Settings,
    caller: &Caller,
    problems: &mut Vec<String>,
) -> Catalog {
    let (catalog, mut reports, mut pending) = tools::watch_all(watching, Arc::new(caller.clone()));
    let mut gather = |report: Report| match report {
        Report::Problem(problem) | Report::Kept(problem) | Report::Failed { problem, .. } => {
            problems.push(problem.to_string());
        }
        Report::Note(_) => {}
    };
    let is_settled = |now: &Pending| now.as_ref().is_some_and(BTreeSet::is_empty);
    let settled = async {
        loop {
            tokio::select! {
                _ = pending.wait_for(is_settled) => return,
                Some(report) = reports.recv() => gather(report),
            }
        }
    };
    let in_time = timeout(LONGEST_CHECK, settled).await;
    while let Ok(report) = reports.try_recv() {
        gather(report);
    }
    if in_time.is_err() {
        let names = pending
            .borrow()
            .iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        problems.push(format!(
            "still being prepared after {} s: {names}",
            LONGEST_CHECK.as_secs()
        ));
    }
    catalog.borrow().clone()
}

/// Serves until it is told to end, or the broker is lost for good.
pub(super) async fn serve(
    config: &Config,
    settings: Settings,
    notices: Vec<Notice>,
) -> Result<Result<Ended, Failed>, Failure> {
    let stop = on_signals()?;
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Failure::internal(format!("{what}: {error}"));
    let log =
        Log::on_stderr(settings.log).map_err(|error| failed("cannot start the log", &error))?;
    for notice in &notices {
        log.tell(Line::new(Level::Warn, "setting").message(notice.to_string()));
    }
    if let Some(why) = unasked(config, &settings) {
        log.tell(Line::new(Level::Error, "setting").message(why));
    }
    let (engine, _till) = ledger::open(config, &settings)?;
    ledger::keep(config, engine.clone(), log.clone());
    let caller = open_caller(config, &settings, &engine)?;
    let mut stopped = stop.clone();
    // Nobody's call is under way yet.
    let worker = tokio::select! {
        worker = start(config, &settings, &engine, &caller, &log, &stop) => Some(worker?),
        Ok(_) = stopped.wait_for(|stop| *stop != Stop::No) => None,
    };
    let ended = match worker {
        Some(worker) => sam::serve(worker, stop).await,
        None => {
            log.tell(
                Line::new(Level::Info, "ended").message("told to end before anything was served"),
            );
            caller.close().await;
            Ok(Ended { cut: 0 })
        }
    };
    engine.close().await;
    log.flush();
    Ok(ended)
}

/// Everything up to the link to the broker. It takes as long as tools take to come and to be prepared.
async fn start(
    config: &Config,
    settings: &Settings,
    engine: &Engine,
    caller: &Caller,
    log: &Log,
    stop: &watch::Receiver<Stop>,
) -> Result<Worker<Hands>, Failure> {
    let metrics = Arc::new(Metrics::new());
    let (links, link) = watch::channel(LinkState::Connecting {
        why: String::new(),
        after: 0,
    });
    let (known, tools) = watch::channel(health::Tools::Pending);
    let parked = caller.clone();
    let health = Health {
        link,
        tools,
        is_draining: draining(stop.clone()),
        metrics: metrics.clone(),
        parked: Arc::new(move || parked.parked()),
    };
    serve_health(health, settings).await?;
    let barriers = contain(caller, settings).await?;
    log.tell(Line::new(Level::Info, "contained").with("barriers", barriers));
    if let Some(why) = caller.trouble() {
        log.tell(Line::new(Level::Warn, "none_kept_ready").message(why));
    }
    let brought = bring_tools(settings, log).await?;
    let watching = watched(config, settings, engine)?;
    let (mut catalog, reports) = tools::watch(watching, Arc::new(caller.clone()));
    let hidden = Arc::new(hidden(config, settings));
    let undiscovered = tell_reports(reports, log.clone(), hidden.clone());
    // It is told of in any case, if only as empty.
    _ = catalog.changed().await;
    tell_health(brought, known);
    count_tools(catalog.clone(), metrics.clone());
    let teller = Teller {
        metrics,
        log: log.clone(),
        hidden,
    };
    let worker = worker(
        config,
        settings,
        engine,
        caller.clone(),
        (catalog, undiscovered),
        teller,
    )?;
    follow(worker.link.state.clone(), links);
    Ok(worker)
}

/// What stands between tools and this machine, where the manifest says nothing else.
async fn contain(caller: &Caller, settings: &Settings) -> Result<Vec<String>, Failure> {
    caller
        .prepare(settings.calls.default_profile)
        .await
        .map_err(|refusal| Failure {
            code: ErrorCode::Internal,
            message: format!("tools cannot be run: {}", refusal.message),
            hint: "`airlock doctor` says what this machine lacks".to_owned(),
        })
}

/// Why no question of a tool to a model can be answered, where one is configured.
fn unasked(config: &Config, settings: &Settings) -> Option<String> {
    let model = settings.calls.model.as_ref()?;
    ipc::refused_anyway(&config.doors.assembled(), &model.provider, &model.model)
}

fn unlinked(trouble: Trouble) -> Failure {
    Failure::invalid(
        trouble.message,
        "`airlock worker sam --help` says where the variables are listed",
    )
}

fn check_broker(settings: &Settings) -> Result<(), Failure> {
    let bounds = settings.bounds();
    settings
        .transport()
        .check(bounds.slots.saturating_add(bounds.waiting))
        .map_err(unlinked)
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
    let link = settings
        .transport()
        .link(subscribed.clone(), settings.broker.patience, most);
    let link = link.map_err(unlinked)?;
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

fn open_caller(config: &Config, settings: &Settings, engine: &Engine) -> Result<Caller, Failure> {
    let shelf = Shelf::open(settings.shelf()).map_err(|error| {
        Failure::invalid(error.to_string(), "mend what the ARTIFACT_ variables say")
    })?;
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
    Ok(Caller::new(
        engine.clone(),
        shelf,
        models,
        settings.call(hidden(config, settings), Path::exists),
    ))
}

fn hidden(config: &Config, settings: &Settings) -> Vec<PathBuf> {
    log::by_all_names(settings.hidden(&config.state))
}

fn watched(
    config: &Config,
    settings: &Settings,
    engine: &Engine,
) -> Result<tools::Settings, Failure> {
    let python = settings.calls.interpreter(Path::exists);
    let index = Index {
        url: settings.tools.index.clone(),
        trusted_host: settings.tools.trusted_host.clone(),
    };
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

fn open_sync(settings: &Settings) -> Result<Option<ToolSync>, Failure> {
    settings
        .tool_sync()
        .map(ToolSync::open)
        .transpose()
        .map_err(|error| {
            Failure::invalid(
                error.to_string(),
                "mend what the variables of object storage say",
            )
        })
}

/// Tools from object storage: they are waited for, but not for ever, and are brought again and again.
async fn bring_tools(
    settings: &Settings,
    log: &Log,
) -> Result<Option<watch::Receiver<sync::State>>, Failure> {
    let Some(sync) = open_sync(settings)? else {
        return Ok(None);
    };
    let (mut first, mut state) = (sync.state(), sync.state());
    tokio::spawn(sync.run());
    let to = log.clone();
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            to.tell(line(&state.borrow_and_update()));
        }
    });
    if sync::first(&mut first, sync::FIRST).await == sync::State::Waiting {
        log.tell(line(&sync::State::Waiting));
    }
    Ok(Some(first))
}

fn line(brought: &sync::State) -> Line {
    match brought {
        sync::State::Waiting => Line::new(Level::Error, "tools_not_brought")
            .message("object storage takes its time; what is there is served meanwhile"),
        sync::State::Failed(why) => {
            Line::new(Level::Error, "tools_not_brought").message(why.clone())
        }
        sync::State::Ok { refused } if refused.is_empty() => {
            Line::new(Level::Info, "tools_brought")
        }
        sync::State::Ok { refused } => Line::new(Level::Warn, "tools_brought")
            .message("some keys cannot be files here")
            .with("refused", refused.clone()),
    }
}

/// From when on tools were read: what was brought before is not served yet.
fn tell_health(brought: Option<watch::Receiver<sync::State>>, known: watch::Sender<health::Tools>) {
    let Some(mut brought) = brought else {
        known.send_replace(health::Tools::Ready);
        return;
    };
    tokio::spawn(async move {
        loop {
            known.send_replace(match *brought.borrow_and_update() {
                sync::State::Ok { .. } => health::Tools::Ready,
                sync::State::Waiting | sync::State::Failed(_) => health::Tools::SyncFailed,
            });
            if brought.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Logs what is reported of tools; what the mesh should know of comes out again, without paths of this machine, which the engine
/// may name.
fn tell_reports(
    mut reports: mpsc::Receiver<Report>,
    log: Log,
    hidden: Arc<Vec<PathBuf>>,
) -> mpsc::Receiver<Undiscovered> {
    let (failures, undiscovered) = mpsc::channel(MOST_FAILURES);
    tokio::spawn(async move {
        while let Some(report) = reports.recv().await {
            match report {
                Report::Note(text) => log.tell(Line::new(Level::Info, "tools").message(text)),
                Report::Problem(problem) => {
                    log.tell(Line::new(Level::Warn, "manifest").message(problem.to_string()));
                }
                Report::Kept(problem) => {
                    log.tell(Line::new(Level::Warn, "tool_kept").message(problem.to_string()));
                }
                Report::Failed { tool, problem } => {
                    log.tell(Line::new(Level::Error, "tool_left_out").message(problem.to_string()));
                    let why = log::hide(problem.message, &hidden);
                    // While there is no broker, the log alone has the rest.
                    _ = failures.try_send(Undiscovered { tool, why });
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
    let Some(port) = settings.health_port else {
        return Ok(());
    };
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
    let (mut terminate, mut interrupt) =
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use worker::tools::Problem;

    #[tokio::test]
    async fn the_mesh_is_told_of_no_path_of_this_machine() {
        let log = Log::new(spec::LogFormat::Json, std::io::sink()).unwrap();
        let (reports, reported) = mpsc::channel(2);
        let mut told = tell_reports(reported, log, Arc::new(vec!["/home/ana/state".into()]));
        for why in [
            "cannot make `/home/ana/state/runs/1`: no room",
            "it is no `/tools/python/x.py`",
        ] {
            let (tool, problem) = ("t".to_owned(), Problem::new(why, ""));
            reports
                .send(Report::Failed { tool, problem })
                .await
                .unwrap();
        }
        assert_eq!(
            told.recv().await.unwrap().why,
            "cannot make `…/runs/1`: no room"
        );
        assert_eq!(
            told.recv().await.unwrap().why,
            "it is no `/tools/python/x.py`",
            "the control"
        );
    }
}
