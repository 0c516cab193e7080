//! What a service manager is told: that the server is ready, lives, and stops. A datagram to the socket that
//! `NOTIFY_SOCKET` names; without one nobody is told. Nothing hangs on it: a manager that cannot be reached is no reason
//! not to serve.

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

/// Whom to tell.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// How often it wants to hear of us.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started us, if one did.
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
                    "the service manager cannot be told anything: {error}"
                ))]);
                ServiceManager::default()
            }
        }
    }

    /// It listens.
    pub(super) fn ready(&self, address: &str) {
        self.send(&format!("READY=1\nSTATUS=listening on {address}\n"));
    }

    /// It ends what it has begun.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=ending runs and sandboxes\n");
    }

    /// Says again and again that the event loop turns; forever, or not at all if nobody asked.
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
            // A full queue must not hold the server up; the next word comes soon.
            _ = socket.send(words.as_bytes());
        }
    }
}

/// A path, or with `@` a name in the abstract namespace.
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

/// Meant for us only if it names our process, or none.
fn watchdog(env: &ProcessEnv) -> Option<Duration> {
    let number = |name| env.variable(name)?.to_str()?.parse::<u64>().ok();
    let is_ours = match env.variable("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(u64::from(std::process::id())),
        None => true,
    };
    // Below a millisecond there would be nothing else to do.
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
