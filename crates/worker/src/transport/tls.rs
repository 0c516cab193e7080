//! Whom we believe to be the broker, and how it knows us.

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

/// Files in a folder of authorities.
const MOST_FILES: usize = 1000;

/// How a connection is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Who may vouch for the broker.
    pub trust: Trust,
    /// Our own certificate, for brokers that ask for one.
    pub certificate: Option<Certificate>,
    /// The name that the broker must prove; the host of its address unless said.
    pub server_name: Option<String>,
}

/// Who may vouch for a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Whom the machine trusts.
    Platform,
    /// The certificates in this file, or in the files of this folder, and nobody else. PEM.
    Store(PathBuf),
}

/// A certificate chain and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The chain, our own first.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Tls {
    /// Reads the files. They are read for each connection, because certificates are renewed while a worker runs.
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

    /// The name that the broker must prove.
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
        for entry in fs::read_dir(path).map_err(unreadable)?.take(MOST_FILES) {
            files.push(entry.map_err(unreadable)?.path());
        }
        // Others lie there, too: keys, lists, notes. What is no certificate vouches for nobody.
        let certificates = files
            .iter()
            .filter(|file| file.is_file())
            .filter_map(|file| certificates(file).ok());
        store.add_parsable_certificates(certificates.flatten());
    } else {
        store.add_parsable_certificates(certificates(path)?);
    }
    match store.is_empty() {
        true => Err(format!(
            "the trust store `{}` has no certificate of an authority",
            path.display()
        )),
        false => Ok(store),
    }
}
