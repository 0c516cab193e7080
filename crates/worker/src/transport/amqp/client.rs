//! One connection: moves bytes between a stream and a [`Session`], and watches the clock. Nothing is lost when a wait is
//! given up: what was read and what is to be written lies in the connection, not in the wait.

use super::{frame, session::Session};
use crate::transport::{Connection, Event, Outgoing, Subscription, Trouble, again, stream::Stream};
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
    /// We say something at least as often.
    pub(super) speak: Duration,
    /// The broker does, or is taken for dead.
    pub(super) hear: Duration,
    /// For an answer, and for a piece of what we write to be taken.
    pub(super) answer: Duration,
}

/// One connection to a broker.
pub struct Client {
    stream: Box<dyn Stream>,
    incoming: BytesMut,
    largest_frame: usize,
    session: Session,
    times: Times,
    is_unflushed: bool,
    sent: Instant,
    heard: Instant,
    /// Since when nothing of what waits was written.
    stuck: Option<Instant>,
    /// Answers were not read lately.
    was_idle: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Client(AMQP 1.0)")
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
        largest_frame: usize,
        session: Session,
        times: Times,
    ) -> Client {
        let (sent, heard) = (Instant::now(), Instant::now());
        let (is_unflushed, stuck, was_idle) = (false, None, false);
        Client { stream, incoming, largest_frame, session, times, is_unflushed, sent, heard, stuck, was_idle }
    }

    /// Takes one frame of what was read; false if there is none.
    fn take(&mut self) -> Result<bool, Trouble> {
        let read = frame::read(&mut self.incoming, self.largest_frame);
        match read.map_err(|bad| again(format!("the broker does not speak AMQP as it should: {bad}")))? {
            Some(frame) => self.session.received(frame).map(|()| true),
            None => Ok(false),
        }
    }

    /// Waits until something was read or written, or the clock says that something must be done.
    async fn step(&mut self, reads: Reads) -> Result<(), Trouble> {
        match self.waits_to_write() {
            true => _ = self.stuck.get_or_insert_with(Instant::now),
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
                Err(again("the broker closed the connection"))
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
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(false),
        }
    }

    /// When the clock will have something to say.
    fn due(&self, reads: Reads) -> Instant {
        let answer = |since: Option<Instant>| since.map(|since| since + self.times.answer);
        // Silence proves nothing to those who do not listen.
        let silence = (reads == Reads::Yes).then(|| self.heard + self.times.hear);
        let owed = self.session.owed().filter(|_| reads == Reads::Yes);
        let owed = answer(owed.map(|(since, _)| since));
        let speak = (!self.waits_to_write()).then(|| self.sent + self.times.speak);
        let times = [answer(self.stuck), silence, owed, speak];
        times.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + self.times.speak)
    }

    fn late(&mut self, reads: Reads) -> Result<(), Trouble> {
        let now = Instant::now();
        let seconds = self.times.answer.as_secs();
        if self.is_over(self.stuck) {
            return Err(again(format!("the broker takes nothing of what is written for {seconds} seconds")));
        }
        if reads == Reads::Yes && now >= self.heard + self.times.hear {
            let seconds = self.times.hear.as_secs();
            return Err(again(format!("the broker has not been heard for {seconds} seconds")));
        }
        if reads == Reads::Yes {
            self.is_answered()?;
        }
        if !self.waits_to_write() && now >= self.sent + self.times.speak {
            self.session.beat();
            self.sent = now;
        }
        Ok(())
    }

    fn is_over(&self, since: Option<Instant>) -> bool {
        since.is_some_and(|since| Instant::now() >= since + self.times.answer)
    }

    /// Whether the broker owes nothing for too long.
    fn is_answered(&self) -> Result<(), Trouble> {
        match self.session.owed() {
            Some((since, what)) if self.is_over(Some(since)) => {
                let seconds = self.times.answer.as_secs();
                Err(again(format!("the broker lives, but {what} for {seconds} seconds")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Waits for the broker to do its part, unless there is too much to keep: then `next` tells what comes of it.
    async fn wait(&mut self, lasts: impl Fn(&Session) -> bool + Send) -> Result<(), Trouble> {
        let mut answered = Ok(());
        while lasts(&self.session) && !self.session.is_full() {
            if self.take()? {
                continue;
            }
            answered?;
            self.step(Reads::Yes).await?;
            // Also while it says other things without end. What came with this step counts.
            answered = self.is_answered();
        }
        Ok(())
    }

    /// Answers are read again: what was owed in between is not held against the broker.
    fn listen(&mut self) {
        if self.was_idle {
            (self.was_idle, self.heard) = (false, Instant::now());
            self.session.forgive(self.heard);
        }
    }
}

impl Connection for Client {
    async fn next(&mut self) -> Result<Event, Trouble> {
        self.listen();
        loop {
            self.session.fill(Instant::now());
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
        loop {
            self.session.fill(Instant::now());
            if let Err(trouble) = self.step(Reads::No).await {
                return trouble;
            }
        }
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), Trouble> {
        self.listen();
        // Who could not answer asks for nothing.
        self.wait(Session::is_starved).await?;
        let question = self.session.subscribe(to, Instant::now())?;
        self.wait(|session| session.is_asked(question)).await
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), Trouble> {
        self.session.unsubscribe(from)
    }

    async fn publish(&mut self, number: u64, message: &Outgoing) -> Result<(), Trouble> {
        self.session.publish(number, message);
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), Trouble> {
        self.session.settle(tag);
        Ok(())
    }

    async fn release(&mut self, tag: u64) -> Result<(), Trouble> {
        self.session.release(tag);
        Ok(())
    }

    async fn close(mut self) {
        self.session.close();
        // Whether it arrives or not, this is the end.
        _ = timeout(LONGEST_FAREWELL, farewell(&mut self.stream, &mut self.session.outgoing)).await;
    }
}

/// Waits for the broker to close, too: closing with bytes unread would make the system throw away what it has not sent yet,
/// and with it the last outcomes.
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
