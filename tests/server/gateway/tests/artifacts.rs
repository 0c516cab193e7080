//! Artifacts over HTTP: streams, parts, digests, hostile names, and whose they are.

use gateway_tests::{Answer, Server};
use serde_json::{Value, json};

fn put(server: &Server, key: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let bearer = format!("Bearer {key}");
    let mut head = format!(
        "PUT {path} HTTP/1.1\r\nhost: {}\r\nauthorization: {bearer}\r\n",
        server.client.host()
    );
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    server
        .client
        .open(&[head.as_bytes(), body].concat())
        .answer()
}

fn get(server: &Server, key: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    server.ask(key, "GET", path, headers, &Value::Null)
}

#[test]
fn what_is_put_comes_back_whole_in_parts_and_in_versions() {
    let server = Server::new();
    let key = server.key(&["artifacts"]);
    let first = put(
        &server,
        &key,
        "/v1/artifacts/a/out.html",
        &[("content-type", "text/html")],
        b"0123456789",
    );
    assert_eq!(first.status, 201, "{}", first.text());
    assert_eq!(
        (&first.json()["name"], &first.json()["version"]),
        (&json!("a/out.html"), &json!(1))
    );
    assert_eq!(
        put(&server, &key, "/v1/artifacts/a%2Fout.html", &[], b"new").json()["version"],
        2
    );
    let whole = get(&server, &key, "/v1/artifacts/a/out.html?version=1", &[]);
    assert_eq!((whole.status, whole.text().as_str()), (200, "0123456789"));
    assert_eq!(whole.header("content-type"), Some("text/html"));
    assert_eq!(whole.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(whole.header("content-disposition"), Some("attachment"));
    let etag = format!("\"{}\"", first.json()["sha256"].as_str().unwrap());
    assert_eq!(whole.header("etag"), Some(etag.as_str()));
    let part = get(
        &server,
        &key,
        "/v1/artifacts/a/out.html?version=1",
        &[("range", "bytes=2-4")],
    );
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    let beyond = get(
        &server,
        &key,
        "/v1/artifacts/a/out.html?version=1",
        &[("range", "bytes=10-")],
    );
    assert_eq!(
        (beyond.status, beyond.header("content-range")),
        (416, Some("bytes */10"))
    );
    let had = get(
        &server,
        &key,
        "/v1/artifacts/a/out.html?version=1",
        &[("if-none-match", &etag)],
    );
    assert_eq!(had.status, 304);
    assert_eq!(
        get(&server, &key, "/v1/artifacts/a/out.html", &[]).text(),
        "new"
    );
    let versions = get(&server, &key, "/v1/artifacts/a/out.html/versions", &[]).json();
    assert_eq!(versions["artifacts"].as_array().unwrap().len(), 2);
    let page = get(&server, &key, "/v1/artifacts?prefix=a/&limit=1", &[]).json();
    let next = page["next"].as_str().unwrap();
    let rest = get(
        &server,
        &key,
        &format!("/v1/artifacts?after={}", next.replace('%', "%25")),
        &[],
    )
    .json();
    assert_eq!(
        (&rest["artifacts"][0]["version"], &rest["next"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(
        server
            .ask(
                &key,
                "DELETE",
                "/v1/artifacts/a/out.html?version=1",
                &[],
                &Value::Null
            )
            .json()["removed"],
        1
    );
    assert_eq!(
        get(&server, &key, "/v1/artifacts/a/out.html?version=1", &[]).status,
        404
    );
}

#[test]
fn bytes_with_another_digest_than_announced_are_not_kept() {
    let server = Server::new();
    let (key, path) = (server.key(&["artifacts"]), "/v1/artifacts/x");
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(
        put(
            &server,
            &key,
            path,
            &[("x-checksum-sha256", &"00".repeat(32))],
            b"abc"
        )
        .status,
        400
    );
    assert_eq!(
        put(
            &server,
            &key,
            path,
            &[("x-checksum-sha256", "nonsense")],
            b"abc"
        )
        .status,
        400
    );
    let wrong = "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:";
    assert_eq!(
        put(&server, &key, path, &[("repr-digest", wrong)], b"abc").status,
        400
    );
    assert_eq!(get(&server, &key, path, &[]).status, 404, "nothing is kept");
    assert_eq!(
        put(&server, &key, path, &[("x-checksum-sha256", abc)], b"abc").status,
        201
    );
    let right = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
    assert_eq!(
        put(&server, &key, path, &[("repr-digest", right)], b"abc").status,
        201
    );
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let server = Server::new();
    let key = server.key(&["artifacts"]);
    let long = "x".repeat(10_000);
    for bad in [
        "../x",
        "a/../../x",
        "%2e%2e/x",
        "%2e%2e%2fx",
        "a%00b",
        "%2Fetc%2Fpasswd",
        "%zz",
        "%",
        &long,
    ] {
        let path = format!("/v1/artifacts/{bad}");
        for answer in [
            put(&server, &key, &path, &[], b"x"),
            get(&server, &key, &path, &[]),
        ] {
            assert!(
                matches!(answer.status, 400 | 404 | 414 | 431),
                "{bad}: {}",
                answer.text()
            );
        }
    }
    assert_eq!(
        get(&server, &key, "/v1/artifacts", &[]).json()["artifacts"],
        json!([])
    );
    assert_eq!(
        put(&server, &key, "/v1/artifacts/..x", &[], b"x").status,
        201,
        "a name that only looks so"
    );
}

#[test]
fn names_that_mean_something_else_are_not_kept() {
    let server = Server::new();
    let key = server.key(&["artifacts", "runs"]);
    for name in [
        "x/versions",
        "x%2Fversions",
        "a@1",
        "a/b@18446744073709551615",
        "a@+1",
    ] {
        let path = format!("/v1/artifacts/{name}");
        let answer = put(&server, &key, &path, &[], b"x");
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        assert!(
            answer.text().contains("a name ends neither in"),
            "{}",
            answer.text()
        );
    }
    let list = get(&server, &key, "/v1/artifacts", &[]).json();
    assert_eq!(list["artifacts"], json!([]));
    // The controls: each of these can be put, read, and named as an input.
    for name in ["versions", "x/versions.txt", "a@b", "a@1/b", "@"] {
        let path = format!("/v1/artifacts/{name}");
        assert_eq!(put(&server, &key, &path, &[], b"x").status, 201, "{name}");
        assert_eq!(get(&server, &key, &path, &[]).text(), "x", "{name}");
        let run =
            json!({ "command": ["cat", "in"], "inputs": [{ "name": "in", "artifact": name }] });
        let ran = server.ask(&key, "POST", "/v1/runs", &[], &run);
        assert_eq!(ran.json()["stdout"], "x", "{name}: {}", ran.text());
    }
}

#[test]
fn what_a_key_keeps_is_its_own_and_the_admin_sees_all() {
    let server = Server::new();
    let (one, other) = (
        server.key(&["artifacts", "runs"]),
        server.key(&["artifacts"]),
    );
    assert_eq!(
        put(&server, &one, "/v1/artifacts/x", &[], b"one").status,
        201
    );
    for path in ["/v1/artifacts/x", "/v1/artifacts/x/versions"] {
        assert_eq!(get(&server, &other, path, &[]).status, 404, "{path}");
    }
    assert_eq!(
        put(&server, &other, "/v1/artifacts/x", &[], b"two").json()["version"],
        1,
        "no collision"
    );
    assert_eq!(get(&server, &one, "/v1/artifacts/x", &[]).text(), "one");
    let run = json!({ "command": ["sh", "-c", "cp in out"], "inputs": [{ "name": "in", "artifact": "x" }], "artifacts": ["out"] });
    let ran = server.ask(&one, "POST", "/v1/runs", &[], &run);
    assert_eq!(ran.json()["status"], "succeeded", "{}", ran.text());
    assert_eq!(
        get(&server, &one, "/v1/artifacts/out", &[]).text(),
        "one",
        "a run reads and keeps for its key"
    );
    assert_eq!(get(&server, &other, "/v1/artifacts/out", &[]).status, 404);
    let all = server.get("/v1/artifacts").json();
    assert_eq!(all["artifacts"].as_array().unwrap().len(), 3, "{all}");
    let owner = all["artifacts"][0]["owner"].as_str().unwrap();
    assert_eq!(
        server.get(&format!("/v1/artifacts/x?owner={owner}")).status,
        200
    );
    assert_eq!(
        get(&server, &other, "/v1/artifacts?owner=local", &[]).status,
        404
    );
    assert_eq!(
        get(&server, &server.key(&["runs"]), "/v1/artifacts", &[]).status,
        403
    );
}
