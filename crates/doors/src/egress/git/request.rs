//! Recognises git's four smart HTTP requests and finds the repository entry of the rule. Everything
//! else is refused: the dumb protocol, LFS, and web pages on the same host.

use super::GitRefusal;
use spec::{Repository, RequestPath};

/// A git request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GitRequest<'a> {
    /// Path of the repository, without outer slashes and `.git`.
    pub repository: &'a str,
    /// The kind of request.
    pub kind: GitRequestKind,
}

/// The four requests of the smart protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitRequestKind {
    /// Ref advertisement before a fetch.
    AdvertiseFetch,
    /// Fetch objects.
    Fetch,
    /// Ref advertisement before a push.
    AdvertisePush,
    /// Update refs.
    Push,
}

const UPLOAD: &str = "git-upload-pack";
const RECEIVE: &str = "git-receive-pack";

impl GitRequestKind {
    /// Whether the request belongs to a push. The ref advertisement of a push reveals no more than
    /// that of a fetch, but it is refused where the push would be, so that git reports it at once.
    pub fn writes(self) -> bool {
        match self {
            GitRequestKind::AdvertisePush | GitRequestKind::Push => true,
            GitRequestKind::AdvertiseFetch | GitRequestKind::Fetch => false,
        }
    }
}

/// Parses a request. The path is the one that will be forwarded.
pub fn parse_request<'a>(
    method: &str,
    path: &'a RequestPath,
    query: Option<&str>,
) -> Result<GitRequest<'a>, &'static str> {
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
    if repository.split('/').all(is_plain) {
        Ok(GitRequest { repository, kind })
    } else {
        Err("the path of the repository is not made of plain parts")
    }
}

fn advertisement(method: &str, query: Option<&str>) -> Result<GitRequestKind, &'static str> {
    match (method, query) {
        ("GET", Some("service=git-upload-pack")) => Ok(GitRequestKind::AdvertiseFetch),
        ("GET", Some("service=git-receive-pack")) => Ok(GitRequestKind::AdvertisePush),
        ("GET", None | Some("")) => {
            Err("git's dumb protocol is not served; use git 1.6.6 or later")
        }
        ("GET", Some(_)) => Err("the query is not exactly one `service` that git has"),
        _ => Err("git asks for refs with GET"),
    }
}

fn exchange(
    method: &str,
    service: &str,
    query: Option<&str>,
) -> Result<GitRequestKind, &'static str> {
    let kind = match service {
        UPLOAD => GitRequestKind::Fetch,
        RECEIVE => GitRequestKind::Push,
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

/// A path segment that every server parses alike. A segment that ends a git path may not occur
/// inside: some servers look for the first one.
fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    !part.is_empty()
        && part.bytes().all(plain)
        && part.bytes().any(|byte| byte != b'.')
        && ![".git", UPLOAD, RECEIVE].contains(&part)
}

/// The entry of the requested repository, if it allows the request. Of several matching entries the
/// one with the fewest `*` counts. Many servers ignore case, so a wider entry must not bypass a
/// closer one that differs only in case. An allowed push is then checked ref by ref: see
/// [`PushRequest`](super::PushRequest).
pub fn authorize<'a>(
    repositories: &'a [Repository],
    parse_request: &GitRequest<'_>,
) -> Result<&'a Repository, GitRefusal> {
    let path = parse_request.repository;
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
    // Unless there is an entry for each spelling.
    let twin = |found: &Repository| {
        repositories
            .iter()
            .find(|other| other.path.eq_ignore_ascii_case(&found.path) && other.matches(path))
    };
    let found = found.map(|found| twin(found).unwrap_or(found));
    let deny = |reason, allow_with| Err(GitRefusal { reason, allow_with });
    match (found, parse_request.kind.writes()) {
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
    ) -> Result<(String, GitRequestKind), &'static str> {
        let path: RequestPath = path.parse().unwrap();
        parse_request(method, &path, query)
            .map(|parse_request| (parse_request.repository.to_owned(), parse_request.kind))
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
                GitRequestKind::AdvertiseFetch,
            ),
            (
                "GET",
                "/acme/app.git/info/refs",
                receive,
                "acme/app",
                GitRequestKind::AdvertisePush,
            ),
            (
                "POST",
                "/acme/app.git/git-upload-pack",
                None,
                "acme/app",
                GitRequestKind::Fetch,
            ),
            (
                "POST",
                "/a/b/c/App/git-receive-pack",
                None,
                "a/b/c/App",
                GitRequestKind::Push,
            ),
            (
                "POST",
                "/acme/%61pp/%67it-receive-pack",
                None,
                "acme/app",
                GitRequestKind::Push,
            ),
            (
                "POST",
                "/x/../acme/app/git-receive-pack",
                None,
                "acme/app",
                GitRequestKind::Push,
            ),
            (
                "POST",
                "/acme/.github/git-upload-pack",
                None,
                "acme/.github",
                GitRequestKind::Fetch,
            ),
            (
                "POST",
                "/acme/app.git.git/git-upload-pack",
                None,
                "acme/app.git",
                GitRequestKind::Fetch,
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
        let decided = |repository, kind| authorize(&repositories, &GitRequest { repository, kind });
        let path = |repository, kind| decided(repository, kind).unwrap().path.as_str();
        assert_eq!(path("acme/app", GitRequestKind::Push), "acme/app");
        assert_eq!(path("acme/app", GitRequestKind::AdvertiseFetch), "acme/app");
        assert_eq!(path("acme/app-evil", GitRequestKind::Fetch), "acme/*");
        assert_eq!(
            path("acme/sealed", GitRequestKind::AdvertisePush),
            "acme/sealed"
        );
        let denied = |repository, kind| decided(repository, kind).unwrap_err();
        let no_push = denied("acme/app-evil", GitRequestKind::AdvertisePush);
        assert_eq!(
            no_push.reason,
            "nothing may be pushed to the repository acme/app-evil"
        );
        assert!(no_push.allow_with.contains("`acme/*`"), "{no_push:?}");
        assert_eq!(
            denied("acme/sealed", GitRequestKind::Fetch).reason,
            "the repository acme/sealed may not be read"
        );
        assert!(
            denied("Other/app", GitRequestKind::Fetch)
                .allow_with
                .contains("repo = \"Other/app\"")
        );
        assert!(
            denied("acme/app/x", GitRequestKind::Push)
                .allow_with
                .contains("push")
        );
    }

    #[test]
    fn letters_of_another_size_are_no_way_around_an_entry() {
        let repositories = [
            repository("acme/*", true, &["refs/heads/*"]),
            repository("acme/prod", true, &[]),
        ];
        let decided = |repository| {
            authorize(
                &repositories,
                &GitRequest {
                    repository,
                    kind: GitRequestKind::Push,
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
            authorize(
                &both,
                &GitRequest {
                    repository: "acme/PROD",
                    kind: GitRequestKind::Push
                }
            )
            .is_ok()
        );
        assert!(
            authorize(
                &both,
                &GitRequest {
                    repository: "acme/prod",
                    kind: GitRequestKind::Push
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
                if let Ok(parse_request) = parse_request(method, &path, query) {
                    let short = format!("/{}{end}", parse_request.repository);
                    let long = format!("/{}.git{end}", parse_request.repository);
                    prop_assert!([short.as_str(), long.as_str()].contains(&path.as_str()));
                }
            }
        }
    }
}
