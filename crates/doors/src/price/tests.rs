use super::*;
use proptest::prelude::*;

fn sonnet() -> Price {
    Price {
        input: 3_000_000_000,
        output: 15_000_000_000,
        cache_read: Some(300_000_000),
        cache_write_5m: Some(3_750_000_000),
        cache_write_1h: Some(6_000_000_000),
        tiers: vec![Tier {
            above: 200_000,
            input: 6_000_000_000,
            output: 22_500_000_000,
            ..Tier::default()
        }],
        ..Price::default()
    }
}

#[test]
fn every_kind_of_token_has_its_price_and_the_sum_is_rounded_up_once() {
    let usage = TokenUsage {
        input: 1,
        cache_read: 1,
        cache_write_5m: 1,
        output: 1,
        reasoning: 1,
        ..TokenUsage::default()
    };
    // 3000 + 300 + 3750 + 15000 + 15000 nano-dollars
    assert_eq!(sonnet().cost(&usage), Money(37_050));
    let small = Price {
        input: 1,
        output: 1,
        ..Price::default()
    };
    assert_eq!(
        small.cost(&TokenUsage {
            input: 1,
            output: 1,
            ..TokenUsage::default()
        }),
        Money(1)
    );
    assert_eq!(small.cost(&TokenUsage::default()), Money(0));
}

#[test]
fn a_long_input_moves_the_whole_call_to_its_tier() {
    let usage = |input, cache_read| TokenUsage {
        input,
        cache_read,
        output: 1000,
        ..TokenUsage::default()
    };
    assert_eq!(
        sonnet().cost(&usage(200_000, 0)),
        Money(600_000_000 + 15_000_000)
    );
    assert_eq!(
        sonnet().cost(&usage(200_001, 0)),
        Money(1_200_006_000 + 22_500_000)
    );
    // Cached input counts towards the threshold, too; without a price in the tier it costs as much as input.
    assert_eq!(
        sonnet().cost(&usage(1, 200_000)),
        Money(1_200_006_000 + 22_500_000)
    );
}

#[test]
fn what_has_no_price_of_its_own_is_not_free() {
    let price = Price {
        input: 2_000_000,
        output: 4_000_000,
        ..Price::default()
    };
    let cost = |usage: TokenUsage| price.cost(&usage).0;
    assert_eq!(
        cost(TokenUsage {
            cache_write_1h: 1,
            ..TokenUsage::default()
        }),
        2
    );
    assert_eq!(
        cost(TokenUsage {
            cache_read: 1,
            ..TokenUsage::default()
        }),
        2
    );
    assert_eq!(
        cost(TokenUsage {
            audio_in: 1,
            ..TokenUsage::default()
        }),
        2
    );
    assert_eq!(
        cost(TokenUsage {
            audio_out: 1,
            ..TokenUsage::default()
        }),
        4
    );
    assert_eq!(
        cost(TokenUsage {
            tool_requests: 1,
            ..TokenUsage::default()
        }),
        10_000_000
    );
}

#[test]
fn a_huge_bill_stays_huge() {
    let price = Price {
        input: u64::MAX,
        output: u64::MAX,
        ..Price::default()
    };
    assert_eq!(
        price.cost(&TokenUsage {
            input: u64::MAX,
            output: u64::MAX,
            ..TokenUsage::default()
        }),
        Money::MAX
    );
    assert_eq!(price.max_output_cost(u64::MAX), Money::MAX);
}

#[test]
fn an_own_price_carries_the_rest_of_the_listed_one_with_it() {
    let half = Price {
        input: 1_500_000_000,
        output: 7_500_000_000,
        ..Price::default()
    }
    .with_defaults_from(&sonnet());
    assert_eq!(half.cache_write_1h, Some(3_000_000_000));
    assert_eq!(half.cache_read, Some(150_000_000));
    assert_eq!(
        (half.tiers[0].input, half.tiers[0].output),
        (3_000_000_000, 11_250_000_000)
    );
    let said = Price {
        cache_read: Some(7),
        ..half.clone()
    }
    .with_defaults_from(&sonnet());
    assert_eq!(said.cache_read, Some(7));
}

fn any_price() -> impl Strategy<Value = Price> {
    let rate = || prop_oneof![Just(0_u64), 1..1000_u64, 1_000_000..200_000_000_000_u64];
    let some = move || proptest::option::of(rate());
    let tier = (0..400_000_u64, rate(), rate(), some()).prop_map(
        |(above, input, output, cache_write_5m)| Tier {
            above,
            input,
            output,
            cache_write_5m,
            ..Tier::default()
        },
    );
    let tiers = proptest::collection::vec(tier, 0..3);
    (
        rate(),
        rate(),
        some(),
        some(),
        some(),
        some(),
        some(),
        tiers,
    )
        .prop_map(
            |(
                input,
                output,
                cache_read,
                cache_write_5m,
                cache_write_1h,
                audio_in,
                audio_out,
                tiers,
            )| Price {
                input,
                output,
                cache_read,
                cache_write_5m,
                cache_write_1h,
                audio_in,
                audio_out,
                tiers,
                ..Price::default()
            },
        )
}

fn any_usage() -> impl Strategy<Value = TokenUsage> {
    proptest::array::uniform8(prop_oneof![Just(0_u64), 0..1_000_000_u64]).prop_map(
        |[
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            audio_in,
            output,
            reasoning,
            audio_out,
        ]| TokenUsage {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            audio_in,
            output,
            reasoning,
            audio_out,
            tool_requests: 0,
        },
    )
}

proptest! {
    #[test]
    fn affordable_output_is_the_exact_inverse_of_the_worst(price in any_price(), nanos in 0..1_000_000_000_000_u64) {
        let most = price.affordable_output(Money(nanos));
        if most != u64::MAX {
            prop_assert!(price.max_output_cost(most) <= Money(nanos));
            prop_assert!(price.max_output_cost(most + 1) > Money(nanos));
        } else {
            prop_assert_eq!(price.max_output_cost(u64::MAX), Money::ZERO);
        }
    }

    #[test]
    fn no_call_costs_more_than_the_worst_case(price in any_price(), usage in any_usage()) {
        let worst = price.max_input_cost(usage.input_tokens()).plus(price.max_output_cost(usage.output_tokens()));
        prop_assert!(price.cost(&usage) <= worst);
    }

    #[test]
    fn the_worst_input_grows_with_the_input(price in any_price(), tokens in 0..500_000_u64, more in 0..500_000_u64) {
        prop_assert!(price.max_input_cost(tokens) <= price.max_input_cost(tokens + more));
    }
}
