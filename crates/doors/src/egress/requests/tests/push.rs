//! git requests and the ref updates of pushes.

use super::world::{KEY, Server, World, always, ask, head, ok, rule, says, status, tell};
use spec::{EgressMode, EgressRule, Repository};

fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

fn push(server: &Server, reference: &str) -> String {
    let line = format!(
        "{} {} {reference}\0 report-status\n",
        "0".repeat(40),
        "a".repeat(40)
    );
    let body = format!("{}0000PACK-and-so-on", packet(&line));
    format!(
        "POST /acme/app.git/git-receive-pack HTTP/1.1\r\nHost: {}\r\n\
         Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\n\r\n{body}",
        server.to,
        body.len()
    )
}

async fn world(server: &Server) -> World {
    let repository = Repository {
        path: "acme/app".to_owned(),
        fetch: true,
        push: vec!["refs/heads/agent/*".parse().unwrap()],
        update: false,
        delete: false,
        credential: Some("api".to_owned()),
    };
    let mode = EgressMode::Git {
        repositories: vec![repository],
    };
    World::new(
        server,
        vec![EgressRule {
            name: "the rule".to_owned(),
            ..rule(server, mode)
        }],
    )
    .await
}

#[tokio::test]
async fn a_push_passes_when_all_its_refs_may_and_is_answered_in_gits_words_when_not() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = world(&server).await;
    let mut client = world.inside(&server).await;
    let refused = ask(&mut client, &push(&server, "refs/heads/main")).await;
    assert!(
        status(&refused) == 200 && refused.contains("ng refs/heads/main airlock: "),
        "{refused}"
    );
    assert!(
        server.heard().is_empty() && server.connections() == 0,
        "nothing of it left"
    );
    assert_eq!(
        status(&ask(&mut client, &push(&server, "refs/heads/agent/x")).await),
        200
    );
    let heard = server.heard().join("");
    assert!(
        heard.ends_with("0000PACK-and-so-on") && heard.contains(KEY),
        "{heard}"
    );
    let report = world.close().await;
    assert_eq!(report.denied, 1);
    let lines = world.lines();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("creates refs/heads/agent/x")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_compressed_push_is_not_guessed_at() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = world(&server).await;
    let request = push(&server, "refs/heads/agent/x")
        .replace("Content-Type: ", "Content-Encoding: gzip\r\nContent-Type: ");
    let answer = ask(&mut world.inside(&server).await, &request).await;
    assert!(
        status(&answer) == 403 && answer.contains("compressed"),
        "{answer}"
    );
    assert!(server.heard().is_empty());
}

#[tokio::test]
async fn only_gits_own_requests_for_named_repositories_pass() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = world(&server).await;
    let mut client = world.inside(&server).await;
    for (path, expected) in [
        ("/acme/app.git/info/refs?service=git-upload-pack", 200),
        ("/acme/app/info/refs?service=git-receive-pack", 200),
        ("/acme/other/info/refs?service=git-upload-pack", 403),
        ("/acme/app/info/refs", 403),
        ("/acme/app/settings", 403),
        ("/acme/app/../other/info/refs?service=git-upload-pack", 403),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.to);
        let answer = ask(&mut client, &request).await;
        assert_eq!(status(&answer), expected, "{path} {answer}");
    }
    assert_eq!(server.heard().len(), 2);
}

#[tokio::test]
async fn what_a_push_changes_is_written_down_however_it_ends() {
    let server = Server::tls(says(|_| {
        vec![b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx".to_vec()]
    }))
    .await;
    let world = world(&server).await;
    let mut client = world.inside(&server).await;
    tell(&mut client, &push(&server, "refs/heads/agent/x")).await;
    assert_eq!(status(&head(&mut client).await), 200);
    let announced = world.lines();
    assert!(
        announced.len() == 1 && announced[0].contains("creates refs/heads/agent/x"),
        "{announced:?}"
    );
    drop(client);
    world.close().await;
    let lines = world.lines();
    let last = lines.last().unwrap();
    assert!(
        last.contains("did not wait") && last.contains("creates refs/heads/agent/x"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn no_more_lists_are_held_back_at_a_time_than_there_is_room_for() {
    let server = Server::tls(always(&ok("hello"))).await;
    let world = world(&server).await;
    let whole = push(&server, "refs/heads/agent/x");
    let begun = whole.split("0000PACK").next().unwrap();
    let mut unfinished = Vec::new();
    for _ in 0..crate::egress::requests::upstream::MAX_PUSHES {
        let mut client = world.inside(&server).await;
        tell(&mut client, begun).await;
        unfinished.push(client);
    }
    while world.egress.upstream.pushes.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let mut client = world.inside(&server).await;
    tell(&mut client, &whole).await;
    let waiting =
        tokio::time::timeout(std::time::Duration::from_millis(300), head(&mut client)).await;
    assert!(waiting.is_err(), "there is no room for it");
    unfinished.pop();
    assert_eq!(status(&head(&mut client).await), 200, "now there is");
    assert_eq!(server.heard().len(), 1);
}
