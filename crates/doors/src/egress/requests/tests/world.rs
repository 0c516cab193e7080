//! Test fixtures: a door, a scripted server, and a client that sends arbitrary bytes.

use crate::{
    Secret,
    egress::{Credential, Egress, EgressReport, EgressSettings, InjectionMethod},
    ledger::{Durability, Ledger},
    secrets::{KeySource, Secrets},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject},
};
use spec::{Destination, EgressGrant, EgressLimits, EgressMode, EgressRule, Ports};
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(super) const KEY: &str = "canary/0123456789+abcdef";

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A server's response to a request, chunk by chunk; an empty chunk closes the connection.
pub(super) type Says = Arc<dyn Fn(&str) -> Vec<Vec<u8>> + Send + Sync>;

pub(super) fn says(answer: impl Fn(&str) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Says {
    Arc::new(answer)
}

/// Always the same response.
pub(super) fn always(answer: &str) -> Says {
    let answer = answer.as_bytes().to_vec();
    says(move |_| vec![answer.clone()])
}

pub(super) fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A server whose connections the test serves.
pub(super) struct Secured(TcpListener, TlsAcceptor);

impl Secured {
    async fn accept(&self) -> Box<dyn Stream> {
        let stream = self.knock().await;
        self.secure(stream).await.unwrap()
    }

    /// A connection was accepted, and TLS has not started.
    pub(super) async fn knock(&self) -> TcpStream {
        self.0.accept().await.unwrap().0
    }

    pub(super) async fn secure(&self, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.1.accept(stream).await?))
    }
}

/// A local server.
pub(super) struct Server {
    pub(super) to: Destination,
    /// The requests that it received.
    heard: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    /// The CA of its certificate.
    ca: Option<String>,
}

impl Server {
    pub(super) async fn plain(says: Says) -> Server {
        Server::new(None, None, says).await
    }

    /// With a certificate for localhost.
    pub(super) async fn tls(says: Says) -> Server {
        Server::tls_as("127.0.0.1", says).await
    }

    /// With a certificate for a given name.
    pub(super) async fn tls_as(name: &str, says: Says) -> Server {
        let (config, ca) = certificate(name);
        Server::new(Some(config), Some(ca), says).await
    }

    async fn new(config: Option<Arc<ServerConfig>>, ca: Option<String>, says: Says) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = Destination {
            host: "127.0.0.1".parse().unwrap(),
            port: listener.local_addr().unwrap().port(),
        };
        let (heard, connections): (Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) = Default::default();
        let (hears, counts) = (heard.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counts.fetch_add(1, Ordering::Relaxed);
                let (config, says, hears) = (config.clone(), says.clone(), hears.clone());
                tokio::spawn(async move {
                    match config {
                        None => converse(stream, says, hears).await,
                        Some(config) => {
                            if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                                converse(stream, says, hears).await;
                            }
                        }
                    }
                });
            }
        });
        Server {
            to,
            heard,
            connections,
            ca,
        }
    }

    /// A server that starts a response and continues on demand.
    pub(super) async fn tls_going_on(
        first: &'static str,
        then: &'static str,
        mut told: mpsc::UnboundedReceiver<()>,
    ) -> Server {
        let (listener, server) = Server::by_hand().await;
        tokio::spawn(async move {
            let mut stream = listener.accept().await;
            message(&mut stream).await;
            stream.write_all(first.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            told.recv().await;
            // The door may be closed by then.
            _ = stream.write_all(then.as_bytes()).await;
            _ = stream.flush().await;
            told.recv().await;
        });
        server
    }

    /// A server that responds after the request head and reads no further.
    pub(super) async fn tls_impatient(answer: &'static str) -> Server {
        let (listener, server) = Server::by_hand().await;
        tokio::spawn(async move {
            let mut stream = listener.accept().await;
            head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            std::future::pending::<()>().await;
        });
        server
    }

    /// A server whose connection the test takes over.
    pub(super) async fn by_hand() -> (Secured, Server) {
        let (config, ca) = certificate("127.0.0.1");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = Destination {
            host: "127.0.0.1".parse().unwrap(),
            port,
        };
        let server = Server {
            to,
            heard: Arc::default(),
            connections: Arc::default(),
            ca: Some(ca),
        };
        (Secured(listener, TlsAcceptor::from(config)), server)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

fn certificate(name: &str) -> (Arc<ServerConfig>, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (Arc::new(config), ca)
}

async fn converse(mut stream: impl Stream, says: Says, hears: Arc<Mutex<Vec<String>>>) {
    while let Some(request) = message(&mut stream).await {
        hears.lock().unwrap().push(request.clone());
        for piece in says(&request) {
            if piece.is_empty() {
                return;
            }
            if stream.write_all(&piece).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

/// The head of a message.
pub(super) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads one message in the simplest way: head, then a length or chunks. `None` at the end.
pub(super) async fn message(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = head(stream).await.into_bytes();
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "));
    if head.contains("transfer-encoding: chunked") {
        while !bytes.ends_with(b"0\r\n\r\n") {
            bytes.push(stream.read_u8().await.ok()?);
        }
    } else if let Some(length) = length {
        let mut body = vec![0; length.trim().parse().unwrap()];
        stream.read_exact(&mut body).await.ok()?;
        bytes.extend(body);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A temporary door with its ledger.
pub(super) struct World {
    pub(super) egress: Arc<Egress>,
    folder: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn rule(server: &Server, mode: EgressMode) -> EgressRule {
    let host = spec::HostPattern::Exactly(server.to.host.clone());
    EgressRule {
        mode,
        allow_private: true,
        ..EgressRule::tunnel("the rule", host, Ports::Any)
    }
}

pub(super) fn inspect(allow: &[&str], credential: bool) -> EgressMode {
    EgressMode::Inspect {
        allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
        credential: credential.then(|| "api".to_owned()),
        allow_upgrade: false,
    }
}

impl World {
    pub(super) async fn new(server: &Server, rules: Vec<EgressRule>) -> World {
        World::limited(server, rules, EgressLimits::default()).await
    }

    pub(super) async fn limited(
        server: &Server,
        rules: Vec<EgressRule>,
        limits: EgressLimits,
    ) -> World {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("airlock-requests-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ca = server.ca.as_ref().map(|ca| {
            let path = folder.join("ca.pem");
            std::fs::write(&path, ca).unwrap();
            path
        });
        let credential = Credential {
            key: KeySource::Variable("KEY".to_owned()),
            inject: InjectionMethod::Bearer,
            hosts: vec![spec::HostPattern::Exactly(server.to.host.clone())],
        };
        let credentials = [("api".to_owned(), credential)].into();
        let settings = EgressSettings {
            credentials,
            ca,
            ..EgressSettings::default()
        };
        let secret = Secret::new(KEY.as_bytes().to_vec()).unwrap();
        let secrets = Secrets {
            variables: [("KEY".to_owned(), secret)].into(),
            ..Secrets::default()
        };
        let ledger = Ledger::open(&folder.join("ledger"), "owner", Durability::Process).unwrap();
        let grant = EgressGrant {
            rules,
            limits,
            ..EgressGrant::default()
        };
        let egress = Egress::open("run-1", &grant, &settings, &secrets, Arc::new(ledger))
            .await
            .unwrap();
        World { egress, folder }
    }

    /// A client inside intercepted TLS, by CONNECT.
    pub(super) async fn inside(&self, server: &Server) -> Box<dyn Stream> {
        let mut near = self.proxy().await;
        tell(
            &mut near,
            &format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", server.to),
        )
        .await;
        assert_eq!(status(&head(&mut near).await), 200);
        let name = ServerName::try_from(server.to.host.to_string()).unwrap();
        let mut roots = RootCertStore::empty();
        let ca = self.egress.certificate().unwrap();
        roots
            .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
            .unwrap();
        let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TlsConnector::from(Arc::new(client))
            .connect(name, near)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        Box::new(stream)
    }

    /// A client at the proxy.
    pub(super) async fn proxy(&self) -> Box<dyn Stream> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.egress.serve(listener).unwrap();
        Box::new(TcpStream::connect(address).await.unwrap())
    }

    pub(super) async fn close(&self) -> EgressReport {
        self.egress.close().await
    }

    /// The egress records of the ledger.
    pub(super) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("ledger/owner.jsonl")).unwrap();
        text.lines()
            .filter(|line| line.contains("\"verdict\""))
            .map(str::to_owned)
            .collect()
    }
}

/// Sends bytes and reads one response.
pub(super) async fn ask(client: &mut Box<dyn Stream>, text: &str) -> String {
    tell(client, text).await;
    message(client).await.unwrap_or_default()
}

pub(super) async fn tell(client: &mut Box<dyn Stream>, text: &str) {
    client.write_all(text.as_bytes()).await.unwrap();
    client.flush().await.unwrap();
}

/// Everything until the end of the connection, and whether it was closed normally.
pub(super) async fn to_end(client: &mut Box<dyn Stream>) -> (String, bool) {
    let mut all = Vec::new();
    let ended = client.read_to_end(&mut all).await;
    (String::from_utf8_lossy(&all).into_owned(), ended.is_ok())
}

pub(super) fn get(server: &Server, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.to)
}

pub(super) fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}
