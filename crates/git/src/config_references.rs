//! Programs and files that git's configuration names. Git on the host runs and obeys them, also
//! when they lie in the workspace.

use crate::config::{Config, ConfigEntry};

/// A file or a word of a command in the value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigReference {
    /// An included configuration file, relative to the one that names it.
    ConfigFile(String),
    /// A path, relative to the top of the worktree.
    Path(String),
    /// A word of a command, which git runs at the top of the worktree.
    Word {
        /// The word itself.
        word: String,
        /// Whether it is the first word, which is looked up in `PATH` if it has no `/`.
        first: bool,
    },
}

/// Settings whose value is a command. No keys mean every key of the section.
const COMMAND_KEYS: &[(&str, &[&str])] = &[
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
const MARKED_COMMAND_KEYS: &[(&str, &[&str])] = &[("alias", &[]), ("submodule", &["update"])];
const PATH_KEYS: &[(&str, &[&str])] = &[("core", &["hookspath"]), ("init", &["templatedir"])];
const INCLUDE_KEYS: &[(&str, &[&str])] = &[("include", &["path"]), ("includeif", &["path"])];

/// Characters that separate words in a shell.
const WORD_SEPARATORS: &[char] = &[
    ' ', '\t', '\n', '"', '\'', '`', ';', '|', '&', '(', ')', '<', '>', '=', ',',
];
/// Shell expressions for the top of the worktree.
const WORKTREE_EXPRESSIONS: [&str; 4] = [
    "$(git rev-parse --show-toplevel)",
    "`git rev-parse --show-toplevel`",
    "${PWD}",
    "$PWD",
];

/// All files and words that a configuration file names.
pub fn config_references(config: &Config) -> Vec<ConfigReference> {
    config.entries.iter().flat_map(of_entry).collect()
}

fn of_entry(entry: &ConfigEntry) -> Vec<ConfigReference> {
    let Some(value) = &entry.value else {
        return Vec::new();
    };
    let is_in = |list: &[(&str, &[&str])]| {
        list.iter().any(|(section, keys)| {
            *section == entry.section && (keys.is_empty() || keys.contains(&entry.key.as_str()))
        })
    };
    if is_in(INCLUDE_KEYS) {
        return vec![ConfigReference::ConfigFile(value.clone())];
    }
    if is_in(PATH_KEYS) {
        return vec![ConfigReference::Path(value.clone())];
    }
    match value.strip_prefix('!') {
        Some(command) if is_in(MARKED_COMMAND_KEYS) || is_in(COMMAND_KEYS) => words(command),
        None if is_in(COMMAND_KEYS) => words(value),
        Some(_) | None => Vec::new(),
    }
}

fn words(command: &str) -> Vec<ConfigReference> {
    let command = WORKTREE_EXPRESSIONS
        .iter()
        .fold(command.to_owned(), |command, top| command.replace(top, "."));
    let words = command
        .split(WORD_SEPARATORS)
        .filter(|word| !word.is_empty());
    let words = words
        .enumerate()
        .map(|(place, word)| ConfigReference::Word {
            word: word.to_owned(),
            first: place == 0,
        });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<ConfigReference> {
        config_references(&Config::parse(text.as_bytes()))
    }

    fn words_of(text: &str) -> Vec<String> {
        let word = |named| match named {
            ConfigReference::Word { word, .. } => Some(word),
            ConfigReference::ConfigFile(_) | ConfigReference::Path(_) => None,
        };
        all(text).into_iter().filter_map(word).collect()
    }

    #[test]
    fn paths_and_further_settings_are_found() {
        let text = "[core]\nhooksPath = tools/hooks\n[includeIf \"gitdir:/\"]\npath = ../x\n[user]\nname = a/b\n";
        let expected = [
            ConfigReference::Path("tools/hooks".to_owned()),
            ConfigReference::ConfigFile("../x".to_owned()),
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
