//! What airlock-init claims, in real containers: every claim in a Docker and in a Podman that are started here and
//! gone afterwards. The numbers are those of the acceptance tests that a claim answers.
//!
//! `cargo test -p airlock-entrypoint-tests -- WORD…` runs the claims whose names have one of the words; `docker` or `podman`
//! alone chooses the engine.

mod door;
mod engine;
mod image;
mod start;
mod tokens;
mod tree;
mod upstream;

use engine::{Engine, Engines};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A claim and its name.
type Claim = (&'static str, fn(&Engine));

fn claims(words: &[String]) -> Vec<Claim> {
    let all = [start::CLAIMS, tree::CLAIMS, door::CLAIMS, tokens::CLAIMS].concat();
    let chosen = |claim: &Claim| {
        words.is_empty() || words.iter().any(|word| claim.0.contains(word.as_str()))
    };
    all.into_iter().filter(chosen).collect()
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let is_engine = |word: &String| word == "docker" || word == "podman";
    let (names, words): (Vec<_>, Vec<_>) = words.into_iter().partition(is_engine);
    let claims = claims(&words);
    let engines =
        match Engines::start(|name| names.is_empty() || names.iter().any(|other| other == name)) {
            Ok(engines) => engines,
            Err(missing) => return without(&missing),
        };
    let failed: usize = engines.all().map(|engine| run(engine, &claims)).sum();
    let left = engines.stop();
    left.iter().for_each(|what| println!("left behind: {what}"));
    if failed == 0 && left.is_empty() && !claims.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn without(missing: &str) -> ExitCode {
    println!("entry: NOTHING TESTED: {missing}");
    if std::env::var_os("AIRLOCK_TEST_ALL").is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs the claims on two threads; how many failed.
fn run(engine: &Engine, claims: &[Claim]) -> usize {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((name, claim)) = claims.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = std::time::Instant::now();
            let held = catch_unwind(AssertUnwindSafe(|| claim(engine))).is_ok();
            println!(
                "{} {} {name} ({} ms)",
                if held { "ok    " } else { "FAILED" },
                engine.name,
                began.elapsed().as_millis()
            );
            if !held {
                failed.lock().expect("no thread panics here").push(*name);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let failed = failed.into_inner().expect("no thread panics here");
    println!(
        "{}: {} proofs, {} failed {failed:?}",
        engine.name,
        claims.len(),
        failed.len()
    );
    failed.len()
}
