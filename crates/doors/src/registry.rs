//! Sessions of a service, by their tokens: who may use the doors, until when, and what came of those that are over.
//!
//! ```text
//! register ─▶ live ─┬─ revoked ──▶ closed (nobody is served any more) ─▶ ended: usage stays answerable
//!                   └─ expired ──▶
//! ```

use crate::{
    place::{self, Place},
    secret::Secret,
    serve::Listener,
    session::{Doors, Kind, OpenError, Report, Session, SessionTerms},
    till::{self, Account, Level, Terms, Used},
    token::{NoRandom, Token, TokenHash},
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

/// Sessions at the same time.
pub(crate) const MOST_SESSIONS: usize = 10_000;
/// Sessions that are over and still answer for their usage.
const MOST_ENDED: usize = 10_000;
/// Tokens that callers chose, used or not any more. None of them is taken a second time.
const MOST_CHOSEN: usize = 100_000;
/// Names of tenants.
const MOST_TENANTS: usize = 10_000;

/// What sessions are opened with; replaced as a whole by a reload.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Providers and the till.
    pub doors: Arc<Doors>,
    /// What each tenant may use; `*` is for those that are not named. With none, any name goes and has no limit.
    pub tenants: BTreeMap<String, Terms>,
    /// Which models of the node's own server may be asked for; every one if empty.
    pub inference_models: Vec<ModelPattern>,
}

/// Reads the configuration anew, or says why it cannot be used.
pub type Reload = Box<dyn Fn(&Arc<Doors>) -> Result<Setup, String> + Send + Sync>;

/// What is asked for a session.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Order {
    pub kind: Kind,
    /// Not used at the inference door.
    pub provider: String,
    pub sandbox: Option<Id>,
    pub run: Option<Id>,
    pub tenant: Option<Id>,
    /// Chosen by the caller; a new one otherwise.
    pub token: Option<Token>,
    /// A credential of its own instead of the provider's.
    pub key: Option<Secret>,
    /// Every one if empty.
    pub models: Vec<ModelPattern>,
    pub budget: Budget,
    pub ttl: Option<Duration>,
    /// A unix socket of its own.
    pub socket: Option<Socket>,
}

/// A unix socket of a session's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// Who may connect, if it is not us.
    pub user: Option<u32>,
}

/// A session that was opened, for the one who asked. The token is nowhere else.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Registered {
    pub id: String,
    pub token: Token,
    pub socket: Option<PathBuf>,
    pub expires_at: Option<Timestamp>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The token is known.
    #[error("this token has been registered before")]
    TokenTaken,
    /// Too many of something.
    #[error("there are {most} {what} already")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The tenant is not configured, while others are.
    #[error("no tenant is called `{0}`")]
    NoTenant(Id),
    /// The service is going down.
    #[error("the service is stopping")]
    Stopping,
    /// The door cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its socket cannot be made.
    #[error("cannot make the session's socket")]
    Socket(#[source] io::Error),
    /// No random bytes.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

/// What there is to say of a session. Neither its token nor its key.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct View {
    pub about: Arc<About>,
    pub state: State,
    pub used: Used,
    pub denials: Vec<Denial>,
}

/// What does not change of a session.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct About {
    pub id: String,
    pub kind: Kind,
    pub provider: String,
    pub sandbox: Option<Id>,
    pub run: Option<Id>,
    pub tenant: Option<Id>,
    pub models: Vec<ModelPattern>,
    pub budget: Budget,
    pub socket: Option<PathBuf>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    token: TokenHash,
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum State {
    Open,
    Revoked,
    Expired,
}

/// Sessions by their tokens.
pub struct Registry {
    place: Place,
    setup: Mutex<Arc<Setup>>,
    reload: Option<Reload>,
    shelves: Mutex<Shelves>,
}

#[derive(Default)]
struct Shelves {
    stopping: bool,
    live: BTreeMap<String, Arc<Live>>,
    tokens: HashMap<TokenHash, Arc<Session>>,
    chosen: HashSet<TokenHash>,
    ended: VecDeque<View>,
    tenants: BTreeMap<String, Account>,
}

struct Live {
    about: Arc<About>,
    session: Arc<Session>,
    /// Ends it when its time is over.
    alarm: Option<AbortHandle>,
    /// Filled when nobody is served any more, by whoever revokes first; others wait for it.
    closed: OnceCell<Report>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Registry({} sessions)", self.shelves().live.len())
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
    /// An empty one, with its sockets below this folder, of which it must be the only owner: what earlier sessions left
    /// there goes.
    pub fn open(folder: &Path, setup: Setup, reload: Option<Reload>) -> io::Result<Arc<Registry>> {
        let place = Place::open(folder)?;
        let setup = Mutex::new(Arc::new(setup));
        Ok(Arc::new(Registry {
            place,
            setup,
            reload,
            shelves: Mutex::default(),
        }))
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        locked(&self.shelves)
    }

    pub(crate) fn setup(&self) -> Arc<Setup> {
        locked(&self.setup).clone()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Opens a session. What it needs is looked for now.
    pub async fn register(self: &Arc<Registry>, order: Order) -> Result<Registered, RegisterError> {
        let token = order.token.clone().map_or_else(Token::fresh, Ok)?;
        // Again when it is put in its place; here so that what is refused costs nothing.
        self.shelves().check(&token.hash(), order.token.is_some())?;
        let setup = self.setup();
        let expires = order.ttl.map(|ttl| Instant::now() + ttl);
        let terms = self.terms(&setup, &order, &token, expires)?;
        let id = terms.id.clone();
        let session = setup.doors.open(order.kind, terms).await?;
        let socket = match order.socket {
            Some(socket) => Some(self.serve_socket(&session, order.kind, socket)?),
            None => None,
        };
        let about = about(&order, &id, &token, socket.clone());
        let expires_at = about.expires_at;
        let alarm = expires.map(|expires| self.alarm(&id, expires));
        let live = Arc::new(Live {
            about: Arc::new(about),
            session,
            alarm,
            closed: OnceCell::new(),
        });
        let put = self.shelves().put(&live, order.token.is_some());
        match put {
            Ok(()) => Ok(Registered {
                id,
                token,
                socket,
                expires_at,
            }),
            Err(refused) => {
                // Nobody was told its name, but its socket may have been found.
                self.finish(&live, State::Revoked).await;
                Err(refused)
            }
        }
    }

    fn terms(
        &self,
        setup: &Setup,
        order: &Order,
        token: &Token,
        expires: Option<Instant>,
    ) -> Result<SessionTerms, RegisterError> {
        let text = |id: &Option<Id>| id.as_ref().map(Id::to_string).unwrap_or_default();
        let mut models = vec![order.models.clone()];
        if order.kind == Kind::Inference {
            models.push(setup.inference_models.clone());
        }
        Ok(SessionTerms {
            id: place::fresh_id()?,
            run: text(&order.run),
            tenant: text(&order.tenant),
            provider: order.provider.clone(),
            key: order.key.clone(),
            models,
            budget: order.budget.clone(),
            above: order
                .tenant
                .as_ref()
                .map(|tenant| self.tenant(setup, tenant))
                .transpose()?,
            expires,
            token: Some(token.hash()),
        })
    }

    /// The account that all sessions of a tenant share.
    fn tenant(&self, setup: &Setup, name: &Id) -> Result<Account, RegisterError> {
        let terms = match till::terms_of(&setup.tenants, name.as_str()) {
            Some(terms) => terms,
            // Of a name that was mistyped nothing would be limited.
            None if !setup.tenants.is_empty() => return Err(RegisterError::NoTenant(name.clone())),
            None => Terms {
                level: Level::Tenant,
                name: name.to_string(),
                ..Terms::default()
            },
        };
        let mut shelves = self.shelves();
        if !shelves.tenants.contains_key(name.as_str()) && shelves.tenants.len() >= MOST_TENANTS {
            return Err(RegisterError::Full {
                what: "tenants",
                most: MOST_TENANTS,
            });
        }
        // Shared by its name, with the terms of now.
        let account = setup.doors.till().account(terms, None);
        shelves.tenants.insert(name.to_string(), account.clone());
        Ok(account)
    }

    fn serve_socket(
        &self,
        session: &Arc<Session>,
        kind: Kind,
        socket: Socket,
    ) -> Result<PathBuf, RegisterError> {
        let name = match kind {
            Kind::Llm => "llm.sock",
            Kind::Inference => "inference.sock",
        };
        let (listener, path) = self
            .place
            .socket(session.id(), name, socket.user)
            .map_err(RegisterError::Socket)?;
        session.serve(Listener::Unix(listener))?;
        Ok(path)
    }

    fn alarm(self: &Arc<Registry>, id: &str, expires: Instant) -> AbortHandle {
        let (registry, id) = (Arc::downgrade(self), id.to_owned());
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(expires.into()).await;
            if let Some(registry) = registry.upgrade() {
                registry.end(&id, State::Expired).await;
            }
        });
        task.abort_handle()
    }

    /// Whom a token stands for. As much is done for one that nobody has.
    pub(crate) fn find(&self, presented: &[u8]) -> Option<Arc<Session>> {
        let hash = TokenHash::of(presented);
        let found = self.shelves().tokens.get(&hash).cloned();
        found.filter(|session| session.is_open())
    }

    /// A session by its name or its token, living or over.
    pub fn view(&self, which: &str) -> Option<View> {
        let shelves = self.shelves();
        let hash = TokenHash::of(which.as_bytes());
        let is_meant = |view: &&View| view.about.id == which || view.about.token == hash;
        let ended = || shelves.ended.iter().rev().find(is_meant).cloned();
        shelves.meant(which).map(|live| live.view()).or_else(ended)
    }

    /// The session that lives under this name or token.
    pub fn session(&self, which: &str) -> Option<Arc<Session>> {
        self.shelves().meant(which).map(|live| live.session.clone())
    }

    /// All that live.
    pub fn list(&self) -> Vec<View> {
        self.shelves()
            .live
            .values()
            .map(|live| live.view())
            .collect()
    }

    /// What each tenant has used.
    pub fn tenants(&self) -> BTreeMap<String, Used> {
        let doors = self.setup().doors.clone();
        let shelves = self.shelves();
        shelves
            .tenants
            .iter()
            .map(|(name, account)| (name.clone(), doors.till().used(account)))
            .collect()
    }

    /// Ends a session, by its name or its token. When this returns, no further byte reaches anybody who called.
    pub async fn revoke(self: &Arc<Registry>, which: &str) -> Option<View> {
        self.end(which, State::Revoked).await
    }

    /// The same for all sessions of a sandbox; how many there were.
    pub async fn revoke_sandbox(self: &Arc<Registry>, sandbox: &str) -> usize {
        self.end_all(|about| {
            about
                .sandbox
                .as_ref()
                .is_some_and(|id| id.as_str() == sandbox)
        })
        .await
    }

    /// Takes no more sessions, and ends those there are.
    pub async fn stop(self: &Arc<Registry>) {
        self.shelves().stopping = true;
        self.end_all(|_| true).await;
    }

    async fn end_all(self: &Arc<Registry>, is_meant: impl Fn(&About) -> bool) -> usize {
        let meant: Vec<_> = {
            let shelves = self.shelves();
            let meant = shelves.live.values().filter(|live| is_meant(&live.about));
            meant.map(|live| live.about.id.clone()).collect()
        };
        // All are asked before the first is waited for.
        let ends: Vec<_> = meant
            .into_iter()
            .map(|id| {
                let registry = self.clone();
                tokio::spawn(async move { registry.end(&id, State::Revoked).await })
            })
            .collect();
        let mut count = 0;
        for end in ends {
            count += usize::from(matches!(end.await, Ok(Some(_))));
        }
        count
    }

    async fn end(self: &Arc<Registry>, which: &str, state: State) -> Option<View> {
        let live = {
            let mut shelves = self.shelves();
            let live = shelves.meant(which)?.clone();
            shelves.tokens.remove(&live.about.token);
            live
        };
        let registry = self.clone();
        // A task of its own: whoever asked may go away, and half an end is none.
        tokio::spawn(async move { registry.finish(&live, state).await })
            .await
            .ok()
    }

    async fn finish(&self, live: &Live, state: State) -> View {
        let report = live.closed.get_or_init(|| live.session.close()).await;
        if let Some(alarm) = &live.alarm {
            alarm.abort();
        }
        let doors = &live.session.doors;
        // Where this cannot be written, the next owner counts the session among those that may come again: none does.
        _ = doors
            .till()
            .ledger()
            .revoke(&live.session.terms().run, &live.about.id);
        // One that cannot be removed leads nowhere, and is swept at the next start.
        _ = self.place.remove(&live.about.id);
        let denials = report.denials.clone();
        let view = View {
            about: live.about.clone(),
            state,
            used: report.used,
            denials,
        };
        let mut shelves = self.shelves();
        if shelves.live.remove(&live.about.id).is_some() {
            if shelves.ended.len() >= MOST_ENDED {
                shelves.ended.pop_front();
            }
            shelves.ended.push_back(view.clone());
        }
        view
    }

    /// Reads the configuration anew, for sessions that come. If it cannot be used, everything stays as it is.
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

impl Shelves {
    fn check(&self, token: &TokenHash, chosen: bool) -> Result<(), RegisterError> {
        if self.stopping {
            return Err(RegisterError::Stopping);
        }
        if self.tokens.contains_key(token) || self.chosen.contains(token) {
            return Err(RegisterError::TokenTaken);
        }
        if self.live.len() >= MOST_SESSIONS {
            return Err(RegisterError::Full {
                what: "sessions",
                most: MOST_SESSIONS,
            });
        }
        if chosen && self.chosen.len() >= MOST_CHOSEN {
            return Err(RegisterError::Full {
                what: "tokens that were chosen",
                most: MOST_CHOSEN,
            });
        }
        Ok(())
    }

    fn put(&mut self, live: &Arc<Live>, chosen: bool) -> Result<(), RegisterError> {
        let token = live.about.token;
        self.check(&token, chosen)?;
        if chosen {
            self.chosen.insert(token);
        }
        self.tokens.insert(token, live.session.clone());
        self.live.insert(live.about.id.clone(), live.clone());
        Ok(())
    }

    fn meant(&self, which: &str) -> Option<&Arc<Live>> {
        let hash = TokenHash::of(which.as_bytes());
        let by_token = || self.live.get(self.tokens.get(&hash)?.id());
        // Its token is taken away while it ends; who asks for its end again has to wait for that, too.
        let ending = || self.live.values().find(|live| live.about.token == hash);
        self.live.get(which).or_else(by_token).or_else(ending)
    }
}

impl Live {
    fn view(&self) -> View {
        View {
            about: self.about.clone(),
            state: State::Open,
            used: self.session.used(),
            denials: self.session.denials(),
        }
    }
}

fn about(order: &Order, id: &str, token: &Token, socket: Option<PathBuf>) -> About {
    let created_at = now();
    let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    About {
        id: id.to_owned(),
        kind: order.kind,
        provider: order.provider.clone(),
        sandbox: order.sandbox.clone(),
        run: order.run.clone(),
        tenant: order.tenant.clone(),
        models: order.models.clone(),
        budget: order.budget.clone(),
        socket,
        created_at,
        expires_at: order
            .ttl
            .map(|ttl| Timestamp(created_at.0.saturating_add(millis(ttl)))),
        token: token.hash(),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
