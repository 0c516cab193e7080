//! How the server starts and ends.

use gateway_tests::{LOUD, Server, refusal, serve};
use rustix::process::Signal;
use sdk_tests::{Who, ordinary};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Stdio},
};

#[test]
fn it_listens_with_a_key_and_runs_what_is_asked() {
    let mut server = Server::new();
    assert_eq!(
        server.ask("", "GET", "/healthz", &[], &json!(null)).text(),
        "ok\n"
    );
    assert_eq!(
        server.ask("", "GET", "/readyz", &[], &json!(null)).text(),
        "ready\n"
    );
    let answer = server.post(
        "/v1/runs",
        &json!({ "command": ["sh", "-c", "echo hello; exit 3"] }),
    );
    let result = answer.json();
    assert_eq!(
        (answer.status, &result["status"], &result["exit_code"]),
        (200, &json!("failed"), &json!(3))
    );
    assert_eq!(result["stdout"], "hello\n");
    let (status, said) = server.end(Signal::TERM);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    assert!(
        !fs::read_dir(server.folder.at("state/runs"))
            .unwrap()
            .any(|_| true),
        "no record is left"
    );
}

#[test]
fn a_second_server_is_refused_and_told_who_has_the_folder() {
    let server = Server::new();
    let said = refusal(&mut serve(&server.folder, "", &[]));
    assert!(
        said.contains(&format!("process {} at http://127.0.0.1:", server.pid)),
        "{said}"
    );
}

#[test]
fn other_machines_are_not_served_without_encryption() {
    let server = Server::new();
    let said = refusal(&mut serve(&server.folder, "", &["--listen", "0.0.0.0:0"]));
    assert!(said.contains("is reachable from other machines"), "{said}");
    let folder = gateway_tests::Folder::new();
    let open = Server::on(folder, "", &["--listen", "0.0.0.0:0", "--plain-http"], None);
    let gateway_tests::Client::Tcp(address) = &open.client else {
        panic!("a port")
    };
    let here = gateway_tests::Client::Tcp(([127, 0, 0, 1], address.port()).into());
    assert_eq!(
        here.open(&here.request("GET", "/healthz", &[], &json!(null)))
            .answer()
            .status,
        200
    );
}

#[test]
fn the_admins_key_is_printed_once_and_kept_only_as_a_hash() {
    let server = Server::new();
    assert!(server.admin.starts_with("alk_"));
    let (folder, admin) = (server.folder.at("state"), server.admin.clone());
    let secret = admin.rsplit('_').next().unwrap().to_owned();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        assert!(
            !bytes.windows(64).any(|part| part == secret.as_bytes()),
            "{}",
            path.display()
        );
    }
    let server = server.restart(Signal::TERM, "");
    assert_eq!(
        server.get("/v1/keys").status,
        200,
        "the same key is good, and no other was made"
    );
}

#[test]
fn the_admins_key_can_live_in_a_file_that_nobody_else_reads() {
    let server = Server::with("", &["--admin-key-file", "admin"]);
    let file = server.folder.at("admin");
    let key = fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(server.admin, "", "it is not printed");
    assert_eq!(
        server
            .ask(&key, "GET", "/v1/keys", &[], &json!(null))
            .status,
        200
    );

    let other = gateway_tests::Folder::new();
    fs::copy(&file, other.at("admin")).unwrap();
    fs::set_permissions(other.at("admin"), fs::Permissions::from_mode(0o600)).unwrap();
    let again = Server::on(other, "", &["--admin-key-file", "admin"], Some(key));
    assert_eq!(
        again.get("/v1/keys").status,
        200,
        "another server takes the same file"
    );
}

#[test]
fn a_key_file_that_others_read_or_that_is_a_link_is_refused() {
    let folder = gateway_tests::Folder::new();
    fs::write(folder.at("open"), "x").unwrap();
    fs::set_permissions(folder.at("open"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = refusal(&mut serve(&folder, "", &["--admin-key-file", "open"]));
    assert!(said.contains("other users can read it"), "{said}");
    std::os::unix::fs::symlink("elsewhere", folder.at("link")).unwrap();
    let said = refusal(&mut serve(&folder, "", &["--admin-key-file", "link"]));
    assert!(said.contains("cannot be used as the admin's key"), "{said}");
    assert!(!folder.at("elsewhere").exists());
}

#[test]
fn a_key_file_in_a_missing_folder_is_refused_by_its_folder() {
    let folder = gateway_tests::Folder::new();
    let said = refusal(&mut serve(
        &folder,
        "",
        &["--admin-key-file", "missing/key"],
    ));
    assert!(said.contains("a folder that exists"), "{said}");
    fs::create_dir(folder.at("missing")).unwrap();
    let server = Server::on(folder, "", &["--admin-key-file", "missing/key"], None);
    assert!(server.folder.at("missing/key").exists());
}

#[test]
fn a_busy_port_leaves_neither_a_key_nor_the_record_of_a_start() {
    let folder = gateway_tests::Folder::new();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = busy.local_addr().unwrap().to_string();
    let said = refusal(&mut serve(&folder, "", &["--listen", &place]));
    assert!(said.contains("cannot listen on"), "{said}");
    drop(busy);
    let mut server = Server::on(folder, "", &["--listen", &place, LOUD], None);
    assert_eq!(server.get("/v1/keys").status, 200, "the key is shown now");
    let keys = server.get("/v1/keys").json();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "{keys}");
    let (_, said) = server.end(Signal::TERM);
    assert!(said.contains("node_boot"), "{said}");
    assert!(!said.contains("the one before"), "{said}");
}

#[test]
fn a_start_that_was_refused_is_not_taken_for_killed() {
    let folder = gateway_tests::Folder::new();
    fs::write(folder.at("key"), "no key").unwrap();
    fs::set_permissions(folder.at("key"), fs::Permissions::from_mode(0o600)).unwrap();
    refusal(&mut serve(&folder, "", &["--admin-key-file", "key"]));
    let mut server = Server::on(folder, "", &[LOUD], None);
    let (_, said) = server.end(Signal::TERM);
    assert!(said.contains("the one before ended: not started"), "{said}");

    // The control: one that was killed is taken for killed.
    let mut killed = Server::new();
    let admin = killed.admin.clone();
    killed.end(Signal::KILL);
    let folder = std::mem::replace(&mut killed.folder, gateway_tests::Folder::new());
    let mut server = Server::on(folder, "", &[LOUD], Some(admin));
    let (_, said) = server.end(Signal::TERM);
    assert!(said.contains("the one before ended: killed"), "{said}");
}

#[test]
fn a_start_without_a_key_to_show_says_how_to_make_one() {
    let mut first = Server::new();
    first.end(Signal::TERM);
    let state = first.folder.at("state");
    let mut again = Command::new(cli::airlock())
        .args(["serve", "--quiet", "--listen", "127.0.0.1:0", "--pool", "0"])
        .arg("--state")
        .arg(&state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(again.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("listen "), "{line}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&again), Signal::TERM).unwrap();
    let said = again.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr);
    let command = format!(
        "`airlock key create --name NAME --scope admin --state {}`",
        state.display()
    );
    assert!(said.contains(&command), "{said}");
    let made = Command::new(cli::airlock())
        .args([
            "key", "create", "--name", "me", "--scope", "admin", "--state",
        ])
        .arg(&state)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let mut server = Server::with("", &["--listen", "unix:sock"]);
    let socket = server.folder.at("sock");
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    // The path is relative to where it was started.
    server.client = gateway_tests::Client::Unix(socket.clone());
    assert_eq!(server.get("/v1/keys").status, 200);
    server.end(Signal::INT);
    assert!(!socket.exists());
}

#[test]
fn a_unix_socket_is_its_owners_alone() {
    let server = Server::with("", &["--listen", "unix:sock"]);
    let socket = server.folder.at("sock");
    let Some(Who::Ordinary(user, group)) = ordinary("others do not reach a socket of the server's")
    else {
        return;
    };
    let ask = |others: bool| {
        let mut command = Command::new("curl");
        command.args([
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "http://localhost/healthz",
            "--unix-socket",
        ]);
        command.arg(&socket).current_dir("/");
        if others {
            command.uid(user).gid(group);
        }
        String::from_utf8(command.output().expect("curl runs").stdout).expect("text")
    };
    assert_eq!(
        (ask(false), ask(true)),
        ("200".to_owned(), "000".to_owned())
    );
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(
        ask(true),
        "200",
        "the control: it is the mode that keeps him out"
    );
}
