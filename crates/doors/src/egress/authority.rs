//! The certificate authority of one run: its key is made in memory, never leaves it, and signs for the hosts of rules that
//! look inside and no others. The certificate says so itself, so that nobody else is believed under it, either; a rule for
//! `*` leaves nothing to say.

use crate::OpenError;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
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

/// How long its certificates are good for.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Clocks inside and outside differ a little.
const BEFORE: Duration = Duration::from_secs(10 * 60);
/// Hosts that are remembered.
const MOST_HOSTS: usize = 256;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// An authority.
pub(crate) struct Authority {
    hosts: Vec<HostPattern>,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// One for all hosts: whoever may be one of them may be the others, too.
    key: KeyPair,
    servers: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Authority({:?})", self.hosts)
    }
}

impl Authority {
    /// One for the hosts that these rules look into, if there are any.
    pub(crate) fn for_rules(rules: &[EgressRule]) -> Result<Option<Authority>, OpenError> {
        let hosts: Vec<_> =
            rules.iter().filter(|rule| rule.looks_inside()).map(|rule| rule.host.clone()).collect();
        match hosts.is_empty() {
            true => Ok(None),
            false => Authority::new(hosts).map(Some).map_err(OpenError::Authority),
        }
    }

    fn new(hosts: Vec<HostPattern>) -> Result<Authority, Failed> {
        let mut params = params("Airlock, for one run");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.name_constraints = constraints(&hosts);
        let signer = KeyPair::generate()?;
        let certificate = params.self_signed(&signer)?.pem();
        let (issuer, key) = (Issuer::new(params, signer), KeyPair::generate()?);
        Ok(Authority { hosts, issuer, certificate, key, servers: Mutex::default() })
    }

    /// Its certificate in PEM form.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// How to be that host, to programs that trust this authority.
    pub(crate) fn server(&self, host: &Host) -> Option<Arc<ServerConfig>> {
        if !self.hosts.iter().any(|pattern| pattern.matches(host)) {
            return None;
        }
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers.get(host) {
            return Some(known.clone());
        }
        let server = self.mint(host).ok()?;
        // A run that talks to so many hosts pays for some of them twice.
        if servers.len() >= MOST_HOSTS {
            servers.clear();
        }
        servers.insert(host.clone(), server.clone());
        Some(server)
    }

    fn mint(&self, host: &Host) -> Result<Arc<ServerConfig>, Failed> {
        let mut params = params("Airlock, in place of the server");
        params.subject_alt_names = vec![match host {
            Host::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            Host::Address(address) => SanType::IpAddress(*address),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.key, &self.issuer)?;
        server_config(leaf.der().clone(), &self.key)
    }
}

fn server_config(leaf: CertificateDer<'static>, key: &KeyPair) -> Result<Arc<ServerConfig>, Failed> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(vec![leaf], key)?;
    // No HTTP/2: each request is looked at on its own.
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    Ok(Arc::new(config))
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + now - BEFORE, epoch + now + LIFETIME);
    params
}

/// For whom it may sign. A kind of name that no rule has is excluded as a whole: what a certificate does not mention, it
/// does not limit.
fn constraints(hosts: &[HostPattern]) -> Option<NameConstraints> {
    let mut permitted = Vec::new();
    for host in hosts {
        permitted.push(match host {
            HostPattern::Any => return None,
            // A name has those below it with it: the door itself is more exact.
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
    if !permitted.iter().any(|subtree| matches!(subtree, GeneralSubtree::DnsName(_))) {
        excluded.push(GeneralSubtree::DnsName(String::new()));
    }
    if !permitted.iter().any(|subtree| matches!(subtree, GeneralSubtree::IpAddress(_))) {
        let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        excluded
            .extend(all.map(|address| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, 0))));
    }
    Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConnection,
        pki_types::{ServerName, pem::PemObject},
    };

    fn authority(hosts: &[&str]) -> Authority {
        let mode = spec::EgressMode::Inspect { allow: Vec::new(), credential: None, allow_upgrade: false };
        let rule = |host: &&str| EgressRule {
            mode: mode.clone(),
            ..EgressRule::tunnel(*host, host.parse().unwrap(), spec::Ports::web())
        };
        Authority::for_rules(&hosts.iter().map(rule).collect::<Vec<_>>()).unwrap().unwrap()
    }

    /// Whether a client that trusts this authority takes its word for that host.
    fn is_believed(authority: &Authority, host: &str) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host: Host = host.parse().unwrap();
        let name = match &host {
            Host::Name(name) => ServerName::try_from(name.clone()).unwrap(),
            Host::Address(address) => ServerName::from(*address),
        };
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        // Past the door's own look at the host: only the certificates decide.
        let mut server = ServerConnection::new(authority.mint(&host).unwrap()).unwrap();
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
        for host in ["evil.com", "example.com", "xapi.example.com", "127.0.0.1", "[::1]"] {
            assert!(is_believed(&names, host).is_err(), "{host}");
            assert!(names.server(&host.parse().unwrap()).is_none());
        }
        assert!(names.server(&"x.api.example.com".parse().unwrap()).is_none(), "closer than a constraint");
        let addresses = authority(&["192.0.2.1"]);
        assert_eq!(is_believed(&addresses, "192.0.2.1"), Ok(()));
        for host in ["192.0.2.2", "[::1]", "api.example.com"] {
            assert!(is_believed(&addresses, host).is_err(), "{host}");
        }
        let any = authority(&["*"]);
        assert_eq!((is_believed(&any, "a.com"), is_believed(&any, "10.0.0.1")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_host_is_signed_for_once_and_the_key_does_not_print() {
        let names = authority(&["*.a.com"]);
        let server = |host: &str| names.server(&host.parse().unwrap()).unwrap();
        assert!(Arc::ptr_eq(&server("x.a.com"), &server("x.a.com")));
        for at in 0..MOST_HOSTS * 2 {
            server(&format!("h{at}.a.com"));
        }
        assert!(names.servers.lock().unwrap().len() <= MOST_HOSTS);
        assert!(!format!("{names:?}").contains("key"));
        assert!(Authority::for_rules(&[EgressRule::from_option("a.com").unwrap()]).unwrap().is_none());
    }
}
