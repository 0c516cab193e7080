//! Name resolution and routing, as the door uses them: this machine's resolver and network. Test
//! suites replace both, so that nothing leaves the machine and everything is visible.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

/// Addresses per name.
const MAX_ADDRESSES: usize = 32;

type Resolve = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;
type Locate = dyn Fn(SocketAddr) -> SocketAddr + Send + Sync;

/// The resolver and the address mapping.
#[derive(Clone)]
pub struct Internet {
    resolve: Arc<Resolve>,
    locate: Arc<Locate>,
}

impl Internet {
    /// Replaces the resolver, and where connections to an address really go. Whether an address may
    /// be dialled is decided before, on the resolved address.
    pub fn dangerously_replace(
        resolve: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static,
        locate: impl Fn(SocketAddr) -> SocketAddr + Send + Sync + 'static,
    ) -> Internet {
        Internet {
            resolve: Arc::new(resolve),
            locate: Arc::new(locate),
        }
    }

    pub(crate) fn resolve(&self, name: &str) -> Vec<IpAddr> {
        (self.resolve)(name)
    }

    pub(crate) fn locate(&self, address: SocketAddr) -> SocketAddr {
        (self.locate)(address)
    }
}

impl Default for Internet {
    fn default() -> Internet {
        Internet::dangerously_replace(resolve, |address| address)
    }
}

impl fmt::Debug for Internet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Internet")
    }
}

/// Resolves by /etc/hosts, then by the system resolver. The trailing dot keeps search domains out:
/// the rules allow this name and no longer one.
fn resolve(name: &str) -> Vec<IpAddr> {
    let own = in_hosts_file(name);
    if !own.is_empty() {
        return own;
    }
    let found = (format!("{name}."), 0).to_socket_addrs();
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in found
        .into_iter()
        .flatten()
        .map(|address| address.ip().to_canonical())
    {
        if !addresses.contains(&found) && addresses.len() < MAX_ADDRESSES {
            addresses.push(found);
        }
    }
    addresses
}

fn in_hosts_file(name: &str) -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let named = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words
            .any(|word| word.eq_ignore_ascii_case(name))
            .then(|| address.to_canonical())
    };
    lines.filter_map(named).take(MAX_ADDRESSES).collect()
}
