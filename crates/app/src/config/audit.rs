//! `[audit]`: durability and retention of the audit log.

use super::{ConfigError, toml_file::Section};
use doors::ledger::Durability;
use spec::{Size, Time};
use std::{path::Path, time::Duration};
use toml::Table;

/// The section `[audit]`; unset keys have the defaults of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditConfig {
    pub(crate) durability: Durability,
    pub(crate) keep_for: Option<Duration>,
    pub(crate) keep_bytes: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
}

pub(super) fn read(table: &Table, path: &Path) -> Result<AuditConfig, ConfigError> {
    let section = Section {
        path,
        name: "audit",
    };
    let mut settings = AuditConfig::default();
    for (key, value) in table {
        match key.as_str() {
            "durability" => {
                let words = [
                    ("process", Durability::Process),
                    ("power", Durability::Power),
                ];
                settings.durability = section.word(key, value, &words)?;
            }
            "keep_for" => settings.keep_for = Some(section.quantity::<Time>(key, value)?.0),
            "keep_bytes" => settings.keep_bytes = Some(section.quantity::<Size>(key, value)?.0),
            "file_bytes" => {
                let smallest = 64 << 10;
                let bytes = section.quantity::<Size>(key, value)?.0;
                if bytes < smallest {
                    return Err(section.error(
                        key,
                        "is too little for a file",
                        "give at least 64K",
                    ));
                }
                settings.file_bytes = Some(bytes);
            }
            other => {
                return Err(section.unknown(
                    other,
                    &["durability", "keep_for", "keep_bytes", "file_bytes"],
                ));
            }
        }
    }
    Ok(settings)
}
