//! From a connection to answers: takes requests in turn, chooses the script, checks the key, writes the account.

use crate::{
    account::{Book, Call, End, Tokens},
    ask::{Ask, Flow, Plan},
    control,
    route::{self, Operation},
    send::{After, Sender},
    settings::{Script, Settings},
    wire::{Carrier, Gone, Next, Wire},
};
use hyper::{body::Bytes, http::request::Parts};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;

/// What was ordered, in the order in which it is asked: what comes next, of this model, of all others.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) next: VecDeque<Script>,
    pub(crate) models: BTreeMap<String, Script>,
    pub(crate) script: Script,
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) book: Book,
    pub(crate) release: Notify,
    orders: Mutex<Orders>,
    keys: Vec<String>,
    number: AtomicU64,
}

impl Shared {
    pub(crate) fn new(settings: &Settings) -> Shared {
        let orders = Orders {
            next: VecDeque::new(),
            models: settings.models.clone(),
            script: settings.script.clone(),
        };
        Shared {
            book: Book::new(settings.lean),
            release: Notify::new(),
            orders: Mutex::new(orders),
            keys: settings.keys.clone(),
            number: AtomicU64::new(0),
        }
    }

    pub(crate) fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn script(&self, model: &str) -> Script {
        let mut orders = self.orders();
        let next = orders.next.pop_front();
        let script = next.or_else(|| orders.models.get(model).cloned());
        script
            .unwrap_or_else(|| orders.script.clone())
            .for_model(model)
    }
}

/// Takes connections for ever.
pub(crate) async fn listen(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        // Fails when descriptors run out; those that are open go on.
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            continue;
        };
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            let number = shared.book.connection();
            if let Some(carrier) = carrier(socket, tls).await {
                serve(Wire::new(carrier), number, &shared).await;
            }
        });
    }
}

async fn carrier(socket: TcpStream, tls: Option<TlsAcceptor>) -> Option<Carrier> {
    socket.set_nodelay(true).ok()?;
    match tls {
        None => Some(Carrier::Plain(socket)),
        Some(acceptor) => acceptor
            .accept(socket)
            .await
            .ok()
            .map(|stream| Carrier::Tls(Box::new(stream))),
    }
}

async fn serve(mut wire: Wire, connection: u64, shared: &Shared) {
    loop {
        let (head, body) = match wire.next().await {
            Next::Request(head, body, back) => {
                wire = back;
                (head, body)
            }
            Next::Malformed => return shared.book.malformed(),
            Next::Closed => return,
        };
        let last = head
            .headers
            .get("connection")
            .is_some_and(|value| value == "close");
        let after = match control::answer(&head, &body, shared) {
            Some(answer) => wire.send(&answer).await.map(|()| After::Keep),
            None => call(&mut wire, &head, &body, connection, shared).await,
        };
        match after {
            Ok(After::Keep) if !last => {}
            Ok(After::Reset) => return wire.reset(),
            Ok(After::Keep | After::Close) => return wire.close().await,
            Err(Gone) => return,
        }
    }
}

async fn call(
    wire: &mut Wire,
    head: &Parts,
    body: &Bytes,
    connection: u64,
    shared: &Shared,
) -> Result<After, Gone> {
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let (operation, in_path) = Operation::of(&head.method, path, &head.headers);
    let parsed = if body.is_empty() {
        Ok(Ask::default())
    } else {
        serde_json::from_slice::<Ask>(body)
    };
    let readable = parsed.is_ok() || operation == Operation::Unknown;
    let mut ask = parsed.unwrap_or_default();
    ask.model = in_path.or(ask.model);
    let let_in = route::is_let_in(operation, &head.headers, &shared.keys);
    let usable = readable && let_in && operation != Operation::Unknown;
    // An order is for a call that is answered, not for one that is turned away.
    let script = if usable {
        shared.script(ask.model.as_deref().unwrap_or_default())
    } else {
        Script::default()
    };
    let flow = Flow::of(operation, &ask, query);
    let number = shared.number.fetch_add(1, Ordering::Relaxed);
    let lean = shared.book.is_lean();
    let noted = (!lean || script.fault.is_some())
        .then(|| note(head, body, operation, &ask, flow, connection));
    let (headers, keys) = noted
        .as_ref()
        .map(|call| (call.headers.clone(), call.keys.clone()))
        .unwrap_or_default();
    let mut entry = shared.book.begin(noted.filter(|_| !lean));
    let plan = Plan::new(number, operation, &ask, flow, body.len(), script);
    let mut sender = Sender {
        wire,
        entry: &mut entry,
        release: &shared.release,
        headers: &headers,
        keys: &keys,
    };
    match (operation, let_in, readable) {
        (Operation::Unknown, _, _) => {
            sender
                .refuse(&plan, 404, "not_found", "no such route", &[])
                .await
        }
        (_, false, _) => {
            sender
                .refuse(
                    &plan,
                    401,
                    "invalid_api_key",
                    "the key is missing or wrong",
                    &[],
                )
                .await
        }
        (_, true, false) => {
            sender
                .refuse(&plan, 400, "invalid_json", "the body cannot be read", &[])
                .await
        }
        (_, true, true) => sender.answer(plan).await,
    }
}

/// The request, as it is kept.
fn note(
    head: &Parts,
    body: &Bytes,
    operation: Operation,
    ask: &Ask,
    flow: Flow,
    connection: u64,
) -> Call {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value.as_bytes())));
    let digest = Sha256::digest(body);
    Call {
        operation,
        method: head.method.to_string(),
        path: head.uri.to_string(),
        model: ask.model.clone().unwrap_or_default(),
        stream: flow != Flow::Unary,
        cap: ask.cap(operation),
        keys: route::keys_of(&head.headers),
        headers: headers.collect(),
        body: body.to_vec(),
        body_sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        status: 0,
        tokens: Tokens::default(),
        end: End::Open,
        connection,
    }
}
