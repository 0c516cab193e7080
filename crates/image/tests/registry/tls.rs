//! A real registry behind TLS: accepted with its CA, refused without, and never contacted by plain
//! HTTP instead.

use crate::{
    authentication::openssl,
    docker_registry::{Registry, available},
    image::{Folder, arrives, refused, request, small},
};
use std::{fs, path::PathBuf, process::Command};

/// A certificate for 127.0.0.1 and the CA that signed it.
struct Authority(Folder);

impl Authority {
    fn new() -> Authority {
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
                "/CN=authority",
                "-addext",
                "basicConstraints=critical,CA:TRUE",
                "-keyout",
                &at("ca.key"),
                "-out",
                &at("ca.pem"),
            ],
            b"",
        );
        openssl(
            &[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=registry",
                "-keyout",
                &at("key.pem"),
                "-out",
                &at("request.pem"),
            ],
            b"",
        );
        fs::write(
            folder.0.join("names"),
            "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
        )
        .unwrap();
        openssl(
            &[
                "x509",
                "-req",
                "-days",
                "2",
                "-in",
                &at("request.pem"),
                "-CA",
                &at("ca.pem"),
                "-CAkey",
                &at("ca.key"),
                "-CAcreateserial",
                "-extfile",
                &at("names"),
                "-out",
                &at("certificate.pem"),
            ],
            b"",
        );
        Authority(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }
}

/// CAs are read once per process, so each claim needs a process of its own.
fn in_a_process(test: &str, name: &str, authorities: Option<&PathBuf>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env("AIRLOCK_TEST_NAME", name);
    command
        .env_remove("SSL_CERT_FILE")
        .env_remove("SSL_CERT_DIR");
    command.envs(authorities.map(|file| ("SSL_CERT_FILE", file)));
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn a_registry_is_trusted_by_its_authority_and_not_otherwise() {
    if !available() {
        return;
    }
    let storage = Folder::new();
    let authority = Authority::new();
    Registry::start(&storage.0, "", "")
        .push("team/tool", "1", &small())
        .await;
    let certificate = authority.file("certificate.pem");
    let key = authority.file("key.pem");
    let tls = format!(
        "  tls: {{certificate: {}, key: {}}}",
        certificate.display(),
        key.display()
    );
    let registry = Registry::start(&storage.0, &tls, "");
    let name = registry.name("team/tool:1");
    in_a_process(
        "tls::is_pulled_over_tls",
        &name,
        Some(&authority.file("ca.pem")),
    );
    in_a_process("tls::is_refused_for_its_certificate", &name, None);
    // Signed by the right CA, but for another name.
    let other = name.replace("127.0.0.1", "localhost");
    in_a_process(
        "tls::is_refused_for_its_certificate",
        &other,
        Some(&authority.file("ca.pem")),
    );
}

fn named() -> String {
    std::env::var("AIRLOCK_TEST_NAME").unwrap()
}

#[tokio::test]
#[ignore = "a child of the test above"]
async fn is_pulled_over_tls() {
    arrives(&request(&named()), &small()).await;
}

#[tokio::test]
#[ignore = "a child of the test above"]
async fn is_refused_for_its_certificate() {
    refused(
        &request(&named()),
        "is not trusted: invalid peer certificate",
    )
    .await;
}
