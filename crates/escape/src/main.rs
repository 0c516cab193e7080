//! The program `airlock-escape`: runs the escape suite for `airlock escape-test`, which passes its options as one JSON object.
//! The attacks are linked into this program and not into `airlock`. In a sandbox of the suite this program is the attacker.

mod report;

use escape::{Case, Containers, LEFT_OUT, Row, Settings, World, attack};
use report::{print, print_json, printable};
use serde::Deserialize;
use spec::{ErrorCode, ErrorInfo};
use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

/// An attack got out, or a case proved nothing.
const LEAKY: u8 = 1;
/// The suite was refused or failed before it began.
const REFUSED: u8 = 125;

/// The options of `airlock escape-test`, as `crates/app/src/cli/escape_test.rs` writes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// `engine::SOURCES` of `airlock`.
    sources: String,
    airlock: PathBuf,
    json: bool,
    only: Vec<String>,
    list: bool,
    full: bool,
    dangerously_harm_this_machine: bool,
    peer: bool,
    pooled: bool,
    containers: Option<ContainerOrder>,
}

/// The container engine whose sandboxes are attacked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContainerOrder {
    backend: String,
    image: PathBuf,
    docker: Vec<String>,
    podman: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = attack::entry(&arguments) {
        return ExitCode::from(status);
    }
    let order = match arguments.as_slice() {
        [_, order] => order.to_str().map(serde_json::from_str::<Order>),
        _ => None,
    };
    let Some(Ok(order)) = order else {
        eprintln!("airlock: error: `airlock-escape` is started by `airlock escape-test`");
        return ExitCode::from(REFUSED);
    };
    let json = order.json;
    let done = check_sources(&order.sources).and_then(|()| run(order));
    ExitCode::from(done.unwrap_or_else(|error| refuse(error, json)))
}

/// Refuses to attack another engine than that of `airlock`: its verdicts would say nothing of that.
fn check_sources(of_airlock: &str) -> Result<(), ErrorInfo> {
    if of_airlock == engine::SOURCES {
        return Ok(());
    }
    let build =
        "in the source tree, `cargo build --release -p airlock -p airlock-escape` builds both";
    Err(ErrorInfo {
        code: ErrorCode::Internal,
        message: "`airlock-escape` is built from other sources than `airlock`".to_owned(),
        hint: Some(build.to_owned()),
    })
}

fn run(order: Order) -> Result<u8, ErrorInfo> {
    let chosen = chosen(&order.only)?;
    if order.list {
        list(&chosen, order.json)?;
        return Ok(0);
    }
    let (json, backend) = (order.json, backend(&order));
    let world = World::prepare(settings(order)?)
        .map_err(|error| internal(format!("cannot set the traps: {error}")))?;
    let rows: Vec<_> = chosen
        .iter()
        .enumerate()
        .map(|(number, case)| {
            let (number, count) = (number + 1, chosen.len());
            progress(&format!("{number}/{count} {} {}", case.id, case.title));
            case.run(&world)
        })
        .collect();
    progress("");
    let holds = rows.iter().all(Row::holds);
    if json {
        let backend = backend.as_deref().unwrap_or("native");
        print_json(&serde_json::json!({ "holds": holds, "backend": backend, "cases": rows }))?;
    } else {
        print(&report::table(
            &rows,
            backend.as_deref().unwrap_or("airlock"),
        ))?;
    }
    Ok(if holds { 0 } else { LEAKY })
}

fn backend(order: &Order) -> Option<String> {
    let containers = order.containers.as_ref()?;
    Some(containers.backend.clone())
}

fn settings(order: Order) -> Result<Settings, ErrorInfo> {
    let attacker = std::env::current_exe()
        .map_err(|error| internal(format!("cannot find this program itself: {error}")))?;
    let containers = order.containers.map(|containers| Containers {
        backend: containers.backend,
        image: containers.image,
        hosts: engine::EngineSockets {
            docker: containers.docker,
            podman: containers.podman,
        },
    });
    Ok(Settings {
        airlock: order.airlock,
        attacker,
        folder: std::env::temp_dir(),
        full: order.full,
        dangerously_harm_this_machine: order.dangerously_harm_this_machine,
        peer: order.peer,
        pooled: order.pooled,
        containers,
    })
}

/// The cases that these words name: `A6`, or `A` for the whole group.
fn chosen(only: &[String]) -> Result<Vec<&'static Case>, ErrorInfo> {
    let names = |case: &Case, word: &str| {
        case.id.eq_ignore_ascii_case(word)
            || (word.len() == 1 && case.id[..1].eq_ignore_ascii_case(word))
    };
    let is_known = |word: &str| escape::cases().any(|case| names(case, word));
    if let Some(unknown) = only.iter().find(|word| !is_known(word)) {
        return Err(ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: format!("there is no case or group `{}`", unknown.escape_debug()),
            hint: Some("`airlock escape-test --list` shows them".to_owned()),
        });
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|word| names(case, word));
    Ok(escape::cases().filter(wanted).collect())
}

fn list(cases: &[&Case], json: bool) -> Result<(), ErrorInfo> {
    if json {
        let rows: Vec<_> = cases
            .iter()
            .map(|case| serde_json::json!({ "id": case.id, "title": case.title }))
            .collect();
        return print_json(&serde_json::json!({ "cases": rows }));
    }
    let lines = cases
        .iter()
        .map(|case| format!("{:<4} {}\n", case.id, case.title));
    print(&lines.collect::<String>())
}

/// One line that is written over, for whoever waits at a terminal.
fn progress(text: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // A terminal that is gone shows no progress.
        _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
    }
}

fn internal(message: String) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::Internal,
        message,
        hint: Some("`airlock doctor` shows what this host gives".to_owned()),
    }
}

/// Reports an error as `airlock` does, and returns its exit status.
fn refuse(error: ErrorInfo, json: bool) -> u8 {
    eprintln!("airlock: error: {}", printable(&error.message));
    if let Some(hint) = &error.hint {
        eprintln!("airlock: hint: {}", printable(hint));
    }
    if json && let Err(unwritten) = print_json(&serde_json::json!({ "error": error })) {
        eprintln!("airlock: error: {}", printable(&unwritten.message));
    }
    REFUSED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_a_group_and_an_unknown_word_is_refused() {
        let ids = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            chosen(&words).map(|cases| cases.iter().map(|case| case.id).collect::<Vec<_>>())
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
