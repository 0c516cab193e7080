//! Converts the settings into those of each component.

use super::{
    ArtifactBackend, ArtifactSharing, BrokerSettings, CallLimits, PoolMode, S3Access, ToolOrigin,
    TransportKind, WorkerSettings, storage::S3Keys,
};
use crate::{
    admission::AdmissionLimits,
    artifacts::{
        self, ArtifactLocation, BucketConfig, BucketCredentials, BucketKind, DEFAULT_MEMORY_BYTES,
        Sharing,
    },
    call,
    tools::sync,
    transport::{
        self, amqp,
        dev::DevBroker,
        mqtt::{self, ClientId},
    },
};
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// Maximum number of prewarmed sandboxes; no more than there are slots.
const MAX_PREWARMED: usize = 4;

impl WorkerSettings {
    /// Name of the pool's queue, and of the pool where there are no queues. The mesh's own workers
    /// use the same name.
    pub fn queue(&self) -> String {
        let usual = || format!("{}/q/str/{}", self.base.namespace(), self.worker_id);
        self.broker.queue.clone().unwrap_or_else(usual)
    }

    /// Settings of the transport.
    pub fn transport(&self) -> transport::BrokerProtocol {
        let BrokerSettings {
            host,
            port,
            tls,
            pool,
            speaks,
            addresses,
            ..
        } = &self.broker;
        let credentials =
            self.broker
                .credentials
                .as_ref()
                .map(|credentials| transport::BrokerCredentials {
                    user: credentials.user.clone(),
                    password: credentials
                        .password
                        .as_ref()
                        .map(|secret| Bytes::copy_from_slice(secret.expose())),
                });
        match self.broker.transport {
            TransportKind::Mqtt => {
                let (client_id, pool) = match pool {
                    PoolMode::Shared => {
                        (ClientId::Unique(self.queue()), Some(self.worker_id.clone()))
                    }
                    PoolMode::Session => (ClientId::Exactly(self.queue()), None),
                };
                let mut settings = mqtt::MqttSettings::new(host, *port, client_id);
                settings.tls = tls.clone();
                settings.credentials = credentials;
                settings.pool = pool;
                settings.speaks = *speaks;
                transport::BrokerProtocol::Mqtt(settings)
            }
            TransportKind::Amqp => {
                let mut settings =
                    amqp::AmqpSettings::new(host, *port, self.queue(), &self.worker_id);
                settings.tls = tls.clone();
                settings.credentials = credentials;
                settings.addresses = addresses.clone();
                transport::BrokerProtocol::Amqp(settings)
            }
            TransportKind::Dev => transport::BrokerProtocol::Dev(DevBroker {
                address: self.broker.host_and_port(),
                client_id: self.worker_id.clone(),
                queue: self.queue(),
            }),
        }
    }

    /// Limits of admission control.
    pub fn bounds(&self) -> AdmissionLimits {
        let CallLimits {
            slots,
            waiting,
            waiting_bytes,
            ..
        } = self.calls;
        AdmissionLimits {
            slots,
            waiting,
            waiting_bytes,
        }
    }

    /// Settings of calls.
    pub fn call(
        &self,
        hidden: Vec<PathBuf>,
        is_there: impl Fn(&Path) -> bool,
    ) -> call::CallSettings {
        call::CallSettings {
            python: self.calls.interpreter(is_there),
            largest_result: crate::wire::answer::MAX_MESSAGE_BYTES,
            max_warm: self.calls.max_warm,
            max_warm_bytes: self.calls.max_warm_bytes,
            max_prewarmed: if self.calls.max_warm == 0 {
                0
            } else {
                self.calls.slots.min(MAX_PREWARMED)
            },
            hidden,
        }
    }

    /// Settings of the artifact store.
    pub fn artifact_store(&self) -> artifacts::ArtifactStoreSettings {
        let place = match &self.artifacts.store {
            ArtifactBackend::Memory => ArtifactLocation::Memory {
                limit: DEFAULT_MEMORY_BYTES,
            },
            ArtifactBackend::Files(folder) => ArtifactLocation::Folder(folder.clone()),
            ArtifactBackend::S3 { bucket, access } => ArtifactLocation::Bucket(s3(bucket, access)),
            ArtifactBackend::Gcs {
                bucket,
                credentials,
            } => ArtifactLocation::Bucket(gcs(bucket, credentials.as_ref())),
        };
        let sharing = match &self.artifacts.scope {
            ArtifactSharing::Namespace => Sharing::Namespace(self.base.namespace().to_owned()),
            ArtifactSharing::Custom(name) => Sharing::Namespace(name.clone()),
            ArtifactSharing::App => Sharing::App,
        };
        artifacts::ArtifactStoreSettings { place, sharing }
    }

    /// Settings of the tool sync, if it is enabled.
    pub fn tool_sync(&self) -> Option<sync::SyncConfig> {
        let sync = self.tools.sync.as_ref()?;
        let remote = match &sync.from {
            ToolOrigin::S3 { bucket, access } => s3(bucket, access),
            ToolOrigin::Gcs {
                bucket,
                credentials,
            } => gcs(bucket, credentials.as_ref()),
        };
        Some(sync::SyncConfig {
            remote,
            namespace: self.base.namespace().to_owned(),
            folder: self.tools.folder.clone(),
            interval: sync.interval,
            bounds: sync::SyncLimits::default(),
        })
    }

    /// Host paths that must not appear in the output of tools, as they were given: see
    /// [`crate::log::path_aliases`].
    pub fn hidden(&self, state: &Path) -> Vec<PathBuf> {
        let tools = [&self.tools.folder, &self.tools.manifest, &self.tools.python];
        let mut paths: Vec<PathBuf> = tools.into_iter().cloned().collect();
        paths.extend(self.tools.site_packages.iter().cloned());
        paths.push(state.to_owned());
        paths
    }
}

fn s3(bucket: &str, access: &S3Access) -> BucketConfig {
    // The only place where the secrets are exposed.
    let text = |secret: &doors::Secret| String::from_utf8_lossy(secret.expose()).into_owned();
    let credentials = match (&access.keys, &access.role) {
        (Some(S3Keys { id, secret, token }), _) => BucketCredentials::Keys {
            key: id.clone(),
            secret: text(secret),
            token: token.as_ref().map(text),
        },
        (None, Some(role)) => BucketCredentials::WebIdentity {
            role: role.name.clone(),
            token_file: role.token_file.clone(),
        },
        (None, None) => BucketCredentials::Machine,
    };
    let region = access.region.clone();
    let endpoint = access.endpoint.clone();
    BucketConfig {
        kind: BucketKind::S3,
        bucket: bucket.to_owned(),
        region,
        endpoint,
        credentials,
    }
}

fn gcs(bucket: &str, credentials: Option<&PathBuf>) -> BucketConfig {
    let credentials = match credentials {
        Some(file) => BucketCredentials::File(file.display().to_string()),
        None => BucketCredentials::Machine,
    };
    BucketConfig {
        kind: BucketKind::Gcs,
        bucket: bucket.to_owned(),
        region: String::new(),
        endpoint: None,
        credentials,
    }
}
