use super::*;
use std::path::PathBuf;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("airlock-telemetry-{}-{name}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn container<'a>(id: &'a str, owner: &'a str, at_ms: u64) -> NewContainer<'a> {
    NewContainer {
        id,
        owner,
        runtime: "native",
        image: "host",
        labels: "{}",
        at_ms,
        ..NewContainer::default()
    }
}

fn log(name: &str, at_ms: u64, lines: &str) -> LogRow {
    LogRow {
        at_ms,
        source_kind: "container".to_owned(),
        source_name: name.to_owned(),
        stream: "stdout".to_owned(),
        lines: lines.to_owned(),
        ..LogRow::default()
    }
}

fn end(stopped_ms: u64) -> ContainerEnd<'static> {
    let started_ms = Some(stopped_ms - 1);
    let removed_ms = stopped_ms;
    ContainerEnd {
        status: "exited",
        exit_code: Some(0),
        started_ms,
        stopped_ms,
        removed_ms,
    }
}

const ALL: TelemetryRetention = TelemetryRetention {
    logs_since_ms: 0,
    containers_since_ms: 0,
    log_bytes: u64::MAX,
    containers: u32::MAX,
};

#[test]
fn a_container_has_four_moments_and_what_was_open_at_a_start_is_lost() {
    let folder = Folder::new("moments");
    let database = ServerDatabase::open(&folder.0).unwrap();
    let record_start = database.record_start("1", "k", 1, 5).unwrap();
    database
        .transact(|transaction| {
            transaction.add_container(&container("a", "acme", 10))?;
            transaction.add_container(&container("b", "acme", 10))?;
            transaction.start_container("a", 11)?;
            transaction.end_container("a", &end(20))?;
            // Too late: the container has ended.
            transaction.start_container("a", 30)
        })
        .unwrap();
    let a = database.container("a").unwrap().unwrap();
    let moments = (a.created_ms, a.started_ms, a.stopped_ms, a.removed_ms);
    assert_eq!(
        (a.status.as_str(), moments),
        ("exited", (10, Some(11), Some(20), Some(20)))
    );
    let next = database.record_start("1", "k", 2, 40).unwrap();
    assert_eq!(
        database.previous_outcome(next).unwrap().as_deref(),
        Some("killed")
    );
    assert_eq!(database.container("b").unwrap().unwrap().status, "lost");
    assert_eq!(database.container("a").unwrap().unwrap().status, "exited");
    database.record_shutdown(next, "clean", 50).unwrap();
    let last = database.record_start("1", "k", 3, 60).unwrap();
    assert_eq!(
        database.previous_outcome(last).unwrap().as_deref(),
        Some("clean")
    );
    assert_eq!(database.previous_outcome(record_start).unwrap(), None);
}

#[test]
fn what_is_too_old_or_too_much_is_forgotten_and_the_rest_stays() {
    let folder = Folder::new("prune");
    let database = ServerDatabase::open(&folder.0).unwrap();
    database
        .transact(|transaction| {
            for (id, owner, at) in [
                ("a", "one", 10),
                ("b", "one", 20),
                ("c", "one", 30),
                ("d", "two", 5),
            ] {
                transaction.add_container(&container(id, owner, at))?;
                transaction.end_container(id, &end(at + 1))?;
            }
            transaction.add_container(&container("open", "one", 1))?;
            (0..5).try_for_each(|at| transaction.add_log(&log("a", at, "0123456789")))
        })
        .unwrap();
    let names = || {
        let filter = ContainerFilter {
            limit: 100,
            ..ContainerFilter::default()
        };
        let rows = database.containers(&filter).unwrap();
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let times = || {
        let mut times = Vec::new();
        let filter = LogFilter {
            source_kind: "container".into(),
            source_name: "a".into(),
            ..LogFilter::default()
        };
        database
            .logs(&filter, |row| {
                times.push(row.at_ms);
                true
            })
            .unwrap();
        times
    };
    assert_eq!(database.prune_telemetry(&ALL).unwrap(), 0);
    database
        .prune_telemetry(&TelemetryRetention {
            logs_since_ms: 1,
            containers_since_ms: 10,
            ..ALL
        })
        .unwrap();
    assert_eq!(
        (names(), times()),
        (
            vec!["open".into(), "c".into(), "b".into(), "a".into()],
            vec![1, 2, 3, 4]
        )
    );
    database
        .prune_telemetry(&TelemetryRetention {
            log_bytes: 4 * 250,
            containers: 2,
            ..ALL
        })
        .unwrap();
    assert_eq!(
        (names(), times()),
        (vec!["open".into(), "c".into(), "b".into()], vec![3, 4])
    );
}

#[test]
fn whoever_has_the_most_containers_loses_the_oldest_first() {
    let folder = Folder::new("fair");
    let database = ServerDatabase::open(&folder.0).unwrap();
    database
        .transact(|transaction| {
            transaction.add_container(&container("hers", "quiet", 1))?;
            transaction.end_container("hers", &end(2))?;
            (0..50).try_for_each(|n| {
                let id = format!("his{n}");
                transaction.add_container(&container(&id, "noisy", 10 + n))?;
                transaction.end_container(&id, &end(100))
            })
        })
        .unwrap();
    database
        .prune_telemetry(&TelemetryRetention {
            containers: 3,
            ..ALL
        })
        .unwrap();
    assert!(database.container("hers").unwrap().is_some());
    assert!(
        database.container("his49").unwrap().is_some()
            && database.container("his0").unwrap().is_none()
    );
}

#[test]
fn pages_without_use_are_given_back() {
    let folder = Folder::new("vacuum");
    let database = ServerDatabase::open(&folder.0).unwrap();
    let text = "x".repeat(4000);
    database
        .transact(|transaction| {
            (0..500).try_for_each(|at| transaction.add_log(&log("a", at, &text)))
        })
        .unwrap();
    database
        .prune_telemetry(&TelemetryRetention {
            logs_since_ms: 1000,
            ..ALL
        })
        .unwrap();
    let mut left = vec![database.vacuum().unwrap()];
    while left.last() != Some(&0) && left.len() < 100 {
        left.push(database.vacuum().unwrap());
    }
    assert!(left[0] > 0 && left.last() == Some(&0), "{left:?}");
    assert!(left.windows(2).all(|two| two[0] > two[1]), "{left:?}");
}

#[test]
fn a_flood_costs_only_whoever_made_it_and_the_nodes_own_lines_stay() {
    let folder = Folder::new("flood");
    let database = ServerDatabase::open(&folder.0).unwrap();
    let of = |owner: &str, name: &str, at| LogRow {
        owner: owner.to_owned(),
        ..log(name, at, "0123456789")
    };
    database
        .transact(|transaction| {
            transaction.add_log(&of("", "node", 1))?;
            transaction.add_log(&of("quiet", "hers", 1))?;
            (0..100).try_for_each(|at| transaction.add_log(&of("noisy", "his", 10 + at)))
        })
        .unwrap();
    database
        .prune_telemetry(&TelemetryRetention {
            log_bytes: 40 * 110,
            ..ALL
        })
        .unwrap();
    let times = |name: &str| {
        let source_kind = "container".to_owned();
        let source_name = name.to_owned();
        let mut times = Vec::new();
        let filter = LogFilter {
            source_kind,
            source_name,
            ..LogFilter::default()
        };
        database
            .logs(&filter, |row| {
                times.push(row.at_ms);
                true
            })
            .unwrap();
        times
    };
    assert_eq!((times("node"), times("hers")), (vec![1], vec![1]));
    assert_eq!(
        times("his"),
        (100..110).collect::<Vec<_>>(),
        "a quarter, the newest"
    );
}

#[test]
fn whoever_has_most_loses_first() {
    let sizes = [
        ("", 900),
        ("a", 10),
        ("b", 60),
        ("c", 500),
        ("d", 90),
        ("e", 90),
    ];
    let byte_shares = byte_shares(
        sizes.map(|(owner, size)| (owner.to_owned(), size)).to_vec(),
        400,
    );
    let of = |owner: &str| byte_shares[owner];
    assert_eq!((of(""), of("a"), of("b")), (100, 10, 60));
    assert_eq!(
        (of("c"), of("d"), of("e")),
        (77, 76, 76).max((of("c"), of("d"), of("e")))
    );
    assert!(of("c") + of("d") + of("e") + 70 <= 300 && of("c") >= 76);
}

#[test]
fn a_tenants_list_is_read_by_his_own_index() {
    let folder = Folder::new("plan");
    let database = ServerDatabase::open(&folder.0).unwrap();
    let plan = |query: &str| {
        let plan = database.telemetry_reader.read(|connection| {
            let mut rows = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
            let mut rows = rows.raw_query();
            let mut all = Vec::new();
            while let Some(row) = rows.next()? {
                all.push(row.get::<_, String>(3)?);
            }
            Ok(all.join("; "))
        });
        plan.unwrap()
    };
    let his = plan(&containers_query(&ContainerFilter {
        owner: Some("t".into()),
        ..ContainerFilter::default()
    }));
    assert!(
        his.contains("container_inventory_owner (owner=? AND n<?)") && !his.contains("TEMP B-TREE"),
        "{his}"
    );
    let all = plan(&containers_query(&ContainerFilter::default()));
    assert!(
        all.contains("rowid<?") && !all.contains("TEMP B-TREE"),
        "{all}"
    );
    let naive =
        plan("SELECT * FROM container_inventory WHERE (?1 IS NULL OR owner = ?1) ORDER BY n DESC");
    assert!(naive.contains("SCAN"), "the positive control: {naive}");
}
