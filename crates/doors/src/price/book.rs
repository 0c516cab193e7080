//! The price book: prices shipped with the program (`book.json`), overridden by the operator's.

use super::{Price, Tier};
use sha2::{Digest, Sha256};
use spec::{ModelPattern, Money};
use std::{
    collections::HashMap,
    fmt::Write,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

const SHIPPED_BOOK: &str = include_str!("book.json");
/// Cached lookups; programs choose the model names.
const MAX_CACHED: usize = 1024;
const MAX_CACHED_NAME: usize = 200;

/// Policy for models without a price.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnknownPricePolicy {
    /// Refuse the call.
    #[default]
    Refuse,
    /// Charge this price.
    Ceiling(Price),
}

/// All prices.
#[derive(Debug)]
pub struct PriceBook {
    /// Longest pattern first.
    operator: Vec<(ModelPattern, Price)>,
    unknown: Option<Arc<Price>>,
    version: String,
    cache: RwLock<HashMap<String, ModelPrices>>,
}

/// Cached prices of one provider, by model. There are few providers, so two lookups are cheaper
/// than joining names.
type ModelPrices = HashMap<String, Option<Arc<Price>>>;

/// The shipped prices.
#[derive(Default)]
struct ShippedPrices {
    version: String,
    prices: HashMap<String, Arc<Price>>,
}

static SHIPPED_PRICES: LazyLock<ShippedPrices> = LazyLock::new(|| {
    // A book that cannot be parsed has no prices, so calls are refused; a test parses it.
    ShippedPrices::read(SHIPPED_BOOK).unwrap_or_default()
});

impl Default for PriceBook {
    fn default() -> PriceBook {
        PriceBook::new(Vec::new(), UnknownPricePolicy::Refuse)
    }
}

impl PriceBook {
    /// The operator's prices over the shipped book. Parts that they omit are scaled from the book.
    pub fn new(mut operator: Vec<(ModelPattern, Price)>, unknown: UnknownPricePolicy) -> PriceBook {
        operator.sort_by(|(one, _), (other, _)| {
            let length = |pattern: &ModelPattern| pattern.as_str().len();
            length(other).cmp(&length(one)).then_with(|| one.cmp(other))
        });
        let version = match (operator.is_empty(), &unknown) {
            (true, UnknownPricePolicy::Refuse) => SHIPPED_PRICES.version.clone(),
            _ => format!(
                "{}+{}",
                SHIPPED_PRICES.version,
                // Of the `Debug` output: renaming `Price`, `Tier` or a field of theirs changes it.
                digest(format!("{operator:?}{unknown:?}").as_bytes())
            ),
        };
        let unknown = match unknown {
            UnknownPricePolicy::Refuse => None,
            UnknownPricePolicy::Ceiling(price) => Some(Arc::new(price)),
        };
        PriceBook {
            operator,
            unknown,
            version,
            cache: RwLock::default(),
        }
    }

    /// Recorded with each reservation: the book's version and a digest of the operator's prices.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The price of a provider's model. The operator's patterns are matched against
    /// `provider/model` and `model`, longest first; then the book. A missing price is not free: the
    /// call is refused, or charged at the ceiling if the operator set one.
    pub fn price(&self, provider: &str, model: &str) -> Option<Arc<Price>> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cache.get(provider).and_then(|models| models.get(model)) {
            return known.clone();
        }
        drop(cache);
        let found = self.find(provider, model);
        if model.len() > MAX_CACHED_NAME {
            return found;
        }
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.values().map(HashMap::len).sum::<usize>() >= MAX_CACHED {
            cache.clear();
        }
        cache
            .entry(provider.to_owned())
            .or_default()
            .insert(model.to_owned(), found.clone());
        found
    }

    fn find(&self, provider: &str, model: &str) -> Option<Arc<Price>> {
        let listed = SHIPPED_PRICES.price(model);
        let whole = format!("{provider}/{model}");
        let matches = |pattern: &ModelPattern| pattern.matches(&whole) || pattern.matches(model);
        match self.operator.iter().find(|(pattern, _)| matches(pattern)) {
            Some((_, price)) => Some(Arc::new(match listed {
                Some(listed) => price.clone().with_defaults_from(&listed),
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

impl ShippedPrices {
    fn read(text: &str) -> Result<ShippedPrices, String> {
        let book: BookFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut prices = HashMap::new();
        for row in book.prices {
            let price = Arc::new(row.price()?);
            for name in row.names {
                if prices.insert(name.clone(), Arc::clone(&price)).is_some() {
                    return Err(format!("`{name}` has two prices"));
                }
            }
        }
        Ok(ShippedPrices {
            version: format!("{}-{}", book.date, digest(text.as_bytes())),
            prices,
        })
    }

    /// By exact name, else by the name without its snapshot date. Nothing looser:
    /// `gpt-4o-audio-preview` costs many times what `gpt-4o` costs.
    fn price(&self, model: &str) -> Option<Arc<Price>> {
        let model = model.strip_prefix("models/").unwrap_or(model);
        self.prices
            .get(model)
            .or_else(|| self.prices.get(without_date(model)?))
            .cloned()
    }
}

/// Strips the end of `name-20250929`, `name-2025-09-29`, `name@20250929`, `name-0613`, `name-001`
/// and `name-latest`.
fn without_date(model: &str) -> Option<&str> {
    if let Some(name) = model.strip_suffix("-latest") {
        return Some(name);
    }
    let name = model
        .trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '-' || letter == '@');
    let end = &model[name.len()..];
    // Version digits (`claude-3-5-sonnet`, `o4-mini`) end before the date: cut at the last
    // separator that leaves a date.
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
struct BookFile {
    #[serde(rename = "read_this")]
    _read_this: String,
    date: String,
    prices: Vec<PriceEntry>,
}

/// Dollars per million tokens, as strings: a JSON number would pass through a float.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceEntry {
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
    tiers: Vec<TierEntry>,
    #[serde(rename = "since")]
    _since: String,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TierEntry {
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

fn optional_dollars(text: &Option<String>) -> Result<Option<u64>, String> {
    text.as_deref().map(dollars).transpose()
}

impl PriceEntry {
    fn price(&self) -> Result<Price, String> {
        Ok(Price {
            input: dollars(&self.input)?,
            output: dollars(&self.output)?,
            cache_read: optional_dollars(&self.cache_read)?,
            cache_write_5m: optional_dollars(&self.cache_write_5m)?,
            cache_write_1h: optional_dollars(&self.cache_write_1h)?,
            audio_in: optional_dollars(&self.audio_in)?,
            audio_out: optional_dollars(&self.audio_out)?,
            tool_request: optional_dollars(&self.tool_request)?,
            context: self.context,
            most_output: self.most_output,
            tiers: self
                .tiers
                .iter()
                .map(TierEntry::tier)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl TierEntry {
    fn tier(&self) -> Result<Tier, String> {
        Ok(Tier {
            above: self.above,
            input: dollars(&self.input)?,
            output: dollars(&self.output)?,
            cache_read: optional_dollars(&self.cache_read)?,
            cache_write_5m: optional_dollars(&self.cache_write_5m)?,
            cache_write_1h: optional_dollars(&self.cache_write_1h)?,
        })
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
