//! Dials destinations: each name is resolved once, every address is checked, and only a checked
//! address is dialled.

use super::{
    internet::Internet,
    policy::{self, Refusal},
    splice,
};
use spec::{Destination, Host, address};
use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{timeout, timeout_at},
};

/// Timeout of one name lookup, and of all connection attempts together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout per address, while there are others.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// Concurrent name lookups: each occupies a thread.
const MAX_LOOKUPS: usize = 16;
/// Of these for one tenant: a lookup goes on for as long as a silent name server lets it.
const MAX_LOOKUPS_PER_TENANT: usize = 4;
/// A lookup stays valid for the connection that the program resolved the name for.
const CACHE_TTL: Duration = Duration::from_secs(10);
const MAX_CACHED: usize = 256;

/// Resolves names and opens connections.
#[derive(Debug)]
pub(crate) struct Dialer {
    internet: Internet,
    lookups: Arc<Semaphore>,
    /// By tenant, while one of its lookups is under way.
    lookups_of_tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
    cache: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The rules do not allow it.
    Refused(Refusal),
    /// It failed.
    Failed(&'static str),
}

impl Dialer {
    pub(crate) fn new(internet: Internet) -> Dialer {
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Dialer {
            internet,
            lookups,
            lookups_of_tenants: Mutex::default(),
            cache: Mutex::default(),
        }
    }

    /// The addresses of a host that may be dialled. Only called for hosts that the rules allow: a
    /// DNS query is already a message.
    pub(crate) async fn resolve(
        &self,
        host: &Host,
        allows_private: bool,
    ) -> Result<Vec<IpAddr>, DialError> {
        self.resolve_for(None, host, allows_private).await
    }

    async fn resolve_for(
        &self,
        tenant: Option<&str>,
        host: &Host,
        allows_private: bool,
    ) -> Result<Vec<IpAddr>, DialError> {
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.look_up(name, tenant).await?,
        };
        let allowed: Vec<_> = found
            .into_iter()
            .filter(|found| may_dial(*found, allows_private))
            .collect();
        if allowed.is_empty() {
            Err(DialError::Refused(policy::private(&host.to_string())))
        } else {
            Ok(allowed)
        }
    }

    /// Connects to a checked address.
    pub(crate) async fn dial(
        &self,
        to: &Destination,
        allows_private: bool,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        self.dial_for(None, to, allows_private).await
    }

    /// The same where several tenants share the dialer: each has a part of the lookups.
    pub(crate) async fn dial_for(
        &self,
        tenant: Option<&str>,
        to: &Destination,
        allows_private: bool,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let addresses = self.resolve_for(tenant, &to.host, allows_private).await?;
        let end = tokio::time::Instant::now() + DIAL_TIMEOUT;
        let mut failed = "nobody answers there";
        let last = addresses.len() - 1;
        for (at, address) in addresses.into_iter().enumerate() {
            let address = SocketAddr::new(address, to.port);
            let patience = if at == last {
                DIAL_TIMEOUT
            } else {
                ADDRESS_TIMEOUT
            };
            let dialling = timeout(patience, TcpStream::connect(self.internet.locate(address)));
            match timeout_at(end, dialling).await {
                Ok(Ok(Ok(stream))) => {
                    splice::prepare(&stream);
                    return Ok((stream, address));
                }
                Ok(Ok(Err(_))) => failed = "the connection was refused there",
                Ok(Err(_)) => failed = "nobody answers there",
                Err(_) => break,
            }
        }
        Err(DialError::Failed(failed))
    }

    fn lookups_of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self
            .lookups_of_tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(lookups) = tenants.get(tenant).and_then(Weak::upgrade) {
            return lookups;
        }
        tenants.retain(|_, lookups| lookups.strong_count() > 0);
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS_PER_TENANT));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&lookups));
        lookups
    }

    async fn look_up(&self, name: &str, tenant: Option<&str>) -> Result<Vec<IpAddr>, DialError> {
        if let Some(cached) = self.cached(name) {
            return Ok(cached);
        }
        let lookups = self.lookups.clone();
        let lookups_of_tenant = tenant.map(|tenant| self.lookups_of(tenant));
        let lookup_name = name.to_owned();
        let internet = self.internet.clone();
        let found = timeout(DIAL_TIMEOUT, async move {
            let permit_of_tenant = match lookups_of_tenant {
                Some(lookups) => Some(lookups.acquire_owned().await.ok()?),
                None => None,
            };
            let permit = lookups.acquire_owned().await.ok()?;
            let looking = tokio::task::spawn_blocking(move || {
                // Held by the thread, which continues after the timeout.
                let _permits = (permit_of_tenant, permit);
                internet.resolve(&lookup_name)
            });
            looking.await.ok()
        });
        let found = found.await.ok().flatten().unwrap_or_default();
        if found.is_empty() {
            return Err(DialError::Failed("there is no such name"));
        }
        self.store_cached(name, &found);
        Ok(found)
    }

    fn cached(&self, name: &str) -> Option<Vec<IpAddr>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, found) = cache.get(name)?;
        (since.elapsed() < CACHE_TTL).then(|| found.clone())
    }

    pub(crate) fn store_cached(&self, name: &str, found: &[IpAddr]) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (since, _)| since.elapsed() < CACHE_TTL);
        }
        if cache.len() < MAX_CACHED {
            cache.insert(name.to_owned(), (Instant::now(), found.to_vec()));
        }
    }
}

fn may_dial(address: IpAddr, allows_private: bool) -> bool {
    !address::is_metadata(address)
        && (allows_private || address::is_public(address) && !is_own(address))
}

/// Whether the address is one of this machine: local services trust local callers. Nothing is sent:
/// connecting a UDP socket only selects the source address, which equals the destination if that is
/// local.
fn is_own(address: IpAddr) -> bool {
    let here: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // If it cannot be checked, it counts as local.
    let Ok(socket) = UdpSocket::bind((here, 0)) else {
        return true;
    };
    match socket
        .connect((address, 9))
        .and_then(|()| socket.local_addr())
    {
        Ok(from) => from.ip() == address,
        // No route at all: dialling will report that.
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
        let dialer = Dialer::new(Internet::default());
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
            let to = Destination {
                host: host.parse().unwrap(),
                port,
            };
            assert!(
                matches!(dialer.dial(&to, false).await, Err(DialError::Refused(_))),
                "{host}"
            );
            let (_, address) = dialer.dial(&to, true).await.unwrap();
            assert!(address.ip().is_loopback());
        }
        let to = Destination {
            host: "169.254.169.254".parse().unwrap(),
            port,
        };
        assert!(
            matches!(dialer.dial(&to, true).await, Err(DialError::Refused(_))),
            "whatever is allowed"
        );
    }

    /// A resolver that answers nothing about `silent` names until its other end is dropped.
    fn with_silent_names() -> (std::sync::mpsc::Sender<()>, Internet) {
        let (answer, silence) = std::sync::mpsc::channel::<()>();
        let silence = Arc::new(Mutex::new(silence));
        let resolve = move |name: &str| {
            if name.starts_with("silent") {
                _ = silence
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .recv();
            }
            vec![IpAddr::from([127, 0, 0, 1])]
        };
        (answer, Internet::dangerously_replace(resolve, |to| to))
    }

    #[tokio::test]
    async fn silent_name_servers_of_one_tenant_take_no_look_up_from_another() {
        let (answer, internet) = with_silent_names();
        let dialer = Arc::new(Dialer::new(internet));
        let find = |tenant: &'static str, name: String| {
            let dialer = dialer.clone();
            async move {
                let host = Host::Name(name);
                dialer.resolve_for(Some(tenant), &host, true).await
            }
        };
        let silent: Vec<_> = (0..3 * MAX_LOOKUPS)
            .map(|number| tokio::spawn(find("one", format!("silent-{number}.example"))))
            .collect();
        while dialer.lookups.available_permits() > MAX_LOOKUPS - MAX_LOOKUPS_PER_TENANT {
            tokio::task::yield_now().await;
        }
        assert!(find("two", "there.example".into()).await.is_ok());
        // The control: its own wait, until their turn comes.
        let own = tokio::spawn(find("one", "there-too.example".into()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!own.is_finished());
        drop(answer);
        assert!(own.await.unwrap().is_ok());
        for one in silent {
            assert!(one.await.unwrap().is_ok());
        }
        dialer.lookups_of("three");
        assert_eq!(dialer.lookups_of_tenants.lock().unwrap().len(), 1);
    }

    #[test]
    fn this_machine_is_known_by_each_of_its_addresses() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("8.8.8.8".parse().unwrap()));
    }
}
