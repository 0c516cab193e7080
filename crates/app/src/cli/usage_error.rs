//! Usage errors: one error line, the usage, one hint, exit status 125.
//!
//! The status is not 2, the usual one for usage errors, because the program of `airlock run` may
//! exit with 2.

use super::{REFUSED, message, message::Failure, message::Message, run};
use clap::error::ErrorKind;
use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
};

/// Prints a parse error, or the requested help or version.
pub(super) fn report(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match super::print(&text) {
            Ok(()) => 0,
            Err(failure) => super::conclude(Err(failure), false),
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A write error on stderr is ignored: there is no other stream.
            let _ = io::stderr().lock().write_all(text.as_bytes());
            REFUSED
        }
        _ => {
            let context = context(arguments);
            let (failure, usage) = describe(&text, context, arguments);
            let Failure { message, hint, .. } = failure.clone();
            message::print(&[
                Message::Error(message),
                Message::Usage(usage),
                Message::Hint(hint),
            ]);
            if context == ErrorContext::JsonResult {
                run::print_refusal(&run::Identity::default(), &failure);
            }
            REFUSED
        }
    }
}

/// Which command the arguments were meant for, as far as they can be recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorContext {
    JsonResult,
    Run,
    Other,
}

fn context(arguments: &[OsString]) -> ErrorContext {
    let ours: Vec<&OsStr> = arguments
        .iter()
        .skip(1)
        .map(OsString::as_os_str)
        .take_while(|text| *text != "--")
        .collect();
    let takes_value = |text: &OsStr| {
        [
            "--config",
            "--state",
            "--server",
            "--key-file",
            "--server-ca",
        ]
        .iter()
        .any(|option| text == *option)
    };
    let mut words = ours.iter();
    let command = loop {
        match words.next() {
            Some(option) if takes_value(option) => words.next(),
            Some(option) if option.as_encoded_bytes().starts_with(b"-") => None,
            word => break word,
        };
    };
    match (
        command.is_some_and(|word| *word == "run"),
        ours.contains(&OsStr::new("--json")),
    ) {
        (true, true) => ErrorContext::JsonResult,
        (true, false) => ErrorContext::Run,
        (false, _) => ErrorContext::Other,
    }
}

/// Extracts message, tip and usage from clap's text.
fn describe(text: &str, context: ErrorContext, arguments: &[OsString]) -> (Failure, String) {
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let message = first.split_whitespace().collect::<Vec<_>>().join(" ");
    let rest: Vec<&str> = paragraphs.collect();
    let starting = |start: &str| {
        let mut lines = rest.iter().flat_map(|paragraph| paragraph.lines());
        lines.find_map(|line| {
            line.trim_start()
                .strip_prefix(start)
                .map(|tail| tail.trim().to_owned())
        })
    };
    let usage = starting("Usage:").unwrap_or_default();
    let a_word = message.starts_with("unexpected argument '")
        && !message.starts_with("unexpected argument '-");
    let is_run = matches!(context, ErrorContext::Run | ErrorContext::JsonResult);
    let misplaced_provider = misplaced_provider(&message, arguments).filter(|_| is_run);
    if let Some(misplaced_provider) = misplaced_provider {
        let hint = format!("write the provider after an equals sign: --llm={misplaced_provider}");
        return (Failure::invalid(message.clone(), hint), usage);
    }
    let hint = match (starting("tip:"), context) {
        (_, ErrorContext::Run | ErrorContext::JsonResult) if a_word => {
            "put the command after `--`: airlock run -- COMMAND [ARG]...".to_owned()
        }
        // The tip "to pass it as a value, use `--`" would be wrong: after `--` comes the command.
        (Some(tip), _) if !tip.starts_with("to pass") => tip,
        // Errors about a value have no usage line in clap's text.
        _ if usage.is_empty() && is_run => "see `airlock run --help`".to_owned(),
        _ => format!("see `{} --help`", command_of(&usage)),
    };
    (Failure::invalid(message, hint), usage)
}

/// The argument after `--llm`. The option takes a value only with an equals sign, so that a
/// separate word belongs to the command.
fn misplaced_provider<'a>(message: &'a str, arguments: &[OsString]) -> Option<&'a str> {
    let (_, rest) = message.split_once("unexpected argument '")?;
    let (word, _) = rest.split_once('\'')?;
    let is_behind = |pair: &[OsString]| pair[0] == "--llm" && pair[1] == word;
    arguments.windows(2).any(is_behind).then_some(word)
}

/// The command of a usage line, such as `airlock secrets set`.
fn command_of(usage: &str) -> String {
    let is_name = |word: &&str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        !word.starts_with('-') && word.bytes().all(plain)
    };
    let words: Vec<_> = usage.split_whitespace().take_while(is_name).collect();
    if words.is_empty() {
        "airlock".to_owned()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Cli, *};
    use clap::Parser;

    fn told(arguments: &[&str]) -> (Failure, String) {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let error = Cli::try_parse_from(&arguments).expect_err("must not parse");
        describe(&error.to_string(), context(&arguments), &arguments)
    }

    #[test]
    fn a_mistyped_option_gets_the_nearest_one_as_hint() {
        let (failure, usage) = told(&["airlock", "run", "--timeou", "3s", "--", "true"]);
        assert_eq!(failure.message, "unexpected argument '--timeou' found");
        assert_eq!(failure.hint, "a similar argument exists: '--timeout'");
        assert_eq!(usage, "airlock run [OPTIONS] -- COMMAND [ARG]...");
    }

    #[test]
    fn an_option_like_no_other_is_pointed_to_the_help() {
        let (failure, _) = told(&["airlock", "run", "--xyz", "--", "true"]);
        assert_eq!(failure.hint, "see `airlock run --help`");
    }

    #[test]
    fn a_command_without_the_two_dashes_is_explained() {
        let (failure, _) = told(&["airlock", "run", "python3", "x.py"]);
        assert_eq!(failure.message, "unexpected argument 'python3' found");
        assert!(failure.hint.starts_with("put the command after `--`"));
    }

    #[test]
    fn a_provider_without_its_equals_sign_is_explained() {
        let (failure, _) = told(&["airlock", "run", "--llm", "anthropic", "--", "true"]);
        assert!(
            failure.hint.ends_with("--llm=anthropic"),
            "{}",
            failure.hint
        );
        let (failure, _) = told(&["airlock", "run", "--llm", "--tty", "bash"]);
        assert!(failure.hint.starts_with("put the command after `--`"));
    }

    #[test]
    fn a_mistake_is_pointed_to_the_help_of_its_own_command() {
        for (words, command) in [
            (
                &["airlock", "secrets", "set", "--xyz", "x"][..],
                "airlock secrets set",
            ),
            (&["airlock", "usage", "--xyz"], "airlock usage"),
            (&["airlock", "escape-test", "--xyz"], "airlock escape-test"),
            (&["airlock", "--xyz"], "airlock"),
        ] {
            let (failure, usage) = told(words);
            assert_eq!(failure.hint, format!("see `{command} --help`"), "{usage}");
        }
    }

    #[test]
    fn a_bad_value_is_one_line_that_says_what_was_wanted() {
        let (failure, _) = told(&["airlock", "run", "--memory", "lots", "--", "true"]);
        let message = "invalid value 'lots' for '--memory <SIZE>': `lots` is not a size such as 64M, 2G or 4096";
        assert_eq!(failure.message, message);
    }

    #[test]
    fn json_is_wanted_only_where_run_was_asked_for_it_before_the_command() {
        let of = |words: &[&str]| context(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(
            of(&["airlock", "run", "--bad", "--json", "--", "x"]),
            ErrorContext::JsonResult
        );
        assert_eq!(
            of(&["airlock", "--state", "doctor", "run", "--json"]),
            ErrorContext::JsonResult
        );
        assert_eq!(
            of(&["airlock", "run", "--bad", "--", "x", "--json"]),
            ErrorContext::Run
        );
        assert_eq!(
            of(&["airlock", "--config=x", "doctor", "--json", "run"]),
            ErrorContext::Other
        );
        assert_eq!(of(&["airlock"]), ErrorContext::Other);
    }
}
