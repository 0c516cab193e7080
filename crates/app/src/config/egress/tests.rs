use super::*;
use spec::Policy;
use std::path::Path;

const CREDENTIAL: &str = "[credential.c]\nkey = { secret = \"c\" }\ninject = \"bearer\"\nhosts = [\"*.a.com\", \"g.com\"]\n";

fn read(text: &str) -> Result<Policy, ConfigError> {
    super::super::operator_file::read(&text.parse().unwrap(), Path::new("/c.toml"))
        .map(|settings| settings.policy)
}

/// The only rule of a profile that has these keys.
fn one(keys: &str) -> Result<EgressRule, ConfigError> {
    let policy = read(&format!("[[profile.ci.egress]]\n{keys}\n{CREDENTIAL}"))?;
    Ok(policy
        .profile("ci")
        .unwrap()
        .egress
        .clone()
        .unwrap()
        .remove(0))
}

fn repository(path: &str) -> Repository {
    Repository {
        path: path.to_owned(),
        fetch: true,
        push: vec![],
        update: true,
        delete: false,
        credential: None,
    }
}

#[test]
fn a_rule_says_which_host_how_and_how_much() {
    let rule = |mode, ports: &[u16]| EgressRule {
        mode,
        ..EgressRule::tunnel(
            "egress rule 1 of profile ci (x.a.com)",
            "x.a.com".parse().unwrap(),
            Ports::These(ports.to_vec()),
        )
    };
    assert_eq!(
        one("host = \"X.a.com.\"\nmode = \"tunnel\"").unwrap(),
        rule(EgressMode::Tunnel, &[80, 443])
    );
    let denied = EgressRule {
        ports: Ports::Any,
        ..rule(EgressMode::Deny, &[])
    };
    assert_eq!(one("host = \"x.a.com\"\nmode = \"deny\"").unwrap(), denied);
    let text = "host = \"x.a.com\"\nmode = \"inspect\"\nallow = [\"GET /v1/**\", \"POST /v1/x\"]\ncredential = \"c\"\n\
                allow_upgrade = false\nallow_private = true\nper_minute = 3\nsent = \"1M\"\nreceived = \"2G\"";
    let inspect = EgressMode::Inspect {
        allow: ["GET /v1/**", "POST /v1/x"]
            .map(|text| text.parse().unwrap())
            .to_vec(),
        credential: Some("c".to_owned()),
        allow_upgrade: false,
    };
    let upgrade = EgressMode::Inspect {
        allow: Vec::new(),
        credential: None,
        allow_upgrade: true,
    };
    let section = "host = \"x.a.com\"\nmode = \"inspect\"\nallow_upgrade = true";
    assert_eq!(one(section).unwrap(), rule(upgrade, &[443]));
    let limits = EgressLimits {
        per_minute: Some(3),
        sent: "1M".parse().ok(),
        received: "2G".parse().ok(),
    };
    let wanted = EgressRule {
        allow_private: true,
        limits,
        ..rule(inspect, &[443])
    };
    assert_eq!(one(text).unwrap(), wanted);
    let text = "host = \"x.a.com\"\nmode = \"git\"\nallow_plain_http = true\nrepos = [{ repo = \"acme/app\", \
                push = [\"refs/heads/agent/*\"], update = false, delete = true, credential = \"c\" }, { repo = \"acme/*\" }]";
    let app = Repository {
        push: vec!["refs/heads/agent/*".parse().unwrap()],
        update: false,
        delete: true,
        credential: Some("c".to_owned()),
        ..repository("acme/app")
    };
    let git = EgressMode::Git {
        repositories: vec![app, repository("acme/*")],
    };
    assert_eq!(
        one(text).unwrap(),
        EgressRule {
            allow_plain_http: true,
            ..rule(git, &[80, 443])
        }
    );
}

#[test]
fn ports_are_a_list_or_any() {
    let ports = |text: &str| {
        one(&format!(
            "host = \"a.com\"\nmode = \"tunnel\"\nports = {text}"
        ))
        .map(|rule| rule.ports)
    };
    assert_eq!(
        ports("[8443, 22, 22]").unwrap(),
        Ports::These(vec![22, 8443])
    );
    assert_eq!(ports("\"any\"").unwrap(), Ports::Any);
    for bad in [
        "[]",
        "[0]",
        "[65536]",
        "[-1]",
        "\"all\"",
        "443",
        "[\"443\"]",
    ] {
        assert!(
            ports(bad)
                .unwrap_err()
                .message
                .contains("`profile.ci.egress[1].ports` in `/c.toml`"),
            "{bad}"
        );
    }
    let many = format!("{:?}", (1001..=1030).collect::<Vec<_>>());
    assert!(ports(&many).is_ok());
    let other = "[[profile.ci.egress]]\nhost = \"b.com\"\nmode = \"tunnel\"\nports = [22]";
    let together = one(&format!(
        "host = \"a.com\"\nmode = \"tunnel\"\nports = {many}\n{other}"
    ))
    .unwrap_err();
    assert!(
        together.message.contains("more than 30 ports"),
        "{}",
        together.message
    );
    let many = format!("{:?}", (1..=31).collect::<Vec<_>>());
    assert!(ports(&many).unwrap_err().hint.contains("30 at most"));
    let encrypted = one("host = \"a.com\"\nmode = \"inspect\"\nports = [80, 443]").unwrap_err();
    assert!(
        encrypted.hint.contains("allow_plain_http"),
        "{}",
        encrypted.hint
    );
}

#[test]
fn rules_are_added_behind_those_of_the_base() {
    let policy = read(
        "[profile.low]\negress_limits = { per_minute = 9 }\n[[profile.low.egress]]\nhost = \"a.com\"\nmode = \"tunnel\"\n\
         [profile.high]\nbase = \"low\"\n[[profile.high.egress]]\nhost = \"a.com\"\nmode = \"deny\"\n\
         [[profile.agent.egress]]\nhost = \"b.com\"\nmode = \"tunnel\"\n\
         [profile.shut]\nbase = \"high\"\nnetwork = \"none\"\n",
    )
    .unwrap();
    let names = |profile: &str| {
        let rules = policy.profile(profile).unwrap().egress.clone().unwrap();
        rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>()
    };
    assert_eq!(
        names("high"),
        [
            "egress rule 1 of profile low (a.com)",
            "egress rule 1 of profile high (a.com)"
        ]
    );
    assert_eq!(names("agent"), ["egress rule 1 of profile agent (b.com)"]);
    assert_eq!(
        policy.profile("high").unwrap().egress_limits.per_minute,
        Some(9)
    );
    assert_eq!(
        policy.profile("shut").unwrap().egress,
        None,
        "no network means no door"
    );
}

/// Each of these rules is refused: what is said of it begins so, and the remedy does.
fn refused(cases: &[(&str, &str, &str)]) {
    for (keys, what, hint) in cases {
        let error = one(keys).expect_err(keys);
        let start = format!("`profile.ci.egress[1].{what}");
        assert!(error.message.starts_with(&start), "{}", error.message);
        assert!(
            error.hint.starts_with(hint) && !error.message.contains('\n'),
            "{keys}: {}",
            error.hint
        );
    }
}

#[test]
fn mistakes_in_rules_name_the_key_the_file_and_the_remedy() {
    refused(&[
        (
            "mode = \"tunnel\"",
            "host` in `/c.toml` is missing",
            "write host =",
        ),
        (
            "host = \"a.com\"",
            "mode` in `/c.toml` is missing",
            "write host =",
        ),
        (
            "host = \"a.com\"\nmode = \"open\"",
            "mode` in `/c.toml` is not a known word",
            "write \"tunnel\" or",
        ),
        (
            "host = \"a.com:443\"\nmode = \"tunnel\"",
            "host` in `/c.toml` has a bad value",
            "write pypi.org",
        ),
        (
            "hosts = 1",
            "hosts` in `/c.toml` is not a known key",
            "did you mean `host`?",
        ),
        (
            "host = \"a.com\"\nmode = \"tunnel\"\ncredential = \"c\"",
            "credential` in `/c.toml` does not go with mode = \"tunnel\"",
            "remove it, or change the mode",
        ),
        (
            "host = \"a.com\"\nmode = \"deny\"\nallow = [\"GET /\"]",
            "allow` in `/c.toml` does not go with mode = \"deny\"",
            "remove it",
        ),
        (
            "host = \"a.com\"\nmode = \"deny\"\nper_minute = 1",
            "per_minute` in `/c.toml` does not go",
            "remove it",
        ),
        (
            "host = \"a.com\"\nmode = \"inspect\"\ncredential = \"c\"\nallow_upgrade = true",
            "allow_upgrade` in `/c.toml` does not go with `credential`",
            "remove one of them",
        ),
        (
            "host = \"a.com\"\nmode = \"inspect\"\nallow = [\"/v1\"]",
            "allow` in `/c.toml` has a bad value",
            "such as",
        ),
        (
            "host = \"169.254.169.254\"\nmode = \"tunnel\"\nallow_private = true",
            "host` in `/c.toml` is a metadata service",
            "remove the rule",
        ),
        (
            "host = \"10.1\"\nmode = \"tunnel\"",
            "host` in `/c.toml` is a private address",
            "set allow_private = true",
        ),
    ]);
}

#[test]
fn mistakes_in_repositories_name_the_key_the_file_and_the_remedy() {
    refused(&[
        (
            "host = \"a.com\"\nmode = \"git\"",
            "repos` in `/c.toml` is missing",
            "write repos =",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"a/b.git\" }]",
            "repos[1].repo` in `/c.toml` is not a valid repository path",
            "write the path",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"/a\" }]",
            "repos[1].repo` in `/c.toml` is not a valid repository path",
            "write the path",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"a\", delete = true }]",
            "repos[1].delete` in `/c.toml` means nothing",
            "name the refs",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"a\", fetch = false }]",
            "repos[1].fetch` in `/c.toml` is false",
            "remove the",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"a\", push = [\"heads/x\"] }]",
            "repos[1].push` in `/c.toml` has a bad value",
            "such as",
        ),
    ]);
}

#[test]
fn a_credential_goes_only_where_it_may_be_sent() {
    refused(&[
        (
            "host = \"x.a.com\"\nmode = \"inspect\"\ncredential = \"d\"",
            "credential` in `/c.toml` names a credential that does not exist: `d`",
            "the credentials are c",
        ),
        (
            "host = \"a.com\"\nmode = \"inspect\"\ncredential = \"c\"",
            "credential` in `/c.toml` names `c`, which may not be sent to a.com",
            "add the host to `hosts`",
        ),
        (
            "host = \"*\"\nmode = \"inspect\"\ncredential = \"c\"",
            "credential` in `/c.toml` names `c`, which may not be sent to *",
            "add the host",
        ),
        (
            "host = \"a.com\"\nmode = \"git\"\nrepos = [{ repo = \"a\", credential = \"c\" }]",
            "credential` in `/c.toml` names `c`, which",
            "add the host",
        ),
    ]);
}

#[test]
fn a_tunnel_beside_a_rule_that_looks_inside_is_refused_where_both_would_count() {
    let both = |ports: &str| {
        read(&format!(
            "[[profile.ci.egress]]\nhost = \"a.com\"\nmode = \"tunnel\"\nports = {ports}\n\
             [[profile.ci.egress]]\nhost = \"a.com\"\nmode = \"inspect\"\n"
        ))
    };
    assert!(both("[22]").is_ok());
    for ports in ["[443]", "\"any\""] {
        let error = both(ports).unwrap_err();
        assert!(
            error
                .message
                .starts_with("`profile.ci.egress` in `/c.toml` has a tunnel and"),
            "{}",
            error.message
        );
    }
}

#[test]
fn there_are_256_rules_at_most_with_those_of_the_base() {
    let rules = |profile: &str, count: usize| {
        let rule = |number| {
            format!("[[profile.{profile}.egress]]\nhost = \"h{number}.com\"\nmode = \"tunnel\"\n")
        };
        (0..count).map(rule).collect::<String>()
    };
    let text = |count| {
        format!(
            "{}[profile.b]\nbase = \"a\"\n{}",
            rules("a", 200),
            rules("b", count)
        )
    };
    assert_eq!(
        read(&text(56))
            .unwrap()
            .profile("b")
            .unwrap()
            .egress
            .as_ref()
            .unwrap()
            .len(),
        256
    );
    assert!(
        read(&text(57))
            .unwrap_err()
            .message
            .contains("`profile.b.egress` in `/c.toml` has more than 256 rules")
    );
    assert!(read(&rules("a", 257)).is_err());
}

#[test]
fn a_network_of_none_and_rules_contradict_each_other() {
    let text = "[profile.ci]\nnetwork = \"none\"\n[[profile.ci.egress]]\nhost = \"a.com\"\nmode = \"tunnel\"\n";
    let error = read(text).unwrap_err();
    assert!(
        error
            .message
            .starts_with("`profile.ci.network` in `/c.toml` is `none`"),
        "{}",
        error.message
    );
    assert!(read(&text.replace("none", "doors")).is_ok());
}

#[test]
fn limits_and_lists_of_hosts() {
    let policy = read(
        "[profile.ci]\negress_limits = { sent = \"1M\" }\n[maximum]\nallow_hosts = [\"*.A.com\"]\npids = 3\n",
    )
    .unwrap();
    assert_eq!(
        policy.profile("ci").unwrap().egress_limits.sent,
        "1M".parse().ok()
    );
    assert_eq!(policy.maximum_hosts, Some(vec!["*.a.com".parse().unwrap()]));
    assert_eq!(
        read("[maximum]\nallow_hosts = []").unwrap().maximum_hosts,
        Some(Vec::new()),
        "then none"
    );
    let bad = [
        (
            "[maximum]\nallow_hosts = \"a.com\"",
            "`maximum.allow_hosts` in `/c.toml` must be a list of hosts",
        ),
        (
            "[maximum]\nallow_host = []",
            "`maximum.allow_host` in `/c.toml` is not a known key",
        ),
        (
            "[profile.ci]\negress_limits = { send = 1 }",
            "`profile.ci.egress_limits.send` in `/c.toml` is not a known key",
        ),
        (
            "[profile.ci]\negress = {}",
            "`profile.ci.egress` in `/c.toml` must be a list of tables",
        ),
    ];
    for (text, start) in bad {
        let error = read(text).expect_err(text);
        assert!(
            error.message.starts_with(start) && !error.hint.is_empty(),
            "{}",
            error.message
        );
    }
}
