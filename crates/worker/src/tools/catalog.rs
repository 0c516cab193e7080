//! Keeps the catalog in sync with the manifest and the code: scans every second, prepares what
//! changed, and reports each problem once.
//!
//! ```text
//! scan ─▶ slots ─┬─ unchanged ──────────────────────────────────────────────▶ served
//!                ├─ new entry, changed entry or code ─▶ prepared ─┬─ ok ─────▶ served
//!                │                                                └─ failed ─▶ retried with backoff; the old version stays
//!                ├─ program missing ─▶ left out until it exists
//!                └─ removed ─▶ left out
//! ```
//! While an entry is prepared again, its old version is served with the new code's stamp and the
//! new limits, as long as it runs the same program. So is a late result for code that has changed
//! since: with constant changes nothing else would ever be served. A missing Python module is
//! served, too, so that its callers get an error.

use super::{
    Catalog, Stamp, Tool,
    manifest::ManifestEntry,
    packages::Installer,
    prepare::{PreparedEntry, prepare},
    probe::{SchemaProbe, with_known},
    problem::ToolProblem,
    scan::{LocatedCode, Scan, ScanState, ScannedEntry, scan},
    wheels::Wheels,
};
use crate::wire::{answer::ToolCard, topic::TopicBase};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch as channel},
    task::JoinSet,
    time::{Instant, MissedTickBehavior},
};

/// Interval between scans.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// After a slow scan, pause this many times its duration, so that large folders do not keep a CPU
/// busy.
const REST_FACTOR: u32 = 20;
/// Concurrent preparations: each uses a sandbox.
const MAX_PREPARING: usize = 2;
/// Backoff after a failed preparation.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Capacity of the report channel; reports that do not fit are repeated later.
const MAX_REPORTS: usize = 1024;
/// Interval between sweeps of package folders.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum delay of the first catalog for slow tools.
pub const FIRST_CATALOG_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of the catalog.
#[derive(Clone, Debug)]
pub struct CatalogSettings {
    /// The manifest; wheels are in `wheels/` next to it.
    pub manifest: PathBuf,
    /// Base of `tool_dir` and `executable`.
    pub folder: PathBuf,
    /// Import path of Python tools. It may be absent.
    pub python_dir: PathBuf,
    /// A folder of packages that the operator maintains.
    pub site: Option<PathBuf>,
    /// Path of the interpreter inside the sandbox.
    pub python: PathBuf,
    /// Installs packages; without it, entries that need packages are left out.
    pub installer: Option<Installer>,
    /// Base of topics, which tool names must fit.
    pub base: TopicBase,
    /// Interval between scans: [`SCAN_INTERVAL`].
    pub every: Duration,
}

/// A report for the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolReport {
    /// A problem that does not keep its tool from being served, or concerns no tool.
    Problem(ToolProblem),
    /// An entry can no longer be described: its old description is used.
    Kept(ToolProblem),
    /// An entry cannot be served; the mesh is told as well.
    Failed {
        /// Name of the tool, as in topics.
        tool: String,
        /// What is wrong.
        problem: ToolProblem,
    },
    /// Progress; nothing is wrong.
    Note(String),
}

/// Entries that are being prepared; none before the first scan. It is updated after reports and
/// catalog.
pub type PendingEntries = Option<BTreeSet<String>>;

/// Watches the tools as long as the catalog has readers. The catalog is empty at first and changes
/// once every tool has been prepared, or after [`FIRST_CATALOG_TIMEOUT`]; slower tools follow.
pub fn watch<A: SchemaProbe>(
    settings: CatalogSettings,
    probe: Arc<A>,
) -> (channel::Receiver<Catalog>, mpsc::Receiver<ToolReport>) {
    let (catalog, reports, _) = watch_all(settings, probe);
    (catalog, reports)
}

/// As [`watch`], and tells which entries are still being prepared.
pub fn watch_all<A: SchemaProbe>(
    settings: CatalogSettings,
    probe: Arc<A>,
) -> (
    channel::Receiver<Catalog>,
    mpsc::Receiver<ToolReport>,
    channel::Receiver<PendingEntries>,
) {
    let (published, catalog) = channel::channel(Catalog::default());
    let (reports, reported) = mpsc::channel(MAX_REPORTS);
    let (pending, awaited) = channel::channel(None);
    let watcher = Watcher {
        settings: Arc::new(settings),
        probe,
        scan_state: ScanState::default(),
        slots: BTreeMap::new(),
        common: Vec::new(),
        reported: BTreeSet::new(),
        jobs: JoinSet::new(),
        turns: Arc::new(Semaphore::new(MAX_PREPARING)),
        generation: 0,
        began: Instant::now(),
        published,
        is_published: false,
        reports,
        pending,
    };
    tokio::spawn(watcher.run());
    (catalog, reported, awaited)
}

/// Everything that an entry depends on; a change means another preparation.
#[derive(Clone, Debug, PartialEq)]
struct SlotTarget {
    entry: ManifestEntry,
    found: Result<LocatedCode, ToolProblem>,
    wheels: Stamp,
}

#[derive(Debug)]
struct Slot {
    target: SlotTarget,
    line: u64,
    /// Number of the pending preparation.
    generation: u64,
    /// Number of the preparation that the tools are from.
    shown: u64,
    is_preparing: bool,
    /// Dropped with the slot, so that an obsolete preparation does not start.
    _wanted: Option<oneshot::Sender<()>>,
    tools: Vec<Arc<Tool>>,
    failure: Option<ToolProblem>,
    notes: Vec<ToolProblem>,
    /// Problems that all entries share.
    common: Vec<ToolProblem>,
    retry_at: Option<Instant>,
    retry_delay: Duration,
}

impl Slot {
    fn schedule_retry(&mut self) {
        self.retry_at = Some(Instant::now() + self.retry_delay);
        self.retry_delay = (self.retry_delay * 2).min(MAX_RETRY_DELAY);
    }

    /// Takes over the result of a preparation.
    fn apply(&mut self, prepared: PreparedEntry) {
        self.is_preparing = false;
        self.notes = prepared.notes;
        self.common = prepared.common;
        let has_packages = self.tools.iter().any(|tool| tool.code.packages.is_some());
        match prepared.tools {
            // Old packages are better than none.
            Ok(_) if prepared.lacks_packages && has_packages => self.schedule_retry(),
            Ok(mut tools) => {
                self.shown = self.generation;
                self.failure = None;
                if let Some(problem) = prepared.discovery_problem {
                    tools
                        .iter_mut()
                        .for_each(|tool| self.keep_known_card(tool, &problem));
                }
                self.tools = tools.into_iter().map(Arc::new).collect();
                if prepared.is_partial {
                    self.schedule_retry();
                } else {
                    self.retry_delay = MIN_RETRY_DELAY;
                    self.retry_at = self
                        .target
                        .entry
                        .refresh
                        .map(|after| Instant::now() + after);
                }
            }
            Err(problem) => {
                self.failure = Some(problem);
                self.schedule_retry();
            }
        }
    }

    /// Keeps the known description of a tool that can no longer be described.
    fn keep_known_card(&mut self, tool: &mut Tool, problem: &ToolProblem) {
        let is_known = |card: &ToolCard| card.description.is_some() || card.parameters.is_some();
        let is_it = |before: &&Arc<Tool>| before.name == tool.name && before.what == tool.what;
        match self
            .tools
            .iter()
            .find(is_it)
            .filter(|before| is_known(&before.card))
        {
            Some(before) => {
                tool.card = with_known(tool.card.clone(), &before.card);
                tool.timeout = before.timeout;
                self.failure = Some(problem.clone());
            }
            None => {
                let message = format!("{}; agents are told its name alone", problem.message);
                self.notes.push(ToolProblem {
                    message,
                    ..problem.clone()
                });
            }
        }
    }

    /// Takes over a result for an older version of the entry: better than nothing, or than the
    /// result of a still older version, until the next one is there.
    fn apply_late(&mut self, job: Job) {
        let is_better =
            self.tools.is_empty() || job.generation > self.shown && !job.prepared.is_partial;
        let is_same = self.target.runs_same_program(&job.entry, &job.found);
        if let (true, Ok(tools), Ok(found)) =
            (is_better && is_same, job.prepared.tools, &self.target.found)
        {
            let served_meanwhile =
                |tool: &Tool| served_meanwhile(tool, &job.entry, &self.target.entry, found);
            self.tools = tools.iter().map(served_meanwhile).collect();
            self.shown = job.generation;
        }
    }
}

/// A finished preparation.
struct Job {
    entry: ManifestEntry,
    found: LocatedCode,
    generation: u64,
    prepared: PreparedEntry,
}

struct Watcher<A> {
    settings: Arc<CatalogSettings>,
    probe: Arc<A>,
    scan_state: ScanState,
    slots: BTreeMap<String, Slot>,
    /// Problems of the manifest.
    common: Vec<ToolProblem>,
    reported: BTreeSet<ToolReport>,
    jobs: JoinSet<Option<Job>>,
    turns: Arc<Semaphore>,
    generation: u64,
    began: Instant,
    published: channel::Sender<Catalog>,
    is_published: bool,
    reports: mpsc::Sender<ToolReport>,
    pending: channel::Sender<PendingEntries>,
}

impl<A: SchemaProbe> Watcher<A> {
    async fn run(mut self) {
        let mut scans = tokio::time::interval(self.settings.every);
        scans.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweeps = tokio::time::interval_at(Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
        loop {
            tokio::select! {
                _ = scans.tick() => {
                    let began = Instant::now();
                    self.rescan().await;
                    scans.reset_after(self.settings.every.max(began.elapsed() * REST_FACTOR));
                }
                Some(job) = self.jobs.join_next() => match job {
                    Ok(Some(job)) => self.prepared(job),
                    Ok(None) => {}
                    Err(_) => self.preparation_lost(),
                },
                _ = sweeps.tick() => self.sweep().await,
                () = self.published.closed() => return,
            }
            self.publish();
        }
    }

    async fn rescan(&mut self) {
        let settings = self.settings.clone();
        let scan_state = std::mem::take(&mut self.scan_state);
        let looked = tokio::task::spawn_blocking(move || scan(&settings, scan_state)).await;
        let Ok((scan, scan_state)) = looked else {
            return;
        };
        self.scan_state = scan_state;
        let Scan {
            placed,
            problems,
            wheels,
        } = scan;
        self.common = problems;
        let names: BTreeSet<String> = placed
            .iter()
            .map(|placed| placed.entry.name.clone())
            .collect();
        self.slots.retain(|name, _| names.contains(name));
        for placed in placed {
            self.update_slot(placed, &wheels);
        }
    }

    /// Updates the slot of a scanned entry and starts a preparation if it is due.
    fn update_slot(&mut self, placed: ScannedEntry, wheels: &Wheels) {
        let ScannedEntry { entry, code: found } = placed;
        let name = entry.name.clone();
        let line = entry.line;
        let target = SlotTarget {
            entry: ManifestEntry { line: 0, ..entry },
            found,
            wheels: wheels.stamp,
        };
        let slot = match self.slots.remove(&name) {
            Some(slot) if slot.target == target => Slot { line, ..slot },
            before => self.replace_slot(before, target, line),
        };
        let slot = self.slots.entry(name.clone()).insert_entry(slot).into_mut();
        let is_due = !slot.is_preparing && slot.retry_at.is_some_and(|at| at <= Instant::now());
        if let (true, Ok(found)) = (is_due, slot.target.found.clone()) {
            slot.is_preparing = true;
            let entry = slot.target.entry.clone();
            let generation = slot.generation;
            let (wanted, unwanted) = oneshot::channel();
            slot._wanted = Some(wanted);
            self.start(entry, found, wheels.clone(), generation, unwanted);
        }
    }

    /// A slot for a changed entry. Its tools stay if they run the same program.
    fn replace_slot(&mut self, before: Option<Slot>, target: SlotTarget, line: u64) -> Slot {
        self.generation += 1;
        let (shown, tools) = match (&before, &target.found) {
            (Some(before), Ok(found)) if before.target.runs_same_program(&target.entry, found) => {
                let served_meanwhile = |tool: &Arc<Tool>| {
                    served_meanwhile(tool, &before.target.entry, &target.entry, found)
                };
                (
                    before.shown,
                    before.tools.iter().map(served_meanwhile).collect(),
                )
            }
            _ => (0, Vec::new()),
        };
        Slot {
            failure: target.found.clone().err(),
            retry_at: Some(Instant::now()),
            target,
            line,
            generation: self.generation,
            shown,
            is_preparing: false,
            _wanted: None,
            tools,
            notes: Vec::new(),
            common: Vec::new(),
            retry_delay: MIN_RETRY_DELAY,
        }
    }

    fn start(
        &mut self,
        entry: ManifestEntry,
        found: LocatedCode,
        wheels: Wheels,
        generation: u64,
        unwanted: oneshot::Receiver<()>,
    ) {
        let settings = self.settings.clone();
        let probe = self.probe.clone();
        let turns = self.turns.clone();
        let reports = self.reports.clone();
        self.jobs.spawn(async move {
            let _turn = tokio::select! {
                turn = turns.acquire() => turn,
                _ = unwanted => return None,
            };
            let report = |text: String| {
                _ = reports.try_send(ToolReport::Note(format!("tool `{}`: {text}", entry.name)))
            };
            let prepared =
                prepare(&settings, &*probe, &entry, found.clone(), &wheels, report).await;
            Some(Job {
                entry,
                found,
                generation,
                prepared,
            })
        });
    }

    fn prepared(&mut self, job: Job) {
        match self.slots.get_mut(&job.entry.name) {
            Some(slot) if slot.generation == job.generation => slot.apply(job.prepared),
            Some(slot) => slot.apply_late(job),
            None => {}
        }
    }

    /// A preparation panicked; which one is unknown.
    fn preparation_lost(&mut self) {
        for slot in self.slots.values_mut().filter(|slot| slot.is_preparing) {
            self.generation += 1;
            slot.generation = self.generation;
            slot.is_preparing = false;
            slot.schedule_retry();
        }
    }

    /// Publishes a changed catalog and new problems.
    fn publish(&mut self) {
        let mut catalog: BTreeMap<String, Arc<Tool>> = BTreeMap::new();
        let mut current: BTreeSet<ToolReport> = self
            .common
            .iter()
            .cloned()
            .map(ToolReport::Problem)
            .collect();
        for (name, slot) in &self.slots {
            let located = |problem: &ToolProblem| problem.clone().of(name).at(slot.line);
            current.extend(slot.common.iter().cloned().map(ToolReport::Problem));
            current.extend(
                slot.notes
                    .iter()
                    .map(|problem| ToolReport::Problem(located(problem))),
            );
            let failed = |problem: &ToolProblem| {
                if slot.tools.is_empty() {
                    ToolReport::Failed {
                        tool: name.clone(),
                        problem: located(problem),
                    }
                } else {
                    ToolReport::Kept(kept_problem(located(problem)))
                }
            };
            current.extend(slot.failure.iter().map(failed));
            for tool in &slot.tools {
                let other = catalog
                    .entry(tool.name.clone())
                    .or_insert_with(|| tool.clone());
                if !Arc::ptr_eq(other, tool) {
                    let message = format!(
                        "another entry has a tool `{}`, too, which is served",
                        tool.name
                    );
                    current.insert(ToolReport::Problem(located(&ToolProblem::new(
                        message,
                        "rename one of them",
                    ))));
                }
            }
        }
        // Reports that do not fit are sent again later.
        let reports = &self.reports;
        current.retain(|report| {
            self.reported.contains(report) || reports.try_send(report.clone()).is_ok()
        });
        self.reported = current;
        let pending = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_preparing)
            .map(|(name, _)| name.clone());
        let pending: BTreeSet<String> = pending.collect();
        if self.is_published || pending.is_empty() || self.began.elapsed() >= FIRST_CATALOG_TIMEOUT
        {
            let is_first = !std::mem::replace(&mut self.is_published, true);
            if is_first && !pending.is_empty() {
                let names: Vec<String> = pending.iter().map(|name| format!("`{name}`")).collect();
                let text = format!(
                    "still being prepared after {} s: {}",
                    FIRST_CATALOG_TIMEOUT.as_secs(),
                    names.join(", ")
                );
                _ = self.reports.try_send(ToolReport::Note(text));
            }
            self.published.send_if_modified(|now| {
                let is_other = **now != catalog;
                if is_other {
                    *now = Arc::new(catalog);
                }
                is_other || is_first
            });
        }
        self.pending.send_replace(Some(pending));
    }

    async fn sweep(&self) {
        let Some(installer) = self.settings.installer.clone() else {
            return;
        };
        let tools = self.slots.values().flat_map(|slot| &slot.tools);
        let in_use: BTreeSet<PathBuf> = tools
            .filter_map(|tool| tool.code.packages.clone())
            .collect();
        _ = tokio::task::spawn_blocking(move || installer.sweep(&in_use)).await;
    }
}

impl SlotTarget {
    /// Whether the entry runs the same program.
    fn runs_same_program(&self, entry: &ManifestEntry, found: &LocatedCode) -> bool {
        let is_program = self
            .found
            .as_ref()
            .is_ok_and(|before| before.program == found.program);
        is_program && self.entry.wanted == entry.wanted
    }
}

fn kept_problem(problem: ToolProblem) -> ToolProblem {
    ToolProblem {
        message: format!("{}; what was known of it before is served", problem.message),
        ..problem
    }
}

/// A tool until its new version is prepared: with the new code and limits.
fn served_meanwhile(
    tool: &Tool,
    before: &ManifestEntry,
    now: &ManifestEntry,
    found: &LocatedCode,
) -> Arc<Tool> {
    let mut tool = tool.clone();
    tool.code = super::ToolCode {
        packages: tool.code.packages.take(),
        ..found.code.clone()
    };
    tool.profile = now.profile;
    tool.limits = now.limits;
    // Any other timeout comes from the tool itself, which wins.
    if tool.timeout == before.timeout {
        tool.timeout = now.timeout;
    }
    Arc::new(tool)
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
