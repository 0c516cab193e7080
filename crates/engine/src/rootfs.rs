//! Resolves the root file system of a run: the host's `/usr`, a folder, a stored image, or an image
//! of a container engine. Applies the image's configuration to the spec as far as the policy
//! allows.

use crate::Inner;
use image::{ImageError, StoredImage};
use sandbox::container::EngineImage;
use spec::{
    Backend, Digest, ErrorCode, ErrorInfo, ImageConfig, ImageRef, ImageRule, ImageUse, InsidePath,
    Root, RunSpec, User,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The root file system of a run, held for as long as the run lives.
#[derive(Debug)]
pub(crate) enum RootSource {
    /// The host's root or a folder: nothing has to be held.
    Local,
    /// A stored image, locked against removal.
    Image(#[allow(dead_code, reason = "held")] Box<StoredImage>),
    /// An image that a container engine has.
    Engine(Box<EngineImage>),
}

/// Resolves the root of a run and applies the image's configuration to the spec; also returns
/// notes.
pub(crate) async fn resolve(
    engine: &Inner,
    spec: &mut RunSpec,
) -> Result<(RootSource, Vec<String>), ErrorInfo> {
    let name = match &spec.sandbox.root {
        Root::Host => return Ok((RootSource::Local, Vec::new())),
        Root::Folder(_) => {
            admit(engine, spec, None, None, BTreeMap::new()).await?;
            return Ok((RootSource::Local, Vec::new()));
        }
        Root::Image(name) => name.clone(),
    };
    let backend = spec.sandbox.backend;
    match backend {
        Backend::Native => {
            let stored = stored_image(engine, &name).await?;
            let labels = stored.config().labels.clone();
            // The digest that the caller asked for; the store has verified that it is this image's.
            let digest = name.digest().unwrap_or(stored.digest()).clone();
            admit(engine, spec, Some(&name), Some(digest), labels).await?;
            let image_user = stored
                .user()
                .map_or(ImageUser::RootOrUnset, ImageUser::Number);
            let notes = apply_image_config(spec, stored.config(), image_user)?;
            crate::path_guard::allow_own_path(&mut spec.sandbox, stored.root()).map_err(
                |error| {
                    crate::provision::internal(format!("the image cannot be looked at: {error}"))
                },
            )?;
            spec.sandbox.root = Root::Folder(stored.root().to_owned());
            Ok((RootSource::Image(Box::new(stored)), notes))
        }
        Backend::Docker | Backend::Podman | Backend::Container => {
            let facts = engine
                .containers
                .image(backend, &name)
                .await
                .map_err(|error| error.info())?;
            let digest = name.digest().or(facts.digest.as_ref()).cloned();
            admit(
                engine,
                spec,
                Some(&name),
                digest,
                facts.config.labels.clone(),
            )
            .await?;
            let image_user = user_of(&facts.config.user);
            let notes = apply_image_config(spec, &facts.config, image_user)?;
            Ok((RootSource::Engine(Box::new(facts)), notes))
        }
    }
}

/// Refuses an image when there is no image store yet, before a state folder is created.
pub(crate) fn check_image_store(state: &Path, spec: &RunSpec) -> Result<(), ErrorInfo> {
    match (&spec.sandbox.root, spec.sandbox.backend) {
        (Root::Image(name), Backend::Native) if !state.join("images").is_dir() => Err(ErrorInfo {
            code: ErrorCode::ImageMissing,
            message: format!("there is no image `{}` on this machine", name.familiar()),
            hint: Some(
                "`airlock image pull` and `airlock image load` bring one; a folder begins with / or ./"
                    .to_owned(),
            ),
        }),
        _ => Ok(()),
    }
}

async fn stored_image(engine: &Inner, name: &ImageRef) -> Result<StoredImage, ErrorInfo> {
    let folder = engine.state.join("images");
    let name = name.clone();
    let looked =
        tokio::task::spawn_blocking(move || image::ImageStore::open(folder)?.get(&name)).await;
    looked
        .map_err(|error| crate::provision::internal(error.to_string()))?
        .map_err(|error| ErrorInfo {
            code: match error {
                ImageError::NotFound { .. } => ErrorCode::ImageMissing,
                _ => ErrorCode::ImageRefused,
            },
            message: with_causes(&error),
            hint: Some(error.hint()),
        })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Refuses an image that is not on the operator's allow-list, where the policy requires one.
async fn admit(
    engine: &Inner,
    spec: &RunSpec,
    name: Option<&ImageRef>,
    digest: Option<Digest>,
    labels: BTreeMap<String, String>,
) -> Result<(), ErrorInfo> {
    if spec.images.rule == ImageRule::Open {
        return Ok(());
    }
    let state = engine.state.clone();
    let policy = spec.images.clone();
    let facts = spec::CandidateImage {
        reference: name.cloned(),
        digest,
        labels,
    };
    let check = move || {
        let list = store::AllowedImages::open(&state).map_err(|error| ErrorInfo {
            code: ErrorCode::ImageRefused,
            message: format!("the list of allowed images cannot be read: {error}"),
            hint: Some("`airlock image allowed` says more".to_owned()),
        })?;
        list.check(&policy, &facts, ImageUse::Run)
            .map_err(ErrorInfo::from)
    };
    tokio::task::spawn_blocking(check)
        .await
        .map_err(|error| crate::provision::internal(error.to_string()))?
}

/// The user that the image configures.
enum ImageUser {
    /// No user, or root.
    RootOrUnset,
    Number(User),
    Name(String),
}

/// `USER`, `UID`, `UID:GID`, `USER:GROUP`.
fn user_of(text: &str) -> ImageUser {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    match (user, user.parse::<u32>(), group.parse::<u32>()) {
        ("" | "root", _, _) | (_, Ok(0), _) => ImageUser::RootOrUnset,
        (_, Ok(uid), Ok(gid)) => ImageUser::Number(User { uid, gid }),
        (_, Ok(uid), Err(_)) if group.is_empty() => ImageUser::Number(User { uid, gid: uid }),
        _ => ImageUser::Name(text.to_owned()),
    }
}

/// Applies the image's configuration to the spec. The caller's values take precedence.
fn apply_image_config(
    spec: &mut RunSpec,
    config: &ImageConfig,
    user: ImageUser,
) -> Result<Vec<String>, ErrorInfo> {
    let mut notes = Vec::new();
    spec.command = command(spec, config)?;
    spec.sandbox.image_env = variables(config);
    let folder = PathBuf::from(&config.working_dir);
    // A working directory of `/` says nothing, and would only hide the workspace.
    let says_nothing = ["", "/", spec::WORKSPACE]
        .map(Path::new)
        .contains(&folder.as_path());
    match InsidePath::new(&folder) {
        Ok(_) => spec.sandbox.directory = folder,
        Err(_) if says_nothing => {}
        Err(bad) => notes.push(format!("the image's WORKDIR is not followed: {bad}")),
    }
    if spec.image_chooses_user {
        match user {
            ImageUser::RootOrUnset if config.user.is_empty() => {}
            ImageUser::RootOrUnset => {
                notes.push(format!(
                    "the image asks for root; its program is uid {}",
                    spec.sandbox.user.uid
                ));
            }
            ImageUser::Number(user) => spec.sandbox.user = user,
            ImageUser::Name(name) => spec.sandbox.named_user = Some(name),
        }
    }
    Ok(notes)
}

/// The command as container engines compose it: the image's entrypoint, then the caller's
/// arguments, or else the image's CMD.
fn command(spec: &RunSpec, config: &ImageConfig) -> Result<Vec<OsString>, ErrorInfo> {
    // A session sandbox runs nothing by itself; each exec request has a whole command.
    if spec.sandbox.outlives_programs {
        return Ok(Vec::new());
    }
    let own = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mut all = match &spec.entrypoint {
        None => own(&config.entrypoint),
        Some(none) if none.is_empty() => Vec::new(),
        Some(program) => vec![program.clone()],
    };
    match (spec.command.is_empty(), &spec.entrypoint) {
        (false, _) => all.extend(spec.command.iter().cloned()),
        // The image's CMD belongs to its own entrypoint and not to the caller's.
        (true, Some(_)) => {}
        (true, None) => all.extend(own(&config.cmd)),
    }
    let nul = all.iter().any(|word| word.as_encoded_bytes().contains(&0));
    match all.first() {
        Some(program) if !program.is_empty() && !nul => Ok(all),
        _ => Err(ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: "there is no command to run, and the image names none".to_owned(),
            hint: Some("put the command after `--`".to_owned()),
        }),
    }
}

/// The image's variables that are valid. Airlock's own variables override them.
fn variables(config: &ImageConfig) -> BTreeMap<OsString, OsString> {
    let split = config.env.iter().filter_map(|text| text.split_once('='));
    let fits = |(name, value): &(&str, &str)| {
        !name.is_empty() && !name.contains('\0') && !value.contains('\0')
    };
    split
        .filter(fits)
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Policy, RunRequest};

    fn spec_of(change: impl FnOnce(&mut RunRequest)) -> RunSpec {
        let mut request = RunRequest {
            image: Some("tool".into()),
            ..RunRequest::default()
        };
        change(&mut request);
        Policy::default().admit(request).unwrap()
    }

    fn config() -> ImageConfig {
        ImageConfig {
            user: "1001:1002".into(),
            env: vec![
                "PATH=/opt/bin:/bin".into(),
                "A=image".into(),
                "B=x=y".into(),
                "bad".into(),
                "=x".into(),
            ],
            entrypoint: vec!["/entry".into()],
            cmd: vec!["serve".into()],
            working_dir: "/app".into(),
            labels: BTreeMap::new(),
        }
    }

    fn obeyed(change: impl FnOnce(&mut RunRequest)) -> RunSpec {
        let mut spec = spec_of(change);
        let config = config();
        apply_image_config(&mut spec, &config, user_of(&config.user)).unwrap();
        spec
    }

    #[test]
    fn an_image_says_how_it_wants_to_be_run_and_the_caller_has_the_last_word() {
        let spec = obeyed(|_| {});
        assert_eq!(spec.command, ["/entry", "serve"]);
        assert_eq!(spec.sandbox.directory, Path::new("/app"));
        assert_eq!(
            spec.sandbox.user,
            User {
                uid: 1001,
                gid: 1002
            }
        );
        assert_eq!(spec.sandbox.image_env.len(), 3);
        let spec = obeyed(|r| {
            r.command = vec!["x".into()];
            r.user = Some(User { uid: 5, gid: 6 });
        });
        assert_eq!(spec.command, ["/entry", "x"]);
        assert_eq!(spec.sandbox.user, User { uid: 5, gid: 6 });
        let spec = obeyed(|r| (r.command, r.entrypoint) = (vec!["x".into()], Some("".into())));
        assert_eq!(spec.command, ["x"]);
        let spec = obeyed(|r| r.entrypoint = Some("/other".into()));
        assert_eq!(spec.command, ["/other"]);
    }

    #[test]
    fn an_image_that_says_root_is_not_obeyed_in_that() {
        for root in ["root", "0", "0:0", "root:wheel", "0:5"] {
            let mut spec = spec_of(|r| r.command = vec!["x".into()]);
            let config = ImageConfig {
                user: root.into(),
                ..ImageConfig::default()
            };
            let notes = apply_image_config(&mut spec, &config, user_of(root)).unwrap();
            assert_eq!(
                (spec.sandbox.user.uid, spec.sandbox.named_user.is_none()),
                (1000, true),
                "{root}"
            );
            assert!(notes[0].contains("asks for root"));
        }
    }

    #[test]
    fn without_any_command_nothing_runs() {
        let mut spec = spec_of(|_| {});
        let refused =
            apply_image_config(&mut spec, &ImageConfig::default(), ImageUser::RootOrUnset)
                .unwrap_err();
        assert!(
            refused.message.starts_with("there is no command"),
            "{}",
            refused.message
        );
    }
}
