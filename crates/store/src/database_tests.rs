//! Claims about the database.

use super::*;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    sync::atomic::{AtomicU64, Ordering},
};

const ONE: &str = "CREATE TABLE t (n INTEGER NOT NULL) STRICT; INSERT INTO t VALUES (1);";
const TWO: &str = "INSERT INTO t VALUES (2);";
const BROKEN: &str = "INSERT INTO t VALUES (3); INSERT INTO nowhere VALUES (4);";

struct StateFolder(PathBuf);

impl StateFolder {
    fn new() -> StateFolder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        StateFolder(
            std::env::temp_dir().join(format!("airlock-database-{}-{count}", std::process::id())),
        )
    }

    fn with_database() -> StateFolder {
        let place = StateFolder::new();
        drop(place.open(&[ONE]).unwrap());
        place
    }

    fn open(&self, migrations: &[&str]) -> Result<Database, DatabaseError> {
        Database::open_with(&self.0, migrations)
    }

    fn refusal(&self) -> String {
        let refused = self.open(&[ONE]).expect_err("it is refused");
        assert!(!refused.hint().is_empty());
        refused
            .to_string()
            .replace(self.0.to_str().unwrap(), "STATE")
    }

    fn file(&self) -> PathBuf {
        self.0.join(FILE_NAME)
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn numbers(database: &Database) -> Vec<i64> {
    let read = |connection: &Connection| {
        let mut select = connection.prepare("SELECT n FROM t ORDER BY n")?;
        select.query_map([], |row| row.get(0))?.collect()
    };
    database.read(read).unwrap()
}

fn version(database: &Database) -> i64 {
    database
        .read(|connection| connection.pragma_query_value(None, "user_version", |row| row.get(0)))
        .unwrap()
}

#[test]
fn it_is_ours_alone() {
    let place = StateFolder::new();
    let database = place.open(&[ONE]).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&place.0), mode(&place.file())), (0o700, 0o600));
    assert_eq!(mode(&place.0.join(COMPANION_FILES[0])), 0o600);
    assert_eq!(database.owner(), rustix::process::geteuid().as_raw());
}

#[test]
fn a_write_is_whole_or_not_at_all() {
    let place = StateFolder::new();
    let database = place.open(&[ONE]).unwrap();
    let insert =
        |transaction: &Transaction<'_>| transaction.execute("INSERT INTO t VALUES (2)", []);
    database.write(|transaction| insert(transaction)).unwrap();
    let failed = database.write(|transaction| {
        transaction.execute("INSERT INTO t VALUES (3)", [])?;
        transaction.execute("INSERT INTO t VALUES ('x')", [])
    });
    assert!(failed.is_err());
    assert_eq!(numbers(&database), [1, 2]);
}

#[test]
fn an_older_schema_is_brought_forward_once() {
    let place = StateFolder::with_database();
    for _ in 0..2 {
        let database = place.open(&[ONE, TWO]).unwrap();
        assert_eq!((numbers(&database), version(&database)), (vec![1, 2], 2));
    }
}

#[test]
fn a_step_that_fails_leaves_the_schema_as_it_was() {
    let place = StateFolder::with_database();
    let failed = place.open(&[ONE, TWO, BROKEN]).unwrap_err().to_string();
    assert!(failed.contains("no such table: nowhere"), "{failed}");
    let database = place.open(&[ONE]).unwrap();
    assert_eq!((numbers(&database), version(&database)), (vec![1], 1));
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let place = StateFolder::new();
    drop(place.open(&[ONE, TWO]).unwrap());
    assert_eq!(
        place.refusal(),
        "the database `STATE/airlock.db` has schema 2; this Airlock knows up to 1"
    );
    assert_eq!(version(&place.open(&[ONE, TWO]).unwrap()), 2);
    let odd = place.open(&[ONE, TWO]).unwrap();
    odd.write(|transaction| transaction.pragma_update(None, "user_version", -1))
        .unwrap();
    assert!(place.refusal().contains("has schema -1"));
}

#[test]
fn the_migrations_of_this_build_lead_from_nothing_to_the_newest() {
    let place = StateFolder::new();
    let database = Database::open(&place.0).unwrap();
    assert_eq!(version(&database), MIGRATIONS.len() as i64);
    let check: String = database
        .read(|c| c.pragma_query_value(None, "integrity_check", |row| row.get(0)))
        .unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn a_file_that_is_no_database_is_an_error_that_says_so() {
    let place = StateFolder::with_database();
    let whole = fs::read(place.file()).unwrap();
    fs::write(place.file(), "x".repeat(5000)).unwrap();
    assert_eq!(
        place.refusal(),
        "cannot use the database `STATE/airlock.db`: file is not a database"
    );
    let hint = place.open(&[ONE]).unwrap_err().hint();
    assert!(hint.starts_with("restore it from a backup"), "{hint}");
    fs::write(place.file(), &whole).unwrap();
    assert_eq!(numbers(&place.open(&[ONE]).unwrap()), [1]);
}

#[test]
fn a_damaged_database_is_an_error_or_whole_and_no_panic() {
    let place = StateFolder::with_database();
    let whole = fs::read(place.file()).unwrap();
    let mut errors = 0;
    for begin in (0..whole.len()).step_by(512) {
        let mut damaged = whole.clone();
        damaged[begin..begin + 64].fill(0xa5);
        fs::write(place.file(), &damaged).unwrap();
        let read = |connection: &Connection| {
            let mut select = connection.prepare("SELECT n FROM t")?;
            select
                .query_map([], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<i64>>>()
        };
        errors += usize::from(
            place
                .open(&[ONE])
                .and_then(|database| database.read(read))
                .is_err(),
        );
    }
    assert!(errors > 0, "the damage was to be felt");
    fs::write(place.file(), &whole[..whole.len() / 2]).unwrap();
    assert!(
        place
            .open(&[ONE])
            .and_then(|database| database.read(|c| c.query_row("SELECT n FROM t", [], |_| Ok(()))))
            .is_err()
    );
}

#[test]
fn a_file_that_leads_elsewhere_is_refused() {
    let place = StateFolder::with_database();
    let elsewhere = place.0.join("elsewhere");
    fs::rename(place.file(), &elsewhere).unwrap();
    symlink(&elsewhere, place.file()).unwrap();
    assert!(place.refusal().ends_with("`airlock.db` is a symbolic link"));
    fs::remove_file(place.file()).unwrap();
    fs::hard_link(&elsewhere, place.file()).unwrap();
    assert!(
        place
            .refusal()
            .ends_with("`airlock.db` has a second hard link")
    );
    fs::remove_file(&elsewhere).unwrap();
    assert_eq!(
        numbers(&place.open(&[ONE]).unwrap()),
        [1],
        "with one name it is itself again"
    );
    for companion in COMPANION_FILES {
        symlink("/etc/hostname", place.0.join(companion)).unwrap();
        assert!(
            place
                .refusal()
                .ends_with(&format!("`{companion}` is a symbolic link"))
        );
        fs::remove_file(place.0.join(companion)).unwrap();
    }
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let place = StateFolder::with_database();
    fs::remove_file(place.file()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        place.file(),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(
        place
            .refusal()
            .ends_with("`airlock.db` is not a regular file")
    );
    fs::remove_file(place.file()).unwrap();
    fs::create_dir(place.file()).unwrap();
    assert!(
        place
            .refusal()
            .ends_with("`airlock.db` is not a regular file")
    );
}

#[test]
fn a_file_or_folder_that_others_may_change_is_refused() {
    let place = StateFolder::with_database();
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(&place.file(), 0o640);
    assert!(
        place
            .refusal()
            .ends_with("`airlock.db` is accessible to other users")
    );
    set(&place.file(), 0o600);
    set(&place.0, 0o770);
    assert!(
        place
            .refusal()
            .ends_with("other users may write to its folder")
    );
    set(&place.0, 0o755);
    assert!(place.open(&[ONE]).is_ok());
}

#[test]
fn what_belongs_to_another_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // An ordinary user cannot give a file away, but every user can refer to one of root's.
        assert!(
            check_owner(0, "x")
                .unwrap_err()
                .to_string()
                .starts_with("x belongs to user 0, not to ")
        );
        return;
    }
    let place = StateFolder::with_database();
    let give = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    give(&place.file(), 65534);
    assert!(
        place
            .refusal()
            .ends_with("airlock.db belongs to user 65534, not to 0")
    );
    give(&place.file(), 0);
    assert!(place.open(&[ONE]).is_ok());
    give(&place.0, 65534);
    assert!(
        place
            .refusal()
            .ends_with("its folder belongs to user 65534, not to 0")
    );
}

#[test]
fn a_state_folder_may_be_reached_by_a_link_of_the_operators() {
    let place = StateFolder::with_database();
    let link = StateFolder::new();
    symlink(&place.0, &link.0).unwrap();
    assert_eq!(numbers(&Database::open_with(&link.0, &[ONE]).unwrap()), [1]);
    fs::remove_file(&link.0).unwrap();
}

#[test]
fn two_connections_of_one_process_do_not_take_each_others_locks() {
    let place = StateFolder::with_database();
    let count = |database: &Database| numbers(database).len();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let database = place.open(&[ONE]).unwrap();
                    // Reads before it writes: an increment would be lost without a lock.
                    let next = |transaction: &Transaction<'_>| {
                        let most: i64 =
                            transaction.query_row("SELECT max(n) FROM t", [], |row| row.get(0))?;
                        transaction.execute("INSERT INTO t VALUES (?)", [most + 1])
                    };
                    database.write(next).unwrap();
                }
            });
        }
    });
    let database = place.open(&[ONE]).unwrap();
    assert_eq!(count(&database), 81);
    assert_eq!(numbers(&database), (1..=81).collect::<Vec<_>>());
}
