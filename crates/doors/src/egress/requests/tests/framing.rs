//! Message framing: one request in is one request out.

use super::world::{
    Server, World, always, ask, get, head, inspect, message, ok, rule, says, status, tell, to_end,
};
use spec::EgressMode;

#[tokio::test]
async fn one_request_in_is_one_request_out() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["POST /a"], false))]).await;
    let smuggled = "GET /admin HTTP/1.1\r\nHost: x\r\n\r\n";
    for (headers, body, expected) in [
        // Well-formed ones pass.
        ("Content-Length: 4", "body".to_owned(), 200),
        (
            "Transfer-Encoding: chunked",
            "4\r\nbody\r\n0\r\n\r\n".to_owned(),
            200,
        ),
        (
            "Content-Length: 4\r\nContent-Length: 4",
            "body".to_owned(),
            200,
        ),
        // Two lengths: chunked wins, the other is dropped, and the connection is closed.
        (
            "Content-Length: 4\r\nTransfer-Encoding: chunked",
            format!("0\r\n\r\n{smuggled}"),
            200,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 4",
            format!("0\r\n\r\n{smuggled}"),
            200,
        ),
        (
            "Content-Length: 4\r\nContent-Length: 0",
            format!("body{smuggled}"),
            400,
        ),
        ("Content-Length: +4", format!("body{smuggled}"), 400),
        ("Content-Length: 4, 4", format!("body{smuggled}"), 400),
        ("Content-Length : 4", format!("body{smuggled}"), 400),
        (
            "Transfer-Encoding : chunked",
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        (
            "Transfer-Encoding: xchunked",
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        (
            "Transfer-Encoding: chunked, chunked",
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        (
            "Transfer-Encoding: gzip, chunked",
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
            format!("0\r\n\r\n{smuggled}"),
            400,
        ),
        ("X: a\r\n b", String::new(), 400),
        ("X: a\r\n\tTransfer-Encoding: chunked", String::new(), 400),
        ("X: a\0b", String::new(), 400),
        ("Host: other.example", String::new(), 400),
    ] {
        let before = server.heard().len();
        let mut client = world.inside(&server).await;
        let request = format!(
            "POST /a HTTP/1.1\r\nHost: {}\r\n{headers}\r\n\r\n{body}",
            server.to
        );
        let answer = ask(&mut client, &request).await;
        assert_eq!(status(&answer), expected, "{headers} {answer}");
        let heard = server.heard()[before..].to_vec();
        assert_eq!(
            heard.len(),
            usize::from(expected == 200),
            "{headers} {heard:?}"
        );
        let lengths = heard
            .iter()
            .map(|text| text.matches("content-length").count() + text.matches("chunked").count());
        assert!(
            lengths.into_iter().all(|count| count == 1),
            "{headers} {heard:?}"
        );
        if body.contains(smuggled) {
            let (rest, _) = to_end(&mut client).await;
            assert!(!rest.contains("HTTP/1.1 200"), "{headers} {rest}");
        }
        assert!(
            server.heard().iter().all(|text| !text.contains("/admin")),
            "{headers}"
        );
    }
}

#[tokio::test]
async fn a_get_brings_no_body_that_a_server_could_take_for_the_next_request() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], true))]).await;
    let smuggled = "GET /admin HTTP/1.1\r\nHost: x\r\n\r\n";
    let length = format!("Content-Length: {}", smuggled.len());
    let chunks = format!("{:x}\r\n{smuggled}\r\n0\r\n\r\n", smuggled.len());
    for (method, headers, body, expected) in [
        // Controls: no body, and a body where one is allowed.
        ("GET", "Content-Length: 0", "", 200),
        ("GET", "X: y", "", 200),
        ("POST", &*length, smuggled, 200),
        ("GET", &*length, smuggled, 400),
        ("HEAD", &*length, smuggled, 400),
        ("GET", "Transfer-Encoding: chunked", &*chunks, 400),
    ] {
        let before = server.heard().len();
        let mut client = world.inside(&server).await;
        let request = format!(
            "{method} /a HTTP/1.1\r\nHost: {}\r\n{headers}\r\n\r\n{body}",
            server.to
        );
        tell(&mut client, &request).await;
        // A response to HEAD has no body, whatever its length.
        let answer = head(&mut client).await;
        assert_eq!(status(&answer), expected, "{method} {headers} {answer}");
        let heard = server.heard().len() - before;
        assert_eq!(heard, usize::from(expected == 200), "{method} {headers}");
    }
}

#[tokio::test]
async fn a_path_in_overlong_forms_does_not_leave_the_door() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["GET /v1/**"], true))]).await;
    for (path, expected) in [
        ("/v1/%C3%BC", 200),
        ("/v1/..%C0%AFadmin", 400),
        ("/v1/%E0%80%AE%E0%80%AE/admin", 400),
    ] {
        let answer = ask(&mut world.inside(&server).await, &get(&server, path)).await;
        assert_eq!(status(&answer), expected, "{path} {answer}");
    }
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_or_makes_no_sense_does_not_arrive_as_a_whole_one() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    for (headers, body) in [
        ("Transfer-Encoding: chunked", "4\r\nbody\r\nzz\r\n"),
        ("Transfer-Encoding: chunked", "fffffffffffffffff\r\nbody"),
        ("Transfer-Encoding: chunked", "4\r\nbodyX\r\n0\r\n\r\n"),
    ] {
        let mut client = world.inside(&server).await;
        let request = format!(
            "POST /a HTTP/1.1\r\nHost: {}\r\n{headers}\r\n\r\n{body}",
            server.to
        );
        let answer = ask(&mut client, &request).await;
        assert_ne!(status(&answer), 200, "{answer}");
        assert!(server.heard().is_empty(), "{body}");
    }
    let good = format!(
        "POST /a HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nbody\r\n0\r\nX-Trailer: 1\r\n\r\n",
        server.to
    );
    assert_eq!(
        status(&ask(&mut world.inside(&server).await, &good).await),
        200
    );
    let heard = server.heard().join("");
    assert!(
        heard.ends_with("4\r\nbody\r\n0\r\n\r\n"),
        "neither extensions nor trailers go on: {heard}"
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_one_after_the_other() {
    let server = Server::tls(says(|request| vec![ok(&request[4..6]).into_bytes()])).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["GET /*"], false))]).await;
    let mut client = world.inside(&server).await;
    let three = ["/1", "/2/x", "/3"].map(|path| get(&server, path)).concat();
    let first = ask(&mut client, &three).await;
    let (second, third) = (
        message(&mut client).await.unwrap(),
        message(&mut client).await.unwrap(),
    );
    assert!(
        first.ends_with("/1") && status(&second) == 403 && third.ends_with("/3"),
        "{first} {second} {third}"
    );
}

#[tokio::test]
async fn what_a_server_says_unasked_is_nobodys_answer() {
    let server = Server::tls(says(|request| {
        let extra = if request.starts_with("GET /1 ") {
            ok("unasked")
        } else {
            String::new()
        };
        vec![format!("{}{extra}", ok("asked")).into_bytes()]
    }))
    .await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    let mut client = world.inside(&server).await;
    for path in ["/1", "/2", "/3"] {
        let answer = ask(&mut client, &get(&server, path)).await;
        assert!(answer.ends_with("\r\n\r\nasked"), "{answer}");
    }
    assert_eq!(
        server.connections(),
        2,
        "the connection is used again only where nothing is left on it"
    );
}

#[tokio::test]
async fn the_usual_kinds_of_answers_arrive_as_they_are() {
    for (method, answer, expected) in [
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n",
            "content-length: 77\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
            "etag: \"a\"\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Gone Fishing\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 404 Gone Fishing\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 302 Found\r\nLocation: http://internal.example/\r\nContent-Length: 0\r\n\r\n",
            "location: http://internal.example/\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":443\"\r\nProxy-Authenticate: x\r\nKeep-Alive: x\r\nContent-Length: 0\r\n\r\n",
            "content-length: 0\r\n",
        ),
    ] {
        let server = Server::tls(always(answer)).await;
        let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
        let mut client = world.inside(&server).await;
        tell(
            &mut client,
            &format!("{method} / HTTP/1.1\r\nHost: {}\r\n\r\n", server.to),
        )
        .await;
        let answer = head(&mut client).await;
        assert!(answer.contains(expected), "{answer}");
        assert!(
            !answer.contains("alt-svc")
                && !answer.contains("proxy-")
                && !answer.contains("keep-alive"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_could_be_read_in_two_ways_is_read_in_one() {
    for (answer, expected) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            200,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nhello",
            502,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            502,
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            502,
        ),
        ("no HTTP at all\r\n\r\n", 502),
    ] {
        let server = Server::tls(always(answer)).await;
        let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
        let got = ask(&mut world.inside(&server).await, &get(&server, "/")).await;
        assert_eq!(
            (status(&got), got.contains("hello")),
            (expected, expected == 200),
            "{answer} {got}"
        );
        assert!(!got.contains("content-length: 3"), "{got}");
    }
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_go_on_is_told() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&["POST /a"], false))]).await;
    let expecting = |path: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
            server.to
        )
    };
    let mut client = world.inside(&server).await;
    tell(&mut client, &expecting("/a")).await;
    assert_eq!(head(&mut client).await, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(status(&ask(&mut client, "body").await), 200);
    let heard = server.heard().join("");
    assert!(
        heard.ends_with("\r\n\r\nbody") && !heard.contains("expect"),
        "{heard}"
    );
}

#[tokio::test]
async fn an_old_client_is_answered_in_its_own_way() {
    let server = Server::plain(always(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ))
    .await;
    let world = World::new(&server, vec![rule(&server, EgressMode::Tunnel)]).await;
    let mut client = world.proxy().await;
    tell(
        &mut client,
        &format!("GET http://{}/ HTTP/1.0\r\n\r\n", server.to),
    )
    .await;
    let (answer, ended_well) = to_end(&mut client).await;
    assert!(answer.ends_with("\r\n\r\nhello") && ended_well, "{answer}");
    assert!(
        server
            .heard()
            .join("")
            .contains(&format!("host: {}\r\n", server.to))
    );
}

#[tokio::test]
async fn a_head_has_a_largest_size_and_a_largest_number_of_headers() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], false))]).await;
    for (headers, passes) in [
        ("X: y\r\n".repeat(90), true),
        ("X: y\r\n".repeat(200), false),
        (format!("X: {}\r\n", "y".repeat(30 << 10)), true),
        (format!("X: {}\r\n", "y".repeat(80 << 10)), false),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", server.to);
        let answer = ask(&mut world.inside(&server).await, &request).await;
        assert_eq!(status(&answer), if passes { 200 } else { 431 }, "{answer}");
    }
    assert_eq!(server.heard().len(), 2);
}
