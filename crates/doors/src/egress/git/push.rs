//! The body of a push: a list of refs that shall change, then a pack. The list is held back until it has been read to its
//! end and every change in it is allowed; the pack is not looked at.
//!
//! ```text
//! *shallow  1*(old SP new SP ref)  flush │ pack
//!              └ first: NUL capabilities │
//! ──────────── held back, judged ────────┴─ passes
//! ```

use super::{
    Denied,
    pkt::{self, Packet},
    reference,
};
use spec::Repository;
use std::collections::BTreeSet;

/// The longest list that is held back.
const MOST_BYTES: usize = 256 << 10;
/// Refs of one push.
const MOST_COMMANDS: usize = 2048;
/// Words of ours in one line of a report.
const MOST_WORDS: usize = 2000;

/// One change of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The ref, by its full name.
    pub reference: String,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new. The server refuses if it is not.
    Create,
    /// It is moved, forward or not.
    Update,
    /// It is removed.
    Delete,
}

/// What is known of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Not enough: nothing may be forwarded yet.
    More,
    /// It changes nothing: git wants to know whether it would be let in. What is held is the whole body; what comes after
    /// it is not forwarded.
    Probe,
    /// Every change is allowed: what is held may be forwarded, and what comes after it.
    Allowed,
    /// Nothing of it may be forwarded.
    Refused(Denied),
}

/// Reads the body of a push. It must come as it is: the caller refuses a `Content-Encoding`.
#[derive(Debug)]
pub struct Push {
    repository: Repository,
    held: Vec<u8>,
    /// Of what is held, this much was read.
    read: usize,
    commands: Vec<Command>,
    capabilities: Capabilities,
    /// How long the names of objects are; 0 before the first.
    object_length: usize,
    decision: Decision,
    /// Which command was refused.
    culprit: Option<usize>,
}

/// What the client asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Capabilities {
    report: bool,
    side_band: bool,
    sha256: bool,
    /// Why the push is refused for what it asks for.
    problem: Option<&'static str>,
}

impl Push {
    /// A push to this repository.
    pub fn new(repository: &Repository) -> Push {
        Push {
            repository: repository.clone(),
            held: Vec::new(),
            read: 0,
            commands: Vec::new(),
            capabilities: Capabilities::default(),
            object_length: 0,
            decision: Decision::More,
            culprit: None,
        }
    }

    /// Takes the next bytes. Once this says anything but `More`, it says so forever and keeps no further bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Decision {
        if self.decision == Decision::More {
            self.held.extend_from_slice(bytes);
            self.decision = self
                .advance()
                .unwrap_or_else(|why| Decision::Refused(Denied::unreadable(why)));
        }
        self.decision.clone()
    }

    /// What was read of its changes: all of them, once it is allowed.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// What was held back, to be forwarded if that is allowed: the list, and what came along with its end.
    pub fn into_held(self) -> Vec<u8> {
        match self.decision {
            Decision::Allowed => self.held,
            Decision::Probe => self.held[..self.read].to_vec(),
            Decision::More | Decision::Refused(_) => Vec::new(),
        }
    }

    fn advance(&mut self) -> Result<Decision, &'static str> {
        while let Some((packet, length)) = pkt::first(&self.held[self.read..])? {
            self.read += length;
            if self.read > MOST_BYTES {
                return Err("its list of refs is longer than 256 KiB");
            }
            let line = match packet {
                Packet::Flush => return Ok(self.judge()),
                // Out of what is held, which must not change meanwhile.
                Packet::Line(line) => line.to_vec(),
            };
            self.line(line.strip_suffix(b"\n").unwrap_or(&line))?;
        }
        Ok(Decision::More)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
            Some(at) => (&line[..at], Some(&line[at + 1..])),
            None => (line, None),
        };
        let shallow = line.strip_prefix(b"shallow ");
        match capabilities {
            Some(words) if self.commands.is_empty() && shallow.is_none() => {
                self.capabilities = Capabilities::read(words);
            }
            Some(_) => return Err("there is a NUL where git puts none"),
            None => {}
        }
        match shallow {
            _ if line.starts_with(b"push-cert") => {
                Err("it is signed, which is not served here; push without --signed")
            }
            Some(_) if !self.commands.is_empty() => Err("there is a shallow line behind a ref"),
            Some(object) => self.object(object).map(|_| ()),
            None => self.command(line),
        }
    }

    fn command(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let (Some(old), Some(new), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("a line is not `old new ref`");
        };
        let change = match (self.object(old)?, self.object(new)?) {
            (_, Object::None) => Change::Delete,
            (Object::None, Object::Some) => Change::Create,
            (Object::Some, Object::Some) => Change::Update,
        };
        if (self.object_length == 64) != self.capabilities.sha256 {
            return Err("the names of objects are not of the form that it says");
        }
        if self.commands.len() == MOST_COMMANDS {
            return Err("it changes more than 2048 refs");
        }
        self.commands.push(Command {
            reference: reference::name(name)?.to_owned(),
            change,
        });
        Ok(())
    }

    /// The name of an object; all in a push are of one form.
    fn object(&mut self, text: &[u8]) -> Result<Object, &'static str> {
        let lower_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        let fits = match self.object_length {
            0 => [40, 64].contains(&text.len()),
            length => text.len() == length,
        };
        if !fits || !text.iter().all(lower_hex) {
            return Err("the name of an object is not one");
        }
        self.object_length = text.len();
        Ok(match text.iter().all(|byte| *byte == b'0') {
            true => Object::None,
            false => Object::Some,
        })
    }

    /// The whole list was read: whether all of it may be.
    fn judge(&mut self) -> Decision {
        if let Some(why) = self.capabilities.problem {
            return Decision::Refused(Denied::unreadable(why));
        }
        let mut seen = BTreeSet::new();
        for (at, command) in self.commands.iter().enumerate() {
            let verdict = match seen.insert(&command.reference) {
                true => permit(&self.repository, command),
                false => Err(Denied::unreadable("it names a ref twice")),
            };
            if let Err(denied) = verdict {
                self.culprit = Some(at);
                return Decision::Refused(denied);
            }
        }
        match self.commands.is_empty() {
            true => Decision::Probe,
            false => Decision::Allowed,
        }
    }

    /// The answer to a refused push, as git's own server would give it, with status 200 and
    /// `application/x-git-receive-pack-result`: git then shows the words and fails. Nothing if the client asked for no
    /// report; it gets an ordinary refusal.
    ///
    /// The rest of the body should be read and thrown away, within bounds: a client that is cut off while it sends may not
    /// read the answer.
    pub fn refusal(&self, denied: &Denied) -> Option<Vec<u8>> {
        if !self.capabilities.report {
            return None;
        }
        let unpacked = match self.commands.is_empty() {
            true => format!("unpack airlock: {}\n", one_line(&denied.reason)),
            false => "unpack ok\n".to_owned(),
        };
        let mut report = Vec::new();
        pkt::put(&mut report, unpacked.as_bytes());
        for (at, command) in self.commands.iter().enumerate() {
            let why = match self.culprit.is_none_or(|culprit| culprit == at) {
                true => one_line(&denied.reason),
                false => "another ref of this push was refused".to_owned(),
            };
            pkt::put(
                &mut report,
                format!("ng {} airlock: {why}\n", command.reference).as_bytes(),
            );
        }
        pkt::put_flush(&mut report);
        Some(match self.capabilities.side_band {
            true => in_bands(&report, denied),
            false => report,
        })
    }
}

/// An object, or the zeros that stand for none.
enum Object {
    None,
    Some,
}

impl Capabilities {
    /// Only those that are known pass: an unknown one may change what the list means.
    fn read(words: &[u8]) -> Capabilities {
        let mut known = Capabilities::default();
        let mut formats = 0;
        for word in words
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
        {
            let word = std::str::from_utf8(word).unwrap_or("\0");
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let graphic = word.bytes().all(|byte| byte.is_ascii_graphic());
            match (name, value) {
                _ if !graphic => known.problem = Some("a capability has a character that none has"),
                ("report-status" | "report-status-v2", "") => known.report = true,
                ("side-band-64k", "") => known.side_band = true,
                ("object-format", "sha1" | "sha256") => {
                    formats += 1;
                    known.sha256 = value == "sha256";
                }
                ("atomic" | "quiet" | "delete-refs" | "ofs-delta", "")
                | ("agent" | "session-id", _) => {}
                ("push-options", _) => {
                    known.problem =
                        Some("it has push options, which servers obey; push without them");
                }
                _ => known.problem = Some("it asks for a capability that is not known here"),
            }
        }
        if formats > 1 {
            known.problem = Some("it names the form of objects twice");
        }
        known
    }
}

/// Whether the repository's entry has this change.
fn permit(repository: &Repository, command: &Command) -> Result<(), Denied> {
    let Repository {
        path,
        push,
        update,
        delete,
        ..
    } = repository;
    let name = &command.reference;
    let missing = |setting: &str| format!("`{setting}` at `{path}` in `repos` of the rule");
    let (reason, allow_with) = if !push.iter().any(|pattern| pattern.matches(name)) {
        let allowed: Vec<_> = push.iter().map(|pattern| pattern.as_str()).collect();
        let reason = format!("{name} may not be written, only {}", allowed.join(", "));
        (reason, missing(&format!("push = [\"{name}\"]")))
    } else {
        match command.change {
            Change::Update if !update => (
                format!("{name} is there already and may not be moved"),
                missing("update = true"),
            ),
            Change::Delete if !delete => (
                format!("{name} may not be removed"),
                missing("delete = true"),
            ),
            Change::Create | Change::Update | Change::Delete => return Ok(()),
        }
    };
    Err(Denied { reason, allow_with })
}

/// A report in the first band, and our words in the second, which git shows behind `remote:`.
fn in_bands(report: &[u8], denied: &Denied) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |band: u8, bytes: &[u8]| {
        for piece in bytes.chunks(pkt::LONGEST - 5) {
            pkt::put(&mut out, &[&[band], piece].concat());
        }
    };
    let allow = match denied.allow_with.as_str() {
        "nothing" => "Nothing allows it.".to_owned(),
        allow => format!("What would allow it: {}.", one_line(allow)),
    };
    let words = format!(
        "airlock: the push was refused: {}.\nairlock: {allow}\n",
        one_line(&denied.reason)
    );
    put(2, words.as_bytes());
    put(1, report);
    pkt::put_flush(&mut out);
    out
}

fn one_line(text: &str) -> String {
    let plain = |character: char| match character.is_control() {
        true => ' ',
        false => character,
    };
    text.chars().take(MOST_WORDS).map(plain).collect()
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
