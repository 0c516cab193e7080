//! `airlock worker broker`: the development broker. Everybody who can connect reads and writes
//! every message.

use super::super::{Global, message::Failure, print, print_json, runtime};
use crate::config::ProcessEnv;
use clap::Args;
use spec::ErrorCode;
use std::net::SocketAddr;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};

const EXAMPLES: &str = "\
Examples:
  airlock worker broker
  airlock worker broker --listen 127.0.0.1:0 --json

The protocol is lines of JSON over TCP, as development brokers of the mesh use. Messages are not
stored for absent clients, there is no authentication, and nothing is encrypted. It runs until
SIGTERM or Ctrl-C.
Exit status: 0, or 125 if it could not start.";

/// The options of `airlock worker broker`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The listen address for workers and agents
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:55554")]
    listen: SocketAddr,
    /// Allow addresses that other machines can reach: everyone who connects can call every tool and
    /// read every response
    #[arg(long)]
    dangerously_listen_publicly: bool,
    /// Print one JSON object when it is ready
    #[arg(long)]
    pub(super) json: bool,
}

/// Carries out the command.
pub(super) fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    global.refuse_server(env)?;
    options.check_address()?;
    runtime()?.block_on(serve(options))?;
    Ok(0)
}

async fn serve(options: &Options) -> Result<(), Failure> {
    let mut terminate = signal_stream(SignalKind::terminate())?;
    let mut interrupt = signal_stream(SignalKind::interrupt())?;
    let listening = TcpListener::bind(options.listen)
        .await
        .and_then(|listener| {
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
    let (listener, address) = listening.map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot listen on `{}`: {error}", options.listen),
        hint: "choose another address with --listen; port 0 selects a free port".to_owned(),
    })?;
    print_address(address, options.json)?;
    tokio::select! {
        () = worker::dev_broker::serve(listener) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn print_address(address: SocketAddr, json: bool) -> Result<(), Failure> {
    let host = address.ip();
    let port = address.port();
    if json {
        print_json(&serde_json::json!({
            "listen": format!("tcp://{address}"),
            "pid": std::process::id(),
        }))
    } else {
        print(&format!(
            "listen  tcp://{address}\nworker  SAM_TRANSPORT=tcp://{address} airlock worker sam\n\
             agent   DEV_BROKER_HOST={host} DEV_BROKER_PORT={port}\n"
        ))
    }
}

/// Listens for a signal that ends the command.
pub(super) fn signal_stream(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::internal(format!("cannot wait for signals: {error}")))
}

impl Options {
    fn check_address(&self) -> Result<(), Failure> {
        let address = self.listen;
        if address.ip().is_loopback() || self.dangerously_listen_publicly {
            Ok(())
        } else {
            Err(Failure::invalid(
                format!(
                    "`--listen {address}` is reachable from other machines, and this broker has no authentication"
                ),
                "listen on 127.0.0.1, use a real broker, or give --dangerously-listen-publicly",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn other_machines_are_let_in_only_by_a_word_that_says_what_it_does() {
        let checked = |words: &[&str]| {
            let line = Words::try_parse_from([&["broker"], words].concat()).unwrap();
            line.options
                .check_address()
                .map_err(|failure| failure.message)
        };
        assert_eq!(checked(&[]), Ok(()));
        assert_eq!(checked(&["--listen", "[::1]:0"]), Ok(()));
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let refused = checked(&["--listen", address]).unwrap_err();
            assert!(
                refused.contains("is reachable from other machines"),
                "{refused}"
            );
            assert_eq!(
                checked(&["--listen", address, "--dangerously-listen-publicly"]),
                Ok(())
            );
        }
    }
}
