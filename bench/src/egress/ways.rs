//! The ways to the server: none between, the least that a relay can be, tinyproxy, squid, mitmproxy, ours.

use crate::egress::{
    Trouble, client,
    door::CERTIFICATE,
    origin::{KEY, Origin},
};
use crate::peers::{Process, Processors};
use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

/// mitmproxy makes its keys first.
const LONGEST_START: Duration = Duration::from_secs(60);

/// One column.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) duties: &'static str,
    pub(crate) entry: Entry,
    /// None where nothing is between.
    pub(crate) process: Option<Process>,
    /// The certificate that counts for those who look inside; none for those who do not.
    pub(crate) ca: Option<PathBuf>,
    /// Whether it is measured as a tunnel.
    pub(crate) tunnels: bool,
}

/// How a connection to the server begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// At the server itself.
    Server,
    /// At someone who goes there anyway.
    Relay(SocketAddr),
    /// With CONNECT.
    Proxy(SocketAddr),
}

/// Where programs are; a way without its program is not run.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) tinyproxy: Option<PathBuf>,
    pub(crate) squid: Option<PathBuf>,
    pub(crate) mitmdump: Option<PathBuf>,
}

/// What a way needs to start.
struct Place<'a> {
    origin: &'a Origin,
    folder: PathBuf,
    listen: SocketAddr,
}

/// What a program is started with.
type Arguments = fn(&Place<'_>) -> io::Result<Vec<String>>;
type Row<'a> = (
    &'static str,
    &'static str,
    &'a Option<PathBuf>,
    Arguments,
    Option<&'static str>,
);
type Ways = (Vec<Way>, Vec<(&'static str, String)>);

/// Starts all that can be; beside them, why others were not.
pub(crate) fn start(
    programs: &Programs,
    origin: &Origin,
    folder: &Path,
    processors: Processors,
) -> Result<Ways, Trouble> {
    let own = Some(std::env::current_exe()?);
    let mut ways = vec![Way {
        name: "direct",
        duties: "nothing between",
        entry: Entry::Server,
        process: None,
        ca: Some(origin.ca.clone()),
        tunnels: true,
    }];
    let mut missing = Vec::new();
    let rows: [Row<'_>; 5] = [
        (
            "relay",
            "splice to one place, two threads a connection",
            &own,
            relay,
            None,
        ),
        (
            "tinyproxy",
            "CONNECT, no rules",
            &programs.tinyproxy,
            tinyproxy,
            None,
        ),
        (
            "squid",
            "CONNECT, one rule, no log, no cache",
            &programs.squid,
            squid,
            None,
        ),
        (
            "mitmproxy",
            "TLS ends, credential put in",
            &programs.mitmdump,
            mitmproxy,
            Some("mitmproxy-ca-cert.pem"),
        ),
        (
            "ours",
            "rules, limits, first message of TLS read, ledger; TLS ends, credential put in",
            &own,
            ours,
            Some(CERTIFICATE),
        ),
    ];
    for (name, duties, program, arguments, ca) in rows {
        let Some(program) = program else {
            missing.push((name, "its program was not found".to_owned()));
            continue;
        };
        match begin(name, program, (origin, processors), folder, arguments) {
            Ok((process, place)) => ways.push(Way {
                name,
                duties,
                entry: if name == "relay" {
                    Entry::Relay(place.listen)
                } else {
                    Entry::Proxy(place.listen)
                },
                process: Some(process),
                ca: ca.map(|ca| place.folder.join(ca)),
                tunnels: name != "mitmproxy",
            }),
            Err(trouble) => missing.push((name, trouble.to_string())),
        }
    }
    Ok((ways, missing))
}

fn begin<'a>(
    name: &'static str,
    program: &Path,
    (origin, processors): (&'a Origin, Processors),
    folder: &Path,
    arguments: Arguments,
) -> Result<(Process, Place<'a>), Trouble> {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).map_err(|source| crate::peers::Trouble::File {
        path: folder.clone(),
        source,
    })?;
    // A port that was free a moment ago.
    let listen = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let place = Place {
        origin,
        folder,
        listen,
    };
    let mut process = Process::start(program, &arguments(&place)?, &[], &place.folder, processors)?;
    crate::peers::await_listener(name, listen, &mut process, &place.folder, LONGEST_START)?;
    Ok((process, place))
}

fn relay(place: &Place<'_>) -> io::Result<Vec<String>> {
    Ok(vec![
        "egress".to_owned(),
        "relay".to_owned(),
        place.listen.to_string(),
        place.origin.plain.to_string(),
    ])
}

fn ours(place: &Place<'_>) -> io::Result<Vec<String>> {
    let Place {
        origin,
        folder,
        listen,
    } = place;
    let path = |path: &Path| path.display().to_string();
    Ok([
        "egress",
        "door",
        "--listen",
        &listen.to_string(),
        "--plain",
        &origin.plain.to_string(),
        "--secure",
        &origin.secure.to_string(),
        "--ca",
        &path(&origin.ca),
        "--folder",
        &path(folder),
    ]
    .map(str::to_owned)
    .to_vec())
}

fn configured(
    place: &Place<'_>,
    text: &str,
    before: &[&str],
    after: &str,
) -> io::Result<Vec<String>> {
    let path = place.folder.join("config");
    fs::write(&path, text)?;
    Ok(before
        .iter()
        .copied()
        .chain([after, &path.display().to_string()])
        .map(str::to_owned)
        .collect())
}

fn tinyproxy(place: &Place<'_>) -> io::Result<Vec<String>> {
    let port = place.listen.port();
    let config =
        format!("Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 4096\nLogLevel Critical\n");
    configured(place, &config, &["-d"], "-c")
}

fn squid(place: &Place<'_>) -> io::Result<Vec<String>> {
    let config = format!(
        "http_port {}\nhttp_access allow all\ncache deny all\naccess_log none\ncache_log /dev/null\npid_filename none\n\
         max_filedescriptors 8192\npinger_enable off\nshutdown_lifetime 0 seconds\ncache_mem 8 MB\n",
        place.listen
    );
    configured(place, &config, &["-N", "-C"], "-f")
}

fn mitmproxy(place: &Place<'_>) -> io::Result<Vec<String>> {
    let Place {
        origin,
        folder,
        listen,
    } = place;
    Ok([
        "-q",
        "--listen-host",
        "127.0.0.1",
        "--listen-port",
        &listen.port().to_string(),
        "--set",
        &format!("confdir={}", folder.display()),
        "--set",
        &format!("ssl_verify_upstream_trusted_ca={}", origin.ca.display()),
        "--set",
        "flow_detail=0",
        "--modify-headers",
        &format!("/~q/authorization/Bearer {KEY}"),
    ]
    .map(str::to_owned)
    .to_vec())
}

impl Way {
    /// A connection to the server's plain part.
    pub(crate) fn open(&self, origin: &Origin) -> io::Result<TcpStream> {
        client::open(self.entry, origin.plain, &origin.plain.to_string())
    }
}
