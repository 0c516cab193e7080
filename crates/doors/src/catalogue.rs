//! The configured catalogue: providers, model aliases, prices and limits. Plain data; parsed in
//! `app`.

use crate::{dialect::Dialect, price::PriceBook, secrets::KeySource};
use http::{HeaderName, Uri};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Everything that doors are opened with.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// Providers by name.
    pub providers: BTreeMap<String, Arc<Provider>>,
    /// Model aliases: the models of providers that a name stands for, in the order in which they
    /// are tried.
    pub models: BTreeMap<String, Vec<ModelTarget>>,
    /// Prices of models.
    pub prices: Arc<PriceBook>,
    /// The node's own model server, for the inference door.
    pub inference: Option<Arc<Provider>>,
    /// Limits of every door.
    pub limits: DoorLimits,
}

/// A model of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTarget {
    /// Name of the provider.
    pub provider: String,
    /// The provider's name for the model.
    pub model: String,
}

/// A model provider.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Its name in the configuration.
    pub name: String,
    /// The API that it speaks.
    pub dialect: Dialect,
    /// Scheme, authority and path prefix, without a trailing slash.
    pub base: Uri,
    /// Source of the credential; `None` for servers without authentication.
    pub key: Option<KeySource>,
    /// Allows http://, which sends the credential unencrypted.
    pub allow_plain_http: bool,
    /// Allows loopback and private addresses.
    pub allow_private: bool,
    /// CA certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Request headers of the program that are forwarded beyond those of the dialect.
    pub forward_headers: Vec<HeaderName>,
    /// Whether to tell the provider who is calling (`x-litellm-end-user-id`, for LiteLLM as
    /// upstream).
    pub identify: bool,
    /// Whether to ask for the usage at the end of a stream; some servers reject the field.
    pub ask_usage: bool,
    /// Name of the output token limit in chat requests that have none.
    pub output_cap: &'static str,
    /// Allows tools that the provider runs by itself, which the door cannot see.
    pub server_tools: bool,
    /// What happens to the upstream request when the program disconnects in mid-stream.
    pub on_abort: OnAbort,
    /// Retries of a call that failed before its first byte.
    pub retries: u32,
    /// Timeouts.
    pub timeouts: ProviderTimeouts,
}

/// What happens to the upstream request when the program disconnects in mid-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAbort {
    /// Read on and discard, within limits, to learn the usage.
    Drain,
    /// Close the connection.
    Cancel,
}

/// Timeouts of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
    /// Until the connection stands, TLS included.
    pub connect: Duration,
    /// Until the head of the response.
    pub first_byte: Duration,
    /// Between two chunks of the response.
    pub idle: Duration,
    /// The longest `Retry-After` that is honoured.
    pub max_retry_after: Duration,
}

/// Limits of every door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorLimits {
    /// Largest request body.
    pub max_body_bytes: u64,
    /// Until the request head is complete.
    pub header_timeout: Duration,
    /// Until the request body is complete, and for the wait for memory before it.
    pub body_timeout: Duration,
    /// Connections of one session.
    pub max_connections: usize,
    /// Concurrent calls of one session, if its budget sets no limit.
    pub max_concurrent: u32,
    /// Time limit of a whole inference request.
    pub inference_timeout: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        DoorLimits {
            max_body_bytes: 32 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            max_connections: 256,
            max_concurrent: 64,
            inference_timeout: Duration::from_secs(600),
        }
    }
}

impl Default for ProviderTimeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        ProviderTimeouts {
            connect: seconds(5),
            first_byte: seconds(120),
            idle: seconds(120),
            max_retry_after: seconds(30),
        }
    }
}

impl Provider {
    /// A provider with the default settings of its dialect.
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
            // Anthropic reports the input tokens at once, so little is lost; others report nothing
            // before the end.
            on_abort: if dialect == Dialect::Anthropic {
                OnAbort::Cancel
            } else {
                OnAbort::Drain
            },
            retries: 2,
            timeouts: ProviderTimeouts::default(),
        }
    }
}
