//! The body of `POST /v1/runs`: every option under its field name.

use super::{super::message::Failure, symlinks};
use crate::config::ProcessEnv;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use spec::{Budget, Contract, LimitSet, RunRequest};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The maximum size of files and standard input inside a request.
pub(super) const MAX_INLINE_BYTES: u64 = 6 << 20;

/// Standard input and input files of a run.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// The program's standard input.
    pub(super) stdin: Option<Vec<u8>>,
    /// Small inputs, by name.
    pub(super) inline: Vec<(String, Vec<u8>)>,
    /// Inputs that are artifacts of the server, by name.
    pub(super) kept: Vec<(String, String)>,
    /// Inputs too large for a request: name and file.
    pub(super) large: Vec<(String, PathBuf)>,
}

impl Attachments {
    /// Reads standard input and small files; large files are listed for an upload.
    pub(super) fn read(
        request: &RunRequest,
        env: &ProcessEnv,
        follow_links: bool,
    ) -> Result<Attachments, Failure> {
        let mut attachments = Attachments::default();
        let mut room = MAX_INLINE_BYTES;
        for text in &request.inputs {
            let text = utf8(text, "--input")?;
            let hint =
                "write --input NAME=FILE, or NAME=artifact:NAME[@VERSION] for a kept artifact";
            let (name, source) = text
                .split_once('=')
                .filter(|(name, source)| !name.is_empty() && !source.is_empty())
                .ok_or_else(|| {
                    Failure::invalid(format!("`{}` is not an input", text.escape_debug()), hint)
                })?;
            if !follow_links && !source.starts_with("artifact:") {
                symlinks::refuse_input(&env.current_folder, Path::new(source))?;
            }
            match source.strip_prefix("artifact:") {
                Some(kept) => attachments.kept.push((name.to_owned(), kept.to_owned())),
                None => match read(Path::new(source), room)? {
                    Some(bytes) => {
                        room -= bytes.len() as u64;
                        attachments.inline.push((name.to_owned(), bytes));
                    }
                    None => attachments.large.push((name.to_owned(), source.into())),
                },
            }
        }
        if request.stdin {
            attachments.stdin = Some(stdin(room)?);
        }
        Ok(attachments)
    }
}

/// Reads a file; `None` if it is too large for a request.
fn read(path: &Path, room: u64) -> Result<Option<Vec<u8>>, Failure> {
    let failed = |error: io::Error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        Failure::invalid(message, "--input takes a file of this machine")
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(room + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    Ok((bytes.len() as u64 <= room).then_some(bytes))
}

fn stdin(room: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(room + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::internal(format!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 <= room {
        Ok(bytes)
    } else {
        Err(Failure::invalid(
            format!("a server accepts at most {MAX_INLINE_BYTES} bytes of standard input"),
            "put it into a file, and give the file with --input NAME=FILE",
        ))
    }
}

/// The body of the request.
pub(super) fn body(request: RunRequest, attachments: &Attachments) -> Result<Value, Failure> {
    // Destructured completely, so that a new option cannot be forgotten here.
    let RunRequest {
        command,
        profile,
        backend,
        image,
        entrypoint,
        writable_root,
        workspace,
        read_only_workspace,
        copy_on_write,
        staged,
        mounts,
        allowed_paths: _,
        volumes,
        env,
        caller_env: _,
        limits,
        network,
        internal_network,
        doors: _,
        llm,
        inference,
        allow_hosts,
        learn,
        allow_models,
        budget:
            Budget {
                money,
                tokens,
                call: _,
                requests: _,
                concurrent: _,
            },
        secrets,
        inputs: _,
        inline_inputs: _,
        artifact_inputs: _,
        artifacts,
        allow_protected,
        hide,
        require,
        user,
        stdin: _,
        tty: _,
        contract,
        run_id,
        task_id,
        job_id,
    } = request;
    let path =
        |path: Option<PathBuf>, option| path.map(|path| utf8(path.as_os_str(), option)).transpose();
    let paths = |list: Vec<PathBuf>, option| {
        list.iter()
            .map(|path| utf8(path.as_os_str(), option))
            .collect::<Result<Vec<_>, _>>()
    };
    let mut fields = json!({
        "command": utf8_all(&command, "the command")?,
        "profile": profile, "backend": backend, "image": path(image, "--image")?,
        "entrypoint": entrypoint.map(|text| utf8(&text, "--entrypoint")).transpose()?,
        "writable_root": writable_root, "workspace": path(workspace, "--workspace")?, "copy_on_write": copy_on_write, "staged": staged,
        "read_only_workspace": read_only_workspace,
        "mounts": utf8_all(&mounts, "--mount")?, "volumes": utf8_all(&volumes, "--volume")?,
        "env": pairs(env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())), "--env")?,
        "network": network.map(spec::Network::name), "internal_network": internal_network,
        "llm": llm.map(|provider| provider.map_or(Value::Bool(true), Value::String)),
        "inference": inference, "allow_hosts": allow_hosts, "learn": learn, "allow_models": allow_models,
        "budget_usd": money.map(|money| money.to_string()), "budget_tokens": tokens,
        "secrets": secret_pairs(&secrets)?, "artifacts": paths(artifacts, "--artifact")?,
        "allow_protected": paths(allow_protected, "--allow-protected")?, "hide": hide,
        "require": require.iter().map(|barrier| barrier.name()).collect::<Vec<_>>(),
        "user": user.map(|user| format!("{}:{}", user.uid, user.gid)),
        "contract": (contract != Contract::Raw).then(|| contract.to_string()),
        "run_id": run_id, "task_id": task_id, "job_id": job_id,
        "inputs": inputs(attachments),
        "stdin_base64": attachments.stdin.as_ref().map(|bytes| STANDARD.encode(bytes)),
    });
    if let Value::Object(fields) = &mut fields {
        fields.extend(limit_fields(limits));
        // Unset fields are omitted: an older server would refuse unknown ones.
        fields.retain(|_, value| !is_unset(value));
    }
    Ok(fields)
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

fn limit_fields(limits: LimitSet) -> Map<String, Value> {
    let LimitSet {
        memory,
        cpu_time,
        cpus,
        wall_time,
        pids,
        file_size,
        open_files,
        disk,
        output,
        ..
    } = limits;
    let text = |value: Option<String>| value.map_or(Value::Null, Value::String);
    let size = |value: Option<spec::Size>| text(value.map(|size| size.to_string()));
    let time = |value: Option<spec::Time>| text(value.map(|time| time.to_string()));
    [
        ("memory", size(memory)),
        ("cpu_time", time(cpu_time)),
        ("cpus", text(cpus.map(|cpus| cpus.to_string()))),
        ("timeout", time(wall_time)),
        ("pids", json!(pids)),
        ("file_size", size(file_size)),
        ("open_files", json!(open_files)),
        ("disk", size(disk)),
        ("output", size(output)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect()
}

fn inputs(attachments: &Attachments) -> Vec<Value> {
    let inline = attachments
        .inline
        .iter()
        .map(|(name, bytes)| json!({ "name": name, "base64": STANDARD.encode(bytes) }));
    let kept = attachments
        .kept
        .iter()
        .map(|(name, artifact)| json!({ "name": name, "artifact": artifact }));
    inline.chain(kept).collect()
}

fn secret_pairs(secrets: &[OsString]) -> Result<Map<String, Value>, Failure> {
    let pairs: Vec<_> = utf8_all(secrets, "--secret")?;
    pairs
        .into_iter()
        .map(|text| match text.split_once('=') {
            Some((name, variable)) => Ok((name.to_owned(), variable.into())),
            None => {
                let message = format!(
                    "`{}` is not a secret with its variable",
                    text.escape_debug()
                );
                Err(Failure::invalid(message, "write --secret NAME=VARIABLE"))
            }
        })
        .collect()
}

fn pairs<'a>(
    all: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
    option: &str,
) -> Result<Map<String, Value>, Failure> {
    all.map(|(name, value)| Ok((utf8(name, option)?, utf8(value, option)?.into())))
        .collect()
}

pub(in crate::cli) fn utf8_all(all: &[OsString], option: &str) -> Result<Vec<String>, Failure> {
    all.iter().map(|text| utf8(text, option)).collect()
}

/// Text for JSON, which has no other bytes.
pub(super) fn utf8(text: &OsStr, option: &str) -> Result<String, Failure> {
    String::from_utf8(text.as_bytes().to_vec()).map_err(|_| {
        let message = format!(
            "`{}` in {option} is not UTF-8, and cannot be sent to a server",
            text.display()
        );
        Failure::invalid(
            message,
            "put the bytes into a file, and give the file with --input NAME=FILE",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_said_is_not_sent() {
        let request = RunRequest {
            command: vec!["true".into()],
            ..RunRequest::default()
        };
        assert_eq!(
            body(request, &Attachments::default()).unwrap(),
            json!({ "command": ["true"] })
        );
    }

    #[test]
    fn what_is_no_text_is_refused_by_name() {
        let odd = OsStr::from_bytes(b"\xff").to_owned();
        let request = RunRequest {
            command: vec!["echo".into(), odd],
            ..RunRequest::default()
        };
        let refused = body(request, &Attachments::default()).unwrap_err();
        assert_eq!(
            refused.message,
            "`\u{fffd}` in the command is not UTF-8, and cannot be sent to a server"
        );
    }

    #[test]
    fn goods_go_along_as_they_are() {
        let attachments = Attachments {
            stdin: Some(b"\xff".to_vec()),
            inline: vec![("a".into(), b"x".to_vec())],
            kept: vec![("b".into(), "n@2".into())],
            large: Vec::new(),
        };
        let fields = body(RunRequest::default(), &attachments).unwrap();
        let wanted = json!({
            "stdin_base64": "/w==",
            "inputs": [{ "name": "a", "base64": "eA==" }, { "name": "b", "artifact": "n@2" }],
        });
        assert_eq!(fields, wanted);
    }
}
