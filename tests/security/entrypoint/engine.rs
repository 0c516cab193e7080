//! A Docker and a Podman of our own, in a folder of our own, and containers in them.

use crate::image;
use std::{
    fs,
    io::Read,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

const NEEDED: [&str; 5] = ["dockerd", "docker", "podman", "runc", "tar"];
const BUSYBOX: &str = "/usr/bin/busybox";
/// Longer than any claim takes; a hang is a failure.
const LONGEST: Duration = Duration::from_secs(60);
/// What podman needs on hosts with a hybrid cgroup tree and low limits.
const PODMAN_SETTINGS: &str = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n\
    netns = \"none\"\n[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n";

/// One engine, by its own command.
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    command: Vec<String>,
    settings: PathBuf,
    folder: PathBuf,
}

/// What became of a container.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A container that runs. It is removed when this is dropped.
pub(crate) struct Running<'a> {
    engine: &'a Engine,
    pub(crate) name: String,
    pub(crate) attached: Child,
}

fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn ended(output: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl Engine {
    /// A command to this engine.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .args(arguments)
            .env("CONTAINERS_CONF", &self.settings);
        command
            .env("DOCKER_CONFIG", &self.folder)
            .stdin(Stdio::null());
        command
    }

    /// Does it, and expects it to work.
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let output = self
            .command(arguments)
            .output()
            .expect("the engine's command starts");
        let told = ended(output);
        assert_eq!(told.status, 0, "{arguments:?}: {told:?}");
        told.stdout.trim_end().to_owned()
    }

    /// A folder of this test's own, world readable.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.folder.join(format!("test-{}", fresh()));
        fs::create_dir(&folder).expect("a folder can be made");
        folder
    }

    /// Runs airlock-init as the first process and waits for its end.
    pub(crate) fn run(&self, options: &[&str], arguments: &[&str]) -> Ended {
        self.start(options, image::BASE, arguments).wait()
    }

    /// The same in the image that has bash.
    pub(crate) fn run_with_bash(&self, options: &[&str], arguments: &[&str]) -> Ended {
        self.start(options, image::WITH_BASH, arguments).wait()
    }

    /// Begins a container and does not wait.
    pub(crate) fn begin(&self, options: &[&str], arguments: &[&str]) -> Running<'_> {
        self.start(options, image::BASE, arguments)
    }

    fn start(&self, options: &[&str], image: &str, arguments: &[&str]) -> Running<'_> {
        let name = format!("entry-{}", fresh());
        let mut all = vec!["run", "--name", &name];
        if !options.contains(&"--network") {
            all.extend(["--network", "none"]);
        }
        if !options.contains(&"--entrypoint") {
            all.extend(["--entrypoint", "/airlock-init"]);
        }
        all.extend(options);
        all.push(image);
        all.extend(arguments);
        let mut command = self.command(&all);
        let attached = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        Running {
            engine: self,
            name,
            attached,
        }
    }
}

impl Running<'_> {
    /// Its pid on the host, once it runs.
    pub(crate) fn pid(&self) -> i32 {
        until("the container runs", || {
            let told = self
                .engine
                .command(&["inspect", "--format", "{{.State.Pid}}", &self.name])
                .output()
                .ok()?;
            String::from_utf8_lossy(&told.stdout)
                .trim()
                .parse()
                .ok()
                .filter(|pid| *pid > 0)
        })
    }

    /// Runs a command in it, as a user.
    pub(crate) fn exec(&self, user: &str, arguments: &[&str]) -> Ended {
        let command = [&["exec", "--user", user, &self.name][..], arguments].concat();
        ended(
            self.engine
                .command(&command)
                .output()
                .expect("the engine's command starts"),
        )
    }

    /// Sends its first process a signal.
    pub(crate) fn signal(&self, signal: &str) {
        self.engine.must(&["kill", "--signal", signal, &self.name]);
    }

    /// Reads a line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let (mut line, mut byte) = (String::new(), [0]);
        loop {
            let count = self
                .attached
                .stdout
                .as_mut()
                .expect("stdout is a pipe")
                .read(&mut byte)
                .expect("a pipe can be read");
            assert_eq!(
                count,
                1,
                "the container ended after `{line}`: {:?}",
                self.complaint()
            );
            match byte[0] {
                b'\n' => break,
                other => line.push(char::from(other)),
            }
        }
        line
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        let error = self.attached.stderr.as_mut().expect("stderr is a pipe");
        error.read_to_string(&mut text).expect("it is text");
        text
    }

    pub(crate) fn wait(mut self) -> Ended {
        fn all(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.map(|mut stream| stream.read_to_end(&mut bytes));
                String::from_utf8_lossy(&bytes).into_owned()
            })
        }
        let (out, error) = (
            all(self.attached.stdout.take()),
            all(self.attached.stderr.take()),
        );
        let status = until("the container ends", || {
            self.attached.try_wait().expect("it is our child")
        });
        let text = |thread: std::thread::JoinHandle<String>| {
            thread.join().expect("the reader does not panic")
        };
        Ended {
            status: status.code().unwrap_or(-1),
            stdout: text(out),
            stderr: text(error),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let removed = self.engine.command(&["rm", "--force", &self.name]).output();
        removed.expect("the engine's command starts");
        self.attached.wait().expect("it is our child");
    }
}

/// Asks until there is an answer.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONGEST;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "in a minute it did not come to pass that {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Both engines, and what has to be put away afterwards.
pub(crate) struct Engines {
    folder: PathBuf,
    dockerd: Option<Child>,
    engines: Vec<Engine>,
}

fn missing() -> Option<String> {
    let on_path = |name: &&str| {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).any(|folder| folder.join(name).is_file())
    };
    let mut missing: Vec<_> = NEEDED.into_iter().filter(|name| !on_path(name)).collect();
    if !Path::new(BUSYBOX).exists() {
        missing.push("busybox-static");
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("root, to start the engines");
    }
    (!missing.is_empty()).then(|| format!("missing: {}", missing.join(", ")))
}

impl Engines {
    /// Starts those that are wanted; what is missing, if they cannot be.
    pub(crate) fn start(wanted: impl Fn(&str) -> bool) -> Result<Engines, String> {
        if let Some(missing) = missing() {
            return Err(missing);
        }
        // Short, since sockets lie in it.
        let folder = PathBuf::from(format!("/tmp/airlock-entry-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| error.to_string())?;
        let tar = image::make(&folder);
        let mut engines = Engines {
            folder,
            dockerd: None,
            engines: Vec::new(),
        };
        if wanted("docker") {
            engines.start_docker();
        }
        if wanted("podman") {
            engines.add_podman();
        }
        for engine in &engines.engines {
            tar.iter()
                .for_each(|(name, file)| _ = engine.must(&["import", path(file), name]));
        }
        Ok(engines)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter()
    }

    fn engine(&self, name: &'static str, command: Vec<String>) -> Engine {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        // Not the credentials of whoever runs the tests.
        fs::write(folder.join("config.json"), "{}").expect("a file can be written");
        Engine {
            name,
            command,
            settings: self.folder.join("containers.conf"),
            folder,
        }
    }

    fn start_docker(&mut self) {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let log = fs::File::create(at("dockerd.log")).expect("a file can be made");
        let mut command = Command::new("dockerd");
        command.args([
            "--iptables=false",
            "--bridge=none",
            "--storage-driver=vfs",
            "--log-level=warn",
        ]);
        command.args([
            "--data-root",
            &at("docker-data"),
            "--exec-root",
            &at("docker-exec"),
        ]);
        command.args([
            "--pidfile",
            &at("docker.pid"),
            "--host",
            &format!("unix://{}", at("docker.sock")),
        ]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log);
        self.dockerd = Some(command.spawn().expect("dockerd starts"));
        let socket = at("docker.sock");
        until("dockerd listens", || UnixStream::connect(&socket).ok());
        let client = [
            "docker".to_owned(),
            "--host".to_owned(),
            format!("unix://{socket}"),
        ];
        self.engines.push(self.engine("docker", client.to_vec()));
    }

    fn add_podman(&mut self) {
        fs::write(self.folder.join("containers.conf"), PODMAN_SETTINGS)
            .expect("a file can be written");
        let at = |name: &str| self.folder.join(name).display().to_string();
        let client = [
            "podman".to_owned(),
            format!("--root={}", at("podman-data")),
            format!("--runroot={}", at("podman-run")),
            format!("--tmpdir={}", at("podman-tmp")),
            "--storage-driver=vfs".to_owned(),
        ];
        self.engines.push(self.engine("podman", client.to_vec()));
    }

    /// Stops the engines and clears their folder; what could not be put away.
    pub(crate) fn stop(mut self) -> Vec<String> {
        if let Some(mut dockerd) = self.dockerd.take() {
            let pid = rustix::process::Pid::from_child(&dockerd);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .expect("it is our child");
            dockerd.wait().expect("it is our child");
        }
        // The engines leave mounts of their own folders; those of containers would be a leak, and are told.
        let mut left = Vec::new();
        for place in mounts(&self.folder).into_iter().rev() {
            let of_container = place.contains("/merged") || place.contains("/vfs/dir");
            let gone = Command::new("umount")
                .args(["--lazy", &place])
                .status()
                .is_ok_and(|status| status.success());
            if of_container || !gone {
                left.push(place);
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            left.push(format!("{}: {error}", self.folder.display()));
        }
        left
    }
}

fn mounts(below: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mounts").expect("mounts can be listed");
    let places = text.lines().filter_map(|line| line.split(' ').nth(1));
    places
        .filter(|place| Path::new(place).starts_with(below))
        .map(str::to_owned)
        .collect()
}

/// A path as an argument.
pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("our paths are plain")
}
