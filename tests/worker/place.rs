//! Folders, ports and processes of a test's own. Tests share what is dear to start, and what is shared is never dropped: so all
//! programs are told by the system when this process ends, and a process outside takes their folders away.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Nothing takes as long; it only ends tests that hang.
const LONG: Duration = Duration::from_secs(30);
/// The same for programs of others that start: RabbitMQ takes long where much else goes on.
const LONG_START: Duration = Duration::from_secs(120);
/// Ends when nobody holds its input any more; programs that are ending may still write for a moment.
const SWEEP: &str = r#"cat >/dev/null; for _ in $(seq 100); do rm -rf "$1" 2>/dev/null; [ -e "$1" ] || exit; sleep 0.2; done"#;

/// A folder of a test's own.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty one, open to all: whoever runs inside is a stranger.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = root().join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        make(&path);
        Folder(path)
    }

    /// A path in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The sweep takes what is left.
        _ = fs::remove_dir_all(&self.0);
    }
}

fn make(path: &Path) {
    fs::create_dir(path).expect("a folder for the test");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its rights");
}

fn root() -> &'static Path {
    static ROOT: OnceLock<(PathBuf, Mutex<Option<ChildStdin>>)> = OnceLock::new();
    let (root, _) = ROOT.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("airlock-worker-{}", std::process::id()));
        make(&path);
        let mut sweep = Command::new("sh");
        sweep
            .args(["-c", SWEEP, "sweep"])
            .arg(&path)
            .stdin(Stdio::piped());
        // Not of our group: the signals of a terminal are not for it.
        let sweep = sweep
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        (path, Mutex::new(sweep.expect("sh starts").stdin.take()))
    });
    root
}

/// Starts a program, with this signal when this process ends. It has no other signals of ours, and none that we ignore.
pub fn start(signal: &str, command: &Command) -> Child {
    let mut bound = Command::new("setpriv");
    bound.args([
        "--pdeathsig",
        signal,
        "--",
        "/usr/bin/env",
        "--default-signal",
    ]);
    bound.arg(command.get_program()).args(command.get_args());
    bound.env_clear();
    bound.envs(
        command
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let name = command.get_program().to_owned();
    spawned(bound).unwrap_or_else(|error| panic!("cannot start {}: {error}", name.display()))
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// By a thread that stays: the signal comes when the thread ends that started a program, and a test is one.
fn spawned(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (give, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // Whoever asked may have failed meanwhile.
                _ = answer.send(command.spawn());
            }
        });
        Mutex::new(give)
    });
    let (answer, answered) = mpsc::channel();
    let give = spawner.lock().expect("nobody failed with it").clone();
    give.send((command, answer)).expect("the thread stays");
    answered.recv().expect("the thread answers")
}

/// Copies what a program says into a file as it comes, and waits for a line that says that it runs.
pub(crate) fn keep(said: impl Read + Send + 'static, at: &Path) {
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(at)
        .expect("a file for what is said");
    let mut said = io::BufReader::new(said);
    std::thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = said.read(&mut bytes) {
            file.write_all(&bytes[..count]).expect("it is written");
        }
    });
}

/// A port of loopback that nobody has. Not one of those that the system gives to clients: a broker that was killed must find it
/// free again.
pub fn free_port() -> u16 {
    let mut random = [0; 2];
    let mut source = fs::File::open("/dev/urandom").expect("there is chance");
    loop {
        source.read_exact(&mut random).expect("there is chance");
        let port = 20_000 + u16::from_be_bytes(random) % 12_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Waits until something is there; panics with the words if it never is.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(LONG, what, look)
}

/// The same for a program of others that starts.
pub(crate) fn until_started<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(LONG_START, what, look)
}

fn within<T>(time: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + time;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
