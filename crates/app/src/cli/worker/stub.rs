//! What the environment and the manifest say, as far as it takes to try the loop. All of this is to be replaced:
//! `read` by `worker::settings`, `catalog` by `worker::tools`, `link` by the choice of `worker::transport`.

use super::super::message::Failure;
use crate::config::Surroundings;
use spec::ErrorCode;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use worker::{
    call::profile::Profile,
    desk::Bounds,
    sam::Defaults,
    tools::{Catalog, Code, Limits, Tool, What},
    transport::{
        Link, Patience, Subscription,
        dev::DevBroker,
        mqtt::{self, ClientId, Mqtt},
    },
    wire::{
        answer::{LARGEST, ToolCard},
        topic::Base,
    },
};

/// What the environment says.
pub(super) struct Said {
    pub(super) base: Base,
    pub(super) worker_id: String,
    pub(super) broker: Broker,
    pub(super) manifest: PathBuf,
    pub(super) tools_python: PathBuf,
    pub(super) python: PathBuf,
    pub(super) bounds: Bounds,
    pub(super) defaults: Defaults,
    pub(super) grace: Duration,
    pub(super) is_kept: bool,
}

/// Where the broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broker {
    Dev { address: String },
    Mqtt { host: String, port: u16 },
}

impl fmt::Display for Broker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broker::Dev { address } => write!(out, "tcp://{address}"),
            Broker::Mqtt { host, port } => write!(out, "mqtt://{host}:{port}"),
        }
    }
}

/// Reads the environment.
pub(super) fn read(surroundings: &Surroundings) -> Result<Said, Failure> {
    let variable = |name: &str| {
        let value = surroundings.variables.get(std::ffi::OsStr::new(name));
        value.and_then(|value| value.to_str()).filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let or = |name: &str, usual: &str| variable(name).unwrap_or_else(|| usual.to_owned());
    let Some(namespace) = variable("SAM_NAMESPACE") else {
        return Err(Failure::invalid("SAM_NAMESPACE is not set", "say whose mesh: SAM_NAMESPACE=myorg/dev"));
    };
    let base = Base::new(&namespace, "solace-agent-mesh").map_err(|error| {
        Failure::invalid(format!("SAM_NAMESPACE: {error}"), "say the same as the agents of the mesh")
    })?;
    let said = variable("SAM_TRANSPORT").or_else(|| variable("SOLACE_HOST")).or_else(|| {
        let host = variable("DEV_BROKER_HOST")?;
        Some(format!("tcp://{host}:{}", or("DEV_BROKER_PORT", "55555")))
    });
    let slots = or("SANDBOX_MAX_CONCURRENT", "4").parse().ok().filter(|slots| (1..=64).contains(slots));
    Ok(Said {
        base,
        worker_id: or("SAM_WORKER_ID", "sandbox-worker-001"),
        broker: broker(said.as_deref())?,
        manifest: surroundings.current_folder.join(or("MANIFEST_PATH", "/tools/manifest.yaml")),
        tools_python: surroundings.current_folder.join(or("TOOLS_PYTHON_DIR", "/tools/python")),
        python: PathBuf::from(or("SANDBOX_PYTHON_BIN", "/usr/bin/python3")),
        bounds: Bounds { slots: slots.unwrap_or(4), waiting: 200, waiting_bytes: 64 << 20 },
        defaults: Defaults {
            timeout: Duration::from_secs(300),
            profile: Profile::Standard,
            largest: LARGEST,
        },
        grace: Duration::from_secs(30),
        is_kept: false,
    })
}

fn broker(said: Option<&str>) -> Result<Broker, Failure> {
    let wrong = || {
        Failure::invalid(
            "it is not said where the broker is",
            "SAM_TRANSPORT=mqtt://HOST:PORT, or tcp://HOST:PORT for a development broker",
        )
    };
    let said = said.ok_or_else(wrong)?;
    let (scheme, address) = said.split_once("://").unwrap_or(("", said));
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    match (scheme, port) {
        ("tcp", _) | ("", 55554) => Ok(Broker::Dev { address: address.to_owned() }),
        ("mqtt", _) | ("", 1883) => Ok(Broker::Mqtt { host: host.to_owned(), port }),
        _ => Err(wrong()),
    }
}

/// The tools of the manifest, without what their code would say of itself.
pub(super) fn catalog(said: &Said) -> Result<Catalog, Failure> {
    let unread = |why: &dyn fmt::Display| Failure {
        code: ErrorCode::InvalidSpec,
        message: format!("cannot read the manifest `{}`: {why}", said.manifest.display()),
        hint: "MANIFEST_PATH says where it is".to_owned(),
    };
    let text = fs::read_to_string(&said.manifest).map_err(|error| unread(&error))?;
    let manifest: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| unread(&error))?;
    let entries = manifest["tools"].as_object().ok_or_else(|| unread(&"it has no `tools`"))?;
    let tools: BTreeMap<_, _> = entries
        .iter()
        .filter_map(|(name, entry)| {
            let text = |key: &str| entry[key].as_str().map(str::to_owned);
            let what = What::Function { module: text("module")?, function: text("function")? };
            let code = Code { python: Some(said.tools_python.clone()), ..Code::default() };
            let card =
                ToolCard { tool_name: name.clone(), description: text("description"), ..ToolCard::default() };
            let (profile, timeout, limits) = (None, None, Limits::default());
            Some((
                name.clone(),
                Arc::new(Tool { name: name.clone(), what, code, card, profile, timeout, limits }),
            ))
        })
        .collect();
    Ok(Arc::new(tools))
}

/// Begins to connect.
pub(super) fn link(said: &Said, subscriptions: BTreeSet<Subscription>) -> Result<Link, Failure> {
    let patience = Patience { tries: 10, pause: Duration::from_secs(3) };
    Ok(match said.broker.clone() {
        Broker::Dev { address } => {
            let queue = format!("{}/q/sandbox/{}", said.base.namespace(), said.worker_id);
            let client_id = format!("{}-{}", said.worker_id, std::process::id());
            Link::start(DevBroker { address, client_id, queue }, subscriptions, patience)
        }
        Broker::Mqtt { host, port } => {
            let mut settings = mqtt::Settings::new(host, port, ClientId::Unique(said.worker_id.clone()));
            settings.pool = Some(said.worker_id.clone());
            let mqtt = Mqtt::new(settings)
                .map_err(|trouble| Failure::invalid(trouble.message, "mend what SAM_TRANSPORT says"))?;
            Link::start(mqtt, subscriptions, patience)
        }
    })
}
