//! Which wheels can be installed: they are for every tool, and one that cannot be shall not take the others, and with them every
//! tool, away.
//!
//! ```text
//! all together ─┬─ well ─▶ all
//!               └─ failed ─ each alone, with the others to take from ─▶ of those that went well the newest of each package, together
//!                                                  │                     ├─ well ─▶ those
//!                                                  │                     └─ failed ─ one after the other ─▶ those that go together
//!                                                  └─ no room, no time ─▶ goes on from there, after a growing pause
//! ```

use super::{
    Installer, LAYER, LONGEST, MAKING, Problem, Wanted, Wheels, blocking, not_begun,
    version::{Version, of_wheel},
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

/// Where something else may be to blame than a wheel, it is tried again, but not for every tool: after this time at first, and
/// at most.
const SHORTEST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// Wheels that can be installed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sound {
    pub(crate) wheels: Wheels,
    /// What is wrong with the others.
    pub(crate) problems: Vec<Problem>,
    /// Some could not be, or none, and perhaps another time.
    pub(crate) is_lacking: bool,
}

/// What came of those that were tried.
type Tried = BTreeMap<String, Result<(), Problem>>;

/// Those that are still to be tried, in this order: what failed in passing is tried again, behind what nobody tried yet.
fn open(mut names: Vec<String>, tried: &Tried) -> Vec<String> {
    names.retain(|name| match tried.get(name) {
        None => true,
        Some(Err(problem)) => problem.is_passing,
        Some(Ok(())) => false,
    });
    names.sort_by_key(|name| tried.contains_key(name));
    names
}

/// What is known of the wheels that there are.
#[derive(Debug)]
pub(super) struct Known {
    of: Wheels,
    /// Each alone.
    tried: Tried,
    /// Of those that went well: where they do not all go together.
    added: Added,
    /// When it is tried again.
    pub(super) again: Option<Instant>,
    pause: Duration,
}

impl Known {
    fn new(of: Wheels) -> Known {
        let (tried, added) = (Tried::new(), Added::default());
        Known {
            of,
            tried,
            added,
            again: Some(Instant::now()),
            pause: SHORTEST_PAUSE,
        }
    }

    fn is_due(&self) -> bool {
        self.again.is_some_and(|at| Instant::now() >= at)
    }

    fn rest(&mut self, is_lacking: bool) {
        self.again = is_lacking.then(|| Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Those that are to be tried alone.
    fn untried(&self) -> Vec<String> {
        open(self.of.files.keys().cloned().collect(), &self.tried)
    }

    /// Those that went well, and what is wrong with the others, of which some were not come to.
    fn parted(&self, unreached: &Problem) -> (Wheels, Vec<Problem>) {
        let (mut good, mut problems) = (self.of.clone(), Vec::new());
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

fn left_out(name: &str, problem: &Problem) -> Problem {
    let message = format!(
        "the wheel `{}` is left out: {}",
        word(name),
        problem.message
    );
    let hint = match problem.is_passing {
        true => "tools that import it fail; it is tried again after a while",
        false => {
            "tools that import it fail; put one that can be installed, or what it needs, into wheels/"
        }
    };
    Problem {
        is_passing: problem.is_passing,
        ..Problem::new(message, hint)
    }
}

/// Another wheel of its package is taken.
fn left_out_for(name: &str, taken: &str) -> Problem {
    let message = format!(
        "the wheel `{}` is left out: `{}` is of the same package",
        word(name),
        word(taken)
    );
    Problem::new(message, "keep one of the two in wheels/")
}

/// Wheels that are of one package each, and the problems of the others.
#[derive(Debug, Default)]
struct Chosen {
    /// By package.
    names: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Chosen {
    /// The newest of each package.
    fn newest(wheels: &Wheels) -> Chosen {
        let mut chosen = Chosen::default();
        for (name, package) in in_order(wheels) {
            match chosen.names.get(&package) {
                Some(taken) => chosen.problems.push(left_out_for(&name, taken)),
                None => _ = chosen.names.insert(package, name),
            }
        }
        chosen
    }

    /// These of them.
    fn of(&self, wheels: &Wheels) -> Wheels {
        let names: BTreeSet<&String> = self.names.values().collect();
        let mut chosen = wheels.clone();
        chosen.files.retain(|name, _| names.contains(name));
        chosen
    }
}

/// How far it came with adding one after the other.
#[derive(Debug, Default)]
struct Added {
    /// To be added.
    of: Wheels,
    /// By package: those that go together, and with them all that they take from the others.
    names: BTreeMap<String, String>,
    /// Each with those before it.
    tried: Tried,
}

impl Added {
    /// Those that are to be tried with what there is. What came with another needs no try.
    fn untried(&self) -> Vec<String> {
        let others = in_order(&self.of)
            .into_iter()
            .filter(|(_, package)| !self.names.contains_key(package));
        open(others.map(|(name, _)| name).collect(), &self.tried)
    }

    /// All that there is, and this.
    fn with(&self, name: &str) -> Vec<String> {
        self.names
            .values()
            .map(String::as_str)
            .chain([name])
            .map(str::to_owned)
            .collect()
    }

    /// It was tried with what there is.
    fn note(&mut self, name: String, tried: Result<Vec<(String, Version)>, Problem>) {
        if let Ok(installed) = &tried {
            self.names.insert(of_wheel(&name).0, name.clone());
            for (other, package) in in_order(&self.of) {
                if installed.contains(&of_wheel(&other)) {
                    self.names.entry(package).or_insert(other);
                }
            }
        }
        self.tried.insert(name, tried.map(|_| ()));
    }

    fn chosen(&self) -> Chosen {
        let mut chosen = Chosen {
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

/// With their packages: the newest of each by name, then the second of each, and so on.
fn in_order(wheels: &Wheels) -> Vec<(String, String)> {
    let mut by_package: BTreeMap<String, Vec<(Reverse<Version>, &String)>> = BTreeMap::new();
    for name in wheels.files.keys() {
        let (package, version) = of_wheel(name);
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
    /// Finds out, once for the same wheels, and again where that may lead to more. For that nobody else waits.
    pub(crate) async fn sound(
        &self,
        wheels: &Wheels,
        tell: impl Fn(String) + Send + Sync,
    ) -> Sound {
        if wheels.files.is_empty() {
            return Sound::default();
        }
        let mut place = match (self.0.known.try_lock(), self.latest(wheels)) {
            (Ok(place), _) => place,
            (Err(_), Some(sound)) => return sound,
            (Err(_), None) => self.0.known.lock().await,
        };
        if place.as_ref().is_some_and(|known| known.of != *wheels) {
            *place = None;
        }
        let known = place.get_or_insert_with(|| Known::new(wheels.clone()));
        if known.is_due() {
            let sound = self.find_out(known, &tell).await;
            known.rest(sound.is_lacking);
            *self.0.sound.lock().unwrap_or_else(PoisonError::into_inner) = (wheels.clone(), sound);
        }
        self.latest(wheels).unwrap_or_default()
    }

    /// What was found out of these last.
    fn latest(&self, wheels: &Wheels) -> Option<Sound> {
        let latest = self.0.sound.lock().unwrap_or_else(PoisonError::into_inner);
        (latest.0 == *wheels).then(|| latest.1.clone())
    }

    async fn find_out(&self, known: &mut Known, tell: &(impl Fn(String) + Send + Sync)) -> Sound {
        let mut failed = Problem::default();
        if known.tried.is_empty() {
            match self.layer(None, &known.of, tell).await {
                Ok(_) => {
                    return Sound {
                        wheels: known.of.clone(),
                        ..Sound::default()
                    };
                }
                Err(problem) => failed = problem,
            }
        }
        let unreached = match known.of.files.len() {
            1 => failed.clone(),
            _ => self.sift(known, tell).await,
        };
        let (good, mut problems) = known.parted(&unreached);
        if good.files.is_empty() {
            // Something else may be to blame: all begins anew.
            known.tried.clear();
        } else {
            match self.together(&good, &mut known.added, tell).await {
                Ok(chosen) => {
                    let wheels = chosen.of(&good);
                    problems.extend(chosen.problems);
                    let is_lacking = problems.iter().any(|problem| problem.is_passing);
                    return Sound {
                        wheels,
                        problems,
                        is_lacking,
                    };
                }
                Err(problem) => failed = problem,
            }
        }
        let message = format!("{}; tools are served without", failed.message);
        Sound {
            problems: vec![Problem { message, ..failed }],
            is_lacking: true,
            ..Sound::default()
        }
    }

    /// Installs what goes together of wheels that can be installed.
    async fn together(
        &self,
        good: &Wheels,
        added: &mut Added,
        tell: &(impl Fn(String) + Send + Sync),
    ) -> Result<Chosen, Problem> {
        if added.of != *good {
            let newest = Chosen::newest(good);
            match self.layer(None, &newest.of(good), tell).await {
                Ok(_) => return Ok(newest),
                Err(problem) if problem.is_passing => return Err(problem),
                Err(_) => {
                    *added = Added {
                        of: good.clone(),
                        ..Added::default()
                    }
                }
            }
        }
        self.add_up(added, tell).await?;
        let mut chosen = added.chosen();
        if chosen.names.is_empty() {
            // Something else may be to blame: all begins anew.
            *added = Added::default();
            return Err(chosen.problems.pop().unwrap_or_default());
        }
        self.layer(None, &chosen.of(good), tell).await?;
        Ok(chosen)
    }

    /// Adds one after the other, in one box that has them all, each with what it takes from the others, and leaves out what
    /// cannot be installed with those before it. However slow, it comes one further each time.
    async fn add_up(
        &self,
        added: &mut Added,
        tell: &(impl Fn(String) + Send + Sync),
    ) -> Result<(), Problem> {
        let (names, until) = (added.untried(), Instant::now() + self.0.patience);
        if names.is_empty() {
            return Ok(());
        }
        tell(format!(
            "wheels do not go together: {} are added one after the other",
            names.len()
        ));
        let good = added.of.clone();
        let session = self
            .open_box(&Wanted {
                requirement: None,
                wheels: &good,
                only: None,
            })
            .await?;
        for name in names {
            if added.names.contains_key(&of_wheel(&name).0) {
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

    /// Tries each alone, in one box that has them all; says why some were not come to.
    async fn sift(&self, known: &mut Known, tell: &(impl Fn(String) + Send + Sync)) -> Problem {
        let (names, until) = (known.untried(), Instant::now() + LONGEST);
        if names.is_empty() {
            return late();
        }
        tell(format!(
            "wheels cannot be installed together: {} are tried alone",
            names.len()
        ));
        let all = known.of.clone();
        let session = match self
            .open_box(&Wanted {
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

    /// As if it were to be kept: whatever is checked then is checked. Says what was installed.
    async fn try_out(
        &self,
        session: &Session,
        wheels: &Wheels,
        only: &[String],
    ) -> Result<Vec<(String, Version)>, Problem> {
        let place = self
            .0
            .folder
            .join(format!("{MAKING}{}", engine::fresh_id()));
        let made = self
            .make_in(
                session,
                &Wanted {
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
            // Pip leaves none where it found at once that it cannot; what stays would be taken for the next one's.
            match tree.stat(Path::new(LAYER)).is_ok() {
                true => tree
                    .remove(Path::new(LAYER), true)
                    .map_err(|error| not_begun(&error.to_string())),
                false => Ok(()),
            }
        })
        .await?;
        made.and(installed)
    }
}

/// What is in a folder, by pip's own notes there: `NAME-VERSION.dist-info`.
fn packages_in(folder: &Path) -> Result<Vec<(String, Version)>, Problem> {
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
            // Some write a name with the sign that parts names of wheels.
            found.push(of_wheel(&format!("{}-{version}", name.replace('-', "_"))));
        }
    }
    Ok(found)
}

fn late() -> Problem {
    Problem::new("those before it took too long", "").passing()
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
        let newest = Chosen::newest(&wheels);
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
        let mut known = Known::new(wheels);
        assert!(known.is_due() && known.untried() == ["a", "b", "c", "d"]);
        known
            .tried
            .insert("a".to_owned(), Err(Problem::new("too slow", "").passing()));
        known
            .tried
            .insert("b".to_owned(), Err(Problem::new("no zip", "")));
        known.tried.insert("c".to_owned(), Ok(()));
        assert_eq!(known.untried(), ["d", "a"]);
        let (good, problems) = known.parted(&Problem::new("no time", "").passing());
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
