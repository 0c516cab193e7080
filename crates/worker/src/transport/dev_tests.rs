//! The client with a broker that is slow on purpose, or says nothing at all.

use super::*;
use tokio::{
    io::AsyncBufReadExt,
    net::TcpListener,
    time::{pause, timeout},
};

/// Nothing here takes as long; it only ends tests that hang.
const LONG: Duration = Duration::from_secs(30);

/// A broker that answers a question for messages, and whatever comes behind it, only when so many subscriptions have ended.
async fn broker(limit: usize) -> DevBroker {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (from, mut to) = stream.into_split();
                let mut lines = BufReader::new(from).lines();
                let (mut owed, mut ended, mut holds) = (0, 0, false);
                while let Ok(Some(line)) = lines.next_line().await {
                    owed += 1;
                    holds |= line.contains("RECEIVE") || line.contains("PUBLISH");
                    ended += usize::from(line.contains("UNSUBSCRIBE"));
                    if !holds || ended == limit {
                        to.write_all(&b"{\"status\":\"OK\"}\n".repeat(owed))
                            .await
                            .unwrap();
                        (owed, holds) = (0, false);
                    }
                }
            });
        }
    });
    DevBroker {
        address,
        client_id: "me".to_owned(),
        queue: "q".to_owned(),
    }
}

fn subscription(number: usize) -> Subscription {
    Subscription {
        pattern: format!("tool/{number}"),
        is_shared: true,
    }
}

#[tokio::test]
async fn subscriptions_end_without_waiting_for_an_open_question() {
    let mut speaking = broker(50).await.connect().await.unwrap();
    for number in 0..50 {
        speaking.subscribe(&subscription(number)).await.unwrap();
    }
    // It asks for messages, and is not answered.
    assert!(
        timeout(Duration::from_millis(50), speaking.next())
            .await
            .is_err()
    );
    let ends = async {
        for number in 0..50 {
            speaking.unsubscribe(&subscription(number)).await.unwrap();
        }
        speaking.drain_replies().await.unwrap();
    };
    timeout(LONG, ends)
        .await
        .expect("none waits for the answer to another");
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_given_up() {
    let message = OutgoingMessage {
        topic: "t".to_owned(),
        payload: Bytes::from("{}"),
        properties: Default::default(),
    };
    for publishes in [false, true] {
        let mut speaking = broker(usize::MAX).await.connect().await.unwrap();
        if publishes {
            speaking.publish(1, &message).await.unwrap();
        }
        pause();
        let begun = Instant::now();
        assert_eq!(speaking.next().await.unwrap_err(), response_timed_out());
        let least = if publishes {
            RESPONSE_TIMEOUT
        } else {
            RESPONSE_TIMEOUT + Duration::from_millis(RECEIVE_TIMEOUT_MS)
        };
        assert!(
            begun.elapsed() <= least + Duration::from_secs(1),
            "{:?}",
            begun.elapsed()
        );
        tokio::time::resume();
    }
}

#[tokio::test]
async fn who_did_not_listen_does_not_blame_the_broker() {
    let mut speaking = broker(usize::MAX).await.connect().await.unwrap();
    assert!(
        timeout(Duration::from_millis(50), speaking.next())
            .await
            .is_err()
    );
    pause();
    assert!(
        timeout(RESPONSE_TIMEOUT * 3, speaking.idle())
            .await
            .is_err()
    );
    let begun = Instant::now();
    assert_eq!(speaking.next().await.unwrap_err(), response_timed_out());
    assert!(begun.elapsed() >= RESPONSE_TIMEOUT);
}

/// A connection to a broker that answers questions for messages with these lines, and then with what is no line of its dialect.
async fn that_delivers(messages: &'static [&'static str]) -> DevConnection {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (from, mut to) = stream.into_split();
                let (mut lines, mut messages) = (BufReader::new(from).lines(), messages.iter());
                while let Ok(Some(line)) = lines.next_line().await {
                    let reply = match line.contains("RECEIVE") {
                        true => messages.next().map_or_else(
                            || "nonsense\n".to_owned(),
                            |message| format!("{{\"status\":\"OK\",\"message\":{message}}}\n"),
                        ),
                        false => "{\"status\":\"OK\"}\n".to_owned(),
                    };
                    to.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let mut broker = DevBroker {
        address,
        client_id: "me".to_owned(),
        queue: "q".to_owned(),
    };
    broker.connect().await.unwrap()
}

#[tokio::test]
async fn what_a_broker_in_python_writes_is_read() {
    let mut speaking = that_delivers(&[
        r#"{"message_id":1,"topic":"t","payload":{"x":NaN},"user_properties":{"n":Infinity,"s":"\ud800"}}"#,
        r#"{"message_id":"two","topic":"t","payload":"\ud800","user_properties":{"s":"\ud800"}}"#,
        r#"{"message_id":[[3]],"topic":"t","payload":1,"user_properties":null}"#,
    ])
    .await;
    let half = || vec![("s".to_owned(), "\u{fffd}".to_owned())];
    for (says, beside) in [
        (r#"{"x":null}"#, half()),
        ("\u{fffd}", half()),
        ("1", Vec::new()),
    ] {
        let ConnectionEvent::Message {
            topic,
            payload,
            properties,
            ..
        } = speaking.next().await.unwrap()
        else {
            panic!("a message was sent")
        };
        assert_eq!((topic.as_str(), &payload[..]), ("t", says.as_bytes()));
        assert_eq!(properties.into_iter().collect::<Vec<_>>(), beside);
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_passed_over_and_the_next_one_comes() {
    let mut speaking = that_delivers(&[
        r#"{"message_id":1,"payload":{}}"#,
        r#"[1]"#,
        r#"{"message_id":2,"topic":"t","payload":{},"user_properties":["a"]}"#,
        r#"{"message_id":3,"topic":"t","payload":{},"user_properties":{}}"#,
    ])
    .await;
    for _ in 0..3 {
        let told = speaking.next().await.unwrap();
        assert!(
            matches!(&told, ConnectionEvent::Notice(LinkNotice::PassedOver(why)) if why.contains("cannot be read")),
            "{told:?}"
        );
    }
    let next = speaking.next().await.unwrap();
    assert!(
        matches!(&next, ConnectionEvent::Message { topic, .. } if topic == "t"),
        "{next:?}"
    );
    let end = speaking.next().await.unwrap_err();
    assert!(end.message.contains("none of its dialect"), "{end:?}");
}
