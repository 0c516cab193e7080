//! The source of a recipe: built in, or a folder of the caller, which may be an untrusted clone.

use crate::cli::message::Failure;
use ::fs::Dir;
use image::{
    build::BuildPlatform,
    contract::ImageProfile,
    recipe::{BuildStep, FIRST_PROCESS, REFERENCE_AGENT, Recipe, SUITE, for_profile},
};
use spec::ImageRef;
use std::{
    collections::BTreeMap,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The maximum size of a copied file.
const MAX_FILE_BYTES: u64 = 256 << 20;
const MAX_RECIPE_BYTES: u64 = 256 << 10;
const RECIPE_NAMES: [&str; 2] = ["Containerfile", "Dockerfile"];

/// The copied files: contents, and whether they are executable.
pub(super) type Files = BTreeMap<String, (Vec<u8>, bool)>;

/// A recipe with its build context.
#[derive(Debug)]
pub(super) enum Source {
    /// A built-in recipe.
    Profile(ImageProfile),
    /// A folder with a Containerfile.
    Folder {
        path: PathBuf,
        folder: Dir,
        text: String,
    },
}

impl Source {
    /// Finds the recipe: a built-in profile of that name, otherwise a folder.
    pub(super) fn find(what: &Path) -> Result<Source, Failure> {
        if let Some(profile) = what.to_str().and_then(ImageProfile::named) {
            return Ok(Source::Profile(profile));
        }
        let names = ImageProfile::ALL.map(ImageProfile::name).join(", ");
        let hint = format!("name one of {names}, or a folder with a Containerfile");
        let refused = |error: io::Error| {
            Failure::invalid(
                format!("cannot read a recipe in `{}`: {error}", what.display()),
                hint.clone(),
            )
        };
        let folder = Dir::open(what).map_err(refused)?;
        // The second name is tried only if the first file is absent.
        let (bytes, _) = match read(&folder, RECIPE_NAMES[0], MAX_RECIPE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                read(&folder, RECIPE_NAMES[1], MAX_RECIPE_BYTES)
            }
            first => first,
        }
        .map_err(refused)?;
        let text =
            String::from_utf8(bytes).map_err(|_| refused(io::ErrorKind::InvalidData.into()))?;
        Ok(Source::Folder {
            path: what.to_owned(),
            folder,
            text,
        })
    }

    /// The default name, under `localhost`, which is no registry.
    pub(super) fn default_name(&self) -> Result<ImageRef, Failure> {
        let name = match self {
            Source::Profile(profile) => profile.name().to_owned(),
            Source::Folder { path, .. } => {
                let complete = path.canonicalize().unwrap_or_else(|_| path.clone());
                complete
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .to_ascii_lowercase()
            }
        };
        format!("localhost/{name}")
            .parse()
            .map_err(|bad: spec::BadImageRef| {
                Failure::invalid(bad.to_string(), "choose a name with --name")
            })
    }

    /// Parses the recipe.
    pub(super) fn recipe(&self) -> Result<Recipe, Failure> {
        let (name, text) = match self {
            Source::Profile(profile) => (profile.name().to_owned(), for_profile(*profile)),
            Source::Folder { path, text, .. } => (path.display().to_string(), text.as_str()),
        };
        Recipe::parse(text).map_err(|bad| {
            let hint =
                "docs/images.md lists what a recipe may contain; other builders support more";
            Failure::invalid(format!("the recipe of `{name}`, {bad}"), hint)
        })
    }

    /// The files that the recipe copies. Airlock's own programs are built in; a file of that name
    /// in the folder has precedence.
    pub(super) fn files(
        &self,
        recipe: &Recipe,
        platform: BuildPlatform,
        init_arm64: Option<&Path>,
    ) -> Result<Files, Failure> {
        let mut files = Files::new();
        for step in &recipe.steps {
            let BuildStep::Copy { from, .. } = step else {
                continue;
            };
            let in_folder = match self {
                Source::Folder { folder, .. } => Some(read(folder, from, MAX_FILE_BYTES)),
                Source::Profile(_) => None,
            };
            let file = match (in_folder, from.as_str()) {
                (Some(Ok(file)), _) => file,
                (_, FIRST_PROCESS) => (init_program(platform, init_arm64)?, true),
                (_, name) if name == REFERENCE_AGENT.0 => (REFERENCE_AGENT.1.into(), true),
                (Some(Err(error)), _) => {
                    let hint =
                        "COPY takes plain files below the recipe's folder, and follows no links";
                    return Err(Failure::invalid(
                        format!("cannot copy `{from}`: {error}"),
                        hint,
                    ));
                }
                (None, _) => continue,
            };
            files.insert(from.clone(), file);
        }
        Ok(files)
    }
}

/// The static `airlock-init` for a platform.
fn init_program(platform: BuildPlatform, init_arm64: Option<&Path>) -> Result<Vec<u8>, Failure> {
    if BuildPlatform::here() == Some(platform) {
        return Ok(engine::INIT_PROGRAM.to_vec());
    }
    let hint = "give one with --init-arm64 FILE, or build for this machine's platform only";
    let Some(path) = init_arm64.filter(|_| platform == BuildPlatform::Arm64) else {
        let what = format!(
            "this program has no airlock-init for linux/{}",
            platform.architecture()
        );
        return Err(Failure::invalid(what, hint));
    };
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::invalid(format!("cannot read `{}`: {error}", path.display()), hint)
    })?;
    // The machine field of an ELF file: 183 is AArch64.
    if bytes.get(..4) == Some(b"\x7fELF") && bytes.get(18..20) == Some(&[183, 0]) {
        Ok(bytes)
    } else {
        Err(Failure::invalid(
            format!("`{}` is not a program for linux/arm64", path.display()),
            hint,
        ))
    }
}

/// Reads a regular file beneath a folder, and whether it is executable.
fn read(folder: &Dir, name: &str, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let file = folder.read_file(name)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    if metadata.len() > most {
        return Err(io::Error::other(format!("it is larger than {most} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, metadata.permissions().mode() & 0o111 != 0))
}

/// This machine's apt sources, if they are of the same Debian release.
pub(super) fn host_apt_sources() -> Option<PathBuf> {
    let places = [
        "/etc/apt/sources.list.d/debian.sources",
        "/etc/apt/sources.list",
    ]
    .map(PathBuf::from);
    let fits = |text: String| text.contains("debian") && text.contains(SUITE);
    places
        .into_iter()
        .find(|place| std::fs::read_to_string(place).is_ok_and(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_that_cannot_be_read_is_the_one_that_is_told() {
        let folder = std::env::temp_dir().join(format!("airlock-recipe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let outcome = || match Source::find(&folder) {
            Ok(Source::Folder { text, .. }) => text,
            Ok(Source::Profile(_)) => panic!("a folder is no profile"),
            Err(failure) => failure.message,
        };
        std::fs::write(folder.join(RECIPE_NAMES[1]), "FROM b").unwrap();
        assert_eq!(outcome(), "FROM b");
        let large = "#".repeat(MAX_RECIPE_BYTES as usize + 1);
        std::fs::write(folder.join(RECIPE_NAMES[0]), large).unwrap();
        let too_large = outcome();
        std::fs::write(folder.join(RECIPE_NAMES[0]), "FROM a").unwrap();
        let first = outcome();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(too_large.contains("it is larger than"), "{too_large}");
        assert_eq!(first, "FROM a");
    }
}
