//! From an entry whose code is there to tools that can be called: its packages are installed, and it is asked what it is.

use super::{
    Asker, Code, Settings, Tool, What,
    card::Said,
    look::Found,
    manifest::{Entry, Wanted, check_name},
    packages::Sound,
    place,
    probe::{self, PROBE},
    problem::{Problem, word},
    wheels::Wheels,
};
use std::path::{Path, PathBuf};

/// What came of it.
#[derive(Debug)]
pub(super) struct Prepared {
    /// At least one, or why there is none.
    pub(super) tools: Result<Vec<Tool>, Problem>,
    /// What is wrong beside.
    pub(super) notes: Vec<Problem>,
    /// What is wrong with what all entries share.
    pub(super) common: Vec<Problem>,
    /// Why no more than its name is known of a function or class: it was asked in vain, and its entry does not say.
    pub(super) untold: Option<Problem>,
    /// Less is known of them than there could be: they are to be asked again.
    pub(super) is_partial: bool,
    /// They are without any of the wheels that there should be.
    pub(super) lacks_packages: bool,
}

/// Packages of an entry, and how it stands with the wheels that all share.
#[derive(Debug, Default)]
struct Installed {
    packages: Option<PathBuf>,
    sound: Sound,
}

/// Prepares an entry.
pub(super) async fn prepare(
    settings: &Settings,
    asker: &impl Asker,
    entry: &Entry,
    found: Found,
    wheels: &Wheels,
    tell: impl Fn(String) + Send + Sync,
) -> Prepared {
    let (mut notes, mut untold) = (Vec::new(), None);
    let Found { mut code, program } = found;
    let (tools, sound) = match install(settings, entry, wheels, tell).await {
        Ok(Installed { packages, sound }) => {
            code.packages = packages;
            let tools = match program {
                Some(program) => {
                    of_program(settings, asker, entry, code, &program, &mut notes).await
                }
                None => of_python(settings, asker, entry, code, &mut notes)
                    .await
                    .map(|(tool, why)| {
                        untold = why;
                        vec![tool]
                    }),
            };
            (tools, sound)
        }
        Err(problem) => (Err(problem), Sound::default()),
    };
    let Sound {
        wheels,
        problems: common,
        is_lacking,
    } = sound;
    let lacks_packages = is_lacking && wheels.files.is_empty();
    let is_partial = untold.is_some() || is_lacking;
    Prepared {
        tools,
        notes,
        common,
        untold,
        is_partial,
        lacks_packages,
    }
}

/// What an entry names itself it needs; wheels that all share not every entry does, so that they keep none from being served.
async fn install(
    settings: &Settings,
    entry: &Entry,
    wheels: &Wheels,
    tell: impl Fn(String) + Send + Sync,
) -> Result<Installed, Problem> {
    let Some(installer) = &settings.installer else {
        let hint = "put them into the folder that SAM_SITE_PACKAGES names, and remove `package` and wheels/";
        let problem = Problem::new("packages are not installed by this worker", hint);
        return match (entry.requirement.is_some(), wheels.files.is_empty()) {
            (true, _) => Err(problem),
            (false, true) => Ok(Installed::default()),
            (false, false) => {
                let sound = Sound {
                    problems: vec![problem],
                    ..Sound::default()
                };
                Ok(Installed {
                    sound,
                    ..Installed::default()
                })
            }
        };
    };
    let sound = installer.sound(wheels, &tell).await;
    let packages = installer
        .layer(entry.requirement.as_ref(), &sound.wheels, &tell)
        .await?;
    Ok(Installed { packages, sound })
}

async fn of_python(
    settings: &Settings,
    asker: &impl Asker,
    entry: &Entry,
    code: Code,
    notes: &mut Vec<Problem>,
) -> Result<(Tool, Option<Problem>), Problem> {
    let (module, what) = match &entry.wanted {
        Wanted::Function { module, function } => (
            module,
            What::Function {
                module: module.clone(),
                function: function.clone(),
            },
        ),
        Wanted::Class { module, class_name } => (
            module,
            What::Class {
                module: module.clone(),
                class_name: class_name.clone(),
            },
        ),
        Wanted::Executable { .. } => return Err(Problem::new("it is no Python", "")),
    };
    let folders: Vec<&Path> = [&code.python, &code.packages, &code.site]
        .into_iter()
        .filter_map(Option::as_deref)
        .collect();
    // What lies in none of the folders may still be one of the interpreter's own: only it can tell.
    let is_there = place::has_module(&folders, module);
    let (mut said, mut untold) = (entry.said.clone(), None);
    if said.is_bare() || !is_there {
        match ask(settings, asker, &code, &what).await {
            Ok(more) => said = said.or(more),
            // Served all the same: whoever calls it is told so, instead of waiting for nobody.
            Err(problem) => {
                let problem = if is_there {
                    problem
                } else {
                    nowhere(module, &problem)
                };
                match said.is_bare() {
                    true => untold = Some(problem),
                    false => notes.push(problem),
                }
            }
        }
    }
    Ok((tool(&entry.name, what, code, said, entry), untold))
}

fn nowhere(module: &str, problem: &Problem) -> Problem {
    let message = format!("its module `{module}` is nowhere: {}", problem.message);
    Problem::new(
        message,
        "put it into TOOLS_PYTHON_DIR; it is looked for again",
    )
}

async fn ask(
    settings: &Settings,
    asker: &impl Asker,
    code: &Code,
    what: &What,
) -> Result<Said, Problem> {
    match what {
        What::Function { module, function } => {
            probe::of_function(asker, &settings.python, code, (module, function)).await
        }
        What::Class { module, class_name } => {
            probe::of_class(
                asker,
                &settings.python,
                code,
                (module, class_name),
                None,
                PROBE,
            )
            .await
        }
        What::Executable { .. } => Err(Problem::new("it is no Python", "")),
    }
}

/// The only tool of a program has its entry's name, several have both.
async fn of_program(
    settings: &Settings,
    asker: &impl Asker,
    entry: &Entry,
    code: Code,
    program: &Path,
    notes: &mut Vec<Problem>,
) -> Result<Vec<Tool>, Problem> {
    let said = probe::tools_of(asker, &code, program, None, PROBE).await?;
    let is_alone = said.len() == 1;
    let (mut tools, mut first) = (Vec::new(), None);
    for (own, said) in said {
        let name = if is_alone {
            entry.name.clone()
        } else {
            format!("{}__{own}", entry.name)
        };
        let said = said.and_then(|said| check_name(&name, &settings.base).map(|()| said));
        match said {
            Ok(said) => {
                if said.wants_credentials {
                    let message = format!(
                        "`{}` speaks of `auth`, which the mesh does not bring here",
                        word(&own)
                    );
                    notes.push(Problem::new(message, "it is served, and has to do without"));
                }
                let said = if is_alone {
                    said.or(entry.said.clone())
                } else {
                    said
                };
                let what = What::Executable {
                    path: program.to_owned(),
                    tool: own,
                };
                tools.push(tool(&name, what, code.clone(), said, entry));
            }
            Err(problem) => {
                let message = format!("its tool `{}` is left out: {}", word(&own), problem.message);
                let problem = Problem { message, ..problem };
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

fn tool(name: &str, what: What, code: Code, said: Said, entry: &Entry) -> Tool {
    Tool {
        name: name.to_owned(),
        what,
        code,
        card: said.card(name),
        profile: entry.profile,
        // What a tool says of itself wins.
        timeout: said.timeout.or(entry.timeout),
        limits: entry.limits,
    }
}
