//! The sandbox of one call: an engine session with the tool's code mounted read-only, a fresh work
//! folder, and the runner in it. It is ended in the background after the answer; `close` waits for
//! that.

use super::{
    paths,
    profile::{self, ToolProfile},
    status::StatusPipe,
    workspace::Workspace,
};
use crate::{
    ipc,
    tools::{EntryPoint, ToolCode, ToolLimits},
};
use engine::{Engine, Exec, Session, SessionState};
use spec::{
    ErrorCode, ErrorInfo, ExecRequest, Id, Network, Policy, RunRequest, SessionRequest, SessionSpec,
};
use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    net::UnixListener,
    runtime::Handle,
    sync::{Semaphore, oneshot},
    task::JoinSet,
};

/// Source of the runner.
pub(super) const RUNNER_SCRIPT: &[u8] = include_bytes!("../runner/runner.py");
/// Sandboxes that are ended at the same time; others wait, and new sandboxes wait with them.
pub(super) const MAX_ENDING: usize = 16;
/// Programs that get the full grace period at the same time; others get the short one.
pub(super) const MAX_IN_GRACE: usize = 16;
/// Time between SIGTERM and SIGKILL.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// No longer than a call waits for its final output, so that the number of such programs is bounded
/// by the number of calls.
pub(super) const SHORT_STOP_GRACE: Duration = Duration::from_millis(500);
/// Kept of each output stream, at the beginning and at the end.
pub(super) const KEPT_OUTPUT_BYTES: usize = 16 << 10;

/// Properties of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SandboxKind {
    pub(crate) code: ToolCode,
    pub(crate) profile: ToolProfile,
    pub(crate) limits: ToolLimits,
    /// None for a probe, which has no network.
    pub(crate) what: Option<EntryPoint>,
}

impl SandboxKind {
    /// Whether a sandbox of one kind serves the other: tools of the same code differ only in the
    /// program that runs.
    pub(super) fn fits(&self, other: &SandboxKind) -> bool {
        let SandboxKind {
            code,
            profile,
            limits,
            what,
        } = other;
        (&self.code, self.profile, &self.limits, self.what.is_some())
            == (code, *profile, limits, what.is_some())
    }
}

/// Creates sandboxes and ends them.
#[derive(Debug)]
pub(crate) struct SandboxFactory {
    engine: Engine,
    policy: Policy,
    /// Bytecode of the runner, once it is compiled.
    pub(super) compiled: OnceLock<Arc<[u8]>>,
    pub(super) is_compiling: AtomicBool,
    pub(super) ending: Arc<Semaphore>,
    pub(super) in_grace: Arc<Semaphore>,
    background: Mutex<JoinSet<()>>,
}

/// Why there is no sandbox. For the log only: it may contain host paths.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxError {
    #[error("{}", .0.message)]
    Engine(ErrorInfo),
    #[error("its work folder cannot be used: {0}")]
    Workspace(#[from] io::Error),
}

impl SandboxError {
    /// Whether another try may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, SandboxError::Engine(error) if error.code == ErrorCode::Conflict)
    }
}

impl From<ErrorInfo> for SandboxError {
    fn from(error: ErrorInfo) -> SandboxError {
        SandboxError::Engine(error)
    }
}

impl SandboxFactory {
    pub(crate) fn new(engine: Engine) -> Arc<SandboxFactory> {
        Arc::new(SandboxFactory {
            engine,
            policy: profile::policy(),
            compiled: OnceLock::new(),
            is_compiling: AtomicBool::new(false),
            ending: Arc::new(Semaphore::new(MAX_ENDING)),
            in_grace: Arc::new(Semaphore::new(MAX_IN_GRACE)),
            background: Mutex::default(),
        })
    }

    /// Size of a work folder of this profile, in bytes.
    pub(crate) fn disk(&self, profile: ToolProfile) -> u64 {
        self.policy
            .profile(profile.name())
            .map_or(0, |profile| profile.limits.disk.0)
    }

    /// Creates a sandbox with an empty work folder and the runner.
    pub(crate) async fn open(
        self: &Arc<SandboxFactory>,
        kind: &SandboxKind,
    ) -> Result<CallSandbox, SandboxError> {
        // Waits until sandboxes that are ending make room: so there are never many more sandboxes
        // than calls.
        drop(self.ending.acquire().await);
        let request = self.request(kind);
        let spec = self
            .policy
            .admit_session(request)
            .map_err(ErrorInfo::from)?;
        // In a background task: if the caller is dropped meanwhile, the sandbox is still ended, and
        // `close` waits for it.
        let ((ready, made), factory) = (oneshot::channel(), self.clone());
        self.spawn_background(async move { drop(ready.send(factory.make(spec).await)) });
        made.await.map_err(io::Error::other)?
    }

    async fn make(
        self: Arc<SandboxFactory>,
        spec: SessionSpec,
    ) -> Result<CallSandbox, SandboxError> {
        let session = self.engine.open_session(spec).await?;
        // From here on the session is ended whatever fails.
        let runner = paths::RUNNER_SOURCE;
        let factory = self.clone();
        let mut sandbox = CallSandbox {
            session: Some(session.clone()),
            workspace: None,
            factory,
            runner,
        };
        let (folder, owner) = session.workspace()?;
        let workspace = Workspace::new(folder, owner);
        sandbox.runner = self.install_runner(&workspace)?;
        sandbox.workspace = Some(workspace);
        Ok(sandbox)
    }

    fn request(&self, kind: &SandboxKind) -> SessionRequest {
        // The stamp identifies the code; the sandbox does not need it.
        let ToolCode {
            python,
            folder,
            packages,
            site,
            stamp: _,
        } = &kind.code;
        let shown = [
            (python, paths::PYTHON),
            (folder, paths::TOOL_FOLDER),
            (packages, paths::PACKAGES),
            (site, paths::SITE),
        ];
        let shown = shown.into_iter();
        let mounts = shown
            .filter_map(|(host, inside)| Some(mount(host.as_deref()?, inside)))
            .collect();
        let network = kind.what.is_none().then_some(Network::None);
        let run = RunRequest {
            profile: Some(kind.profile.name().to_owned()),
            mounts,
            env: variables(kind)
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            limits: profile::limits(&self.policy, kind.profile, &kind.limits),
            network,
            ..RunRequest::default()
        };
        // Calls have their own timeouts, and sandboxes end with this process.
        let life = Some(spec::MAX_SESSION_LIFETIME);
        SessionRequest {
            run,
            idle: life,
            lifetime: life,
        }
    }

    /// Writes the runner in its fastest form; returns its name.
    fn install_runner(&self, workspace: &Workspace) -> io::Result<&'static str> {
        let own = workspace.make_folder(workspace.folder(), paths::RUNNER_FOLDER)?;
        let (name, bytes) = match self.compiled.get() {
            Some(compiled) => (paths::RUNNER_COMPILED, &compiled[..]),
            None => (paths::RUNNER_SOURCE, RUNNER_SCRIPT),
        };
        workspace.make_file(own.as_fd(), name, 0o444, bytes)?;
        Ok(name)
    }

    /// Runs a task that only [`SandboxFactory::close`] waits for.
    pub(crate) fn spawn_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime the engine is ending as well, and ends its sandboxes.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while background.try_join_next().is_some() {}
        background.spawn_on(work, &runtime);
    }

    /// Waits until all background tasks have ended.
    pub(crate) async fn close(&self) {
        loop {
            let mut background = std::mem::take(
                &mut *self
                    .background
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if background.is_empty() {
                return;
            }
            while background.join_next().await.is_some() {}
        }
    }
}

fn mount(host: &Path, inside: &str) -> OsString {
    let mut text = host.as_os_str().to_owned();
    text.push(format!(":{inside}:ro"));
    text
}

/// Environment variables of a program besides those of the engine: none of ours.
fn variables(kind: &SandboxKind) -> Vec<(&'static str, String)> {
    vec![
        ("LANG", "C.UTF-8".to_owned()),
        ("PYTHONPATH", python_path(&kind.code)),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("_SAM_SANDBOX_LIGHT", "1".to_owned()),
    ]
}

fn python_path(code: &ToolCode) -> String {
    let folder = [
        format!("{}/python", paths::TOOL_FOLDER),
        paths::TOOL_FOLDER.to_owned(),
    ];
    let folder = folder.into_iter().filter(|_| code.folder.is_some());
    let python = code.python.iter().map(|_| paths::PYTHON.to_owned());
    let packages = code.packages.iter().map(|_| paths::PACKAGES.to_owned());
    let site = code.site.iter().map(|_| paths::SITE.to_owned());
    folder
        .chain(python)
        .chain(packages)
        .chain(site)
        .collect::<Vec<_>>()
        .join(":")
}

/// A command with exactly the promised environment variables, whatever the engine sets.
pub(super) fn with_clean_environment(kind: &SandboxKind, command: Vec<OsString>) -> Vec<OsString> {
    let fixed = [
        ("PATH", spec::DEFAULT_PATH),
        ("HOME", "/tmp"),
        ("TMPDIR", "/tmp"),
    ];
    let fixed = fixed.map(|(name, value)| format!("{name}={value}"));
    let own = variables(kind)
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"));
    let begin = ["/usr/bin/env".to_owned(), "-i".to_owned()];
    let words = begin
        .into_iter()
        .chain(fixed)
        .chain(own)
        .map(OsString::from);
    words.chain(command).collect()
}

/// Path of an executable tool inside the sandbox.
pub(super) fn executable(code: &ToolCode, path: &Path) -> OsString {
    let within = code
        .folder
        .as_deref()
        .and_then(|folder| path.strip_prefix(folder).ok());
    match within {
        Some(within) => Path::new(paths::TOOL_FOLDER).join(within).into_os_string(),
        // Relative to the tool's folder.
        None if path.is_relative() => Path::new(paths::TOOL_FOLDER).join(path).into_os_string(),
        None => path.as_os_str().to_owned(),
    }
}

/// A sandbox. Dropped, it is ended in the background.
#[derive(Debug)]
pub(crate) struct CallSandbox {
    session: Option<Session>,
    workspace: Option<Workspace>,
    factory: Arc<SandboxFactory>,
    runner: &'static str,
}

impl CallSandbox {
    /// A command that runs the runner.
    pub(crate) fn runner(&self, python: &Path, arguments: &[&str]) -> Vec<OsString> {
        let runner = paths::in_sandbox(&format!("{}/{}", paths::RUNNER_FOLDER, self.runner));
        // `-s`: no user site-packages. The runner removes the variables that the engine adds.
        let begin = [python.as_os_str().to_owned(), "-s".into(), runner.into()];
        begin
            .into_iter()
            .chain(arguments.iter().map(OsString::from))
            .collect()
    }

    /// The work folder.
    pub(crate) fn workspace(&self) -> Result<&Workspace, SandboxError> {
        self.workspace
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }

    /// Creates the parts that every call needs: input and output folders, the status FIFO, and the
    /// model socket if a model is configured.
    pub(crate) fn prepare(
        &self,
        has_models: bool,
    ) -> Result<(StatusPipe, Option<UnixListener>), SandboxError> {
        let workspace = self.workspace()?;
        workspace.make_folder(workspace.folder(), paths::INPUT_FOLDER)?;
        workspace.make_folder(workspace.folder(), paths::OUTPUT_FOLDER)?;
        let statuses = StatusPipe::new(workspace.make_fifo(paths::STATUS_FIFO)?)?;
        let socket = has_models
            .then(|| ipc::bind(workspace.folder(), workspace.owner()))
            .transpose()?;
        Ok((statuses, socket))
    }

    /// The engine's id of the session.
    pub(crate) fn id(&self) -> Option<&Id> {
        self.session.as_ref().map(Session::id)
    }

    /// Starts a program without a timeout; the caller has one.
    pub(crate) async fn start(
        &self,
        command: Vec<OsString>,
        stdin: bool,
    ) -> Result<Exec, SandboxError> {
        let Some(session) = &self.session else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let request = ExecRequest {
            command,
            stdin,
            background: true,
            beginning: KEPT_OUTPUT_BYTES,
            ..ExecRequest::default()
        };
        Ok(session.exec(request).await?)
    }

    /// Freezes all processes.
    pub(crate) async fn pause(&self) -> Result<(), SandboxError> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        Ok(session.pause().await?)
    }

    /// Thaws all processes.
    pub(crate) async fn resume(&self) -> Result<(), SandboxError> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        Ok(session.resume().await?)
    }

    /// Whether the session has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        self.state().is_some_and(|state| state.ended.is_none())
    }

    /// State of the session.
    pub(crate) fn state(&self) -> Option<SessionState> {
        self.session.as_ref().map(Session::state)
    }

    /// Ends the sandbox and waits: only then all limits that were hit are known.
    pub(crate) async fn end(mut self) -> Option<SessionState> {
        match &self.session {
            Some(session) => {
                let ended = session.end().await;
                self.session = None;
                Some(ended)
            }
            None => None,
        }
    }

    /// Stops a program with a grace period and ends the sandbox, in the background. With too many
    /// at the same time, later ones get the short grace period.
    pub(crate) fn stop_in_background(self, exec: Exec) {
        let factory = self.factory.clone();
        let place = factory.in_grace.clone().try_acquire_owned().ok();
        let grace = if place.is_some() {
            STOP_GRACE
        } else {
            SHORT_STOP_GRACE
        };
        factory.spawn_background(async move {
            exec.stop(grace).await;
            drop((place, self));
        });
    }
}

impl Drop for CallSandbox {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let ending = self.factory.ending.clone();
            self.factory.spawn_background(async move {
                let _place = ending.acquire_owned().await;
                session.end().await;
            });
        }
    }
}

/// The input line of a warm interpreter.
pub(super) fn stdin_line(path: &str) -> Vec<u8> {
    [OsString::from(path).as_bytes(), b"\n"].concat()
}
