//! Tools that others wrote: the examples of the public `sam-tool-sdk`, unchanged. It is fetched once, in this version, and kept
//! in `target/sam-tool-sdk`.

use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};
use worker_tests::{Ask, Mesh, Tools};

const WANTED: &str = "sam-tool-sdk==0.1.3";
const EXAMPLES: [(&str, &str); 4] = [
    ("upper", "artifact_inout_tool"),
    ("api", "config_schema_tool"),
    ("math", "multi_tool_provider"),
    ("top", "numeric_params_tool"),
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
    run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(folder.join("pip")));
    let pip = || Command::new(folder.join("pip/bin/pip"));
    run(pip().args(["install", "--quiet", "--target"]).arg(folder.join("packages")).arg(WANTED));
    let source = ["download", "--quiet", "--no-deps", "--no-binary", "sam-tool-sdk", "--dest"];
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
    let entries = fs::read_dir(folder).expect("a folder").filter_map(Result::ok).map(|entry| entry.path());
    entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "gz")).expect("an archive")
}

static MESH: LazyLock<Mesh> = LazyLock::new(|| {
    let kit = kit();
    let mesh = Mesh::new("Tester", |_| ());
    let place = mesh.tools.path().join("kit");
    fs::create_dir_all(&place).expect("a folder");
    run(Command::new("cp").arg("-r").arg(kit.join("packages")).arg(place.join("python")));
    let mut entries = Tools::usual_entries();
    for (name, module) in EXAMPLES {
        let text = fs::read_to_string(kit.join(format!("examples/{module}.py"))).expect("an example");
        mesh.tools.write(&format!("kit/python/{module}.py"), &text);
        // What an installer makes of `[project.scripts]`.
        let program =
            format!("#!/usr/bin/env python3\nimport sys\nfrom {module} import cli\nsys.exit(cli())\n");
        mesh.tools.program(&format!("kit/python/bin/{name}"), &program);
        entries.push_str(&format!("  {name}: {{runtime: python, tool_dir: kit, executable: {name}}}\n"));
    }
    mesh.tools.manifest(&entries);
    mesh
});

#[test]
fn numbers_that_a_model_wrote_as_texts_are_numbers() {
    let card = MESH.agent.wait("init", "top");
    assert!(card.body()["params"]["parameters"]["properties"]["top_n"].is_object(), "{}", card.body());
    let answer = MESH.agent.call(&Ask::new("top", json!({"values": [4, 8, 15, 16, 23], "top_n": "3"})));
    let told = answer.tool_result();
    assert_eq!((&told["status"], &told["data"]["average"]), (&json!("success"), &json!(18.0)));
}

#[test]
fn a_file_comes_in_and_another_goes_out() {
    MESH.agent.wait("init", "upper");
    let ask = Ask::new("upper", json!({"doc": "report.txt"})).preloaded("doc", "report.txt", b"quiet words");
    let answer = MESH.agent.call(&ask);
    assert_eq!(answer.created(), [("report_upper.txt".to_owned(), 0, "text/plain".to_owned(), 11)]);
    let made = &answer.result()["created_artifacts"][0];
    assert_eq!(made["description"], "Upper-cased version of the input file");
    let kept = fs::read_to_string(MESH.shelf().join("report_upper.txt/0")).expect("it is kept");
    assert_eq!(kept, "QUIET WORDS");
}

#[test]
fn a_provider_of_several_tools_is_each_of_them() {
    MESH.agent.wait("init", "math__add");
    let answer = MESH.agent.call(&Ask::new("math__add", json!({"a": "3.5", "b": "1.5"})));
    assert_eq!(answer.tool_result()["data"]["result"], 5.0);
    MESH.agent.wait("init", "math__stats");
    let answer =
        MESH.agent.call(&Ask::new("math__stats", json!({"values": [1, 2, 3, 4, 5], "precision": "2"})));
    assert_eq!(answer.tool_result()["data"]["median"], 3.0);
}

#[test]
fn what_an_operator_configured_arrives_and_is_declared() {
    let card = MESH.agent.wait("init", "api").body()["params"].clone();
    let keys: Vec<_> =
        card["config_schema"].as_array().expect("a list").iter().map(|one| one["key"].clone()).collect();
    assert_eq!(keys, ["api_base", "api_key", "timeout_seconds"]);
    let ask = Ask::new("api", json!({"prompt": "What is 2 + 2?"}));
    let configured = json!({"api_base": "https://api.example.com", "api_key": "sk-test"});
    let answer = MESH.agent.call(&ask.param("tool_config", configured));
    assert_eq!(answer.tool_result()["data"]["api_base"], "https://api.example.com");
}
