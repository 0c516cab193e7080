//! Name lookups by `/etc/hosts` and by a DNS query to the first server of `/etc/resolv.conf`. The C
//! library's resolver loads other libraries, which a static program cannot. There are no search
//! domains.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    time::{Duration, Instant},
};

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_QUERIES: u32 = 2;
const MAX_ANSWER_BYTES: usize = 1500;
const INTERNET: u16 = 1;

/// The record type of a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecordType {
    /// An IPv4 address.
    A = 1,
    /// An IPv6 address.
    Aaaa = 28,
}

/// The address of a name in a file like `/etc/hosts`; IPv4 before IPv6.
pub fn from_hosts(hosts: &[u8], name: &str) -> Option<IpAddr> {
    let mut found = None;
    for line in String::from_utf8_lossy(hosts).lines() {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
            continue;
        };
        if words.any(|word| word.eq_ignore_ascii_case(name)) {
            if address.is_ipv4() {
                return Some(address);
            }
            found = found.or(Some(address));
        }
    }
    found
}

/// The first server of a file like `/etc/resolv.conf`.
pub fn server(configuration: &[u8]) -> Option<IpAddr> {
    let text = String::from_utf8_lossy(configuration);
    text.lines()
        .find_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
}

/// Encodes a DNS query.
pub fn question(name: &str, id: u16, kind: RecordType) -> Vec<u8> {
    let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.trim_end_matches('.').split('.') {
        // At most 63 bytes each: the URL was checked.
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&(kind as u16).to_be_bytes());
    message.extend_from_slice(&INTERNET.to_be_bytes());
    message
}

/// The first address in a response. `None` if the message is no response to this query.
pub fn answer(
    message: &[u8],
    question_bytes: &[u8],
    kind: RecordType,
) -> Option<Result<IpAddr, &'static str>> {
    let head = message.get(..12)?;
    let is_answer = head[..2] == question_bytes[..2] && head[2] & 0x80 != 0 && head[4..6] == [0, 1];
    // Servers repeat the question; letters may change case.
    let repeats = message
        .get(12..question_bytes.len())?
        .eq_ignore_ascii_case(&question_bytes[12..]);
    if !is_answer || !repeats {
        return None;
    }
    if head[3] & 0x0f != 0 {
        return Some(Err("the name is not known"));
    }
    let count = u16::from_be_bytes([head[6], head[7]]);
    Some(records(&message[question_bytes.len()..], count, kind).ok_or("the name has no address"))
}

fn records(mut rest: &[u8], count: u16, kind: RecordType) -> Option<IpAddr> {
    for _ in 0..count {
        rest = after_name(rest)?;
        let (head, data) = rest.split_at_checked(10)?;
        let (data, after) = data.split_at_checked(u16::from_be_bytes([head[8], head[9]]).into())?;
        if head[..4] == [(kind as u16).to_be_bytes(), INTERNET.to_be_bytes()].concat() {
            return match kind {
                RecordType::A => <[u8; 4]>::try_from(data)
                    .ok()
                    .map(|bytes| Ipv4Addr::from(bytes).into()),
                RecordType::Aaaa => <[u8; 16]>::try_from(data)
                    .ok()
                    .map(|bytes| Ipv6Addr::from(bytes).into()),
            };
        }
        rest = after;
    }
    None
}

/// Skips a name, which may end in a compression pointer.
fn after_name(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        match *rest.first()? {
            0 => return rest.get(1..),
            length @ 1..=63 => rest = rest.get(usize::from(length) + 1..)?,
            192.. => return rest.get(2..),
            64..=191 => return None,
        }
    }
}

/// The resolver settings of the image.
#[derive(Debug, Default)]
pub(super) struct NameResolver {
    pub(super) hosts: Vec<u8>,
    pub(super) server: Option<IpAddr>,
}

impl NameResolver {
    /// Looks a name up and blocks. Only before the program runs: it shares our network, where it
    /// could respond in place of a server on loopback (such as that of Docker's networks), and
    /// would get the token.
    pub(super) fn find(&self, name: &str) -> Result<IpAddr, &'static str> {
        match (from_hosts(&self.hosts, name), self.server) {
            (Some(found), _) => Ok(found),
            (None, Some(server)) => query(name, server),
            (None, None) => {
                Err("/etc/hosts does not have it, and /etc/resolv.conf names no server")
            }
        }
    }
}

fn query(name: &str, server: IpAddr) -> Result<IpAddr, &'static str> {
    let socket =
        connected(server).map_err(|_| "the server of /etc/resolv.conf cannot be reached")?;
    let answered = |kind| {
        let found = (0..MAX_QUERIES).find_map(|_| query_once(&socket, name, kind));
        found.ok_or("the server of /etc/resolv.conf does not answer")
    };
    match answered(RecordType::A)? {
        Ok(address) => Ok(address),
        Err(_) => answered(RecordType::Aaaa)?,
    }
}

fn connected(server: IpAddr) -> io::Result<UdpSocket> {
    let local: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((local, 0))?;
    // Only that server's responses reach us.
    socket.connect((server, 53))?;
    Ok(socket)
}

fn query_once(
    socket: &UdpSocket,
    name: &str,
    kind: RecordType,
) -> Option<Result<IpAddr, &'static str>> {
    let question_bytes = question(
        name,
        RandomState::new().build_hasher().finish() as u16,
        kind,
    );
    let until = Instant::now() + QUERY_TIMEOUT;
    // A lost query is repeated.
    _ = socket.send(&question_bytes);
    let mut message = [0; MAX_ANSWER_BYTES];
    loop {
        let left = until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        socket.set_read_timeout(Some(left)).ok()?;
        let length = socket.recv(&mut message).ok()?;
        if let Some(found) = answer(&message[..length], &question_bytes, kind) {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_and_servers_are_read_from_their_files() {
        let hosts =
            b"# c\n::1 localhost\n127.0.0.1 localhost lo # x\n10.0.0.2\tproxy Proxy.Local\nbad proxy2\n";
        assert_eq!(
            from_hosts(hosts, "localhost"),
            Some(Ipv4Addr::LOCALHOST.into())
        );
        assert_eq!(from_hosts(hosts, "proxy.local"), Some([10, 0, 0, 2].into()));
        assert_eq!(
            [from_hosts(hosts, "proxy2"), from_hosts(hosts, "x")],
            [None, None]
        );
        assert_eq!(
            server(b"search a\n# nameserver 1.1.1.1\nnameserver 127.0.0.11\n"),
            Some([127, 0, 0, 11].into())
        );
        assert_eq!(server(b""), None);
    }

    fn reply(question_bytes: &[u8], records: &[&[u8]]) -> Vec<u8> {
        let mut message = question_bytes.to_vec();
        (message[2], message[7]) = (0x81, records.len() as u8);
        [
            vec![message],
            records.iter().map(|record| record.to_vec()).collect(),
        ]
        .concat()
        .concat()
    }

    #[test]
    fn the_first_address_of_an_answer_counts_also_behind_an_alias() {
        let question_bytes = question("proxy.local", 7, RecordType::A);
        let alias = b"\xc0\x0c\0\x05\0\x01\0\0\0\x01\0\x03\x01a\0";
        let address = b"\x01a\0\0\x01\0\x01\0\0\0\x01\0\x04\x0a\0\0\x02";
        assert_eq!(
            answer(
                &reply(&question_bytes, &[alias, address]),
                &question_bytes,
                RecordType::A
            ),
            Some(Ok([10, 0, 0, 2].into()))
        );
        assert!(matches!(
            answer(
                &reply(&question_bytes, &[alias]),
                &question_bytes,
                RecordType::A
            ),
            Some(Err(_))
        ));
        let other = question("proxy.local", 8, RecordType::A);
        assert_eq!(
            answer(&reply(&other, &[address]), &question_bytes, RecordType::A),
            None,
            "another question's"
        );
        let mut unknown = reply(&question_bytes, &[]);
        unknown[3] = 3;
        assert!(matches!(
            answer(&unknown, &question_bytes, RecordType::A),
            Some(Err(_))
        ));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(tail in proptest::collection::vec(any::<u8>(), 0..64), count in any::<u8>()) {
            let question_bytes = question("a.b", 1, RecordType::Aaaa);
            let mut message = reply(&question_bytes, &[&tail]);
            message[7] = count;
            _ = answer(&message, &question_bytes, RecordType::Aaaa);
            _ = answer(&tail, &question_bytes, RecordType::Aaaa);
        }
    }
}
