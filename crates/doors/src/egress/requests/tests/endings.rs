//! Truncated responses never look complete: broken connections, limits, expired rules, ended runs.

use super::world::{
    Server, World, always, ask, get, head, inspect, ok, rule, says, status, tell, to_end,
};
use spec::{EgressLimits, EgressMode, Size};

#[tokio::test]
async fn an_answer_that_breaks_off_is_broken_for_the_program_too() {
    for (framing, rest, is_whole) in [
        ("Content-Length: 9", "hello", false),
        ("Content-Length: 5", "hello", true),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n", false),
        (
            "Transfer-Encoding: chunked",
            "5\r\nhello\r\n0\r\n\r\n",
            true,
        ),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{rest}");
        let server =
            Server::plain(says(move |_| vec![answer.clone().into_bytes(), Vec::new()])).await;
        let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
        // A client that takes the end of the connection for the end of the response gets a reset.
        for version in ["1.0", "1.1"] {
            let mut client = world.proxy().await;
            let request = format!(
                "GET http://{0}/ HTTP/{version}\r\nHost: {0}\r\nConnection: close\r\n\r\n",
                server.to
            );
            tell(&mut client, &request).await;
            let (answer, ended_well) = to_end(&mut client).await;
            assert_eq!(ended_well, is_whole, "{framing} {version} {answer}");
        }
    }
}

#[tokio::test]
async fn beyond_a_limit_nothing_more_comes_in_or_goes_out() {
    let large = "x".repeat(100_000);
    for (limits, named) in [
        (
            EgressLimits {
                received: Some(Size(50_000)),
                ..EgressLimits::default()
            },
            "received",
        ),
        (
            EgressLimits {
                sent: Some(Size(50_000)),
                ..EgressLimits::default()
            },
            "sent",
        ),
        (EgressLimits::default(), ""),
    ] {
        let server = Server::tls(always(&ok(&large))).await;
        let world = World::limited(&server, vec![rule(&server, inspect(&[], false))], limits).await;
        let mut client = world.inside(&server).await;
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{large}",
            server.to,
            large.len()
        );
        tell(&mut client, &request).await;
        let (answer, _) = to_end(&mut client).await;
        assert_eq!(answer.len() > large.len(), named.is_empty(), "{named}");
        assert_eq!(server.heard().is_empty(), named == "sent");
        let report = world.close().await;
        assert_eq!(
            (report.limit_hit, report.denied > 0),
            (!named.is_empty(), !named.is_empty())
        );
        assert!(
            report
                .denials
                .iter()
                .all(|denial| denial.allow_with.contains(named)),
            "{report:?}"
        );
    }
}

#[tokio::test]
async fn so_many_requests_a_minute_and_no_more() {
    let server = Server::tls(always(&ok("hello"))).await;
    let limits = EgressLimits {
        per_minute: Some(2),
        ..EgressLimits::default()
    };
    let world = World::limited(&server, vec![rule(&server, inspect(&[], false))], limits).await;
    let mut client = world.inside(&server).await;
    for expected in [200, 200, 403] {
        assert_eq!(
            status(&ask(&mut client, &get(&server, "/")).await),
            expected
        );
    }
    assert_eq!(server.heard().len(), 2);
}

/// A server that starts a response and continues on demand.
async fn slow() -> (Server, tokio::sync::mpsc::UnboundedSender<()>) {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<()>();
    let first = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    (Server::tls_going_on(first, "world", receiver).await, sender)
}

#[tokio::test]
async fn an_answer_under_way_ends_with_the_rule_that_let_it_pass() {
    for revokes in [true, false] {
        let (server, go_on) = slow().await;
        let own = rule(&server, inspect(&[], false));
        let world = World::new(&server, vec![own.clone()]).await;
        let mut client = world.inside(&server).await;
        tell(&mut client, &get(&server, "/")).await;
        assert_eq!(status(&head(&mut client).await), 200);
        if revokes {
            world.egress.revoke(&own.host).unwrap();
        }
        go_on.send(()).unwrap();
        let mut body = vec![0; 10];
        let all = tokio::io::AsyncReadExt::read_exact(&mut client, &mut body).await;
        assert_eq!(all.is_err(), revokes);
        let report = world.close().await;
        assert_eq!(report.denied, u64::from(revokes));
    }
}

#[tokio::test]
async fn an_answer_under_way_ends_with_its_run() {
    let (server, go_on) = slow().await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let mut client = world.inside(&server).await;
    tell(&mut client, &get(&server, "/")).await;
    assert_eq!(status(&head(&mut client).await), 200);
    world.close().await;
    _ = go_on.send(());
    let (rest, ended_well) = to_end(&mut client).await;
    assert!(!ended_well && !rest.contains("world"), "{rest}");
    let lines = world.lines();
    assert!(
        lines.iter().any(|line| line.contains("did not wait")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_arrives() {
    let server =
        Server::tls_impatient("HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\nlarge")
            .await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let mut client = world.inside(&server).await;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 1000000\r\n\r\n",
        server.to
    );
    tell(&mut client, &request).await;
    tell(&mut client, &"x".repeat(10_000)).await;
    assert_eq!(status(&head(&mut client).await), 413);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_words() {
    let server = Server::tls(says(|_| vec![Vec::new()])).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let answer = ask(&mut world.inside(&server).await, &get(&server, "/")).await;
    assert!(
        status(&answer) == 502 && answer.contains("hung up"),
        "{answer}"
    );
    world.close().await;
    let lines = world.lines();
    assert!(lines[0].contains("\"verdict\":\"failed\""), "{lines:?}");
}
