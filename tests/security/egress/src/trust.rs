//! The certificates of a world: one authority that its system trusts, a certificate for every name that is asked for, and
//! bad ones for names that begin with what is wrong with them.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use std::{fs, path::Path, process::Command, sync::Arc};

/// Whom the system of the world trusts, and a stranger whom it does not.
pub(crate) struct Trust {
    pem: String,
    authority: Issuer<'static, KeyPair>,
    stranger: Issuer<'static, KeyPair>,
}

/// What is wrong with the certificate of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// `self-signed.…`
    SelfSigned,
    /// `wrong-name.…`: for another one.
    WrongName,
    /// `expired.…`
    Expired,
    /// `stranger.…`: by an authority that nobody trusts.
    Stranger,
}

impl Flaw {
    fn of(name: &str) -> Flaw {
        match name.split('.').next() {
            Some("self-signed") => Flaw::SelfSigned,
            Some("wrong-name") => Flaw::WrongName,
            Some("expired") => Flaw::Expired,
            Some("stranger") => Flaw::Stranger,
            _ => Flaw::None,
        }
    }
}

impl Trust {
    /// A new authority.
    pub(crate) fn new() -> Trust {
        let (params, key) = authority("World Authority");
        let pem = params.self_signed(&key).expect("it signs itself").pem();
        let (other, other_key) = authority("Stranger");
        Trust {
            pem,
            authority: Issuer::new(params, key),
            stranger: Issuer::new(other, other_key),
        }
    }

    /// Writes what a system trusts: a bundle, and the same by its hash, as OpenSSL looks for it.
    pub(crate) fn furnish(&self, folder: &Path) {
        fs::create_dir(folder).expect("a folder for certificates");
        let bundle = folder.join("ca-certificates.crt");
        fs::write(&bundle, &self.pem).expect("a bundle");
        let told = Command::new("openssl")
            .args(["x509", "-noout", "-hash", "-in"])
            .arg(&bundle)
            .output()
            .expect("openssl");
        let hash = String::from_utf8(told.stdout).expect("a hash");
        fs::write(folder.join(format!("{}.0", hash.trim())), &self.pem).expect("a certificate");
    }

    /// How to be the server of that name (or address), well or badly.
    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let flaw = Flaw::of(name);
        let subject = if flaw == Flaw::WrongName {
            "somebody-else.example"
        } else {
            name
        };
        let mut params = CertificateParams::new([subject.to_owned()]).expect("a name");
        params
            .distinguished_name
            .push(DnType::CommonName, "a server of the world");
        if flaw == Flaw::Expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let made = match flaw {
            Flaw::SelfSigned => params.self_signed(&key),
            Flaw::Stranger => params.signed_by(&key, &self.stranger),
            Flaw::None | Flaw::WrongName | Flaw::Expired => params.signed_by(&key, &self.authority),
        };
        let chain = vec![made.expect("it is signed").der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder
            .with_safe_default_protocol_versions()
            .expect("versions of TLS");
        let mut config = builder
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params, KeyPair::generate().expect("a key"))
}
