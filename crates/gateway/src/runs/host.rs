//! What a request may name of this machine. Folders only beneath those that the operator shares; what leads out of the box
//! past its doors, and what is stored here for others, only for an admin.

use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use http::StatusCode;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use spec::{Exact, ExtraMounts, FileId, Network, RunRequest};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// How often the kernel may say that a rename elsewhere disturbed the lookup.
const DISTURBED: usize = 64;

/// The request with its folders as they really are; refused if it names what it may not.
pub(crate) fn admit(
    gateway: &Gateway,
    caller: &Caller,
    mut request: RunRequest,
) -> Answer<RunRequest> {
    let admins = [
        ("network: host", request.network == Some(Network::Host)),
        ("internal_network", request.internal_network.is_some()),
        ("volumes", !request.volumes.is_empty()),
        ("secrets", !request.secrets.is_empty()),
        ("allow_protected", !request.allow_protected.is_empty()),
        // Whoever shares a folder counts on it.
        ("hide: none", request.hide.iter().any(|it| it == "none")),
        // Names are everybody's: whoever may choose one learns which there are, and can take another's.
        ("run_id", request.run_id.is_some()),
    ];
    gateway.node().furnish(&mut request)?;
    if let Some((what, _)) = admins
        .into_iter()
        .find(|(_, asked)| *asked && !caller.is_admin())
    {
        let problem = denied(
            format!("`{what}` is only for an admin"),
            "leave it away, or use an admin's key",
        );
        return Err(problem.ruled(format!("admin:{what}")));
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
    let mut exact = Exact::new();
    if let Some(image) = request.image.as_mut().filter(|image| is_folder(image)) {
        *image = shared(gateway, image, &mut exact)?;
    }
    if let Some(workspace) = &mut request.workspace {
        *workspace = shared(gateway, workspace, &mut exact)?;
    }
    for mount in &mut request.mounts {
        *mount = mounted(gateway, mount, &mut exact)?;
    }
    // A program in one of these folders may turn a path elsewhere at any time: what was looked at here counts.
    request.exact = (!exact.is_empty()).then_some(exact);
    Ok(request)
}

/// Those that the operator lists; unless he does, all that show nothing of this machine. An admin may use any.
fn check_profile(gateway: &Gateway, caller: &Caller, request: &RunRequest) -> Answer<()> {
    let policy = gateway.policy();
    let name = request
        .profile
        .as_deref()
        .unwrap_or(&policy.default_profile);
    // One that there is not is named by whoever looks at the rest.
    let Some(profile) = policy.profile(name) else {
        return Ok(());
    };
    let listed = match gateway.profiles() {
        Some(profiles) => profiles.iter().any(|listed| listed == name),
        None => profile.extra_mounts == ExtraMounts::None,
    };
    match listed || caller.is_admin() {
        true => Ok(()),
        false => Err(denied(
            format!("the profile `{}` is not for every key", name.escape_debug()),
            "use another; the operator lists those for all as `profiles` under [serve]",
        )
        .ruled("serve.profiles")),
    }
}

fn is_folder(image: &Path) -> bool {
    image.as_os_str().as_bytes().starts_with(b"/") || image.as_os_str().as_bytes().starts_with(b".")
}

/// `HOST:INSIDE[:ro|rw]` with the host's part as it really is.
fn mounted(gateway: &Gateway, text: &OsStr, exact: &mut Exact) -> Answer<OsString> {
    let bytes = text.as_bytes();
    let body = bytes
        .strip_suffix(b":rw")
        .or_else(|| bytes.strip_suffix(b":ro"))
        .unwrap_or(bytes);
    // What is no mount is refused by whoever reads it next.
    let Some(colon) = body.iter().rposition(|byte| *byte == b':') else {
        return Ok(text.to_owned());
    };
    let host = Path::new(OsStr::from_bytes(&bytes[..colon]));
    let mut real = shared(gateway, host, exact)?.into_os_string();
    real.push(OsStr::from_bytes(&bytes[colon..]));
    Ok(real)
}

/// Refuses what becomes of a folder that was shared once and is not any more, but for an admin.
pub(crate) fn still_shared(gateway: &Gateway, caller: &Caller, folder: &Path) -> Answer<()> {
    match caller.is_admin() {
        true => Ok(()),
        false => shared(gateway, folder, &mut Exact::new()).map(drop),
    }
}

/// A path beneath a folder that the operator shares, with what it stands for. Whether there is such a path elsewhere is
/// not told.
fn shared(gateway: &Gateway, path: &Path, exact: &mut Exact) -> Answer<PathBuf> {
    let found = gateway
        .folders()
        .iter()
        .find_map(|folder| folder.find(path));
    let (real, id) = found.ok_or_else(|| {
        denied(
            format!("`{}` is not in a folder that this server shares", path.to_string_lossy().escape_debug()),
            "the operator names them as `folders` under [serve], and no link below one is followed; \
             else send files as inputs",
        )
        .ruled("serve.folders")
    })?;
    // Named twice, it must be one and the same.
    match *exact.entry(real.clone()).or_insert(id) == id {
        true => Ok(real),
        false => Err(denied(
            format!(
                "`{}` is being replaced",
                path.to_string_lossy().escape_debug()
            ),
            "ask again once nobody moves anything there",
        )),
    }
}

/// A folder that the operator shares.
#[derive(Debug)]
pub(crate) struct Folder {
    /// As it is written in the settings.
    named: PathBuf,
    /// As it was when the server started: what changes on the way to it later is not followed.
    real: PathBuf,
}

impl Folder {
    pub(crate) fn new(named: PathBuf) -> Folder {
        let real = fs::canonicalize(&named).unwrap_or_else(|_| named.clone());
        Folder { named, real }
    }

    /// What lies at a path beneath it, if no link leads there.
    fn find(&self, path: &Path) -> Option<(PathBuf, FileId)> {
        let rest = path
            .strip_prefix(&self.named)
            .or_else(|_| path.strip_prefix(&self.real))
            .ok()?;
        if !rest
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            return None;
        }
        let real = self
            .real
            .components()
            .chain(rest.components())
            .collect::<PathBuf>();
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        for _ in 0..DISTURBED {
            match rustix::fs::openat2(CWD, &real, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => {
                    let found = rustix::fs::fstat(opened.ok()?).ok()?;
                    return Some((
                        real,
                        FileId {
                            device: found.st_dev,
                            inode: found.st_ino,
                        },
                    ));
                }
            }
        }
        None
    }
}

fn denied(what: String, hint: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "policy_denied",
        what,
        Some(hint.to_owned()),
    )
}
