//! Calls in real sandboxes.

use super::*;
use crate::{
    artifacts::{
        self,
        fake_s3::{self, FakeResponse, FakeS3},
    },
    tools::{EntryPoint, ToolLimits},
    wire::{code::MeshErrorCode as ErrorCode, request::PreloadedFile},
};
use serde_json::json;
use std::{fs, sync::atomic::Ordering, time::Instant};

/// Tools of a test, a place for the engine, and one who calls.
struct Place {
    top: PathBuf,
    caller: CallRunner,
    engine: Engine,
    store: ArtifactStore,
}

impl Place {
    fn new(name: &str, code: &str) -> Place {
        Place::with(name, code, 0)
    }

    fn with(name: &str, code: &str, parked: usize) -> Place {
        Place::keeping(name, code, parked, ArtifactStore::memory())
    }

    fn keeping(name: &str, code: &str, parked: usize, store: ArtifactStore) -> Place {
        let top = std::env::temp_dir().join(format!("airlock-call-{name}-{}", std::process::id()));
        fs::create_dir_all(top.join("tools")).unwrap();
        fs::write(top.join("tools/tool.py"), code).unwrap();
        let engine = Engine::open(engine::Settings::new(top.join("state"))).unwrap();
        let settings = CallSettings {
            python: "/usr/bin/python3".into(),
            largest_result: 100_000,
            max_warm: parked,
            max_warm_bytes: 1 << 30,
            max_prewarmed: 0,
            hidden: vec![top.clone()],
        };
        let caller = CallRunner::new(engine.clone(), store.clone(), None, settings);
        Place {
            top,
            caller,
            engine,
            store,
        }
    }

    fn tool(&self, function: &str) -> Tool {
        let what = EntryPoint::Function {
            module: "tool".to_owned(),
            function: function.to_owned(),
        };
        let code = ToolCode {
            python: Some(self.top.join("tools")),
            ..ToolCode::default()
        };
        Tool {
            name: "tool".to_owned(),
            what,
            code,
            card: Default::default(),
            profile: None,
            timeout: None,
            limits: ToolLimits::default(),
        }
    }

    fn order(&self, function: &str, args: Value) -> CallOrder {
        CallOrder {
            tool: Arc::new(self.tool(function)),
            invoke: Box::new(invoke(args)),
            time: Duration::from_secs(60),
            profile: ToolProfile::Restrictive,
        }
    }

    async fn call(&self, function: &str, args: Value) -> CallReport {
        self.carry_out(self.order(function, args)).await.0
    }

    async fn carry_out(&self, order: CallOrder) -> (CallReport, Vec<String>) {
        let (_cancel, cancelled) = watch::channel(false);
        let (statuses, mut said) = mpsc::channel(1000);
        let done = self.caller.carry_out(order, cancelled, statuses).await;
        let mut all = Vec::new();
        while let Ok(text) = said.try_recv() {
            all.push(text);
        }
        (done, all)
    }

    /// Ends everything, and looks that nothing is left.
    async fn close(self) {
        self.caller.close().await;
        assert_eq!(
            fs::read_dir(self.top.join("state/runs")).unwrap().count(),
            0,
            "no box is left"
        );
        drop(self.caller);
        self.engine.close().await;
        fs::remove_dir_all(&self.top).unwrap();
    }
}

fn invoke(args: Value) -> Invoke {
    let Value::Object(args) = args else {
        panic!("arguments are an object")
    };
    Invoke {
        id: "id".to_owned(),
        task_id: "../../escape\n/x".to_owned(),
        tool: "tool".to_owned(),
        args: args.into(),
        tool_config: json!({"key": "a secret"})
            .as_object()
            .unwrap()
            .clone()
            .into(),
        app_name: "app".to_owned(),
        user_id: "user".to_owned(),
        session_id: "session".to_owned(),
        preloaded: Default::default(),
        references: Default::default(),
        timeout: None,
        profile: None,
        user_config: None,
        reply: Default::default(),
    }
}

fn success(done: &CallReport) -> (Value, Vec<String>) {
    match &done.outcome {
        ToolCallOutcome::Success {
            result, artifacts, ..
        } => {
            let names = artifacts.iter().map(|file| file.filename.clone()).collect();
            (Value::Object(result.clone()), names)
        }
        other => panic!(
            "{other:?} {} {:?}",
            String::from_utf8_lossy(&done.stderr),
            done.notes
        ),
    }
}

fn refused(done: &CallReport) -> (ErrorCode, String) {
    match &done.outcome {
        ToolCallOutcome::Refused(refusal) => (refusal.code, refusal.message.clone()),
        other => panic!("{other:?}"),
    }
}

const TOOLS: &str = r#"
import os, sys, time, json

def echo(text): return {"said": text}
def nothing(): return None
def number(): return 7
def text(): return "hello"
def fails(): raise ValueError("broken on purpose")
def ends(): print("out"); sys.stderr.write("last words\n"); sys.stderr.flush(); os._exit(3)
def sleeps(mark):
    time.sleep(60)
def environment():
    try: first = open("/proc/1/environ").read()
    except OSError: first = ""
    return dict(os.environ, cwd=os.getcwd(), pid1=first)
def talks(count):
    pipe = os.open("/workspace/status.pipe", os.O_WRONLY | os.O_NONBLOCK)
    for number in range(count):
        os.write(pipe, json.dumps({"status": "step %d" % number}).encode() + b"\n")
    return {}
def polite():
    import signal
    pipe = os.open("/workspace/status.pipe", os.O_WRONLY | os.O_NONBLOCK)
    def leave(*_):
        os.write(pipe, b'{"status": "goodbye"}\n')
        os._exit(0)
    signal.signal(signal.SIGTERM, leave)
    os.write(pipe, b'{"status": "ready"}\n')
    time.sleep(60)
def stubborn(mark):
    import ctypes, signal
    # Its name is what can be seen of it from outside.
    signal.signal(signal.SIGTERM, lambda *_: ctypes.CDLL(None).prctl(15, mark.encode(), 0, 0, 0))
    pipe = os.open("/workspace/status.pipe", os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, b'{"status": "ready"}\n')
    while True: time.sleep(60)
def shouts():
    for number in range(20000): print("line %06d" % number)
    return {}
def limits():
    import resource
    names = ("CPU", "FSIZE", "NOFILE", "STACK", "MEMLOCK", "MSGQUEUE", "CORE")
    found = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name, 12))[0] for name in names}
    return dict(found, nice=os.nice(0))
def floods():
    pipe = os.open("/workspace/status.pipe", os.O_WRONLY)
    while True: os.write(pipe, b"nonsense\n" * 400)
def chatters():
    pipe = os.open("/workspace/status.pipe", os.O_WRONLY)
    while True: os.write(pipe, b'{"status": "again"}\n')
def large(): return {"x": "y" * 200000}
def config(tool_config): return tool_config
def tells(how):
    lines = [line for line in open("/proc/self/mountinfo").read().splitlines() if " /tools/" in line]
    if how == "raises": raise ValueError(lines)
    if how == "ends": sys.stderr.write("x" * 470 + lines[0]); sys.stderr.flush(); os._exit(3)
    return {"lines": lines}
"#;

#[tokio::test]
async fn results_of_every_kind_come_back() {
    let place = Place::new("kinds", TOOLS);
    let held = place
        .caller
        .prepare(ToolProfile::Restrictive)
        .await
        .unwrap();
    assert!(
        held.contains(&"no_network".to_owned()),
        "what holds tools in is told: {held:?}"
    );
    let held = place.caller.prepare(ToolProfile::Standard).await.unwrap();
    assert!(
        !held.is_empty() && !held.contains(&"no_network".to_owned()),
        "and nothing else: {held:?}"
    );
    assert_eq!(
        success(&place.call("echo", json!({"text": "hi"})).await).0,
        json!({"said": "hi"})
    );
    assert_eq!(
        success(&place.call("number", json!({})).await).0["text"],
        "7"
    );
    assert_eq!(
        success(&place.call("text", json!({})).await).0["text"],
        "hello"
    );
    assert_eq!(
        success(&place.call("nothing", json!({})).await).0["text"],
        Value::Null
    );
    place.close().await;
}

#[tokio::test]
async fn what_goes_wrong_is_told_by_its_kind() {
    let place = Place::new("wrong", TOOLS);
    let (code, message) = refused(&place.call("fails", json!({})).await);
    assert_eq!(code, ErrorCode::ToolError);
    assert!(
        message.starts_with("Execution error: ") && message.contains("broken on purpose"),
        "{message}"
    );
    assert!(
        !message.contains(place.top.to_str().unwrap()),
        "no path of this machine: {message}"
    );
    let done = place.call("ends", json!({})).await;
    let told = (
        ErrorCode::ExecutionError,
        "Sandbox execution failed: last words".to_owned(),
    );
    assert_eq!(refused(&done), told);
    assert_eq!(done.stderr, b"last words\n");
    assert_eq!(
        refused(&place.call("absent", json!({})).await).0,
        ErrorCode::ToolNotFound
    );
    let mut order = place.order("echo", json!({}));
    let what = EntryPoint::Function {
        module: "no_such_module".to_owned(),
        function: "f".to_owned(),
    };
    order.tool = Arc::new(Tool {
        what,
        ..place.tool("echo")
    });
    assert_eq!(
        refused(&place.carry_out(order).await.0).0,
        ErrorCode::ImportError
    );
    let done = place.call("large", json!({})).await;
    assert_eq!(refused(&done).0, ErrorCode::ExecutionError);
    assert!(refused(&done).1.contains("100000"), "{done:?}");
    place.close().await;
}

#[tokio::test]
async fn where_a_tool_lies_on_this_machine_its_asker_is_not_told() {
    let place = Place::new("where", TOOLS);
    let top = place.top.to_str().unwrap().to_owned();
    let told = success(&place.call("tells", json!({"how": "returns"})).await).0;
    assert!(
        told.to_string().contains(&format!("{top}/tools /tools/")),
        "the control: it can be seen: {told}"
    );
    for (how, code) in [
        ("raises", ErrorCode::ToolError),
        ("ends", ErrorCode::ExecutionError),
    ] {
        let done = place.call("tells", json!({"how": how})).await;
        let (found, message) = refused(&done);
        assert_eq!(found, code, "{message}");
        assert!(
            !message.contains(&top[..8]),
            "neither it nor its beginning: {message}"
        );
    }
    let program = "import sys; sys.exit([line for line in open('/proc/self/mountinfo') if ' /tools/' in line][0])";
    let command = ["/usr/bin/python3", "-c", program]
        .map(OsString::from)
        .to_vec();
    let code = place.tool("tells").code;
    let refusal = place
        .caller
        .ask(&code, command, Duration::from_secs(30))
        .await
        .unwrap_err();
    assert!(
        !refusal.message.contains(&top) && refusal.message.contains("…/tools /tools/"),
        "{}",
        refusal.message
    );
    place.close().await;
}

#[tokio::test]
async fn a_tool_that_has_no_code_is_refused_without_a_path() {
    let place = Place::new("gone", TOOLS);
    fs::remove_dir_all(place.top.join("tools")).unwrap();
    let done = place.call("echo", json!({})).await;
    let (code, message) = refused(&done);
    assert_eq!(code, ErrorCode::SandboxFailed);
    assert!(!message.contains(place.top.to_str().unwrap()), "{message}");
    assert!(
        done.notes.iter().any(|note| note.contains("tools")),
        "the log is told: {:?}",
        done.notes
    );
    place.close().await;
}

#[tokio::test]
async fn nothing_of_the_worker_is_in_the_environment() {
    let place = Place::new("environment", TOOLS);
    let (_, ours) = std::env::vars()
        .find(|(name, value)| name != "PATH" && value.len() > 4)
        .unwrap();
    for profile in [
        ToolProfile::Restrictive,
        ToolProfile::Standard,
        ToolProfile::Permissive,
    ] {
        let order = CallOrder {
            profile,
            ..place.order("environment", json!({}))
        };
        looks_as_promised(&success(&place.carry_out(order).await.0).0, &ours);
    }
    place.close().await;
}

fn looks_as_promised(found: &Value, ours: &str) {
    let mut names: Vec<_> = found
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.retain(|name| !["cwd", "pid1"].contains(name));
    names.sort_unstable();
    let promised = [
        "HOME",
        "LANG",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPATH",
        "TMPDIR",
        "_SAM_SANDBOX_LIGHT",
    ];
    // What Python itself sets where the locale is plain.
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, promised);
    assert_eq!(
        (&found["HOME"], &found["PYTHONPATH"], &found["cwd"]),
        (
            &json!("/tmp"),
            &json!("/tools/python"),
            &json!("/workspace")
        )
    );
    assert!(!found["pid1"].as_str().unwrap().contains(ours));
}

#[tokio::test]
async fn the_numbers_of_a_profile_hold_inside() {
    let place = Place::new("limits", TOOLS);
    let (found, _) = success(&place.call("limits", json!({})).await);
    for (name, limit) in [
        ("CPU", 60),
        ("FSIZE", 64 << 20),
        ("NOFILE", 128),
        ("STACK", 8 << 20),
        ("MEMLOCK", 64 << 10),
        ("MSGQUEUE", 819_200),
        // One byte rather than none: then no helper of the host is started for a dump, either.
        ("CORE", 1),
    ] {
        let held = found[name].as_i64().unwrap();
        assert!((0..=limit).contains(&held), "{name} {held}");
    }
    assert!(found["nice"].as_i64().unwrap() >= 15, "{found}");
    place.close().await;
}

#[tokio::test]
async fn all_statuses_go_out_before_the_outcome() {
    let place = Place::new("talks", TOOLS);
    let (done, said) = place
        .carry_out(place.order("talks", json!({"count": 40})))
        .await;
    success(&done);
    let wanted: Vec<_> = (0..40).map(|number| format!("step {number}")).collect();
    assert_eq!(said, wanted);
    place.close().await;
}

#[tokio::test]
async fn a_call_ends_with_its_time_and_when_it_is_cancelled() {
    let place = Place::new("time", TOOLS);
    let began = Instant::now();
    let order = CallOrder {
        time: Duration::from_secs(2),
        ..place.order("sleeps", json!({"mark": 1}))
    };
    let (done, _) = place.carry_out(order).await;
    assert!(
        matches!(done.outcome, ToolCallOutcome::TimedOut { took } if took >= Duration::from_secs(2)),
        "{done:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(30));
    let (cancel, cancelled) = watch::channel(false);
    let (statuses, _said) = mpsc::channel(10);
    let call = place.caller.carry_out(
        place.order("sleeps", json!({"mark": 1})),
        cancelled,
        statuses,
    );
    let both = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.send_replace(true);
    };
    let (done, ()) = tokio::join!(call, both);
    assert!(
        matches!(done.outcome, ToolCallOutcome::Cancelled),
        "{done:?}"
    );
    // One that nobody waits for any more ends, too, however far it is: `close` sees to it that nothing is left.
    for time in [300, 60, 20, 5, 1] {
        let (_cancel, cancelled) = watch::channel(false);
        let (statuses, _said) = mpsc::channel(10);
        let call = place.caller.carry_out(
            place.order("sleeps", json!({"mark": 1})),
            cancelled,
            statuses,
        );
        assert!(
            tokio::time::timeout(Duration::from_millis(time), call)
                .await
                .is_err()
        );
    }
    place.close().await;
}

/// Whether there is a process of this name.
fn is_running(name: &str) -> bool {
    let names = fs::read_dir("/proc").unwrap().flatten();
    names
        .flat_map(|entry| fs::read_to_string(entry.path().join("comm")))
        .any(|comm| comm.trim() == name)
}

#[tokio::test]
async fn the_outcome_waits_for_no_tool_that_is_asked_to_end() {
    let place = Place::new("stubborn", TOOLS);
    let sandboxes = || fs::read_dir(place.top.join("state/runs")).unwrap().count();
    let mark = format!("asked{}", std::process::id());
    let order = CallOrder {
        time: Duration::from_secs(6),
        ..place.order("stubborn", json!({"mark": mark}))
    };
    let (done, said) = place.carry_out(order).await;
    assert!(
        matches!(done.outcome, ToolCallOutcome::TimedOut { .. }),
        "{done:?}"
    );
    assert_eq!(
        sandboxes(),
        1,
        "the outcome is there before the box is gone"
    );
    assert_eq!(said, ["ready"], "what was said before comes before it");
    let asked = async {
        while !is_running(&mark) {
            assert_eq!(sandboxes(), 1, "the box went, and the tool was not asked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asked)
        .await
        .unwrap();
    // One that ends by itself when it is asked.
    let order = CallOrder {
        time: Duration::from_secs(6),
        ..place.order("polite", json!({}))
    };
    let (done, said) = place.carry_out(order).await;
    assert!(
        matches!(done.outcome, ToolCallOutcome::TimedOut { .. }),
        "{done:?}"
    );
    assert_eq!(said.first().map(String::as_str), Some("ready"));
    place.close().await;
    assert!(!is_running(&mark), "and is gone");
}

/// Waits for something that can be looked at only.
async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap();
}

/// Calls a tool that does not end when it is asked, and cancels that once it runs.
async fn cancel_stubborn(
    place: &Place,
    mark: &str,
    meanwhile: impl Future<Output = ()>,
) -> CallReport {
    let (cancel, cancelled) = watch::channel(false);
    let (statuses, mut said) = mpsc::channel(10);
    let call = place.caller.carry_out(
        place.order("stubborn", json!({"mark": mark})),
        cancelled,
        statuses,
    );
    let meanwhile = async {
        assert_eq!(said.recv().await.as_deref(), Some("ready"));
        cancel.send_replace(true);
        meanwhile.await;
    };
    let both = async { tokio::join!(call, meanwhile).0 };
    tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .unwrap()
}

#[tokio::test]
async fn no_tool_is_asked_late_and_no_outcome_waits_because_others_are_ending() {
    let place = Place::new("ending", TOOLS);
    let sandboxes = || fs::read_dir(place.top.join("state/runs")).unwrap().count();
    place
        .caller
        .prepare(ToolProfile::Restrictive)
        .await
        .unwrap();
    until(|| sandboxes() == 0).await;
    let (mark, factory) = (
        format!("ending{}", std::process::id()),
        &place.caller.0.factory,
    );
    success(&place.call("number", json!({})).await);
    until(|| sandboxes() == 0).await;
    // As many end as may at once, and none of them is done.
    let open = async {
        until(|| sandboxes() == 1).await;
        factory
            .ending
            .clone()
            .acquire_many_owned(sandbox::MAX_ENDING as u32)
            .await
            .unwrap()
    };
    let asked = until(|| is_running(&mark));
    let (done, ending) = tokio::join!(cancel_stubborn(&place, &mark, asked), open);
    assert!(
        matches!(done.outcome, ToolCallOutcome::Cancelled),
        "{done:?}"
    );
    until(|| !is_running(&mark)).await;
    assert_eq!(sandboxes(), 1, "its box waits for its turn");
    // Nobody gets another before it.
    let freed = async {
        tokio::task::yield_now().await;
        assert_eq!(sandboxes(), 1);
        drop(ending);
    };
    success(&tokio::join!(place.call("number", json!({})), freed).0);
    until(|| sandboxes() == 0).await;
    // As many have their grace as may have it at once: others do not wait until those are gone.
    let graces = factory
        .in_grace
        .clone()
        .acquire_many_owned(sandbox::MAX_IN_GRACE as u32)
        .await
        .unwrap();
    let done = cancel_stubborn(&place, &mark, async {}).await;
    assert!(
        matches!(done.outcome, ToolCallOutcome::Cancelled),
        "{done:?}"
    );
    until(|| sandboxes() == 0).await;
    drop(graces);
    place.close().await;
}

#[tokio::test]
async fn who_floods_the_pipe_ends_with_its_time_and_says_no_more_than_it_may() {
    let place = Place::new("floods", TOOLS);
    for (function, limit) in [("floods", 0), ("chatters", 700)] {
        let order = CallOrder {
            time: Duration::from_secs(2),
            ..place.order(function, json!({}))
        };
        let (done, said) = place.carry_out(order).await;
        assert!(
            matches!(done.outcome, ToolCallOutcome::TimedOut { .. }),
            "{done:?}"
        );
        assert!(said.len() <= limit, "{}", said.len());
    }
    place.close().await;
}

#[tokio::test]
async fn of_what_a_tool_prints_the_beginning_and_the_end_are_kept() {
    let place = Place::new("shouts", TOOLS);
    let done = place.call("shouts", json!({})).await;
    success(&done);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(
        text.starts_with("line 000000\n") && text.ends_with("line 019999\n"),
        "{}",
        text.len()
    );
    assert!(
        text.contains("bytes left out") && text.len() < 40_000,
        "{}",
        text.len()
    );
    place.close().await;
}

const FILES: &str = r#"
import os, json, time

def reads(name, large=None):
    found = {"content": open("/workspace/input/" + name).read(), "args": json.load(open("/workspace/runner_args.json"))}
    if large: found["size"] = os.stat("/workspace/input/" + large).st_size
    return found
def writes():
    open("/workspace/output/a.txt", "w").write("made")
    open("/workspace/output/b.json", "w").write("{}")
    return {"data_objects": [{"name": "a.txt", "description": "the first", "mime_type": "text/x-own", "disposition": "inline", "content": "z"}]}
def hostile():
    open("/workspace/output/good.txt", "w").write("good")
    os.link("/workspace/output/good.txt", "/workspace/output/hard.txt")
    os.symlink("/etc/passwd", "/workspace/output/link")
    os.mkfifo("/workspace/output/pipe")
    os.mkdir("/workspace/output/folder")
    os.symlink("/proc/self/environ", "/workspace/output/magic")
    return {}
def linked():
    open("/workspace/elsewhere", "w").write('{"result": {}}')
    os.symlink("/workspace/elsewhere", "/workspace/result.json")
    os._exit(0)
def piped(): os.mkfifo("/workspace/result.json"); os._exit(0)
def no_result(): os._exit(0)
def folder_moved():
    os.rename("/workspace/output", "/workspace/moved"); os.symlink("/etc", "/workspace/output"); return {}
def leaves_many():
    open("/workspace/output/kept.txt", "w").write("kept")
    for _ in range(10):
        if os.fork() == 0:
            while True:
                try: os.symlink("/etc/passwd", "/workspace/output/late%d" % os.getpid())
                except OSError: time.sleep(0.001)
    return {"left": True}
def bomb():
    kids = 0
    try:
        while True:
            if os.fork() == 0: time.sleep(60); os._exit(0)
            kids += 1
    except OSError as error: raise SystemExit("no more than %d: %s" % (kids, error))
def eats():
    held = []
    while True: held.append(bytearray(8 << 20))
"#;

#[tokio::test]
async fn files_go_in_and_come_out() {
    let place = Place::new("files", FILES);
    let mut order = place.order("reads", json!({"name": "sub/in.txt"}));
    let file = PreloadedFile {
        filename: "sub/in.txt".to_owned(),
        content: b"brought".to_vec(),
        mime_type: "text/plain".to_owned(),
        version: 3,
    };
    order.invoke.preloaded.insert("name".to_owned(), file);
    let (found, _) = success(&place.carry_out(order).await.0);
    assert_eq!(found["content"], "brought");
    assert_eq!(
        found["args"]["artifact_paths"],
        json!({"name": "/workspace/input/sub/in.txt"})
    );
    assert_eq!(found["args"]["artifact_metadata"]["name"]["version"], 3);
    assert_eq!(
        found["args"]["task_id"], "../../escape\n/x",
        "it is nobody's path"
    );
    let done = place.call("writes", json!({})).await;
    let ToolCallOutcome::Success { artifacts, .. } = &done.outcome else {
        panic!("{done:?}")
    };
    let told: Vec<_> = artifacts
        .iter()
        .map(|file| {
            (
                file.filename.as_str(),
                file.version,
                file.mime_type.as_str(),
                file.size_bytes,
                file.description.as_deref(),
            )
        })
        .collect();
    let wanted = [
        ("a.txt", 0, "text/x-own", 4, Some("the first")),
        ("b.json", 0, "application/json", 2, None),
    ];
    assert_eq!(told, wanted);
    // And in again, by reference.
    let mut order = place.order("reads", json!({"name": "a.txt"}));
    let reference = crate::wire::request::ArtifactReference {
        filename: "a.txt".to_owned(),
        version: None,
    };
    order.invoke.references.insert("name".to_owned(), reference);
    assert_eq!(
        success(&place.carry_out(order).await.0).0["content"],
        "made"
    );
    place.close().await;
}

#[tokio::test]
async fn a_call_whose_files_are_missing_or_misnamed_is_not_made() {
    let place = Place::new("misnamed", FILES);
    for name in ["../escape", "/etc/passwd", "a\\b", "a/../b"] {
        let mut order = place.order("writes", json!({}));
        let file = PreloadedFile {
            filename: name.to_owned(),
            content: Vec::new(),
            mime_type: String::new(),
            version: 0,
        };
        order.invoke.preloaded.insert("x".to_owned(), file);
        assert_eq!(
            refused(&place.carry_out(order).await.0).0,
            ErrorCode::ArtifactError,
            "{name}"
        );
    }
    let mut order = place.order("writes", json!({}));
    let reference = crate::wire::request::ArtifactReference {
        filename: "absent.txt".to_owned(),
        version: None,
    };
    order.invoke.references.insert("x".to_owned(), reference);
    assert_eq!(
        refused(&place.carry_out(order).await.0).0,
        ErrorCode::ArtifactError
    );
    place.close().await;
}

#[tokio::test]
async fn files_of_one_name_and_large_ones_are_put_in_place() {
    let place = Place::new("several", FILES);
    let scope = crate::artifacts::ArtifactScope {
        app: "app".to_owned(),
        user: "user".to_owned(),
        session: "session".to_owned(),
    };
    let large = bytes::Bytes::from(vec![b'l'; 9 << 20]);
    for bytes in [
        bytes::Bytes::from_static(b"first"),
        bytes::Bytes::from_static(b"second"),
    ] {
        place
            .store
            .save(&scope, "same.txt", "text/plain", bytes)
            .await
            .unwrap();
    }
    place
        .store
        .save(&scope, "large.bin", "x/y", large)
        .await
        .unwrap();
    let reference = |name: &str, version| crate::wire::request::ArtifactReference {
        filename: name.to_owned(),
        version,
    };
    let mut order = place.order("reads", json!({"name": "same.txt", "large": "large.bin"}));
    let file = PreloadedFile {
        filename: "same.txt".to_owned(),
        content: b"brought".to_vec(),
        mime_type: "text/plain".to_owned(),
        version: 7,
    };
    order.invoke.preloaded.insert("z".to_owned(), file);
    order
        .invoke
        .references
        .insert("a".to_owned(), reference("same.txt", None));
    order
        .invoke
        .references
        .insert("b".to_owned(), reference("same.txt", Some(0)));
    order
        .invoke
        .references
        .insert("c".to_owned(), reference("large.bin", None));
    let (done, _) = place.carry_out(order).await;
    let (found, _) = success(&done);
    assert_eq!(found["content"], "first", "the last of a name");
    assert_eq!(
        (&found["size"], done.bytes_in),
        (&json!(9 << 20), (9 << 20) + 5)
    );
    let told = &found["args"]["artifact_metadata"];
    let versions = ["a", "b", "c", "z"].map(|key| told[key]["version"].as_i64().unwrap());
    assert_eq!(versions, [1, 0, 0, 7]);
    place.close().await;
}

#[tokio::test]
async fn a_file_that_does_not_come_is_no_tool_that_was_too_slow() {
    let place = Place::new("no-file", FILES);
    keep(&place, "late.txt", "here").await;
    let held = place.caller.0.inputs.lease(u64::MAX).await;
    let order = || {
        let mut order = place.order("writes", json!({}));
        order.time = Duration::from_secs(6);
        order
            .invoke
            .references
            .insert("x".to_owned(), reference("late.txt"));
        order
    };
    let (code, message) = refused(&place.carry_out(order()).await.0);
    assert_eq!(code, ErrorCode::ArtifactError);
    assert!(
        message.contains("files of other calls took the memory for its 4 bytes"),
        "{message}"
    );
    drop(held);
    success(&place.carry_out(order()).await.0);
    place.close().await;
    // A store that is silent.
    let store = FakeS3::serve(|_| FakeResponse::Hang);
    let place = Place::keeping("no-store", FILES, 0, in_bucket(&store));
    let mut order = place.order("writes", json!({}));
    order.time = Duration::from_secs(3);
    order
        .invoke
        .references
        .insert("x".to_owned(), reference("late.txt"));
    let (code, message) = refused(&place.carry_out(order).await.0);
    assert_eq!(code, ErrorCode::ArtifactError);
    assert!(
        message.contains("the store did not answer within"),
        "{message}"
    );
    place.close().await;
}

fn reference(name: &str) -> crate::wire::request::ArtifactReference {
    crate::wire::request::ArtifactReference {
        filename: name.to_owned(),
        version: None,
    }
}

fn in_bucket(store: &FakeS3) -> ArtifactStore {
    let (place, sharing) = (
        artifacts::ArtifactLocation::Bucket(store.remote()),
        artifacts::Sharing::App,
    );
    ArtifactStore::open(artifacts::ArtifactStoreSettings { place, sharing }).unwrap()
}

/// Puts a file where calls find it.
async fn keep(place: &Place, name: &str, text: &'static str) {
    let scope = artifacts::ArtifactScope {
        app: "app".to_owned(),
        user: "user".to_owned(),
        session: "session".to_owned(),
    };
    place
        .store
        .save(&scope, name, "text/plain", text.into())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_file_takes_what_it_has_of_the_memory_for_files_and_what_goes_out_has_its_own() {
    let place = Place::new("small", FILES);
    keep(&place, "small.txt", "small").await;
    let order = || {
        let mut order = place.order("reads", json!({"name": "small.txt"}));
        order.time = Duration::from_secs(10);
        order
            .invoke
            .references
            .insert("x".to_owned(), reference("small.txt"));
        order
    };
    let held = place
        .caller
        .0
        .inputs
        .lease(memory_budget::MAX_BYTES - (64 << 10))
        .await;
    assert_eq!(
        success(&place.carry_out(order()).await.0).0["content"],
        "small"
    );
    let rest = place.caller.0.inputs.lease(64 << 10).await;
    assert_eq!(
        refused(&place.carry_out(order()).await.0).0,
        ErrorCode::ArtifactError,
        "the control"
    );
    let order = CallOrder {
        time: Duration::from_secs(30),
        ..place.order("writes", json!({}))
    };
    assert_eq!(
        success(&place.carry_out(order).await.0).1,
        ["a.txt", "b.json"]
    );
    drop((held, rest));
    place.close().await;
}

#[tokio::test]
async fn a_call_is_cancelled_while_its_files_are_kept() {
    let (is_silent, empty) = (Arc::new(AtomicBool::new(false)), Default::default());
    let silent = is_silent.clone();
    let store = FakeS3::serve(move |asked| match asked.method.as_str() {
        _ if silent.load(Ordering::SeqCst) => FakeResponse::Hang,
        "PUT" => FakeResponse::Answer(200, String::new()),
        _ => fake_s3::bucket(&empty, asked),
    });
    let place = Place::keeping("keeping", FILES, 0, in_bucket(&store));
    let done = place.call("writes", json!({})).await;
    assert_eq!(success(&done).1, ["a.txt", "b.json"], "the control");
    is_silent.store(true, Ordering::SeqCst);
    let before = store.count();
    let (cancel, cancelled) = watch::channel(false);
    let (statuses, _said) = mpsc::channel(10);
    let call = place
        .caller
        .carry_out(place.order("writes", json!({})), cancelled, statuses);
    let meanwhile = async {
        until(|| store.count() > before).await;
        cancel.send_replace(true);
    };
    let (done, ()) = tokio::join!(call, meanwhile);
    assert!(
        matches!(done.outcome, ToolCallOutcome::Cancelled),
        "{done:?}"
    );
    place.close().await;
}

#[tokio::test]
async fn what_is_no_regular_file_is_never_taken_out() {
    let place = Place::new("hostile", FILES);
    let done = place.call("hostile", json!({})).await;
    assert_eq!(success(&done).1, ["good.txt", "hard.txt"]);
    let notes = done.notes.join("\n");
    for name in ["link", "pipe", "folder", "magic"] {
        assert!(notes.contains(&format!("output/{name}`")), "{notes}");
    }
    for (function, word) in [
        ("linked", "symbolic link"),
        ("piped", "FIFO"),
        ("no_result", "without a result"),
    ] {
        let (code, message) = refused(&place.call(function, json!({})).await);
        assert_eq!(code, ErrorCode::InternalError);
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(
        success(&place.call("folder_moved", json!({})).await).1,
        [""; 0]
    );
    place.close().await;
}

#[tokio::test]
async fn who_is_left_behind_harms_nobody_and_limits_are_named() {
    let place = Place::new("left", FILES);
    let done = place.call("leaves_many", json!({})).await;
    assert_eq!(
        success(&done),
        (json!({"left": true}), vec!["kept.txt".to_owned()])
    );
    let done = place.call("eats", json!({})).await;
    // Where no cgroup counts for the whole sandbox, each process has its limit, and Python says so itself.
    match refused(&done) {
        (ErrorCode::ExecutionError, message) => {
            assert!(
                done.limits_hit.contains(&LimitName::Memory) && message.contains("memory"),
                "{message}"
            );
        }
        (code, message) => {
            assert!(
                code == ErrorCode::ToolError && message.contains("MemoryError"),
                "{message}"
            )
        }
    }
    let done = place.call("bomb", json!({})).await;
    assert!(
        matches!(done.outcome, ToolCallOutcome::Refused(_)),
        "{done:?}"
    );
    place.close().await;
}

#[tokio::test]
async fn a_program_is_run_and_asked() {
    let place = Place::new("program", "");
    let folder = place.top.join("set");
    fs::create_dir_all(folder.join("bin")).unwrap();
    let script = "#!/bin/sh\nif [ \"$1\" = --schema ]; then echo '{\"tools\": {}}'; exit; fi\n\
                  cp \"$1\" /workspace/output/args.json\nprintf '{\"result\": {\"home\": \"%s\", \"path\": \"%s\"}, \"error\": \"\"}' \
                  \"$HOME\" \"$PYTHONPATH\" > /workspace/result.json\n";
    fs::write(folder.join("bin/it"), script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.join("bin/it"), mode).unwrap();
    let code = ToolCode {
        folder: Some(folder.clone()),
        ..ToolCode::default()
    };
    let what = EntryPoint::Executable {
        path: folder.join("bin/it"),
        tool: "own_name".to_owned(),
    };
    let tool = Arc::new(Tool {
        what,
        code: code.clone(),
        ..place.tool("x")
    });
    let order = CallOrder {
        tool,
        profile: ToolProfile::Standard,
        ..place.order("x", json!({"a": 1}))
    };
    let (done, _) = place.carry_out(order).await;
    let wanted = json!({"home": "/tmp", "path": "/tools/set/python:/tools/set"});
    assert_eq!(success(&done), (wanted, vec!["args.json".to_owned()]));
    let time = Duration::from_secs(30);
    let said = place
        .caller
        .ask(
            &code,
            vec!["/tools/set/bin/it".into(), "--schema".into()],
            time,
        )
        .await;
    assert_eq!(said.unwrap(), b"{\"tools\": {}}\n");
    let failed = place
        .caller
        .ask(&code, vec!["/tools/set/bin/other".into()], time)
        .await;
    assert_eq!(failed.unwrap_err().code, ErrorCode::InitError);
    let slow = place
        .caller
        .ask(
            &code,
            vec!["sleep".into(), "60".into()],
            Duration::from_secs(1),
        )
        .await;
    assert_eq!(slow.unwrap_err().code, ErrorCode::InitError);
    place.close().await;
}

#[path = "prewarmed_tests.rs"]
mod prewarmed;

#[path = "warm_pool_tests.rs"]
mod warm_pool;
