//! `airlock serve`: the engine over HTTP, for whoever has a key.

use super::{
    Global, conclude,
    message::{self, Failure, Line},
    print, print_json,
};
use crate::config::{Config, Place, Surroundings};
use clap::Args;
use gateway::{ApiToken, Gateway, HttpListener, ServerTls};
use serde::Serialize;
use spec::{ErrorCode, Pool};
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

mod admin_key;
mod lock;
mod machine;
mod node;
mod notify;
pub(super) mod telemetry;

/// The exit status of a server of which something is left.
const NOT_STOPPED: u8 = 1;
const MOST_LEFT_SHOWN: usize = 20;
/// The same when all else did: what large runs left takes its time.
const LONGEST_CLEARING: std::time::Duration = std::time::Duration::from_secs(10);
/// How long what is made ahead and cleared away behind may take to end when something else did not.
const LONGEST_CLOSING: std::time::Duration = std::time::Duration::from_secs(3);

const EXAMPLES: &str = "\
Examples:
  airlock serve
  airlock serve --listen 127.0.0.1:0 --json
  airlock serve --listen unix:/run/airlock.sock --admin-key-file ~/.airlock-admin
  airlock serve --listen 0.0.0.0:7443 --tls-cert chain.pem --tls-key key.pem
  airlock serve --log-format json 2>> airlock.log
  airlock serve --node /etc/cynode/node.yaml
  airlock serve --print-openapi > openapi.json

The first start makes an admin's key and prints it, once:
  curl -H \"Authorization: Bearer $KEY\" localhost:7070/v1/runs -d '{\"command\": [\"echo\", \"hello\"]}'

It runs until SIGTERM or Ctrl-C, lets runs go on for a moment, then cancels them.
Exit status: 0 if all of them were stopped, 1 if not, 125 if it could not start.";

/// The options of `airlock serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Where to listen: an address, or unix:PATH [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Place>,
    /// The admin's key; made and written there (mode 0600) if the file does not exist
    #[arg(long, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    /// Certificates to present, PEM: our own first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen without TLS on an address that other machines reach: keys and output then travel unencrypted
    #[arg(long)]
    plain_http: bool,
    /// Settings of a worker node, as YAML: see docs/node.md
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// How many sandboxes of each kind to keep ready; 0 for none [default: 4]
    #[arg(long, value_name = "NUMBER")]
    pool: Option<usize>,
    /// Do not write a line for each request
    #[arg(long)]
    quiet: bool,
    /// What the lines of the log look like: text, or one JSON object each [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<spec::LogFormat>,
    /// Print one JSON object when it is ready
    #[arg(long)]
    json: bool,
    /// Print the description of the API, and exit
    #[arg(long)]
    print_openapi: bool,
}

/// What is told once it is ready.
#[derive(Debug, Serialize)]
struct Ready {
    listen: String,
    /// Only if it was made now, and is in no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    admin_key: Option<String>,
    pid: u32,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    if options.print_openapi {
        print(gateway::openapi())?;
        return Ok(0);
    }
    super::leave_no_dump()?;
    let begun = engine::HeadStart::give();
    let told = options
        .node
        .as_ref()
        .map(|file| node::Told::read(file, surroundings))
        .transpose()?;
    let config = node::configure(told.as_ref(), global, surroundings)?;
    let usual = || Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 7070)));
    let place = options
        .listen
        .clone()
        .or(config.serve.listen.clone())
        .unwrap_or_else(usual);
    options.check(&place)?;
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => Some(tls(surroundings, certificate, key)?),
        _ => None,
    };
    let lock = lock::Lock::take(&config.state)?;
    // On a full disk neither the ledger nor the database can be opened without it.
    gateway::DiskReserve::of(&config.state).release_if_full();
    let till = super::own_ledger::till(&config)?;
    reclaim(&config.state);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|error| Failure::internal(format!("cannot start the event loop: {error}")))?;
    let served = runtime.block_on(async {
        let mut settings = super::settings(&config)?;
        settings.pool = options.pool(&config);
        settings.doors.till = Some(till.clone());
        settings.doors.tenants = config.doors.tenants.clone();
        settings.artifacts.tenants = config.doors.quotas.clone();
        settings
            .guarded
            .extend(options.guarded(&surroundings.current_folder));
        let engine = engine::Engine::open_after(begun, settings)?;
        telemetry::open_log(&config, options.quiet, options.log_format)?;
        let certificate = options
            .tls_cert
            .as_ref()
            .map(|path| surroundings.current_folder.join(path));
        let node = told
            .as_ref()
            .map(node::Told::of_gateway)
            .unwrap_or_default();
        // Before anything is written: a busy port leaves neither a key that nobody saw nor the record of a start.
        let socket = Socket::bind(&place, tls.is_some())?;
        let gateway = open(
            &config,
            engine.clone(),
            node,
            options.quiet,
            certificate.as_deref(),
        )?;
        let manager = notify::Manager::of(surroundings);
        let starting = Starting {
            gateway: &gateway,
            lock: &lock,
            manager: &manager,
            hangs_up: config.telemetry.log.file.is_some(),
        };
        let served = match starting.admin_key(options, global, surroundings) {
            Ok(admin_key) => starting.serve(socket, tls, options.json, admin_key).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &served {
            gateway.record_start_failure(&failure.message);
        }
        gateway::log::flush();
        Ok(stopped(&close(engine, served?).await))
    });
    // Whatever is still under way ends with it, and settles: the ledgers are closed behind everybody. A thread that waits
    // for somebody else's lock ends with the process.
    runtime.shutdown_timeout(LONGEST_CLOSING);
    drop(till);
    remember(config.state);
    served
}

/// Ends the engine behind a server of which this is left; all that is left then.
async fn close(engine: engine::Engine, mut left: Vec<String>) -> Vec<String> {
    // What does not end by itself is not waited for where something else did not, either.
    let patience = if left.is_empty() {
        LONGEST_CLEARING
    } else {
        LONGEST_CLOSING
    };
    if tokio::time::timeout(patience, engine.close())
        .await
        .is_err()
    {
        left.push("what is cleared away behind runs".to_owned());
    }
    left
}

/// Lets the database know how far the ledger goes, however it ended, so that nobody cuts anything off. Whoever keeps the
/// database from us keeps us no longer than this; whoever asks for usage next hears what is wrong.
fn remember(state: PathBuf) {
    let (done, is_done) = std::sync::mpsc::channel();
    let read = move || {
        _ = engine::usage::UsageProjection::open(&state).and_then(|books| books.refresh());
        _ = done.send(());
    };
    if std::thread::Builder::new().spawn(read).is_ok() {
        _ = is_done.recv_timeout(LONGEST_CLOSING);
    }
}

/// Says what could not be stopped.
fn stopped(left: &[String]) -> u8 {
    if left.is_empty() {
        return 0;
    }
    let shown = left
        .iter()
        .take(MOST_LEFT_SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let more = left.len().saturating_sub(MOST_LEFT_SHOWN);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    message::say(&[
        Line::Error(format!("not everything was stopped in time: {shown}{more}")),
        Line::Hint(
            "the next start clears away what is left; give more `grace` under [serve]".to_owned(),
        ),
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
    let crate::config::Serve {
        hosts,
        folders,
        profiles,
        bounds,
        maximum,
        ..
    } = config.serve.clone();
    let (mut policy, state, jobs) = (
        config.policy.clone(),
        config.state.clone(),
        config.jobs.clone(),
    );
    let mut tenants = config.doors.quotas.clone();
    let machine = machine::Machine::look();
    policy.key_maximum = maximum.or(&policy.maximum).or(&machine.maximum());
    tenants.usual_memory = Some(machine.memory_of_tenant());
    let trace = telemetry::trace(config)?;
    let facts = telemetry::facts(config, certificate)?;
    let crate::config::Webhooks { attempts, courier } = config.webhooks.clone();
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

/// Before anybody waits for the database. That it stays large is no reason not to serve.
fn reclaim(state: &Path) {
    match store::backup::reclaim_free_pages(state) {
        Ok(0) => {}
        Ok(bytes) => {
            let gained = format!(
                "the database gave {} back that nobody needs",
                super::image::shared::size(bytes)
            );
            message::say(&[Line::Note(gained)]);
        }
        // Whoever opens it next says so.
        Err(_) => {}
    }
}

fn audit(said: &crate::config::Audit) -> store::audit::AuditSettings {
    let usual = store::audit::AuditSettings::default();
    store::audit::AuditSettings {
        durability: said.durability,
        keep_for: said.keep_for.unwrap_or(usual.keep_for),
        keep_bytes: said.keep_bytes.unwrap_or(usual.keep_bytes),
        file_bytes: said.file_bytes.unwrap_or(usual.file_bytes),
    }
}

pub(super) fn of_key(error: &gateway::ApiKeyError) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: error.hint().to_owned(),
    }
}

fn tls(surroundings: &Surroundings, certificate: &Path, key: &Path) -> Result<ServerTls, Failure> {
    let folder = &surroundings.current_folder;
    ServerTls::from_files(&folder.join(certificate), &folder.join(key)).map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: error.to_string(),
        hint: "give a chain of certificates and the key of its first, both as PEM".to_owned(),
    })
}

/// A gateway that is about to serve, and what it needs for that.
struct Starting<'a> {
    gateway: &'a Gateway,
    lock: &'a lock::Lock,
    manager: &'a notify::Manager,
    hangs_up: bool,
}

impl Starting<'_> {
    /// A key that nobody has seen yet, if one had to be made.
    fn admin_key(
        &self,
        options: &Options,
        global: &Global,
        surroundings: &Surroundings,
    ) -> Result<Option<ApiToken>, Failure> {
        let keys = self.gateway.keys();
        if let Some(file) = &options.admin_key_file {
            admin_key::read_or_make(&surroundings.current_folder.join(file), keys)?;
            return Ok(None);
        }
        if keys.has_admin().map_err(|error| of_key(&error.into()))? {
            if !options.json {
                message::say(&[Line::Note(another_key(global))]);
            }
            return Ok(None);
        }
        let made = keys.create("admin", None, &[gateway::Scope::Admin], None);
        made.map(|(_, token)| Some(token))
            .map_err(|error| of_key(&error))
    }

    /// Serves until it is told to stop; what could not be stopped then.
    async fn serve(
        &self,
        socket: Socket,
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
        self.lock.say(&socket.address);
        self.gateway.set_address(&socket.address);
        if self.hangs_up {
            telemetry::reopen_on(on(SignalKind::hangup())?);
        }
        let told = Ready {
            listen: socket.address.clone(),
            admin_key: admin_key.as_ref().map(|token| token.expose().to_owned()),
            pid: std::process::id(),
        }
        .tell(json);
        if let (Err(_), Some(unseen)) = (&told, &admin_key) {
            // The next start makes another, and shows that one.
            _ = self.gateway.keys().revoke(unseen.id());
        }
        told?;
        self.manager.ready(&socket.address);
        let living = tokio::spawn(self.manager.clone().live());
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
        // What is half made is ended with the engine.
        warming.abort();
        // While it ends it lives, too.
        living.abort();
        Ok(left)
    }
}

/// An admin's key exists, and only its hash: whoever has lost it needs another.
fn another_key(global: &Global) -> String {
    let state = global.state.as_ref().map_or(String::new(), |state| {
        format!(" --state {}", state.display())
    });
    format!(
        "an admin's key was made before, and cannot be shown again; \
         `airlock key create --name NAME --scope admin{state}` makes another"
    )
}

/// Where it listens. What connects waits until it serves.
struct Socket {
    listener: HttpListener,
    address: String,
    _file: Option<SocketFile>,
}

/// The file of a unix socket, which goes with the server.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    fn bind(place: &Place, encrypted: bool) -> Result<Socket, Failure> {
        let listening = || match place {
            Place::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let scheme = if encrypted { "https" } else { "http" };
                let address = format!("{scheme}://{}", listener.local_addr()?);
                Ok(Socket {
                    listener: HttpListener::Tcp(TcpListener::from_std(listener)?),
                    address,
                    _file: None,
                })
            }
            Place::Unix(path) => {
                remove_dead(path)?;
                Ok(Socket {
                    listener: HttpListener::Unix(bind_private(path)?),
                    address: format!("unix:{}", path.display()),
                    _file: Some(SocketFile(path.clone())),
                })
            }
        };
        listening().map_err(|error: io::Error| Failure {
            code: ErrorCode::StartFailed,
            message: format!("cannot listen on `{place}`: {error}"),
            hint: "choose another place with --listen; port 0 takes a free one".to_owned(),
        })
    }
}

/// Nobody else can connect at any time: the socket gets its place once it has its mode.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let making = folder.join(format!(".airlock-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&making)?;
    let bound = || {
        let listener = UnixListener::bind(making.join("s"))?;
        fs::set_permissions(making.join("s"), fs::Permissions::from_mode(0o600))?;
        // Unlike a rename this takes nobody's place.
        fs::hard_link(making.join("s"), path)?;
        Ok(listener)
    };
    let bound = bound();
    _ = fs::remove_file(making.join("s"));
    _ = fs::remove_dir(&making);
    bound
}

/// A socket at which nobody listens any more is in the way.
fn remove_dead(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    match is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

impl Options {
    /// Files of the server's own, which nothing it runs may be shown.
    fn guarded(&self, folder: &Path) -> Vec<PathBuf> {
        [&self.tls_key, &self.admin_key_file, &self.node]
            .into_iter()
            .flatten()
            .map(|file| folder.join(file))
            .collect()
    }

    /// Other machines could read keys and what programs print.
    fn check(&self, place: &Place) -> Result<(), Failure> {
        match place {
            Place::Tcp(address)
                if !address.ip().is_loopback() && self.tls_cert.is_none() && !self.plain_http =>
            {
                Err(Failure::invalid(
                    format!(
                        "`{address}` can be reached by other machines, and keys would travel unencrypted"
                    ),
                    "give --tls-cert and --tls-key, listen on 127.0.0.1 behind a TLS server, or say --plain-http",
                ))
            }
            Place::Tcp(_) => Ok(()),
            Place::Unix(_) if self.tls_cert.is_some() => Err(Failure::invalid(
                "TLS on a unix socket protects nothing",
                "leave --tls-cert and --tls-key away",
            )),
            Place::Unix(_) => Ok(()),
        }
    }

    fn pool(&self, config: &Config) -> Pool {
        let said = match config.pool == Pool::OFF {
            true => Pool {
                parked: 4,
                berths: 4,
                ..Pool::OFF
            },
            false => config.pool,
        };
        match self.pool {
            Some(0) => Pool::OFF,
            Some(parked) => Pool { parked, ..said },
            None => said,
        }
    }
}

impl Ready {
    fn tell(&self, json: bool) -> Result<(), Failure> {
        if json {
            return print_json(self);
        }
        print(&format!("listen     {}\n", self.listen))?;
        if let Some(key) = &self.admin_key {
            print(&format!("admin key  {key}\n"))?;
            message::say(&[Line::Note(
                "this key is shown once, and only its hash is kept".to_owned(),
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
                refused.contains("can be reached by other machines"),
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
