//! What the operator's node file says of the worker API: whether there is work at all, what jobs get unless they say,
//! and what they may have at most.

use crate::{Problem, problem::Answer};
use http::StatusCode;
use spec::{Cpus, Grants, ImagePattern, ImageRef, RunRequest, Size};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// The most that a body of the worker API may have.
const LARGEST_REQUEST: usize = 10 << 20;

/// Whether work is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Allow,
    /// It is, and nothing gets the inference door.
    SandboxOnly,
    /// It is not.
    Disabled,
}

/// What every job gets, which is also the most that any run may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Resources {
    pub memory: Option<Size>,
    pub cpus: Option<Cpus>,
    pub pids: Option<u32>,
}

/// What a gateway is told as a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is called by people.
    pub name: Option<String>,
    /// By which work finds it.
    pub labels: Vec<String>,
    /// Whatever else.
    pub metadata: BTreeMap<String, String>,
    /// Where it is reached from outside; where it listens if that is not said.
    pub public_url: Option<String>,
    /// Whether it takes work.
    pub mode: Mode,
    /// Whether anything may have the inference door.
    pub inference: bool,
    /// What makes boxes, unless a request says.
    pub backend: Option<String>,
    /// What they start from, unless a request says; without it the host's own `/usr`.
    pub default_image: Option<String>,
    /// The images that may be used; every one that the policy allows if there is no list.
    pub allowed_images: Option<Vec<ImagePattern>>,
    /// What jobs get.
    pub resources: Resources,
    /// How long a job may take unless it says.
    pub default_timeout: Duration,
    /// How long one may take at most.
    pub longest_timeout: Duration,
    /// Bytes of a request.
    pub largest_request: usize,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            name: None,
            labels: Vec::new(),
            metadata: BTreeMap::new(),
            public_url: None,
            mode: Mode::Allow,
            inference: true,
            backend: None,
            default_image: None,
            allowed_images: None,
            resources: Resources::default(),
            default_timeout: Duration::from_secs(3600),
            longest_timeout: Duration::from_secs(10_800),
            largest_request: LARGEST_REQUEST,
        }
    }
}

impl Node {
    /// Refuses work where none is taken.
    pub(crate) fn takes_work(&self) -> Answer<()> {
        match self.mode {
            Mode::Allow | Mode::SandboxOnly => Ok(()),
            Mode::Disabled => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "backend_unavailable",
                "this node takes no work: its `sandbox.mode` is `disabled`",
                Some("ask another node, or the operator for `sandbox.mode: allow`".to_owned()),
            )),
        }
    }

    /// Refuses what was admitted if its profile grants what this node gives nobody.
    pub(crate) fn grants(&self, grants: &Grants) -> Answer<()> {
        match &grants.inference {
            Some(_) => self.gives_inference(),
            None => Ok(()),
        }
    }

    /// Refuses the inference door where nobody gets it.
    pub(crate) fn gives_inference(&self) -> Answer<()> {
        match self.inference && self.mode != Mode::SandboxOnly {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "policy_denied",
                "this node gives nobody the inference door",
                Some(
                    "ask without inference, by a profile that does not grant it, or ask the operator"
                        .to_owned(),
                ),
            )),
        }
    }

    /// Fills in what a request left open, and refuses work and images that this node does not take.
    pub(crate) fn furnish(&self, request: &mut RunRequest) -> Answer<()> {
        self.takes_work()?;
        if request.inference {
            self.gives_inference()?;
        }
        self.fill_in(request);
        match &self.allowed_images {
            Some(allowed) => is_listed(allowed, request.image.as_deref()),
            None => Ok(()),
        }
    }

    /// Fills in what a request left open: of our own trials, which no list is about.
    pub(crate) fn fill_in(&self, request: &mut RunRequest) {
        if request.backend.is_none() {
            request.backend.clone_from(&self.backend);
        }
        if request.image.is_none() {
            request.image = self.default_image.as_ref().map(Into::into);
        }
    }

    /// What is taken of a body.
    pub(crate) fn largest_request(&self) -> usize {
        self.largest_request.min(LARGEST_REQUEST)
    }
}

fn is_listed(allowed: &[ImagePattern], image: Option<&Path>) -> Answer<()> {
    let name = image.and_then(Path::to_str).unwrap_or_default();
    let listed = name
        .parse::<ImageRef>()
        .is_ok_and(|image| allowed.iter().any(|pattern| pattern.matches(&image)));
    match listed {
        true => Ok(()),
        false => Err(Problem::new(
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
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_be_used_and_a_default_is_filled_in() {
        let node = Node {
            default_image: Some("alpine:3".into()),
            allowed_images: Some(vec!["alpine".parse().unwrap()]),
            backend: Some("podman".into()),
            ..Node::default()
        };
        let furnished = |image: Option<&str>, node: &Node| {
            let mut request = RunRequest {
                image: image.map(Into::into),
                ..RunRequest::default()
            };
            node.furnish(&mut request).map(|()| request)
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
        let none = Node {
            default_image: None,
            ..node
        };
        assert!(
            furnished(None, &none).is_err(),
            "the host's own root is on no list"
        );
        assert!(furnished(None, &Node::default()).is_ok(), "the control");
        let disabled = Node {
            mode: Mode::Disabled,
            ..Node::default()
        };
        assert!(furnished(None, &disabled).is_err());
    }

    #[test]
    fn the_inference_door_is_refused_whoever_grants_it() {
        let closed = Node {
            inference: false,
            ..Node::default()
        };
        let only = Node {
            mode: Mode::SandboxOnly,
            ..Node::default()
        };
        let grants = Grants {
            inference: Some(Vec::new()),
            ..Grants::default()
        };
        for (node, gives) in [(Node::default(), true), (closed, false), (only, false)] {
            let mut request = RunRequest {
                inference: true,
                ..RunRequest::default()
            };
            assert_eq!(node.furnish(&mut request).is_ok(), gives, "{node:?}");
            assert_eq!(node.grants(&grants).is_ok(), gives, "{node:?}");
            assert!(node.furnish(&mut RunRequest::default()).is_ok());
            assert!(node.grants(&Grants::default()).is_ok());
        }
    }
}
