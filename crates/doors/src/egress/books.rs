//! What is written down of a door: in the ledger, line by line; and for the result of the run, in short.

use super::{locked, policy::Refusal};
use crate::{
    ledger::{self, Whose},
    till::Till,
};
use spec::{Denial, Destination, Host, HostPattern};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Denials that are kept for the result; each is listed once.
const MOST_DENIALS: usize = 64;
/// Hosts that are learned.
const MOST_LEARNED: usize = 1024;
/// Lines of one run about what passed. When they are written, nothing passes any more.
const MOST_LINES: u64 = 1_000_000;
/// Lines of one run about what was refused. Further ones are counted, and the count is the last line.
const MOST_REFUSED: u64 = 10_000;

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
    lines: AtomicU64,
    denied: AtomicU64,
    denials: Mutex<Vec<Denial>>,
    learned: Mutex<BTreeMap<Host, Learned>>,
    limit_hit: AtomicBool,
    /// A line could not be written.
    broken: AtomicBool,
}

impl Books {
    pub(crate) fn new(till: Till, whose: Whose<'_>) -> Books {
        Books {
            till,
            run: whose.run.to_owned(),
            tenant: whose.tenant.to_owned(),
            lines: 0.into(),
            denied: 0.into(),
            denials: Mutex::default(),
            learned: Mutex::default(),
            limit_hit: false.into(),
            broken: false.into(),
        }
    }

    fn line(&self, entry: &Entry) -> std::io::Result<()> {
        self.till.ledger().egress(Whose { run: &self.run, tenant: &self.tenant }, &entry.row())
    }

    /// Writes down what passed. An error means that it must not pass.
    pub(crate) fn write(&self, entry: &Entry) -> std::io::Result<()> {
        self.lines.fetch_add(1, Ordering::Relaxed);
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
        match self.lines.load(Ordering::Relaxed) < MOST_LINES {
            true => Ok(()),
            false => Err(Refusal::new("record", "the record of this run is full", "nothing")),
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
        self.write(&Entry { operation, target, verdict, rule: rule.to_owned(), ..Entry::default() })
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
        if denied < MOST_REFUSED {
            // It does not pass either way; a ledger that cannot be written stops what would pass.
            _ = self.line(&entry);
        }
        let mut denials = locked(&self.denials);
        let known = denials.iter().any(|denial| denial.target == shown && denial.rule == refusal.rule);
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
        let denied = self.denied();
        if denied > MOST_REFUSED {
            let detail = format!("{} more refusals were not written", denied - MOST_REFUSED);
            let entry = Entry { verdict: "deny", detail, ..Entry::default() };
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
    use std::{fs, sync::Arc};

    #[test]
    fn what_passes_on_a_new_day_is_written_to_its_ledger() {
        let folder = std::env::temp_dir().join(format!("airlock-passes-{}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        let ledger = |name: &str| Arc::new(Ledger::open(&folder, name, Durability::Process).unwrap());
        let till = Till::new(ledger("owner"));
        let books = Books::new(till.clone(), "r".into());
        for name in ["owner-2024-10-04", "owner-2024-10-05"] {
            till.write_to(ledger(name));
            books.write(&Entry { target: format!("{name}.example"), ..Entry::default() }).unwrap();
        }
        for name in ["owner-2024-10-04", "owner-2024-10-05"] {
            let text = fs::read_to_string(folder.join(format!("{name}.jsonl"))).unwrap();
            assert_eq!(text.matches(".example").count(), 1, "{text}");
            assert!(text.contains(&format!("{name}.example")), "{text}");
        }
        _ = fs::remove_dir_all(&folder);
    }
}
