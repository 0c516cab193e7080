//! Execution of one call: create the sandbox, stage files, run the tool until it exits or times
//! out, collect the results.

use super::{
    CallOrder, CallReport, Inner, ToolCallOutcome, arguments,
    output::{self, SaveTarget},
    paths, probe,
    result::{self, ToolResult},
    sandbox::{self, CallSandbox, SandboxError, SandboxKind},
    staging::{StageError, StageSource, StagingPlan},
    status::StatusPipe,
};
use crate::{
    artifacts::ArtifactScope,
    ipc::{self, ModelListener},
    log,
    tools::{EntryPoint, Tool},
    warm_pool::WarmInterpreter,
    wire::{
        answer::CreatedArtifact,
        code::{self, CallRefusal},
        request::Invoke,
    },
};
use engine::{Exec, ExecResult, SessionState, UnreadInput};
use serde_json::{Map, Value};
use spec::{LimitName, Status, StdStream};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::{
    net::UnixListener,
    sync::{mpsc, watch},
};

/// Wait for the final output of a tool that was asked to stop.
const LAST_OUTPUT_TIMEOUT: Duration = sandbox::SHORT_STOP_GRACE;
/// Time to save files beyond the call's timeout: less than the requester's grace.
const SAVE_TIMEOUT: Duration = Duration::from_secs(7);
/// Time for an active model request to be abandoned.
const MODEL_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same after a timeout, so that the outcome is not delayed.
const SHORT_MODEL_CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// Characters of standard error that the requester gets.
const MAX_STDERR_CHARS: usize = 500;
/// What a warm interpreter prints before it waits.
pub(crate) const READY: &[u8] = b"ready\n";

/// Why a call is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Time,
    Cancelled,
}

/// A running call.
struct Call<'a> {
    inner: &'a Inner,
    tool: Arc<Tool>,
    invoke: Box<Invoke>,
    kind: SandboxKind,
    began: Instant,
    until: Instant,
    cancelled: watch::Receiver<bool>,
    statuses: mpsc::Sender<String>,
    /// The serialized arguments, once they are written.
    arguments: Option<Vec<u8>>,
    done: CallReport,
}

/// A running tool.
struct RunningTool {
    sandbox: CallSandbox,
    exec: Exec,
    statuses: StatusPipe,
    /// Serves model requests as long as the tool runs.
    models: Option<ModelListener>,
    /// The line that a warm interpreter was sent.
    pending_input: Option<PendingInput>,
}

/// The input line of a warm interpreter, and the pipe in which it stays until it is read.
struct PendingInput {
    bytes: u64,
    input: UnreadInput,
}

impl PendingInput {
    /// Whether none of it has been read.
    fn is_unread(&self) -> bool {
        self.input.bytes() == Some(self.bytes)
    }
}

impl CallReport {
    fn new() -> CallReport {
        CallReport {
            outcome: ToolCallOutcome::Cancelled,
            stdout: Vec::new(),
            stderr: Vec::new(),
            limits_hit: BTreeSet::new(),
            notes: Vec::new(),
            spent: None,
            was_warm: false,
            bytes_in: 0,
            dropped_statuses: 0,
        }
    }
}

pub(super) async fn carry_out(
    inner: &Arc<Inner>,
    order: CallOrder,
    cancelled: watch::Receiver<bool>,
    statuses: mpsc::Sender<String>,
) -> CallReport {
    let CallOrder {
        tool,
        invoke,
        time,
        profile,
    } = order;
    let code = tool.code.clone();
    let limits = tool.limits;
    let what = Some(tool.what.clone());
    let kind = SandboxKind {
        code,
        profile,
        limits,
        what,
    };
    probe::prepare_in_background(inner);
    // Dropped with the call; then another interpreter is prepared.
    let _using = inner.warm.using(&kind);
    let began = Instant::now();
    let until = began + time;
    let mut call = Call {
        inner,
        tool,
        invoke,
        kind,
        began,
        until,
        cancelled,
        statuses,
        arguments: None,
        done: CallReport::new(),
    };
    call.done.outcome = match call.execute().await {
        Ok((result, artifacts)) => ToolCallOutcome::Success {
            result,
            artifacts,
            took: began.elapsed(),
        },
        Err(ToolCallOutcome::Refused(refusal)) => ToolCallOutcome::Refused(inner.hide(refusal)),
        Err(outcome) => outcome,
    };
    if !call.done.was_warm {
        inner.prewarmed.restock(&call.kind);
    }
    call.done.notes.extend(
        inner
            .warm
            .warning()
            .into_iter()
            .chain(inner.prewarmed.warning()),
    );
    call.done
}

type CallSuccess = (Map<String, Value>, Vec<CreatedArtifact>);

impl Call<'_> {
    async fn execute(&mut self) -> Result<CallSuccess, ToolCallOutcome> {
        let limit = self.max_staged_bytes();
        let mut plan =
            StagingPlan::of(&mut self.invoke, limit).map_err(ToolCallOutcome::Refused)?;
        let mut interpreter = self.inner.warm.take(&self.kind);
        let (sandbox, ended) = loop {
            if let Some(ended) = self.run(&mut plan, interpreter.take()).await? {
                break ended;
            }
        };
        if ended.status != Status::Succeeded {
            let state = sandbox.end().await;
            return Err(ToolCallOutcome::Refused(self.failed(state, ended)));
        }
        self.done.limits_hit.extend(ended.limits_hit);
        let cancelled = is_cancelled(self.cancelled.clone());
        // The sandbox is ended in the background.
        tokio::select! {
            biased;
            () = cancelled => Err(ToolCallOutcome::Cancelled),
            kept = self.collect(&sandbox) => kept.map_err(ToolCallOutcome::Refused),
        }
    }

    /// Runs the tool until it exits, in a warm interpreter if there is one. None if that exited
    /// without having read the call.
    async fn run(
        &mut self,
        plan: &mut StagingPlan,
        interpreter: Option<WarmInterpreter>,
    ) -> Result<Option<(CallSandbox, ExecResult)>, ToolCallOutcome> {
        let stopped = stop(self.until, self.cancelled.clone());
        let RunningTool {
            sandbox,
            exec,
            mut statuses,
            models,
            pending_input,
        } = tokio::select! {
            biased;
            // What was created until then is ended in the background.
            why = stopped => return Err(self.stopped(why)),
            started = self.start(plan, interpreter) => started.map_err(ToolCallOutcome::Refused)?,
        };
        let ended = match self.wait_for_exit(&exec, &mut statuses).await {
            Ok(result) => Ok((sandbox, result)),
            Err(why) => {
                // The tool is asked to stop. Its final output is awaited, its exit is not.
                sandbox.stop_in_background(exec.clone());
                tokio::select! {
                    _ = tokio::time::timeout(LAST_OUTPUT_TIMEOUT, exec.wait()) => {}
                    never = statuses.forward(&self.statuses) => match never {},
                }
                Err(why)
            }
        };
        // All statuses come before the outcome.
        self.done.dropped_statuses += statuses.finish(&self.statuses).await;
        self.capture_output(&exec);
        self.close_models(
            models,
            if ended.is_ok() {
                MODEL_CLOSE_TIMEOUT
            } else {
                SHORT_MODEL_CLOSE_TIMEOUT
            },
        )
        .await;
        let (sandbox, ended) = ended.map_err(|why| self.stopped(why))?;
        match pending_input.filter(PendingInput::is_unread) {
            Some(pending_input) => self.retry_if_unread(pending_input, sandbox, ended).await,
            None => Ok(Some((sandbox, ended))),
        }
    }

    /// The interpreter exited with its input unread. Once its sandbox is gone, nobody can read it
    /// any more: if the input is still unread then, the call has certainly not begun and can be
    /// repeated.
    async fn retry_if_unread<T>(
        &mut self,
        pending_input: PendingInput,
        sandbox: CallSandbox,
        ended: ExecResult,
    ) -> Result<Option<T>, ToolCallOutcome> {
        let state = sandbox.end().await;
        let has_asked = self
            .done
            .spent
            .as_ref()
            .is_some_and(|spent| spent.questions > 0);
        if has_asked || !pending_input.is_unread() {
            return Err(ToolCallOutcome::Refused(self.failed(state, ended)));
        }
        self.done.was_warm = false;
        self.done
            .notes
            .push("a parked interpreter ended before it heard of the call".to_owned());
        Ok(None)
    }

    fn stopped(&self, why: StopReason) -> ToolCallOutcome {
        match why {
            StopReason::Time => ToolCallOutcome::TimedOut {
                took: self.began.elapsed(),
            },
            StopReason::Cancelled => ToolCallOutcome::Cancelled,
        }
    }

    /// Starts the tool in a warm interpreter or in a new sandbox.
    async fn start(
        &mut self,
        plan: &mut StagingPlan,
        interpreter: Option<WarmInterpreter>,
    ) -> Result<RunningTool, CallRefusal> {
        if let Some(interpreter) = interpreter
            && let Some(running) = self.start_warm(interpreter, plan).await?
        {
            return Ok(running);
        }
        let sandbox = self
            .inner
            .prewarmed
            .open(&self.kind)
            .await
            .map_err(|why| self.sandbox_unavailable(&why))?;
        self.done
            .notes
            .extend(self.inner.startup_notes(&sandbox, self.kind.profile));
        self.start_cold(sandbox, plan).await
    }

    /// Hands the call to a warm interpreter; none if that cannot be used and has not been told of
    /// the call.
    async fn start_warm(
        &mut self,
        interpreter: WarmInterpreter,
        plan: &mut StagingPlan,
    ) -> Result<Option<RunningTool>, CallRefusal> {
        let WarmInterpreter {
            sandbox,
            exec,
            statuses,
            socket,
            ..
        } = interpreter;
        let line = sandbox::stdin_line(&paths::in_sandbox(paths::ARGUMENTS_FILE));
        let input = exec.unread_input().await;
        let handed = match self.put(&sandbox, plan).await {
            // The sandbox is frozen while its files are staged, and resumes only for the call.
            Ok(()) => sandbox.resume().await.is_ok() && exec.write(&line).await.is_ok(),
            Err(StageError::File(why)) => return Err(why),
            Err(StageError::Sandbox(why)) => {
                self.done.notes.push(format!(
                    "a parked interpreter could not be used: {}",
                    why.message
                ));
                false
            }
        };
        self.done.was_warm = handed;
        exec.close_input();
        let models = if handed {
            self.answer_for_models(&sandbox, socket)
        } else {
            None
        };
        let pending_input = input.map(|input| PendingInput {
            bytes: line.len() as u64,
            input,
        });
        Ok(handed.then_some(RunningTool {
            sandbox,
            exec,
            statuses,
            models,
            pending_input,
        }))
    }

    async fn start_cold(
        &mut self,
        sandbox: CallSandbox,
        plan: &mut StagingPlan,
    ) -> Result<RunningTool, CallRefusal> {
        let has_models = self.inner.models.is_some();
        let (statuses, socket) = sandbox
            .prepare(has_models)
            .map_err(|why| self.sandbox_unavailable(&why))?;
        self.put(&sandbox, plan).await?;
        let file = paths::in_sandbox(paths::ARGUMENTS_FILE);
        let command = match &self.tool.what {
            EntryPoint::Function { .. } | EntryPoint::Class { .. } => {
                sandbox.runner(&self.inner.settings.python, &[&file])
            }
            EntryPoint::Executable { path, .. } => {
                let program = sandbox::executable(&self.kind.code, path);
                sandbox::with_clean_environment(&self.kind, vec![program, file.into()])
            }
        };
        let exec = sandbox
            .start(command, false)
            .await
            .map_err(|why| self.sandbox_unavailable(&why))?;
        let models = self.answer_for_models(&sandbox, socket);
        Ok(RunningTool {
            sandbox,
            exec,
            statuses,
            models,
            pending_input: None,
        })
    }

    /// Stages files and arguments.
    async fn put(
        &mut self,
        sandbox: &CallSandbox,
        plan: &mut StagingPlan,
    ) -> Result<(), StageError> {
        let workspace = sandbox
            .workspace()
            .map_err(|_| StageError::Sandbox(sandbox_unavailable()))?;
        let Inner { store, inputs, .. } = self.inner;
        let from = StageSource {
            store,
            scope: &self.scope(),
            budget: inputs,
            until: self.until,
        };
        let staged = plan.put(workspace, from).await?;
        self.done.bytes_in = staged.bytes;
        let arguments = match self.arguments.take() {
            Some(arguments) => arguments,
            None => {
                let ipc = self.inner.models.as_ref().map(|_| ipc::SOCKET);
                let written = arguments::write(&self.tool, &mut self.invoke, &staged, ipc);
                let bad = |error| internal(format!("the arguments cannot be written: {error}"));
                written.map_err(|error| StageError::File(bad(error)))?
            }
        };
        let made =
            workspace.make_file(workspace.folder(), paths::ARGUMENTS_FILE, 0o600, &arguments);
        self.arguments = Some(arguments);
        made.map_err(|error| {
            StageError::Sandbox(internal(format!(
                "the arguments cannot be put into place: {error}"
            )))
        })
    }

    /// Requests made before wait in the socket's backlog.
    fn answer_for_models(
        &self,
        sandbox: &CallSandbox,
        socket: Option<UnixListener>,
    ) -> Option<ModelListener> {
        Some(self.inner.models.as_ref()?.listen(sandbox.id()?, socket?))
    }

    /// Stops serving model requests and records the usage.
    async fn close_models(&mut self, models: Option<ModelListener>, time: Duration) {
        if let Some(models) = models {
            self.done.spent = tokio::time::timeout(time, models.close()).await.ok();
        }
    }

    /// Half of the work folder's size: the tool needs space, too.
    fn max_staged_bytes(&self) -> u64 {
        self.inner.factory.disk(self.kind.profile) / 2
    }

    fn scope(&self) -> ArtifactScope {
        ArtifactScope {
            app: self.invoke.app_name.clone(),
            user: self.invoke.user_id.clone(),
            session: self.invoke.session_id.clone(),
        }
    }

    /// Waits until the tool exits or is stopped, and forwards its statuses meanwhile.
    async fn wait_for_exit(
        &mut self,
        exec: &Exec,
        statuses: &mut StatusPipe,
    ) -> Result<ExecResult, StopReason> {
        tokio::select! {
            biased;
            result = exec.wait() => Ok(result),
            never = statuses.forward(&self.statuses) => match never {},
            why = stop(self.until, self.cancelled.clone()) => Err(why),
        }
    }

    /// Keeps the output for the log.
    fn capture_output(&mut self, exec: &Exec) {
        let stdout = read_output(exec, StdStream::Stdout);
        let own = if self.done.was_warm {
            READY.len().min(stdout.len())
        } else {
            0
        };
        self.done.stdout = stdout[own..].to_vec();
        self.done.stderr = read_output(exec, StdStream::Stderr);
    }

    /// Collects the result and saves the files, which have their own timeouts.
    async fn collect(&mut self, sandbox: &CallSandbox) -> Result<CallSuccess, CallRefusal> {
        let workspace = sandbox
            .workspace()
            .map_err(|why| self.sandbox_unavailable(&why))?
            .clone();
        let limit = self.inner.settings.largest_result as u64;
        let handle = workspace.clone();
        let read = move || {
            let mut tool_result = result::read(&handle, limit)?;
            let found = output::collect(&handle, &mut tool_result)?;
            Ok::<_, CallRefusal>((tool_result, found))
        };
        let until = self.until + SAVE_TIMEOUT;
        let read = tokio::time::timeout_at(until.into(), tokio::task::spawn_blocking(read)).await;
        let read =
            read.map_err(|_| internal("the tool's result could not be read in time".to_owned()))?;
        let (ToolResult { result, .. }, mut found) =
            read.map_err(|error| internal(error.to_string()))??;
        self.done.notes.append(&mut found.notes);
        if found.is_empty() {
            return Ok((result, Vec::new()));
        }
        let Inner { store, outputs, .. } = self.inner;
        let workspace = &workspace;
        let scope = &self.scope();
        let kept = found
            .save_all(SaveTarget {
                workspace,
                store,
                scope,
                budget: outputs,
                until,
            })
            .await?;
        if let Some(weakness) = self.inner.store.weakness()
            && !self
                .inner
                .is_weakness_reported
                .swap(true, Ordering::Relaxed)
        {
            self.done.notes.push(weakness.to_owned());
        }
        Ok((result, kept))
    }

    /// Why the call failed. The sandbox has ended before, because only then all limits that were
    /// hit are known.
    fn failed(&mut self, ended: Option<SessionState>, result: ExecResult) -> CallRefusal {
        self.done
            .limits_hit
            .extend(result.limits_hit.iter().copied());
        self.done
            .limits_hit
            .extend(ended.into_iter().flat_map(|state| state.limits_hit));
        let limits = self
            .done
            .limits_hit
            .iter()
            .filter_map(|limit| limit_name(*limit));
        let limits = limits.collect::<Vec<_>>().join(", ");
        let limits = if limits.is_empty() {
            limits
        } else {
            format!("it ran into its limit of {limits}. ")
        };
        let reason = stderr_summary(&self.done.stderr, &self.inner.settings.hidden);
        let reason = match (reason.is_empty(), result.exit_code, result.signal) {
            (false, ..) => reason,
            (true, Some(status), _) => format!("it ended with status {status}"),
            (true, None, Some(signal)) => format!("it ended by signal {signal}"),
            (true, None, None) => result.error.map_or_else(String::new, |error| error.message),
        };
        let code = match result.status {
            Status::Lost => code::MeshErrorCode::SandboxFailed,
            _ => code::MeshErrorCode::ExecutionError,
        };
        CallRefusal::new(code, format!("Sandbox execution failed: {limits}{reason}"))
    }

    /// The reason goes to the log only: it may contain host paths.
    fn sandbox_unavailable(&mut self, why: &SandboxError) -> CallRefusal {
        self.done.notes.push(format!("there is no sandbox: {why}"));
        sandbox_unavailable()
    }
}

pub(super) fn sandbox_unavailable() -> CallRefusal {
    let message = "the sandbox could not be made; the log of the worker says why";
    CallRefusal::new(code::MeshErrorCode::SandboxFailed, message)
}

pub(super) fn internal(message: String) -> CallRefusal {
    CallRefusal::new(code::MeshErrorCode::InternalError, message)
}

/// Waits for the timeout or a cancellation.
async fn stop(until: Instant, cancelled: watch::Receiver<bool>) -> StopReason {
    tokio::select! {
        biased;
        () = is_cancelled(cancelled) => StopReason::Cancelled,
        () = tokio::time::sleep_until(until.into()) => StopReason::Time,
    }
}

/// Waits for a cancellation. A dropped sender is none.
async fn is_cancelled(mut cancelled: watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Beginning and end of a program's output.
pub(super) fn read_output(exec: &Exec, stream: StdStream) -> Vec<u8> {
    let mut kept = exec.take_beginning(stream);
    let place = if stream == StdStream::Stdout { 0 } else { 1 };
    let begun = kept.len() as u64;
    let total = exec.output().lengths()[place];
    if total > begun {
        let end = exec.output().read(
            stream,
            begun.max(total.saturating_sub(sandbox::KEPT_OUTPUT_BYTES as u64)),
            sandbox::KEPT_OUTPUT_BYTES,
        );
        if end.from > begun {
            kept.extend(format!("\n[... {} bytes left out ...]\n", end.from - begun).bytes());
        }
        kept.extend(end.bytes);
    }
    kept
}

/// Standard error for the requester. Hidden paths are removed before truncating, so that no part of
/// one is left.
pub(super) fn stderr_summary(stderr: &[u8], hidden: &[PathBuf]) -> String {
    let text = log::hide(String::from_utf8_lossy(stderr).into_owned(), hidden);
    let clean = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    text.trim()
        .chars()
        .filter(|letter| clean(*letter))
        .take(MAX_STDERR_CHARS)
        .collect()
}

fn limit_name(limit: LimitName) -> Option<&'static str> {
    match limit {
        LimitName::Memory => Some("memory"),
        LimitName::Pids => Some("processes"),
        LimitName::CpuTime => Some("CPU time"),
        LimitName::WallTime => Some("time"),
        LimitName::FileSize => Some("the size of a file"),
        LimitName::OpenFiles => Some("open files"),
        LimitName::Disk => Some("disk"),
        LimitName::Egress => Some("what may be sent out"),
        LimitName::Budget => Some("what may be spent on models"),
        // Too much output does not end a program.
        LimitName::Output => None,
    }
}
