//! The manifest, as pure functions of its bytes: which tools there shall be. An entry that is not right is left out, and
//! reported; the others are served. Nothing is looked up here: whether code is there says [`super::place`].

use super::{
    Limits,
    card::{self, LONGEST_TIME, Said},
    problem::{Problem, word},
    requirement::Requirement,
    yaml::{self, Pair, Tree},
};
use crate::{call::profile::Profile, wire::topic::Base};
use serde_json::Value;
use spec::nearest;
use std::{
    ops::RangeInclusive,
    path::{Component, Path, PathBuf},
    time::Duration,
};

const MOST_TOOLS: usize = 512;
const LONGEST_WORD: usize = 256;
const LONGEST_PATH: usize = 1024;

const TOP: [&str; 2] = ["version", "tools"];
const KEYS: [&str; 17] = [
    "runtime",
    "module",
    "function",
    "class_name",
    "package",
    "version",
    "description",
    "parameters",
    "artifact_params",
    "instructions",
    "config_schema",
    "timeout_seconds",
    "sandbox_profile",
    "executable",
    "tool_dir",
    "schema_refresh_seconds",
    "resource_limits",
];
const LIMITS: [&str; 5] = [
    "max_cpu_seconds",
    "max_file_size_mb",
    "max_open_files",
    "max_processes",
    "max_stack_size_mb",
];

/// What a manifest says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) entries: Vec<Entry>,
    /// What is wrong with those that were left out, and with the rest.
    pub(crate) problems: Vec<Problem>,
}

/// An entry that can be served once its code is there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) line: u64,
    pub(crate) wanted: Wanted,
    pub(crate) said: Said,
    pub(crate) requirement: Option<Requirement>,
    pub(crate) profile: Option<Profile>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) refresh: Option<Duration>,
    pub(crate) limits: Limits,
}

/// What is to be run; paths are relative and have no `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Function {
        module: String,
        function: String,
    },
    Class {
        module: String,
        class_name: String,
    },
    Executable {
        tool_dir: PathBuf,
        executable: PathBuf,
    },
}

/// Reads a manifest. An error is one of the whole.
pub(crate) fn read(bytes: &[u8], base: &Base) -> Result<Manifest, Problem> {
    let pairs = match yaml::read(bytes)? {
        Tree::Map(pairs) => pairs,
        Tree::Plain(Value::Null) => Vec::new(),
        Tree::List(_) | Tree::Plain(_) => {
            let hint = "begin it with `version: 1` and `tools:`";
            return Err(Problem::new("the manifest is no map", hint));
        }
    };
    let mut manifest = Manifest::default();
    for Pair { line, key, value } in &pairs {
        match key.as_str() {
            "version" => manifest
                .problems
                .extend(version(value).map(|problem| problem.at(*line))),
            "tools" => tools(&mut manifest, *line, value, base)?,
            other => manifest.problems.push(unknown(other, &TOP).at(*line)),
        }
    }
    // Whoever wants no tools says so: a file without is one that is not written yet.
    match pairs.iter().any(|pair| pair.key == "tools") {
        true => Ok(manifest),
        false => {
            let hint = "write them below `tools:`, by name, or `tools: {}` for none";
            Err(Problem::new("the manifest names no tools", hint))
        }
    }
}

/// Another version is read all the same: keys that it means otherwise are likely unknown, and those are refused.
fn version(value: &Tree) -> Option<Problem> {
    let version = value.value();
    let is_known = version.as_f64() == Some(1.0) || version.as_str() == Some("1");
    (!is_known).then(|| {
        let message = format!(
            "`version` is {}, and only 1 is known; it is read as that",
            word(&version.to_string())
        );
        Problem::new(message, "write `version: 1`")
    })
}

fn tools(manifest: &mut Manifest, line: u64, value: &Tree, base: &Base) -> Result<(), Problem> {
    let pairs = match value {
        Tree::Map(pairs) => pairs.as_slice(),
        Tree::Plain(Value::Null) => &[],
        Tree::List(_) | Tree::Plain(_) => {
            return Err(Problem::new("`tools` is no map", "write each tool by its name").at(line));
        }
    };
    if pairs.len() > MOST_TOOLS {
        let message = format!(
            "the manifest has {} entries; it may have {MOST_TOOLS}",
            pairs.len()
        );
        return Err(Problem::new(message, "split it among workers").at(line));
    }
    for pair in pairs {
        match entry(pair, base) {
            Ok((entry, note)) => {
                manifest
                    .problems
                    .extend(note.map(|problem| problem.of(&pair.key).at(pair.line)));
                manifest.entries.push(entry);
            }
            Err(problem) => {
                let line = problem.line.unwrap_or(pair.line);
                manifest.problems.push(problem.of(&pair.key).at(line));
            }
        }
    }
    Ok(())
}

fn unknown(key: &str, known: &[&str]) -> Problem {
    let hint = match nearest(key, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("these are known: {}", known.join(", ")),
    };
    Problem::new(format!("nobody knows the key `{}`", word(key)), hint)
}

/// A tool's name is one level of topics.
pub(crate) fn check_name(name: &str, base: &Base) -> Result<(), Problem> {
    let hint = "use letters, digits, _ and -";
    if name.contains('/') {
        return Err(Problem::new("its name has a slash", hint));
    }
    base.invoke(name)
        .map(|_| ())
        .map_err(|bad| Problem::new(format!("its name cannot be used: {bad}"), hint))
}

/// What is read of an entry before it is known what it is.
#[derive(Default)]
struct Draft {
    runtime: Option<Value>,
    module: Option<String>,
    function: Option<String>,
    class_name: Option<String>,
    executable: Option<PathBuf>,
    tool_dir: Option<PathBuf>,
    package: Option<String>,
    version: Option<String>,
    said: Said,
    profile: Option<Profile>,
    timeout: Option<Duration>,
    refresh: Option<Duration>,
    limits: Limits,
}

/// An entry, and what is odd about it.
fn entry(pair: &Pair, base: &Base) -> Result<(Entry, Option<Problem>), Problem> {
    check_name(&pair.key, base)?;
    let Tree::Map(fields) = &pair.value else {
        return Err(Problem::new(
            "its entry is no map",
            "write its keys on lines of their own, further in",
        ));
    };
    let mut draft = Draft::default();
    for field in fields {
        draft
            .take(field)
            .map_err(|problem| problem.at(field.line))?;
    }
    let note = draft.odd_runtime();
    Ok((draft.finish(&pair.key, pair.line)?, note))
}

impl Draft {
    fn take(&mut self, field: &Pair) -> Result<(), Problem> {
        if field.value == Tree::Plain(Value::Null) && KEYS.contains(&field.key.as_str()) {
            return Ok(());
        }
        let value = || field.value.value();
        match field.key.as_str() {
            "runtime" => self.runtime = Some(field.value.value()),
            "module" => self.module = Some(module(field)?),
            "function" => self.function = Some(identifier(field)?),
            "class_name" => self.class_name = Some(identifier(field)?),
            "package" => self.package = Some(text(field)?),
            "version" => self.version = Some(text(field)?),
            "description" => self.said.description = filled(card::text("description", &value())?),
            "parameters" => self.said.parameters = Some(card::parameters(&value())?),
            "artifact_params" => self.said.artifact_params = card::artifact_params(&value())?,
            "instructions" => {
                self.said.instructions = filled(card::text("instructions", &value())?)
            }
            "config_schema" => self.said.config_schema = Some(card::config_schema(&value())?),
            "timeout_seconds" => self.timeout = Some(seconds(field)?),
            "sandbox_profile" => self.profile = Some(profile(field)?),
            "executable" => self.executable = Some(path(field)?),
            "tool_dir" => self.tool_dir = Some(path(field)?),
            "schema_refresh_seconds" => self.refresh = refresh(field)?,
            "resource_limits" => self.limits = limits(field)?,
            other => return Err(unknown(other, &KEYS)),
        }
        Ok(())
    }

    /// A runtime is a hint for whoever packs tools: what is run the other keys say.
    fn odd_runtime(&self) -> Option<Problem> {
        let runtime = self.runtime.as_ref()?;
        let known: &[&str] = match self.executable.is_some() {
            true => &["python", "python3", "go", "binary", "executable"],
            false => &["python", "python3"],
        };
        let is_known = |text: &str| known.iter().any(|known| text.eq_ignore_ascii_case(known));
        if runtime.as_str().is_some_and(is_known) {
            return None;
        }
        let shown = runtime
            .as_str()
            .map_or_else(|| runtime.to_string(), str::to_owned);
        let message = format!(
            "there is no runtime `{}` here; it is served by its other keys",
            word(&shown)
        );
        Some(Problem::new(
            message,
            "write `runtime: python`, or remove it",
        ))
    }

    fn finish(self, name: &str, line: u64) -> Result<Entry, Problem> {
        let requirement = match (&self.package, &self.version) {
            (Some(package), version) => Some(Requirement::new(package, version.as_deref())?),
            (None, Some(_)) => {
                return Err(Problem::new(
                    "`version` without `package`",
                    "say which package, or remove it",
                ));
            }
            (None, None) => None,
        };
        let Draft {
            said,
            profile,
            timeout,
            refresh,
            limits,
            ..
        } = self;
        let wanted = wanted(
            self.module,
            self.function,
            self.class_name,
            self.executable,
            self.tool_dir,
        )?;
        Ok(Entry {
            name: name.to_owned(),
            line,
            wanted,
            said,
            requirement,
            profile,
            timeout,
            refresh,
            limits,
        })
    }
}

fn wanted(
    module: Option<String>,
    function: Option<String>,
    class_name: Option<String>,
    executable: Option<PathBuf>,
    tool_dir: Option<PathBuf>,
) -> Result<Wanted, Problem> {
    let one = "say `module` with `function` or `class_name`, or `executable`";
    match (module, function, class_name, executable) {
        (Some(module), Some(function), None, None) if tool_dir.is_none() => {
            Ok(Wanted::Function { module, function })
        }
        (Some(module), None, Some(class_name), None) if tool_dir.is_none() => {
            Ok(Wanted::Class { module, class_name })
        }
        (None, None, None, Some(executable)) => Ok(Wanted::Executable {
            tool_dir: tool_dir.unwrap_or_default(),
            executable,
        }),
        (None, None, None, None) => Err(Problem::new("its entry does not say what to run", one)),
        (Some(_), None, None, None) => Err(Problem::new(
            "`module` without `function` or `class_name`",
            "say one of them",
        )),
        (None, _, _, None) => Err(Problem::new(
            "`function` or `class_name` without `module`",
            "say where it is",
        )),
        (_, _, _, None) if tool_dir.is_some() => {
            let hint = "remove it: modules are looked for in the Python folder of the tools";
            Err(Problem::new("`tool_dir` belongs to an `executable`", hint))
        }
        _ => Err(Problem::new(
            "its entry says more than one thing to run",
            one,
        )),
    }
}

fn filled(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn text(field: &Pair) -> Result<String, Problem> {
    let Tree::Plain(Value::String(text)) = &field.value else {
        return Err(Problem::new(
            format!("`{}` is no text", field.key),
            "put it in quotes",
        ));
    };
    match (1..=LONGEST_WORD).contains(&text.len()) && !text.contains(char::is_control) {
        true => Ok(text.clone()),
        false => {
            let message = format!(
                "`{}` is empty, too long, or on more than one line",
                field.key
            );
            Err(Problem::new(message, "write 1 to 256 bytes on one line"))
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let is_first = |letter: char| letter == '_' || letter.is_alphabetic();
    text.starts_with(is_first)
        && text
            .chars()
            .all(|letter| letter == '_' || letter.is_alphanumeric())
}

fn identifier(field: &Pair) -> Result<String, Problem> {
    let text = text(field)?;
    match is_identifier(&text) {
        true => Ok(text),
        false => {
            let message = format!(
                "`{}` is `{}`, which is no name in Python",
                field.key,
                word(&text)
            );
            Err(Problem::new(message, "use letters, digits and _"))
        }
    }
}

fn module(field: &Pair) -> Result<String, Problem> {
    let text = text(field)?;
    match text.split('.').all(is_identifier) {
        true => Ok(text),
        false => {
            let message = format!("`module` is `{}`, which is no module's name", word(&text));
            Err(Problem::new(
                message,
                "write it as after `import`, such as imgtools.resize",
            ))
        }
    }
}

fn profile(field: &Pair) -> Result<Profile, Problem> {
    let text = text(field)?;
    Profile::named(&text).ok_or_else(|| {
        let known = ["restrictive", "standard", "permissive"];
        let hint = match nearest(&text, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        Problem::new(format!("there is no profile `{}`", word(&text)), hint)
    })
}

/// A relative path of plain names.
fn path(field: &Pair) -> Result<PathBuf, Problem> {
    let bad = |why: &str| {
        let message = format!("`{}` {why}", field.key);
        Problem::new(
            message,
            "write a path below the folder of the tools, without `..`",
        )
    };
    let Tree::Plain(Value::String(text)) = &field.value else {
        return Err(bad("is no text"));
    };
    if text.is_empty() || text.len() > LONGEST_PATH || text.contains(char::is_control) {
        return Err(bad("is empty, too long, or has control characters"));
    }
    let mut clean = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => return Err(bad("leads out of it with `..`")),
            Component::RootDir | Component::Prefix(_) => return Err(bad("is an absolute path")),
        }
    }
    match field.key == "executable" && clean.as_os_str().is_empty() {
        true => Err(bad("names no file")),
        false => Ok(clean),
    }
}

fn whole(key: &str, value: &Tree, range: RangeInclusive<u64>) -> Result<u64, Problem> {
    value
        .value()
        .as_u64()
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            let message = format!(
                "`{key}` is no whole number from {} to {}",
                range.start(),
                range.end()
            );
            Problem::new(message, "write it without quotes")
        })
}

fn seconds(field: &Pair) -> Result<Duration, Problem> {
    whole(&field.key, &field.value, 1..=LONGEST_TIME).map(Duration::from_secs)
}

/// 0 is never. More often than every few seconds would be all that a worker does.
fn refresh(field: &Pair) -> Result<Option<Duration>, Problem> {
    let seconds = whole(&field.key, &field.value, 0..=30 * LONGEST_TIME)?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.max(10))))
}

fn limits(field: &Pair) -> Result<Limits, Problem> {
    let Tree::Map(pairs) = &field.value else {
        return Err(Problem::new(
            "`resource_limits` is no map",
            format!("write {}", LIMITS.join(", ")),
        ));
    };
    let mut limits = Limits::default();
    for Pair { line, key, value } in pairs {
        let whole = |most| whole(key, value, 1..=most).map_err(|problem| problem.at(*line));
        let count = |most: u32| whole(most.into()).map(|count| u32::try_from(count).ok());
        match key.as_str() {
            "max_cpu_seconds" => limits.cpu_time = Some(Duration::from_secs(whole(LONGEST_TIME)?)),
            "max_file_size_mb" => limits.file_bytes = Some(whole(1 << 20)? << 20),
            "max_open_files" => limits.open_files = count(1 << 20)?,
            "max_processes" => limits.processes = count(1 << 20)?,
            "max_stack_size_mb" => limits.stack_bytes = Some(whole(1 << 20)? << 20),
            other => return Err(unknown(other, &LIMITS).at(*line)),
        }
    }
    Ok(limits)
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
