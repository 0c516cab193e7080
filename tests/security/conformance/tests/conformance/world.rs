//! What every proof stands on: the probe, sandboxes with and without certain steps, and oracles on the host.

use engine::{Engine, EngineSockets, PoolSettings, Run, Settings};
use init::step::Step;
use spec::{
    Barrier, Enforcer, LimitSet, Policy, RunEvent, RunRequest, RunResult, RunSpec, StdStream,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Who starts the sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Root,
    User,
}

/// What came of an attempt inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It worked; with what it got.
    Allowed(String),
    /// The kernel's answer.
    Refused(i32),
    /// The program was killed by this signal.
    Killed(i32),
    /// No verdict: the whole result in words.
    Broken(String),
}

/// It worked, and there is nothing to tell.
pub(crate) fn allowed() -> Outcome {
    Outcome::Allowed(String::new())
}

/// A container engine that makes the boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    /// What `--backend` calls it.
    pub(crate) backend: &'static str,
    /// Where it listens.
    pub(crate) host: String,
}

pub(crate) struct World {
    pub(crate) mode: Mode,
    /// Else they are our own.
    pub(crate) maker: Option<Maker>,
    /// Whether sandboxes come from a pool.
    pub(crate) pooled: bool,
    /// Readable by everybody; gone at the end.
    pub(crate) folder: PathBuf,
    /// The folder of the probe.
    pub(crate) probe_folder: PathBuf,
    /// What holds memory, pids and CPU time here.
    pub(crate) enforcer: Enforcer,
    /// Whether root's folders can be shown to the program as its own.
    pub(crate) idmaps: bool,
    pub(crate) runtime: tokio::runtime::Runtime,
    next: AtomicU32,
    owner: u32,
}

/// A user and a group that are nobody's here.
pub(crate) const SOMEBODY: (u32, u32) = (12345, 23456);

/// What a sandbox lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Without {
    pub(crate) steps: Vec<Step>,
    pub(crate) cgroups: bool,
}

impl Without {
    pub(crate) fn is_nothing(&self) -> bool {
        self.steps.is_empty() && !self.cgroups
    }
}

/// The same in a box of our own.
pub(crate) fn native(request: RunRequest) -> RunRequest {
    match request.backend {
        Some(_) => RunRequest {
            backend: None,
            image: None,
            ..request
        },
        None => request,
    }
}

impl World {
    /// Fails with a clear message where something is missing.
    pub(crate) fn prepare(pooled: bool, maker: Option<Maker>) -> World {
        let owner = fs::metadata("/proc/self")
            .expect("prerequisite: /proc is mounted")
            .uid();
        let mode = if owner == 0 { Mode::Root } else { Mode::User };
        for path in ["/bin/sh", "/bin/cat", "/usr"] {
            assert!(
                Path::new(path).exists(),
                "prerequisite: `{path}` is missing"
            );
        }
        // Not below /tmp: that may be a tmpfs, which older kernels cannot idmap.
        let above = std::env::var("AIRLOCK_TEST_FOLDER").unwrap_or_else(|_| "/var/tmp".to_owned());
        let kind = maker
            .as_ref()
            .map_or(if pooled { "pooled" } else { "native" }, |maker| {
                maker.backend
            });
        let name = format!("airlock-conformance-{owner}-{}-{kind}", std::process::id());
        let folder = Path::new(&above).join(name);
        fs::create_dir(&folder).expect("prerequisite: the folder for tests is writable");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
        let world = World {
            mode,
            pooled,
            probe_folder: folder.join("probe"),
            idmaps: mode == Mode::Root && maker.is_none() && expected_idmaps(&folder),
            folder,
            enforcer: expected_enforcer(mode),
            maker,
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
            next: AtomicU32::new(0),
            owner,
        };
        fs::create_dir(&world.probe_folder).expect("folder of the probe");
        fs::copy(find_probe(), world.probe_folder.join("probe")).expect("copy of the probe");
        for path in [world.probe_folder.clone(), world.probe_folder.join("probe")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        world
    }

    /// A name that nothing else has.
    pub(crate) fn unique(&self, stem: &str) -> String {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let kind = self
            .maker
            .as_ref()
            .map_or(if self.pooled { "pooled" } else { "native" }, |maker| {
                maker.backend
            });
        format!(
            "{stem}-{}-{}-{kind}-{number}",
            self.owner,
            std::process::id()
        )
    }

    /// A fresh folder on the host.
    pub(crate) fn fresh_folder(&self, stem: &str) -> PathBuf {
        let path = self.folder.join(self.unique(stem));
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        path
    }

    /// A fresh workspace: root's own where it can be idmapped, else somebody's whom the program then is outside.
    pub(crate) fn fresh_workspace(&self) -> PathBuf {
        let workspace = self.fresh_folder("workspace");
        self.give(&workspace);
        workspace
    }

    /// Gives everything in a folder to the owner that a fresh workspace has.
    pub(crate) fn give(&self, path: &Path) {
        if self.mode == Mode::User || self.idmaps {
            return;
        }
        lchown(path, Some(SOMEBODY.0), Some(SOMEBODY.1)).expect("an owner");
        if path.is_dir() && !path.is_symlink() {
            fs::read_dir(path)
                .expect("a folder")
                .flatten()
                .for_each(|entry| self.give(&entry.path()));
        }
    }

    /// An engine with a state folder of its own.
    pub(crate) fn engine(&self, without: &Without) -> Engine {
        self.engine_at(self.folder.join(self.unique("state")), without)
    }

    /// An engine on that state folder.
    pub(crate) fn engine_at(&self, state: PathBuf, without: &Without) -> Engine {
        self.open(Settings::new(state), without)
    }

    fn open(&self, settings: Settings, without: &Without) -> Engine {
        let hosts: Vec<_> = self.maker.iter().map(|maker| maker.host.clone()).collect();
        let containers = EngineSockets {
            docker: hosts.clone(),
            podman: hosts,
        };
        let settings = Settings {
            containers,
            ..settings
        };
        let opened = Engine::dangerously_open_with(settings, |native| {
            without
                .steps
                .iter()
                .for_each(|step| native.dangerously_omit(*step));
            if without.cgroups {
                native.dangerously_omit_cgroups();
            }
        });
        opened.expect("an engine")
    }

    /// A request for the probe, which stands at `/probe`.
    pub(crate) fn probe<A: AsRef<OsStr>>(&self, arguments: &[A]) -> RunRequest {
        let mut command = vec![OsString::from("/probe/probe")];
        command.extend(
            arguments
                .iter()
                .map(|argument| argument.as_ref().to_owned()),
        );
        let mut mount = self.probe_folder.clone().into_os_string();
        mount.push(":/probe");
        RunRequest {
            mounts: vec![mount],
            ..self.command(&command)
        }
    }

    /// A request for a command of the host's.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, command: &[A]) -> RunRequest {
        let command = command
            .iter()
            .map(|argument| argument.as_ref().to_owned())
            .collect();
        let backend = self.maker.as_ref().map(|maker| maker.backend.to_owned());
        let image = backend.is_some().then(|| daemons::IMAGE.into());
        RunRequest {
            command,
            backend,
            image,
            limits: quick(),
            ..RunRequest::default()
        }
    }

    pub(crate) fn run(&self, request: RunRequest) -> RunResult {
        self.run_without(request, &Without::default())
    }

    pub(crate) fn run_without(&self, request: RunRequest, without: &Without) -> RunResult {
        // No container engine leaves a wall out on request: what a wall is for, a box of our own shows.
        let request = if without.is_nothing() {
            request
        } else {
            native(request)
        };
        match self.pooled {
            false => self.run_in(&self.engine(without), request),
            true => self.run_pooled(request, without),
        }
    }

    /// In a sandbox that was made ahead: parked where it can be, else in a berth.
    fn run_pooled(&self, request: RunRequest, without: &Without) -> RunResult {
        let pool = PoolSettings {
            warm_sandboxes: 1,
            prepared_namespaces: 1,
            ..PoolSettings::OFF
        };
        let state = self.folder.join(self.unique("state"));
        let engine = self.open(
            Settings {
                pool,
                ..Settings::new(state)
            },
            without,
        );
        let spec = admit(request);
        self.runtime.block_on(async {
            engine.warm(&spec).await;
            let result = engine.run(spec).await;
            engine.close().await;
            result
        })
    }

    pub(crate) fn run_in(&self, engine: &Engine, request: RunRequest) -> RunResult {
        self.runtime.block_on(engine.run(admit(request)))
    }

    /// All of them; but containers take long to make: of those the first and the last, and of Podman's, who takes
    /// twice as long, the first, unless all are asked for.
    pub(crate) fn few<T>(&self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut all: Vec<_> = all.into_iter().collect();
        let last = match self.maker.as_ref().map(|maker| maker.backend) {
            Some(_) if std::env::var_os("AIRLOCK_FULL").is_some() => return all,
            None => return all,
            Some("podman") => None,
            Some(_) => all.pop(),
        };
        all.truncate(1);
        all.into_iter().chain(last).collect()
    }

    /// Whether the program is another of the host's users, as in containers of root's.
    pub(crate) fn shares_users(&self) -> bool {
        self.maker.is_some() && self.mode == Mode::Root
    }

    /// Whether cgroups have no namespace: Podman leaves those of version 1 without one.
    pub(crate) fn shares_cgroups(&self) -> bool {
        let podman = self
            .maker
            .as_ref()
            .is_some_and(|maker| maker.backend == "podman");
        podman && self.enforcer != Enforcer::CgroupV2
    }

    /// What the probe reported.
    pub(crate) fn attempt(&self, request: RunRequest) -> Outcome {
        outcome(&self.run(request))
    }

    pub(crate) fn attempt_without(&self, request: RunRequest, steps: &[Step]) -> Outcome {
        outcome(&self.run_without(
            request,
            &Without {
                steps: steps.to_vec(),
                cgroups: false,
            },
        ))
    }

    /// Starts a program that says `ready`, and waits until it has.
    pub(crate) fn start_ready(&self, engine: &Engine, request: RunRequest) -> Run {
        self.runtime.block_on(self.ready(engine, request))
    }

    /// The same on the runtime of the caller.
    pub(crate) async fn ready(&self, engine: &Engine, request: RunRequest) -> Run {
        let mut run = engine.start(admit(RunRequest {
            stdin: true,
            ..request
        }));
        wait_ready(&mut run).await;
        run
    }

    /// Lets a program that waits for the end of its input go on, and waits for its end.
    pub(crate) fn finish(&self, run: Run) -> RunResult {
        self.runtime.block_on(run.finish())
    }

    /// What `enforced_by` says here when everything is asked for.
    pub(crate) fn enforced_by(&self) -> BTreeMap<&'static str, Enforcer> {
        ["memory", "pids", "cpu"]
            .map(|limit| (limit, self.enforcer))
            .into()
    }

    pub(crate) fn has_cgroups(&self) -> bool {
        self.enforcer != Enforcer::Rlimit
    }

    /// Every barrier of a run without network, mounted workspace or further options.
    pub(crate) fn usual_barriers(&self) -> Vec<Barrier> {
        let never = [Barrier::DoorsOnly, Barrier::OwnKernel];
        let without_cgroups = [Barrier::MemoryLimit, Barrier::CpuLimit];
        let missing = |barrier: &Barrier| {
            never.contains(barrier)
                || (!self.has_cgroups() && without_cgroups.contains(barrier))
                || (*barrier == Barrier::PathRules && init::landlock_version() == 0)
                || (self.shares_users() && *barrier == Barrier::OwnUser)
                || (self.shares_cgroups() && *barrier == Barrier::OwnCgroup)
        };
        Barrier::ALL
            .iter()
            .copied()
            .filter(|barrier| !missing(barrier))
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

async fn wait_ready(run: &mut Run) {
    let mut seen = Vec::new();
    while !seen.ends_with(b"ready\n") {
        match run.next_event().await {
            Some(RunEvent::Output {
                stream: StdStream::Stdout,
                data,
            }) => seen.extend(data),
            Some(_) => {}
            None => panic!(
                "ended before it was ready: {}",
                String::from_utf8_lossy(&seen)
            ),
        }
    }
}

/// Nothing here takes long; what hangs shall not hang the suite.
pub(crate) fn quick() -> LimitSet {
    LimitSet {
        wall_time: "60s".parse().ok(),
        ..LimitSet::default()
    }
}

pub(crate) fn admit(request: RunRequest) -> RunSpec {
    Policy::default()
        .admit(request)
        .expect("an admissible request")
}

/// The verdict in the last line of the output.
pub(crate) fn outcome(result: &RunResult) -> Outcome {
    let text = String::from_utf8_lossy(&result.stdout);
    match result.signal {
        Some(signal) => Outcome::Killed(signal),
        None => verdict(&text).unwrap_or_else(|| Outcome::Broken(format!("{result:?}"))),
    }
}

/// The verdict in the last line, if it is one.
pub(crate) fn verdict(text: &str) -> Option<Outcome> {
    let last = text.lines().last().unwrap_or_default();
    match (last.split_once(' '), last) {
        (None, "allowed") => Some(allowed()),
        (Some(("allowed", got)), _) => Some(Outcome::Allowed(got.to_owned())),
        (Some(("refused", errno)), _) => errno.parse().ok().map(Outcome::Refused),
        _ => None,
    }
}

fn find_probe() -> PathBuf {
    let told = std::env::var_os("AIRLOCK_PROBE").map(PathBuf::from);
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name("probe"));
    let built = Some(PathBuf::from(env!("CARGO_BIN_EXE_probe")));
    let found = [told, beside, built]
        .into_iter()
        .flatten()
        .find(|path| path.is_file());
    found.expect("prerequisite: the probe is not there; set AIRLOCK_PROBE")
}

/// From the environment, else by a look of our own at the cgroups: not by asking what is tested.
fn expected_enforcer(mode: Mode) -> Enforcer {
    match std::env::var("AIRLOCK_EXPECT_CGROUP").as_deref() {
        Ok("v1") => Enforcer::CgroupV1,
        Ok("v2") => Enforcer::CgroupV2,
        Ok("none") => Enforcer::Rlimit,
        Ok(other) => panic!("AIRLOCK_EXPECT_CGROUP is `{other}`, and not v1, v2 or none"),
        Err(_) => {
            let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            let memory_in_v1 = own
                .lines()
                .any(|line| line.split(':').nth(1) == Some("memory"));
            let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
            let writable = unified.is_some_and(|path| {
                let at = format!("/sys/fs/cgroup{path}");
                fs::metadata(at).is_ok_and(|found| mode == Mode::Root || found.uid() != 0)
            });
            match (mode, memory_in_v1) {
                (Mode::Root, true) => Enforcer::CgroupV1,
                (_, false) if writable => Enforcer::CgroupV2,
                _ => Enforcer::Rlimit,
            }
        }
    }
}

/// From the environment, else by what is known of kernels: tmpfs can since Linux 6.3, the usual disks since 5.12.
fn expected_idmaps(folder: &Path) -> bool {
    match std::env::var("AIRLOCK_EXPECT_IDMAP").as_deref() {
        Ok("yes") => return true,
        Ok("no") => return false,
        Ok(other) => panic!("AIRLOCK_EXPECT_IDMAP is `{other}`, and not yes or no"),
        Err(_) => {}
    }
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()).expect("no NUL");
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path lives over the call, and the kernel writes one struct of ours.
    let looked = unsafe { libc::statfs(path.as_ptr(), &mut found) };
    assert_eq!(looked, 0, "the file system of {folder:?}");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("version of the kernel");
    let mut version = release
        .split(['.', '-'])
        .map(|part| part.trim().parse::<u32>().unwrap_or(0));
    let version = (version.next().unwrap_or(0), version.next().unwrap_or(0));
    found.f_type != libc::TMPFS_MAGIC || version >= (6, 3)
}

/// The control groups on the host whose name has this part.
pub(crate) fn cgroups_with(part: &str) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(next) = left.pop() {
        // Others come and go meanwhile.
        let entries = fs::read_dir(&next).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(folders.map(|entry| entry.path()));
        found.extend(next.to_string_lossy().contains(part).then_some(next));
    }
    found
}

/// The processes on the host whose command line has this marker.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(marker.len())
            .any(|part| part == marker.as_bytes())
    })
    .collect()
}

/// `HOST:INSIDE:ACCESS`.
pub(crate) fn mount(host: &Path, inside: &str, access: &str) -> OsString {
    let mut text = host.as_os_str().to_owned();
    text.push(format!(":{inside}:{access}"));
    text
}
