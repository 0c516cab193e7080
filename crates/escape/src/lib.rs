//! The escape suite: attacks on a box, judged by what the host sees of them.
//!
//! ```text
//! case ─┬─ in a box of ours, everything up ──▶ blocked │ detected │ escaped │ not applicable
//!       ├─ control: the same, one wall down ─▶ must get out, else the case proves nothing
//!       └─ peer: the same in bwrap, started as the source system's worker starts it
//! ```
//!
//! A case is one function: it sets a trap on the host, lets the attack run wherever it is told to, and looks at
//! the trap. An attacker's own word can convict, never acquit. Attacks live in [`attack`] and run inside only.
//!
//! A new case is a row and a function in the file of its group; what it does inside is in `attack/`.

pub mod attack;
mod egress;
mod files;
mod host_tools;
mod internet;
mod kernel;
mod neighbours;
mod network;
mod oracle;
mod own;
mod peer;
mod probe;
mod requests;
mod resources;
mod terminal;
mod world;

pub use world::World;

use engine::Step;
use serde::Serialize;
use std::{path::PathBuf, time::Instant};
use world::{Ground, Place};

/// What the suite is given; it reads neither environment nor home.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `airlock`, for cases that start the command itself.
    pub airlock: PathBuf,
    /// The program with the attacks: it is copied into the sandboxes.
    pub attacker: PathBuf,
    /// Where to make a folder for traps.
    pub folder: PathBuf,
    /// Large counts.
    pub full: bool,
    /// Also the controls that would harm a machine. Only for one that is thrown away afterwards.
    pub dangerously_harm_this_machine: bool,
    /// Whether to attack the peer, too.
    pub peer: bool,
    /// Whether our boxes, or what they are made of, come from a pool.
    pub pooled: bool,
    /// Whose boxes are attacked, if not our own. Controls stay ours: no container engine leaves a wall out.
    pub containers: Option<Containers>,
}

/// Boxes that a container engine makes.
#[derive(Clone, Debug)]
pub struct Containers {
    /// As `--backend` calls it.
    pub backend: String,
    /// An image that the engine has, with the libraries of the attacker.
    pub image: PathBuf,
    /// Where the engine listens.
    pub hosts: engine::EngineSockets,
}

/// One case of the suite.
#[derive(Debug)]
pub struct Case {
    /// Its number in the suite, such as `A6`; additions of our own are `X…`.
    pub id: &'static str,
    /// What is tried.
    pub title: &'static str,
    test: Test,
    control: Control,
    peer: Peer,
}

#[derive(Debug)]
enum Test {
    Run(fn(&Ground<'_>) -> Outcome),
    /// Nothing to attack in this build, and why.
    Nothing(&'static str),
}

/// How the same attack is shown to work.
#[derive(Clone, Copy, Debug)]
enum Control {
    /// In the same box without these steps.
    Without(&'static [Step]),
    /// The same, without a cgroup, too.
    WithoutCgroups(&'static [Step]),
    /// The same, where root starts the boxes; a user's attack cannot have that power, and why.
    WithoutAsRoot(&'static [Step], &'static str),
    /// In the same box, to which what the attack is after is given by an option. The case does it.
    Given,
    /// As `WithoutAsRoot`, on a machine of its own.
    Guest(&'static [Step], &'static str),
}

/// Whether the peer is attacked, too.
#[derive(Clone, Copy, Debug)]
enum Peer {
    Runs,
    /// There is nothing of the kind to attack, and why.
    Nothing(&'static str),
    /// It would harm the machine.
    Guest,
}

/// What the host saw of an attack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// Nothing of it.
    Nothing,
    /// It was done, and the result says so.
    Reported(String),
    /// What got out.
    Escape(String),
}

/// Why a case has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// A prerequisite is missing.
    Missing(String),
    /// The attack or its trap did not work: it proves nothing.
    Broken(String),
    /// No line of the attack ran: Airlock refused. Where that is not what a case is about, it is broken.
    Refused(String),
}

type Outcome = Result<Finding, Trouble>;

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(error: rustix::io::Errno) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

/// What became of an attack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing came of it.
    Blocked,
    /// It was not stopped, and the result says so.
    Detected(String),
    /// It got out.
    Escaped(String),
    /// It was not tried, for the lack of this.
    NotApplicable(String),
    /// It did not work as an attack: it proves nothing.
    Broken(String),
}

/// What became of a control.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum Controlled {
    /// Without the wall the attack gets out, and the host sees it.
    Succeeded,
    /// It does not even then: the case proves nothing.
    Failed(String),
    /// It was not run here, and why.
    NotRun(String),
}

/// The row of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its number.
    pub id: &'static str,
    /// What is tried.
    pub title: &'static str,
    /// In a box of ours.
    pub airlock: Verdict,
    /// With the wall down.
    pub control: Controlled,
    /// In the peer's.
    pub bwrap: Verdict,
    /// How long all of it took.
    pub duration_ms: u64,
}

impl Row {
    /// Whether nothing got out and what was run proves something.
    pub fn holds(&self) -> bool {
        let held = !matches!(self.airlock, Verdict::Escaped(_) | Verdict::Broken(_));
        held && !matches!(self.control, Controlled::Failed(_))
    }
}

/// Why the peer has no verdict when it was not asked for one.
pub const LEFT_OUT: &str = "left out";

/// Every case, in order.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    let groups = [
        files::CASES,
        kernel::CASES,
        network::CASES,
        egress::CASES,
        requests::CASES,
        neighbours::CASES,
        requests::CREDENTIALS,
        resources::CASES,
        own::CASES,
        egress::OWN,
    ];
    let groups = groups.into_iter().chain(host_tools::CASES);
    let mut all: Vec<_> = groups.flatten().collect();
    all.sort_by_key(|case| place(case.id));
    all.into_iter()
}

/// Group, number, and what stands behind it.
fn place(id: &str) -> (&str, u32, &str) {
    let (group, rest) = id.split_at(1);
    let end = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    let (number, behind) = rest.split_at(end);
    (group, number.parse().unwrap_or(0), behind)
}

impl Case {
    /// Tries it everywhere.
    pub fn run(&self, world: &World) -> Row {
        let (id, title, began) = (self.id, self.title, Instant::now());
        let test = match self.test {
            Test::Run(test) => test,
            Test::Nothing(why) => {
                let airlock = Verdict::NotApplicable(why.to_owned());
                let control = Controlled::NotRun("there is nothing to attack".to_owned());
                return Row {
                    id,
                    title,
                    airlock: airlock.clone(),
                    control,
                    bwrap: airlock,
                    duration_ms: 0,
                };
            }
        };
        let airlock = verdict(Ground::new(world, Place::Airlock, &[], true).tried(test));
        let control = match &airlock {
            Verdict::NotApplicable(_) => Controlled::NotRun("the attack was not run".to_owned()),
            _ => self.control(test, world),
        };
        let bwrap = self.peer(test, world);
        Row {
            id,
            title,
            airlock,
            control,
            bwrap,
            duration_ms: began.elapsed().as_millis() as u64,
        }
    }

    fn control(&self, test: fn(&Ground<'_>) -> Outcome, world: &World) -> Controlled {
        let steps = match self.control {
            Control::Without(steps) | Control::WithoutCgroups(steps) => steps,
            Control::Given => &[],
            Control::Guest(_, _) if !world.settings.dangerously_harm_this_machine => {
                return Controlled::NotRun("guest only: it would harm this machine".to_owned());
            }
            Control::WithoutAsRoot(_, why) | Control::Guest(_, why) if !world.root => {
                return Controlled::NotRun(format!("as root only: {why}"));
            }
            Control::WithoutAsRoot(steps, _) | Control::Guest(steps, _) => steps,
        };
        let cgroups = !matches!(self.control, Control::WithoutCgroups(_));
        match Ground::new(world, Place::Control, steps, cgroups).tried(test) {
            Ok(Finding::Escape(_)) => Controlled::Succeeded,
            Ok(Finding::Nothing) => {
                Controlled::Failed("without the wall it gets no further".to_owned())
            }
            Ok(Finding::Reported(what)) => {
                Controlled::Failed(format!("it was only reported: {what}"))
            }
            Err(Trouble::Missing(what)) => Controlled::NotRun(what),
            Err(Trouble::Broken(why) | Trouble::Refused(why)) => Controlled::Failed(why),
        }
    }

    fn peer(&self, test: fn(&Ground<'_>) -> Outcome, world: &World) -> Verdict {
        let absent = |why: &str| Verdict::NotApplicable(why.to_owned());
        match (&self.peer, &world.peer) {
            (Peer::Nothing(why), _) => absent(why),
            (Peer::Guest, _) if !world.settings.dangerously_harm_this_machine => {
                absent("guest only: it would harm this machine")
            }
            (_, Err(why)) => absent(why),
            (Peer::Runs | Peer::Guest, Ok(_)) => {
                match verdict(Ground::new(world, Place::Peer, &[], true).tried(test)) {
                    // Its limits may not let an attack run at all: that says nothing about us.
                    Verdict::Broken(why) => Verdict::NotApplicable(why),
                    other => other,
                }
            }
        }
    }
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Ok(Finding::Nothing) => Verdict::Blocked,
        Ok(Finding::Reported(what)) => Verdict::Detected(what),
        Ok(Finding::Escape(what)) => Verdict::Escaped(what),
        Err(Trouble::Missing(what)) => Verdict::NotApplicable(what),
        Err(Trouble::Broken(why) | Trouble::Refused(why)) => Verdict::Broken(why),
    }
}

/// Without these the attack has whatever power its starter has in the namespaces of the box: root's own, or all of a
/// user namespace.
const POWER: &[Step] = &[
    Step::EnterUserNamespace,
    Step::Credentials,
    Step::NoCapabilities,
    Step::SyscallFilter,
    Step::PathRules,
];
/// The user that attacks are inside when they want to be root there.
const ROOT_INSIDE: Option<spec::User> = Some(spec::User { uid: 0, gid: 0 });
const NOT_A_USERS: &str = "a user namespace does not give this power";

/// A case that is run, for the tables of the groups.
const fn case(
    id: &'static str,
    title: &'static str,
    run: fn(&Ground<'_>) -> Outcome,
    control: Control,
    peer: Peer,
) -> Case {
    Case {
        id,
        title,
        test: Test::Run(run),
        control,
        peer,
    }
}

/// A case with nothing to attack yet.
const fn nothing(id: &'static str, title: &'static str, why: &'static str) -> Case {
    Case {
        id,
        title,
        test: Test::Nothing(why),
        control: Control::Given,
        peer: Peer::Nothing(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_number_of_the_groups_is_left_out_or_used_twice() {
        let ids: Vec<_> = cases().map(|case| case.id.to_owned()).collect();
        let group = |letter: char, numbers: std::ops::RangeInclusive<u32>| {
            numbers.map(move |number| format!("{letter}{number}"))
        };
        let numbered = group('A', 1..=24)
            .chain(group('B', 25..=48))
            .chain(group('C', 49..=69));
        let numbered = numbered
            .chain(group('D', 71..=75))
            .chain(group('E', 80..=89))
            .chain(group('H', 1..=71));
        // Those with a `d` are the same with a door.
        let plain = ids
            .iter()
            .filter(|id| !id.starts_with('X') && !id.ends_with('d'))
            .cloned();
        assert_eq!(plain.collect::<BTreeSet<_>>(), numbered.collect());
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }

    #[test]
    fn only_what_got_out_or_proves_nothing_fails() {
        let row = |airlock, control| Row {
            id: "A1",
            title: "",
            airlock,
            control,
            bwrap: Verdict::Escaped(String::new()),
            duration_ms: 0,
        };
        let (why, works) = (String::new, || Controlled::Succeeded);
        for good in [
            Verdict::Blocked,
            Verdict::Detected(why()),
            Verdict::NotApplicable(why()),
        ] {
            assert!(row(good.clone(), works()).holds(), "{good:?}");
            assert!(
                row(good.clone(), Controlled::NotRun(why())).holds(),
                "{good:?}"
            );
            assert!(
                !row(good.clone(), Controlled::Failed(why())).holds(),
                "{good:?}"
            );
        }
        for bad in [Verdict::Escaped(why()), Verdict::Broken(why())] {
            assert!(!row(bad.clone(), works()).holds(), "{bad:?}");
        }
    }
}
