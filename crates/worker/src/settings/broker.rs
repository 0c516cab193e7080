//! Broker settings: address, credentials, reconnect policy.

use super::{
    SettingError,
    broker_address::{self, Address, AddressStyle},
    env::{EnvReader, Variable, shown},
    half,
};
use crate::transport::{
    BrokerTls, ClientCertificate, ReconnectPolicy, Trust, amqp::AddressScheme, mqtt::MqttVersions,
};
use doors::Secret;
use std::{fmt, time::Duration};

/// Default message VPN.
const DEFAULT_VPN: &str = "default";
/// User name and password of a broker in its initial configuration.
const DEFAULT_USER: &str = "admin";
const MAX_PAUSE_MS: u64 = 3_600_000;

/// Protocol of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// MQTT 5 or 3.1.1.
    Mqtt,
    /// AMQP 1.0.
    Amqp,
    /// The development broker.
    Dev,
}

/// How MQTT workers of one pool share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// Shared subscriptions. Some brokers keep no state for them: unsettled messages of a dead
    /// worker are lost.
    Shared,
    /// One worker at a time has the pool's session; the next one finds the unsettled messages in
    /// it.
    Session,
}

/// Broker settings.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// Protocol.
    pub transport: TransportKind,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS; none for plain TCP.
    pub tls: Option<BrokerTls>,
    /// Credentials; none for anonymous access.
    pub credentials: Option<BrokerLogin>,
    /// Reconnect policy.
    pub reconnect: ReconnectPolicy,
    /// How MQTT workers share the work.
    pub pool: PoolMode,
    /// MQTT versions to try.
    pub speaks: MqttVersions,
    /// Address scheme of an AMQP broker.
    pub addresses: AddressScheme,
    /// Name of the pool's AMQP queue, if it is not the default.
    pub queue: Option<String>,
}

/// The address as in `SAM_TRANSPORT`.
impl fmt::Display for BrokerSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.transport, self.tls.is_some()) {
            (TransportKind::Mqtt, false) => "mqtt",
            (TransportKind::Mqtt, true) => "mqtts",
            (TransportKind::Amqp, false) => "amqp",
            (TransportKind::Amqp, true) => "amqps",
            (TransportKind::Dev, _) => "tcp",
        };
        write!(out, "{scheme}://{}", self.host_and_port())
    }
}

impl BrokerSettings {
    /// Host and port to connect to.
    pub fn host_and_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// User name as it is sent, and password.
#[derive(Clone)]
pub struct BrokerLogin {
    /// User name.
    pub user: String,
    /// Password, if there is one.
    pub password: Option<Secret>,
}

impl fmt::Debug for BrokerLogin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Credentials({}, ..)", self.user)
    }
}

pub(super) fn read(reader: &mut EnvReader<'_>) -> Result<BrokerSettings, SettingError> {
    let (address, words) = find(reader)?;
    let Address {
        transport,
        host,
        port,
        is_encrypted,
    } = address;
    Ok(BrokerSettings {
        transport,
        host,
        port,
        tls: tls(reader, is_encrypted)?,
        credentials: credentials(reader, transport, words)?,
        reconnect: reconnect_policy(reader, transport)?,
        pool: pool(reader)?,
        speaks: speaks(reader)?,
        addresses: addresses(reader, transport)?,
        queue: reader.text(&["SAM_QUEUE"])?,
    })
}

/// Finds the address. `SAM_TRANSPORT` wins; a development broker and another broker together are an
/// error.
fn find(reader: &mut EnvReader<'_>) -> Result<(Address, AddressStyle), SettingError> {
    let outright = reader.found(&["SAM_TRANSPORT"])?;
    let named = reader.found(&["SOLACE_BROKER_URL", "SOLACE_HOST"])?;
    let mode = reader.flag("SOLACE_DEV_MODE")?;
    let dev = dev(reader, mode == Some(true))?.filter(|_| mode != Some(false));
    match (outright, named, dev) {
        (Some(Variable { name, value }), named, dev) => {
            if named.is_some() || dev.is_some() {
                reader.notice(
                    name,
                    "it says where the broker is; what else names one is left aside",
                );
            }
            Ok((
                broker_address::read(name, &value, AddressStyle::Airlock)?,
                AddressStyle::Airlock,
            ))
        }
        (None, Some(named), Some(_)) if mode.is_none() => Err(SettingError::new(
            named.name,
            format!(
                "`{}` and a development broker are set, and there can be only one",
                named.name
            ),
            "unset one, or say which by `SOLACE_DEV_MODE=true` or `false`",
        )),
        (None, _, Some(dev)) => Ok((dev, AddressStyle::Airlock)),
        (None, Some(Variable { name, value }), None) => Ok((
            broker_address::read(name, &value, AddressStyle::Mesh)?,
            AddressStyle::Mesh,
        )),
        (None, None, None) => Err(SettingError::new(
            "SOLACE_BROKER_URL",
            "no broker is named",
            "set SAM_TRANSPORT, for example to tcp://127.0.0.1:55554 with `airlock worker broker` running, or SOLACE_BROKER_URL",
        )),
    }
}

/// A development broker. The default port depends on which variable names the host.
fn dev(reader: &mut EnvReader<'_>, is_wanted: bool) -> Result<Option<Address>, SettingError> {
    let older = reader.found(&["DEV_BROKER_HOST"])?;
    let newer = reader.found(&["SAM_DEV_BROKER_HOST"])?;
    // Both variables are read, so that contradictions are found.
    let is_port_set = reader
        .raw(&["SAM_DEV_BROKER_PORT", "DEV_BROKER_PORT"])?
        .is_some();
    let usual = if older.is_some() && newer.is_none() {
        55555
    } else {
        55554
    };
    let port = if is_port_set {
        reader.number(
            &["SAM_DEV_BROKER_PORT", "DEV_BROKER_PORT"],
            usual,
            1..=u64::from(u16::MAX),
        )?
    } else {
        usual
    };
    let host = reader.found(&["SAM_DEV_BROKER_HOST", "DEV_BROKER_HOST"])?;
    let host = match host {
        Some(Variable { name, value }) => broker_address::plain_host(name, &value)?,
        None if is_wanted => "127.0.0.1".to_owned(),
        None => return Ok(None),
    };
    let port = u16::try_from(port).unwrap_or(55554);
    Ok(Some(Address {
        transport: TransportKind::Dev,
        host,
        port,
        is_encrypted: false,
    }))
}

fn tls(reader: &mut EnvReader<'_>, is_encrypted: bool) -> Result<Option<BrokerTls>, SettingError> {
    let store = reader.path(&["SOLACE_TRUST_STORE_PATH", "SOLACE_TLS_TRUST_STORE_DIR"])?;
    let chain = reader.path(&["SOLACE_CLIENT_CERT_PATH"])?;
    let key = reader.path(&["SOLACE_CLIENT_KEY_PATH"])?;
    if !is_encrypted {
        let set = [
            ("SOLACE_TRUST_STORE_PATH", store.is_some()),
            ("SOLACE_CLIENT_CERT_PATH", chain.is_some()),
        ];
        for (name, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            reader.notice(
                name,
                "it has no meaning: the broker's address says that nothing is encrypted",
            );
        }
        return Ok(None);
    }
    let certificate = match (chain, key) {
        (Some(chain), Some(key)) => Some(ClientCertificate { chain, key }),
        (None, None) => None,
        (Some(_), None) => return Err(half("SOLACE_CLIENT_CERT_PATH", "SOLACE_CLIENT_KEY_PATH")),
        (None, Some(_)) => return Err(half("SOLACE_CLIENT_KEY_PATH", "SOLACE_CLIENT_CERT_PATH")),
    };
    let trust = store.map_or(Trust::Platform, Trust::Store);
    Ok(Some(BrokerTls {
        trust,
        certificate,
        server_name: None,
    }))
}

/// Credentials. A broker that is configured with the mesh's variables has the mesh's default user,
/// unless there is a certificate.
fn credentials(
    reader: &mut EnvReader<'_>,
    transport: TransportKind,
    words: AddressStyle,
) -> Result<Option<BrokerLogin>, SettingError> {
    let vpn = reader
        .text(&["SOLACE_BROKER_VPN", "SOLACE_VPN"])?
        .unwrap_or_else(|| DEFAULT_VPN.to_owned());
    let user = reader.found(&["SOLACE_BROKER_USERNAME", "SOLACE_USERNAME"])?;
    let password = reader.secret(&["SOLACE_BROKER_PASSWORD", "SOLACE_PASSWORD"])?;
    if transport == TransportKind::Dev {
        if user.is_some() || password.is_some() {
            reader.notice(
                "SOLACE_BROKER_USERNAME",
                "it has no meaning: a development broker asks nobody's name",
            );
        }
        return Ok(None);
    }
    let has_certificate = reader.is_set("SOLACE_CLIENT_CERT_PATH");
    let (user, password) = match (user, password) {
        (Some(user), password) => (user.value, password),
        (None, Some(password)) => (DEFAULT_USER.to_owned(), Some(password)),
        (None, None) if words == AddressStyle::Mesh && !has_certificate => {
            reader.notice(
                "SOLACE_BROKER_USERNAME",
                "it is not set: `admin`, with the password of a new broker",
            );
            (
                DEFAULT_USER.to_owned(),
                Secret::new(DEFAULT_USER.as_bytes().to_vec()).ok(),
            )
        }
        (None, None) => return Ok(None),
    };
    if transport == TransportKind::Amqp && vpn != DEFAULT_VPN {
        let message =
            "it has no meaning with AMQP: there the broker's port says which message VPN it is";
        reader.notice("SOLACE_BROKER_VPN", message);
        return Ok(Some(BrokerLogin { user, password }));
    }
    Ok(Some(BrokerLogin {
        user: at_vpn(user, &vpn),
        password,
    }))
}

/// Adds the message VPN to the user name: MQTT has no field for it. Only this function knows that.
fn at_vpn(user: String, vpn: &str) -> String {
    if vpn == DEFAULT_VPN || user.contains('@') {
        user
    } else {
        format!("{user}@{vpn}")
    }
}

/// Two pairs of variables, one for each kind of broker; the other pair is used if only that is set.
fn reconnect_policy(
    reader: &mut EnvReader<'_>,
    transport: TransportKind,
) -> Result<ReconnectPolicy, SettingError> {
    let meshs = ["SOLACE_RECONNECT_RETRIES", "SOLACE_RECONNECT_DELAY_MS"];
    let devs = ["CONNECT_RETRIES", "CONNECT_RETRY_DELAY_MS"];
    let (own, other, default) = match transport {
        TransportKind::Dev => (devs, meshs, 0),
        TransportKind::Mqtt | TransportKind::Amqp => (meshs, devs, 10),
    };
    let pick = |index: usize| {
        if reader.is_set(own[index]) || !reader.is_set(other[index]) {
            own[index]
        } else {
            other[index]
        }
    };
    let tries = pick(0);
    let pause = pick(1);
    let tries = reader.tries(tries, default)?;
    // A lower bound, so that a lost broker is not contacted in a busy loop.
    let pause = reader.number(&[pause], 3000, 50..=MAX_PAUSE_MS)?;
    Ok(ReconnectPolicy {
        tries,
        pause: Duration::from_millis(pause),
    })
}

fn pool(reader: &EnvReader<'_>) -> Result<PoolMode, SettingError> {
    match reader.text(&["SAM_POOL"])?.as_deref() {
        None | Some("shared") => Ok(PoolMode::Shared),
        Some("session") => Ok(PoolMode::Session),
        Some(other) => Err(SettingError::new(
            "SAM_POOL",
            format!("`SAM_POOL`: `{}` is no way to share", shown(other)),
            "shared or session",
        )),
    }
}

fn speaks(reader: &EnvReader<'_>) -> Result<MqttVersions, SettingError> {
    match reader.text(&["SAM_MQTT_VERSION"])?.as_deref() {
        None => Ok(MqttVersions::FiveOrThree),
        Some("5" | "5.0") => Ok(MqttVersions::Five),
        Some("3" | "3.1.1") => Ok(MqttVersions::Three),
        Some(other) => Err(SettingError::new(
            "SAM_MQTT_VERSION",
            format!("`SAM_MQTT_VERSION`: there is no MQTT `{}`", shown(other)),
            "5 or 3",
        )),
    }
}

fn addresses(
    reader: &mut EnvReader<'_>,
    transport: TransportKind,
) -> Result<AddressScheme, SettingError> {
    let Some(Variable { name, value }) = reader.found(&["SAM_AMQP_ADDRESSES"])? else {
        return Ok(AddressScheme::Solace);
    };
    let addresses = AddressScheme::named(&value).map_err(|_| {
        SettingError::new(
            name,
            format!("`{name}`: nobody knows `{}`", shown(&value)),
            "solace or rabbitmq",
        )
    })?;
    if transport == TransportKind::Amqp && addresses != AddressScheme::Solace {
        let message = "each connection leaves a queue `amq.gen-…` there, unless a policy lets it expire: see docs/worker.md";
        reader.notice(name, message);
    }
    Ok(addresses)
}
