//! Credential injection: credentials that are put into requests, each bound to its hosts.

use super::{EgressSettings, Refusal};
use crate::{
    OpenError, Secret,
    scrub::CredentialPatterns,
    secrets::{KeySource, Secrets, SecretsError},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use spec::{EgressRule, Host, HostPattern};
use std::{collections::BTreeMap, fmt, sync::Arc};
use zeroize::Zeroizing;

/// A credential and the hosts it may be sent to.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Source of the secret.
    pub key: KeySource,
    /// How it is put into a request.
    pub inject: InjectionMethod,
    /// Hosts it may be sent to, whatever a rule says.
    pub hosts: Vec<HostPattern>,
}

/// How a credential is put into a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectionMethod {
    /// `Authorization: Bearer …`.
    Bearer,
    /// `Authorization: Basic …`, with this user.
    Basic {
        /// The user name.
        user: String,
    },
    /// A header of this name.
    Header {
        /// Name of the header.
        name: HeaderName,
    },
}

/// A shorter secret would be found, and redacted, in responses that have nothing to do with it.
const MIN_LENGTH: usize = 4;

/// The resolved credentials of one door.
#[derive(Debug, Default)]
pub(crate) struct CredentialSet {
    ready: BTreeMap<String, Arc<ResolvedCredential>>,
}

/// A credential with its secret, ready to be sent.
pub(crate) struct ResolvedCredential {
    pub(crate) name: String,
    header: HeaderName,
    value: HeaderValue,
    hosts: Vec<HostPattern>,
    /// What must be redacted in responses.
    pub(crate) patterns: CredentialPatterns,
}

impl fmt::Debug for ResolvedCredential {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ready({})", self.name)
    }
}

impl CredentialSet {
    /// Resolves every credential that the rules name.
    pub(crate) async fn find(
        rules: &[EgressRule],
        settings: &EgressSettings,
        secrets: &Secrets,
    ) -> Result<CredentialSet, OpenError> {
        let mut ready = BTreeMap::new();
        for name in rules.iter().flat_map(EgressRule::credentials) {
            if ready.contains_key(name) {
                continue;
            }
            let credential = settings
                .credentials
                .get(name)
                .ok_or_else(|| unknown(name))?;
            let key = secrets.find(&credential.key).await?;
            let found =
                ResolvedCredential::new(name, credential, &key).map_err(|bad| SecretsError {
                    message: format!(
                        "the credential `{}` cannot be sent: {bad}",
                        name.escape_debug()
                    ),
                    hint: "put the key, and nothing else, there".to_owned(),
                })?;
            ready.insert(name.to_owned(), Arc::new(found));
        }
        Ok(CredentialSet { ready })
    }

    /// The credential of this name, if it may be sent to this host.
    pub(crate) fn get(&self, name: &str, host: &Host) -> Result<Arc<ResolvedCredential>, Refusal> {
        let refuse = |reason: String, allow: &str| Refusal::new("credential", reason, allow);
        let ready = self.ready.get(name).ok_or_else(|| {
            refuse(
                format!("this run was begun without the credential `{name}`"),
                "a run with that rule",
            )
        })?;
        if ready.hosts.iter().any(|pattern| pattern.matches(host)) {
            Ok(ready.clone())
        } else {
            Err(refuse(
                format!("the credential `{name}` may not go to {host}"),
                "the host among the credential's `hosts` in the configuration",
            ))
        }
    }
}

fn unknown(name: &str) -> SecretsError {
    SecretsError {
        message: format!("no credential is called `{}`", name.escape_debug()),
        hint: format!(
            "say what it is in the configuration: [credentials.{}]",
            name.escape_debug()
        ),
    }
}

/// Whether the secret can be sent unchanged and found again in a response.
fn check(key: &Secret) -> Result<(), String> {
    key.check_header().map_err(|bad| bad.to_string())?;
    let bytes = key.expose();
    if bytes.len() < MIN_LENGTH {
        return Err(format!(
            "it is shorter than {MIN_LENGTH} characters, and would be found in what has nothing to do with it"
        ));
    }
    if bytes.trim_ascii().len() == bytes.len() {
        Ok(())
    } else {
        Err("it begins or ends with a space, which is lost on the way".to_owned())
    }
}

impl ResolvedCredential {
    fn new(
        name: &str,
        credential: &Credential,
        key: &Secret,
    ) -> Result<ResolvedCredential, String> {
        check(key)?;
        let mut patterns = CredentialPatterns::new(key);
        let (header, value) = match &credential.inject {
            InjectionMethod::Bearer => (
                AUTHORIZATION,
                Zeroizing::new([b"Bearer ", key.expose()].concat()),
            ),
            InjectionMethod::Header { name } => {
                (name.clone(), Zeroizing::new(key.expose().to_vec()))
            }
            InjectionMethod::Basic { user } => {
                let pair = Zeroizing::new([user.as_bytes(), b":", key.expose()].concat());
                let encoded = Zeroizing::new(STANDARD.encode(&*pair));
                patterns = patterns.with_pattern(encoded.as_bytes());
                (
                    AUTHORIZATION,
                    Zeroizing::new([b"Basic ", encoded.as_bytes()].concat()),
                )
            }
        };
        let mut value =
            HeaderValue::from_bytes(&value).map_err(|_| crate::BadSecret::NotHeader.to_string())?;
        value.set_sensitive(true);
        Ok(ResolvedCredential {
            name: name.to_owned(),
            header,
            value,
            hosts: credential.hosts.clone(),
            patterns,
        })
    }

    /// Sets the credential's header, in place of whatever the program sent.
    pub(crate) fn put_into(&self, headers: &mut HeaderMap) {
        headers.remove(AUTHORIZATION);
        headers.insert(self.header.clone(), self.value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(credential: &str) -> EgressRule {
        let mode = spec::EgressMode::Inspect {
            allow: Vec::new(),
            credential: Some(credential.to_owned()),
            allow_upgrade: false,
        };
        EgressRule {
            mode,
            ..EgressRule::from_option("api.example.com").unwrap()
        }
    }

    fn settings(inject: InjectionMethod) -> (EgressSettings, Secrets) {
        let credential = Credential {
            key: KeySource::Variable("KEY".to_owned()),
            inject,
            hosts: vec!["api.example.com".parse().unwrap()],
        };
        let secret = Secret::new(b"canary-0123456789".to_vec()).unwrap();
        let secrets = Secrets {
            variables: [("KEY".to_owned(), secret)].into(),
            ..Secrets::default()
        };
        (
            EgressSettings {
                credentials: [("api".to_owned(), credential)].into(),
                ..EgressSettings::default()
            },
            secrets,
        )
    }

    #[tokio::test]
    async fn a_credential_goes_to_its_own_hosts_in_place_of_the_programs() {
        for (inject, header, value) in [
            (
                InjectionMethod::Bearer,
                "authorization",
                "Bearer canary-0123456789",
            ),
            (
                InjectionMethod::Basic {
                    user: "x".to_owned(),
                },
                "authorization",
                "Basic eDpjYW5hcnktMDEyMzQ1Njc4OQ==",
            ),
            (
                InjectionMethod::Header {
                    name: HeaderName::from_static("x-api-key"),
                },
                "x-api-key",
                "canary-0123456789",
            ),
        ] {
            let (settings, secrets) = settings(inject);
            let found = CredentialSet::find(&[rule("api")], &settings, &secrets)
                .await
                .unwrap();
            let ready = found
                .get("api", &"API.example.com.".parse().unwrap())
                .unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer mine"));
            headers.insert(header, HeaderValue::from_static("mine"));
            ready.put_into(&mut headers);
            assert_eq!(
                (headers.len(), headers[header].to_str().unwrap()),
                (1, value)
            );
            assert!(
                !format!("{found:?} {headers:?}").contains("canary"),
                "it does not print"
            );
            for other in ["x.api.example.com", "example.com", "127.0.0.1"] {
                assert_eq!(
                    found.get("api", &other.parse().unwrap()).unwrap_err().rule,
                    "credential"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_credential_that_could_not_be_found_again_is_told_before_anything_runs() {
        let (settings, mut secrets) = settings(InjectionMethod::Bearer);
        for (key, words) in [
            ("abc", "shorter"),
            (" abcdef", "space"),
            ("abcdef ", "space"),
            ("abcd", ""),
        ] {
            secrets
                .variables
                .insert("KEY".to_owned(), Secret::new(key.into()).unwrap());
            let found = CredentialSet::find(&[rule("api")], &settings, &secrets).await;
            match found {
                Ok(_) => assert!(words.is_empty(), "`{key}`"),
                Err(error) => {
                    assert!(
                        !words.is_empty() && error.to_string().contains(words),
                        "{error}"
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn a_credential_that_is_not_there_is_told_before_anything_runs() {
        let (settings, secrets) = settings(InjectionMethod::Bearer);
        for (rule, settings, secrets) in [
            (rule("other"), &settings, &secrets),
            (rule("api"), &settings, &Secrets::default()),
        ] {
            let found = CredentialSet::find(&[rule], settings, secrets).await;
            assert!(matches!(found, Err(OpenError::Secret(_))), "{found:?}");
        }
        let found = CredentialSet::find(&[rule("api")], &settings, &secrets)
            .await
            .unwrap();
        assert!(
            found
                .get("other", &"api.example.com".parse().unwrap())
                .is_err()
        );
    }
}
