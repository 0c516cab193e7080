//! The image contract as data: requirements, the commands that test them, and the evaluation of
//! their results. Nothing is run here. A hostile image can forge its own results, so they never
//! extend what its sandbox may do.

mod base;
mod tools;

use spec::{AGENT_LABEL, ImageConfig, RunResult, Status};

/// Label with the purpose of an image: profiles of this file, or activities.
pub const PURPOSE_LABEL: &str = "io.cynodeai.sandbox.purpose";
/// Activities: purposes that are not profiles.
const ACTIVITIES: [&str; 4] = ["build", "test", "run", "dev"];
/// Maximum characters of shown output.
const MAX_SEEN_CHARS: usize = 120;

/// A kind of image. Every profile includes `base-tools`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageProfile {
    /// A shell and core utilities.
    BaseTools,
    /// Python with pip, venv and a C compiler.
    PythonTools,
    /// Node.js with npm or pnpm.
    NodeTools,
    /// The Go toolchain.
    GoTools,
    /// shellcheck and semgrep.
    SecopsTools,
    /// Tools of a coding agent, with its user.
    Agent,
    /// Tools of an agent runtime, with its user.
    Runtime,
}

/// One requirement of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    /// Short name.
    pub name: &'static str,
    /// Severity of a failure.
    pub level: RequirementLevel,
    /// Resource limits of the probes.
    pub effort: ProbeBudget,
    /// All probes must give the expected result.
    pub probes: &'static [Probe],
    /// How to fix the image.
    pub mend: &'static str,
}

/// Severity of a failed requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequirementLevel {
    /// The image violates the contract.
    Must,
    /// The image meets the contract, but should be improved.
    Should,
}

/// Resource limits of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeBudget {
    /// The limits of the profile `restrictive`.
    Small,
    /// More memory, processes and time behind the same barriers, for compilers.
    Large,
}

/// A command and its expected result. Each probe is a separate run, so its output cannot be
/// mistaken for that of another.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The command.
    pub command: ProbeCommand,
    /// Expected exit status.
    pub status: u8,
    /// Expected standard output.
    pub stdout: ExpectedOutput,
    /// Expected standard error.
    pub stderr: ExpectedOutput,
}

/// The command of a probe.
#[derive(Clone, Copy, Debug)]
pub enum ProbeCommand {
    /// A script for `/bin/sh -c`.
    Shell(&'static str),
    /// An argument list, without a shell.
    Direct(&'static [&'static str]),
}

/// Expected output of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutput {
    /// Any output.
    Anything,
    /// Exactly this text.
    Exactly(&'static str),
    /// At least one certificate in PEM.
    Certificates,
}

/// Outcome of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequirementOutcome {
    /// The requirement is met.
    Pass,
    /// The requirement should be met, and is not.
    Warn,
    /// The requirement must be met, and is not.
    Fail,
}

/// Result of one requirement.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RequirementResult {
    /// The requirement.
    pub requirement: String,
    /// Its outcome.
    pub outcome: RequirementOutcome,
    /// What was observed; may contain untrusted output of the image.
    pub seen: String,
    /// How to fix the image, if it failed.
    pub mend: Option<String>,
}

impl ImageProfile {
    /// All profiles.
    pub const ALL: [ImageProfile; 7] = [
        ImageProfile::BaseTools,
        ImageProfile::PythonTools,
        ImageProfile::NodeTools,
        ImageProfile::GoTools,
        ImageProfile::SecopsTools,
        ImageProfile::Agent,
        ImageProfile::Runtime,
    ];

    /// Name in labels and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ImageProfile::BaseTools => "base-tools",
            ImageProfile::PythonTools => "python-tools",
            ImageProfile::NodeTools => "node-tools",
            ImageProfile::GoTools => "go-tools",
            ImageProfile::SecopsTools => "secops-tools",
            ImageProfile::Agent => "agent",
            ImageProfile::Runtime => "runtime",
        }
    }

    /// The profile of that name.
    pub fn named(name: &str) -> Option<ImageProfile> {
        ImageProfile::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
    }

    /// The profiles that an image declares by its label; `base-tools` if none.
    pub fn declared(config: &ImageConfig) -> Vec<ImageProfile> {
        let purpose = config.labels.get(PURPOSE_LABEL).map_or("", String::as_str);
        let mut named: Vec<_> = purpose
            .split(',')
            .filter_map(|word| ImageProfile::named(word.trim()))
            .collect();
        named.sort_unstable();
        named.dedup();
        if named.is_empty() {
            vec![ImageProfile::BaseTools]
        } else {
            named
        }
    }
}

/// The requirements of these profiles, each once, `base-tools` first.
pub fn requirements(profiles: &[ImageProfile]) -> Vec<&'static Requirement> {
    let mut all: Vec<&Requirement> = base::REQUIREMENTS.iter().collect();
    for profile in profiles {
        let more: &[&Requirement] = match profile {
            ImageProfile::BaseTools => &[],
            ImageProfile::PythonTools => tools::PYTHON,
            ImageProfile::NodeTools => tools::NODE,
            ImageProfile::GoTools => tools::GO,
            ImageProfile::SecopsTools => tools::SECOPS,
            ImageProfile::Agent => tools::AGENT,
            ImageProfile::Runtime => tools::RUNTIME,
        };
        all.extend(
            more.iter()
                .filter(|one| !all.iter().any(|other| other.name == one.name))
                .collect::<Vec<_>>(),
        );
    }
    all
}

impl ProbeCommand {
    /// The argument list.
    pub fn arguments(&self) -> Vec<&'static str> {
        match self {
            ProbeCommand::Shell(text) => vec!["/bin/sh", "-c", text],
            ProbeCommand::Direct(words) => words.to_vec(),
        }
    }
}

impl Requirement {
    /// Evaluates the results of the probes, in order.
    pub fn evaluate(&self, results: &[RunResult]) -> RequirementResult {
        let mut seen = String::new();
        for (probe, result) in self.probes.iter().zip(results) {
            match probe.evaluate(result) {
                Ok(said) => seen = said,
                Err(wrong) => return self.line(false, wrong),
            }
        }
        match (results.len() < self.probes.len(), results.len()) {
            (true, _) => self.line(false, "not every probe was run".to_owned()),
            (false, 1) => self.line(true, seen),
            (false, _) => {
                let statuses: Vec<_> = results
                    .iter()
                    .map(|result| result.exit_status.to_string())
                    .collect();
                self.line(true, statuses.join(", "))
            }
        }
    }

    fn line(&self, passed: bool, seen: String) -> RequirementResult {
        let outcome = match (passed, self.level) {
            (true, _) => RequirementOutcome::Pass,
            (false, RequirementLevel::Must) => RequirementOutcome::Fail,
            (false, RequirementLevel::Should) => RequirementOutcome::Warn,
        };
        let mend = (!passed).then(|| self.mend.to_owned());
        RequirementResult {
            requirement: self.name.to_owned(),
            outcome,
            seen,
            mend,
        }
    }
}

impl Probe {
    /// What was observed, if it is as expected; otherwise what is wrong.
    fn evaluate(&self, result: &RunResult) -> Result<String, String> {
        let said = first_line(&result.stdout)
            .or_else(|| first_line(&result.stderr))
            .unwrap_or_default();
        if result.exit_status != self.status || result.signal.is_some() {
            let how = how_it_ended(result);
            return Err(if said.is_empty() {
                how
            } else {
                format!("{how}: {said}")
            });
        }
        for (stream, wanted, bytes) in [
            ("stdout", self.stdout, &result.stdout),
            ("stderr", self.stderr, &result.stderr),
        ] {
            if let Err(wrong) = wanted.check(bytes) {
                return Err(format!("{stream} {wrong}"));
            }
        }
        Ok(match self.stdout {
            ExpectedOutput::Certificates => {
                format!("{} certificates", certificates(&result.stdout))
            }
            ExpectedOutput::Exactly(_) => "as expected".to_owned(),
            ExpectedOutput::Anything if said.is_empty() => "works".to_owned(),
            ExpectedOutput::Anything => said,
        })
    }
}

/// A short description of how a run ended.
fn how_it_ended(result: &RunResult) -> String {
    match (result.status, result.signal) {
        (Status::TimedOut, _) => "took too long".to_owned(),
        (Status::OomKilled, _) => "needed too much memory".to_owned(),
        (_, Some(signal)) => format!("killed by signal {signal}"),
        (Status::NotStarted, None) => "cannot be started".to_owned(),
        (_, None) => format!("exit status {}", result.exit_status),
    }
}

impl ExpectedOutput {
    fn check(self, bytes: &[u8]) -> Result<(), String> {
        let (right, wanted) = match self {
            ExpectedOutput::Anything => return Ok(()),
            ExpectedOutput::Exactly(text) => (bytes == text.as_bytes(), format!("{text:?}")),
            ExpectedOutput::Certificates => {
                (certificates(bytes) > 0, "certificates in PEM".to_owned())
            }
        };
        let said: String = String::from_utf8_lossy(bytes)
            .chars()
            .take(MAX_SEEN_CHARS)
            .collect();
        if right {
            Ok(())
        } else {
            Err(format!("is {said:?} and not {wanted}"))
        }
    }
}

/// The first line that is not empty, cut.
fn first_line(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64 * 1024)]);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(MAX_SEEN_CHARS).collect())
}

/// Number of certificates in a PEM text: complete base64 blocks that start like a DER sequence.
fn certificates(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let blocks = text.split("-----BEGIN CERTIFICATE-----").skip(1);
    let is_one = |block: &str| {
        let Some((body, _)) = block.split_once("-----END CERTIFICATE-----") else {
            return false;
        };
        let letters: Vec<u8> = body
            .bytes()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        let unpadded = letters
            .strip_suffix(b"==")
            .or(letters.strip_suffix(b"="))
            .unwrap_or(&letters);
        let base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/".contains(byte);
        letters.len().is_multiple_of(4)
            && unpadded.starts_with(b"MI")
            && unpadded.iter().all(base64)
    };
    blocks.filter(|block| is_one(block)).count()
}

/// Checks the declarations of an image: its user and its labels.
pub fn declarations(config: &ImageConfig) -> Vec<RequirementResult> {
    let user = config.user.split(':').next().unwrap_or_default();
    let pass = |requirement: &str, seen: String| RequirementResult {
        requirement: requirement.to_owned(),
        outcome: RequirementOutcome::Pass,
        seen,
        mend: None,
    };
    let warn = |requirement: &str, seen: &str, mend: &str| RequirementResult {
        requirement: requirement.to_owned(),
        outcome: RequirementOutcome::Warn,
        seen: seen.to_owned(),
        mend: Some(mend.to_owned()),
    };
    let named = match user {
        "" | "0" | "root" => warn(
            "declared user",
            "none, or root; Airlock runs it as another user all the same",
            "add `USER 1000` (or the name of a user) to its Containerfile",
        ),
        user => pass("declared user", user.chars().take(MAX_SEEN_CHARS).collect()),
    };
    let purpose = config
        .labels
        .get(PURPOSE_LABEL)
        .map(String::as_str)
        .unwrap_or_default();
    let known = |word: &str| ImageProfile::named(word).is_some() || ACTIVITIES.contains(&word);
    let purpose = match purpose.split(',').map(str::trim).find(|word| !known(word)) {
        None => pass(
            "declared purpose",
            purpose.chars().take(MAX_SEEN_CHARS).collect(),
        ),
        Some("") => warn(
            "declared purpose",
            "none",
            "add a label: LABEL io.cynodeai.sandbox.purpose=\"base-tools,run\"",
        ),
        Some(word) => warn(
            "declared purpose",
            &format!(
                "`{}` is no word of the contract",
                word.chars().take(MAX_SEEN_CHARS).collect::<String>()
            ),
            "use the names of profiles, and build, test, run, dev",
        ),
    };
    vec![named, purpose]
}

/// Whether the image is labelled for agents.
pub fn is_for_agents(config: &ImageConfig) -> bool {
    config
        .labels
        .get(AGENT_LABEL)
        .is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests;
