//! `airlock proxy`: the model doors as a standalone service, for sandboxes that Airlock did not
//! start.

use super::{Global, conclude, ledger_owner, message::Failure, print, print_json};
use crate::config::{Config, ProcessEnv};
use clap::Args;
use doors::{
    DoorListener, Doors, Secret,
    budget::BudgetManager,
    registry::{Registry, RegistryConfig},
};
use serde::Serialize;
use spec::ErrorCode;
use std::{
    fmt::Write as _,
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};

mod token_file;

const EXAMPLES: &str = "\
Examples:
  airlock proxy
  airlock proxy --listen 127.0.0.1:7080 --json
  airlock proxy --admin-listen 127.0.0.1:7081 --admin-token-file ~/.airlock-admin

Sessions are registered at the admin socket, and use their token as API key:
  curl --unix-socket ADMIN http://admin/v1/sessions -d '{\"provider\": \"anthropic\"}'
  ANTHROPIC_BASE_URL=http://127.0.0.1:7080 ANTHROPIC_API_KEY=session-... agent

It runs until SIGTERM or Ctrl-C, then ends its sessions and settles their costs.
Exit status: 0, or 125 if it could not start.";

/// The options of `airlock proxy`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Listen address for sessions, which authenticate by token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7080")]
    listen: SocketAddr,
    /// Socket of the admin API; only this user and root can connect [default:
    /// STATE/doors/admin.sock]
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<PathBuf>,
    /// Serve the admin API at this address as well, with a token
    #[arg(long, value_name = "ADDRESS", requires = "admin_token_file")]
    admin_listen: Option<SocketAddr>,
    /// File with the admin token; created (mode 0600) if it does not exist
    #[arg(long, value_name = "FILE", requires = "admin_listen")]
    admin_token_file: Option<PathBuf>,
    /// Allow addresses that other machines can reach: tokens and responses are then sent
    /// unencrypted
    #[arg(long)]
    dangerously_listen_publicly: bool,
    /// Print one JSON object when it is ready
    #[arg(long)]
    json: bool,
}

/// The addresses of the proxy, printed when it is ready.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ProxyAddresses {
    listen: String,
    admin_socket: PathBuf,
    admin_listen: Option<String>,
    pid: u32,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    super::leave_no_dump()?;
    let config = global.configure(env)?;
    options.check_addresses()?;
    let admin_token = match &options.admin_token_file {
        Some(file) => Some(token_file::read_or_make(&env.current_folder.join(file))?),
        None => None,
    };
    let ledger = Arc::new(ledger_owner::open(&config)?);
    let doors = Doors::new(
        config.doors.catalogue_with_prices(),
        config.secrets.clone(),
        BudgetManager::new(ledger.clone()),
    );
    let runtime = super::runtime()?;
    runtime.block_on(async {
        let registry = registry(&config, doors, global, env)?;
        serve(options, &config, &registry, admin_token).await
    })?;
    // Dropping the runtime ends and settles open calls, so that the ledger closes last.
    drop(runtime);
    drop(ledger);
    Ok(0)
}

fn registry_config(config: &Config, doors: Arc<Doors>) -> RegistryConfig {
    RegistryConfig {
        doors,
        tenants: config.doors.tenants.clone(),
        inference_models: config.doors.inference_models.clone(),
    }
}

fn registry(
    config: &Config,
    doors: Arc<Doors>,
    global: &Global,
    env: &ProcessEnv,
) -> Result<Arc<Registry>, Failure> {
    let global = global.clone();
    let env = env.clone();
    let reload = move |before: &Arc<Doors>| {
        let config = global.configure(&env).map_err(|failure| failure.message)?;
        let doors = Doors::new(
            config.doors.catalogue_with_prices(),
            config.secrets.clone(),
            before.budgets().clone(),
        );
        Ok(registry_config(&config, doors))
    };
    let folder = config.state.join("doors");
    Registry::open(
        &folder,
        registry_config(config, doors),
        Some(Box::new(reload)),
    )
    .map_err(|error| {
        start_failure(
            "use",
            &folder.display(),
            &error,
            "make yourself its owner, or give --state DIR",
        )
    })
}

fn start_failure(
    what: &str,
    place: &dyn std::fmt::Display,
    error: &io::Error,
    hint: &str,
) -> Failure {
    let message = format!("cannot {what} `{place}`: {error}");
    Failure {
        code: ErrorCode::StartFailed,
        message,
        hint: hint.to_owned(),
    }
}

/// Serves until SIGTERM or Ctrl-C, then stops listening, ends the sessions and closes the admin
/// socket.
async fn serve(
    options: &Options,
    config: &Config,
    registry: &Arc<Registry>,
    admin_token: Option<Secret>,
) -> Result<(), Failure> {
    let mut terminate = signal_stream(SignalKind::terminate())?;
    let mut interrupt = signal_stream(SignalKind::interrupt())?;
    let (listen, front) = tcp(options.listen, |listener| {
        registry.serve(DoorListener::Tcp(listener))
    })?;
    let admin = match (options.admin_listen, admin_token) {
        (Some(address), Some(token)) => Some(tcp(address, |listener| {
            registry.serve_admin_tcp(listener, &token)
        })?),
        _ => None,
    };
    let usual = config.state.join("doors/admin.sock");
    let socket_path = options.admin_socket.clone().unwrap_or(usual);
    let socket = registry
        .serve_admin(options.admin_socket.as_deref())
        .map_err(|error| {
            start_failure(
                "serve the admin socket",
                &socket_path.display(),
                &error,
                "give another --admin-socket PATH",
            )
        })?;
    let addresses = ProxyAddresses {
        listen,
        admin_socket: socket_path,
        admin_listen: admin.as_ref().map(|(address, _)| address.clone()),
        pid: std::process::id(),
    };
    addresses.print(options.json)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    front.abort();
    if let Some((_, admin)) = admin {
        admin.abort();
    }
    registry.stop().await;
    socket.close();
    Ok(())
}

fn signal_stream(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::internal(format!("cannot wait for signals: {error}")))
}

/// Binds a TCP listener and starts its server task.
fn tcp(
    address: SocketAddr,
    serve: impl FnOnce(TcpListener) -> io::Result<JoinHandle<()>>,
) -> Result<(String, JoinHandle<()>), Failure> {
    let listening = TcpListener::bind(address).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((format!("http://{address}"), serve(listener)?))
    });
    listening.map_err(|error| {
        start_failure(
            "listen on",
            &address,
            &error,
            "choose another address; port 0 selects a free port",
        )
    })
}

impl Options {
    /// Refuses public addresses without the option: other machines could read or guess tokens.
    fn check_addresses(&self) -> Result<(), Failure> {
        let addresses = [
            ("--listen", Some(self.listen)),
            ("--admin-listen", self.admin_listen),
        ];
        for (option, address) in addresses {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback())
                && !self.dangerously_listen_publicly
            {
                return Err(Failure::invalid(
                    format!(
                        "`{option} {address}` is reachable from other machines, and tokens would be sent unencrypted"
                    ),
                    "listen on 127.0.0.1 behind a TLS proxy, or give --dangerously-listen-publicly",
                ));
            }
        }
        Ok(())
    }
}

impl ProxyAddresses {
    fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        let mut text = format!(
            "listen        {}\nadmin socket  {}\n",
            self.listen,
            self.admin_socket.display()
        );
        if let Some(admin) = &self.admin_listen {
            _ = writeln!(text, "admin         {admin}");
        }
        print(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        options: Options,
    }

    fn checked(words: &[&str]) -> Result<(), String> {
        let line = Words::try_parse_from([&["proxy"], words].concat())
            .map_err(|error| error.to_string())?;
        line.options
            .check_addresses()
            .map_err(|failure| failure.message)
    }

    #[test]
    fn other_machines_are_let_in_only_by_a_word_that_says_what_it_does() {
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["--listen", "[::1]:0"]), Ok(()));
        for address in [
            "0.0.0.0:1",
            "10.0.0.1:1",
            "[::]:1",
            "[::ffff:127.0.0.1]:1",
            "169.254.1.1:1",
        ] {
            let refused = checked(&["--listen", address]).unwrap_err();
            assert!(
                refused.contains("is reachable from other machines"),
                "{refused}"
            );
            assert_eq!(
                checked(&["--listen", address, "--dangerously-listen-publicly"]),
                Ok(())
            );
        }
        let admin = ["--admin-token-file", "f", "--admin-listen", "0.0.0.0:1"];
        assert!(
            checked(&admin)
                .unwrap_err()
                .starts_with("`--admin-listen 0.0.0.0:1`")
        );
    }

    #[test]
    fn the_admin_listens_on_tcp_only_behind_a_token() {
        assert!(
            checked(&["--admin-listen", "127.0.0.1:1"])
                .unwrap_err()
                .contains("--admin-token-file")
        );
        assert!(
            checked(&["--admin-token-file", "f"])
                .unwrap_err()
                .contains("--admin-listen")
        );
    }
}
