//! The create request of a container: pure, from the spec to the body of the API call.

use super::{
    EngineImage,
    engine::ContainerEngine,
    refused,
    staging_dir::{EMPTY, HIDDEN, HOSTS, MACHINE, RESOLVER},
};
use crate::native::{
    SandboxError,
    protect::{Bind, Protection},
};
use init::plan::{ContainerMount, FileId, HostPath};
use rustix::fs::{AtFlags, FileType};
use serde_json::{Map, Value, json};
use spec::{Access, ErrorCode, Id, SandboxSpec, User};
use std::{
    ffi::{CString, OsStr},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Our folder inside.
pub(super) const OURS: &str = "/.airlock";
/// Our first process counts as one.
pub(super) const SPARE_PIDS: u32 = 1;
/// Its memory.
pub(super) const SPARE_BYTES: u64 = 2 << 20;
/// The first process needs a few before it gives the program its own limit.
const MIN_OPEN_FILES: u32 = 128;
/// As many as any engine can give, for all processes of one user together.
const MAX_PROCESSES: u64 = 32768;
const PAGE: u64 = 4096;
/// For each scratch mount.
const MIN_INODES: u64 = 1024;

/// The calls that the engine itself refuses. Our own filter, installed by our first process,
/// refuses these and many more, and reports them; what the engine refuses is not reported.
const REFUSED: [&str; 10] = [
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "bpf",
];

/// Files of `/proc` and `/sys` that show the host. Engines have lists of their own, and not the
/// same ones.
const MASKED: [&str; 16] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel",
];
/// The fake files: their path in the staging folder, and the path that they cover.
const MACHINE_MOUNTS: [(&str, &str); 5] = [
    ("run/airlock/meminfo", "/proc/meminfo"),
    ("run/airlock/cpuinfo", "/proc/cpuinfo"),
    ("run/airlock/stat", "/proc/stat"),
    ("sys/devices/system/cpu", "/sys/devices/system/cpu"),
    ("sys/fs/cgroup", "/sys/fs/cgroup"),
];

/// What a create request needs besides the spec.
pub(super) struct CreateRequest<'a> {
    pub(super) engine: &'a ContainerEngine,
    pub(super) name: &'a str,
    pub(super) spec: &'a SandboxSpec,
    pub(super) image: &'a EngineImage,
    pub(super) user: User,
    pub(super) labels: &'a [(&'static str, String)],
    /// The staging folder on the host.
    pub(super) ours: &'a Path,
    /// A mounted workspace as it is on this host, and the mounts.
    pub(super) workspace: Option<&'a HostPath>,
    pub(super) mounts: &'a [HostPath],
    /// Whether its network may be set up from outside.
    pub(super) enter_network: bool,
    /// Of a mounted workspace.
    pub(super) protection: Option<&'a Protection>,
}

/// The sizes of the scratch mounts: together the disk limit.
pub(super) struct ScratchSizes {
    pub(super) workspace: u64,
    pub(super) home: u64,
    pub(super) tmp: u64,
    pub(super) run: u64,
    pub(super) shm: u64,
}

impl ScratchSizes {
    pub(super) fn of(disk: u64) -> ScratchSizes {
        let part = |sixteenths: u64| (disk / 16 * sixteenths / PAGE * PAGE).max(PAGE);
        ScratchSizes {
            workspace: part(6),
            home: part(2),
            tmp: part(6),
            run: part(1),
            shm: part(1),
        }
    }
}

impl CreateRequest<'_> {
    /// The body of the request.
    pub(super) fn body(&self) -> Result<Value, SandboxError> {
        let labels: Map<_, _> = self
            .labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        Ok(json!({
            "Image": self.image.id,
            "User": self.user_words(),
            "Hostname": "airlock",
            "Entrypoint": [format!("{OURS}/init"), "--box", format!("{OURS}/socket")],
            "Cmd": [],
            "WorkingDir": "/",
            "Labels": labels,
            "Healthcheck": { "Test": ["NONE"] },
            "NetworkDisabled": self.without_network(),
            "HostConfig": self.host()?,
        }))
    }

    /// A network namespace with only loopback needs none of Docker's own network setup, which takes
    /// most of its time. Docker then writes no hosts file either.
    fn without_network(&self) -> bool {
        self.spec.internal_network.is_none() && !self.engine.podman
    }

    fn user_words(&self) -> String {
        format!("{}:{}", self.user.uid, self.user.gid)
    }

    fn host(&self) -> Result<Value, SandboxError> {
        let limits = &self.spec.limits;
        let mut host = json!({
            "NetworkMode": self.spec.internal_network.as_ref().map_or("none", Id::as_str),
            "ReadonlyRootfs": true,
            "Privileged": false,
            "CapDrop": ["ALL"],
            "SecurityOpt": self.security(),
            "CgroupnsMode": "private",
            "IpcMode": "private",
            "Init": false,
            "AutoRemove": false,
            "RestartPolicy": { "Name": "no" },
            "LogConfig": { "Type": "none", "Config": {} },
            "Tmpfs": self.tmpfs(),
            "Mounts": self.all_mounts()?,
            "Ulimits": self.ulimits(),
        });
        let memory = limits.memory.0.saturating_add(SPARE_BYTES);
        let mut set = |name: &str, value: Value| host[name] = value;
        if self.engine.holds.memory {
            set("Memory", json!(memory));
            set("MemorySwap", json!(memory));
        }
        if self.engine.holds.pids {
            set("PidsLimit", json!(limits.pids.saturating_add(SPARE_PIDS)));
        }
        if self.spec.transparent_ports.is_some() {
            // Our unprivileged first process listens at the ports that programs dial. Only in its
            // own network.
            set(
                "Sysctls",
                json!({ "net.ipv4.ip_unprivileged_port_start": "0" }),
            );
        }
        if let Some(cpus) = limits.cpus.filter(|_| self.engine.holds.cpu) {
            let most = self
                .engine
                .cpus
                .map_or(u64::MAX, |cpus| cpus.saturating_mul(1000));
            set("NanoCpus", json!(u64::from(cpus.0).min(most) * 1_000_000));
        }
        if self.engine.podman {
            set("ShmSize", json!(ScratchSizes::of(limits.disk.0).shm))
        } else {
            set("MaskedPaths", json!(MASKED))
        }
        if self.engine.podman && self.engine.rootless {
            // The caller is the program: what it writes belongs to the caller on the host.
            set(
                "UsernsMode",
                json!(format!(
                    "keep-id:uid={},gid={}",
                    self.user.uid, self.user.gid
                )),
            );
        }
        Ok(host)
    }

    /// Podman masks more paths by an option.
    fn security(&self) -> Value {
        let mut options = vec!["no-new-privileges".to_owned(), self.seccomp()];
        if self.engine.podman {
            options.push(format!("mask={}", MASKED.join(":")));
        }
        json!(options)
    }

    /// Docker takes the profile itself, Podman the path of a file.
    fn seccomp(&self) -> String {
        if self.engine.podman {
            format!("seccomp={}", self.ours.join("seccomp.json").display())
        } else {
            format!("seccomp={}", profile())
        }
    }

    fn ulimits(&self) -> Value {
        let limits = &self.spec.limits;
        let exact = |name: &str, value: u64| json!({ "Name": name, "Soft": value, "Hard": value });
        let size = i64::try_from(limits.file_size.0).map_or(i64::MAX as u64, |size| size as u64);
        // The first process needs a few for each exec; programs lower the limit for themselves.
        let programs = if self.spec.outlives_programs {
            4 * init::protocol::MAX_EXECS as u32
        } else {
            0
        };
        let files = exact(
            "nofile",
            limits.open_files.max(MIN_OPEN_FILES + programs).into(),
        );
        // Not a limit of ours: engines by themselves ask for more than a host without privileges
        // can give.
        let processes = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
        let processes = exact(
            "nproc",
            processes.map_or(MAX_PROCESSES, |most| most.min(MAX_PROCESSES)),
        );
        let mut all = vec![files, exact("fsize", size), processes];
        // Programs lower these for themselves; engines by themselves give less than may be asked
        // for.
        let further = [
            (
                "memlock",
                limits.locked_memory,
                rustix::process::Resource::Memlock,
            ),
            (
                "msgqueue",
                limits.message_queues,
                rustix::process::Resource::Msgqueue,
            ),
        ];
        for (name, limit, resource) in further {
            let most = rustix::process::getrlimit(resource)
                .maximum
                .unwrap_or(i64::MAX as u64);
            all.extend(limit.map(|limit| exact(name, limit.0.min(most))));
        }
        json!(all)
    }

    fn tmpfs(&self) -> Value {
        let sizes = ScratchSizes::of(self.spec.limits.disk.0);
        // Some engines take the mode from the image's folder: so the mount also belongs to the
        // program's user.
        let own = if self.engine.podman {
            "notmpcopyup,U".to_owned()
        } else {
            format!("uid={},gid={}", self.user.uid, self.user.gid)
        };
        // Podman cannot limit the number of files; their memory is counted all the same.
        let count = |size: u64| {
            if self.engine.podman {
                String::new()
            } else {
                format!(",nr_inodes={}", (size / PAGE).max(MIN_INODES))
            }
        };
        let options = |size: u64| {
            json!(format!(
                "rw,exec,nosuid,nodev,size={size}{},mode=1777,{own}",
                count(size)
            ))
        };
        // A mounted workspace takes none of it.
        let (workspace, home) = match self.workspace {
            Some(_) => (None, sizes.workspace + sizes.home),
            None => (Some((spec::WORKSPACE, sizes.workspace)), sizes.home),
        };
        let places = [("/tmp", sizes.tmp), ("/run", sizes.run), (spec::HOME, home)];
        // Docker's own would have no such limit.
        let shm = (!self.engine.podman).then_some(("/dev/shm", sizes.shm));
        Value::Object(
            places
                .into_iter()
                .chain(workspace)
                .chain(shm)
                .map(|(place, size)| (place.to_owned(), options(size)))
                .collect(),
        )
    }

    fn binds(&self) -> &[Bind] {
        self.protection.map_or(&[], Protection::binds)
    }

    /// An empty file or folder.
    fn cover(&self, path: &Path) -> Result<PathBuf, SandboxError> {
        let look = |source: rustix::io::Errno| SandboxError::Look {
            path: path.to_owned(),
            source: source.into(),
        };
        let found = self.protection.map(|it| {
            let found = rustix::fs::statat(it.workspace(), path, AtFlags::SYMLINK_NOFOLLOW);
            found.map(|found| FileType::from_raw_mode(found.st_mode))
        });
        let is_folder = found.transpose().map_err(look)? == Some(FileType::Directory);
        Ok(self.ours.join(if is_folder { EMPTY } else { HIDDEN }))
    }

    fn all_mounts(&self) -> Result<Value, SandboxError> {
        let mut all = vec![self.bind(self.ours, OURS.as_ref(), Access::ReadOnly)?];
        let fake_proc = self.ours.join(MACHINE);
        for (from, inside) in MACHINE_MOUNTS {
            all.push(self.bind(&fake_proc.join(from), inside.as_ref(), Access::ReadOnly)?);
        }
        if self.without_network() {
            all.push(self.bind(
                &self.ours.join(HOSTS),
                "/etc/hosts".as_ref(),
                Access::ReadOnly,
            )?);
        }
        if self.spec.transparent_ports.is_some() {
            all.push(self.bind(
                &self.ours.join(RESOLVER),
                "/etc/resolv.conf".as_ref(),
                Access::ReadOnly,
            )?);
        }
        if let Some(workspace) = self.workspace {
            let workspace = path_of(&workspace.host);
            let access = if self.spec.read_only_workspace {
                Access::ReadOnly
            } else {
                Access::ReadWrite
            };
            all.push(self.bind(workspace, spec::WORKSPACE.as_ref(), access)?);
            for guarded in self.binds() {
                let inside = Path::new(spec::WORKSPACE).join(&guarded.path);
                let host = if guarded.hidden {
                    self.cover(&guarded.path)?
                } else {
                    workspace.join(&guarded.path)
                };
                all.push(self.bind(&host, &inside, Access::ReadOnly)?);
            }
        }
        for mount in self.mounts {
            let access = if mount.writable {
                Access::ReadWrite
            } else {
                Access::ReadOnly
            };
            all.push(self.bind(path_of(&mount.host), path_of(&mount.inside), access)?);
        }
        for volume in &self.spec.volumes {
            all.push(json!({
                "Type": "volume",
                "Source": volume.name.as_str(),
                "Target": self.text(volume.inside.as_path())?,
                "ReadOnly": volume.access == Access::ReadOnly,
                "VolumeOptions": { "NoCopy": true },
            }));
        }
        Ok(Value::Array(all))
    }

    /// A read-only mount leaves out mounts below it, which older engines leave writable; a writable
    /// one does so only if a file system of the host's kernel is below it.
    fn bind(&self, host: &Path, inside: &Path, access: Access) -> Result<Value, SandboxError> {
        let read_only = access == Access::ReadOnly;
        let alone = read_only || !kernel_submounts(host)?.is_empty();
        Ok(json!({
            "Type": "bind",
            "Source": self.text(host)?,
            "Target": self.text(inside)?,
            "ReadOnly": read_only,
            "BindOptions": { "Propagation": "rprivate", "NonRecursive": alone },
        }))
    }

    /// JSON strings hold no other paths than text, and Podman joins them to one line of options.
    fn text<'p>(&self, path: &'p Path) -> Result<&'p str, SandboxError> {
        let plain = |text: &&str| !self.engine.podman || !text.contains([',', '"', '\n', '\r']);
        path.to_str().filter(plain).ok_or_else(|| {
            refused(
                ErrorCode::InvalidSpec,
                format!(
                    "the path {path:?} cannot be named to {}",
                    self.engine.name()
                ),
                "rename it, or use the native backend",
            )
        })
    }

    /// The files that must be found inside, by identity.
    pub(super) fn host_mounts(&self) -> io::Result<Vec<ContainerMount>> {
        let mounts = self.workspace.into_iter().chain(self.mounts).map(|path| {
            let id = FileId {
                device: path.device,
                inode: path.inode,
            };
            Ok(ContainerMount {
                inside: path.inside.clone(),
                id,
            })
        });
        let guarded = self
            .protection
            .into_iter()
            .flat_map(|it| it.binds().iter().map(|bind| (it.workspace(), bind)));
        let guarded = guarded.map(|(workspace, bind)| {
            let found = if bind.hidden {
                let cover = self.cover(&bind.path).map_err(io::Error::other)?;
                rustix::fs::lstat(&cover)?
            } else {
                rustix::fs::statat(workspace, &bind.path, AtFlags::SYMLINK_NOFOLLOW)?
            };
            let inside = Path::new(spec::WORKSPACE).join(&bind.path).into_os_string();
            let id = FileId {
                device: found.st_dev,
                inode: found.st_ino,
            };
            Ok(ContainerMount {
                inside: CString::new(inside.as_bytes())?,
                id,
            })
        });
        mounts.chain(guarded).collect()
    }

    /// Paths at and below which our first process must find no writable mount.
    pub(super) fn read_only_places(&self) -> Vec<String> {
        let guarded = self.binds().iter();
        let guarded = guarded.map(|bind| Path::new(spec::WORKSPACE).join(&bind.path));
        let read_only = |access| access == Access::ReadOnly;
        let mounts = self
            .spec
            .mounts
            .iter()
            .filter(|it| read_only(it.access))
            .map(|it| it.inside.as_path().to_owned());
        let volumes = self
            .spec
            .volumes
            .iter()
            .filter(|it| read_only(it.access))
            .map(|it| it.inside.as_path().to_owned());
        let ours = [OURS]
            .into_iter()
            .chain(MACHINE_MOUNTS.map(|(_, inside)| inside))
            .map(Into::into);
        ours.chain(guarded)
            .chain(mounts)
            .chain(volumes)
            .map(|path| as_listed(&path))
            .collect()
    }
}

/// File systems of the host's kernel below a path, such as the `/proc` of a chroot.
fn kernel_submounts(host: &Path) -> Result<Vec<CString>, SandboxError> {
    let path = CString::new(host.as_os_str().as_bytes()).map_err(|_| SandboxError::Nul)?;
    init::submounts::below(&path).map_err(|source| SandboxError::Look {
        path: host.to_owned(),
        source,
    })
}

/// Notes about writable mounts that are shown without the mounts below them.
pub(super) fn submount_notes<'a>(
    mounts: impl IntoIterator<Item = &'a HostPath>,
) -> Result<Vec<String>, SandboxError> {
    let mut notes = Vec::new();
    for mount in mounts.into_iter().filter(|mount| mount.writable) {
        if let Some(found) = kernel_submounts(path_of(&mount.host))?.first() {
            notes.push(format!(
                "`{}` is a file system of the host's kernel: `{}` is shown without what is mounted in it",
                found.to_string_lossy().escape_debug(),
                mount.inside.to_string_lossy().escape_debug()
            ));
        }
    }
    Ok(notes)
}

fn path_of(path: &CString) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}

/// As the kernel writes a path in `mountinfo`.
fn as_listed(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012")
}

/// The seccomp profile for the engine.
pub(super) fn profile() -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    })
}
