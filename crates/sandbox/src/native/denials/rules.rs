//! Which rule makes a path of a sandbox read-only, and the option that would lift it.

use super::{
    super::{plan, protect::Bind},
    ECONNREFUSED, ENETUNREACH,
    overlay_layer::OverlayLayer,
};
use crate::transparent_proxy::InterceptReach;
use rustix::{
    fs::{self, AtFlags, CWD},
    io::Errno,
};
use spec::{Access, DNS_PORT, HOME, InsidePath, Network, Ports, SandboxSpec, WEB_PORTS, WORKSPACE};
use std::{
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The rules of a sandbox, from its spec.
#[derive(Debug)]
pub(crate) struct DenialRules {
    /// Whether only the sandbox itself can be reached, and what is intercepted.
    pub(super) own_network: bool,
    /// Which connections are intercepted, if any.
    reach: Option<InterceptReach>,
    /// The ids whose file permissions count, if they are not those of this process.
    pub(super) file_ids: Option<(u32, u32)>,
    /// The layer over the workspace, where folders of it cannot be renamed.
    pub(super) layer: Option<OverlayLayer>,
    /// The host folder of the workspace.
    workspace: Option<PathBuf>,
    /// Later entries win over earlier ones.
    places: Vec<RuledPath>,
}

#[derive(Debug)]
struct RuledPath {
    path: PathBuf,
    /// Whether it covers everything below, too.
    below: bool,
    rule: Option<(&'static str, String)>,
}

impl DenialRules {
    /// `file_ids` as in the field.
    pub(crate) fn new(
        spec: &SandboxSpec,
        binds: &[Bind],
        file_ids: Option<(u32, u32)>,
        reach: Option<InterceptReach>,
    ) -> DenialRules {
        let granted = ["/tmp", "/dev/shm", WORKSPACE, HOME].map(|path| RuledPath {
            path: path.into(),
            below: true,
            rule: None,
        });
        let protected = binds.iter().map(|bind| RuledPath {
            path: Path::new(WORKSPACE).join(&bind.path),
            below: true,
            rule: Some((
                "protected",
                if bind.hidden {
                    "nothing".to_owned()
                } else {
                    format!("--allow-protected {}", bind.path.display())
                },
            )),
        });
        let read_only = spec.workspace.iter().filter(|_| spec.read_only_workspace);
        let read_only = read_only.map(|folder| RuledPath {
            path: WORKSPACE.into(),
            below: true,
            rule: Some((
                "mount",
                if can_be_written(folder) {
                    format!("--workspace {}", folder.display())
                } else {
                    "nothing".to_owned()
                },
            )),
        });
        let protected = read_only.chain(protected);
        let mounts = spec.mounts.iter().map(|mount| {
            let host = mount.host.display();
            let inside = mount.inside.as_path();
            let remedy = || {
                if spec.git.contains_key(&mount.host) {
                    ("protected", "--allow-protected .git".to_owned())
                } else {
                    ("mount", format!("--mount {host}:{}:rw", inside.display()))
                }
            };
            let rule = (mount.access == Access::ReadOnly).then(remedy);
            RuledPath {
                path: inside.to_owned(),
                below: true,
                rule,
            }
        });
        let writable = plan::writable_folders(spec).unwrap_or_default().into_iter();
        let granted = granted.into_iter().chain(writable.map(|path| RuledPath {
            path,
            below: true,
            rule: None,
        }));
        let laid = spec.workspace.as_ref().zip(spec.overlay.as_ref());
        // Root's overlay records the origin of a folder, and needs no copy to rename it.
        let by_user = laid.filter(|_| file_ids.is_none());
        DenialRules {
            layer: by_user.and_then(|(folder, overlay)| OverlayLayer::open(folder, &overlay.layer)),
            workspace: spec.workspace.clone(),
            own_network: spec.network != Network::Host && spec.internal_network.is_none(),
            reach,
            file_ids,
            places: granted.chain(protected).chain(mounts).collect(),
        }
    }

    /// What prevents a connection to the outside, if anything: the errno, and the option that would
    /// allow it.
    pub(super) fn against_connection(
        &self,
        to: SocketAddr,
        stream: bool,
    ) -> Option<(i32, &'static str)> {
        let (port, names) = (to.port(), to.port() == DNS_PORT);
        let arrives = |reach: &InterceptReach| {
            reach.by_address && (reach.ipv6 || to.ip().to_canonical().is_ipv4())
        };
        match &self.reach {
            None if names || stream && WEB_PORTS.contains(&port) => {
                Some((ENETUNREACH, "--allow-host HOST"))
            }
            None if stream => Some((ENETUNREACH, "--allow-host HOST:PORT")),
            // The egress door decides and reports on these connections.
            Some(reach) if stream && arrives(reach) && reach.ports.has(port) => None,
            Some(reach) if names && arrives(reach) && reach.ports == Ports::Any => None,
            Some(reach) if stream && arrives(reach) => Some((ECONNREFUSED, reach.more_with)),
            // UDP has no door, and neither has a family that this host lacks.
            Some(reach) if reach.by_address => Some((ENETUNREACH, "nothing")),
            // There a name has to be looked up at the door first.
            Some(reach) if stream && reach.ports.has(port) => {
                Some((ENETUNREACH, "--backend native"))
            }
            Some(reach) if stream => Some((ENETUNREACH, reach.more_with)),
            None | Some(_) => Some((ENETUNREACH, "nothing")),
        }
    }

    /// The denial of renaming a folder in a layer: operation, rule, and the option that would allow
    /// it.
    pub(super) fn against_renaming(&self) -> (&'static str, &'static str, String) {
        let folder = self
            .workspace
            .iter()
            .map(|folder| folder.display().to_string());
        let folder: String = folder.collect();
        (
            "rename",
            "workspace_layer",
            format!("--workspace {folder}:live"),
        )
    }

    /// The rule that makes a path read-only, and the option that would allow `target` there; none
    /// if it is writable.
    pub(super) fn against(&self, place: &Path, target: &Path) -> Option<(&'static str, String)> {
        let covers = |it: &&RuledPath| place == it.path || it.below && place.starts_with(&it.path);
        match self
            .places
            .iter()
            .filter(covers)
            .max_by_key(|it| it.path.components().count())
        {
            Some(found) => found.rule.clone(),
            None => {
                let mountable = InsidePath::new(target).is_ok();
                // No name that the program chose: the text may be copied into a shell.
                let remedy = if mountable {
                    "--mount HOST:INSIDE:rw"
                } else {
                    "nothing"
                };
                Some(("read_only_root", remedy.to_owned()))
            }
        }
    }
}

/// Whether a folder that is read-only inside could be writable with another option; unclear cases
/// count as yes.
fn can_be_written(folder: &Path) -> bool {
    let access = fs::accessat(CWD, folder, fs::Access::WRITE_OK, AtFlags::EACCESS);
    // Root has the permissions of its owner there.
    let owner_may = std::fs::metadata(folder).is_ok_and(|found| found.mode() & 0o200 != 0);
    let refused = [Errno::ACCESS, Errno::PERM, Errno::ROFS];
    owner_may && !access.is_err_and(|error| refused.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_cannot_be_written_anyway_is_not_told_to_be_lifted() {
        let name = format!("airlock-rules-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let request = spec::RunRequest {
            command: vec!["true".into()],
            workspace: Some(folder.clone()),
            read_only_workspace: true,
            ..Default::default()
        };
        let spec = spec::Policy::default().admit(request).unwrap().sandbox;
        let place = Path::new("/workspace/x");
        let lifts = |mode| {
            std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
            let rules = DenialRules::new(&spec, &[], None, None);
            rules.against(place, place).unwrap().1
        };
        let (closed, open) = (lifts(0o555), lifts(0o755));
        std::fs::remove_dir(&folder).unwrap();
        assert_eq!(closed, "nothing");
        assert_eq!(open, format!("--workspace {}", folder.display()));
    }

    #[test]
    fn what_would_let_a_connection_be_made_is_told_by_what_arrives() {
        let policy = spec::Policy::default();
        let request = spec::RunRequest {
            command: vec!["true".into()],
            ..Default::default()
        };
        let spec = policy.admit(request).unwrap().sandbox;
        let to = |address: [u8; 4], port: u16| SocketAddr::from((address, port));
        let against = |reach: Option<InterceptReach>, port, stream| {
            DenialRules::new(&spec, &[], None, reach)
                .against_connection(to([1, 2, 3, 4], port), stream)
        };
        let nothing = || None;
        assert_eq!(
            against(nothing(), 443, true),
            Some((ENETUNREACH, "--allow-host HOST"))
        );
        assert_eq!(
            against(nothing(), 5432, true),
            Some((ENETUNREACH, "--allow-host HOST:PORT"))
        );
        assert_eq!(
            against(nothing(), 53, false),
            Some((ENETUNREACH, "--allow-host HOST"))
        );
        assert_eq!(
            against(nothing(), 443, false),
            Some((ENETUNREACH, "nothing"))
        );
        let web = |by_address| {
            Some(InterceptReach {
                ports: Ports::web(),
                by_address,
                ipv6: false,
                more_with: "more",
            })
        };
        assert_eq!(against(web(true), 443, true), None);
        assert_eq!(against(web(true), 5432, true), Some((ECONNREFUSED, "more")));
        assert_eq!(
            against(web(true), 53, false),
            Some((ENETUNREACH, "nothing"))
        );
        assert_eq!(
            against(web(false), 443, true),
            Some((ENETUNREACH, "--backend native"))
        );
        assert_eq!(against(web(false), 5432, true), Some((ENETUNREACH, "more")));
        let all = || {
            Some(InterceptReach {
                ports: Ports::Any,
                by_address: true,
                ipv6: false,
                more_with: "more",
            })
        };
        assert_eq!(
            (against(all(), 1, true), against(all(), 53, false)),
            (None, None)
        );
        assert_eq!(against(all(), 443, false), Some((ENETUNREACH, "nothing")));
        let newer = DenialRules::new(&spec, &[], None, all())
            .against_connection("[2001:db8::1]:1".parse().unwrap(), true);
        assert_eq!(newer, Some((ENETUNREACH, "nothing")));
    }
}
