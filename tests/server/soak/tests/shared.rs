//! Folders that the operator shares, with a program inside that is at war with whoever names them: it swaps a folder for
//! a link while other sandboxes are asked for there. Not one of them may get what the link leads to.

use gateway_tests::{Folder, Server};
use robustness::full;
use serde_json::json;
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

const CANARY: &str = "the canary";
const HARMLESS: &str = "harmless";

fn open_to_all(path: &Path) {
    fs::create_dir(path).expect("a folder");
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("its rights");
}

#[test]
fn a_shared_folder_swapped_for_a_link_is_never_what_the_link_leads_to() {
    let folder = Folder::new();
    let (shared, outside) = (folder.at("shared"), folder.at("outside"));
    [&shared, &outside]
        .into_iter()
        .for_each(|path| open_to_all(path));
    fs::write(outside.join("name"), CANARY).expect("the canary");
    let server = Server::with(
        &format!("[serve]\nfolders = [\"{}\"]\n", shared.display()),
        &[],
    );
    let attacker = server.post("/v1/sandboxes", &json!({ "workspace": shared }));
    assert_eq!(attacker.status, 201, "{}", attacker.text());
    let id = attacker.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let script = format!(
        "import os, ctypes\nos.mkdir('d'); open('d/name', 'w').write('{HARMLESS}'); os.symlink('{}', 'l')\n\
         libc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'd', -100, b'l', 2)\n",
        outside.display()
    );
    let order = json!({ "command": ["python3", "-c", script], "background": true });
    assert_eq!(
        server
            .post(&format!("/v1/sandboxes/{id}/exec"), &order)
            .status,
        201
    );
    let named = shared.join("d");
    while fs::symlink_metadata(&named).is_err() {
        std::thread::yield_now();
    }
    let (mut was_link, mut went, mut refused) = (0_u32, 0_u32, 0_u32);
    for round in 0..if full() { 5000 } else { 240 } {
        let mut order =
            json!({ "command": ["sh", "-c", "cat name; echo x > mine-too"], "workspace": named });
        match round % 3 {
            0 => {}
            1 => order["copy_on_write"] = true.into(),
            _ => {
                order = json!({ "command": ["cat", "/m/name"], "mounts": [format!("{}:/m", named.display())] });
            }
        }
        let answer = server.post("/v1/runs", &order);
        was_link += u32::from(fs::symlink_metadata(&named).is_ok_and(|found| found.is_symlink()));
        let text = answer.text();
        assert!(!text.contains(CANARY), "round {round}: {text}");
        went += u32::from(text.contains(HARMLESS));
        refused += u32::from(text.contains("policy_denied"));
        assert_eq!(
            fs::read_dir(&outside).expect("its folder").count(),
            1,
            "round {round}: nothing came there"
        );
    }
    println!(
        "the path was a link {was_link} times; {went} runs saw the folder, {refused} were refused"
    );
    assert!(
        was_link > 0,
        "the control: whoever follows the path is led out"
    );
    assert!(refused > 0, "the link was met");
    server.delete(&format!("/v1/sandboxes/{id}"));
    let calm = server.post(
        "/v1/runs",
        &json!({ "command": ["cat", "name"], "workspace": folder_of(&shared) }),
    );
    assert_eq!(
        calm.json()["stdout"],
        HARMLESS,
        "the positive control: {}",
        calm.text()
    );
}

/// Which of the two names is the folder by now.
fn folder_of(shared: &Path) -> std::path::PathBuf {
    let names = ["d", "l"].map(|name| shared.join(name));
    let is_folder =
        |path: &std::path::PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    names
        .into_iter()
        .find(is_folder)
        .expect("the folder is one of them")
}

/// A sandbox in a shared folder, and how its files are asked for.
struct Files {
    server: Server,
    at: String,
}

impl Files {
    fn new(shared: &Path, order: serde_json::Value) -> Files {
        let server = Server::with(
            &format!("[serve]\nfolders = [\"{}\"]\n", shared.display()),
            &[],
        );
        let made = server.post("/v1/sandboxes", &order);
        assert_eq!(made.status, 201, "{}", made.text());
        let at = format!(
            "/v1/sandboxes/{}",
            made.json()["sandbox_id"].as_str().expect("an id")
        );
        Files { server, at }
    }

    fn put(&self, path: &str) -> u16 {
        let path = format!("{}/files/{path}", self.at);
        soak::upload(&self.server, &self.server.admin, &path, b"put")
            .expect("an answer")
            .status
    }

    fn remove(&self, path: &str) -> u16 {
        self.server
            .delete(&format!("{}/files/{path}", self.at))
            .status
    }

    fn run(&self, script: &str) -> String {
        let told = self.server.post(
            &format!("{}/exec", self.at),
            &json!({ "command": ["sh", "-c", script] }),
        );
        told.json()["stdout"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

#[test]
fn what_is_protected_from_a_program_is_protected_from_the_files_api_and_from_inputs() {
    let folder = Folder::new();
    let shared = folder.at("shared");
    open_to_all(&shared);
    fs::create_dir_all(shared.join(".git/hooks")).expect("a repository");
    fs::write(shared.join(".git/hooks/post-commit"), HARMLESS).expect("a hook");
    let files = Files::new(
        &shared,
        json!({ "workspace": shared, "allow_protected": [".envrc"] }),
    );
    for path in [
        ".git/hooks/x",
        ".git/config",
        ".vscode/tasks.json?mkdir=true",
        ".bashrc",
        "sub/.git/config?mkdir=true",
    ] {
        assert_eq!(files.put(path), 403, "{path}");
    }
    for path in [
        ".git/hooks?recursive=true",
        ".git?recursive=true",
        ".git/hooks/post-commit",
        ".vscode",
    ] {
        assert_eq!(files.remove(path), 403, "{path}");
    }
    let inside =
        files.run("echo x > .git/hooks/y 2> /dev/null || echo held; cat .git/hooks/post-commit");
    assert_eq!(
        inside,
        format!("held\n{HARMLESS}"),
        "the mounts are still there"
    );
    // The positive control: other names, and one that was lifted.
    for path in ["file", ".envrc"] {
        assert_eq!(files.put(path), 201, "{path}");
        assert_eq!(files.remove(path), 204, "{path}");
    }
    let run = |name: &str| {
        let order = json!({ "command": ["true"], "workspace": shared, "inputs": [{ "name": name, "text": "x" }] });
        files.server.post("/v1/runs", &order)
    };
    let refused = run(".git/hooks/x");
    assert!(
        refused.text().contains("policy_denied"),
        "{}",
        refused.text()
    );
    assert!(!shared.join(".git/hooks/x").exists());
    assert_eq!(run("input").json()["status"], "succeeded");
}

#[test]
fn in_a_users_folder_a_server_of_roots_does_no_more_than_the_user_may() {
    // A server of an ordinary user has nothing that it could do beyond him.
    if !fs::metadata("/proc/self")
        .is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
    {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root acts for others"
        );
        println!("NOT TESTED: only root acts for others");
        return;
    }
    let folder = Folder::new();
    let shared = folder.at("shared");
    open_to_all(&shared);
    fs::write(shared.join("secret"), CANARY).expect("root's file");
    fs::set_permissions(shared.join("secret"), fs::Permissions::from_mode(0o600))
        .expect("its rights");
    fs::create_dir(shared.join("rootdir")).expect("root's folder");
    fs::write(shared.join("rootdir/run.sh"), HARMLESS).expect("root's script");
    std::os::unix::fs::chown(&shared, Some(4242), Some(4242)).expect("the user's folder");
    let files = Files::new(&shared, json!({ "workspace": shared }));
    let got = files.server.get(&format!("{}/files/secret", files.at));
    assert_eq!(
        (got.status, got.text().contains(CANARY)),
        (403, false),
        "{}",
        got.text()
    );
    assert_eq!(files.put("rootdir/run.sh"), 403);
    assert_eq!(files.remove("rootdir/run.sh"), 403);
    assert_eq!(files.remove("rootdir?recursive=true"), 403);
    assert_eq!(
        fs::read_to_string(shared.join("rootdir/run.sh")).expect("it lives"),
        HARMLESS
    );
    // The positive control: what the user may.
    assert_eq!(files.put("own"), 201);
    assert_eq!(
        files
            .server
            .get(&format!("{}/files/rootdir/run.sh", files.at))
            .text(),
        HARMLESS
    );
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(
            &fs::metadata(shared.join("own")).expect("it is there")
        ),
        4242
    );
    let forked = files.server.post(&format!("{}/fork", files.at), &json!({}));
    assert_eq!(forked.status, 201, "{}", forked.text());
    let fork = forked.json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let order = json!({ "command": ["sh", "-c", "cat own secret"] });
    let told = files
        .server
        .post(&format!("/v1/sandboxes/{fork}/exec"), &order);
    assert_eq!(
        told.json()["stdout"],
        "put",
        "the copy has the user's file and not root's: {}",
        told.text()
    );
    let order = json!({ "command": ["true"], "workspace": shared, "artifacts": ["secret", "own"] });
    let ran = files.server.post("/v1/runs", &order).json();
    let kept = ran["artifacts"].as_array().expect("a list");
    assert_eq!((kept.len(), &kept[0]["name"]), (1, &json!("own")), "{ran}");
    assert!(
        ran["notes"].to_string().contains("`secret` was not kept"),
        "{ran}"
    );
}
