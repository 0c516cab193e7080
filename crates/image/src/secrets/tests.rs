use super::*;
use std::{fs, os::unix::fs::symlink, path::PathBuf};

/// A temporary tree, removed when dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let path =
            std::env::temp_dir().join(format!("airlock-secrets-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Tree(path)
    }

    fn with(self, path: &str, text: &str) -> Tree {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn search(&self) -> CredentialScan {
        let root = Dir::open(&self.0).unwrap();
        CredentialScan::tree(&root).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Assembled here, so that scanners do not take this file for a leak.
fn private_key() -> String {
    format!(
        "-----BEGIN {} KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END {0} KEY-----\n",
        "PRIVATE"
    )
}

#[test]
fn each_kind_of_credential_is_found_at_its_place_and_not_shown() {
    let github = format!("ghp{}{}", "_", "a1".repeat(18));
    let cases = [
        ("root/.ssh/id_ed25519", "x".to_owned()),
        ("home/a/.aws/credentials", "[default]".to_owned()),
        ("root/.netrc", "machine x".to_owned()),
        ("home/a/.npmrc", "//registry/:_authToken=x".to_owned()),
        (
            "root/.docker/config.json",
            "{\"auths\":{\"x\":{\"auth\":\"eA==\"}}}".to_owned(),
        ),
        ("usr/share/app/server.pem", private_key()),
        ("app/settings.ini", format!("token = {github}\n")),
        ("etc/app.env", format!("AWS=AKIA{}\n", "A1B2".repeat(4))),
    ];
    for (index, (path, text)) in cases.into_iter().enumerate() {
        let search = Tree::new(&format!("found-{index}"))
            .with(path, &text)
            .search();
        assert_eq!(
            (search.count, search.incomplete.len()),
            (1, 0),
            "{path}: {search:?}"
        );
        let line = search.line();
        assert_eq!(line.outcome, RequirementOutcome::Fail);
        assert!(
            line.seen.starts_with(&format!("/{path} (")) && !line.seen.contains(&github),
            "{line:?}"
        );
    }
}

#[test]
fn what_only_looks_like_one_is_left_alone() {
    let search = Tree::new("clean")
        .with("root/.ssh/known_hosts", "host key")
        .with("root/.ssh/id_ed25519.pub", "ssh-ed25519 AAAA")
        .with("home/a/.npmrc", "registry=http://localhost")
        .with(
            "etc/ssl/certs/ca.pem",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        )
        .with(
            "etc/reader.py",
            "if line.startswith('-----BEGIN PRIVATE KEY-----'):\n",
        )
        .with(
            "etc/words",
            "task-based-risk-assessment-of-everything sk-learn AKIA",
        )
        .with("usr/lib/python3/key.txt", &private_key())
        .with("usr/share/go/tls/testdata/example-key.pem", &private_key())
        .search();
    assert_eq!(
        (search.found.clone(), search.line().outcome),
        (Vec::new(), RequirementOutcome::Pass)
    );
}

#[test]
fn links_are_not_followed_and_what_is_no_file_is_not_opened() {
    let outside = Tree::new("outside").with("key", &private_key());
    let tree = Tree::new("links").with("etc/plain", "x");
    symlink(&outside.0, tree.0.join("folder")).unwrap();
    symlink(outside.0.join("key"), tree.0.join("file")).unwrap();
    symlink(".", tree.0.join("round")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.0.join("pipe"),
        FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(tree.search().line().outcome, RequirementOutcome::Pass);
    assert_eq!(
        outside.search().line().outcome,
        RequirementOutcome::Fail,
        "the key is one where it can be seen"
    );
}

#[test]
fn a_tree_too_deep_to_look_through_is_not_called_clean() {
    let deep = "d/".repeat(MAX_DEPTH + 2);
    let line = Tree::new("deep")
        .with(&format!("{deep}x"), "x")
        .search()
        .line();
    assert_eq!(line.outcome, RequirementOutcome::Fail);
    assert!(line.seen.contains("deeper than"), "{line:?}");
}

#[test]
fn what_could_not_be_read_is_told_and_hides_nothing_else() {
    let unread = CredentialScan {
        unread: 2,
        entries: 9,
        ..CredentialScan::default()
    };
    assert_eq!(
        (unread.line().outcome, unread.line().seen.as_str()),
        (RequirementOutcome::Warn, "9 examined, 2 could not be read")
    );
    let mut found = unread.clone();
    found.found("/x", "a private key");
    assert_eq!(found.line().outcome, RequirementOutcome::Fail);
    let bounded = CredentialScan {
        incomplete: vec!["too deep".to_owned()],
        ..unread
    };
    assert_eq!(bounded.line().outcome, RequirementOutcome::Fail);
}

#[test]
fn variables_are_judged_by_name_and_by_value() {
    let of = |variable: &str| {
        let mut search = CredentialScan::default();
        search.config(&ImageConfig {
            env: vec![variable.to_owned()],
            ..ImageConfig::default()
        });
        search.count
    };
    for bad in [
        "DB_PASSWORD=x",
        "GITHUB_TOKEN=x",
        "api_key=x",
        "CONFIG=sk-1234567890abcdefghijkl",
    ] {
        assert_eq!(of(bad), 1, "{bad}");
    }
    for good in [
        "PATH=/bin",
        "GPG_KEY=E3FF2839C048B25C084DEBE9B26995E310250568",
        "TOKEN=",
        "KEYBOARD=de",
    ] {
        assert_eq!(of(good), 0, "{good}");
    }
}
