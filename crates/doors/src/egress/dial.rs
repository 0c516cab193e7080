//! From a destination to a connection: names are looked up once, every address is looked at, and one that was looked at
//! is dialled.

use super::{
    internet::Internet,
    policy::{self, Refusal},
    tunnel,
};
use spec::{Destination, Host, address};
use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{timeout, timeout_at},
};

/// All of looking up, and all of dialling.
const PATIENCE: Duration = Duration::from_secs(10);
/// For one address, while there are others.
const PATIENCE_EACH: Duration = Duration::from_secs(3);
/// Names that are being looked up at the same time: each takes a thread.
const MOST_LOOKUPS: usize = 16;
/// What was looked up for a name is good for the connection that the name was asked for.
const REMEMBERED: Duration = Duration::from_secs(10);
const MOST_REMEMBERED: usize = 256;

/// Looks names up and dials.
#[derive(Debug)]
pub(crate) struct Dialler {
    internet: Internet,
    lookups: Arc<Semaphore>,
    remembered: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoWay {
    /// It may not be.
    Refused(Refusal),
    /// It cannot be.
    Failed(&'static str),
}

impl Dialler {
    pub(crate) fn new(internet: Internet) -> Dialler {
        let lookups = Arc::new(Semaphore::new(MOST_LOOKUPS));
        Dialler {
            internet,
            lookups,
            remembered: Mutex::default(),
        }
    }

    /// Where a host may be dialled. Only for hosts that the rules allow: a question is a message, too.
    pub(crate) async fn find(
        &self,
        host: &Host,
        may_be_private: bool,
    ) -> Result<Vec<IpAddr>, NoWay> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.look_up(name).await?,
        };
        let allowed: Vec<_> = found
            .into_iter()
            .filter(|found| may_dial(*found, may_be_private))
            .collect();
        match allowed.is_empty() {
            true => Err(NoWay::Refused(policy::private(&host.to_string()))),
            false => Ok(allowed),
        }
    }

    /// A connection to an address that was looked at.
    pub(crate) async fn dial(
        &self,
        to: &Destination,
        may_be_private: bool,
    ) -> Result<(TcpStream, SocketAddr), NoWay> {
        let addresses = self.find(&to.host, may_be_private).await?;
        let end = tokio::time::Instant::now() + PATIENCE;
        let mut failed = "nobody answers there";
        let last = addresses.len() - 1;
        for (at, address) in addresses.into_iter().enumerate() {
            let address = SocketAddr::new(address, to.port);
            let patience = if at == last { PATIENCE } else { PATIENCE_EACH };
            let dialling = timeout(patience, TcpStream::connect(self.internet.locate(address)));
            match timeout_at(end, dialling).await {
                Ok(Ok(Ok(stream))) => {
                    tunnel::prepare(&stream);
                    return Ok((stream, address));
                }
                Ok(Ok(Err(_))) => failed = "the connection was refused there",
                Ok(Err(_)) => failed = "nobody answers there",
                Err(_) => break,
            }
        }
        Err(NoWay::Failed(failed))
    }

    async fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, NoWay> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let lookups = self.lookups.clone();
        let (asked, internet) = (name.to_owned(), self.internet.clone());
        let found = timeout(PATIENCE, async move {
            // Held by the thread, which goes on when nobody waits for it any more.
            let permit = lookups.acquire_owned().await.ok()?;
            let looking = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                internet.resolve(&asked)
            });
            looking.await.ok()
        });
        let found = found.await.ok().flatten().unwrap_or_default();
        if found.is_empty() {
            return Err(NoWay::Failed("there is no such name"));
        }
        self.remember(name, &found);
        Ok(found)
    }

    fn known(&self, name: &str) -> Option<Vec<IpAddr>> {
        let remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (since, found) = remembered.get(name)?;
        (since.elapsed() < REMEMBERED).then(|| found.clone())
    }

    pub(crate) fn remember(&self, name: &str, found: &[IpAddr]) {
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MOST_REMEMBERED {
            remembered.retain(|_, (since, _)| since.elapsed() < REMEMBERED);
        }
        if remembered.len() < MOST_REMEMBERED {
            remembered.insert(name.to_owned(), (Instant::now(), found.to_vec()));
        }
    }
}

fn may_dial(address: IpAddr, may_be_private: bool) -> bool {
    !address::is_metadata(address)
        && (may_be_private || address::is_public(address) && !is_own(address))
}

/// Whether that is this machine itself, by whatever address: what listens here trusts who is here. Nothing is sent: the
/// kernel only says from where it would send, and to itself it sends from there.
fn is_own(address: IpAddr) -> bool {
    let here: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Whoever cannot ask must not think that it is somebody else.
    let Ok(socket) = UdpSocket::bind((here, 0)) else {
        return true;
    };
    match socket
        .connect((address, 9))
        .and_then(|()| socket.local_addr())
    {
        Ok(from) => from.ip() == address,
        // No way there at all: dialling will say so.
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_looked_at_before_it_is_dialled() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let dialler = Dialler::new(Internet::default());
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let to = Destination {
                host: host.parse().unwrap(),
                port,
            };
            assert!(
                matches!(dialler.dial(&to, false).await, Err(NoWay::Refused(_))),
                "{host}"
            );
            let (_, address) = dialler.dial(&to, true).await.unwrap();
            assert!(address.ip().is_loopback());
        }
        let to = Destination {
            host: "169.254.169.254".parse().unwrap(),
            port,
        };
        assert!(
            matches!(dialler.dial(&to, true).await, Err(NoWay::Refused(_))),
            "whatever is allowed"
        );
    }

    #[test]
    fn this_machine_is_known_by_each_of_its_addresses() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("8.8.8.8".parse().unwrap()));
    }
}
