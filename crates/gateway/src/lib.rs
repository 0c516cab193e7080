//! The engine served over HTTP: runs, sessions with their files and terminals, artifacts, keys.
//!
//! A request is known by its key before anything is read of it (`gate.rs`); then one file a kind of thing maps HTTP to
//! the engine's words and back. Nothing here knows how a box is made or what a rule means.

mod artifacts;
mod audit;
mod caller;
mod cursor;
mod fitting;
mod gate;
mod health;
mod images;
mod jobs;
mod keys;
pub mod log;
mod metrics;
mod node;
mod openapi;
mod path;
mod patience;
mod problem;
mod runs;
mod sandboxes;
mod sent;
mod server;
mod shares;
mod stream;
mod telemetry;
mod tenants;
mod trace;
mod turns;
mod usage;
mod validity;
mod wire;
mod work;
mod workspaces;
mod writer;

pub use caller::{Caller, Scope};
pub use jobs::webhook::WebhookSettings;
pub use keys::{Key, KeyError, Keys, Token};
pub use node::capability::{NodeFacts, report as capability};
pub use node::settings::{Mode, Node, Resources};
pub use openapi::document as openapi;
pub use problem::Problem;
pub use server::{Listener, Tls, TlsError};
pub use trace::TraceSettings;

use engine::Engine;
use spec::{Bounds, JobBounds, Policy, Quota, Tenants};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};
use store::{
    DatabaseError,
    audit::{Audit, AuditSettings, Entry},
    served::Served,
};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

/// Of what is left at the end, how much is named in the audit.
const MOST_LEFT_SHOWN: usize = 20;
/// What a restored state is called in the audit, and the rule by which its jobs ended.
const RESTORED: &str = "state.restored";

/// How often the database is told how far the ledger goes.
const BETWEEN_READINGS: Duration = Duration::from_secs(60);
/// The same for the server's own, of which nothing is to be cut off: it is only read if there is more of it.
const BETWEEN_LOOKS_AT_OWN: Duration = Duration::from_secs(5);
/// How long a server that ends may write about that.
const LONGEST_LAST_WORDS: Duration = Duration::from_secs(5);
/// How much longer than its grace the end of everything may take: then it is not known how that went.
const LONGEST_ENDING: Duration = Duration::from_secs(12);
/// How often what may not stay is looked for.
const BETWEEN_TIDYINGS: Duration = Duration::from_secs(3600);

/// Bytes of JSON bodies that arrive at a time, on all connections.
const MOST_ARRIVING: usize = 256 << 20;
/// The same, of one tenant.
const MOST_ARRIVING_OF_ONE: usize = MOST_ARRIVING / 4;
/// Bytes of lists and results that wait for whoever asked for them, and those of one tenant.
const MOST_ANSWERING: usize = 256 << 20;
const MOST_ANSWERING_OF_ONE: usize = MOST_ANSWERING / 4;

/// Segments of the ledger and how long they are.
type Lengths = std::collections::BTreeMap<String, u64>;

/// What a gateway is given; it reads neither environment nor home.
#[derive(Debug)]
pub struct Settings {
    /// Carries out what is asked.
    pub engine: Engine,
    /// What requests are measured against.
    pub policy: Policy,
    /// The state folder, with the database. Whoever opens a gateway there owns it.
    pub state: PathBuf,
    /// Names beside our own under which we may be addressed, with a port or for every port.
    pub hosts: Vec<String>,
    /// Folders of this machine that requests may name, with everything beneath them.
    pub folders: Vec<PathBuf>,
    /// Profiles that every key may use; unless said, those that show nothing of this machine.
    pub profiles: Option<Vec<String>>,
    /// How much of everything.
    pub bounds: Bounds,
    /// How many jobs.
    pub jobs: JobBounds,
    /// How much of it for each tenant.
    pub tenants: Tenants,
    /// Where notices about jobs may go.
    pub webhooks: WebhookSettings,
    /// What it is told as a node.
    pub node: Node,
    /// How long the ledgers of runs that ended, and of days, are kept; for ever if not said.
    pub keep_ledger: Option<Duration>,
    /// How the audit is kept.
    pub audit: AuditSettings,
    /// No line for each request.
    pub quiet: bool,
    /// Where traces go, if anywhere.
    pub trace: Option<TraceSettings>,
    /// What is known of this node.
    pub facts: NodeFacts,
}

/// A gateway. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    policy: Policy,
    state: PathBuf,
    hosts: Vec<String>,
    folders: Vec<runs::host::Folder>,
    profiles: Option<Vec<String>>,
    bounds: Bounds,
    tenants: Tenants,
    node: Node,
    keep_ledger: Option<Duration>,
    webhooks: jobs::webhook::Webhooks,
    quiet: bool,
    facts: NodeFacts,
    /// Where it is reached, once it is.
    address: OnceLock<String>,
    /// What it could do when somebody last looked.
    report: Mutex<Option<serde_json::Value>>,
    tracer: trace::Tracer,
    recorder: Arc<telemetry::Recorder>,
    /// Which start of a server this is.
    boot: OnceLock<i64>,
    /// The server ends: nothing begins any more. Whatever begins is listed while this is read, so that whoever sets it
    /// finds all of it.
    closing: RwLock<bool>,
    audit: Audit,
    cursors: cursor::Cursors,
    days: tenants::Days,
    refusals: audit::Refusals,
    served: Arc<Served>,
    writer: writer::Writer,
    durable: writer::Writer,
    keys: Keys,
    metrics: metrics::Metrics,
    readiness: health::Readiness,
    runs: runs::live::Runs,
    jobs: jobs::Jobs,
    sandboxes: sandboxes::Sandboxes,
    viewers: sandboxes::Viewers,
    /// For the bytes of bodies that are arriving.
    arriving: shares::Shares,
    /// For the bytes of answers that are not taken yet.
    answering: shares::Shares,
    /// For work that waits for disks.
    working: shares::Shares,
    /// For requests that are being served.
    turns: turns::Turns,
}

impl Gateway {
    /// A gateway to an engine. Runs that a server before left without an end are `lost` from now on; what becomes of the
    /// jobs that they were tries of is decided with it.
    pub fn new(settings: Settings) -> Result<Gateway, DatabaseError> {
        let Settings {
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
        let unwritable = |error| DatabaseError::Place {
            path: state.clone(),
            why: format!(
                "the audit cannot be gone on with: {error} (`airlock audit verify` shows what is wrong with it, and \
                 `airlock audit set-aside` lets a new one begin)"
            ),
        };
        let audit = Audit::open_with(&state, audit).map_err(unwritable)?;
        let served = Arc::new(Served::open(&state)?);
        let place = state.clone();
        let writer = |lasts| {
            writer::Writer::start(served.clone(), lasts).map_err(|error| DatabaseError::Place {
                path: place.clone(),
                why: format!("no thread for it: {error}"),
            })
        };
        let (writer, durable) = (
            writer(writer::Lasts::OutOurEnd)?,
            writer(writer::Lasts::OutPowerCuts)?,
        );
        // One body fits, although nobody has more than half.
        let most_arriving = MOST_ARRIVING.max(bounds.body.saturating_mul(2));
        let arriving = shares::Shares::new(most_arriving, MOST_ARRIVING_OF_ONE.max(bounds.body));
        let turns = turns::Turns::new(bounds.connections);
        let cursors = cursor::Cursors::new().map_err(|_| DatabaseError::Place {
            path: state.clone(),
            why: "the kernel gave no random numbers".to_owned(),
        })?;
        let gateway = Gateway(Arc::new(Inner {
            engine,
            policy,
            state,
            hosts,
            folders: folders.into_iter().map(runs::host::Folder::new).collect(),
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
            refusals: audit::Refusals::default(),
            keys: Keys::of(served.clone()),
            writer,
            durable,
            days: tenants::Days::open(&served)?,
            served,
            metrics: metrics::Metrics::new(),
            readiness: health::Readiness::default(),
            runs: runs::live::Runs::default(),
            jobs: jobs::Jobs::new(jobs),
            sandboxes: sandboxes::Sandboxes::default(),
            viewers: sandboxes::Viewers::default(),
            arriving,
            answering: shares::Shares::new(MOST_ANSWERING, MOST_ANSWERING_OF_ONE),
            working: work::shares(),
            turns,
        }));
        gateway.take_over()?;
        Ok(gateway)
    }

    /// Says that it is there, and settles what a server before left without an end.
    fn take_over(&self) -> Result<(), DatabaseError> {
        let about = format!(
            "version={} pid={}",
            env!("CARGO_PKG_VERSION"),
            std::process::id()
        );
        let start = Entry {
            what: "server.start",
            about: &about,
            ..Entry::default()
        };
        self.0
            .audit
            .note(&start)
            .map_err(|error| DatabaseError::Place {
                path: self.state().to_owned(),
                why: format!("the audit cannot be written: {error}"),
            })?;
        self.note_restored()?;
        jobs::settle(self)?;
        self.recall_sandboxes()?;
        self.begin_records()
    }

    /// Serves until it is told to stop; then ends connections and runs, those that go on after a grace by cancelling them.
    /// What could not be ended in time.
    pub async fn serve(
        &self,
        listener: Listener,
        tls: Option<Tls>,
        stop: watch::Receiver<bool>,
    ) -> Vec<String> {
        let (gateway, mut told) = (self.clone(), stop.clone());
        let ending = tokio::spawn(async move {
            let is_told = told.wait_for(|stop| *stop).await.is_ok();
            match is_told {
                true => gateway.end_in_time().await,
                false => Vec::new(),
            }
        });
        let scheduling = tokio::spawn(jobs::schedule(self.clone(), stop.clone()));
        let exporting = self.clone();
        let beside = [
            tokio::spawn(self.clone().tidy()),
            tokio::spawn(self.clone().read_ledger()),
            tokio::spawn(self.clone().look_at_keys()),
            tokio::spawn(self.clone().count_days()),
            tokio::spawn(self.clone().record()),
            tokio::spawn(self.clone().keep_telemetry_small()),
            tokio::spawn(self.clone().look_at_capability()),
            tokio::spawn(jobs::webhook::delivery::deliver(self.clone())),
            tokio::spawn(jobs::follow(self.clone())),
            tokio::spawn(async move { exporting.tracer().export().await }),
        ];
        // Answers of runs that were cancelled still go out.
        let grace = self.bounds().grace + Duration::from_secs(2);
        server::serve(self, listener, tls, stop, grace).await;
        let mut left = ending.await.unwrap_or_else(|_| not_known());
        scheduling.abort();
        beside.iter().for_each(tokio::task::JoinHandle::abort);
        self.note_stop(&left);
        // A database that somebody keeps is not waited for: what is missing there is told otherwise.
        let said = tokio::time::timeout(LONGEST_LAST_WORDS, self.last_words(&left)).await;
        if !matches!(said, Ok(true)) {
            left.push("the record of its end".to_owned());
        }
        left
    }

    /// What was left of everything, or that nobody knows.
    async fn end_in_time(&self) -> Vec<String> {
        let patience = self.bounds().grace + LONGEST_ENDING;
        tokio::time::timeout(patience, self.end_everything())
            .await
            .unwrap_or_else(|_| not_known())
    }

    /// Writes down what is known only now; whether that could be done.
    async fn last_words(&self, left: &[String]) -> bool {
        self.count_now().await;
        let recorded = self.end_records(left).await;
        let gateway = self.clone();
        // If it broke off, the last mark is an older one.
        _ = tokio::task::spawn_blocking(move || gateway.0.audit.mark()).await;
        recorded
    }

    /// The first start after a restore says so, and which jobs that ended.
    fn note_restored(&self) -> Result<(), DatabaseError> {
        let path = self.state().join(store::copy::RESTORED);
        let failed = |why: std::io::Error| DatabaseError::Place {
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
            store::copy::each_held(self.state(), ended, |tenant, job| {
                let end = Entry {
                    what: "job.end",
                    rule: RESTORED,
                    about: "lost",
                    ..Entry::default()
                };
                self.note_happened(&Entry { tenant, job, ..end });
            })?;
        }
        // Behind it those before it are written, too. Should it end between the two all of them are said twice.
        let entry = Entry {
            what: RESTORED,
            about: &about,
            ..Entry::default()
        };
        self.0
            .audit
            .note(&entry)
            .and_then(|()| std::fs::remove_file(&path))
            .map_err(failed)
    }

    /// Writes down that a server starts here, and how the one before ended.
    fn begin_records(&self) -> Result<(), DatabaseError> {
        log::tap(&self.0.recorder);
        let kernel = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let version = env!("CARGO_PKG_VERSION");
        let boot = self
            .served()
            .boot(version, &kernel, std::process::id(), engine::now().0)?;
        _ = self.0.boot.set(boot);
        let before = self.served().ended_before(boot)?;
        let before = before.map_or(String::new(), |outcome| {
            format!(", the one before ended: {outcome}")
        });
        let about = format!("node_boot: airlock {version} on Linux {kernel}, start {boot}{before}");
        log::tell(log::Line::new(
            log::Level::Info,
            "node_boot",
            about,
            log::Fields::default(),
        ));
        Ok(())
    }

    /// Writes down how it ends, and whether that could be done; nothing comes behind that.
    async fn end_records(&self, left: &[String]) -> bool {
        let outcome = match left {
            [] => "clean".to_owned(),
            left => format!(
                "not ended: {}",
                left[..left.len().min(MOST_LEFT_SHOWN)].join(", ")
            ),
        };
        let level = if left.is_empty() {
            log::Level::Info
        } else {
            log::Level::Error
        };
        let about = format!("node_shutdown: {outcome}");
        log::tell(log::Line::new(
            level,
            "node_shutdown",
            about,
            log::Fields::default(),
        ));
        self.write_records().await;
        let (gateway, boot) = (self.clone(), self.0.boot.get().copied().unwrap_or_default());
        let ended = move || gateway.served().shut_down(boot, &outcome, engine::now().0);
        let ended = tokio::task::spawn_blocking(ended).await;
        if let Ok(Err(error)) = &ended {
            say(format_args!(
                "the end of this server cannot be written down: {error}"
            ));
        }
        self.tracer().finish().await;
        matches!(ended, Ok(Ok(_)))
    }

    /// Says where it is reached, for its capability report.
    pub fn listens_at(&self, address: &str) {
        // It listens at one place, and does not move.
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

    /// Keeps a report; gives back the one before.
    pub(crate) fn swap_report(&self, report: serde_json::Value) -> Option<serde_json::Value> {
        self.0
            .report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(report)
    }

    pub(crate) fn tracer(&self) -> &trace::Tracer {
        &self.0.tracer
    }

    pub(crate) fn recorder(&self) -> &telemetry::Recorder {
        &self.0.recorder
    }

    /// Lets nothing begin any more, and ends all that goes on; what is left of it.
    async fn end_everything(&self) -> Vec<String> {
        *self
            .0
            .closing
            .write()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.jobs().wake();
        // A sandbox has no end of its own that could be waited for.
        let (mut left, boxes) = tokio::join!(self.end_runs(), self.end_sandboxes());
        left.extend(boxes);
        left
    }

    /// What may begin is listed before this is dropped; none if the server ends.
    pub(crate) fn may_list(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(
            self.0
                .closing
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
        .filter(|closing| !**closing)
    }

    /// Whether the server ends.
    pub(crate) fn is_closing(&self) -> bool {
        self.may_list().is_none()
    }

    /// Says in the audit how the end of everything went.
    fn note_stop(&self, left: &[String]) {
        let shown = left
            .iter()
            .take(MOST_LEFT_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let about = if left.is_empty() {
            "everything was stopped".to_owned()
        } else {
            format!("left: {shown}")
        };
        // Where it cannot be written that was said on stderr, and ending goes on.
        _ = self.note(&Entry {
            what: "server.stop",
            about: &about,
            ..Entry::default()
        });
    }

    /// Every now and then: what artifacts and ledgers may not stay. Those who put artifacts do that, too, but they may be gone.
    async fn tidy(self) {
        loop {
            self.retire_ledgers().await;
            tokio::time::sleep(BETWEEN_TIDYINGS).await;
            for problem in self.engine().artifacts().tidy().await.1 {
                say(format_args!("{problem}"));
            }
            jobs::forget(&self).await;
            let now = engine::now().0;
            // What cannot be forgotten now is forgotten next time.
            _ = self
                .writer()
                .write(move |writing| writing.prune_workflows(now))
                .await;
        }
    }

    async fn retire_ledgers(&self) {
        let Some(keep_for) = self.0.keep_ledger else {
            return;
        };
        let (state, now) = (self.0.state.clone(), engine::now().0);
        let before = now.saturating_sub(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
        let retired = tokio::task::spawn_blocking(move || {
            let books = engine::usage::Books::open(&state)?;
            // What cannot be believed is named by whoever asks for usage, and is not retired.
            books.refresh()?;
            books.retire(&state, before, now)
        });
        if let Ok(Err(error)) = retired.await {
            say(format_args!(
                "airlock: old ledgers cannot be taken away: {error}"
            ));
        }
    }

    /// The database knows how far the ledger goes: what is cut off of it later is noticed.
    async fn read_ledger(self) {
        let mut lengths = Lengths::new();
        loop {
            self.begin_day().await;
            self.read_ledger_now().await;
            let next = tokio::time::Instant::now() + BETWEEN_READINGS;
            while tokio::time::Instant::now() < next {
                tokio::time::sleep(BETWEEN_LOOKS_AT_OWN).await;
                lengths = self.follow_ledger(lengths).await;
            }
        }
    }

    /// Each day has a ledger of its own, which can be taken away one day.
    async fn begin_day(&self) {
        let engine = self.engine().clone();
        let today = spec::Day::of(engine::now());
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || engine.begin_day(today)).await {
            say(format_args!(
                "airlock: the ledger of {today} cannot be begun, that of the day before goes on: {error}"
            ));
        }
    }

    /// Reads what is new in our own ledgers, where they are not as long as this; how long they are.
    async fn follow_ledger(&self, before: Lengths) -> Lengths {
        let state = self.0.state.clone();
        let follow = move || {
            // What goes wrong here is said when all of it is read.
            let Ok(now) = engine::usage::lengths(&state) else {
                return before;
            };
            let longer: Vec<_> = now
                .keys()
                .filter(|name| now.get(*name) != before.get(*name))
                .collect();
            let books = || engine::usage::Books::open(&state);
            let is_read =
                longer.is_empty() || books().and_then(|books| books.follow(longer)).is_ok();
            if is_read { now } else { before }
        };
        // Broken off, all of them are looked at next time.
        tokio::task::spawn_blocking(follow)
            .await
            .unwrap_or_default()
    }

    async fn read_ledger_now(&self) {
        let state = self.0.state.clone();
        let read =
            tokio::task::spawn_blocking(move || engine::usage::Books::open(&state)?.refresh());
        match read.await {
            Ok(Err(error)) => say(format_args!("airlock: the ledger cannot be read: {error}")),
            Ok(Ok(problems)) => problems
                .iter()
                .for_each(|problem| say(format_args!("airlock: the ledger: {problem}"))),
            Err(_) => {}
        }
    }

    /// Refuses early what would have no room to end well.
    pub(crate) fn has_room(&self) -> problem::Answer<()> {
        match self.0.engine.is_nearly_full() {
            true => Err(Problem::full()),
            false => Ok(()),
        }
    }

    /// Whether the keys in use are still good: another process may have revoked one.
    async fn look_at_keys(self) {
        loop {
            tokio::time::sleep(validity::BETWEEN_LOOKS).await;
            let keys = self.keys().clone();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || keys.end_bad_ones()).await {
                say(format_args!("airlock: {error}"));
            }
        }
    }

    async fn end_runs(&self) -> Vec<String> {
        let patience = tokio::time::Instant::now() + self.bounds().grace;
        while self.goes_on() && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.runs().cancel_all();
        let patience = tokio::time::Instant::now() + Duration::from_secs(3);
        while self.goes_on() && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.runs()
            .under_way()
            .iter()
            .map(|live| format!("run {}", live.id))
            .collect()
    }

    /// Whether a run is under way, or a job about to start one.
    fn goes_on(&self) -> bool {
        self.runs().count() + self.jobs().starting() > 0
    }

    /// Makes what the commonest runs need, ahead of them.
    pub async fn warm(&self) {
        let mut request = health::trial();
        self.node().fill_in(&mut request);
        if let Ok(spec) = self.policy().admit(request) {
            self.engine().warm(&spec).await;
        }
    }

    /// Its keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn state(&self) -> &std::path::Path {
        &self.0.state
    }

    pub(crate) fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    pub(crate) fn folders(&self) -> &[runs::host::Folder] {
        &self.0.folders
    }

    pub(crate) fn profiles(&self) -> Option<&[String]> {
        self.0.profiles.as_deref()
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.0.bounds
    }

    /// What this tenant may have.
    pub(crate) fn quota(&self, tenant: &str) -> &Quota {
        self.0.tenants.quota(tenant)
    }

    /// Writes down what was decided. What cannot be written down must not be done.
    pub(crate) fn note(&self, entry: &Entry<'_>) -> problem::Answer<()> {
        self.0.audit.note(entry).map_err(|error| {
            say(format_args!(
                "airlock: the audit cannot be written: {error}"
            ));
            match error.kind() {
                std::io::ErrorKind::StorageFull => Problem::full(),
                _ => audit::unwritable(),
            }
        })
    }

    /// The same where others wait for their turn: if it is the disk that has to be waited for, that is done elsewhere.
    pub(crate) async fn note_aside(&self, entry: &Entry<'_>) -> problem::Answer<()> {
        if !self.0.audit.waits() {
            return self.note(entry);
        }
        let (gateway, note) = (self.clone(), store::audit::Note::from(entry));
        let noted = tokio::task::spawn_blocking(move || gateway.note(&note.entry()));
        noted.await.map_err(|_| writer::busy())?
    }

    pub(crate) fn cursors(&self) -> &cursor::Cursors {
        &self.0.cursors
    }

    pub(crate) fn days(&self) -> &tenants::Days {
        &self.0.days
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    /// Writes down what has happened; later, if it cannot be written now.
    pub(crate) fn note_happened(&self, entry: &Entry<'_>) {
        self.0.audit.note_happened(entry);
    }

    /// Why nothing can be written down, if so.
    pub(crate) fn audit_trouble(&self) -> Option<String> {
        self.0.audit.trouble()
    }

    pub(crate) fn refusals(&self) -> &audit::Refusals {
        &self.0.refusals
    }

    pub(crate) fn webhooks(&self) -> &jobs::webhook::Webhooks {
        &self.0.webhooks
    }

    pub(crate) fn quiet(&self) -> bool {
        self.0.quiet
    }

    pub(crate) fn served(&self) -> &Served {
        &self.0.served
    }

    pub(crate) fn writer(&self) -> &writer::Writer {
        &self.0.writer
    }

    /// Writes what must outlast a power cut.
    pub(crate) fn durable(&self) -> &writer::Writer {
        &self.0.durable
    }

    pub(crate) fn jobs(&self) -> &jobs::Jobs {
        &self.0.jobs
    }

    /// Asks the database off the event loop.
    pub(crate) async fn look_up<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Served) -> Result<T, DatabaseError> + Send + 'static,
    ) -> problem::Answer<T> {
        let gateway = self.clone();
        let done = tokio::task::spawn_blocking(move || work(gateway.served())).await;
        Ok(done.map_err(|_| writer::busy())??)
    }

    pub(crate) fn metrics(&self) -> &metrics::Metrics {
        &self.0.metrics
    }

    pub(crate) fn readiness(&self) -> &health::Readiness {
        &self.0.readiness
    }

    pub(crate) fn arriving(&self) -> &shares::Shares {
        &self.0.arriving
    }

    pub(crate) fn answering(&self) -> &shares::Shares {
        &self.0.answering
    }

    pub(crate) fn working(&self) -> &shares::Shares {
        &self.0.working
    }

    pub(crate) fn turns(&self) -> &turns::Turns {
        &self.0.turns
    }

    pub(crate) fn viewers(&self) -> &sandboxes::Viewers {
        &self.0.viewers
    }

    pub(crate) fn runs(&self) -> &runs::live::Runs {
        &self.0.runs
    }
}

fn not_known() -> Vec<String> {
    vec!["what was to be ended is not known".to_owned()]
}

/// Something that the operator should look at, in the log.
fn say(line: std::fmt::Arguments<'_>) {
    let about = line.to_string();
    log::tell(log::Line::warn(
        about.strip_prefix("airlock: ").unwrap_or(&about),
    ));
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::with_openapi(openapi::frame())
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

/// The routes behind the gate.
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
            gate::pass,
        ))
        .with_state(gateway.clone())
}
