//! The TLS interception CA of one run. Its key is generated in memory, never leaves the process,
//! and signs only for the hosts of rules that inspect requests. Name constraints in the CA
//! certificate say the same, so that nobody else is trusted under it; a rule for `*` leaves nothing
//! to constrain.

use crate::OpenError;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, SanType,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use spec::{EgressRule, Host, HostPattern};
use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Lifetime of the CA certificate: longer than any run; its key is gone when the run ends.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Lifetime of a host certificate. It is replaced at half of that.
const CERTIFICATE_LIFETIME: Duration = DAY;
/// Tolerated clock difference between sandbox and host.
const CLOCK_SKEW: Duration = Duration::from_secs(10 * 60);
/// Host certificates that are cached.
const MAX_HOSTS: usize = 256;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The certificate authority of one run.
pub(crate) struct CertificateAuthority {
    hosts: Vec<HostPattern>,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// One key for all hosts: whoever could impersonate one of them could impersonate the others,
    /// too.
    key: KeyPair,
    servers: Mutex<HashMap<Host, HostCertificate>>,
}

/// The server configuration for a host, and when it was issued.
struct HostCertificate {
    config: Arc<ServerConfig>,
    issued_at: SystemTime,
}

impl HostCertificate {
    /// A clock that was set back also expires the certificate.
    fn is_fresh(&self, now: SystemTime) -> bool {
        now.duration_since(self.issued_at)
            .is_ok_and(|age| age < CERTIFICATE_LIFETIME / 2)
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Authority({:?})", self.hosts)
    }
}

impl CertificateAuthority {
    /// A CA for the hosts that these rules inspect; `None` if there are none.
    pub(crate) fn for_rules(
        rules: &[EgressRule],
    ) -> Result<Option<CertificateAuthority>, OpenError> {
        let hosts: Vec<_> = rules
            .iter()
            .filter(|rule| rule.looks_inside())
            .map(|rule| rule.host.clone())
            .collect();
        if hosts.is_empty() {
            Ok(None)
        } else {
            CertificateAuthority::new(hosts)
                .map(Some)
                .map_err(OpenError::Authority)
        }
    }

    fn new(hosts: Vec<HostPattern>) -> Result<CertificateAuthority, BoxError> {
        let mut certificate_params = certificate_params(
            "Airlock, for one run",
            SystemTime::now(),
            AUTHORITY_LIFETIME,
        );
        certificate_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        certificate_params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        certificate_params.name_constraints = name_constraints(&hosts);
        let signer = KeyPair::generate()?;
        let certificate = certificate_params.self_signed(&signer)?.pem();
        let issuer = Issuer::new(certificate_params, signer);
        let key = KeyPair::generate()?;
        Ok(CertificateAuthority {
            hosts,
            issuer,
            certificate,
            key,
            servers: Mutex::default(),
        })
    }

    /// The CA certificate in PEM form.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The TLS configuration that impersonates this host for programs that trust the CA.
    pub(crate) fn server(&self, host: &Host) -> Option<Arc<ServerConfig>> {
        self.server_at(host, SystemTime::now())
    }

    fn server_at(&self, host: &Host, now: SystemTime) -> Option<Arc<ServerConfig>> {
        if !self.hosts.iter().any(|pattern| pattern.matches(host)) {
            return None;
        }
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers.get(host).filter(|known| known.is_fresh(now)) {
            return Some(known.config.clone());
        }
        let config = self.issue(host, now).ok()?;
        // A run with more hosts than that pays for some certificates twice.
        if servers.len() >= MAX_HOSTS {
            servers.clear();
        }
        servers.insert(
            host.clone(),
            HostCertificate {
                config: config.clone(),
                issued_at: now,
            },
        );
        Some(config)
    }

    fn issue(&self, host: &Host, now: SystemTime) -> Result<Arc<ServerConfig>, BoxError> {
        let mut certificate_params =
            certificate_params("Airlock, in place of the server", now, CERTIFICATE_LIFETIME);
        certificate_params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        certificate_params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        certificate_params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        certificate_params.use_authority_key_identifier_extension = true;
        let leaf = certificate_params.signed_by(&self.key, &self.issuer)?;
        server_config(leaf.der().clone(), &self.key)
    }
}

fn server_config(
    leaf: CertificateDer<'static>,
    key: &KeyPair,
) -> Result<Arc<ServerConfig>, BoxError> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key)?;
    // No HTTP/2: requests are inspected one by one.
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    Ok(Arc::new(config))
}

fn certificate_params(name: &str, now: SystemTime, lifetime: Duration) -> CertificateParams {
    let mut certificate_params = CertificateParams::default();
    certificate_params.distinguished_name = DistinguishedName::new();
    certificate_params
        .distinguished_name
        .push(DnType::CommonName, name);
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    (certificate_params.not_before, certificate_params.not_after) =
        (epoch + now - CLOCK_SKEW, epoch + now + lifetime);
    certificate_params
}

/// The CA's name constraints. A kind of name that no rule has is excluded as a whole, because a
/// constraint that is not stated does not limit.
fn name_constraints(hosts: &[HostPattern]) -> Option<NameConstraints> {
    let mut permitted = Vec::new();
    for host in hosts {
        permitted.push(match host {
            HostPattern::Any => return None,
            // The constraint covers subdomains, too; the door itself checks the exact name.
            HostPattern::Below(name) | HostPattern::Exactly(Host::Name(name)) => {
                GeneralSubtree::DnsName(name.clone())
            }
            HostPattern::Exactly(Host::Address(address)) => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*address, bits))
            }
        });
    }
    let mut excluded = Vec::new();
    if !permitted
        .iter()
        .any(|subtree| matches!(subtree, GeneralSubtree::DnsName(_)))
    {
        excluded.push(GeneralSubtree::DnsName(String::new()));
    }
    if !permitted
        .iter()
        .any(|subtree| matches!(subtree, GeneralSubtree::IpAddress(_)))
    {
        let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        excluded.extend(
            all.map(|address| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, 0))),
        );
    }
    Some(NameConstraints {
        permitted_subtrees: permitted,
        excluded_subtrees: excluded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConnection,
        pki_types::{ServerName, UnixTime, pem::PemObject},
        time_provider::TimeProvider,
    };

    fn authority(hosts: &[&str]) -> CertificateAuthority {
        let mode = spec::EgressMode::Inspect {
            allow: Vec::new(),
            credential: None,
            allow_upgrade: false,
        };
        let rule = |host: &&str| EgressRule {
            mode: mode.clone(),
            ..EgressRule::tunnel(*host, host.parse().unwrap(), spec::Ports::web())
        };
        CertificateAuthority::for_rules(&hosts.iter().map(rule).collect::<Vec<_>>())
            .unwrap()
            .unwrap()
    }

    /// Whether a client that trusts this authority takes its word for that host.
    fn is_believed(authority: &CertificateAuthority, host: &str) -> Result<(), rustls::Error> {
        let host = host.parse().unwrap();
        // Past the door's own look at the host: only the certificates decide.
        is_believed_at(
            authority,
            &host,
            authority.issue(&host, SystemTime::now()).unwrap(),
            SystemTime::now(),
        )
    }

    #[derive(Debug)]
    struct Clock(UnixTime);

    impl TimeProvider for Clock {
        fn current_time(&self) -> Option<UnixTime> {
            Some(self.0)
        }
    }

    fn is_believed_at(
        authority: &CertificateAuthority,
        host: &Host,
        server: Arc<ServerConfig>,
        now: SystemTime,
    ) -> Result<(), rustls::Error> {
        let clock = Clock(UnixTime::since_unix_epoch(
            now.duration_since(UNIX_EPOCH).unwrap(),
        ));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap())
            .unwrap();
        let client =
            ClientConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(clock))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.clone()).unwrap(),
            Host::Address(address) => ServerName::from(*address),
        };
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(server).unwrap();
        while client.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn a_certificate_counts_for_the_hosts_of_rules_and_for_no_others() {
        let names = authority(&["api.example.com", "*.below.example"]);
        for host in ["api.example.com", "a.below.example"] {
            assert_eq!(is_believed(&names, host), Ok(()), "{host}");
            assert!(names.server(&host.parse().unwrap()).is_some());
        }
        for host in [
            "evil.com",
            "example.com",
            "xapi.example.com",
            "127.0.0.1",
            "[::1]",
        ] {
            assert!(is_believed(&names, host).is_err(), "{host}");
            assert!(names.server(&host.parse().unwrap()).is_none());
        }
        assert!(
            names
                .server(&"x.api.example.com".parse().unwrap())
                .is_none(),
            "closer than a constraint"
        );
        let addresses = authority(&["192.0.2.1"]);
        assert_eq!(is_believed(&addresses, "192.0.2.1"), Ok(()));
        for host in ["192.0.2.2", "[::1]", "api.example.com"] {
            assert!(is_believed(&addresses, host).is_err(), "{host}");
        }
        let any = authority(&["*"]);
        assert_eq!(
            (is_believed(&any, "a.com"), is_believed(&any, "10.0.0.1")),
            (Ok(()), Ok(()))
        );
    }

    #[test]
    fn a_run_of_many_days_is_believed_to_its_end() {
        let names = authority(&["a.com"]);
        let host = "a.com".parse().unwrap();
        let first = names.server(&host).unwrap();
        let later = SystemTime::now() + 30 * DAY;
        assert!(
            is_believed_at(&names, &host, first.clone(), later).is_err(),
            "what was made first is old"
        );
        let second = names.server_at(&host, later).unwrap();
        assert_eq!(is_believed_at(&names, &host, second.clone(), later), Ok(()));
        let soon = names.server_at(&host, later + DAY / 4).unwrap();
        assert!(Arc::ptr_eq(&second, &soon) && !Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn a_host_is_signed_for_once_and_the_key_does_not_print() {
        let names = authority(&["*.a.com"]);
        let server = |host: &str| names.server(&host.parse().unwrap()).unwrap();
        assert!(Arc::ptr_eq(&server("x.a.com"), &server("x.a.com")));
        for at in 0..MAX_HOSTS * 2 {
            server(&format!("h{at}.a.com"));
        }
        assert!(names.servers.lock().unwrap().len() <= MAX_HOSTS);
        assert!(!format!("{names:?}").contains("key"));
        assert!(
            CertificateAuthority::for_rules(&[EgressRule::from_option("a.com").unwrap()])
                .unwrap()
                .is_none()
        );
    }
}
