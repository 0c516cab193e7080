//! Parser of the manifest, a pure function of its bytes. An invalid entry is left out and reported;
//! the others are served. Whether the code exists is checked by [`super::locate`].
//!
//! `prepare.rs` makes tools of the entries; a new key has a line in `docs/worker-tools.md`.

use super::{
    ToolLimits,
    problem::{ToolProblem, word},
    requirement::PackageRequirement,
    schema::{self, MAX_SECONDS, ToolSchema},
    yaml::{self, YamlNode, YamlPair},
};
use crate::{call::profile::ToolProfile, wire::topic::TopicBase};
use serde_json::Value;
use spec::closest_name;
use std::{
    ops::RangeInclusive,
    path::{Component, Path, PathBuf},
    time::Duration,
};

const MAX_TOOLS: usize = 512;
const MAX_WORD_BYTES: usize = 256;
const MAX_PATH_BYTES: usize = 1024;

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

/// A parsed manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) entries: Vec<ManifestEntry>,
    /// Problems of entries that were left out, and others.
    pub(crate) problems: Vec<ToolProblem>,
}

/// A valid entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ManifestEntry {
    pub(crate) name: String,
    pub(crate) line: u64,
    pub(crate) wanted: ManifestTarget,
    pub(crate) schema: ToolSchema,
    pub(crate) requirement: Option<PackageRequirement>,
    pub(crate) profile: Option<ToolProfile>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) refresh: Option<Duration>,
    pub(crate) limits: ToolLimits,
}

/// What to run; paths are relative and have no `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManifestTarget {
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

/// Parses a manifest. An error concerns the whole file.
pub(crate) fn read(bytes: &[u8], base: &TopicBase) -> Result<Manifest, ToolProblem> {
    let pairs = match yaml::read(bytes)? {
        YamlNode::Map(pairs) => pairs,
        YamlNode::Plain(Value::Null) => Vec::new(),
        YamlNode::List(_) | YamlNode::Plain(_) => {
            let hint = "begin it with `version: 1` and `tools:`";
            return Err(ToolProblem::new("the manifest is no map", hint));
        }
    };
    let mut manifest = Manifest::default();
    for YamlPair { line, key, value } in &pairs {
        match key.as_str() {
            "version" => manifest
                .problems
                .extend(version(value).map(|problem| problem.at(*line))),
            "tools" => tools(&mut manifest, *line, value, base)?,
            other => manifest.problems.push(unknown(other, &TOP).at(*line)),
        }
    }
    // No tools must be said explicitly: a file without the key is still being written.
    if pairs.iter().any(|pair| pair.key == "tools") {
        Ok(manifest)
    } else {
        let hint = "write them below `tools:`, by name, or `tools: {}` for none";
        Err(ToolProblem::new("the manifest names no tools", hint))
    }
}

/// Another version is accepted with a problem: keys with a new meaning are probably unknown, and
/// those are refused.
fn version(value: &YamlNode) -> Option<ToolProblem> {
    let version = value.value();
    let is_known = version.as_f64() == Some(1.0) || version.as_str() == Some("1");
    (!is_known).then(|| {
        let message = format!(
            "`version` is {}, and only 1 is known; it is read as that",
            word(&version.to_string())
        );
        ToolProblem::new(message, "write `version: 1`")
    })
}

fn tools(
    manifest: &mut Manifest,
    line: u64,
    value: &YamlNode,
    base: &TopicBase,
) -> Result<(), ToolProblem> {
    let pairs = match value {
        YamlNode::Map(pairs) => pairs.as_slice(),
        YamlNode::Plain(Value::Null) => &[],
        YamlNode::List(_) | YamlNode::Plain(_) => {
            return Err(
                ToolProblem::new("`tools` is no map", "write each tool by its name").at(line),
            );
        }
    };
    if pairs.len() > MAX_TOOLS {
        let message = format!(
            "the manifest has {} entries; it may have {MAX_TOOLS}",
            pairs.len()
        );
        return Err(ToolProblem::new(message, "split it among workers").at(line));
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

fn unknown(key: &str, known: &[&str]) -> ToolProblem {
    let hint = match closest_name(key, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("these are known: {}", known.join(", ")),
    };
    ToolProblem::new(format!("nobody knows the key `{}`", word(key)), hint)
}

/// A tool's name must be one level of a topic.
pub(crate) fn check_name(name: &str, base: &TopicBase) -> Result<(), ToolProblem> {
    let hint = "use letters, digits, _ and -";
    if name.contains('/') {
        return Err(ToolProblem::new("its name has a slash", hint));
    }
    base.invoke(name)
        .map(|_| ())
        .map_err(|bad| ToolProblem::new(format!("its name cannot be used: {bad}"), hint))
}

/// Fields of an entry while it is parsed.
#[derive(Default)]
struct EntryDraft {
    runtime: Option<Value>,
    module: Option<String>,
    function: Option<String>,
    class_name: Option<String>,
    executable: Option<PathBuf>,
    tool_dir: Option<PathBuf>,
    package: Option<String>,
    version: Option<String>,
    schema: ToolSchema,
    profile: Option<ToolProfile>,
    timeout: Option<Duration>,
    refresh: Option<Duration>,
    limits: ToolLimits,
}

/// Parses an entry; also returns a problem that does not invalidate it.
fn entry(
    pair: &YamlPair,
    base: &TopicBase,
) -> Result<(ManifestEntry, Option<ToolProblem>), ToolProblem> {
    check_name(&pair.key, base)?;
    let YamlNode::Map(fields) = &pair.value else {
        return Err(ToolProblem::new(
            "its entry is no map",
            "write its keys on lines of their own, further in",
        ));
    };
    let mut draft = EntryDraft::default();
    for field in fields {
        draft
            .take(field)
            .map_err(|problem| problem.at(field.line))?;
    }
    let note = draft.odd_runtime();
    Ok((draft.finish(&pair.key, pair.line)?, note))
}

impl EntryDraft {
    fn take(&mut self, field: &YamlPair) -> Result<(), ToolProblem> {
        if field.value == YamlNode::Plain(Value::Null) && KEYS.contains(&field.key.as_str()) {
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
            "description" => {
                self.schema.description = filled(schema::text("description", &value())?)
            }
            "parameters" => self.schema.parameters = Some(schema::parameters(&value())?),
            "artifact_params" => self.schema.artifact_params = schema::artifact_params(&value())?,
            "instructions" => {
                self.schema.instructions = filled(schema::text("instructions", &value())?)
            }
            "config_schema" => self.schema.config_schema = Some(schema::config_schema(&value())?),
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

    /// The runtime is only a hint for packaging: the other keys say what is run.
    fn odd_runtime(&self) -> Option<ToolProblem> {
        let runtime = self.runtime.as_ref()?;
        let known: &[&str] = if self.executable.is_some() {
            &["python", "python3", "go", "binary", "executable"]
        } else {
            &["python", "python3"]
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
        Some(ToolProblem::new(
            message,
            "write `runtime: python`, or remove it",
        ))
    }

    fn finish(self, name: &str, line: u64) -> Result<ManifestEntry, ToolProblem> {
        let requirement = match (&self.package, &self.version) {
            (Some(package), version) => Some(PackageRequirement::new(package, version.as_deref())?),
            (None, Some(_)) => {
                return Err(ToolProblem::new(
                    "`version` without `package`",
                    "say which package, or remove it",
                ));
            }
            (None, None) => None,
        };
        let EntryDraft {
            schema,
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
        Ok(ManifestEntry {
            name: name.to_owned(),
            line,
            wanted,
            schema,
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
) -> Result<ManifestTarget, ToolProblem> {
    let one = "say `module` with `function` or `class_name`, or `executable`";
    match (module, function, class_name, executable) {
        (Some(module), Some(function), None, None) if tool_dir.is_none() => {
            Ok(ManifestTarget::Function { module, function })
        }
        (Some(module), None, Some(class_name), None) if tool_dir.is_none() => {
            Ok(ManifestTarget::Class { module, class_name })
        }
        (None, None, None, Some(executable)) => Ok(ManifestTarget::Executable {
            tool_dir: tool_dir.unwrap_or_default(),
            executable,
        }),
        (None, None, None, None) => {
            Err(ToolProblem::new("its entry does not say what to run", one))
        }
        (Some(_), None, None, None) => Err(ToolProblem::new(
            "`module` without `function` or `class_name`",
            "say one of them",
        )),
        (None, _, _, None) => Err(ToolProblem::new(
            "`function` or `class_name` without `module`",
            "say where it is",
        )),
        (_, _, _, None) if tool_dir.is_some() => {
            let hint = "remove it: modules are looked for in the Python folder of the tools";
            Err(ToolProblem::new(
                "`tool_dir` belongs to an `executable`",
                hint,
            ))
        }
        _ => Err(ToolProblem::new(
            "its entry says more than one thing to run",
            one,
        )),
    }
}

fn filled(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn text(field: &YamlPair) -> Result<String, ToolProblem> {
    let YamlNode::Plain(Value::String(text)) = &field.value else {
        return Err(ToolProblem::new(
            format!("`{}` is no text", field.key),
            "put it in quotes",
        ));
    };
    if (1..=MAX_WORD_BYTES).contains(&text.len()) && !text.contains(char::is_control) {
        Ok(text.clone())
    } else {
        let message = format!(
            "`{}` is empty, too long, or on more than one line",
            field.key
        );
        Err(ToolProblem::new(
            message,
            "write 1 to 256 bytes on one line",
        ))
    }
}

fn is_identifier(text: &str) -> bool {
    let is_first = |letter: char| letter == '_' || letter.is_alphabetic();
    text.starts_with(is_first)
        && text
            .chars()
            .all(|letter| letter == '_' || letter.is_alphanumeric())
}

fn identifier(field: &YamlPair) -> Result<String, ToolProblem> {
    let text = text(field)?;
    if is_identifier(&text) {
        Ok(text)
    } else {
        let message = format!(
            "`{}` is `{}`, which is no name in Python",
            field.key,
            word(&text)
        );
        Err(ToolProblem::new(message, "use letters, digits and _"))
    }
}

fn module(field: &YamlPair) -> Result<String, ToolProblem> {
    let text = text(field)?;
    if text.split('.').all(is_identifier) {
        Ok(text)
    } else {
        let message = format!("`module` is `{}`, which is no module's name", word(&text));
        Err(ToolProblem::new(
            message,
            "write it as after `import`, such as imgtools.resize",
        ))
    }
}

fn profile(field: &YamlPair) -> Result<ToolProfile, ToolProblem> {
    let text = text(field)?;
    ToolProfile::named(&text).ok_or_else(|| {
        let known = ["restrictive", "standard", "permissive"];
        let hint = match closest_name(&text, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        ToolProblem::new(format!("there is no profile `{}`", word(&text)), hint)
    })
}

/// A relative path of plain components.
fn path(field: &YamlPair) -> Result<PathBuf, ToolProblem> {
    let bad = |why: &str| {
        let message = format!("`{}` {why}", field.key);
        ToolProblem::new(
            message,
            "write a path below the folder of the tools, without `..`",
        )
    };
    let YamlNode::Plain(Value::String(text)) = &field.value else {
        return Err(bad("is no text"));
    };
    if text.is_empty() || text.len() > MAX_PATH_BYTES || text.contains(char::is_control) {
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
    if field.key == "executable" && clean.as_os_str().is_empty() {
        Err(bad("names no file"))
    } else {
        Ok(clean)
    }
}

fn whole(key: &str, value: &YamlNode, range: RangeInclusive<u64>) -> Result<u64, ToolProblem> {
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
            ToolProblem::new(message, "write it without quotes")
        })
}

fn seconds(field: &YamlPair) -> Result<Duration, ToolProblem> {
    whole(&field.key, &field.value, 1..=MAX_SECONDS).map(Duration::from_secs)
}

/// 0 is never. A lower bound, so that a worker does not do nothing else.
fn refresh(field: &YamlPair) -> Result<Option<Duration>, ToolProblem> {
    let seconds = whole(&field.key, &field.value, 0..=30 * MAX_SECONDS)?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds.max(10))))
}

fn limits(field: &YamlPair) -> Result<ToolLimits, ToolProblem> {
    let YamlNode::Map(pairs) = &field.value else {
        return Err(ToolProblem::new(
            "`resource_limits` is no map",
            format!("write {}", LIMITS.join(", ")),
        ));
    };
    let mut limits = ToolLimits::default();
    for YamlPair { line, key, value } in pairs {
        let whole = |limit| whole(key, value, 1..=limit).map_err(|problem| problem.at(*line));
        let count = |limit: u32| whole(limit.into()).map(|count| u32::try_from(count).ok());
        match key.as_str() {
            "max_cpu_seconds" => limits.cpu_time = Some(Duration::from_secs(whole(MAX_SECONDS)?)),
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
