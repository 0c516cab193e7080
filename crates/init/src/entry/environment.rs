//! The settings in the environment, and the variables that the program gets. Secrets are taken out
//! here, once; afterwards they are only in [`Token`], which cannot be printed.

use super::{EntryError, command::CommandSettings};
use std::{ffi::CString, time::Duration};

const MAX_GRACE_SECONDS: u64 = 3600;
/// Shorter than the ten seconds after which `docker stop` kills this process.
const DEFAULT_GRACE: Duration = Duration::from_secs(8);
const DEFAULT_WORKDIR: &[u8] = b"/workspace";
const DEFAULT_SOCKET: &[u8] = b"/llm-sock/llm.sock";
const DEFAULT_PORT: u16 = 8080;
const MAX_TOKEN_BYTES: usize = 4096;
/// Every variable with this prefix is for airlock-init.
const PREFIX: &[u8] = b"AGENT_";

/// The environment variables of a process, in order.
#[derive(Debug, Default)]
pub struct Variables(Vec<Vec<u8>>);

fn name(entry: &[u8]) -> &[u8] {
    entry.split(|byte| *byte == b'=').next().unwrap_or_default()
}

impl Variables {
    /// From entries of the form `NAME=VALUE`.
    pub fn new(entries: Vec<Vec<u8>>) -> Variables {
        Variables(entries)
    }

    /// A value; an empty one counts as unset. The first entry of a name counts, as for the C
    /// library.
    pub fn get(&self, wanted: &[u8]) -> Option<&[u8]> {
        let entry = self.0.iter().find(|entry| name(entry) == wanted)?;
        entry
            .get(wanted.len() + 1..)
            .filter(|value| !value.is_empty())
    }

    /// Removes a variable that the program must not see, with all entries of its name.
    fn take(&mut self, wanted: &[u8]) -> Option<Vec<u8>> {
        let value = self.get(wanted).map(<[u8]>::to_vec);
        self.0.retain_mut(|entry| {
            let stays = name(entry) != wanted;
            if !stays {
                wipe(entry);
            }
            stays
        });
        value
    }

    /// Sets a value, in place of all entries of the name.
    pub fn set(&mut self, wanted: &str, value: &[u8]) {
        self.0.retain(|entry| name(entry) != wanted.as_bytes());
        self.0.push([wanted.as_bytes(), b"=", value].concat());
    }

    /// As `execve` takes them.
    pub fn entries(self) -> Vec<CString> {
        // None holds a NUL: they came as C strings, and values that we set are checked at their
        // source.
        self.0
            .into_iter()
            .filter_map(|entry| CString::new(entry).ok())
            .collect()
    }
}

/// Overwrites a secret.
fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // Otherwise the compiler would remove the write.
    std::hint::black_box(bytes);
}

/// A secret. Its `Debug` does not show it, and it is overwritten on drop.
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A token that fits a header.
    pub fn new(value: Vec<u8>) -> Result<Token, EntryError> {
        let token = Token(value);
        if token.0.len() <= MAX_TOKEN_BYTES && token.0.iter().all(u8::is_ascii_graphic) {
            Ok(token)
        } else {
            Err(EntryError::new(
                "SESSION_TOKEN cannot stand in a header: it must be at most 4096 visible ASCII characters",
            ))
        }
    }

    /// For the one header that carries it.
    pub(super) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// How the model is reached.
#[derive(Debug)]
pub(super) enum ModelUpstream {
    /// `SESSION_TOKEN` and `CONTROL_PLANE_URL`: the bridge adds the token.
    Url { url: Vec<u8>, token: Token },
    /// A socket. If no variable promises it, it may be absent.
    Socket {
        path: Vec<u8>,
        promised_by: Option<&'static str>,
    },
}

/// The settings of airlock-init.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) command: CommandSettings,
    pub(super) user: Option<String>,
    pub(super) workdir: CString,
    pub(super) grace: Duration,
    pub(super) verbose: bool,
    pub(super) upstream: ModelUpstream,
    pub(super) port: u16,
    /// Unknown variables with our prefix.
    pub(super) unknown: Vec<String>,
    /// Variables of the program that contain the token.
    pub(super) holds_token: Vec<String>,
}

fn text(name: &str, value: Vec<u8>) -> Result<String, EntryError> {
    String::from_utf8(value).map_err(|_| EntryError::new(format!("{name} is not UTF-8")))
}

/// Parses a decimal number within bounds.
fn number(name: &str, value: &[u8], least: u64, most: u64) -> Result<u64, EntryError> {
    let wrong = || {
        EntryError::new(format!(
            "{name} must be a whole number from {least} to {most}"
        ))
    };
    let digits = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits
        .and_then(|text| text.parse().ok())
        .ok_or_else(wrong)?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else {
        Err(wrong())
    }
}

/// Takes our settings out of the variables.
pub(super) fn read(variables: &mut Variables) -> Result<Settings, EntryError> {
    // Every variable is removed before the first error.
    let token = variables.take(b"SESSION_TOKEN");
    let url = variables.take(b"CONTROL_PLANE_URL");
    variables.take(b"SESSION_ID");
    let command = CommandSettings {
        command: variables.take(b"AGENT_COMMAND"),
        arguments: variables.take(b"AGENT_ARGS"),
        json: variables.take(b"AGENT_COMMAND_JSON"),
    };
    let user = variables.take(b"AGENT_USER");
    let workdir = variables
        .take(b"AGENT_WORKDIR")
        .unwrap_or_else(|| DEFAULT_WORKDIR.to_vec());
    let grace = variables.take(b"AGENT_GRACE");
    let log = variables.take(b"AGENT_LOG");
    let unknown = strip_prefix(variables);
    let token = token.map(Token::new).transpose()?;
    let holds_token = token
        .as_ref()
        .map_or_else(Vec::new, |token| holders(variables, token));
    let port = variables
        .get(b"LLM_PROXY_PORT")
        .map(|port| number("LLM_PROXY_PORT", port, 1, 65535));
    Ok(Settings {
        command,
        user: user.map(|user| text("AGENT_USER", user)).transpose()?,
        workdir: absolute("AGENT_WORKDIR", workdir)?,
        grace: match grace {
            Some(grace) => {
                Duration::from_secs(number("AGENT_GRACE", &grace, 0, MAX_GRACE_SECONDS)?)
            }
            None => DEFAULT_GRACE,
        },
        verbose: log.map(|log| number("AGENT_LOG", &log, 0, 1)).transpose()? == Some(1),
        upstream: upstream(variables, token, url)?,
        port: port.transpose()?.map_or(DEFAULT_PORT, |port| port as u16),
        unknown,
        holds_token,
    })
}

fn absolute(name: &str, path: Vec<u8>) -> Result<CString, EntryError> {
    if path.first() != Some(&b'/') {
        return Err(EntryError::new(format!("{name} is not an absolute path")));
    }
    CString::new(path).map_err(|_| EntryError::new(format!("{name} has a NUL")))
}

/// Removes the other variables with our prefix; returns their names for messages.
fn strip_prefix(variables: &mut Variables) -> Vec<String> {
    let ours = |entry: &Vec<u8>| entry.starts_with(PREFIX);
    let names = variables
        .0
        .iter()
        .filter(|entry| ours(entry))
        .map(|entry| shown(name(entry)))
        .collect();
    variables.0.retain(|entry| !ours(entry));
    names
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(64)])
        .escape_default()
        .to_string()
}

fn holders(variables: &Variables, token: &Token) -> Vec<String> {
    let holds = |entry: &&Vec<u8>| {
        let value = entry.get(name(entry).len() + 1..).unwrap_or_default();
        !token.0.is_empty() && value.windows(token.0.len()).any(|part| part == token.0)
    };
    variables
        .0
        .iter()
        .filter(holds)
        .map(|entry| shown(name(entry)))
        .collect()
}

fn upstream(
    variables: &Variables,
    token: Option<Token>,
    url: Option<Vec<u8>>,
) -> Result<ModelUpstream, EntryError> {
    let socket = variables.get(b"LLM_PROXY_SOCKET");
    match (token.zip(url), socket) {
        (Some(_), Some(_)) => Err(EntryError::new(
            "both LLM_PROXY_SOCKET and SESSION_TOKEN with CONTROL_PLANE_URL name the way to the model; give one",
        )),
        (Some((token, url)), None) => Ok(ModelUpstream::Url { url, token }),
        (None, Some(path)) => {
            let path = absolute("LLM_PROXY_SOCKET", path.to_vec())?.into_bytes();
            Ok(ModelUpstream::Socket {
                path,
                promised_by: Some("LLM_PROXY_SOCKET"),
            })
        }
        (None, None) => {
            // In a run of Airlock's own the door is already a listener: no socket is promised.
            let stands = variables.get(b"AIRLOCK_RUN_ID").is_some();
            let base = variables.get(b"OPENAI_API_BASE").filter(|_| !stands);
            let promised_by = base.map(|_| "OPENAI_API_BASE");
            Ok(ModelUpstream::Socket {
                path: DEFAULT_SOCKET.to_vec(),
                promised_by,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[&str]) -> Variables {
        Variables::new(list.iter().map(|entry| entry.as_bytes().to_vec()).collect())
    }

    fn left(variables: Variables) -> Vec<String> {
        variables
            .entries()
            .into_iter()
            .map(|entry| entry.into_string().unwrap())
            .collect()
    }

    #[test]
    fn what_is_ours_is_stripped_and_the_rest_stays_in_order() {
        let mut given = variables(&[
            "PATH=/bin",
            "SESSION_TOKEN=s3cret",
            "SESSION_ID=1",
            "CONTROL_PLANE_URL=http://a",
            "AGENT_COMMAND=a",
            "AGENT_ARGS=b",
            "AGENT_USER=u",
            "AGENT_WORKDIR=/w",
            "AGENT_COMMAND=second",
            "AGENT_OTHER=x",
            "AGENTS=2",
            "ANTHROPIC_API_KEY=key",
            "ANTHROPIC_BASE_URL=http://b",
            "COPY=xs3cretx",
            "SESSION_TOKEN=again",
        ]);
        let settings = read(&mut given).unwrap();
        assert_eq!(
            settings.command.command.as_deref(),
            Some(&b"a"[..]),
            "the first counts"
        );
        assert_eq!(
            (settings.unknown, settings.holds_token),
            (vec!["AGENT_OTHER".into()], vec!["COPY".into()])
        );
        assert!(matches!(settings.upstream, ModelUpstream::Url { .. }));
        assert_eq!(
            left(given),
            [
                "PATH=/bin",
                "AGENTS=2",
                "ANTHROPIC_API_KEY=key",
                "ANTHROPIC_BASE_URL=http://b",
                "COPY=xs3cretx"
            ]
        );
    }

    #[test]
    fn what_is_empty_is_not_given() {
        let mut given = variables(&[
            "AGENT_COMMAND=",
            "AGENT_USER=",
            "AGENT_WORKDIR=",
            "LLM_PROXY_SOCKET=",
            "SESSION_TOKEN=",
        ]);
        let settings = read(&mut given).unwrap();
        assert_eq!((settings.command.command, settings.user), (None, None));
        assert_eq!(
            (settings.workdir.to_bytes(), settings.port, settings.grace),
            (DEFAULT_WORKDIR, 8080, DEFAULT_GRACE)
        );
        assert!(matches!(
            settings.upstream,
            ModelUpstream::Socket {
                promised_by: None,
                ..
            }
        ));
    }

    #[test]
    fn a_door_is_promised_by_either_variable() {
        for name in ["LLM_PROXY_SOCKET", "OPENAI_API_BASE"] {
            let settings = read(&mut variables(&[&format!("{name}=/a")])).unwrap();
            assert!(
                matches!(settings.upstream, ModelUpstream::Socket { promised_by: Some(by), .. } if by == name)
            );
        }
        let ours = read(&mut variables(&["OPENAI_API_BASE=/a", "AIRLOCK_RUN_ID=r"])).unwrap();
        assert!(
            matches!(
                ours.upstream,
                ModelUpstream::Socket {
                    promised_by: None,
                    ..
                }
            ),
            "the door stands already"
        );
        let named = [
            "LLM_PROXY_SOCKET=/a",
            "OPENAI_API_BASE=/a",
            "AIRLOCK_RUN_ID=r",
        ];
        let ours = read(&mut variables(&named)).unwrap();
        assert!(matches!(
            ours.upstream,
            ModelUpstream::Socket {
                promised_by: Some("LLM_PROXY_SOCKET"),
                ..
            }
        ));
    }

    #[test]
    fn refusals_never_show_a_token() {
        for wrong in ["s3cret\n", "s3cret x", &"s3cret".repeat(1000)] {
            let refusal = read(&mut variables(&[&format!("SESSION_TOKEN={wrong}")])).unwrap_err();
            assert!(!refusal.0.contains("s3cret"), "{}", refusal.0);
        }
        let settings = read(&mut variables(&[
            "SESSION_TOKEN=s3cret",
            "CONTROL_PLANE_URL=http://a",
        ]))
        .unwrap();
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn numbers_and_paths_are_checked() {
        for wrong in [
            "AGENT_GRACE=3601",
            "AGENT_GRACE=+1",
            "AGENT_GRACE=1s",
            "LLM_PROXY_PORT=0",
            "LLM_PROXY_PORT=65536",
            "AGENT_LOG=2",
            "AGENT_WORKDIR=relative",
            "LLM_PROXY_SOCKET=relative",
        ] {
            assert!(read(&mut variables(&[wrong])).is_err(), "{wrong}");
        }
        let settings = read(&mut variables(&[
            "AGENT_GRACE=0",
            "LLM_PROXY_PORT=65535",
            "AGENT_LOG=1",
        ]))
        .unwrap();
        assert_eq!(
            (settings.grace, settings.port, settings.verbose),
            (Duration::ZERO, 65535, true)
        );
    }
}
