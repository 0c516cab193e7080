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
