//! The provider as a program, and over TLS.

use provider::{Provider, Settings, Tls};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    sync::Arc,
};

const REQUEST: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer real\r\n\
                       connection: close\r\ncontent-length: 28\r\n\r\n{\"model\":\"m\",\"stream\":true }";

#[test]
fn it_speaks_tls_with_the_certificate_it_was_given() {
    let tls = Tls::self_signed("DNS:localhost");
    let certificate = CertificateDer::from_pem_slice(&tls.certificates).unwrap();
    let provider = Provider::start(Settings {
        tls: Some(tls),
        ..Settings::default()
    });
    assert!(provider.base().starts_with("https://127.0.0.1:"));
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(provider.address()).unwrap());
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK")
            && answer.contains("tok7")
            && answer.ends_with("0\r\n\r\n")
    );
    assert_eq!(provider.served().tokens.output, 8);
}

#[test]
fn the_program_prints_its_address_and_serves() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_airlock-provider"));
    command.args([
        "--key",
        "real",
        "--tokens",
        "5",
        "--fault",
        "{\"cut\":3}",
        "--lean",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let ask = |request: &str| {
        let mut socket = TcpStream::connect(address.trim()).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    let refused = ask(&REQUEST.replace("real", "fake"));
    let answer = ask(REQUEST);
    let served = ask("GET /_served HTTP/1.1\r\nhost: m\r\nconnection: close\r\n\r\n");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(
        answer.contains("tok2") && !answer.contains("tok3"),
        "{answer}"
    );
    assert!(
        served.contains("\"count\":2") && served.contains("\"calls\":[]"),
        "{served}"
    );
}
