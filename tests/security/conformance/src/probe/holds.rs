//! Attempts that take resources or time. Each is bounded by itself, also where nothing limits it.

use crate::{Attempt, number};
use std::{
    io::{self, Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("hold", [_marker]) => hold(),
        ("hold-then-read", [path]) => {
            ready();
            until_input_ends();
            std::fs::read_to_string(path)
        }
        ("take-memory", [mebibytes, processes]) => {
            take_memory(number(mebibytes), number(processes))
        }
        ("take-own-memory", [mebibytes]) => {
            touch(number(mebibytes) as usize).map(|_| String::new())
        }
        ("take-pids", [count]) => take_pids(number(count), || ()),
        ("hold-pids", [count]) => take_pids(number(count), || {
            ready();
            until_input_ends();
        }),
        ("open-files", [count]) => open_files(number(count)),
        ("lock-memory", [kibibytes]) => lock_memory(number(kibibytes)),
        ("standing", []) => standing(),
        ("take-cpu", [milliseconds, processes]) => {
            take_cpu(number(milliseconds), number(processes))
        }
        ("end-on-term", []) => end_on_term(),
        ("ignore-term", [lock, _marker]) => ignore_term(lock),
        ("leave-behind", [lock, _marker]) => leave_behind(lock),
        ("die-by", [signal]) => die_by(number(signal)),
        ("descriptors", []) => descriptors(),
        _ => return None,
    })
}

/// Tells the other side that everything is in place.
pub(crate) fn ready() {
    println!("ready");
    io::stdout().flush().expect("standard output");
}

pub(crate) fn until_input_ends() {
    _ = io::stdin().read_to_end(&mut Vec::new());
}

fn hold() -> Attempt {
    ready();
    until_input_ends();
    Ok(String::new())
}

fn fork() -> io::Result<i32> {
    // SAFETY: this process has one thread here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

fn exit(code: i32) -> ! {
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(code) }
}

/// Waits for that many children; the first that did not end well decides.
fn wait_for(count: i64) -> Attempt {
    let mut ended = Ok(String::new());
    for _ in 0..count {
        let mut status = 0;
        // SAFETY: the kernel writes one integer of ours.
        unsafe { libc::wait(&mut status) };
        let failed = io::Error::from_raw_os_error(if status & 0x7f != 0 {
            libc::EINTR
        } else {
            status >> 8
        });
        if status != 0 && ended.is_ok() {
            ended = Err(failed);
        }
    }
    ended
}

/// Runs `work` in that many children at once.
fn in_children(processes: i64, work: impl Fn() -> io::Result<()>) -> Attempt {
    for _ in 0..processes {
        if fork()? == 0 {
            exit(
                work()
                    .err()
                    .map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)),
            );
        }
    }
    wait_for(processes)
}

/// That much memory in each child, touched and kept until all have theirs.
fn take_memory(mebibytes: i64, processes: i64) -> Attempt {
    let (gate, mut released) = io::pipe()?;
    let (mut arrived, arrival) = io::pipe()?;
    for _ in 0..processes {
        if fork()? == 0 {
            drop(released);
            let taken = touch(mebibytes as usize).and_then(|_memory| {
                drop(arrival);
                (&gate).read(&mut [0]).map(drop)
            });
            exit(
                taken
                    .err()
                    .map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)),
            );
        }
    }
    drop(arrival);
    // Ends when every child has its memory or is gone.
    arrived.read_to_end(&mut Vec::new())?;
    released.write_all(&vec![0; processes as usize])?;
    wait_for(processes)
}

fn touch(mebibytes: usize) -> io::Result<*mut u8> {
    let (bytes, access) = (mebibytes << 20, libc::PROT_READ | libc::PROT_WRITE);
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    for page in (0..bytes).step_by(4096) {
        // SAFETY: within the mapping.
        unsafe { memory.cast::<u8>().add(page).write_volatile(1) };
    }
    Ok(memory.cast())
}

/// That many children at once, all alive until the last is born or refused and `meanwhile` is over.
fn take_pids(count: i64, meanwhile: impl FnOnce()) -> Attempt {
    let (gate, released) = io::pipe()?;
    let mut released = Some(released);
    let mut born = 0;
    let refused = loop {
        if born == count {
            break None;
        }
        match fork() {
            Ok(0) => {
                drop(released.take());
                _ = (&gate).read(&mut [0]);
                exit(0);
            }
            Ok(_) => born += 1,
            Err(error) => break Some(error),
        }
    };
    meanwhile();
    drop(released);
    wait_for(born)?;
    refused.map_or(Ok(String::new()), Err)
}

fn open_files(count: i64) -> Attempt {
    let opened: io::Result<Vec<_>> = (0..count)
        .map(|_| std::fs::File::open("/dev/null"))
        .collect();
    opened.map(|_| String::new())
}

/// Keeps that much from being swapped out.
fn lock_memory(kibibytes: i64) -> Attempt {
    let memory = vec![1_u8; kibibytes as usize * 1024];
    // SAFETY: the kernel changes nothing of what is there.
    match unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) } {
        0 => Ok(String::new()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel says of the stack, of message queues, and how far this stands back.
fn standing() -> Attempt {
    let limit = |resource| {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the kernel writes one struct of ours.
        unsafe { libc::getrlimit(resource, &mut limit) };
        limit.rlim_max
    };
    let (stack, queues) = (limit(libc::RLIMIT_STACK), limit(libc::RLIMIT_MSGQUEUE));
    // SAFETY: it only reads.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    Ok(format!("{stack} {queues} {nice}"))
}

/// That much CPU time in each child.
fn take_cpu(milliseconds: i64, processes: i64) -> Attempt {
    in_children(processes, || {
        while cpu_time() < Duration::from_millis(milliseconds as u64) {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        Ok(())
    })
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one struct of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_term(_signal: i32) {
    TERMINATED.store(true, Ordering::SeqCst);
}

/// Handles SIGTERM, says what it got, ends by itself.
fn end_on_term() -> Attempt {
    // SAFETY: the handler only stores a flag.
    unsafe { libc::signal(libc::SIGTERM, on_term as *const () as libc::sighandler_t) };
    ready();
    while !TERMINATED.load(Ordering::SeqCst) {
        // Woken by the signal at once; the time only covers one that came in between.
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok("SIGTERM".to_owned())
}

/// Holds the lock until the end of this process and of its children.
fn take_lock(path: &str) -> io::Result<std::fs::File> {
    let lock = std::fs::OpenOptions::new().write(true).open(path)?;
    lock.lock()?;
    Ok(lock)
}

fn wait_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// A child in a session of its own that ignores what can be ignored.
fn stubborn_child() -> io::Result<()> {
    if fork()? != 0 {
        return Ok(());
    }
    // SAFETY: no memory is touched.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
    }
    wait_for_ever()
}

fn ignore_term(lock: &str) -> Attempt {
    let _lock = take_lock(lock)?;
    stubborn_child()?;
    // SAFETY: no memory is touched.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    ready();
    wait_for_ever()
}

/// Ends well, and leaves a child behind that holds the lock.
fn leave_behind(lock: &str) -> Attempt {
    let _lock = take_lock(lock)?;
    stubborn_child()?;
    ready();
    until_input_ends();
    Ok(String::new())
}

fn die_by(signal: i64) -> Attempt {
    // The runtime of the language has a handler of its own for some.
    // SAFETY: integers.
    unsafe {
        libc::signal(signal as i32, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal as i32);
    }
    Err(io::Error::other("still here"))
}

/// Every descriptor this process was born with.
fn descriptors() -> Attempt {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let mut open: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // The one that lists them is no longer there when it is looked at.
        .filter(|fd| {
            std::fs::read_link(format!("/proc/self/fd/{fd}"))
                .is_ok_and(|to| !to.starts_with("/proc"))
        })
        .collect();
    open.sort_unstable();
    Ok(format!("{open:?}"))
}
