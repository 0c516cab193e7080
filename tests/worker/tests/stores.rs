//! Stores that are shared over a network: a real S3 server, for artifacts and for tools that are fetched from it.

use artifacts_tests::Moto;
use serde_json::{Value, json};
use std::{fs, process::Command};
use worker_tests::{Ask, Mesh, Variables, until};

/// Does as an agent or a platform does, with the client that they use.
const BOTO: &str = r#"
import boto3, json, sys
endpoint, order = sys.argv[1], json.loads(sys.argv[2])
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
if order["do"] == "make":
    s3.create_bucket(Bucket=order["bucket"])
elif order["do"] == "put":
    s3.put_object(Bucket=order["bucket"], Key=order["key"], Body=order["text"].encode(), ContentType="text/plain")
elif order["do"] == "delete":
    s3.delete_object(Bucket=order["bucket"], Key=order["key"])
elif order["do"] == "list":
    found = s3.list_objects_v2(Bucket=order["bucket"]).get("Contents", [])
    told = {}
    for one in found:
        whole = s3.get_object(Bucket=order["bucket"], Key=one["Key"])
        told[one["Key"]] = {"type": whole["ContentType"], "about": whole["Metadata"], "text": whole["Body"].read().decode()}
    print(json.dumps(told))
"#;

fn boto(moto: &Moto, order: Value) -> Value {
    let python = cli::repository().join("target/moto/bin/python");
    let done = Command::new(python)
        .args(["-c", BOTO, &moto.endpoint(), &order.to_string()])
        .output();
    let done = done.expect("Python starts");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    serde_json::from_slice(&done.stdout).unwrap_or(Value::Null)
}

fn credentials(set: &mut Variables, moto: &Moto) {
    for (name, value) in [
        ("S3_ENDPOINT_URL", moto.endpoint().as_str()),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
    ] {
        set.insert(name.to_owned(), value.to_owned());
    }
}

#[test]
fn artifacts_are_kept_and_found_in_a_bucket_as_agents_do() {
    let Some(moto) = Moto::running("artifacts of tools are shared with agents") else {
        return;
    };
    boto(moto, json!({"do": "make", "bucket": "shelf"}));
    boto(
        moto,
        json!({"do": "put", "bucket": "shelf", "key": "airlock/test/ana/web-77/cat.txt/0", "text": "from an agent"}),
    );
    let mesh = Mesh::new("Tester", |set| {
        credentials(set, moto);
        set.insert("ARTIFACT_SERVICE_TYPE".to_owned(), "s3".to_owned());
        set.insert("ARTIFACT_S3_BUCKET".to_owned(), "shelf".to_owned());
    });
    let read = Ask::new("reads", json!({"source": "cat.txt"})).reference("source", "cat.txt", None);
    assert_eq!(
        mesh.agent.call(&read).tool_result()["text"],
        "from an agent"
    );
    for version in 0..2 {
        let made = mesh
            .agent
            .call(&Ask::new("writes", json!({"files": {"a.json": "{}"}})));
        assert_eq!(
            made.created(),
            [(
                "a.json".to_owned(),
                version,
                "application/json".to_owned(),
                2
            )]
        );
    }
    let all = boto(moto, json!({"do": "list", "bucket": "shelf"}));
    let kept = &all["airlock/test/ana/web-77/a.json/1"];
    assert_eq!(
        (&kept["type"], &kept["text"]),
        (&json!("application/json"), &json!("{}")),
        "{all}"
    );
    assert_eq!(
        (&kept["about"]["user_id"], &kept["about"]["version"]),
        (&json!("ana"), &json!("1")),
        "{all}"
    );
    let gone = Ask::new("reads", json!({"source": "no.txt"})).reference("source", "no.txt", None);
    assert_eq!(mesh.agent.call(&gone).error().0, "ARTIFACT_ERROR");
}

#[test]
fn tools_are_fetched_from_a_bucket_and_no_key_leads_out_of_their_folder() {
    let Some(moto) = Moto::running("tools are fetched from object storage") else {
        return;
    };
    boto(moto, json!({"do": "make", "bucket": "tools"}));
    let put = |key: &str, text: &str| {
        boto(
            moto,
            json!({"do": "put", "bucket": "tools", "key": format!("airlock/test/str-runtime/{key}"), "text": text}),
        )
    };
    put(
        "python/synced.py",
        "def told():\n    return {'text': 'from a bucket'}\n",
    );
    put(
        "manifest.yaml",
        "version: 1\ntools:\n  told: {module: synced, function: told}\n",
    );
    let mesh = Mesh::new("Tester", |set| {
        credentials(set, moto);
        let tools = format!("{}/synced", set["HOME"].trim_end_matches('/'));
        fs::create_dir_all(&tools).expect("a folder");
        set.remove("MANIFEST_PATH");
        set.remove("TOOLS_PYTHON_DIR");
        set.insert("SAM_TOOLS_DIR".to_owned(), tools);
        set.insert("TOOL_SYNC_ENABLED".to_owned(), "yes".to_owned());
        set.insert("TOOL_SYNC_INTERVAL".to_owned(), "1".to_owned());
        set.insert("OBJECT_STORAGE_TYPE".to_owned(), "s3".to_owned());
        set.insert("STR_S3_BUCKET_NAME".to_owned(), "tools".to_owned());
    });
    mesh.agent.wait("init", "told");
    assert_eq!(
        mesh.agent.call(&Ask::new("told", json!({}))).tool_result()["text"],
        "from a bucket"
    );
    // Such keys are gone around, and named.
    let hostile = ["../../../escaped.txt", "/etc/escaped.txt"];
    hostile.iter().for_each(|key| _ = put(key, "escaped"));
    mesh.sam.await_log("some keys cannot be files here");
    assert_eq!(
        mesh.agent.call(&Ask::new("told", json!({}))).tool_result()["text"],
        "from a bucket"
    );
    let escaped = [
        "escaped.txt",
        "../escaped.txt",
        "../../escaped.txt",
        "synced/etc/escaped.txt",
    ];
    assert!(escaped.iter().all(|name| !mesh.folder.at(name).exists()));
    assert!(!std::path::Path::new("/etc/escaped.txt").exists());
    put(
        "manifest.yaml",
        "version: 1\ntools:\n  told: {module: synced, function: told}\n  more: {module: synced, function: told}\n",
    );
    mesh.agent.wait("init", "more");
    put(
        "python/synced.py",
        "def told():\n    return {'text': 'a newer one'}\n",
    );
    until("the new code", || {
        let answer = mesh.agent.call(&Ask::new("more", json!({})));
        (answer.tool_result()["text"] == "a newer one").then_some(())
    });
}
