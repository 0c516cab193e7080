//! A receiver of webhooks of the test's own, and signatures checked by Python's implementation.

use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

/// Lets notices go to a receiver of this machine.
pub const OPEN: &str = "[webhooks]\nallow_private = true\nallow_plain_http = true\n";

/// A request that came.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ReceivedRequest {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl ReceivedRequest {
    /// A header that it must have.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or_else(|| panic!("{name} in {self:?}"), |(_, value)| value.as_str())
    }

    /// What it says.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// Takes notices, and answers as it is told; 200 unless told.
#[derive(Debug)]
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Receiver {
    /// At an address that was free.
    #[allow(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Receiver {
        Receiver::at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// At this address.
    pub fn at(address: SocketAddr) -> Receiver {
        let listener = TcpListener::bind(address).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let (seen, answers) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(Mutex::new(VecDeque::new())),
        );
        let (log, orders) = (seen.clone(), answers.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, orders) = (log.clone(), orders.clone());
                // Whoever connects and says nothing keeps nobody waiting.
                std::thread::spawn(move || serve(stream, &log, &orders));
            }
        });
        Receiver {
            address,
            seen,
            answers,
        }
    }

    /// An address where nobody listens.
    pub fn free() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        listener.local_addr().expect("an address")
    }

    /// How the next request is answered that none was told for yet.
    pub fn answers(&self, answer: &str) {
        self.answers
            .lock()
            .expect("whole")
            .push_back(format!("{answer}\r\n"));
    }

    /// Where notices are to go.
    pub fn url(&self) -> String {
        format!("http://{}/hook?token=1", self.address)
    }

    /// All that came.
    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().expect("whole").clone()
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<ReceivedRequest>>, orders: &Mutex<VecDeque<String>>) {
    let Some((request, mut stream)) = take(stream) else {
        return;
    };
    log.lock().expect("whole").push(request);
    let order = orders.lock().expect("whole").pop_front();
    let answer = order.unwrap_or_else(|| "200 OK\r\n".to_owned());
    _ = write!(
        stream,
        "HTTP/1.1 {answer}content-length: 0\r\nconnection: close\r\n\r\n"
    );
}

fn take(mut stream: TcpStream) -> Option<(ReceivedRequest, TcpStream)> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let head = loop {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            break end;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).ok()?;
    let mut lines = text.lines();
    let line = lines.next()?.to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")?
        .1
        .parse::<usize>()
        .ok()?;
    while bytes.len() < head + 4 + length {
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
    let body = String::from_utf8(bytes[head + 4..].to_vec()).ok()?;
    Some((
        ReceivedRequest {
            line,
            headers,
            body,
        },
        stream,
    ))
}

/// Which of the signatures of a notice fit this secret, by an implementation that is not ours.
pub fn fitting(notice: &ReceivedRequest, secret: &str) -> Vec<bool> {
    all_fitting(std::slice::from_ref(notice), secret).remove(0)
}

/// The same of many.
pub fn all_fitting(notices: &[ReceivedRequest], secret: &str) -> Vec<Vec<bool>> {
    const CHECK: &str = "import base64, hashlib, hmac, json, sys\n\
        def fits(n):\n\
        \x20   key = base64.b64decode(n['secret'].removeprefix('whsec_'))\n\
        \x20   said = '.'.join([n['id'], n['at'], n['body']]).encode()\n\
        \x20   own = 'v1,' + base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()\n\
        \x20   return [hmac.compare_digest(own, s) for s in n['signatures'].split(' ')]\n\
        print(json.dumps([fits(n) for n in json.load(sys.stdin)]))";
    let given = |notice: &ReceivedRequest| {
        json!({ "secret": secret, "id": notice.header("webhook-id"), "at": notice.header("webhook-timestamp"),
            "body": notice.body, "signatures": notice.header("webhook-signature") })
    };
    let given: Value = notices.iter().map(given).collect();
    let mut child = Command::new("python3")
        .args(["-c", CHECK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("prerequisite: python3");
    child
        .stdin
        .take()
        .expect("ours")
        .write_all(given.to_string().as_bytes())
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    serde_json::from_slice(&output.stdout).expect("a list of lists")
}
