//! `airlock grant`: the rules of a run are changed while it goes on.

use airlock_cli_tests::{Answer, World, same};
use snapbox::str;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

/// Asks the door for a host as often as it is told to, and says what came of it. The host is of this machine, where nobody
/// may go: granted or not, nothing is dialled; but whoever refuses is another.
const PROGRAM: &str = "\
import socket, sys
print('ready', flush=True)
for line in sys.stdin:
    door = socket.create_connection(('127.0.0.1', 3128))
    door.sendall(b'CONNECT 127.0.0.1:9 HTTP/1.1\\r\\nHost: 127.0.0.1:9\\r\\n\\r\\n')
    print(door.recv(65536).split()[1].decode(), flush=True)
";

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(world: &World, options: &[&str]) -> Running {
        let arguments = [
            &["run", "--stdin"],
            options,
            &["--", "python3", "-c", PROGRAM],
        ]
        .concat();
        let mut command = world.command(&arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("airlock starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut running = Running {
            child,
            input,
            output,
        };
        assert_eq!(running.line(), "ready");
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it can be read");
        line.trim_end().to_owned()
    }

    /// Has the program ask once.
    fn tries(&mut self) -> String {
        self.input.write_all(b"\n").expect("it listens");
        self.line()
    }

    fn end(self, world: &World) -> Answer {
        drop((self.input, self.output));
        world.answer(&self.child.wait_with_output().expect("it ends"))
    }
}

#[test]
fn a_run_can_be_granted_a_host_and_denied_it_again() {
    let world = World::new();
    let mut running = Running::start(&world, &["--run-id", "job-1", "--profile", "agent"]);
    assert_eq!(running.tries(), "403");
    let granted = world.run(&["grant", "job-1", "127.0.0.1:9", "--for", "1h"]);
    assert_eq!((granted.status, granted.stderr.as_str()), (Some(0), ""));
    same(
        granted.stdout,
        str![[r#"
tunnel  127.0.0.1:9  for [..]  airlock grant 127.0.0.1:9

"#]],
    );
    assert_eq!(running.tries(), "403");
    let listed = world.run(&["grant", "job-1", "--list", "--json"]).json();
    assert_eq!(
        (&listed["run_id"], &listed["rules"][0]["ports"][0]),
        (&"job-1".into(), &9.into())
    );
    let denied = world.run(&["grant", "job-1", "127.0.0.1", "--deny"]);
    assert_eq!(denied.status, Some(0), "{}", denied.stderr);
    assert_eq!(running.tries(), "403");
    let revoked = world.run(&["grant", "job-1", "127.0.0.1", "--revoke"]);
    assert_eq!(revoked.stdout, "no rules: no connection is allowed\n");
    let ended = running.end(&world);
    same(
        ended.stderr,
        str![[r#"
airlock: note: denied: connect `127.0.0.1:9` (by no rule; a rule for 127.0.0.1:9 with allow_private = true in the configuration allows it)
airlock: note: denied: connect `127.0.0.1:9` (by private; a rule with allow_private = true in the configuration allows it)
airlock: note: denied: connect `127.0.0.1:9` (by airlock grant --deny 127.0.0.1; nothing allows it)
airlock: note: 127.0.0.1:9 was granted for 1h while the run went on
airlock: note: 127.0.0.1 was denied while the run went on
airlock: note: the rules for 127.0.0.1 were taken away while the run went on

"#]],
    );
    assert_eq!(
        std::fs::read_dir(world.state().join("doors")).map_or(0, Iterator::count),
        0,
        "nothing is left"
    );
}

#[test]
fn what_cannot_be_granted_is_refused_with_the_reason() {
    let world = World::new();
    let refused = |words: &[&str], told: &str| {
        let answer = world.run(&[&["grant"], words].concat());
        assert_eq!(
            (answer.status, answer.stdout.as_str()),
            (Some(125), ""),
            "{words:?}"
        );
        assert_eq!(answer.stderr, told);
    };
    refused(
        &["job-1", "pypi.org"],
        "airlock: error: no run is called `job-1`, or it has ended\n\
         airlock: hint: no run with an egress door is running here; --state selects another folder\n",
    );
    refused(
        &["job-1", "pypi.org", "--for", "25h"],
        "airlock: error: a grant cannot have a duration of 25h\nairlock: hint: give --for a duration from 1s to 24h\n",
    );
    world.write("c.toml", "[maximum]\nallow_hosts = [\"*.example.com\"]\n");
    let with = [
        "--config",
        "c.toml",
        "--run-id",
        "narrow",
        "--allow-host",
        "a.example.com",
    ];
    let (narrow, shut) = (
        Running::start(&world, &with),
        Running::start(&world, &["--run-id", "shut"]),
    );
    refused(
        &["job-1", "pypi.org"],
        "airlock: error: no run is called `job-1`, or it has ended\n\
         airlock: hint: the runs that accept grants are narrow\n",
    );
    refused(
        &["narrow", "pypi.org"],
        "airlock: error: pypi.org is beyond the hosts that this run is limited to\n\
         airlock: hint: `allow_hosts` under [maximum] in the configuration, or in airlock.toml, says which\n",
    );
    refused(
        &["shut", "pypi.org"],
        "airlock: error: the run `shut` has no egress door\n\
         airlock: hint: start it with --allow-host, --learn or --profile agent\n",
    );
    assert_eq!(
        world.run(&["grant", "narrow", "b.example.com"]).status,
        Some(0)
    );
    let json = world.run(&["grant", "narrow", "pypi.org", "--json"]).json();
    assert_eq!(json["error"]["code"], "policy_denied");
    assert_eq!(shut.end(&world).status, Some(0));
    assert_eq!(narrow.end(&world).status, Some(0));
    refused(
        &["narrow", "b.example.com"],
        "airlock: error: no run is called `narrow`, or it has ended\n\
         airlock: hint: no run with an egress door is running here; --state selects another folder\n",
    );
}
