//! Threads that write things down: one runs, one what must outlast a power cut. Whatever waits for one is written together,
//! in one transaction, and answered once that is committed; where the database cannot be had soon, all of it is refused. The event loop never waits for a disk.

use crate::{Problem, problem::Answer};
use http::StatusCode;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
};
use store::{
    DatabaseError,
    served::{Served, Writing},
};
use tokio::sync::oneshot;

/// What may wait, and how much of it is written together.
const MOST_WAITING: usize = 2048;
const MOST_TOGETHER: usize = 256;

/// What may take back what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// A power cut, but no end of this process.
    OutOurEnd,
    /// Nothing. A commit waits for the disk, so that many are made together.
    OutPowerCuts,
}

type Reply = Box<dyn FnOnce() + Send>;
type Work = Box<dyn FnOnce(&Writing<'_>) -> Result<Reply, DatabaseError> + Send>;

/// What is to be written, and how whoever asked is told that nothing was.
struct Job {
    work: Work,
    refuse: Box<dyn FnOnce(Problem) + Send>,
}

/// Who waits for the answer, until somebody gives it.
struct Waiting<T>(Arc<Mutex<Option<oneshot::Sender<Answer<T>>>>>);

impl<T> Waiting<T> {
    fn answer(&self, answer: Answer<T>) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Whoever asked may be gone.
        waiting.map(|waiting| waiting.send(answer));
    }
}

/// Where to have something written.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The database is closed when the server ends, so that nothing of it is left beside its file.
impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        let others = |thread: &std::thread::JoinHandle<()>| {
            thread.thread().id() != std::thread::current().id()
        };
        if let Some(thread) = self.thread.take().filter(others) {
            _ = thread.join();
        }
    }
}

impl Writer {
    /// Starts the thread, which ends with this.
    pub(crate) fn start(served: Arc<Served>, lasts: Lasts) -> io::Result<Writer> {
        let (sender, jobs) = mpsc::sync_channel(MOST_WAITING);
        let name = match lasts {
            Lasts::OutOurEnd => "runs",
            Lasts::OutPowerCuts => "jobs",
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || write(&served, lasts, &jobs))?;
        Ok(Writer {
            jobs: Some(sender),
            thread: Some(thread),
        })
    }

    /// What the work gives, once it is committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answer<T> {
        let (sender, answer) = oneshot::channel();
        let waiting = Arc::new(Mutex::new(Some(sender)));
        let (told, refused) = (Waiting(waiting.clone()), Waiting(waiting));
        let work: Work = Box::new(move |writing| {
            let done = work(writing)?;
            Ok(Box::new(move || told.answer(Ok(done))))
        });
        let job = Job {
            work,
            refuse: Box::new(move |problem| refused.answer(Err(problem))),
        };
        self.jobs
            .as_ref()
            .ok_or_else(busy)?
            .try_send(job)
            .map_err(|_| busy())?;
        answer.await.unwrap_or_else(|_| Err(busy()))
    }
}

fn write(served: &Served, lasts: Lasts, jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let all = std::iter::once(first).chain(jobs.try_iter().take(MOST_TOGETHER - 1));
        let (works, refusals): (Vec<_>, Vec<_>) = all.map(|job| (job.work, job.refuse)).unzip();
        let all = |writing: &Writing<'_>| {
            works
                .into_iter()
                .map(|work| work(writing))
                .collect::<Result<Vec<_>, _>>()
        };
        let written = match lasts {
            Lasts::OutOurEnd => served.together(all),
            Lasts::OutPowerCuts => served.together_durably(all),
        };
        match written {
            Ok(replies) => replies.into_iter().for_each(|reply| reply()),
            Err(error) => {
                crate::say(format_args!("airlock: {error}"));
                refusals
                    .into_iter()
                    .for_each(|refuse| refuse(refusal(&error)));
            }
        }
    }
}

/// What whoever asked is told of it: nothing was written.
pub(crate) fn refusal(error: &DatabaseError) -> Problem {
    match error.is_full() {
        true => Problem::full(),
        false => busy(),
    }
}

/// Nothing was written.
pub(crate) fn busy() -> Problem {
    let hint = "nothing was done; try again, and see the server's log if it stays so".to_owned();
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "internal",
        "the database cannot be used now",
        Some(hint),
    )
}
