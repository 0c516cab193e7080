//! Database writer threads: one for runs, and one for commits that must survive power loss. Queued
//! writes are batched into one transaction and answered after its commit; if the database is
//! unavailable, the whole batch is refused. The event loop never waits for a disk.

use crate::{Problem, problem::Answer};
use http::StatusCode;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
};
use store::{
    DatabaseError,
    server_database::{ServerDatabase, WriteTransaction},
};
use tokio::sync::oneshot;

/// Queue length, and maximum batch size.
const MAX_QUEUED: usize = 2048;
const MAX_BATCH: usize = 256;

/// What a committed write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A crash of this process, but not power loss.
    ProcessCrash,
    /// Power loss. Each commit waits for an fsync, so commits are batched.
    PowerLoss,
}

type CommitCallback = Box<dyn FnOnce() + Send>;
type WriteFn =
    Box<dyn FnOnce(&WriteTransaction<'_>) -> Result<CommitCallback, DatabaseError> + Send>;

/// A queued write, and how to report that it was refused.
struct WriteRequest {
    work: WriteFn,
    refuse: Box<dyn FnOnce(Problem) + Send>,
}

/// The response channel of a caller; answered once.
struct PendingAnswer<T>(Arc<Mutex<Option<oneshot::Sender<Answer<T>>>>>);

impl<T> PendingAnswer<T> {
    fn answer(&self, answer: Answer<T>) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The caller may be gone.
        waiting.map(|waiting| waiting.send(answer));
    }
}

/// Handle of a writer thread.
#[derive(Debug)]
pub(crate) struct DatabaseWriter {
    requests: Option<mpsc::SyncSender<WriteRequest>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Joins the thread at shutdown, so that the database is closed and leaves no WAL file.
impl Drop for DatabaseWriter {
    fn drop(&mut self) {
        self.requests = None;
        let others = |thread: &std::thread::JoinHandle<()>| {
            thread.thread().id() != std::thread::current().id()
        };
        if let Some(thread) = self.thread.take().filter(others) {
            _ = thread.join();
        }
    }
}

impl DatabaseWriter {
    /// Starts the thread; it ends when the writer is dropped.
    pub(crate) fn start(
        database: Arc<ServerDatabase>,
        durability: Durability,
    ) -> io::Result<DatabaseWriter> {
        let (sender, requests) = mpsc::sync_channel(MAX_QUEUED);
        let name = match durability {
            Durability::ProcessCrash => "runs",
            Durability::PowerLoss => "jobs",
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || write(&database, durability, &requests))?;
        Ok(DatabaseWriter {
            requests: Some(sender),
            thread: Some(thread),
        })
    }

    /// Runs `work` in a transaction and returns its result after the commit.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&WriteTransaction<'_>) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answer<T> {
        let (sender, answer) = oneshot::channel();
        let waiting = Arc::new(Mutex::new(Some(sender)));
        let told = PendingAnswer(waiting.clone());
        let refused = PendingAnswer(waiting);
        let work: WriteFn = Box::new(move |transaction| {
            let done = work(transaction)?;
            Ok(Box::new(move || told.answer(Ok(done))))
        });
        let job = WriteRequest {
            work,
            refuse: Box::new(move |problem| refused.answer(Err(problem))),
        };
        self.requests
            .as_ref()
            .ok_or_else(busy)?
            .try_send(job)
            .map_err(|_| busy())?;
        answer.await.unwrap_or_else(|_| Err(busy()))
    }
}

fn write(
    database: &ServerDatabase,
    durability: Durability,
    requests: &mpsc::Receiver<WriteRequest>,
) {
    while let Ok(first) = requests.recv() {
        let all = std::iter::once(first).chain(requests.try_iter().take(MAX_BATCH - 1));
        let (works, refusals): (Vec<_>, Vec<_>) = all.map(|job| (job.work, job.refuse)).unzip();
        let all = |transaction: &WriteTransaction<'_>| {
            works
                .into_iter()
                .map(|work| work(transaction))
                .collect::<Result<Vec<_>, _>>()
        };
        let written = match durability {
            Durability::ProcessCrash => database.transact(all),
            Durability::PowerLoss => database.transact_durably(all),
        };
        match written {
            Ok(replies) => replies.into_iter().for_each(|reply| reply()),
            Err(error) => {
                crate::log_warning(format_args!("airlock: {error}"));
                refusals
                    .into_iter()
                    .for_each(|refuse| refuse(database_problem(&error)));
            }
        }
    }
}

/// The refusal for a failed write: nothing was written.
pub(crate) fn database_problem(error: &DatabaseError) -> Problem {
    if error.is_full() {
        Problem::disk_full()
    } else {
        busy()
    }
}

/// The refusal when the database is unavailable: nothing was written.
pub(crate) fn busy() -> Problem {
    let hint = "nothing was done; try again, and see the server's log if it stays so".to_owned();
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "internal",
        "the database cannot be used now",
        Some(hint),
    )
}
