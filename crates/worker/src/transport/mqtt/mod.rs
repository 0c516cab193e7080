//! MQTT 5 and 3.1.1, by a client of our own. That is small, and gives what others do not: a message is acknowledged when its
//! work is done, and the broker holds back what we could not take.
//!
//! ```text
//! Mqtt ──connect──▶ TCP, TLS ──greeting──▶ driver ─ moves bytes, watches the clock
//!   (5 first, then 3.1.1)                    └─ session: what waits for whom
//!                                                └─ codec: packets and bytes
//! ```

mod client;
mod codec;
mod reason;
mod rival;
mod session;
mod topic;

pub use super::{Certificate, Credentials, Tls, Trust};
pub use client::Client;

use super::{
    Connector, Trouble, again,
    driver::{Driver, Times},
    never,
    stream::{self, Stream},
};
use bytes::BytesMut;
use client::Speaking;
use codec::{Connect, ConnectAnswer, Extras, Packet, Read, Reader, Value, Version, name};
use rival::{Rivals, Stay};
use session::{Agreed, Session};
use std::{num::NonZeroU16, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};

/// Before a broker has let us in it has little to say.
const LARGEST_GREETING: usize = 64 << 10;
/// Whatever the settings say: moments beyond the end of time cannot be counted.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// A broker, and how we want to speak with it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name or address.
    pub host: String,
    /// By convention 1883, with TLS 8883. On a Solace broker it also chooses the message VPN; user names do not.
    pub port: u16,
    /// None is in the clear.
    pub tls: Option<Tls>,
    /// None is without a name.
    pub credentials: Option<Credentials>,
    /// Who we are.
    pub client_id: ClientId,
    /// The pool whose members take turns, for subscriptions that are shared. 3.1.1 has no such thing: there each gets all.
    pub pool: Option<String>,
    /// How long the broker keeps what we have not settled when the connection is gone. Zero is not at all.
    pub session_expiry: Duration,
    /// Which versions are tried.
    pub speaks: Speaks,
    /// The broker may take us for dead when it heard nothing for one and a half times this.
    pub keep_alive: Duration,
    /// Messages that are not settled, at most; then the broker holds back the rest (MQTT 5 only). Must be more than the worker
    /// takes upon itself, or a request to cancel would wait behind those it is about.
    pub receive_maximum: NonZeroU16,
    /// The largest packet that we take. Larger messages are passed over.
    pub largest_packet: usize,
    /// For the connection to stand, for each answer, and for each piece that we write to be taken.
    pub answer_within: Duration,
}

/// How the broker knows us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientId {
    /// Exactly so. Only one client can be connected at a time; its session outlives the worker.
    Exactly(String),
    /// So, with an end that nobody else has. Its session ends with the worker; in a pool, and in 3.1.1, where sessions do not
    /// expire, already with the connection.
    Unique(String),
}

/// Versions that are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// MQTT 5; if the broker says that it does not know that, 3.1.1.
    FiveOrThree,
    /// Only MQTT 5.
    Five,
    /// Only 3.1.1: no user properties.
    Three,
}

impl Settings {
    /// What is usual, for a broker at this address.
    pub fn new(host: impl Into<String>, port: u16, client_id: ClientId) -> Settings {
        Settings {
            host: host.into(),
            port,
            tls: None,
            credentials: None,
            client_id,
            pool: None,
            session_expiry: Duration::from_secs(300),
            speaks: Speaks::FiveOrThree,
            keep_alive: Duration::from_secs(30),
            receive_maximum: NonZeroU16::MIN.saturating_add(255),
            // What the mesh takes for the largest message, and room for topic and properties.
            largest_packet: 10_000_000 + (512 << 10),
            answer_within: Duration::from_secs(30),
        }
    }
}

/// Connects to one broker over MQTT.
#[derive(Debug)]
pub struct Mqtt {
    settings: Settings,
    client_id: String,
    rivals: Rivals,
}

/// Why one greeting led nowhere.
enum Failed {
    Version(Trouble),
    Other(Trouble),
}

impl Mqtt {
    /// Checks what can be checked without the broker: names, and that the files are there.
    pub fn new(settings: Settings) -> Result<Mqtt, Trouble> {
        if let Some(pool) = settings
            .pool
            .as_deref()
            .filter(|pool| !topic::is_pool(pool))
        {
            return Err(never(format!(
                "`{pool}` cannot be the name of a pool: it is empty, or has one of `/+#`"
            )));
        }
        if let Some(tls) = &settings.tls {
            tls.name(&settings.host).map_err(never)?;
            tls.config().map_err(never)?;
        }
        let client_id = match &settings.client_id {
            ClientId::Exactly(id) => id.clone(),
            ClientId::Unique(id) => format!("{id}-{}", ending().map_err(never)?),
        };
        if client_id.is_empty() {
            return Err(never("the client has no identifier"));
        }
        Ok(Mqtt {
            settings,
            client_id,
            rivals: Rivals::default(),
        })
    }

    async fn greet(&self, version: Version) -> Result<Client, Failed> {
        let settings = &self.settings;
        let opened = stream::open(&settings.host, settings.port, settings.tls.as_ref()).await;
        let mut stream: Box<dyn Stream> = opened.map_err(Failed::Other)?;
        let largest = self.settings.largest_packet;
        let broke =
            |error: std::io::Error| Failed::Other(again(format!("the greeting broke: {error}")));
        let mut hello = BytesMut::new();
        codec::write(version, &Packet::Connect(self.hello(version)), &mut hello).map_err(
            |flaw| Failed::Other(never(format!("the broker cannot be greeted: {flaw}"))),
        )?;
        stream.write_all_buf(&mut hello).await.map_err(broke)?;
        stream.flush().await.map_err(broke)?;
        let mut incoming = BytesMut::new();
        let mut reader = Reader::new(version, largest.min(LARGEST_GREETING));
        let answer = loop {
            match reader.read(&mut incoming) {
                Ok(Read::Packet(Packet::ConnectAnswer(answer))) => break answer,
                Ok(Read::More) => {}
                Ok(_) => {
                    return Err(Failed::Other(again(
                        "the broker answers the greeting with something else",
                    )));
                }
                Err(flaw) => {
                    let message =
                        format!("what is at this address does not speak MQTT as it should: {flaw}");
                    return Err(Failed::Other(again(message)));
                }
            }
            if stream.read_buf(&mut incoming).await.map_err(broke)? == 0 {
                let message = "the broker closed the connection without an answer to the greeting";
                return Err(Failed::Other(again(message)));
            }
        };
        self.let_in(version, &answer)?;
        let agreed = self.agreed(version, &answer);
        let has_pool = self.settings.pool.is_none() || agreed.pool.is_some();
        let mut session = Session::new(agreed);
        if !has_pool {
            session.weaker(
                "the broker has no shared subscriptions: each member of the pool gets every call"
                    .to_owned(),
            );
        }
        let reader = Reader::new(version, largest);
        let forgets = matches!(self.settings.client_id, ClientId::Unique(_));
        let speaking = Speaking::new(reader, session, forgets);
        Ok(Driver::new(stream, incoming, speaking, self.times(&answer)))
    }

    fn hello(&self, version: Version) -> Connect {
        let settings = &self.settings;
        let is_unique = matches!(settings.client_id, ClientId::Unique(_));
        let expiry = match is_unique && settings.pool.is_some() {
            // A member that died would keep its turns for as long: what is sent to it then reaches nobody.
            true => 0,
            false => u32::try_from(settings.session_expiry.as_secs()).unwrap_or(u32::MAX),
        };
        Connect {
            client_id: self.client_id.clone(),
            // In 3.1.1 sessions do not expire: those of clients that never come back would stay for ever.
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
            extras: Extras(vec![
                (name::SESSION_EXPIRY, Value::Four(expiry)),
                (
                    name::RECEIVE_MAXIMUM,
                    Value::Two(settings.receive_maximum.get()),
                ),
                (
                    name::MAXIMUM_PACKET_SIZE,
                    Value::Four(
                        u32::try_from(settings.largest_packet)
                            .unwrap_or(u32::MAX)
                            .max(1),
                    ),
                ),
            ]),
        }
    }

    fn let_in(&self, version: Version, answer: &ConnectAnswer) -> Result<(), Failed> {
        if answer.reason == 0 {
            return Ok(());
        }
        let (code, meaning) = reason::of_connection(answer.reason);
        let message = format!(
            "the broker refuses us: {}",
            reason::told(code, &answer.extras)
        );
        Err(match meaning {
            reason::Refused::Version => {
                let spoken = if version == Version::Five {
                    "5"
                } else {
                    "3.1.1"
                };
                Failed::Version(never(format!("{message} (asked in {spoken})")))
            }
            reason::Refused::ForEver => Failed::Other(never(message)),
            reason::Refused::ForNow => Failed::Other(again(message)),
        })
    }

    fn agreed(&self, version: Version, answer: &ConnectAnswer) -> Agreed {
        let number = |property| {
            answer
                .extras
                .number(property)
                .and_then(|value| usize::try_from(value).ok())
        };
        let shares = version == Version::Five && number(name::SHARED_AVAILABLE) != Some(0);
        Agreed {
            version,
            window: number(name::RECEIVE_MAXIMUM).unwrap_or(usize::from(u16::MAX)),
            largest: number(name::MAXIMUM_PACKET_SIZE).unwrap_or(usize::MAX),
            confirms: number(name::MAXIMUM_QOS) != Some(0),
            pool: self.settings.pool.clone().filter(|_| shares),
            receive_maximum: self.settings.receive_maximum.get(),
        }
    }

    /// A name that nobody else has has no rivals.
    fn stay(&mut self) -> Option<Stay> {
        let may_meet = matches!(self.settings.client_id, ClientId::Exactly(_));
        may_meet.then(|| self.rivals.let_in(&self.client_id, Instant::now()))
    }

    fn times(&self, answer: &ConnectAnswer) -> Times {
        let theirs = answer
            .extras
            .number(name::SERVER_KEEP_ALIVE)
            .filter(|seconds| *seconds > 0);
        let theirs = theirs.map(|seconds| Duration::from_secs(u64::from(seconds)));
        let keep_alive = theirs.map_or(self.settings.keep_alive, |theirs| {
            theirs.min(self.settings.keep_alive)
        });
        // Half of it, so that a ping that is late is still in time.
        let speak = (keep_alive / 2).clamp(Duration::from_millis(500), LONGEST_WAIT);
        // What we say then must be answered.
        let answer = self.settings.answer_within.min(LONGEST_WAIT);
        Times {
            speak,
            hear: answer,
            answer,
        }
    }
}

impl Connector for Mqtt {
    type Connection = Client;

    fn address(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "mqtts"
        } else {
            "mqtt"
        };
        stream::address(scheme, &self.settings.host, self.settings.port)
    }

    /// Members of a pool that take turns are not counted on: some brokers send to them without a confirmation, and what one of
    /// them had is not always given to another.
    fn redelivers(&self) -> bool {
        let settings = &self.settings;
        let comes_back = matches!(settings.client_id, ClientId::Exactly(_));
        comes_back && settings.pool.is_none() && !settings.session_expiry.is_zero()
    }

    async fn connect(&mut self) -> Result<Client, Trouble> {
        self.rivals.rest().await;
        let versions: &[Version] = match self.settings.speaks {
            Speaks::FiveOrThree => &[Version::Five, Version::Three],
            Speaks::Five => &[Version::Five],
            Speaks::Three => &[Version::Three],
        };
        let mut last = again("no version of MQTT is tried");
        for version in versions {
            match timeout(self.settings.answer_within, self.greet(*version)).await {
                Ok(Ok(client)) => return Ok(client.at(self.stay())),
                Ok(Err(Failed::Version(trouble))) => last = trouble,
                Ok(Err(Failed::Other(trouble))) => return Err(trouble),
                Err(_) => return Err(again("the broker took too long to let us in")),
            }
        }
        Err(last)
    }
}

/// Eight digits that nobody can guess.
fn ending() -> Result<String, String> {
    let mut random = [0; 4];
    match rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => Ok(format!("{:08x}", u32::from_be_bytes(random))),
        Ok(_) => Err("the system gives too little randomness".to_owned()),
        Err(error) => Err(format!("the system gives no randomness: {error}")),
    }
}
