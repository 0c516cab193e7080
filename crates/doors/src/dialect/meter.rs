//! What the documents of an answer say together: the most of each count, never a sum; what was written; how it ends.

use super::node::{Field, Node, Word};
use super::tap::TapKind;
use crate::usage::Usage;

const FIELDS: usize = Field::ToolRequests as usize + 1;

/// Reads along, and keeps no more than numbers.
#[derive(Debug)]
pub(super) struct Meter {
    root: Node,
    kind: TapKind,
    most: [u64; FIELDS],
    seen: u16,
    pieces: u64,
    text_bytes: u64,
    document: Document,
    finished: bool,
    complete: bool,
    last_word: bool,
}

/// What one document (an event, a line) says.
#[derive(Debug, Default)]
struct Document {
    says_usage: bool,
    has_choice: bool,
    has_text: bool,
    finishes: bool,
    done: bool,
    event: Event,
    tools: u64,
    audio_in: u64,
    audio_out: u64,
    is_audio: bool,
    modality_count: u64,
}

/// Which event it is, as far as that matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Event {
    #[default]
    Other,
    /// `message_delta`
    Counting,
    /// `message_stop`, `response.completed` and its sisters.
    Last,
}

impl Meter {
    pub(super) fn new(root: Node, kind: TapKind) -> Meter {
        Meter {
            root,
            kind,
            most: [0; FIELDS],
            seen: 0,
            pieces: 0,
            text_bytes: 0,
            document: Document::default(),
            finished: false,
            complete: false,
            last_word: false,
        }
    }

    pub(super) fn count(&mut self, field: Field, tokens: u64) {
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

    pub(super) fn word(&mut self, word: Word, value: &[u8]) {
        match word {
            Word::Type => self.document.event = event(value),
            Word::Finish => self.document.finishes = true,
            Word::Item => {
                self.document.tools +=
                    u64::from(matches!(value, b"web_search_call" | b"file_search_call"));
            }
            Word::Modality => self.document.is_audio = value == b"AUDIO",
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
            (document.is_audio, document.modality_count) = (false, 0);
        } else if node == self.root {
            self.end_of_document();
        }
    }

    /// The outermost value is whole.
    pub(super) fn end_of_whole(&mut self) {
        let is_all = match self.kind {
            TapKind::Whole => true,
            TapKind::Lines => self.root == Node::Gemini,
            TapKind::Events => false,
        };
        if is_all {
            self.complete = true;
            self.last_word = self.is_all_said();
        }
    }

    /// `[DONE]`
    pub(super) fn end_of_chat(&mut self) {
        if self.root == Node::Chat {
            self.complete = true;
            self.last_word = self.is_all_said();
        }
    }

    /// A document that broke off counts as far as it came.
    pub(super) fn broken_off(&mut self) {
        let document = std::mem::take(&mut self.document);
        self.pieces += u64::from(document.has_text);
    }

    fn end_of_document(&mut self) {
        let document = std::mem::take(&mut self.document);
        self.pieces += u64::from(document.has_text);
        self.add_sums(&document);
        self.finished |= document.finishes
            || document.done
            || document.event != Event::Other
            || (self.root == Node::Chat && document.says_usage && !document.has_choice);
        self.complete |= match self.root {
            Node::Responses | Node::Messages => document.event == Event::Last,
            Node::Gemini => document.finishes && self.kind == TapKind::Events,
            Node::Ollama => document.done,
            _ => false,
        };
        if document.says_usage && self.finished || self.complete {
            self.last_word = self.is_all_said();
        } else if document.has_text {
            self.last_word = false;
        }
    }

    fn add_sums(&mut self, document: &Document) {
        let sums = [
            (Field::ToolRequests, document.tools),
            (Field::AudioIn, document.audio_in),
            (Field::AudioOut, document.audio_out),
        ];
        for (field, tokens) in sums {
            self.most[field as usize] = self.most[field as usize].max(tokens);
        }
    }

    /// Old Ollamas leave out the count of a prompt that they had in their cache.
    fn is_all_said(&self) -> bool {
        match self.root {
            Node::Ollama => self.has(Field::Input),
            // Nothing at all is no count of what was served.
            _ => self.usage().is_some_and(|usage| usage != Usage::default()),
        }
    }

    fn has(&self, field: Field) -> bool {
        self.seen & (1 << field as u16) != 0
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn is_final(&self) -> bool {
        self.last_word
    }

    pub(super) fn pieces(&self) -> u64 {
        self.pieces + u64::from(self.document.has_text)
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// What was said, in the normal form.
    pub(super) fn usage(&self) -> Option<Usage> {
        (self.seen != 0).then(|| match self.root {
            Node::Messages => self.beside(),
            _ => self.within(),
        })
    }

    fn most(&self, field: Field) -> u64 {
        self.most[field as usize]
    }

    /// Anthropic: cached input stands beside the input. The total of cache writes may grow after they were split by
    /// their time; the rest is then of the kind that the split knows.
    fn beside(&self) -> Usage {
        let (mut short, mut long) = (
            self.most(Field::CacheWrite5m),
            self.most(Field::CacheWrite1h),
        );
        let rest = self
            .most(Field::CacheWrite)
            .saturating_sub(short.saturating_add(long));
        let grows = if short == 0 && long > 0 {
            &mut long
        } else {
            &mut short
        };
        *grows = grows.saturating_add(rest);
        let output = self.most(Field::Output);
        let reasoning = self.most(Field::Reasoning).min(output);
        Usage {
            input: self.most(Field::Input),
            cache_read: self.most(Field::Cached),
            cache_write_5m: short,
            cache_write_1h: long,
            audio_in: 0,
            output: output - reasoning,
            reasoning,
            audio_out: 0,
            tool_requests: self.most(Field::ToolRequests),
        }
    }

    /// The others: parts are within the whole. Where parts overlap (sound that was cached), the dearer one counts.
    fn within(&self) -> Usage {
        let all_input = self.all_input();
        let audio_in = self.most(Field::AudioIn).min(all_input);
        let written = self.most(Field::CacheWrite).min(all_input - audio_in);
        let cache_read = self.most(Field::Cached).min(all_input - audio_in - written);
        let all_output = self.all_output(all_input);
        let audio_out = self.most(Field::AudioOut).min(all_output);
        let reasoning = self.most(Field::Reasoning).min(all_output - audio_out);
        Usage {
            input: all_input - audio_in - written - cache_read,
            cache_read,
            cache_write_5m: written,
            cache_write_1h: 0,
            audio_in,
            output: all_output - audio_out - reasoning,
            reasoning,
            audio_out,
            tool_requests: self.most(Field::ToolRequests),
        }
    }

    /// Where only the sum is told (embeddings), what was not written was read.
    fn all_input(&self) -> u64 {
        let said = self
            .most(Field::Input)
            .saturating_add(self.most(Field::ToolInput));
        match self.has(Field::Input) {
            true => said,
            false => said.max(
                self.most(Field::Total)
                    .saturating_sub(self.most(Field::Output)),
            ),
        }
    }

    /// Gemini and xAI count reasoning beside the output, OpenAI within it. The total tells, where it is given; where
    /// reasoning is more than the output, it cannot be within.
    fn all_output(&self, all_input: u64) -> u64 {
        let (output, reasoning) = (self.most(Field::Output), self.most(Field::Reasoning));
        let said = if self.root == Node::Gemini || reasoning > output {
            output.saturating_add(reasoning)
        } else {
            output
        };
        // Without an input the total is no measure of the output.
        let rest = if self.has(Field::Input) {
            self.most(Field::Total).saturating_sub(all_input)
        } else {
            0
        };
        said.max(rest)
    }
}

fn event(name: &[u8]) -> Event {
    match name {
        b"message_delta" => Event::Counting,
        b"message_stop"
        | b"response.completed"
        | b"response.incomplete"
        | b"response.failed"
        | b"response.cancelled" => Event::Last,
        _ => Event::Other,
    }
}
