//! What the sieges share: asking a server that may be dead by now, and reading what it holds.
//!
//! Settings: `AIRLOCK_FULL=1` (full counts), `AIRLOCK_KILLS`, `AIRLOCK_SEED`.

use gateway_tests::{Answer, Server};
use serde_json::Value;
use std::{fs, io::Write, net::TcpStream, time::Duration};

/// Asks a server that may die meanwhile; nothing unless the answer came whole.
pub fn attempt(
    server: &Server,
    key: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Option<Answer> {
    let answer = server
        .client
        .try_open(&server.request(key, method, path, headers, body))
        .ok()?
        .answer();
    let length = answer
        .header("content-length")
        .and_then(|length| length.parse::<usize>().ok());
    (answer.status != 0 && length.is_none_or(|length| length == answer.body.len()))
        .then_some(answer)
}

/// Sends bytes as a body, which are no JSON.
pub fn upload(server: &Server, key: &str, path: &str, bytes: &[u8]) -> Option<Answer> {
    let host = server.client.host();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        bytes.len()
    );
    let answer = server
        .client
        .try_open(&[head.as_bytes(), bytes].concat())
        .ok()?
        .answer();
    (answer.status != 0).then_some(answer)
}

/// Asks, and hangs up so soon without waiting for the answer.
pub fn ask_and_leave(server: &Server, request: &[u8], milliseconds: u64) {
    let gateway_tests::Client::Tcp(address) = &server.client else {
        panic!("it listens on TCP")
    };
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.write_all(request).expect("it takes the request");
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// The share of memory of all that lives below us, in KiB: of a server with its launchers and boxes, which are nobody's
/// children, once orphans are ours.
pub fn memory_kib() -> u64 {
    let pss = |pid: i32| {
        // One that has ended meanwhile holds nothing.
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        // Not its program's: less of that is counted while strangers run the same one.
        let own = |line: &str| {
            ["Pss_Anon:", "Pss_Shmem:"].iter().find_map(|name| {
                line.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
        };
        text.lines().filter_map(own).sum::<u64>()
    };
    robustness::orphans::below_us().into_iter().map(pss).sum()
}

/// Descriptors and threads of a process.
pub fn descriptors_and_threads(pid: u32) -> (usize, usize) {
    let count = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).map_or(0, Iterator::count);
    (count("fd"), count("task"))
}
