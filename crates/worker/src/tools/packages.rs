//! Installs the Python packages of tools with pip in a sandbox and keeps them as read-only folders.
//!
//! ```text
//! requirement, wheels ─ hash ─┬─ exists ─▶ the folder
//!                             └─ sandbox: copy wheels in ─ pip ─ copy files out ─▶ .making-… (locked) ─ checked ─ renamed ─▶ the folder
//! ```
//! Equal requirements share a folder. No package code runs here: wheels are only unpacked. (A
//! package from an index may require another one by URL, which pip builds from source: in pip's
//! sandbox, which has no more rights than a tool's.) Leftovers of a crash have no lock and are
//! swept; so are folders unused for a week and, above the quota, those that were not used for the
//! longest time.

use super::{
    problem::{ToolProblem, reason, word},
    requirement::PackageRequirement,
    wheels::Wheels,
};
use engine::{
    Engine, Exec, Session,
    tree::{CopyLimits, Tree},
};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};
use spec::{
    ErrorInfo, ExecRequest, LimitSet, Network, Policy, RunRequest, SessionRequest, Size, Status,
    StdStream, Time,
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

/// Timeout of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Limits of a package folder.
const LAYER_LIMITS: CopyLimits = CopyLimits {
    entries: 50_000,
    bytes: 1 << 30,
    depth: 32,
    listed: 3,
};
/// Packages take their space twice while pip runs.
const SANDBOX_BYTES: u64 = 2 << 30;
/// Delay before a failed installation is repeated, because many tools may have the same
/// requirement.
const RETRY_DELAY: Duration = Duration::from_secs(4);
/// A folder unused for this long is swept.
const UNUSED_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
const PARTIAL_PREFIX: &str = ".making-";
/// Paths in the sandbox.
const WHEELS: &str = "/workspace/wheels";
const LAYER: &str = "/workspace/layer";

mod disk_quota;
mod resolvable;
mod version;

pub(crate) use resolvable::ResolvableWheels;

/// The package index; the public one by default. Only pip in its sandbox gets it, so that it must
/// not contain credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageIndex {
    /// `PIP_INDEX_URL`.
    pub url: Option<String>,
    /// `PIP_TRUSTED_HOST`: a host that is trusted without TLS.
    pub trusted_host: Option<String>,
}

/// Installs packages.
#[derive(Clone, Debug)]
pub struct Installer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    folder: PathBuf,
    python: PathBuf,
    index: PackageIndex,
    /// Version of the interpreter: packages depend on it.
    version: OnceCell<String>,
    /// Quota of all folders.
    most_kept: u64,
    /// Time for one round of adding wheels one by one.
    round_timeout: Duration,
    /// Trials of wheels; locked by the task that runs them.
    known: Mutex<Option<resolvable::WheelTrials>>,
    /// The last result of the trials.
    sound: std::sync::Mutex<(Wheels, ResolvableWheels)>,
    /// Serializes installations, because the next one often needs the same folder. The last failure
    /// is remembered for a while.
    turn: Mutex<Option<(PathBuf, Instant, ToolProblem)>>,
}

impl Installer {
    /// Opens the package folder, `worker/packages` in the engine's state folder; only this folder
    /// is ever mounted for tools.
    pub fn open(
        engine: Engine,
        folder: PathBuf,
        python: PathBuf,
        index: PackageIndex,
    ) -> Result<Installer, ToolProblem> {
        index.check()?;
        let failed = |error: io::Error| {
            ToolProblem::new(
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
            most_kept: disk_quota::MAX_KEPT_BYTES,
            round_timeout: INSTALL_TIMEOUT,
            known: Mutex::default(),
            sound: std::sync::Mutex::default(),
            turn: Mutex::default(),
        }));
        installer.sweep(&BTreeSet::new());
        Ok(installer)
    }

    /// Returns the folder with these packages, installed if necessary; none if there is nothing to
    /// install.
    pub async fn layer(
        &self,
        requirement: Option<&PackageRequirement>,
        wheels: &Wheels,
        report: impl Fn(String) + Send,
    ) -> Result<Option<PathBuf>, ToolProblem> {
        if requirement.is_none() && wheels.files.is_empty() {
            return Ok(None);
        }
        let version = self.0.version.get_or_try_init(|| self.version()).await?;
        let place = self.0.folder.join(self.name(version, requirement, wheels));
        let mut failed = self.0.turn.lock().await;
        if !place.is_dir() {
            if let Some((_, _, problem)) = failed
                .as_ref()
                .filter(|(other, at, _)| *other == place && at.elapsed() < RETRY_DELAY)
            {
                return Err(problem.clone());
            }
            let what = InstallRequest {
                requirement,
                wheels,
                only: None,
            };
            report(format!("installing {what} in a sandbox"));
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
            report(format!(
                "installed {what} in {:.1} s",
                began.elapsed().as_secs_f64()
            ));
            // An exceeded quota is reported at the next installation.
            _ = self.make_room().await;
        }
        touch(&place);
        Ok(Some(place))
    }

    async fn make_room(&self) -> Result<(), ToolProblem> {
        let folder = self.0.folder.clone();
        let limit = self.0.most_kept;
        blocking(move || disk_quota::make_room(&folder, limit)).await
    }

    fn name(
        &self,
        version: &str,
        requirement: Option<&PackageRequirement>,
        wheels: &Wheels,
    ) -> String {
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

    /// Version of the Python interpreter.
    async fn version(&self) -> Result<String, ToolProblem> {
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

    async fn make(&self, what: &InstallRequest<'_>, place: &Path) -> Result<(), ToolProblem> {
        let session = self.open_sandbox(what).await?;
        let made = self.make_in(&session, what, place).await;
        session.end().await;
        made
    }

    /// A sandbox with the wheels.
    async fn open_sandbox(&self, what: &InstallRequest<'_>) -> Result<Session, ToolProblem> {
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

    fn session(&self, what: &InstallRequest<'_>) -> Result<spec::SessionSpec, ToolProblem> {
        // Only named requirements need an index; wheels are self-contained.
        let network = if what.requirement.is_some() {
            Network::Open
        } else {
            Network::None
        };
        let limits = LimitSet {
            memory: Some(Size(SANDBOX_BYTES)),
            disk: Some(Size(SANDBOX_BYTES)),
            file_size: Some(Size(LAYER_LIMITS.bytes)),
            wall_time: Some(Time(INSTALL_TIMEOUT)),
            ..LimitSet::default()
        };
        let PackageIndex { url, trusted_host } = &self.0.index;
        let variables = [("PIP_INDEX_URL", url), ("PIP_TRUSTED_HOST", trusted_host)].into_iter();
        let env = variables
            .filter_map(|(name, value)| Some((name.into(), value.as_ref()?.into())))
            .collect();
        let run = RunRequest {
            profile: Some("standard".to_owned()),
            network: Some(network),
            limits,
            env,
            ..RunRequest::default()
        };
        // Trials of wheels start within the timeout of one installation.
        let lifetime = Some(2 * INSTALL_TIMEOUT + Duration::from_secs(120));
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
        what: &InstallRequest<'_>,
        place: &Path,
    ) -> Result<(), ToolProblem> {
        let request = ExecRequest {
            command: command(&self.0.python, what),
            timeout: Some(INSTALL_TIMEOUT),
            ..ExecRequest::default()
        };
        let exec = session
            .exec(request)
            .await
            .map_err(|error: ErrorInfo| not_begun(&error.message))?;
        check_install(&exec, what).await?;
        let (workspace, owner) = session
            .workspace()
            .map_err(|error| not_begun(&error.message))?;
        let folder = self.0.folder.clone();
        let place = place.to_owned();
        blocking(move || publish_layer(&workspace, owner, &folder, &place)).await
    }

    /// Removes leftovers of crashes, and old folders that are not in use.
    pub fn sweep(&self, in_use: &BTreeSet<PathBuf>) {
        let Ok(entries) = fs::read_dir(&self.0.folder) else {
            return;
        };
        in_use.iter().for_each(|place| touch(place));
        for entry in entries.flatten() {
            let path = entry.path();
            let is_making = entry
                .file_name()
                .to_string_lossy()
                .starts_with(PARTIAL_PREFIX);
            let age = entry.metadata().and_then(|found| found.modified());
            let is_old = age.is_ok_and(|at| {
                SystemTime::now()
                    .duration_since(at)
                    .is_ok_and(|age| age > UNUSED_LIFETIME)
            });
            if is_making && lock(&path).is_some() {
                _ = fs::remove_dir_all(&path);
            } else if !is_making && is_old && !in_use.contains(&path) {
                discard(&self.0.folder, &path);
            }
        }
    }
}

/// What to install; displayed in messages.
struct InstallRequest<'a> {
    requirement: Option<&'a PackageRequirement>,
    wheels: &'a Wheels,
    /// Install only these wheels, with the others as dependencies.
    only: Option<&'a [String]>,
}

impl fmt::Display for InstallRequest<'_> {
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

impl PackageIndex {
    /// Validates the URL: no credentials, and TLS unless the host is trusted.
    fn check(&self) -> Result<(), ToolProblem> {
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
            return Err(ToolProblem::new(
                "PIP_TRUSTED_HOST is no host",
                "write HOST or HOST:PORT",
            ));
        }
        let Some(url) = &self.url else { return Ok(()) };
        let (rest, is_safe) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (rest, true),
            (None, Some(rest)) => (rest, false),
            (None, None) => {
                return Err(ToolProblem::new(
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
            return Err(ToolProblem::new(message, hint));
        }
        if is_safe || self.trusted_host.as_deref() == Some(host) {
            Ok(())
        } else {
            let message =
                "PIP_INDEX_URL is without TLS: anybody on the way could say what is installed";
            Err(ToolProblem::new(
                message,
                "use https, or set PIP_TRUSTED_HOST to its host, too",
            ))
        }
    }
}

fn command(python: &Path, what: &InstallRequest<'_>) -> Vec<OsString> {
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
        // Anything but a wheel runs code when it is installed. Pip does not apply this to
        // dependencies by URL.
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

async fn check_install(exec: &Exec, what: &InstallRequest<'_>) -> Result<(), ToolProblem> {
    let result = exec.wait().await;
    if result.status == Status::Succeeded {
        return Ok(());
    }
    let output = exec.output();
    let from = output.lengths()[1].saturating_sub(64 << 10);
    let stderr = output.read(StdStream::Stderr, from, 64 << 10).bytes;
    let stderr = String::from_utf8_lossy(&stderr);
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("No module"))
        .collect();
    let why = match (result.status, errors.is_empty(), result.error) {
        (Status::TimedOut, _, _) => format!("it took longer than {} s", INSTALL_TIMEOUT.as_secs()),
        (_, false, _) => errors.join(" "),
        (_, true, Some(error)) => error.message,
        (_, true, None) => stderr.into_owned(),
    };
    let message = format!("{what} cannot be installed: {}", reason(&why));
    let hint = "it is tried again after a while; put what is needed into wheels/ beside the manifest, as wheels";
    // Errors of pip are permanent; a timeout or a full disk may pass.
    let is_passing = result.status != Status::Failed || why.contains("No space left on device");
    Err(ToolProblem {
        is_passing,
        ..ToolProblem::new(message, hint)
    })
}

fn not_begun(why: &str) -> ToolProblem {
    let message = format!("packages cannot be installed: {}", reason(why));
    ToolProblem::new(
        message,
        "it is tried again after a while; `airlock doctor` shows what sandboxes lack",
    )
    .passing()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolProblem> + Send + 'static,
) -> Result<T, ToolProblem> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(not_begun(&error.to_string())))
}

/// Copies the installed files out of the sandbox and checks them before they are published.
fn publish_layer(
    workspace: &OwnedFd,
    owner: Option<(u32, u32)>,
    folder: &Path,
    place: &Path,
) -> Result<(), ToolProblem> {
    let failed =
        |error: io::Error| not_begun(&format!("what was installed cannot be kept: {error}"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = rustix::fs::openat(workspace, "layer", flags, Mode::empty());
    let from = Tree::new(
        from.map_err(|error| failed(error.into()))?,
        owner,
        LAYER_LIMITS.bytes,
    );
    let making = folder.join(format!("{PARTIAL_PREFIX}{}", engine::fresh_id()));
    fs::create_dir(&making).map_err(failed)?;
    let made = lock(&making)
        .ok_or_else(|| failed(io::Error::other("its lock is taken")))
        .and_then(|held| {
            let to = Tree::new(held.try_clone().map_err(failed)?, None, LAYER_LIMITS.bytes);
            let copied = from.copy_into(&to, LAYER_LIMITS).map_err(failed)?;
            if let Some(left_out) = copied.left_out.first() {
                let message = format!("what was installed is not kept: {}", reason(left_out));
                return Err(ToolProblem::new(message, "install less, and files only"));
            }
            make_read_only(&making, &making).map_err(failed)??;
            rustix::fs::syncfs(&held).map_err(|error| failed(error.into()))?;
            fs::rename(&making, place).map_err(failed)
        });
    if made.is_err() {
        _ = fs::remove_dir_all(&making);
    }
    made
}

/// Allows only files and folders, and makes files read-only.
fn make_read_only(folder: &Path, top: &Path) -> io::Result<Result<(), ToolProblem>> {
    for entry in fs::read_dir(folder)? {
        let (path, found) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if found.is_dir() {
            if let Err(problem) = make_read_only(&path, top)? {
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
            return Ok(Err(ToolProblem::new(
                message,
                "packages with links are not kept",
            )));
        }
    }
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    Ok(Ok(()))
}

/// Locks a folder; a locked one has a live writer.
fn lock(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(handle)
}

/// Renames a folder before removing it, so that no partial folder is visible.
fn discard(folder: &Path, place: &Path) {
    let aside = folder.join(format!("{PARTIAL_PREFIX}{}", engine::fresh_id()));
    if fs::rename(place, &aside).is_ok() {
        _ = fs::remove_dir_all(&aside);
    }
}

/// Marks a folder as used. If that fails, it may be swept and installed again.
fn touch(place: &Path) {
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
