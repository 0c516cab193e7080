//! The options of `airlock run`, and their conversion to a request.

use super::{super::message::Failure, Identity};
use crate::config::ProcessEnv;
use clap::Args;
use spec::{
    Backend, Barrier, Budget, Contract, Cpus, LimitSet, Money, Network, Policy, Profile,
    RunRequest, Size, Time, User,
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  airlock run -- python3 -c 'print(\"hello from inside\")'
  airlock run --workspace . --timeout 30s --memory 1G -- make test
  airlock run --mount data:/data --env LANG=C.UTF-8 -- ls /data
  airlock run --artifact out.txt -- sh -c 'date > out.txt'
  airlock run --workspace . --json -- ./untrusted | jq .status
  airlock run --explain -- true
  airlock run --tty -- bash
  airlock run --workspace . --llm=anthropic --budget-usd 0.50 -- python3 agent.py
  airlock run --inference -- curl -s localhost:11434/api/tags
  airlock run --workspace . --allow-host pypi.org --allow-host '*.pythonhosted.org' -- ./build.sh
  airlock run --workspace . --learn -- ./build.sh
  echo hello | airlock run --stdin -- tr a-z A-Z";

const STATUSES: &str = "\
Exit status:
  the program's own    the program ran
  1                    the program exited with 0, but its output breaks --contract
  123                  the program exited with 0, but not all of its changes could be applied
  124                  stopped after --timeout
  125                  Airlock refused or failed; the program did not start
  126, 127             the command cannot be executed, or was not found
  128+N                killed by signal N; 137 also at the memory limit
  130                  cancelled with Ctrl-C";

const SANDBOX_HEADING: &str = "The sandbox";
const LIMITS_HEADING: &str = "Limits";
const FILES_HEADING: &str = "Files";
const DOORS_HEADING: &str = "Doors";
const OUTPUT_HEADING: &str = "Output and identifiers";

/// Run a command in a fresh sandbox
///
/// The command sees the host's /usr read-only, an empty /workspace, no network, none of your
/// environment and none of your processes. Options below grant more.
#[derive(Args, Clone, Debug, Default)]
#[group(id = "run_options")]
#[command(override_usage = "airlock run [OPTIONS] -- COMMAND [ARG]...",
          after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct Options {
    /// Profile: restrictive, standard, permissive, agent, or one of your own [default: restrictive]
    #[arg(long, value_name = "NAME", help_heading = SANDBOX_HEADING)]
    profile: Option<String>,
    /// Backend: native, docker, podman, or container for either of the two
    #[arg(long, value_name = "NAME", help_heading = SANDBOX_HEADING)]
    backend: Option<String>,
    /// Image to run in instead of the host's /usr; a folder if it begins with a dot or slash
    #[arg(long, value_name = "REF|DIR", help_heading = SANDBOX_HEADING)]
    image: Option<PathBuf>,
    /// Program to run before the command instead of the image's entrypoint; '' for none
    #[arg(long, value_name = "PROGRAM", help_heading = SANDBOX_HEADING)]
    entrypoint: Option<OsString>,
    /// Let the program write to a temporary copy of the image's files
    #[arg(long, help_heading = SANDBOX_HEADING)]
    writable_root: bool,
    /// Network: none; doors, only granted doors; open, every public host by TCP; or host, which
    /// removes the network barrier
    #[arg(long, value_name = "MODE", help_heading = SANDBOX_HEADING)]
    network: Option<Network>,
    /// Internal network of docker or podman to join
    #[arg(long, value_name = "NAME", help_heading = SANDBOX_HEADING)]
    internal_network: Option<String>,
    /// User inside, by number [default: the image's user, else 1000:1000]
    #[arg(long, value_name = "UID[:GID]", help_heading = SANDBOX_HEADING)]
    user: Option<User>,
    /// Set a variable inside; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = SANDBOX_HEADING)]
    env: Vec<OsString>,
    /// Pass one of your own variables by name; repeatable
    #[arg(long, value_name = "NAME", help_heading = SANDBOX_HEADING)]
    env_from: Vec<OsString>,
    /// Set a variable inside to a stored secret; not with the profile restrictive; repeatable
    #[arg(long, value_name = "NAME=VARIABLE", help_heading = SANDBOX_HEADING)]
    secret: Vec<OsString>,
    /// Refuse to run unless this barrier can be enforced; repeatable
    #[arg(long, value_name = "BARRIER", help_heading = SANDBOX_HEADING)]
    require: Vec<Barrier>,

    /// Timeout by the clock, such as 30s or 5m
    #[arg(long, value_name = "TIME", help_heading = LIMITS_HEADING)]
    timeout: Option<Time>,
    /// Memory of all processes together, such as 512M
    #[arg(long, value_name = "SIZE", help_heading = LIMITS_HEADING)]
    memory: Option<Size>,
    /// Share of CPUs, such as 1.5
    #[arg(long, value_name = "NUMBER", help_heading = LIMITS_HEADING)]
    cpus: Option<Cpus>,
    /// CPU time of all processes together
    #[arg(long, value_name = "TIME", help_heading = LIMITS_HEADING)]
    cpu_time: Option<Time>,
    /// Processes and threads
    #[arg(long, value_name = "NUMBER", help_heading = LIMITS_HEADING)]
    pids: Option<u32>,
    /// Largest single file
    #[arg(long, value_name = "SIZE", help_heading = LIMITS_HEADING)]
    file_size: Option<Size>,
    /// Open files of each process
    #[arg(long, value_name = "NUMBER", help_heading = LIMITS_HEADING)]
    open_files: Option<u32>,
    /// /tmp, /dev/shm, the home folder and a fresh workspace, together
    #[arg(long, value_name = "SIZE", help_heading = LIMITS_HEADING)]
    disk: Option<Size>,
    /// Maximum size of each output stream in the result
    #[arg(long, value_name = "SIZE", help_heading = LIMITS_HEADING)]
    output: Option<Size>,

    /// Your folder to show at /workspace: :staged applies changes when the program ends (the
    /// default), :live at once, :ro never [default: an empty temporary folder]
    #[arg(long, value_name = "DIR[:MODE]", help_heading = FILES_HEADING)]
    workspace: Option<PathBuf>,
    /// Accept a home or system folder as the workspace
    #[arg(long, requires = "workspace", help_heading = FILES_HEADING)]
    pub(in crate::cli) confirm_workspace: bool,
    /// Do not change the folder; keep the program's changes for `airlock workspace`
    #[arg(long, requires = "workspace", help_heading = FILES_HEADING)]
    copy_on_write: bool,
    /// Show a file or folder inside, read-only unless :rw; repeatable
    #[arg(long, value_name = "HOST:INSIDE[:ro|rw]", help_heading = FILES_HEADING)]
    mount: Vec<OsString>,
    /// Follow symbolic links below the current folder in --workspace, --mount, --input and --image
    #[arg(long, help_heading = FILES_HEADING)]
    pub(in crate::cli) follow_links: bool,
    /// Show a volume of docker or podman inside, read-only unless :rw; repeatable
    #[arg(long, value_name = "NAME:INSIDE[:ro|rw]", help_heading = FILES_HEADING)]
    volume: Vec<OsString>,
    // Not a doc comment: rustdoc would take the brackets for a link.
    #[arg(long, value_name = "NAME=FILE", help_heading = FILES_HEADING,
          help = "Put a file, or artifact:NAME[@VERSION], into /workspace first; repeatable")]
    input: Vec<OsString>,
    /// Keep this file or folder of /workspace as an artifact; repeatable
    #[arg(long, value_name = "PATH", help_heading = FILES_HEADING)]
    artifact: Vec<PathBuf>,
    /// Let the program write a protected name of the workspace, such as .envrc; repeatable
    #[arg(long, value_name = "NAME", help_heading = FILES_HEADING)]
    allow_protected: Vec<PathBuf>,
    /// Hide files of the workspace in addition to .env, keys and other credentials; `none` hides
    /// none of those; repeatable
    #[arg(long, value_name = "GLOB", help_heading = FILES_HEADING)]
    hide: Vec<String>,

    /// Open the LLM door at 127.0.0.1:8080 inside, to this provider; its key stays outside
    #[arg(long, value_name = "PROVIDER", num_args = 0..=1, require_equals = true, help_heading = DOORS_HEADING)]
    llm: Option<Option<String>>,
    /// Open the inference door at localhost:11434 inside, to the model server of this machine
    #[arg(long, help_heading = DOORS_HEADING)]
    inference: bool,
    /// Allow only these models, * matches any characters; repeatable
    #[arg(long, value_name = "GLOB", help_heading = DOORS_HEADING)]
    allow_model: Vec<String>,
    /// Budget for models, such as 0.50; a call that could exceed it is refused
    #[arg(long, value_name = "DOLLARS", help_heading = DOORS_HEADING)]
    budget_usd: Option<Money>,
    /// Token budget for models, input and output together
    #[arg(long, value_name = "NUMBER", help_heading = DOORS_HEADING)]
    budget_tokens: Option<u64>,

    /// Allow this host through the egress door, at ports 80 and 443 or at PORT; *.example.com for
    /// all subdomains; repeatable
    #[arg(long, value_name = "HOST[:PORT]", help_heading = DOORS_HEADING)]
    allow_host: Vec<String>,
    /// Allow every public host, and print the rules that were needed
    #[arg(long, help_heading = DOORS_HEADING)]
    pub(super) learn: bool,

    /// Pass standard input through [default: empty]
    #[arg(long, help_heading = OUTPUT_HEADING)]
    stdin: bool,
    /// Give the program a terminal, shown in yours; every key goes to it, Ctrl-C too; without
    /// --timeout there is no time limit
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(super) tty: bool,
    /// Print one JSON result instead of the program's output
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(in crate::cli) json: bool,
    /// Required format of stdout: raw (anything), or exactly one JSON object: task or envelope
    /// [default: raw]
    #[arg(long, value_name = "NAME", help_heading = OUTPUT_HEADING)]
    contract: Option<Contract>,
    /// Print the plan of the run, and exit
    #[arg(long, help_heading = OUTPUT_HEADING)]
    pub(super) explain: bool,
    /// Identifier of this run [default: a fresh one]
    #[arg(long, value_name = "ID", help_heading = OUTPUT_HEADING)]
    run_id: Option<String>,
    /// Identifier of the task this run belongs to
    #[arg(long, value_name = "ID", help_heading = OUTPUT_HEADING)]
    task_id: Option<String>,
    /// Identifier of the job this run belongs to
    #[arg(long, value_name = "ID", help_heading = OUTPUT_HEADING)]
    job_id: Option<String>,

    /// The command and its arguments, passed on exactly as they are
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Options {
    /// Refuses contradictory options.
    pub(super) fn refuse_impossible(&self) -> Result<(), Failure> {
        if self.tty && self.json && !self.explain {
            Err(Failure::invalid(
                "--tty and --json exclude each other",
                "omit one of them: with --json, the output is in the result and there is no terminal",
            ))
        } else {
            Ok(())
        }
    }

    /// Refuses options about a single command, for jobs of steps.
    pub(in crate::cli) fn refuse_for_steps(&self) -> Result<(), Failure> {
        let given = [
            (self.tty, "--tty"),
            (self.explain, "--explain"),
            (self.contract.is_some(), "--contract"),
            (self.entrypoint.is_some(), "--entrypoint"),
            (!self.artifact.is_empty(), "--artifact"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            None => Ok(()),
            Some((_, option)) => Err(Failure::invalid(
                format!("{option} applies to a single command, not to a job"),
                "omit it; files in /workspace/.artifacts are kept as artifacts",
            )),
        }
    }

    /// Whether the options select the native backend.
    pub(super) fn may_be_native(&self) -> bool {
        self.backend
            .as_deref()
            .is_none_or(|name| name == spec::Backend::Native.name())
    }

    /// Whether `--stdin` was given.
    pub(in crate::cli) fn reads_stdin(&self) -> bool {
        self.stdin
    }

    /// The workspace that is staged by default: native backend, and no mode given.
    pub(super) fn staged_by_default(&self) -> Option<PathBuf> {
        let is_native = self
            .backend
            .as_deref()
            .is_none_or(|name| name == Backend::Native.name());
        let (folder, mode) = self.workspace.clone().map(parse_workspace)?;
        let is_default = mode == WorkspaceMode::Default && !self.copy_on_write;
        (is_native && is_default).then_some(folder)
    }

    /// Sets the workspace if none was given.
    pub(in crate::cli) fn use_workspace(&mut self, path: Option<PathBuf>) {
        self.workspace = self.workspace.take().or(path);
    }

    /// Refuses options that a server cannot carry out, and relative paths, which would be the
    /// server's.
    pub(super) fn refuse_at_a_server(&self) -> Result<(), Failure> {
        let refused = |what: &str, hint: &str| {
            Err(Failure::invalid(
                format!("{what} cannot be used with a server"),
                hint,
            ))
        };
        if self.explain {
            return refused(
                "--explain",
                "omit --server: --explain shows what would be done on this machine",
            );
        }
        if self.tty {
            return refused(
                "--tty",
                "use `airlock sandbox create`, then `airlock sandbox exec --tty`",
            );
        }
        let begins = |text: &OsStr, with: u8| text.as_bytes().first() == Some(&with);
        let folder = self
            .workspace
            .as_ref()
            .filter(|path| path.is_relative())
            .map(|_| "--workspace");
        let image = self
            .image
            .as_ref()
            .filter(|path| begins(path.as_os_str(), b'.'))
            .map(|_| "--image");
        let mount = self
            .mount
            .iter()
            .find(|text| !begins(text, b'/'))
            .map(|_| "--mount");
        match folder.or(image).or(mount) {
            None => Ok(()),
            Some(option) => Err(Failure::invalid(
                format!("with a server, {option} is a folder on the server's machine"),
                "write an absolute path; to send files of this machine use --input NAME=FILE",
            )),
        }
    }

    /// The profile, if given.
    pub(in crate::cli) fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    /// The contract, if given.
    pub(super) fn contract(&self) -> Option<Contract> {
        self.contract
    }

    /// The identifiers of this run, also for a refusal.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            run_id: self.run_id.clone(),
            task_id: self.task_id.clone(),
            job_id: self.job_id.clone(),
            profile: self.profile.clone(),
        }
    }

    /// Converts the options to a request.
    pub(in crate::cli) fn into_request(self, env: &ProcessEnv) -> Result<RunRequest, Failure> {
        let folder = env.current_folder.as_path();
        let workspace = self.workspace.clone().map(parse_workspace);
        let mode = workspace.as_ref().map(|(_, mode)| *mode);
        if mode == Some(WorkspaceMode::Live) && self.copy_on_write {
            return Err(Failure::invalid(
                "a workspace that is shared live cannot be copied on writing",
                "omit `:live` or --copy-on-write",
            ));
        }
        Ok(RunRequest {
            read_only_workspace: mode == Some(WorkspaceMode::ReadOnly),
            env: environment(&self.env_from, &self.env, env)?,
            limits: self.limits(),
            allowed_paths: None,
            command: self.command,
            profile: self.profile,
            backend: self.backend,
            image: self.image.map(|image| folder_or_name(folder, image)),
            entrypoint: self.entrypoint,
            writable_root: self.writable_root,
            workspace: workspace.map(|(path, _)| folder.join(path)),
            copy_on_write: self.copy_on_write,
            staged: mode == Some(WorkspaceMode::Staged),
            mounts: self
                .mount
                .into_iter()
                .map(|text| absolute_mount(folder, text))
                .collect(),
            volumes: self.volume,
            caller_env: env.variables.clone(),
            network: self.network,
            internal_network: self.internal_network,
            doors: Vec::new(),
            llm: self.llm,
            inference: self.inference,
            allow_hosts: self.allow_host,
            learn: self.learn,
            allow_models: self.allow_model,
            budget: Budget {
                money: self.budget_usd,
                tokens: self.budget_tokens,
                ..Budget::default()
            },
            secrets: self.secret,
            inputs: self.input,
            inline_inputs: Vec::new(),
            artifact_inputs: Vec::new(),
            artifacts: self.artifact,
            allow_protected: self.allow_protected,
            hide: self.hide,
            require: self.require,
            user: self.user,
            stdin: self.stdin,
            tty: None,
            contract: self.contract.unwrap_or_default(),
            run_id: self.run_id,
            task_id: self.task_id,
            job_id: self.job_id,
        })
    }

    fn limits(&self) -> LimitSet {
        LimitSet {
            memory: self.memory,
            cpu_time: self.cpu_time,
            cpus: self.cpus,
            wall_time: self.timeout,
            pids: self.pids,
            file_size: self.file_size,
            open_files: self.open_files,
            disk: self.disk,
            output: self.output,
            // The other limits can be set in profiles only.
            ..LimitSet::default()
        }
    }
}

/// The variables of `--env-from`, then those of `--env`, which win.
fn environment(
    from: &[OsString],
    set: &[OsString],
    env: &ProcessEnv,
) -> Result<Vec<(OsString, OsString)>, Failure> {
    let passed = from.iter().map(|name| match env.variables.get(name) {
        Some(value) => Ok((name.clone(), value.clone())),
        None => {
            let message = format!("the variable `{}` is not set", name.display());
            Err(Failure::invalid(message, "set it, or omit --env-from"))
        }
    });
    passed
        .chain(set.iter().map(|text| assignment(text)))
        .collect()
}

fn assignment(text: &OsStr) -> Result<(OsString, OsString), Failure> {
    let bytes = text.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(equals) => Ok((
            OsStr::from_bytes(&bytes[..equals]).to_owned(),
            OsStr::from_bytes(&bytes[equals + 1..]).to_owned(),
        )),
        None => {
            let message = format!("`{}` is not a variable with its value", text.display());
            let hint = "write --env NAME=VALUE, or --env-from NAME to pass one of your own";
            Err(Failure::invalid(message, hint))
        }
    }
}

/// A path begins with `/` or `.`; everything else is a name.
fn folder_or_name(current: &Path, image: PathBuf) -> PathBuf {
    match image.as_os_str().as_bytes().first() {
        Some(b'.') => current.join(image),
        _ => image,
    }
}

/// How the workspace is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkspaceMode {
    /// No mode given.
    Default,
    Live,
    Staged,
    ReadOnly,
}

/// Parses `DIR[:live|staged|ro]`.
fn parse_workspace(given: PathBuf) -> (PathBuf, WorkspaceMode) {
    let bytes = given.as_os_str().as_bytes();
    let without = |suffix: &str| {
        let path = bytes.strip_suffix(suffix.as_bytes())?;
        Some(PathBuf::from(OsStr::from_bytes(path)))
    };
    let modes = [
        (":live", WorkspaceMode::Live),
        (":staged", WorkspaceMode::Staged),
        (":ro", WorkspaceMode::ReadOnly),
    ];
    let said = modes
        .into_iter()
        .find_map(|(suffix, mode)| Some((without(suffix)?, mode)));
    said.unwrap_or((given, WorkspaceMode::Default))
}

/// Makes a mount's host path absolute, because the sandbox is created by another process with its
/// own working directory. An empty path stays empty and is refused later, instead of becoming the
/// current folder.
fn absolute_mount(folder: &Path, text: OsString) -> OsString {
    match text.as_bytes().first() {
        None | Some(b'/' | b':') => text,
        Some(_) => {
            let mut joined = folder.as_os_str().as_bytes().to_vec();
            joined.push(b'/');
            joined.extend_from_slice(text.as_bytes());
            OsString::from_vec(joined)
        }
    }
}

fn long_help() -> String {
    let barriers: Vec<_> = Barrier::ALL.iter().map(|barrier| barrier.name()).collect();
    let barriers = barriers
        .chunks(6)
        .map(|row| format!("  {}\n", row.join(" ")))
        .collect::<String>();
    format!(
        "{}\nBarriers, for --require:\n{barriers}\n{STATUSES}\n\n{EXAMPLES}",
        profile_table(&Policy::default())
    )
}

type Cell = fn(&Profile) -> String;

fn or_none(limit: Option<impl ToString>) -> String {
    limit.map_or("no limit".to_owned(), |limit| limit.to_string())
}

/// The built-in profiles as a table, generated from their values.
fn profile_table(policy: &Policy) -> String {
    let names = ["restrictive", "standard", "permissive", "agent"];
    let mut table = format!("Defaults by profile:\n  {:<14}", "");
    table.extend(names.iter().map(|name| format!("{name:<13}")));
    let rows: [(&str, Cell); 10] = [
        ("network", |profile| profile.network.name().to_owned()),
        ("--timeout", |profile| profile.limits.wall_time.to_string()),
        ("--memory", |profile| profile.limits.memory.to_string()),
        ("--cpus", |profile| or_none(profile.limits.cpus)),
        ("--cpu-time", |profile| or_none(profile.limits.cpu_time)),
        ("--pids", |profile| profile.limits.pids.to_string()),
        ("--file-size", |profile| {
            profile.limits.file_size.to_string()
        }),
        ("--open-files", |profile| {
            profile.limits.open_files.to_string()
        }),
        ("--disk", |profile| profile.limits.disk.to_string()),
        ("--output", |profile| profile.limits.output.to_string()),
    ];
    for (label, value) in rows {
        table.push_str(&format!("\n  {label:<14}"));
        let cells = names.iter().filter_map(|name| policy.profile(name));
        table.extend(cells.map(|profile| format!("{:<13}", value(profile))));
    }
    table
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::super::Cli, *};
    use crate::cli::Command;
    use clap::Parser;

    fn options(words: &[&str]) -> Options {
        let words: Vec<OsString> = ["airlock", "run"]
            .iter()
            .chain(words)
            .map(OsString::from)
            .collect();
        parsed(words)
    }

    fn parsed(words: Vec<OsString>) -> Options {
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(options) => *options,
            other => panic!("not a run: {other:?}"),
        }
    }

    fn env() -> ProcessEnv {
        ProcessEnv {
            variables: [("LANG".into(), "C".into()), ("TOKEN".into(), "t".into())].into(),
            current_folder: "/here".into(),
            ..ProcessEnv::default()
        }
    }

    fn request(words: &[&str]) -> Result<RunRequest, Failure> {
        options(words).into_request(&env())
    }

    #[test]
    fn every_option_reaches_its_field() {
        #[rustfmt::skip]
        let asked = request(&[
            "--profile", "agent", "--backend", "native", "--image", "./root", "--entrypoint", "e", "--writable-root",
            "--volume", "v:/v", "--internal-network", "i", "--llm=p", "--inference", "--allow-model", "m*",
            "--allow-host", "a.com", "--allow-host", "*.b.com:22", "--learn", "--copy-on-write", "--budget-usd", "0.5", "--budget-tokens", "9", "--workspace", "w", "--secret", "s=S",
            "--mount", "data:/data:rw", "--mount", "/abs:/x", "--env", "A=b=c", "--env-from", "TOKEN",
            "--timeout", "2s", "--memory", "1G", "--cpus", "1.5", "--cpu-time", "1m", "--pids", "9",
            "--file-size", "1M", "--open-files", "8", "--disk", "2M", "--output", "3M", "--network", "none",
            "--input", "n=f", "--artifact", "o", "--allow-protected", ".git", "--hide", "*.x", "--user", "5:6",
            "--require", "own_pid", "--stdin", "--contract", "task", "--run-id", "r", "--task-id", "t", "--job-id", "j",
            "--", "echo", "--json", "-x",
        ]).unwrap();
        let wanted = RunRequest {
            allowed_paths: None,
            command: vec!["echo".into(), "--json".into(), "-x".into()],
            profile: Some("agent".into()),
            backend: Some("native".into()),
            image: Some("/here/./root".into()),
            entrypoint: Some("e".into()),
            writable_root: true,
            workspace: Some("/here/w".into()),
            read_only_workspace: false,
            copy_on_write: true,
            staged: false,
            mounts: vec!["/here/data:/data:rw".into(), "/abs:/x".into()],
            env: vec![("TOKEN".into(), "t".into()), ("A".into(), "b=c".into())],
            volumes: vec!["v:/v".into()],
            caller_env: env().variables,
            limits: LimitSet {
                memory: "1G".parse().ok(),
                cpu_time: "1m".parse().ok(),
                cpus: "1.5".parse().ok(),
                wall_time: "2s".parse().ok(),
                pids: Some(9),
                file_size: "1M".parse().ok(),
                open_files: Some(8),
                disk: "2M".parse().ok(),
                output: "3M".parse().ok(),
                ..LimitSet::default()
            },
            network: Some(Network::None),
            internal_network: Some("i".into()),
            doors: Vec::new(),
            llm: Some(Some("p".into())),
            inference: true,
            allow_hosts: vec!["a.com".into(), "*.b.com:22".into()],
            learn: true,
            allow_models: vec!["m*".into()],
            budget: Budget {
                money: Some(Money(500_000_000)),
                tokens: Some(9),
                ..Budget::default()
            },
            secrets: vec!["s=S".into()],
            inputs: vec!["n=f".into()],
            inline_inputs: Vec::new(),
            artifact_inputs: Vec::new(),
            artifacts: vec!["o".into()],
            allow_protected: vec![".git".into()],
            hide: vec!["*.x".into()],
            require: vec![Barrier::OwnPid],
            user: Some(User { uid: 5, gid: 6 }),
            stdin: true,
            tty: None,
            contract: Contract::Task,
            run_id: Some("r".into()),
            task_id: Some("t".into()),
            job_id: Some("j".into()),
        };
        assert_eq!(format!("{asked:?}"), format!("{wanted:?}"));
    }

    #[test]
    fn arguments_of_the_command_keep_their_exact_bytes() {
        let odd = [&b"\xff\xfe"[..], b"", b" a  b ", b"--", b"$(x)\n"]
            .map(|b| OsStr::from_bytes(b).to_owned());
        let words = ["airlock", "run", "--"]
            .map(OsString::from)
            .into_iter()
            .chain(odd.clone());
        let asked = parsed(words.collect()).into_request(&env()).unwrap();
        assert_eq!(asked.command, odd);
    }

    #[test]
    fn a_variable_that_is_not_there_is_an_error_and_not_an_empty_one() {
        let refused = request(&["--env-from", "ABSENT", "--", "true"]).unwrap_err();
        assert_eq!(refused.message, "the variable `ABSENT` is not set");
        let refused = request(&["--env", "TOKEN", "--", "true"]).unwrap_err();
        assert!(refused.hint.contains("--env-from NAME"));
    }

    #[test]
    fn an_empty_path_never_becomes_the_current_folder() {
        for option in ["--workspace", "--image"] {
            assert!(
                Cli::try_parse_from(["airlock", "run", option, "", "--", "true"]).is_err(),
                "{option}"
            );
        }
        let mounts = request(&["--mount", ":/x", "--", "true"]).unwrap().mounts;
        assert_eq!(mounts, [":/x"]);
    }

    #[test]
    fn a_workspace_says_how_it_is_shared() {
        let mode = |text: &str| parse_workspace(text.into());
        assert_eq!(mode("w"), ("w".into(), WorkspaceMode::Default));
        assert_eq!(mode("w:live"), ("w".into(), WorkspaceMode::Live));
        assert_eq!(mode("w:ro"), ("w".into(), WorkspaceMode::ReadOnly));
        assert_eq!(mode("w:staged"), ("w".into(), WorkspaceMode::Staged));
        assert_eq!(mode("w:ro:live"), ("w:ro".into(), WorkspaceMode::Live));
    }

    #[test]
    fn a_folder_is_staged_by_default_where_airlock_makes_the_sandbox() {
        let staged = |words: &[&str]| options(words).staged_by_default();
        let rest = ["--", "true"];
        let with = |words: &[&str]| staged(&[words, &rest].concat());
        assert_eq!(with(&["--workspace", "w"]), Some("w".into()));
        let native = ["--workspace", "w", "--backend", "native"];
        assert_eq!(with(&native), Some("w".into()));
        assert_eq!(staged(&rest), None);
        for mode in ["live", "staged", "ro"] {
            assert_eq!(with(&["--workspace", &format!("w:{mode}")]), None, "{mode}");
        }
        for backend in ["docker", "podman", "container"] {
            let words = ["--workspace", "w", "--backend", backend];
            assert_eq!(with(&words), None, "{backend}");
        }
        assert_eq!(with(&["--workspace", "w", "--copy-on-write"]), None);
    }

    #[test]
    fn a_workspace_is_shared_live_or_copied_on_writing_but_not_both() {
        let refused = request(&["--workspace", "w:live", "--copy-on-write", "--", "true"]);
        assert!(refused.unwrap_err().message.contains("shared live"));
        let staged =
            request(&["--workspace", "w:staged", "--copy-on-write", "--", "true"]).unwrap();
        assert!(staged.staged && staged.copy_on_write);
    }

    #[test]
    fn the_table_of_profiles_shows_the_values_in_force() {
        let table = profile_table(&Policy::default());
        assert!(
            table.contains("\n  --memory      512M         1G           4G           4G\n"),
            "{table}"
        );
        assert!(
            table.contains("\n  --cpu-time    1m           5m           10m          no limit\n"),
            "{table}"
        );
    }
}
