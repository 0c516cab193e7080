//! The body of a push: a list of ref updates, then a pack. The list is held back until it is complete
//! and every update is allowed; the pack is not inspected.
//!
//! ```text
//! *shallow  1*(old SP new SP ref)  flush │ pack
//!              └ first: NUL capabilities │
//! ──────────── held back, checked ───────┴─ passes
//! ```

use super::{
    GitRefusal,
    pkt_line::{self, PktLine},
    ref_name,
};
use spec::Repository;
use std::collections::BTreeSet;

/// Largest ref list that is held back.
const MAX_BYTES: usize = 256 << 10;
/// Ref updates per push.
const MAX_COMMANDS: usize = 2048;
/// Characters of our message per report line.
const MAX_MESSAGE_CHARS: usize = 2000;

/// One ref update of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefUpdate {
    /// Full name of the ref.
    pub reference: String,
    /// What happens to it.
    pub change: RefChange,
}

/// What happens to a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefChange {
    /// Created. The server refuses if it exists.
    Create,
    /// Moved, forward or not.
    Update,
    /// Deleted.
    Delete,
}

/// What is known about a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushDecision {
    /// More bytes are needed; nothing may be forwarded yet.
    Incomplete,
    /// An empty push, by which git probes for access. The held bytes are the whole body; what
    /// follows is not forwarded.
    Probe,
    /// Every update is allowed: the held bytes and the rest may be forwarded.
    Allowed,
    /// Nothing may be forwarded.
    Refused(GitRefusal),
}

/// Parser and policy check of a push body. The body must not be compressed: the caller rejects a
/// `Content-Encoding`.
#[derive(Debug)]
pub struct PushRequest {
    repository: Repository,
    held: Vec<u8>,
    /// Number of held bytes that are parsed.
    read: usize,
    commands: Vec<RefUpdate>,
    capabilities: PushCapabilities,
    /// Length of object ids; 0 before the first.
    object_length: usize,
    decision: PushDecision,
    /// Index of the refused update.
    refused_update: Option<usize>,
}

/// The client's capabilities.
#[derive(Clone, Copy, Debug, Default)]
struct PushCapabilities {
    report: bool,
    side_band: bool,
    sha256: bool,
    /// Why the capabilities are refused.
    problem: Option<&'static str>,
}

impl PushRequest {
    /// A push to this repository.
    pub fn new(repository: &Repository) -> PushRequest {
        PushRequest {
            repository: repository.clone(),
            held: Vec::new(),
            read: 0,
            commands: Vec::new(),
            capabilities: PushCapabilities::default(),
            object_length: 0,
            decision: PushDecision::Incomplete,
            refused_update: None,
        }
    }

    /// Takes the next bytes. Any result but `Incomplete` is final, and no further bytes are kept.
    pub fn feed(&mut self, bytes: &[u8]) -> PushDecision {
        if self.decision == PushDecision::Incomplete {
            self.held.extend_from_slice(bytes);
            self.decision = self
                .advance()
                .unwrap_or_else(|why| PushDecision::Refused(GitRefusal::unreadable(why)));
        }
        self.decision.clone()
    }

    /// The updates parsed so far: all of them, once the push is allowed.
    pub fn commands(&self) -> &[RefUpdate] {
        &self.commands
    }

    /// The held bytes to forward, if that is allowed: the list, and what arrived with its end.
    pub fn into_held(self) -> Vec<u8> {
        match self.decision {
            PushDecision::Allowed => self.held,
            PushDecision::Probe => self.held[..self.read].to_vec(),
            PushDecision::Incomplete | PushDecision::Refused(_) => Vec::new(),
        }
    }

    fn advance(&mut self) -> Result<PushDecision, &'static str> {
        while let Some((packet, length)) = pkt_line::first(&self.held[self.read..])? {
            self.read += length;
            if self.read > MAX_BYTES {
                return Err("its list of refs is longer than 256 KiB");
            }
            let line = match packet {
                PktLine::Flush => return Ok(self.evaluate()),
                // Copied, because parsing needs `self` mutably.
                PktLine::Line(line) => line.to_vec(),
            };
            self.line(line.strip_suffix(b"\n").unwrap_or(&line))?;
        }
        Ok(PushDecision::Incomplete)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
            Some(at) => (&line[..at], Some(&line[at + 1..])),
            None => (line, None),
        };
        let shallow = line.strip_prefix(b"shallow ");
        match capabilities {
            Some(words) if self.commands.is_empty() && shallow.is_none() => {
                self.capabilities = PushCapabilities::read(words);
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
            (_, Object::None) => RefChange::Delete,
            (Object::None, Object::Some) => RefChange::Create,
            (Object::Some, Object::Some) => RefChange::Update,
        };
        if (self.object_length == 64) != self.capabilities.sha256 {
            return Err("the names of objects are not of the form that it says");
        }
        if self.commands.len() == MAX_COMMANDS {
            return Err("it changes more than 2048 refs");
        }
        self.commands.push(RefUpdate {
            reference: ref_name::parse_ref_name(name)?.to_owned(),
            change,
        });
        Ok(())
    }

    /// Parses an object id; all ids of a push have the same length.
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
        Ok(if text.iter().all(|byte| *byte == b'0') {
            Object::None
        } else {
            Object::Some
        })
    }

    /// Checks the complete list.
    fn evaluate(&mut self) -> PushDecision {
        if let Some(why) = self.capabilities.problem {
            return PushDecision::Refused(GitRefusal::unreadable(why));
        }
        let mut seen = BTreeSet::new();
        for (at, command) in self.commands.iter().enumerate() {
            let verdict = if seen.insert(&command.reference) {
                permit(&self.repository, command)
            } else {
                Err(GitRefusal::unreadable("it names a ref twice"))
            };
            if let Err(denied) = verdict {
                self.refused_update = Some(at);
                return PushDecision::Refused(denied);
            }
        }
        if self.commands.is_empty() {
            PushDecision::Probe
        } else {
            PushDecision::Allowed
        }
    }

    /// The response to a refused push in git's own format, with status 200 and
    /// `application/x-git-receive-pack-result`: git then shows the message and fails. `None` if the
    /// client asked for no report; it gets an ordinary error response. The rest of the body should
    /// be read and discarded, within limits: a client that is disconnected while it sends may not
    /// read the response.
    pub fn refusal(&self, denied: &GitRefusal) -> Option<Vec<u8>> {
        if !self.capabilities.report {
            return None;
        }
        let unpacked = if self.commands.is_empty() {
            format!("unpack airlock: {}\n", one_line(&denied.reason))
        } else {
            "unpack ok\n".to_owned()
        };
        let mut report = Vec::new();
        pkt_line::put(&mut report, unpacked.as_bytes());
        for (at, command) in self.commands.iter().enumerate() {
            let why = if self
                .refused_update
                .is_none_or(|refused_update| refused_update == at)
            {
                one_line(&denied.reason)
            } else {
                "another ref of this push was refused".to_owned()
            };
            pkt_line::put(
                &mut report,
                format!("ng {} airlock: {why}\n", command.reference).as_bytes(),
            );
        }
        pkt_line::put_flush(&mut report);
        Some(if self.capabilities.side_band {
            side_band_report(&report, denied)
        } else {
            report
        })
    }
}

/// An object id; all zeros mean none.
enum Object {
    None,
    Some,
}

impl PushCapabilities {
    /// Only known capabilities are accepted: an unknown one may change what the list means.
    fn read(words: &[u8]) -> PushCapabilities {
        let mut known = PushCapabilities::default();
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

/// Whether the repository's entry allows this update.
fn permit(repository: &Repository, command: &RefUpdate) -> Result<(), GitRefusal> {
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
            RefChange::Update if !update => (
                format!("{name} is there already and may not be moved"),
                missing("update = true"),
            ),
            RefChange::Delete if !delete => (
                format!("{name} may not be removed"),
                missing("delete = true"),
            ),
            RefChange::Create | RefChange::Update | RefChange::Delete => return Ok(()),
        }
    };
    Err(GitRefusal { reason, allow_with })
}

/// The report in side band 1, and our message in band 2, which git shows after `remote:`.
fn side_band_report(report: &[u8], denied: &GitRefusal) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |band: u8, bytes: &[u8]| {
        for piece in bytes.chunks(pkt_line::MAX_LINE_BYTES - 5) {
            pkt_line::put(&mut out, &[&[band], piece].concat());
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
    pkt_line::put_flush(&mut out);
    out
}

fn one_line(text: &str) -> String {
    let plain = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.chars().take(MAX_MESSAGE_CHARS).map(plain).collect()
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
