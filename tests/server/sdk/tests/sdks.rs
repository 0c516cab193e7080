//! The SDKs that everybody uses, unmodified, inside a sandbox: they are told nothing but what the environment there says.

use doors_tests::{Folder, REAL_KEY};
use provider::Operation;
use sdk_tests::{ProviderFixture, configuration, said, sdk};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// What the provider says.
const TOKENS: &str = "tok0 tok1 tok2 tok3 tok4 tok5 tok6 tok7 ";
const OPENAI: &str = include_str!("../sdk/openai.py");
const ANTHROPIC: &str = include_str!("../sdk/anthropic.py");
const GEMINI: &str = include_str!("../sdk/gemini.py");
const OLLAMA: &str = include_str!("../sdk/ollama.py");

/// Runs a script inside with the Python that has the SDKs; what it printed.
#[track_caller]
fn printed(desk: &ProviderFixture, python: &Path, door: &str, script: &str) -> Vec<String> {
    let mount = format!("{}:/sdk", python.display());
    let mut command = desk.command(&["run", door, "--mount", &mount, "--timeout", "120s"]);
    let output = command
        .args(["--", "/sdk/bin/python", "-c", script])
        .output()
        .expect("airlock starts");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// That the provider was asked for these, each with its own key and nothing else that looks like one.
#[track_caller]
fn asked(desk: &ProviderFixture, operations: &[Operation]) {
    let calls = desk.provider.served().calls;
    let seen: Vec<_> = calls.iter().map(|call| call.operation).collect();
    assert_eq!(seen, operations);
    assert!(
        calls
            .iter()
            .all(|call| call.keys == [REAL_KEY] && call.status == 200),
        "{calls:#?}"
    );
}

#[test]
fn openai_chats_streams_responds_embeds_and_lists() {
    let Some(python) = sdk::python("the SDK of OpenAI works inside") else {
        return;
    };
    let desk = ProviderFixture::new();
    let told = printed(&desk, &python, "--llm=openai", OPENAI);
    assert_eq!(told[..4], [TOKENS; 4]);
    assert!(
        told[4].starts_with('[') && told[5] == "['mock']",
        "{told:?}"
    );
    use Operation::*;
    let (chat, response) = (OpenAiChat, OpenAiResponses);
    asked(
        &desk,
        &[
            chat,
            chat,
            response,
            response,
            OpenAiEmbeddings,
            OpenAiModels,
        ],
    );
}

#[test]
fn anthropic_sends_messages_streams_counts_and_lists() {
    let Some(python) = sdk::python("the SDK of Anthropic works inside") else {
        return;
    };
    let desk = ProviderFixture::new();
    let told = printed(&desk, &python, "--llm=anthropic", ANTHROPIC);
    assert_eq!(told, [TOKENS, TOKENS, "True", "['mock']"]);
    use Operation::*;
    asked(
        &desk,
        &[
            AnthropicMessages,
            AnthropicMessages,
            AnthropicCountTokens,
            AnthropicModels,
        ],
    );
}

#[test]
fn gemini_generates_streams_counts_and_embeds() {
    let Some(python) = sdk::python("the SDK of Gemini works inside") else {
        return;
    };
    let desk = ProviderFixture::new();
    let told = printed(&desk, &python, "--llm=gemini", GEMINI);
    assert_eq!(told[..3], [TOKENS, TOKENS, "True"]);
    assert!(told[3].starts_with('['), "{told:?}");
    use Operation::*;
    asked(
        &desk,
        &[
            GeminiGenerate,
            GeminiStream,
            GeminiCountTokens,
            GeminiBatchEmbed,
        ],
    );
}

#[test]
fn ollama_finds_the_model_server_of_this_machine_and_cannot_change_it() {
    let Some(python) = sdk::python("the client of Ollama works inside") else {
        return;
    };
    let desk = ProviderFixture::new();
    let told = printed(&desk, &python, "--inference", OLLAMA);
    assert_eq!(told[..3], [TOKENS; 3]);
    assert!(told[3].starts_with("[["), "{told:?}");
    assert_eq!(told[4..], ["['mock:latest']", "404"]);
    use Operation::*;
    asked(
        &desk,
        &[
            OllamaChat,
            OllamaChat,
            OllamaGenerate,
            OllamaEmbed,
            OllamaTags,
        ],
    );
}

/// A server of others that checks keys; ends with the test.
struct Aimock {
    process: Child,
    base: String,
}

impl Aimock {
    fn start(program: &Path, folder: &Folder) -> Aimock {
        let answer = r#"{"fixtures":[{"match":{"userMessage":"hello"},"response":{"content":"from aimock"}}]}"#;
        fs::write(folder.at("fixtures.json"), answer).expect("a file for the test");
        let mut command = Command::new(program);
        command
            .args(["-p", "0", "-f"])
            .arg(folder.at("fixtures.json"))
            .env("AIMOCK_API_KEYS", REAL_KEY);
        command
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let stdout = BufReader::new(process.stdout.take().expect("it is ours"));
        let mut lines = stdout.lines().map(|line| line.expect("it speaks"));
        let line = lines
            .find(|line| line.contains("listening on "))
            .expect("it says where it listens");
        let base = line.rsplit(' ').next().expect("words").to_owned();
        // Nobody reads further, and it must not mind.
        std::thread::spawn(move || lines.for_each(drop));
        Aimock { process, base }
    }
}

impl Drop for Aimock {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[test]
fn a_server_that_others_wrote_and_that_checks_keys_answers_every_sdk() {
    const CLAIM: &str = "a server of others takes the key that the door puts in";
    let Some((python, program)) = sdk::python(CLAIM).zip(sdk::aimock(CLAIM)) else {
        return;
    };
    let desk = ProviderFixture::new();
    let server = Aimock::start(&program, &desk.folder);
    let with_key = |key: &str| {
        desk.give("other-key", key);
        let source = format!("{{ file = \"{}\" }}", desk.folder.at("other-key").display());
        desk.give("config.toml", &configuration(&server.base, &source));
    };
    let hello = "messages = [{'role': 'user', 'content': 'hello'}]";
    let scripts = [
        (
            "--llm=openai",
            "from openai import OpenAI as Client
print(Client().chat.completions.create(model='m', messages=messages).choices[0].message.content)",
        ),
        (
            "--llm=anthropic",
            "from anthropic import Anthropic as Client
print(Client().messages.create(model='m', max_tokens=9, messages=messages).content[0].text)",
        ),
        (
            "--llm=gemini",
            "from google import genai
# This server knows no later version.
client = genai.Client(http_options={'api_version': 'v1beta'})
print(client.models.generate_content(model='m', contents='hello').text)",
        ),
        (
            "--inference",
            "import ollama\nprint(ollama.chat(model='m', messages=messages).message.content)",
        ),
    ];
    with_key(REAL_KEY);
    for (door, script) in scripts {
        assert_eq!(
            printed(&desk, &python, door, &format!("{hello}\n{script}")),
            ["from aimock"],
            "{door}"
        );
    }
    // The control: it does look at keys, and ours being wrong is told as that.
    with_key("sk-wrong-key-of-nobody");
    let script = "tell(ask('POST', '/v1/chat/completions', chat()))";
    let told = &desk.inside(&["--llm=openai"], script)[0];
    assert_eq!(told[0], 502);
    assert!(
        told[1]
            .as_str()
            .is_some_and(|body| body.contains("upstream_credentials")),
        "{told}"
    );
}
