//! TLS towards servers that we chose: verified against the system's certificates, or the operator's own instead.

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

/// Why no connection can be verified.
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

/// More than any bundle of certificates.
const LONGEST_BUNDLE: u64 = 4 << 20;

/// How to speak TLS as a client. The provider is named here, so that nothing hangs on a default of the process.
pub(crate) fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    // The system's certificates are many, and the same for all: read once.
    static SYSTEMS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    match (ca, SYSTEMS.get()) {
        (Some(_), _) => new_config(ca),
        (None, Some(known)) => Ok(known.clone()),
        (None, None) => {
            let config = new_config(None)?;
            Ok(SYSTEMS.get_or_init(|| config).clone())
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
    match roots.is_empty() {
        true => Err(TlsError::NoCertificate {
            path: path.to_owned(),
        }),
        false => Ok(roots),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bundle = Vec::new();
    File::open(path)?
        .take(LONGEST_BUNDLE + 1)
        .read_to_end(&mut bundle)?;
    match bundle.len() as u64 > LONGEST_BUNDLE {
        true => Err(io::Error::other("it is longer than 4 MiB")),
        false => Ok(bundle),
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
