//! Access of a request to the host: folders only below the shared ones; what bypasses the doors of
//! a sandbox, or is stored for other tenants, only for an admin.
//!
//! Folders are resolved from the root without symbolic or magic links; `fs` resolves only below a
//! folder.

use crate::{Caller, Gateway, Problem, Scope, problem::Answer};
use http::StatusCode;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};
use spec::{Cpus, ExtraMounts, FileId, Network, PinnedPaths, RunRequest};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// Maximum retries of a path lookup that a concurrent rename disturbed.
const MAX_LOOKUP_RETRIES: usize = 64;

/// Checks the request and resolves its host paths.
pub(crate) fn admit(
    gateway: &Gateway,
    caller: &Caller,
    mut request: RunRequest,
) -> Answer<RunRequest> {
    let admin_only = [
        ("network: host", request.network == Some(Network::Host)),
        ("internal_network", request.internal_network.is_some()),
        ("volumes", !request.volumes.is_empty()),
        ("secrets", !request.secrets.is_empty()),
        ("allow_protected", !request.allow_protected.is_empty()),
        // The operator of a shared folder relies on the hidden files.
        ("hide: none", request.hide.iter().any(|it| it == "none")),
        // Run ids are global: choosing one would reveal others, or take them.
        ("run_id", request.run_id.is_some()),
    ];
    gateway.node().apply_defaults(&mut request)?;
    if let Some((what, _)) = admin_only
        .into_iter()
        .find(|(_, asked)| *asked && !caller.is_admin())
    {
        let problem = denied(
            format!("`{what}` is only for an admin"),
            "leave it away, or use an admin's key",
        );
        return Err(problem.with_rule(format!("admin:{what}")));
    }
    check_profile(gateway, caller, &request)?;
    check_cpus(gateway, caller, &request)?;
    // A textual input may name a file of this machine, which HTTP requests must not.
    if !request.inputs.is_empty() {
        return Err(denied(
            "files of this machine are no inputs".to_owned(),
            "send `text`, `base64` or `artifact`",
        ));
    }
    // Artifacts are shared by a tenant, and need their own scope.
    if !request.artifact_inputs.is_empty() || !request.artifacts.is_empty() {
        caller.require(Scope::Artifacts)?;
    }
    let mut exact = PinnedPaths::new();
    if let Some(image) = request.image.as_mut().filter(|image| is_folder(image)) {
        *image = resolve_shared(gateway, image, &mut exact)?;
    }
    if let Some(workspace) = &mut request.workspace {
        *workspace = resolve_shared(gateway, workspace, &mut exact)?;
    }
    for mount in &mut request.mounts {
        *mount = resolve_mount(gateway, mount, &mut exact)?;
    }
    // A program in a shared folder may replace a path at any time: the file that was checked here
    // is pinned.
    request.allowed_paths = (!exact.is_empty()).then_some(exact);
    Ok(request)
}

/// Without a configured maximum, a key gets at most the CPUs of the machine. A request without a
/// limit is not limited by that, because not every machine can enforce it.
fn check_cpus(gateway: &Gateway, caller: &Caller, request: &RunRequest) -> Answer<()> {
    let max = max_cpus(gateway);
    match request.limits.cpus {
        Some(asked) if asked > max && !caller.is_admin() => Err(Problem::invalid(
            format!("cpus of {asked} is over the operator's maximum of {max}"),
            format!("ask for {max} or less, or raise `cpus` under [serve.maximum]"),
        )),
        _ => Ok(()),
    }
}

/// Maximum CPUs that a key may ask for.
pub(crate) fn max_cpus(gateway: &Gateway) -> Cpus {
    let cores = || std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let said = gateway.policy_of_keys().maximum.cpus;
    said.unwrap_or_else(|| Cpus(cores().saturating_mul(1000)))
}

/// Allows the profiles that the operator lists; by default those that mount nothing of the host. An
/// admin may use any.
fn check_profile(gateway: &Gateway, caller: &Caller, request: &RunRequest) -> Answer<()> {
    let policy = gateway.policy();
    let name = request
        .profile
        .as_deref()
        .unwrap_or(&policy.default_profile);
    // An unknown profile is reported by the policy.
    let Some(profile) = policy.profile(name) else {
        return Ok(());
    };
    let listed = match gateway.profiles() {
        Some(profiles) => profiles.iter().any(|listed| listed == name),
        None => profile.extra_mounts == ExtraMounts::None,
    };
    if listed || caller.is_admin() {
        Ok(())
    } else {
        Err(denied(
            format!("the profile `{}` is not for every key", name.escape_debug()),
            "use another; the operator lists those for all as `profiles` under [serve]",
        )
        .with_rule("serve.profiles"))
    }
}

fn is_folder(image: &Path) -> bool {
    image.as_os_str().as_bytes().starts_with(b"/") || image.as_os_str().as_bytes().starts_with(b".")
}

/// Resolves the host path of `HOST:INSIDE[:ro|rw]`.
fn resolve_mount(gateway: &Gateway, text: &OsStr, exact: &mut PinnedPaths) -> Answer<OsString> {
    let bytes = text.as_bytes();
    let body = bytes
        .strip_suffix(b":rw")
        .or_else(|| bytes.strip_suffix(b":ro"))
        .unwrap_or(bytes);
    // An invalid mount is reported by its parser.
    let Some(colon) = body.iter().rposition(|byte| *byte == b':') else {
        return Ok(text.to_owned());
    };
    let host = Path::new(OsStr::from_bytes(&bytes[..colon]));
    let mut real = resolve_shared(gateway, host, exact)?.into_os_string();
    real.push(OsStr::from_bytes(&bytes[colon..]));
    Ok(real)
}

/// Refuses a folder that is not shared any more, except for an admin.
pub(crate) fn check_still_shared(gateway: &Gateway, caller: &Caller, folder: &Path) -> Answer<()> {
    if caller.is_admin() {
        Ok(())
    } else {
        resolve_shared(gateway, folder, &mut PinnedPaths::new()).map(drop)
    }
}

/// Resolves a path below a shared folder, and pins its file id. The answer does not tell whether
/// another path exists.
fn resolve_shared(gateway: &Gateway, path: &Path, exact: &mut PinnedPaths) -> Answer<PathBuf> {
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
        .with_rule("serve.folders")
    })?;
    // A path that is named twice must be the same file.
    if *exact.entry(real.clone()).or_insert(id) == id {
        Ok(real)
    } else {
        Err(denied(
            format!(
                "`{}` is being replaced",
                path.to_string_lossy().escape_debug()
            ),
            "ask again once nobody moves anything there",
        ))
    }
}

/// A folder that the operator shares.
#[derive(Debug)]
pub(crate) struct SharedFolder {
    /// The path in the settings.
    named: PathBuf,
    /// The resolved path at the start of the server; later changes of links in it are not followed.
    real: PathBuf,
}

impl SharedFolder {
    pub(crate) fn new(named: PathBuf) -> SharedFolder {
        let real = fs::canonicalize(&named).unwrap_or_else(|_| named.clone());
        SharedFolder { named, real }
    }

    /// The file at a path below the folder, without following links.
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
        for _ in 0..MAX_LOOKUP_RETRIES {
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
