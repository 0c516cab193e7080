use super::*;

fn pattern(text: &str) -> ModelPattern {
    text.parse().unwrap()
}

fn flat(input: u64, output: u64) -> Price {
    Price {
        input,
        output,
        ..Price::default()
    }
}

#[test]
fn the_shipped_book_can_be_read_and_every_row_is_sane() {
    let book: BookFile = serde_json::from_str(SHIPPED_BOOK).unwrap();
    assert!(book.prices.len() >= 80, "{}", book.prices.len());
    for row in &book.prices {
        let (name, price) = (&row.names[0], row.price().unwrap());
        let embeds = name.contains("embed");
        assert!(
            price.input > 0 && (price.output >= price.input || embeds),
            "{name}"
        );
        assert!(
            price.output <= 600_000_000_000,
            "{name} costs more than anything does"
        );
        assert!(
            price
                .cache_read
                .is_none_or(|read| read > 0 && read <= price.input),
            "{name}"
        );
        let writes = [price.cache_write_5m, price.cache_write_1h];
        assert!(
            writes
                .into_iter()
                .flatten()
                .all(|write| write >= price.input),
            "{name}"
        );
        assert!(
            price
                .most_output
                .zip(price.context)
                .is_none_or(|(most, context)| most <= context),
            "{name}"
        );
        assert!(price.tiers.is_sorted_by_key(|tier| tier.above), "{name}");
        assert!(
            price
                .tiers
                .iter()
                .all(|tier| tier.input >= price.input && tier.output >= price.output),
            "{name}"
        );
        let dated = |text: &str| text.len() == 7 && text.as_bytes()[4] == b'-';
        assert!(
            dated(&row._since) && !row._source.is_empty() && !row._vendor.is_empty(),
            "{name}"
        );
    }
    ShippedPrices::read(SHIPPED_BOOK).unwrap();
}

#[test]
fn what_searches_unasked_for_a_fee_that_no_usage_shows_has_no_price() {
    let book = PriceBook::default();
    for name in [
        "gpt-4o-search-preview",
        "gpt-4o-mini-search-preview",
        "gpt-4o-search-preview-2025-03-11",
    ] {
        assert!(book.price("openai", name).is_none(), "{name}");
    }
    assert!(book.price("openai", "gpt-4o-mini").is_some());
}

#[test]
fn the_version_changes_with_the_book_and_with_the_operators_prices() {
    let shipped = ShippedPrices::read(SHIPPED_BOOK).unwrap().version;
    assert_eq!(PriceBook::default().version(), shipped);
    assert_ne!(
        ShippedPrices::read(&SHIPPED_BOOK.replacen("5.0", "5.5", 1))
            .unwrap()
            .version,
        shipped
    );
    let own = |input| {
        PriceBook::new(
            vec![(pattern("x"), flat(input, 9))],
            UnknownPricePolicy::Refuse,
        )
    };
    let (one, other) = (own(1), own(2));
    assert!(one.version().starts_with(&format!("{shipped}+")) && one.version() != other.version());
    let ceiling = PriceBook::new(Vec::new(), UnknownPricePolicy::Ceiling(flat(1, 1)));
    assert_ne!(ceiling.version(), shipped);
}

#[test]
fn a_dated_snapshot_has_the_price_of_its_name_and_nothing_else_has() {
    let book = PriceBook::default();
    let input = |model: &str| book.price("any", model).map(|price| price.input);
    for (snapshot, name) in [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("o3-2025-04-16", "o3"),
        ("gpt-4-0613", "gpt-4"),
        ("models/gemini-2.0-flash-001", "gemini-2.0-flash"),
    ] {
        assert!(input(name).is_some(), "{name}");
        assert_eq!(input(snapshot), input(name), "{snapshot}");
    }
    assert_eq!(
        input("gpt-4o-2024-05-13"),
        Some(5_000_000_000),
        "a snapshot with a price of its own"
    );
    for unknown in [
        "gpt-4o-realtime-preview",
        "gpt-4o-",
        "gpt-4o-1",
        "claude-sonnet-4-5-evil",
        "",
        "4-0613",
        "-0613",
        "GPT-4o",
    ] {
        assert_eq!(input(unknown), None, "{unknown}");
    }
}

#[test]
fn the_operators_longest_pattern_wins_over_the_book_and_a_provider_can_be_named() {
    let operator = vec![
        (pattern("gpt-*"), flat(1, 1)),
        (pattern("gpt-4o*"), flat(2, 2)),
        (pattern("mirror/gpt-4o*"), flat(3, 3)),
    ];
    let book = PriceBook::new(operator, UnknownPricePolicy::Refuse);
    let input = |provider: &str, model: &str| book.price(provider, model).map(|price| price.input);
    assert_eq!(input("openai", "gpt-9"), Some(1));
    assert_eq!(input("openai", "gpt-4o-mini"), Some(2));
    assert_eq!(input("mirror", "gpt-4o-mini"), Some(3));
    assert_eq!(input("openai", "o3"), Some(2_000_000_000));
    assert_eq!(input("openai", "unheard-of"), None);
}

#[test]
fn a_model_without_a_price_is_refused_or_costs_the_ceiling_and_is_never_free() {
    assert_eq!(PriceBook::default().price("local", "unheard-of"), None);
    let ceiling = PriceBook::new(Vec::new(), UnknownPricePolicy::Ceiling(flat(7, 8)));
    assert_eq!(
        ceiling.price("local", "unheard-of").as_deref(),
        Some(&flat(7, 8))
    );
}

#[test]
fn a_program_that_asks_for_endless_names_fills_no_memory() {
    let book = PriceBook::default();
    for number in 0..5000 {
        assert_eq!(book.price("openai", &format!("model-{number}")), None);
    }
    let kept = book
        .cache
        .read()
        .unwrap()
        .values()
        .map(HashMap::len)
        .sum::<usize>();
    assert!(kept <= MAX_CACHED, "{kept}");
    assert!(book.price("openai", "gpt-4o").is_some());
}
