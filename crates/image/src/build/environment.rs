//! The build environment: a temporary folder, and a user namespace whose ids are unused on this
//! machine.
//!
//! ```text
//! airlock ── holder (has the namespace, waits)
//!        └── nsenter: root in there ── unshare: own mounts, processes ── mmdebstrap ── steps of the recipe
//! ```

use super::{BuildError, BuildPlan, BuildPlatform, script};
use crate::recipe::SUITE;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::{
    fs, io,
    io::{BufRead, BufReader},
    os::fd::OwnedFd,
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// First host id of a tree built by root: outside the ranges of users and other programs, and
/// outside those of sandboxes, whose programs could otherwise send signals to a build or read its
/// files.
const FIRST_HOST_ID: u32 = 0x7100_0000;
/// Prefix of build folders.
const FOLDER_PREFIX: &str = "airlock-build.";
const ID_COUNT: u32 = 65_536;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The first process in the namespace. Its standard input is closed when this process ends for any
/// reason; it then kills the build, whose programs may ignore signals, and removes the files.
const INIT_SCRIPT: &str = "\
exec 3<&0 < /dev/null
trap 'kill -KILL -1; find \"$TMPDIR\" -xdev -mindepth 1 -delete; exit 1' TERM
\"$@\" 3<&- &
build=$!
{ cat <&3 > /dev/null; kill -TERM 1; } 2> /dev/null &
wait \"$build\"";

/// Registers an emulator for foreign programs in this namespace only (Linux 6.7 and later).
const EMULATION_SCRIPT: &str = "\
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && printf %s \"$0\" > /proc/sys/fs/binfmt_misc/register || {
    echo 'this kernel has no emulation for a single namespace (Linux 6.7 and later have)' >&2; exit 1; }
exec \"$@\"";

/// Settings of dpkg, as in Debian's own images: no fsync, since the tree is temporary; no
/// documentation except licences.
const DPKG_OPTIONS: [&str; 7] = [
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
];

/// A build environment. Call `close`: its files belong to ids that an ordinary user cannot remove.
#[derive(Debug)]
pub struct BuildEnvironment {
    folder: PathBuf,
    holder: Child,
    ids: IdMapping,
    /// Locked for the lifetime: an unlocked folder was left by a process that was killed.
    _lock: OwnedFd,
}

impl BuildEnvironment {
    /// Creates an environment in a folder for temporary files that every user may enter.
    pub fn open(temporary: &Path) -> Result<BuildEnvironment, BuildError> {
        for (program, package) in [
            ("mmdebstrap", "mmdebstrap"),
            ("unshare", "util-linux"),
            ("nsenter", "util-linux"),
        ] {
            if !is_installed(program) {
                return Err(BuildError::Missing { program, package });
            }
        }
        let ids = IdMapping::of_caller()?;
        sweep(temporary);
        let folder = make_folder(temporary)?;
        let lock = lock(&folder).map_err(BuildError::io(format!("lock `{}`", folder.display())))?;
        let opened = start_namespace_holder(&ids).and_then(|holder| {
            let environment = BuildEnvironment {
                folder: folder.clone(),
                holder,
                ids,
                _lock: lock,
            };
            match environment.make_tree_folder() {
                Ok(()) => Ok(environment),
                Err(error) => environment.close().and(Err(error)),
            }
        });
        opened.inspect_err(|_| {
            // Nothing was built yet; the folder is empty, or gone.
            let _ = fs::remove_dir_all(&folder);
        })
    }

    /// Removes the folder and ends the namespace.
    pub fn close(mut self) -> Result<(), BuildError> {
        let failed = || BuildError::io(format!("remove `{}`", self.folder.display()));
        let removed = self
            .inside("find")
            .arg(self.tree())
            .args(["-mindepth", "1", "-delete"])
            .status()
            .map_err(failed())?;
        // Closing its standard input ends the namespace holder.
        drop(self.holder.stdin.take());
        self.holder.wait().map_err(failed())?;
        if !removed.success() {
            return Err(failed()(io::Error::other("its files could not be removed")));
        }
        fs::remove_dir_all(&self.folder).map_err(BuildError::io(format!(
            "remove `{}`",
            self.folder.display()
        )))
    }

    /// Path of a file in the environment.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts `mmdebstrap`, which writes the layer to its standard output.
    pub(super) fn start(&self, plan: &BuildPlan, steps: &Path) -> Result<Child, BuildError> {
        let mut command = self.inside("unshare");
        command.args([
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
        ]);
        command.args(["/bin/sh", "-c", INIT_SCRIPT, "sh"]);
        if BuildPlatform::here() != Some(plan.platform) {
            command.args(["/bin/sh", "-c", EMULATION_SCRIPT, &emulator(plan.platform)?]);
        }
        command.args([
            "mmdebstrap",
            "--mode=unshare",
            "--variant=minbase",
            "--format=tar",
        ]);
        command.arg("--skip=check/qemu,output/dev,output/mknod");
        command.arg(format!("--architectures={}", plan.platform.architecture()));
        command.args(DPKG_OPTIONS.map(|option| format!("--dpkgopt={option}")));
        let steps = script::quoted(&steps.to_string_lossy());
        command
            .arg(format!(
                "--customize-hook=unshare --mount -- /bin/sh {steps} \"$1\""
            ))
            .args([SUITE, "-"])
            .args(&plan.sources);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_clear()
            .envs(&plan.environment)
            .env("PATH", PATH)
            .env("LC_ALL", "C.UTF-8");
        command.env("TMPDIR", self.tree()).env("HOME", self.tree());
        command.env("SOURCE_DATE_EPOCH", plan.epoch.to_string());
        // On failure mmdebstrap sends SIGHUP to its whole process group, which would include this
        // process.
        command.process_group(0);
        command.spawn().map_err(BuildError::io("start nsenter"))
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// A command that runs as root of the namespace.
    fn inside(&self, program: &str) -> Command {
        let mut command = tool("nsenter");
        let namespace = format!("--user=/proc/{}/ns/user", self.holder.id());
        command
            .args([&namespace, "--setuid=0", "--setgid=0", "--", program])
            .current_dir("/");
        command
    }

    /// Writes a file that root of the namespace may read, but not replace.
    pub(super) fn write_input(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, BuildError> {
        let path = self.path_of(name);
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path);
        let given = file.and_then(|mut file| {
            io::Write::write_all(&mut file, bytes)?;
            self.ids.chown(&path)
        });
        given.map_err(BuildError::io(format!("write `{}`", path.display())))?;
        Ok(path)
    }

    /// Creates the only folder that root of the namespace may write to.
    fn make_tree_folder(&self) -> Result<(), BuildError> {
        let made = fs::DirBuilder::new().mode(0o700).create(self.tree());
        let given = made.and_then(|()| self.ids.chown(&self.tree()));
        given.map_err(BuildError::io(format!("make `{}`", self.tree().display())))
    }
}

/// Opens and locks a build folder of this user; fails if it is locked.
fn lock(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    if rustix::fs::fstat(&opened)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

/// Removes what killed builds of this user left. What cannot be removed stays for the next sweep.
fn sweep(temporary: &Path) {
    let Ok(entries) = fs::read_dir(temporary) else {
        return;
    };
    for entry in entries.flatten().filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(FOLDER_PREFIX)
    }) {
        if let Ok(_lock) = lock(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn make_folder(temporary: &Path) -> Result<PathBuf, BuildError> {
    let mut random = [0; 8];
    let drawn = fs::File::open("/dev/urandom")
        .and_then(|mut source| io::Read::read_exact(&mut source, &mut random));
    drawn.map_err(BuildError::io("read /dev/urandom"))?;
    let folder = temporary.join(format!(
        "{FOLDER_PREFIX}{:016x}",
        u64::from_ne_bytes(random)
    ));
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    // Root of the namespace passes through this folder to the files it was given, whatever the
    // caller's umask is.
    let made = made.and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)));
    made.map_err(BuildError::io(format!("make `{}`", folder.display())))?;
    Ok(folder)
}

/// The id mapping of the namespace.
#[derive(Debug)]
enum IdMapping {
    /// Root may map any ids.
    Root,
    /// The user's own ids, and those that /etc/subuid and /etc/subgid grant.
    Own {
        uid: u32,
        gid: u32,
        users: u32,
        groups: u32,
    },
}

impl IdMapping {
    fn of_caller() -> Result<IdMapping, BuildError> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        if uid == 0 {
            return Ok(IdMapping::Root);
        }
        if !is_installed("newuidmap") {
            return Err(BuildError::Missing {
                program: "newuidmap",
                package: "uidmap",
            });
        }
        let user = name_of(uid).unwrap_or_else(|| uid.to_string());
        let granted =
            |file: &str| granted(&fs::read_to_string(file).unwrap_or_default(), &user, uid);
        match (granted("/etc/subuid"), granted("/etc/subgid")) {
            (Some(users), Some(groups)) => Ok(IdMapping::Own {
                uid,
                gid,
                users,
                groups,
            }),
            _ => Err(BuildError::NoSubordinateIds { user }),
        }
    }

    /// Gives a new file to root of the namespace.
    fn chown(&self, path: &Path) -> io::Result<()> {
        match self {
            IdMapping::Root => chown(path, Some(FIRST_HOST_ID), Some(FIRST_HOST_ID)),
            IdMapping::Own { .. } => Ok(()),
        }
    }

    fn map(&self, pid: u32) -> Result<(), BuildError> {
        match self {
            IdMapping::Root => ["uid_map", "gid_map"].into_iter().try_for_each(|file| {
                let path = format!("/proc/{pid}/{file}");
                fs::write(&path, format!("0 {FIRST_HOST_ID} {ID_COUNT}"))
                    .map_err(BuildError::io(format!("write {path}")))
            }),
            IdMapping::Own {
                uid,
                gid,
                users,
                groups,
            } => {
                run_id_mapper("newuidmap", pid, *uid, *users)?;
                run_id_mapper("newgidmap", pid, *gid, *groups)
            }
        }
    }
}

/// Runs a setuid program that maps our own id to root, and the granted ids to the rest.
fn run_id_mapper(program: &str, pid: u32, own: u32, granted: u32) -> Result<(), BuildError> {
    let numbers = [pid, 0, own, 1, 1, granted, ID_COUNT - 1].map(|number| number.to_string());
    let output = tool(program)
        .args(numbers)
        .output()
        .map_err(BuildError::io(format!("start {program}")))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(BuildError::NoNamespace {
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

fn name_of(uid: u32) -> Option<String> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let fits = |line: &&str| line.split(':').nth(2) == Some(&uid.to_string());
    passwd
        .lines()
        .find(fits)
        .and_then(|line| line.split(':').next())
        .map(str::to_owned)
}

/// The first large enough range in a file of lines `USER:INIT_SCRIPT:COUNT`.
fn granted(text: &str, user: &str, uid: u32) -> Option<u32> {
    let number = uid.to_string();
    text.lines().find_map(|line| {
        let mut parts = line.trim().split(':');
        let whose = parts.next()?;
        let first = parts.next()?.parse().ok()?;
        let count = parts.next()?.parse::<u32>().ok()?;
        ((whose == user || whose == number) && count >= ID_COUNT - 1).then_some(first)
    })
}

/// Starts a process that holds the namespace and waits for the end of its input.
fn start_namespace_holder(ids: &IdMapping) -> Result<Child, BuildError> {
    let mut command = tool("unshare");
    command.args(["--user", "--", "/bin/sh", "-c", "echo ready && read end"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut holder = command.spawn().map_err(BuildError::io("start unshare"))?;
    let mut ready = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut ready)
            .map_err(BuildError::io("wait for unshare"))?;
    }
    let mapped = match ready.trim() {
        "ready" => ids.map(holder.id()),
        _ => {
            let mut output = String::new();
            if let Some(mut stderr) = holder.stderr.take() {
                io::Read::read_to_string(&mut stderr, &mut output)
                    .map_err(BuildError::io("read from unshare"))?;
            }
            Err(BuildError::NoNamespace {
                output: output.trim().to_owned(),
            })
        }
    };
    match mapped {
        Ok(()) => Ok(holder),
        Err(error) => {
            drop(holder.stdin.take());
            holder.wait().map_err(BuildError::io("wait for unshare"))?;
            Err(error)
        }
    }
}

/// The binfmt_misc rule for a foreign platform, by the first bytes of its programs. The kernel
/// opens the emulator at registration (`F`), so the tree needs no copy.
fn emulator(platform: BuildPlatform) -> Result<String, BuildError> {
    let (program, machine) = match platform {
        BuildPlatform::Amd64 => ("qemu-x86_64-static", "\\x3e\\x00"),
        BuildPlatform::Arm64 => ("qemu-aarch64-static", "\\xb7\\x00"),
    };
    let path = find_program(program).ok_or(BuildError::Missing {
        program,
        package: "qemu-user-static",
    })?;
    let magic = format!(
        "\\x7fELF\\x02\\x01\\x01{}\\x02\\x00{machine}",
        "\\x00".repeat(9)
    );
    let mask = format!(
        "{}\\x00{}\\xfe\\xff\\xff\\xff",
        "\\xff".repeat(7),
        "\\xff".repeat(8)
    );
    Ok(format!(
        ":airlock-{}:M:0:{magic}:{mask}:{}:F",
        platform.architecture(),
        path.display()
    ))
}

/// A command with a fixed search path and without the caller's environment: root of the namespace
/// may inspect its processes.
fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH);
    command
}

fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

fn find_program(program: &str) -> Option<PathBuf> {
    PATH.split(':')
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_ids_are_those_granted_by_name_or_number() {
        let text = "root:1:65536\nsmall:1000:10\nme:100000:65536\n1234:200000:65536\nbroken\n";
        assert_eq!(granted(text, "me", 1000), Some(100_000));
        assert_eq!(granted(text, "x", 1234), Some(200_000));
        assert_eq!(
            (granted(text, "small", 1), granted(text, "other", 2)),
            (None, None)
        );
    }
}
