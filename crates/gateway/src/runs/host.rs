//! What a request may name of this machine. Folders only beneath those that the operator shares; what leads out of the box
//! past its doors, and what is stored here for others, only for an admin.

use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use http::StatusCode;
use spec::{ExtraMounts, Network, RunRequest};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The request with its folders as they really are; refused if it names what it may not.
pub(crate) fn admit(gateway: &Gateway, caller: &Caller, mut request: RunRequest) -> Answer<RunRequest> {
    let admins = [
        ("network: host", request.network == Some(Network::Host)),
        ("internal_network", request.internal_network.is_some()),
        ("volumes", !request.volumes.is_empty()),
        ("secrets", !request.secrets.is_empty()),
        ("allow_protected", !request.allow_protected.is_empty()),
        // Names are everybody's: whoever may choose one learns which there are, and can take another's.
        ("run_id", request.run_id.is_some()),
    ];
    if let Some((what, _)) = admins.into_iter().find(|(_, asked)| *asked && !caller.is_admin()) {
        return Err(denied(format!("`{what}` is only for an admin"), "leave it away, or use an admin's key"));
    }
    check_profile(gateway, caller, &request)?;
    // As a text an input may be a file of this machine: over HTTP there is none, whoever wrote it.
    if !request.inputs.is_empty() {
        return Err(denied(
            "files of this machine are no inputs".to_owned(),
            "send `text`, `base64` or `artifact`",
        ));
    }
    // They are named by everybody, and whoever reads or adds one says so.
    if !request.inputs_kept.is_empty() || !request.artifacts.is_empty() {
        caller.require(Scope::Artifacts)?;
    }
    if let Some(image) = request.image.as_mut().filter(|image| is_folder(image)) {
        *image = shared(gateway, image)?;
    }
    if let Some(workspace) = &mut request.workspace {
        *workspace = shared(gateway, workspace)?;
    }
    for mount in &mut request.mounts {
        *mount = mounted(gateway, mount)?;
    }
    Ok(request)
}

/// Those that the operator lists; unless he does, all that show nothing of this machine. An admin may use any.
fn check_profile(gateway: &Gateway, caller: &Caller, request: &RunRequest) -> Answer<()> {
    let policy = gateway.policy();
    let name = request.profile.as_deref().unwrap_or(&policy.default_profile);
    // One that there is not is named by whoever looks at the rest.
    let Some(profile) = policy.profile(name) else { return Ok(()) };
    let listed = match gateway.profiles() {
        Some(profiles) => profiles.iter().any(|listed| listed == name),
        None => profile.extra_mounts == ExtraMounts::None,
    };
    match listed || caller.is_admin() {
        true => Ok(()),
        false => Err(denied(
            format!("the profile `{}` is not for every key", name.escape_debug()),
            "use another; the operator lists those for all as `profiles` under [serve]",
        )),
    }
}

fn is_folder(image: &Path) -> bool {
    image.as_os_str().as_bytes().starts_with(b"/") || image.as_os_str().as_bytes().starts_with(b".")
}

/// `HOST:INSIDE[:ro|rw]` with the host's part as it really is. What is no mount is refused by whoever reads it next.
fn mounted(gateway: &Gateway, text: &OsStr) -> Answer<OsString> {
    let bytes = text.as_bytes();
    let body = bytes.strip_suffix(b":rw").or_else(|| bytes.strip_suffix(b":ro")).unwrap_or(bytes);
    let Some(colon) = body.iter().rposition(|byte| *byte == b':') else { return Ok(text.to_owned()) };
    let mut real = shared(gateway, Path::new(OsStr::from_bytes(&bytes[..colon])))?.into_os_string();
    real.push(OsStr::from_bytes(&bytes[colon..]));
    Ok(real)
}

/// A path beneath a folder that the operator shares, as it really is. Whether there is such a path elsewhere is not told.
pub(crate) fn shared(gateway: &Gateway, path: &Path) -> Answer<PathBuf> {
    let real = path.is_absolute().then(|| fs::canonicalize(path).ok()).flatten();
    let beneath = |real: &PathBuf| {
        gateway
            .folders()
            .iter()
            .filter_map(|folder| fs::canonicalize(folder).ok())
            .any(|folder| real.starts_with(folder))
    };
    real.filter(beneath).ok_or_else(|| {
        denied(
            format!("`{}` is not in a folder that this server shares", path.to_string_lossy().escape_debug()),
            "the operator names them as `folders` under [serve]; else send files as inputs",
        )
    })
}

fn denied(what: String, hint: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "policy_denied", what, Some(hint.to_owned()))
}
