//! Parses the verification report of new commits, which task B prints.

use super::{
    risk::{RefTree, RiskCheck},
    sandboxes::CommitPair,
};
use ::git::{
    GitError, ObjectFormat, ObjectId, escape,
    import::{self, MAX_PATHS},
};
use spec::MAX_LISTED_CHANGES;
use std::{collections::BTreeSet, ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

/// The characters of a commit subject in a result.
const MAX_SUBJECT_CHARACTERS: usize = 200;

/// The report.
#[derive(Debug)]
pub(super) struct Verification {
    /// Risky paths in any new commit.
    pub(super) touches: Vec<String>,
    /// The newest commits, with their subjects.
    pub(super) commits: Vec<String>,
    /// The report of each pair, in order.
    pub(super) pairs: Vec<PairVerification>,
}

/// The report of one reference, or of `HEAD`.
#[derive(Debug)]
pub(super) struct PairVerification {
    /// Whether it is a fast-forward.
    pub(super) is_forward: bool,
    /// The number of new commits.
    pub(super) commits: u64,
    /// A risky path, if there is one.
    pub(super) touches: Option<String>,
    /// Whether it has too many paths to be checked out.
    pub(super) is_too_large: bool,
    /// The paths in which it differs from the old commit, without submodules that stay submodules.
    pub(super) paths: Vec<PathBuf>,
    /// Those submodules, with their new commits.
    pub(super) gitlinks: Vec<(PathBuf, Option<ObjectId>)>,
}

impl PairVerification {
    /// The reason that prevents an update on any host.
    pub(super) fn check_risk(&self) -> Result<(), String> {
        match &self.touches {
            Some(path) => Err(format!(
                "it changes what git or your tools obey, or a link: `{path}`"
            )),
            None if self.is_too_large => Err(format!("it has more than {MAX_PATHS} paths")),
            None => Ok(()),
        }
    }
}

impl Verification {
    pub(super) fn parse(
        output: &[u8],
        pairs: &[CommitPair],
        format: ObjectFormat,
        risk: &RiskCheck<'_>,
    ) -> Result<Verification, GitError> {
        let mut parts = LengthPrefixedParts(output);
        let touches = risky_paths(parts.next()?, risk, None)?;
        let subjects = String::from_utf8_lossy(parts.next()?).into_owned();
        let subject = |line: &str| {
            escape(
                &line
                    .chars()
                    .take(MAX_SUBJECT_CHARACTERS)
                    .collect::<String>(),
            )
        };
        let pairs = pairs.iter().map(|_| pair(&mut parts, format, risk));
        let facts = Verification {
            touches,
            pairs: pairs.collect::<Result<_, _>>()?,
            commits: subjects
                .lines()
                .take(MAX_LISTED_CHANGES)
                .map(subject)
                .collect(),
        };
        match parts.0.is_empty() {
            true => Ok(facts),
            false => Err(unreadable()),
        }
    }
}

fn unreadable() -> GitError {
    GitError::Refused("what git says of the commits cannot be read".to_owned())
}

/// Parts, each behind a line with its length.
struct LengthPrefixedParts<'a>(&'a [u8]);

impl<'a> LengthPrefixedParts<'a> {
    fn next(&mut self) -> Result<&'a [u8], GitError> {
        let end = self.0.iter().position(|byte| *byte == b'\n');
        let (line, rest) = self.0.split_at(end.ok_or_else(unreadable)?);
        let length = std::str::from_utf8(line).ok();
        let length = length.and_then(|length| length.trim().parse().ok());
        let part = length.and_then(|length| rest[1..].split_at_checked(length));
        let (part, rest) = part.ok_or_else(unreadable)?;
        self.0 = rest;
        Ok(part)
    }
}

fn pair(
    parts: &mut LengthPrefixedParts<'_>,
    format: ObjectFormat,
    risk: &RiskCheck<'_>,
) -> Result<PairVerification, GitError> {
    let words = std::str::from_utf8(parts.next()?).map_err(|_| unreadable())?;
    let words: Vec<_> = words.split_whitespace().collect();
    let [forward, commits, paths] = words.as_slice() else {
        return Err(unreadable());
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| unreadable());
    let (changes, diff) = (parts.next()?, parts.next()?);
    let tip = RefTree::parse(parts.next()?, parts.next()?).ok_or_else(unreadable)?;
    let mut facts = PairVerification {
        is_forward: *forward == "yes",
        commits: number(commits)?,
        is_too_large: number(paths)? > MAX_PATHS,
        touches: risky_paths(changes, risk, Some(&tip))?
            .into_iter()
            .chain(risky_paths(diff, risk, Some(&tip))?)
            .next(),
        paths: Vec::new(),
        gitlinks: Vec::new(),
    };
    for change in import::parse_changes(diff)? {
        let path = PathBuf::from(OsStr::from_bytes(change.path));
        match change.gitlink {
            None => facts.paths.push(path),
            Some(id) => {
                let id = std::str::from_utf8(id).ok();
                let id = id.and_then(|id| ObjectId::parse(id, format));
                facts.gitlinks.push((path, id));
            }
        }
    }
    Ok(facts)
}

/// The paths of risky changes.
fn risky_paths(
    changes: &[u8],
    risk: &RiskCheck<'_>,
    tip: Option<&RefTree>,
) -> Result<Vec<String>, GitError> {
    let all = import::parse_changes(changes)?.into_iter();
    let paths: BTreeSet<_> = all
        .filter(|change| risk.is_risky(change, tip))
        .map(|change| escape(&String::from_utf8_lossy(change.path)))
        .collect();
    Ok(paths.into_iter().take(MAX_LISTED_CHANGES).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::sandboxes::OldCommit;
    use spec::ProtectedNames;
    use std::{fs::File, os::fd::AsFd, path::Path};

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";

    fn parts(texts: &[&str]) -> Vec<u8> {
        let parts = texts.iter().map(|text| format!("{}\n{text}", text.len()));
        parts.collect::<String>().into_bytes()
    }

    fn parse(output: &[u8]) -> Result<Verification, GitError> {
        let pair = CommitPair {
            new: ObjectId::parse(NEW, ObjectFormat::Sha1).unwrap(),
            old: OldCommit::Absent,
        };
        let (names, workspace) = (ProtectedNames::default(), File::open("/proc").unwrap());
        let risk = RiskCheck::new(&names, Path::new(""), workspace.as_fd());
        Verification::parse(output, &[pair], ObjectFormat::Sha1, &risk)
    }

    fn raw(modes: &str, path: &str) -> String {
        format!(":{modes} {OLD} {NEW} M\0{path}\0")
    }

    #[test]
    fn what_speaks_against_a_move_is_read() {
        let plain = raw("100644 100644", "a") + &raw("160000 160000", "sub");
        let subjects = "2222222 a\u{1b}b\n";
        let output = parts(&[&plain, subjects, "yes 2 7\n", &plain, &plain, "", ""]);
        let facts = parse(&output).unwrap();
        assert_eq!(facts.commits, ["2222222 a\\u{1b}b"]);
        assert_eq!(facts.touches, Vec::<String>::new());
        let pair = &facts.pairs[0];
        assert_eq!((pair.is_forward, pair.commits), (true, 2));
        assert_eq!(pair.paths, [Path::new("a")]);
        assert_eq!(
            pair.gitlinks,
            [("sub".into(), ObjectId::parse(NEW, ObjectFormat::Sha1))]
        );
        assert_eq!(pair.check_risk(), Ok(()));
        for (modes, path) in [
            ("000000 100644", ".envrc"),
            ("000000 120000", "link"),
            ("000000 160000", "vendor"),
        ] {
            let bad = raw(modes, path);
            let anywhere = [
                parts(&["", "", "no 0 7", &bad, "", "", ""]),
                parts(&["", "", "no 0 7", "", &bad, "", ""]),
            ];
            for output in anywhere {
                let told = parse(&output).unwrap().pairs[0].check_risk().unwrap_err();
                assert!(told.contains(path), "{told}");
            }
        }
        let link = raw("000000 120000", "newest");
        let target = format!("{NEW} blob 1\na\n");
        let plain_link = parts(&[&link, "", "no 0 7", &link, "", "", &target]);
        let facts = parse(&plain_link).unwrap();
        assert_eq!(facts.touches, ["newest"]);
        assert_eq!(facts.pairs[0].check_risk(), Ok(()));
        let large = parts(&["", "", "no 0 500001", "", "", "", ""]);
        assert!(parse(&large).unwrap().pairs[0].check_risk().is_err());
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let output = parts(&["", "2222222 x\n", "yes 2 7\n", "", "", "", ""]);
        assert!(parse(&output).is_ok());
        for end in 0..output.len() {
            assert!(parse(&output[..end]).is_err(), "{end}");
        }
        assert!(parse(&[&output[..], b"0\n"].concat()).is_err());
    }
}
