use super::*;
use proptest::prelude::*;

fn rabbit() -> AddressScheme {
    AddressScheme::named("rabbitmq").unwrap()
}

fn sections(parts: &[(u64, Value)]) -> Bytes {
    let mut out = BytesMut::new();
    for (name, value) in parts {
        Value::Described(Box::new(Value::Ulong(*name)), Box::new(value.clone())).write(&mut out);
    }
    out.freeze()
}

#[test]
fn what_is_sent_comes_as_it_was() {
    let properties = Properties::from([
        (
            "replyTo".to_owned(),
            "n/a2a/v1/sam_remote_tool/response/a/1".to_owned(),
        ),
        ("timestamp".to_owned(), "1700000000000".to_owned()),
    ]);
    let payload = Bytes::from(vec![7; 100_000]);
    let message = OutgoingMessage {
        topic: "n/a.b/c".to_owned(),
        payload: payload.clone(),
        properties: properties.clone(),
    };
    for addresses in [AddressScheme::Solace, rabbit()] {
        let read = read(write(&message, &addresses), &addresses);
        let expected = DecodedMessage {
            topic: Some(message.topic.clone()),
            payload: payload.clone(),
            properties: properties.clone(),
        };
        assert_eq!(read, Ok(expected));
    }
}

#[test]
fn every_single_value_is_a_text_and_the_reply_address_counts_where_no_property_says_otherwise() {
    let pairs = [
        ("a", Value::Bool(true)),
        ("b", Value::Long(-5)),
        ("c", Value::Uint(7)),
        ("d", Value::Double(1.5)),
        ("e", Value::Timestamp(12)),
        ("f", Value::Uuid(1)),
        ("g", Value::Binary(Bytes::from_static(b"x"))),
        ("h", Value::Symbol("s".to_owned())),
        ("i", Value::List(vec![Value::Null])),
        ("j", Value::Null),
    ];
    let application = Value::Map(
        pairs
            .into_iter()
            .map(|(key, value)| (Value::text(key), value))
            .collect(),
    );
    let null = || Value::Null;
    let reply = Value::text("topic://n/r");
    let bytes = sections(&[
        (
            section::PROPERTIES,
            Value::List(vec![
                null(),
                null(),
                Value::text("topic://n/t"),
                null(),
                reply,
            ]),
        ),
        (section::APPLICATION, application),
        (section::VALUE, Value::text("hello")),
    ]);
    let read = read(bytes, &AddressScheme::Solace).unwrap();
    let expected = [
        ("a", "true"),
        ("b", "-5"),
        ("c", "7"),
        ("d", "1.5"),
        ("e", "12"),
        ("f", "00000000-0000-0000-0000-000000000001"),
        ("g", "x"),
        ("h", "s"),
        ("replyTo", "n/r"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(read.properties, Properties::from(expected));
    assert_eq!(
        (read.topic.as_deref(), &read.payload[..]),
        (Some("n/t"), &b"hello"[..])
    );
}

#[test]
fn a_topic_is_found_where_brokers_put_it() {
    let body = (section::DATA, Value::Binary(Bytes::from_static(b"x")));
    let null = || Value::Null;
    let subject = Value::List(vec![null(), null(), null(), Value::text("n.a/b.c")]);
    let key = Value::Map(vec![(
        Value::Symbol("x-routing-key".to_owned()),
        Value::text("other.key"),
    )]);
    let topic = |parts: &[(u64, Value)]| read(sections(parts), &rabbit()).unwrap().topic;
    assert_eq!(
        topic(&[(section::PROPERTIES, subject.clone()), body.clone()]).as_deref(),
        Some("n/a.b/c")
    );
    let both = [
        (section::ANNOTATIONS, key),
        (section::PROPERTIES, subject),
        body.clone(),
    ];
    assert_eq!(
        topic(&both).as_deref(),
        Some("other/key"),
        "the broker knows better than the sender"
    );
    assert_eq!(topic(&[body]), None);
}

#[test]
fn what_cannot_be_taken_is_said() {
    let list = Value::List(vec![Value::Null]);
    assert_eq!(
        read(sections(&[(section::VALUE, list.clone())]), &rabbit()),
        Err(MessageError::Body)
    );
    assert_eq!(
        read(sections(&[(0x76, list.clone())]), &rabbit()),
        Err(MessageError::Body)
    );
    let large = Value::Map(vec![(
        Value::text("a"),
        Value::Text("b".repeat(MAX_SECTION_BYTES)),
    )]);
    let read_large = read(sections(&[(section::APPLICATION, large)]), &rabbit());
    assert!(
        matches!(read_large, Err(MessageError::Beside(size)) if size > MAX_SECTION_BYTES),
        "{read_large:?}"
    );
    let mut deep = list;
    for _ in 0..100 {
        deep = Value::List(vec![deep]);
    }
    let annotations = sections(&[(section::ANNOTATIONS, deep)]);
    assert_eq!(
        read(annotations, &rabbit()),
        Err(MessageError::Decode(DecodeError::Deep))
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        _ = read(bytes.into(), &AddressScheme::Solace);
    }

    #[test]
    fn no_change_of_a_good_message_makes_it_panic(at in 0_usize..200, to in any::<u8>(), cut in 0_usize..200) {
        let properties = Properties::from([("replyTo".to_owned(), "n/r".to_owned())]);
        let message = OutgoingMessage { topic: "n/t".to_owned(), payload: Bytes::from_static(b"payload"), properties };
        let mut bytes = write(&message, &rabbit()).to_vec();
        let length = bytes.len();
        bytes[at % length] = to;
        bytes.truncate(length - cut % length);
        _ = read(bytes.into(), &rabbit());
    }
}
