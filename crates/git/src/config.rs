//! Git's configuration: a parser that does not follow `include`, and a filter for the program
//! inside. Settings that name a program, a credential or another file stay outside.

use std::fmt::Write;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// In lower case.
    pub section: String,
    /// As written.
    pub subsection: Option<String>,
    /// In lower case.
    pub key: String,
    /// None for a key without a value, which git takes for `true`.
    pub value: Option<String>,
}

/// The settings of a configuration file, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The settings.
    pub entries: Vec<ConfigEntry>,
}

/// Settings that the program gets: they only change how git reads and writes the repository.
const ALLOWED_KEYS: &[(&str, &[&str])] = &[
    (
        "core",
        &[
            "repositoryformatversion",
            "filemode",
            "ignorecase",
            "precomposeunicode",
            "autocrlf",
            "eol",
            "safecrlf",
            "symlinks",
            "logallrefupdates",
            "sparsecheckout",
            "sparsecheckoutcone",
            "abbrev",
            "quotepath",
        ],
    ),
    ("extensions", &["objectformat"]),
    ("user", &["name", "email"]),
    ("index", &["sparse", "version"]),
    ("init", &["defaultbranch"]),
    ("pull", &["rebase", "ff"]),
    ("merge", &["ff", "conflictstyle"]),
    ("rebase", &["autostash", "autosquash"]),
];

/// The same for sections with a subsection.
const ALLOWED_SUBSECTION_KEYS: &[(&str, &[&str])] = &[
    ("remote", &["url", "fetch"]),
    ("branch", &["remote", "merge", "rebase"]),
    ("submodule", &["active", "branch", "ignore"]),
];

impl Config {
    /// Parses a file. Lines that git would refuse are left out.
    pub fn parse(text: &[u8]) -> Config {
        let text = String::from_utf8_lossy(text);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        Parser {
            rest: text.chars().peekable(),
            entries: Vec::new(),
        }
        .all()
    }

    /// The last value of a setting without subsection.
    pub fn last(&self, section: &str, key: &str) -> Option<&str> {
        let found = self.entries.iter().rev().find(|entry| {
            entry.section == section && entry.subsection.is_none() && entry.key == key
        })?;
        Some(found.value.as_deref().unwrap_or("true"))
    }

    /// Whether a setting is on.
    pub fn is_on(&self, section: &str, key: &str) -> bool {
        self.last(section, key).is_some_and(|value| {
            ["true", "yes", "on", "1"]
                .iter()
                .any(|on| value.eq_ignore_ascii_case(on))
        })
    }

    /// The keys of a section without subsection.
    pub fn keys<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a str> {
        self.entries
            .iter()
            .filter(move |entry| entry.section == section)
            .map(|entry| entry.key.as_str())
    }

    /// The settings that the program inside gets.
    pub fn filtered(&self) -> Config {
        let kept = self.entries.iter().filter_map(|entry| {
            let list = match entry.subsection {
                None => ALLOWED_KEYS,
                Some(_) => ALLOWED_SUBSECTION_KEYS,
            };
            let keys = list.iter().find(|(section, _)| *section == entry.section)?;
            if !keys.1.contains(&entry.key.as_str()) {
                return None;
            }
            let mut entry = entry.clone();
            if (entry.section.as_str(), entry.key.as_str()) == ("remote", "url") {
                entry.value = Some(without_credentials(entry.value.as_deref()?)?);
            }
            let texts = entry.subsection.iter().chain(&entry.value);
            (!texts.clone().any(|text| text.chars().any(char::is_control))).then_some(entry)
        });
        Config {
            entries: kept.collect(),
        }
    }

    /// The identity of the committer.
    pub fn identity(&self) -> Config {
        let is_user = |entry: &&ConfigEntry| {
            entry.section == "user" && ["name", "email"].contains(&entry.key.as_str())
        };
        let entries = self.filtered().entries;
        Config {
            entries: entries.iter().filter(is_user).cloned().collect(),
        }
    }

    /// The text of a configuration file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for entry in &self.entries {
            let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            match &entry.subsection {
                Some(name) => _ = writeln!(text, "[{} \"{}\"]", entry.section, quoted(name)),
                None => _ = writeln!(text, "[{}]", entry.section),
            }
            match &entry.value {
                Some(value) => _ = writeln!(text, "\t{} = \"{}\"", entry.key, quoted(value)),
                None => _ = writeln!(text, "\t{}", entry.key),
            }
        }
        text
    }
}

/// The address of a remote without credentials. None for `helper::` addresses, which name a
/// program.
fn without_credentials(url: &str) -> Option<String> {
    if url.contains("::") {
        return None;
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some(url.to_owned());
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    // The user of an SSH address is not a secret.
    let user = login.split(':').next().unwrap_or_default();
    if scheme.ends_with("ssh") && !user.is_empty() {
        Some(format!("{scheme}://{user}@{host}{path}"))
    } else {
        Some(format!("{scheme}://{host}{path}"))
    }
}

struct Parser<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    entries: Vec<ConfigEntry>,
}

impl Parser<'_> {
    fn all(mut self) -> Config {
        let mut section: Option<(String, Option<String>)> = None;
        while let Some(&c) = self.rest.peek() {
            match c {
                '[' => section = self.section(),
                '#' | ';' => self.skip_line(),
                c if c.is_whitespace() => _ = self.rest.next(),
                _ => {
                    let entry = self.entry();
                    if let (Some((section, subsection)), Some((key, value))) = (&section, entry) {
                        let (section, subsection) = (section.clone(), subsection.clone());
                        self.entries.push(ConfigEntry {
                            section,
                            subsection,
                            key,
                            value,
                        });
                    }
                }
            }
        }
        Config {
            entries: self.entries,
        }
    }

    fn skip_line(&mut self) {
        while self.rest.next().is_some_and(|c| c != '\n') {}
    }

    /// `[name]`, `[name "below"]` or the old `[name.below]`. Settings below any other line are
    /// dropped.
    fn section(&mut self) -> Option<(String, Option<String>)> {
        self.rest.next();
        let mut name = String::new();
        loop {
            match self.rest.next()? {
                ']' => {
                    let name = name.to_ascii_lowercase();
                    return Some(match name.split_once('.') {
                        Some((name, below)) => (name.to_owned(), Some(below.to_owned())),
                        None => (name, None),
                    });
                }
                c if c.is_ascii_alphanumeric() || c == '-' || c == '.' => name.push(c),
                ' ' | '\t' => {
                    let below = self.subsection()?;
                    return Some((name.to_ascii_lowercase(), Some(below)));
                }
                _ => return None,
            }
        }
    }

    fn subsection(&mut self) -> Option<String> {
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        self.rest.next_if_eq(&'"')?;
        let mut below = String::new();
        loop {
            match self.rest.next()? {
                '"' => break,
                '\n' => return None,
                '\\' => below.push(self.rest.next()?),
                c => below.push(c),
            }
        }
        self.rest.next_if_eq(&']').map(|_| below)
    }

    fn entry(&mut self) -> Option<(String, Option<String>)> {
        let mut key = String::new();
        while let Some(c) = self
            .rest
            .next_if(|c| c.is_ascii_alphanumeric() || *c == '-')
        {
            key.push(c.to_ascii_lowercase());
        }
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        match self.rest.peek() {
            Some('=') => {
                self.rest.next();
                let value = self.value();
                (!key.is_empty()).then_some((key, Some(value?)))
            }
            None | Some('\n' | '\r' | '#' | ';') => {
                self.skip_line();
                (!key.is_empty()).then_some((key, None))
            }
            Some(_) => {
                self.skip_line();
                None
            }
        }
    }

    /// A value with quotes, escapes, comments and continued lines, as git parses it.
    fn value(&mut self) -> Option<String> {
        let mut value = String::new();
        let mut spaces = String::new();
        let mut quoted = false;
        let mut broken = false;
        loop {
            let c = self.rest.next().unwrap_or('\n');
            match c {
                '\n' => break,
                c if !quoted && c.is_whitespace() => {
                    if !value.is_empty() {
                        spaces.push(c);
                    }
                    continue;
                }
                '#' | ';' if !quoted => {
                    self.skip_line();
                    break;
                }
                '"' => {
                    quoted = !quoted;
                    continue;
                }
                '\\' => {
                    value.push_str(&std::mem::take(&mut spaces));
                    match self.rest.next() {
                        Some('\n') => {}
                        Some('n') => value.push('\n'),
                        Some('t') => value.push('\t'),
                        Some('b') => _ = value.pop(),
                        Some(c @ ('"' | '\\')) => value.push(c),
                        _ => broken = true,
                    }
                    continue;
                }
                _ => {}
            }
            value.push_str(&std::mem::take(&mut spaces));
            value.push(c);
        }
        (!quoted && !broken).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &str) -> String {
        Config::parse(text.as_bytes()).filtered().text()
    }

    #[test]
    fn only_what_is_harmless_passes() {
        let text = "[core]\n\tbare = false\n\tfileMode = true\n\thooksPath = .husky\n\tfsmonitor = ./x\n\
            [include]\n\tpath = ../evil\n[includeIf \"gitdir:/\"]\n\tpath = x\n[alias]\n\tst = !x\n\
            [filter \"f\"]\n\tclean = ./x\n[credential]\n\thelper = store\n[url \"ext::x\"]\n\tinsteadOf = y\n\
            [http \"https://h\"]\n\textraHeader = \"Authorization: x\"\n[user]\n\tname = A B ; c\n\tsigningKey = k\n";
        assert_eq!(
            kept(text),
            "[core]\n\tfilemode = \"true\"\n[user]\n\tname = \"A B\"\n"
        );
    }

    #[test]
    fn addresses_lose_what_logs_in() {
        for (url, kept) in [
            ("https://user:token@h/x.git?key=1", Some("https://h/x.git")),
            ("https://h:8443/x", Some("https://h:8443/x")),
            ("ssh://git:pw@h/x", Some("ssh://git@h/x")),
            ("ssh://h/x@y", Some("ssh://h/x@y")),
            ("git@h:x/y", Some("git@h:x/y")),
            ("../other", Some("../other")),
            ("ext::sh -c x", None),
        ] {
            assert_eq!(without_credentials(url).as_deref(), kept, "{url}");
        }
    }

    #[test]
    fn the_syntax_is_gits() {
        let text = "\u{feff}[a]k=v\n[A \"B\\\"c\"] x = \"a # b\" c ; d\n y\n z = one \\\n two\n[old.Name]\nq = \"unclosed\nr=1\n[bad section x]\nk=v\n";
        let found: Vec<_> = Config::parse(text.as_bytes())
            .entries
            .into_iter()
            .map(|entry| (entry.section, entry.subsection, entry.key, entry.value))
            .collect();
        let entry = |section: &str, below: Option<&str>, key: &str, value: Option<&str>| {
            let own = str::to_owned;
            (own(section), below.map(own), own(key), value.map(own))
        };
        assert_eq!(
            found,
            [
                entry("a", None, "k", Some("v")),
                entry("a", Some("B\"c"), "x", Some("a # b c")),
                entry("a", Some("B\"c"), "y", None),
                entry("a", Some("B\"c"), "z", Some("one  two")),
                entry("old", Some("name"), "r", Some("1")),
            ]
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "[remote \"a\\\"b\\\\c\"]\n\turl = \"x # y\"\n\tfetch = +refs/heads/*:refs/remotes/o/*\n";
        let once = Config::parse(text.as_bytes()).filtered();
        assert_eq!(Config::parse(once.text().as_bytes()), once);
        assert_eq!(once.entries.len(), 2);
    }

    #[test]
    fn a_value_of_two_lines_is_no_second_setting() {
        assert_eq!(kept("[user]\n\tname = \"a\\n[core]\\nfsmonitor=x\"\n"), "");
    }
}
