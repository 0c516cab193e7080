//! Which wheels can be installed: they are for every tool, and one that cannot be shall not take the others, and with them every
//! tool, away.
//!
//! ```text
//! all together ─┬─ well ─▶ all
//!               └─ failed ─ each alone, with the others to take from ─▶ those that went well, together ─┬─ well ─▶ those
//!                                                  │                                                   └─ failed ─▶ none
//!                                                  └─ no room, no time ─▶ tried again, after a growing pause
//! ```

use super::{Installer, LAYER, LONGEST, MAKING, Problem, Wanted, Wheels, blocking, not_begun, word};
use engine::Session;
use std::{collections::BTreeMap, fs, path::Path, time::Duration};
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

/// What is known of the wheels that there are.
#[derive(Debug)]
pub(super) struct Known {
    of: Wheels,
    /// What came of each alone. What failed in passing is tried again, behind what nobody tried yet.
    tried: BTreeMap<String, Result<(), Problem>>,
    sound: Sound,
    pub(super) again: Instant,
    pause: Duration,
}

impl Known {
    fn new(of: Wheels) -> Known {
        // Nothing is known yet.
        let sound = Sound { is_lacking: true, ..Sound::default() };
        Known { of, tried: BTreeMap::new(), sound, again: Instant::now(), pause: SHORTEST_PAUSE }
    }

    fn is_due(&self) -> bool {
        self.sound.is_lacking && Instant::now() >= self.again
    }

    /// Those that are to be tried alone, in this order.
    fn untried(&self) -> Vec<String> {
        let is_open = |name: &&String| match self.tried.get(*name) {
            None => true,
            Some(Err(problem)) => problem.is_passing,
            Some(Ok(())) => false,
        };
        let mut names: Vec<String> = self.of.files.keys().filter(is_open).cloned().collect();
        names.sort_by_key(|name| self.tried.contains_key(name));
        names
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
            let message = format!("the wheel `{}` is left out: {}", word(name), problem.message);
            let hint = match problem.is_passing {
                true => "tools that import it fail; it is tried again after a while",
                false => {
                    "tools that import it fail; put one that can be installed, or what it needs, into wheels/"
                }
            };
            problems.push(Problem { is_passing: problem.is_passing, ..Problem::new(message, hint) });
        }
        (good, problems)
    }
}

impl Installer {
    /// Finds out, once for the same wheels, and again where that may lead to more.
    pub(crate) async fn sound(&self, wheels: &Wheels, tell: impl Fn(String) + Send + Sync) -> Sound {
        if wheels.files.is_empty() {
            return Sound::default();
        }
        let mut place = self.0.sound.lock().await;
        let known = place.take().filter(|known| known.of == *wheels);
        let mut known = known.unwrap_or_else(|| Known::new(wheels.clone()));
        if known.is_due() {
            known.sound = self.find_out(&mut known, &tell).await;
            known.again = Instant::now() + known.pause;
            known.pause = (known.pause * 2).min(LONGEST_PAUSE);
        }
        place.insert(known).sound.clone()
    }

    async fn find_out(&self, known: &mut Known, tell: &(impl Fn(String) + Send + Sync)) -> Sound {
        let mut failed = Problem::default();
        if known.tried.is_empty() {
            match self.layer(None, &known.of, tell).await {
                Ok(_) => return Sound { wheels: known.of.clone(), ..Sound::default() },
                Err(problem) => failed = problem,
            }
        }
        let unreached = match known.of.files.len() {
            1 => failed.clone(),
            _ => self.sift(known, tell).await,
        };
        let (good, problems) = known.parted(&unreached);
        if good.files.is_empty() {
            // Something else may be to blame: all begins anew.
            known.tried.clear();
        } else {
            match self.layer(None, &good, tell).await {
                Ok(_) => {
                    let is_lacking = problems.iter().any(|problem| problem.is_passing);
                    return Sound { wheels: good, problems, is_lacking };
                }
                Err(problem) => failed = problem,
            }
        }
        let message = format!("{}; tools are served without", failed.message);
        Sound { problems: vec![Problem { message, ..failed }], is_lacking: true, ..Sound::default() }
    }

    /// Tries each alone, in one box that has them all; says why some were not come to.
    async fn sift(&self, known: &mut Known, tell: &(impl Fn(String) + Send + Sync)) -> Problem {
        let (names, until) = (known.untried(), Instant::now() + LONGEST);
        let late = Problem::new("those before it took too long", "").passing();
        if names.is_empty() {
            return late;
        }
        tell(format!("wheels cannot be installed together: {} are tried alone", names.len()));
        let all = known.of.clone();
        let session = match self.open_box(&Wanted { requirement: None, wheels: &all, only: None }).await {
            Ok(session) => session,
            Err(problem) => return problem.passing(),
        };
        for name in names {
            if Instant::now() >= until {
                break;
            }
            let tried = self.alone(&session, &all, &name).await;
            known.tried.insert(name, tried);
        }
        session.end().await;
        late
    }

    /// As if it were to be kept: whatever is checked then is checked.
    async fn alone(&self, session: &Session, wheels: &Wheels, name: &str) -> Result<(), Problem> {
        let place = self.0.folder.join(format!("{MAKING}{}", engine::fresh_id()));
        let made =
            self.make_in(session, &Wanted { requirement: None, wheels, only: Some(name) }, &place).await;
        _ = tokio::task::spawn_blocking(move || fs::remove_dir_all(place)).await;
        let tree = session.tree().map_err(|error| not_begun(&error.message))?;
        blocking(move || {
            // Pip leaves none where it found at once that it cannot; what stays would be taken for the next one's.
            match tree.stat(Path::new(LAYER)).is_ok() {
                true => tree.remove(Path::new(LAYER), true).map_err(|error| not_begun(&error.to_string())),
                false => Ok(()),
            }
        })
        .await?;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_passing_is_tried_again_behind_what_nobody_tried() {
        let files = ["a", "b", "c", "d"].map(|name| (name.to_owned(), String::new()));
        let mut wheels = Wheels::default();
        wheels.files = files.into();
        let mut known = Known::new(wheels);
        assert!(known.is_due() && known.untried() == ["a", "b", "c", "d"]);
        known.tried.insert("a".to_owned(), Err(Problem::new("too slow", "").passing()));
        known.tried.insert("b".to_owned(), Err(Problem::new("no zip", "")));
        known.tried.insert("c".to_owned(), Ok(()));
        assert_eq!(known.untried(), ["d", "a"]);
        let (good, problems) = known.parted(&Problem::new("no time", "").passing());
        assert_eq!(good.files.into_keys().collect::<Vec<_>>(), ["c"]);
        let told = problems.iter().map(|problem| (&*problem.message, problem.is_passing)).collect::<Vec<_>>();
        let expected = [
            ("the wheel `a` is left out: too slow", true),
            ("the wheel `b` is left out: no zip", false),
            ("the wheel `d` is left out: no time", true),
        ];
        assert_eq!(told, expected);
    }
}
