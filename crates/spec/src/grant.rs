//! The grants of a run at its doors: models with a budget, egress, secrets.

use crate::{EGRESS_PORT, EgressGrant, Money};
use std::{fmt, str::FromStr};

/// A budget for models; no limit where a field is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Cost of the whole run or session.
    pub money: Option<Money>,
    /// Cost of a single call.
    pub call: Option<Money>,
    /// Tokens, input and output together.
    pub tokens: Option<u64>,
    /// Calls.
    pub requests: Option<u64>,
    /// Concurrent calls.
    pub concurrent: Option<u32>,
}

impl Budget {
    /// The limits of this budget, and those of the other where this one has none.
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

    /// The lower value of each limit.
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

/// A pattern of model names: `*` stands for any characters, everything else for itself. Letter case
/// counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelPattern(String);

/// A text that is not a pattern of model names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadModelPattern(String);

/// Bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 200;

impl ModelPattern {
    /// Whether a model matches.
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

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelPattern {
    type Err = BadModelPattern;

    fn from_str(text: &str) -> Result<ModelPattern, BadModelPattern> {
        let good = !text.is_empty()
            && text.len() <= MAX_PATTERN_BYTES
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !good {
            return Err(BadModelPattern(text.chars().take(40).collect()));
        }
        Ok(ModelPattern(text.to_owned()))
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
    /// The name of a provider in the configuration; without one, the only provider.
    pub provider: Option<String>,
    /// Lists of models; a model must match in each of them. An empty list allows every model.
    pub models: Vec<Vec<ModelPattern>>,
}

/// The grants of a run beyond its sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// The LLM door.
    pub llm: Option<LlmGrant>,
    /// The inference door, with lists of models as for the LLM door.
    pub inference: Option<Vec<Vec<ModelPattern>>>,
    /// The egress door.
    pub egress: Option<EgressGrant>,
    /// The budget for models, at all doors together.
    pub budget: Budget,
    /// Stored secrets, with the variables that hold them inside.
    pub secrets: Vec<(String, crate::EnvName)>,
}

/// The port of the LLM door, inside.
pub const LLM_PORT: u16 = 8080;
/// The port of the inference door, inside.
pub const INFERENCE_PORT: u16 = 11434;

impl Grants {
    /// The ports of the doors: LLM, inference, egress.
    pub fn ports(&self) -> Vec<u16> {
        let doors = [
            (self.llm.is_some(), LLM_PORT),
            (self.inference.is_some(), INFERENCE_PORT),
            (self.egress.is_some(), EGRESS_PORT),
        ];
        doors
            .into_iter()
            .filter(|(is_granted, _)| *is_granted)
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
