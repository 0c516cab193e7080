//! MQTT client for versions 5 and 3.1.1. A small implementation of our own, because it acknowledges
//! a message only when its work is done, and limits the messages in flight by the receive maximum.
//!
//! ```text
//! Mqtt ──connect──▶ TCP, TLS ──CONNECT──▶ driver ─ I/O and timeouts
//!   (5 first, then 3.1.1)                   └─ session: protocol state
//!                                               └─ codec: packets
//! ```

mod client;
mod client_id_conflict;
mod codec;
mod reason_code;
mod session;
mod topic;

pub use super::{BrokerCredentials, BrokerTls, ClientCertificate, Trust};
pub use client::MqttClient;

use super::{
    ConnectionError, Connector,
    driver::{Driver, Timeouts},
    fatal,
    stream::{self, ByteStream},
    temporary,
};
use bytes::BytesMut;
use client::MqttProtocol;
use client_id_conflict::{ClientIdConflicts, ClientIdLease};
use codec::{
    ConnAck, Connect, Decoded, MqttProperties, Packet, PacketReader, PropertyValue, Version,
    property,
};
use session::{MqttSession, Negotiated};
use std::{num::NonZeroU16, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};

/// Maximum size of a CONNACK.
const MAX_CONNACK_BYTES: usize = 64 << 10;
/// Upper bound of all timeouts, so that instants do not overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of an MQTT connection.
#[derive(Clone, Debug)]
pub struct MqttSettings {
    /// Host name or address.
    pub host: String,
    /// By convention 1883, with TLS 8883. On a Solace broker the port also selects the message VPN;
    /// user names do not.
    pub port: u16,
    /// TLS; none for plain TCP.
    pub tls: Option<BrokerTls>,
    /// Credentials; none for anonymous access.
    pub credentials: Option<BrokerCredentials>,
    /// Client id.
    pub client_id: ClientId,
    /// Group of shared subscriptions. 3.1.1 has none: there each member gets all messages.
    pub pool: Option<String>,
    /// Session expiry: how long the broker keeps unsettled messages after a disconnect. Zero is not
    /// at all.
    pub session_expiry: Duration,
    /// Versions to try.
    pub speaks: MqttVersions,
    /// Keep-alive: the broker may close the connection after one and a half times this without
    /// input.
    pub keep_alive: Duration,
    /// Receive maximum: unsettled messages that the broker may send (MQTT 5 only). It must exceed
    /// the number of calls that the worker accepts, otherwise a cancellation would wait behind the
    /// calls.
    pub receive_maximum: NonZeroU16,
    /// Maximum size of a packet. Larger messages are skipped.
    pub largest_packet: usize,
    /// Timeout of the connection, of each response, and of each write.
    pub answer_within: Duration,
}

/// Client id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientId {
    /// This id. Only one client at a time can use it; its session outlives the worker.
    Exactly(String),
    /// This id with a random suffix. Its session ends with the worker; in a pool, and in 3.1.1,
    /// where sessions do not expire, with the connection.
    Unique(String),
}

/// Versions to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttVersions {
    /// MQTT 5; 3.1.1 if the broker does not support it.
    FiveOrThree,
    /// Only MQTT 5.
    Five,
    /// Only 3.1.1, without user properties.
    Three,
}

impl MqttSettings {
    /// Default settings for a broker at this address.
    pub fn new(host: impl Into<String>, port: u16, client_id: ClientId) -> MqttSettings {
        MqttSettings {
            host: host.into(),
            port,
            tls: None,
            credentials: None,
            client_id,
            pool: None,
            session_expiry: Duration::from_secs(300),
            speaks: MqttVersions::FiveOrThree,
            keep_alive: Duration::from_secs(30),
            receive_maximum: NonZeroU16::MIN.saturating_add(255),
            // The mesh's largest message, and space for topic and properties.
            largest_packet: 10_000_000 + (512 << 10),
            answer_within: Duration::from_secs(30),
        }
    }
}

/// Connects to a broker over MQTT.
#[derive(Debug)]
pub struct Mqtt {
    settings: MqttSettings,
    client_id: String,
    id_conflicts: ClientIdConflicts,
}

/// Why a handshake failed.
enum HandshakeError {
    Version(ConnectionError),
    Other(ConnectionError),
}

impl Mqtt {
    /// Validates the settings without contacting the broker: names and TLS files.
    pub fn new(settings: MqttSettings) -> Result<Mqtt, ConnectionError> {
        if let Some(pool) = settings
            .pool
            .as_deref()
            .filter(|pool| !topic::is_pool(pool))
        {
            return Err(fatal(format!(
                "`{pool}` cannot be the name of a pool: it is empty, or has one of `/+#`"
            )));
        }
        if let Some(tls) = &settings.tls {
            tls.name(&settings.host).map_err(fatal)?;
            tls.config().map_err(fatal)?;
        }
        let client_id = match &settings.client_id {
            ClientId::Exactly(id) => id.clone(),
            ClientId::Unique(id) => format!("{id}-{}", random_suffix().map_err(fatal)?),
        };
        if client_id.is_empty() {
            return Err(fatal("the client has no identifier"));
        }
        Ok(Mqtt {
            settings,
            client_id,
            id_conflicts: ClientIdConflicts::default(),
        })
    }

    async fn greet(&self, version: Version) -> Result<MqttClient, HandshakeError> {
        let settings = &self.settings;
        let opened = stream::open(&settings.host, settings.port, settings.tls.as_ref()).await;
        let mut stream: Box<dyn ByteStream> = opened.map_err(HandshakeError::Other)?;
        let largest = self.settings.largest_packet;
        let broke = |error: std::io::Error| {
            HandshakeError::Other(temporary(format!("the greeting broke: {error}")))
        };
        let mut hello = BytesMut::new();
        codec::write(version, &Packet::Connect(self.hello(version)), &mut hello).map_err(
            |flaw| HandshakeError::Other(fatal(format!("the broker cannot be greeted: {flaw}"))),
        )?;
        stream.write_all_buf(&mut hello).await.map_err(broke)?;
        stream.flush().await.map_err(broke)?;
        let mut incoming = BytesMut::new();
        let mut reader = PacketReader::new(version, largest.min(MAX_CONNACK_BYTES));
        let answer = loop {
            match reader.read(&mut incoming) {
                Ok(Decoded::Packet(Packet::ConnAck(answer))) => break answer,
                Ok(Decoded::More) => {}
                Ok(_) => {
                    return Err(HandshakeError::Other(temporary(
                        "the broker answers the greeting with something else",
                    )));
                }
                Err(flaw) => {
                    let message =
                        format!("what is at this address does not speak MQTT as it should: {flaw}");
                    return Err(HandshakeError::Other(temporary(message)));
                }
            }
            if stream.read_buf(&mut incoming).await.map_err(broke)? == 0 {
                let message = "the broker closed the connection without an answer to the greeting";
                return Err(HandshakeError::Other(temporary(message)));
            }
        };
        self.let_in(version, &answer)?;
        let agreed = self.agreed(version, &answer);
        let has_pool = self.settings.pool.is_none() || agreed.pool.is_some();
        let mut session = MqttSession::new(agreed);
        if !has_pool {
            session.weaker(
                "the broker has no shared subscriptions: each member of the pool gets every call"
                    .to_owned(),
            );
        }
        let reader = PacketReader::new(version, largest);
        let forgets = matches!(self.settings.client_id, ClientId::Unique(_));
        let speaking = MqttProtocol::new(reader, session, forgets);
        Ok(Driver::new(stream, incoming, speaking, self.times(&answer)))
    }

    fn hello(&self, version: Version) -> Connect {
        let settings = &self.settings;
        let is_unique = matches!(settings.client_id, ClientId::Unique(_));
        let expiry = if is_unique && settings.pool.is_some() {
            // The session of a dead member would keep its share of the messages, which would reach
            // nobody.
            0
        } else {
            u32::try_from(settings.session_expiry.as_secs()).unwrap_or(u32::MAX)
        };
        Connect {
            client_id: self.client_id.clone(),
            // In 3.1.1 sessions do not expire: those of unique ids would stay for ever.
            is_clean: expiry == 0 || (version == Version::Three && is_unique),
            keep_alive: u16::try_from(settings.keep_alive.as_secs()).unwrap_or(u16::MAX),
            user: settings
                .credentials
                .as_ref()
                .map(|credentials| credentials.user.clone()),
            password: settings
                .credentials
                .as_ref()
                .and_then(|credentials| credentials.password.clone()),
            properties: MqttProperties(vec![
                (property::SESSION_EXPIRY, PropertyValue::Four(expiry)),
                (
                    property::RECEIVE_MAXIMUM,
                    PropertyValue::Two(settings.receive_maximum.get()),
                ),
                (
                    property::MAXIMUM_PACKET_SIZE,
                    PropertyValue::Four(
                        u32::try_from(settings.largest_packet)
                            .unwrap_or(u32::MAX)
                            .max(1),
                    ),
                ),
            ]),
        }
    }

    fn let_in(&self, version: Version, answer: &ConnAck) -> Result<(), HandshakeError> {
        if answer.reason == 0 {
            return Ok(());
        }
        let (code, meaning) = reason_code::of_connection(answer.reason);
        let message = format!(
            "the broker refuses us: {}",
            reason_code::describe(code, &answer.properties)
        );
        Err(match meaning {
            reason_code::ConnectRefusal::Version => {
                let spoken = if version == Version::Five {
                    "5"
                } else {
                    "3.1.1"
                };
                HandshakeError::Version(fatal(format!("{message} (asked in {spoken})")))
            }
            reason_code::ConnectRefusal::ForEver => HandshakeError::Other(fatal(message)),
            reason_code::ConnectRefusal::ForNow => HandshakeError::Other(temporary(message)),
        })
    }

    fn agreed(&self, version: Version, answer: &ConnAck) -> Negotiated {
        let number = |property| {
            answer
                .properties
                .number(property)
                .and_then(|value| usize::try_from(value).ok())
        };
        let shares = version == Version::Five && number(property::SHARED_AVAILABLE) != Some(0);
        Negotiated {
            version,
            window: number(property::RECEIVE_MAXIMUM).unwrap_or(usize::from(u16::MAX)),
            largest: number(property::MAXIMUM_PACKET_SIZE).unwrap_or(usize::MAX),
            confirms: number(property::MAXIMUM_QOS) != Some(0),
            pool: self.settings.pool.clone().filter(|_| shares),
            receive_maximum: self.settings.receive_maximum.get(),
        }
    }

    /// A unique id cannot conflict.
    fn lease(&mut self) -> Option<ClientIdLease> {
        let may_meet = matches!(self.settings.client_id, ClientId::Exactly(_));
        may_meet.then(|| self.id_conflicts.let_in(&self.client_id, Instant::now()))
    }

    fn times(&self, answer: &ConnAck) -> Timeouts {
        let server_keep_alive = answer
            .properties
            .number(property::SERVER_KEEP_ALIVE)
            .filter(|seconds| *seconds > 0);
        let server_keep_alive =
            server_keep_alive.map(|seconds| Duration::from_secs(u64::from(seconds)));
        let keep_alive = server_keep_alive.map_or(self.settings.keep_alive, |server_keep_alive| {
            server_keep_alive.min(self.settings.keep_alive)
        });
        // Half of it, so that a late ping is still in time.
        let speak = (keep_alive / 2).clamp(Duration::from_millis(500), MAX_TIMEOUT);
        // A ping must be answered.
        let answer = self.settings.answer_within.min(MAX_TIMEOUT);
        Timeouts {
            keep_alive: speak,
            silence: answer,
            response: answer,
        }
    }
}

impl Connector for Mqtt {
    type Connection = MqttClient;

    fn address(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "mqtts"
        } else {
            "mqtt"
        };
        stream::address(scheme, &self.settings.host, self.settings.port)
    }

    /// Not for shared subscriptions: some brokers deliver them at QoS 0, and do not always
    /// redeliver the unsettled messages of a member to others.
    fn redelivers(&self) -> bool {
        let settings = &self.settings;
        let comes_back = matches!(settings.client_id, ClientId::Exactly(_));
        comes_back && settings.pool.is_none() && !settings.session_expiry.is_zero()
    }

    async fn connect(&mut self) -> Result<MqttClient, ConnectionError> {
        self.id_conflicts.rest().await;
        let versions: &[Version] = match self.settings.speaks {
            MqttVersions::FiveOrThree => &[Version::Five, Version::Three],
            MqttVersions::Five => &[Version::Five],
            MqttVersions::Three => &[Version::Three],
        };
        let mut last = temporary("no version of MQTT is tried");
        for version in versions {
            match timeout(self.settings.answer_within, self.greet(*version)).await {
                Ok(Ok(client)) => return Ok(client.at(self.lease())),
                Ok(Err(HandshakeError::Version(error))) => last = error,
                Ok(Err(HandshakeError::Other(error))) => return Err(error),
                Err(_) => return Err(temporary("the broker took too long to let us in")),
            }
        }
        Err(last)
    }
}

/// Eight random digits.
fn random_suffix() -> Result<String, String> {
    let mut random = [0; 4];
    match rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => Ok(format!("{:08x}", u32::from_be_bytes(random))),
        Ok(_) => Err("the system gives too little randomness".to_owned()),
        Err(error) => Err(format!("the system gives no randomness: {error}")),
    }
}
