//! Folders of the server with a layer: looked at, applied while a sandbox goes on and at its end, kept when it is lost; by
//! HTTP, and by the command as a client.

use gateway_tests::{Answer, Client, Folder, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

/// A server that shares a folder with a key that may use sandboxes.
struct Place {
    server: Server,
    shared: Folder,
    key: String,
}

impl Place {
    fn new() -> Place {
        Place::with("")
    }

    /// Layers lie over the folder.
    fn overlaid() -> Place {
        Place::with("[workspace]\ncopy_names = 1\n")
    }

    fn with(more: &str) -> Place {
        let shared = Folder::new();
        let configuration = Place::configuration(&shared) + more;
        let server = Server::with(&configuration, &[]);
        fs::create_dir(shared.at("work")).expect("as it was asked for");
        fs::write(shared.at("work/kept"), "kept\n").expect("as it was asked for");
        fs::write(shared.at("work/more"), "more\n").expect("as it was asked for");
        let key = server.key(&["sandboxes"]);
        Place {
            server,
            shared,
            key,
        }
    }

    fn configuration(shared: &Folder) -> String {
        format!("[serve]\nfolders = [{:?}]\n", shared.0)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.server.ask(&self.key, method, path, &[], body)
    }

    /// A sandbox on the folder: its identifier.
    fn sandbox(&self, mode: &str) -> String {
        let made = self.ask(
            "POST",
            "/v1/sandboxes",
            &json!({ "workspace": self.shared.at("work"), mode: true }),
        );
        assert_eq!(made.status, 201, "{}", made.text());
        made.json()["sandbox_id"]
            .as_str()
            .expect("as it was asked for")
            .to_owned()
    }

    fn exec(&self, id: &str, script: &str) {
        let path = format!("/v1/sandboxes/{id}/exec");
        let ran = self.ask("POST", &path, &json!({ "command": ["sh", "-c", script] }));
        assert_eq!(ran.json()["exit_code"], 0, "{}", ran.text());
    }

    fn work(&self, name: &str) -> PathBuf {
        self.shared.at("work").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work(name)).unwrap_or_else(|error| error.to_string())
    }

    fn apply(&self, id: &str, how: Value) -> (u16, Value) {
        let told = self.ask("POST", &format!("/v1/sandboxes/{id}/workspace/apply"), &how);
        (told.status, told.json())
    }

    fn end(&self, id: &str, query: &str) -> (u16, Value) {
        let told = self.ask(
            "DELETE",
            &format!("/v1/sandboxes/{id}{query}"),
            &Value::Null,
        );
        (told.status, told.json())
    }

    fn is_kept(&self, id: &str) -> bool {
        let listed = self.ask("GET", "/v1/workspaces", &Value::Null).json();
        let listed = listed["workspaces"]
            .as_array()
            .expect("as it was asked for")
            .clone();
        listed.iter().any(|one| one["id"] == id)
    }

    /// The command as a client of the server.
    fn remote(&self, words: &[&str]) -> Output {
        let Client::Tcp(address) = &self.server.client else {
            panic!("a port")
        };
        let mut command = Command::new(cli::airlock());
        command
            .args(["--state", "local"])
            .args(words)
            .current_dir(&self.shared.0)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.shared.0)
            .env("AIRLOCK_URL", format!("http://{address}"))
            .env("AIRLOCK_KEY", &self.key)
            .stdin(Stdio::null());
        command.output().expect("airlock starts")
    }
}

fn paths(told: &Value) -> Vec<&str> {
    let all = told.as_array().expect("a list").iter();
    all.filter_map(|one| one["path"].as_str()).collect()
}

#[test]
fn changes_are_applied_while_the_sandbox_goes_on() {
    for place in [Place::new(), Place::overlaid()] {
        apply_while_it_goes_on(&place);
    }
}

fn apply_while_it_goes_on(place: &Place) {
    let id = place.sandbox("copy_on_write");
    place.exec(
        &id,
        "echo 1 >one; mkdir src; echo 2 >src/two; echo 3 >three; echo evil >.envrc",
    );
    assert!(
        !place.work("one").exists(),
        "the control: nothing is applied by itself"
    );
    let (status, told) = place.apply(&id, json!({ "only": ["src"] }));
    assert_eq!(
        (status, paths(&told["applied"])),
        (200, vec!["src", "src/two"]),
        "{told}"
    );
    assert_eq!(
        (place.read("src/two").as_str(), told["discarded"].clone()),
        ("2\n", json!(false))
    );
    assert!(!place.work("one").exists(), "only what was asked for");
    let (status, told) = place.apply(&id, json!({}));
    assert_eq!(
        (status, told["code"].clone()),
        (409, json!("conflict")),
        "{told}"
    );
    assert!(
        told["detail"]
            .as_str()
            .expect("as it was asked for")
            .contains("`.envrc`"),
        "{told}"
    );
    assert!(!place.work("one").exists(), "nothing was done");
    fs::write(place.work("three"), "yours\n").expect("as it was asked for");
    let (status, told) = place.apply(&id, json!({ "partial": true }));
    assert_eq!(
        (status, paths(&told["applied"])),
        (200, vec!["one"]),
        "{told}"
    );
    assert_eq!(paths(&told["left_out"]), [".envrc", "three"]);
    let (status, _) = place.apply(&id, json!({ "partial": true, "force": true }));
    assert_eq!((status, place.read("three").as_str()), (200, "3\n"));
    place.exec(&id, "cat one three src/two; echo more >>one");
    let (status, told) = place.apply(&id, json!({ "only": ["one"] }));
    assert_eq!(
        (status, place.read("one").as_str()),
        (200, "1\nmore\n"),
        "{told}"
    );
    assert!(place.is_kept(&id) && !place.work(".envrc").exists());
    let (status, told) = place.apply(&id, json!({ "farce": true }));
    assert_eq!(status, 400, "{told}");
    let other = place.server.key(&["sandboxes"]);
    let path = format!("/v1/sandboxes/{id}/workspace/apply");
    let hers = place.server.ask(&other, "POST", &path, &[], &json!({}));
    assert_eq!(hers.status, 404, "another tenant's: {}", hers.text());
    let weak = place.server.key(&["runs"]);
    let weak = place.server.ask(&weak, "POST", &path, &[], &json!({}));
    assert_eq!(weak.status, 403, "{}", weak.text());
    assert_eq!(place.end(&id, "").0, 200);
    assert!(place.is_kept(&id), "what was not applied is kept");
    let (status, _) = place.apply(&id, json!({}));
    assert_eq!(status, 410, "a sandbox that is gone");
    let plain = place.server.post("/v1/sandboxes", &json!({})).json();
    let path = format!(
        "/v1/sandboxes/{}/workspace/apply",
        plain["sandbox_id"].as_str().expect("as it was asked for")
    );
    let told = place.server.post(&path, &json!({}));
    assert_eq!(told.status, 409, "{}", told.text());
}

#[test]
fn a_sandbox_ends_with_its_changes_applied_or_kept_as_it_was_said() {
    let place = Place::new();
    for (mode, query, is_applied) in [
        ("staged", "", true),
        ("staged", "?apply=true", true),
        ("staged", "?apply=false", false),
        ("copy_on_write", "", false),
        ("copy_on_write", "?apply=true", true),
    ] {
        let id = place.sandbox(mode);
        place.exec(&id, "date >made; echo evil >.envrc");
        assert!(!place.work("made").exists(), "{mode}");
        let (status, told) = place.end(&id, query);
        assert_eq!(status, 200, "{told}");
        assert_eq!(
            place.work("made").exists(),
            is_applied,
            "{mode} {query}: {told}"
        );
        let workspace = &told["workspace"];
        assert_eq!(workspace["added"], 2, "{told}");
        assert_eq!(workspace["applied"], u64::from(is_applied), "{told}");
        let held = if is_applied { 1 } else { 0 };
        assert_eq!(workspace["held_back_total"], held, "{told}");
        assert!(place.is_kept(&id), "what is held back is kept");
        let path = format!("/v1/workspaces/{id}");
        assert_eq!(place.ask("DELETE", &path, &Value::Null).status, 204);
        _ = fs::remove_file(place.work("made"));
    }
}

#[test]
fn a_conflict_is_named_before_the_end_and_the_sandbox_goes_on() {
    let place = Place::new();
    let id = place.sandbox("staged");
    place.exec(&id, "echo theirs >kept; echo fine >fine");
    fs::write(place.work("kept"), "yours\n").expect("as it was asked for");
    let (status, told) = place.end(&id, "?apply=true");
    assert_eq!(
        (status, told["code"].clone()),
        (409, json!("conflict")),
        "{told}"
    );
    assert!(
        told["detail"]
            .as_str()
            .expect("as it was asked for")
            .contains("`kept`: it was changed"),
        "{told}"
    );
    place.exec(&id, "cat kept");
    assert!(!place.work("fine").exists());
    let (status, told) = place.end(&id, "");
    assert_eq!(status, 200);
    let workspace = &told["workspace"];
    assert_eq!(
        (
            workspace["applied"].clone(),
            workspace["conflicts_total"].clone()
        ),
        (json!(1), json!(1))
    );
    assert_eq!(workspace["conflicts"][0]["path"], "kept", "{told}");
    assert_eq!(
        (place.read("kept").as_str(), place.read("fine").as_str()),
        ("yours\n", "fine\n")
    );
    let shown = place.ask(
        "GET",
        &format!("/v1/workspaces/{id}/files/kept"),
        &Value::Null,
    );
    assert_eq!(shown.text(), "theirs\n", "the program's version is kept");
    let plain = place.server.post("/v1/sandboxes", &json!({})).json();
    let path = format!(
        "/v1/sandboxes/{}?apply=true",
        plain["sandbox_id"].as_str().expect("as it was asked for")
    );
    assert_eq!(
        place.server.delete(&path).status,
        409,
        "there is nothing to apply"
    );
}

#[test]
fn the_layer_of_a_lost_sandbox_is_kept_and_listed() {
    let mut place = Place::new();
    let id = place.sandbox("staged");
    place.exec(&id, "echo x >made");
    let configuration = Place::configuration(&place.shared);
    place.server = place.server.restart(Signal::KILL, &configuration);
    let state = place.ask("GET", &format!("/v1/sandboxes/{id}"), &Value::Null);
    assert_eq!(state.json()["reason"], "lost", "{}", state.text());
    assert!(place.is_kept(&id) && !place.work("made").exists());
    let server = &place.server;
    // The box itself may outlive its server by a moment.
    server.until("its end", || {
        let path = format!("/v1/workspaces/{id}/commit");
        let told = server.ask(&place.key, "POST", &path, &[], &json!({}));
        told.status == 200 && told.json()["discarded"] == true
    });
    assert_eq!(place.read("made"), "x\n");
}

fn git(place: &Place, words: &[&str]) -> String {
    let identity = ["-c", "user.name=n", "-c", "user.email=a@b"];
    let mut command = Command::new("git");
    command.args(identity).args(words);
    command
        .current_dir(place.work(""))
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    let done = command.output().expect("git starts");
    assert!(done.status.success(), "git {words:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// A server that was killed, and a sandbox of it that had committed a file: both.
fn lost_with_a_commit() -> (Place, String) {
    let mut place = Place::new();
    git(&place, &["init", "-q", "-b", "main"]);
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "one"]);
    let id = place.sandbox("staged");
    place.exec(
        &id,
        "git config user.name n; git config user.email a@b; echo x >made; git add made; git commit -q -m two",
    );
    let configuration = Place::configuration(&place.shared);
    place.server = place.server.restart(Signal::KILL, &configuration);
    (place, id)
}

/// The subjects of the commits that have arrived.
fn arrived(place: &Place) -> String {
    let words = ["for-each-ref", "--format=%(subject)", "refs/airlock"];
    git(place, &words)
}

#[test]
fn what_a_lost_sandbox_committed_arrives_with_its_files_or_is_dropped_with_them() {
    for (keeps, arrives) in [(true, "two\n"), (false, "")] {
        let (place, id) = lost_with_a_commit();
        let server = &place.server;
        let path = format!("/v1/workspaces/{id}");
        // The box itself may outlive its server by a moment.
        server.until("its end", || match keeps {
            true => {
                let path = format!("{path}/commit");
                let told = server.ask(&place.key, "POST", &path, &[], &json!({}));
                let brought = &told.json()["git"][0]["refs"][0]["placed"];
                told.status == 200 && *brought == format!("refs/airlock/{id}/heads/main")
            }
            false => {
                let told = server.ask(&place.key, "DELETE", &path, &[], &Value::Null);
                told.status == 204
            }
        });
        assert_eq!(place.work("made").exists(), keeps);
        assert_eq!(arrived(&place), arrives);
        assert_eq!(git(&place, &["log", "--format=%s"]), "one\n");
    }
}

#[test]
fn a_workspace_is_kept_until_its_commits_have_arrived_or_are_dropped() {
    for keeps in [true, false] {
        let (place, id) = lost_with_a_commit();
        let path = format!("/v1/workspaces/{id}");
        let commit = || place.ask("POST", &format!("{path}/commit"), &json!({}));
        let discard = || place.ask("DELETE", &path, &Value::Null);
        // Somebody is at the commits, as another command would be for a moment.
        let folder = place.server.folder.at("state/git").join(&id);
        let held = fs::File::open(folder).expect("what it committed");
        held.lock().expect("a lock");
        // The box itself may outlive its server by a moment.
        place.server.until("its end", || match keeps {
            true => {
                let told = commit();
                assert_eq!(told.status, 200, "{}", told.text());
                assert_eq!(told.json()["discarded"], false, "{}", told.text());
                told.text().contains("commit it again")
            }
            false => discard().status == 500,
        });
        assert_eq!(place.work("made").exists(), keeps);
        assert!(place.is_kept(&id), "it can be asked for again");
        assert_eq!(arrived(&place), "");
        drop(held);
        match keeps {
            true => assert_eq!(commit().json()["discarded"], true),
            false => assert_eq!(discard().status, 204),
        }
        assert!(!place.is_kept(&id));
        assert_eq!(arrived(&place), if keeps { "two\n" } else { "" });
    }
}

#[test]
fn a_difference_and_a_file_are_had_over_http_and_by_the_command() {
    let place = Place::new();
    let id = place.sandbox("copy_on_write");
    place.exec(
        &id,
        "echo two >>kept; mkdir new; printf 'a\\0\\377' >'new/b %'; echo c >new/c; ln -s kept link",
    );
    let path = format!("/v1/workspaces/{id}");
    let get = |rest: &str| place.ask("GET", &format!("{path}{rest}"), &Value::Null);
    let plain = get("/diff").json();
    assert!(
        plain.get("patch").is_none()
            && plain["changes"]
                .as_array()
                .expect("as it was asked for")
                .len()
                == 5,
        "{plain}"
    );
    let told = get("/diff?patch=true&only=kept&only=new%2Fc").json();
    assert_eq!(paths(&told["changes"]), ["kept", "new/c"]);
    let patch = told["patch"]["text"].as_str().expect("as it was asked for");
    assert!(
        patch.contains(" kept\n+two\n") && patch.contains("+++ b/new/c\n"),
        "{patch}"
    );
    assert!(!patch.contains("new/b"), "{patch}");
    assert_eq!(get("/diff?patches=true").status, 400);
    assert_eq!(get("/files/new/b%20%25").body, b"a\0\xff");
    assert_eq!(get("/files/link").text(), "kept");
    let header = get("/files/kept");
    assert_eq!(
        header.header("content-type"),
        Some("application/octet-stream")
    );
    assert_eq!(header.header("x-content-type-options"), Some("nosniff"));
    for (file, status) in [
        ("none", 404),
        ("new", 404),
        ("..%2Fkept", 400),
        ("../kept", 400),
    ] {
        let refused = get(&format!("/files/{file}"));
        assert_eq!(refused.status, status, "{file}: {}", refused.text());
    }
    let diff = place.remote(&["workspace", "diff", "-p", &id]);
    let local = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(
        diff.status.success() && local.contains("Binary files /dev/null and b/new/b % differ\n"),
        "{diff:?}"
    );
    let shown = place.remote(&["workspace", "show", "new/b %"]);
    assert_eq!(shown.stdout, b"a\0\xff", "the newest: {shown:?}");
    let taken = place.remote(&["workspace", "commit", "--only", "new"]);
    let taken = String::from_utf8_lossy(&taken.stdout).into_owned();
    assert_eq!(taken, "+ new/\n+ new/b %\n+ new/c\n");
    assert!(place.work("new/c").exists() && place.read("kept") == "kept\n");
    assert_eq!(place.end(&id, "").0, 200);
    let refused = place.remote(&["workspace", "discard"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(
        place
            .remote(&["workspace", "discard", "--yes"])
            .status
            .success()
    );
    assert!(!place.is_kept(&id));
}
