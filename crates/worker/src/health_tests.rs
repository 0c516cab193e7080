use super::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Worker {
    link: watch::Sender<LinkState>,
    tools: watch::Sender<ToolsState>,
    drain: watch::Sender<bool>,
    address: SocketAddr,
}

async fn worker() -> Worker {
    let (link, links) = watch::channel(LinkState::Connecting {
        why: "mqtt://inner-host: refused".to_owned(),
        after: 0,
    });
    let (tools, toolss) = watch::channel(ToolsState::Pending);
    let (drain, is_draining) = watch::channel(false);
    let health = Health {
        link: links,
        tools: toolss,
        is_draining,
        metrics: Arc::new(Metrics::new()),
        warm_interpreters: Arc::new(|| 7),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(health.serve(listener));
    Worker {
        link,
        tools,
        drain,
        address,
    }
}

impl Worker {
    async fn raw(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self
            .raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            body.to_owned(),
        )
    }
}

fn said(status: u16, body: &str) -> (u16, String) {
    (status, body.to_owned())
}

#[tokio::test]
async fn an_outage_makes_it_not_ready_and_not_dead() {
    let worker = worker().await;
    worker.tools.send_replace(ToolsState::Ready);
    assert_eq!(
        worker.get("/healthz").await,
        said(200, r#"{"broker":"connecting","ok":true}"#)
    );
    assert_eq!(
        worker.get("/readyz").await,
        said(503, r#"{"broker":"connecting","ok":false}"#)
    );
    assert_eq!(
        worker.get("/health").await,
        said(200, r#"{"status":"healthy"}"#)
    );
    let not_ready = said(
        503,
        r#"{"error":"the broker is not connected","status":"not ready"}"#,
    );
    assert_eq!(worker.get("/ready").await, not_ready);
    worker.link.send_replace(LinkState::Connected);
    assert_eq!(
        worker.get("/healthz").await,
        said(200, r#"{"broker":"connected","ok":true}"#)
    );
    assert_eq!(
        worker.get("/readyz").await,
        said(200, r#"{"broker":"connected","ok":true}"#)
    );
    assert_eq!(
        worker.get("/ready").await,
        said(200, r#"{"status":"ready"}"#)
    );
    worker.link.send_replace(LinkState::Lost {
        why: "inner-host".to_owned(),
    });
    assert_eq!(
        worker.get("/healthz").await,
        said(503, r#"{"broker":"lost","ok":false}"#)
    );
    let dead = said(
        503,
        r#"{"error":"the broker was given up","status":"unhealthy"}"#,
    );
    assert_eq!(worker.get("/health").await, dead);
}

#[tokio::test]
async fn it_is_ready_between_its_start_and_its_end() {
    let worker = worker().await;
    worker.link.send_replace(LinkState::Connected);
    let pending = said(
        503,
        r#"{"ok":false,"startup_complete":false,"tool_sync":"pending"}"#,
    );
    assert_eq!(worker.get("/startup").await, pending);
    assert_eq!(worker.get("/readyz").await.0, 503);
    worker.tools.send_replace(ToolsState::SyncFailed);
    let failed = said(
        200,
        r#"{"ok":true,"startup_complete":true,"tool_sync":"failed"}"#,
    );
    assert_eq!(worker.get("/startup").await, failed);
    worker.tools.send_replace(ToolsState::Ready);
    let complete = said(
        200,
        r#"{"ok":true,"startup_complete":true,"tool_sync":"ok"}"#,
    );
    assert_eq!(worker.get("/startup").await, complete);
    assert_eq!(worker.get("/readyz").await.0, 200);
    worker.drain.send_replace(true);
    assert_eq!(worker.get("/readyz").await.0, 503);
    assert_eq!(worker.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn all_else_is_not_there_and_nothing_can_be_sent() {
    let worker = worker().await;
    for path in ["/", "/healthz/", "/metrics/x", "/../healthz", "//healthz"] {
        assert_eq!(worker.get(path).await, said(404, ""), "{path}");
    }
    let (status, text) = worker.get("/metrics").await;
    assert!(
        status == 200 && text.contains("airlock_worker_build_info"),
        "{status} {text}"
    );
    for path in ["/healthz", "/metrics"] {
        let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        assert!(
            worker
                .raw(request.as_bytes())
                .await
                .starts_with("HTTP/1.1 405 ")
        );
    }
    let head = worker
        .raw(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
}

#[tokio::test]
async fn large_heads_are_cut_off() {
    let worker = worker().await;
    let request = format!(
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let answer = worker.raw(request.as_bytes()).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );
    assert_eq!(worker.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn whoever_says_nothing_makes_room_the_oldest_first() {
    let worker = worker().await;
    let more = 20;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS + more {
        silent.push(TcpStream::connect(worker.address).await.unwrap());
    }
    assert_eq!(worker.get("/healthz").await.0, 200);
    let late = silent.split_off(more + 1);
    for mut gone in silent {
        // Cut off, one way or the other.
        assert!(matches!(gone.read(&mut [0]).await, Ok(0) | Err(_)));
    }
    let waits = |stream: &TcpStream| matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    assert!(late.iter().all(waits), "nobody was cut off but the oldest");
    assert_eq!(worker.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn it_listens_on_addresses_of_both_kinds() {
    let listener = listen(0).await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = address.port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .await
        .unwrap();
    // A machine without the newer kind has the older alone.
    assert_eq!(
        TcpStream::connect((Ipv6Addr::LOCALHOST, port))
            .await
            .is_ok(),
        address.is_ipv6()
    );
    assert_eq!(
        listen(port).await.unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
}
