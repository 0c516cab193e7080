//! The ways to the provider: none between, nginx, LiteLLM, ours. Each is set up for the same job: pass a chat call on with
//! the provider's key in place of the caller's.

use crate::doors::{
    Trouble,
    client::{Connection, Target, body},
};
use crate::peers::{Process, Processors};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::runtime::Runtime;

/// What the provider lets in; a gateway puts it in.
pub(crate) const KEY: &str = "sk-mock-provider-key";
/// LiteLLM needs half a minute on a busy machine.
const LONGEST_START: Duration = Duration::from_secs(180);

/// One row.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// What it does besides passing on.
    pub(crate) duties: &'static str,
    pub(crate) target: Target,
    /// How many streams it is asked for at once: one that falls behind would spoil what comes after.
    pub(crate) most_streams: usize,
    /// None where nothing is between.
    pub(crate) gateway: Option<Process>,
}

/// Where programs are; a way without its program is not run.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) nginx: Option<PathBuf>,
    pub(crate) litellm: Option<PathBuf>,
    pub(crate) airlock: Option<PathBuf>,
}

/// What a way needs to start.
struct Place<'a> {
    provider: SocketAddr,
    folder: &'a Path,
    listen: SocketAddr,
}

impl Place<'_> {
    fn write(&self, name: &str, text: &str) -> Result<String, Trouble> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|source| crate::peers::Trouble::File {
            path: path.clone(),
            source,
        })?;
        Ok(path.display().to_string())
    }
}

type Start = fn(&Place<'_>, &Path) -> Result<(Process, String), Trouble>;

/// Starts all that can be; beside them, why others were not.
pub(crate) fn start(
    programs: &Programs,
    provider: SocketAddr,
    folder: &Path,
) -> (Vec<Way>, Vec<(&'static str, String)>) {
    let direct = Target {
        address: provider,
        token: KEY.to_owned(),
    };
    let many = usize::MAX;
    let mut ways = vec![Way {
        name: "direct",
        duties: "none",
        target: direct,
        most_streams: many,
        gateway: None,
    }];
    let mut missing = Vec::new();
    let rows: [(&str, &str, usize, &Option<PathBuf>, Start); 4] = [
        ("nginx", "key put in", many, &programs.nginx, nginx),
        (
            "nginx-log",
            "key put in, JSON access log",
            many,
            &programs.nginx,
            nginx_with_log,
        ),
        (
            "litellm",
            "session key, key put in, metering (no database)",
            32,
            &programs.litellm,
            litellm,
        ),
        (
            "ours",
            "session, key put in, metering, budget, ledger",
            many,
            &programs.airlock,
            ours,
        ),
    ];
    for (name, duties, most_streams, program, start) in rows {
        match program
            .as_deref()
            .map(|program| begin(name, program, provider, folder, start))
        {
            Some(Ok((gateway, target))) => {
                ways.push(Way {
                    name,
                    duties,
                    target,
                    most_streams,
                    gateway: Some(gateway),
                });
            }
            Some(Err(trouble)) => missing.push((name, trouble.to_string())),
            None => missing.push((name, "its program was not found".to_owned())),
        }
    }
    (ways, missing)
}

fn begin(
    name: &'static str,
    program: &Path,
    provider: SocketAddr,
    folder: &Path,
    start: Start,
) -> Result<(Process, Target), Trouble> {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).map_err(|source| crate::peers::Trouble::File {
        path: folder.clone(),
        source,
    })?;
    let address = free_address()?;
    let place = Place {
        provider,
        folder: &folder,
        listen: address,
    };
    let (mut gateway, token) = start(&place, program)?;
    crate::peers::await_listener(name, address, &mut gateway, &folder, LONGEST_START)?;
    // Ours gives tokens out only when it runs.
    let token = if token.is_empty() {
        session(&folder.join("admin.sock"))?
    } else {
        token
    };
    Ok((gateway, Target { address, token }))
}

/// Those that answer a call; beside them, what others said instead.
pub(crate) fn that_answer(
    ways: Vec<Way>,
    runtime: &Runtime,
) -> (Vec<Way>, Vec<(&'static str, String)>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for way in ways {
        let request = way.target.chat(&body("mock", true, 16));
        let asked = runtime.block_on(async {
            Connection::open(way.target.address)
                .await?
                .ask(&request)
                .await
        });
        match asked {
            Ok(_) => good.push(way),
            Err(error) => bad.push((way.name, error.to_string())),
        }
    }
    (good, bad)
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr, Trouble> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Trouble::Address)?;
    listener.local_addr().map_err(Trouble::Address)
}

fn run(
    place: &Place<'_>,
    program: &Path,
    arguments: &[String],
    environment: &[(&str, &str)],
) -> Result<Process, Trouble> {
    Ok(Process::start(
        program,
        arguments,
        environment,
        place.folder,
        Processors::Apart,
    )?)
}

fn nginx(place: &Place<'_>, program: &Path) -> Result<(Process, String), Trouble> {
    nginx_as(place, program, "access_log off;")
}

fn nginx_with_log(place: &Place<'_>, program: &Path) -> Result<(Process, String), Trouble> {
    let format = r#"log_format json escape=json '{"time":"$time_iso8601","request":"$request","status":$status,"sent":$bytes_sent,"seconds":$request_time,"upstream":"$upstream_addr"}';"#;
    let log = place.folder.join("access");
    nginx_as(
        place,
        program,
        &format!("{format} access_log {} json;", log.display()),
    )
}

fn nginx_as(place: &Place<'_>, program: &Path, log: &str) -> Result<(Process, String), Trouble> {
    let (folder, provider, listen) = (place.folder.display(), place.provider, place.listen);
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name};\n"))
        .concat();
    let config = format!(
        "{user} daemon off; worker_processes 1; worker_rlimit_nofile 8192; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 4096; }}
http {{
{paths}{log} keepalive_requests 100000000; client_body_buffer_size 1m; client_max_body_size 64m;
upstream mock {{ server {provider}; keepalive 256; keepalive_requests 100000000; }}
server {{ listen {listen} backlog=4096; location / {{ proxy_pass http://mock; proxy_http_version 1.1; proxy_buffering off;
proxy_set_header Connection \"\"; proxy_set_header Authorization \"Bearer {KEY}\"; }} }}
}}\n"
    );
    let config = place.write("nginx.conf", &config)?;
    let arguments = [
        "-e",
        &format!("{folder}/log"),
        "-p",
        &folder.to_string(),
        "-c",
        &config,
    ]
    .map(str::to_owned);
    Ok((run(place, program, &arguments, &[])?, "anybody".to_owned()))
}

fn litellm(place: &Place<'_>, program: &Path) -> Result<(Process, String), Trouble> {
    let (provider, port) = (place.provider, place.listen.port().to_string());
    let config = format!(
        "model_list:\n  - model_name: \"*\"\n    litellm_params:\n      model: \"openai/*\"\n      \
         api_base: http://{provider}/v1\n      api_key: {KEY}\ngeneral_settings:\n  master_key: sk-bench\n"
    );
    let config = place.write("config.yaml", &config)?;
    let arguments = [
        "--config",
        &config,
        "--host",
        "127.0.0.1",
        "--port",
        &port,
        "--num_workers",
        "1",
    ]
    .map(str::to_owned);
    let environment = [
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        ("LITELLM_TELEMETRY", "False"),
        ("LITELLM_LOG", "ERROR"),
    ];
    Ok((
        run(place, program, &arguments, &environment)?,
        "sk-bench".to_owned(),
    ))
}

/// Everything is on: session token, prices, metering, ledger.
fn ours(place: &Place<'_>, program: &Path) -> Result<(Process, String), Trouble> {
    let provider = place.provider;
    let config = format!(
        "[provider.mock]\ndialect = \"openai\"\nbase = \"http://{provider}\"\nkey = {{ env = \"MOCK_KEY\" }}\n\
         allow_plain_http = true\nallow_private = true\n\n[doors]\nconnections = 4096\nconcurrent = 4096\n\n[prices.\"*\"]\ninput = 1.0\noutput = 2.0\n"
    );
    let config = place.write("config.toml", &config)?;
    let at = |name: &str| place.folder.join(name).display().to_string();
    let listen = place.listen.to_string();
    let arguments = [
        "proxy",
        "--config",
        &config,
        "--state",
        &at("state"),
        "--listen",
        &listen,
        "--admin-socket",
        &at("admin.sock"),
    ];
    let gateway = run(
        place,
        program,
        &arguments.map(str::to_owned),
        &[("MOCK_KEY", KEY)],
    )?;
    Ok((gateway, String::new()))
}

/// A session's token, from our admin socket. Its budget is never spent, but kept.
fn session(socket: &Path) -> Result<String, Trouble> {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        let body = r#"{"provider":"mock","sandbox_id":"bench","budget":{"usd":1000000,"concurrent":4096}}"#;
        let length = body.len();
        write!(
            stream,
            "POST /v1/sessions HTTP/1.1\r\nhost: airlock\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|source| crate::peers::Trouble::File {
        path: socket.to_owned(),
        source,
    })?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let told: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    told["token"]
        .as_str()
        .map(str::to_owned)
        .ok_or(Trouble::NoSession { answer })
}
