//! Doors and their sessions: a session is the identity and the policy of a listener or a token.

use crate::{
    budget::{AccountLevel, AccountLimits, AccountUsage, BudgetAccount, BudgetManager},
    catalogue::{Catalogue, DoorLimits, ModelTarget, Provider},
    connections::ConnectionSet,
    http_server::{self, DoorListener},
    secret::Secret,
    secrets::{Secrets, SecretsError},
    token::TokenHash,
    upstream::{Upstream, UpstreamError},
};
use spec::{Budget, Denial, ModelPattern};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
};

/// Denials per session report; duplicates are listed once.
const MAX_DENIALS: usize = 64;
/// Concurrent responses that are read to their end after the client disconnected.
const MAX_DRAINS: usize = 64;
/// Memory for the request bodies of a session, in units of [`BODY_UNIT`].
pub(crate) const BODY_UNITS: usize = 1024;
/// See [`BODY_UNITS`].
pub(crate) const BODY_UNIT: u64 = 64 << 10;
/// The memory that request bodies of one session take at most.
pub const MAX_BODY_BYTES: u64 = BODY_UNITS as u64 * BODY_UNIT;
/// How long closing a session waits for responses that are being drained.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// The state that door sessions share: configuration, budgets and upstream connections.
pub struct Doors {
    pub(crate) catalogue: Catalogue,
    pub(crate) budgets: BudgetManager,
    secrets: Secrets,
    upstreams: tokio::sync::Mutex<HashMap<String, Arc<Upstream>>>,
    pub(crate) drains: Semaphore,
}

/// The kind of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorKind {
    /// Models of configured providers.
    Llm,
    /// The node's own model server.
    Inference,
}

/// What a session is opened with.
#[derive(Clone, Debug, Default)]
pub struct SessionTerms {
    /// The session's id.
    pub id: String,
    /// The run; equal to `id` for a run without a session.
    pub run: String,
    /// The tenant; may be empty.
    pub tenant: String,
    /// Name of the provider; not used at the inference door.
    pub provider: String,
    /// A credential to use instead of the provider's.
    pub key: Option<Secret>,
    /// A model must match one pattern of each list.
    pub models: Vec<Vec<ModelPattern>>,
    /// Limits of the session.
    pub budget: Budget,
    /// The budget account of the tenant.
    pub parent_account: Option<BudgetAccount>,
    /// When it expires.
    pub expires: Option<Instant>,
    /// The only token that clients may present. Any other token belongs to another session.
    pub token: Option<TokenHash>,
}

/// The identity and policy of a listener or a token.
pub struct DoorSession {
    pub(crate) doors: Arc<Doors>,
    pub(crate) kind: DoorKind,
    pub(crate) terms: SessionTerms,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) account: BudgetAccount,
    pub(crate) connections: Arc<ConnectionSet>,
    pub(crate) bodies: Semaphore,
    pub(crate) connection_slots: Arc<Semaphore>,
    pub(crate) draining: DrainTracker,
    denials: Mutex<Vec<Denial>>,
    budget_hit: AtomicBool,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// Counts responses whose client disconnected.
#[derive(Debug, Default)]
pub(crate) struct DrainTracker {
    count: Mutex<usize>,
    drained: Notify,
    pub(crate) stop: Notify,
}

/// Summary of a closed session.
#[derive(Clone, Debug, Default)]
pub struct SessionReport {
    /// Its usage.
    pub used: AccountUsage,
    /// Its denials.
    pub denials: Vec<Denial>,
    /// Whether a budget was exhausted.
    pub budget_hit: bool,
}

/// Why a door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The provider does not exist.
    #[error("no provider is called `{name}`")]
    NoProvider {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The credential is not available.
    #[error(transparent)]
    Secret(#[from] SecretsError),
    /// The provider cannot be used.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The listener cannot be served.
    #[error("cannot serve a listener")]
    Listener(#[source] std::io::Error),
    /// The certificates of the run cannot be generated.
    #[error("cannot make the certificates of the egress door")]
    Authority(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Doors({} providers)", self.catalogue.providers.len())
    }
}

impl fmt::Debug for DoorSession {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Session({})", self.terms.id)
    }
}

impl Doors {
    /// Doors with this configuration; nothing is opened yet.
    pub fn new(catalogue: Catalogue, secrets: Secrets, budgets: BudgetManager) -> Arc<Doors> {
        let drains = Semaphore::new(MAX_DRAINS);
        Arc::new(Doors {
            catalogue,
            budgets,
            secrets,
            upstreams: Default::default(),
            drains,
        })
    }

    /// The configured catalogue.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The budget accounts.
    pub fn budgets(&self) -> &BudgetManager {
        &self.budgets
    }

    /// Opens a session. Its credential is resolved now, so that a missing one is reported before
    /// anything runs.
    pub async fn open(
        self: &Arc<Doors>,
        kind: DoorKind,
        terms: SessionTerms,
    ) -> Result<Arc<DoorSession>, OpenError> {
        let upstream = match (kind, &terms.key) {
            (DoorKind::Inference, _) => self.inference().await?,
            (DoorKind::Llm, None) => self.upstream(&terms.provider).await?,
            (DoorKind::Llm, Some(key)) => {
                let provider = self.catalogue.providers.get(&terms.provider);
                let provider = provider.ok_or_else(|| self.no_provider(&terms.provider))?;
                Arc::new(Upstream::new(provider.clone(), Some(key.clone()))?)
            }
        };
        let budget = Budget {
            concurrent: terms
                .budget
                .concurrent
                .or(Some(self.catalogue.limits.max_concurrent)),
            ..terms.budget.clone()
        };
        // A run without a session is its own session.
        let level = if terms.run == terms.id {
            AccountLevel::Run
        } else {
            AccountLevel::Session
        };
        let account_terms = AccountLimits {
            level,
            name: terms.id.clone(),
            budget,
            ..AccountLimits::default()
        };
        let account = self
            .budgets
            .open_account(account_terms, terms.parent_account.as_ref());
        let DoorLimits {
            max_connections, ..
        } = self.catalogue.limits;
        Ok(Arc::new(DoorSession {
            doors: self.clone(),
            kind,
            terms,
            upstream,
            account,
            connections: Arc::default(),
            bodies: Semaphore::new(BODY_UNITS),
            connection_slots: Arc::new(Semaphore::new(max_connections)),
            draining: DrainTracker::default(),
            denials: Mutex::default(),
            budget_hit: AtomicBool::new(false),
            listeners: Mutex::default(),
        }))
    }

    fn no_provider(&self, name: &str) -> OpenError {
        OpenError::NoProvider {
            name: name.to_owned(),
            known: self.catalogue.providers.keys().cloned().collect(),
        }
    }

    /// A provider with its credential, which is read once.
    pub(crate) async fn upstream(&self, name: &str) -> Result<Arc<Upstream>, OpenError> {
        let provider = self
            .catalogue
            .providers
            .get(name)
            .ok_or_else(|| self.no_provider(name))?;
        self.cached_upstream(name, provider).await
    }

    async fn inference(&self) -> Result<Arc<Upstream>, OpenError> {
        let provider = self.catalogue.inference.as_ref();
        // Provider names contain no space, so this key is unique.
        self.cached_upstream(
            "the inference door",
            provider.ok_or_else(|| self.no_provider("inference"))?,
        )
        .await
    }

    async fn cached_upstream(
        &self,
        name: &str,
        provider: &Arc<Provider>,
    ) -> Result<Arc<Upstream>, OpenError> {
        let mut upstreams = self.upstreams.lock().await;
        if let Some(known) = upstreams.get(name) {
            return Ok(known.clone());
        }
        let key = match &provider.key {
            Some(source) => Some(self.secrets.find(source).await?),
            None => None,
        };
        let upstream = Arc::new(Upstream::new(provider.clone(), key)?);
        upstreams.insert(name.to_owned(), upstream.clone());
        Ok(upstream)
    }
}

impl DoorSession {
    /// The session's id.
    pub fn id(&self) -> &str {
        &self.terms.id
    }

    /// What it was opened with.
    pub fn terms(&self) -> &SessionTerms {
        &self.terms
    }

    /// Serves this listener as the session, until the session is closed.
    pub fn serve(self: &Arc<DoorSession>, listener: DoorListener) -> Result<(), OpenError> {
        let task = http_server::listen(self.clone(), listener).map_err(OpenError::Listener)?;
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(task);
        Ok(())
    }

    /// Whether the session is neither ended nor expired.
    pub(crate) fn is_open(&self) -> bool {
        !self.connections.has_ended() && self.terms.expires.is_none_or(|end| Instant::now() < end)
    }

    /// The denials so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The usage so far.
    pub fn used(&self) -> AccountUsage {
        self.doors.budgets.usage(&self.account)
    }

    /// Ends the session. When this returns, no further byte reaches its clients, and every call is
    /// settled.
    pub async fn close(&self) -> SessionReport {
        for listener in self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            listener.abort();
        }
        self.connections.end().await;
        self.draining.finish().await;
        // Unwritten settlements leave their reservations open, which count in full.
        _ = self.doors.budgets.ledger().flush();
        let denials =
            std::mem::take(&mut *self.denials.lock().unwrap_or_else(PoisonError::into_inner));
        SessionReport {
            used: self.used(),
            denials,
            budget_hit: self.budget_hit.load(Ordering::Relaxed),
        }
    }

    /// The models of an alias, best first; `None` if the session may not use it.
    pub(crate) fn targets(&self, model: &str) -> Option<Vec<ModelTarget>> {
        let admitted = self
            .terms
            .models
            .iter()
            .all(|list| list.is_empty() || list.iter().any(|pattern| pattern.matches(model)));
        if !admitted {
            return None;
        }
        let own = || {
            vec![ModelTarget {
                provider: self.upstream.provider.name.clone(),
                model: model.to_owned(),
            }]
        };
        match self.kind {
            DoorKind::Llm => Some(
                self.doors
                    .catalogue
                    .models
                    .get(model)
                    .cloned()
                    .unwrap_or_else(own),
            ),
            DoorKind::Inference => Some(own()),
        }
    }

    /// The provider of a model: the session's own if it is that one.
    pub(crate) async fn upstream_of(
        &self,
        target: &ModelTarget,
    ) -> Result<Arc<Upstream>, OpenError> {
        if self.kind == DoorKind::Inference || target.provider == self.upstream.provider.name {
            return Ok(self.upstream.clone());
        }
        // A session with its own key must not spend anybody else's.
        if self.terms.key.is_some() {
            return Err(self.doors.no_provider(&target.provider));
        }
        self.doors.upstream(&target.provider).await
    }

    /// Records a denial for the report.
    pub(crate) fn record_denial(&self, what: &str, target: &str, rule: &str, allow_with: &str) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: String = target.chars().take(200).collect();
        let known = denials
            .iter()
            .any(|denial| denial.target == shown && denial.rule == rule);
        if !known && denials.len() < MAX_DENIALS {
            denials.push(Denial {
                what: what.to_owned(),
                target: shown,
                rule: rule.to_owned(),
                allow_with: allow_with.to_owned(),
            });
        }
    }

    pub(crate) fn mark_budget_hit(&self) {
        self.budget_hit.store(true, Ordering::Relaxed);
    }
}

impl DrainTracker {
    pub(crate) fn begin(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn end(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.drained.notify_waiters();
    }

    /// Waits for a short grace period, then has the remaining responses settle with what is known.
    async fn finish(&self) {
        if tokio::time::timeout(DRAIN_GRACE, self.wait_empty())
            .await
            .is_err()
        {
            self.stop.notify_waiters();
            self.wait_empty().await;
        }
    }

    async fn wait_empty(&self) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if *self.count.lock().unwrap_or_else(PoisonError::into_inner) == 0 {
                return;
            }
            drained.await;
        }
    }
}
