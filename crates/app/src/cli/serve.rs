//! `airlock serve`: the engine over HTTP, for holders of an API key.

use super::{
    Global, conclude,
    message::{self, Failure, Message},
    print, print_json,
};
use crate::config::{Config, ListenAddress, ProcessEnv};
use clap::Args;
use gateway::{ApiToken, Gateway, HttpListener, ServerTls};
use serde::Serialize;
use spec::{ErrorCode, PoolSettings};
use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{SignalKind, signal},
    sync::watch,
};

mod admin_key_file;
mod machine_limits;
mod node_settings;
mod state_lock;
mod systemd_notify;
pub(super) mod telemetry;

/// Exit status of a server that could not stop everything.
const NOT_STOPPED: u8 = 1;
const MAX_SHOWN: usize = 20;
/// How long the engine may take to clean up after runs when everything else has stopped: large runs
/// leave much to remove.
const CLEANUP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// How long pools and cleanup may take to end when something else did not stop.
const CLOSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

const EXAMPLES: &str = "\
Examples:
  airlock serve
  airlock serve --listen 127.0.0.1:0 --json
  airlock serve --listen unix:/run/airlock.sock --admin-key-file ~/.airlock-admin
  airlock serve --listen 0.0.0.0:7443 --tls-cert chain.pem --tls-key key.pem
  airlock serve --log-format json 2>> airlock.log
  airlock serve --node /etc/cynode/node.yaml
  airlock serve --print-openapi > openapi.json

The first start creates an admin key and prints it once:
  curl -H \"Authorization: Bearer $KEY\" localhost:7070/v1/runs -d '{\"command\": [\"echo\", \"hello\"]}'

It runs until SIGTERM or Ctrl-C, then waits for runs during `grace`, and cancels the rest.
Exit status: 0 if everything was stopped, 1 if not, 125 if it could not start.";

/// The options of `airlock serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The listen address: HOST:PORT, or unix:PATH [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<ListenAddress>,
    /// File with the admin's key; created (mode 0600) if it does not exist
    #[arg(long, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// The certificate chain, PEM: the server's own first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Allow an address that other machines can reach without TLS: keys and output are then sent
    /// unencrypted
    #[arg(long)]
    plain_http: bool,
    /// Settings of a worker node as YAML, see docs/node.md
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// How many sandboxes of each kind to keep ready; 0 disables the pool [default: 4]
    #[arg(long, value_name = "NUMBER")]
    pool: Option<usize>,
    /// Do not log requests
    #[arg(long)]
    quiet: bool,
    /// Log format: text, or one JSON object a line [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<spec::LogFormat>,
    /// Print one JSON object when it is ready
    #[arg(long)]
    json: bool,
    /// Print the OpenAPI description, and exit
    #[arg(long)]
    print_openapi: bool,
}

/// Printed when the server is ready.
#[derive(Debug, Serialize)]
struct ReadyMessage {
    listen: String,
    /// Present only if the key was created now and is in no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_key: Option<String>,
    pid: u32,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if options.print_openapi {
        print(gateway::openapi())?;
        return Ok(0);
    }
    super::leave_no_dump()?;
    let launcher = engine::PrespawnedLauncher::give();
    let node_file = options
        .node
        .as_ref()
        .map(|file| node_settings::NodeSettings::read(file, env))
        .transpose()?;
    let config = node_settings::configure(node_file.as_ref(), global, env)?;
    let default_listen = || ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 7070)));
    let place = options
        .listen
        .clone()
        .or(config.serve.listen.clone())
        .unwrap_or_else(default_listen);
    options.check(&place)?;
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(tls(env, certificate, key)?),
        _ => None,
    };
    let lock = state_lock::StateLock::take(&config.state)?;
    // On a full disk, neither ledger nor database can be opened without the reserve.
    gateway::DiskReserve::of(&config.state).release_if_full();
    let budgets = super::ledger_owner::open_budgets(&config)?;
    reclaim_database(&config.state);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))?;
    let served = runtime.block_on(async {
        let mut settings = super::settings(&config)?;
        settings.pool = options.pool(&config);
        settings.doors.till = Some(budgets.clone());
        settings.doors.tenants = config.doors.tenants.clone();
        settings.artifacts.tenants = config.doors.quotas.clone();
        settings
            .guarded
            .extend(options.guarded_files(&env.current_folder));
        let engine = engine::Engine::open_after(launcher, settings)?;
        telemetry::open_log(&config, options.quiet, options.log_format)?;
        let certificate = options
            .tls_cert
            .as_ref()
            .map(|path| env.current_folder.join(path));
        let node = node_file
            .as_ref()
            .map(node_settings::NodeSettings::gateway_settings)
            .unwrap_or_default();
        // The socket is bound before anything is written: a busy port must leave neither an unseen
        // key nor a record of a start.
        let socket = ListenSocket::bind(&place, tls.is_some())?;
        let gateway = open(
            &config,
            engine.clone(),
            node,
            options.quiet,
            certificate.as_deref(),
        )?;
        let manager = systemd_notify::ServiceManager::from_env(env);
        let starting = StartingServer {
            gateway: &gateway,
            lock: &lock,
            manager: &manager,
            reopens_log: config.telemetry.log.file.is_some(),
        };
        let served = match starting.admin_key(options, global, env) {
            Ok(admin_key) => starting.serve(socket, tls, options.json, admin_key).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &served {
            gateway.record_start_failure(&failure.message);
        }
        gateway::log::flush();
        Ok(stopped(&close(engine, served?).await))
    });
    // Shutting the runtime down ends and settles open calls, so that the ledgers close last.
    // Threads that wait for a lock of another process end with this process.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    drop(budgets);
    refresh_usage(config.state);
    served
}

/// Closes the engine after the server. Takes and returns what could not be stopped.
async fn close(engine: engine::Engine, mut left: Vec<String>) -> Vec<String> {
    // Where something else did not stop, cleanup gets less time.
    let timeout = if left.is_empty() {
        CLEANUP_TIMEOUT
    } else {
        CLOSE_TIMEOUT
    };
    if tokio::time::timeout(timeout, engine.close()).await.is_err() {
        left.push("cleanup after runs".to_owned());
    }
    left
}

/// Copies the ledger's end into the database, so that a truncation is detected later. A database
/// that another process blocks delays the exit by `CLOSE_TIMEOUT` at most; errors are reported by
/// the next reader.
fn refresh_usage(state: PathBuf) {
    let (done, is_done) = std::sync::mpsc::channel();
    let read = move || {
        _ = engine::usage::UsageProjection::open(&state).and_then(|books| books.refresh());
        _ = done.send(());
    };
    if std::thread::Builder::new().spawn(read).is_ok() {
        _ = is_done.recv_timeout(CLOSE_TIMEOUT);
    }
}

/// Reports what could not be stopped, and returns the exit status.
fn stopped(left: &[String]) -> u8 {
    if left.is_empty() {
        return 0;
    }
    let shown = left
        .iter()
        .take(MAX_SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let more = left.len().saturating_sub(MAX_SHOWN);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    message::print(&[
        Message::Error(format!("not everything was stopped in time: {shown}{more}")),
        Message::Hint("the next start cleans up; allow more `grace` under [serve]".to_owned()),
    ]);
    NOT_STOPPED
}

fn open(
    config: &Config,
    engine: engine::Engine,
    node: gateway::NodeSettings,
    quiet: bool,
    certificate: Option<&Path>,
) -> Result<Gateway, Failure> {
    let crate::config::ServeConfig {
        hosts,
        folders,
        profiles,
        bounds,
        maximum,
        ..
    } = config.serve.clone();
    let mut policy = config.policy.clone();
    let state = config.state.clone();
    let jobs = config.jobs.clone();
    let mut tenants = config.doors.quotas.clone();
    let machine = machine_limits::MachineSize::read();
    policy.key_maximum = maximum.or(&policy.maximum).or(&machine.maximum());
    tenants.default_memory = Some(machine.tenant_memory());
    let trace = telemetry::trace(config)?;
    let facts = telemetry::facts(config, certificate)?;
    let crate::config::WebhooksConfig { attempts, courier } = config.webhooks.clone();
    let webhooks = gateway::WebhookSettings { attempts, courier };
    let settings = gateway::GatewaySettings {
        engine,
        policy,
        state,
        hosts,
        folders,
        profiles,
        bounds,
        jobs,
        tenants,
        webhooks,
        node,
        audit: audit(&config.audit),
        keep_ledger: config.doors.keep_ledger,
        quiet,
        trace,
        facts,
    };
    Gateway::new(settings).map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: error.hint().to_owned(),
    })
}

/// Compacts the database before the server needs it. A failure is no reason not to serve.
fn reclaim_database(state: &Path) {
    match store::backup::reclaim_free_pages(state) {
        Ok(0) => {}
        Ok(bytes) => {
            let gained = format!(
                "the database was compacted by {}",
                super::size::human_size(bytes)
            );
            message::print(&[Message::Note(gained)]);
        }
        // The next reader of the database reports the error.
        Err(_) => {}
    }
}

fn audit(config: &crate::config::AuditConfig) -> store::audit::AuditSettings {
    let default = store::audit::AuditSettings::default();
    store::audit::AuditSettings {
        durability: config.durability,
        keep_for: config.keep_for.unwrap_or(default.keep_for),
        keep_bytes: config.keep_bytes.unwrap_or(default.keep_bytes),
        file_bytes: config.file_bytes.unwrap_or(default.file_bytes),
    }
}

pub(super) fn key_failure(error: &gateway::ApiKeyError) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: error.hint().to_owned(),
    }
}

fn tls(env: &ProcessEnv, certificate: &Path, key: &Path) -> Result<ServerTls, Failure> {
    let folder = &env.current_folder;
    ServerTls::from_files(&folder.join(certificate), &folder.join(key)).map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: "give a chain of certificates and the key of its first, both as PEM".to_owned(),
    })
}

/// A gateway that is about to serve, with everything it needs.
struct StartingServer<'a> {
    gateway: &'a Gateway,
    lock: &'a state_lock::StateLock,
    manager: &'a systemd_notify::ServiceManager,
    reopens_log: bool,
}

impl StartingServer<'_> {
    /// A new admin key, if none exists.
    fn admin_key(
        &self,
        options: &Options,
        global: &Global,
        env: &ProcessEnv,
    ) -> Result<Option<ApiToken>, Failure> {
        let keys = self.gateway.keys();
        if let Some(file) = &options.admin_key_file {
            admin_key_file::read_or_make(&env.current_folder.join(file), keys)?;
            return Ok(None);
        }
        if keys
            .has_admin()
            .map_err(|error| key_failure(&error.into()))?
        {
            if !options.json {
                message::print(&[Message::Note(existing_key_note(global))]);
            }
            return Ok(None);
        }
        let made = keys.create("admin", None, &[gateway::Scope::Admin], None);
        made.map(|(_, token)| Some(token))
            .map_err(|error| key_failure(&error))
    }

    /// Serves until SIGTERM or Ctrl-C. Returns what could not be stopped.
    async fn serve(
        &self,
        socket: ListenSocket,
        tls: Option<ServerTls>,
        json: bool,
        admin_key: Option<ApiToken>,
    ) -> Result<Vec<String>, Failure> {
        let on = |kind| {
            signal(kind)
                .map_err(|error| Failure::internal(format!("cannot wait for signals: {error}")))
        };
        let (mut terminate, mut interrupt) =
            (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        self.lock.write_owner(&socket.address);
        self.gateway.set_address(&socket.address);
        if self.reopens_log {
            telemetry::reopen_on(on(SignalKind::hangup())?);
        }
        let printed = ReadyMessage {
            listen: socket.address.clone(),
            admin_key: admin_key.as_ref().map(|token| token.expose().to_owned()),
            pid: std::process::id(),
        }
        .tell(json);
        if let (Err(_), Some(unseen)) = (&printed, &admin_key) {
            // The key was not shown, so it is revoked: the next start creates and shows another.
            _ = self.gateway.keys().revoke(unseen.id());
        }
        printed?;
        self.manager.ready(&socket.address);
        let living = tokio::spawn(self.manager.clone().send_watchdog());
        let (stop, stopped) = watch::channel(false);
        let warming = {
            let gateway = self.gateway.clone();
            tokio::spawn(async move { gateway.warm().await })
        };
        let served = self.gateway.serve(socket.listener, tls, stopped);
        tokio::pin!(served);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            left = &mut served => return Ok(left),
        }
        self.manager.stopping();
        stop.send_replace(true);
        let left = served.await;
        // Sandboxes in preparation end with the engine.
        warming.abort();
        // The watchdog is fed until the server has stopped.
        living.abort();
        Ok(left)
    }
}

/// Tells how to create another admin key: of the existing one, only the hash is stored.
fn existing_key_note(global: &Global) -> String {
    let state = global.state.as_ref().map_or(String::new(), |state| {
        format!(" --state {}", state.display())
    });
    format!(
        "an admin key exists already, and cannot be shown again; \
         `airlock key create --name NAME --scope admin{state}` creates another"
    )
}

/// A bound listener. Connections queue until the server accepts them.
struct ListenSocket {
    listener: HttpListener,
    address: String,
    _file: Option<SocketFile>,
}

/// A unix socket's file, removed when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

impl ListenSocket {
    fn bind(place: &ListenAddress, encrypted: bool) -> Result<ListenSocket, Failure> {
        let listening = || match place {
            ListenAddress::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let scheme = if encrypted { "https" } else { "http" };
                let address = format!("{scheme}://{}", listener.local_addr()?);
                Ok(ListenSocket {
                    listener: HttpListener::Tcp(TcpListener::from_std(listener)?),
                    address,
                    _file: None,
                })
            }
            ListenAddress::Unix(path) => {
                remove_stale_socket(path)?;
                Ok(ListenSocket {
                    listener: HttpListener::Unix(bind_private(path)?),
                    address: format!("unix:{}", path.display()),
                    _file: Some(SocketFile(path.clone())),
                })
            }
        };
        listening().map_err(|error: io::Error| Failure {
            code: ErrorCode::StartFailed,
            message: format!("cannot listen on `{place}`: {error}"),
            hint: "choose another address with --listen; port 0 selects a free port".to_owned(),
        })
    }
}

/// Binds a unix socket that only this user can connect to at any time: it is linked to its path
/// after its mode is set.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let staging = folder.join(format!(".airlock-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&staging)?;
    let bound = || {
        let listener = UnixListener::bind(staging.join("s"))?;
        fs::set_permissions(staging.join("s"), fs::Permissions::from_mode(0o600))?;
        // Unlike a rename, a link does not replace an existing file.
        fs::hard_link(staging.join("s"), path)?;
        Ok(listener)
    };
    let bound = bound();
    _ = fs::remove_file(staging.join("s"));
    _ = fs::remove_dir(&staging);
    bound
}

/// Removes a socket without a listener.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        fs::remove_file(path)
    } else {
        Ok(())
    }
}

impl Options {
    /// The server's own files, which no sandbox may be shown.
    fn guarded_files(&self, folder: &Path) -> Vec<PathBuf> {
        [&self.tls_key, &self.admin_key_file, &self.node]
            .into_iter()
            .flatten()
            .map(|file| folder.join(file))
            .collect()
    }

    /// Refuses public addresses without TLS: other machines could read keys and output.
    fn check(&self, place: &ListenAddress) -> Result<(), Failure> {
        match place {
            ListenAddress::Tcp(address)
                if !address.ip().is_loopback() && self.tls_cert.is_none() && !self.plain_http =>
            {
                Err(Failure::invalid(
                    format!(
                        "`{address}` is reachable from other machines, and keys would be sent unencrypted"
                    ),
                    "give --tls-cert and --tls-key, listen on 127.0.0.1 behind a TLS proxy, or give --plain-http",
                ))
            }
            ListenAddress::Tcp(_) => Ok(()),
            ListenAddress::Unix(_) if self.tls_cert.is_some() => Err(Failure::invalid(
                "TLS is not supported on a unix socket",
                "omit --tls-cert and --tls-key",
            )),
            ListenAddress::Unix(_) => Ok(()),
        }
    }

    fn pool(&self, config: &Config) -> PoolSettings {
        let configured = if config.pool == PoolSettings::OFF {
            PoolSettings {
                warm_sandboxes: 4,
                prepared_namespaces: 4,
                ..PoolSettings::OFF
            }
        } else {
            config.pool
        };
        match self.pool {
            Some(0) => PoolSettings::OFF,
            Some(warm_sandboxes) => PoolSettings {
                warm_sandboxes,
                ..configured
            },
            None => configured,
        }
    }
}

impl ReadyMessage {
    fn tell(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        print(&format!("listen     {}\n", self.listen))?;
        if let Some(key) = &self.admin_key {
            print(&format!("admin key  {key}\n"))?;
            message::print(&[Message::Note(
                "this key is shown only once; the server stores its hash".to_owned(),
            )]);
        }
        Ok(())
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
        let line = Words::try_parse_from([&["serve"], words].concat())
            .map_err(|error| error.to_string())?;
        let place = line.options.listen.clone().expect("the test gives one");
        line.options
            .check(&place)
            .map_err(|failure| failure.message)
    }

    #[test]
    fn other_machines_are_let_in_with_tls_or_by_a_word_that_says_what_it_does() {
        assert_eq!(checked(&["--listen", "[::1]:0"]), Ok(()));
        assert_eq!(checked(&["--listen", "unix:/x"]), Ok(()));
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
            assert_eq!(checked(&["--listen", address, "--plain-http"]), Ok(()));
            assert_eq!(
                checked(&["--listen", address, "--tls-cert", "c", "--tls-key", "k"]),
                Ok(())
            );
        }
        assert!(
            checked(&["--listen", "0.0.0.0:1", "--tls-cert", "c"])
                .unwrap_err()
                .contains("--tls-key")
        );
        assert!(checked(&["--listen", "unix:/x", "--tls-cert", "c", "--tls-key", "k"]).is_err());
        assert!(
            checked(&["--listen", "localhost:1"])
                .unwrap_err()
                .contains("write an address")
        );
    }
}
