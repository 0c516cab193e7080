//! The egress door: the web, one named host at a time.
//!
//! ```text
//! listener ─ destination ─ rules ─ resolve ─ check ─ dial ─┬─ tunnel: server name, then bytes
//!                                                          └─ inspect: request ─ rules ─ credential ─ answer
//! ```
//!
//! What the rules do not allow is not looked up. What was looked up is what is dialled.

mod answer;
mod authority;
mod books;
mod carry;
mod credential;
mod dial;
mod front;
pub mod git;
pub mod hello;
mod internet;
mod limits;
pub mod names;
mod policy;
pub mod question;
mod requests;
mod rewound;
mod socks;
mod tunnel;

pub use books::{Learned, Today};
pub use credential::{Credential, Inject};
pub(crate) use dial::{Dialler, NoWay};
pub use internet::Internet;

use crate::{OpenError, ledger::Whose, line::Crowd, secrets::Secrets, till::Till};
use authority::Authority;
use books::Books;
use credential::Credentials;
use limits::{Meter, Spent, Way};
use names::Names;
use policy::{Passage, Refusal, Rules, Standing};
use requests::Outside;
use spec::{Denial, Destination, EgressGrant, EgressMode, EgressRule, Host, HostPattern};
use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::RangeInclusive,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

/// Connections of one run at the same time, if there are descriptors for so many.
const MOST_CONNECTIONS: usize = 2048;
/// Of the descriptors that this process may have, one run's connections take up to a quarter: each has two ends.
const SHARE_OF_DESCRIPTORS: u64 = 8;
/// Rules that are added while a run goes on.
const MOST_RULES: usize = 1024;

/// What egress doors are opened with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Credentials by name.
    pub credentials: BTreeMap<String, Credential>,
    /// Certificates that count for servers behind rules that look inside, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Where names lead, and where addresses lie.
    pub internet: Internet,
    /// What tenants had written down today: all doors that are opened with clones of this share it.
    pub today: Arc<Today>,
}

/// The egress door of one run.
pub struct Egress {
    run: String,
    rules: Mutex<Arc<Rules>>,
    /// Told when rules change: what is under way is judged again.
    changed: watch::Sender<()>,
    /// All that passes, by whatever rule.
    meter: Meter,
    books: Books,
    dialler: Dialler,
    names: Names,
    authority: Option<Authority>,
    credentials: Credentials,
    outside: Outside,
    crowd: Arc<Crowd>,
    connections: Arc<Semaphore>,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// A rule as it stands.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// The rule.
    pub rule: EgressRule,
    /// It falls then.
    pub until: Option<Instant>,
}

/// What came of a door.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct EgressReport {
    pub denials: Vec<Denial>,
    /// Hosts that no rule allows, while learning.
    pub learned: BTreeMap<Host, Learned>,
    /// Connections and requests that passed.
    pub begun: u64,
    pub denied: u64,
    pub sent: u64,
    pub received: u64,
    /// A limit of bytes or beginnings was hit.
    pub limit_hit: bool,
}

impl fmt::Debug for Egress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Egress({})", self.run)
    }
}

fn most_connections() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    usize::try_from(most / SHARE_OF_DESCRIPTORS)
        .unwrap_or(MOST_CONNECTIONS)
        .clamp(16, MOST_CONNECTIONS)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Egress {
    /// Opens a door. Credentials that its rules name are looked for now.
    pub async fn open<'a>(
        whose: impl Into<Whose<'a>>,
        grant: &EgressGrant,
        settings: &Settings,
        secrets: &Secrets,
        till: impl Into<Till>,
    ) -> Result<Arc<Egress>, OpenError> {
        let (whose, till) = (whose.into(), till.into());
        let authority = Authority::for_rules(&grant.rules)?;
        let credentials = Credentials::find(&grant.rules, settings, secrets).await?;
        Ok(Arc::new(Egress {
            run: whose.run.to_owned(),
            rules: Mutex::new(Arc::new(Rules::new(grant))),
            changed: watch::Sender::new(()),
            meter: Meter::new(&grant.limits),
            books: Books::new(till, whose, settings.today.clone()),
            dialler: Dialler::new(settings.internet.clone()),
            names: Names::default(),
            authority,
            credentials,
            outside: Outside::new(settings.ca.clone()),
            crowd: Arc::default(),
            connections: Arc::new(Semaphore::new(most_connections())),
            listeners: Mutex::default(),
        }))
    }

    /// The certificate that programs inside must trust, in PEM form, if a rule looks inside.
    pub fn certificate(&self) -> Option<&str> {
        self.authority.as_ref().map(Authority::certificate)
    }

    /// Serves programs that know of the door.
    pub fn serve(self: &Arc<Egress>, listener: TcpListener) -> Result<(), OpenError> {
        self.keep(
            front::listen(self.clone(), front::Entrance::Proxy, listener)
                .map_err(OpenError::Listener)?,
        );
        Ok(())
    }

    /// Serves programs that do not: what they dialled arrives here, redirected by the kernel or not.
    pub fn serve_passing(
        self: &Arc<Egress>,
        listener: TcpListener,
        redirected: bool,
    ) -> Result<(), OpenError> {
        self.keep(
            front::listen(
                self.clone(),
                front::Entrance::Passing { redirected },
                listener,
            )
            .map_err(OpenError::Listener)?,
        );
        Ok(())
    }

    /// Answers questions for names with addresses out of this range, which lead here.
    pub fn serve_names(
        self: &Arc<Egress>,
        socket: UdpSocket,
        range: RangeInclusive<Ipv4Addr>,
    ) -> Result<(), OpenError> {
        self.keep(names::serve(self.clone(), socket, range).map_err(OpenError::Listener)?);
        Ok(())
    }

    fn keep(&self, task: JoinHandle<()>) {
        locked(&self.listeners).push(task);
    }

    /// Adds a rule, until then if that is said. A rule that denies holds for what is under way, too.
    pub fn grant(&self, rule: EgressRule, until: Option<Instant>) -> Result<(), NoChange> {
        let verdict = if rule.mode == EgressMode::Deny {
            "deny"
        } else {
            "grant"
        };
        self.books
            .note_change(verdict, &rule.host, &rule.name)
            .map_err(|_| NoChange::Record)?;
        self.change(|rules| {
            let now = Instant::now();
            rules
                .standing
                .retain(|standing| standing.until.is_none_or(|until| now < until));
            rules.standing.push(Standing::added(rule, until));
        })
    }

    /// Takes away every rule for these hosts that lets something pass, and what was denied while the run went on; how many
    /// there were. What the run began with as denied stays so.
    pub fn revoke(&self, host: &HostPattern) -> Result<usize, NoChange> {
        self.books
            .note_change("revoke", host, "")
            .map_err(|_| NoChange::Record)?;
        let mut count = 0;
        self.change(|rules| {
            let before = rules.standing.len();
            let stays =
                |standing: &Standing| standing.rule.mode == EgressMode::Deny && !standing.is_added;
            rules
                .standing
                .retain(|standing| standing.rule.host != *host || stays(standing));
            count = before - rules.standing.len();
        })?;
        Ok(count)
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) -> Result<(), NoChange> {
        {
            let mut current = locked(&self.rules);
            let mut rules = Rules::clone(&current);
            change(&mut rules);
            if rules.standing.len() > MOST_RULES.max(current.standing.len()) {
                return Err(NoChange::TooMany);
            }
            *current = Arc::new(rules);
        }
        self.changed.send_replace(());
        Ok(())
    }

    /// The rules as they stand.
    pub fn rules(&self) -> Vec<RuleView> {
        let (rules, now) = (locked(&self.rules).clone(), Instant::now());
        let stands = |standing: &&Arc<Standing>| standing.until.is_none_or(|until| now < until);
        let view = |standing: &Arc<Standing>| RuleView {
            rule: standing.rule.clone(),
            until: standing.until,
        };
        rules.standing.iter().filter(stands).map(view).collect()
    }

    /// What the rules say of a destination.
    fn judge(&self, to: &Destination) -> Result<Passage, Refusal> {
        let rules = locked(&self.rules).clone();
        rules.judge(to, Instant::now())
    }

    /// What they say of a host whose address is asked for.
    fn may_ask(&self, host: &Host) -> Result<Passage, Refusal> {
        let rules = locked(&self.rules).clone();
        rules.judge_host(host, Instant::now())
    }

    /// Whether some names are treated otherwise than bare addresses.
    fn has_rules_by_name(&self) -> bool {
        let rules = locked(&self.rules).clone();
        let differs = |rule: &EgressRule| rule.mode == EgressMode::Deny || rule.looks_inside();
        rules
            .standing
            .iter()
            .any(|standing| differs(&standing.rule))
    }

    /// One more connection or request by these rules, if limits allow it.
    fn begin(&self, standing: &Standing) -> Result<(), Refusal> {
        self.books
            .has_room()
            .inspect_err(|_| self.books.note_limit())?;
        let begun = self.meter.begin().map_err(|spent| ("egress_limits", spent));
        let begun = begun.and_then(|()| {
            standing
                .meter
                .begin()
                .map_err(|spent| (&*standing.rule.name, spent))
        });
        begun.map_err(|(rule, spent)| self.spent(rule, spent))
    }

    /// Bytes that are about to pass; whether they may.
    fn count(&self, standing: &Standing, way: Way, bytes: usize) -> Result<(), Refusal> {
        let whole = self
            .meter
            .count(way, bytes)
            .map_err(|spent| ("egress_limits", spent));
        let own = standing
            .meter
            .count(way, bytes)
            .map_err(|spent| (&*standing.rule.name, spent));
        whole
            .and(own)
            .map_err(|(rule, spent)| self.spent(rule, spent))
    }

    fn spent(&self, rule: &str, spent: Spent) -> Refusal {
        self.books.note_limit();
        let name = spent.name();
        Refusal::new(
            rule,
            format!("the limit `{name}` is spent"),
            format!("a larger `{name}` in the configuration"),
        )
    }

    /// Ends it. When this returns, no further byte reaches anybody who called.
    pub async fn close(&self) -> EgressReport {
        for listener in locked(&self.listeners).drain(..) {
            listener.abort();
        }
        self.crowd.end().await;
        self.books.close();
        let (begun, sent, received) = self.meter.totals();
        EgressReport {
            denials: self.books.take_denials(),
            learned: self.books.learned(),
            begun,
            denied: self.books.denied(),
            sent,
            received,
            limit_hit: self.books.limit_hit(),
        }
    }
}

/// Why the rules stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChange {
    /// There are as many as there may be.
    #[error("there are {MOST_RULES} rules already")]
    TooMany,
    /// It cannot be written down.
    #[error("the change cannot be written down")]
    Record,
}
