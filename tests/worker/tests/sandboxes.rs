//! How tools are shut in: the three profiles with their numbers, and what no profile gives.

use serde_json::{Value, json};
use std::{fs, net::TcpListener, sync::LazyLock};
use worker_tests::{Ask, Mesh, Message, Tools};

const SECRET: &str = "s3cret-of-the-worker";
const PROFILES: [&str; 3] = ["restrictive", "standard", "permissive"];

static MESH: LazyLock<Mesh> = LazyLock::new(|| {
    Mesh::new("Tester", |set| {
        for name in [
            "SOLACE_BROKER_PASSWORD",
            "AWS_SECRET_ACCESS_KEY",
            "OPENAI_API_KEY",
            "OF_NOBODY",
        ] {
            set.insert(name.to_owned(), SECRET.to_owned());
        }
        set.insert("SOLACE_BROKER_USERNAME".to_owned(), "worker".to_owned());
        set.insert("AWS_ACCESS_KEY_ID".to_owned(), "key".to_owned());
        // Requests may wish for any.
        set.insert(
            "SANDBOX_DEFAULT_PROFILE".to_owned(),
            "permissive".to_owned(),
        );
    })
});

fn call(tool: &str, args: Value, profile: &str) -> Message {
    MESH.agent.call(&Ask::new(tool, args).profile(profile))
}

#[test]
fn no_variable_of_the_worker_reaches_a_tool() {
    let worker =
        fs::read(format!("/proc/{}/environ", MESH.sam.pid().as_raw_nonzero())).expect("it is ours");
    assert!(
        String::from_utf8_lossy(&worker).contains(SECRET),
        "the worker has it"
    );
    for profile in PROFILES {
        let told = call("environment", json!({}), profile).tool_result()["environment"].clone();
        assert!(!told.to_string().contains(SECRET), "{profile}: {told}");
        for name in [
            "SAM_NAMESPACE",
            "SOLACE_BROKER_USERNAME",
            "AIRLOCK_STATE",
            "AWS_ACCESS_KEY_ID",
            "HEALTH_PORT",
        ] {
            assert!(told.get(name).is_none(), "{profile}: {name} in {told}");
        }
        assert_eq!(told["_SAM_SANDBOX_LIGHT"], "1", "{told}");
        assert!(
            told["PATH"].is_string() && told["PYTHONPATH"].is_string() && told["HOME"].is_string(),
            "{told}"
        );
    }
}

#[test]
fn nothing_of_the_worker_s_processes_and_files_is_seen() {
    let at = MESH.folder.at("secret-file").display().to_string();
    fs::write(&at, SECRET).expect("a secret");
    let worker = format!("/proc/{}/environ", MESH.sam.pid().as_raw_nonzero());
    let store = MESH.folder.at("artifacts").display().to_string();
    for profile in PROFILES {
        let paths = json!([
            at,
            worker,
            "/proc/1/environ",
            "/etc/shadow",
            store,
            "/tools/python/toolbox.py"
        ]);
        let told =
            call("tries_to_read", json!({"paths": paths}), profile).tool_result()["told"].clone();
        assert!(!told.to_string().contains(SECRET), "{profile}: {told}");
        assert!(
            told["/etc/shadow"]
                .as_str()
                .is_some_and(|told| told.ends_with("Error")),
            "{profile}: {told}"
        );
        assert!(
            told.to_string().contains("Small tools for the tests"),
            "it can read its own code: {told}"
        );
    }
}

#[test]
fn a_tool_is_nobody_with_no_power() {
    for profile in PROFILES {
        let told = call("who", json!({}), profile).tool_result().clone();
        assert!(
            told["uid"].as_u64().is_some_and(|uid| uid != 0),
            "{profile}: {told}"
        );
        assert_eq!(
            told["capabilities"], "0000000000000000",
            "{profile}: {told}"
        );
        assert_eq!(
            (&told["no_new_privileges"], &told["filter"]),
            (&json!("1"), &json!("2")),
            "{profile}"
        );
        let processes = told["processes"].as_array().expect("a list").len();
        assert!(processes <= 4, "it sees itself and who reaps it: {told}");
    }
}

#[test]
fn only_its_own_places_can_be_written_to() {
    for profile in PROFILES {
        let refused = [
            "/x",
            "/usr/x",
            "/etc/x",
            "/bin/x",
            "/tools/x",
            "/tools/python/toolbox.py",
            "/tools/python/x",
            "/proc/sys/kernel/hostname",
        ];
        let told = call("tries_to_write", json!({"paths": refused}), profile).tool_result()["told"]
            .clone();
        for path in refused {
            assert_ne!(told[path], "written", "{profile}: {path}");
        }
        let allowed = ["/tmp/x", "output/x.txt"];
        let told = call("tries_to_write", json!({"paths": allowed}), profile).tool_result()["told"]
            .clone();
        for path in allowed {
            assert_eq!(told[path], "written", "{profile}: {path}");
        }
    }
    assert_eq!(
        call("echo", json!({"text": "unharmed"}), "standard").tool_result()["text"],
        "unharmed"
    );
}

#[test]
fn nobody_reaches_the_loopback_of_the_host() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("somebody listens");
    let port = listener.local_addr().expect("an address").port();
    drop(std::net::TcpStream::connect(("127.0.0.1", port)).expect("we reach it"));
    for profile in PROFILES {
        for port in [port, MESH.broker.port] {
            let told = call(
                "connects",
                json!({"host": "127.0.0.1", "port": port}),
                profile,
            );
            assert_ne!(told.tool_result()["told"], "connected", "{profile}");
        }
    }
}

#[test]
fn memory_is_bounded() {
    let small = call("takes_memory", json!({"mebibytes": 200}), "restrictive");
    assert_eq!(small.tool_result()["held"], 200);
    let large = call("takes_memory", json!({"mebibytes": 700}), "restrictive");
    assert!(large.body()["error"].is_object(), "{}", large.body());
    assert_eq!(
        call("takes_memory", json!({"mebibytes": 700}), "standard").tool_result()["held"],
        700
    );
}

#[test]
fn processes_are_bounded() {
    let children = |profile| {
        let told = call("forks", json!({"count": 200}), profile);
        told.tool_result()["children"].as_u64().expect("a number")
    };
    let (few, more) = (children("restrictive"), children("standard"));
    assert!((8..=32).contains(&few), "{few}");
    assert!((64..=128).contains(&more), "{more}");
}

#[test]
fn limits_are_those_of_the_profile() {
    let mebi = |count: u64| count << 20;
    for (profile, file, open, stack, locked, nice) in [
        ("restrictive", mebi(64), 128, mebi(8), 64 << 10, 15),
        ("standard", mebi(256), 512, mebi(16), 256 << 10, 10),
        ("permissive", mebi(1024), 1024, mebi(32), 1 << 20, 5),
    ] {
        let told = call("limits", json!({}), profile).tool_result().clone();
        let limit = |name: &str| told["limits"][name][1].as_i64().expect("a number");
        let at_most = |name: &str, most: u64| {
            let limit = limit(name);
            assert!(
                limit >= 0 && u64::try_from(limit).expect("it is") <= most,
                "{profile}: {name} {limit}, not {most}"
            );
        };
        assert_eq!(
            limit("FSIZE"),
            i64::try_from(file).expect("small"),
            "{profile}"
        );
        assert_eq!(limit("NOFILE"), open, "{profile}");
        assert_eq!(limit("CORE"), 0, "{profile}");
        // A host may allow less, and raising is nobody's right.
        at_most("STACK", stack);
        at_most("MEMLOCK", locked);
        at_most("MSGQUEUE", 1_638_400);
        assert_eq!(told["nice"], nice, "{profile}");
    }
}

#[test]
fn an_entry_s_profile_and_limits_win_and_its_processor_time_ends() {
    let mesh = Mesh::new("Tester", |_| ());
    let usual = Tools::usual_entries();
    mesh.tools.write(
        "python/spins.py",
        "def spins():\n    while True:\n        pass\n",
    );
    mesh.tools.manifest(&format!(
        "{usual}  strict: {{module: toolbox, function: limits, sandbox_profile: restrictive}}\n  \
         small: {{module: toolbox, function: limits, resource_limits: {{max_open_files: 64, max_file_size_mb: 1}}}}\n  \
         spins: {{module: spins, function: spins, resource_limits: {{max_cpu_seconds: 1}}}}\n"
    ));
    ["strict", "small", "spins"]
        .iter()
        .for_each(|tool| _ = mesh.agent.wait("init", tool));
    let strict = mesh
        .agent
        .call(&Ask::new("strict", json!({})).profile("permissive"));
    assert_eq!(strict.tool_result()["limits"]["NOFILE"][1], 128);
    let small = mesh.agent.call(&Ask::new("small", json!({})));
    assert_eq!(small.tool_result()["limits"]["NOFILE"][1], 64);
    assert_eq!(small.tool_result()["limits"]["FSIZE"][1], 1 << 20);
    let spins = mesh.agent.call(&Ask::new("spins", json!({})).timeout(40));
    assert!(spins.body()["error"].is_object(), "{}", spins.body());
}

#[test]
fn one_call_leaves_nothing_for_the_next() {
    let written = call(
        "tries_to_write",
        json!({"paths": ["/tmp/left"]}),
        "standard",
    );
    assert_eq!(written.tool_result()["told"]["/tmp/left"], "written");
    for _ in 0..3 {
        let told = call("tries_to_read", json!({"paths": ["/tmp/left"]}), "standard");
        assert_eq!(told.tool_result()["told"]["/tmp/left"], "FileNotFoundError");
    }
}
