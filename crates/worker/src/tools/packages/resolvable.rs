//! Finds wheels that can be installed together. Wheels are for every tool, and a broken one must
//! not disable the others and with them every tool.
//!
//! ```text
//! all together ─┬─ ok ─▶ all
//!               └─ failed ─ each alone, with the others as dependencies ─▶ newest good wheel of each package, together
//!                                           │                                  ├─ ok ─▶ those
//!                                           │                                  └─ failed ─ one by one ─▶ a set that installs together
//!                                           └─ out of disk or time ─▶ continued there, with backoff
//! ```

use super::{
    INSTALL_TIMEOUT, InstallRequest, Installer, LAYER, PARTIAL_PREFIX, ToolProblem, Wheels,
    blocking, not_begun,
    version::{Version, parse_wheel_name},
    word,
};
use engine::Session;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    slice,
    sync::PoisonError,
    time::Duration,
};
use tokio::time::Instant;

/// Backoff of trials that failed for reasons other than a wheel.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(60);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15 * 60);

/// Wheels that can be installed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvableWheels {
    pub(crate) wheels: Wheels,
    /// Problems of the others.
    pub(crate) problems: Vec<ToolProblem>,
    /// Some wheels are missing, perhaps only for now.
    pub(crate) is_lacking: bool,
}

/// Results of trials, by wheel.
type TrialResults = BTreeMap<String, Result<(), ToolProblem>>;

/// Wheels that need a trial: those that were never tried first, then those that failed temporarily.
fn untried_names(mut names: Vec<String>, tried: &TrialResults) -> Vec<String> {
    names.retain(|name| match tried.get(name) {
        None => true,
        Some(Err(problem)) => problem.is_passing,
        Some(Ok(())) => false,
    });
    names.sort_by_key(|name| tried.contains_key(name));
    names
}

/// State of the trials of a set of wheels.
#[derive(Debug)]
pub(super) struct WheelTrials {
    of: Wheels,
    /// Each wheel alone.
    tried: TrialResults,
    /// The good wheels, where not all can be installed together.
    added: IncrementalSet,
    /// Time of the next trial.
    pub(super) again: Option<Instant>,
    pause: Duration,
}

impl WheelTrials {
    fn new(of: Wheels) -> WheelTrials {
        WheelTrials {
            of,
            tried: TrialResults::new(),
            added: IncrementalSet::default(),
            again: Some(Instant::now()),
            pause: MIN_RETRY_DELAY,
        }
    }

    fn is_due(&self) -> bool {
        self.again.is_some_and(|at| Instant::now() >= at)
    }

    fn rest(&mut self, is_lacking: bool) {
        self.again = is_lacking.then(|| Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(MAX_RETRY_DELAY);
    }

    /// Wheels that need a trial alone.
    fn untried(&self) -> Vec<String> {
        untried_names(self.of.files.keys().cloned().collect(), &self.tried)
    }

    /// The good wheels and the problems of the others; `unreached` is for those without a trial.
    fn parted(&self, unreached: &ToolProblem) -> (Wheels, Vec<ToolProblem>) {
        let mut good = self.of.clone();
        let mut problems = Vec::new();
        for name in self.of.files.keys() {
            let problem = match self.tried.get(name) {
                Some(Ok(())) => continue,
                Some(Err(problem)) => problem,
                None => unreached,
            };
            good.files.remove(name);
            problems.push(left_out(name, problem));
        }
        (good, problems)
    }
}

fn left_out(name: &str, problem: &ToolProblem) -> ToolProblem {
    let message = format!(
        "the wheel `{}` is left out: {}",
        word(name),
        problem.message
    );
    let hint = if problem.is_passing {
        "tools that import it fail; it is tried again after a while"
    } else {
        "tools that import it fail; put one that can be installed, or what it needs, into wheels/"
    };
    ToolProblem {
        is_passing: problem.is_passing,
        ..ToolProblem::new(message, hint)
    }
}

/// Another wheel of the same package was chosen.
fn left_out_for(name: &str, taken: &str) -> ToolProblem {
    let message = format!(
        "the wheel `{}` is left out: `{}` is of the same package",
        word(name),
        word(taken)
    );
    ToolProblem::new(message, "keep one of the two in wheels/")
}

/// One wheel per package, and the problems of the others.
#[derive(Debug, Default)]
struct ChosenWheels {
    /// By package.
    names: BTreeMap<String, String>,
    problems: Vec<ToolProblem>,
}

impl ChosenWheels {
    /// Chooses the newest wheel of each package.
    fn newest(wheels: &Wheels) -> ChosenWheels {
        let mut chosen = ChosenWheels::default();
        for (name, package) in in_order(wheels) {
            match chosen.names.get(&package) {
                Some(taken) => chosen.problems.push(left_out_for(&name, taken)),
                None => _ = chosen.names.insert(package, name),
            }
        }
        chosen
    }

    /// The chosen ones of these wheels.
    fn of(&self, wheels: &Wheels) -> Wheels {
        let names: BTreeSet<&String> = self.names.values().collect();
        let mut chosen = wheels.clone();
        chosen.files.retain(|name, _| names.contains(name));
        chosen
    }
}

/// A set of wheels built one by one.
#[derive(Debug, Default)]
struct IncrementalSet {
    /// Wheels to add.
    of: Wheels,
    /// Wheels of the set and their dependencies, by package.
    names: BTreeMap<String, String>,
    /// Results of adding each wheel to the set.
    tried: TrialResults,
}

impl IncrementalSet {
    /// Wheels that need a trial with the set. Dependencies that are already in it need none.
    fn untried(&self) -> Vec<String> {
        let others = in_order(&self.of)
            .into_iter()
            .filter(|(_, package)| !self.names.contains_key(package));
        untried_names(others.map(|(name, _)| name).collect(), &self.tried)
    }

    /// The set with one more wheel.
    fn with(&self, name: &str) -> Vec<String> {
        self.names
            .values()
            .map(String::as_str)
            .chain([name])
            .map(str::to_owned)
            .collect()
    }

    /// Records the trial of a wheel with the set.
    fn note(&mut self, name: String, tried: Result<Vec<(String, Version)>, ToolProblem>) {
        if let Ok(installed) = &tried {
            self.names.insert(parse_wheel_name(&name).0, name.clone());
            for (other, package) in in_order(&self.of) {
                if installed.contains(&parse_wheel_name(&other)) {
                    self.names.entry(package).or_insert(other);
                }
            }
        }
        self.tried.insert(name, tried.map(|_| ()));
    }

    fn chosen(&self) -> ChosenWheels {
        let mut chosen = ChosenWheels {
            names: self.names.clone(),
            problems: Vec::new(),
        };
        for (name, package) in in_order(&self.of) {
            chosen
                .problems
                .extend(match (self.names.get(&package), self.tried.get(&name)) {
                    (Some(taken), _) if *taken == name => None,
                    (_, Some(Err(problem))) if !problem.is_passing => {
                        Some(left_out(&name, problem))
                    }
                    (Some(taken), _) => Some(left_out_for(&name, taken)),
                    (None, Some(Err(problem))) => Some(left_out(&name, problem)),
                    (None, Some(Ok(())) | None) => Some(left_out(&name, &late())),
                });
        }
        chosen
    }
}

/// Wheels and their packages: first the newest of each package by name, then the second newest, and
/// so on.
fn in_order(wheels: &Wheels) -> Vec<(String, String)> {
    let mut by_package: BTreeMap<String, Vec<(Reverse<Version>, &String)>> = BTreeMap::new();
    for name in wheels.files.keys() {
        let (package, version) = parse_wheel_name(name);
        by_package
            .entry(package)
            .or_default()
            .push((Reverse(version), name));
    }
    let mut ranked = Vec::new();
    for (package, mut wheels) in by_package {
        wheels.sort();
        let one = |(rank, (_, name)): (usize, (_, &String))| (rank, name.clone(), package.clone());
        ranked.extend(wheels.into_iter().enumerate().map(one));
    }
    ranked.sort();
    ranked
        .into_iter()
        .map(|(_, name, package)| (name, package))
        .collect()
}

impl Installer {
    /// Returns the wheels that can be installed, with trials once per set of wheels and again where
    /// that may help. Other callers do not wait for trials.
    pub(crate) async fn sound(
        &self,
        wheels: &Wheels,
        report: impl Fn(String) + Send + Sync,
    ) -> ResolvableWheels {
        if wheels.files.is_empty() {
            return ResolvableWheels::default();
        }
        let mut place = match (self.0.known.try_lock(), self.latest(wheels)) {
            (Ok(place), _) => place,
            (Err(_), Some(sound)) => return sound,
            (Err(_), None) => self.0.known.lock().await,
        };
        if place.as_ref().is_some_and(|known| known.of != *wheels) {
            *place = None;
        }
        let known = place.get_or_insert_with(|| WheelTrials::new(wheels.clone()));
        if known.is_due() {
            let sound = self.find_out(known, &report).await;
            known.rest(sound.is_lacking);
            *self.0.sound.lock().unwrap_or_else(PoisonError::into_inner) = (wheels.clone(), sound);
        }
        self.latest(wheels).unwrap_or_default()
    }

    /// The last result for these wheels.
    fn latest(&self, wheels: &Wheels) -> Option<ResolvableWheels> {
        let latest = self.0.sound.lock().unwrap_or_else(PoisonError::into_inner);
        (latest.0 == *wheels).then(|| latest.1.clone())
    }

    async fn find_out(
        &self,
        known: &mut WheelTrials,
        report: &(impl Fn(String) + Send + Sync),
    ) -> ResolvableWheels {
        let mut failed = ToolProblem::default();
        if known.tried.is_empty() {
            match self.layer(None, &known.of, report).await {
                Ok(_) => {
                    return ResolvableWheels {
                        wheels: known.of.clone(),
                        ..ResolvableWheels::default()
                    };
                }
                Err(problem) => failed = problem,
            }
        }
        let unreached = match known.of.files.len() {
            1 => failed.clone(),
            _ => self.try_each_alone(known, report).await,
        };
        let (good, mut problems) = known.parted(&unreached);
        if good.files.is_empty() {
            // The reason may be something else: start again.
            known.tried.clear();
        } else {
            match self.install_together(&good, &mut known.added, report).await {
                Ok(chosen) => {
                    let wheels = chosen.of(&good);
                    problems.extend(chosen.problems);
                    let is_lacking = problems.iter().any(|problem| problem.is_passing);
                    return ResolvableWheels {
                        wheels,
                        problems,
                        is_lacking,
                    };
                }
                Err(problem) => failed = problem,
            }
        }
        let message = format!("{}; tools are served without", failed.message);
        ResolvableWheels {
            problems: vec![ToolProblem { message, ..failed }],
            is_lacking: true,
            ..ResolvableWheels::default()
        }
    }

    /// Installs a set of good wheels that goes together.
    async fn install_together(
        &self,
        good: &Wheels,
        added: &mut IncrementalSet,
        report: &(impl Fn(String) + Send + Sync),
    ) -> Result<ChosenWheels, ToolProblem> {
        if added.of != *good {
            let newest = ChosenWheels::newest(good);
            match self.layer(None, &newest.of(good), report).await {
                Ok(_) => return Ok(newest),
                Err(problem) if problem.is_passing => return Err(problem),
                Err(_) => {
                    *added = IncrementalSet {
                        of: good.clone(),
                        ..IncrementalSet::default()
                    }
                }
            }
        }
        self.add_incrementally(added, report).await?;
        let mut chosen = added.chosen();
        if chosen.names.is_empty() {
            // The reason may be something else: start again.
            *added = IncrementalSet::default();
            return Err(chosen.problems.pop().unwrap_or_default());
        }
        self.layer(None, &chosen.of(good), report).await?;
        Ok(chosen)
    }

    /// Adds wheels one by one in one sandbox, each with its dependencies, and leaves out those that
    /// conflict with the set. Each round makes progress, however slow.
    async fn add_incrementally(
        &self,
        added: &mut IncrementalSet,
        report: &(impl Fn(String) + Send + Sync),
    ) -> Result<(), ToolProblem> {
        let names = added.untried();
        let until = Instant::now() + self.0.round_timeout;
        if names.is_empty() {
            return Ok(());
        }
        report(format!(
            "wheels do not go together: {} are added one after the other",
            names.len()
        ));
        let good = added.of.clone();
        let session = self
            .open_sandbox(&InstallRequest {
                requirement: None,
                wheels: &good,
                only: None,
            })
            .await?;
        for name in names {
            if added.names.contains_key(&parse_wheel_name(&name).0) {
                continue;
            }
            let tried = self.try_out(&session, &good, &added.with(&name)).await;
            added.note(name, tried);
            if Instant::now() >= until {
                break;
            }
        }
        session.end().await;
        Ok(())
    }

    /// Tries each wheel alone, in one sandbox; returns the problem of those that were not reached.
    async fn try_each_alone(
        &self,
        known: &mut WheelTrials,
        report: &(impl Fn(String) + Send + Sync),
    ) -> ToolProblem {
        let names = known.untried();
        let until = Instant::now() + INSTALL_TIMEOUT;
        if names.is_empty() {
            return late();
        }
        report(format!(
            "wheels cannot be installed together: {} are tried alone",
            names.len()
        ));
        let all = known.of.clone();
        let session = match self
            .open_sandbox(&InstallRequest {
                requirement: None,
                wheels: &all,
                only: None,
            })
            .await
        {
            Ok(session) => session,
            Err(problem) => return problem.passing(),
        };
        for name in names {
            if Instant::now() >= until {
                break;
            }
            let tried = self.try_out(&session, &all, slice::from_ref(&name)).await;
            known.tried.insert(name, tried.map(|_| ()));
        }
        session.end().await;
        late()
    }

    /// Installs wheels as if they were to be kept, with all checks, and returns what was installed.
    async fn try_out(
        &self,
        session: &Session,
        wheels: &Wheels,
        only: &[String],
    ) -> Result<Vec<(String, Version)>, ToolProblem> {
        let place = self
            .0
            .folder
            .join(format!("{PARTIAL_PREFIX}{}", engine::fresh_id()));
        let made = self
            .make_in(
                session,
                &InstallRequest {
                    requirement: None,
                    wheels,
                    only: Some(only),
                },
                &place,
            )
            .await;
        let installed = blocking(move || {
            let found = packages_in(&place);
            _ = fs::remove_dir_all(place);
            found
        })
        .await;
        let tree = session.tree().map_err(|error| not_begun(&error.message))?;
        blocking(move || {
            // There is none if pip failed at once; a leftover would be taken for the next trial's.
            if tree.stat(Path::new(LAYER)).is_ok() {
                tree.remove(Path::new(LAYER), true)
                    .map_err(|error| not_begun(&error.to_string()))
            } else {
                Ok(())
            }
        })
        .await?;
        made.and(installed)
    }
}

/// Installed packages by pip's metadata: `NAME-VERSION.dist-info`.
fn packages_in(folder: &Path) -> Result<Vec<(String, Version)>, ToolProblem> {
    let failed =
        |error: io::Error| not_begun(&format!("what was installed cannot be read: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry
            .map_err(failed)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if let Some((name, version)) = name
            .strip_suffix(".dist-info")
            .and_then(|package| package.rsplit_once('-'))
        {
            // Some names contain the separator of wheel file names.
            found.push(parse_wheel_name(&format!(
                "{}-{version}",
                name.replace('-', "_")
            )));
        }
    }
    Ok(found)
}

fn late() -> ToolProblem {
    ToolProblem::new("those before it took too long", "").passing()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_package_come_first() {
        let files = [
            "b-1.0-py3-none-any.whl",
            "A-1.10-py3-none-any.whl",
            "a-1.9-py3-none-any.whl",
        ];
        let mut wheels = Wheels::default();
        wheels.files = files.map(|name| (name.to_owned(), String::new())).into();
        let names: Vec<String> = in_order(&wheels)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, [files[1], files[0], files[2]]);
        let newest = ChosenWheels::newest(&wheels);
        assert_eq!(
            newest.of(&wheels).files.into_keys().collect::<Vec<_>>(),
            [files[1], files[0]]
        );
        let told: Vec<String> = newest.problems.iter().map(ToString::to_string).collect();
        assert!(
            told.len() == 1 && told[0].contains(files[2]) && told[0].contains(files[1]),
            "{told:?}"
        );
    }

    #[test]
    fn what_failed_in_passing_is_tried_again_behind_what_nobody_tried() {
        let files = ["a", "b", "c", "d"].map(|name| (name.to_owned(), String::new()));
        let mut wheels = Wheels::default();
        wheels.files = files.into();
        let mut known = WheelTrials::new(wheels);
        assert!(known.is_due() && known.untried() == ["a", "b", "c", "d"]);
        known.tried.insert(
            "a".to_owned(),
            Err(ToolProblem::new("too slow", "").passing()),
        );
        known
            .tried
            .insert("b".to_owned(), Err(ToolProblem::new("no zip", "")));
        known.tried.insert("c".to_owned(), Ok(()));
        assert_eq!(known.untried(), ["d", "a"]);
        let (good, problems) = known.parted(&ToolProblem::new("no time", "").passing());
        assert_eq!(good.files.into_keys().collect::<Vec<_>>(), ["c"]);
        let told = problems
            .iter()
            .map(|problem| (&*problem.message, problem.is_passing))
            .collect::<Vec<_>>();
        let expected = [
            ("the wheel `a` is left out: too slow", true),
            ("the wheel `b` is left out: no zip", false),
            ("the wheel `d` is left out: no time", true),
        ];
        assert_eq!(told, expected);
    }
}
