//! Git in a staged workspace: once the program's changes are in the folder, branches, index and
//! `HEAD` go with them. What git says afterwards is what a user sees.

use airlock_cli_tests::git_repository::{CLEAN, COMMIT, F1_MODIFIED, Repository, Whom};
use serde_json::Value;

/// Scenario i.
#[test]
fn commits_and_tags_arrive_with_the_branch_and_what_is_not_committed_stays_so() {
    let everyone: &[Whom] = match rustix::process::geteuid().is_root() {
        true => &[Whom::Caller, Whom::User, Whom::CallerForUser],
        false => &[Whom::Caller],
    };
    for &whom in everyone {
        let repository = Repository::of(whom, "git init -q -b main .", "");
        let ran = repository.run(
            "echo 1 >>f1; git commit -qam two; echo n >n; git rm -q f3; git add n; git commit -qm three
             git tag v1; git tag -a -m t v2; echo x >>f2; echo u >untracked",
        );
        ran.says("main +2 commits; v1 new; v2 new");
        repository.moved_to(
            "three two one",
            "# branch.head main\n1 .M N... 100644 100644 100644 f2\n? untracked",
        );
        assert_eq!(repository.aside(), "");
        let others = "find . ! -user \"$(id -u)\" -o ! -group \"$(id -g)\"";
        assert_eq!(
            repository.host(others),
            "",
            "{whom:?}: files of somebody else"
        );
        assert_eq!(
            repository.host("git describe; git cat-file -t v2; ls"),
            "v2\ntag\nf1\nf2\nn\nuntracked"
        );
        // Somebody's commit on top contains nothing that he did not make.
        repository.host("git commit -q -a -m four");
        assert_eq!(repository.host("git show --format= --name-only HEAD"), "f2");
    }
}

#[test]
fn the_result_says_what_moved() {
    let repository = Repository::new("");
    let old = repository.host("git rev-parse main");
    let output = repository
        .command(&["--json"], &format!("{COMMIT}; git checkout -q -b feat"))
        .output();
    let told = repository
        .world
        .answer(&output.expect("airlock starts"))
        .json();
    let git: &Value = &told["workspace"]["git"][0];
    let new = repository.host("git rev-parse main");
    assert_eq!(
        git["head"],
        serde_json::json!({ "inside": "refs/heads/feat", "host": "refs/heads/feat" })
    );
    assert_eq!(git["index"], "moved");
    assert_eq!(
        git["commits"],
        serde_json::json!([format!("{} two", &new[..7])])
    );
    assert_eq!(told["workspace"]["commits"], git["commits"]);
    assert_eq!(
        git["refs"],
        serde_json::json!([
            { "name": "refs/heads/feat", "old": null, "new": new, "placed": "refs/heads/feat", "moved": true, "why": null },
            { "name": "refs/heads/main", "old": old, "new": new, "placed": "refs/heads/main", "moved": true, "why": null },
        ])
    );
}

#[test]
fn reflogs_say_who_moved_it() {
    let repository = Repository::new("");
    repository.run(COMMIT).says("main +1 commit");
    let line = "git log -g -1 --format='%gn <%ge> %gs %H' ";
    let new = repository.host("git rev-parse main");
    for name in ["main", "HEAD"] {
        let told = repository.host(&format!("{line}{name}"));
        assert_eq!(told, format!("n <a@b> airlock: run r {new}"), "{name}");
    }
    assert_eq!(
        repository.host("git rev-parse main@{1}"),
        repository.host("git rev-parse main~1")
    );
    // Where the user wants none, none is begun.
    repository.host("git config core.logAllRefUpdates false; rm -r .git/logs");
    repository.run(COMMIT).says("main +1 commit");
    assert!(!repository.work(".git/logs").exists());
}

/// Scenario ii.
#[test]
fn head_goes_to_the_branch_that_the_program_ended_on() {
    let repository = Repository::new("git branch other");
    repository
        .run(&format!("git checkout -q -b feat; {COMMIT}"))
        .says("feat new; HEAD at feat");
    repository.moved_to("two one", "# branch.head feat");
    assert_eq!(
        repository.host("git log -g -1 --format=%gs HEAD"),
        "airlock: run r"
    );
    // To one that was there already.
    repository
        .run("git checkout -q other")
        .says("HEAD at other");
    repository.moved_to("one", "# branch.head other");
    assert_eq!(repository.host("cat f1"), "f1");
    // Not if the user went elsewhere meanwhile: what he has before him stays, and the branch is
    // there all the same.
    let ran = repository.run_while(
        &format!("git checkout -q -b more; {COMMIT}"),
        "git checkout -q main",
    );
    ran.says("more new");
    assert_eq!(repository.status(), F1_MODIFIED);
    repository.host("git checkout -q -f main; git switch -q more; git fsck --strict --no-dangling");
}

/// Scenario iii.
#[test]
fn a_rewritten_branch_moves_and_what_it_was_is_kept() {
    let repository =
        Repository::new("echo 2 >>f2; git commit -qam two; echo 3 >>f3; git commit -qam three");
    let old = repository.host("git rev-parse main");
    let ran = repository.run("echo a >>f1; git commit -q -a --amend -m other");
    ran.says("main rewritten, before it was refs/airlock/r/before/heads/main");
    repository.moved_to("other two one", CLEAN);
    assert_eq!(repository.aside(), "airlock/r/before/heads/main");
    let before = "git rev-parse refs/airlock/r/before/heads/main main@{1}";
    assert_eq!(repository.host(before), format!("{old}\n{old}"));
    // A rebase that exchanges two commits, and one that drops one: its file goes, too.
    repository.host("git update-ref -d refs/airlock/r/before/heads/main");
    let ran = repository.run("git reset -q --hard HEAD~2; git cherry-pick main@{1} >/dev/null");
    ran.mentions("main rewritten");
    repository.moved_to("other one", CLEAN);
    assert_eq!(repository.host("cat f2"), "f2");
    // The branch that stays is not kept twice.
    repository.host("git update-ref -d refs/airlock/r/before/heads/main; : >.git/index.lock");
    let ran = repository.run("echo b >>f1; git commit -q -a --amend -m again");
    ran.mentions("refs/airlock/r/heads/main (`index.lock` is held)");
    assert_eq!(repository.aside(), "airlock/r/heads/main");
    repository.host("rm .git/index.lock");
    repository.host(ran.command());
    repository.moved_to("again one", CLEAN);
    // What the user wrote meanwhile is still there when he has taken it over.
    repository
        .host("git update-ref -d refs/airlock/r/heads/main; seq 9 >f3; git commit -q -a -m lines");
    let amend = "sed -i 's/^1$/first/' f3; echo c >>f2; git commit -q -a --amend -m edited";
    let ran = repository.run_while(amend, "sed -i 's/^9$/last/' f3");
    ran.mentions("a file of it was not applied");
    assert_eq!(repository.log(), "lines again one");
    repository.host(ran.command());
    assert_eq!(repository.log(), "edited again one");
    assert_eq!(
        repository.status(),
        "# branch.head main\n1 .M N... 100644 100644 100644 f3"
    );
    assert_eq!(
        repository.host("cat f3").replace('\n', " "),
        "first 2 3 4 5 6 7 8 last"
    );
}

/// Scenario iv.
#[test]
fn a_branch_that_the_user_moved_meanwhile_stays_and_one_command_joins_both() {
    let repository = Repository::new("");
    let ran = repository.run_while(COMMIT, "echo mine >>f2; git commit -q -a -m mine");
    ran.says(
        "1 kept aside: refs/airlock/r/heads/main (it was moved here meanwhile): \
         `git merge --autostash refs/airlock/r/heads/main`",
    );
    assert_eq!(repository.log(), "mine one");
    assert_eq!(repository.status(), F1_MODIFIED);
    repository.host(&format!("GIT_EDITOR=true {}", ran.command()));
    assert_eq!(repository.status(), CLEAN);
    assert_eq!(
        repository.host("git show main:f1 main:f2"),
        "f1\nmore\nf2\nmine"
    );
}

/// Scenario v.
#[test]
fn a_submodule_moves_before_the_repository_that_it_is_in() {
    let repository = Repository::new(
        "git init -q -b main ../from; cd ../from; git config user.name n; git config user.email a@b
         echo a >a; git add .; git commit -q -m one; cd ../work
         git submodule --quiet add ../from sub; git commit -q -m sub",
    );
    let script = "cd sub; echo x >>a; git config user.name n; git config user.email a@b; git commit -q -a -m in; cd ..
                  git commit -q -a -m up";
    let ran = repository.run(script);
    assert_eq!(
        ran.0.stderr.matches("airlock: note: git").count(),
        2,
        "{:?}",
        ran.0
    );
    repository.moved_to("up sub one", CLEAN);
    assert_eq!(
        repository.host("cd sub; git status --porcelain; git log -1 --format=%s"),
        "in"
    );
    // What of the submodule did not move keeps the other one back.
    repository.host(": >.git/modules/sub/index.lock");
    let ran = repository.run(&script.replace("in;", "again;"));
    assert!(
        ran.0
            .stderr
            .contains("the submodule `sub` is not at that commit here"),
        "{:?}",
        ran.0
    );
    repository.host("rm .git/modules/sub/index.lock");
    assert_eq!(repository.log(), "up sub one");
}

/// Scenario vi.
#[test]
fn a_repository_that_the_program_makes_is_held_back() {
    let repository = Repository::new("rm -rf .git");
    let ran = repository.run("git init -q .; git config core.fsmonitor evil");
    assert!(
        ran.0.stderr.contains("held back") && !repository.work(".git").exists(),
        "{:?}",
        ran.0
    );
}

/// Scenario vii, over an overlay.
#[test]
fn a_large_repository_moves_as_a_small_one() {
    let files = "mkdir d; seq 6000 | while read -r n; do echo $n >d/$n; done; git add .; git commit -q -m many
        awk 'BEGIN { for (n = 1; n <= 100; n++) {
            printf \"commit refs/heads/main\\ncommitter n <a@b> %d +0000\\ndata %d\\n%d\\n\", n, length(n), n
            if (n == 1) print \"from refs/heads/main^0\"
            printf \"M 644 inline d/%d\\ndata 2\\nx\\n\\n\", n
        } }' | git fast-import --quiet; git reset -q --hard";
    let repository = Repository::new(files);
    let ran = repository.run(
        "for n in $(seq 300 500); do echo y >>d/$n; done; git commit -qam two; git mv d/600 e; git commit -qm three",
    );
    ran.says("main +2 commits");
    assert_eq!(repository.status(), CLEAN);
    assert_eq!(
        repository.host("git log -2 --format=%s; git rev-list --count main"),
        "three\ntwo\n104"
    );
}

/// Scenario viii.
#[test]
fn what_the_user_has_staged_stays_staged() {
    let repository =
        Repository::new("echo s >>f2; git rm -q --cached f3; echo new >n; git add f2 n");
    repository
        .run("echo 1 >>f1; git commit -q -m two f1")
        .says("main +1 commit");
    let staged = "# branch.head main\n1 M. N... 100644 100644 100644 f2\n1 D. N... 100644 000000 000000 f3\n\
                  1 A. N... 000000 100644 100644 n\n? f3";
    repository.moved_to("two one", staged);
    // If the program committed it, it is committed.
    let ran = repository.run("git commit -q -m three");
    ran.says("main +1 commit");
    repository.moved_to("three two one", "# branch.head main\n? f3");
    // And something newer, if that is what it made of it: the rest stays staged.
    repository.host("echo u >>f1; echo v >>f2; git add f1 f2");
    repository
        .run("echo w >>f2; git commit -q -m four f2")
        .says("main +1 commit");
    repository.moved_to(
        "four three two one",
        "# branch.head main\n1 M. N... 100644 100644 100644 f1\n? f3",
    );
    // Staged meanwhile, it is the user's: the branch stays.
    let staging =
        "id=$(echo mine | git hash-object -w --stdin); git update-index --cacheinfo 100644,$id,f2";
    let ran = repository.run_while("echo z >>f2; git commit -q -m five f2", staging);
    ran.mentions("index: failed: error: Entry 'f2' would be overwritten by merge");
    assert_eq!(repository.log(), "four three two one");
    assert_eq!(repository.host("git show :f2"), "mine");
    assert_eq!(repository.aside(), "airlock/r/heads/main");
}

#[test]
fn the_first_commit_makes_the_branch() {
    let repository = Repository::new(
        "rm -rf .git; git init -q -b main .; git config user.name n; git config user.email a@b",
    );
    let ran = repository.run("git add f1 f2; git commit -q -m first");
    ran.says("main new");
    repository.moved_to("first", "# branch.head main\n? f3");
}

/// What looks like a line of git's own between two names, too.
#[test]
fn odd_names_are_names_like_others() {
    let repository = Repository::new("");
    let ran = repository.run(
        "n=$(printf 'a\\n:000000 120000 0 00 M'); echo x >\"$n\"; ln -s f1 \"l$n\"; echo x >\"$(printf '\\t\\377')\"
         echo x >HEAD; echo x >-f; git add -A; git commit -q -m two",
    );
    ran.says("main +1 commit");
    repository.moved_to("two one", CLEAN);
    assert_eq!(repository.host("git ls-files | wc -l; cat ./l*"), "8\nf1");
}

/// Indexes that are written otherwise, and another hash.
#[test]
fn an_index_is_moved_whatever_its_format() {
    for (init, config) in [
        (
            "git init -q -b main .",
            "git update-index --index-version 4",
        ),
        ("git init -q -b main .", "git update-index --split-index"),
        (
            "git init -q -b main .",
            "git update-index --untracked-cache",
        ),
        ("git init -q -b main --object-format=sha256 .", ""),
        (
            "git init -q -b main .",
            "git sparse-checkout set --cone --sparse-index d",
        ),
    ] {
        let repository = Repository::of(
            Whom::Caller,
            init,
            "mkdir d; echo d >d/x; git add .; git commit -qm d",
        );
        repository.host(config);
        repository.host("echo s >>f2; git add f2");
        repository
            .run("echo more >>f1; echo e >>d/x; git commit -q -m two f1 d/x")
            .says("main +1 commit");
        repository.moved_to(
            "two d one",
            "# branch.head main\n1 M. N... 100644 100644 100644 f2",
        );
        // And the user's git goes on with it.
        repository.host("git commit -q -m mine; git checkout -q HEAD~2");
        assert_eq!(repository.status(), "# branch.head (detached)", "{config}");
    }
}

/// Where older commits are not there, or objects are borrowed from a repository beside.
#[test]
fn a_branch_of_a_clone_moves() {
    for (from, file, older) in [
        ("--depth 1 \"file://$(cd ../from; pwd)\"", "shallow", ""),
        ("--shared ../from", "objects/info/alternates", " 1"),
    ] {
        let init = format!(
            "git init -q -b main ../from; cd ../from; git config user.name n; git config user.email a@b
             for n in 1 2; do git commit -q --allow-empty -m $n; done; cd ../work
             git clone -q {from} ."
        );
        let repository = Repository::of(Whom::Caller, &init, "");
        assert!(repository.work(".git").join(file).exists(), "{file}");
        repository
            .run(&format!("{COMMIT}; git tag v1"))
            .says("main +1 commit; v1 new");
        let status = "# branch.head main\n# branch.upstream origin/main\n# branch.ab +2 -0";
        repository.moved_to(&format!("two one 2{older}"), status);
    }
}

#[test]
fn a_linked_worktree_moves_its_own_branch() {
    let repository = Repository::new(
        "git branch wt; cd ..; mv work main; git -C main worktree add -q ../work wt; mkdir -p work",
    );
    repository.run(COMMIT).says("wt +1 commit");
    assert_eq!(repository.status(), "# branch.head wt");
    assert_eq!(repository.log(), "two one");
    assert_eq!(
        repository.host("git log -g -1 --format=%gs HEAD; git -C ../main status --porcelain"),
        "airlock: run r"
    );
    // The branch of the other worktree stays.
    let ran = repository.run("git branch -f main; echo x >>f2; git commit -q -a -m three");
    ran.mentions(
        "wt +1 commit; 1 kept aside: refs/airlock/r/heads/main (it is open in another worktree)",
    );
    assert_eq!(
        repository.host("git -C ../main status --porcelain; git log -1 --format=%s main"),
        "one"
    );
}
