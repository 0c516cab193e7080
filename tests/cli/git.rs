//! The repository of a mounted workspace: the program commits in a git folder of ours, and what arrives on the host is
//! commits, under `refs/airlock/`, and nothing else of `.git`. Hostile git data is read by git only inside of boxes.

use airlock_cli_tests::{Answer, World};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Changes a file and commits that.
const COMMIT: &str = "echo more >> a; git commit -q -a -m two";

/// Git on the host, for repositories that are ours.
fn git(folder: &Path, words: &[&str]) -> String {
    let told = Command::new("git")
        .args(["-c", "protocol.file.allow=always"])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    assert!(
        told.status.success(),
        "git {words:?}: {}",
        text(&told.stderr)
    );
    text(&told.stdout)
}

fn repository(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    git(folder, &["init", "-q", "-b", "main", "."]);
    git(folder, &["config", "user.name", "n"]);
    git(folder, &["config", "user.email", "a@b"]);
    fs::write(folder.join("a"), "a\n").expect("a file");
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "one"]);
}

fn world() -> World {
    let world = World::new();
    repository(&world.here("work"));
    world
}

/// Runs a script in a box whose workspace is `work`, shared live: then nothing of the repository's own moves.
fn run(world: &World, script: &str) -> Answer {
    let answer = world.run(&[
        "run",
        "--json",
        "--run-id",
        "r",
        "--workspace",
        "work:live",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(answer.status, Some(0), "{}{}", answer.stdout, answer.stderr);
    answer
}

fn import(answer: &Answer) -> Value {
    answer.json()["workspace"]["git"][0].clone()
}

/// Every file of `.git`, links and FIFOs as what they are.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut left) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = left.pop() {
        let kind = fs::symlink_metadata(&path)
            .expect("it was listed")
            .file_type();
        if kind.is_dir() {
            let entries = fs::read_dir(&path).expect("it can be listed");
            left.extend(entries.map(|entry| entry.expect("it can be listed").path()));
            continue;
        }
        let bytes = match kind.is_file() {
            true => fs::read(&path).expect("it can be read"),
            false => b"no regular file".to_vec(),
        };
        found.insert(
            path.strip_prefix(folder).expect("it is below").to_owned(),
            bytes,
        );
    }
    found
}

/// What is new in `.git`, without the names of packs; nothing else may have changed.
fn news(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    for (path, bytes) in before {
        assert_eq!(after.get(path), Some(bytes), "{}", path.display());
    }
    let new = after.keys().filter(|path| !before.contains_key(*path));
    let named = |path: &PathBuf| match path.starts_with("objects/pack") {
        true => format!("*.{}", path.extension().expect("an ending").display()),
        false => path.display().to_string(),
    };
    new.map(named).collect()
}

/// What a script leaves in the host's `.git`.
fn left_by(world: &World, script: &str) -> (Vec<String>, Answer) {
    let folder = world.here("work/.git");
    let before = files(&folder);
    let answer = run(world, script);
    (news(&before, &files(&folder)), answer)
}

const ARRIVED: [&str; 3] = ["*.idx", "*.pack", "refs/airlock/r/heads/main"];

#[test]
fn a_commit_arrives_and_one_command_takes_it_over() {
    let world = world();
    let (left, answer) = left_by(&world, COMMIT);
    assert_eq!(left, ARRIVED);
    let import = import(&answer);
    assert_eq!(import["refs"][0]["placed"], "refs/airlock/r/heads/main");
    let notes = answer.json()["notes"].to_string();
    assert!(
        notes.contains("`git reset refs/airlock/r/heads/main`"),
        "{notes}"
    );
    let work = world.here("work");
    assert_eq!(git(&work, &["status", "--short"]), " M a");
    git(&work, &["reset", "-q", "refs/airlock/r/heads/main"]);
    assert_eq!(git(&work, &["status", "--short"]), "");
    assert_eq!(git(&work, &["log", "--format=%s"]), "two\none");
    git(&work, &["fsck", "--strict"]);
    let left = fs::read_dir(world.state().join("git")).expect("it is there");
    assert_eq!(left.count(), 0, "our folder is gone");
}

#[test]
fn a_run_without_a_commit_leaves_nothing() {
    let world = world();
    let (left, answer) = left_by(
        &world,
        "git status --short; git log -1 --format=%s; git gc -q",
    );
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(answer.json()["stdout"], "one\n");
    assert_eq!(answer.json()["workspace"], Value::Null);
}

/// Plain files that nobody knows, and protected ones.
const UNKNOWN: [&str; 4] = ["plain", ".envrc", "sub/.envrc", ".vscode/tasks.json"];

/// A repository with all of them.
fn world_with_unknown_files() -> World {
    let world = world();
    world.write("work/sub/known", "");
    git(&world.here("work"), &["add", "sub"]);
    git(&world.here("work"), &["commit", "-q", "-m", "two"]);
    for path in UNKNOWN {
        world.write(&format!("work/{path}"), "mine\n");
    }
    world.write("work/sub/plain", "mine\n");
    world
}

#[test]
fn what_programs_do_in_any_repository_works_beside_protected_files() {
    let script = "set -e
        for f in *; do echo \"$f\"; done
        git init -q; echo more >>a; echo new >new
        git stash -u -q; cat a; [ ! -e new ]; [ ! -e sub/plain ]
        git stash pop -q; cat a new sub/plain
        git worktree add -q --detach tree; cat tree/a; git worktree remove tree
        git init -q made; echo text >made/file
        git clean -fdq; [ ! -e new ]; [ ! -e sub/plain ]; cat made/file";
    for kind in ["live", "staged"] {
        let world = world_with_unknown_files();
        let workspace = format!("work:{kind}");
        let words = ["run", "--workspace", &workspace, "--", "sh", "-c", script];
        let answer = world.run(&words);
        assert_eq!(answer.status, Some(0), "{kind}: {answer:?}");
        assert_eq!(
            answer.stdout, "a\nplain\nsub\na\na\nmore\nnew\nmine\na\ntext\n",
            "{kind}: {answer:?}"
        );
        // Of what was protected nothing is gone, and of the rest only what the program removed.
        let left = UNKNOWN.map(|path| world.here("work").join(path).exists());
        assert_eq!(left, [false, true, true, true], "{kind}");
        assert!(!world.here("work/sub/plain").exists(), "{kind}");
    }
}

#[test]
fn protected_files_that_git_is_to_remove_although_it_takes_no_notice_of_them_stay() {
    let world = world_with_unknown_files();
    let script = "git clean -fdxq; echo $?; ls -A .envrc sub .vscode";
    let answer = run(&world, script);
    assert_eq!(
        answer.json()["stdout"],
        "1\n.envrc\n\n.vscode:\ntasks.json\n\nsub:\n.envrc\nknown\n",
        "{}",
        answer.stdout
    );
    // Outside nothing of ours keeps git from seeing them.
    let known = git(&world.here("work"), &["status", "--short"]);
    assert_eq!(known, "?? .envrc\n?? .vscode/\n?? sub/.envrc");
}

#[test]
fn new_branches_and_tags_arrive_and_nothing_is_deleted() {
    let world = world();
    git(&world.here("work"), &["branch", "old"]);
    let script = format!(
        "{COMMIT}; git branch -q -D old; git checkout -q -b feat/x; git tag -a -m t v1; git stash -q"
    );
    let (left, answer) = left_by(&world, &script);
    assert_eq!(
        left,
        [
            "*.idx",
            "*.pack",
            "refs/airlock/r/heads/feat/x",
            "refs/airlock/r/heads/main",
            "refs/airlock/r/tags/v1"
        ]
    );
    let notes = answer.json()["notes"].to_string();
    assert!(
        notes.contains("`git branch feat/x refs/airlock/r/heads/feat/x`"),
        "{notes}"
    );
}

#[test]
fn what_git_obeys_ends_with_the_run() {
    let world = world();
    // Attacks 2 and 12 of the review, hooks and configuration.
    let script = format!(
        "{COMMIT}; git config core.fsmonitor ./evil; echo evil > .git/hooks/pre-commit; \
         mkdir -p .git/rebase-merge .git/logs; echo 'exec evil' > .git/rebase-merge/git-rebase-todo; \
         ln -sf ../../home/.bashrc .git/COMMIT_EDITMSG; echo evil > .git/SQUASH_MSG; \
         rm -f .git/logs/HEAD; ln -s ../../../home/.zshrc .git/logs/HEAD; echo /etc > .git/objects/info/alternates; \
         test -L .git/COMMIT_EDITMSG && test -f .git/hooks/pre-commit && git config core.fsmonitor"
    );
    let (left, answer) = left_by(&world, &script);
    assert_eq!(left, ARRIVED);
    // The control: inside, all of it was there.
    assert_eq!(answer.json()["stdout"], "./evil\n");
}

/// Attack 1 of the review: the gitlink is not in the host's index, and a commit that has one says so.
#[test]
fn a_gitlink_does_not_reach_the_index_and_is_named() {
    let world = world();
    let script = format!(
        "mkdir -p vendor/lib; cd vendor/lib; git init -q .; git -c user.name=n -c user.email=a@b commit -q --allow-empty -m x; \
         git config core.fsmonitor 'echo RAN >> /workspace/RAN; false'; cd ../..; git add vendor/lib 2>/dev/null; {COMMIT}; \
         git status >/dev/null; cat RAN; rm RAN"
    );
    let (left, answer) = left_by(&world, &script);
    assert_eq!(left, ARRIVED);
    let shown = answer.json();
    // The control: inside, git obeyed it.
    assert!(
        shown["stdout"].as_str().expect("a text").contains("RAN"),
        "{shown}"
    );
    assert_eq!(
        import(&answer)["touches"],
        serde_json::json!(["vendor/lib"])
    );
    assert!(!shown["notes"].to_string().contains("git reset"), "{shown}");
    // The host's git, in a box of its own whose workspace is the folder above.
    let status = world.run(&[
        "run", "--workspace", ".", "--", "sh", "-c",
        "git config --global safe.directory '*'; cd work; git status --short; cat RAN 2>/dev/null; true",
    ]);
    // The repository below was taken out, and an empty folder is nothing to git.
    assert_eq!(status.stdout, " M a\n", "{}", status.stderr);
}

#[test]
fn a_protected_name_in_a_commit_is_named() {
    let world = world();
    let script = format!(
        "{COMMIT}; id=$(echo evil | git hash-object -w --stdin); \
         git update-index --add --cacheinfo 100644,$id,.envrc; git commit -q -m e"
    );
    let (left, answer) = left_by(&world, &script);
    assert_eq!(left, ARRIVED);
    assert_eq!(import(&answer)["touches"], serde_json::json!([".envrc"]));
}

#[test]
fn a_link_in_a_commit_is_named() {
    let world = world();
    // Taken out of the folder at the end, and back with the commit.
    let script = "ln -s .git/hooks/pre-commit out; git add out; git commit -q -m link";
    let answer = run(&world, script);
    assert_eq!(import(&answer)["touches"], serde_json::json!(["out"]));
    let shown = answer.json();
    assert!(!shown["notes"].to_string().contains("git reset"), "{shown}");
}

#[test]
fn a_merge_is_compared_with_what_it_continues() {
    let world = world();
    let work = world.here("work");
    fs::create_dir(work.join(".vscode")).expect("a folder");
    fs::write(work.join(".vscode/settings.json"), "{}").expect("a file");
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "settings"]);
    // A stash merges a commit with nothing in it but the untracked files.
    let answer = run(&world, "echo x > untracked; git stash -q -u");
    assert_eq!(
        import(&answer)["refs"][0]["name"],
        "refs/stash",
        "{answer:?}"
    );
    assert_eq!(import(&answer)["touches"], serde_json::json!([]));
    // The control: a merge that brings what none of its parents has.
    let script = "id=$(echo evil | git hash-object -w --stdin)
        other=$(git commit-tree -m other HEAD^{tree})
        git update-index --add --cacheinfo 100644,$id,.envrc
        git update-ref refs/heads/m $(git commit-tree -m m -p HEAD -p $other $(git write-tree))";
    git(&work, &["update-ref", "-d", "refs/airlock/r/stash"]);
    let answer = run(&world, script);
    let touches = import(&answer)["touches"].to_string();
    assert!(touches.contains(".envrc"), "{touches}");
}

/// Each is refused whole: nothing arrives, and our folder stays where it is.
#[test]
fn what_cannot_be_believed_does_not_arrive() {
    let bomb = "b=$(echo x | git hash-object -w --stdin); m='100644 blob'; \
        for n in 1 2 3 4 5 6 7; do b=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf \"$m $b\\t$i\\n\"; done | git mktree); \
        m='040000 tree'; done; git update-ref refs/heads/bomb $(git commit-tree -m b $b)";
    let dot_git = "b=$(git rev-parse HEAD:a); t=$(printf \"100644 blob $b\\t.GIT\\n\" | git mktree); \
        git update-ref refs/heads/bad $(git commit-tree -m b $t)";
    let missing = "f=.git/objects/$(git rev-parse HEAD^{tree} | sed 's,^..,&/,'); rm -f $f";
    for (what, why) in [
        ("rm .git/HEAD; mkfifo .git/HEAD", "HEAD is no file"),
        (
            "rm .git/packed-refs; ln -s /etc/passwd .git/packed-refs",
            "packed-refs is a link",
        ),
        (missing, "export"),
        (bomb, "paths"),
        (dot_git, "verify"),
    ] {
        let world = world();
        let (left, answer) = left_by(&world, &format!("{COMMIT}; {what}"));
        assert_eq!(left, Vec::<String>::new(), "{what}");
        let told = import(&answer)["not_brought"][0]["why"].to_string();
        assert!(told.contains(why), "{what}: {told}");
        assert!(world.state().join("git/r/kept").exists(), "{what}");
    }
}

/// In a mount namespace of its own, in which no program of `/usr` is called `git`.
fn command_without_git(world: &World, words: &[&str]) -> Command {
    let without = world.here("without");
    for bin in ["bin", "local/bin"] {
        let folder = without.join(bin);
        fs::create_dir_all(&folder).expect("a folder");
        let whiteout = rustix::fs::FileType::CharacterDevice;
        let mode = rustix::fs::Mode::empty();
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("git"), whiteout, mode, 0)
            .expect("a whiteout");
    }
    let script = "mount -t overlay -o lowerdir=\"$0\":/usr overlay /usr && exec \"$@\"";
    let plain = world.command(words);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(&without)
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(world.here(""))
        .env_clear()
        .envs(world.variables());
    command
}

#[test]
fn without_git_on_the_host_nothing_arrives_and_what_is_new_is_kept() {
    let world = world();
    let clone = world.here("clone");
    git(&world.here(""), &["clone", "-q", "work", "clone"]);
    for (key, value) in [("user.name", "n"), ("user.email", "a@b")] {
        git(&clone, &["config", key, value]);
    }
    git(&clone, &["commit", "-q", "--allow-empty", "-m", "two"]);
    let two = git(&clone, &["rev-parse", "HEAD"]);
    let object = format!("{}/{}", &two[..2], &two[2..]);
    fs::copy(
        clone.join(".git/objects").join(&object),
        world.here("work/new"),
    )
    .expect("an object");
    let script = format!(
        "command -v git; mkdir -p .git/objects/{} && cp new .git/objects/{object} && echo {two} >.git/refs/heads/main",
        &two[..2]
    );
    let words = [
        "run",
        "--run-id",
        "r",
        "--workspace",
        "work:live",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let before = files(&world.here("work/.git"));
    let without = command_without_git(&world, &words).output();
    let without = world.answer(&without.expect("airlock starts"));
    assert_eq!(
        (without.status, without.stdout.as_str()),
        (Some(0), ""),
        "{}",
        without.stderr
    );
    assert!(
        without
            .stderr
            .contains("there is no git in the /usr of this machine"),
        "{}",
        without.stderr
    );
    assert_eq!(files(&world.here("work/.git")), before);
    assert!(world.state().join("git/r/kept").exists());
    // The control: where git is, the same commit arrives.
    let words = words.map(|word| if word == "r" { "with" } else { word });
    let with = world.run(&words);
    assert_eq!(with.status, Some(0), "{}", with.stderr);
    let arrived = git(
        &world.here("work"),
        &["rev-parse", "refs/airlock/with/heads/main"],
    );
    assert_eq!(arrived, two);
}

#[test]
fn names_that_mean_something_else_and_replacements_stay_behind() {
    let world = world();
    let script = format!(
        "{COMMIT}; git update-ref refs/heads/-x HEAD; git update-ref 'refs/heads/a;b' HEAD; git replace HEAD HEAD~1; \
         git update-ref refs/heads/$(git rev-parse HEAD) HEAD"
    );
    let (left, answer) = left_by(&world, &script);
    assert_eq!(left, ARRIVED);
    assert_eq!(
        import(&answer)["not_brought"].as_array().map(Vec::len),
        Some(4)
    );
    assert_eq!(
        git(
            &world.here("work"),
            &["log", "--format=%s", "refs/airlock/r/heads/main"]
        ),
        "two\none"
    );
}

#[test]
fn a_submodule_brings_its_own_commits() {
    let world = world();
    repository(&world.here("from"));
    let (work, from) = (world.here("work"), world.here("from").display().to_string());
    git(&work, &["submodule", "--quiet", "add", &from, "sub"]);
    git(&work, &["commit", "-q", "-m", "sub"]);
    run(
        &world,
        "cd sub; echo x >> a; git -c user.name=n -c user.email=a@b commit -q -a -m in; cd ..; git commit -q -a -m up",
    );
    git(
        &work.join("sub"),
        &["reset", "-q", "refs/airlock/r/heads/main"],
    );
    git(&work, &["reset", "-q", "refs/airlock/r/heads/main"]);
    assert_eq!(git(&work, &["status", "--short"]), "");
}

#[test]
fn a_linked_worktree_is_a_workspace() {
    let world = world();
    repository(&world.here("main"));
    fs::remove_dir_all(world.here("work")).expect("it is ours");
    git(
        &world.here("main"),
        &["worktree", "add", "-q", "-b", "other", "../work"],
    );
    let work = world.here("work");
    run(&world, COMMIT);
    git(&work, &["reset", "-q", "refs/airlock/r/heads/other"]);
    assert_eq!(git(&work, &["status", "--short", "--branch"]), "## other");
}

#[test]
fn what_is_not_handled_is_read_only() {
    let world = world();
    git(
        &world.here("work"),
        &["config", "remote.origin.promisor", "true"],
    );
    let (left, answer) = left_by(
        &world,
        "git log -1 --format=%s; echo x > .git/x && echo written; true",
    );
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(answer.json()["stdout"], "one\n");
    assert!(answer.json()["notes"].to_string().contains("partial clone"));
}
