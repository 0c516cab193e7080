//! Against a fake Vault with the few routes that we use: no real one is available where these tests run.

use super::*;
use crate::secrets::{MasterKey, Secrets};
use std::sync::{Arc, Mutex};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

const TOKEN: &str = "hvs.canary-token";
const KEPT: &str = r#"{"request_id":"r","data":{"data":{"value":"sk-can\u0061ry","other":"o","number":7},"metadata":{"version":3}}}"#;

/// Answers each connection with the same bytes and records the request.
struct FakeVault {
    port: u16,
    fetched: Arc<Mutex<Vec<String>>>,
    server: JoinHandle<()>,
}

impl Drop for FakeVault {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeVault {
    async fn answering(answer: Vec<u8>) -> FakeVault {
        FakeVault::behind(None, answer).await
    }

    /// With a certificate, or without TLS.
    async fn behind(tls: Option<TlsAcceptor>, answer: Vec<u8>) -> FakeVault {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let fetched = Arc::new(Mutex::new(Vec::new()));
        let notes = fetched.clone();
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                match &tls {
                    Some(tls) => match tls.accept(socket).await {
                        Ok(stream) => reply(stream, &answer, &notes).await,
                        Err(error) => notes.lock().unwrap().push(format!("no handshake: {error}")),
                    },
                    None => reply(socket, &answer, &notes).await,
                }
            }
        });
        FakeVault {
            port,
            fetched,
            server,
        }
    }

    async fn saying(status: &str, body: &str) -> FakeVault {
        let length = body.len();
        FakeVault::answering(
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into(),
        )
        .await
    }

    fn secrets(&self) -> Secrets {
        let vault = Vault {
            address: format!("http://127.0.0.1:{}", self.port).parse().unwrap(),
            mount: "secret".to_owned(),
            token: KeySource::Variable("VAULT_TOKEN".to_owned()),
            namespace: None,
            allow_plain_http: true,
            ca: None,
        };
        let variables = [("VAULT_TOKEN".to_owned(), Secret::new(TOKEN.into()).unwrap())].into();
        Secrets {
            folder: PathBuf::new(),
            master: MasterKey::Beside,
            variables,
            vault: Some(vault),
        }
    }
}

async fn reply(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    answer: &[u8],
    notes: &Mutex<Vec<String>>,
) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => break,
        }
    }
    notes
        .lock()
        .unwrap()
        .push(String::from_utf8_lossy(&request).into_owned());
    // The client may have disconnected.
    let _ = socket.write_all(answer).await;
    let _ = socket.shutdown().await;
}

/// A TLS server configuration for a name, and its certificate.
fn certified(name: &str) -> (TlsAcceptor, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}

fn source(field: &str) -> KeySource {
    KeySource::Vault {
        path: "team/openai".to_owned(),
        field: field.to_owned(),
    }
}

#[tokio::test]
async fn a_fake_vault_is_asked_as_a_real_one_would_be_and_gives_the_field() {
    let fake = FakeVault::saying("200 OK", KEPT).await;
    let mut secrets = fake.secrets();
    assert_eq!(
        secrets.find(&source("value")).await.unwrap().expose(),
        b"sk-canary"
    );
    secrets.vault.as_mut().unwrap().namespace = Some("team".to_owned());
    assert_eq!(secrets.find(&source("other")).await.unwrap().expose(), b"o");
    let fetched = fake.fetched.lock().unwrap();
    assert!(
        fetched[0].starts_with("GET /v1/secret/data/team/openai HTTP/1.1\r\n"),
        "{}",
        fetched[0]
    );
    assert!(
        fetched[0].contains(&format!("x-vault-token: {TOKEN}\r\n")),
        "{}",
        fetched[0]
    );
    assert!(
        fetched[0].contains(&format!("host: 127.0.0.1:{}\r\n", fake.port)),
        "{}",
        fetched[0]
    );
    assert!(
        !fetched[0].contains("namespace") && fetched[1].contains("x-vault-namespace: team\r\n")
    );
}

#[tokio::test]
async fn what_a_fake_vault_refuses_or_garbles_is_told_without_the_token() {
    let long = format!("{{\"data\":\"{}\"}}", "x".repeat(MAX_RESPONSE_BYTES));
    let empty = r#"{"data":{"data":{"value":""}}}"#;
    for (status, body, field, why) in [
        (
            "403 Forbidden",
            r#"{"errors":["permission denied"]}"#,
            "value",
            "the token is refused",
        ),
        (
            "404 Not Found",
            r#"{"data":{"data":null}}"#,
            "value",
            "there is no such secret",
        ),
        ("503 Service Unavailable", "", "value", "it answered 503"),
        (
            "307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/",
            "",
            "value",
            "it points elsewhere",
        ),
        (
            "200 OK",
            KEPT,
            "absent",
            "it has no text in the field `absent`",
        ),
        (
            "200 OK",
            KEPT,
            "number",
            "it has no text in the field `number`",
        ),
        (
            "200 OK",
            "[]",
            "value",
            "it has no text in the field `value`",
        ),
        ("200 OK", empty, "value", "the secret is empty"),
        ("200 OK", &long, "value", "its answer cannot be read"),
    ] {
        let fake = FakeVault::saying(status, body).await;
        let refused = fake.secrets().find(&source(field)).await.unwrap_err();
        let start = format!(
            "the Vault at `127.0.0.1:{}` did not give `team/openai`: {why}",
            fake.port
        );
        assert!(refused.message.starts_with(&start), "{}", refused.message);
        assert!(!refused.hint.is_empty() && !format!("{refused:?}").contains("canary"));
    }
}

#[tokio::test]
async fn the_token_is_not_sent_where_it_could_be_read() {
    let fake = FakeVault::saying("200 OK", KEPT).await;
    let mut secrets = fake.secrets();
    secrets.vault.as_mut().unwrap().allow_plain_http = false;
    let refused = secrets.find(&source("value")).await.unwrap_err();
    assert!(
        refused.message.ends_with("its address is not https"),
        "{}",
        refused.message
    );
    assert!(fake.fetched.lock().unwrap().is_empty());
    secrets.vault.as_mut().unwrap().address = "http://169.254.169.254".parse().unwrap();
    secrets.vault.as_mut().unwrap().allow_plain_http = true;
    let refused = secrets.find(&source("value")).await.unwrap_err();
    assert!(
        refused.message.ends_with("no address that may be dialled"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn over_tls_a_fake_vault_must_be_who_the_certificate_says() {
    let file = std::env::temp_dir().join(format!("airlock-vault-{}.pem", std::process::id()));
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{KEPT}",
        KEPT.len()
    );
    for (name, trusted, good) in [
        ("localhost", true, true),
        ("localhost", false, false),
        ("other", true, false),
    ] {
        let (acceptor, certificate) = certified(name);
        std::fs::write(&file, certificate).unwrap();
        let fake = FakeVault::behind(Some(acceptor), answer.clone().into()).await;
        let mut secrets = fake.secrets();
        let vault = secrets.vault.as_mut().unwrap();
        vault.address = format!("https://localhost:{}", fake.port).parse().unwrap();
        (vault.allow_plain_http, vault.ca) = (false, trusted.then(|| file.clone()));
        let found = secrets.find(&source("value")).await;
        if good {
            assert_eq!(found.unwrap().expose(), b"sk-canary")
        } else {
            let refused = found.unwrap_err();
            assert!(
                refused.message.contains("no verified connection"),
                "{}",
                refused.message
            );
            assert!(
                fake.fetched
                    .lock()
                    .unwrap()
                    .iter()
                    .all(|fetched| !fetched.contains(TOKEN))
            );
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fake_vault_that_never_answers_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fake = FakeVault {
        port: listener.local_addr().unwrap().port(),
        fetched: Arc::default(),
        server: tokio::spawn(async move {
            let taken = listener.accept().await;
            std::future::pending::<()>().await;
            drop(taken);
        }),
    };
    let refused = fake.secrets().find(&source("value")).await.unwrap_err();
    assert!(
        refused.message.ends_with("it took longer than 10 seconds"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn a_vault_that_is_not_configured_or_has_its_token_in_itself_is_explained() {
    let refused = Secrets::default().find(&source("value")).await.unwrap_err();
    assert_eq!(refused.message, "no Vault is configured");
    let fake = FakeVault::saying("200 OK", KEPT).await;
    let mut secrets = fake.secrets();
    secrets.vault.as_mut().unwrap().token = source("value");
    let refused = secrets.find(&source("value")).await.unwrap_err();
    assert_eq!(
        refused.message,
        "the token of the Vault cannot come from the Vault"
    );
}
