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
mod turns;
mod usage;
mod validity;
mod wire;
mod work;
mod workspaces;
mod writer;

pub use caller::{Caller, Scope};
pub use keys::{Key, KeyError, Keys, Token};
pub use node::settings::{Logging, Mode, Node, Resources};
pub use openapi::document as openapi;
pub use problem::Problem;
pub use server::{Listener, Tls, TlsError};

use engine::Engine;
use spec::{Bounds, Policy, Quota, Tenants};
use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};
use store::{
    DatabaseError,
    audit::{Audit, Entry},
    served::Served,
};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

/// Of what is left at the end, how much is named in the audit.
const MOST_LEFT_SHOWN: usize = 20;

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
    /// What it is told as a node.
    pub node: Node,
    /// No line for each request on stderr.
    pub quiet: bool,
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
    quiet: bool,
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
        let Settings { engine, policy, state, hosts, folders, profiles, bounds, tenants, node, quiet } =
            settings;
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
            node,
            quiet,
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
        Ok(gateway)
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
                true => gateway.end_everything().await,
                false => Vec::new(),
            }
        });
        let tidying = tokio::spawn(self.clone().tidy());
        let looking = tokio::spawn(self.clone().look_at_keys());
        // Answers of runs that were cancelled still go out.
        let grace = self.bounds().grace + Duration::from_secs(2);
        server::serve(self, listener, tls, stop, grace).await;
        let left = ending.await.unwrap_or_else(|_| vec!["what was to be ended is not known".to_owned()]);
        tidying.abort();
        looking.abort();
        left
    }

    /// Ends all that goes on; what is left of it. Says in the audit how that went.
    async fn end_everything(&self) -> Vec<String> {
        // A sandbox has no end of its own that could be waited for.
        let (mut left, boxes) = tokio::join!(self.end_runs(), self.end_sandboxes());
        left.extend(boxes);
        let shown = left.iter().take(MOST_LEFT_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let about =
            if left.is_empty() { "everything was stopped".to_owned() } else { format!("left: {shown}") };
        // Where it cannot be written that was said on stderr, and ending goes on.
        _ = self.note(&Entry { what: "server.stop", about: &about, ..Entry::default() });
        left
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

    async fn end_runs(&self) -> Vec<String> {
        let patience = tokio::time::Instant::now() + self.bounds().grace;
        while self.runs().count() > 0 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.runs().cancel_all();
        let patience = tokio::time::Instant::now() + Duration::from_secs(3);
        while self.runs().count() > 0 && tokio::time::Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.runs().under_way().iter().map(|live| format!("run {}", live.id)).collect()
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
    #[expect(dead_code, reason = "nobody asks yet")]
    pub(crate) fn quota(&self, tenant: &str) -> &Quota {
        self.0.tenants.quota(tenant)
    }

    /// Writes down what was decided. What cannot be written down must not be done.
    pub(crate) fn note(&self, entry: &Entry<'_>) -> problem::Answer<()> {
        self.0.audit.note(entry).map_err(|error| {
            say(format_args!("airlock: the audit cannot be written: {error}"));
            writer::busy()
        })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
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

/// A line on stderr. Where that is gone there is nobody left to tell, and no reason to stop.
fn say(line: std::fmt::Arguments<'_>) {
    _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
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
