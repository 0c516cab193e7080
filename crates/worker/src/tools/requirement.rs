//! What is to be installed, as PEP 508 has it: a name, extras and versions. No options, addresses or paths, and nothing that
//! an installer could take for one.

use super::problem::{Problem, word};
use std::fmt;

const LONGEST: usize = 256;

/// A package with the versions that will do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement(String);

impl fmt::Display for Requirement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Requirement {
    /// Checks a manifest's `package` and `version`.
    pub fn new(package: &str, version: Option<&str>) -> Result<Requirement, Problem> {
        let (name, extras) = match package.split_once('[') {
            Some((name, extras)) => (name, extras.strip_suffix(']')),
            None => (package, Some("")),
        };
        let are_names = |extras: &str| extras.is_empty() || extras.split(',').all(is_name);
        if !is_name(name) || !extras.is_some_and(are_names) || package.len() > LONGEST {
            let message = format!(
                "`package` is `{}`, which is no package's name",
                word(package)
            );
            return Err(Problem::new(
                message,
                "write a name such as asyncpg; versions belong into `version`",
            ));
        }
        let versions = version
            .map(str::trim)
            .filter(|version| !version.is_empty() && *version != "*");
        let Some(versions) = versions else {
            return Ok(Requirement(package.to_owned()));
        };
        if versions.len() > LONGEST {
            return Err(bad_version(versions));
        }
        let clauses: Option<Vec<String>> = versions
            .split(',')
            .map(|clause| checked(clause.trim()))
            .collect();
        let clauses = clauses.ok_or_else(|| bad_version(versions))?;
        Ok(Requirement(format!("{package}{}", clauses.join(","))))
    }
}

fn bad_version(versions: &str) -> Problem {
    let message = format!("`version` is `{}`, which says no versions", word(versions));
    Problem::new(message, "write one such as \"1.2.3\" or \">=1.2,<2\"")
}

fn is_name(text: &str) -> bool {
    let is_end = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let is_inner = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

/// One clause, with `==` where it has no operator.
fn checked(clause: &str) -> Option<String> {
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
                Requirement::new(package, version).unwrap().to_string(),
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
            assert!(Requirement::new(package, None).is_err(), "{package}");
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
            assert!(Requirement::new("a", Some(version)).is_err(), "{version}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_is_one_harmless_word(package in ".{0,20}", version in ".{0,20}") {
            if let Ok(requirement) = Requirement::new(&package, Some(&version)) {
                let text = requirement.to_string();
                prop_assert!(text.starts_with(|letter: char| letter.is_ascii_alphanumeric()));
                prop_assert!(!text.contains([' ', '/', '\\', '@', ';', '\n', ':', '\'']));
            }
        }
    }
}
