//! Attempts on files, processes, privileges and the network.

use crate::{Attempt, answer, number};
use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{OpenOptionsExt, PermissionsExt},
            net::{SocketAddr, UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    process::Command,
    time::Duration,
};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("read", [path]) => fs::read(path).map(|content| text(&content)),
        ("write", [path, content]) => write(path, content),
        ("make-folder", [path]) => fs::create_dir(path).map(|()| String::new()),
        ("remove", [path]) => fs::remove_file(path).map(|()| String::new()),
        ("rename", [from, to]) => fs::rename(from, to).map(|()| String::new()),
        ("list", [path]) => list(path),
        ("link-target", [path]) => {
            fs::read_link(path).map(|target| target.to_string_lossy().into_owned())
        }
        ("fill", [path, mebibytes]) => fill(path, number(mebibytes)),
        ("find-in", [path, part]) => find_in(path, part),
        ("find-process", [marker]) => find_process(marker),
        ("same-namespace", [kind, other]) => same_namespace(kind, other),
        ("read-own-unreadable", []) => read_own_unreadable(),
        ("regain-at-exec", []) => regain_at_exec(),
        ("ids", []) => Ok(ids()),
        ("variable", [name]) => variable(name),
        ("connect", [address]) => connect(address),
        ("connect-path", [path]) => UnixStream::connect(path).map(|_| String::new()),
        ("connect-abstract", [name]) => connect_abstract(name),
        ("serve-abstract", [name]) => serve_abstract(name),
        _ => return None,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end()
        .replace(['\n', '\0'], " ")
}

fn write(path: &str, content: &str) -> Attempt {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?
        .write_all(content.as_bytes())?;
    Ok(String::new())
}

fn list(path: &str) -> Attempt {
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names.join(" "))
}

fn fill(path: &str, mebibytes: i64) -> Attempt {
    let mut file = fs::File::create(path)?;
    let chunk = vec![7; 1 << 20];
    for _ in 0..mebibytes {
        file.write_all(&chunk)?;
    }
    Ok(String::new())
}

fn find_in(path: &str, part: &str) -> Attempt {
    match String::from_utf8_lossy(&fs::read(path)?).contains(part) {
        true => Ok(String::new()),
        false => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

/// Another process whose command line has the marker: who can see it can address it.
fn find_process(marker: &str) -> Attempt {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let found = line
            .windows(marker.len())
            .any(|part| part == marker.as_bytes());
        if found && pid as u32 != std::process::id() {
            return Ok(String::new());
        }
    }
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

fn same_namespace(kind: &str, other: &str) -> Attempt {
    match fs::read_link(format!("/proc/self/ns/{kind}"))?.to_string_lossy() == other {
        true => Ok(String::new()),
        false => Err(io::Error::from_raw_os_error(libc::EXDEV)),
    }
}

/// A file of one's own that nobody may read: only a capability gets past that.
fn read_own_unreadable() -> Attempt {
    let path = format!("/tmp/unreadable-{}", std::process::id());
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?;
    fs::File::open(&path).map(|_| String::new())
}

/// Gives every capability away, and looks whether exec brings them back, as it does for uid 0.
fn regain_at_exec() -> Attempt {
    const VERSION_3: u32 = 0x2008_0522;
    let (header, none) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: header and data have the layout of version 3 and live over the call.
    answer(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) })?;
    Err(Command::new("/proc/self/exe")
        .arg("read-own-unreadable")
        .exec())
}

/// Real, effective and saved user and group.
fn ids() -> String {
    let (mut user, mut group) = ([0u32; 3], [0u32; 3]);
    // SAFETY: the kernel writes three integers of ours each.
    unsafe {
        libc::getresuid(&mut user[0], &mut user[1], &mut user[2]);
        libc::getresgid(&mut group[0], &mut group[1], &mut group[2]);
    }
    format!("{user:?} {group:?}")
}

fn variable(name: &str) -> Attempt {
    std::env::var(name).map_err(|_| io::Error::from_raw_os_error(libc::ENOENT))
}

/// Connects and reads what the other side says first.
fn connect(address: &str) -> Attempt {
    let address = address.parse().expect("address:port");
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    read_all(&mut stream)
}

fn connect_abstract(name: &str) -> Attempt {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    read_all(&mut stream)
}

fn read_all(stream: &mut impl Read) -> Attempt {
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Listens, says so, and greets whoever comes until standard input ends.
fn serve_abstract(name: &str) -> Attempt {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            _ = stream.write_all(b"greetings");
        }
    });
    crate::holds::ready();
    crate::holds::until_input_ends();
    Ok(String::new())
}
