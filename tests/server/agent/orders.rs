//! The agent before a provider that answers as ordered: its two contracts, its tools, its bounds.

use agent::{AgentFixture, KEY, task};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink, time::Instant};

fn outputs(result: &Value) -> Vec<&str> {
    let calls = result["tool_calls"].as_array().expect("a list of calls");
    calls
        .iter()
        .map(|call| call["output"].as_str().expect("a text"))
        .collect()
}

#[test]
fn a_task_is_carried_out_with_tool_calls_and_told_in_one_object() {
    let desk = AgentFixture::new();
    let write = json!({ "path": "made/new.txt", "content": "one\ntwo\n" });
    desk.world
        .write("ws/some/a.txt", "")
        .write("ws/some/sub/b.txt", "");
    desk.says(
        "",
        &[
            ("list_files", json!({ "path": "some" })),
            ("read_file", json!({ "path": "start.txt" })),
        ],
    );
    desk.says(
        "",
        &[("write_file", write.clone()), ("no_such_tool", json!({}))],
    );
    desk.says(
        "",
        &[(
            "shell",
            json!({ "command": "wc -l < made/new.txt; exit 3" }),
        )],
    )
    .says("all done", &[]);
    let result = desk.task(&task("do it"), &[]);
    let unknown =
        "error: there is no such tool; the tools are shell, read_file, write_file, list_files";
    let call = |tool: &str, input: Value, output: &str| json!({ "tool": tool, "input": input, "output": output });
    let calls = [
        call("list_files", json!({ "path": "some" }), "a.txt\nsub/"),
        call("read_file", json!({ "path": "start.txt" }), "hello\n"),
        call("write_file", write, "wrote 8 characters to made/new.txt"),
        call("no_such_tool", json!({}), unknown),
        call(
            "shell",
            json!({ "command": "wc -l < made/new.txt; exit 3" }),
            "2\n\n[exit status 3]",
        ),
    ];
    let wanted = json!({ "task_id": "t-1", "status": "completed", "result": "all done", "error": null,
        "tool_calls": calls, "tokens_used": { "input": 40, "output": 8 } });
    assert_eq!(result, wanted);
    assert_eq!(
        fs::read_to_string(desk.world.here("ws/made/new.txt")).unwrap(),
        "one\ntwo\n"
    );
    let asked = desk.asked();
    let last = asked[3]["messages"].as_array().unwrap();
    let roles: Vec<_> = last
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    let turn = ["assistant", "tool", "tool"];
    assert_eq!(
        roles,
        [&["user"], &turn[..], &turn[..], &["assistant", "tool"]].concat()
    );
    assert_eq!(
        last[6]["content"], unknown,
        "what went wrong goes back to the model"
    );
    assert_eq!(asked[0]["tools"].as_array().unwrap().len(), 4);
}

#[test]
fn the_other_dialect_is_spoken_as_well() {
    let desk = AgentFixture::new();
    let usage = json!({ "input_tokens": 5, "output_tokens": 1 });
    let use_tool = json!({ "type": "tool_use", "id": "u1", "name": "read_file", "input": { "path": "start.txt" } });
    desk.answers(
        200,
        json!({ "content": [{ "type": "text", "text": "I look." }, use_tool], "usage": usage })
            .to_string(),
    );
    desk.answers(
        200,
        json!({ "content": [{ "type": "text", "text": "seen" }], "usage": usage }).to_string(),
    );
    let asked = json!({ "task_id": "t-1", "prompt": "look", "model": "claude-x", "system_prompt": "be brief" });
    let result = desk.task(&asked, &[]);
    assert_eq!(
        (&result["result"], outputs(&result)),
        (&"seen".into(), vec!["hello\n"])
    );
    assert_eq!(result["tokens_used"], json!({ "input": 10, "output": 2 }));
    let calls = desk.provider.served().calls;
    assert!(
        calls
            .iter()
            .all(|call| call.path == "/v1/messages" && call.keys == [KEY]),
        "{calls:#?}"
    );
    let second = &desk.asked()[1];
    assert_eq!(second["system"], "be brief");
    let seen = json!([{ "type": "tool_result", "tool_use_id": "u1", "content": "hello\n" }]);
    assert_eq!(
        second["messages"][2],
        json!({ "role": "user", "content": seen })
    );
}

#[test]
fn a_model_without_tool_calls_acts_by_json() {
    let desk = AgentFixture::new();
    for action in [
        "{\"action\":\"read_file\",\"path\":\"start.txt\"}",
        "not json",
        "{\"action\":\"fly\"}",
    ] {
        desk.says(action, &[]);
    }
    desk.says("{\"action\":\"done\",\"answer\":\"it says hello\"}", &[]);
    let result = desk.task(
        &task("what does it say?"),
        &[("AIRLOCK_AGENT_ACTIONS", "json")],
    );
    assert_eq!(
        (&result["status"], &result["result"]),
        (&"completed".into(), &"it says hello".into())
    );
    let seen = outputs(&result);
    assert_eq!(seen[0], "hello\n");
    assert!(
        seen[1].starts_with("error: there is no such tool") && seen[2] == seen[1],
        "{seen:?}"
    );
    let format = desk.asked()[0]["response_format"].clone();
    let forms = format["json_schema"]["schema"]["anyOf"]
        .as_array()
        .expect("one form an action");
    let actions: Vec<_> = forms
        .iter()
        .map(|form| form["properties"]["action"]["const"].clone())
        .collect();
    assert_eq!(
        actions,
        ["shell", "read_file", "write_file", "list_files", "done"]
    );
}

#[test]
fn a_task_narrows_tools_and_the_agent_holds_the_model_to_it() {
    let desk = AgentFixture::new();
    let path = |path: &str| json!({ "path": path });
    desk.says(
        "",
        &[
            ("read_file", path("start.txt")),
            ("read_file", path("other.txt")),
            ("shell", json!({ "command": "id" })),
        ],
    );
    desk.says("done", &[]);
    let mut narrow = task("read");
    narrow["tools"] = json!([{ "name": "read_file", "arguments": { "path": ["start.txt"] } }]);
    let result = desk.task(&narrow, &[]);
    let wanted = [
        "hello\n",
        "error: `path` must be one of the listed values",
        "error: there is no such tool; the tools are read_file",
    ];
    assert_eq!(outputs(&result), wanted);
    let offered = &desk.asked()[0]["tools"];
    assert_eq!(offered.as_array().unwrap().len(), 1);
    assert_eq!(
        offered[0]["function"]["parameters"]["properties"]["path"]["enum"],
        json!(["start.txt"])
    );
}

#[test]
fn over_the_limit_is_failed_and_what_was_done_is_told() {
    let desk = AgentFixture::new();
    for _ in 0..3 {
        desk.says("", &[("list_files", json!({ "path": "." }))]);
    }
    let mut short = task("look");
    short["max_iterations"] = 3.into();
    let result = desk.task(&short, &[]);
    assert_eq!(
        (&result["status"], &result["error"]),
        (
            &"failed".into(),
            &"limit_error: no answer after 3 iterations".into()
        )
    );
    assert_eq!(outputs(&result).len(), 3);
    assert_eq!(desk.asked().len(), 3);
}

#[test]
fn a_bad_task_is_rejected_before_anything_is_asked() {
    let desk = AgentFixture::new();
    let field = |name: &str, value: Value| {
        let mut bad = task("p");
        bad[name] = value;
        bad
    };
    let cases = [
        (json!([]), "input_error: the task is not a JSON object"),
        (
            json!({ "prompt": "p", "model": "m" }),
            "input_error: the task needs a task_id of at most 128 characters, and a prompt",
        ),
        (
            field("task_id", "i".repeat(129).into()),
            "input_error: the task needs a task_id of at most 128 characters, and a prompt",
        ),
        (
            field("prompt", "".into()),
            "input_error: the task needs a task_id of at most 128 characters, and a prompt",
        ),
        (
            field("shell", true.into()),
            "input_error: the task has a field it cannot have: 'shell'",
        ),
        (
            field("max_iterations", (-1).into()),
            "input_error: max_iterations is at most 100, which is also what 0 means",
        ),
        (
            field("context", json!([{ "role": "tool", "content": "x" }])),
            "input_error: context is not a list of at most 1000 messages with role and content",
        ),
        (
            field(
                "tools",
                json!([{ "name": "x", "transport": "http", "address": "a" }]),
            ),
            "input_error: tools is a list of {name, arguments?} with a name of shell, read_file, write_file, list_files",
        ),
        (
            field("model", Value::Null),
            "config_error: no model is named: by the task, AIRLOCK_AGENT_MODEL or COGNI_MODEL",
        ),
    ];
    for (bad, error) in cases {
        let result = desk.task(&bad, &[]);
        assert_eq!(
            (&result["status"], &result["error"]),
            (&"rejected".into(), &error.into())
        );
    }
    assert_eq!(desk.asked().len(), 0);
}

#[test]
fn an_envelope_answers_messages_and_names_what_failed() {
    let desk = AgentFixture::new();
    let model = [("COGNI_MODEL", "m")];
    let ask = |variables: &[(&str, &str)]| {
        let answer = desk.run("envelope", variables);
        let result = answer.json();
        assert_eq!(result["error"], Value::Null, "{}", result["stderr"]);
        let output = result["output"].clone();
        assert_eq!(
            answer.status,
            Some(i32::from(!output["meta"]["error"].is_null()))
        );
        (output["payloads"].clone(), output["meta"]["error"].clone())
    };
    let (payloads, error) = ask(&model);
    assert_eq!(
        (payloads, &error["code"]),
        (json!([]), &"input_error".into()),
        "{error}"
    );
    desk.world.write(
        "ws/.cogni/messages.json",
        r#"[{"role":"system","content":"s"},{"role":"user","content":"hi"}]"#,
    );
    let (_, error) = ask(&[]);
    assert_eq!(
        error,
        json!({ "code": "config_error", "message": "COGNI_MODEL is not set" })
    );
    desk.answers(418, "x".repeat(2000));
    let (_, error) = ask(&model);
    assert_eq!(
        error,
        json!({ "code": "llm_error", "message": format!("HTTP 418: {}", "x".repeat(500)) })
    );
    desk.says("hello back", &[]);
    assert_eq!(
        ask(&model),
        (json!([{ "text": "hello back" }]), Value::Null)
    );
    let call = desk.provider.served().calls.pop().expect("the last call");
    assert_eq!(
        (call.path.as_str(), call.model.as_str(), &call.keys[..]),
        ("/v1/chat/completions", "m", &[KEY.to_owned()][..])
    );
}

#[test]
fn no_path_leads_out_of_the_workspace() {
    let desk = AgentFixture::new();
    let outside = desk.world.here("outside.txt");
    desk.world
        .write("outside.txt", "secret\n")
        .write("ws/folder/in.txt", "inside\n");
    for (name, target) in [
        ("link", "/etc/passwd"),
        ("up", ".."),
        ("here", "folder"),
        ("made", "/tmp"),
    ] {
        symlink(target, desk.world.here("ws").join(name)).expect("a link");
    }
    let read = |path: &str| ("read_file", json!({ "path": path }));
    let write = |path: &str| ("write_file", json!({ "path": path, "content": "x" }));
    let bad = [
        read("link"),
        read("../outside.txt"),
        read("/etc/passwd"),
        read("up/outside.txt"),
        read("here/in.txt"),
        read("folder/../../outside.txt"),
        read("."),
        read("\0"),
        write("link"),
        write("up/outside.txt"),
        write("made/x"),
        ("list_files", json!({ "path": "up" })),
        ("list_files", json!({ "path": "/" })),
    ];
    desk.says("", &bad);
    desk.says(
        "",
        &[
            read("folder/in.txt"),
            read("/workspace/folder/./in.txt"),
            write("folder/out.txt"),
        ],
    )
    .says("tried", &[]);
    let result = desk.task(&task("escape"), &[]);
    let seen = outputs(&result);
    let (refused, taken) = seen.split_at(bad.len());
    for (output, call) in refused.iter().zip(&bad) {
        assert!(output.starts_with("error: "), "{call:?}: {output}");
    }
    assert_eq!(
        taken,
        [
            "inside\n",
            "inside\n",
            "wrote 1 characters to folder/out.txt"
        ]
    );
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret\n");
}

#[test]
fn what_is_cut_or_stopped_says_so_and_holds_nobody_up() {
    let desk = AgentFixture::new();
    desk.world.write("ws/long.txt", &"y".repeat(100_000));
    let shell = |command: &str| ("shell", json!({ "command": command }));
    desk.says(
        "",
        &[
            ("read_file", json!({ "path": "long.txt" })),
            shell("cat long.txt"),
            shell("echo begun; sleep 600"),
            shell("sleep 600 & echo left; exit 0"),
            shell("mkfifo pipe; echo made"),
            ("read_file", json!({ "path": "pipe" })),
        ],
    );
    desk.says("done", &[]);
    let began = Instant::now();
    let result = desk.task(&task("flood"), &[("AIRLOCK_AGENT_SHELL_SECONDS", "2")]);
    assert!(
        began.elapsed().as_secs() < 60,
        "nothing waits for what does not end"
    );
    let seen: Vec<_> = desk.asked()[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .skip(2)
        .map(|m| m["content"].as_str().unwrap().to_owned())
        .collect();
    assert!(seen[0].ends_with("[truncated: the file has 100000 bytes]") && seen[0].len() < 40_000);
    assert!(
        seen[1].ends_with("[truncated: 100000 bytes in all]\n[exit status 0]")
            && seen[1].len() < 40_000
    );
    assert_eq!(seen[2], "begun\n\n[stopped: its time was up]");
    assert_eq!(seen[3], "left\n\n[exit status 0]");
    assert_eq!(seen[5], "error: it is not a regular file");
    assert!(
        result.to_string().len() < 100_000,
        "the result is shorter than what the model saw"
    );
}

#[test]
fn a_provider_that_lies_floods_or_hangs_is_an_error_and_not_a_crash() {
    let desk = AgentFixture::new();
    let (deep, long) = ("[".repeat(100_000), "x".repeat(9 << 20));
    let many = json!({ "id": "c", "type": "function", "function": { "name": "shell", "arguments": "{}" } });
    let calls =
        json!({ "choices": [{ "message": { "content": "", "tool_calls": vec![many; 17] } }] });
    for (body, words) in [
        ("", "the model's answer is not JSON"),
        ("[]", "another shape than its dialect"),
        ("{\"choices\":[]}", "another shape than its dialect"),
        (
            "{\"choices\":[{\"message\":{\"tool_calls\":[7]}}]}",
            "another shape than its dialect",
        ),
        (deep.as_str(), "the model's answer is not JSON"),
        (&calls.to_string(), "more than 16 calls at once"),
        (&long, "too long or too slow"),
    ] {
        desk.answers(200, body);
        let result = desk.task(&task("p"), &[]);
        let error = result["error"].as_str().expect("an error");
        assert!(
            error.starts_with("llm_error: ") && error.contains(words),
            "{error}"
        );
    }
    desk.provider.next(provider::Script {
        fault: Some(provider::Fault::Silence),
        ..Default::default()
    });
    let result = desk.task(&task("p"), &[("AIRLOCK_AGENT_CALL_SECONDS", "1")]);
    assert_eq!(
        result["error"],
        "llm_error: no answer from the model: timed out"
    );
}

#[test]
fn odd_text_from_a_model_still_makes_one_good_object() {
    let desk = AgentFixture::new();
    desk.answers(
        200,
        r#"{"choices":[{"message":{"content":"a\ud800b\u0000c\u001b[2J"}}]}"#,
    );
    let result = desk.task(&task("p"), &[]);
    assert_eq!(result["result"], "a?b\u{0}c\u{1b}[2J");
}

#[test]
fn an_answer_that_grows_when_it_is_written_stays_within_the_bound_of_the_object() {
    let desk = AgentFixture::new();
    // Within the bound of an answer in characters, and six bytes each when they are escaped.
    desk.says(&"\u{1}".repeat(200 << 10), &[]);
    let result = desk.task(&task("go on"), &[]);
    assert_eq!(
        (&result["task_id"], &result["status"]),
        (&"t-1".into(), &"completed".into())
    );
    let said = result["result"].as_str().expect("a text");
    assert!(
        said.starts_with('\u{1}') && said.ends_with("more characters]"),
        "{}",
        said.len()
    );
    desk.says(&"x".repeat(200 << 10), &[]);
    assert_eq!(
        desk.task(&task("go on"), &[])["result"]
            .as_str()
            .map(str::len),
        Some(200 << 10)
    );
}
