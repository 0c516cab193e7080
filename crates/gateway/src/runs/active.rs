//! Active runs and their end. Each run has one task that consumes its output and stores its end; the
//! client that asked for it may be gone by then.
//!
//! ```text
//! accepted in the database ─ active ─ ended in the database ─ recent ─ only in the database
//! ```

use super::{recent::RecentRuns, slow_reader::ReaderPositions};
use crate::{
    Caller, Gateway, Problem, audit, blocking, jobs,
    log::{self, Level, LogFields, LogLine},
    problem::Answer,
    telemetry,
    tenants::{HighWaterMark, memory_of_run},
    trace::SpanContext,
};
use bytes::Bytes;
use engine::{OutputLog, Run, Session, steps::JobControl};
use http::StatusCode;
use serde::Deserialize;
use spec::{
    Barrier, Day, Denial, ErrorCode, ErrorInfo, Id, Root, RunEvent, RunResult, RunSpec, Status,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use store::{
    server_database::{AcceptRunOutcome, NewRun, TenantActivity, WriteTransaction},
    telemetry::{ContainerEnd, NewContainer},
};
use tokio::sync::watch;

/// Bytes of each stream that are kept for event readers; most of them on disk.
const FEED_BYTES: u64 = 4 << 20;
/// Bytes of each stream that are stored in the database.
const STORED_STREAM_BYTES: usize = 64 << 10;
/// Maximum size of a stored result.
const MAX_STORED_RESULT: usize = 1 << 20;
/// A result with more output is serialized on a blocking thread.
const LARGE_OUTPUT: usize = 256 << 10;
/// Exponential backoff of writing an end: first and maximum pause.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Number of accepted runs between two prunings.
const PRUNE_EVERY: u64 = 256;

/// The active and recent runs of the server.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    tables: Mutex<RunTables>,
}

#[derive(Debug, Default)]
struct RunTables {
    live: HashMap<String, Arc<ActiveRun>>,
    recent: RecentRuns,
    accepted: u64,
}

/// A run that is active or has just ended.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    pub(crate) id: Id,
    pub(crate) owner: String,
    pub(crate) task: Option<Id>,
    pub(crate) job: Option<Id>,
    pub(crate) feed: OutputLog,
    progress: watch::Sender<RunProgress>,
    cancelled: watch::Sender<bool>,
    /// Set when the program shall terminate, with its grace period.
    terminated: watch::Sender<Option<Duration>>,
    keeping: ResultRetention,
    pub(super) readers: ReaderPositions,
    /// The job of which this run is an attempt.
    attempt_of: Option<String>,
    /// Ended by the shutdown of the server, not by a client.
    interrupted: AtomicBool,
    /// CPU time so far in milliseconds, and how much of it is counted for the tenant's day.
    cpu_ms: OnceLock<Arc<AtomicU64>>,
    counted_cpu: HighWaterMark,
    /// Output for node telemetry.
    output: telemetry::ContainerOutput,
    meta: RunMeta,
}

/// Attributes of a run for logs, telemetry and quotas.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunMeta {
    /// The API key that asked for the run.
    pub(crate) key: String,
    runtime: &'static str,
    image: String,
    /// Memory limit; and whether the memory quota is not checked.
    memory: u64,
    is_of_admin: bool,
    /// The span of the run.
    pub(crate) span_context: Option<SpanContext>,
}

impl RunMeta {
    /// Adds the memory of the standard input.
    pub(crate) fn with_stdin(self, bytes: usize) -> RunMeta {
        RunMeta {
            memory: self.memory.saturating_add(bytes as u64),
            ..self
        }
    }

    pub(crate) fn of(caller: &Caller, spec: &RunSpec) -> RunMeta {
        RunMeta {
            is_of_admin: caller.is_admin(),
            ..RunMeta::by(&caller.key, spec)
        }
    }

    /// The same without a caller, for a queued job.
    pub(crate) fn by(key: &str, spec: &RunSpec) -> RunMeta {
        let runtime = spec.sandbox.backend.name();
        let image = image(&spec.sandbox.root);
        RunMeta {
            key: key.to_owned(),
            runtime,
            image,
            memory: memory_of_run(spec, 0),
            is_of_admin: false,
            span_context: None,
        }
    }
}

/// How much of a run's result is stored.
#[derive(Clone, Debug)]
pub(crate) struct ResultRetention {
    /// Bytes of each stream.
    pub(crate) stream: usize,
    /// Bytes of the whole result.
    pub(crate) whole: usize,
    /// If set, responses are limited to `stream` bytes, too, and to the output before the gap mark,
    /// which is after this many bytes.
    pub(crate) exact: Option<usize>,
    /// Details of the request that are stored with the result.
    pub(crate) asked: Option<serde_json::Value>,
}

impl Default for ResultRetention {
    fn default() -> ResultRetention {
        ResultRetention {
            stream: STORED_STREAM_BYTES,
            whole: MAX_STORED_RESULT,
            exact: None,
            asked: None,
        }
    }
}

/// Progress of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunProgress {
    pub(crate) started: Option<Vec<Barrier>>,
    pub(crate) denied: Vec<Denial>,
    pub(crate) ended: Option<Arc<FinishedRun>>,
}

/// A result with all of its output, as JSON.
#[derive(Debug, Default)]
pub(crate) enum WholeResult {
    Made(Bytes),
    /// Longer than any response of this tenant's may be.
    #[default]
    TooLong,
}

impl WholeResult {
    fn len(&self) -> usize {
        match self {
            WholeResult::Made(text) => text.len(),
            WholeResult::TooLong => 0,
        }
    }
}

/// The result of a finished run.
#[derive(Debug)]
pub(crate) struct FinishedRun {
    /// The result with all of its output.
    pub(crate) whole: WholeResult,
    /// The result as stored in the database.
    pub(crate) stored: Bytes,
    /// The response instead, if the run could not start.
    pub(crate) problem: Option<Problem>,
}

/// A request for a run.
#[derive(Debug)]
pub(crate) struct NewRunRequest {
    pub(crate) id: Id,
    pub(crate) owner: String,
    pub(crate) task: Option<Id>,
    pub(crate) job: Option<Id>,
    /// Idempotency key, and the hash of its request.
    pub(crate) idempotency_key: Option<(String, [u8; 32])>,
    /// How much of the result is stored.
    pub(crate) keeping: ResultRetention,
    /// Attributes for logs and quotas.
    pub(crate) meta: RunMeta,
}

/// What the root file system is, without paths of this machine.
pub(crate) fn image(root: &Root) -> String {
    match root {
        Root::Host => "host".to_owned(),
        Root::Folder(_) => "folder".to_owned(),
        Root::Image(image) => image.to_string(),
    }
}

/// The outcome of accepting a run.
#[derive(Debug)]
pub(crate) enum AcceptedRun {
    /// The run is new and must be started.
    New(Arc<ActiveRun>),
    /// The idempotency key stands for this earlier run.
    Existing(String),
}

impl Runs {
    fn tables(&self) -> MutexGuard<'_, RunTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Active runs of this tenant, and of all.
    pub(crate) fn counts(&self, owner: &str) -> (usize, usize) {
        let tables = self.tables();
        let own = tables
            .live
            .values()
            .filter(|live| live.owner == owner)
            .count();
        (own, tables.live.len())
    }

    /// Sum of the memory limits of this tenant's active runs.
    pub(crate) fn memory_of(&self, owner: &str) -> u64 {
        let tables = self.tables();
        let own = tables.live.values().filter(|live| live.owner == owner);
        own.map(|live| live.meta.memory).sum()
    }

    /// CPU time since the last call, per run with its tenant.
    pub(crate) fn take_new_cpu_time(&self) -> Vec<(String, u64)> {
        let new = |live: &Arc<ActiveRun>| {
            let cpu_ms = live.cpu_ms.get()?.load(Ordering::Relaxed);
            Some((live.owner.clone(), live.counted_cpu.advance_to(cpu_ms)))
        };
        self.tables().live.values().filter_map(new).collect()
    }

    /// Registers a run.
    pub(crate) fn add(&self, live: &Arc<ActiveRun>) {
        self.tables().live.insert(live.id.to_string(), live.clone());
    }

    /// Removes a run that could not be stored.
    pub(crate) fn remove(&self, live: &Arc<ActiveRun>) {
        let mut tables = self.tables();
        if tables
            .live
            .get(live.id.as_str())
            .is_some_and(|listed| Arc::ptr_eq(listed, live))
        {
            tables.live.remove(live.id.as_str());
        }
    }

    /// Counts an accepted run; returns whether pruning is due.
    fn is_time_to_prune(&self) -> bool {
        let mut tables = self.tables();
        tables.accepted += 1;
        tables.accepted % PRUNE_EVERY == 1
    }

    /// The run of that id, if it is active or recent.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<ActiveRun>> {
        let tables = self.tables();
        tables
            .live
            .get(id)
            .or_else(|| tables.recent.find(id))
            .cloned()
    }

    /// Moves a run from the active to the recent ones.
    fn retire(&self, live: &Arc<ActiveRun>, bytes: u64) {
        let mut tables = self.tables();
        tables.live.remove(live.id.as_str());
        tables.recent.add(live.clone(), bytes);
    }

    /// Interrupts all runs at shutdown.
    pub(crate) fn cancel_all(&self) {
        self.tables()
            .live
            .values()
            .for_each(|live| live.interrupt());
    }

    /// Number of active runs per tenant.
    pub(crate) fn by_tenant(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for live in self.tables().live.values() {
            *counts.entry(live.owner.clone()).or_default() += 1;
        }
        counts
    }

    /// The active runs.
    pub(crate) fn under_way(&self) -> Vec<Arc<ActiveRun>> {
        self.tables().live.values().cloned().collect()
    }

    /// Number of active runs.
    pub(crate) fn count(&self) -> usize {
        self.tables().live.len()
    }
}

/// Stores and registers a new run, or finds the run of its idempotency key.
pub(crate) async fn accept(
    gateway: &Gateway,
    new_run: NewRunRequest,
    quota_check: Answer<()>,
) -> Answer<AcceptedRun> {
    let tenant = new_run.owner.clone();
    let is_admitted = quota_check.is_ok();
    let owner = crate::caller::owner_of(&new_run.owner)?;
    let feed = gateway.engine().output_log(Some(&owner), FEED_BYTES);
    let mut live = ActiveRun::new(new_run.id.clone(), &new_run.owner, feed);
    (live.task, live.job) = (new_run.task.clone(), new_run.job.clone());
    (live.keeping, live.meta) = (new_run.keeping.clone(), new_run.meta.clone());
    let live = Arc::new(live);
    let listed = live.clone();
    let handle = gateway.clone();
    let accepted = gateway
        .writer()
        .write(move |transaction| {
            accept_in_transaction(&handle, transaction, &new_run, &listed, is_admitted)
        })
        .await;
    match accepted {
        Ok(AcceptRunOutcome::Accepted) => {}
        Ok(AcceptRunOutcome::Full) if gateway.is_closing() => return Err(Problem::shutting_down()),
        Ok(AcceptRunOutcome::Full) => {
            // Some runs may have ended meanwhile; the request was refused all the same.
            let full = || {
                gateway
                    .runs_full(&tenant)
                    .map_or_else(|| Err(crate::db_writer::busy()), Ok)
            };
            return Err(quota_check.err().map_or_else(full, Ok)?);
        }
        Ok(AcceptRunOutcome::Duplicate(id)) => return Ok(AcceptedRun::Existing(id)),
        Ok(AcceptRunOutcome::KeyReused) => {
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid_spec",
                "this Idempotency-Key was used with another body",
                Some("use a new key for a new request".to_owned()),
            ));
        }
        Ok(AcceptRunOutcome::IdTaken) => {
            let title = format!("there is a run called `{}`", live.id);
            return Err(Problem::conflict(
                title,
                "choose another run_id, or leave it away",
            ));
        }
        Err(problem) => {
            gateway.runs().remove(&live);
            return Err(problem);
        }
    }
    prune_periodically(gateway);
    Ok(AcceptedRun::New(live))
}

/// Prunes old runs if that is due.
pub(crate) fn prune_periodically(gateway: &Gateway) {
    if gateway.runs().is_time_to_prune() {
        let gateway = gateway.clone();
        tokio::task::spawn_blocking(move || prune(&gateway));
    }
}

/// Runs on the writer thread, one request at a time, and registers the run before the commit:
/// nobody learns of a run that cannot be found yet.
fn accept_in_transaction(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    new_run: &NewRunRequest,
    live: &Arc<ActiveRun>,
    is_admitted: bool,
) -> Result<AcceptRunOutcome, store::DatabaseError> {
    let new = NewRun {
        id: new_run.id.as_str(),
        owner: &new_run.owner,
        task: new_run.task.as_ref().map(|task| task.as_str()),
        job: new_run.job.as_ref().map(|job| job.as_str()),
        at_ms: engine::now().0,
        idempotency_key: new_run
            .idempotency_key
            .as_ref()
            .map(|(name, body)| (name.as_str(), *body)),
    };
    let listing = gateway.admission_permit();
    let fits_memory = || {
        let owner = &new_run.owner;
        let meta = &new_run.meta;
        let taken = gateway.memory_taken(owner);
        meta.is_of_admin || gateway.check_memory(owner, taken, meta.memory).is_ok()
    };
    let has_capacity = || gateway.runs_full(&new_run.owner).is_none() && fits_memory();
    let room = listing.is_some() && is_admitted && has_capacity();
    let accepted = transaction.accept(&new, room)?;
    if accepted == AcceptRunOutcome::Accepted {
        let day = gateway
            .daily_usage()
            .count(&new_run.owner, TenantActivity::ONE_RUN);
        transaction.add_tenant_activity(&new_run.owner, day, TenantActivity::ONE_RUN)?;
        gateway.runs().add(live);
        add_container(gateway, transaction, &new, &new_run.meta)?;
    }
    Ok(accepted)
}

/// Stores the run as a container of the node.
pub(crate) fn add_container(
    gateway: &Gateway,
    transaction: &WriteTransaction<'_>,
    new: &NewRun<'_>,
    meta: &RunMeta,
) -> Result<(), store::DatabaseError> {
    let trace = meta.span_context.as_ref().map(SpanContext::trace);
    gateway.metrics().container("created");
    transaction.add_container(&NewContainer {
        id: new.id,
        owner: new.owner,
        runtime: meta.runtime,
        image: &meta.image,
        task: new.task,
        job: new.job,
        labels: "{}",
        trace: trace.as_deref(),
        at_ms: new.at_ms,
    })
}

fn prune(gateway: &Gateway) {
    let now = engine::now().0;
    let bounds = gateway.bounds();
    let age = u64::try_from(bounds.keep_for.as_millis()).unwrap_or(u64::MAX);
    // Retried at the next pruning.
    if let Err(error) = gateway
        .database()
        .prune(now, now.saturating_sub(age), bounds.keep_runs)
    {
        crate::log_warning(format_args!("airlock: {error}"));
    }
}

impl ActiveRun {
    pub(crate) fn new(id: Id, owner: &str, feed: OutputLog) -> ActiveRun {
        let progress = watch::Sender::default();
        let cancelled = watch::Sender::new(false);
        let output = telemetry::ContainerOutput::new(id.as_str(), owner);
        let (terminated, keeping, readers) = Default::default();
        let (interrupted, cpu_ms, counted_cpu) = Default::default();
        ActiveRun {
            id,
            owner: owner.to_owned(),
            task: None,
            job: None,
            feed,
            progress,
            cancelled,
            terminated,
            keeping,
            readers,
            attempt_of: None,
            interrupted,
            cpu_ms,
            counted_cpu,
            output,
            meta: RunMeta::default(),
        }
    }

    /// A run that is an attempt of a job.
    pub(crate) fn attempt(
        gateway: &Gateway,
        id: Id,
        owner: &Id,
        (job, task): (String, Option<Id>),
        meta: RunMeta,
    ) -> ActiveRun {
        let feed = gateway.engine().output_log(Some(owner), FEED_BYTES);
        let named = Id::new(&job).ok();
        ActiveRun {
            attempt_of: Some(job),
            job: named,
            task,
            meta,
            ..ActiveRun::new(id, owner.as_str(), feed)
        }
    }

    /// Waits until the slow readers have room. Not after a cancel, and not after the end of the
    /// program: a reader must not keep the run active then, and the feed has room for the remaining
    /// output.
    async fn wait_for_readers(&self, over: &mut watch::Receiver<bool>) {
        if *self.cancelled.borrow() {
            return;
        }
        tokio::select! {
            () = self.readers.wait_for_room(self.feed.lengths(), FEED_BYTES / 2) => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }

    /// The run in audit entries.
    pub(crate) fn run_ref(&self) -> audit::RunRef<'_> {
        audit::RunRef {
            tenant: &self.owner,
            run: self.id.as_str(),
            task: self.task.as_ref().map_or("", |task| task.as_str()),
            job: self.job.as_ref().map_or("", |job| job.as_str()),
        }
    }

    /// Attributes for logs and quotas.
    pub(crate) fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// Cancels the run.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Cancels the run because of the shutdown, unless it is already cancelled.
    fn interrupt(&self) {
        if !self.cancelled.send_replace(true) {
            self.interrupted.store(true, Ordering::SeqCst);
        }
    }

    /// Terminates the program gracefully; a shorter grace period wins.
    pub(crate) fn terminate(&self, grace: Duration) {
        let least = |asked: &mut Option<Duration>| {
            *asked = Some(asked.map_or(grace, |before| before.min(grace)))
        };
        self.terminated.send_modify(least);
    }

    /// Marks the run as started.
    pub(crate) fn mark_started(&self) {
        self.progress
            .send_modify(|progress| progress.started = Some(Vec::new()));
    }

    /// The sandbox of a step job is ready; its CPU time counts from now on.
    pub(crate) fn sandbox_started(&self, gateway: &Gateway, session: &Session) {
        _ = self.cpu_ms.set(session.cpu_ms());
        let barriers = session.state().barriers;
        let event = RunEvent::Started {
            barriers: barriers.clone(),
        };
        gateway.audit_run_event(&self.run_ref(), &event, &mut 0);
        self.note_started(gateway, barriers);
    }

    fn note_started(&self, gateway: &Gateway, barriers: Vec<Barrier>) {
        gateway.recorder().started(self.id.as_str());
        self.progress
            .send_modify(|progress| progress.started = Some(barriers));
    }

    fn note_denied(&self, denial: Denial) {
        self.progress
            .send_modify(|progress| progress.denied.push(denial));
    }

    /// Control of a step job: cancellation, and the tenant's share of blocking work.
    pub(crate) fn wishes(&self, gateway: &Gateway) -> JobControl {
        let gateway = gateway.clone();
        let owner = self.owner.clone();
        let file_slots = Arc::new(move || blocking::try_reserve(gateway.blocking_work(), &owner));
        JobControl {
            cancelled: self.cancelled.subscribe(),
            terminated: self.terminated.subscribe(),
            file_slots,
        }
    }

    /// Output for node telemetry.
    pub(crate) fn output(&self) -> &telemetry::ContainerOutput {
        &self.output
    }

    /// Whether the run was cancelled or terminated.
    pub(crate) fn is_to_end(&self) -> bool {
        *self.cancelled.borrow() || self.terminated.borrow().is_some()
    }

    /// Current progress and its changes.
    pub(crate) fn progress(&self) -> watch::Receiver<RunProgress> {
        self.progress.subscribe()
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Answer<Arc<FinishedRun>> {
        let mut progress = self.progress();
        let ended = progress.wait_for(|progress| progress.ended.is_some()).await;
        let ended = ended.ok().and_then(|progress| progress.ended.clone());
        ended.ok_or_else(|| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the run broke off",
                None,
            )
        })
    }

    fn size(&self, ended: &FinishedRun) -> u64 {
        self.feed
            .lengths()
            .iter()
            .map(|length| (*length).min(FEED_BYTES))
            .sum::<u64>()
            + ended.whole.len() as u64
    }
}

/// Drives a run to its end, whether or not a client waits.
pub(crate) async fn drive(gateway: Gateway, live: Arc<ActiveRun>, mut run: Run) {
    gateway.metrics().running.inc();
    _ = live.cpu_ms.set(run.cpu_ms());
    let mut cancelled = live.cancelled.subscribe();
    let mut terminated = live.terminated.subscribe();
    // The run may have been cancelled before it began.
    cancelled.mark_changed();
    terminated.mark_changed();
    let mut over = run.over();
    let mut denials = 0;
    loop {
        tokio::select! {
            event = async { live.wait_for_readers(&mut over).await; run.next_event().await } => match event {
                Some(event) => {
                    gateway.audit_run_event(&live.run_ref(), &event, &mut denials);
                    apply_event(&gateway, &live, event).await;
                }
                None => break,
            },
            // Each cancel counts: a second one also skips the collection of artifacts.
            Ok(()) = cancelled.changed() => {
                if *cancelled.borrow_and_update() {
                    run.cancel();
                }
            }
            Ok(()) = terminated.changed() => {
                if let Some(grace) = *terminated.borrow_and_update() {
                    run.terminate(grace);
                }
            }
        }
    }
    let result = run.finish().await;
    audit_late_denials(&gateway, &live, &result.denials, &mut denials);
    let took = Duration::from_millis(result.duration_ms);
    gateway.metrics().running.dec();
    gateway
        .metrics()
        .run(result.status.name(), took, live.feed.lengths().iter().sum());
    gateway.audit_run_ended(&live.run_ref(), &result, denials);
    finish(&gateway, &live, result).await;
}

/// Records denials that had no event: doors report some of them when they are closed.
pub(crate) fn audit_late_denials(
    gateway: &Gateway,
    live: &ActiveRun,
    all: &[Denial],
    denials: &mut u64,
) {
    let reported = live.progress.borrow().denied.clone();
    for denial in all.iter().filter(|denial| !reported.contains(denial)) {
        let event = RunEvent::Denied(denial.clone());
        gateway.audit_run_event(&live.run_ref(), &event, denials);
        live.note_denied(denial.clone());
    }
}

/// Ends an accepted run that cannot be started because its audit entry cannot be written.
pub(crate) async fn abort_start(gateway: &Gateway, live: &Arc<ActiveRun>, profile: &str) {
    let mut result = RunResult::blank(live.id.clone(), profile.to_owned(), engine::now());
    (result.task_id, result.job_id) = (live.task.clone(), live.job.clone());
    result.error = Some(ErrorInfo {
        code: ErrorCode::Internal,
        message: "the audit cannot be written".to_owned(),
        hint: Some("it was not started; try again".to_owned()),
    });
    gateway.audit_run_ended(&live.run_ref(), &result, 0);
    finish(gateway, live, result).await;
}

async fn apply_event(gateway: &Gateway, live: &ActiveRun, event: RunEvent) {
    match event {
        RunEvent::Started { barriers } => live.note_started(gateway, barriers),
        RunEvent::Output { stream, data } => {
            gateway.recorder().wrote(&live.output, stream, &data);
            let count = data.len();
            // What goes to the disk is written off the event loop.
            live.feed.append_from(stream, data, count).await;
        }
        RunEvent::Denied(denial) => live.note_denied(denial),
    }
}

/// Stores the end, retrying without limit, and reports it only then: a reported end is never taken
/// back. If the server ends meanwhile, the run becomes `lost`, and nobody was told otherwise.
pub(crate) async fn finish(gateway: &Gateway, live: &Arc<ActiveRun>, result: RunResult) {
    report_end(gateway, live, &result);
    let status = result.status;
    let error = result.error.clone();
    let used = TenantActivity::cpu_time(live.counted_cpu.advance_to(result.usage.cpu_ms));
    let day = gateway.daily_usage().count(&live.owner, used);
    let container = container_end(&result);
    let problem = start_failure(&result);
    let keeping = live.keeping.clone();
    let is_large = result.stdout.len() + result.stderr.len() > LARGE_OUTPUT;
    let max = gateway.response_bytes().max_per_tenant();
    let (whole, stored) = if is_large {
        // Serializing megabytes would block the event loop, and takes up to six times the memory.
        let rendered = gateway.compute(&live.owner, move || render(result, &keeping, max));
        rendered.await.unwrap_or_default()
    } else {
        render(result, &keeping, max)
    };
    let mut pause = MIN_RETRY_PAUSE;
    // The run stays active until its end is stored, so that a full disk limits the number of
    // waiting runs.
    let end = RunEndRecord {
        status,
        interrupted: false,
        error,
        stored: stored.clone(),
        day,
        used,
        container,
    };
    while !write_end(gateway, live, end.clone()).await {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY_PAUSE);
    }
    let ended = Arc::new(FinishedRun {
        whole,
        stored,
        problem,
    });
    live.feed.end();
    // A client that learns of the end may start the next run at once: the slot is free before the
    // notification.
    gateway.runs().retire(live, live.size(&ended));
    live.progress
        .send_modify(|progress| progress.ended = Some(ended));
    gateway.jobs().wake();
}

/// Reports the end to the log, the trace and the telemetry.
fn report_end(gateway: &Gateway, live: &ActiveRun, result: &RunResult) {
    gateway.recorder().ended(&live.output);
    let span_context = live.meta.span_context.as_ref();
    if let Some(span_context) = span_context {
        gateway
            .tracer()
            .record_run(span_context, result, &live.owner, &live.meta.image);
    }
    if !gateway.quiet() && log::is_enabled(Level::Info) {
        let id = |id: &Option<Id>| id.as_ref().map(ToString::to_string).unwrap_or_default();
        let fields = LogFields {
            status: result.status.name().to_owned(),
            ms: Some(
                (result
                    .phase_times
                    .ended
                    .saturating_sub(result.phase_times.begun)) as f64
                    / 1000.0,
            ),
            key: live.meta.key.clone(),
            tenant: live.owner.clone(),
            run: live.id.to_string(),
            task: id(&result.task_id),
            job: id(&result.job_id),
            trace: span_context.map(SpanContext::trace).unwrap_or_default(),
        };
        log::write(LogLine::new(Level::Info, "run", "run", fields));
    }
}

/// The end of a run, as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct RunEndRecord {
    pub(crate) status: Status,
    /// Ended by the shutdown of the server.
    pub(crate) interrupted: bool,
    pub(crate) error: Option<ErrorInfo>,
    /// The result as stored.
    pub(crate) stored: Bytes,
    /// The usage that is added to the tenant's day.
    day: Day,
    used: TenantActivity,
    container: ContainerEnd<'static>,
}

impl RunEndRecord {
    /// Stores the result, the usage of the day and the end of the container.
    pub(crate) fn write(
        &self,
        transaction: &WriteTransaction<'_>,
        id: &str,
        owner: &str,
    ) -> Result<(), store::DatabaseError> {
        transaction.add_tenant_activity(owner, self.day, self.used)?;
        // The bytes are valid UTF-8: they were serialized as text.
        transaction.finish(
            id,
            self.status.name(),
            &String::from_utf8_lossy(&self.stored),
        )?;
        transaction.end_container(id, &self.container)
    }
}

fn container_end(result: &RunResult) -> ContainerEnd<'static> {
    let ms = |us: u64| us / 1000;
    let moments = &result.phase_times;
    let status = match result.status {
        Status::NotStarted => "failed",
        Status::Lost => "lost",
        _ => "exited",
    };
    // A run whose driver failed has no times.
    let ended = if moments.ended > 0 {
        ms(moments.ended)
    } else {
        engine::now().0
    };
    let stopped_ms = if moments.over > 0 {
        ms(moments.over)
    } else {
        ended
    };
    let started_ms = (moments.started > 0).then(|| ms(moments.started));
    let removed_ms = ended.max(stopped_ms);
    ContainerEnd {
        status,
        exit_code: result.exit_code,
        started_ms,
        stopped_ms,
        removed_ms,
    }
}

/// Stores the end; returns whether it was stored. If that never succeeds, the next server finds the
/// run unfinished and marks it as `lost`.
async fn write_end(gateway: &Gateway, live: &Arc<ActiveRun>, mut end: RunEndRecord) -> bool {
    let status = end.container.status;
    let written = if live.attempt_of.is_some() {
        end.interrupted =
            end.status == Status::Cancelled && live.interrupted.load(Ordering::SeqCst);
        jobs::record_attempt_end(gateway, live, end).await
    } else {
        let id = live.id.clone();
        let owner = live.owner.clone();
        gateway
            .writer()
            .write(move |transaction| end.write(transaction, id.as_str(), &owner))
            .await
            .is_ok()
    };
    if written {
        gateway.metrics().container(status);
    }
    written
}
/// The problem of a run that could not start. A command that cannot be executed is an ordinary
/// result.
fn start_failure(result: &RunResult) -> Option<Problem> {
    let failure = StartFailure {
        run_id: result.run_id.to_string(),
        status: result.status,
        exit_status: result.exit_status,
        error: result.error.clone(),
    };
    failure.problem()
}

/// The same for a stored result.
pub(super) fn stored_start_failure(result: &str) -> Option<Problem> {
    serde_json::from_str::<StartFailure>(result).ok()?.problem()
}

/// The fields that tell whether a run could start.
#[derive(Deserialize)]
struct StartFailure {
    run_id: String,
    status: Status,
    exit_status: u8,
    error: Option<ErrorInfo>,
}

impl StartFailure {
    fn problem(self) -> Option<Problem> {
        let never = self.status == Status::NotStarted && !matches!(self.exit_status, 126 | 127);
        let error = self.error.filter(|_| never)?;
        Some(Problem::from(error).with_instance(format!("/v1/runs/{}", self.run_id)))
    }
}

/// Serializes the result for the response, which has at most `max` bytes, and for the database.
fn render(mut result: RunResult, keeping: &ResultRetention, max: usize) -> (WholeResult, Bytes) {
    if let Some(gap) = keeping.exact {
        beginning(
            &mut result.stdout,
            (keeping.stream, gap),
            &mut result.truncated.stdout,
        );
        beginning(
            &mut result.stderr,
            (keeping.stream, gap),
            &mut result.truncated.stderr,
        );
    }
    let fits = result.stdout.len() <= keeping.stream && result.stderr.len() <= keeping.stream;
    let whole = if json_bytes(&result.stdout) + json_bytes(&result.stderr) > max {
        WholeResult::TooLong
    } else {
        let text = Bytes::from(result_json(&result, keeping));
        if fits && text.len() <= keeping.whole {
            return (WholeResult::Made(text.clone()), text);
        }
        WholeResult::Made(text)
    };
    let mut less = result;
    shorten(&mut less, keeping.stream);
    if result_json(&less, keeping).len() > keeping.whole {
        (less.output, less.denials) = (None, Vec::new());
        less.notes = vec!["the result was too large to be kept whole".to_owned()];
        less.artifacts.truncate(1000);
    }
    (whole, result_json(&less, keeping).into())
}

/// The bytes that a stream takes in the JSON of a result, without quotes.
fn json_bytes(stream: &[u8]) -> usize {
    if std::str::from_utf8(stream).is_err() {
        return stream.len().div_ceil(3) * 4;
    }
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    stream.iter().map(escaped).sum()
}

fn shorten(result: &mut RunResult, max: usize) {
    result.truncated.stdout |= result.stdout.len() > max;
    result.truncated.stderr |= result.stderr.len() > max;
    result.stdout = head(std::mem::take(&mut result.stdout), max);
    result.stderr = head(std::mem::take(&mut result.stderr), max);
}

/// Start of the mark that the engine writes where it left out output.
const GAP_MARK: &[u8] = b"\n[... ";

/// Keeps the output before the gap mark, within the limit, and sets `cut` if something was removed.
/// Cuts at a character boundary.
fn beginning(bytes: &mut Vec<u8>, (max, gap): (usize, usize), cut: &mut bool) {
    let mut marks = gap.saturating_sub(3)..=gap;
    let mark = marks.find(|at| {
        bytes
            .get(*at..)
            .is_some_and(|rest| rest.starts_with(GAP_MARK))
    });
    if let (true, Some(mark)) = (*cut, mark) {
        bytes.truncate(mark);
    }
    if bytes.len() > max {
        *cut = true;
        bytes.truncate(max);
        let half = bytes
            .utf8_chunks()
            .last()
            .map_or(0, |last| last.invalid().len());
        bytes.truncate(max - half);
    }
}

/// The first `max` bytes, cut at a character boundary.
fn head(mut bytes: Vec<u8>, max: usize) -> Vec<u8> {
    let is_text = std::str::from_utf8(&bytes).is_ok();
    bytes.truncate(max);
    if let (true, Err(error)) = (is_text, std::str::from_utf8(&bytes)) {
        let end = error.valid_up_to();
        bytes.truncate(end);
    }
    bytes
}

fn result_json(result: &RunResult, keeping: &ResultRetention) -> String {
    /// A result with the details of its request.
    #[derive(serde::Serialize)]
    struct ResultWithRequest<'a> {
        #[serde(flatten)]
        result: &'a RunResult,
        asked: &'a serde_json::Value,
    }
    // Serialization cannot fail.
    match &keeping.asked {
        None => serde_json::to_string(result).unwrap_or_default(),
        Some(asked) => {
            serde_json::to_string(&ResultWithRequest { result, asked }).unwrap_or_default()
        }
    }
}

/// Ends the runs that a previous server left unfinished, and their attempts, in one transaction.
pub(crate) fn settle_unfinished(gateway: &Gateway) -> Result<usize, store::DatabaseError> {
    let unfinished = gateway.database().unfinished()?;
    gateway.database().transact_durably(|transaction| {
        for row in &unfinished {
            // Ids were validated when they were accepted.
            let Ok(id) = Id::new(&row.id) else { continue };
            let mut result = lost_result(id, spec::Timestamp(row.accepted_ms));
            result.task_id = row.task.as_deref().and_then(|task| Id::new(task).ok());
            result.job_id = row.job.as_deref().and_then(|job| Id::new(job).ok());
            let task = row.task.as_deref().unwrap_or_default();
            let job = row.job.as_deref().unwrap_or_default();
            gateway.audit_run_ended(
                &audit::RunRef {
                    tenant: &row.owner,
                    run: &row.id,
                    task,
                    job,
                },
                &result,
                0,
            );
            let text = result_json(&result, &ResultRetention::default());
            transaction.finish(&row.id, Status::Lost.name(), &text)?;
            jobs::record_lost_attempt(gateway, transaction, &row.id, Some(&text))?;
        }
        Ok(())
    })?;
    prune(gateway);
    Ok(unfinished.len())
}

/// The result of a run whose end was not seen.
pub(crate) fn lost_result(id: Id, accepted: spec::Timestamp) -> RunResult {
    let mut result = RunResult::blank(id, String::new(), accepted);
    result.status = Status::Lost;
    result.ended_at = engine::now();
    result.error = Some(ErrorInfo {
        code: ErrorCode::Lost,
        message: "the server ended before the run did".to_owned(),
        hint: Some("start it again".to_owned()),
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(stdout: Vec<u8>) -> RunResult {
        let mut result = RunResult::blank(Id::new("r").unwrap(), "p".into(), engine::now());
        (result.status, result.stdout) = (Status::Succeeded, stdout);
        result
    }

    #[test]
    fn the_length_of_output_as_json_is_known_before_it_is_made() {
        let ascii: Vec<u8> = (0..0x80).collect();
        let invalid: Vec<u8> = (0..=0xff).collect();
        for stream in [ascii, "äöü€𝄞".into(), invalid, Vec::new()] {
            let made = |stream: &[u8]| {
                let text = result_json(&result(stream.to_vec()), &ResultRetention::default());
                let json: serde_json::Value = serde_json::from_str(&text).unwrap();
                let of = |name: &str| json.get(name).map(|value| value.to_string().len() - 2);
                of("stdout").or(of("stdout_base64")).unwrap()
            };
            assert_eq!(json_bytes(&stream), made(&stream));
        }
    }

    #[test]
    fn what_is_longer_than_a_response_may_be_is_not_made_and_its_beginning_is_kept() {
        let keeping = ResultRetention::default();
        let result = result(vec![0; 1 << 20]);
        let of = |max| render(result.clone(), &keeping, max);
        let (whole, stored) = of(7 << 20);
        assert!(matches!(whole, WholeResult::Made(text) if text.len() > 6 << 20));
        let (whole, same) = of(6 << 20);
        assert!(
            matches!(whole, WholeResult::Made(_)),
            "six bytes for each of them"
        );
        assert_eq!(same, stored);
        let (whole, same) = of((6 << 20) - 1);
        assert!(matches!(whole, WholeResult::TooLong));
        assert_eq!(same, stored);
    }

    #[test]
    fn a_small_result_is_kept_whole_and_a_large_one_says_what_is_missing() {
        let keeping = ResultRetention::default();
        let render = |stdout, keeping| match render(result(stdout), keeping, usize::MAX) {
            (WholeResult::Made(whole), stored) => (whole, stored),
            (WholeResult::TooLong, _) => unreachable!("there is no limit"),
        };
        let (whole, stored) = render(b"hello".to_vec(), &keeping);
        assert_eq!(whole, stored);
        let (whole, stored) = render("ä".repeat(STORED_STREAM_BYTES).into_bytes(), &keeping);
        assert!(whole.len() > 2 * STORED_STREAM_BYTES && stored.len() < STORED_STREAM_BYTES + 4096);
        let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(stored["truncated"]["stdout"], true);
        assert_eq!(
            stored["stdout"].as_str().unwrap().len(),
            STORED_STREAM_BYTES
        );
        let keeping = ResultRetention {
            stream: 2,
            exact: Some(2),
            asked: Some("x".into()),
            ..keeping
        };
        let (whole, stored) = render("a€".into(), &keeping);
        assert_eq!(whole, stored);
        let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(
            (&stored["stdout"], &stored["truncated"]["stdout"]),
            (&"a".into(), &true.into())
        );
        assert_eq!(stored["asked"], "x");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_does_not_read_keeps_no_run_under_way_whose_program_is_over() {
        let live = Arc::new(ActiveRun::new(
            Id::new("r").unwrap(),
            "key",
            OutputLog::new(FEED_BYTES),
        ));
        live.feed.append(
            spec::StdStream::Stdout,
            &vec![b'x'; FEED_BYTES as usize / 2 + 1],
        );
        let hold = super::super::slow_reader::SlowReaderGuard::new(&live, [0, 0]);
        let (is_over, mut over) = watch::channel(false);
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, live.wait_for_readers(&mut over))
            .await
            .expect_err("a program that runs waits for him");
        is_over.send_replace(true);
        tokio::time::timeout(hour, live.wait_for_readers(&mut over))
            .await
            .expect("nobody waits any more");
        let (is_over, mut over) = watch::channel(false);
        drop(is_over);
        tokio::time::timeout(hour, live.wait_for_readers(&mut over))
            .await
            .expect("nor for one whose task failed");
        assert_eq!(
            live.feed.read(spec::StdStream::Stdout, 0, 1).from,
            0,
            "he can still read all of it"
        );
        drop(hold);
    }

    #[test]
    fn only_a_run_that_could_not_start_is_a_problem() {
        let error = ErrorInfo {
            code: ErrorCode::StartFailed,
            message: "m".into(),
            hint: None,
        };
        let with = |status, exit_status, error: Option<&ErrorInfo>| {
            let blank = result(Vec::new());
            start_failure(&RunResult {
                status,
                exit_status,
                error: error.cloned(),
                ..blank
            })
            .is_some()
        };
        assert!(with(Status::NotStarted, 125, Some(&error)));
        assert!(
            !with(Status::NotStarted, 127, Some(&error)),
            "the command was not found, inside"
        );
        assert!(!with(Status::TimedOut, 124, Some(&error)) && !with(Status::Succeeded, 0, None));
    }
}
