//! Tools that others wrote: the examples of the public `sam-tool-sdk`, unchanged, and tools written with it. It is fetched
//! once, in this version, and kept in `target/sam-tool-sdk`.

use provider::{Provider, Script};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};
use worker_tests::{Ask, Mesh, Message, Tools, with_model};

const WANTED: &str = "sam-tool-sdk==0.1.3";
const KEY: &str = "key-of-the-provider";
/// As programs: what an installer makes of `[project.scripts]`.
const PROGRAMS: [(&str, &str); 4] = [
    ("upper", "artifact_inout_tool"),
    ("api", "config_schema_tool"),
    ("math", "multi_tool_provider"),
    ("top", "numeric_params_tool"),
];
/// As functions that our runner calls: name, module, function.
const FUNCTIONS: [(&str, &str, &str); 7] = [
    ("called_upper", "artifact_inout_tool", "uppercase_file"),
    ("called_cli", "artifact_inout_tool", "cli"),
    ("called_api", "config_schema_tool", "call_api"),
    ("called_top", "numeric_params_tool", "top_n_average"),
    ("greet", "own_sdk_tools", "greet"),
    ("merge", "own_sdk_tools", "merge"),
    ("think", "own_sdk_tools", "think"),
];

fn run(command: &mut Command) {
    let done = command.output().expect("it starts");
    assert!(
        done.status.success(),
        "prerequisite: {WANTED} from PyPI: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// `packages/` with the kit, `examples/` with its tools.
fn kit() -> PathBuf {
    let folder = cli::repository().join("target/sam-tool-sdk");
    let mark = folder.join("holds");
    if fs::read_to_string(&mark).is_ok_and(|held| held == WANTED) {
        return folder;
    }
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    run(Command::new("/usr/bin/python3")
        .args(["-m", "venv"])
        .arg(folder.join("pip")));
    let pip = || Command::new(folder.join("pip/bin/pip"));
    run(pip()
        .args(["install", "--quiet", "--target"])
        .arg(folder.join("packages"))
        .arg(WANTED));
    let source = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "sam-tool-sdk",
        "--dest",
    ];
    run(pip().args(source).arg(&folder).arg(WANTED));
    run(Command::new("tar")
        .args(["--extract", "--strip-components=1", "--file"])
        .arg(archive(&folder))
        .current_dir(&folder));
    assert!(folder.join("examples").is_dir(), "the kit has examples");
    fs::write(mark, WANTED).expect("a mark");
    folder
}

fn archive(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder)
        .expect("a folder")
        .filter_map(Result::ok)
        .map(|entry| entry.path());
    entries
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "gz"))
        .expect("an archive")
}

static PROVIDER: LazyLock<Provider> = LazyLock::new(|| {
    let settings = provider::Settings {
        keys: vec![KEY.to_owned()],
        ..provider::Settings::default()
    };
    let provider = Provider::start(settings);
    provider.set(Script {
        tokens: 2,
        ..Script::default()
    });
    provider
});

static MESH: LazyLock<Mesh> = LazyLock::new(|| {
    let kit = kit();
    let mesh = Mesh::new("Tester", |set| {
        with_model(set, &PROVIDER.base(), KEY);
        set.insert(
            "SAM_SITE_PACKAGES".to_owned(),
            kit.join("packages").display().to_string(),
        );
    });
    let place = mesh.tools.path().join("kit");
    fs::create_dir_all(&place).expect("a folder");
    run(Command::new("cp")
        .arg("-r")
        .arg(kit.join("packages"))
        .arg(place.join("python")));
    let mut entries = Tools::usual_entries();
    for (name, module) in PROGRAMS {
        let text =
            fs::read_to_string(kit.join(format!("examples/{module}.py"))).expect("an example");
        mesh.tools.write(&format!("kit/python/{module}.py"), &text);
        mesh.tools.write(&format!("python/{module}.py"), &text);
        let program = format!(
            "#!/usr/bin/env python3\nimport sys\nfrom {module} import cli\nsys.exit(cli())\n"
        );
        mesh.tools
            .program(&format!("kit/python/bin/{name}"), &program);
        entries.push_str(&format!(
            "  {name}: {{runtime: python, tool_dir: kit, executable: {name}}}\n"
        ));
    }
    mesh.tools.write(
        "python/own_sdk_tools.py",
        include_str!("../tools/own_sdk_tools.py"),
    );
    for (name, module, function) in FUNCTIONS {
        entries.push_str(&format!(
            "  {name}: {{module: {module}, function: {function}}}\n"
        ));
    }
    entries.push_str("  shout: {module: own_sdk_tools, class_name: Shout}\n");
    mesh.tools.manifest(&entries);
    mesh
});

const CONFIGURED: &str = "https://api.example.com";

fn ask(tool: &str, args: Value) -> Ask {
    Ask::new(tool, args).param(
        "tool_config",
        json!({"api_base": CONFIGURED, "api_key": "sk-test"}),
    )
}

fn call(tool: &str, args: Value) -> Message {
    MESH.agent.wait("init", tool);
    MESH.agent.call(&ask(tool, args))
}

/// What the kit itself makes of the same order, without a worker and without a box: its envelope.
fn outside(program: &str, tool: &str, args: &Value) -> Value {
    let folder = worker_tests::Folder::new();
    let (order, result) = (folder.at("order.json"), folder.at("result.json"));
    let text = json!({
        "args": args, "tool_name": tool, "tool_config": {"api_base": CONFIGURED, "api_key": "sk-test"},
        "output_dir": folder.path(), "result_file": result,
    });
    fs::write(&order, text.to_string()).expect("an order");
    let kit = MESH.tools.path().join("kit/python");
    let mut command = Command::new(kit.join("bin").join(program));
    run(command
        .arg(order)
        .env("PYTHONPATH", &kit)
        .env("PYTHONDONTWRITEBYTECODE", "1"));
    serde_json::from_slice(&fs::read(result).expect("a result")).expect("JSON")
}

#[test]
fn a_program_of_the_kit_answers_as_it_does_outside() {
    let (mut succeeded, mut failed) = (0, 0);
    // A function without annotations for the kit is given its oldest context first, by programs of this version: so some of
    // its own examples fail, here as there.
    for (name, program, tool, args) in [
        ("math__add", "math", "add", json!({"a": "3.5", "b": "1.5"})),
        (
            "math__stats",
            "math",
            "stats",
            json!({"values": [1, 2, 3, 4, 5], "precision": "2"}),
        ),
        (
            "top",
            "top",
            "top_n_average",
            json!({"values": [4, 8, 15, 16, 23], "top_n": "3"}),
        ),
        (
            "api",
            "api",
            "call_api",
            json!({"prompt": "What is 2 + 2?"}),
        ),
    ] {
        let there = outside(program, tool, &args);
        let here = call(name, args);
        match there["error"].as_str().filter(|error| !error.is_empty()) {
            None => {
                succeeded += 1;
                assert_eq!(here.tool_result(), &there["result"], "{name}");
            }
            Some(error) => {
                failed += 1;
                let first = error.lines().next().expect("it says something");
                let (code, message) = here.error();
                assert!(
                    code == "TOOL_ERROR" && message.contains(first),
                    "{name}: {code}: {message}"
                );
            }
        }
    }
    assert_eq!((succeeded, failed), (2, 2));
}

#[test]
fn what_an_operator_may_configure_is_declared_and_arrives() {
    for name in ["api", "called_api"] {
        let card = MESH.agent.wait("init", name).body()["params"].clone();
        let keys = |of: &str| -> Vec<_> {
            let all = card["config_schema"]
                .as_array()
                .unwrap_or_else(|| panic!("a list: {card}"));
            all.iter().map(|one| one[of].clone()).collect()
        };
        assert_eq!(
            keys("key"),
            ["api_base", "api_key", "timeout_seconds"],
            "{name}"
        );
        assert_eq!(keys("type"), ["string", "string", "number"], "{name}");
        assert!(
            card["parameters"]["properties"]
                .get("tool_config")
                .is_none(),
            "{card}"
        );
    }
    let answer = call("called_api", json!({"prompt": "x"}));
    assert_eq!(
        answer.tool_result()["data"],
        json!({"prompt": "x", "api_base": CONFIGURED})
    );
}

#[test]
fn numbers_that_a_model_wrote_as_texts_are_numbers() {
    for tool in ["top", "called_top"] {
        let card = MESH.agent.wait("init", tool);
        let properties = &card.body()["params"]["parameters"]["properties"];
        assert_eq!(
            properties["top_n"]["type"], "integer",
            "{tool}: {properties}"
        );
    }
    let answer = call(
        "called_top",
        json!({"values": [4, 8, 15, 16, 23], "top_n": "3"}),
    );
    let told = answer.tool_result();
    assert_eq!(
        (&told["status"], &told["data"]["average"]),
        (&json!("success"), &json!(18.0))
    );
    let answer = call("shout", json!({"times": "2"}));
    let told = answer.tool_result();
    assert_eq!(
        (&told["same"], &told["times"], &told["config"]["api_base"]),
        (&json!(true), &json!(2), &json!(CONFIGURED))
    );
}

#[test]
fn a_file_comes_in_and_another_goes_out() {
    for (name, tool) in ["upper", "called_upper", "called_cli"]
        .into_iter()
        .enumerate()
    {
        MESH.agent.wait("init", tool);
        let (source, made) = (
            format!("report{name}.txt"),
            format!("report{name}_upper.txt"),
        );
        let ask = ask(tool, json!({"doc": source})).preloaded("doc", &source, b"quiet words");
        let answer = MESH.agent.call(&ask);
        assert_eq!(
            answer.created(),
            [(made.clone(), 0, "text/plain".to_owned(), 11)],
            "{tool}"
        );
        let kept = fs::read_to_string(MESH.shelf().join(made).join("0")).expect("it is kept");
        assert_eq!(kept, "QUIET WORDS", "{tool}");
        // A program of the kit forgets what it was told of a file as soon as it has written it.
        let description = match tool {
            "upper" | "called_cli" => Value::Null,
            _ => json!("Upper-cased version of the input file"),
        };
        assert_eq!(
            answer.result()["created_artifacts"][0]["description"],
            description,
            "{tool}"
        );
    }
}

#[test]
fn several_files_come_in_and_what_is_short_stays_in_the_result() {
    MESH.agent.wait("init", "merge");
    let ask = ask("merge", json!({"parts": ["a", "b"]}));
    let answer = MESH.agent.call(
        &ask.preloaded("parts[0]", "a", b"1")
            .preloaded("parts[1]", "b", b"2"),
    );
    assert_eq!(
        answer.created(),
        [(
            "merged.bin".to_owned(),
            0,
            "application/x-merged".to_owned(),
            2
        )]
    );
    assert_eq!(
        answer.result()["created_artifacts"][0]["description"],
        "of all"
    );
    let objects = answer.tool_result()["data_objects"]
        .as_array()
        .expect("a list")
        .clone();
    let shown: Vec<_> = objects
        .iter()
        .map(|one| (&one["name"], &one["content"]))
        .collect();
    assert!(
        shown.contains(&(&json!("note"), &json!("short"))),
        "{shown:?}"
    );
    assert_eq!(
        fs::read(MESH.shelf().join("merged.bin/0")).expect("it is kept"),
        b"12"
    );
}

#[test]
fn a_tool_has_the_kit_s_own_context_and_its_statuses_are_told() {
    let card = MESH.agent.wait("init", "greet").body()["params"].clone();
    assert_eq!(card["description"], "Greet someone by name.");
    let ask = ask("greet", json!({"name": "ana", "excited": "true"}));
    let answer = MESH.agent.call(&ask);
    assert_eq!(
        answer.tool_result()["data"],
        json!({"excited": true, "user": "ana", "own": true})
    );
    assert_eq!(MESH.agent.statuses(&ask.id), ["greeting ana"]);
}

#[test]
fn a_tool_asks_a_model_by_the_kit() {
    let before = PROVIDER.served().count;
    let answer = call("think", json!({}));
    assert_eq!(
        answer.tool_result()["message"],
        "tok0 tok1 ",
        "{}",
        answer.body()
    );
    assert_eq!(PROVIDER.served().count, before + 1);
}
