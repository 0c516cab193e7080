//! Container engines of a test's own: real ones, in a folder of their own, with one small image in each. A guard
//! process (`guard`) stops them when the test process ends, however it ends, and removes all that they made.

mod image;

use serde_json::Value;
use std::{
    fs,
    io::{self, Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// The image that each of them has: busybox, a few files, and the libraries of a Rust program.
pub const IMAGE: &str = "localhost/airlock-test:latest";
/// The ordinary user who has a Podman of his own, unless `AIRLOCK_TEST_USER` names another.
pub const USER: &str = "airlock-test";
const NEEDED: [&str; 8] = [
    "bash",
    "dockerd",
    "podman",
    "runc",
    "newuidmap",
    "setpriv",
    "tar",
    "ldd",
];
/// Engines take a few seconds to start on a busy machine.
const LONGEST_START: Duration = Duration::from_secs(60);
const LONGEST_CALL: Duration = Duration::from_secs(60);

/// One kind of container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Docker, as root.
    Docker,
    /// Podman, as root.
    Podman,
    /// Podman of an ordinary user.
    Rootless,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Podman => "podman",
            Kind::Rootless => "rootless",
        }
    }

    /// What `--backend` calls it.
    pub fn backend(self) -> &'static str {
        match self {
            Kind::Docker => "docker",
            Kind::Podman | Kind::Rootless => "podman",
        }
    }
}

/// Container engines that live as long as this, and no longer than the process.
#[derive(Debug)]
pub struct Daemons {
    folder: PathBuf,
    guard: Child,
}

impl Daemons {
    /// Starts them and gives each the image. Panics with what is missing: prerequisites are named, never skipped.
    pub fn start(kinds: &[Kind]) -> Daemons {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        check_prerequisites();
        // Short, since sockets lie in it.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!(
            "/tmp/airlock-daemons-{}.{number}",
            std::process::id()
        ));
        let mut command = Command::new("bash");
        command
            .args(["-c", include_str!("guard"), "guard"])
            .arg(&folder)
            .arg(user());
        command.args(kinds.iter().map(|kind| kind.name()));
        // Not of our group: the signals of a terminal are not for it.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0);
        let guard = command.spawn().expect("bash starts");
        let daemons = Daemons { folder, guard };
        let archive = image::archive();
        for kind in kinds {
            daemons.await_answer(*kind);
            daemons.import(*kind, &archive, IMAGE, &[]);
        }
        daemons
    }

    /// Where it listens.
    pub fn socket(&self, kind: Kind) -> PathBuf {
        self.folder.join(kind.name()).join("socket")
    }

    /// The same, as `DOCKER_HOST` and `CONTAINER_HOST` say it.
    pub fn host(&self, kind: Kind) -> String {
        format!("unix://{}", self.socket(kind).display())
    }

    /// What it has on disk, its logs among that.
    pub fn place(&self, kind: Kind) -> PathBuf {
        self.folder.join(kind.name())
    }

    fn await_answer(&self, kind: Kind) {
        let deadline = Instant::now() + LONGEST_START;
        while !matches!(
            request(&self.socket(kind), "GET", "/_ping", &[]),
            Ok((200, _))
        ) {
            let log = || {
                fs::read_to_string(self.folder.join(format!("{}.log", kind.name())))
                    .unwrap_or_default()
            };
            assert!(
                Instant::now() < deadline,
                "{kind:?} does not answer: {}",
                log()
            );
            // It makes its socket when it is ready; until then there is nothing to wait on.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes an image from an archive of a root, with these lines of a Dockerfile.
    pub fn import(&self, kind: Kind, archive: &[u8], name: &str, changes: &[&str]) {
        let (repository, tag) = name.rsplit_once(':').expect("a name with a tag");
        let changes: String = changes
            .iter()
            .map(|change| format!("&changes={}", escaped(change)))
            .collect();
        let path = format!(
            "/v1.41/images/create?fromSrc=-&repo={}&tag={tag}{changes}",
            escaped(repository)
        );
        let (status, answer) =
            request(&self.socket(kind), "POST", &path, archive).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            status == 200 && !answer.contains("error"),
            "{kind:?} takes the image: {status} {answer}"
        );
    }

    /// The archive of the image, for further ones.
    pub fn archive() -> Vec<u8> {
        image::archive()
    }

    /// Asks it something; its status and its answer.
    pub fn call(&self, kind: Kind, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let (status, answer) = request(&self.socket(kind), method, &format!("/v1.41{path}"), &body)
            .expect("it answers");
        (
            status,
            serde_json::from_slice(&answer).unwrap_or(Value::Null),
        )
    }

    /// The ids of all its containers that have this label, `NAME` or `NAME=VALUE`.
    pub fn labelled(&self, kind: Kind, label: &str) -> Vec<String> {
        labelled(&self.host(kind), label)
    }
}

/// The same of the engine that listens there.
pub fn labelled(host: &str, label: &str) -> Vec<String> {
    let filters = serde_json::json!({ "label": [label] }).to_string();
    let path = format!(
        "/v1.41/containers/json?all=true&filters={}",
        escaped(&filters)
    );
    let socket = Path::new(host.trim_start_matches("unix://"));
    let (status, list) = request(socket, "GET", &path, &[]).expect("it answers");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&list));
    let list: Value = serde_json::from_slice(&list).expect("it answers in JSON");
    let ids = list.as_array().expect("a list").iter();
    ids.map(|one| one["Id"].as_str().expect("an id").to_owned())
        .collect()
}

impl Drop for Daemons {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        _ = self.guard.wait();
    }
}

/// The name of the ordinary user of the tests. Root makes him where the machine does not have him yet, whichever test asks
/// first; `AIRLOCK_TEST_USER` names another one, who must be there.
pub fn user() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let find_or_make = || {
        let chosen = std::env::var("AIRLOCK_TEST_USER");
        let name = chosen.clone().unwrap_or_else(|_| USER.to_owned());
        if chosen.is_err() && !is_account(&name) {
            // Another test program may be faster; whether he is there is for the caller to see.
            _ = Command::new("useradd")
                .args(["--system", "--no-create-home", "--user-group", &name])
                .stderr(Stdio::null())
                .status();
        }
        name
    };
    NAME.get_or_init(find_or_make).clone()
}

fn is_account(name: &str) -> bool {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut names = accounts.lines().filter_map(|line| line.split(':').next());
    names.any(|known| known == name)
}

fn check_prerequisites() {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        |name: &str| std::env::split_paths(&folders).any(|folder| folder.join(name).is_file());
    let missing: Vec<_> = NEEDED.into_iter().filter(|name| !on_path(name)).collect();
    assert!(
        missing.is_empty(),
        "prerequisite: {missing:?} missing: apt-get install docker.io podman runc uidmap"
    );
}

/// HTTP of version 1.0: one answer, and its end is the end of the connection.
fn request(socket: &Path, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LONGEST_CALL))?;
    let kind = if method == "POST" && path.contains("fromSrc") {
        "application/x-tar"
    } else {
        "application/json"
    };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: engine\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or_else(wrong)?;
    let status = answer
        .get(9..12)
        .and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    Ok((status.ok_or_else(wrong)?, answer.split_off(end + 4)))
}

/// For one part of a path or query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_answer_have_the_image_and_leave_nothing_but_those_of_others() {
        let all = [Kind::Docker, Kind::Podman, Kind::Rootless];
        let daemons = Daemons::start(&all);
        for kind in all {
            let (status, told) = daemons.call(
                kind,
                "GET",
                &format!("/images/{}/json", escaped(IMAGE)),
                &Value::Null,
            );
            assert_eq!(status, 200, "{kind:?}: {told}");
        }
        let body = serde_json::json!({
            "Image": IMAGE, "Entrypoint": ["sleep", "4711"], "HostConfig": { "NetworkMode": "none" },
        });
        let (status, made) = daemons.call(Kind::Docker, "POST", "/containers/create", &body);
        assert_eq!(status, 201, "{made}");
        let start = format!("/containers/{}/start", made["Id"].as_str().expect("an id"));
        assert_eq!(
            daemons.call(Kind::Docker, "POST", &start, &Value::Null).0,
            204
        );
        let (folder, other) = (daemons.folder.clone(), Daemons::start(&[Kind::Rootless]));
        let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(
            mounts().contains(folder.to_str().expect("plain")),
            "the control: engines have mounts"
        );
        drop(daemons);
        assert!(!folder.exists() && !mounts().contains(folder.to_str().expect("plain")));
        // Neither the program of a container, which would sleep on, nor the engines of others.
        let line = |pid: &fs::DirEntry| fs::read(pid.path().join("cmdline")).unwrap_or_default();
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        assert_eq!(
            processes
                .filter(|pid| line(pid) == b"sleep\x004711\0")
                .count(),
            0
        );
        assert_eq!(
            other.call(Kind::Rootless, "GET", "/info", &Value::Null).0,
            200
        );
    }
}
