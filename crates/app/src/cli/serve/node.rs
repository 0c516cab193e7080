//! What a node file means for this server: settings of the configuration, narrowed, and what the gateway is told.

use super::super::{Global, message::Failure};
use crate::config::{
    Config, Place, Surroundings, Telemetry, log_file,
    node::{self, NodeFile, NodeMode},
};
use spec::LogLevel;
use std::path::Path;

/// A node file that was read.
#[derive(Debug)]
pub(super) struct Told(NodeFile);

impl Told {
    pub(super) fn read(file: &Path, surroundings: &Surroundings) -> Result<Told, Failure> {
        Ok(Told(node::read(
            &surroundings.current_folder.join(file),
            surroundings,
        )?))
    }

    /// What the gateway does by it.
    pub(super) fn of_gateway(&self) -> gateway::NodeSettings {
        let (said, usual) = (self.0.clone(), gateway::NodeSettings::default());
        let longest_timeout = said.longest_timeout.unwrap_or(usual.max_timeout);
        gateway::NodeSettings {
            name: said.name,
            labels: said.labels,
            metadata: said.metadata,
            public_url: said.public_url,
            mode: match said.mode {
                NodeMode::Allow => gateway::NodeWorkMode::Allow,
                NodeMode::SandboxOnly => gateway::NodeWorkMode::SandboxOnly,
                NodeMode::Disabled => gateway::NodeWorkMode::Disabled,
            },
            inference: !said.without_inference,
            backend: said.runtime,
            default_image: said.default_image,
            allowed_images: said.allowed_images,
            resources: gateway::NodeResources {
                memory: said.memory,
                cpus: said.cpus,
                pids: said.pids,
            },
            default_timeout: said
                .default_timeout
                .unwrap_or(usual.default_timeout)
                .min(longest_timeout),
            max_timeout: longest_timeout,
            max_request_bytes: said.max_request_bytes.unwrap_or(usual.max_request_bytes),
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
        serve.hosts.extend(said.public_name());
        serve.folders.extend(said.folders.iter().cloned());
        if let Some(most) = said.max_request_bytes {
            serve.bounds.body = serve.bounds.body.min(most);
        }
        if let Some(most) = said.max_concurrency {
            serve.bounds.runs = serve.bounds.runs.min(most);
            serve.bounds.runs_per_key = serve.bounds.runs_per_key.min(most);
        }
        self.log(&mut config.telemetry);
        let maximum = &mut config.policy.maximum;
        least(&mut maximum.memory, said.memory);
        least(&mut maximum.cpus, said.cpus);
        least(&mut maximum.pids, said.pids);
        let longest = said.longest_timeout.map(spec::Time);
        least(&mut maximum.wall_time, longest);
    }

    /// What it says of the log, and what the node is called.
    fn log(&self, telemetry: &mut Telemetry) {
        let (said, log) = (&self.0.logging, &mut telemetry.log);
        // There is nothing to tell beyond `debug`.
        let level = said
            .level
            .as_deref()
            .map(|level| if level == "trace" { "debug" } else { level });
        let level = LogLevel::ALL
            .into_iter()
            .find(|known| Some(known.name()) == level);
        log.level = level.unwrap_or(log.level);
        let format = said
            .format
            .as_deref()
            .and_then(|format| format.parse().ok());
        log.format = format.unwrap_or(log.format);
        log.file = said
            .file
            .as_ref()
            .map(|file| log_file(file.clone()))
            .or(log.file.take());
        telemetry.slug = self.0.id.clone().or(telemetry.slug.take());
    }
}

/// The settings of a server with such a file, or without.
pub(super) fn configure(
    told: Option<&Told>,
    global: &Global,
    surroundings: &Surroundings,
) -> Result<Config, Failure> {
    let Some(told) = told else {
        return global.configure(surroundings);
    };
    let mut global = global.clone();
    if surroundings.variable("AIRLOCK_STATE").is_none() {
        global.state = global.state.or_else(|| told.0.state.clone());
    }
    let mut config = global.configure(surroundings)?;
    told.apply(&mut config);
    Ok(config)
}
