use super::*;
use std::{fs, path::PathBuf, time::Duration};

/// A state folder, removed when dropped.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new(name: &str) -> StateFolder {
        let path =
            std::env::temp_dir().join(format!("airlock-audit-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        StateFolder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(FOLDER).join(name)
    }

    fn files(&self) -> usize {
        let names = fs::read_dir(self.0.join(FOLDER))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        names
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "jsonl")
            })
            .count()
    }

    fn wrong(&self) -> String {
        verify(&self.0, None).unwrap_err().to_string()
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn run<'a>(id: &'a str, tenant: &'a str) -> AuditEntry<'a> {
    AuditEntry {
        what: "run.end",
        run: id,
        tenant,
        about: "succeeded",
        ..AuditEntry::default()
    }
}

fn small() -> AuditSettings {
    AuditSettings {
        file_bytes: 1000,
        ..AuditSettings::default()
    }
}

/// Several files with records of two tenants.
fn filled(name: &str) -> StateFolder {
    let folder = StateFolder::new(name);
    let audit = AuditLog::open_with(&folder.0, small()).unwrap();
    for index in 0..20 {
        audit
            .append(&run(
                &format!("r{index}"),
                if index % 2 == 0 { "even" } else { "odd" },
            ))
            .unwrap();
    }
    drop(audit);
    assert!(folder.files() > 3);
    folder
}

#[test]
fn what_is_written_is_believed_and_goes_on() {
    let folder = filled("on");
    let before = verify(&folder.0, None).unwrap();
    assert_eq!((before.lines, before.first, before.last), (20, 1, 20));
    assert_eq!(head(&folder.0).unwrap(), Some((20, before.head.clone())));
    let audit = AuditLog::open(&folder.0).unwrap();
    assert!(AuditLog::open(&folder.0).is_err(), "it has one owner");
    audit.append(&run("more", "even")).unwrap();
    assert_eq!(
        verify(&folder.0, None).unwrap().lines,
        21,
        "while it is written, too"
    );
    drop(audit);
    assert!(
        verify(&folder.0, Some(parse_hash(&before.head).unwrap())).is_ok(),
        "a head from before is still there"
    );
    assert!(verify(&folder.0, Some([7; 32])).is_err());
    assert!(
        verify(&folder.0, Some([0; 32])).is_err(),
        "no line has this hash"
    );
}

#[test]
fn whatever_is_cut_off_taken_away_or_put_back_is_found() {
    let folder = filled("cut");
    let keep = |name: &str| fs::read(folder.file(name)).unwrap();
    let last = format!("server~{}.jsonl", folder.files());
    let whole = keep(&last);
    // Removes half a record, a whole one, all records, the file.
    let line = whole.iter().rposition(|byte| *byte == b'{').unwrap();
    for length in [whole.len() - 3, line, 0] {
        fs::write(folder.file(&last), &whole[..length]).unwrap();
        assert!(
            folder.wrong().contains(&last),
            "{length}: {}",
            folder.wrong()
        );
    }
    fs::remove_file(folder.file(&last)).unwrap();
    assert!(folder.wrong().contains("missing"), "{}", folder.wrong());
    assert!(AuditLog::open(&folder.0).is_err(), "nobody goes on with it");
    fs::write(folder.file(&last), &whole).unwrap();
    set_mode(&folder.file(&last));
    verify(&folder.0, None).unwrap();
    for name in ["server.jsonl", "server~2.jsonl"] {
        let kept = keep(name);
        fs::remove_file(folder.file(name)).unwrap();
        assert!(folder.wrong().contains("missing"), "{}", folder.wrong());
        fs::write(folder.file(name), kept).unwrap();
        set_mode(&folder.file(name));
    }
    verify(&folder.0, None).unwrap();
    fs::remove_dir_all(folder.0.join(FOLDER)).unwrap();
    assert!(folder.wrong().ends_with("the audit is missing"));
}

fn set_mode(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_tail_with_fitting_hashes_is_found_by_its_mark() {
    let folder = StateFolder::new("tail");
    for about in ["one", "two"] {
        let audit = AuditLog::open(&folder.0).unwrap();
        audit
            .append(&AuditEntry {
                what: "key.make",
                about,
                ..AuditEntry::default()
            })
            .unwrap();
    }
    // Another history that is a valid chain, too.
    let other = StateFolder::new("tail-other");
    let audit = AuditLog::open(&other.0).unwrap();
    for about in ["one", "another", "third"] {
        audit
            .append(&AuditEntry {
                what: "key.make",
                about,
                ..AuditEntry::default()
            })
            .unwrap();
    }
    drop(audit);
    verify(&other.0, None).unwrap();
    fs::copy(other.file("server.jsonl"), folder.file("server.jsonl")).unwrap();
    assert!(
        folder.wrong().contains("was rewritten"),
        "{}",
        folder.wrong()
    );
}

#[test]
fn half_a_line_of_a_dead_owner_is_cut_off() {
    let folder = filled("torn");
    let last = folder.file(&format!("server~{}.jsonl", folder.files()));
    let whole = fs::read(&last).unwrap();
    fs::write(&last, [&whole[..], br#"{"n":21,"at":17"#].concat()).unwrap();
    assert!(folder.wrong().contains("ends within it"));
    AuditLog::open(&folder.0)
        .unwrap()
        .append(&run("after", "even"))
        .unwrap();
    assert_eq!(verify(&folder.0, None).unwrap().lines, 21);
}

/// State after power loss: the next file exists, and the end of the previous one does not.
#[test]
fn half_a_line_before_files_that_were_only_begun_is_cut_off_too() {
    let folder = StateFolder::new("begun");
    let audit = AuditLog::open(&folder.0).unwrap();
    audit.append(&run("one", "t")).unwrap();
    drop(audit);
    let first = folder.file("server.jsonl");
    let whole = fs::read(&first).unwrap();
    let segment_started = |whole: &[u8], text: &str| {
        fs::write(&first, [whole, br#"{"n":2,"at":17"#].concat()).unwrap();
        for name in ["server~2.jsonl", "server~3.jsonl"] {
            fs::write(folder.file(name), text).unwrap();
            set_mode(&folder.file(name));
        }
    };
    segment_started(&whole, "{}\n");
    assert!(AuditLog::open(&folder.0).is_err(), "somebody wrote there");
    segment_started(&whole, "");
    assert!(
        folder
            .wrong()
            .contains("server.jsonl`, line 2: the file ends within it"),
        "{}",
        folder.wrong()
    );
    AuditLog::open(&folder.0)
        .unwrap()
        .append(&run("after", "t"))
        .unwrap();
    assert_eq!(
        (folder.files(), verify(&folder.0, None).unwrap().lines),
        (1, 2)
    );
    // Starts that the database knows after the last durable record.
    segment_started(&fs::read(&first).unwrap(), "");
    let part = checkpoints::SegmentStart {
        part: 2,
        ..known(&folder)[0]
    };
    checkpoints::Checkpoints::open(&folder.0)
        .unwrap()
        .add_segment(NAME, &part)
        .unwrap();
    let refused = AuditLog::open(&folder.0).unwrap_err().to_string();
    assert!(
        refused.contains("server.jsonl`, line 3: the file ends within it"),
        "{refused}"
    );
}

#[test]
fn lines_of_which_the_database_knows_nothing_are_not_believed() {
    let folder = filled("forgotten");
    fs::remove_file(folder.0.join("airlock.db")).unwrap();
    assert!(folder.wrong().contains("airlock.db"), "{}", folder.wrong());
    assert!(
        !folder.0.join("airlock.db").exists(),
        "whoever looks makes nothing"
    );
    drop(crate::database::Database::open(&folder.0).unwrap());
    assert!(
        folder.wrong().contains("the database knows nothing of it"),
        "{}",
        folder.wrong()
    );
    assert!(AuditLog::open(&folder.0).is_err(), "nobody goes on with it");
    let copying = crate::UpkeepLock::shared(&folder.0).unwrap();
    assert!(
        set_aside(&folder.0).is_err(),
        "while somebody copies it, it stays"
    );
    drop(copying);
    set_aside(&folder.0).unwrap().expect("a place");
    assert_eq!(verify(&folder.0, None).unwrap().lines, 1);
}

#[test]
fn old_files_go_with_a_line_about_it_and_the_rest_is_still_believed() {
    let folder = filled("old");
    let settings = AuditSettings {
        keep_for: Duration::ZERO,
        ..small()
    };
    std::thread::sleep(Duration::from_millis(2));
    drop(AuditLog::open_with(&folder.0, settings).unwrap());
    assert!(folder.files() < 4, "{}", folder.files());
    let verified = verify(&folder.0, None).unwrap();
    assert!(verified.first > 1 && verified.last > 20, "{verified:?}");
    let asked = AuditFilter {
        what: Some("audit.remove".into()),
        limit: 100,
        ..AuditFilter::default()
    };
    assert!(!read_page(&folder.0, &asked).unwrap().rows.is_empty());
    // A file that retention did not remove is reported as missing.
    let first = fs::read_dir(folder.0.join(FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = first
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort_by_key(|path| path.to_string_lossy().len());
    files.sort();
    fs::remove_file(&files[0]).unwrap();
    assert!(folder.wrong().contains("missing"), "{}", folder.wrong());
}

#[test]
fn bytes_are_bounded_too() {
    let folder = filled("bytes");
    drop(
        AuditLog::open_with(
            &folder.0,
            AuditSettings {
                keep_bytes: 1500,
                ..small()
            },
        )
        .unwrap(),
    );
    assert!(folder.files() < 4, "{}", folder.files());
    verify(&folder.0, None).unwrap();
}

#[test]
fn pages_lead_from_the_newest_to_the_oldest_whatever_their_length() {
    let folder = filled("pages");
    for limit in [1, 3, 7, 1000] {
        let mut asked = AuditFilter {
            tenant: Some("odd".into()),
            limit,
            ..AuditFilter::default()
        };
        let mut seen = Vec::new();
        loop {
            let page = read_page(&folder.0, &asked).unwrap();
            assert!(page.rows.len() <= limit);
            seen.extend(page.rows.into_iter().map(|row| row.run));
            match page.before {
                Some(before) => asked.before = Some(before),
                None => break,
            }
        }
        let expected: Vec<_> = (0..20)
            .rev()
            .filter(|index| index % 2 == 1)
            .map(|i| format!("r{i}"))
            .collect();
        assert_eq!(seen, expected, "{limit}");
    }
    let one = AuditFilter {
        run: Some("r4".into()),
        limit: 9,
        ..AuditFilter::default()
    };
    assert_eq!(read_page(&folder.0, &one).unwrap().rows.len(), 1);
    for wrong in [
        "",
        "x",
        "1",
        "1-5",
        "1-99999999",
        "-",
        "1--1",
        "4294967296-0",
    ] {
        let asked = AuditFilter {
            before: Some(wrong.into()),
            limit: 1,
            ..AuditFilter::default()
        };
        let error = read_page(&folder.0, &asked).unwrap_err();
        assert!(
            error.get_ref().is_some_and(|cause| cause.is::<BadCursor>()),
            "{wrong}"
        );
    }
}

#[test]
fn what_cannot_be_written_is_refused_and_what_happened_is_written_later() {
    let folder = StateFolder::new("full");
    let audit = AuditLog::open(&folder.0).unwrap();
    audit.append(&run("before", "t")).unwrap();
    let swap = |file| std::mem::replace(&mut audit.shared.state.lock().unwrap().writer.file, file);
    // A file that accepts no writes but can be truncated: a write that fails halfway has the same
    // effect.
    let limited =
        rustix::fs::memfd_create("limited", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    let length = audit.shared.state.lock().unwrap().writer.length();
    rustix::fs::ftruncate(&limited, length).unwrap();
    rustix::fs::fcntl_add_seals(
        &limited,
        rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::WRITE,
    )
    .unwrap();
    let kept = swap(Arc::new(limited.into()));
    assert!(audit.append(&run("refused", "t")).is_err() && audit.write_error().is_some());
    audit.append_event(&run("ended", "t"));
    drop(swap(kept));
    audit.append(&run("after", "t")).unwrap();
    assert_eq!(audit.write_error(), None);
    drop(audit);
    let all = AuditFilter {
        limit: 10,
        ..AuditFilter::default()
    };
    let runs: Vec<_> = read_page(&folder.0, &all)
        .unwrap()
        .rows
        .into_iter()
        .map(|row| row.run)
        .collect();
    assert_eq!(runs, ["after", "ended", "before"]);
    verify(&folder.0, None).unwrap();
}

#[test]
fn a_failed_sync_is_told_of_for_as_long_as_nothing_is_sure() {
    let folder = StateFolder::new("unsure");
    let audit = AuditLog::open(&folder.0).unwrap();
    audit.append(&run("before", "t")).unwrap();
    audit.checkpoint();
    assert_eq!(
        (audit.write_error(), head(&folder.0).unwrap().unwrap().0),
        (None, 1),
        "the positive control"
    );
    audit.append(&run("unsure", "t")).unwrap();
    // A descriptor that cannot be synced.
    let (_reader, pipe) = std::io::pipe().unwrap();
    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(pipe));
    let swap = |file| {
        let mut state = audit.shared.state.lock().unwrap();
        // There is something to sync, whether or not the maintenance threads ran meanwhile.
        state.synced = state.synced.clone().map(|_| 0);
        std::mem::replace(&mut state.writer.file, file)
    };
    let kept = swap(Arc::new(pipe));
    audit.checkpoint();
    drop(swap(kept));
    audit.append(&run("after", "t")).unwrap();
    audit.checkpoint();
    let why = audit.write_error().expect("it is still unsure");
    assert!(why.contains("cannot be synced to disk"), "{why}");
    drop(audit);
    let audit = AuditLog::open(&folder.0).unwrap();
    audit.checkpoint();
    assert_eq!(
        (audit.write_error(), head(&folder.0).unwrap().unwrap().0),
        (None, 3)
    );
}

#[test]
fn hostile_words_stay_in_their_line() {
    let folder = StateFolder::new("words");
    let audit = AuditLog::open(&folder.0).unwrap();
    let words = "\"}\n{\"n\":1\u{0}\u{1b}[2J\u{7f}".repeat(1000);
    audit
        .append(&AuditEntry {
            what: &words,
            about: &words,
            tenant: &words,
            ..AuditEntry::default()
        })
        .unwrap();
    drop(audit);
    let rows = read_page(
        &folder.0,
        &AuditFilter {
            limit: 10,
            ..AuditFilter::default()
        },
    )
    .unwrap()
    .rows;
    assert_eq!((rows.len(), rows[0].what.as_str()), (1, "unknown"));
    assert!(words.starts_with(&rows[0].about) && rows[0].about.len() <= 512);
}

#[test]
fn power_is_waited_for_by_many_at_once() {
    let folder = StateFolder::new("power");
    let settings = AuditSettings {
        durability: Durability::Power,
        ..AuditSettings::default()
    };
    let audit = AuditLog::open_with(&folder.0, settings).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| audit.append(&run("r", "t")).unwrap()));
        }
    });
    drop(audit);
    assert_eq!(verify(&folder.0, None).unwrap().lines, 80);
}

/// The record of a change is appended within the database transaction of that change.
#[test]
fn the_next_file_is_begun_within_a_transaction_of_the_database() {
    let folder = StateFolder::new("within");
    let audit = AuditLog::open_with(&folder.0, small()).unwrap();
    let other = crate::database::Database::open(&folder.0).unwrap();
    let segment_started = std::time::Instant::now();
    let within = other.write(|_| {
        (0..20).for_each(|index| audit.append(&run(&format!("r{index}"), "t")).unwrap());
        Ok(segment_started.elapsed())
    });
    assert!(
        within.unwrap() < Duration::from_secs(5),
        "nobody waited for the database"
    );
    assert!(folder.files() > 3);
    drop(audit);
    known_and_removable(&folder);
}

fn known(folder: &StateFolder) -> Vec<checkpoints::SegmentStart> {
    checkpoints::Checkpoints::open(&folder.0)
        .unwrap()
        .segment_starts(NAME)
        .unwrap()
}

/// Every file has a row, so the oldest can be removed and the rest verifies.
fn known_and_removable(folder: &StateFolder) {
    let known = known(folder);
    assert_eq!(known.len(), folder.files(), "{known:?}");
    drop(
        AuditLog::open_with(
            &folder.0,
            AuditSettings {
                keep_bytes: 1500,
                ..small()
            },
        )
        .unwrap(),
    );
    assert!(folder.files() < 4, "{}", folder.files());
    verify(&folder.0, None).unwrap();
}

#[test]
fn what_the_database_does_not_know_of_a_file_is_found_again() {
    let folder = filled("unknown");
    let forget = |part: &str| {
        let database = crate::database::Database::open(&folder.0).unwrap();
        database
            .write(|all| all.execute("DELETE FROM audit_parts WHERE part = ?1", [part]))
            .unwrap();
    };
    ["1", "3"].into_iter().for_each(forget);
    drop(AuditLog::open_with(&folder.0, small()).unwrap());
    known_and_removable(&folder);
    // It does not keep a running server from removing files either.
    let folder = StateFolder::new("unknown-live");
    let audit = AuditLog::open_with(
        &folder.0,
        AuditSettings {
            keep_bytes: 1500,
            ..small()
        },
    )
    .unwrap();
    (0..20).for_each(|_| audit.append(&run("r", "t")).unwrap());
    audit.checkpoint();
    let database = crate::database::Database::open(&folder.0).unwrap();
    database
        .write(|all| all.execute("DELETE FROM audit_parts", []))
        .unwrap();
    maintenance::remove_old(&audit.shared).unwrap();
    drop(audit);
    assert!(folder.files() < 4, "{}", folder.files());
    verify(&folder.0, None).unwrap();
}

#[test]
fn whoever_looks_whether_it_is_written_keeps_nobody_from_it() {
    let folder = filled("looked");
    let journal = journal::JournalDir::open(&folder.0.join(FOLDER)).unwrap();
    let lock = journal.lock_file(NAME).unwrap();
    assert!(journal::try_lock(&lock).unwrap());
    let new_segments = std::thread::scope(|scope| {
        let opening = scope.spawn(|| AuditLog::open(&folder.0));
        std::thread::sleep(Duration::from_millis(100));
        drop(lock);
        opening.join().unwrap()
    });
    new_segments.unwrap();
}
