//! A session: whom a listener or a token stands for, and what it may do.

use crate::{
    catalogue::{Bounds, Catalogue, Provider, Target},
    line::Crowd,
    secret::Secret,
    secrets::{Secrets, SecretsError},
    serve::{self, Listener},
    till::{Account, Level, Terms, Till, Used},
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

/// Denials that are kept of one session; each is listed once.
const MOST_DENIALS: usize = 64;
/// Answers that are read to their end after their reader left, at the same time.
const MOST_DRAINS: usize = 64;
/// Bytes of request bodies that a session may have in memory, in units of [`BODY_UNIT`].
pub(crate) const BODY_UNITS: usize = 1024;
/// See [`BODY_UNITS`].
pub(crate) const BODY_UNIT: u64 = 64 << 10;
/// What a closing session waits for answers that are still being read to their end.
const LAST_DRAINS: Duration = Duration::from_secs(1);

/// Everything that doors share: what is configured, what is spent, which connections are open.
pub struct Doors {
    pub(crate) catalogue: Catalogue,
    pub(crate) till: Till,
    secrets: Secrets,
    upstreams: tokio::sync::Mutex<HashMap<String, Arc<Upstream>>>,
    pub(crate) drains: Semaphore,
}

/// Which door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Models of configured providers.
    Llm,
    /// The node's own model server.
    Inference,
}

/// What a session is opened with.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SessionTerms {
    pub id: String,
    pub run: String,
    pub tenant: String,
    /// The provider's name; not used at the inference door.
    pub provider: String,
    /// A credential of its own instead of the provider's.
    pub key: Option<Secret>,
    /// A model must match one of each list.
    pub models: Vec<Vec<ModelPattern>>,
    pub budget: Budget,
    /// What the tenant may use.
    pub above: Option<Account>,
    pub expires: Option<Instant>,
    /// The token that may be presented to it. Any other token is somebody else's.
    pub token: Option<TokenHash>,
}

/// Whom a listener or a token stands for.
pub struct Session {
    pub(crate) doors: Arc<Doors>,
    pub(crate) kind: Kind,
    pub(crate) terms: SessionTerms,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) account: Account,
    pub(crate) crowd: Arc<Crowd>,
    pub(crate) bodies: Semaphore,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) draining: Draining,
    denials: Mutex<Vec<Denial>>,
    budget_hit: AtomicBool,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// Answers whose reader left.
#[derive(Debug, Default)]
pub(crate) struct Draining {
    count: Mutex<usize>,
    fewer: Notify,
    pub(crate) stop: Notify,
}

/// What came of a session.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What it used.
    pub used: Used,
    /// What it was refused.
    pub denials: Vec<Denial>,
    /// A budget was spent.
    pub budget_hit: bool,
}

/// Why a door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such provider.
    #[error("no provider is called `{name}`")]
    NoProvider {
        /// As it was asked for.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// Its credential cannot be had.
    #[error(transparent)]
    Secret(#[from] SecretsError),
    /// It cannot be called.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A listener cannot be served.
    #[error("cannot serve a listener")]
    Listener(#[source] std::io::Error),
    /// The certificates of a run cannot be made.
    #[error("cannot make the certificates of the egress door")]
    Authority(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Doors({} providers)", self.catalogue.providers.len())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Session({})", self.terms.id)
    }
}

impl Doors {
    /// Doors with this configuration; nothing is opened yet.
    pub fn new(catalogue: Catalogue, secrets: Secrets, till: Till) -> Arc<Doors> {
        let drains = Semaphore::new(MOST_DRAINS);
        Arc::new(Doors {
            catalogue,
            till,
            secrets,
            upstreams: Default::default(),
            drains,
        })
    }

    /// What was configured.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The accounts.
    pub fn till(&self) -> &Till {
        &self.till
    }

    /// Opens a session. What it needs is looked for now, so that a missing credential is known before anything runs.
    pub async fn open(
        self: &Arc<Doors>,
        kind: Kind,
        terms: SessionTerms,
    ) -> Result<Arc<Session>, OpenError> {
        let upstream = match (kind, &terms.key) {
            (Kind::Inference, _) => self.inference().await?,
            (Kind::Llm, None) => self.upstream(&terms.provider).await?,
            (Kind::Llm, Some(key)) => {
                let provider = self.catalogue.providers.get(&terms.provider);
                let provider = provider.ok_or_else(|| self.no_provider(&terms.provider))?;
                Arc::new(Upstream::new(provider.clone(), Some(key.clone()))?)
            }
        };
        let budget = Budget {
            concurrent: terms
                .budget
                .concurrent
                .or(Some(self.catalogue.bounds.concurrent)),
            ..terms.budget.clone()
        };
        // A lone run is its own session.
        let level = if terms.run == terms.id {
            Level::Run
        } else {
            Level::Session
        };
        let account_terms = Terms {
            level,
            name: terms.id.clone(),
            budget,
            ..Terms::default()
        };
        let account = self.till.account(account_terms, terms.above.as_ref());
        let Bounds { connections, .. } = self.catalogue.bounds;
        Ok(Arc::new(Session {
            doors: self.clone(),
            kind,
            terms,
            upstream,
            account,
            crowd: Arc::default(),
            bodies: Semaphore::new(BODY_UNITS),
            connections: Arc::new(Semaphore::new(connections)),
            draining: Draining::default(),
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

    /// A provider with its credential, read once.
    pub(crate) async fn upstream(&self, name: &str) -> Result<Arc<Upstream>, OpenError> {
        let provider = self
            .catalogue
            .providers
            .get(name)
            .ok_or_else(|| self.no_provider(name))?;
        self.known(name, provider).await
    }

    async fn inference(&self) -> Result<Arc<Upstream>, OpenError> {
        let provider = self.catalogue.inference.as_ref();
        // No name of a provider has a space, so this one is nobody else's.
        self.known(
            "the inference door",
            provider.ok_or_else(|| self.no_provider("inference"))?,
        )
        .await
    }

    async fn known(
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

impl Session {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.terms.id
    }

    /// What it was opened with.
    pub fn terms(&self) -> &SessionTerms {
        &self.terms
    }

    /// Serves whoever calls at this listener, as this session, until it is closed.
    pub fn serve(self: &Arc<Session>, listener: Listener) -> Result<(), OpenError> {
        let task = serve::listen(self.clone(), listener).map_err(OpenError::Listener)?;
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(task);
        Ok(())
    }

    /// Whether it may still be used.
    pub(crate) fn is_open(&self) -> bool {
        !self.crowd.has_ended() && self.terms.expires.is_none_or(|end| Instant::now() < end)
    }

    /// What it was refused so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.denials
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What it has used so far.
    pub fn used(&self) -> Used {
        self.doors.till.used(&self.account)
    }

    /// Ends it. When this returns, no further byte reaches anybody who called, and everything is settled.
    pub async fn close(&self) -> Report {
        for listener in self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            listener.abort();
        }
        self.crowd.end().await;
        self.draining.finish().await;
        // What cannot be written stays open there, and counts in full.
        _ = self.doors.till.ledger().flush();
        let denials =
            std::mem::take(&mut *self.denials.lock().unwrap_or_else(PoisonError::into_inner));
        Report {
            used: self.used(),
            denials,
            budget_hit: self.budget_hit.load(Ordering::Relaxed),
        }
    }

    /// The models that a name stands for, best first; none if it may not be used.
    pub(crate) fn targets(&self, model: &str) -> Option<Vec<Target>> {
        let admitted = self
            .terms
            .models
            .iter()
            .all(|list| list.is_empty() || list.iter().any(|pattern| pattern.matches(model)));
        if !admitted {
            return None;
        }
        let own = || {
            vec![Target {
                provider: self.upstream.provider.name.clone(),
                model: model.to_owned(),
            }]
        };
        match self.kind {
            Kind::Llm => Some(
                self.doors
                    .catalogue
                    .models
                    .get(model)
                    .cloned()
                    .unwrap_or_else(own),
            ),
            Kind::Inference => Some(own()),
        }
    }

    /// A provider for a target: the session's own if it is that one.
    pub(crate) async fn upstream_of(&self, target: &Target) -> Result<Arc<Upstream>, OpenError> {
        match self.kind == Kind::Inference || target.provider == self.upstream.provider.name {
            true => Ok(self.upstream.clone()),
            // Who brought a key of its own spends nobody else's.
            false if self.terms.key.is_some() => Err(self.doors.no_provider(&target.provider)),
            false => self.doors.upstream(&target.provider).await,
        }
    }

    /// Writes down that something was refused.
    pub(crate) fn denied(&self, what: &str, target: &str, rule: &str, allow_with: &str) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: String = target.chars().take(200).collect();
        let known = denials
            .iter()
            .any(|denial| denial.target == shown && denial.rule == rule);
        if !known && denials.len() < MOST_DENIALS {
            denials.push(Denial {
                what: what.to_owned(),
                target: shown,
                rule: rule.to_owned(),
                allow_with: allow_with.to_owned(),
            });
        }
    }

    pub(crate) fn note_budget(&self) {
        self.budget_hit.store(true, Ordering::Relaxed);
    }
}

impl Draining {
    pub(crate) fn begin(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn end(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.fewer.notify_waiters();
    }

    /// Waits a little, then has the rest settle with what is known.
    async fn finish(&self) {
        if tokio::time::timeout(LAST_DRAINS, self.emptied())
            .await
            .is_err()
        {
            self.stop.notify_waiters();
            self.emptied().await;
        }
    }

    async fn emptied(&self) {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            if *self.count.lock().unwrap_or_else(PoisonError::into_inner) == 0 {
                return;
            }
            fewer.await;
        }
    }
}
