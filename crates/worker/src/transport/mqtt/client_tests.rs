//! A connection with a broker that says what a test wants. Time stands still while anybody can do anything, and then moves to
//! the next thing that waits for it.

use super::super::{
    codec::{PubAck, Publish, SubAck, Version},
    session::Negotiated,
};
use super::*;
use crate::transport::{
    Connection, LinkNotice,
    driver::{FAREWELL_TIMEOUT, Timeouts},
    timed_out,
};
use bytes::Bytes;
use proptest::prelude::*;
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::timeout,
};

const ANSWER: Duration = Duration::from_secs(30);
const TIMES: Timeouts = Timeouts {
    keep_alive: Duration::from_secs(15),
    silence: ANSWER,
    response: ANSWER,
};

struct Broker {
    stream: DuplexStream,
    incoming: BytesMut,
    reader: PacketReader,
}

fn agreed() -> Negotiated {
    Negotiated {
        version: Version::Five,
        window: 100,
        largest: 10_000,
        confirms: true,
        pool: None,
        receive_maximum: 3,
    }
}

fn pair_of(agreed: Negotiated, room: usize) -> (MqttClient, Broker) {
    let (near, far) = tokio::io::duplex(room);
    let (version, session) = (agreed.version, MqttSession::new(agreed));
    let reader = || PacketReader::new(version, 10_000);
    let speaking = MqttProtocol::new(reader(), session, true);
    let client = Driver::new(Box::new(near), BytesMut::new(), speaking, TIMES);
    (
        client,
        Broker {
            stream: far,
            incoming: BytesMut::new(),
            reader: reader(),
        },
    )
}

fn pair() -> (MqttClient, Broker) {
    pair_of(agreed(), 1 << 16)
}

impl Broker {
    async fn hears(&mut self) -> Packet {
        loop {
            match self.reader.read(&mut self.incoming).unwrap() {
                Decoded::Packet(packet) => return packet,
                Decoded::Oversize { .. } => panic!("too large"),
                Decoded::More => {
                    assert!(self.stream.read_buf(&mut self.incoming).await.unwrap() > 0)
                }
            }
        }
    }

    async fn says(&mut self, packet: &Packet) {
        self.stream.write_all(&written(packet)).await.unwrap();
    }

    /// Answers pings, and all that is sent but this.
    async fn ignores(&mut self, topic: &str) {
        loop {
            match self.hears().await {
                Packet::PingReq => self.says(&Packet::PingResp).await,
                Packet::Publish(publish) if publish.topic == topic => {}
                Packet::Publish(publish) => {
                    self.says(&published(publish.packet_id.unwrap(), 0, ""))
                        .await
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Takes what is written, answers pings and nothing else.
    async fn lives(mut self) {
        loop {
            if self.hears().await == Packet::PingReq {
                self.says(&Packet::PingResp).await;
            }
        }
    }
}

fn written(packet: &Packet) -> BytesMut {
    let mut bytes = BytesMut::new();
    codec::write(Version::Five, packet, &mut bytes).unwrap();
    bytes
}

fn message(topic: &str, packet_id: Option<u16>) -> Packet {
    let (properties, payload) = (MqttProperties::default(), Bytes::from_static(b"!"));
    let (is_duplicate, is_retained, topic) = (false, false, topic.to_owned());
    Packet::Publish(Publish {
        is_duplicate,
        is_retained,
        topic,
        packet_id,
        properties,
        payload,
    })
}

fn outgoing(topic: &str) -> OutgoingMessage {
    OutgoingMessage {
        topic: topic.to_owned(),
        payload: Bytes::new(),
        properties: Default::default(),
    }
}

fn published(packet_id: u16, reason: u8, said: &str) -> Packet {
    let said = (!said.is_empty()).then(|| (property::REASON, PropertyValue::Text(said.to_owned())));
    Packet::PubAck(PubAck {
        packet_id,
        reason,
        properties: MqttProperties(said.into_iter().collect()),
    })
}

fn subscribed(packet_id: u16, reason: u8) -> Packet {
    let (reasons, properties) = (vec![reason], MqttProperties::default());
    Packet::SubAck(SubAck {
        packet_id,
        reasons,
        properties,
    })
}

fn topic_of(event: &ConnectionEvent) -> &str {
    match event {
        ConnectionEvent::Message { topic, .. } => topic,
        ConnectionEvent::Confirmed(_)
        | ConnectionEvent::Refused(..)
        | ConnectionEvent::NotNow(..)
        | ConnectionEvent::Unanswered(..)
        | ConnectionEvent::Notice(_) => {
            panic!("{event:?}")
        }
    }
}

fn subscription() -> Subscription {
    Subscription {
        pattern: "a/>".to_owned(),
        is_shared: false,
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_answered_with_a_ping_and_more_silence_is_the_end() {
    let (mut client, mut broker) = pair();
    let begun = Instant::now();
    let talk = async {
        for round in 1..=3 {
            assert_eq!(broker.hears().await, Packet::PingReq);
            assert_eq!(begun.elapsed(), TIMES.keep_alive * round);
            broker.says(&Packet::PingResp).await;
        }
        assert_eq!(broker.hears().await, Packet::PingReq);
        std::future::pending::<()>().await;
    };
    let error =
        tokio::select! { end = client.next() => end.unwrap_err(), () = talk => unreachable!() };
    assert_eq!(
        error,
        timed_out("the broker has not been heard for 30 seconds")
    );
    assert_eq!(begun.elapsed(), TIMES.keep_alive * 4 + TIMES.response);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_read_is_kept_alive_and_its_silence_is_not_held_against_it() {
    let (mut client, mut broker) = pair();
    client.publish(1, &outgoing("x")).await.unwrap();
    let talk = async {
        assert!(matches!(broker.hears().await, Packet::Publish(_)));
        for _ in 0..10 {
            assert_eq!(broker.hears().await, Packet::PingReq);
        }
    };
    tokio::select! { end = client.idle() => panic!("{end}"), () = talk => {} }
    // Long after an answer was due it is listened to again.
    let late = async {
        assert_eq!(broker.hears().await, Packet::PingReq);
        broker.says(&published(1, 0, "")).await;
        std::future::pending::<()>().await;
    };
    let event =
        tokio::select! { event = client.next() => event.unwrap(), () = late => unreachable!() };
    assert!(matches!(event, ConnectionEvent::Confirmed(1)));
}

#[tokio::test(start_paused = true)]
async fn only_the_time_in_which_nothing_is_read_is_not_held_against_it() {
    let second = Duration::from_secs(1);
    let (mut client, mut broker) = pair();
    client.publish(1, &outgoing("silent")).await.unwrap();
    let begun = Instant::now();
    let told = async {
        for _ in 0..20 {
            assert!(timeout(second, client.idle()).await.is_err());
            if let Ok(event) = timeout(second * 9, client.next()).await {
                return event.unwrap();
            }
        }
        panic!("each short while puts it off");
    };
    let event =
        tokio::select! { event = told => event, () = broker.ignores("silent") => unreachable!() };
    assert!(
        matches!(event, ConnectionEvent::Unanswered(1, _)),
        "{event:?}"
    );
    assert_eq!(begun.elapsed(), TIMES.response + second * 4);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_takes_nothing_is_given_up() {
    let (mut client, _broker) = pair_of(agreed(), 100);
    for number in 0..50 {
        client.publish(number, &outgoing("topic")).await.unwrap();
    }
    let begun = Instant::now();
    let error = client.next().await.unwrap_err();
    assert_eq!(
        error,
        timed_out("the broker takes nothing of what is written for 30 seconds")
    );
    assert_eq!(begun.elapsed(), TIMES.response);
    let (mut client, _broker) = pair_of(agreed(), 1);
    client.publish(1, &outgoing("topic")).await.unwrap();
    assert_eq!(
        client.idle().await,
        error,
        "also by those who do not listen"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_a_living_broker_leaves_unanswered_is_told_and_others_go_while_there_is_room()
 {
    for comes_late in [false, true] {
        let (mut client, mut broker) = pair_of(
            Negotiated {
                window: 2,
                ..agreed()
            },
            1 << 16,
        );
        for (number, topic) in [(1, "silent"), (2, "good"), (3, "silent")] {
            client.publish(number, &outgoing(topic)).await.unwrap();
            let begun = Instant::now();
            let event = tokio::select! {
                event = client.next() => event.unwrap(),
                () = broker.ignores("silent") => unreachable!(),
            };
            match (topic, event) {
                ("silent", ConnectionEvent::Unanswered(told, why)) => {
                    assert_eq!((told, begun.elapsed()), (number, TIMES.response));
                    assert!(why.contains("a message unanswered for 30 s"), "{why}");
                }
                ("good", ConnectionEvent::Confirmed(2)) => {
                    assert_eq!(begun.elapsed(), Duration::ZERO)
                }
                other => panic!("{other:?}"),
            }
        }
        if comes_late {
            broker.says(&published(1, 0, "")).await;
        }
        client.publish(4, &outgoing("good")).await.unwrap();
        let last = tokio::select! {
            last = client.next() => last,
            () = broker.ignores("silent") => unreachable!(),
        };
        match (comes_late, last) {
            (true, Ok(ConnectionEvent::Confirmed(4))) => {}
            (false, Err(error)) => assert!(error.is_timeout, "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_under_way_than_the_broker_takes_and_all_of_it_is_told() {
    let (mut client, mut broker) = pair_of(
        Negotiated {
            window: 2,
            ..agreed()
        },
        1 << 16,
    );
    for (number, topic) in [(11, "a"), (12, "b"), (13, "wild/+"), (14, "c")] {
        client.publish(number, &outgoing(topic)).await.unwrap();
    }
    let large = OutgoingMessage {
        payload: vec![0; 10_000].into(),
        ..outgoing("d")
    };
    client.publish(15, &large).await.unwrap();
    let talk = async {
        let (first, second) = (broker.hears().await, broker.hears().await);
        assert!(
            matches!((&first, &second), (Packet::Publish(a), Packet::Publish(b)) if a.topic == "a" && b.topic == "b")
        );
        // A ping, and no third message: time has passed.
        assert_eq!(broker.hears().await, Packet::PingReq);
        broker.says(&published(2, 0x10, "")).await;
        assert!(
            matches!(broker.hears().await, Packet::Publish(third) if third.topic == "c" && third.packet_id == Some(4))
        );
        broker.says(&published(1, 0x87, "not\nyou")).await;
        broker.says(&published(4, 0, "")).await;
        std::future::pending::<()>().await;
    };
    let told = async {
        let mut told = Vec::new();
        for _ in 0..5 {
            told.push(match client.next().await.unwrap() {
                ConnectionEvent::Confirmed(number) => (number, String::new()),
                ConnectionEvent::Refused(number, why) => (number, why),
                ConnectionEvent::NotNow(number, why) => (number, format!("for now: {why}")),
                ConnectionEvent::Message { .. }
                | ConnectionEvent::Unanswered(..)
                | ConnectionEvent::Notice(_) => panic!(),
            });
        }
        told
    };
    let mut told = tokio::select! { told = told => told, () = talk => unreachable!() };
    told.sort();
    let expected = [
        (11, "not authorised (0x87): not?you"),
        (12, ""),
        (13, "it has no topic, or one with wildcards"),
        (14, ""),
        (
            15,
            "a packet of 10009 bytes is too large: the broker takes 10000",
        ),
    ];
    assert_eq!(told, expected.map(|(number, why)| (number, why.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_confirmations_is_believed_at_once() {
    let (mut client, mut broker) = pair_of(
        Negotiated {
            confirms: false,
            ..agreed()
        },
        1 << 16,
    );
    client.publish(1, &outgoing("x")).await.unwrap();
    assert!(matches!(
        client.next().await.unwrap(),
        ConnectionEvent::Confirmed(1)
    ));
    client.close().await;
    assert!(
        matches!(broker.hears().await, Packet::Publish(publish) if publish.packet_id.is_none())
    );
}

#[tokio::test(start_paused = true)]
async fn what_comes_while_a_subscription_is_waited_for_is_kept_in_its_order() {
    let (mut client, mut broker) = pair();
    let talk = async {
        let Packet::Subscribe(question) = broker.hears().await else {
            panic!()
        };
        // At QoS 1, and nothing that was retained.
        assert_eq!(question.filters, [("a/#".to_owned(), 0x21)]);
        broker.says(&message("a/1", Some(1))).await;
        broker.says(&message("a/2", None)).await;
        broker.says(&subscribed(question.packet_id, 1)).await;
        broker.says(&message("a/3", Some(2))).await;
    };
    let to = subscription();
    let (done, ()) = tokio::join!(client.subscribe(&to), talk);
    done.unwrap();
    for expected in ["a/1", "a/2", "a/3"] {
        assert_eq!(topic_of(&client.next().await.unwrap()), expected);
    }
    let refuses = async {
        let Packet::Subscribe(question) = broker.hears().await else {
            panic!()
        };
        broker.says(&subscribed(question.packet_id, 0x87)).await;
    };
    let to = subscription();
    let (done, ()) = tokio::join!(client.subscribe(&to), refuses);
    let expected = temporary("the broker lets us not listen to `a/#`: not authorised (0x87)");
    assert_eq!(done.unwrap_err(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_never_answered_is_given_up() {
    let (mut client, broker) = pair();
    let to = subscription();
    let error = tokio::select! {
        end = client.subscribe(&to) => end.unwrap_err(),
        () = broker.lives() => unreachable!(),
    };
    assert!(error.message.contains("unanswered"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_wrong_with_a_message_refuses_it_for_ever() {
    let (mut client, mut broker) = pair();
    let of_message = [0x87, 0x90, 0x95, 0x99];
    for (number, code) in (1_u16..).zip([0x80, 0x83, 0x91, 0x97].into_iter().chain(of_message)) {
        client
            .publish(u64::from(number), &outgoing("x"))
            .await
            .unwrap();
        broker.says(&published(number, code, "")).await;
        let is_for_ever = match client.next().await.unwrap() {
            ConnectionEvent::Refused(told, _) if told == u64::from(number) => true,
            ConnectionEvent::NotNow(told, _) if told == u64::from(number) => false,
            other => panic!("{code:#x}: {other:?}"),
        };
        assert_eq!(is_for_ever, of_message.contains(&code), "{code:#x}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_not_answered_is_given_up_also_while_other_things_come() {
    let (mut client, mut broker) = pair();
    let floods = async {
        loop {
            broker.says(&message("a", None)).await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    };
    let to = subscription();
    let begun = Instant::now();
    let error = tokio::select! {
        end = client.subscribe(&to) => end.unwrap_err(),
        () = floods => unreachable!(),
    };
    assert!(error.message.contains("unanswered"), "{error}");
    assert!(
        begun.elapsed() < TIMES.response * 2,
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn small_messages_fill_what_is_kept_too() {
    let mut session = MqttSession::new(agreed());
    let mut count = 0_u32;
    while !session.is_full() {
        session.received(message("a", None)).unwrap();
        count += 1;
        assert!(count < 200_000, "each takes more than its bytes");
    }
    while session.event().is_some() {}
    assert!(!session.is_full());
}

#[tokio::test(start_paused = true)]
async fn in_the_older_version_what_is_for_each_does_not_wait_behind_what_is_unsettled() {
    let (mut client, mut broker) = pair_of(
        Negotiated {
            version: Version::Three,
            ..agreed()
        },
        1 << 16,
    );
    for (is_shared, quality) in [(false, 0), (true, 1)] {
        let to = Subscription {
            is_shared,
            ..subscription()
        };
        let talk = async {
            let Packet::Subscribe(question) = broker.hears().await else {
                panic!()
            };
            assert_eq!(question.filters, [("a/#".to_owned(), quality)]);
            broker
                .stream
                .write_all(&[0x90, 3, 0, u8::try_from(question.packet_id).unwrap(), 0])
                .await
                .unwrap();
        };
        let (done, ()) = tokio::join!(client.subscribe(&to), talk);
        done.unwrap();
    }
    // Only the second was asked for more than it got.
    let told = client.next().await.unwrap();
    assert!(
        matches!(told, ConnectionEvent::Notice(LinkNotice::Weaker(_))),
        "{told:?}"
    );
    broker
        .stream
        .write_all(b"\x30\x04\x00\x01a!")
        .await
        .unwrap();
    assert_eq!(topic_of(&client.next().await.unwrap()), "a");
}

#[tokio::test(start_paused = true)]
async fn a_message_is_acknowledged_once_and_more_than_was_agreed_is_taken_and_told() {
    let (mut client, mut broker) = pair();
    for packet in [
        message("a", Some(5)),
        message("a", Some(5)),
        message("b", Some(6)),
    ] {
        broker.says(&packet).await;
    }
    assert_eq!(topic_of(&client.next().await.unwrap()), "a");
    assert_eq!(
        topic_of(&client.next().await.unwrap()),
        "b",
        "what is here already is passed over"
    );
    for tag in [6, 6, 7, 1 << 40, 5] {
        client.settle(tag).await.unwrap();
    }
    for id in [7, 8, 9, 10, 11] {
        broker.says(&message("c", Some(id))).await;
    }
    let mut notices = 0;
    for _ in 0..6 {
        match client.next().await.unwrap() {
            ConnectionEvent::Notice(LinkNotice::Weaker(what)) => {
                assert!(what.contains("more than 3 messages at once"), "{what}");
                notices += 1;
            }
            event => assert_eq!(topic_of(&event), "c"),
        }
    }
    assert_eq!(notices, 1, "it is told once");
    client.close().await;
    assert_eq!(
        [broker.hears().await, broker.hears().await],
        [published(6, 0, ""), published(5, 0, "")]
    );
    assert!(matches!(broker.hears().await, Packet::Disconnect(_)));
}

#[tokio::test(start_paused = true)]
async fn a_farewell_ends_the_session_and_does_not_wait_for_ever() {
    let (mut client, mut broker) = pair();
    broker.says(&message("a", Some(1))).await;
    client.next().await.unwrap();
    client.settle(1).await.unwrap();
    let begun = Instant::now();
    client.close().await;
    assert_eq!(begun.elapsed(), FAREWELL_TIMEOUT);
    assert_eq!(broker.hears().await, published(1, 0, ""));
    let properties = MqttProperties(vec![(property::SESSION_EXPIRY, PropertyValue::Four(0))]);
    assert_eq!(
        broker.hears().await,
        Packet::Disconnect(Disconnect {
            reason: 0,
            properties
        })
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_says_of_the_end_is_told() {
    for (last, expected, is_final) in [
        (
            b"\xe0\x01\x8e".as_slice(),
            "another client came with the same identifier (0x8e)",
            false,
        ),
        (b"\xe0\x01\x8b", "it shuts down (0x8b)", false),
        (
            b"\xc0\x00",
            "the broker says what only a client says, or says it again",
            false,
        ),
        (b"\xff\xff", "the broker closed the connection", false),
        (
            b"\xf0\x00",
            "an exchange of authentication was not asked for",
            false,
        ),
        (b"", "the broker closed the connection", false),
    ] {
        let (mut client, mut broker) = pair();
        broker.stream.write_all(last).await.unwrap();
        drop(broker);
        let error = client.next().await.unwrap_err();
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(error.is_final, is_final, "{error}");
    }
}

/// Neither is it one that there is none.
#[tokio::test(start_paused = true)]
async fn a_close_while_something_is_unanswered_is_no_sign_of_another_of_its_name() {
    let mut id_conflicts = super::super::client_id_conflict::ClientIdConflicts::default();
    for (is_unanswered, seconds) in
        [(true, 0); 5]
            .into_iter()
            .chain([(false, 0), (true, 0), (false, 0), (false, 20)])
    {
        let (client, mut broker) = pair();
        let mut client = client.at(Some(id_conflicts.let_in("me", Instant::now())));
        if is_unanswered {
            client.publish(1, &outgoing("a/b")).await.unwrap();
            tokio::select! {
                event = client.next() => panic!("{event:?}"),
                packet = broker.hears() => assert!(matches!(packet, Packet::Publish(_))),
            }
        }
        drop(broker);
        let error = client.next().await.unwrap_err();
        let ended = Instant::now();
        id_conflicts.rest().await;
        assert_eq!(ended.elapsed().as_secs(), seconds, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn nor_is_a_close_after_something_was_waited_for_in_vain() {
    for (topic, expected) in [("silent", [0, 0, 0]), ("good", [0, 0, 20])] {
        let mut id_conflicts = super::super::client_id_conflict::ClientIdConflicts::default();
        for seconds in expected {
            let (client, mut broker) = pair();
            let mut client = client.at(Some(id_conflicts.let_in("me", Instant::now())));
            client.publish(1, &outgoing(topic)).await.unwrap();
            let told = tokio::select! {
                event = client.next() => event.unwrap(),
                () = broker.ignores("silent") => unreachable!(),
            };
            assert_eq!(
                matches!(told, ConnectionEvent::Unanswered(..)),
                topic == "silent",
                "{told:?}"
            );
            // With nothing left to write it is the broker's close that is seen.
            tokio::select! {
                event = client.next() => panic!("{event:?}"),
                packet = broker.hears() => assert_eq!(packet, Packet::PingReq),
            }
            drop(broker);
            let error = client.next().await.unwrap_err();
            let ended = Instant::now();
            id_conflicts.rest().await;
            assert_eq!(ended.elapsed().as_secs(), seconds, "{topic}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_sent_away_for_another_of_its_name_is_told_so_and_rests_before_it_comes_again() {
    let mut id_conflicts = super::super::client_id_conflict::ClientIdConflicts::default();
    for (last, seconds) in [
        (b"\xe0\x01\x8e".as_slice(), 20),
        (b"\xe0\x02\x8e\x00", 40),
        (b"\xe0\x01\x8b", 0),
    ] {
        let (client, mut broker) = pair();
        let mut client = client.at(Some(id_conflicts.let_in("me", Instant::now())));
        broker.stream.write_all(last).await.unwrap();
        let error = client.next().await.unwrap_err();
        let ended = Instant::now();
        id_conflicts.rest().await;
        assert_eq!(ended.elapsed().as_secs(), seconds);
        assert_eq!(
            error.message.contains("connected as `me`"),
            seconds > 0,
            "{error}"
        );
        assert!(!error.is_final);
    }
}

#[test]
fn identifiers_go_round_and_leave_out_those_in_use() {
    let now = Instant::now();
    let mut session = MqttSession::new(agreed());
    let about = subscription();
    let first = session.ask(&about, true, now).unwrap();
    for _ in 0..u16::MAX - 1 {
        let id = session.ask(&about, true, now).unwrap();
        assert!(id != 0 && id != first);
        let answered = SubAck {
            packet_id: id,
            reasons: vec![0],
            properties: MqttProperties::default(),
        };
        session.received(Packet::SubAck(answered)).unwrap();
    }
    assert_eq!(session.ask(&about, true, now).unwrap(), first + 1);
    for _ in 0..u16::MAX - 2 {
        session.ask(&about, false, now).unwrap();
    }
    assert!(session.ask(&about, false, now).is_err(), "none is left");
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_sends_and_does_not_read_is_soon_not_read_either() {
    let (mut client, mut broker) = pair();
    // Such are acknowledged at once, and nobody hears of them.
    let Packet::Publish(kept) = message("a", Some(1)) else {
        panic!()
    };
    let flood = written(&Packet::Publish(Publish {
        is_retained: true,
        ..kept
    }))
    .repeat(1000);
    let floods = async {
        for _ in 0..1000 {
            broker.stream.write_all(&flood).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let error =
        tokio::select! { heard = client.next() => heard.unwrap_err(), () = floods => panic!() };
    assert_eq!(
        error.message,
        "the broker takes nothing of what is written for 30 seconds"
    );
    let unwritten = client.protocol.outgoing().len();
    assert!((1 << 20..9 << 17).contains(&unwritten), "{unwritten}");
}

proptest! {
    /// Each wait is given up after one look, wherever the bytes are cut.
    #[test]
    fn waits_that_are_given_up_lose_nothing(cuts in proptest::collection::vec(1..9_usize, 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut client, mut broker) = pair_of(agreed(), 64);
            let mut stream = BytesMut::new();
            for at in 0..20 {
                stream.extend_from_slice(&written(&message(&format!("t/{at}"), None)));
            }
            let (mut seen, mut cuts) = (0, cuts.iter().cycle());
            let mut said = 0_u64;
            while seen < 20 {
                let cut = (*cuts.next().unwrap()).min(stream.len());
                broker.stream.write_all(&stream.split_to(cut)).await.unwrap();
                client.publish(said, &outgoing("x")).await.unwrap();
                said += 1;
                loop {
                    let mut context = Context::from_waker(Waker::noop());
                    match pin!(client.next()).poll(&mut context) {
                        Poll::Ready(event) => {
                            assert_eq!(topic_of(&event.unwrap()), format!("t/{seen}"));
                            seen += 1;
                        }
                        Poll::Pending => break,
                    }
                }
                // Its pipe is small: what we write is cut, too.
                let mut context = Context::from_waker(Waker::noop());
                while let Poll::Ready(Ok(_)) = pin!(broker.stream.read_buf(&mut broker.incoming)).poll(&mut context) {}
            }
            let (mut heard, window) = (0, said.min(100));
            while heard < window {
                match broker.reader.read(&mut broker.incoming).unwrap() {
                    Decoded::Packet(Packet::Publish(_)) => heard += 1,
                    Decoded::Packet(other) => panic!("{other:?}"),
                    Decoded::Oversize { .. } => panic!(),
                    Decoded::More => {
                        let mut context = Context::from_waker(Waker::noop());
                        assert!(pin!(client.next()).poll(&mut context).is_pending());
                        assert!(broker.stream.read_buf(&mut broker.incoming).await.unwrap() > 0);
                    }
                }
            }
        });
    }
}
