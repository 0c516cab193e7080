//! Each kind of packet, read and written. In 3.1.1 there are no properties, and fewer reasons.

use super::{
    Extras, Flaw, Version,
    extras::name,
    field::{Cursor, put_binary, put_text},
    whole,
};
use bytes::{BufMut, Bytes, BytesMut};

pub(super) const PUBLISH: u8 = 3;
const CONNECT: u8 = 1;
const CONNECT_ANSWER: u8 = 2;
const PUBLISH_ANSWER: u8 = 4;
const SUBSCRIBE: u8 = 8;
const SUBSCRIBE_ANSWER: u8 = 9;
const UNSUBSCRIBE: u8 = 10;
const UNSUBSCRIBE_ANSWER: u8 = 11;
const PING: u8 = 12;
const PING_ANSWER: u8 = 13;
const DISCONNECT: u8 = 14;

pub(super) const QOS_2: Flaw = Flaw("a message comes at QoS 2, which was not asked for");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Connect(Connect),
    ConnectAnswer(ConnectAnswer),
    Publish(Publish),
    PublishAnswer(PublishAnswer),
    Subscribe(Subscribe),
    SubscribeAnswer(SubscribeAnswer),
    /// The second of each filter has no meaning here.
    Unsubscribe(Subscribe),
    UnsubscribeAnswer(SubscribeAnswer),
    Ping,
    PingAnswer,
    Disconnect(Disconnect),
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Connect {
    pub(crate) client_id: String,
    pub(crate) is_clean: bool,
    /// Seconds.
    pub(crate) keep_alive: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Bytes>,
    pub(crate) extras: Extras,
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It has a password.
        write!(out, "Connect({})", self.client_id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectAnswer {
    pub(crate) is_session_present: bool,
    pub(crate) reason: u8,
    pub(crate) extras: Extras,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) is_duplicate: bool,
    pub(crate) is_retained: bool,
    pub(crate) topic: String,
    /// At QoS 1 it has one, at QoS 0 none.
    pub(crate) packet_id: Option<u16>,
    pub(crate) extras: Extras,
    pub(crate) payload: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishAnswer {
    pub(crate) packet_id: u16,
    pub(crate) reason: u8,
    pub(crate) extras: Extras,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscribe {
    pub(crate) packet_id: u16,
    /// Each with its options.
    pub(crate) filters: Vec<(String, u8)>,
    pub(crate) extras: Extras,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscribeAnswer {
    pub(crate) packet_id: u16,
    /// One for each filter; none when an end of subscriptions is answered in 3.1.1.
    pub(crate) reasons: Vec<u8>,
    pub(crate) extras: Extras,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disconnect {
    pub(crate) reason: u8,
    pub(crate) extras: Extras,
}

/// Reads the body of a packet, to its end. `first` is its first byte.
pub(super) fn read(version: Version, first: u8, body: Bytes) -> Result<Packet, Flaw> {
    let (kind, flags) = (first >> 4, first & 0x0f);
    let expected = match kind {
        PUBLISH => flags,
        SUBSCRIBE | UNSUBSCRIBE => 2,
        _ => 0,
    };
    if flags != expected {
        return Err(Flaw("its first byte has flags that it must not have"));
    }
    let extras = |from: &mut Cursor| match version {
        Version::Three => Ok(Extras::default()),
        Version::Five => Extras::read(from, kind),
    };
    whole(body, |from| {
        Ok(match kind {
            CONNECT => Packet::Connect(read_connect(version, from)?),
            CONNECT_ANSWER => Packet::ConnectAnswer(read_connect_answer(from, extras)?),
            PUBLISH => Packet::Publish(read_publish(flags, from, extras)?),
            PUBLISH_ANSWER => Packet::PublishAnswer(read_publish_answer(version, from, extras)?),
            SUBSCRIBE | UNSUBSCRIBE => {
                let packet_id = from.packet_id()?;
                let extras = extras(from)?;
                let filters = read_filters(from, kind == SUBSCRIBE)?;
                let subscribe = Subscribe {
                    packet_id,
                    filters,
                    extras,
                };
                if kind == SUBSCRIBE {
                    Packet::Subscribe(subscribe)
                } else {
                    Packet::Unsubscribe(subscribe)
                }
            }
            SUBSCRIBE_ANSWER | UNSUBSCRIBE_ANSWER => {
                let packet_id = from.packet_id()?;
                let extras = extras(from)?;
                let reasons = from.take(from.0.len())?.to_vec();
                let answer = SubscribeAnswer {
                    packet_id,
                    reasons,
                    extras,
                };
                match kind == SUBSCRIBE_ANSWER {
                    true => Packet::SubscribeAnswer(answer),
                    false => Packet::UnsubscribeAnswer(answer),
                }
            }
            PING => Packet::Ping,
            PING_ANSWER => Packet::PingAnswer,
            DISCONNECT => Packet::Disconnect(read_disconnect(version, from, extras)?),
            5..=7 => return Err(QOS_2),
            15 => return Err(Flaw("an exchange of authentication was not asked for")),
            _ => return Err(Flaw("there is no such packet")),
        })
    })
}

fn read_connect(version: Version, from: &mut Cursor) -> Result<Connect, Flaw> {
    if from.text()? != "MQTT" || from.byte()? != level(version) {
        return Err(Flaw("it is of another version"));
    }
    let flags = from.byte()?;
    if flags & 1 != 0 {
        return Err(Flaw("it has flags that it must not have"));
    }
    if flags & 0x3c != 0 {
        return Err(Flaw("it has a will"));
    }
    let keep_alive = from.two()?;
    let extras = match version {
        Version::Three => Extras::default(),
        Version::Five => Extras::read(from, CONNECT)?,
    };
    let client_id = from.text()?;
    let user = if flags & 0x80 != 0 {
        Some(from.text()?)
    } else {
        None
    };
    let password = if flags & 0x40 != 0 {
        Some(from.binary()?)
    } else {
        None
    };
    Ok(Connect {
        client_id,
        is_clean: flags & 2 != 0,
        keep_alive,
        user,
        password,
        extras,
    })
}

fn read_connect_answer(
    from: &mut Cursor,
    extras: impl FnOnce(&mut Cursor) -> Result<Extras, Flaw>,
) -> Result<ConnectAnswer, Flaw> {
    let flags = from.byte()?;
    if flags > 1 {
        return Err(Flaw("it has flags that it must not have"));
    }
    let reason = from.byte()?;
    // A broker that speaks 3.1.1 only refuses in 3.1.1, whatever it was asked in.
    let is_old_refusal = reason != 0 && from.is_empty();
    let extras = if is_old_refusal {
        Extras::default()
    } else {
        extras(from)?
    };
    Ok(ConnectAnswer {
        is_session_present: flags == 1,
        reason,
        extras,
    })
}

fn read_publish(
    flags: u8,
    from: &mut Cursor,
    extras: impl FnOnce(&mut Cursor) -> Result<Extras, Flaw>,
) -> Result<Publish, Flaw> {
    let topic = from.text()?;
    let packet_id = match (flags >> 1) & 3 {
        0 => None,
        1 => Some(from.packet_id()?),
        _ => return Err(QOS_2),
    };
    let extras = extras(from)?;
    if extras.find(name::TOPIC_ALIAS).is_some() {
        return Err(Flaw("a topic has an alias, which was not allowed"));
    }
    if !is_topic(&topic) {
        return Err(Flaw("it has no topic, or one with wildcards"));
    }
    let payload = from.take(from.0.len())?;
    let (is_duplicate, is_retained) = (flags & 8 != 0, flags & 1 != 0);
    Ok(Publish {
        is_duplicate,
        is_retained,
        topic,
        packet_id,
        extras,
        payload,
    })
}

fn read_publish_answer(
    version: Version,
    from: &mut Cursor,
    extras: impl FnOnce(&mut Cursor) -> Result<Extras, Flaw>,
) -> Result<PublishAnswer, Flaw> {
    let packet_id = from.packet_id()?;
    let (reason, extras) = read_short(version, from, extras)?;
    Ok(PublishAnswer {
        packet_id,
        reason,
        extras,
    })
}

fn read_disconnect(
    version: Version,
    from: &mut Cursor,
    extras: impl FnOnce(&mut Cursor) -> Result<Extras, Flaw>,
) -> Result<Disconnect, Flaw> {
    read_short(version, from, extras).map(|(reason, extras)| Disconnect { reason, extras })
}

/// A reason and properties, both of which may be left out when they say nothing.
fn read_short(
    version: Version,
    from: &mut Cursor,
    extras: impl FnOnce(&mut Cursor) -> Result<Extras, Flaw>,
) -> Result<(u8, Extras), Flaw> {
    if version == Version::Three || from.is_empty() {
        return Ok((0, Extras::default()));
    }
    let reason = from.byte()?;
    Ok((
        reason,
        if from.is_empty() {
            Extras::default()
        } else {
            extras(from)?
        },
    ))
}

fn read_filters(from: &mut Cursor, have_options: bool) -> Result<Vec<(String, u8)>, Flaw> {
    let mut filters = Vec::new();
    while !from.is_empty() {
        let filter = from.text()?;
        filters.push((filter, if have_options { from.byte()? } else { 0 }));
    }
    if filters.is_empty() {
        Err(Flaw("it names no topics"))
    } else {
        Ok(filters)
    }
}

/// Whether a message can be sent to it.
pub(super) fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && !topic.contains(['+', '#', '\0'])
}

fn level(version: Version) -> u8 {
    match version {
        Version::Three => 4,
        Version::Five => 5,
    }
}

/// The first byte, the body, and what stands behind it and need not be copied twice.
pub(super) fn write(version: Version, packet: &Packet) -> Result<(u8, BytesMut, &[u8]), Flaw> {
    let mut body = BytesMut::new();
    let mut payload: &[u8] = &[];
    let extras = |body: &mut BytesMut, extras: &Extras| match version {
        Version::Three => Ok(()),
        Version::Five => extras.write(body),
    };
    let first = match packet {
        Packet::Connect(connect) => {
            write_connect(version, connect, &mut body)?;
            CONNECT << 4
        }
        Packet::ConnectAnswer(answer) => {
            body.put_u8(u8::from(answer.is_session_present));
            body.put_u8(answer.reason);
            extras(&mut body, &answer.extras)?;
            CONNECT_ANSWER << 4
        }
        Packet::Publish(publish) => {
            payload = &publish.payload;
            if !is_topic(&publish.topic) {
                return Err(Flaw("it has no topic, or one with wildcards"));
            }
            put_text(&mut body, &publish.topic)?;
            publish.packet_id.inspect(|id| body.put_u16(*id));
            extras(&mut body, &publish.extras)?;
            let qos = u8::from(publish.packet_id.is_some());
            PUBLISH << 4
                | u8::from(publish.is_duplicate) << 3
                | qos << 1
                | u8::from(publish.is_retained)
        }
        Packet::PublishAnswer(answer) => {
            body.put_u16(answer.packet_id);
            write_short(version, answer.reason, &answer.extras, &mut body)?;
            PUBLISH_ANSWER << 4
        }
        Packet::Subscribe(subscribe) | Packet::Unsubscribe(subscribe) => {
            let has_options = matches!(packet, Packet::Subscribe(_));
            body.put_u16(subscribe.packet_id);
            extras(&mut body, &subscribe.extras)?;
            for (filter, options) in &subscribe.filters {
                put_text(&mut body, filter)?;
                has_options.then(|| body.put_u8(*options));
            }
            (if has_options { SUBSCRIBE } else { UNSUBSCRIBE }) << 4 | 2
        }
        Packet::SubscribeAnswer(answer) | Packet::UnsubscribeAnswer(answer) => {
            body.put_u16(answer.packet_id);
            extras(&mut body, &answer.extras)?;
            body.put_slice(&answer.reasons);
            match packet {
                Packet::SubscribeAnswer(_) => SUBSCRIBE_ANSWER << 4,
                _ => UNSUBSCRIBE_ANSWER << 4,
            }
        }
        Packet::Ping => PING << 4,
        Packet::PingAnswer => PING_ANSWER << 4,
        Packet::Disconnect(disconnect) => {
            write_short(version, disconnect.reason, &disconnect.extras, &mut body)?;
            DISCONNECT << 4
        }
    };
    Ok((first, body, payload))
}

fn write_connect(version: Version, connect: &Connect, body: &mut BytesMut) -> Result<(), Flaw> {
    put_text(body, "MQTT")?;
    body.put_u8(level(version));
    let (user, password) = (
        u8::from(connect.user.is_some()),
        u8::from(connect.password.is_some()),
    );
    body.put_u8(user << 7 | password << 6 | u8::from(connect.is_clean) << 1);
    body.put_u16(connect.keep_alive);
    if version == Version::Five {
        connect.extras.write(body)?;
    }
    put_text(body, &connect.client_id)?;
    connect
        .user
        .iter()
        .try_for_each(|user| put_text(body, user))?;
    connect
        .password
        .iter()
        .try_for_each(|password| put_binary(body, password))
}

fn write_short(
    version: Version,
    reason: u8,
    extras: &Extras,
    body: &mut BytesMut,
) -> Result<(), Flaw> {
    if version == Version::Three || (reason == 0 && extras.0.is_empty()) {
        return Ok(());
    }
    body.put_u8(reason);
    if extras.0.is_empty() {
        Ok(())
    } else {
        extras.write(body)
    }
}
