//! A credential is sent to its hosts only.

use super::world::{
    KEY, Server, World, always, ask, get, head, inspect, message, ok, rule, says, status, tell,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use spec::{EgressMode, EgressRule, HostPattern};

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
    assert!(
        answer.contains("authorization: Bearer ****") && !answer.contains(KEY),
        "{answer}"
    );
    let refused = ask(&mut client, &get(&server, "/admin")).await;
    assert!(
        status(&refused) == 403 && refused.contains("GET /v1/**"),
        "{refused}"
    );
    assert_eq!(server.heard().len(), 1);
    world.close().await;
    let lines = world.lines();
    assert!(lines.iter().all(|line| !line.contains(KEY)), "{lines:?}");
    let used: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("\"credential\":\"api\""))
        .collect();
    assert_eq!(
        used.len(),
        2,
        "before it is sent, and when it is over: {lines:?}"
    );
}

#[tokio::test]
async fn an_echoed_credential_is_blanked_wherever_the_answer_is_split() {
    let encoded = STANDARD.encode(format!("user:{KEY}"));
    let body = format!("a {KEY} b {encoded} c");
    let says = {
        let body = body.clone();
        says(move |request| {
            let at: usize = request[5..].split(' ').next().unwrap().parse().unwrap();
            let (at, chunked) = (at / 2, at % 2 == 1);
            let (first, second) = body.split_at(at);
            let piece = |piece: &str| match (chunked, piece.is_empty()) {
                (true, true) => String::new(),
                (true, false) => format!("{:x}\r\n{piece}\r\n", piece.len()),
                (false, _) => piece.to_owned(),
            };
            let framing = if chunked {
                "Transfer-Encoding: chunked".to_owned()
            } else {
                format!("Content-Length: {}", body.len())
            };
            let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{}", piece(first));
            let last = if chunked { "0\r\n\r\n" } else { "" };
            vec![
                head.into_bytes(),
                format!("{}{last} ", piece(second))
                    .trim_end_matches(' ')
                    .into(),
            ]
        })
    };
    let server = Server::tls(says).await;
    let world = World::new(&server, vec![rule(&server, inspect(&[], true))]).await;
    let mut client = world.inside(&server).await;
    for at in 2..=body.len() * 2 - 2 {
        let answer = ask(&mut client, &get(&server, &format!("/{at}"))).await;
        // The body, whatever its framing.
        let letters: String = answer
            .split("\r\n\r\n")
            .nth(1)
            .unwrap()
            .split("\r\n")
            .collect();
        // Base64 mixes up to one character of the neighbouring text into the encoding.
        let starred = letters.matches('*').count();
        assert!(starred >= KEY.len() + encoded.len() - 9, "{at} {answer}");
        assert!(
            !letters.contains(&KEY[..8]) && !letters.contains(&encoded[8..16]),
            "{at} {answer}"
        );
    }
}

#[tokio::test]
async fn an_echoed_credential_is_in_no_header_and_not_beside_the_status() {
    let answer = format!(
        "HTTP/1.1 200 {KEY}\r\nX-Echo: Bearer {KEY}\r\nX-Mine: 1\r\nContent-Length: 0\r\n\r\n"
    );
    let server = Server::tls(always(&answer)).await;
    for credential in [true, false] {
        let world = World::new(&server, vec![rule(&server, inspect(&[], credential))]).await;
        let mut client = world.inside(&server).await;
        let answer = ask(&mut client, &get(&server, "/")).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("x-mine: 1"),
            "{answer}"
        );
        assert_eq!(
            answer.matches(KEY).count(),
            if credential { 0 } else { 2 },
            "{answer}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_searched_does_not_come_back() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd";
    let server = Server::tls(always(answer)).await;
    for (credential, expected) in [(true, 502), (false, 200)] {
        let world = World::new(&server, vec![rule(&server, inspect(&[], credential))]).await;
        let answer = ask(&mut world.inside(&server).await, &get(&server, "/")).await;
        assert_eq!(
            (status(&answer), answer.contains("abcd")),
            (expected, !credential),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn a_server_with_another_certificate_never_hears_of_it() {
    for (name, expected) in [
        ("127.0.0.1", 200),
        ("127.0.0.2", 502),
        ("other.example", 502),
    ] {
        let server = Server::tls_as(name, always(&ok("hello"))).await;
        let world = World::new(&server, vec![rule(&server, inspect(&[], true))]).await;
        let answer = ask(&mut world.inside(&server).await, &get(&server, "/")).await;
        assert_eq!(status(&answer), expected, "{name} {answer}");
        assert_eq!(server.heard().len(), usize::from(expected == 200));
        assert_eq!(answer.contains("certificate"), expected != 200, "{answer}");
    }
    // Signed by an untrusted CA.
    let (one, other) = (
        Server::tls(always(&ok("1"))).await,
        Server::tls(always(&ok("2"))).await,
    );
    let world = World::new(&one, vec![rule(&one, inspect(&[], true))]).await;
    assert_eq!(
        status(&ask(&mut world.inside(&other).await, &get(&other, "/")).await),
        502
    );
    assert!(other.heard().is_empty() && other.connections() == 1);
}

#[tokio::test]
async fn a_credential_goes_out_unencrypted_only_where_the_rule_says_so() {
    let server = Server::plain(always(&ok("hello"))).await;
    for allow_plain_http in [false, true] {
        let rule = EgressRule {
            allow_plain_http,
            ..rule(&server, inspect(&[], true))
        };
        let world = World::new(&server, vec![rule]).await;
        let request = format!("GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n", server.to);
        let answer = ask(&mut world.proxy().await, &request).await;
        assert_eq!(
            status(&answer),
            if allow_plain_http { 200 } else { 403 },
            "{answer}"
        );
        assert_eq!(server.heard().join("").contains(KEY), allow_plain_http);
    }
}

#[tokio::test]
async fn a_credential_goes_to_no_host_but_its_own_whatever_a_rule_says() {
    let server = Server::plain(always(&ok("hello"))).await;
    let named = EgressRule {
        host: HostPattern::Exactly("localhost".parse().unwrap()),
        allow_plain_http: true,
        ..rule(&server, inspect(&[], true))
    };
    let own = EgressRule {
        allow_plain_http: true,
        ..rule(&server, inspect(&[], true))
    };
    let world = World::new(&server, vec![named, own]).await;
    let mut client = world.proxy().await;
    for (host, expected) in [("localhost", 403), ("127.0.0.1", 200)] {
        let port = server.to.port;
        let request = format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        let answer = ask(&mut client, &request).await;
        assert_eq!(status(&answer), expected, "{answer}");
    }
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn a_credential_is_not_read_out_by_trace_nor_carried_into_a_websocket() {
    let server = Server::tls(always(&ok("hello"))).await;
    let mode = EgressMode::Inspect {
        allow: Vec::new(),
        credential: Some("api".to_owned()),
        allow_upgrade: true,
    };
    let world = World::new(&server, vec![rule(&server, mode)]).await;
    let mut client = world.inside(&server).await;
    let trace = format!("TRACE / HTTP/1.1\r\nHost: {}\r\n\r\n", server.to);
    assert_eq!(status(&ask(&mut client, &trace).await), 403);
    let upgrade = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        server.to
    );
    assert_eq!(status(&ask(&mut client, &upgrade).await), 403);
    assert_eq!(status(&ask(&mut client, &get(&server, "/")).await), 200);
    assert_eq!(server.heard().len(), 1);
}

#[tokio::test]
async fn a_connection_becomes_a_websocket_where_the_rule_says_so_and_never_http_2() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    let server = Server::tls(says(move |request| {
        if request.contains("upgrade: ") || !request.starts_with("GET") {
            vec![switch.into()]
        } else {
            vec![ok("plain").into_bytes()]
        }
    }))
    .await;
    for (allow_upgrade, to, expected) in [
        (true, "websocket", 101),
        (true, "h2c", 200),
        (false, "h2c", 200),
        (true, "h2c, WebSocket", 101),
        (false, "h2c, websocket", 403),
        (false, "websocket", 403),
    ] {
        let mode = EgressMode::Inspect {
            allow: Vec::new(),
            credential: None,
            allow_upgrade,
        };
        let world = World::new(&server, vec![rule(&server, mode)]).await;
        let mut client = world.inside(&server).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {to}\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
            server.to
        );
        tell(&mut client, &request).await;
        let answer = head(&mut client).await;
        assert_eq!(status(&answer), expected, "{answer}");
        if expected == 101 {
            // What the server says from now on passes, and so does what the client says: here, words like a request.
            let mut hello = [0; 5];
            tokio::io::AsyncReadExt::read_exact(&mut client, &mut hello)
                .await
                .unwrap();
            assert_eq!(&hello, b"hello");
            tell(&mut client, "anything\r\n\r\n").await;
            assert!(
                message(&mut client)
                    .await
                    .unwrap()
                    .starts_with("HTTP/1.1 101")
            );
            let ending = tokio::spawn(async move { super::world::to_end(&mut client).await });
            world.close().await;
            assert!(
                ending.await.unwrap().0.contains("hello"),
                "it ends with its run"
            );
            assert!(
                world
                    .lines()
                    .iter()
                    .any(|line| line.contains("\"status\":101"))
            );
        }
    }
    let heard = server.heard().join("");
    assert_eq!(
        (
            server.heard().len(),
            heard.contains("h2c"),
            heard.contains("http2-settings")
        ),
        (6, false, false)
    );
}
