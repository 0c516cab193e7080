//! `airlock escape-test`: attacks sandboxes on this machine, and shows that they hold. The attacks are in a program of their
//! own, `airlock-escape`; it reads what is passed to it here.

use super::{Global, conclude, message::Failure, separate_program};
use crate::config::ProcessEnv;
use clap::Args;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  airlock escape-test --only A6,C53
  airlock escape-test --list
  airlock escape-test --only B34 --no-peer --json | jq '.cases[].airlock.verdict'

Every case is an attack from inside, judged by what the host observes.
  airlock  the attack in an Airlock sandbox
  docker   or podman, instead of airlock: in a container (--backend), of an image with a C library
  control  the same attack with the protection off: it must escape, or the case proves nothing
  bwrap    the same attack on bubblewrap, if it is installed
blocked: the attack had no effect.  detected: not stopped, but reported in the run's result.
ESCAPED: the attack escaped.  n.a.: not tried, with the reason.
Exit status: 0 if nothing escaped and every control that was run worked, 1 if not.";

const PROGRAM: &str = "airlock-escape";
const CONTAINERS: [&str; 3] = ["docker", "podman", "container"];

/// The options of `airlock escape-test`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Only these cases or groups, by number or letter
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
    /// Attack containers of this engine instead: docker, podman or container
    #[arg(long, value_name = "NAME", requires = "image")]
    backend: Option<String>,
    /// The image of these containers, which the engine must have already
    #[arg(long, value_name = "REF", requires = "backend")]
    image: Option<String>,
    /// Do not attack bwrap for comparison
    #[arg(long)]
    no_peer: bool,
    /// Large counts
    #[arg(long, hide = true)]
    full: bool,
    /// In sandboxes made ahead
    #[arg(long, hide = true)]
    pooled: bool,
    /// Also the controls that would harm a machine
    #[arg(long, hide = true)]
    dangerously_harm_this_machine: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    let failure = match order(options, global, env) {
        Ok(order) => separate_program::exec(PROGRAM, None, &order),
        Err(failure) => failure,
    };
    conclude(Err(failure), options.json)
}

/// What `airlock-escape` is to do: `Order` of `crates/escape/src/main.rs`.
fn order(options: &Options, global: &Global, env: &ProcessEnv) -> Result<Value, Failure> {
    global.refuse_server(env)?;
    Ok(json!({
        "sources": engine::SOURCES,
        "airlock": separate_program::own_path_text()?,
        "json": options.json,
        "only": options.only,
        "list": options.list,
        "full": options.full,
        "dangerously_harm_this_machine": options.dangerously_harm_this_machine,
        "peer": !options.no_peer,
        "pooled": options.pooled,
        "containers": containers(options, global, env)?,
    }))
}

/// The containers to attack, if `--backend` names an engine.
fn containers(
    options: &Options,
    global: &Global,
    env: &ProcessEnv,
) -> Result<Option<Value>, Failure> {
    let (Some(backend), Some(image)) = (&options.backend, &options.image) else {
        return Ok(None);
    };
    if !CONTAINERS.contains(&backend.as_str()) {
        let message = format!("`{}` is not a container backend", backend.escape_debug());
        return Err(Failure::invalid(
            message,
            "--backend is docker, podman or container here",
        ));
    }
    let config = global.configure(env)?;
    Ok(Some(json!({
        "backend": backend,
        "image": image,
        "docker": config.docker,
        "podman": config.podman,
    })))
}
