//! Keeps the catalog as the manifest and the code are: looks every second, prepares what changed, and tells what is wrong
//! once.
//!
//! ```text
//! look ─▶ slots ─┬─ as before ─────────────────────────────────────────────▶ served
//!                ├─ new, other entry, other code ─▶ prepared ─┬─ well ──────▶ served
//!                │                                            └─ failed ────▶ tried again, after a growing pause; what was served stays
//!                ├─ its program is not there ─▶ left out, until it is
//!                └─ gone ─▶ left out
//! ```
//! While an entry that was served is prepared anew, it is served as it was, with the new code's stamp and the entry's new bounds,
//! as long as what it runs is the same. So is what comes too late, from code that has changed since: where something changes all
//! the time, nothing else would ever come. A Python module that is nowhere is served, too: whoever calls it is told so.

use super::{
    Catalog, Stamp, Tool,
    look::{Found, Look, Memory, Placed, look},
    manifest::Entry,
    packages::Installer,
    prepare::{Prepared, prepare},
    probe::{Asker, with_known},
    problem::Problem,
    wheels::Wheels,
};
use crate::wire::{answer::ToolCard, topic::Base};
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

/// How often is looked.
pub const EVERY: Duration = Duration::from_secs(1);
/// Where looking takes long, it is rested for so many times as long: large folders shall not keep a CPU busy.
const REST: u32 = 20;
/// Entries that are prepared at once: each is a box.
const MOST_PREPARED: usize = 2;
/// Until what failed is tried again: at first, and at most.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Reports that wait to be read; more are told once there is room.
const MOST_REPORTS: usize = 1024;
/// How often folders of packages are swept.
const SWEPT: Duration = Duration::from_secs(3600);
/// How long tools may keep those waiting at the start that are ready.
pub const FIRST: Duration = Duration::from_secs(15);

/// Where tools are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The manifest; wheels are in `wheels/` beside it.
    pub manifest: PathBuf,
    /// What `tool_dir` and `executable` are relative to.
    pub folder: PathBuf,
    /// What Python tools are imported from. It need not be there.
    pub python_dir: PathBuf,
    /// A folder of packages that somebody else keeps.
    pub site: Option<PathBuf>,
    /// The interpreter, as it is inside.
    pub python: PathBuf,
    /// Who installs packages; with nobody, entries that need some are left out.
    pub installer: Option<Installer>,
    /// Whose topics names must fit.
    pub base: Base,
    /// How often is looked: [`EVERY`].
    pub every: Duration,
}

/// What is to be told to whoever looks after the tools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Report {
    /// Something is wrong; what it is about is served all the same, or was never to be.
    Problem(Problem),
    /// An entry that was served does not say what it is now: what was known of it is served further.
    Kept(Problem),
    /// An entry cannot be served: the mesh is told, too.
    Failed {
        /// Its name, as topics have it.
        tool: String,
        /// What is wrong.
        problem: Problem,
    },
    /// Nothing is wrong.
    Note(String),
}

/// Entries that are being prepared; nothing before the first look. Reports and the catalog are there before this is.
pub type Pending = Option<BTreeSet<String>>;

/// Keeps a catalog for as long as somebody reads it. It is empty at first, and told of as changed once every tool has been looked
/// at, or after [`FIRST`]: what needs longer comes later.
pub fn watch<A: Asker>(
    settings: Settings,
    asker: Arc<A>,
) -> (channel::Receiver<Catalog>, mpsc::Receiver<Report>) {
    let (catalog, reports, _) = watch_all(settings, asker);
    (catalog, reports)
}

/// The same, for whoever waits until everything is prepared, however long that takes.
pub fn watch_all<A: Asker>(
    settings: Settings,
    asker: Arc<A>,
) -> (
    channel::Receiver<Catalog>,
    mpsc::Receiver<Report>,
    channel::Receiver<Pending>,
) {
    let (out, catalog) = channel::channel(Catalog::default());
    let (reports, reported) = mpsc::channel(MOST_REPORTS);
    let (pending, awaited) = channel::channel(None);
    let watcher = Watcher {
        settings: Arc::new(settings),
        asker,
        memory: Memory::default(),
        slots: BTreeMap::new(),
        common: Vec::new(),
        told: BTreeSet::new(),
        jobs: JoinSet::new(),
        turns: Arc::new(Semaphore::new(MOST_PREPARED)),
        generation: 0,
        began: Instant::now(),
        out,
        is_out: false,
        reports,
        pending,
    };
    tokio::spawn(watcher.run());
    (catalog, reported, awaited)
}

/// What an entry is made from; anything else must be prepared anew.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    entry: Entry,
    found: Result<Found, Problem>,
    wheels: Stamp,
}

#[derive(Debug)]
struct Slot {
    target: Target,
    line: u64,
    /// Which preparation it waits for.
    generation: u64,
    /// Which preparation its tools are of.
    shown: u64,
    is_preparing: bool,
    /// Gone with the slot: a preparation that nobody waits for any more does not take its turn.
    _wanted: Option<oneshot::Sender<()>>,
    tools: Vec<Arc<Tool>>,
    failure: Option<Problem>,
    notes: Vec<Problem>,
    /// What is wrong with what all entries share.
    common: Vec<Problem>,
    again: Option<Instant>,
    pause: Duration,
}

impl Slot {
    fn try_again(&mut self) {
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Takes over what it waited for.
    fn take(&mut self, prepared: Prepared) {
        self.is_preparing = false;
        (self.notes, self.common) = (prepared.notes, prepared.common);
        let has_packages = self.tools.iter().any(|tool| tool.code.packages.is_some());
        match prepared.tools {
            // Packages of before are better than none.
            Ok(_) if prepared.lacks_packages && has_packages => self.try_again(),
            Ok(mut tools) => {
                (self.shown, self.failure) = (self.generation, None);
                if let Some(problem) = prepared.untold {
                    tools
                        .iter_mut()
                        .for_each(|tool| self.tell_as_before(tool, &problem));
                }
                self.tools = tools.into_iter().map(Arc::new).collect();
                if prepared.is_partial {
                    self.try_again();
                } else {
                    self.pause = SHORTEST_PAUSE;
                    self.again = self
                        .target
                        .entry
                        .refresh
                        .map(|after| Instant::now() + after);
                }
            }
            Err(problem) => {
                self.failure = Some(problem);
                self.try_again();
            }
        }
    }

    /// Agents keep what they know of a tool that does not say what it is any more.
    fn tell_as_before(&mut self, tool: &mut Tool, problem: &Problem) {
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
                self.notes.push(Problem {
                    message,
                    ..problem.clone()
                });
            }
        }
    }

    /// Something changed meanwhile, which need not be what was asked: served until the answer of the new code is there, instead
    /// of nothing, or of what still older code said.
    fn take_late(&mut self, job: Job) {
        let is_better =
            self.tools.is_empty() || job.generation > self.shown && !job.prepared.is_partial;
        let is_same = self.target.is_same_thing(&job.entry, &job.found);
        if let (true, Ok(tools), Ok(found)) =
            (is_better && is_same, job.prepared.tools, &self.target.found)
        {
            let meanwhile = |tool: &Tool| meanwhile(tool, &job.entry, &self.target.entry, found);
            (self.tools, self.shown) = (tools.iter().map(meanwhile).collect(), job.generation);
        }
    }
}

/// A preparation that has ended, and what it was of.
struct Job {
    entry: Entry,
    found: Found,
    generation: u64,
    prepared: Prepared,
}

struct Watcher<A> {
    settings: Arc<Settings>,
    asker: Arc<A>,
    memory: Memory,
    slots: BTreeMap<String, Slot>,
    /// What is wrong with the manifest.
    common: Vec<Problem>,
    told: BTreeSet<Report>,
    jobs: JoinSet<Option<Job>>,
    turns: Arc<Semaphore>,
    generation: u64,
    began: Instant,
    out: channel::Sender<Catalog>,
    is_out: bool,
    reports: mpsc::Sender<Report>,
    pending: channel::Sender<Pending>,
}

impl<A: Asker> Watcher<A> {
    async fn run(mut self) {
        let mut looks = tokio::time::interval(self.settings.every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sweeps = tokio::time::interval_at(Instant::now() + SWEPT, SWEPT);
        loop {
            tokio::select! {
                _ = looks.tick() => {
                    let began = Instant::now();
                    self.look().await;
                    looks.reset_after(self.settings.every.max(began.elapsed() * REST));
                }
                Some(job) = self.jobs.join_next() => match job {
                    Ok(Some(job)) => self.prepared(job),
                    Ok(None) => {}
                    Err(_) => self.lost(),
                },
                _ = sweeps.tick() => self.sweep().await,
                () = self.out.closed() => return,
            }
            self.publish();
        }
    }

    async fn look(&mut self) {
        let (settings, memory) = (self.settings.clone(), std::mem::take(&mut self.memory));
        let looked = tokio::task::spawn_blocking(move || look(&settings, memory)).await;
        let Ok((look, memory)) = looked else { return };
        self.memory = memory;
        let Look {
            placed,
            problems,
            wheels,
        } = look;
        self.common = problems;
        let names: BTreeSet<String> = placed
            .iter()
            .map(|placed| placed.entry.name.clone())
            .collect();
        self.slots.retain(|name, _| names.contains(name));
        for placed in placed {
            self.place(placed, &wheels);
        }
    }

    /// Takes over what is seen of an entry, and has it prepared if it is its time.
    fn place(&mut self, placed: Placed, wheels: &Wheels) {
        let Placed { entry, code: found } = placed;
        let (name, line) = (entry.name.clone(), entry.line);
        let target = Target {
            entry: Entry { line: 0, ..entry },
            found,
            wheels: wheels.stamp,
        };
        let slot = match self.slots.remove(&name) {
            Some(slot) if slot.target == target => Slot { line, ..slot },
            before => self.renewed(before, target, line),
        };
        let slot = self.slots.entry(name.clone()).insert_entry(slot).into_mut();
        let is_due = !slot.is_preparing && slot.again.is_some_and(|at| at <= Instant::now());
        if let (true, Ok(found)) = (is_due, slot.target.found.clone()) {
            slot.is_preparing = true;
            let (entry, generation) = (slot.target.entry.clone(), slot.generation);
            let (wanted, unwanted) = oneshot::channel();
            slot._wanted = Some(wanted);
            self.start(entry, found, wheels.clone(), generation, unwanted);
        }
    }

    /// A slot for another target. What was served stays if it is the same thing, of other code or with other words.
    fn renewed(&mut self, before: Option<Slot>, target: Target, line: u64) -> Slot {
        self.generation += 1;
        let (shown, tools) = match (&before, &target.found) {
            (Some(before), Ok(found)) if before.target.is_same_thing(&target.entry, found) => {
                let meanwhile =
                    |tool: &Arc<Tool>| meanwhile(tool, &before.target.entry, &target.entry, found);
                (before.shown, before.tools.iter().map(meanwhile).collect())
            }
            _ => (0, Vec::new()),
        };
        Slot {
            failure: target.found.clone().err(),
            again: Some(Instant::now()),
            target,
            line,
            generation: self.generation,
            shown,
            is_preparing: false,
            _wanted: None,
            tools,
            notes: Vec::new(),
            common: Vec::new(),
            pause: SHORTEST_PAUSE,
        }
    }

    fn start(
        &mut self,
        entry: Entry,
        found: Found,
        wheels: Wheels,
        generation: u64,
        unwanted: oneshot::Receiver<()>,
    ) {
        let (settings, asker, turns) = (
            self.settings.clone(),
            self.asker.clone(),
            self.turns.clone(),
        );
        let reports = self.reports.clone();
        self.jobs.spawn(async move {
            let _turn = tokio::select! {
                turn = turns.acquire() => turn,
                _ = unwanted => return None,
            };
            let tell = |text: String| {
                _ = reports.try_send(Report::Note(format!("tool `{}`: {text}", entry.name)))
            };
            let prepared = prepare(&settings, &*asker, &entry, found.clone(), &wheels, tell).await;
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
            Some(slot) if slot.generation == job.generation => slot.take(job.prepared),
            Some(slot) => slot.take_late(job),
            None => {}
        }
    }

    /// A preparation failed in a way of its own, and does not say which it was.
    fn lost(&mut self) {
        for slot in self.slots.values_mut().filter(|slot| slot.is_preparing) {
            self.generation += 1;
            (slot.generation, slot.is_preparing) = (self.generation, false);
            slot.try_again();
        }
    }

    /// Tells what is new: the catalog if it is another, and what is wrong that was not before.
    fn publish(&mut self) {
        let mut catalog: BTreeMap<String, Arc<Tool>> = BTreeMap::new();
        let mut current: BTreeSet<Report> =
            self.common.iter().cloned().map(Report::Problem).collect();
        for (name, slot) in &self.slots {
            let told = |problem: &Problem| problem.clone().of(name).at(slot.line);
            current.extend(slot.common.iter().cloned().map(Report::Problem));
            current.extend(
                slot.notes
                    .iter()
                    .map(|problem| Report::Problem(told(problem))),
            );
            let failed = |problem: &Problem| match slot.tools.is_empty() {
                true => Report::Failed {
                    tool: name.clone(),
                    problem: told(problem),
                },
                false => Report::Kept(kept(told(problem))),
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
                    current.insert(Report::Problem(told(&Problem::new(
                        message,
                        "rename one of them",
                    ))));
                }
            }
        }
        // What does not fit is told another time.
        let reports = &self.reports;
        current.retain(|report| {
            self.told.contains(report) || reports.try_send(report.clone()).is_ok()
        });
        self.told = current;
        let pending = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.is_preparing)
            .map(|(name, _)| name.clone());
        let pending: BTreeSet<String> = pending.collect();
        if self.is_out || pending.is_empty() || self.began.elapsed() >= FIRST {
            let is_first = !std::mem::replace(&mut self.is_out, true);
            if is_first && !pending.is_empty() {
                let names: Vec<String> = pending.iter().map(|name| format!("`{name}`")).collect();
                let text = format!(
                    "still being prepared after {} s: {}",
                    FIRST.as_secs(),
                    names.join(", ")
                );
                _ = self.reports.try_send(Report::Note(text));
            }
            self.out.send_if_modified(|now| {
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

impl Target {
    /// Whether it runs the same, whatever else is said of it.
    fn is_same_thing(&self, entry: &Entry, found: &Found) -> bool {
        let is_program = self
            .found
            .as_ref()
            .is_ok_and(|before| before.program == found.program);
        is_program && self.entry.wanted == entry.wanted
    }
}

fn kept(problem: Problem) -> Problem {
    Problem {
        message: format!("{}; what was known of it before is served", problem.message),
        ..problem
    }
}

/// A tool as it is served until it is prepared anew: its code and its bounds are already the new ones.
fn meanwhile(tool: &Tool, before: &Entry, now: &Entry, found: &Found) -> Arc<Tool> {
    let mut tool = tool.clone();
    tool.code = super::Code {
        packages: tool.code.packages.take(),
        ..found.code.clone()
    };
    (tool.profile, tool.limits) = (now.profile, now.limits);
    // Any other time is what the tool says of itself, which wins.
    if tool.timeout == before.timeout {
        tool.timeout = now.timeout;
    }
    Arc::new(tool)
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
