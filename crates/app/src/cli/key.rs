//! `airlock key`: creates, lists and revokes API keys in the state folder, also while the server
//! runs.

use super::{Global, conclude, message::printable, print_json, print_lines, serve::key_failure};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, segment},
};
use clap::{Args, Subcommand};
use gateway::{ApiKey, ApiKeys, Scope};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use spec::Time;

use super::message::Failure;

const EXAMPLES: &str = "\
Examples:
  airlock key create --name ci --scope runs --scope artifacts --expires-in 720h
  airlock key create --name ci --tenant acme --scope runs
  airlock key list
  airlock key revoke 0123456789abcdef

A running server applies changes at once.";

/// The options of `airlock key`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a key, and print its token, which is shown only once
    Create {
        /// What the key is for
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The key's tenant; all keys of a tenant see the same things [default: a new tenant]
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Scope: admin, runs, sandboxes, artifacts, images, usage; repeatable
        #[arg(long, value_name = "SCOPE", required = true)]
        scope: Vec<Scope>,
        /// How long the key is valid, such as 720h [default: until revoked]
        #[arg(long, value_name = "TIME")]
        expires_in: Option<Time>,
    },
    /// List all keys
    List,
    /// Revoke a key at once
    Revoke {
        /// The key's identifier
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if let Some(client) = global.server(env)? {
        return super::runtime()?.block_on(at_server(options, &client));
    }
    let config = global.configure(env)?;
    if matches!(options.action, Action::Revoke { .. }) {
        // A revocation must succeed on a full disk, too.
        gateway::DiskReserve::of(&config.state).release_if_full();
    }
    let keys = ApiKeys::open(&config.state).map_err(|error| key_failure(&error.into()))?;
    match &options.action {
        Action::Create {
            name,
            tenant,
            scope,
            expires_in,
        } => {
            let made = keys.create(
                name,
                tenant.as_deref(),
                scope,
                expires_in.map(|time| time.0),
            );
            let (key, token) = made.map_err(|error| key_failure(&error))?;
            if options.json {
                print_json(
                    &json!({ "id": key.id, "token": token.expose(), "expires_at": key.expires_at }),
                )?
            } else {
                print_lines([token.expose().to_owned()])?
            }
        }
        Action::List => {
            let all = keys.list().map_err(|error| key_failure(&error.into()))?;
            if options.json {
                print_json(&json!({ "keys": all }))?
            } else {
                print_lines(all.iter().map(list_line))?
            }
        }
        Action::Revoke { id } => {
            if !keys
                .revoke(id)
                .map_err(|error| key_failure(&error.into()))?
            {
                let message = format!("there is no key `{}`", printable(id));
                return Err(Failure::invalid(message, "`airlock key list` shows them"));
            }
            if options.json {
                print_json(&json!({ "revoked": id }))?;
            }
        }
    }
    Ok(0)
}

/// Carries out the command at a server, with an admin's key.
async fn at_server(options: &Options, client: &Client) -> Result<u8, Failure> {
    match &options.action {
        Action::Create {
            name,
            tenant,
            scope,
            expires_in,
        } => {
            let body = json!({ "name": name, "tenant": tenant, "scopes": scope, "expires_in": expires_in.map(|time| time.to_string()) });
            let made: NewKeyResponse = client
                .json(ClientRequest::new(Method::POST, "/v1/keys").json(&body))
                .await?;
            if options.json {
                print_json(&made)?
            } else {
                print_lines([made.token])?
            }
        }
        Action::List => {
            let KeyList { keys } = client.json(ClientRequest::get("/v1/keys")).await?;
            if options.json {
                print_json(&json!({ "keys": keys }))?
            } else {
                print_lines(keys.iter().map(list_line))?
            }
        }
        Action::Revoke { id } => {
            let path = format!("/v1/keys/{}", segment(id.as_bytes()));
            client
                .send(ClientRequest::new(Method::DELETE, path))
                .await?;
            if options.json {
                print_json(&json!({ "revoked": id }))?;
            }
        }
    }
    Ok(0)
}

/// The response to a new key.
#[derive(Deserialize, Serialize)]
struct NewKeyResponse {
    id: String,
    token: String,
    expires_at: Option<String>,
}

#[derive(Deserialize)]
struct KeyList {
    keys: Vec<ApiKey>,
}

fn list_line(key: &ApiKey) -> String {
    let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.name()).collect();
    let state = match (&key.revoked_at, &key.expires_at) {
        (Some(when), _) => format!("revoked {when}"),
        (None, Some(when)) => format!("until {when}"),
        (None, None) => "until revoked".to_owned(),
    };
    let name = printable(&key.name);
    let tenant = printable(&key.tenant);
    format!(
        "{}  {name:<20}  {tenant:<16}  {:<24}  {state}",
        key.id,
        scopes.join(",")
    )
}
