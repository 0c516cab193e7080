//! The provider's own account of what it served: written while bytes leave, from nothing that the caller claims.

use crate::route::Operation;
use serde::{Serialize, Serializer};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Calls beyond these are summed up, not listed.
const MOST_CALLS: usize = 200_000;

/// Tokens of one call or of many, each kind by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Of the prompt, without those of the cache.
    pub input: u64,
    /// Of the prompt, read from the cache.
    pub cache_read: u64,
    /// Of the prompt, written to the cache for five minutes.
    pub cache_write_5m: u64,
    /// Of the prompt, written to the cache for an hour.
    pub cache_write_1h: u64,
    /// Handed to the socket.
    pub output: u64,
    /// Thought before the first of these.
    pub reasoning: u64,
}

impl Tokens {
    /// The whole prompt.
    pub fn prompt(&self) -> u64 {
        self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h
    }

    /// All that was generated.
    pub fn generated(&self) -> u64 {
        self.output + self.reasoning
    }

    fn add(&mut self, more: &Tokens) {
        self.input += more.input;
        self.cache_read += more.cache_read;
        self.cache_write_5m += more.cache_write_5m;
        self.cache_write_1h += more.cache_write_1h;
        self.output += more.output;
        self.reasoning += more.reasoning;
    }
}

/// How a call ended, as the provider sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It goes on.
    Open,
    /// The answer left as a whole.
    Whole,
    /// The fault that was ordered ended it.
    Fault,
    /// The client went away before.
    Gone,
}

/// One call, as it came in and as it was answered.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Which route.
    pub operation: Operation,
    /// The method.
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    /// The model asked for.
    pub model: String,
    /// Asked for a stream.
    pub stream: bool,
    /// The caller's cap of output tokens.
    pub cap: Option<u64>,
    /// The secret in `authorization` (without `Bearer `), `x-api-key` or `x-goog-api-key`: all that came.
    pub keys: Vec<String>,
    /// All headers, in their order, names in small letters.
    pub headers: Vec<(String, String)>,
    /// The body.
    #[serde(serialize_with = "as_text")]
    pub body: Vec<u8>,
    /// Its SHA-256, in hexadecimal.
    pub body_sha256: String,
    /// The status answered, 0 before that.
    pub status: u16,
    /// What was served.
    pub tokens: Tokens,
    /// How it ended.
    pub end: End,
    /// Which connection carried it, counted from 1.
    pub connection: u64,
}

impl Call {
    /// The value of this header, if it came.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(one, _)| one == name)
            .map(|(_, value)| value.as_str())
    }
}

fn as_text<S: Serializer>(body: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(body))
}

/// Everything that was served since the start or the last reset.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Served {
    /// Each call, in the order in which they came; empty when lean.
    pub calls: Vec<Call>,
    /// How many came, listed or not.
    pub count: u64,
    /// How many have not ended.
    pub open: u64,
    /// How many of these wait for `Provider::release`.
    pub held: u64,
    /// The sum of all their tokens.
    pub tokens: Tokens,
    /// Connections that were opened.
    pub connections: u64,
    /// What came and was no HTTP request.
    pub malformed: u64,
}

impl Served {
    /// The calls of one route.
    pub fn of(&self, operation: Operation) -> impl Iterator<Item = &Call> {
        self.calls
            .iter()
            .filter(move |call| call.operation == operation)
    }
}

#[derive(Debug, Default)]
struct Pages {
    served: Served,
    /// Calls of a time before the last reset count nowhere.
    generation: u64,
    lean: bool,
}

/// The book that all connections write to.
#[derive(Clone, Debug)]
pub(crate) struct Book(Arc<(Mutex<Pages>, Condvar)>);

impl Book {
    pub(crate) fn new(lean: bool) -> Book {
        Book(Arc::new((
            Mutex::new(Pages {
                lean,
                ..Pages::default()
            }),
            Condvar::new(),
        )))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // A test that fails while it holds this has said why itself.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Pages) -> R) -> R {
        let result = change(&mut self.pages());
        self.0.1.notify_all();
        result
    }

    pub(crate) fn is_lean(&self) -> bool {
        self.pages().lean
    }

    pub(crate) fn served(&self) -> Served {
        self.pages().served.clone()
    }

    /// Waits until the account is as wanted.
    pub(crate) fn await_served(
        &self,
        patience: Duration,
        wanted: impl Fn(&Served) -> bool,
    ) -> Option<Served> {
        let deadline = Instant::now() + patience;
        let mut pages = self.pages();
        while !wanted(&pages.served) {
            let left = deadline.checked_duration_since(Instant::now())?;
            pages = self
                .0
                .1
                .wait_timeout(pages, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Some(pages.served.clone())
    }

    pub(crate) fn reset(&self) {
        self.change(|pages| {
            pages.served = Served::default();
            pages.generation += 1;
        });
    }

    /// A new connection; its number.
    pub(crate) fn connection(&self) -> u64 {
        self.change(|pages| {
            pages.served.connections += 1;
            pages.served.connections
        })
    }

    pub(crate) fn malformed(&self) {
        self.change(|pages| pages.served.malformed += 1);
    }

    /// A call has come. `None` when the list is not kept.
    pub(crate) fn begin(&self, call: Option<Call>) -> Entry {
        let mut pages = self.pages();
        pages.served.count += 1;
        pages.served.open += 1;
        let fits = pages.served.calls.len() < MOST_CALLS;
        let index = call.filter(|_| fits).map(|call| {
            pages.served.calls.push(call);
            pages.served.calls.len() - 1
        });
        let generation = pages.generation;
        drop(pages);
        self.0.1.notify_all();
        Entry {
            book: self.clone(),
            generation,
            index,
            ended: false,
            held: false,
        }
    }
}

/// The line of one call. Dropped without an end, the client has gone.
#[derive(Debug)]
pub(crate) struct Entry {
    book: Book,
    generation: u64,
    index: Option<usize>,
    ended: bool,
    held: bool,
}

impl Entry {
    fn change(&self, change: impl FnOnce(&mut Served, Option<usize>)) {
        self.book.change(|pages| {
            if pages.generation == self.generation {
                change(&mut pages.served, self.index);
            }
        });
    }

    pub(crate) fn status(&self, status: u16) {
        self.change(|served, index| {
            index
                .into_iter()
                .for_each(|index| served.calls[index].status = status);
        });
    }

    pub(crate) fn serve(&self, tokens: Tokens) {
        self.change(|served, index| {
            served.tokens.add(&tokens);
            index
                .into_iter()
                .for_each(|index| served.calls[index].tokens.add(&tokens));
        });
    }

    /// It waits for a release, or no longer. One that goes while it waits stays counted until its end.
    pub(crate) fn held(&mut self, held: bool) {
        let change = u64::from(held).wrapping_sub(u64::from(self.held));
        self.held = held;
        self.change(|served, _| served.held = served.held.wrapping_add(change));
    }

    /// One more frame has left.
    pub(crate) fn token(&self) {
        self.serve(Tokens {
            output: 1,
            ..Tokens::default()
        });
    }

    pub(crate) fn end(&mut self, end: End) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.held(false);
        self.change(|served, index| {
            served.open -= 1;
            index
                .into_iter()
                .for_each(|index| served.calls[index].end = end);
        });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.end(End::Gone);
    }
}
