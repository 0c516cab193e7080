//! `airlock run`: runs one command in a fresh sandbox, and passes its output on as it arrives or
//! prints one JSON result.

mod broad_workspace;
mod learned_rules;
mod options;
mod output;
mod refused_result;
mod remote;
mod report;
mod request_body;
mod signals;
mod staging_note;
mod symlinks;
pub(super) mod terminal;

pub(super) use broad_workspace::refuse_broad_workspace;
pub(super) use options::Options;
pub(super) use output::{Delivery, OutputChunk, OutputMode, exit_now, open_outlet, wait_delivery};
pub(super) use refused_result::{Identity, print_refusal};
pub(super) use remote::{OutputEvent, job_run_request, read_result, sandbox_request};
pub(super) use request_body::utf8_all;
pub(super) use signals::Signals;
pub(super) use symlinks::pin;

use super::{
    Global, REFUSED,
    message::{self, Failure, Message},
};
use crate::config::{self, ProcessEnv};
use output::FinishedRun;
use spec::{RunSpec, Status};

/// The exit status of a program killed by SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// The note for an interactive program without a terminal.
const EMPTY_INPUT_NOTE: &str =
    "standard input is empty here; --tty gives a terminal, --stdin passes yours through";

/// Carries out the command, and reports failures before the program's start.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let identity = options.identity();
    let json = options.json;
    attempt(options, global, env).unwrap_or_else(|failure| {
        message::print(&failure.lines());
        if json {
            print_refusal(&identity, &failure);
        }
        REFUSED
    })
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    options.refuse_impossible()?;
    if let Some(client) = global.server(env)? {
        return remote::attempt(options, client, env);
    }
    // The launcher starts first, because it is slow and independent of what follows.
    let is_native = options.may_be_native();
    let launcher = (!options.explain && is_native).then(engine::PrespawnedLauncher::give);
    let mut config = global.configure(env)?;
    config::narrow(&mut config, options.profile(), env)?;
    let json = options.json;
    let explain = options.explain;
    let tty = options.tty;
    let follow_links = options.follow_links;
    let confirmed = options.confirm_workspace;
    let staged = options.staged_by_default();
    let has_stdin = options.reads_stdin();
    let mut request = options.into_request(env)?;
    request.staged |= staged.is_some();
    if tty {
        terminal::request_terminal(&mut request, env, explain)?;
    }
    let mut spec = config.policy.admit(request)?;
    if !follow_links {
        pin(&mut spec, &env.current_folder)?;
    }
    if !spec.grants.ports().is_empty() || !spec.grants.secrets.is_empty() {
        super::leave_no_dump()?;
    }
    super::settings(&config)?.check(&spec)?;
    if !confirmed {
        refuse_broad_workspace(spec.sandbox.workspace.as_deref(), env)?;
    }
    message::print(&replaced_files(&spec));
    let runtime = super::runtime()?;
    let status = runtime.block_on(async {
        // Signals are handled from before the engine opens, so that they end the run in order.
        let signals = Signals::listen()
            .map_err(|e| Failure::internal(format!("cannot wait for signals: {e}")))?;
        let engine = super::open_engine(&config, launcher)?;
        if explain {
            print_plan(&engine.explain(&spec).await.map_err(Failure::from)?, json)
        } else {
            if let Some(folder) = staged.filter(|_| !json && engine.applies_changes(&spec)) {
                staging_note::explain_once(engine.state_folder(), &folder);
            }
            let idle = output_mode(json, tty) == OutputMode::Streams
                && !has_stdin
                && terminal::reads_terminal(&spec.command);
            let status = run_here(&engine, spec, signals, output_mode(json, tty)).await;
            if idle {
                message::print(&[Message::Note(EMPTY_INPUT_NOTE.to_owned())]);
            }
            status
        }
    });
    // A pending read of standard input must not delay the exit.
    runtime.shutdown_background();
    status
}

/// Notes for inputs that replace files of the workspace.
fn replaced_files(spec: &RunSpec) -> Vec<Message> {
    // Only a kept layer accepts such an input; everywhere else it is refused.
    let kept = spec.sandbox.copy_on_write && !spec.apply_changes;
    let Some(workspace) = spec.sandbox.workspace.as_ref().filter(|_| kept) else {
        return Vec::new();
    };
    let names = spec.inputs.iter().map(|(name, _)| name.as_path());
    names
        .filter(|name| workspace.join(name).symlink_metadata().is_ok())
        .map(|name| {
            let utf8_all = format!(
                "the input `{}` replaces a file in the workspace",
                name.display()
            );
            Message::Note(utf8_all)
        })
        .collect()
}

fn output_mode(json: bool, tty: bool) -> OutputMode {
    match (json, tty) {
        (true, _) => OutputMode::Nothing,
        (false, false) => OutputMode::Streams,
        (false, true) => OutputMode::Terminal,
    }
}

async fn run_here(
    engine: &engine::Engine,
    spec: RunSpec,
    signals: Signals,
    output_mode: OutputMode,
) -> Result<u8, Failure> {
    let learns = spec
        .grants
        .egress
        .as_ref()
        .is_some_and(|egress| egress.learn);
    let taken = (output_mode == OutputMode::Terminal)
        .then(terminal::RawTerminal::enter)
        .transpose()?;
    let warning = match output_mode {
        OutputMode::Terminal => terminal::timeout_warning(spec.sandbox.limits.wall_time),
        OutputMode::Nothing | OutputMode::Streams => None,
    };
    let ending = output::follow(engine.start(spec), signals, output_mode, warning).await;
    // The terminal is restored before messages are printed.
    drop(taken);
    let status = match output_mode {
        OutputMode::Nothing => {
            super::print_json(&ending.result)?;
            message::print(&report::refusal(&ending.result));
            return Ok(ending.result.exit_status);
        }
        OutputMode::Streams => conclude(&ending, &ending.result.stderr, learns),
        OutputMode::Terminal => conclude(&ending, &ending.result.stdout, learns),
    };
    if learns {
        message::print_plain(&learned_rules::toml(&ending.result));
    }
    Ok(status)
}

/// Prints the messages after the program's output, and returns the exit status.
fn conclude(ending: &FinishedRun, above: &[u8], learns: bool) -> u8 {
    let learned = if learns && ending.result.status != Status::NotStarted {
        learned_rules::lines(&ending.result)
    } else {
        Vec::new()
    };
    match &ending.delivery {
        Delivery::Complete => {
            message::print_below(above, &[report::lines(&ending.result), learned].concat());
            ending.result.exit_status
        }
        Delivery::NobodyReads => {
            message::print(&[report::notes(&ending.result), learned].concat());
            BROKEN_PIPE
        }
        Delivery::Failed(error) => {
            message::print(&[Message::Error(format!(
                "cannot pass on the program's output: {error}"
            ))]);
            message::print(&[report::notes(&ending.result), learned].concat());
            REFUSED
        }
    }
}

fn print_plan(plan: &[engine::PlanLine], json: bool) -> Result<u8, Failure> {
    if json {
        super::print_json(&serde_json::json!({ "plan": plan }))?
    } else {
        super::print(&plan_text(plan))?
    }
    Ok(0)
}

/// The plan in two columns.
fn plan_text(plan: &[engine::PlanLine]) -> String {
    let width = plan
        .iter()
        .map(|line| line.step.chars().count())
        .max()
        .unwrap_or(0);
    let row = |line: &engine::PlanLine| {
        let text = format!(
            "{:<width$}  {}",
            message::printable(&line.step),
            message::printable(&line.detail)
        );
        format!("{}\n", text.trim_end())
    };
    plan.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_two_aligned_columns() {
        let line = |step: &str, detail: &str| engine::PlanLine {
            step: step.into(),
            detail: detail.into(),
        };
        let plan = [line("namespaces", "pid, net"), line("root", "read-only\n")];
        assert_eq!(
            plan_text(&plan),
            "namespaces  pid, net\nroot        read-only\\n\n"
        );
    }
}
