//! What a run is granted at its doors: which models, and how much of them.

use crate::{EGRESS_PORT, EgressGrant, Money};
use std::{fmt, str::FromStr};

/// How much of models may be used. What is not said is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Budget {
    /// Of the whole run or session.
    pub money: Option<Money>,
    /// Of a single call.
    pub call: Option<Money>,
    /// Input and output together.
    pub tokens: Option<u64>,
    pub requests: Option<u64>,
    /// Calls at the same time.
    pub concurrent: Option<u32>,
}

impl Budget {
    /// What is not said here is taken from there.
    #[must_use]
    pub fn or(&self, other: &Budget) -> Budget {
        Budget {
            money: self.money.or(other.money),
            call: self.call.or(other.call),
            tokens: self.tokens.or(other.tokens),
            requests: self.requests.or(other.requests),
            concurrent: self.concurrent.or(other.concurrent),
        }
    }

    /// The narrower of both, limit by limit.
    #[must_use]
    pub fn within(&self, other: &Budget) -> Budget {
        fn least<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Budget {
            money: least(self.money, other.money),
            call: least(self.call, other.call),
            tokens: least(self.tokens, other.tokens),
            requests: least(self.requests, other.requests),
            concurrent: least(self.concurrent, other.concurrent),
        }
    }
}

/// A model's name, or many: `*` stands for any characters, everything else for itself, case and all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelPattern(String);

/// Why a text is no pattern for models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadModelPattern(String);

const LONGEST_PATTERN: usize = 200;

impl ModelPattern {
    /// Whether this is one of them.
    pub fn matches(&self, model: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = model.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelPattern {
    type Err = BadModelPattern;

    fn from_str(text: &str) -> Result<ModelPattern, BadModelPattern> {
        let good = !text.is_empty()
            && text.len() <= LONGEST_PATTERN
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        match good {
            true => Ok(ModelPattern(text.to_owned())),
            false => Err(BadModelPattern(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for BadModelPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}` is no pattern for models", self.0.escape_debug())
    }
}

impl std::error::Error for BadModelPattern {}

/// The LLM door of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlmGrant {
    /// The provider by its name in the configuration; the only one there is if none is named.
    pub provider: Option<String>,
    /// Which models: one must be in every list; a list that is empty has them all.
    pub models: Vec<Vec<ModelPattern>>,
}

/// What a run is granted beyond its box.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// The LLM door.
    pub llm: Option<LlmGrant>,
    /// The inference door, for these models, likewise.
    pub inference: Option<Vec<Vec<ModelPattern>>>,
    /// The egress door.
    pub egress: Option<EgressGrant>,
    /// How much of models, at all doors together.
    pub budget: Budget,
    /// Stored secrets and the variables they become inside.
    pub secrets: Vec<(String, crate::EnvName)>,
}

/// Where the LLM door is, inside.
pub const LLM_PORT: u16 = 8080;
/// Where the inference door is, inside.
pub const INFERENCE_PORT: u16 = 11434;

impl Grants {
    /// The ports of the doors, in this order.
    pub fn ports(&self) -> Vec<u16> {
        let doors = [
            (self.llm.is_some(), LLM_PORT),
            (self.inference.is_some(), INFERENCE_PORT),
            (self.egress.is_some(), EGRESS_PORT),
        ];
        doors
            .into_iter()
            .filter(|(asked, _)| *asked)
            .map(|(_, port)| port)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything_and_nothing_else_does() {
        let matches =
            |pattern: &str, model| pattern.parse::<ModelPattern>().unwrap().matches(model);
        assert!(
            matches("claude-*", "claude-sonnet-4-5")
                && matches("*", "x")
                && matches("a*b*c", "aXbbYc")
        );
        assert!(matches("gpt-4o", "gpt-4o") && matches("a*a", "aa"));
        for (pattern, model) in [
            ("claude-*", "Claude-x"),
            ("gpt-4o", "gpt-4o "),
            ("a*a", "a"),
            ("a*b", "abc"),
            ("gpt-4o", "gpt-4o-mini"),
            ("a?", "ab"),
        ] {
            assert!(!matches(pattern, model), "{pattern} {model}");
        }
    }

    #[test]
    fn the_narrower_limit_wins() {
        let own = Budget {
            money: Some(Money(5)),
            tokens: Some(9),
            ..Budget::default()
        };
        let profile = Budget {
            money: Some(Money(3)),
            requests: Some(2),
            ..Budget::default()
        };
        let both = Budget {
            money: Some(Money(3)),
            tokens: Some(9),
            requests: Some(2),
            ..Budget::default()
        };
        assert_eq!(own.within(&profile), both);
    }
}
