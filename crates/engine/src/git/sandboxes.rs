//! Runs git in sandboxes: to export what a program left (A), to verify it (B), and to merge the
//! host's index (C). Each sees the host's `/usr`, has no network and no secret, and writes to its
//! scratch space only; output, time and memory are limited.

use super::{Repository, VerifiedMount, folder::GitFolder, mount, mount_objects, shadow_mounts};
use crate::{Inner, driver::Driver, provision::Provisioner, record::fresh_id};
use ::git::{
    Head, ImportPlan, ObjectFormat, ObjectId, import, snapshot::host_objects_dir,
    transaction::IndexFile,
};
use spec::{Access, LimitSet, Network, Policy, RunRequest, RunResult, Size, Status, Time};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::sync::{mpsc, watch};

/// The output limit: a pack with the list of references before it.
const MAX_OUTPUT_BYTES: u64 = 256 << 20;
/// The CPU and wall time limit.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const MEMORY_LIMIT: u64 = 1 << 30;
/// The scratch limit, for the index that is compared with the one computed here.
const SCRATCH_LIMIT: u64 = 256 << 20;

/// Creates a git folder of the script's own: it uses objects and references of the program's
/// folder, but none of its configuration or hooks.
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

/// Prints `HEAD`, the references, an empty line, and a pack of the objects that the host does not
/// have.
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

/// Checks the pack with git; the exit status says whether all new objects are present and
/// connected. Prints the paths that new commits change, and their subjects. Then for each reference
/// that may move, and for `HEAD`: counts, paths that its new commits change and in which it
/// differs, links and files named `HEAD` in it, and the targets of new links; each part behind its
/// length.
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
export GIT_DIR=$g
git rev-list --objects --quiet --stdin <$in/revs
if git cat-file --batch-check='%(objecttype)' <$in/commits | grep -qvx commit; then
  echo 'a reference leads to no commit' >&2; exit 5
fi
part() { wc -c </tmp/part; cat /tmp/part; }
changes='--no-renames --raw -z --no-abbrev'
log="log --diff-merges=first-parent --root $changes --format= --stdin"
git $log <$in/revs >/tmp/part; part
git log -n 100 --format='%h %s' --stdin <$in/revs >/tmp/part; part
empty=$(git hash-object -t tree --stdin </dev/null)
while read -r new old; do
  forward=no commits=0
  [ $old != empty ] || old=$empty
  if [ $old != - ] && [ $old != $empty ]; then
    if git merge-base --is-ancestor $old $new; then forward=yes; fi
    commits=$(git rev-list --count $old..$new)
  fi
  paths=$(git ls-tree -r --name-only $new | head -n $(($3 + 1)) | wc -l)
  echo $forward $commits $paths >/tmp/part; part
  { echo $new; cat $in/trusted; } | git $log >/tmp/part; part
  cp /tmp/part /tmp/changes
  if [ $old = - ]; then : >/tmp/part; else git diff-tree -r $changes $old $new >/tmp/part; fi; part
  cat /tmp/part >>/tmp/changes
  git ls-tree -r -z $new | grep -z -a -i -E '^120000 |/(HEAD|commondir)$' >/tmp/part || [ $? = 1 ]; part
  tr '\0' '\n' </tmp/changes | sed -n 's/^:[0-7]* 120000 [0-9a-f]* \([0-9a-f]*\) .*/\1/p' | sort -u |
    git cat-file --batch-check='%(objectname) %(objecttype) %(objectsize)' |
    while read -r id type size; do if [ "$type" = blob ] && [ "$size" -lt 4096 ]; then echo $id; fi; done |
    git cat-file --batch >/tmp/part; part
done <$in/pairs
"#;

/// Prints the outcome, and an index for the new `HEAD` with the host's staged changes beside it.
/// Has no worktree, and of the program's data only verified objects.
const INDEX: &str = r#"
read -r old new superseding sparse <$in/pair
printf '[core]\nbare = false\nsplitIndex = false\n' >>$g/config
mkdir /tmp/empty; cd /tmp/empty
[ ! -e $in/index ] || cp $in/index $g/index
for shared in $in/sharedindex.*; do [ ! -e "$shared" ] || cp "$shared" $g/; done
if [ $sparse != no ]; then
  mkdir -p $g/info; cp $in/sparse-checkout $g/info/sparse-checkout
  printf '[core]\nsparseCheckout = true\nsparseCheckoutCone = %s\n' $sparse >>$g/config
fi
export GIT_DIR=$g GIT_WORK_TREE=/tmp/empty GIT_LITERAL_PATHSPECS=1
[ $old != empty ] || old=$(git hash-object -t tree --stdin </dev/null)
if [ -n "$(git ls-files --unmerged | head -c 1)" ]; then echo 'the index has unmerged entries' >&2; exit 6; fi
if git read-tree -i -m $old $new 2>/tmp/told; then echo moved; exec cat $g/index; fi
if [ $superseding = no ]; then head -c 400 /tmp/told >&2; exit 7; fi
cp $g/index /tmp/staged.index
git diff-index --cached --no-renames --name-only -z $old | sort -z >/tmp/staged
git diff-tree -r --no-renames --name-only -z $old $new | sort -z >/tmp/new
comm -z -23 /tmp/staged /tmp/new >/tmp/kept
git read-tree -i --reset $new
git update-index --force-remove -z --stdin </tmp/kept
GIT_INDEX_FILE=/tmp/staged.index xargs -0 -r git ls-files -s -z -- </tmp/kept >/tmp/entries
git update-index -z --index-info </tmp/entries
echo superseded; exec cat $g/index
"#;

#[derive(Clone, Copy)]
enum Script {
    Export,
    Verify,
    Index,
}

impl Script {
    fn script(self) -> &'static str {
        match self {
            Script::Export => EXPORT,
            Script::Verify => VERIFY,
            Script::Index => INDEX,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Script::Export => "export",
            Script::Verify => "verify",
            Script::Index => "index",
        }
    }
}

/// A task for git in a sandbox.
pub(super) struct GitTask<'a> {
    pub(super) engine: &'a Arc<Inner>,
    pub(super) repository: &'a Repository,
    /// The shadow folder, as the program left it.
    pub(super) folder: &'a GitFolder,
    /// The folder with the input files.
    pub(super) input: PathBuf,
}

/// Files that describe what the host has.
pub(super) type InputFiles = Vec<(String, Vec<u8>)>;

/// A reference, or `HEAD`, that is to be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommitPair {
    pub(super) new: ObjectId,
    pub(super) old: OldCommit,
}

/// The commit that it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OldCommit {
    Commit(ObjectId),
    /// There was no commit.
    Empty,
    /// The reference is new.
    Absent,
}

impl OldCommit {
    pub(super) fn words(&self) -> String {
        match self {
            OldCommit::Commit(id) => id.to_string(),
            OldCommit::Empty => "empty".to_owned(),
            OldCommit::Absent => "-".to_owned(),
        }
    }
}

/// The objects that the host had when the program began, without duplicates.
fn known<'a>(repository: &'a Repository, wanted: &dyn Fn(&str) -> bool) -> BTreeSet<&'a ObjectId> {
    let snapshot = &repository.snapshot;
    let head = match &snapshot.head {
        Head::Detached(id) => Some(id),
        Head::Branch(_) => None,
    };
    let refs = snapshot.refs.direct.iter();
    let refs = refs.filter(|(name, _)| wanted(name)).map(|(_, id)| id);
    refs.chain(head).collect()
}

fn without(known: &BTreeSet<&ObjectId>) -> String {
    known.iter().map(|id| format!("^{id}\n")).collect()
}

fn input(repository: &Repository, lent_at: &dyn Fn(usize) -> String, more: &str) -> InputFiles {
    let snapshot = &repository.snapshot;
    let lent: String = (0..snapshot.objects.len()).map(lent_at).collect();
    let shallow = snapshot.shallow.clone().unwrap_or_default();
    vec![
        ("alternates".to_owned(), (lent + more).into_bytes()),
        ("shallow".to_owned(), shallow),
    ]
}

fn host_objects(number: usize) -> String {
    format!("/workspace/host/{number}\n")
}

/// The input of task A.
pub(super) fn export_input(repository: &Repository) -> InputFiles {
    let place = place(repository);
    let lent_at = |number| format!("/workspace/src/{place}/{}\n", host_objects_dir(number));
    let mut input = input(
        repository,
        &lent_at,
        &format!("/workspace/src/{place}/objects\n"),
    );
    let known = without(&known(repository, &|_| true));
    input.push(("known".to_owned(), known.into_bytes()));
    input
}

/// The input of task B.
pub(super) fn verify_input(
    repository: &Repository,
    plan: &ImportPlan,
    pairs: &[CommitPair],
) -> InputFiles {
    let mut input = input(repository, &host_objects, "");
    let lines = |end: &str| -> String {
        let refs = plan.refs.iter();
        refs.map(|planned| format!("{}{end}\n", planned.new))
            .collect()
    };
    let known_all = without(&known(repository, &|_| true));
    // Commits that another run imported are present, but not verified by anybody.
    let trusted = without(&known(repository, &|name| {
        !name.starts_with("refs/airlock/")
    }));
    let pair = |pair: &CommitPair| format!("{} {}\n", pair.new, pair.old.words());
    for (name, text) in [
        ("revs", lines("") + &known_all),
        // A branch is a commit; a tag must lead to one.
        ("commits", lines("^{commit}")),
        ("trusted", trusted),
        ("pairs", pairs.iter().map(pair).collect()),
    ] {
        input.push((name.to_owned(), text.into_bytes()));
    }
    input
}

/// The input of task C. Staged changes of changed paths may be superseded only if they were staged
/// when the program began.
pub(super) fn index_input(
    repository: &Repository,
    pair: &CommitPair,
    index: Option<&IndexFile>,
) -> InputFiles {
    let mut input = input(repository, &host_objects, "");
    let snapshot = &repository.snapshot;
    let as_before = index.map(|index| index.bytes.as_slice()) == snapshot.file("index");
    let superseding = if as_before { "yes" } else { "no" };
    let patterns = snapshot.file("info/sparse-checkout");
    let sparse = match (snapshot.settings.sparse, patterns) {
        (Some(cone), Some(patterns)) => {
            input.push(("sparse-checkout".to_owned(), patterns.to_vec()));
            cone.to_string()
        }
        _ => "no".to_owned(),
    };
    let line = format!("{} {} {superseding} {sparse}\n", pair.old.words(), pair.new);
    input.push(("pair".to_owned(), line.into_bytes()));
    if let Some(index) = index {
        input.push(("index".to_owned(), index.bytes.clone()));
        input.extend(index.shared.iter().cloned());
    }
    input
}

fn place(repository: &Repository) -> &str {
    match repository.place.as_str() {
        "" => ".",
        place => place,
    }
}

impl GitTask<'_> {
    /// Task A: exports what the program has, with a git that reads its folder. The output is
    /// untrusted.
    pub(super) async fn export(self) -> Result<Vec<u8>, String> {
        let one = std::slice::from_ref(self.repository);
        let mut mounts = shadow_mounts(self.folder, "/workspace/src", one, Access::ReadOnly)
            .map_err(describe_io)?;
        mounts.push(
            mount(self.input.clone(), "/workspace/in", Access::ReadOnly).map_err(describe_io)?,
        );
        let result = self.run(Script::Export, mounts).await?;
        match result.truncated.stdout {
            true => Err(format!(
                "export: what is new is more than {MAX_OUTPUT_BYTES} bytes"
            )),
            false => Ok(result.stdout),
        }
    }

    /// Task B: verifies with git the pack that was checked here, and that everything it refers to
    /// is present. Returns the report.
    pub(super) async fn verify(self) -> Result<Vec<u8>, String> {
        let mounts = self.host_mounts().map_err(describe_io)?;
        let result = self.run(Script::Verify, mounts).await?;
        match result.truncated.stdout {
            true => Err("verify: too many paths are changed".to_owned()),
            false => Ok(result.stdout),
        }
    }

    /// Task C: merges the host's index, with the pack in place.
    pub(super) async fn index(self) -> Result<Vec<u8>, String> {
        let mounts = self.host_mounts().map_err(describe_io)?;
        let result = self.run(Script::Index, mounts).await?;
        match result.truncated.stdout {
            true => Err(format!("index: it is more than {MAX_OUTPUT_BYTES} bytes")),
            false => Ok(result.stdout),
        }
    }

    fn host_mounts(&self) -> io::Result<Vec<VerifiedMount>> {
        let mut mounts = vec![mount(
            self.input.clone(),
            "/workspace/in",
            Access::ReadOnly,
        )?];
        for (number, objects) in self.repository.snapshot.objects.iter().enumerate() {
            let inside = format!("/workspace/host/{number}");
            mounts.push(mount_objects(objects, inside)?);
        }
        Ok(mounts)
    }

    async fn run(self, step: Script, mounts: Vec<VerifiedMount>) -> Result<RunResult, String> {
        let format = self.repository.snapshot.format;
        let command = [
            "sh".to_owned(),
            "-c".to_owned(),
            format!("{COMMON}{}", step.script()),
            "sh".to_owned(),
            ObjectFormat::name(format).to_owned(),
            place(self.repository).to_owned(),
            import::MAX_PATHS.to_string(),
        ];
        let step = step.name();
        let result = run_in_sandbox(
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
            (status, ..) => Err(format!(
                "{step}: {}: {}",
                status.name(),
                last_stderr_line(&result)
            )),
        }
    }
}

fn describe_io(error: io::Error) -> String {
    error.to_string()
}

/// The first line of stderr, shortened.
fn last_stderr_line(result: &RunResult) -> String {
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

/// A run beside the one that it is for. The future is boxed because it recurses into the driver.
fn run_in_sandbox(
    engine: Arc<Inner>,
    command: Vec<OsString>,
    mounts: Vec<VerifiedMount>,
) -> io::Result<Pin<Box<dyn Future<Output = RunResult> + Send>>> {
    let limits = LimitSet {
        memory: Some(Size(MEMORY_LIMIT)),
        cpu_time: Some(Time(TIME_LIMIT)),
        wall_time: Some(Time(TIME_LIMIT)),
        pids: Some(64),
        disk: Some(Size(SCRATCH_LIMIT)),
        file_size: Some(Size(SCRATCH_LIMIT)),
        output: Some(Size(MAX_OUTPUT_BYTES)),
        ..LimitSet::default()
    };
    let request = RunRequest {
        command,
        limits,
        network: Some(Network::None),
        ..RunRequest::default()
    };
    let admitted = Policy::default().admit(request);
    let mut spec = admitted.map_err(|error| io::Error::other(error.to_string()))?;
    spec.keep_artifacts = false;
    let mut own_mounts = Vec::new();
    for VerifiedMount { mount, id } in mounts {
        spec.sandbox.git.insert(mount.host.clone(), id);
        own_mounts.push(mount);
    }
    Ok(Box::pin(async move {
        let (_cancel, cancelled) = watch::channel(false);
        let (_terminate, terminated) = watch::channel(None);
        // There is no event reader: the output is in the result.
        let (events, _) = mpsc::channel(1);
        let driver = Driver {
            provisioner: Provisioner {
                engine,
                id: fresh_id(),
                spec,
                cancelled,
                layer: None,
                artifacts_kept: false,
                git: None,
                own_mounts,
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
