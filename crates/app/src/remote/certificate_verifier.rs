//! Verifies server certificates: signed by an authority that the machine or the user trusts, or
//! exactly the one that the user named. Errors are reported in words.

use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use rustls_platform_verifier::Verifier;
use std::io;

/// The trusted authorities, and the named certificates.
#[derive(Debug)]
pub(crate) struct CertificateVerifier {
    authorities: Verifier,
    named: Vec<CertificateDer<'static>>,
}

impl CertificateVerifier {
    /// `named` must be among the verifier's authorities already.
    pub(crate) fn new(
        authorities: Verifier,
        named: Vec<CertificateDer<'static>>,
    ) -> CertificateVerifier {
        CertificateVerifier { authorities, named }
    }

    /// Whether this is a self-signed CA certificate, as `openssl req -x509` creates it, and
    /// identical to a named one.
    fn is_named(&self, error: &Error, certificate: &CertificateDer<'_>) -> bool {
        is_authority(error) && self.named.contains(certificate)
    }
}

/// Whether the only error is that the certificate may sign others. The verifier has checked its
/// validity period before.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    // The error's type is private, so that its name is compared; with another name the certificate
    // is refused.
    other.0.to_string() == "CaUsedAsEndEntity"
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.authorities
                .verify_server_cert(certificate, intermediates, name, ocsp, now);
        match verified {
            Err(error) if self.is_named(&error, certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Why the TLS handshake failed, if that is the error.
pub(super) fn refusal(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(wrong) => match wrong {
            CertificateError::UnknownIssuer => {
                "its certificate is not signed by a trusted authority"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another name"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            CertificateError::BadSignature => "its certificate has a wrong signature",
            _ if is_authority(&Error::InvalidCertificate(wrong.clone())) => {
                "its certificate is self-signed, and not the one given"
            }
            _ => "its certificate cannot be used",
        },
        Error::InvalidMessage(_) => "it does not use TLS; without TLS it needs http://",
        _ => "the TLS handshake failed",
    })
}
