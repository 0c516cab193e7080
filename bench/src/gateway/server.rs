//! `airlock serve` and nginx, as processes that are measured.

use crate::gateway::{Trouble, client::Client};
use crate::peers::{Process, Processors};
use serde_json::Value;
use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::{Duration, Instant},
};

/// How long a server may take to come up, or a pool to fill.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Our server, ready.
pub(crate) struct Airlock {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    key: String,
    /// From its start until it said that it is ready.
    pub(crate) ready_in: Duration,
}

impl Airlock {
    /// With a state of its own below this folder, which must not be there.
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Airlock, Trouble> {
        Airlock::start_with(program, folder, "")
    }

    /// The same with settings.
    pub(crate) fn start_with(
        program: &Path,
        folder: &Path,
        settings: &str,
    ) -> Result<Airlock, Trouble> {
        fs::create_dir_all(folder)?;
        let (address, key_file) = (free_address()?, folder.join("key"));
        // Not the settings of whoever measures.
        let config = folder.join("config.toml");
        fs::write(&config, settings)?;
        let shown = |path: &Path| path.display().to_string();
        let arguments = [
            "--config",
            &shown(&config),
            "--state",
            &shown(&folder.join("state")),
            "serve",
            "--quiet",
            "--listen",
            &address.to_string(),
            "--admin-key-file",
            &shown(&key_file),
        ];
        let arguments = arguments.map(str::to_owned);
        let begun = Instant::now();
        let process = Process::start(program, &arguments, &[], folder, Processors::Shared)?;
        while Client::open(address, "")
            .and_then(|mut client| client.ask("GET", "/readyz", ""))
            .is_err()
        {
            if begun.elapsed() > PATIENCE {
                let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
                return Err(Trouble::NotReady(log.trim().to_owned()));
            }
            std::thread::sleep(LOOK);
        }
        let ready_in = begun.elapsed();
        let key = fs::read_to_string(key_file)?.trim().to_owned();
        Ok(Airlock {
            process,
            address,
            key,
            ready_in,
        })
    }

    pub(crate) fn client(&self) -> io::Result<Client> {
        Client::open(self.address, &self.key)
    }

    /// A session; its id.
    pub(crate) fn session(&self, client: &mut Client, order: &str) -> io::Result<String> {
        let told: Value = serde_json::from_slice(&client.ask("POST", "/v1/sandboxes", order)?)?;
        told["sandbox_id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| io::Error::other(told.to_string()))
    }
}

/// One that nobody has right now.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// nginx, with PUT and GET of files in a folder. Its workers are ordinary users, if it was started by root.
pub(crate) struct Nginx {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Nginx {
    pub(crate) fn start(program: &Path, folder: &Path) -> Result<Nginx, Trouble> {
        let address = free_address()?;
        for name in ["files", "body"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let config = folder.join("nginx.conf");
        fs::write(&config, nginx_config(folder, address))?;
        let shown = |path: &Path| path.display().to_string();
        let arguments =
            ["-p", &shown(folder), "-c", &shown(&config), "-e", "stderr"].map(str::to_owned);
        let mut process = Process::start(program, &arguments, &[], folder, Processors::Shared)?;
        crate::peers::await_listener(
            "nginx",
            address,
            &mut process,
            folder,
            Duration::from_secs(5),
        )?;
        Ok(Nginx { process, address })
    }
}

fn nginx_config(folder: &Path, address: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "user root; daemon off; worker_processes auto; pid {folder}/pid; error_log stderr;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; client_max_body_size 0;\n\
         client_body_temp_path {folder}/body; proxy_temp_path {folder}/body; fastcgi_temp_path {folder}/body;\n\
         uwsgi_temp_path {folder}/body; scgi_temp_path {folder}/body;\n\
         server {{ listen {address}; root {folder}/files; location / {{ dav_methods PUT; }} }} }}\n"
    )
}
