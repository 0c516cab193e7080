//! Claims 44 to 50 for a door that is a socket of the host.

use crate::{
    Claim,
    engine::{Ended, Engine, path, until},
    upstream,
};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    sync::mpsc,
};

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "44 without a door there is only loopback, and nothing on it",
        nothing,
    ),
    (
        "46 with a door its paths are those of the other end, from the first moment",
        bridged,
    ),
    (
        "46 the usual socket is bridged without being named, a port can be chosen",
        unnamed,
    ),
    (
        "46 streams come through as they come, and ends are kept",
        streamed,
    ),
    (
        "47 a door that was promised and is not there ends the start",
        missing,
    ),
    ("47 a bridge that dies ends the program", dies),
    (
        "11 the grace ends a tree with a bridge, too, without waiting for the bridge",
        stopped,
    ),
    (
        "47 the program cannot signal, trace or read the bridge of a root start",
        untouchable,
    ),
    (
        "50 two containers have two doors, and neither reaches the other's",
        two,
    ),
];

/// The options that mount a folder as the place of the usual socket.
fn mount(folder: &Path) -> String {
    format!("{}:/llm-sock", path(folder))
}

/// Asks for `PORT/PATH`; prints the first line of the answer and its body.
fn get(place: &str) -> String {
    let (port, path) = place.split_once('/').expect("PORT/PATH");
    let request = format!(
        "printf 'GET /{path} HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n' | nc -w 5 127.0.0.1 {port}"
    );
    format!("{request} | tr -d '\\r' | sed -e '2,/^$/d'")
}

fn nothing(engine: &Engine) {
    let look = "ip -o link | cut -d: -f2; nc -w 1 127.0.0.1 8080 </dev/null; echo $?; \
        nc -w 1 1.1.1.1 80 </dev/null; echo $?; ls /llm-sock; echo $?";
    let ended = engine.run(&[], &["sh", "-c", look]);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, " lo\n1\n1\n1\n"),
        "{ended:?}"
    );
}

fn bridged(engine: &Engine) {
    let folder = engine.folder();
    let asked = upstream::on_socket(&folder.join("llm.sock"), "run-1", None);
    // The very first thing that the program does is to ask.
    let line = format!(
        "{}; {}; {}; echo $OPENAI_API_BASE",
        get("8080/health"),
        get("8080/v1/models"),
        get("8080/other")
    );
    let options = [
        "-v",
        &mount(&folder),
        "-e",
        "OPENAI_API_BASE=http://localhost:8080",
    ];
    let ended = engine.run(&options, &["sh", "-c", &line]);
    let expected = "HTTP/1.1 200 OK\nrun-1\nHTTP/1.1 200 OK\n{\"data\":[]}\nHTTP/1.1 404 Not Found\nno\nhttp://localhost:8080\n";
    assert_eq!(
        (ended.status, ended.stdout.as_str(), ended.stderr.as_str()),
        (0, expected, "")
    );
    let asked = asked.all();
    assert!(
        asked[0].contains("Host: here"),
        "bytes pass as they are: {asked:?}"
    );
    // The same for one that starts as an ordinary user, in the way containers are hardened.
    let hardened = [
        "--user",
        "1000:1000",
        "--cap-drop",
        "ALL",
        "--read-only",
        "-v",
        &mount(&folder),
    ];
    let ended = engine.run(&hardened, &["sh", "-c", &get("8080/health")]);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "HTTP/1.1 200 OK\nrun-1\n"),
        "{ended:?}"
    );
}

fn unnamed(engine: &Engine) {
    let folder = engine.folder();
    upstream::on_socket(&folder.join("llm.sock"), "usual", None);
    upstream::on_socket(&folder.join("other.sock"), "named", None);
    let ended = engine.run(&["-v", &mount(&folder)], &["sh", "-c", &get("8080/health")]);
    assert_eq!(ended.stdout, "HTTP/1.1 200 OK\nusual\n", "{ended:?}");
    let chosen = [
        "-v",
        &mount(&folder),
        "-e",
        "LLM_PROXY_SOCKET=/llm-sock/other.sock",
        "-e",
        "LLM_PROXY_PORT=9000",
    ];
    let ended = engine.run(
        &chosen,
        &[
            "sh",
            "-c",
            &format!("{}; {}", get("9000/health"), get("8080/health")),
        ],
    );
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "HTTP/1.1 200 OK\nnamed\n"),
        "{ended:?}"
    );
}

fn streamed(engine: &Engine) {
    let (folder, (next, wait)) = (engine.folder(), mpsc::channel());
    upstream::on_socket(&folder.join("llm.sock"), "stream", Some(wait));
    // `nc` ends its sending side after the request, and must still get all of the answer.
    let line = "printf 'GET /stream HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' | nc 127.0.0.1 8080 | \
        while read -r l; do case $l in data*) echo \"$l\";; esac; done";
    let mut running = engine.begin(&["-v", &mount(&folder)], &["sh", "-c", line]);
    for event in 1..=3 {
        assert_eq!(running.line(), format!("data: {event}"));
        next.send(()).expect("the other end waits for it");
    }
    assert_eq!(running.wait().status, 0);
}

fn refused(ended: &Ended, why: &str) {
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (125, ""),
        "{ended:?}"
    );
    assert!(
        ended.stderr.starts_with("airlock-init: ") && ended.stderr.contains(why),
        "{ended:?}"
    );
}

fn missing(engine: &Engine) {
    let run = |options: &[&str]| engine.run(options, &["echo", "ran"]);
    refused(
        &run(&["-e", "OPENAI_API_BASE=http://localhost:8080"]),
        "promised (OPENAI_API_BASE)",
    );
    refused(
        &run(&["-e", "LLM_PROXY_SOCKET=/llm-sock/llm.sock"]),
        "No such file",
    );
    let folder = engine.folder();
    fs::write(folder.join("llm.sock"), "").expect("a file can be written");
    refused(&run(&["-v", &mount(&folder)]), "it is not a socket");
    fs::remove_file(folder.join("llm.sock")).expect("it can be removed");
    drop(UnixListener::bind(folder.join("llm.sock")).expect("a socket can be made"));
    let set_mode = |mode| {
        fs::set_permissions(folder.join("llm.sock"), fs::Permissions::from_mode(mode))
            .expect("it is ours")
    };
    set_mode(0o666);
    refused(&run(&["-v", &mount(&folder)]), "nobody listens");
    set_mode(0o600);
    refused(
        &run(&["-v", &mount(&folder), "--user", "1000", "--cap-drop", "ALL"]),
        "Permission denied",
    );
    fs::remove_file(folder.join("llm.sock")).expect("it can be removed");
    upstream::on_socket(&folder.join("llm.sock"), "there", None);
    let ended = run(&[
        "-v",
        &mount(&folder),
        "-e",
        "OPENAI_API_BASE=http://localhost:8080",
    ]);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "ran\n"),
        "the control: {ended:?}"
    );
    refused(
        &run(&["-v", &mount(&folder), "-e", "LLM_PROXY_PORT=0"]),
        "LLM_PROXY_PORT must be",
    );
}

fn dies(engine: &Engine) {
    let folder = engine.folder();
    upstream::on_socket(&folder.join("llm.sock"), "bridge", None);
    // Of one user, the program can kill the bridge: its only sibling.
    let line = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -9 $p; done; \
        echo killed; sleep 1000";
    let ended = engine.run(
        &["-v", &mount(&folder), "--user", "1000:1000"],
        &["sh", "-c", line],
    );
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(
        ended.stderr.contains("the bridge to the model has ended"),
        "{ended:?}"
    );
    // And from outside, for any start.
    let mut running = engine.begin(
        &["-v", &mount(&folder)],
        &["sh", "-c", "echo ready; exec sleep 1000"],
    );
    assert_eq!(running.line(), "ready");
    let bridge = until("the bridge is seen", || bridge_of(running.pid()));
    rustix::process::kill_process(bridge, rustix::process::Signal::KILL).expect("it is there");
    let ended = running.wait();
    assert_eq!(ended.status, 125, "{ended:?}");
}

fn stopped(engine: &Engine) {
    let folder = engine.folder();
    upstream::on_socket(&folder.join("llm.sock"), "bridge", None);
    let deaf = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let options = ["-v", &mount(&folder), "-e", "AGENT_GRACE=1"];
    let mut running = engine.begin(&options, &["sh", "-c", deaf]);
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    let ended = running.wait();
    // Of another user than the program, the bridge cannot be killed: it must not be waited for either.
    assert_eq!(
        (ended.status, ended.stderr.as_str()),
        (137, ""),
        "{ended:?}"
    );
}

/// The child of a container's first process that runs the same program.
fn bridge_of(first: i32) -> Option<rustix::process::Pid> {
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
    let exe = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let mut children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    children
        .find(|child| exe(*child) == exe(first))
        .and_then(rustix::process::Pid::from_raw)
}

fn untouchable(engine: &Engine) {
    let folder = engine.folder();
    upstream::on_socket(&folder.join("llm.sock"), "bridge", None);
    let line = format!(
        "for p in /proc/[0-9]*; do p=${{p#/proc/}}; [ $p = 1 ] || [ $p = $$ ] || {{ id=$p; kill -9 $p 2>/dev/null; \
         cat /proc/$p/environ /proc/$p/maps 2>/dev/null; readlink /proc/$p/fd/[0-9]*; }}; done; {}",
        get("8080/health")
    );
    for user in ["agent", "root", "65534"] {
        let user = format!("AGENT_USER={user}");
        let ended = engine.run(&["-v", &mount(&folder), "-e", &user], &["sh", "-c", &line]);
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (0, "HTTP/1.1 200 OK\nbridge\n"),
            "{ended:?}"
        );
    }
}

fn two(engine: &Engine) {
    let (one, other) = (engine.folder(), engine.folder());
    let asked = upstream::on_socket(&one.join("llm.sock"), "one", None);
    upstream::on_socket(&other.join("llm.sock"), "other", None);
    let mut first = engine.begin(
        &["-v", &mount(&one)],
        &["sh", "-c", "echo ready; exec sleep 1000"],
    );
    assert_eq!(first.line(), "ready");
    let look = format!(
        "{}; ls /llm-sock; find / -xdev -name '*.sock' 2>/dev/null | wc -l",
        get("8080/health")
    );
    let second = engine.run(&["-v", &mount(&other)], &["sh", "-c", &look]);
    assert_eq!(
        second.stdout.lines().take(3).collect::<Vec<_>>(),
        ["HTTP/1.1 200 OK", "other", "llm.sock"],
        "{second:?}"
    );
    assert_eq!(asked.all().len(), 0, "the first one's was not asked");
    let own = first.exec("1000", &["sh", "-c", &get("8080/health")]);
    assert_eq!(own.stdout, "HTTP/1.1 200 OK\none\n", "{own:?}");
}
