//! The same provider as a program, for tests that are no Rust and as the upstream of benchmarks.

use clap::Parser;
use provider::{Fault, Provider, Script, Settings, Tls};
use std::{error::Error, fs, net::SocketAddr, path::PathBuf, thread};

/// A model provider for tests: prints its address, then serves until it is killed.
///
/// `GET /_served` tells what it served, `POST /_reset` begins anew, `POST /_set` orders an answer
/// ({"script":{…}} for all, with "times":N for the next N calls, with "model":NAME for one model),
/// `POST /_release` lets go on what is held.
#[derive(Parser)]
#[command(name = "airlock-provider")]
struct Options {
    /// Where to listen; port 0 chooses one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A key that is let in; without any, all are
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,
    /// Output tokens of an answer, one a frame
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    tokens: u64,
    /// Tokens of a prompt; else a quarter of its bytes
    #[arg(long, value_name = "NUMBER")]
    input: Option<u64>,
    /// Milliseconds between frames
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pace: u64,
    /// Bytes of a unary answer's text, whatever its tokens
    #[arg(long, value_name = "BYTES")]
    small_reply: Option<usize>,
    /// Say as much as it wants, whatever the caller's cap
    #[arg(long)]
    ignore_cap: bool,
    /// What goes wrong, as JSON: '"reset"', '{"cut":3}'
    #[arg(long, value_name = "JSON", value_parser = fault)]
    fault: Option<Fault>,
    /// Keep sums only, no list of calls
    #[arg(long)]
    lean: bool,
    /// Certificates (PEM); with --tls-key it speaks TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Their private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

fn fault(text: &str) -> Result<Fault, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let tls = match (options.tls_cert, options.tls_key) {
        (Some(certificates), Some(key)) => Some(Tls {
            certificates: fs::read(certificates)?,
            key: fs::read(key)?,
        }),
        _ => None,
    };
    let script = Script {
        tokens: options.tokens,
        input: options.input,
        pace_ms: options.pace,
        reply_bytes: options.small_reply,
        ignore_cap: options.ignore_cap,
        fault: options.fault,
        ..Script::default()
    };
    let settings = Settings {
        listen: options.listen,
        keys: options.keys,
        tls,
        script,
        lean: options.lean,
        ..Settings::default()
    };
    let provider = Provider::start(settings);
    println!("{}", provider.address());
    loop {
        thread::park();
    }
}
