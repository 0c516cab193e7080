//! Our door, as the engine opens it, in a process of its own with one thread: one rule for tunnels to the server, one that
//! looks inside and puts the credential in. The ledger is written.

use crate::egress::{
    Trouble,
    origin::{KEY, NAME},
};
use clap::Args;
use doors::{
    egress::{Credential, Egress, EgressSettings, InjectionMethod},
    ledger::{Durability, Ledger},
    secrets::{KeySource, Secrets},
};
use spec::{EgressGrant, EgressMode, EgressRule, HostPattern, Ports};
use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What it is for.
#[derive(Args)]
pub(crate) struct Order {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    plain: SocketAddr,
    #[arg(long)]
    secure: SocketAddr,
    #[arg(long)]
    ca: PathBuf,
    #[arg(long)]
    folder: PathBuf,
}

/// Where it writes the certificate that its clients trust.
pub(crate) const CERTIFICATE: &str = "door-ca.pem";

pub(crate) fn run(order: &Order) -> Result<(), Trouble> {
    let key = order.folder.join("key");
    write_key(&key)?;
    let bad = |error: &dyn std::fmt::Display| Trouble::Door(error.to_string());
    let host = |text: &str| text.parse::<HostPattern>().map_err(|error| bad(&error));
    let rule = |name: &str, text: &str, port, mode| -> Result<EgressRule, Trouble> {
        let rule = EgressRule::tunnel(name, host(text)?, Ports::These(vec![port]));
        Ok(EgressRule {
            mode,
            allow_private: true,
            ..rule
        })
    };
    let looking = EgressMode::Inspect {
        allow: Vec::new(),
        credential: Some("key".to_owned()),
        allow_upgrade: false,
    };
    let rules = vec![
        rule(
            "tunnel",
            &order.plain.ip().to_string(),
            order.plain.port(),
            EgressMode::Tunnel,
        )?,
        rule("inspect", NAME, order.secure.port(), looking)?,
    ];
    let credential = Credential {
        key: KeySource::File(key),
        inject: InjectionMethod::Bearer,
        hosts: vec![host(NAME)?],
    };
    let settings = EgressSettings {
        credentials: BTreeMap::from([("key".to_owned(), credential)]),
        ca: Some(order.ca.clone()),
        ..EgressSettings::default()
    };
    let ledger = Arc::new(Ledger::open(
        &order.folder.join("ledger"),
        "bench",
        Durability::Process,
    )?);
    let grant = EgressGrant {
        rules,
        ..EgressGrant::default()
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let door = Egress::open("bench", &grant, &settings, &Secrets::default(), ledger).await;
            let door = door.map_err(|error| bad(&error))?;
            fs::write(
                order.folder.join(CERTIFICATE),
                door.certificate().unwrap_or_default(),
            )?;
            door.serve(TcpListener::bind(order.listen)?)
                .map_err(|error| bad(&error))?;
            std::future::pending().await
        })
}

fn write_key(path: &Path) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(KEY.as_bytes())
}
