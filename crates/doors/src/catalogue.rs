//! What the operator configured: providers, names for models, prices. Data alone; read in `app`.

use crate::{dialect::Dialect, price::PriceBook, secrets::KeySource};
use http::{HeaderName, Uri};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Everything that doors are opened with.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// By name.
    pub providers: BTreeMap<String, Arc<Provider>>,
    /// Names that stand for models of providers, in the order in which they are tried.
    pub models: BTreeMap<String, Vec<Target>>,
    /// What models cost.
    pub prices: Arc<PriceBook>,
    /// The node's own model server, for the inference door.
    pub inference: Option<Arc<Provider>>,
    /// Bounds of every door.
    pub bounds: Bounds,
}

/// A model of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Target {
    pub provider: String,
    pub model: String,
}

/// A model provider.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Its name in the configuration.
    pub name: String,
    /// What it speaks.
    pub dialect: Dialect,
    /// Scheme, authority and the path before ours, without a slash at its end.
    pub base: Uri,
    /// Where its credential comes from; none for servers that ask for none.
    pub key: Option<KeySource>,
    /// The credential may travel unencrypted.
    pub allow_plain_http: bool,
    /// The address may be a loopback or private one.
    pub allow_private: bool,
    /// Certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Headers of the program that are passed on beyond those of the dialect.
    pub forward_headers: Vec<HeaderName>,
    /// Whether to tell the provider who is calling (`x-litellm-end-user-id`, for LiteLLM as upstream).
    pub identify: bool,
    /// Whether streams may be asked to end with their usage; some servers refuse the field.
    pub ask_usage: bool,
    /// What the limit of output tokens is called in chat requests that name none.
    pub output_cap: &'static str,
    /// Tools that the provider runs by itself, out of our sight, may be asked for.
    pub server_tools: bool,
    /// What happens upstream when the program goes away in mid-stream.
    pub on_abort: OnAbort,
    /// How often a call that failed before its first byte is tried again.
    pub retries: u32,
    /// How long things may take.
    pub patience: Patience,
}

/// What happens upstream when the program goes away in mid-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAbort {
    /// Read on and discard, within bounds, to learn the usage.
    Drain,
    /// Hang up.
    Cancel,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Patience {
    pub connect: Duration,
    /// Until the head of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
    /// The longest wait that a `Retry-After` is granted.
    pub retry_after: Duration,
}

/// Bounds of every door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Bounds {
    pub body: u64,
    pub header_time: Duration,
    pub body_time: Duration,
    /// Connections of one session.
    pub connections: usize,
    /// Calls of one session at the same time, if its budget says nothing.
    pub concurrent: u32,
    /// What an inference request may take as a whole.
    pub inference_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            body: 32 << 20,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(60),
            connections: 256,
            concurrent: 64,
            inference_time: Duration::from_secs(600),
        }
    }
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Patience {
            connect: seconds(5),
            first_byte: seconds(120),
            idle: seconds(120),
            retry_after: seconds(30),
        }
    }
}

impl Provider {
    /// A provider with the usual settings of its dialect.
    pub fn new(name: impl Into<String>, dialect: Dialect, base: Uri) -> Provider {
        Provider {
            name: name.into(),
            dialect,
            base,
            key: None,
            allow_plain_http: false,
            allow_private: false,
            ca: None,
            forward_headers: Vec::new(),
            identify: false,
            ask_usage: true,
            output_cap: "max_completion_tokens",
            server_tools: false,
            // Anthropic names the input at once, so little is lost; others name nothing before the end.
            on_abort: if dialect == Dialect::Anthropic {
                OnAbort::Cancel
            } else {
                OnAbort::Drain
            },
            retries: 2,
            patience: Patience::default(),
        }
    }
}
