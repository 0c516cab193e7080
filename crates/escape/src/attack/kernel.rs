//! Attacks on interfaces of the kernel and on other processes.

use super::{call, claim, hold, is_victim, others, say, sys, tell};
use std::{
    ffi::CString,
    fs, io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    time::{Duration, Instant},
};

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("settings", pairs) => settings(pairs),
        ("masked", paths) => masked(paths),
        ("leave-cgroup", []) => leave_cgroup(),
        ("overwrite-program", []) => overwrite_program(),
        ("read-processes", [victim]) => read_processes(victim),
        ("trace", [victim]) => trace(victim),
        ("join", [victim]) => join(victim),
        ("new-namespaces", [way]) => new_namespaces(way),
        ("io-uring", []) => {
            _ = io_uring();
            hold();
        }
        ("table", []) => table(),
        ("keys", [description]) => keys(description),
        ("personality", []) => personality(),
        ("type", []) => type_into_terminals(),
        ("print-escapes", [text]) => say(&text.replace("ESC", "\x1b").replace("BEL", "\x07")),
        ("flip", [one, other, rounds, seconds]) => {
            flip(
                one,
                other,
                rounds.parse().unwrap_or(0),
                seconds.parse().unwrap_or(0),
            );
        }
        ("second-listener", []) => second_listener(),
        ("kill", [victim, outside]) => kill(victim, outside.parse().unwrap_or(0)),
        ("crash", []) => crash(),
        ("groups", []) => groups(),
        ("share", [name, secret]) => share(name, secret),
        ("find-shared", [name]) => find_shared(name),
        ("fingerprint", []) => fingerprint(),
        ("foreign-call", []) => foreign_call(),
        ("limit-keeper", []) => limit_keeper(),
        ("set-id-left", [folder]) => set_id_left(folder),
        ("quotas", [kibibytes]) => quotas(kibibytes.parse().unwrap_or(0)),
        ("scheduling", []) => scheduling(),
        ("huge-pages", []) => huge_pages(),
        ("inotify", [count]) => inotify(count.parse().unwrap_or(0)),
        ("file-locks", [count, seconds]) => {
            file_locks(count.parse().unwrap_or(0), seconds.parse().unwrap_or(0))
        }
        ("uncounted", []) => uncounted(),
        _ => return None,
    }
    Some(())
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Whom to attack: the trap if it is in sight, else whoever is.
fn targets(victim: &str) -> Vec<i32> {
    let seen = others();
    let victims: Vec<_> = seen
        .iter()
        .copied()
        .filter(|pid| is_victim(*pid, victim))
        .collect();
    if victims.is_empty() { seen } else { victims }
}

/// Writes each value to its file below `/proc/sys`, with the walls around it taken away if that can be.
fn settings(pairs: &[&str]) {
    let flags =
        libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    _ = call!(libc::SYS_mount, 0, c"/proc/sys", 0, flags, 0);
    _ = fs::create_dir("/tmp/fresh-proc");
    _ = call!(libc::SYS_mount, c"proc", c"/tmp/fresh-proc", c"proc", 0, 0);
    for pair in pairs.chunks(2) {
        let [name, value] = pair else { continue };
        for root in ["/proc/sys", "/tmp/fresh-proc/sys"] {
            _ = fs::OpenOptions::new()
                .write(true)
                .open(format!("{root}/{name}"))
                .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
        }
    }
    hold();
}

/// Reads each file, with its cover taken away if that can be; the trigger is only opened.
fn masked(paths: &[&str]) {
    for path in paths {
        _ = call!(libc::SYS_umount2, &*text(path), libc::MNT_DETACH);
        tell(path);
    }
    let _trigger = fs::OpenOptions::new()
        .write(true)
        .open("/proc/sysrq-trigger");
    hold();
}

/// Mounts every tree of cgroups that may be there and moves itself to the top of it.
fn leave_cgroup() {
    let v1 = [
        "memory",
        "pids",
        "cpu,cpuacct",
        "cpu",
        "cpuset",
        "freezer",
        "devices",
    ];
    let trees = [("cgroup2", "")]
        .into_iter()
        .chain(v1.map(|controller| ("cgroup", controller)));
    for (number, (kind, option)) in trees.enumerate() {
        let place = format!("/tmp/cgroup-{number}");
        _ = fs::create_dir(&place);
        _ = call!(
            libc::SYS_mount,
            c"cgroup",
            &*text(&place),
            &*text(kind),
            0,
            &*text(option)
        );
        _ = fs::write(format!("{place}/cgroup.procs"), "0");
        for file in ["release_agent", "devices.allow"] {
            // Opened only: what it would do is done to the machine.
            _ = claim(
                file,
                fs::OpenOptions::new()
                    .write(true)
                    .open(format!("{place}/{file}")),
            );
        }
    }
    _ = fs::write("/sys/fs/cgroup/cgroup.procs", "0");
    hold();
}

/// Writes to the file of a program once nobody runs it any more.
fn overwrite_program() {
    for pid in others() {
        let way = format!("/proc/{pid}/exe");
        _ = claim(
            "the supervisor's program can be written",
            fs::OpenOptions::new().write(true).open(way),
        );
    }
    let Ok(own) = call!(
        libc::SYS_openat,
        libc::AT_FDCWD,
        c"/proc/self/exe",
        libc::O_PATH
    ) else {
        return;
    };
    let script = format!(
        "round=0; while [ $round -lt 50 ]; do round=$((round + 1)); \
         ( echo overwritten > /proc/self/fd/{own} ) 2> /dev/null; done; echo done"
    );
    let failed = Command::new("/bin/sh").args(["-c", &script]).exec();
    say(&format!("exec: {failed}"));
}

fn read_processes(victim: &str) {
    for pid in targets(victim) {
        for file in ["environ", "maps", "stack", "syscall"] {
            tell(&format!("/proc/{pid}/{file}"));
        }
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            _ = claim(
                "descriptors of another process",
                fs::read_link(entry.path()),
            );
        }
        let memory = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        _ = claim("memory of another process", memory);
    }
}

fn trace(victim: &str) {
    const SEIZE: i32 = 0x4206;
    for pid in targets(victim) {
        _ = claim("ptrace", call!(libc::SYS_ptrace, SEIZE, pid, 0, 0));
        if let Ok(handle) = call!(libc::SYS_pidfd_open, pid, 0) {
            _ = claim("pidfd_getfd", call!(libc::SYS_pidfd_getfd, handle, 0, 0));
        }
        _ = claim(
            "kcmp",
            call!(libc::SYS_kcmp, pid, std::process::id() as i32, 1, 0, 0),
        );
        let mut byte = [0u8; 1];
        let words = |place: u64| [place, 1].map(u64::to_ne_bytes).concat();
        let (own, theirs) = (words(byte.as_mut_ptr() as u64), words(first_mapping(pid)));
        let read = call!(
            libc::SYS_process_vm_readv,
            pid,
            &own[..],
            1,
            &theirs[..],
            1,
            0
        );
        _ = claim("process_vm_readv", read);
    }
    hold();
}

/// Where a process has memory, if it tells.
fn first_mapping(pid: i32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let start = maps.split('-').next().unwrap_or_default();
    u64::from_str_radix(start, 16).unwrap_or(4096)
}

fn join(victim: &str) {
    let kinds = ["uts", "ipc", "net", "cgroup", "time", "user"];
    for pid in targets(victim) {
        for kind in kinds {
            if let Ok(namespace) = fs::File::open(format!("/proc/{pid}/ns/{kind}")) {
                _ = call!(libc::SYS_setns, namespace.as_raw_fd(), 0);
            }
        }
    }
    hold();
}

/// Beside a child that stays as it is, so that the host can see the difference.
fn new_namespaces(way: &str) {
    _ = sys::clone_child(0);
    let all = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS,
        libc::CLONE_NEWUSER | libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWCGROUP,
    ];
    for flags in all {
        match way {
            "clone3" => drop(sys::clone3_child(flags as u64)),
            _ => drop(sys::clone_child(flags.into())),
        }
    }
    if way != "clone3" {
        _ = call!(libc::SYS_unshare, libc::CLONE_NEWUSER | libc::CLONE_NEWNS);
        _ = call!(libc::SYS_unshare, libc::CLONE_NEWNS);
    }
    hold();
}

fn io_uring() -> io::Result<i64> {
    let mut parameters = [0u8; 120];
    call!(libc::SYS_io_uring_setup, 1, &mut parameters[..])
}

/// Calls that no box needs. Each is harmless even where it is allowed; to reach the kernel is enough.
fn table() {
    let (path, none) = (c"/nonexistent", 0);
    let mut buffer = [0u8; 256];
    let (map, counter) = ([2u32, 4, 4, 1].map(u32::to_ne_bytes).concat(), counter());
    let calls: &mut [(&str, io::Result<i64>)] = &mut [
        ("bpf", call!(libc::SYS_bpf, none, &map[..], map.len())),
        (
            "perf_event_open",
            call!(libc::SYS_perf_event_open, &counter[..], 0, -1, -1, 0),
        ),
        ("userfaultfd", call!(libc::SYS_userfaultfd, 1)),
        (
            "kexec_file_load",
            call!(libc::SYS_kexec_file_load, -1, -1, 0, path, 0),
        ),
        ("init_module", call!(libc::SYS_init_module, none, 0, path)),
        ("finit_module", call!(libc::SYS_finit_module, -1, path, 0)),
        ("delete_module", call!(libc::SYS_delete_module, path, 0)),
        ("swapon", call!(libc::SYS_swapon, path, 0)),
        ("swapoff", call!(libc::SYS_swapoff, path)),
        ("reboot", call!(libc::SYS_reboot, none, none, none, none)),
        ("acct", call!(libc::SYS_acct, path)),
        (
            "quotactl",
            call!(libc::SYS_quotactl, none, path, none, none),
        ),
        ("syslog", call!(libc::SYS_syslog, 10, none, none)),
        ("settimeofday", call!(libc::SYS_settimeofday, none, none)),
        ("clock_settime", call!(libc::SYS_clock_settime, 0, none)),
        ("adjtimex", call!(libc::SYS_adjtimex, &mut buffer[..])),
        (
            "move_pages",
            call!(libc::SYS_move_pages, 0, 0, none, none, none, 0),
        ),
        (
            "migrate_pages",
            call!(libc::SYS_migrate_pages, 0, 0, none, none),
        ),
        ("memfd_secret", call!(libc::SYS_memfd_secret, 0)),
        (
            "name_to_handle_at",
            call!(libc::SYS_name_to_handle_at, -1, path, none, none, 0),
        ),
        ("sethostname", call!(libc::SYS_sethostname, path, 1 << 20)),
        ("vhangup", call!(libc::SYS_vhangup, 0)),
        ("ioperm", ioperm()),
    ];
    let reached =
        |error: &io::Error| !matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
    for (name, came_to) in calls {
        say(&format!("tried {name}"));
        match came_to {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                say(&format!("absent {name}"))
            }
            Ok(_) => say(&format!("claim {name} works")),
            Err(error) if reached(error) => {
                say(&format!("claim {name} reaches the kernel: {error}"))
            }
            Err(_) => {}
        }
    }
    hold();
}

/// A count of our own instructions, without the kernel's.
fn counter() -> Vec<u8> {
    let mut attributes = vec![0u8; 128];
    attributes[4..8].copy_from_slice(&128u32.to_ne_bytes());
    attributes[0..4].copy_from_slice(&1u32.to_ne_bytes());
    // Neither the kernel nor a hypervisor.
    attributes[40] = 0b110_0000;
    attributes
}

#[cfg(target_arch = "x86_64")]
fn ioperm() -> io::Result<i64> {
    call!(libc::SYS_ioperm, -1, 0, 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn ioperm() -> io::Result<i64> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

const SESSION_KEYRING: i32 = -3;

/// For the host's side: a key in the session that a box might inherit.
pub(crate) fn plant_key(description: &str, secret: &str) -> io::Result<i64> {
    let bytes = secret.as_bytes();
    call!(
        libc::SYS_add_key,
        c"user",
        &*text(description),
        bytes,
        bytes.len(),
        SESSION_KEYRING
    )
}

/// For the host's side: takes it away again.
pub(crate) fn remove_key(key: i64) -> io::Result<()> {
    const UNLINK: i32 = 9;
    call!(libc::SYS_keyctl, UNLINK, key, SESSION_KEYRING).map(drop)
}

fn keys(description: &str) {
    const SEARCH: i32 = 10;
    const READ: i32 = 11;
    tell("/proc/keys");
    let name = text(description);
    for keyring in [SESSION_KEYRING, -4, -5] {
        let searched = call!(libc::SYS_keyctl, SEARCH, keyring, c"user", &*name, 0);
        let asked = || call!(libc::SYS_request_key, c"user", &*name, 0, 0);
        let Ok(key) = searched.or_else(|_| asked()) else {
            continue;
        };
        let mut secret = [0u8; 256];
        if let Ok(length) = call!(libc::SYS_keyctl, READ, key, &mut secret[..], 256) {
            let length = usize::try_from(length).unwrap_or(0).min(secret.len());
            say(&format!(
                "key {}",
                String::from_utf8_lossy(&secret[..length])
            ));
        }
    }
}

fn personality() {
    _ = call!(
        libc::SYS_personality,
        i64::from(libc::ADDR_NO_RANDOMIZE | libc::READ_IMPLIES_EXEC)
    );
    #[cfg(target_arch = "x86_64")]
    {
        _ = claim("modify_ldt", call!(libc::SYS_modify_ldt, 0, 0, 0));
    }
    hold();
}

/// Every spelling of the call that types into a terminal, on every terminal in reach.
fn type_into_terminals() {
    let opened: Vec<_> = ["/dev/tty", "/dev/console", "/dev/pts/0", "/dev/pts/1"]
        .iter()
        .filter_map(|name| {
            fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(name)
                .ok()
        })
        .collect();
    let numbers = (0..3).chain(opened.iter().map(AsRawFd::as_raw_fd));
    for number in numbers {
        for request in [0x5412u64, 0xffff_ffff_0000_5412, 0x1_0000_5412] {
            for letter in [&b"t"[..], b"y", b"p", b"e", b"d", b"\n"] {
                _ = call!(libc::SYS_ioctl, number, request, letter);
            }
        }
        // TIOCLINUX: paste the selection.
        _ = call!(libc::SYS_ioctl, number, 0x541c, &[3u8, 0][..]);
    }
}

/// Two threads, one path: it changes between the look of whoever decides and the kernel's own. Whoever decides may be
/// slow, so the clock ends it, too.
fn flip(one: &str, other: &str, rounds: u32, seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    let spellings = [one.as_bytes().to_vec(), other.as_bytes().to_vec()];
    let path: &'static [AtomicU8] = one
        .bytes()
        .chain([0])
        .map(AtomicU8::new)
        .collect::<Vec<_>>()
        .leak();
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let flipper = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            for spelling in &spellings {
                path.iter()
                    .zip(spelling)
                    .for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
            }
        }
    });
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
    for round in 0..rounds {
        if round % 64 == 0 && Instant::now() > end {
            break;
        }
        // The path lives for ever.
        let opened = call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr() as i64,
            flags,
            0o666
        );
        if let Ok(number) = opened {
            _ = call!(libc::SYS_write, number, &b"of the program"[..], 14);
            _ = call!(libc::SYS_close, number);
        }
    }
    stop.store(true, Ordering::Relaxed);
    _ = flipper.join();
}

/// A listener of one's own that lets every call go on, behind whatever filter there is.
fn second_listener() {
    let number = libc::SYS_io_uring_setup as u32;
    let line = |code: u16, jt: u8, jf: u8, k: u32| {
        [&code.to_ne_bytes()[..], &[jt, jf], &k.to_ne_bytes()].concat()
    };
    let (notify, allow) = (0x7fc0_0000, 0x7fff_0000);
    let program = [
        line(0x20, 0, 0, 0),
        line(0x15, 0, 1, number),
        line(0x06, 0, 0, notify),
        line(0x06, 0, 0, allow),
    ]
    .concat();
    let filter = [
        &4u64.to_ne_bytes()[..],
        &(program.as_ptr() as u64).to_ne_bytes(),
    ]
    .concat();
    const SET_FILTER: i32 = 1;
    const NEW_LISTENER: i32 = 8;
    let Ok(listener) = call!(libc::SYS_seccomp, SET_FILTER, NEW_LISTENER, &filter[..]) else {
        say("no listener");
        return hold();
    };
    if let Ok(None) = sys::fork() {
        _ = io_uring();
        hold_quietly();
    }
    let_it_go_on(listener);
    hold();
}

fn let_it_go_on(listener: i64) {
    let mut waiting = [listener as u64 | 1 << 32].map(u64::to_ne_bytes).concat();
    if !matches!(call!(libc::SYS_poll, &mut waiting[..], 1, 1000), Ok(1)) {
        return;
    }
    let mut request = [0u8; 80];
    const RECEIVE: i64 = 0xc050_2100;
    const SEND: i64 = 0xc018_2101;
    if call!(libc::SYS_ioctl, listener, RECEIVE, &mut request[..]).is_ok() {
        let mut answer = [0u8; 24];
        answer[..8].copy_from_slice(&request[..8]);
        answer[20] = 1; // go on
        _ = call!(libc::SYS_ioctl, listener, SEND, &mut answer[..]);
    }
    // The child needs a moment to come back with its ring.
    std::thread::sleep(Duration::from_millis(100));
}

fn hold_quietly() -> ! {
    _ = io::Read::read_to_end(&mut io::stdin(), &mut Vec::new());
    sys::exit(0)
}

/// Everybody in sight, and a process of the host's by its number there.
fn kill(victim: &str, outside: i32) {
    let seen = others();
    let victims: Vec<_> = seen
        .iter()
        .copied()
        .filter(|pid| is_victim(*pid, victim))
        .collect();
    if victims.is_empty() {
        _ = call!(libc::SYS_kill, -1, libc::SIGKILL);
        _ = call!(libc::SYS_kill, outside, libc::SIGKILL);
    }
    for pid in if victims.is_empty() { seen } else { victims } {
        _ = call!(libc::SYS_kill, pid, libc::SIGKILL);
        if let Ok(handle) = call!(libc::SYS_pidfd_open, pid, 0) {
            _ = call!(libc::SYS_pidfd_send_signal, handle, libc::SIGKILL, 0, 0);
        }
    }
}

fn crash() {
    let most = [u64::MAX, u64::MAX].map(u64::to_ne_bytes).concat();
    let mut limit = [0u8; 16];
    _ = call!(libc::SYS_setrlimit, libc::RLIMIT_CORE as i32, &most[..]);
    if call!(
        libc::SYS_getrlimit,
        libc::RLIMIT_CORE as i32,
        &mut limit[..]
    )
    .is_ok()
    {
        // As much as the hard limit gives.
        let hard = limit[8..].to_vec();
        _ = call!(
            libc::SYS_setrlimit,
            libc::RLIMIT_CORE as i32,
            &[&hard[..], &hard].concat()[..]
        );
    }
    say("crashing");
    sys::crash()
}

fn groups() {
    let some = [0u32, 4, 27, 999].map(u32::to_ne_bytes).concat();
    _ = call!(libc::SYS_setgroups, 4, &some[..]);
    _ = call!(libc::SYS_setgroups, 1, &some[..]);
    for number in [libc::SYS_setresgid, libc::SYS_setresuid] {
        _ = call!(number, 0, 0, 0);
    }
    hold();
}

const SHARED_BYTES: usize = 64;

fn key_of(name: &str) -> i64 {
    name.bytes().fold(0x61_6972, |key: i64, byte| {
        (key * 31 + i64::from(byte)) & 0x7fff_ffff
    })
}

/// A secret in everything that two processes can share by name.
fn share(name: &str, secret: &str) {
    let mut bytes = secret.as_bytes().to_vec();
    bytes.resize(SHARED_BYTES, b' ');
    let segment = call!(
        libc::SYS_shmget,
        key_of(name),
        SHARED_BYTES,
        libc::IPC_CREAT | 0o666
    );
    if let Ok(segment) = &segment
        && let Ok(memory) = sys::attach_segment(*segment, SHARED_BYTES)
    {
        memory.copy_from_slice(&bytes);
    }
    _ = fs::write(format!("/dev/shm/{name}"), &bytes);
    let queue = call!(
        libc::SYS_mq_open,
        &*text(name),
        libc::O_CREAT | libc::O_RDWR,
        0o666,
        0
    );
    if let Ok(queue) = queue {
        _ = call!(libc::SYS_mq_timedsend, queue, &bytes[..], bytes.len(), 0, 0);
    }
    hold();
    _ = segment.map(|segment| call!(libc::SYS_shmctl, segment, libc::IPC_RMID, 0));
    _ = call!(libc::SYS_mq_unlink, &*text(name));
}

fn find_shared(name: &str) {
    if let Ok(segment) = call!(libc::SYS_shmget, key_of(name), SHARED_BYTES, 0)
        && let Ok(memory) = sys::attach_segment(segment, SHARED_BYTES)
    {
        say(&format!("segment {}", String::from_utf8_lossy(memory)));
    }
    tell(&format!("/dev/shm/{name}"));
    if let Ok(queue) = call!(
        libc::SYS_mq_open,
        &*text(name),
        libc::O_RDONLY | libc::O_NONBLOCK,
        0,
        0
    ) {
        let mut message = [0u8; 8192];
        _ = call!(
            libc::SYS_mq_timedreceive,
            queue,
            &mut message[..],
            8192,
            0,
            0
        );
        say(&format!(
            "queue {}",
            String::from_utf8_lossy(&message[..SHARED_BYTES])
        ));
    }
}

fn fingerprint() {
    let files = [
        "/proc/sys/kernel/hostname",
        "/etc/hostname",
        "/etc/machine-id",
        "/var/lib/dbus/machine-id",
        "/proc/cmdline",
        "/proc/self/environ",
    ];
    files.iter().for_each(|path| tell(path));
    for pid in others() {
        tell(&format!("/proc/{pid}/environ"));
        tell(&format!("/proc/{pid}/cmdline"));
    }
}

/// A filter that knows only one way into the kernel would not see this one.
fn foreign_call() {
    match sys::foreign_call() {
        refused @ ..0 => say(&format!("refused {refused}")),
        answer => say(&format!("claim a 32-bit call was answered: {answer}")),
    }
}

/// What the first process of the box may use.
fn limit_keeper() {
    let none = [1u64, 1].map(u64::to_ne_bytes).concat();
    for pid in others() {
        _ = call!(
            libc::SYS_prlimit64,
            pid,
            libc::RLIMIT_MSGQUEUE as i32,
            &none[..],
            0
        );
    }
    hold();
}

fn inotify(count: u32) {
    for _ in 0..count {
        if call!(libc::SYS_inotify_init1, 0).is_err() {
            break;
        }
    }
    hold();
}

/// Every way to a file with set-id bits and something in it.
fn set_id_left(folder: &str) {
    const BITS: i32 = 0o6755;
    const FCHMODAT2: i64 = 452;
    let here = libc::AT_FDCWD;
    // Bits at creation that a group which may not execute does not clear, and then a list of rights by which it may.
    let entries = [(1u16, 7u16), (4, 5), (32, 5)];
    let entry = |(tag, rights): (u16, u16)| {
        let mut bytes = [0xff; 8];
        bytes[..2].copy_from_slice(&tag.to_le_bytes());
        bytes[2..4].copy_from_slice(&rights.to_le_bytes());
        bytes
    };
    let mut executable = 2u32.to_le_bytes().to_vec();
    executable.extend(entries.into_iter().flat_map(entry));
    for way in 0..9 {
        let name = text(&format!("{folder}/left-{way}"));
        let mode = match way {
            0..4 => 0o755,
            7.. => 0o2766,
            _ => BITS,
        };
        if way == 6 {
            _ = call!(
                libc::SYS_mknodat,
                here,
                &*name,
                i64::from(libc::S_IFREG) | i64::from(BITS),
                0
            );
        }
        let flags = libc::O_RDWR | libc::O_CREAT;
        let made = match way {
            #[cfg(target_arch = "x86_64")]
            8 => call!(libc::SYS_open, &*name, flags, mode),
            _ => call!(libc::SYS_openat, here, &*name, flags, mode),
        };
        let Ok(file) = made else {
            continue;
        };
        match way {
            5 => _ = call!(libc::SYS_fallocate, file, 0, 0, 4096),
            _ => _ = call!(libc::SYS_write, file, &b"#!/bin/sh\n"[..], 10),
        }
        match way {
            #[cfg(target_arch = "x86_64")]
            0 => _ = call!(libc::SYS_chmod, &*name, BITS),
            1 => _ = call!(libc::SYS_fchmod, file, BITS),
            2 => _ = call!(libc::SYS_fchmodat, here, &*name, BITS),
            3 => _ = call!(FCHMODAT2, here, &*name, BITS, 0),
            7.. => {
                let list = &*text("system.posix_acl_access");
                _ = call!(
                    libc::SYS_setxattr,
                    &*name,
                    list,
                    &executable[..],
                    executable.len(),
                    0
                );
            }
            _ => {}
        }
    }
}

/// What the kernel counts for whoever made the namespace of the box.
fn quotas(kibibytes: usize) {
    let all_signals = u64::MAX.to_ne_bytes();
    _ = call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        &all_signals[..],
        0,
        8
    );
    const QUEUED: i32 = -1;
    let mut about = [0u8; 128];
    about[..4].copy_from_slice(&40i32.to_ne_bytes());
    about[8..12].copy_from_slice(&QUEUED.to_ne_bytes());
    for _ in 0..2000 {
        if call!(
            libc::SYS_rt_sigqueueinfo,
            std::process::id() as i32,
            40,
            &about[..]
        )
        .is_err()
        {
            break;
        }
    }
    let memory = vec![1u8; kibibytes << 10];
    _ = call!(libc::SYS_mlock, &memory[..], memory.len());
    hold();
}

fn scheduling() {
    let priority = 1i32.to_ne_bytes();
    for policy in [libc::SCHED_FIFO, libc::SCHED_RR] {
        _ = call!(libc::SYS_sched_setscheduler, 0, policy, &priority[..]);
    }
    _ = call!(libc::SYS_setpriority, 0, 0, -10);
    // Real time for the disk, the best of it.
    _ = call!(libc::SYS_ioprio_set, 1, 0, 1 << 13);
    hold();
}

/// So many locks of parts of files, 1000 in each, held for so long.
fn file_locks(count: u64, seconds: u64) {
    let (write, set) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    for number in 0..count.div_ceil(1000) {
        let name = text(&format!("/tmp/locked-{number}"));
        let flags = libc::O_RDWR | libc::O_CREAT;
        let Ok(file) = call!(libc::SYS_openat, libc::AT_FDCWD, &*name, flags, 0o600) else {
            break;
        };
        // From the end: the kernel looks for a place from the beginning.
        for place in (0..1000u64).rev() {
            let lock = lock(write, set, 2 * place);
            _ = call!(libc::SYS_fcntl, file, libc::F_SETLK, &lock[..]);
        }
    }
    std::thread::sleep(std::time::Duration::from_secs(seconds));
}

/// A `struct flock` of one byte.
fn lock(kind: i16, whence: i16, start: u64) -> [u8; 32] {
    let mut lock = [0; 32];
    lock[..2].copy_from_slice(&kind.to_ne_bytes());
    lock[2..4].copy_from_slice(&whence.to_ne_bytes());
    lock[8..16].copy_from_slice(&start.to_ne_bytes());
    lock[16..24].copy_from_slice(&1u64.to_ne_bytes());
    lock
}

/// What takes memory of the kernel that nobody counts, or hides what somebody would.
fn uncounted() {
    // Of the kernel's packet filter: accept everything.
    let accept: [u8; 8] = [6, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let mut program = [0; 16];
    program[..2].copy_from_slice(&1u16.to_ne_bytes());
    program[8..].copy_from_slice(&(accept.as_ptr() as u64).to_ne_bytes());
    let option = |socket: i64, name: i32, value: &[u8]| {
        call!(
            libc::SYS_setsockopt,
            socket,
            libc::SOL_SOCKET,
            name,
            value,
            value.len()
        )
    };
    if let Ok(socket) = call!(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0) {
        let attached = option(socket, libc::SO_ATTACH_FILTER, &program);
        claim("a filter", attached);
        _ = option(socket, libc::SO_REUSEPORT, &1i32.to_ne_bytes());
        let chosen = option(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program);
        claim("a choice by filter", chosen);
    }
    let here = libc::AT_FDCWD;
    let flags = libc::O_RDWR | libc::O_CREAT;
    if let Ok(file) = call!(libc::SYS_openat, here, c"/tmp/locked", flags, 0o600) {
        let lock = lock(libc::F_WRLCK as i16, libc::SEEK_SET as i16, 0);
        claim(
            "a lock of an open file",
            call!(libc::SYS_fcntl, file, libc::F_OFD_SETLK, &lock[..]),
        );
    }
    let own_files = call!(libc::SYS_unshare, libc::CLONE_FILES);
    claim("a table of files for a thread", own_files);
    let shared = sys::clone_child(i64::from(libc::CLONE_FILES));
    claim("a table of files for two", shared);
    hold();
}

/// Four of them, by each call that gives some.
fn huge_pages() {
    let bytes = 4 << 21;
    _ = sys::take_huge(bytes);
    const OF_HUGE_PAGES: i32 = 4;
    if let Ok(file) = call!(libc::SYS_memfd_create, c"huge", OF_HUGE_PAGES) {
        _ = call!(libc::SYS_fallocate, file, 0, 0, bytes);
    }
    let segment = call!(
        libc::SYS_shmget,
        0,
        bytes,
        libc::IPC_CREAT | libc::SHM_HUGETLB | 0o600
    );
    hold();
    _ = segment.map(|segment| call!(libc::SYS_shmctl, segment, libc::IPC_RMID, 0));
}
