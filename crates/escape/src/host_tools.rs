//! Group H: tools of the host, turned against their owner by what a program left in a workspace.
//!
//! ```text
//! template ── copy ──▶ host/{proj,home,canary}
//!                        │  the owner prepares `proj`       owner's sandbox (bwrap: /usr, host/ at /host)
//!                        │  the program plants something    live: `proj` mounted by Airlock
//!                        │                                  reviewed: a copy, then `workspace commit`, also `--partial`
//!                        │                                  staged: an overlay, applied when the program ends
//!                        │                                  control: bwrap with `proj` bound
//!                        ▼  the owner works in `proj`       owner's sandbox
//!                     canary/ran: written by what was planted, and only in the owner's sandbox
//! ```
//!
//! The owner's tools run in a sandbox, too: nothing of an attack runs on the machine itself.

mod git;
mod meanwhile;
mod names;

use crate::{
    Case, Control, Finding, Outcome, Peer, Trouble, case,
    world::{Ground, LONGEST_SECONDS, Report, SOMEBODY, each},
};
use engine::workspaces::{CommitOptions, LayerError, commit};
use spec::RunRequest;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

pub(crate) const CASES: [&[Case]; 3] = [git::CASES, names::CASES, meanwhile::CASES];

const CONTAINERS: &str =
    "git in the image; what stays in the folder is decided as for boxes of ours";
const POOLED: &str = "a kind of its own: nothing is made ahead for a run with a repository";

/// What a program plants, and which tool of the owner's would obey it. All are shell scripts.
struct Plant {
    /// What the owner has in his project, beside the template.
    before: &'static str,
    /// What the program does in its workspace.
    attack: &'static str,
    /// What the owner does in his project afterwards, beside what he does every day.
    after: &'static str,
    /// The programs that `before` and `after` use, beside those of every day.
    tools: &'static [&'static str],
}

const PLAIN: Plant = Plant {
    before: "",
    attack: "",
    after: "",
    tools: &[],
};

/// Direnv trusts all of the project.
macro_rules! trusted {
    ($($more:literal)?) => {
        concat!(
            "mkdir -p \"$HOME/.config/direnv\"\n",
            "echo '[whitelist]\nprefix = [ \"/host/proj\" ]' >\"$HOME/.config/direnv/direnv.toml\"\n",
            $($more)?
        )
    };
}
use trusted;

/// What every case uses. The first of some names counts.
const EVERYDAY_TOOLS: [&str; 5] = ["bwrap", "setpriv", "timeout", "bash", "git"];
const EDITORS: [&str; 4] = ["vim.tiny", "vim.basic", "vim.nox", "vim"];

/// For the program: what its plants run is seen in the owner's sandbox alone, where the folder is.
const OF_PROGRAM: &str = r#"cd /workspace || exit 1
export GIT_AUTHOR_NAME=p GIT_AUTHOR_EMAIL=p@p GIT_COMMITTER_NAME=p GIT_COMMITTER_EMAIL=p@p
plant='echo ran >>/host/canary/ran'
program() { mkdir -p "${1%/*}"; printf '#!/bin/sh\n%s\n' "$plant" >"$1"; chmod +x "$1"; }
monitor() { git config -f "$1" core.fsmonitor "$plant; false"; }
repository() { git init -q "$1" && git -C "$1" commit -q --allow-empty -m p; monitor "$1/.git/config"; }
bare() { git init -q --bare "$1"; git config -f "$1/config" core.bare false; monitor "$1/config"; }
"#;

/// For the owner.
const OF_OWNER: &str = r#"cd /host/proj || exit 1
editor() { "$EDITOR_PROGRAM" --not-a-term -T dumb -c q "$1" </dev/null >/dev/null 2>&1 || true; }
enter() { (cd "$1" && prompt); }
prompt() {
    bash --norc -c 'p=/usr/lib/git-core/git-sh-prompt
        [ -r $p ] && . $p && GIT_PS1_SHOWDIRTYSTATE=1 GIT_PS1_SHOWUNTRACKEDFILES=1 __git_ps1 >/dev/null
        git rev-parse --git-dir --is-inside-work-tree --is-bare-repository
        git status --porcelain=v2 --branch' >/dev/null 2>&1 || true
}
# Where nothing can be run, whoever would obey a file finds the text of the program in it.
finds() {
    found=0
    for name; do ! grep -qs 'of the program' "$name" || found=$((found + 1)); done
    if [ "$found" -gt 0 ] && { [ "$CONTROL" = 0 ] || [ "$found" = $# ]; }; then echo ran >>/host/canary/ran; fi
}
everyday() {
    prompt
    editor notes
    [ ! -e "$HOME/no-repository" ] || return 0
    git status --short
    git diff | cat >/dev/null
    echo more >>notes
    git add -A
    git stash -q
    git stash pop -q
    [ ! -d .git/rebase-merge ] || git rebase --continue
    git commit -qam 'a day of work'
    echo again >>notes
    git checkout -q .
    git log --oneline --show-signature -3 | cat >/dev/null
    git gc --quiet
}
"#;

/// What every project has.
const TEMPLATE: &str = r#"
mkdir -p /host/proj/src /host/home /host/canary
cd /host/proj
cat >"$HOME/.gitconfig" <<'X'
[user]
	name = Owner
	email = owner@example.org
[init]
	defaultBranch = main
[gc]
	autoDetach = false
[protocol "file"]
	allow = always
[advice]
	detachedHead = false
X
git init -q
echo one >notes
echo 'int main(void) { return 0; }' >src/main.c
printf 'all:\n\t@true\n' >Makefile
git add -A
git commit -qm first
git branch topic
echo two >>notes
git commit -qam second
echo well
"#;

const fn turned(id: &'static str, title: &'static str, run: fn(&Ground<'_>) -> Outcome) -> Case {
    case(
        id,
        title,
        run,
        Control::Given,
        Peer::Nothing("its bare bind mount is the control"),
    )
}

/// How a program gets the owner's project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Live,
    Reviewed,
    Staged,
}

impl Form {
    const ALL: [(&'static str, Form); 3] = [
        ("live", Form::Live),
        ("reviewed", Form::Reviewed),
        ("staged", Form::Staged),
    ];
}

/// All forms of a case, or its control.
fn attacked(ground: &Ground<'_>, plant: &Plant) -> Outcome {
    let tools = Tools::find(plant.tools)?;
    make_ready(ground)?;
    if ground.is_control() {
        let host = Host::prepare(ground, &tools, plant.before)?;
        host.program_on_bare_mount(plant.attack)?;
        return host.works(plant.after);
    }
    in_all_forms(ground, |form| planted(ground, &tools, plant, form))
}

fn in_all_forms(ground: &Ground<'_>, attack: impl Fn(Form) -> Outcome) -> Outcome {
    let mut outcomes = Vec::new();
    for (name, form) in Form::ALL {
        outcomes.push((name.to_owned(), attack(form)?));
    }
    each(ground, outcomes)
}

fn make_ready(ground: &Ground<'_>) -> Result<(), Trouble> {
    if ground.containers().is_some() {
        return Err(Trouble::Missing(CONTAINERS.to_owned()));
    }
    if ground.world.settings.pooled {
        return Err(Trouble::Missing(POOLED.to_owned()));
    }
    ground.use_memory();
    Ok(())
}

fn planted(ground: &Ground<'_>, tools: &Tools, plant: &Plant, form: Form) -> Outcome {
    let host = Host::prepare(ground, tools, plant.before)?;
    let report = ground.run(host.request(plant.attack, form))?.finished()?;
    host.keep_notes(&report)?;
    if form == Form::Reviewed {
        take_over(ground, &report)?;
    }
    host.works(plant.after)
}

/// What is refused as a whole, is taken over as far as that goes.
fn take_over(ground: &Ground<'_>, report: &Report) -> Result<(), Trouble> {
    let changes = report.result.as_ref().and_then(|it| it.workspace.as_ref());
    let Some(changes) = changes else {
        return Ok(());
    };
    // A program that changed nothing leaves no layer.
    let count = changes.added + changes.changed + changes.removed + changes.held_back_total;
    if count == 0 {
        return Ok(());
    }
    let whole = CommitOptions::default();
    let partial = CommitOptions {
        partial: true,
        ..whole.clone()
    };
    let taken = match commit(&ground.state(), &changes.id, whole) {
        Err(LayerError::Refused { .. }) => commit(&ground.state(), &changes.id, partial),
        taken => taken,
    };
    match taken {
        Ok(_) => Ok(()),
        Err(error) => Err(Trouble::Broken(format!(
            "the changes cannot be taken over: {error}"
        ))),
    }
}

/// Where the programs of the owner are.
struct Tools {
    editor: &'static str,
}

impl Tools {
    fn find(others: &[&'static str]) -> Result<Tools, Trouble> {
        let is_there = |name: &str| {
            let folders = ["/usr/local/bin", "/usr/bin"].into_iter().map(Path::new);
            folders.map(|it| it.join(name)).any(|it| it.is_file())
        };
        let needed = EVERYDAY_TOOLS.iter().chain(others);
        let missing = |name: &str| Trouble::Missing(format!("there is no `{name}` here"));
        if let Some(name) = needed.into_iter().find(|name| !is_there(name)) {
            return Err(missing(name));
        }
        let editor = EDITORS.into_iter().find(|name| is_there(name));
        let editor = editor.ok_or_else(|| missing("vim"))?;
        Ok(Tools { editor })
    }
}

/// The machine of an owner: his project, his home, and a folder in which plants leave their mark.
struct Host<'a> {
    ground: &'a Ground<'a>,
    tools: &'a Tools,
    folder: PathBuf,
}

impl<'a> Host<'a> {
    fn prepare(
        ground: &'a Ground<'a>,
        tools: &'a Tools,
        before: &str,
    ) -> Result<Host<'a>, Trouble> {
        let folder = ground.workspace()?;
        let host = Host {
            ground,
            tools,
            folder,
        };
        let world = ground.world;
        match world.host_template.get() {
            Some(template) => host.copy(template)?,
            None => {
                host.owner(TEMPLATE, true)?;
                let template = Host {
                    folder: ground.workspace()?,
                    ..host
                };
                template.copy(&host.folder)?;
                _ = world.host_template.set(template.folder);
            }
        }
        if !before.is_empty() {
            host.tool(before)?;
        }
        Ok(host)
    }

    fn copy(&self, template: &Path) -> Result<(), Trouble> {
        let copied = Command::new("cp")
            .arg("-a")
            .arg(template.join("."))
            .arg(&self.folder)
            .status()?;
        match copied.success() {
            true => Ok(()),
            false => Err(Trouble::Broken(
                "the owner's machine cannot be copied".to_owned(),
            )),
        }
    }

    fn project(&self) -> PathBuf {
        self.folder.join("proj")
    }

    fn request(&self, attack: &str, form: Form) -> RunRequest {
        let script = format!("{OF_PROGRAM}\n{attack}\necho done\n");
        RunRequest {
            command: ["/bin/sh", "-c", &script].map(Into::into).into(),
            workspace: Some(self.project()),
            copy_on_write: form == Form::Reviewed,
            staged: form == Form::Staged,
            ..self.ground.attack("wait", [""; 0])
        }
    }

    /// What Airlock told its user, for the owner to follow.
    fn keep_notes(&self, report: &Report) -> Result<(), Trouble> {
        let notes = report.result.as_ref().map(|it| it.notes.join("\n"));
        Ok(fs::write(
            self.folder.join("canary/notes"),
            notes.unwrap_or_default(),
        )?)
    }

    fn program_on_bare_mount(&self, attack: &str) -> Result<(), Trouble> {
        let script = format!("{OF_PROGRAM}\n{attack}\necho done\n");
        let mut command = self.sandbox(&self.project(), "/workspace", &script);
        ended_with("done", &command.stdin(Stdio::null()).output()?)
    }

    /// The owner's day, and what it came to. Without a wall his tools may fail over what was planted.
    fn works(&self, after: &str) -> Outcome {
        let strict = !self.ground.is_control();
        let everyday = match strict {
            true => "everyday",
            false => "[ -e /host/canary/ran ] || everyday",
        };
        self.owner(
            &format!("{OF_OWNER}\n{after}\n{everyday}\necho well\n"),
            strict,
        )?;
        let ran = self.folder.join("canary/ran").exists();
        Ok(Finding::when(
            ran,
            "the owner's tools ran what the program had planted",
        ))
    }

    /// Something that the owner does and that must work.
    fn tool(&self, script: &str) -> Result<(), Trouble> {
        self.owner(&format!("{OF_OWNER}\n{script}\necho well\n"), true)
    }

    fn owner(&self, script: &str, strict: bool) -> Result<(), Trouble> {
        let script = format!("CONTROL={}\n{script}", u8::from(!strict));
        let mut command = self.sandbox(&self.folder, "/host", &script);
        if strict {
            command.arg("-e");
        }
        ended_with("well", &command.stdin(Stdio::null()).output()?)
    }

    /// A shell in a sandbox that shows one folder. It has the rights of the folder's owner; options of the shell may follow.
    fn sandbox(&self, folder: &Path, place: &str, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.env_clear().env("PATH", PATH);
        command.args(["--signal=KILL", &LONGEST_SECONDS.to_string(), "bwrap"]);
        command.args(SANDBOX);
        for name in ["lib", "lib64", "bin", "sbin"] {
            let path = Path::new("/").join(name);
            match fs::read_link(&path) {
                Ok(target) => command.arg("--symlink").args([target.as_path(), &path]),
                Err(_) if path.exists() => command.arg("--ro-bind").args([&path, &path]),
                Err(_) => &mut command,
            };
        }
        command
            .arg("--bind")
            .arg(folder)
            .args([place, "--chdir", "/"]);
        let variables = [
            ("PATH", PATH),
            ("HOME", "/host/home"),
            ("LANG", "C.UTF-8"),
            ("GIT_EDITOR", "true"),
            ("EDITOR_PROGRAM", self.tools.editor),
        ];
        for (name, value) in variables {
            command.args(["--setenv", name, value]);
        }
        if self.ground.world.root {
            let (user, group) = (SOMEBODY.0.to_string(), SOMEBODY.1.to_string());
            command.args(["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--"]);
            command.args([
                "setpriv",
                "--clear-groups",
                "--reuid",
                &user,
                "--regid",
                &group,
            ]);
        }
        // The script stands behind the options, as `$0` of nothing.
        command
            .args(["--", "/bin/sh", "-c", RUN_SCRIPT])
            .arg(script);
        command
    }
}

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// `$0` is the script, `$1` an option.
const RUN_SCRIPT: &str = "exec /bin/sh $1 -c \"$0\"";
const SANDBOX: [&str; 18] = [
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--ro-bind",
    "/usr",
    "/usr",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--perms",
    "1777",
    "--tmpfs",
    "/tmp",
];

fn ended_with(word: &str, output: &Output) -> Result<(), Trouble> {
    if output.stdout.ends_with(format!("{word}\n").as_bytes()) {
        return Ok(());
    }
    let tail =
        |text: &[u8]| String::from_utf8_lossy(&text[text.len().saturating_sub(400)..]).into_owned();
    Err(Trouble::Broken(format!(
        "a script did not come to its end: {:?} {:?}",
        tail(&output.stdout),
        tail(&output.stderr)
    )))
}
