use super::*;
use crate::{
    call::profile::ToolProfile,
    tools::{EntryPoint, ProbeRequest, ToolCardCache},
    wire::code::{CallRefusal, MeshErrorCode as ErrorCode},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// Answers by what is asked for, and remembers what was.
#[derive(Default)]
struct Fake {
    answers: Mutex<BTreeMap<String, Result<Value, String>>>,
    asked: Mutex<Vec<ProbeRequest>>,
    /// Held while nobody is to be answered.
    gate: Arc<tokio::sync::RwLock<()>>,
}

impl Fake {
    fn says(&self, words: &str, answer: Result<Value, &str>) {
        self.answers
            .lock()
            .unwrap()
            .insert(words.to_owned(), answer.map_err(str::to_owned));
    }

    fn hold(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        self.gate.clone().try_write_owned().unwrap()
    }

    fn count(&self, words: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|question| line(question).contains(words))
            .count()
    }
}

fn line(question: &ProbeRequest) -> String {
    question
        .command
        .join(" ".as_ref())
        .to_string_lossy()
        .into_owned()
}

impl SchemaProbe for Fake {
    async fn ask(&self, question: ProbeRequest) -> Result<Vec<u8>, CallRefusal> {
        let _open = self.gate.clone().read_owned().await;
        let line = line(&question);
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(question);
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = answers
            .iter()
            .find(|(words, _)| line.contains(&**words))
            .map(|(_, answer)| answer.clone());
        match found.unwrap_or_else(|| Err("nobody knows".to_owned())) {
            Ok(answer) => Ok(answer.to_string().into_bytes()),
            Err(why) => Err(CallRefusal::new(ErrorCode::ExecutionError, why)),
        }
    }
}

/// A folder of tools with a watcher.
struct Place {
    top: PathBuf,
    fake: Arc<Fake>,
    catalog: channel::Receiver<Catalog>,
    reports: mpsc::Receiver<ToolReport>,
}

#[path = "changing_code_tests.rs"]
mod changing_code;

const PATIENCE: Duration = Duration::from_secs(30);

impl Place {
    fn new(name: &str, prepare: impl FnOnce(&Path, &Fake)) -> Place {
        Place::every(Duration::from_millis(20), name, prepare)
    }

    fn every(every: Duration, name: &str, prepare: impl FnOnce(&Path, &Fake)) -> Place {
        let top =
            std::env::temp_dir().join(format!("airlock-catalog-{name}-{}", std::process::id()));
        fs::create_dir_all(top.join("python")).unwrap();
        let top = fs::canonicalize(top).unwrap();
        let fake = Arc::new(Fake::default());
        prepare(&top, &fake);
        let (catalog, reports) = watch(settings(&top, every), fake.clone());
        Place {
            top,
            fake,
            catalog,
            reports,
        }
    }

    /// Waits for a catalog with exactly these, and gives it.
    async fn has(&mut self, names: &[&str]) -> Catalog {
        let is_it =
            |catalog: &Catalog| catalog.keys().map(|name| &**name).eq(names.iter().copied());
        self.wait(is_it).await
    }

    async fn wait(&mut self, is_it: impl Fn(&Catalog) -> bool) -> Catalog {
        let waited = tokio::time::timeout(PATIENCE, self.catalog.wait_for(|now| is_it(now))).await;
        waited.expect("it comes in time").unwrap().clone()
    }

    /// The next report that says this.
    async fn told(&mut self, words: &str) -> ToolReport {
        let find = async {
            loop {
                let report = self.reports.recv().await.unwrap();
                let (ToolReport::Problem(problem)
                | ToolReport::Kept(problem)
                | ToolReport::Failed { problem, .. }) = &report
                else {
                    continue;
                };
                if problem.to_string().contains(words) {
                    return report;
                }
            }
        };
        tokio::time::timeout(PATIENCE, find)
            .await
            .unwrap_or_else(|_| panic!("nobody said {words}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.top).unwrap();
    }
}

fn settings(top: &Path, every: Duration) -> CatalogSettings {
    CatalogSettings {
        manifest: top.join("manifest.yaml"),
        folder: top.to_owned(),
        python_dir: top.join("python"),
        site: None,
        python: "/usr/bin/python3".into(),
        installer: None,
        base: TopicBase::new("n", "").unwrap(),
        every,
    }
}

fn put(top: &Path, name: &str, text: &str) {
    let path = top.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let aside = top.join(".new");
    fs::write(&aside, text).unwrap();
    fs::set_permissions(&aside, PermissionsExt::from_mode(0o755)).unwrap();
    fs::rename(aside, path).unwrap();
}

fn manifest(top: &Path, entries: &str) {
    put(
        top,
        "manifest.yaml",
        &format!("version: 1\ntools:\n{entries}"),
    );
}

const ECHO: &str = "  echo: {module: m, function: echo, description: Says it again., parameters: {type: object}}\n";

#[tokio::test]
async fn entries_become_tools_and_programs_with_several_have_both_names() {
    let mut place = Place::new("become", |top, fake| {
        let more = "  asked: {module: m, function: f, sandbox_profile: restrictive, timeout_seconds: 7}\n  \
                    one: {executable: one}\n  set: {tool_dir: set, executable: run, timeout_seconds: 9}\n";
        manifest(top, &format!("{ECHO}{more}"));
        put(top, "python/m.py", "");
        put(top, "one", "");
        put(top, "set/python/bin/run", "");
        fake.says(
            "--describe m f",
            Ok(json!({"description": "d", "parameters": {"type": "object"}})),
        );
        fake.says(
            "/tools/set/one --schema",
            Ok(json!({"tools": {"its_own": {"description": "1"}}})),
        );
        let both = json!({"tools": {"a": {"description": "A", "timeout_seconds": 3}, "b": {"description": "B"}}});
        fake.says("/tools/set/python/bin/run --schema", Ok(both));
    });
    let catalog = place
        .has(&["asked", "echo", "one", "set__a", "set__b"])
        .await;
    let executable = |path: &str, tool: &str| EntryPoint::Executable {
        path: path.into(),
        tool: tool.into(),
    };
    assert_eq!(catalog["one"].what, executable("one", "its_own"));
    assert_eq!(
        (
            &*catalog["one"].card.tool_name,
            catalog["one"].code.folder.as_ref()
        ),
        ("one", Some(&place.top))
    );
    assert_eq!(catalog["set__a"].what, executable("python/bin/run", "a"));
    assert_eq!(catalog["set__a"].code.folder, Some(place.top.join("set")));
    let times = ["asked", "echo", "set__a", "set__b"]
        .map(|name| catalog[name].timeout.map(|time| time.as_secs()));
    assert_eq!(
        times,
        [Some(7), None, Some(3), Some(9)],
        "what a tool says of itself wins"
    );
    assert_eq!(catalog["asked"].card.description.as_deref(), Some("d"));
    assert_eq!(catalog["echo"].code.python, Some(place.top.join("python")));
    assert_eq!(place.fake.count("echo"), 0, "its entry says all");
}

#[tokio::test]
async fn an_edit_is_seen_and_what_cannot_be_read_changes_nothing() {
    let mut place = Place::new("edit", |top, _| {
        manifest(top, ECHO);
        put(top, "python/m.py", "");
    });
    place.has(&["echo"]).await;
    // As large and as old as before.
    let path = place.top.join("manifest.yaml");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let aside = place.top.join("aside");
    fs::write(&aside, text.replace("  echo:", "  ohce:")).unwrap();
    fs::File::options()
        .write(true)
        .open(&aside)
        .unwrap()
        .set_modified(time)
        .unwrap();
    fs::rename(aside, &path).unwrap();
    place.has(&["ohce"]).await;
    put(&place.top, "manifest.yaml", "tools: [");
    assert!(matches!(
        place.told("tools stay as they were").await,
        ToolReport::Problem(_)
    ));
    assert_eq!(place.catalog.borrow().len(), 1);
    fs::remove_file(&path).unwrap();
    place.told("cannot be read").await;
    assert_eq!(place.catalog.borrow().len(), 1);
    manifest(&place.top, &format!("{ECHO}  bad: {{module: m}}\n"));
    place.has(&["echo"]).await;
    place.told("tool `bad`").await;
    manifest(&place.top, "");
    place.has(&[]).await;
}

#[tokio::test]
async fn an_entry_that_is_edited_is_served_until_it_is_prepared_anew_with_its_new_bounds_at_once() {
    let mut place = Place::new("edited", |top, fake| {
        manifest(
            top,
            "  t: {module: m, function: f, sandbox_profile: permissive}\n  p: {executable: p}\n",
        );
        put(top, "python/m.py", "1");
        put(top, "p", "");
        fake.says("--describe", Ok(json!({"description": "before"})));
        let said = json!({"description": "1", "timeout_seconds": 3});
        fake.says("--schema", Ok(json!({"tools": {"x": said}})));
    });
    place.has(&["p", "t"]).await;
    // Nobody gets an answer from now on.
    let held = place.fake.hold();
    let strict =
        "sandbox_profile: restrictive, timeout_seconds: 7, resource_limits: {max_processes: 2}";
    manifest(
        &place.top,
        &format!("  t: {{module: m, function: f, {strict}}}\n  p: {{executable: p, {strict}}}\n"),
    );
    let is_strict = |tool: &Tool| tool.profile == Some(ToolProfile::Restrictive);
    let mut seen = place.catalog.clone();
    let strict = async {
        loop {
            let now = seen.borrow_and_update().clone();
            assert_eq!(now.len(), 2, "both are served throughout");
            if now.values().all(|tool| is_strict(tool)) {
                return now;
            }
            seen.changed().await.unwrap();
        }
    };
    let now = tokio::time::timeout(PATIENCE, strict).await.unwrap();
    assert_eq!(now["t"].card.description.as_deref(), Some("before"));
    let times = ["t", "p"].map(|name| now[name].timeout.map(|time| time.as_secs()));
    assert_eq!(
        times,
        [Some(7), Some(3)],
        "what a program says of itself wins"
    );
    assert_eq!(now["t"].limits.processes, Some(2));
    place
        .fake
        .says("--describe", Ok(json!({"description": "after"})));
    drop(held);
    place
        .wait(|now| now["t"].card.description.as_deref() == Some("after"))
        .await;
    // Something else to run is another tool: what it was is not served for it.
    let _held = place.fake.hold();
    manifest(
        &place.top,
        "  t: {module: m, function: g}\n  p: {executable: p}\n",
    );
    place.has(&["p"]).await;
}

#[test]
fn a_manifest_that_is_being_written_takes_nothing_away() {
    let top = std::env::temp_dir().join(format!("airlock-catalog-torn-{}", std::process::id()));
    fs::create_dir_all(&top).unwrap();
    let settings = settings(&top, SCAN_INTERVAL);
    let mut memory = ScanState::default();
    let mut looked = |text: &str| {
        put(&top, "manifest.yaml", text);
        let (look, after) = scan(&settings, std::mem::take(&mut memory));
        memory = after;
        let names: Vec<String> = look
            .placed
            .into_iter()
            .map(|placed| placed.entry.name)
            .collect();
        (names.join(" "), look.problems.len())
    };
    let one = "tools:\n  a: {module: m, function: f}\n";
    let both = format!("{one}  b: {{module: m, function: f}}\n");
    let (as_before, told) = (("a b".to_owned(), 0), ("a b".to_owned(), 1));
    assert_eq!(
        looked(&both),
        as_before,
        "at first there is nothing to lose"
    );
    for torn in ["", one, "tools:\n  a: {mod", "tools: {}"] {
        assert_eq!(looked(torn), as_before, "{torn}");
        assert_eq!(looked(&both), as_before, "{torn}");
        assert_eq!(looked(torn), as_before, "{torn}: not twice in a row");
        assert_eq!(looked(&both), as_before, "{torn}");
    }
    assert_eq!(
        [looked(""), looked("")],
        [as_before.clone(), told],
        "an empty file is none"
    );
    looked(&both);
    assert_eq!(
        [looked(&both), looked(one), looked(one)],
        [as_before.clone(), as_before, ("a".to_owned(), 0)]
    );
    looked("tools: {}");
    assert_eq!(looked("tools: {}"), (String::new(), 0));
    fs::remove_dir_all(top).unwrap();
}

#[tokio::test]
async fn what_is_pending_is_told_until_all_is_settled() {
    let top = std::env::temp_dir().join(format!("airlock-catalog-pending-{}", std::process::id()));
    fs::create_dir_all(&top).unwrap();
    manifest(&top, "  p: {executable: p}\n  gone: {executable: gone}\n");
    put(&top, "p", "");
    let fake = Arc::new(Fake::default());
    fake.says("--schema", Err("no"));
    let held = fake.hold();
    let (_catalog, mut reports, mut pending) =
        watch_all(settings(&top, SCAN_INTERVAL), fake.clone());
    let first = pending.wait_for(Option::is_some).await.unwrap().clone();
    assert_eq!(first, Some(["p".to_owned()].into()));
    drop(held);
    tokio::time::timeout(
        PATIENCE,
        pending.wait_for(|now| now == &Some(BTreeSet::new())),
    )
    .await
    .unwrap()
    .unwrap();
    let told: Vec<ToolReport> = std::iter::from_fn(|| reports.try_recv().ok()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    fs::remove_dir_all(top).unwrap();
}

#[tokio::test]
async fn other_code_has_another_stamp_at_once_and_is_asked_again() {
    let mut place = Place::new("code", |top, fake| {
        manifest(top, "  t: {module: m, function: f}\n");
        put(top, "python/m.py", "1");
        fake.says("--describe", Ok(json!({"description": "before"})));
    });
    let before = place.has(&["t"]).await["t"].clone();
    place
        .fake
        .says("--describe", Ok(json!({"description": "after"})));
    put(&place.top, "python/m.py", "2");
    let after = place
        .wait(|now| now["t"].card.description.as_deref() == Some("after"))
        .await["t"]
        .clone();
    assert!(after.code.stamp != before.code.stamp && after != before);
    // Nothing else is asked for while nothing changes.
    let asked = place.fake.count("--describe");
    manifest(
        &place.top,
        &format!("# a line more\n  t: {{module: m, function: f}}\n{ECHO}"),
    );
    place.has(&["echo", "t"]).await;
    assert_eq!(place.fake.count("--describe"), asked);
}

#[tokio::test]
async fn a_manifest_that_comes_before_its_code_is_served_once_that_is_there() {
    let mut place = Place::new("before", |top, fake| {
        manifest(
            top,
            &format!("{ECHO}  p: {{tool_dir: set, executable: run}}\n"),
        );
        fs::remove_dir(top.join("python")).unwrap();
        fake.says(
            "--schema",
            Ok(json!({"tools": {"x": {"description": "1"}}})),
        );
    });
    // Whoever calls the function is told so by the interpreter.
    assert!(matches!(
        place.told("its module `m` is nowhere").await,
        ToolReport::Problem(_)
    ));
    place.has(&["echo"]).await;
    put(&place.top, "set/run", "");
    place.has(&["echo", "p"]).await;
    put(&place.top, "python/m.py", "");
    fs::remove_file(place.top.join("set/run")).unwrap();
    place.has(&["echo"]).await;
    assert!(matches!(
        place.told("`run` is not there").await,
        ToolReport::Failed { .. }
    ));
}

#[tokio::test]
async fn what_does_not_say_what_it_is_is_told_once_and_a_function_is_served_all_the_same() {
    let mut place = Place::new("silent", |top, fake| {
        manifest(
            top,
            "  f: {module: m, function: f}\n  p: {executable: p}\n  q: {executable: q}\n",
        );
        put(top, "python/m.py", "");
        put(top, "p", "");
        put(top, "q", "");
        fake.says("/p --schema", Err("ImportError:\n no module `x`"));
        fake.says(
            "/q --schema",
            Ok(json!({"tools": {"a": {"volume_params": [1]}, "b": {"auth": {"type": "bearer"}}}})),
        );
    });
    let catalog = place.has(&["f", "q__b"]).await;
    assert_eq!(catalog["f"].card.description, None);
    let mut told = [
        place.told("").await,
        place.told("").await,
        place.told("").await,
        place.told("").await,
    ];
    told.sort();
    let [one, two, three, four] = told.map(|report| match report {
        ToolReport::Problem(problem) => format!("- {problem}"),
        ToolReport::Kept(problem) | ToolReport::Failed { problem, .. } => format!("! {problem}"),
        ToolReport::Note(text) => text,
    });
    assert!(
        one.contains("- tool `f`") && one.contains("its name alone"),
        "{one}"
    );
    assert!(
        two.contains("- tool `q`") && two.contains("`auth`"),
        "{two}"
    );
    assert!(
        three.contains("- tool `q`") && three.contains("volumes"),
        "{three}"
    );
    assert!(
        four.contains("! tool `p`") && four.contains("ImportError: no module `x`"),
        "{four}"
    );
    // It is asked again when its code changes, whatever the pause.
    place.fake.says(
        "/p --schema",
        Ok(json!({"tools": {"x": {"description": "1"}}})),
    );
    put(&place.top, "p", "mended");
    place.has(&["f", "p", "q__b"]).await;
}

#[tokio::test]
async fn a_program_whose_new_code_is_broken_is_kept_and_not_left_out() {
    let mut place = Place::new("kept", |top, fake| {
        manifest(top, "  p: {executable: p}\n");
        put(top, "p", "");
        fake.says(
            "/p --schema",
            Ok(json!({"tools": {"x": {"description": "1"}}})),
        );
    });
    let before = place.has(&["p"]).await["p"].clone();
    place.fake.says("/p --schema", Err("SyntaxError"));
    put(&place.top, "p", "broken");
    assert!(matches!(
        place.told("SyntaxError").await,
        ToolReport::Kept(_)
    ));
    let now = place.catalog.borrow().clone();
    assert!(now["p"].card == before.card && now["p"].code.stamp != before.code.stamp);
    // Once nothing of it can be served, it is left out.
    fs::remove_file(place.top.join("p")).unwrap();
    assert!(matches!(
        place.told("`p` is not there").await,
        ToolReport::Failed { .. }
    ));
    place.has(&[]).await;
}

#[tokio::test]
async fn a_function_whose_new_code_is_broken_is_kept_with_what_agents_know_of_it() {
    let mut place = Place::new("broken", |top, fake| {
        manifest(
            top,
            "  f: {module: m, function: f}\n  c: {module: m, class_name: C, timeout_seconds: 5}\n",
        );
        put(top, "python/m.py", "");
        fake.says(
            "--describe m f",
            Ok(json!({"description": "d", "parameters": {"type": "object"}})),
        );
        fake.says(
            "--schema-class m C",
            Ok(json!({"description": "c", "timeout_seconds": 3})),
        );
    });
    let before = place.has(&["c", "f"]).await;
    place.fake.says("--describe m f", Err("SyntaxError"));
    place.fake.says("--schema-class m C", Err("SyntaxError"));
    put(&place.top, "python/m.py", "retrun");
    for _ in 0..2 {
        let told = place.told("SyntaxError").await;
        assert!(
            matches!(&told, ToolReport::Kept(problem) if !problem.message.contains("alone")),
            "{told:?}"
        );
    }
    let is_kept = |now: &Catalog, name: &str| {
        let (now, before) = (&now[name], &before[name]);
        now.card == before.card
            && now.timeout == before.timeout
            && now.code.stamp != before.code.stamp
    };
    let now = place.catalog.borrow().clone();
    assert!(is_kept(&now, "f") && is_kept(&now, "c"), "{now:?}");
    // Once it is nowhere, too: whoever calls it is told so.
    fs::remove_file(place.top.join("python/m.py")).unwrap();
    assert!(matches!(
        place.told("its module `m` is nowhere").await,
        ToolReport::Kept(_)
    ));
    place
        .fake
        .says("--describe m f", Ok(json!({"description": "mended"})));
    put(&place.top, "python/m.py", "return");
    place
        .wait(|now| now["f"].card.description.as_deref() == Some("mended"))
        .await;
    // Another function is another tool: nothing is known of it.
    place.fake.says("--describe m g", Err("SyntaxError"));
    manifest(&place.top, "  f: {module: m, function: g}\n");
    assert!(matches!(
        place.told("its name alone").await,
        ToolReport::Problem(_)
    ));
    assert_eq!(place.has(&["f"]).await["f"].card.description, None);
}

#[tokio::test]
async fn packages_without_an_installer_leave_the_entry_out() {
    let mut place = Place::new("packages", |top, _| {
        manifest(
            top,
            &format!("{ECHO}  t: {{module: m, function: f, package: asyncpg}}\n"),
        );
        put(top, "python/m.py", "");
    });
    assert!(matches!(
        place.told("packages are not installed").await,
        ToolReport::Failed { .. }
    ));
    place.has(&["echo"]).await;
}

#[tokio::test]
async fn a_card_for_a_configuration_is_asked_for_once_and_the_secret_is_in_no_argument() {
    let mut place = Place::new("cards", |top, fake| {
        manifest(
            top,
            "  c: {module: m, class_name: C}\n  p: {executable: p}\n",
        );
        put(top, "python/m.py", "");
        put(top, "p", "");
        fake.says(
            "--schema-class m C",
            Ok(json!({"description": "d", "instructions": "i"})),
        );
        fake.says(
            "/p --schema",
            Ok(json!({"tools": {"x": {"description": "1"}}})),
        );
    });
    let catalog = place.has(&["c", "p"]).await;
    let cards = ToolCardCache::new(place.fake.clone(), "/usr/bin/python3".into());
    let Value::Object(config) = json!({"dsn": "very-secret"}) else {
        unreachable!()
    };
    assert_eq!(
        cards
            .describe(&catalog["c"], &serde_json::Map::new())
            .await
            .unwrap(),
        catalog["c"].card
    );
    place.fake.says(
        "--schema-class m C /workspace/config.json",
        Ok(json!({"description": "of it"})),
    );
    place
        .fake
        .answers
        .lock()
        .unwrap()
        .remove("--schema-class m C");
    for _ in 0..2 {
        let card = cards.describe(&catalog["c"], &config).await.unwrap();
        assert_eq!(
            (card.description.as_deref(), card.instructions.as_deref()),
            (Some("of it"), Some("i"))
        );
    }
    assert_eq!(place.fake.count("config.json"), 1);
    let question = place.fake.asked.lock().unwrap().last().unwrap().clone();
    assert!(!line(&question).contains("very-secret"));
    assert_eq!(question.config, Some(serde_json::to_vec(&config).unwrap()));
    place.fake.says("--schema-class", Err("bad dsn"));
    let Value::Object(other) = json!({"dsn": "other"}) else {
        unreachable!()
    };
    place
        .fake
        .answers
        .lock()
        .unwrap()
        .remove("--schema-class m C /workspace/config.json");
    let refusal = cards.describe(&catalog["c"], &other).await.unwrap_err();
    assert!(refusal.code == ErrorCode::InitError && refusal.message.contains("bad dsn"));
    place.fake.says("/p --schema", Err("usage: p ARGS"));
    assert_eq!(
        cards.describe(&catalog["p"], &other).await.unwrap(),
        catalog["p"].card
    );
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_tried_again_after_a_growing_pause_and_schemas_are_refreshed() {
    let mut place = Place::every(SCAN_INTERVAL, "again", |top, fake| {
        manifest(
            top,
            "  bad: {executable: bad}\n  p: {executable: p, schema_refresh_seconds: 600}\n",
        );
        put(top, "p", "");
        put(top, "bad", "");
        fake.says(
            "/p --schema",
            Ok(json!({"tools": {"x": {"description": "before"}}})),
        );
        fake.says("/bad --schema", Err("not yet"));
    });
    let began = Instant::now();
    place.has(&["p"]).await;
    place.fake.says(
        "/p --schema",
        Ok(json!({"tools": {"x": {"description": "after"}}})),
    );
    let refreshed = |now: &Catalog| now["p"].card.description.as_deref() == Some("after");
    let waited = place.catalog.wait_for(|now| refreshed(now));
    tokio::time::timeout(Duration::from_secs(700), waited)
        .await
        .unwrap()
        .unwrap();
    assert!(began.elapsed() >= Duration::from_secs(600));
    // 0, 5, 15, 35, 75, 155, 315, and 615 if that is sooner.
    assert!(
        (7..=8).contains(&place.fake.count("/bad --schema")),
        "{}",
        place.fake.count("/bad --schema")
    );
    // A schema that is asked for in vain leaves what was known.
    place.fake.says("/p --schema", Err("busy"));
    let told = tokio::time::timeout(Duration::from_secs(700), place.reports.recv());
    let told = told.await.unwrap().unwrap();
    assert!(
        matches!(&told, ToolReport::Failed { tool, .. } if tool == "bad"),
        "{told:?}"
    );
    let told = tokio::time::timeout(Duration::from_secs(700), place.reports.recv())
        .await
        .unwrap()
        .unwrap();
    let ToolReport::Kept(problem) = &told else {
        panic!("{told:?}")
    };
    assert!(
        problem.to_string().starts_with("tool `p`") && problem.message.contains("is served"),
        "{problem}"
    );
    assert!(refreshed(&place.catalog.borrow()));
}

#[tokio::test]
async fn what_is_outdated_before_its_turn_is_not_asked() {
    let mut held = None;
    let mut place = Place::new("outdated", |top, fake| {
        held = Some(fake.hold());
        put(top, "python/m.py", "");
        let entries =
            ["a", "b", "c"].map(|name| format!("  {name}: {{module: m, function: {name}}}\n"));
        manifest(top, &entries.concat());
        fake.says("--describe", Ok(json!({"description": "1"})));
    });
    for edit in 0..5 {
        put(&place.top, "python/m.py", &"#".repeat(edit + 1));
        let entries =
            ["a", "b", "c"].map(|name| format!("  {name}: {{module: m, function: {name}}}\n"));
        manifest(&place.top, &format!("{}  odd{edit}: 7\n", entries.concat()));
        // Its look is over.
        place.told(&format!("odd{edit}")).await;
    }
    drop(held);
    place
        .wait(|catalog| {
            catalog.len() == 3 && catalog.values().all(|tool| tool.card.description.is_some())
        })
        .await;
    // Those of the last code, and at most those that had their turn before.
    let asked = place.fake.count("--describe");
    assert!(
        (3..=3 + MAX_PREPARING).contains(&asked),
        "{asked} were asked"
    );
}

#[test]
fn modules_in_a_folder_of_packages_are_looked_at_whole() {
    let top = std::env::temp_dir().join(format!("airlock-catalog-both-{}", std::process::id()));
    put(&top, "python/deep/er/m.py", "1");
    manifest(&top, ECHO);
    let both = CatalogSettings {
        site: Some(top.join("python")),
        ..settings(&top, SCAN_INTERVAL)
    };
    let stamp = || {
        scan(&both, ScanState::default()).0.placed[0]
            .code
            .clone()
            .unwrap()
            .code
            .stamp
    };
    let before = stamp();
    assert_eq!(stamp(), before, "the control");
    fs::write(top.join("python/deep/er/m.py"), "22").unwrap();
    assert_ne!(stamp(), before);
    fs::remove_dir_all(top).unwrap();
}
