//! The worker's startup, in this order: log, engine, artifacts, calls, tools, and last the broker
//! link, so that every request finds its tool.

use super::{
    super::{message::Failure, open_engine},
    broker::signal_stream,
    ledger_rotation,
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
    artifacts::ArtifactStore,
    call::CallRunner,
    health::{self, Health},
    ipc::{self, ModelProxy},
    log::{self, Log, LogEntry, LogSeverity},
    metrics::Metrics,
    sam::{
        self, CallDefaults, SandboxExecutor, Shutdown, ShutdownReport, UndiscoveredTool, Worker,
        WorkerError,
    },
    settings::{SettingNotice, WorkerSettings},
    telemetry::Telemetry,
    tools::{
        self, Catalog, PendingEntries, ToolReport,
        packages::{Installer, PackageIndex},
        sync::{self, ToolSync},
    },
    transport::{ConnectionError, LinkState},
    wire::answer::MAX_MESSAGE_BYTES,
};

/// The limit for preparing all tools with `--check`, including package installation.
const CHECK_TIMEOUT: Duration = Duration::from_secs(600);
/// Tool failures queued for the mesh.
const FAILURE_QUEUE: usize = 64;

/// The result of `--check`.
pub(super) struct CheckReport {
    pub(super) tools: Catalog,
    pub(super) problems: Vec<String>,
    /// Observations that are no errors.
    pub(super) notes: Vec<String>,
}

/// Opens everything as a worker would, prepares every tool, and stops. Broker, stores and servers
/// are not contacted.
pub(super) async fn check(
    config: &Config,
    settings: &WorkerSettings,
) -> Result<CheckReport, Failure> {
    let engine = open_engine(config, None)?;
    let mut problems = Vec::new();
    let caller = open_caller(config, settings, &engine).unwrap_or_else(|failure| {
        problems.push(on_one_line(&failure));
        CallRunner::new(
            engine.clone(),
            ArtifactStore::memory(),
            None,
            settings.call(hidden_paths(config, settings), Path::exists),
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
        check_containment(&caller, settings)
            .await
            .err()
            .map(|failure| on_one_line(&failure)),
    );
    problems.extend(model_problem(config, settings));
    let notes = caller.warning().into_iter().collect();
    let tools = match catalog_settings(config, settings, &engine) {
        Ok(catalog_settings) => prepare_tools(catalog_settings, &caller, &mut problems).await,
        Err(failure) => {
            problems.push(on_one_line(&failure));
            Catalog::default()
        }
    };
    caller.close().await;
    engine.close().await;
    Ok(CheckReport {
        tools,
        problems,
        notes,
    })
}

fn on_one_line(failure: &Failure) -> String {
    format!("{}; {}", failure.message, failure.hint)
}

/// Waits until every tool is prepared or has failed.
async fn prepare_tools(
    catalog_settings: tools::CatalogSettings,
    caller: &CallRunner,
    problems: &mut Vec<String>,
) -> Catalog {
    let (catalog, mut reports, mut pending) =
        tools::watch_all(catalog_settings, Arc::new(caller.clone()));
    let mut gather = |report: ToolReport| match report {
        ToolReport::Problem(problem)
        | ToolReport::Kept(problem)
        | ToolReport::Failed { problem, .. } => {
            problems.push(problem.to_string());
        }
        ToolReport::Note(_) => {}
    };
    let is_settled = |now: &PendingEntries| now.as_ref().is_some_and(BTreeSet::is_empty);
    let settled = async {
        loop {
            tokio::select! {
                _ = pending.wait_for(is_settled) => return,
                Some(report) = reports.recv() => gather(report),
            }
        }
    };
    let in_time = timeout(CHECK_TIMEOUT, settled).await;
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
            CHECK_TIMEOUT.as_secs()
        ));
    }
    catalog.borrow().clone()
}

/// Serves until a signal, or until the broker is lost permanently.
pub(super) async fn serve(
    config: &Config,
    settings: WorkerSettings,
    notices: Vec<SettingNotice>,
) -> Result<Result<ShutdownReport, WorkerError>, Failure> {
    let stop = shutdown_signals()?;
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Failure::internal(format!("{what}: {error}"));
    let log =
        Log::on_stderr(settings.log).map_err(|error| failed("cannot start the log", &error))?;
    for notice in &notices {
        log.write(LogEntry::new(LogSeverity::Warn, "setting").message(notice.to_string()));
    }
    if let Some(why) = model_problem(config, &settings) {
        log.write(LogEntry::new(LogSeverity::Error, "setting").message(why));
    }
    let (engine, _till) = ledger_rotation::open(config, &settings)?;
    ledger_rotation::start(config, engine.clone(), log.clone());
    let caller = open_caller(config, &settings, &engine)?;
    let mut stopped = stop.clone();
    // No call can be running yet.
    let worker = tokio::select! {
        worker = start(config, &settings, &engine, &caller, &log, &stop) => Some(worker?),
        Ok(_) = stopped.wait_for(|stop| *stop != Shutdown::No) => None,
    };
    let ended = match worker {
        Some(worker) => sam::serve(worker, stop).await,
        None => {
            log.write(
                LogEntry::new(LogSeverity::Info, "ended")
                    .message("stopped before anything was served"),
            );
            caller.close().await;
            Ok(ShutdownReport { cut: 0 })
        }
    };
    engine.close().await;
    log.flush();
    Ok(ended)
}

/// Starts everything up to the broker link. This takes as long as fetching and preparing the tools.
async fn start(
    config: &Config,
    settings: &WorkerSettings,
    engine: &Engine,
    caller: &CallRunner,
    log: &Log,
    stop: &watch::Receiver<Shutdown>,
) -> Result<Worker<SandboxExecutor>, Failure> {
    let metrics = Arc::new(Metrics::new());
    let (links, link) = watch::channel(LinkState::Connecting {
        why: String::new(),
        after: 0,
    });
    let (known, tools) = watch::channel(health::ToolsState::Pending);
    let warm = caller.clone();
    let health = Health {
        link,
        tools,
        is_draining: drain_flag(stop.clone()),
        metrics: metrics.clone(),
        warm_interpreters: Arc::new(move || warm.warm_count()),
    };
    serve_health(health, settings).await?;
    let barriers = check_containment(caller, settings).await?;
    log.write(LogEntry::new(LogSeverity::Info, "contained").with("barriers", barriers));
    if let Some(why) = caller.warning() {
        log.write(LogEntry::new(LogSeverity::Warn, "none_kept_ready").message(why));
    }
    let sync_state = sync_tools(settings, log).await?;
    let catalog_settings = catalog_settings(config, settings, engine)?;
    let (mut catalog, reports) = tools::watch(catalog_settings, Arc::new(caller.clone()));
    let hidden_paths = Arc::new(hidden_paths(config, settings));
    let undiscovered = log_reports(reports, log.clone(), hidden_paths.clone());
    // The catalog changes once in any case, even if it is empty.
    _ = catalog.changed().await;
    publish_tools_state(sync_state, known);
    count_tools(catalog.clone(), metrics.clone());
    let telemetry = Telemetry {
        metrics,
        log: log.clone(),
        hidden: hidden_paths,
    };
    let worker = worker(
        config,
        settings,
        engine,
        caller.clone(),
        (catalog, undiscovered),
        telemetry,
    )?;
    forward_link_state(worker.link.state.clone(), links);
    Ok(worker)
}

/// The barriers of the default profile, which the log lists.
async fn check_containment(
    caller: &CallRunner,
    settings: &WorkerSettings,
) -> Result<Vec<String>, Failure> {
    caller
        .prepare(settings.calls.default_profile)
        .await
        .map_err(|refusal| Failure {
            code: ErrorCode::Internal,
            message: format!("tools cannot be run: {}", refusal.message),
            hint: "`airlock doctor` shows what this machine lacks".to_owned(),
        })
}

/// Why tools cannot call the configured model, if they cannot.
fn model_problem(config: &Config, settings: &WorkerSettings) -> Option<String> {
    let model = settings.calls.model.as_ref()?;
    ipc::unusable_model(
        &config.doors.catalogue_with_prices(),
        &model.provider,
        &model.model,
    )
}

fn connection_failure(error: ConnectionError) -> Failure {
    Failure::invalid(
        error.message,
        "`airlock worker sam --help` names the page that lists the variables",
    )
}

fn check_broker(settings: &WorkerSettings) -> Result<(), Failure> {
    let bounds = settings.bounds();
    settings
        .transport()
        .check(bounds.slots.saturating_add(bounds.waiting))
        .map_err(connection_failure)
}

fn worker(
    config: &Config,
    settings: &WorkerSettings,
    engine: &Engine,
    caller: CallRunner,
    (catalog, undiscovered): (watch::Receiver<Catalog>, mpsc::Receiver<UndiscoveredTool>),
    telemetry: Telemetry,
) -> Result<Worker<SandboxExecutor>, Failure> {
    let bounds = settings.bounds();
    let subscribed = sam::subscriptions(&settings.base, &catalog.borrow());
    let max_calls = bounds.slots.saturating_add(bounds.waiting);
    let link = settings
        .transport()
        .link(subscribed.clone(), settings.broker.reconnect, max_calls);
    let link = link.map_err(connection_failure)?;
    let state = config.state.clone();
    let disk = engine.clone();
    Ok(Worker {
        base: settings.base.clone(),
        redelivers: link.redelivers,
        link,
        subscribed,
        catalog,
        undiscovered,
        calls: SandboxExecutor::new(caller, settings.calls.interpreter(Path::exists)),
        bounds,
        defaults: CallDefaults {
            timeout: settings.calls.default_timeout,
            profile: settings.calls.default_profile,
            largest: MAX_MESSAGE_BYTES,
        },
        grace: settings.calls.drain,
        is_disk_full: Arc::new(move || disk.is_nearly_full() || sam::is_disk_low(&state)),
        events: telemetry.into_sink(),
    })
}

fn open_caller(
    config: &Config,
    settings: &WorkerSettings,
    engine: &Engine,
) -> Result<CallRunner, Failure> {
    let store = ArtifactStore::open(settings.artifact_store())
        .map_err(|error| Failure::invalid(error.to_string(), "correct the ARTIFACT_ variables"))?;
    let models = settings.calls.model.as_ref().map(|model| {
        let mut model_settings =
            ipc::ModelSettings::new(Some(model.provider.clone()), &model.model);
        model_settings.budget.money = Some(model.budget);
        ModelProxy::new(engine.clone(), model_settings)
    });
    let models = models.transpose().map_err(|why| {
        Failure::invalid(
            why,
            "SAM_LLM_PROVIDER names a provider of the configuration file, SAM_LLM_MODEL a model",
        )
    })?;
    Ok(CallRunner::new(
        engine.clone(),
        store,
        models,
        settings.call(hidden_paths(config, settings), Path::exists),
    ))
}

fn hidden_paths(config: &Config, settings: &WorkerSettings) -> Vec<PathBuf> {
    log::path_aliases(settings.hidden(&config.state))
}

fn catalog_settings(
    config: &Config,
    settings: &WorkerSettings,
    engine: &Engine,
) -> Result<tools::CatalogSettings, Failure> {
    let python = settings.calls.interpreter(Path::exists);
    let index = PackageIndex {
        url: settings.tools.index.clone(),
        trusted_host: settings.tools.trusted_host.clone(),
    };
    let folder = config.state.join("worker/packages");
    let installer = Installer::open(engine.clone(), folder, python.clone(), index)
        .map_err(|problem| Failure::invalid(problem.message, problem.hint))?;
    Ok(tools::CatalogSettings {
        manifest: settings.tools.manifest.clone(),
        folder: settings.tools.folder.clone(),
        python_dir: settings.tools.python.clone(),
        site: settings.tools.site_packages.clone(),
        python,
        installer: Some(installer),
        base: settings.base.clone(),
        every: tools::SCAN_INTERVAL,
    })
}

fn open_sync(settings: &WorkerSettings) -> Result<Option<ToolSync>, Failure> {
    settings
        .tool_sync()
        .map(ToolSync::open)
        .transpose()
        .map_err(|error| {
            Failure::invalid(error.to_string(), "correct the variables of object storage")
        })
}

/// Starts syncing tools from object storage. The first sync is awaited with a timeout, later ones
/// run in the background.
async fn sync_tools(
    settings: &WorkerSettings,
    log: &Log,
) -> Result<Option<watch::Receiver<sync::SyncState>>, Failure> {
    let Some(sync) = open_sync(settings)? else {
        return Ok(None);
    };
    let mut first = sync.state();
    let mut state = sync.state();
    tokio::spawn(sync.run());
    let to = log.clone();
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            to.write(line(&state.borrow_and_update()));
        }
    });
    if sync::wait_for_first(&mut first, sync::FIRST_SYNC_TIMEOUT).await == sync::SyncState::Waiting
    {
        log.write(line(&sync::SyncState::Waiting));
    }
    Ok(Some(first))
}

fn line(sync_state: &sync::SyncState) -> LogEntry {
    match sync_state {
        sync::SyncState::Waiting => LogEntry::new(LogSeverity::Error, "tools_not_brought")
            .message("object storage is slow; the tools that are present are served meanwhile"),
        sync::SyncState::Failed(why) => {
            LogEntry::new(LogSeverity::Error, "tools_not_brought").message(why.clone())
        }
        sync::SyncState::Ok { refused } if refused.is_empty() => {
            LogEntry::new(LogSeverity::Info, "tools_brought")
        }
        sync::SyncState::Ok { refused } => LogEntry::new(LogSeverity::Warn, "tools_brought")
            .message("some keys cannot be files here")
            .with("refused", refused.clone()),
    }
}

/// Reports the tools as ready once the first sync has finished.
fn publish_tools_state(
    sync_state: Option<watch::Receiver<sync::SyncState>>,
    known: watch::Sender<health::ToolsState>,
) {
    let Some(mut sync_state) = sync_state else {
        known.send_replace(health::ToolsState::Ready);
        return;
    };
    tokio::spawn(async move {
        loop {
            known.send_replace(match *sync_state.borrow_and_update() {
                sync::SyncState::Ok { .. } => health::ToolsState::Ready,
                sync::SyncState::Waiting | sync::SyncState::Failed(_) => {
                    health::ToolsState::SyncFailed
                }
            });
            if sync_state.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Logs tool reports, and forwards failures to the mesh without paths of this machine.
fn log_reports(
    mut reports: mpsc::Receiver<ToolReport>,
    log: Log,
    hidden_paths: Arc<Vec<PathBuf>>,
) -> mpsc::Receiver<UndiscoveredTool> {
    let (failures, undiscovered) = mpsc::channel(FAILURE_QUEUE);
    tokio::spawn(async move {
        while let Some(report) = reports.recv().await {
            match report {
                ToolReport::Note(text) => {
                    log.write(LogEntry::new(LogSeverity::Info, "tools").message(text))
                }
                ToolReport::Problem(problem) => {
                    log.write(
                        LogEntry::new(LogSeverity::Warn, "manifest").message(problem.to_string()),
                    );
                }
                ToolReport::Kept(problem) => {
                    log.write(
                        LogEntry::new(LogSeverity::Warn, "tool_kept").message(problem.to_string()),
                    );
                }
                ToolReport::Failed { tool, problem } => {
                    log.write(
                        LogEntry::new(LogSeverity::Error, "tool_left_out")
                            .message(problem.to_string()),
                    );
                    let why = log::hide(problem.message, &hidden_paths);
                    // A full queue drops the failure: the log has it.
                    _ = failures.try_send(UndiscoveredTool { tool, why });
                }
            }
        }
    });
    undiscovered
}

/// Only existing tools have metrics of their own.
fn count_tools(mut catalog: watch::Receiver<Catalog>, metrics: Arc<Metrics>) {
    tokio::spawn(async move {
        loop {
            let names: BTreeSet<String> = catalog.borrow_and_update().keys().cloned().collect();
            metrics.set_tools(names.iter().map(String::as_str));
            if catalog.changed().await.is_err() {
                return;
            }
        }
    });
}

async fn serve_health(health: Health, settings: &WorkerSettings) -> Result<(), Failure> {
    let Some(port) = settings.health_port else {
        return Ok(());
    };
    let listener = health::listen(port).await.map_err(|error| {
        Failure::invalid(
            format!("cannot listen on port {port} for health checks: {error}"),
            "choose another HEALTH_PORT, or 0 to disable it",
        )
    })?;
    tokio::spawn(health.serve(listener));
    Ok(())
}

fn forward_link_state(mut from: watch::Receiver<LinkState>, to: watch::Sender<LinkState>) {
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

fn drain_flag(mut stop: watch::Receiver<Shutdown>) -> watch::Receiver<bool> {
    let (drain, is_draining) = watch::channel(false);
    tokio::spawn(async move {
        // A dropped sender is not a shutdown.
        if stop.wait_for(|stop| *stop != Shutdown::No).await.is_ok() {
            drain.send_replace(true);
        }
        drain.closed().await;
    });
    is_draining
}

/// The first signal drains calls, the second ends them.
fn shutdown_signals() -> Result<watch::Receiver<Shutdown>, Failure> {
    let mut terminate = signal_stream(SignalKind::terminate())?;
    let mut interrupt = signal_stream(SignalKind::interrupt())?;
    let (stops, stop) = watch::channel(Shutdown::No);
    tokio::spawn(async move {
        for shutdown in [Shutdown::Drain, Shutdown::Now] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stops.send_replace(shutdown);
        }
        // The sender lives as long as the receivers: a dropped one would read as a change.
        stops.closed().await;
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::tools::ToolProblem;

    #[tokio::test]
    async fn the_mesh_is_told_of_no_path_of_this_machine() {
        let log = Log::new(spec::LogFormat::Json, std::io::sink()).unwrap();
        let (reports, reported) = mpsc::channel(2);
        let mut failures = log_reports(reported, log, Arc::new(vec!["/home/ana/state".into()]));
        for why in [
            "cannot create `/home/ana/state/runs/1`: no room",
            "it is no `/tools/python/x.py`",
        ] {
            let tool = "t".to_owned();
            let problem = ToolProblem::new(why, "");
            reports
                .send(ToolReport::Failed { tool, problem })
                .await
                .unwrap();
        }
        assert_eq!(
            failures.recv().await.unwrap().why,
            "cannot create `…/runs/1`: no room"
        );
        assert_eq!(
            failures.recv().await.unwrap().why,
            "it is no `/tools/python/x.py`",
            "the control"
        );
    }
}
