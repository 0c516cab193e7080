//! The one thread that writes runs down. Whatever waits for it is written together, in one transaction, and answered once
//! that is committed; where the database cannot be had soon, all of it is refused. The event loop never waits for a disk.

use crate::{Problem, problem::Answer};
use http::StatusCode;
use std::{
    io,
    sync::{Arc, mpsc},
};
use store::{
    DatabaseError,
    served::{Served, Writing},
};
use tokio::sync::oneshot;

/// What may wait, and how much of it is written together.
const MOST_WAITING: usize = 2048;
const MOST_TOGETHER: usize = 256;

type Reply = Box<dyn FnOnce() + Send>;
type Job = Box<dyn FnOnce(&Writing<'_>) -> Result<Reply, DatabaseError> + Send>;

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
        let others =
            |thread: &std::thread::JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(others) {
            _ = thread.join();
        }
    }
}

impl Writer {
    /// Starts the thread, which ends with this.
    pub(crate) fn start(served: Arc<Served>) -> io::Result<Writer> {
        let (sender, jobs) = mpsc::sync_channel(MOST_WAITING);
        let thread =
            std::thread::Builder::new().name("runs".to_owned()).spawn(move || write(&served, &jobs))?;
        Ok(Writer { jobs: Some(sender), thread: Some(thread) })
    }

    /// What the work gives, once it is committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<T, DatabaseError> + Send + 'static,
    ) -> Answer<T> {
        let (sender, answer) = oneshot::channel();
        let job: Job = Box::new(move |writing| {
            let done = work(writing)?;
            // Whoever asked may be gone.
            Ok(Box::new(move || drop(sender.send(done))))
        });
        self.jobs.as_ref().ok_or_else(busy)?.try_send(job).map_err(|_| busy())?;
        answer.await.map_err(|_| busy())
    }
}

fn write(served: &Served, jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let all: Vec<_> = std::iter::once(first).chain(jobs.try_iter().take(MOST_TOGETHER - 1)).collect();
        let written =
            served.together(|writing| all.into_iter().map(|job| job(writing)).collect::<Result<Vec<_>, _>>());
        match written {
            Ok(replies) => replies.into_iter().for_each(|reply| reply()),
            // Those who wait see that nobody will answer.
            Err(error) => crate::say(format_args!("airlock: {error}")),
        }
    }
}

/// Nothing was written.
pub(crate) fn busy() -> Problem {
    let hint = "nothing was done; try again, and see the server's log if it stays so".to_owned();
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "internal", "the database cannot be used now", Some(hint))
}
