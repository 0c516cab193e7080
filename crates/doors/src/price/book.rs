//! The book: prices that ship with the program (`book.json`), and those of the operator, which come first.

use super::{Price, Tier};
use sha2::{Digest, Sha256};
use spec::{ModelPattern, Money};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

const SHIPPED: &str = include_str!("book.json");
/// Programs choose the names that are asked for.
const MOST_REMEMBERED: usize = 1024;
const LONGEST_REMEMBERED: usize = 200;

/// What happens to a model that has no price.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// It is refused.
    #[default]
    Refuse,
    /// It is charged at this price.
    Ceiling(Price),
}

/// All prices.
#[derive(Debug)]
pub struct PriceBook {
    /// The longest pattern first.
    operator: Vec<(ModelPattern, Price)>,
    unknown: Option<Arc<Price>>,
    version: String,
    remembered: RwLock<HashMap<String, Known>>,
}

/// A provider's models that were asked for. It serves few, so names are not joined to be looked up.
type Known = HashMap<String, Option<Arc<Price>>>;

/// What ships with the program.
#[derive(Default)]
struct Shipped {
    version: String,
    prices: HashMap<String, Arc<Price>>,
}

static BOOK: LazyLock<Shipped> = LazyLock::new(|| {
    // A book that cannot be read knows no price, so nothing is sold; a test reads it.
    Shipped::read(SHIPPED).unwrap_or_default()
});

impl Default for PriceBook {
    fn default() -> PriceBook {
        PriceBook::with(Vec::new(), Unknown::Refuse)
    }
}

impl PriceBook {
    /// The shipped book below these prices. What they leave out follows the book, in proportion.
    pub fn with(mut operator: Vec<(ModelPattern, Price)>, unknown: Unknown) -> PriceBook {
        operator.sort_by(|(one, _), (other, _)| {
            let length = |pattern: &ModelPattern| pattern.as_str().len();
            length(other).cmp(&length(one)).then_with(|| one.cmp(other))
        });
        let version = match (operator.is_empty(), &unknown) {
            (true, Unknown::Refuse) => BOOK.version.clone(),
            _ => format!(
                "{}+{}",
                BOOK.version,
                digest(format!("{operator:?}{unknown:?}").as_bytes())
            ),
        };
        let unknown = match unknown {
            Unknown::Refuse => None,
            Unknown::Ceiling(price) => Some(Arc::new(price)),
        };
        PriceBook {
            operator,
            unknown,
            version,
            remembered: RwLock::default(),
        }
    }

    /// What is written in each ledger row: which book, and which prices of the operator over it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The price of a provider's model. The operator's patterns are matched against `provider/model` and `model`, the
    /// longest first; then the book. None is not free: it is refused, or the ceiling if the operator set one.
    pub fn price(&self, provider: &str, model: &str) -> Option<Arc<Price>> {
        let remembered = self
            .remembered
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered
            .get(provider)
            .and_then(|models| models.get(model))
        {
            return known.clone();
        }
        drop(remembered);
        let found = self.find(provider, model);
        if model.len() > LONGEST_REMEMBERED {
            return found;
        }
        let mut remembered = self
            .remembered
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if remembered.values().map(HashMap::len).sum::<usize>() >= MOST_REMEMBERED {
            remembered.clear();
        }
        remembered
            .entry(provider.to_owned())
            .or_default()
            .insert(model.to_owned(), found.clone());
        found
    }

    fn find(&self, provider: &str, model: &str) -> Option<Arc<Price>> {
        let listed = BOOK.price(model);
        let whole = format!("{provider}/{model}");
        let matches = |pattern: &ModelPattern| pattern.matches(&whole) || pattern.matches(model);
        match self.operator.iter().find(|(pattern, _)| matches(pattern)) {
            Some((_, price)) => Some(Arc::new(match listed {
                Some(listed) => price.clone().filled_from(&listed),
                None => price.clone(),
            })),
            None => listed.or_else(|| self.unknown.clone()),
        }
    }
}

/// The first 12 hex digits of a SHA-256: enough to tell books apart.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .take(6)
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

impl Shipped {
    fn read(text: &str) -> Result<Shipped, String> {
        let book: Book = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut prices = HashMap::new();
        for row in book.prices {
            let price = Arc::new(row.price()?);
            for name in row.names {
                if prices.insert(name.clone(), Arc::clone(&price)).is_some() {
                    return Err(format!("`{name}` has two prices"));
                }
            }
        }
        Ok(Shipped {
            version: format!("{}-{}", book.date, digest(text.as_bytes())),
            prices,
        })
    }

    /// By the exact name, else by the name without the date of its snapshot. Nothing looser: `gpt-4o-audio-preview` costs
    /// many times what `gpt-4o` costs.
    fn price(&self, model: &str) -> Option<Arc<Price>> {
        let model = model.strip_prefix("models/").unwrap_or(model);
        self.prices
            .get(model)
            .or_else(|| self.prices.get(without_date(model)?))
            .cloned()
    }
}

/// `name-20250929`, `name-2025-09-29`, `name@20250929`, `name-0613`, `name-001` and `name-latest` without their ends.
fn without_date(model: &str) -> Option<&str> {
    if let Some(name) = model.strip_suffix("-latest") {
        return Some(name);
    }
    let name = model
        .trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '-' || letter == '@');
    let end = &model[name.len()..];
    // The digits of a version (`claude-3-5-sonnet`, `o4-mini`) end before the date: cut at the last mark that leaves a date.
    let shapes: [&[usize]; 4] = [&[4, 2, 2], &[8], &[4], &[3]];
    shapes.iter().find_map(|shape| {
        let length = shape.iter().sum::<usize>() + shape.len();
        let at = end.len().checked_sub(length)?;
        let parts: Vec<usize> = end[at..].split(['-', '@']).map(str::len).collect();
        (parts.first() == Some(&0) && parts[1..] == **shape).then(|| &model[..name.len() + at])
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Book {
    #[serde(rename = "read_this")]
    _read_this: String,
    date: String,
    prices: Vec<Row>,
}

/// Dollars per million tokens, as text: a number of JSON would pass through a float.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    names: Vec<String>,
    #[serde(rename = "vendor")]
    _vendor: String,
    input: String,
    output: String,
    cache_read: Option<String>,
    cache_write_5m: Option<String>,
    cache_write_1h: Option<String>,
    audio_in: Option<String>,
    audio_out: Option<String>,
    tool_request: Option<String>,
    context: Option<u64>,
    most_output: Option<u64>,
    #[serde(default)]
    tiers: Vec<TierRow>,
    #[serde(rename = "since")]
    _since: String,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TierRow {
    above: u64,
    input: String,
    output: String,
    cache_read: Option<String>,
    cache_write_5m: Option<String>,
    cache_write_1h: Option<String>,
}

fn dollars(text: &str) -> Result<u64, String> {
    text.parse::<Money>()
        .map(|money| money.0)
        .map_err(|error| error.to_string())
}

fn maybe(text: &Option<String>) -> Result<Option<u64>, String> {
    text.as_deref().map(dollars).transpose()
}

impl Row {
    fn price(&self) -> Result<Price, String> {
        Ok(Price {
            input: dollars(&self.input)?,
            output: dollars(&self.output)?,
            cache_read: maybe(&self.cache_read)?,
            cache_write_5m: maybe(&self.cache_write_5m)?,
            cache_write_1h: maybe(&self.cache_write_1h)?,
            audio_in: maybe(&self.audio_in)?,
            audio_out: maybe(&self.audio_out)?,
            tool_request: maybe(&self.tool_request)?,
            context: self.context,
            most_output: self.most_output,
            tiers: self
                .tiers
                .iter()
                .map(TierRow::tier)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl TierRow {
    fn tier(&self) -> Result<Tier, String> {
        Ok(Tier {
            above: self.above,
            input: dollars(&self.input)?,
            output: dollars(&self.output)?,
            cache_read: maybe(&self.cache_read)?,
            cache_write_5m: maybe(&self.cache_write_5m)?,
            cache_write_1h: maybe(&self.cache_write_1h)?,
        })
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
