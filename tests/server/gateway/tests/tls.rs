//! TLS, with a certificate of a test's own authority, as curl sees it.

use gateway_tests::{Folder, Server, refusal, serve};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use std::{fs, process::Command};

/// Writes an authority and a certificate of it for `localhost`.
fn certificate(folder: &Folder) {
    let mut authority = CertificateParams::new(Vec::new()).expect("a certificate");
    // Two of the same name would be one to whoever looks for the issuer.
    authority
        .distinguished_name
        .push(DnType::CommonName, "authority of a test");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a certificate");
    fs::write(
        folder.at("ca.pem"),
        authority.self_signed(&key).expect("a certificate").pem(),
    )
    .expect("a certificate");
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().expect("a certificate");
    let leaf = CertificateParams::new(vec!["localhost".to_owned()])
        .expect("a certificate")
        .signed_by(&key, &issuer)
        .expect("a certificate");
    fs::write(folder.at("chain.pem"), leaf.pem()).expect("a certificate");
    fs::write(folder.at("key.pem"), key.serialize_pem()).expect("a certificate");
}

const TLS: [&str; 4] = ["--tls-cert", "chain.pem", "--tls-key", "key.pem"];

#[test]
fn with_a_certificate_it_speaks_tls_and_nothing_else() {
    let folder = Folder::new();
    certificate(&folder);
    let server = Server::on(
        folder,
        "",
        &[&TLS[..], &["--listen", "0.0.0.0:0"]].concat(),
        None,
    );
    let gateway_tests::Client::Tcp(address) = &server.client else {
        panic!("a port")
    };
    let ask = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "--noproxy",
            "*",
            "-H",
            &format!("Authorization: Bearer {}", server.admin),
        ])
        .args(more);
        let url = format!("https://localhost:{}/v1/runs", address.port());
        let output = curl
            .arg(url)
            .args(["-d", "{\"command\":[\"echo\",\"hello\"]}"])
            .output()
            .expect("curl starts");
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let authority = server.folder.at("ca.pem").display().to_string();
    let (code, text) = ask(&["--cacert", &authority]);
    assert!(
        code == Some(0) && text.contains("\"stdout\":\"hello\\n\""),
        "{code:?} {text}"
    );
    assert_eq!(
        ask(&[]).0,
        Some(60),
        "without its authority it is not believed"
    );
    let plain = gateway_tests::Client::Tcp(([127, 0, 0, 1], address.port()).into());
    assert_eq!(
        plain
            .open(&plain.request("GET", "/healthz", &[], &json!(null)))
            .answer()
            .status,
        0
    );
}

/// A certificate that is its own authority, as `openssl req -x509` makes it.
fn own_authority(name: &str) -> (String, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a certificate");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a certificate");
    let own = params.self_signed(&key).expect("a certificate");
    (own.pem(), key.serialize_pem())
}

#[test]
fn the_client_believes_the_very_certificate_that_was_named() {
    let folder = Folder::new();
    let (own, key) = own_authority("localhost");
    fs::write(folder.at("chain.pem"), own).expect("a certificate");
    fs::write(folder.at("key.pem"), key).expect("a key");
    let server = Server::on(folder, "", &TLS, None);
    fs::write(server.folder.at("other.pem"), own_authority("localhost").0).unwrap();
    let gateway_tests::Client::Tcp(address) = &server.client else {
        panic!("a port")
    };
    let ask = |url: &str, more: &[&str]| {
        let mut command = Command::new(cli::airlock());
        command.args(["run", "--server", url]).args(more);
        command.args(["--", "echo", "hello"]);
        command.current_dir(&server.folder.0);
        command.env("AIRLOCK_KEY", &server.admin);
        let output = command.output().expect("airlock starts");
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let at = |name: &str| format!("https://{name}:{}", address.port());
    let (status, stdout, said) = ask(&at("localhost"), &["--server-ca", "chain.pem"]);
    assert_eq!((status, stdout.as_str()), (Some(0), "hello\n"), "{said}");
    for (name, more, words) in [
        (
            "localhost",
            &["--server-ca", "other.pem"][..],
            "and not the one given",
        ),
        ("localhost", &[], "its certificate"),
        (
            "127.0.0.1",
            &["--server-ca", "chain.pem"],
            "is for another name",
        ),
    ] {
        let (status, stdout, said) = ask(&at(name), more);
        assert_eq!((status, stdout.as_str()), (Some(125), ""), "{said}");
        assert!(
            said.contains(words) && said.contains("--server-ca"),
            "{said}"
        );
        assert!(
            !said.contains("Error(") && !said.contains("airlock serve"),
            "{said}"
        );
    }
    let plain = format!("http://localhost:{}", address.port());
    let (status, _, said) = ask(&plain, &[]);
    assert_eq!(status, Some(125));
    assert!(said.contains("a server with TLS needs https://"), "{said}");
}

#[test]
fn a_client_that_expects_tls_says_so_where_there_is_none() {
    let server = Server::new();
    let gateway_tests::Client::Tcp(address) = &server.client else {
        panic!("a port")
    };
    let output = Command::new(cli::airlock())
        .args([
            "run",
            "--server",
            &format!("https://{address}"),
            "--",
            "true",
        ])
        .env("AIRLOCK_KEY", &server.admin)
        .output()
        .expect("airlock starts");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("without TLS it needs http://"), "{said}");
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let folder = Folder::new();
    certificate(&folder);
    let said = refusal(&mut serve(
        &folder,
        "",
        &["--tls-cert", "chain.pem", "--tls-key", "absent.pem"],
    ));
    assert!(said.contains("absent.pem"), "{said}");
    fs::write(
        folder.at("other.pem"),
        KeyPair::generate().unwrap().serialize_pem(),
    )
    .unwrap();
    let said = refusal(&mut serve(
        &folder,
        "",
        &["--tls-cert", "chain.pem", "--tls-key", "other.pem"],
    ));
    assert!(said.contains("cannot be used"), "{said}");
}
