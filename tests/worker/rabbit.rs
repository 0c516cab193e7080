//! RabbitMQ with AMQP 1.0. It takes some twenty seconds to start, so a process has one.

use crate::{
    NAMESPACE,
    brokers::listens,
    place::{Folder, free_port, keep, start, until_started},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command},
    sync::OnceLock,
};

/// The broker, with the directory of Erlang's nodes that it needs.
#[derive(Debug)]
pub struct Rabbit {
    /// Where it listens.
    pub port: u16,
    _folder: Folder,
    _names: Child,
    _broker: Child,
}

impl Rabbit {
    /// The one of this process; it ends with it.
    pub fn running() -> &'static Rabbit {
        static RUNNING: OnceLock<Rabbit> = OnceLock::new();
        RUNNING.get_or_init(Rabbit::start)
    }

    /// As `SAM_TRANSPORT` has it.
    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }

    fn start() -> Rabbit {
        let folder = Folder::new();
        let (port, names_port) = (free_port(), free_port());
        let log = folder.at("rabbit.log");
        fs::create_dir(folder.at("mnesia")).expect("a folder");
        fs::write(folder.at("plugins"), "[rabbitmq_amqp1_0].\n").expect("a list of plugins");
        fs::write(folder.at("definitions.json"), definitions().to_string()).expect("what there is");
        let definitions = folder.at("definitions.json");
        let config = format!(
            "loopback_users = none\nload_definitions = {}\n",
            definitions.display()
        );
        fs::write(folder.at("rabbit.conf"), config).expect("a configuration");
        let mut names = Command::new("epmd");
        names.args(["-address", "127.0.0.1", "-port", &names_port.to_string()]);
        names.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut names = start("KILL", &names);
        listens(&mut names, "epmd", names_port, &log);
        let mut broker = start("KILL", &server(&folder, port, names_port));
        keep(broker.stderr.take().expect("it is ours"), &log);
        keep(broker.stdout.take().expect("it is ours"), &log);
        listens(&mut broker, "RabbitMQ", port, &log);
        // It listens a little before it takes callers.
        until_started("RabbitMQ has started", || {
            fs::read_to_string(&log)
                .ok()?
                .contains("completed with")
                .then_some(())
        });
        Rabbit {
            port,
            _folder: folder,
            _names: names,
            _broker: broker,
        }
    }
}

/// A user, and the queue of a pool, with the topics that it takes: on such a broker an operator makes it.
fn definitions() -> Value {
    // Of the password `guest`.
    let hash = "AQIDBEMMOXwY6PKx/JKP9PAqfsb4ozuD0Ta3pxxa9gEYBMmD";
    let queue = format!("{NAMESPACE}/q/str/worker-of-tests");
    let key = format!(
        "{}.a2a.v1.sam_remote_tool.invoke.#",
        NAMESPACE.replace('/', ".")
    );
    json!({
        "users": [{"name": "guest", "password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "administrator"}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"name": queue, "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}],
        "bindings": [{"source": "amq.topic", "vhost": "/", "destination": queue, "destination_type": "queue", "routing_key": key, "arguments": {}}],
    })
}

fn server(folder: &Folder, port: u16, names_port: u16) -> Command {
    let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
    let path = |name: &str| folder.at(name).into_os_string();
    let number = |number: u16| number.to_string().into();
    let set: [(&str, std::ffi::OsString); 15] = [
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("HOME", PathBuf::from(folder.path()).into()),
        (
            "RABBITMQ_NODENAME",
            format!("airlock{port}@localhost").into(),
        ),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_NODE_PORT", number(port)),
        ("RABBITMQ_DIST_PORT", number(free_port())),
        ("RABBITMQ_MNESIA_BASE", path("mnesia")),
        ("RABBITMQ_LOGS", "-".into()),
        ("RABBITMQ_PID_FILE", path("pid")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")),
        ("RABBITMQ_CONFIG_FILE", path("rabbit")),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("ERL_EPMD_PORT", number(names_port)),
        // The script becomes the broker, which is then what ends with us.
        ("RABBITMQ_ALLOW_INPUT", "1".into()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-noinput -kernel inet_dist_use_interface {127,0,0,1}".into(),
        ),
    ];
    command.envs(set);
    command
}
