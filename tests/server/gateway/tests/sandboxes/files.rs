//! Files: streams in and out, whole or in part, and what is left when a stream is cut.

use crate::Place;
use serde_json::{Value, json};

fn names(listing: &Value) -> Vec<String> {
    let files = listing["files"].as_array().expect("a list");
    files
        .iter()
        .map(|file| file["name"].as_str().expect("a name").to_owned())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

pub(crate) fn a_file_comes_back_as_it_was_put(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let put = sandbox.put("deep/er/data.bin?mkdir=true&mode=750", &bytes);
    assert_eq!(put.status, 201, "{}", put.text());
    assert_eq!(
        (&put.json()["size_bytes"], &put.json()["mode"]),
        (&json!(3_000_000), &json!("0750"))
    );
    let got = sandbox.get("/files/deep/er/data.bin");
    assert!(got.status == 200 && got.body == bytes);
    let head =
        ["content-type", "x-content-type-options", "accept-ranges"].map(|name| got.header(name));
    assert_eq!(
        head,
        [
            Some("application/octet-stream"),
            Some("nosniff"),
            Some("bytes")
        ]
    );
    assert!(
        got.header("content-disposition")
            .is_some_and(|shown| shown.starts_with("attachment"))
    );
    assert_eq!(
        sandbox
            .said("wc -c < deep/er/data.bin; ls -l deep/er | grep -c rwxr-x---")
            .trim(),
        "3000000\n1"
    );
    assert_eq!(
        sandbox.said("echo more >> deep/er/data.bin; echo ok"),
        "ok\n",
        "it is the program's own"
    );
    assert_eq!(
        sandbox.put("deep/er/data.bin", b"new").status,
        200,
        "replaced"
    );
    assert_eq!(sandbox.said("cat deep/er/data.bin"), "new");
    assert_eq!(
        sandbox.put("no/folder/x", b"new").status,
        404,
        "only with mkdir"
    );
    let named = sandbox.put("%ff%0aname%20%22", b"odd");
    assert_eq!(
        (named.status, named.json()["name_base64"].is_string()),
        (201, true),
        "{}",
        named.text()
    );
    assert_eq!(sandbox.get("/files/%ff%0aname%20%22").text(), "odd");
    assert_eq!(sandbox.delete("/files/%ff%0aname%20%22").status, 204);
    assert_eq!(sandbox.get("/files/%ff%0aname%20%22").status, 404);
}

pub(crate) fn parts_of_a_file_are_had_by_range(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    assert_eq!(sandbox.put("ten", b"0123456789").status, 201);
    let ask = |method: &str, headers: &[(&str, &str)]| {
        place.server.ask(
            &place.key,
            method,
            &sandbox.path("/files/ten"),
            headers,
            &Value::Null,
        )
    };
    let part = ask("GET", &[("range", "bytes=2-4")]);
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    let tag = part.header("etag").expect("a version").to_owned();
    assert_eq!(
        ask("GET", &[("range", "bytes=-3"), ("if-range", &tag)]).text(),
        "789"
    );
    let nowhere = ask("GET", &[("range", "bytes=10-")]);
    assert_eq!(
        (nowhere.status, nowhere.header("content-range")),
        (416, Some("bytes */10"))
    );
    assert_eq!(ask("GET", &[("if-none-match", &tag)]).status, 304);
    let request = place.server.request(
        &place.key,
        "HEAD",
        &sandbox.path("/files/ten"),
        &[],
        &Value::Null,
    );
    let head = place
        .server
        .client
        .open(&request)
        .head()
        .expect("an answer");
    assert!(
        head.0 == 200
            && head
                .1
                .contains(&("content-length".to_owned(), "10".to_owned())),
        "{head:?}"
    );
    sandbox.said("echo other > ten");
    assert_eq!(
        ask("GET", &[("range", "bytes=0-1"), ("if-range", &tag)]).text(),
        "other\n",
        "another version"
    );
    let ranged = [("content-range", "bytes 0-1/2")];
    assert_eq!(
        place
            .server
            .ask(
                &place.key,
                "PUT",
                &sandbox.path("/files/ten"),
                &ranged,
                &json!(1)
            )
            .status,
        400
    );
}

pub(crate) fn a_folder_of_a_thousand_is_listed(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    sandbox.said("mkdir -p many/sub; i=0; while [ $i -lt 1000 ]; do : > many/$(printf %04d $i); i=$((i+1)); done; : > many/sub/x; ln -s /etc many/zlink");
    let listed = sandbox.get("/files/many/").json();
    let names_of = names(&listed);
    assert_eq!(
        (names_of.len(), &listed["truncated"]),
        (1002, &json!(false))
    );
    assert_eq!(
        (names_of[0].as_str(), names_of[999].as_str()),
        ("0000", "0999")
    );
    let last = &listed["files"][1001];
    assert_eq!(
        (&last["kind"], &last["target"]),
        (&json!("link"), &json!("/etc"))
    );
    assert_eq!(
        names(&sandbox.get("/files/many?after=0997").json()),
        ["0998", "0999", "sub", "zlink"]
    );
    let below = names(&sandbox.get("/files?recursive=true").json());
    assert!(
        below.contains(&"many/sub/x".to_owned())
            && !below.iter().any(|name| name.starts_with("many/zlink/"))
    );
    assert_eq!(
        sandbox.get("/files/many/0001/").status,
        409,
        "a file is no folder"
    );
}

pub(crate) fn folders_are_made_and_removed(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    assert_eq!(
        sandbox.send("PUT", "/files/a/?directory=true", b"").status,
        201
    );
    assert_eq!(
        sandbox.send("PUT", "/files/a/?directory=true", b"").status,
        200,
        "it is there"
    );
    assert_eq!(sandbox.send("POST", "/files/b/c/d", b"").status, 404);
    assert_eq!(
        sandbox.send("POST", "/files/b/c/d?mkdir=true", b"").status,
        201
    );
    assert_eq!(
        sandbox.said("touch b/c/d/e && echo b/c/d/*"),
        "b/c/d/e\n",
        "programs can use them"
    );
    assert_eq!(
        sandbox.put("b/c", b"x").status,
        409,
        "a folder has that name"
    );
    assert_eq!(sandbox.put("b/c/", b"x").status, 400, "a file has no slash");
    assert_eq!(sandbox.delete("/files/b").status, 409, "it is not empty");
    assert_eq!(sandbox.delete("/files/b?recursive=true").status, 204);
    assert_eq!(sandbox.delete("/files/b?recursive=true").status, 404);
    assert_eq!(sandbox.said("ls"), "a\n");
}

pub(crate) fn an_upload_that_is_cut_leaves_nothing(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    assert_eq!(sandbox.put("kept", b"before").status, 201);
    let everything = "find . | sort | grep -v '^./.home'";
    let before = sandbox.said(everything);
    for sent in [0, 1, 100_000, 1_500_000] {
        let mut stream = place
            .server
            .client
            .open(&sandbox.head("PUT", "/files/kept", 2_000_000));
        stream.send(&vec![b'x'; sent]);
        drop(stream);
        let mut stream = place
            .server
            .client
            .open(&sandbox.head("PUT", "/files/new", 2_000_000));
        stream.send(&vec![b'x'; sent]);
        drop(stream);
    }
    // One that is whole is there only behind those that were cut.
    assert_eq!(sandbox.put("last", b"").status, 201);
    place.server.until("nothing but what was there", || {
        sandbox.said(everything) == format!("{before}./last\n")
    });
    assert_eq!(sandbox.said("cat kept"), "before");
}

pub(crate) fn a_full_workspace_says_so(place: &Place) {
    let sandbox = place.sandbox(json!({ "disk": "16M" }));
    let large = sandbox.put("large", &vec![0; 17 << 20]);
    assert_eq!(
        (large.status, &large.json()["code"]),
        (413, &json!("quota_exceeded")),
        "{}",
        large.text()
    );
    let put = |number: usize| sandbox.put(&format!("f{number}"), &vec![0; 1 << 20]);
    // Containers have a part of it for each of their folders.
    let (full, answer) = (0..20)
        .map(|number| (number, put(number)))
        .find(|(_, put)| put.status != 201)
        .expect("an end");
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (507, &json!("quota_exceeded")),
        "{}",
        answer.text()
    );
    assert!(full > 0, "something fits");
    assert_eq!(
        sandbox.get(&format!("/files/f{full}")).status,
        404,
        "nothing came of it"
    );
    assert_eq!(sandbox.delete("/files/f0").status, 204);
    assert_eq!(put(full).status, 201, "there is room again");
}
