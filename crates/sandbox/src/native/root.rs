//! The files in the root of a sandbox: the host's `/usr` and the little that it needs, or an image
//! with our own entries laid over it.

use super::{SandboxError, c_string, fake_proc};
use init::{
    plan::{FileId, ImageRoot, RootEntry, RootEntryKind, TemplatePlan},
    step::{Step, Steps},
};
use spec::{ErrorCode, ExtraMounts, ImageRef, Network, Root, SandboxSpec, User};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Top-level names that are links into `/usr` on a merged system and folders of their own
/// elsewhere.
const BESIDE_USR: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What programs need of `/etc`: the loader, name lookups, certificates, time zones.
const SHOWN_ETC: [&str; 16] = [
    "alternatives",
    "ca-certificates",
    "fonts",
    "gai.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];
/// Settings of language runtimes, whose folders carry their version.
const SHOWN_ETC_PREFIXES: [&str; 2] = ["java-", "python3"];
/// The hosts file of a sandbox: only itself.
pub(crate) const HOSTS: &str = "127.0.0.1 localhost airlock\n::1 localhost ip6-localhost\n";
/// Name lookups go to the egress door, which has fake IPs of one family.
pub(crate) const RESOLVER: &str = "nameserver 127.0.0.1\noptions timeout:5 attempts:2 no-aaaa\n";
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Never visible inside, even where all of `/etc` is shown.
const SECRETS_OF_ETC: [&str; 6] = [
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "sudoers",
    "ssl/private",
];

/// The entries of one root, in the order of creation; each path at most once.
#[derive(Default)]
struct RootEntries {
    list: Vec<RootEntry>,
    seen: BTreeSet<PathBuf>,
    /// Nothing can be created below these, because they are the host's or the image's own.
    bound: Vec<PathBuf>,
}

impl RootEntries {
    fn add(
        &mut self,
        path: &str,
        kind: RootEntryKind,
        content: impl AsRef<OsStr>,
    ) -> Result<(), SandboxError> {
        let path = Path::new(path);
        let parents: Vec<_> = path
            .ancestors()
            .skip(1)
            .filter(|parent| !parent.as_os_str().is_empty())
            .collect();
        for parent in parents.into_iter().rev() {
            self.put(parent, RootEntryKind::Directory, OsStr::new(""))?;
        }
        self.put(path, kind, content.as_ref())
    }

    fn put(
        &mut self,
        path: &Path,
        kind: RootEntryKind,
        content: &OsStr,
    ) -> Result<(), SandboxError> {
        let below_bound = self.bound.iter().any(|bound| path.starts_with(bound));
        if below_bound || !self.seen.insert(path.to_owned()) {
            return Ok(());
        }
        if matches!(
            kind,
            RootEntryKind::Bind | RootEntryKind::Link | RootEntryKind::Whiteout
        ) {
            self.bound.push(path.to_owned());
        }
        self.list.push(RootEntry {
            path: c_string(path)?,
            kind,
            content: c_string(content)?,
        });
        Ok(())
    }
}

/// Checks what a spec names for its root, without planning all of it.
pub(super) fn look(spec: &SandboxSpec) -> Result<(), SandboxError> {
    if let Root::Folder(folder) = &spec.root {
        check_mount_points(&image_folder(folder)?, spec)?;
    }
    mount_points(&mut RootEntries::default(), spec)
}

/// The plan of a root. Nothing of `hidden` is in it.
pub(super) fn plan(
    spec: &SandboxSpec,
    steps: Steps,
    hidden: &[PathBuf],
) -> Result<TemplatePlan, SandboxError> {
    let mut entries = RootEntries::default();
    let image = match &spec.root {
        Root::Host => {
            host_entries(&mut entries, spec, hidden)?;
            None
        }
        Root::Folder(folder) => {
            let real = image_folder(folder)?;
            check_mount_points(&real, spec)?;
            let root = image_root(&real)?;
            super::plan::check_exact(spec, folder, (root.id.device, root.id.inode))?;
            Some(root)
        }
        Root::Image(name) => return Err(not_here(name)),
    };
    for folder in [
        "proc",
        "sys",
        "dev/shm",
        "tmp",
        fake_proc::EMPTY_FOLDER,
        "workspace",
        "home/agent",
    ] {
        entries.add(folder, RootEntryKind::Directory, "")?;
    }
    entries.add(
        fake_proc::UNREADABLE_DEVICE,
        RootEntryKind::Bind,
        "/dev/null",
    )?;
    for device in DEVICES {
        entries.add(
            &format!("dev/{device}"),
            RootEntryKind::Device,
            format!("/dev/{device}"),
        )?;
    }
    for (link, target) in [
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        entries.add(
            &format!("dev/{link}"),
            RootEntryKind::Link,
            format!("/proc/self/{target}"),
        )?;
    }
    if steps.has(Step::ShowLimits) {
        // So limits are part of a root, and of the launcher's key: writing these files in each
        // sandbox would cost more than all its mounts.
        entries.list.extend(fake_proc::root_entries(&spec.limits)?);
    }
    if spec.tty.is_some() || spec.outlives_programs {
        terminal(&mut entries)?;
    }
    names(&mut entries, spec)?;
    mount_points(&mut entries, spec)?;
    Ok(TemplatePlan {
        steps,
        image,
        entries: entries.list,
    })
}

fn host_entries(
    entries: &mut RootEntries,
    spec: &SandboxSpec,
    hidden: &[PathBuf],
) -> Result<(), SandboxError> {
    entries.add("usr", RootEntryKind::Bind, "/usr")?;
    for name in BESIDE_USR {
        bind_or_link(entries, name)?;
    }
    match spec.extra_mounts {
        ExtraMounts::None => {
            let exact = SHOWN_ETC.into_iter().map(str::to_owned);
            for name in exact.chain(runtimes_of_etc()) {
                bind_or_link(entries, &format!("etc/{name}"))?;
            }
            users(entries, spec.user)
        }
        ExtraMounts::SystemReadOnly => whole_system(entries, hidden),
    }
}

/// In a fixed order, so that equal roots have equal plans.
fn runtimes_of_etc() -> BTreeSet<String> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            SHOWN_ETC_PREFIXES
                .iter()
                .any(|start| name.starts_with(start))
        })
        .collect()
}

/// A link stays a link: it leads into the root of the sandbox, not the host's.
fn bind_or_link(entries: &mut RootEntries, path: &str) -> Result<(), SandboxError> {
    let host = Path::new("/").join(path);
    match fs::symlink_metadata(&host) {
        Ok(found) if found.is_symlink() => match fs::read_link(&host) {
            Ok(target) => entries.add(path, RootEntryKind::Link, target),
            Err(source) => Err(SandboxError::Look { path: host, source }),
        },
        Ok(_) => entries.add(path, RootEntryKind::Bind, &host),
        // Not every system has every one.
        Err(_) => Ok(()),
    }
}

/// All of `/etc` and `/var`, without secrets, sockets and our own files.
fn whole_system(entries: &mut RootEntries, own: &[PathBuf]) -> Result<(), SandboxError> {
    for folder in ["etc", "var"] {
        entries.add(
            folder,
            RootEntryKind::HostOverlay,
            Path::new("/").join(folder),
        )?;
    }
    let mut hidden: Vec<_> = SECRETS_OF_ETC
        .iter()
        .map(|name| Path::new("etc").join(name))
        .collect();
    hidden.push(PathBuf::from("var/lib/airlock"));
    hidden.extend(own.iter().filter_map(|path| within_shown(path)));
    // Parents first: nothing needs hiding below a hidden path.
    hidden.sort();
    for path in hidden {
        let Some(inside) = path.to_str() else {
            return Err(SandboxError::Name { path });
        };
        entries.add(inside, RootEntryKind::Whiteout, "")?;
    }
    Ok(())
}

/// The path at which a host folder appears in `/etc` or `/var`, which may themselves be links.
fn within_shown(folder: &Path) -> Option<PathBuf> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = real(folder);
    ["etc", "var"].into_iter().find_map(|shown| {
        let below = folder
            .strip_prefix(real(&Path::new("/").join(shown)))
            .ok()?;
        Some(Path::new(shown).join(below))
    })
}

fn users(entries: &mut RootEntries, user: User) -> Result<(), SandboxError> {
    let uid = user.uid;
    let gid = user.gid;
    let home = spec::HOME;
    let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin";
    let agent = format!("agent:x:{uid}:{gid}:agent:{home}:/bin/sh");
    entries.add(
        "etc/passwd",
        RootEntryKind::File,
        format!("{agent}\n{nobody}\n"),
    )?;
    entries.add(
        "etc/group",
        RootEntryKind::File,
        format!("agent:x:{gid}:\nnogroup:x:65534:\n"),
    )
}

/// The terminals of a sandbox. `/dev/tty` is the terminal of the process that opens it, never one
/// of the host's.
fn terminal(entries: &mut RootEntries) -> Result<(), SandboxError> {
    entries.add("dev/pts", RootEntryKind::Directory, "")?;
    entries.add("dev/ptmx", RootEntryKind::Link, "pts/ptmx")?;
    entries.add("dev/tty", RootEntryKind::Device, "/dev/tty")
}

/// Name lookups inside: only this sandbox, or through the egress door, unless it is on the host's
/// network.
fn names(entries: &mut RootEntries, spec: &SandboxSpec) -> Result<(), SandboxError> {
    if spec.network == Network::Host {
        for file in ["hosts", "resolv.conf"] {
            if let Ok(real) = fs::canonicalize(Path::new("/etc").join(file)) {
                entries.add(&format!("etc/{file}"), RootEntryKind::Bind, real)?;
            }
        }
        return Ok(());
    }
    entries.add("etc/hosts", RootEntryKind::File, HOSTS)?;
    let resolver = match spec.transparent_ports {
        Some(_) => RESOLVER,
        None => "# no name server: this sandbox has no network\n",
    };
    entries.add("etc/resolv.conf", RootEntryKind::File, resolver)
}

fn mount_points(entries: &mut RootEntries, spec: &SandboxSpec) -> Result<(), SandboxError> {
    for mount in &spec.mounts {
        let inside = mount.inside.as_path();
        if inside.starts_with(spec::WORKSPACE) {
            continue;
        }
        let kind = match fs::metadata(&mount.host) {
            Ok(found) if found.is_dir() => RootEntryKind::Directory,
            Ok(_) => RootEntryKind::File,
            Err(source) => {
                return Err(SandboxError::Look {
                    path: mount.host.clone(),
                    source,
                });
            }
        };
        let path = inside.strip_prefix("/").unwrap_or(inside);
        let text = path.to_str().ok_or_else(|| SandboxError::Name {
            path: inside.to_owned(),
        })?;
        entries.add(text, kind, "")?;
    }
    Ok(())
}

fn image_root(folder: &Path) -> Result<ImageRoot, SandboxError> {
    let look = |source| SandboxError::Look {
        path: folder.to_owned(),
        source,
    };
    let found = fs::metadata(folder).map_err(look)?;
    Ok(ImageRoot {
        path: c_string(folder)?,
        id: FileId {
            device: found.dev(),
            inode: found.ino(),
        },
    })
}

/// The engine replaces the name by the folder of the unpacked image.
fn not_here(name: &ImageRef) -> SandboxError {
    SandboxError::Image {
        code: ErrorCode::ImageMissing,
        message: format!("there is no image `{}` here", name.familiar()),
        hint:
            "`airlock image list` shows what there is; `airlock image pull` and `load` bring more"
                .to_owned(),
    }
}

fn image_folder(folder: &Path) -> Result<PathBuf, SandboxError> {
    let refused = |code, message: String, hint: &str| SandboxError::Image {
        code,
        message,
        hint: hint.to_owned(),
    };
    let shown = folder.display();
    match fs::canonicalize(folder) {
        Ok(real) if real == Path::new("/") => Err(refused(
            ErrorCode::ImageRefused,
            "the host's own root cannot be an image".to_owned(),
            "leave --image away to see the host's /usr, or name a folder with a root file system",
        )),
        Ok(real) if real.is_dir() => Ok(real),
        Ok(_) => Err(refused(
            ErrorCode::ImageRefused,
            format!("the image `{shown}` is not a folder"),
            "unpack it first: this build takes a folder that holds a root file system",
        )),
        Err(error) => Err(refused(
            ErrorCode::ImageMissing,
            format!("there is no image `{shown}`: {error}"),
            "give --image a folder that holds a root file system",
        )),
    }
}

/// Our entries cover what an image has there; a link on the way to a mount point would be covered
/// with all that is behind it, which breaks the image in ways that are hard to see.
fn check_mount_points(image: &Path, spec: &SandboxSpec) -> Result<(), SandboxError> {
    for mount in &spec.mounts {
        let inside = mount
            .inside
            .as_path()
            .strip_prefix("/")
            .unwrap_or(mount.inside.as_path());
        let ways: Vec<_> = inside
            .ancestors()
            .filter(|part| !part.as_os_str().is_empty())
            .collect();
        for way in ways.into_iter().rev() {
            match fs::symlink_metadata(image.join(way)) {
                Ok(found) if found.is_symlink() => {
                    return Err(SandboxError::Image {
                        code: ErrorCode::ImageRefused,
                        message: format!("`/{}` is a symbolic link in the image", way.display()),
                        hint: "mount at the place that the link leads to".to_owned(),
                    });
                }
                Ok(found) if found.is_dir() => {}
                _ => break,
            }
        }
    }
    Ok(())
}
