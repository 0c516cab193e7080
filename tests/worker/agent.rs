//! An agent: a Python process with models of its own (`client.py`), and what it was told. Its packages are fetched once, and
//! kept in `target/paho`.

use crate::{
    NAMESPACE,
    place::{start, until},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command},
    sync::{
        Arc, Condvar, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const WANTED: &str = "paho-mqtt==2.2.0 pydantic==2.14.3";
/// Only for AMQP; it may have to be compiled.
const WANTED_FOR_AMQP: &str = "python-qpid-proton==0.40.0";
/// Nothing takes as long; it only ends tests that hang.
const LONG: Duration = Duration::from_secs(30);

/// How a broker is reached.
#[derive(Clone, Debug)]
pub struct Way(pub Value);

impl Way {
    /// MQTT 5, of anybody.
    pub fn mqtt5(port: u16) -> Way {
        Way(json!({"way": "mqtt5", "host": "127.0.0.1", "port": port}))
    }

    /// MQTT 3.1.1, which has no properties.
    pub fn mqtt3(port: u16) -> Way {
        Way(json!({"way": "mqtt3", "host": "127.0.0.1", "port": port}))
    }

    /// The dialect of lines.
    pub fn dev(port: u16) -> Way {
        Way(json!({"way": "dev", "host": "127.0.0.1", "port": port}))
    }

    /// AMQP 1.0, with RabbitMQ's words for a topic.
    pub fn amqp(port: u16) -> Way {
        Way(
            json!({"way": "amqp", "host": "127.0.0.1", "port": port, "address": "/exchange/amq.topic/{}", "dots": true}),
        )
    }

    /// With more of what `client.py` takes.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Way {
        self.0[key] = value.into();
        self
    }
}

/// An invocation, as agents send it, with what a test changes of it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The tool, as its topic has it.
    pub tool: String,
    /// What it goes by.
    pub id: String,
    /// The whole message.
    pub body: Value,
    /// What travels beside it; the usual ones are added.
    pub properties: BTreeMap<String, Value>,
    left_out: Vec<String>,
}

impl Ask {
    /// For this tool with these arguments, by an agent's usual user in his usual session.
    pub fn new(tool: &str, args: Value) -> Ask {
        let id = uuid();
        let params = json!({
            "task_id": id, "tool_name": tool, "args": args, "tool_config": {}, "app_name": "Tester", "user_id": "ana",
            "session_id": "web-77", "preloaded_artifacts": {}, "artifact_references": {}, "timeout_seconds": 60,
            "sandbox_profile": "standard",
        });
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "sam_remote_tool/invoke", "params": params});
        Ask {
            tool: tool.to_owned(),
            id,
            body,
            properties: BTreeMap::new(),
            left_out: Vec::new(),
        }
    }

    /// With another value of one of `params`.
    pub fn param(mut self, name: &str, value: impl Into<Value>) -> Ask {
        self.body["params"][name] = value.into();
        self
    }

    /// By another id.
    pub fn id(mut self, id: &str) -> Ask {
        self.id = id.to_owned();
        self.body["id"] = id.into();
        self.param("task_id", id)
    }

    /// With so many seconds for the tool.
    pub fn timeout(self, seconds: i64) -> Ask {
        self.param("timeout_seconds", seconds)
    }

    /// In this profile.
    pub fn profile(self, name: &str) -> Ask {
        self.param("sandbox_profile", name)
    }

    /// With a file that it brings along.
    pub fn preloaded(mut self, key: &str, filename: &str, bytes: &[u8]) -> Ask {
        let content = BASE64_STANDARD.encode(bytes);
        self.body["params"]["preloaded_artifacts"][key] = json!({
            "filename": filename, "content": content, "mime_type": "text/plain", "version": 0, "metadata": {},
        });
        self
    }

    /// With a file of the store.
    pub fn reference(mut self, key: &str, filename: &str, version: Option<i64>) -> Ask {
        self.body["params"]["artifact_references"][key] =
            json!({"filename": filename, "version": version});
        self
    }

    /// With this beside the message.
    pub fn property(mut self, name: &str, value: impl Into<Value>) -> Ask {
        self.properties.insert(name.to_owned(), value.into());
        self
    }

    /// Without that beside the message.
    pub fn without(mut self, name: &str) -> Ask {
        self.left_out.push(name.to_owned());
        self
    }
}

/// What an agent was told.
#[derive(Clone, Debug)]
pub struct Message(pub Value);

impl Message {
    /// What it says.
    pub fn body(&self) -> &Value {
        &self.0["body"]
    }

    /// The result of an invocation; panics if it failed.
    pub fn result(&self) -> &Value {
        let result = &self.0["body"]["result"];
        assert!(result.is_object(), "it is a result: {}", self.0["body"]);
        result
    }

    /// What the tool gave back.
    pub fn tool_result(&self) -> &Value {
        &self.result()["tool_result"]
    }

    /// The names, versions, types and sizes of what it made.
    pub fn created(&self) -> Vec<(String, i64, String, u64)> {
        let created = self.result()["created_artifacts"]
            .as_array()
            .expect("a list");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let one = |one: &Value| {
            let version = one["version"].as_i64().expect("a number");
            let size = one["size_bytes"].as_u64().expect("a number");
            (
                text(&one["filename"]),
                version,
                text(&one["mime_type"]),
                size,
            )
        };
        let mut all: Vec<_> = created.iter().map(one).collect();
        all.sort();
        all
    }

    /// Code and words of an error; panics if it went well.
    pub fn error(&self) -> (&str, &str) {
        let error = &self.0["body"]["error"];
        assert!(error.is_object(), "it is an error: {}", self.0["body"]);
        (
            error["code"].as_str().expect("a code"),
            error["message"].as_str().expect("a message"),
        )
    }

    /// What travelled beside it.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.0["properties"][name].as_str()
    }

    /// Why agents refuse it, if they do.
    pub fn problem(&self) -> Option<&str> {
        self.0["problem"].as_str()
    }

    /// When it came, in milliseconds since 1970.
    pub fn at_ms(&self) -> u64 {
        self.0["at_ms"].as_u64().expect("a number")
    }

    fn is(&self, kind: &str, id: &str) -> bool {
        self.0["event"] == "message" && self.0["kind"] == kind && self.0["id"] == id
    }
}

#[derive(Debug, Default)]
struct Received {
    messages: Mutex<Vec<Message>>,
    more: Condvar,
}

/// The agent; it leaves with its handle.
#[derive(Debug)]
pub struct Agent {
    name: String,
    namespace: String,
    has_properties: bool,
    told: Arc<Received>,
    next: AtomicU64,
    orders: Mutex<ChildStdin>,
    child: Child,
}

impl Agent {
    /// Comes back when it listens.
    pub fn join(way: &Way, name: &str) -> Agent {
        Agent::join_at(way, name, NAMESPACE)
    }

    /// The same in another namespace.
    pub fn join_at(way: &Way, name: &str, namespace: &str) -> Agent {
        let mut settings = way.0.clone();
        settings["name"] = name.into();
        settings["namespace"] = namespace.into();
        let mut command = Command::new(python(settings["way"] == "amqp"));
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        command
            .arg("-B")
            .arg(here.join("client.py"))
            .arg(settings.to_string());
        let mut child = start("KILL", &command);
        let told = Arc::new(Received::default());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        listen(stdout.expect("it is ours"), told.clone(), |line| {
            serde_json::from_str(&line).unwrap_or_else(|_| json!({"event": "said", "words": line}))
        });
        listen(
            stderr.expect("it is ours"),
            told.clone(),
            |line| json!({"event": "said", "words": line}),
        );
        let agent = Agent {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            has_properties: settings["way"] != "mqtt3",
            told,
            next: AtomicU64::new(0),
            orders: Mutex::new(child.stdin.take().expect("it is ours")),
            child,
        };
        agent.find("the broker takes the agent", |event| {
            event.0["event"] == "connected"
        });
        agent
    }

    /// A topic of tools.
    pub fn topic(&self, rest: &str) -> String {
        format!("{}/a2a/v1/sam_remote_tool/{rest}", self.namespace)
    }

    /// Sends, and comes back when the broker has it.
    pub fn publish(&self, topic: &str, body: &Value, properties: &BTreeMap<String, Value>) {
        self.order(
            json!({"do": "publish", "topic": topic, "body": body, "properties": properties}),
        );
    }

    /// The same, of bytes that may be no JSON.
    pub fn publish_bytes(&self, topic: &str, bytes: &[u8], properties: &BTreeMap<String, Value>) {
        let bytes = BASE64_STANDARD.encode(bytes);
        self.order(
            json!({"do": "publish", "topic": topic, "bytes": bytes, "properties": properties}),
        );
    }

    fn order(&self, mut order: Value) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        order["number"] = number.into();
        writeln!(
            self.orders.lock().expect("nobody failed with it"),
            "{order}"
        )
        .expect("the agent listens");
        let sent = self.find("it is sent", |event| {
            event.0["event"] == "sent" && event.0["number"] == number
        });
        let mid = &sent.0["mid"];
        self.find("the broker has it", |event| {
            event.0["event"] == "published" && event.0["mid"] == *mid
        });
    }

    /// Listens to this, too.
    pub fn listen(&self, pattern: &str) {
        let connected = |event: &Message| event.0["event"] == "connected";
        let before = self.count(connected);
        let order = json!({"do": "listen", "topic": self.topic(pattern)});
        writeln!(
            self.orders.lock().expect("nobody failed with it"),
            "{order}"
        )
        .expect("the agent listens");
        until("the broker takes it", || {
            (self.count(connected) > before).then_some(())
        });
    }

    /// What travels beside a request of this id.
    pub fn properties(&self, id: &str) -> BTreeMap<String, Value> {
        if !self.has_properties {
            return BTreeMap::new();
        }
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("it is later");
        let of = |name: &str, value: Value| (name.to_owned(), value);
        BTreeMap::from([
            of(
                "replyTo",
                self.topic(&format!("response/{}/{id}", self.name)).into(),
            ),
            of(
                "statusTo",
                self.topic(&format!("status/{}/{id}", self.name)).into(),
            ),
            of("clientId", self.name.as_str().into()),
            of("userId", "ana".into()),
            of(
                "timestamp",
                u64::try_from(now.as_millis())
                    .expect("it is not that late")
                    .into(),
            ),
        ])
    }

    /// Sends an invocation.
    pub fn send(&self, ask: &Ask) {
        let mut properties = self.properties(&ask.id);
        properties.extend(ask.properties.clone());
        properties.retain(|name, _| !ask.left_out.contains(name));
        self.publish(
            &self.topic(&format!("invoke/{}", ask.tool)),
            &ask.body,
            &properties,
        );
    }

    /// The answer to an invocation.
    pub fn answer(&self, ask: &Ask) -> Message {
        self.wait("response", &ask.id)
    }

    /// Sends an invocation and waits for its answer.
    pub fn call(&self, ask: &Ask) -> Message {
        self.send(ask);
        self.answer(ask)
    }

    /// The first message of this kind and id. One that agents refuse is no answer, and fails the test.
    pub fn wait(&self, kind: &str, id: &str) -> Message {
        self.find(&format!("{kind} of {id}"), |event| event.is(kind, id))
    }

    /// Sends one that this tool answers, after everything that was sent before.
    pub fn settle(&self) {
        self.call(&Ask::new("echo", json!({"text": "settled"})));
    }

    /// All messages of this kind and id, so far.
    pub fn all(&self, kind: &str, id: &str) -> Vec<Message> {
        let told = self.told.messages.lock().expect("nobody failed with it");
        told.iter()
            .filter(|event| event.is(kind, id))
            .cloned()
            .collect()
    }

    /// The texts of all statuses of this id, so far.
    pub fn statuses(&self, id: &str) -> Vec<String> {
        let text = |message: Message| {
            message.body()["params"]["status_text"]
                .as_str()
                .map(str::to_owned)
        };
        self.all("status", id)
            .into_iter()
            .filter_map(text)
            .collect()
    }

    /// Everything that it was told, so far.
    pub fn everything(&self) -> Vec<Message> {
        self.told
            .messages
            .lock()
            .expect("nobody failed with it")
            .clone()
    }

    /// Asks what a tool is, in this generation's words (`init_request` or `init`).
    pub fn ask_for_card(&self, generation: &str, tool: &str) -> String {
        let id = uuid();
        let method = format!("sam_remote_tool/{generation}");
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"tool_name": tool, "tool_config": {}}});
        let mut properties = self.properties(&id);
        properties.remove("statusTo");
        self.publish(
            &self.topic(&format!("{generation}/{tool}")),
            &body,
            &properties,
        );
        id
    }

    /// Wants no answer to this any more.
    pub fn cancel(&self, id: &str) {
        self.publish(
            &self.topic(&format!("cancel/{id}")),
            &json!({}),
            &BTreeMap::new(),
        );
    }

    fn count(&self, matches: impl Fn(&Message) -> bool) -> usize {
        self.everything()
            .iter()
            .filter(|event| matches(event))
            .count()
    }

    /// Waits for the first event of which this holds.
    pub fn find(&self, what: &str, matches: impl Fn(&Message) -> bool) -> Message {
        let end = Instant::now() + LONG;
        let mut told = self.told.messages.lock().expect("nobody failed with it");
        loop {
            if let Some(found) = told.iter().find(|event| matches(event)).cloned() {
                // Others go on with what was told, whatever becomes of this test.
                drop(told);
                assert!(
                    found.problem().is_none(),
                    "agents refuse it, {:?}: {}",
                    found.problem(),
                    found.0
                );
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let last = last(&told);
                drop(told);
                panic!("{what} does not come; the last that came: {last:#?}");
            }
            told = self
                .told
                .more
                .wait_timeout(told, left)
                .expect("nobody failed with it")
                .0;
        }
    }
}

fn last(told: &[Message]) -> Vec<String> {
    let short = |message: &Message| message.0.to_string().chars().take(400).collect();
    told.iter()
        .rev()
        .filter(|event| event.0["kind"] != "init")
        .take(8)
        .map(short)
        .collect()
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn listen(
    said: impl std::io::Read + Send + 'static,
    told: Arc<Received>,
    read: impl Fn(String) -> Value + Send + 'static,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            told.messages
                .lock()
                .expect("nobody failed with it")
                .push(Message(read(line)));
            told.more.notify_all();
        }
    });
}

/// A random id, as agents make them.
pub fn uuid() -> String {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("there is chance");
    uuid.trim().to_owned()
}

/// An interpreter with the packages of the client.
fn python(is_for_amqp: bool) -> PathBuf {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    static FOR_AMQP: OnceLock<()> = OnceLock::new();
    let folder = cli::repository().join("target/paho");
    INSTALLED.get_or_init(|| install(&folder, "holds", WANTED));
    if is_for_amqp {
        FOR_AMQP.get_or_init(|| install(&folder, "holds-amqp", WANTED_FOR_AMQP));
    }
    folder.join("bin/python")
}

/// Once, whichever of several processes comes first.
fn install(folder: &Path, mark: &str, wanted: &str) {
    fs::create_dir_all(folder).expect("a folder for packages");
    let lock = fs::File::create(folder.with_extension("lock")).expect("a lock");
    lock.lock().expect("whoever has it ends");
    let mark = folder.join(mark);
    if fs::read_to_string(&mark).is_ok_and(|held| held == wanted) {
        return;
    }
    let run = |program: &Path, arguments: &[&str]| {
        let done = Command::new(program)
            .args(arguments)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "prerequisite: {wanted} from PyPI: {said}"
        );
    };
    if !folder.join("bin/pip").exists() {
        run(
            Path::new("/usr/bin/python3"),
            &["-m", "venv", &folder.to_string_lossy()],
        );
    }
    let mut arguments = vec!["install", "--quiet"];
    arguments.extend(wanted.split(' '));
    run(&folder.join("bin/pip"), &arguments);
    fs::write(mark, wanted).expect("a mark");
}
