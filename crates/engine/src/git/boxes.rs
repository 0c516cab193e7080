//! The two boxes in which git reads what a program left. Both see the host's `/usr`, no network and no secret, and write
//! nowhere but to their own scratch space; what they say comes as their output, bounded like their time and memory.

use super::{Repository, Shown, mount, show, show_objects};
use crate::{Inner, driver::Driver, making::Making, record::fresh_id};
use ::git::{Head, ObjectFormat, Plan, snapshot::lent};
use spec::{Access, Maximum, Network, Policy, RunRequest, RunResult, Size, Status, Time};
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::{mpsc, watch};

/// Bytes of a pack, with the list of references before it.
const MOST_OUTPUT: u64 = 256 << 20;
/// How long either may take.
const LONGEST: Duration = Duration::from_secs(60);
const MEMORY: u64 = 1 << 30;
/// For the index that is compared with ours.
const SCRATCH: u64 = 256 << 20;

/// A git folder of the script's own: of the program's it borrows objects and references, nothing that git obeys.
const COMMON: &str = r#"
set -eu
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_COUNT=0 GIT_NO_REPLACE_OBJECTS=1 \
  GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=none GIT_GRAFT_FILE=/dev/null GIT_TERMINAL_PROMPT=0 \
  GIT_OPTIONAL_LOCKS=0 GIT_ADVICE=0 LC_ALL=C HOME=/nonexistent
command -v git >/dev/null || exit 127
in=/workspace/in g=/tmp/g
mkdir -p $g/objects/info $g/refs
echo 'ref: refs/heads/none' >$g/HEAD
if [ "$1" = sha256 ]; then version=1 more='[extensions]
objectFormat = sha256'; else version=0 more=; fi
printf '[core]\nrepositoryformatversion = %s\nbare = true\ncommitGraph = false\nmultiPackIndex = false\n[pack]\nthreads = 1\nuseBitmaps = false\nwriteReverseIndex = false\n%s\n' $version "$more" >$g/config
[ ! -s $in/shallow ] || cp $in/shallow $g/shallow
cp $in/alternates $g/objects/info/alternates
"#;

/// Prints `HEAD`, the references, an empty line, and a pack of what the host does not have.
const EXPORT: &str = r#"
src=/workspace/src/$2
[ -f "$src/HEAD" ] && [ ! -L "$src/HEAD" ] || { echo 'HEAD is no file' >&2; exit 9; }
head=$(head -c 4096 "$src/HEAD" | head -n 1)
if [ -L "$src/packed-refs" ]; then echo 'packed-refs is a link' >&2; exit 9; fi
if [ -e "$src/packed-refs" ]; then
  [ -f "$src/packed-refs" ] || { echo 'packed-refs is no file' >&2; exit 9; }
  ln -s "$src/packed-refs" $g/packed-refs
fi
rmdir $g/refs; ln -s "$src/refs" $g/refs
git --git-dir=$g for-each-ref --format='%(objectname) %(refname) %(symref)' >/tmp/refs
git --git-dir=$g for-each-ref --format='%(objectname)' refs/heads refs/tags refs/stash >/tmp/revs
case $head in
  *[!0-9a-f]*|'') ;;
  *) printf '%s\n' "$head" >>/tmp/revs ;;
esac
cat $in/known >>/tmp/revs
printf '%s\n' "$head"; cat /tmp/refs; echo
exec git --git-dir=$g pack-objects --revs --stdout -q --window=0 --depth=0 --no-reuse-delta --missing=error </tmp/revs
"#;

/// Has git judge the pack, says by its exit status whether everything new is there and connected, and prints the paths that
/// new commits change.
const VERIFY: &str = r#"
for pack in $in/objects/pack/*.pack; do
  [ -e "$pack" ] || continue
  for more in '=badFilemode=error,gitattributesSymlink=error,gitignoreSymlink=error,mailmapSymlink=error,gitmodulesParse=error,largePathname=error' ''; do
    if git --git-dir=$g index-pack --threads=1 --strict"$more" -o /tmp/own.idx "$pack" >/dev/null 2>/tmp/told; then break; fi
    # An older git does not know them all.
    if [ -z "$more" ] || ! grep -q 'message id' /tmp/told; then head -c 400 /tmp/told >&2; exit 1; fi
  done
  cmp /tmp/own.idx "${pack%.pack}.idx" >&2
  echo $in/objects >>$g/objects/info/alternates
done
git --git-dir=$g rev-list --objects --quiet --stdin <$in/revs
if git --git-dir=$g cat-file --batch-check='%(objecttype)' <$in/commits | grep -qvx commit; then
  echo 'a reference leads to no commit' >&2; exit 5
fi
exec git --git-dir=$g log --diff-merges=first-parent --root --no-renames --raw -z --no-abbrev --format= --stdin <$in/revs
"#;

/// What is done in a box.
pub(super) struct Order<'a> {
    pub(super) engine: &'a Arc<Inner>,
    pub(super) repository: &'a Repository,
    /// Our git folder, as the program left it.
    pub(super) folder: &'a Path,
    /// A folder with nothing in it.
    pub(super) empty: &'a Path,
    /// What the box is told.
    pub(super) told: PathBuf,
}

/// The files by which a box knows what the host has.
pub(super) fn told(repository: &Repository, plan: Option<&Plan>) -> Vec<(&'static str, Vec<u8>)> {
    let snapshot = &repository.snapshot;
    let head = match &snapshot.head {
        Head::Detached(id) => Some(id),
        Head::Branch(_) => None,
    };
    let mut known: Vec<_> = snapshot.refs.direct.values().chain(head).collect();
    known.sort();
    known.dedup();
    let known: String = known.iter().map(|id| format!("^{id}\n")).collect();
    let lent_at = |number: usize| match plan {
        None => format!("/workspace/src/{}/{}\n", place(repository), lent(number)),
        Some(_) => format!("/workspace/host/{number}\n"),
    };
    let mut alternates: String = (0..snapshot.objects.len()).map(lent_at).collect();
    let mut files = Vec::new();
    match plan {
        None => {
            alternates += &format!("/workspace/src/{}/objects\n", place(repository));
            files.push(("known", known.into_bytes()));
        }
        Some(plan) => {
            let lines = |end: &str| -> String {
                let refs = plan.refs.iter();
                refs.map(|planned| format!("{}{end}\n", planned.new))
                    .collect()
            };
            files.push(("revs", (lines("") + &known).into_bytes()));
            // A branch is one; what a tag leads to must be one.
            files.push(("commits", lines("^{commit}").into_bytes()));
        }
    }
    files.push(("alternates", alternates.into_bytes()));
    files.push(("shallow", snapshot.shallow.clone().unwrap_or_default()));
    files
}

fn place(repository: &Repository) -> &str {
    match repository.place.as_str() {
        "" => ".",
        place => place,
    }
}

impl Order<'_> {
    /// Box A: what the program has, by a git that reads its folder. Nothing of it is believed.
    pub(super) async fn export(self) -> Result<Vec<u8>, String> {
        let one = std::slice::from_ref(self.repository);
        let mut mounts = show(
            self.folder,
            self.empty,
            "/workspace/src",
            one,
            Access::ReadOnly,
        )
        .map_err(told_io)?;
        mounts.push(mount(self.told.clone(), "/workspace/in", Access::ReadOnly).map_err(told_io)?);
        let result = self.run(EXPORT, mounts).await?;
        match result.truncated.stdout {
            true => Err(format!(
                "export: what is new is more than {MOST_OUTPUT} bytes"
            )),
            false => Ok(result.stdout),
        }
    }

    /// Box B: whether git takes the pack that we checked, and finds everything that it leads to. Which paths are changed.
    pub(super) async fn verify(self) -> Result<Vec<u8>, String> {
        let mut mounts =
            vec![mount(self.told.clone(), "/workspace/in", Access::ReadOnly).map_err(told_io)?];
        for (number, objects) in self.repository.snapshot.objects.iter().enumerate() {
            let inside = format!("/workspace/host/{number}");
            mounts.push(show_objects(objects, inside).map_err(told_io)?);
        }
        let result = self.run(VERIFY, mounts).await?;
        match result.truncated.stdout {
            true => Err("verify: too many paths are changed".to_owned()),
            false => Ok(result.stdout),
        }
    }

    async fn run(self, script: &str, mounts: Vec<Shown>) -> Result<RunResult, String> {
        let format = self.repository.snapshot.format;
        let command = [
            "sh".to_owned(),
            "-c".to_owned(),
            format!("{COMMON}{script}"),
            "sh".to_owned(),
            ObjectFormat::name(format).to_owned(),
            place(self.repository).to_owned(),
        ];
        let step = if script == EXPORT { "export" } else { "verify" };
        let result = in_box(
            self.engine.clone(),
            command.map(OsString::from).into(),
            mounts,
        )
        .map_err(|error| format!("{step}: {error}"))?
        .await;
        match (result.status, result.exit_code, &result.error) {
            (Status::Succeeded, ..) => Ok(result),
            (_, Some(127), _) => Err("there is no git in the /usr of this machine".to_owned()),
            (_, _, Some(error)) => Err(format!("{step}: {}", error.message)),
            (status, ..) => Err(format!("{step}: {}: {}", status.name(), last_word(&result))),
        }
    }
}

fn told_io(error: io::Error) -> String {
    error.to_string()
}

/// What git said, as far as that fits into a line.
fn last_word(result: &RunResult) -> String {
    let text = String::from_utf8_lossy(&result.stderr);
    let says = |line: &&str| !line.trim().is_empty() && !line.starts_with("hint:");
    let line = text.lines().find(says);
    let line: String = line
        .unwrap_or("nothing was said")
        .chars()
        .take(200)
        .collect();
    ::git::escape(&line)
}

/// A run of our own, beside the one that it is for. Boxed: it takes the way that it is called from.
fn in_box(
    engine: Arc<Inner>,
    command: Vec<OsString>,
    mounts: Vec<Shown>,
) -> io::Result<Pin<Box<dyn Future<Output = RunResult> + Send>>> {
    let limits = Maximum {
        memory: Some(Size(MEMORY)),
        cpu_time: Some(Time(LONGEST)),
        wall_time: Some(Time(LONGEST)),
        pids: Some(64),
        disk: Some(Size(SCRATCH)),
        file_size: Some(Size(SCRATCH)),
        output: Some(Size(MOST_OUTPUT)),
        ..Maximum::default()
    };
    let request = RunRequest {
        command,
        limits,
        network: Some(Network::None),
        ..RunRequest::default()
    };
    let admitted = Policy::default().admit(request);
    let mut spec = admitted.map_err(|error| io::Error::other(error.to_string()))?;
    spec.keep = false;
    let mut own = Vec::new();
    for Shown { mount, id } in mounts {
        spec.sandbox.git.insert(mount.host.clone(), id);
        own.push(mount);
    }
    Ok(Box::pin(async move {
        let (_cancel, cancelled) = watch::channel(false);
        let (_terminate, terminated) = watch::channel(None);
        // Nobody reads along: what is printed is in the result.
        let (events, _) = mpsc::channel(1);
        let driver = Driver {
            making: Making {
                engine,
                id: fresh_id(),
                spec,
                cancelled,
                layer: None,
                git: None,
                own,
            },
            events,
            doors: None,
            terminal: None,
            terminated,
            over: watch::channel(false).0,
            cpu_ms: Arc::new(AtomicU64::default()),
        };
        driver.drive(Ok(None)).await
    }))
}
