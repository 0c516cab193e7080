//! What agents are told of tools, unasked and asked, and when the manifest changes.

use serde_json::json;
use std::sync::LazyLock;
use worker_tests::{Ask, Mesh, Message, Tools, until};

static MESH: LazyLock<Mesh> = LazyLock::new(|| Mesh::new("Tester", |_| ()));

fn broadcasts(mesh: &Mesh, tool: &str) -> Vec<Message> {
    mesh.agent.all("init", tool)
}

#[test]
fn every_tool_is_told_of_when_the_worker_starts() {
    for tool in ["echo", "greeter", "nothing"] {
        let card = MESH.agent.wait("init", tool);
        assert_eq!(card.body()["params"]["tool_name"], tool);
        assert!(
            card.body().get("id").is_none(),
            "a broadcast has no id: {}",
            card.body()
        );
        assert!(card.property("timestamp").is_some());
    }
}

#[test]
fn a_card_has_what_the_manifest_says_in_words_that_agents_take() {
    let card = MESH.agent.wait("init", "echo").body()["params"].clone();
    assert_eq!(
        (&card["description"], &card["instructions"]),
        (&json!("Says it again."), &json!("Use it to test."))
    );
    assert_eq!(card["artifact_params"]["picture"]["is_optional"], true);
    assert_eq!(
        (
            &card["config_schema"][0]["key"],
            &card["config_schema"][0]["secret"]
        ),
        (&json!("api_key"), &json!(true))
    );
    // The agent's model refused it otherwise; what could be kept is kept.
    let properties = &card["parameters"]["properties"];
    let names: Vec<_> = properties.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["either", "names", "text", "times", "tone"]);
    assert_eq!(card["parameters"]["required"], json!(["text"]));
    assert_eq!(properties["text"]["description"], "What to say");
    assert_eq!(
        properties["names"]["items"]["minLength"], 1,
        "what is referred to is put in its place"
    );
    assert!(
        properties["text"]["type"]
            .as_str()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("string"))
    );
}

#[test]
fn whoever_asks_is_answered_in_the_words_of_his_generation() {
    let id = MESH.agent.ask_for_card("init_request", "echo");
    let told = MESH.agent.wait("response", &id).body()["result"].clone();
    assert_eq!(
        (&told["tool_name"], &told["description"]),
        (&json!("echo"), &json!("Says it again."))
    );
    assert_eq!(told["parameters"]["required"], json!(["text"]));
    let id = MESH.agent.ask_for_card("init", "echo");
    let told = MESH.agent.wait("response", &id).body()["result"].clone();
    assert_eq!(told["tool_description"], "Says it again.");
    assert_eq!(told["parameters_schema"]["required"], json!(["text"]));
}

#[test]
fn a_class_tells_of_itself() {
    let id = MESH.agent.ask_for_card("init_request", "greeter");
    let told = MESH.agent.wait("response", &id).body()["result"].clone();
    assert!(
        told["description"]
            .as_str()
            .is_some_and(|text| text.starts_with("Greets in ")),
        "{told}"
    );
    assert!(
        told["parameters"]["properties"]["name"].is_object(),
        "{told}"
    );
}

#[test]
fn nobody_speaks_for_the_tools_of_others() {
    let foreign =
        ["init_request", "init"].map(|words| MESH.agent.ask_for_card(words, "foreign_tool"));
    let own = MESH.agent.ask_for_card("init_request", "echo");
    MESH.agent.wait("response", &own);
    MESH.agent.settle();
    for id in foreign {
        assert!(MESH.agent.all("response", &id).is_empty());
    }
}

#[test]
fn what_is_added_can_be_called_what_is_removed_is_told_once_what_changes_is_told_again() {
    let mesh = Mesh::new("Editor", |_| ());
    mesh.agent.wait("init", "echo");
    let before = broadcasts(&mesh, "echo").len();
    let usual = Tools::usual_entries();
    mesh.tools.manifest(&format!(
        "{usual}  added: {{module: toolbox, function: number, description: New}}\n"
    ));
    let card = mesh.agent.wait("init", "added");
    assert_eq!(card.body()["params"]["description"], "New");
    assert_eq!(
        mesh.agent.call(&Ask::new("added", json!({}))).tool_result()["text"],
        "42"
    );

    mesh.tools.manifest(&format!(
        "{usual}  added: {{module: toolbox, function: number, description: Newer}}\n"
    ));
    let is_newer = |card: &Message| card.body()["params"]["description"] == "Newer";
    until("the changed card", || {
        broadcasts(&mesh, "added")
            .iter()
            .any(is_newer)
            .then_some(())
    });
    assert_eq!(
        broadcasts(&mesh, "echo").len(),
        before,
        "nothing is told again of what did not change"
    );

    mesh.tools.manifest(&usual);
    let removed = mesh.agent.wait("removed", "added");
    assert_eq!(removed.body()["params"]["tool_name"], "added");
    let ask = Ask::new("added", json!({}));
    mesh.agent.send(&ask);
    mesh.agent.settle();
    assert!(
        mesh.agent
            .all("response", &ask.id)
            .iter()
            .all(|answer| answer.body()["error"].is_object())
    );
    assert_eq!(mesh.agent.all("removed", "added").len(), 1);
}

#[test]
fn a_manifest_that_cannot_be_read_takes_no_tool_away_and_is_named() {
    let mesh = Mesh::new("Editor", |_| ());
    mesh.tools.manifest("  echo: {module: [unclosed\n");
    mesh.sam.await_log("manifest");
    assert_eq!(
        mesh.agent
            .call(&Ask::new("echo", json!({"text": "still"})))
            .tool_result()["text"],
        "still"
    );
    let usual = Tools::usual_entries();
    mesh.tools.manifest(&format!(
        "{usual}  odd: {{module: toolbox, function: number, sandbox_profil: standard}}\n"
    ));
    mesh.sam.await_log("sandbox_profil");
    mesh.tools.manifest(&format!(
        "{usual}  good: {{module: toolbox, function: number}}\n"
    ));
    mesh.agent.wait("init", "good");
    assert!(mesh.agent.all("removed", "echo").is_empty());
}

#[test]
fn code_that_changes_is_run_as_it_is() {
    let mesh = Mesh::new("Editor", |_| ());
    let usual = Tools::usual_entries();
    mesh.tools.write(
        "python/changing.py",
        "def told():\n    return {'text': 'before'}\n",
    );
    mesh.tools.manifest(&format!(
        "{usual}  told: {{module: changing, function: told}}\n"
    ));
    mesh.agent.wait("init", "told");
    assert_eq!(
        mesh.agent.call(&Ask::new("told", json!({}))).tool_result()["text"],
        "before"
    );
    mesh.tools.write(
        "python/changing.py",
        "def told():\n    return {'text': 'after, and longer'}\n",
    );
    until("the new code", || {
        let answer = mesh.agent.call(&Ask::new("told", json!({})));
        (answer.tool_result()["text"] == "after, and longer").then_some(())
    });
}
