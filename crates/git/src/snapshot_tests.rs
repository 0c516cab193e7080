use super::*;
use std::process::Command;

fn git(folder: &Path, words: &[&str]) -> String {
    let told = Command::new("git")
        .args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(["-c", "protocol.file.allow=always"])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        told.status.success(),
        "git {words:?}: {}",
        text(&told.stderr)
    );
    text(&told.stdout)
}

/// A folder with a repository in `work`.
fn scratch(name: &str) -> PathBuf {
    let top = std::env::temp_dir().join(format!("airlock-snapshot-{name}-{}", std::process::id()));
    _ = fs::remove_dir_all(&top);
    let work = top.join("work");
    fs::create_dir_all(&work).unwrap();
    git(&work, &["init", "-q", "."]);
    fs::write(work.join("a"), "a").unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "one"]);
    top
}

fn us() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

fn find(work: &Path) -> Result<DotGit, GitError> {
    DotGit::find(File::open(work).unwrap().as_fd(), work, us())
}

fn folders(found: DotGit) -> GitFolders {
    match found {
        DotGit::Folder(folders) | DotGit::File(folders) => folders,
        DotGit::Absent => panic!("there is one"),
    }
}

/// Writes a snapshot, with the objects lent by a link instead of a mount, and says what git finds
/// there.
fn inside(top: &Path, folders: &GitFolders, work: &Path) -> String {
    let snapshot = Snapshot::read(folders, &Config::default(), us()).unwrap();
    let ours = top.join("ours");
    fs::create_dir(&ours).unwrap();
    snapshot
        .write(File::open(&ours).unwrap().as_fd(), None)
        .unwrap();
    for (number, objects) in snapshot.objects.iter().enumerate() {
        fs::remove_dir(ours.join(host_objects_dir(number))).unwrap();
        std::os::unix::fs::symlink(&objects.path, ours.join(host_objects_dir(number))).unwrap();
    }
    let (ours, work) = (ours.display(), work.display());
    let words = [
        format!("--git-dir={ours}"),
        format!("--work-tree={work}"),
        "status".to_owned(),
        "--porcelain=v2".to_owned(),
        "--branch".to_owned(),
    ];
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    git(top, &words)
}

#[test]
fn the_program_finds_the_same_commit_and_nothing_changed() {
    let top = scratch("same");
    let work = top.join("work");
    git(&work, &["pack-refs", "--all"]);
    git(&work, &["branch", "feat/x"]);
    git(&work, &["config", "core.fsmonitor", "./evil"]);
    git(&work, &["config", "core.hooksPath", ".husky"]);
    let told = inside(&top, &folders(find(&work).unwrap()), &work);
    let head = git(&work, &["-c", "core.fsmonitor=false", "rev-parse", "HEAD"]);
    assert_eq!(told, format!("# branch.oid {head}\n# branch.head main"));
    let config = fs::read_to_string(top.join("ours/config")).unwrap();
    assert!(
        !config.contains("evil") && !config.contains("husky"),
        "{config}"
    );
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn only_the_paths_that_are_excluded_are_left_alone() {
    let top = scratch("excluded");
    let work = top.join("work");
    let names = [
        "a b", " lead", "tail ", "st*r", "que?tion", "[set]", "back\\", "#x", "!y", "d/in",
        "folder",
    ];
    // What the names would match if they were patterns, or stood anywhere.
    for path in names.iter().chain(&["star", "d/st*r", "s", "question"]) {
        fs::create_dir_all(work.join(path).parent().unwrap()).unwrap();
        fs::write(work.join(path), "").unwrap();
    }
    fs::remove_file(work.join("folder")).unwrap();
    fs::create_dir(work.join("folder")).unwrap();
    fs::write(work.join("folder/in"), "").unwrap();
    fs::write(work.join("a"), "changed").unwrap();
    fs::write(work.join(".git/info/exclude"), "question").unwrap();
    inside(&top, &folders(find(&work).unwrap()), &work);
    let ours = File::open(top.join("ours")).unwrap();
    let paths = names.iter().chain(&["a", "line\nbreak"]).map(Path::new);
    exclude(ours.as_fd(), paths, None).unwrap();
    let told = git(
        &top,
        &[
            "--git-dir=ours",
            "--work-tree=work",
            "status",
            "--short",
            "--untracked-files=all",
        ],
    );
    assert_eq!(told, "M a\n?? d/st*r\n?? s\n?? star");
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn a_linked_worktree_leads_to_its_own_head_and_the_common_objects() {
    let top = scratch("linked");
    git(
        &top.join("work"),
        &["worktree", "add", "-q", "-b", "other", "../linked"],
    );
    let linked = top.join("linked");
    let found = find(&linked).unwrap();
    assert!(matches!(found, DotGit::File(_)));
    let told = inside(&top, &folders(found), &linked);
    assert!(told.ends_with("# branch.head other"), "{told}");
    // A file that names a repository which knows nothing of it.
    let alien = top.join("alien");
    fs::create_dir(&alien).unwrap();
    fs::copy(linked.join(".git"), alien.join(".git")).unwrap();
    assert!(matches!(find(&alien), Err(GitError::Unsupported(_))));
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn submodules_are_found_and_may_be_the_workspace_themselves() {
    let top = scratch("modules");
    git(&top, &["init", "-q", "super"]);
    let (whole, from) = (top.join("super"), top.join("work"));
    git(
        &whole,
        &[
            "submodule",
            "--quiet",
            "add",
            &from.display().to_string(),
            "lib/sub",
        ],
    );
    git(&whole, &["commit", "-q", "-m", "sub"]);
    let modules = folders(find(&whole).unwrap()).modules();
    let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["modules/lib/sub"]);
    let sub = whole.join("lib/sub");
    assert!(matches!(find(&sub).unwrap(), DotGit::File(_)));
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn what_is_not_understood_is_said() {
    let top = scratch("unsupported");
    let work = top.join("work");
    let why = |found: DotGit| {
        Snapshot::read(&folders(found), &Config::default(), us())
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(why(find(&work).unwrap()), None);
    git(&work, &["config", "remote.origin.promisor", "true"]);
    assert_eq!(why(find(&work).unwrap()).unwrap(), "it is a partial clone");
    git(&work, &["config", "--unset", "remote.origin.promisor"]);
    git(&work, &["config", "extensions.refStorage", "reftable"]);
    assert_eq!(
        why(find(&work).unwrap()).unwrap(),
        "it has the extension `refstorage`"
    );
    fs::remove_dir_all(work.join(".git")).unwrap();
    assert!(matches!(find(&work).unwrap(), DotGit::Absent));
    fs::create_dir(work.join(".git")).unwrap();
    assert!(matches!(find(&work).unwrap(), DotGit::Absent));
    fs::remove_dir_all(top).unwrap();
}

#[test]
fn a_link_in_place_of_the_index_or_of_head_is_not_read() {
    for name in ["index", "HEAD", "config", "packed-refs"] {
        let top = scratch(&format!("link-{name}"));
        let work = top.join("work");
        git(&work, &["pack-refs", "--all"]);
        fs::rename(work.join(".git").join(name), top.join("moved")).unwrap();
        std::os::unix::fs::symlink(top.join("moved"), work.join(".git").join(name)).unwrap();
        let read = Snapshot::read(&folders(find(&work).unwrap()), &Config::default(), us());
        assert!(read.is_err(), "{name}");
        fs::remove_dir_all(top).unwrap();
    }
}
