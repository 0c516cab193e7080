//! `airlock image check`: proves each requirement of the image contract by runs in a sandbox
//! without a network.

use super::image_store;
use crate::{
    cli::{
        Global, conclude,
        message::{Failure, printable},
        open_engine, print, print_json, runtime,
    },
    config::{Config, ProcessEnv},
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
    ImageConfig, ImagePolicy, LimitSet, Network, RunRequest, RunResult, Size, Status, Time, User,
};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

/// Exit status if the image breaks the contract.
const CONTRACT_BROKEN: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  airlock image check ./rootfs
  airlock image check ./rootfs --profile python-tools --json

Exit status: 0 if the image satisfies the contract (warnings are allowed), 1 if not, 125 if it could not be checked.
docs/images.md has the contract.";

/// The options of `airlock image check`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The name of an image of this machine, or a folder with a root file system
    #[arg(value_name = "REF|DIR")]
    image: PathBuf,
    /// The image's purpose: base-tools, python-tools, node-tools, go-tools, secops-tools, agent or
    /// runtime [default: from its label io.cynodeai.sandbox.purpose, else base-tools]
    #[arg(long, value_name = "NAME", value_parser = profile)]
    profile: Option<ImageProfile>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An image to check.
#[derive(Debug)]
pub(super) struct Subject {
    /// The name on the command line.
    pub(super) name: String,
    /// Its unpacked root file system.
    pub(super) root: PathBuf,
    /// The image's configuration; `None` for a folder.
    pub(super) config: Option<ImageConfig>,
    /// The image's user.
    pub(super) user: Option<User>,
    /// Keeps the image from being removed during the check.
    #[expect(dead_code, reason = "its life is its use")]
    held: Option<StoredImage>,
}

/// The result of a check.
#[derive(Debug, serde::Serialize)]
pub(super) struct ContractReport {
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
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let subject = Subject::find(&options.image, global, env)?;
    let profiles = match options.profile {
        Some(profile) => vec![profile],
        None => ImageProfile::declared(&subject.config.clone().unwrap_or_default()),
    };
    let report = check(&config, &subject, &profiles)?;
    if options.json {
        print_json(&report)?
    } else {
        print(&report.text())?
    }
    Ok(report.status())
}

impl Subject {
    /// Finds the image as `airlock run --image` does: a path begins with `/` or `.`, everything
    /// else is a name.
    fn find(named: &Path, global: &Global, env: &ProcessEnv) -> Result<Subject, Failure> {
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
        let stored = image_store::open(global, env)?.get(&image_store::reference(&name)?)?;
        Ok(Subject::of(name, stored))
    }

    /// An image of the store, kept while it is checked.
    pub(super) fn of(name: String, stored: StoredImage) -> Subject {
        let root = stored.root().to_owned();
        let config = stored.config().clone();
        let user = stored.user();
        Subject {
            name,
            root,
            config: Some(config),
            user,
            held: Some(stored),
        }
    }
}

/// Searches the image for credentials, then proves each requirement in a sandbox.
pub(super) fn check(
    config: &Config,
    subject: &Subject,
    profiles: &[ImageProfile],
) -> Result<ContractReport, Failure> {
    let credentials = find_credentials(subject)?;
    let mut lines = runtime()?.block_on(async {
        let engine = open_engine(config, None)?;
        let mut lines = Vec::new();
        for requirement in contract::requirements(profiles) {
            lines.push(run_probes(&engine, config, subject, requirement).await?);
        }
        engine.close().await;
        Ok::<_, Failure>(lines)
    })?;
    lines.push(credentials.line());
    lines.extend(subject.config.iter().flat_map(contract::declarations));
    Ok(ContractReport {
        image: subject.name.clone(),
        profiles: profiles.iter().map(|profile| profile.name()).collect(),
        agent_compatible: subject.config.as_ref().map(contract::is_for_agents),
        passed: lines
            .iter()
            .all(|line| line.outcome != RequirementOutcome::Fail),
        lines,
    })
}

fn find_credentials(subject: &Subject) -> Result<CredentialScan, Failure> {
    let found = Dir::open(&subject.root).and_then(|root| CredentialScan::tree(&root));
    let mut find_credentials = found.map_err(|error| {
        Failure::invalid(
            format!("cannot look into `{}`: {error}", subject.root.display()),
            "name a folder that you may read",
        )
    })?;
    if let Some(config) = &subject.config {
        find_credentials.config(config);
    }
    Ok(find_credentials)
}

async fn run_probes(
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
        // The image policy does not apply: an image is checked before it is allowed.
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
            ProbeBudget::Small => LimitSet::default(),
            ProbeBudget::Large => LimitSet {
                memory: Some(Size(2 << 30)),
                cpu_time: Some(Time(Duration::from_secs(300))),
                wall_time: Some(Time(Duration::from_secs(600))),
                pids: Some(256),
                file_size: Some(Size(512 << 20)),
                open_files: Some(1024),
                disk: Some(Size(1 << 30)),
                ..LimitSet::default()
            },
        },
        ..RunRequest::default()
    }
}

/// A missing program is a finding about the image; a sandbox that cannot be created is an error.
fn refuse_unstarted(result: RunResult) -> Result<RunResult, Failure> {
    match (&result.status, &result.error) {
        (Status::NotStarted, Some(error)) if result.exit_status == 125 => Err(error.clone().into()),
        _ => Ok(result),
    }
}

impl ContractReport {
    /// The exit status.
    pub(super) fn status(&self) -> u8 {
        if self.passed { 0 } else { CONTRACT_BROKEN }
    }

    /// The results as a table, with a remedy for each warning and failure.
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
                text.push_str(&format!("      fix: {mend}\n"));
            }
        }
        let name = printable(&self.image);
        let profiles = self.profiles.join(", ");
        text.push_str(&if self.passed {
            format!("\n{name} satisfies the contract of {profiles}.\n")
        } else {
            format!("\n{name} does not satisfy the contract of {profiles}.\n")
        });
        text.push_str(match self.agent_compatible {
            Some(true) => "It is marked for work of agents.\n",
            Some(false) => "It is not marked for work of agents.\n",
            None => "",
        });
        text
    }
}
