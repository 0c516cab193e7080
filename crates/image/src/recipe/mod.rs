//! Recipes: the strict subset of Containerfiles that can be built here from Debian packages.
//!
//! Unknown instructions are refused by name, so a recipe never means one thing here and another
//! elsewhere.

mod instruction;

use crate::contract::ImageProfile;
use spec::ImageConfig;
use std::collections::BTreeMap;

/// The base image of every recipe.
pub const BASE_IMAGE: &str = "debian:bookworm-slim";
/// Its Debian release.
pub const SUITE: &str = "bookworm";
/// A file that the builder provides if the recipe's folder lacks it.
pub const FIRST_PROCESS: &str = "airlock-init";
/// Another such file, with its contents.
pub const REFERENCE_AGENT: (&str, &str) = (
    "airlock-agent",
    include_str!("../../../../images/agent/airlock-agent"),
);
/// The `PATH` that `debian:bookworm-slim` sets.
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MAX_RECIPE_BYTES: usize = 256 * 1024;
const MAX_INSTRUCTIONS: usize = 500;

/// A recipe, resolved down to the base image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Steps applied to the base image, in order.
    pub steps: Vec<BuildStep>,
    /// Configuration of the image.
    pub config: ImageConfig,
    /// Build arguments available to `RUN`; they do not stay in the image.
    pub arguments: Vec<String>,
}

/// One step of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildStep {
    /// Runs a shell script.
    Run {
        /// The script for `/bin/sh -c`.
        script: String,
        /// Working directory.
        folder: String,
        /// `NAME=VALUE`, as set so far.
        env: Vec<String>,
        /// Names of the arguments declared so far.
        arguments: Vec<String>,
    },
    /// Copies a file into the tree, owned by root.
    Copy {
        /// Path relative to the recipe's folder.
        from: String,
        /// Absolute path in the tree.
        to: String,
    },
    /// Creates a folder.
    Folder(String),
}

/// Why a recipe cannot be built here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct RecipeError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong, and what is right.
    pub what: String,
}

/// The built-in recipe of a profile.
pub fn for_profile(profile: ImageProfile) -> &'static str {
    match profile {
        ImageProfile::BaseTools => include_str!("../../../../images/base-tools/Containerfile"),
        ImageProfile::PythonTools => include_str!("../../../../images/python-tools/Containerfile"),
        ImageProfile::NodeTools => include_str!("../../../../images/node-tools/Containerfile"),
        ImageProfile::GoTools => include_str!("../../../../images/go-tools/Containerfile"),
        ImageProfile::SecopsTools => include_str!("../../../../images/secops-tools/Containerfile"),
        ImageProfile::Agent => include_str!("../../../../images/agent/Containerfile"),
        ImageProfile::Runtime => include_str!("../../../../images/runtime/Containerfile"),
    }
}

impl Recipe {
    /// Parses a Containerfile; one that starts from a profile gets that profile's steps first.
    pub fn parse(text: &str) -> Result<Recipe, RecipeError> {
        let bad = |line, what: &str| RecipeError {
            line,
            what: what.to_owned(),
        };
        if text.len() > MAX_RECIPE_BYTES {
            return Err(bad(1, "a recipe has at most 256 KiB"));
        }
        let instructions = instruction::instructions(text)?;
        let Some((first, rest)) = instructions.split_first() else {
            return Err(bad(1, "there is no instruction; a recipe begins with FROM"));
        };
        if rest.len() > MAX_INSTRUCTIONS {
            return Err(bad(
                rest[MAX_INSTRUCTIONS].line,
                "a recipe has at most 500 instructions",
            ));
        }
        let recipe = start(first)?;
        let folder = match recipe.config.working_dir.as_str() {
            "" => "/".to_owned(),
            set => set.to_owned(),
        };
        let mut reader = RecipeBuilder { recipe, folder };
        rest.iter()
            .try_for_each(|instruction| reader.apply(instruction))?;
        Ok(reader.recipe)
    }
}

/// The recipe that the first instruction starts from.
fn start(first: &instruction::Instruction) -> Result<Recipe, RecipeError> {
    if first.name != "FROM" {
        return Err(first.bad(format!(
            "a recipe begins with FROM, not with {}",
            first.name
        )));
    }
    if first.text == BASE_IMAGE {
        let config = ImageConfig {
            env: vec![DEFAULT_PATH.to_owned()],
            ..ImageConfig::default()
        };
        return Ok(Recipe {
            steps: Vec::new(),
            config,
            arguments: Vec::new(),
        });
    }
    let Some(profile) = ImageProfile::named(&first.text) else {
        let names = ImageProfile::ALL.map(ImageProfile::name).join(", ");
        let what = format!(
            "FROM `{}` is not available here; start from {BASE_IMAGE}, {names}",
            first.text
        );
        return Err(first.bad(what));
    };
    let mut recipe = Recipe::parse(for_profile(profile))?;
    // An argument is known only after its own ARG.
    recipe.arguments.clear();
    Ok(recipe)
}

/// State while instructions are read.
struct RecipeBuilder {
    recipe: Recipe,
    folder: String,
}

impl RecipeBuilder {
    fn apply(&mut self, instruction: &instruction::Instruction) -> Result<(), RecipeError> {
        match instruction.name.as_str() {
            "RUN" => self.run(instruction),
            "COPY" => self.copy(instruction),
            "ENV" => {
                for (name, value) in instruction.pairs()? {
                    self.set(&name, &value);
                }
                Ok(())
            }
            "LABEL" => {
                self.recipe.config.labels.extend(instruction.pairs()?.into_iter().collect::<BTreeMap<_, _>>());
                Ok(())
            }
            "ARG" => {
                self.recipe.arguments.push(instruction.variable()?);
                Ok(())
            }
            "WORKDIR" => {
                self.folder = instruction.absolute(&instruction.text)?;
                self.recipe.config.working_dir.clone_from(&self.folder);
                self.recipe.steps.push(BuildStep::Folder(self.folder.clone()));
                Ok(())
            }
            "USER" => {
                self.recipe.config.user = instruction.one_word()?;
                Ok(())
            }
            "ENTRYPOINT" => {
                self.recipe.config.entrypoint = instruction.list()?;
                self.recipe.config.cmd.clear();
                Ok(())
            }
            "CMD" => {
                self.recipe.config.cmd = instruction.list()?;
                Ok(())
            }
            "FROM" => Err(instruction.bad("a recipe has one FROM".to_owned())),
            other => Err(instruction.bad(format!(
                "`{other}` is not known; a recipe has FROM, LABEL, ENV, ARG, RUN, COPY, WORKDIR, USER, ENTRYPOINT, CMD"
            ))),
        }
    }

    /// Every step runs as root of the tree here; other builders would run it as the user named
    /// last, so such steps are refused.
    fn refuse_after_user(&self, instruction: &instruction::Instruction) -> Result<(), RecipeError> {
        match self.recipe.config.user.as_str() {
            "" | "0" | "root" => Ok(()),
            user => Err(instruction.bad(format!(
                "put `USER root` above {}, and `USER {user}` below it again",
                instruction.name
            ))),
        }
    }

    fn run(&mut self, instruction: &instruction::Instruction) -> Result<(), RecipeError> {
        self.refuse_after_user(instruction)?;
        if instruction.text.starts_with("--") || instruction.text.starts_with('[') {
            return Err(
                instruction.bad("RUN takes a shell command here, without options".to_owned())
            );
        }
        self.recipe.steps.push(BuildStep::Run {
            script: instruction.text.clone(),
            folder: self.folder.clone(),
            env: self.recipe.config.env.clone(),
            arguments: self.recipe.arguments.clone(),
        });
        Ok(())
    }

    fn copy(&mut self, instruction: &instruction::Instruction) -> Result<(), RecipeError> {
        self.refuse_after_user(instruction)?;
        let words: Vec<&str> = instruction.text.split_whitespace().collect();
        let [from, to] = words[..] else {
            return Err(
                instruction.bad("write COPY FILE /PLACE: one file, without options".to_owned())
            );
        };
        let beneath =
            !from.is_empty() && from.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !beneath || from.starts_with("--") || from.contains(['*', '?', '[', '$', '"', '\'']) {
            return Err(instruction.bad(format!(
                "`{from}` is not a plain path below the recipe's folder"
            )));
        }
        let to = match to.strip_suffix('/') {
            Some(folder) => format!("{folder}/{}", from.rsplit('/').next().unwrap_or(from)),
            None => to.to_owned(),
        };
        let to = instruction.absolute(&to)?;
        self.recipe.steps.push(BuildStep::Copy {
            from: from.to_owned(),
            to,
        });
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) {
        let env = &mut self.recipe.config.env;
        env.retain(|text| text.split('=').next() != Some(name));
        env.push(format!("{name}={value}"));
    }
}

#[cfg(test)]
mod tests;
