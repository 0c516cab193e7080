//! Output files of a tool: regular files directly in `output/`, and data objects of the result that
//! are to become files. They are opened by descriptor and saved one after the other, within limits;
//! type and description come from the result.
//!
//! Anything but a regular file is left out and noted. A regular file that cannot be saved fails the
//! call: an answer that omits a file would lose it silently.

use super::{
    memory_budget::{self, MemoryBudget, MemoryLease},
    paths,
    result::ToolResult,
    staging::escape_name,
    workspace::{self, ReadError, Workspace},
};
use crate::{
    artifacts::{ArtifactScope, ArtifactStore},
    wire::{
        answer::CreatedArtifact,
        code::{CallRefusal, MeshErrorCode},
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rustix::fs::{Dir, FileType};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Files of one call, and directory entries that are examined.
const MAX_FILES: usize = 256;
const MAX_NAMES: usize = 4096;
/// Maximum length of name, description and type, in bytes.
const MAX_NAME_BYTES: usize = 255;
const MAX_DESCRIPTION_BYTES: usize = 4096;
const MAX_TYPE_BYTES: usize = 255;
/// Maximum size of one file and of all together.
const MAX_FILE_BYTES: u64 = memory_budget::MAX_BYTES;
const MAX_TOTAL_BYTES: u64 = 512 << 20;
/// Growth of a file that is tolerated between stat and read.
const GROWTH_MARGIN: u64 = 1 << 20;
/// Notes about files that were left out.
const MAX_NOTES: usize = 20;

/// What is known of a file besides its bytes.
#[derive(Debug, Default)]
struct FileDetails {
    mime_type: Option<String>,
    description: Option<String>,
    /// The bytes, if they are in the result.
    content: Option<Vec<u8>>,
}

/// Output files to be saved.
#[derive(Debug)]
pub(crate) struct OutputFiles {
    folder: Option<Arc<OwnedFd>>,
    names: BTreeSet<String>,
    details: BTreeMap<String, FileDetails>,
    /// What was left out.
    pub(crate) notes: Vec<String>,
}

/// Destination of the files, and the deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaveTarget<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) store: &'a ArtifactStore,
    pub(crate) scope: &'a ArtifactScope,
    pub(crate) budget: &'a MemoryBudget,
    pub(crate) until: Instant,
}

/// Lists the output files. Takes the contents of data objects that become files out of the result.
pub(crate) fn collect(
    workspace: &Workspace,
    said: &mut ToolResult,
) -> Result<OutputFiles, CallRefusal> {
    let mut details = details(said.artifacts.as_array_mut())?;
    details.extend(self::details(
        said.result
            .get_mut("data_objects")
            .and_then(Value::as_array_mut),
    )?);
    let mut found = OutputFiles {
        folder: None,
        names: BTreeSet::new(),
        details,
        notes: Vec::new(),
    };
    match workspace.open_folder(paths::OUTPUT_FOLDER) {
        Ok(folder) => found.list(folder)?,
        Err(why) => found.note(format!("the folder `output` cannot be used: {why}")),
    }
    Ok(found)
}

impl OutputFiles {
    /// Whether there is nothing to save.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self
                .details
                .values()
                .all(|details| details.content.is_none())
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }

    fn list(&mut self, folder: OwnedFd) -> Result<(), CallRefusal> {
        let bad = |error: rustix::io::Errno| {
            refuse(format!("the tool's files cannot be listed: {error}"))
        };
        for (count, entry) in Dir::read_from(&folder).map_err(bad)?.enumerate() {
            let entry = entry.map_err(bad)?;
            if count >= MAX_NAMES {
                return Err(refuse(format!(
                    "the tool left more than {MAX_NAMES} names in `output`"
                )));
            }
            let name = match entry.file_name().to_bytes() {
                b"." | b".." => continue,
                name => match str::from_utf8(name) {
                    Ok(name) => name.to_owned(),
                    Err(_) => {
                        return Err(refuse(
                            "a file in `output` has a name that is no text".to_owned(),
                        ));
                    }
                },
            };
            match workspace::file_type(folder.as_fd(), &name) {
                Ok(FileType::RegularFile) => {
                    check(&name)?;
                    self.names.insert(name);
                }
                Ok(kind) => self.note(format!(
                    "`output/{}` is {}, and was left out",
                    escape_name(&name),
                    workspace::describe(kind)
                )),
                // The file was removed meanwhile.
                Err(why) => self.note(format!(
                    "`output/{}` was left out: {why}",
                    escape_name(&name)
                )),
            }
        }
        self.folder = Some(Arc::new(folder));
        Ok(())
    }

    /// Saves the files one by one, in the order of their names: only one is in memory, within the
    /// budget of all calls.
    pub(crate) async fn save_all(
        mut self,
        to: SaveTarget<'_>,
    ) -> Result<Vec<CreatedArtifact>, CallRefusal> {
        let mut details = std::mem::take(&mut self.details);
        // A file in the folder is what the tool wrote last; the content in the result is used if
        // there is no such file.
        let carried: Vec<_> = details
            .iter()
            .filter(|(_, details)| details.content.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        let all: BTreeSet<String> = self.names.iter().cloned().chain(carried).collect();
        if all.len() > MAX_FILES {
            return Err(refuse(format!(
                "the tool left {} files, and may leave {MAX_FILES}",
                all.len()
            )));
        }
        let mut kept = Vec::new();
        let mut left = max_total(to.store);
        let mut all = all.into_iter();
        while let Some(name) = all.next() {
            let details = details.remove(&name).unwrap_or_default();
            let saved = self
                .save_one(to, &name, details, left)
                .await
                .map_err(|why| {
                    let why = format!(
                        "the tool's file `{}` cannot be kept: {why}",
                        escape_name(&name)
                    );
                    with_saved_and_skipped(refuse(why), &kept, all.by_ref())
                });
            let artifact = saved?;
            left -= artifact.size_bytes.min(left);
            kept.push(artifact);
        }
        check_retained(to, kept)
    }

    /// Size of a file: in the folder, or in the result.
    fn size(&self, name: &str, details: &FileDetails) -> u64 {
        match self.folder.as_ref().filter(|_| self.names.contains(name)) {
            Some(folder) => workspace::size(folder.as_fd(), name).unwrap_or_default(),
            None => details
                .content
                .as_ref()
                .map_or(0, |content| content.len() as u64),
        }
    }

    async fn save_one(
        &self,
        to: SaveTarget<'_>,
        name: &str,
        mut details: FileDetails,
        left: u64,
    ) -> Result<CreatedArtifact, String> {
        let size = self.size(name, &details);
        // Before waiting for memory that is not needed.
        if size > MAX_FILE_BYTES {
            return Err(ReadError::TooLarge {
                size,
                limit: MAX_FILE_BYTES,
            }
            .to_string());
        }
        if size > left {
            return Err(format!(
                "all files together may have {} bytes",
                max_total(to.store)
            ));
        }
        let limit = (size + GROWTH_MARGIN).min(left).min(MAX_FILE_BYTES);
        let lease = tokio::time::timeout_at(to.until.into(), to.budget.lease(limit)).await;
        let lease = lease.map_err(|_| {
            "its time was up before files of other calls left memory for it".to_owned()
        })?;
        let mime_type = details
            .mime_type
            .take()
            .unwrap_or_else(|| mime_type_by_extension(name).to_owned());
        let description = details.description.take();
        let has_begun = AtomicBool::new(false);
        let save = async {
            let bytes = self.read(to.workspace, name, details, limit, lease).await?;
            let size_bytes = bytes.len() as u64;
            let saved = to
                .store
                .save_tracked(to.scope, name, &mime_type, bytes, &has_begun)
                .await;
            Ok::<_, String>((saved.map_err(|error| error.to_string())?, size_bytes))
        };
        let saved = tokio::time::timeout_at(to.until.into(), save).await;
        let late = |_| {
            if has_begun.load(Ordering::Relaxed) {
                "its time was up while the store took it, so it may be there".to_owned()
            } else {
                "its time was up before the store took any of it".to_owned()
            }
        };
        let (version, size_bytes) = saved.map_err(late)??;
        Ok(CreatedArtifact {
            filename: name.to_owned(),
            version,
            mime_type,
            size_bytes,
            description,
        })
    }

    async fn read(
        &self,
        workspace: &Workspace,
        name: &str,
        details: FileDetails,
        limit: u64,
        lease: MemoryLease,
    ) -> Result<Bytes, String> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.names.contains(name)) else {
            return Ok(lease.attach(details.content.unwrap_or_default()));
        };
        let workspace = workspace.clone();
        let folder = folder.clone();
        let name = name.to_owned();
        let read = move || {
            workspace
                .read(folder.as_fd(), &name, limit)
                .map(|bytes| lease.attach(bytes))
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| error.to_string())?
            .map_err(|why| why.to_string())
    }
}

/// Maximum total size. A store that would drop one file of the call for another sets a lower limit.
fn max_total(store: &ArtifactStore) -> u64 {
    store
        .user_quota()
        .map_or(MAX_TOTAL_BYTES, |share| share.min(MAX_TOTAL_BYTES))
}

/// Where memory is scarce, later files may have evicted earlier ones: the answer must not name
/// those.
fn check_retained(
    to: SaveTarget<'_>,
    kept: Vec<CreatedArtifact>,
) -> Result<Vec<CreatedArtifact>, CallRefusal> {
    let is_gone = |file: &CreatedArtifact| {
        to.store
            .has_forgotten(to.scope, &file.filename, file.version)
    };
    let (gone, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_gone);
    match list_names(gone.iter().map(|file| file.filename.as_str())) {
        None => Ok(kept),
        Some(names) => {
            let why = format!(
                "the memory for artifacts is full, and has forgotten the tool's files {names} already"
            );
            Err(with_saved_and_skipped(
                refuse(why),
                &kept,
                std::iter::empty(),
            ))
        }
    }
}

/// Adds to an error which files were saved before it and which were skipped, because the requester
/// must know.
fn with_saved_and_skipped(
    refusal: CallRefusal,
    kept: &[CreatedArtifact],
    left: impl Iterator<Item = String>,
) -> CallRefusal {
    let kept = list_names(kept.iter().map(|file| file.filename.as_str()));
    let left: Vec<_> = left.collect();
    let left = list_names(left.iter().map(String::as_str));
    let kept = kept
        .map(|names| format!(". Kept were {names}"))
        .unwrap_or_default();
    let left = left
        .map(|names| format!(". Not kept either: {names}"))
        .unwrap_or_default();
    CallRefusal::new(refusal.code, format!("{}{kept}{left}", refusal.message))
}

/// Quoted names, truncated; none if there are none.
fn list_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    const MAX_LISTED: usize = 10;
    let more = names.len().saturating_sub(MAX_LISTED);
    let escape_name: Vec<_> = names
        .take(MAX_LISTED)
        .map(|name| format!("`{}`", escape_name(name)))
        .collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!escape_name.is_empty()).then(|| escape_name.join(", ") + &more)
}

/// File details in the result, by name.
fn details(objects: Option<&mut Vec<Value>>) -> Result<BTreeMap<String, FileDetails>, CallRefusal> {
    let mut all = BTreeMap::new();
    for object in objects
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let text = |field: &str, limit: usize| {
            let text = object.get(field).and_then(Value::as_str);
            text.filter(|text| !text.is_empty() && text.len() <= limit)
                .map(str::to_owned)
        };
        let Some(name) = text("name", MAX_NAME_BYTES) else {
            continue;
        };
        let is_file = ["artifact", "auto", "artifact_with_preview"].contains(
            &text("disposition", MAX_TYPE_BYTES)
                .unwrap_or_default()
                .as_str(),
        );
        let plain = |text: &String| {
            text.chars()
                .all(|letter| letter.is_ascii_graphic() || letter == ' ')
        };
        let mut details = FileDetails {
            mime_type: text("mime_type", MAX_TYPE_BYTES).filter(plain),
            description: text("description", MAX_DESCRIPTION_BYTES),
            content: None,
        };
        if is_file
            && object
                .get("content")
                .is_some_and(|content| !content.is_null())
        {
            check(&name)?;
            details.content = Some(content(&name, object)?);
            object.insert("content".to_owned(), Value::Null);
        }
        all.insert(name, details);
    }
    Ok(all)
}

fn content(name: &str, object: &mut Map<String, Value>) -> Result<Vec<u8>, CallRefusal> {
    let bad = |why: &str| {
        refuse(format!(
            "the tool's data object `{}` {why}",
            escape_name(name)
        ))
    };
    let is_binary = object
        .get("is_binary")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    match object.get_mut("content").map(Value::take) {
        Some(Value::String(text)) if is_binary => STANDARD
            .decode(text)
            .map_err(|_| bad("is said to be base64, and is not")),
        Some(Value::String(text)) => Ok(text.into_bytes()),
        _ => Err(bad("has a content that is no text")),
    }
}

/// Refuses anything but a plain file name.
fn check(name: &str) -> Result<(), CallRefusal> {
    let is_bad = name.is_empty()
        || [".", ".."].contains(&name)
        || name.len() > MAX_NAME_BYTES
        || name
            .chars()
            .any(|letter| ['/', '\\'].contains(&letter) || letter.is_control());
    if is_bad {
        Err(refuse(format!(
            "the tool's file `{}` has a name that cannot be kept",
            escape_name(name)
        )))
    } else {
        Ok(())
    }
}

fn refuse(message: String) -> CallRefusal {
    CallRefusal::new(MeshErrorCode::ArtifactError, message)
}

/// MIME type by the extension of a file name.
fn mime_type_by_extension(name: &str) -> &'static str {
    let extension = name
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref().unwrap_or_default() {
        "json" => "application/json",
        "txt" | "log" => "text/plain",
        "csv" => "text/csv",
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "xml" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::{
        self,
        fake_s3::{self, FakeResponse, FakeS3},
    };
    use serde_json::json;

    fn of(mut objects: Value) -> (Value, Result<BTreeMap<String, FileDetails>, CallRefusal>) {
        let details = details(objects.as_array_mut());
        (objects, details)
    }

    #[test]
    fn contents_that_are_to_be_files_leave_the_result_and_others_stay() {
        let (result, details) = of(json!([
            {"name": "a.bin", "content": "AAE=", "is_binary": true, "disposition": "artifact", "mime_type": "x/y"},
            {"name": "b.txt", "content": "here", "disposition": "inline", "description": "b"},
            {"name": "c.txt", "content": null, "disposition": "auto"},
            "no object", {"content": "no name"},
        ]));
        let details = details.unwrap();
        assert_eq!(details["a.bin"].content.as_deref(), Some(&[0, 1][..]));
        assert_eq!(details["a.bin"].mime_type.as_deref(), Some("x/y"));
        assert_eq!(
            (
                details["b.txt"].content.as_ref(),
                details["b.txt"].description.as_deref()
            ),
            (None, Some("b"))
        );
        assert!(details["c.txt"].content.is_none());
        assert_eq!(result[0]["content"], Value::Null);
        assert_eq!(result[1]["content"], "here");
    }

    #[test]
    fn data_objects_with_bad_names_or_contents_are_refused() {
        for (name, content) in [
            ("../x", json!("a")),
            ("a/b", json!("a")),
            ("ok", json!("%%")),
            ("ok", json!(5)),
        ] {
            let (_, details) = of(json!([
                {"name": name, "content": content, "is_binary": true, "disposition": "artifact"}
            ]));
            assert_eq!(
                details.unwrap_err().code,
                MeshErrorCode::ArtifactError,
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_kept_and_what_is_not_is_told() {
        let kept = |name: &str| CreatedArtifact {
            filename: name.to_owned(),
            version: 0,
            mime_type: String::new(),
            size_bytes: 0,
            description: None,
        };
        let details = |kept: &[CreatedArtifact], left: Vec<String>| {
            with_saved_and_skipped(
                refuse("`b` cannot be kept".to_owned()),
                kept,
                left.into_iter(),
            )
            .message
        };
        assert_eq!(details(&[], Vec::new()), "`b` cannot be kept");
        let both = details(&[kept("a")], vec!["c".to_owned(), "d".to_owned()]);
        assert_eq!(
            both,
            "`b` cannot be kept. Kept were `a`. Not kept either: `c`, `d`"
        );
        let many = details(&[], (10..30).map(|number| number.to_string()).collect());
        assert!(many.ends_with("`19` and 10 more"), "{many}");
    }

    #[tokio::test]
    async fn when_time_runs_out_it_is_told_what_was_kept_before() {
        let top = std::env::temp_dir().join(format!("airlock-output-{}", std::process::id()));
        std::fs::create_dir_all(top.join(paths::OUTPUT_FOLDER)).unwrap();
        for (name, size) in [("a", 1), ("b", 3 << 20), ("c", 1)] {
            std::fs::write(top.join(paths::OUTPUT_FOLDER).join(name), vec![0; size]).unwrap();
        }
        let workspace = Workspace::new(std::fs::File::open(&top).unwrap().into(), None);
        let found = || {
            let mut said = ToolResult {
                result: Map::new(),
                artifacts: Value::Null,
            };
            collect(&workspace, &mut said).unwrap()
        };
        let scope = ArtifactScope {
            app: "a".to_owned(),
            user: "u".to_owned(),
            session: "s".to_owned(),
        };
        let budget = MemoryBudget::new();
        let memory = ArtifactStore::memory();
        let to = |store, seconds| {
            let until = Instant::now() + std::time::Duration::from_secs(seconds);
            SaveTarget {
                workspace: &workspace,
                store,
                scope: &scope,
                budget: &budget,
                until,
            }
        };
        // There is room for small ones only.
        let held = budget.lease(memory_budget::MAX_BYTES - (2 << 20)).await;
        let refusal = found().save_all(to(&memory, 3)).await.unwrap_err();
        let why = "its time was up before files of other calls left memory for it";
        let details = format!(
            "the tool's file `b` cannot be kept: {why}. Kept were `a`. Not kept either: `c`"
        );
        assert_eq!(
            (refusal.code, refusal.message),
            (MeshErrorCode::ArtifactError, details)
        );
        drop(held);
        let names = |kept: Vec<CreatedArtifact>| {
            kept.into_iter()
                .map(|file| file.filename)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(found().save_all(to(&memory, 60)).await.unwrap()),
            ["a", "b", "c"],
            "the control"
        );
        // A store that stops in the middle.
        let nothing = BTreeMap::new();
        let store = FakeS3::serve(move |asked| match asked.method.as_str() {
            "PUT" if asked.path.contains("/b/") => FakeResponse::Hang,
            "PUT" => FakeResponse::Answer(200, String::new()),
            _ => fake_s3::bucket(&nothing, asked),
        });
        let settings = artifacts::ArtifactStoreSettings {
            place: artifacts::ArtifactLocation::Bucket(store.remote()),
            sharing: artifacts::Sharing::App,
        };
        let bucket = ArtifactStore::open(settings).unwrap();
        let refusal = found().save_all(to(&bucket, 5)).await.unwrap_err();
        let why = "its time was up while the store took it, so it may be there";
        let details = format!(
            "the tool's file `b` cannot be kept: {why}. Kept were `a`. Not kept either: `c`"
        );
        assert_eq!(
            (refusal.code, refusal.message),
            (MeshErrorCode::ArtifactError, details)
        );
        // One that does not even say which versions there are.
        let deaf = FakeS3::serve(|_| FakeResponse::Hang);
        let place = artifacts::ArtifactLocation::Bucket(deaf.remote());
        let bucket = ArtifactStore::open(artifacts::ArtifactStoreSettings {
            place,
            sharing: artifacts::Sharing::App,
        })
        .unwrap();
        let refusal = found().save_all(to(&bucket, 1)).await.unwrap_err();
        let why = "its time was up before the store took any of it";
        let details =
            format!("the tool's file `a` cannot be kept: {why}. Not kept either: `b`, `c`");
        assert_eq!(
            (refusal.code, refusal.message),
            (MeshErrorCode::ArtifactError, details)
        );
        std::fs::remove_dir_all(top).unwrap();
    }

    #[tokio::test]
    async fn an_answer_names_no_file_that_the_store_has_forgotten() {
        let top = std::env::temp_dir().join(format!("airlock-forgotten-{}", std::process::id()));
        std::fs::create_dir_all(top.join(paths::OUTPUT_FOLDER)).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(top.join(paths::OUTPUT_FOLDER).join(name), vec![0; 30_000]).unwrap();
        }
        let workspace = Workspace::new(std::fs::File::open(&top).unwrap().into(), None);
        let scope = ArtifactScope {
            app: "a".to_owned(),
            user: "u".to_owned(),
            session: "s".to_owned(),
        };
        let budget = MemoryBudget::new();
        let keep = async |limit| {
            let place = artifacts::ArtifactLocation::Memory { limit };
            let sharing = artifacts::Sharing::App;
            let store =
                ArtifactStore::open(artifacts::ArtifactStoreSettings { place, sharing }).unwrap();
            let until = Instant::now() + std::time::Duration::from_secs(60);
            let to = SaveTarget {
                workspace: &workspace,
                store: &store,
                scope: &scope,
                budget: &budget,
                until,
            };
            let mut said = ToolResult {
                result: Map::new(),
                artifacts: Value::Null,
            };
            let kept = collect(&workspace, &mut said).unwrap().save_all(to).await;
            let all = ["a", "b", "c"]
                .into_iter()
                .filter(|name| !store.has_forgotten(&scope, name, 0));
            (
                kept.map(|kept| kept.len())
                    .map_err(|refusal| refusal.message),
                all.collect::<String>(),
            )
        };
        assert_eq!(
            keep(200_000).await,
            (Ok(3), "abc".to_owned()),
            "the control"
        );
        let too_large = "the tool's file `c` cannot be kept: all files together may have 80000 bytes. Kept were `a`, `b`";
        assert_eq!(
            keep(160_000).await,
            (Err(too_large.to_owned()), "ab".to_owned())
        );
        // The bytes have room, but not with what keeping them costs.
        let gone = "the memory for artifacts is full, and has forgotten the tool's files `a` already. Kept were `b`, `c`";
        assert_eq!(keep(180_000).await, (Err(gone.to_owned()), "bc".to_owned()));
        std::fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn types_are_told_by_the_end_of_a_name() {
        for (name, is) in [
            ("a.JSON", "application/json"),
            ("b", "application/octet-stream"),
            ("c.jpeg", "image/jpeg"),
        ] {
            assert_eq!(mime_type_by_extension(name), is);
        }
    }
}
