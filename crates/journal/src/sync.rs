//! Group commit: many wait, one `fdatasync` answers them all. A thread of its own, because it blocks for milliseconds.

use std::{
    fs::File,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
};
use tokio::sync::watch;

/// Makes lines outlast the power.
#[derive(Debug)]
pub struct Syncer {
    wanted: Arc<(Mutex<Wanted>, Condvar)>,
    done: watch::Receiver<Done>,
    called: &'static str,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Wanted {
    n: u64,
    file: Option<Arc<File>>,
    over: bool,
}

#[derive(Clone, Debug)]
enum Done {
    UpTo(u64),
    /// For good: what a failed sync did not write is dropped, and a second one would tell a lie.
    Failed(String),
}

impl Syncer {
    /// Starts its thread; `called` is what the journal is called in what is said of it.
    pub fn start(called: &'static str) -> io::Result<Syncer> {
        let wanted = Arc::new((Mutex::new(Wanted::default()), Condvar::new()));
        let (tell, done) = watch::channel(Done::UpTo(0));
        let theirs = Arc::clone(&wanted);
        let thread = std::thread::Builder::new()
            .name(called.to_owned())
            .spawn(move || work(called, &theirs, &tell))?;
        Ok(Syncer {
            wanted,
            done,
            called,
            thread: Some(thread),
        })
    }

    /// Asks that everything up to record `n` last.
    pub fn want(&self, n: u64, file: &Arc<File>) {
        let (wanted, wake) = &*self.wanted;
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        (wanted.n, wanted.file) = (n, Some(Arc::clone(file)));
        wake.notify_one();
    }

    /// Waits until everything up to record `n` lasts.
    pub async fn wait(&self, n: u64) -> io::Result<()> {
        let mut done = self.done.clone();
        let reached = |done: &Done| match done {
            Done::UpTo(last) => *last >= n,
            Done::Failed(_) => true,
        };
        match done.wait_for(reached).await.as_deref() {
            Ok(Done::UpTo(_)) => Ok(()),
            Ok(Done::Failed(why)) => Err(io::Error::other(why.clone())),
            Err(_) => Err(io::Error::other(format!("the {} is closed", self.called))),
        }
    }
}

fn work(called: &str, wanted: &(Mutex<Wanted>, Condvar), tell: &watch::Sender<Done>) {
    let (wanted, wake) = wanted;
    loop {
        let guard = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |wanted: &mut Wanted| wanted.file.is_none() && !wanted.over;
        let mut guard = wake
            .wait_while(guard, waits)
            .unwrap_or_else(PoisonError::into_inner);
        let (n, Some(file)) = (guard.n, guard.file.take()) else {
            return;
        };
        drop(guard);
        match rustix::fs::fdatasync(&*file) {
            Ok(()) => tell.send_replace(Done::UpTo(n)),
            Err(error) => {
                tell.send_replace(Done::Failed(format!(
                    "the {called} cannot be made to last: {error}"
                )));
                return;
            }
        };
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        let (wanted, wake) = &*self.wanted;
        wanted.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It ends by itself; that it panicked is of no use to anybody here.
            let _ = thread.join();
        }
    }
}
