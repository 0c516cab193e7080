//! Which wheels can be installed: they are for every tool, and one that cannot be shall not take the others, and with them every
//! tool, away.
//!
//! ```text
//! all together ─┬─ well ─▶ all
//!               └─ failed ─ each alone, with the others to take from ─▶ those that went well, together ─┬─ well ─▶ those
//!                                                                                                      └─ failed ─▶ none
//! ```

use super::{Installer, LONGEST, MAKING, Problem, Wanted, Wheels, word};
use std::{fs, time::Duration};
use tokio::time::Instant;

/// Where no wheel can be installed, something else may be to blame: it is tried again, but not for every tool.
const AGAIN: Duration = Duration::from_secs(60);

/// Wheels that can be installed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sound {
    pub(crate) wheels: Wheels,
    /// What is wrong with the others.
    pub(crate) problems: Vec<Problem>,
    /// None could be, and perhaps another time.
    pub(crate) is_lacking: bool,
}

/// What was found out last.
#[derive(Debug)]
pub(super) struct Known {
    of: Wheels,
    at: Instant,
    sound: Sound,
}

impl Installer {
    /// Finds out, once for the same wheels.
    pub(crate) async fn sound(&self, wheels: &Wheels, tell: impl Fn(String) + Send + Sync) -> Sound {
        if wheels.files.is_empty() {
            return Sound::default();
        }
        let mut known = self.0.sound.lock().await;
        let is_fresh = |known: &&Known| !known.sound.is_lacking || known.at.elapsed() < AGAIN;
        if let Some(known) = known.as_ref().filter(|known| known.of == *wheels).filter(is_fresh) {
            return known.sound.clone();
        }
        let sound = match self.layer(None, wheels, &tell).await {
            Ok(_) => Sound { wheels: wheels.clone(), ..Sound::default() },
            Err(whole) => self.sift(wheels, whole, &tell).await,
        };
        *known = Some(Known { of: wheels.clone(), at: Instant::now(), sound: sound.clone() });
        sound
    }

    async fn sift(&self, wheels: &Wheels, whole: Problem, tell: &(impl Fn(String) + Send + Sync)) -> Sound {
        let mut sound = Sound { wheels: wheels.clone(), ..Sound::default() };
        let until = Instant::now() + LONGEST;
        let several = wheels.files.len() > 1;
        if several {
            tell(format!("wheels cannot be installed together: {} are tried alone", wheels.files.len()));
        }
        for name in wheels.files.keys().filter(|_| several) {
            let tried = match Instant::now() < until {
                true => self.alone(wheels, name).await,
                false => Err(Problem::new("those before it took too long", "")),
            };
            if let Err(problem) = tried {
                sound.wheels.files.remove(name);
                let message = format!("the wheel `{}` is left out: {}", word(name), problem.message);
                let hint = "tools that import it fail; put one that can be installed, or what it needs, into wheels/";
                sound.problems.push(Problem::new(message, hint));
            }
        }
        let is_some = several && !sound.wheels.files.is_empty() && !sound.problems.is_empty();
        if is_some && self.layer(None, &sound.wheels, tell).await.is_ok() {
            return sound;
        }
        let message = format!("{}; tools are served without", whole.message);
        let problems = vec![Problem { message, ..whole }];
        Sound { problems, is_lacking: true, ..Sound::default() }
    }

    /// As if it were to be kept: whatever is checked then is checked.
    async fn alone(&self, wheels: &Wheels, name: &str) -> Result<(), Problem> {
        let place = self.0.folder.join(format!("{MAKING}{}", engine::fresh_id()));
        let made = self.make(&Wanted { requirement: None, wheels, only: Some(name) }, &place).await;
        _ = tokio::task::spawn_blocking(move || fs::remove_dir_all(place)).await;
        made
    }
}
