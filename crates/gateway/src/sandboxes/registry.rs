//! Which sandboxes there are, and whose. Those that ended are remembered for a while, without what they held. All of them
//! are written down before they are made: after a start of the server those that died with it are `lost`.

use super::wire::{self, Labels, SandboxState};
use crate::{
    Caller, Gateway, Problem, Scope,
    problem::Answer,
    tenants::{Counted, Needs, What},
};
use engine::{Exec, Session, SessionEnd, SessionState, SessionStatus};
use http::StatusCode;
use spec::{Day, SessionRequest, SessionSpec, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use store::{
    DatabaseError,
    audit::Entry as Line,
    served::{DayUse, PROMISED_MS, Remembered, SandboxRow, Writing},
    telemetry::{ContainerEnd, NewContainer},
};
use tokio::{sync::watch, task::JoinSet};

/// Sandboxes that live at a time.
const MOST_LIVE: usize = 4096;
/// The same, of one tenant, unless its quota says otherwise.
const MOST_OF_ONE: usize = 2048;
/// Ended ones that are remembered, of one tenant and of all. Whoever has the most loses the oldest first.
const ENDED_OF_ONE: usize = 1024;
const MOST_ENDED: usize = 8192;
/// For how long they are; those with an Idempotency-Key for as long as that stands for them.
const REMEMBERED_MS: u64 = 3_600_000;
/// Between tries to write an end down: at first so long, then twice as long each time, up to this.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of one is waited for, or of all of them. It takes far less; this is for a machine that hangs.
const LONGEST_ENDING: Duration = Duration::from_secs(10);
/// Ends between two looks for what the database is to forget.
const FORGOTTEN_EVERY: u32 = 64;

/// The sessions of this gateway.
#[derive(Debug, Default)]
pub(crate) struct Sandboxes {
    known: Mutex<Known>,
    /// How many ends were written down.
    ends: AtomicU32,
}

#[derive(Debug, Default)]
struct Known {
    all: BTreeMap<String, Arc<Entry>>,
    /// Being made: nobody makes a second one by the same key.
    under_way: HashMap<Replay, (Vec<u8>, Outcome)>,
    /// Being made, and for whom, with or without a key.
    making: Vec<(String, Outcome)>,
}

/// What came of making one, for all who asked by the same key.
type Outcome = watch::Receiver<Option<Answer<Arc<Entry>>>>;

/// Whose key of idempotency, and which.
pub(super) type Replay = (String, String);

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: String,
    owner: String,
    pub(crate) labels: Labels,
    /// By which key it was made, and what was asked then.
    replay: Option<(Replay, Vec<u8>)>,
    held: Mutex<Held>,
    /// What of its CPU time is in its tenant's day.
    counted: Counted,
    /// Whether its end is written down.
    written: watch::Sender<bool>,
}

#[derive(Debug)]
enum Held {
    /// With what it was made from, for those that are made like it.
    Live(Session, Box<SessionRequest>),
    Ended(Box<SessionState>),
}

/// What is to be made, and for whom.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) owner: String,
    pub(crate) labels: Labels,
    pub(crate) request: SessionRequest,
    /// The session whose workspace is copied.
    pub(crate) fork_of: Option<Session>,
    /// The key of idempotency, and a digest of what is asked by it.
    pub(crate) replay: Option<(String, Vec<u8>)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    pub(crate) fn state(&self) -> SessionState {
        match &*locked(&self.held) {
            Held::Live(session, _) => session.state(),
            Held::Ended(state) => (**state).clone(),
        }
    }

    pub(super) fn view(&self) -> SandboxState {
        SandboxState::new(&self.id, &self.labels, self.state())
    }

    /// The session, unless it is gone.
    pub(crate) fn session(&self) -> Answer<Session> {
        let session = match &*locked(&self.held) {
            Held::Live(session, _) => session.clone(),
            Held::Ended(state) => return Err(wire::gone(state)),
        };
        let state = session.state();
        match state.ended {
            Some(_) => Err(wire::gone(&state)),
            None => Ok(session),
        }
    }

    /// Ends it: 200 once it has ended, 202 if that takes unusually long.
    pub(crate) async fn end_soon(&self) -> StatusCode {
        match tokio::time::timeout(LONGEST_ENDING, self.end()).await {
            Ok(()) => StatusCode::OK,
            Err(_) => StatusCode::ACCEPTED,
        }
    }

    /// Ends it, and waits until that is written down: what was told is not taken back by the next start of the server.
    async fn end(&self) {
        if let Ok(session) = self.session() {
            session.end().await;
        }
        // Its sender lives as long as this does.
        _ = self.written.subscribe().wait_for(|written| *written).await;
    }

    /// What it was made from, unless it is gone.
    pub(super) fn request(&self) -> Answer<SessionRequest> {
        match &*locked(&self.held) {
            Held::Live(_, request) => Ok((**request).clone()),
            Held::Ended(state) => Err(wire::gone(state)),
        }
    }

    /// One that was made by a server before us.
    fn recalled(row: SandboxRow) -> Entry {
        let (ended_at, reason) = row.ended.unwrap_or_default();
        let (created_at, ended_at) = (Timestamp(row.created_ms), Timestamp(ended_at));
        let state = SessionState {
            is_asked_to_pause: false,
            status: SessionStatus::Ended,
            ended: Some(wire::end_of(&reason)),
            created_at,
            ended_at: Some(ended_at),
            expires_at: ended_at,
            idle_until: ended_at,
            backend: row.backend,
            profile: row.profile,
            barriers: Vec::new(),
            usage: spec::Usage::default(),
            limits_hit: BTreeSet::new(),
            denials: Vec::new(),
            learned: Vec::new(),
            workspace: None,
            notes: vec![
                "its server has ended since; what it used is not known any more".to_owned(),
            ],
        };
        let owner = row.owner;
        Entry {
            id: row.id,
            labels: serde_json::from_str(&row.labels).unwrap_or_default(),
            replay: row.promise.map(|(key, body)| ((owner.clone(), key), body)),
            owner,
            held: Mutex::new(Held::Ended(Box::new(state))),
            counted: Counted::default(),
            written: watch::Sender::new(true),
        }
    }

    fn remembered_ms(&self) -> u64 {
        if self.replay.is_some() {
            PROMISED_MS
        } else {
            REMEMBERED_MS
        }
    }

    fn ended_at(&self) -> Option<u64> {
        match &*locked(&self.held) {
            Held::Live(..) => None,
            Held::Ended(state) => state.ended_at.map(|at| at.0),
        }
    }
}

impl Known {
    /// Forgets ended ones that are too old or too many.
    fn forget(&mut self) {
        let now = engine::now().0;
        self.all.retain(|_, entry| {
            entry
                .ended_at()
                .is_none_or(|at| at + entry.remembered_ms() > now)
        });
        let ended = |entry: &Arc<Entry>| entry.ended_at().map(|at| (at, entry.clone()));
        let ended: Vec<_> = self.all.values().filter_map(ended).collect();
        if ended.len() > ENDED_OF_ONE {
            for entry in too_many(ended, ENDED_OF_ONE, MOST_ENDED) {
                self.all.remove(&entry.id);
            }
        }
    }

    /// How many there are of this tenant, and of all. Those that are being made count as those that live: whoever asks
    /// need not wait for an answer.
    fn counts(&self, owner: &str) -> (usize, usize) {
        let live = || self.all.values().filter(|entry| entry.ended_at().is_none());
        let all = live().count() + self.making.len();
        let own = live().filter(|entry| entry.owner == owner).count();
        (
            own + self.making.iter().filter(|(of, _)| of == owner).count(),
            all,
        )
    }

    /// Why there is no room for one more, if there is none.
    fn full(&self, owner: &str, most_of_one: usize) -> Option<Problem> {
        let (own, all) = self.counts(owner);
        let (title, rule) = match (own >= most_of_one, all >= MOST_LIVE) {
            (true, _) => (
                format!("a tenant has at most {most_of_one} sandboxes (`sandboxes`)"),
                "sandboxes",
            ),
            (false, true) => (
                format!("all tenants together have at most {MOST_LIVE} sandboxes"),
                "all_sandboxes",
            ),
            (false, false) => return None,
        };
        let hint = "end some of them with `DELETE /v1/sandboxes/{id}`".to_owned();
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "quota_exceeded",
            title,
            Some(hint),
        );
        Some(problem.ruled(format!("quota:{rule}")))
    }

    fn is_made(&mut self, outcome: &Outcome) {
        self.making
            .retain(|(_, other)| !other.same_channel(outcome));
    }

    /// All that live, and those that are being made.
    fn outcomes(&self) -> Vec<Outcome> {
        let live = self.all.values().filter(|entry| entry.ended_at().is_none());
        let live = live.map(|entry| watch::channel(Some(Ok(entry.clone()))).1);
        live.chain(self.making.iter().map(|(_, outcome)| outcome.clone()))
            .collect()
    }

    /// The sandbox that this key made already, or is making.
    fn replayed(&self, replay: &Replay, digest: &[u8]) -> Option<Answer<Outcome>> {
        let (asked, outcome) = match self.under_way.get(replay) {
            Some((asked, outcome)) => (asked, outcome.clone()),
            None => {
                let made = |entry: &Arc<Entry>| {
                    let (by, asked) = entry.replay.as_ref()?;
                    (by == replay).then(|| (asked.clone(), entry.clone()))
                };
                let (asked, entry) = self.all.values().find_map(made)?;
                let outcome = watch::channel(Some(Ok(entry))).1;
                return Some(same(&asked, digest).map(|()| outcome));
            }
        };
        Some(same(asked, digest).map(|()| outcome))
    }
}

/// What lies in the workspace by now is not kept in memory, too: it may be all that a body can carry.
fn without_inputs(mut request: SessionRequest) -> SessionRequest {
    request.run.inputs = Vec::new();
    request.run.inputs_given = Vec::new();
    request.run.inputs_kept = Vec::new();
    request
}

/// Of those that ended, which are more than one owner's or everybody's may be: the newest of every owner stays first,
/// then the second of every owner, and so on.
fn too_many(mut ended: Vec<(u64, Arc<Entry>)>, of_one: usize, of_all: usize) -> Vec<Arc<Entry>> {
    ended.sort_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.id.cmp(&b.id)));
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut placed: Vec<(usize, Arc<Entry>)> = Vec::with_capacity(ended.len());
    for (_, entry) in ended {
        let count = counts.entry(entry.owner.clone()).or_default();
        *count += 1;
        placed.push((*count, entry));
    }
    // Stable: among those of one place the newest come first.
    placed.sort_by_key(|(place, _)| *place);
    let over = |(rank, (place, entry)): (usize, (usize, Arc<Entry>))| {
        (place > of_one || rank >= of_all).then_some(entry)
    };
    placed.into_iter().enumerate().filter_map(over).collect()
}

/// The same for the database.
fn remembered(now: u64) -> Remembered {
    Remembered {
        since_ms: now.saturating_sub(REMEMBERED_MS),
        promised_since_ms: now.saturating_sub(PROMISED_MS),
        of_one: ENDED_OF_ONE as u32,
        of_all: MOST_ENDED as u32,
    }
}

/// Ends one once it is made, and waits until that is told: which, and whether it is gone. None if none was made.
async fn end_of(mut outcome: Outcome, until: tokio::time::Instant) -> Option<(String, bool)> {
    let made = async { outcome.wait_for(Option::is_some).await.ok()?.clone()?.ok() };
    let entry = match tokio::time::timeout_at(until, made).await {
        Err(_) => return Some(("that is being made".to_owned(), false)),
        Ok(made) => made?,
    };
    let ending = async {
        if let Ok(session) = entry.session() {
            session.end().await;
        }
        // Its sender lives as long as it does; where it cannot be written down that is not waited for.
        _ = entry
            .written
            .subscribe()
            .wait_for(|_| entry.ended_at().is_some())
            .await;
    };
    let gone = tokio::time::timeout_at(until, ending).await.is_ok();
    Some((entry.id.clone(), gone))
}

fn same(asked: &[u8], digest: &[u8]) -> Answer<()> {
    let hint = "an Idempotency-Key stands for one request; choose another".to_owned();
    let title = "this Idempotency-Key was used for another request";
    match asked == digest {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_spec",
            title,
            Some(hint),
        )),
    }
}

impl Gateway {
    fn known(&self) -> MutexGuard<'_, Known> {
        locked(&self.0.sandboxes.known)
    }

    /// The sandbox of this name, dead or alive, if the caller may know of it.
    pub(crate) fn entry(&self, caller: &Caller, id: &str) -> Answer<Arc<Entry>> {
        caller.require(Scope::Sandboxes)?;
        let entry = self.known().all.get(id).cloned();
        entry
            .filter(|entry| caller.sees(&entry.owner))
            .ok_or_else(|| Problem::not_found("sandbox"))
    }

    /// Whether there is a sandbox of this name, dead or alive, of which the caller may know.
    pub(crate) fn sees_sandbox(&self, caller: &Caller, id: &str) -> bool {
        self.known()
            .all
            .get(id)
            .is_some_and(|entry| caller.sees(&entry.owner))
    }

    /// The live session of this name. Using it keeps it from being idle.
    pub(super) fn session(&self, caller: &Caller, id: &str) -> Answer<Session> {
        let session = self.entry(caller, id)?.session()?;
        session.touch();
        Ok(session)
    }

    /// The same for whoever begins something in it: what is under way may finish, but nothing new begins once the CPU time of
    /// its tenant's day is used up.
    pub(super) fn session_to_work_in(&self, caller: &Caller, id: &str) -> Answer<Session> {
        let session = self.session(caller, id)?;
        self.has_cpu(&self.entry(caller, id)?.owner)?;
        Ok(session)
    }

    /// A program of a live session.
    pub(crate) fn exec(&self, caller: &Caller, id: &str, exec: &str) -> Answer<(Session, Exec)> {
        let session = self.session(caller, id)?;
        let exec = session
            .find_exec(exec)
            .ok_or_else(|| Problem::not_found("program"))?;
        Ok((session, exec))
    }

    /// All that the caller may know of, the oldest first.
    pub(super) fn entries(&self, caller: &Caller) -> Answer<Vec<Arc<Entry>>> {
        caller.require(Scope::Sandboxes)?;
        let mut known = self.known();
        known.forget();
        let mut entries: Vec<_> = known
            .all
            .values()
            .filter(|entry| caller.sees(&entry.owner))
            .cloned()
            .collect();
        drop(known);
        entries.sort_by_cached_key(|entry| (entry.state().created_at.0, entry.id.clone()));
        Ok(entries)
    }

    /// Ends all of them because the server ends, and waits until nothing is left of them; those of which something is.
    pub(crate) async fn end_sandboxes(&self) -> Vec<String> {
        self.end_all_sandboxes()
            .await
            .1
            .into_iter()
            .map(|id| format!("sandbox {id}"))
            .collect()
    }

    /// Ends all that live now or are being made: those that are gone by then, and those that are not.
    pub(crate) async fn end_all_sandboxes(&self) -> (Vec<String>, Vec<String>) {
        let until = tokio::time::Instant::now() + LONGEST_ENDING;
        let outcomes = self.known().outcomes();
        let mut ending: JoinSet<_> = outcomes
            .into_iter()
            .map(|outcome| end_of(outcome, until))
            .collect();
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        while let Some(ended) = ending.join_next().await {
            match ended {
                Ok(None) => {}
                Ok(Some((id, true))) => gone.push(id),
                Ok(Some((id, false))) => left.push(id),
                Err(_) => left.push("whose end broke off".to_owned()),
            }
        }
        (gone, left)
    }

    /// How many sandboxes a tenant may have.
    pub(crate) fn most_sandboxes(&self, tenant: &str) -> usize {
        self.quota(tenant).sandboxes.unwrap_or(MOST_OF_ONE)
    }

    /// How many it has.
    pub(crate) fn live_sandboxes(&self, tenant: &str) -> usize {
        self.known().counts(tenant).0
    }

    /// Why there is no room for one more, if there is none.
    pub(crate) fn sandboxes_full(&self, tenant: &str) -> Option<Problem> {
        self.known().full(tenant, self.most_sandboxes(tenant))
    }

    /// Whose CPU time came to be since the last look, and how much.
    pub(crate) fn sandboxes_newly_used(&self) -> Vec<(String, u64)> {
        let live: Vec<_> = self
            .known()
            .all
            .values()
            .filter(|entry| entry.ended_at().is_none())
            .cloned()
            .collect();
        let new = |entry: &Arc<Entry>| entry.counted.up_to(entry.state().usage.cpu_ms);
        live.iter()
            .map(|entry| (entry.owner.clone(), new(entry)))
            .collect()
    }

    /// Makes a sandbox, whether or not somebody still waits for it. By the same key only one is ever made.
    pub(crate) async fn open(&self, opening: Opening) -> Answer<Arc<Entry>> {
        let mut spec = self.policy().admit_session(opening.request.clone())?;
        self.node().grants(&spec.run.grants)?;
        // Whose artifacts and workspaces it reads and keeps.
        spec.run.owner = Some(crate::caller::owner_of(&opening.owner)?);
        spec.run.run_id.get_or_insert_with(engine::fresh_id);
        let needs = Needs {
            what: What::Sandbox,
            llm: spec.run.grants.llm.is_some(),
            storage: spec.run.sandbox.copy_on_write,
        };
        let may = self.may_begin(&opening.owner, needs).await;
        let mut outcome = self.begin(opening, spec, may)?;
        let done = outcome.wait_for(Option::is_some).await;
        let done = done.ok().and_then(|done| done.clone());
        done.unwrap_or_else(|| {
            Err(Problem::conflict(
                "the sandbox was not made",
                "ask for it again",
            ))
        })
    }

    fn begin(&self, opening: Opening, spec: spec::SessionSpec, may: Answer<()>) -> Answer<Outcome> {
        let replay = opening
            .replay
            .clone()
            .map(|(key, digest)| ((opening.owner.clone(), key), digest));
        let mut known = self.known();
        known.forget();
        if let Some(outcome) = replay
            .as_ref()
            .and_then(|(replay, digest)| known.replayed(replay, digest))
        {
            return outcome;
        }
        let Some(_listing) = self.may_list() else {
            return Err(Problem::closing());
        };
        let full = known.full(&opening.owner, self.most_sandboxes(&opening.owner));
        if let Some(problem) = may.err().or(full) {
            return Err(problem);
        }
        let (tell, outcome) = watch::channel(None);
        known.making.push((opening.owner.clone(), outcome.clone()));
        if let Some((replay, digest)) = &replay {
            known
                .under_way
                .insert(replay.clone(), (digest.clone(), outcome.clone()));
        }
        drop(known);
        tokio::spawn(self.clone().make(opening, spec, replay, tell));
        Ok(outcome)
    }

    /// Before anything is made: so a server that dies meanwhile makes no second one by the same key. None if one of that
    /// name lives; then the engine will refuse it.
    async fn write_down(&self, opening: &Opening, spec: &SessionSpec) -> Answer<Option<String>> {
        let id = spec
            .run
            .run_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let row = SandboxRow {
            id: id.clone(),
            owner: opening.owner.clone(),
            // Words are JSON.
            labels: serde_json::to_string(&opening.labels).unwrap_or_default(),
            backend: spec.run.sandbox.backend.name().to_owned(),
            profile: spec.run.sandbox.profile.clone(),
            created_ms: engine::now().0,
            promise: opening.replay.clone(),
            ended: None,
        };
        let day = self.days().count(&row.owner, DayUse::SANDBOX);
        let image = crate::runs::live::image(&spec.run.sandbox.root);
        let (task, job) = (spec.run.task_id.clone(), spec.run.job_id.clone());
        let add = move |writing: &Writing<'_>| {
            writing.add_to_day(&row.owner, day, DayUse::SANDBOX)?;
            let added = writing.add_sandbox(&row)?;
            if added {
                writing.add_container(&NewContainer {
                    id: &row.id,
                    owner: &row.owner,
                    runtime: &row.backend,
                    image: &image,
                    task: task.as_ref().map(|task| task.as_str()),
                    job: job.as_ref().map(|job| job.as_str()),
                    labels: &row.labels,
                    trace: None,
                    at_ms: row.created_ms,
                })?;
            }
            Ok(added)
        };
        let added = self.writer().write(add).await?;
        Ok(added.then_some(id))
    }

    /// Takes up what a server before us wrote down.
    pub(crate) fn recall_sandboxes(&self) -> Result<(), DatabaseError> {
        let now = engine::now().0;
        let rows = self.served().lost_sandboxes(now, &remembered(now))?;
        let mut known = self.known();
        for row in rows {
            let entry = Entry::recalled(row);
            known.all.insert(entry.id.clone(), Arc::new(entry));
        }
        known.forget();
        Ok(())
    }

    async fn make(
        self,
        opening: Opening,
        spec: spec::SessionSpec,
        replay: Option<(Replay, Vec<u8>)>,
        tell: watch::Sender<Option<Answer<Arc<Entry>>>>,
    ) {
        let made = match self.write_down(&opening, &spec).await {
            Ok(written) => self.opened(&opening, spec, written).await,
            Err(problem) => Err(problem),
        };
        let mut known = self.known();
        known.is_made(&tell.subscribe());
        if let Some((replay, _)) = &replay {
            known.under_way.remove(replay);
        }
        let outcome = made.map(|session| {
            let entry = Arc::new(Entry {
                id: session.id().to_string(),
                owner: opening.owner,
                labels: opening.labels,
                replay,
                held: Mutex::new(Held::Live(
                    session.clone(),
                    Box::new(without_inputs(opening.request)),
                )),
                counted: Counted::default(),
                written: watch::Sender::new(false),
            });
            known.all.insert(entry.id.clone(), entry.clone());
            self.metrics().sandboxes.inc();
            self.note_happened(&Line {
                what: "sandbox.made",
                tenant: &entry.owner,
                run: &entry.id,
                ..Line::default()
            });
            self.metrics().container("created");
            self.recorder().started(&entry.id);
            tokio::spawn(self.clone().remember(entry.clone(), session));
            entry
        });
        drop(known);
        tell.send_replace(Some(outcome));
    }

    /// The session itself. One that could not be made is not remembered.
    async fn opened(
        &self,
        opening: &Opening,
        spec: SessionSpec,
        written: Option<String>,
    ) -> Answer<Session> {
        let made = match &opening.fork_of {
            Some(of) => self.engine().fork_session(of, spec).await,
            None => self.engine().open_session(spec).await,
        };
        if let (Err(_), Some(id)) = (&made, written) {
            // If it cannot be forgotten now, the next start of the server will find it without an end, and say `lost`.
            let forget = move |writing: &Writing<'_>| {
                writing.drop_sandbox(&id)?;
                writing.drop_container(&id)
            };
            _ = self.writer().write(forget).await;
        }
        Ok(made?)
    }

    /// Waits for its end; then only how it ended is kept.
    async fn remember(self, entry: Arc<Entry>, session: Session) {
        let mut state = session.ended().await;
        // Nobody but the server has asked for it then.
        if self.is_closing() && state.ended == Some(SessionEnd::Asked) {
            state.ended = Some(SessionEnd::ServerStopped);
        }
        let written = self.write_end(&entry, &state).await;
        self.note_end(&entry, &session, &state);
        *locked(&entry.held) = Held::Ended(Box::new(state));
        entry.written.send_replace(written);
        self.metrics().sandboxes.dec();
        self.metrics().container("exited");
    }

    /// What it was denied, and how it ended.
    fn note_end(&self, entry: &Entry, session: &Session, state: &SessionState) {
        let (tenant, run) = (entry.owner.as_str(), entry.id.as_str());
        let task = session
            .spec()
            .run
            .task_id
            .as_ref()
            .map_or("", |task| task.as_str());
        let of = crate::audit::Of {
            tenant,
            run,
            task,
            job: "",
        };
        let of_programs: Vec<_> = session
            .execs()
            .iter()
            .filter_map(|exec| exec.result())
            .flat_map(|result| result.denials)
            .collect();
        let left_out = self.note_denials(&of, state.denials.iter().chain(&of_programs));
        let mut about = wire::reason(state.ended.unwrap_or(SessionEnd::Lost)).to_owned();
        if left_out > 0 {
            about += &format!("; {left_out} denials were left out");
        }
        let line = Line {
            what: "sandbox.ended",
            tenant,
            run,
            task,
            about: &about,
            ..Line::default()
        };
        self.note_happened(&line);
    }

    /// Tries until it is written, or the server ends: then the next start of it will find one without an end, and say
    /// `lost`. Until then it counts as one that lives, so no more of them wait for a disk without room than may live.
    async fn write_end(&self, entry: &Entry, state: &SessionState) -> bool {
        let why = state.ended.unwrap_or(SessionEnd::Lost);
        let now = engine::now().0;
        let used = DayUse::cpu(entry.counted.up_to(state.usage.cpu_ms));
        let day = self.days().count(&entry.owner, used);
        let mut pause = FIRST_PAUSE;
        while !self.try_to_write_end(entry, why, now, (day, used)).await {
            if self.is_closing() {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        true
    }

    async fn try_to_write_end(
        &self,
        entry: &Entry,
        why: SessionEnd,
        now: u64,
        (day, used): (Day, DayUse),
    ) -> bool {
        let (id, owner) = (entry.id.clone(), entry.owner.clone());
        let is_time = self
            .0
            .sandboxes
            .ends
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(FORGOTTEN_EVERY);
        let end = move |writing: &Writing<'_>| {
            writing.add_to_day(&owner, day, used)?;
            writing.end_sandbox(&id, wire::reason(why), now)?;
            let status = if why == SessionEnd::Lost {
                "lost"
            } else {
                "exited"
            };
            let (stopped_ms, removed_ms) = (now, now);
            let end = ContainerEnd {
                status,
                exit_code: None,
                started_ms: None,
                stopped_ms,
                removed_ms,
            };
            writing.end_container(&id, &end)?;
            if is_time {
                writing.forget_sandboxes(&remembered(now))
            } else {
                Ok(())
            }
        };
        self.writer().write(end).await.is_ok()
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
