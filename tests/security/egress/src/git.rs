//! Repositories of a world: git's own server program behind the world's servers, at any host, and their refs as the test
//! sees them on disk.

use crate::{
    World,
    answers::{Pieces, streamed, whole},
    web::Web,
};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::{Response, StatusCode, body::Incoming, header::HeaderName, http::request::Parts};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
};

/// A repository that is served at every host as `/OWNER/NAME.git`, with and without the `.git`.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
}

impl World {
    /// Makes the repository `OWNER/NAME` with one commit on `main`: a file `README` with its name. It can be pushed to.
    pub fn repository(&self, name: &str) -> Repository {
        let folder = self.web.git.join(format!("{name}.git"));
        fs::create_dir_all(&folder).expect("a folder for the repository");
        let repository = Repository { folder };
        repository.git(&["init", "--quiet", "--bare", "--initial-branch=main"], "");
        repository.git(&["config", "http.receivepack", "true"], "");
        let blob = repository.git(&["hash-object", "-w", "--stdin"], &format!("{name}\n"));
        let tree = repository.git(&["mktree"], &format!("100644 blob {blob}\tREADME\n"));
        let commit = repository.git(&["commit-tree", &tree, "-m", "first"], "");
        repository.git(&["update-ref", "refs/heads/main", &commit], "");
        repository
    }
}

impl Repository {
    /// What each ref is.
    pub fn refs(&self) -> BTreeMap<String, String> {
        let told = self.git(&["for-each-ref", "--format=%(refname) %(objectname)"], "");
        told.lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, id)| (name.into(), id.into()))
            .collect()
    }

    /// Runs git in it, with this on its standard input.
    pub fn git(&self, arguments: &[&str], input: &str) -> String {
        let file = self.folder.with_extension("input");
        fs::write(&file, input).expect("its input");
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env_clear()
            .envs(variables(&self.folder));
        command
            .env("GIT_AUTHOR_NAME", "world")
            .env("GIT_AUTHOR_EMAIL", "world@example");
        command
            .env("GIT_COMMITTER_NAME", "world")
            .env("GIT_COMMITTER_EMAIL", "world@example");
        let output = command
            .stdin(fs::File::open(&file).expect("its input"))
            .output()
            .expect("git starts");
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// Nobody's settings but its own.
fn variables(home: &Path) -> [(&'static str, PathBuf); 3] {
    let path = std::env::var_os("PATH").unwrap_or_default();
    [
        ("PATH", path.into()),
        ("HOME", home.to_owned()),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
    ]
}

/// The repository's folder that a request names, and the rest of the path.
fn place(path: &str, web: &Web) -> Option<(String, String)> {
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let (owner, name, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let name = name.strip_suffix(".git").unwrap_or(name);
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.');
    let exists =
        plain(owner) && plain(name) && web.git.join(owner).join(format!("{name}.git")).is_dir();
    exists.then(|| (format!("{owner}/{name}.git"), rest.to_owned()))
}

/// Whether a request names a repository.
pub(crate) fn is_about(head: &Parts, web: &Web) -> bool {
    place(head.uri.path(), web).is_some()
}

/// Has git's own program answer.
pub(crate) async fn answer(
    head: &Parts,
    body: Incoming,
    number: usize,
    web: &Web,
) -> Response<Pieces> {
    let (repository, rest) = place(head.uri.path(), web).expect("it was asked");
    let text = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut command = tokio::process::Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .envs(variables(&web.git));
    command
        .env("GIT_PROJECT_ROOT", &web.git)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "world");
    command
        .env("PATH_INFO", format!("/{repository}/{rest}"))
        .env("REQUEST_METHOD", head.method.as_str());
    command.env("QUERY_STRING", head.uri.query().unwrap_or_default());
    command
        .env("CONTENT_TYPE", text("content-type"))
        .env("HTTP_CONTENT_ENCODING", text("content-encoding"));
    command.env("HTTP_GIT_PROTOCOL", text("git-protocol"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("git starts");
    let (input, output) = (
        child.stdin.take().expect("a pipe"),
        child.stdout.take().expect("a pipe"),
    );
    let ((), answer) = tokio::join!(feed(body, input, number, web), told(output));
    // It lives until it has told all.
    tokio::spawn(async move { child.wait().await });
    answer.unwrap_or_else(|| {
        let mut broken = Response::new(whole("git said nothing\n"));
        *broken.status_mut() = StatusCode::BAD_GATEWAY;
        broken
    })
}

async fn feed(mut body: Incoming, mut input: ChildStdin, number: usize, web: &Web) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        web.came(number, &bytes);
        // It may have heard enough.
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Reads the head that the program writes; its body follows as it comes.
async fn told(output: ChildStdout) -> Option<Response<Pieces>> {
    let mut output = BufReader::new(output);
    let (sender, body) = streamed();
    let mut answer = Response::new(body);
    loop {
        let mut line = String::new();
        output
            .read_line(&mut line)
            .await
            .ok()
            .filter(|size| *size > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        if name == "Status" {
            *answer.status_mut() = value.get(..3)?.parse().ok()?;
        } else {
            answer
                .headers_mut()
                .append(name.parse::<HeaderName>().ok()?, value.parse().ok()?);
        }
    }
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(size @ 1..) = output.read(&mut buffer).await {
            if sender
                .send(Frame::data(Bytes::copy_from_slice(&buffer[..size])))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    Some(answer)
}
