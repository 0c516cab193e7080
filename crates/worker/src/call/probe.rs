//! Sandboxes without a call: one that checks the setup and compiles the runner, and isolated ones
//! in which a tool's code describes itself.

use super::{
    Inner, paths,
    profile::ToolProfile,
    run::{internal, read_output, sandbox_unavailable, stderr_summary},
    sandbox::{self, CallSandbox, SandboxError, SandboxKind},
};
use crate::{
    tools::{EntryPoint, ToolCode},
    wire::code::{self, CallRefusal},
};
use spec::{Status, StdStream};
use std::{
    ffi::OsString,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Maximum output of a program that prints a schema.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Timeout of compiling.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_COMPILED_BYTES: u64 = 4 << 20;
/// Works with every supported Python version.
const COMPILE_SCRIPT: &str = "import sys, py_compile; py_compile.compile(sys.argv[1], cfile=sys.argv[2], dfile='runner.py', \
                       doraise=True)";

/// Compiles the runner in the background of the first call, unless it is compiled.
pub(super) fn prepare_in_background(inner: &Arc<Inner>) {
    let factory = &inner.factory;
    if factory.compiled.get().is_none() && !factory.is_compiling.swap(true, Ordering::Relaxed) {
        let inner = inner.clone();
        // The calls report errors themselves.
        factory.spawn_background(async move {
            _ = compile(&inner, probe_sandbox(&ToolCode::default())).await
        });
    }
}

/// Creates a sandbox of this profile with its network: reports problems and barriers, and compiles
/// the runner.
pub(super) async fn prepare(
    inner: &Inner,
    profile: ToolProfile,
) -> Result<Vec<String>, CallRefusal> {
    let what = EntryPoint::Function {
        module: String::new(),
        function: String::new(),
    };
    let sandbox = compile(
        inner,
        SandboxKind {
            profile,
            what: Some(what),
            ..probe_sandbox(&ToolCode::default())
        },
    )
    .await?;
    let barriers = sandbox
        .state()
        .map(|state| state.barriers)
        .unwrap_or_default();
    let barriers = barriers.iter().map(ToString::to_string);
    Ok(barriers
        .chain(inner.startup_notes(&sandbox, profile))
        .collect())
}

/// Compiles the runner in such a sandbox.
async fn compile(inner: &Inner, kind: SandboxKind) -> Result<CallSandbox, CallRefusal> {
    let open = inner.factory.open(&kind).await;
    let sandbox =
        open.map_err(|why| CallRefusal::new(code::MeshErrorCode::SandboxFailed, why.to_string()))?;
    inner.factory.is_compiling.store(true, Ordering::Relaxed);
    if inner.factory.compiled.get().is_none() {
        let compiled = paths::in_sandbox(paths::RUNNER_COMPILED);
        let words = [COMPILE_SCRIPT, paths::RUNNER, &compiled].map(OsString::from);
        let command = [inner.settings.python.as_os_str().to_owned(), "-c".into()]
            .into_iter()
            .chain(words);
        let command = sandbox::with_clean_environment(&kind, command.collect());
        run_and_read(inner, &sandbox, command, COMPILE_TIMEOUT).await?;
        let workspace = sandbox
            .workspace()
            .map_err(|why| internal(why.to_string()))?;
        let read = workspace.read(
            workspace.folder(),
            paths::RUNNER_COMPILED,
            MAX_COMPILED_BYTES,
        );
        // Otherwise the runner is used as source.
        if let Ok(bytes) = read {
            _ = inner.factory.compiled.set(bytes.into());
        }
    }
    inner.warm.probe_freeze(&sandbox).await;
    Ok(sandbox)
}

/// The kind of sandbox in which a tool's code describes itself.
fn probe_sandbox(code: &ToolCode) -> SandboxKind {
    SandboxKind {
        code: code.clone(),
        profile: ToolProfile::Standard,
        limits: Default::default(),
        what: None,
    }
}

pub(super) async fn probe(
    inner: &Inner,
    code: &ToolCode,
    command: Vec<OsString>,
    files: &[(&str, &[u8])],
    time: Duration,
) -> Result<Vec<u8>, CallRefusal> {
    let kind = probe_sandbox(code);
    let work = async {
        let sandbox = inner
            .factory
            .open(&kind)
            .await
            .map_err(|_| sandbox_unavailable())?;
        write_files(&sandbox, files).map_err(|why| internal(why.to_string()))?;
        run_and_read(
            inner,
            &sandbox,
            sandbox::with_clean_environment(&kind, command),
            time,
        )
        .await
    };
    let late = || {
        CallRefusal::new(
            code::MeshErrorCode::InitError,
            format!("there was no answer within {} s", time.as_secs()),
        )
    };
    tokio::time::timeout(time, work)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// Writes the runner's source and additional files.
fn write_files(sandbox: &CallSandbox, files: &[(&str, &[u8])]) -> Result<(), SandboxError> {
    let workspace = sandbox.workspace()?;
    let own = workspace.enter_folder(workspace.folder(), paths::RUNNER_FOLDER)?;
    match workspace.make_file(
        own.as_fd(),
        paths::RUNNER_SOURCE,
        0o444,
        sandbox::RUNNER_SCRIPT,
    ) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    for (name, bytes) in files {
        workspace.make_file(workspace.folder(), name, 0o600, bytes)?;
    }
    Ok(())
}

/// Runs a program and returns its complete output if it succeeded.
async fn run_and_read(
    inner: &Inner,
    sandbox: &CallSandbox,
    command: Vec<OsString>,
    time: Duration,
) -> Result<Vec<u8>, CallRefusal> {
    let bad = |message: String| CallRefusal::new(code::MeshErrorCode::InitError, message);
    let exec = sandbox
        .start(command, false)
        .await
        .map_err(|_| sandbox_unavailable())?;
    let Ok(result) = tokio::time::timeout(time, exec.wait()).await else {
        return Err(bad(format!(
            "there was no answer within {} s",
            time.as_secs()
        )));
    };
    if result.status != Status::Succeeded {
        let stderr = stderr_summary(
            &read_output(&exec, StdStream::Stderr),
            &inner.settings.hidden,
        );
        let why = result.error.map(|error| error.message);
        let why = why.unwrap_or_else(|| format!("it ended with status {}", result.exit_status));
        return Err(bad(if stderr.is_empty() { why } else { stderr }));
    }
    let total = exec.output().lengths()[0];
    if total > MAX_OUTPUT_BYTES {
        return Err(bad(format!(
            "the answer has {total} bytes, and may have {MAX_OUTPUT_BYTES}"
        )));
    }
    let mut answer = Vec::new();
    while (answer.len() as u64) < total {
        let piece = exec
            .output()
            .read(StdStream::Stdout, answer.len() as u64, 1 << 20);
        if piece.from != answer.len() as u64 || piece.bytes.is_empty() {
            return Err(bad("some of the answer is lost".to_owned()));
        }
        answer.extend(piece.bytes);
    }
    Ok(answer)
}
