//! MQTT packets. Version 3.1.1 has no properties, and fewer reason codes.

use super::{
    CodecError, MqttProperties, Version,
    primitives::{Cursor, put_binary, put_text},
    properties::property,
    whole,
};
use bytes::{BufMut, Bytes, BytesMut};

pub(super) const PUBLISH: u8 = 3;
const CONNECT: u8 = 1;
const CONNACK: u8 = 2;
const PUBACK: u8 = 4;
const SUBSCRIBE: u8 = 8;
const SUBACK: u8 = 9;
const UNSUBSCRIBE: u8 = 10;
const UNSUBACK: u8 = 11;
const PINGREQ: u8 = 12;
const PINGRESP: u8 = 13;
const DISCONNECT: u8 = 14;

pub(super) const QOS_2: CodecError =
    CodecError("a message comes at QoS 2, which was not asked for");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Connect(Connect),
    ConnAck(ConnAck),
    Publish(Publish),
    PubAck(PubAck),
    Subscribe(Subscribe),
    SubAck(SubAck),
    /// The options of the filters are unused.
    Unsubscribe(Subscribe),
    UnsubAck(SubAck),
    PingReq,
    PingResp,
    Disconnect(Disconnect),
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Connect {
    pub(crate) client_id: String,
    pub(crate) is_clean: bool,
    /// In seconds.
    pub(crate) keep_alive: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Bytes>,
    pub(crate) properties: MqttProperties,
}

impl std::fmt::Debug for Connect {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Leaves out the password.
        write!(out, "Connect({})", self.client_id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnAck {
    pub(crate) is_session_present: bool,
    pub(crate) reason: u8,
    pub(crate) properties: MqttProperties,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) is_duplicate: bool,
    pub(crate) is_retained: bool,
    pub(crate) topic: String,
    /// Present at QoS 1, absent at QoS 0.
    pub(crate) packet_id: Option<u16>,
    pub(crate) properties: MqttProperties,
    pub(crate) payload: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PubAck {
    pub(crate) packet_id: u16,
    pub(crate) reason: u8,
    pub(crate) properties: MqttProperties,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subscribe {
    pub(crate) packet_id: u16,
    /// With subscription options.
    pub(crate) filters: Vec<(String, u8)>,
    pub(crate) properties: MqttProperties,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubAck {
    pub(crate) packet_id: u16,
    /// One per filter; none in an UNSUBACK of 3.1.1.
    pub(crate) reasons: Vec<u8>,
    pub(crate) properties: MqttProperties,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disconnect {
    pub(crate) reason: u8,
    pub(crate) properties: MqttProperties,
}

/// Decodes the body of a packet. `first` is its first byte.
pub(super) fn read(version: Version, first: u8, body: Bytes) -> Result<Packet, CodecError> {
    let kind = first >> 4;
    let flags = first & 0x0f;
    let expected = match kind {
        PUBLISH => flags,
        SUBSCRIBE | UNSUBSCRIBE => 2,
        _ => 0,
    };
    if flags != expected {
        return Err(CodecError("its first byte has flags that it must not have"));
    }
    let properties = |from: &mut Cursor| match version {
        Version::Three => Ok(MqttProperties::default()),
        Version::Five => MqttProperties::read(from, kind),
    };
    whole(body, |from| {
        Ok(match kind {
            CONNECT => Packet::Connect(read_connect(version, from)?),
            CONNACK => Packet::ConnAck(read_connack(from, properties)?),
            PUBLISH => Packet::Publish(read_publish(flags, from, properties)?),
            PUBACK => Packet::PubAck(read_puback(version, from, properties)?),
            SUBSCRIBE | UNSUBSCRIBE => {
                let packet_id = from.packet_id()?;
                let properties = properties(from)?;
                let filters = read_filters(from, kind == SUBSCRIBE)?;
                let subscribe = Subscribe {
                    packet_id,
                    filters,
                    properties,
                };
                if kind == SUBSCRIBE {
                    Packet::Subscribe(subscribe)
                } else {
                    Packet::Unsubscribe(subscribe)
                }
            }
            SUBACK | UNSUBACK => {
                let packet_id = from.packet_id()?;
                let properties = properties(from)?;
                let reasons = from.take(from.0.len())?.to_vec();
                let answer = SubAck {
                    packet_id,
                    reasons,
                    properties,
                };
                if kind == SUBACK {
                    Packet::SubAck(answer)
                } else {
                    Packet::UnsubAck(answer)
                }
            }
            PINGREQ => Packet::PingReq,
            PINGRESP => Packet::PingResp,
            DISCONNECT => Packet::Disconnect(read_disconnect(version, from, properties)?),
            5..=7 => return Err(QOS_2),
            15 => {
                return Err(CodecError(
                    "an exchange of authentication was not asked for",
                ));
            }
            _ => return Err(CodecError("there is no such packet")),
        })
    })
}

fn read_connect(version: Version, from: &mut Cursor) -> Result<Connect, CodecError> {
    if from.text()? != "MQTT" || from.byte()? != level(version) {
        return Err(CodecError("it is of another version"));
    }
    let flags = from.byte()?;
    if flags & 1 != 0 {
        return Err(CodecError("it has flags that it must not have"));
    }
    if flags & 0x3c != 0 {
        return Err(CodecError("it has a will"));
    }
    let keep_alive = from.two()?;
    let properties = match version {
        Version::Three => MqttProperties::default(),
        Version::Five => MqttProperties::read(from, CONNECT)?,
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
        properties,
    })
}

fn read_connack(
    from: &mut Cursor,
    properties: impl FnOnce(&mut Cursor) -> Result<MqttProperties, CodecError>,
) -> Result<ConnAck, CodecError> {
    let flags = from.byte()?;
    if flags > 1 {
        return Err(CodecError("it has flags that it must not have"));
    }
    let reason = from.byte()?;
    // A broker that only speaks 3.1.1 refuses in 3.1.1, whatever the version of the request.
    let is_old_refusal = reason != 0 && from.is_empty();
    let properties = if is_old_refusal {
        MqttProperties::default()
    } else {
        properties(from)?
    };
    Ok(ConnAck {
        is_session_present: flags == 1,
        reason,
        properties,
    })
}

fn read_publish(
    flags: u8,
    from: &mut Cursor,
    properties: impl FnOnce(&mut Cursor) -> Result<MqttProperties, CodecError>,
) -> Result<Publish, CodecError> {
    let topic = from.text()?;
    let packet_id = match (flags >> 1) & 3 {
        0 => None,
        1 => Some(from.packet_id()?),
        _ => return Err(QOS_2),
    };
    let properties = properties(from)?;
    if properties.find(property::TOPIC_ALIAS).is_some() {
        return Err(CodecError("a topic has an alias, which was not allowed"));
    }
    if !is_topic(&topic) {
        return Err(CodecError("it has no topic, or one with wildcards"));
    }
    let payload = from.take(from.0.len())?;
    let is_duplicate = flags & 8 != 0;
    let is_retained = flags & 1 != 0;
    Ok(Publish {
        is_duplicate,
        is_retained,
        topic,
        packet_id,
        properties,
        payload,
    })
}

fn read_puback(
    version: Version,
    from: &mut Cursor,
    properties: impl FnOnce(&mut Cursor) -> Result<MqttProperties, CodecError>,
) -> Result<PubAck, CodecError> {
    let packet_id = from.packet_id()?;
    let (reason, properties) = read_short(version, from, properties)?;
    Ok(PubAck {
        packet_id,
        reason,
        properties,
    })
}

fn read_disconnect(
    version: Version,
    from: &mut Cursor,
    properties: impl FnOnce(&mut Cursor) -> Result<MqttProperties, CodecError>,
) -> Result<Disconnect, CodecError> {
    read_short(version, from, properties)
        .map(|(reason, properties)| Disconnect { reason, properties })
}

/// Reason code and properties, both optional.
fn read_short(
    version: Version,
    from: &mut Cursor,
    properties: impl FnOnce(&mut Cursor) -> Result<MqttProperties, CodecError>,
) -> Result<(u8, MqttProperties), CodecError> {
    if version == Version::Three || from.is_empty() {
        return Ok((0, MqttProperties::default()));
    }
    let reason = from.byte()?;
    Ok((
        reason,
        if from.is_empty() {
            MqttProperties::default()
        } else {
            properties(from)?
        },
    ))
}

fn read_filters(from: &mut Cursor, have_options: bool) -> Result<Vec<(String, u8)>, CodecError> {
    let mut filters = Vec::new();
    while !from.is_empty() {
        let filter = from.text()?;
        filters.push((filter, if have_options { from.byte()? } else { 0 }));
    }
    if filters.is_empty() {
        Err(CodecError("it names no topics"))
    } else {
        Ok(filters)
    }
}

/// Whether messages can be published to it.
pub(super) fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && !topic.contains(['+', '#', '\0'])
}

fn level(version: Version) -> u8 {
    match version {
        Version::Three => 4,
        Version::Five => 5,
    }
}

/// First byte, body, and the payload, which is not copied.
pub(super) fn write(
    version: Version,
    packet: &Packet,
) -> Result<(u8, BytesMut, &[u8]), CodecError> {
    let mut body = BytesMut::new();
    let mut payload: &[u8] = &[];
    let properties = |body: &mut BytesMut, properties: &MqttProperties| match version {
        Version::Three => Ok(()),
        Version::Five => properties.write(body),
    };
    let first = match packet {
        Packet::Connect(connect) => {
            write_connect(version, connect, &mut body)?;
            CONNECT << 4
        }
        Packet::ConnAck(answer) => {
            body.put_u8(u8::from(answer.is_session_present));
            body.put_u8(answer.reason);
            properties(&mut body, &answer.properties)?;
            CONNACK << 4
        }
        Packet::Publish(publish) => {
            payload = &publish.payload;
            if !is_topic(&publish.topic) {
                return Err(CodecError("it has no topic, or one with wildcards"));
            }
            put_text(&mut body, &publish.topic)?;
            publish.packet_id.inspect(|id| body.put_u16(*id));
            properties(&mut body, &publish.properties)?;
            let qos = u8::from(publish.packet_id.is_some());
            PUBLISH << 4
                | u8::from(publish.is_duplicate) << 3
                | qos << 1
                | u8::from(publish.is_retained)
        }
        Packet::PubAck(answer) => {
            body.put_u16(answer.packet_id);
            write_short(version, answer.reason, &answer.properties, &mut body)?;
            PUBACK << 4
        }
        Packet::Subscribe(subscribe) | Packet::Unsubscribe(subscribe) => {
            let has_options = matches!(packet, Packet::Subscribe(_));
            body.put_u16(subscribe.packet_id);
            properties(&mut body, &subscribe.properties)?;
            for (filter, options) in &subscribe.filters {
                put_text(&mut body, filter)?;
                has_options.then(|| body.put_u8(*options));
            }
            (if has_options { SUBSCRIBE } else { UNSUBSCRIBE }) << 4 | 2
        }
        Packet::SubAck(answer) | Packet::UnsubAck(answer) => {
            body.put_u16(answer.packet_id);
            properties(&mut body, &answer.properties)?;
            body.put_slice(&answer.reasons);
            match packet {
                Packet::SubAck(_) => SUBACK << 4,
                _ => UNSUBACK << 4,
            }
        }
        Packet::PingReq => PINGREQ << 4,
        Packet::PingResp => PINGRESP << 4,
        Packet::Disconnect(disconnect) => {
            write_short(
                version,
                disconnect.reason,
                &disconnect.properties,
                &mut body,
            )?;
            DISCONNECT << 4
        }
    };
    Ok((first, body, payload))
}

fn write_connect(
    version: Version,
    connect: &Connect,
    body: &mut BytesMut,
) -> Result<(), CodecError> {
    put_text(body, "MQTT")?;
    body.put_u8(level(version));
    let user = u8::from(connect.user.is_some());
    let password = u8::from(connect.password.is_some());
    body.put_u8(user << 7 | password << 6 | u8::from(connect.is_clean) << 1);
    body.put_u16(connect.keep_alive);
    if version == Version::Five {
        connect.properties.write(body)?;
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
    properties: &MqttProperties,
    body: &mut BytesMut,
) -> Result<(), CodecError> {
    if version == Version::Three || (reason == 0 && properties.0.is_empty()) {
        return Ok(());
    }
    body.put_u8(reason);
    if properties.0.is_empty() {
        Ok(())
    } else {
        properties.write(body)
    }
}
