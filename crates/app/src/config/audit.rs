//! `[audit]`: how lasting its lines are, and how long they are kept.

use super::{ConfigError, file::Section};
use spec::{Size, Time};
use std::path::Path;
use store::audit::{AuditSettings, Durability};
use toml::Table;

pub(super) fn read(table: &Table, path: &Path) -> Result<AuditSettings, ConfigError> {
    let section = Section { path, name: "audit" };
    let mut settings = AuditSettings::default();
    for (key, value) in table {
        match key.as_str() {
            "durability" => {
                let words = [("process", Durability::Process), ("power", Durability::Power)];
                settings.durability = section.word(key, value, &words)?;
            }
            "keep_for" => settings.keep_for = section.quantity::<Time>(key, value)?.0,
            "keep_bytes" => settings.keep_bytes = section.quantity::<Size>(key, value)?.0,
            "file_bytes" => {
                let smallest = 64 << 10;
                let bytes = section.quantity::<Size>(key, value)?.0;
                if bytes < smallest {
                    return Err(section.error(key, "is too little for a file", "give at least 64K"));
                }
                settings.file_bytes = bytes;
            }
            other => {
                return Err(section.unknown(other, &["durability", "keep_for", "keep_bytes", "file_bytes"]));
            }
        }
    }
    Ok(settings)
}
