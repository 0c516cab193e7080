//! Usage meter: combines the documents of a response. Each count is a maximum, never a sum; also
//! measures the text and detects the end.

use super::node::{CountField, Node, StringField};
use super::tap::ResponseFormat;
use crate::usage::TokenUsage;

const FIELDS: usize = CountField::ToolRequests as usize + 1;

/// Keeps only numbers.
#[derive(Debug)]
pub(super) struct UsageMeter {
    root: Node,
    kind: ResponseFormat,
    most: [u64; FIELDS],
    seen: u16,
    pieces: u64,
    text_bytes: u64,
    document: DocumentCounts,
    finished: bool,
    /// A complete object of the dialect has arrived.
    has_document: bool,
    complete: bool,
    usage_is_final: bool,
}

/// What one document (an event, a line) contains.
#[derive(Debug, Default)]
struct DocumentCounts {
    says_usage: bool,
    has_choice: bool,
    has_text: bool,
    finishes: bool,
    done: bool,
    event: EventKind,
    tools: u64,
    audio_in: u64,
    audio_out: u64,
    is_audio: bool,
    modality_count: u64,
}

/// The kind of event, as far as it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EventKind {
    #[default]
    Other,
    /// `message_delta`
    Counting,
    /// `message_stop`, `response.completed` and the other final events.
    Last,
}

impl UsageMeter {
    pub(super) fn new(root: Node, kind: ResponseFormat) -> UsageMeter {
        UsageMeter {
            root,
            kind,
            most: [0; FIELDS],
            seen: 0,
            pieces: 0,
            text_bytes: 0,
            document: DocumentCounts::default(),
            finished: false,
            has_document: false,
            complete: false,
            usage_is_final: false,
        }
    }

    pub(super) fn count(&mut self, field: CountField, tokens: u64) {
        let most = &mut self.most[field as usize];
        *most = tokens.max(*most);
        self.seen |= 1 << field as u16;
        self.document.says_usage = true;
    }

    pub(super) fn modality_count(&mut self, tokens: u64) {
        self.document.modality_count = tokens;
    }

    pub(super) fn done(&mut self) {
        self.document.done = true;
    }

    pub(super) fn query(&mut self) {
        self.document.tools += 1;
    }

    pub(super) fn text(&mut self, bytes: u64) {
        self.document.has_text = true;
        self.text_bytes = self.text_bytes.saturating_add(bytes);
    }

    pub(super) fn word(&mut self, word: StringField, value: &[u8]) {
        match word {
            StringField::Type => self.document.event = event(value),
            StringField::Finish => self.document.finishes = true,
            StringField::Item => {
                self.document.tools +=
                    u64::from(matches!(value, b"web_search_call" | b"file_search_call"));
            }
            StringField::Modality => self.document.is_audio = value == b"AUDIO",
        }
    }

    pub(super) fn open_object(&mut self, node: Node) {
        self.document.has_choice |= node == Node::Choice;
    }

    pub(super) fn close_object(&mut self, node: Node) {
        if matches!(node, Node::ModalityIn | Node::ModalityOut) {
            let document = &mut self.document;
            let tokens = if document.is_audio {
                document.modality_count
            } else {
                0
            };
            let sum = if node == Node::ModalityIn {
                &mut document.audio_in
            } else {
                &mut document.audio_out
            };
            *sum = sum.saturating_add(tokens);
            document.is_audio = false;
            document.modality_count = 0;
        } else if node == self.root {
            self.end_of_document();
        }
    }

    /// The outermost value is complete.
    pub(super) fn end_of_root_value(&mut self) {
        let is_all = match self.kind {
            ResponseFormat::Whole => true,
            ResponseFormat::Lines => self.root == Node::Gemini,
            ResponseFormat::Events => false,
        };
        // Any word may be a complete value; only an object of the dialect is a response.
        if is_all && (self.has_document || self.root == Node::Ignored) {
            self.complete = true;
            self.usage_is_final = self.has_final_usage();
        }
    }

    /// `[DONE]`
    pub(super) fn done_marker(&mut self) {
        if self.root == Node::Chat {
            self.complete = true;
            self.usage_is_final = self.has_final_usage();
        }
    }

    /// A document that broke off counts as far as it arrived.
    pub(super) fn abort_document(&mut self) {
        let document = std::mem::take(&mut self.document);
        self.pieces += u64::from(document.has_text);
    }

    fn end_of_document(&mut self) {
        self.has_document = true;
        let document = std::mem::take(&mut self.document);
        self.pieces += u64::from(document.has_text);
        self.add_sums(&document);
        self.finished |= document.finishes
            || document.done
            || document.event != EventKind::Other
            || (self.root == Node::Chat && document.says_usage && !document.has_choice);
        self.complete |= match self.root {
            Node::Responses | Node::Messages => document.event == EventKind::Last,
            Node::Gemini => document.finishes && self.kind == ResponseFormat::Events,
            Node::Ollama => document.done,
            _ => false,
        };
        if document.says_usage && self.finished || self.complete {
            self.usage_is_final = self.has_final_usage();
        } else if document.has_text {
            self.usage_is_final = false;
        }
    }

    fn add_sums(&mut self, document: &DocumentCounts) {
        let sums = [
            (CountField::ToolRequests, document.tools),
            (CountField::AudioIn, document.audio_in),
            (CountField::AudioOut, document.audio_out),
        ];
        for (field, tokens) in sums {
            self.most[field as usize] = self.most[field as usize].max(tokens);
        }
    }

    /// Old versions of Ollama omit the count of a cached prompt.
    fn has_final_usage(&self) -> bool {
        match self.root {
            Node::Ollama => self.has(CountField::Input),
            // A usage of all zeros is not a count.
            _ => self
                .usage()
                .is_some_and(|usage| usage != TokenUsage::default()),
        }
    }

    fn has(&self, field: CountField) -> bool {
        self.seen & (1 << field as u16) != 0
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn is_final(&self) -> bool {
        self.usage_is_final
    }

    pub(super) fn pieces(&self) -> u64 {
        self.pieces + u64::from(self.document.has_text)
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// The reported usage in normal form.
    pub(super) fn usage(&self) -> Option<TokenUsage> {
        (self.seen != 0).then(|| match self.root {
            Node::Messages => self.usage_beside_cache(),
            _ => self.usage_with_details(),
        })
    }

    fn most(&self, field: CountField) -> u64 {
        self.most[field as usize]
    }

    /// Anthropic: cached input is counted beside the input. The total of cache writes may grow
    /// after it was split by lifetime; the rest then belongs to the kind that the split knows.
    fn usage_beside_cache(&self) -> TokenUsage {
        let mut short = self.most(CountField::CacheWrite5m);
        let mut long = self.most(CountField::CacheWrite1h);
        let rest = self
            .most(CountField::CacheWrite)
            .saturating_sub(short.saturating_add(long));
        let grows = if short == 0 && long > 0 {
            &mut long
        } else {
            &mut short
        };
        *grows = grows.saturating_add(rest);
        let output = self.most(CountField::Output);
        let reasoning = self.most(CountField::Reasoning).min(output);
        TokenUsage {
            input: self.most(CountField::Input),
            cache_read: self.most(CountField::Cached),
            cache_write_5m: short,
            cache_write_1h: long,
            audio_in: 0,
            output: output - reasoning,
            reasoning,
            audio_out: 0,
            tool_requests: self.most(CountField::ToolRequests),
        }
    }

    /// All others: parts are included in the total. Where parts overlap (cached audio), the more
    /// expensive one counts.
    fn usage_with_details(&self) -> TokenUsage {
        let all_input = self.all_input();
        let audio_in = self.most(CountField::AudioIn).min(all_input);
        let written = self.most(CountField::CacheWrite).min(all_input - audio_in);
        let cache_read = self
            .most(CountField::Cached)
            .min(all_input - audio_in - written);
        let all_output = self.all_output(all_input);
        let audio_out = self.most(CountField::AudioOut).min(all_output);
        let reasoning = self.most(CountField::Reasoning).min(all_output - audio_out);
        TokenUsage {
            input: all_input - audio_in - written - cache_read,
            cache_read,
            cache_write_5m: written,
            cache_write_1h: 0,
            audio_in,
            output: all_output - audio_out - reasoning,
            reasoning,
            audio_out,
            tool_requests: self.most(CountField::ToolRequests),
        }
    }

    /// Where only the total is reported (embeddings), what was not output was input.
    fn all_input(&self) -> u64 {
        let reported = self
            .most(CountField::Input)
            .saturating_add(self.most(CountField::ToolInput));
        if self.has(CountField::Input) {
            reported
        } else {
            reported.max(
                self.most(CountField::Total)
                    .saturating_sub(self.most(CountField::Output)),
            )
        }
    }

    /// Gemini and xAI count reasoning beside the output, OpenAI within it. The total decides, where
    /// it is given; reasoning that exceeds the output cannot be included in it.
    fn all_output(&self, all_input: u64) -> u64 {
        let output = self.most(CountField::Output);
        let reasoning = self.most(CountField::Reasoning);
        let reported = if self.root == Node::Gemini || reasoning > output {
            output.saturating_add(reasoning)
        } else {
            output
        };
        // Without an input count the total does not measure the output.
        let rest = if self.has(CountField::Input) {
            self.most(CountField::Total).saturating_sub(all_input)
        } else {
            0
        };
        reported.max(rest)
    }
}

fn event(name: &[u8]) -> EventKind {
    match name {
        b"message_delta" => EventKind::Counting,
        b"message_stop"
        | b"response.completed"
        | b"response.incomplete"
        | b"response.failed"
        | b"response.cancelled" => EventKind::Last,
        _ => EventKind::Other,
    }
}
