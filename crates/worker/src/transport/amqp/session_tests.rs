use super::*;
use crate::transport::LinkNotice;
use proptest::prelude::*;
use std::time::Duration;

fn session(credit: u32, largest_message: usize) -> AmqpSession {
    let agreed = Negotiated {
        addresses: AddressScheme::Solace,
        queue: "n/q/str/w".to_owned(),
        container: "me".to_owned(),
        largest_frame: 512,
        largest_taken: usize::MAX,
        largest_message,
        credit,
        window: 100,
        first: 0,
    };
    AmqpSession::new(agreed, Instant::now())
}

fn said(name: u64, fields: Vec<Value>, payload: &[u8]) -> Frame {
    let mut bytes = BytesMut::new();
    frame::write(&mut bytes, FrameKind::Amqp, name, fields, payload);
    frame::read(&mut bytes, usize::MAX).unwrap().unwrap()
}

/// What was said, by name.
fn heard(session: &mut AmqpSession) -> Vec<DescribedList> {
    let mut bytes = session.outgoing.split();
    let mut all = Vec::new();
    while let Some(frame) = frame::read(&mut bytes, usize::MAX).unwrap() {
        if let Frame::Performative { what, .. } = frame {
            all.push(what);
        }
    }
    all
}

fn names(said: &[DescribedList]) -> Vec<u64> {
    said.iter().map(|said| said.name).collect()
}

fn attach(session: &mut AmqpSession, handle: u32) {
    let address = |name| Value::named(name, vec![Value::text("x")]);
    let fields = vec![
        Value::Text(format!("me-{handle}")),
        Value::Uint(handle + 10),
        Value::Bool(handle == 0),
        Value::Null,
        Value::Null,
        address(descriptor::SOURCE),
        address(descriptor::TARGET),
    ];
    session
        .received(said(descriptor::ATTACH, fields, &[]))
        .unwrap();
}

fn listening(credit: u32, largest: usize) -> AmqpSession {
    let mut session = session(credit, largest);
    attach(&mut session, 0);
    let pool = Subscription {
        pattern: "n/invoke/>".to_owned(),
        is_shared: true,
    };
    let handle = session.subscribe(&pool, Instant::now()).unwrap();
    assert!(session.is_asked(handle));
    attach(&mut session, handle);
    assert!(!session.is_asked(handle));
    session
}

fn transfer(delivery: u32, has_more: bool, payload: &[u8]) -> Frame {
    let (handle, settled) = (Value::Uint(11), Value::Bool(false));
    let fields = vec![
        handle,
        Value::Uint(delivery),
        Value::Null,
        Value::Null,
        settled,
        Value::Bool(has_more),
    ];
    said(descriptor::TRANSFER, fields, payload)
}

fn message(size: usize) -> Bytes {
    let payload = Bytes::from(vec![b'x'; size]);
    let message = OutgoingMessage {
        topic: "n/invoke/t".to_owned(),
        payload,
        properties: Default::default(),
    };
    message::write(&message, &AddressScheme::Solace)
}

#[test]
fn credit_is_what_is_not_unsettled() {
    let mut session = listening(4, 1000);
    let flow = heard(&mut session).pop().unwrap();
    assert_eq!(
        (flow.name, flow.uint(4), flow.uint(6)),
        (descriptor::FLOW, Some(1), Some(4))
    );
    for delivery in 0..4 {
        session
            .received(transfer(delivery, false, &message(1)))
            .unwrap();
    }
    assert!(heard(&mut session).is_empty(), "nothing is settled");
    session.settle(2);
    let said = heard(&mut session);
    assert_eq!(names(&said), [descriptor::DISPOSITION, descriptor::FLOW]);
    assert_eq!(
        (said[0].uint(1), said[0].inner(4).unwrap().name),
        (Some(2), descriptor::ACCEPTED)
    );
    assert_eq!(
        (said[1].uint(5), said[1].uint(6)),
        (Some(4), Some(1)),
        "one, after four"
    );
    session.settle(2);
    session.settle(77);
    assert!(heard(&mut session).is_empty(), "once is enough");
    session.received(transfer(4, false, &message(1))).unwrap();
    let more = session.received(transfer(5, false, &message(1)));
    assert!(
        more.is_err_and(|trouble| trouble.message.contains("more than 4")),
        "a broker that floods is left"
    );
}

#[test]
fn a_message_in_pieces_is_one_and_a_large_one_is_rejected_and_not_kept() {
    let mut session = listening(4, 1000);
    _ = heard(&mut session);
    let bytes = message(600);
    session.received(transfer(0, true, &bytes[..100])).unwrap();
    assert!(session.event().is_none());
    session.received(transfer(0, false, &bytes[100..])).unwrap();
    let event = session.event().unwrap();
    assert!(
        matches!(event, ConnectionEvent::Message { tag: Some(0), payload, topic, .. } if payload.len() == 600 && topic == "n/invoke/t")
    );
    for _ in 0..1000 {
        session.received(transfer(1, true, &bytes)).unwrap();
        let part = session.receivers[&1].part.as_ref().unwrap();
        assert!(part.bytes.len() <= 1000, "no more is kept than may come");
    }
    session.received(transfer(1, false, &bytes)).unwrap();
    assert!(matches!(
        session.event(),
        Some(ConnectionEvent::Notice(LinkNotice::PassedOver(_)))
    ));
    let said = heard(&mut session);
    assert_eq!(said[0].inner(4).unwrap().name, descriptor::REJECTED);
    session.received(transfer(2, false, &message(1))).unwrap();
    assert!(
        matches!(session.event(), Some(ConnectionEvent::Message { .. })),
        "the next is served"
    );
}

#[test]
fn without_a_topic_it_is_passed_over_unless_only_one_is_possible() {
    let mut session = listening(4, 1000);
    let mut bytes = BytesMut::new();
    Value::Described(
        Box::new(Value::Ulong(0x75)),
        Box::new(Value::Binary(Bytes::new())),
    )
    .write(&mut bytes);
    session.received(transfer(0, false, &bytes)).unwrap();
    assert!(
        matches!(session.event(), Some(ConnectionEvent::Notice(LinkNotice::PassedOver(why))) if why.contains("topic"))
    );
    let only = Subscription {
        pattern: "n/exactly".to_owned(),
        is_shared: false,
    };
    let handle = session.subscribe(&only, Instant::now()).unwrap();
    attach(&mut session, handle);
    let fields = vec![
        Value::Uint(12),
        Value::Uint(1),
        Value::Null,
        Value::Null,
        Value::Bool(true),
    ];
    session
        .received(said(descriptor::TRANSFER, fields, &bytes))
        .unwrap();
    let event = session.event();
    assert!(
        matches!(event, Some(ConnectionEvent::Message { tag: None, topic, .. }) if topic == "n/exactly")
    );
}

#[test]
fn messages_go_as_far_as_credit_and_window_reach_and_outcomes_are_told() {
    let mut session = listening(4, 1000);
    _ = heard(&mut session);
    for number in 10..14 {
        let payload = Bytes::from(vec![0; if number == 10 { 1000 } else { 1 }]);
        session.publish(
            number,
            &OutgoingMessage {
                topic: "n/r".to_owned(),
                payload,
                properties: Default::default(),
            },
        );
    }
    session.fill(Instant::now()).unwrap();
    assert!(heard(&mut session).is_empty(), "there is no credit");
    let flow = |window, credit| {
        let fields = [0, window, 0, 100, 10, 0, credit].map(Value::Uint).to_vec();
        said(descriptor::FLOW, fields, &[])
    };
    session.received(flow(2, 3)).unwrap();
    session.fill(Instant::now()).unwrap();
    assert_eq!(heard(&mut session).len(), 2, "the window is two frames");
    session.received(flow(100, 3)).unwrap();
    session.fill(Instant::now()).unwrap();
    let said_now = heard(&mut session);
    let last = said_now.last().unwrap();
    assert_eq!(
        (last.uint(1), last.flag(5)),
        (Some(2), false),
        "three deliveries, and no more credit"
    );
    let outcome = |first, last, state| {
        let fields = vec![
            Value::Bool(true),
            Value::Uint(first),
            Value::Uint(last),
            Value::Bool(true),
            state,
        ];
        said(descriptor::DISPOSITION, fields, &[])
    };
    let error = vec![
        Value::Symbol("amqp:not-allowed".to_owned()),
        Value::text("no"),
    ];
    let rejected = Value::named(
        descriptor::REJECTED,
        vec![Value::named(descriptor::ERROR, error)],
    );
    session
        .received(outcome(0, 1, Value::named(descriptor::ACCEPTED, vec![])))
        .unwrap();
    session.received(outcome(2, u32::MAX, rejected)).unwrap();
    assert!(matches!(
        session.event(),
        Some(ConnectionEvent::Confirmed(10))
    ));
    assert!(matches!(
        session.event(),
        Some(ConnectionEvent::Confirmed(11))
    ));
    assert!(
        matches!(session.event(), Some(ConnectionEvent::Refused(12, why)) if why.contains("amqp:not-allowed no"))
    );
    assert!(session.event().is_none() && session.in_flight.is_empty());
    assert!(session.is_mute(), "the fourth waits for credit");
}

#[test]
fn a_refused_link_is_trouble_with_the_reason() {
    let mut session = session(4, 1000);
    attach(&mut session, 0);
    let to = Subscription {
        pattern: "n/>".to_owned(),
        is_shared: false,
    };
    let handle = session.subscribe(&to, Instant::now()).unwrap();
    let fields = vec![Value::text("me-1"), Value::Uint(3), Value::Bool(false)];
    session
        .received(said(descriptor::ATTACH, fields, &[]))
        .unwrap();
    assert!(session.is_asked(handle));
    let error = vec![
        Value::Symbol("amqp:not-found".to_owned()),
        Value::text("none such"),
    ];
    let fields = vec![
        Value::Uint(3),
        Value::Bool(true),
        Value::named(descriptor::ERROR, error),
    ];
    let trouble = session
        .received(said(descriptor::DETACH, fields, &[]))
        .unwrap_err();
    assert!(
        trouble.message.contains("topic://n/>") && trouble.message.contains("none such"),
        "{trouble}"
    );
}

#[test]
fn the_queue_is_listened_to_once_and_left_with_the_last() {
    let mut session = listening(4, 1000);
    _ = heard(&mut session);
    let [first, second] = ["n/invoke/>", "n/other"].map(|pattern| Subscription {
        pattern: pattern.to_owned(),
        is_shared: true,
    });
    session.subscribe(&second, Instant::now()).unwrap();
    session.unsubscribe(&first, Instant::now()).unwrap();
    assert!(heard(&mut session).is_empty());
    session.unsubscribe(&second, Instant::now()).unwrap();
    assert_eq!(names(&heard(&mut session)), [descriptor::DETACH]);
    session.received(transfer(0, false, &message(1))).unwrap();
    assert!(
        session.event().is_none(),
        "what was on its way is not ours any more"
    );
    session
        .received(said(
            descriptor::DETACH,
            vec![Value::Uint(11), Value::Bool(true)],
            &[],
        ))
        .unwrap();
    session.subscribe(&first, Instant::now()).unwrap();
    assert_eq!(names(&heard(&mut session)), [descriptor::ATTACH]);
}

#[test]
fn what_came_before_it_stopped_to_listen_is_settled_and_then_the_link_ends() {
    let mut session = listening(4, 1000);
    session.received(transfer(0, false, &message(1))).unwrap();
    session.received(transfer(1, false, &message(1))).unwrap();
    _ = heard(&mut session);
    let pool = Subscription {
        pattern: "n/invoke/>".to_owned(),
        is_shared: true,
    };
    session.unsubscribe(&pool, Instant::now()).unwrap();
    let stop = heard(&mut session);
    assert_eq!(
        (names(&stop), stop[0].uint(6)),
        (vec![descriptor::FLOW], Some(0))
    );
    session.settle(0);
    session.received(transfer(2, false, &message(1))).unwrap();
    let said_now = heard(&mut session);
    let states: Vec<_> = said_now
        .iter()
        .map(|said| (said.uint(1), said.inner(4).unwrap().name))
        .collect();
    assert_eq!(
        states,
        [
            (Some(0), descriptor::ACCEPTED),
            (Some(2), descriptor::RELEASED)
        ],
        "what is late is for others"
    );
    let tags: Vec<_> = std::iter::from_fn(|| session.event()).collect();
    assert!(matches!(
        tags[..],
        [
            ConnectionEvent::Message { tag: Some(0), .. },
            ConnectionEvent::Message { tag: Some(1), .. }
        ]
    ));
    session.settle(1);
    assert_eq!(
        names(&heard(&mut session)),
        [descriptor::DISPOSITION, descriptor::DETACH]
    );
}

#[test]
fn what_is_given_back_goes_when_it_would_not_come_back_to_us() {
    let mut session = listening(4, 1000);
    for delivery in 0..3 {
        session
            .received(transfer(delivery, false, &message(1)))
            .unwrap();
    }
    _ = heard(&mut session);
    session.release(0);
    session.release(0);
    session.release(77);
    assert!(heard(&mut session).is_empty(), "we still listen");
    session.settle(0);
    assert!(heard(&mut session).is_empty(), "it is not ours any more");
    let pool = Subscription {
        pattern: "n/invoke/>".to_owned(),
        is_shared: true,
    };
    session.unsubscribe(&pool, Instant::now()).unwrap();
    session.release(1);
    session.settle(2);
    let said = heard(&mut session);
    assert_eq!((said[0].name, said[0].uint(6)), (descriptor::FLOW, Some(0)));
    let states: Vec<_> = said[1..4]
        .iter()
        .map(|said| (said.uint(1), said.inner(4).unwrap().name))
        .collect();
    assert_eq!(
        states,
        [
            (Some(0), descriptor::RELEASED),
            (Some(1), descriptor::RELEASED),
            (Some(2), descriptor::ACCEPTED)
        ]
    );
    assert_eq!(names(&said[4..]), [descriptor::DETACH]);
}

#[test]
fn it_is_known_since_when_nothing_can_be_sent() {
    let begun = Instant::now();
    let later = |seconds| begun + Duration::from_secs(seconds);
    let credit = "has given us no credit to send";
    let mut session = listening(4, 1000);
    assert!(session.is_mute(), "until there was credit once");
    session.forgive(Duration::from_secs(1), later(1));
    assert_eq!(session.owed(), Some((later(1), credit)));
    let flow = |credit| {
        said(
            descriptor::FLOW,
            [0, 100, 0, 100, 10, 0, credit].map(Value::Uint).to_vec(),
            &[],
        )
    };
    session.received(flow(1)).unwrap();
    assert_eq!(session.owed(), None);
    let message = OutgoingMessage {
        topic: "n/r".to_owned(),
        payload: Bytes::new(),
        properties: Default::default(),
    };
    session.publish(1, &message);
    session.fill(later(2)).unwrap();
    assert!(!session.is_mute(), "nothing waits");
    session.publish(2, &message);
    session.fill(later(3)).unwrap();
    session.fill(later(4)).unwrap();
    let accepted = vec![
        Value::Bool(true),
        Value::Uint(0),
        Value::Null,
        Value::Bool(true),
    ];
    session
        .received(said(descriptor::DISPOSITION, accepted, &[]))
        .unwrap();
    assert_eq!(session.owed(), Some((later(3), credit)));
    session.received(flow(2)).unwrap();
    session.fill(later(5)).unwrap();
    assert_eq!(
        session.owed(),
        Some((later(5), "has left us unanswered")),
        "it has gone"
    );
}

#[test]
fn only_what_is_rejected_for_what_it_is_is_refused_for_ever() {
    let error = |condition: &str| {
        vec![Value::named(
            descriptor::ERROR,
            vec![Value::Symbol(condition.to_owned())],
        )]
    };
    for (state, is_for_ever) in [
        (
            Value::named(descriptor::REJECTED, error("amqp:not-allowed")),
            true,
        ),
        (
            Value::named(descriptor::REJECTED, error("amqp:resource-limit-exceeded")),
            false,
        ),
        (Value::named(descriptor::REJECTED, vec![]), false),
        (Value::named(descriptor::REJECTED, vec![Value::Null]), false),
        (Value::named(descriptor::RELEASED, vec![]), false),
        (Value::named(descriptor::MODIFIED, vec![]), false),
    ] {
        let mut session = listening(4, 1000);
        let fields = [0, 100, 0, 100, 10, 0, 1].map(Value::Uint).to_vec();
        session
            .received(said(descriptor::FLOW, fields, &[]))
            .unwrap();
        let message = OutgoingMessage {
            topic: "n/r".to_owned(),
            payload: Bytes::new(),
            properties: Default::default(),
        };
        session.publish(7, &message);
        session.fill(Instant::now()).unwrap();
        let fields = vec![
            Value::Bool(true),
            Value::Uint(0),
            Value::Uint(0),
            Value::Bool(true),
            state,
        ];
        session
            .received(said(descriptor::DISPOSITION, fields, &[]))
            .unwrap();
        match session.event() {
            Some(ConnectionEvent::Refused(7, _)) => assert!(is_for_ever),
            Some(ConnectionEvent::NotNow(7, _)) => assert!(!is_for_ever),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_left_unanswered_is_given_up_when_all_of_it_was_sent() {
    let begun = Instant::now();
    let later = |seconds| begun + Duration::from_secs(seconds);
    let mut session = listening(4, 1000);
    let fields = |window| [0, window, 0, 100, 10, 0, 2].map(Value::Uint).to_vec();
    session
        .received(said(descriptor::FLOW, fields(2), &[]))
        .unwrap();
    let of_size = |size| {
        let payload = Bytes::from(vec![b'x'; size]);
        OutgoingMessage {
            topic: "n/r".to_owned(),
            payload,
            properties: Default::default(),
        }
    };
    session.publish(7, &of_size(0));
    session.publish(8, &of_size(600));
    session.fill(later(1)).unwrap();
    assert!(!session.give_up(begun, "no word"));
    assert!(session.give_up(later(1), "no word"));
    assert!(
        matches!(session.event(), Some(ConnectionEvent::Unanswered(7, why)) if why == "no word")
    );
    assert!(
        session.event().is_none() && session.sender.current.is_some(),
        "half of the other is sent"
    );
    session
        .received(said(descriptor::FLOW, fields(100), &[]))
        .unwrap();
    session.fill(later(2)).unwrap();
    assert!(!session.give_up(later(1), "no word") && session.give_up(later(2), "no word"));
    assert!(matches!(
        session.event(),
        Some(ConnectionEvent::Unanswered(8, _))
    ));
    let accepted = Value::named(descriptor::ACCEPTED, vec![]);
    let fields = vec![
        Value::Bool(true),
        Value::Uint(0),
        Value::Uint(1),
        Value::Bool(true),
        accepted,
    ];
    session
        .received(said(descriptor::DISPOSITION, fields, &[]))
        .unwrap();
    assert!(
        session.event().is_none() && session.owed().is_none(),
        "it comes too late"
    );
}

fn any_field() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (0_u32..20).prop_map(Value::Uint),
        any::<u32>().prop_map(Value::Uint),
        Just(Value::text("me-0")),
        Just(Value::text("me-1")),
        Just(Value::named(descriptor::ACCEPTED, vec![])),
        Just(Value::named(descriptor::REJECTED, vec![Value::Null])),
    ]
}

proptest! {
    #[test]
    fn no_frames_make_it_panic_or_keep_more_than_it_may(
        frames in prop::collection::vec((0x10_u64..0x1a, prop::collection::vec(any_field(), 0..11), 0_usize..300), 0..60),
    ) {
        let mut session = listening(4, 1000);
        let now = Instant::now();
        session.publish(1, &OutgoingMessage { topic: "n/r".to_owned(), payload: Bytes::from(vec![0; 2000]), properties: Default::default() });
        for (name, fields, size) in frames {
            _ = session.received(said(name, fields, &message(size)[..size]));
            session.fill(now).unwrap();
            session.forgive(Duration::from_secs(1), now + Duration::from_secs(1));
            prop_assert!(session.unsettled.len() <= 4);
        }
    }
}
