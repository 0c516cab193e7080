//! The doors of one run: opened before its box is made, served while it runs, closed and counted when it is over.
//!
//! The listeners are made inside the box; that is how a door knows who is calling.

use crate::{
    Engine, Inner, control,
    egress::{self, OpenEgress},
    guard,
};
use doors::{
    Doors, Kind, Listener, OpenError, Report, Session, SessionTerms, Token,
    dialect::Dialect,
    ledger::{Ledger, Whose},
    till::{Account, Day, Level, Terms, Till, terms_of},
};
use sandbox::Passing;
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
    sync::Arc,
    time::Duration,
};

/// What doors are opened with.
#[derive(Clone, Debug, Default)]
pub struct DoorSettings {
    /// Providers, models, prices.
    pub catalogue: doors::catalogue::Catalogue,
    /// Where credentials come from.
    pub secrets: doors::secrets::Secrets,
    /// Which models of the node's own server may be used; every one if empty.
    pub inference_models: Vec<ModelPattern>,
    /// How lasting the ledger is.
    pub durability: doors::ledger::Durability,
    /// What egress doors are opened with.
    pub egress: doors::egress::Settings,
    /// What all runs of a server spend from. Without it each run has a ledger and an account of its own.
    pub till: Option<Till>,
    /// What each tenant may spend there, by name; `*` is for those that have none.
    pub tenants: BTreeMap<String, Terms>,
}

impl DoorSettings {
    /// Nothing configured but a store for secrets in the state folder.
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

    /// The account that everything of a tenant's is paid from; none where no server owns the ledger.
    fn account(&self, tenant: &str) -> Option<Account> {
        let nothing = || Terms {
            level: Level::Tenant,
            name: tenant.to_owned(),
            ..Terms::default()
        };
        let terms = terms_of(&self.tenants, tenant).unwrap_or_else(nothing);
        self.till
            .as_ref()
            .filter(|_| !tenant.is_empty())
            .map(|till| till.account(terms, None))
    }

    /// How it stands with a tenant's day.
    pub(crate) fn day(&self, tenant: &str) -> Option<Day> {
        let account = self.account(tenant)?;
        self.till.as_ref().map(|till| till.day(&account))
    }

    /// Has a server write to the ledger of a day.
    pub(crate) fn begin_day(&self, state: &Path, today: spec::Day) -> io::Result<()> {
        let Some(till) = &self.till else {
            return Ok(());
        };
        crate::usage::begin_day(till, state, self.durability, today)
    }
}

/// A socket that is older listens, or its owner is gone.
const SETTLED: Duration = Duration::from_secs(10);
/// Where the inference door can be had as a socket, inside.
const INFERENCE_SOCKET: &str = "/airlock/inference.sock";

/// A name that a socket's address has room for, behind a folder's handle.
const LONGEST_NAME: usize = 64;

/// What a file of a run's doors is called. Long ids become a digest, behind a sign that no id has.
pub(crate) fn called(id: &Id, extension: &str) -> String {
    if id.as_str().len() <= LONGEST_NAME {
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

/// A file of a run's doors. Dropped, it is gone: whatever of opening them fails later, nothing is left.
#[derive(Debug)]
pub(crate) struct Shown(pub(crate) PathBuf);

impl Drop for Shown {
    fn drop(&mut self) {
        // The sweep removes what stays.
        _ = fs::remove_file(&self.0);
    }
}

/// The doors of one run.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// In the order of their listeners.
    sessions: Vec<Arc<Session>>,
    /// Its listener comes behind those.
    egress: Option<OpenEgress>,
    /// Where the inference door's socket is, outside.
    socket: Option<Shown>,
    /// What is let in and out of the run is written down there.
    till: Option<Till>,
}

/// Opens what a run was granted. What is missing is known before there is a box.
pub(crate) async fn open(engine: &Inner, id: &Id, spec: &mut RunSpec) -> Result<Opened, ErrorInfo> {
    let mut opened = Opened::default();
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
        None => Till::new(begin_ledger(engine, id)?),
    };
    opened.till = Some(till.clone());
    let tenant = tenant(spec).to_owned();
    let above = settings.account(&tenant);
    if let Some(grant) = spec.grants.egress.clone() {
        let with = (&settings.egress, &settings.secrets);
        opened.egress =
            Some(egress::open(&engine.state, id, spec, &grant, with, till.clone()).await?);
    }
    let doors = Doors::new(settings.catalogue.clone(), settings.secrets.clone(), till);
    if let Some((grant, provider)) = spec.grants.llm.clone().zip(provider) {
        // What a program sends as its key: known at this door, and worth nothing elsewhere.
        let token =
            Token::fresh().map_err(|error| error_of(ErrorCode::Internal, error.to_string()))?;
        let terms = terms(id, provider, grant.models, spec.grants.budget.clone());
        let (tenant, above) = (tenant.clone(), above.clone());
        let terms = SessionTerms {
            token: Some(token.hash()),
            tenant,
            above,
            ..terms
        };
        let session = open_session(&doors, Kind::Llm, terms).await?;
        set(spec, &llm_variables(&token.expose()))?;
        opened.sessions.push(session);
    }
    if let Some(mut models) = spec.grants.inference.clone() {
        models.push(engine.doors.inference_models.clone());
        let terms = terms(id, String::new(), models, spec.grants.budget.clone());
        let session = open_session(
            &doors,
            Kind::Inference,
            SessionTerms {
                tenant,
                above,
                ..terms
            },
        )
        .await?;
        opened.socket = Some(show_socket(engine, id, spec, &session)?);
        set(spec, &inference_variables())?;
        opened.sessions.push(session);
    }
    Ok(opened)
}

/// Whose a run is; empty if it is nobody's but this machine's.
pub(crate) fn tenant(spec: &RunSpec) -> &str {
    spec.owner.as_ref().map_or("", Id::as_str)
}

/// A lone run has a ledger segment of its own: nobody else has to be asked, and nobody can be in the way.
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

/// An LLM door that no box is shown: the host asks through it what a program inside may not ask by itself. Closed, it is
/// counted; dropped, it ends.
#[derive(Debug)]
pub struct ModelDoor {
    session: Arc<Session>,
    dialect: Dialect,
    output_cap: &'static str,
    folder: fs::File,
    socket: Shown,
}

impl Engine {
    /// Opens a door of this name for the host's own use, with an account of its own below that of a tenant, if one is named; the
    /// folder of its socket keeps everybody else out.
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
            None => Till::new(begin_ledger(engine, id)?),
        };
        let doors = Doors::new(settings.catalogue.clone(), settings.secrets.clone(), till);
        let terms = terms(id, provider, grant.models.clone(), budget);
        let (tenant, above) = (tenant.to_owned(), settings.account(tenant));
        let session = open_session(
            &doors,
            Kind::Llm,
            SessionTerms {
                tenant,
                above,
                ..terms
            },
        )
        .await?;
        let failed =
            |error: &io::Error| internal("cannot make the socket of a model's door", error);
        let folder = engine.state.join("doors");
        let path = folder.join(called(id, "sock"));
        let listener = bind(&folder, &path).map_err(|error| failed(&error))?;
        let socket = Shown(path);
        session
            .serve(Listener::Unix(listener))
            .map_err(|error| refused(&error))?;
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
    /// What is spoken at it.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// What the limit of output tokens is called in its chat requests, which have two names for it.
    pub fn output_cap(&self) -> &'static str {
        self.output_cap
    }

    /// A line to it.
    pub async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let name = self.socket.0.file_name().unwrap_or_default();
        let by_handle = Path::new("/proc/self/fd")
            .join(std::os::fd::AsRawFd::as_raw_fd(&self.folder).to_string());
        tokio::net::UnixStream::connect(by_handle.join(name)).await
    }

    /// Ends it, and says what was used and refused.
    pub async fn close(self) -> Report {
        self.session.close().await
    }
}

impl Drop for ModelDoor {
    fn drop(&mut self) {
        // Only within a runtime is there anything that still listens.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let session = self.session.clone();
            runtime.spawn(async move { session.close().await });
        }
    }
}

/// Which provider is meant. One without a credential is refused before anything is written for the run.
async fn provider(engine: &Inner, grant: &LlmGrant) -> Result<String, ErrorInfo> {
    let Some(name) = &grant.provider else {
        return only_provider(engine).await;
    };
    let known = &engine.doors.catalogue.providers;
    let Some(provider) = known.get(name) else {
        let known = known.keys().cloned().collect();
        return Err(refused(&OpenError::NoProvider {
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
            .map_err(|error| refused(&error.into()))?;
    }
    Ok(name.clone())
}

fn terms(
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
    kind: Kind,
    terms: SessionTerms,
) -> Result<Arc<Session>, ErrorInfo> {
    doors
        .open(kind, terms)
        .await
        .map_err(|error| refused(&error))
}

/// Of several providers the one that has a credential.
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
        [] => Err(error(
            ErrorCode::InvalidSpec,
            format!(
                "no provider has a credential yet; there are {}",
                names.join(", ")
            ),
            "give one its key: airlock secrets set PROVIDER".to_owned(),
        )),
        several => Err(error(
            ErrorCode::InvalidSpec,
            format!("several providers could be meant: {}", several.join(", ")),
            "say which: --llm=PROVIDER".to_owned(),
        )),
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

/// Over what the caller set: a program that finds a door by these must find this one.
pub(crate) fn set(
    spec: &mut RunSpec,
    variables: &[(&'static str, String)],
) -> Result<(), ErrorInfo> {
    for (name, value) in variables {
        let name = EnvName::new(OsStr::new(name))
            .map_err(|error| error_of(ErrorCode::Internal, error.message))?;
        spec.sandbox.env.insert(name, OsString::from(value));
    }
    Ok(())
}

/// The inference door's socket, mounted into this box and no other. The folder keeps everybody else out.
fn show_socket(
    engine: &Inner,
    id: &Id,
    spec: &mut RunSpec,
    session: &Arc<Session>,
) -> Result<Shown, ErrorInfo> {
    let failed = |error: &io::Error| internal("cannot make the inference door's socket", error);
    let folder = engine.state.join("doors");
    let path = folder.join(called(id, "sock"));
    let listener = bind(&folder, &path).map_err(|error| failed(&error))?;
    let shown = Shown(path.clone());
    session
        .serve(Listener::Unix(listener))
        .map_err(|error| refused(&error))?;
    let inside = InsidePath::new(Path::new(INFERENCE_SOCKET))
        .map_err(|bad| error_of(ErrorCode::Internal, bad.to_string()))?;
    guard::add_own(&mut spec.sandbox, &path).map_err(|error| failed(&error))?;
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
    // By the folder's handle: the path itself may be longer than a socket's address.
    let handle = fs::File::open(folder)?;
    let name = path.file_name().unwrap_or_default();
    let by_handle =
        Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&handle).to_string());
    let by_handle = by_handle.join(name);
    // Of a run of the same name that was killed; if it stays, binding says so.
    _ = fs::remove_file(&by_handle);
    let listener = UnixListener::bind(&by_handle)?;
    // Inside, the program is somebody else.
    fs::set_permissions(&by_handle, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Removes sockets and certificates of runs that were killed: a listener dies with its owner, and then nobody answers. One that was made
/// just now may not listen yet.
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
                .is_ok_and(|made| made.elapsed().is_ok_and(|age| age > SETTLED))
        };
        let is_dead = |socket: &Path| {
            use io::ErrorKind::{ConnectionRefused, NotFound};
            UnixStream::connect(socket)
                .is_err_and(|error| [ConnectionRefused, NotFound].contains(&error.kind()))
        };
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let is_socket = || entry.file_type().is_ok_and(|kind| kind.is_socket());
        // Certificates belong to a run that can be asked to change its rules, as long as it lives.
        let is_left = match extension {
            egress::EXTENSION => is_old() && is_dead(&path.with_extension(control::EXTENSION)),
            "sock" | control::EXTENSION => is_socket() && is_old() && is_dead(&path),
            _ => false,
        };
        if is_left {
            // What cannot be removed now is found again by the next sweep.
            _ = fs::remove_file(&path);
        }
    }
}

impl Opened {
    /// Serves at the first listeners, and gives back those that are not ours.
    pub(crate) fn serve(
        &self,
        mut listeners: Vec<TcpListener>,
        passing: Option<Passing>,
    ) -> Result<Vec<TcpListener>, ErrorInfo> {
        let count = self.sessions.len() + usize::from(self.egress.is_some());
        if listeners.len() < count {
            return Err(error_of(
                ErrorCode::Internal,
                "the box has no listener for a door".to_owned(),
            ));
        }
        let others = listeners.split_off(count);
        let mut listeners = listeners.into_iter();
        for (session, listener) in self.sessions.iter().zip(listeners.by_ref()) {
            session
                .serve(Listener::Tcp(listener))
                .map_err(|error| refused(&error))?;
        }
        if let Some((egress, listener)) = self.egress.as_ref().zip(listeners.next()) {
            egress
                .serve(listener, passing)
                .map_err(|error| refused(&error))?;
        }
        Ok(others)
    }

    /// Writes down which secrets the program is about to have. What cannot be written is not let in.
    pub(crate) fn note_secrets(
        &self,
        whose: Whose<'_>,
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
                .inject(whose, name, &variable)
                .map_err(|error| failed(&error))
        })
    }

    /// Ends them, and says what was used and refused.
    pub(crate) async fn close(self, result: &mut RunResult) {
        for session in &self.sessions {
            let report = session.close().await;
            count(&report, session.terms().budget.tokens, result);
            result.denials.extend(report.denials);
        }
        if let Some(egress) = self.egress {
            egress.close(result).await;
        }
    }
}

/// All doors of a run have one account, so the last word is the sum.
fn count(report: &Report, tokens: Option<u64>, result: &mut RunResult) {
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

fn error(code: ErrorCode, message: String, hint: String) -> ErrorInfo {
    ErrorInfo {
        code,
        message,
        hint: Some(hint),
    }
}

pub(crate) fn error_of(code: ErrorCode, message: String) -> ErrorInfo {
    ErrorInfo {
        code,
        message,
        hint: None,
    }
}

pub(crate) fn internal(what: &str, error: &io::Error) -> ErrorInfo {
    error_of(ErrorCode::Internal, format!("{what}: {error}"))
}

pub(crate) fn refused(refused: &OpenError) -> ErrorInfo {
    let message = refused.to_string();
    match refused {
        OpenError::NoProvider { known, .. } => error(
            ErrorCode::InvalidSpec,
            message,
            format!(
                "the providers are {}; add one as [provider.NAME] in the configuration",
                known.join(", ")
            ),
        ),
        OpenError::Secret(secret) => error(ErrorCode::PolicyDenied, message, secret.hint.clone()),
        OpenError::Upstream(_) => error(
            ErrorCode::InvalidSpec,
            message,
            "mend its section [provider.NAME] in the configuration".to_owned(),
        ),
        OpenError::Listener(_) | OpenError::Authority(_) => error_of(ErrorCode::Internal, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    #[test]
    fn a_long_id_has_a_short_name_of_its_own() {
        let id = |end: &str| Id::new(&format!("{}{end}", "x".repeat(127))).expect("it is one");
        let named = [id("a"), id("b")].map(|id| called(&id, "sock"));
        assert!(
            named[0] != named[1] && named.iter().all(|name| name.len() == 38),
            "{named:?}"
        );
        assert!(
            Id::new(named[0].trim_end_matches(".sock")).is_err(),
            "nobody else can have it"
        );
        let longest = Id::new(&"x".repeat(LONGEST_NAME)).expect("it is one");
        assert_eq!(called(&longest, "sock"), format!("{longest}.sock"));
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
