//! Worker API settings from the operator's node file: whether work is accepted, defaults and
//! maximums of jobs.

use crate::{Problem, problem::Answer};
use http::StatusCode;
use spec::{Cpus, Grants, ImagePattern, ImageRef, RunRequest, Size};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// Maximum body size of the worker API.
const MAX_REQUEST: usize = 10 << 20;

/// Whether the node accepts work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeWorkMode {
    /// Work is accepted.
    #[default]
    Allow,
    /// Work is accepted without the inference door.
    SandboxOnly,
    /// No work is accepted.
    Disabled,
}

/// Default resource limits of a job, which are also the maximum of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    /// Memory limit.
    pub memory: Option<Size>,
    /// CPU limit.
    pub cpus: Option<Cpus>,
    /// Maximum number of processes.
    pub pids: Option<u32>,
}

/// Settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Display name.
    pub name: Option<String>,
    /// Labels for scheduling.
    pub labels: Vec<String>,
    /// Free-form metadata.
    pub metadata: BTreeMap<String, String>,
    /// Address for external clients; the listening address by default.
    pub public_url: Option<String>,
    /// Whether work is accepted.
    pub mode: NodeWorkMode,
    /// Whether the inference door may be granted.
    pub inference: bool,
    /// Default sandbox backend.
    pub backend: Option<String>,
    /// Default image; without one the host's own `/usr`.
    pub default_image: Option<String>,
    /// Allowed images; without a list, every image that the policy allows.
    pub allowed_images: Option<Vec<ImagePattern>>,
    /// Default resource limits.
    pub resources: NodeResources,
    /// Default timeout of a job.
    pub default_timeout: Duration,
    /// Maximum timeout of a job.
    pub max_timeout: Duration,
    /// Maximum request size in bytes.
    pub max_request_bytes: usize,
}

impl Default for NodeSettings {
    fn default() -> NodeSettings {
        NodeSettings {
            name: None,
            labels: Vec::new(),
            metadata: BTreeMap::new(),
            public_url: None,
            mode: NodeWorkMode::Allow,
            inference: true,
            backend: None,
            default_image: None,
            allowed_images: None,
            resources: NodeResources::default(),
            default_timeout: Duration::from_secs(3600),
            max_timeout: Duration::from_secs(10_800),
            max_request_bytes: MAX_REQUEST,
        }
    }
}

impl NodeSettings {
    /// Refuses work if the node accepts none.
    pub(crate) fn check_takes_work(&self) -> Answer<()> {
        match self.mode {
            NodeWorkMode::Allow | NodeWorkMode::SandboxOnly => Ok(()),
            NodeWorkMode::Disabled => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "backend_unavailable",
                "this node takes no work: its `sandbox.mode` is `disabled`",
                Some("ask another node, or the operator for `sandbox.mode: allow`".to_owned()),
            )),
        }
    }

    /// Refuses an admitted run whose profile grants the inference door if the node does not.
    pub(crate) fn check_grants(&self, grants: &Grants) -> Answer<()> {
        match &grants.inference {
            Some(_) => self.check_inference(),
            None => Ok(()),
        }
    }

    /// Refuses the inference door if the node does not grant it.
    pub(crate) fn check_inference(&self) -> Answer<()> {
        if self.inference && self.mode != NodeWorkMode::SandboxOnly {
            Ok(())
        } else {
            Err(Problem::new(
                StatusCode::FORBIDDEN,
                "policy_denied",
                "this node gives nobody the inference door",
                Some(
                    "ask without inference, by a profile that does not grant it, or ask the operator"
                        .to_owned(),
                ),
            ))
        }
    }

    /// Fills in defaults, and refuses work and images that the node does not accept.
    pub(crate) fn apply_defaults(&self, request: &mut RunRequest) -> Answer<()> {
        self.check_takes_work()?;
        if request.inference {
            self.check_inference()?;
        }
        self.fill_defaults(request);
        match &self.allowed_images {
            Some(allowed) => check_image_listed(allowed, request.image.as_deref()),
            None => Ok(()),
        }
    }

    /// Fills in defaults without checks: for our own probes.
    pub(crate) fn fill_defaults(&self, request: &mut RunRequest) {
        if request.backend.is_none() {
            request.backend.clone_from(&self.backend);
        }
        if request.image.is_none() {
            request.image = self.default_image.as_ref().map(Into::into);
        }
    }

    /// Maximum body size in bytes.
    pub(crate) fn max_request_bytes(&self) -> usize {
        self.max_request_bytes.min(MAX_REQUEST)
    }
}

fn check_image_listed(allowed: &[ImagePattern], image: Option<&Path>) -> Answer<()> {
    let name = image.and_then(Path::to_str).unwrap_or_default();
    let listed = name
        .parse::<ImageRef>()
        .is_ok_and(|image| allowed.iter().any(|pattern| pattern.matches(&image)));
    if listed {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            "image_refused",
            match image {
                Some(_) => format!(
                    "the image `{}` is not on this node's list",
                    name.escape_debug()
                ),
                None => "this node runs only the images on its list, and none was named".to_owned(),
            },
            Some("the operator lists images as `sandbox.allowed_images`".to_owned()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_be_used_and_a_default_is_filled_in() {
        let node = NodeSettings {
            default_image: Some("alpine:3".into()),
            allowed_images: Some(vec!["alpine".parse().unwrap()]),
            backend: Some("podman".into()),
            ..NodeSettings::default()
        };
        let furnished = |image: Option<&str>, node: &NodeSettings| {
            let mut request = RunRequest {
                image: image.map(Into::into),
                ..RunRequest::default()
            };
            node.apply_defaults(&mut request).map(|()| request)
        };
        let request = furnished(None, &node).unwrap();
        assert_eq!(
            (request.image, request.backend.as_deref()),
            (Some("alpine:3".into()), Some("podman"))
        );
        assert!(furnished(Some("alpine:edge"), &node).is_ok());
        for other in [
            "busybox",
            "/etc",
            "./x",
            "alpine.evil.example/alpine",
            "..",
            "",
        ] {
            assert_eq!(
                furnished(Some(other), &node).unwrap_err().status(),
                StatusCode::FORBIDDEN,
                "{other}"
            );
        }
        let none = NodeSettings {
            default_image: None,
            ..node
        };
        assert!(
            furnished(None, &none).is_err(),
            "the host's own root is on no list"
        );
        assert!(
            furnished(None, &NodeSettings::default()).is_ok(),
            "the control"
        );
        let disabled = NodeSettings {
            mode: NodeWorkMode::Disabled,
            ..NodeSettings::default()
        };
        assert!(furnished(None, &disabled).is_err());
    }

    #[test]
    fn the_inference_door_is_refused_whoever_grants_it() {
        let closed = NodeSettings {
            inference: false,
            ..NodeSettings::default()
        };
        let only = NodeSettings {
            mode: NodeWorkMode::SandboxOnly,
            ..NodeSettings::default()
        };
        let grants = Grants {
            inference: Some(Vec::new()),
            ..Grants::default()
        };
        for (node, gives) in [
            (NodeSettings::default(), true),
            (closed, false),
            (only, false),
        ] {
            let mut request = RunRequest {
                inference: true,
                ..RunRequest::default()
            };
            assert_eq!(node.apply_defaults(&mut request).is_ok(), gives, "{node:?}");
            assert_eq!(node.check_grants(&grants).is_ok(), gives, "{node:?}");
            assert!(node.apply_defaults(&mut RunRequest::default()).is_ok());
            assert!(node.check_grants(&Grants::default()).is_ok());
        }
    }
}
