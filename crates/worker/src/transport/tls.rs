//! TLS configuration for brokers: trusted authorities and client certificates.

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Maximum number of files in a folder of authorities.
const MAX_FILES: usize = 1000;

/// TLS settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerTls {
    /// Trusted authorities.
    pub trust: Trust,
    /// Client certificate, for brokers that require one.
    pub certificate: Option<ClientCertificate>,
    /// Server name to verify; the host of the address by default.
    pub server_name: Option<String>,
}

/// Trusted authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those of the platform.
    Platform,
    /// Only the certificates in this PEM file, or in the files of this folder.
    Store(PathBuf),
}

/// A certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The chain, our own certificate first.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl BrokerTls {
    /// Reads the files, for each connection, because certificates are renewed while a worker runs.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot use TLS: {error}"))?;
        let builder = match &self.trust {
            Trust::Platform => {
                let verifier = Verifier::new(provider).map_err(|error| {
                    format!("the machine's authorities cannot be used: {error}; name a trust store")
                })?;
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(verifier))
            }
            Trust::Store(path) => builder.with_root_certificates(authorities(path)?),
        };
        let config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::from_pem_file(&own.key).map_err(|error| {
                    format!("cannot read the key `{}`: {error}", own.key.display())
                })?;
                builder
                    .with_client_auth_cert(certificates(&own.chain)?, key)
                    .map_err(|error| {
                        format!(
                            "`{}` cannot be used as our certificate: {error}",
                            own.chain.display()
                        )
                    })?
            }
        };
        Ok(Arc::new(config))
    }

    /// The server name to verify.
    pub(super) fn name(&self, host: &str) -> Result<ServerName<'static>, String> {
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned())
            .map_err(|_| format!("`{name}` is no name of a server"))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => {
            Err(format!("`{}` has no certificate in PEM", path.display()))
        }
        Ok(some) => Ok(some),
        Err(error) => Err(format!("cannot read `{}`: {error}", path.display())),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let unreadable =
        |error: io::Error| format!("cannot read the trust store `{}`: {error}", path.display());
    let mut store = RootCertStore::empty();
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(unreadable)?.take(MAX_FILES) {
            files.push(entry.map_err(unreadable)?.path());
        }
        // Such folders also contain keys, lists and notes, which are skipped.
        let certificates = files
            .iter()
            .filter(|file| file.is_file())
            .filter_map(|file| certificates(file).ok());
        store.add_parsable_certificates(certificates.flatten());
    } else {
        store.add_parsable_certificates(certificates(path)?);
    }
    if store.is_empty() {
        Err(format!(
            "the trust store `{}` has no certificate of an authority",
            path.display()
        ))
    } else {
        Ok(store)
    }
}
