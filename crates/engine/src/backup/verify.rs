//! Verifies the contents of an archive, in an unpacked folder that nobody uses yet.

use super::{BackupError, BackupReport, DATABASE};
use std::path::Path;
use store::DatabaseError;

/// The inconsistencies of ledger and audit, which are restored as they were backed up. A damaged
/// database is an error, since its keys and money records may be incomplete.
pub(super) fn verify_state(
    state: &Path,
    report: &BackupReport,
) -> Result<Vec<String>, BackupError> {
    let mut problems = Vec::new();
    if verify_database(state, report)?
        && let Err(wrong) = store::audit::verify(state, None)
    {
        problems.push(describe(state, &wrong));
    }
    let verified = crate::usage::UsageProjection::open(state).and_then(|books| books.verify());
    match verified {
        Ok(found) => problems.extend(found.iter().map(|problem| {
            let name = problem.file.strip_prefix(state).unwrap_or(&problem.file);
            format!("`{}`: {}", name.display(), problem.what)
        })),
        Err(error) => problems.push(error.to_string()),
    }
    Ok(problems)
}

/// Whether there is a database. It must have the schema that the archive states, contain nothing
/// foreign, be undamaged, and be migratable to the current schema.
pub(super) fn verify_database(state: &Path, report: &BackupReport) -> Result<bool, BackupError> {
    let said = report.about.as_ref().and_then(|about| about.schema);
    if said.is_some() != state.join(DATABASE).exists() {
        return Err(BackupError::Archive(
            "its database is not what it says of it".to_owned(),
        ));
    }
    let Some(said) = said else { return Ok(false) };
    let found = store::backup::schema_version(state).map_err(damaged)?;
    if found != Some(said) {
        return Err(BackupError::Archive(format!(
            "its database is not of schema {said}, as it says"
        )));
    }
    // Before anything is written: a foreign trigger would run its author's statements.
    if let Some(odd) = store::backup::schema_difference(state).map_err(damaged)? {
        return Err(BackupError::Archive(format!(
            "its database has what no Airlock made: {odd}"
        )));
    }
    match store::backup::check_integrity(state)
        .map_err(damaged)?
        .first()
    {
        None => Ok(true),
        Some(wrong) => Err(BackupError::Archive(format!(
            "its database is damaged: {wrong}"
        ))),
    }
}

/// Without the path of the temporary folder.
fn damaged(error: DatabaseError) -> BackupError {
    match error {
        DatabaseError::Sqlite { ref source, .. } if error.is_damaged() => {
            BackupError::Archive(format!("its database is damaged: {source}"))
        }
        other => BackupError::Database(other),
    }
}

/// Without the path of the temporary folder.
pub(super) fn describe(state: &Path, wrong: &store::audit::VerifyError) -> String {
    match wrong {
        store::audit::VerifyError::Problem(problem) => {
            let name = problem.file.strip_prefix(state).unwrap_or(&problem.file);
            format!(
                "`{}`, line {}: {}",
                name.display(),
                problem.line,
                problem.what
            )
        }
        store::audit::VerifyError::Read(error) => format!("the audit cannot be read: {error}"),
    }
}
