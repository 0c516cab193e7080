//! Goes through a body once and notes what matters.

use super::ask::{Ask, BadAsk, Cap, Given, Inside, Limit, Member, bad};
use super::json::{Literal, Scanner};
use super::keys::{self, Key, Mark, Named, Place};
use super::{Dialect, Operation};
use std::{borrow::Cow, ops::Range};

/// No name of a model is longer.
const LONGEST_MODEL: usize = 256;

/// A body that is being read.
pub(super) struct Reading<'b> {
    scanner: Scanner<'b>,
    operation: Operation,
    ask: Ask,
}

/// What stands around a value that is nothing special.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Around {
    Anything,
    Link,
    Audio,
    /// The input of Responses: a list of items.
    Items,
}

impl<'b> Reading<'b> {
    pub(super) fn new(operation: Operation, text: &'b str, ask: Ask) -> Reading<'b> {
        Reading {
            scanner: Scanner::new(text),
            operation,
            ask,
        }
    }

    pub(super) fn root(mut self) -> Result<Ask, BadAsk> {
        if self.scanner.peek() != Some(b'{') {
            return Err(bad("the body is not a JSON object"));
        }
        self.ask.places.root = self.object(Place::Root)?;
        self.scanner.finish()?;
        Ok(self.ask)
    }

    /// An object of which some members matter.
    fn object(&mut self, place: Place) -> Result<Inside, BadAsk> {
        self.scanner.enter()?;
        let mut inside = Inside {
            at: self.scanner.at(),
            is_empty: true,
        };
        let mut seen: Vec<Key> = Vec::new();
        while let Some(name) = self.name()? {
            inside.is_empty = false;
            match keys::named(self.operation, place, &name) {
                Named::As(key) if seen.contains(&key) => {
                    return Err(bad(format!(
                        "`{name}` is there twice, perhaps in two spellings"
                    )));
                }
                Named::As(key) => {
                    seen.push(key);
                    self.member(key, &name)?;
                }
                Named::Nearly => {
                    return Err(bad(format!(
                        "`{name}` is nearly a name that matters; write it as documented"
                    )));
                }
                Named::Nothing => self.value_of(&name, Around::Anything)?,
            }
        }
        Ok(inside)
    }

    /// The name of the next member, decoded.
    fn name(&mut self) -> Result<Option<Cow<'b, str>>, BadAsk> {
        let Some(literal) = self.scanner.key()? else {
            return Ok(None);
        };
        let name = self.scanner.decode(&literal)?;
        // Some readers end a string there. Unescaped it is no JSON.
        if literal.has_escapes && name.contains('\0') {
            return Err(bad("a name has a zero character in it"));
        }
        Ok(Some(name))
    }

    fn member(&mut self, key: Key, name: &str) -> Result<(), BadAsk> {
        match key {
            Key::Model => self.model()?,
            Key::Stream => self.ask.stream = self.flag(name)?.unwrap_or(self.ask.stream),
            Key::StreamOptions => {
                self.ask.places.stream_options = self.inner(name, Place::StreamOptions)?
            }
            Key::IncludeUsage => self.include_usage(name)?,
            Key::Limit(known) => self.limit(known, name)?,
            Key::Choices(_) => self.choices(name)?,
            Key::Identity(_) => self.identity()?,
            Key::Metadata => {
                self.inner(name, Place::Metadata)?;
            }
            Key::Settings => self.ask.places.settings = self.inner(name, Place::Settings)?,
            Key::Tools => {
                self.ask.tools = true;
                self.tools()?;
            }
            Key::Input => self.value(Around::Items)?,
            Key::Requests(_) => self.requests()?,
            Key::Tier(_) => self.tier()?,
            Key::Modalities => self.ask.priced_otherwise |= self.speaks_of(&["image", "video"])?,
            Key::Otherwise(_) => self.ask.priced_otherwise |= self.is_there()?,
            Key::ServerTool(_) => self.ask.server_tools |= self.is_there()?,
            Key::ContextManagement => self.ask.server_tools |= self.speaks_of(&["compact"])?,
            Key::Beyond(_) => self.beyond()?,
            Key::Prompt => self.prompt()?,
            Key::Background => {
                if self.flag(name)? == Some(true) {
                    return Err(bad(
                        "`background` would go on where nobody counts; leave it out",
                    ));
                }
            }
            Key::Refused(_) => {
                return Err(bad(format!(
                    "`{name}` is not the program's to say; leave it out"
                )));
            }
        }
        Ok(())
    }

    fn model(&mut self) -> Result<(), BadAsk> {
        let literal = self
            .literal()?
            .ok_or_else(|| bad("`model` is not a string"))?;
        let written = self.scanner.decode(&literal)?;
        let is_gemini = self.operation.dialect() == Some(Dialect::Gemini);
        let name = written
            .strip_prefix("models/")
            .filter(|_| is_gemini)
            .unwrap_or(&written);
        // No provider has others, and what looks alike is not alike.
        // With a comma LiteLLM takes it for several.
        if name.len() > LONGEST_MODEL
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b',')
        {
            return Err(bad(
                "`model` is not a name of at most 256 printable characters without a comma",
            ));
        }
        match &self.ask.model {
            Some((other, _)) if other != name => return Err(bad("two models are named")),
            Some(_) => {}
            None => self.ask.model = Some((name.to_owned(), literal.at.clone())),
        }
        self.ask.places.models.push(literal.at);
        Ok(())
    }

    fn include_usage(&mut self, name: &str) -> Result<(), BadAsk> {
        self.scanner.peek();
        let start = self.scanner.at();
        self.ask.wants_usage = self.flag(name)? == Some(true);
        self.ask.places.include_usage = Some(start..self.scanner.at());
        Ok(())
    }

    fn limit(&mut self, known: &'static str, name: &str) -> Result<(), BadAsk> {
        let (at, number) = self.whole_number(name)?;
        let is_ollama = self.operation.dialect() == Some(Dialect::Ollama);
        let given = match number {
            None => Given::Null,
            Some(Whole::Negative) => Given::Unlimited,
            // To Ollama it is no limit; others refuse it, or warm a cache that nobody counts.
            Some(Whole::Number(0)) if is_ollama => Given::Unlimited,
            Some(Whole::Number(0)) => return Err(bad(format!("`{name}` is not at least 1"))),
            Some(Whole::Number(tokens)) => Given::Tokens(tokens),
        };
        if let Given::Tokens(tokens) = given
            && self.ask.cap.as_ref().is_none_or(|cap| cap.tokens < tokens)
        {
            self.ask.cap = Some(Cap {
                tokens,
                at: at.clone(),
            });
        }
        self.ask.places.limits.push(Limit {
            name: known,
            at,
            given,
        });
        Ok(())
    }

    fn choices(&mut self, name: &str) -> Result<(), BadAsk> {
        match self.whole_number(name)? {
            (_, None) => Ok(()),
            (_, Some(Whole::Number(count @ 1..))) => {
                self.ask.choices = self.ask.choices.max(count);
                Ok(())
            }
            (_, Some(_)) => Err(bad(format!("`{name}` is not at least 1"))),
        }
    }

    fn identity(&mut self) -> Result<(), BadAsk> {
        let at = self.scanner.skip()?;
        if self.scanner.text(at.clone()) != "null" {
            self.ask.identities.push(at);
        }
        Ok(())
    }

    fn requests(&mut self) -> Result<(), BadAsk> {
        match self.scanner.peek() {
            Some(b'[') => {
                self.scanner.enter()?;
                while self.scanner.element()? {
                    self.requests()?;
                }
                Ok(())
            }
            Some(b'{') => self.object(Place::Request).map(drop),
            _ => self.value(Around::Anything),
        }
    }

    fn tier(&mut self) -> Result<(), BadAsk> {
        let usual = match self.literal()? {
            Some(literal) => is_usual(&self.scanner.decode(&literal)?),
            None => !self.is_there()?,
        };
        self.ask.priced_otherwise |= !usual;
        Ok(())
    }

    fn prompt(&mut self) -> Result<(), BadAsk> {
        let is_stored = self.scanner.peek() == Some(b'{');
        self.value(Around::Anything)?;
        self.ask.refers_beyond |= is_stored;
        self.ask.server_tools |= is_stored;
        Ok(())
    }

    fn tools(&mut self) -> Result<(), BadAsk> {
        match (self.scanner.peek(), self.operation.dialect()) {
            (_, Some(Dialect::Ollama) | None) => self.value(Around::Anything),
            (Some(b'['), _) => {
                self.scanner.enter()?;
                while self.scanner.element()? {
                    self.tools()?;
                }
                Ok(())
            }
            (Some(b'{'), Some(Dialect::Gemini)) => self.gemini_tool(),
            (Some(b'{'), Some(Dialect::OpenAi | Dialect::Anthropic)) => self.typed_tool(),
            _ => self
                .is_there()
                .map(|is_there| self.ask.server_tools |= is_there),
        }
    }

    /// Tools may be added in the input of Responses. A parameter of a tool may be called so, too: that is no list.
    fn later_tools(&mut self) -> Result<(), BadAsk> {
        if self.scanner.peek() == Some(b'[') {
            self.tools()
        } else {
            self.value(Around::Anything)
        }
    }

    /// Its `type` says who runs it.
    fn typed_tool(&mut self) -> Result<(), BadAsk> {
        self.scanner.enter()?;
        // Anthropic's own tools may leave it out; elsewhere what has no type may be anything.
        let mut is_typed = self.operation.dialect() == Some(Dialect::Anthropic);
        while let Some(name) = self.name()? {
            is_typed |= keys::mark(&name) == Some(Mark::Type);
            match (keys::mark(&name), self.scanner.peek()) {
                (Some(Mark::Type), Some(b'"')) => {
                    let literal = self.scanner.string()?;
                    let kind = self.scanner.decode(&literal)?;
                    self.ask.server_tools |= !is_client_tool(self.operation, &kind);
                }
                (Some(Mark::Type), _) => self.ask.server_tools |= self.is_there()?,
                _ => self.value_of(&name, Around::Anything)?,
            }
        }
        self.ask.server_tools |= !is_typed;
        Ok(())
    }

    /// Its one member says who runs it.
    fn gemini_tool(&mut self) -> Result<(), BadAsk> {
        self.scanner.enter()?;
        while let Some(name) = self.name()? {
            let is_client = matches!(
                &*name,
                "functionDeclarations" | "function_declarations" | "computerUse" | "computer_use"
            );
            let is_there = self.raw(|reading| reading.value_of(&name, Around::Anything))? != "null";
            self.ask.server_tools |= is_there && !is_client;
        }
        Ok(())
    }

    /// Any value. Wherever it stands, it may point beyond the body.
    fn value(&mut self, around: Around) -> Result<(), BadAsk> {
        match self.scanner.peek() {
            Some(b'{') => return self.any_object(around),
            Some(b'[') => {
                self.scanner.enter()?;
                while self.scanner.element()? {
                    self.value(around)?;
                }
            }
            _ => {
                self.scanner.skip()?;
            }
        }
        Ok(())
    }

    fn any_object(&mut self, around: Around) -> Result<(), BadAsk> {
        self.scanner.enter()?;
        let mut is_described = around != Around::Items;
        while let Some(name) = self.name()? {
            let value = self.raw(|reading| reading.value_of(&name, around))?;
            is_described |= value != "null" && matches!(&*name, "type" | "role");
        }
        // An item that is only an id is one of an earlier response.
        self.ask.refers_beyond |= !is_described;
        Ok(())
    }

    fn value_of(&mut self, name: &str, around: Around) -> Result<(), BadAsk> {
        let mark = keys::mark(name);
        let is_string = self.scanner.peek() == Some(b'"');
        match mark {
            Some(Mark::Link) if is_string => self.link(|_| true),
            Some(Mark::Url) if is_string && around == Around::Link => self.link(|_| true),
            Some(Mark::MaybeLink) if is_string => self.link(|text| text.contains("://")),
            Some(Mark::Link | Mark::MaybeLink | Mark::Source) => self.value(Around::Link),
            Some(Mark::Name) if self.scanner.peek() != Some(b'{') => self.beyond(),
            Some(Mark::Elsewhere) => self.beyond(),
            Some(Mark::MediaType) if is_string => self.media_type(),
            Some(Mark::Images) => self.images(),
            Some(Mark::Audio) => self.value(Around::Audio),
            Some(Mark::Id) if around == Around::Audio => self.beyond(),
            Some(Mark::Type) if is_string => self.kind(),
            Some(Mark::Tools) if self.operation == Operation::Responses => self.later_tools(),
            Some(
                Mark::Url | Mark::MediaType | Mark::Id | Mark::Type | Mark::Name | Mark::Tools,
            )
            | None => self.value(Around::Anything),
        }
    }

    fn beyond(&mut self) -> Result<(), BadAsk> {
        self.ask.refers_beyond |= self.is_there()?;
        Ok(())
    }

    /// A picture in its own address is here; what else is an address is elsewhere.
    fn link(&mut self, is_address: fn(&str) -> bool) -> Result<(), BadAsk> {
        let literal = self.scanner.string()?;
        let text = self.scanner.decode(&literal)?;
        if starts_with(&text, "data:image/") {
            self.ask.pictures += 1;
        } else {
            let is_address = is_address(&text);
            self.ask.refers_beyond |= is_address;
            self.ask.fetches |= is_address && text.contains("://");
        }
        Ok(())
    }

    /// Documents, films and sound can be many tokens in few bytes.
    fn media_type(&mut self) -> Result<(), BadAsk> {
        let literal = self.scanner.string()?;
        let text = self.scanner.decode(&literal)?;
        if starts_with(&text, "image/") {
            self.ask.pictures += 1;
        } else {
            self.ask.refers_beyond |=
                !starts_with(&text, "text/") && !starts_with(&text, "application/json");
        }
        Ok(())
    }

    fn images(&mut self) -> Result<(), BadAsk> {
        if self.scanner.peek() != Some(b'[') {
            return self.value(Around::Link);
        }
        self.scanner.enter()?;
        while self.scanner.element()? {
            self.value(Around::Link)?;
            self.ask.pictures += 1;
        }
        Ok(())
    }

    fn kind(&mut self) -> Result<(), BadAsk> {
        let literal = self.scanner.string()?;
        self.ask.refers_beyond |= self.scanner.decode(&literal)? == "item_reference";
        Ok(())
    }

    /// An object of which some members matter, or null.
    fn inner(&mut self, name: &str, place: Place) -> Result<Member, BadAsk> {
        if self.scanner.peek() == Some(b'{') {
            return self.object(place).map(Member::Object);
        }
        let at = self.scanner.skip()?;
        match self.scanner.text(at.clone()) {
            "null" => Ok(Member::Null(at)),
            _ => Err(bad(format!("`{name}` is not an object"))),
        }
    }

    /// The string that comes next, if one does.
    fn literal(&mut self) -> Result<Option<Literal>, BadAsk> {
        match self.scanner.peek() {
            Some(b'"') => Ok(Some(self.scanner.string()?)),
            _ => Ok(None),
        }
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, BadAsk> {
        let at = self.scanner.skip()?;
        match self.scanner.text(at) {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            "null" => Ok(None),
            _ => Err(bad(format!("`{name}` is neither true nor false"))),
        }
    }

    fn whole_number(&mut self, name: &str) -> Result<(Range<usize>, Option<Whole>), BadAsk> {
        let at = self.scanner.skip()?;
        let number = match self.scanner.text(at.clone()) {
            "null" => None,
            text => {
                Some(whole(text).ok_or_else(|| bad(format!("`{name}` is not a whole number")))?)
            }
        };
        Ok((at, number))
    }

    /// Passes over a value that matters by being there.
    fn is_there(&mut self) -> Result<bool, BadAsk> {
        let value = self.raw(|reading| reading.value(Around::Anything))?;
        Ok(!matches!(value, "null" | "false" | "[]" | "{}"))
    }

    /// Passes over a value; whether one of these is in it, or may be.
    fn speaks_of(&mut self, words: &[&str]) -> Result<bool, BadAsk> {
        let value = self
            .raw(|reading| reading.value(Around::Anything))?
            .to_ascii_lowercase();
        Ok(value.contains('\\') || words.iter().any(|word| value.contains(word)))
    }

    /// The text of a value that is read meanwhile.
    fn raw(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), BadAsk>,
    ) -> Result<&'b str, BadAsk> {
        self.scanner.peek();
        let start = self.scanner.at();
        read(self)?;
        Ok(self.scanner.text(start..self.scanner.at()))
    }
}

enum Whole {
    Negative,
    /// What is beyond the range is its end.
    Number(u64),
}

fn whole(text: &str) -> Option<Whole> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_negative = digits.len() < text.len();
    Some(if is_negative {
        Whole::Negative
    } else {
        Whole::Number(digits.parse().unwrap_or(u64::MAX))
    })
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Tiers, speeds and places at the usual price.
fn is_usual(value: &str) -> bool {
    let usual = [
        "auto",
        "default",
        "standard",
        "standard_only",
        "global",
        "not_available",
    ];
    usual.iter().any(|known| value.eq_ignore_ascii_case(known))
}

/// The program runs it and sends the result, so it costs no more than its words.
fn is_client_tool(operation: Operation, kind: &str) -> bool {
    match operation.dialect() {
        Some(Dialect::Anthropic) => {
            let families = ["bash_", "text_editor_", "computer_", "memory_"];
            kind == "custom" || families.iter().any(|family| kind.starts_with(family))
        }
        _ => matches!(kind, "function" | "custom" | "local_shell" | "apply_patch"),
    }
}
