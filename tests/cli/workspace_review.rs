//! What a program changed, looked at before it is taken over: as a list, as a patch, file by file. As whoever runs this and as
//! an ordinary user, in copied layers and in those that lie over the folder.

use airlock_cli_tests::{Answer, World, airlock, login::Login};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Who starts Airlock, and whether the layer is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    is_user: bool,
    is_copy: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        is_user: false,
        is_copy: true,
    },
    Kind {
        is_user: false,
        is_copy: false,
    },
    Kind {
        is_user: true,
        is_copy: true,
    },
    Kind {
        is_user: true,
        is_copy: false,
    },
];

/// Of the ordinary user.
fn number(option: &str) -> String {
    let told = Command::new("id").args([option, &daemons::user()]).output();
    let text = String::from_utf8(told.expect("id starts").stdout).expect("a number");
    text.trim().to_owned()
}

/// A folder `work` in a world of its own.
struct Ground {
    world: World,
    kind: Kind,
}

impl Ground {
    fn new(kind: Kind, fill: impl FnOnce(&World)) -> Ground {
        let world = World::new();
        fs::create_dir(world.state()).expect("a state folder");
        fs::create_dir(world.here("work")).expect("a folder");
        let names = if kind.is_copy { 5000 } else { 1 };
        world.write(
            "config.toml",
            &format!("[workspace]\ncopy_names = {names}\n"),
        );
        // Beside what a test puts there: an overlay needs more names than are copied.
        world
            .write("work/kept", "kept\n")
            .write("work/more", "more\n");
        fill(&world);
        let ground = Ground { world, kind };
        if kind.is_user {
            for folder in ["work", "../state"] {
                let given = Command::new("chown")
                    .args(["-hR", &format!("{}:", daemons::user())])
                    .arg(ground.world.here(folder))
                    .status();
                assert!(given.expect("chown starts").success());
            }
        }
        ground
    }

    fn of_caller(fill: impl FnOnce(&World)) -> Ground {
        Ground::new(KINDS[0], fill)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut plain = self.world.command(words);
        plain.env("AIRLOCK_CONFIG", self.world.here("config.toml"));
        if !self.kind.is_user {
            return plain;
        }
        let [user, group] = ["-u", "-g"].map(number);
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &group, "--clear-groups"]);
        command.arg(plain.get_program()).args(plain.get_args());
        command.env_clear().stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.current_dir(self.world.here(""));
        command
    }

    fn airlock(&self, words: &[&str]) -> Answer {
        self.world
            .answer(&self.command(words).output().expect("airlock starts"))
    }

    /// Standard output as it is.
    fn bytes(&self, words: &[&str]) -> Vec<u8> {
        let output = self.command(words).output().expect("airlock starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        output.stdout
    }

    /// Runs a shell script on the folder; its changes are kept as the run `try`.
    fn keep(&self, script: &str) {
        self.keep_as("try", script);
    }

    fn keep_as(&self, id: &str, script: &str) {
        let words = [
            "run",
            "--workspace",
            "work:staged",
            "--copy-on-write",
            "--run-id",
            id,
            "--json",
            "--",
            "sh",
            "-c",
            script,
        ];
        let answer = self.airlock(&words);
        assert_eq!(answer.status, Some(0), "{}", answer.stderr);
        let layer = answer.json()["workspace"]["layer"].clone();
        let is_overlay = layer == "overlay";
        assert_eq!(is_overlay, !self.kind.is_copy, "{layer}: {}", answer.stderr);
    }

    fn work(&self, path: &str) -> PathBuf {
        self.world.here("work").join(path)
    }

    /// A copy of the folder as it is.
    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.world.here(name);
        let copied = Command::new("cp")
            .arg("-a")
            .args([&self.work(""), &copy])
            .status();
        assert!(copied.expect("cp starts").success());
        copy
    }
}

/// Everything in a folder: what it is, whether it can be executed, and what it holds.
fn contents(folder: &Path) -> BTreeMap<PathBuf, (char, bool, Vec<u8>)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(above) = left.pop() {
        for entry in fs::read_dir(&above).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            let facts = fs::symlink_metadata(&path).expect("it was listed");
            let name = path.strip_prefix(folder).expect("below").to_owned();
            let runs = facts.permissions().mode() & 0o100 != 0;
            let what = if facts.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                ('l', true, target.as_os_str().as_bytes().to_vec())
            } else if facts.is_dir() {
                left.push(path);
                ('d', true, Vec::new())
            } else {
                ('f', runs, fs::read(&path).expect("it can be read"))
            };
            found.insert(name, what);
        }
    }
    found
}

/// Feeds a command in a folder.
#[track_caller]
fn feed(folder: &Path, words: &[&str], input: &[u8]) -> (bool, String) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder);
    // Not the repository that these tests lie in.
    command.env(
        "GIT_CEILING_DIRECTORIES",
        folder.parent().expect("a folder"),
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may refuse before it has read everything.
    _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

const APPLY: [&[&str]; 2] = [&["patch", "-p1"], &["git", "apply", "--whitespace=nowarn"]];

fn fill_with_texts(world: &World) {
    let lines: String = (1..=30).map(|number| format!("line {number}\n")).collect();
    world
        .write("work/long", &lines)
        .write("work/open", "first\nlast")
        .write("work/gone/below", "x\ny\n")
        .write("work/returns", "one\rtwo\r\nthree\n")
        .write("work/tool", "#!/bin/sh\n")
        .write("work/name with space", "a\n")
        .write("work/quo\"te\\\t\u{e4}", "b\n")
        .write("work/becomes", "a file\n")
        .write("work/moved/below/deep", "deep\n")
        .write("work/moved/top", "top\n");
    symlink("kept", world.here("work/link")).expect("a link");
    symlink("kept", world.here("work/turned")).expect("a link");
}

const TEXTS: &str = r#"set -e
sed -i 's/line 2$/second/; s/line 28/later/; /line 15/d' long
printf 'first\nlast\nmore' >open
rm -r gone
printf 'one\rTWO\r\nthree\n' >returns
chmod 755 tool
echo c >>'name with space'
printf 'd\n' >"$(printf 'quo"te\\\t\303\244')"
mkdir -p new/deep; echo 1 >new/deep/file; : >new/empty; printf '#!/bin/sh\n' >new/run; chmod 755 new/run
printf -- '-- a\n++ b\n@@ -1 +1 @@\ndiff --git a/kept b/kept\n' >new/like-a-patch
ln -sfn more turned; ln -s kept new/link
rm becomes; ln -s kept becomes
mv moved there; echo more >>there/top"#;

#[test]
fn git_and_patch_make_of_the_folder_what_a_commit_does() {
    for kind in KINDS {
        let ground = Ground::new(kind, fill_with_texts);
        ground.keep(TEXTS);
        let patch = ground.bytes(&["workspace", "diff", "-p", "try"]);
        let copies = APPLY.map(|words| (words, ground.copy(words[0])));
        let committed = ground.airlock(&["workspace", "commit", "try"]);
        assert_eq!(committed.status, Some(0), "{kind:?}: {}", committed.stderr);
        let wanted = contents(&ground.work(""));
        assert!(wanted.contains_key(Path::new("new/deep/file")), "{kind:?}");
        for (words, copy) in copies {
            let before = contents(&copy);
            let (is_done, said) = feed(&copy, words, &patch);
            let shown = String::from_utf8_lossy(&patch);
            assert!(is_done, "{kind:?} {words:?}: {said}\n{shown}");
            let now = contents(&copy);
            assert_ne!(before, now, "the control");
            assert_eq!(now, wanted, "{kind:?} {words:?}\n{shown}");
        }
    }
}

#[test]
fn what_a_commit_would_not_take_no_tool_takes_from_the_patch() {
    let ground = Ground::of_caller(|world| {
        world.write("work/both", "before\n");
    });
    ground.keep(
        "echo evil >.envrc; mkdir .vscode; echo x >.vscode/tasks.json; ln -s /etc out; mkfifo pipe; \
         echo theirs >both; echo good >fine; echo own >.env",
    );
    fs::write(ground.work("both"), "yours\n").expect("the folder changes meanwhile");
    fs::write(ground.work(".env"), "TOKEN=unseen\n").expect("the folder changes meanwhile");
    let answer = ground.airlock(&["workspace", "diff", "--patch", "try"]);
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    for named in [".env", ".envrc", "out", "both"] {
        let note = format!("airlock: note: after `# ` in the patch: `{named}`: ");
        assert!(answer.stderr.contains(&note), "{}", answer.stderr);
    }
    assert!(answer.stdout.contains("\n# +evil\n"), "{}", answer.stdout);
    assert!(
        answer.stdout.contains("# -yours\n# +theirs\n"),
        "against the folder as it is now: {}",
        answer.stdout
    );
    assert!(answer.stdout.contains("\n+good\n"), "{}", answer.stdout);
    assert!(answer.stdout.contains("\n# +own\n") && !answer.stdout.contains("unseen"));
    for words in APPLY {
        let copy = ground.copy(words[0]);
        let mut wanted = contents(&copy);
        wanted.insert("fine".into(), ('f', false, b"good\n".to_vec()));
        let (is_done, said) = feed(&copy, words, answer.stdout.as_bytes());
        assert!(is_done, "{words:?}: {said}");
        assert_eq!(contents(&copy), wanted, "{words:?}");
    }
    let named = ["workspace", "commit", "try", "--only", ".envrc", "--force"];
    let taken = ground.airlock(&named);
    let what = (taken.status, taken.stdout.as_str());
    assert_eq!(what, (Some(0), "+ .envrc\n"), "{}", taken.stderr);
    assert!(ground.work(".envrc").exists() && !ground.work("fine").exists());
}

#[test]
fn what_no_patch_can_hold_is_said_in_it() {
    let ground = Ground::of_caller(|world| {
        world.write("work/large", "small\n");
    });
    ground.keep(
        "yes | head -c 2000000 >large; printf 'a\\0b' >binary; chmod 600 kept; mkdir empty; echo x >text",
    );
    let answer = ground.airlock(&["workspace", "diff", "-p", "try"]);
    assert_eq!(answer.status, Some(1), "it is not whole");
    let note = "airlock: note: not in the patch: `large`: it is larger than 1 MiB\n";
    assert!(answer.stderr.contains(note), "{}", answer.stderr);
    for line in [
        "diff --git a/large b/large\nFiles a/large and b/large differ: it is larger than 1 MiB\n",
        "Binary files /dev/null and b/binary differ\n",
        "# kept: permissions 644 -> 600\n",
        "# empty: a new folder\n",
        "+++ b/text\n@@ -0,0 +1 @@\n+x\n",
    ] {
        assert!(answer.stdout.contains(line), "{line}: {}", answer.stdout);
    }
    let copy = ground.copy("copy");
    let before = contents(&copy);
    let (is_done, _) = feed(&copy, APPLY[1], answer.stdout.as_bytes());
    assert!(!is_done, "git takes nothing of a patch that is not whole");
    assert_eq!(contents(&copy), before);
    let only = ["workspace", "diff", "-p", "--only", "text"];
    let only = ground.airlock(&only);
    assert_eq!((only.status, only.stdout.lines().count()), (Some(0), 6));
    let json = ground.airlock(&["workspace", "diff", "-p", "--json", "try"]);
    let json = json.json();
    assert_eq!(json["patch"]["omitted_total"], 1, "{json}");
    assert!(json["patch"]["text"].is_string() && json["changes"].is_array());
}

/// How often a racing program is looked at.
const LOOKS: usize = 60;

#[test]
fn a_program_that_swaps_folders_for_links_shows_nothing_of_the_host() {
    for kind in [KINDS[0], KINDS[1]] {
        let ground = Ground::new(kind, |_| {});
        let swap = "echo mine >steady; (while :; do mkdir d; echo mine >d/passwd; sleep 0.005; rm -r d; ln -s /etc d; \
            sleep 0.001; rm d; ln -s /etc/passwd f; rm f; echo mine >f; rm f; done) 2>/dev/null &";
        let begun = ground.begin(&["--copy-on-write"], swap);
        let mut seen = 0;
        for look in 0..LOOKS {
            let words = match look % 3 {
                0 => &["workspace", "show", "try", "d/passwd"][..],
                1 => &["workspace", "show", "try", "f"],
                _ => &["workspace", "diff", "-p", "try"],
            };
            let answer = ground.airlock(words);
            assert!(
                !answer.stdout.contains("root:"),
                "{kind:?}: {}",
                answer.stdout
            );
            seen += usize::from(answer.stdout.contains("mine"));
        }
        assert!(seen > 0, "the control: what it wrote is shown");
        begun.end();
    }
}

/// A run that waits for a word.
struct Begun(Child);

impl Ground {
    fn begin(&self, options: &[&str], script: &str) -> Begun {
        let script = format!("{script}\necho ready\nread go");
        let mut words = vec!["run", "--workspace", "work:staged", "--run-id", "try"];
        words.extend(options);
        words.extend(["--stdin", "--", "sh", "-c", &script]);
        let mut command = self.command(&words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("airlock starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe"))
            .read_line(&mut line)
            .expect("it can be read");
        assert_eq!(line, "ready\n");
        Begun(child)
    }
}

impl Begun {
    fn end(mut self) {
        let mut input = self.0.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("it reads");
        drop(input);
        assert!(self.0.wait().expect("it ends").success());
    }
}

#[test]
fn changes_are_seen_while_the_program_runs() {
    for kind in KINDS {
        for options in [&["--copy-on-write"][..], &[]] {
            let ground = Ground::new(kind, |world| {
                world.write("work/gone", "x\n");
            });
            let begun = ground.begin(
                options,
                "echo two >>kept; rm gone; mkdir new; echo n >new/file",
            );
            let diff = ground.airlock(&["workspace", "diff"]);
            let wanted = "- gone\n~ kept\n+ new/\n+ new/file\n";
            assert_eq!(
                (diff.status, diff.stdout.as_str()),
                (Some(0), wanted),
                "{kind:?}"
            );
            assert!(diff.stderr.contains("the newest workspace: `try`"));
            let patch = ground.airlock(&["workspace", "diff", "-p", "try"]);
            assert!(
                patch.stdout.contains(" kept\n+two\n"),
                "{kind:?}: {}",
                patch.stdout
            );
            let shown = ground.airlock(&["workspace", "show", "try", "kept"]);
            assert_eq!(shown.stdout, "kept\ntwo\n", "{kind:?}: {}", shown.stderr);
            let untouched = fs::read_to_string(ground.work("kept")).expect("it is there");
            assert_eq!(untouched, "kept\n", "{kind:?}: nothing reaches the folder");
            let dropped = ground.airlock(&["workspace", "discard", "try"]);
            assert_eq!(
                dropped.status,
                Some(125),
                "it is in use: {}",
                dropped.stdout
            );
            begun.end();
            let left = ground.airlock(&["workspace", "diff", "try"]);
            let is_kept = !options.is_empty();
            assert_eq!(left.status == Some(0), is_kept, "{kind:?}: {}", left.stderr);
            assert_eq!(ground.work("gone").exists(), is_kept, "{kind:?}");
        }
    }
}

#[test]
fn a_file_is_shown_as_the_program_has_it() {
    for kind in KINDS {
        let ground = Ground::new(kind, |world| {
            world
                .write("work/gone", "x")
                .write("work/.env", "TOKEN=1")
                .write("secret", "not below the workspace");
        });
        ground.keep("printf 'a\\0\\033[2J\\377' >bytes; rm gone; ln -s ../secret link; mkfifo pipe; mkdir folder");
        let show = |path: &str| ground.airlock(&["workspace", "show", "try", path]);
        let bytes = ground.bytes(&["workspace", "show", "./bytes"]);
        assert_eq!(bytes, b"a\0\x1b[2J\xff", "{kind:?}");
        assert_eq!(show("kept").stdout, "kept\n", "what it left as it was");
        assert_eq!(show("link").stdout, "../secret", "where it points");
        for path in [
            "gone",
            ".env",
            "nowhere",
            "folder",
            "pipe",
            "link/x",
            "../secret",
            "/etc/passwd",
            ".",
        ] {
            let refused = show(path);
            let what = (refused.status, refused.stdout.as_str());
            assert_eq!(what, (Some(125), ""), "{kind:?} {path}: {}", refused.stderr);
        }
    }
}

#[test]
fn what_lies_over_the_folder_is_not_taken_over_under_a_program_that_renamed_folders() {
    let ground = Ground::new(KINDS[1], |world| {
        world.write("work/moved/below", "x\n");
    });
    let begun = ground.begin(&["--copy-on-write"], "mv moved there; echo 1 >one");
    let patch = ground.airlock(&["workspace", "diff", "-p", "try"]);
    assert!(
        patch
            .stdout
            .contains("+++ b/there/below\n@@ -0,0 +1 @@\n+x\n"),
        "{}",
        patch.stdout
    );
    let refused = ground.airlock(&["workspace", "commit", "try", "--only", "one"]);
    assert_eq!(refused.status, Some(125));
    let why = "the program has renamed a folder, and still works there";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    assert!(!ground.work("one").exists());
    begun.end();
    let taken = ground.airlock(&["workspace", "commit", "try"]);
    assert_eq!(taken.status, Some(0), "{}", taken.stderr);
    assert!(ground.work("there/below").exists() && !ground.work("moved").exists());
}

#[test]
fn the_newest_is_meant_where_none_is_named_and_never_dropped_unasked() {
    let ground = Ground::of_caller(|_| {});
    let nothing = ground.airlock(&["workspace", "diff"]);
    assert_eq!(nothing.status, Some(125));
    assert!(
        nothing
            .stderr
            .contains("there is no workspace with kept changes")
    );
    ground.keep_as("older", "echo 1 >older");
    ground.keep_as("newer", "echo 2 >newer");
    let diff = ground.airlock(&["workspace", "diff"]);
    assert_eq!(diff.stdout, "+ newer\n");
    let note = "airlock: note: the newest workspace: `newer`, of `[WORLD]/here/work`\n";
    assert_eq!(diff.stderr, note);
    let refused = ground.airlock(&["workspace", "discard"]);
    assert_eq!(refused.status, Some(125));
    assert!(refused.stderr.contains("add --yes"), "{}", refused.stderr);
    let refused = ground.airlock(&["workspace", "commit", "--interactive"]);
    assert_eq!(refused.status, Some(125));
    assert!(refused.stderr.contains("needs a terminal"));
    assert_eq!(
        ground
            .airlock(&["workspace", "list"])
            .stdout
            .lines()
            .count(),
        2
    );
    let dropped = ground.airlock(&["workspace", "discard", "--yes"]);
    assert_eq!((dropped.status, dropped.stderr.as_str()), (Some(0), note));
    let taken = ground.airlock(&["workspace", "commit"]);
    assert_eq!(
        (taken.status, taken.stdout.as_str()),
        (Some(0), "+ older\n")
    );
    assert!(ground.work("older").exists() && !ground.work("newer").exists());
}

#[test]
fn only_what_was_asked_for_is_taken_over() {
    for kind in KINDS {
        let ground = Ground::new(kind, |_| {});
        ground.keep(
            "mkdir -p src/deep; echo 1 >src/a; echo 2 >src/deep/b; echo 3 >other; echo 4 >srcs",
        );
        let only = [
            "workspace",
            "commit",
            "try",
            "--only",
            "./src/",
            "--only",
            "nowhere",
        ];
        let refused = ground.airlock(&only);
        assert_eq!(refused.status, Some(125), "{kind:?}");
        assert!(
            refused
                .stderr
                .contains("`nowhere`: the program changed nothing there")
        );
        assert!(!ground.work("src").exists());
        let taken = ground.airlock(&only[..5]);
        let wanted = "+ src/\n+ src/a\n+ src/deep/\n+ src/deep/b\n";
        assert_eq!(
            (taken.status, taken.stdout.as_str()),
            (Some(0), wanted),
            "{kind:?}"
        );
        let left = ground.airlock(&["workspace", "diff", "try"]);
        assert_eq!(
            left.stdout, "+ other\n+ srcs\n",
            "{kind:?}: the rest is kept"
        );
    }
}

#[test]
fn commits_of_the_program_are_listed_with_their_subjects() {
    for kind in [KINDS[0], KINDS[3]] {
        let ground = Ground::new(kind, |world| {
            let script = "cd work && git init -q -b main && git config user.name a && \
                git config user.email a@b && git add . && git commit -qm start";
            assert!(world.shell(script).status.success());
        });
        ground.keep("echo 1 >one; git add one; git commit -qm 'first of it'; echo 2 >>one; git commit -qam 'second of it'");
        let diff = ground.airlock(&["workspace", "diff", "try"]);
        let lines: Vec<_> = diff.stdout.lines().collect();
        assert_eq!(lines[0], "+ one", "{kind:?}: {}", diff.stdout);
        let subjects = |lines: &[&str], sign: &str| {
            let subjects = lines.iter().filter_map(|line| line.strip_prefix(sign));
            let subjects = subjects.filter_map(|line| line.split_once(' '));
            subjects
                .map(|(_, subject)| subject.to_owned())
                .collect::<Vec<_>>()
        };
        let wanted = ["second of it", "first of it"];
        assert_eq!(subjects(&lines, "* "), wanted, "{kind:?}: {}", diff.stderr);
        let patch = ground.airlock(&["workspace", "diff", "-p", "try"]).stdout;
        let lines: Vec<_> = patch.lines().collect();
        assert_eq!(subjects(&lines, "# * "), wanted, "{kind:?}");
        let json = ground
            .airlock(&["workspace", "diff", "--json", "try"])
            .json();
        assert_eq!(json["commits"].as_array().map(Vec::len), Some(2), "{json}");
    }
}

impl Ground {
    fn sit(&self, words: &[&str], variables: &[(&str, &str)]) -> Login {
        let airlock = airlock().to_str().expect("its path is text");
        Login::start([&[airlock], words].concat(), |command| {
            command
                .current_dir(self.world.here(""))
                .envs(self.world.variables())
                .env("AIRLOCK_CONFIG", self.world.here("config.toml"))
                .envs(variables.iter().copied());
        })
    }

    /// All that is shown on a terminal.
    fn shown(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let mut login = self.sit(words, variables);
        assert_eq!(login.end(), Some(0), "{words:?}");
        login.rest()
    }
}

const HOSTILE: &str =
    "printf 'a\\033[2J\\033]0;title\\a\\n' >new; printf '\\342\\200\\256 rtl\\n' >>kept";

#[test]
fn a_terminal_gets_colours_of_ours_and_no_sequence_of_the_program() {
    let ground = Ground::of_caller(|_| {});
    ground.keep(HOSTILE);
    let none = ("AIRLOCK_PAGER", "");
    let plain = ("NO_COLOR", "1");
    let diff = ["workspace", "diff", "-p", "try"];
    let coloured = ground.shown(&diff, &[none]);
    assert!(
        coloured.contains("\x1b[32m+a\\u{1b}[2J\\u{1b}]0;title\\u{7}\x1b[0m"),
        "{coloured:?}"
    );
    assert!(coloured.contains("\\u{202e} rtl"), "{coloured:?}");
    let bare = ground.shown(&diff, &[none, plain]);
    assert!(
        bare.contains("\r\n+a\\u{1b}[2J") && !bare.contains('\x1b'),
        "{bare:?}"
    );
    let file = ground.shown(&["workspace", "show", "try", "new"], &[]);
    assert_eq!(file, "a\\u{1b}[2J\\u{1b}]0;title\\u{7}\r\n");
    let raw = ground.bytes(&diff);
    assert!(
        raw.windows(5).any(|part| part == b"a\x1b[2J"),
        "the control: raw elsewhere"
    );
}

#[test]
fn a_pager_shows_the_patch_and_knows_no_key() {
    let ground = Ground::of_caller(|_| {});
    ground.keep("echo x >new");
    let diff = ["workspace", "diff", "-p", "try"];
    let key = ("AIRLOCK_MASTER_KEY", "unseen");
    let pager = ("AIRLOCK_PAGER", "sed -n 's/^/paged /p'; env >pager-env");
    let paged = ground.shown(&diff, &[pager, ("PAGER", "false"), ("NO_COLOR", "1"), key]);
    assert!(paged.contains("paged +x\r\n"), "{paged:?}");
    let known = fs::read_to_string(ground.world.here("pager-env")).expect("it was written");
    assert!(
        known.contains("PAGER=") && !known.contains("unseen"),
        "{known}"
    );
    let missing = ground.shown(&diff, &[("PAGER", "/nowhere/pager"), ("NO_COLOR", "1")]);
    assert!(missing.contains("\r\n+x\r\n"), "{missing:?}");
    let usual = ground.shown(&diff, &[("NO_COLOR", "1")]);
    assert!(usual.contains("+x"), "with less or without: {usual:?}");
}

#[test]
fn each_change_is_asked_about_and_only_what_was_said_is_taken() {
    let ground = Ground::of_caller(|world| {
        world.write("work/gone", "x\n");
    });
    ground.keep("mkdir new; echo 1 >new/a; echo 2 >new/b; rm gone; echo evil >.envrc; echo 3 >z");
    let mut login = ground.sit(
        &["workspace", "commit", "--interactive"],
        &[("NO_COLOR", "1")],
    );
    login.expect("the newest workspace: `try`");
    login.expect("not committed: + .envrc");
    login.expect("commit `gone`? [y,n,a,q,d,?] ");
    login.keys("d\n");
    login.expect("deleted file mode 100644");
    login.expect("commit `gone`? [y,n,a,q,d,?] ");
    login.keys("n\n");
    login.expect("commit `new/a`? [y,n,a,q,d,?] ");
    login.keys("?\n");
    login.expect("q - skip this and all that follow");
    login.expect("commit `new/a`? [y,n,a,q,d,?] ");
    login.keys("y\n");
    login.expect("commit `new/b`? [y,n,a,q,d,?] ");
    login.keys("q\n");
    assert_eq!(login.end(), Some(0));
    let shown = login.rest();
    assert!(shown.contains("+ new/\r\n+ new/a\r\n"), "{shown:?}");
    let wanted = ["gone", "kept", "more", "new", "new/a"].map(PathBuf::from);
    let now: Vec<_> = contents(&ground.work("")).into_keys().collect();
    assert_eq!(now, wanted);
    let mut login = ground.sit(&["workspace", "commit", "try", "-i"], &[]);
    login.expect("commit `gone`? ");
    login.keys("q\n");
    login.expect("nothing was changed");
    assert_eq!(login.end(), Some(0));
    let mut login = ground.sit(&["workspace", "commit", "try", "-i"], &[]);
    login.expect("commit `gone`? ");
    login.keys("n\n");
    login.expect("commit `new/b`? ");
    login.keys("a\n");
    assert_eq!(login.end(), Some(0));
    assert!(ground.work("z").exists() && ground.work("gone").exists());
    let mut login = ground.sit(&["workspace", "discard"], &[]);
    login.expect("discard all changes of `try`? [y,N] ");
    login.keys("\n");
    login.expect("the workspace is kept");
    assert_eq!(login.end(), Some(0));
    let mut login = ground.sit(&["workspace", "discard"], &[]);
    login.expect("discard all changes of `try`? [y,N] ");
    login.keys("y\n");
    login.expect("discarded");
    assert_eq!(login.end(), Some(0));
}
