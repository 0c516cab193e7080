mod world;

use spec::EgressMode;
use world::{KEY, Server, World, always, ask, inspect, ok, rule, says, status};

fn get(server: &Server, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.to)
}

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
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    let heard = server.heard();
    let expected = format!(
        "POST /a/../b%2e?q=1 HTTP/1.1\r\nhost: {}\r\nx-other: 2\r\ncontent-length: 4\r\n\r\nbody",
        server.to
    );
    assert_eq!(heard, [expected]);
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
async fn a_credential_arrives_in_place_of_the_programs_own_and_never_comes_back() {
    let server = Server::tls(says(|request| vec![ok(request).into_bytes()])).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["GET /v1/**"], true))]).await;
    let mut client = world.inside(&server).await;
    let request = format!(
        "GET /v1/%61 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer mine\r\nAccept-Encoding: gzip\r\nX-Api-Key: mine\r\n\r\n",
        server.to
    );
    let answer = ask(&mut client, &request).await;
    let heard = server.heard().join("");
    for part in [
        "GET /v1/a HTTP/1.1\r\n",
        &format!("authorization: Bearer {KEY}\r\n"),
        "accept-encoding: identity\r\n",
        "x-api-key: mine\r\n",
    ] {
        assert!(heard.contains(part), "{part} {heard}");
    }
    assert!(!heard.contains("Bearer mine"));
    assert!(answer.contains("authorization: Bearer ****") && !answer.contains(KEY), "{answer}");
    let refused = ask(&mut client, &get(&server, "/admin")).await;
    assert!(
        status(&refused) == 403 && refused.contains("GET /v1/**") && refused.contains("the rule"),
        "{refused}"
    );
    assert_eq!(server.heard().len(), 1);
    world.close().await;
    assert!(world.lines().iter().all(|line| !line.contains(KEY)));
    assert!(world.lines().iter().any(|line| line.contains("\"credential\":\"api\"")));
}
