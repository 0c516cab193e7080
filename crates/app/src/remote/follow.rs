//! The events of something that goes on at a server, to its end, over as many connections as it takes.
//!
//! ```text
//! ask ── events ── events ── broken ── ask again from the last one ── events ── end
//! ```

use super::{Ask, Client, Event, RemoteError, events::Parser};
use std::{collections::VecDeque, time::Duration};
use tokio::{sync::mpsc, task::JoinHandle};

/// Between tries in milliseconds, when nothing came since the last. Together as long as a server takes to start anew.
pub(crate) const PAUSES: [u64; 6] = [100, 300, 1000, 2000, 4000, 8000];
/// Events on their way to whoever shows them; a full queue holds the server back.
const ROOM: usize = 4;

/// Which events, and what to ask for them.
pub(crate) struct Follow<A> {
    /// Asks from behind this event on.
    pub(crate) ask: A,
    /// The name of the last event.
    pub(crate) last: &'static str,
}

/// Events as they come. Ends with the last one, or with an error.
#[derive(Debug)]
pub(crate) struct Followed {
    events: mpsc::Receiver<Result<Event, RemoteError>>,
    task: JoinHandle<()>,
}

impl Followed {
    /// The next one; none behind the last. Nothing is lost if this is dropped while it waits.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, RemoteError>> {
        self.events.recv().await
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<A: Fn(Option<&str>) -> Ask + Send + Sync + 'static> Follow<A> {
    /// Begins, in a task of its own.
    pub(crate) fn begin(self, client: &Client) -> Followed {
        let (sender, events) = mpsc::channel(ROOM);
        let client = client.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = self.pass_on(&client, &sender).await {
                // Whoever does not listen any more need not know.
                _ = sender.send(Err(error)).await;
            }
        });
        Followed { events, task }
    }

    async fn pass_on(
        &self,
        client: &Client,
        to: &mpsc::Sender<Result<Event, RemoteError>>,
    ) -> Result<(), RemoteError> {
        let (mut place, mut pauses, mut known) = (None, VecDeque::from(PAUSES), false);
        loop {
            let before = place.clone();
            match self.once(client, &mut place, to).await {
                Ok(true) => return Ok(()),
                Err(error) if !error.may_pass() => return Err(error),
                // Nobody is there to begin with.
                Err(error @ RemoteError::Unreachable { .. }) if !known => return Err(error),
                ended => {
                    if place != before {
                        pauses = PAUSES.into();
                    }
                    known = true;
                    let Some(pause) = pauses.pop_front() else {
                        return ended.map(drop);
                    };
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    /// One connection. True once the last event was seen.
    async fn once(
        &self,
        client: &Client,
        place: &mut Option<String>,
        to: &mpsc::Sender<Result<Event, RemoteError>>,
    ) -> Result<bool, RemoteError> {
        let mut answer = client.ask((self.ask)(place.as_deref())).await?;
        let mut parser = Parser::default();
        while let Some(piece) = answer.piece().await? {
            for event in parser
                .feed(&piece)
                .map_err(|bad| client.foreign(bad.to_string()))?
            {
                *place = event.id.clone().or(place.take());
                let is_last = event.name == self.last;
                if to.send(Ok(event)).await.is_err() || is_last {
                    return Ok(true);
                }
            }
        }
        let cause = "it ended too early".to_owned();
        Err(RemoteError::Broken {
            address: client.address.clone(),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Address;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const SILENCE: Duration = Duration::from_millis(400);

    /// A server whose stream says nothing for three times as long, with signs of life or without.
    async fn quiet(lives: bool) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
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
            silence: SILENCE,
        }
    }

    #[tokio::test]
    async fn a_program_that_says_nothing_is_followed_as_long_as_its_server_lives() {
        let follow = Follow {
            ask: |_: Option<&str>| Ask::get("/events"),
            last: "exited",
        };
        let mut followed = follow.begin(&quiet(true).await);
        // There is one connection; one that were given up could not be made again.
        assert_eq!(followed.next().await.unwrap().unwrap().name, "exited");
        assert!(followed.next().await.is_none());
        let mut answer = quiet(false).await.ask(Ask::get("/events")).await.unwrap();
        assert!(
            matches!(answer.piece().await, Err(RemoteError::Silent { .. })),
            "the control"
        );
    }
}
