//! `[prices."PATTERN"]` and `[unknown_prices]`: model prices in dollars, over the built-in price
//! book.
//!
//! Numbers are read as written: up to 15 digits, the shortest decimal of the binary number is what
//! the file says. A text of digits works as well.

use super::{ConfigError, toml_file::Section};
use doors::price::Price;
use spec::{ModelPattern, Money};
use std::path::Path;
use toml::{Table, Value};

const KEYS: [&str; 10] = [
    "input",
    "output",
    "cache_read",
    "cache_write",
    "cache_write_1h",
    "audio_in",
    "audio_out",
    "tool_request",
    "context",
    "max_output",
];

/// The operator's own prices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prices {
    /// By model or `provider/model`; the longest matching pattern decides.
    pub(crate) own: Vec<(ModelPattern, Price)>,
    /// The price of models without a known price; if unset, such models are refused.
    pub(crate) unknown: Option<Price>,
}

/// Reads `[prices]`.
pub(super) fn read(table: &Table, path: &Path) -> Result<Vec<(ModelPattern, Price)>, ConfigError> {
    let all = Section {
        path,
        name: "prices",
    };
    let one = |(pattern, value): (&String, &Value)| {
        let models: ModelPattern = pattern.parse().map_err(|_| {
            all.error(
                pattern,
                "is not a model pattern",
                "such as [prices.\"claude-*\"]",
            )
        })?;
        let name = all.key(&format!("\"{pattern}\""));
        Ok((
            models,
            price(all.table(pattern, value)?, &Section { path, name: &name })?,
        ))
    };
    table.iter().map(one).collect()
}

/// Reads `[unknown_prices]`.
pub(super) fn unknown(table: &Table, path: &Path) -> Result<Price, ConfigError> {
    price(
        table,
        &Section {
            path,
            name: "unknown_prices",
        },
    )
}

fn price(table: &Table, section: &Section<'_>) -> Result<Price, ConfigError> {
    let mut price = Price::default();
    // An omitted price would make that direction free.
    section.needs(
        table,
        &["input", "output"],
        "give input and output, in dollars per million tokens",
    )?;
    for (key, value) in table {
        let dollars = || dollars(section, key, value);
        match key.as_str() {
            "input" => price.input = dollars()?,
            "output" => price.output = dollars()?,
            "cache_read" => price.cache_read = Some(dollars()?),
            "cache_write" => price.cache_write_5m = Some(dollars()?),
            "cache_write_1h" => price.cache_write_1h = Some(dollars()?),
            "audio_in" => price.audio_in = Some(dollars()?),
            "audio_out" => price.audio_out = Some(dollars()?),
            "tool_request" => price.tool_request = Some(dollars()?),
            "context" => price.context = Some(section.number(key, value)?),
            "max_output" => price.most_output = Some(section.number(key, value)?),
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(price)
}

fn dollars(section: &Section<'_>, key: &str, value: &Value) -> Result<u64, ConfigError> {
    section.quantity::<Money>(key, value).map(|money| money.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(ModelPattern, Price)>, ConfigError> {
        super::read(&text.parse().unwrap(), Path::new("/c.toml"))
    }

    #[test]
    fn a_price_is_exactly_what_is_written() {
        let found = read(
            "[\"claude-*\"]\ninput = 3\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\ncache_write_1h = 6.0\n\
             audio_in = \"0.1\"\naudio_out = 1e-3\ntool_request = 0.01\ncontext = 200000\nmax_output = 64000\n\
             [\"*\"]\ninput = 0.000000001\noutput = 0.1\n",
        )
        .unwrap();
        let nano = 1_000_000_000;
        let claude = Price {
            input: 3 * nano,
            output: 15 * nano,
            cache_read: Some(300_000_000),
            cache_write_5m: Some(3_750_000_000),
            cache_write_1h: Some(6 * nano),
            audio_in: Some(100_000_000),
            audio_out: Some(1_000_000),
            tool_request: Some(10_000_000),
            context: Some(200_000),
            most_output: Some(64_000),
            ..Price::default()
        };
        let least = Price {
            input: 1,
            output: 100_000_000,
            ..Price::default()
        };
        assert_eq!(
            found,
            [
                ("*".parse().unwrap(), least),
                ("claude-*".parse().unwrap(), claude)
            ]
        );
    }

    #[test]
    fn a_price_that_is_not_exact_or_not_whole_is_refused() {
        for (text, message) in [
            (
                "[m]\ninput = 1",
                "`prices.\"m\".output` in `/c.toml` is missing",
            ),
            (
                "[m]\ninput = -1\noutput = 1",
                "`prices.\"m\".input` in `/c.toml` has a bad value: `-1`",
            ),
            (
                "[m]\ninput = nan\noutput = 1",
                "`prices.\"m\".input` in `/c.toml` has a bad value: `NaN`",
            ),
            (
                "[m]\ninput = inf\noutput = 1",
                "`prices.\"m\".input` in `/c.toml` has a bad value: `inf`",
            ),
            (
                "[m]\ninput = 1e-12\noutput = 1",
                "`prices.\"m\".input` in `/c.toml` has a bad value",
            ),
            (
                "[m]\ninput = 1\noutput = 1\ncach_read = 1",
                "`prices.\"m\".cach_read` in `/c.toml` is not a known",
            ),
            (
                "[\"a b\"]\ninput = 1\noutput = 1",
                "`prices.a b` in `/c.toml` is not a model pattern",
            ),
            ("m = 3", "`prices.m` in `/c.toml` must be a table"),
        ] {
            let refused = read(text).expect_err(text).message;
            assert!(refused.starts_with(message), "{refused}");
        }
        assert_eq!(
            read("[m]\ninput = 1\noutput = 1\ncach_read = 1")
                .unwrap_err()
                .hint,
            "did you mean `cache_read`?"
        );
    }
}
