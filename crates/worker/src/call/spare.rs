//! Boxes that are made ahead, behind calls that found no interpreter ready: furnished, and with nobody in them. A call of the
//! same kind that comes next has only its program to start. Each serves one call.

use super::room::{Kind, NoRoom, Room, Rooms};
use crate::tools::Code;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// One that nobody took for so long is ended.
const LIFETIME: Duration = Duration::from_secs(60);
/// How often it is looked for those.
const LOOK: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Spare {
    kind: Kind,
    room: Room,
    born: Instant,
}

#[derive(Debug, Default)]
struct Stock {
    /// The oldest first.
    ready: Vec<Spare>,
    making: usize,
    /// How often code was forgotten: what was begun before may show it.
    forgotten: u64,
    /// Why the last one could not be made, until somebody tells it.
    trouble: Option<String>,
    is_tended: bool,
    is_closed: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Spares {
    rooms: Arc<Rooms>,
    most: usize,
    stock: Mutex<Stock>,
    closing: Notify,
}

impl Spares {
    /// At most so many.
    pub(super) fn new(rooms: Arc<Rooms>, most: usize) -> Arc<Spares> {
        Arc::new(Spares {
            rooms,
            most,
            stock: Mutex::default(),
            closing: Notify::new(),
        })
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A box for a call of this kind, made ahead or now.
    pub(super) async fn open(&self, kind: &Kind) -> Result<Room, NoRoom> {
        let mut dead = Vec::new();
        while let Some(spare) = self.take(kind) {
            if spare.room.stands() {
                return Ok(spare.room);
            }
            dead.push(spare);
        }
        self.rooms.open(kind).await
    }

    fn take(&self, kind: &Kind) -> Option<Spare> {
        let mut stock = self.stock();
        let place = stock
            .ready
            .iter()
            .position(|spare| spare.kind.has_the_box_of(kind))?;
        Some(stock.ready.remove(place))
    }

    /// A call of this kind is over that had used one up: another is made. If there are as many as may be,
    /// one of another kind makes room for it.
    pub(super) fn restock(self: &Arc<Spares>, kind: &Kind) {
        let mut stock = self.stock();
        let is_full = stock.ready.len() + stock.making >= self.most;
        let other = stock
            .ready
            .iter()
            .position(|spare| !spare.kind.has_the_box_of(kind));
        let gone = match other {
            _ if stock.is_closed => return,
            _ if !is_full => None,
            Some(other) => Some(stock.ready.remove(other)),
            None => return,
        };
        stock.making += 1;
        let forgotten = stock.forgotten;
        let tends = !std::mem::replace(&mut stock.is_tended, true);
        drop(stock);
        drop(gone);
        let (spares, kind) = (self.clone(), kind.clone());
        self.rooms
            .behind(async move { spares.make(kind, forgotten).await });
        if tends {
            let spares = self.clone();
            self.rooms.behind(async move { spares.tend().await });
        }
    }

    async fn make(&self, kind: Kind, forgotten: u64) {
        let made = self.rooms.open(&kind).await;
        let mut stock = self.stock();
        stock.making -= 1;
        let unwanted = match made {
            Ok(room) if !stock.is_closed && stock.forgotten == forgotten => {
                stock.ready.push(Spare {
                    kind,
                    room,
                    born: Instant::now(),
                });
                None
            }
            Ok(room) => Some(room),
            Err(why) => {
                stock.trouble = Some(format!("no sandbox could be made ahead: {why}"));
                None
            }
        };
        drop(stock);
        drop(unwanted);
    }

    /// What the log should know.
    pub(super) fn trouble(&self) -> Option<String> {
        self.stock().trouble.take()
    }

    /// Ends those that are old, until there are none.
    async fn tend(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.closing.notified() => {}
            }
            let is_kept = |spare: &Spare| spare.born.elapsed() < LIFETIME && spare.room.stands();
            let mut stock = self.stock();
            let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut stock.ready)
                .into_iter()
                .partition(is_kept);
            stock.ready = kept;
            let is_over = stock.is_closed || stock.ready.is_empty() && stock.making == 0;
            stock.is_tended = !is_over;
            drop(stock);
            drop(gone);
            if is_over {
                return;
            }
        }
    }

    /// Those that show this code are of no use any more.
    pub(super) fn forget(&self, code: &Code) {
        let mut stock = self.stock();
        stock.forgotten += 1;
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut stock.ready)
            .into_iter()
            .partition(|spare| spare.kind.code == *code);
        stock.ready = kept;
        drop(stock);
        drop(gone);
    }

    /// How many are ready.
    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        self.stock().ready.len()
    }

    /// None is made any more, and those that there are are ended.
    pub(super) fn close(&self) {
        let mut stock = self.stock();
        stock.is_closed = true;
        let gone = std::mem::take(&mut stock.ready);
        drop(stock);
        drop(gone);
        self.closing.notify_one();
    }
}
