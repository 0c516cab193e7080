//! A package requirement (PEP 508) limited to name, extras and versions: no options, URLs or paths,
//! and nothing that pip could take for one.

use super::problem::{ToolProblem, word};
use std::fmt;

const MAX_BYTES: usize = 256;

/// A package with its version constraints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackageRequirement(String);

impl fmt::Display for PackageRequirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl PackageRequirement {
    /// Validates `package` and `version` of a manifest.
    pub fn new(package: &str, version: Option<&str>) -> Result<PackageRequirement, ToolProblem> {
        let (name, extras) = match package.split_once('[') {
            Some((name, extras)) => (name, extras.strip_suffix(']')),
            None => (package, Some("")),
        };
        let are_names = |extras: &str| extras.is_empty() || extras.split(',').all(is_name);
        if !is_name(name) || !extras.is_some_and(are_names) || package.len() > MAX_BYTES {
            let message = format!(
                "`package` is `{}`, which is no package's name",
                word(package)
            );
            return Err(ToolProblem::new(
                message,
                "write a name such as asyncpg; versions belong into `version`",
            ));
        }
        let versions = version
            .map(str::trim)
            .filter(|version| !version.is_empty() && *version != "*");
        let Some(versions) = versions else {
            return Ok(PackageRequirement(package.to_owned()));
        };
        if versions.len() > MAX_BYTES {
            return Err(bad_version(versions));
        }
        let clauses: Option<Vec<String>> = versions
            .split(',')
            .map(|clause| check_clause(clause.trim()))
            .collect();
        let clauses = clauses.ok_or_else(|| bad_version(versions))?;
        Ok(PackageRequirement(format!(
            "{package}{}",
            clauses.join(",")
        )))
    }
}

fn bad_version(versions: &str) -> ToolProblem {
    let message = format!("`version` is `{}`, which says no versions", word(versions));
    ToolProblem::new(message, "write one such as \"1.2.3\" or \">=1.2,<2\"")
}

fn is_name(text: &str) -> bool {
    let is_end = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let is_inner = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

/// A version clause, with `==` if it has no operator.
fn check_clause(clause: &str) -> Option<String> {
    const OPERATORS: [&str; 8] = ["===", "==", "!=", "~=", "<=", ">=", "<", ">"];
    let with = OPERATORS
        .iter()
        .find_map(|operator| Some((*operator, clause.strip_prefix(operator)?)));
    let (operator, version) = with.unwrap_or(("==", clause));
    let version = version.trim();
    let is_sign = |letter: char| letter.is_ascii_alphanumeric() || ".*+!_-".contains(letter);
    let begins = version
        .chars()
        .next()
        .is_some_and(|letter| letter.is_ascii_alphanumeric());
    (begins && version.chars().all(is_sign)).then(|| format!("{operator}{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_with_versions_are_taken_and_a_lone_version_is_exact() {
        for (package, version, becomes) in [
            ("asyncpg", None, "asyncpg"),
            ("asyncpg", Some(">=0.29"), "asyncpg>=0.29"),
            ("zope.interface", Some("5.0"), "zope.interface==5.0"),
            (
                "uvicorn[standard,x-1]",
                Some(">= 0.2 , <1, !=0.5.*"),
                "uvicorn[standard,x-1]>=0.2,<1,!=0.5.*",
            ),
            ("a", Some("1!2.0+local.1"), "a==1!2.0+local.1"),
            ("a", Some("*"), "a"),
        ] {
            assert_eq!(
                PackageRequirement::new(package, version)
                    .unwrap()
                    .to_string(),
                becomes
            );
        }
    }

    #[test]
    fn options_addresses_and_paths_are_refused() {
        for package in [
            "",
            "-r",
            "--index-url=x",
            "a b",
            "a @ https://x/y.whl",
            "git+https://x",
            "./a",
            "/a",
            "a/b",
            "a;b",
            "a[",
            "a[-x]",
            "a\n",
            "ä",
        ] {
            assert!(PackageRequirement::new(package, None).is_err(), "{package}");
        }
        for version in [
            "-1",
            ">=",
            "1 --pre",
            "1;os_name=='x'",
            "@ https://x",
            ">=1,,2",
            "1\n2",
            "==../x",
        ] {
            assert!(
                PackageRequirement::new("a", Some(version)).is_err(),
                "{version}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_is_one_harmless_word(package in ".{0,20}", version in ".{0,20}") {
            if let Ok(requirement) = PackageRequirement::new(&package, Some(&version)) {
                let text = requirement.to_string();
                prop_assert!(text.starts_with(|letter: char| letter.is_ascii_alphanumeric()));
                prop_assert!(!text.contains([' ', '/', '\\', '@', ';', '\n', ':', '\'']));
            }
        }
    }
}
