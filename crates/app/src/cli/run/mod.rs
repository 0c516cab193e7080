//! `airlock run`: one command in one fresh sandbox, its output passed on as it comes, or one JSON result.

mod confirm;
mod learned;
mod links;
mod live;
mod options;
mod order;
mod refusal;
mod remote;
mod report;
mod signals;
mod staging;
pub(super) mod terminal;

pub(super) use confirm::refuse_broad_workspace;
pub(super) use links::pin;
pub(super) use live::{Delivery, Piece, Show, delivered, leave_at_once, open_outlet};
pub(super) use options::Options;
pub(super) use order::words;
pub(super) use refusal::{Identity, print_refusal};
pub(super) use remote::{Output, job_order, standing_order, told};
pub(super) use signals::Signals;

use super::{
    Global, REFUSED,
    message::{self, Failure, Line},
};
use crate::config::{self, Surroundings};
use live::Ending;
use spec::{RunSpec, Status};

/// What a shell reports of a program that wrote where nobody reads.
const BROKEN_PIPE: u8 = 128 + 13;

/// What a shell without a terminal would not say.
const NO_INPUT: &str =
    "standard input is empty here; --tty gives a terminal, --stdin passes yours through";

/// Carries out the command; whatever goes wrong before the program starts ends here.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let (identity, json) = (options.identity(), options.json);
    attempt(options, global, surroundings).unwrap_or_else(|failure| {
        message::say(&failure.lines());
        if json {
            print_refusal(&identity, &failure);
        }
        REFUSED
    })
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    options.refuse_impossible()?;
    if let Some(client) = global.server(surroundings)? {
        return remote::attempt(options, client, surroundings);
    }
    // The slowest thing to come begins first, beside all that follows.
    let is_native = options.may_be_native();
    let begun = (!options.explain && is_native).then(engine::PrespawnedLauncher::give);
    let mut config = global.configure(surroundings)?;
    config::narrow(&mut config, options.profile(), surroundings)?;
    let (json, explain, tty) = (options.json, options.explain, options.tty);
    let (follow_links, confirmed) = (options.follow_links, options.confirm_workspace);
    let staged = options.staged_by_default();
    let has_stdin = options.reads_stdin();
    let mut request = options.into_request(surroundings)?;
    request.staged |= staged.is_some();
    if tty {
        terminal::equip(&mut request, surroundings, explain)?;
    }
    let mut spec = config.policy.admit(request)?;
    if !follow_links {
        pin(&mut spec, &surroundings.current_folder)?;
    }
    if !spec.grants.ports().is_empty() || !spec.grants.secrets.is_empty() {
        super::leave_no_dump()?;
    }
    super::settings(&config)?.check(&spec)?;
    if !confirmed {
        refuse_broad_workspace(spec.sandbox.workspace.as_deref(), surroundings)?;
    }
    message::say(&replaced(&spec));
    let runtime = super::runtime()?;
    let status = runtime.block_on(async {
        // Before the engine: from here on a signal is an orderly end.
        let signals = Signals::listen()
            .map_err(|e| Failure::internal(format!("cannot await signals: {e}")))?;
        let engine = super::open_engine(&config, begun)?;
        match explain {
            true => print_plan(&engine.explain(&spec).await.map_err(Failure::from)?, json),
            false => {
                if let Some(folder) = staged.filter(|_| !json && engine.applies_changes(&spec)) {
                    staging::explain_once(engine.state_folder(), &folder);
                }
                let idle = show(json, tty) == Show::Streams
                    && !has_stdin
                    && terminal::waits_for_words(&spec.command);
                let status = carry_out(&engine, spec, signals, show(json, tty)).await;
                if idle {
                    message::say(&[Line::Note(NO_INPUT.to_owned())]);
                }
                status
            }
        }
    });
    // A read of standard input may still be waiting; it must not hold us.
    runtime.shutdown_background();
    status
}

/// Inputs that take the place of files of the user's.
fn replaced(spec: &RunSpec) -> Vec<Line> {
    // Only a layer that is kept takes such an input: everywhere else it is refused.
    let kept = spec.sandbox.copy_on_write && !spec.apply_changes;
    let Some(workspace) = spec.sandbox.workspace.as_ref().filter(|_| kept) else {
        return Vec::new();
    };
    let names = spec.inputs.iter().map(|(name, _)| name.as_path());
    names
        .filter(|name| workspace.join(name).symlink_metadata().is_ok())
        .map(|name| {
            let words = format!(
                "the input `{}` takes the place of a file of that name in the workspace",
                name.display()
            );
            Line::Note(words)
        })
        .collect()
}

fn show(json: bool, tty: bool) -> Show {
    match (json, tty) {
        (true, _) => Show::Nothing,
        (false, false) => Show::Streams,
        (false, true) => Show::Terminal,
    }
}

async fn carry_out(
    engine: &engine::Engine,
    spec: RunSpec,
    signals: Signals,
    show: Show,
) -> Result<u8, Failure> {
    let learns = spec
        .grants
        .egress
        .as_ref()
        .is_some_and(|egress| egress.learn);
    let taken = (show == Show::Terminal)
        .then(terminal::Taken::take)
        .transpose()?;
    let reminder = match show {
        Show::Terminal => terminal::reminder(spec.sandbox.limits.wall_time),
        Show::Nothing | Show::Streams => None,
    };
    let ending = live::follow(engine.start(spec), signals, show, reminder).await;
    // Before anything is said there.
    drop(taken);
    let status = match show {
        Show::Nothing => {
            super::print_json(&ending.result)?;
            message::say(&report::refusal(&ending.result));
            return Ok(ending.result.exit_status);
        }
        Show::Streams => conclude(&ending, &ending.result.stderr, learns),
        Show::Terminal => conclude(&ending, &ending.result.stdout, learns),
    };
    if learns {
        message::say_plainly(&learned::toml(&ending.result));
    }
    Ok(status)
}

/// Says what is left to say after the program's own output, and chooses the exit status.
fn conclude(ending: &Ending, above: &[u8], learns: bool) -> u8 {
    let learned = match learns && ending.result.status != Status::NotStarted {
        true => learned::lines(&ending.result),
        false => Vec::new(),
    };
    match &ending.delivery {
        Delivery::Complete => {
            message::say_below(above, &[report::lines(&ending.result), learned].concat());
            ending.result.exit_status
        }
        Delivery::NobodyReads => {
            message::say(&[report::notes(&ending.result), learned].concat());
            BROKEN_PIPE
        }
        Delivery::Failed(error) => {
            message::say(&[Line::Error(format!(
                "cannot pass on the program's output: {error}"
            ))]);
            message::say(&[report::notes(&ending.result), learned].concat());
            REFUSED
        }
    }
}

fn print_plan(plan: &[engine::PlanLine], json: bool) -> Result<u8, Failure> {
    match json {
        true => super::print_json(&serde_json::json!({ "plan": plan }))?,
        false => super::print(&plan_text(plan))?,
    }
    Ok(0)
}

/// Steps and details in two columns.
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
