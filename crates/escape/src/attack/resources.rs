//! Attacks on what everybody shares, and processes that will not go.

use super::{call, hold, say, sys};
use std::{
    fs,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

/// What lives longer than its run ends by itself, should nobody end it.
const LONGEST: Duration = Duration::from_secs(20);

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    let number = |text: &str| text.parse::<usize>().unwrap_or(0);
    match (name, arguments) {
        ("fork", [count]) => fork(number(count)),
        ("memory", [kind, mebibytes]) => memory(kind, number(mebibytes)),
        ("flood", [mebibytes]) => flood(number(mebibytes)),
        ("linger", [seconds]) => linger(number(seconds) as u64),
        ("orphans", [count]) => orphans(number(count)),
        ("zombies", [count]) => zombies(number(count)),
        ("fill", [mebibytes, files]) => fill(number(mebibytes), number(files)),
        ("deep", [depth, secret]) => deep(number(depth), secret),
        ("numbers", []) => numbers(),
        _ => return None,
    }
    Some(())
}

/// That many children and as many threads at once, or as many as there can be.
fn fork(count: usize) {
    for _ in 0..count {
        match sys::fork() {
            Ok(None) => {
                std::thread::sleep(LONGEST);
                sys::exit(0);
            }
            Ok(Some(_)) => {}
            Err(_) => break,
        }
    }
    for _ in 0..count {
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        if thread.spawn(|| std::thread::sleep(LONGEST)).is_err() {
            break;
        }
    }
    hold();
}

/// That much memory, touched and kept.
fn memory(kind: &str, mebibytes: usize) {
    let bytes = mebibytes << 20;
    let taken = match kind {
        "anonymous" => sys::take_memory(bytes, None),
        "memfd" => call!(libc::SYS_memfd_create, c"taken", 0).and_then(|file| {
            call!(libc::SYS_ftruncate, file, bytes)?;
            sys::take_memory(bytes, Some(file as i32))
        }),
        _ => write_file(Path::new("/dev/shm/taken"), mebibytes),
    };
    say(&format!("taken {}", taken.is_ok()));
    hold();
}

fn write_file(path: &Path, mebibytes: usize) -> io::Result<()> {
    let (mut file, chunk) = (fs::File::create(path)?, vec![7; 1 << 20]);
    (0..mebibytes).try_for_each(|_| file.write_all(&chunk))
}

/// Noise without a line in it.
fn flood(mebibytes: usize) {
    let chunk: Vec<u8> = (0..1u32 << 20)
        .map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8 | 0x80)
        .collect();
    let mut out = io::stdout().lock();
    for _ in 0..mebibytes {
        _ = out.write_all(&chunk);
    }
    _ = out.write_all(b"\n");
}

/// A grandchild in a session of its own that hears no signal and outlives its parents.
fn linger(seconds: u64) {
    if let Ok(None) = sys::fork() {
        _ = call!(libc::SYS_setsid);
        if let Ok(Some(_)) | Err(_) = sys::fork() {
            sys::exit(0);
        }
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            sys::on_signal(signal, libc::SIG_IGN);
        }
        // The streams of the run would keep whoever reads them waiting.
        for stream in 0..3 {
            _ = call!(libc::SYS_close, stream);
        }
        std::thread::sleep(Duration::from_secs(seconds));
        sys::exit(0);
    }
}

/// Grandchildren whose parents are gone, so that the first process has to reap them.
fn orphans(count: usize) {
    for _ in 0..count {
        match sys::fork() {
            Ok(None) => {
                _ = sys::fork();
                sys::exit(0);
            }
            Ok(Some(child)) => _ = call!(libc::SYS_wait4, child, 0, 0, 0),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    hold();
}

/// Children that nobody reaps, each a zombie before the host looks. A fork fails while processes of
/// an earlier attack of the same user are still ending: it is tried again for a while.
fn zombies(count: usize) {
    let end = Instant::now() + Duration::from_secs(20);
    let mut made = 0;
    while made < count && Instant::now() < end {
        match sys::fork() {
            Ok(None) => sys::exit(0),
            Ok(Some(child)) => {
                let options = libc::WEXITED | libc::WNOWAIT;
                _ = call!(libc::SYS_waitid, libc::P_PID as i32, child, 0, options, 0);
                made += 1;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    hold();
}

/// Everywhere where something can be written, until it cannot.
fn fill(mebibytes: usize, files: usize) {
    for (number, folder) in ["/tmp", "/dev/shm", "/workspace", "/home/agent"]
        .iter()
        .enumerate()
    {
        _ = write_file(
            &Path::new(folder).join(format!("large-{number}")),
            mebibytes,
        );
    }
    for (number, folder) in ["/tmp", "/dev/shm"].iter().enumerate() {
        for file in 0..files {
            if fs::write(format!("{folder}/small-{number}-{file}"), "").is_err() {
                break;
            }
        }
    }
    hold();
}

/// A folder in a folder in a folder, each with a long name every now and then, and a file at the bottom.
fn deep(depth: usize, secret: &str) {
    let long = "n".repeat(255);
    _ = fs::create_dir_all("/workspace/.artifacts");
    _ = std::env::set_current_dir("/workspace/.artifacts");
    for level in 0..depth {
        let name = if level % 100 == 99 {
            long.as_str()
        } else {
            "d"
        };
        if fs::create_dir(name)
            .and_then(|()| std::env::set_current_dir(name))
            .is_err()
        {
            break;
        }
    }
    _ = fs::write("bottom", secret);
}

/// What a program sees of the machine.
fn numbers() {
    let mut mask = [0u8; 128];
    let length = call!(libc::SYS_sched_getaffinity, 0, 128, &mut mask[..]).unwrap_or(0);
    let cpus: u32 = mask
        .iter()
        .take(usize::try_from(length).unwrap_or(0))
        .map(|byte| byte.count_ones())
        .sum();
    say(&format!("cpus {cpus}"));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    say(&format!(
        "memory {}",
        total
            .unwrap_or_default()
            .trim()
            .trim_end_matches("kB")
            .trim()
    ));
}
