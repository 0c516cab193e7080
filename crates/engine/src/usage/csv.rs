//! Usage sums as CSV (RFC 4180) for billing: whole numbers only, money in billionths of a dollar.

use super::{GroupBy, UsageTotal};

/// The column names behind the first.
const COLUMNS: [&str; 12] = [
    "calls",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "cost_nano_usd",
    "overrun_nano_usd",
    "unsettled_calls",
    "unsettled_nano_usd",
    "runs",
    "sandboxes",
    "cpu_ms",
    "may_change",
];

/// The name of a grouping.
pub fn name(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Run => "run",
        GroupBy::Session => "session",
        GroupBy::Tenant => "tenant",
        GroupBy::Model => "model",
        GroupBy::Provider => "provider",
        GroupBy::Day => "day",
    }
}

/// One line for each sum, behind a header line.
pub fn csv(by: GroupBy, totals: &[UsageTotal]) -> String {
    let head = format!("{},{}\r\n", name(by), COLUMNS.join(","));
    totals.iter().fold(head, |text, total| text + &line(total))
}

fn line(total: &UsageTotal) -> String {
    let known = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let activity = total.activity;
    let cells = [
        total.calls.to_string(),
        total.input_tokens.to_string(),
        total.cached_tokens.to_string(),
        total.output_tokens.to_string(),
        total.money.to_string(),
        total.overrun.to_string(),
        total.unsettled.to_string(),
        total.unsettled_money.to_string(),
        known(activity.map(|used| used.runs)),
        known(activity.map(|used| used.sandboxes)),
        known(activity.map(|used| used.cpu_ms)),
        total.may_change.to_string(),
    ];
    format!("{},{}\r\n", cell(&total.key), cells.join(","))
}

/// Invisible characters that change how their neighbours are displayed.
fn reorders(letter: char) -> bool {
    matches!(letter,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{061c}'
            // Tags and variation selectors, which are not displayed at all.
            | '\u{e0000}'..='\u{e0fff}')
}

/// Programs and tenants choose names: a spreadsheet must not take one for a formula, nor a terminal
/// for a control sequence.
fn cell(text: &str) -> String {
    let plain: String = text
        .chars()
        .flat_map(|letter| {
            if letter.is_control() || reorders(letter) {
                letter.escape_default().collect::<Vec<_>>()
            } else {
                vec![letter]
            }
        })
        .collect();
    let guard = if plain.trim_start().starts_with(['=', '+', '-', '@']) {
        "'"
    } else {
        ""
    };
    format!("\"{guard}{}\"", plain.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_program_chose_steers_no_spreadsheet_and_breaks_no_line() {
        for (name, shown) in [
            ("m", "\"m\""),
            ("=1+1\",\"\u{1b}[2J\n", "\"'=1+1\"\",\"\"\\u{1b}[2J\\n\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@x", "\"'@x\""),
            (" =1", "\"' =1\""),
            ("\t=1", "\"\\t=1\""),
            ("a,b", "\"a,b\""),
            ("ü", "\"ü\""),
        ] {
            assert_eq!(cell(name), shown);
        }
    }

    #[test]
    fn what_is_not_known_is_empty_and_money_is_whole() {
        let total = UsageTotal {
            key: "m".to_owned(),
            calls: 2,
            money: 1_500_000_003,
            ..UsageTotal::default()
        };
        let text = csv(GroupBy::Model, &[total]);
        let lines: Vec<_> = text.split("\r\n").collect();
        assert_eq!(lines[1..], ["\"m\",2,0,0,0,1500000003,0,0,0,,,,false", ""]);
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
    }
}
