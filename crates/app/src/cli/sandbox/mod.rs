//! `airlock sandbox`: long-lived sandboxes of a server: create, list, run programs, move files,
//! remove.

mod exec;
mod files;
mod logs;
mod pty;
mod stdin_upload;

use super::{
    Global, conclude,
    message::{Failure, printable},
    print, print_json, run,
};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, segment, segments},
};
use clap::{Args, Subcommand};
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use spec::Time;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  export AIRLOCK_URL=http://localhost:7070 AIRLOCK_KEY_FILE=~/.airlock-admin
  id=$(airlock sandbox create --profile standard --lifetime 2h)
  airlock sandbox put $id main.py
  airlock sandbox exec $id -- python3 main.py
  airlock sandbox exec --tty $id -- bash
  airlock sandbox get $id result.txt
  airlock sandbox rm $id

Sandboxes need a server, started with `airlock serve`.";

const CREATE_EXAMPLES: &str = "\
Examples:
  airlock sandbox create
  airlock sandbox create --memory 1G --idle-timeout 1h --lifetime 8h --label team=blue
  airlock sandbox create --workspace /srv/project

It prints the sandbox's identifier. Options of `run` about the command itself do not apply.";

/// The options of `airlock sandbox`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a sandbox, and print its identifier
    #[command(override_usage = "airlock sandbox create [OPTIONS]", after_help = CREATE_EXAMPLES, after_long_help = CREATE_EXAMPLES, mut_args = hide_command_options)]
    Create(Box<CreateOptions>),
    /// List sandboxes
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run a program in a sandbox; output and exit status are the program's
    Exec(exec::Options),
    /// Show the output of a sandbox's newest program, or another's
    Logs(logs::Options),
    /// Upload a file to a sandbox's workspace
    Put(files::PutOptions),
    /// Download a file from a sandbox's workspace
    Get(files::GetOptions),
    /// Pause everything in a sandbox
    Pause(SandboxArgs),
    /// Resume a paused sandbox
    Resume(SandboxArgs),
    /// Create a sandbox like this one, with a copy of its workspace, and print its identifier
    Fork(SandboxArgs),
    /// Remove sandboxes with everything in them
    Rm {
        /// The sandboxes
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Hides options about a command: a sandbox is created without one.
fn hide_command_options(argument: clap::Arg) -> clap::Arg {
    let hidden = [
        "command",
        "entrypoint",
        "stdin",
        "tty",
        "explain",
        "contract",
        "run_id",
        "artifact",
    ];
    if hidden.contains(&argument.get_id().as_str()) {
        argument.hide(true)
    } else {
        argument
    }
}

/// Arguments of the commands for one sandbox.
#[derive(Args, Debug)]
struct SandboxArgs {
    /// The sandbox
    id: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options of `airlock sandbox create`.
#[derive(Args, Debug)]
struct CreateOptions {
    #[command(flatten)]
    run: run::Options,
    /// Idle timeout: remove it when unused for this time [default: 15m]
    #[arg(long, value_name = "TIME", help_heading = "The sandbox")]
    idle_timeout: Option<Time>,
    /// Lifetime: remove it after this time in any case [default: 1h]
    #[arg(long, value_name = "TIME", help_heading = "The sandbox")]
    lifetime: Option<Time>,
    /// A label of the sandbox; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = "The sandbox")]
    label: Vec<String>,
}

impl Action {
    fn json(&self) -> bool {
        match self {
            Action::Create(create) => create.run.json,
            Action::List { json } | Action::Rm { json, .. } => *json,
            Action::Exec(options) => options.json,
            Action::Pause(one) | Action::Resume(one) | Action::Fork(one) => one.json,
            Action::Logs(_) | Action::Put(_) | Action::Get(_) => false,
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.action.json();
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let client = global.require_server(env)?;
    let runtime = super::runtime()?;
    let status = runtime.block_on(carry_out(options.action, client, env));
    // A pending read of standard input must not delay the exit.
    runtime.shutdown_background();
    status
}

async fn carry_out(action: Action, client: Client, env: &ProcessEnv) -> Result<u8, Failure> {
    let json = action.json();
    match action {
        Action::Create(create) => {
            let request_body = request_body(*create, env)?;
            print_created(
                client
                    .json(ClientRequest::new(Method::POST, "/v1/sandboxes").json(&request_body))
                    .await?,
                json,
            )
        }
        Action::List { .. } => list(&client, json).await,
        Action::Exec(options) => exec::execute(options, client, env).await,
        Action::Logs(options) => logs::show(options, client).await,
        Action::Put(options) => files::put(&options, &client).await,
        Action::Get(options) => files::get(&options, &client).await,
        Action::Pause(one) => change(&client, &one, "pause").await,
        Action::Resume(one) => change(&client, &one, "resume").await,
        Action::Fork(one) => {
            let ask = ClientRequest::new(Method::POST, format!("{}/fork", path(&one.id)))
                .json(&json!({}));
            print_created(client.json(ask).await?, json)
        }
        Action::Rm { ids, .. } => remove(&client, &ids, json).await,
    }
}

/// The path of a sandbox in the API.
fn path(id: &str) -> String {
    format!("/v1/sandboxes/{}", segment(id.as_bytes()))
}

/// The body of the request: options of a run without a command, lifetimes and labels.
fn request_body(create: CreateOptions, env: &ProcessEnv) -> Result<Value, Failure> {
    let mut request_body = run::sandbox_request(create.run, env)?;
    let time = |time: Option<Time>| time.map_or(Value::Null, |time| time.to_string().into());
    let own = [
        ("idle_timeout", time(create.idle_timeout)),
        ("lifetime", time(create.lifetime)),
    ];
    request_body.extend(
        own.into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.to_owned(), value)),
    );
    let labels = create.label.iter().map(|text| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), Value::from(value))),
        None => {
            let message = format!("`{}` is not a label with its value", text.escape_debug());
            Err(Failure::invalid(message, "write --label NAME=VALUE"))
        }
    });
    let labels = labels.collect::<Result<Map<_, _>, _>>()?;
    if !labels.is_empty() {
        request_body.insert("labels".to_owned(), labels.into());
    }
    Ok(request_body.into())
}

/// Prints a new sandbox: its identifier, or all data with `--json`.
fn print_created(sandbox: Value, json: bool) -> Result<u8, Failure> {
    if json {
        print_json(&sandbox)?
    } else {
        print(&format!(
            "{}\n",
            printable(sandbox["sandbox_id"].as_str().unwrap_or_default())
        ))?
    }
    Ok(0)
}

#[derive(Deserialize)]
struct SandboxList {
    sandboxes: Vec<Value>,
}

async fn list(client: &Client, json: bool) -> Result<u8, Failure> {
    let SandboxList { sandboxes } = client.json(ClientRequest::get("/v1/sandboxes")).await?;
    if json {
        print_json(&json!({ "sandboxes": sandboxes }))?
    } else {
        print(&sandboxes.iter().map(list_line).collect::<String>())?
    }
    Ok(0)
}

/// One line of the list: identifier, state, expiry, labels.
fn list_line(sandbox: &Value) -> String {
    let text = |name: &str| printable(sandbox[name].as_str().unwrap_or_default());
    let labels = sandbox["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(name, value)| printable(&format!("{name}={}", value.as_str().unwrap_or_default())))
        .collect();
    let state = match sandbox["reason"].as_str() {
        Some(reason) => format!("{} ({})", text("status"), printable(reason)),
        None => text("status"),
    };
    let list_line = format!(
        "{}  {state:<16}  until {}  {}",
        text("sandbox_id"),
        text("expires_at"),
        labels.join(" ")
    );
    format!("{}\n", list_line.trim_end())
}

async fn change(client: &Client, one: &SandboxArgs, what: &str) -> Result<u8, Failure> {
    let sandbox: Value = client
        .json(ClientRequest::new(
            Method::POST,
            format!("{}/{what}", path(&one.id)),
        ))
        .await?;
    if one.json {
        print_json(&sandbox)?;
    }
    Ok(0)
}

async fn remove(client: &Client, ids: &[String], json: bool) -> Result<u8, Failure> {
    let mut ended = Vec::new();
    for id in ids {
        ended.push(
            client
                .json::<Value>(ClientRequest::new(Method::DELETE, path(id)))
                .await?,
        );
    }
    if json {
        print_json(&json!({ "sandboxes": ended }))?;
    }
    Ok(0)
}

/// The API path of a file in the workspace.
fn file_path(id: &str, name: &std::path::Path) -> Result<String, Failure> {
    let hint = "name a file below /workspace, such as src/main.py";
    let inside = name.strip_prefix("/workspace").unwrap_or(name);
    let name =
        spec::WorkspacePath::new(inside).map_err(|bad| Failure::invalid(bad.to_string(), hint))?;
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(name.as_path().as_os_str());
    Ok(format!("{}/files/{}", path(id), segments(bytes)))
}

/// The default name of an uploaded file.
fn file_name(file: &std::path::Path) -> Option<PathBuf> {
    file.file_name().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_one_line_that_steers_no_terminal() {
        let sandbox = json!({ "sandbox_id": "01J", "status": "ended", "reason": "idle", "expires_at": "T",
            "labels": { "a": "b\u{1b}[2J" } });
        assert_eq!(
            list_line(&sandbox),
            "01J  ended (idle)      until T  a=b\\u{1b}[2J\n"
        );
    }

    #[test]
    fn a_file_stays_below_the_workspace() {
        let of = |name: &str| file_path("a/b", std::path::Path::new(name));
        assert_eq!(
            of("/workspace/x y").unwrap(),
            "/v1/sandboxes/a%2Fb/files/x%20y"
        );
        assert_eq!(
            of("src/main.py").unwrap(),
            "/v1/sandboxes/a%2Fb/files/src/main.py"
        );
        assert!(of("../x").is_err() && of("/etc/passwd").is_err());
    }
}
