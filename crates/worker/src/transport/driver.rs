//! I/O driver of a connection: moves bytes between stream and protocol, and enforces timeouts.
//! Cancel safe: buffers live in the connection, not in the futures.

use super::{
    Connection, ConnectionError, ConnectionEvent, OutgoingMessage, Subscription,
    stream::ByteStream, temporary, timed_out,
};
use bytes::{Buf, BytesMut};
use std::{
    fmt,
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

const READ_CHUNK_BYTES: usize = 16 << 10;
/// Above this size of non-message output nothing is read, because input causes more output.
const MAX_UNWRITTEN_BYTES: usize = 1 << 20;
/// Timeout of a graceful close.
pub(super) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// A protocol after its handshake, without I/O: bytes in, events and bytes out.
pub trait Protocol: Send {
    /// Processes one frame or packet of the input; false if there is no complete one.
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, ConnectionError>;

    /// Write buffer.
    fn outgoing(&mut self) -> &mut BytesMut;

    /// Moves queued messages into the write buffer.
    fn fill(&mut self, now: Instant) -> Result<(), ConnectionError>;

    /// The next event, if there is one.
    fn event(&mut self) -> Option<ConnectionEvent>;

    /// Whether so many events are kept that nothing more should be read.
    fn is_full(&self) -> bool;

    /// What the broker has owed for the longest time, in words, and since when.
    fn owed(&self) -> Option<(Instant, &'static str)>;

    /// Stops waiting for responses to messages sent until then: each becomes a
    /// [`ConnectionEvent::Unanswered`]. False if there are none.
    fn give_up(&mut self, sent_by: Instant, why: &str) -> bool;

    /// Responses could not be read for this long until now; their timeouts are extended.
    fn forgive(&mut self, lost: Duration, now: Instant);

    /// Whether answers could not be sent at the moment.
    fn is_mute(&self) -> bool {
        false
    }

    /// See [`Connection::subscribe`]. Returns the number of the request.
    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, ConnectionError>;

    /// Whether that request is pending.
    fn is_asked(&self, question: u32) -> bool;

    /// See [`Connection::unsubscribe`].
    fn unsubscribe(&mut self, from: &Subscription, now: Instant) -> Result<(), ConnectionError>;

    /// See [`Connection::publish`].
    fn publish(&mut self, number: u64, message: &OutgoingMessage);

    /// See [`Connection::settle`].
    fn settle(&mut self, tag: u64);

    /// See [`Connection::release`].
    fn release(&mut self, _tag: u64) {}

    /// Writes a heartbeat.
    fn ping(&mut self);

    /// Writes the final message.
    fn close(&mut self);

    /// The broker closed the connection.
    fn closed(&mut self) -> ConnectionError {
        temporary("the broker closed the connection")
    }
}

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// A heartbeat is sent after this time without traffic in one direction.
    pub(super) keep_alive: Duration,
    /// The broker is considered dead after this time without a reaction to a heartbeat.
    pub(super) silence: Duration,
    /// Timeout of a response, and of a write.
    pub(super) response: Duration,
}

/// A connection to a broker.
pub struct Driver<S> {
    stream: Box<dyn ByteStream>,
    incoming: BytesMut,
    pub(super) protocol: S,
    times: Timeouts,
    is_unflushed: bool,
    /// Length of the write buffer up to the last message: while a large one is written, reading
    /// goes on.
    added: usize,
    sent: Instant,
    last_read: Instant,
    /// Time of the first heartbeat since the last input.
    pinged_at: Option<Instant>,
    /// Since when no output could be written.
    write_stalled_at: Option<Instant>,
    /// Since when responses are not read.
    reads_paused_at: Option<Instant>,
}

impl<S> fmt::Debug for Driver<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Driver")
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ReadMode {
    Yes,
    No,
}

impl<S: Protocol> Driver<S> {
    /// Continues after the handshake. `incoming` has the input beyond it.
    pub(super) fn new(
        stream: Box<dyn ByteStream>,
        incoming: BytesMut,
        protocol: S,
        times: Timeouts,
    ) -> Driver<S> {
        Driver {
            stream,
            incoming,
            protocol,
            times,
            is_unflushed: false,
            added: 0,
            sent: Instant::now(),
            last_read: Instant::now(),
            pinged_at: None,
            write_stalled_at: None,
            reads_paused_at: None,
        }
    }

    /// Waits until something was read or written, or a timeout expired.
    async fn step(&mut self, reads: ReadMode) -> Result<(), ConnectionError> {
        let unwritten = self.protocol.outgoing().len();
        self.added = self.added.min(unwritten);
        let has_room = unwritten < self.added + MAX_UNWRITTEN_BYTES;
        let reads = if has_room { reads } else { ReadMode::No };
        if self.waits_to_write() {
            _ = self.write_stalled_at.get_or_insert_with(Instant::now)
        } else {
            self.write_stalled_at = None
        }
        let due = self.due(reads);
        let moved = tokio::select! {
            // Received data counts even if the timeout has expired.
            biased;
            moved = poll_fn(|context| self.poll_move(context, reads)) => Some(moved),
            () = sleep_until(due) => None,
        };
        match moved {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.protocol.closed())
            }
            Some(Err(error)) => Err(temporary(format!("the connection broke: {error}"))),
            None => self.late(reads),
        }
    }

    fn fill(&mut self) -> Result<(), ConnectionError> {
        let before = self.protocol.outgoing().len();
        let filled = self.protocol.fill(Instant::now());
        let after = self.protocol.outgoing().len();
        if after > before {
            self.added = after;
        }
        filled
    }

    fn waits_to_write(&mut self) -> bool {
        self.is_unflushed || !self.protocol.outgoing().is_empty()
    }

    fn poll_move(&mut self, context: &mut Context<'_>, reads: ReadMode) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(context)?;
        let read = reads == ReadMode::Yes && self.poll_read(context)?;
        if wrote || read {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// True if something was written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        let outgoing = self.protocol.outgoing();
        while !outgoing.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, outgoing) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => outgoing.advance(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            wrote = true;
            self.is_unflushed = true;
        }
        if self.is_unflushed && outgoing.is_empty() {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Ready(flushed) => {
                    flushed?;
                    wrote = true;
                    self.is_unflushed = false;
                }
                Poll::Pending => {}
            }
        }
        if wrote {
            self.sent = Instant::now();
            self.write_stalled_at = None;
        }
        Ok(wrote)
    }

    /// True if something was read.
    fn poll_read(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        self.incoming.reserve(READ_CHUNK_BYTES);
        // This future has no state and can be created for each poll.
        match pin!(self.stream.read_buf(&mut self.incoming)).poll(context) {
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(_)) => {
                self.last_read = Instant::now();
                self.pinged_at = None;
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(false),
        }
    }

    /// When a heartbeat is due; none while there is output.
    fn ping_due(&mut self, reads: ReadMode) -> Option<Instant> {
        let last = match (reads, self.pinged_at) {
            (ReadMode::Yes, None) => self.sent.min(self.last_read),
            (ReadMode::Yes, Some(_)) | (ReadMode::No, _) => self.sent,
        };
        (!self.waits_to_write()).then(|| last + self.times.keep_alive)
    }

    /// The next timeout.
    fn due(&mut self, reads: ReadMode) -> Instant {
        let times = self.times;
        let write_stalled_at = self.write_stalled_at.map(|since| since + times.response);
        let (timed_out, owed) = match reads {
            ReadMode::Yes => (self.pinged_at, self.protocol.owed()),
            // Silence proves nothing while nothing is read.
            ReadMode::No => (None, None),
        };
        let timed_out = timed_out.map(|since| since + times.silence);
        let owed = owed.map(|(since, _)| since + times.response);
        let all = [write_stalled_at, timed_out, owed, self.ping_due(reads)];
        // There is always one: either output is pending, or a heartbeat is due.
        all.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + times.keep_alive)
    }

    fn late(&mut self, reads: ReadMode) -> Result<(), ConnectionError> {
        let (
            now,
            Timeouts {
                silence, response, ..
            },
        ) = (Instant::now(), self.times);
        if self
            .write_stalled_at
            .is_some_and(|since| now >= since + response)
        {
            let seconds = response.as_secs();
            return Err(timed_out(format!(
                "the broker takes nothing of what is written for {seconds} seconds"
            )));
        }
        if reads == ReadMode::Yes {
            if self.pinged_at.is_some_and(|since| now >= since + silence) {
                let seconds = silence.as_secs();
                return Err(timed_out(format!(
                    "the broker has not been heard for {seconds} seconds"
                )));
            }
            self.is_answered()?;
        }
        if self.ping_due(reads).is_some_and(|due| now >= due) {
            self.protocol.ping();
            self.sent = now;
            self.pinged_at = (reads == ReadMode::Yes).then(|| self.pinged_at.unwrap_or(now));
        }
        Ok(())
    }

    /// Checks response timeouts. A missing response may be the message's fault: this is reported
    /// first.
    fn is_answered(&mut self) -> Result<(), ConnectionError> {
        let seconds = self.times.response.as_secs();
        let why = format!("the broker has left a message unanswered for {seconds} s");
        let sent_by = Instant::now().checked_sub(self.times.response);
        if sent_by.is_some_and(|sent_by| self.protocol.give_up(sent_by, &why)) {
            return Ok(());
        }
        match self.protocol.owed() {
            Some((since, what)) if Instant::now() >= since + self.times.response => Err(timed_out(
                format!("the broker lives, but {what} for {seconds} seconds"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Waits for the broker, unless too many events are kept: then `next` reports the result.
    async fn wait(&mut self, lasts: impl Fn(&S) -> bool + Send) -> Result<(), ConnectionError> {
        let mut has_waited = false;
        while lasts(&self.protocol) && !self.protocol.is_full() {
            if self.protocol.take(&mut self.incoming)? {
                continue;
            }
            // Also if the broker keeps sending other things. The input of the last step counts.
            if std::mem::replace(&mut has_waited, true) {
                self.is_answered()?;
            }
            self.step(ReadMode::Yes).await?;
        }
        Ok(())
    }

    /// Resumes reading. Exactly the time without reading is not counted as silence; it is often
    /// short.
    fn listen(&mut self) {
        if let Some(since) = self.reads_paused_at.take() {
            self.last_read = Instant::now();
            self.pinged_at = None;
            self.protocol
                .forgive(self.last_read - since, self.last_read);
        }
    }

    /// Waits for the broker to close, too: closing a socket with unread input discards unsent
    /// output, and with it the last settlements.
    async fn farewell(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(self.protocol.outgoing()).await?;
        self.stream.flush().await?;
        self.stream.shutdown().await?;
        let mut rest = BytesMut::new();
        while self.stream.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        Ok(())
    }
}

impl<S: Protocol> Connection for Driver<S> {
    async fn next(&mut self) -> Result<ConnectionEvent, ConnectionError> {
        self.listen();
        loop {
            self.fill()?;
            if let Some(event) = self.protocol.event() {
                return Ok(event);
            }
            if !self.protocol.take(&mut self.incoming)? {
                self.step(ReadMode::Yes).await?;
            }
        }
    }

    async fn idle(&mut self) -> ConnectionError {
        self.reads_paused_at.get_or_insert_with(Instant::now);
        self.pinged_at = None;
        loop {
            if let Err(error) = self.fill() {
                return error;
            }
            if let Err(error) = self.step(ReadMode::No).await {
                return error;
            }
        }
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), ConnectionError> {
        self.listen();
        self.wait(S::is_mute).await?;
        let question = self.protocol.subscribe(to, Instant::now())?;
        self.wait(|protocol| protocol.is_asked(question)).await
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), ConnectionError> {
        self.protocol.unsubscribe(from, Instant::now())
    }

    async fn publish(
        &mut self,
        number: u64,
        message: &OutgoingMessage,
    ) -> Result<(), ConnectionError> {
        self.protocol.publish(number, message);
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.protocol.settle(tag);
        Ok(())
    }

    async fn release(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.protocol.release(tag);
        Ok(())
    }

    async fn close(mut self) {
        self.protocol.close();
        // Closed in any case.
        _ = timeout(FAREWELL_TIMEOUT, self.farewell()).await;
    }
}
