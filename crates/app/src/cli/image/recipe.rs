//! Where a recipe comes from: this program, or a folder of the caller's, which may be a stranger's clone.

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

/// No file that is copied is larger.
const LARGEST_FILE: u64 = 256 << 20;
const LARGEST_RECIPE: u64 = 256 << 10;
const NAMES: [&str; 2] = ["Containerfile", "Dockerfile"];

/// What the files that are copied hold, and whether they can be executed.
pub(super) type Files = BTreeMap<String, (Vec<u8>, bool)>;

/// A recipe with what lies beside it.
#[derive(Debug)]
pub(super) enum Source {
    /// One of this program's own.
    Profile(ImageProfile),
    /// A folder with a Containerfile.
    Folder {
        path: PathBuf,
        folder: Dir,
        text: String,
    },
}

impl Source {
    /// A name without a slash is first looked for among the profiles.
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
        // Only one that is absent leaves room for the other name.
        let (bytes, _) = match read(&folder, NAMES[0], LARGEST_RECIPE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                read(&folder, NAMES[1], LARGEST_RECIPE)
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

    /// Under `localhost`, which no registry has.
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
                Failure::invalid(bad.to_string(), "say what to call the image with --name")
            })
    }

    /// The recipe, down to the base image.
    pub(super) fn recipe(&self) -> Result<Recipe, Failure> {
        let (name, text) = match self {
            Source::Profile(profile) => (profile.name().to_owned(), for_profile(*profile)),
            Source::Folder { path, text, .. } => (path.display().to_string(), text.as_str()),
        };
        Recipe::parse(text).map_err(|bad| {
            let hint = "docs/images.md tells what a recipe may say; other builders know more";
            Failure::invalid(format!("the recipe of `{name}`, {bad}"), hint)
        })
    }

    /// What the recipe copies. Our own programs are brought along; a file of that name beside the recipe goes before.
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
            let beside = match self {
                Source::Folder { folder, .. } => Some(read(folder, from, LARGEST_FILE)),
                Source::Profile(_) => None,
            };
            let file = match (beside, from.as_str()) {
                (Some(Ok(file)), _) => file,
                (_, FIRST_PROCESS) => (first_process(platform, init_arm64)?, true),
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

/// The static program for a platform.
fn first_process(platform: BuildPlatform, init_arm64: Option<&Path>) -> Result<Vec<u8>, Failure> {
    if BuildPlatform::here() == Some(platform) {
        return Ok(engine::FIRST_PROCESS.to_vec());
    }
    let hint = "give one with --init-arm64 FILE, or build for this machine's platform only";
    let Some(path) = init_arm64.filter(|_| platform == BuildPlatform::Arm64) else {
        let what = format!(
            "there is no airlock-init for linux/{} here",
            platform.architecture()
        );
        return Err(Failure::invalid(what, hint));
    };
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::invalid(format!("cannot read `{}`: {error}", path.display()), hint)
    })?;
    // The machine of an ELF file: 183 is AArch64.
    match bytes.get(..4) == Some(b"\x7fELF") && bytes.get(18..20) == Some(&[183, 0]) {
        true => Ok(bytes),
        false => Err(Failure::invalid(
            format!("`{}` is no program for linux/arm64", path.display()),
            hint,
        )),
    }
}

/// A plain file beneath a folder, and whether it can be executed.
fn read(folder: &Dir, name: &str, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let file = folder.read_file(name)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    if about.len() > most {
        return Err(io::Error::other(format!("it is larger than {most} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, about.permissions().mode() & 0o111 != 0))
}

/// Where this machine's own packages come from, if it is of the same release of Debian.
pub(super) fn sources_of_this_machine() -> Option<PathBuf> {
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
        let told = || match Source::find(&folder) {
            Ok(Source::Folder { text, .. }) => text,
            Ok(Source::Profile(_)) => panic!("a folder is no profile"),
            Err(failure) => failure.message,
        };
        std::fs::write(folder.join(NAMES[1]), "FROM b").unwrap();
        assert_eq!(told(), "FROM b");
        let large = "#".repeat(LARGEST_RECIPE as usize + 1);
        std::fs::write(folder.join(NAMES[0]), large).unwrap();
        let too_large = told();
        std::fs::write(folder.join(NAMES[0]), "FROM a").unwrap();
        let first = told();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(too_large.contains("it is larger than"), "{too_large}");
        assert_eq!(first, "FROM a");
    }
}
