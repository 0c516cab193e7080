//! The command line: one file per command. Each file maps options to the engine's types and results
//! back to text.
//!
//! Data goes to stdout, everything else to stderr. A refusal by Airlock itself exits with 125.

mod artifact;
mod artifact_store;
mod audit;
mod backup;
mod bench;
mod doctor;
mod escape_test;
mod grant;
mod image;
mod jobs;
mod key;
mod ledger_owner;
mod message;
mod proxy;
mod quota;
mod restore;
mod run;
mod sandbox;
mod secrets;
mod separate_program;
mod serve;
mod server_option;
mod service;
mod size;
mod state;
mod steps;
mod sweep;
mod terminal_filter;
mod usage;
mod usage_error;
mod worker;
mod workspace;

use crate::config::{self, Config, ProcessEnv};
use clap::{Args, Parser, Subcommand};
use message::Failure;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use std::{
    borrow::Cow,
    ffi::OsString,
    io::{self, Write},
    path::PathBuf,
};

/// Airlock refused or failed before a program started.
const REFUSED: u8 = 125;

const EXAMPLES: &str = "\
Examples:
  airlock run -- python3 -c 'print(\"hello from inside\")'
  airlock run --workspace . --timeout 30s -- make test
  airlock doctor

`airlock COMMAND --help` describes a command.";

/// Sandbox runtime for AI agents and their tools
#[derive(Debug, Parser)]
#[command(name = "airlock", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Clone, Debug, Default)]
struct Global {
    /// Configuration file [default: ~/.config/airlock/config.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    config: Option<PathBuf>,
    /// Folder for run records and artifacts [default: ~/.local/state/airlock]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    state: Option<PathBuf>,
    /// Use this server instead of this machine: http://HOST:PORT, https://HOST or unix:/PATH [env:
    /// AIRLOCK_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    server: Option<OsString>,
    /// File with the server's key, unless AIRLOCK_KEY is set [env: AIRLOCK_KEY_FILE]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    key_file: Option<PathBuf>,
    /// File with a certificate to trust, beside those of this machine [env: AIRLOCK_CA]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    server_ca: Option<PathBuf>,
    /// The name of the command, for messages.
    #[arg(skip)]
    command: &'static str,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command in a fresh sandbox
    Run(Box<run::Options>),
    /// Run a job of steps in a fresh sandbox, and write its result to a file
    #[command(override_usage = "airlock steps [OPTIONS] [-- COMMAND [ARG]...]", after_help = steps::EXAMPLES,
              after_long_help = steps::EXAMPLES, mut_args = steps::hide_command_options)]
    Steps(Box<steps::Options>),
    /// Allow or deny hosts for a running run
    Grant(grant::Options),
    /// Show what this host can enforce, and how to fix what it cannot
    Doctor(doctor::Options),
    /// Remove leftovers of killed or crashed runs
    Sweep(sweep::Options),
    /// List, show, get, put or remove artifacts
    Artifact(artifact::Options),
    /// Show, commit or discard changes of staged workspaces
    Workspace(workspace::Options),
    /// Show model usage and costs
    Usage(usage::Options),
    /// Show quotas of a tenant of a server, and their current use
    Quota(quota::Options),
    /// Show or verify the audit log
    Audit(audit::Options),
    /// Load, pull, list, check or build the images that runs start from
    Image(image::Options),
    /// Store, list or remove secrets: keys of providers, and secrets for runs
    Secrets(secrets::Options),
    /// Serve runs over HTTP
    Serve(serve::Options),
    /// Install the server as a systemd service, or remove it
    Service(service::Options),
    /// Back up the state folder into one file, also while a server uses it
    Backup(backup::Options),
    /// Restore a state folder from a backup, or check a backup
    Restore(restore::Options),
    /// Show the disk usage of the state folder
    State(state::Options),
    /// Create long-lived sandboxes at a server, and run programs in them
    Sandbox(sandbox::Options),
    /// Submit, watch, wait for or cancel jobs at a server
    Jobs(jobs::Options),
    /// Create, list or revoke API keys of a server
    Key(key::Options),
    /// Serve the model doors as a standalone proxy, for holders of a session token
    Proxy(proxy::Options),
    /// Run tools for agents that use a message broker
    Worker(worker::Options),
    /// Measure the overhead of a run, beside other sandboxes
    Bench(bench::Options),
    /// Attack sandboxes on this machine, and check that they hold
    EscapeTest(escape_test::Options),
}

/// Runs the command: from arguments and environment to the exit status.
pub(crate) fn main(arguments: Vec<OsString>, env: ProcessEnv) -> u8 {
    match Cli::try_parse_from(&arguments).map(Cli::with_command_name) {
        Err(error) => usage_error::report(&error, &arguments),
        Ok(Cli { global, command }) => match command {
            Command::Run(options) => run::execute(*options, &global, &env),
            Command::Steps(options) => steps::execute(*options, &global, &env),
            Command::Grant(options) => grant::execute(&options, &global, &env),
            Command::Quota(options) => quota::execute(&options, &global, &env),
            Command::Doctor(options) => doctor::execute(&options, &global, &env),
            Command::Sweep(options) => sweep::execute(&options, &global, &env),
            Command::Artifact(options) => artifact::execute(options, &global, &env),
            Command::Workspace(options) => workspace::execute(options, &global, &env),
            Command::Usage(options) => usage::execute(&options, &global, &env),
            Command::Audit(options) => audit::execute(&options, &global, &env),
            Command::Image(options) => image::execute(options, &global, &env),
            Command::Secrets(options) => secrets::execute(options, &global, &env),
            Command::Serve(options) => serve::execute(&options, &global, &env),
            Command::Service(options) => service::execute(&options, &global, &env),
            Command::Backup(options) => backup::execute(&options, &global, &env),
            Command::Restore(options) => restore::execute(&options, &global, &env),
            Command::State(options) => state::execute(&options, &global, &env),
            Command::Sandbox(options) => sandbox::execute(options, &global, &env),
            Command::Jobs(options) => jobs::execute(options, &global, &env),
            Command::Key(options) => key::execute(&options, &global, &env),
            Command::Proxy(options) => proxy::execute(&options, &global, &env),
            Command::Worker(options) => worker::execute(&options, &global, &env),
            Command::Bench(options) => bench::execute(options, &global, &env),
            Command::EscapeTest(options) => escape_test::execute(&options, &global, &env),
        },
    }
}

impl Global {
    /// Reads the settings that every command needs.
    fn configure(&self, env: &ProcessEnv) -> Result<Config, Failure> {
        self.refuse_server(env)?;
        let flags = config::Flags {
            config: self.config.clone(),
            state: self.state.clone(),
        };
        Ok(config::load(&flags, env)?)
    }
}

/// Opens the engine on the configured state folder.
fn open_engine(
    config: &Config,
    launcher: Option<engine::PrespawnedLauncher>,
) -> Result<engine::Engine, Failure> {
    Ok(match launcher {
        Some(launcher) => engine::Engine::open_after(launcher, settings(config)?)?,
        None => engine::Engine::open(settings(config)?)?,
    })
}

fn settings(config: &Config) -> Result<engine::Settings, Failure> {
    let containers = engine::EngineSockets {
        docker: config.docker.clone(),
        podman: config.podman.clone(),
    };
    let doors = door_settings(config);
    let guarded = config.guarded();
    let artifacts = artifact_store::settings(&config.artifacts, &config.state, &config.secrets)?;
    Ok(engine::Settings {
        artifacts,
        containers,
        doors,
        guarded,
        ..engine::Settings::new(&config.state)
    })
}

fn door_settings(config: &Config) -> engine::DoorSettings {
    engine::DoorSettings {
        catalogue: config.doors.catalogue_with_prices(),
        secrets: config.secrets.clone(),
        inference_models: config.doors.inference_models.clone(),
        durability: config.doors.durability,
        egress: config.doors.egress.clone(),
        ..engine::DoorSettings::default()
    }
}

/// Keeps keys that this process will hold out of core dumps and away from other processes.
fn leave_no_dump() -> Result<(), Failure> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| setrlimit(Resource::Core, none))
        .map_err(|error| Failure::internal(format!("cannot keep keys out of core dumps: {error}")))
}

/// A single-threaded event loop: enough for one run, and faster to start.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    built.map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))
}

/// Writes data to stdout. A closed pipe is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::internal(format!(
            "cannot write to standard output: {error}"
        ))),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints lines. Control characters are escaped, because the text may come from a program.
fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let shown = lines
        .into_iter()
        .map(|line| format!("{}\n", message::printable(line.trim_end())));
    print(&shown.collect::<String>())
}

/// Prints one JSON value on a line of its own.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    match serde_json::to_string(value) {
        Ok(mut text) => {
            // The newline is appended in place: a result can hold megabytes of output.
            text.push('\n');
            print(&without_controls(&text))
        }
        Err(error) => Err(Failure::internal(format!(
            "cannot write the result as JSON: {error}"
        ))),
    }
}

/// Escapes U+007F to U+009F: JSON allows them unescaped, and terminals obey them.
fn without_controls(json: &str) -> Cow<'_, str> {
    let obeyed = |character: char| ('\u{7f}'..='\u{9f}').contains(&character);
    if json.contains(obeyed) {
        let escaped = |character| {
            if obeyed(character) {
                format!("\\u{:04x}", u32::from(character))
            } else {
                character.to_string()
            }
        };
        Cow::Owned(json.chars().map(escaped).collect())
    } else {
        Cow::Borrowed(json)
    }
}

/// The exit status of a command other than `run`: its own, or 125 with the failure on stderr (and
/// as JSON if requested).
fn conclude(outcome: Result<u8, Failure>, json: bool) -> u8 {
    outcome.unwrap_or_else(|failure| {
        message::print(&failure.lines());
        if json && let Err(unwritten) = print_json(&serde_json::json!({ "error": failure.info() }))
        {
            message::print(&unwritten.lines());
        }
        REFUSED
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let shown = command
                .get_after_help()
                .or(command.get_after_long_help())
                .map(ToString::to_string);
            assert!(
                shown.is_some_and(|text| text.contains("Examples:")),
                "{}",
                command.get_name()
            );
        }
    }

    #[test]
    fn json_means_the_same_and_steers_no_terminal() {
        let hostile = "\u{9b}2J\u{7f} ä\x1b[2J\n";
        let text = serde_json::to_string(hostile).unwrap();
        let shown = without_controls(&text);
        assert!(
            text.contains(char::is_control) && !shown.contains(char::is_control),
            "{shown:?}"
        );
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
        assert!(matches!(
            without_controls("{\"a\":\"ä\"}"),
            Cow::Borrowed(_)
        ));
    }
}
