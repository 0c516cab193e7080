//! The broker: where it is, who we are there, and how patient we are with it.

use super::{
    Mistake,
    address::{self, Address, Words},
    half,
    reader::{Found, Reader, shown},
};
use crate::transport::{Certificate, Patience, Tls, Trust, amqp::Addresses, mqtt::Speaks};
use doors::Secret;
use std::{fmt, time::Duration};

/// The message VPN where none is said.
const VPN: &str = "default";
/// User name and password of a broker that nobody has changed.
const ADMIN: &str = "admin";
const LONGEST_PAUSE_MS: u64 = 3_600_000;

/// How a broker is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Transport {
    Mqtt,
    Amqp,
    Dev,
}

/// How MQTT workers of one pool share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// They take turns. Some brokers keep nothing for such subscriptions: what a worker had when it died is lost.
    Shared,
    /// One at a time has the pool's session, and whoever comes next finds in it what was not settled.
    Session,
}

/// The broker.
#[derive(Clone, Debug)]
pub struct Broker {
    /// How it is spoken to.
    pub transport: Transport,
    /// Name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// None is in the clear.
    pub tls: Option<Tls>,
    /// None is without a name.
    pub credentials: Option<Credentials>,
    /// How often it is tried.
    pub patience: Patience,
    /// How workers share, over MQTT.
    pub pool: Pool,
    /// Which MQTT.
    pub speaks: Speaks,
    /// How an AMQP broker calls things.
    pub addresses: Addresses,
    /// The pool's queue on an AMQP broker, if it is not called as usual.
    pub queue: Option<String>,
}

/// Its address, as `SAM_TRANSPORT` has it.
impl fmt::Display for Broker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.transport, self.tls.is_some()) {
            (Transport::Mqtt, false) => "mqtt",
            (Transport::Mqtt, true) => "mqtts",
            (Transport::Amqp, false) => "amqp",
            (Transport::Amqp, true) => "amqps",
            (Transport::Dev, _) => "tcp",
        };
        write!(out, "{scheme}://{}", self.host_and_port())
    }
}

impl Broker {
    /// Where to connect to.
    pub fn host_and_port(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// User name, as it is sent, and password.
#[derive(Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Credentials {
    pub user: String,
    pub password: Option<Secret>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Credentials({}, ..)", self.user)
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Broker, Mistake> {
    let (address, words) = find(reader)?;
    let Address {
        transport,
        host,
        port,
        is_encrypted,
    } = address;
    Ok(Broker {
        transport,
        host,
        port,
        tls: tls(reader, is_encrypted)?,
        credentials: credentials(reader, transport, words)?,
        patience: patience(reader, transport)?,
        pool: pool(reader)?,
        speaks: speaks(reader)?,
        addresses: addresses(reader, transport)?,
        queue: reader.text(&["SAM_QUEUE"])?,
    })
}

/// The address. What says it outright wins; a development broker and another one at a time are one too many.
fn find(reader: &mut Reader<'_>) -> Result<(Address, Words), Mistake> {
    let outright = reader.found(&["SAM_TRANSPORT"])?;
    let named = reader.found(&["SOLACE_BROKER_URL", "SOLACE_HOST"])?;
    let mode = reader.flag("SOLACE_DEV_MODE")?;
    let dev = dev(reader, mode == Some(true))?.filter(|_| mode != Some(false));
    match (outright, named, dev) {
        (Some(Found { name, value }), named, dev) => {
            if named.is_some() || dev.is_some() {
                reader.tell(
                    name,
                    "it says where the broker is; what else names one is left aside",
                );
            }
            Ok((address::read(name, &value, Words::Ours)?, Words::Ours))
        }
        (None, Some(named), Some(_)) if mode.is_none() => Err(Mistake::new(
            named.name,
            format!(
                "`{}` and a development broker are set, and there can be only one",
                named.name
            ),
            "unset one, or say which by `SOLACE_DEV_MODE=true` or `false`",
        )),
        (None, _, Some(dev)) => Ok((dev, Words::Ours)),
        (None, Some(Found { name, value }), None) => Ok((
            address::read(name, &value, Words::OfTheMesh)?,
            Words::OfTheMesh,
        )),
        (None, None, None) => Err(Mistake::new(
            "SOLACE_BROKER_URL",
            "no broker is named",
            "set SAM_TRANSPORT, for example to tcp://127.0.0.1:55554 with `airlock worker broker` running, or SOLACE_BROKER_URL",
        )),
    }
}

/// A development broker. Its port has another default under each of its names.
fn dev(reader: &mut Reader<'_>, is_wanted: bool) -> Result<Option<Address>, Mistake> {
    let older = reader.found(&["DEV_BROKER_HOST"])?;
    let newer = reader.found(&["SAM_DEV_BROKER_HOST"])?;
    // Both ports are read, so that two names of one thing must agree.
    let said = reader
        .raw(&["SAM_DEV_BROKER_PORT", "DEV_BROKER_PORT"])?
        .is_some();
    let usual = if older.is_some() && newer.is_none() {
        55555
    } else {
        55554
    };
    let port = match said {
        true => reader.number(
            &["SAM_DEV_BROKER_PORT", "DEV_BROKER_PORT"],
            usual,
            1..=u64::from(u16::MAX),
        )?,
        false => usual,
    };
    let host = reader.found(&["SAM_DEV_BROKER_HOST", "DEV_BROKER_HOST"])?;
    let host = match host {
        Some(Found { name, value }) => address::plain_host(name, &value)?,
        None if is_wanted => "127.0.0.1".to_owned(),
        None => return Ok(None),
    };
    let port = u16::try_from(port).unwrap_or(55554);
    Ok(Some(Address {
        transport: Transport::Dev,
        host,
        port,
        is_encrypted: false,
    }))
}

fn tls(reader: &mut Reader<'_>, is_encrypted: bool) -> Result<Option<Tls>, Mistake> {
    let store = reader.path(&["SOLACE_TRUST_STORE_PATH", "SOLACE_TLS_TRUST_STORE_DIR"])?;
    let chain = reader.path(&["SOLACE_CLIENT_CERT_PATH"])?;
    let key = reader.path(&["SOLACE_CLIENT_KEY_PATH"])?;
    if !is_encrypted {
        let set = [
            ("SOLACE_TRUST_STORE_PATH", store.is_some()),
            ("SOLACE_CLIENT_CERT_PATH", chain.is_some()),
        ];
        for (name, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            reader.tell(
                name,
                "it has no meaning: the broker's address says that nothing is encrypted",
            );
        }
        return Ok(None);
    }
    let certificate = match (chain, key) {
        (Some(chain), Some(key)) => Some(Certificate { chain, key }),
        (None, None) => None,
        (Some(_), None) => return Err(half("SOLACE_CLIENT_CERT_PATH", "SOLACE_CLIENT_KEY_PATH")),
        (None, Some(_)) => return Err(half("SOLACE_CLIENT_KEY_PATH", "SOLACE_CLIENT_CERT_PATH")),
    };
    let trust = store.map_or(Trust::Platform, Trust::Store);
    Ok(Some(Tls {
        trust,
        certificate,
        server_name: None,
    }))
}

/// Who we are. Where the broker was named in the mesh's words its defaults are the mesh's, too, unless a certificate says it.
fn credentials(
    reader: &mut Reader<'_>,
    transport: Transport,
    words: Words,
) -> Result<Option<Credentials>, Mistake> {
    let vpn = reader
        .text(&["SOLACE_BROKER_VPN", "SOLACE_VPN"])?
        .unwrap_or_else(|| VPN.to_owned());
    let user = reader.found(&["SOLACE_BROKER_USERNAME", "SOLACE_USERNAME"])?;
    let password = reader.secret(&["SOLACE_BROKER_PASSWORD", "SOLACE_PASSWORD"])?;
    if transport == Transport::Dev {
        if user.is_some() || password.is_some() {
            reader.tell(
                "SOLACE_BROKER_USERNAME",
                "it has no meaning: a development broker asks nobody's name",
            );
        }
        return Ok(None);
    }
    let has_certificate = reader.is_set("SOLACE_CLIENT_CERT_PATH");
    let (user, password) = match (user, password) {
        (Some(user), password) => (user.value, password),
        (None, Some(password)) => (ADMIN.to_owned(), Some(password)),
        (None, None) if words == Words::OfTheMesh && !has_certificate => {
            reader.tell(
                "SOLACE_BROKER_USERNAME",
                "it is not set: `admin`, with the password of a new broker",
            );
            (
                ADMIN.to_owned(),
                Secret::new(ADMIN.as_bytes().to_vec()).ok(),
            )
        }
        (None, None) => return Ok(None),
    };
    if transport == Transport::Amqp && vpn != VPN {
        let message =
            "it has no meaning with AMQP: there the broker's port says which message VPN it is";
        reader.tell("SOLACE_BROKER_VPN", message);
        return Ok(Some(Credentials { user, password }));
    }
    Ok(Some(Credentials {
        user: at_vpn(user, &vpn),
        password,
    }))
}

/// MQTT has no word for a message VPN: brokers of the mesh find it behind the user's name. The only place where that is known.
fn at_vpn(user: String, vpn: &str) -> String {
    match vpn == VPN || user.contains('@') {
        true => user,
        false => format!("{user}@{vpn}"),
    }
}

/// Two pairs of variables, one for each kind of broker; where only the other's is set, it was meant.
fn patience(reader: &mut Reader<'_>, transport: Transport) -> Result<Patience, Mistake> {
    let meshs = ["SOLACE_RECONNECT_RETRIES", "SOLACE_RECONNECT_DELAY_MS"];
    let devs = ["CONNECT_RETRIES", "CONNECT_RETRY_DELAY_MS"];
    let (own, other, default) = match transport {
        Transport::Dev => (devs, meshs, 0),
        Transport::Mqtt | Transport::Amqp => (meshs, devs, 10),
    };
    let pick = |index: usize| match reader.is_set(own[index]) || !reader.is_set(other[index]) {
        true => own[index],
        false => other[index],
    };
    let (tries, pause) = (pick(0), pick(1));
    let tries = reader.tries(tries, default)?;
    // Not less: a broker that is gone would be asked without a pause.
    let pause = reader.number(&[pause], 3000, 50..=LONGEST_PAUSE_MS)?;
    Ok(Patience {
        tries,
        pause: Duration::from_millis(pause),
    })
}

fn pool(reader: &Reader<'_>) -> Result<Pool, Mistake> {
    match reader.text(&["SAM_POOL"])?.as_deref() {
        None | Some("shared") => Ok(Pool::Shared),
        Some("session") => Ok(Pool::Session),
        Some(other) => Err(Mistake::new(
            "SAM_POOL",
            format!("`SAM_POOL`: `{}` is no way to share", shown(other)),
            "shared or session",
        )),
    }
}

fn speaks(reader: &Reader<'_>) -> Result<Speaks, Mistake> {
    match reader.text(&["SAM_MQTT_VERSION"])?.as_deref() {
        None => Ok(Speaks::FiveOrThree),
        Some("5" | "5.0") => Ok(Speaks::Five),
        Some("3" | "3.1.1") => Ok(Speaks::Three),
        Some(other) => Err(Mistake::new(
            "SAM_MQTT_VERSION",
            format!("`SAM_MQTT_VERSION`: there is no MQTT `{}`", shown(other)),
            "5 or 3",
        )),
    }
}

fn addresses(reader: &mut Reader<'_>, transport: Transport) -> Result<Addresses, Mistake> {
    let Some(Found { name, value }) = reader.found(&["SAM_AMQP_ADDRESSES"])? else {
        return Ok(Addresses::Solace);
    };
    let addresses = Addresses::named(&value).map_err(|_| {
        Mistake::new(
            name,
            format!("`{name}`: nobody knows `{}`", shown(&value)),
            "solace or rabbitmq",
        )
    })?;
    if transport == Transport::Amqp && addresses != Addresses::Solace {
        let message = "each connection leaves a queue `amq.gen-…` there, unless a policy lets it expire: see docs/worker.md";
        reader.tell(name, message);
    }
    Ok(addresses)
}
