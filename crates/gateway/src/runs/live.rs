//! Runs under way, and those that just ended. Each has one task that takes its output and writes down its end; whoever
//! asked may be gone by then.
//!
//! ```text
//! accepted in the database ─ live ─ ended in the database ─ recent ─ only in the database
//! ```

use super::{hold::Held, recent::Recents};
use crate::{Bounds, Gateway, Problem, jobs, problem::Answer};
use bytes::Bytes;
use engine::{Feed, Run};
use http::StatusCode;
use serde::Deserialize;
use spec::{Barrier, Denial, ErrorCode, ErrorInfo, Event, Id, RunResult, Status};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use store::served::{Accepted, NewRun, Writing};
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
    pub(crate) feed: Feed,
    progress: watch::Sender<Progress>,
    cancelled: watch::Sender<bool>,
    pub(super) held: Held,
    /// The job that it is a try of.
    attempt_of: Option<String>,
    /// Ended by the server, not by anybody who asked for it.
    interrupted: AtomicBool,
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

    /// Whether there is room for one more of this key.
    pub(crate) fn room(&self, owner: &str, bounds: &Bounds) -> bool {
        let lists = self.lists();
        let own = lists.live.values().filter(|live| live.owner == owner).count();
        own < bounds.runs_per_key && lists.live.len() < bounds.runs
    }

    /// Lists a run.
    pub(crate) fn add(&self, live: &Arc<Live>) {
        self.lists().live.insert(live.id.to_string(), live.clone());
    }

    /// Takes one back that could not be written down.
    pub(crate) fn remove(&self, live: &Arc<Live>) {
        let mut lists = self.lists();
        if lists.live.get(live.id.as_str()).is_some_and(|listed| Arc::ptr_eq(listed, live)) {
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
        lists.live.get(id).or_else(|| lists.recent.find(id)).cloned()
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
    pub(crate) fn counts(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for live in self.lists().live.values() {
            *counts.entry(live.owner.clone()).or_default() += 1;
        }
        counts
    }

    /// How many are under way.
    pub(crate) fn count(&self) -> usize {
        self.lists().live.len()
    }
}

/// Writes a run down and lists it, within bounds.
pub(crate) async fn take(gateway: &Gateway, asked: Asked) -> Answer<Taken> {
    let owner = crate::caller::owner_of(&asked.owner)?;
    let feed = gateway.engine().feed(Some(&owner), FEED_BYTES);
    let live = Arc::new(Live::new(asked.id.clone(), &asked.owner, feed));
    let (listed, of) = (live.clone(), gateway.clone());
    let accepted = gateway.writer().write(move |writing| list(&of, writing, &asked, &listed)).await;
    match accepted {
        Ok(Accepted::New) => {}
        Ok(Accepted::Full) => return Err(too_many()),
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
            return Err(Problem::conflict(title, "choose another run_id, or leave it away"));
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
) -> Result<Accepted, store::DatabaseError> {
    let new = NewRun {
        id: asked.id.as_str(),
        owner: &asked.owner,
        task: asked.task.as_ref().map(|task| task.as_str()),
        job: asked.job.as_ref().map(|job| job.as_str()),
        at_ms: engine::now().0,
        promise: asked.promise.as_ref().map(|(name, body)| (name.as_str(), *body)),
    };
    let accepted = writing.accept(&new, gateway.runs().room(&asked.owner, gateway.bounds()))?;
    if accepted == Accepted::New {
        gateway.runs().add(live);
    }
    Ok(accepted)
}

fn prune(gateway: &Gateway) {
    let (now, bounds) = (engine::now().0, gateway.bounds());
    let age = u64::try_from(bounds.keep_for.as_millis()).unwrap_or(u64::MAX);
    // What cannot be forgotten now is forgotten next time.
    if let Err(error) = gateway.served().prune(now, now.saturating_sub(age), bounds.keep_runs) {
        crate::say(format_args!("airlock: {error}"));
    }
}

fn too_many() -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "quota_exceeded",
        "too many runs are under way",
        Some("wait until one has ended, or raise `runs_per_key` and `runs` under [serve]".to_owned()),
    )
}

impl Live {
    pub(crate) fn new(id: Id, owner: &str, feed: Feed) -> Live {
        let (progress, cancelled) = (watch::Sender::default(), watch::Sender::new(false));
        let (held, interrupted) = (Held::default(), AtomicBool::new(false));
        let owner = owner.to_owned();
        Live { id, owner, feed, progress, cancelled, held, attempt_of: None, interrupted }
    }

    /// A try of a job.
    pub(crate) fn attempt(gateway: &Gateway, id: Id, owner: &Id, job: String) -> Live {
        let feed = gateway.engine().feed(Some(owner), FEED_BYTES);
        Live { attempt_of: Some(job), ..Live::new(id, owner.as_str(), feed) }
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
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the run broke off", None)
        })
    }

    fn size(&self) -> u64 {
        let whole = self.progress.borrow().ended.as_ref().map_or(0, |ended| ended.whole.len() as u64);
        self.feed.lengths().iter().map(|length| (*length).min(FEED_BYTES)).sum::<u64>() + whole
    }
}

/// Carries a run through to its end, whoever waits for it.
pub(crate) async fn carry_out(gateway: Gateway, live: Arc<Live>, mut run: Run) {
    gateway.metrics().running.inc();
    let mut cancelled = live.cancelled.subscribe();
    let (mut asked, mut over) = (false, run.over());
    loop {
        tokio::select! {
            event = async { live.room(&mut over).await; run.next_event().await } => match event {
                Some(event) => note(&live, event),
                None => break,
            },
            _ = cancelled.wait_for(|cancelled| *cancelled), if !asked => {
                asked = true;
                run.cancel();
            }
        }
    }
    let result = run.finish().await;
    let took = Duration::from_millis(result.duration_ms);
    gateway.metrics().running.dec();
    gateway.metrics().run(result.status.name(), took, live.feed.lengths().iter().sum());
    conclude(&gateway, &live, result).await;
}

fn note(live: &Live, event: Event) {
    match event {
        Event::Started { barriers } => {
            live.progress.send_modify(|progress| progress.started = Some(barriers))
        }
        Event::Output { stream, data } => live.feed.append(stream, &data),
        Event::Denied(denial) => live.progress.send_modify(|progress| progress.denied.push(denial)),
    }
}

/// Writes the end down, however long that takes, and only then tells of it: what was told is never taken back. Whoever
/// waits for it waits; if the server ends meanwhile it is `lost`, and nobody was told otherwise.
pub(crate) async fn conclude(gateway: &Gateway, live: &Arc<Live>, result: RunResult) {
    let (status, error) = (result.status, result.error.clone());
    let problem = problem_of(&result);
    let (whole, kept) = match result.stdout.len() + result.stderr.len() > LARGE {
        // The text of megabytes takes its time, and others wait for the loop.
        true => tokio::task::spawn_blocking(move || texts(result)).await.unwrap_or_default(),
        false => texts(result),
    };
    let mut pause = FIRST_PAUSE;
    // It is under way until then: so no more than may run at once wait for a disk that has no room.
    while !write_end(gateway, live, (status, &error), &kept).await {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    let ended = Arc::new(Ended { whole, kept, problem });
    live.feed.end();
    live.progress.send_modify(|progress| progress.ended = Some(ended));
    gateway.runs().retire(live, live.size());
    // There is room for one more of this tenant.
    gateway.jobs().wake();
}

/// Whether it could be written. If it never can, the next start of the server will find it without an end, and say `lost`.
async fn write_end(
    gateway: &Gateway,
    live: &Arc<Live>,
    (status, error): (Status, &Option<ErrorInfo>),
    kept: &Bytes,
) -> bool {
    if live.attempt_of.is_some() {
        let interrupted = status == Status::Cancelled && live.interrupted.load(Ordering::SeqCst);
        return jobs::ended(gateway, &live.id, status, interrupted, error.clone(), kept.clone()).await;
    }
    let (id, kept) = (live.id.clone(), kept.clone());
    let finish = move |writing: &Writing<'_>| {
        // It was text a moment ago.
        writing.finish(id.as_str(), status.name(), &String::from_utf8_lossy(&kept))
    };
    gateway.writer().write(finish).await.is_ok()
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
fn texts(result: RunResult) -> (Bytes, Bytes) {
    let whole = Bytes::from(text(&result));
    let fits = result.stdout.len() <= KEPT_BYTES && result.stderr.len() <= KEPT_BYTES;
    if fits && whole.len() <= LARGEST_KEPT {
        let kept = whole.clone();
        return (whole, kept);
    }
    let mut less = result;
    less.truncated.stdout |= less.stdout.len() > KEPT_BYTES;
    less.truncated.stderr |= less.stderr.len() > KEPT_BYTES;
    less.stdout = head(less.stdout);
    less.stderr = head(less.stderr);
    if text(&less).len() > LARGEST_KEPT {
        (less.output, less.denials) = (None, Vec::new());
        less.notes = vec!["the result was too large to be kept whole".to_owned()];
        less.artifacts.truncate(1000);
    }
    (whole, text(&less).into())
}

/// The beginning; a character is not cut in two.
fn head(mut bytes: Vec<u8>) -> Vec<u8> {
    let is_text = std::str::from_utf8(&bytes).is_ok();
    bytes.truncate(KEPT_BYTES);
    if let (true, Err(error)) = (is_text, std::str::from_utf8(&bytes)) {
        let end = error.valid_up_to();
        bytes.truncate(end);
    }
    bytes
}

fn text(result: &RunResult) -> String {
    // Nothing in it can fail to be JSON.
    serde_json::to_string(result).unwrap_or_default()
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
            let text = text(&result);
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
        let (whole, kept) = texts(result(b"hello".to_vec()));
        assert_eq!(whole, kept);
        let (whole, kept) = texts(result("ä".repeat(KEPT_BYTES).into_bytes()));
        assert!(whole.len() > 2 * KEPT_BYTES && kept.len() < KEPT_BYTES + 4096);
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
        assert_eq!(kept["truncated"]["stdout"], true);
        assert_eq!(kept["stdout"].as_str().unwrap().len(), KEPT_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_does_not_read_keeps_no_run_under_way_whose_program_is_over() {
        let live = Arc::new(Live::new(Id::new("r").unwrap(), "key", Feed::new(FEED_BYTES)));
        live.feed.append(spec::Stream::Stdout, &vec![b'x'; FEED_BYTES as usize / 2 + 1]);
        let hold = super::super::hold::Hold::take(&live, [0, 0]);
        let (is_over, mut over) = watch::channel(false);
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, live.room(&mut over))
            .await
            .expect_err("a program that runs waits for him");
        is_over.send_replace(true);
        tokio::time::timeout(hour, live.room(&mut over)).await.expect("nobody waits any more");
        let (is_over, mut over) = watch::channel(false);
        drop(is_over);
        tokio::time::timeout(hour, live.room(&mut over)).await.expect("nor for one whose task failed");
        assert_eq!(live.feed.read(spec::Stream::Stdout, 0, 1).from, 0, "he can still read all of it");
        drop(hold);
    }

    #[test]
    fn only_a_run_that_could_not_start_is_a_problem() {
        let error = ErrorInfo { code: ErrorCode::StartFailed, message: "m".into(), hint: None };
        let with = |status, exit_status, error: Option<&ErrorInfo>| {
            let blank = result(Vec::new());
            problem_of(&RunResult { status, exit_status, error: error.cloned(), ..blank }).is_some()
        };
        assert!(with(Status::NotStarted, 125, Some(&error)));
        assert!(!with(Status::NotStarted, 127, Some(&error)), "the command was not found, inside");
        assert!(!with(Status::TimedOut, 124, Some(&error)) && !with(Status::Succeeded, 0, None));
    }
}
