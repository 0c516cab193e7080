//! Folders that the operator shares, with a program inside that is at war with whoever names them: it swaps a folder for
//! a link while other sandboxes are asked for there. Not one of them may get what the link leads to.

use abuse::full;
use gateway_tests::{Folder, Server};
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
    [&shared, &outside].into_iter().for_each(|path| open_to_all(path));
    fs::write(outside.join("name"), CANARY).expect("the canary");
    let server = Server::with(&format!("[serve]\nfolders = [\"{}\"]\n", shared.display()), &[]);
    let attacker = server.post("/v1/sandboxes", &json!({ "workspace": shared }));
    assert_eq!(attacker.status, 201, "{}", attacker.text());
    let id = attacker.json()["sandbox_id"].as_str().expect("an id").to_owned();
    let script = format!(
        "import os, ctypes\nos.mkdir('d'); open('d/name', 'w').write('{HARMLESS}'); os.symlink('{}', 'l')\n\
         libc = ctypes.CDLL(None)\nwhile True: libc.renameat2(-100, b'd', -100, b'l', 2)\n",
        outside.display()
    );
    let order = json!({ "command": ["python3", "-c", script], "background": true });
    assert_eq!(server.post(&format!("/v1/sandboxes/{id}/exec"), &order).status, 201);
    let named = shared.join("d");
    while fs::symlink_metadata(&named).is_err() {
        std::thread::yield_now();
    }
    let (mut was_link, mut went, mut refused) = (0_u32, 0_u32, 0_u32);
    for round in 0..if full() { 5000 } else { 240 } {
        let mut order = json!({ "command": ["sh", "-c", "cat name; echo x > mine-too"], "workspace": named });
        match round % 3 {
            0 => {}
            1 => order["copy_on_write"] = true.into(),
            _ => {
                order =
                    json!({ "command": ["cat", "/m/name"], "mounts": [format!("{}:/m", named.display())] });
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
    println!("the path was a link {was_link} times; {went} runs saw the folder, {refused} were refused");
    assert!(was_link > 0, "the control: whoever follows the path is led out");
    assert!(refused > 0, "the link was met");
    server.delete(&format!("/v1/sandboxes/{id}"));
    let calm =
        server.post("/v1/runs", &json!({ "command": ["cat", "name"], "workspace": folder_of(&shared) }));
    assert_eq!(calm.json()["stdout"], HARMLESS, "the positive control: {}", calm.text());
}

/// Which of the two names is the folder by now.
fn folder_of(shared: &Path) -> std::path::PathBuf {
    let names = ["d", "l"].map(|name| shared.join(name));
    let is_folder = |path: &std::path::PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    names.into_iter().find(is_folder).expect("the folder is one of them")
}
