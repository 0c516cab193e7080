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
async fn broker(most: usize) -> DevBroker {
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
                    if !holds || ended == most {
                        to.write_all(&b"{\"status\":\"OK\"}\n".repeat(owed)).await.unwrap();
                        (owed, holds) = (0, false);
                    }
                }
            });
        }
    });
    DevBroker { address, client_id: "me".to_owned(), queue: "q".to_owned() }
}

fn subscription(number: usize) -> Subscription {
    Subscription { pattern: format!("tool/{number}"), is_shared: true }
}

#[tokio::test]
async fn subscriptions_end_without_waiting_for_an_open_question() {
    let mut speaking = broker(50).await.connect().await.unwrap();
    for number in 0..50 {
        speaking.subscribe(&subscription(number)).await.unwrap();
    }
    // It asks for messages, and is not answered.
    assert!(timeout(Duration::from_millis(50), speaking.next()).await.is_err());
    let ends = async {
        for number in 0..50 {
            speaking.unsubscribe(&subscription(number)).await.unwrap();
        }
        speaking.finish_asking().await.unwrap();
    };
    timeout(LONG, ends).await.expect("none waits for the answer to another");
}

#[tokio::test]
async fn a_broker_that_falls_silent_is_given_up() {
    let message =
        Outgoing { topic: "t".to_owned(), payload: Bytes::from("{}"), properties: Default::default() };
    for publishes in [false, true] {
        let mut speaking = broker(usize::MAX).await.connect().await.unwrap();
        if publishes {
            speaking.publish(1, &message).await.unwrap();
        }
        pause();
        let begun = Instant::now();
        assert_eq!(speaking.next().await.unwrap_err(), silent());
        let least = if publishes { LONGEST_WAIT } else { LONGEST_WAIT + Duration::from_millis(RECEIVE_MS) };
        assert!(begun.elapsed() <= least + Duration::from_secs(1), "{:?}", begun.elapsed());
        tokio::time::resume();
    }
}

#[tokio::test]
async fn who_did_not_listen_does_not_blame_the_broker() {
    let mut speaking = broker(usize::MAX).await.connect().await.unwrap();
    assert!(timeout(Duration::from_millis(50), speaking.next()).await.is_err());
    pause();
    assert!(timeout(LONGEST_WAIT * 3, speaking.idle()).await.is_err());
    let begun = Instant::now();
    assert_eq!(speaking.next().await.unwrap_err(), silent());
    assert!(begun.elapsed() >= LONGEST_WAIT);
}

#[tokio::test]
async fn what_a_broker_in_python_writes_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (from, mut to) = stream.into_split();
                let mut lines = BufReader::new(from).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let reply: &[u8] = match line.contains("RECEIVE") {
                        true => b"{\"status\":\"OK\",\"message\":{\"message_id\":1,\"topic\":\"t\",\"payload\":{\"x\":NaN},\"user_properties\":{\"n\":Infinity,\"s\":\"\\ud800\"}}}\n",
                        false => b"{\"status\":\"OK\"}\n",
                    };
                    to.write_all(reply).await.unwrap();
                }
            });
        }
    });
    let mut broker = DevBroker { address, client_id: "me".to_owned(), queue: "q".to_owned() };
    let mut speaking = broker.connect().await.unwrap();
    let Event::Message { topic, payload, properties, .. } = speaking.next().await.unwrap() else {
        panic!("a message was sent")
    };
    assert_eq!((topic.as_str(), &payload[..]), ("t", &br#"{"x":null}"#[..]));
    assert_eq!(properties.into_iter().collect::<Vec<_>>(), [("s".to_owned(), "\u{fffd}".to_owned())]);
}
