//! Parses a request body in one pass and records what matters.

use super::body::{
    BodyError, LimitMember, LimitValue, ObjectMember, ObjectStart, OutputLimit, ParsedBody, bad,
};
use super::body_keys::{self, BodyKey, ContentKey, KeyMatch, ObjectKind};
use super::json_scanner::{JsonScanner, StringSpan};
use super::{Dialect, ModelOperation};
use std::{borrow::Cow, ops::Range};

/// Longest tool name in a message.
const MAX_TOOL_NAME: usize = 64;
/// Longest model name.
const MAX_MODEL_NAME: usize = 256;

/// The parser of one body.
pub(super) struct BodyParser<'b> {
    scanner: JsonScanner<'b>,
    operation: ModelOperation,
    parsed: ParsedBody,
}

/// The context of a value that is not itself special.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueContext {
    Anything,
    Link,
    Audio,
    /// The input of the Responses API: a list of items.
    Items,
}

impl<'b> BodyParser<'b> {
    pub(super) fn new(
        operation: ModelOperation,
        text: &'b str,
        parsed: ParsedBody,
    ) -> BodyParser<'b> {
        BodyParser {
            scanner: JsonScanner::new(text),
            operation,
            parsed,
        }
    }

    pub(super) fn root(mut self) -> Result<ParsedBody, BodyError> {
        if self.scanner.peek() != Some(b'{') {
            return Err(bad("the body is not a JSON object"));
        }
        self.parsed.edit_points.root = self.object(ObjectKind::Root)?;
        self.scanner.finish()?;
        Ok(self.parsed)
    }

    /// Parses an object of which some members matter.
    fn object(&mut self, object_kind: ObjectKind) -> Result<ObjectStart, BodyError> {
        self.scanner.enter()?;
        let mut inside = ObjectStart {
            at: self.scanner.at(),
            is_empty: true,
        };
        let mut seen: Vec<BodyKey> = Vec::new();
        while let Some(name) = self.name()? {
            inside.is_empty = false;
            match body_keys::match_key(self.operation, object_kind, &name) {
                KeyMatch::Exact(key) if seen.contains(&key) => {
                    return Err(bad(format!(
                        "`{name}` is there twice, perhaps in two spellings"
                    )));
                }
                KeyMatch::Exact(key) => {
                    seen.push(key);
                    self.member(key, &name)?;
                }
                KeyMatch::CaseVariant => {
                    return Err(bad(format!(
                        "`{name}` is nearly a name that matters; write it as documented"
                    )));
                }
                KeyMatch::Unknown => self.value_of(&name, ValueContext::Anything)?,
            }
        }
        Ok(inside)
    }

    /// The name of the next member, decoded.
    fn name(&mut self) -> Result<Option<Cow<'b, str>>, BodyError> {
        let Some(literal) = self.scanner.key()? else {
            return Ok(None);
        };
        let name = self.scanner.decode(&literal)?;
        // Some parsers end a string at NUL. Unescaped it is not valid JSON.
        if literal.has_escapes && name.contains('\0') {
            return Err(bad("a name has a zero character in it"));
        }
        Ok(Some(name))
    }

    fn member(&mut self, key: BodyKey, name: &str) -> Result<(), BodyError> {
        match key {
            BodyKey::Model => self.model()?,
            BodyKey::Stream => self.parsed.stream = self.flag(name)?.unwrap_or(self.parsed.stream),
            BodyKey::StreamOptions => {
                self.parsed.edit_points.stream_options =
                    self.object_or_null(name, ObjectKind::StreamOptions)?
            }
            BodyKey::IncludeUsage => self.include_usage(name)?,
            BodyKey::Limit(known) => self.limit(known, name)?,
            BodyKey::Choices(_) => self.choices(name)?,
            BodyKey::Identity(_) => self.identity()?,
            BodyKey::Metadata => {
                self.object_or_null(name, ObjectKind::Metadata)?;
            }
            BodyKey::Settings => {
                self.parsed.edit_points.settings =
                    self.object_or_null(name, ObjectKind::Settings)?
            }
            BodyKey::Tools => {
                self.parsed.tools = true;
                self.tools()?;
            }
            BodyKey::Input => self.value(ValueContext::Items)?,
            BodyKey::Requests(_) => self.requests()?,
            BodyKey::Tier(_) => self.tier()?,
            BodyKey::Modalities => {
                self.parsed.priced_otherwise |= self.may_contain(&["image", "video"])?
            }
            BodyKey::PricedIfPresent(_) => self.parsed.priced_otherwise |= self.is_present()?,
            BodyKey::ServerTool(known) => {
                let is_present = self.is_present()?;
                self.server_tool(is_present, known);
            }
            BodyKey::ContextManagement => {
                let compacts = self.may_contain(&["compact"])?;
                self.server_tool(compacts, "context_management");
            }
            BodyKey::External(_) => self.external()?,
            BodyKey::Prompt => self.prompt()?,
            BodyKey::Background => {
                if self.flag(name)? == Some(true) {
                    return Err(bad(
                        "`background` would go on where nobody counts; leave it out",
                    ));
                }
            }
            BodyKey::Forbidden(_) => {
                return Err(bad(format!(
                    "`{name}` is not the program's to say; leave it out"
                )));
            }
        }
        Ok(())
    }

    fn model(&mut self) -> Result<(), BodyError> {
        let literal = self
            .literal()?
            .ok_or_else(|| bad("`model` is not a string"))?;
        let written = self.scanner.decode(&literal)?;
        let is_gemini = self.operation.dialect() == Some(Dialect::Gemini);
        let name = written
            .strip_prefix("models/")
            .filter(|_| is_gemini)
            .unwrap_or(&written);
        // No provider uses other characters, and names that look alike are not alike. LiteLLM takes
        // a comma for a list of models.
        if name.len() > MAX_MODEL_NAME
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b',')
        {
            return Err(bad(
                "`model` is not a name of at most 256 printable characters without a comma",
            ));
        }
        match &self.parsed.model {
            Some((other, _)) if other != name => return Err(bad("two models are named")),
            Some(_) => {}
            None => self.parsed.model = Some((name.to_owned(), literal.at.clone())),
        }
        self.parsed.edit_points.models.push(literal.at);
        Ok(())
    }

    fn include_usage(&mut self, name: &str) -> Result<(), BodyError> {
        self.scanner.peek();
        let start = self.scanner.at();
        self.parsed.wants_usage = self.flag(name)? == Some(true);
        self.parsed.edit_points.include_usage = Some(start..self.scanner.at());
        Ok(())
    }

    fn limit(&mut self, known: &'static str, name: &str) -> Result<(), BodyError> {
        let (at, number) = self.whole_number(name)?;
        let is_ollama = self.operation.dialect() == Some(Dialect::Ollama);
        let given = match number {
            None => LimitValue::Null,
            Some(WholeNumber::Negative) => LimitValue::Unlimited,
            // Ollama takes 0 for no limit; others reject it, or warm a cache that is not metered.
            Some(WholeNumber::Number(0)) if is_ollama => LimitValue::Unlimited,
            Some(WholeNumber::Number(0)) => return Err(bad(format!("`{name}` is not at least 1"))),
            Some(WholeNumber::Number(tokens)) => LimitValue::Tokens(tokens),
        };
        if let LimitValue::Tokens(tokens) = given
            && self
                .parsed
                .cap
                .as_ref()
                .is_none_or(|cap| cap.tokens < tokens)
        {
            self.parsed.cap = Some(OutputLimit {
                tokens,
                at: at.clone(),
            });
        }
        self.parsed.edit_points.limits.push(LimitMember {
            name: known,
            at,
            given,
        });
        Ok(())
    }

    fn choices(&mut self, name: &str) -> Result<(), BodyError> {
        match self.whole_number(name)? {
            (_, None) => Ok(()),
            (_, Some(WholeNumber::Number(count @ 1..))) => {
                self.parsed.choices = self.parsed.choices.max(count);
                Ok(())
            }
            (_, Some(_)) => Err(bad(format!("`{name}` is not at least 1"))),
        }
    }

    fn identity(&mut self) -> Result<(), BodyError> {
        let at = self.scanner.skip()?;
        if self.scanner.text(at.clone()) != "null" {
            self.parsed.identities.push(at);
        }
        Ok(())
    }

    fn requests(&mut self) -> Result<(), BodyError> {
        match self.scanner.peek() {
            Some(b'[') => {
                self.scanner.enter()?;
                while self.scanner.element()? {
                    self.requests()?;
                }
                Ok(())
            }
            Some(b'{') => self.object(ObjectKind::Request).map(drop),
            _ => self.value(ValueContext::Anything),
        }
    }

    fn tier(&mut self) -> Result<(), BodyError> {
        let is_standard = match self.literal()? {
            Some(literal) => has_standard_price(&self.scanner.decode(&literal)?),
            None => !self.is_present()?,
        };
        self.parsed.priced_otherwise |= !is_standard;
        Ok(())
    }

    fn prompt(&mut self) -> Result<(), BodyError> {
        let is_stored = self.scanner.peek() == Some(b'{');
        self.value(ValueContext::Anything)?;
        self.parsed.refers_beyond |= is_stored;
        self.server_tool(is_stored, "prompt");
        Ok(())
    }

    /// Records a tool that the provider runs by itself.
    fn server_tool(&mut self, is_one: bool, name: &str) {
        if is_one && self.parsed.server_tool.is_none() {
            self.parsed.server_tool = Some(name.chars().take(MAX_TOOL_NAME).collect());
        }
        self.parsed.server_tools |= is_one;
    }

    fn tools(&mut self) -> Result<(), BodyError> {
        match (self.scanner.peek(), self.operation.dialect()) {
            (_, Some(Dialect::Ollama) | None) => self.value(ValueContext::Anything),
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
                .is_present()
                .map(|is_present| self.server_tool(is_present, "a tool that is no object")),
        }
    }

    /// The Responses API accepts tools in its input. A tool parameter may have the same name; that
    /// one is not a list.
    fn tools_in_input(&mut self) -> Result<(), BodyError> {
        if self.scanner.peek() == Some(b'[') {
            self.tools()
        } else {
            self.value(ValueContext::Anything)
        }
    }

    /// A tool whose `type` says who runs it.
    fn typed_tool(&mut self) -> Result<(), BodyError> {
        self.scanner.enter()?;
        // Anthropic's own tools may leave the type out; elsewhere a tool without a type may be
        // anything.
        let mut is_typed = self.operation.dialect() == Some(Dialect::Anthropic);
        let mut is_group = false;
        let mut has_members = false;
        while let Some(name) = self.name()? {
            is_typed |= body_keys::content_key(&name) == Some(ContentKey::Type);
            match (body_keys::content_key(&name), self.scanner.peek()) {
                (Some(ContentKey::Type), Some(b'"')) => {
                    let literal = self.scanner.string()?;
                    let content_type = self.scanner.decode(&literal)?;
                    // Every `type` counts: parsers differ in which of several they believe.
                    let groups = is_group_of_tools(self.operation, &content_type);
                    let is_ours = groups || is_client_tool(self.operation, &content_type);
                    is_group |= groups;
                    self.server_tool(!is_ours, &content_type);
                }
                (Some(ContentKey::Type), _) => {
                    let is_present = self.is_present()?;
                    self.server_tool(is_present, "a tool whose type is no text");
                }
                // The members of a group are tools and are checked like any other.
                (Some(ContentKey::Tools), Some(b'['))
                    if self.operation == ModelOperation::Responses =>
                {
                    has_members = true;
                    self.tools()?;
                }
                _ => self.value_of(&name, ValueContext::Anything)?,
            }
        }
        self.server_tool(!is_typed, "a tool without a type");
        // Without members the provider decides what the group contains.
        self.server_tool(is_group && !has_members, "a namespace without tools");
        Ok(())
    }

    /// A tool whose only member says who runs it.
    fn gemini_tool(&mut self) -> Result<(), BodyError> {
        self.scanner.enter()?;
        while let Some(name) = self.name()? {
            let is_client = matches!(
                &*name,
                "functionDeclarations" | "function_declarations" | "computerUse" | "computer_use"
            );
            let is_present =
                self.raw(|reading| reading.value_of(&name, ValueContext::Anything))? != "null";
            self.server_tool(is_present && !is_client, &name);
        }
        Ok(())
    }

    /// Any value. At any depth it may refer to content outside the body.
    fn value(&mut self, context: ValueContext) -> Result<(), BodyError> {
        match self.scanner.peek() {
            Some(b'{') => return self.any_object(context),
            Some(b'[') => {
                self.scanner.enter()?;
                while self.scanner.element()? {
                    self.value(context)?;
                }
            }
            _ => {
                self.scanner.skip()?;
            }
        }
        Ok(())
    }

    fn any_object(&mut self, context: ValueContext) -> Result<(), BodyError> {
        self.scanner.enter()?;
        let mut is_described = context != ValueContext::Items;
        while let Some(name) = self.name()? {
            let value = self.raw(|reading| reading.value_of(&name, context))?;
            is_described |= value != "null" && matches!(&*name, "type" | "role");
        }
        // An item that is only an id refers to an earlier response.
        self.parsed.refers_beyond |= !is_described;
        Ok(())
    }

    fn value_of(&mut self, name: &str, context: ValueContext) -> Result<(), BodyError> {
        let content_key = body_keys::content_key(name);
        let is_string = self.scanner.peek() == Some(b'"');
        match content_key {
            Some(ContentKey::Link) if is_string => self.link(|_| true),
            Some(ContentKey::Url) if is_string && context == ValueContext::Link => {
                self.link(|_| true)
            }
            Some(ContentKey::MaybeLink) if is_string => self.link(|text| text.contains("://")),
            Some(ContentKey::Link | ContentKey::MaybeLink | ContentKey::Source) => {
                self.value(ValueContext::Link)
            }
            Some(ContentKey::Name) if self.scanner.peek() != Some(b'{') => self.external(),
            Some(ContentKey::Elsewhere) => self.external(),
            Some(ContentKey::MediaType) if is_string => self.media_type(),
            Some(ContentKey::Images) => self.images(),
            Some(ContentKey::Audio) => self.value(ValueContext::Audio),
            Some(ContentKey::Id) if context == ValueContext::Audio => self.external(),
            Some(ContentKey::Type) if is_string => self.content_type(),
            Some(ContentKey::Tools) if self.operation == ModelOperation::Responses => {
                self.tools_in_input()
            }
            Some(
                ContentKey::Url
                | ContentKey::MediaType
                | ContentKey::Id
                | ContentKey::Type
                | ContentKey::Name
                | ContentKey::Tools,
            )
            | None => self.value(ValueContext::Anything),
        }
    }

    fn external(&mut self) -> Result<(), BodyError> {
        self.parsed.refers_beyond |= self.is_present()?;
        Ok(())
    }

    /// An image in a data URL is part of the body; any other URL is external.
    fn link(&mut self, is_address: fn(&str) -> bool) -> Result<(), BodyError> {
        let literal = self.scanner.string()?;
        let text = self.scanner.decode(&literal)?;
        if starts_with(&text, "data:image/") {
            self.parsed.pictures += 1;
        } else {
            let is_address = is_address(&text);
            self.parsed.refers_beyond |= is_address;
            self.parsed.fetches |= is_address && text.contains("://");
        }
        Ok(())
    }

    /// Documents, video and audio can be many tokens in few bytes.
    fn media_type(&mut self) -> Result<(), BodyError> {
        let literal = self.scanner.string()?;
        let text = self.scanner.decode(&literal)?;
        if starts_with(&text, "image/") {
            self.parsed.pictures += 1;
        } else {
            self.parsed.refers_beyond |=
                !starts_with(&text, "text/") && !starts_with(&text, "application/json");
        }
        Ok(())
    }

    fn images(&mut self) -> Result<(), BodyError> {
        if self.scanner.peek() != Some(b'[') {
            return self.value(ValueContext::Link);
        }
        self.scanner.enter()?;
        while self.scanner.element()? {
            self.value(ValueContext::Link)?;
            self.parsed.pictures += 1;
        }
        Ok(())
    }

    fn content_type(&mut self) -> Result<(), BodyError> {
        let literal = self.scanner.string()?;
        self.parsed.refers_beyond |= self.scanner.decode(&literal)? == "item_reference";
        Ok(())
    }

    /// An object of which some members matter, or null.
    fn object_or_null(
        &mut self,
        name: &str,
        object_kind: ObjectKind,
    ) -> Result<ObjectMember, BodyError> {
        if self.scanner.peek() == Some(b'{') {
            return self.object(object_kind).map(ObjectMember::Object);
        }
        let at = self.scanner.skip()?;
        match self.scanner.text(at.clone()) {
            "null" => Ok(ObjectMember::Null(at)),
            _ => Err(bad(format!("`{name}` is not an object"))),
        }
    }

    /// The next string, if the next value is one.
    fn literal(&mut self) -> Result<Option<StringSpan>, BodyError> {
        match self.scanner.peek() {
            Some(b'"') => Ok(Some(self.scanner.string()?)),
            _ => Ok(None),
        }
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, BodyError> {
        let at = self.scanner.skip()?;
        match self.scanner.text(at) {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            "null" => Ok(None),
            _ => Err(bad(format!("`{name}` is neither true nor false"))),
        }
    }

    fn whole_number(
        &mut self,
        name: &str,
    ) -> Result<(Range<usize>, Option<WholeNumber>), BodyError> {
        let at = self.scanner.skip()?;
        let number = match self.scanner.text(at.clone()) {
            "null" => None,
            text => Some(
                parse_whole_number(text)
                    .ok_or_else(|| bad(format!("`{name}` is not a whole number")))?,
            ),
        };
        Ok((at, number))
    }

    /// Skips a value; whether it is present in more than name.
    fn is_present(&mut self) -> Result<bool, BodyError> {
        let value = self.raw(|reading| reading.value(ValueContext::Anything))?;
        Ok(!matches!(value, "null" | "false" | "[]" | "{}"))
    }

    /// Skips a value; whether it contains one of these words, or may contain it.
    fn may_contain(&mut self, words: &[&str]) -> Result<bool, BodyError> {
        let value = self
            .raw(|reading| reading.value(ValueContext::Anything))?
            .to_ascii_lowercase();
        Ok(value.contains('\\') || words.iter().any(|word| value.contains(word)))
    }

    /// The source text of a value that `read` consumes.
    fn raw(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), BodyError>,
    ) -> Result<&'b str, BodyError> {
        self.scanner.peek();
        let start = self.scanner.at();
        read(self)?;
        Ok(self.scanner.text(start..self.scanner.at()))
    }
}

enum WholeNumber {
    Negative,
    /// Values beyond the range are clamped to its end.
    Number(u64),
}

fn parse_whole_number(text: &str) -> Option<WholeNumber> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_negative = digits.len() < text.len();
    Some(if is_negative {
        WholeNumber::Negative
    } else {
        WholeNumber::Number(digits.parse().unwrap_or(u64::MAX))
    })
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Tiers, speeds and regions at the standard price.
fn has_standard_price(value: &str) -> bool {
    let is_standard = [
        "auto",
        "default",
        "standard",
        "standard_only",
        "global",
        "not_available",
    ];
    is_standard
        .iter()
        .any(|known| value.eq_ignore_ascii_case(known))
}

/// A group: only a name for the tools inside it.
fn is_group_of_tools(operation: ModelOperation, content_type: &str) -> bool {
    operation == ModelOperation::Responses && content_type == "namespace"
}

/// The program runs the tool and sends the result, so it costs no more than its tokens.
fn is_client_tool(operation: ModelOperation, content_type: &str) -> bool {
    match operation.dialect() {
        Some(Dialect::Anthropic) => {
            let families = ["bash_", "text_editor_", "computer_", "memory_"];
            content_type == "custom"
                || families
                    .iter()
                    .any(|family| content_type.starts_with(family))
        }
        _ => matches!(
            content_type,
            "function" | "custom" | "local_shell" | "apply_patch"
        ),
    }
}
