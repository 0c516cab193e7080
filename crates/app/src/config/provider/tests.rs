use super::*;
use std::time::Duration;

fn read(text: &str) -> Result<Providers, ConfigError> {
    super::read(&text.parse().unwrap(), Path::new("/c.toml"))
}

/// One provider with this base and these further lines.
fn with_base(base: &str, more: &str) -> Result<Uri, ConfigError> {
    let text = format!("[x]\ndialect = \"openai\"\nbase = \"{base}\"\n{more}");
    read(&text).map(|providers| providers["x"].base.clone())
}

#[test]
fn without_a_file_the_known_providers_need_only_their_key() {
    let known = known();
    let shown: Vec<_> = known
        .values()
        .map(|one| (one.name.as_str(), one.base.to_string(), one.key.clone()))
        .collect();
    let stored = |name: &str| Some(KeySource::Stored(name.to_owned()));
    assert_eq!(
        shown,
        [
            (
                "anthropic",
                "https://api.anthropic.com/".to_owned(),
                stored("anthropic")
            ),
            (
                "gemini",
                "https://generativelanguage.googleapis.com/".to_owned(),
                stored("gemini")
            ),
            (
                "openai",
                "https://api.openai.com/".to_owned(),
                stored("openai")
            ),
        ]
    );
    assert_eq!(known["anthropic"].dialect, Dialect::Anthropic);
    assert!(
        known
            .values()
            .all(|one| !one.allow_plain_http && !one.allow_private)
    );
}

#[test]
fn a_provider_is_what_the_file_says() {
    let text = r#"
        [local]
        dialect = "ollama"
        base = "http://127.0.0.1:11434/models/"
        allow_plain_http = true
        allow_private = true
        key = { vault = "team/local", field = "token" }
        ca = "/etc/ca.pem"
        forward_headers = ["X-Title", "anthropic-beta"]
        identify = true
        ask_usage = false
        output_cap = "max_tokens"
        server_tools = true
        on_client_abort = "cancel"
        retries = 0
        connect = "2s"
        ttfb = "30s"
        idle = "1m"
        retry_after = 5
        [anthropic]
        key = { env = "ANTHROPIC_API_KEY" }
    "#;
    let providers = read(text).unwrap();
    let local = &providers["local"];
    assert_eq!(
        (local.name.as_str(), local.dialect),
        ("local", Dialect::Ollama)
    );
    assert_eq!(local.base, "http://127.0.0.1:11434/models");
    let vault = KeySource::Vault {
        path: "team/local".into(),
        field: "token".into(),
    };
    assert_eq!(
        (local.key.as_ref(), local.ca.as_deref()),
        (Some(&vault), Some(Path::new("/etc/ca.pem")))
    );
    assert_eq!(local.forward_headers, ["x-title", "anthropic-beta"]);
    let flags = [
        local.allow_plain_http,
        local.allow_private,
        local.identify,
        !local.ask_usage,
        local.server_tools,
    ];
    assert_eq!(flags, [true; 5]);
    assert_eq!(
        (local.output_cap, local.on_abort, local.retries),
        ("max_tokens", OnAbort::Cancel, 0)
    );
    let patience = local.timeouts;
    let times = [
        patience.connect,
        patience.first_byte,
        patience.idle,
        patience.max_retry_after,
    ];
    assert_eq!(times, [2, 30, 60, 5].map(Duration::from_secs));
    let known = &providers["anthropic"];
    assert_eq!(known.base, "https://api.anthropic.com");
    assert_eq!(
        known.key,
        Some(KeySource::Variable("ANTHROPIC_API_KEY".into()))
    );
    assert!(
        !providers.contains_key("openai"),
        "a file that names providers names all of them"
    );
}

#[test]
fn the_key_of_a_known_provider_goes_to_its_own_address_only() {
    let key = |text: &str| read(text).unwrap()["openai"].key.clone();
    assert_eq!(
        key("[openai]\nretries = 1"),
        Some(KeySource::Stored("openai".into()))
    );
    assert_eq!(key("[openai]\nbase = \"https://other.example\""), None);
    let section = "[openai]\nbase = \"https://other.example\"\nkey = { secret = \"other\" }";
    assert_eq!(key(section), Some(KeySource::Stored("other".into())));
}

#[test]
fn no_spelling_of_a_metadata_service_is_a_provider_whatever_is_allowed() {
    let anything = "allow_private = true\nallow_plain_http = true";
    for host in [
        "169.254.169.254",
        "169.254.169.254.",
        "0xa9fea9fe",
        "0xA9FEA9FE:80",
        "2852039166",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:169.254.169.254]:8080",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "metadata.google.internal",
        "METADATA.google.internal.",
    ] {
        for scheme in ["http", "https"] {
            let refused = with_base(&format!("{scheme}://{host}/v1"), anything).expect_err(host);
            assert!(
                refused
                    .message
                    .contains("is the address of a metadata service"),
                "{}",
                refused.message
            );
        }
    }
    assert!(
        with_base("http://127.0.0.1/v1", anything).is_ok(),
        "the positive control"
    );
}

#[test]
fn a_private_or_unencrypted_address_must_be_said() {
    let private = "allow_private = true";
    let plain = "allow_plain_http = true";
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "[::1]",
        "10.0.0.1",
        "192.168.1.1",
        "localhost",
        "a.localhost.",
    ] {
        let refused = with_base(&format!("https://{host}"), plain).expect_err(host);
        assert!(
            refused.message.ends_with("is a private address"),
            "{}",
            refused.message
        );
        assert!(
            with_base(&format!("https://{host}"), private).is_ok(),
            "{host}"
        );
    }
    let refused = with_base("http://api.example", private).unwrap_err();
    assert!(
        refused.message.ends_with("is not encrypted"),
        "{}",
        refused.message
    );
    assert!(
        with_base("http://api.example", plain).is_ok()
            && with_base("https://api.example:8443/a/b", "").is_ok()
    );
}

#[test]
fn a_base_is_a_host_and_a_path_and_nothing_else() {
    for base in [
        "https://user@api.example",
        "https://user:pass@api.example",
        "https://api.example@169.254.169.254/",
        "https://api.example?x=1",
        "https://api.example/#x",
        "https://api.example/%2e%2e",
        "https://api.example/../x",
        "https://api.example//x",
        "https://api.example:0",
        "https://api.example:99999",
        "https://api.example:",
        "https://",
        "https:///x",
        "ftp://api.example",
        "api.example",
        "//api.example",
        "",
        "https://a b",
        "https://ä.example",
    ] {
        assert!(with_base(base, "").is_err(), "{base}");
    }
    assert_eq!(
        with_base("https://api.example/", "").unwrap(),
        "https://api.example"
    );
}

#[test]
fn mistakes_name_the_key_the_file_and_the_remedy() {
    let x = "[x]\ndialect = \"openai\"\nbase = \"https://api.example\"\n";
    for (text, message, hint) in [
        (
            "[x]\ndialect = \"openai\"".to_owned(),
            "`provider.x.base` in `/c.toml` is missing",
            "write [provider.x]",
        ),
        (
            "[x]\nbase = \"https://a.example\"".to_owned(),
            "`provider.x.dialect` in `/c.toml` is missing",
            "write",
        ),
        (
            "[x]\ndialect = \"cohere\"\nbase = \"https://a.example\"".to_owned(),
            "`provider.x.dialect` in `/c.toml` is not a known word",
            "write \"openai\" or \"anthropic\" or \"gemini\" or \"ollama\"",
        ),
        (
            format!("{x}bas = \"y\""),
            "`provider.x.bas` in `/c.toml` is not a known key",
            "did you mean `base`?",
        ),
        (
            format!("{x}key = \"sk-1\""),
            "`provider.x.key` in `/c.toml` must name the source of the key",
            "write { secret",
        ),
        (
            format!("{x}key = {{}}"),
            "`provider.x.key` in `/c.toml` must name the source of the key",
            "write { secret",
        ),
        (
            format!("{x}key = {{ secrt = \"a\" }}"),
            "`provider.x.key.secrt` in `/c.toml` is not a known",
            "did you mean `secret`?",
        ),
        (
            format!("{x}key = {{ secret = \"a\", env = \"B\" }}"),
            "`provider.x.key` in `/c.toml` must name exactly one source",
            "write",
        ),
        (
            format!("{x}key = {{ secret = \"../a\" }}"),
            "`provider.x.key.secret` in `/c.toml` has a bad value",
            "`airlock",
        ),
        (
            format!("{x}key = {{ file = \"a\" }}"),
            "`provider.x.key.file` in `/c.toml` must be an absolute",
            "begin it",
        ),
        (
            format!("{x}key = {{ env = \"AIRLOCK_MASTER_KEY\" }}"),
            "`provider.x.key.env` in `/c.toml` cannot be the",
            "name",
        ),
        (
            format!("{x}key = {{ secret = \"a\", field = \"b\" }}"),
            "`provider.x.key.field` in `/c.toml` belongs to",
            "remove",
        ),
        (
            format!("{x}key = {{ vault = \"a/../b\" }}"),
            "`provider.x.key.vault` in `/c.toml` is not a path",
            "such as",
        ),
        (
            format!("{x}forward_headers = [\"Authorization\"]"),
            "`provider.x.forward_headers` in `/c.toml` cannot",
            "programs may not",
        ),
        (
            format!("{x}forward_headers = [\"x-forwarded-for\"]"),
            "`provider.x.forward_headers` in `/c.toml` cannot",
            "programs may not",
        ),
        (
            format!("{x}forward_headers = [\"a b\"]"),
            "`provider.x.forward_headers` in `/c.toml` has a bad name",
            "name",
        ),
        (
            format!("{x}retries = 11"),
            "`provider.x.retries` in `/c.toml` is too many",
            "write 0 to 10",
        ),
        (
            format!("{x}ca = \"ca.pem\""),
            "`provider.x.ca` in `/c.toml` must be an absolute path",
            "begin",
        ),
        (
            "[\"a b\"]".to_owned(),
            "`provider.a b` in `/c.toml` is not a name for a provider",
            "use 1 to 128",
        ),
        (
            "x = 1".to_owned(),
            "`provider.x` in `/c.toml` must be a table",
            "write [provider.x]",
        ),
    ] {
        let refused = read(&text).expect_err(&text);
        assert!(refused.message.starts_with(message), "{}", refused.message);
        assert!(refused.hint.starts_with(hint), "{text}: {}", refused.hint);
    }
    assert!(read(x).is_ok(), "the positive control");
}

#[test]
fn models_of_this_machine_are_reached_unless_the_file_says_where_else() {
    let read = |text: &str| inference(&text.parse().unwrap(), Path::new("/c.toml"));
    let usual = Inference::default();
    assert_eq!(
        (usual.server.base.to_string().as_str(), usual.server.dialect),
        ("http://127.0.0.1:11434/", Dialect::Ollama)
    );
    let section = read(
        "base = \"http://10.0.0.5:11434\"\nallow_plain_http = true\nmodels = [\"llama*\"]\ntime = \"5m\"\n",
    )
    .unwrap();
    assert_eq!(
        (
            section.server.base.host(),
            section.models.len(),
            section.time
        ),
        (Some("10.0.0.5"), 1, "5m".parse().ok())
    );
    assert!(
        read("base = \"http://localhost:1\"").is_ok() && read("base = \"http://[::1]:1\"").is_ok()
    );
    for (text, why) in [
        ("base = \"http://10.0.0.5\"", "is not encrypted"),
        (
            "base = \"http://169.254.169.254\"\nallow_plain_http = true",
            "is the address of a metadata",
        ),
        ("bse = \"x\"", "is not a known key"),
        ("models = []", "must be a list of texts, and not empty"),
    ] {
        let refused = read(text).expect_err(text);
        assert!(refused.message.contains(why), "{}", refused.message);
    }
}

#[test]
fn no_program_can_say_who_pays_or_who_asks() {
    let x = "[x]\ndialect = \"openai\"\nbase = \"https://x.example\"\n";
    let forwarded = |name: &str| read(&format!("{x}forward_headers = [\"{name}\"]"));
    assert!(forwarded("x-title").is_ok() && forwarded("anthropic-beta").is_ok());
    for name in [
        "OpenAI-Organization",
        "openai-project",
        "x-goog-user-project",
        "x-litellm-tags",
        "X-Airlock-Run",
        "forwarded",
        "x-forwarded-host",
        "via",
        "cookie",
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
    ] {
        let refused = forwarded(name).expect_err(name);
        assert!(
            refused.message.contains(" cannot name `"),
            "{}",
            refused.message
        );
    }
}
