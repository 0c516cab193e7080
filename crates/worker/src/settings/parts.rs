//! What each part of the worker is told of the settings, in its own words.

use super::{Broker, Calls, Pool, S3, ScopeOf, Settings, Store, SyncFrom, Transport, store::Keys};
use crate::{
    artifacts::{self, Credentials, Kind, MEMORY_BYTES, Place, Remote, Sharing},
    call,
    desk::Bounds,
    tools::sync,
    transport::{
        self, amqp,
        dev::DevBroker,
        mqtt::{self, ClientId},
    },
};
use bytes::Bytes;
use std::path::{Path, PathBuf};

/// Sandboxes that are made ahead of calls, at most; fewer where fewer calls go on at once.
const MOST_SPARES: usize = 4;

impl Settings {
    /// The pool's queue: also what a pool is called where there are no queues. Workers of the mesh's own share it by that name.
    pub fn queue(&self) -> String {
        let usual = || format!("{}/q/str/{}", self.base.namespace(), self.worker_id);
        self.broker.queue.clone().unwrap_or_else(usual)
    }

    /// How the broker is spoken to.
    pub fn transport(&self) -> transport::Broker {
        let Broker {
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
                .map(|credentials| transport::Credentials {
                    user: credentials.user.clone(),
                    password: credentials
                        .password
                        .as_ref()
                        .map(|secret| Bytes::copy_from_slice(secret.expose())),
                });
        match self.broker.transport {
            Transport::Mqtt => {
                let (client_id, pool) = match pool {
                    Pool::Shared => (ClientId::Unique(self.queue()), Some(self.worker_id.clone())),
                    Pool::Session => (ClientId::Exactly(self.queue()), None),
                };
                let mut settings = mqtt::Settings::new(host, *port, client_id);
                (settings.tls, settings.credentials) = (tls.clone(), credentials);
                (settings.pool, settings.speaks) = (pool, *speaks);
                transport::Broker::Mqtt(settings)
            }
            Transport::Amqp => {
                let mut settings = amqp::Settings::new(host, *port, self.queue(), &self.worker_id);
                (settings.tls, settings.credentials) = (tls.clone(), credentials);
                settings.addresses = addresses.clone();
                transport::Broker::Amqp(settings)
            }
            Transport::Dev => transport::Broker::Dev(DevBroker {
                address: self.broker.host_and_port(),
                client_id: self.worker_id.clone(),
                queue: self.queue(),
            }),
        }
    }

    /// How much may go on, and wait.
    pub fn bounds(&self) -> Bounds {
        let Calls {
            slots,
            waiting,
            waiting_bytes,
            ..
        } = self.calls;
        Bounds {
            slots,
            waiting,
            waiting_bytes,
        }
    }

    /// What all calls have in common.
    pub fn call(&self, hidden: Vec<PathBuf>, is_there: impl Fn(&Path) -> bool) -> call::Settings {
        call::Settings {
            python: self.calls.interpreter(is_there),
            largest_result: crate::wire::answer::LARGEST,
            parked: self.calls.parked,
            parked_bytes: self.calls.parked_bytes,
            spares: if self.calls.parked == 0 {
                0
            } else {
                self.calls.slots.min(MOST_SPARES)
            },
            hidden,
        }
    }

    /// Where artifacts are.
    pub fn shelf(&self) -> artifacts::Settings {
        let place = match &self.artifacts.store {
            Store::Memory => Place::Memory { most: MEMORY_BYTES },
            Store::Files(folder) => Place::Folder(folder.clone()),
            Store::S3 { bucket, access } => Place::Bucket(s3(bucket, access)),
            Store::Gcs {
                bucket,
                credentials,
            } => Place::Bucket(gcs(bucket, credentials.as_ref())),
        };
        let sharing = match &self.artifacts.scope {
            ScopeOf::Namespace => Sharing::Namespace(self.base.namespace().to_owned()),
            ScopeOf::Custom(name) => Sharing::Namespace(name.clone()),
            ScopeOf::App => Sharing::App,
        };
        artifacts::Settings { place, sharing }
    }

    /// Where tools are fetched from, if so.
    pub fn tool_sync(&self) -> Option<sync::Settings> {
        let sync = self.tools.sync.as_ref()?;
        let remote = match &sync.from {
            SyncFrom::S3 { bucket, access } => s3(bucket, access),
            SyncFrom::Gcs {
                bucket,
                credentials,
            } => gcs(bucket, credentials.as_ref()),
        };
        Some(sync::Settings {
            remote,
            namespace: self.base.namespace().to_owned(),
            folder: self.tools.folder.clone(),
            interval: sync.interval,
            bounds: sync::Bounds::default(),
        })
    }

    /// Paths of this machine that what tools say may not tell, as they were given: see [`crate::log::by_all_names`].
    pub fn hidden(&self, state: &Path) -> Vec<PathBuf> {
        let tools = [&self.tools.folder, &self.tools.manifest, &self.tools.python];
        let mut paths: Vec<PathBuf> = tools.into_iter().cloned().collect();
        paths.extend(self.tools.site_packages.iter().cloned());
        paths.push(state.to_owned());
        paths
    }
}

fn s3(bucket: &str, access: &S3) -> Remote {
    // The one place where they are taken out.
    let text = |secret: &doors::Secret| String::from_utf8_lossy(secret.expose()).into_owned();
    let credentials = match (&access.keys, &access.role) {
        (Some(Keys { id, secret, token }), _) => Credentials::Keys {
            key: id.clone(),
            secret: text(secret),
            token: token.as_ref().map(text),
        },
        (None, Some(role)) => Credentials::WebIdentity {
            role: role.name.clone(),
            token_file: role.token_file.clone(),
        },
        (None, None) => Credentials::Machine,
    };
    let (region, endpoint) = (access.region.clone(), access.endpoint.clone());
    Remote {
        kind: Kind::S3,
        bucket: bucket.to_owned(),
        region,
        endpoint,
        credentials,
    }
}

fn gcs(bucket: &str, credentials: Option<&PathBuf>) -> Remote {
    let credentials = match credentials {
        Some(file) => Credentials::File(file.display().to_string()),
        None => Credentials::Machine,
    };
    Remote {
        kind: Kind::Gcs,
        bucket: bucket.to_owned(),
        region: String::new(),
        endpoint: None,
        credentials,
    }
}
