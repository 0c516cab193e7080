//! Many runs and sessions through one server: what it holds after the last is what it held after a few.
//!
//! 10,000 runs with `AIRLOCK_FULL=1`, else 400. The bounds are such that one descriptor, thread, cgroup or file a run
//! would break them; memory may grow by what the newest thousand runs take, who are kept at hand on purpose, so with few
//! runs only a leak of 40 KiB a run is seen, with all of them one of a KiB.

use gateway_tests::Server;
use robustness::{eventually, full, host, orphans};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};

const CLIENTS: u64 = 8;
/// Runs between two sessions.
const A_SESSION_EVERY: u64 = 25;

/// What a server holds.
#[derive(Clone, Copy, Debug)]
struct ResourceUse {
    memory_kib: u64,
    descriptors: usize,
    threads: usize,
    processes: usize,
    cgroups: usize,
    entries: usize,
}

impl ResourceUse {
    fn by(server: &Server) -> ResourceUse {
        orphans::reap();
        let (descriptors, threads) = soak::descriptors_and_threads(server.pid);
        let state = server.folder.at("state");
        ResourceUse {
            memory_kib: soak::memory_kib(),
            descriptors,
            threads,
            processes: orphans::below_us().len(),
            cgroups: host::cgroups_naming(&host::owner(&state)).len(),
            entries: host::listing(&state).len(),
        }
    }

    /// Once the pool is full again: what it holds is then the same for many looks in a row.
    fn at_rest(server: &Server) -> ResourceUse {
        const LOOKS: usize = 100;
        let (mut last, mut same) = (ResourceUse::by(server), 0);
        eventually("the server is at rest", || {
            let now = ResourceUse::by(server);
            same = if now.counts() == last.counts() {
                same + 1
            } else {
                0
            };
            last = now;
            (same >= LOOKS).then_some(now)
        })
    }

    fn counts(self) -> [usize; 5] {
        [
            self.descriptors,
            self.threads,
            self.processes,
            self.cgroups,
            self.entries,
        ]
    }

    /// Whether it is no more than it was, but for what a pool may have made more of.
    fn within(self, before: ResourceUse, memory_kib: u64) -> bool {
        const MORE: usize = 24;
        self.memory_kib <= before.memory_kib + memory_kib
            && self.descriptors <= before.descriptors + MORE
            && self.threads <= before.threads + MORE
            && self.processes <= before.processes + MORE
            && self.cgroups <= before.cgroups + MORE
            && self.entries <= before.entries + MORE
    }
}

#[test]
fn what_a_server_holds_does_not_grow_with_what_it_has_done() {
    let _turn = orphans::take_turn();
    // Less than a KiB for a run; the sessions among them are remembered for a while, at some ten KiB each.
    let (few, all, memory_kib) = if full() {
        (2_000, 10_000, 8 << 10)
    } else {
        (100, 400, 12 << 10)
    };
    let server = Server::with("", &["--pool", "4"]);
    let served = AtomicU64::new(0);
    serve(&server, &served, few);
    let before = ResourceUse::at_rest(&server);
    serve(&server, &served, all);
    assert_eq!(served.load(Ordering::Relaxed), all);
    let after = ResourceUse::at_rest(&server);
    println!("after {few} runs {before:?}\nafter {all} runs {after:?}");
    assert!(
        after.within(before, memory_kib),
        "{after:?} is more than {before:?}"
    );
}

/// Until so many runs have been served in all.
fn serve(server: &Server, served: &AtomicU64, until: u64) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = served.fetch_add(1, Ordering::Relaxed);
                    if number >= until {
                        served.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    one(server, number);
                    if number.is_multiple_of(A_SESSION_EVERY) {
                        session(server);
                    }
                }
            });
        }
    });
}

fn one(server: &Server, number: u64) {
    let answer = server.post(
        "/v1/runs",
        &json!({ "command": ["echo", number.to_string()] }),
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["stdout"], format!("{number}\n"));
}

fn session(server: &Server) {
    let made = server.post("/v1/sandboxes", &json!({}));
    assert_eq!(made.status, 201, "{}", made.text());
    let place = format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("an id")
    );
    let put = soak::upload(
        server,
        &server.admin,
        &format!("{place}/files/name"),
        b"hello",
    )
    .expect("an answer");
    assert_eq!(put.status, 201, "{}", put.text());
    let told = server.post(
        &format!("{place}/exec"),
        &json!({ "command": ["cat", "name"] }),
    );
    assert_eq!(told.json()["stdout"], "hello", "{}", told.text());
    assert_eq!(server.delete(&place).status, 200);
}
