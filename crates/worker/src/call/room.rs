//! The box of one call: a session of the engine with the tool's code shown read-only, a fresh work folder, and our runner in it.
//! It ends behind the answer; whoever closes waits for that.

use super::{
    handle::Workspace,
    places,
    profile::{self, Profile},
    status::Statuses,
};
use crate::{
    ipc,
    tools::{Code, Limits, What},
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

/// Our runner.
pub(super) const RUNNER: &[u8] = include_bytes!("../runner/runner.py");
/// Boxes that are being ended at once; others wait, and with them whoever wants a new box.
pub(super) const MOST_ENDING: usize = 16;
/// Boxes whose program has its whole grace; in others it has the short one.
pub(super) const MOST_IN_GRACE: usize = 16;
/// What a program has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// No longer than its call waits for its last words: so those are no more than there are calls.
pub(super) const SHORT_GRACE: Duration = Duration::from_millis(500);
/// Of each stream of a program, the beginning that is kept, and the end.
pub(super) const KEPT: usize = 16 << 10;

/// What a box is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) code: Code,
    pub(crate) profile: Profile,
    pub(crate) limits: Limits,
    /// None for one that asks what a tool is: it reaches nobody.
    pub(crate) what: Option<What>,
}

impl Kind {
    /// Whether a box for one is a box for the other: tools of the same code differ only in what runs in it.
    pub(super) fn has_the_box_of(&self, other: &Kind) -> bool {
        let Kind {
            code,
            profile,
            limits,
            what,
        } = other;
        (&self.code, self.profile, &self.limits, self.what.is_some())
            == (code, *profile, limits, what.is_some())
    }
}

/// Makes boxes, and sees to their end.
#[derive(Debug)]
pub(crate) struct Rooms {
    engine: Engine,
    policy: Policy,
    /// The runner as the interpreter compiled it, once it has.
    pub(super) compiled: OnceLock<Arc<[u8]>>,
    pub(super) is_compiling: AtomicBool,
    pub(super) ending: Arc<Semaphore>,
    pub(super) in_grace: Arc<Semaphore>,
    behind: Mutex<JoinSet<()>>,
}

/// Why there is no box. For the log: there may be paths of this machine in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("{}", .0.message)]
    Engine(ErrorInfo),
    #[error("its work folder cannot be used: {0}")]
    Workspace(#[from] io::Error),
}

impl NoRoom {
    /// Whether it may be otherwise the next time.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, NoRoom::Engine(error) if error.code == ErrorCode::Conflict)
    }
}

impl From<ErrorInfo> for NoRoom {
    fn from(error: ErrorInfo) -> NoRoom {
        NoRoom::Engine(error)
    }
}

impl Rooms {
    pub(crate) fn new(engine: Engine) -> Arc<Rooms> {
        Arc::new(Rooms {
            engine,
            policy: profile::policy(),
            compiled: OnceLock::new(),
            is_compiling: AtomicBool::new(false),
            ending: Arc::new(Semaphore::new(MOST_ENDING)),
            in_grace: Arc::new(Semaphore::new(MOST_IN_GRACE)),
            behind: Mutex::default(),
        })
    }

    /// What the work folder of such a box may hold, in bytes.
    pub(crate) fn disk(&self, profile: Profile) -> u64 {
        self.policy
            .profile(profile.name())
            .map_or(0, |profile| profile.limits.disk.0)
    }

    /// A box with an empty work folder and what every call has in it.
    pub(crate) async fn open(self: &Arc<Rooms>, kind: &Kind) -> Result<Room, NoRoom> {
        // Behind those that wait for their end: so there are never many more boxes than calls.
        drop(self.ending.acquire().await);
        let request = self.request(kind);
        let spec = self
            .policy
            .admit_session(request)
            .map_err(ErrorInfo::from)?;
        // Not by who may be gone meanwhile: then it is ended like others, and `close` waits for it.
        let ((ready, made), rooms) = (oneshot::channel(), self.clone());
        self.behind(async move { drop(ready.send(rooms.make(spec).await)) });
        made.await.map_err(io::Error::other)?
    }

    async fn make(self: Arc<Rooms>, spec: SessionSpec) -> Result<Room, NoRoom> {
        let session = self.engine.open_session(spec).await?;
        // From here on it is ended, whatever fails.
        let (runner, rooms) = (places::SOURCE, self.clone());
        let mut room = Room {
            session: Some(session.clone()),
            workspace: None,
            rooms,
            runner,
        };
        let (folder, owner) = session.workspace()?;
        let workspace = Workspace::new(folder, owner);
        room.runner = self.furnish(&workspace)?;
        room.workspace = Some(workspace);
        Ok(room)
    }

    fn request(&self, kind: &Kind) -> SessionRequest {
        // Its stamp is a part of the kind, and nothing of the box.
        let Code {
            python,
            folder,
            packages,
            site,
            stamp: _,
        } = &kind.code;
        let shown = [
            (python, places::PYTHON),
            (folder, places::FOLDER),
            (packages, places::PACKAGES),
            (site, places::SITE),
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
        // We have clocks of our own; and with this process, boxes end.
        let life = Some(spec::LONGEST_LIFETIME);
        SessionRequest {
            run,
            idle: life,
            lifetime: life,
        }
    }

    /// What is there before anybody is inside: the runner, in the form that takes the least time; its name.
    fn furnish(&self, workspace: &Workspace) -> io::Result<&'static str> {
        let own = workspace.make_folder(workspace.folder(), places::OWN)?;
        let (name, bytes) = match self.compiled.get() {
            Some(compiled) => (places::COMPILED, &compiled[..]),
            None => (places::SOURCE, RUNNER),
        };
        workspace.make_file(own.as_fd(), name, 0o444, bytes)?;
        Ok(name)
    }

    /// Has something done that nobody waits for but [`Rooms::close`].
    pub(crate) fn behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime the engine, too, is at its end: it takes its boxes with it.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        while behind.try_join_next().is_some() {}
        behind.spawn_on(work, &runtime);
    }

    /// Waits until every box that was left is gone.
    pub(crate) async fn close(&self) {
        loop {
            let mut behind =
                std::mem::take(&mut *self.behind.lock().unwrap_or_else(PoisonError::into_inner));
            if behind.is_empty() {
                return;
            }
            while behind.join_next().await.is_some() {}
        }
    }
}

fn mount(host: &Path, inside: &str) -> OsString {
    let mut text = host.as_os_str().to_owned();
    text.push(format!(":{inside}:ro"));
    text
}

/// What a program finds in its environment, beside what the engine sets: nothing of ours.
fn variables(kind: &Kind) -> Vec<(&'static str, String)> {
    vec![
        ("LANG", "C.UTF-8".to_owned()),
        ("PYTHONPATH", python_path(&kind.code)),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("_SAM_SANDBOX_LIGHT", "1".to_owned()),
    ]
}

fn python_path(code: &Code) -> String {
    let folder = [
        format!("{}/python", places::FOLDER),
        places::FOLDER.to_owned(),
    ];
    let folder = folder.into_iter().filter(|_| code.folder.is_some());
    let python = code.python.iter().map(|_| places::PYTHON.to_owned());
    let packages = code.packages.iter().map(|_| places::PACKAGES.to_owned());
    let site = code.site.iter().map(|_| places::SITE.to_owned());
    folder
        .chain(python)
        .chain(packages)
        .chain(site)
        .collect::<Vec<_>>()
        .join(":")
}

/// A command with exactly the variables that tools are promised, whatever else the engine sets.
pub(super) fn bare(kind: &Kind, command: Vec<OsString>) -> Vec<OsString> {
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

/// Where a program of a tool's folder is inside.
pub(super) fn executable(code: &Code, path: &Path) -> OsString {
    let within = code
        .folder
        .as_deref()
        .and_then(|folder| path.strip_prefix(folder).ok());
    match within {
        Some(within) => Path::new(places::FOLDER).join(within).into_os_string(),
        // It lies there, whatever the folder is called outside.
        None if path.is_relative() => Path::new(places::FOLDER).join(path).into_os_string(),
        None => path.as_os_str().to_owned(),
    }
}

/// A box. Dropped, it ends behind.
#[derive(Debug)]
pub(crate) struct Room {
    session: Option<Session>,
    workspace: Option<Workspace>,
    rooms: Arc<Rooms>,
    runner: &'static str,
}

impl Room {
    /// A command that has the interpreter run our runner.
    pub(crate) fn runner(&self, python: &Path, arguments: &[&str]) -> Vec<OsString> {
        let runner = places::inside(&format!("{}/{}", places::OWN, self.runner));
        // Without a home of its own no packages of a user are looked for. What the engine sets beside, the runner takes away.
        let begin = [python.as_os_str().to_owned(), "-s".into(), runner.into()];
        begin
            .into_iter()
            .chain(arguments.iter().map(OsString::from))
            .collect()
    }

    /// Its work folder.
    pub(crate) fn workspace(&self) -> Result<&Workspace, NoRoom> {
        self.workspace
            .as_ref()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }

    /// What a call has beside: folders for files in and out, the FIFO for statuses, and the socket at which models are asked,
    /// if there are any.
    pub(crate) fn prepare(
        &self,
        has_models: bool,
    ) -> Result<(Statuses, Option<UnixListener>), NoRoom> {
        let workspace = self.workspace()?;
        workspace.make_folder(workspace.folder(), places::INPUT)?;
        workspace.make_folder(workspace.folder(), places::OUTPUT)?;
        let statuses = Statuses::new(workspace.make_pipe(places::STATUS)?)?;
        let socket = has_models
            .then(|| ipc::bind(workspace.folder(), workspace.owner()))
            .transpose()?;
        Ok((statuses, socket))
    }

    /// What the engine calls it.
    pub(crate) fn id(&self) -> Option<&Id> {
        self.session.as_ref().map(Session::id)
    }

    /// Starts a program. It has no time of its own: whoever starts it has a clock.
    pub(crate) async fn start(&self, command: Vec<OsString>, stdin: bool) -> Result<Exec, NoRoom> {
        let Some(session) = &self.session else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let request = ExecRequest {
            command,
            stdin,
            background: true,
            beginning: KEPT,
            ..ExecRequest::default()
        };
        Ok(session.exec(request).await?)
    }

    /// Stops everything in it where it is.
    pub(crate) async fn pause(&self) -> Result<(), NoRoom> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        Ok(session.pause().await?)
    }

    /// Lets it go on.
    pub(crate) async fn resume(&self) -> Result<(), NoRoom> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        Ok(session.resume().await?)
    }

    /// Whether it has not ended.
    pub(crate) fn stands(&self) -> bool {
        self.state().is_some_and(|state| state.ended.is_none())
    }

    /// How it stands.
    pub(crate) fn state(&self) -> Option<SessionState> {
        self.session.as_ref().map(Session::state)
    }

    /// Ends it, and waits for that: only then all limits are known that were hit.
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

    /// Asks a program of it to end, makes it after its grace, and ends the box, all of it behind. Nobody waits for it: with too
    /// many at once, those that come later have less grace.
    pub(crate) fn leave_to_stop(self, exec: Exec) {
        let rooms = self.rooms.clone();
        let place = rooms.in_grace.clone().try_acquire_owned().ok();
        let grace = if place.is_some() { GRACE } else { SHORT_GRACE };
        rooms.behind(async move {
            exec.stop(grace).await;
            drop((place, self));
        });
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let ending = self.rooms.ending.clone();
            self.rooms.behind(async move {
                let _place = ending.acquire_owned().await;
                session.end().await;
            });
        }
    }
}

/// A path inside, as bytes: what a parked interpreter is sent.
pub(super) fn line(path: &str) -> Vec<u8> {
    [OsString::from(path).as_bytes(), b"\n"].concat()
}
