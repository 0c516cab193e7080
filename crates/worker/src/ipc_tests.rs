use super::*;
use ::provider::{Fault, Provider, Script, Settings as Scripted};
use doors::{
    catalogue,
    price::{Price, PriceBook, UnknownPricePolicy},
    secrets::KeySource,
};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs,
    os::fd::AsFd,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

const KEY: &str = "a-key-that-nobody-inside-may-see";

/// An engine whose doors lead to a provider of the test's own, and a folder to listen in.
struct Desktop {
    provider: Provider,
    engine: Engine,
    folder: PathBuf,
}

impl Drop for Desktop {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn desktop(dialect: Dialect) -> Desktop {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("airlock-ipc-{}-{number}", std::process::id()));
    fs::create_dir_all(folder.join("work")).unwrap();
    fs::write(folder.join("key"), KEY).unwrap();
    fs::set_permissions(
        folder.join("key"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let provider = Provider::start(Scripted {
        keys: vec![KEY.to_owned()],
        ..Scripted::default()
    });
    let settings = engine_settings(&provider, dialect, &folder, folder.join("state"));
    let engine = Engine::open(settings).unwrap();
    Desktop {
        provider,
        engine,
        folder,
    }
}

fn engine_settings(
    provider: &Provider,
    dialect: Dialect,
    folder: &Path,
    state: PathBuf,
) -> engine::Settings {
    let of_catalogue = catalogue::Provider {
        key: Some(KeySource::File(folder.join("key"))),
        allow_plain_http: true,
        allow_private: true,
        retries: 0,
        ..catalogue::Provider::new("p", dialect, provider.base().parse().unwrap())
    };
    let mut settings = engine::Settings::new(state);
    settings.doors.catalogue.providers = BTreeMap::from([("p".to_owned(), Arc::new(of_catalogue))]);
    let price = Price {
        input: 1_000_000,
        output: 2_000_000,
        ..Price::default()
    };
    let prices = PriceBook::new(
        vec![("*".parse().unwrap(), price)],
        UnknownPricePolicy::default(),
    );
    settings.doors.catalogue.prices = Arc::new(prices);
    settings
}

impl Desktop {
    fn settings(&self, state: PathBuf) -> engine::Settings {
        engine_settings(&self.provider, Dialect::OpenAi, &self.folder, state)
    }

    fn listen(&self, settings: ModelSettings) -> ModelListener {
        self.listen_to("work", settings)
    }

    fn listen_to(&self, call: &str, settings: ModelSettings) -> ModelListener {
        let place = self.folder.join(call);
        fs::create_dir_all(&place).unwrap();
        _ = fs::remove_file(place.join(SOCKET));
        let listener = bind(fs::File::open(place).unwrap().as_fd(), None).unwrap();
        let models = ModelProxy::new(self.engine.clone(), settings).unwrap();
        models.listen(&Id::new(call).unwrap(), listener)
    }

    async fn connect(&self) -> BufReader<UnixStream> {
        self.connect_to("work").await
    }

    async fn connect_to(&self, call: &str) -> BufReader<UnixStream> {
        BufReader::new(
            UnixStream::connect(self.folder.join(call).join(SOCKET))
                .await
                .unwrap(),
        )
    }
}

fn settings() -> ModelSettings {
    ModelSettings::new(None, "m")
}

fn question(id: &str) -> String {
    let params = json!({"system_prompt": "be brief", "user_prompt": "say it", "temperature": 9.0});
    json!({"jsonrpc": "2.0", "id": id, "method": "llm/call", "params": params}).to_string()
}

async fn heard(line: &mut BufReader<UnixStream>) -> Value {
    let mut answer = String::new();
    line.read_line(&mut answer).await.unwrap();
    assert!(!answer.contains(KEY), "{answer}");
    serde_json::from_str(&answer).unwrap_or(Value::Null)
}

async fn say(line: &mut BufReader<UnixStream>, what: &str) -> Value {
    line.get_mut()
        .write_all(format!("{what}\n").as_bytes())
        .await
        .unwrap();
    heard(line).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_answers_in_every_dialect_and_the_key_is_put_in_outside() {
    for dialect in [
        Dialect::OpenAi,
        Dialect::Anthropic,
        Dialect::Gemini,
        Dialect::Ollama,
    ] {
        let desktop = desktop(dialect);
        desktop.provider.set(Script {
            tokens: 3,
            input: Some(7),
            ..Script::default()
        });
        let listening = desktop.listen(settings());
        let mut line = desktop.connect().await;
        for id in ["1", "2"] {
            let answer = say(&mut line, &question(id)).await;
            let text = answer["result"]["text"]
                .as_str()
                .unwrap_or_else(|| panic!("{dialect:?}: {answer}"));
            assert_eq!(
                (&answer["id"], text.trim_end()),
                (&json!(id), "tok0 tok1 tok2"),
                "{dialect:?}"
            );
        }
        let served = desktop
            .provider
            .await_served(|served| served.count == 2 && served.open == 0);
        assert!(
            served
                .calls
                .iter()
                .all(|call| call.keys == [KEY] || dialect == Dialect::Ollama),
            "{served:?}"
        );
        assert!(
            served.calls.iter().all(|call| call.cap == Some(4096)),
            "{dialect:?}: {served:?}"
        );
        let spent = listening.close().await;
        assert_eq!(
            (spent.questions, spent.input_tokens, spent.output_tokens),
            (2, 14, 6),
            "{dialect:?}"
        );
        assert_eq!(
            line.read(&mut [0]).await.unwrap(),
            0,
            "the line ends with the call"
        );
        let left = fs::read_dir(desktop.folder.join("state/doors"))
            .unwrap()
            .count();
        assert_eq!(left, 0, "nothing stays of the door");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_make_no_sense_are_answered_and_the_next_is_served() {
    let desktop = desktop(Dialect::OpenAi);
    let _listening = desktop.listen(settings());
    let mut line = desktop.connect().await;
    for (said, id, code) in [
        ("nonsense", Value::Null, PARSE_ERROR),
        ("[1]", Value::Null, INVALID_REQUEST),
        ("{}", Value::Null, INVALID_REQUEST),
        (
            r#"{"id":{},"method":"llm/call"}"#,
            Value::Null,
            INVALID_REQUEST,
        ),
        (r#"{"id":"a"}"#, json!("a"), INVALID_REQUEST),
        (
            r#"{"id":"a","method":"shell/run"}"#,
            json!("a"),
            METHOD_NOT_FOUND,
        ),
        (r#"{"id":7,"method":"llm/call"}"#, json!(7), INVALID_PARAMS),
        (
            r#"{"id":"a","method":"llm/call","params":{"user_prompt":5}}"#,
            json!("a"),
            INVALID_PARAMS,
        ),
    ] {
        let answer = say(&mut line, said).await;
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&id, &json!(code)),
            "{said}: {answer}"
        );
        assert_eq!(answer["jsonrpc"], "2.0");
    }
    assert!(
        say(&mut line, &question("9")).await["result"]["text"].is_string(),
        "the control"
    );
    let long = "x".repeat(MAX_LINE_BYTES + 10);
    let answer = say(&mut line, &long).await;
    assert_eq!(answer["error"]["code"], MESSAGE_TOO_LARGE);
    assert!(
        matches!(line.read(&mut [0]).await, Ok(0) | Err(_)),
        "behind it nothing can be understood"
    );
    let mut half = desktop.connect().await;
    half.get_mut().write_all(b"{\"half\"").await.unwrap();
    drop(half);
    assert!(say(&mut desktop.connect().await, &question("9")).await["result"]["text"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_spent_is_spent_and_says_so() {
    let desktop = desktop(Dialect::OpenAi);
    let budget = Budget {
        requests: Some(1),
        ..Budget::default()
    };
    let listening = desktop.listen(ModelSettings {
        budget,
        ..settings()
    });
    let mut line = desktop.connect().await;
    assert!(
        say(&mut line, &question("1")).await["result"]["text"].is_string(),
        "the control"
    );
    let answer = say(&mut line, &question("2")).await;
    assert_eq!(answer["error"]["code"], BUDGET_EXHAUSTED, "{answer}");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("requests"),
        "{answer}"
    );
    let encode_response = listening.close().await.warning;
    assert!(
        encode_response
            .as_ref()
            .is_some_and(|encode_response| encode_response.contains("requests")),
        "the log names it: {encode_response:?}"
    );
    let _listening = desktop.listen(ModelSettings {
        questions: 2,
        ..settings()
    });
    let mut line = desktop.connect().await;
    for id in ["1", "2"] {
        assert!(say(&mut line, &question(id)).await["result"]["text"].is_string());
    }
    assert_eq!(
        say(&mut line, &question("3")).await["error"]["code"],
        BUDGET_EXHAUSTED
    );
    desktop
        .provider
        .await_served(|served| served.count == 3 && served.open == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_so_much_money_and_all_of_a_day_have() {
    let mut desktop = desktop(Dialect::OpenAi);
    let usual = settings().budget.money.unwrap();
    assert_eq!(
        usual,
        "1.00".parse().unwrap(),
        "nobody has all the money that there is"
    );
    let asked = async |desktop: &Desktop, money: &str| {
        let budget = Budget {
            money: money.parse().ok(),
            ..Budget::default()
        };
        let listening = desktop.listen(ModelSettings {
            budget,
            ..settings()
        });
        let mut line = desktop.connect().await;
        let answer = say(&mut line, &question("1")).await;
        (answer, listening.close().await)
    };
    let (answer, _) = asked(&desktop, "100").await;
    assert!(
        answer["result"]["text"].is_string(),
        "the control: {answer}"
    );
    let (answer, spent) = asked(&desktop, "0.000000001").await;
    assert_eq!(answer["error"]["code"], BUDGET_EXHAUSTED, "{answer}");
    assert!(
        spent
            .warning
            .is_some_and(|encode_response| encode_response.contains("run_usd")),
        "{answer}"
    );
    // With one ledger for all.
    for (day, code) in [
        ("100", Value::Null),
        ("0.000000001", json!(BUDGET_EXHAUSTED)),
    ] {
        desktop.engine = with_day(&desktop, day);
        let (answer, spent) = asked(&desktop, "100").await;
        assert_eq!(answer["error"]["code"], code, "{day}: {answer}");
        assert_eq!(
            spent
                .warning
                .is_some_and(|encode_response| encode_response.contains("tenant_day_usd")),
            !code.is_null()
        );
        let runs = fs::read_dir(desktop.folder.join(format!("state-{day}/ledger"))).unwrap();
        let runs = runs.filter(|file| {
            file.as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .starts_with("run-")
        });
        assert_eq!(runs.count(), 0, "no ledger of its own");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_at_once_hold_of_a_day_what_their_answers_may_cost_and_no_more() {
    let mut desktop = desktop(Dialect::OpenAi);
    // An answer may cost a little more than 8 millionths: for five there is enough, and the sixth may be shorter.
    desktop.engine = with_day(&desktop, "0.00005");
    desktop.provider.set(Fault::HoldHeaders);
    let mut listening = Vec::new();
    let mut asking = JoinSet::new();
    for number in 1..=6_u64 {
        let call = format!("call-{number}");
        listening.push(desktop.listen_to(&call, settings()));
        let mut line = desktop.connect_to(&call).await;
        asking.spawn(async move { say(&mut line, &question("1")).await });
        let served = desktop
            .provider
            .await_served(|served| served.held == number);
        let whole = served
            .calls
            .iter()
            .filter(|call| call.cap == Some(4096))
            .count();
        assert_eq!(whole as u64, number.min(5), "{served:?}");
    }
    let _listening = desktop.listen(settings());
    let answer = say(&mut desktop.connect().await, &question("1")).await;
    assert_eq!(answer["error"]["code"], BUDGET_EXHAUSTED, "{answer}");
    assert_eq!(answer["error"]["message"], day_budget_held());
    desktop.provider.set(Script::default());
    desktop.provider.release();
    while let Some(answer) = asking.join_next().await {
        assert!(answer.unwrap()["result"]["text"].is_string(), "the control");
    }
    let answer = say(&mut desktop.connect().await, &question("2")).await;
    assert!(
        answer["result"]["text"].is_string(),
        "what was not spent came back: {answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_answer_is_told_by_the_name_that_the_server_knows() {
    let mut desktop = desktop(Dialect::OpenAi);
    let names = ["max_tokens", "max_completion_tokens"];
    for name in names {
        let mut settings = desktop.settings(desktop.folder.join(format!("state-{name}")));
        let providers = &mut settings.doors.catalogue.providers;
        Arc::make_mut(providers.get_mut("p").unwrap()).output_cap = name;
        desktop.engine = Engine::open(settings).unwrap();
        let _listening = desktop.listen(self::settings());
        let answer = say(&mut desktop.connect().await, &question("1")).await;
        assert!(answer["result"]["text"].is_string(), "{answer}");
        let served = desktop
            .provider
            .await_served(|served| served.count == 1 && served.open == 0);
        let body: Value = serde_json::from_slice(&served.calls[0].body).unwrap();
        let encode_response = names.map(|one| (one == name).then_some(4096));
        assert_eq!(
            names.map(|one| body[one].as_u64()),
            encode_response,
            "{body}"
        );
        desktop.provider.reset();
    }
}

/// The same, with a ledger for all calls and so much money a day.
fn with_day(desktop: &Desktop, day: &str) -> Engine {
    let state = desktop.folder.join(format!("state-{day}"));
    fs::create_dir_all(state.join("ledger")).unwrap();
    let ledger = doors::ledger::Ledger::open(
        &state.join("ledger"),
        doors::ledger::OWNER_SEGMENT,
        Default::default(),
    );
    let mut settings = desktop.settings(state);
    settings.doors.till = Some(doors::budget::BudgetManager::new(Arc::new(ledger.unwrap())));
    let terms = doors::budget::AccountLimits {
        day: day.parse().ok(),
        ..Default::default()
    };
    settings.doors.tenants.insert(TENANT.to_owned(), terms);
    Engine::open(settings).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_refuses_is_told_without_the_key() {
    let desktop = desktop(Dialect::OpenAi);
    for (fault, trouble) in [
        (Fault::ErrorWithKey(401), Some("refused the credential")),
        (Fault::ErrorWithKey(403), Some("refused the credential")),
        (Fault::Refuse("too_long".into()), None),
        (Fault::Reset, Some("broke")),
    ] {
        let listening = desktop.listen(settings());
        let mut line = desktop.connect().await;
        desktop.provider.next(fault.clone());
        let answer = say(&mut line, &question("1")).await;
        assert_eq!(
            answer["error"]["code"], PROVIDER_ERROR,
            "{fault:?}: {answer}"
        );
        assert!(
            say(&mut line, &question("2")).await["result"]["text"].is_string(),
            "the control"
        );
        let encode_response = listening.close().await.warning;
        let is_it = |encode_response: &str| {
            trouble.is_some_and(|words| {
                encode_response.contains("model `m`") && encode_response.contains(words)
            })
        };
        assert!(
            encode_response.as_deref().map_or(trouble.is_none(), is_it),
            "{fault:?}: the log has {encode_response:?}"
        );
    }
}

/// What was reserved, in all ledgers of a state folder.
fn reserved(state: &Path) -> usize {
    let files = fs::read_dir(state.join("ledger")).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    texts
        .map(|text| text.matches("\"kind\":\"reserve\"").count())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_questions_do_not_fill_the_ledger() {
    let desktop = desktop(Dialect::OpenAi);
    for (money, written) in [("0.000000001", 0), ("100", 3)] {
        let budget = Budget {
            money: money.parse().ok(),
            ..Budget::default()
        };
        let listening = desktop.listen(ModelSettings {
            questions: 3,
            budget,
            ..settings()
        });
        let mut line = desktop.connect().await;
        for number in 0..50 {
            if number < written {
                desktop.provider.next(Fault::ErrorWithKey(401));
            }
            assert!(say(&mut line, &question("1")).await["error"].is_object());
        }
        listening.close().await;
        assert_eq!(reserved(&desktop.folder.join("state")), written, "{money}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_day_has_another_ledger_and_the_old_one_goes_when_it_is_old() {
    let mut desktop = desktop(Dialect::OpenAi);
    desktop.engine = with_day(&desktop, "100");
    let state = desktop.folder.join("state-100");
    let today = spec::Day::of(engine::now());
    let file = |day| {
        state
            .join("ledger")
            .join(format!("{}.jsonl", doors::ledger::daily_segment(day)))
    };
    for day in [today, spec::Day(today.0 + 1)] {
        desktop.engine.begin_day(day).unwrap();
        let listening = desktop.listen(settings());
        assert!(
            say(&mut desktop.connect().await, &question("1")).await["result"]["text"].is_string()
        );
        listening.close().await;
        let text = fs::read_to_string(file(day)).unwrap();
        assert_eq!(text.matches("\"kind\":\"reserve\"").count(), 1, "{text}");
    }
    // No day comes twice.
    desktop.engine.begin_day(today).unwrap();
    let books = engine::usage::UsageProjection::open(&state).unwrap();
    books.refresh().unwrap();
    let later = spec::Day(today.0 + 2).start().0;
    assert_eq!(books.retire(&state, 0, later).unwrap(), 0, "nothing is old");
    assert_eq!(
        books.retire(&state, later, later).unwrap(),
        1,
        "that of now is in use"
    );
    assert_eq!(
        (file(today).exists(), file(spec::Day(today.0 + 1)).exists()),
        (false, true)
    );
}

#[test]
fn what_no_question_can_be_answered_for_is_seen_from_what_is_configured() {
    let mut catalogue = Catalogue::default();
    let base = "http://127.0.0.1:9".parse().unwrap();
    let provider = catalogue::Provider::new("p", Dialect::OpenAi, base);
    catalogue
        .providers
        .insert("p".to_owned(), Arc::new(provider));
    let price = Price {
        input: 1,
        output: 1,
        ..Price::default()
    };
    let prices = PriceBook::new(
        vec![("known".parse().unwrap(), price)],
        UnknownPricePolicy::default(),
    );
    catalogue.prices = Arc::new(prices);
    let target = |model: &str| {
        vec![ModelTarget {
            provider: "p".to_owned(),
            model: model.to_owned(),
        }]
    };
    catalogue.models.insert("ours".to_owned(), target("known"));
    catalogue
        .models
        .insert("odd".to_owned(), target("nobody-knows"));
    for (model, is_fine) in [
        ("known", true),
        ("ours", true),
        ("nobody-knows", false),
        ("odd", false),
    ] {
        let why = unusable_model(&catalogue, "p", model);
        assert_eq!(why.is_none(), is_fine, "{model}: {why:?}");
        assert!(why.is_none_or(|why| why.contains("the price of") && why.contains(model)));
    }
    assert!(
        unusable_model(&catalogue, "q", "known")
            .unwrap()
            .contains("no provider `q`")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_provider_it_says_so_and_a_pattern_is_no_model() {
    let desktop = desktop(Dialect::OpenAi);
    let _listening = desktop.listen(ModelSettings::new(Some("other".to_owned()), "m"));
    let answer = say(&mut desktop.connect().await, &question("1")).await;
    assert_eq!(answer["error"]["code"], MODEL_UNAVAILABLE, "{answer}");
    for model in ["", "claude-*", "a b"] {
        assert!(
            ModelProxy::new(desktop.engine.clone(), ModelSettings::new(None, model)).is_err(),
            "{model}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_line_waits_until_another_leaves() {
    let desktop = desktop(Dialect::OpenAi);
    let _listening = desktop.listen(settings());
    let mut lines = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut line = desktop.connect().await;
        assert_eq!(say(&mut line, "{}").await["error"]["code"], INVALID_REQUEST);
        lines.push(line);
    }
    let mut fifth = desktop.connect().await;
    fifth.get_mut().write_all(b"{}\n").await.unwrap();
    // Those that are served go on meanwhile; had the fifth been taken, it would be answered before the last of these.
    for line in &mut lines {
        for _ in 0..20 {
            assert_eq!(say(line, "{}").await["error"]["code"], INVALID_REQUEST);
        }
    }
    assert!(
        fifth.get_ref().try_read(&mut [0]).is_err(),
        "nobody has answered it"
    );
    lines.pop();
    assert_eq!(heard(&mut fifth).await["error"]["code"], INVALID_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_leaves_nobody_waiting() {
    let desktop = desktop(Dialect::OpenAi);
    desktop.provider.set(Script {
        fault: Some(Fault::Silence),
        ..Script::default()
    });
    let listening = desktop.listen(settings());
    let mut line = desktop.connect().await;
    line.get_mut()
        .write_all(format!("{}\n", question("1")).as_bytes())
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        desktop
            .provider
            .await_served(|served| served.connections >= 1)
    });
    drop(listening);
    assert_eq!(line.read(&mut [0]).await.unwrap(), 0);
}

#[test]
fn a_link_in_the_way_of_the_socket_is_neither_followed_nor_replaced() {
    let desktop = desktop(Dialect::OpenAi);
    let work = desktop.folder.join("work");
    std::os::unix::fs::symlink(desktop.folder.join("elsewhere"), work.join(SOCKET)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    let folder = fs::File::open(&work).unwrap();
    assert!(bind(folder.as_fd(), None).is_err());
    assert!(!desktop.folder.join("elsewhere").exists());
}

#[test]
fn temperatures_are_kept_within_what_providers_take() {
    let asked = |temperature| LlmRequest {
        system_prompt: String::new(),
        user_prompt: "a".to_owned(),
        temperature,
    };
    for (dialect, given, sent) in [
        (Dialect::OpenAi, 9.0, 2.0),
        (Dialect::Anthropic, 1.5, 1.0),
        (Dialect::OpenAi, -1.0, 0.0),
        (Dialect::Anthropic, f64::NAN, 0.7),
    ] {
        let request = llm::request((dialect, "max_tokens"), &settings(), &asked(given));
        let body = futures_body(request);
        assert_eq!(body["temperature"], json!(sent));
        assert!(body.get("system").is_none() && body["messages"].as_array().unwrap().len() == 1);
    }
}

fn futures_body(request: hyper::Request<http_body_util::Full<bytes::Bytes>>) -> Value {
    use http_body_util::BodyExt;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let whole = runtime.block_on(request.into_body().collect()).unwrap();
    serde_json::from_slice(&whole.to_bytes()).unwrap()
}

proptest! {
    #[test]
    fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        _ = parse_request(&bytes);
        for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama] {
            _ = llm::text(dialect, &bytes);
        }
        prop_assert!(llm::complaint(&bytes).chars().count() <= 500);
    }

    #[test]
    fn answers_of_any_shape_have_a_text_or_not(text in "\\PC{0,20}", extra in "\\PC{0,5}") {
        let shapes = json!({
            "choices": [{"message": {"content": text}}], "message": {"content": text},
            "content": [{"type": "thinking", "thinking": extra}, {"type": "text", "text": text}],
            "candidates": [{"content": {"parts": [{"text": extra, "thought": true}, {"text": text}]}}],
        });
        for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini, Dialect::Ollama] {
            let wanted = if text.is_empty() { Err(TextError::Empty) } else { Ok(text.clone()) };
            prop_assert_eq!(llm::text(dialect, shapes.to_string().as_bytes()), wanted);
        }
    }
}

const TOOL: &str = "
import os

def tool(ctx):
    seen = [open('/proc/self/environ').read()]
    for folder, _, names in os.walk('/workspace'):
        seen += [open(os.path.join(folder, name), errors='replace').read() for name in names if name != 'ipc.sock']
    return {'text': ctx.call_llm('be brief', 'say it'), 'has key': any(KEY in one for one in seen), 'files': len(seen)}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_in_a_box_has_a_model_and_no_key() {
    let desktop = desktop(Dialect::Anthropic);
    desktop.provider.set(Script {
        tokens: 2,
        ..Script::default()
    });
    let request = spec::SessionRequest {
        run: spec::RunRequest::default(),
        idle: None,
        lifetime: None,
    };
    let admitted = spec::Policy::default().admit_session(request).unwrap();
    let session = desktop.engine.open_session(admitted).await.unwrap();
    let (folder, owner) = session.workspace().unwrap();
    let listener = bind(folder.as_fd(), owner).unwrap();
    let models = ModelProxy::new(desktop.engine.clone(), settings()).unwrap();
    let listening = models.listen(session.id(), listener);
    let place = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let order = json!({
        "module": "tool", "function": "tool", "ipc_socket": "/workspace/ipc.sock",
        "result_file": "/workspace/result.json", "output_dir": "/workspace/output",
    });
    // Not whole in the file itself, or in what Python makes of it: these are looked into, too.
    let (begin, end) = KEY.split_at(5);
    fs::write(
        place.join("tool.py"),
        format!("KEY = ''.join(['{begin}', '{end}'])\n{TOOL}"),
    )
    .unwrap();
    fs::write(place.join("runner.py"), include_str!("runner/runner.py")).unwrap();
    fs::write(place.join("args.json"), order.to_string()).unwrap();
    let exec = session
        .exec(spec::ExecRequest {
            command: ["python3", "/workspace/runner.py", "/workspace/args.json"]
                .map(Into::into)
                .to_vec(),
            env: vec![("PYTHONPATH".into(), "/workspace".into())],
            beginning: 4096,
            ..Default::default()
        })
        .await
        .unwrap();
    let ended = exec.wait().await;
    let said = String::from_utf8_lossy(&exec.take_beginning(spec::StdStream::Stderr)).into_owned();
    let result = fs::read_to_string(place.join("result.json"))
        .unwrap_or_else(|error| panic!("{error}: {ended:?} {said}"));
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(
        result["result"]["text"].as_str().map(str::trim_end),
        Some("tok0 tok1"),
        "{result} {said}"
    );
    assert_eq!(result["result"]["has key"], json!(false), "{result}");
    assert!(
        result["result"]["files"].as_u64() >= Some(4),
        "the control: it looked somewhere: {result}"
    );
    assert_eq!(listening.close().await.questions, 1);
    session.end().await;
}
