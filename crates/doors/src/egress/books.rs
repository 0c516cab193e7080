//! What is written down of a door: in the ledger, line by line; and for the result of the run, in short.

use super::{locked, policy::Refusal};
use crate::{
    ledger::{self, Whose},
    till::Till,
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

/// Denials that are kept for the result; each is listed once.
const MOST_DENIALS: usize = 64;
/// Hosts that are learned.
const MOST_LEARNED: usize = 1024;
/// Lines of one run about what passed. When they are written, nothing passes any more.
const MOST_LINES: u64 = 1_000_000;
/// Lines of one run about what was refused. Further ones are counted, and the count is the last line.
const MOST_REFUSED: u64 = 10_000;

/// Lines of all runs of one tenant on one day, where many share a ledger: of what passed, and of what was refused.
const MOST_LINES_OF_DAY: u64 = 4_000_000;
const MOST_REFUSED_OF_DAY: u64 = 100_000;

/// What was written down of the doors of each tenant today, since this process began.
#[derive(Debug, Default)]
pub struct Today(Mutex<(u64, HashMap<String, Written>)>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    lines: u64,
    refused: u64,
}

impl Today {
    /// What there is of a tenant, once this has been added. Whoever belongs to no tenant has a ledger of his own.
    fn add(&self, tenant: &str, lines: u64, refused: u64) -> Written {
        if tenant.is_empty() {
            return Written::default();
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

/// One line of the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) operation: String,
    pub(crate) target: String,
    /// `allow`, `deny`, `learn` or `failed`.
    pub(crate) verdict: &'static str,
    pub(crate) rule: String,
    /// Where it really went.
    pub(crate) address: String,
    pub(crate) credential: String,
    /// What else there is to say: refs of a push, why nothing came of it.
    pub(crate) detail: String,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) duration_ms: u64,
}

/// What a host was used for while learning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Its ports.
    pub ports: BTreeSet<u16>,
    /// How often.
    pub uses: u64,
}

/// The books of one door.
pub(crate) struct Books {
    /// Its ledger may change while the door is open.
    till: Till,
    run: String,
    tenant: String,
    today: Arc<Today>,
    lines: AtomicU64,
    denied: AtomicU64,
    /// Of the denied, those that have no line.
    unwritten: AtomicU64,
    denials: Mutex<Vec<Denial>>,
    learned: Mutex<BTreeMap<Host, Learned>>,
    limit_hit: AtomicBool,
    /// A line could not be written.
    broken: AtomicBool,
}

impl Books {
    pub(crate) fn new(till: Till, whose: Whose<'_>, today: Arc<Today>) -> Books {
        Books {
            till,
            run: whose.run.to_owned(),
            tenant: whose.tenant.to_owned(),
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

    fn line(&self, entry: &Entry) -> std::io::Result<()> {
        self.till.ledger().egress(
            Whose {
                run: &self.run,
                tenant: &self.tenant,
            },
            &entry.row(),
        )
    }

    /// Writes down what passed. An error means that it must not pass.
    pub(crate) fn write(&self, entry: &Entry) -> std::io::Result<()> {
        self.lines.fetch_add(1, Ordering::Relaxed);
        self.today.add(&self.tenant, 1, 0);
        let written = self.line(entry);
        written.inspect_err(|_| self.broken.store(true, Ordering::Relaxed))
    }

    /// Whether what would pass can be written down.
    pub(crate) fn has_room(&self) -> Result<(), Refusal> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(Refusal::new(
                "record",
                "the record of this run cannot be written",
                "room on the disk",
            ));
        }
        if self.lines.load(Ordering::Relaxed) >= MOST_LINES {
            return Err(Refusal::new(
                "record",
                "the record of this run is full",
                "nothing",
            ));
        }
        match self.today.add(&self.tenant, 0, 0).lines < MOST_LINES_OF_DAY {
            true => Ok(()),
            false => Err(Refusal::new(
                "record",
                "the record of this tenant's day is full",
                "another day (UTC)",
            )),
        }
    }

    /// Writes down that the rules are about to change.
    pub(crate) fn note_change(
        &self,
        verdict: &'static str,
        host: &HostPattern,
        rule: &str,
    ) -> std::io::Result<()> {
        let (operation, target) = ("rules".to_owned(), host.to_string());
        self.write(&Entry {
            operation,
            target,
            verdict,
            rule: rule.to_owned(),
            ..Entry::default()
        })
    }

    /// Writes down that something was refused.
    pub(crate) fn refused(&self, operation: &str, target: &str, refusal: &Refusal) {
        let denied = self.denied.fetch_add(1, Ordering::Relaxed);
        let shown = plain(target);
        let entry = Entry {
            operation: operation.to_owned(),
            target: shown.clone(),
            verdict: "deny",
            rule: refusal.rule.clone(),
            detail: refusal.reason.clone(),
            ..Entry::default()
        };
        if denied < MOST_REFUSED
            && self.today.add(&self.tenant, 0, 1).refused <= MOST_REFUSED_OF_DAY
        {
            // It does not pass either way; a ledger that cannot be written stops what would pass.
            _ = self.line(&entry);
        } else {
            self.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        let mut denials = locked(&self.denials);
        let known = denials
            .iter()
            .any(|denial| denial.target == shown && denial.rule == refusal.rule);
        if !known && denials.len() < MOST_DENIALS {
            denials.push(Denial {
                what: what(operation).to_owned(),
                target: shown,
                rule: refusal.rule.clone(),
                allow_with: refusal.allow_with.clone(),
            });
        }
    }

    /// Remembers what no rule allows and passed all the same.
    pub(crate) fn learn(&self, to: &Destination) {
        let mut learned = locked(&self.learned);
        if learned.len() < MOST_LEARNED || learned.contains_key(&to.host) {
            let host = learned.entry(to.host.clone()).or_default();
            host.ports.insert(to.port);
            host.uses += 1;
        }
    }

    pub(crate) fn note_limit(&self) {
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

    pub(crate) fn learned(&self) -> BTreeMap<Host, Learned> {
        locked(&self.learned).clone()
    }

    /// The last line, if there were more than were written; then everything is on its way to the disk.
    pub(crate) fn close(&self) {
        let unwritten = self.unwritten.load(Ordering::Relaxed);
        if unwritten > 0 {
            let detail = format!("{unwritten} more refusals were not written");
            let entry = Entry {
                verdict: "deny",
                detail,
                ..Entry::default()
            };
            // Nothing passes any more; there is nobody to stop.
            _ = self.line(&entry);
        }
        _ = self.till.ledger().flush();
    }
}

/// What a program did, in the words of denials.
fn what(operation: &str) -> &'static str {
    match operation {
        "resolve" => "resolve",
        "git push" => "push",
        "CONNECT" | "SOCKS" | "connect" | "tunnel" | "inspect" => "connect",
        _ => "request",
    }
}

/// A program's own words, fit for anybody's terminal.
fn plain(text: &str) -> String {
    let letters = text.chars().take(200);
    letters.fold(String::new(), |mut plain, letter| {
        match letter {
            ' '..='~' => plain.push(letter),
            _ => plain.extend(letter.escape_unicode()),
        }
        plain
    })
}

impl Entry {
    fn row(&self) -> ledger::Passed<'_> {
        ledger::Passed {
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
        let till = Till::new(ledger("owner"));
        let books = Books::new(till.clone(), "r".into(), Arc::default());
        for name in ["owner-2024-10-04", "owner-2024-10-05"] {
            till.write_to(ledger(name));
            books
                .write(&Entry {
                    target: format!("{name}.example"),
                    ..Entry::default()
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
    fn runs_of_one_tenant_share_the_lines_of_a_day() {
        let folder =
            std::env::temp_dir().join(format!("airlock-egress-day-{}", std::process::id()));
        let till = Till::new(Arc::new(
            Ledger::open(&folder, "owner", Durability::Process).unwrap(),
        ));
        let today = Arc::new(Today::default());
        let books = |run, tenant| Books::new(till.clone(), Whose { run, tenant }, today.clone());
        let refusal = Refusal::new("rule", "no", "nothing");
        today.add("acme", MOST_LINES_OF_DAY - 1, MOST_REFUSED_OF_DAY - 1);
        let first = books("first", "acme");
        first.has_room().unwrap();
        first.write(&Entry::default()).unwrap();
        // Another run of the tenant has none left; other tenants do, and whoever belongs to none.
        let [second, other, alone] = [("second", "acme"), ("other", "else"), ("alone", "")]
            .map(|(run, tenant)| books(run, tenant));
        assert!(
            second
                .has_room()
                .unwrap_err()
                .reason
                .contains("tenant's day")
        );
        assert!(other.has_room().is_ok() && alone.has_room().is_ok());
        for books in [&first, &second, &second, &other, &alone] {
            books.refused("CONNECT", "host.com:443", &refusal);
        }
        [&first, &second, &other, &alone]
            .into_iter()
            .for_each(Books::close);
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
