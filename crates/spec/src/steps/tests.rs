use super::*;
use crate::Json;
use std::time::Duration;

const PLAIN: &str = r#"{"protocol_version":"1.0","job_id":"j-1","task_id":"t-1",
    "constraints":{"max_runtime_seconds":10,"max_output_bytes":1000},
    "steps":[{"type":"run_command","args":{"argv":["true"]}}]}"#;

fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap()
}

fn read(text: &str) -> Result<StepJob, BadJob> {
    StepJob::read(&json(text), None)
}

fn field(text: &str) -> String {
    read(text).unwrap_err().field
}

#[test]
fn a_plain_job_is_taken_and_its_steps_are_carried_out_directly() {
    let job = read(PLAIN).unwrap();
    assert_eq!((job.mode, job.steps.len()), (ExecutionMode::DirectSteps, 1));
    assert!(!job.constraints.ext_net_allowed);
    assert_eq!(job.constraints.max_runtime, Duration::from_secs(10));
    for version in ["1", "1.0", "1.17"] {
        assert!(
            read(&PLAIN.replace("\"1.0\"", &format!("{version:?}"))).is_ok(),
            "{version}"
        );
    }
    let agent = StepJob::read(&json(PLAIN), Some(ExecutionMode::AgentInference)).unwrap();
    assert_eq!(
        agent.mode,
        ExecutionMode::AgentInference,
        "whoever starts it decides"
    );
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    for version in ["99.0", "2.0", "10.0", "1.", "1.x", "", "1.0 ", "v1.0"] {
        assert_eq!(
            field(&PLAIN.replace("\"1.0\"", &format!("{version:?}"))),
            "protocol_version",
            "{version}"
        );
    }
    for (from, to, named) in [
        ("\"j-1\"", "\"\"", "job_id"),
        ("\"j-1\"", "\"../x\"", "job_id"),
        ("\"j-1\"", "7", "job_id"),
        ("\"job_id\":\"j-1\",", "", "job_id"),
        ("\"t-1\"", "\"a/b\"", "task_id"),
        ("\"task_id\"", "\"task_ident\"", "task_ident"),
        (
            "\"max_runtime_seconds\":10",
            "\"max_runtime_seconds\":0",
            "constraints.max_runtime_seconds",
        ),
        (
            "\"max_runtime_seconds\":10",
            "\"max_runtime_seconds\":99999999",
            "constraints.max_runtime_seconds",
        ),
        (
            "\"max_runtime_seconds\":10,",
            "",
            "constraints.max_runtime_seconds",
        ),
        (
            "\"max_output_bytes\":1000",
            "\"max_output_bytes\":-1",
            "constraints.max_output_bytes",
        ),
        (
            "\"max_output_bytes\":1000",
            "\"max_output_bytes\":1000,\"x\":1",
            "constraints.x",
        ),
        (
            "\"max_output_bytes\":1000",
            "\"max_output_bytes\":1000,\"ext_net_allowed\":1",
            "constraints.ext_net_allowed",
        ),
        ("run_command", "rm", "steps[0].type"),
        ("[\"true\"]", "[]", "steps[0].args.argv"),
        ("[\"true\"]", "[\"\"]", "steps[0].args.argv"),
        ("[\"true\"]", "[\"a\\u0000\"]", "steps[0].args.argv"),
        ("[\"true\"]", "[1]", "steps[0].args.argv[0]"),
        (
            "[\"true\"]",
            "[\"true\"],\"shell\":true",
            "steps[0].args.shell",
        ),
        (
            "\"args\":{\"argv\":[\"true\"]}",
            "\"args\":{\"argv\":[\"true\"]},\"on_failure\":\"retry\"",
            "steps[0].on_failure",
        ),
    ] {
        let text = PLAIN.replace(from, to);
        assert_ne!(text, PLAIN, "{from}");
        assert_eq!(field(&text), named, "{to}");
    }
    assert_eq!(
        StepJob::read(&Json::List(Vec::new()), None)
            .unwrap_err()
            .field,
        ""
    );
}

#[test]
fn each_type_of_step_has_its_own_arguments() {
    let step = |step: &str| {
        read(&PLAIN.replace(r#"{"type":"run_command","args":{"argv":["true"]}}"#, step))
            .map(|job| job.steps.into_iter().next().unwrap())
    };
    let path = Some("src".to_owned());
    for (text, action) in [
        (
            r#"{"type":"write_file","args":{"path":"a","content":""}}"#,
            StepAction::WriteFile {
                path: "a".into(),
                content: String::new(),
            },
        ),
        (
            r#"{"type":"read_file","args":{"path":"a","start_line":2,"end_line":2}}"#,
            StepAction::ReadFile {
                path: "a".into(),
                start_line: Some(2),
                end_line: Some(2),
            },
        ),
        (
            r#"{"type":"apply_unified_diff","args":{"diff":"x"}}"#,
            StepAction::ApplyUnifiedDiff { diff: "x".into() },
        ),
        (
            r#"{"type":"list_tree"}"#,
            StepAction::ListTree { path: None },
        ),
        (
            r#"{"type":"search_files","args":{"pattern":"x","path":"src","include":"*.rs"}}"#,
            StepAction::SearchFiles {
                pattern: "x".into(),
                path,
                include: Some("*.rs".into()),
            },
        ),
    ] {
        assert_eq!(
            step(text).unwrap(),
            Step {
                action,
                continues_on_failure: false
            }
        );
    }
    assert!(
        step(r#"{"type":"list_tree","on_failure":"continue"}"#)
            .unwrap()
            .continues_on_failure
    );
    for (text, named) in [
        (
            r#"{"type":"write_file","args":{"path":"a"}}"#,
            "steps[0].args.content",
        ),
        (
            r#"{"type":"write_file","args":{"path":"","content":""}}"#,
            "steps[0].args.path",
        ),
        (
            r#"{"type":"read_file","args":{"path":"a","start_line":0}}"#,
            "steps[0].args.start_line",
        ),
        (
            r#"{"type":"read_file","args":{"path":"a","start_line":3,"end_line":2}}"#,
            "steps[0].args.end_line",
        ),
        (r#"{"type":"apply_unified_diff"}"#, "steps[0].args.diff"),
        (r#"{"type":"search_files"}"#, "steps[0].args.pattern"),
        (r#"{"args":{}}"#, "steps[0].type"),
        (r#""ls""#, "steps[0]"),
    ] {
        assert_eq!(step(text).unwrap_err().field, named, "{text}");
    }
}

#[test]
fn a_job_without_steps_is_an_agents() {
    let none = PLAIN.replace(r#"{"type":"run_command","args":{"argv":["true"]}}"#, "");
    assert_eq!(read(&none).unwrap().mode, ExecutionMode::AgentInference);
    let direct = StepJob::read(&json(&none), Some(ExecutionMode::DirectSteps));
    assert_eq!(
        direct.unwrap_err().field,
        "steps",
        "nothing to do is no success"
    );
    let many = vec![r#"{"type":"list_tree"}"#; MAX_STEPS + 1].join(",");
    assert_eq!(
        field(&PLAIN.replace(r#"{"type":"run_command","args":{"argv":["true"]}}"#, &many)),
        "steps"
    );
}

#[test]
fn a_persona_a_context_and_models_are_taken() {
    let rich = PLAIN.replace(
        "\"task_id\":\"t-1\",",
        r#""persona":{"title":"Reviewer","description":"careful"},"persona_id":"p-1","execution_mode":"agent_inference",
        "inference":{"allowed_models":["qwen*"],"source":"worker"},
        "context":{"task_context":"do it","requirements":["a"],"acceptance_criteria":["b"],"preferences":{"x":1},
        "skill_ids":["s"],"skills":{"s":"text"},"baseline_context":"","project_context":null},"#,
    );
    let job = read(&rich).unwrap();
    assert_eq!(
        job.context.persona,
        Some(("Reviewer".to_owned(), "careful".to_owned()))
    );
    assert_eq!(
        (job.mode, job.inference.source),
        (ExecutionMode::AgentInference, Some(InferenceSource::Worker))
    );
    assert_eq!(job.context.requirements, ["a"]);
    for (from, to, named) in [
        ("\"worker\"", "\"cloud\"", "inference.source"),
        ("qwen*", "a b", "inference.allowed_models"),
        ("\"skill_ids\"", "\"skillz\"", "context.skillz"),
        ("\"title\"", "\"name\"", "persona.name"),
        ("agent_inference", "agent", "execution_mode"),
    ] {
        assert_eq!(field(&rich.replace(from, to)), named);
    }
}

#[test]
fn a_result_is_believed_only_if_it_is_whole_and_of_this_job() {
    let job = read(PLAIN).unwrap();
    let good = r#"{"protocol_version":"1.0","job_id":"j-1","status":"failure","failure_code":"mine","artifacts":[{"path":"a"}],
        "steps":[{"index":0,"type":"run_command","status":"failure","exit_code":-1,"output":"x","error":"y"}]}"#;
    let result = StepJobResult::read(&json(good), &job).unwrap();
    assert_eq!(
        (result.status, result.steps[0].exit_code),
        (StepStatus::Failure, Some(-1))
    );
    for (from, to, named) in [
        ("\"j-1\"", "\"j-2\"", "job_id"),
        (
            "\"status\":\"failure\",\"failure_code\"",
            "\"status\":\"done\",\"failure_code\"",
            "status",
        ),
        (
            "\"status\":\"failure\",\"failure_code\"",
            "\"status\":\"success\",\"failure_code\"",
            "failure_code",
        ),
        ("\"index\":0", "\"index\":\"0\"", "steps[0].index"),
        (
            "\"exit_code\":-1",
            "\"exit_code\":99999999999",
            "steps[0].exit_code",
        ),
        ("{\"path\":\"a\"}", "{}", "artifacts[0].path"),
        ("\"1.0\"", "\"3.0\"", "protocol_version"),
    ] {
        assert_eq!(
            StepJobResult::read(&json(&good.replace(from, to)), &job)
                .unwrap_err()
                .field,
            named,
            "{to}"
        );
    }
}
