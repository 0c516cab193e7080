//! The HTTP API server: runs, jobs, sandboxes with their files and terminals, artifacts, API keys.
//!
//! The middleware (`middleware.rs`) authenticates a request before its body is read. Each kind of
//! resource has one file that maps HTTP to the engine and back. How a sandbox is isolated and what
//! a policy means is not decided here.

mod artifacts;
mod audit;
mod blocking;
mod caller;
mod connections;
mod cpu_work;
mod cursor;
mod db_writer;
mod disk_reserve;
mod fair_share;
mod health;
mod held_body;
mod images;
mod jobs;
mod json_response;
mod key_watch;
mod keys;
pub mod log;
mod metrics;
mod middleware;
mod node;
mod openapi;
mod path;
mod problem;
mod request_slots;
mod runs;
mod sandboxes;
mod server;
mod streaming_body;
mod telemetry;
mod tenants;
mod trace;
mod usage;
mod wire;
mod workspaces;
mod write_timeout;

pub use caller::{Caller, Scope};
pub use disk_reserve::DiskReserve;
pub use jobs::webhook::WebhookSettings;
pub use keys::{ApiKey, ApiKeyError, ApiKeys, ApiToken};
pub use node::capability::{NodeFacts, report as capability};
pub use node::settings::{NodeResources, NodeSettings, NodeWorkMode};
pub use openapi::document as openapi;
pub use problem::Problem;
pub use server::{HttpListener, ServerTls, ServerTlsError};
pub use trace::TraceSettings;

use engine::Engine;
use spec::{JobQueueLimits, Policy, Quota, ServerLimits, TenantQuotas};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};
use store::{
    DatabaseError,
    audit::{AuditEntry, AuditLog, AuditSettings},
    server_database::ServerDatabase,
};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

/// Maximum number of leftovers that the audit entry of a shutdown names.
const MAX_LEFT_SHOWN: usize = 20;
/// Audit action of a restored state, and the rule by which its jobs ended.
const RESTORED: &str = "state.restored";

/// How often the size of the ledger is recorded in the database.
const LEDGER_READ_INTERVAL: Duration = Duration::from_secs(60);
/// Poll interval of the server's own ledger files, whose truncation must be noticed; they are read
/// only when they have grown.
const OWN_LEDGER_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of the final writes of a shutdown.
const FINAL_RECORDS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time beyond the grace period after which a shutdown is reported as unknown.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(12);
/// Interval of the removal of expired data.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(3600);

/// Limit of JSON request bodies that are being received or wait to be parsed, in bytes, over all
/// connections.
const MAX_BODY_BYTES: usize = 256 << 20;
/// The same for one tenant.
const MAX_BODY_BYTES_PER_TENANT: usize = MAX_BODY_BYTES / 4;
/// Limit of response bodies that wait for their clients, in bytes, and the same for one tenant.
const MAX_RESPONSE_BYTES: usize = 256 << 20;
const MAX_RESPONSE_BYTES_PER_TENANT: usize = MAX_RESPONSE_BYTES / 4;
/// Limit of standard input that programs in sandboxes have not read yet, in bytes, and the same for
/// one tenant.
const MAX_UNREAD_STDIN_BYTES: usize = 256 << 20;
const MAX_UNREAD_STDIN_BYTES_PER_TENANT: usize = MAX_UNREAD_STDIN_BYTES / 8;

/// Ledger segments and their lengths.
type SegmentLengths = std::collections::BTreeMap<String, u64>;

/// Settings of a gateway. It reads no environment variables and no home folder.
#[derive(Debug)]
pub struct GatewaySettings {
    /// The engine that carries out requests.
    pub engine: Engine,
    /// The policy that admits requests.
    pub policy: Policy,
    /// The state folder with the database. A gateway owns its state folder.
    pub state: PathBuf,
    /// Additional allowed `Host` names, with a port or for every port.
    pub hosts: Vec<String>,
    /// Host folders that requests may use, with everything below them.
    pub folders: Vec<PathBuf>,
    /// Profiles that every key may use; by default those that show nothing of the host.
    pub profiles: Option<Vec<String>>,
    /// Limits of the server.
    pub bounds: ServerLimits,
    /// Limits of jobs.
    pub jobs: JobQueueLimits,
    /// Quotas of tenants.
    pub tenants: TenantQuotas,
    /// Webhook delivery settings.
    pub webhooks: WebhookSettings,
    /// Settings of the worker API (node).
    pub node: NodeSettings,
    /// Retention of ledgers of finished runs and days; forever if `None`.
    pub keep_ledger: Option<Duration>,
    /// Audit log settings.
    pub audit: AuditSettings,
    /// Disables the access log.
    pub quiet: bool,
    /// Trace export settings, if traces are exported.
    pub trace: Option<TraceSettings>,
    /// Facts about this node.
    pub facts: NodeFacts,
}

/// The API server. Cheap to clone; clones share one state.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    policy: Policy,
    /// The policy for keys without the scope `admin`.
    policy_of_keys: Policy,
    state: PathBuf,
    hosts: Vec<String>,
    folders: Vec<runs::host_paths::SharedFolder>,
    profiles: Option<Vec<String>>,
    bounds: ServerLimits,
    tenants: TenantQuotas,
    node: NodeSettings,
    keep_ledger: Option<Duration>,
    webhooks: jobs::webhook::Webhooks,
    quiet: bool,
    facts: NodeFacts,
    /// The address that the server listens on, once known.
    address: OnceLock<String>,
    /// The last capability report.
    report: Mutex<Option<serde_json::Value>>,
    tracer: trace::Tracer,
    recorder: Arc<telemetry::TelemetryRecorder>,
    /// Number of this server start in the database.
    boot: OnceLock<i64>,
    /// Set at shutdown: no new work is accepted. Work is registered while the read lock is held, so
    /// that the shutdown, which takes the write lock, sees all of it.
    closing: RwLock<bool>,
    audit: AuditLog,
    cursors: cursor::CursorSealer,
    daily_usage: tenants::DailyUsage,
    refusals: audit::RefusalLimiter,
    reserve: DiskReserve,
    cpu_work_locks: tenants::TenantLocks,
    git_imports: tenants::TenantLocks,
    database: Arc<ServerDatabase>,
    writer: db_writer::DatabaseWriter,
    durable_writer: db_writer::DatabaseWriter,
    keys: ApiKeys,
    metrics: metrics::Metrics,
    readiness: health::Readiness,
    runs: runs::active::Runs,
    jobs: jobs::Jobs,
    sandboxes: sandboxes::SandboxRegistry,
    pty_viewers: sandboxes::PtyViewers,
    /// Bytes of request bodies that are being received or wait to be parsed.
    body_bytes: fair_share::FairShareLimiter,
    /// Bytes of responses that clients have not read yet.
    response_bytes: fair_share::FairShareLimiter,
    /// Bytes of standard input that programs in sandboxes have not read yet.
    unread_stdin: fair_share::FairShareLimiter,
    /// Blocking tasks.
    blocking_work: fair_share::FairShareLimiter,
    /// Requests in progress.
    request_slots: request_slots::RequestSlots,
}

impl Gateway {
    /// Creates a gateway. Runs that a previous server left unfinished become `lost`, and their jobs
    /// are retried or ended accordingly.
    pub fn new(settings: GatewaySettings) -> Result<Gateway, DatabaseError> {
        let GatewaySettings {
            engine,
            policy,
            state,
            hosts,
            folders,
            profiles,
            bounds,
            jobs,
            tenants,
            webhooks,
            node,
            audit,
            keep_ledger,
            quiet,
            trace,
            facts,
        } = settings;
        let webhooks = jobs::webhook::Webhooks::new(webhooks, &engine);
        let audit = open_audit(&state, audit)?;
        let database = Arc::new(ServerDatabase::open(&state)?);
        let writer = start_writer(&database, &state, db_writer::Durability::ProcessCrash)?;
        let durable_writer = start_writer(&database, &state, db_writer::Durability::PowerLoss)?;
        // One body of maximum size must fit, although a tenant gets at most half.
        let max_body_bytes = MAX_BODY_BYTES.max(bounds.body.saturating_mul(2));
        let body_bytes = fair_share::FairShareLimiter::new(
            max_body_bytes,
            MAX_BODY_BYTES_PER_TENANT.max(bounds.body),
        );
        let request_slots = request_slots::RequestSlots::new(bounds.connections);
        let cursors = cursor::CursorSealer::new().map_err(|_| DatabaseError::Unusable {
            path: state.clone(),
            why: "the kernel gave no random numbers".to_owned(),
        })?;
        let gateway = Gateway(Arc::new(Inner {
            engine,
            policy_of_keys: policy.of_keys(),
            policy,
            reserve: DiskReserve::of(&state),
            cpu_work_locks: tenants::TenantLocks::default(),
            git_imports: tenants::TenantLocks::default(),
            state,
            hosts,
            folders: folders
                .into_iter()
                .map(runs::host_paths::SharedFolder::new)
                .collect(),
            profiles,
            bounds,
            tenants,
            node,
            keep_ledger,
            webhooks,
            quiet,
            tracer: trace::Tracer::new(trace, &facts.slug),
            facts,
            address: OnceLock::new(),
            report: Mutex::default(),
            recorder: Arc::default(),
            boot: OnceLock::new(),
            closing: RwLock::new(false),
            audit,
            cursors,
            refusals: audit::RefusalLimiter::default(),
            keys: ApiKeys::of(database.clone()),
            writer,
            durable_writer,
            daily_usage: tenants::DailyUsage::open(&database)?,
            database,
            metrics: metrics::Metrics::new(),
            readiness: health::Readiness::default(),
            runs: runs::active::Runs::default(),
            jobs: jobs::Jobs::new(jobs),
            sandboxes: sandboxes::SandboxRegistry::default(),
            pty_viewers: sandboxes::PtyViewers::default(),
            body_bytes,
            response_bytes: fair_share::FairShareLimiter::new(
                MAX_RESPONSE_BYTES,
                MAX_RESPONSE_BYTES_PER_TENANT,
            ),
            unread_stdin: fair_share::FairShareLimiter::new(
                MAX_UNREAD_STDIN_BYTES,
                MAX_UNREAD_STDIN_BYTES_PER_TENANT,
            ),
            blocking_work: blocking::limiter(),
            request_slots,
        }));
        gateway.reserve().restore();
        gateway
            .engine()
            .spend_nothing_while(gateway.reserve().released_flag());
        gateway.take_over()?;
        Ok(gateway)
    }

    /// Records the start, and settles what a previous server left unfinished.
    fn take_over(&self) -> Result<(), DatabaseError> {
        let about = format!(
            "version={} pid={}",
            env!("CARGO_PKG_VERSION"),
            std::process::id()
        );
        let start = AuditEntry {
            what: "server.start",
            about: &about,
            ..AuditEntry::default()
        };
        self.0
            .audit
            .append(&start)
            .map_err(|error| DatabaseError::Unusable {
                path: self.state().to_owned(),
                why: format!("the audit cannot be written: {error}"),
            })?;
        self.audit_restore()?;
        jobs::settle_unfinished(self)?;
        self.restore_sandboxes()?;
        self.record_start()
    }

    /// Serves until `stop` is set, then closes connections and ends runs; runs that continue after
    /// the grace period are cancelled. Returns what could not be ended in time.
    pub async fn serve(
        &self,
        listener: HttpListener,
        tls: Option<ServerTls>,
        stop: watch::Receiver<bool>,
    ) -> Vec<String> {
        let gateway = self.clone();
        let mut stop_signal = stop.clone();
        let ending = tokio::spawn(async move {
            let is_stopping = stop_signal.wait_for(|stop| *stop).await.is_ok();
            if is_stopping {
                gateway.shut_down_within_timeout().await
            } else {
                Vec::new()
            }
        });
        let scheduling = tokio::spawn(jobs::schedule(self.clone(), stop.clone()));
        let tracing_gateway = self.clone();
        let background = [
            tokio::spawn(self.clone().clean_up()),
            tokio::spawn(self.clone().watch_ledger()),
            tokio::spawn(self.clone().watch_keys()),
            tokio::spawn(self.clone().count_daily_usage()),
            tokio::spawn(self.clone().write_telemetry()),
            tokio::spawn(self.clone().prune_telemetry_periodically()),
            tokio::spawn(self.clone().watch_capability()),
            tokio::spawn(jobs::webhook::delivery::deliver(self.clone())),
            tokio::spawn(jobs::propagate(self.clone())),
            tokio::spawn(async move { tracing_gateway.tracer().export().await }),
        ];
        // Responses of cancelled runs are still sent.
        let grace = self.bounds().grace + Duration::from_secs(2);
        server::serve(self, listener, tls, stop, grace).await;
        let mut left = ending.await.unwrap_or_else(|_| unknown_remainder());
        scheduling.abort();
        background.iter().for_each(tokio::task::JoinHandle::abort);
        self.audit_server_stop(&left);
        // Does not wait for a locked database; what is missing there is reported as left over.
        let recorded =
            tokio::time::timeout(FINAL_RECORDS_TIMEOUT, self.write_final_records(&left)).await;
        if !matches!(recorded, Ok(true)) {
            left.push("the record of its end".to_owned());
        }
        left
    }

    /// What is left after the shutdown of all work, or that it is unknown.
    async fn shut_down_within_timeout(&self) -> Vec<String> {
        let timeout = self.bounds().grace + SHUTDOWN_MARGIN;
        tokio::time::timeout(timeout, self.shut_down_work())
            .await
            .unwrap_or_else(|_| unknown_remainder())
    }

    /// Writes the final usage, telemetry and audit mark; returns whether all of it was written.
    async fn write_final_records(&self, left: &[String]) -> bool {
        self.count_usage_now().await;
        let recorded = self.record_end(left).await;
        let gateway = self.clone();
        // If this fails, the previous audit mark stays the last one.
        _ = tokio::task::spawn_blocking(move || gateway.0.audit.checkpoint()).await;
        recorded
    }

    /// Records a restore of the state at the first start after it, and the jobs that it ended.
    fn audit_restore(&self) -> Result<(), DatabaseError> {
        let path = self.state().join(store::backup::RESTORED_MARKER);
        let failed = |why: std::io::Error| DatabaseError::Unusable {
            path: path.clone(),
            why: why.to_string(),
        };
        let about = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            about => about.map_err(failed)?,
        };
        let mut lines = about.lines();
        let about: String = lines.next().unwrap_or_default().chars().take(200).collect();
        if let Some(ended) = lines.next().and_then(|ended| ended.parse().ok()) {
            store::backup::for_each_cancelled_job(self.state(), ended, |tenant, job| {
                let end = AuditEntry {
                    what: "job.end",
                    rule: RESTORED,
                    about: "lost",
                    ..AuditEntry::default()
                };
                self.audit_event(&AuditEntry { tenant, job, ..end });
            })?;
        }
        // This synchronous entry also flushes the queued ones before it. A crash before the file is
        // removed writes all of them twice.
        let entry = AuditEntry {
            what: RESTORED,
            about: &about,
            ..AuditEntry::default()
        };
        self.0
            .audit
            .append(&entry)
            .and_then(|()| std::fs::remove_file(&path))
            .map_err(failed)
    }

    /// Records the start of this server, and how the previous one ended.
    fn record_start(&self) -> Result<(), DatabaseError> {
        log::attach_recorder(&self.0.recorder);
        let kernel = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let version = env!("CARGO_PKG_VERSION");
        let boot =
            self.database()
                .record_start(version, &kernel, std::process::id(), engine::now().0)?;
        _ = self.0.boot.set(boot);
        let before = self.database().previous_outcome(boot)?;
        let before = before.map_or(String::new(), |outcome| {
            format!(", the one before ended: {outcome}")
        });
        let about = format!("node_boot: airlock {version} on Linux {kernel}, start {boot}{before}");
        log::write(log::LogLine::new(
            log::Level::Info,
            "node_boot",
            about,
            log::LogFields::default(),
        ));
        Ok(())
    }

    /// Records how this server ended; returns whether it was written. Nothing is written after it.
    async fn record_end(&self, left: &[String]) -> bool {
        let outcome = match left {
            [] => "clean".to_owned(),
            left => format!(
                "not ended: {}",
                left[..left.len().min(MAX_LEFT_SHOWN)].join(", ")
            ),
        };
        let level = if left.is_empty() {
            log::Level::Info
        } else {
            log::Level::Error
        };
        let about = format!("node_shutdown: {outcome}");
        log::write(log::LogLine::new(
            level,
            "node_shutdown",
            about,
            log::LogFields::default(),
        ));
        self.flush_telemetry().await;
        let gateway = self.clone();
        let boot = self.0.boot.get().copied().unwrap_or_default();
        let ended = move || {
            gateway
                .database()
                .record_shutdown(boot, &outcome, engine::now().0)
        };
        let ended = tokio::task::spawn_blocking(ended).await;
        if let Ok(Err(error)) = &ended {
            log_warning(format_args!(
                "the end of this server cannot be written down: {error}"
            ));
        }
        self.tracer().finish().await;
        matches!(ended, Ok(Ok(_)))
    }

    /// Records that this server ended before it served, so that the next start does not report a
    /// crash.
    pub fn record_start_failure(&self, why: &str) {
        let boot = self.0.boot.get().copied().unwrap_or_default();
        let outcome = format!("not started: {why}");
        if let Err(error) = self
            .database()
            .record_shutdown(boot, &outcome, engine::now().0)
        {
            log_warning(format_args!(
                "the end of this server cannot be written down: {error}"
            ));
        }
    }

    /// Sets the address that the capability report names.
    pub fn set_address(&self, address: &str) {
        // The address is set once and does not change.
        _ = self.0.address.set(address.to_owned());
    }

    pub(crate) fn address(&self) -> Option<&str> {
        self.0.address.get().map(String::as_str)
    }

    pub(crate) fn facts(&self) -> &NodeFacts {
        &self.0.facts
    }

    pub(crate) fn last_report(&self) -> Option<serde_json::Value> {
        self.0
            .report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Stores a capability report and returns the previous one.
    pub(crate) fn replace_report(&self, report: serde_json::Value) -> Option<serde_json::Value> {
        self.0
            .report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(report)
    }

    pub(crate) fn tracer(&self) -> &trace::Tracer {
        &self.0.tracer
    }

    pub(crate) fn recorder(&self) -> &telemetry::TelemetryRecorder {
        &self.0.recorder
    }

    /// Stops accepting work and ends all active work; returns what is left.
    async fn shut_down_work(&self) -> Vec<String> {
        *self
            .0
            .closing
            .write()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.jobs().wake();
        // Sandboxes are ended without a grace period: they have no end to wait for.
        let (mut left, sandboxes_left) = tokio::join!(self.end_runs(), self.end_sandboxes());
        left.extend(sandboxes_left);
        left
    }

    /// Permit to register new work, held until it is registered; `None` during shutdown.
    pub(crate) fn admission_permit(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(
            self.0
                .closing
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
        .filter(|closing| !**closing)
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_closing(&self) -> bool {
        self.admission_permit().is_none()
    }

    /// Writes the audit entry about the result of the shutdown.
    fn audit_server_stop(&self, left: &[String]) {
        let shown = left
            .iter()
            .take(MAX_LEFT_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let about = if left.is_empty() {
            "everything was stopped".to_owned()
        } else {
            format!("left: {shown}")
        };
        // The failure is already logged; the shutdown continues.
        _ = self.write_audit(&AuditEntry {
            what: "server.stop",
            about: &about,
            ..AuditEntry::default()
        });
    }

    /// Removes expired artifacts, ledgers, jobs and workflows at an interval. Uploads do this, too,
    /// but there may be none.
    async fn clean_up(self) {
        loop {
            self.retire_ledgers().await;
            tokio::time::sleep(CLEANUP_INTERVAL).await;
            for problem in self.engine().artifacts().tidy().await.1 {
                log_warning(format_args!("{problem}"));
            }
            jobs::prune(&self).await;
            let now = engine::now().0;
            // Retried at the next interval.
            _ = self
                .writer()
                .write(move |transaction| transaction.prune_workflows(now))
                .await;
        }
    }

    async fn retire_ledgers(&self) {
        let Some(keep_for) = self.0.keep_ledger else {
            return;
        };
        let state = self.0.state.clone();
        let now = engine::now().0;
        let before = now.saturating_sub(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
        let retired = tokio::task::spawn_blocking(move || {
            let projection = engine::usage::UsageProjection::open(&state)?;
            // Problems are reported by the usage route, and ledgers with problems are not retired.
            projection.refresh()?;
            projection.retire(&state, before, now)
        });
        if let Ok(Err(error)) = retired.await {
            log_warning(format_args!(
                "airlock: old ledgers cannot be taken away: {error}"
            ));
        }
    }

    /// Records the length of the ledger in the database at an interval, so that a truncation is
    /// noticed.
    async fn watch_ledger(self) {
        let mut lengths = SegmentLengths::new();
        loop {
            self.begin_day().await;
            self.read_ledger_now().await;
            let next = tokio::time::Instant::now() + LEDGER_READ_INTERVAL;
            while tokio::time::Instant::now() < next {
                tokio::time::sleep(OWN_LEDGER_POLL_INTERVAL).await;
                lengths = self.read_own_ledgers(lengths).await;
            }
        }
    }

    /// Starts the ledger of the current day: a ledger per day can be removed later.
    async fn begin_day(&self) {
        let engine = self.engine().clone();
        let today = spec::Day::of(engine::now());
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || engine.begin_day(today)).await {
            log_warning(format_args!(
                "airlock: the ledger of {today} cannot be begun, that of the day before goes on: {error}"
            ));
        }
    }

    /// Reads our own ledger files that have grown since `before`; returns their lengths.
    async fn read_own_ledgers(&self, before: SegmentLengths) -> SegmentLengths {
        let state = self.0.state.clone();
        let follow = move || {
            // Errors are reported when the whole ledger is read.
            let Ok(now) = engine::usage::segment_lengths(&state) else {
                return before;
            };
            let longer: Vec<_> = now
                .keys()
                .filter(|name| now.get(*name) != before.get(*name))
                .collect();
            let projection = || engine::usage::UsageProjection::open(&state);
            let is_read = longer.is_empty()
                || projection()
                    .and_then(|projection| projection.copy_live_segments(longer))
                    .is_ok();
            if is_read { now } else { before }
        };
        // After a panic all files are read again next time.
        tokio::task::spawn_blocking(follow)
            .await
            .unwrap_or_default()
    }

    async fn read_ledger_now(&self) {
        let state = self.0.state.clone();
        let read = tokio::task::spawn_blocking(move || {
            engine::usage::UsageProjection::open(&state)?.refresh()
        });
        match read.await {
            Ok(Err(error)) => {
                log_warning(format_args!("airlock: the ledger cannot be read: {error}"))
            }
            Ok(Ok(problems)) => problems
                .iter()
                .for_each(|problem| log_warning(format_args!("airlock: the ledger: {problem}"))),
            Err(_) => {}
        }
    }

    /// Refuses new work when the disk is nearly full: it could not end properly.
    pub(crate) fn check_disk_space(&self) -> problem::Answer<()> {
        if self.0.engine.is_nearly_full() {
            Err(Problem::disk_full())
        } else {
            Ok(())
        }
    }

    /// Ends requests of keys that another process revoked, retries revocations that could not be
    /// written, and restores the disk reserve.
    async fn watch_keys(self) {
        loop {
            tokio::time::sleep(key_watch::CHECK_INTERVAL).await;
            let gateway = self.clone();
            let look = move || {
                gateway.reserve().restore();
                gateway.keys().write_revocations();
                gateway.keys().end_invalid_keys()
            };
            if let Ok(Err(error)) = tokio::task::spawn_blocking(look).await {
                log_warning(format_args!("airlock: {error}"));
            }
        }
    }

    async fn end_runs(&self) -> Vec<String> {
        let deadline = tokio::time::Instant::now() + self.bounds().grace;
        while self.has_active_work() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.runs().cancel_all();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(3);
        while self.has_active_work() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.runs()
            .under_way()
            .iter()
            .map(|live| format!("run {}", live.id))
            .collect()
    }

    /// Whether a run is active, or a job is about to start one.
    fn has_active_work(&self) -> bool {
        self.runs().count() + self.jobs().starting() > 0
    }

    /// Prepares sandboxes for the most common runs.
    pub async fn warm(&self) {
        let mut request = health::probe_request();
        self.node().fill_defaults(&mut request);
        if let Ok(spec) = self.policy().admit(request) {
            self.engine().warm(&spec).await;
        }
    }

    /// The API keys.
    pub fn keys(&self) -> &ApiKeys {
        &self.0.keys
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The policy for keys without the scope `admin`.
    pub(crate) fn policy_of_keys(&self) -> &Policy {
        &self.0.policy_of_keys
    }

    /// The policy for this caller.
    pub(crate) fn policy_of(&self, caller: &Caller) -> &Policy {
        if caller.is_admin() {
            self.policy()
        } else {
            self.policy_of_keys()
        }
    }

    pub(crate) fn state(&self) -> &Path {
        &self.0.state
    }

    pub(crate) fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    pub(crate) fn folders(&self) -> &[runs::host_paths::SharedFolder] {
        &self.0.folders
    }

    pub(crate) fn profiles(&self) -> Option<&[String]> {
        self.0.profiles.as_deref()
    }

    pub(crate) fn bounds(&self) -> &ServerLimits {
        &self.0.bounds
    }

    /// The quota of this tenant.
    pub(crate) fn quota(&self, tenant: &str) -> &Quota {
        self.0.tenants.quota(tenant)
    }

    /// Maximum of the summed memory limits of a tenant's runs and sandboxes, in bytes.
    pub(crate) fn max_memory(&self, tenant: &str) -> Option<u64> {
        self.0.tenants.memory(tenant).map(|size| size.0)
    }

    /// Writes an audit entry about a decision. If it fails, the action must not be done.
    pub(crate) fn write_audit(&self, entry: &AuditEntry<'_>) -> problem::Answer<()> {
        self.0.audit.append(entry).map_err(|error| {
            log_warning(format_args!(
                "airlock: the audit cannot be written: {error}"
            ));
            match error.kind() {
                std::io::ErrorKind::StorageFull => Problem::disk_full(),
                _ => audit::unwritable(),
            }
        })
    }

    /// The same on a blocking thread if the audit log is synced to disk, so that the event loop
    /// does not wait.
    pub(crate) async fn write_audit_async(&self, entry: &AuditEntry<'_>) -> problem::Answer<()> {
        if !self.0.audit.waits_for_disk() {
            return self.write_audit(entry);
        }
        let gateway = self.clone();
        let note = store::audit::OwnedAuditEntry::from(entry);
        let noted = tokio::task::spawn_blocking(move || gateway.write_audit(&note.entry()));
        noted.await.map_err(|_| db_writer::busy())?
    }

    pub(crate) fn cursors(&self) -> &cursor::CursorSealer {
        &self.0.cursors
    }

    pub(crate) fn daily_usage(&self) -> &tenants::DailyUsage {
        &self.0.daily_usage
    }

    pub(crate) fn node(&self) -> &NodeSettings {
        &self.0.node
    }

    /// Writes an audit entry about an event; queues it if it cannot be written now.
    pub(crate) fn audit_event(&self, entry: &AuditEntry<'_>) {
        self.0.audit.append_event(entry);
    }

    /// Why the audit log cannot be written, if so.
    pub(crate) fn audit_trouble(&self) -> Option<String> {
        self.0.audit.write_error()
    }

    pub(crate) fn reserve(&self) -> &DiskReserve {
        &self.0.reserve
    }

    /// Runs CPU-heavy work of this tenant's; `None` if it panicked.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        cpu_work::run(&self.0.cpu_work_locks, tenant, work).await
    }

    /// Each tenant imports the git commits of one workspace at a time.
    pub(crate) fn git_imports(&self) -> &tenants::TenantLocks {
        &self.0.git_imports
    }

    pub(crate) fn refusals(&self) -> &audit::RefusalLimiter {
        &self.0.refusals
    }

    pub(crate) fn webhooks(&self) -> &jobs::webhook::Webhooks {
        &self.0.webhooks
    }

    pub(crate) fn quiet(&self) -> bool {
        self.0.quiet
    }

    pub(crate) fn database(&self) -> &ServerDatabase {
        &self.0.database
    }

    pub(crate) fn writer(&self) -> &db_writer::DatabaseWriter {
        &self.0.writer
    }

    /// The writer whose commits survive power loss.
    pub(crate) fn durable_writer(&self) -> &db_writer::DatabaseWriter {
        &self.0.durable_writer
    }

    pub(crate) fn jobs(&self) -> &jobs::Jobs {
        &self.0.jobs
    }

    /// Queries the database on a blocking thread.
    pub(crate) async fn query_database<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServerDatabase) -> Result<T, DatabaseError> + Send + 'static,
    ) -> problem::Answer<T> {
        let gateway = self.clone();
        let done = tokio::task::spawn_blocking(move || work(gateway.database())).await;
        Ok(done.map_err(|_| db_writer::busy())??)
    }

    pub(crate) fn metrics(&self) -> &metrics::Metrics {
        &self.0.metrics
    }

    pub(crate) fn readiness(&self) -> &health::Readiness {
        &self.0.readiness
    }

    pub(crate) fn body_bytes(&self) -> &fair_share::FairShareLimiter {
        &self.0.body_bytes
    }

    pub(crate) fn response_bytes(&self) -> &fair_share::FairShareLimiter {
        &self.0.response_bytes
    }

    pub(crate) fn unread_stdin(&self) -> &fair_share::FairShareLimiter {
        &self.0.unread_stdin
    }

    pub(crate) fn blocking_work(&self) -> &fair_share::FairShareLimiter {
        &self.0.blocking_work
    }

    pub(crate) fn request_slots(&self) -> &request_slots::RequestSlots {
        &self.0.request_slots
    }

    pub(crate) fn pty_viewers(&self) -> &sandboxes::PtyViewers {
        &self.0.pty_viewers
    }

    pub(crate) fn runs(&self) -> &runs::active::Runs {
        &self.0.runs
    }
}

/// Opens the audit log; without it nothing may be done.
fn open_audit(state: &Path, settings: AuditSettings) -> Result<AuditLog, DatabaseError> {
    AuditLog::open_with(state, settings).map_err(|error| DatabaseError::Unusable {
        path: state.to_owned(),
        why: format!(
            "the audit cannot be gone on with: {error} (`airlock audit verify` shows what is wrong with it, and \
             `airlock audit set-aside` lets a new one begin)"
        ),
    })
}

/// Starts the database writer of this durability.
fn start_writer(
    database: &Arc<ServerDatabase>,
    state: &Path,
    durability: db_writer::Durability,
) -> Result<db_writer::DatabaseWriter, DatabaseError> {
    db_writer::DatabaseWriter::start(database.clone(), durability).map_err(|error| {
        DatabaseError::Unusable {
            path: state.to_owned(),
            why: format!("no thread for it: {error}"),
        }
    })
}

fn unknown_remainder() -> Vec<String> {
    vec!["what was to be ended is not known".to_owned()]
}

/// Logs a warning for the operator.
fn log_warning(line: std::fmt::Arguments<'_>) {
    let about = line.to_string();
    log::write(log::LogLine::warn(
        about.strip_prefix("airlock: ").unwrap_or(&about),
    ));
}

/// All routes with their OpenAPI descriptions.
fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::with_openapi(openapi::base_document())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(openapi::routes())
        .merge(runs::routes())
        .merge(jobs::routes())
        .merge(jobs::webhook::routes())
        .merge(node::routes())
        .merge(sandboxes::routes())
        .merge(workspaces::routes())
        .merge(artifacts::routes())
        .merge(images::routes())
        .merge(usage::routes())
        .merge(tenants::routes())
        .merge(audit::routes())
        .merge(keys::routes())
}

/// The router with the middleware.
fn router(gateway: &Gateway) -> axum::Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(async || Problem::not_found("route"))
        .method_not_allowed_fallback(async || {
            let hint = Some("see /openapi.json".to_owned());
            Problem::new(
                http::StatusCode::METHOD_NOT_ALLOWED,
                "invalid_spec",
                "this route has no such method",
                hint,
            )
        })
        .layer(axum::middleware::from_fn_with_state(
            gateway.clone(),
            middleware::handle,
        ))
        .with_state(gateway.clone())
}
