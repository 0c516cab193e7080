//! The one database of a state folder, `airlock.db`: found safely, opened, brought to the newest schema. Tables belong
//! to whoever uses them; their statements stand in [`MIGRATIONS`], in the order in which they came to be.
//!
//! Several processes use it at once. SQLite's own locks are the only ones.
//!
//! A new table is a step at the end of [`MIGRATIONS`]. A released step never changes, and has a dump in `schema/fixtures`.

use rusqlite::{
    Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, config::DbConfig,
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::DirBuilder,
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const NAME: &str = "airlock.db";
/// What SQLite puts beside a database.
const COMPANIONS: [&str; 3] = ["airlock.db-wal", "airlock.db-shm", "airlock.db-journal"];
/// How long another process may keep us waiting. Each writes a few rows.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries where SQLite does not wait by itself.
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Step N leads from version N to N + 1. A step that was once released is never changed: add another.
pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("schema/1_allowed_images.sql"),
    include_str!("schema/2_usage.sql"),
    include_str!("schema/3_gateway.sql"),
    include_str!("schema/4_sandboxes.sql"),
    include_str!("schema/5_tenants.sql"),
    include_str!("schema/6_jobs.sql"),
    include_str!("schema/7_node.sql"),
    include_str!("schema/8_audit.sql"),
    include_str!("schema/9_webhooks.sql"),
    include_str!("schema/10_workflows.sql"),
    include_str!("schema/11_retired.sql"),
];

/// The schema that all steps lead to.
pub(crate) fn newest() -> i64 {
    MIGRATIONS.len() as i64
}

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    /// Whose folder it lies in.
    owner: u32,
    connection: Mutex<Connection>,
}

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// It is not ours, or its place cannot be had.
    #[error("cannot use the database `{}`: {why}", path.display())]
    Place {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A later Airlock has been here.
    #[error("the database `{}` has schema {found}; this Airlock knows up to {known}", path.display())]
    Newer {
        /// Where it is.
        path: PathBuf,
        /// What it has.
        found: i64,
        /// What we know.
        known: i64,
    },
    /// SQLite says no.
    #[error("cannot use the database `{}`: {source}", path.display())]
    Sqlite {
        /// Where it is.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rusqlite::Error,
    },
}

impl DatabaseError {
    /// Whether its disk has no room.
    pub fn is_full(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => {
                source.sqlite_error_code() == Some(ErrorCode::DiskFull)
            }
            DatabaseError::Place { .. } | DatabaseError::Newer { .. } => false,
        }
    }

    /// Whether what is in the file is no database any more.
    pub fn is_damaged(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
            ),
            DatabaseError::Place { .. } | DatabaseError::Newer { .. } => false,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            DatabaseError::Place { .. } => {
                "it must be a plain file of yours that nobody else may read, in a folder of yours; or choose another with --state DIR"
            }
            DatabaseError::Newer { .. } => {
                "use the newer Airlock, or choose another state folder with --state DIR"
            }
            DatabaseError::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                    "put a copy from a backup in its place, or move it away to begin with an empty one"
                }
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    "another process keeps it; try again"
                }
                _ => {
                    "look whether its disk is full, and whether the state folder is on a disk of this machine"
                }
            },
        }
    }
}

impl Database {
    /// Opens the database of a state folder; makes both if they are absent.
    pub(crate) fn open(state: &Path) -> Result<Database, DatabaseError> {
        Database::open_with(state, MIGRATIONS)
    }

    /// The same without making or changing anything; none if there is no database.
    pub(crate) fn open_as_it_is(state: &Path) -> Result<Option<Database>, DatabaseError> {
        let path = state.join(NAME);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // What is wrong with it is said below.
            Ok(_) | Err(_) => {}
        }
        let (path, owner) = place(state).map_err(|error| DatabaseError::Place {
            path,
            why: error.to_string(),
        })?;
        let failed = |source| DatabaseError::Sqlite {
            path: path.clone(),
            source,
        };
        let connection = patiently(|| connect(&path)).map_err(failed)?;
        let found = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(failed)?;
        match found > newest() {
            true => Err(DatabaseError::Newer {
                path,
                found,
                known: newest(),
            }),
            false => Ok(Some(Database {
                path,
                owner,
                connection: Mutex::new(connection),
            })),
        }
    }

    fn open_with(state: &Path, migrations: &[&str]) -> Result<Database, DatabaseError> {
        let (path, owner) = place(state).map_err(|error| DatabaseError::Place {
            path: state.join(NAME),
            why: error.to_string(),
        })?;
        let connection = patiently(|| connect(&path))
            .and_then(
                |mut connection| match migrate(&mut connection, migrations)? {
                    Schema::Known => Ok(Ok(connection)),
                    Schema::Newer { found, known } => Ok(Err((found, known))),
                },
            )
            .map_err(|source| DatabaseError::Sqlite {
                path: path.clone(),
                source,
            })?
            .map_err(|(found, known)| DatabaseError::Newer {
                path: path.clone(),
                found,
                known,
            })?;
        Ok(Database {
            path,
            owner,
            connection: Mutex::new(connection),
        })
    }

    /// Whose folder it lies in.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Reads.
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        read(&connection).map_err(|source| self.failed(source))
    }

    /// Writes all of it or nothing, after every other writer and before the next.
    pub(crate) fn write<T>(
        &self,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DatabaseError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all = || {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = write(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        all().map_err(|source| self.failed(source))
    }

    /// The same for work that is not only SQLite's.
    pub(crate) fn together<T>(
        &self,
        write: impl FnOnce(&Transaction<'_>) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|source| self.failed(source))?;
        let done = write(&transaction)?;
        transaction.commit().map_err(|source| self.failed(source))?;
        Ok(done)
    }

    /// How long another process may keep this connection waiting from now on.
    pub(crate) fn wait_at_most(&self, time: Duration) -> Result<(), DatabaseError> {
        self.read(|connection| connection.busy_timeout(time))
    }

    pub(crate) fn failed(&self, source: rusqlite::Error) -> DatabaseError {
        DatabaseError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }
}

/// Finds the file, or makes an empty one, which SQLite takes for an empty database. It is never opened here: closing a
/// second descriptor of it would take SQLite's locks away, which are those of the process.
fn place(state: &Path) -> io::Result<(PathBuf, u32)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)?;
    // SQLite takes a path, and refuses every symbolic link on it; those above the folder are the operator's own.
    let state = state.canonicalize()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = rustix::fs::open(&state, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&folder)?;
    if found.st_mode & 0o022 != 0 {
        return Err(io::Error::other("others may write to its folder"));
    }
    check_owner(found.st_uid, "its folder")?;
    if state
        .join(crate::copy::RESTORING)
        .symlink_metadata()
        .is_ok()
    {
        return Err(io::Error::other(
            "a restore into it has not finished: empty it and restore again",
        ));
    }
    match rustix::fs::mknodat(
        &folder,
        NAME,
        FileType::RegularFile,
        Mode::RUSR | Mode::WUSR,
        0,
    ) {
        // SQLite makes sure of what it makes itself; of this file we have to.
        Ok(()) => rustix::fs::fsync(&folder)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    check_file(&folder, NAME)?;
    for name in COMPANIONS {
        match check_file(&folder, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            checked => checked?,
        }
    }
    Ok((state.join(NAME), found.st_uid))
}

fn check_file(folder: &OwnedFd, name: &str) -> io::Result<()> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let wrong = |what: &str| Err(io::Error::other(format!("`{name}` {what}")));
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return wrong("is a symbolic link"),
        _ => return wrong("is not a regular file"),
    }
    check_owner(found.st_uid, name)?;
    match (found.st_mode & 0o077, found.st_nlink) {
        // SQLite removes companions when it has done with them.
        (0, 0 | 1) => Ok(()),
        (0, _) => wrong("has a second name"),
        _ => wrong("is open to other users"),
    }
}

fn check_owner(owner: u32, what: &str) -> io::Result<()> {
    let us = rustix::process::geteuid().as_raw();
    match owner == us {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{what} belongs to user {owner}, not to {us}"
        ))),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // What the file says about itself is data: it brings no functions, and nobody writes its schema by hand.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // What nothing lies in any more can be given back in small pieces. Heard only by a database that is still empty.
    connection.pragma_update(None, "auto_vacuum", 2)?;
    // Readers and a writer do not wait for each other; what was confirmed outlasts a power cut.
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some("this file system lacks what a write-ahead log needs".to_owned()),
        ));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// SQLite does not wait where two make the same database at once.
fn patiently<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(busy)
                if busy.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < end =>
            {
                std::thread::sleep(BETWEEN_TRIES);
            }
            done => return done,
        }
    }
}

enum Schema {
    Known,
    Newer { found: i64, known: i64 },
}

/// Takes the steps that are missing, all or none. There is no way back.
fn migrate(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<Schema> {
    let known = migrations.len() as i64;
    let version = |connection: &Connection| {
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))
    };
    if version(connection)? == known {
        return Ok(Schema::Known);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&transaction)?;
    let Some(missing) = usize::try_from(found)
        .ok()
        .and_then(|found| migrations.get(found..))
    else {
        return Ok(Schema::Newer { found, known });
    };
    for step in missing {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(Schema::Known)
}

#[cfg(test)]
#[path = "database_tests.rs"]
mod tests;
