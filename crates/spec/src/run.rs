//! A run: what a front asks for ([`RunRequest`]) and what has been checked ([`RunSpec`]).

mod doors;

use crate::{
    Barrier, Budget, Contract, CopyBounds, ErrorCode, ErrorInfo, Exact, ExtraMounts, FileId,
    Grants, Hide, Id, ImagePolicy, ImageRef, InsidePath, Limits, Maximum, Policy, Ports, Profile,
    ProtectedNames, WorkspacePath,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// The working directory inside.
pub const WORKSPACE: &str = "/workspace";
/// The program's home: scratch space, gone afterwards.
pub const HOME: &str = "/home/agent";
/// The search path inside.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The user and group id inside.
pub const DEFAULT_ID: u32 = 1000;
/// How many paths of a workspace one request may name as artifacts.
pub const MAX_ARTIFACT_PATHS: usize = 1000;

/// What a front asks for, as it came: nothing here has been checked.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are the options of `airlock run`")]
pub struct RunRequest {
    pub command: Vec<OsString>,
    pub profile: Option<String>,
    pub backend: Option<String>,
    /// A folder, if it begins with `/` or `.`; else the name of an image.
    pub image: Option<PathBuf>,
    /// What runs before the command instead of what the image says; empty for nothing.
    pub entrypoint: Option<OsString>,
    /// Lets the program change the root: its own copy of it, gone afterwards.
    pub writable_root: bool,
    pub workspace: Option<PathBuf>,
    /// Shows that folder without letting it be written.
    pub read_only_workspace: bool,
    /// Leaves the workspace's folder as it is: what the program changes is kept apart.
    pub copy_on_write: bool,
    /// The same, but the changes are applied to the folder when the program has ended.
    pub staged: bool,
    /// `HOST:INSIDE[:ro|rw]`
    pub mounts: Vec<OsString>,
    /// What the host paths above must turn out to be, where somebody else than the asker has looked at them.
    pub exact: Option<Exact>,
    /// `NAME:INSIDE[:ro|rw]`, volumes of a container engine.
    pub volumes: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// The caller's own environment, of which only what the profile names passes.
    pub caller_env: BTreeMap<OsString, OsString>,
    pub limits: Maximum,
    pub network: Option<Network>,
    /// A network of a container engine that leads nowhere else.
    pub internal_network: Option<String>,
    /// Ports on the loopback inside at which the host listens, beyond those of the doors below.
    pub doors: Vec<u16>,
    /// The LLM door, to a provider by name or to the only one there is.
    pub llm: Option<Option<String>>,
    /// The inference door.
    pub inference: bool,
    /// `HOST[:PORT]`, hosts that may be reached through the egress door.
    pub allow_hosts: Vec<String>,
    /// Lets pass at the egress door what no rule allows, and writes it down.
    pub learn: bool,
    /// Which models; the profile's own list holds as well.
    pub allow_models: Vec<String>,
    /// How much of models.
    pub budget: Budget,
    /// `NAME=VARIABLE`, stored secrets that the program shall see.
    pub secrets: Vec<OsString>,
    /// `NAME=FILE` or `NAME=artifact:NAME[@VERSION]`
    pub inputs: Vec<OsString>,
    /// Inputs that came with the request, by their names in the workspace.
    pub inputs_given: Vec<(PathBuf, Arc<[u8]>)>,
    /// Inputs that are kept artifacts: the name in the workspace, the artifact's, and its version. Never read from one
    /// text, in which a name could end where its writer wants.
    pub inputs_kept: Vec<(PathBuf, PathBuf, Option<u64>)>,
    pub artifacts: Vec<PathBuf>,
    /// Protected names of the workspace that may be written after all.
    pub allow_protected: Vec<PathBuf>,
    /// Patterns of files in the workspace that the program does not see, beyond the usual; `none` for not even those.
    pub hide: Vec<String>,
    pub require: Vec<Barrier>,
    pub user: Option<User>,
    pub stdin: bool,
    /// A terminal of this size, which then is standard input, output and error.
    pub tty: Option<TerminalSize>,
    pub contract: Contract,
    pub run_id: Option<String>,
    pub task_id: Option<String>,
    pub job_id: Option<String>,
}

/// A checked run. Made only by [`Policy::admit`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunSpec {
    /// Given by the caller, or chosen by the engine.
    pub run_id: Option<Id>,
    /// The caller's task.
    pub task_id: Option<Id>,
    /// The caller's job.
    pub job_id: Option<Id>,
    /// The key that asks, which owns what the run keeps; none for whoever is at the machine itself. A front fills it in.
    pub owner: Option<Id>,
    /// Exact argument list; empty only where an image may say what to run.
    pub command: Vec<OsString>,
    /// What runs before the command instead of what the image says; empty for nothing.
    pub entrypoint: Option<OsString>,
    /// Whether the image may say who the program is: nobody else did.
    pub user_of_image: bool,
    /// Which images may be used.
    pub images: ImagePolicy,
    /// Whether standard input is passed through; otherwise it is empty, or the terminal.
    pub stdin: bool,
    /// How standard output is read at the end.
    pub contract: Contract,
    /// Files to put into the workspace before the run.
    pub inputs: Vec<(WorkspacePath, InputSource)>,
    /// Files to keep after the run.
    pub artifacts: Vec<WorkspacePath>,
    /// Whether what the program changed in a layer over its workspace is applied to the folder when it has ended.
    pub apply_changes: bool,
    /// Whether anything is kept at all. A front says no for whoever may not keep artifacts.
    pub keep: bool,
    /// What is granted beyond the box.
    pub grants: Grants,
    /// The trace that the program belongs to, in the words of W3C's `traceparent`. A front fills it in.
    pub traceparent: Option<String>,
    /// The box.
    pub sandbox: SandboxSpec,
}

/// The box a run gets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxSpec {
    /// Name of the profile it came from.
    pub profile: String,
    /// What makes it.
    pub backend: Backend,
    /// The root file system.
    pub root: Root,
    /// Whether the program may change the root, in a copy of its own.
    pub writable_root: bool,
    /// Host directory at `/workspace`; a fresh one if none.
    pub workspace: Option<PathBuf>,
    /// Whether that directory can only be read.
    pub read_only_workspace: bool,
    /// Whether that folder stays as it is, and what the program changes is kept apart.
    pub copy_on_write: bool,
    /// Up to which size the folder is copied for that, if it is said.
    pub copy: Option<CopyBounds>,
    /// What lies over that folder where nothing is copied before it is written. Set by whoever makes the layer.
    pub overlay: Option<WorkspaceOverlay>,
    /// Which names in a mounted workspace are protected.
    pub protected: ProtectedNames,
    /// Which of its files the program does not see.
    pub hide: Hide,
    /// Files that are put into a mounted workspace, and do not stay there.
    pub passing_inputs: Vec<WorkspacePath>,
    /// Further mounts.
    pub mounts: Vec<Mount>,
    /// What its host paths must turn out to be, whenever one is looked up; none where the asker may name any.
    pub exact: Option<Exact>,
    /// What some of its host paths led to when a front looked at them without following links; a path that is not among
    /// them may lead anywhere.
    pub pinned: Exact,
    /// Those of the mounts that stand for the workspace's own repository, and what they must turn out to be: what they
    /// cover is not protected, and they are read with the rights of their owner.
    pub git: Exact,
    /// Volumes of a container engine.
    pub volumes: Vec<Volume>,
    /// Where the program starts.
    pub directory: PathBuf,
    /// Variables that come from the image; those of `env` win.
    pub image_env: BTreeMap<OsString, OsString>,
    /// What of the host is shown beyond the usual.
    pub extra_mounts: ExtraMounts,
    /// Variables, complete but for those that Airlock itself sets.
    pub env: BTreeMap<EnvName, OsString>,
    /// The network.
    pub network: Network,
    /// A network of a container engine that leads nowhere else.
    pub internal_network: Option<Id>,
    /// Ports on the loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Whether whatever is dialled inside arrives at the host, and names are asked for there; at which ports.
    pub passing: Option<Ports>,
    /// Whether its doors lead to every public host.
    pub leads_everywhere: bool,
    /// What it may use.
    pub limits: Limits,
    /// Barriers without which it must not run, beyond those a backend always insists on.
    pub required: BTreeSet<Barrier>,
    /// Who the program is inside.
    pub user: User,
    /// The same by a name that only the image knows; then the numbers are not.
    pub named_user: Option<String>,
    /// Its terminal, if it has one, and how large that is at first.
    pub tty: Option<TerminalSize>,
    /// Whether it outlives its programs, of which each has its own terminal, if any.
    pub stays: bool,
}

impl RunSpec {
    /// Whether anything outside can be reached, be it only some of it.
    pub fn reaches_out(&self) -> bool {
        let egress = self
            .grants
            .egress
            .as_ref()
            .is_some_and(|egress| egress.learn || !egress.rules.is_empty());
        egress || self.sandbox.network == Network::Host
    }

    /// Takes away every way out but the doors to models. A network of a container engine that leads nowhere stays.
    pub fn close_egress(&mut self) {
        self.grants.egress = None;
        let sandbox = &mut self.sandbox;
        (sandbox.passing, sandbox.leads_everywhere) = (None, false);
        sandbox.doors.retain(|port| *port != crate::EGRESS_PORT);
        sandbox.network = if sandbox.doors.is_empty() {
            Network::None
        } else {
            Network::Doors
        };
    }
}

impl SandboxSpec {
    /// The box itself, whatever variables its program gets: what can be made ahead of a run.
    pub fn kind(&self) -> SandboxSpec {
        SandboxSpec {
            env: BTreeMap::new(),
            image_env: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Whether what was found at one of its host paths may be shown: always, or if it is what was admitted there.
    pub fn admits(&self, path: &Path, found: FileId) -> bool {
        let is_pinned = |pins: &Exact| pins.get(path).is_none_or(|known| *known == found);
        let exact = self.exact.as_ref();
        exact.is_none_or(|exact| exact.get(path) == Some(&found))
            && is_pinned(&self.pinned)
            && is_pinned(&self.git)
    }

    /// What is put into its workspace from outside at most, and the largest file there.
    pub fn workspace_bytes(&self) -> u64 {
        match self.workspace {
            Some(_) => self.limits.disk.0,
            None => self.limits.scratch().0,
        }
    }

    /// A host path of Airlock's own joins those that were asked for.
    pub fn add_own(&mut self, path: &Path, found: FileId) {
        if let Some(exact) = &mut self.exact {
            exact.insert(path.to_owned(), found);
        }
    }
}

/// A layer over the folder of a workspace, which takes what the program changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceOverlay {
    /// A folder of Airlock's own that holds `upper` and `work`, and belongs to the owner of the workspace.
    pub layer: PathBuf,
    /// What of the workspace the program does not see.
    pub hidden: Vec<PathBuf>,
}

/// The root file system inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// The host's `/usr` and what it needs, read-only.
    Host,
    /// A folder that holds a root file system, read-only.
    Folder(PathBuf),
    /// An image by its name, read-only.
    Image(ImageRef),
}

/// What makes a box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Airlock itself.
    #[default]
    Native,
    /// Docker, by its API.
    Docker,
    /// Podman, by its API.
    Podman,
    /// Podman or Docker, whichever there is.
    Container,
}

/// A volume of a container engine, shown inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What the engine calls it.
    pub name: Id,
    /// Where it appears inside.
    pub inside: InsidePath,
    /// What may be done with it.
    pub access: Access,
}

/// A host path shown inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is outside.
    pub host: PathBuf,
    /// Where it appears inside.
    pub inside: InsidePath,
    /// What may be done with it.
    pub access: Access,
}

/// What may be done with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// The network inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Only `lo`.
    None,
    /// Only `lo`, with the granted doors listening on it.
    Doors,
    /// Only `lo`; whatever is public can be reached through the egress door, by whatever program.
    Open,
    /// The host's own.
    Host,
}

/// Where an input file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum InputSource {
    File(PathBuf),
    Artifact {
        name: WorkspacePath,
        version: Option<u64>,
    },
    Given(Arc<[u8]>),
}

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Numeric user and group inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The name of a variable: not empty, no `=`, no NUL, and not one of Airlock's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvName(OsString);

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// Which kind of refusal.
    pub code: ErrorCode,
    /// What is wrong, on one line.
    pub message: String,
    /// What to do, on one line.
    pub hint: String,
}

/// Set by Airlock in every run; a caller cannot override them.
const RESERVED_ENV: [&str; 10] = [
    "AIRLOCK_RUN_ID",
    "AIRLOCK_WORKSPACE",
    "HOME",
    "PATH",
    "TMPDIR",
    "CYNODE_TASK_ID",
    "CYNODE_JOB_ID",
    "CYNODE_WORKSPACE_DIR",
    "CYNODE_ARTIFACTS_DIR",
    "RUN_ID",
];

/// What the kernel takes for one argument list, with room to spare (ARG_MAX is 2 MiB with the usual stack).
const MOST_ARGUMENT_BYTES: usize = 1 << 20;
const MOST_ENTRIES: usize = 4096;
const MOST_MOUNTS: usize = 64;

pub(crate) fn invalid(message: impl fmt::Display, hint: impl fmt::Display) -> SpecError {
    SpecError {
        code: ErrorCode::InvalidSpec,
        message: message.to_string(),
        hint: hint.to_string(),
    }
}

/// What a caller wrote, fit for one line of a message.
fn shown(text: &OsStr) -> String {
    text.to_string_lossy().escape_debug().to_string()
}

impl Policy {
    /// Checks everything about a request that can be checked without looking at the machine.
    pub fn admit(&self, request: RunRequest) -> Result<RunSpec, SpecError> {
        check_lists(&request)?;
        let (name, profile) = self.profile_of(&request)?;
        let backend = backend_of(request.backend.as_deref())?;
        let root = root_of(request.image.as_deref())?;
        check_containers_only(&request, backend, &root)?;
        let (grants, network) = doors::granted(self, &request, profile)?;
        let mounts = check_mounts(&request.mounts)?;
        let doors = doors::ports(&[grants.ports(), request.doors.clone()].concat(), network)?;
        let passing = grants.egress.as_ref().map(|egress| egress.ports());
        let limits = self.limits_of(&request, profile)?;
        let env = environment(&request.env, &request.caller_env, &profile.env_inherit)?;
        let secrets = doors::secrets(&request.secrets, &env, &name, profile)?;
        let id = |text: &Option<String>, option| {
            let checked = text.as_deref().map(Id::new).transpose();
            checked.map_err(|bad| invalid(bad, format!("give {option} another value")))
        };
        let inputs = inputs(&request)?;
        let read_only_workspace = check_read_only_workspace(&request)?;
        let has_layer = check_layer(&request)?;
        let (mut hide, passing_inputs) =
            (self.hidden(&request)?, passing_inputs(&request, &inputs));
        let allowed = workspace_paths(&request.allow_protected, "--allow-protected")?;
        hide.lift(&allowed);
        Ok(RunSpec {
            run_id: id(&request.run_id, "--run-id")?,
            task_id: id(&request.task_id, "--task-id")?,
            job_id: id(&request.job_id, "--job-id")?,
            command: check_command(request.command, matches!(root, Root::Image(_)))?,
            entrypoint: request.entrypoint,
            user_of_image: request.user.is_none(),
            images: self.images.clone(),
            stdin: request.stdin && request.tty.is_none(),
            contract: check_contract(request.contract, request.tty)?,
            inputs,
            artifacts: artifacts(&request.artifacts)?,
            apply_changes: request.staged && !request.copy_on_write,
            keep: true,
            grants: Grants { secrets, ..grants },
            owner: None,
            traceparent: None,
            sandbox: SandboxSpec {
                profile: name,
                backend,
                root,
                writable_root: request.writable_root,
                copy_on_write: has_layer,
                read_only_workspace,
                workspace: request.workspace,
                copy: self.workspace.copy,
                overlay: None,
                protected: ProtectedNames {
                    allowed,
                    ..self.workspace.protected.clone()
                },
                hide,
                passing_inputs,
                volumes: check_volumes(&request.volumes, &mounts)?,
                mounts,
                exact: request.exact,
                pinned: Exact::new(),
                git: Exact::new(),
                directory: PathBuf::from(WORKSPACE),
                image_env: BTreeMap::new(),
                extra_mounts: profile.extra_mounts,
                env,
                network,
                internal_network: id(&request.internal_network, "--internal-network")?,
                doors,
                passing,
                leads_everywhere: network == Network::Open || request.learn,
                limits,
                required: request.require.into_iter().collect(),
                user: check_user(request.user)?,
                named_user: None,
                tty: request.tty,
                stays: false,
            },
        })
    }

    /// A workspace of the box's own has nothing to hide.
    fn hidden(&self, request: &RunRequest) -> Result<Hide, SpecError> {
        let all = self.workspace.hide.iter().chain(&request.hide);
        let hide = Hide::new(all.map(String::as_str))?;
        match (&request.workspace, request.hide.is_empty()) {
            (Some(_), _) => Ok(hide),
            (None, true) => Ok(Hide::nothing()),
            (None, false) => Err(invalid(
                "--hide needs a folder in which to hide something",
                "add --workspace DIR, or leave --hide away",
            )),
        }
    }

    fn profile_of(&self, request: &RunRequest) -> Result<(String, &Profile), SpecError> {
        let name = request.profile.as_deref().unwrap_or(&self.default_profile);
        match self.profile(name) {
            Some(profile) => Ok((name.to_owned(), profile)),
            None => {
                let names: Vec<_> = self.profiles.keys().map(String::as_str).collect();
                Err(invalid(
                    format!("no profile is called `{}`", name.escape_debug()),
                    format!("the profiles are {}", names.join(", ")),
                ))
            }
        }
    }

    fn limits_of(&self, request: &RunRequest, profile: &Profile) -> Result<Limits, SpecError> {
        if let Some((name, asked, most)) = self.maximum.exceeded_by(&request.limits) {
            // Of a key's own maximum nothing else is lower.
            let of_keys = self.key_maximum.exceeded_by(&request.limits);
            let table = match of_keys.filter(|(of_key, ..)| *of_key == name) {
                Some((_, _, lowest)) if lowest == most => "[serve.maximum]",
                _ => "[maximum]",
            };
            return Err(invalid(
                format!("{name} of {asked} is over the operator's maximum of {most}"),
                format!(
                    "ask for {most} or less, or raise `{name}` under {table} in the configuration"
                ),
            ));
        }
        let zero = request.limits.pids == Some(0) || request.limits.open_files == Some(0);
        if zero {
            return Err(invalid(
                "a limit of 0 would let nothing run",
                "give --pids and --open-files at least 1",
            ));
        }
        let mut limits = profile.limits.clone();
        if request.tty.is_some() && !profile.limits_terminals {
            limits.wall_time = Limits::NO_WALL_TIME;
        }
        let limits = limits.with(&request.limits).at_most(&self.maximum);
        check_few(&limits)?;
        Ok(limits)
    }
}

/// Refuses lists that are longer than anybody needs: each entry is looked at, some of them at every call.
fn check_lists(request: &RunRequest) -> Result<(), SpecError> {
    let inputs = [
        request.inputs.len(),
        request.inputs_given.len(),
        request.inputs_kept.len(),
    ];
    let lists = [
        ("--input", inputs.iter().sum()),
        ("--allow-model", request.allow_models.len()),
        ("--allow-host", request.allow_hosts.len()),
        ("--secret", request.secrets.len()),
        ("--hide", request.hide.len()),
        ("--allow-protected", request.allow_protected.len()),
        ("--require", request.require.len()),
        ("--door", request.doors.len()),
    ];
    match lists.into_iter().find(|(_, count)| *count > MOST_ENTRIES) {
        Some((option, count)) => Err(invalid(
            format!("{count} times {option} is too much"),
            format!("give it at most {MOST_ENTRIES} times"),
        )),
        None => Ok(()),
    }
}

/// Refuses what the kernel would not take, or what no program begins with.
fn check_few(limits: &Limits) -> Result<(), SpecError> {
    if limits.memory < Limits::SMALLEST_MEMORY {
        return Err(invalid(
            format!(
                "memory of {} bytes is too little for a program to begin",
                limits.memory.0
            ),
            format!(
                "give it {} at least, with its unit, such as 64M",
                Limits::SMALLEST_MEMORY
            ),
        ));
    }
    if limits
        .stack
        .is_some_and(|stack| stack < Limits::SMALLEST_STACK)
    {
        let smallest = Limits::SMALLEST_STACK;
        return Err(invalid(
            "the stack is too small for a program to begin",
            format!("give it {smallest} at least"),
        ));
    }
    match limits.nice {
        Some(nice) if nice > Limits::NICEST => {
            let nicest = Limits::NICEST;
            Err(invalid(
                format!("nice cannot be {nice}"),
                format!("give a number from 0 to {nicest}"),
            ))
        }
        Some(_) | None => Ok(()),
    }
}

fn backend_of(name: Option<&str>) -> Result<Backend, SpecError> {
    match name {
        None => Ok(Backend::Native),
        Some("microvm") => Err(SpecError {
            code: ErrorCode::BackendUnavailable,
            message: "the backend `microvm` is not part of this build".to_owned(),
            hint: "leave --backend away to use the native one".to_owned(),
        }),
        Some(name) => Backend::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            invalid(
                format!("no backend is called `{}`", name.escape_debug()),
                "the backends are native, docker, podman, container (whichever there is), microvm",
            )
        }),
    }
}

/// A folder is written as one, so that it is never mistaken for a name.
fn root_of(image: Option<&Path>) -> Result<Root, SpecError> {
    let Some(image) = image else {
        return Ok(Root::Host);
    };
    if image.as_os_str().as_bytes().starts_with(b"/")
        || image.as_os_str().as_bytes().starts_with(b".")
    {
        return Ok(Root::Folder(image.to_owned()));
    }
    let text = image.to_str().unwrap_or("\u{fffd}");
    let hint = "write REPOSITORY[:TAG] or HOST/REPOSITORY[:TAG], or begin a folder with / or ./";
    text.parse()
        .map(Root::Image)
        .map_err(|bad: crate::BadImageRef| invalid(bad, hint))
}

/// What only a container engine has, and what it has not.
fn check_containers_only(
    request: &RunRequest,
    backend: Backend,
    root: &Root,
) -> Result<(), SpecError> {
    let native = backend == Backend::Native;
    let needs_engine = |option: &str| {
        Err(invalid(
            format!("{option} needs a container engine"),
            "add --backend docker or --backend podman",
        ))
    };
    let no_image = "a container needs an image that its engine has: --image REF";
    match (native, root) {
        (true, _) if !request.volumes.is_empty() => needs_engine("--volume"),
        (true, _) if request.internal_network.is_some() => needs_engine("--internal-network"),
        (true, Root::Host) if request.writable_root => Err(invalid(
            "--writable-root needs an image",
            "add --image REF; the host's own /usr stays as it is",
        )),
        (false, Root::Host) => Err(invalid(
            format!("the backend `{}` runs images only", backend.name()),
            no_image,
        )),
        (false, Root::Folder(_)) => Err(invalid(
            "a folder is not an image of a container engine",
            no_image,
        )),
        _ => Ok(()),
    }
}

pub(crate) fn check_command(
    command: Vec<OsString>,
    of_image: bool,
) -> Result<Vec<OsString>, SpecError> {
    let usage = "put the command after `--`: airlock run -- python3 -c 'print(1)'";
    if command
        .first()
        .map_or(!of_image, |program| program.is_empty())
    {
        return Err(invalid("there is no command to run", usage));
    }
    if command
        .iter()
        .any(|argument| argument.as_bytes().contains(&0))
    {
        return Err(invalid(
            "an argument contains a NUL byte",
            "no program can be given one",
        ));
    }
    let bytes: usize = command.iter().map(|argument| argument.len() + 1).sum();
    if bytes > MOST_ARGUMENT_BYTES || command.len() > MOST_ENTRIES {
        let hint = "put the data into a file (--input) or on standard input (--stdin)";
        return Err(invalid(
            format!(
                "the command is too long: {} arguments, {bytes} bytes",
                command.len()
            ),
            hint,
        ));
    }
    Ok(command)
}

/// What is put into a fresh workspace goes with it, and what is put into a layer that is kept is one of its changes.
fn passing_inputs(
    request: &RunRequest,
    inputs: &[(WorkspacePath, InputSource)],
) -> Vec<WorkspacePath> {
    let reaches_folder = request.workspace.is_some() && !request.copy_on_write;
    let names = inputs
        .iter()
        .filter(|_| reaches_folder)
        .map(|(name, _)| name);
    names.cloned().collect()
}

/// What cannot be written is given no input, and needs no copy.
fn check_read_only_workspace(request: &RunRequest) -> Result<bool, SpecError> {
    let inputs = [
        request.inputs.is_empty(),
        request.inputs_given.is_empty(),
        request.inputs_kept.is_empty(),
    ];
    let beside = [
        ("--copy-on-write", request.copy_on_write),
        ("--input", inputs.contains(&false)),
    ];
    let beside = beside.into_iter().find(|(_, given)| *given);
    match beside {
        Some((option, _)) if request.read_only_workspace => Err(SpecError {
            code: ErrorCode::InvalidSpec,
            message: format!("a read-only workspace cannot be combined with {option}"),
            hint: "leave `:ro` or that option away".to_owned(),
        }),
        _ => Ok(request.read_only_workspace),
    }
}

/// Whether the program's changes go to a layer. A fresh workspace has nothing to keep as it is.
fn check_layer(request: &RunRequest) -> Result<bool, SpecError> {
    let asked = [
        (request.copy_on_write, "--copy-on-write"),
        (request.staged, "a staged workspace"),
    ];
    let asked = asked.into_iter().find(|(is_asked, _)| *is_asked);
    match asked {
        Some((_, what)) if request.workspace.is_none() => Err(SpecError {
            code: ErrorCode::InvalidSpec,
            message: format!("{what} needs a folder that is to stay as it is"),
            hint: "add --workspace DIR, or leave that option away: a fresh workspace changes nothing of yours"
                .to_owned(),
        }),
        asked => Ok(asked.is_some()),
    }
}

fn workspace_paths(paths: &[PathBuf], option: &str) -> Result<Vec<WorkspacePath>, SpecError> {
    let hint = format!("give {option} a path relative to /workspace");
    paths
        .iter()
        .map(|path| WorkspacePath::new(path).map_err(|bad| invalid(bad, &hint)))
        .collect()
}

fn artifacts(paths: &[PathBuf]) -> Result<Vec<WorkspacePath>, SpecError> {
    if paths.len() > MAX_ARTIFACT_PATHS {
        return Err(invalid(
            format!("more than {MAX_ARTIFACT_PATHS} artifacts"),
            "name the folder that holds them instead",
        ));
    }
    workspace_paths(paths, "--artifact")
}

fn check_mounts(texts: &[OsString]) -> Result<Vec<Mount>, SpecError> {
    if texts.len() > MOST_MOUNTS {
        return Err(invalid(
            format!("more than {MOST_MOUNTS} mounts"),
            "mount a common parent folder instead",
        ));
    }
    let mounts = texts
        .iter()
        .map(|text| mount(text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    match mounts.iter().find(|mount| !seen.insert(&mount.inside)) {
        Some(twice) => Err(invalid(
            format!(
                "`{}` is mounted twice",
                shown(twice.inside.as_path().as_os_str())
            ),
            "give each --mount its own place inside",
        )),
        None => Ok(mounts),
    }
}

fn check_volumes(texts: &[OsString], mounts: &[Mount]) -> Result<Vec<Volume>, SpecError> {
    if texts.len() > MOST_MOUNTS {
        return Err(invalid(
            format!("more than {MOST_MOUNTS} volumes"),
            "use fewer",
        ));
    }
    let volumes = texts
        .iter()
        .map(|text| volume(text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut seen: BTreeSet<_> = mounts.iter().map(|mount| &mount.inside).collect();
    match volumes.iter().find(|volume| !seen.insert(&volume.inside)) {
        Some(twice) => Err(invalid(
            format!(
                "`{}` is mounted twice",
                shown(twice.inside.as_path().as_os_str())
            ),
            "give each --mount and --volume its own place inside",
        )),
        None => Ok(volumes),
    }
}

/// `NAME:INSIDE[:ro|rw]`.
fn volume(text: &OsStr) -> Result<Volume, SpecError> {
    let Mount {
        host,
        inside,
        access,
    } = mount(text)?;
    let name = host.to_str().unwrap_or("\u{fffd}");
    let name = Id::new(name)
        .map_err(|bad| invalid(bad, "write --volume NAME:INSIDE, or NAME:INSIDE:rw"))?;
    Ok(Volume {
        name,
        inside,
        access,
    })
}

/// `HOST:INSIDE[:ro|rw]`. Split from the right, so that a colon in the host path needs no escape.
fn mount(text: &OsStr) -> Result<Mount, SpecError> {
    let hint = "write --mount HOST:INSIDE, or HOST:INSIDE:rw to make it writable";
    let bytes = text.as_bytes();
    let (body, access) = match bytes {
        [body @ .., b':', b'r', b'w'] => (body, Access::ReadWrite),
        [body @ .., b':', b'r', b'o'] => (body, Access::ReadOnly),
        body => (body, Access::ReadOnly),
    };
    let bad = || invalid(format!("`{}` is not a mount", shown(text)), hint);
    let colon = body
        .iter()
        .rposition(|byte| *byte == b':')
        .ok_or_else(bad)?;
    let (host, inside) = (&body[..colon], &body[colon + 1..]);
    if host.is_empty() {
        return Err(bad());
    }
    let inside = InsidePath::new(Path::new(OsStr::from_bytes(inside))).map_err(|why| {
        invalid(
            why,
            "give --mount a place of its own inside, such as HOST:/data",
        )
    })?;
    Ok(Mount {
        host: PathBuf::from(OsStr::from_bytes(host)),
        inside,
        access,
    })
}

fn inputs(request: &RunRequest) -> Result<Vec<(WorkspacePath, InputSource)>, SpecError> {
    let path = |name: &Path| {
        WorkspacePath::new(name).map_err(|why| invalid(why, "give the input another name"))
    };
    let given = request.inputs_given.iter();
    let given = given.map(|(name, bytes)| Ok((path(name)?, InputSource::Given(bytes.clone()))));
    let kept = request.inputs_kept.iter().map(|(name, artifact, version)| {
        Ok((
            path(name)?,
            InputSource::Artifact {
                name: path(artifact)?,
                version: *version,
            },
        ))
    });
    request
        .inputs
        .iter()
        .map(|text| input(text))
        .chain(given)
        .chain(kept)
        .collect()
}

/// `NAME=FILE` or `NAME=artifact:NAME[@VERSION]`.
fn input(text: &OsStr) -> Result<(WorkspacePath, InputSource), SpecError> {
    let hint = "write --input NAME=FILE, or NAME=artifact:NAME[@VERSION] for a kept artifact";
    let bytes = text.as_bytes();
    let bad = || invalid(format!("`{}` is not an input", shown(text)), hint);
    let equals = bytes
        .iter()
        .position(|byte| *byte == b'=')
        .ok_or_else(bad)?;
    let (name, source) = (
        OsStr::from_bytes(&bytes[..equals]),
        OsStr::from_bytes(&bytes[equals + 1..]),
    );
    let name = WorkspacePath::new(Path::new(name)).map_err(|why| invalid(why, hint))?;
    let source = match source.as_bytes().strip_prefix(b"artifact:") {
        Some(kept) => artifact(kept).ok_or_else(bad)?,
        None if source.is_empty() => return Err(bad()),
        None => InputSource::File(PathBuf::from(source)),
    };
    Ok((name, source))
}

/// An `@` that no number follows belongs to the name.
fn artifact(text: &[u8]) -> Option<InputSource> {
    let versioned = text.iter().rposition(|byte| *byte == b'@').and_then(|at| {
        let version = std::str::from_utf8(&text[at + 1..]).ok()?.parse().ok()?;
        Some((&text[..at], Some(version)))
    });
    let (name, version) = versioned.unwrap_or((text, None));
    let name = WorkspacePath::new(Path::new(OsStr::from_bytes(name))).ok()?;
    Some(InputSource::Artifact { name, version })
}

pub(crate) fn environment(
    asked: &[(OsString, OsString)],
    caller: &BTreeMap<OsString, OsString>,
    inherit: &[String],
) -> Result<BTreeMap<EnvName, OsString>, SpecError> {
    let mut env = BTreeMap::new();
    let inherited = inherit.iter().map(OsString::from);
    for (name, value) in
        inherited.filter_map(|name| caller.get(&name).map(|value| (name.clone(), value.clone())))
    {
        env.insert(EnvName::new(&name)?, value);
    }
    for (name, value) in asked {
        if value.as_bytes().contains(&0) {
            return Err(invalid(
                format!("the value of `{}` contains a NUL byte", shown(name)),
                "leave it out",
            ));
        }
        env.insert(EnvName::new(name)?, value.clone());
    }
    let bytes: usize = env
        .iter()
        .map(|(name, value)| name.0.len() + value.len() + 2)
        .sum();
    if bytes > MOST_ARGUMENT_BYTES || env.len() > MOST_ENTRIES {
        return Err(invalid(
            "the environment is too large",
            "put the data into a file (--input)",
        ));
    }
    Ok(env)
}

/// What goes through a terminal is not what the program wrote.
fn check_contract(contract: Contract, tty: Option<TerminalSize>) -> Result<Contract, SpecError> {
    match (contract, tty) {
        (Contract::Raw, _) | (_, None) => Ok(contract),
        (Contract::Task | Contract::Envelope, Some(_)) => Err(invalid(
            format!("the contract `{contract}` cannot be read from a terminal"),
            "leave --tty or --contract away",
        )),
    }
}

fn check_user(user: Option<User>) -> Result<User, SpecError> {
    let user = user.unwrap_or(User {
        uid: DEFAULT_ID,
        gid: DEFAULT_ID,
    });
    // The all-ones id means "unchanged" to the kernel, and the one before is nobody's on 16-bit systems.
    match user.uid < u32::MAX - 1 && user.gid < u32::MAX - 1 {
        true => Ok(user),
        false => Err(invalid(
            "this user id cannot be used",
            "choose one below 4294967294",
        )),
    }
}

impl EnvName {
    /// Checks a name.
    pub fn new(name: &OsStr) -> Result<Self, SpecError> {
        let shown = shown(name);
        if name.is_empty() || name.as_bytes().iter().any(|byte| [b'=', 0].contains(byte)) {
            return Err(invalid(
                format!("`{shown}` is not the name of a variable"),
                "write --env NAME=VALUE",
            ));
        }
        if RESERVED_ENV.iter().any(|reserved| name == *reserved) {
            let hint = "Airlock sets it itself; choose another name";
            return Err(invalid(
                format!("the variable `{shown}` cannot be set by a caller"),
                hint,
            ));
        }
        Ok(EnvName(name.to_owned()))
    }

    /// The name itself.
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 4] = [
        Backend::Native,
        Backend::Docker,
        Backend::Podman,
        Backend::Container,
    ];

    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::Docker => "docker",
            Backend::Podman => "podman",
            Backend::Container => "container",
        }
    }
}

impl Network {
    /// The public name.
    pub const fn name(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Doors => "doors",
            Network::Open => "open",
            Network::Host => "host",
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Network::None, Network::Doors, Network::Open, Network::Host];
        let found = all.into_iter().find(|network| network.name() == text);
        found.ok_or_else(|| {
            format!(
                "no network mode is called `{}`; there are none, doors, open, host",
                text.escape_debug()
            )
        })
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |part: &str| part.parse::<u32>().ok();
        match (number(uid), number(gid)) {
            (Some(uid), Some(gid)) => Ok(User { uid, gid }),
            _ => Err(format!(
                "`{}` is not a user: write UID or UID:GID, in numbers",
                text.escape_debug()
            )),
        }
    }
}

impl From<SpecError> for ErrorInfo {
    fn from(error: SpecError) -> Self {
        ErrorInfo {
            code: error.code,
            message: error.message,
            hint: Some(error.hint),
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SpecError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(command: &[&str]) -> RunRequest {
        RunRequest {
            command: command.iter().map(OsString::from).collect(),
            ..RunRequest::default()
        }
    }

    fn refused(change: impl FnOnce(&mut RunRequest)) -> SpecError {
        let mut request = request(&["true"]);
        change(&mut request);
        Policy::default()
            .admit(request)
            .expect_err("must be refused")
    }

    #[test]
    fn a_plain_request_is_admitted_with_the_restrictive_profile() {
        let spec = Policy::default()
            .admit(request(&["echo", "a b", ";", "$(x)", "\n"]))
            .unwrap();
        assert_eq!(spec.command, ["echo", "a b", ";", "$(x)", "\n"]);
        assert_eq!(spec.sandbox.profile, "restrictive");
        assert_eq!(spec.sandbox.network, Network::None);
        assert_eq!(
            spec.sandbox.user,
            User {
                uid: 1000,
                gid: 1000
            }
        );
        assert!(spec.sandbox.env.is_empty());
    }

    #[test]
    fn refusals_name_the_thing_and_the_remedy() {
        let cases: [(SpecError, &str); 7] = [
            (
                refused(|r| r.profile = Some("strict".into())),
                "no profile is called `strict`",
            ),
            (refused(|r| r.command.clear()), "there is no command to run"),
            (
                refused(|r| r.run_id = Some("../x".into())),
                "`../x` is not an identifier",
            ),
            (
                refused(|r| r.mounts = vec!["/x".into()]),
                "`/x` is not a mount",
            ),
            (
                refused(|r| r.env = vec![("HOME".into(), "/".into())]),
                "the variable `HOME` cannot be set",
            ),
            (
                refused(|r| r.inputs = vec!["../a=/x".into()]),
                "`../a` cannot be used as a path",
            ),
            (
                refused(|r| r.doors = vec![8080]),
                "a door needs the network mode `doors`",
            ),
        ];
        for (error, start) in cases {
            assert!(error.message.starts_with(start), "{}", error.message);
            assert!(!error.hint.is_empty() && !error.message.contains('\n'));
            assert_eq!(error.code, ErrorCode::InvalidSpec);
        }
    }

    #[test]
    fn what_is_not_built_yet_is_refused_not_weakened() {
        assert_eq!(
            refused(|r| r.backend = Some("microvm".into())).code,
            ErrorCode::BackendUnavailable
        );
    }

    #[test]
    fn only_named_variables_of_the_caller_pass() {
        let mut policy = Policy::default();
        policy.profiles.get_mut("restrictive").unwrap().env_inherit =
            vec!["LANG".into(), "ABSENT".into()];
        let mut asked = request(&["env"]);
        asked.caller_env = [
            ("LANG".into(), "C".into()),
            ("AWS_SECRET".into(), "x".into()),
        ]
        .into();
        asked.env = vec![("A".into(), "1".into())];
        let env = policy.admit(asked).unwrap().sandbox.env;
        let names: Vec<_> = env.keys().map(|name| name.as_os_str().to_owned()).collect();
        assert_eq!(names, ["A", "LANG"]);
    }

    #[test]
    fn a_secret_is_let_in_by_name_and_never_by_the_restrictive_profile() {
        let asked = |profile: &str, secrets: &[&str]| RunRequest {
            profile: Some(profile.to_owned()),
            secrets: secrets.iter().map(OsString::from).collect(),
            env: vec![("TAKEN".into(), "x".into())],
            ..request(&["true"])
        };
        let policy = Policy::default();
        let denied = policy.admit(asked("restrictive", &["a=A"])).unwrap_err();
        assert_eq!(denied.code, ErrorCode::PolicyDenied);
        assert_eq!(
            denied.message,
            "the profile `restrictive` lets no secret in"
        );
        let grants = policy
            .admit(asked("agent", &["a=A", "a=B"]))
            .unwrap()
            .grants;
        let name = |text: &str| EnvName::new(OsStr::new(text)).unwrap();
        assert_eq!(
            grants.secrets,
            [("a".to_owned(), name("A")), ("a".to_owned(), name("B"))]
        );
        for (secrets, message) in [
            (&["a"][..], "`a` is not a secret with its variable"),
            (&["../a=A"], "`../a` is not an identifier"),
            (&["a="], "`` is not the name of a variable"),
            (&["a=PATH"], "the variable `PATH` cannot be set by a caller"),
            (&["a=A", "b=A"], "the variable `A` is set twice"),
            (&["a=TAKEN"], "the variable `TAKEN` is set twice"),
        ] {
            let refused = policy.admit(asked("agent", secrets)).unwrap_err();
            assert!(refused.message.starts_with(message), "{}", refused.message);
        }
    }

    #[test]
    fn a_terminal_takes_the_place_of_standard_input() {
        let size = TerminalSize {
            rows: 24,
            columns: 80,
        };
        let asked = |tty| RunRequest {
            stdin: true,
            tty,
            ..request(&["sh"])
        };
        let plain = Policy::default().admit(asked(None)).unwrap();
        assert_eq!((plain.stdin, plain.sandbox.tty), (true, None));
        let terminal = Policy::default().admit(asked(Some(size))).unwrap();
        assert_eq!((terminal.stdin, terminal.sandbox.tty), (false, Some(size)));
    }

    #[test]
    fn a_contract_is_not_read_from_a_terminal() {
        let tty = Some(TerminalSize {
            rows: 24,
            columns: 80,
        });
        for contract in [Contract::Task, Contract::Envelope] {
            let asked = |tty| RunRequest {
                contract,
                tty,
                ..request(&["sh"])
            };
            assert_eq!(
                Policy::default().admit(asked(None)).unwrap().contract,
                contract
            );
            let refused = Policy::default().admit(asked(tty)).unwrap_err();
            assert_eq!(
                refused.message,
                format!("the contract `{contract}` cannot be read from a terminal")
            );
        }
    }

    #[test]
    fn a_refusal_stays_on_one_line_whatever_the_caller_wrote() {
        let mounts = |r: &mut RunRequest| r.mounts = vec!["/a\n\x1b[2J".into()];
        let twice = |r: &mut RunRequest| r.mounts = vec!["/a:/b\n".into(), "/c:/b\n".into()];
        let inputs = |r: &mut RunRequest| r.inputs = vec!["a\nb".into()];
        let names = |r: &mut RunRequest| r.env = vec![("a\n=".into(), "x".into())];
        let values = |r: &mut RunRequest| r.env = vec![("a\n".into(), "\0".into())];
        for change in [mounts as fn(&mut RunRequest), twice, inputs, names, values] {
            let message = refused(change).message;
            assert!(message.contains("\\n"), "{message:?}");
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }

    #[test]
    fn a_colon_in_a_host_path_needs_no_escape() {
        let read = mount(OsStr::new("/a:b:/data:rw")).unwrap();
        assert_eq!(
            (read.host.as_path(), read.access),
            (Path::new("/a:b"), Access::ReadWrite)
        );
    }

    #[test]
    fn nobody_gets_more_than_the_operators_maximum() {
        let maximum = Maximum {
            memory: "256M".parse().ok(),
            ..Maximum::default()
        };
        let policy = Policy {
            maximum,
            ..Policy::default()
        };
        assert_eq!(
            policy
                .admit(request(&["true"]))
                .unwrap()
                .sandbox
                .limits
                .memory,
            "256M".parse().unwrap()
        );
        let mut more = request(&["true"]);
        more.limits.memory = "512M".parse().ok();
        assert!(
            policy
                .admit(more)
                .unwrap_err()
                .message
                .contains("over the operator's maximum of 256M")
        );
    }

    proptest! {
        #[test]
        fn no_mount_or_input_text_makes_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = OsStr::from_bytes(&bytes);
            if let Ok(mount) = mount(text) {
                prop_assert!(mount.inside.as_path().is_absolute());
            }
            if let Ok((name, _)) = input(text) {
                prop_assert!(name.as_path().is_relative());
            }
        }
    }

    #[test]
    fn closed_egress_leaves_the_doors_to_models_and_nothing_else() {
        for profile in ["restrictive", "standard", "permissive", "agent"] {
            for (llm, network) in [(None, Network::None), (Some(None), Network::Doors)] {
                let request = RunRequest {
                    profile: Some(profile.to_owned()),
                    llm,
                    command: vec!["true".into()],
                    ..RunRequest::default()
                };
                let mut spec = Policy::default().admit(request).unwrap();
                assert_eq!(
                    spec.reaches_out(),
                    ["standard", "permissive"].contains(&profile),
                    "{profile}"
                );
                spec.close_egress();
                assert!(
                    !spec.reaches_out()
                        && spec.sandbox.passing.is_none()
                        && !spec.sandbox.leads_everywhere
                );
                assert_eq!(
                    (spec.sandbox.network, &spec.sandbox.doors),
                    (network, &spec.grants.ports())
                );
            }
        }
    }
}
