//! A real S3 server: `moto[server]` of PyPI, fetched once and kept in `target/moto`. One for all tests of a process,
//! ended with it.

use cli::repository;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

const WANTED: &str = "moto[server]==5.2.5";
/// Ends the server when its standard input does, which is when whoever started it is gone, however that ended.
const SERVER: &str = "
import os, sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print('port', server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
";

/// The server.
#[derive(Debug)]
pub struct Moto(SocketAddr);

impl Moto {
    /// The one of this process; none, said aloud, where it cannot be had.
    pub fn running(claim: &str) -> Option<&'static Moto> {
        static MADE: OnceLock<Result<Moto, String>> = OnceLock::new();
        let made = MADE.get_or_init(|| install().and_then(|python| start(&python)));
        if let Err(why) = made {
            assert!(
                std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                "{WANTED} is missing: {why}"
            );
            eprintln!("NOT PROVEN: {claim}, for S3: {WANTED} is missing ({why})");
        }
        made.as_ref().ok()
    }

    /// Where it listens.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.0)
    }

    /// Puts other bytes in the place of the only object with this prefix.
    pub(crate) fn replace(&self, prefix: &str, bytes: &[u8]) {
        let listing = self.ask(&format!("GET /airlock?list-type=2&prefix={prefix}"), b"");
        let keys: Vec<_> = listing
            .split("<Key>")
            .skip(1)
            .filter_map(|rest| rest.split_once("</Key>"))
            .collect();
        assert_eq!(keys.len(), 1, "one object: {listing}");
        self.ask(&format!("PUT /airlock/{}", keys[0].0), bytes);
    }

    fn ask(&self, what: &str, body: &[u8]) -> String {
        let mut connection = TcpStream::connect(self.0).expect("the server listens");
        // It wants to be told who is asking, and does not check it.
        let who = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let (host, length) = (self.0, body.len());
        let head =
            format!("host: {host}\r\nauthorization: {who}\r\ncontent-length: {length}\r\n\r\n");
        write!(connection, "{what} HTTP/1.0\r\n{head}").expect("it reads");
        connection.write_all(body).expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.split(' ').nth(1) == Some("200"), "{what}: {answer}");
        answer
    }
}

fn install() -> Result<PathBuf, String> {
    let folder = repository().join("target/moto");
    let (mark, python) = (folder.join("holds"), folder.join("bin/python"));
    if fs::read_to_string(&mark).is_ok_and(|held| held == WANTED) {
        return Ok(python);
    }
    _ = fs::remove_dir_all(&folder);
    carry_out(
        Command::new("/usr/bin/python3")
            .args(["-m", "venv"])
            .arg(&folder),
    )?;
    carry_out(Command::new(folder.join("bin/pip")).args(["install", "--quiet", WANTED]))?;
    fs::write(mark, WANTED).map_err(|error| error.to_string())?;
    Ok(python)
}

fn carry_out(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn start(python: &Path) -> Result<Moto, String> {
    let mut command = Command::new(python);
    command
        .args(["-c", SERVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let stdout = child.stdout.as_mut().ok_or("it has no output")?;
    BufReader::new(stdout)
        .read_line(&mut line)
        .map_err(|error| error.to_string())?;
    let port = line
        .trim()
        .strip_prefix("port ")
        .and_then(|port| port.parse().ok());
    let moto = Moto(SocketAddr::from((
        [127, 0, 0, 1],
        port.ok_or("it does not say its port")?,
    )));
    // Its input closes when this process ends, and it with it.
    std::mem::forget(child);
    moto.ask("PUT /airlock", b"");
    Ok(moto)
}
