//! AMQP 1.0, by a client of our own: what others may send decides nothing here about memory or depth, an oversize message is
//! passed over instead of coming back for ever, and a message is settled when its work is done.
//!
//! ```text
//! Amqp ──connect──▶ TCP, TLS ──who we are──▶ open, begin ──▶ driver ─ moves bytes, watches the clock
//!                                                              └─ session: what waits for whom
//!                                                                  └─ frame, message, value: bytes
//! ```

mod address;
mod frame;
mod message;
mod session;
mod value;

pub use address::Addresses;

use super::{
    Connector, Credentials, Trouble, again,
    driver::{Driver, Times},
    never,
    stream::{self, Stream},
    tls::Tls,
};
use bytes::{Bytes, BytesMut};
use frame::{Frame, Kind, Named, name};
use session::{Agreed, Session};
use std::{num::NonZeroU16, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout},
};
use value::Value;

/// What each side says first.
const AMQP: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
const SASL: [u8; 8] = *b"AMQP\x03\x01\x00\x00";
/// The smallest frame that everybody must take.
const SMALLEST_FRAME: u32 = 512;
/// The largest that we send, even if the broker takes more.
const LARGEST_SENT: u32 = 1 << 20;
/// Whatever the settings say: moments beyond the end of time cannot be counted.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// One connection to a broker.
pub type Client = Driver<Session>;

/// A broker, and how we want to speak with it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name or address.
    pub host: String,
    /// By convention 5672, with TLS 5671. On a Solace broker it also chooses the message VPN; user names do not.
    pub port: u16,
    /// None is in the clear.
    pub tls: Option<Tls>,
    /// None is by our certificate, if there is one, and else without a name.
    pub credentials: Option<Credentials>,
    /// What the broker calls us.
    pub container: String,
    /// The queue that the members of the pool take turns on. It must be there; what lies in it is said by whoever made it.
    pub queue: String,
    /// How the broker calls things.
    pub addresses: Addresses,
    /// Messages that are not settled, at most, for each thing that is listened to; the broker holds back the rest. Must be more
    /// than the worker takes upon itself, or a request to cancel would wait behind those it is about.
    pub receive_maximum: NonZeroU16,
    /// The largest message that we take. Larger ones are rejected.
    pub largest_message: usize,
    /// The largest frame that we take.
    pub largest_frame: u32,
    /// Who is not heard for twice this is taken for dead.
    pub keep_alive: Duration,
    /// For the connection to stand, for each answer, and for each piece that we write to be taken.
    pub answer_within: Duration,
}

impl Settings {
    /// What is usual, for a broker at this address.
    pub fn new(
        host: impl Into<String>,
        port: u16,
        queue: impl Into<String>,
        container: impl Into<String>,
    ) -> Settings {
        Settings {
            host: host.into(),
            port,
            tls: None,
            credentials: None,
            container: container.into(),
            queue: queue.into(),
            addresses: Addresses::Solace,
            receive_maximum: NonZeroU16::MIN.saturating_add(255),
            // What the mesh takes for the largest message, and room for what travels beside it.
            largest_message: 10_000_000 + (512 << 10),
            largest_frame: 64 << 10,
            keep_alive: Duration::from_secs(30),
            answer_within: Duration::from_secs(30),
        }
    }
}

/// Connects to one broker over AMQP 1.0.
#[derive(Debug)]
pub struct Amqp {
    settings: Settings,
}

/// A stream on which the broker is greeted.
struct Greeting {
    stream: Box<dyn Stream>,
    incoming: BytesMut,
    largest: usize,
}

impl Amqp {
    /// Checks what can be checked without the broker: names, and that the files are there.
    pub fn new(settings: Settings) -> Result<Amqp, Trouble> {
        if settings.queue.is_empty() || settings.container.is_empty() {
            return Err(never("the queue or the client has no name"));
        }
        if settings.queue.len() > 200 || settings.queue.contains(|letter: char| letter.is_control())
        {
            return Err(never(format!(
                "`{}` cannot be the name of a queue",
                settings.queue.escape_debug()
            )));
        }
        if let Some(tls) = &settings.tls {
            tls.name(&settings.host).map_err(never)?;
            tls.config().map_err(never)?;
        }
        let largest_frame = settings.largest_frame.max(SMALLEST_FRAME);
        Ok(Amqp {
            settings: Settings {
                largest_frame,
                ..settings
            },
        })
    }

    async fn greet(&self) -> Result<Client, Trouble> {
        let settings = &self.settings;
        let stream = stream::open(&settings.host, settings.port, settings.tls.as_ref()).await?;
        let largest = usize::try_from(settings.largest_frame).unwrap_or(usize::MAX);
        let mut greeting = Greeting {
            stream,
            incoming: BytesMut::new(),
            largest,
        };
        greeting.headers(SASL).await?;
        self.introduce(&mut greeting).await?;
        greeting.headers(AMQP).await?;
        let open = greeting.ask(name::OPEN, self.open()).await?;
        let begin = greeting.ask(name::BEGIN, begin()).await?;
        let (theirs, none) = (u64::from(LARGEST_SENT), u64::from(SMALLEST_FRAME));
        let largest_frame = open.number(2).unwrap_or(theirs).clamp(none, theirs);
        let agreed = Agreed {
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
        let session = Session::new(agreed, Instant::now());
        Ok(Driver::new(
            greeting.stream,
            greeting.incoming,
            session,
            self.times(&open),
        ))
    }

    /// Says who we are. A broker that does not let us in may do so later: passwords change, and not everywhere at once.
    async fn introduce(&self, greeting: &mut Greeting) -> Result<(), Trouble> {
        let offered = greeting.hear(Kind::Sasl, name::MECHANISMS).await?;
        let offered: Vec<&str> = match offered.get(0) {
            Value::Array(all) => all.iter().filter_map(Value::words).collect(),
            one => one.words().into_iter().collect(),
        };
        let (mechanism, words) = self.mechanism();
        if !offered.contains(&mechanism) {
            let offered = offered.join(", ").chars().take(200).collect::<String>();
            return Err(again(format!(
                "the broker does not let us in by {mechanism}, only by: {offered}"
            )));
        }
        let host = Value::text(&self.settings.host);
        let fields = vec![
            Value::Symbol(mechanism.to_owned()),
            Value::Binary(words),
            host,
        ];
        greeting.say(Kind::Sasl, name::INIT, fields).await?;
        let outcome = greeting.hear(Kind::Sasl, name::OUTCOME).await?;
        match outcome.number(0) {
            Some(0) => Ok(()),
            Some(1) => Err(again(
                "the broker does not know us: user name or password is wrong",
            )),
            Some(4) => Err(again("the broker cannot check for now who we are")),
            Some(code) => Err(again(format!(
                "the broker does not let us in (code {code})"
            ))),
            None => Err(again("the broker does not say whether it lets us in")),
        }
    }

    fn mechanism(&self) -> (&'static str, Bytes) {
        let has_certificate = self
            .settings
            .tls
            .as_ref()
            .is_some_and(|tls| tls.certificate.is_some());
        match &self.settings.credentials {
            Some(Credentials { user, password }) => {
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

    fn times(&self, open: &Named) -> Times {
        let ours = self.settings.keep_alive;
        let theirs = open
            .number(4)
            .filter(|millis| *millis > 0)
            .map(Duration::from_millis);
        // Half of it, so that a word that is late is still in time.
        let speak = theirs.map_or(ours, |theirs| theirs.min(ours)) / 2;
        Times {
            speak: speak.clamp(Duration::from_millis(100), LONGEST_WAIT),
            hear: (ours * 2).clamp(Duration::from_secs(1), LONGEST_WAIT),
            answer: self.settings.answer_within.min(LONGEST_WAIT),
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

impl Greeting {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let broke = |error: std::io::Error| again(format!("the greeting broke: {error}"));
        self.stream.write_all(bytes).await.map_err(broke)?;
        self.stream.flush().await.map_err(broke)
    }

    async fn more(&mut self) -> Result<(), Trouble> {
        match self.stream.read_buf(&mut self.incoming).await {
            Ok(0) => Err(again(
                "the broker closed the connection in the middle of the greeting",
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(again(format!("the greeting broke: {error}"))),
        }
    }

    /// Both sides say which protocol comes next.
    async fn headers(&mut self, header: [u8; 8]) -> Result<(), Trouble> {
        self.write(&header).await?;
        while self.incoming.len() < header.len() {
            self.more().await?;
        }
        match self.incoming.split_to(header.len()) == header[..] {
            true => Ok(()),
            false => Err(again(
                "what is at this address does not speak AMQP 1.0, or wants another greeting",
            )),
        }
    }

    async fn say(&mut self, kind: Kind, name: u64, fields: Vec<Value>) -> Result<(), Trouble> {
        let mut out = BytesMut::new();
        frame::write(&mut out, kind, name, fields, &[]);
        self.write(&out).await
    }

    async fn ask(&mut self, name: u64, fields: Vec<Value>) -> Result<Named, Trouble> {
        self.say(Kind::Amqp, name, fields).await?;
        self.hear(Kind::Amqp, name).await
    }

    /// Waits for this to be said, and takes nothing else.
    async fn hear(&mut self, kind: Kind, name: u64) -> Result<Named, Trouble> {
        loop {
            let read = frame::read(&mut self.incoming, self.largest);
            match read.map_err(|bad| {
                again(format!(
                    "the broker does not speak AMQP as it should: {bad}"
                ))
            })? {
                Some(Frame::Said {
                    kind: said, what, ..
                }) if said == kind && what.name == name => {
                    return Ok(what);
                }
                Some(Frame::Said { what, .. }) if what.name == name::CLOSE => {
                    let why = frame::error(what.inner(0).as_ref());
                    return Err(again(format!("the broker ends the connection: {why}")));
                }
                Some(Frame::Empty) => {}
                Some(_) => {
                    return Err(again("the broker answers the greeting with something else"));
                }
                None => self.more().await?,
            }
        }
    }
}

impl Connector for Amqp {
    type Connection = Client;

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

    async fn connect(&mut self) -> Result<Client, Trouble> {
        match timeout(self.settings.answer_within, self.greet()).await {
            Ok(greeted) => greeted,
            Err(_) => Err(again("the broker took too long to let us in")),
        }
    }
}
