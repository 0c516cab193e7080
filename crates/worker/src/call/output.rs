//! What a tool made: regular files directly in `output/`, and data objects of its result that are to be files. Found by handle,
//! one after the other, within bounds; what the result says of a file (its type, a description) goes with it.
//!
//! What is no regular file is left out and noted. What is one and cannot be kept fails the call: an answer that names no file
//! which the tool wrote would lose it in silence.

use super::{
    budget::{self, Budget, Lease},
    handle::{self, Unread, Workspace},
    places,
    result::Said,
    stage::shown,
};
use crate::{
    artifacts::{Scope, Shelf},
    wire::{
        answer::CreatedArtifact,
        code::{Code, Refusal},
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

/// Files of one call, and names that are looked at for them.
const MOST_FILES: usize = 256;
const MOST_NAMES: usize = 4096;
/// The longest name, description and type, in bytes.
const LONGEST_NAME: usize = 255;
const LONGEST_DESCRIPTION: usize = 4096;
const LONGEST_TYPE: usize = 255;
/// One file, and all together.
const LARGEST_FILE: u64 = budget::MOST;
const LARGEST_ALL: u64 = 512 << 20;
/// What a file may grow by between being looked at and being read.
const GROWTH: u64 = 1 << 20;
/// Notes about what was left out.
const MOST_NOTES: usize = 20;

/// What is known of a file beside its bytes.
#[derive(Debug, Default)]
struct Told {
    mime_type: Option<String>,
    description: Option<String>,
    /// The bytes, if they came with the result.
    content: Option<Vec<u8>>,
}

/// Files that are there to be kept.
#[derive(Debug)]
pub(crate) struct Found {
    folder: Option<Arc<OwnedFd>>,
    names: BTreeSet<String>,
    told: BTreeMap<String, Told>,
    /// What was left out.
    pub(crate) notes: Vec<String>,
}

/// Where files are kept, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) shelf: &'a Shelf,
    pub(crate) scope: &'a Scope,
    pub(crate) budget: &'a Budget,
    pub(crate) until: Instant,
}

/// Looks what there is. Takes the contents of data objects out of the result that become files.
pub(crate) fn find(workspace: &Workspace, said: &mut Said) -> Result<Found, Refusal> {
    let mut told = told(said.artifacts.as_array_mut())?;
    told.extend(self::told(
        said.result
            .get_mut("data_objects")
            .and_then(Value::as_array_mut),
    )?);
    let mut found = Found {
        folder: None,
        names: BTreeSet::new(),
        told,
        notes: Vec::new(),
    };
    match workspace.open_folder(places::OUTPUT) {
        Ok(folder) => found.list(folder)?,
        Err(why) => found.note(format!("the folder `output` cannot be used: {why}")),
    }
    Ok(found)
}

impl Found {
    /// Whether there is anything to keep.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.told.values().all(|told| told.content.is_none())
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(note);
        }
    }

    fn list(&mut self, folder: OwnedFd) -> Result<(), Refusal> {
        let bad = |error: rustix::io::Errno| {
            refuse(format!("the tool's files cannot be listed: {error}"))
        };
        for (count, entry) in Dir::read_from(&folder).map_err(bad)?.enumerate() {
            let entry = entry.map_err(bad)?;
            if count >= MOST_NAMES {
                return Err(refuse(format!(
                    "the tool left more than {MOST_NAMES} names in `output`"
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
            match handle::look(folder.as_fd(), &name) {
                Ok(FileType::RegularFile) => {
                    check(&name)?;
                    self.names.insert(name);
                }
                Ok(kind) => self.note(format!(
                    "`output/{}` is {}, and was left out",
                    shown(&name),
                    handle::called(kind)
                )),
                // It went meanwhile.
                Err(why) => self.note(format!("`output/{}` was left out: {why}", shown(&name))),
            }
        }
        self.folder = Some(Arc::new(folder));
        Ok(())
    }

    /// Keeps them one by one, in the order of their names: so no more than one is in memory, within the budget of all calls.
    pub(crate) async fn keep(mut self, to: Target<'_>) -> Result<Vec<CreatedArtifact>, Refusal> {
        let mut told = std::mem::take(&mut self.told);
        // The file is what the tool wrote last; what came with the result stands in for one that is not there.
        let carried: Vec<_> = told
            .iter()
            .filter(|(_, told)| told.content.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        let all: BTreeSet<String> = self.names.iter().cloned().chain(carried).collect();
        if all.len() > MOST_FILES {
            return Err(refuse(format!(
                "the tool left {} files, and may leave {MOST_FILES}",
                all.len()
            )));
        }
        let (mut kept, mut left) = (Vec::new(), largest_all(to.shelf));
        let mut all = all.into_iter();
        while let Some(name) = all.next() {
            let told = told.remove(&name).unwrap_or_default();
            let saved = self.keep_one(to, &name, told, left).await.map_err(|why| {
                let why = format!("the tool's file `{}` cannot be kept: {why}", shown(&name));
                behind(refuse(why), &kept, all.by_ref())
            });
            let artifact = saved?;
            left -= artifact.size_bytes.min(left);
            kept.push(artifact);
        }
        still_there(to, kept)
    }

    /// What a file takes: as it lies there, or as it came with the result.
    fn size(&self, name: &str, told: &Told) -> u64 {
        match self.folder.as_ref().filter(|_| self.names.contains(name)) {
            Some(folder) => handle::size(folder.as_fd(), name).unwrap_or_default(),
            None => told
                .content
                .as_ref()
                .map_or(0, |content| content.len() as u64),
        }
    }

    async fn keep_one(
        &self,
        to: Target<'_>,
        name: &str,
        mut told: Told,
        left: u64,
    ) -> Result<CreatedArtifact, String> {
        let size = self.size(name, &told);
        // Before it waits for memory that it will not need.
        if size > LARGEST_FILE {
            return Err(Unread::TooLarge {
                size,
                most: LARGEST_FILE,
            }
            .to_string());
        }
        if size > left {
            return Err(format!(
                "all files together may have {} bytes",
                largest_all(to.shelf)
            ));
        }
        let most = (size + GROWTH).min(left).min(LARGEST_FILE);
        let lease = tokio::time::timeout_at(to.until.into(), to.budget.lease(most)).await;
        let lease = lease.map_err(|_| {
            "its time was up before files of other calls left memory for it".to_owned()
        })?;
        let mime_type = told
            .mime_type
            .take()
            .unwrap_or_else(|| by_extension(name).to_owned());
        let description = told.description.take();
        let has_begun = AtomicBool::new(false);
        let save = async {
            let bytes = self.read(to.workspace, name, told, most, lease).await?;
            let size_bytes = bytes.len() as u64;
            let saved = to
                .shelf
                .save_telling(to.scope, name, &mime_type, bytes, &has_begun)
                .await;
            Ok::<_, String>((saved.map_err(|error| error.to_string())?, size_bytes))
        };
        let saved = tokio::time::timeout_at(to.until.into(), save).await;
        let late = |_| match has_begun.load(Ordering::Relaxed) {
            true => "its time was up while the store took it, so it may be there".to_owned(),
            false => "its time was up before the store took any of it".to_owned(),
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
        told: Told,
        most: u64,
        lease: Lease,
    ) -> Result<Bytes, String> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.names.contains(name)) else {
            return Ok(lease.over(told.content.unwrap_or_default()));
        };
        let (workspace, folder, name) = (workspace.clone(), folder.clone(), name.to_owned());
        let read = move || {
            workspace
                .read(folder.as_fd(), &name, most)
                .map(|bytes| lease.over(bytes))
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| error.to_string())?
            .map_err(|why| why.to_string())
    }
}

/// Files of one call that a store would forget for each other are not taken.
fn largest_all(shelf: &Shelf) -> u64 {
    shelf
        .share()
        .map_or(LARGEST_ALL, |share| share.min(LARGEST_ALL))
}

/// Where memory is scarce, others or the later ones may have pushed the earlier ones out: an answer names none of those.
fn still_there(
    to: Target<'_>,
    kept: Vec<CreatedArtifact>,
) -> Result<Vec<CreatedArtifact>, Refusal> {
    let is_gone = |file: &CreatedArtifact| {
        to.shelf
            .has_forgotten(to.scope, &file.filename, file.version)
    };
    let (gone, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_gone);
    match listed(gone.iter().map(|file| file.filename.as_str())) {
        None => Ok(kept),
        Some(names) => {
            let why = format!(
                "the memory for artifacts is full, and has forgotten the tool's files {names} already"
            );
            Err(behind(refuse(why), &kept, std::iter::empty()))
        }
    }
}

/// What was kept before the one that was not is there to stay, what comes behind it is not kept, and the asker should know.
fn behind(
    refusal: Refusal,
    kept: &[CreatedArtifact],
    left: impl Iterator<Item = String>,
) -> Refusal {
    let kept = listed(kept.iter().map(|file| file.filename.as_str()));
    let left: Vec<_> = left.collect();
    let left = listed(left.iter().map(String::as_str));
    let kept = kept
        .map(|names| format!(". Kept were {names}"))
        .unwrap_or_default();
    let left = left
        .map(|names| format!(". Not kept either: {names}"))
        .unwrap_or_default();
    Refusal::new(refusal.code, format!("{}{kept}{left}", refusal.message))
}

/// Some names, and how many there are more; nothing for none.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    const MOST: usize = 10;
    let more = names.len().saturating_sub(MOST);
    let shown: Vec<_> = names
        .take(MOST)
        .map(|name| format!("`{}`", shown(name)))
        .collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (!shown.is_empty()).then(|| shown.join(", ") + &more)
}

/// What the result says of files, by their names.
fn told(objects: Option<&mut Vec<Value>>) -> Result<BTreeMap<String, Told>, Refusal> {
    let mut all = BTreeMap::new();
    for object in objects
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        let text = |field: &str, most: usize| {
            let text = object.get(field).and_then(Value::as_str);
            text.filter(|text| !text.is_empty() && text.len() <= most)
                .map(str::to_owned)
        };
        let Some(name) = text("name", LONGEST_NAME) else {
            continue;
        };
        let is_file = ["artifact", "auto", "artifact_with_preview"].contains(
            &text("disposition", LONGEST_TYPE)
                .unwrap_or_default()
                .as_str(),
        );
        let plain = |text: &String| {
            text.chars()
                .all(|letter| letter.is_ascii_graphic() || letter == ' ')
        };
        let mut told = Told {
            mime_type: text("mime_type", LONGEST_TYPE).filter(plain),
            description: text("description", LONGEST_DESCRIPTION),
            content: None,
        };
        if is_file
            && object
                .get("content")
                .is_some_and(|content| !content.is_null())
        {
            check(&name)?;
            told.content = Some(content(&name, object)?);
            object.insert("content".to_owned(), Value::Null);
        }
        all.insert(name, told);
    }
    Ok(all)
}

fn content(name: &str, object: &mut Map<String, Value>) -> Result<Vec<u8>, Refusal> {
    let bad = |why: &str| refuse(format!("the tool's data object `{}` {why}", shown(name)));
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

/// Refuses what is no plain name of a file.
fn check(name: &str) -> Result<(), Refusal> {
    let is_bad = name.is_empty()
        || [".", ".."].contains(&name)
        || name.len() > LONGEST_NAME
        || name
            .chars()
            .any(|letter| ['/', '\\'].contains(&letter) || letter.is_control());
    match is_bad {
        true => Err(refuse(format!(
            "the tool's file `{}` has a name that cannot be kept",
            shown(name)
        ))),
        false => Ok(()),
    }
}

fn refuse(message: String) -> Refusal {
    Refusal::new(Code::ArtifactError, message)
}

/// What a file is by the end of its name.
fn by_extension(name: &str) -> &'static str {
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
        fake::{self, Does, Fake},
    };
    use serde_json::json;

    fn of(mut objects: Value) -> (Value, Result<BTreeMap<String, Told>, Refusal>) {
        let told = told(objects.as_array_mut());
        (objects, told)
    }

    #[test]
    fn contents_that_are_to_be_files_leave_the_result_and_others_stay() {
        let (result, told) = of(json!([
            {"name": "a.bin", "content": "AAE=", "is_binary": true, "disposition": "artifact", "mime_type": "x/y"},
            {"name": "b.txt", "content": "here", "disposition": "inline", "description": "b"},
            {"name": "c.txt", "content": null, "disposition": "auto"},
            "no object", {"content": "no name"},
        ]));
        let told = told.unwrap();
        assert_eq!(told["a.bin"].content.as_deref(), Some(&[0, 1][..]));
        assert_eq!(told["a.bin"].mime_type.as_deref(), Some("x/y"));
        assert_eq!(
            (
                told["b.txt"].content.as_ref(),
                told["b.txt"].description.as_deref()
            ),
            (None, Some("b"))
        );
        assert!(told["c.txt"].content.is_none());
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
            let (_, told) = of(json!([
                {"name": name, "content": content, "is_binary": true, "disposition": "artifact"}
            ]));
            assert_eq!(told.unwrap_err().code, Code::ArtifactError, "{name}");
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
        let told = |kept: &[CreatedArtifact], left: Vec<String>| {
            behind(
                refuse("`b` cannot be kept".to_owned()),
                kept,
                left.into_iter(),
            )
            .message
        };
        assert_eq!(told(&[], Vec::new()), "`b` cannot be kept");
        let both = told(&[kept("a")], vec!["c".to_owned(), "d".to_owned()]);
        assert_eq!(
            both,
            "`b` cannot be kept. Kept were `a`. Not kept either: `c`, `d`"
        );
        let many = told(&[], (10..30).map(|number| number.to_string()).collect());
        assert!(many.ends_with("`19` and 10 more"), "{many}");
    }

    #[tokio::test]
    async fn when_time_runs_out_it_is_told_what_was_kept_before() {
        let top = std::env::temp_dir().join(format!("airlock-output-{}", std::process::id()));
        std::fs::create_dir_all(top.join(places::OUTPUT)).unwrap();
        for (name, size) in [("a", 1), ("b", 3 << 20), ("c", 1)] {
            std::fs::write(top.join(places::OUTPUT).join(name), vec![0; size]).unwrap();
        }
        let workspace = Workspace::new(std::fs::File::open(&top).unwrap().into(), None);
        let found = || {
            let mut said = Said {
                result: Map::new(),
                artifacts: Value::Null,
            };
            find(&workspace, &mut said).unwrap()
        };
        let scope = Scope {
            app: "a".to_owned(),
            user: "u".to_owned(),
            session: "s".to_owned(),
        };
        let (budget, memory) = (Budget::new(), Shelf::memory());
        let to = |shelf, seconds| {
            let until = Instant::now() + std::time::Duration::from_secs(seconds);
            Target {
                workspace: &workspace,
                shelf,
                scope: &scope,
                budget: &budget,
                until,
            }
        };
        // There is room for small ones only.
        let held = budget.lease(budget::MOST - (2 << 20)).await;
        let refusal = found().keep(to(&memory, 3)).await.unwrap_err();
        let why = "its time was up before files of other calls left memory for it";
        let told = format!(
            "the tool's file `b` cannot be kept: {why}. Kept were `a`. Not kept either: `c`"
        );
        assert_eq!((refusal.code, refusal.message), (Code::ArtifactError, told));
        drop(held);
        let names = |kept: Vec<CreatedArtifact>| {
            kept.into_iter()
                .map(|file| file.filename)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(found().keep(to(&memory, 60)).await.unwrap()),
            ["a", "b", "c"],
            "the control"
        );
        // A store that stops in the middle.
        let nothing = BTreeMap::new();
        let store = Fake::serve(move |asked| match asked.method.as_str() {
            "PUT" if asked.path.contains("/b/") => Does::Hang,
            "PUT" => Does::Answer(200, String::new()),
            _ => fake::bucket(&nothing, asked),
        });
        let settings = artifacts::Settings {
            place: artifacts::Place::Bucket(store.remote()),
            sharing: artifacts::Sharing::App,
        };
        let bucket = Shelf::open(settings).unwrap();
        let refusal = found().keep(to(&bucket, 5)).await.unwrap_err();
        let why = "its time was up while the store took it, so it may be there";
        let told = format!(
            "the tool's file `b` cannot be kept: {why}. Kept were `a`. Not kept either: `c`"
        );
        assert_eq!((refusal.code, refusal.message), (Code::ArtifactError, told));
        // One that does not even say which versions there are.
        let deaf = Fake::serve(|_| Does::Hang);
        let place = artifacts::Place::Bucket(deaf.remote());
        let bucket = Shelf::open(artifacts::Settings {
            place,
            sharing: artifacts::Sharing::App,
        })
        .unwrap();
        let refusal = found().keep(to(&bucket, 1)).await.unwrap_err();
        let why = "its time was up before the store took any of it";
        let told = format!("the tool's file `a` cannot be kept: {why}. Not kept either: `b`, `c`");
        assert_eq!((refusal.code, refusal.message), (Code::ArtifactError, told));
        std::fs::remove_dir_all(top).unwrap();
    }

    #[tokio::test]
    async fn an_answer_names_no_file_that_the_store_has_forgotten() {
        let top = std::env::temp_dir().join(format!("airlock-forgotten-{}", std::process::id()));
        std::fs::create_dir_all(top.join(places::OUTPUT)).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(top.join(places::OUTPUT).join(name), vec![0; 30_000]).unwrap();
        }
        let workspace = Workspace::new(std::fs::File::open(&top).unwrap().into(), None);
        let scope = Scope {
            app: "a".to_owned(),
            user: "u".to_owned(),
            session: "s".to_owned(),
        };
        let budget = Budget::new();
        let keep = async |most| {
            let place = artifacts::Place::Memory { most };
            let sharing = artifacts::Sharing::App;
            let shelf = Shelf::open(artifacts::Settings { place, sharing }).unwrap();
            let until = Instant::now() + std::time::Duration::from_secs(60);
            let to = Target {
                workspace: &workspace,
                shelf: &shelf,
                scope: &scope,
                budget: &budget,
                until,
            };
            let mut said = Said {
                result: Map::new(),
                artifacts: Value::Null,
            };
            let kept = find(&workspace, &mut said).unwrap().keep(to).await;
            let all = ["a", "b", "c"]
                .into_iter()
                .filter(|name| !shelf.has_forgotten(&scope, name, 0));
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
            assert_eq!(by_extension(name), is);
        }
    }
}
