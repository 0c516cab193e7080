//! What a node file means for this server: settings of the configuration, narrowed, and what the gateway is told.

use super::super::{Global, message::Failure};
use crate::config::{
    Config, Place, Surroundings,
    node::{self, NodeFile, NodeMode},
};
use std::path::Path;

/// A node file that was read.
#[derive(Debug)]
pub(super) struct Told(NodeFile);

impl Told {
    pub(super) fn read(file: &Path, surroundings: &Surroundings) -> Result<Told, Failure> {
        Ok(Told(node::read(&surroundings.current_folder.join(file), surroundings)?))
    }

    /// What the gateway does by it.
    pub(super) fn of_gateway(&self) -> gateway::Node {
        let (said, usual) = (self.0.clone(), gateway::Node::default());
        let longest_timeout = said.longest_timeout.unwrap_or(usual.longest_timeout);
        gateway::Node {
            id: said.id,
            name: said.name,
            labels: said.labels,
            metadata: said.metadata,
            logging: gateway::Logging {
                level: said.logging.level,
                format: said.logging.format,
                file: said.logging.file,
            },
            mode: match said.mode {
                NodeMode::Allow => gateway::Mode::Allow,
                NodeMode::SandboxOnly => gateway::Mode::SandboxOnly,
                NodeMode::Disabled => gateway::Mode::Disabled,
            },
            inference: !said.without_inference,
            backend: said.runtime,
            default_image: said.default_image,
            allowed_images: said.allowed_images,
            resources: gateway::Resources { memory: said.memory, cpus: said.cpus, pids: said.pids },
            default_timeout: said.default_timeout.unwrap_or(usual.default_timeout).min(longest_timeout),
            longest_timeout,
            largest_request: said.max_request_bytes.unwrap_or(usual.largest_request),
        }
    }

    /// What it says only narrows what the configuration file gives; folders and names it adds.
    fn apply(&self, config: &mut Config) {
        fn least<T: Ord>(most: &mut Option<T>, said: Option<T>) {
            *most = match (most.take(), said) {
                (Some(most), Some(said)) => Some(most.min(said)),
                (most, said) => most.or(said),
            };
        }
        let (said, serve) = (&self.0, &mut config.serve);
        serve.listen = Some(Place::Tcp(said.listen()));
        serve.hosts.extend(said.public_name.clone());
        serve.folders.extend(said.folders.iter().cloned());
        if let Some(most) = said.max_request_bytes {
            serve.bounds.body = serve.bounds.body.min(most);
        }
        if let Some(most) = said.max_concurrency {
            serve.bounds.runs = serve.bounds.runs.min(most);
            serve.bounds.runs_per_key = serve.bounds.runs_per_key.min(most);
        }
        let maximum = &mut config.policy.maximum;
        least(&mut maximum.memory, said.memory);
        least(&mut maximum.cpus, said.cpus);
        least(&mut maximum.pids, said.pids);
        let longest = said.longest_timeout.map(spec::Time);
        least(&mut maximum.wall_time, longest);
    }
}

/// The settings of a server with such a file, or without.
pub(super) fn configure(
    told: Option<&Told>,
    global: &Global,
    surroundings: &Surroundings,
) -> Result<Config, Failure> {
    let Some(told) = told else { return global.configure(surroundings) };
    let mut global = global.clone();
    if surroundings.variable("AIRLOCK_STATE").is_none() {
        global.state = global.state.or_else(|| told.0.state.clone());
    }
    let mut config = global.configure(surroundings)?;
    told.apply(&mut config);
    Ok(config)
}
