//! The DNS server of a door: answers queries with fake addresses that lead to this door, and
//! remembers which name each stands for. No query leaves the host for a name that the rules do not
//! allow.

use super::{
    Direction, Egress,
    dial::DialError,
    dns_message::{self, A, DnsQuery, PTR, ResponseCode},
    locked,
    log::LogEntry,
    policy::{Permission, Refusal},
};
use spec::Host;
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    ops::RangeInclusive,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tokio::task::{JoinHandle, JoinSet};

/// Names of one run that have a fake address.
const MAX_NAMES: usize = 4096;
/// Concurrent lookups. Queries beyond that are dropped; the client retries.
const MAX_PENDING_LOOKUPS: usize = 64;
/// Largest query that is read.
const MAX_QUERY_BYTES: usize = 4096;
/// After a failed read: long enough not to spin, short enough not to be noticed.
const READ_RETRY_DELAY: Duration = Duration::from_millis(20);

/// The fake addresses of a run and the names they stand for.
#[derive(Debug, Default)]
pub(crate) struct FakeAddresses {
    range: OnceLock<RangeInclusive<Ipv4Addr>>,
    known: Mutex<AddressTable>,
}

/// The n-th name has the n-th address.
#[derive(Debug, Default)]
struct AddressTable {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, usize>,
}

/// The n-th address of a range.
fn address(range: &RangeInclusive<Ipv4Addr>, number: usize) -> Option<Ipv4Addr> {
    let bits = range
        .start()
        .to_bits()
        .checked_add(u32::try_from(number).ok()?)?;
    Some(Ipv4Addr::from_bits(bits)).filter(|address| range.contains(address))
}

impl FakeAddresses {
    /// The name that a fake address stands for.
    pub(crate) fn name_at(&self, address: Ipv4Addr) -> Option<String> {
        let number = address
            .to_bits()
            .checked_sub(self.range.get()?.start().to_bits())? as usize;
        locked(&self.known)
            .names
            .get(number)
            .map(|name| String::from(&**name))
    }

    fn has(&self, name: &str) -> bool {
        locked(&self.known).numbers.contains_key(name)
    }

    /// The fake address of a name, and whether it is new; `None` if the range is used up.
    fn address_of(&self, name: &str) -> Option<(Ipv4Addr, bool)> {
        let range = self.range.get()?;
        let mut known = locked(&self.known);
        if let Some(number) = known.numbers.get(name) {
            return Some((address(range, *number)?, false));
        }
        let number = known.names.len();
        let address = address(range, number).filter(|_| number < MAX_NAMES)?;
        let name: Arc<str> = name.into();
        known.names.push(name.clone());
        known.numbers.insert(name, number);
        Some((address, true))
    }
}

/// Answers queries until the task is aborted.
pub(crate) fn serve(
    egress: Arc<Egress>,
    socket: UdpSocket,
    range: RangeInclusive<Ipv4Addr>,
) -> io::Result<JoinHandle<()>> {
    // A second listener shares the addresses: a connection does not show which one resolved its
    // name.
    egress.names.range.get_or_init(|| range);
    socket.set_nonblocking(true)?;
    let socket = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
    Ok(tokio::spawn(async move {
        // Aborted together with this task.
        let mut under_way = JoinSet::new();
        let mut bytes = vec![0; MAX_QUERY_BYTES];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
                tokio::time::sleep(READ_RETRY_DELAY).await;
                continue;
            };
            while under_way.try_join_next().is_some() {}
            match egress.decide_query(&bytes[..length]) {
                QueryAction::Respond(answer) => send_response(&socket, &answer, from).await,
                QueryAction::Resolve(resolve_query) if under_way.len() < MAX_PENDING_LOOKUPS => {
                    let egress = egress.clone();
                    let socket = socket.clone();
                    under_way.spawn(async move {
                        let answer = egress.resolve_query(resolve_query).await;
                        send_response(&socket, &answer, from).await;
                    });
                }
                QueryAction::Ignore | QueryAction::Resolve(_) => {}
            }
        }
    }))
}

async fn send_response(socket: &tokio::net::UdpSocket, answer: &[u8], to: SocketAddr) {
    // A lost response is the client's to retry.
    _ = socket.send_to(answer, to).await;
}

/// What to do with a query, by the rules alone.
#[derive(Debug)]
enum QueryAction {
    Ignore,
    Respond(Vec<u8>),
    /// The name may be resolved outside.
    Resolve(PendingLookup),
}

#[derive(Debug)]
struct PendingLookup {
    query: DnsQuery,
    name: String,
    permission: Permission,
}

impl Egress {
    /// The host behind an address that a program dials: the name it was made up for, else the
    /// address itself.
    pub(crate) fn host_at(&self, address: IpAddr) -> Host {
        let address = address.to_canonical();
        let named = match address {
            IpAddr::V4(v4) => self.names.name_at(v4),
            IpAddr::V6(_) => None,
        };
        named.map_or(Host::Address(address), Host::Name)
    }

    /// Decides on a query. Nothing is sent.
    fn decide_query(&self, bytes: &[u8]) -> QueryAction {
        let query = match dns_message::parse(bytes) {
            Ok(query) => query,
            Err(answer) if answer.is_empty() => return QueryAction::Ignore,
            Err(answer) => return QueryAction::Respond(answer),
        };
        let name = match (&query.host, query.kind) {
            (_, PTR) => return QueryAction::Respond(query.answer(ResponseCode::NoSuchName, None)),
            (Ok(Host::Name(name)), _) => name.clone(),
            (Ok(Host::Address(address)), _) => {
                let refusal = Refusal::new("host", format!("{address} is no name"), "nothing");
                return self.deny(&query, &address.to_string(), &refusal);
            }
            (Err(bad), _) => {
                let refusal = Refusal::new("host", bad.to_string(), "nothing");
                return self.deny(&query, &bad.to_string(), &refusal);
            }
        };
        let is_address = query.kind == A;
        if name == "localhost" || name.ends_with(".localhost") {
            let own = is_address.then_some(Ipv4Addr::LOCALHOST);
            return QueryAction::Respond(query.answer(ResponseCode::NoError, own));
        }
        match self.evaluate_lookup(&Host::Name(name.clone())) {
            Err(refusal) => self.deny(&query, &name, &refusal),
            Ok(_) if !is_address => QueryAction::Respond(query.answer(ResponseCode::NoError, None)),
            Ok(permission) => QueryAction::Resolve(PendingLookup {
                query,
                name,
                permission,
            }),
        }
    }

    fn deny(&self, query: &DnsQuery, name: &str, refusal: &Refusal) -> QueryAction {
        self.log.refused("resolve", name, refusal);
        QueryAction::Respond(query.answer(ResponseCode::NoSuchName, None))
    }

    /// Resolves an allowed name, so that a name which does not exist outside gets no fake address
    /// either.
    async fn resolve_query(&self, lookup: PendingLookup) -> Vec<u8> {
        let PendingLookup {
            query,
            name,
            permission,
        } = lookup;
        if let Err(refusal) = self.charge_lookup(&name, &permission) {
            self.log.refused("resolve", &name, &refusal);
            return query.answer(ResponseCode::Refused, None);
        }
        let found = self
            .dialer
            .resolve(&Host::Name(name.clone()), permission.allows_private())
            .await;
        let (code, address) = match found {
            Ok(found) => self.assign_address(&name, &permission, &found),
            Err(DialError::Refused(refusal)) => {
                self.log.refused("resolve", &name, &refusal);
                (ResponseCode::NoSuchName, None)
            }
            Err(DialError::Failed(why)) => {
                let entry = LogEntry {
                    detail: why.to_owned(),
                    ..entry(&name, &permission, "failed")
                };
                // The lookup has failed in any case.
                _ = self.log.write(&entry);
                (ResponseCode::NoSuchName, None)
            }
        };
        query.answer(code, address)
    }

    /// A name can carry data out to its name server: a name that is new to this run counts like a
    /// request.
    fn charge_lookup(&self, name: &str, permission: &Permission) -> Result<(), Refusal> {
        if self.names.has(name) {
            return Ok(());
        }
        self.begin(permission.first())?;
        self.count(permission.first(), Direction::Out, name.len())
    }

    fn assign_address(
        &self,
        name: &str,
        permission: &Permission,
        found: &[IpAddr],
    ) -> (ResponseCode, Option<Ipv4Addr>) {
        let Some((address, is_new)) = self.names.address_of(name) else {
            let reason = format!(
                "this run has asked for {MAX_NAMES} names, and there are no more addresses"
            );
            self.log
                .refused("resolve", name, &Refusal::new("names", reason, "nothing"));
            return (ResponseCode::ServerFailure, None);
        };
        let verdict = if permission.learned { "learn" } else { "allow" };
        let entry = LogEntry {
            address: found.first().map(IpAddr::to_string).unwrap_or_default(),
            ..entry(name, permission, verdict)
        };
        if is_new && self.log.write(&entry).is_err() {
            (ResponseCode::ServerFailure, None)
        } else {
            (ResponseCode::NoError, Some(address))
        }
    }
}

fn entry(name: &str, permission: &Permission, verdict: &'static str) -> LogEntry {
    LogEntry {
        operation: "resolve".to_owned(),
        target: name.to_owned(),
        verdict,
        rule: permission.first().rule.name.clone(),
        ..LogEntry::default()
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
pub(crate) mod tests;
