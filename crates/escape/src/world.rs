//! Where attacks run: in a box of ours, in one with a wall down, or in the peer's; and the traps around it.

use crate::{Containers, Finding, Outcome, ROOT_INSIDE, Settings, Trouble, oracle, peer};
use engine::{Engine, PoolSettings, Run, Step};
use spec::{
    EgressLimits, EgressRule, LayerCopyLimits, LimitSet, Network, Policy, RunEvent, RunRequest,
    RunResult, Status, StdStream,
};
use std::{
    cell::{Cell, OnceCell, RefCell},
    ffi::OsString,
    fs,
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};
use tokio::runtime::Runtime;

/// Where the attacker stands inside, and the word that starts it.
pub(crate) const ATTACKER: &str = "/attacker/airlock";
/// What hangs shall not hang the suite.
pub(crate) const LONGEST_SECONDS: u64 = 30;
/// Where files are in memory, on most machines.
const MEMORY: &str = "/dev/shm";
/// A user and a group that are nobody's here.
pub(crate) const SOMEBODY: (u32, u32) = (12345, 23456);

/// Everything the cases share. Its folder is gone with it.
#[derive(Debug)]
pub struct World {
    pub(crate) settings: Settings,
    /// Whether the host's root starts the boxes.
    pub(crate) root: bool,
    pub(crate) peer: Result<peer::PeerPrograms, String>,
    /// The machine of an owner of a project, for group H.
    pub(crate) host_template: OnceCell<PathBuf>,
    folder: PathBuf,
    /// The same in memory, where programs can be run from that.
    memory: Option<PathBuf>,
    runtime: Runtime,
    token: String,
    next: AtomicU32,
}

impl World {
    /// Makes the folder of traps and puts the attacker into it.
    pub fn prepare(settings: Settings) -> io::Result<World> {
        let token = engine::fresh_id().as_str().to_owned();
        let folder = settings
            .folder
            .join(format!("airlock-escape-{}", &token[16..]));
        let peer = if settings.peer {
            peer::find()
        } else {
            Err(crate::LEFT_OUT.to_owned())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let root = rustix::process::geteuid().is_root();
        let world = World {
            settings,
            root,
            peer,
            host_template: OnceCell::new(),
            memory: in_memory(&token),
            folder,
            runtime,
            token,
            next: AtomicU32::new(0),
        };
        crate::attack::keep_descriptors_to_ourselves()?;
        // Nobody else on this machine may reach the traps: some are open to all, for any box to fall into.
        make_folder(&world.folder, 0o700)?;
        let attacker = world.attacker();
        make_folder(&attacker, 0o755)?;
        fs::copy(&world.settings.attacker, attacker.join("airlock"))?;
        fs::set_permissions(attacker.join("airlock"), fs::Permissions::from_mode(0o755))?;
        let namespace = |kind| fs::read_link(format!("/proc/self/ns/{kind}"));
        let (mounts, pids) = (namespace("mnt")?, namespace("pid")?);
        let permit = format!(
            "{}\n{}\n{}\n",
            world.token,
            mounts.display(),
            pids.display()
        );
        fs::write(attacker.join("permit"), permit)?;
        fs::write(world.settings_file(), "")?;
        Ok(world)
    }

    /// The folder that is mounted at `/attacker`.
    pub(crate) fn attacker(&self) -> PathBuf {
        self.folder.join("attacker")
    }

    /// Empty settings, so that those of the caller decide nothing.
    pub(crate) fn settings_file(&self) -> PathBuf {
        self.folder.join("config.toml")
    }

    /// A name that nothing else has.
    pub(crate) fn unique(&self, stem: &str) -> String {
        format!(
            "{stem}-{}-{}",
            &self.token[16..],
            self.next.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// A secret that nobody can guess.
    pub(crate) fn secret(&self) -> String {
        format!("canary-{}", engine::fresh_id().as_str())
    }

    /// The path of a folder that everybody may write; where it cannot be made, whoever uses it says so.
    pub(crate) fn fresh(&self, stem: &str) -> PathBuf {
        let path = self.folder.join(self.unique(stem));
        _ = make_folder(&path, 0o777);
        path
    }

    /// A file with a secret in a folder of its own that everybody may read.
    pub(crate) fn canary(&self) -> io::Result<Canary> {
        let (folder, secret) = (self.fresh("canary"), self.secret());
        let file = folder.join("secret");
        fs::write(&file, &secret)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        Ok(Canary {
            folder,
            file,
            secret,
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What cannot be removed lies in the folder for temporary files.
        for folder in self.memory.iter().chain([&self.folder]) {
            _ = fs::remove_dir_all(folder);
        }
    }
}

fn in_memory(token: &str) -> Option<PathBuf> {
    let flags = rustix::fs::statvfs(MEMORY).ok()?.f_flag;
    let folder = Path::new(MEMORY).join(format!("airlock-escape-{}", &token[16..]));
    let runs = !flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
    (runs && make_folder(&folder, 0o700).is_ok()).then_some(folder)
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// A trap: a file of the host's that must be neither read nor changed.
#[derive(Debug)]
pub(crate) struct Canary {
    pub(crate) folder: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) secret: String,
}

impl Canary {
    /// What was done to the file.
    pub(crate) fn changed(&self) -> Finding {
        match fs::read_to_string(&self.file) {
            Ok(text) if text == self.secret => Finding::Nothing,
            _ => Finding::Escape("the host's file was changed".to_owned()),
        }
    }

    /// Whether an attack got hold of the secret.
    pub(crate) fn told_by(&self, report: &Report) -> Finding {
        match report.says(&self.secret) {
            true => Finding::Escape("it read the host's secret".to_owned()),
            false => Finding::Nothing,
        }
    }
}

/// Which box an attack runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Airlock,
    Control,
    Peer,
}

/// One place, with the runs in it.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) world: &'a World,
    pub(crate) place: Place,
    without: &'static [Step],
    cgroups: bool,
    /// Whether what is made for this place lies in memory.
    in_memory: Cell<bool>,
    state: String,
    engine: OnceCell<Engine>,
    door: RefCell<Option<Door>>,
}

/// The egress door of the boxes in a place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door {
    pub(crate) rules: Vec<EgressRule>,
    pub(crate) limits: EgressLimits,
    /// Those of the first one count for all in the same place.
    pub(crate) settings: doors::egress::EgressSettings,
}

/// What came of an attack.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) said: Vec<u8>,
    /// Of a box of ours.
    pub(crate) result: Option<RunResult>,
}

impl Report {
    /// Whether its output has this text.
    pub(crate) fn says(&self, text: &str) -> bool {
        self.said
            .windows(text.len().max(1))
            .any(|part| part == text.as_bytes())
    }

    /// The value of a line `NAME VALUE`.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let said = String::from_utf8_lossy(&self.said);
        said.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()))
    }

    /// Every value of lines `NAME VALUE`.
    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        let said = String::from_utf8_lossy(&self.said);
        let rest = said
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        rest.map(str::to_owned).collect()
    }

    /// It came to its end, as a case demands of most attacks.
    pub(crate) fn finished(self) -> Result<Report, Trouble> {
        if self.said.ends_with(b"\ndone\n") || self.said == b"done\n" {
            return Ok(self);
        }
        let said =
            String::from_utf8_lossy(&self.said[self.said.len().saturating_sub(300)..]).into_owned();
        let ended = self
            .result
            .map(|result| format!("{:?}, {:?}", result.status, result.error));
        Err(Trouble::Broken(format!(
            "the attack did not come to its end: {said:?} {ended:?}"
        )))
    }

    /// What the attacker itself says it did; enough to convict.
    pub(crate) fn claims(&self) -> Finding {
        self.value("claim")
            .map_or(Finding::Nothing, Finding::Escape)
    }

    /// The same of certain things, each by itself.
    pub(crate) fn claims_of(&self, names: &[&str]) -> Vec<(String, Finding)> {
        let said = String::from_utf8_lossy(&self.said);
        let claimed = |name: &str| {
            said.lines().any(|line| {
                line.strip_prefix("claim ")
                    .is_some_and(|what| what.starts_with(name))
            })
        };
        names
            .iter()
            .map(|name| ((*name).to_owned(), Finding::when(claimed(name), name)))
            .collect()
    }
}

/// An attack of several parts: one that gets out is enough to convict; in the control each must, or it proves nothing.
pub(crate) fn each(
    ground: &Ground<'_>,
    parts: impl IntoIterator<Item = (String, Finding)>,
) -> Outcome {
    let parts: Vec<_> = parts.into_iter().collect();
    let held = parts
        .iter()
        .find(|(_, found)| !matches!(found, Finding::Escape(_)));
    match held.filter(|_| ground.is_control()) {
        Some((name, _)) => Err(Trouble::Broken(format!(
            "`{name}` gets no further without the wall"
        ))),
        None => Ok(parts
            .into_iter()
            .fold(Finding::Nothing, |found, (_, next)| found.or(|| next))),
    }
}

impl Finding {
    /// An escape if it is true.
    pub(crate) fn when(escaped: bool, what: &str) -> Finding {
        if escaped {
            Finding::Escape(what.to_owned())
        } else {
            Finding::Nothing
        }
    }

    /// The first that found something.
    pub(crate) fn or(self, other: impl FnOnce() -> Finding) -> Finding {
        if self == Finding::Nothing {
            other()
        } else {
            self
        }
    }
}

impl<'a> Ground<'a> {
    pub(crate) fn new(
        world: &'a World,
        place: Place,
        without: &'static [Step],
        cgroups: bool,
    ) -> Ground<'a> {
        let state = world.unique("state");
        Ground {
            world,
            place,
            without,
            cgroups,
            in_memory: Cell::new(false),
            state,
            engine: OnceCell::new(),
            door: RefCell::default(),
        }
    }

    /// Tries a case here.
    pub(crate) fn tried(self, test: fn(&Ground<'_>) -> Outcome) -> Outcome {
        let outcome = test(&self);
        if let Some(engine) = self.engine.into_inner() {
            self.world.runtime.block_on(engine.close());
        }
        outcome
    }

    /// Whether what the attack is after is to be given to it.
    pub(crate) fn is_control(&self) -> bool {
        self.place == Place::Control
    }

    /// From now on workspaces and state are in memory: for cases with thousands of files, which a disk takes its time for.
    pub(crate) fn use_memory(&self) {
        self.in_memory.set(true);
    }

    fn folder(&self) -> &Path {
        let memory = self.world.memory.as_ref();
        memory
            .filter(|_| self.in_memory.get())
            .unwrap_or(&self.world.folder)
    }

    /// From now on boxes have this door, unless they have the host's network.
    pub(crate) fn open_door(&self, door: Door) {
        self.door.replace(Some(door));
    }

    /// A fresh workspace.
    pub(crate) fn workspace(&self) -> io::Result<PathBuf> {
        let path = self.folder().join(self.world.unique("workspace"));
        make_folder(&path, 0o755)?;
        self.give(&path)?;
        Ok(path)
    }

    /// Gives a file or folder to the owner of a fresh workspace. Where root starts our boxes that is nobody: not
    /// every file system can be idmapped. The peer's program is whoever starts it.
    pub(crate) fn give(&self, path: &Path) -> io::Result<()> {
        match self.world.root && self.place != Place::Peer {
            true => chown(path, Some(SOMEBODY.0), Some(SOMEBODY.1)),
            false => Ok(()),
        }
    }

    /// A request for an attack. Its marker is in its command line, for the process table.
    pub(crate) fn attack<A: Into<OsString>>(
        &self,
        name: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> RunRequest {
        let marker = self.world.unique("attack");
        let words = [
            ATTACKER,
            crate::attack::WORD,
            &self.world.token,
            &marker,
            name,
        ];
        let mut command: Vec<_> = words.map(OsString::from).into();
        command.extend(arguments.into_iter().map(Into::into));
        let limits = LimitSet {
            wall_time: format!("{LONGEST_SECONDS}s").parse().ok(),
            ..LimitSet::default()
        };
        let mounts = vec![mount(&self.world.attacker(), "/attacker", "ro")];
        RunRequest {
            command,
            mounts,
            limits,
            ..RunRequest::default()
        }
    }

    /// Whose containers are attacked here, if any are.
    pub(crate) fn containers(&self) -> Option<&'a Containers> {
        self.world
            .settings
            .containers
            .as_ref()
            .filter(|_| self.place == Place::Airlock)
    }

    /// The same as options and variables of `airlock run`.
    pub(crate) fn tell(&self, command: &mut Command) {
        let Some(containers) = self.containers() else {
            return;
        };
        command
            .args(["--backend", &containers.backend])
            .arg("--image")
            .arg(&containers.image);
        for (name, hosts) in [
            ("DOCKER_HOST", &containers.hosts.docker),
            ("CONTAINER_HOST", &containers.hosts.podman),
        ] {
            command.envs(hosts.first().map(|host| (name, host)));
        }
    }

    /// What is asked for here. A container is never made for root, nor on the host's network, nor from a folder.
    fn asked(&self, request: RunRequest) -> Result<spec::RunSpec, Trouble> {
        let Some(containers) = self.containers() else {
            return self.admit(request);
        };
        let refused = match (&request.image, request.network) {
            (Some(_), _) => Some("a folder as an image, which is refused for a container"),
            (None, Some(spec::Network::Host)) => {
                Some("the host's network, which is refused for a container")
            }
            (None, _) => None,
        };
        if let Some(refused) = refused {
            return Err(Trouble::Missing(refused.to_owned()));
        }
        let (backend, image) = (
            Some(containers.backend.clone()),
            Some(containers.image.clone()),
        );
        let user = request.user.filter(|user| Some(*user) != ROOT_INSIDE);
        self.admit(RunRequest {
            backend,
            image,
            user,
            ..request
        })
    }

    fn admit(&self, request: RunRequest) -> Result<spec::RunSpec, Trouble> {
        let mut policy = Policy::default();
        let door = self
            .door
            .borrow()
            .clone()
            .filter(|_| request.network != Some(Network::Host));
        if let (Some(door), Some(profile)) =
            (door, policy.profiles.get_mut(&policy.default_profile))
        {
            profile.network = Network::Doors;
            (profile.egress, profile.egress_limits) = (Some(door.rules), door.limits);
        }
        if request.staged {
            // However small: a copy is what `reviewed` workspaces have.
            policy.workspace.copy = Some(LayerCopyLimits { names: 0, bytes: 0 });
        }
        policy
            .admit(request)
            .map_err(|error| Trouble::Refused(error.message))
    }

    /// The state folder of this place.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder().join(&self.state)
    }

    /// The engine of this place: without its steps, on a state folder of its own.
    pub(crate) fn engine(&self) -> Result<&Engine, Trouble> {
        if self.engine.get().is_none() {
            let pool = match self.world.settings.pooled {
                true => PoolSettings {
                    warm_sandboxes: 1,
                    prepared_namespaces: 1,
                    ..PoolSettings::OFF
                },
                false => PoolSettings::OFF,
            };
            let containers = self
                .containers()
                .map(|it| it.hosts.clone())
                .unwrap_or_default();
            let mut settings = engine::Settings {
                pool,
                containers,
                ..engine::Settings::new(self.state())
            };
            settings.doors.egress = self
                .door
                .borrow()
                .as_ref()
                .map(|door| door.settings.clone())
                .unwrap_or_default();
            let opened = Engine::dangerously_open_with(settings, |native| {
                self.without
                    .iter()
                    .for_each(|step| native.dangerously_omit(*step));
                if !self.cgroups {
                    native.dangerously_omit_cgroups();
                }
            });
            let engine = opened.map_err(|error| Trouble::Broken(error.to_string()))?;
            _ = self.engine.set(engine);
        }
        self.engine
            .get()
            .ok_or_else(|| Trouble::Broken("there is no engine".to_owned()))
    }

    /// Lets an attack run to its end.
    pub(crate) fn run(&self, request: RunRequest) -> Result<Report, Trouble> {
        match (&self.world.peer, self.place) {
            (Ok(found), Place::Peer) => {
                let mut command = peer::command(found, self.world, &request, LONGEST_SECONDS);
                let done = command.stdin(Stdio::null()).output()?;
                started(&done.stdout, &done.stderr)?;
                Ok(Report {
                    said: done.stdout,
                    result: None,
                })
            }
            _ => {
                let (engine, spec) = (self.engine()?, self.asked(request)?);
                boxed(self.world.runtime.block_on(async {
                    // Waits for the pool, if there is one.
                    engine.warm(&spec).await;
                    engine.run(spec).await
                }))
            }
        }
    }

    /// Starts an attack that says `ready` and then waits, so that the host can look at it.
    pub(crate) fn hold(&self, request: RunRequest) -> Result<Holding<'a>, Trouble> {
        match self.hold_or_end(request)? {
            Ok(holding) => Ok(holding),
            Err(report) => {
                let told = report.finished().map(|_| "it did not wait".to_owned());
                Err(told.map_or_else(|trouble| trouble, Trouble::Broken))
            }
        }
    }

    /// The same where the attack may be ended before it is ready.
    pub(crate) fn hold_or_end(
        &self,
        request: RunRequest,
    ) -> Result<Result<Holding<'a>, Report>, Trouble> {
        let marker = request
            .command
            .get(3)
            .map(|text| text.to_string_lossy().into_owned());
        let marker = marker.unwrap_or_default();
        let request = RunRequest {
            stdin: true,
            ..request
        };
        let (kind, said) = match (&self.world.peer, self.place) {
            (Ok(found), Place::Peer) => {
                let mut command = peer::command(found, self.world, &request, LONGEST_SECONDS);
                command
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                let mut child = command.spawn()?;
                let said = read_until_ready(&mut child)?;
                (Kind::Peer(child), said)
            }
            _ => {
                let engine = self.engine()?;
                let spec = self.asked(request)?;
                let (run, said) = self.world.runtime.block_on(async {
                    engine.warm(&spec).await;
                    let mut run = engine.start(spec);
                    let said = wait_ready(&mut run).await;
                    (run, said)
                });
                (Kind::Boxed(Box::new(run)), said)
            }
        };
        let mut holding = Holding {
            world: self.world,
            marker,
            said,
            kind: Some(kind),
        };
        match ready(&holding.said) {
            true => Ok(Ok(holding)),
            false => Ok(Err(holding.end()?)),
        }
    }
}

fn boxed(result: RunResult) -> Result<Report, Trouble> {
    match (&result.error, result.status) {
        (Some(error), Status::NotStarted) => Err(Trouble::Refused(error.message.clone())),
        _ => Ok(Report {
            said: result.stdout.clone(),
            result: Some(result),
        }),
    }
}

/// A peer that does not start at all is no peer here.
fn started(stdout: &[u8], stderr: &[u8]) -> Result<(), Trouble> {
    let told = String::from_utf8_lossy(stderr).into_owned();
    match stdout.is_empty() && told.contains("bwrap: ") {
        true => Err(Trouble::Missing(format!(
            "it does not start here: {}",
            told.trim()
        ))),
        false => Ok(()),
    }
}

fn ready(said: &[u8]) -> bool {
    said.ends_with(b"ready\n")
}

async fn wait_ready(run: &mut Run) -> Vec<u8> {
    let mut said = Vec::new();
    while !ready(&said) {
        match run.next_event().await {
            Some(RunEvent::Output {
                stream: StdStream::Stdout,
                data,
            }) => said.extend(data),
            Some(_) => {}
            None => break,
        }
    }
    said
}

fn read_until_ready(child: &mut Child) -> io::Result<Vec<u8>> {
    let Some(stdout) = &mut child.stdout else {
        return Ok(Vec::new());
    };
    let (mut said, mut byte) = (Vec::new(), [0; 4096]);
    while !ready(&said) {
        match stdout.read(&mut byte)? {
            0 => break,
            count => said.extend(&byte[..count]),
        }
    }
    Ok(said)
}

#[derive(Debug)]
enum Kind {
    Boxed(Box<Run>),
    Peer(Child),
}

/// An attack that waits.
#[derive(Debug)]
pub(crate) struct Holding<'a> {
    world: &'a World,
    marker: String,
    pub(crate) said: Vec<u8>,
    kind: Option<Kind>,
}

impl Holding<'_> {
    /// The host's numbers of its processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        oracle::attacks_with(&self.marker)
    }

    /// The host's number of the attack itself, its first process.
    pub(crate) fn process(&self) -> Result<u32, Trouble> {
        let first = self.processes().into_iter().min();
        first.ok_or_else(|| Trouble::Broken("the attack is not in the process table".to_owned()))
    }

    /// Lets it go on and waits for its end.
    pub(crate) fn finish(mut self) -> Result<Report, Trouble> {
        self.end()?.finished()
    }

    /// The same, however it ended.
    pub(crate) fn end(&mut self) -> Result<Report, Trouble> {
        let report = match self.kind.take() {
            Some(Kind::Boxed(run)) => boxed(self.world.runtime.block_on(run.finish()))?,
            Some(Kind::Peer(mut child)) => {
                drop(child.stdin.take());
                let done = child.wait_with_output()?;
                let said = [std::mem::take(&mut self.said), done.stdout].concat();
                started(&said, &done.stderr)?;
                return Ok(Report { said, result: None });
            }
            None => return Err(Trouble::Broken("it has ended already".to_owned())),
        };
        Ok(report)
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if self.kind.is_some() {
            _ = self.end();
        }
    }
}

/// `HOST:INSIDE:ACCESS`.
pub(crate) fn mount(host: &Path, inside: &str, access: &str) -> OsString {
    let mut text = host.as_os_str().to_owned();
    text.push(format!(":{inside}:{access}"));
    text
}
