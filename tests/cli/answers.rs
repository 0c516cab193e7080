//! What the command answers: the result as JSON, plans, doctor, artifacts, sweep. Volatile parts are replaced.

use airlock_cli_tests::{Answer, World, airlock, same, shown, written};
use serde_json::{Value, json};
use snapbox::str;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Every barrier name of the contract, in its order.
const BARRIERS: [&str; 21] = [
    "own_user",
    "own_pid",
    "own_mount",
    "own_net",
    "own_ipc",
    "own_uts",
    "own_cgroup",
    "no_network",
    "doors_only",
    "read_only_root",
    "no_capabilities",
    "no_new_privileges",
    "syscall_filter",
    "path_rules",
    "memory_limit",
    "pids_limit",
    "cpu_limit",
    "disk_limit",
    "empty_environment",
    "not_host_root",
    "own_kernel",
];

#[test]
fn output_passes_unchanged_and_nothing_is_added() {
    let answer = World::new().run(&[
        "run",
        "--",
        "sh",
        "-c",
        "printf 'a\\tb'; printf '\\033[1mc\\n' >&2",
    ]);
    assert_eq!(
        (
            answer.status,
            answer.stdout.as_str(),
            answer.stderr.as_str()
        ),
        (Some(0), "a\tb", "\u{1b}[1mc\n")
    );
}

#[test]
fn what_airlock_says_begins_a_line_of_its_own() {
    let answer = World::new().run(&[
        "run",
        "--",
        "sh",
        "-c",
        "printf 'no end' >&2; kill -KILL $$",
    ]);
    assert_eq!(
        answer.stderr,
        "no end\nairlock: note: the program was killed by signal 9\n"
    );
}

#[test]
fn what_was_denied_is_told_once_and_cannot_steer_the_terminal() {
    let world = World::new();
    let script =
        "cd /usr; for try in 1 2; do (: > \"$(printf 'x\\033[2J')\") 2>/dev/null; done; true";
    let told = world.run(&["run", "--", "sh", "-c", script]).stderr;
    let denied: Vec<_> = told
        .lines()
        .filter(|line| line.contains("denied"))
        .collect();
    let line = "airlock: note: denied: write `/usr/x\\u{1b}[2J` (by read_only_root; --mount HOST:INSIDE:rw allows it)";
    assert_eq!(denied, [line], "{told}");
}

#[test]
fn a_result_has_the_fields_of_the_contract() {
    let answer = World::new().run(&[
        "run",
        "--json",
        "--run-id",
        "r-1",
        "--task-id",
        "t-1",
        "--job-id",
        "j-1",
        "--artifact",
        "out.txt",
        "--",
        "sh",
        "-c",
        "echo hi; echo warn >&2; printf abc > out.txt; exit 3",
    ]);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(3), ""));
    same(shown(answer.json()), written("answers/result.json"));
}

#[test]
fn a_refusal_has_the_same_fields() {
    let answer = World::new().run(&[
        "run",
        "--json",
        "--job-id",
        "j-1",
        "--profile",
        "nope",
        "--",
        "true",
    ]);
    same(shown(answer.json()), written("answers/refusal.json"));
    let fields = |value: &Value| {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let succeeded = World::new().run(&["run", "--json", "--", "true"]).json();
    assert_eq!(fields(&answer.json()), fields(&succeeded));
}

#[test]
fn barriers_are_known_names_and_those_no_run_goes_without_are_among_them() {
    let result = World::new().run(&["run", "--json", "--", "true"]).json();
    let names: Vec<_> = result["barriers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let known: Vec<_> = BARRIERS
        .into_iter()
        .filter(|name| names.contains(name))
        .collect();
    assert_eq!(names, known, "known names in the order of the contract");
    let host_may_lack = [
        "doors_only",
        "path_rules",
        "memory_limit",
        "cpu_limit",
        "own_kernel",
    ];
    let missing: Vec<_> = BARRIERS
        .into_iter()
        .filter(|name| !names.contains(name) && !host_may_lack.contains(name))
        .collect();
    assert_eq!(missing, [""; 0]);
    let enforcers = result["enforced_by"].as_object().expect("an object");
    assert_eq!(
        enforcers.keys().collect::<Vec<_>>(),
        ["cpu", "memory", "pids"]
    );
    for by in enforcers.values() {
        assert!(
            ["cgroup_v2", "cgroup_v1", "rlimit", "nothing"].contains(&by.as_str().expect("a name")),
            "{by}"
        );
    }
}

#[test]
fn on_the_hosts_network_its_barriers_are_reported_missing() {
    let result = World::new()
        .run(&["run", "--json", "--network", "host", "--", "true"])
        .json();
    let names = result["barriers"].as_array().expect("a list");
    for lacking in ["own_net", "no_network"] {
        assert!(!names.contains(&json!(lacking)), "{names:?}");
    }
    assert!(names.contains(&json!("own_pid")));
}

#[test]
fn bytes_that_are_no_text_come_as_base64() {
    let result = World::new()
        .run(&["run", "--json", "--", "printf", r"\377"])
        .json();
    assert_eq!(
        (&result["stdout_base64"], &result["stdout"]),
        (&json!("/w=="), &Value::Null)
    );
    assert_eq!(result["stderr"], "");
}

#[test]
fn truncated_output_is_a_flag_and_no_failure() {
    let result = World::new()
        .run(&[
            "run",
            "--json",
            "--output",
            "1K",
            "--",
            "head",
            "-c",
            "100000",
            "/dev/zero",
        ])
        .json();
    assert_eq!(result["status"], "succeeded");
    assert_eq!(
        result["truncated"],
        json!({ "stdout": true, "stderr": false })
    );
    assert_eq!(result["limits_hit"], json!(["output"]));
}

/// Texts that differ by host, user and kernel.
fn plan(text: &str) -> String {
    let line = |line: &str| match line
        .split_once("  ")
        .map(|(step, rest)| (step, rest.trim()))
    {
        Some(("cgroup", rest)) => {
            let limit = rest.split(' ').next().unwrap_or_default();
            format!("cgroup                {limit} [ENFORCER]\n")
        }
        Some(("template root", rest)) if rest.starts_with("an empty root with /usr ") => {
            "template root         an empty root with /usr [PLACES] of the host\n".to_owned()
        }
        Some(("enter user namespace", _)) | None => {
            "enter user namespace  uid 1000 inside, [ID] in the launcher's\n".to_owned()
        }
        Some(("resource limits", rest)) => {
            // Those of memory and processes depend on what cgroups hold.
            let of_host = |limit: &&str| limit.starts_with("data=") || limit.starts_with("nproc=");
            let kept: Vec<_> = rest.split(' ').filter(|limit| !of_host(limit)).collect();
            format!("resource limits       {}\n", kept.join(" "))
        }
        Some(("path rules", rest)) => {
            let (_, what) = rest.split_once(": ").unwrap_or_default();
            format!("path rules            Landlock [VERSION]: {what}\n")
        }
        Some(("system call filter", _)) => {
            "system call filter    [NUMBER] instructions\n".to_owned()
        }
        Some(_) => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn a_plan_names_every_step_and_takes_none() {
    let world = World::new();
    world.write("data/x", "");
    let words = [
        "run",
        "--explain",
        "--mount",
        "data:/data",
        "--env",
        "TOKEN=secret",
        "--open-files",
        "9",
        "--cpus",
        "0.5",
        "--",
        "echo",
        "hi",
    ];
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&words);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert!(
        !stdout.contains("secret"),
        "a plan shows names of variables, not their values"
    );
    same(plan(&stdout), written("answers/plan.txt"));
    let steps = world
        .run(&["run", "--explain", "--json", "--", "true"])
        .json();
    let steps: Vec<_> = steps["plan"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| &line["step"])
        .collect();
    assert!(
        steps.contains(&&json!("system call filter")) && steps.ends_with(&[&json!("exec")]),
        "{steps:?}"
    );
}

#[test]
fn a_plan_says_whose_policy_how_long_and_what_may_be_reached() {
    let world = World::new();
    world.write("project/a", "");
    let provider = "[provider.mock]\ndialect = \"openai\"\nbase = \"https://models.example\"\n";
    world.write("config.toml", provider);
    let options = [
        "run",
        "--explain",
        "--config",
        "config.toml",
        "--profile",
        "agent",
        "--workspace",
        "project:live",
        "--llm=mock",
        "--budget-usd",
        "0.5",
        "--allow-host",
        "*.example.com:8443",
        "--allow-protected",
        ".envrc",
        "--",
        "true",
    ];
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&options);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let detail = |step: &str| {
        let line = stdout.lines().find_map(|line| line.strip_prefix(step));
        line.unwrap_or_else(|| panic!("{step}: {stdout}")).trim()
    };
    assert_eq!(detail("profile "), "agent");
    assert_eq!(detail("wall time "), "1h");
    assert_eq!(detail("network "), "doors");
    assert_eq!(detail("llm provider "), "mock");
    assert_eq!(detail("budget "), "0.50 USD");
    assert_eq!(detail("host "), "*.example.com, port 8443: a tunnel");
    let protected = detail("protected names ");
    assert!(
        protected.contains(".git ") && protected.ends_with("but may be written: .envrc"),
        "{protected}"
    );
}

#[test]
fn a_plan_is_refused_as_the_run_would_be() {
    let world = World::new();
    world.write(
        "config.toml",
        "[provider.mock]\ndialect = \"openai\"\nbase = \"https://models.example\"\nkey = { secret = \"mockkey\" }\n\
         [[profile.ci.egress]]\nhost = \"a.example\"\nmode = \"inspect\"\ncredential = \"a\"\n\
         [credential.a]\nkey = { secret = \"nothing\" }\ninject = \"bearer\"\nhosts = [\"a.example\"]\n",
    );
    for options in [
        &["--llm=mock"][..],
        &["--profile", "ci"],
        &["--input", "a=artifact:nope"],
        &["--require", "own_kernel"],
        &["--network", "host", "--require", "no_network"],
    ] {
        let asked = |more: &[&str]| {
            let words = ["run", "--config", "config.toml"];
            world.run(&[&words, more, options, &["--", "true"]].concat())
        };
        let (plan, run) = (asked(&["--explain"]), asked(&[]));
        assert_eq!(
            (plan.status, run.status),
            (Some(125), Some(125)),
            "{options:?}"
        );
        let told = |answer: &Answer| {
            let lines = answer.stderr.lines();
            let ours = lines.filter(|line| !line.starts_with("airlock: note: "));
            ours.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(told(&plan), told(&run), "{options:?}");
        assert!(!told(&plan).is_empty(), "{options:?}");
        assert_eq!(plan.stdout, "", "{options:?}");
    }
    let none = world.run(&["run", "--llm", "--", "true"]);
    assert!(
        none.stderr.contains("airlock secrets set "),
        "{}",
        none.stderr
    );
    assert!(!none.stderr.contains("PROVIDER"), "{}", none.stderr);
}

#[test]
fn the_doctor_says_what_this_host_gives() {
    let world = World::new();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["doctor"]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    // What was found differs by host; what is looked at, the columns and the verdict do not.
    same(
        stdout,
        str![[r#"
ok       kernel        [..]
ok       namespaces    as [..]; programs are [..] outside[..]own_user, own_pid, own_mount, own_net, own_ipc, own_uts, own_cgroup
[..]  Landlock      [..]path_rules
...
[..]  memory limit  [..]memory_limit
...
[..]  pids limit    [..]pids_limit
...
[..]  cpu limit     [..]cpu_limit
...
ok       a sandbox     made, ran and removed in [..] ms
ok       containers    [..]

Runs can be made on this host.

"#]],
    );
    let told = world.run(&["doctor", "--json"]).json();
    assert_eq!(told["can_run"], true);
    for check in told["checks"].as_array().expect("a list") {
        let fields: Vec<_> = check.as_object().expect("an object").keys().collect();
        assert_eq!(fields, ["barriers", "detail", "name", "remedy", "state"]);
        assert_eq!(
            check["state"] == "good",
            check["remedy"].is_null(),
            "what can be mended has a remedy: {check}"
        );
    }
}

#[test]
fn artifacts_are_kept_listed_fetched_and_removed() {
    let world = World::new();
    let keep = |id: &str, text: &str| {
        let script = format!("printf {text} > out.txt");
        world.run(&[
            "run",
            "--run-id",
            id,
            "--artifact",
            "out.txt",
            "--",
            "sh",
            "-c",
            &script,
        ])
    };
    assert_eq!(
        keep("one", "abc").stderr,
        "airlock: note: kept `out.txt` as version 1 (3 bytes)\n"
    );
    assert_eq!(
        keep("two", "abcdef").stderr,
        "airlock: note: kept `out.txt` as version 2 (6 bytes)\n"
    );
    same(
        world.run(&["artifact", "list"]).stdout,
        str![[r#"
out.txt@1  3  20[..]T[..]Z  one
out.txt@2  6  20[..]T[..]Z  two

"#]],
    );
    same(
        shown(world.run(&["artifact", "list", "--json"]).json()),
        written("answers/artifacts.json"),
    );
    assert_eq!(world.run(&["artifact", "get", "out.txt"]).stdout, "abcdef");
    assert_eq!(world.run(&["artifact", "get", "out.txt@1"]).stdout, "abc");
    let got = world.run(&["artifact", "get", "out.txt@1", "--output", "new"]);
    assert_eq!(
        (got.status, got.stderr.as_str()),
        (Some(0), "airlock: note: wrote `new` (3 bytes)\n")
    );
    assert_eq!(
        std::fs::read_to_string(world.here("new")).expect("it was made"),
        "abc"
    );
    let input = world.run(&[
        "run",
        "--input",
        "old=artifact:out.txt@1",
        "--",
        "cat",
        "old",
    ]);
    assert_eq!((input.status, input.stdout.as_str()), (Some(0), "abc"));
    assert_eq!(
        world.run(&["artifact", "rm", "out.txt@1"]).stdout,
        "1 removed\n"
    );
    assert_eq!(
        world.run(&["artifact", "rm", "out.txt", "--json"]).json(),
        json!({ "removed": 1 })
    );
    assert_eq!(world.run(&["artifact", "list"]).stdout, "");
}

#[test]
fn what_lies_in_the_artifacts_folder_is_kept_unasked() {
    let world = World::new();
    let answer = world.run(&[
        "run",
        "--json",
        "--",
        "sh",
        "-c",
        "printf abc > $CYNODE_ARTIFACTS_DIR/out.txt",
    ]);
    assert_eq!(answer.json()["artifacts"][0]["name"], "out.txt");
    assert_eq!(world.run(&["artifact", "get", "out.txt"]).stdout, "abc");
}

#[test]
fn an_artifact_that_is_not_there_is_an_error_and_a_file_is_not_overwritten() {
    let world = World::new();
    world.write("old", "as it was");
    assert_eq!(
        world
            .run(&["run", "--artifact", "a", "--", "touch", "a"])
            .status,
        Some(0)
    );
    let refused = |arguments: &[&str]| {
        let answer = world.run(arguments);
        assert_eq!(
            (answer.status, answer.stdout.as_str()),
            (Some(125), ""),
            "{arguments:?}"
        );
        answer.stderr
    };
    let lists = "airlock: hint: `airlock artifact list` shows the artifacts\n";
    assert_eq!(
        refused(&["artifact", "get", "b"]),
        format!("airlock: error: no artifact is called `b`\n{lists}")
    );
    assert_eq!(
        refused(&["artifact", "get", "a@9"]),
        format!("airlock: error: no artifact is called `a` in version 9\n{lists}")
    );
    assert_eq!(
        refused(&["artifact", "rm", "b"]),
        format!("airlock: error: no artifact is called `b`\n{lists}")
    );
    same(
        refused(&["artifact", "get", "../../etc/passwd"]),
        str![[r#"
airlock: error: `../../etc/passwd` cannot be used as a path: it contains `..`
airlock: hint: `airlock artifact list` shows the names

"#]],
    );
    same(
        refused(&["artifact", "get", "a", "--output", "old"]),
        str![[r#"
airlock: error: cannot create `old`: File exists (os error 17)
airlock: hint: give --output a new file

"#]],
    );
    assert_eq!(
        std::fs::read_to_string(world.here("old")).expect("it is there"),
        "as it was"
    );
    let told = world.run(&["artifact", "rm", "b", "--json"]);
    assert_eq!(
        (told.status, &told.json()["error"]["code"]),
        (Some(125), &json!("invalid_spec"))
    );
}

#[test]
fn a_sweep_counts_what_it_removed() {
    let world = World::new();
    assert_eq!(
        world.run(&["sweep"]).stdout,
        "0 removed, 0 left alone because their owner lives\n"
    );
    // A record that nobody holds, as a killed run leaves it. Opening the engine sweeps, too, so only its going can be seen.
    std::fs::write(world.state().join("runs/dead"), "").expect("a record");
    let told = world.run(&["sweep", "--json"]).json();
    assert_eq!(
        told.as_object()
            .expect("an object")
            .keys()
            .collect::<Vec<_>>(),
        ["live", "notes", "problems", "runs"]
    );
    assert!(!world.state().join("runs/dead").exists());
}

#[test]
fn the_escape_suite_lists_its_cases_and_refuses_unknown_ones() {
    let world = World::new();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["escape-test", "--list"]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert!(
        stdout.starts_with("A1   ") && stdout.lines().count() > 70,
        "{stdout}"
    );
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&["escape-test", "--only", "A6,Q7\x1b"]);
    assert_eq!((status, stdout.as_str()), (Some(125), ""));
    let told = "airlock: error: there is no case or group `Q7\\u{1b}`\nairlock: hint: `airlock escape-test --list` shows them\n";
    assert_eq!(stderr, told);
}

#[test]
fn the_escape_suite_answers_in_json() {
    let Answer { status, stdout, .. } =
        World::new().run(&["escape-test", "--json", "--only", "C53"]);
    let answer: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    let row = &answer["cases"][0];
    assert_eq!((status, &answer["holds"]), (Some(0), &true.into()));
    assert_eq!(
        (&row["id"], &row["airlock"]["verdict"]),
        (&"C53".into(), &"blocked".into())
    );
    assert_eq!(row["control"]["verdict"], "succeeded", "{row}");
}

/// The hidden word that makes `airlock-escape` the attacker.
const ATTACK: &str = "escape-attack-inside";

#[test]
fn the_attacker_refuses_to_run_outside_of_a_box() {
    let output = Command::new(escape_program())
        .args([ATTACK, "token", "marker", "wait"])
        .output()
        .expect("the program of the attacks starts");
    let Answer {
        status,
        stdout,
        stderr,
    } = World::new().answer(&output);
    let told =
        "airlock: error: attacks run only in boxes that the escape suite has made for them\n";
    assert_eq!(
        (status, stdout.as_str(), stderr.as_str()),
        (Some(125), "", told)
    );
}

#[test]
fn no_attack_is_linked_into_the_command() {
    let has_attacks = |program: &Path| {
        let bytes = fs::read(program).expect("a program can be read");
        bytes
            .windows(ATTACK.len())
            .any(|part| part == ATTACK.as_bytes())
    };
    assert!(has_attacks(&escape_program()), "the test sees attacks");
    assert!(!has_attacks(airlock()));
}

#[test]
fn the_escape_suite_is_looked_for_beside_the_command_alone() {
    let world = World::new();
    fs::copy(airlock(), world.here("airlock")).expect("a copy of the command");
    let mut alone = Command::new(world.here("airlock"));
    // `airlock-escape` is in this folder of `PATH`, where it is not looked for.
    let beside = airlock().parent().expect("a binary lies in a folder");
    alone
        .env_clear()
        .envs(world.variables())
        .env("PATH", beside);
    let list = |alone: &mut Command| {
        world.answer(
            &alone
                .args(["escape-test", "--list"])
                .output()
                .expect("it starts"),
        )
    };
    let Answer { status, stderr, .. } = list(&mut alone);
    assert_eq!(
        (status, stderr.as_str()),
        (
            Some(125),
            "airlock: error: `[WORLD]/here/airlock-escape` is missing: this command is a program of its own\n\
             airlock: hint: in the source tree, `cargo build --release -p airlock -p airlock-escape` builds both \
             into target/release\n"
        )
    );
    fs::copy(escape_program(), world.here("airlock-escape")).expect("a copy of the program");
    let mut both = Command::new(world.here("airlock"));
    both.env_clear().envs(world.variables());
    assert_eq!(list(&mut both).status, Some(0));
}

/// A verdict about another engine would say nothing of the one that is used.
#[test]
fn the_escape_suite_refuses_to_attack_another_engine_than_that_of_the_command() {
    let order = json!({
        "sources": "others", "airlock": airlock(), "json": false, "only": [], "list": true, "full": false,
        "dangerously_harm_this_machine": false, "peer": false, "pooled": false, "containers": null,
    });
    let output = Command::new(escape_program())
        .arg(order.to_string())
        .output()
        .expect("the program of the attacks starts");
    let Answer {
        status,
        stdout,
        stderr,
    } = World::new().answer(&output);
    assert_eq!((status, stdout.as_str()), (Some(125), ""));
    let told = "airlock: error: `airlock-escape` is built from other sources than `airlock`\n";
    assert!(stderr.starts_with(told), "{stderr}");
}

fn escape_program() -> PathBuf {
    airlock().with_file_name("airlock-escape")
}
