//! What is written is read back, whatever it is and wherever it is cut; what is broken is refused, and never panics.

use super::*;
use proptest::{collection::vec, option, prelude::*};

const LARGEST: usize = 1 << 20;

fn text() -> impl Strategy<Value = String> {
    "[^\u{0}]{0,12}"
}

fn topic() -> impl Strategy<Value = String> {
    "[a-zé/ ]{1,20}"
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

/// A property that stands once, and how its value is made of a number.
type Single = (u8, fn(u32) -> PropertyValue);

/// Of each kind of value one that may stand there, and any number of pairs.
fn properties(singles: &'static [Single]) -> impl Strategy<Value = MqttProperties> {
    let pairs = vec((text(), text()), 0..4);
    (vec(option::of(1_u32..60_000), singles.len()), pairs).prop_map(move |(numbers, pairs)| {
        let singles = numbers.into_iter().zip(singles);
        let singles = singles.filter_map(|(number, (name, make))| Some((*name, make(number?))));
        let pairs = pairs
            .into_iter()
            .map(|(key, value)| (property::USER, PropertyValue::Pair(key, value)));
        MqttProperties(singles.chain(pairs).collect())
    })
}

fn flag(number: u32) -> PropertyValue {
    PropertyValue::Byte((number % 2) as u8)
}

fn two(number: u32) -> PropertyValue {
    PropertyValue::Two(number as u16)
}

fn words(number: u32) -> PropertyValue {
    PropertyValue::Text(number.to_string())
}

fn binary(number: u32) -> PropertyValue {
    PropertyValue::Binary(number.to_string().into())
}

fn id() -> impl Strategy<Value = u16> {
    1..=u16::MAX
}

fn packets() -> impl Strategy<Value = Packet> {
    let answer = || properties(&[(property::REASON, words)]);
    let connect = (
        (text(), any::<bool>(), any::<u16>()),
        (option::of(text()), option::of(bytes())),
        properties(&[
            (property::SESSION_EXPIRY, PropertyValue::Four),
            (property::RECEIVE_MAXIMUM, two),
            (property::MAXIMUM_PACKET_SIZE, PropertyValue::Four),
        ]),
    );
    let connect = connect.prop_map(
        |((client_id, is_clean, keep_alive), (user, password), properties)| {
            Packet::Connect(Connect {
                client_id,
                is_clean,
                keep_alive,
                user,
                password,
                properties,
            })
        },
    );
    let connected = properties(&[
        (property::SESSION_EXPIRY, PropertyValue::Four),
        (18, words),
        (property::SERVER_KEEP_ALIVE, two),
        (22, binary),
        (property::REASON, words),
        (property::RECEIVE_MAXIMUM, two),
        (property::MAXIMUM_QOS, flag),
        (property::MAXIMUM_PACKET_SIZE, PropertyValue::Four),
        (property::SHARED_AVAILABLE, flag),
    ]);
    let connected = (any::<bool>(), any::<u8>(), connected).prop_map(
        |(is_session_present, reason, properties)| {
            Packet::ConnAck(ConnAck {
                is_session_present,
                reason,
                properties,
            })
        },
    );
    let described = properties(&[
        (1, flag),
        (2, PropertyValue::Four),
        (8, words),
        (9, binary),
        (11, |number| PropertyValue::Variable(number as usize)),
    ]);
    let publish = (
        (any::<bool>(), any::<bool>()),
        topic(),
        option::of(id()),
        described,
        bytes(),
    );
    let publish = publish.prop_map(
        |((is_duplicate, is_retained), topic, packet_id, properties, payload)| {
            Packet::Publish(Publish {
                is_duplicate,
                is_retained,
                topic,
                packet_id,
                properties,
                payload,
            })
        },
    );
    let published = (id(), any::<u8>(), answer()).prop_map(|(packet_id, reason, properties)| {
        Packet::PubAck(PubAck {
            packet_id,
            reason,
            properties,
        })
    });
    let filters = vec((text(), any::<u8>()), 1..4);
    let subscribe =
        (id(), filters, properties(&[])).prop_map(|(packet_id, filters, properties)| {
            Packet::Subscribe(Subscribe {
                packet_id,
                filters,
                properties,
            })
        });
    let filters = vec((text(), Just(0)), 1..4);
    let unsubscribe =
        (id(), filters, properties(&[])).prop_map(|(packet_id, filters, properties)| {
            Packet::Unsubscribe(Subscribe {
                packet_id,
                filters,
                properties,
            })
        });
    let answers = (any::<bool>(), id(), vec(any::<u8>(), 1..4), answer());
    let answers = answers.prop_map(|(begins, packet_id, reasons, properties)| {
        let answer = SubAck {
            packet_id,
            reasons,
            properties,
        };
        if begins {
            Packet::SubAck(answer)
        } else {
            Packet::UnsubAck(answer)
        }
    });
    let end = properties(&[
        (property::SESSION_EXPIRY, PropertyValue::Four),
        (property::REASON, words),
    ]);
    let end = (any::<u8>(), end)
        .prop_map(|(reason, properties)| Packet::Disconnect(Disconnect { reason, properties }));
    prop_oneof![
        connect,
        connected,
        publish,
        published,
        subscribe,
        unsubscribe,
        answers,
        end,
        Just(Packet::PingReq),
        Just(Packet::PingResp)
    ]
}

/// What is left of a packet in 3.1.1.
fn in_three(mut packet: Packet) -> Packet {
    match &mut packet {
        Packet::Connect(Connect { properties, .. })
        | Packet::ConnAck(ConnAck { properties, .. })
        | Packet::Publish(Publish { properties, .. })
        | Packet::Subscribe(Subscribe { properties, .. })
        | Packet::Unsubscribe(Subscribe { properties, .. })
        | Packet::SubAck(SubAck { properties, .. })
        | Packet::UnsubAck(SubAck { properties, .. }) => *properties = MqttProperties::default(),
        Packet::PubAck(PubAck {
            reason, properties, ..
        })
        | Packet::Disconnect(Disconnect { reason, properties }) => {
            (*reason, *properties) = (0, MqttProperties::default())
        }
        Packet::PingReq | Packet::PingResp => {}
    }
    packet
}

/// Reads a stream that comes in pieces.
fn read_all(
    version: Version,
    stream: &[u8],
    piece: usize,
    largest: usize,
) -> Result<Vec<Decoded>, CodecError> {
    let mut reader = PacketReader::new(version, largest);
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match reader.read(&mut buffer)? {
                Decoded::More => break,
                read => found.push(read),
            }
        }
    }
    assert!(buffer.len() <= largest.max(70_000), "what waits is bounded");
    Ok(found)
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_wherever_it_is_cut(packets in vec(packets(), 1..5), piece in 1..50_usize) {
        for version in [Version::Three, Version::Five] {
            let mut stream = BytesMut::new();
            packets.iter().for_each(|packet| write(version, packet, &mut stream).unwrap());
            let read = read_all(version, &stream, piece, LARGEST).unwrap();
            let expected = packets.iter().cloned().map(|packet| match version {
                Version::Three => in_three(packet),
                Version::Five => packet,
            });
            prop_assert_eq!(read, expected.map(Decoded::Packet).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(stream in vec(any::<u8>(), 0..300), piece in 1..50_usize) {
        for version in [Version::Three, Version::Five] {
            _ = read_all(version, &stream, piece, 64);
        }
    }

    #[test]
    fn no_change_to_a_packet_makes_it_panic(packet in packets(), at in any::<usize>(), to in any::<u8>()) {
        for version in [Version::Three, Version::Five] {
            let mut stream = BytesMut::new();
            write(version, &packet, &mut stream).unwrap();
            let at = at % stream.len();
            stream[at] = to;
            _ = read_all(version, &stream, stream.len(), LARGEST);
        }
    }
}

fn message(payload: usize, packet_id: Option<u16>) -> Packet {
    let (topic, properties, payload) = (
        "a/b".to_owned(),
        MqttProperties::default(),
        Bytes::from(vec![7; payload]),
    );
    Packet::Publish(Publish {
        is_duplicate: false,
        is_retained: false,
        topic,
        packet_id,
        properties,
        payload,
    })
}

fn stream_of(version: Version, packets: &[Packet]) -> BytesMut {
    let mut stream = BytesMut::new();
    packets
        .iter()
        .for_each(|packet| write(version, packet, &mut stream).unwrap());
    stream
}

#[test]
fn a_message_that_is_too_large_is_passed_over_and_the_next_is_read() {
    for version in [Version::Three, Version::Five] {
        let small = message(3, None);
        let stream = stream_of(
            version,
            &[
                message(5000, Some(9)),
                small.clone(),
                message(5000, None),
                Packet::PingReq,
            ],
        );
        for piece in [1, 100, stream.len()] {
            let read = read_all(version, &stream, piece, 1000).unwrap();
            let expected = [
                Decoded::Oversize { packet_id: Some(9) },
                Decoded::Packet(small.clone()),
                Decoded::Oversize { packet_id: None },
                Decoded::Packet(Packet::PingReq),
            ];
            assert_eq!(read, expected);
        }
    }
}

#[test]
fn a_packet_that_is_exactly_as_large_as_we_take_is_taken() {
    let packet = message(50, Some(1));
    let stream = stream_of(Version::Five, std::slice::from_ref(&packet));
    let size = stream.len();
    assert_eq!(
        read_all(Version::Five, &stream, size, size).unwrap(),
        [Decoded::Packet(packet)]
    );
    let one_less = read_all(Version::Five, &stream, size, size - 1).unwrap();
    assert_eq!(one_less, [Decoded::Oversize { packet_id: Some(1) }]);
}

#[test]
fn a_length_that_is_a_lie_costs_no_memory() {
    let mut buffer = BytesMut::from(&[0x20, 0xff, 0xff, 0xff, 0x7f][..]);
    let refused = PacketReader::new(Version::Five, LARGEST).read(&mut buffer);
    assert_eq!(
        refused,
        Err(CodecError(
            "a packet that is no message is larger than we take"
        ))
    );
}

#[test]
fn more_properties_than_anybody_needs_are_passed_over_and_the_message_comes() {
    let pairs = (0..3000).map(|at| {
        (
            property::USER,
            PropertyValue::Pair(at.to_string(), "x".to_owned()),
        )
    });
    let Packet::Publish(publish) = message(1, Some(1)) else {
        panic!()
    };
    let sent = Packet::Publish(Publish {
        properties: MqttProperties(pairs.collect()),
        ..publish
    });
    let stream = stream_of(Version::Five, &[sent]);
    let read = read_all(Version::Five, &stream, stream.len(), LARGEST).unwrap();
    let [Decoded::Packet(Packet::Publish(read))] = &read[..] else {
        panic!("{read:?}")
    };
    assert_eq!(
        (read.properties.0.len(), &read.payload[..]),
        (1024, &[7][..])
    );
    assert_eq!(
        read.properties.0[1023].1,
        PropertyValue::Pair("1023".to_owned(), "x".to_owned())
    );
}

#[test]
fn broken_packets_are_refused_by_name() {
    let cases: &[(&[u8], &str)] = &[
        (&[0x00, 0], "there is no such packet"),
        (
            &[0x34, 5, 0, 1, b'a', 0, 1],
            "a message comes at QoS 2, which was not asked for",
        ),
        (
            &[0x62, 2, 0, 1],
            "its first byte has flags that it must not have",
        ),
        (
            &[0x50, 2, 0, 1],
            "a message comes at QoS 2, which was not asked for",
        ),
        (
            &[0xf0, 0],
            "an exchange of authentication was not asked for",
        ),
        (&[0xd0, 1, 0], "it has more than it may"),
        (&[0xd0, 0x80, 0], "a length is padded"),
        (
            &[0xd0, 0x80, 0x80, 0x80, 0x80, 1],
            "a length has more than four bytes",
        ),
        (&[0x40, 2, 0, 0], "a packet identifier is 0"),
        (&[0x40, 1, 0], "it ends too early"),
        (&[0x20, 3, 0, 0, 9], "it ends too early"),
        (&[0x20, 5, 0, 0, 2, 99, 0], "it has an unknown property"),
        (
            &[0x20, 6, 0, 0, 3, 35, 0, 1],
            "a property stands where it must not",
        ),
        (&[0x20, 7, 0, 0, 4, 36, 1, 36, 1], "a property stands twice"),
        (&[0x20, 5, 0, 0, 2, 36, 2], "a property is neither 0 nor 1"),
        (
            &[0x20, 6, 0, 0, 3, 33, 0, 0],
            "a property is 0 that must not be",
        ),
        (
            &[0x30, 4, 0, 1, 0xff, 0],
            "a text is not UTF-8, or has a NUL",
        ),
        (
            &[0x30, 4, 0, 1, b'+', 0],
            "it has no topic, or one with wildcards",
        ),
        (
            &[0x30, 3, 0, 0, 0],
            "it has no topic, or one with wildcards",
        ),
        (
            &[0x30, 7, 0, 1, b'a', 3, 35, 0, 1],
            "a topic has an alias, which was not allowed",
        ),
    ];
    for (stream, expected) in cases {
        let read = read_all(Version::Five, stream, stream.len(), LARGEST);
        assert_eq!(
            read.map_err(|flaw| flaw.to_string()),
            Err((*expected).to_owned()),
            "{stream:?}"
        );
    }
}

#[test]
fn a_refusal_in_the_words_of_3_1_1_is_understood_by_one_who_asked_in_5() {
    let properties = MqttProperties::default();
    let answer = ConnAck {
        is_session_present: false,
        reason: 1,
        properties,
    };
    let read = read_all(Version::Five, &[0x20, 2, 0, 1], 4, LARGEST).unwrap();
    assert_eq!(read, [Decoded::Packet(Packet::ConnAck(answer))]);
    // But nobody is let in by half an answer.
    assert!(read_all(Version::Five, &[0x20, 2, 0, 0], 4, LARGEST).is_err());
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let mut out = BytesMut::from(&b"before"[..]);
    let Packet::Publish(publish) = message(1, None) else {
        panic!()
    };
    for topic in ["", "a/+", "a\0", &"x".repeat(70_000)] {
        let packet = Packet::Publish(Publish {
            topic: topic.to_owned(),
            ..publish.clone()
        });
        write(Version::Five, &packet, &mut out).unwrap_err();
    }
    assert_eq!(&out[..], b"before");
}
