//! The sessions of the doors service, by token: who may use the doors, until when, and the usage of
//! ended sessions.
//!
//! ```text
//! register ─▶ live ─┬─ revoked ──▶ closed (no connection is left) ─▶ ended: usage can still be queried
//!                   └─ expired ──▶
//! ```

use crate::{
    budget::{self, AccountLevel, AccountLimits, AccountUsage, BudgetAccount},
    http_server::DoorListener,
    secret::Secret,
    session::{DoorKind, DoorSession, Doors, OpenError, SessionReport, SessionTerms},
    socket_dir::{self, SocketDir},
    token::{RandomError, SessionToken, TokenHash},
};
use spec::{Budget, Denial, Id, ModelPattern, Timestamp};
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::OnceCell, task::AbortHandle};

/// Concurrent sessions.
pub(crate) const MAX_SESSIONS: usize = 10_000;
/// Ended sessions whose usage can still be queried.
const MAX_ENDED: usize = 10_000;
/// Tokens chosen by callers, in use or not. None is accepted twice.
const MAX_CHOSEN_TOKENS: usize = 100_000;
/// Tenant names.
const MAX_TENANTS: usize = 10_000;

/// What sessions are opened with; a reload replaces it as a whole.
#[derive(Clone, Debug)]
pub struct RegistryConfig {
    /// Providers and budgets.
    pub doors: Arc<Doors>,
    /// Limits of tenants; `*` is for those that are not named. If empty, any tenant name is
    /// accepted without a limit.
    pub tenants: BTreeMap<String, AccountLimits>,
    /// Models of the node's own server that may be used; all if empty.
    pub inference_models: Vec<ModelPattern>,
}

/// Reads the configuration again; the error says why it cannot be used.
pub type ReloadConfig = Box<dyn Fn(&Arc<Doors>) -> Result<RegistryConfig, String> + Send + Sync>;

/// A request for a new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// The kind of door.
    pub kind: DoorKind,
    /// Not used at the inference door.
    pub provider: String,
    /// The sandbox that will use it.
    pub sandbox: Option<Id>,
    /// The run that will use it.
    pub run: Option<Id>,
    /// The tenant that pays.
    pub tenant: Option<Id>,
    /// Chosen by the caller; generated if absent.
    pub token: Option<SessionToken>,
    /// A credential to use instead of the provider's.
    pub key: Option<Secret>,
    /// All models if empty.
    pub models: Vec<ModelPattern>,
    /// Limits of the session.
    pub budget: Budget,
    /// Lifetime; until revoked if absent.
    pub ttl: Option<Duration>,
    /// Asks for a unix socket of its own.
    pub socket: Option<SessionSocket>,
}

/// Options of a session's own unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSocket {
    /// The user id that may connect, if not ours.
    pub user: Option<u32>,
}

/// A new session, for its caller. The token is stored nowhere else.
#[derive(Debug)]
pub struct RegisteredSession {
    /// The session's id.
    pub id: String,
    /// Its token.
    pub token: SessionToken,
    /// Path of its own socket, if it was asked for.
    pub socket: Option<PathBuf>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
}

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The token was used before.
    #[error("this token has been registered before")]
    TokenTaken,
    /// A maximum is reached.
    #[error("there are {most} {what} already")]
    Full {
        /// Maximum of what.
        what: &'static str,
        /// The maximum.
        most: usize,
    },
    /// The tenant is not configured, but others are.
    #[error("no tenant is called `{0}`")]
    NoTenant(Id),
    /// The service is shutting down.
    #[error("the service is stopping")]
    Stopping,
    /// The door cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The socket cannot be created.
    #[error("cannot make the session's socket")]
    Socket(#[source] io::Error),
    /// The random number generator failed.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Public information about a session: neither its token nor its key.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The immutable part.
    pub meta: Arc<SessionMeta>,
    /// Lifecycle state.
    pub state: DoorSessionState,
    /// Usage.
    pub used: AccountUsage,
    /// Denials.
    pub denials: Vec<Denial>,
}

/// The immutable part of a session.
#[derive(Clone, Debug)]
pub struct SessionMeta {
    /// The session's id.
    pub id: String,
    /// The kind of door.
    pub kind: DoorKind,
    /// Name of the provider; empty at the inference door.
    pub provider: String,
    /// The sandbox that uses it.
    pub sandbox: Option<Id>,
    /// The run that uses it.
    pub run: Option<Id>,
    /// The tenant that pays.
    pub tenant: Option<Id>,
    /// Models that may be used; all if empty.
    pub models: Vec<ModelPattern>,
    /// Limits of the session.
    pub budget: Budget,
    /// Path of its own socket.
    pub socket: Option<PathBuf>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    token: TokenHash,
}

/// Lifecycle state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorSessionState {
    /// Live.
    Open,
    /// Ended by a revocation or by shutdown.
    Revoked,
    /// Ended by its lifetime.
    Expired,
}

/// The registry of sessions, indexed by token.
pub struct Registry {
    socket_dir: SocketDir,
    setup: Mutex<Arc<RegistryConfig>>,
    reload: Option<ReloadConfig>,
    tables: Mutex<SessionTables>,
}

#[derive(Default)]
struct SessionTables {
    stopping: bool,
    live: BTreeMap<String, Arc<ActiveSession>>,
    tokens: HashMap<TokenHash, Arc<DoorSession>>,
    caller_chosen: HashSet<TokenHash>,
    ended: VecDeque<SessionInfo>,
    tenants: BTreeMap<String, BudgetAccount>,
}

struct ActiveSession {
    meta: Arc<SessionMeta>,
    session: Arc<DoorSession>,
    /// The task that ends the session at its expiry.
    expiry: Option<AbortHandle>,
    /// Set by the first caller that ends the session, once no connection is left; other callers
    /// wait for it.
    closed: OnceCell<SessionReport>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Registry({} sessions)", self.tables().live.len())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Timestamp {
    Timestamp(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
    )
}

impl Registry {
    /// An empty registry with its sockets below this folder, which it must own alone: sockets of
    /// earlier sessions are removed.
    pub fn open(
        folder: &Path,
        setup: RegistryConfig,
        reload: Option<ReloadConfig>,
    ) -> io::Result<Arc<Registry>> {
        let socket_dir = SocketDir::open(folder)?;
        let setup = Mutex::new(Arc::new(setup));
        Ok(Arc::new(Registry {
            socket_dir,
            setup,
            reload,
            tables: Mutex::default(),
        }))
    }

    fn tables(&self) -> MutexGuard<'_, SessionTables> {
        locked(&self.tables)
    }

    pub(crate) fn setup(&self) -> Arc<RegistryConfig> {
        locked(&self.setup).clone()
    }

    pub(crate) fn socket_dir(&self) -> &SocketDir {
        &self.socket_dir
    }

    /// Opens a session and resolves everything it needs.
    pub async fn register(
        self: &Arc<Registry>,
        request: NewSession,
    ) -> Result<RegisteredSession, RegisterError> {
        let token = request
            .token
            .clone()
            .map_or_else(SessionToken::generate, Ok)?;
        // Checked again at insertion; checked here so that a refusal is cheap.
        self.tables()
            .check(&token.hash(), request.token.is_some())?;
        let setup = self.setup();
        let expires = request.ttl.map(|ttl| Instant::now() + ttl);
        let terms = self.terms(&setup, &request, &token, expires)?;
        let id = terms.id.clone();
        let session = setup.doors.open(request.kind, terms).await?;
        let socket = match request.socket {
            Some(socket) => Some(self.serve_socket(&session, request.kind, socket)?),
            None => None,
        };
        let meta = session_meta(&request, &id, &token, socket.clone());
        let expires_at = meta.expires_at;
        let expiry = expires.map(|expires| self.expiry(&id, expires));
        let live = Arc::new(ActiveSession {
            meta: Arc::new(meta),
            session,
            expiry,
            closed: OnceCell::new(),
        });
        let put = self.tables().insert_session(&live, request.token.is_some());
        match put {
            Ok(()) => Ok(RegisteredSession {
                id,
                token,
                socket,
                expires_at,
            }),
            Err(refused) => {
                // Its id was never returned, but its socket may have been found.
                self.finish(&live, DoorSessionState::Revoked).await;
                Err(refused)
            }
        }
    }

    fn terms(
        &self,
        setup: &RegistryConfig,
        request: &NewSession,
        token: &SessionToken,
        expires: Option<Instant>,
    ) -> Result<SessionTerms, RegisterError> {
        let text = |id: &Option<Id>| id.as_ref().map(Id::to_string).unwrap_or_default();
        let mut models = vec![request.models.clone()];
        if request.kind == DoorKind::Inference {
            models.push(setup.inference_models.clone());
        }
        Ok(SessionTerms {
            id: socket_dir::generate_id()?,
            run: text(&request.run),
            tenant: text(&request.tenant),
            provider: request.provider.clone(),
            key: request.key.clone(),
            models,
            budget: request.budget.clone(),
            parent_account: request
                .tenant
                .as_ref()
                .map(|tenant| self.tenant(setup, tenant))
                .transpose()?,
            expires,
            token: Some(token.hash()),
        })
    }

    /// The budget account that all sessions of a tenant share.
    fn tenant(&self, setup: &RegistryConfig, name: &Id) -> Result<BudgetAccount, RegisterError> {
        let terms = match budget::limits_for_tenant(&setup.tenants, name.as_str()) {
            Some(terms) => terms,
            // A mistyped tenant name would have no limits.
            None if !setup.tenants.is_empty() => return Err(RegisterError::NoTenant(name.clone())),
            None => AccountLimits {
                level: AccountLevel::Tenant,
                name: name.to_string(),
                ..AccountLimits::default()
            },
        };
        let mut tables = self.tables();
        if !tables.tenants.contains_key(name.as_str()) && tables.tenants.len() >= MAX_TENANTS {
            return Err(RegisterError::Full {
                what: "tenants",
                most: MAX_TENANTS,
            });
        }
        // Shared by name, with the current limits.
        let account = setup.doors.budgets().open_account(terms, None);
        tables.tenants.insert(name.to_string(), account.clone());
        Ok(account)
    }

    fn serve_socket(
        &self,
        session: &Arc<DoorSession>,
        kind: DoorKind,
        socket: SessionSocket,
    ) -> Result<PathBuf, RegisterError> {
        let name = match kind {
            DoorKind::Llm => "llm.sock",
            DoorKind::Inference => "inference.sock",
        };
        let (listener, path) = self
            .socket_dir
            .socket(session.id(), name, socket.user)
            .map_err(RegisterError::Socket)?;
        session.serve(DoorListener::Unix(listener))?;
        Ok(path)
    }

    fn expiry(self: &Arc<Registry>, id: &str, expires: Instant) -> AbortHandle {
        let registry = Arc::downgrade(self);
        let id = id.to_owned();
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(expires.into()).await;
            if let Some(registry) = registry.upgrade() {
                registry.end(&id, DoorSessionState::Expired).await;
            }
        });
        task.abort_handle()
    }

    /// The session of a token. An unknown token takes as long.
    pub(crate) fn find(&self, presented: &[u8]) -> Option<Arc<DoorSession>> {
        let hash = TokenHash::of(presented);
        let found = self.tables().tokens.get(&hash).cloned();
        found.filter(|session| session.is_open())
    }

    /// A session by id or token, live or ended.
    pub fn view(&self, id_or_token: &str) -> Option<SessionInfo> {
        let tables = self.tables();
        let hash = TokenHash::of(id_or_token.as_bytes());
        let is_selected =
            |view: &&SessionInfo| view.meta.id == id_or_token || view.meta.token == hash;
        let ended = || tables.ended.iter().rev().find(is_selected).cloned();
        tables
            .find(id_or_token)
            .map(|live| live.view())
            .or_else(ended)
    }

    /// The live session with this id or token.
    pub fn session(&self, id_or_token: &str) -> Option<Arc<DoorSession>> {
        self.tables()
            .find(id_or_token)
            .map(|live| live.session.clone())
    }

    /// All live sessions.
    pub fn list(&self) -> Vec<SessionInfo> {
        self.tables()
            .live
            .values()
            .map(|live| live.view())
            .collect()
    }

    /// Usage of each tenant.
    pub fn tenants(&self) -> BTreeMap<String, AccountUsage> {
        let doors = self.setup().doors.clone();
        let tables = self.tables();
        tables
            .tenants
            .iter()
            .map(|(name, account)| (name.clone(), doors.budgets().usage(account)))
            .collect()
    }

    /// Ends a session, by id or token. When this returns, no further byte reaches its clients.
    pub async fn revoke(self: &Arc<Registry>, id_or_token: &str) -> Option<SessionInfo> {
        self.end(id_or_token, DoorSessionState::Revoked).await
    }

    /// Ends all sessions of a sandbox; returns their number.
    pub async fn revoke_sandbox(self: &Arc<Registry>, sandbox: &str) -> usize {
        self.end_all(|meta| {
            meta.sandbox
                .as_ref()
                .is_some_and(|id| id.as_str() == sandbox)
        })
        .await
    }

    /// Refuses new sessions and ends all live ones.
    pub async fn stop(self: &Arc<Registry>) {
        self.tables().stopping = true;
        self.end_all(|_| true).await;
    }

    async fn end_all(self: &Arc<Registry>, is_selected: impl Fn(&SessionMeta) -> bool) -> usize {
        let selected: Vec<_> = {
            let tables = self.tables();
            let selected = tables.live.values().filter(|live| is_selected(&live.meta));
            selected.map(|live| live.meta.id.clone()).collect()
        };
        // All ends are started before the first is awaited.
        let ends: Vec<_> = selected
            .into_iter()
            .map(|id| {
                let registry = self.clone();
                tokio::spawn(async move { registry.end(&id, DoorSessionState::Revoked).await })
            })
            .collect();
        let mut count = 0;
        for end in ends {
            count += usize::from(matches!(end.await, Ok(Some(_))));
        }
        count
    }

    async fn end(
        self: &Arc<Registry>,
        id_or_token: &str,
        state: DoorSessionState,
    ) -> Option<SessionInfo> {
        let live = {
            let mut tables = self.tables();
            let live = tables.find(id_or_token)?.clone();
            tables.tokens.remove(&live.meta.token);
            live
        };
        let registry = self.clone();
        // In a task of its own: the caller may be cancelled, and a session must not end halfway.
        tokio::spawn(async move { registry.finish(&live, state).await })
            .await
            .ok()
    }

    async fn finish(&self, live: &ActiveSession, state: DoorSessionState) -> SessionInfo {
        let report = live.closed.get_or_init(|| live.session.close()).await;
        if let Some(expiry) = &live.expiry {
            expiry.abort();
        }
        let doors = &live.session.doors;
        // If this cannot be written, the next owner keeps usage for a session that never returns:
        // harmless.
        _ = doors
            .budgets()
            .ledger()
            .record_revocation(&live.session.terms().run, &live.meta.id);
        // A socket that stays refuses connections, and is swept at the next start.
        _ = self.socket_dir.remove(&live.meta.id);
        let denials = report.denials.clone();
        let view = SessionInfo {
            meta: live.meta.clone(),
            state,
            used: report.used,
            denials,
        };
        let mut tables = self.tables();
        if tables.live.remove(&live.meta.id).is_some() {
            if tables.ended.len() >= MAX_ENDED {
                tables.ended.pop_front();
            }
            tables.ended.push_back(view.clone());
        }
        view
    }

    /// Reads the configuration again, for new sessions. If it is invalid, nothing changes.
    pub fn reload(&self) -> Result<(), String> {
        let reload = self
            .reload
            .as_ref()
            .ok_or("this service cannot read its configuration anew")?;
        let setup = reload(&self.setup().doors)?;
        *locked(&self.setup) = Arc::new(setup);
        Ok(())
    }
}

impl SessionTables {
    fn check(&self, token: &TokenHash, caller_chosen: bool) -> Result<(), RegisterError> {
        if self.stopping {
            return Err(RegisterError::Stopping);
        }
        if self.tokens.contains_key(token) || self.caller_chosen.contains(token) {
            return Err(RegisterError::TokenTaken);
        }
        if self.live.len() >= MAX_SESSIONS {
            return Err(RegisterError::Full {
                what: "sessions",
                most: MAX_SESSIONS,
            });
        }
        if caller_chosen && self.caller_chosen.len() >= MAX_CHOSEN_TOKENS {
            return Err(RegisterError::Full {
                what: "tokens that were chosen",
                most: MAX_CHOSEN_TOKENS,
            });
        }
        Ok(())
    }

    fn insert_session(
        &mut self,
        live: &Arc<ActiveSession>,
        caller_chosen: bool,
    ) -> Result<(), RegisterError> {
        let token = live.meta.token;
        self.check(&token, caller_chosen)?;
        if caller_chosen {
            self.caller_chosen.insert(token);
        }
        self.tokens.insert(token, live.session.clone());
        self.live.insert(live.meta.id.clone(), live.clone());
        Ok(())
    }

    fn find(&self, id_or_token: &str) -> Option<&Arc<ActiveSession>> {
        let hash = TokenHash::of(id_or_token.as_bytes());
        let by_token = || self.live.get(self.tokens.get(&hash)?.id());
        // The token is removed while the session ends; another caller that ends it must wait, too.
        let ending = || self.live.values().find(|live| live.meta.token == hash);
        self.live.get(id_or_token).or_else(by_token).or_else(ending)
    }
}

impl ActiveSession {
    fn view(&self) -> SessionInfo {
        SessionInfo {
            meta: self.meta.clone(),
            state: DoorSessionState::Open,
            used: self.session.used(),
            denials: self.session.denials(),
        }
    }
}

fn session_meta(
    request: &NewSession,
    id: &str,
    token: &SessionToken,
    socket: Option<PathBuf>,
) -> SessionMeta {
    let created_at = now();
    let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    SessionMeta {
        id: id.to_owned(),
        kind: request.kind,
        provider: request.provider.clone(),
        sandbox: request.sandbox.clone(),
        run: request.run.clone(),
        tenant: request.tenant.clone(),
        models: request.models.clone(),
        budget: request.budget.clone(),
        socket,
        created_at,
        expires_at: request
            .ttl
            .map(|ttl| Timestamp(created_at.0.saturating_add(millis(ttl)))),
        token: token.hash(),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
