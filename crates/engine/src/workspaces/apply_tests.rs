//! How changes get into the folder: moved or copied, by a plan that survives a crash, and never
//! over changes of the host. `PROPTEST_CASES` sets how many random trees are tried.

use super::*;
use crate::workspaces::{apply::Apply, commit::choose};
use rustix::fs::{RenameFlags, renameat_with};
use std::process::Command;

/// Everything in a tree: kind, permissions, contents or target.
type Tree = BTreeMap<PathBuf, (FileKind, u32, Vec<u8>)>;

fn cases(few: u32) -> ProptestConfig {
    let all = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => all.cases,
        None => few,
    };
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..all
    }
}

fn deeds(most: usize) -> impl Strategy<Value = Vec<Deed>> {
    prop::collection::vec(deed(), 0..most)
}

fn is_whole(place: &Place) -> Result<(), TestCaseError> {
    let drafts = contents(&place.folder(".")).into_keys().filter(|path| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().starts_with(commit::DRAFT.as_bytes())
    });
    prop_assert_eq!(drafts.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    Ok(())
}

/// The files of the layer, if it still exists.
fn kept(place: &Place, inside: &Path) -> Tree {
    match find(&place.state(), &id()) {
        Ok(_) => contents(inside),
        Err(_) => Tree::new(),
    }
}

/// Three states of a folder.
struct Story {
    /// At the start.
    base: Tree,
    /// As the host left it.
    host: Tree,
    /// As the program left it.
    program: Tree,
    /// Old names that the program moved: an overlay layer has no copy of these.
    lent: bool,
}

impl Story {
    /// The versions of one side that differ from the start: a folder counts by being one.
    fn versions<'a>(&'a self, side: &'a Tree) -> impl Iterator<Item = (&'a PathBuf, &'a Entry3)> {
        side.iter()
            .filter(|(path, now)| !is_like(self.base.get(*path), Some(now)))
    }

    /// Whether the folder had a version at the start, and the host itself removed it.
    fn was_given_up(&self, version: &Entry3) -> bool {
        let mut base = self.base.iter();
        self.lent && base.any(|(path, was)| was.2 == version.2 && self.host.get(path) != Some(was))
    }

    fn check(&self, folder: &Tree, layer: &Tree) -> Result<(), TestCaseError> {
        for (path, version) in self.versions(&self.host) {
            prop_assert!(
                is_like(folder.get(path), Some(version)),
                "the host's {path:?} is lost"
            );
        }
        for (path, version) in self.versions(&self.program) {
            let [there, kept] = [folder, layer].map(|tree| is_like(tree.get(path), Some(version)));
            prop_assert!(
                there || kept || self.was_given_up(version),
                "the program's {path:?} is lost"
            );
        }
        // A file that neither side changed is as it was, and every file is one of theirs.
        for (path, was) in &self.base {
            let is_calm = [&self.host, &self.program]
                .iter()
                .all(|side| side.get(path) == Some(was));
            prop_assert!(
                !is_calm || folder.get(path) == Some(was),
                "{path:?} changed"
            );
        }
        for (path, now) in folder {
            let known = [&self.base, &self.host, &self.program]
                .iter()
                .any(|side| is_like(side.get(path), Some(now)));
            prop_assert!(known, "{path:?} is nobody's");
        }
        Ok(())
    }
}

type Entry3 = (FileKind, u32, Vec<u8>);

/// The same type with the same contents; for files the same permissions too.
fn is_like(one: Option<&Entry3>, other: Option<&Entry3>) -> bool {
    match (one, other) {
        (Some((FileKind::Folder, ..)), Some((FileKind::Folder, ..))) => true,
        (one, other) => one == other,
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn what_host_and_program_left_is_afterwards_in_the_folder_or_in_the_layer(
        before in deeds(12), program in deeds(10), host in deeds(8), is_moved in any::<bool>(),
    ) {
        let mut place = Place::new(|folder| before.iter().for_each(|deed| act(folder, deed)));
        let inside = place.inside(".");
        let base = contents(&place.folder("."));
        program.iter().for_each(|deed| act(&inside, deed));
        host.iter().for_each(|deed| act(&place.folder("."), deed));
        let (program, host) = (contents(&inside), contents(&place.folder(".")));
        let story = Story { base, host, program, lent: false };
        if is_moved {
            place.end();
        }
        let committed = place.commit(PARTIAL).unwrap();
        is_whole(&place)?;
        let left = contents(&place.folder("."));
        story.check(&left, &kept(&place, &inside))?;
        if committed.left.is_empty() {
            prop_assert_eq!(committed.discarded, is_moved);
        }
        // A second commit applies nothing more, and loses nothing.
        if !committed.discarded {
            place.commit(PARTIAL).unwrap();
            story.check(&contents(&place.folder(".")), &kept(&place, &inside))?;
        }
    }
}

/// A commit that was planned and not executed.
struct Planned {
    opened: OpenLayer,
    plan: Plan,
    base: Baseline,
    tree: OwnedFd,
    folder: OwnedFd,
    rights: FileAccess,
}

impl Planned {
    fn of(place: &Place) -> Planned {
        let opened = OpenLayer::open(&place.state(), &id()).unwrap();
        let alone = opened.alone();
        let (folder, tree) = (opened.folder().unwrap(), opened.tree().unwrap());
        let base = base::read(&opened.layer).unwrap();
        let rights = FileAccess::of_owner(tree.as_fd()).unwrap();
        let protected = opened.protected();
        let sides = Comparer {
            base: &base,
            layer: tree.as_fd(),
            upper: None,
            folder: Some(folder.as_fd()),
            protected: &protected,
        };
        let compared = rights.act(|| sides.compare()).unwrap();
        let choice = choose(&compared.assessed, &PARTIAL);
        let may_go = alone.is_some() && choice.left.is_empty();
        let plan = opened
            .plan(&base, &choice, &rights, (&PARTIAL, alone.is_some(), may_go))
            .unwrap();
        Planned {
            opened,
            plan,
            base,
            tree,
            folder,
            rights,
        }
    }

    /// The temporary name beside this name while its step is being done.
    fn swap_name(&self, name: &str) -> PathBuf {
        let mut steps = self.plan.steps.iter();
        let number = steps.position(|step| step.path() == Path::new(name));
        self.plan.swap_name(number.unwrap()).into()
    }

    /// Does the first steps, and stops.
    fn killed_after(mut self, steps: usize) {
        let owner = owner(&self.rights);
        let (tree, folder) = (self.tree.as_fd(), self.folder.as_fd());
        let (plan, base) = (&self.plan, &mut self.base);
        let begun = self.rights.act(|| {
            Apply::new(plan, tree, folder, owner, false).run_steps(&plan.steps[..steps], base);
            Ok(())
        });
        begun.unwrap();
    }
}

/// Each of the ways in which a crash is noticed.
fn recover(place: &Place, way: usize) {
    match way % 3 {
        0 => assert_eq!(sweep(&place.state()), Vec::<String>::new()),
        1 => drop(diff(&place.state(), &id()).unwrap()),
        _ => match place.commit(PARTIAL) {
            Ok(_) | Err(LayerError::Absent { .. }) => {}
            Err(error) => panic!("{error}"),
        },
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_crash_between_any_two_steps_changes_nothing_of_the_end(
        before in deeds(12), program in deeds(10), host in deeds(4), is_moved in any::<bool>(),
    ) {
        let begin = || {
            let mut place = Place::new(|folder| before.iter().for_each(|deed| act(folder, deed)));
            program.iter().for_each(|deed| act(&place.inside("."), deed));
            host.iter().for_each(|deed| act(&place.folder("."), deed));
            if is_moved {
                place.end();
            }
            place
        };
        let end = |place: &Place| {
            let layer = find(&place.state(), &id()).map(|_| (place.changes(), kept(place, &place.inside("."))));
            (contents(&place.folder(".")), layer.ok())
        };
        let undisturbed = begin();
        undisturbed.commit(PARTIAL).unwrap();
        let expected = end(&undisturbed);
        let steps = Planned::of(&begin()).plan.steps.len();
        // Without a step no plan is written.
        prop_assume!(steps > 0);
        for done in 0..=steps {
            let place = begin();
            Planned::of(&place).killed_after(done);
            recover(&place, done);
            is_whole(&place)?;
            prop_assert_eq!(&end(&place), &expected, "after {} of {} steps", done, steps);
        }
    }
}

/// A folder with one file that a program changed, and a plan of which no step was done.
fn interrupted(is_moved: bool) -> (Place, Planned) {
    let mut place = Place::new(|folder| {
        fs::write(folder.join("file"), "old").unwrap();
        fs::write(folder.join("gone"), "gone").unwrap();
    });
    fs::write(place.inside("file"), "of the program").unwrap();
    fs::remove_file(place.inside("gone")).unwrap();
    if is_moved {
        place.end();
    }
    let planned = Planned::of(&place);
    assert_eq!(planned.plan.head.moves, is_moved);
    (place, planned)
}

impl Place {
    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.folder(path)).unwrap()
    }

    fn exchange(&self, one: &Path, other: &Path) {
        let one = self.root.join("folder").join(one);
        let other = self.root.join("folder").join(other);
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    }

    /// Everything that can be there after a crash was found and completed.
    fn finished(&self, expected: &[(&str, &str)]) {
        assert_eq!(sweep(&self.state()), Vec::<String>::new());
        let there = contents(&self.folder("."));
        let there = there
            .into_iter()
            .map(|(path, (.., text))| (path, String::from_utf8(text).unwrap()));
        let expected = expected
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
        assert_eq!(there.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_kill_within_a_step_leaves_nothing_that_is_not_finished() {
    // An incomplete temporary file.
    let (place, planned) = interrupted(false);
    let new = planned.plan.new_name().to_owned();
    fs::write(place.root.join("folder").join(&new), "of the pro").unwrap();
    drop(planned);
    place.finished(&[("file", "of the program")]);
    // A complete one, which was about to be exchanged, or was.
    for is_exchanged in [false, true] {
        let (place, planned) = interrupted(false);
        let swap = planned.swap_name("file");
        fs::write(place.root.join("folder").join(&swap), "of the program").unwrap();
        if is_exchanged {
            place.exchange(&swap, Path::new("file"));
        }
        drop(planned);
        place.finished(&[("file", "of the program")]);
    }
    // The file to be removed was taken out of its place.
    let (place, planned) = interrupted(false);
    let swap = planned.swap_name("gone");
    fs::rename(place.folder("gone"), place.root.join("folder").join(swap)).unwrap();
    drop(planned);
    place.finished(&[("file", "of the program")]);
    // A file was moved, and the one that it replaced is in the layer.
    let (place, planned) = interrupted(true);
    place.exchange(&place.inside("file"), Path::new("file"));
    drop(planned);
    place.finished(&[("file", "of the program")]);
    assert!(list(&place.state()).unwrap().is_empty());
}

#[test]
fn what_the_host_changed_in_the_last_moment_before_a_kill_gets_its_place_back() {
    // It was written between the check and the exchange.
    let (place, planned) = interrupted(false);
    let swap = planned.swap_name("file");
    fs::write(place.root.join("folder").join(&swap), "of the program").unwrap();
    place.exchange(&swap, Path::new("file"));
    fs::write(place.root.join("folder").join(&swap), "of the host").unwrap();
    drop(planned);
    place.finished(&[("file", "of the host")]);
    assert_eq!(fs::read(place.inside("file")).unwrap(), b"of the program");
    assert_eq!(place.changes(), ["Changed file"]);
    // The same for a file to be removed.
    let (place, planned) = interrupted(false);
    let swap = place.root.join("folder").join(planned.swap_name("gone"));
    fs::rename(place.folder("gone"), &swap).unwrap();
    fs::write(&swap, "of the host").unwrap();
    drop(planned);
    place.finished(&[("file", "of the program"), ("gone", "of the host")]);
    assert_eq!(place.changes(), ["Removed gone"]);
    // The same for the file that a moved file was exchanged with.
    let (place, planned) = interrupted(true);
    place.exchange(&place.inside("file"), Path::new("file"));
    fs::write(place.inside("file"), "of the host").unwrap();
    drop(planned);
    place.finished(&[("file", "of the host")]);
    assert_eq!(fs::read(place.inside("file")).unwrap(), b"of the program");
}

#[test]
fn what_the_host_put_in_the_place_of_an_applied_file_stays_when_a_crash_is_recovered_from() {
    for is_moved in [false, true] {
        let (place, planned) = interrupted(is_moved);
        let steps = planned.plan.steps.len();
        planned.killed_after(steps);
        assert_eq!(place.text("file"), "of the program");
        fs::remove_file(place.folder("file")).unwrap();
        fs::write(place.folder("file"), "of the host").unwrap();
        place.finished(&[("file", "of the host")]);
    }
    // Before the replaced file was removed.
    let (place, planned) = interrupted(true);
    place.exchange(&place.inside("file"), Path::new("file"));
    fs::write(place.root.join("mine"), "of the host").unwrap();
    fs::rename(place.root.join("mine"), place.folder("file")).unwrap();
    drop(planned);
    place.finished(&[("file", "of the host")]);
    assert!(list(&place.state()).unwrap().is_empty());
}

#[test]
fn a_plan_that_was_not_written_to_its_end_was_never_begun() {
    let (place, planned) = interrupted(true);
    drop(planned);
    let plan = place.state().join("workspaces/layer/apply");
    let text = fs::read(&plan).unwrap();
    fs::write(&plan, &text[..text.len() - 8]).unwrap();
    assert!(!sweep(&place.state()).is_empty(), "a damaged one is named");
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    fs::write(&plan, lines[..lines.len() - 1].concat()).unwrap();
    place.finished(&[("file", "old"), ("gone", "gone")]);
    assert_eq!(place.changes(), ["Changed file", "Removed gone"]);
}

#[test]
fn what_is_stopped_at_its_place_leaves_no_draft_beside_it() {
    let place = Place::new(|folder| {
        for name in ["link", "folder", "file"] {
            fs::write(folder.join(name), "old").unwrap();
        }
    });
    for name in ["link", "folder"] {
        fs::remove_file(place.inside(name)).unwrap();
    }
    symlink("file", place.inside("link")).unwrap();
    fs::create_dir(place.inside("folder")).unwrap();
    fs::write(place.inside("file"), "of the program").unwrap();
    let mut planned = Planned::of(&place);
    // Checked in its own step: a process has them open.
    let names = ["link", "folder", "file"];
    let open = names.map(|name| fs::File::options().append(true).open(place.folder(name)));
    let outcome = plan_execution::execute(
        &planned.plan,
        &mut planned.base,
        (&planned.tree, &planned.folder),
        &planned.rights,
        false,
    );
    let left = outcome.unwrap().left;
    assert!(
        left.iter()
            .all(|left| left.conflict && left.reason == diff::WRITTEN)
    );
    assert_eq!(left.len(), 3, "{left:?}");
    let there: Vec<_> = contents(&place.folder(".")).into_keys().collect();
    assert_eq!(there, ["file", "folder", "link"].map(PathBuf::from));
    drop((open, planned.opened));
}

#[test]
fn a_file_is_moved_only_if_nobody_could_tell_it_from_a_copy() {
    let of = |prepare: &dyn Fn(&Place) -> Option<fs::File>, ends: bool| {
        let mut place = Place::new(|_| {});
        fs::write(place.inside("file"), "text").unwrap();
        let open = prepare(&place);
        let inode = fs::metadata(place.inside("file")).unwrap().ino();
        if ends {
            place.end();
        }
        assert_eq!(place.commit(PARTIAL).unwrap().applied.len(), 1);
        drop(open);
        assert_eq!(place.text("file"), "text");
        fs::metadata(place.folder("file")).unwrap().ino() == inode
    };
    let nothing = |_: &Place| None;
    assert!(of(&nothing, true), "the control: it is moved");
    assert!(!of(&nothing, false), "somebody is left inside");
    let open = |place: &Place| fs::File::open(place.inside("file")).ok();
    assert!(!of(&open, true), "somebody has it open");
    let link = |place: &Place| {
        fs::hard_link(place.inside("file"), place.root.join("other")).unwrap();
        None
    };
    assert!(!of(&link, true), "it has another name");
}

#[test]
fn a_folder_that_does_not_get_its_permissions_is_still_a_change() {
    let mut place = Place::new(|folder| fs::create_dir(folder.join("d")).unwrap());
    let mode = |path: PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(place.inside("d"), 0o700);
    place.end();
    let mut planned = Planned::of(&place);
    mode(place.folder("d"), 0o711);
    let ends = (&planned.tree, &planned.folder);
    let (plan, base) = (&planned.plan, &mut planned.base);
    let outcome = plan_execution::execute(plan, base, ends, &planned.rights, false).unwrap();
    assert_eq!((outcome.applied.len(), outcome.left.len()), (0, 1));
    plan_execution::record_done(&planned.opened, &planned.base).unwrap();
    drop(planned);
    assert_eq!(place.changes(), ["Mode d"]);
    assert_eq!(
        place.against(),
        ["d: it was changed in the folder meanwhile"]
    );
}

#[test]
fn what_belongs_into_a_folder_that_is_gone_is_a_conflict_with_a_remedy() {
    let mut place = Place::new(|folder| fs::create_dir(folder.join("d")).unwrap());
    fs::write(place.inside("d/new"), "new").unwrap();
    fs::remove_dir(place.folder("d")).unwrap();
    place.end();
    let committed = place.commit(PARTIAL).unwrap();
    let left = &committed.left[0];
    assert!(left.conflict && !committed.discarded, "{committed:?}");
    assert!(
        left.reason.contains("make it, then commit again"),
        "{left:?}"
    );
    fs::create_dir(place.folder("d")).unwrap();
    assert!(place.commit(PARTIAL).unwrap().discarded);
    assert_eq!(place.text("d/new"), "new");
}

/// Set in a mount namespace of its own: the xattr namespace that the kernel uses there.
const LAID: &str = "AIRLOCK_TEST_LAID";

#[test]
fn the_same_holds_of_a_layer_that_lies_over_the_folder() {
    if let Some(whose) = std::env::var_os(LAID) {
        return laid_over(whose == "root");
    }
    let name = "workspaces::tests::apply::the_same_holds_of_a_layer_that_lies_over_the_folder";
    let is_root = rustix::process::geteuid().is_root();
    for whose in ["root", "user"] {
        if whose == "root" && !is_root {
            assert!(std::env::var_os("AIRLOCK_TEST_ALL").is_none());
            println!("NOT TESTED: only root has notes that only root can write");
            continue;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg(std::env::current_exe().unwrap());
        let done = command.args(["--exact", name]).env(LAID, whose).output();
        let done = done.unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
    }
}

fn laid_over(by_root: bool) {
    what_was_moved_out_of_reach_stays_where_it_was(by_root);
    let mut runner = proptest::test_runner::TestRunner::new(cases(32));
    let stories = (deeds(12), deeds(10), deeds(6));
    let told = runner.run(&stories, |(before, program, host)| {
        let place = overlaid(by_root, |folder| {
            before.iter().for_each(|deed| act(folder, deed))
        });
        one_laid_over(place, &program, &host)
    });
    told.unwrap();
}

/// A place with an overlay that is mounted at `merged`.
fn overlaid(by_root: bool, fill: impl FnOnce(&Path)) -> Place {
    let mut place = Place::filled(fill);
    // An entry that always exists, so that the layer is not made as a copy of nothing.
    for name in ["x", "y"] {
        fs::write(place.folder(name), name).unwrap();
    }
    let mut spec = place.spec(&[]);
    spec.copy = Some(LayerCopyLimits {
        names: 1,
        ..LayerCopyLimits::default()
    });
    let folder = place.root.join("folder");
    let handle = make(&place.state(), &id(), &spec, &folder, None, &|| false).unwrap();
    assert_eq!(handle.kind, LayerKind::Overlay);
    place.handle = Some(handle);
    if !by_root {
        let info = place.state().join("workspaces/layer/about.json");
        let text = fs::read_to_string(&info).unwrap();
        let told = text.replace("\"by_root\":true", "\"by_root\":false");
        assert_ne!(text, told);
        fs::write(info, told).unwrap();
    }
    let merged = place.root.join("merged");
    fs::create_dir(&merged).unwrap();
    mount(&place, &merged, by_root);
    place
}

impl Place {
    /// The sandbox is gone, and its mount with it.
    fn end_overlaid(&mut self) {
        let none = rustix::mount::UnmountFlags::empty();
        rustix::mount::unmount(self.root.join("merged"), none).unwrap();
        self.end();
    }
}

fn one_laid_over(mut place: Place, program: &[Deed], host: &[Deed]) -> Result<(), TestCaseError> {
    let (folder, merged) = (place.root.join("folder"), place.root.join("merged"));
    let base = contents(&folder);
    program.iter().for_each(|deed| act(&merged, deed));
    let program = contents(&merged);
    place.end_overlaid();
    host.iter().for_each(|deed| act(&folder, deed));
    let host = contents(&folder);
    let is_calm = host == base;
    let story = Story {
        base,
        host,
        program,
        lent: true,
    };
    let committed = place.commit(PARTIAL).unwrap();
    is_whole(&place)?;
    let upper = place.inside("upper");
    let after = contents(&folder);
    story.check(&after, &kept(&place, &upper))?;
    for path in after.keys() {
        prop_assert_eq!(notes_of(&folder.join(path)), Vec::<String>::new());
    }
    if is_calm && committed.left.is_empty() {
        prop_assert_eq!(&after, &story.program);
        prop_assert!(committed.discarded);
    }
    Ok(())
}

/// Folders of the host in folders that the program closed, or that are too deep.
fn what_was_moved_out_of_reach_stays_where_it_was(by_root: bool) {
    let out_of_reach = |hide: &dyn Fn(&Path)| {
        let mut place = overlaid(by_root, |folder| {
            fs::create_dir(folder.join("moved")).unwrap();
            fs::write(folder.join("moved/precious"), "precious").unwrap();
        });
        let merged = place.root.join("merged");
        fs::write(merged.join("new"), "new").unwrap();
        hide(&merged);
        place.end_overlaid();
        let committed = place.commit(PARTIAL).unwrap();
        assert_eq!(place.text("new"), "new");
        assert_eq!(place.text("moved/precious"), "precious");
        let left: Vec<_> = committed
            .left
            .iter()
            .map(|left| shown(&left.path))
            .collect();
        assert!(left.contains(&"moved/precious".to_owned()), "{left:?}");
    };
    if by_root {
        out_of_reach(&|merged| {
            fs::create_dir(merged.join("closed")).unwrap();
            fs::rename(merged.join("moved"), merged.join("closed/there")).unwrap();
            let closed = fs::Permissions::from_mode(0o000);
            fs::set_permissions(merged.join("closed"), closed).unwrap();
        });
        out_of_reach(&|merged| {
            let mut deep = merged.to_owned();
            (0..=tree::MAX_DEPTH).for_each(|_| deep.push("d"));
            fs::create_dir_all(&deep).unwrap();
            fs::rename(merged.join("moved"), deep.join("there")).unwrap();
        });
    } else {
        // The control: nothing is out of reach.
        let place = overlaid(by_root, |folder| {
            fs::create_dir(folder.join("moved")).unwrap()
        });
        let merged = place.root.join("merged");
        let moved = fs::rename(merged.join("moved"), merged.join("there")).unwrap_err();
        assert_eq!(moved.kind(), std::io::ErrorKind::CrossesDevices);
        let none = rustix::mount::UnmountFlags::empty();
        rustix::mount::unmount(merged, none).unwrap();
    }
}

fn mount(place: &Place, merged: &Path, by_root: bool) {
    let layer = place.inside(".");
    let notes = if by_root {
        "redirect_dir=on"
    } else {
        "userxattr"
    };
    let options = format!(
        "lowerdir={},upperdir={},workdir={},{notes}",
        place.root.join("folder").display(),
        layer.join(OsStr::from_bytes(UPPER.to_bytes())).display(),
        layer
            .join(OsStr::from_bytes(sandbox::native::WORK.to_bytes()))
            .display(),
    );
    let mut command = Command::new("mount");
    command.args(["-t", "overlay", "overlay", "-o", &options]);
    let done = command.arg(merged).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// The overlay's attributes of a file.
fn notes_of(path: &Path) -> Vec<String> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = String::from_utf8(names[..length].to_vec()).unwrap();
    let names = names.split('\0').filter(|name| name.contains("overlay."));
    names.map(str::to_owned).collect()
}
