//! What a parked sandbox holds while it waits. A child of our own parks them in a memory cgroup made for that, once
//! few and once many; the difference, divided, is one sandbox without what they share.

use crate::{
    Options,
    measure::wanted,
    report::{IdleSandbox, NotRun, Report},
    ways::{
        Reason,
        cgroup::own_cgroup,
        library::admit,
        pool::{self, Ahead},
    },
};
use spec::RunRequest;
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

/// Enough that what the kernel charges ahead on each processor, for a handful of groups, is in both counts.
const FEW: usize = 16;
const MANY: usize = 80;

/// What was counted while some were parked.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    charged: Option<u64>,
    pss: Option<u64>,
}

pub(crate) async fn measure(options: &Options, report: &mut Report) {
    if !wanted(options, "idle-sandbox") {
        return;
    }
    (options.progress)("idle-sandbox");
    match both(options) {
        Ok(idle) => report.idle_sandbox = Some(idle),
        Err(reason) => report.not_run.push(NotRun { name: "idle-sandbox".to_owned(), reason }),
    }
}

fn both(options: &Options) -> Result<IdleSandbox, Reason> {
    let (few, many) = (held(options, FEW)?, held(options, MANY)?);
    let each = |few: Option<u64>, many: Option<u64>| Some(many?.saturating_sub(few?) / (MANY - FEW) as u64);
    let (charged_bytes, pss_bytes) = (each(few.charged, many.charged), each(few.pss, many.pss));
    Ok(IdleSandbox { parked: MANY - FEW, charged_bytes, pss_bytes })
}

fn held(options: &Options, parked: usize) -> Result<Held, Reason> {
    let group = memory_group(parked);
    let counted = count(options, parked, group.as_deref());
    if let Some(group) = group {
        remove(&group);
    }
    counted
}

fn count(options: &Options, parked: usize, group: Option<&Path>) -> Result<Held, Reason> {
    let failed = |error: io::Error| format!("cannot park sandboxes: {error}");
    let state = options.scratch.join(format!("idle-state-{parked}"));
    let mut child = Command::new(&options.airlock);
    child.arg("--state").arg(state).args(["bench", "--park", &parked.to_string()]);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().ok_or("a child without standard input")?;
    let counted = while_parked(&mut child, &mut stdin, group);
    drop(stdin);
    let mut told = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut told).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    match (status.success(), counted) {
        (true, Ok(held)) => Ok(held),
        (true, Err(error)) => Err(failed(error)),
        (false, _) => Err(told.lines().next().map_or_else(|| status.to_string(), str::to_owned)),
    }
}

/// Lets the child begin once it is in its group, and counts when it says that all stand.
fn while_parked(child: &mut Child, stdin: &mut ChildStdin, group: Option<&Path>) -> io::Result<Held> {
    if let Some(group) = group {
        fs::write(group.join("cgroup.procs"), child.id().to_string())?;
    }
    stdin.write_all(b"\n")?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(stdout).read_line(&mut String::new())?;
    let usage = group.map(|group| fs::read_to_string(group.join("memory.usage_in_bytes"))).transpose()?;
    let charged = usage.and_then(|text| text.trim().parse().ok());
    Ok(Held { charged, pss: descendants(child.id()).into_iter().map(pss).sum() })
}

/// A memory cgroup for the child; none where we may make none.
fn memory_group(parked: usize) -> Option<PathBuf> {
    let own = own_cgroup(&fs::read_to_string("/proc/self/cgroup").ok()?, "memory")?;
    let group = own.join(format!("airlock-bench-idle-{parked}-{}", std::process::id()));
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
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// The proportional share of memory of a process, in bytes; none if it is not ours to see.
fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The child's part: waits for a line, parks, says so, and goes when its standard input ends.
pub fn park(state: PathBuf, parked: usize) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut input = io::stdin().lock();
    input.read_line(&mut String::new()).map_err(failed)?;
    // Launchers are nobody's children; whoever counts us must find them.
    let us = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(us)).map_err(|error| failed(error.into()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let ahead = Ahead::Parked(parked);
        let engine = pool::open(state, ahead)?;
        let spec = admit(RunRequest { command: vec!["/bin/true".into()], ..RunRequest::default() })?;
        pool::settle(&engine, &spec, ahead).await;
        println!("parked");
        let waited = input.read_line(&mut String::new()).map_err(failed);
        pool::close(engine).await;
        waited.map(|_| ())
    })
}
