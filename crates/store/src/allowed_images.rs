//! The allow-list of images, and the trail of its changes and of refusals. [`spec::admit_image`] applies
//! the list; this module stores it.

use crate::database::{Database, DatabaseError};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use spec::{
    AllowedImage, CandidateImage, Capability, Digest, ImageAdmission, ImagePattern, ImagePolicy,
    ImageRefusal, ImageRule, ImageUse, LocalUser, Timestamp,
};
use std::{
    collections::BTreeSet,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

/// Every entry is compared with every image.
const MAX_ENTRIES: i64 = 10_000;
const MAX_CAPABILITIES: usize = 64;
const MAX_NOTE_BYTES: usize = 1000;
/// Changes are always recorded. Refusals stop at this number, or a loop of them would fill the
/// disk.
const MAX_TRAIL_ENTRIES: i64 = 100_000;
/// Rows shown by one query of the trail.
const TRAIL_PAGE_ROWS: u32 = 1000;

/// The allow-list of images in the database of a state folder.
#[derive(Debug)]
pub struct AllowedImages {
    database: Database,
}

/// An entry to be added to the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAllowedImage {
    /// Images that the entry matches.
    pub pattern: ImagePattern,
    /// The only digest that they may have.
    pub pin: Option<Digest>,
    /// Capabilities that the entry grants.
    pub capabilities: BTreeSet<Capability>,
    /// Whether the image is labelled for agents, if known.
    pub marked: Option<bool>,
    /// Note of the administrator.
    pub note: String,
}

/// One entry of the trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTrailEntry {
    /// Time of the entry.
    pub at: Timestamp,
    /// The user who changed the list or was refused.
    pub who: String,
    /// `allowed`, `disallowed` or `refused`.
    pub what: String,
    /// The pattern of the entry, or the image that was refused.
    pub image: String,
    /// The digest and the note, or the reason of the refusal.
    pub about: String,
}

/// Why the list could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AllowedImagesError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The user may not change the list.
    #[error("{who} may not change the list of allowed images")]
    NotPermitted {
        /// The user who tried.
        who: LocalUser,
    },
    /// The entry is invalid.
    #[error("cannot allow `{pattern}`: {why}")]
    Entry {
        /// Pattern of the entry.
        pattern: ImagePattern,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such entry.
    #[error("there is no entry `{entry}` on the list of allowed images")]
    Missing {
        /// The pattern that was asked for.
        entry: String,
    },
    /// A row of the database is not what this Airlock writes.
    #[error("the list of allowed images has an entry that cannot be read: `{}`", entry.escape_debug())]
    Unreadable {
        /// Pattern of the row.
        entry: String,
    },
}

impl AllowedImagesError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            AllowedImagesError::Database(error) => error.hint(),
            AllowedImagesError::NotPermitted { .. } => {
                "ask one of those that `images.may_add` in the configuration file names; without it, the owner of the state folder"
            }
            AllowedImagesError::Entry { .. } | AllowedImagesError::Missing { .. } => {
                "`airlock image allowed` shows the list"
            }
            AllowedImagesError::Unreadable { .. } => {
                "no image is allowed while it is there; restore the database from a backup"
            }
        }
    }
}

impl AllowedImages {
    /// Opens the list of a state folder; creates an empty one if there is none.
    pub fn open(state: &Path) -> Result<AllowedImages, DatabaseError> {
        Ok(AllowedImages {
            database: Database::open(state)?,
        })
    }

    /// Adds an entry, or replaces the one with the same pattern and digest.
    pub fn allow(
        &self,
        policy: &ImagePolicy,
        new: &NewAllowedImage,
        who: &LocalUser,
    ) -> Result<(), AllowedImagesError> {
        self.check_who(policy, who)?;
        check_entry(new)?;
        let full = self.database.write(|transaction| {
            let others = "SELECT count(*) FROM allowed_image WHERE NOT (pattern = ? AND pin = ?)";
            let others: i64 = transaction.query_row(others, key(new), |row| row.get(0))?;
            if others >= MAX_ENTRIES {
                return Ok(true);
            }
            put(transaction, new, who)?;
            let about = [pin_text(new.pin.as_ref()), &new.note].join(" ");
            record(
                transaction,
                &who.to_string(),
                "allowed",
                &new.pattern.to_string(),
                about.trim(),
            )?;
            Ok(false)
        })?;
        if full {
            Err(invalid_entry(
                new,
                format!("the list is full with {MAX_ENTRIES} entries"),
            ))
        } else {
            Ok(())
        }
    }

    /// Removes entries: all with this pattern, or the one with this digest. Returns how many.
    pub fn disallow(
        &self,
        policy: &ImagePolicy,
        pattern: &ImagePattern,
        pin: Option<&Digest>,
        who: &LocalUser,
    ) -> Result<usize, AllowedImagesError> {
        self.check_who(policy, who)?;
        let removed = self.database.write(|transaction| {
            let pattern = pattern.to_string();
            let pin = pin.map(Digest::as_str);
            let sql = "DELETE FROM allowed_image WHERE pattern = ?1 AND (?2 IS NULL OR pin = ?2)";
            let removed = transaction.execute(sql, params![pattern, pin])?;
            if removed > 0 {
                record(
                    transaction,
                    &who.to_string(),
                    "disallowed",
                    &pattern,
                    pin.unwrap_or_default(),
                )?;
            }
            Ok(removed)
        })?;
        match removed {
            0 => Err(AllowedImagesError::Missing {
                entry: pin.map_or(pattern.to_string(), |pin| format!("{pattern}@{pin}")),
            }),
            some => Ok(some),
        }
    }

    /// The list, sorted by pattern.
    pub fn list(&self) -> Result<Vec<AllowedImage>, AllowedImagesError> {
        let rows = self.database.read(|connection| {
            let mut select = connection.prepare(
                "SELECT pattern, pin, capabilities, marked, note, added_by, added_at_ms FROM allowed_image
                 ORDER BY pattern, pin",
            )?;
            select.query_map([], entry)?.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        rows.into_iter()
            .map(|row| row.map_err(|entry| AllowedImagesError::Unreadable { entry }))
            .collect()
    }

    /// Decides whether an image may be used, and records a refusal. If the list cannot be read,
    /// every image is refused.
    pub fn check(
        &self,
        policy: &ImagePolicy,
        image: &CandidateImage,
        use_: ImageUse,
    ) -> Result<(), ImageRefusal> {
        self.admit(policy, image, use_, &[])
            .map(drop)
            .inspect_err(|refused| {
                let image = image
                    .reference
                    .as_ref()
                    .map_or("a folder".to_owned(), ToString::to_string);
                let who = LocalUser {
                    uid: rustix::process::getuid().as_raw(),
                    name: None,
                };
                // The refusal stands whether it was recorded or not.
                let _ = self.database.write(|transaction| {
                    record_refusal(transaction, &who, &image, &refused.message)
                });
            })
    }

    /// Decides without recording, for callers that only ask.
    pub fn admit(
        &self,
        policy: &ImagePolicy,
        image: &CandidateImage,
        use_: ImageUse,
        needed: &[Capability],
    ) -> Result<ImageAdmission, ImageRefusal> {
        let entries = match policy.rule {
            ImageRule::Open => Vec::new(),
            ImageRule::Allowed => self.list().map_err(|error| ImageRefusal {
                message: format!("cannot tell which images are allowed: {error}"),
                hint: error.hint().to_owned(),
            })?,
        };
        spec::admit_image(policy, &entries, image, use_, needed)
    }

    /// The latest entries of the trail, newest first.
    pub fn trail(&self) -> Result<Vec<ImageTrailEntry>, AllowedImagesError> {
        let lines = self.database.read(|connection| {
            let mut select = connection.prepare(
                "SELECT at_ms, who, what, image, about FROM image_trail ORDER BY id DESC LIMIT ?",
            )?;
            let line = |row: &Row<'_>| {
                let (who, what, image, about) =
                    (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
                Ok(ImageTrailEntry {
                    at: time(row, 0)?,
                    who,
                    what,
                    image,
                    about,
                })
            };
            select.query_map([TRAIL_PAGE_ROWS], line)?.collect()
        })?;
        Ok(lines)
    }

    fn check_who(&self, policy: &ImagePolicy, who: &LocalUser) -> Result<(), AllowedImagesError> {
        if policy.may_change(who, self.database.owner()) {
            Ok(())
        } else {
            Err(AllowedImagesError::NotPermitted { who: who.clone() })
        }
    }
}

fn check_entry(new: &NewAllowedImage) -> Result<(), AllowedImagesError> {
    let many = new.capabilities.len() > MAX_CAPABILITIES;
    match (
        new.pin.is_some() && new.pattern.is_path(),
        many,
        new.note.len() > MAX_NOTE_BYTES,
    ) {
        (true, _, _) => Err(invalid_entry(
            new,
            "a digest selects one image, but this pattern matches many".to_owned(),
        )),
        (_, true, _) => Err(invalid_entry(
            new,
            format!("it has more than {MAX_CAPABILITIES} capabilities"),
        )),
        (_, _, true) => Err(invalid_entry(
            new,
            format!("its note is longer than {MAX_NOTE_BYTES} bytes"),
        )),
        (false, false, false) => Ok(()),
    }
}

fn invalid_entry(new: &NewAllowedImage, why: String) -> AllowedImagesError {
    AllowedImagesError::Entry {
        pattern: new.pattern.clone(),
        why,
    }
}

fn put(
    transaction: &Transaction<'_>,
    new: &NewAllowedImage,
    who: &LocalUser,
) -> rusqlite::Result<usize> {
    let words: Vec<_> = new.capabilities.iter().map(Capability::as_str).collect();
    let (pattern, pin) = key(new);
    transaction.execute(
        "INSERT OR REPLACE INTO allowed_image (pattern, pin, capabilities, marked, note, added_by, added_at_ms)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        params![pattern, pin, words.join(" "), new.marked, new.note, who.to_string(), now()],
    )
}

fn key(new: &NewAllowedImage) -> (String, String) {
    (
        new.pattern.to_string(),
        pin_text(new.pin.as_ref()).to_owned(),
    )
}

fn pin_text(pin: Option<&Digest>) -> &str {
    pin.map_or("", Digest::as_str)
}

/// An entry, or the pattern of a row that cannot be read.
fn entry(row: &Row<'_>) -> rusqlite::Result<Result<AllowedImage, String>> {
    let (pattern, pin, words): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let read = || {
        let pin = match pin.as_str() {
            "" => None,
            text => Some(Digest::new(text)?),
        };
        let capabilities = words
            .split_whitespace()
            .map(Capability::new)
            .collect::<Option<_>>()?;
        Some((pattern.parse().ok()?, pin, capabilities))
    };
    let Some((parsed, pin, capabilities)) = read() else {
        return Ok(Err(pattern));
    };
    let marked = row.get(3)?;
    let note = row.get(4)?;
    let added_by = row.get(5)?;
    let added_at = time(row, 6)?;
    Ok(Ok(AllowedImage {
        pattern: parsed,
        pin,
        capabilities,
        marked,
        note,
        added_by,
        added_at,
    }))
}

fn record(
    connection: &Connection,
    who: &str,
    what: &str,
    image: &str,
    about: &str,
) -> rusqlite::Result<usize> {
    let sql = "INSERT INTO image_trail (at_ms, who, what, image, about) VALUES (?, ?, ?, ?, ?)";
    connection.execute(sql, params![now(), who, what, image, about])
}

/// The last refusal that fits says that later ones are not recorded.
fn record_refusal(
    transaction: &Transaction<'_>,
    who: &LocalUser,
    image: &str,
    why: &str,
) -> rusqlite::Result<()> {
    let newest = "SELECT id FROM image_trail ORDER BY id DESC LIMIT 1";
    let newest: i64 = transaction
        .query_row(newest, [], |row| row.get(0))
        .optional()?
        .unwrap_or(0);
    let who = who.to_string();
    match newest + 1 {
        id if id < MAX_TRAIL_ENTRIES => record(transaction, &who, "refused", image, why)?,
        MAX_TRAIL_ENTRIES => {
            let full = format!("{why} (the trail is full: later refusals are not recorded)");
            record(transaction, &who, "refused", image, &full)?
        }
        _ => 0,
    };
    Ok(())
}

/// SQLite integers are signed.
fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp(
        u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0),
    ))
}

fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "allowed_images_tests.rs"]
mod tests;
