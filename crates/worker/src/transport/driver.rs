//! One connection: moves bytes between a stream and whatever speaks the protocol, and watches the clock. Nothing is lost when a
//! wait is given up: what was read and what is to be written lies in the connection, not in the wait.

use super::{Connection, Event, Outgoing, Subscription, Trouble, again, silence, stream::Stream};
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

const READ_AT_ONCE: usize = 16 << 10;
/// With so many bytes waiting to be written besides messages nothing is read: what comes wants answers, too.
const MOST_UNWRITTEN: usize = 1 << 20;
/// A farewell is a courtesy.
pub(super) const LONGEST_FAREWELL: Duration = Duration::from_secs(2);

/// A protocol, once the broker has let us in: bytes in, events and bytes out. It waits for nothing.
pub trait Speaker: Send {
    /// Takes one thing of what was read; false if there is no whole one.
    fn take(&mut self, incoming: &mut BytesMut) -> Result<bool, Trouble>;

    /// Bytes that wait to be written.
    fn outgoing(&mut self) -> &mut BytesMut;

    /// Moves messages on for which there is room.
    fn fill(&mut self, now: Instant) -> Result<(), Trouble>;

    /// What comes next, if it is here.
    fn event(&mut self) -> Option<Event>;

    /// Whether so much is kept that nothing more should be read before it is taken.
    fn is_full(&self) -> bool;

    /// What the broker owes for longest, in words, and since when.
    fn owed(&self) -> Option<(Instant, &'static str)>;

    /// Waits no longer for answers to messages that were sent by then: each is told as [`Event::Unanswered`]. False if there
    /// are none.
    fn give_up(&mut self, sent_by: Instant, why: &str) -> bool;

    /// Answers could not be read for so long, until now: that is no time of theirs.
    fn forgive(&mut self, lost: Duration, now: Instant);

    /// Whether we could not answer what we would get.
    fn is_mute(&self) -> bool {
        false
    }

    /// See [`Connection::subscribe`]. Gives the number of the question.
    fn subscribe(&mut self, to: &Subscription, now: Instant) -> Result<u32, Trouble>;

    /// Whether that is not answered.
    fn is_asked(&self, question: u32) -> bool;

    /// See [`Connection::unsubscribe`].
    fn unsubscribe(&mut self, from: &Subscription, now: Instant) -> Result<(), Trouble>;

    /// See [`Connection::publish`].
    fn publish(&mut self, number: u64, message: &Outgoing);

    /// See [`Connection::settle`].
    fn settle(&mut self, tag: u64);

    /// See [`Connection::release`].
    fn release(&mut self, _tag: u64) {}

    /// Words that only say that we are there.
    fn beat(&mut self);

    /// The last words.
    fn close(&mut self);

    /// The broker closed the connection.
    fn closed(&mut self) -> Trouble {
        again("the broker closed the connection")
    }
}

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Nothing is said for longer than this, by either side; then we say something.
    pub(super) speak: Duration,
    /// Then the broker does, or is taken for dead.
    pub(super) hear: Duration,
    /// For an answer, and for a piece of what we write to be taken.
    pub(super) answer: Duration,
}

/// One connection to a broker.
pub struct Driver<S> {
    stream: Box<dyn Stream>,
    incoming: BytesMut,
    pub(super) speaker: S,
    times: Times,
    is_unflushed: bool,
    /// How much of what waits to be written goes as far as the last message: while a large one is written, we read.
    added: usize,
    sent: Instant,
    heard: Instant,
    /// Since when we have said that we are there and heard nothing.
    beaten: Option<Instant>,
    /// Since when nothing of what waits was written.
    stuck: Option<Instant>,
    /// Since when answers are not read.
    unread: Option<Instant>,
}

impl<S> fmt::Debug for Driver<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Driver")
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reads {
    Yes,
    No,
}

impl<S: Speaker> Driver<S> {
    /// Goes on where the greeting ended. `incoming` has what was read beyond it.
    pub(super) fn new(
        stream: Box<dyn Stream>,
        incoming: BytesMut,
        speaker: S,
        times: Times,
    ) -> Driver<S> {
        let (sent, heard) = (Instant::now(), Instant::now());
        let (is_unflushed, added, beaten, stuck, unread) = (false, 0, None, None, None);
        Driver {
            stream,
            incoming,
            speaker,
            times,
            is_unflushed,
            added,
            sent,
            heard,
            beaten,
            stuck,
            unread,
        }
    }

    /// Waits until something was read or written, or the clock says that something must be done.
    async fn step(&mut self, reads: Reads) -> Result<(), Trouble> {
        let unwritten = self.speaker.outgoing().len();
        self.added = self.added.min(unwritten);
        let has_room = unwritten < self.added + MOST_UNWRITTEN;
        let reads = if has_room { reads } else { Reads::No };
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
                Err(self.speaker.closed())
            }
            Some(Err(error)) => Err(again(format!("the connection broke: {error}"))),
            None => self.late(reads),
        }
    }

    fn fill(&mut self) -> Result<(), Trouble> {
        let before = self.speaker.outgoing().len();
        let filled = self.speaker.fill(Instant::now());
        let after = self.speaker.outgoing().len();
        if after > before {
            self.added = after;
        }
        filled
    }

    fn waits_to_write(&mut self) -> bool {
        self.is_unflushed || !self.speaker.outgoing().is_empty()
    }

    fn poll_move(&mut self, context: &mut Context<'_>, reads: Reads) -> Poll<io::Result<()>> {
        let wrote = self.poll_write(context)?;
        let read = reads == Reads::Yes && self.poll_read(context)?;
        if wrote || read {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// True if something was written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        let outgoing = self.speaker.outgoing();
        while !outgoing.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, outgoing) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => outgoing.advance(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            (wrote, self.is_unflushed) = (true, true);
        }
        if self.is_unflushed && outgoing.is_empty() {
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
                (self.heard, self.beaten) = (Instant::now(), None);
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(false),
        }
    }

    /// When something must be said to stay alive, or to see whether the broker is; none while something else is said.
    fn beat_due(&mut self, reads: Reads) -> Option<Instant> {
        let last = match (reads, self.beaten) {
            (Reads::Yes, None) => self.sent.min(self.heard),
            (Reads::Yes, Some(_)) | (Reads::No, _) => self.sent,
        };
        (!self.waits_to_write()).then(|| last + self.times.speak)
    }

    /// When the clock will have something to say.
    fn due(&mut self, reads: Reads) -> Instant {
        let times = self.times;
        let stuck = self.stuck.map(|since| since + times.answer);
        let (silence, owed) = match reads {
            Reads::Yes => (self.beaten, self.speaker.owed()),
            // Silence proves nothing to those who do not listen.
            Reads::No => (None, None),
        };
        let silence = silence.map(|since| since + times.hear);
        let owed = owed.map(|(since, _)| since + times.answer);
        let all = [stuck, silence, owed, self.beat_due(reads)];
        // One of them is always there: either something waits to be written, or something is due to be.
        all.into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + times.speak)
    }

    fn late(&mut self, reads: Reads) -> Result<(), Trouble> {
        let (now, Times { hear, answer, .. }) = (Instant::now(), self.times);
        if self.stuck.is_some_and(|since| now >= since + answer) {
            let seconds = answer.as_secs();
            return Err(silence(format!(
                "the broker takes nothing of what is written for {seconds} seconds"
            )));
        }
        if reads == Reads::Yes {
            if self.beaten.is_some_and(|since| now >= since + hear) {
                let seconds = hear.as_secs();
                return Err(silence(format!(
                    "the broker has not been heard for {seconds} seconds"
                )));
            }
            self.is_answered()?;
        }
        if self.beat_due(reads).is_some_and(|due| now >= due) {
            self.speaker.beat();
            self.sent = now;
            self.beaten = (reads == Reads::Yes).then(|| self.beaten.unwrap_or(now));
        }
        Ok(())
    }

    /// Whether the broker owes nothing for too long. It may owe an answer to a message for what that message is, which is told
    /// first.
    fn is_answered(&mut self) -> Result<(), Trouble> {
        let seconds = self.times.answer.as_secs();
        let why = format!("the broker has left a message unanswered for {seconds} s");
        let sent_by = Instant::now().checked_sub(self.times.answer);
        if sent_by.is_some_and(|sent_by| self.speaker.give_up(sent_by, &why)) {
            return Ok(());
        }
        match self.speaker.owed() {
            Some((since, what)) if Instant::now() >= since + self.times.answer => Err(silence(
                format!("the broker lives, but {what} for {seconds} seconds"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Waits for the broker to do its part, unless there is too much to keep: then `next` tells what comes of it.
    async fn wait(&mut self, lasts: impl Fn(&S) -> bool + Send) -> Result<(), Trouble> {
        let mut has_waited = false;
        while lasts(&self.speaker) && !self.speaker.is_full() {
            if self.speaker.take(&mut self.incoming)? {
                continue;
            }
            // Also while it says other things without end. What came with the last step counts.
            if std::mem::replace(&mut has_waited, true) {
                self.is_answered()?;
            }
            self.step(Reads::Yes).await?;
        }
        Ok(())
    }

    /// Answers are read again: the time in between is not held against the broker, and no more than that. It is often short.
    fn listen(&mut self) {
        if let Some(since) = self.unread.take() {
            (self.heard, self.beaten) = (Instant::now(), None);
            self.speaker.forgive(self.heard - since, self.heard);
        }
    }

    /// Waits for the broker to close, too: closing with bytes unread would make the system throw away what it has not sent
    /// yet, and with it what was settled last.
    async fn farewell(&mut self) -> io::Result<()> {
        self.stream.write_all_buf(self.speaker.outgoing()).await?;
        self.stream.flush().await?;
        self.stream.shutdown().await?;
        let mut rest = BytesMut::new();
        while self.stream.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        Ok(())
    }
}

impl<S: Speaker> Connection for Driver<S> {
    async fn next(&mut self) -> Result<Event, Trouble> {
        self.listen();
        loop {
            self.fill()?;
            if let Some(event) = self.speaker.event() {
                return Ok(event);
            }
            if !self.speaker.take(&mut self.incoming)? {
                self.step(Reads::Yes).await?;
            }
        }
    }

    async fn idle(&mut self) -> Trouble {
        self.unread.get_or_insert_with(Instant::now);
        self.beaten = None;
        loop {
            if let Err(trouble) = self.fill() {
                return trouble;
            }
            if let Err(trouble) = self.step(Reads::No).await {
                return trouble;
            }
        }
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), Trouble> {
        self.listen();
        self.wait(S::is_mute).await?;
        let question = self.speaker.subscribe(to, Instant::now())?;
        self.wait(|speaker| speaker.is_asked(question)).await
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), Trouble> {
        self.speaker.unsubscribe(from, Instant::now())
    }

    async fn publish(&mut self, number: u64, message: &Outgoing) -> Result<(), Trouble> {
        self.speaker.publish(number, message);
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), Trouble> {
        self.speaker.settle(tag);
        Ok(())
    }

    async fn release(&mut self, tag: u64) -> Result<(), Trouble> {
        self.speaker.release(tag);
        Ok(())
    }

    async fn close(mut self) {
        self.speaker.close();
        // Whether it arrives or not, this is the end.
        _ = timeout(LONGEST_FAREWELL, self.farewell()).await;
    }
}
