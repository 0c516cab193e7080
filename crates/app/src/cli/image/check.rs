//! `airlock image check`: each line of the image contract, shown by runs in the real sandbox, without a network.

use super::shared;
use crate::{
    cli::{
        Global, conclude,
        message::{Failure, printable},
        open_engine, print, print_json, runtime,
    },
    config::{Config, Surroundings},
};
use ::fs::Dir;
use clap::Args;
use engine::Engine;
use image::{
    StoredImage,
    contract::{
        self, ImageProfile, Probe, ProbeBudget, Requirement, RequirementOutcome, RequirementResult,
    },
    secrets::CredentialScan,
};
use spec::{
    ImageConfig, ImagePolicy, Maximum, Network, RunRequest, RunResult, Size, Status, Time, User,
};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

/// The image does not keep the contract.
const FAILED: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  airlock image check ./rootfs
  airlock image check ./rootfs --profile python-tools --json

Exit status: 0 if the image keeps the contract (warnings are allowed), 1 if not, 125 if it could not be checked.
docs/images.md has the contract.";

/// The options of `airlock image check`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The name of an image of this machine, or a folder with a root file system
    #[arg(value_name = "REF|DIR")]
    image: PathBuf,
    /// What the image is for: base-tools, python-tools, node-tools, go-tools, secops-tools, agent or runtime
    /// [default: what its label io.cynodeai.sandbox.purpose says, else base-tools]
    #[arg(long, value_name = "NAME", value_parser = profile)]
    profile: Option<ImageProfile>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An image to be checked.
#[derive(Debug)]
pub(super) struct Subject {
    /// As it was named.
    pub(super) name: String,
    /// Its unpacked root file system.
    pub(super) root: PathBuf,
    /// What it says about itself; nothing is known of a mere folder.
    pub(super) config: Option<ImageConfig>,
    /// Whom it wants to run as.
    pub(super) user: Option<User>,
    /// Nobody removes it meanwhile.
    #[expect(dead_code, reason = "its life is its use")]
    held: Option<StoredImage>,
}

/// What came of a check.
#[derive(Debug, serde::Serialize)]
pub(super) struct Answer {
    image: String,
    profiles: Vec<&'static str>,
    agent_compatible: Option<bool>,
    passed: bool,
    lines: Vec<RequirementResult>,
}

fn profile(text: &str) -> Result<ImageProfile, String> {
    let names = ImageProfile::ALL.map(ImageProfile::name).join(", ");
    ImageProfile::named(text).ok_or_else(|| format!("the profiles of images are {names}"))
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    let subject = Subject::find(&options.image, global, surroundings)?;
    let profiles = match options.profile {
        Some(profile) => vec![profile],
        None => ImageProfile::declared(&subject.config.clone().unwrap_or_default()),
    };
    let answer = check(&config, &subject, &profiles)?;
    match options.json {
        true => print_json(&answer)?,
        false => print(&answer.text())?,
    }
    Ok(answer.status())
}

impl Subject {
    /// As for `airlock run --image`: what begins with `/` or `.` is a folder, all else a name.
    fn find(
        named: &Path,
        global: &Global,
        surroundings: &Surroundings,
    ) -> Result<Subject, Failure> {
        let name = named.to_string_lossy().into_owned();
        if name.starts_with(['/', '.']) {
            return Ok(Subject {
                name,
                root: named.to_owned(),
                config: None,
                user: None,
                held: None,
            });
        }
        let stored = shared::open(global, surroundings)?.get(&shared::reference(&name)?)?;
        Ok(Subject::of(name, stored))
    }

    /// An image of the store, held while it is checked.
    pub(super) fn of(name: String, stored: StoredImage) -> Subject {
        let (root, config, user) = (
            stored.root().to_owned(),
            stored.config().clone(),
            stored.user(),
        );
        Subject {
            name,
            root,
            config: Some(config),
            user,
            held: Some(stored),
        }
    }
}

/// Looks at the image from outside, then has it show each requirement from inside.
pub(super) fn check(
    config: &Config,
    subject: &Subject,
    profiles: &[ImageProfile],
) -> Result<Answer, Failure> {
    let credentials = search(subject)?;
    let mut lines = runtime()?.block_on(async {
        let engine = open_engine(config, None)?;
        let mut lines = Vec::new();
        for requirement in contract::requirements(profiles) {
            lines.push(prove(&engine, config, subject, requirement).await?);
        }
        engine.close().await;
        Ok::<_, Failure>(lines)
    })?;
    lines.push(credentials.line());
    lines.extend(subject.config.iter().flat_map(contract::declarations));
    Ok(Answer {
        image: subject.name.clone(),
        profiles: profiles.iter().map(|profile| profile.name()).collect(),
        agent_compatible: subject.config.as_ref().map(contract::is_for_agents),
        passed: lines
            .iter()
            .all(|line| line.outcome != RequirementOutcome::Fail),
        lines,
    })
}

fn search(subject: &Subject) -> Result<CredentialScan, Failure> {
    let found = Dir::open(&subject.root).and_then(|root| CredentialScan::tree(&root));
    let mut search = found.map_err(|error| {
        Failure::invalid(
            format!("cannot look into `{}`: {error}", subject.root.display()),
            "name a folder that you may read",
        )
    })?;
    if let Some(config) = &subject.config {
        search.config(config);
    }
    Ok(search)
}

async fn prove(
    engine: &Engine,
    config: &Config,
    subject: &Subject,
    requirement: &Requirement,
) -> Result<RequirementResult, Failure> {
    let mut results = Vec::new();
    for probe in requirement.probes {
        let mut spec = config
            .policy
            .admit(request(subject, requirement.effort, probe))?;
        // An image is checked before it is put on the list of those that may be used.
        spec.images = ImagePolicy::default();
        let result = engine.run(spec).await;
        results.push(refuse_unstarted(result)?);
    }
    Ok(requirement.evaluate(&results))
}

fn request(subject: &Subject, effort: ProbeBudget, probe: &Probe) -> RunRequest {
    let variables = subject.config.iter().flat_map(|config| &config.env);
    let variables = variables.filter_map(|text| text.split_once('='));
    RunRequest {
        command: probe
            .command
            .arguments()
            .into_iter()
            .map(OsString::from)
            .collect(),
        profile: Some("restrictive".to_owned()),
        image: Some(subject.root.clone()),
        env: variables
            .filter(|(name, _)| !matches!(*name, "PATH" | "HOME" | "TMPDIR"))
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        network: Some(Network::None),
        user: subject.user,
        limits: match effort {
            ProbeBudget::Small => Maximum::default(),
            ProbeBudget::Large => Maximum {
                memory: Some(Size(2 << 30)),
                cpu_time: Some(Time(Duration::from_secs(300))),
                wall_time: Some(Time(Duration::from_secs(600))),
                pids: Some(256),
                file_size: Some(Size(512 << 20)),
                open_files: Some(1024),
                disk: Some(Size(1 << 30)),
                ..Maximum::default()
            },
        },
        ..RunRequest::default()
    }
}

/// That a program is not there is the image's affair; that no box could be made is not.
fn refuse_unstarted(result: RunResult) -> Result<RunResult, Failure> {
    match (&result.status, &result.error) {
        (Status::NotStarted, Some(error)) if result.exit_status == 125 => Err(error.clone().into()),
        _ => Ok(result),
    }
}

impl Answer {
    /// What the command exits with.
    pub(super) fn status(&self) -> u8 {
        if self.passed { 0 } else { FAILED }
    }

    /// A table, and what to do about each line that is not as it should be.
    pub(super) fn text(&self) -> String {
        let width = self
            .lines
            .iter()
            .map(|line| line.requirement.chars().count())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for line in &self.lines {
            let outcome = match line.outcome {
                RequirementOutcome::Pass => "PASS",
                RequirementOutcome::Warn => "WARN",
                RequirementOutcome::Fail => "FAIL",
            };
            text.push_str(&format!(
                "{outcome}  {:<width$}  {}\n",
                line.requirement,
                printable(&line.seen)
            ));
            if let Some(mend) = &line.mend {
                text.push_str(&format!("      mend: {mend}\n"));
            }
        }
        let name = printable(&self.image);
        let profiles = self.profiles.join(", ");
        text.push_str(&match self.passed {
            true => format!("\n{name} keeps the contract of {profiles}.\n"),
            false => format!("\n{name} does not keep the contract of {profiles}.\n"),
        });
        text.push_str(match self.agent_compatible {
            Some(true) => "It is marked for work of agents.\n",
            Some(false) => "It is not marked for work of agents.\n",
            None => "",
        });
        text
    }
}
