//! Authentication: a real registry behind names and passwords, and behind a token server.

use crate::{
    docker_registry::{Registry, available},
    image::{Folder, Image, arrives, refused, request, small},
    server::{Ask, Server, reply},
};
use image::registry::{Credentials, PullError, PullOptions, RegistrySecret};
use serde_json::json;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// `tester`, with the password `open sesame`, as `htpasswd -nbB` writes it.
const HTPASSWD: &str = "tester:$2y$05$xO/vbZxvLKGbjmnvkTSc/Oojq4k6YfmxH42f5lH.yZsSsG8wTHtDC";
const PASSWORD: &str = "open sesame";

fn password(user: &str, password: &str) -> Option<Credentials> {
    Some(Credentials::Password {
        user: user.into(),
        password: RegistrySecret::new(password),
    })
}

fn with(request: &PullOptions, credentials: Option<Credentials>) -> PullOptions {
    PullOptions {
        credentials,
        ..request.clone()
    }
}

/// A storage folder with one image.
async fn storage(image: &Image) -> Folder {
    let folder = Folder::new();
    Registry::start(&folder.0, "", "")
        .push("team/secret", "1", image)
        .await;
    folder
}

#[tokio::test]
async fn a_name_and_a_password_open_what_is_closed_without() {
    if !available() {
        return;
    }
    let image = small();
    let words = Folder::new();
    let storage = storage(&image).await;
    fs::write(words.0.join("htpasswd"), format!("{HTPASSWD}\n")).unwrap();
    let auth = format!(
        "auth: {{htpasswd: {{realm: test, path: {}}}}}",
        words.0.join("htpasswd").display()
    );
    let registry = Registry::start(&storage.0, "", &auth);
    let request = request(&registry.name("team/secret:1"));
    arrives(&with(&request, password("tester", PASSWORD)), &image).await;
    refused(
        &request,
        "it requires a name and a password, and none are configured",
    )
    .await;
    let wrong = refused(
        &with(&request, password("tester", "wrong word")),
        "denies access to manifest",
    )
    .await;
    assert!(!format!("{wrong} {wrong:?} {}", wrong.hint()).contains("wrong word"));
    let identity = Some(Credentials::Identity(RegistrySecret::new("x")));
    refused(
        &with(&request, identity),
        "it requires a name and a password",
    )
    .await;
}

/// Signs grants of a token server with a key that the registry trusts.
struct Signer {
    folder: Folder,
    certificate: String,
}

impl Signer {
    fn new() -> Signer {
        let folder = Folder::new();
        let at = |name: &str| folder.0.join(name).display().to_string();
        openssl(
            &[
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=tokens",
                "-keyout",
                &at("key"),
                "-out",
                &at("certificate"),
            ],
            b"",
        );
        let pem = fs::read_to_string(folder.0.join("certificate")).unwrap();
        let certificate = pem.lines().filter(|line| !line.starts_with('-')).collect();
        Signer {
            folder,
            certificate,
        }
    }

    fn token(&self, repository: &str) -> String {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let header = json!({ "typ": "JWT", "alg": "RS256", "x5c": [self.certificate] });
        let access = json!([{ "type": "repository", "name": repository, "actions": ["pull"] }]);
        let claims = json!({ "iss": "tokens", "sub": "", "aud": "test", "exp": now + 300, "nbf": now - 60,
            "iat": now, "jti": "1", "access": access });
        let signed = format!(
            "{}.{}",
            base64url(header.to_string().as_bytes()),
            base64url(claims.to_string().as_bytes())
        );
        let key = self.folder.0.join("key").display().to_string();
        format!(
            "{signed}.{}",
            base64url(&openssl(
                &["dgst", "-sha256", "-sign", &key],
                signed.as_bytes()
            ))
        )
    }

    fn certificate(&self) -> std::path::PathBuf {
        self.folder.0.join("certificate")
    }
}

/// The output of `openssl` for an input.
pub(crate) fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut command = Command::new("openssl");
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .expect("openssl starts: apt-get install openssl");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}");
    output.stdout
}

fn base64url(bytes: &[u8]) -> String {
    let text = String::from_utf8(openssl(&["base64", "-A"], bytes)).unwrap();
    text.trim_end_matches('=')
        .replace('+', "-")
        .replace('/', "_")
}

/// A token server for everybody (`open`), or for one name, password and refresh token.
fn token_server(signer: Signer, open: bool) -> Server {
    Server::new(move |ask, stream| {
        let basic = format!(
            "Basic {}",
            String::from_utf8(openssl(&["base64", "-A"], b"tester:open sesame")).unwrap()
        );
        let known = ask.headers.get("authorization") == Some(&basic)
            || (ask.method == "POST" && ask.body.contains("refresh_token=long%2Blived"));
        let pull = ["scope=repository%3Ateam%2Fsecret%3Apull", "service=test"];
        let asked = if ask.method == "POST" {
            &ask.body
        } else {
            &ask.path
        };
        let proper = pull.iter().all(|part| asked.contains(part));
        if proper && (open || known) {
            let token = signer.token("team/secret");
            let name = if ask.method == "POST" {
                "access_token"
            } else {
                "token"
            };
            reply(
                stream,
                200,
                &[],
                json!({ name: token, "expires_in": 300 })
                    .to_string()
                    .as_bytes(),
            )
        } else {
            reply(stream, 401, &[], b"{}")
        }
    })
}

fn behind_tokens(storage: &Path, certificate: &Path, tokens: &Server) -> Registry {
    let auth = format!(
        "auth: {{token: {{realm: \"http://{}/token\", service: test, issuer: tokens, rootcertbundle: {}}}}}",
        tokens.address,
        certificate.display()
    );
    Registry::start(storage, "", &auth)
}

#[tokio::test]
async fn a_token_is_had_by_nobody_in_particular_where_that_is_enough() {
    if !available() {
        return;
    }
    let image = small();
    let signer = Signer::new();
    let storage = storage(&image).await;
    let certificate = signer.certificate();
    let tokens = token_server(signer, true);
    let registry = behind_tokens(&storage.0, &certificate, &tokens);
    arrives(&request(&registry.name("team/secret:1")), &image).await;
    // One token for the manifest; the blobs use it, too.
    assert_eq!(tokens.asked().len(), 1);
}

#[tokio::test]
async fn a_token_is_had_for_a_password_or_for_a_longer_lived_token() {
    if !available() {
        return;
    }
    let image = small();
    let signer = Signer::new();
    let storage = storage(&image).await;
    let certificate = signer.certificate();
    let tokens = token_server(signer, false);
    let registry = behind_tokens(&storage.0, &certificate, &tokens);
    let request = request(&registry.name("team/secret:1"));
    arrives(&with(&request, password("tester", PASSWORD)), &image).await;
    arrives(
        &with(
            &request,
            Some(Credentials::Identity(RegistrySecret::new("long+lived"))),
        ),
        &image,
    )
    .await;
    refused(&request, "denies access to a token").await;
    refused(
        &with(&request, password("tester", "wrong")),
        "denies access to a token",
    )
    .await;
    refused(
        &with(
            &request,
            Some(Credentials::Identity(RegistrySecret::new("short"))),
        ),
        "denies access to a token",
    )
    .await;
}

/// A registry that keeps requesting authentication.
fn insatiable(challenge: String) -> Server {
    Server::new(move |_, stream| {
        reply(
            stream,
            401,
            &[&format!("WWW-Authenticate: {challenge}")],
            b"",
        )
    })
}

#[tokio::test]
async fn a_registry_that_is_never_content_is_asked_twice() {
    let tokens = Server::new(|_, stream| reply(stream, 200, &[], br#"{"token":"t"}"#));
    for challenge in [
        "Basic realm=\"x\"".to_owned(),
        format!("Bearer realm=\"http://{}/\"", tokens.address),
    ] {
        let server = insatiable(challenge);
        let asked = with(&request(&server.name("x:1")), password("me", "hunter2"));
        let error = refused(&asked, "denies access to manifest").await;
        assert!(
            matches!(error, PullError::Denied { .. }) && !format!("{error:?}").contains("hunter2")
        );
        assert_eq!(server.asked().len(), 2);
    }
    assert_eq!(tokens.asked().len(), 1);
}

#[tokio::test]
async fn a_token_server_must_be_one_that_may_be_asked() {
    for (realm, why) in [
        ("http://192.0.2.1/token", "which is plain http"),
        ("ftp://127.0.0.1/", "which is not http"),
        ("token", "the address of its token server is invalid"),
        ("http://u:p@127.0.0.1/", "with credentials in it"),
    ] {
        let server = insatiable(format!("Bearer realm=\"{realm}\""));
        refused(
            &with(&request(&server.name("x:1")), password("me", "hunter2")),
            why,
        )
        .await;
    }
    let server = insatiable("Negotiate".to_owned());
    refused(
        &request(&server.name("x:1")),
        "it requires an unsupported authentication scheme",
    )
    .await;
}

#[tokio::test]
async fn what_a_token_server_answers_is_bounded_and_checked() {
    let answers: [(Vec<u8>, &str); 4] = [
        (b"{}".to_vec(), "the response contains none"),
        (
            br#"{"token":"a\nb"}"#.to_vec(),
            "the response contains none",
        ),
        (b"hunter2".to_vec(), "the response contains none"),
        (vec![b' '; 300 << 10], "the maximum is 262144"),
    ];
    for (answer, why) in answers {
        let tokens = Server::new(move |_, stream| reply(stream, 200, &[], &answer));
        let server = insatiable(format!("Bearer realm=\"http://{}/\"", tokens.address));
        let error = refused(&request(&server.name("x:1")), why).await;
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn a_token_that_has_run_out_is_replaced() {
    let image = small();
    let given = std::sync::Arc::new(AtomicUsize::new(0));
    let count = given.clone();
    let tokens = Server::new(move |_, stream| {
        let token = json!({ "token": format!("t{}", count.fetch_add(1, Ordering::Relaxed)) });
        reply(stream, 200, &[], token.to_string().as_bytes())
    });
    let realm = tokens.address;
    let sent = image.clone();
    // The first token is valid for the manifest alone.
    let server = Server::new(move |ask: &Ask, stream| {
        let token = ask
            .headers
            .get("authorization")
            .cloned()
            .unwrap_or_default();
        let manifest = ask.path.contains("/manifests/");
        let good = if manifest {
            token == "Bearer t0"
        } else {
            token.starts_with("Bearer t") && token != "Bearer t0"
        };
        match sent
            .blobs
            .iter()
            .find(|blob| ask.path.ends_with(crate::image::digest(blob).as_str()))
        {
            _ if !good => reply(
                stream,
                401,
                &[&format!(
                    "WWW-Authenticate: Bearer realm=\"http://{realm}/\""
                )],
                b"",
            ),
            Some(blob) => reply(stream, 200, &[], blob),
            None => reply(
                stream,
                200,
                &["Content-Type: application/json"],
                &sent.manifest(),
            ),
        }
    });
    arrives(&request(&server.name("x:1")), &image).await;
    assert!(given.load(Ordering::Relaxed) >= 2);
}
