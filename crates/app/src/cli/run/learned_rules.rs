//! The rules that `--learn` recorded, as options for the next run and as TOML for a profile.

use super::super::message::Message;
use spec::{Denial, LearnedRule, RunResult, WEB_PORTS};

/// The messages before the TOML rules.
pub(super) fn lines(result: &RunResult) -> Vec<Message> {
    let rules = &result.learned;
    if rules.is_empty() {
        let is_out_of_reach = |denial: &Denial| ["private", "metadata"].contains(&&*denial.rule);
        let words = if result.denials.iter().any(is_out_of_reach) {
            "learned: nothing; the denied addresses are not public, and --learn does not allow them"
        } else {
            "learned: no rule was missing"
        };
        return vec![Message::Note(words.to_owned())];
    }
    let options: Vec<_> = rules.iter().flat_map(options).collect();
    vec![
        Message::Note(format!(
            "learned: {} would have allowed what was used",
            options.join(" ")
        )),
        Message::Note("learned: or, in the configuration file:".to_owned()),
    ]
}

/// The rules as TOML, without prefixes, because they are meant to be copied. Host names are
/// normalised and contain no control characters.
pub(super) fn toml(result: &RunResult) -> String {
    let rule = |rule: &LearnedRule| {
        let ports = if is_web(rule) {
            String::new()
        } else {
            format!("ports = {:?}\n", rule.ports.iter().collect::<Vec<_>>())
        };
        let profile = &result.profile;
        let host = &rule.host;
        format!(
            "[[profile.{}.egress]]\nhost = \"{host}\"\nmode = \"tunnel\"\n{ports}",
            toml_key(profile)
        )
    };
    result.learned.iter().map(rule).collect()
}

/// Quotes a profile name where needed: a dot would mean another table, and a name from a server may
/// contain anything.
fn toml_key(profile: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !profile.is_empty() && profile.bytes().all(plain) {
        profile.to_owned()
    } else {
        format!(
            "\"{}\"",
            profile.chars().map(toml_character).collect::<String>()
        )
    }
}

/// A character of a TOML string; everything but printable ASCII is escaped.
fn toml_character(character: char) -> String {
    match character {
        '"' | '\\' => format!("\\{character}"),
        ' '..='~' => character.to_string(),
        other => format!("\\U{:08X}", u32::from(other)),
    }
}

/// Whether the rule has the default ports.
fn is_web(rule: &LearnedRule) -> bool {
    rule.ports.iter().copied().eq(WEB_PORTS)
}

fn options(rule: &LearnedRule) -> Vec<String> {
    let option = |host: String| match host.contains('[') {
        // Brackets are special in a shell.
        true => format!("--allow-host '{host}'"),
        false => format!("--allow-host {host}"),
    };
    // The two web ports are the default and need no option.
    let web = WEB_PORTS.iter().all(|port| rule.ports.contains(port));
    let others = rule
        .ports
        .iter()
        .filter(|port| !(web && WEB_PORTS.contains(port)));
    let others = others.map(|port| option(format!("{}:{port}", rule.host)));
    web.then(|| option(rule.host.to_string()))
        .into_iter()
        .chain(others)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::super::message::render, *};
    use spec::{Id, Timestamp};

    fn result(learned: &[(&str, &[u16])]) -> RunResult {
        let rule = |(host, ports): &(&str, &[u16])| LearnedRule {
            host: host.parse().unwrap(),
            ports: ports.iter().copied().collect(),
            uses: 1,
        };
        let blank = RunResult::blank(Id::new("r").unwrap(), "ci".to_owned(), Timestamp(0));
        RunResult {
            learned: learned.iter().map(rule).collect(),
            ..blank
        }
    }

    #[test]
    fn what_was_learned_can_be_used_as_it_stands() {
        let result = result(&[
            ("pypi.org", &[443]),
            ("a.com", &[80, 443]),
            ("db.example.com", &[80, 443, 5432]),
            ("[2001:4860::1]", &[22]),
        ]);
        let told = "airlock: note: learned: --allow-host pypi.org:443 --allow-host a.com --allow-host db.example.com --allow-host \
                    db.example.com:5432 --allow-host '[2001:4860::1]:22' would have allowed what was used\n\
                    airlock: note: learned: or, in the configuration file:\n";
        assert_eq!(render(&lines(&result)), told);
        let rules = "[[profile.ci.egress]]\nhost = \"pypi.org\"\nmode = \"tunnel\"\nports = [443]\n\
                     [[profile.ci.egress]]\nhost = \"a.com\"\nmode = \"tunnel\"\n\
                     [[profile.ci.egress]]\nhost = \"db.example.com\"\nmode = \"tunnel\"\nports = [80, 443, 5432]\n\
                     [[profile.ci.egress]]\nhost = \"[2001:4860::1]\"\nmode = \"tunnel\"\nports = [22]\n";
        assert_eq!(toml(&result), rules);
        assert!(
            toml(&RunResult {
                profile: "a.b".to_owned(),
                ..result.clone()
            })
            .starts_with("[[profile.\"a.b\".egress]]\n")
        );
        let hostile = toml(&RunResult {
            profile: "x\"]\n\u{9b}2J".to_owned(),
            ..result
        });
        assert!(
            hostile.starts_with("[[profile.\"x\\\"]\\U0000000A\\U0000009B2J\".egress]]\n"),
            "{hostile}"
        );
    }

    #[test]
    fn that_nothing_was_missing_is_said() {
        assert_eq!(
            render(&lines(&result(&[]))),
            "airlock: note: learned: no rule was missing\n"
        );
        assert_eq!(toml(&result(&[])), "");
    }
}
