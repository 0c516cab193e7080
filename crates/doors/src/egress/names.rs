//! The names' door: answers questions for names with made-up addresses that lead to this door, and remembers which is
//! whose. Nothing is asked outside for a name that the rules do not allow.

use super::{
    Egress, Way,
    books::Entry,
    dial::NoWay,
    locked,
    policy::{Passage, Refusal},
    question::{self, A, Code, PTR, Question},
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

/// Names of one run that have an address.
const MOST_NAMES: usize = 4096;
/// Names that are being looked up at the same time. Who asks then is not answered, and asks again.
const MOST_UNDER_WAY: usize = 64;
/// The longest question that is read.
const LONGEST: usize = 4096;
/// After a failed read: long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// Which made-up address is whose.
#[derive(Debug, Default)]
pub(crate) struct Names {
    range: OnceLock<RangeInclusive<Ipv4Addr>>,
    known: Mutex<Known>,
}

/// The n-th name has the n-th address.
#[derive(Debug, Default)]
struct Known {
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

impl Names {
    /// The name that an address was made up for.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<String> {
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

    /// The address of a name, and whether it was made up just now; nothing if there are no more.
    fn address_of(&self, name: &str) -> Option<(Ipv4Addr, bool)> {
        let range = self.range.get()?;
        let mut known = locked(&self.known);
        if let Some(number) = known.numbers.get(name) {
            return Some((address(range, *number)?, false));
        }
        let number = known.names.len();
        let address = address(range, number).filter(|_| number < MOST_NAMES)?;
        let name: Arc<str> = name.into();
        known.names.push(name.clone());
        known.numbers.insert(name, number);
        Some((address, true))
    }
}

/// Answers questions until the task is ended.
pub(crate) fn serve(
    egress: Arc<Egress>,
    socket: UdpSocket,
    range: RangeInclusive<Ipv4Addr>,
) -> io::Result<JoinHandle<()>> {
    // A second door for names gives the same addresses: whoever dials one has not said where it asked.
    egress.names.range.get_or_init(|| range);
    socket.set_nonblocking(true)?;
    let socket = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
    Ok(tokio::spawn(async move {
        // Ends with this task.
        let mut under_way = JoinSet::new();
        let mut bytes = vec![0; LONGEST];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
                tokio::time::sleep(BREATH).await;
                continue;
            };
            while under_way.try_join_next().is_some() {}
            match egress.hear(&bytes[..length]) {
                Heard::Answer(answer) => say(&socket, &answer, from).await,
                Heard::LookUp(look_up) if under_way.len() < MOST_UNDER_WAY => {
                    let (egress, socket) = (egress.clone(), socket.clone());
                    under_way.spawn(async move {
                        let answer = egress.look_up(look_up).await;
                        say(&socket, &answer, from).await;
                    });
                }
                Heard::Nothing | Heard::LookUp(_) => {}
            }
        }
    }))
}

async fn say(socket: &tokio::net::UdpSocket, answer: &[u8], to: SocketAddr) {
    // Whether it hears it is its own business.
    _ = socket.send_to(answer, to).await;
}

/// What comes of a question, by the rules alone.
#[derive(Debug)]
enum Heard {
    Nothing,
    Answer(Vec<u8>),
    /// It may be asked outside.
    LookUp(LookUp),
}

#[derive(Debug)]
struct LookUp {
    question: Question,
    name: String,
    passage: Passage,
}

impl Egress {
    /// Who is at an address that a program has: the name that it asked for, if it did.
    pub(crate) fn host_at(&self, address: IpAddr) -> Host {
        let address = address.to_canonical();
        let named = match address {
            IpAddr::V4(v4) => self.names.name_of(v4),
            IpAddr::V6(_) => None,
        };
        named.map_or(Host::Address(address), Host::Name)
    }

    /// Decides on a question. Nothing leaves.
    fn hear(&self, bytes: &[u8]) -> Heard {
        let question = match question::parse(bytes) {
            Ok(question) => question,
            Err(answer) if answer.is_empty() => return Heard::Nothing,
            Err(answer) => return Heard::Answer(answer),
        };
        let name = match (&question.host, question.kind) {
            (_, PTR) => return Heard::Answer(question.answer(Code::NoSuchName, None)),
            (Ok(Host::Name(name)), _) => name.clone(),
            (Ok(Host::Address(address)), _) => {
                let refusal = Refusal::new("host", format!("{address} is no name"), "nothing");
                return self.deny(&question, &address.to_string(), &refusal);
            }
            (Err(bad), _) => {
                let refusal = Refusal::new("host", bad.to_string(), "nothing");
                return self.deny(&question, &bad.to_string(), &refusal);
            }
        };
        let is_address = question.kind == A;
        if name == "localhost" || name.ends_with(".localhost") {
            let own = is_address.then_some(Ipv4Addr::LOCALHOST);
            return Heard::Answer(question.answer(Code::NoError, own));
        }
        match self.may_ask(&Host::Name(name.clone())) {
            Err(refusal) => self.deny(&question, &name, &refusal),
            Ok(_) if !is_address => Heard::Answer(question.answer(Code::NoError, None)),
            Ok(passage) => Heard::LookUp(LookUp {
                question,
                name,
                passage,
            }),
        }
    }

    fn deny(&self, question: &Question, name: &str, refusal: &Refusal) -> Heard {
        self.books.refused("resolve", name, refusal);
        Heard::Answer(question.answer(Code::NoSuchName, None))
    }

    /// Looks a name up that may be, so that one that does not exist has no address here either.
    async fn look_up(&self, asked: LookUp) -> Vec<u8> {
        let LookUp {
            question,
            name,
            passage,
        } = asked;
        if let Err(refusal) = self.afford(&name, &passage) {
            self.books.refused("resolve", &name, &refusal);
            return question.answer(Code::Refused, None);
        }
        let found = self
            .dialler
            .find(&Host::Name(name.clone()), passage.may_be_private())
            .await;
        let (code, address) = match found {
            Ok(found) => self.make_up(&name, &passage, &found),
            Err(NoWay::Refused(refusal)) => {
                self.books.refused("resolve", &name, &refusal);
                (Code::NoSuchName, None)
            }
            Err(NoWay::Failed(why)) => {
                let entry = Entry {
                    detail: why.to_owned(),
                    ..entry(&name, &passage, "failed")
                };
                // Nothing comes of it.
                _ = self.books.write(&entry);
                (Code::NoSuchName, None)
            }
        };
        question.answer(code, address)
    }

    /// A name can carry anything out to whoever answers for it: one that was not asked for yet counts like a request.
    fn afford(&self, name: &str, passage: &Passage) -> Result<(), Refusal> {
        if self.names.has(name) {
            return Ok(());
        }
        self.begin(passage.first())?;
        self.count(passage.first(), Way::Out, name.len())
    }

    fn make_up(&self, name: &str, passage: &Passage, found: &[IpAddr]) -> (Code, Option<Ipv4Addr>) {
        let Some((address, is_new)) = self.names.address_of(name) else {
            let reason = format!(
                "this run has asked for {MOST_NAMES} names, and there are no more addresses"
            );
            self.books
                .refused("resolve", name, &Refusal::new("names", reason, "nothing"));
            return (Code::ServerFailure, None);
        };
        let verdict = if passage.learned { "learn" } else { "allow" };
        let entry = Entry {
            address: found.first().map(IpAddr::to_string).unwrap_or_default(),
            ..entry(name, passage, verdict)
        };
        match is_new && self.books.write(&entry).is_err() {
            true => (Code::ServerFailure, None),
            false => (Code::NoError, Some(address)),
        }
    }
}

fn entry(name: &str, passage: &Passage, verdict: &'static str) -> Entry {
    Entry {
        operation: "resolve".to_owned(),
        target: name.to_owned(),
        verdict,
        rule: passage.first().rule.name.clone(),
        ..Entry::default()
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
pub(crate) mod tests;
