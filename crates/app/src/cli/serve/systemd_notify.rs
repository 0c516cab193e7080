//! Notifications to systemd (`sd_notify`): ready, watchdog, stopping. Each is a datagram to the
//! socket in `NOTIFY_SOCKET`; without the variable none is sent. An unreachable service manager
//! does not stop the server.

use crate::config::ProcessEnv;
use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

/// The service manager's socket, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// The watchdog's timeout.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager of this process, from the environment.
    pub(super) fn from_env(env: &ProcessEnv) -> ServiceManager {
        let Some(socket_name) = env.variable("NOTIFY_SOCKET") else {
            return ServiceManager::default();
        };
        match connect(socket_name) {
            Ok(socket) => ServiceManager {
                socket: Some(Arc::new(socket)),
                watchdog: watchdog(env),
            },
            Err(error) => {
                super::message::print(&[super::Message::Note(format!(
                    "cannot notify the service manager: {error}"
                ))]);
                ServiceManager::default()
            }
        }
    }

    /// Sends that the server listens.
    pub(super) fn ready(&self, address: &str) {
        self.send(&format!("READY=1\nSTATUS=listening on {address}\n"));
    }

    /// Sends that the server is stopping.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ending runs and sandboxes\n");
    }

    /// Feeds the watchdog as long as the event loop turns; returns at once without a watchdog.
    pub(super) async fn send_watchdog(self) {
        let Some(interval) = self.watchdog else {
            return;
        };
        loop {
            self.send("WATCHDOG=1\n");
            tokio::time::sleep(interval / 3).await;
        }
    }

    fn send(&self, words: &str) {
        if let Some(socket) = &self.socket {
            // A full queue must not block the server; the next notification follows soon.
            _ = socket.send(words.as_bytes());
        }
    }
}

/// Connects to a path, or with a leading `@` to an abstract socket.
fn connect(socket_name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match socket_name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(socket_name)?,
        _ => {
            return Err(io::Error::other(
                "NOTIFY_SOCKET is neither a path nor begins with `@`",
            ));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The watchdog's timeout, if `WATCHDOG_PID` is absent or names this process.
fn watchdog(env: &ProcessEnv) -> Option<Duration> {
    let number = |name| env.variable(name)?.to_str()?.parse::<u64>().ok();
    let is_ours = match env.variable("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(u64::from(std::process::id())),
        None => true,
    };
    // A shorter timeout would keep the server busy with notifications only.
    let interval = number("WATCHDOG_USEC").filter(|micros| *micros >= 1000)?;
    is_ours.then(|| Duration::from_micros(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)]) -> ProcessEnv {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        ProcessEnv {
            variables,
            ..ProcessEnv::default()
        }
    }

    #[test]
    fn a_watchdog_counts_only_if_it_is_meant_for_us() {
        let us = std::process::id().to_string();
        assert_eq!(
            watchdog(&env(&[("WATCHDOG_USEC", "2000000")])),
            Some(Duration::from_secs(2))
        );
        let socket_name = [("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", us.as_str())];
        assert_eq!(watchdog(&env(&socket_name)), Some(Duration::from_secs(2)));
        for other in [
            vec![],
            vec![("WATCHDOG_USEC", "0")],
            vec![("WATCHDOG_USEC", "-1")],
            vec![("WATCHDOG_USEC", "x")],
            vec![("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", "1")],
            vec![("WATCHDOG_USEC", "2000000"), ("WATCHDOG_PID", "x")],
        ] {
            assert_eq!(watchdog(&env(&other)), None, "{other:?}");
        }
    }

    #[test]
    fn names_that_are_no_sockets_are_refused() {
        for odd in [
            "relative",
            "/nowhere/at/all",
            "@airlock nobody listens here",
            "vsock:2:1",
        ] {
            assert!(connect(OsStr::new(odd)).is_err(), "{odd}");
        }
        let long = format!("/{}", "x".repeat(200));
        assert!(connect(OsStr::new(&long)).is_err());
    }
}
