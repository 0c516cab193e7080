//! The doors of one run: host-side proxies that are opened before the sandbox is created, served
//! while it runs, and closed and accounted for at the end.
//!
//! The listeners are created inside the sandbox's network namespace; that identifies the caller.

use crate::{
    Engine, Inner, control,
    egress::{self, OpenEgress},
    path_guard,
};
use doors::{
    DoorKind, DoorListener, DoorSession, Doors, OpenError, SessionReport, SessionTerms,
    SessionToken,
    budget::{
        AccountLevel, AccountLimits, BudgetAccount, BudgetManager, DailyBudget, limits_for_tenant,
    },
    catalogue::Provider,
    dialect::Dialect,
    egress::Egress,
    ledger::{Ledger, RunIdentity},
    secrets::KeySource,
};
use sandbox::InterceptSockets;
use sha2::{Digest, Sha256};
use spec::{
    Access, Budget, EnvName, ErrorCode, ErrorInfo, Id, InsidePath, LimitName, LlmGrant, LlmUsage,
    ModelPattern, Mount, RunResult, RunSpec,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    net::TcpListener,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

/// The settings with which doors are opened.
#[derive(Clone, Debug, Default)]
pub struct DoorSettings {
    /// The providers, models and prices.
    pub catalogue: doors::catalogue::Catalogue,
    /// The secret store.
    pub secrets: doors::secrets::Secrets,
    /// The models of the node's own inference server that may be used; all if empty.
    pub inference_models: Vec<ModelPattern>,
    /// How durable ledger writes are.
    pub durability: doors::ledger::Durability,
    /// The settings of egress doors.
    pub egress: doors::egress::EgressSettings,
    /// The budgets that all runs of a server share. Without them each run has a ledger and an
    /// account of its own.
    pub till: Option<BudgetManager>,
    /// The budget of each tenant by name; `*` is the default.
    pub tenants: BTreeMap<String, AccountLimits>,
}

impl DoorSettings {
    /// Default settings with a secret store in the state folder.
    pub(crate) fn new(state: &Path) -> DoorSettings {
        let secrets = doors::secrets::Secrets {
            folder: state.join("secrets"),
            ..Default::default()
        };
        DoorSettings {
            secrets,
            ..DoorSettings::default()
        }
    }

    /// The account that a tenant's calls are charged to; none where no server owns the ledger.
    fn account(&self, tenant: &str) -> Option<BudgetAccount> {
        let nothing = || AccountLimits {
            level: AccountLevel::Tenant,
            name: tenant.to_owned(),
            ..AccountLimits::default()
        };
        let terms = limits_for_tenant(&self.tenants, tenant).unwrap_or_else(nothing);
        self.till
            .as_ref()
            .filter(|_| !tenant.is_empty())
            .map(|till| till.open_account(terms, None))
    }

    /// The daily budget of a tenant and what is spent of it.
    pub(crate) fn day(&self, tenant: &str) -> Option<DailyBudget> {
        let account = self.account(tenant)?;
        self.till.as_ref().map(|till| till.daily_budget(&account))
    }

    /// Stops all spending of a server while its disk is full.
    pub(crate) fn spend_nothing_while(&self, is_full: Arc<AtomicBool>) {
        if let Some(till) = &self.till {
            till.spend_nothing_while(is_full);
        }
    }

    /// Switches a server's ledger to the segment of a day.
    pub(crate) fn begin_day(&self, state: &Path, today: spec::Day) -> io::Result<()> {
        let Some(till) = &self.till else {
            return Ok(());
        };
        crate::usage::begin_day(till, state, self.durability, today)
    }
}

/// An older socket has a listener, or its owner is gone.
const MIN_SWEEP_AGE: Duration = Duration::from_secs(10);
/// The path of the inference door's socket, inside.
const INFERENCE_SOCKET: &str = "/airlock/inference.sock";

/// The longest id that fits into a socket address, behind a folder's handle.
const MAX_ID_BYTES: usize = 64;

/// The file name of a door file. A long id is replaced by a digest, with a prefix that no id has.
pub(crate) fn door_file_name(id: &Id, extension: &str) -> String {
    if id.as_str().len() <= MAX_ID_BYTES {
        return format!("{id}.{extension}");
    }
    let digest = Sha256::digest(id.as_str());
    let digest: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("+{digest}.{extension}")
}

/// A door file that is removed on drop, so that nothing is left if a later step fails.
#[derive(Debug)]
pub(crate) struct RemoveOnDrop(pub(crate) PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // A file that stays is removed by the sweep.
        _ = fs::remove_file(&self.0);
    }
}

/// The open doors of one run.
#[derive(Debug, Default)]
pub(crate) struct OpenDoors {
    /// In the order of their listeners.
    sessions: Vec<Arc<DoorSession>>,
    /// Its listener follows theirs.
    egress: Option<OpenEgress>,
    /// The inference door's socket, outside.
    socket: Option<RemoveOnDrop>,
    /// The budgets, whose ledger records what is let in and out.
    till: Option<BudgetManager>,
}

/// Opens the granted doors. Missing credentials are reported before the sandbox is created.
pub(crate) async fn open(
    engine: &Inner,
    id: &Id,
    spec: &mut RunSpec,
) -> Result<OpenDoors, ErrorInfo> {
    let mut opened = OpenDoors::default();
    if spec.grants.ports().is_empty() && spec.grants.secrets.is_empty() {
        return Ok(opened);
    }
    let provider = match &spec.grants.llm {
        Some(grant) => Some(provider(engine, grant).await?),
        None => None,
    };
    let settings = &engine.doors;
    let till = match &settings.till {
        Some(till) => till.clone(),
        None => BudgetManager::new(begin_ledger(engine, id)?),
    };
    opened.till = Some(till.clone());
    let tenant = tenant(spec).to_owned();
    let parent_account = settings.account(&tenant);
    if let Some(grant) = spec.grants.egress.clone() {
        let with = (&settings.egress, &settings.secrets);
        opened.egress =
            Some(egress::open(&engine.state, id, spec, &grant, with, till.clone()).await?);
    }
    let doors = Doors::new(settings.catalogue.clone(), settings.secrets.clone(), till);
    if let Some((grant, provider)) = spec.grants.llm.clone().zip(provider) {
        // The API key that the program sees: a token that is valid only at this door.
        let token = SessionToken::generate()
            .map_err(|error| error_info(ErrorCode::Internal, error.to_string()))?;
        let terms = session_terms(id, provider, grant.models, spec.grants.budget.clone());
        let tenant = tenant.clone();
        let parent_account = parent_account.clone();
        let terms = SessionTerms {
            token: Some(token.hash()),
            tenant,
            parent_account,
            ..terms
        };
        let session = open_session(&doors, DoorKind::Llm, terms).await?;
        set_variables(spec, &llm_variables(&token.expose()))?;
        opened.sessions.push(session);
    }
    if let Some(mut models) = spec.grants.inference.clone() {
        models.push(engine.doors.inference_models.clone());
        let terms = session_terms(id, String::new(), models, spec.grants.budget.clone());
        let session = open_session(
            &doors,
            DoorKind::Inference,
            SessionTerms {
                tenant,
                parent_account,
                ..terms
            },
        )
        .await?;
        opened.socket = Some(mount_socket(engine, id, spec, &session)?);
        set_variables(spec, &inference_variables())?;
        opened.sessions.push(session);
    }
    Ok(opened)
}

/// Checks whether the granted doors could be opened; returns the provider of the LLM door.
pub(crate) async fn check_grants(
    engine: &Inner,
    spec: &RunSpec,
) -> Result<Option<String>, ErrorInfo> {
    let settings = &engine.doors;
    let provider = match &spec.grants.llm {
        Some(grant) => Some(provider(engine, grant).await?),
        None => None,
    };
    if let Some(grant) = &spec.grants.egress {
        Egress::check_credentials(grant, &settings.egress, &settings.secrets)
            .await
            .map_err(|error| open_error(&error))?;
    }
    Ok(provider)
}

/// The tenant of a run; empty for a run of this machine's own user.
pub(crate) fn tenant(spec: &RunSpec) -> &str {
    spec.owner.as_ref().map_or("", Id::as_str)
}

/// A run without a server has a ledger segment of its own, and so needs no lock.
fn begin_ledger(engine: &Inner, id: &Id) -> Result<Arc<Ledger>, ErrorInfo> {
    let ledger = Ledger::open(
        &engine.state.join("ledger"),
        &format!("run-{id}"),
        engine.doors.durability,
    );
    ledger.map(Arc::new).map_err(|error| {
        internal(
            "cannot begin a ledger, without which nothing may be spent or let in",
            &error,
        )
    })
}

/// An LLM door for the host's own use, which no sandbox sees. `close` accounts for it; dropping it
/// closes it.
#[derive(Debug)]
pub struct ModelDoor {
    session: Arc<DoorSession>,
    dialect: Dialect,
    output_cap: &'static str,
    folder: fs::File,
    socket: RemoveOnDrop,
}

impl Engine {
    /// Opens an LLM door of this name for the host's own use, with an account below that of a
    /// tenant, if one is named. The folder of its socket is closed to other users.
    pub async fn model_door(
        &self,
        id: &Id,
        grant: &LlmGrant,
        budget: Budget,
        tenant: &str,
    ) -> Result<ModelDoor, ErrorInfo> {
        let engine = &self.inner;
        let provider = provider(engine, grant).await?;
        let settings = &engine.doors;
        let spoken = settings.catalogue.providers.get(&provider);
        let spoken = spoken.map(|provider| (provider.dialect, provider.output_cap));
        let (dialect, output_cap) = spoken.unwrap_or((Dialect::OpenAi, "max_completion_tokens"));
        let till = match &settings.till {
            Some(till) => till.clone(),
            None => BudgetManager::new(begin_ledger(engine, id)?),
        };
        let doors = Doors::new(settings.catalogue.clone(), settings.secrets.clone(), till);
        let terms = session_terms(id, provider, grant.models.clone(), budget);
        let (tenant, parent_account) = (tenant.to_owned(), settings.account(tenant));
        let session = open_session(
            &doors,
            DoorKind::Llm,
            SessionTerms {
                tenant,
                parent_account,
                ..terms
            },
        )
        .await?;
        let failed =
            |error: &io::Error| internal("cannot make the socket of a model's door", error);
        let folder = engine.state.join("doors");
        let path = folder.join(door_file_name(id, "sock"));
        let listener = bind(&folder, &path).map_err(|error| failed(&error))?;
        let socket = RemoveOnDrop(path);
        session
            .serve(DoorListener::Unix(listener))
            .map_err(|error| open_error(&error))?;
        let folder = fs::File::open(folder).map_err(|error| failed(&error))?;
        Ok(ModelDoor {
            session,
            dialect,
            output_cap,
            folder,
            socket,
        })
    }
}

impl ModelDoor {
    /// The API dialect of its provider.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The field name of the output token limit in chat requests, of which there are two.
    pub fn output_cap(&self) -> &'static str {
        self.output_cap
    }

    /// Connects to it.
    pub async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let name = self.socket.0.file_name().unwrap_or_default();
        let by_handle = Path::new("/proc/self/fd")
            .join(std::os::fd::AsRawFd::as_raw_fd(&self.folder).to_string());
        tokio::net::UnixStream::connect(by_handle.join(name)).await
    }

    /// Closes it; returns usage and denials.
    pub async fn close(self) -> SessionReport {
        self.session.close().await
    }
}

impl Drop for ModelDoor {
    fn drop(&mut self) {
        // Without a runtime there is no listener.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let session = self.session.clone();
            runtime.spawn(async move { session.close().await });
        }
    }
}

/// Resolves the provider. A provider without a credential is refused before anything is written for
/// the run.
async fn provider(engine: &Inner, grant: &LlmGrant) -> Result<String, ErrorInfo> {
    let Some(name) = &grant.provider else {
        return only_provider(engine).await;
    };
    let known = &engine.doors.catalogue.providers;
    let Some(provider) = known.get(name) else {
        let known = known.keys().cloned().collect();
        return Err(open_error(&OpenError::NoProvider {
            name: name.clone(),
            known,
        }));
    };
    if let Some(source) = &provider.key {
        engine
            .doors
            .secrets
            .find(source)
            .await
            .map_err(|error| open_error(&error.into()))?;
    }
    Ok(name.clone())
}

fn session_terms(
    id: &Id,
    provider: String,
    models: Vec<Vec<ModelPattern>>,
    budget: Budget,
) -> SessionTerms {
    let id = id.to_string();
    SessionTerms {
        id: id.clone(),
        run: id,
        provider,
        models,
        budget,
        ..SessionTerms::default()
    }
}

async fn open_session(
    doors: &Arc<Doors>,
    kind: DoorKind,
    terms: SessionTerms,
) -> Result<Arc<DoorSession>, ErrorInfo> {
    doors
        .open(kind, terms)
        .await
        .map_err(|error| open_error(&error))
}

/// The only provider that has a credential.
async fn only_provider(engine: &Inner) -> Result<String, ErrorInfo> {
    let settings = &engine.doors;
    let mut usable = Vec::new();
    for provider in settings.catalogue.providers.values() {
        let found = match &provider.key {
            Some(source) => settings.secrets.find(source).await.is_ok(),
            None => true,
        };
        if found {
            usable.push(provider.name.clone());
        }
    }
    let names: Vec<_> = settings
        .catalogue
        .providers
        .keys()
        .map(String::as_str)
        .collect();
    match &usable[..] {
        [only] => Ok(only.clone()),
        [] => Err(error_with_hint(
            ErrorCode::InvalidSpec,
            format!(
                "no provider has a credential yet; there are {}",
                names.join(", ")
            ),
            key_hint(settings.catalogue.providers.values()),
        )),
        several => Err(error_with_hint(
            ErrorCode::InvalidSpec,
            format!("several providers could be meant: {}", several.join(", ")),
            "say which: --llm=PROVIDER".to_owned(),
        )),
    }
}

/// How to set the key of the first of these providers. A secret may have another name than its
/// provider.
fn key_hint<'a>(mut providers: impl Iterator<Item = &'a Arc<Provider>>) -> String {
    let stored = providers.find_map(|provider| match &provider.key {
        Some(KeySource::Stored(secret)) => Some((&provider.name, secret)),
        _ => None,
    });
    match stored {
        Some((name, secret)) => {
            format!("give one its key, as for `{name}`: airlock secrets set {secret}")
        }
        None => "their keys are where [provider.NAME] in the configuration says".to_owned(),
    }
}

fn llm_variables(token: &str) -> Vec<(&'static str, String)> {
    let base = format!("http://127.0.0.1:{}", spec::LLM_PORT);
    let mut variables = vec![
        ("OPENAI_BASE_URL", format!("{base}/v1")),
        ("OPENAI_API_BASE", base.clone()),
        ("ANTHROPIC_BASE_URL", base.clone()),
        ("GOOGLE_GEMINI_BASE_URL", base),
    ];
    let keys = [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
    ];
    variables.extend(keys.map(|name| (name, token.to_owned())));
    variables
}

fn inference_variables() -> Vec<(&'static str, String)> {
    let base = format!("http://127.0.0.1:{}", spec::INFERENCE_PORT);
    let socket = format!("http+unix://{}", INFERENCE_SOCKET.replace('/', "%2F"));
    vec![
        ("OLLAMA_HOST", base.clone()),
        ("OLLAMA_BASE_URL", base),
        ("INFERENCE_PROXY_URL", socket),
    ]
}

/// Sets variables, over the caller's: programs find the door by them.
pub(crate) fn set_variables(
    spec: &mut RunSpec,
    variables: &[(&'static str, String)],
) -> Result<(), ErrorInfo> {
    for (name, value) in variables {
        let name = EnvName::new(OsStr::new(name))
            .map_err(|error| error_info(ErrorCode::Internal, error.message))?;
        spec.sandbox.env.insert(name, OsString::from(value));
    }
    Ok(())
}

/// Mounts the inference door's socket into this sandbox only. Its folder is closed to other users.
fn mount_socket(
    engine: &Inner,
    id: &Id,
    spec: &mut RunSpec,
    session: &Arc<DoorSession>,
) -> Result<RemoveOnDrop, ErrorInfo> {
    let failed = |error: &io::Error| internal("cannot make the inference door's socket", error);
    let folder = engine.state.join("doors");
    let path = folder.join(door_file_name(id, "sock"));
    let listener = bind(&folder, &path).map_err(|error| failed(&error))?;
    let shown = RemoveOnDrop(path.clone());
    session
        .serve(DoorListener::Unix(listener))
        .map_err(|error| open_error(&error))?;
    let inside = InsidePath::new(Path::new(INFERENCE_SOCKET))
        .map_err(|bad| error_info(ErrorCode::Internal, bad.to_string()))?;
    path_guard::allow_own_path(&mut spec.sandbox, &path).map_err(|error| failed(&error))?;
    spec.sandbox.mounts.push(Mount {
        host: path,
        inside,
        access: Access::ReadOnly,
    });
    Ok(shown)
}

fn bind(folder: &Path, path: &Path) -> io::Result<UnixListener> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    // Through the folder's handle: the path itself may be longer than a socket address.
    let handle = fs::File::open(folder)?;
    let name = path.file_name().unwrap_or_default();
    let by_handle =
        Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&handle).to_string());
    let by_handle = by_handle.join(name);
    // The socket of a killed run with the same id; if it cannot be removed, bind reports it.
    _ = fs::remove_file(&by_handle);
    let listener = UnixListener::bind(&by_handle)?;
    // Inside, the program has another user id.
    fs::set_permissions(&by_handle, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Removes sockets and certificates of killed runs: a socket without a listener refuses
/// connections. A new socket may not have a listener yet.
pub(crate) fn sweep(state: &Path) {
    let Ok(folder) = fs::File::open(state.join("doors")) else {
        return;
    };
    let by_handle =
        Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&folder).to_string());
    let Ok(entries) = fs::read_dir(&by_handle) else {
        return;
    };
    for entry in entries.flatten() {
        let path = by_handle.join(entry.file_name());
        let is_old = || {
            entry
                .metadata()
                .and_then(|found| found.modified())
                .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MIN_SWEEP_AGE))
        };
        let is_dead = |socket: &Path| {
            use io::ErrorKind::{ConnectionRefused, NotFound};
            UnixStream::connect(socket)
                .is_err_and(|error| [ConnectionRefused, NotFound].contains(&error.kind()))
        };
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let is_socket = || entry.file_type().is_ok_and(|kind| kind.is_socket());
        // A certificate file belongs to a run with a control socket, as long as the run is alive.
        let is_left = match extension {
            egress::EXTENSION => is_old() && is_dead(&path.with_extension(control::EXTENSION)),
            "sock" | control::EXTENSION => is_socket() && is_old() && is_dead(&path),
            _ => false,
        };
        if is_left {
            // The next sweep tries again.
            _ = fs::remove_file(&path);
        }
    }
}

impl OpenDoors {
    /// Serves the doors on the first listeners; returns the others.
    pub(crate) fn serve(
        &self,
        mut listeners: Vec<TcpListener>,
        intercept: Option<InterceptSockets>,
    ) -> Result<Vec<TcpListener>, ErrorInfo> {
        let count = self.sessions.len() + usize::from(self.egress.is_some());
        if listeners.len() < count {
            return Err(error_info(
                ErrorCode::Internal,
                "the box has no listener for a door".to_owned(),
            ));
        }
        let others = listeners.split_off(count);
        let mut listeners = listeners.into_iter();
        for (session, listener) in self.sessions.iter().zip(listeners.by_ref()) {
            session
                .serve(DoorListener::Tcp(listener))
                .map_err(|error| open_error(&error))?;
        }
        if let Some((egress, listener)) = self.egress.as_ref().zip(listeners.next()) {
            egress
                .serve(listener, intercept)
                .map_err(|error| open_error(&error))?;
        }
        Ok(others)
    }

    /// Records in the ledger which secrets the program gets. A secret that cannot be recorded is
    /// not injected.
    pub(crate) fn note_secrets(
        &self,
        whose: RunIdentity<'_>,
        secrets: &[(String, EnvName)],
    ) -> Result<(), ErrorInfo> {
        let failed =
            |error: &io::Error| internal("cannot write down that a secret is let in", error);
        secrets.iter().try_for_each(|(name, variable)| {
            let till = self
                .till
                .as_ref()
                .ok_or_else(|| failed(&io::ErrorKind::NotFound.into()))?;
            let variable = variable.as_os_str().to_string_lossy();
            till.ledger()
                .record_injection(whose, name, &variable)
                .map_err(|error| failed(&error))
        })
    }

    /// Closes the doors; adds usage and denials to the result.
    pub(crate) async fn close(self, result: &mut RunResult) {
        for session in &self.sessions {
            let report = session.close().await;
            add_usage(&report, session.terms().budget.tokens, result);
            result.denials.extend(report.denials);
        }
        if let Some(egress) = self.egress {
            egress.close(result).await;
        }
    }
}

/// All doors of a run share one account, so the last report has the sum.
fn add_usage(report: &SessionReport, tokens: Option<u64>, result: &mut RunResult) {
    let used = report.used;
    result.usage.llm = LlmUsage {
        calls: used.calls,
        input_tokens: used.input_tokens,
        output_tokens: used.output_tokens,
        cached_tokens: used.cached_tokens,
        cost_usd: used.money.dollars(),
    };
    if report.budget_hit {
        result.limits_hit.insert(LimitName::Budget);
    }
    let mut note = |note: String| {
        if !result.notes.contains(&note) {
            result.notes.push(note);
        }
    };
    if used.overrun > spec::Money::ZERO {
        note(format!(
            "a provider served {} USD more than was reserved",
            used.overrun
        ));
    }
    let over = used
        .input_tokens
        .saturating_add(used.output_tokens)
        .saturating_sub(tokens.unwrap_or(u64::MAX));
    if over > 0 {
        note(format!(
            "a provider served {over} tokens more than the budget has"
        ));
    }
}

fn error_with_hint(code: ErrorCode, message: String, hint: String) -> ErrorInfo {
    ErrorInfo {
        code,
        message,
        hint: Some(hint),
    }
}

pub(crate) fn error_info(code: ErrorCode, message: String) -> ErrorInfo {
    ErrorInfo {
        code,
        message,
        hint: None,
    }
}

pub(crate) fn internal(what: &str, error: &io::Error) -> ErrorInfo {
    error_info(ErrorCode::Internal, format!("{what}: {error}"))
}

pub(crate) fn open_error(open_error: &OpenError) -> ErrorInfo {
    let message = open_error.to_string();
    match open_error {
        OpenError::NoProvider { known, .. } => error_with_hint(
            ErrorCode::InvalidSpec,
            message,
            format!(
                "the providers are {}; add one as [provider.NAME] in the configuration",
                known.join(", ")
            ),
        ),
        OpenError::Secret(secret) => {
            error_with_hint(ErrorCode::PolicyDenied, message, secret.hint.clone())
        }
        OpenError::Upstream(_) => error_with_hint(
            ErrorCode::InvalidSpec,
            message,
            "mend its section [provider.NAME] in the configuration".to_owned(),
        ),
        OpenError::Listener(_) | OpenError::Authority(_) => {
            error_info(ErrorCode::Internal, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    #[test]
    fn a_long_id_has_a_short_name_of_its_own() {
        let id = |end: &str| Id::new(&format!("{}{end}", "x".repeat(127))).expect("it is one");
        let named = [id("a"), id("b")].map(|id| door_file_name(&id, "sock"));
        assert!(
            named[0] != named[1] && named.iter().all(|name| name.len() == 38),
            "{named:?}"
        );
        assert!(
            Id::new(named[0].trim_end_matches(".sock")).is_err(),
            "nobody else can have it"
        );
        let longest = Id::new(&"x".repeat(MAX_ID_BYTES)).expect("it is one");
        assert_eq!(door_file_name(&longest, "sock"), format!("{longest}.sock"));
    }

    #[test]
    fn the_socket_of_a_killed_run_goes_and_that_of_a_living_one_stays() {
        let state =
            std::env::temp_dir().join(format!("airlock-door-sockets-{}", std::process::id()));
        let folder = state.join("doors");
        let made = |name: &str| bind(&folder, &folder.join(name)).expect("it can be made");
        let (dead, live, fresh) = (made("dead.sock"), made("live.sock"), made("fresh.sock"));
        drop((dead, fresh, made("dead.control"), made("other")));
        for name in ["dead.pem", "live.pem"] {
            fs::write(folder.join(name), "").expect("it can be made");
        }
        let asked = made("live.control");
        let past = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        for name in [
            "dead.sock",
            "live.sock",
            "dead.control",
            "other",
            "dead.pem",
            "live.pem",
        ] {
            let times = Timestamps {
                last_access: past,
                last_modification: past,
            };
            utimensat(CWD, folder.join(name), &times, AtFlags::empty()).expect("it is ours");
        }
        sweep(&state);
        let left = |name: &str| folder.join(name).exists();
        assert_eq!(
            ["dead.sock", "dead.control", "dead.pem"].map(left),
            [false; 3]
        );
        assert_eq!(
            ["live.sock", "fresh.sock", "other", "live.pem"].map(left),
            [true; 4]
        );
        drop((live, asked));
        fs::remove_dir_all(state).expect("it is ours");
    }
}
