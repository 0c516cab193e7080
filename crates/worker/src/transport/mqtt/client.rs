//! One connection: moves bytes between a stream and a [`Session`], and watches the clock. Nothing is lost when a wait is
//! given up: what was read and what is to be written lies in the connection, not in the wait.

use super::{
    again,
    codec::{self, Disconnect, Extras, Packet, Read, Reader, Value, name},
    reason,
    rival::{SentAway, Stay},
    session::Session,
};
use crate::transport::{Connection, Event, Outgoing, Subscription, Trouble, stream::Stream};
use bytes::{Buf, BytesMut};
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep_until, timeout},
};

const READ_AT_ONCE: usize = 16 << 10;
/// A farewell is a courtesy.
const LONGEST_FAREWELL: Duration = Duration::from_secs(2);

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Nothing is said for longer than this, by either side.
    pub(super) quiet: Duration,
    /// For an answer, and for a piece of what we write to be taken.
    pub(super) answer: Duration,
}

/// One connection to a broker.
pub struct Client {
    stream: Box<dyn Stream>,
    incoming: BytesMut,
    reader: Reader,
    session: Session,
    times: Times,
    /// The session is of no use to anybody after us.
    forgets: bool,
    is_unflushed: bool,
    sent: Instant,
    heard: Instant,
    /// Since when an answer to a ping is waited for.
    pinged: Option<Instant>,
    /// Since when nothing of what waits was written.
    stuck: Option<Instant>,
    /// Answers were not read lately.
    was_idle: bool,
    /// Where others may have our name.
    stay: Option<Stay>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Client({:?})", self.session.version())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reads {
    Yes,
    No,
}

impl Client {
    /// Goes on where the greeting ended. `incoming` has what was read beyond it.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        incoming: BytesMut,
        reader: Reader,
        session: Session,
        times: Times,
        forgets: bool,
    ) -> Client {
        let now = Instant::now();
        let (is_unflushed, pinged, stuck, was_idle) = (false, None, None, false);
        let (sent, heard) = (now, now);
        Client {
            stream,
            incoming,
            reader,
            session,
            times,
            forgets,
            is_unflushed,
            sent,
            heard,
            pinged,
            stuck,
            was_idle,
            stay: None,
        }
    }

    /// Says there when the broker sends it away.
    pub(super) fn at(self, stay: Option<Stay>) -> Client {
        Client { stay, ..self }
    }

    fn sent_away(&self, how: SentAway, message: &str) -> Trouble {
        match self.stay.as_ref().and_then(|stay| stay.sent_away(how, Instant::now())) {
            Some(more) => again(format!("{message}: {more}")),
            None => again(message),
        }
    }

    /// Takes one packet of what was read; false if there is none.
    fn take(&mut self) -> Result<bool, Trouble> {
        let read = self.reader.read(&mut self.incoming);
        match read.map_err(|flaw| again(format!("the broker does not speak MQTT as it should: {flaw}")))? {
            Read::Packet(packet) => {
                let is_rival = matches!(&packet, Packet::Disconnect(end) if end.reason == reason::TAKEN_OVER);
                let received = self.session.received(packet);
                received.map_err(|trouble| match is_rival {
                    true => self.sent_away(SentAway::ForAnother, &trouble.message),
                    false => trouble,
                })?;
            }
            Read::Oversize { packet_id } => self.session.passed_over(packet_id),
            Read::More => return Ok(false),
        }
        Ok(true)
    }

    /// Waits until something was read or written, or the clock says that something must be done.
    async fn step(&mut self, reads: Reads) -> Result<(), Trouble> {
        let now = Instant::now();
        match self.waits_to_write() {
            true => _ = self.stuck.get_or_insert(now),
            false => self.stuck = None,
        }
        let due = self.due(reads);
        let moved = tokio::select! {
            // What has come counts even if the clock says that it is late.
            biased;
            moved = poll_fn(|context| self.poll_move(context, reads)) => Some(moved),
            () = sleep_until(due) => None,
        };
        match moved {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.sent_away(SentAway::WithoutAWord, "the broker closed the connection"))
            }
            Some(Err(error)) => Err(again(format!("the connection broke: {error}"))),
            None => self.late(reads),
        }
    }

    fn waits_to_write(&self) -> bool {
        self.is_unflushed || !self.session.outgoing.is_empty()
    }

    fn poll_move(&mut self, context: &mut Context<'_>, reads: Reads) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(context)?;
        let read = reads == Reads::Yes && self.poll_read(context)?;
        if wrote || read { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// True if something was written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        while !self.session.outgoing.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, &self.session.outgoing) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.session.outgoing.advance(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            (wrote, self.is_unflushed) = (true, true);
        }
        if self.is_unflushed && self.session.outgoing.is_empty() {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Ready(flushed) => {
                    flushed?;
                    (wrote, self.is_unflushed) = (true, false);
                }
                Poll::Pending => {}
            }
        }
        if wrote {
            self.sent = Instant::now();
            self.stuck = None;
        }
        Ok(wrote)
    }

    /// True if something was read.
    fn poll_read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        self.incoming.reserve(READ_AT_ONCE);
        // Such a wait has no state of its own: it can be begun anew each time.
        match pin!(self.stream.read_buf(&mut self.incoming)).poll(context) {
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(_)) => {
                self.heard = Instant::now();
                self.pinged = None;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(false),
        }
    }

    /// When something must be said to stay alive, or to see whether the broker is; none while that waits for something else.
    fn ping_due(&self, reads: Reads) -> Option<Instant> {
        let last = match reads {
            Reads::Yes => self.sent.min(self.heard),
            Reads::No => self.sent,
        };
        (!self.waits_to_write() && self.pinged.is_none()).then(|| last + self.times.quiet)
    }

    /// When the clock will have something to say.
    fn due(&self, reads: Reads) -> Instant {
        let answer = |since: Option<Instant>| since.map(|since| since + self.times.answer);
        let (pinged, owed) = match reads {
            Reads::Yes => (answer(self.pinged), answer(self.session.owed_since())),
            // Silence proves nothing to those who do not listen.
            Reads::No => (None, None),
        };
        let times = [answer(self.stuck), pinged, owed, self.ping_due(reads)];
        // One of them is always there: either something waits to be written, or a ping is due, or was sent.
        times.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + self.times.quiet)
    }

    fn late(&mut self, reads: Reads) -> Result<(), Trouble> {
        let now = Instant::now();
        let seconds = self.times.answer.as_secs();
        if self.is_over(self.stuck) {
            return Err(again(format!("the broker takes nothing of what is written for {seconds} seconds")));
        }
        if reads == Reads::Yes && self.is_over(self.pinged) {
            return Err(again(format!("the broker has not answered for {seconds} seconds")));
        }
        if reads == Reads::Yes && self.is_over(self.session.owed_since()) {
            return Err(self.unanswered());
        }
        if self.ping_due(reads).is_some_and(|due| now >= due) {
            // Two bytes: they can be written.
            _ = codec::write(self.session.version(), &Packet::Ping, &mut self.session.outgoing);
            self.pinged = (reads == Reads::Yes).then_some(now);
            self.sent = now;
        }
        Ok(())
    }

    fn is_over(&self, since: Option<Instant>) -> bool {
        since.is_some_and(|since| Instant::now() >= since + self.times.answer)
    }

    fn unanswered(&self) -> Trouble {
        let seconds = self.times.answer.as_secs();
        again(format!("the broker lives, but has left a message unanswered for {seconds} seconds"))
    }

    /// Answers are read again: what was owed in between is not held against the broker.
    fn listen(&mut self) {
        if self.was_idle {
            let now = Instant::now();
            (self.was_idle, self.heard, self.pinged) = (false, now, None);
            self.session.forgive(now);
        }
    }
}

impl Connection for Client {
    async fn next(&mut self) -> Result<Event, Trouble> {
        self.listen();
        loop {
            self.session.fill(Instant::now())?;
            if let Some(event) = self.session.event() {
                return Ok(event);
            }
            if !self.take()? {
                self.step(Reads::Yes).await?;
            }
        }
    }

    async fn idle(&mut self) -> Trouble {
        self.was_idle = true;
        self.pinged = None;
        loop {
            if let Err(trouble) = self.session.fill(Instant::now()) {
                return trouble;
            }
            if let Err(trouble) = self.step(Reads::No).await {
                return trouble;
            }
        }
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), Trouble> {
        self.listen();
        let question = self.session.ask(to, true, Instant::now())?;
        let mut is_late = false;
        // With too much to keep, a refusal is told by `next`.
        while self.session.is_asked(question) && !self.session.is_full() {
            if self.take()? {
                continue;
            }
            if is_late {
                return Err(self.unanswered());
            }
            self.step(Reads::Yes).await?;
            // Also while it says other things without end. What came with this step counts.
            is_late = self.is_over(self.session.owed_since());
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), Trouble> {
        self.session.ask(from, false, Instant::now()).map(|_| ())
    }

    async fn publish(&mut self, number: u64, message: &Outgoing) -> Result<(), Trouble> {
        self.session.publish(number, message);
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), Trouble> {
        self.session.settle(tag);
        Ok(())
    }

    async fn close(mut self) {
        let mut end = Disconnect::default();
        if self.forgets {
            end.extras = Extras(vec![(name::SESSION_EXPIRY, Value::Four(0))]);
        }
        _ = codec::write(self.session.version(), &Packet::Disconnect(end), &mut self.session.outgoing);
        // Whether it arrives or not, this is the end.
        _ = timeout(LONGEST_FAREWELL, farewell(&mut self.stream, &mut self.session.outgoing)).await;
    }
}

/// Waits for the broker to close, too: closing with bytes unread would make the system throw away what it has not sent yet,
/// and with it the last acknowledgements.
async fn farewell(stream: &mut Box<dyn Stream>, last: &mut BytesMut) -> io::Result<()> {
    stream.write_all_buf(last).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    let mut rest = BytesMut::new();
    while stream.read_buf(&mut rest).await? > 0 {
        rest.clear();
    }
    Ok(())
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
