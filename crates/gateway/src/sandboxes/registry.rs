//! Registry of sandboxes and their owners. Ended sandboxes are kept for a while without their
//! contents. Each sandbox is stored before it is created, so that after a restart those that died
//! with the server are `lost`.

use super::wire::{self, Labels, SandboxState};
use crate::{
    Caller, Gateway, Problem, Scope,
    problem::Answer,
    tenants::{HighWaterMark, ResourceDemand, WorkKind, memory_of},
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
    audit::AuditEntry,
    server_database::{
        IDEMPOTENCY_WINDOW_MS, SandboxRetention, SandboxRow, TenantActivity, WriteTransaction,
    },
    telemetry::{ContainerEnd, NewContainer},
};
use tokio::{sync::watch, task::JoinSet};

/// Maximum number of live sandboxes.
const MAX_LIVE: usize = 4096;
/// The same for one tenant, unless its quota says otherwise.
const DEFAULT_MAX_PER_TENANT: usize = 2048;
/// Maximum number of ended sandboxes that are kept, of one tenant and of all. The tenant with the
/// most loses its oldest first.
const MAX_ENDED_PER_TENANT: usize = 1024;
const MAX_ENDED: usize = 8192;
/// Retention of ended sandboxes; one with an Idempotency-Key is kept as long as the key is valid.
const RETENTION_MS: u64 = 3_600_000;
/// Exponential backoff of writing an end: first and maximum pause.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Timeout for ending one sandbox, or all of them. It usually takes far less; this is for a hanging
/// machine.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of ends between two prunings of the database.
const PRUNE_EVERY: u32 = 64;

/// The sandboxes of this server.
#[derive(Debug, Default)]
pub(crate) struct SandboxRegistry {
    registry: Mutex<RegistryState>,
    /// Number of stored ends.
    ends: AtomicU32,
}

#[derive(Debug, Default)]
struct RegistryState {
    all: BTreeMap<String, Arc<SandboxEntry>>,
    /// Pending creations by idempotency key, so that a key creates only one sandbox.
    under_way: HashMap<IdempotencyKey, (Vec<u8>, CreationResult)>,
    /// All pending creations.
    pending: Vec<PendingSandbox>,
}

/// A sandbox that is being created.
#[derive(Debug)]
struct PendingSandbox {
    owner: String,
    /// Memory limit.
    memory: u64,
    outcome: CreationResult,
}

/// The result of a creation, for all callers with the same key.
type CreationResult = watch::Receiver<Option<Answer<Arc<SandboxEntry>>>>;

/// Tenant and idempotency key.
pub(super) type IdempotencyKey = (String, String);

/// A sandbox, live or ended.
#[derive(Debug)]
pub(crate) struct SandboxEntry {
    pub(crate) id: String,
    owner: String,
    /// Memory limit while it lives.
    memory: u64,
    pub(crate) labels: Labels,
    /// The idempotency key that created it, and the digest of its request.
    idempotency: Option<(IdempotencyKey, Vec<u8>)>,
    state: Mutex<EntryState>,
    /// How much of its CPU time is counted for the tenant's day.
    counted_cpu: HighWaterMark,
    /// Whether the end is stored.
    written: watch::Sender<bool>,
}

#[derive(Debug)]
enum EntryState {
    /// With the original request, for forks.
    Live(Session, Box<SessionRequest>),
    Ended(Box<SessionState>),
}

/// A request for a sandbox.
#[derive(Debug)]
pub(crate) struct NewSandbox {
    pub(crate) owner: String,
    /// The caller is an admin.
    pub(crate) is_of_admin: bool,
    pub(crate) labels: Labels,
    pub(crate) request: SessionRequest,
    /// The session whose workspace is copied.
    pub(crate) fork_of: Option<Session>,
    /// Idempotency key, and the digest of the request.
    pub(crate) idempotency: Option<(String, Vec<u8>)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SandboxEntry {
    pub(crate) fn state(&self) -> SessionState {
        match &*locked(&self.state) {
            EntryState::Live(session, _) => session.state(),
            EntryState::Ended(state) => (**state).clone(),
        }
    }

    pub(super) fn view(&self) -> SandboxState {
        SandboxState::new(&self.id, &self.labels, self.state())
    }

    /// The live session; 410 if it has ended.
    pub(crate) fn session(&self) -> Answer<Session> {
        let session = match &*locked(&self.state) {
            EntryState::Live(session, _) => session.clone(),
            EntryState::Ended(state) => return Err(wire::gone_problem(state)),
        };
        let state = session.state();
        match state.ended {
            Some(_) => Err(wire::gone_problem(&state)),
            None => Ok(session),
        }
    }

    /// Ends the sandbox: 200 when it has ended, 202 after the timeout. `applies` tells whether the
    /// changes of its workspace are applied.
    pub(crate) async fn end_soon(&self, applies: Option<bool>) -> StatusCode {
        match tokio::time::timeout(END_TIMEOUT, self.end(applies)).await {
            Ok(()) => StatusCode::OK,
            Err(_) => StatusCode::ACCEPTED,
        }
    }

    /// Ends the sandbox and waits until that is stored: a reported end is not taken back by a
    /// restart.
    async fn end(&self, applies: Option<bool>) {
        if let Ok(session) = self.session() {
            session.end_and_apply(applies).await;
        }
        // The sender is part of `self` and cannot be gone.
        _ = self.written.subscribe().wait_for(|written| *written).await;
    }

    /// The original request, if the sandbox is live.
    pub(super) fn request(&self) -> Answer<SessionRequest> {
        match &*locked(&self.state) {
            EntryState::Live(_, request) => Ok((**request).clone()),
            EntryState::Ended(state) => Err(wire::gone_problem(state)),
        }
    }

    /// A sandbox of a previous server.
    fn from_row(row: SandboxRow) -> SandboxEntry {
        let (ended_at, reason) = row.ended.unwrap_or_default();
        let created_at = Timestamp(row.created_ms);
        let ended_at = Timestamp(ended_at);
        let state = SessionState {
            is_asked_to_pause: false,
            status: SessionStatus::Ended,
            ended: Some(wire::parse_end(&reason)),
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
            not_applied: None,
            notes: vec![
                "its server has ended since; what it used is not known any more".to_owned(),
            ],
        };
        let owner = row.owner;
        SandboxEntry {
            id: row.id,
            memory: 0,
            labels: serde_json::from_str(&row.labels).unwrap_or_default(),
            idempotency: row
                .idempotency_key
                .map(|(key, body)| ((owner.clone(), key), body)),
            owner,
            state: Mutex::new(EntryState::Ended(Box::new(state))),
            counted_cpu: HighWaterMark::default(),
            written: watch::Sender::new(true),
        }
    }

    fn retention_ms(&self) -> u64 {
        if self.idempotency.is_some() {
            IDEMPOTENCY_WINDOW_MS
        } else {
            RETENTION_MS
        }
    }

    fn ended_at(&self) -> Option<u64> {
        match &*locked(&self.state) {
            EntryState::Live(..) => None,
            EntryState::Ended(state) => state.ended_at.map(|at| at.0),
        }
    }
}

impl RegistryState {
    /// Removes ended sandboxes that are too old or too many.
    fn prune(&mut self) {
        let now = engine::now().0;
        self.all.retain(|_, entry| {
            entry
                .ended_at()
                .is_none_or(|at| at + entry.retention_ms() > now)
        });
        let ended = |entry: &Arc<SandboxEntry>| entry.ended_at().map(|at| (at, entry.clone()));
        let ended: Vec<_> = self.all.values().filter_map(ended).collect();
        if ended.len() > MAX_ENDED_PER_TENANT {
            for entry in excess(ended, MAX_ENDED_PER_TENANT, MAX_ENDED) {
                self.all.remove(&entry.id);
            }
        }
    }

    /// Sandboxes of this tenant, and of all. Pending ones count, too, so that concurrent requests
    /// cannot pass the limit.
    fn counts(&self, owner: &str) -> (usize, usize) {
        let live = || self.all.values().filter(|entry| entry.ended_at().is_none());
        let all = live().count() + self.pending.len();
        let own = live().filter(|entry| entry.owner == owner).count();
        (
            own + self.pending.iter().filter(|one| one.owner == owner).count(),
            all,
        )
    }

    /// Sum of the memory limits of this tenant's live and pending sandboxes.
    fn memory_of(&self, owner: &str) -> u64 {
        let live = self.all.values();
        let live = live.filter(|entry| entry.owner == owner && entry.ended_at().is_none());
        let pending = self.pending.iter().filter(|one| one.owner == owner);
        live.map(|entry| entry.memory).sum::<u64>() + pending.map(|one| one.memory).sum::<u64>()
    }

    /// The refusal if a limit is reached.
    fn full(&self, owner: &str, max_per_tenant: usize) -> Option<Problem> {
        let (own, all) = self.counts(owner);
        let (title, rule) = match (own >= max_per_tenant, all >= MAX_LIVE) {
            (true, _) => (
                format!("a tenant has at most {max_per_tenant} sandboxes (`sandboxes`)"),
                "sandboxes",
            ),
            (false, true) => (
                format!("all tenants together have at most {MAX_LIVE} sandboxes"),
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
        Some(problem.with_rule(format!("quota:{rule}")))
    }

    fn remove_pending(&mut self, outcome: &CreationResult) {
        self.pending
            .retain(|other| !other.outcome.same_channel(outcome));
    }

    /// The live and pending sandboxes.
    fn creations(&self) -> Vec<CreationResult> {
        let live = self.all.values().filter(|entry| entry.ended_at().is_none());
        let live = live.map(|entry| watch::channel(Some(Ok(entry.clone()))).1);
        live.chain(self.pending.iter().map(|one| one.outcome.clone()))
            .collect()
    }

    /// The sandbox that this idempotency key has created or is creating.
    fn existing(
        &self,
        idempotency: &IdempotencyKey,
        digest: &[u8],
    ) -> Option<Answer<CreationResult>> {
        let (previous, outcome) = match self.under_way.get(idempotency) {
            Some((previous, outcome)) => (previous, outcome.clone()),
            None => {
                let made = |entry: &Arc<SandboxEntry>| {
                    let (by, previous) = entry.idempotency.as_ref()?;
                    (by == idempotency).then(|| (previous.clone(), entry.clone()))
                };
                let (previous, entry) = self.all.values().find_map(made)?;
                let outcome = watch::channel(Some(Ok(entry))).1;
                return Some(check_same_request(&previous, digest).map(|()| outcome));
            }
        };
        Some(check_same_request(previous, digest).map(|()| outcome))
    }
}

/// Inputs are in the workspace by now; they may be as large as a body and are not kept in memory.
fn without_inputs(mut request: SessionRequest) -> SessionRequest {
    request.run.inputs = Vec::new();
    request.run.inline_inputs = Vec::new();
    request.run.artifact_inputs = Vec::new();
    request
}

/// The ended sandboxes above the limits. They are ranked round-robin: the newest of each owner
/// first, then the second of each, and so on.
fn excess(
    mut ended: Vec<(u64, Arc<SandboxEntry>)>,
    of_one: usize,
    of_all: usize,
) -> Vec<Arc<SandboxEntry>> {
    ended.sort_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.id.cmp(&b.id)));
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<(usize, Arc<SandboxEntry>)> = Vec::with_capacity(ended.len());
    for (_, entry) in ended {
        let count = counts.entry(entry.owner.clone()).or_default();
        *count += 1;
        ranked.push((*count, entry));
    }
    // Stable sort: within a rank the newest come first.
    ranked.sort_by_key(|(place, _)| *place);
    let over = |(rank, (place, entry)): (usize, (usize, Arc<SandboxEntry>))| {
        (place > of_one || rank >= of_all).then_some(entry)
    };
    ranked.into_iter().enumerate().filter_map(over).collect()
}

/// The same retention for the database.
fn retention(now: u64) -> SandboxRetention {
    SandboxRetention {
        ended_since_ms: now.saturating_sub(RETENTION_MS),
        idempotent_since_ms: now.saturating_sub(IDEMPOTENCY_WINDOW_MS),
        max_per_owner: MAX_ENDED_PER_TENANT as u32,
        max_total: MAX_ENDED as u32,
    }
}

/// Ends a sandbox once it is created, within the deadline; returns its id and whether it is gone.
/// `None` if it was not created.
async fn end_sandbox(
    mut outcome: CreationResult,
    until: tokio::time::Instant,
) -> Option<(String, bool)> {
    let made = async { outcome.wait_for(Option::is_some).await.ok()?.clone()?.ok() };
    let entry = match tokio::time::timeout_at(until, made).await {
        Err(_) => return Some(("that is being made".to_owned(), false)),
        Ok(made) => made?,
    };
    let ending = async {
        if let Ok(session) = entry.session() {
            session.end().await;
        }
        // The sender is part of the entry; the end need not be stored.
        _ = entry
            .written
            .subscribe()
            .wait_for(|_| entry.ended_at().is_some())
            .await;
    };
    let gone = tokio::time::timeout_at(until, ending).await.is_ok();
    Some((entry.id.clone(), gone))
}

fn check_same_request(previous: &[u8], digest: &[u8]) -> Answer<()> {
    let hint = "an Idempotency-Key stands for one request; choose another".to_owned();
    let title = "this Idempotency-Key was used for another request";
    if previous == digest {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_spec",
            title,
            Some(hint),
        ))
    }
}

impl Gateway {
    fn registry(&self) -> MutexGuard<'_, RegistryState> {
        locked(&self.0.sandboxes.registry)
    }

    /// The sandbox of this id, live or ended, if the caller may see it.
    pub(crate) fn entry(&self, caller: &Caller, id: &str) -> Answer<Arc<SandboxEntry>> {
        caller.require(Scope::Sandboxes)?;
        let entry = self.registry().all.get(id).cloned();
        entry
            .filter(|entry| caller.sees(&entry.owner))
            .ok_or_else(|| Problem::not_found("sandbox"))
    }

    /// Whether a sandbox of this id exists, live or ended, that the caller may see.
    pub(crate) fn sees_sandbox(&self, caller: &Caller, id: &str) -> bool {
        self.registry()
            .all
            .get(id)
            .is_some_and(|entry| caller.sees(&entry.owner))
    }

    /// The live session of this id. Using it resets its idle timer.
    pub(super) fn session(&self, caller: &Caller, id: &str) -> Answer<Session> {
        let session = self.entry(caller, id)?.session()?;
        session.touch();
        Ok(session)
    }

    /// The same for starting new work: refused when the tenant's CPU time of the day is used up.
    /// Active work may finish.
    pub(super) fn session_for_work(&self, caller: &Caller, id: &str) -> Answer<Session> {
        let session = self.session(caller, id)?;
        self.check_cpu(&self.entry(caller, id)?.owner)?;
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

    /// The sandboxes that the caller may see, oldest first.
    pub(super) fn entries(&self, caller: &Caller) -> Answer<Vec<Arc<SandboxEntry>>> {
        caller.require(Scope::Sandboxes)?;
        let mut registry = self.registry();
        registry.prune();
        let mut entries: Vec<_> = registry
            .all
            .values()
            .filter(|entry| caller.sees(&entry.owner))
            .cloned()
            .collect();
        drop(registry);
        entries.sort_by_cached_key(|entry| (entry.state().created_at.0, entry.id.clone()));
        Ok(entries)
    }

    /// Ends all sandboxes at shutdown; returns those that are left.
    pub(crate) async fn end_sandboxes(&self) -> Vec<String> {
        self.end_all_sandboxes()
            .await
            .1
            .into_iter()
            .map(|id| format!("sandbox {id}"))
            .collect()
    }

    /// Ends all live and pending sandboxes; returns the ended ones and those that are left.
    pub(crate) async fn end_all_sandboxes(&self) -> (Vec<String>, Vec<String>) {
        let until = tokio::time::Instant::now() + END_TIMEOUT;
        let outcomes = self.registry().creations();
        let mut ending: JoinSet<_> = outcomes
            .into_iter()
            .map(|outcome| end_sandbox(outcome, until))
            .collect();
        let mut gone = Vec::new();
        let mut left = Vec::new();
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

    /// Maximum number of sandboxes of a tenant.
    pub(crate) fn max_sandboxes(&self, tenant: &str) -> usize {
        self.quota(tenant)
            .sandboxes
            .unwrap_or(DEFAULT_MAX_PER_TENANT)
    }

    /// Number of live sandboxes of a tenant.
    pub(crate) fn live_sandboxes(&self, tenant: &str) -> usize {
        self.registry().counts(tenant).0
    }

    /// The refusal if a limit is reached.
    pub(crate) fn sandboxes_full(&self, tenant: &str) -> Option<Problem> {
        self.registry().full(tenant, self.max_sandboxes(tenant))
    }

    /// Sum of the memory limits of a tenant's sandboxes.
    pub(crate) fn memory_of_sandboxes(&self, tenant: &str) -> u64 {
        self.registry().memory_of(tenant)
    }

    /// CPU time since the last call, per sandbox with its tenant.
    pub(crate) fn take_new_sandbox_cpu_time(&self) -> Vec<(String, u64)> {
        let live: Vec<_> = self
            .registry()
            .all
            .values()
            .filter(|entry| entry.ended_at().is_none())
            .cloned()
            .collect();
        let new =
            |entry: &Arc<SandboxEntry>| entry.counted_cpu.advance_to(entry.state().usage.cpu_ms);
        live.iter()
            .map(|entry| (entry.owner.clone(), new(entry)))
            .collect()
    }

    /// Creates a sandbox, even if the client disconnects. An idempotency key creates at most one.
    pub(crate) async fn open(&self, new_sandbox: NewSandbox) -> Answer<Arc<SandboxEntry>> {
        let policy = if new_sandbox.is_of_admin {
            self.policy()
        } else {
            self.policy_of_keys()
        };
        let mut spec = policy.admit_session(new_sandbox.request.clone())?;
        self.node().check_grants(&spec.run.grants)?;
        // The owner of the artifacts and workspaces that it uses and keeps.
        spec.run.owner = Some(crate::caller::owner_of(&new_sandbox.owner)?);
        spec.run.run_id.get_or_insert_with(engine::fresh_id);
        let needs = ResourceDemand {
            what: WorkKind::Sandbox,
            llm: spec.run.grants.llm.is_some(),
            storage: spec.run.sandbox.copy_on_write,
            memory: if new_sandbox.is_of_admin {
                0
            } else {
                memory_of(&spec.run)
            },
        };
        let quota_check = self.check_quota(&new_sandbox.owner, needs).await;
        let mut outcome = self.begin(new_sandbox, spec, quota_check)?;
        let done = outcome.wait_for(Option::is_some).await;
        let done = done.ok().and_then(|done| done.clone());
        done.unwrap_or_else(|| {
            Err(Problem::conflict(
                "the sandbox was not made",
                "ask for it again",
            ))
        })
    }

    fn begin(
        &self,
        new_sandbox: NewSandbox,
        spec: spec::SessionSpec,
        quota_check: Answer<()>,
    ) -> Answer<CreationResult> {
        let idempotency = new_sandbox
            .idempotency
            .clone()
            .map(|(key, digest)| ((new_sandbox.owner.clone(), key), digest));
        let mut registry = self.registry();
        registry.prune();
        if let Some(outcome) = idempotency
            .as_ref()
            .and_then(|(idempotency, digest)| registry.existing(idempotency, digest))
        {
            return outcome;
        }
        let Some(_listing) = self.admission_permit() else {
            return Err(Problem::shutting_down());
        };
        let full = registry.full(&new_sandbox.owner, self.max_sandboxes(&new_sandbox.owner));
        if let Some(problem) = quota_check.err().or(full) {
            return Err(problem);
        }
        let memory = memory_of(&spec.run);
        if !new_sandbox.is_of_admin {
            let runs = self.runs().memory_of(&new_sandbox.owner);
            let taken = runs.saturating_add(registry.memory_of(&new_sandbox.owner));
            self.check_memory(&new_sandbox.owner, taken, memory)?;
        }
        let (sender, outcome) = watch::channel(None);
        registry.pending.push(PendingSandbox {
            owner: new_sandbox.owner.clone(),
            memory,
            outcome: outcome.clone(),
        });
        if let Some((idempotency, digest)) = &idempotency {
            registry
                .under_way
                .insert(idempotency.clone(), (digest.clone(), outcome.clone()));
        }
        drop(registry);
        tokio::spawn(self.clone().make(new_sandbox, spec, idempotency, sender));
        Ok(outcome)
    }

    /// Stores the sandbox before it is created, so that a crash does not let its idempotency key
    /// create a second one. `None` if the id is in use; the engine then refuses it.
    async fn write_row(
        &self,
        new_sandbox: &NewSandbox,
        spec: &SessionSpec,
    ) -> Answer<Option<String>> {
        let id = spec
            .run
            .run_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let row = SandboxRow {
            id: id.clone(),
            owner: new_sandbox.owner.clone(),
            // A map of strings is always valid JSON.
            labels: serde_json::to_string(&new_sandbox.labels).unwrap_or_default(),
            backend: spec.run.sandbox.backend.name().to_owned(),
            profile: spec.run.sandbox.profile.clone(),
            created_ms: engine::now().0,
            idempotency_key: new_sandbox.idempotency.clone(),
            ended: None,
        };
        let day = self
            .daily_usage()
            .count(&row.owner, TenantActivity::ONE_SANDBOX);
        let image = crate::runs::active::image(&spec.run.sandbox.root);
        let task = spec.run.task_id.clone();
        let job = spec.run.job_id.clone();
        let add = move |transaction: &WriteTransaction<'_>| {
            transaction.add_tenant_activity(&row.owner, day, TenantActivity::ONE_SANDBOX)?;
            let added = transaction.add_sandbox(&row)?;
            if added {
                transaction.add_container(&NewContainer {
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

    /// Restores what a previous server stored.
    pub(crate) fn restore_sandboxes(&self) -> Result<(), DatabaseError> {
        let now = engine::now().0;
        let rows = self.database().recover_sandboxes(now, &retention(now))?;
        let mut registry = self.registry();
        for row in rows {
            let entry = SandboxEntry::from_row(row);
            registry.all.insert(entry.id.clone(), Arc::new(entry));
        }
        registry.prune();
        Ok(())
    }

    async fn make(
        self,
        new_sandbox: NewSandbox,
        spec: spec::SessionSpec,
        idempotency: Option<(IdempotencyKey, Vec<u8>)>,
        sender: watch::Sender<Option<Answer<Arc<SandboxEntry>>>>,
    ) {
        let made = match self.write_row(&new_sandbox, &spec).await {
            Ok(written) => self.open_session(&new_sandbox, spec, written).await,
            Err(problem) => Err(problem),
        };
        let mut registry = self.registry();
        registry.remove_pending(&sender.subscribe());
        if let Some((idempotency, _)) = &idempotency {
            registry.under_way.remove(idempotency);
        }
        let outcome = made.map(|session| {
            let entry = Arc::new(SandboxEntry {
                id: session.id().to_string(),
                owner: new_sandbox.owner,
                memory: memory_of(&session.spec().run),
                labels: new_sandbox.labels,
                idempotency,
                state: Mutex::new(EntryState::Live(
                    session.clone(),
                    Box::new(without_inputs(new_sandbox.request)),
                )),
                counted_cpu: HighWaterMark::default(),
                written: watch::Sender::new(false),
            });
            registry.all.insert(entry.id.clone(), entry.clone());
            self.metrics().sandboxes.inc();
            self.audit_event(&AuditEntry {
                what: "sandbox.made",
                tenant: &entry.owner,
                run: &entry.id,
                ..AuditEntry::default()
            });
            self.metrics().container("created");
            self.recorder().started(&entry.id);
            tokio::spawn(self.clone().watch_end(entry.clone(), session));
            entry
        });
        drop(registry);
        sender.send_replace(Some(outcome));
    }

    /// Opens the session. A failed one is removed from the database.
    async fn open_session(
        &self,
        new_sandbox: &NewSandbox,
        spec: SessionSpec,
        written: Option<String>,
    ) -> Answer<Session> {
        let made = match &new_sandbox.fork_of {
            Some(of) => self.engine().fork_session(of, spec).await,
            None => self.engine().open_session(spec).await,
        };
        if let (Err(_), Some(id)) = (&made, written) {
            // If it cannot be removed now, the next server marks it as `lost`.
            let forget = move |transaction: &WriteTransaction<'_>| {
                transaction.remove_sandbox(&id)?;
                transaction.remove_container(&id)
            };
            _ = self.writer().write(forget).await;
        }
        Ok(made?)
    }

    /// Waits for the end of the session, then keeps only its final state.
    async fn watch_end(self, entry: Arc<SandboxEntry>, session: Session) {
        let mut state = session.ended().await;
        // During shutdown only the server ends sessions.
        if self.is_closing() && state.ended == Some(SessionEnd::Asked) {
            state.ended = Some(SessionEnd::ServerStopped);
        }
        let written = self.write_end(&entry, &state).await;
        self.audit_end(&entry, &session, &state);
        *locked(&entry.state) = EntryState::Ended(Box::new(state));
        entry.written.send_replace(written);
        self.metrics().sandboxes.dec();
        self.metrics().container("exited");
    }

    /// Writes the denials and the end to the audit log.
    fn audit_end(&self, entry: &SandboxEntry, session: &Session, state: &SessionState) {
        let tenant = entry.owner.as_str();
        let run = entry.id.as_str();
        let task = session
            .spec()
            .run
            .task_id
            .as_ref()
            .map_or("", |task| task.as_str());
        let run_ref = crate::audit::RunRef {
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
        let left_out = self.audit_denials(&run_ref, state.denials.iter().chain(&of_programs));
        let mut about = wire::end_reason(state.ended.unwrap_or(SessionEnd::Lost)).to_owned();
        if left_out > 0 {
            about += &format!("; {left_out} denials were left out");
        }
        let line = AuditEntry {
            what: "sandbox.ended",
            tenant,
            run,
            task,
            about: &about,
            ..AuditEntry::default()
        };
        self.audit_event(&line);
    }

    /// Stores the end, retrying until the server shuts down; the next server then marks it as
    /// `lost`. Until then the sandbox counts as live, which bounds the number of writes that wait
    /// for a full disk.
    async fn write_end(&self, entry: &SandboxEntry, state: &SessionState) -> bool {
        let why = state.ended.unwrap_or(SessionEnd::Lost);
        let now = engine::now().0;
        let used = TenantActivity::cpu_time(entry.counted_cpu.advance_to(state.usage.cpu_ms));
        let day = self.daily_usage().count(&entry.owner, used);
        let mut pause = MIN_RETRY_PAUSE;
        while !self.try_write_end(entry, why, now, (day, used)).await {
            if self.is_closing() {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
        }
        true
    }

    async fn try_write_end(
        &self,
        entry: &SandboxEntry,
        why: SessionEnd,
        now: u64,
        (day, used): (Day, TenantActivity),
    ) -> bool {
        let id = entry.id.clone();
        let owner = entry.owner.clone();
        let is_time = self
            .0
            .sandboxes
            .ends
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(PRUNE_EVERY);
        let end = move |transaction: &WriteTransaction<'_>| {
            transaction.add_tenant_activity(&owner, day, used)?;
            transaction.end_sandbox(&id, wire::end_reason(why), now)?;
            let status = if why == SessionEnd::Lost {
                "lost"
            } else {
                "exited"
            };
            let stopped_ms = now;
            let removed_ms = now;
            let end = ContainerEnd {
                status,
                exit_code: None,
                started_ms: None,
                stopped_ms,
                removed_ms,
            };
            transaction.end_container(&id, &end)?;
            if is_time {
                transaction.prune_sandboxes(&retention(now))
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
