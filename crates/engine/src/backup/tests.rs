//! Backups of folders that are in use, and invalid archives.

use super::*;
use crate::usage::UsageProjection;
use ::doors::ledger::{CallOutcome, Durability, Ledger, ModelCall};
use spec::Money;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-backup-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let place = Place(std::env::temp_dir().join(name));
        fs::create_dir(&place.0).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A state folder with something in every part.
    fn state(&self) -> PathBuf {
        let state = self.at("state");
        drop(UsageProjection::open(&state).unwrap());
        spend(&state, "run-one", 3);
        for (path, text) in [
            ("artifacts/a/1/bytes", "first"),
            ("artifacts/a/1/about.json", "{}"),
            ("artifacts/@acme/b/2/bytes", "second"),
            ("artifacts/@acme/b/2/about.json", "{}"),
            ("artifacts/.drafts/x/bytes", "half"),
            ("audit/audit.jsonl", "whole\nhal"),
            ("secrets/name.secret", "ciphertext"),
            ("secrets/key", "the master key"),
            ("serve.lock", "process 1"),
            ("runs/one", ""),
        ] {
            let path = state.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        state
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn spend(state: &Path, segment: &str, calls: usize) {
    let ledger = Ledger::open(&state.join("ledger"), segment, Durability::Process).unwrap();
    for _ in 0..calls {
        let n = ledger
            .reserve(
                &ModelCall {
                    run: "one".into(),
                    ..ModelCall::default()
                },
                Money(7),
                1,
            )
            .unwrap();
        ledger
            .settle(n, &CallOutcome::unknown(Money(7), "complete"))
            .unwrap();
    }
}

fn taken(state: &Path) -> (Vec<u8>, BackupReport) {
    let of = Backup {
        state,
        version: "0.0.0",
        now_ms: 1,
        artifacts: true,
    };
    let mut archive = Vec::new();
    let report = backup(&of, &mut archive, &mut |_, _| {}).unwrap();
    (archive, report)
}

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![folder.to_owned()];
    while let Some(folder_now) = next.pop() {
        for entry in fs::read_dir(folder_now).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => next.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_must_last_comes_back_and_what_must_not_travel_does_not() {
    let place = Place::new();
    let state = place.state();
    let (archive, report) = taken(&state);
    let restored = place.at("restored");
    let mut told = restore(&archive[..], &restored, PendingWork::Held, 2).unwrap();
    assert_eq!(
        told.held.take(),
        Some(store::backup::CancelledWork {
            jobs: 0,
            notices: 0
        })
    );
    assert_eq!(told, report);
    assert_eq!((told.files, told.problems.len()), (8, 0));
    assert_eq!(
        files(&restored),
        [
            "airlock.db",
            "artifacts/@acme/b/2/about.json",
            "artifacts/@acme/b/2/bytes",
            "artifacts/a/1/about.json",
            "artifacts/a/1/bytes",
            "audit/audit.jsonl",
            // The lock of a process that read it.
            "audit/server.lock",
            "ledger/run-one.jsonl",
            "restored",
            "secrets/name.secret",
        ]
    );
    assert_eq!(
        fs::read_to_string(restored.join("audit/audit.jsonl")).unwrap(),
        "whole\n"
    );
    let mode = |path: &str| {
        fs::metadata(restored.join(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(
        (mode("."), mode("secrets"), mode("secrets/name.secret")),
        (0o700, 0o700, 0o600)
    );
    assert_eq!(
        UsageProjection::open(&restored).unwrap().verify().unwrap(),
        []
    );
    assert!(!archive.windows(14).any(|bytes| bytes == b"the master key"));
    assert_eq!(files(&state.join("backup")), Vec::<String>::new());
}

#[test]
fn a_folder_that_is_in_use_is_backed_up_so_that_the_database_never_knows_more_than_the_files() {
    let place = Place::new();
    let state = place.state();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                spend(&state, &format!("run-{count}"), 20);
                // A query, so that the database reads it.
                UsageProjection::open(&state).unwrap().refresh().unwrap();
                count += 1;
            }
        });
        for round in 0..15 {
            let (archive, report) = taken(&state);
            assert_eq!(report.problems, Vec::<String>::new());
            let restored = place.at(&format!("restored-{round}"));
            assert_eq!(
                restore(&archive[..], &restored, PendingWork::Held, 2)
                    .unwrap()
                    .problems,
                Vec::<String>::new()
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_ledger_that_was_changed_is_backed_up_as_it_is_and_named() {
    let place = Place::new();
    let state = place.state();
    let ledger = state.join("ledger/run-one.jsonl");
    let text = fs::read_to_string(&ledger).unwrap();
    fs::write(&ledger, text.replacen("\"money\":7", "\"money\":8", 1)).unwrap();
    let (archive, report) = taken(&state);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(
        restore(&archive[..], &place.at("restored"), PendingWork::Held, 2)
            .unwrap()
            .problems
            .len(),
        1
    );
}

#[test]
fn a_folder_of_somebody_elses_is_refused_and_nothing_is_left_in_it() {
    let place = Place::new();
    let state = place.state();
    let _ = fs::remove_file(state.join("upkeep.lock"));
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root gives folders away");
        return;
    }
    let before = files(&state);
    std::os::unix::fs::chown(&state, Some(12345), None).unwrap();
    let of = Backup {
        state: &state,
        version: "0.0.0",
        now_ms: 1,
        artifacts: true,
    };
    let refused = backup(&of, Vec::new(), &mut |_, _| {})
        .unwrap_err()
        .to_string();
    assert!(refused.contains("belongs to user 12345"), "{refused}");
    assert_eq!(
        (files(&state), state.join("backup").exists()),
        (before, false)
    );
    std::os::unix::fs::chown(&state, Some(0), None).unwrap();
    assert!(backup(&of, Vec::new(), &mut |_, _| {}).is_ok());
}

#[test]
fn an_audit_is_looked_at_when_it_is_backed_up_and_when_it_is_restored() {
    let place = Place::new();
    let state = place.state();
    let audit = store::audit::AuditLog::open(&state).unwrap();
    for _ in 0..3 {
        audit
            .append(&store::audit::AuditEntry {
                what: "run.accept",
                ..Default::default()
            })
            .unwrap();
    }
    drop(audit);
    let restored = place.at("restored");
    let (archive, report) = taken(&state);
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(
        restore(&archive[..], &restored, PendingWork::Held, 2)
            .unwrap()
            .problems
            .is_empty()
    );
    assert_eq!(store::audit::verify(&restored, None).unwrap().lines, 3);
    let file = state.join("audit/server.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("run.accept", "run.refuse", 1)).unwrap();
    let (archive, report) = taken(&state);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    let told = restore(&archive[..], &place.at("tampered"), PendingWork::Held, 2).unwrap();
    assert_eq!(told.problems, report.problems);
}

/// A reader that is so slow that the audit is tidied during the backup.
struct Slow<'a> {
    read: Vec<u8>,
    state: &'a Path,
    waited: bool,
}

impl io::Write for Slow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.waited, true) {
            tidy(self.state);
        }
        self.read.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes all files of the audit but the last, if it may.
fn tidy(state: &Path) {
    let settings = store::audit::AuditSettings {
        file_bytes: 500,
        keep_bytes: 0,
        ..store::audit::AuditSettings::default()
    };
    drop(store::audit::AuditLog::open_with(state, settings).unwrap());
}

#[test]
fn no_file_of_the_audit_goes_while_a_backup_is_read() {
    let place = Place::new();
    let state = place.state();
    let settings = store::audit::AuditSettings {
        file_bytes: 500,
        ..store::audit::AuditSettings::default()
    };
    let audit = store::audit::AuditLog::open_with(&state, settings).unwrap();
    for _ in 0..20 {
        audit
            .append(&store::audit::AuditEntry {
                what: "run.accept",
                ..Default::default()
            })
            .unwrap();
    }
    drop(audit);
    let count = || fs::read_dir(state.join("audit")).unwrap().count();
    let before = count();
    let mut slow = Slow {
        read: Vec::new(),
        state: &state,
        waited: false,
    };
    let of = Backup {
        state: &state,
        version: "0.0.0",
        now_ms: 1,
        artifacts: true,
    };
    let report = backup(&of, &mut slow, &mut |_, _| {}).unwrap();
    assert_eq!(
        (report.problems.as_slice(), slow.waited, count()),
        (&[][..], true, before)
    );
    let restored = place.at("restored");
    let told = restore(&slow.read[..], &restored, PendingWork::Held, 2).unwrap();
    assert_eq!(told.problems, Vec::<String>::new());
    assert!(store::audit::verify(&restored, None).unwrap().lines >= 20);
    drop(store::audit::AuditLog::open(&restored).unwrap());
    // Afterwards it may.
    tidy(&state);
    assert!(count() < before);
}

#[test]
fn names_that_no_reader_takes_are_left_out_and_named() {
    let place = Place::new();
    let state = place.state();
    fs::write(state.join("audit/od\nd"), "x").unwrap();
    let (archive, report) = taken(&state);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(restore(&archive[..], &place.at("restored"), PendingWork::Held, 2).is_ok());
}

#[test]
fn nothing_is_restored_over_something() {
    let place = Place::new();
    let state = place.state();
    let (archive, _) = taken(&state);
    assert!(matches!(
        restore(&archive[..], &state, PendingWork::Held, 2),
        Err(BackupError::Taken { .. })
    ));
    let empty = place.at("empty");
    fs::create_dir(&empty).unwrap();
    assert!(restore(&archive[..], &empty, PendingWork::Held, 2).is_ok());
    fs::create_dir(place.at("killed.restoring")).unwrap();
    assert!(matches!(
        restore(&archive[..], &place.at("killed"), PendingWork::Held, 2),
        Err(BackupError::Taken { .. })
    ));
}

/// An archive made by hand.
struct Made(Vec<u8>, Vec<u8>);

impl Made {
    fn new() -> Made {
        let mut made = Made(Vec::new(), Vec::new());
        made.file(
            INFO_FILE,
            br#"{"format":1,"airlock":"0","schema":null,"made_ms":0}"#,
        );
        made
    }

    fn raw(&mut self, path: &str, bytes: &[u8]) {
        tar::header(&mut self.0, path, bytes.len() as u64).unwrap();
        self.0.extend(bytes);
        tar::padding(&mut self.0, bytes.len() as u64).unwrap();
    }

    fn file(&mut self, path: &str, bytes: &[u8]) {
        use sha2::Digest;
        self.raw(path, bytes);
        let sha256 = hexadecimal(&sha2::Sha256::digest(bytes));
        self.1.extend(
            ManifestEntry {
                path,
                size: bytes.len() as u64,
                sha256,
            }
            .line()
            .bytes(),
        );
    }

    /// Changes the header of an entry.
    fn changed(&mut self, path: &str, change: impl FnOnce(&mut [u8])) {
        let from = self.0.len();
        self.file(path, b"");
        let header = &mut self.0[from..from + 512];
        change(header);
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    fn done(mut self) -> Vec<u8> {
        let manifest = std::mem::take(&mut self.1);
        self.raw(MANIFEST, &manifest);
        tar::end(&mut self.0).unwrap();
        self.0
    }
}

fn refusal(archive: &[u8]) -> String {
    let place = Place::new();
    let checked = examine(archive, &place.0)
        .err()
        .map(|error| error.to_string());
    let refused = restore(archive, &place.at("state"), PendingWork::Held, 2)
        .expect_err("it is refused")
        .to_string();
    assert!(checked.is_none_or(|checked| checked == refused));
    // Neither the folder nor its draft exists.
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0);
    refused
}

#[test]
fn the_control_is_restored() {
    let place = Place::new();
    let mut made = Made::new();
    made.file("state/artifacts/a/1/bytes", b"x");
    let archive = made.done();
    assert_eq!(
        restore(&archive[..], &place.at("state"), PendingWork::Held, 2)
            .unwrap()
            .files,
        1
    );
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let long = format!("state/artifacts/{}", "x".repeat(256));
    let deep = format!("state/artifacts{}", "/x".repeat(20));
    for path in [
        "/etc/passwd",
        "state//etc/passwd",
        "../x",
        "state/../x",
        "state/artifacts/../../x",
        "state/artifacts/./x",
        "state/artifacts/",
        "state/artifacts",
        "state/",
        "state",
        "x",
        "state/serve.lock",
        "state/runs/x",
        "state/secrets/key",
        "state/secrets/a/b.secret",
        "state/ledger/x",
        "state/ledger/a/b.jsonl",
        "state/airlock.db/x",
        "state/airlock.db-wal",
        "state/artifacts/a\nb",
        "state/artifacts/.drafts/x",
        "state/admin-key",
        &long,
        &deep,
    ] {
        let mut made = Made::new();
        made.file(path, b"x");
        refusal(&made.done());
    }
}

#[test]
fn only_plain_files_of_their_owner_are_restored() {
    for (kind, said) in [
        (b'1', "plain file"),
        (b'2', "plain file"),
        (b'3', "plain file"),
        (b'4', "plain file"),
        (b'5', "plain file"),
        (b'6', "plain file"),
        (b'Z', "unknown type"),
    ] {
        let mut made = Made::new();
        made.changed("state/artifacts/a", |header| header[156] = kind);
        assert!(refusal(&made.done()).contains(said), "{kind}");
    }
    for mode in [b"0000644", b"0004600", b"0000777"] {
        let mut made = Made::new();
        made.changed("state/artifacts/a", |header| {
            header[100..107].copy_from_slice(mode)
        });
        assert!(refusal(&made.done()).contains("another mode"));
    }
}

#[test]
fn what_the_manifest_does_not_say_is_refused() {
    let mut twice = Made::new();
    twice.file("state/artifacts/a", b"x");
    twice.file("state/artifacts/a", b"x");
    assert!(refusal(&twice.done()).contains("twice"));
    let mut hidden = Made::new();
    hidden.raw("state/artifacts/a", b"x");
    assert!(refusal(&hidden.done()).contains("tells of other files"));
    let mut invented = Made::new();
    invented.1.extend(
        ManifestEntry {
            path: "state/artifacts/a",
            size: 1,
            sha256: "0".repeat(64),
        }
        .line()
        .bytes(),
    );
    assert!(refusal(&invented.done()).contains("tells of other files"));
    let mut folder_and_file = Made::new();
    folder_and_file.file("state/artifacts/a", b"x");
    folder_and_file.file("state/artifacts/a/b", b"x");
    refusal(&folder_and_file.done());
    let mut unfinished = Made::new();
    unfinished.file("state/artifacts/a", b"x");
    assert!(refusal(&unfinished.0).contains("without a manifest"));
    let mut followed = Made::new().done();
    followed.extend(b"more");
    assert!(refusal(&followed).contains("follows its end"));
}

#[test]
fn a_backup_of_another_form_or_a_newer_airlock_is_refused() {
    for (about, said) in [
        (
            r#"{"format":2,"airlock":"0","schema":null,"made_ms":0}"#,
            "its form is 2",
        ),
        (
            r#"{"format":1,"airlock":"0","schema":9999,"made_ms":0}"#,
            "newer Airlock",
        ),
        (
            r#"{"format":1,"airlock":"0","schema":1,"made_ms":0}"#,
            "its database",
        ),
        (r#"{"format":1}"#, "does not say what it must"),
        ("", "does not say what it must"),
    ] {
        let mut made = Made(Vec::new(), Vec::new());
        made.file(INFO_FILE, about.as_bytes());
        assert!(refusal(&made.done()).contains(said), "{about}");
    }
    assert!(refusal(b"").contains("without a manifest"));
    refusal(&[7; 4096]);
}

/// A backup with one changed byte is refused, wherever it is.
#[test]
fn a_byte_that_was_changed_is_found() {
    let mut made = Made::new();
    made.file("state/artifacts/a/1/bytes", b"contents");
    let whole = made.done();
    assert!(check(&whole[..], &mut ()).is_ok());
    let mut unnoticed = Vec::new();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x20;
        if check(&changed[..], &mut ()).is_ok() {
            unnoticed.push(at);
        }
    }
    // The padding of blocks and the byte behind a checksum have no meaning.
    let says_nothing =
        |at: &usize| whole[*at] == 0 && !at.is_multiple_of(512) || (154..156).contains(&(at % 512));
    let noticed = unnoticed
        .iter()
        .filter(|at| !says_nothing(at))
        .collect::<Vec<_>>();
    assert!(noticed.is_empty(), "{noticed:?}");
    for length in (0..whole.len() - 1024).step_by(97) {
        assert!(check(&whole[..length], &mut ()).is_err(), "{length}");
    }
}

/// Checks that only permitted paths are passed on.
#[derive(Default)]
struct PathSink {
    paths: std::collections::BTreeSet<String>,
    left: u64,
}

impl Sink for PathSink {
    fn begin(&mut self, path: &str, size: u64) -> Result<(), BackupError> {
        let names: Vec<_> = path.split('/').collect();
        assert!(
            PARTS.contains(&names[0]) && path != "secrets/key",
            "{path:?}"
        );
        assert!(
            names
                .iter()
                .all(|name| !name.is_empty() && !name.starts_with('.')),
            "{path:?}"
        );
        assert!(
            !path.contains(char::is_control) && self.paths.insert(path.to_owned()),
            "{path:?}"
        );
        self.left = size;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .expect("no more than was said");
        Ok(())
    }

    fn end(&mut self) -> Result<(), BackupError> {
        assert_eq!(self.left, 0);
        Ok(())
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
    #[test]
    fn no_bytes_make_the_reader_panic_or_hand_on_what_may_not_be(
        changes in proptest::collection::vec((0_usize..6000, proptest::prelude::any::<u8>()), 0..12),
        cut in 0_usize..8000,
        again in 0_usize..6000,
        sums in proptest::prelude::any::<bool>(),
    ) {
        let mut made = Made::new();
        made.file("state/artifacts/a/1/bytes", b"contents");
        made.file(&format!("state/artifacts/{}/1/bytes", "n".repeat(120)), b"x");
        made.file("state/ledger/run-a.jsonl", b"{}\n");
        let mut bytes = made.done();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        // As an attacker would who fixes the checksums.
        for header in bytes.chunks_exact_mut(512).filter(|block| sums && block[257..262] == *b"ustar") {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if let Some(more) = bytes.get(again / 512 * 512..).map(<[u8]>::to_vec).filter(|_| again % 3 == 0) {
            bytes.extend(more);
        }
        bytes.truncate(cut.max(512));
        let mut seen = PathSink::default();
        if let Ok(report) = check(&bytes[..], &mut seen) {
            assert_eq!(report.files, seen.paths.len() as u64);
        }
    }
}
