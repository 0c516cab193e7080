//! What of git's configuration names programs and files: git on the host runs and obeys them, wherever they lie.

use crate::config::{Config, Entry};

/// Something that a setting names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// Another file of settings, relative to the one that names it.
    Settings(String),
    /// A path, relative to the top of the worktree.
    Path(String),
    /// A word of a command, run at the top of the worktree.
    Word {
        /// The word itself.
        word: String,
        /// Whether it is looked for in `PATH` if it has no `/`.
        first: bool,
    },
}

/// Settings whose value is a command; nothing for every key of a section.
const COMMANDS: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "fsmonitor",
            "sshcommand",
            "editor",
            "pager",
            "askpass",
            "gitproxy",
            "alternaterefscommand",
        ],
    ),
    ("sequence", &["editor"]),
    ("diff", &["external", "textconv", "command"]),
    ("filter", &["clean", "smudge", "process"]),
    ("merge", &["driver"]),
    ("gpg", &["program", "defaultkeycommand"]),
    ("credential", &["helper"]),
    ("pager", &[]),
    ("interactive", &["difffilter"]),
    ("difftool", &["cmd", "path"]),
    ("mergetool", &["cmd", "path"]),
    ("guitool", &["cmd"]),
    ("browser", &["cmd", "path"]),
    ("man", &["cmd", "path"]),
    ("trailer", &["command", "cmd"]),
    ("tar", &["command"]),
    ("remote", &["uploadpack", "receivepack"]),
    ("uploadpack", &["packobjectshook"]),
    ("hook", &["command"]),
    (
        "sendemail",
        &["tocmd", "cccmd", "headercmd", "sendmailcmd", "smtpserver"],
    ),
    ("lfs", &["path", "clean", "smudge"]),
];

/// Settings whose value is a command if it begins with `!`.
const PERHAPS_COMMANDS: &[(&str, &[&str])] = &[("alias", &[]), ("submodule", &["update"])];
const PATHS: &[(&str, &[&str])] = &[("core", &["hookspath"]), ("init", &["templatedir"])];
const SETTINGS: &[(&str, &[&str])] = &[("include", &["path"]), ("includeif", &["path"])];

/// What a shell puts between words.
const BETWEEN: &[char] = &[
    ' ', '\t', '\n', '"', '\'', '`', ';', '|', '&', '(', ')', '<', '>', '=', ',',
];
/// What stands for the top of the worktree in commands.
const TOP: [&str; 4] = [
    "$(git rev-parse --show-toplevel)",
    "`git rev-parse --show-toplevel`",
    "${PWD}",
    "$PWD",
];

/// Everything that a file of settings names.
pub fn named(config: &Config) -> Vec<Named> {
    config.entries.iter().flat_map(of_entry).collect()
}

fn of_entry(entry: &Entry) -> Vec<Named> {
    let Some(value) = &entry.value else {
        return Vec::new();
    };
    let is_in = |list: &[(&str, &[&str])]| {
        list.iter().any(|(section, keys)| {
            *section == entry.section && (keys.is_empty() || keys.contains(&entry.key.as_str()))
        })
    };
    if is_in(SETTINGS) {
        return vec![Named::Settings(value.clone())];
    }
    if is_in(PATHS) {
        return vec![Named::Path(value.clone())];
    }
    match value.strip_prefix('!') {
        Some(command) if is_in(PERHAPS_COMMANDS) || is_in(COMMANDS) => words(command),
        None if is_in(COMMANDS) => words(value),
        Some(_) | None => Vec::new(),
    }
}

fn words(command: &str) -> Vec<Named> {
    let command = TOP
        .iter()
        .fold(command.to_owned(), |command, top| command.replace(top, "."));
    let words = command.split(BETWEEN).filter(|word| !word.is_empty());
    let words = words.enumerate().map(|(place, word)| Named::Word {
        word: word.to_owned(),
        first: place == 0,
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Named> {
        named(&Config::parse(text.as_bytes()))
    }

    fn words_of(text: &str) -> Vec<String> {
        let word = |named| match named {
            Named::Word { word, .. } => Some(word),
            Named::Settings(_) | Named::Path(_) => None,
        };
        all(text).into_iter().filter_map(word).collect()
    }

    #[test]
    fn paths_and_further_settings_are_found() {
        let text = "[core]\nhooksPath = tools/hooks\n[includeIf \"gitdir:/\"]\npath = ../x\n[user]\nname = a/b\n";
        let expected = [
            Named::Path("tools/hooks".to_owned()),
            Named::Settings("../x".to_owned()),
        ];
        assert_eq!(all(text), expected);
    }

    #[test]
    fn every_word_of_a_command_counts_and_an_alias_only_with_its_mark() {
        assert_eq!(
            words_of("[filter \"x\"]\nclean = node ./tools/clean.js --to=out/x\n"),
            ["node", "./tools/clean.js", "--to", "out/x"]
        );
        assert_eq!(
            words_of("[alias]\nst = status a/b\ndo = !sh -c 'a/do x'\n"),
            ["sh", "-c", "a/do", "x"]
        );
        assert_eq!(
            words_of("[merge \"m\"]\ndriver = \"$(git rev-parse --show-toplevel)/m.sh %O\"\n"),
            ["./m.sh", "%O"]
        );
        assert_eq!(
            words_of("[remote \"o\"]\nurl = a/b\n"),
            Vec::<String>::new()
        );
    }
}
