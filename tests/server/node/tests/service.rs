//! The server as a service: what its manager is told and when, the unit, and who may be overwritten.

use gateway_tests::serve;
use node_tests::{Folder, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::{Command, Output, Stdio},
    time::Duration,
};

fn heard(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let count = socket
        .recv(&mut buffer)
        .expect("the manager is told something");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

/// A socket of the manager's, and the server that it starts.
fn managed(socket: UnixDatagram, name: &str, watchdog: Option<&str>) -> (UnixDatagram, Server) {
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a socket");
    let folder = Folder::new();
    let mut command = serve(&folder, "", &[]);
    command.env("NOTIFY_SOCKET", name);
    if let Some(patience) = watchdog {
        command.env("WATCHDOG_USEC", patience);
    }
    (socket, Server::started(command, folder, None))
}

#[test]
fn a_manager_is_told_when_it_listens_that_it_lives_and_when_it_stops() {
    let place = Folder::new();
    let path = place.at("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let (socket, mut server) = managed(socket, path.to_str().expect("text"), Some("300000"));
    let ready = heard(&socket);
    assert!(
        ready.starts_with("READY=1\nSTATUS=listening on http://127.0.0.1:"),
        "{ready}"
    );
    assert_eq!(server.get("/healthz").status, 200);
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success());
    let words = std::iter::from_fn(|| Some(heard(&socket))).find(|word| word != "WATCHDOG=1\n");
    assert!(words.expect("it says so").starts_with("STOPPING=1\n"));
}

#[test]
fn a_manager_with_an_abstract_socket_is_told_and_one_that_is_gone_does_no_harm() {
    let name = format!("airlock-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let socket = UnixDatagram::bind_addr(&address).expect("a socket");
    let (socket, server) = managed(socket, &format!("@{name}"), None);
    assert!(heard(&socket).starts_with("READY=1\n"));
    // Without a watchdog there is nothing more to hear, and without a manager nobody to tell.
    drop(socket);
    assert_eq!(server.get("/healthz").status, 200);
    drop(server);
    let folder = Folder::new();
    let mut command = serve(&folder, "", &[]);
    command.env("NOTIFY_SOCKET", "/nowhere/at/all");
    assert_eq!(
        Server::started(command, folder, None)
            .get("/healthz")
            .status,
        200
    );
}

/// `airlock service` of a user whose home is this folder.
fn service(home: &Folder, words: &[&str]) -> Output {
    let mut command = Command::new(cli::airlock());
    command
        .arg("service")
        .args(words)
        .env_clear()
        .env("HOME", &home.0)
        .current_dir(&home.0);
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null());
    command.output().expect("airlock starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn shown(home: &Folder, output: &Output) -> String {
    let program = cli::airlock();
    text(output)
        .replace(home.0.to_str().expect("text"), "HOME")
        .replace(program.to_str().expect("text"), "AIRLOCK")
}

#[test]
fn a_unit_is_written_once_and_again_only_if_it_changes() {
    let home = Folder::new();
    let unit = home.at(".config/systemd/user/airlock.service");
    let dry = service(&home, &["install", "--user", "--dry-run"]);
    assert!(dry.status.success() && !unit.exists(), "{dry:?}");
    assert_eq!(
        shown(&home, &dry),
        "would write  HOME/.config/airlock/config.toml\nwould write  HOME/.config/systemd/user/airlock.service\n"
    );
    let first = service(&home, &["install", "--user", "--json"]);
    let steps: Value = serde_json::from_str(&text(&first)).expect("JSON");
    let what: Vec<_> = steps["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| &step["what"])
        .collect();
    assert_eq!(json!(what), json!(["wrote", "wrote"]));
    let written = fs::read_to_string(&unit).expect("the unit");
    assert_eq!(written, text(&service(&home, &["print-unit", "--user"])));
    assert!(shown(&home, &service(&home, &["install", "--user"])).starts_with("unchanged"));
    fs::write(
        home.at(".config/airlock/config.toml"),
        "[serve]\ngrace = \"40s\"\n",
    )
    .expect("a configuration");
    assert!(
        shown(
            &home,
            &service(&home, &["install", "--user", "--listen", "unix:/run/x y"])
        )
        .starts_with("wrote")
    );
    let changed = fs::read_to_string(&unit).expect("the unit");
    assert!(
        changed.contains("--listen \"unix:/run/x y\"\n") && changed.contains("TimeoutStopSec=70\n"),
        "{changed}"
    );
    let status = service(&home, &["status", "--user", "--json"]);
    let told: Value = serde_json::from_str(&text(&status)).expect("JSON");
    assert_eq!(
        (&told["installed"], &told["ours"], status.status.code()),
        (&json!(true), &json!(true), Some(0))
    );
    // Drafts are gone.
    let left: Vec<_> = fs::read_dir(unit.parent().expect("a folder"))
        .expect("a folder")
        .collect();
    assert_eq!(left.len(), 1);
    assert!(service(&home, &["uninstall", "--user"]).status.success() && !unit.exists());
    assert!(
        home.at(".config/airlock/config.toml").exists(),
        "settings stay"
    );
    assert!(shown(&home, &service(&home, &["uninstall", "--user"])).starts_with("absent"));
    assert_eq!(service(&home, &["status", "--user"]).status.code(), Some(1));
}

#[test]
fn what_is_not_ours_is_neither_overwritten_nor_removed() {
    let home = Folder::new();
    let unit = home.at(".config/systemd/user/airlock.service");
    fs::create_dir_all(unit.parent().expect("a folder")).expect("folders");
    for foreign in ["[Service]\nExecStart=/bin/true\n", ""] {
        fs::write(&unit, foreign).expect("a unit of somebody's");
        for words in [&["install", "--user"][..], &["uninstall", "--user"]] {
            let refused = service(&home, words);
            assert_eq!(refused.status.code(), Some(125), "{refused:?}");
            assert!(String::from_utf8_lossy(&refused.stderr).contains("was not written by"));
            assert_eq!(fs::read_to_string(&unit).expect("it is there"), foreign);
        }
    }
    fs::remove_file(&unit).expect("it is ours");
    std::os::unix::fs::symlink("/dev/null", &unit).expect("as `systemctl mask` does");
    assert_eq!(
        service(&home, &["install", "--user"]).status.code(),
        Some(125)
    );
}

#[test]
fn nothing_below_a_root_leads_out_of_it_and_no_link_is_replaced() {
    let link = |to: &std::path::Path, from: &std::path::Path| {
        fs::create_dir_all(from.parent().expect("a folder")).expect("folders");
        std::os::unix::fs::symlink(to, from).expect("a link");
    };
    for linked in [
        "etc",
        "etc/systemd",
        "etc/systemd/system",
        "etc/airlock",
        "etc/airlock/config.toml",
    ] {
        let (root, outside) = (Folder::new(), Folder::new());
        link(&outside.0, &root.at(linked));
        let refused = service(
            &root,
            &["install", "--root", root.0.to_str().expect("text")],
        );
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(125) && said.contains("may lead out of"),
            "{linked}: {said}"
        );
        assert_eq!(
            fs::read_dir(&outside.0).expect("a folder").count(),
            0,
            "{linked}"
        );
    }
    let home = Folder::new();
    let config = home.at(".config/airlock/config.toml");
    link(&home.at("nowhere"), &config);
    let refused = service(&home, &["install", "--user"]);
    assert!(
        refused.status.code() == Some(125) && config.is_symlink(),
        "{refused:?}"
    );
    fs::write(home.at("nowhere"), "").expect("it can be written");
    assert!(
        service(&home, &["install", "--user"]).status.success(),
        "the control"
    );
    assert!(config.is_symlink());
}

#[test]
fn names_and_places_cannot_break_out_and_a_bad_configuration_is_refused_now() {
    let home = Folder::new();
    for name in ["", "../x", "a/b", ".hidden", "a b", "a\nb", "-x"] {
        let refused = service(&home, &["print-unit", "--user", &format!("--name={name}")]);
        assert_ne!(refused.status.code(), Some(0), "{name:?}");
    }
    let refused = service(
        &home,
        &["print-unit", "--user", "--listen", "unix:/x\nUser=nobody"],
    );
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    fs::create_dir_all(home.at(".config/airlock")).expect("folders");
    fs::write(
        home.at(".config/airlock/config.toml"),
        "[serve]\ngrce = \"4s\"\n",
    )
    .expect("a configuration");
    let refused = service(&home, &["install", "--user"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("did you mean `grace`?"),
        "{refused:?}"
    );
}

#[test]
fn a_unit_of_the_machine_says_what_it_must_and_systemd_understands_it() {
    let root = Folder::new();
    let place = root.0.to_str().expect("text").to_owned();
    let installed = service(
        &root,
        &[
            "install",
            "--root",
            &place,
            "--name",
            "node",
            "--node",
            "/etc/node.yaml",
        ],
    );
    assert!(installed.status.success(), "{installed:?}");
    assert!(root.at("etc/node/config.toml").exists());
    let unit = root.at("etc/systemd/system/node.service");
    let program = cli::airlock();
    let text = fs::read_to_string(&unit)
        .expect("the unit")
        .replace(program.to_str().expect("text"), "/usr/bin/airlock");
    let start = "ExecStart=/usr/bin/airlock serve --config /etc/node/config.toml --state /var/lib/node \
                 --admin-key-file /var/lib/node/admin-key --node /etc/node.yaml\n";
    for line in [
        start,
        "Type=notify\n",
        "KillMode=mixed\n",
        "Delegate=cpu memory pids\n",
        "Restart=on-failure\n",
        "TimeoutStopSec=35\n",
        "StateDirectory=node\n",
        "LogsDirectory=node\n",
        "NoNewPrivileges=yes\n",
        "WantedBy=multi-user.target\n",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line}{text}");
    }
    let Ok(verified) = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&unit)
        .output()
    else {
        println!("skipped: there is no systemd-analyze here");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(
        verified.status.success() && !said.contains("node.service"),
        "{said}"
    );
    // The control: it does notice.
    let broken = root.at("etc/systemd/system/broken.service");
    fs::write(
        &broken,
        text.replace("KillMode=mixed", "KillMode=sometimes"),
    )
    .expect("a unit");
    let noticed = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&broken)
        .output();
    assert!(
        String::from_utf8_lossy(&noticed.expect("it starts").stderr).contains("broken.service")
    );
}
