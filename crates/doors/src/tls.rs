//! TLS client configuration for servers that we chose: verified against the system's CA
//! certificates, or the operator's instead.

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Why no TLS configuration can be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read the certificates in `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` has no certificate in PEM form", path.display())]
    NoCertificate { path: PathBuf },
    #[error("`{}` has a certificate that cannot be used", path.display())]
    BadCertificate {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the certificates of this system cannot be used")]
    System(#[from] rustls::Error),
}

/// Largest CA bundle.
const MAX_BUNDLE_BYTES: u64 = 4 << 20;

/// The TLS client configuration. The crypto provider is named explicitly, so that nothing depends
/// on a process-wide default.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    // The system's certificates are many and the same for all: read once.
    static SYSTEM_CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    match (ca, SYSTEM_CONFIG.get()) {
        (Some(_), _) => new_config(ca),
        (None, Some(known)) => Ok(known.clone()),
        (None, None) => {
            let config = new_config(None)?;
            Ok(SYSTEM_CONFIG.get_or_init(|| config).clone())
        }
    }
}

fn new_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = match ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => builder.with_platform_verifier()?,
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let bundle = read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })?;
    let bad = |source: Box<dyn std::error::Error + Send + Sync>| TlsError::BadCertificate {
        path: path.to_owned(),
        source,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        let certificate = certificate.map_err(|error| bad(error.into()))?;
        roots.add(certificate).map_err(|error| bad(error.into()))?;
    }
    if roots.is_empty() {
        Err(TlsError::NoCertificate {
            path: path.to_owned(),
        })
    } else {
        Ok(roots)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bundle = Vec::new();
    File::open(path)?
        .take(MAX_BUNDLE_BYTES + 1)
        .read_to_end(&mut bundle)?;
    if bundle.len() as u64 > MAX_BUNDLE_BYTES {
        Err(io::Error::other("it is longer than 4 MiB"))
    } else {
        Ok(bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_trusts_nobody_rather_than_everybody() {
        let empty =
            std::env::temp_dir().join(format!("airlock-no-certificates-{}", std::process::id()));
        std::fs::write(&empty, "no certificate").unwrap();
        let refused = client_config(Some(&empty)).unwrap_err();
        std::fs::remove_file(&empty).unwrap();
        assert!(
            matches!(refused, TlsError::NoCertificate { .. }),
            "{refused}"
        );
        assert!(matches!(
            client_config(Some(Path::new("/absent"))),
            Err(TlsError::Read { .. })
        ));
    }

    #[test]
    fn without_a_file_the_certificates_of_the_system_count() {
        let config = client_config(None).unwrap();
        assert_eq!(config.alpn_protocols, [b"http/1.1"]);
    }
}
