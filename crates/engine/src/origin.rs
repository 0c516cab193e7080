//! What a run starts from: the host's own `/usr`, a folder, an image of ours, or one that a container engine has. What an
//! image says of itself is taken into the spec here, as far as the policy lets it.

use crate::Inner;
use image::{ImageError, Stored};
use sandbox::container::ImageFacts;
use spec::{
    Backend, Digest, ErrorCode, ErrorInfo, ImageConfig, ImageRef, ImageRule, ImageUse, InsidePath,
    Root, RunSpec, User,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// What holds the root of a run, for as long as it lives.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Nothing needs to be held.
    Here,
    /// An image of ours, which nobody may remove meanwhile.
    Stored(#[allow(dead_code, reason = "held")] Box<Stored>),
    /// A container engine has it.
    Engine(Box<ImageFacts>),
}

/// Finds the root of a run, and takes what its image says into the spec; with what a reader should know.
pub(crate) async fn find(
    engine: &Inner,
    spec: &mut RunSpec,
) -> Result<(Origin, Vec<String>), ErrorInfo> {
    let name = match &spec.sandbox.root {
        Root::Host => return Ok((Origin::Here, Vec::new())),
        Root::Folder(_) => {
            admit(engine, spec, None, None, BTreeMap::new()).await?;
            return Ok((Origin::Here, Vec::new()));
        }
        Root::Image(name) => name.clone(),
    };
    let backend = spec.sandbox.backend;
    match backend {
        Backend::Native => {
            let stored = stored(engine, &name).await?;
            let labels = stored.config().labels.clone();
            // The one that was asked for, which the store has found to be this image's.
            let digest = name.digest().unwrap_or(stored.digest()).clone();
            admit(engine, spec, Some(&name), Some(digest), labels).await?;
            let named = stored.user().map_or(Named::Nobody, Named::Number);
            let notes = obey(spec, stored.config(), named)?;
            crate::guard::add_own(&mut spec.sandbox, stored.root()).map_err(|error| {
                crate::making::internal(format!("the image cannot be looked at: {error}"))
            })?;
            spec.sandbox.root = Root::Folder(stored.root().to_owned());
            Ok((Origin::Stored(Box::new(stored)), notes))
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
            let named = user_of(&facts.config.user);
            let notes = obey(spec, &facts.config, named)?;
            Ok((Origin::Engine(Box::new(facts)), notes))
        }
    }
}

/// Whether there can be such an image at all: before there is a state folder, there is none.
pub(crate) fn look(state: &Path, spec: &RunSpec) -> Result<(), ErrorInfo> {
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

async fn stored(engine: &Inner, name: &ImageRef) -> Result<Stored, ErrorInfo> {
    let (folder, name) = (engine.state.join("images"), name.clone());
    let looked = tokio::task::spawn_blocking(move || image::Images::open(folder)?.get(&name)).await;
    looked
        .map_err(|error| crate::making::internal(error.to_string()))?
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

/// Refuses an image that the operator has not allowed, where only those may be used.
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
    let (state, policy) = (engine.state.clone(), spec.images.clone());
    let facts = spec::ImageFacts {
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
        .map_err(|error| crate::making::internal(error.to_string()))?
}

/// Who an image says that its program is.
enum Named {
    /// It says nothing, or root.
    Nobody,
    Number(User),
    Name(String),
}

/// `USER`, `UID`, `UID:GID`, `USER:GROUP`.
fn user_of(text: &str) -> Named {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    match (user, user.parse::<u32>(), group.parse::<u32>()) {
        ("" | "root", _, _) | (_, Ok(0), _) => Named::Nobody,
        (_, Ok(uid), Ok(gid)) => Named::Number(User { uid, gid }),
        (_, Ok(uid), Err(_)) if group.is_empty() => Named::Number(User { uid, gid: uid }),
        _ => Named::Name(text.to_owned()),
    }
}

/// Takes what an image says into a spec. What the caller said stays.
fn obey(spec: &mut RunSpec, config: &ImageConfig, user: Named) -> Result<Vec<String>, ErrorInfo> {
    let mut notes = Vec::new();
    spec.command = command(spec, config)?;
    spec.sandbox.image_env = variables(config);
    let folder = PathBuf::from(&config.working_dir);
    // Its root says nothing, and would only hide the workspace.
    let says_nothing = ["", "/", spec::WORKSPACE]
        .map(Path::new)
        .contains(&folder.as_path());
    match InsidePath::new(&folder) {
        Ok(_) => spec.sandbox.directory = folder,
        Err(_) if says_nothing => {}
        Err(bad) => notes.push(format!("the image's WORKDIR is not followed: {bad}")),
    }
    if spec.user_of_image {
        match user {
            Named::Nobody if config.user.is_empty() => {}
            Named::Nobody => {
                notes.push(format!(
                    "the image asks for root; its program is uid {}",
                    spec.sandbox.user.uid
                ));
            }
            Named::Number(user) => spec.sandbox.user = user,
            Named::Name(name) => spec.sandbox.named_user = Some(name),
        }
    }
    Ok(notes)
}

/// As container engines do it: what the image runs, then the caller's words, or the image's own if there are none.
fn command(spec: &RunSpec, config: &ImageConfig) -> Result<Vec<OsString>, ErrorInfo> {
    // A box that stays runs nothing by itself; its programs are whole as they are asked for.
    if spec.sandbox.stays {
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
        // What another program is to be told, the image cannot know.
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

/// Of an image's variables those that can be set; Airlock's own are set over them.
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
        obey(&mut spec, &config, user_of(&config.user)).unwrap();
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
            let notes = obey(&mut spec, &config, user_of(root)).unwrap();
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
        let refused = obey(&mut spec, &ImageConfig::default(), Named::Nobody).unwrap_err();
        assert!(
            refused.message.starts_with("there is no command"),
            "{}",
            refused.message
        );
    }
}
