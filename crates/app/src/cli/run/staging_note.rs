//! The note that a workspace is staged by default, printed once.

use crate::cli::message::{self, Message};
use std::{
    fs::OpenOptions,
    io::ErrorKind,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
};

/// An empty file in the state folder: the note was printed.
const EXPLAINED_MARKER: &str = "staging-explained";

/// Prints when changes reach the folder, once for each state folder.
pub(super) fn explain_once(state: &Path, folder: &Path) {
    let mut marker = OpenOptions::new();
    marker.write(true).create_new(true).mode(0o600);
    let marked = marker.open(state.join(EXPLAINED_MARKER));
    if marked.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
        return;
    }
    let folder = String::from_utf8_lossy(folder.as_os_str().as_bytes());
    message::print(&[Message::Note(format!(
        "changes reach `{folder}` when the command ends; `{folder}:live` shares at once"
    ))]);
}
