//! The egress door of one run: its variables, the certificate that programs inside must trust, and what came of it.

use crate::{
    control::{self, Control},
    doors::{Shown, called, error_of, internal, refused, set, tenant},
    guard,
};
use doors::egress::{Egress, EgressReport, Settings};
use doors::{OpenError, ledger::Whose, secrets::Secrets, till::Till};
use sandbox::{MeantFor, Passing};
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

/// Where the certificates are, inside.
const CERTIFICATES: &str = "/airlock/certificates.pem";
/// Where systems keep those that everybody trusts.
const SYSTEMS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What such a file is called, behind the run's name.
pub(crate) const EXTENSION: &str = "pem";
const LARGEST_BUNDLE: u64 = 4 << 20;
/// What is not asked of the proxy: this box itself.
const NOT_PROXIED: &str = "localhost,127.0.0.1,::1,[::1]";

/// An open door, and what it put on disk.
#[derive(Debug)]
pub(crate) struct OpenEgress {
    pub(crate) door: Arc<Egress>,
    _certificates: Option<Shown>,
    control: Control,
}

/// Opens the door that a run was granted, and tells the program of it.
pub(crate) async fn open(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    grant: &EgressGrant,
    (settings, secrets): (&Settings, &Secrets),
    till: Till,
) -> Result<OpenEgress, ErrorInfo> {
    let whose = Whose {
        run: id.as_str(),
        tenant: tenant(spec),
    };
    let door = Egress::open(whose, grant, settings, secrets, till).await;
    let door = door.map_err(|error| refused(&error))?;
    let proxy = format!("http://127.0.0.1:{}", spec::EGRESS_PORT);
    let mut variables = Vec::new();
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        variables.push((name, proxy.clone()));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.push((name, NOT_PROXIED.to_owned()));
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
            Some(show_certificates(state, id, spec, own)?)
        }
        None => None,
    };
    set(spec, &variables)?;
    let control = control::open(state, id, door.clone(), grant.within.clone())?;
    Ok(OpenEgress {
        door,
        _certificates,
        control,
    })
}

/// The system's certificates and the door's own, as one file that is mounted into this box and no other.
fn show_certificates(
    state: &Path,
    id: &Id,
    spec: &mut RunSpec,
    own: &str,
) -> Result<Shown, ErrorInfo> {
    let path = state.join("doors").join(called(id, EXTENSION));
    let shown = Shown(path.clone());
    write_certificates(&path, own)
        .map_err(|error| internal("cannot write the door's certificate", &error))?;
    let inside = InsidePath::new(Path::new(CERTIFICATES))
        .map_err(|bad| error_of(ErrorCode::Internal, bad.to_string()))?;
    guard::add_own(&mut spec.sandbox, &path)
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
    // Of a run of the same name that was killed; if it stays, making it anew says so.
    _ = fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    file.write_all(&systems())?;
    file.write_all(own.as_bytes())
}

/// Without them only what the door itself signs is trusted inside.
fn systems() -> Vec<u8> {
    let is_bundle = |path: &&str| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LARGEST_BUNDLE)
    };
    let mut bundle = SYSTEMS
        .into_iter()
        .find(is_bundle)
        .and_then(|path| fs::read(path).ok())
        .unwrap_or_default();
    bundle.push(b'\n');
    bundle
}

impl OpenEgress {
    /// Serves programs that know of the door, and those that do not.
    pub(crate) fn serve(
        &self,
        listener: TcpListener,
        passing: Option<Passing>,
    ) -> Result<(), OpenError> {
        self.door.serve(listener)?;
        let Some(passing) = passing else {
            return Ok(());
        };
        let redirected = passing.meant_for == MeantFor::Redirected;
        for listener in passing.listeners {
            self.door.serve_passing(listener, redirected)?;
        }
        for socket in passing.names {
            self.door.serve_names(socket, passing.made_up.clone())?;
        }
        Ok(())
    }

    /// Ends it, and says what passed and what did not.
    pub(crate) async fn close(self, result: &mut RunResult) {
        result.notes.extend(self.control.close().await);
        let report = self.door.close().await;
        tell(report, result);
    }
}

fn tell(report: EgressReport, result: &mut RunResult) {
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
