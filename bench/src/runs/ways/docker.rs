//! Docker by its API: create, start, wait, remove. Four requests on its socket, as a service would make them.
//!
//! HTTP/1.0 on purpose: the answer ends with the connection, so nothing has to be known about chunks.

use super::{Reason, Root};
use crate::runs::{Options, archive};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const IMAGE: &str = "airlock-bench";
/// A daemon that does not answer is not waited for longer.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);

/// A daemon, and what it is asked to run.
#[derive(Debug)]
pub(crate) struct Docker {
    socket: PathBuf,
    image: &'static str,
    container: String,
}

impl Docker {
    /// Looks for the daemon and gives it an image of nothing but links: `/usr` is the host's.
    pub(crate) fn prepare(
        command: &[OsString],
        root: &Root,
        options: &Options,
    ) -> Result<Docker, Reason> {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let binds: Vec<_> = root
            .folders
            .iter()
            .map(|name| format!("/{name}:/{name}:ro"))
            .collect();
        let container = json!({
            "Image": IMAGE, "Cmd": words, "NetworkDisabled": true,
            "HostConfig": {
                "NetworkMode": "none", "ReadonlyRootfs": true, "CapDrop": ["ALL"], "Binds": binds,
                "SecurityOpt": ["no-new-privileges"], "Memory": 512 << 20, "PidsLimit": 32, "Tmpfs": { "/tmp": "" },
            },
        });
        let socket = options.docker_socket.clone();
        let docker = Docker {
            socket,
            image: IMAGE,
            container: container.to_string(),
        };
        docker
            .ask("GET", "/_ping", "", b"")
            .map_err(|error| format!("no daemon answers: {error}"))?;
        docker.bring_image(root, options)?;
        Ok(docker)
    }

    /// The same with the image of an archive, and what our own container backend asks for beside it. Podman listens to
    /// the same words. Without a filter of system calls it is the engine's own.
    pub(crate) fn with_image(
        command: &[OsString],
        file: &Path,
        socket: &Path,
        filter: Option<&str>,
    ) -> Result<Docker, Reason> {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let mut options = vec!["no-new-privileges".to_owned()];
        options.extend(filter.map(|filter| format!("seccomp={filter}")));
        let container = json!({
            "Image": archive::NAME, "Cmd": words, "User": "1000:1000", "NetworkDisabled": true,
            "HostConfig": {
                "NetworkMode": "none", "ReadonlyRootfs": true, "CapDrop": ["ALL"], "IpcMode": "private",
                "SecurityOpt": options, "Memory": 512 << 20, "MemorySwap": 512 << 20, "PidsLimit": 32,
                "Tmpfs": { "/tmp": "", "/run": "", "/workspace": "" }, "LogConfig": { "Type": "none", "Config": {} },
            },
        });
        let (socket, container) = (socket.to_owned(), container.to_string());
        let docker = Docker {
            socket,
            image: archive::NAME,
            container,
        };
        docker
            .ask("GET", "/_ping", "", b"")
            .map_err(|error| format!("no daemon answers: {error}"))?;
        let bytes = fs::read(file).map_err(|error| format!("cannot read the image: {error}"))?;
        docker.ask("POST", "/images/load?quiet=1", "application/x-tar", &bytes)?;
        Ok(docker)
    }

    fn bring_image(&self, root: &Root, options: &Options) -> Result<(), Reason> {
        let folder = options.scratch.join("docker");
        let failed = |error: io::Error| format!("cannot make an image: {error}");
        if !folder.exists() {
            fs::create_dir(&folder)
                .and_then(|()| root.make(&folder))
                .map_err(failed)?;
        }
        let tar = Command::new("tar")
            .arg("-C")
            .arg(&folder)
            .args(["-c", "."])
            .output()
            .map_err(failed)?;
        let path = format!("/images/create?fromSrc=-&repo={IMAGE}&tag=latest");
        let told = self.ask("POST", &path, "application/x-tar", &tar.stdout)?;
        match told.contains("\"error\"") {
            true => Err(format!("the daemon took no image: {}", told.trim())),
            false => Ok(()),
        }
    }

    pub(crate) fn once(&self) -> Result<Duration, Reason> {
        let start = Instant::now();
        let created = self.ask(
            "POST",
            "/containers/create",
            "application/json",
            self.container.as_bytes(),
        )?;
        let id = field(&created, "Id")?
            .as_str()
            .map(str::to_owned)
            .ok_or("a container without a name")?;
        let waited = self.start_and_wait(&id);
        let removed = self.ask("DELETE", &format!("/containers/{id}?force=1"), "", b"");
        let took = start.elapsed();
        let (status, _) = (waited?, removed?);
        match status.as_i64() {
            Some(0) => Ok(took),
            _ => Err(format!("the container exited with {status}")),
        }
    }

    fn start_and_wait(&self, id: &str) -> Result<Value, Reason> {
        self.ask("POST", &format!("/containers/{id}/start"), "", b"")?;
        field(
            &self.ask("POST", &format!("/containers/{id}/wait"), "", b"")?,
            "StatusCode",
        )
    }

    /// One request; the body of its answer, if that was a good one.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<String, Reason> {
        let answer = self.exchange(method, path, kind, body);
        let answer = answer.map_err(|error| format!("`{}`: {error}", self.socket.display()))?;
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text
            .split_once("\r\n\r\n")
            .ok_or("an answer that is not HTTP")?;
        match head.split_whitespace().nth(1) {
            Some(status) if status.starts_with('2') => Ok(body.to_owned()),
            _ => Err(format!("{method} {path}: {}", body.trim())),
        }
    }

    fn exchange(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(LONGEST_ANSWER))?;
        let length = body.len();
        let about_body = format!("Content-Type: {kind}\r\nContent-Length: {length}");
        let head = format!("{method} {path} HTTP/1.0\r\nHost: docker\r\n{about_body}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// Takes the image away again. Left there it would do no harm.
    pub(crate) fn end(self) {
        _ = self.ask(
            "DELETE",
            &format!("/images/{}?force=1", self.image),
            "",
            b"",
        );
    }
}

fn field(text: &str, name: &str) -> Result<Value, Reason> {
    let answer: Value =
        serde_json::from_str(text).map_err(|error| format!("an answer without JSON: {error}"))?;
    Ok(answer[name].clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    /// A daemon that gives these answers, one a connection, and tells what it was asked.
    fn daemon(
        name: &str,
        answers: &'static [&'static str],
    ) -> (Docker, thread::JoinHandle<Vec<String>>) {
        let socket =
            std::env::temp_dir().join(format!("airlock-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let docker = Docker {
            socket: socket.clone(),
            image: IMAGE,
            container: "{}".into(),
        };
        let served = thread::spawn(move || {
            let one = |answer: &&str| {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut asked = [0; 1024];
                let length = stream.read(&mut asked).expect("a request");
                stream
                    .write_all(answer.as_bytes())
                    .expect("the client listens");
                let asked = String::from_utf8_lossy(&asked[..length]).into_owned();
                asked.split(" HTTP").next().unwrap_or_default().to_owned()
            };
            let asked = answers.iter().map(one).collect();
            fs::remove_file(socket).expect("our socket");
            asked
        });
        (docker, served)
    }

    #[test]
    fn a_container_is_created_started_awaited_and_removed() {
        let (docker, served) = daemon(
            "docker-good",
            &[
                "HTTP/1.0 201 Created\r\n\r\n{\"Id\":\"abc\"}",
                "HTTP/1.0 204 No Content\r\n\r\n",
                "HTTP/1.0 200 OK\r\n\r\n{\"StatusCode\":0}",
                "HTTP/1.0 204 No Content\r\n\r\n",
            ],
        );
        assert!(docker.once().is_ok());
        let asked = served.join().expect("it served");
        assert_eq!(
            asked,
            [
                "POST /containers/create",
                "POST /containers/abc/start",
                "POST /containers/abc/wait",
                "DELETE /containers/abc?force=1"
            ]
        );
    }

    #[test]
    fn a_command_that_failed_is_no_sample() {
        let (docker, served) = daemon(
            "docker-bad",
            &[
                "HTTP/1.0 201 Created\r\n\r\n{\"Id\":\"abc\"}",
                "HTTP/1.0 204 No Content\r\n\r\n",
                "HTTP/1.0 200 OK\r\n\r\n{\"StatusCode\":3}",
                "HTTP/1.0 204 No Content\r\n\r\n",
            ],
        );
        assert_eq!(docker.once(), Err("the container exited with 3".to_owned()));
        served.join().expect("it served");
    }

    #[test]
    fn what_the_daemon_refuses_is_the_reason() {
        let (docker, served) = daemon(
            "docker-no",
            &["HTTP/1.0 404 Not Found\r\n\r\n{\"message\":\"no image\"}\n"],
        );
        assert_eq!(
            docker.once(),
            Err("POST /containers/create: {\"message\":\"no image\"}".to_owned())
        );
        served.join().expect("it served");
    }
}
