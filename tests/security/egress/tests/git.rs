//! Rules for git: reading and writing told apart, refs by name, one repository and not its neighbour, and a credential
//! that goes to no other.

use doors_tests::REAL_KEY;
use egress::{Ran, Repository, World};

/// A world with `acme/app`, which may be read and written as the rule says, and `acme/app-evil`, which may not.
fn with_rule(repository: &str) -> (World, Repository, Repository) {
    let world = World::new();
    world.keep("git", REAL_KEY);
    world.configure(&format!(
        "[[profile.restrictive.egress]]\nhost = \"git.example\"\nmode = \"git\"\nrepos = [{{ {repository} }}]
[credential.git]\nkey = {{ secret = \"git\" }}\ninject = \"basic:x\"\nhosts = [\"git.example\"]\n"
    ));
    let (app, evil) = (
        world.repository("acme/app"),
        world.repository("acme/app-evil"),
    );
    (world, app, evil)
}

const READ_ONLY: &str = "repo = \"acme/app\"";
const AGENTS: &str = "repo = \"acme/app\", push = [\"refs/heads/agent/*\"]";

/// Clones, commits, then does this.
fn work(world: &World, then: &str) -> Ran {
    let script = format!(
        "set -e; export GIT_TERMINAL_PROMPT=0; git config --global user.name a; git config --global user.email a@b
git clone -q https://git.example/acme/app.git; cd app; git commit -q --allow-empty -m second\n{then}"
    );
    world.run(&[], &script)
}

#[test]
fn reading_is_allowed_and_writing_is_not() {
    let (world, app, _) = with_rule(READ_ONLY);
    let before = app.refs();
    assert_eq!(
        work(&world, "cat README; git fetch -q; git ls-remote -q | wc -l").well(),
        "acme/app\n2\n"
    );
    work(&world, "git push -q origin HEAD:refs/heads/agent/one").badly();
    assert_eq!(app.refs(), before);
    assert!(
        world
            .requests()
            .iter()
            .all(|request| !request.target.contains("receive-pack"))
    );
    let (world, app, _) = with_rule(AGENTS);
    work(&world, "git push -q origin HEAD:refs/heads/agent/one").well();
    assert!(
        app.refs().contains_key("refs/heads/agent/one"),
        "the control"
    );
}

#[test]
fn a_repository_with_a_like_name_is_another_one() {
    let (world, _, evil) = with_rule(AGENTS);
    let before = evil.refs();
    for path in [
        "acme/app-evil",
        "acme/app-evil.git",
        "acme/app/../app-evil",
        "acme//app-evil",
        "acme/app%2f..%2fapp-evil",
        "acme/app.git.git",
    ] {
        world.clear();
        world
            .run(
                &[],
                &format!("GIT_TERMINAL_PROMPT=0 git clone -q 'https://git.example/{path}' x"),
            )
            .badly();
        assert!(
            world.requests().is_empty(),
            "{path}: {:?}",
            world.requests()
        );
    }
    work(
        &world,
        "git push -q https://git.example/acme/app-evil HEAD:refs/heads/agent/one",
    )
    .badly();
    assert_eq!(evil.refs(), before);
    world
        .run(&[], "git clone -q https://git.example/acme/app x")
        .well();
}

#[test]
fn only_these_refs_are_written() {
    let (world, app, _) = with_rule(AGENTS);
    let main = app.refs()["refs/heads/main"].clone();
    for push in [
        "HEAD:refs/heads/main",
        "+HEAD:refs/heads/main",
        "HEAD:refs/tags/agent/one",
        "HEAD:refs/heads/agent",
        "HEAD:refs/heads/agentic/one",
        ":refs/heads/main",
        // A good one does not carry a bad one along.
        "HEAD:refs/heads/agent/good HEAD:refs/heads/main",
        "--atomic HEAD:refs/heads/agent/good HEAD:refs/heads/bad",
    ] {
        work(&world, &format!("git push -q origin {push}")).badly();
        assert_eq!(
            app.refs().keys().collect::<Vec<_>>(),
            ["refs/heads/main"],
            "{push}"
        );
        assert_eq!(app.refs()["refs/heads/main"], main, "{push}");
    }
    work(
        &world,
        "git push -q origin HEAD:refs/heads/agent/one HEAD:refs/heads/agent/two/three",
    )
    .well();
    assert_eq!(app.refs().len(), 3);
    work(&world, "git push -q origin :refs/heads/agent/one").badly();
    assert_eq!(app.refs().len(), 3, "removing needs `delete`");
}

#[test]
fn moving_and_removing_are_for_those_who_may() {
    let (world, app, _) =
        with_rule("repo = \"acme/app\", push = [\"refs/heads/*\"], update = false");
    work(&world, "git push -q origin HEAD:refs/heads/new").well();
    work(&world, "git push -q origin HEAD:refs/heads/main").badly();
    assert_eq!(app.refs().len(), 2);
    let (world, app, _) =
        with_rule("repo = \"acme/app\", push = [\"refs/heads/*\"], delete = true");
    work(
        &world,
        "git push -q origin HEAD:refs/heads/new; git push -q origin :refs/heads/new",
    )
    .well();
    assert_eq!(app.refs().len(), 1);
}

#[test]
fn its_credential_goes_to_that_repository_and_is_not_inside() {
    let (world, _, _) = with_rule(&format!(
        "{READ_ONLY}, credential = \"git\" }}, {{ repo = \"acme/app-evil\""
    ));
    // base64 of `x:` and the key.
    let own = "Basic eDpzay1jYW5hcnktNGYxZTdh";
    world.requires("git.example", "/acme/app", "authorization", own);
    world.requires("git.example", "/acme/app-evil", "x-nobody", "");
    let ran = work(
        &world,
        "git config --list; env; cat .git/config; git -c http.extraHeader='Authorization: mine' fetch -q",
    );
    ran.well();
    assert!(!ran.json.to_string().contains(REAL_KEY));
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.header("authorization") == Some(own))
    );
    world.clear();
    world.run(
        &[],
        "GIT_TERMINAL_PROMPT=0 git clone -q https://git.example/acme/app-evil",
    );
    assert!(!world.requests().is_empty(), "the control: it may be asked");
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
    assert!(
        !world
            .outside("GIT_TERMINAL_PROMPT=0 git clone -q https://git.example/acme/app")
            .status
            .success()
    );
}

#[test]
fn what_is_not_gits_own_protocol_does_not_pass() {
    let (world, app, _) = with_rule(READ_ONLY);
    let before = app.refs();
    let status = "curl -s -o /dev/null -w '%{http_code}\\n' --path-as-is";
    for request in [
        "https://git.example/",
        "https://git.example/acme/app",
        "https://git.example/acme/app.git/HEAD",
        "https://git.example/acme/app.git/objects/info/packs",
        "https://git.example/acme/app.git/info/refs",
        "'https://git.example/acme/app.git/info/refs?service=git-receive-pack'",
        "'https://git.example/acme/app.git/info/refs?service=git-upload-pack&service=git-receive-pack'",
        "'https://git.example/acme/app.git/info/refs?service=git-receive-pack&service=git-upload-pack'",
        "'https://git.example/acme/app.git/info/refs?service=git%2dreceive-pack'",
        "'https://git.example/acme/app.git/info/refs?service=%67it-receive-pack'",
        "-d 0000 https://git.example/acme/app.git/git-receive-pack",
        "-d 0000 https://git.example/acme/app.git/%67it-receive-pack",
        "-d 0000 https://git.example/acme/app.git/git-receive%2dpack",
        "-d '{}' https://git.example/acme/app.git/info/lfs/objects/batch",
        "-X PUT -d x https://git.example/acme/app.git/git-upload-pack",
        "https://git.example/acme/app.git/info/../../app-evil.git/info/refs?service=git-upload-pack",
    ] {
        let ran = world.run(&[], &format!("{status} {request}"));
        assert!(
            ["403\n", "400\n"].contains(&ran.stdout.as_str()),
            "{request}: {ran:?}"
        );
        assert!(
            world.requests().is_empty(),
            "{request}: {:?}",
            world.requests()
        );
    }
    assert_eq!(app.refs(), before);
    let good =
        format!("{status} 'https://git.example/acme/app.git/info/refs?service=git-upload-pack'");
    assert_eq!(world.run(&[], &good).stdout, "200\n", "the control");
}

#[test]
fn a_large_push_passes() {
    let (world, app, _) = with_rule(AGENTS);
    let push = "head -c 30000000 /dev/urandom > big; git add big; git commit -q -m big; git push -q origin HEAD:refs/heads/agent/big";
    work(&world, push).well();
    assert!(app.refs().contains_key("refs/heads/agent/big"));
}
