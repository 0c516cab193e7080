//! A model provider of a test's own: speaks OpenAI, Anthropic, Gemini and Ollama, checks keys, does wrong what a test orders,
//! and keeps an account of its own of what it served. It runs in its own thread and ends with its handle.
//!
//! ```no_run
//! use provider::{Fault, Provider, Script, Settings};
//! let provider = Provider::start(Settings { keys: vec!["real".into()], ..Settings::default() });
//! provider.next(Fault::Reset); // the next call, then as before
//! provider.set(Script { tokens: 20, pace_ms: 5, ..Script::default() });
//! let served = provider.await_served(|served| served.count == 2 && served.open == 0);
//! assert_eq!(served.tokens.output, 20);
//! ```
//!
//! **Tokens.** One output token is one frame, `tok0 tok1 …`, and counts when its bytes were handed to the socket; those of a
//! unary answer when it is sent. The prompt counts as soon as an answer that is no error begins.

mod account;
mod answer;
mod ask;
mod control;
mod encode;
mod route;
mod send;
mod serve;
mod settings;
mod wire;

pub use account::{Call, End, Served, Tokens};
pub use route::{Dialect, Operation};
pub use settings::{Encoding, Fault, Script, Settings, Tls, Verbatim};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serve::Shared;
use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// The name of its thread: whoever wants to know what it costs finds it by this.
pub const THREAD: &str = "provider";
/// How long a test waits for the account to become as it wants. Long: it only matters when that never happens.
const PATIENCE: Duration = Duration::from_secs(120);

/// A provider that serves until it is dropped.
#[derive(Debug)]
pub struct Provider {
    address: SocketAddr,
    tls: bool,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Provider {
    /// Starts one. Panics when it cannot: a test without its provider proves nothing.
    pub fn start(settings: Settings) -> Provider {
        let listener = TcpListener::bind(settings.listen).expect("the provider can listen");
        let address = listener.local_addr().expect("it has an address");
        listener.set_nonblocking(true).expect("it need not block");
        let acceptor = settings.tls.as_ref().map(acceptor);
        let shared = Arc::new(Shared::new(&settings));
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.expect("a runtime starts").block_on(async {
                    let listener =
                        tokio::net::TcpListener::from_std(listener).expect("it is a listener");
                    tokio::select! {
                        () = serve::listen(listener, acceptor, serving) => {}
                        _ = stopped => {}
                    }
                });
            });
        let thread = thread.expect("a thread starts");
        Provider {
            address,
            tls: settings.tls.is_some(),
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as the beginning of an address of its routes, without a slash at its end.
    pub fn base(&self) -> String {
        format!(
            "{}://{}",
            if self.tls { "https" } else { "http" },
            self.address
        )
    }

    /// What it served so far.
    pub fn served(&self) -> Served {
        self.shared.book.served()
    }

    /// Waits until the account is as wanted; panics with it when it does not become so.
    pub fn await_served(&self, wanted: impl Fn(&Served) -> bool) -> Served {
        let found = self.shared.book.await_served(PATIENCE, wanted);
        found.unwrap_or_else(|| {
            panic!(
                "the account does not become as wanted: {:#?}",
                self.served()
            )
        })
    }

    /// Begins a new account; orders stay.
    pub fn reset(&self) {
        self.shared.book.reset();
    }

    /// How all calls are answered from now on that nothing else speaks of.
    pub fn set(&self, script: impl Into<Script>) {
        self.shared.orders().script = script.into();
    }

    /// How calls of this model are answered from now on.
    pub fn set_model(&self, model: &str, script: impl Into<Script>) {
        self.shared
            .orders()
            .models
            .insert(model.to_owned(), script.into());
    }

    /// How the next call is answered that has no order yet. Orders are taken in turn, one a call.
    pub fn next(&self, script: impl Into<Script>) {
        self.shared.orders().next.push_back(script.into());
    }

    /// Lets go on what is held now: `Served::held` of them.
    pub fn release(&self) {
        self.shared.release.notify_waiters();
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

fn acceptor(tls: &Tls) -> TlsAcceptor {
    let certificates = CertificateDer::pem_slice_iter(&tls.certificates).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(&tls.key).expect("a private key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the versions")
        .with_no_client_auth()
        .with_single_cert(certificates.expect("certificates"), key)
        .expect("the key fits the certificate");
    TlsAcceptor::from(Arc::new(config))
}
