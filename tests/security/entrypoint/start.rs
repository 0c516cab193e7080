//! Claims 1 to 10: which command, what it sees, and as whom it runs.

use crate::{
    Claim,
    engine::{Ended, Engine},
};

pub(crate) const CLAIMS: &[Claim] = &[
    (
        "1 the command comes from AGENT_COMMAND, else from the arguments, and without one nothing runs",
        command,
    ),
    (
        "2 what is ours is in no environment, what was injected is",
        stripped,
    ),
    (
        "3 AGENT_ARGS splits on white space, JSON keeps every byte",
        exact_arguments,
    ),
    ("4 two commands at once are refused by name", two_commands),
    (
        "5 the working directory is /workspace or as asked, and must be there",
        workdir,
    ),
    (
        "6 root becomes the user, with his groups, and nothing else",
        dropped,
    ),
    (
        "6 root runs as root only by name, without capabilities, and that is told",
        named_root,
    ),
    ("7 who is unknown does not run, numbers do", users),
    (
        "8 root without the capability to drop does not run and says which",
        without_capability,
    ),
    ("9 an ordinary user stays who he is", ordinary),
    (
        "9 an ordinary user's ambient capabilities are given up",
        ambient,
    ),
    (
        "10 the program is looked for in PATH; 127, 126 and 125 tell what went wrong",
        statuses,
    ),
    (
        "10 one line goes through bash, and without bash that is 127",
        shell,
    ),
    ("12 no descriptor above 2 reaches the program", descriptors),
    ("12 it is quiet, and tells more when asked", quiet),
];

fn check(ended: &Ended, status: i32, stdout: &str) {
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (status, stdout),
        "{ended:?}"
    );
}

/// It did not run, and says why.
fn refused(ended: &Ended, why: &str) {
    check(ended, 125, "");
    assert!(
        ended.stderr.starts_with("airlock-init: ") && ended.stderr.contains(why),
        "{ended:?}"
    );
}

fn command(engine: &Engine) {
    check(
        &engine.run(
            &[
                "-e",
                "AGENT_COMMAND=echo",
                "-e",
                "AGENT_ARGS=from variables",
            ],
            &[],
        ),
        0,
        "from variables\n",
    );
    check(
        &engine.run(&[], &["echo", "from", "arguments"]),
        0,
        "from arguments\n",
    );
    check(
        &engine.run(&["-e", "AGENT_COMMAND="], &["echo", "empty is not given"]),
        0,
        "empty is not given\n",
    );
    check(
        &engine.run(&[], &["--", "echo", "after dashes"]),
        0,
        "after dashes\n",
    );
    refused(&engine.run(&[], &[]), "no command");
}

const STRIPPED: [&str; 7] = [
    "SESSION_TOKEN=s3cret-token",
    "SESSION_ID=s3cret-id",
    "AGENT_USER=agent",
    "AGENT_WORKDIR=/workspace",
    "AGENT_GRACE=3",
    "AGENT_LOG=1",
    "AGENT_UNKNOWN=s3cret-other",
];

fn stripped(engine: &Engine) {
    let mut options = vec![
        "-e",
        "ANTHROPIC_API_KEY=injected",
        "-e",
        "ANTHROPIC_BASE_URL=http://proxy",
    ];
    STRIPPED
        .iter()
        .for_each(|variable| options.extend(["-e", variable]));
    let ours = |name: &str| {
        ["AGENT_", "SESSION_", "CONTROL_PLANE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let mut running = engine.begin(
        &options,
        &[
            "sh",
            "-c",
            "trap 'cat /proc/1/environ; exit 0' TERM; env; echo ready; sleep 100 & wait",
        ],
    );
    let shown: Vec<_> = std::iter::repeat_with(|| running.line())
        .take_while(|line| line != "ready")
        .collect();
    assert!(
        !shown
            .iter()
            .any(|line| ours(line) || line.contains("s3cret")),
        "{shown:?}"
    );
    assert!(
        shown.contains(&"ANTHROPIC_API_KEY=injected".to_owned()),
        "{shown:?}"
    );
    assert!(
        shown.contains(&"ANTHROPIC_BASE_URL=http://proxy".to_owned()),
        "{shown:?}"
    );
    // The host sees everything of every process, and finds nothing of it in the first; in the engine's own it does.
    let pid = running.pid();
    let environ =
        std::fs::read(format!("/proc/{pid}/environ")).expect("root on the host may read it");
    assert!(
        !environ.is_empty() && environ.iter().all(|byte| *byte == 0),
        "{environ:?}"
    );
    running.signal("TERM");
    let ended = running.wait();
    assert!(
        ended
            .stderr
            .contains("unknown variables are removed: AGENT_UNKNOWN"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("environ': Permission denied") && !ended.stderr.contains("s3cret"),
        "{ended:?}"
    );
    let control = engine.run(
        &["--entrypoint", "/bin/cat", "-e", STRIPPED[0]],
        &["/proc/1/environ"],
    );
    assert!(
        control.stdout.contains("s3cret-token"),
        "without us it is there: {control:?}"
    );
}

fn exact_arguments(engine: &Engine) {
    let words = engine.run(
        &[
            "-e",
            "AGENT_COMMAND=printf",
            "-e",
            "AGENT_ARGS=[%s]  a 'b\tc' ",
        ],
        &[],
    );
    check(&words, 0, "[a]['b][c']");
    let json = r#"AGENT_COMMAND_JSON=["printf", "[%s]", "a b", "", "\"q\" $(id) ;", "two\nlines", "\u00e9"]"#;
    check(
        &engine.run(&["-e", json], &[]),
        0,
        "[a b][][\"q\" $(id) ;][two\nlines][é]",
    );
    check(
        &engine.run(&[], &["printf", "[%s]", "a b", "", "$(id)"]),
        0,
        "[a b][][$(id)]",
    );
    for wrong in [
        "AGENT_COMMAND_JSON=echo",
        r#"AGENT_COMMAND_JSON=["echo", 1]"#,
        "AGENT_COMMAND_JSON=[]",
    ] {
        assert_eq!(engine.run(&["-e", wrong], &[]).status, 125);
    }
}

fn two_commands(engine: &Engine) {
    let both = engine.run(&["-e", "AGENT_COMMAND=echo"], &["echo", "lost"]);
    refused(
        &both,
        "both AGENT_COMMAND and the arguments of airlock-init",
    );
    let both = engine.run(
        &[
            "-e",
            "AGENT_COMMAND=echo",
            "-e",
            "AGENT_COMMAND_JSON=[\"echo\"]",
        ],
        &[],
    );
    refused(&both, "both AGENT_COMMAND and AGENT_COMMAND_JSON");
    refused(
        &engine.run(&["-e", "AGENT_ARGS=lost"], &["echo"]),
        "AGENT_ARGS is set",
    );
}

fn workdir(engine: &Engine) {
    check(&engine.run(&[], &["pwd"]), 0, "/workspace\n");
    check(
        &engine.run(&["-e", "AGENT_WORKDIR=/elsewhere"], &["pwd"]),
        0,
        "/elsewhere\n",
    );
    refused(
        &engine.run(&["-e", "AGENT_WORKDIR=/absent"], &["pwd"]),
        "cannot work in `/absent`: No such file",
    );
    refused(
        &engine.run(&["-e", "AGENT_WORKDIR=/locked"], &["pwd"]),
        "cannot work in `/locked`: Permission denied",
    );
    refused(
        &engine.run(&["-e", "AGENT_WORKDIR=tmp"], &["pwd"]),
        "AGENT_WORKDIR is not an absolute path",
    );
}

const WHO: &str = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME $SHELL; umask; \
    grep -E '^(Cap|NoNewPrivs|Uid|Gid|Groups)' /proc/self/status | tr -s '\\t ' ' '";
const NOTHING: &str =
    "CapInh: 0000000000000000\nCapPrm: 0000000000000000\nCapEff: 0000000000000000\n";
const NO_BOUNDS: &str = "CapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\n";

fn dropped(engine: &Engine) {
    let ended = engine.run(&[], &["sh", "-c", WHO]);
    let ids = "Uid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups: 29 1000 2000 \n";
    let who = "1000\n1000\n1000 29 2000\n/home/agent agent agent /bin/sh\n0022\n";
    check(&ended, 0, &format!("{who}{ids}{NOTHING}{NO_BOUNDS}"));
    assert_eq!(ended.stderr, "");
    let control = engine.run(&["--entrypoint", "/bin/sh"], &["-c", WHO]);
    assert!(
        !control.stdout.contains(NOTHING) && !control.stdout.contains(NO_BOUNDS),
        "{control:?}"
    );
    // The first process itself is no better.
    let first = engine.run(
        &[],
        &[
            "sh",
            "-c",
            "grep -E '^(Uid|Cap|NoNew)' /proc/1/status | tr -s '\\t ' ' '",
        ],
    );
    check(
        &first,
        0,
        &format!("Uid: 1000 1000 1000 1000\n{NOTHING}{NO_BOUNDS}"),
    );
}

fn named_root(engine: &Engine) {
    for name in ["root", "0", "0:0"] {
        let user = format!("AGENT_USER={name}");
        let ended = engine.run(&["-e", &user], &["sh", "-c", WHO]);
        assert!(
            ended.stdout.starts_with("0\n0\n0\n/root root root"),
            "{ended:?}"
        );
        assert!(
            ended.stdout.ends_with(&format!("{NOTHING}{NO_BOUNDS}")),
            "{ended:?}"
        );
        assert_eq!(ended.stderr.matches("runs as root").count(), 1, "{ended:?}");
    }
    // As the source system was used: all capabilities dropped, and root by name.
    let bare = engine.run(
        &["--cap-drop", "ALL", "-e", "AGENT_USER=root"],
        &["id", "-u"],
    );
    check(&bare, 0, "0\n");
}

fn users(engine: &Engine) {
    refused(
        &engine.run(&["-e", "AGENT_USER=nobody-here"], &["id"]),
        "no user `nobody-here`",
    );
    refused(
        &engine.run(&["-e", "AGENT_USER=toor"], &["id"]),
        "root under another name",
    );
    refused(
        &engine.run(&["-e", "AGENT_USER=4294967295"], &["id"]),
        "4294967295",
    );
    refused(
        &engine.run(&["-e", "AGENT_USER=1000:nothing"], &["id"]),
        "a group that /etc/group does not",
    );
    let as_user = |user: &str, expected: &str| {
        let ended = engine.run(
            &["-e", &format!("AGENT_USER={user}")],
            &["sh", "-c", "id -u; id -g; id -G; echo $HOME $USER"],
        );
        check(&ended, 0, expected);
    };
    as_user("1000", "1000\n1000\n1000 29 2000\n/home/agent agent\n");
    as_user("1000:1000", "1000\n1000\n1000\n/home/agent agent\n");
    as_user("other", "1001\n1001\n1001 29\n/home/other other\n");
    as_user("agent:video", "1000\n44\n44\n/home/agent agent\n");
    as_user("4242", "4242\n4242\n4242\n/workspace 4242\n");
    as_user("4242:7", "4242\n7\n7\n/workspace 4242\n");
}

fn without_capability(engine: &Engine) {
    let bare = engine.run(&["--cap-drop", "ALL"], &["id"]);
    refused(&bare, "lacks the capability SETUID and SETGID");
    assert!(bare.stderr.contains("--user 1000:1000"), "{bare:?}");
    refused(
        &engine.run(&["--cap-drop", "SETUID"], &["id"]),
        "lacks the capability SETUID here",
    );
    refused(
        &engine.run(&["--cap-drop", "SETGID"], &["id"]),
        "lacks the capability SETGID here",
    );
    // What the message says helps.
    let added = engine.run(
        &[
            "--cap-drop",
            "ALL",
            "--cap-add",
            "SETUID",
            "--cap-add",
            "SETGID",
        ],
        &["id", "-u"],
    );
    check(&added, 0, "1000\n");
    assert!(added.stderr.contains("for want of SETPCAP"), "{added:?}");
    let all = [
        "--cap-drop",
        "ALL",
        "--cap-add",
        "SETUID",
        "--cap-add",
        "SETGID",
        "--cap-add",
        "SETPCAP",
    ];
    let ended = engine.run(&all, &["id", "-u"]);
    assert_eq!(
        (ended.status, ended.stdout.as_str(), ended.stderr.as_str()),
        (0, "1000\n", "")
    );
}

fn ordinary(engine: &Engine) {
    let hardened = ["--user", "1000:1000", "--cap-drop", "ALL", "--read-only"];
    let ended = engine.run(&hardened, &["sh", "-c", WHO]);
    assert!(
        ended.stdout.starts_with("1000\n1000\n") && ended.stdout.contains(NOTHING),
        "{ended:?}"
    );
    assert!(
        ended.stdout.ends_with("NoNewPrivs: 1\n") && ended.stderr.is_empty(),
        "{ended:?}"
    );
    check(
        &engine.run(
            &["--user", "1000", "-e", "HOME=/chosen"],
            &["sh", "-c", "echo $HOME $USER"],
        ),
        0,
        "/chosen agent\n",
    );
    check(
        &engine.run(&["--user", "1000", "-e", "AGENT_USER=agent"], &["id", "-u"]),
        0,
        "1000\n",
    );
    check(
        &engine.run(&["--user", "4242:4242"], &["id", "-u"]),
        0,
        "4242\n",
    );
    refused(
        &engine.run(&["--user", "1000", "-e", "AGENT_USER=other"], &["id"]),
        "AGENT_USER is uid 1001",
    );
    refused(
        &engine.run(&["--user", "1000", "-e", "AGENT_USER=root"], &["id"]),
        "AGENT_USER is uid 0",
    );
    refused(
        &engine.run(
            &["--user", "1000:1000", "-e", "AGENT_USER=1000:44"],
            &["id"],
        ),
        "gid 44",
    );
}

fn ambient(engine: &Engine) {
    let options = ["--user", "1000", "--cap-add", "NET_RAW"];
    let ended = engine.run(
        &options,
        &["sh", "-c", "grep ^Cap /proc/self/status | tr -s '\\t ' ' '"],
    );
    assert!(
        ended.stdout.starts_with(NOTHING) && ended.stdout.ends_with("CapAmb: 0000000000000000\n"),
        "{ended:?}"
    );
}

fn statuses(engine: &Engine) {
    let path = ["-e", "PATH=/absent:/workspace:/bin"];
    check(&engine.run(&path, &["only-here"]), 0, "found only here\n");
    check(&engine.run(&[], &["sh", "-c", "exit 42"]), 42, "");
    let told = |ended: Ended, status: i32, why: &str| {
        check(&ended, status, "");
        assert!(
            ended.stderr.starts_with("airlock-init: ") && ended.stderr.contains(why),
            "{ended:?}"
        );
    };
    told(
        engine.run(&[], &["only-here"]),
        127,
        "`only-here` not found",
    );
    told(
        engine.run(&[], &["/bin/absent"]),
        127,
        "`/bin/absent` not found",
    );
    told(engine.run(&[], &["no-interpreter"]), 127, "its interpreter");
    told(
        engine.run(&[], &["not-executable"]),
        126,
        "cannot be run: Permission denied",
    );
    told(engine.run(&[], &["/workspace"]), 126, "cannot be run");
    told(
        engine.run(&["-e", "AGENT_GRACE=soon"], &["true"]),
        125,
        "AGENT_GRACE must be a whole number",
    );
    told(engine.run(&[], &["--unknown"]), 125, "unknown option");
    // The name that the program is started by is the one given.
    check(
        &engine.run(&[], &["sh", "-c", "cat /proc/self/cmdline | tr '\\0' ' '"]),
        0,
        "cat /proc/self/cmdline ",
    );
    let help = engine.run(&[], &["--help"]);
    assert!(
        help.status == 0 && help.stdout.starts_with("airlock-init: the first process"),
        "{help:?}"
    );
}

fn shell(engine: &Engine) {
    let line = "shopt -q login_shell && [[ $BASH_VERSION ]] && echo 'a  b' | { read -r x; echo \"$x\"; }; exit 3";
    check(&engine.run_with_bash(&[], &["--shell", line]), 3, "a  b\n");
    let without = engine.run(&[], &["--shell", line]);
    check(&without, 127, "");
    assert!(
        without.stderr.contains("--shell needs an image with bash"),
        "{without:?}"
    );
    refused(
        &engine.run_with_bash(&[], &["--shell", "a", "b"]),
        "--shell takes one argument",
    );
}

fn descriptors(engine: &Engine) {
    // `ls` itself opens one more, for what it lists.
    check(
        &engine.run(&[], &["sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"]),
        0,
        "0 1 2 3 ",
    );
    let leaking = ["--entrypoint", "/bin/sh"];
    let inherit =
        "exec 5</etc/passwd 7</etc/group; exec $0 sh -c 'ls /proc/self/fd | tr \"\\n\" \" \"'";
    check(
        &engine.run(&leaking, &["-c", inherit, "/airlock-init"]),
        0,
        "0 1 2 3 ",
    );
    let control = engine.run(&leaking, &["-c", inherit, "/bin/env"]);
    assert!(control.stdout.contains("5 7"), "{control:?}");
    // Streams that are closed are given, so that nothing else takes their place.
    let closed = engine.run(
        &leaking,
        &[
            "-c",
            "exec /airlock-init sh -c 'sleep 9 & readlink /proc/$!/fd/0 >&2; readlink /proc/$!/fd/1 >&2' <&- >&-",
        ],
    );
    assert_eq!(
        (closed.status, closed.stderr.matches("/dev/null").count()),
        (0, 2),
        "{closed:?}"
    );
}

fn quiet(engine: &Engine) {
    let silent = engine.run(&[], &["true"]);
    assert_eq!((silent.status, silent.stderr.as_str()), (0, ""));
    let told = engine.run(&["-e", "AGENT_LOG=1"], &["true"]);
    assert_eq!(
        told.stderr,
        "airlock-init: dropped to uid 1000, gid 1000, groups [1000, 2000, 29]; bridge none\n"
    );
}
