//! `[images]`: which images may be used, and who may change the list. Only the operator sets it; a
//! local file can only switch the list on.

use super::{ConfigError, local_file::NARROW_HINT, toml_file::Section};
use spec::{ImagePolicy, ImageRef, ImageRule, LabelRequirement};
use std::path::Path;
use toml::{Table, Value};

const NAME: &str = "images";
const KEYS: [&str; 4] = ["policy", "require_mark", "may_add", "registries"];
/// The maximum length of a user name.
const MAX_USER_BYTES: usize = 256;

/// Reads the operator's section.
pub(super) fn read(table: &Table, path: &Path) -> Result<ImagePolicy, ConfigError> {
    let section = Section { path, name: NAME };
    let mut policy = ImagePolicy::default();
    for (key, value) in table {
        match key.as_str() {
            "policy" => policy.rule = rule(&section, key, value)?,
            "require_mark" => policy.mark = mark(&section, key, value)?,
            "may_add" => policy.may_add = Some(users(&section, key, value)?),
            "registries" => policy.registries = Some(registries(&section, key, value)?),
            other => return Err(section.unknown(other, &KEYS)),
        }
    }
    Ok(policy)
}

/// Applies the local file's section.
pub(super) fn narrow(
    policy: &mut ImagePolicy,
    table: &Table,
    path: &Path,
) -> Result<(), ConfigError> {
    let section = Section { path, name: NAME };
    for (key, value) in table {
        match key.as_str() {
            "policy" => match (policy.rule, rule(&section, key, value)?) {
                (ImageRule::Allowed, ImageRule::Open) => {
                    let what = "would widen: `open` allows more than the `allowed` of the configuration file";
                    return Err(section.error(key, what, NARROW_HINT));
                }
                (_, rule) => policy.rule = rule,
            },
            word if KEYS.contains(&word) => {
                return Err(section.error(word, "cannot be set here", NARROW_HINT));
            }
            other => return Err(section.unknown(other, &KEYS[..1])),
        }
    }
    Ok(())
}

fn rule(section: &Section<'_>, key: &str, value: &Value) -> Result<ImageRule, ConfigError> {
    match section.text(key, value)? {
        "open" => Ok(ImageRule::Open),
        "allowed" => Ok(ImageRule::Allowed),
        _ => Err(section.error(
            key,
            "is neither `open` nor `allowed`",
            "write \"open\" or \"allowed\"",
        )),
    }
}

fn mark(section: &Section<'_>, key: &str, value: &Value) -> Result<LabelRequirement, ConfigError> {
    match section.text(key, value)? {
        "sessions" => Ok(LabelRequirement::Sessions),
        "always" => Ok(LabelRequirement::Always),
        "never" => Ok(LabelRequirement::Never),
        _ => {
            let hint = "write \"sessions\", \"always\" or \"never\"";
            Err(section.error(key, "is neither `sessions`, `always` nor `never`", hint))
        }
    }
}

fn users(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let bad = || {
        section.error(
            key,
            "must be a list of users",
            "name them or their numbers: may_add = [\"alice\", 1000]",
        )
    };
    let fits = |name: &str| {
        (1..=MAX_USER_BYTES).contains(&name.len())
            && !name.contains(|c: char| c.is_control() || c.is_whitespace())
    };
    let user = |one: &Value| match one {
        Value::String(name) if fits(name) => Ok(name.clone()),
        Value::Integer(number) => u32::try_from(*number)
            .map(|number| number.to_string())
            .map_err(|_| bad()),
        _ => Err(bad()),
    };
    value.as_array().ok_or_else(bad)?.iter().map(user).collect()
}

/// Normalises registries as image names do, so that one entry means one registry.
fn registries(section: &Section<'_>, key: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let bad = || {
        let hint =
            "write HOST or HOST:PORT: registries = [\"docker.io\", \"registry.example:5000\"]";
        section.error(key, "must be a list of registries", hint)
    };
    let registry = |one: &Value| {
        let host = one
            .as_str()
            .filter(|host| !host.contains(['/', '@']))
            .ok_or_else(bad)?;
        let name: ImageRef = format!("{host}/name").parse().map_err(|_| bad())?;
        // A word that is no host would be parsed as a path.
        if name.repository() == "name" || name.repository() == "library/name" {
            Ok(name.registry().to_owned())
        } else {
            Err(bad())
        }
    };
    value
        .as_array()
        .ok_or_else(bad)?
        .iter()
        .map(registry)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operators(text: &str) -> Result<ImagePolicy, ConfigError> {
        read(&text.parse().unwrap(), Path::new("/c.toml"))
    }

    fn narrowed(policy: &ImagePolicy, text: &str) -> Result<ImagePolicy, ConfigError> {
        let mut policy = policy.clone();
        narrow(
            &mut policy,
            &text.parse().unwrap(),
            Path::new("/p/airlock.toml"),
        )?;
        Ok(policy)
    }

    #[test]
    fn every_image_may_be_used_unless_the_file_says_otherwise() {
        assert_eq!(operators(""), Ok(ImagePolicy::default()));
        assert_eq!(ImagePolicy::default().rule, ImageRule::Open);
        let policy = ImagePolicy {
            rule: ImageRule::Allowed,
            mark: LabelRequirement::Always,
            may_add: Some(vec!["root".into(), "alice".into(), "1000".into()]),
            registries: None,
        };
        let text = "policy = \"allowed\"\nrequire_mark = \"always\"\nmay_add = [\"root\", \"alice\", 1000]";
        assert_eq!(operators(text), Ok(policy));
        assert_eq!(
            operators("may_add = []").unwrap().may_add,
            Some(vec![]),
            "nobody is not the same as unsaid"
        );
    }

    #[test]
    fn mistakes_name_the_key_the_file_and_the_remedy() {
        let cases = [
            (
                "polcy = \"open\"",
                "`images.polcy` in `/c.toml` is not a known key",
                "did you mean `policy`?",
            ),
            (
                "require_marks = \"never\"",
                "`images.require_marks` in `/c.toml` is not a known key",
                "did you mean `require_mark`?",
            ),
            (
                "policy = true",
                "`images.policy` in `/c.toml` must be text",
                "put it in double quotes",
            ),
            (
                "policy = \"Allowed\"",
                "`images.policy` in `/c.toml` is neither `open` nor `allowed`",
                "write \"open\"",
            ),
            (
                "require_mark = \"\"",
                "`images.require_mark` in `/c.toml` is neither `sessions`",
                "write \"sessions\"",
            ),
            (
                "may_add = \"alice\"",
                "`images.may_add` in `/c.toml` must be a list of users",
                "name them",
            ),
            (
                "may_add = [\"\"]",
                "`images.may_add` in `/c.toml` must be a list of users",
                "name them",
            ),
            (
                "may_add = [-1]",
                "`images.may_add` in `/c.toml` must be a list of users",
                "name them",
            ),
            (
                "registries = [\"docker\"]",
                "`images.registries` in `/c.toml` must be a list of registries",
                "write HOST or HOST:PORT",
            ),
            (
                "registries = [\"r.example/x\"]",
                "`images.registries` in `/c.toml` must be a list",
                "write HOST",
            ),
            (
                "registries = \"docker.io\"",
                "`images.registries` in `/c.toml` must be a list",
                "write HOST",
            ),
            (
                "may_add = [\"a\\nb\"]",
                "`images.may_add` in `/c.toml` must be a list of users",
                "name them",
            ),
        ];
        for (text, message, hint) in cases {
            let error = operators(text).expect_err(text);
            assert!(error.message.starts_with(message), "{}", error.message);
            assert!(error.hint.starts_with(hint), "{text}: {}", error.hint);
        }
    }

    #[test]
    fn with_a_list_of_registries_no_other_is_pulled_from() {
        let may =
            |text: &str, name: &str| operators(text).unwrap().may_pull(&name.parse().unwrap());
        assert!(may("", "anywhere.example/x") && may("", "debian"));
        let list = "registries = [\"index.docker.io\", \"127.0.0.1:5000\"]";
        assert!(may(list, "debian") && may(list, "docker.io/a/b") && may(list, "127.0.0.1:5000/x"));
        for other in ["127.0.0.1:5001/x", "quay.io/x", "registry-1.docker.io/x"] {
            assert!(!may(list, other), "{other}");
        }
        assert!(
            !may("registries = []", "debian"),
            "none is not the same as unsaid"
        );
    }

    #[test]
    fn a_local_file_switches_the_list_on_and_nothing_else() {
        let open = ImagePolicy::default();
        let on = ImagePolicy {
            rule: ImageRule::Allowed,
            ..ImagePolicy::default()
        };
        assert_eq!(narrowed(&open, "policy = \"allowed\""), Ok(on.clone()));
        assert_eq!(
            narrowed(&open, "policy = \"open\""),
            Ok(open.clone()),
            "equal values do not widen"
        );
        let widened = narrowed(&on, "policy = \"open\"").unwrap_err().message;
        assert!(
            widened.starts_with("`images.policy` in `/p/airlock.toml` would widen"),
            "{widened}"
        );
        for (text, message) in [
            (
                "require_mark = \"never\"",
                "`images.require_mark` in `/p/airlock.toml` cannot be set here",
            ),
            (
                "may_add = [\"mallory\"]",
                "`images.may_add` in `/p/airlock.toml` cannot be set here",
            ),
            (
                "registries = []",
                "`images.registries` in `/p/airlock.toml` cannot be set here",
            ),
            (
                "polic = \"allowed\"",
                "`images.polic` in `/p/airlock.toml` is not a known key",
            ),
        ] {
            assert_eq!(narrowed(&open, text).unwrap_err().message, message);
        }
    }
}
