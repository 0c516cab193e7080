//! What the door has of the world: where names lead, and where addresses lie. This machine's own resolver and network,
//! unless a suite of attacks brings an internet of its own, in which nothing leaves the machine and everything is seen.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

/// Addresses of one name that are looked at.
const MOST_ADDRESSES: usize = 32;

type Resolve = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;
type Locate = dyn Fn(SocketAddr) -> SocketAddr + Send + Sync;

/// Where names lead, and where addresses lie.
#[derive(Clone)]
pub struct Internet {
    resolve: Arc<Resolve>,
    locate: Arc<Locate>,
}

impl Internet {
    /// Another one: what is asked for a name, and where what is dialled lies instead. What may be dialled is decided
    /// before, on the address that the name leads to.
    pub fn dangerously_instead(
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
        Internet::dangerously_instead(resolve, |address| address)
    }
}

impl fmt::Debug for Internet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Internet")
    }
}

/// By this machine's own table, then by its resolver. The dot at the end keeps search domains out: what the rules allow is
/// this name and no longer one.
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
        if !addresses.contains(&found) && addresses.len() < MOST_ADDRESSES {
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
    lines.filter_map(named).take(MOST_ADDRESSES).collect()
}
