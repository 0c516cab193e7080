//! The real key is nowhere but in the memory of Airlock: case 70 of the escape suite, and what a program may be given.
//! The bytes that are looked for stand in no script and no argument, or they would be found there.

use doors_tests::REAL_KEY;
use provider::Fault;
use sdk_tests::{
    ProviderFixture, Who, ledger,
    look::{FOUND, halves, look},
    ordinary, said,
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

/// Where the key comes from, as the configuration says it.
#[derive(Clone, Copy, Debug)]
enum From {
    Store,
    Variable,
    File,
}

/// Puts the key where it comes from; the source as the configuration says it.
fn place(desk: &ProviderFixture, from: From) -> String {
    match from {
        From::File => format!("{{ file = \"{}\" }}", desk.folder.at("key").display()),
        From::Variable => "{ env = \"THE_REAL_KEY\" }".to_owned(),
        From::Store => {
            desk.keep("kept", REAL_KEY);
            "{ secret = \"kept\" }".to_owned()
        }
    }
}

fn nowhere_inside_or_in_what_is_said(from: From) {
    let desk = ProviderFixture::new();
    let source = place(&desk, from);
    desk.key_from(&source);
    fs::remove_file(desk.folder.at("key")).expect("it was there");
    if let From::File = from {
        desk.give("key", REAL_KEY);
    }
    let mut said_all = Vec::new();
    for more in [
        &["--json"][..],
        &["--explain"],
        &["--explain", "--json"],
        &["--run-id", "kept-run"],
    ] {
        let mut command = desk.python(
            &[&["--llm=openai", "--inference", "--memory", "1G"], more].concat(),
            &look(),
        );
        if let From::Variable = from {
            command.env("THE_REAL_KEY", REAL_KEY);
        }
        let output = command.output().expect("airlock starts");
        assert!(output.status.success(), "{from:?}: {}", said(&output));
        said_all.push(said(&output));
    }
    let result: Value = serde_json::from_str(&said_all[0]).expect("a result");
    let told = result["stdout"].as_str().expect("what it told");
    assert_eq!(told, format!("200\n200\n{FOUND}"), "{from:?}");
    assert!(
        said_all.iter().all(|said| !said.contains(REAL_KEY)),
        "{from:?}"
    );
    // Its own file is the one place; the state folder, with store, records and ledger, is none.
    let found = desk.folder.holding(REAL_KEY);
    let wanted: Vec<_> = matches!(from, From::File)
        .then(|| desk.folder.at("key"))
        .into_iter()
        .collect();
    assert_eq!(found, wanted, "{from:?}");
    assert!(
        desk.provider
            .served()
            .calls
            .iter()
            .all(|call| call.keys == [REAL_KEY]),
        "the control: it was used"
    );
    assert!(
        !ledger(&desk.state()).is_empty(),
        "the control: something was written"
    );
}

/// Case 70.
#[test]
fn a_key_from_the_store_is_nowhere() {
    nowhere_inside_or_in_what_is_said(From::Store);
}

/// Case 70.
#[test]
fn a_key_from_a_variable_is_nowhere() {
    nowhere_inside_or_in_what_is_said(From::Variable);
}

/// Case 70.
#[test]
fn a_key_from_a_file_is_nowhere_else() {
    nowhere_inside_or_in_what_is_said(From::File);
}

/// Case 72 of the escape suite: a server that says the key back, in an answer, an error, a stream, or packed.
#[test]
fn a_key_that_the_provider_says_back_does_not_come_in() {
    let desk = ProviderFixture::new();
    desk.provider.set_model("echo", Fault::EchoHeaders);
    desk.provider.set_model("error", Fault::ErrorWithKey(400));
    desk.provider.set_model("server", Fault::ErrorWithKey(500));
    desk.provider
        .set_model("packed", Fault::Encoding(provider::Encoding::Gzip));
    let script = format!(
        "KEY = {}\nKEY = ''.join(bytes.fromhex(part).decode() for part in KEY)
for model in ('echo', 'error', 'server', 'packed'):
    for stream in (False, True):
        status, body = ask('POST', '/v1/chat/completions', chat(model, stream=stream))
        tell([model, status, KEY in body, 'authorization' in body.lower()])",
        halves(REAL_KEY)
    );
    let told = desk.inside(&["--llm=openai"], &script);
    assert_eq!(told.len(), 8);
    assert!(told.iter().all(|one| one[2] == false), "{told:?}");
    assert_eq!(
        (&told[0][1], &told[0][3]),
        (&json!(200), &json!(true)),
        "the control: it was echoed: {told:?}"
    );
    assert!(
        told[6..].iter().all(|one| one[1] == 502),
        "what is packed cannot be looked at: {told:?}"
    );
    // No other protocol is changed to, in which nobody would look.
    let script = "
headers = {'connection': 'upgrade', 'upgrade': 'websocket', 'sec-websocket-key': 'AAAA', 'sec-websocket-version': '13'}
tell(ask('GET', '/v1/realtime?model=echo', None, headers)[0])
tell(ask('POST', '/v1/chat/completions', chat('m'), headers)[0])";
    assert_eq!(desk.inside(&["--llm=openai"], script), [404, 200]);
    let calls = desk.provider.served().calls;
    assert!(
        calls
            .iter()
            .all(|call| call.keys == [REAL_KEY] && call.header("upgrade").is_none()),
        "{calls:#?}"
    );
}

/// What another process of the same user reads of this one's memory and environment.
fn read_by(who: Who, pid: u32) -> (bool, bool) {
    let can = |name: &str| {
        // Opening is the check; of memory a byte is asked for, too.
        let mut command = Command::new("dd");
        command
            .args(["count=0", "status=none", &format!("if=/proc/{pid}/{name}")])
            .stderr(Stdio::null());
        if let Who::Ordinary(user, group) = who {
            command.uid(user).gid(group);
        }
        command.status().expect("dd starts").success()
    };
    (can("mem"), can("environ"))
}

/// Whoever makes boxes for this user: an injected secret passes through them.
fn launchers(who: Who) -> Vec<u32> {
    let Who::Ordinary(user, _) = who else {
        panic!("somebody else")
    };
    let is_one = |pid: &u32| {
        let folder = format!("/proc/{pid}");
        let told = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        told.starts_with("Name:\tairlock-init\n") && told.contains(&format!("\nUid:\t{user}\t"))
    };
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|one| one.file_name().to_str()?.parse().ok())
        .filter(is_one)
        .collect()
}

fn core_limit(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .expect("it is listed");
    line.split_whitespace().nth(4).expect("a limit").to_owned()
}

#[test]
fn while_a_run_holds_a_key_others_of_the_same_user_cannot_read_its_memory() {
    let Some(who) = ordinary("the memory of a run is closed to its own user") else {
        return;
    };
    let desk = ProviderFixture::of(who, "");
    desk.keep("token", "a-secret-for-the-program");
    let script = "tell(os.getpid() > 0)\ninput()";
    let cases: [(&[&str], bool); 4] = [
        (&[], true),
        (&["--llm=openai"], false),
        (&["--inference"], false),
        (&["--profile", "agent", "--secret", "token=TOKEN"], false),
    ];
    for (options, readable) in cases {
        let mut run = desk.begin(options, script);
        assert_eq!(run.told(), true, "it runs: {options:?}");
        let pid = run.process.id();
        assert_eq!(
            read_by(who, pid),
            (readable, readable),
            "without a key is the control: {options:?}"
        );
        assert_eq!(
            core_limit(pid) == "0",
            !readable || core_limit(std::process::id()) == "0",
            "{options:?}"
        );
        let launchers = launchers(who);
        assert!(!launchers.is_empty(), "the control: it has a box");
        let readable = launchers
            .iter()
            .find(|pid| read_by(who, **pid) != (false, false));
        assert_eq!(readable, None, "nor those who make boxes: {options:?}");
        run.go_on();
        run.end();
    }
}

#[test]
fn a_secret_is_let_in_where_the_profile_allows_it_and_written_down_by_name_alone() {
    const VALUE: &str = "value-of-the-injected-one";
    let desk = ProviderFixture::new();
    desk.keep("token", VALUE);
    let script = "tell([len(os.environ['TOKEN']), os.environ['TOKEN'][:6], sorted(os.environ).count('TOKEN')])";
    let options = [
        "--profile",
        "agent",
        "--secret",
        "token=TOKEN",
        "--run-id",
        "with-secret",
    ];
    let result = desk.result(&options, script);
    assert_eq!(
        result["stdout"],
        format!("[{}, \"value-\", 1]\n", VALUE.len())
    );
    let notes = result["notes"].as_array().expect("notes");
    assert!(
        notes.contains(&json!("the secret `token` was injected as TOKEN")),
        "{notes:?}"
    );
    let explained = desk
        .python(&[&["--explain"], &options[..]].concat(), script)
        .output()
        .expect("it starts");
    assert!(
        said(&explained).contains("`token` as TOKEN"),
        "{}",
        said(&explained)
    );
    assert!(!said(&explained).contains(VALUE) && !result.to_string().contains(VALUE));
    assert_eq!(desk.folder.holding(VALUE), Vec::<std::path::PathBuf>::new());
    let records = ledger(&desk.state());
    let one = records
        .iter()
        .find(|record| record["kind"] == "inject")
        .expect("it is written down");
    let told = ["run", "secret", "variable"].map(|name| one[name].clone());
    assert_eq!(told, ["with-secret", "token", "TOKEN"]);
    assert!(
        Path::new(&desk.state())
            .join("ledger/run-with-secret.jsonl")
            .exists()
    );
    let refused = desk.result(&["--secret", "token=TOKEN"], script);
    assert_eq!(
        (&refused["status"], &refused["error"]["code"]),
        (&json!("not_started"), &json!("policy_denied"))
    );
}

#[test]
fn a_secret_that_cannot_be_written_down_is_not_let_in() {
    let desk = ProviderFixture::new();
    desk.keep("token", "a-value");
    fs::write(desk.state().join("ledger"), "no folder").expect("a file in the way");
    let options = ["--profile", "agent", "--secret", "token=TOKEN"];
    let result = desk.result(&options, "tell('it ran')");
    assert_eq!(
        (&result["status"], &result["stdout"]),
        (&json!("not_started"), &json!("")),
        "{result:#}"
    );
    let message = result["error"]["message"].as_str().expect("words");
    assert!(message.starts_with("cannot begin a ledger"), "{message}");
}

#[test]
fn a_secret_and_a_door_share_one_ledger() {
    let desk = ProviderFixture::new();
    desk.keep("token", "another-value");
    let script = "tell(ask('POST', '/v1/chat/completions', chat())[0])";
    let options = [
        "--profile",
        "agent",
        "--secret",
        "token=A",
        "--secret",
        "token=B",
        "--llm=openai",
    ];
    assert_eq!(desk.inside(&options, script), [200]);
    let kinds: Vec<_> = ledger(&desk.state())
        .iter()
        .map(|record| record["kind"].clone())
        .collect();
    assert_eq!(
        kinds,
        ["open", "inject", "inject", "reserve", "settle", "close"]
    );
}

/// Case 79 of the escape suite: a secret in flight when things go wrong.
#[test]
fn whatever_goes_wrong_is_told_without_the_key() {
    let desk = ProviderFixture::new();
    let faults = [
        Fault::Reset,
        Fault::BadFraming(1),
        Fault::BadJson(1),
        Fault::Cut(1),
        Fault::HeaderGiant(200_000),
    ];
    for fault in faults {
        desk.provider.set(fault.clone());
        let script = "
try:
    tell(ask('POST', '/v1/chat/completions', chat(stream=True))[0])
except http.client.HTTPException:
    tell('cut')";
        let mut command = desk.python(&["--llm=openai", "--json"], script);
        command
            .env("RUST_BACKTRACE", "full")
            .env("RUST_LOG", "trace");
        let output = command.output().expect("airlock starts");
        assert!(
            !said(&output).contains(REAL_KEY) && !said(&output).contains("panicked"),
            "{fault:?}"
        );
    }
    let mut killed = desk.begin(&["--llm=openai"], "tell(ask('GET', '/health')[0])\ninput()");
    assert_eq!(killed.told(), 200);
    let pid = rustix::process::Pid::from_child(&killed.process);
    rustix::process::kill_process(pid, rustix::process::Signal::ABORT).expect("it is ours");
    let output = killed.process.wait_with_output().expect("it ends");
    assert!(!output.status.success() && !said(&output).contains(REAL_KEY));
    let found = desk.folder.holding(REAL_KEY);
    assert_eq!(found, [desk.folder.at("key")], "no core, no log");
}
