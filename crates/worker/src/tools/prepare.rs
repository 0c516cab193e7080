//! Prepares an entry whose code was located: installs its packages and asks for its schema.

use super::{
    CatalogSettings, EntryPoint, SchemaProbe, Tool, ToolCode, locate,
    manifest::{ManifestEntry, ManifestTarget, check_name},
    packages::ResolvableWheels,
    probe::{self, PROBE_TIMEOUT},
    problem::{ToolProblem, word},
    scan::LocatedCode,
    schema::ToolSchema,
    wheels::Wheels,
};
use std::path::{Path, PathBuf};

/// Result of a preparation.
#[derive(Debug)]
pub(super) struct PreparedEntry {
    /// At least one tool, or why there is none.
    pub(super) tools: Result<Vec<Tool>, ToolProblem>,
    /// Further problems.
    pub(super) notes: Vec<ToolProblem>,
    /// Problems that all entries share.
    pub(super) common: Vec<ToolProblem>,
    /// Why only the name of a function or class is known: the probe failed, and the manifest has no
    /// description.
    pub(super) discovery_problem: Option<ToolProblem>,
    /// The result is incomplete; the preparation is repeated.
    pub(super) is_partial: bool,
    /// None of the wheels is installed.
    pub(super) lacks_packages: bool,
}

/// Packages of an entry, and the state of the shared wheels.
#[derive(Debug, Default)]
struct InstalledPackages {
    packages: Option<PathBuf>,
    sound: ResolvableWheels,
}

/// Prepares an entry.
pub(super) async fn prepare(
    settings: &CatalogSettings,
    prober: &impl SchemaProbe,
    entry: &ManifestEntry,
    found: LocatedCode,
    wheels: &Wheels,
    report: impl Fn(String) + Send + Sync,
) -> PreparedEntry {
    let mut notes = Vec::new();
    let mut discovery_problem = None;
    let LocatedCode { mut code, program } = found;
    let (tools, sound) = match install(settings, entry, wheels, report).await {
        Ok(InstalledPackages { packages, sound }) => {
            code.packages = packages;
            let tools = match program {
                Some(program) => {
                    prepare_program(settings, prober, entry, code, &program, &mut notes).await
                }
                None => prepare_python(settings, prober, entry, code, &mut notes)
                    .await
                    .map(|(tool, why)| {
                        discovery_problem = why;
                        vec![tool]
                    }),
            };
            (tools, sound)
        }
        Err(problem) => (Err(problem), ResolvableWheels::default()),
    };
    let ResolvableWheels {
        wheels,
        problems: common,
        is_lacking,
    } = sound;
    let lacks_packages = is_lacking && wheels.files.is_empty();
    let is_partial = discovery_problem.is_some() || is_lacking;
    PreparedEntry {
        tools,
        notes,
        common,
        discovery_problem,
        is_partial,
        lacks_packages,
    }
}

/// Installs packages. An entry fails without its own requirement, but not without the shared
/// wheels.
async fn install(
    settings: &CatalogSettings,
    entry: &ManifestEntry,
    wheels: &Wheels,
    report: impl Fn(String) + Send + Sync,
) -> Result<InstalledPackages, ToolProblem> {
    let Some(installer) = &settings.installer else {
        let hint = "put them into the folder that SAM_SITE_PACKAGES names, and remove `package` and wheels/";
        let problem = ToolProblem::new("packages are not installed by this worker", hint);
        return match (entry.requirement.is_some(), wheels.files.is_empty()) {
            (true, _) => Err(problem),
            (false, true) => Ok(InstalledPackages::default()),
            (false, false) => {
                let sound = ResolvableWheels {
                    problems: vec![problem],
                    ..ResolvableWheels::default()
                };
                Ok(InstalledPackages {
                    sound,
                    ..InstalledPackages::default()
                })
            }
        };
    };
    let sound = installer.sound(wheels, &report).await;
    let packages = installer
        .layer(entry.requirement.as_ref(), &sound.wheels, &report)
        .await?;
    Ok(InstalledPackages { packages, sound })
}

async fn prepare_python(
    settings: &CatalogSettings,
    prober: &impl SchemaProbe,
    entry: &ManifestEntry,
    code: ToolCode,
    notes: &mut Vec<ToolProblem>,
) -> Result<(Tool, Option<ToolProblem>), ToolProblem> {
    let (module, what) = match &entry.wanted {
        ManifestTarget::Function { module, function } => (
            module,
            EntryPoint::Function {
                module: module.clone(),
                function: function.clone(),
            },
        ),
        ManifestTarget::Class { module, class_name } => (
            module,
            EntryPoint::Class {
                module: module.clone(),
                class_name: class_name.clone(),
            },
        ),
        ManifestTarget::Executable { .. } => return Err(ToolProblem::new("it is no Python", "")),
    };
    let folders: Vec<&Path> = [&code.python, &code.packages, &code.site]
        .into_iter()
        .filter_map(Option::as_deref)
        .collect();
    // A module in none of the folders may be part of the interpreter: only a probe can tell.
    let is_there = locate::has_module(&folders, module);
    let mut schema = entry.schema.clone();
    let mut discovery_problem = None;
    if schema.is_unknown() || !is_there {
        match ask(settings, prober, &code, &what).await {
            Ok(more) => schema = schema.or(more),
            // Served all the same, so that callers get an error instead of a timeout.
            Err(problem) => {
                let problem = if is_there {
                    problem
                } else {
                    nowhere(module, &problem)
                };
                if schema.is_unknown() {
                    discovery_problem = Some(problem)
                } else {
                    notes.push(problem)
                }
            }
        }
    }
    Ok((
        tool(&entry.name, what, code, schema, entry),
        discovery_problem,
    ))
}

fn nowhere(module: &str, problem: &ToolProblem) -> ToolProblem {
    let message = format!("its module `{module}` is nowhere: {}", problem.message);
    ToolProblem::new(
        message,
        "put it into TOOLS_PYTHON_DIR; it is looked for again",
    )
}

async fn ask(
    settings: &CatalogSettings,
    prober: &impl SchemaProbe,
    code: &ToolCode,
    what: &EntryPoint,
) -> Result<ToolSchema, ToolProblem> {
    match what {
        EntryPoint::Function { module, function } => {
            probe::describe_function(prober, &settings.python, code, (module, function)).await
        }
        EntryPoint::Class { module, class_name } => {
            probe::describe_class(
                prober,
                &settings.python,
                code,
                (module, class_name),
                None,
                PROBE_TIMEOUT,
            )
            .await
        }
        EntryPoint::Executable { .. } => Err(ToolProblem::new("it is no Python", "")),
    }
}

/// Probes a program. A single tool gets the entry's name, several get both names.
async fn prepare_program(
    settings: &CatalogSettings,
    prober: &impl SchemaProbe,
    entry: &ManifestEntry,
    code: ToolCode,
    program: &Path,
    notes: &mut Vec<ToolProblem>,
) -> Result<Vec<Tool>, ToolProblem> {
    let schema = probe::describe_program(prober, &code, program, None, PROBE_TIMEOUT).await?;
    let is_alone = schema.len() == 1;
    let mut tools = Vec::new();
    let mut first = None;
    for (own, schema) in schema {
        let name = if is_alone {
            entry.name.clone()
        } else {
            format!("{}__{own}", entry.name)
        };
        let schema = schema.and_then(|schema| check_name(&name, &settings.base).map(|()| schema));
        match schema {
            Ok(schema) => {
                if schema.wants_credentials {
                    let message = format!(
                        "`{}` speaks of `auth`, which the mesh does not bring here",
                        word(&own)
                    );
                    notes.push(ToolProblem::new(
                        message,
                        "it is served, and has to do without",
                    ));
                }
                let schema = if is_alone {
                    schema.or(entry.schema.clone())
                } else {
                    schema
                };
                let what = EntryPoint::Executable {
                    path: program.to_owned(),
                    tool: own,
                };
                tools.push(tool(&name, what, code.clone(), schema, entry));
            }
            Err(problem) => {
                let message = format!("its tool `{}` is left out: {}", word(&own), problem.message);
                let problem = ToolProblem { message, ..problem };
                first = first.or(Some(problem.clone()));
                notes.push(problem);
            }
        }
    }
    match (tools.is_empty(), first) {
        (true, Some(problem)) => {
            notes.clear();
            Err(problem)
        }
        _ => Ok(tools),
    }
}

fn tool(
    name: &str,
    what: EntryPoint,
    code: ToolCode,
    schema: ToolSchema,
    entry: &ManifestEntry,
) -> Tool {
    Tool {
        name: name.to_owned(),
        what,
        code,
        card: schema.card(name),
        profile: entry.profile,
        // The tool's own timeout wins.
        timeout: schema.timeout.or(entry.timeout),
        limits: entry.limits,
    }
}
