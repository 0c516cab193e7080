//! Workspaces of a server: listed, compared, taken over, dropped. Its answers are the objects that `--json` prints.

use super::{
    Action, Taking, Viewer, clean, commits, counts, discarded, interactive, line, lines,
    must_be_named, name, no_workspace, notes, nothing_chosen, patch, say_newest, say_unknown,
};
use crate::{
    cli::{
        message::{self, Failure, Line, printable},
        print, print_json,
    },
    config::Surroundings,
    remote::{Ask, Client, query, segment, segments},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use engine::workspaces::{ChangeKind, FileKind, LayerChange, Patch, UnappliedChange};
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
    kind: FileKind,
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
    #[serde(default)]
    commits: Vec<String>,
    patch: Option<Written>,
    /// Servers before this field tell all.
    #[serde(default)]
    truncated: bool,
}

#[derive(Deserialize)]
struct Written {
    text: Option<String>,
    base64: Option<String>,
    omitted: Vec<Remaining>,
    omitted_total: usize,
    held_back_total: usize,
}

#[derive(Deserialize)]
struct TakenOver {
    applied: Vec<Changed>,
    left_out: Vec<Remaining>,
    #[serde(default)]
    truncated: bool,
}

/// Carries out the command at a server.
pub(super) async fn act(
    client: &Client,
    action: Action,
    json: bool,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    match action {
        Action::List => list(client, json).await,
        Action::Diff {
            id,
            stat,
            patch,
            only,
        } => {
            let id = chosen(client, id).await?;
            let told = difference(client, &id, patch, &patch::paths(&only)).await?;
            match patch {
                true => show_patch(client, &told, json, surroundings),
                false => show(client, &told, stat, json),
            }
        }
        Action::Show { id, file } => {
            let (file, id) = (clean(file)?, chosen(client, id).await?);
            show_file(client, &id, &file).await
        }
        Action::Commit { id, taking } => commit(client, id, taking, json, surroundings).await,
        Action::Held { .. } => Err(Failure::invalid(
            "a server keeps what was held back on its own machine",
            "leave --server away, on the machine of the server",
        )),
        Action::Discard { id, yes } => {
            let asks = id.is_none() && !yes;
            if asks {
                must_be_named()?;
            }
            let id = chosen(client, id).await?;
            let question = format!("drop all changes of `{}`?", printable(&id));
            if asks && !interactive::confirm(&question)? {
                return nothing_chosen();
            }
            client
                .ask(Ask::new(Method::DELETE, path(&id)).patience(LONGEST_LOOK))
                .await?;
            discarded(&id, json)
        }
    }
}

/// The workspace that was named, or the newest of those that the key sees.
async fn chosen(client: &Client, id: Option<String>) -> Result<String, Failure> {
    if let Some(id) = id {
        return Ok(id);
    }
    let told: Value = client.json(Ask::get("/v1/workspaces")).await?;
    let All { workspaces } = read(client, &told)?;
    let newest = workspaces.into_iter().next_back();
    let newest = newest.ok_or_else(no_workspace)?;
    say_newest(&newest.id, Path::new(&newest.folder));
    Ok(newest.id)
}

async fn commit(
    client: &Client,
    id: Option<String>,
    taking: Taking,
    json: bool,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    let id = chosen(client, id).await?;
    let mut only = patch::paths(&taking.only);
    if taking.interactive {
        let told = difference(client, &id, false, &only).await?;
        let Compared { changes, .. } = read(client, &told)?;
        let changes = all(client, changes, change)?;
        let patch_of = async |path: &Path| {
            let told = difference(client, &id, true, &[path.to_owned()]).await?;
            Ok(written(client, read(client, &told)?)?.text)
        };
        only = interactive::choose(&changes, taking.force, surroundings, patch_of).await?;
        if only.is_empty() {
            return nothing_chosen();
        }
    }
    let only: Vec<_> = only
        .iter()
        .map(|path| text(path))
        .collect::<Result<_, _>>()?;
    let mut how = json!({ "force": taking.force, "partial": taking.partial, "keep": taking.keep });
    // Older servers know neither.
    if !only.is_empty() {
        how["only"] = json!(only);
        how["exactly"] = json!(taking.interactive);
    }
    let ask = Ask::new(Method::POST, format!("{}/commit", path(&id)));
    let told: Value = client.json(ask.json(&how).patience(LONGEST_LOOK)).await?;
    committed(client, &told, json)
}

/// A name as a server can be told it.
fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        let words = format!(
            "the name `{}` is no text, which a server must be told",
            name(path)
        );
        Failure::invalid(words, "name the folder that it is in")
    })
}

async fn difference(
    client: &Client,
    id: &str,
    patch: bool,
    only: &[PathBuf],
) -> Result<Value, Failure> {
    let mut pairs = vec![("patch", patch.then(|| "true".to_owned()))];
    for path in only {
        pairs.push(("only", Some(text(path)?.to_owned())));
    }
    let ask = Ask::get(format!("{}/diff{}", path(id), query(&pairs)));
    Ok(client.json(ask.patience(LONGEST_LOOK)).await?)
}

async fn show_file(client: &Client, id: &str, file: &Path) -> Result<u8, Failure> {
    let file = segments(file.as_os_str().as_encoded_bytes());
    let ask = Ask::get(format!("{}/files/{file}", path(id))).patience(LONGEST_LOOK);
    let mut answer = client.ask(ask).await?;
    let mut viewer = Viewer::new();
    while let Some(piece) = answer.piece().await? {
        if !viewer.write(&piece)? {
            break;
        }
    }
    viewer.finish()?;
    Ok(0)
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

fn show(client: &Client, told: &Value, stat: bool, json: bool) -> Result<u8, Failure> {
    let Compared {
        changes,
        not_looked_into,
        compared,
        commits,
        truncated,
        ..
    } = read(client, told)?;
    if json {
        print_json(told)?;
        return Ok(0);
    }
    let changes = all(client, changes, change)?;
    match stat {
        true => print(&counts(&changes))?,
        false => print(&lines(&changes, &commits))?,
    }
    say_unknown(&all(client, not_looked_into, left)?, compared);
    say_truncated(truncated);
    Ok(0)
}

fn show_patch(
    client: &Client,
    told: &Value,
    json: bool,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    let compared: Compared = read(client, told)?;
    let made = commits(&compared.commits, "# * ");
    let (is_compared, unknown) = (compared.compared, compared.not_looked_into.len());
    let mut patch = written(client, compared)?;
    if json {
        print_json(told)?;
        return Ok(u8::from(patch.omitted_total > 0));
    }
    patch.text.splice(0..0, made.into_bytes());
    let status = patch::write(&patch, surroundings)?;
    say_unknown(&[], is_compared);
    if unknown > 0 {
        message::say(&[Line::Note(format!(
            "{unknown} folders could not be looked into; without --patch they are named"
        ))]);
    }
    Ok(status)
}

/// The patch that a server told, with what of its changes stands behind `# `.
fn written(client: &Client, told: Compared) -> Result<Patch, Failure> {
    let Some(patch) = told.patch else {
        return Err(client.foreign("it gives no patch").into());
    };
    let text = bytes(patch.text, patch.base64);
    let Some(text) = text else {
        return Err(client.foreign("its patch cannot be read").into());
    };
    let omitted = all(client, patch.omitted, left)?.into_iter();
    let held = all(client, told.changes, change)?.into_iter();
    let held = held.filter_map(|change| Some((change.path, change.left_out.or(change.conflict)?)));
    Ok(Patch {
        text: text.into_encoded_bytes(),
        omitted: omitted.map(|left| (left.path, left.reason)).collect(),
        omitted_total: patch.omitted_total,
        held: held.collect(),
        held_total: patch.held_back_total,
    })
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

fn left(told: Remaining) -> Option<UnappliedChange> {
    let path = PathBuf::from(bytes(told.path, told.path_base64)?);
    Some(UnappliedChange {
        path,
        reason: told.reason,
        conflict: told.conflict,
        why: None,
    })
}

fn change(told: Changed) -> Option<LayerChange> {
    let what = match told.change.as_str() {
        "added" => ChangeKind::Added,
        "changed" => ChangeKind::Changed,
        "removed" => ChangeKind::Removed,
        "replaced" => ChangeKind::Replaced,
        "mode" => ChangeKind::Mode,
        _ => return None,
    };
    Some(LayerChange {
        path: bytes(told.path, told.path_base64)?.into(),
        what,
        kind: told.kind,
        // Neither is shown.
        mode: 0,
        size_bytes: 0,
        target: bytes(told.target, told.target_base64),
        left_out: told.left_out,
        conflict: told.conflict,
        why: None,
    })
}
