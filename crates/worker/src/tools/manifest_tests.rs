use super::*;
use proptest::prelude::*;

fn base() -> TopicBase {
    TopicBase::new("n", "").unwrap()
}

fn manifest(text: &str) -> Manifest {
    read(text.as_bytes(), &base()).unwrap()
}

/// The one problem of an entry `t` with these keys.
fn problem(keys: &str) -> ToolProblem {
    let manifest = manifest(&format!(
        "version: 1\ntools:\n  good: {{module: m, function: f}}\n  t: {{{keys}}}\n"
    ));
    assert_eq!(
        manifest
            .entries
            .iter()
            .map(|entry| &*entry.name)
            .collect::<Vec<_>>(),
        ["good"],
        "{keys}"
    );
    let [problem] = &manifest.problems[..] else {
        panic!("{keys}: {:?}", manifest.problems)
    };
    assert_eq!(
        (problem.tool.as_deref(), problem.line),
        (Some("t"), Some(4)),
        "{keys}"
    );
    assert!(
        !problem.hint.is_empty() && !problem.to_string().contains('\n'),
        "{keys}"
    );
    problem.clone()
}

#[test]
fn both_generations_of_entries_are_read() {
    let manifest = manifest(
        r#"
version: 1
tools:
  resize_image: {runtime: python, module: imgtools.resize, function: resize, sandbox_profile: restrictive}
  db_query:
    module: dbtool
    class_name: DbQuery
    package: asyncpg
    version: ">=0.29"
    timeout_seconds: 60
    description: Asks a database.
    parameters: {type: OBJECT, properties: {sql: {type: STRING}}}
    artifact_params: {into: {is_optional: true}}
    config_schema: [{key: dsn, type: string, required: true, secret: true}]
  weather_tools:
    runtime: python
    tool_dir: weather
    executable: python/bin/weather
    timeout_seconds: 60
    sandbox_profile: standard
    schema_refresh_seconds: 600
    resource_limits: {max_cpu_seconds: 60, max_file_size_mb: 100, max_open_files: 256, max_processes: 32, max_stack_size_mb: 64}
"#,
    );
    assert_eq!(manifest.problems, []);
    let [resize, query, weather] = &manifest.entries[..] else {
        panic!("{manifest:?}")
    };
    assert_eq!(
        (&*resize.name, resize.line, resize.profile),
        ("resize_image", 4, Some(ToolProfile::Restrictive))
    );
    let wanted = ManifestTarget::Function {
        module: "imgtools.resize".into(),
        function: "resize".into(),
    };
    assert_eq!(resize.wanted, wanted);
    assert_eq!(
        query.requirement,
        Some(PackageRequirement::new("asyncpg", Some(">=0.29")).unwrap())
    );
    assert_eq!(
        (query.timeout, query.schema.description.as_deref()),
        (Some(Duration::from_secs(60)), Some("Asks a database."))
    );
    assert!(
        query.schema.artifact_params["into"].is_optional && query.schema.config_schema.is_some()
    );
    let wanted = ManifestTarget::Executable {
        tool_dir: "weather".into(),
        executable: "python/bin/weather".into(),
    };
    assert_eq!(
        (&weather.wanted, weather.refresh),
        (&wanted, Some(Duration::from_secs(600)))
    );
    let limits = ToolLimits {
        cpu_time: Some(Duration::from_secs(60)),
        file_bytes: Some(100 << 20),
        open_files: Some(256),
        processes: Some(32),
        stack_bytes: Some(64 << 20),
    };
    assert_eq!(weather.limits, limits);
}

#[test]
fn an_entry_that_is_not_right_is_left_out_and_the_others_are_not() {
    for (keys, says) in [
        (
            "module: m, function: f, sandbox_profil: restrictive",
            "did you mean `sandbox_profile`?",
        ),
        (
            "module: m, function: f, sandbox_profile: restrictiv",
            "did you mean `restrictive`?",
        ),
        ("module: m, function: f, colour: red", "`colour`"),
        ("module: m", "`function`"),
        ("function: f", "`module`"),
        ("module: m, function: f, class_name: C", "more than one"),
        ("module: m, function: f, executable: x", "more than one"),
        ("module: m, function: f, tool_dir: x", "`tool_dir`"),
        ("runtime: python", "what to run"),
        ("module: os.., function: f", "no module"),
        ("module: a-b, function: f", "no module"),
        ("module: m, function: 'f()'", "no name in Python"),
        ("module: m, function: 7", "no text"),
        ("module: 'm\\n', function: f", "no module"),
        ("executable: /bin/sh", "absolute"),
        ("executable: ../x", "`..`"),
        ("executable: a/../../x", "`..`"),
        ("executable: .", "no file"),
        ("tool_dir: ../x, executable: y", "`..`"),
        ("module: m, function: f, timeout_seconds: 0", "whole number"),
        (
            "module: m, function: f, timeout_seconds: -5",
            "whole number",
        ),
        (
            "module: m, function: f, timeout_seconds: many",
            "whole number",
        ),
        ("module: m, function: f, version: '1'", "without `package`"),
        (
            "module: m, function: f, package: a, version: 1.10",
            "quotes",
        ),
        (
            "module: m, function: f, package: '--pre'",
            "no package's name",
        ),
        (
            "module: m, function: f, parameters: {type: array}",
            "schema of an object",
        ),
        (
            "module: m, function: f, config_schema: [{key: auth}]",
            "`auth`",
        ),
        (
            "executable: x, resource_limits: {max_memory: 5}",
            "`max_memory`",
        ),
        (
            "executable: x, resource_limits: {max_processes: 0}",
            "whole number",
        ),
    ] {
        let told = problem(keys).to_string();
        assert!(told.contains(says), "{keys}: {told}");
    }
}

#[test]
fn names_that_no_topic_can_have_are_refused() {
    for name in [
        "a/b",
        "'*'",
        "'a>'",
        "'#'",
        "'a+b'",
        "\"a\\nb\"",
        "''",
        &"x".repeat(250),
    ] {
        let manifest = manifest(&format!("tools:\n  {name}: {{module: m, function: f}}\n"));
        assert!(
            manifest.entries.is_empty() && manifest.problems.len() == 1,
            "{name}: {manifest:?}"
        );
    }
    let fine = manifest("tools:\n  some-tool_1.2 x: {module: m, function: f}\n");
    assert_eq!(fine.entries.len(), 1);
}

#[test]
fn what_is_not_a_map_is_named_with_its_line() {
    let read = manifest("version: 1\ntools:\n  a: 5\n  b: [x]\n  c:\n");
    let lines: Vec<_> = read.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(
        (read.entries.len(), lines),
        (0, vec![Some(3), Some(4), Some(5)])
    );
    assert!(super::read(b"tools: [a]", &base()).is_err());
    assert!(super::read(b"- a", &base()).is_err());
    assert!(
        super::read(
            b"tools: {a: {module: m, function: f}, a: {module: m, function: f}}",
            &base()
        )
        .is_err()
    );
}

#[test]
fn another_version_and_unknown_keys_at_the_top_are_told_and_the_rest_is_read() {
    let manifest = manifest("version: 2\ntolls: {}\ntools: {a: {module: m, function: f}}");
    assert_eq!(manifest.entries.len(), 1);
    let told: Vec<_> = manifest.problems.iter().map(ToString::to_string).collect();
    assert!(
        told[0].contains("only 1 is known") && told[1].contains("did you mean `tools`?"),
        "{told:?}"
    );
    assert_eq!(self::manifest("version: '1'\ntools:\n").problems, []);
}

#[test]
fn a_runtime_is_a_hint_and_an_odd_one_is_told() {
    for (keys, is_odd) in [
        ("module: m, function: f, runtime: python", false),
        ("module: m, function: f, runtime: Python", false),
        ("module: m, class_name: C, runtime: python3", false),
        ("executable: x, runtime: Go", false),
        ("module: m, function: f, runtime: java", true),
        ("executable: x, runtime: 3.11", true),
        ("executable: x, runtime: [python]", true),
    ] {
        let manifest = manifest(&format!("tools:\n  t: {{{keys}}}\n"));
        assert_eq!(
            (manifest.entries.len(), manifest.problems.len()),
            (1, usize::from(is_odd)),
            "{keys}"
        );
        assert!(
            manifest
                .problems
                .iter()
                .all(|problem| problem.tool.as_deref() == Some("t")),
            "{keys}"
        );
    }
}

#[test]
fn a_manifest_without_tools_is_none_and_one_with_no_tools_is() {
    for text in ["", "# nothing yet\n", "version: 1\n"] {
        assert!(
            read(text.as_bytes(), &base())
                .unwrap_err()
                .message
                .contains("names no tools"),
            "{text}"
        );
    }
    for text in ["tools: {}", "version: 1\ntools:\n"] {
        assert_eq!(manifest(text), Manifest::default(), "{text}");
    }
}

#[test]
fn bombs_are_refused_whole() {
    let deep = format!("tools: {}{}", "[".repeat(5000), "]".repeat(5000));
    let aliases = "a: &a [x]\nb: &b [*a, *a]\ntools: [*b, *b]";
    let many: String = (0..600)
        .map(|at| format!("  t{at}: {{module: m, function: f}}\n"))
        .collect();
    let large = format!("# {}\ntools: {{}}", "x".repeat(yaml::MAX_BYTES));
    for text in [
        &*deep,
        aliases,
        &format!("tools:\n{many}"),
        &large,
        "tools: {}\n---\ntools: {}",
        "tools: {<<: {a: 1}}\u{0}",
    ] {
        assert!(
            read(text.as_bytes(), &base()).is_err(),
            "{}",
            &text[..text.len().min(60)]
        );
    }
    assert!(read(b"\xff", &base()).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_reading_panic(text in "(version|tools|a|[ \n:{}\\[\\],'\"&*!|>#-]|1){0,60}") {
        _ = read(text.as_bytes(), &base());
    }

    #[test]
    fn whatever_an_entry_says_what_is_read_is_within_bounds(
        key in prop::sample::select(KEYS.to_vec()), value in "[ -~]{0,40}", path in "[a./]{1,12}",
    ) {
        let quoted = serde_json::to_string(&value).unwrap();
        let text = format!("tools:\n  t: {{executable: {path:?}, {key}: {quoted}}}");
        let Ok(manifest) = read(text.as_bytes(), &base()) else { return Ok(()) };
        let left_out = manifest.problems.iter().filter(|problem| !problem.message.contains("no runtime"));
        prop_assert_eq!(manifest.entries.len() + left_out.count(), 1);
        for entry in manifest.entries {
            if let ManifestTarget::Executable { tool_dir, executable } = entry.wanted {
                for path in [tool_dir, executable] {
                    prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
                }
            }
        }
        for problem in manifest.problems {
            prop_assert!(problem.to_string().chars().all(|letter| !letter.is_control()));
        }
    }
}
