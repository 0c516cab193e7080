//! `airlock service`: installs the server as a systemd service of the machine or of a user.

mod systemctl;
mod unit;

use super::{Global, conclude, message::Failure, print, print_json, print_lines};
use crate::config::{Config, ListenAddress, ProcessEnv};
use ::fs::Dir;
use clap::{Args, Subcommand};
use rustix::fs::{CWD, Mode, OFlags};
use serde::Serialize;
use spec::{ErrorCode, Id};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::{Component, Path, PathBuf},
};
use unit::Unit;

const EXAMPLES: &str = "\
Examples:
  airlock service install --dry-run
  airlock service install --start
  airlock service install --user --listen 127.0.0.1:7171
  airlock service install --root /srv/image
  airlock service print-unit
  airlock service status --json
  airlock service uninstall

The admin key is created at the first start, in the file `admin-key` of the state folder (mode
0600). Files that Airlock did not write are never overwritten or removed.
Exit status: 0, or 125 if it was refused; `status` exits with 1 if the service is not installed.";

const MAX_UNIT_BYTES: u64 = 1 << 20;
const INITIAL_CONFIGURATION: &str = "\
# Settings of `airlock serve`. Every key has a default; `[serve]` sets the listen address and limits.
";

/// The options of `airlock service`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
    /// Use your own service manager, without root
    #[arg(long, global = true)]
    user: bool,
    /// The name of the service
    #[arg(long, global = true, value_name = "NAME", default_value = "airlock")]
    name: String,
    /// Install below this folder instead of `/`, such as for a machine image
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "user")]
    root: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the unit, and an initial configuration if there is none
    Install {
        #[command(flatten)]
        unit_options: UnitOptions,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Reload systemd, and start the service now and at every boot
        #[arg(long, conflicts_with = "root")]
        start: bool,
    },
    /// Stop the service and remove its unit; configuration and state stay
    Uninstall,
    /// Show whether the service is installed, and its state
    Status,
    /// Print the unit that `install` would write
    PrintUnit {
        #[command(flatten)]
        unit_options: UnitOptions,
    },
}

/// Options that the unit passes to `airlock serve`.
#[derive(Args, Debug)]
struct UnitOptions {
    /// The listen address: HOST:PORT, or unix:PATH [default: from the configuration, else
    /// 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<ListenAddress>,
    /// A node file for `airlock serve --node`
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
}

/// A step that was done, or would be with `--dry-run`.
#[derive(Debug, Serialize)]
struct ServiceChange {
    what: &'static str,
    about: String,
}

impl ServiceChange {
    fn new(what: &'static str, about: impl Into<String>) -> ServiceChange {
        ServiceChange {
            what,
            about: about.into(),
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    global.refuse_server(env)?;
    check_name(&options.name)?;
    let place = UnitFile::of(options, env)?;
    match &options.action {
        Action::PrintUnit { unit_options } => {
            print(&text(options, unit_options, global, env, &place)?)?;
            Ok(0)
        }
        Action::Install {
            unit_options,
            dry_run,
            start,
        } => {
            let text = text(options, unit_options, global, env, &place)?;
            let mut steps = Vec::new();
            let config = place.below(&configuration(options, global, env)?)?;
            write_all(&place, &text, &config, *dry_run, &mut steps)?;
            match (*start, *dry_run) {
                (true, true) => steps.push(ServiceChange::new("would start", options.name.clone())),
                (true, false) => steps.extend(systemctl::start(options.user, &options.name)?),
                (false, _) => {}
            }
            print_steps(options, &steps)?;
            if !*start && options.root.is_none() {
                super::message::print(&[super::message::Message::Hint(systemctl::start_hint(
                    options.user,
                    &options.name,
                ))]);
            }
            Ok(0)
        }
        Action::Uninstall => uninstall(options, &place),
        Action::Status => status(options, &place),
    }
}

/// Checks the service name, which becomes a part of paths and of the unit.
fn check_name(name: &str) -> Result<(), Failure> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(allowed)
        && Id::new(name).is_ok()
        && !name.starts_with('-')
    {
        Ok(())
    } else {
        Err(Failure::invalid(
            format!("`{}` is not a valid service name", name.escape_debug()),
            "use 1 to 64 of A-Z a-z 0-9 _ and -",
        ))
    }
}

/// The unit's file.
#[derive(Debug)]
struct UnitFile {
    root: Option<PathBuf>,
    file: PathBuf,
}

impl UnitFile {
    fn of(options: &Options, env: &ProcessEnv) -> Result<UnitFile, Failure> {
        let root = options
            .root
            .as_ref()
            .map(|root| env.current_folder.join(root));
        let folder = if options.user {
            let own = env
                .variable("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .filter(|path| path.is_absolute());
            let own = own.or_else(|| env.home().map(|home| home.join(".config")));
            let hint = "set HOME, or omit --user and run as root";
            own.ok_or_else(|| {
                Failure::invalid("HOME is not set, and a user service needs it", hint)
            })?
            .join("systemd/user")
        } else {
            PathBuf::from("/etc/systemd/system")
        };
        let mut place = UnitFile {
            root,
            file: PathBuf::new(),
        };
        place.file = place.below(&folder.join(format!("{}.service", options.name)))?;
        Ok(place)
    }

    /// The path below `--root`. Symbolic links are refused: they would lead into this machine.
    fn below(&self, path: &Path) -> Result<PathBuf, Failure> {
        let Some(root) = &self.root else {
            return Ok(path.to_owned());
        };
        let mut below = root.clone();
        for part in path.components().filter(|part| *part != Component::RootDir) {
            below.push(part);
            if part == Component::ParentDir || below.is_symlink() {
                let message = format!("`{}` may lead out of `{}`", below.display(), root.display());
                return Err(Failure::invalid(
                    message,
                    "put a plain folder or file in the place of the link",
                ));
            }
        }
        Ok(below)
    }

    /// Reads the unit; `None` if the file does not exist.
    fn found(&self) -> Result<Option<String>, Failure> {
        read(&self.file).map_err(|error| self.failed("read", &error))
    }

    /// Reads the unit, and refuses one that Airlock did not write.
    fn ours(&self) -> Result<Option<String>, Failure> {
        match self.found()? {
            Some(text) if !text.starts_with(unit::MARK) => Err(Failure::invalid(
                format!(
                    "`{}` was not written by `airlock service install`",
                    self.file.display()
                ),
                "choose another name with --name NAME, or move that file away",
            )),
            found => Ok(found),
        }
    }

    fn failed(&self, verb: &str, error: &io::Error) -> Failure {
        file_failure(verb, &self.file, error)
    }
}

fn file_failure(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot {verb} `{}`: {error}", path.display()),
        hint: "run as root for a system service, or use --user for a user service".to_owned(),
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        // `systemctl mask` creates a link, which is not Airlock's file either.
        Err(rustix::io::Errno::LOOP) => return Ok(Some(String::new())),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_UNIT_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The configuration file of the service.
fn configuration(options: &Options, global: &Global, env: &ProcessEnv) -> Result<PathBuf, Failure> {
    let usual = || {
        if options.user {
            env.home()
                .map(|home| home.join(".config").join(&options.name).join("config.toml"))
        } else {
            Some(
                PathBuf::from("/etc")
                    .join(&options.name)
                    .join("config.toml"),
            )
        }
    };
    let named = global
        .config
        .as_ref()
        .map(|path| env.current_folder.join(path));
    named
        .or_else(usual)
        .ok_or_else(|| Failure::invalid("HOME is not set", "set HOME, or give --config FILE"))
}

fn state(options: &Options, global: &Global, env: &ProcessEnv) -> Result<PathBuf, Failure> {
    let usual = || {
        if options.user {
            env.home()
                .map(|home| home.join(".local/state").join(&options.name))
        } else {
            Some(PathBuf::from("/var/lib").join(&options.name))
        }
    };
    let named = global
        .state
        .as_ref()
        .map(|path| env.current_folder.join(path));
    named
        .or_else(usual)
        .ok_or_else(|| Failure::invalid("HOME is not set", "set HOME, or give --state DIR"))
}

fn text(
    options: &Options,
    unit_options: &UnitOptions,
    global: &Global,
    env: &ProcessEnv,
    place: &UnitFile,
) -> Result<String, Failure> {
    let config = configuration(options, global, env)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
    let unit = Unit {
        name: options.name.clone(),
        user: options.user,
        program,
        state: state(options, global, env)?,
        listen: unit_options.listen.as_ref().map(ToString::to_string),
        node: unit_options
            .node
            .as_ref()
            .map(|node| env.current_folder.join(node)),
        grace: grace(&place.below(&config)?, env)?,
        config,
    };
    unit.text().map_err(|why| {
        Failure::invalid(
            why,
            "use paths and addresses without control characters, and a program without `$`",
        )
    })
}

/// Reads `serve.grace`. An unreadable configuration is refused at installation, not at the first
/// start.
fn grace(config: &Path, env: &ProcessEnv) -> Result<std::time::Duration, Failure> {
    // A missing file has the default; a dangling link is reported by the reader.
    if config.symlink_metadata().is_err() {
        return Ok(spec::ServerLimits::default().grace);
    }
    let flags = crate::config::Flags {
        config: Some(config.to_owned()),
        state: Some(env.current_folder.clone()),
    };
    let Config { serve, .. } = crate::config::load(&flags, env)?;
    Ok(serve.bounds.grace)
}

fn write_all(
    place: &UnitFile,
    text: &str,
    config: &Path,
    dry_run: bool,
    steps: &mut Vec<ServiceChange>,
) -> Result<(), Failure> {
    let before = place.ours()?;
    let shown = place.file.display().to_string();
    if config.symlink_metadata().is_err() {
        if !dry_run {
            write(config, INITIAL_CONFIGURATION, 0o600)
                .map_err(|error| file_failure("write", config, &error))?;
        }
        steps.push(ServiceChange::new(
            if dry_run { "would write" } else { "wrote" },
            config.display().to_string(),
        ));
    }
    match (before.as_deref() == Some(text), dry_run) {
        (true, _) => steps.push(ServiceChange::new("unchanged", shown)),
        (false, true) => steps.push(ServiceChange::new("would write", shown)),
        (false, false) => {
            write(&place.file, text, 0o644).map_err(|error| place.failed("write", &error))?;
            steps.push(ServiceChange::new("wrote", shown));
        }
    }
    Ok(())
}

/// Replaces the file atomically.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let folder = path
        .parent()
        .ok_or_else(|| io::Error::other("it has no folder"))?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    let name = path.file_name().unwrap_or_default();
    let mode = Mode::from_raw_mode(mode);
    Dir::open(folder)?.replace(name, mode, |file| {
        // The mode is set regardless of the umask: systemd and its users read units.
        rustix::fs::fchmod(&*file, mode)?;
        file.write_all(text.as_bytes())
    })
}

fn uninstall(options: &Options, place: &UnitFile) -> Result<u8, Failure> {
    let mut steps = Vec::new();
    match place.ours()? {
        None => steps.push(ServiceChange::new(
            "absent",
            place.file.display().to_string(),
        )),
        Some(_) => {
            if options.root.is_none() {
                steps.extend(systemctl::stop(options.user, &options.name)?);
            }
            fs::remove_file(&place.file).map_err(|error| place.failed("remove", &error))?;
            steps.push(ServiceChange::new(
                "removed",
                place.file.display().to_string(),
            ));
            if options.root.is_none() {
                steps.extend(systemctl::reload(options.user)?);
            }
            steps.push(ServiceChange::new("kept", "configuration and state"));
        }
    }
    print_steps(options, &steps)?;
    Ok(0)
}

#[derive(Debug, Serialize)]
struct Status {
    unit: PathBuf,
    installed: bool,
    /// Whether Airlock wrote the unit.
    ours: bool,
    /// The answers of systemd; absent if it does not run here.
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<String>,
}

fn status(options: &Options, place: &UnitFile) -> Result<u8, Failure> {
    let found = place.found()?;
    let query = |word| {
        if options.root.is_none() && systemctl::is_running(options.user) {
            systemctl::query(options.user, word, &options.name)
        } else {
            None
        }
    };
    let status = Status {
        unit: place.file.clone(),
        installed: found.is_some(),
        ours: found
            .as_ref()
            .is_some_and(|text| text.starts_with(unit::MARK)),
        enabled: query("is-enabled"),
        active: query("is-active"),
    };
    let installed = status.installed;
    if options.json {
        print_json(&status)?
    } else {
        let unknown = || "systemd does not run here".to_owned();
        let unit = match (status.installed, status.ours) {
            (false, _) => "not installed".to_owned(),
            (true, true) => format!("{}", status.unit.display()),
            (true, false) => format!("{} (not written by airlock)", status.unit.display()),
        };
        print_lines([
            format!("unit     {unit}"),
            format!("enabled  {}", status.enabled.unwrap_or_else(unknown)),
            format!("active   {}", status.active.unwrap_or_else(unknown)),
        ])?;
    }
    Ok(u8::from(!installed))
}

fn print_steps(options: &Options, steps: &[ServiceChange]) -> Result<(), Failure> {
    if options.json {
        print_json(&serde_json::json!({ "steps": steps }))
    } else {
        print_lines(
            steps
                .iter()
                .map(|step| format!("{:<11}  {}", step.what, step.about)),
        )
    }
}
