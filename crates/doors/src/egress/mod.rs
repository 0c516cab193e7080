//! The egress door: access to the web, by rules for named hosts. Serves as an HTTP and SOCKS proxy, as a
//! transparent proxy, and as a DNS server.
//!
//! ```text
//! listener ─ destination ─ rules ─ resolve ─ check ─ dial ─┬─ tunnel: server name, then bytes
//!                                                          └─ inspect: request ─ rules ─ credential ─ response
//! ```
//!
//! Names that the rules do not allow are not resolved. Only resolved and checked addresses are dialled.

mod certificate_authority;
pub mod client_hello;
mod credential;
mod dial;
pub mod dns;
pub mod dns_message;
mod forward;
pub mod git;
mod internet;
mod listener;
mod log;
mod policy;
mod prefixed_stream;
mod requests;
mod responses;
mod socks;
mod splice;
mod traffic_limits;

pub use credential::{Credential, InjectionMethod};
pub(crate) use dial::{DialError, Dialer};
pub use internet::Internet;
pub use log::{DailyLogUsage, LearnedHost};

use crate::{
    OpenError, budget::BudgetManager, connections::ConnectionSet, ledger::RunIdentity,
    secrets::Secrets,
};
use certificate_authority::CertificateAuthority;
use credential::CredentialSet;
use dns::FakeAddresses;
use log::EgressLog;
use policy::{ActiveRule, Permission, Refusal, RuleSet};
use requests::UpstreamSettings;
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
use traffic_limits::{Direction, LimitExceeded, TrafficMeter};

/// Concurrent connections per run, if there are enough file descriptors.
const MAX_CONNECTIONS: usize = 2048;
/// A run's connections use at most a quarter of the file descriptor limit: each has two ends.
const DESCRIPTOR_SHARE: u64 = 8;
/// Rules after additions at run time.
const MAX_RULES: usize = 1024;

/// Configuration of egress doors.
#[derive(Clone, Debug, Default)]
pub struct EgressSettings {
    /// Credentials by name.
    pub credentials: BTreeMap<String, Credential>,
    /// CA certificates for servers behind inspecting rules, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Name resolution and routing.
    pub internet: Internet,
    /// Log lines per tenant today, shared by all doors that are opened with clones of this.
    pub today: Arc<DailyLogUsage>,
}

/// The egress door of one run.
pub struct Egress {
    run: String,
    rules: Mutex<Arc<RuleSet>>,
    /// Notified when rules change, so that connections in flight are checked again.
    changed: watch::Sender<()>,
    /// Counts all traffic, whatever the rule.
    meter: TrafficMeter,
    log: EgressLog,
    dialer: Dialer,
    names: FakeAddresses,
    authority: Option<CertificateAuthority>,
    credentials: CredentialSet,
    upstream: UpstreamSettings,
    connections: Arc<ConnectionSet>,
    connection_slots: Arc<Semaphore>,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// A rule in force.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// The rule.
    pub rule: EgressRule,
    /// When it expires.
    pub until: Option<Instant>,
}

/// Summary of a closed door.
#[derive(Clone, Debug, Default)]
pub struct EgressReport {
    /// What was refused; duplicates are listed once.
    pub denials: Vec<Denial>,
    /// Hosts that no rule allows, in learning mode.
    pub learned: BTreeMap<Host, LearnedHost>,
    /// Connections and requests that passed.
    pub begun: u64,
    /// Number of refusals.
    pub denied: u64,
    /// Bytes sent to servers.
    pub sent: u64,
    /// Bytes received from servers.
    pub received: u64,
    /// A traffic or rate limit was hit.
    pub limit_hit: bool,
}

impl fmt::Debug for Egress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Egress({})", self.run)
    }
}

fn max_connections() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    usize::try_from(most / DESCRIPTOR_SHARE)
        .unwrap_or(MAX_CONNECTIONS)
        .clamp(16, MAX_CONNECTIONS)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Egress {
    /// Checks that the credentials which the rules name are available.
    pub async fn check_credentials(
        grant: &EgressGrant,
        settings: &EgressSettings,
        secrets: &Secrets,
    ) -> Result<(), OpenError> {
        CredentialSet::find(&grant.rules, settings, secrets)
            .await
            .map(drop)
    }

    /// Opens a door and resolves the credentials that its rules name.
    pub async fn open<'a>(
        identity: impl Into<RunIdentity<'a>>,
        grant: &EgressGrant,
        settings: &EgressSettings,
        secrets: &Secrets,
        budgets: impl Into<BudgetManager>,
    ) -> Result<Arc<Egress>, OpenError> {
        let identity = identity.into();
        let budgets = budgets.into();
        let authority = CertificateAuthority::for_rules(&grant.rules)?;
        let credentials = CredentialSet::find(&grant.rules, settings, secrets).await?;
        Ok(Arc::new(Egress {
            run: identity.run.to_owned(),
            rules: Mutex::new(Arc::new(RuleSet::new(grant))),
            changed: watch::Sender::new(()),
            meter: TrafficMeter::new(&grant.limits),
            log: EgressLog::new(budgets, identity, settings.today.clone()),
            dialer: Dialer::new(settings.internet.clone()),
            names: FakeAddresses::default(),
            authority,
            credentials,
            upstream: UpstreamSettings::new(settings.ca.clone()),
            connections: Arc::default(),
            connection_slots: Arc::new(Semaphore::new(max_connections())),
            listeners: Mutex::default(),
        }))
    }

    /// The CA certificate that programs in the sandbox must trust, in PEM form, if a rule inspects
    /// TLS.
    pub fn certificate(&self) -> Option<&str> {
        self.authority
            .as_ref()
            .map(CertificateAuthority::certificate)
    }

    /// Serves proxy clients (HTTP proxy and SOCKS) at this listener.
    pub fn serve(self: &Arc<Egress>, listener: TcpListener) -> Result<(), OpenError> {
        self.add_listener(
            listener::listen(self.clone(), listener::ListenerKind::Proxy, listener)
                .map_err(OpenError::Listener)?,
        );
        Ok(())
    }

    /// Serves transparent connections at this listener; `redirected` if nftables redirected them.
    pub fn serve_transparent(
        self: &Arc<Egress>,
        listener: TcpListener,
        redirected: bool,
    ) -> Result<(), OpenError> {
        self.add_listener(
            listener::listen(
                self.clone(),
                listener::ListenerKind::Transparent { redirected },
                listener,
            )
            .map_err(OpenError::Listener)?,
        );
        Ok(())
    }

    /// Serves DNS queries with fake addresses from this range.
    pub fn serve_dns(
        self: &Arc<Egress>,
        socket: UdpSocket,
        range: RangeInclusive<Ipv4Addr>,
    ) -> Result<(), OpenError> {
        self.add_listener(dns::serve(self.clone(), socket, range).map_err(OpenError::Listener)?);
        Ok(())
    }

    fn add_listener(&self, task: JoinHandle<()>) {
        locked(&self.listeners).push(task);
    }

    /// Adds a rule, optionally with an expiry. A rule that denies also ends connections in flight.
    pub fn grant(&self, rule: EgressRule, until: Option<Instant>) -> Result<(), RuleChangeError> {
        let verdict = if rule.mode == EgressMode::Deny {
            "deny"
        } else {
            "grant"
        };
        self.log
            .log_rule_change(verdict, &rule.host, &rule.name)
            .map_err(|_| RuleChangeError::Record)?;
        self.change(|rules| {
            let now = Instant::now();
            rules
                .active
                .retain(|active| active.until.is_none_or(|until| now < until));
            rules.active.push(ActiveRule::added(rule, until));
        })
    }

    /// Removes every allowing rule for these hosts, and denying rules that were added at run time;
    /// returns their number. Denials that the run started with stay.
    pub fn revoke(&self, host: &HostPattern) -> Result<usize, RuleChangeError> {
        self.log
            .log_rule_change("revoke", host, "")
            .map_err(|_| RuleChangeError::Record)?;
        let mut count = 0;
        self.change(|rules| {
            let before = rules.active.len();
            let stays = |active: &ActiveRule| {
                active.rule.mode == EgressMode::Deny && !active.added_at_runtime
            };
            rules
                .active
                .retain(|active| active.rule.host != *host || stays(active));
            count = before - rules.active.len();
        })?;
        Ok(count)
    }

    fn change(&self, change: impl FnOnce(&mut RuleSet)) -> Result<(), RuleChangeError> {
        {
            let mut current = locked(&self.rules);
            let mut rules = RuleSet::clone(&current);
            change(&mut rules);
            if rules.active.len() > MAX_RULES.max(current.active.len()) {
                return Err(RuleChangeError::TooMany);
            }
            *current = Arc::new(rules);
        }
        self.changed.send_replace(());
        Ok(())
    }

    /// The rules in force.
    pub fn rules(&self) -> Vec<RuleView> {
        let rules = locked(&self.rules).clone();
        let now = Instant::now();
        let is_active = |active: &&Arc<ActiveRule>| active.until.is_none_or(|until| now < until);
        let view = |active: &Arc<ActiveRule>| RuleView {
            rule: active.rule.clone(),
            until: active.until,
        };
        rules.active.iter().filter(is_active).map(view).collect()
    }

    /// Evaluates the rules for a destination.
    fn evaluate(&self, to: &Destination) -> Result<Permission, Refusal> {
        let rules = locked(&self.rules).clone();
        rules.evaluate(to, Instant::now())
    }

    /// Evaluates the rules for a name lookup.
    fn evaluate_lookup(&self, host: &Host) -> Result<Permission, Refusal> {
        let rules = locked(&self.rules).clone();
        rules.evaluate_host(host, Instant::now())
    }

    /// Whether some names are treated differently from bare addresses.
    fn has_rules_by_name(&self) -> bool {
        let rules = locked(&self.rules).clone();
        let differs = |rule: &EgressRule| rule.mode == EgressMode::Deny || rule.looks_inside();
        rules.active.iter().any(|active| differs(&active.rule))
    }

    /// Counts one more connection or request, if the limits allow it.
    fn begin(&self, active: &ActiveRule) -> Result<(), Refusal> {
        self.log
            .has_room()
            .inspect_err(|_| self.log.mark_limit_hit())?;
        let begun = self
            .meter
            .begin()
            .map_err(|exceeded| ("egress_limits", exceeded));
        let begun = begun.and_then(|()| {
            active
                .meter
                .begin()
                .map_err(|exceeded| (&*active.rule.name, exceeded))
        });
        begun.map_err(|(rule, exceeded)| self.exceeded(rule, exceeded))
    }

    /// Counts bytes that are about to pass; an error if they exceed a limit.
    fn count(
        &self,
        active: &ActiveRule,
        direction: Direction,
        bytes: usize,
    ) -> Result<(), Refusal> {
        let whole = self
            .meter
            .count(direction, bytes)
            .map_err(|exceeded| ("egress_limits", exceeded));
        let own = active
            .meter
            .count(direction, bytes)
            .map_err(|exceeded| (&*active.rule.name, exceeded));
        whole
            .and(own)
            .map_err(|(rule, exceeded)| self.exceeded(rule, exceeded))
    }

    fn exceeded(&self, rule: &str, exceeded: LimitExceeded) -> Refusal {
        self.log.mark_limit_hit();
        let name = exceeded.name();
        Refusal::new(
            rule,
            format!("the limit `{name}` is spent"),
            format!("a larger `{name}` in the configuration"),
        )
    }

    /// Closes the door. When this returns, no further byte reaches a client.
    pub async fn close(&self) -> EgressReport {
        for listener in locked(&self.listeners).drain(..) {
            listener.abort();
        }
        self.connections.end().await;
        self.log.close();
        let (begun, sent, received) = self.meter.totals();
        EgressReport {
            denials: self.log.take_denials(),
            learned: self.log.learned(),
            begun,
            denied: self.log.denied(),
            sent,
            received,
            limit_hit: self.log.limit_hit(),
        }
    }
}

/// Why a rule change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleChangeError {
    /// The maximum number of rules is reached.
    #[error("there are {MAX_RULES} rules already")]
    TooMany,
    /// The change cannot be logged.
    #[error("the change cannot be written down")]
    Record,
}
