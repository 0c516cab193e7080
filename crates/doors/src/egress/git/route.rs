//! Which of git's four requests this is, and whether a rule has its repository. Whatever is not exactly one of them is
//! refused: the dumb protocol, LFS, and the pages of a web site at the same host.

use super::Denied;
use spec::{Repository, RequestPath};

/// What is asked of which repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Its path, without a slash at its ends and without `.git`.
    pub repository: &'a str,
    /// What.
    pub kind: Kind,
}

/// What git asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Which refs there are, to fetch some.
    AdvertiseFetch,
    /// Objects.
    Fetch,
    /// Which refs there are, to write some.
    AdvertisePush,
    /// To write refs.
    Push,
}

const UPLOAD: &str = "git-upload-pack";
const RECEIVE: &str = "git-receive-pack";

impl Kind {
    /// Whether it is the way of a push. The answer to the first step of one tells no more than that of a fetch, but it is
    /// refused where no push could follow, so that git says so at once.
    pub fn writes(self) -> bool {
        match self {
            Kind::AdvertisePush | Kind::Push => true,
            Kind::AdvertiseFetch | Kind::Fetch => false,
        }
    }
}

/// Reads a request. The path is the one that will be forwarded.
pub fn ask<'a>(
    method: &str,
    path: &'a RequestPath,
    query: Option<&str>,
) -> Result<Ask<'a>, &'static str> {
    let path = path.as_str();
    let (repository, kind) = if let Some(repository) = path.strip_suffix("/info/refs") {
        (repository, advertisement(method, query)?)
    } else if let Some((repository, service)) = path.rsplit_once('/') {
        (repository, exchange(method, service, query)?)
    } else {
        return Err("it has no path");
    };
    let repository = repository
        .strip_prefix('/')
        .ok_or("it names no repository")?;
    let repository = repository.strip_suffix(".git").unwrap_or(repository);
    match repository.split('/').all(is_plain) {
        true => Ok(Ask { repository, kind }),
        false => Err("the path of the repository is not made of plain parts"),
    }
}

fn advertisement(method: &str, query: Option<&str>) -> Result<Kind, &'static str> {
    match (method, query) {
        ("GET", Some("service=git-upload-pack")) => Ok(Kind::AdvertiseFetch),
        ("GET", Some("service=git-receive-pack")) => Ok(Kind::AdvertisePush),
        ("GET", None | Some("")) => {
            Err("git's dumb protocol is not served; use git 1.6.6 or later")
        }
        ("GET", Some(_)) => Err("the query is not exactly one `service` that git has"),
        _ => Err("git asks for refs with GET"),
    }
}

fn exchange(method: &str, service: &str, query: Option<&str>) -> Result<Kind, &'static str> {
    let kind = match service {
        UPLOAD => Kind::Fetch,
        RECEIVE => Kind::Push,
        _ => {
            return Err(
                "it is not a request of git's smart protocol (no LFS, no dumb protocol, no web pages)",
            );
        }
    };
    match (method, query) {
        ("POST", None) => Ok(kind),
        ("POST", Some(_)) => Err("git sends this request without a query"),
        _ => Err("git sends this request with POST"),
    }
}

/// A part that every server reads alike. What ends a path cannot be inside one: some servers look for the first.
fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    !part.is_empty()
        && part.bytes().all(plain)
        && part.bytes().any(|byte| byte != b'.')
        && ![".git", UPLOAD, RECEIVE].contains(&part)
}

/// The repository that is asked for, if it may be asked this. Of several entries the one with the fewest `*` counts. Many
/// servers do not tell large letters from small ones: a wider entry is not the way around one that is closer but for that.
/// A push that may begin is then judged ref by ref: see [`Push`](super::Push).
pub fn decide<'a>(repositories: &'a [Repository], ask: &Ask<'_>) -> Result<&'a Repository, Denied> {
    let path = ask.repository;
    let found = repositories
        .iter()
        .filter(|repository| repository.matches_in_any_case(path))
        .min_by_key(|repository| {
            repository
                .path
                .split('/')
                .filter(|part| *part == "*")
                .count()
        });
    // Unless there is an entry for each.
    let twin = |found: &Repository| {
        repositories
            .iter()
            .find(|other| other.path.eq_ignore_ascii_case(&found.path) && other.matches(path))
    };
    let found = found.map(|found| twin(found).unwrap_or(found));
    let deny = |reason, allow_with| Err(Denied { reason, allow_with });
    match (found, ask.kind.writes()) {
        (Some(found), _) if !found.matches(path) => deny(
            format!(
                "the repository {path} differs from `{}` of the rule in large and small letters",
                found.path
            ),
            format!("writing it as `{}`", found.path),
        ),
        (None, false) => deny(
            format!("the rule does not name the repository {path}"),
            format!("an entry {{ repo = \"{path}\" }} in `repos` of the rule"),
        ),
        (None, true) => deny(
            format!("the rule does not name the repository {path}"),
            format!(
                "an entry {{ repo = \"{path}\", push = [\"refs/heads/agent/*\"] }} in `repos` of the rule"
            ),
        ),
        (Some(found), false) if !found.fetch => deny(
            format!("the repository {path} may not be read"),
            format!("`fetch = true` at `{}` in `repos` of the rule", found.path),
        ),
        (Some(found), true) if found.push.is_empty() => deny(
            format!("nothing may be pushed to the repository {path}"),
            format!(
                "`push = [\"refs/heads/agent/*\"]` at `{}` in `repos` of the rule",
                found.path
            ),
        ),
        (Some(found), _) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(
        method: &str,
        path: &str,
        query: Option<&str>,
    ) -> Result<(String, Kind), &'static str> {
        let path: RequestPath = path.parse().unwrap();
        ask(method, &path, query).map(|ask| (ask.repository.to_owned(), ask.kind))
    }

    fn repository(path: &str, fetch: bool, push: &[&str]) -> Repository {
        let push = push
            .iter()
            .map(|pattern| pattern.parse().unwrap())
            .collect();
        Repository {
            path: path.to_owned(),
            fetch,
            push,
            update: true,
            delete: false,
            credential: None,
        }
    }

    #[test]
    fn git_asks_four_things() {
        let (upload, receive) = (
            Some("service=git-upload-pack"),
            Some("service=git-receive-pack"),
        );
        for (method, path, query, repository, kind) in [
            (
                "GET",
                "/acme/app/info/refs",
                upload,
                "acme/app",
                Kind::AdvertiseFetch,
            ),
            (
                "GET",
                "/acme/app.git/info/refs",
                receive,
                "acme/app",
                Kind::AdvertisePush,
            ),
            (
                "POST",
                "/acme/app.git/git-upload-pack",
                None,
                "acme/app",
                Kind::Fetch,
            ),
            (
                "POST",
                "/a/b/c/App/git-receive-pack",
                None,
                "a/b/c/App",
                Kind::Push,
            ),
            (
                "POST",
                "/acme/%61pp/%67it-receive-pack",
                None,
                "acme/app",
                Kind::Push,
            ),
            (
                "POST",
                "/x/../acme/app/git-receive-pack",
                None,
                "acme/app",
                Kind::Push,
            ),
            (
                "POST",
                "/acme/.github/git-upload-pack",
                None,
                "acme/.github",
                Kind::Fetch,
            ),
            (
                "POST",
                "/acme/app.git.git/git-upload-pack",
                None,
                "acme/app.git",
                Kind::Fetch,
            ),
        ] {
            assert_eq!(
                asked(method, path, query),
                Ok((repository.to_owned(), kind)),
                "{method} {path}"
            );
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        let upload = Some("service=git-upload-pack");
        for (method, path, query) in [
            ("GET", "/acme/app/info/refs", None),
            ("GET", "/acme/app/info/refs", Some("")),
            (
                "GET",
                "/acme/app/info/refs",
                Some("service=git-upload-pack&service=git-receive-pack"),
            ),
            (
                "GET",
                "/acme/app/info/refs",
                Some("service=git-upload-pack&"),
            ),
            (
                "GET",
                "/acme/app/info/refs",
                Some("service=git-upload-pack&x=1"),
            ),
            (
                "GET",
                "/acme/app/info/refs",
                Some("service=%67it-upload-pack"),
            ),
            (
                "GET",
                "/acme/app/info/refs",
                Some("service=git-upload-archive"),
            ),
            ("GET", "/acme/app/info/refs/", upload),
            ("HEAD", "/acme/app/info/refs", upload),
            ("POST", "/acme/app/info/refs", upload),
            ("GET", "/info/refs", upload),
            ("GET", "//info/refs", upload),
            ("GET", "/.git/info/refs", upload),
            ("GET", "/acme/app/.git/info/refs", upload),
            ("GET", "/acme//app/info/refs", upload),
            ("GET", "/acme/app%2Fx/info/refs", upload),
            ("GET", "/acme/app;x/info/refs", upload),
            ("GET", "/acme/.../info/refs", upload),
            ("GET", "/acme/app/git-receive-pack/info/refs", upload),
            ("GET", "/acme/app/HEAD", None),
            ("GET", "/acme/app/objects/info/packs", None),
            ("GET", "/acme/app/git-upload-pack", None),
            ("PUT", "/acme/app/git-receive-pack", None),
            ("POST", "/acme/app/git-receive-pack", Some("x")),
            ("POST", "/acme/app/git-receive-pack", Some("")),
            ("POST", "/acme/app/git-receive-pack/", None),
            ("POST", "/acme/app/GIT-RECEIVE-PACK", None),
            ("POST", "/acme/app/git-upload-archive", None),
            ("POST", "/acme/app.git/info/lfs/objects/batch", None),
            ("PUT", "/acme/app.git/info/lfs/objects/ab", None),
            ("POST", "/git-upload-pack", None),
            ("GET", "/", None),
        ] {
            assert!(
                asked(method, path, query).is_err(),
                "{method} {path} {query:?}"
            );
        }
    }

    #[test]
    fn the_nearest_entry_decides() {
        let repositories = [
            repository("acme/*", true, &[]),
            repository("acme/app", true, &["refs/heads/agent/*"]),
            repository("acme/sealed", false, &["refs/heads/x"]),
        ];
        let decided = |repository, kind| decide(&repositories, &Ask { repository, kind });
        let path = |repository, kind| decided(repository, kind).unwrap().path.as_str();
        assert_eq!(path("acme/app", Kind::Push), "acme/app");
        assert_eq!(path("acme/app", Kind::AdvertiseFetch), "acme/app");
        assert_eq!(path("acme/app-evil", Kind::Fetch), "acme/*");
        assert_eq!(path("acme/sealed", Kind::AdvertisePush), "acme/sealed");
        let denied = |repository, kind| decided(repository, kind).unwrap_err();
        let no_push = denied("acme/app-evil", Kind::AdvertisePush);
        assert_eq!(
            no_push.reason,
            "nothing may be pushed to the repository acme/app-evil"
        );
        assert!(no_push.allow_with.contains("`acme/*`"), "{no_push:?}");
        assert_eq!(
            denied("acme/sealed", Kind::Fetch).reason,
            "the repository acme/sealed may not be read"
        );
        assert!(
            denied("Other/app", Kind::Fetch)
                .allow_with
                .contains("repo = \"Other/app\"")
        );
        assert!(denied("acme/app/x", Kind::Push).allow_with.contains("push"));
    }

    #[test]
    fn letters_of_another_size_are_no_way_around_an_entry() {
        let repositories = [
            repository("acme/*", true, &["refs/heads/*"]),
            repository("acme/prod", true, &[]),
        ];
        let decided = |repository| {
            decide(
                &repositories,
                &Ask {
                    repository,
                    kind: Kind::Push,
                },
            )
        };
        assert_eq!(decided("acme/app").unwrap().path, "acme/*");
        assert_eq!(
            decided("acme/App").unwrap().path,
            "acme/*",
            "no entry is closer"
        );
        for path in ["acme/prod", "acme/PROD", "Acme/prod", "Acme/app"] {
            assert!(decided(path).is_err(), "{path}");
        }
        assert!(
            decided("acme/PROD")
                .unwrap_err()
                .allow_with
                .contains("acme/prod")
        );
        let both = [
            repository("acme/prod", true, &[]),
            repository("acme/PROD", true, &["refs/heads/*"]),
        ];
        assert!(
            decide(
                &both,
                &Ask {
                    repository: "acme/PROD",
                    kind: Kind::Push
                }
            )
            .is_ok()
        );
        assert!(
            decide(
                &both,
                &Ask {
                    repository: "acme/prod",
                    kind: Kind::Push
                }
            )
            .is_err()
        );
    }

    proptest! {
        #[test]
        fn what_is_read_out_of_a_path_is_what_is_forwarded(
            text in "/([a-c.%2F7/]{0,8}|info|refs|git-upload-pack|/){0,6}(/info/refs|/git-receive-pack)"
        ) {
            let Ok(path) = text.parse::<RequestPath>() else { return Ok(()) };
            for (method, query, end) in [
                ("GET", Some("service=git-upload-pack"), "/info/refs"),
                ("POST", None, "/git-receive-pack"),
            ] {
                if let Ok(ask) = ask(method, &path, query) {
                    let short = format!("/{}{end}", ask.repository);
                    let long = format!("/{}.git{end}", ask.repository);
                    prop_assert!([short.as_str(), long.as_str()].contains(&path.as_str()));
                }
            }
        }
    }
}
