//! Whether what an archive holds fits together, looked at in a folder that nobody uses yet.

use super::{BackupError, DATABASE, Report};
use std::path::Path;
use store::DatabaseError;

/// What does not fit together of ledger and audit: it is there as it was backed up, for whoever wants to look. A database
/// that is damaged is refused: nobody knows what it forgot of keys and money.
pub(super) fn all(state: &Path, report: &Report) -> Result<Vec<String>, BackupError> {
    let mut problems = Vec::new();
    if database(state, report)?
        && let Err(wrong) = store::audit::verify(state, None)
    {
        problems.push(told(state, &wrong));
    }
    let verified = crate::usage::Books::open(state).and_then(|books| books.verify());
    match verified {
        Ok(found) => problems.extend(found.iter().map(|problem| {
            let name = problem.file.strip_prefix(state).unwrap_or(&problem.file);
            format!("`{}`: {}", name.display(), problem.what)
        })),
        Err(error) => problems.push(error.to_string()),
    }
    Ok(problems)
}

/// Whether there is a database. It is of the schema that the archive says, made by an Airlock, whole, and can be brought
/// forward to today's schema; else it is refused.
pub(super) fn database(state: &Path, report: &Report) -> Result<bool, BackupError> {
    let said = report.about.as_ref().and_then(|about| about.schema);
    if said.is_some() != state.join(DATABASE).exists() {
        return Err(BackupError::Archive(
            "its database is not what it says of it".to_owned(),
        ));
    }
    let Some(said) = said else { return Ok(false) };
    let found = store::copy::schema(state).map_err(damaged)?;
    if found != Some(said) {
        return Err(BackupError::Archive(format!(
            "its database is not of schema {said}, as it says"
        )));
    }
    // Before anything is written: a trigger would do what its maker wants.
    if let Some(odd) = store::copy::foreign(state).map_err(damaged)? {
        return Err(BackupError::Archive(format!(
            "its database has what no Airlock made: {odd}"
        )));
    }
    match store::copy::check(state).map_err(damaged)?.first() {
        None => Ok(true),
        Some(wrong) => Err(BackupError::Archive(format!(
            "its database is damaged: {wrong}"
        ))),
    }
}

/// Without the place where it was looked at, which is gone then.
fn damaged(error: DatabaseError) -> BackupError {
    match error {
        DatabaseError::Sqlite { ref source, .. } if error.is_damaged() => {
            BackupError::Archive(format!("its database is damaged: {source}"))
        }
        other => BackupError::Database(other),
    }
}

/// Without the place where it was found.
pub(super) fn told(state: &Path, wrong: &store::audit::Wrong) -> String {
    match wrong {
        store::audit::Wrong::Problem(problem) => {
            let name = problem.file.strip_prefix(state).unwrap_or(&problem.file);
            format!(
                "`{}`, line {}: {}",
                name.display(),
                problem.line,
                problem.what
            )
        }
        store::audit::Wrong::Read(error) => format!("the audit cannot be read: {error}"),
    }
}
