//! The engine served over HTTP: runs, sessions with their files and terminals, artifacts, keys.
//!
//! A request is known by its key before anything is read of it (`gate.rs`); then one file a kind of thing maps HTTP to
//! the engine's words and back. Nothing here knows how a box is made or what a rule means.

mod artifacts;
mod caller;
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
mod trace;
mod turns;
mod usage;
mod validity;
mod wire;
mod work;
mod workspaces;
mod writer;

pub use caller::{Caller, Scope};
pub use keys::{Key, KeyError, Keys, Token};
pub use node::capability::{NodeFacts, report as capability};
pub use openapi::document as openapi;
pub use problem::Problem;
pub use server::{Listener, Tls, TlsError};
pub use trace::TraceSettings;

use engine::Engine;
use spec::{Bounds, Policy, Quota, Tenants};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use store::{
    DatabaseError,
    audit::{Audit, Entry},
    served::Served,
};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

/// How often what may not stay is looked for.
const BETWEEN_TIDYINGS: Duration = Duration::from_secs(3600);

/// Bytes of JSON bodies that arrive at a time, on all connections.
const MOST_ARRIVING: usize = 256 << 20;
/// The same, of one key.
const MOST_ARRIVING_OF_ONE: usize = MOST_ARRIVING / 4;
/// Bytes of lists and results that wait for whoever asked for them, and those of one key.
const MOST_ANSWERING: usize = 256 << 20;
const MOST_ANSWERING_OF_ONE: usize = MOST_ANSWERING / 4;

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
    /// How much of it for each tenant.
    pub tenants: Tenants,
    /// No line for each request.
    pub quiet: bool,
    /// Where traces go, if anywhere.
    pub trace: Option<TraceSettings>,
    /// What is known of this node.
    pub node: NodeFacts,
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
    audit: Audit,
    served: Arc<Served>,
    writer: writer::Writer,
    keys: Keys,
    metrics: metrics::Metrics,
    readiness: health::Readiness,
    runs: runs::live::Runs,
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
    /// A gateway to an engine. Runs that a server before left without an end are `lost` from now on.
    pub fn new(settings: Settings) -> Result<Gateway, DatabaseError> {
        let Settings { engine, policy, state, hosts, folders, profiles, bounds, tenants, quiet, .. } =
            settings;
        let (trace, facts) = (settings.trace, settings.node);
        let unwritable = |error| DatabaseError::Place {
            path: state.clone(),
            why: format!("the audit cannot be written: {error}"),
        };
        let audit = Audit::open(&state).map_err(unwritable)?;
        let served = Arc::new(Served::open(&state)?);
        let place = state.clone();
        // One body fits, although nobody has more than half.
        let most_arriving = MOST_ARRIVING.max(bounds.body.saturating_mul(2));
        let arriving = shares::Shares::new(most_arriving, MOST_ARRIVING_OF_ONE.max(bounds.body));
        let turns = turns::Turns::new(bounds.connections);
        let gateway = Gateway(Arc::new(Inner {
            engine,
            policy,
            state,
            hosts,
            folders: folders.into_iter().map(runs::host::Folder::new).collect(),
            profiles,
            bounds,
            tenants,
            quiet,
            tracer: trace::Tracer::new(trace, &facts.slug),
            facts,
            address: OnceLock::new(),
            report: Mutex::default(),
            recorder: Arc::default(),
            boot: OnceLock::new(),
            audit,
            keys: Keys::of(served.clone()),
            writer: writer::Writer::start(served.clone()).map_err(|error| DatabaseError::Place {
                path: place,
                why: format!("no thread for it: {error}"),
            })?,
            served,
            metrics: metrics::Metrics::new(),
            readiness: health::Readiness::default(),
            runs: runs::live::Runs::default(),
            sandboxes: sandboxes::Sandboxes::default(),
            viewers: sandboxes::Viewers::default(),
            arriving,
            answering: shares::Shares::new(MOST_ANSWERING, MOST_ANSWERING_OF_ONE),
            working: work::shares(),
            turns,
        }));
        runs::live::settle(&gateway)?;
        gateway.recall_sandboxes()?;
        gateway.begin_records()?;
        Ok(gateway)
    }

    /// Serves until it is told to stop; then ends connections and runs, those that go on after a grace by cancelling them.
    pub async fn serve(&self, listener: Listener, tls: Option<Tls>, stop: watch::Receiver<bool>) {
        let (gateway, mut told) = (self.clone(), stop.clone());
        let ending = tokio::spawn(async move {
            if told.wait_for(|stop| *stop).await.is_ok() {
                // A sandbox has no end of its own that could be waited for.
                tokio::join!(gateway.end_runs(), gateway.end_sandboxes());
            }
        });
        let exporting = self.clone();
        let beside = [
            tokio::spawn(self.clone().tidy()),
            tokio::spawn(self.clone().look_at_keys()),
            tokio::spawn(self.clone().record()),
            tokio::spawn(self.clone().keep_telemetry_small()),
            tokio::spawn(self.clone().look_at_capability()),
            tokio::spawn(async move { exporting.tracer().export().await }),
        ];
        // Answers of runs that were cancelled still go out.
        let grace = self.bounds().grace + Duration::from_secs(2);
        server::serve(self, listener, tls, stop, grace).await;
        _ = ending.await;
        beside.iter().for_each(tokio::task::JoinHandle::abort);
        self.end_records().await;
    }

    /// Writes down that a server starts here, and how the one before ended.
    fn begin_records(&self) -> Result<(), DatabaseError> {
        log::tap(&self.0.recorder);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let version = env!("CARGO_PKG_VERSION");
        let boot = self.served().boot(version, &kernel, std::process::id(), engine::now().0)?;
        _ = self.0.boot.set(boot);
        let before = self.served().ended_before(boot)?;
        let before = before.map_or(String::new(), |outcome| format!(", the one before ended: {outcome}"));
        let about = format!("node_boot: airlock {version} on Linux {kernel}, start {boot}{before}");
        log::tell(log::Line::new(log::Level::Info, "node_boot", about, log::Fields::default()));
        Ok(())
    }

    /// Writes down how it ends; nothing comes behind that.
    async fn end_records(&self) {
        let left = self.runs().count();
        let outcome = match left {
            0 => "clean".to_owned(),
            left => format!("{left} runs had not ended"),
        };
        let level = if left == 0 { log::Level::Info } else { log::Level::Error };
        let about = format!("node_shutdown: {outcome}");
        log::tell(log::Line::new(level, "node_shutdown", about, log::Fields::default()));
        self.write_records().await;
        let (gateway, boot) = (self.clone(), self.0.boot.get().copied().unwrap_or_default());
        let ended = move || gateway.served().shut_down(boot, &outcome, engine::now().0);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(ended).await {
            say(format_args!("the end of this server cannot be written down: {error}"));
        }
        self.tracer().finish().await;
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
        self.0.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a report; gives back the one before.
    pub(crate) fn swap_report(&self, report: serde_json::Value) -> Option<serde_json::Value> {
        self.0.report.lock().unwrap_or_else(PoisonError::into_inner).replace(report)
    }

    pub(crate) fn tracer(&self) -> &trace::Tracer {
        &self.0.tracer
    }

    pub(crate) fn recorder(&self) -> &telemetry::Recorder {
        &self.0.recorder
    }

    /// Every now and then: what artifacts may not stay. Those who put some do that, too, but they may be gone.
    async fn tidy(self) {
        loop {
            tokio::time::sleep(BETWEEN_TIDYINGS).await;
            for problem in self.engine().artifacts().tidy().await.1 {
                say(format_args!("{problem}"));
            }
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

    async fn end_runs(&self) {
        let patience = tokio::time::Instant::now() + self.bounds().grace;
        while self.runs().count() > 0 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.runs().cancel_all();
        let patience = tokio::time::Instant::now() + Duration::from_secs(3);
        while self.runs().count() > 0 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Makes what the commonest runs need, ahead of them.
    pub async fn warm(&self) {
        if let Ok(spec) = self.policy().admit(health::trial()) {
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
    #[expect(dead_code, reason = "nobody asks yet")]
    pub(crate) fn quota(&self, tenant: &str) -> &Quota {
        self.0.tenants.quota(tenant)
    }

    /// Writes down what was decided. What cannot be written down must not be done.
    #[expect(dead_code, reason = "nobody decides yet")]
    pub(crate) fn note(&self, entry: &Entry<'_>) -> problem::Answer<()> {
        self.0.audit.note(entry).map_err(|error| {
            say(format_args!("airlock: the audit cannot be written: {error}"));
            writer::busy()
        })
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

/// Something that the operator should look at, in the log.
fn say(line: std::fmt::Arguments<'_>) {
    let about = line.to_string();
    log::tell(log::Line::warn(about.strip_prefix("airlock: ").unwrap_or(&about)));
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::with_openapi(openapi::frame())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(openapi::routes())
        .merge(runs::routes())
        .merge(jobs::routes())
        .merge(node::routes())
        .merge(sandboxes::routes())
        .merge(workspaces::routes())
        .merge(artifacts::routes())
        .merge(images::routes())
        .merge(usage::routes())
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
        .layer(axum::middleware::from_fn_with_state(gateway.clone(), gate::pass))
        .with_state(gateway.clone())
}
