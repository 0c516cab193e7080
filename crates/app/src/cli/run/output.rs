//! Follows a run to its end: passes output on, feeds standard input, turns signals into a cancel.
//!
//! The reader of the output may be slow or blocked. Writing therefore happens in a separate task
//! behind a short queue: signals and limits keep working, and a full queue slows the program down,
//! as a pipe would.

use super::{
    super::terminal_filter::{FilterLevel, TerminalFilter},
    signals::Signals,
    terminal,
};
use engine::Run;
use spec::{RunEvent, RunResult, StdStream};
use std::{
    io::{self, IsTerminal},
    time::Duration,
};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::unix::pipe,
    sync::mpsc,
    task::JoinHandle,
};

/// Chunks in the output queue; the engine bounds their size.
const QUEUE_CHUNKS: usize = 4;
/// How long a terminal may take to reply to a query.
const TERMINAL_REPLY_TIMEOUT: Duration = Duration::from_millis(100);
/// The exit status after a second Ctrl-C.
const INTERRUPTED: i32 = 130;

/// A finished run, and whether its output was delivered.
#[derive(Debug)]
pub(super) struct FinishedRun {
    pub(super) result: RunResult,
    pub(super) delivery: Delivery,
}

/// How the delivery of the output ended.
#[derive(Debug)]
pub(in crate::cli) enum Delivery {
    Complete,
    /// The reader of stdout or stderr closed the pipe.
    NobodyReads,
    Failed(io::Error),
}

/// Where a run's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum OutputMode {
    /// Nowhere: the output is in the result.
    Nothing,
    /// To stdout and stderr.
    Streams,
    /// To the terminal, which the run has for itself.
    Terminal,
}

/// A chunk of output.
pub(in crate::cli) type OutputChunk = (StdStream, Vec<u8>);

/// The result of waiting for the next event.
pub(in crate::cli) enum Step {
    More,
    OutletClosed,
    Over,
}

/// A warning in the middle of the output, and when it is due after the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimeoutWarning {
    pub(super) after: Duration,
    pub(super) text: String,
}

/// Follows a run to its end and passes its output on.
pub(super) async fn follow(
    mut run: Run,
    mut signals: Signals,
    show: OutputMode,
    warning: Option<TimeoutWarning>,
) -> FinishedRun {
    if let Some(inside) = run.take_stdin() {
        tokio::spawn(copy_stdin(inside));
    }
    if let Some(inside) = run.take_terminal() {
        tokio::spawn(terminal::forward_input(inside));
    }
    let (mut outlet, writer) = open_outlet(show).unzip();
    let mut cancelled = false;
    let mut warning_due = std::pin::pin!(warning_text(warning));
    let mut has_warned = false;
    loop {
        tokio::select! {
            words = &mut warning_due, if !has_warned => {
                has_warned = true;
                // A full queue belongs to a blocked terminal, where nobody would read the warning.
                _ = outlet.as_ref().map(|outlet| outlet.try_send((StdStream::Stdout, words.into_bytes())));
            }
            step = next(&mut run, outlet.as_ref()) => match step {
                Step::More => {}
                Step::OutletClosed => {
                    // A closed pipe cancels the run; its remaining output is drained.
                    outlet = None;
                    run.cancel();
                }
                Step::Over => break,
            },
            () = signals.next() => if cancelled {exit_now()} else {
                    cancelled = true;
                    run.cancel();
                },
        }
    }
    drop(outlet);
    let result = tokio::select! {
        result = run.finish() => result,
        () = signals.next() => exit_now(),
    };
    let delivery = tokio::select! {
        delivery = wait_delivery(writer) => delivery,
        () = signals.next() => exit_now(),
    };
    FinishedRun { result, delivery }
}

/// Waits until the warning is due; for ever without one.
async fn warning_text(warning: Option<TimeoutWarning>) -> String {
    match warning {
        Some(warning) => {
            tokio::time::sleep(warning.after).await;
            warning.text
        }
        None => std::future::pending().await,
    }
}

/// Exits at once. The sandbox dies, too, because its launcher sees the socket close.
pub(in crate::cli) fn exit_now() -> ! {
    terminal::restore();
    terminal::reset_colours();
    std::process::exit(INTERRUPTED)
}

/// Handles one event, taken only when the queue has room. Cancel-safe.
async fn next(run: &mut Run, outlet: Option<&mpsc::Sender<OutputChunk>>) -> Step {
    let room = match outlet {
        None => None,
        Some(outlet) => match outlet.reserve().await {
            Ok(room) => Some(room),
            Err(_) => return Step::OutletClosed,
        },
    };
    match (run.next_event().await, room) {
        (Some(RunEvent::Output { stream, data }), Some(room)) => {
            room.send((stream, data));
            Step::More
        }
        // Denials are reported at the end, outside the program's output.
        (Some(RunEvent::Output { .. } | RunEvent::Started { .. } | RunEvent::Denied(_)), _) => {
            Step::More
        }
        (None, _) => Step::Over,
    }
}

pub(in crate::cli) type Writer = JoinHandle<io::Result<()>>;

pub(in crate::cli) fn open_outlet(show: OutputMode) -> Option<(mpsc::Sender<OutputChunk>, Writer)> {
    let level = match show {
        OutputMode::Nothing => return None,
        OutputMode::Streams => FilterLevel::Lines,
        OutputMode::Terminal => FilterLevel::FullScreen,
    };
    let (sender, receiver) = mpsc::channel(QUEUE_CHUNKS);
    let filter = |is_terminal: bool| is_terminal.then(|| TerminalFilter::new(level));
    let stdout = OutputSink {
        to: tokio::io::stdout(),
        filter: filter(io::stdout().is_terminal()),
    };
    let stderr = OutputSink {
        to: tokio::io::stderr(),
        filter: filter(io::stderr().is_terminal()),
    };
    Some((sender, tokio::spawn(write_chunks(receiver, stdout, stderr))))
}

/// One output stream: unchanged bytes, or filtered for a terminal.
struct OutputSink<W> {
    to: W,
    filter: Option<TerminalFilter>,
}

impl<W: AsyncWrite + Unpin> OutputSink<W> {
    async fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match &mut self.filter {
            None => write_through(&mut self.to, data).await,
            Some(filter) => {
                let shown = filter.show(data);
                // Saved before the output is written, so that an exit meanwhile restores the
                // terminal.
                terminal::save_undo(filter.undo());
                write_through(&mut self.to, &shown).await
            }
        }
    }

    async fn finish(&mut self) -> io::Result<()> {
        match &mut self.filter {
            None => Ok(()),
            Some(filter) => {
                let rest = filter.finish();
                write_through(&mut self.to, &rest).await?;
                if filter.has_queried() {
                    // Waits for the terminal's reply, which the caller's shell would take for typed
                    // text.
                    tokio::time::sleep(TERMINAL_REPLY_TIMEOUT).await;
                }
                terminal::save_undo(Vec::new());
                Ok(())
            }
        }
    }
}

/// Writes chunks in order, each flushed at once. The first error ends the task, which closes the
/// queue.
async fn write_chunks(
    mut chunks: mpsc::Receiver<OutputChunk>,
    mut stdout: OutputSink<impl AsyncWrite + Unpin>,
    mut stderr: OutputSink<impl AsyncWrite + Unpin>,
) -> io::Result<()> {
    while let Some((stream, data)) = chunks.recv().await {
        match stream {
            StdStream::Stdout => stdout.write(&data).await?,
            StdStream::Stderr => stderr.write(&data).await?,
        }
    }
    stdout.finish().await?;
    stderr.finish().await
}

async fn write_through(sink: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> io::Result<()> {
    sink.write_all(data).await?;
    sink.flush().await
}

pub(in crate::cli) async fn wait_delivery(writer: Option<Writer>) -> Delivery {
    let Some(writer) = writer else {
        return Delivery::Complete;
    };
    match writer.await {
        Ok(Ok(())) => Delivery::Complete,
        Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Delivery::NobodyReads,
        Ok(Err(error)) => Delivery::Failed(error),
        Err(broken) => Delivery::Failed(io::Error::other(broken)),
    }
}

/// Copies standard input to the program until either ends; dropping `inside` closes the pipe.
async fn copy_stdin(mut inside: pipe::Sender) {
    // A program that stops reading is no failure, and a read error ends the input.
    let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut inside).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain<W>(to: W) -> OutputSink<W> {
        OutputSink { to, filter: None }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn bytes_arrive_unchanged_and_in_order_on_their_own_stream() {
        let (sender, receiver) = mpsc::channel(8);
        for (stream, data) in [
            (StdStream::Stdout, &b"a\0\xff\r\n"[..]),
            (StdStream::Stderr, b"problem\n"),
            (StdStream::Stdout, b"\x1b[31mb"),
        ] {
            sender.try_send((stream, data.to_vec())).unwrap();
        }
        drop(sender);
        let mut stdout = Vec::new();
        let mut stderr = Vec::new();
        block_on(write_chunks(
            receiver,
            plain(&mut stdout),
            plain(&mut stderr),
        ))
        .unwrap();
        assert_eq!(stdout, b"a\0\xff\r\n\x1b[31mb");
        assert_eq!(stderr, b"problem\n");
    }

    #[test]
    fn a_terminal_gets_only_what_is_fit_for_it_however_it_is_cut() {
        let (sender, receiver) = mpsc::channel(8);
        for data in [&b"a\x1b[3"[..], b"1mred\x1b]52;c;eA==\x07", b"\x1b["] {
            sender.try_send((StdStream::Stdout, data.to_vec())).unwrap();
        }
        drop(sender);
        let mut stdout = Vec::new();
        let sink = OutputSink {
            to: &mut stdout,
            filter: Some(TerminalFilter::new(FilterLevel::Lines)),
        };
        block_on(write_chunks(receiver, sink, plain(Vec::new()))).unwrap();
        assert_eq!(
            String::from_utf8(stdout).unwrap(),
            "a\x1b[31mred^[]52;c;eA==^G^[[\x1b[0m"
        );
    }

    #[test]
    fn a_reader_that_left_closes_the_queue_and_is_told_from_other_failures() {
        let (sender, receiver) = mpsc::channel(8);
        let (ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        sender.try_send((StdStream::Stdout, b"x".to_vec())).unwrap();
        let delivery = block_on(async {
            let writer = tokio::spawn(write_chunks(receiver, plain(ours), plain(Vec::new())));
            wait_delivery(Some(writer)).await
        });
        assert!(matches!(delivery, Delivery::NobodyReads), "{delivery:?}");
        assert!(sender.is_closed());
    }

    #[test]
    fn a_full_disk_is_a_failure_of_delivery() {
        let (sender, receiver) = mpsc::channel(8);
        sender.try_send((StdStream::Stdout, b"x".to_vec())).unwrap();
        let delivery = block_on(async {
            let full = std::fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap();
            let writer = tokio::spawn(write_chunks(
                receiver,
                plain(Blocking(full)),
                plain(Vec::new()),
            ));
            wait_delivery(Some(writer)).await
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
