//! Cases A1 to A3 of the escape suite: a program inside plants links in its workspace and swaps names under the file
//! API, which must never follow them out. A canary lies outside; the control reads the same names as a careless server
//! would, and gets it.
//!
//! | case | test |
//! |---|---|
//! | A1 | `a1_an_absolute_link_is_followed_by_no_method_of_the_file_api` |
//! | A2 | `a2_a_file_swapped_for_a_link_during_the_open_is_never_followed` |
//! | A3 | `a3_a_folder_swapped_for_a_link_during_the_open_is_never_followed` |

use gateway_tests::{Folder, Server};
use robustness::full;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const CANARY: &str = "the canary";
const HARMLESS: &str = "harmless";

/// A server that shares a folder as workspace, a sandbox there, and a canary beside it.
struct Scene {
    server: Server,
    folder: Folder,
    sandbox: String,
}

impl Scene {
    fn new() -> Scene {
        let folder = Folder::new();
        let workspace = folder.at("workspace");
        for path in [&workspace, &folder.at("outside")] {
            fs::create_dir(path).expect("a folder");
            // An open door for whoever gets so far: only the way there may stop them.
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("its rights");
        }
        fs::write(folder.at("outside/name"), CANARY).expect("the canary");
        fs::set_permissions(folder.at("outside/name"), fs::Permissions::from_mode(0o666))
            .expect("its rights");
        let server = Server::with(
            &format!("[serve]\nfolders = [\"{}\"]\n", workspace.display()),
            &[],
        );
        let made = server.post("/v1/sandboxes", &json!({ "workspace": workspace }));
        assert_eq!(made.status, 201, "{}", made.text());
        let sandbox = format!(
            "/v1/sandboxes/{}",
            made.json()["sandbox_id"].as_str().expect("an id")
        );
        Scene {
            server,
            folder,
            sandbox,
        }
    }

    fn exec(&self, script: &str, background: bool) {
        let order = json!({ "command": ["python3", "-c", script], "background": background });
        let told = self.server.post(&format!("{}/exec", self.sandbox), &order);
        let went = if background {
            told.status == 201
        } else {
            told.json()["status"] == "succeeded"
        };
        assert!(went, "{}", told.text());
    }

    fn ask(&self, method: &str, path: &str) -> gateway_tests::Answer {
        let path = format!("{}/files{path}", self.sandbox);
        self.server
            .ask(&self.server.admin, method, &path, &[], &Value::Null)
    }

    fn put(&self, path: &str) -> u16 {
        let path = format!("{}/files{path}", self.sandbox);
        soak::upload(&self.server, &self.server.admin, &path, b"overwritten")
            .expect("an answer")
            .status
    }

    fn assert_untouched(&self) {
        let canary = fs::read_to_string(self.folder.at("outside/name"));
        assert_eq!(canary.expect("the canary lives"), CANARY);
        assert_eq!(
            fs::read_dir(self.folder.at("outside"))
                .expect("its folder")
                .count(),
            1,
            "nothing came beside it"
        );
    }

    fn workspace(&self) -> PathBuf {
        self.folder.at("workspace")
    }
}

#[test]
fn a1_an_absolute_link_is_followed_by_no_method_of_the_file_api() {
    let scene = Scene::new();
    let outside = scene.folder.at("outside");
    scene.exec(
        &format!(
            "import os; os.symlink('{0}/name', 'link'); os.symlink('{0}', 'folder'); open('own', 'w').write('{HARMLESS}')",
            outside.display()
        ),
        false,
    );
    let careless = fs::read_to_string(scene.workspace().join("link"));
    assert_eq!(
        careless.expect("the link leads there"),
        CANARY,
        "the control: whoever follows gets it"
    );
    assert_eq!(
        scene.ask("GET", "/own").text(),
        HARMLESS,
        "the positive control"
    );
    for path in [
        "/link",
        "/folder/name",
        "/folder",
        "/folder/",
        "/folder/../folder/name",
        "/%66older/name",
    ] {
        let answer = scene.ask("GET", path);
        assert!(
            (400..500).contains(&answer.status),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        assert!(!answer.text().contains(CANARY), "{path}: {}", answer.text());
    }
    assert!(
        !scene
            .ask("GET", "?recursive=true")
            .text()
            .contains("folder/name"),
        "a listing stays inside"
    );
    for path in ["/folder/name", "/folder/new"] {
        let status = scene.put(path);
        assert!((400..500).contains(&status), "{path}: {status}");
    }
    // The last name may be replaced; what it led to may not.
    scene.put("/link");
    scene.assert_untouched();
    assert!((400..500).contains(&scene.ask("DELETE", "/folder/name").status));
    scene.ask("DELETE", "/folder?recursive=true");
    scene.ask("DELETE", "/link");
    scene.assert_untouched();
}

/// Swaps `one` and `two` without end; the call has no other name in Python. One of them is a link to `target`, and is
/// made again where an upload took its place: it replaces a name, whatever that led to.
fn swapper(one: &str, two: &str, target: &Path) -> String {
    format!(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nwhile True:\n    \
         libc.renameat2(-100, b'{one}', -100, b'{two}', 2)\n    \
         if not os.path.islink('{one}') and not os.path.islink('{two}'):\n        \
         os.symlink('{}', 'fresh')\n        \
         os.replace('fresh', '{two}')\n",
        target.display()
    )
}

/// Tries until a careless reader has been led out often enough, and the API as often again.
fn race(scene: &Scene, careless: &Path, path: &str) {
    let rounds = if full() { 100_000 } else { 400 };
    let (mut led_out, mut stayed, mut refused) = (0_u32, 0_u32, 0_u32);
    // On a busy machine whoever swaps the names may not have had a turn yet: then it goes on.
    for round in 0..rounds * 50 {
        if round >= rounds && led_out > 0 && stayed > 0 && refused > 0 {
            break;
        }
        let answer = scene.ask("GET", path);
        assert!(
            !answer.text().contains(CANARY),
            "round {round}: {}",
            answer.text()
        );
        match answer.status {
            200 => stayed += 1,
            400..500 => refused += 1,
            status => panic!("round {round}: {status} {}", answer.text()),
        }
        if round % 8 == 0 {
            scene.put(path);
            scene.assert_untouched();
        }
        led_out += u32::from(fs::read_to_string(careless).is_ok_and(|text| text == CANARY));
    }
    println!(
        "{path}: a careless reader got out {led_out} times; the API answered {stayed} times, refused {refused} times"
    );
    assert!(
        led_out > 0,
        "the control: names were swapped, and following them leads out"
    );
    assert!(
        stayed > 0 && refused > 0,
        "both were met: {stayed} and {refused}"
    );
}

#[test]
fn a2_a_file_swapped_for_a_link_during_the_open_is_never_followed() {
    let scene = Scene::new();
    let canary = scene.folder.at("outside/name");
    scene.exec(
        &format!(
            "import os; os.symlink('{}', 'link'); open('name', 'w').write('{HARMLESS}')",
            canary.display()
        ),
        false,
    );
    scene.exec(&swapper("name", "link", &canary), true);
    race(&scene, &scene.workspace().join("name"), "/name");
    scene.assert_untouched();
}

#[test]
fn a3_a_folder_swapped_for_a_link_during_the_open_is_never_followed() {
    let scene = Scene::new();
    let outside = scene.folder.at("outside");
    scene.exec(
        &format!(
            "import os; os.symlink('{}', 'link'); os.mkdir('folder'); open('folder/name', 'w').write('{HARMLESS}')",
            outside.display()
        ),
        false,
    );
    scene.exec(&swapper("folder", "link", &outside), true);
    race(
        &scene,
        &scene.workspace().join("folder/name"),
        "/folder/name",
    );
    scene.assert_untouched();
}
