//! Workspaces of a server: listed, compared, taken over, dropped. Its answers are the objects that `--json` prints.

use super::{Action, counts, line, name, notes, say_unknown};
use crate::{
    cli::{
        message::{self, Failure, Line, printable},
        print, print_json,
    },
    remote::{Ask, Client, segment},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use engine::workspaces::{Change, Kind, Left, What};
use http::Method;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a server may take to compare or copy a folder.
const LONGEST_LOOK: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct Listed {
    id: String,
    folder: String,
    made_at: String,
    in_use: bool,
}

#[derive(Deserialize)]
struct All {
    workspaces: Vec<Listed>,
}

/// A name is text or, where it is none, base64.
#[derive(Deserialize)]
struct Changed {
    path: Option<String>,
    path_base64: Option<String>,
    change: String,
    kind: Kind,
    target: Option<String>,
    target_base64: Option<String>,
    left_out: Option<String>,
    conflict: Option<String>,
}

#[derive(Deserialize)]
struct Remaining {
    path: Option<String>,
    path_base64: Option<String>,
    reason: String,
    conflict: bool,
}

#[derive(Deserialize)]
struct Compared {
    changes: Vec<Changed>,
    not_looked_into: Vec<Remaining>,
    compared: bool,
    /// Servers before this field tell all.
    #[serde(default)]
    truncated: bool,
}

#[derive(Deserialize)]
struct TakenOver {
    applied: Vec<Changed>,
    left_out: Vec<Remaining>,
    #[serde(default)]
    truncated: bool,
}

/// Carries out the command at a server.
pub(super) async fn act(client: &Client, action: Action, json: bool) -> Result<u8, Failure> {
    match action {
        Action::List => list(client, json).await,
        Action::Diff { id, stat } => diff(client, &id, stat, json).await,
        Action::Commit {
            id,
            force,
            partial,
            keep,
        } => {
            let ask = Ask::new(Method::POST, format!("{}/commit", path(&id)));
            let how = json!({ "force": force, "partial": partial, "keep": keep });
            let told: Value = client.json(ask.json(&how).patience(LONGEST_LOOK)).await?;
            committed(client, &told, json)
        }
        Action::Held { .. } => Err(Failure::invalid(
            "a server keeps what was held back on its own machine",
            "leave --server away, on the machine of the server",
        )),
        Action::Discard { id } => {
            client
                .ask(Ask::new(Method::DELETE, path(&id)).patience(LONGEST_LOOK))
                .await?;
            match json {
                true => print_json(&json!({ "discarded": id }))?,
                false => print("discarded\n")?,
            }
            Ok(0)
        }
    }
}

fn path(id: &str) -> String {
    format!("/v1/workspaces/{}", segment(id.as_bytes()))
}

fn read<T: DeserializeOwned>(client: &Client, told: &Value) -> Result<T, Failure> {
    T::deserialize(told).map_err(|error| client.foreign(error.to_string()).into())
}

async fn list(client: &Client, json: bool) -> Result<u8, Failure> {
    let told: Value = client.json(Ask::get("/v1/workspaces")).await?;
    let All { workspaces } = read(client, &told)?;
    let line = |one: &Listed| {
        let used = if one.in_use { "  in use" } else { "" };
        let folder = name(Path::new(&one.folder));
        format!(
            "{}  {}  {folder}{used}\n",
            printable(&one.id),
            printable(&one.made_at)
        )
    };
    match json {
        true => print_json(&told)?,
        false => print(&workspaces.iter().map(line).collect::<String>())?,
    }
    Ok(0)
}

async fn diff(client: &Client, id: &str, stat: bool, json: bool) -> Result<u8, Failure> {
    let ask = Ask::get(format!("{}/diff", path(id))).patience(LONGEST_LOOK);
    let told: Value = client.json(ask).await?;
    let Compared {
        changes,
        not_looked_into,
        compared,
        truncated,
    } = read(client, &told)?;
    if json {
        print_json(&told)?;
        return Ok(0);
    }
    let changes = all(client, changes, change)?;
    match stat {
        true => print(&counts(&changes))?,
        false => print(&changes.iter().map(line).collect::<String>())?,
    }
    say_unknown(&all(client, not_looked_into, left)?, compared);
    say_truncated(truncated);
    Ok(0)
}

fn committed(client: &Client, told: &Value, json: bool) -> Result<u8, Failure> {
    let TakenOver {
        applied,
        left_out,
        truncated,
    } = read(client, told)?;
    let (applied, remaining) = (all(client, applied, change)?, all(client, left_out, left)?);
    match json {
        true => print_json(told)?,
        false => {
            print(&applied.iter().map(line).collect::<String>())?;
            message::say(&notes(&remaining));
            say_truncated(truncated);
        }
    }
    Ok(u8::from(!remaining.is_empty()))
}

fn say_truncated(truncated: bool) {
    if truncated {
        message::say(&[Line::Note(
            "there is more than a server tells of at once".to_owned(),
        )]);
    }
}

fn all<A, B>(client: &Client, told: Vec<A>, one: fn(A) -> Option<B>) -> Result<Vec<B>, Failure> {
    let read: Option<Vec<B>> = told.into_iter().map(one).collect();
    read.ok_or_else(|| {
        client
            .foreign("it tells of a change in words that are not known here")
            .into()
    })
}

fn bytes(text: Option<String>, base64: Option<String>) -> Option<OsString> {
    match (text, base64) {
        (Some(text), _) => Some(text.into()),
        (None, Some(base64)) => STANDARD.decode(base64).ok().map(OsString::from_vec),
        (None, None) => None,
    }
}

fn left(told: Remaining) -> Option<Left> {
    let path = PathBuf::from(bytes(told.path, told.path_base64)?);
    Some(Left {
        path,
        reason: told.reason,
        conflict: told.conflict,
    })
}

fn change(told: Changed) -> Option<Change> {
    let what = match told.change.as_str() {
        "added" => What::Added,
        "changed" => What::Changed,
        "removed" => What::Removed,
        "replaced" => What::Replaced,
        "mode" => What::Mode,
        _ => return None,
    };
    Some(Change {
        path: bytes(told.path, told.path_base64)?.into(),
        what,
        kind: told.kind,
        // Neither is shown.
        mode: 0,
        size_bytes: 0,
        target: bytes(told.target, told.target_base64),
        left_out: told.left_out,
        conflict: told.conflict,
    })
}
