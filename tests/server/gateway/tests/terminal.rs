//! `airlock sandbox exec --tty` before a real terminal: this test holds the other end of it, and the program sits in a
//! sandbox of a server.

use cli::login::{Login, window};
use gateway_tests::{Client, Folder, Server};
use rustix::termios::tcsetwinsize;
use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};

/// A terminal with the command in it, and the server that it asks.
struct Sitting {
    server: Server,
    sandbox: String,
    _folder: Folder,
    login: Login,
}

impl Deref for Sitting {
    type Target = Login;

    fn deref(&self) -> &Login {
        &self.login
    }
}

impl DerefMut for Sitting {
    fn deref_mut(&mut self) -> &mut Login {
        &mut self.login
    }
}

impl Sitting {
    /// `airlock sandbox exec --tty` of this command, as from a login.
    fn start(command: &[&str]) -> Sitting {
        let (server, folder) = (Server::new(), Folder::new());
        let made = server.post("/v1/sandboxes", &json!({})).json();
        let sandbox = made["sandbox_id"].as_str().expect("a name").to_owned();
        let Client::Tcp(address) = &server.client else {
            panic!("a port")
        };
        let airlock = cli::airlock().to_str().expect("its path is text");
        let words = [airlock, "sandbox", "exec", "--tty", &sandbox, "--"];
        let login = Login::start(words.iter().chain(command).copied(), |command| {
            command
                .current_dir(&folder.0)
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", &folder.0);
            command
                .env("AIRLOCK_URL", format!("http://{address}"))
                .env("AIRLOCK_KEY", &server.admin);
        });
        Sitting {
            server,
            sandbox,
            _folder: folder,
            login,
        }
    }

    /// The programs of the sandbox, as its server sees them.
    fn programs(&self) -> Vec<Value> {
        let listed = self
            .server
            .get(&format!("/v1/sandboxes/{}/exec", self.sandbox))
            .json();
        listed["execs"].as_array().expect("a list").clone()
    }
}

#[test]
fn a_shell_far_away_is_typed_at_resized_and_its_status_is_ours() {
    let mut sitting = Sitting::start(&["sh"]);
    sitting.expect("$ ");
    assert!(sitting.is_raw(), "every key goes inside");
    sitting.keys("stty size; echo $TERM; tty\n");
    sitting.expect("31 101\r\n");
    sitting.expect("xterm\r\n");
    sitting.expect("/dev/pts/");
    sitting.expect("$ ");
    tcsetwinsize(&sitting.ours, window(40, 132)).expect("a size");
    sitting.keys("while [ \"$(stty size)\" != '40 132' ]; do sleep 0.05; done; echo re''sized\n");
    sitting.expect("resized");
    sitting.expect("$ ");
    sitting.keys("sh -c 'echo he''re; exec sleep 600'\n");
    sitting.expect("here");
    sitting.keys("\x03");
    sitting.expect("$ ");
    sitting.keys("echo \"interrupted: $?\"\n");
    sitting.expect("interrupted: 130");
    sitting.keys("exit 7\n");
    assert_eq!(sitting.end(), Some(7));
    assert_eq!(sitting.programs()[0]["exit_code"], 7);
}

#[test]
fn a_program_that_is_absent_or_killed_leaves_the_terminal_as_it_was() {
    let mut absent = Sitting::start(&["no-such-command"]);
    assert_eq!(absent.end(), Some(127));
    absent.expect("there is no command `no-such-command` inside");
    let mut killed = Sitting::start(&["sh", "-c", "echo ready; kill -9 $$"]);
    killed.expect("ready");
    assert_eq!(killed.end(), Some(137));
}

#[test]
fn a_sandbox_that_ends_ends_its_terminals() {
    let mut sitting = Sitting::start(&["sh", "-c", "echo ready; sleep 600"]);
    sitting.expect("ready");
    assert_eq!(sitting.programs()[0]["status"], "running");
    assert_eq!(
        sitting
            .server
            .delete(&format!("/v1/sandboxes/{}", sitting.sandbox))
            .status,
        200
    );
    assert!(
        sitting.end().is_some_and(|status| status != 0),
        "it did not go well"
    );
}
