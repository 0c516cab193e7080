//! Bills: what a tenant is told that it used is what the provider says it served, whoever asks, in whatever form, and
//! however the server ended meanwhile.

use doors::ledger::{self, Durability, Ledger, ModelCall};
use doors_tests::money::{dollars, price};
use gateway_tests::{refusal, serve};
use node_tests::{
    Folder, Server, key_of,
    payers::{Payers, cost, order},
};
use provider::Fault;
use rustix::process::Signal;
use serde_json::{Value, json};
use spec::{Day, Money};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

const ALL: &[&str] = &["runs", "sandboxes", "usage"];

fn usage(server: &Server, key: &str, query: &str) -> Value {
    let answer = server.ask(key, "GET", &format!("/v1/usage{query}"), &[], &Value::Null);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["rows"].clone()
}

/// Name, calls and money of each row.
fn sums(rows: &Value) -> Vec<(String, u64, u64)> {
    let rows = rows.as_array().expect("rows").iter();
    let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    rows.map(|row| {
        let key = row["key"].as_str().expect("a key").to_owned();
        (key, number(row, "calls"), number(row, "cost_nano_usd"))
    })
    .collect()
}

#[test]
fn a_tenant_is_told_exactly_what_the_provider_served_it_and_nothing_of_others() {
    let payers = Payers::new("");
    let server = &payers.server;
    let [one, two, other] =
        [("acme", 1), ("acme", 2), ("else", 1)].map(|(tenant, _)| key_of(server, tenant, ALL));
    payers.call(&one, &["a", "a"]);
    let second = payers.call(&two, &["a"]);
    let theirs = payers.call(&other, &["b", "=1+1"]);
    let served = payers.provider.await_served(|served| served.open == 0);
    let of = |model: &str| {
        let calls: Vec<_> = served
            .calls
            .iter()
            .filter(|call| call.model == model)
            .collect();
        (
            calls.len() as u64,
            calls.iter().map(|call| price(&call.tokens)).sum::<u64>(),
        )
    };
    let ((a, a_money), (b, b_money), (c, c_money)) = (of("a"), of("b"), of("=1+1"));
    assert_eq!((a, b, c), (3, 1, 1));
    let acme = ("acme".to_owned(), a, a_money);
    for key in [&one, &two] {
        for query in [
            "?by=tenant",
            "?by=tenant&tenant=else",
            "?by=tenant&tenant=nobody",
        ] {
            assert_eq!(
                sums(&usage(server, key, query)),
                std::slice::from_ref(&acme),
                "{query}"
            );
        }
        assert_eq!(
            sums(&usage(server, key, "?by=model")),
            [("a".to_owned(), a, a_money)]
        );
    }
    let all = sums(&usage(server, &server.admin, "?by=tenant"));
    assert_eq!(
        all.iter().map(|(_, _, money)| money).sum::<u64>(),
        price(&served.tokens)
    );
    assert!(
        all.contains(&acme) && all.contains(&("else".to_owned(), b + c, b_money + c_money)),
        "{all:?}"
    );
    assert_eq!(
        sums(&usage(server, &server.admin, "?by=model&tenant=acme")),
        [("a".to_owned(), a, a_money)]
    );
    let run = |key: &str, id: &Value| {
        let path = format!("/v1/usage?run={}", id.as_str().expect("a name"));
        let answer = server.ask(key, "GET", &path, &[], &Value::Null);
        (answer.status, answer.text())
    };
    assert_eq!(
        run(&one, &second["run_id"]).0,
        200,
        "whichever key of the tenant it was"
    );
    assert_eq!(
        run(&one, &theirs["run_id"]),
        run(&one, &json!("no-such-run"))
    );
    assert_eq!(run(&one, &theirs["run_id"]).0, 404);
}

#[test]
fn tables_say_the_same_as_json_and_steer_no_spreadsheet() {
    let payers = Payers::new("");
    let server = &payers.server;
    let key = key_of(server, "acme", ALL);
    payers.call(&key, &["m", "=1+1", "@x"]);
    payers.provider.await_served(|served| served.open == 0);
    let csv = |path: &str, headers: &[(&str, &str)]| {
        let answer = server.ask(&key, "GET", path, headers, &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(
            answer
                .header("content-type")
                .expect("a type")
                .starts_with("text/csv")
        );
        answer.text()
    };
    let table = csv("/v1/usage?by=model&format=csv", &[]);
    assert_eq!(csv("/v1/usage?by=model", &[("accept", "text/csv")]), table);
    let rows = usage(server, &key, "?by=model");
    let quoted = |key: &str| match key {
        key if key.starts_with(['=', '@']) => format!("\"'{key}\""),
        key => format!("\"{}\"", key.replace('"', "\"\"")),
    };
    let expected: Vec<_> = sums(&rows)
        .into_iter()
        .map(|(key, calls, money)| (quoted(&key), format!("{calls},"), format!(",{money},")))
        .collect();
    let lines: Vec<_> = table.split("\r\n").collect();
    assert_eq!(
        (lines.len(), lines[4], expected.len()),
        (5, "", 3),
        "{table}"
    );
    assert!(lines[0].starts_with("model,calls,input_tokens,"), "{table}");
    for (line, (key, calls, money)) in lines[1..4].iter().zip(expected) {
        let rest = line
            .strip_prefix(&format!("{key},"))
            .unwrap_or_else(|| panic!("{line} {key}"));
        assert!(rest.starts_with(&calls) && rest.contains(&money), "{line}");
    }
    let command = |words: &[&str]| {
        let mut airlock = Command::new(cli::airlock());
        airlock.arg("--config").arg(server.folder.at("config.toml"));
        let output = airlock
            .arg("--state")
            .arg(server.folder.at("state"))
            .args(words)
            .output();
        String::from_utf8(output.expect("airlock starts").stdout).expect("text")
    };
    let local = command(&["usage", "--by", "model", "--tenant", "acme", "--csv"]);
    assert_eq!(local, table, "the same at the machine itself");
}

#[test]
fn days_and_months_are_asked_for_and_what_may_change_says_so() {
    let payers = Payers::new("");
    let server = &payers.server;
    let key = key_of(server, "acme", ALL);
    payers.call(&key, &["m"]);
    let rows = usage(server, &key, "?by=day");
    let today = rows[0]["key"].as_str().expect("a day").to_owned();
    let row = |query: &str| usage(server, &key, query)[0].clone();
    let day = row(&format!("?by=tenant&day={today}"));
    assert_eq!(
        (&day["cost_nano_usd"], &day["runs"]),
        (&json!(cost()), &json!(1)),
        "{day}"
    );
    assert_eq!(row(&format!("?by=tenant&month={}", &today[..7])), day);
    assert_eq!(
        (&day["may_change"], &rows[0]["may_change"]),
        (&json!(true), &json!(true))
    );
    assert!(day["cpu_ms"].as_u64().is_some_and(|cpu| cpu > 0), "{day}");
    assert_eq!(usage(server, &key, "?by=tenant&day=2020-01-01"), json!([]));
    assert_eq!(usage(server, &key, "?by=day&until_ms=1000"), json!([]));
    for bad in [
        "?day=2020-02-30",
        "?month=2020-13",
        "?day=2020-01-01&month=2020-01",
        "?since_ms=-1",
        "?by=x",
    ] {
        let answer = server.ask(&key, "GET", &format!("/v1/usage{bad}"), &[], &Value::Null);
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
    }
}

#[test]
fn what_was_reserved_counts_in_the_day_of_a_tenant_although_its_server_was_killed() {
    let configuration = format!("[tenant.acme]\nday_usd = {}\n", dollars(2 * cost()));
    let payers = Payers::new(&configuration);
    let [acme, other] = ["acme", "else"].map(|tenant| key_of(&payers.server, tenant, ALL));
    assert_eq!(payers.call(&acme, &["m"])["stdout"], "200 ");
    payers.provider.next(Fault::HoldHeaders);
    let asked = payers.server.request(
        &acme,
        "POST",
        "/v1/runs",
        &[("prefer", "respond-async")],
        &order(&["m"]),
    );
    assert_eq!(payers.server.client.open(&asked).answer().status, 202);
    payers.provider.await_served(|served| served.held == 1);
    let Payers {
        server,
        provider,
        configuration,
        ..
    } = &mut { payers };
    let server = std::mem::replace(server, Server::new()).restart(Signal::KILL, configuration);
    provider.release();
    let rows = usage(&server, &acme, "?by=tenant");
    assert_eq!(sums(&rows), [("acme".to_owned(), 2, 2 * cost())], "{rows}");
    assert_eq!(
        rows[0]["unsettled_nano_usd"],
        json!(cost()),
        "apart, since nobody saw its end"
    );
    let quota = server
        .ask(&acme, "GET", "/v1/quota", &[], &Value::Null)
        .json();
    assert_eq!(
        quota["money_of_day"]["spent_nano_usd"],
        json!(2 * cost()),
        "{quota}"
    );
    let refused = server.ask(&acme, "POST", "/v1/runs", &[], &order(&["m"]));
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!("budget_exceeded")),
        "{}",
        refused.text()
    );
    assert!(refused.text().contains("tenant_day_usd") && refused.text().contains("begins anew"));
    let seconds: u64 = refused
        .header("retry-after")
        .and_then(|text| text.parse().ok())
        .expect("when");
    assert!(seconds <= 86_400);
    let without = json!({ "command": ["echo", "hello"] });
    assert_eq!(
        server.ask(&acme, "POST", "/v1/runs", &[], &without).json()["stdout"],
        "hello\n",
        "no model"
    );
    let theirs = server.ask(&other, "POST", "/v1/runs", &[], &order(&["m"]));
    assert_eq!(
        theirs.json()["stdout"],
        "200 ",
        "the day of another is his own"
    );
    let mut verify = Command::new(cli::airlock());
    verify
        .arg("--state")
        .arg(server.folder.at("state"))
        .args(["usage", "--verify"]);
    let verified = verify.output().expect("airlock starts");
    assert!(
        verified.status.success(),
        "{}",
        String::from_utf8_lossy(&verified.stderr)
    );
}

#[test]
fn a_spent_day_ends_the_call_by_its_name_and_not_the_run_and_all_runs_of_a_tenant_share_it() {
    let configuration = format!("[tenant.\"*\"]\nday_usd = {}\n", dollars(3 * cost()));
    let payers = Payers::new(&configuration);
    let [one, two, other] =
        ["acme", "acme", "else"].map(|tenant| key_of(&payers.server, tenant, ALL));
    assert_eq!(payers.call(&one, &["m", "m"])["stdout"], "200 200 ");
    let result = payers.call(&two, &["m", "m"]);
    assert_eq!(
        result["stdout"], "200 402 limit `tenant_day_usd`\n",
        "{result}"
    );
    assert_eq!(
        (&result["status"], &result["usage"]["llm"]["calls"]),
        (&json!("succeeded"), &json!(1)),
        "{result}"
    );
    assert_eq!(
        payers.call(&other, &["m", "m", "m"])["stdout"],
        "200 200 200 ",
        "each for itself"
    );
    let served = payers.provider.await_served(|served| served.open == 0);
    assert_eq!((served.count, price(&served.tokens)), (6, 6 * cost()));
    let of = |tenant: &str| (tenant.to_owned(), 3, 3 * cost());
    assert_eq!(
        sums(&usage(&payers.server, &payers.server.admin, "?by=tenant")),
        [of("acme"), of("else")]
    );
}

#[test]
fn a_server_and_a_proxy_do_not_own_the_money_of_one_folder() {
    let server = Server::new();
    let mut proxy = Command::new(cli::airlock());
    proxy
        .args(["proxy", "--listen", "127.0.0.1:0", "--state"])
        .arg(server.folder.at("state"));
    let refused = proxy.output().expect("airlock starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(
        said.contains("belongs to another process") && said.contains("airlock serve"),
        "{said}"
    );
    let folder = Folder::new();
    let mut proxy = Command::new(cli::airlock());
    proxy
        .args(["proxy", "--json", "--listen", "127.0.0.1:0", "--state"])
        .arg(folder.at("state"));
    let mut proxy = proxy
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("airlock starts");
    let mut line = String::new();
    let stdout = proxy.stdout.as_mut().expect("it is ours");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
        .expect("it is ready");
    let said = gateway_tests::refusal(&mut gateway_tests::serve(&folder, "", &[]));
    assert!(said.contains("airlock proxy"), "{said}");
    proxy.kill().expect("it is ours");
    proxy.wait().expect("it ends");
}

/// What the server's ledger of the last day says, and where it is.
fn own_ledger(folder: &Folder) -> (PathBuf, String) {
    let files = std::fs::read_dir(folder.at("state/ledger")).expect("a ledger");
    let paths = files.map(|file| file.expect("a file").path());
    let path = paths
        .filter(|path| path.to_string_lossy().contains("/owner-"))
        .max()
        .expect("a day");
    let text = std::fs::read_to_string(&path).expect("a ledger");
    (path, text)
}

/// The same without its last line.
fn cut(text: &str) -> &str {
    let end = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
    &text[..end]
}

fn name(path: &Path) -> String {
    path.file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

fn set_aside(folder: &Folder) -> Value {
    let aside = Command::new(cli::airlock())
        .args(["usage", "--set-aside", "--json", "--state"])
        .arg(folder.at("state"))
        .output()
        .expect("it runs");
    assert!(
        aside.status.success(),
        "{}",
        String::from_utf8_lossy(&aside.stderr)
    );
    serde_json::from_slice(&aside.stdout).expect("JSON")
}

#[test]
fn a_server_starts_upon_no_ledger_of_which_something_was_cut_off() {
    let mut server = Server::new();
    assert!(server.end(Signal::TERM).0.success());
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    for path in [own_ledger(&folder).0, folder.at("state/ledger/owner.jsonl")] {
        let whole = std::fs::read_to_string(&path).expect("a ledger");
        std::fs::write(&path, cut(&whole)).expect("it is ours");
        let told = refusal(&mut serve(&folder, "", &[]));
        assert!(
            told.contains("--set-aside") && told.contains("it was longer"),
            "{told}"
        );
        assert!(told.contains(&format!("{}.jsonl", name(&path))), "{told}");
        assert_eq!(
            std::fs::read_to_string(&path).expect("a ledger"),
            cut(&whole),
            "as it was found"
        );
        std::fs::remove_file(&path).expect("it is ours");
        let told = refusal(&mut serve(&folder, "", &[]));
        assert!(told.contains("it is gone"), "{told}");
        std::fs::write(&path, &whole).expect("it is ours");
    }
    // The positive control: nothing is cut off.
    let server = Server::on(folder, "", &[], Some(server.admin.clone()));
    assert_eq!(server.get("/v1/usage").status, 200);
}

#[test]
fn what_a_killed_server_had_read_cannot_be_cut_off_and_set_aside_it_starts() {
    let mut server = Server::new();
    // The database knows all of it by now.
    assert_eq!(server.get("/v1/usage").status, 200);
    server.end(Signal::KILL);
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    let (path, whole) = own_ledger(&folder);
    std::fs::write(&path, cut(&whole)).expect("it is ours");
    let told = refusal(&mut serve(&folder, "", &[]));
    assert!(told.contains("--set-aside"), "{told}");
    assert_eq!(
        set_aside(&folder)["segments"],
        json!([name(&path)]),
        "and nothing else"
    );
    let server = Server::on(folder, "", &[], Some(server.admin.clone()));
    assert_eq!(server.get("/v1/usage").status, 200);
}

fn shown(server: &Server, key: &str, id: &str) -> Value {
    server
        .ask(key, "GET", &format!("/v1/jobs/{id}"), &[], &Value::Null)
        .json()
}

fn submitted(server: &Server, key: &str, order: &Value) -> String {
    let made = server.ask(key, "POST", "/v1/jobs", &[], order);
    assert_eq!(made.status, 202, "{}", made.text());
    made.json()["job_id"].as_str().expect("a name").to_owned()
}

/// How often the audit says that this job did not start because the money of the day is spent.
fn told_of_no_money(server: &Server, id: &str) -> usize {
    let lines = server.get("/v1/audit?what=job.start&limit=1000").json();
    let lines = lines["lines"].as_array().expect("lines").iter();
    lines
        .filter(|line| line["job"] == id && line["decision"] == "refused")
        .inspect(|line| {
            assert_eq!(
                (&line["rule"], &line["tenant"]),
                (&json!("quota:tenant_day_usd"), &json!("acme"))
            );
        })
        .count()
}

#[test]
fn a_job_that_finds_no_money_waits_alone_is_told_of_once_and_runs_when_there_is_some() {
    let gate = Folder::new();
    let settings = |day: &str| {
        let serve = format!("[serve]\nfolders = [{:?}]\n[jobs]\nslots = 1\n", gate.0);
        format!("{serve}[tenant.acme]\nday_usd = {day}\n")
    };
    let payers = Payers::new(&settings(&dollars(2 * cost())));
    let Payers {
        server,
        provider,
        configuration,
        ..
    } = &mut { payers };
    let raised = configuration.replace(&settings(&dollars(2 * cost())), &settings("1000.0"));
    let [acme, other] = ["acme", "else"].map(|tenant| key_of(server, tenant, ALL));
    // They are sent while there is money, and have their turn when it is spent.
    let wait = "until [ -e /gate/open ]; do sleep 0.02; done";
    let mounts = json!([format!("{}:/gate:ro", gate.0.display())]);
    let first = json!({ "run": { "command": ["sh", "-c", wait], "mounts": mounts } });
    let first = submitted(server, &acme, &first);
    let agent = json!({ "prompt": "Do.", "model": "m", "run": { "llm": "openai" } });
    let costly = [
        submitted(
            server,
            &acme,
            &json!({ "run": order(&["m"]), "after": [first] }),
        ),
        submitted(server, &acme, &json!({ "agent": agent, "after": [first] })),
    ];
    let free = json!({ "run": { "command": ["echo", "free"] } });
    let mut later = free.clone();
    later["after"] = json!([first]);
    let later = submitted(server, &acme, &later);
    let spent = server.ask(&acme, "POST", "/v1/runs", &[], &order(&["m", "m"]));
    assert_eq!(spent.json()["stdout"], "200 200 ", "{}", spent.text());
    let theirs = submitted(server, &other, &json!({ "run": order(&["m"]) }));
    std::fs::write(gate.at("open"), "").expect("it is ours");
    for id in &costly {
        server.until("a job that waits for money", || {
            shown(server, &acme, id)["waiting_for"] == "quota"
        });
        let job = shown(server, &acme, id);
        assert_eq!(
            (&job["status"], &job["attempt"], &job["runs"]),
            (&json!("queued"), &json!(0), &json!([])),
            "{job}"
        );
        assert_eq!(job["error"]["code"], "budget_exceeded", "{job}");
        let message = job["error"]["message"].as_str().expect("a message");
        assert!(message.contains("`tenant_day_usd`"), "{job}");
    }
    // There is one slot, and whoever waits for money does not hold it.
    let ends = |server: &Server, key: &str, id: &str| {
        server.until("an end", || !shown(server, key, id)["ended_at"].is_null());
        shown(server, key, id)
    };
    assert_eq!(ends(server, &acme, &later)["result"]["stdout"], "free\n");
    assert_eq!(ends(server, &other, &theirs)["result"]["stdout"], "200 ");
    assert_eq!(
        provider.await_served(|served| served.open == 0).count,
        3,
        "nobody else was served"
    );
    assert_eq!(
        costly.each_ref().map(|id| told_of_no_money(server, id)),
        [1, 1]
    );
    // A start looks at them again, before what comes later, and finds as little as before.
    let server = std::mem::replace(server, Server::new()).restart(Signal::KILL, configuration);
    let after = submitted(&server, &acme, &free);
    ends(&server, &acme, &after);
    for id in &costly {
        server.until("it waits again", || {
            shown(&server, &acme, id)["waiting_for"] == "quota"
        });
        assert_eq!(
            told_of_no_money(&server, id),
            1,
            "whoever waits for long is told of once"
        );
    }
    let server = server.restart(Signal::TERM, &raised);
    let [run, agent] = costly.each_ref().map(|id| ends(&server, &acme, id));
    assert_eq!(
        (&run["attempt"], &run["result"]["stdout"]),
        (&json!(1), &json!("200 ")),
        "{run}"
    );
    assert_eq!(
        (&agent["status"], &agent["attempt"]),
        (&json!("succeeded"), &json!(1)),
        "{agent:#}"
    );
    assert_eq!(
        (&run["error"], &agent["error"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn what_a_server_that_died_days_ago_left_open_counts_today_and_once_and_its_ledger_is_missed() {
    let payers = Payers::new("[tenant.acme]\nday_usd = 1.0\n");
    let acme = key_of(&payers.server, "acme", ALL);
    assert_eq!(payers.call(&acme, &["m"])["stdout"], "200 ");
    let Payers {
        server,
        configuration,
        ..
    } = &mut { payers };
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("it is later");
    let day = Day(since.as_secs() / 86_400 - 3);
    let ledgers = server.folder.at("state/ledger");
    assert!(server.end(Signal::TERM).0.success());
    let dead =
        Ledger::open(&ledgers, &ledger::daily_segment(day), Durability::Process).expect("a ledger");
    let call = ModelCall {
        tenant: "acme".into(),
        model: "m".into(),
        ..ModelCall::default()
    };
    dead.reserve(&call, Money(7_000), 1).expect("it is written");
    drop(dead);
    let path = ledgers.join(format!("{}.jsonl", ledger::daily_segment(day)));
    let file = std::fs::File::options()
        .append(true)
        .open(&path)
        .expect("a ledger");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(day.start().0))
        .expect("it is ours");
    let mut admin = Some(server.admin.clone());
    for signal in [Signal::KILL, Signal::KILL, Signal::TERM] {
        let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
        *server = Server::on(folder, configuration, &[], admin.take());
        admin = Some(server.admin.clone());
        let quota = server
            .ask(&acme, "GET", "/v1/quota", &[], &Value::Null)
            .json();
        assert_eq!(
            quota["money_of_day"]["spent_nano_usd"],
            json!(cost() + 7_000),
            "{quota}"
        );
        assert_eq!(
            sums(&usage(server, &acme, "?by=tenant")),
            [("acme".to_owned(), 2, cost() + 7_000)]
        );
        server.end(signal);
    }
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    std::fs::remove_file(&path).expect("it is ours");
    let told = refusal(&mut serve(&folder, configuration, &[]));
    assert!(
        told.contains(&name(&path)) && told.contains("it is gone"),
        "{told}"
    );
    assert_eq!(
        set_aside(&folder),
        json!({ "aside": null, "segments": [name(&path)] })
    );
    let server = Server::on(folder, configuration, &[], admin);
    let quota = server
        .ask(&acme, "GET", "/v1/quota", &[], &Value::Null)
        .json();
    assert_eq!(
        quota["money_of_day"]["spent_nano_usd"],
        json!(cost()),
        "what is left of today: {quota}"
    );
    let rows = usage(&server, &acme, "?by=tenant");
    assert_eq!(
        sums(&rows),
        [("acme".to_owned(), 2, cost() + 7_000)],
        "what was read stays in bills"
    );
}
