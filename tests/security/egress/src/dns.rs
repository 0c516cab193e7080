//! The name server of a world. It records every question. Unless told otherwise, every name has [`SERVER_V4`] and
//! [`SERVER_V6`]; told otherwise, a name can change its mind, lead to anywhere, be missing, or never be answered.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// Where names lead that nobody said anything about.
pub const SERVER_V4: &str = "93.184.216.34";
/// The same of IPv6.
pub const SERVER_V6: &str = "2606:4700::1111";

const ADDRESS: u16 = 1;
const ALIAS: u16 = 5;
const ADDRESS_V6: u16 = 28;
const HEAD: usize = 12;

/// A question that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Query {
    /// In small letters, without a dot at its end.
    pub name: String,
    /// `A`, `AAAA`, or the number of another kind.
    pub kind: String,
    pub from: SocketAddr,
}

/// What is said of a name.
#[derive(Clone, Debug)]
enum Story {
    /// One list of addresses a question of each kind, then the last for ever.
    Turns(Vec<Vec<IpAddr>>),
    /// Another name's addresses.
    Alias(String),
    /// There is no such name.
    Missing,
    /// The server fails.
    Broken,
    /// There is no answer.
    Silence,
}

/// What is known, and what was asked.
#[derive(Debug, Default)]
pub(crate) struct Names {
    stories: BTreeMap<String, Story>,
    asked: BTreeMap<(String, u16), usize>,
    pub(crate) queries: Vec<Query>,
}

impl crate::World {
    /// What a name resolves to: the first list for its first question (of each kind), and so on; the last for ever. Lists
    /// may have addresses of both kinds, none, good and bad ones.
    pub fn resolves(&self, name: &str, turns: &[&[&str]]) {
        let address = |text: &&str| {
            text.parse()
                .unwrap_or_else(|_| panic!("{text} is an address"))
        };
        let turns = turns
            .iter()
            .map(|turn| turn.iter().map(address).collect())
            .collect();
        self.tell(name, Story::Turns(turns));
    }

    /// A name that is another name for something.
    pub fn is_alias(&self, name: &str, target: &str) {
        self.tell(name, Story::Alias(target.to_owned()));
    }

    /// There is no such name.
    pub fn is_missing(&self, name: &str) {
        self.tell(name, Story::Missing);
    }

    /// The name server fails on it.
    pub fn is_broken(&self, name: &str) {
        self.tell(name, Story::Broken);
    }

    /// The name server never answers.
    pub fn is_never_answered(&self, name: &str) {
        self.tell(name, Story::Silence);
    }

    /// Every question since [`clear`](crate::World::clear), in order.
    pub fn queries(&self) -> Vec<Query> {
        lock(&self.names).queries.clone()
    }

    fn tell(&self, name: &str, story: Story) {
        lock(&self.names)
            .stories
            .insert(name.to_ascii_lowercase(), story);
    }
}

pub(crate) fn lock(names: &Mutex<Names>) -> std::sync::MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers for ever.
pub(crate) async fn serve(socket: UdpSocket, names: Arc<Mutex<Names>>) {
    let mut buffer = [0; 4096];
    loop {
        let Ok((size, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        if let Some(answer) = answer(&buffer[..size], from, &names) {
            _ = socket.send_to(&answer, from).await;
        }
    }
}

/// The same over TCP.
pub(crate) async fn serve_tcp(listener: TcpListener, names: Arc<Mutex<Names>>) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            continue;
        };
        let names = names.clone();
        tokio::spawn(async move { converse(stream, from, &names).await });
    }
}

async fn converse(mut stream: TcpStream, from: SocketAddr, names: &Mutex<Names>) -> Option<()> {
    loop {
        let size = stream.read_u16().await.ok()?;
        let mut question = vec![0; size.into()];
        stream.read_exact(&mut question).await.ok()?;
        if let Some(answer) = answer(&question, from, names) {
            stream.write_u16(answer.len() as u16).await.ok()?;
            stream.write_all(&answer).await.ok()?;
        }
    }
}

/// The answer to a packet; none if it is none, or if there shall be none.
fn answer(packet: &[u8], from: SocketAddr, names: &Mutex<Names>) -> Option<Vec<u8>> {
    let (name, kind, end) = question(packet)?;
    let known = match kind {
        ADDRESS => "A".to_owned(),
        ADDRESS_V6 => "AAAA".to_owned(),
        other => other.to_string(),
    };
    let mut names = lock(names);
    names.queries.push(Query {
        name: name.clone(),
        kind: known,
        from,
    });
    let (status, records) = names.records(&name, kind, 0)?;
    let mut out = packet[..2].to_vec();
    // An answer, by whom recursion can be asked.
    out.extend([0x81, 0x80 | status]);
    out.extend([0, 1]);
    out.extend((records.len() as u16).to_be_bytes());
    out.extend([0; 4]);
    out.extend(&packet[HEAD..end]);
    records.iter().for_each(|record| out.extend(record));
    Some(out)
}

/// Its name, its kind, and where it ends.
fn question(packet: &[u8]) -> Option<(String, u16, usize)> {
    let mut at = HEAD;
    let mut labels = Vec::new();
    loop {
        let size = usize::from(*packet.get(at)?);
        at += 1;
        if size == 0 {
            break;
        }
        let label = packet.get(at..at + size).filter(|_| size < 64)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += size;
    }
    let kind = packet.get(at..at + 2)?;
    packet.get(at + 2..at + 4)?;
    Some((
        labels.join("."),
        u16::from_be_bytes([kind[0], kind[1]]),
        at + 4,
    ))
}

impl Names {
    /// Begins anew, but for what is said of names.
    pub(crate) fn forget(&mut self) {
        self.queries.clear();
        self.asked.clear();
    }

    /// The status and the records for a name; none for silence.
    fn records(&mut self, name: &str, kind: u16, depth: u8) -> Option<(u8, Vec<Vec<u8>>)> {
        let story = self.stories.get(name).cloned();
        let servers = || {
            vec![vec![
                SERVER_V4.parse().expect("v4"),
                SERVER_V6.parse().expect("v6"),
            ]]
        };
        let turns = match story.unwrap_or_else(|| Story::Turns(servers())) {
            Story::Missing => return Some((3, Vec::new())),
            Story::Broken => return Some((2, Vec::new())),
            Story::Silence => return None,
            Story::Alias(target) => {
                let (status, more) = if depth < 8 {
                    self.records(&target, kind, depth + 1)?
                } else {
                    (0, Vec::new())
                };
                let own = record(name, ALIAS, &labels(&target));
                return Some((status, [vec![own], more].concat()));
            }
            Story::Turns(turns) => turns,
        };
        let asked = self.asked.entry((name.to_owned(), kind)).or_default();
        let turn = turns
            .get(*asked)
            .or(turns.last())
            .cloned()
            .unwrap_or_default();
        *asked += 1;
        let bytes = |address: &IpAddr| match (address, kind) {
            (IpAddr::V4(v4), ADDRESS) => Some(Ipv4Addr::octets(v4).to_vec()),
            (IpAddr::V6(v6), ADDRESS_V6) => Some(Ipv6Addr::octets(v6).to_vec()),
            _ => None,
        };
        let all = turn
            .iter()
            .filter_map(bytes)
            .map(|bytes| record(name, kind, &bytes));
        Some((0, all.collect()))
    }
}

fn labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
    let mut all: Vec<u8> = name
        .split('.')
        .filter(|part| !part.is_empty())
        .flat_map(label)
        .collect();
    all.push(0);
    all
}

/// A record that nobody may keep: its time to live is nothing.
fn record(name: &str, kind: u16, data: &[u8]) -> Vec<u8> {
    let head = [
        labels(name),
        kind.to_be_bytes().to_vec(),
        vec![0, 1, 0, 0, 0, 0],
    ]
    .concat();
    [
        head,
        (data.len() as u16).to_be_bytes().to_vec(),
        data.to_vec(),
    ]
    .concat()
}
