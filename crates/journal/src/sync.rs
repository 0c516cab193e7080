//! Group commit: one `fdatasync` for all records that wait. It runs in a thread of its own, because
//! it blocks for milliseconds.

use std::{
    fs::File,
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
};
use tokio::sync::watch;

/// Makes records durable.
#[derive(Debug)]
pub struct Syncer {
    request: Arc<(Mutex<SyncRequest>, Condvar)>,
    state: watch::Receiver<SyncState>,
    label: &'static str,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SyncRequest {
    n: u64,
    file: Option<Arc<File>>,
    is_closed: bool,
}

#[derive(Clone, Debug)]
enum SyncState {
    UpTo(u64),
    /// Permanent: the kernel drops pages that it could not write, so that a second `fdatasync`
    /// would report success.
    Failed(String),
}

impl Syncer {
    /// Starts the thread; `label` names the journal in errors.
    pub fn start(label: &'static str) -> io::Result<Syncer> {
        let request = Arc::new((Mutex::new(SyncRequest::default()), Condvar::new()));
        let (sender, state) = watch::channel(SyncState::UpTo(0));
        let shared = Arc::clone(&request);
        let thread = std::thread::Builder::new()
            .name(label.to_owned())
            .spawn(move || sync_loop(label, &shared, &sender))?;
        Ok(Syncer {
            request,
            state,
            label,
            thread: Some(thread),
        })
    }

    /// Requests that everything up to record `n` becomes durable.
    pub fn request(&self, n: u64, file: &Arc<File>) {
        let (request, wake) = &*self.request;
        let mut request = request.lock().unwrap_or_else(PoisonError::into_inner);
        request.n = n;
        request.file = Some(Arc::clone(file));
        wake.notify_one();
    }

    /// Waits until everything up to record `n` is durable.
    pub async fn wait(&self, n: u64) -> io::Result<()> {
        let mut state = self.state.clone();
        let is_reached = |state: &SyncState| match state {
            SyncState::UpTo(last) => *last >= n,
            SyncState::Failed(_) => true,
        };
        match state.wait_for(is_reached).await.as_deref() {
            Ok(SyncState::UpTo(_)) => Ok(()),
            Ok(SyncState::Failed(why)) => Err(io::Error::other(why.clone())),
            Err(_) => Err(io::Error::other(format!("the {} is closed", self.label))),
        }
    }
}

fn sync_loop(
    label: &str,
    request: &(Mutex<SyncRequest>, Condvar),
    sender: &watch::Sender<SyncState>,
) {
    let (request, wake) = request;
    loop {
        let guard = request.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |request: &mut SyncRequest| request.file.is_none() && !request.is_closed;
        let mut guard = wake
            .wait_while(guard, is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        let (n, Some(file)) = (guard.n, guard.file.take()) else {
            return;
        };
        drop(guard);
        match rustix::fs::fdatasync(&*file) {
            Ok(()) => sender.send_replace(SyncState::UpTo(n)),
            Err(error) => {
                sender.send_replace(SyncState::Failed(format!(
                    "the {label} cannot be made to last: {error}"
                )));
                return;
            }
        };
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        let (request, wake) = &*self.request;
        request
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_closed = true;
        wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread ends by itself; a panic of it cannot be reported from here.
            _ = thread.join();
        }
    }
}
