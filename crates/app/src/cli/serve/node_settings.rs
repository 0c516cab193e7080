//! Applies a node file to a server: it narrows the configuration and sets the gateway's node
//! settings.

use super::super::{Global, message::Failure};
use crate::config::{
    Config, ListenAddress, ProcessEnv, TelemetryConfig, log_file,
    node_file::{self, NodeFile, NodeMode},
};
use spec::LogLevel;
use std::path::Path;

/// A parsed node file.
#[derive(Debug)]
pub(super) struct NodeSettings(NodeFile);

impl NodeSettings {
    pub(super) fn read(file: &Path, env: &ProcessEnv) -> Result<NodeSettings, Failure> {
        Ok(NodeSettings(node_file::read(
            &env.current_folder.join(file),
            env,
        )?))
    }

    /// The node settings of the gateway.
    pub(super) fn gateway_settings(&self) -> gateway::NodeSettings {
        let node = self.0.clone();
        let usual = gateway::NodeSettings::default();
        let max_timeout = node.max_timeout.unwrap_or(usual.max_timeout);
        gateway::NodeSettings {
            name: node.name,
            labels: node.labels,
            metadata: node.metadata,
            public_url: node.public_url,
            mode: match node.mode {
                NodeMode::Allow => gateway::NodeWorkMode::Allow,
                NodeMode::SandboxOnly => gateway::NodeWorkMode::SandboxOnly,
                NodeMode::Disabled => gateway::NodeWorkMode::Disabled,
            },
            inference: !node.without_inference,
            backend: node.runtime,
            default_image: node.default_image,
            allowed_images: node.allowed_images,
            resources: gateway::NodeResources {
                memory: node.memory,
                cpus: node.cpus,
                pids: node.pids,
            },
            default_timeout: node
                .default_timeout
                .unwrap_or(usual.default_timeout)
                .min(max_timeout),
            max_timeout,
            max_request_bytes: node.max_request_bytes.unwrap_or(usual.max_request_bytes),
        }
    }

    /// Limits of the node file only lower those of the configuration; folders and host names are
    /// added.
    fn narrow(&self, config: &mut Config) {
        fn lower_to<T: Ord>(most: &mut Option<T>, node: Option<T>) {
            *most = match (most.take(), node) {
                (Some(most), Some(node)) => Some(most.min(node)),
                (most, node) => most.or(node),
            };
        }
        let node = &self.0;
        let serve = &mut config.serve;
        serve.listen = Some(ListenAddress::Tcp(node.listen()));
        serve.hosts.extend(node.public_name());
        serve.folders.extend(node.folders.iter().cloned());
        if let Some(most) = node.max_request_bytes {
            serve.bounds.body = serve.bounds.body.min(most);
        }
        if let Some(most) = node.max_concurrency {
            serve.bounds.runs = serve.bounds.runs.min(most);
            serve.bounds.runs_per_key = serve.bounds.runs_per_key.min(most);
        }
        self.apply_log(&mut config.telemetry);
        let maximum = &mut config.policy.maximum;
        lower_to(&mut maximum.memory, node.memory);
        lower_to(&mut maximum.cpus, node.cpus);
        lower_to(&mut maximum.pids, node.pids);
        let longest = node.max_timeout.map(spec::Time);
        lower_to(&mut maximum.wall_time, longest);
    }

    /// Applies the log settings and the node's name.
    fn apply_log(&self, telemetry: &mut TelemetryConfig) {
        let node = &self.0.logging;
        let log = &mut telemetry.log;
        // Airlock's most detailed level is `debug`.
        let level = node
            .level
            .as_deref()
            .map(|level| if level == "trace" { "debug" } else { level });
        let level = LogLevel::ALL
            .into_iter()
            .find(|known| Some(known.name()) == level);
        log.level = level.unwrap_or(log.level);
        let format = node
            .format
            .as_deref()
            .and_then(|format| format.parse().ok());
        log.format = format.unwrap_or(log.format);
        log.file = node
            .file
            .as_ref()
            .map(|file| log_file(file.clone()))
            .or(log.file.take());
        telemetry.slug = self.0.id.clone().or(telemetry.slug.take());
    }
}

/// The configuration of a server with or without a node file.
pub(super) fn configure(
    settings: Option<&NodeSettings>,
    global: &Global,
    env: &ProcessEnv,
) -> Result<Config, Failure> {
    let Some(settings) = settings else {
        return global.configure(env);
    };
    let mut global = global.clone();
    if env.variable("AIRLOCK_STATE").is_none() {
        global.state = global.state.or_else(|| settings.0.state.clone());
    }
    let mut config = global.configure(env)?;
    settings.narrow(&mut config);
    Ok(config)
}
