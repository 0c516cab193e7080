//! Patterns of credentials: file names, variable names, and the prefixes of providers' keys.

/// What a file's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileHint {
    /// The file is a credential.
    Secret,
    /// The file is a credential if it contains this text.
    Holds(&'static str),
    /// The file is a key by its name; its contents decide whether a private one.
    Key,
    /// Nothing.
    Plain,
}

/// Suffixes of paths that are always credentials.
const SECRET_SUFFIXES: [&str; 14] = [
    ".aws/credentials",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/gh/hosts.yml",
    ".config/gcloud/credentials.db",
    ".config/gcloud/application_default_credentials.json",
    ".config/gcloud/access_tokens.db",
    ".azure/accessTokens.json",
    ".azure/msal_token_cache.json",
    ".kube/config",
    ".vault-token",
    ".pgpass",
    ".terraform.d/credentials.tfrc.json",
];

/// Suffixes of paths that are credentials if they contain a text.
const SECRET_SUFFIXES_BY_CONTENT: [(&str, &str); 6] = [
    (".npmrc", "_auth"),
    (".yarnrc.yml", "npmAuthToken"),
    (".pypirc", "password"),
    (".docker/config.json", "\"auth\""),
    (".config/containers/auth.json", "\"auth\""),
    (".cargo/credentials.toml", "token"),
];

/// Prefixes of keys, the minimum of further characters, and their provider.
const KEY_PREFIXES: [(&str, usize, &str); 20] = [
    ("AKIA", 16, "an AWS key"),
    ("ASIA", 16, "an AWS key"),
    ("ghp_", 36, "a GitHub token"),
    ("gho_", 36, "a GitHub token"),
    ("ghu_", 36, "a GitHub token"),
    ("ghs_", 36, "a GitHub token"),
    ("ghr_", 36, "a GitHub token"),
    ("github_pat_", 22, "a GitHub token"),
    ("glpat-", 20, "a GitLab token"),
    ("sk-", 20, "a key of a model provider"),
    ("sk_live_", 20, "a Stripe key"),
    ("xoxa-", 10, "a Slack token"),
    ("xoxb-", 10, "a Slack token"),
    ("xoxp-", 10, "a Slack token"),
    ("xoxr-", 10, "a Slack token"),
    ("xoxs-", 10, "a Slack token"),
    ("AIza", 35, "a Google key"),
    ("npm_", 36, "an npm token"),
    ("pypi-", 40, "a PyPI token"),
    ("hf_", 34, "a Hugging Face token"),
];

/// Classifies a path relative to the root, by its name alone.
pub(super) fn file(path: &str) -> FileHint {
    let ends = |end: &str| {
        path == end
            || path
                .strip_suffix(end)
                .is_some_and(|front| front.ends_with('/'))
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let of_ssh = path.contains(".ssh/") || path.starts_with("etc/ssh/");
    if SECRET_SUFFIXES.iter().any(|end| ends(end)) {
        return FileHint::Secret;
    }
    if of_ssh
        && (name.starts_with("id_") || name.starts_with("ssh_host_"))
        && !name.ends_with(".pub")
    {
        return FileHint::Secret;
    }
    match SECRET_SUFFIXES_BY_CONTENT.iter().find(|(end, _)| ends(end)) {
        Some((_, words)) => FileHint::Holds(words),
        None if [".pem", ".key", ".p8"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            FileHint::Key
        }
        None => FileHint::Plain,
    }
}

/// Whether a file lies in a folder for tests or documentation, such as keys that are public
/// knowledge.
pub(super) fn is_example(path: &str) -> bool {
    const FOLDERS: [&str; 8] = [
        "test", "tests", "testdata", "testing", "example", "examples", "doc", "samples",
    ];
    path.split('/').any(|part| FOLDERS.contains(&part))
}

/// Whether a variable has the name of a credential and a value. The official Python images set
/// `GPG_KEY`: the fingerprint of a public key.
pub(super) fn is_suspicious_variable(name: &str, value: &str) -> bool {
    const WORDS: [&str; 8] = [
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "APIKEY",
        "PRIVATE_KEY",
    ];
    let name = name.to_ascii_uppercase();
    let called_so =
        WORDS.iter().any(|word| name.contains(word)) || name == "KEY" || name.ends_with("_KEY");
    called_so && name != "GPG_KEY" && !value.trim().is_empty()
}

/// Kind of the first key in the bytes, if any.
pub(super) fn key_in(bytes: &[u8]) -> Option<&'static str> {
    if has_private_key(bytes) {
        return Some("a private key");
    }
    KEY_PREFIXES
        .iter()
        .find(|(start, length, _)| has_key(bytes, start.as_bytes(), *length))
        .map(|(_, _, kind)| *kind)
}

/// Whether the bytes contain the text.
pub(super) fn contains(bytes: &[u8], words: &str) -> bool {
    positions(bytes, words.as_bytes()).next().is_some()
}

/// A PEM header of a private key followed by data: programs that read keys contain the header
/// alone.
fn has_private_key(bytes: &[u8]) -> bool {
    const HEADER: &[u8] = b"PRIVATE KEY-----";
    positions(bytes, HEADER).any(|at| {
        let line = bytes[..at]
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let below = &bytes[at + HEADER.len()..];
        let below = below
            .strip_prefix(b"\r")
            .unwrap_or(below)
            .strip_prefix(b"\n")
            .or(below.strip_prefix(b"\\n"));
        let body = below
            .unwrap_or_default()
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=-: ,".contains(byte));
        contains(line, "-----BEGIN ") && body.count() >= 16
    })
}

/// The prefix at the start of a word, followed by enough characters of a key.
fn has_key(bytes: &[u8], start: &[u8], length: usize) -> bool {
    let of_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    positions(bytes, start).any(|at| {
        let alone = at == 0 || !of_key(&bytes[at - 1]);
        let rest: Vec<u8> = bytes[at + start.len()..]
            .iter()
            .copied()
            .take_while(of_key)
            .take(256)
            .collect();
        // Words joined by dashes are no key.
        alone && rest.len() >= length && rest.iter().any(u8::is_ascii_digit)
    })
}

fn positions<'a>(bytes: &'a [u8], part: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes
        .windows(part.len())
        .enumerate()
        .filter(move |(_, window)| *window == part)
        .map(|(at, _)| at)
}
