//! The attacker: the program `airlock-escape`, mounted into a sandbox and started with a hidden word.
//!
//! It refuses to run anywhere else. What an attack gets hold of it prints; `claim …` is what it says it did, `ready`
//! that the host may look, `done` that it came to its end. What it does in case of success is bounded.

mod egress;
mod files;
mod kernel;
mod network;
mod resources;
mod sys;

pub(crate) use files::handle_of;
pub(crate) use kernel::{plant_key, remove_key};

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
};

/// The hidden first argument.
pub const WORD: &str = "escape-attack-inside";
/// Where whoever made the box left the permission for this one suite.
const PERMIT: &str = "/attacker/permit";
/// An attack was asked for where none may run.
const REFUSED: u8 = 125;

/// Calls the kernel with integers, strings and buffers.
macro_rules! call {
    ($number:expr $(, $word:expr)* $(,)?) => {
        $crate::attack::sys::call($number, &mut [$($crate::attack::sys::Word::from($word)),*])
    };
}
pub(crate) use call;

/// For the host's side: nothing that whoever started us left open reaches the peer by accident.
pub(crate) fn keep_descriptors_to_ourselves() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC as i32;
    call!(libc::SYS_close_range, 3, i64::from(i32::MAX), flags).map(drop)
}

/// Carries out an attack if the arguments ask for one; the status to exit with.
pub fn entry(arguments: &[OsString]) -> Option<u8> {
    let mut words = arguments
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    if words.next().as_deref() != Some(WORD) {
        return None;
    }
    let token = words.next().unwrap_or_default();
    if !permitted(&token) {
        eprintln!(
            "airlock: error: attacks run only in boxes that the escape suite has made for them"
        );
        return Some(REFUSED);
    }
    let (_marker, name) = (words.next(), words.next().unwrap_or_default());
    let rest: Vec<String> = words.collect();
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let known = files::attack(&name, &rest)
        .or_else(|| kernel::attack(&name, &rest))
        .or_else(|| network::attack(&name, &rest))
        .or_else(|| egress::attack(&name, &rest))
        .or_else(|| resources::attack(&name, &rest));
    match known {
        Some(()) => say("done"),
        None => say(&format!(
            "no attack is called {name} with {} arguments",
            rest.len()
        )),
    }
    Some(0)
}

/// With the token of this suite, and in other namespaces than those of whoever runs it.
fn permitted(token: &str) -> bool {
    let Ok(permit) = fs::read_to_string(PERMIT) else {
        return false;
    };
    let [expected, mounts, pids] = permit.lines().collect::<Vec<_>>()[..] else {
        return false;
    };
    let elsewhere = |kind: &str, outside: &str| {
        fs::read_link(format!("/proc/self/ns/{kind}"))
            .is_ok_and(|own| own.to_string_lossy() != outside)
    };
    !token.is_empty() && token == expected && elsewhere("mnt", mounts) && elsewhere("pid", pids)
}

/// One line to the host. Where nobody listens any more there is nothing left to do.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    if out
        .write_all(format!("{text}\n").as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        sys::exit(1);
    }
}

/// Says what a call came to, if it worked when it should not have.
fn claim<T>(what: &str, came_to: io::Result<T>) -> Option<T> {
    if came_to.is_ok() {
        say(&format!("claim {what}"));
    }
    came_to.ok()
}

/// Lets the host look until it closes standard input.
fn hold() {
    say("ready");
    _ = io::stdin().read_to_end(&mut Vec::new());
}

/// Reads a bounded part of a file and prints it.
fn tell(path: &str) {
    let mut text = Vec::new();
    // Not blocking: some are pipes.
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    if let Ok(file) = opened {
        _ = file.take(1 << 16).read_to_end(&mut text);
        say(&format!(
            "read {path}: {}",
            String::from_utf8_lossy(&text).replace('\n', " ")
        ));
    }
}

/// The processes in sight but ourselves.
fn others() -> Vec<i32> {
    let own = std::process::id() as i32;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own).collect()
}

/// Whether a process is the one that the host set as a trap. Others in sight are left alone.
fn is_victim(pid: i32, marker: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.windows(marker.len().max(1))
        .any(|part| part == marker.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attack_runs_where_no_box_was_made_for_it() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(entry(&words(&["airlock", "run"])), None);
        for token in ["", "guessed"] {
            assert_eq!(
                entry(&words(&["airlock", WORD, token, "marker", "wait"])),
                Some(REFUSED)
            );
        }
    }
}
