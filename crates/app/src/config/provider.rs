//! `[provider.NAME]` and `[inference]`: address, dialect and key of model servers. Settings that
//! could send a key to the wrong server are refused here, before anything runs.

use super::{ConfigError, toml_file::Section};
use doors::{
    catalogue::{OnAbort, Provider},
    dialect::Dialect,
    secrets::KeySource,
};
use http::{HeaderName, Uri};
use spec::{Id, ModelPattern, Time, address};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use toml::{Table, Value};

const KEYS: [&str; 17] = [
    "dialect",
    "base",
    "key",
    "allow_plain_http",
    "allow_private",
    "ca",
    "forward_headers",
    "identify",
    "ask_usage",
    "output_cap",
    "server_tools",
    "on_client_abort",
    "retries",
    "connect",
    "ttfb",
    "idle",
    "retry_after",
];
const INFERENCE_KEYS: [&str; 10] = [
    "base",
    "key",
    "allow_plain_http",
    "ca",
    "models",
    "time",
    "connect",
    "ttfb",
    "idle",
    "retries",
];
const DIALECTS: [(&str, Dialect); 4] = [
    ("openai", Dialect::OpenAi),
    ("anthropic", Dialect::Anthropic),
    ("gemini", Dialect::Gemini),
    ("ollama", Dialect::Ollama),
];
/// Built-in providers, which need only a key.
const KNOWN: [(&str, Dialect, &str); 3] = [
    ("anthropic", Dialect::Anthropic, "https://api.anthropic.com"),
    ("openai", Dialect::OpenAi, "https://api.openai.com"),
    (
        "gemini",
        Dialect::Gemini,
        "https://generativelanguage.googleapis.com",
    ),
];
/// The default address of the local model server.
const DEFAULT_INFERENCE_URL: &str = "http://127.0.0.1:11434";
const MAX_RETRIES: u64 = 10;
/// Headers that a program may never send to a provider, whatever the operator forwards:
/// credentials, accounts, framing.
const NEVER_FORWARDED: [&str; 21] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "openai-organization",
    "openai-project",
    "x-goog-user-project",
    "cookie",
    "keep-alive",
    "expect",
    "host",
    "forwarded",
    "via",
    "connection",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "accept-encoding",
    "te",
    "trailer",
    "upgrade",
];
/// Prefixes of such headers.
const NEVER_FORWARDED_PREFIXES: [&str; 4] = ["x-forwarded-", "proxy-", "x-litellm-", "x-airlock-"];

/// Providers by name.
pub(super) type Providers = BTreeMap<String, Arc<Provider>>;

/// The built-in providers.
pub(super) fn known() -> Providers {
    KNOWN
        .iter()
        .map(|(name, ..)| ((*name).to_owned(), Arc::new(start(name))))
        .collect()
}

/// A built-in provider, or an empty one of this name.
fn start(name: &str) -> Provider {
    match KNOWN.iter().find(|(known, ..)| *known == name) {
        Some((_, dialect, base)) => {
            let key = Some(KeySource::Stored(name.to_owned()));
            Provider {
                key,
                ..Provider::new(name, *dialect, Uri::from_static(base))
            }
        }
        None => Provider::new(name, Dialect::OpenAi, Uri::default()),
    }
}

/// Reads `[provider]`.
pub(super) fn read(table: &Table, path: &Path) -> Result<Providers, ConfigError> {
    let all = Section {
        path,
        name: "provider",
    };
    let one = |(name, value): (&String, &Value)| {
        if Id::new(name).is_err() {
            let hint = "use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot";
            return Err(all.error(name, "is not a name for a provider", hint));
        }
        let full_name = all.key(name);
        let section = Section {
            path,
            name: &full_name,
        };
        Ok((
            name.clone(),
            Arc::new(provider(name, all.table(name, value)?, &section)?),
        ))
    };
    table.iter().map(one).collect()
}

fn provider(name: &str, table: &Table, section: &Section<'_>) -> Result<Provider, ConfigError> {
    let mut provider = start(name);
    if KNOWN.iter().all(|(known, ..)| *known != name) {
        let hint = format!(
            "write [{}] with dialect = \"openai\" and base = \"https://…\"",
            section.name
        );
        section.needs(table, &["dialect", "base"], &hint)?;
    }
    if table.contains_key("base") {
        // The built-in key belongs to the built-in address only.
        provider.key = None;
    }
    if let Some(value) = table.get("dialect") {
        let dialect = section.word("dialect", value, &DIALECTS)?;
        provider = Provider {
            key: provider.key,
            ..Provider::new(name, dialect, provider.base)
        };
    }
    for (key, value) in table {
        match key.as_str() {
            "dialect" | "base" => {}
            "key" => provider.key = Some(self::key(section, key, value)?),
            "allow_plain_http" => provider.allow_plain_http = section.flag(key, value)?,
            "allow_private" => provider.allow_private = section.flag(key, value)?,
            "forward_headers" => provider.forward_headers = headers(section, key, value)?,
            "identify" => provider.identify = section.flag(key, value)?,
            "ask_usage" => provider.ask_usage = section.flag(key, value)?,
            "output_cap" => provider.output_cap = output_cap(section, key, value)?,
            "server_tools" => provider.server_tools = section.flag(key, value)?,
            "on_client_abort" => {
                let words = [("drain", OnAbort::Drain), ("cancel", OnAbort::Cancel)];
                provider.on_abort = section.word(key, value, &words)?;
            }
            "retry_after" => {
                provider.timeouts.max_retry_after = section.quantity::<Time>(key, value)?.0
            }
            "ca" | "retries" | "connect" | "ttfb" | "idle" => {
                common(&mut provider, section, key, value)?
            }
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    if let Some(value) = table.get("base") {
        provider.base = base(&provider, section, value)?;
    }
    Ok(provider)
}

/// Keys that every model server has.
fn common(
    provider: &mut Provider,
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<(), ConfigError> {
    let time = || section.quantity::<Time>(key, value).map(|time| time.0);
    match key {
        "ca" => provider.ca = Some(section.absolute(key, value)?),
        "connect" => provider.timeouts.connect = time()?,
        "ttfb" => provider.timeouts.first_byte = time()?,
        "idle" => provider.timeouts.idle = time()?,
        _ => {
            let count = section.number(key, value)?;
            let few = u32::try_from(count).ok().filter(|_| count <= MAX_RETRIES);
            provider.retries =
                few.ok_or_else(|| section.error(key, "is too many", "write 0 to 10"))?;
        }
    }
    Ok(())
}

/// The local model server and its allowed models; used without a section, too.
#[derive(Clone, Debug)]
pub(super) struct Inference {
    pub(super) server: Provider,
    pub(super) models: Vec<ModelPattern>,
    pub(super) time: Option<Time>,
}

impl Default for Inference {
    fn default() -> Self {
        let server = Provider::new(
            "inference",
            Dialect::Ollama,
            Uri::from_static(DEFAULT_INFERENCE_URL),
        );
        let server = Provider {
            allow_private: true,
            allow_plain_http: true,
            ..server
        };
        Inference {
            server,
            models: Vec::new(),
            time: None,
        }
    }
}

/// Reads `[inference]`. The address may be private without a key for that; another machine needs
/// TLS unless the operator allows plain HTTP.
pub(super) fn inference(table: &Table, path: &Path) -> Result<Inference, ConfigError> {
    let section = Section {
        path,
        name: "inference",
    };
    let mut inference = Inference::default();
    let server = &mut inference.server;
    if let Some(value) = table.get("base") {
        server.allow_plain_http = is_loopback(section.text("base", value)?);
    }
    for (key, value) in table {
        match key.as_str() {
            "base" => {}
            "key" => server.key = Some(self::key(&section, key, value)?),
            "allow_plain_http" => server.allow_plain_http |= section.flag(key, value)?,
            "models" => inference.models = models(&section, key, value)?,
            "time" => inference.time = Some(section.quantity(key, value)?),
            "ca" | "retries" | "connect" | "ttfb" | "idle" => common(server, &section, key, value)?,
            other => return Err(section.unknown(other, &INFERENCE_KEYS)),
        }
    }
    if let Some(value) = table.get("base") {
        server.base = base(server, &section, value)?;
    }
    Ok(inference)
}

fn is_loopback(base: &str) -> bool {
    let uri: Option<Uri> = base.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    address::literal(host).map_or_else(
        || is_local_name(host),
        |address| address.to_canonical().is_loopback(),
    )
}

fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Reads model patterns.
pub(super) fn models(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<ModelPattern>, ConfigError> {
    let parse = |text: &str| {
        text.parse().map_err(|bad: spec::BadModelPattern| {
            section.error(
                key,
                format_args!("has a bad value: {bad}"),
                "such as \"claude-*\"",
            )
        })
    };
    section.texts(key, value)?.into_iter().map(parse).collect()
}

fn output_cap(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<&'static str, ConfigError> {
    section.word(
        key,
        value,
        &["max_tokens", "max_completion_tokens"].map(|word| (word, word)),
    )
}

fn headers(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Vec<HeaderName>, ConfigError> {
    let header = |text: &str| {
        let name: HeaderName = text.parse().map_err(|_| {
            section.error(
                key,
                format_args!("has a bad name: `{}`", text.escape_debug()),
                "name a header",
            )
        })?;
        let begins = NEVER_FORWARDED_PREFIXES
            .iter()
            .any(|start| name.as_str().starts_with(start));
        if begins || NEVER_FORWARDED.contains(&name.as_str()) {
            let hint = "programs may not set headers for credentials, accounts or message framing";
            Err(section.error(key, format_args!("cannot name `{name}`"), hint))
        } else {
            Ok(name)
        }
    };
    section.texts(key, value)?.into_iter().map(header).collect()
}

/// Reads a key source: `{ secret = "…" }`, `{ file = "…" }`, `{ env = "…" }` or `{ vault = "…",
/// field = "…" }`.
pub(super) fn key(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<KeySource, ConfigError> {
    let table = value
        .as_table()
        .filter(|table| !table.is_empty())
        .ok_or_else(|| {
            let hint = "write { secret = \"NAME\" } and store it with `airlock secrets set NAME`";
            section.error(
                key,
                "must name the source of the key, never the key itself",
                hint,
            )
        })?;
    let full_name = section.key(key);
    let inner = Section {
        path: section.path,
        name: &full_name,
    };
    let known = ["secret", "file", "env", "vault", "field"];
    if let Some(other) = table.keys().find(|word| !known.contains(&word.as_str())) {
        return Err(inner.unknown(other, &known));
    }
    let mut places = known[..4]
        .iter()
        .filter_map(|place| Some((*place, table.get(*place)?)));
    let (Some((place, value)), None) = (places.next(), places.next()) else {
        return Err(section.error(
            key,
            "must name exactly one source",
            "write secret, file, env or vault",
        ));
    };
    if place != "vault" && table.contains_key("field") {
        return Err(inner.error("field", "belongs to `vault`", "remove it"));
    }
    match place {
        "secret" => secret_name(&inner, place, value).map(KeySource::Stored),
        "file" => inner.absolute(place, value).map(KeySource::File),
        "env" => variable(&inner, place, value).map(KeySource::Variable),
        _ => Ok(KeySource::Vault {
            path: vault_path(&inner, place, value)?,
            field: table
                .get("field")
                .map_or(Ok("value"), |field| inner.text("field", field))?
                .to_owned(),
        }),
    }
}

fn secret_name(section: &Section<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let name = Id::new(section.text(key, value)?);
    name.map(|name| name.to_string()).map_err(|bad| {
        section.error(
            key,
            format_args!("has a bad value: {bad}"),
            "`airlock secrets list` shows the names",
        )
    })
}

fn variable(section: &Section<'_>, key: &str, value: &Value) -> Result<String, ConfigError> {
    let name = section.text(key, value)?;
    if name == super::MASTER_KEY {
        return Err(section.error(
            key,
            "cannot be the master key",
            "name the variable that holds the provider's key",
        ));
    }
    if !name.is_empty() && name.len() <= 128 && !name.contains(['=', '\0']) {
        Ok(name.to_owned())
    } else {
        Err(section.error(key, "is not a variable name", "such as OPENAI_API_KEY"))
    }
}

/// A path in the Vault: segments and slashes, without characters that are special in URLs.
pub(super) fn vault_path(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<String, ConfigError> {
    let path = section.text(key, value)?;
    let plain = |segment: &str| {
        !segment.is_empty()
            && !segment.starts_with('.')
            && segment
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if path.len() <= 256 && path.split('/').all(plain) {
        Ok(path.to_owned())
    } else {
        Err(section.error(
            key,
            "is not a path in a Vault",
            "such as team/openai, of A-Z a-z 0-9 . _ - and /",
        ))
    }
}

/// The base address of a server, checked because the key is sent there.
fn base(provider: &Provider, section: &Section<'_>, value: &Value) -> Result<Uri, ConfigError> {
    let text = section.text("base", value)?;
    let address = server_address(text).map_err(|(what, hint)| section.error("base", what, hint))?;
    if address.scheme_str() == Some("http") && !provider.allow_plain_http {
        let hint =
            "use https, or set allow_plain_http = true: the key can then be read on the network";
        return Err(section.error("base", "is not encrypted", hint));
    }
    let host = address.host().unwrap_or_default();
    let public = address::literal(host).map_or(!is_local_name(host), address::is_public);
    if public || provider.allow_private {
        Ok(address)
    } else {
        Err(section.error(
            "base",
            "is a private address",
            "set allow_private = true if that is intended",
        ))
    }
}

/// Parses a server's address; refuses parts that could hide credentials or another host.
pub(super) fn server_address(text: &str) -> Result<Uri, (&'static str, &'static str)> {
    let form = "write https://HOST, with a port and a path if need be";
    if text.contains(['@', '?', '#', '%', '\\']) {
        return Err((
            "has more than a host and a path: no user, query, fragment or escapes",
            form,
        ));
    }
    let uri: Uri = text
        .trim_end_matches('/')
        .parse()
        .map_err(|_| ("is not an address", form))?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(("is not an address with http or https", form));
    };
    let host = authority.host();
    let good_port =
        authority.as_str().len() == host.len() || authority.port_u16().is_some_and(|port| port > 0);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) || !good_port {
        return Err(("has no valid host or port", form));
    }
    if uri
        .path()
        .split('/')
        .skip(1)
        .any(|part| part.starts_with('.'))
        || uri.path().contains("//")
    {
        return Err(("has an ambiguous path", form));
    }
    let metadata =
        address::literal(host).is_some_and(address::is_metadata) || address::is_metadata_name(host);
    if metadata {
        Err((
            "is the address of a metadata service or link-local, where no model server is",
            form,
        ))
    } else {
        Ok(uri)
    }
}

#[cfg(test)]
mod tests;
