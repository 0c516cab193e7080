//! Packages that tools need: installed by pip in a sandbox, taken out by handle, and kept as folders that are only read.
//!
//! ```text
//! requirement, wheels ─ hash ─┬─ there ─▶ the folder
//!                             └─ box: wheels in ─ pip ─ files out ─▶ .making-… (locked) ─ looked at ─ renamed ─▶ the folder
//! ```
//! Equal needs share a folder. Nothing of a package runs here: what is installed are wheels, whose files are only unpacked. (A
//! package from an index may need another by an address, and pip builds that from its source: in pip's box, which has no more
//! than the box of a tool.) What a crash leaves has no lock, and is swept; so is what nobody used for a week, and, beyond what
//! all may take, what was not used for the longest.

use super::{
    problem::{Problem, reason, word},
    requirement::Requirement,
    wheels::Wheels,
};
use engine::{
    Engine, Exec, Session,
    tree::{CopyBounds, Tree},
};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};
use spec::{
    ErrorInfo, ExecRequest, Maximum, Network, Policy, RunRequest, SessionRequest, Size, Status,
    Stream, Time,
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt, fs, io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Mutex, OnceCell},
    time::Instant,
};

/// What installing may take.
const LONGEST: Duration = Duration::from_secs(300);
/// What a folder may have.
const MOST: CopyBounds = CopyBounds {
    entries: 50_000,
    bytes: 1 << 30,
    depth: 32,
    told: 3,
};
/// What is installed takes its room twice while pip is at it.
const ROOM: u64 = 2 << 30;
/// Until what failed is tried again: many tools may want the same.
const AGAIN: Duration = Duration::from_secs(4);
/// A folder that nobody used for so long is swept.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);
const MAKING: &str = ".making-";
/// Where things are in the box.
const WHEELS: &str = "/workspace/wheels";
const LAYER: &str = "/workspace/layer";

mod room;
mod sound;
mod version;

pub(crate) use sound::Sound;

/// Where packages come from; the public index if nothing is said. Told to pip in its sandbox, and to nobody else, so that it
/// may hold no credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// `PIP_INDEX_URL`.
    pub url: Option<String>,
    /// `PIP_TRUSTED_HOST`: a host whose word is taken without TLS.
    pub trusted_host: Option<String>,
}

/// Installs.
#[derive(Clone, Debug)]
pub struct Installer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    folder: PathBuf,
    python: PathBuf,
    index: Index,
    /// What the interpreter says of itself: packages are for one version.
    version: OnceCell<String>,
    /// What all folders may take.
    most_kept: u64,
    /// How long wheels are added one after the other at a time.
    patience: Duration,
    /// What is known of wheels; held by whoever finds out more.
    known: Mutex<Option<sound::Known>>,
    /// Which of these can be installed.
    sound: std::sync::Mutex<(Wheels, Sound)>,
    /// One at a time: the second often needs what the first made. What failed last fails again for a while.
    turn: Mutex<Option<(PathBuf, Instant, Problem)>>,
}

impl Installer {
    /// One that keeps what it makes in this folder, which is `worker/packages` of the engine's state folder: nothing else of
    /// that is ever shown to a tool.
    pub fn open(
        engine: Engine,
        folder: PathBuf,
        python: PathBuf,
        index: Index,
    ) -> Result<Installer, Problem> {
        index.check()?;
        let failed = |error: io::Error| {
            Problem::new(
                format!("the folder for packages cannot be made: {error}"),
                "choose another --state",
            )
        };
        fs::create_dir_all(&folder).map_err(failed)?;
        let folder = fs::canonicalize(folder).map_err(failed)?;
        let installer = Installer(Arc::new(Inner {
            engine,
            folder,
            python,
            index,
            version: OnceCell::new(),
            most_kept: room::MOST_KEPT,
            patience: LONGEST,
            known: Mutex::default(),
            sound: std::sync::Mutex::default(),
            turn: Mutex::default(),
        }));
        installer.sweep(&BTreeSet::new());
        Ok(installer)
    }

    /// The folder with these, made if there is none. None if nothing is wanted.
    pub async fn layer(
        &self,
        requirement: Option<&Requirement>,
        wheels: &Wheels,
        tell: impl Fn(String) + Send,
    ) -> Result<Option<PathBuf>, Problem> {
        if requirement.is_none() && wheels.files.is_empty() {
            return Ok(None);
        }
        let version = self.0.version.get_or_try_init(|| self.version()).await?;
        let place = self.0.folder.join(self.name(version, requirement, wheels));
        let mut failed = self.0.turn.lock().await;
        if !place.is_dir() {
            if let Some((_, _, problem)) = failed
                .as_ref()
                .filter(|(other, at, _)| *other == place && at.elapsed() < AGAIN)
            {
                return Err(problem.clone());
            }
            let what = Wanted {
                requirement,
                wheels,
                only: None,
            };
            tell(format!("installing {what} in a sandbox"));
            let began = Instant::now();
            let made = match self.make_room().await {
                Ok(()) => self.make(&what, &place).await,
                Err(problem) => Err(problem),
            };
            *failed = made
                .clone()
                .err()
                .map(|problem| (place.clone(), Instant::now(), problem));
            made?;
            tell(format!(
                "installed {what} in {:.1} s",
                began.elapsed().as_secs_f64()
            ));
            // What is too much now is told when the next is wanted.
            _ = self.make_room().await;
        }
        used(&place);
        Ok(Some(place))
    }

    async fn make_room(&self) -> Result<(), Problem> {
        let (folder, most) = (self.0.folder.clone(), self.0.most_kept);
        blocking(move || room::make_room(&folder, most)).await
    }

    fn name(&self, version: &str, requirement: Option<&Requirement>, wheels: &Wheels) -> String {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        add("1");
        add(version);
        add(&requirement.map(ToString::to_string).unwrap_or_default());
        add(self
            .0
            .index
            .url
            .as_deref()
            .filter(|_| requirement.is_some())
            .unwrap_or_default());
        for (name, content) in &wheels.files {
            add(name);
            add(content);
        }
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Which Python it is that packages are for.
    async fn version(&self) -> Result<String, Problem> {
        let code = "import sys, sysconfig; print(sys.version, sysconfig.get_platform(), sys.implementation.cache_tag)";
        let command = vec![self.0.python.clone().into(), "-c".into(), code.into()];
        let request = RunRequest {
            command,
            profile: Some("restrictive".to_owned()),
            ..RunRequest::default()
        };
        let spec = Policy::default()
            .admit(request)
            .map_err(|error| not_begun(&error.message))?;
        let result = self.0.engine.run(spec).await;
        match result.status {
            Status::Succeeded => Ok(String::from_utf8_lossy(&result.stdout).into_owned()),
            _ => {
                let why = result.error.map(|error| error.message);
                Err(not_begun(&why.unwrap_or_else(|| {
                    String::from_utf8_lossy(&result.stderr).into_owned()
                })))
            }
        }
    }

    async fn make(&self, what: &Wanted<'_>, place: &Path) -> Result<(), Problem> {
        let session = self.open_box(what).await?;
        let made = self.make_in(&session, what, place).await;
        session.end().await;
        made
    }

    /// A box with the wheels in it.
    async fn open_box(&self, what: &Wanted<'_>) -> Result<Session, Problem> {
        let session = self.0.engine.open_session(self.session(what)?).await;
        let session = session.map_err(|error| not_begun(&error.message))?;
        let filled = match session.tree() {
            Ok(tree) => {
                let wheels = what.wheels.clone();
                blocking(move || wheels.put_into(&tree, Path::new(WHEELS))).await
            }
            Err(error) => Err(not_begun(&error.message)),
        };
        if let Err(problem) = filled {
            session.end().await;
            return Err(problem);
        }
        Ok(session)
    }

    fn session(&self, what: &Wanted<'_>) -> Result<spec::SessionSpec, Problem> {
        // Only what is named needs an index; wheels bring what they need.
        let network = if what.requirement.is_some() {
            Network::Open
        } else {
            Network::None
        };
        let limits = Maximum {
            memory: Some(Size(ROOM)),
            disk: Some(Size(ROOM)),
            file_size: Some(Size(MOST.bytes)),
            wall_time: Some(Time(LONGEST)),
            ..Maximum::default()
        };
        let Index { url, trusted_host } = &self.0.index;
        let said = [("PIP_INDEX_URL", url), ("PIP_TRUSTED_HOST", trusted_host)].into_iter();
        let env = said
            .filter_map(|(name, value)| Some((name.into(), value.as_ref()?.into())))
            .collect();
        let run = RunRequest {
            profile: Some("standard".to_owned()),
            network: Some(network),
            limits,
            env,
            ..RunRequest::default()
        };
        // Wheels that are tried alone begin within the time that one may take.
        let lifetime = Some(2 * LONGEST + Duration::from_secs(120));
        let request = SessionRequest {
            run,
            idle: lifetime,
            lifetime,
        };
        Policy::default()
            .admit_session(request)
            .map_err(|error| not_begun(&error.message))
    }

    async fn make_in(
        &self,
        session: &Session,
        what: &Wanted<'_>,
        place: &Path,
    ) -> Result<(), Problem> {
        let request = ExecRequest {
            command: command(&self.0.python, what),
            timeout: Some(LONGEST),
            ..ExecRequest::default()
        };
        let exec = session
            .exec(request)
            .await
            .map_err(|error: ErrorInfo| not_begun(&error.message))?;
        judge(&exec, what).await?;
        let (workspace, owner) = session
            .workspace()
            .map_err(|error| not_begun(&error.message))?;
        let (folder, place) = (self.0.folder.clone(), place.to_owned());
        blocking(move || take_out(&workspace, owner, &folder, &place)).await
    }

    /// Removes what crashes left, and what nobody used for long and is not among these.
    pub fn sweep(&self, in_use: &BTreeSet<PathBuf>) {
        let Ok(entries) = fs::read_dir(&self.0.folder) else {
            return;
        };
        in_use.iter().for_each(|place| used(place));
        for entry in entries.flatten() {
            let path = entry.path();
            let is_making = entry.file_name().to_string_lossy().starts_with(MAKING);
            let age = entry.metadata().and_then(|found| found.modified());
            let is_old = age.is_ok_and(|at| {
                SystemTime::now()
                    .duration_since(at)
                    .is_ok_and(|age| age > UNUSED)
            });
            if is_making && lock(&path).is_some() {
                _ = fs::remove_dir_all(&path);
            } else if !is_making && is_old && !in_use.contains(&path) {
                discard(&self.0.folder, &path);
            }
        }
    }
}

/// What is wanted, for messages.
struct Wanted<'a> {
    requirement: Option<&'a Requirement>,
    wheels: &'a Wheels,
    /// Some of the wheels, and of the others what these need.
    only: Option<&'a [String]>,
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.requirement, self.wheels.files.len()) {
            _ if self.only.is_some() => out.write_str("it"),
            (Some(requirement), 0) => write!(out, "`{requirement}`"),
            (Some(requirement), 1) => write!(out, "`{requirement}` and 1 wheel"),
            (Some(requirement), count) => write!(out, "`{requirement}` and {count} wheels"),
            (None, 1) => out.write_str("1 wheel"),
            (None, count) => write!(out, "{count} wheels"),
        }
    }
}

impl Index {
    /// A plain address, by TLS unless the host is trusted without.
    fn check(&self) -> Result<(), Problem> {
        let hint = "write https://HOST/simple, or put wheels beside the manifest";
        let is_host = |host: &str| {
            let is_sign = |letter: char| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter);
            !host.is_empty() && host.chars().all(is_sign)
        };
        if self
            .trusted_host
            .as_deref()
            .is_some_and(|host| !is_host(host))
        {
            return Err(Problem::new(
                "PIP_TRUSTED_HOST is no host",
                "write HOST or HOST:PORT",
            ));
        }
        let Some(url) = &self.url else { return Ok(()) };
        let (rest, is_safe) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (rest, true),
            (None, Some(rest)) => (rest, false),
            (None, None) => {
                return Err(Problem::new(
                    "PIP_INDEX_URL is no address of an index",
                    hint,
                ));
            }
        };
        let host = rest.split('/').next().unwrap_or_default();
        if !is_host(host)
            || rest.contains(|letter: char| letter.is_control() || " @?#\"'".contains(letter))
        {
            let message = "PIP_INDEX_URL is no plain address: credentials are given to no sandbox";
            return Err(Problem::new(message, hint));
        }
        match is_safe || self.trusted_host.as_deref() == Some(host) {
            true => Ok(()),
            false => {
                let message =
                    "PIP_INDEX_URL is without TLS: anybody on the way could say what is installed";
                Err(Problem::new(
                    message,
                    "use https, or set PIP_TRUSTED_HOST to its host, too",
                ))
            }
        }
    }
}

fn command(python: &Path, what: &Wanted<'_>) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec![python.into()];
    let options = [
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-warn-script-location",
        "--progress-bar=off",
        "--retries=2",
        // Whatever is not a wheel runs code of its own when it is installed. Pip does not ask this of what a package needs by
        // an address.
        "--only-binary=:all:",
        "--target",
        LAYER,
    ];
    command.extend(options.map(OsString::from));
    if what.requirement.is_none() {
        command.push("--no-index".into());
    }
    if !what.wheels.files.is_empty() {
        command.extend(["--find-links".into(), WHEELS.into()]);
    }
    command.push("--".into());
    let wanted = what
        .wheels
        .files
        .keys()
        .filter(|name| what.only.is_none_or(|only| only.contains(name)));
    command.extend(wanted.map(|name| format!("{WHEELS}/{name}").into()));
    command.extend(
        what.requirement
            .map(|requirement| requirement.to_string().into()),
    );
    command
}

async fn judge(exec: &Exec, what: &Wanted<'_>) -> Result<(), Problem> {
    let result = exec.wait().await;
    if result.status == Status::Succeeded {
        return Ok(());
    }
    let output = exec.output();
    let from = output.lengths()[1].saturating_sub(64 << 10);
    let said = output.read(Stream::Stderr, from, 64 << 10).bytes;
    let said = String::from_utf8_lossy(&said);
    let errors: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("No module"))
        .collect();
    let why = match (result.status, errors.is_empty(), result.error) {
        (Status::TimedOut, _, _) => format!("it took longer than {} s", LONGEST.as_secs()),
        (_, false, _) => errors.join(" "),
        (_, true, Some(error)) => error.message,
        (_, true, None) => said.into_owned(),
    };
    let message = format!("{what} cannot be installed: {}", reason(&why));
    let hint = "it is tried again after a while; put what is needed into wheels/ beside the manifest, as wheels";
    // What pip says stays true; that it was stopped, or had no room, need not.
    let is_passing = result.status != Status::Failed || why.contains("No space left on device");
    Err(Problem {
        is_passing,
        ..Problem::new(message, hint)
    })
}

fn not_begun(why: &str) -> Problem {
    let message = format!("packages cannot be installed: {}", reason(why));
    Problem::new(
        message,
        "it is tried again after a while; `airlock doctor` shows what sandboxes lack",
    )
    .passing()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(not_begun(&error.to_string())))
}

/// Takes what pip made out of the box, and looks at it before anybody sees it.
fn take_out(
    workspace: &OwnedFd,
    owner: Option<(u32, u32)>,
    folder: &Path,
    place: &Path,
) -> Result<(), Problem> {
    let failed =
        |error: io::Error| not_begun(&format!("what was installed cannot be kept: {error}"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = rustix::fs::openat(workspace, "layer", flags, Mode::empty());
    let from = Tree::new(
        from.map_err(|error| failed(error.into()))?,
        owner,
        MOST.bytes,
    );
    let making = folder.join(format!("{MAKING}{}", engine::fresh_id()));
    fs::create_dir(&making).map_err(failed)?;
    let made = lock(&making)
        .ok_or_else(|| failed(io::Error::other("its lock is taken")))
        .and_then(|held| {
            let to = Tree::new(held.try_clone().map_err(failed)?, None, MOST.bytes);
            let copied = from.copy_into(&to, MOST).map_err(failed)?;
            if let Some(left_out) = copied.left_out.first() {
                let message = format!("what was installed is not kept: {}", reason(left_out));
                return Err(Problem::new(message, "install less, and files only"));
            }
            settle(&making, &making).map_err(failed)??;
            rustix::fs::syncfs(&held).map_err(|error| failed(error.into()))?;
            fs::rename(&making, place).map_err(failed)
        });
    if made.is_err() {
        _ = fs::remove_dir_all(&making);
    }
    made
}

/// Everything is a file or a folder, and only read from now on.
fn settle(folder: &Path, top: &Path) -> io::Result<Result<(), Problem>> {
    for entry in fs::read_dir(folder)? {
        let (path, found) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if found.is_dir() {
            if let Err(problem) = settle(&path, top)? {
                return Ok(Err(problem));
            }
        } else if found.is_file() {
            let may_run = found.permissions().mode() & 0o111 != 0;
            fs::set_permissions(
                &path,
                PermissionsExt::from_mode(if may_run { 0o555 } else { 0o444 }),
            )?;
        } else {
            let shown = word(&path.strip_prefix(top).unwrap_or(&path).to_string_lossy());
            let message = format!("what was installed has `{shown}`, which is no file");
            return Ok(Err(Problem::new(
                message,
                "packages with links are not kept",
            )));
        }
    }
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    Ok(Ok(()))
}

/// The lock of a folder in the making: whoever has it is alive.
fn lock(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(handle)
}

/// Out of its place first: no half of it is ever seen there.
fn discard(folder: &Path, place: &Path) {
    let aside = folder.join(format!("{MAKING}{}", engine::fresh_id()));
    if fs::rename(place, &aside).is_ok() {
        _ = fs::remove_dir_all(&aside);
    }
}

/// Somebody uses it. If that cannot be noted, it is made again some day.
fn used(place: &Path) {
    let now = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = rustix::fs::Timestamps {
        last_access: now,
        last_modification: now,
    };
    _ = rustix::fs::utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW);
}

#[cfg(test)]
#[path = "packages_tests.rs"]
mod tests;
