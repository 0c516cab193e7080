//! Tunnels: their endings, their log lines, and connections to bare addresses.

use super::{
    super::super::Egress,
    world::{Server, World, always, head, inspect, message, ok, rule, status},
};
use rustls::{AlertDescription, ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use spec::{EgressMode, EgressRule, HostPattern, Ports};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

/// A tunnel to a local port.
async fn tunnel(egress: &Arc<Egress>, port: u16) -> TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    egress.serve(listener).unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let asked = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    client.write_all(asked.as_bytes()).await.unwrap();
    assert_eq!(status(&head(&mut client).await), 200);
    client
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// What a client receives that asks for this server name.
async fn asks_for(client: TcpStream, name: &'static str) -> rustls::Error {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let connecting =
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name).unwrap(), client);
    let error = connecting.await.unwrap_err();
    error
        .into_inner()
        .unwrap()
        .downcast_ref::<rustls::Error>()
        .unwrap()
        .clone()
}

#[tokio::test]
async fn a_host_that_is_looked_into_cannot_be_had_by_its_bare_address() {
    let server = Server::tls_as("api.test", always(&ok("hello"))).await;
    let named = |host: &str| HostPattern::Exactly(host.parse().unwrap());
    let api = EgressRule {
        mode: inspect(&["GET /v1/**"], false),
        ..EgressRule::tunnel("api", named("api.test"), Ports::Any)
    };
    let other = EgressRule::tunnel("other", named("other.test"), Ports::Any);
    let world = World::new(&server, vec![api, other, rule(&server, EgressMode::Tunnel)]).await;
    let refused = asks_for(tunnel(&world.egress, server.to.port).await, "api.test").await;
    assert_eq!(
        refused,
        rustls::Error::AlertReceived(AlertDescription::AccessDenied)
    );
    // A name without inspection reaches the server, whose certificate is untrusted here.
    let passed = asks_for(tunnel(&world.egress, server.to.port).await, "other.test").await;
    assert!(
        matches!(passed, rustls::Error::InvalidCertificate(_)),
        "{passed}"
    );
    // Also without a server name, since the rule names this very address.
    let nameless = asks_for(tunnel(&world.egress, server.to.port).await, "127.0.0.1").await;
    assert!(
        matches!(nameless, rustls::Error::InvalidCertificate(_)),
        "{nameless}"
    );
}

#[tokio::test]
async fn a_tunnel_to_a_private_address_ends_with_the_rule_that_allowed_it() {
    let server = Server::plain(always(&ok("hello"))).await;
    let own = EgressRule {
        allow_private: true,
        ..EgressRule::tunnel("own", "127.0.0.1".parse().unwrap(), Ports::Any)
    };
    let any = EgressRule::tunnel("any", "*".parse().unwrap(), Ports::Any);
    let world = World::new(&server, vec![own, any]).await;
    let mut client = tunnel(&world.egress, server.to.port).await;
    client
        .write_all(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(status(&message(&mut client).await.unwrap()), 200);
    assert_eq!(world.egress.revoke(&"127.0.0.1".parse().unwrap()), Ok(1));
    assert!(
        client.read_to_end(&mut Vec::new()).await.is_err(),
        "it is reset"
    );
}

#[tokio::test]
async fn a_broken_tunnel_is_no_whole_one_and_a_server_may_speak_to_who_has_said_its_last_word() {
    let server = Server::plain(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
    let (listener, port) = listener().await;
    let mut client = tunnel(&world.egress, port).await;
    client.write_all(b"hello").await.unwrap();
    let mut far = listener.accept().await.unwrap().0;
    far.write_all(b"half of it").await.unwrap();
    let mut got = [0; 10];
    client.read_exact(&mut got).await.unwrap();
    rustix::net::sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
    drop(far);
    assert!(client.read(&mut got).await.is_err(), "it is reset");

    let mut client = tunnel(&world.egress, port).await;
    client.shutdown().await.unwrap();
    let mut far = listener.accept().await.unwrap().0;
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "its end is passed on");
    far.write_all(b"SSH-2.0-banner").await.unwrap();
    drop(far);
    let mut got = String::new();
    client.read_to_string(&mut got).await.unwrap();
    assert_eq!(
        (got.as_str(), world.close().await.denied),
        ("SSH-2.0-banner", 0)
    );
}

#[tokio::test]
async fn whoever_goes_at_once_is_written_down_all_the_same() {
    let server = Server::plain(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
    let (listener, port) = listener().await;
    for _ in 0..5 {
        drop(tunnel(&world.egress, port).await);
        listener.accept().await.unwrap();
    }
    let report = world.close().await;
    assert_eq!((report.begun, world.lines().len()), (5, 5));
}
