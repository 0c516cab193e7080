//! From broker to broker: mosquitto, the worker, and an agent of our own, all on the loopback.

use crate::peers::{Process, Processors, await_listener};
use crate::worker::Trouble;
use bytes::Bytes;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use worker::transport::{
    Link, LinkState, OutgoingMessage, ReconnectPolicy, Subscription,
    mqtt::{ClientId, Mqtt, MqttSettings},
};

/// It only ends what hangs.
const LONG: Duration = Duration::from_secs(120);
/// Interpreters that are ready, as the worker counts them.
const PARKED: &str = "airlock_worker_parked_interpreters ";
const REPLIES: &str = "bench/a2a/v1/sam_remote_tool/response/agent";

/// A broker with a worker and an agent.
pub(crate) struct Mesh {
    link: Link,
    worker: Process,
    _mosquitto: Process,
    health: SocketAddr,
    calls: u64,
}

/// How it went with many calls.
pub(crate) struct BatchResult {
    pub(crate) unanswered: usize,
    pub(crate) twice: usize,
}

impl Mesh {
    /// Starts all three, with so many interpreters kept ready, and waits until calls are served.
    pub(crate) async fn start(
        airlock: &Path,
        python: &Path,
        tools: &Path,
        folder: &Path,
        parked: usize,
    ) -> Result<Mesh, Trouble> {
        let broker = free_address()?;
        let (at_broker, at_worker) = (folder.join("mosquitto"), folder.join("worker"));
        fs::create_dir_all(&at_broker)?;
        fs::create_dir_all(&at_worker)?;
        let config = at_broker.join("config");
        fs::write(
            &config,
            format!(
                "listener {} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n",
                broker.port()
            ),
        )?;
        let arguments = ["-c".to_owned(), config.display().to_string()];
        let mut mosquitto = Process::start(
            Path::new("mosquitto"),
            &arguments,
            &[],
            &at_broker,
            Processors::Shared,
        )?;
        await_listener("mosquitto", broker, &mut mosquitto, &at_broker, LONG)?;
        let health = free_address()?;
        let mut worker = start_worker(airlock, python, tools, &at_worker, broker, health, parked)?;
        await_listener("airlock worker sam", health, &mut worker, &at_worker, LONG)?;
        let settings = MqttSettings::new(
            "127.0.0.1",
            broker.port(),
            ClientId::Unique("agent".to_owned()),
        );
        let connector = Mqtt::new(settings).map_err(|trouble| Trouble::Broker(trouble.message))?;
        let replies = Subscription {
            pattern: format!("{REPLIES}/>"),
            is_shared: false,
        };
        let patience = ReconnectPolicy {
            tries: 1,
            pause: Duration::from_secs(1),
        };
        let mut link = Link::start(connector, BTreeSet::from([replies]), patience);
        let connected = link.state.wait_for(|state| *state == LinkState::Connected);
        connected
            .await
            .map_err(|_| Trouble::Broker("no connection".to_owned()))?;
        let mut mesh = Mesh {
            link,
            worker,
            _mosquitto: mosquitto,
            health,
            calls: 0,
        };
        mesh.until("/readyz", |answer| answer.starts_with("HTTP/1.1 200"))
            .await?;
        mesh.once().await?;
        Ok(mesh)
    }

    /// One call; how long it took from handing it to the broker to having the answer.
    pub(crate) async fn once(&mut self) -> Result<Duration, Trouble> {
        let id = self.next_id();
        let begun = Instant::now();
        self.publish(&id).await?;
        let answer = self.answer().await?;
        let took = begun.elapsed();
        match answer.0 == id && answer.1["result"]["tool_result"] == json!({ "sum": 3 }) {
            true => Ok(took),
            false => Err(Trouble::Broker(format!("a wrong answer: {}", answer.1))),
        }
    }

    /// So many at once. After the last answer one more call is made: what was answered twice has come before its answer.
    pub(crate) async fn many(&mut self, calls: usize) -> Result<BatchResult, Trouble> {
        let ids: BTreeSet<_> = (0..calls).map(|_| self.next_id()).collect();
        let mut answered: BTreeMap<String, usize> = BTreeMap::new();
        for id in &ids {
            self.publish(id).await?;
        }
        while answered.len() < ids.len() {
            let (id, answer) = self.answer().await?;
            if answer["result"]["tool_result"]["sum"] != 3 {
                return Err(Trouble::Broker(format!("a wrong answer: {answer}")));
            }
            *answered.entry(id).or_default() += 1;
        }
        let last = self.next_id();
        self.publish(&last).await?;
        loop {
            let (id, _) = self.answer().await?;
            if id == last {
                break;
            }
            *answered.entry(id).or_default() += 1;
        }
        let unanswered = ids.iter().filter(|id| !answered.contains_key(*id)).count();
        Ok(BatchResult {
            unanswered,
            twice: answered.values().filter(|times| **times > 1).count(),
        })
    }

    /// Waits until so many interpreters are ready.
    pub(crate) async fn parked(&self, least: u64) -> Result<(), Trouble> {
        let enough = |answer: &str| number(answer, PARKED).is_some_and(|parked| parked >= least);
        self.until("/metrics", enough).await
    }

    /// Its share of memory with all its processes, in KiB.
    pub(crate) fn memory(&self) -> Result<f64, Trouble> {
        Ok(self.worker.memory()?)
    }

    /// From now on it is counted anew how much memory the worker had at most; what it has now, in KiB.
    pub(crate) fn forget_peak(&self) -> Result<f64, Trouble> {
        Ok(self.worker.forget_peak()?)
    }

    /// The most since, in KiB.
    pub(crate) fn peak(&self) -> Result<f64, Trouble> {
        Ok(self.worker.peak()?)
    }

    fn next_id(&mut self) -> String {
        self.calls += 1;
        format!("call-{}", self.calls)
    }

    async fn publish(&self, id: &str) -> Result<(), Trouble> {
        let body = json!({
            "jsonrpc": "2.0", "id": id, "method": "sam_remote_tool/invoke",
            "params": {
                "task_id": id, "tool_name": "add", "args": { "a": 1, "b": 2 }, "app_name": "agent",
                "user_id": "someone", "session_id": "one", "timeout_seconds": 60,
            },
        });
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let properties = [
            ("replyTo".to_owned(), format!("{REPLIES}/{id}")),
            ("clientId".to_owned(), "agent".to_owned()),
            ("timestamp".to_owned(), now.as_millis().to_string()),
        ];
        let message = OutgoingMessage {
            topic: "bench/a2a/v1/sam_remote_tool/invoke/add".to_owned(),
            payload: Bytes::from(body.to_string()),
            properties: properties.into(),
        };
        self.link
            .publisher
            .publish(message)
            .await
            .map_err(|gone| Trouble::Broker(gone.to_string()))
    }

    /// The next answer, with whose it is.
    async fn answer(&mut self) -> Result<(String, Value), Trouble> {
        let arrived = tokio::time::timeout(LONG, self.link.arrived.recv()).await;
        let nothing = || Trouble::Broker("no answer came".to_owned());
        let arrived = arrived.map_err(|_| nothing())?.ok_or_else(nothing)?;
        let answer = serde_json::from_slice(&arrived.payload).map_err(std::io::Error::other)?;
        let id = arrived
            .topic
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        arrived.receipt.settle().await;
        Ok((id, answer))
    }

    /// Asks until the answer is as it should be.
    async fn until(&self, path: &str, is_so: impl Fn(&str) -> bool) -> Result<(), Trouble> {
        let deadline = Instant::now() + LONG;
        while !is_so(&get(self.health, path).await?) {
            if Instant::now() > deadline {
                return Err(Trouble::Broker(format!(
                    "{path} does not become as it should"
                )));
            }
            // Nobody tells when it is.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

fn start_worker(
    airlock: &Path,
    python: &Path,
    tools: &Path,
    folder: &Path,
    broker: SocketAddr,
    health: SocketAddr,
    parked: usize,
) -> Result<Process, Trouble> {
    let texts = [
        ("SAM_NAMESPACE", "bench".to_owned()),
        ("SAM_TRANSPORT", format!("mqtt://{broker}")),
        (
            "MANIFEST_PATH",
            tools.join("manifest.yaml").display().to_string(),
        ),
        (
            "TOOLS_PYTHON_DIR",
            tools.join("python").display().to_string(),
        ),
        ("SANDBOX_PYTHON_BIN", python.display().to_string()),
        ("SAM_WARM", parked.to_string()),
        ("HEALTH_PORT", health.port().to_string()),
        ("AIRLOCK_STATE", folder.join("state").display().to_string()),
    ];
    let environment: Vec<_> = texts
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let arguments = ["worker".to_owned(), "sam".to_owned()];
    Ok(Process::start(
        airlock,
        &arguments,
        &environment,
        folder,
        Processors::Shared,
    )?)
}

async fn get(address: SocketAddr, path: &str) -> Result<String, Trouble> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The value of a metric without labels.
fn number(metrics: &str, name: &str) -> Option<u64> {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn free_address() -> Result<SocketAddr, Trouble> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
