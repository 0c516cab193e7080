//! Follows a run to its end: passes output on as it comes, feeds standard input, turns signals into a cancel.
//!
//! Whoever reads our output may be slow or stand still. Writing therefore happens in a task of its own, behind a
//! short queue: signals and the run's own limits keep working, and a full queue slows the program down, as
//! a pipe would.

use super::signals::Signals;
use engine::Run;
use spec::{Event, RunResult, Stream};
use std::io;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::unix::pipe,
    sync::mpsc,
    task::JoinHandle,
};

/// Pieces of output on their way to whoever reads; each is as large as the engine makes it.
const QUEUE: usize = 4;
/// The status of a second Ctrl-C.
const INTERRUPTED: i32 = 130;

/// How a run ended, and whether its output arrived.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) result: RunResult,
    pub(super) delivery: Delivery,
}

/// What became of the output.
#[derive(Debug)]
pub(super) enum Delivery {
    Complete,
    /// The other end of our stdout or stderr was closed.
    NobodyReads,
    Failed(io::Error),
}

type Piece = (Stream, Vec<u8>);

enum Step {
    More,
    OutletClosed,
    Over,
}

/// Follows `run` to its end, with its output passed on if `live`.
pub(super) async fn follow(mut run: Run, mut signals: Signals, live: bool) -> Ending {
    if let Some(inside) = run.take_stdin() {
        tokio::spawn(feed(inside));
    }
    let (mut outlet, writer) = match live {
        true => open_outlet(),
        false => (None, None),
    };
    let mut cancelled = false;
    loop {
        tokio::select! {
            step = next(&mut run, outlet.as_ref()) => match step {
                Step::More => {}
                Step::OutletClosed => {
                    // As if the program itself had written there: it ends. What it still says is drained.
                    outlet = None;
                    run.cancel();
                }
                Step::Over => break,
            },
            () = signals.next() => match cancelled {
                true => leave_at_once(),
                false => {
                    cancelled = true;
                    run.cancel();
                }
            },
        }
    }
    drop(outlet);
    let result = tokio::select! {
        result = run.finish() => result,
        () = signals.next() => leave_at_once(),
    };
    let delivery = tokio::select! {
        delivery = delivered(writer) => delivery,
        () = signals.next() => leave_at_once(),
    };
    Ending { result, delivery }
}

/// The box dies with us: its launcher sees our end of the socket close.
fn leave_at_once() -> ! {
    std::process::exit(INTERRUPTED)
}

/// One event, taken only when there is room for it. Nothing is lost if this is dropped while waiting.
async fn next(run: &mut Run, outlet: Option<&mpsc::Sender<Piece>>) -> Step {
    let room = match outlet {
        None => None,
        Some(outlet) => match outlet.reserve().await {
            Ok(room) => Some(room),
            Err(_) => return Step::OutletClosed,
        },
    };
    match (run.next_event().await, room) {
        (Some(Event::Output { stream, data }), Some(room)) => {
            room.send((stream, data));
            Step::More
        }
        // What was denied is said at the end, where it does not break into the program's output.
        (Some(Event::Output { .. } | Event::Started { .. } | Event::Denied(_)), _) => Step::More,
        (None, _) => Step::Over,
    }
}

type Writer = JoinHandle<io::Result<()>>;

fn open_outlet() -> (Option<mpsc::Sender<Piece>>, Option<Writer>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let writer = tokio::spawn(deliver(receiver, tokio::io::stdout(), tokio::io::stderr()));
    (Some(sender), Some(writer))
}

/// Writes pieces in the order they came, each flushed at once. Ends at the first failure, which closes the queue.
async fn deliver(
    mut pieces: mpsc::Receiver<Piece>,
    mut stdout: impl AsyncWrite + Unpin,
    mut stderr: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some((stream, data)) = pieces.recv().await {
        match stream {
            Stream::Stdout => write_through(&mut stdout, &data).await?,
            Stream::Stderr => write_through(&mut stderr, &data).await?,
        }
    }
    Ok(())
}

async fn write_through(sink: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> io::Result<()> {
    sink.write_all(data).await?;
    sink.flush().await
}

async fn delivered(writer: Option<Writer>) -> Delivery {
    let Some(writer) = writer else { return Delivery::Complete };
    match writer.await {
        Ok(Ok(())) => Delivery::Complete,
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Delivery::NobodyReads,
        Ok(Err(error)) => Delivery::Failed(error),
        Err(broken) => Delivery::Failed(io::Error::other(broken)),
    }
}

/// Copies our standard input to the program's until either ends; dropping `inside` closes it.
async fn feed(mut inside: pipe::Sender) {
    // A program that stops reading is no failure of the run, and an unreadable input ends like an empty one.
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut inside).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn bytes_arrive_unchanged_and_in_order_on_their_own_stream() {
        let (sender, receiver) = mpsc::channel(8);
        for (stream, data) in [
            (Stream::Stdout, &b"a\0\xff\r\n"[..]),
            (Stream::Stderr, b"problem\n"),
            (Stream::Stdout, b"\x1b[31mb"),
        ] {
            sender.try_send((stream, data.to_vec())).unwrap();
        }
        drop(sender);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        block_on(deliver(receiver, &mut stdout, &mut stderr)).unwrap();
        assert_eq!(stdout, b"a\0\xff\r\n\x1b[31mb");
        assert_eq!(stderr, b"problem\n");
    }

    #[test]
    fn a_reader_that_left_closes_the_queue_and_is_told_from_other_failures() {
        let (sender, receiver) = mpsc::channel(8);
        let (ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        sender.try_send((Stream::Stdout, b"x".to_vec())).unwrap();
        let delivery = block_on(async {
            let writer = tokio::spawn(deliver(receiver, ours, Vec::new()));
            delivered(Some(writer)).await
        });
        assert!(matches!(delivery, Delivery::NobodyReads), "{delivery:?}");
        assert!(sender.is_closed());
    }

    #[test]
    fn a_full_disk_is_a_failure_of_delivery() {
        let (sender, receiver) = mpsc::channel(8);
        sender.try_send((Stream::Stdout, b"x".to_vec())).unwrap();
        let delivery = block_on(async {
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let writer = tokio::spawn(deliver(receiver, Blocking(full), Vec::new()));
            delivered(Some(writer)).await
        });
        assert!(matches!(delivery, Delivery::Failed(_)), "{delivery:?}");
    }

    /// A file as an asynchronous sink, good enough where a write does not wait.
    struct Blocking(std::fs::File);

    impl AsyncWrite for Blocking {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            data: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Ready(io::Write::write(&mut &self.0, data))
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }
}
