//! Requests through a real door to a local server, byte for byte.

mod credential;
mod endings;
mod framing;
mod late;
mod push;
mod tunnels;
mod world;

use spec::EgressMode;
use world::{Server, World, always, ask, get, inspect, ok, rule, status};

#[tokio::test]
async fn a_plain_request_is_forwarded_without_what_belongs_to_one_connection() {
    let server = Server::plain(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
    let mut client = world.proxy().await;
    let request = format!(
        "POST http://{0}/a/../b%2e?q=1 HTTP/1.1\r\nHost: {0}\r\nConnection: x-mine, keep-alive\r\nX-Mine: 1\r\n\
         Proxy-Authorization: Basic eA==\r\nVia: 1.1 x\r\nX-Forwarded-For: 1\r\nForwarded: for=x\r\nTE: trailers\r\n\
         X-Other: 2\r\nContent-Length: 4\r\n\r\nbody",
        server.to
    );
    let answer = ask(&mut client, &request).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"),
        "{answer}"
    );
    let expected = format!(
        "POST /a/../b%2e?q=1 HTTP/1.1\r\nhost: {}\r\nx-other: 2\r\ncontent-length: 4\r\n\r\nbody",
        server.to
    );
    assert_eq!(server.heard(), [expected]);
    let report = world.close().await;
    assert_eq!((report.begun, report.denied), (1, 0));
    let lines = world.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [
        "\"operation\":\"POST\"",
        "\"verdict\":\"allow\"",
        "\"rule\":\"the rule\"",
        "\"status\":200",
        "\"address\":\"127.0.0.1\"",
    ] {
        assert!(lines[0].contains(part), "{part} {}", lines[0]);
    }
    assert!(!lines[0].contains("q=1"), "queries are not written down");
}

#[tokio::test]
async fn only_the_methods_and_paths_of_a_rule_pass_and_the_judged_path_is_the_one_that_goes_on() {
    let server = Server::tls(always(&ok("hello"))).await;
    let mode = inspect(&["GET /v1/**", "POST /v1/items"], false);
    let world = World::new(&server, vec![rule(&server, mode)]).await;
    let mut client = world.inside(&server).await;
    for (method, path, forwarded) in [
        ("GET", "/v1/a?b=/../c", "GET /v1/a?b=/../c"),
        ("HEAD", "/v1/a", "HEAD /v1/a"),
        ("GET", "/v2/../v1/%61", "GET /v1/a"),
        ("POST", "/v1/items", "POST /v1/items"),
    ] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
            server.to
        );
        // The answer to HEAD has a length and no body.
        let mut own = world.inside(&server).await;
        world::tell(&mut own, &request).await;
        assert_eq!(status(&world::head(&mut own).await), 200, "{path}");
        let last = server.heard().pop().unwrap();
        assert!(
            last.starts_with(&format!("{forwarded} HTTP/1.1\r\n")),
            "{last}"
        );
    }
    let heard = server.heard().len();
    for (method, path, expected) in [
        ("DELETE", "/v1/a", 403),
        ("POST", "/v1/a", 403),
        ("GET", "/v1", 403),
        ("GET", "/v1/../admin", 403),
        ("GET", "/v1/..%2fadmin", 403),
        ("GET", "/v1/%2e%2e/admin", 403),
        ("GET", "//v1/a", 403),
        ("get", "/v1/a", 403),
        ("GET", "/v1/%00", 400),
        ("GET", "/../v1/a", 400),
    ] {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.to);
        let answer = ask(&mut client, &request).await;
        assert_eq!(status(&answer), expected, "{method} {path} {answer}");
    }
    assert_eq!(server.heard().len(), heard, "none of them left the door");
    let report = world.close().await;
    assert_eq!(report.denied, 10);
    assert!(
        report
            .denials
            .iter()
            .any(|denial| denial.target.ends_with("/v1/..%2fadmin")),
        "{report:?}"
    );
}

#[tokio::test]
async fn headers_that_stand_for_another_method_or_path_do_not_pass_where_these_are_judged() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["GET /**"], false))]).await;
    let request = format!(
        "GET /a HTTP/1.1\r\nHost: {}\r\nX-HTTP-Method-Override: DELETE\r\nX-Original-URL: /admin\r\nX_HTTP_Method_Override: DELETE\r\nx_original-url: /admin\r\nX-Envoy-Original-Path: /admin\r\nX-Override-URL: /admin\r\nX-HTTP-Path-Override: /admin\r\nX-Host: /admin\r\nDestination: /admin\r\nX-Accel-Redirect: /admin\r\nX-Real-IP: /admin\r\nTrue_Client-IP: /admin\r\nX-Mine: 1\r\n\r\n",
        server.to
    );
    assert_eq!(
        status(&ask(&mut world.inside(&server).await, &request).await),
        200
    );
    let heard = server.heard().join("");
    assert!(
        heard.contains("x-mine: 1") && !heard.contains("DELETE") && !heard.contains("/admin"),
        "{heard}"
    );
}

#[tokio::test]
async fn each_request_of_a_connection_is_for_the_host_of_that_connection() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let mut client = world.inside(&server).await;
    assert_eq!(status(&ask(&mut client, &get(&server, "/1")).await), 200);
    let other = "GET /2 HTTP/1.1\r\nHost: internal.example\r\n\r\n";
    assert_eq!(status(&ask(&mut client, other).await), 421);
    assert_eq!(status(&ask(&mut client, &get(&server, "/3")).await), 200);
    let absolute = format!(
        "GET https://internal.example/4 HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.to
    );
    assert_eq!(status(&ask(&mut client, &absolute).await), 421);
    let heard: Vec<_> = server
        .heard()
        .iter()
        .map(|text| text[..7].to_owned())
        .collect();
    assert_eq!(heard, ["GET /1 ", "GET /3 "]);
    assert_eq!(
        server.connections(),
        1,
        "one connection serves all requests of a client"
    );
    assert_eq!(world.close().await.denied, 2);
}

#[tokio::test]
async fn rules_are_asked_for_each_request_and_may_change_between_two() {
    let server = Server::plain(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
    let mut client = world.proxy().await;
    let request = format!("GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", server.to);
    assert_eq!(status(&ask(&mut client, &request).await), 200);
    assert_eq!(
        world.egress.revoke(&rule(&server, EgressMode::Tunnel).host),
        Ok(1)
    );
    let refused = ask(&mut client, &request).await;
    assert!(
        status(&refused) == 403 && refused.contains("with allow_private = true"),
        "{refused}"
    );
    world
        .egress
        .grant(rule(&server, EgressMode::Tunnel), None)
        .unwrap();
    assert_eq!(status(&ask(&mut client, &request).await), 200);
    assert_eq!(server.heard().len(), 2);
}

#[tokio::test]
async fn the_door_says_what_it_allows() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["GET /v1/**"], true))]).await;
    let mut client = world.proxy().await;
    let front = ask(
        &mut client,
        "GET / HTTP/1.1\r\nHost: localhost:3128\r\n\r\n",
    )
    .await;
    assert!(
        status(&front) == 200 && front.contains("inspect  127.0.0.1"),
        "{front}"
    );
    let rules = ask(
        &mut client,
        "GET /v1/rules HTTP/1.1\r\nHost: localhost:3128\r\n\r\n",
    )
    .await;
    let rules: serde_json::Value =
        serde_json::from_str(rules.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let expected = serde_json::json!({"rules": [{
        "name": "the rule", "host": "127.0.0.1", "ports": "any", "mode": "inspect", "allow": ["GET /v1/**"],
        "credential": "api", "allow_upgrade": false,
    }]});
    assert_eq!(rules, expected);
    assert_eq!(
        status(&ask(&mut client, "GET /other HTTP/1.1\r\nHost: x\r\n\r\n").await),
        404
    );
    let secure = format!("GET https://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", server.to);
    let refused = ask(&mut client, &secure).await;
    assert!(
        status(&refused) == 403 && refused.contains("CONNECT"),
        "{refused}"
    );
}
