use super::serve;
use crate::transport::{
    IncomingMessage, Link, LinkState, OutgoingMessage, Properties, ReconnectPolicy, Subscription,
    dev::DevBroker,
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

async fn broker() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener));
    address
}

fn patience() -> ReconnectPolicy {
    ReconnectPolicy {
        tries: 0,
        pause: Duration::from_millis(10),
    }
}

fn to(pattern: &str) -> Subscription {
    Subscription {
        pattern: pattern.to_owned(),
        is_shared: false,
    }
}

async fn link(address: SocketAddr, name: &str, patterns: &[&str]) -> Link {
    let (client_id, queue) = (name.to_owned(), format!("q/{name}"));
    let connector = DevBroker {
        address: address.to_string(),
        client_id,
        queue,
    };
    let subscriptions: BTreeSet<_> = patterns.iter().map(|pattern| to(pattern)).collect();
    let mut link = Link::start(connector, subscriptions, patience());
    link.state
        .wait_for(|state| *state == LinkState::Connected)
        .await
        .unwrap();
    link
}

fn message(topic: &str, payload: &Value) -> OutgoingMessage {
    let properties = Properties::from([
        ("replyTo".to_owned(), "r/1".to_owned()),
        ("timestamp".to_owned(), "1700000000000".to_owned()),
    ]);
    OutgoingMessage {
        topic: topic.to_owned(),
        payload: Bytes::from(payload.to_string()),
        properties,
    }
}

fn said(arrived: &IncomingMessage) -> Value {
    serde_json::from_slice(&arrived.payload).unwrap()
}

#[tokio::test]
async fn what_is_sent_reaches_those_who_asked_for_it_and_nobody_else() {
    let address = broker().await;
    let mut one = link(address, "one", &["a/*/c", "z/>"]).await;
    let mut two = link(address, "two", &["a/b/d"]).await;
    two.publisher
        .publish(message("a/b/c", &json!({"n": 1})))
        .await
        .unwrap();
    let got = one.arrived.recv().await.unwrap();
    assert_eq!((got.topic.as_str(), said(&got)), ("a/b/c", json!({"n": 1})));
    assert_eq!(got.properties["replyTo"], "r/1");
    assert_eq!(got.properties["timestamp"], "1700000000000");
    // Had the first come to `two`, it would have come before this.
    one.publisher
        .publish(message("a/b/d", &json!({"n": 2})))
        .await
        .unwrap();
    assert_eq!(said(&two.arrived.recv().await.unwrap()), json!({"n": 2}));
    assert!(one.arrived.try_recv().is_err());
}

#[tokio::test]
async fn what_is_subscribed_later_comes_and_what_is_given_up_does_not() {
    let address = broker().await;
    let (mut one, two) = (
        link(address, "one", &["end"]).await,
        link(address, "two", &[]).await,
    );
    one.publisher.subscribe(to("late/>")).await;
    // A subscription tells nobody when it stands: what is sent until then is lost.
    let got = loop {
        two.publisher
            .publish(message("late/x", &json!(1)))
            .await
            .unwrap();
        if let Ok(Some(got)) =
            tokio::time::timeout(Duration::from_millis(50), one.arrived.recv()).await
        {
            break got;
        }
    };
    assert_eq!(got.topic, "late/x");
    one.publisher.unsubscribe(to("late/>")).await;
    loop {
        while one.arrived.try_recv().is_ok() {}
        two.publisher
            .publish(message("late/x", &json!(2)))
            .await
            .unwrap();
        two.publisher
            .publish(message("end", &json!(3)))
            .await
            .unwrap();
        if one.arrived.recv().await.unwrap().topic == "end" {
            break;
        }
    }
}

/// A client by hand.
struct ByHand(BufReader<TcpStream>);

impl ByHand {
    async fn new(address: SocketAddr) -> ByHand {
        ByHand(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    async fn ask(&mut self, line: &str) -> Value {
        self.0
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
        let mut reply = String::new();
        self.0.read_line(&mut reply).await.unwrap();
        serde_json::from_str(&reply).unwrap()
    }
}

#[tokio::test]
async fn the_dialect_is_spoken_as_it_is_described() {
    let mut client = ByHand::new(broker().await).await;
    assert_eq!(
        client.ask(r#"{"cmd":"RECEIVE"}"#).await["error_code"],
        "NOT_CONNECTED"
    );
    assert_eq!(
        client.ask("nonsense").await["error_code"],
        "INVALID_COMMAND"
    );
    let hello = r#"{"cmd":"CONNECT","client_id":"me","queue_name":"q","subscriptions":["a/>"]}"#;
    assert_eq!(
        client.ask(hello).await,
        json!({"status": "OK", "client_id": "me"})
    );
    let sent = client
        .ask(r#"{"cmd":"PUBLISH","topic":"a/b","payload":{"x":1},"user_properties":{"t":5}}"#)
        .await;
    assert_eq!(sent["status"], "OK");
    assert!(sent["message_id"].is_u64());
    assert_eq!(
        client.ask(r#"{"cmd":"RECEIVE","timeout_ms":1}"#).await,
        json!({"status": "TIMEOUT"}),
        "its own"
    );
    assert_eq!(
        client
            .ask(r#"{"cmd":"PUBLISH","topic":"a/*","payload":1}"#)
            .await["error_code"],
        "PUBLISH_FAILED"
    );
    assert_eq!(
        client
            .ask(r#"{"cmd":"SUBSCRIBE","topic_pattern":""}"#)
            .await["error_code"],
        "SUBSCRIBE_FAILED"
    );
    assert_eq!(
        client.ask(r#"{"cmd":"ACK","message_id":1}"#).await,
        json!({"status": "OK"})
    );
    assert_eq!(
        client.ask(r#"{"cmd":"DISCONNECT"}"#).await,
        json!({"status": "OK"})
    );
    let mut end = String::new();
    assert_eq!(
        client.0.read_line(&mut end).await.unwrap(),
        0,
        "and it is over"
    );
}

#[tokio::test]
async fn types_of_properties_are_kept() {
    let address = broker().await;
    let (mut one, mut two) = (ByHand::new(address).await, ByHand::new(address).await);
    one.ask(r#"{"cmd":"CONNECT","client_id":"1","subscriptions":["a"]}"#)
        .await;
    two.ask(r#"{"cmd":"CONNECT","client_id":"2"}"#).await;
    two.ask(r#"{"cmd":"PUBLISH","topic":"a","payload":[1.50],"user_properties":{"timestamp":5,"s":"5"}}"#)
        .await;
    let got = one.ask(r#"{"cmd":"RECEIVE","timeout_ms":60000}"#).await;
    assert_eq!(
        got["message"]["user_properties"],
        json!({"timestamp": 5, "s": "5"})
    );
    assert_eq!(got["message"]["payload"], json!([1.5]));
}

#[tokio::test]
async fn who_does_not_take_what_comes_loses_it_and_is_told() {
    let address = broker().await;
    let (mut slow, mut fast) = (ByHand::new(address).await, ByHand::new(address).await);
    slow.ask(r#"{"cmd":"CONNECT","client_id":"slow","subscriptions":["a"]}"#)
        .await;
    fast.ask(r#"{"cmd":"CONNECT","client_id":"fast"}"#).await;
    for _ in 0..super::MAX_QUEUED + 7 {
        assert_eq!(
            fast.ask(r#"{"cmd":"PUBLISH","topic":"a","payload":0}"#)
                .await["status"],
            "OK"
        );
    }
    for _ in 0..super::MAX_QUEUED {
        assert_eq!(slow.ask(r#"{"cmd":"RECEIVE"}"#).await["status"], "OK");
    }
    let told = slow.ask(r#"{"cmd":"RECEIVE"}"#).await;
    assert!(
        told["error_message"]
            .as_str()
            .unwrap()
            .starts_with("7 messages were lost"),
        "{told}"
    );
}

#[tokio::test]
async fn what_would_be_too_long_where_it_arrives_is_refused_to_whoever_sends_it() {
    let address = broker().await;
    let mut one = link(address, "one", &["a"]).await;
    let mut two = ByHand::new(address).await;
    two.ask(r#"{"cmd":"CONNECT","client_id":"2"}"#).await;
    let publish = |size: usize| {
        let (head, tail) = (r#"{"cmd":"PUBLISH","topic":"a","payload":""#, "\"}");
        format!("{head}{}{tail}", "x".repeat(size - head.len() - tail.len()))
    };
    let longest = crate::transport::dev_protocol::MAX_LINE_BYTES;
    assert_eq!(two.ask(&publish(longest - 200)).await["status"], "OK");
    assert!(one.arrived.recv().await.unwrap().payload.len() > longest - 300);
    for (size, code) in [
        (longest, "PUBLISH_FAILED"),
        (longest + 1, "INVALID_COMMAND"),
        (longest * 2, "INVALID_COMMAND"),
    ] {
        let told = two.ask(&publish(size)).await;
        assert_eq!(told["error_code"], code);
        assert!(
            told["error_message"].as_str().unwrap().contains("10485760"),
            "{told}"
        );
    }
    // The largest that is taken arrives, too.
    let (mut low, mut high) = (longest - 200, longest);
    while low + 1 < high {
        let size = (low + high) / 2;
        match two.ask(&publish(size)).await["status"] == "OK" {
            true => low = size,
            false => high = size,
        }
    }
    two.ask(r#"{"cmd":"PUBLISH","topic":"a","payload":"last"}"#)
        .await;
    while one.arrived.recv().await.unwrap().payload != "last" {}
    assert_eq!(*one.state.borrow_and_update(), LinkState::Connected);
    assert!(!one.state.has_changed().unwrap(), "nobody broke off");
}

#[tokio::test]
async fn numbers_that_only_python_writes_break_nothing_off() {
    let address = broker().await;
    let mut one = link(address, "one", &["a"]).await;
    let mut two = ByHand::new(address).await;
    two.ask(r#"{"cmd":"CONNECT","client_id":"2"}"#).await;
    let publish = r#"{"cmd":"PUBLISH","topic":"a","payload":{"x":[NaN,-Infinity,1]},"user_properties":{"n":NaN}}"#;
    assert_eq!(two.ask(publish).await["status"], "OK");
    assert_eq!(
        said(&one.arrived.recv().await.unwrap()),
        json!({"x": [null, null, 1]})
    );
    let nonsense = r#"{"cmd":"PUBLISH","topic":"a","payload":{"x":nan}}"#;
    assert_eq!(two.ask(nonsense).await["error_code"], "INVALID_COMMAND");
}

#[tokio::test]
async fn properties_arrive_as_they_are_written_however_deep_they_are() {
    let address = broker().await;
    let mut one = link(address, "one", &["a"]).await;
    let mut two = ByHand::new(address).await;
    two.ask(r#"{"cmd":"CONNECT","client_id":"2"}"#).await;
    let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
    // By this key the parser takes a text for what is written in it: hundreds of levels in one.
    let hidden = r#"{"$serde_json::private::RawValue":"[[1]]"}"#.to_owned();
    // Around 125 it is as deep as a parser goes, in the line that comes or in the one that is delivered.
    for property in [
        deep(1),
        deep(124),
        deep(125),
        deep(126),
        deep(100_000),
        hidden,
        "1e999".to_owned(),
    ] {
        let line = format!(
            r#"{{"cmd":"PUBLISH","topic":"a","payload":{{}},"user_properties":{{"p":{property}}}}}"#
        );
        assert_eq!(two.ask(&line).await["status"], "OK");
        let arrives = tokio::time::timeout(Duration::from_secs(30), one.arrived.recv());
        assert_eq!(
            arrives.await.expect("it is not lost").unwrap().properties["p"],
            property
        );
        let line = format!(r#"{{"cmd":"ACK","message_id":{property}}}"#);
        assert_eq!(two.ask(&line).await["status"], "OK");
    }
    assert!(!one.state.has_changed().unwrap(), "nobody broke off");
}

#[tokio::test]
async fn properties_that_wait_take_room_like_payloads() {
    let address = broker().await;
    let (mut slow, mut fast) = (ByHand::new(address).await, ByHand::new(address).await);
    slow.ask(r#"{"cmd":"CONNECT","client_id":"slow","subscriptions":["a"]}"#)
        .await;
    fast.ask(r#"{"cmd":"CONNECT","client_id":"fast"}"#).await;
    let large = "x".repeat(8 << 20);
    let line = format!(
        r#"{{"cmd":"PUBLISH","topic":"a","payload":{{}},"user_properties":{{"p":"{large}"}}}}"#
    );
    // Eight of them are as much as may wait, and each has some words around it.
    for _ in 0..9 {
        assert_eq!(fast.ask(&line).await["status"], "OK");
    }
    for _ in 0..7 {
        assert_eq!(
            slow.ask(r#"{"cmd":"RECEIVE"}"#).await["message"]["user_properties"]["p"],
            large
        );
    }
    let told = slow.ask(r#"{"cmd":"RECEIVE"}"#).await;
    assert!(
        told["error_message"]
            .as_str()
            .unwrap()
            .starts_with("2 messages were lost"),
        "{told}"
    );
    // What was taken has given its room back.
    assert_eq!(fast.ask(&line).await["status"], "OK");
    assert_eq!(
        slow.ask(r#"{"cmd":"RECEIVE"}"#).await["message"]["user_properties"]["p"],
        large
    );
}
