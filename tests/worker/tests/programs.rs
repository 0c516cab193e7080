//! Tools that are programs, tools with packages, and tools that ask a model.

use provider::{Provider, Script};
use serde_json::{Value, json};
use std::{fs, process::Command, sync::LazyLock};
use worker_tests::{Ask, Mesh, Tools, with_model};

const KEY: &str = "key-of-the-provider";

struct World {
    mesh: Mesh,
    provider: Provider,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let settings = provider::Settings {
        keys: vec![KEY.to_owned()],
        ..provider::Settings::default()
    };
    let provider = Provider::start(settings);
    provider.set(Script {
        tokens: 3,
        ..Script::default()
    });
    let mesh = Mesh::new("Tester", |set| with_model(set, &provider.base(), KEY));
    mesh.tools
        .program("weather/bin/weather", include_str!("../tools/binary"));
    mesh.tools.program(
        "only/bin/only",
        &include_str!("../tools/binary").replace("os.environ.get(\"ONLY\")", "\"forecast\""),
    );
    let usual = Tools::usual_entries();
    mesh.tools.manifest(&format!(
        "{usual}  weather: {{tool_dir: weather, executable: bin/weather, timeout_seconds: 60}}\n  \
         single: {{tool_dir: only, executable: bin/only}}\n"
    ));
    World { mesh, provider }
});

#[test]
fn a_program_with_several_tools_is_each_of_them() {
    let agent = &WORLD.mesh.agent;
    let card = agent.wait("init", "weather__forecast").body()["params"].clone();
    assert_eq!(card["description"], "Forecast for a city.");
    assert_eq!(card["parameters"]["required"], json!(["city"]));
    let card = agent.wait("init", "weather__inspect").body()["params"].clone();
    assert_eq!(card["config_schema"][0]["key"], "api_key");
    let ask = Ask::new("weather__forecast", json!({"city": "Rome"}));
    let answer = agent.call(&ask);
    let told = answer.tool_result();
    assert_eq!(
        (&told["_schema"], &told["status"]),
        (&json!("ToolResult"), &json!("success"))
    );
    assert_eq!(
        told["data"],
        json!({"tool": "forecast", "args": {"city": "Rome"}})
    );
    assert_eq!(agent.statuses(&ask.id), ["at work"]);
    let made = &answer.result()["created_artifacts"][0];
    assert_eq!(
        (&made["filename"], &made["mime_type"], &made["description"]),
        (
            &json!("report.html"),
            &json!("text/html"),
            &json!("What came of it")
        )
    );
}

#[test]
fn a_program_with_one_tool_goes_by_the_name_of_its_entry() {
    let agent = &WORLD.mesh.agent;
    agent.wait("init", "single");
    assert_eq!(
        agent
            .call(&Ask::new("single", json!({"city": "Rome"})))
            .tool_result()["data"]["tool"],
        "forecast"
    );
}

#[test]
fn a_program_is_given_every_key_of_both_contracts() {
    let agent = &WORLD.mesh.agent;
    agent.wait("init", "weather__inspect");
    let answer = agent.call(&Ask::new("weather__inspect", json!({})));
    let keys = answer.tool_result()["data"]["keys"].clone();
    for key in [
        "args",
        "tool_config",
        "artifact_paths",
        "artifact_metadata",
        "status_pipe",
        "result_file",
        "output_dir",
        "user_id",
        "session_id",
        "app_name",
        "tool_name",
    ] {
        assert!(
            keys.as_array().expect("a list").contains(&json!(key)),
            "{key} in {keys}"
        );
    }
}

#[test]
fn a_tool_asks_a_model_and_has_no_key() {
    let agent = &WORLD.mesh.agent;
    agent.wait("init", "weather__ask");
    let prompt = "Say something, whatever it is.";
    // Written backwards, so that what it looks for is not there because it looks for it.
    let backwards = |text: &str| text.chars().rev().collect::<String>();
    let wanted = json!([backwards(KEY), backwards(prompt)]);
    for profile in ["restrictive", "standard", "permissive"] {
        let before = WORLD.provider.served().count;
        let ask =
            Ask::new("weather__ask", json!({"prompt": prompt, "wanted": wanted})).profile(profile);
        let answer = agent.call(&ask);
        let data = answer.tool_result()["data"].clone();
        // The provider ends each of its words with a blank, and nobody on the way takes one off.
        assert_eq!(
            (&data["told"]["text"], &data["id"]),
            (&json!("tok0 tok1 tok2 "), &json!("1")),
            "{data}"
        );
        assert_eq!(WORLD.provider.served().count, before + 1);
        assert_eq!(
            data["found"][0],
            json!([]),
            "{profile}: nothing that a tool can read has the key"
        );
        assert!(
            data["found"][1]
                .as_array()
                .is_some_and(|files| !files.is_empty()),
            "it looks well: {data}"
        );
        assert!(!answer.body().to_string().contains(KEY));
    }
    assert!(!WORLD.mesh.sam.log().contains(KEY));
}

/// A wheel is an archive with a module and three files about it.
const WHEEL: &str = r#"
import sys, zipfile
about = "airlock_test_wheel-1.0.dist-info"
with zipfile.ZipFile(sys.argv[1] + "/airlock_test_wheel-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("airlock_test_wheel.py", "TEXT = 'from a wheel'\n")
    wheel.writestr(about + "/METADATA", "Metadata-Version: 2.1\nName: airlock-test-wheel\nVersion: 1.0\n")
    wheel.writestr(about + "/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(about + "/RECORD", "")
"#;

#[test]
fn a_wheel_beside_the_manifest_can_be_imported_and_only_by_tools() {
    let mesh = Mesh::new("Tester", |set| {
        let wheels = format!("{}/tools/wheels", set["HOME"].trim_end_matches('/'));
        fs::create_dir_all(&wheels).expect("a folder");
        let made = Command::new("/usr/bin/python3")
            .args(["-c", WHEEL, &wheels])
            .status();
        assert!(made.expect("Python starts").success());
    });
    let answer = mesh.agent.call(&Ask::new("uses_wheel", json!({})));
    assert_eq!(answer.tool_result()["text"], "from a wheel");
    let outside = Command::new("/usr/bin/python3")
        .args(["-c", "import airlock_test_wheel"])
        .output();
    assert!(
        !outside.expect("Python starts").status.success(),
        "nothing is installed into this machine"
    );
}

#[test]
fn a_mounted_folder_of_packages_works() {
    let mesh = Mesh::new("Tester", |set| {
        let packages = format!("{}/site-packages", set["HOME"].trim_end_matches('/'));
        fs::create_dir_all(&packages).expect("a folder");
        fs::write(
            format!("{packages}/airlock_test_wheel.py"),
            "TEXT = 'mounted'\n",
        )
        .expect("a module");
        set.insert("SAM_SITE_PACKAGES".to_owned(), packages);
    });
    let answer = mesh.agent.call(&Ask::new("uses_wheel", json!({})));
    assert_eq!(answer.tool_result()["text"], "mounted");
}

#[test]
fn a_program_that_tells_nothing_harms_no_other() {
    let mesh = Mesh::new("Tester", |_| ());
    mesh.tools.program("bad/silent", "#!/bin/sh\nexit 3\n");
    mesh.tools
        .program("bad/noise", "#!/bin/sh\nhead -c 100000000 /dev/zero\n");
    let usual = Tools::usual_entries();
    mesh.tools.manifest(&format!(
        "{usual}  silent: {{tool_dir: bad, executable: silent}}\n  noise: {{tool_dir: bad, executable: noise}}\n  \
         absent: {{tool_dir: bad, executable: nowhere}}\n  escapes: {{tool_dir: ../.., executable: bin/sh}}\n  \
         fine: {{module: toolbox, function: number}}\n"
    ));
    mesh.agent.wait("init", "fine");
    assert_eq!(
        mesh.agent.call(&Ask::new("fine", json!({}))).tool_result()["text"],
        Value::from("42")
    );
    mesh.sam.await_log("silent");
}
