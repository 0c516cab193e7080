//! Files of a sandbox's workspace: read, listed, put and removed by handle, beneath it and through no symbolic link.
//! Contents are streams: what is read or written at a time is bounded, and disks are not waited for on the event loop.

mod path;
mod range;
mod read;
mod write;

pub(super) use path::decoded;

use super::wire::name_or_base64;
use crate::{Caller, Gateway, Problem, problem::Answer};
use axum::routing::MethodRouter;
use engine::tree::{Facts, Kind, Listed, Tree};
use http::{StatusCode, Uri};
use path::Place;
use serde::Serialize;
use spec::Timestamp;
use std::{ffi::OsString, io};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

/// How an address of a file is routed, and how it is described.
const ROUTED: &str = "/v1/sandboxes/{id}/files/{*path}";
const DESCRIBED: &str = "/v1/sandboxes/{id}/files/{path}";

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    let mut router = OpenApiRouter::new().merge(read::routes()).merge(write::routes());
    let paths = &mut router.get_openapi_mut().paths.paths;
    if let Some(item) = paths.remove(ROUTED) {
        paths.insert(DESCRIBED.to_owned(), item);
    }
    // The same folder, written with a slash at its end.
    router.route("/v1/sandboxes/{id}/files/", MethodRouter::new().get(read::get).head(read::get))
}

/// The workspace of a live sandbox, and the place in it that the address names.
fn found(gateway: &Gateway, caller: &Caller, uri: &Uri) -> Answer<(Tree, Place)> {
    let place = path::place(uri.path())?;
    let session = gateway.session(caller, &place.sandbox)?;
    Ok((session.tree()?, place))
}

/// Has something done where waiting for a disk disturbs nobody.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Answer<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| refused(&error)),
        Err(_) => Err(refused(&io::Error::other("panicked"))),
    }
}

/// Why a file cannot be had, or put there.
fn refused(error: &io::Error) -> Problem {
    use io::ErrorKind as Is;
    let with = |status, code: &str, title: &str, hint: &str| {
        Problem::new(status, code, title, Some(hint.to_owned()))
    };
    match error.kind() {
        Is::NotFound => Problem::not_found("file or folder"),
        Is::FilesystemLoop | Is::CrossesDevices => Problem::conflict(
            "a symbolic link is in the way",
            "links are never followed; name what it points at, or remove it",
        ),
        Is::NotADirectory => Problem::conflict("a file is in the way", "only folders lead further"),
        Is::IsADirectory => Problem::conflict("a folder has that name", "remove it first, or choose another name"),
        Is::AlreadyExists => Problem::conflict("something has that name already", "choose another name"),
        Is::DirectoryNotEmpty => Problem::conflict("the folder is not empty", "remove it with `?recursive=true`"),
        Is::InvalidInput | Is::InvalidFilename => {
            Problem::invalid("this path cannot be used", "name a file below the workspace")
        }
        Is::Unsupported => Problem::conflict(
            "this is neither a file nor a folder",
            "links, devices, sockets and FIFOs are not opened; they can be removed",
        ),
        Is::PermissionDenied | Is::ReadOnlyFilesystem => {
            with(StatusCode::FORBIDDEN, "policy_denied", "this may not be touched", "choose another name")
        }
        Is::StorageFull | Is::QuotaExceeded => with(
            StatusCode::INSUFFICIENT_STORAGE,
            "quota_exceeded",
            "the workspace is full",
            "remove something, or make a sandbox with more `disk`",
        ),
        Is::FileTooLarge => with(
            StatusCode::PAYLOAD_TOO_LARGE,
            "quota_exceeded",
            "the file is larger than the workspace may be",
            "make a sandbox with more `disk`",
        ),
        _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the workspace cannot be used", None),
    }
}

/// A version of a file: another one for every change that the file system tells apart.
fn tag(facts: &Facts) -> String {
    format!("\"{:x}-{:x}-{:x}\"", facts.inode, facts.modified_ns, facts.size_bytes)
}

/// A name in a workspace.
#[derive(Debug, Serialize, ToSchema)]
struct FileFacts {
    /// Relative to the folder that was asked for.
    name: String,
    /// Where `name` does not show it exactly: the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    /// `file`, `folder`, `link` or `other`.
    kind: &'static str,
    size_bytes: u64,
    /// As `chmod` takes it.
    mode: String,
    #[schema(value_type = String)]
    modified_at: Timestamp,
}

impl FileFacts {
    fn new(name: OsString, facts: &Facts) -> FileFacts {
        let (name, name_base64) = name_or_base64(name);
        FileFacts {
            name,
            name_base64,
            kind: match facts.kind {
                Kind::File => "file",
                Kind::Folder => "folder",
                Kind::Link => "link",
                Kind::Other => "other",
            },
            size_bytes: facts.size_bytes,
            mode: format!("{:04o}", facts.mode),
            modified_at: Timestamp(facts.modified_ns / 1_000_000),
        }
    }
}

/// What lies in a folder, by name.
#[derive(Debug, Serialize, ToSchema)]
struct FolderListing {
    files: Vec<FileFacts>,
    /// There are more than are listed here.
    truncated: bool,
}

impl From<Listed> for FolderListing {
    fn from(listed: Listed) -> FolderListing {
        let files = listed.entries.into_iter();
        let files = files.map(|(path, facts)| FileFacts::new(path.into_os_string(), &facts)).collect();
        FolderListing { files, truncated: listed.more }
    }
}
