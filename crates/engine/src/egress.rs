//! The egress door of one run: proxy variables, the CA certificate that programs inside trust (TLS
//! interception), transparent proxying, and the report.

use crate::{
    control::{self, Control},
    doors::{
        RemoveOnDrop, door_file_name, error_info, internal, open_error, set_variables, tenant,
    },
    path_guard,
};
use doors::egress::{Egress, EgressReport, EgressSettings};
use doors::{OpenError, budget::BudgetManager, ledger::RunIdentity, secrets::Secrets};
use sandbox::{InterceptSockets, OriginalDestination};
use spec::{
    Access, EgressGrant, EgressUsage, ErrorCode, ErrorInfo, Id, InsidePath, LearnedRule, LimitName,
    Mount, RunResult, RunSpec,
};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    net::TcpListener,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

/// The path of the certificate bundle, inside.
const CERTIFICATES: &str = "/airlock/certificates.pem";
/// The CA bundles of distributions.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The file extension of certificate bundles.
pub(crate) const EXTENSION: &str = "pem";
const MAX_BUNDLE_BYTES: u64 = 4 << 20;
/// The hosts that are not proxied: the sandbox itself.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1,[::1]";

/// An open egress door and its files.
#[derive(Debug)]
pub(crate) struct OpenEgress {
    pub(crate) door: Arc<Egress>,
    _certificates: Option<RemoveOnDrop>,
    control: Control,
}

/// Opens the egress door of a run, and sets its variables in the spec.
pub(crate) async fn open(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    grant: &EgressGrant,
    (settings, secrets): (&EgressSettings, &Secrets),
    till: BudgetManager,
) -> Result<OpenEgress, ErrorInfo> {
    let whose = RunIdentity {
        run: id.as_str(),
        tenant: tenant(spec),
    };
    let door = Egress::open(whose, grant, settings, secrets, till).await;
    let door = door.map_err(|error| open_error(&error))?;
    let proxy = format!("http://127.0.0.1:{}", spec::EGRESS_PORT);
    let mut variables = Vec::new();
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        variables.push((name, proxy.clone()));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.push((name, NO_PROXY_HOSTS.to_owned()));
    }
    let _certificates = match door.certificate() {
        Some(own) => {
            let names = [
                "SSL_CERT_FILE",
                "REQUESTS_CA_BUNDLE",
                "NODE_EXTRA_CA_CERTS",
                "CURL_CA_BUNDLE",
                "GIT_SSL_CAINFO",
            ];
            variables.extend(names.map(|name| (name, CERTIFICATES.to_owned())));
            Some(mount_certificates(state, id, spec, own)?)
        }
        None => None,
    };
    set_variables(spec, &variables)?;
    let control = control::open(state, id, door.clone(), grant.within.clone())?;
    Ok(OpenEgress {
        door,
        _certificates,
        control,
    })
}

/// Mounts the system's certificates and the door's own as one file into this sandbox only.
fn mount_certificates(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    own: &str,
) -> Result<RemoveOnDrop, ErrorInfo> {
    let path = state.join("doors").join(door_file_name(id, EXTENSION));
    let shown = RemoveOnDrop(path.clone());
    write_certificates(&path, own)
        .map_err(|error| internal("cannot write the door's certificate", &error))?;
    let inside = InsidePath::new(Path::new(CERTIFICATES))
        .map_err(|bad| error_info(ErrorCode::Internal, bad.to_string()))?;
    path_guard::allow_own_path(&mut spec.sandbox, &path)
        .map_err(|error| internal("cannot look at the door's certificate", &error))?;
    spec.sandbox.mounts.push(Mount {
        host: path,
        inside,
        access: Access::ReadOnly,
    });
    Ok(shown)
}

fn write_certificates(path: &Path, own: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    // The file of a killed run with the same id; if it cannot be removed, creating it reports that.
    _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    file.write_all(&system_bundle())?;
    file.write_all(own.as_bytes())
}

/// Without a system bundle only the door's own certificate is trusted inside.
fn system_bundle() -> Vec<u8> {
    let is_bundle = |path: &&str| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= MAX_BUNDLE_BYTES)
    };
    let mut bundle = SYSTEM_BUNDLES
        .into_iter()
        .find(is_bundle)
        .and_then(|path| fs::read(path).ok())
        .unwrap_or_default();
    bundle.push(b'\n');
    bundle
}

impl OpenEgress {
    /// Serves programs that use the proxy variables, and transparently those that do not.
    pub(crate) fn serve(
        &self,
        listener: TcpListener,
        intercept: Option<InterceptSockets>,
    ) -> Result<(), OpenError> {
        self.door.serve(listener)?;
        let Some(intercept) = intercept else {
            return Ok(());
        };
        let redirected = intercept.original_destination == OriginalDestination::Redirected;
        for listener in intercept.listeners {
            self.door.serve_transparent(listener, redirected)?;
        }
        for socket in intercept.dns_sockets {
            self.door.serve_dns(socket, intercept.fake_ips.clone())?;
        }
        Ok(())
    }

    /// Closes the door; adds usage, denials and learned rules to the result.
    pub(crate) async fn close(self, result: &mut RunResult) {
        result.notes.extend(self.control.close().await);
        let report = self.door.close().await;
        add_report(report, result);
    }
}

fn add_report(report: EgressReport, result: &mut RunResult) {
    result.denials.extend(report.denials);
    if report.limit_hit {
        result.limits_hit.insert(LimitName::Egress);
    }
    result.usage.egress = EgressUsage {
        passed: report.begun,
        denied: report.denied,
        bytes_sent: report.sent,
        bytes_received: report.received,
    };
    let learned = report.learned.into_iter();
    result.learned = learned
        .map(|(host, was)| LearnedRule {
            host,
            ports: was.ports,
            uses: was.uses,
        })
        .collect();
}
