//! AMQP 1.0 client. A small implementation of our own: memory and nesting are bounded whatever
//! others send, an oversize message is rejected instead of being redelivered for ever, and a
//! message is settled when its work is done.
//!
//! ```text
//! Amqp ──connect──▶ TCP, TLS ──SASL──▶ open, begin ──▶ driver ─ I/O and timeouts
//!                                                        └─ session: protocol state
//!                                                            └─ frame, message, value: codec
//! ```

mod address;
mod frame;
mod message;
mod session;
mod value;

pub use address::AddressScheme;

use super::{
    BrokerCredentials, ConnectionError, Connector,
    driver::{Driver, Timeouts},
    fatal,
    stream::{self, ByteStream},
    temporary,
    tls::BrokerTls,
};
use bytes::{Bytes, BytesMut};
use frame::{DescribedList, Frame, FrameKind, descriptor};
use session::{AmqpSession, Negotiated};
use std::{num::NonZeroU16, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};
use value::Value;

/// Protocol headers.
const AMQP: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
const SASL: [u8; 8] = *b"AMQP\x03\x01\x00\x00";
/// MIN-MAX-FRAME-SIZE of the standard.
const MIN_FRAME: u32 = 512;
/// Maximum size of our frames, even if the broker accepts more.
const MAX_SENT_FRAME: u32 = 1 << 20;
/// Upper bound of all timeouts, so that instants do not overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// A connection to a broker.
pub type AmqpClient = Driver<AmqpSession>;

/// Settings of an AMQP connection.
#[derive(Clone, Debug)]
pub struct AmqpSettings {
    /// Host name or address.
    pub host: String,
    /// By convention 5672, with TLS 5671. On a Solace broker the port also selects the message VPN;
    /// user names do not.
    pub port: u16,
    /// TLS; none for plain TCP.
    pub tls: Option<BrokerTls>,
    /// Credentials; without them our certificate is used, if there is one, and else anonymous
    /// access.
    pub credentials: Option<BrokerCredentials>,
    /// Container id.
    pub container: String,
    /// Queue that the members of the pool share. It must exist; its bindings are up to its owner.
    pub queue: String,
    /// Address scheme of the broker.
    pub addresses: AddressScheme,
    /// Maximum number of unsettled messages per link (credit). It must exceed the number of calls
    /// that the worker accepts, otherwise a cancellation would wait behind the calls.
    pub receive_maximum: NonZeroU16,
    /// Maximum size of a message. Larger ones are rejected.
    pub largest_message: usize,
    /// Maximum size of a frame.
    pub largest_frame: u32,
    /// Idle timeout: the broker is considered dead after twice this.
    pub keep_alive: Duration,
    /// Timeout of the connection, of each response, and of each write.
    pub answer_within: Duration,
}

impl AmqpSettings {
    /// Default settings for a broker at this address.
    pub fn new(
        host: impl Into<String>,
        port: u16,
        queue: impl Into<String>,
        container: impl Into<String>,
    ) -> AmqpSettings {
        AmqpSettings {
            host: host.into(),
            port,
            tls: None,
            credentials: None,
            container: container.into(),
            queue: queue.into(),
            addresses: AddressScheme::Solace,
            receive_maximum: NonZeroU16::MIN.saturating_add(255),
            // The mesh's largest message, and space for properties.
            largest_message: 10_000_000 + (512 << 10),
            largest_frame: 64 << 10,
            keep_alive: Duration::from_secs(30),
            answer_within: Duration::from_secs(30),
        }
    }
}

/// Connects to a broker over AMQP 1.0.
#[derive(Debug)]
pub struct Amqp {
    settings: AmqpSettings,
}

/// A connection during its handshake.
struct Handshake {
    stream: Box<dyn ByteStream>,
    incoming: BytesMut,
    largest: usize,
}

impl Amqp {
    /// Validates the settings without contacting the broker: names and TLS files.
    pub fn new(settings: AmqpSettings) -> Result<Amqp, ConnectionError> {
        if settings.queue.is_empty() || settings.container.is_empty() {
            return Err(fatal("the queue or the client has no name"));
        }
        if settings.queue.len() > 200 || settings.queue.contains(|letter: char| letter.is_control())
        {
            return Err(fatal(format!(
                "`{}` cannot be the name of a queue",
                settings.queue.escape_debug()
            )));
        }
        if let Some(tls) = &settings.tls {
            tls.name(&settings.host).map_err(fatal)?;
            tls.config().map_err(fatal)?;
        }
        let largest_frame = settings.largest_frame.max(MIN_FRAME);
        Ok(Amqp {
            settings: AmqpSettings {
                largest_frame,
                ..settings
            },
        })
    }

    async fn greet(&self) -> Result<AmqpClient, ConnectionError> {
        let settings = &self.settings;
        let stream = stream::open(&settings.host, settings.port, settings.tls.as_ref()).await?;
        let largest = usize::try_from(settings.largest_frame).unwrap_or(usize::MAX);
        let mut greeting = Handshake {
            stream,
            incoming: BytesMut::new(),
            largest,
        };
        greeting.headers(SASL).await?;
        self.introduce(&mut greeting).await?;
        greeting.headers(AMQP).await?;
        let open = greeting.request(descriptor::OPEN, self.open()).await?;
        let begin = greeting.request(descriptor::BEGIN, begin()).await?;
        let max_frame = u64::from(MAX_SENT_FRAME);
        let none = u64::from(MIN_FRAME);
        let largest_frame = open.number(2).unwrap_or(max_frame).clamp(none, max_frame);
        let agreed = Negotiated {
            addresses: settings.addresses.clone(),
            queue: settings.queue.clone(),
            container: settings.container.clone(),
            largest_frame: usize::try_from(largest_frame).unwrap_or(usize::MAX),
            largest_taken: largest,
            largest_message: settings.largest_message,
            credit: u32::from(settings.receive_maximum.get()),
            window: begin.uint(2).unwrap_or(0),
            first: begin.uint(1).unwrap_or(0),
        };
        let session = AmqpSession::new(agreed, Instant::now());
        Ok(Driver::new(
            greeting.stream,
            greeting.incoming,
            session,
            self.times(&open),
        ))
    }

    /// Authenticates by SASL. A failure is temporary: credentials change, and not everywhere at
    /// once.
    async fn introduce(&self, greeting: &mut Handshake) -> Result<(), ConnectionError> {
        let offered = greeting
            .expect(FrameKind::Sasl, descriptor::MECHANISMS)
            .await?;
        let offered: Vec<&str> = match offered.get(0) {
            Value::Array(all) => all.iter().filter_map(Value::words).collect(),
            one => one.words().into_iter().collect(),
        };
        let (mechanism, words) = self.mechanism();
        if !offered.contains(&mechanism) {
            let offered = offered.join(", ").chars().take(200).collect::<String>();
            return Err(temporary(format!(
                "the broker does not let us in by {mechanism}, only by: {offered}"
            )));
        }
        let host = Value::text(&self.settings.host);
        let fields = vec![
            Value::Symbol(mechanism.to_owned()),
            Value::Binary(words),
            host,
        ];
        greeting
            .send(FrameKind::Sasl, descriptor::INIT, fields)
            .await?;
        let outcome = greeting
            .expect(FrameKind::Sasl, descriptor::OUTCOME)
            .await?;
        match outcome.number(0) {
            Some(0) => Ok(()),
            Some(1) => Err(temporary(
                "the broker does not know us: user name or password is wrong",
            )),
            Some(4) => Err(temporary("the broker cannot check for now who we are")),
            Some(code) => Err(temporary(format!(
                "the broker does not let us in (code {code})"
            ))),
            None => Err(temporary("the broker does not say whether it lets us in")),
        }
    }

    fn mechanism(&self) -> (&'static str, Bytes) {
        let has_certificate = self
            .settings
            .tls
            .as_ref()
            .is_some_and(|tls| tls.certificate.is_some());
        match &self.settings.credentials {
            Some(BrokerCredentials { user, password }) => {
                let password = password.as_deref().unwrap_or_default();
                (
                    "PLAIN",
                    [b"\0", user.as_bytes(), b"\0", password].concat().into(),
                )
            }
            None if has_certificate => ("EXTERNAL", Bytes::new()),
            None => ("ANONYMOUS", Bytes::new()),
        }
    }

    fn open(&self) -> Vec<Value> {
        let settings = &self.settings;
        let idle = u32::try_from(settings.keep_alive.as_millis()).unwrap_or(u32::MAX);
        vec![
            Value::text(&settings.container),
            Value::text(&settings.host),
            Value::Uint(settings.largest_frame),
            Value::Ushort(0),
            Value::Uint(idle),
        ]
    }

    fn times(&self, open: &DescribedList) -> Timeouts {
        let own_timeout = self.settings.keep_alive;
        let peer_timeout = open
            .number(4)
            .filter(|millis| *millis > 0)
            .map(Duration::from_millis);
        // Half of the peer's timeout, so that a late heartbeat is still in time.
        let speak =
            peer_timeout.map_or(own_timeout, |peer_timeout| peer_timeout.min(own_timeout)) / 2;
        Timeouts {
            keep_alive: speak.clamp(Duration::from_millis(100), MAX_TIMEOUT),
            silence: (own_timeout * 2).clamp(Duration::from_secs(1), MAX_TIMEOUT),
            response: self.settings.answer_within.min(MAX_TIMEOUT),
        }
    }
}

fn begin() -> Vec<Value> {
    vec![
        Value::Null,
        Value::Uint(0),
        Value::Uint(0x7fff_ffff),
        Value::Uint(0x7fff_ffff),
    ]
}

impl Handshake {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        let broke = |error: std::io::Error| temporary(format!("the greeting broke: {error}"));
        self.stream.write_all(bytes).await.map_err(broke)?;
        self.stream.flush().await.map_err(broke)
    }

    async fn more(&mut self) -> Result<(), ConnectionError> {
        match self.stream.read_buf(&mut self.incoming).await {
            Ok(0) => Err(temporary(
                "the broker closed the connection in the middle of the greeting",
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(temporary(format!("the greeting broke: {error}"))),
        }
    }

    /// Exchanges protocol headers.
    async fn headers(&mut self, header: [u8; 8]) -> Result<(), ConnectionError> {
        self.write(&header).await?;
        while self.incoming.len() < header.len() {
            self.more().await?;
        }
        if self.incoming.split_to(header.len()) == header[..] {
            Ok(())
        } else {
            Err(temporary(
                "what is at this address does not speak AMQP 1.0, or wants another greeting",
            ))
        }
    }

    async fn send(
        &mut self,
        kind: FrameKind,
        name: u64,
        fields: Vec<Value>,
    ) -> Result<(), ConnectionError> {
        let mut out = BytesMut::new();
        frame::write(&mut out, kind, name, fields, &[]);
        self.write(&out).await
    }

    async fn request(
        &mut self,
        name: u64,
        fields: Vec<Value>,
    ) -> Result<DescribedList, ConnectionError> {
        self.send(FrameKind::Amqp, name, fields).await?;
        self.expect(FrameKind::Amqp, name).await
    }

    /// Waits for a performative and accepts no other.
    async fn expect(
        &mut self,
        kind: FrameKind,
        name: u64,
    ) -> Result<DescribedList, ConnectionError> {
        loop {
            let read = frame::read(&mut self.incoming, self.largest);
            match read.map_err(|bad| {
                temporary(format!(
                    "the broker does not speak AMQP as it should: {bad}"
                ))
            })? {
                Some(Frame::Performative {
                    kind: said, what, ..
                }) if said == kind && what.name == name => {
                    return Ok(what);
                }
                Some(Frame::Performative { what, .. }) if what.name == descriptor::CLOSE => {
                    let why = frame::error(what.inner(0).as_ref());
                    return Err(temporary(format!("the broker ends the connection: {why}")));
                }
                Some(Frame::Empty) => {}
                Some(_) => {
                    return Err(temporary(
                        "the broker answers the greeting with something else",
                    ));
                }
                None => self.more().await?,
            }
        }
    }
}

impl Connector for Amqp {
    type Connection = AmqpClient;

    fn address(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "amqps"
        } else {
            "amqp"
        };
        stream::address(scheme, &self.settings.host, self.settings.port)
    }

    fn redelivers(&self) -> bool {
        true
    }

    fn releases(&self) -> bool {
        true
    }

    async fn connect(&mut self) -> Result<AmqpClient, ConnectionError> {
        match timeout(self.settings.answer_within, self.greet()).await {
            Ok(greeted) => greeted,
            Err(_) => Err(temporary("the broker took too long to let us in")),
        }
    }
}
