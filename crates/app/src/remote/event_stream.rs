//! Follows an event stream to its end, reconnecting with `Last-Event-ID` as often as needed.
//!
//! ```text
//! ask ── events ── events ── broken ── ask again from the last one ── events ── end
//! ```

use super::{Client, ClientRequest, RemoteError, ServerEvent, server_sent_events::EventParser};
use std::{collections::VecDeque, time::Duration};
use tokio::{sync::mpsc, task::JoinHandle};

/// Retry delays in milliseconds since the last progress. Together they cover a server's restart.
pub(crate) const RETRY_DELAYS_MS: [u64; 6] = [100, 300, 1000, 2000, 4000, 8000];
/// Queued events; a full queue slows the server down.
const EVENT_QUEUE: usize = 4;

/// An event stream that can be requested repeatedly.
pub(crate) struct EventSource<A> {
    /// Makes the request for the events after this one.
    pub(crate) ask: A,
    /// The name of the stream's last event.
    pub(crate) last: &'static str,
}

/// The received events. Ends with the last event or an error.
#[derive(Debug)]
pub(crate) struct EventStream {
    events: mpsc::Receiver<Result<ServerEvent, RemoteError>>,
    task: JoinHandle<()>,
}

impl EventStream {
    /// The next event; `None` after the last. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<ServerEvent, RemoteError>> {
        self.events.recv().await
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<A: Fn(Option<&str>) -> ClientRequest + Send + Sync + 'static> EventSource<A> {
    /// Starts following in a task.
    pub(crate) fn start(self, client: &Client) -> EventStream {
        let (sender, events) = mpsc::channel(EVENT_QUEUE);
        let client = client.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = self.forward(&client, &sender).await {
                // A dropped receiver needs no error.
                _ = sender.send(Err(error)).await;
            }
        });
        EventStream { events, task }
    }

    async fn forward(
        &self,
        client: &Client,
        to: &mpsc::Sender<Result<ServerEvent, RemoteError>>,
    ) -> Result<(), RemoteError> {
        let mut last_id = None;
        let mut delays = VecDeque::from(RETRY_DELAYS_MS);
        let mut known = false;
        loop {
            let before = last_id.clone();
            match self.forward_connection(client, &mut last_id, to).await {
                Ok(true) => return Ok(()),
                Err(error) if !error.is_transient() => return Err(error),
                // A server that was never reached is not retried.
                Err(error @ RemoteError::Unreachable { .. }) if !known => return Err(error),
                ended => {
                    if last_id != before {
                        delays = RETRY_DELAYS_MS.into();
                    }
                    known = true;
                    let Some(delay) = delays.pop_front() else {
                        return ended.map(drop);
                    };
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                }
            }
        }
    }

    /// Forwards the events of one connection; `true` after the last event.
    async fn forward_connection(
        &self,
        client: &Client,
        last_id: &mut Option<String>,
        to: &mpsc::Sender<Result<ServerEvent, RemoteError>>,
    ) -> Result<bool, RemoteError> {
        let mut answer = client.send((self.ask)(last_id.as_deref())).await?;
        let mut parser = EventParser::default();
        while let Some(chunk) = answer.chunk().await? {
            for event in parser
                .feed(&chunk)
                .map_err(|bad| client.not_airlock(bad.to_string()))?
            {
                *last_id = event.id.clone().or(last_id.take());
                let is_last = event.name == self.last;
                if to.send(Ok(event)).await.is_err() || is_last {
                    return Ok(true);
                }
            }
        }
        let cause = "the stream ended too early".to_owned();
        Err(RemoteError::Broken {
            address: client.address.clone(),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::ServerAddress;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const SILENCE: Duration = Duration::from_millis(400);

    /// A server whose stream says nothing for three times as long, with signs of life or without.
    async fn quiet(lives: bool) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            ServerAddress::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(
                stream.read(&mut [0; 4096]).await.unwrap() > 0,
                "it is asked"
            );
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
            for _ in 0..12 {
                tokio::time::sleep(SILENCE / 4).await;
                if lives {
                    stream.write_all(b":\n\n").await.unwrap();
                }
            }
            _ = stream.write_all(b"event: exited\ndata: {}\n\n").await;
        });
        Client {
            address,
            key: None,
            tls: None,
            idle_timeout: SILENCE,
        }
    }

    #[tokio::test]
    async fn a_program_that_says_nothing_is_followed_as_long_as_its_server_lives() {
        let follow = EventSource {
            ask: |_: Option<&str>| ClientRequest::get("/events"),
            last: "exited",
        };
        let mut events = follow.start(&quiet(true).await);
        // There is one connection; one that were given up could not be made again.
        assert_eq!(events.next().await.unwrap().unwrap().name, "exited");
        assert!(events.next().await.is_none());
        let mut answer = quiet(false)
            .await
            .send(ClientRequest::get("/events"))
            .await
            .unwrap();
        assert!(
            matches!(answer.chunk().await, Err(RemoteError::TimedOut { .. })),
            "the control"
        );
    }
}
