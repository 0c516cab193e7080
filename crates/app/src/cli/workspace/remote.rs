//! Workspaces at a server: listed, compared, committed, discarded. The responses are the objects
//! that `--json` prints.

use super::{
    Action, CommitArgs, FileViewer, commits, counts, discarded, interactive, line, lines, name,
    no_workspace, note_newest, note_unknown, notes, nothing_done, patch, require_id_or_terminal,
    workspace_path,
};
use crate::{
    cli::{
        message::{self, Failure, Message, printable},
        print, print_json,
    },
    config::ProcessEnv,
    remote::{Client, ClientRequest, query, segment, segments},
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
const WORKSPACE_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct WorkspaceEntry {
    id: String,
    folder: String,
    made_at: String,
    in_use: bool,
}

#[derive(Deserialize)]
struct WorkspaceList {
    workspaces: Vec<WorkspaceEntry>,
}

/// A change. Paths that are not UTF-8 are base64.
#[derive(Deserialize)]
struct WireChange {
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
struct WireLeftOut {
    path: Option<String>,
    path_base64: Option<String>,
    reason: String,
    conflict: bool,
}

#[derive(Deserialize)]
struct DiffResponse {
    changes: Vec<WireChange>,
    not_looked_into: Vec<WireLeftOut>,
    compared: bool,
    #[serde(default)]
    commits: Vec<String>,
    patch: Option<WirePatch>,
    /// Absent in responses of older servers, which never truncate.
    #[serde(default)]
    truncated: bool,
}

#[derive(Deserialize)]
struct WirePatch {
    text: Option<String>,
    base64: Option<String>,
    omitted: Vec<WireLeftOut>,
    omitted_total: usize,
    held_back_total: usize,
}

#[derive(Deserialize)]
struct CommitResponse {
    applied: Vec<WireChange>,
    left_out: Vec<WireLeftOut>,
    #[serde(default)]
    truncated: bool,
    /// What there is to say about git commits.
    #[serde(default)]
    notes: Vec<String>,
}

/// Carries out the command at a server.
pub(super) async fn execute(
    client: &Client,
    action: Action,
    json: bool,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    match action {
        Action::List => list(client, json).await,
        Action::Diff {
            id,
            stat,
            patch,
            only,
        } => {
            let id = workspace_id(client, id).await?;
            let answer = fetch_diff(client, &id, patch, &patch::clean_paths(&only)).await?;
            if patch {
                show_patch(client, &answer, json, env)
            } else {
                show(client, &answer, stat, json)
            }
        }
        Action::Show { id, file } => {
            let file = workspace_path(file)?;
            let id = workspace_id(client, id).await?;
            show_file(client, &id, &file).await
        }
        Action::Commit { id, args } => commit(client, id, args, json, env).await,
        Action::Held { .. } => Err(Failure::invalid(
            "a server keeps held-back files on its own machine",
            "run this on the server's machine without --server",
        )),
        Action::Discard { id, yes } => {
            let asks = id.is_none() && !yes;
            if asks {
                require_id_or_terminal()?;
            }
            let id = workspace_id(client, id).await?;
            let question = format!("discard all changes of `{}`?", printable(&id));
            if asks && !interactive::confirm(&question)? {
                return nothing_done();
            }
            client
                .send(
                    ClientRequest::new(Method::DELETE, path(&id))
                        .response_timeout(WORKSPACE_TIMEOUT),
                )
                .await?;
            discarded(&id, json)
        }
    }
}

/// The workspace with this id, or the newest that the key may see.
async fn workspace_id(client: &Client, id: Option<String>) -> Result<String, Failure> {
    if let Some(id) = id {
        return Ok(id);
    }
    let answer: Value = client.json(ClientRequest::get("/v1/workspaces")).await?;
    let WorkspaceList { workspaces } = read(client, &answer)?;
    let newest = workspaces.into_iter().next_back();
    let newest = newest.ok_or_else(no_workspace)?;
    note_newest(&newest.id, Path::new(&newest.folder));
    Ok(newest.id)
}

async fn commit(
    client: &Client,
    id: Option<String>,
    args: CommitArgs,
    json: bool,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let id = workspace_id(client, id).await?;
    let mut only = patch::clean_paths(&args.only);
    if args.interactive {
        let answer = fetch_diff(client, &id, false, &only).await?;
        let DiffResponse { changes, .. } = read(client, &answer)?;
        let changes = all(client, changes, change)?;
        let patch_of = async |path: &Path| {
            let answer = fetch_diff(client, &id, true, &[path.to_owned()]).await?;
            Ok(parse_patch(client, read(client, &answer)?)?.text)
        };
        only = interactive::choose(&changes, args.force, env, patch_of).await?;
        if only.is_empty() {
            return nothing_done();
        }
    }
    let only: Vec<_> = only
        .iter()
        .map(|path| text(path))
        .collect::<Result<_, _>>()?;
    let mut how = json!({ "force": args.force, "partial": args.partial, "keep": args.keep });
    // Older servers know neither field.
    if !only.is_empty() {
        how["only"] = json!(only);
        how["exactly"] = json!(args.interactive);
    }
    let ask = ClientRequest::new(Method::POST, format!("{}/commit", path(&id)));
    let answer: Value = client
        .json(ask.json(&how).response_timeout(WORKSPACE_TIMEOUT))
        .await?;
    print_commit(client, &answer, json)
}

/// A path as text, because JSON has no other bytes.
fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        let words = format!(
            "the name `{}` is not UTF-8, and cannot be sent to a server",
            name(path)
        );
        Failure::invalid(words, "name the folder that it is in")
    })
}

async fn fetch_diff(
    client: &Client,
    id: &str,
    patch: bool,
    only: &[PathBuf],
) -> Result<Value, Failure> {
    let mut pairs = vec![("patch", patch.then(|| "true".to_owned()))];
    for path in only {
        pairs.push(("only", Some(text(path)?.to_owned())));
    }
    let ask = ClientRequest::get(format!("{}/diff{}", path(id), query(&pairs)));
    Ok(client.json(ask.response_timeout(WORKSPACE_TIMEOUT)).await?)
}

async fn show_file(client: &Client, id: &str, file: &Path) -> Result<u8, Failure> {
    let file = segments(file.as_os_str().as_encoded_bytes());
    let ask = ClientRequest::get(format!("{}/files/{file}", path(id)))
        .response_timeout(WORKSPACE_TIMEOUT);
    let mut answer = client.send(ask).await?;
    let mut viewer = FileViewer::new();
    while let Some(piece) = answer.chunk().await? {
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

fn read<T: DeserializeOwned>(client: &Client, answer: &Value) -> Result<T, Failure> {
    T::deserialize(answer).map_err(|error| client.not_airlock(error.to_string()).into())
}

async fn list(client: &Client, json: bool) -> Result<u8, Failure> {
    let answer: Value = client.json(ClientRequest::get("/v1/workspaces")).await?;
    let WorkspaceList { workspaces } = read(client, &answer)?;
    let line = |one: &WorkspaceEntry| {
        let used = if one.in_use { "  in use" } else { "" };
        let folder = name(Path::new(&one.folder));
        format!(
            "{}  {}  {folder}{used}\n",
            printable(&one.id),
            printable(&one.made_at)
        )
    };
    if json {
        print_json(&answer)?
    } else {
        print(&workspaces.iter().map(line).collect::<String>())?
    }
    Ok(0)
}

fn show(client: &Client, answer: &Value, stat: bool, json: bool) -> Result<u8, Failure> {
    let DiffResponse {
        changes,
        not_looked_into,
        compared,
        commits,
        truncated,
        ..
    } = read(client, answer)?;
    if json {
        print_json(answer)?;
        return Ok(0);
    }
    let changes = all(client, changes, change)?;
    if stat {
        print(&counts(&changes))?
    } else {
        print(&lines(&changes, &commits))?
    }
    note_unknown(&all(client, not_looked_into, left)?, compared);
    note_truncated(truncated);
    Ok(0)
}

fn show_patch(
    client: &Client,
    answer: &Value,
    json: bool,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let compared: DiffResponse = read(client, answer)?;
    let made = commits(&compared.commits, "# * ");
    let is_compared = compared.compared;
    let unknown = compared.not_looked_into.len();
    let mut patch = parse_patch(client, compared)?;
    if json {
        print_json(answer)?;
        return Ok(u8::from(patch.omitted_total > 0));
    }
    patch.text.splice(0..0, made.into_bytes());
    let status = patch::write(&patch, env)?;
    note_unknown(&[], is_compared);
    if unknown > 0 {
        message::print(&[Message::Note(format!(
            "{unknown} folders could not be read; without --patch they are listed"
        ))]);
    }
    Ok(status)
}

/// The patch of a response, with the changes that a commit would omit.
fn parse_patch(client: &Client, answer: DiffResponse) -> Result<Patch, Failure> {
    let Some(patch) = answer.patch else {
        return Err(client.not_airlock("it gives no patch").into());
    };
    let text = bytes(patch.text, patch.base64);
    let Some(text) = text else {
        return Err(client.not_airlock("its patch cannot be read").into());
    };
    let omitted = all(client, patch.omitted, left)?.into_iter();
    let held = all(client, answer.changes, change)?.into_iter();
    let held = held.filter_map(|change| Some((change.path, change.left_out.or(change.conflict)?)));
    Ok(Patch {
        text: text.into_encoded_bytes(),
        omitted: omitted.map(|left| (left.path, left.reason)).collect(),
        omitted_total: patch.omitted_total,
        held: held.collect(),
        held_total: patch.held_back_total,
    })
}

fn print_commit(client: &Client, answer: &Value, json: bool) -> Result<u8, Failure> {
    let CommitResponse {
        applied,
        left_out,
        truncated,
        notes: about_commits,
    } = read(client, answer)?;
    let applied = all(client, applied, change)?;
    let remaining = all(client, left_out, left)?;
    if json {
        print_json(answer)?
    } else {
        print(&applied.iter().map(line).collect::<String>())?;
        message::print(&notes(&remaining));
        note_truncated(truncated);
        let about_commits = about_commits.into_iter().map(Message::Note);
        message::print(&about_commits.collect::<Vec<_>>());
    }
    Ok(u8::from(!remaining.is_empty()))
}

fn note_truncated(truncated: bool) {
    if truncated {
        message::print(&[Message::Note("the server's list is truncated".to_owned())]);
    }
}

fn all<A, B>(client: &Client, answer: Vec<A>, one: fn(A) -> Option<B>) -> Result<Vec<B>, Failure> {
    let read: Option<Vec<B>> = answer.into_iter().map(one).collect();
    read.ok_or_else(|| {
        client
            .not_airlock("it reports a change of an unknown kind")
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

fn left(answer: WireLeftOut) -> Option<UnappliedChange> {
    let path = PathBuf::from(bytes(answer.path, answer.path_base64)?);
    Some(UnappliedChange {
        path,
        reason: answer.reason,
        conflict: answer.conflict,
        why: None,
    })
}

fn change(answer: WireChange) -> Option<LayerChange> {
    let what = match answer.change.as_str() {
        "added" => ChangeKind::Added,
        "changed" => ChangeKind::Changed,
        "removed" => ChangeKind::Removed,
        "replaced" => ChangeKind::Replaced,
        "mode" => ChangeKind::Mode,
        _ => return None,
    };
    Some(LayerChange {
        path: bytes(answer.path, answer.path_base64)?.into(),
        what,
        kind: answer.kind,
        // Mode and size are not shown.
        mode: 0,
        size_bytes: 0,
        target: bytes(answer.target, answer.target_base64),
        left_out: answer.left_out,
        conflict: answer.conflict,
        why: None,
    })
}
