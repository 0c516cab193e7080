//! The way from the box to the door (cases 55 and 60): a box has a loopback of its own and nothing listens there but its
//! doors; nothing of the way is inherited or left; and to forget the proxy gains nothing (more of that: `unaware.rs`, of the
//! socket by which rules are changed: `grant.rs`).
//!
//! | guard | without it fails |
//! |---|---|
//! | a network namespace of its own | `nothing_answers_inside_but_the_doors` |
//! | descriptors close at `exec` | `a_program_inherits_nothing_of_the_door` |
//! | the sweep of `STATE/doors` | `of_a_run_that_is_killed_in_the_middle_of_tunnels_nothing_is_left` |

use egress::{OWN_V4, RAW, World};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

#[test]
fn nothing_answers_inside_but_the_doors() {
    let world = World::new();
    let script = format!(
        "{RAW}
def is_open(where):
    one = socket.socket(socket.AF_INET6 if ':' in where[0] else socket.AF_INET)
    one.settimeout(5)
    with one:
        return one.connect_ex(where) == 0
print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line))
for table in ('tcp', 'tcp6', 'udp', 'udp6'):
    lines = [line.split() for line in open('/proc/net/' + table).read().splitlines()[1:]]
    print(table, sorted(int(line[1].rpartition(':')[2], 16) for line in lines if line[3] in ('0A', '07')))
for address in ('{OWN_V4}', '10.0.0.1', '8.8.8.8'):
    print(address, [port for port in (7, 22, 53, 8080, 8443) if is_open((address, port))])"
    );
    let ran = world.python(
        &["--allow-host", "a.example:443", "--timeout", "2m"],
        &script,
    );
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(told[0], "['lo']", "{ran:?}");
    // The proxy, names, and where connections arrive that were meant for elsewhere.
    assert_eq!(
        told[1..5],
        [
            "tcp [80, 443, 3128]",
            "tcp6 [80, 443]",
            "udp [53]",
            "udp6 [53]"
        ],
        "{ran:?}"
    );
    assert!(told[5..].iter().all(|line| line.ends_with("[]")), "{ran:?}");
    assert!(world.connections().is_empty() && world.queries().is_empty());
    // The control: outside, on the same machine, they answer.
    let outside = format!(
        "for port in 7 22 53 8080 8443; do timeout 5 bash -c \"exec 3<>/dev/tcp/{OWN_V4}/$port\" && echo $port; done"
    );
    assert_eq!(
        String::from_utf8_lossy(&world.outside(&outside).stdout),
        "7\n22\n53\n8080\n8443\n"
    );
}

#[test]
fn a_program_inherits_nothing_of_the_door() {
    let world = World::new();
    let script = "import os, socket
print(sorted(int(name) for name in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + name)))
print([line for line in open('/proc/net/unix').read().splitlines()[1:]])
found = [os.path.join(at, name) for at, _, names in os.walk('/', onerror=None) if not at.startswith(('/proc', '/sys', '/usr')) for name in names if name.endswith(('.control', '.sock'))]
print(found)
listening = [line.split()[1] for line in open('/proc/net/tcp').read().splitlines()[1:] if line.split()[3] == '0A']
print(any(one.endswith(':0C38') for one in listening))
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        links = [os.readlink(f'/proc/{pid}/fd/{name}') for name in os.listdir(f'/proc/{pid}/fd')]
    except OSError:
        continue
    print(pid, [link for link in links if link.startswith('socket:')])";
    let ran = world.python(&["--allow-host", "a.example"], script);
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(told[..4], ["[0, 1, 2]", "[]", "[]", "True"], "{ran:?}");
    assert!(
        told[4..].iter().all(|line| line.ends_with(" []")),
        "{ran:?}"
    );
}

#[test]
fn to_forget_the_proxy_gains_nothing() {
    let world = World::new();
    let forget = "env -i PATH=/usr/bin:/bin";
    for (host, allowed) in [("a.example", true), ("b.example", false)] {
        world.clear();
        let ran = world.run(
            &["--allow-host", "a.example"],
            &format!(
                "{forget} curl -sS -m 8 https://{host}/; {forget} curl -sS -m 8 -f http://{host}/"
            ),
        );
        assert_eq!(
            ran.stdout.matches("says hello").count(),
            if allowed { 2 } else { 0 },
            "{ran:?}"
        );
        assert_eq!(
            world.queries().is_empty() && world.connections().is_empty(),
            !allowed
        );
    }
}

/// Every process there is.
fn processes() -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|one| one.file_name().to_str()?.parse().ok())
        .collect()
}

/// Which network a process is in.
fn network(pid: u32) -> Option<String> {
    fs::read_link(format!("/proc/{pid}/ns/net"))
        .ok()
        .map(|link| link.display().to_string())
}

fn left_in_doors(world: &World) -> Vec<String> {
    let found = fs::read_dir(world.path("state/doors"))
        .into_iter()
        .flatten()
        .flatten();
    found
        .map(|one| one.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn of_a_run_that_is_killed_in_the_middle_of_tunnels_nothing_is_left() {
    let world = World::new();
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"inside.example\"\nmode = \"inspect\"\n",
    );
    let mark = format!("mark={}", std::process::id());
    let script = format!(
        "curl -sS https://a.example/hold?{mark} & curl -sS https://inside.example/hold?{mark} & curl -sS --noproxy '*' https://a.example/hold?{mark} & wait"
    );
    let run = world.begin(&["--run-id", "mine", "--allow-host", "a.example"], &script);
    world.await_request(|request| request.host == "inside.example");
    let both = |world: &World| {
        world
            .requests()
            .iter()
            .filter(|one| one.host == "a.example")
            .count()
            == 2
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !both(&world) {
        assert!(
            Instant::now() < deadline,
            "the tunnels stand: {:?}",
            world.requests()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // The box, by its network: whoever was asked to do this, and who keeps it.
    let asks = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&mark))
    };
    let outer = [network(run.pid()), network(std::process::id())];
    let networks: BTreeSet<_> = processes()
        .iter()
        .filter(|pid| asks(pid))
        .map(|pid| network(*pid))
        .filter(|one| !outer.contains(one))
        .collect();
    let inside: Vec<u32> = processes()
        .into_iter()
        .filter(|pid| networks.contains(&network(*pid)))
        .collect();
    assert!(
        inside.len() > 3 && networks.len() == 1,
        "the control: {inside:?} {networks:?}"
    );
    // As long as somebody has it open, no other network gets its name.
    let _kept = fs::File::open(format!("/proc/{}/ns/net", inside[0])).expect("it lives");
    let files = left_in_doors(&world);
    assert!(
        files.iter().any(|name| name.ends_with(".pem"))
            && files.iter().any(|name| name.ends_with(".control")),
        "the control: {files:?}"
    );
    kill_process(
        Pid::from_raw(run.pid() as i32).expect("a process"),
        Signal::KILL,
    )
    .expect("it lives");
    // Waits for its end.
    drop(run);
    // What was made just now may belong to somebody who is about to listen: time passes.
    assert!(
        world
            .outside("touch --date '1 hour ago' state/doors/mine.*")
            .status
            .success()
    );
    let swept = world.airlock(&["sweep"]);
    assert!(swept.status.success(), "{}", sdk_tests::said(&swept));
    let alive = || -> Vec<u32> {
        let is_there = |pid: &&u32| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        inside.iter().filter(is_there).copied().collect()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !alive().is_empty() {
        assert!(Instant::now() < deadline, "still there: {:?}", alive());
        std::thread::sleep(Duration::from_millis(10));
    }
    let files: Vec<_> = left_in_doors(&world)
        .into_iter()
        .filter(|name| name.contains("mine"))
        .collect();
    assert_eq!(files, Vec::<String>::new(), "in STATE/doors");
    let held = processes()
        .into_iter()
        .filter(|pid| networks.contains(&network(*pid)))
        .count();
    assert_eq!(held, 0, "its network has no process");
    // The name is free again, and the door opens as if nothing had been.
    let ran = world.run(
        &["--run-id", "mine", "--allow-host", "a.example"],
        "curl -sS https://inside.example/",
    );
    assert_eq!(ran.well(), "inside.example says hello\n");
}
