//! The egress log: one ledger line per connection or request, and a summary for the result of the
//! run.

use super::{locked, policy::Refusal};
use crate::{
    budget::BudgetManager,
    ledger::{self, RunIdentity},
};
use spec::{Day, Denial, Destination, Host, HostPattern, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// Denials in the summary; duplicates are listed once.
const MAX_DENIALS: usize = 64;
/// Hosts in learning mode.
const MAX_LEARNED: usize = 1024;
/// Log lines per run for what passed. At this limit nothing passes any more.
const MAX_LINES: u64 = 1_000_000;
/// Log lines per run for refusals. Further ones are counted, and the last line reports the count.
const MAX_REFUSALS: u64 = 10_000;

/// Log lines per tenant and day, where many runs share a ledger: for what passed, and for refusals.
const MAX_LINES_PER_DAY: u64 = 4_000_000;
const MAX_REFUSALS_PER_DAY: u64 = 100_000;

/// Log lines per tenant today, since this process started.
#[derive(Debug, Default)]
pub struct DailyLogUsage(Mutex<(u64, HashMap<String, LineCounts>)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LineCounts {
    lines: u64,
    refused: u64,
}

impl DailyLogUsage {
    /// Adds to a tenant's counts and returns them. A run without a tenant has a ledger of its own.
    fn add(&self, tenant: &str, lines: u64, refused: u64) -> LineCounts {
        if tenant.is_empty() {
            return LineCounts::default();
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let day = Day::of(Timestamp(now.as_millis() as u64)).0;
        let mut today = locked(&self.0);
        if today.0 != day {
            *today = (day, HashMap::new());
        }
        let written = today.1.entry(tenant.to_owned()).or_default();
        written.lines = written.lines.saturating_add(lines);
        written.refused = written.refused.saturating_add(refused);
        *written
    }
}

/// One line of the egress log.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogEntry {
    pub(crate) operation: String,
    pub(crate) target: String,
    /// `allow`, `deny`, `learn` or `failed`.
    pub(crate) verdict: &'static str,
    pub(crate) rule: String,
    /// The address that was dialled.
    pub(crate) address: String,
    pub(crate) credential: String,
    /// Additional information: refs of a push, the reason of a failure.
    pub(crate) detail: String,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) duration_ms: u64,
}

/// How a host was used in learning mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedHost {
    /// Its ports.
    pub ports: BTreeSet<u16>,
    /// Number of uses.
    pub uses: u64,
}

/// The log of one door.
pub(crate) struct EgressLog {
    /// Its ledger may change while the door is open.
    budgets: BudgetManager,
    run: String,
    tenant: String,
    today: Arc<DailyLogUsage>,
    lines: AtomicU64,
    denied: AtomicU64,
    /// Denials without a log line.
    unwritten: AtomicU64,
    denials: Mutex<Vec<Denial>>,
    learned: Mutex<BTreeMap<Host, LearnedHost>>,
    limit_hit: AtomicBool,
    /// A line could not be written.
    broken: AtomicBool,
}

impl EgressLog {
    pub(crate) fn new(
        budgets: BudgetManager,
        identity: RunIdentity<'_>,
        today: Arc<DailyLogUsage>,
    ) -> EgressLog {
        EgressLog {
            budgets,
            run: identity.run.to_owned(),
            tenant: identity.tenant.to_owned(),
            today,
            lines: 0.into(),
            denied: 0.into(),
            unwritten: 0.into(),
            denials: Mutex::default(),
            learned: Mutex::default(),
            limit_hit: false.into(),
            broken: false.into(),
        }
    }

    fn line(&self, entry: &LogEntry) -> std::io::Result<()> {
        if self.budgets.is_full() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.budgets.ledger().record_egress(
            RunIdentity {
                run: &self.run,
                tenant: &self.tenant,
            },
            &entry.row(),
        )
    }

    /// Logs what passes. An error means that it must not pass.
    pub(crate) fn write(&self, entry: &LogEntry) -> std::io::Result<()> {
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.today.add(&self.tenant, 1, 0);
        let written = self.line(entry);
        written.inspect_err(|_| self.broken.store(true, Ordering::Relaxed))
    }

    /// Whether there is room for another line; without one nothing may pass.
    pub(crate) fn has_room(&self) -> Result<(), Refusal> {
        if self.budgets.is_full() {
            return Err(Refusal::new(
                "record",
                "the disk of this server is full",
                "room on the disk",
            ));
        }
        if self.broken.load(Ordering::Relaxed) {
            return Err(Refusal::new(
                "record",
                "the record of this run cannot be written",
                "room on the disk",
            ));
        }
        if self.lines.load(Ordering::Relaxed) >= MAX_LINES {
            return Err(Refusal::new(
                "record",
                "the record of this run is full",
                "nothing",
            ));
        }
        if self.today.add(&self.tenant, 0, 0).lines < MAX_LINES_PER_DAY {
            Ok(())
        } else {
            Err(Refusal::new(
                "record",
                "the record of this tenant's day is full",
                "another day (UTC)",
            ))
        }
    }

    /// Logs a rule change before it takes effect.
    pub(crate) fn log_rule_change(
        &self,
        verdict: &'static str,
        host: &HostPattern,
        rule: &str,
    ) -> std::io::Result<()> {
        let operation = "rules".to_owned();
        let target = host.to_string();
        self.write(&LogEntry {
            operation,
            target,
            verdict,
            rule: rule.to_owned(),
            ..LogEntry::default()
        })
    }

    /// Logs a refusal.
    pub(crate) fn refused(&self, operation: &str, target: &str, refusal: &Refusal) {
        let denied = self.denied.fetch_add(1, Ordering::Relaxed);
        let shown = escape(target);
        let entry = LogEntry {
            operation: operation.to_owned(),
            target: shown.clone(),
            verdict: "deny",
            rule: refusal.rule.clone(),
            detail: refusal.reason.clone(),
            ..LogEntry::default()
        };
        if denied < MAX_REFUSALS
            && self.today.add(&self.tenant, 0, 1).refused <= MAX_REFUSALS_PER_DAY
        {
            // The request is refused in any case; a broken log stops what would pass.
            if self.line(&entry).is_err() {
                self.unwritten.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        let mut denials = locked(&self.denials);
        let known = denials
            .iter()
            .any(|denial| denial.target == shown && denial.rule == refusal.rule);
        if !known && denials.len() < MAX_DENIALS {
            denials.push(Denial {
                what: denial_kind(operation).to_owned(),
                target: shown,
                rule: refusal.rule.clone(),
                allow_with: refusal.allow_with.clone(),
            });
        }
    }

    /// Records a use that no rule allows, in learning mode.
    pub(crate) fn learn(&self, to: &Destination) {
        let mut learned = locked(&self.learned);
        if learned.len() < MAX_LEARNED || learned.contains_key(&to.host) {
            let host = learned.entry(to.host.clone()).or_default();
            host.ports.insert(to.port);
            host.uses += 1;
        }
    }

    pub(crate) fn mark_limit_hit(&self) {
        self.limit_hit.store(true, Ordering::Relaxed);
    }

    pub(crate) fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_hit(&self) -> bool {
        self.limit_hit.load(Ordering::Relaxed)
    }

    pub(crate) fn take_denials(&self) -> Vec<Denial> {
        std::mem::take(&mut *locked(&self.denials))
    }

    pub(crate) fn learned(&self) -> BTreeMap<Host, LearnedHost> {
        locked(&self.learned).clone()
    }

    /// Logs the number of refusals without a line, and flushes the ledger.
    pub(crate) fn close(&self) {
        let unwritten = self.unwritten.load(Ordering::Relaxed);
        if unwritten > 0 {
            let detail = format!("{unwritten} more refusals were not written");
            let entry = LogEntry {
                verdict: "deny",
                detail,
                ..LogEntry::default()
            };
            // Nothing passes any more that an error could stop.
            _ = self.line(&entry);
        }
        _ = self.budgets.ledger().flush();
    }
}

/// The operation in the words of the denial list.
fn denial_kind(operation: &str) -> &'static str {
    match operation {
        "resolve" => "resolve",
        "git push" => "push",
        "CONNECT" | "SOCKS" | "connect" | "tunnel" | "inspect" => "connect",
        _ => "request",
    }
}

/// Program-controlled text, escaped for terminals.
fn escape(text: &str) -> String {
    let letters = text.chars().take(200);
    letters.fold(String::new(), |mut plain, letter| {
        match letter {
            ' '..='~' => plain.push(letter),
            _ => plain.extend(letter.escape_unicode()),
        }
        plain
    })
}

impl LogEntry {
    fn row(&self) -> ledger::EgressRecord<'_> {
        ledger::EgressRecord {
            texts: [
                ("operation", &self.operation),
                ("target", &self.target),
                ("verdict", self.verdict),
                ("rule", &self.rule),
                ("address", &self.address),
                ("credential", &self.credential),
                ("detail", &self.detail),
            ],
            numbers: [
                ("status", u64::from(self.status)),
                ("sent", self.sent),
                ("received", self.received),
                ("duration_ms", self.duration_ms),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Durability, Ledger};
    use std::fs;

    #[test]
    fn what_passes_on_a_new_day_is_written_to_its_ledger() {
        let folder = std::env::temp_dir().join(format!("airlock-passes-{}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        let ledger =
            |name: &str| Arc::new(Ledger::open(&folder, name, Durability::Process).unwrap());
        let budgets = BudgetManager::new(ledger("owner"));
        let log = EgressLog::new(budgets.clone(), "r".into(), Arc::default());
        for name in ["owner-2024-10-04", "owner-2024-10-05"] {
            budgets.switch_ledger(ledger(name));
            log.write(&LogEntry {
                target: format!("{name}.example"),
                ..LogEntry::default()
            })
            .unwrap();
        }
        for name in ["owner-2024-10-04", "owner-2024-10-05"] {
            let text = fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
            assert_eq!(text.matches(".example").count(), 1, "{text}");
            assert!(text.contains(&format!("{name}.example")), "{text}");
        }
        _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn on_a_full_disk_nothing_passes_and_nothing_is_written_until_there_is_room() {
        let folder =
            std::env::temp_dir().join(format!("airlock-egress-full-{}", std::process::id()));
        let ledger = Ledger::open(&folder, "owner", Durability::Process).unwrap();
        let budgets = BudgetManager::new(Arc::new(ledger));
        let identity = RunIdentity {
            run: "r",
            tenant: "acme",
        };
        let log = EgressLog::new(
            budgets.clone(),
            identity,
            Arc::new(DailyLogUsage::default()),
        );
        let is_full = Arc::new(AtomicBool::new(true));
        budgets.spend_nothing_while(is_full.clone());
        let refusal = Refusal::new("rule", "no", "nothing");
        let text = || std::fs::read_to_string(folder.join("owner.jsonl")).unwrap();
        let before = text();
        assert_eq!(log.has_room().unwrap_err().rule, "record");
        log.refused("CONNECT", "host.com:443", &refusal);
        assert_eq!(text(), before);
        is_full.store(false, Ordering::Relaxed);
        assert!(log.has_room().is_ok());
        log.write(&LogEntry::default()).unwrap();
        log.close();
        assert!(text().contains("1 more refusals were not written"));
        _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn runs_of_one_tenant_share_the_lines_of_a_day() {
        let folder =
            std::env::temp_dir().join(format!("airlock-egress-day-{}", std::process::id()));
        let budgets = BudgetManager::new(Arc::new(
            Ledger::open(&folder, "owner", Durability::Process).unwrap(),
        ));
        let today = Arc::new(DailyLogUsage::default());
        let log = |run, tenant| {
            EgressLog::new(budgets.clone(), RunIdentity { run, tenant }, today.clone())
        };
        let refusal = Refusal::new("rule", "no", "nothing");
        today.add("acme", MAX_LINES_PER_DAY - 1, MAX_REFUSALS_PER_DAY - 1);
        let first = log("first", "acme");
        first.has_room().unwrap();
        first.write(&LogEntry::default()).unwrap();
        // Another run of the tenant has none left; other tenants do, and whoever belongs to none.
        let [second, other, alone] = [("second", "acme"), ("other", "else"), ("alone", "")]
            .map(|(run, tenant)| log(run, tenant));
        assert!(
            second
                .has_room()
                .unwrap_err()
                .reason
                .contains("tenant's day")
        );
        assert!(other.has_room().is_ok() && alone.has_room().is_ok());
        for log in [&first, &second, &second, &other, &alone] {
            log.refused("CONNECT", "host.com:443", &refusal);
        }
        [&first, &second, &other, &alone]
            .into_iter()
            .for_each(EgressLog::close);
        let text = std::fs::read_to_string(folder.join("owner.jsonl")).unwrap();
        let refused = |run: &str| {
            let lines = text
                .lines()
                .filter(|line| line.contains(&format!("\"run\":\"{run}\"")));
            let denied = lines.filter(|line| line.contains("\"verdict\":\"deny\""));
            denied
                .map(|line| line.contains("2 more refusals were not written"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            ["first", "second", "other", "alone"].map(refused),
            [[false], [true], [false], [false]]
        );
        assert_eq!(second.denied(), 2, "all of them count");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
