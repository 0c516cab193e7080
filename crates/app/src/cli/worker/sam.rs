//! `airlock worker sam`: reads the settings, starts the worker, and reports how it ended.

use super::{
    super::{
        Global, leave_no_dump,
        message::{self, Failure, Message},
        print_json, print_lines,
    },
    serve,
};
use crate::config::ProcessEnv;
use clap::Args;
use serde_json::json;
use spec::ErrorCode;
use std::{ffi::OsStr, num::NonZeroUsize, thread, time::Duration};
use tokio::runtime::Runtime;
use worker::{
    sam::{ShutdownReport, WorkerError},
    settings::{self, SettingError, SettingNotice, WorkerSettings},
};

const EXAMPLES: &str = "\
Examples:
  SAM_NAMESPACE=demo SAM_TRANSPORT=tcp://127.0.0.1:55554 airlock worker sam
  SAM_NAMESPACE=demo SAM_TRANSPORT=mqtts://broker.example:8883 airlock worker sam --check
  SAM_NAMESPACE=demo SOLACE_HOST=broker.example:5671 airlock worker sam --check --json

All settings are environment variables, named as in the workers that it replaces:
  SAM_NAMESPACE           the mesh [default: solace-agent-mesh]
  SAM_WORKER_ID           the pool that this worker belongs to [default: sandbox-worker-001]
  SAM_TRANSPORT           the broker: mqtt://HOST:PORT, mqtts://…, amqp://…, amqps://…, or tcp://…
                          for a development broker; or SOLACE_HOST=HOST:PORT, or DEV_BROKER_HOST
                          and DEV_BROKER_PORT
  MANIFEST_PATH           the tools [default: /tools/manifest.yaml]
  TOOLS_PYTHON_DIR        their Python modules [default: /tools/python]
  SANDBOX_MAX_CONCURRENT  calls at once [default: 4]
The others are listed in docs/worker.md.

The first SIGTERM or Ctrl-C accepts no new calls and waits a while for running ones; the second
ends them at once.
Exit status: 0, 1 if calls were cut short, the broker was lost permanently or --check found a
problem, or 125 if it could not start.";

/// Exit status if calls were cut short or the broker was lost.
const INCOMPLETE: u8 = 1;
/// How long blocking reads and writes may delay the exit.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// More threads would only wait for each other.
const MAX_THREADS: usize = 4;
/// The options of `airlock worker sam`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Check settings and manifest, prepare every tool, print what would be served, and exit
    #[arg(long)]
    check: bool,
    /// Print one JSON object, with --check
    #[arg(long, requires = "check")]
    pub(super) json: bool,
}

/// Carries out the command.
pub(super) fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    leave_no_dump()?;
    let config = global.configure(env)?;
    let variable = |name: &str| env.variables.get(OsStr::new(name)).cloned();
    let (settings, mut notices) = settings::read(variable).map_err(setting_failure)?;
    notices.extend(settings::unknown_variables(env.variables.keys()));
    let settings = settings.from_folder(&env.current_folder);
    let runtime = runtime()?;
    let status = runtime.block_on(async {
        if options.check {
            return check(
                &serve::check(&config, &settings).await?,
                &settings,
                &notices,
                options.json,
            );
        }
        report_end(serve::serve(&config, settings, notices).await?)
    });
    // A blocked file or DNS lookup must not delay the exit.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    status
}

fn setting_failure(error: SettingError) -> Failure {
    Failure::invalid(error.message, error.hint)
}

fn check(
    report: &serve::CheckReport,
    settings: &WorkerSettings,
    notices: &[SettingNotice],
    json: bool,
) -> Result<u8, Failure> {
    let status = if report.problems.is_empty() {
        0
    } else {
        INCOMPLETE
    };
    let broker = settings.broker.to_string();
    let notices = notices
        .iter()
        .map(ToString::to_string)
        .chain(report.notes.iter().cloned());
    if json {
        let notices: Vec<_> = notices.collect();
        print_json(&json!({
            "namespace": settings.base.namespace(),
            "worker_id": settings.worker_id,
            "broker": broker,
            "slots": settings.calls.slots,
            "tools": report.tools.keys().collect::<Vec<_>>(),
            "problems": report.problems,
            "notices": notices,
        }))?;
        return Ok(status);
    }
    let notices: Vec<_> = notices.map(Message::Note).collect();
    message::print(&notices);
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| Message::Error(problem.clone()))
        .collect();
    message::print(&problems);
    let head = [
        format!("namespace  {}", settings.base.namespace()),
        format!("worker     {}", settings.worker_id),
        format!("broker     {broker}"),
        format!("slots      {}", settings.calls.slots),
    ];
    print_lines(
        head.into_iter()
            .chain(report.tools.keys().map(|tool| format!("tool       {tool}"))),
    )?;
    Ok(status)
}

fn runtime() -> Result<Runtime, Failure> {
    let threads = thread::available_parallelism()
        .map_or(1, NonZeroUsize::get)
        .min(MAX_THREADS);
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build();
    built.map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))
}

fn report_end(ended: Result<ShutdownReport, WorkerError>) -> Result<u8, Failure> {
    match ended {
        Ok(ShutdownReport { cut: 0 }) => Ok(0),
        Ok(ShutdownReport { cut }) => {
            message::print(&[
                Message::Error(format!(
                    "{cut} calls were cut short, or their responses were not delivered"
                )),
                Message::Hint("wait longer before the second signal".to_owned()),
            ]);
            Ok(INCOMPLETE)
        }
        Err(failed) => {
            let lost = Failure {
                code: ErrorCode::Lost,
                message: failed.to_string(),
                hint:
                    "with SOLACE_RECONNECT_RETRIES=0 the worker retries for ever, unless a retry cannot succeed"
                        .to_owned(),
            };
            message::print(&lost.lines());
            Ok(INCOMPLETE)
        }
    }
}
