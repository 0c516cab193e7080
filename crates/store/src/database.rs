//! The SQLite database of a state folder, `airlock.db`: checks the file, opens it and migrates its
//! schema. Each module owns its tables; their statements are in [`MIGRATIONS`], in the order in
//! which they were released.
//!
//! Several processes use the database at once. SQLite's own locks are the only ones.

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

const FILE_NAME: &str = "airlock.db";
/// The files that SQLite creates beside a database.
const COMPANION_FILES: [&str; 3] = ["airlock.db-wal", "airlock.db-shm", "airlock.db-journal"];
/// How long a statement waits for the lock of another process. Each process writes only a few rows
/// at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between attempts where SQLite does not wait by itself.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Step N migrates from version N to N + 1. A released step is never changed: add another.
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

/// The schema version after all migrations.
pub(crate) fn newest_schema() -> i64 {
    MIGRATIONS.len() as i64
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    /// User id that owns the state folder.
    owner: u32,
    connection: Mutex<Connection>,
}

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The file or its folder fails a check, or cannot be created.
    #[error("cannot use the database `{}`: {why}", path.display())]
    Unusable {
        /// Path of the database.
        path: PathBuf,
        /// Which check failed.
        why: String,
    },
    /// A later Airlock has migrated the schema.
    #[error("the database `{}` has schema {found}; this Airlock knows up to {known}", path.display())]
    NewerSchema {
        /// Path of the database.
        path: PathBuf,
        /// Schema version of the file.
        found: i64,
        /// Newest schema version that this program knows.
        known: i64,
    },
    /// SQLite returned an error.
    #[error("cannot use the database `{}`: {source}", path.display())]
    Sqlite {
        /// Path of the database.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
}

impl DatabaseError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => {
                source.sqlite_error_code() == Some(ErrorCode::DiskFull)
            }
            DatabaseError::Unusable { .. } | DatabaseError::NewerSchema { .. } => false,
        }
    }

    /// Whether the file is damaged, or is no database.
    pub fn is_damaged(&self) -> bool {
        match self {
            DatabaseError::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
            ),
            DatabaseError::Unusable { .. } | DatabaseError::NewerSchema { .. } => false,
        }
    }

    /// What the operator can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            DatabaseError::Unusable { .. } => {
                "it must be a regular file that only you can access, in a folder that you own; or choose another state folder with --state DIR"
            }
            DatabaseError::NewerSchema { .. } => {
                "use the newer Airlock, or choose another state folder with --state DIR"
            }
            DatabaseError::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                    "restore it from a backup, or move it away to start with an empty one"
                }
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    "another process has locked it; try again"
                }
                _ => {
                    "check that its disk is not full, and that the state folder is on a local disk"
                }
            },
        }
    }
}

impl Database {
    /// Opens the database of a state folder, creates both if they are absent, and migrates the
    /// schema.
    pub(crate) fn open(state: &Path) -> Result<Database, DatabaseError> {
        Database::open_with(state, MIGRATIONS)
    }

    /// Opens an existing database without creating or migrating anything; `None` if there is none.
    pub(crate) fn open_existing(state: &Path) -> Result<Option<Database>, DatabaseError> {
        let path = state.join(FILE_NAME);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // `locate` reports what is wrong with it.
            Ok(_) | Err(_) => {}
        }
        let (path, owner) = locate(state).map_err(|error| DatabaseError::Unusable {
            path,
            why: error.to_string(),
        })?;
        let failed = |source| DatabaseError::Sqlite {
            path: path.clone(),
            source,
        };
        let connection = retry_while_busy(|| connect(&path)).map_err(failed)?;
        let found = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(failed)?;
        if found > newest_schema() {
            Err(DatabaseError::NewerSchema {
                path,
                found,
                known: newest_schema(),
            })
        } else {
            Ok(Some(Database {
                path,
                owner,
                connection: Mutex::new(connection),
            }))
        }
    }

    fn open_with(state: &Path, migrations: &[&str]) -> Result<Database, DatabaseError> {
        let (path, owner) = locate(state).map_err(|error| DatabaseError::Unusable {
            path: state.join(FILE_NAME),
            why: error.to_string(),
        })?;
        let connection = retry_while_busy(|| connect(&path))
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
            .map_err(|(found, known)| DatabaseError::NewerSchema {
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

    /// User id that owns the state folder.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Runs a read-only query.
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

    /// Runs a write transaction: commits all of it or nothing, serialized with every other writer.
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

    /// The same for closures that can fail with other errors than SQLite's.
    pub(crate) fn transact<T>(
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

    /// Sets how long statements of this connection wait for the lock of another process.
    pub(crate) fn set_busy_timeout(&self, time: Duration) -> Result<(), DatabaseError> {
        self.read(|connection| connection.busy_timeout(time))
    }

    pub(crate) fn failed(&self, source: rusqlite::Error) -> DatabaseError {
        DatabaseError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }
}

/// Finds the database file, or creates an empty one, which SQLite accepts as an empty database. The
/// file is never opened here: POSIX locks belong to the process, so closing a second descriptor
/// would release SQLite's locks.
fn locate(state: &Path) -> io::Result<(PathBuf, u32)> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)?;
    // SQLite takes a path and refuses symbolic links anywhere on it; links above the state folder
    // are the operator's own choice.
    let state = state.canonicalize()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let folder = rustix::fs::open(&state, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&folder)?;
    if found.st_mode & 0o022 != 0 {
        return Err(io::Error::other("other users may write to its folder"));
    }
    check_owner(found.st_uid, "its folder")?;
    if state
        .join(crate::backup::RESTORE_FOLDER)
        .symlink_metadata()
        .is_ok()
    {
        return Err(io::Error::other(
            "a restore into this folder was not completed: empty it and restore again",
        ));
    }
    match rustix::fs::mknodat(
        &folder,
        FILE_NAME,
        FileType::RegularFile,
        Mode::RUSR | Mode::WUSR,
        0,
    ) {
        // SQLite syncs the directory for files that it creates itself; this one is ours.
        Ok(()) => rustix::fs::fsync(&folder)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    check_file(&folder, FILE_NAME)?;
    for name in COMPANION_FILES {
        match check_file(&folder, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            checked => checked?,
        }
    }
    Ok((state.join(FILE_NAME), found.st_uid))
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
        // SQLite removes the companion files when it is done with them.
        (0, 0 | 1) => Ok(()),
        (0, _) => wrong("has a second hard link"),
        _ => wrong("is accessible to other users"),
    }
}

fn check_owner(owner: u32, what: &str) -> io::Result<()> {
    let us = rustix::process::geteuid().as_raw();
    if owner == us {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{what} belongs to user {owner}, not to {us}"
        )))
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The file's contents are untrusted: its schema may not call functions and cannot be edited by
    // SQL.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // Lets free pages be returned to the disk in small batches. Takes effect only on an empty
    // database.
    connection.pragma_update(None, "auto_vacuum", 2)?;
    // Write-ahead log: readers and the writer do not block each other, and commits survive power
    // loss.
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
            Some("this file system does not support a write-ahead log".to_owned()),
        ));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// SQLite's busy timeout does not cover two processes that create the same database at once.
fn retry_while_busy<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match attempt() {
            Err(busy)
                if busy.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < end =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            done => return done,
        }
    }
}

enum Schema {
    Known,
    Newer { found: i64, known: i64 },
}

/// Applies all missing migrations, or none. There is no way back.
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
