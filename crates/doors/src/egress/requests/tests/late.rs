//! Rules that expire while a request is in flight, requests after a pause, and the log lines of
//! failed requests.

use super::world::{KEY, Server, World, always, ask, get, head, inspect, ok, rule, status, tell};
use spec::{EgressRule, HostPattern, Ports};
use std::time::Duration;

#[tokio::test]
async fn a_credential_does_not_go_out_by_a_rule_that_fell_while_the_server_was_dialled() {
    for revokes in [false, true] {
        let (listener, server) = Server::by_hand().await;
        let own = rule(&server, inspect(&[], true));
        let world = World::new(&server, vec![own.clone()]).await;
        let mut client = world.inside(&server).await;
        tell(&mut client, &get(&server, "/")).await;
        let knocked = listener.knock().await;
        if revokes {
            world.egress.revoke(&own.host).unwrap();
        }
        let mut stream = listener.secure(knocked).await.unwrap();
        let heard = head(&mut stream).await;
        assert_eq!(
            (heard.contains(KEY), heard.is_empty()),
            (!revokes, revokes),
            "{heard}"
        );
        if revokes {
            assert_eq!(status(&head(&mut client).await), 403);
        }
    }
}

#[tokio::test]
async fn what_never_got_as_far_as_a_server_is_written_down_once_as_denied() {
    let server = Server::plain(always(&ok("hello"))).await;
    let name = HostPattern::Exactly("localhost".parse().unwrap());
    let named = EgressRule::tunnel("by name", name, Ports::Any);
    let world = World::new(
        &server,
        vec![named, rule(&server, spec::EgressMode::Tunnel)],
    )
    .await;
    let port = server.to.port;
    for (host, expected, verdict) in [("localhost", 403, "deny"), ("127.0.0.1", 200, "allow")] {
        let before = world.lines().len();
        let mut client = world.proxy().await;
        let request = format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        assert_eq!(status(&ask(&mut client, &request).await), expected);
        drop(client);
        while world.egress.connections.count() > 0 {
            tokio::task::yield_now().await;
        }
        let lines = world.lines();
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        assert!(
            lines[before].contains(&format!("\"verdict\":\"{verdict}\"")),
            "{lines:?}"
        );
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request_for_a_while() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let mut client = world.inside(&server).await;
    for pause in [0, 30] {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(pause)).await;
        tokio::time::resume();
        assert_eq!(
            status(&ask(&mut client, &get(&server, "/")).await),
            200,
            "after {pause} s"
        );
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    assert_eq!(
        ask(&mut client, &get(&server, "/")).await,
        "",
        "but not forever"
    );
}
