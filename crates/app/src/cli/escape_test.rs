//! `airlock escape-test`: attacks sandboxes on this machine, and shows that they hold.

use super::{
    Global, conclude,
    message::{Failure, printable},
    print, print_json,
};
use crate::config::ProcessEnv;
use clap::Args;
use escape::{Case, Containers, Controlled, Row, Settings, Verdict, World};
use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
};

const EXAMPLES: &str = "\
Examples:
  airlock escape-test --only A6,C53
  airlock escape-test --list
  airlock escape-test --only B34 --no-peer --json | jq '.cases[].airlock.verdict'

Every case is an attack from inside, judged by what the host observes.
  airlock  the attack in an Airlock sandbox
  docker   or podman, instead of airlock: in a container (--backend), of an image with a C library
  control  the same attack with the protection off: it must escape, or the case proves nothing
  bwrap    the same attack on bubblewrap, if it is installed
blocked: the attack had no effect.  detected: not stopped, but reported in the run's result.
ESCAPED: the attack escaped.  n.a.: not tried, with the reason.
Exit status: 0 if nothing escaped and every control that was run worked, 1 if not.";

/// Exit status if an attack escaped or a control failed.
const NOT_CONTAINED: u8 = 1;
const CONTAINERS: [&str; 3] = ["docker", "podman", "container"];

/// The options of `airlock escape-test`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Only these cases or groups, by number or letter
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// List the cases and exit
    #[arg(long)]
    list: bool,
    /// Attack containers of this engine instead: docker, podman or container
    #[arg(long, value_name = "NAME", requires = "image")]
    backend: Option<String>,
    /// The image of these containers, which the engine must have already
    #[arg(long, value_name = "REF", requires = "backend")]
    image: Option<PathBuf>,
    /// Do not attack bwrap for comparison
    #[arg(long)]
    no_peer: bool,
    /// Large counts
    #[arg(long, hide = true)]
    full: bool,
    /// In sandboxes made ahead
    #[arg(long, hide = true)]
    pooled: bool,
    /// Also the controls that would harm a machine
    #[arg(long, hide = true)]
    dangerously_harm_this_machine: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    global.refuse_server(env)?;
    let selected_cases = selected_cases(&options.only)?;
    if options.list {
        list(&selected_cases, options.json)?;
        return Ok(0);
    }
    let prepared = World::prepare(settings(options, global, env)?);
    let world = prepared
        .map_err(|error| Failure::internal(format!("cannot prepare the attacks: {error}")))?;
    let rows: Vec<_> = selected_cases
        .iter()
        .enumerate()
        .map(|(number, case)| {
            progress(&format!(
                "{}/{} {} {}",
                number + 1,
                selected_cases.len(),
                case.id,
                case.title
            ));
            case.run(&world)
        })
        .collect();
    progress("");
    let holds = rows.iter().all(Row::holds);
    let backend = options.backend.as_deref().unwrap_or("native");
    if options.json {
        print_json(&serde_json::json!({ "holds": holds, "backend": backend, "cases": rows }))?
    } else {
        print(&table(
            &rows,
            options.backend.as_deref().unwrap_or("airlock"),
        ))?
    }
    Ok(if holds { 0 } else { NOT_CONTAINED })
}

/// The containers to attack, if `--backend` names an engine.
fn containers(
    options: &Options,
    global: &Global,
    env: &ProcessEnv,
) -> Result<Option<Containers>, Failure> {
    let (Some(backend), Some(image)) = (&options.backend, &options.image) else {
        return Ok(None);
    };
    if !CONTAINERS.contains(&backend.as_str()) {
        let message = format!("`{}` is not a container backend", backend.escape_debug());
        return Err(Failure::invalid(
            message,
            "--backend is docker, podman or container here",
        ));
    }
    let hosts = super::settings(&global.configure(env)?)?.containers;
    Ok(Some(Containers {
        backend: backend.clone(),
        image: image.clone(),
        hosts,
    }))
}

fn settings(options: &Options, global: &Global, env: &ProcessEnv) -> Result<Settings, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program's file: {error}")))?;
    Ok(Settings {
        program,
        folder: env
            .variable("TMPDIR")
            .map_or_else(|| "/tmp".into(), Into::into),
        full: options.full,
        dangerously_harm_this_machine: options.dangerously_harm_this_machine,
        peer: !options.no_peer,
        pooled: options.pooled,
        containers: containers(options, global, env)?,
    })
}

/// The cases that `--only` selects: `A6`, or `A` for a group.
fn selected_cases(only: &[String]) -> Result<Vec<&'static Case>, Failure> {
    let names = |case: &Case, word: &str| {
        case.id.eq_ignore_ascii_case(word)
            || (word.len() == 1 && case.id[..1].eq_ignore_ascii_case(word))
    };
    if let Some(unknown) = only
        .iter()
        .find(|word| !escape::cases().any(|case| names(case, word)))
    {
        let message = format!("there is no case or group `{}`", unknown.escape_debug());
        return Err(Failure::invalid(
            message,
            "`airlock escape-test --list` shows them",
        ));
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|word| names(case, word));
    Ok(escape::cases().filter(wanted).collect())
}

fn list(cases: &[&Case], json: bool) -> Result<(), Failure> {
    if json {
        let rows: Vec<_> = cases
            .iter()
            .map(|case| serde_json::json!({ "id": case.id, "title": case.title }))
            .collect();
        return print_json(&serde_json::json!({ "cases": rows }));
    }
    print(
        &cases
            .iter()
            .map(|case| format!("{:<4} {}\n", case.id, case.title))
            .collect::<String>(),
    )
}

/// Progress on a terminal, one line that is redrawn.
fn progress(text: &str) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
    }
}

fn table(rows: &[Row], attacked: &str) -> String {
    let titles = rows
        .iter()
        .map(|row| row.title.chars().count())
        .chain(["attack".len()])
        .max()
        .unwrap_or(0);
    let line = |id: &str, title: &str, cells: [&str; 3]| {
        let [airlock, control, bwrap] = cells;
        let text = format!("{id:<4}  {title:<titles$}  {airlock:<9}  {control:<8}  {bwrap}");
        format!("{}\n", text.trim_end())
    };
    let mut text = line("case", "attack", [attacked, "control", "bwrap"]);
    for row in rows {
        text += &line(
            row.id,
            row.title,
            [
                verdict_word(&row.airlock),
                control_word(&row.control),
                verdict_word(&row.bwrap),
            ],
        );
    }
    let notes: Vec<_> = rows.iter().flat_map(notes).collect();
    if !notes.is_empty() {
        text += &format!("\n{}\n", notes.join("\n"));
    }
    text + &summary(rows)
}

fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Blocked => "blocked",
        Verdict::Detected(_) => "detected",
        Verdict::Escaped(_) => "ESCAPED",
        Verdict::NotApplicable(_) => "n.a.",
        Verdict::Broken(_) => "BROKEN",
    }
}

fn control_word(control: &Controlled) -> &'static str {
    match control {
        Controlled::Succeeded => "works",
        Controlled::Failed(_) => "FAILED",
        Controlled::NotRun(_) => "not run",
    }
}

/// The reasons, below the table.
fn notes(row: &Row) -> Vec<String> {
    let of_verdict = |verdict: &Verdict| match verdict {
        Verdict::Blocked => None,
        Verdict::Detected(why)
        | Verdict::Escaped(why)
        | Verdict::NotApplicable(why)
        | Verdict::Broken(why) => Some(why.clone()),
    };
    let control = match &row.control {
        Controlled::Succeeded => None,
        Controlled::Failed(why) | Controlled::NotRun(why) => Some(why.clone()),
    };
    let airlock = of_verdict(&row.airlock);
    // The control's reason would repeat that of a case that does not apply.
    let control = control.filter(|_| !matches!(row.airlock, Verdict::NotApplicable(_)));
    let bwrap = of_verdict(&row.bwrap)
        .filter(|why| airlock.as_ref() != Some(why) && why != escape::LEFT_OUT);
    let all = [("airlock", airlock), ("control", control), ("bwrap", bwrap)];
    let reasons = all.into_iter().filter_map(|(who, why)| Some((who, why?)));
    reasons
        .map(|(who, why)| format!("{} {who}: {}", row.id, printable(&why)))
        .collect()
}

fn summary(rows: &[Row]) -> String {
    let of = |wanted: &str| {
        rows.iter()
            .filter(|row| verdict_word(&row.airlock) == wanted)
            .count()
    };
    let controls = |wanted: &str| {
        rows.iter()
            .filter(|row| control_word(&row.control) == wanted)
            .count()
    };
    let peer = rows
        .iter()
        .filter(|row| verdict_word(&row.bwrap) == "ESCAPED")
        .count();
    format!(
        "\n{} cases: {} blocked, {} detected, {} escaped, {} not applicable, {} broken; \
         controls: {} work, {} failed, {} not run; bwrap: {peer} escaped\n",
        rows.len(),
        of("blocked"),
        of("detected"),
        of("ESCAPED"),
        of("n.a."),
        of("BROKEN"),
        controls("works"),
        controls("FAILED"),
        controls("not run"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_below_the_table_and_cannot_steer_the_terminal() {
        let row = Row {
            id: "A6",
            title: "links",
            airlock: Verdict::Escaped("it said \x1b[2J".to_owned()),
            control: Controlled::Succeeded,
            bwrap: Verdict::Blocked,
            duration_ms: 1,
        };
        let wanted = "\
case  attack  airlock    control   bwrap
A6    links   ESCAPED    works     blocked

A6 airlock: it said \\u{1b}[2J

1 cases: 0 blocked, 0 detected, 1 escaped, 0 not applicable, 0 broken; controls: 1 work, 0 failed, 0 not run; \
bwrap: 0 escaped
";
        assert_eq!(table(&[row], "airlock"), wanted);
    }

    #[test]
    fn a_letter_is_a_group_and_an_unknown_word_is_refused() {
        let ids = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            selected_cases(&words).map(|cases| cases.iter().map(|case| case.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(&["a6"]).unwrap(), ["A6"]);
        assert!(
            ids(&["A"]).unwrap().len() > 1
                && ids(&["A"]).unwrap().iter().all(|id| id.starts_with('A'))
        );
        assert_eq!(
            ids(&["Q"]).unwrap_err().message,
            "there is no case or group `Q`"
        );
    }
}
