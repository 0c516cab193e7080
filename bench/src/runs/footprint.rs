//! What a sandbox holds, parked or with a live run in it. A child of our own makes them in a memory cgroup made for
//! that, once few and once many; the difference, divided, is one sandbox without what they share.

use crate::runs::{
    Options, hundred,
    ways::{
        Reason,
        cgroup::own_cgroup,
        fresh_folder, image,
        library::{admit, of_image},
        pool::{self, Ahead},
    },
};
use spec::RunRequest;
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

/// Enough that what the kernel charges ahead on each processor, for a handful of groups, is in both counts.
pub(crate) const FEW: usize = 16;

/// What was counted while some were there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Footprint {
    /// Bytes that their memory cgroup is charged with, kernel memory included.
    pub(crate) charged: Option<u64>,
    /// Their processes' share of memory.
    pub(crate) pss: Option<u64>,
    /// Bytes of the disk that the state folder takes.
    pub(crate) disk: Option<u64>,
}

/// What one of them adds: the difference of the two counts, divided.
pub(crate) struct Each {
    pub(crate) count: usize,
    pub(crate) held: Footprint,
}

/// What a child is asked to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What<'a> {
    /// Parked sandboxes.
    Parked,
    /// Live runs of the image in this archive.
    Live(&'a Path),
}

impl What<'_> {
    /// The subcommand that makes a child hold them.
    fn subcommand(self) -> &'static str {
        match self {
            What::Parked => "park",
            What::Live(_) => "hold",
        }
    }
}

/// Counts with few and with many.
pub(crate) fn each(what: What, many: usize, options: &Options) -> Result<Each, Reason> {
    let (first, second) = (
        footprint(options, what, FEW)?,
        footprint(options, what, many)?,
    );
    let count = many - FEW;
    let each =
        |few: Option<u64>, many: Option<u64>| Some(many?.saturating_sub(few?) / count as u64);
    let held = Footprint {
        charged: each(first.charged, second.charged),
        pss: each(first.pss, second.pss),
        disk: each(first.disk, second.disk),
    };
    Ok(Each { count, held })
}

fn footprint(options: &Options, what: What, count: usize) -> Result<Footprint, Reason> {
    let state = fresh_folder(options, "held")?;
    if let What::Live(archive) = what {
        image::load(archive, &state, options)?;
    }
    let group = memory_group(count);
    let counted = count_in(group.as_deref(), what, count, &state);
    if let Some(group) = group {
        remove(&group);
    }
    counted
}

fn count_in(
    group: Option<&Path>,
    what: What,
    count: usize,
    state: &Path,
) -> Result<Footprint, Reason> {
    let failed = |error: io::Error| format!("cannot hold sandboxes: {error}");
    let own = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(own);
    child
        .arg(what.subcommand())
        .arg(state)
        .arg(count.to_string());
    let child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().ok_or("a child without standard input")?;
    let counted = while_held(&mut child, &mut stdin, group, state);
    drop(stdin);
    let mut told = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut told).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    match (status.success(), counted) {
        (true, Ok(held)) => Ok(held),
        (true, Err(error)) => Err(failed(error)),
        (false, _) => Err(told
            .lines()
            .next()
            .map_or_else(|| status.to_string(), str::to_owned)),
    }
}

/// Lets the child begin once it is in its group, and counts when it says that all stand.
fn while_held(
    child: &mut Child,
    stdin: &mut ChildStdin,
    group: Option<&Path>,
    state: &Path,
) -> io::Result<Footprint> {
    if let Some(group) = group {
        fs::write(group.join("cgroup.procs"), child.id().to_string())?;
    }
    stdin.write_all(b"\n")?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(stdout).read_line(&mut String::new())?;
    let usage = group
        .map(|group| fs::read_to_string(group.join("memory.usage_in_bytes")))
        .transpose()?;
    let charged = usage.and_then(|text| text.trim().parse().ok());
    let pss = descendants(child.id()).into_iter().map(pss).sum();
    Ok(Footprint {
        charged,
        pss,
        disk: Some(taken(state, fs::symlink_metadata(state)?.dev())?),
    })
}

/// Bytes of the disk that a folder takes, without what is mounted in it.
fn taken(folder: &Path, device: u64) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        bytes += about.blocks() * 512;
        if about.is_dir() && about.dev() == device {
            bytes += taken(&entry.path(), device)?;
        }
    }
    Ok(bytes)
}

/// A memory cgroup for the child; none where we may make none.
fn memory_group(count: usize) -> Option<PathBuf> {
    let own = own_cgroup(&fs::read_to_string("/proc/self/cgroup").ok()?, "memory")?;
    let group = own.join(format!("airlock-bench-held-{count}-{}", std::process::id()));
    fs::create_dir(&group).ok().map(|()| group)
}

/// Removes a group and those below it.
fn remove(group: &Path) {
    for below in fs::read_dir(group).into_iter().flatten().flatten() {
        if below.path().is_dir() {
            remove(&below.path());
        }
    }
    // Who was in it may still be on his way out, and version 1 does not tell when he is gone.
    for _ in 0..100 {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_millis(20))
            }
            // Left behind it is empty and limits nothing.
            Ok(()) | Err(_) => return,
        }
    }
}

/// All processes below this one.
fn descendants(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children =
        tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: Vec<u32> = children
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    children
        .into_iter()
        .flat_map(|child| [vec![child], descendants(child)].concat())
        .collect()
}

/// The proportional share of memory of a process, in bytes; none if it is not ours to see.
fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// The child's part: waits for a line, parks, says so, and goes when its standard input ends.
pub(crate) fn park(state: PathBuf, parked: usize) -> Result<(), String> {
    until_told(async {
        let ahead = Ahead::Parked(parked);
        let engine = pool::open(state, ahead)?;
        let spec = admit(RunRequest {
            command: vec!["/bin/true".into()],
            ..RunRequest::default()
        })?;
        pool::settle(&engine, &spec, ahead).await;
        say_and_wait("parked")?;
        pool::close(engine).await;
        Ok(())
    })
}

/// The same with live runs of the image that was loaded.
pub(crate) fn hold(state: PathBuf, runs: usize) -> Result<(), String> {
    until_told(async {
        let engine = pool::open(state, Ahead::Nothing)?;
        let spec = admit(RunRequest {
            stdin: true,
            ..of_image(&[image::ANSWERS.into()])
        })?;
        let live = hundred::all_alive(runs, || engine.start(spec.clone())).await?;
        say_and_wait("live")?;
        live.end().await?;
        pool::close(engine).await;
        Ok(())
    })
}

fn until_told(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    io::stdin()
        .lock()
        .read_line(&mut String::new())
        .map_err(failed)?;
    // Launchers are nobody's children; whoever counts us must find them.
    let us = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(us)).map_err(|error| failed(error.into()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(work)
}

fn say_and_wait(word: &str) -> Result<(), String> {
    println!("{word}");
    io::stdin()
        .lock()
        .read_line(&mut String::new())
        .map(|_| ())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_folder_takes_is_what_is_written_below_it() {
        let folder = std::env::temp_dir().join(format!("airlock-taken-{}", std::process::id()));
        fs::create_dir_all(folder.join("below")).expect("a folder of ours");
        let taken = || {
            let device = fs::symlink_metadata(&folder).expect("it is there").dev();
            super::taken(&folder, device).expect("it can be read")
        };
        let before = taken();
        fs::write(folder.join("below/file"), vec![1; 1 << 20]).expect("it is written");
        // File systems give blocks when they write them out.
        rustix::fs::sync();
        let after = taken();
        fs::remove_dir_all(&folder).expect("ours");
        assert!(
            (1 << 20..2 << 20).contains(&(after - before)),
            "{before} and {after}"
        );
    }
}
