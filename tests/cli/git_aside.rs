//! Git in a staged workspace: what keeps a branch where it is. What the program committed arrives
//! beside it, with the reason and the command that takes it over; each reason has a control that
//! moves.

use airlock_cli_tests::git_repository::{CLEAN, COMMIT, F1_MODIFIED, Repository, RunAnswer};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

/// Says why a branch stays, before or while the program runs, and takes that away again.
struct Obstacle {
    before: &'static str,
    meanwhile: &'static str,
    why: &'static str,
    after: &'static str,
}

const fn before(before: &'static str, why: &'static str, after: &'static str) -> Obstacle {
    let meanwhile = "";
    Obstacle {
        before,
        meanwhile,
        why,
        after,
    }
}

const fn meanwhile(meanwhile: &'static str, why: &'static str, after: &'static str) -> Obstacle {
    let before = "";
    Obstacle {
        before,
        meanwhile,
        why,
        after,
    }
}

const OBSTACLES: [Obstacle; 15] = [
    before(
        "git rev-parse HEAD >.git/MERGE_HEAD",
        "a merge is in progress",
        "rm .git/MERGE_HEAD",
    ),
    before(
        "git rev-parse HEAD >.git/CHERRY_PICK_HEAD",
        "a cherry-pick is in progress",
        "rm .git/CHERRY_PICK_HEAD",
    ),
    before(
        "git rev-parse HEAD >.git/REVERT_HEAD",
        "a revert is in progress",
        "rm .git/REVERT_HEAD",
    ),
    before(
        "mkdir .git/rebase-merge",
        "a rebase is in progress",
        "rmdir .git/rebase-merge",
    ),
    before(
        "mkdir .git/rebase-apply",
        "a rebase is in progress",
        "rmdir .git/rebase-apply",
    ),
    before(
        "mkdir .git/sequencer",
        "a sequence of picks is in progress",
        "rmdir .git/sequencer",
    ),
    before(
        "git bisect start >/dev/null 2>&1",
        "a bisection is in progress",
        "git bisect reset 2>/dev/null",
    ),
    before(
        "id=$(git rev-parse :f3); git rm -q --cached f3
         printf '100644 %s 1\tf3\n100644 %s 2\tf3\n' $id $id | git update-index --index-info",
        "the resolution of conflicts is in progress",
        "",
    ),
    before(
        "git worktree add -q -f ../wt main",
        "it is open in another worktree",
        "git worktree remove ../wt",
    ),
    before(
        "git tag main",
        "a tag of its name stands before it",
        "git tag -d main >/dev/null",
    ),
    before(
        ": >.git/index.lock",
        "`index.lock` is held",
        "rm .git/index.lock",
    ),
    before(
        ": >.git/HEAD.lock",
        "`HEAD.lock` is held",
        "rm .git/HEAD.lock",
    ),
    before(
        ": >.git/refs/heads/main.lock",
        "`refs/heads/main.lock` is held",
        "rm .git/refs/heads/main.lock",
    ),
    meanwhile(
        "git checkout -q other",
        "HEAD was moved here meanwhile",
        "git checkout -q -f main",
    ),
    meanwhile(
        "echo mine >>f1",
        "a file of it was not applied, or was changed here",
        "",
    ),
];

/// Each obstacle in turn keeps the branch aside; without it the same program's branch moves.
#[test]
fn whatever_stands_against_a_move_is_named_and_without_it_the_branch_moves() {
    let repository = Repository::new("git branch other");
    for Obstacle {
        before,
        meanwhile,
        why,
        after,
    } in OBSTACLES
    {
        repository.host(before);
        let old = repository.host("git rev-parse refs/heads/main");
        let ran = match meanwhile {
            "" => repository.run(COMMIT),
            meanwhile => repository.run_while(COMMIT, meanwhile),
        };
        ran.mentions(&format!("1 kept aside: refs/airlock/r/heads/main ({why})"));
        assert_eq!(
            repository.host("git rev-parse refs/heads/main"),
            old,
            "{why}"
        );
        assert_eq!(repository.aside(), "airlock/r/heads/main", "{why}");
        repository.host(after);
        // The control.
        repository.host(
            "git reset -q --hard; git update-ref -d refs/airlock/r/heads/main; rm -rf \"$AIRLOCK_STATE\"/workspaces/*",
        );
        repository.run(COMMIT).says("main +1 commit");
        repository.moved_to("two one", CLEAN);
        repository.host("git reset -q --hard HEAD~1");
    }
}

#[test]
fn branches_and_tags_that_could_be_taken_for_others_stay_aside() {
    let repository = Repository::new(
        "git branch other; git branch open; git worktree add -q ../wt open; git tag t
         git update-ref refs/remotes/origin/dev HEAD; git remote add up .",
    );
    let ran = repository.run(&format!(
        "{COMMIT}; git tag -f t >/dev/null; git tag v1; git branch Other; git branch up; git branch t
         git branch origin/dev; git branch -f open; git branch -f other; git branch new; git tag main"
    ));
    let told = ran.0.stderr.clone();
    assert_eq!(repository.log(), "two one", "{told}");
    let placed = "git for-each-ref --format='%(refname:lstrip=3)' refs/airlock";
    assert_eq!(
        repository.host(placed).replace('\n', " "),
        "heads/Other heads/open heads/origin/dev heads/t heads/up tags/main tags/t",
        "{told}"
    );
    assert_eq!(
        repository.host("git log --format=%s -1 other; git log --format=%s -1 new"),
        "two\ntwo"
    );
    assert_eq!(
        repository.host("git log --format=%s -1 open; git log --format=%s -1 tags/t"),
        "one\none"
    );
    ran.mentions("7 kept aside");
    ran.mentions("(it is open in another worktree)");
    // The control: without what they could be taken for.
    repository.host(
        "git for-each-ref --format='delete %(refname)' refs/airlock refs/remotes | git update-ref --stdin
         git worktree remove ../wt; git remote remove up; git tag -d t >/dev/null; git branch -q -D other",
    );
    let ran = repository.run("git tag v2; git branch Other; git branch up; git branch t; git branch origin/dev; git branch -f open");
    ran.says("Other new; open +1 commit; origin/dev new; t new; up new; 1 more");
    assert_eq!(repository.aside(), "");
}

#[test]
fn nothing_is_deleted() {
    let repository = Repository::new("git branch old; git tag t; git pack-refs --all");
    let mut command = repository.command(
        &["--json"],
        &format!("git branch -q -D old; git tag -d t >/dev/null; {COMMIT}"),
    );
    let told = repository
        .world
        .answer(&command.output().expect("airlock starts"))
        .json();
    let why = "it was deleted inside, and stays here";
    assert_eq!(
        told["workspace"]["git"][0]["not_brought"],
        serde_json::json!([{ "what": "refs/heads/old", "why": why }, { "what": "refs/tags/t", "why": why }])
    );
    repository.moved_to("two one", CLEAN);
    assert_eq!(
        repository.host("git log -1 --format=%s old; git log -1 --format=%s t"),
        "one\none"
    );
    // Nothing else was done: nothing is said, and nothing is kept.
    let ran = repository.run("git branch -q -D old");
    assert_eq!(ran.0.stderr, "");
    repository.left_nothing();
}

#[test]
fn a_detached_head_stays_where_it_is() {
    let repository = Repository::new("git checkout -q --detach");
    let ran = repository.run(COMMIT);
    ran.says(
        "1 kept aside: refs/airlock/r/HEAD (a detached HEAD stays where it is): `git log refs/airlock/r/HEAD`",
    );
    assert_eq!(
        repository.status(),
        "# branch.head (detached)\n1 .M N... 100644 100644 100644 f1"
    );
    // Detached inside only: the branch stays, too, as the files are another commit's.
    let repository = Repository::new("");
    let ran = repository.run(&format!("{COMMIT}; git checkout -q --detach HEAD~1"));
    ran.mentions("(the program left HEAD detached)");
    assert_eq!(
        (repository.log(), repository.status()),
        ("one".to_owned(), CLEAN.to_owned())
    );
    // The control: back on it.
    repository.host("git update-ref -d refs/airlock/r/heads/main");
    repository
        .run(&format!(
            "git checkout -q --detach; git checkout -q main; {COMMIT}"
        ))
        .says("main +1 commit");
    repository.moved_to("two one", CLEAN);
}

/// In any new commit, even if the next one takes it back: whoever checks that one out would have
/// it.
#[test]
fn a_branch_with_a_protected_name_in_a_new_commit_stays_aside() {
    let repository = Repository::new(
        "git config core.hooksPath tools/hooks; mkdir fixture; echo x >fixture/HEAD; git add .; git commit -qm h",
    );
    let add = |path: &str| {
        format!(
            "id=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$id,{path}
             git commit -q -m evil; git rm -q --cached {path}; git commit -q -m away; {COMMIT}"
        )
    };
    let link = |target: &str| {
        format!(
            "id=$(printf {target} | git hash-object -w --stdin); git update-index --add --cacheinfo 120000,$id,link
             git commit -q -m evil; git rm -q --cached link; git commit -q -m away; {COMMIT}"
        )
    };
    let reset = "git reset -q --hard; git for-each-ref --format='delete %(refname)' refs/airlock | git update-ref --stdin";
    for (path, script) in [
        (".envrc", add(".envrc")),
        ("a/.husky/pre-commit", add("a/.husky/pre-commit")),
        ("tools/hooks/pre-push", add("tools/hooks/pre-push")),
        ("bare/HEAD", add("bare/HEAD")),
        ("fixture/config", add("fixture/config")),
        ("link", link("../../.ssh")),
        ("link", link("f1/../../x")),
        ("link", link(".git/config")),
        ("link", link("a/.envrc")),
    ] {
        let ran = repository.run(&script);
        ran.says(&format!(
            "1 kept aside: refs/airlock/r/heads/main (it changes what git or your tools obey, or a link: `{path}`): \
             read it before you take it over"
        ));
        assert_eq!(
            (repository.log(), repository.status()),
            ("h one".to_owned(), F1_MODIFIED.to_owned()),
            "{script}"
        );
        repository.host(reset);
    }
    // The controls: a name like others, a link within, and a name that the user allows.
    for (options, script) in [
        (&[][..], add("a/envrc")),
        (&[], link("f1")),
        (&["--allow-protected", ".envrc"], add(".envrc")),
    ] {
        repository
            .run_with(options, &script)
            .says("main +3 commits");
        repository.moved_to("two away evil h one", CLEAN);
        repository.host("git reset -q --hard HEAD~3");
    }
}

#[test]
fn what_is_held_back_or_a_conflict_keeps_the_branch_back() {
    let repository = Repository::new("");
    // The file stays in the layer, and its branch beside.
    let ran = repository.run("ln -s /etc/passwd out; git add out; git commit -q -m link");
    ran.mentions("read it before you take it over");
    assert_eq!(
        (repository.log(), repository.status()),
        ("one".to_owned(), CLEAN.to_owned())
    );
    // Too much for a disk is not taken at all.
    repository
        .host("rm -r \"$AIRLOCK_STATE\"/workspaces/r; git update-ref -d refs/airlock/r/heads/main");
    let bomb = "b=$(echo x | git hash-object -w --stdin); m='100644 blob'
        for n in 1 2 3 4 5 6; do
            b=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf \"$m $b\\t$i\\n\"; done | git mktree); m='040000 tree'
        done; git update-ref refs/heads/bomb $(git commit-tree -m b $b)";
    let ran = repository.run(&format!("{COMMIT}; {bomb}"));
    ran.mentions("nothing was brought");
    ran.mentions("more than 500000 paths");
    assert_eq!(
        (repository.log(), repository.status()),
        ("one".to_owned(), F1_MODIFIED.to_owned())
    );
}

#[test]
fn a_stash_arrives_beside_and_the_branch_moves() {
    let repository = Repository::new("");
    let ran = repository.run(&format!("{COMMIT}; echo x >>f2; git stash -q"));
    ran.says(
        "main +1 commit; 1 kept aside: refs/airlock/r/stash (only branches and new tags come under their own names): \
         `git stash apply refs/airlock/r/stash`",
    );
    repository.moved_to("two one", CLEAN);
    repository.host(ran.command());
    assert_eq!(repository.host("cat f2"), "f2\nx");
}

/// Its commits wait with its files.
#[test]
fn of_a_layer_that_is_kept_everything_arrives_beside() {
    let repository = Repository::new("");
    let ran = repository.run_with(&["--copy-on-write"], COMMIT);
    ran.says(
        "the program's commits have arrived; after `airlock workspace commit r` take them over with \
         `git reset refs/airlock/r/heads/main`",
    );
    assert_eq!(
        (repository.log(), repository.status()),
        ("one".to_owned(), CLEAN.to_owned())
    );
    let committed = repository.world.run(&["workspace", "commit", "r"]);
    assert_eq!(committed.status, Some(0), "{committed:?}");
    assert_eq!(repository.status(), F1_MODIFIED);
    repository.host(ran.command());
    repository.moved_to("two one", CLEAN);
}

/// Takes a commit apart, makes another one of it, and stops there: `HEAD` is detached, and the branch is as it was.
const REBASE: &str = "GIT_SEQUENCE_EDITOR='sed -i s/pick/edit/' git rebase -q -i HEAD~ >&2; \
                      git commit -q --amend -m reworded";

/// Kills Airlock in a run whose program has come to the end of its script.
fn kill_behind(mut command: Command) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("airlock starts");
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    output.read_line(&mut line).expect("it can be read");
    assert_eq!(line, "ready\n");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}

#[test]
fn what_a_killed_run_committed_is_kept_and_a_command_brings_it() {
    for (begins_with, script, arrives) in [
        ("", COMMIT, "refs/airlock/r/heads/main"),
        // No branch leads to it.
        ("git checkout -q --detach", COMMIT, "refs/airlock/r/HEAD"),
        (
            "echo more >>f2; git commit -q -a -m two",
            REBASE,
            "refs/airlock/r/HEAD",
        ),
        ("", "echo more >>f1", ""),
    ] {
        let is_kept = !arrives.is_empty();
        let repository = Repository::new(begins_with);
        let before = (repository.log(), repository.status());
        let script = format!("{script}; echo ready; read go");
        kill_behind(repository.command(&["--stdin"], &script));
        let command = "`airlock workspace commit r`";
        let swept = repository.world.run(&["sweep"]);
        assert_eq!(swept.status, Some(0), "{swept:?}");
        let list = repository.world.run(&["workspace", "list"]);
        let named = [&swept.stderr, &list.stdout].map(|told| told.contains(command));
        assert_eq!(named, [is_kept; 2], "{begins_with} {swept:?} {list:?}");
        let folder = repository.world.state().join("git/r");
        assert_eq!(
            (folder.exists(), folder.join("kept").exists()),
            (is_kept, is_kept),
            "{begins_with} {script}"
        );
        let now = (repository.log(), repository.status());
        assert_eq!((now, repository.aside()), (before.clone(), String::new()));
        let taken = repository.world.run(&["workspace", "commit", "r"]);
        assert_eq!(taken.status, Some(0), "{taken:?}");
        assert_eq!(
            repository.aside(),
            arrives.trim_start_matches("refs/"),
            "{taken:?}"
        );
        assert_eq!(taken.stderr.contains("refs/airlock/"), is_kept, "{taken:?}");
        assert_eq!(repository.log(), before.0);
        repository.host("git fsck --strict --no-dangling");
        repository.left_nothing();
        let again = repository.world.run(&["sweep"]);
        assert!(!again.stderr.contains("workspace commit"), "{again:?}");
    }
}

/// A layer is not there; neither is anything else that would name the run.
#[test]
fn what_a_killed_run_committed_in_a_live_workspace_is_brought_or_dropped() {
    for (action, arrives) in [("commit", "airlock/r/heads/main"), ("discard", "")] {
        let repository = Repository::new("");
        let script = format!("{COMMIT}; echo ready; read go");
        let words = [
            "run",
            "--run-id",
            "r",
            "--workspace",
            "work:live",
            "--stdin",
            "--",
            "sh",
            "-euc",
            &script,
        ];
        kill_behind(repository.world.command(&words));
        let told = repository
            .world
            .run(&["workspace", "list", "--json"])
            .json();
        assert_eq!(
            (
                &told["commits_not_brought"][0]["id"],
                told["workspaces"].as_array().map(Vec::len)
            ),
            (&"r".into(), Some(0)),
            "{told}"
        );
        // The host has gone on meanwhile: nothing of it moves.
        repository.host("echo mine >>f2; git commit -q -m mine f2");
        let done = repository.world.run(&["workspace", action, "r"]);
        assert_eq!(done.status, Some(0), "{done:?}");
        let now = (repository.log(), repository.aside());
        assert_eq!(now, ("mine one".to_owned(), arrives.to_owned()), "{done:?}");
        if action == "commit" {
            let command = "take them over with `git merge --autostash refs/airlock/r/heads/main`";
            assert!(done.stderr.contains(command), "{done:?}");
            let brought = repository.host("git log --format=%s refs/airlock/r/heads/main");
            assert_eq!(brought, "two\none");
        }
        repository.left_nothing();
        let none = repository.world.run(&["workspace", action, "r"]);
        assert_eq!(none.status, Some(125), "{none:?}");
    }
}

/// Its git folder lies two folders below those of submodules.
#[test]
fn what_a_killed_run_committed_in_a_submodule_is_brought_there() {
    let repository = Repository::new(
        "git init -q -b main ../other; cd ../other; git config user.name n; git config user.email a@b
         git commit -q --allow-empty -m sub; cd ../work
         git submodule -q add ../other lib/sub; git commit -q -m submodule",
    );
    let script = "cd lib/sub; git checkout -q -b new
        git -c user.name=n -c user.email=a@b commit -q --allow-empty -m inner; echo ready; read go";
    kill_behind(repository.command(&["--stdin"], script));
    let list = repository.world.run(&["workspace", "list"]).stdout;
    assert!(list.contains("`airlock workspace commit r`"), "{list}");
    let done = repository.world.run(&["workspace", "commit", "r"]);
    assert_eq!(done.status, Some(0), "{done:?}");
    let brought = "git -C lib/sub for-each-ref --format='%(refname) %(subject)' refs/airlock";
    assert_eq!(
        repository.host(brought),
        "refs/airlock/r/heads/new inner",
        "{done:?}"
    );
    assert_eq!(repository.aside(), "");
    repository.left_nothing();
}

/// Its `.git` is a protected name like any other; a submodule is more, and has claims of its own.
#[test]
fn a_repository_in_a_folder_below_gets_the_files_and_not_the_commits() {
    let within = "mkdir -p vendor/lib; echo vendor >.gitignore; cd vendor/lib; git init -q -b main .
        git config user.name n; git config user.email a@b; echo one >f; git add f; git commit -q -m one";
    let script =
        "cd vendor/lib; echo two >>f; git -c user.name=n -c user.email=a@b commit -q -a -m two";
    for (options, log) in [
        (&[][..], "one"),
        (&["--allow-protected", "vendor/lib/.git"], "two\none"),
    ] {
        let repository = Repository::new(within);
        let RunAnswer(ran) = repository.run_with(options, script);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert_eq!(repository.host("cat vendor/lib/f"), "one\ntwo");
        assert_eq!(repository.host("git -C vendor/lib log --format=%s"), log);
        let is_held = ran
            .stderr
            .contains("held back in the workspace's layer: `vendor/lib/.git/");
        assert_eq!(is_held, options.is_empty(), "{ran:?}");
    }
}
