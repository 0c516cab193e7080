//! What a test orders: how the provider answers, and what goes wrong. The same words in Rust, in the JSON of `POST /_set`
//! and in names of models.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// How a provider starts. `Settings::default()` checks no key and listens on a free port.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens; port 0 chooses a free one.
    pub listen: SocketAddr,
    /// A call must carry one of these, in its dialect's header (Ollama is not asked for one). Empty: none is checked.
    pub keys: Vec<String>,
    /// Speaks TLS with these.
    pub tls: Option<Tls>,
    /// How calls are answered that nothing else speaks of.
    pub script: Script,
    /// How calls of these models are answered.
    pub models: BTreeMap<String, Script>,
    /// Keeps sums only, no list of calls: for benchmarks.
    pub lean: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            keys: Vec::new(),
            tls: None,
            script: Script::default(),
            models: BTreeMap::new(),
            lean: false,
        }
    }
}

/// A chain of certificates and its private key, both PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificates, the server's own first.
    pub certificates: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl Tls {
    /// A new key, and a certificate for this name (`DNS:localhost`, `IP:127.0.0.1`) that signs itself; whoever trusts it as a
    /// root accepts it. Made by openssl; panics without.
    pub fn self_signed(name: &str) -> Tls {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("airlock-provider-{}.{number}", process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        let (key, certificate) = (folder.join("key"), folder.join("certificate"));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        command.args([
            "-days",
            "2",
            "-subj",
            "/CN=mock",
            "-addext",
            &format!("subjectAltName={name}"),
        ]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        command
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .stderr(Stdio::null());
        assert!(
            command.status().expect("prerequisite: openssl").success(),
            "openssl makes a certificate"
        );
        let read = |path| fs::read(path).expect("openssl wrote it");
        let tls = Tls {
            certificates: read(certificate),
            key: read(key),
        };
        fs::remove_dir_all(folder).expect("the folder can be removed");
        tls
    }
}

/// How one call is answered. A model's name may change parts of it: see [`Script::for_model`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Visible output tokens, one per frame, `tok0 tok1 …`; the caller's cap makes them fewer.
    pub tokens: u64,
    /// Tokens of the prompt, those of the cache among them; else a quarter of the body's bytes, rounded up.
    pub input: Option<u64>,
    /// Of these, read from the cache.
    pub cache_read: u64,
    /// Of these, written to the cache for five minutes (Anthropic).
    pub cache_write_5m: u64,
    /// Of these, written to the cache for an hour (Anthropic).
    pub cache_write_1h: u64,
    /// Output tokens that nobody sees, before the visible ones.
    pub reasoning: u64,
    /// Says as much as it wants, whatever the caller's cap.
    pub ignore_cap: bool,
    /// Milliseconds before each frame but the first.
    pub pace_ms: u64,
    /// This text in place of `tok0 …`: one token a word.
    pub text: Option<String>,
    /// Each token is the time it is said, in nanoseconds since 1970, as `tok1700000000000000000 `.
    pub stamp: bool,
    /// A unary answer's text has this many bytes, whatever its tokens.
    pub reply_bytes: Option<usize>,
    /// Lines of a stream end with CR LF.
    pub crlf: bool,
    /// `data:` and `event:` without the space behind.
    pub tight: bool,
    /// A comment line before each frame (SSE only).
    pub comments: bool,
    /// A stream's bytes leave in chunks of this size, whatever the frames.
    pub split: Option<usize>,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// This answer, and none of the above.
    pub verbatim: Option<Verbatim>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            tokens: 8,
            input: None,
            cache_read: 0,
            cache_write_5m: 0,
            cache_write_1h: 0,
            reasoning: 0,
            ignore_cap: false,
            pace_ms: 0,
            text: None,
            stamp: false,
            reply_bytes: None,
            crlf: false,
            tight: false,
            comments: false,
            split: None,
            fault: None,
            verbatim: None,
        }
    }
}

impl From<Fault> for Script {
    fn from(fault: Fault) -> Script {
        Script {
            fault: Some(fault),
            ..Script::default()
        }
    }
}

/// An answer byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Verbatim {
    /// Its status.
    pub status: u16,
    /// Its headers, but those of framing.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
    /// Sent in chunks of this size; else with Content-Length.
    pub split: Option<usize>,
    /// Counted as served: input (uncached) and output.
    pub tokens: (u64, u64),
}

impl Default for Verbatim {
    fn default() -> Verbatim {
        Verbatim {
            status: 200,
            headers: Vec::new(),
            body: String::new(),
            split: None,
            tokens: (0, 0),
        }
    }
}

/// What goes wrong. A frame is one token; "after n" means that n tokens have left. On an answer that is no stream, `cut`,
/// `stall` and `reset_after` happen in the middle of the body, and `hold` before the head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// An error of the dialect; with `bills` its input counts as served all the same.
    Status {
        /// The status.
        code: u16,
        /// The text of Retry-After.
        #[serde(default)]
        retry_after: Option<String>,
        /// Counts the input.
        #[serde(default)]
        bills: bool,
    },
    /// 400 with this code, as `context_length_exceeded` or `content_filter`.
    Refuse(String),
    /// An error with this status whose text has the caller's key in it.
    ErrorWithKey(u16),
    /// A redirect.
    Redirect {
        /// 302, 307, 308.
        code: u16,
        /// Where to.
        location: String,
    },
    /// The connection is reset before the head.
    Reset,
    /// The connection is reset after n frames.
    ResetAfter(u64),
    /// The connection is closed before the head.
    Close,
    /// No answer ever.
    Silence,
    /// The head comes after so many milliseconds.
    SlowHeaders(u64),
    /// The head comes byte by byte, each after so many milliseconds.
    TrickleHeaders(u64),
    /// So many `102 Processing` before the head.
    Informational(u64),
    /// The head waits for `Provider::release`.
    HoldHeaders,
    /// The next frame after n waits for `Provider::release`.
    Hold(u64),
    /// The connection is closed after n frames, without the end of the body.
    Cut(u64),
    /// Nothing comes after n frames, the connection stays.
    Stall(u64),
    /// After n frames a chunk that is none.
    BadFraming(u64),
    /// After n frames one whose JSON is broken, then the rest.
    BadJson(u64),
    /// After n frames the dialect's own error in the stream, then its end.
    Fails(u64),
    /// The stream ends well but without its last word (`[DONE]`, `message_stop`, `response.completed`, `done: true`).
    NoDone,
    /// No usage anywhere.
    NoUsage,
    /// Chat: usage on the chunk that has choices.
    UsageWithChoices,
    /// Usage comes twice; with Anthropic first of half the output.
    UsageTwice,
    /// Chat: a last chunk with `usage: null`, then the one with it.
    UsageNullFirst,
    /// Chat: cumulative usage on every chunk.
    UsageEveryFrame,
    /// Anthropic: zeros in `message_start`, all in `message_delta`. Gemini: a last chunk with usage alone.
    UsageOnlyAtEnd,
    /// The body is encoded, or says so.
    Encoding(Encoding),
    /// A unary answer of gzip that unpacks to so many MiB.
    Bomb(usize),
    /// A unary answer whose text has so many MiB, usage behind it.
    Giant(usize),
    /// The text of the answer is the caller's headers, key and all.
    EchoHeaders,
    /// Set-Cookie, Alt-Svc, Link and other headers that must not pass.
    Cookies,
    /// So many headers more.
    HeaderFlood(usize),
    /// One header of so many bytes.
    HeaderGiant(usize),
    /// So many bytes of the body beyond its Content-Length.
    LongBody(usize),
    /// The body ends so many bytes before its Content-Length.
    ShortBody(usize),
    /// Behind a whole answer the connection carries a second one that nobody asked for.
    Poison,
}

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// gzip.
    Gzip,
    /// deflate, in zlib's wrapping.
    Deflate,
    /// zstd.
    Zstd,
    /// gzip in gzip, and says both.
    GzipTwice,
    /// Says gzip, is plain.
    GzipLie,
    /// Says br, is plain.
    BrLie,
    /// Says a word nobody knows, is plain.
    Unknown,
}

impl Script {
    /// With what the model's name says: any of its words, parted by `-`, that is a name below with a number behind it.
    /// `mock-tokens-20-cut-3` says twenty tokens and a cut after the third. Names: `tokens`, `input`, `cache_read`, `reasoning`,
    /// `pace`, `ignore_cap` and `stamp` (0 or 1), `reply_bytes`, `split`, and the faults `status`, `slow_headers`, `cut`, `stall`, `hold`,
    /// `reset_after`, `bad_framing`, `bad_json`, `fails`, `giant`, `header_flood`.
    pub fn for_model(mut self, model: &str) -> Script {
        let words: Vec<_> = model.split('-').collect();
        for pair in words.windows(2) {
            if let Ok(number) = pair[1].parse() {
                self.apply(pair[0], number);
            }
        }
        self
    }

    fn apply(&mut self, word: &str, number: u64) {
        let size = usize::try_from(number).unwrap_or(usize::MAX);
        let fault = match word {
            "tokens" => return self.tokens = number,
            "input" => return self.input = Some(number),
            "cache_read" => return self.cache_read = number,
            "reasoning" => return self.reasoning = number,
            "pace" => return self.pace_ms = number,
            "ignore_cap" => return self.ignore_cap = number != 0,
            "stamp" => return self.stamp = number != 0,
            "reply_bytes" => return self.reply_bytes = Some(size),
            "split" => return self.split = Some(size.max(1)),
            "status" => Fault::Status {
                code: u16::try_from(number).unwrap_or(500),
                retry_after: None,
                bills: false,
            },
            "slow_headers" => Fault::SlowHeaders(number),
            "cut" => Fault::Cut(number),
            "stall" => Fault::Stall(number),
            "hold" => Fault::Hold(number),
            "reset_after" => Fault::ResetAfter(number),
            "bad_framing" => Fault::BadFraming(number),
            "bad_json" => Fault::BadJson(number),
            "fails" => Fault::Fails(number),
            "giant" => Fault::Giant(size),
            "header_flood" => Fault::HeaderFlood(size),
            _ => return,
        };
        self.fault = Some(fault);
    }

    /// Whether this is the fault.
    pub(crate) fn has(&self, fault: &Fault) -> bool {
        self.fault.as_ref() == Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_says_what_to_do_and_other_words_say_nothing() {
        let script = Script::default().for_model("mock-tokens-20-cut-3-pace-x-4o");
        assert_eq!(
            script,
            Script {
                tokens: 20,
                fault: Some(Fault::Cut(3)),
                ..Script::default()
            }
        );
        assert_eq!(
            Script::default().for_model("gpt-4o-mini-2024-07-18"),
            Script::default()
        );
    }

    #[test]
    fn the_words_of_json_are_those_of_rust() {
        let told = r#"{"tokens":3,"fault":{"status":{"code":429,"retry_after":"1"}}}"#;
        let fault = Fault::Status {
            code: 429,
            retry_after: Some("1".into()),
            bills: false,
        };
        let script = Script {
            tokens: 3,
            ..fault.into()
        };
        assert_eq!(serde_json::from_str::<Script>(told).unwrap(), script);
        assert_eq!(
            serde_json::from_str::<Fault>("\"reset\"").unwrap(),
            Fault::Reset
        );
        assert!(
            serde_json::from_str::<Script>(r#"{"token":3}"#).is_err(),
            "a wrong word is no silence"
        );
    }
}
