//! An internet of a test's own, and the real `airlock` in it: every address there is leads to the test's servers, every
//! name to its name server, and its system trusts the test's authority. So the egress door is tested with public
//! addresses, and whatever is dialled that must not be is seen. See `README.md` beside this.
//!
//! ```no_run
//! let world = egress::World::new();
//! let ran = world.run(&["--allow-host", "a.example"], "curl -sS https://a.example/");
//! assert_eq!(ran.stdout, "a.example says hello\n");
//! ```

mod answers;
mod dns;
mod git;
mod packages;
mod place;
mod raw;
mod rewound;
mod run;
mod trust;
mod web;

pub use dns::{Query, SERVER_V4, SERVER_V6};
pub use git::Repository;
pub use place::{OWN_V4, OWN_V6};
pub use raw::RAW;
pub use run::{Live, Ran};
pub use sdk_tests::{Who, ordinary};
pub use web::{BANNER, Connection, DATAGRAM_PORT, ECHO_PORTS, HTTP_PORTS, Request, TLS_PORTS};

use bytes::Bytes;
use place::Place;
use std::{
    fs::{self, File},
    net::Ipv6Addr,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::oneshot,
};
use web::{Required, Speech, Web};

/// How long a test waits for what should come at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// The internet, and a machine in it where `airlock` runs; gone with this.
pub struct World {
    names: Arc<Mutex<dns::Names>>,
    web: Arc<Web>,
    place: Place,
    who: Who,
    program: PathBuf,
    end: Option<oneshot::Sender<()>>,
    servers: Option<JoinHandle<()>>,
}

impl World {
    /// One in which whoever runs the tests runs `airlock`.
    #[allow(clippy::new_without_default, reason = "it starts servers")]
    pub fn new() -> World {
        World::of(Who::Myself)
    }

    /// One in which somebody else does.
    pub fn of(who: Who) -> World {
        let folder = place::new_folder();
        let trust = trust::Trust::new();
        trust.furnish(&folder.join("certs"));
        let place = Place::new(folder);
        let program = run::furnish(&place.folder, who);
        let web = Arc::new(Web::new(trust, place.folder.join("git")));
        let names = Arc::<Mutex<dns::Names>>::default();
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let (network, shared) = (place.network(), (web.clone(), names.clone()));
        let servers = std::thread::spawn(move || serve(&network, shared, &ready, ended));
        is_ready
            .recv_timeout(PATIENCE)
            .expect("the servers of the world start");
        World {
            names,
            web,
            place,
            who,
            program,
            end: Some(end),
            servers: Some(servers),
        }
    }

    /// A path in the folder where `airlock` is started.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.folder.join(name)
    }

    /// Every connection since [`clear`](World::clear), at whatever address and port.
    pub fn connections(&self) -> Vec<Connection> {
        self.web.log().connections.clone()
    }

    /// What every datagram said that came to [`DATAGRAM_PORT`] since [`clear`](World::clear), at whatever address.
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        self.web.log().datagrams.clone()
    }

    /// Every request since [`clear`](World::clear).
    pub fn requests(&self) -> Vec<Request> {
        self.web.log().requests.clone()
    }

    /// Waits for a request like that.
    #[track_caller]
    pub fn await_request(&self, wanted: impl Fn(&Request) -> bool) -> Request {
        self.web.wait(PATIENCE, |log| {
            log.requests.iter().find(|request| wanted(request)).cloned()
        })
    }

    /// Forgets what came, and how often names were asked for.
    pub fn clear(&self) {
        dns::lock(&self.names).forget();
        self.web.note(|log| *log = web::Log::default());
    }

    /// Lets every request go on that is held (`/hold`).
    pub fn release(&self) {
        self.web.release();
    }

    /// This host answers the first request of a connection with these bytes and nothing else, then closes.
    pub fn says(&self, host: &str, bytes: impl Into<Bytes>) {
        self.web
            .tables()
            .verbatim
            .insert(host.to_owned(), bytes.into());
    }

    /// This host has a file at that path.
    pub fn publish(&self, host: &str, path: &str, kind: &str, content: impl Into<Bytes>) {
        let file = (kind.to_owned(), content.into());
        self.web
            .tables()
            .files
            .insert((host.to_owned(), path.to_owned()), file);
    }

    /// This host answers 401 to requests below that path, unless they have this header (or that of another such call).
    pub fn requires(&self, host: &str, below: &str, header: &str, value: &str) {
        let [host, below, header, value] = [host, below, header, value].map(str::to_owned);
        self.web.tables().required.push(Required {
            host,
            below,
            header,
            value,
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(servers) = self.servers.take() {
            // If they failed, the test saw no answers and says so.
            _ = servers.join();
        }
        _ = fs::remove_dir_all(&self.place.folder);
    }
}

/// Serves in that network until the world ends.
fn serve(
    network: &File,
    (web, names): (Arc<Web>, Arc<Mutex<dns::Names>>),
    ready: &mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
) {
    place::enter(network).expect("the network of the world");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let ports = |ports: &[u16], speech: Speech| {
            ports.iter().map(|port| (*port, speech)).collect::<Vec<_>>()
        };
        let all = [
            ports(&TLS_PORTS, Speech::Tls),
            ports(&HTTP_PORTS, Speech::Http),
            ports(&ECHO_PORTS, Speech::Echo),
        ];
        for (port, speech) in all.concat() {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .await
                .expect("a port");
            tokio::spawn(web::serve(listener, speech, web.clone()));
        }
        let names_by_tcp = TcpListener::bind(("0.0.0.0", 53)).await.expect("a port");
        tokio::spawn(dns::serve_tcp(names_by_tcp, names.clone()));
        let socket = UdpSocket::bind(("0.0.0.0", 53)).await.expect("a port");
        tokio::spawn(dns::serve(socket, names.clone()));
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, DATAGRAM_PORT))
            .await
            .expect("a port");
        tokio::spawn(web::serve_datagrams(socket, web.clone()));
        ready.send(()).expect("somebody waits");
        // Its sender is dropped.
        _ = ended.await;
    });
    // What is still being answered is nobody's any more.
    runtime.shutdown_background();
}
