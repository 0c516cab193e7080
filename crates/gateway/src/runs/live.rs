//! Runs under way, and those that just ended. Each has one task that takes its output and writes down its end; whoever
//! asked may be gone by then.
//!
//! ```text
//! accepted in the database ─ live ─ ended in the database ─ recent ─ only in the database
//! ```

use super::{hold::Held, recent::Recents};
use crate::{
    Caller, Gateway, Problem, audit, jobs,
    log::{self, Fields, Level, Line},
    problem::Answer,
    telemetry,
    tenants::Counted,
    trace::Spot,
    work,
};
use bytes::Bytes;
use engine::{Feed, Run, Session, steps::Wishes};
use http::StatusCode;
use serde::Deserialize;
use spec::{
    Barrier, Day, Denial, ErrorCode, ErrorInfo, Event, Id, Root, RunResult, RunSpec, Status,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use store::{
    served::{Accepted, DayUse, NewRun, Writing},
    telemetry::{ContainerEnd, NewContainer},
};
use tokio::sync::watch;

/// What is kept of each stream for whoever reads events; beyond a little of it on the disk.
const FEED_BYTES: u64 = 4 << 20;
/// What is kept of each stream in the database.
const KEPT_BYTES: usize = 64 << 10;
/// A whole result in the database.
const LARGEST_KEPT: usize = 1 << 20;
/// Output beyond which a result is put into words off the event loop.
const LARGE: usize = 256 << 10;
/// Between tries to write an end down: at first so long, then twice as long each time, up to this.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Runs between two looks for what is too old.
const PRUNED_EVERY: u64 = 256;

/// The runs of this gateway.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    live: HashMap<String, Arc<Live>>,
    recent: Recents,
    accepted: u64,
}

/// A run under way, or just ended.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: Id,
    pub(crate) owner: String,
    pub(crate) task: Option<Id>,
    pub(crate) job: Option<Id>,
    pub(crate) feed: Feed,
    progress: watch::Sender<Progress>,
    cancelled: watch::Sender<bool>,
    /// That its program shall end by itself, and how long it has for that.
    terminated: watch::Sender<Option<Duration>>,
    keeping: Keeping,
    pub(super) held: Held,
    /// The job that it is a try of.
    attempt_of: Option<String>,
    /// Ended by the server, not by anybody who asked for it.
    interrupted: AtomicBool,
    /// Milliseconds of CPU time so far, once it runs; and what of it is in its tenant's day.
    cpu_ms: OnceLock<Arc<AtomicU64>>,
    counted: Counted,
    /// What of its output becomes records of the node.
    output: telemetry::Output,
    about: About,
}

/// What is told of a run elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// The key that asked.
    pub(crate) key: String,
    runtime: &'static str,
    image: String,
    /// Its place in a trace.
    pub(crate) spot: Option<Spot>,
}

impl About {
    pub(crate) fn of(caller: &Caller, spec: &RunSpec) -> About {
        About::by(&caller.key, spec)
    }

    /// The same for whoever is not there any more.
    pub(crate) fn by(key: &str, spec: &RunSpec) -> About {
        let (runtime, image) = (spec.sandbox.backend.name(), image(&spec.sandbox.root));
        About {
            key: key.to_owned(),
            runtime,
            image,
            spot: None,
        }
    }
}

/// How much is kept of a run, and what is kept with it.
#[derive(Clone, Debug)]
pub(crate) struct Keeping {
    /// Bytes of each stream.
    pub(crate) stream: usize,
    /// Bytes of the whole result.
    pub(crate) whole: usize,
    /// Whether whoever asked gets no more of a stream than that, either, and only what is before what was left out: that
    /// is behind so many bytes.
    pub(crate) exact: Option<usize>,
    /// What the request said that the result does not.
    pub(crate) asked: Option<serde_json::Value>,
}

impl Default for Keeping {
    fn default() -> Keeping {
        Keeping {
            stream: KEPT_BYTES,
            whole: LARGEST_KEPT,
            exact: None,
            asked: None,
        }
    }
}

/// How far a run has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) started: Option<Vec<Barrier>>,
    pub(crate) denied: Vec<Denial>,
    pub(crate) ended: Option<Arc<Ended>>,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The result with all of its output.
    pub(crate) whole: Bytes,
    /// The same as the database has it.
    pub(crate) kept: Bytes,
    /// What to answer instead, if it could not start.
    pub(crate) problem: Option<Problem>,
}

/// A run that is asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: Id,
    pub(crate) owner: String,
    pub(crate) task: Option<Id>,
    pub(crate) job: Option<Id>,
    /// An idempotency key with the hash of the request that it stands for.
    pub(crate) promise: Option<(String, [u8; 32])>,
    /// What is kept of it.
    pub(crate) keeping: Keeping,
    /// What is told of it.
    pub(crate) about: About,
}

/// What a run starts from, without the paths of this machine.
pub(crate) fn image(root: &Root) -> String {
    match root {
        Root::Host => "host".to_owned(),
        Root::Folder(_) => "folder".to_owned(),
        Root::Image(image) => image.to_string(),
    }
}

/// What became of a request for a run.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is to be started now.
    New(Arc<Live>),
    /// It was asked for before, under this name.
    Before(String),
}

impl Runs {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are under way of this tenant, and of all.
    pub(crate) fn counts(&self, owner: &str) -> (usize, usize) {
        let lists = self.lists();
        let own = lists
            .live
            .values()
            .filter(|live| live.owner == owner)
            .count();
        (own, lists.live.len())
    }

    /// Whose CPU time came to be since the last look, and how much.
    pub(crate) fn newly_used(&self) -> Vec<(String, u64)> {
        let new = |live: &Arc<Live>| {
            let cpu_ms = live.cpu_ms.get()?.load(Ordering::Relaxed);
            Some((live.owner.clone(), live.counted.up_to(cpu_ms)))
        };
        self.lists().live.values().filter_map(new).collect()
    }

    /// Lists a run.
    pub(crate) fn add(&self, live: &Arc<Live>) {
        self.lists().live.insert(live.id.to_string(), live.clone());
    }

    /// Takes one back that could not be written down.
    pub(crate) fn remove(&self, live: &Arc<Live>) {
        let mut lists = self.lists();
        if lists
            .live
            .get(live.id.as_str())
            .is_some_and(|listed| Arc::ptr_eq(listed, live))
        {
            lists.live.remove(live.id.as_str());
        }
    }

    /// Counts one; whether it is time to forget old ones.
    fn is_time_to_prune(&self) -> bool {
        let mut lists = self.lists();
        lists.accepted += 1;
        lists.accepted % PRUNED_EVERY == 1
    }

    /// The run of that name, if it is under way or has just ended.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Live>> {
        let lists = self.lists();
        lists
            .live
            .get(id)
            .or_else(|| lists.recent.find(id))
            .cloned()
    }

    /// Moves a run from those under way to those that ended.
    fn retire(&self, live: &Arc<Live>, bytes: u64) {
        let mut lists = self.lists();
        lists.live.remove(live.id.as_str());
        lists.recent.add(live.clone(), bytes);
    }

    /// Ends all of them because the server ends.
    pub(crate) fn cancel_all(&self) {
        self.lists().live.values().for_each(|live| live.interrupt());
    }

    /// How many each owner has under way.
    pub(crate) fn by_tenant(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for live in self.lists().live.values() {
            *counts.entry(live.owner.clone()).or_default() += 1;
        }
        counts
    }

    /// Those that are under way.
    pub(crate) fn under_way(&self) -> Vec<Arc<Live>> {
        self.lists().live.values().cloned().collect()
    }

    /// How many are under way.
    pub(crate) fn count(&self) -> usize {
        self.lists().live.len()
    }
}

/// Writes a run down and lists it, if it was asked for before or may be begun.
pub(crate) async fn take(gateway: &Gateway, asked: Asked, may: Answer<()>) -> Answer<Taken> {
    let tenant = asked.owner.clone();
    let is_admitted = may.is_ok();
    let owner = crate::caller::owner_of(&asked.owner)?;
    let feed = gateway.engine().feed(Some(&owner), FEED_BYTES);
    let mut live = Live::new(asked.id.clone(), &asked.owner, feed);
    (live.task, live.job) = (asked.task.clone(), asked.job.clone());
    (live.keeping, live.about) = (asked.keeping.clone(), asked.about.clone());
    let live = Arc::new(live);
    let (listed, of) = (live.clone(), gateway.clone());
    let accepted = gateway
        .writer()
        .write(move |writing| list(&of, writing, &asked, &listed, is_admitted))
        .await;
    match accepted {
        Ok(Accepted::New) => {}
        Ok(Accepted::Full) if gateway.is_closing() => return Err(Problem::closing()),
        Ok(Accepted::Full) => {
            // Some may have ended meanwhile; what was asked was too much all the same.
            let full = || {
                gateway
                    .runs_full(&tenant)
                    .map_or_else(|| Err(crate::writer::busy()), Ok)
            };
            return Err(may.err().map_or_else(full, Ok)?);
        }
        Ok(Accepted::Before(id)) => return Ok(Taken::Before(id)),
        Ok(Accepted::OtherRequest) => {
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid_spec",
                "this Idempotency-Key was used with another body",
                Some("use a new key for a new request".to_owned()),
            ));
        }
        Ok(Accepted::NameTaken) => {
            let title = format!("there is a run called `{}`", live.id);
            return Err(Problem::conflict(
                title,
                "choose another run_id, or leave it away",
            ));
        }
        Err(problem) => {
            gateway.runs().remove(&live);
            return Err(problem);
        }
    }
    prune_now_and_then(gateway);
    Ok(Taken::New(live))
}

/// Forgets old runs, if that is due with one more.
pub(crate) fn prune_now_and_then(gateway: &Gateway) {
    if gateway.runs().is_time_to_prune() {
        let gateway = gateway.clone();
        tokio::task::spawn_blocking(move || prune(&gateway));
    }
}

/// One after the other, by the thread that writes; and before it is committed: nobody learns of a run that cannot be
/// found here yet.
fn list(
    gateway: &Gateway,
    writing: &Writing<'_>,
    asked: &Asked,
    live: &Arc<Live>,
    is_admitted: bool,
) -> Result<Accepted, store::DatabaseError> {
    let new = NewRun {
        id: asked.id.as_str(),
        owner: &asked.owner,
        task: asked.task.as_ref().map(|task| task.as_str()),
        job: asked.job.as_ref().map(|job| job.as_str()),
        at_ms: engine::now().0,
        promise: asked
            .promise
            .as_ref()
            .map(|(name, body)| (name.as_str(), *body)),
    };
    let listing = gateway.may_list();
    let room = listing.is_some() && is_admitted && gateway.runs_full(&asked.owner).is_none();
    let accepted = writing.accept(&new, room)?;
    if accepted == Accepted::New {
        let day = gateway.days().count(&asked.owner, DayUse::RUN);
        writing.add_to_day(&asked.owner, day, DayUse::RUN)?;
        gateway.runs().add(live);
        contain(gateway, writing, &new, &asked.about)?;
    }
    Ok(accepted)
}

/// A run is a container of the node.
pub(crate) fn contain(
    gateway: &Gateway,
    writing: &Writing<'_>,
    new: &NewRun<'_>,
    about: &About,
) -> Result<(), store::DatabaseError> {
    let trace = about.spot.as_ref().map(Spot::trace);
    gateway.metrics().container("created");
    writing.add_container(&NewContainer {
        id: new.id,
        owner: new.owner,
        runtime: about.runtime,
        image: &about.image,
        task: new.task,
        job: new.job,
        labels: "{}",
        trace: trace.as_deref(),
        at_ms: new.at_ms,
    })
}

fn prune(gateway: &Gateway) {
    let (now, bounds) = (engine::now().0, gateway.bounds());
    let age = u64::try_from(bounds.keep_for.as_millis()).unwrap_or(u64::MAX);
    // What cannot be forgotten now is forgotten next time.
    if let Err(error) = gateway
        .served()
        .prune(now, now.saturating_sub(age), bounds.keep_runs)
    {
        crate::say(format_args!("airlock: {error}"));
    }
}

impl Live {
    pub(crate) fn new(id: Id, owner: &str, feed: Feed) -> Live {
        let (progress, cancelled) = (watch::Sender::default(), watch::Sender::new(false));
        let output = telemetry::Output::new(id.as_str(), owner);
        let (terminated, keeping, held) = Default::default();
        let (interrupted, cpu_ms, counted) = Default::default();
        Live {
            id,
            owner: owner.to_owned(),
            task: None,
            job: None,
            feed,
            progress,
            cancelled,
            terminated,
            keeping,
            held,
            attempt_of: None,
            interrupted,
            cpu_ms,
            counted,
            output,
            about: About::default(),
        }
    }

    /// A try of a job.
    pub(crate) fn attempt(
        gateway: &Gateway,
        id: Id,
        owner: &Id,
        (job, task): (String, Option<Id>),
        about: About,
    ) -> Live {
        let feed = gateway.engine().feed(Some(owner), FEED_BYTES);
        let named = Id::new(&job).ok();
        Live {
            attempt_of: Some(job),
            job: named,
            task,
            about,
            ..Live::new(id, owner.as_str(), feed)
        }
    }

    /// Waits until whoever must not miss anything has room for more. Once it is to end, nobody does; nor once its program
    /// is over: no reader shall keep it under way then, and the feed has room for what is left.
    async fn room(&self, over: &mut watch::Receiver<bool>) {
        if *self.cancelled.borrow() {
            return;
        }
        tokio::select! {
            () = self.held.room(self.feed.lengths(), FEED_BYTES / 2) => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }

    /// Whose it is, in the audit.
    pub(crate) fn of(&self) -> audit::Of<'_> {
        audit::Of {
            tenant: &self.owner,
            run: self.id.as_str(),
            task: self.task.as_ref().map_or("", |task| task.as_str()),
            job: self.job.as_ref().map_or("", |job| job.as_str()),
        }
    }

    /// What is told of it.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    /// Asks for its end.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Ends it because the server ends, unless somebody asked for its end before.
    fn interrupt(&self) {
        if !self.cancelled.send_replace(true) {
            self.interrupted.store(true, Ordering::SeqCst);
        }
    }

    /// Asks its program to end by itself within this time.
    pub(crate) fn terminate(&self, grace: Duration) {
        let least = |asked: &mut Option<Duration>| {
            *asked = Some(asked.map_or(grace, |before| before.min(grace)))
        };
        self.terminated.send_modify(least);
    }

    /// It is carried out from now on.
    pub(crate) fn begins(&self) {
        self.progress
            .send_modify(|progress| progress.started = Some(Vec::new()));
    }

    /// The box stands in which it is carried out step by step: what that uses counts from now on.
    pub(crate) fn has_box(&self, gateway: &Gateway, session: &Session) {
        _ = self.cpu_ms.set(session.cpu_ms());
        let event = Event::Started {
            barriers: session.state().barriers,
        };
        gateway.note_event(&self.of(), &event, &mut 0);
        note(gateway, self, event);
    }

    /// What others want of it: its end, and that its work on files is within the share of its tenant.
    pub(crate) fn wishes(&self, gateway: &Gateway) -> Wishes {
        let (gateway, owner) = (gateway.clone(), self.owner.clone());
        let places = Arc::new(move || work::place(gateway.working(), &owner));
        Wishes {
            cancelled: self.cancelled.subscribe(),
            terminated: self.terminated.subscribe(),
            places,
        }
    }

    /// What of its output becomes records of the node.
    pub(crate) fn output(&self) -> &telemetry::Output {
        &self.output
    }

    /// Whether anybody has asked for its end.
    pub(crate) fn is_to_end(&self) -> bool {
        *self.cancelled.borrow() || self.terminated.borrow().is_some()
    }

    /// How far it has come, and what comes.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Answer<Arc<Ended>> {
        let mut progress = self.progress();
        let ended = progress.wait_for(|progress| progress.ended.is_some()).await;
        let ended = ended.ok().and_then(|progress| progress.ended.clone());
        ended.ok_or_else(|| {
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the run broke off",
                None,
            )
        })
    }

    fn size(&self) -> u64 {
        let whole = self
            .progress
            .borrow()
            .ended
            .as_ref()
            .map_or(0, |ended| ended.whole.len() as u64);
        self.feed
            .lengths()
            .iter()
            .map(|length| (*length).min(FEED_BYTES))
            .sum::<u64>()
            + whole
    }
}

/// Carries a run through to its end, whoever waits for it.
pub(crate) async fn carry_out(gateway: Gateway, live: Arc<Live>, mut run: Run) {
    gateway.metrics().running.inc();
    _ = live.cpu_ms.set(run.cpu_ms());
    let (mut cancelled, mut terminated) = (live.cancelled.subscribe(), live.terminated.subscribe());
    // Somebody may have asked for its end before it began.
    terminated.mark_changed();
    let (mut asked, mut over, mut denials) = (false, run.over(), 0);
    loop {
        tokio::select! {
            event = async { live.room(&mut over).await; run.next_event().await } => match event {
                Some(event) => {
                    gateway.note_event(&live.of(), &event, &mut denials);
                    note(&gateway, &live, event);
                }
                None => break,
            },
            _ = cancelled.wait_for(|cancelled| *cancelled), if !asked => {
                asked = true;
                run.cancel();
            }
            Ok(()) = terminated.changed() => {
                if let Some(grace) = *terminated.borrow_and_update() {
                    run.terminate(grace);
                }
            }
        }
    }
    let result = run.finish().await;
    let took = Duration::from_millis(result.duration_ms);
    gateway.metrics().running.dec();
    gateway
        .metrics()
        .run(result.status.name(), took, live.feed.lengths().iter().sum());
    gateway.note_ended(&live.of(), &result, denials);
    conclude(&gateway, &live, result).await;
}

/// Ends a run that was accepted and cannot be started: what cannot be written down is not done.
pub(crate) async fn give_up(gateway: &Gateway, live: &Arc<Live>, profile: &str) {
    let mut result = RunResult::blank(live.id.clone(), profile.to_owned(), engine::now());
    (result.task_id, result.job_id) = (live.task.clone(), live.job.clone());
    result.error = Some(ErrorInfo {
        code: ErrorCode::Internal,
        message: "the audit cannot be written".to_owned(),
        hint: Some("it was not started; try again".to_owned()),
    });
    gateway.note_ended(&live.of(), &result, 0);
    conclude(gateway, live, result).await;
}

fn note(gateway: &Gateway, live: &Live, event: Event) {
    match event {
        Event::Started { barriers } => {
            gateway.recorder().started(live.id.as_str());
            live.progress
                .send_modify(|progress| progress.started = Some(barriers))
        }
        Event::Output { stream, data } => {
            gateway.recorder().wrote(&live.output, stream, &data);
            live.feed.append(stream, &data);
        }
        Event::Denied(denial) => live
            .progress
            .send_modify(|progress| progress.denied.push(denial)),
    }
}

/// Writes the end down, however long that takes, and only then tells of it: what was told is never taken back. Whoever
/// waits for it waits; if the server ends meanwhile it is `lost`, and nobody was told otherwise.
pub(crate) async fn conclude(gateway: &Gateway, live: &Arc<Live>, result: RunResult) {
    tell(gateway, live, &result);
    let (status, error) = (result.status, result.error.clone());
    let used = DayUse::cpu(live.counted.up_to(result.usage.cpu_ms));
    let day = gateway.days().count(&live.owner, used);
    let container = container_end(&result);
    let problem = problem_of(&result);
    let keeping = live.keeping.clone();
    let (whole, kept) = match result.stdout.len() + result.stderr.len() > LARGE {
        // The text of megabytes takes its time, and others wait for the loop.
        true => tokio::task::spawn_blocking(move || texts(result, &keeping))
            .await
            .unwrap_or_default(),
        false => texts(result, &keeping),
    };
    let mut pause = FIRST_PAUSE;
    // It is under way until then: so no more than may run at once wait for a disk that has no room.
    let end = Ending {
        status,
        interrupted: false,
        error,
        kept: kept.clone(),
        day,
        used,
        container,
    };
    while !write_end(gateway, live, end.clone()).await {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    let ended = Arc::new(Ended {
        whole,
        kept,
        problem,
    });
    live.feed.end();
    live.progress
        .send_modify(|progress| progress.ended = Some(ended));
    gateway.runs().retire(live, live.size());
    // There is room for one more of this tenant.
    gateway.jobs().wake();
}

/// What is told of it, but for the result itself: the log, the trace, the records of the node.
fn tell(gateway: &Gateway, live: &Live, result: &RunResult) {
    gateway.recorder().ended(&live.output);
    let spot = live.about.spot.as_ref();
    if let Some(spot) = spot {
        gateway
            .tracer()
            .run(spot, result, &live.owner, &live.about.image);
    }
    if !gateway.quiet() && log::wants(Level::Info) {
        let id = |id: &Option<Id>| id.as_ref().map(ToString::to_string).unwrap_or_default();
        let fields = Fields {
            status: result.status.name().to_owned(),
            ms: Some((result.moments.ended.saturating_sub(result.moments.begun)) as f64 / 1000.0),
            key: live.about.key.clone(),
            tenant: live.owner.clone(),
            run: live.id.to_string(),
            task: id(&result.task_id),
            job: id(&result.job_id),
            trace: spot.map(Spot::trace).unwrap_or_default(),
        };
        log::tell(Line::new(Level::Info, "run", "run", fields));
    }
}

/// How a run ended, as it is written down.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) status: Status,
    /// Because the server ends.
    pub(crate) interrupted: bool,
    pub(crate) error: Option<ErrorInfo>,
    /// The result, as it is kept.
    pub(crate) kept: Bytes,
    /// What it adds to its tenant's day.
    day: Day,
    used: DayUse,
    container: ContainerEnd<'static>,
}

impl Ending {
    /// The result as it is kept, and what is counted and told with it.
    pub(crate) fn write(
        &self,
        writing: &Writing<'_>,
        id: &str,
        owner: &str,
    ) -> Result<(), store::DatabaseError> {
        writing.add_to_day(owner, self.day, self.used)?;
        // It was text a moment ago.
        writing.finish(id, self.status.name(), &String::from_utf8_lossy(&self.kept))?;
        writing.end_container(id, &self.container)
    }
}

fn container_end(result: &RunResult) -> ContainerEnd<'static> {
    let ms = |us: u64| us / 1000;
    let moments = &result.moments;
    let status = match result.status {
        Status::NotStarted => "failed",
        Status::Lost => "lost",
        _ => "exited",
    };
    // One whose driver failed has no moments.
    let ended = if moments.ended > 0 {
        ms(moments.ended)
    } else {
        engine::now().0
    };
    let stopped_ms = if moments.over > 0 {
        ms(moments.over)
    } else {
        ended
    };
    let started_ms = (moments.started > 0).then(|| ms(moments.started));
    let removed_ms = ended.max(stopped_ms);
    ContainerEnd {
        status,
        exit_code: result.exit_code,
        started_ms,
        stopped_ms,
        removed_ms,
    }
}

/// Whether it could be written. If it never can, the next start of the server will find it without an end, and say `lost`.
async fn write_end(gateway: &Gateway, live: &Arc<Live>, mut end: Ending) -> bool {
    let status = end.container.status;
    let written = if live.attempt_of.is_some() {
        end.interrupted =
            end.status == Status::Cancelled && live.interrupted.load(Ordering::SeqCst);
        jobs::ended(gateway, live, end).await
    } else {
        let (id, owner) = (live.id.clone(), live.owner.clone());
        gateway
            .writer()
            .write(move |writing| end.write(writing, id.as_str(), &owner))
            .await
            .is_ok()
    };
    if written {
        gateway.metrics().container(status);
    }
    written
}
/// A run that could not start; a command that cannot be executed is a result like any other.
fn problem_of(result: &RunResult) -> Option<Problem> {
    let told = Unstarted {
        run_id: result.run_id.to_string(),
        status: result.status,
        exit_status: result.exit_status,
        error: result.error.clone(),
    };
    told.problem()
}

/// The same of a result as it is kept.
pub(super) fn problem_kept(result: &str) -> Option<Problem> {
    serde_json::from_str::<Unstarted>(result).ok()?.problem()
}

/// Of a result, whether its run could start.
#[derive(Deserialize)]
struct Unstarted {
    run_id: String,
    status: Status,
    exit_status: u8,
    error: Option<ErrorInfo>,
}

impl Unstarted {
    fn problem(self) -> Option<Problem> {
        let never = self.status == Status::NotStarted && !matches!(self.exit_status, 126 | 127);
        let error = self.error.filter(|_| never)?;
        Some(Problem::from(error).about(format!("/v1/runs/{}", self.run_id)))
    }
}

/// The result as it is answered, and as it is kept.
fn texts(mut result: RunResult, keeping: &Keeping) -> (Bytes, Bytes) {
    if let Some(gap) = keeping.exact {
        beginning(
            &mut result.stdout,
            (keeping.stream, gap),
            &mut result.truncated.stdout,
        );
        beginning(
            &mut result.stderr,
            (keeping.stream, gap),
            &mut result.truncated.stderr,
        );
    }
    let whole = Bytes::from(text(&result, keeping));
    let fits = result.stdout.len() <= keeping.stream && result.stderr.len() <= keeping.stream;
    if fits && whole.len() <= keeping.whole {
        let kept = whole.clone();
        return (whole, kept);
    }
    let mut less = result;
    shorten(&mut less, keeping.stream);
    if text(&less, keeping).len() > keeping.whole {
        (less.output, less.denials) = (None, Vec::new());
        less.notes = vec!["the result was too large to be kept whole".to_owned()];
        less.artifacts.truncate(1000);
    }
    (whole, text(&less, keeping).into())
}

fn shorten(result: &mut RunResult, most: usize) {
    result.truncated.stdout |= result.stdout.len() > most;
    result.truncated.stderr |= result.stderr.len() > most;
    result.stdout = head(std::mem::take(&mut result.stdout), most);
    result.stderr = head(std::mem::take(&mut result.stderr), most);
}

/// Where what was left out of a stream is marked.
const GAP: &[u8] = b"\n[... ";

/// Of a stream whose beginning and end were kept, with a mark between them, only what the program wrote at its beginning;
/// and whether that is less than what it wrote. A character is not cut in two.
fn beginning(bytes: &mut Vec<u8>, (most, gap): (usize, usize), cut: &mut bool) {
    let mut marks = gap.saturating_sub(3)..=gap;
    let mark = marks.find(|at| bytes.get(*at..).is_some_and(|rest| rest.starts_with(GAP)));
    if let (true, Some(mark)) = (*cut, mark) {
        bytes.truncate(mark);
    }
    if bytes.len() > most {
        *cut = true;
        bytes.truncate(most);
        let half = bytes
            .utf8_chunks()
            .last()
            .map_or(0, |last| last.invalid().len());
        bytes.truncate(most - half);
    }
}

/// The beginning; a character is not cut in two.
fn head(mut bytes: Vec<u8>, most: usize) -> Vec<u8> {
    let is_text = std::str::from_utf8(&bytes).is_ok();
    bytes.truncate(most);
    if let (true, Err(error)) = (is_text, std::str::from_utf8(&bytes)) {
        let end = error.valid_up_to();
        bytes.truncate(end);
    }
    bytes
}

fn text(result: &RunResult, keeping: &Keeping) -> String {
    /// A result, and what was asked.
    #[derive(serde::Serialize)]
    struct Told<'a> {
        #[serde(flatten)]
        result: &'a RunResult,
        asked: &'a serde_json::Value,
    }
    // Nothing in it can fail to be JSON.
    match &keeping.asked {
        None => serde_json::to_string(result).unwrap_or_default(),
        Some(asked) => serde_json::to_string(&Told { result, asked }).unwrap_or_default(),
    }
}

/// Gives every run that a server before us left without an end its end, and every job whose try it was what follows: all
/// of it or nothing.
pub(crate) fn settle(gateway: &Gateway) -> Result<usize, store::DatabaseError> {
    let unfinished = gateway.served().unfinished()?;
    gateway.served().together_durably(|writing| {
        for row in &unfinished {
            // Identifiers were checked when they came.
            let Ok(id) = Id::new(&row.id) else { continue };
            let mut result = lost(id, spec::Timestamp(row.accepted_ms));
            result.task_id = row.task.as_deref().and_then(|task| Id::new(task).ok());
            result.job_id = row.job.as_deref().and_then(|job| Id::new(job).ok());
            let (task, job) = (
                row.task.as_deref().unwrap_or_default(),
                row.job.as_deref().unwrap_or_default(),
            );
            gateway.note_ended(
                &audit::Of {
                    tenant: &row.owner,
                    run: &row.id,
                    task,
                    job,
                },
                &result,
                0,
            );
            let text = text(&result, &Keeping::default());
            writing.finish(&row.id, Status::Lost.name(), &text)?;
            jobs::abandoned(gateway, writing, &row.id, Some(&text))?;
        }
        Ok(())
    })?;
    prune(gateway);
    Ok(unfinished.len())
}

/// What is said of a run whose end nobody saw.
pub(crate) fn lost(id: Id, accepted: spec::Timestamp) -> RunResult {
    let mut result = RunResult::blank(id, String::new(), accepted);
    result.status = Status::Lost;
    result.ended_at = engine::now();
    result.error = Some(ErrorInfo {
        code: ErrorCode::Lost,
        message: "the server ended before the run did".to_owned(),
        hint: Some("start it again".to_owned()),
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(stdout: Vec<u8>) -> RunResult {
        let mut result = RunResult::blank(Id::new("r").unwrap(), "p".into(), engine::now());
        (result.status, result.stdout) = (Status::Succeeded, stdout);
        result
    }

    #[test]
    fn a_small_result_is_kept_whole_and_a_large_one_says_what_is_missing() {
        let keeping = Keeping::default();
        let (whole, kept) = texts(result(b"hello".to_vec()), &keeping);
        assert_eq!(whole, kept);
        let (whole, kept) = texts(result("ä".repeat(KEPT_BYTES).into_bytes()), &keeping);
        assert!(whole.len() > 2 * KEPT_BYTES && kept.len() < KEPT_BYTES + 4096);
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
        assert_eq!(kept["truncated"]["stdout"], true);
        assert_eq!(kept["stdout"].as_str().unwrap().len(), KEPT_BYTES);
        let keeping = Keeping {
            stream: 2,
            exact: Some(2),
            asked: Some("x".into()),
            ..keeping
        };
        let (whole, kept) = texts(result("a€".into()), &keeping);
        assert_eq!(whole, kept);
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
        assert_eq!(
            (&kept["stdout"], &kept["truncated"]["stdout"]),
            (&"a".into(), &true.into())
        );
        assert_eq!(kept["asked"], "x");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_does_not_read_keeps_no_run_under_way_whose_program_is_over() {
        let live = Arc::new(Live::new(
            Id::new("r").unwrap(),
            "key",
            Feed::new(FEED_BYTES),
        ));
        live.feed.append(
            spec::Stream::Stdout,
            &vec![b'x'; FEED_BYTES as usize / 2 + 1],
        );
        let hold = super::super::hold::Hold::take(&live, [0, 0]);
        let (is_over, mut over) = watch::channel(false);
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, live.room(&mut over))
            .await
            .expect_err("a program that runs waits for him");
        is_over.send_replace(true);
        tokio::time::timeout(hour, live.room(&mut over))
            .await
            .expect("nobody waits any more");
        let (is_over, mut over) = watch::channel(false);
        drop(is_over);
        tokio::time::timeout(hour, live.room(&mut over))
            .await
            .expect("nor for one whose task failed");
        assert_eq!(
            live.feed.read(spec::Stream::Stdout, 0, 1).from,
            0,
            "he can still read all of it"
        );
        drop(hold);
    }

    #[test]
    fn only_a_run_that_could_not_start_is_a_problem() {
        let error = ErrorInfo {
            code: ErrorCode::StartFailed,
            message: "m".into(),
            hint: None,
        };
        let with = |status, exit_status, error: Option<&ErrorInfo>| {
            let blank = result(Vec::new());
            problem_of(&RunResult {
                status,
                exit_status,
                error: error.cloned(),
                ..blank
            })
            .is_some()
        };
        assert!(with(Status::NotStarted, 125, Some(&error)));
        assert!(
            !with(Status::NotStarted, 127, Some(&error)),
            "the command was not found, inside"
        );
        assert!(!with(Status::TimedOut, 124, Some(&error)) && !with(Status::Succeeded, 0, None));
    }
}
