//! Two tenants of one server: one attacks it with what its key may do, and nothing that the other asks for fails.

use gateway_tests::{Answer, Folder, Server, serve};
use serde_json::{Value, json};
use std::{
    os::unix::fs::chown,
    process::{self, Command},
};

const SCOPES: &[&str] = &["runs", "sandboxes", "artifacts", "usage"];

/// A server with two keys, each a tenant of its own.
struct Two {
    server: Server,
    attacker: String,
    neighbour: String,
}

impl Two {
    fn with(configuration: &str) -> Two {
        Two::of(Server::with(configuration, &[]))
    }

    fn of(server: Server) -> Two {
        let [attacker, neighbour] = [(); 2].map(|()| server.key(SCOPES));
        let two = Two {
            server,
            attacker,
            neighbour,
        };
        two.neighbour_is_served();
        two
    }

    fn attack(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.server.ask(&self.attacker, method, path, &[], body)
    }

    /// Starts programs in a sandbox of the attacker's. Each has said `ready` when this returns.
    fn programs(&self, order: &Value, count: usize, script: &str) -> Attack<'_> {
        let made = self.attack("POST", "/v1/sandboxes", order);
        assert_eq!(made.status, 201, "{}", made.text());
        let sandbox = format!("/v1/sandboxes/{}", text(&made.json()["sandbox_id"]));
        let start = |_| {
            let order = json!({ "command": ["python3", "-c", script], "background": true });
            let begun = self.attack("POST", &format!("{sandbox}/exec"), &order);
            assert_eq!(begun.status, 201, "{}", begun.text());
            format!("{sandbox}/exec/{}", text(&begun.json()["exec_id"]))
        };
        let programs: Vec<_> = (0..count).map(start).collect();
        let attack = Attack {
            two: self,
            sandbox,
            programs,
        };
        for program in &attack.programs {
            self.server
                .until("the attack", || attack.output(program).contains("ready"));
        }
        attack
    }

    /// Whatever the neighbour asks for succeeds.
    #[track_caller]
    fn neighbour_is_served(&self) {
        let ask = |method: &str, path: &str, body: &Value| {
            self.server.ask(&self.neighbour, method, path, &[], body)
        };
        let order = json!({ "command": ["echo", "fine"], "memory": "64M", "disk": "64M" });
        let ran = ask("POST", "/v1/runs", &order);
        assert_eq!(ran.status, 200, "{}", ran.text());
        assert_eq!(ran.json()["stdout"], "fine\n", "{}", ran.text());
        let order = json!({ "memory": "64M", "disk": "64M" });
        let made = ask("POST", "/v1/sandboxes", &order);
        assert_eq!(made.status, 201, "{}", made.text());
        let path = format!("/v1/sandboxes/{}", text(&made.json()["sandbox_id"]));
        let put = ask("PUT", &format!("{path}/files/note"), &json!("kept"));
        assert_eq!(put.status, 201, "{}", put.text());
        let ended = ask("DELETE", &path, &Value::Null);
        assert_eq!(ended.status, 200, "{}", ended.text());
    }
}

/// Programs of the attacker's that run.
struct Attack<'a> {
    two: &'a Two,
    sandbox: String,
    programs: Vec<String>,
}

impl Attack<'_> {
    fn output(&self, program: &str) -> String {
        let path = format!("{program}/output");
        self.two.attack("GET", &path, &Value::Null).text()
    }

    /// The neighbour is served again and again, and the programs run all the while.
    #[track_caller]
    fn neighbour_is_served_meanwhile(self) {
        for _ in 0..4 {
            self.two.neighbour_is_served();
        }
        for program in &self.programs {
            let shown = self.two.attack("GET", program, &Value::Null).json();
            assert_eq!(shown["status"], "running", "{shown}");
        }
        let ended = self.two.attack("DELETE", &self.sandbox, &Value::Null);
        assert_eq!(ended.status, 200, "{}", ended.text());
        self.two.neighbour_is_served();
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
fn artifacts_beyond_their_bound_are_refused_before_anything_runs() {
    let two = Two::with("");
    let order = |count: u32| {
        let names: Vec<_> = (0..count).map(|number| format!("a{number:06}")).collect();
        json!({ "command": ["true"], "timeout": "20s", "artifacts": names })
    };
    let fits = two.attack("POST", "/v1/runs", &order(1000));
    assert_eq!(
        (fits.status, &fits.json()["status"]),
        (200, &json!("succeeded")),
        "the positive control: {}",
        fits.text()
    );
    for _ in 0..4 {
        let refused = two.attack("POST", "/v1/runs", &order(30_000));
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(refused.json()["title"], "more than 1000 artifacts");
        let job = json!({ "run": order(30_000) });
        let refused = two.attack("POST", "/v1/jobs", &job);
        assert_eq!(refused.status, 400, "{}", refused.text());
        two.neighbour_is_served();
    }
}

#[test]
fn what_doors_deny_a_run_is_in_its_audit_and_among_its_events() {
    let two = Two::with("");
    let hosts = ["one.example", "two.example", "three.example"];
    let calls: String = hosts
        .map(|host| format!("curl -s -o /dev/null http://{host}/; "))
        .concat();
    let order =
        json!({ "command": ["sh", "-c", calls + "true"], "allow_hosts": ["allowed.example"] });
    let ran = two.attack("POST", "/v1/runs", &order);
    assert_eq!(ran.status, 200, "{}", ran.text());
    let denials = ran.json()["denials"].as_array().expect("a list").clone();
    let targets: Vec<_> = denials
        .iter()
        .map(|denial| text(&denial["target"]))
        .collect();
    let all = |found: &[&str]| {
        hosts
            .iter()
            .all(|host| found.iter().any(|one| one.contains(host)))
    };
    assert!(all(&targets), "the positive control: {targets:?}");
    let id = text(&ran.json()["run_id"]).to_owned();
    is_audited(&two.server, "run", &id, &hosts, denials.len());
    let path = format!("/v1/runs/{id}/events");
    let events = two.attack("GET", &path, &Value::Null).text();
    let denied: Vec<_> = events
        .split("\n\n")
        .filter(|event| event.contains("event: denied"))
        .collect();
    assert_eq!(denied.len(), denials.len(), "{events}");
    assert!(all(&denied), "{events}");

    let sent = two.attack("POST", "/v1/jobs", &json!({ "run": order }));
    assert_eq!(sent.status, 202, "{}", sent.text());
    let job = text(&sent.json()["job_id"]).to_owned();
    let path = format!("/v1/jobs/{job}");
    two.server.until("the end of the job", || {
        two.attack("GET", &path, &Value::Null).json()["status"] == "succeeded"
    });
    is_audited(&two.server, "job", &job, &hosts, denials.len());
    two.neighbour_is_served();
}

/// Of this run or job each host has its line, and the last one has their number.
#[track_caller]
fn is_audited(server: &Server, what: &str, id: &str, hosts: &[&str], count: usize) {
    let all = server.get("/v1/audit?limit=1000").json();
    let lines = all["lines"].as_array().expect("lines").clone();
    let of = |kind: &str| -> Vec<String> {
        let wanted = |line: &&Value| line[what] == id && line["what"] == kind;
        let words = lines
            .iter()
            .filter(wanted)
            .map(|line| text(&line["about"]).to_owned());
        words.collect()
    };
    let denied = of("run.deny");
    assert_eq!(denied.len(), count, "{denied:?}");
    for host in hosts {
        assert!(
            denied.iter().any(|about| about.contains(host)),
            "{denied:?}"
        );
    }
    let end = of("run.end").concat();
    assert!(end.contains(&format!("denials={count}")), "{end}");
}

#[test]
fn a_key_without_admin_has_a_maximum_where_the_operator_says_none() {
    let two = Two::with("");
    let wanted = [
        json!({ "memory": "900T" }),
        json!({ "disk": "900T" }),
        json!({ "cpus": 1024 }),
        json!({ "pids": 60_000 }),
        json!({ "timeout": "1000h" }),
    ];
    for mut order in wanted {
        let made = two.attack("POST", "/v1/sandboxes", &order);
        assert_eq!(made.status, 400, "{}", made.text());
        order["command"] = json!(["true"]);
        let ran = two.attack("POST", "/v1/runs", &order);
        assert_eq!(ran.status, 400, "{}", ran.text());
        assert!(ran.text().contains("operator's maximum"), "{}", ran.text());
        let sent = two.attack("POST", "/v1/jobs", &json!({ "run": order }));
        assert_eq!(sent.status, 400, "{}", sent.text());
        two.neighbour_is_served();
    }
    let most = two.attack("GET", "/v1/quota", &Value::Null).json();
    for name in ["memory_bytes", "disk_bytes", "cpus", "pids", "wall_time_ms"] {
        let value = &most["most_of_one"][name];
        assert!(value.as_f64().is_some_and(|most| most > 0.0), "{most}");
    }
    assert!(most["memory_bytes"]["most"].is_u64(), "{most}");
}

#[test]
fn the_maximum_of_keys_is_what_the_operator_says_and_not_an_admins() {
    let two = Two::with("[serve.maximum]\nmemory = \"600M\"\npids = 100\n");
    let order = |pids: u32| json!({ "command": ["true"], "pids": pids });
    assert_eq!(two.attack("POST", "/v1/runs", &order(100)).status, 200);
    let refused = two.attack("POST", "/v1/runs", &order(101));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(two.server.post("/v1/runs", &order(101)).status, 200);
    let most = two.attack("GET", "/v1/quota", &Value::Null).json();
    let most = &most["most_of_one"];
    assert_eq!(
        (&most["memory_bytes"], &most["pids"]),
        (&json!(600 << 20), &json!(100))
    );
}

#[test]
fn a_tenant_takes_no_more_memory_than_its_quota_and_leaves_the_others_theirs() {
    let two = Two::with("[tenant.\"*\"]\nmemory = \"1G\"\n");
    // With what its workspace holds each takes 256 MiB.
    let order = json!({ "memory": "128M", "disk": "128M" });
    let make = || two.attack("POST", "/v1/sandboxes", &order);
    let made: Vec<_> = (0..4).map(|_| make()).collect();
    for one in &made {
        assert_eq!(one.status, 201, "the positive control: {}", one.text());
    }
    let path = |made: &Answer| format!("/v1/sandboxes/{}", text(&made.json()["sandbox_id"]));
    let fork = || two.attack("POST", &format!("{}/fork", path(&made[0])), &json!({}));
    let run = || {
        let order = json!({ "command": ["true"], "memory": "64M", "disk": "64M" });
        two.attack("POST", "/v1/runs", &order)
    };
    for refused in [make(), fork(), run()] {
        assert_eq!(refused.status, 429, "{}", refused.text());
        let title = refused.json()["title"].to_string();
        assert!(title.contains("at most 1G of memory"), "{title}");
    }
    let quota = two.attack("GET", "/v1/quota", &Value::Null).json();
    assert_eq!(
        quota["memory_bytes"],
        json!({ "now": 1 << 30, "most": 1 << 30 })
    );
    two.neighbour_is_served();
    assert_eq!(
        two.attack("DELETE", &path(&made[1]), &Value::Null).status,
        200
    );
    assert_eq!(run().status, 200, "there is room again");
    assert_eq!(fork().status, 201, "the run has given back what it took");
}

#[test]
fn what_is_put_into_a_workspace_is_bounded_by_the_memory_of_its_sandbox() {
    let two = Two::with("[tenant.\"*\"]\nmemory = \"512M\"\n[serve.maximum]\ndisk = \"1G\"\n");
    let order = json!({ "memory": "64M", "disk": "900M", "file_size": "900M" });
    let made = two.attack("POST", "/v1/sandboxes", &order);
    assert_eq!(made.status, 201, "{}", made.text());
    let sandbox = format!("/v1/sandboxes/{}", text(&made.json()["sandbox_id"]));
    let put = |name: &str, mebibytes: usize| {
        let bytes = "x".repeat(mebibytes << 20);
        two.attack("PUT", &format!("{sandbox}/files/{name}"), &json!(bytes))
    };
    for name in ["one", "two"] {
        let fits = put(name, 24);
        assert_eq!(fits.status, 201, "the positive control: {}", fits.text());
    }
    let refused = put("three", 24);
    assert_eq!(refused.status, 507, "{}", refused.text());
    let refused = put("large", 65);
    assert_eq!(refused.status, 413, "{}", refused.text());
    let told = refused.json()["detail"].to_string();
    assert!(told.contains("`memory`"), "{told}");
    two.neighbour_is_served();
    // It takes 128 MiB of its tenant's 512, and so does each copy, with what the server writes into it.
    let fork = || two.attack("POST", &format!("{sandbox}/fork"), &json!({}));
    for _ in 0..3 {
        let copy = fork();
        assert_eq!(copy.status, 201, "the positive control: {}", copy.text());
    }
    let refused = fork();
    assert_eq!(refused.status, 429, "{}", refused.text());
    two.neighbour_is_served();
    let size = json!({ "command": ["df", "-B1", "--output=size", "/workspace"] });
    let size = two.attack("POST", &format!("{sandbox}/exec"), &size);
    let told = size.json()["stdout"].to_string();
    assert!(told.contains(&(64 << 20).to_string()), "{told}");
}

#[test]
fn inputs_of_a_run_are_bounded_by_its_memory() {
    let two = Two::with("[serve.maximum]\ndisk = \"1G\"\n");
    let bytes = json!("x".repeat(24 << 20));
    let put = two.attack("PUT", "/v1/artifacts/large", &bytes);
    assert_eq!(put.status, 201, "{}", put.text());
    let run = |memory: &str, count: u32| {
        let input = |number| json!({ "name": format!("in{number}"), "artifact": "large" });
        let inputs: Vec<_> = (0..count).map(input).collect();
        let order = json!({
            "command": ["true"], "memory": memory, "disk": "900M", "file_size": "900M", "inputs": inputs
        });
        two.attack("POST", "/v1/runs", &order)
    };
    let fits = run("256M", 3);
    assert_eq!(
        fits.json()["status"],
        "succeeded",
        "the positive control: {}",
        fits.text()
    );
    let refused = run("64M", 3);
    assert_ne!(refused.status, 200, "{}", refused.text());
    two.neighbour_is_served();
}

#[test]
fn bodies_of_many_members_are_refused_and_hold_nobody_up() {
    let two = Two::with("");
    let env = |count: u32| -> Value {
        let all = (0..count).map(|number| (format!("{number:07}"), json!("")));
        Value::Object(all.collect())
    };
    let order = |count: u32| json!({ "command": ["true"], "env": env(count) });
    let fits = two.attack(
        "POST",
        "/v1/runs",
        &json!({ "command": ["true"], "env": { "A": "" } }),
    );
    assert_eq!(fits.status, 200, "the positive control: {}", fits.text());
    // It is read, and what it says is refused: no program begins with so many.
    let read = two.attack("POST", "/v1/runs", &order(30_000));
    assert_eq!(read.status, 400, "{}", read.text());
    assert!(!read.text().contains("65536 members"), "{}", read.text());
    let long = order(400_000);
    let bodies = [
        ("/v1/runs", long.clone()),
        ("/v1/jobs", json!({ "run": long })),
        ("/v1/sandboxes", json!({ "labels": env(400_000) })),
    ];
    std::thread::scope(|scope| {
        let attacks: Vec<_> = bodies
            .iter()
            .map(|(path, body)| scope.spawn(|| two.attack("POST", path, body)))
            .collect();
        two.neighbour_is_served();
        for attack in attacks {
            let refused = attack.join().expect("an answer");
            assert_eq!(refused.status, 400, "{}", refused.text());
            assert!(
                refused.text().contains("65536 members"),
                "{}",
                refused.text()
            );
        }
    });
    let models: Vec<_> = (0..5000).map(|number| format!("m{number}")).collect();
    let order = json!({ "command": ["true"], "llm": true, "allow_models": models });
    let refused = two.attack("POST", "/v1/runs", &order);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("at most 4096"),
        "{}",
        refused.text()
    );
    two.neighbour_is_served();
}

#[test]
fn connections_that_are_kept_open_keep_nobody_out() {
    let two = Two::with("[serve]\nconnections = 32\n");
    let silent: Vec<_> = (0..64).map(|_| two.server.client.open(b"")).collect();
    two.neighbour_is_served();
    let half = b"GET /healthz HTTP/1.1\r\n";
    let begun: Vec<_> = (0..64).map(|_| two.server.client.open(half)).collect();
    two.neighbour_is_served();
    let path = "/v1/quota";
    let ask = two
        .server
        .request(&two.attacker, "GET", path, &[], &Value::Null);
    // Each is answered before the next comes: of a burst those that were not read yet make room for each other.
    let keep_one = |_| {
        let mut one = two.server.client.open(&ask);
        assert_eq!(one.answer().status, 200, "the positive control");
        one
    };
    let kept: Vec<_> = (0..64).map(keep_one).collect();
    two.neighbour_is_served();
    assert_eq!(two.server.get("/v1/keys").status, 200);
    drop((silent, begun, kept));
}

#[test]
fn a_newcomer_has_time_to_send_its_request_while_others_come_without_a_key() {
    const PLACES: usize = 64;
    let two = Two::with(&format!("[serve]\nconnections = {PLACES}\n"));
    let request = |key: &str| {
        let path = "/v1/quota";
        two.server.request(key, "GET", path, &[], &Value::Null)
    };
    let (keyed, asked) = (request(&two.attacker), request(&two.neighbour));
    let keep_one = || {
        let mut one = two.server.client.open(&keyed);
        assert_eq!(one.answer().status, 200, "the positive control");
        one
    };
    let mut kept: Vec<_> = (0..PLACES).map(|_| keep_one()).collect();
    let mut strangers = Vec::new();
    for round in 0..40 {
        let mut newcomer = two.server.client.open(b"");
        // What comes before its request: connections that are accepted behind it.
        strangers.extend((0..8).map(|_| two.server.client.open(b"")));
        kept.push(keep_one());
        newcomer.send(&asked);
        assert_eq!(newcomer.answer().status, 200, "in round {round}");
    }
    two.neighbour_is_served();
    drop((kept, strangers));
}

#[test]
fn input_and_output_that_wait_in_the_server_are_of_the_tenants_memory() {
    let two = Two::with("[tenant.\"*\"]\nmemory = \"256M\"\n");
    let headers = [("prefer", "respond-async")];
    let begin = |order: &Value| {
        let server = &two.server;
        server.ask(&two.attacker, "POST", "/v1/runs", &headers, order)
    };
    // With its box and what may be captured each takes 48 MiB, and 8 of its standard input.
    let order = json!({
        "command": ["sleep", "600"], "memory": "16M", "disk": "16M", "output": "8M",
        "stdin": "x".repeat(8 << 20)
    });
    let begun: Vec<_> = (0..4).map(|_| begin(&order)).collect();
    for one in &begun {
        assert_eq!(one.status, 202, "the positive control: {}", one.text());
    }
    let refused = begin(&order);
    assert_eq!(refused.status, 429, "{}", refused.text());
    let quota = two.attack("GET", "/v1/quota", &Value::Null).json();
    assert_eq!(
        quota["memory_bytes"]["now"],
        json!(4 * (56 << 20)),
        "{quota}"
    );
    two.neighbour_is_served();
}

#[test]
fn large_results_that_come_together_are_all_there() {
    let two = Two::with("");
    // Six times as long as JSON.
    let script = "head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2";
    let order =
        json!({ "command": ["sh", "-c", script], "output": "4M", "memory": "64M", "disk": "64M" });
    let headers = [("prefer", "respond-async")];
    let ids: Vec<_> = (0..4)
        .map(|_| {
            let server = &two.server;
            let begun = server.ask(&two.attacker, "POST", "/v1/runs", &headers, &order);
            assert_eq!(begun.status, 202, "{}", begun.text());
            text(&begun.json()["run_id"]).to_owned()
        })
        .collect();
    two.neighbour_is_served();
    for id in ids {
        let path = format!("/v1/runs/{id}");
        two.server.until("its end", || {
            two.attack("GET", &path, &Value::Null).json()["status"] == "succeeded"
        });
    }
    two.neighbour_is_served();
}

/// Takes so many locks.
const LOCKS: &str = "\
import fcntl, os
def take(count):
    files = []
    for number in range(count // 500):
        file = os.open(f'/tmp/{number}', os.O_CREAT | os.O_RDWR)
        for place in range(500, 0, -1):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * place)
        files.append(file)
    return files
";

#[test]
fn file_locks_of_one_tenant_leave_the_memory_of_the_machine_to_the_other() {
    let two = Two::with("");
    let limits = json!({ "memory": "64M", "disk": "64M", "timeout": "2m" });
    // Fewer than a sandbox may have, again and again.
    let again = "print('ready', flush=True)\nwhile True: [os.close(file) for file in take(40_000)]";
    let attack = two.programs(&limits, 1, &format!("{LOCKS}{again}"));
    let more = format!("{LOCKS}kept = take(60_000)\nwhile True: pass");
    let mut order = limits.clone();
    order["command"] = json!(["python3", "-c", more]);
    let headers = [("prefer", "respond-async")];
    let begun = two
        .server
        .ask(&two.attacker, "POST", "/v1/runs", &headers, &order);
    assert_eq!(begun.status, 202, "{}", begun.text());
    let run = format!("/v1/runs/{}", text(&begun.json()["run_id"]));
    let shown = || two.attack("GET", &run, &Value::Null).json();
    two.neighbour_is_served();
    while shown()["status"] == "running" {
        two.neighbour_is_served();
    }
    let ended = shown();
    assert_eq!(
        (&ended["status"], &ended["limits_hit"]),
        (&json!("oom_killed"), &json!(["memory"])),
        "{ended}"
    );
    attack.neighbour_is_served_meanwhile();
}

/// A path that leads through 39 long links takes a watcher milliseconds, and its program next to nothing. It begins when
/// all programs are there: they have a tenth of a CPU together.
const LONG_PATHS: &str = "\
import os, time
folder = f'/tmp/{os.getpid()}'
os.mkdir(folder)
last = '/usr'
for number in range(39):
    link = f'{folder}/{number}'
    os.symlink(last + '/.' * ((3900 - len(last)) // 2), link)
    last = link
print('ready', flush=True)
while not os.path.exists('/workspace/go'): time.sleep(0.05)
print('begun', flush=True)
while True:
    try: os.open(last + '/nope', os.O_WRONLY | os.O_CREAT)
    except OSError: pass";

#[test]
fn ten_programs_whose_calls_are_looked_at_leave_the_cpus_to_the_other_tenant() {
    let two = Two::with("");
    let order = json!({ "cpus": 0.1, "memory": "256M", "disk": "64M", "timeout": "2m" });
    let attack = two.programs(&order, 10, LONG_PATHS);
    let go = format!("{}/files/go", attack.sandbox);
    assert_eq!(two.attack("PUT", &go, &json!("now")).status, 201);
    two.server.until("its begin", || {
        let programs = attack.programs.iter();
        let begun = programs.filter(|program| attack.output(program).contains("begun"));
        begun.count() > 2
    });
    attack.neighbour_is_served_meanwhile();
}

/// Tries to give sockets packet filters, which are compiled in memory of the whole machine.
const PACKET_FILTERS: &str = "\
import ctypes, errno, socket, struct
program = struct.pack('HBBI', 6, 0, 0, 0xffffffff)
held = ctypes.create_string_buffer(program, len(program))
filter = struct.pack('HL', 1, ctypes.addressof(held))
told = False
while True:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for option in [26, 50, 51, 52]:
            try: one.setsockopt(socket.SOL_SOCKET, option, filter)
            except OSError as error: assert error.errno == errno.ENOPROTOOPT
            else: raise SystemExit('attached')
    if not told: print('ready', flush=True)
    told = True";

#[test]
fn packet_filters_that_one_tenant_asks_for_take_nothing_from_the_other() {
    let two = Two::with("");
    let order = json!({ "memory": "64M", "disk": "64M", "timeout": "2m" });
    let attack = two.programs(&order, 2, PACKET_FILTERS);
    attack.neighbour_is_served_meanwhile();
}

/// As many descriptors in messages that nobody receives as the kernel lets it have.
const IN_FLIGHT: &str = "\
import array, signal, socket
pairs, count = [], 0
try:
    while True:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pairs.append((one, other))
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))])
        count += 250
except OSError: pass
assert count > 128, count
print('ready', flush=True)
signal.pause()";

/// The kernel counts them by the user, and sandboxes of a server that an ordinary user started have that user outside.
#[test]
fn descriptors_in_flight_of_one_tenant_keep_no_sandbox_of_the_other_from_starting() {
    let folder = Folder::new();
    let mut command = serve(&folder, "", &[]);
    if let Some((uid, gid)) = ordinary_user() {
        chown(&folder.0, Some(uid), Some(gid)).expect("a folder of the user");
        command = as_user(&command, &folder, uid, gid);
    }
    let two = Two::of(Server::started(command, folder, None));
    let order = json!({ "memory": "64M", "disk": "64M", "timeout": "2m" });
    let attack = two.programs(&order, 1, IN_FLIGHT);
    attack.neighbour_is_served_meanwhile();
}

/// The ordinary user of the tests, for root; whoever is one already stays that.
fn ordinary_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |option: &str| -> u32 {
        let told = Command::new("id").args([option, &daemons::user()]).output();
        let text = String::from_utf8(told.expect("id starts").stdout).expect("a number");
        text.trim()
            .parse()
            .expect("the ordinary user of the tests is there")
    };
    Some((number("-u"), number("-g")))
}

/// The same command, started by this user.
fn as_user(command: &Command, folder: &Folder, uid: u32, gid: u32) -> Command {
    let mut wrapped = Command::new("setpriv");
    let (user, group) = (uid.to_string(), gid.to_string());
    wrapped.args(["--reuid", &user, "--regid", &group, "--clear-groups"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped.current_dir(&folder.0).env_clear();
    wrapped.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    wrapped.stdin(process::Stdio::null());
    wrapped
        .stdout(process::Stdio::piped())
        .stderr(process::Stdio::piped());
    wrapped
}

#[test]
fn input_that_programs_of_sandboxes_do_not_read_is_bounded_for_each_tenant() {
    const MOST: usize = 32;
    let two = Two::with("");
    let order = json!({ "memory": "64M", "disk": "64M" });
    let make = || {
        let made = two.attack("POST", "/v1/sandboxes", &order);
        assert_eq!(made.status, 201, "{}", made.text());
        format!("/v1/sandboxes/{}", text(&made.json()["sandbox_id"]))
    };
    let [first, second] = [(); 2].map(|()| make());
    let typed = "x".repeat(1 << 20);
    let start = |sandbox: &str, script: &str| {
        let order = json!({
            "command": ["sh", "-c", script], "stdin": typed, "background": true
        });
        two.attack("POST", &format!("{sandbox}/exec"), &order)
    };
    for number in 0..MOST {
        let sandbox = [&first, &second][number % 2];
        let begun = start(sandbox, "exec sleep 600");
        assert_eq!(begun.status, 201, "the positive control: {}", begun.text());
    }
    let refused = start(&first, "exec sleep 600");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(
        refused.text().contains("standard input"),
        "{}",
        refused.text()
    );
    two.neighbour_is_served();
    let ended = two.attack("DELETE", &second, &Value::Null);
    assert_eq!(ended.status, 200, "{}", ended.text());
    two.server.until("room for more input", || {
        start(&first, "cat > /dev/null").status == 201
    });
}
