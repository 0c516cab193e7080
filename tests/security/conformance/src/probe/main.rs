//! The probe: runs inside a sandbox and tries one thing that should not work there.
//!
//! Its first argument names the attempt. The last line of stdout is the verdict: `allowed`, with what it got after
//! a space if anything, or `refused ERRNO`. What it does in case of success is harmless and bounded.

mod attempts;
mod denied;
mod holds;
mod kernel;
mod network;
mod odd;
mod terminal;

use std::{ffi::OsString, io, os::unix::ffi::OsStrExt};

/// What an attempt came to: what it got, or the kernel's refusal.
type Attempt = io::Result<String>;

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let name = arguments
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let rest: Vec<String> = arguments
        .iter()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let verdict = match name.as_str() {
        // For exact bytes: everything but the verdict.
        "arguments" => return print_arguments(&arguments[1..]),
        _ => any(&name, &rest),
    };
    match verdict {
        Some(Ok(got)) if got.is_empty() => println!("allowed"),
        Some(Ok(got)) => println!("allowed {got}"),
        Some(Err(error)) => println!("refused {}", error.raw_os_error().unwrap_or(0)),
        None => {
            eprintln!(
                "probe: no attempt is called `{name}` with {} arguments",
                rest.len()
            );
            std::process::exit(64);
        }
    }
}

/// The attempt of that name, if there is one.
fn any(name: &str, arguments: &[&str]) -> Option<Attempt> {
    kernel::attempt(name, arguments)
        .or_else(|| attempts::attempt(name, arguments))
        .or_else(|| holds::attempt(name, arguments))
        .or_else(|| terminal::attempt(name, arguments))
        .or_else(|| denied::attempt(name, arguments))
        .or_else(|| odd::attempt(name, arguments))
        .or_else(|| network::attempt(name, arguments))
}

fn print_arguments(arguments: &[OsString]) {
    let mut out = Vec::new();
    for argument in arguments {
        out.extend_from_slice(argument.as_bytes());
        out.push(0);
    }
    io::Write::write_all(&mut io::stdout(), &out).expect("standard output");
}

/// The kernel's answer to a system call.
fn answer(value: i64) -> Attempt {
    match value {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(String::new()),
    }
}

fn number(text: &str) -> i64 {
    text.parse().expect("a number")
}
