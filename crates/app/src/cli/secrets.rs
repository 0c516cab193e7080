//! `airlock secrets`: stores, lists and removes secrets. A value comes from a terminal without echo
//! or from standard input, never from an argument, and is never printed.

use super::{
    Global, conclude,
    message::{self, Failure, Message},
    print, print_json,
};
use crate::config::ProcessEnv;
use clap::{Args, Subcommand};
use doors::{
    Secret,
    secrets::{MasterKey, Secrets, SecretsError, StoredSecret},
};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use spec::{ErrorCode, Timestamp};
use std::{
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    time::SystemTime,
};

const EXAMPLES: &str = "\
Examples:
  airlock secrets set anthropic < key.txt
  airlock secrets list
  airlock secrets list --json
  airlock run --profile agent --secret anthropic=TOKEN -- sh -c 'test -n \"$TOKEN\"'
  airlock secrets rm anthropic

Secrets are stored encrypted in the state folder. docs/secrets.md describes the master key, and how
to use a better one than the default.";

/// The options of `airlock secrets`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Store a secret, replacing one of the same name
    ///
    /// In a terminal, the value is prompted for and not shown. Otherwise it is read from standard
    /// input, without one final newline.
    Set {
        /// The secret's name; a provider's key is looked up by the provider's name
        name: String,
    },
    /// List names and times; never values
    List,
    /// Remove a secret
    Rm {
        /// The secret's name
        name: String,
    },
}

/// The maximum size of a secret, plus one byte that reveals a longer one.
const MAX_INPUT_BYTES: usize = (64 << 10) + 1;

impl From<SecretsError> for Failure {
    fn from(error: SecretsError) -> Self {
        Failure {
            code: ErrorCode::InvalidSpec,
            message: error.message,
            hint: error.hint,
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let secrets = global.configure(env)?.secrets;
    match options.action {
        Action::Set { name } => set(&secrets, &name, options.json)?,
        Action::List => {
            let stored = secrets.list()?;
            if options.json {
                print_json(&serde_json::json!({ "secrets": rows(&stored) }))?
            } else {
                print(&text(&stored))?
            }
        }
        Action::Rm { name } => {
            if !secrets.remove(&name)? {
                let message = format!("no secret is called `{name}`");
                return Err(Failure::invalid(
                    message,
                    "`airlock secrets list` shows the names",
                ));
            }
            if options.json {
                print_json(&serde_json::json!({ "removed": name }))?;
            }
        }
    }
    Ok(0)
}

fn set(secrets: &Secrets, name: &str, json: bool) -> Result<(), Failure> {
    // The name is checked before a value is typed.
    let id = spec::Id::new(name)
        .map_err(|bad| Failure::invalid(bad.to_string(), "give the secret another name"))?;
    super::leave_no_dump()?;
    let stdin = io::stdin();
    let bytes = if stdin.is_terminal() {
        prompt_secret(&stdin, id.as_str())?
    } else {
        read(&stdin)?
    };
    let hint = format!("write it to standard input: airlock secrets set {id} < FILE");
    let value = Secret::new(bytes).map_err(|bad| Failure::invalid(bad.to_string(), hint))?;
    secrets.set(name, &value)?;
    message::print(&storage_notes(secrets, &value));
    if json {
        print_json(&serde_json::json!({ "set": name }))
    } else {
        Ok(())
    }
}

/// Notes about where the secret is stored.
fn storage_notes(secrets: &Secrets, value: &Secret) -> Vec<Message> {
    let mut lines = Vec::new();
    if value.check_header().is_err() {
        let note = "the value has line breaks or other characters that a header cannot contain: runs can use it, but it \
                    cannot be a provider's key";
        lines.push(Message::Note(note.to_owned()));
    }
    if matches!(secrets.master, MasterKey::Beside) {
        let key = secrets.folder.join("key");
        let note = format!(
            "the master key is stored beside the secrets, in `{}`: everyone who can read that folder can read the secrets",
            key.display()
        );
        lines.push(Message::Note(note));
        let better = "better: a systemd credential, the kernel's keyring, a key file elsewhere or AIRLOCK_MASTER_KEY; \
                      docs/secrets.md shows how";
        lines.push(Message::Hint(better.to_owned()));
    }
    lines
}

/// Reads standard input up to the maximum size, without a buffer that would keep a copy.
fn read(stdin: &impl AsFd) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; MAX_INPUT_BYTES];
    let mut filled = 0;
    while filled < MAX_INPUT_BYTES {
        match rustix::io::read(stdin, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(unreadable(error.into())),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn unreadable(error: io::Error) -> Failure {
    Failure::internal(format!(
        "cannot read the secret from standard input: {error}"
    ))
}

/// Disables the terminal's echo until dropped.
struct HiddenInput<'t, T: AsFd> {
    terminal: &'t T,
    before: Termios,
}

impl<'t, T: AsFd> HiddenInput<'t, T> {
    /// Signals are disabled as well, so that Ctrl-C is read as a key and the terminal can be
    /// restored.
    fn start(terminal: &'t T) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut hidden = before.clone();
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
        hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        Ok(HiddenInput { terminal, before })
    }
}

impl<T: AsFd> Drop for HiddenInput<'_, T> {
    fn drop(&mut self) {
        // An error is ignored: the terminal is gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Prompts for a value in the terminal.
fn prompt_secret(terminal: &impl AsFd, name: &str) -> Result<Vec<u8>, Failure> {
    let hidden = HiddenInput::start(terminal).map_err(unreadable)?;
    write_prompt(&format!("value of `{name}` (not shown): "));
    let read_line = read_line(|byte| Ok(rustix::io::read(terminal, byte)?));
    drop(hidden);
    write_prompt("\n");
    read_line
}

/// Writes to stderr; an error is ignored.
fn write_prompt(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Reads one line with the editing keys that a terminal in canonical mode has.
fn read_line(mut key: impl FnMut(&mut [u8]) -> io::Result<usize>) -> Result<Vec<u8>, Failure> {
    const INTERRUPT: u8 = 3;
    const END_OF_INPUT: u8 = 4;
    const KILL_LINE: u8 = 21;
    const ERASE: [u8; 2] = [8, 127];
    let mut line = Vec::with_capacity(MAX_INPUT_BYTES);
    loop {
        let mut byte = [0];
        match key(&mut byte) {
            Ok(0) => return Ok(line),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(error)),
        }
        match byte[0] {
            b'\n' | b'\r' => return Ok(line),
            END_OF_INPUT if line.is_empty() => return Ok(line),
            INTERRUPT => {
                return Err(Failure::invalid(
                    "nothing was stored: interrupted",
                    "start again when you want to",
                ));
            }
            KILL_LINE => line.clear(),
            erase if ERASE.contains(&erase) => drop(line.pop()),
            other if line.len() < MAX_INPUT_BYTES => line.push(other),
            _ => {}
        }
    }
}

fn set_at(stored: &StoredSecret) -> Timestamp {
    let since = stored
        .set_at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(since.as_millis() as u64)
}

fn rows(stored: &[StoredSecret]) -> Vec<serde_json::Value> {
    let row = |one: &StoredSecret| serde_json::json!({ "name": one.name, "set_at": set_at(one) });
    stored.iter().map(row).collect()
}

/// Names and times as a table.
fn text(stored: &[StoredSecret]) -> String {
    let width = stored
        .iter()
        .map(|one| one.name.as_str().len())
        .max()
        .unwrap_or(0);
    stored
        .iter()
        .map(|one| format!("{:<width$}  {}\n", one.name.as_str(), set_at(one)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut left = bytes.iter();
        read_line(|byte| {
            Ok(left.next().map_or(0, |next| {
                byte[0] = *next;
                1
            }))
        })
    }

    #[test]
    fn a_line_is_typed_as_everywhere() {
        assert_eq!(keys(b"sk-1\rrest"), Ok(b"sk-1".to_vec()));
        assert_eq!(keys(b"xx\x15sk-\x7f-2\n"), Ok(b"sk-2".to_vec()));
        assert_eq!(keys(b"\x7f\x08a\n"), Ok(b"a".to_vec()));
        assert_eq!(keys(b"\x04more\n"), Ok(Vec::new()));
        assert_eq!(keys(b"until the end"), Ok(b"until the end".to_vec()));
        assert!(
            keys(b"sk-1\x03")
                .unwrap_err()
                .message
                .starts_with("nothing was stored")
        );
        assert_eq!(
            keys(&vec![b'x'; MAX_INPUT_BYTES + 9]).unwrap().len(),
            MAX_INPUT_BYTES,
            "and then it is too long"
        );
    }

    #[test]
    fn a_list_is_two_columns_without_values() {
        let stored = |name: &str| StoredSecret {
            name: spec::Id::new(name).unwrap(),
            set_at: SystemTime::UNIX_EPOCH,
        };
        let list = [stored("a"), stored("openai")];
        assert_eq!(
            text(&list),
            "a       1970-01-01T00:00:00.000Z\nopenai  1970-01-01T00:00:00.000Z\n"
        );
        assert_eq!(
            rows(&list[..1])[0].to_string(),
            r#"{"name":"a","set_at":"1970-01-01T00:00:00.000Z"}"#
        );
    }
}
