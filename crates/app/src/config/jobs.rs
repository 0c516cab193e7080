//! `[jobs]`: how many jobs run and wait, and how long they are kept.

use super::{ConfigError, toml_file::Section};
use spec::{JobQueueLimits, Time};
use std::path::Path;
use toml::Table;

const KEYS: [&str; 5] = [
    "slots",
    "queued",
    "queued_per_tenant",
    "keep_jobs",
    "keep_for",
];

/// Reads the table.
pub(super) fn read(table: &Table, path: &Path) -> Result<JobQueueLimits, ConfigError> {
    let section = Section { path, name: "jobs" };
    let mut bounds = JobQueueLimits::default();
    for (key, value) in table {
        match key.as_str() {
            "slots" => bounds.slots = Some(section.count(key, value)? as usize),
            "queued" => bounds.queued = section.count(key, value)?.into(),
            "queued_per_tenant" => bounds.queued_per_tenant = section.count(key, value)?.into(),
            "keep_jobs" => bounds.keep_jobs = section.count(key, value)?.into(),
            "keep_for" => bounds.keep_for = section.quantity::<Time>(key, value)?.0,
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(bounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<JobQueueLimits, ConfigError> {
        super::read(&text.parse().unwrap(), Path::new("/c.toml"))
    }

    #[test]
    fn every_key_reaches_its_field_and_a_mistake_is_named() {
        let bounds =
            read("slots = 1\nqueued = 2\nqueued_per_tenant = 3\nkeep_jobs = 4\nkeep_for = \"5s\"");
        let keep_for = std::time::Duration::from_secs(5);
        assert_eq!(
            bounds,
            Ok(JobQueueLimits {
                slots: Some(1),
                queued: 2,
                queued_per_tenant: 3,
                keep_jobs: 4,
                keep_for
            })
        );
        assert_eq!(read(""), Ok(JobQueueLimits::default()));
        assert_eq!(read("slot = 1").unwrap_err().hint, "did you mean `slots`?");
        assert!(
            read("slots = 0")
                .unwrap_err()
                .message
                .contains("`jobs.slots`")
        );
        assert!(read("keep_for = \"7w\"").is_err());
    }
}
